/* SPDX-License-Identifier: Apache-2.0 */
/* 2 to 32 rows of f16 or bf16 x times weights of 4 or 8 bits on Hopper, as fast as weights arrive.
 *
 *     y = sum over slices of k and warpgroups, always in their order, of
 *         sum over groups of scale * (sum of x (code - zero))
 *
 * A ring in shared memory is filled by one warp. A stage is a quad of panels (64 outputs) x 256
 * positions, codes and tables, brought by two or three tensor copies on one barrier; two
 * warpgroups take the stages in turns, each warp a panel, and multiply by wgmma: codes become
 * integers in registers while the products of the turn before run. x of the CTA's slice of k lies
 * in shared memory all the while, in blocks of 64 positions with the swizzle that wgmma reads; rows
 * past m and columns past the last are zeros that the copy engine writes.
 *
 * Three more warps add sums: what the warpgroups have of a quad goes through shared memory, by
 * copies across the cluster if k is cut in slices (decode_quads.h), to the CTA that stores those
 * outputs.
 *
 * To make a barrier takes some 60 clocks, to ask for a stage 250: so all warps share the ring's
 * first round. lab/cuda/NOTES.md has what else was tried, and where the time goes.
 *
 * Codes of a table of 16 values are looked up in pairs, as in decode_float_rows.cuh.
 *
 * Left to other kernels: offsets, routes, parts, planes,
 * groups that are neither parts nor multiples of a stage, and x too long for 8 slices. */
#ifndef QNI_CUDA_MATMUL_DECODE_QUADS_CUH
#define QNI_CUDA_MATMUL_DECODE_QUADS_CUH

#include "../decode.cuh"
#include "../decode_float.cuh"
#include "../epilogue.cuh"
#include "../wgmma.cuh"
#include "decode_quads.h"

#include <cuda.h>

#define INLINE static __device__ __forceinline__

/* Warps beside those that multiply: one asks for weights, one sends sums, two add them. */
enum { SERVICE = 4, ADDERS = 2 };

struct quad_maps {
    CUtensorMap codes, scale, zero, x, x_end;
};

/* span: units to a row of tables; 4: four or more. */
template <int FORMAT, int SHIFT, int SPAN, int ROWS> struct form {
    static constexpr int format = FORMAT, shift = SHIFT, span = SPAN, rows = ROWS;
    static constexpr int groups = QUADS_GROUPS, blocks = QUADS_BLOCKS;
    static constexpr int block_bytes = IS_Q8(FORMAT) ? 1024 : 512;
    static constexpr int panel_bytes = blocks * block_bytes;
    static constexpr int code_bytes = QUADS_PANELS * panel_bytes;
    static constexpr int pieces = PIECES_OF(FORMAT); /* of a value */
    static constexpr int step_regs = 16 * pieces;    /* of the fragments of a block */
    /* A commit has `step` blocks; its sums are `sets`; `commits` of them go to one set. */
    static constexpr int step = SPAN == 1 || ROWS > 16 || pieces > 1 ? 1 : 2;
    static constexpr int commits = span > 2 * step ? span / (2 * step) : 1;
    static constexpr int sets = span > 2 * step ? 1 : 2 * step / span;
    static constexpr int turns = blocks / step;
    static constexpr int consumers = 128 * groups, threads = consumers + 32 * SERVICE;
    static constexpr int x_block = rows * 128;
    static constexpr int sum_row = rows + 4; /* f32 of an output's sums; a multiple of 16 bytes */
    static constexpr int sum_bytes = groups * 64 * sum_row * 4;
    static_assert(turns / commits % 2 == 0 && turns % 2 == 0, "registers by turns");
};

/* What a CTA has: quads [first, first + count), stages [begin, end) of each. */
struct part {
    int32_t first, count, begin, end, rank;
};

/* ---- barriers and copies --------------------------------------------------------------------- */

