/* SPDX-License-Identifier: Apache-2.0 */
/* At most 16 rows of int8 x times weights of 4 or 8 bits, exactly: the int32 dot products of whole
 * segments, then the f32 steps of docs/numerics.md in their order. Bit-equal to the CPU.
 *
 *     per segment   dot = sum over its positions of code_x * value_w
 *     Q8            acc = fma(scale_w, fl(dot - x_zero sum_w), acc)
 *     Q8B           acc = fma(scale_w, fma(scale_x, fl(dot), fl(offset_x fl(sum_w))), acc)
 *     offsets       acc = fma(offset_w, fl(sum_x - x_zero count) or total_x, acc)
 *
 * Two ways. decode_int8_chunks.cuh cuts k between warps and is near the bandwidth; what is here
 * does experts and raw int32 sums, too, and is as fast as one warp goes through a panel:
 *
 * The order of segments is kept by giving each warp whole panels of 16 outputs: it goes through k
 * from the begin to the end with its sums in registers, and no warp waits for another. Codes are
 * the A operand of mma.m16n8k32 as they lie (one lop3 for four; integers of 4 bits as 16 times
 * themselves, and the sum is shifted back, exactly), 16 bytes a lane of x the B operands of a
 * block. What the steps need of x is worked out once for the CTA and lies in shared memory, by
 * segment. decode.cuh: how weights arrive, with their scales, offsets and sums.
 *
 * Roofline: bytes of the weights / bandwidth. What decides, though, is the length of a warp's way:
 * some 350 cycles for a block of 64 positions with segments of 32 and up to 8 rows, and only as
 * many warps work as there are panels. Reached (m = 1, us, as in decode_sm80.cu): q4_0 x q8_1 4096
 * x 4096 16 / 13, 14336 x 4096 24 / 21, 8192 x 8192 31 / 29, 28672 x 8192 68 / 65; q8_0 x q8_1 19 /
 * 16, 28 / 25, 37 / 35, 93 / 87. */
#include "../decode.cuh"
#include "../dequant.cuh"
#include "../epilogue.cuh"
#include "../mma.cuh"
#include "decode_int8_chunks.cuh"