INLINE void expect_if(uint32_t bar, int32_t bytes, uint32_t really)
{
    asm volatile("{.reg .pred really; setp.ne.u32 really, %2, 0;\n"
                 "@really mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;}" ::"r"(bar),
                 "r"(bytes), "r"(really)
                 : "memory");
}
INLINE void arrive_if(uint32_t bar, uint32_t really)
{
    asm volatile("{.reg .pred really; setp.ne.u32 really, %1, 0;\n"
                 "@really mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(bar),
                 "r"(really)
                 : "memory");
}
INLINE void box2_if(uint32_t to, const CUtensorMap *map, int32_t a, int32_t b, uint32_t bar,
                    uint32_t really)
{
    asm volatile("{.reg .pred really; setp.ne.u32 really, %5, 0;\n"
                 "@really cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::"
                 "bytes [%0], [%1, {%2, %3}], [%4];}" ::"r"(to),
                 "l"(map), "r"(a), "r"(b), "r"(bar), "r"(really)
                 : "memory");
}
INLINE void box3_if(uint32_t to, const CUtensorMap *map, int32_t a, int32_t b, int32_t c,
                    uint32_t bar, uint32_t really)
{
    asm volatile("{.reg .pred really; setp.ne.u32 really, %6, 0;\n"
                 "@really cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::"
                 "bytes [%0], [%1, {%2, %3, %4}], [%5];}" ::"r"(to),
                 "l"(map), "r"(a), "r"(b), "r"(c), "r"(bar), "r"(really)
                 : "memory");
}
INLINE uint32_t in_cta(uint32_t address, int32_t rank)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
INLINE void arrive_there(uint32_t bar)
{
    asm volatile("mbarrier.arrive.relaxed.cluster.shared::cluster.b64 _, [%0];" ::"r"(bar)
                 : "memory");
}
/* Lanes may leave the loop one by one; what follows wants them together. */
INLINE void wait_together(uint32_t bar, int32_t parity)
{
    decode_bar_wait(bar, parity);
    __syncwarp();
}

/* Where the barriers are. */
enum {
    AT_FULL = 0,
    AT_EMPTY = AT_FULL + 8 * QUADS_MAX_STAGES,
    AT_X = AT_EMPTY + 8 * QUADS_MAX_STAGES,
    AT_STAGED = AT_X + 8 * QUADS_MAX_PIECES,
    AT_UNSTAGED = AT_STAGED + 16,
    AT_FILLED = AT_UNSTAGED + 16,
    AT_FREE = AT_FILLED + 16,
    AT_END = AT_FREE + 16
};
static_assert(AT_END <= 1024, "barriers");