namespace
{

enum { Q8 = QNI_CUDA_READS_Q8, Q8B = QNI_CUDA_READS_Q8B };
/* What is known of x lies in shared memory, [segment - first][rows]: where. */
struct facts {
    int32_t scale, total, offset, first;
    bool has_offset;
};

/* A of one unit: steps 2 h and 2 h + 1 of a block. words: of the block. */
template <int BITS> INLINE void bytes_of(uint32_t (&a)[4], const uint32_t *words, int h)
{
    if (BITS == 4) {
        dequant_q4_bytes16(a[0], a[1], words[2 * h]);
        dequant_q4_bytes16(a[2], a[3], words[2 * h + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = dequant_q8_bytes(words[4 * h + i]);
    }
}

/* Weights' side of a step. */
struct side {
    float2 scale, offset;
    int2 sum;
    bool has_offset;
};

INLINE float2 pair_at(const uint8_t *at, int32_t is_f16)
{
    return is_f16 ? __half22float2(*(const __half2 *)at) : *(const float2 *)at;
}
/* slot: of the chunk; at: of the row of its tables, in bytes of scales; segment: within the chunk.
 * */
INLINE struct side side_of(const struct decode &d, const uint8_t *slot, int32_t at, int32_t segment,
                           int32_t g)
{
    struct side w;
    const int32_t pair = g * (d.scale_is_f16 ? 4 : 8);
    const uint8_t *const extra = slot + DECODE_CHUNK + d.rows * d.row_bytes;
    w.scale = pair_at(slot + DECODE_CHUNK + at + pair, d.scale_is_f16);
    w.offset = make_float2(0.0f, 0.0f);
    w.has_offset = d.extra_bytes != 0;
    if (d.extra_bytes == 16) {
        const char2 z = ((const char2 *)(extra + (d.scale_is_f16 ? at / 2 : at / 4)))[g];
        w.offset =
            make_float2(__fmul_rn(-(float)z.x, w.scale.x), __fmul_rn(-(float)z.y, w.scale.y));
    } else if (w.has_offset)
        w.offset = pair_at(extra + at + pair, d.scale_is_f16);
    w.sum = make_int2(0, 0);
    if (d.sums != 0)
        w.sum = ((const int2 *)(slot + d.at_totals + segment * 64))[g];
    return w;
}

/* fl(dot), or the int32 itself where it may be long. SHORT: the sum began as 1.5 * 2^23 in the bits
 * of a float, so that it is one now, 1.5 * 2^23 + dot, for |dot| < 2^22: no conversion. */
template <int BITS, int SHORT> INLINE float float_of(int32_t dot)
{
    if (SHORT)
        return BITS == 4 ? __fmaf_rn(__int_as_float(dot), 0.0625f, -786432.0f)
                         : __fadd_rn(__int_as_float(dot), -12582912.0f);
    return (float)(BITS == 4 ? dot >> 4 : dot);
}
enum { SHORT_ZERO = 0x4b400000 };

/* The steps of all sums of a segment. from: its facts of row 2 t. */
template <int BITS, int MT, int READS, int SHORT>
INLINE void steps(const struct decode &d, const uint8_t *shared, const struct facts &x,
                  const struct side &w, int32_t from, const int32_t (&dot)[MT][4],
                  float (&acc)[MT][4])
{
#pragma unroll
    for (int i = 0; i < MT; i++) {
        const int32_t at = (from + i * 8) * 4;
        float2 scale, offset, total;
        if (READS == Q8B)
            scale = *(const float2 *)(shared + x.scale + at);
        if (READS == Q8B && x.has_offset)
            offset = *(const float2 *)(shared + x.offset + at);
        if (w.has_offset)
            total = *(const float2 *)(shared + x.total + at);
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int32_t sum = j < 2 ? w.sum.x : w.sum.y;
            float t;
            if (READS == Q8 && SHORT) /* exact: integers below 2^24 */
                t = __fsub_rn(float_of<BITS, SHORT>(dot[i][j]), (float)(d.x.x_zero * sum));
            else if (READS == Q8)
                t = (float)((BITS == 4 ? dot[i][j] >> 4 : dot[i][j]) - d.x.x_zero * sum);
            else if (x.has_offset)
                t = __fmaf_rn((j & 1) != 0 ? scale.y : scale.x, float_of<BITS, SHORT>(dot[i][j]),
                              __fmul_rn((j & 1) != 0 ? offset.y : offset.x, (float)sum));
            else
                t = __fmul_rn((j & 1) != 0 ? scale.y : scale.x, float_of<BITS, SHORT>(dot[i][j]));
            acc[i][j] = __fmaf_rn(j < 2 ? w.scale.x : w.scale.y, t, acc[i][j]);
            if (w.has_offset)
                acc[i][j] = __fmaf_rn(j < 2 ? w.offset.x : w.offset.y,
                                      (j & 1) != 0 ? total.y : total.x, acc[i][j]);
        }
    }
}

/* A block of 64 positions as it lies, and the rows of x that it meets. */
template <int BITS, int MT>
INLINE void block_load(uint32_t (&words)[BITS], uint4 (&rows)[MT], const uint8_t *slot,
                       const uint8_t *x_at, int32_t x_tile)
{
#pragma unroll
    for (int i = 0; i < BITS / 4; i++)
        *(uint4 *)(words + 4 * i) = *(const uint4 *)(slot + i * 512);
#pragma unroll
    for (int i = 0; i < MT; i++)
        rows[i] = *(const uint4 *)(x_at + i * x_tile);
}
template <int BITS, int MT>
INLINE void unit(int32_t (&dot)[MT][4], const uint32_t *words, const uint4 (&rows)[MT], int h)
{
    uint32_t a[4];
    bytes_of<BITS>(a, words, h);
#pragma unroll
    for (int i = 0; i < MT; i++)
        mma_s8(dot[i], a, h == 0 ? rows[i].x : rows[i].z, h == 0 ? rows[i].y : rows[i].w);
}

/* A chunk where every unit is a segment, as in formats of blocks of 32: no branch, so that products
 * of one block and steps of another overlap. */
template <int BITS, int MT, int READS>
INLINE void chunk_of_units(const struct decode &d, const uint8_t *shared, const uint8_t *slot,
                           const uint8_t *x_at, int32_t x_tile, const struct facts &x,
                           int32_t segment, float (&acc)[MT][4], int32_t lane)
{
    enum { BLOCK = BITS * 128, BLOCKS = DECODE_CHUNK / BLOCK };
    const int32_t g = lane >> 2, t = lane & 3;
#pragma unroll 2
    for (int b = 0; b < BLOCKS; b++) {
        uint32_t words[BITS];
        uint4 rows[MT];
        int32_t dot[2][MT][4];
#pragma unroll
        for (int i = 0; i < 8 * MT; i++)
            dot[i / (4 * MT)][i / 4 % MT][i % 4] = SHORT_ZERO;
        block_load<BITS, MT>(words, rows, slot + b * BLOCK + lane * 16, x_at + b * 64, x_tile);
#pragma unroll
        for (int h = 0; h < 2; h++)
            unit<BITS, MT>(dot[h], words, rows, h);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int32_t u = 2 * b + h;
            const struct side w = side_of(d, slot, u * d.table_step & -d.row_bytes, u, g);
            steps<BITS, MT, READS, 1>(d, shared, x, w, (segment + u - x.first) * (MT * 8) + 2 * t,
                                      dot[h], acc);
        }
    }
}

template <int BITS, int MT, int READS>
INLINE void chunk(const struct decode &d, const uint8_t *shared, const uint8_t *slot,
                  const uint8_t *x_at, int32_t x_tile, const struct facts &x,
                  struct decode_place &at, int32_t (&dot)[MT][4], float (&acc)[MT][4], bool is_raw,
                  int32_t lane)
{
    enum { BLOCK = BITS * 128, BLOCKS = DECODE_CHUNK / BLOCK, TOGETHER = 4 };
    const int32_t g = lane >> 2, t = lane & 3, first = at.segment;
#pragma unroll 1
    for (int b0 = 0; b0 < BLOCKS; b0 += TOGETHER) {
        uint32_t words[TOGETHER][BITS];
        uint4 rows[TOGETHER][MT];
#pragma unroll
        for (int b = 0; b < TOGETHER; b++)
            block_load<BITS, MT>(words[b], rows[b], slot + (b0 + b) * BLOCK + lane * 16,
                                 x_at + (b0 + b) * 64, x_tile);
#pragma unroll
        for (int u = 0; u < 2 * TOGETHER; u++) {
            unit<BITS, MT>(dot, words[u / 2], rows[u / 2], u % 2);
            /* behind the last segment there may be a unit of padding */
            if (is_raw || at.segment >= d.n_segments || !decode_ends_segment(at))
                continue;
            const struct side w =
                side_of(d, slot, (2 * b0 + u) * d.table_step & -d.row_bytes, at.segment - first, g);
            steps<BITS, MT, READS, 0>(d, shared, x, w, (at.segment - x.first) * (MT * 8) + 2 * t,
                                      dot, acc);
#pragma unroll
            for (int i = 0; i < 4 * MT; i++)
                dot[i / 4][i % 4] = 0;
            decode_next_segment(d, at);
        }
    }
}

/* ---- the CTA --------------------------------------------------------------------------------- */

/* What the steps need of x, of `n` segments from `first`: by all threads. */
template <int MT, int READS>
INLINE void facts_make(const struct decode &d, const uint8_t *blob, const struct decode_rows &rows,
                       uint8_t *shared, struct facts &x, int32_t first, int32_t n)
{
    enum { ROWS = 8 * MT };
    const int32_t *const counts = (const int32_t *)(blob + d.counts);
    const int32_t each = n * ROWS * 4;
    x.has_offset = READS == Q8B && d.x.offset != NULL;
    x.first = first;
    x.scale = d.at_facts;
    x.total = x.scale + (READS == Q8B ? each : 0);
    x.offset = x.total + (d.extra_bytes != 0 ? each : 0);
    for (int32_t r = 0; r < rows.m; r++) {
        const int64_t from = decode_row_of(rows, r) * d.x.ld_segment + first;
        for (int32_t s = (int32_t)threadIdx.x; s < n; s += DECODE_THREADS) {
            const int32_t at = (s * ROWS + r) * 4;
            if (READS == Q8B)
                *(float *)(shared + x.scale + at) = d.x.scale[from + s];
            if (x.has_offset)
                *(float *)(shared + x.offset + at) = d.x.offset[from + s];
            if (d.extra_bytes != 0)
                *(float *)(shared + x.total + at) =
                    READS == Q8B ? d.x.total[from + s]
                                 : (float)(d.x.sum[from + s] - d.x.x_zero * counts[first + s]);
        }
    }
}

/* What a warp has of a panel, to shared memory, and back: [row][16 outputs], sums and dots. */
template <int MT>
INLINE void put(float (&acc)[MT][4], int32_t (&dot)[MT][4], float *sums, int32_t *dots, int32_t m,
                bool back, int32_t lane)
{
    const int32_t g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int32_t row = i * 8 + 2 * t + (j & 1), at = row * 20 + g + (j >> 1) * 8;
            if (row < m && !back) {
                sums[at] = acc[i][j];
                dots[at] = dot[i][j];
            }
            acc[i][j] = row < m && back ? sums[at] : 0.0f;
            dot[i][j] = row < m && back ? dots[at] : 0;
        }
}

/* Apart, so that its polynomials cost the fast path no register. */
static __device__ __noinline__ void store_any(const struct qni_cuda_sink *out, int64_t row,
                                              int32_t j, int32_t expert, float v)
{
    epilogue_store(*out, epilogue_row_of(*out, row), j, expert, v);
}
static __device__ __noinline__ void store_raw(const struct qni_cuda_sink *out, int64_t row,
                                              int32_t j, int32_t v)
{
    ((int32_t *)out->y)[epilogue_row_of(*out, row).y + (int64_t)j * out->stride[3]] = v;
}

struct whose {
    int32_t first, count, part, expert;
    const uint8_t *blob;
};

/* The last steps of every sum. Raw sums get their bias; the one group's scale is read here. */
template <int BITS>
INLINE void finish(const struct decode &d, const struct qni_cuda_sink &out, const float *sums,
                   const int32_t *dots, const struct decode_rows &rows, const struct whose &w,
                   bool is_raw)
{
    for (int32_t i = (int32_t)threadIdx.x; i < w.count * rows.m * 16; i += DECODE_THREADS) {
        const int32_t pr = i >> 4, p = pr / rows.m, r = pr - p * rows.m, o = i & 15;
        const int32_t j = (w.first + p) * 16 + o;
        if (j >= d.n)
            continue;
        const int32_t at = pr * 20 + o, output = w.part * d.n + j;
        const int64_t row = d.row + (rows.index != NULL ? rows.index[r] : r);
        float v = sums[at];
        if (is_raw) {
            const size_t pair =
                ((size_t)(w.part * d.panels + w.first + p) * (size_t)d.n_groups) * 16 +
                (size_t)(2 * (o & 7) + (o >> 3));
            int32_t dot = BITS == 4 ? dots[at] >> 4 : dots[at];
            if (d.x.x_zero != 0)
                dot -= d.x.x_zero * ((const int32_t *)(w.blob + d.sums))[pair];
            dot += epilogue_raw_bias(out, output, w.expert);
            if (out.y_dtype == QN_I32) {
                store_raw(&out, row, output, dot);
                continue;
            }
            const uint8_t *const scale = w.blob + d.scale;
            v = __fmaf_rn(d.scale_is_f16 ? __half2float(((const __half *)scale)[pair])
                                         : ((const float *)scale)[pair],
                          (float)dot, 0.0f);
        }
        if (d.scales_rows) /* Q8: the scale of the row, or of all rows */
            v = __fmul_rn(v, d.x.row_scale != NULL ? d.x.row_scale[decode_row_of(rows, r)]
                                                   : d.x.x_scale);
        if (out.is_plain)
            epilogue_round(out, row * out.stride[2] + output, v);
        else
            store_any(&out, row, output, w.expert, v);
    }
}