INLINE void cluster_arrive(const quad_plan &e)
{
    if (e.slices > 1)
        asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
INLINE void cluster_wait(const quad_plan &e)
{
    if (e.slices > 1)
        asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/* ---- copies ---------------------------------------------------------------------------------- */

template <class F>
INLINE void ask_stage(const quad_maps &maps, const quad_plan &e, int32_t quad, int32_t c,
                      int32_t slot, uint32_t base, uint32_t first)
{
    const uint32_t full = base + AT_FULL + 8 * (uint32_t)slot;
    const uint32_t to = base + (uint32_t)(e.at_ring + slot * e.slot_bytes);
    const int32_t group =
        e.period > 1 ? decode_divide((uint32_t)c, (uint32_t)e.period, e.period_magic) : c * e.rows;
    expect_if(full, e.expect, first);
    box3_if(to, &maps.codes, 0, c * F::blocks, quad * QUADS_PANELS, full, first);
    box2_if(to + F::code_bytes, &maps.scale, group * e.scale_words, quad * QUADS_PANELS, full,
            first);
    if (F::shift == QNI_CUDA_SHIFT_ZERO)
        box2_if(to + F::code_bytes + (uint32_t)e.tables, &maps.zero, group * 4, quad * QUADS_PANELS,
                full, first);
}

template <class F> INLINE void begin_x(const part &own, uint32_t base, int32_t turn, uint32_t first)
{
    if (first) {
#pragma unroll 1
        for (int32_t i = turn; i * QUADS_X_BOX < (own.end - own.begin) * F::blocks; i += SERVICE)
            decode_bar_init(base + AT_X + 8 * (uint32_t)i, 1);
        decode_bar_fence();
    }
    __syncwarp();
}
/* Every SERVICE-th piece of x from `turn` on. */
template <class F>
INLINE void ask_x(const quad_maps &maps, const quad_plan &e, const part &own, uint32_t base,
                  int32_t turn, uint32_t first)
{
#pragma unroll 1
    for (int32_t piece = turn;; piece += SERVICE) {
        const int32_t b = own.begin * F::blocks + piece * QUADS_X_BOX;
        if (b >= own.end * F::blocks)
            return;
        const uint32_t bar = base + AT_X + 8 * (uint32_t)piece;
        const uint32_t to = base + (uint32_t)(e.at_x + piece * (QUADS_X_BOX * F::x_block));
        expect_if(bar, QUADS_X_BOX * F::x_block, first);
        if (b + QUADS_X_BOX <= e.whole) {
            box3_if(to, &maps.x, 0, 0, b, bar, first);
        } else {
#pragma unroll 1
            for (int32_t i = 0; i < QUADS_X_BOX; i++)
                box2_if(to + (uint32_t)(i * F::x_block), &maps.x_end, (b + i) * 64, 0, bar, first);
        }
    }
}

/* The barriers of the sums. */
template <class F> INLINE void begin_sums(const quad_plan &e, uint32_t base, int32_t i)
{
    const int32_t kind = i >> 1;
    const uint32_t bar = base + AT_STAGED + 8 * (uint32_t)i;
    decode_bar_init(bar, kind == 0   ? 4 * F::groups
                         : kind == 1 ? (e.slices == 1 ? ADDERS : 1)
                         : kind == 2 ? 1
                                     : ADDERS * e.slices);
    decode_bar_fence();
    if (kind == 2)
        decode_bar_expect(bar, F::sum_bytes);
}
/* The ring's first round, by all warps side by side. Half of it is asked for before x, so that the
 * memory has something to do while x, which the cache has, comes; the rest behind it. */
template <class F>
INLINE void begin_ring(const quad_maps &maps, const quad_plan &e, const part &own, uint32_t base,
                       int32_t warp, uint32_t first)
{
    const int32_t length = own.end - own.begin, total = own.count * length;
    if (first && warp >= 4 && warp < 8) {
        begin_sums<F>(e, base, 2 * warp - 8);
        begin_sums<F>(e, base, 2 * warp - 7);
    }
#pragma unroll 1
    for (int32_t i = warp; i < e.depth; i += F::threads / 32) {
        if (first) {
            decode_bar_init(base + AT_FULL + 8 * (uint32_t)i, 1);
            decode_bar_fence();
        }
        __syncwarp();
        if (i < total) {
            int32_t quad = own.first, c = i;
#pragma unroll 1
            for (; c >= length; c -= length)
                quad++;
            ask_stage<F>(maps, e, quad, own.begin + c, i, base, first);
        }
        if (first) {
            decode_bar_init(base + AT_EMPTY + 8 * (uint32_t)i, 4);
            decode_bar_fence();
        }
        __syncwarp();
    }
}

template <class F>
INLINE void produce(const quad_maps &maps, const quad_plan &e, const part &own, uint32_t base,
                    uint32_t first)
{
    const int32_t length = own.end - own.begin, total = own.count * length;
    int32_t quad = own.first, c = min(e.depth, total), slot = 0, parity = 0;
    if (length > 0)
#pragma unroll 1
        for (; c >= length; c -= length)
            quad++;
#pragma unroll 1
    for (int32_t left = total - min(e.depth, total); left > 0; left--) {
        wait_together(base + AT_EMPTY + 8 * (uint32_t)slot, parity);
        ask_stage<F>(maps, e, quad, own.begin + c, slot, base, first);
        if (++slot == e.depth) {
            slot = 0;
            parity ^= 1;
        }
        if (++c == length) {
            c = 0;
            quad++;
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

template <class F> struct consumer {
    const uint8_t *codes, *table, *zero; /* of slot 0, of this lane */
    uint32_t base, pairs;
    int32_t slot, parity;
};

/* Turn p of the stage in slot `at` bytes as A fragments; pieces of values follow each other. */
template <class F>
INLINE void fragments(uint32_t (&a)[F::step_regs * F::step], const quad_plan &e,
                      const consumer<F> &c, int32_t at, int p)
{
    enum { STEP_WORDS = IS_Q8(F::format) ? 2 : 1 };
    struct dequant_bias bias = bias_of<F::format>(0, 0);
#pragma unroll
    for (int b = 0; b < F::step; b++) {
        uint32_t words[F::block_bytes / 128];
#pragma unroll
        for (int i = 0; i < F::block_bytes / 512; i++)
            *(uint4 *)(words + 4 * i) =
                *(const uint4 *)(c.codes + at + (F::step * p + b) * F::block_bytes + i * 512);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (F::shift == QNI_CUDA_SHIFT_ZERO && (4 * b + s) % (2 * F::span) == 0) {
                const int32_t row = ((2 * (F::step * p + b) + s / 2) * e.table_step) & -e.row_bytes;
                const char2 z =
                    *(const char2 *)(c.zero + at + (e.scale_is_f16 ? row / 2 : row / 4));
                bias = bias_of<F::format>(z.x, z.y);
            }
            uint32_t four[F::pieces][4];
            if constexpr (IS_T4(F::format))
                dequant_t4_pairs<F::pieces>(four, words[s], c.pairs);
            else
                integers<F::format>(four[0], words + s * STEP_WORDS, bias,
                                    F::shift == QNI_CUDA_SHIFT_ZERO);
#pragma unroll
            for (int i = 0; i < 4 * F::pieces; i++)
                a[(4 * b + s) * 4 * F::pieces + i] = four[i / 4][i % 4];
        }
    }
#pragma unroll
    for (int i = 0; i < F::step_regs * F::step; i++)
        asm volatile("" : "+r"(a[i])::"memory");
}

template <class F>
INLINE void multiply(float (&sums)[F::sets][F::rows / 2], uint32_t (&a)[F::step_regs * F::step],
                     uint32_t tile, bool add)
{
#pragma unroll
    for (int i = 0; i < F::step_regs * F::step; i++)
        asm volatile("" : "+r"(a[i])::"memory");
#pragma unroll
    for (int s = 0; s < F::sets; s++)
        qni_wgmma::hold(sums[s]);
    qni_wgmma::fence();
    enum { EACH = 4 * F::step / F::sets }; /* products of a set */
#pragma unroll
    for (int s = 0; s < 4 * F::step; s++)
#pragma unroll
        for (int piece = 0; piece < F::pieces; piece++)
            qni_wgmma::product<F::rows>::template run<IS_BF16(F::format)>(
                sums[s / EACH], a + 4 * (s * F::pieces + piece),
                tile + (uint32_t)(s / 4 * (F::rows * 8) + s % 4 * 2),
                add || s % EACH != 0 || piece > 0);
    qni_wgmma::commit();
}

template <class F>
INLINE void scales(float2 (&to)[F::sets], const quad_plan &e, const consumer<F> &c, int32_t at,
                   int p)
{
#pragma unroll
    for (int s = 0; s < F::sets; s++)
        to[s] = pair_at(c.table + at +
                            (((2 * F::step * p + s * F::span) * e.table_step) & -e.row_bytes),
                        e.scale_is_f16);
}
template <class F>
INLINE void add_scaled(float (&all)[F::rows / 2], float (&sums)[F::sets][F::rows / 2],
                       const float2 (&scale)[F::sets])
{
#pragma unroll
    for (int s = 0; s < F::sets; s++) {
        qni_wgmma::hold(sums[s]);
#pragma unroll
        for (int i = 0; i < F::rows / 2; i++)
            all[i] = fmaf(sums[s][i], (i & 2) == 0 ? scale[s].x : scale[s].y, all[i]);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Apart, so that the fast path is short. */
static __device__ __noinline__ void store_any(const struct qni_cuda_sink *out, int64_t row,
                                              int32_t j, float a, float b, bool both)
{
    epilogue_store(*out, epilogue_row_of(*out, row), j, 0, a);
    if (both)
        epilogue_store(*out, epilogue_row_of(*out, row + 1), j, 0, b);
}
/* Two rows of an output. */
INLINE void store2(const struct qni_cuda_sink &out, int64_t row, int32_t j, float2 v, bool both)
{
    if (!out.is_plain || out.y_dtype != QN_F16) {
        store_any(&out, row, j, v.x, v.y, both);
        return;
    }
    uint16_t *const to = (uint16_t *)out.y + row * out.stride[2] + j;
    *to = epilogue_f16(v.x);
    if (both)
        to[out.stride[2]] = epilogue_f16(v.y);
}

/* What a warp has of its panel of the q-th quad, for those who add. */
template <class F>
INLINE void put_sums(float (&all)[F::rows / 2], const quad_plan &e, uint8_t *shared, uint32_t base,
                     int32_t q, int32_t group, float times)
{
    if (F::pieces > 1)
#pragma unroll
        for (int i = 0; i < F::rows / 2; i++)
            all[i] *= times;
    const int32_t lane = (int32_t)threadIdx.x & 31, warp = (int32_t)threadIdx.x >> 5 & 3;
    const int32_t slot = q % e.n_stage;
    float *const at = (float *)(shared + e.at_stage + slot * e.sums) +
                      ((group * QUADS_PANELS + warp) * 16 + (lane >> 2)) * F::sum_row +
                      2 * (lane & 3);
    if (q >= e.n_stage)
        wait_together(base + AT_UNSTAGED + 8 * (uint32_t)slot, (q / e.n_stage & 1) ^ 1);
#pragma unroll
    for (int h = 0; h < 2; h++)
#pragma unroll
        for (int i = 0; i < F::rows / 8; i++)
            *(float2 *)(at + h * 8 * F::sum_row + 8 * i) =
                make_float2(all[4 * i + 2 * h], all[4 * i + 2 * h + 1]);
#pragma unroll
    for (int i = 0; i < F::rows / 2; i++)
        all[i] = 0.0f;
    if (e.slices > 1)
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
    arrive_if(base + AT_STAGED + 8 * (uint32_t)slot, lane == 0);
}

/* This CTA's sums of all quads to the CTAs that add them, by the copy engine: single stores across
 * a cluster take it some 3 clocks each. A warp. */
template <class F> INLINE void send_sums(const quad_plan &e, uint32_t base, const part &own)
{
    const int32_t lane = (int32_t)threadIdx.x & 31, bytes = (F::sum_row * 64 * 4) >> e.slices_bits;
#pragma unroll 1
    for (int32_t q = 0; q < own.count; q++) {
        const int32_t from = q % e.n_stage, to = q % e.n_sums;
        wait_together(base + AT_STAGED + 8 * (uint32_t)from, q / e.n_stage & 1);
        if (q >= e.n_sums)
            wait_together(base + AT_FREE + 8 * (uint32_t)to, (q / e.n_sums & 1) ^ 1);
        if (lane == 0) {
#pragma unroll 1
            for (int32_t i = 0; i < F::groups * e.slices; i++) {
                const int32_t group = i >> e.slices_bits, there = i & (e.slices - 1);
                asm volatile("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::"
                             "bytes [%0], [%1], %2, [%3];" ::"r"(
                                 in_cta(base + (uint32_t)(e.at_sums + to * e.sums +
                                                          (own.rank * F::groups + group) * bytes),
                                        there)),
                             "r"(base + (uint32_t)(e.at_stage + from * e.sums + i * bytes)),
                             "r"(bytes), "r"(in_cta(base + AT_FILLED + 8 * (uint32_t)to, there))
                             : "memory");
            }
            asm volatile("cp.async.bulk.commit_group;\n"
                         "cp.async.bulk.wait_group.read 0;" ::
                             : "memory");
        }
        __syncwarp();
        arrive_if(base + AT_UNSTAGED + 8 * (uint32_t)from, lane == 0);
    }
}

/* Adds the pieces of the q-th quad in their order and stores them: thread `thread` of THREADS. */
template <class F, int THREADS>
INLINE void add_quad(const quad_plan &e, const struct qni_cuda_sink &out, uint8_t *shared,
                     const part &own, int32_t q, int32_t thread)
{
    const int32_t each = 64 / e.slices;
    const float *const from =
        (const float *)(shared + (e.slices == 1 ? e.at_stage + q % e.n_stage * e.sums
                                                : e.at_sums + q % e.n_sums * e.sums));
#pragma unroll 1
    for (int32_t v = thread; v < each * (F::rows / 2); v += THREADS) {
        const int32_t o = v & (each - 1), r = (v >> e.each_bits) * 2;
        const float *at = from + o * F::sum_row + r;
        float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll 1
        for (int32_t s = 0; s < e.slices; s++)
#pragma unroll
            for (int p = 0; p < F::groups; p++) {
                const float2 more = *(const float2 *)at;
                at += each * F::sum_row;
                sum.x += more.x;
                sum.y += more.y;
            }
        const int32_t j = (own.first + q) * 64 + own.rank * each + o;
        if (j < e.n && r < e.m)
            store2(out, e.row + r, j, sum, r + 1 < e.m);
    }
}
/* Sums of all quads but the last, which all warps add when nothing is left to multiply; not before
 * these have seen that it is there: others do not see every phase of the barriers. ADDERS warps. */
template <class F>
INLINE void add(const quad_plan &e, const struct qni_cuda_sink &out, uint8_t *shared, uint32_t base,
                const part &own, int32_t adder)
{
    const int32_t lane = (int32_t)threadIdx.x & 31;
    const bool alone = e.slices == 1;
    const int32_t slots = alone ? e.n_stage : e.n_sums;
#pragma unroll 1
    for (int32_t q = 0; q < own.count; q++) {
        const uint32_t there = 8 * (uint32_t)(q % slots);
        wait_together(base + (alone ? AT_STAGED : AT_FILLED) + there, q / slots & 1);
        if (q + 1 == own.count)
            return;
        add_quad<F, 32 * ADDERS>(e, out, shared, own, q, adder * 32 + lane);
        __syncwarp();
        if (alone)
            arrive_if(base + AT_UNSTAGED + there, lane == 0);
        if (alone || q + slots >= own.count)
            continue;
        if (adder == 0 && lane == 0)
            decode_bar_expect(base + AT_FILLED + there, F::sum_bytes);
        __syncwarp();
        if (lane < e.slices)
            arrive_there(in_cta(base + AT_FREE + there, lane));
        __syncwarp();
    }
}
template <class F>
INLINE void add_last(const quad_plan &e, const struct qni_cuda_sink &out, uint8_t *shared,
                     const part &own)
{
    const int32_t q = own.count - 1;
    asm volatile("bar.sync 1, %0;" ::"n"(F::threads - 32) : "memory");
    /* All that this CTA waits for has come; nobody leaves before it has for all of them. */
    cluster_arrive(e);
    add_quad<F, F::threads - 32>(e, out, shared, own, q,
                                 (int32_t)threadIdx.x - (threadIdx.x > F::consumers ? 32 : 0));
    cluster_wait(e);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <class F>
INLINE void consume(const quad_plan &e, uint8_t *shared, uint32_t base, const part &own,
                    float times)
{
    const int32_t lane = (int32_t)threadIdx.x & 31;
    const int32_t warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x >> 5, 0);
    const int32_t group = warp >> 2, panel = warp & 3, length = own.end - own.begin;
    const int32_t count = own.count, total = count * length;
    const uint32_t is_first = lane == 0;
    consumer<F> c;
    c.codes = shared + e.at_ring + panel * F::panel_bytes + lane * 16;
    c.table = shared + e.at_ring + F::code_bytes + panel * (e.tables / QUADS_PANELS) +
              (lane >> 2) * (e.scale_is_f16 ? 4 : 8);
    c.zero = shared + e.at_ring + F::code_bytes + e.tables + panel * (e.zeros / QUADS_PANELS) +
             (lane >> 2) * 2;
    c.base = base;
    c.pairs = base + QUADS_FIXED + (uint32_t)(lane * DEQUANT_PAIR_BYTES(F::pieces) % 128);
    c.slot = group;
    c.parity = 0;
    const uint32_t x_tile = qni_wgmma::tile(base + (uint32_t)e.at_x);
    int32_t left = (total - group + F::groups - 1) / F::groups; /* stages of this warpgroup */
    int32_t t = group;                                          /* of the quad */
    float all[F::rows / 2] = {};
    float sums[2][F::sets][F::rows / 2];
    float2 scale[F::sets];
    uint32_t a[2][F::step_regs * F::step];
    if (left > 0)
        wait_together(base + AT_FULL + 8 * (uint32_t)c.slot, c.parity);
    fragments<F>(a[0], e, c, c.slot * e.slot_bytes, 0);
#pragma unroll 1
    for (int32_t q = 0; q < count; q++) {
#pragma unroll 1
        for (; t < length; t += F::groups) {
            if (q < F::groups) {
                const int32_t b0 = t * F::blocks / QUADS_X_BOX,
                              b1 = (t * F::blocks + F::blocks - 1) / QUADS_X_BOX;
                wait_together(base + AT_X + 8 * (uint32_t)b0, 0);
                if (b1 != b0)
                    wait_together(base + AT_X + 8 * (uint32_t)b1, 0);
            }
            const uint32_t tile = x_tile + (uint32_t)(t * (F::blocks * F::x_block / 16));
            const int32_t at = c.slot * e.slot_bytes;
            /* Each turn's products run while the next one's integers are made. Products are asked
             * for before those of the turn before are waited for, which is what keeps ptxas from
             * making integers behind the wait, as it does where a stage ends. */
#pragma unroll
            for (int p = 0; p < F::turns; p++) {
                multiply<F>(sums[p / F::commits % 2], a[p % 2],
                            tile + (uint32_t)(p * F::step * (F::x_block / 16)),
                            p % F::commits != 0);
                float2 now[F::sets];
                if (p % F::commits == 0)
                    scales<F>(now, e, c, at, p);
                if (p > 0) {
                    qni_wgmma::wait<1>();
                    if (p % F::commits == 0)
                        add_scaled<F>(all, sums[(p / F::commits + 1) % 2], scale);
                }
                if (p % F::commits == 0) {
#pragma unroll
                    for (int s = 0; s < F::sets; s++)
                        scale[s] = now[s];
                }
                if (p + 1 < F::turns) {
                    fragments<F>(a[(p + 1) % 2], e, c, at, p + 1);
                    continue;
                }
                __syncwarp();
                arrive_if(base + AT_EMPTY + 8 * (uint32_t)c.slot, is_first);
                c.slot += F::groups;
                if (c.slot >= e.depth) {
                    c.slot -= e.depth;
                    c.parity ^= 1;
                }
                if (--left > 0)
                    wait_together(base + AT_FULL + 8 * (uint32_t)c.slot, c.parity);
                fragments<F>(a[0], e, c, c.slot * e.slot_bytes, 0);
                qni_wgmma::wait<0>();
                add_scaled<F>(all, sums[1], scale);
            }
        }
        t -= length;
        put_sums<F>(all, e, shared, base, q, group, times);
    }
}

template <class F>
static __global__ void __launch_bounds__(F::threads, 1)
    decode_quads(const __grid_constant__ quad_maps maps, const __grid_constant__ quad_plan e,
                 const __grid_constant__ struct qni_cuda_sink out)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t base = ptx_shared(shared);
    const int32_t cluster = (int32_t)blockIdx.x >> e.slices_bits;
    part own;
    own.rank = (int32_t)blockIdx.x & (e.slices - 1);
    own.first = cluster * e.share + min(cluster, e.more);
    own.count = e.share + (cluster < e.more);
    own.begin = e.stages * own.rank >> e.slices_bits;
    own.end = e.stages * (own.rank + 1) >> e.slices_bits;
    const int32_t warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x >> 5, 0);
    const int32_t turn = warp - F::consumers / 32;
    const uint32_t first = (threadIdx.x & 31) == 0;
    struct decode_pair pair = {};
    float times = 1.0f;
    if constexpr (IS_T4(F::format))
        pair = pair_of(e.values);
    if (turn >= 0) {
        begin_x<F>(own, base, turn, first);
        if (!e.pdl)
            ask_x<F>(maps, e, own, base, turn, first);
    }
    begin_ring<F>(maps, e, own, base, warp, first);
    if constexpr (IS_T4(F::format))
        times = put_pair<F::format>(pair, shared + QUADS_FIXED);
    __syncthreads();
    cluster_arrive(e);
    ptx_dependents_launch();
    ptx_dependency_wait();
    if (turn == 0) {
        if (e.pdl)
            ask_x<F>(maps, e, own, base, turn, first);
        produce<F>(maps, e, own, base, first);
        cluster_wait(e);
        return;
    }
    if (turn < 0) {
        consume<F>(e, shared, base, own, times);
        cluster_wait(e);
    } else {
        if (e.pdl)
            ask_x<F>(maps, e, own, base, turn, first);
        cluster_wait(e);
        if (turn > 1)
            add<F>(e, out, shared, base, own, turn - 2);
        else if (e.slices > 1)
            send_sums<F>(e, base, own);
    }
    add_last<F>(e, out, shared, own);
}

/* ---- launches -------------------------------------------------------------------------------- */

typedef decltype(&cuTensorMapEncodeTiled) encode_fn;

struct box {
    int32_t rank;
    cuuint64_t size[3], stride[2];
    cuuint32_t box[3];
};
static bool describe_one(encode_fn encode, CUtensorMap *map, CUtensorMapDataType type,
                         const void *from, const box &b, bool swizzled)
{
    const cuuint32_t step[3] = {1, 1, 1};
    return encode(map, type, (cuuint32_t)b.rank, (void *)(uintptr_t)from, b.size, b.stride, b.box,
                  step, CU_TENSOR_MAP_INTERLEAVE_NONE,
                  swizzled ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* Whole blocks of x are told as [block][row][64 columns]; its end, and what is behind it, as
 * [row][column]. */
template <class F>
static int32_t describe(const struct qni_cuda_product *p, const quad_plan &e, quad_maps *maps)
{
    void *entry = NULL;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t status = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry,
                                                                12000, cudaEnableDefault, &found);
    if (status != cudaSuccess || found != cudaDriverEntryPointSuccess)
        return (int32_t)(status != cudaSuccess ? cudaGetLastError() : cudaErrorNotSupported);
    const encode_fn encode = (encode_fn)entry;
    const struct qni_cuda_weights &w = p->w;
    const auto word = CU_TENSOR_MAP_DATA_TYPE_INT32;
    const auto type =
        IS_BF16(F::format) ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    const cuuint64_t panels = (cuuint64_t)w.panels, groups = (cuuint64_t)w.n_groups;
    const cuuint64_t blocks = (cuuint64_t)w.units / 2, lda = (cuuint64_t)p->x.lda;
    const cuuint64_t columns = (cuuint64_t)p->x.columns, m = (cuuint64_t)p->m;
    const box codes = {3,
                       {F::block_bytes / 8, blocks, panels},
                       {F::block_bytes, blocks * F::block_bytes},
                       {F::block_bytes / 8, F::blocks, QUADS_PANELS}};
    const box scale = {2,
                       {groups * (cuuint64_t)e.scale_words, panels, 1},
                       {groups * (cuuint64_t)e.row_bytes, 0},
                       {(cuuint32_t)(e.rows * e.scale_words), QUADS_PANELS, 1}};
    const box zero = {
        2, {groups * 4, panels, 1}, {groups * 16, 0}, {(cuuint32_t)e.rows * 4, QUADS_PANELS, 1}};
    const box x = {3,
                   {64, m, (cuuint64_t)(e.whole > 0 ? e.whole : 1)},
                   {lda, 128},
                   {64, F::rows, QUADS_X_BOX}};
    const box x_end = {2, {columns, m, 1}, {lda, 0}, {64, F::rows, 1}};
    const uint8_t *const blob = w.blob;
    bool ok = describe_one(encode, &maps->codes, CU_TENSOR_MAP_DATA_TYPE_INT64, blob + w.codes,
                           codes, false) &&
              describe_one(encode, &maps->scale, word, blob + w.scale, scale, false) &&
              describe_one(encode, &maps->x, type, p->x.a, x, true) &&
              describe_one(encode, &maps->x_end, type, p->x.a, x_end, true);
    if (F::shift == QNI_CUDA_SHIFT_ZERO)
        ok = ok && describe_one(encode, &maps->zero, word, blob + w.zero, zero, false);
    return ok ? 0 : (int32_t)cudaErrorInvalidValue;
}

template <class F>
static int32_t start(const struct qni_cuda_product *p, const struct qni_cuda_launch *launch,
                     quad_plan *e)
{
    quad_maps maps = {};
    const int32_t status = describe<F>(p, *e, &maps);
    if (status != 0)
        return status;
    const void *const kernel = (const void *)decode_quads<F>;
    struct qni_cuda_sink out = p->out;
    void *arguments[] = {&maps, e, &out};
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = (unsigned)e->slices;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)(e->clusters * e->slices));
    config.blockDim = dim3(F::threads);
    config.dynamicSmemBytes = (size_t)e->bytes;
    config.stream = (cudaStream_t)launch->stream;
    config.attrs = attributes;
    config.numAttrs = launch->pdl ? 2 : 1;
    cudaError_t made =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, e->bytes);
    if (made == cudaSuccess)
        made = cudaLaunchKernelExC(&config, kernel, arguments);
    (void)cudaGetLastError();
    return (int32_t)made;
}

template <int FORMAT, int SHIFT, int SPAN>
static int32_t start_rows(const struct qni_cuda_product *p, const struct qni_cuda_launch *launch,
                          quad_plan *e)
{
    const int32_t rows = quads_rows(p->m);
    return rows == 8    ? start<form<FORMAT, SHIFT, SPAN, 8>>(p, launch, e)
           : rows == 16 ? start<form<FORMAT, SHIFT, SPAN, 16>>(p, launch, e)
           : rows == 24 ? start<form<FORMAT, SHIFT, SPAN, 24>>(p, launch, e)
                        : start<form<FORMAT, SHIFT, SPAN, 32>>(p, launch, e);
}
template <int FORMAT, int SHIFT>
static int32_t start_span(const struct qni_cuda_product *p, const struct qni_cuda_launch *launch,
                          quad_plan *e)
{
    return e->rows == QUADS_UNITS       ? start_rows<FORMAT, SHIFT, 1>(p, launch, e)
           : 2 * e->rows == QUADS_UNITS ? start_rows<FORMAT, SHIFT, 2>(p, launch, e)
                                        : start_rows<FORMAT, SHIFT, 4>(p, launch, e);
}
template <int FORMAT>
static int32_t start_shift(const struct qni_cuda_product *p, const struct qni_cuda_launch *launch,
                           quad_plan *e)
{
    if constexpr ((FORMAT & (T4 | E4M3)) == 0) /* those have none: select.c */
        if (p->w.shift == QNI_CUDA_SHIFT_ZERO)
            return start_span<FORMAT, QNI_CUDA_SHIFT_ZERO>(p, launch, e);
    return start_span<FORMAT, QNI_CUDA_SHIFT_NONE>(p, launch, e);
}

template <int FORMAT>
static int32_t launch(const struct qni_cuda_product *p, const struct qni_cuda_launch *how)
{
    quad_plan e;
    /* select.c asks quads_plan() before it gives them anything. */
    if (!quads_plan(&e, p, IS_Q8(FORMAT) ? 8 : 4, how->multiprocessors,
                    decode_shared_limit(how, 1)))
        return (int32_t)cudaErrorInvalidConfiguration;
    e.pdl = how->pdl;
    e.values = (const float *)(p->w.blob + p->w.table);
    return start_shift<FORMAT>(p, how, &e);
}

#undef INLINE
#endif