template <int BITS, int MT, int READS>
static __global__ void __launch_bounds__(DECODE_THREADS, 1)
    decode_int8(const __grid_constant__ struct decode d,
                const __grid_constant__ struct qni_cuda_sink out,
                const __grid_constant__ struct qni_cuda_experts experts)
{
    enum { UNITS = DECODE_CHUNK / (BITS * 64), POSITIONS = UNITS * 32 };
    extern __shared__ __align__(128) uint8_t shared[];
    const int32_t lane = (int32_t)threadIdx.x & 31;
    const int32_t warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x >> 5, 0);
    const int32_t cta = (int32_t)blockIdx.y;
    struct whose w = {cta * d.share + min(cta, d.more), d.share + (cta < d.more), 0, 0, d.blob};
    const uint32_t x_bar = ptx_shared(shared), bars = x_bar + 16 + (uint32_t)(warp * 64);
    const uint8_t *const slots =
        shared + d.at_ring + min(warp, d.rings - 1) * d.depth * d.slot_bytes;
    struct decode_rows rows = {NULL, 0, d.m};
    const bool is_raw = READS == Q8 && epilogue_is_raw(out);
#if __CUDA_ARCH__ >= 900
    if (lane < d.depth)
        decode_bar_init(bars + 8 * (uint32_t)lane, 1);
    if (threadIdx.x == 0)
        decode_x_bar_init(d, x_bar);
    decode_bar_fence();
#endif
    if (d.routes.tiles != NULL) { /* which weights, the launch before this one may have decided */
        ptx_dependency_wait();
        const int32_t *const tile = d.routes.tiles + 3 * blockIdx.x;
        w.expert = tile[0];
        rows.m = tile[2];
        if (rows.m == 0 || w.expert < experts.first || w.expert >= experts.first + experts.n)
            return;
        w.blob = experts.blob[w.expert - experts.first];
        rows.index = d.routes.rows == NULL ? NULL : d.routes.rows + tile[1];
        rows.base = d.routes.rows == NULL ? tile[1] : 0;
    } else {
        w.part = (int32_t)blockIdx.x;
        rows.base = w.part * d.x.part_rows;
    }
    /* Whole panels: one for each of the first warps, or as many for each. */
    uint32_t p_begin = (uint32_t)min(warp, w.count), p_end = (uint32_t)min(warp + 1, w.count);
    if (w.count > DECODE_WARPS) {
        p_begin = (uint32_t)(w.count * warp) / DECODE_WARPS;
        p_end = (uint32_t)(w.count * (warp + 1)) / DECODE_WARPS;
    }
    const struct decode_run run = {p_begin, p_end, 0, 0};
    const int32_t panel = w.part * d.panels + w.first;
    struct decode_walk f;
    decode_walk_begin<UNITS>(d, w.blob, run, panel, 0, f);
    __syncthreads();
#pragma unroll 1
    for (int32_t i = 0; i < d.depth; i++)
        decode_fetch<UNITS>(d, w.blob, run, panel, f,
                            ptx_shared(slots) + (uint32_t)(i * d.slot_bytes),
                            bars + 8 * (uint32_t)i, lane);
    ptx_dependents_launch();
    ptx_dependency_wait();

    float *const sums = (float *)(shared + d.at_sums);
    int32_t *const dots = (int32_t *)(sums + d.m * 20 * (d.share + 1));
    const uint8_t *const x_rows = shared + d.at_x;
    const int32_t g = min(lane >> 2, rows.m - 1), g8 = min((lane >> 2) + 8, rows.m - 1);
    const uint8_t *const x_lane = x_rows + g * d.x_stride + (lane & 3) * 16;
    struct facts x;
    int32_t stage = 0, parity = 0, x_parity = 0;
#pragma unroll 1
    for (int32_t from = 0; from < d.chunks; from += d.stretch) {
        const int32_t len = min(d.stretch, d.chunks - from);
        if (from > 0)
            decode_x_free(d);
        decode_x_ask<1>(d, rows, from * POSITIONS, len * POSITIONS, shared, x_bar, warp, lane);
        const struct decode_place begin = decode_place_at(d, from * UNITS);
        const int32_t last =
            min(decode_segment(d, min((from + len) * UNITS, d.units) - 1), d.n_segments - 1);
        if (!is_raw)
            facts_make<MT, READS>(d, w.blob, rows, shared, x, begin.segment,
                                  last + 1 - begin.segment);
        decode_x_wait(x_bar, x_parity);
        __syncthreads();
        x_parity ^= 1;
#pragma unroll 1
        for (uint32_t p = p_begin; p < p_end; p++) {
            float acc[MT][4];
            int32_t dot[MT][4];
            float *const to = sums + (int32_t)p * rows.m * 20;
            int32_t *const to_dots = dots + (int32_t)p * rows.m * 20;
            put<MT>(acc, dot, to, to_dots, from > 0 ? rows.m : 0, true, lane);
            struct decode_place at = begin;
#pragma unroll 1
            for (int32_t c = 0; c < len; c++) {
#if __CUDA_ARCH__ >= 900
                decode_bar_wait(bars + 8 * (uint32_t)stage, parity);
#else
                ptx_copies_wait<DECODE_MIN_DEPTH - 1>();
                __syncwarp();
#endif
                const int32_t slot = stage * d.slot_bytes;
                const int32_t segment = (from + c) * UNITS;
                if (d.segment_units == 1 && !is_raw && segment + UNITS <= d.n_segments) {
                    chunk_of_units<BITS, MT, READS>(d, shared, slots + slot, x_lane + c * POSITIONS,
                                                    (g8 - g) * d.x_stride, x, segment, acc, lane);
                } else {
                    if (d.segment_units == 1)
                        at = decode_place_at(d, segment);
                    chunk<BITS, MT, READS>(d, shared, slots + slot, x_lane + c * POSITIONS,
                                           (g8 - g) * d.x_stride, x, at, dot, acc, is_raw, lane);
                }
                __syncwarp();
                decode_fetch<UNITS>(d, w.blob, run, panel, f, ptx_shared(slots) + (uint32_t)slot,
                                    bars + 8 * (uint32_t)stage, lane);
                if (++stage == d.depth) {
                    stage = 0;
                    parity ^= 1;
                }
            }
            put<MT>(acc, dot, to, to_dots, rows.m, false, lane);
        }
    }
    __syncthreads();
    finish<BITS>(d, out, sums, dots, rows, w, is_raw);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Where things lie: as decode_plan_fits(), with rings for the warps that have panels, the sums and
 * dots of whole panels, and the facts of the segments of a stretch. */
static bool fits(struct decode *d, int32_t units, int32_t facts, int32_t mt, int32_t limit)
{
    const int32_t most = d->share + (d->more > 0),
                  gu = d->group_units < d->units ? d->group_units : d->units;
    const int64_t reach = (int64_t)d->stretch * units;
    const int64_t segments = reach / d->segment_units + reach / gu + 2;
    d->rings = most < DECODE_WARPS ? most : DECODE_WARPS;
    d->at_sums = d->at_ring + d->rings * d->depth * d->slot_bytes;
    const int64_t at_facts = d->at_sums + (int64_t)(d->share + 1) * d->m * 160;
    const int64_t at_x = (at_facts + segments * facts * mt * 32 + 127) / 128 * 128;
    const int64_t x_stride = reach * 32 + 64; /* lanes of two rows meet in no bank */
    const int64_t bytes = at_x + d->m * x_stride;
    if (bytes > limit)
        return false;
    d->at_facts = (int32_t)at_facts;
    d->at_x = (int32_t)at_x;
    d->x_stride = (int32_t)x_stride;
    d->bytes = (int32_t)bytes;
    return true;
}

template <int BITS, int MT, int READS>
static int32_t launch(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                      const struct qni_cuda_launch *launch)
{
    enum { UNITS = DECODE_CHUNK / (BITS * 64) };
    struct decode d;
    decode_plan(&d, p, launch, UNITS, 8 * MT);
    d.segment_units = p->w.segment_units;
    d.segment_magic = decode_magic(d.segment_units);
    d.per_group = p->w.segments_per_group;
    d.n_segments = p->w.n_segments;
    d.scales_rows = READS == Q8;
    if (READS == Q8 ? p->x.x_zero != 0 : p->x.offset != NULL)
        d.sums = p->w.sums;
    if (READS == Q8 && d.extra_bytes != 0)
        d.counts = p->w.counts;
    d.in_line = d.in_line && d.sums == 0; /* sums come the long way */
    d.at_totals = d.slot_bytes;
    d.slot_bytes += d.sums != 0 ? 64 * UNITS : 0;
    const int32_t facts =
        (READS == Q8B) + (d.extra_bytes != 0) + (READS == Q8B && p->x.offset != NULL);
    const int32_t parts = p->routes.tiles != NULL ? 1 : p->w.parts;
    /* a warp for each panel, on as many multiprocessors as there are */
    int32_t ctas = (launch->multiprocessors + parts - 1) / parts;
    if (p->routes.tiles != NULL)
        ctas = (d.panels + DECODE_WARPS - 1) / DECODE_WARPS;
    decode_plan_share(&d, ctas, 1);
    const int32_t limit = decode_shared_limit(launch, 1);
    const int32_t deepest = launch->sm == 90 ? 8 : DECODE_MIN_DEPTH;
    bool done = false;
    for (int32_t pieces = 1; !done; pieces *= 2) {
        d.stretch = (d.chunks + pieces - 1) / pieces;
        for (d.depth = deepest; d.depth >= DECODE_MIN_DEPTH && !done; d.depth--)
            done = fits(&d, UNITS, facts, MT, limit);
        d.depth++;
        if (d.stretch == 1)
            break;
    }
    return decode_launch((const void *)decode_int8<BITS, MT, READS>, &d, p, experts, launch);
}

} // namespace

#define DECODE_KERNEL(name, bits, mt, reads)                                                       \
    extern "C" int32_t name(const struct qni_cuda_product *p,                                      \
                            const struct qni_cuda_experts *experts,                                \
                            const struct qni_cuda_launch *how)                                     \
    {                                                                                              \
        if (chunks::takes(p))                                                                      \
            return chunks::launch<bits, 8 * mt>(p, how, reads == Q8B);                             \
        return launch<bits, mt, reads>(p, experts, how);                                           \
    }
DECODE_KERNEL(qni_matmul_q8_q4frag_mr8_sm80, 4, 1, Q8)
DECODE_KERNEL(qni_matmul_q8_q4frag_mr16_sm80, 4, 2, Q8)
DECODE_KERNEL(qni_matmul_q8_q8frag_mr8_sm80, 8, 1, Q8)
DECODE_KERNEL(qni_matmul_q8_q8frag_mr16_sm80, 8, 2, Q8)
DECODE_KERNEL(qni_matmul_q8b_q4frag_mr8_sm80, 4, 1, Q8B)
DECODE_KERNEL(qni_matmul_q8b_q4frag_mr16_sm80, 4, 2, Q8B)
DECODE_KERNEL(qni_matmul_q8b_q8frag_mr8_sm80, 8, 1, Q8B)
DECODE_KERNEL(qni_matmul_q8b_q8frag_mr16_sm80, 8, 2, Q8B)
