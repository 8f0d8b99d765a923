/* SPDX-License-Identifier: Apache-2.0 */
/* An experiment (NOTES.md, "Rows of x in registers"): at most 16 rows of f16 x times weights of 4
 * or 8 bits with x in registers, by rings of slots and one warp that asks and adds for the others.
 * Right everywhere, faster than the library's kernels at some sizes and slower at others; its rows
 * in decode_kernels.cu are compiled with -DWITH_REGISTERS:
 *
 *   nvcc -O3 -std=c++17 --fmad=false -gencode=arch=compute_90a,code=sm_90a -Iinclude -Isrc \
 *     -DWITH_REGISTERS -DQN_WITHOUT_DECODE_SM90A lab/cuda/decode_kernels.cu \
 *     lab/cuda/decode_registers.cu src/cuda/matmul/decode_{one_sm80,sm80,sm90a}.cu \
 *     -o decode_kernels
 *
 * Of every panel of the CTA a warp multiplies the same chunk (src/cuda/decode.cuh), so that x is
 * fetched once for all of them, and k goes by in stretches of as many chunks as there are warps:
 *
 *     for each 8 or 16 rows of x (of all its planes), for each stretch of k:
 *         a warp's chunk of those rows, to registers
 *         for each panel: the warp's chunk of it, times x; its sums to shared memory
 *
 * A stretch of less than half as many chunks as warps is multiplied with several panels at once. A
 * ring of slots for each warp holds what was asked for: blocks of 8 rows x 256 positions of x, and
 * chunks. Each lane of the helper asks for one warp; the helper also adds what the warps have of a
 * panel, in their order, always the same. */
#include <cuda.h>

#include "cuda/decode.cuh"
#include "cuda/decode_float.cuh"
#include "cuda/epilogue.cuh"
#include "cuda/mma.cuh"

#define RING static __device__ __forceinline__

/* Barriers: 128 bytes for the slots of each warp, then those of the sums. Rows of x that no tensor
 * copy brings lie 528 bytes apart, so that lanes meet in no bank. */
enum { RING_SUMS = 2, RING_SUM_STRIDE = 16, RING_MAX_DEPTH = 8, RING_BEGIN = 1152 };
enum { RING_X_POSITIONS = 256, RING_X_STRIDE = 2 * RING_X_POSITIONS + 16 };
#define RING_UNITS(format)   (IS_Q8(format) ? 8 : 16)
#define RING_X_PARTS(format) (RING_UNITS(format) * 32 / RING_X_POSITIONS)

/* What a launch works out, beside struct decode. */
struct ring_plan {
    int32_t warps, stretches;
    int32_t more_slots; /* warps below this one have one slot more than d.depth */
    int32_t box_rows;   /* of a tensor copy of x; 0: row by row */
    int32_t sums;       /* floats of a warp's sums of a panel */
    int32_t at_kept;    /* sums of earlier stretches: [panel][row][16] */
};

/* ---- barriers -------------------------------------------------------------------------------- */

/* There: it has been filled. Free: it has been read. */
RING uint32_t ring_there(uint32_t shared, int32_t warp, int32_t slot)
{
    return shared + (uint32_t)(warp * 128 + slot * 16);
}
RING uint32_t ring_free(uint32_t shared, int32_t warp, int32_t slot)
{
    return ring_there(shared, warp, slot) + 8;
}
/* Of sums: all warps have put theirs; they have been added. */
RING uint32_t ring_put(uint32_t shared, int32_t seq)
{
    return shared + (uint32_t)(DECODE_WARPS * 128 + seq % RING_SUMS * 16);
}
RING uint32_t ring_added(uint32_t shared, int32_t seq)
{
    return ring_put(shared, seq) + 8;
}

RING void ring_bar_init(uint32_t bar, int32_t count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
RING void ring_bar_arrive(uint32_t bar)
{
    asm volatile("{\n"
                 ".reg .b64 state;\n"
                 "mbarrier.arrive.shared.b64 state, [%0];\n"
                 "}" ::"r"(bar)
                 : "memory");
}
RING bool ring_bar_done(uint32_t bar, int32_t parity)
{
    uint32_t done;
    asm volatile("{\n"
                 ".reg .pred p;\n"
                 "mbarrier.test_wait.parity.shared.b64 p, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, p;\n"
                 "}"
                 : "=r"(done)
                 : "r"(bar), "r"(parity)
                 : "memory");
    return done != 0;
}
RING void ring_bar_wait(uint32_t bar, int32_t parity)
{
#if __CUDA_ARCH__ >= 900
    decode_bar_wait(bar, parity);
#else
#pragma unroll 1
    while (!ring_bar_done(bar, parity)) {
    }
#endif
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Where a warp is: rows from `row` on (row i of plane p is row p * m + i), stretch s of len chunks;
 * chunk `chunk` of panels panel, panel + step, ... of the CTA. */
struct ring_place {
    int32_t row, s, len, chunk, panel, step;
};
RING void ring_enter(const struct decode &d, const struct ring_plan &e, struct ring_place &at,
                     int32_t warp)
{
    at.len = min(e.warps, d.chunks - at.s * e.warps);
    at.chunk = at.s * e.warps + warp;
    at.panel = 0;
    at.step = 1;
    if (at.len < e.warps) {
        at.step = e.warps / at.len;
        at.panel = warp / at.len;
        at.chunk -= at.panel * at.len;
    }
}
RING void ring_leave(const struct ring_plan &e, struct ring_place &at, int32_t rows)
{
    if (++at.s == e.stretches) {
        at.s = 0;
        at.row += rows;
    }
}
RING bool ring_is_busy(const struct ring_place &at, int32_t count)
{
    return at.panel < at.step && at.panel < count;
}
RING bool ring_is_last(const struct ring_plan &e, const struct ring_place &at, int32_t rows,
                       int32_t n)
{
    return at.row + rows >= n && at.s + 1 == e.stretches;
}

/* ---- asking ---------------------------------------------------------------------------------- */

/* What a CTA multiplies; n: rows of all planes. */
struct ring_source {
    const uint8_t *blob;
    int32_t first, count, n; /* first: panel of the CTA, of all in the blob */
    struct decode_rows rows;
};

/* The next to ask for, of one warp: j blocks of x have been asked for, then panel at.panel. */
struct ring_feed {
    struct ring_place at;
    int32_t j;
    const uint8_t *codes, *scale, *extra;
};
RING void feed_enter(const struct decode &d, const struct ring_plan &e,
                     const struct ring_source &in, int32_t rows, int32_t warp, struct ring_feed &f)
{
    f.j = 0;
#pragma unroll 1
    for (; f.at.row < in.n; ring_leave(e, f.at, rows)) {
        ring_enter(d, e, f.at, warp);
        if (ring_is_busy(f.at, in.count))
            return;
    }
}

/* 8 rows x 256 positions of x, one after the other; zeros behind its columns. */
RING void ask_rows(const struct decode &d, const struct ring_source &in, int32_t begin,
                   int32_t from, uint8_t *slot, uint32_t bar)
{
    const int32_t n = max(0, min(8, in.n - begin));
    const int32_t valid = max(0, min(RING_X_POSITIONS, d.x.columns - from)), whole = valid & ~7;
#if __CUDA_ARCH__ >= 900
    const int32_t lane = 0, lanes = 1;
#else
    const int32_t lane = (int32_t)threadIdx.x & 31, lanes = 32;
#endif
#pragma unroll 1
    for (int32_t i = 0; i < n; i++) {
        const uint16_t *const x = (const uint16_t *)decode_x_row(d, in.rows, begin + i) + from;
        uint16_t *const to = (uint16_t *)(slot + i * RING_X_STRIDE);
#if __CUDA_ARCH__ >= 900
        if (whole > 0)
            decode_bulk(ptx_shared(to), x, whole * 2, bar);
#else
        if (lane * 8 < whole)
            ptx_copy16(ptx_shared(to + lane * 8), x + lane * 8, true);
#endif
#pragma unroll 1
        for (int32_t p = whole + lane; p < RING_X_POSITIONS; p += lanes)
            to[p] = p < valid ? x[p] : (uint16_t)0;
    }
#if __CUDA_ARCH__ >= 900
    /* The slot will hold copies again. */
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    decode_bar_expect(bar, n * whole * 2);
#endif
    (void)bar;
}
/* The same block by one tensor copy, d.x as 64 positions x rows x pieces of 64: lines of 128 bytes,
 * swizzled. Rows that are not there would cost more than others: the last block begins earlier. */
RING void ask_box(const CUtensorMap *map, const struct ring_plan &e, int32_t begin, int32_t from,
                  uint8_t *slot, uint32_t bar)
{
#if __CUDA_ARCH__ >= 900
    decode_bar_expect(bar, e.box_rows * (2 * RING_X_POSITIONS));
    asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(ptx_shared(slot)),
                 "l"(map), "r"(0), "r"(begin), "r"(from / 64), "r"(bar)
                 : "memory");
#endif
}
RING int32_t box_begin(const struct ring_source &in, int32_t row)
{
    return min(row, max(0, in.n - 8));
}

template <int UNITS>
RING void ask_chunk(const struct decode &d, const struct ring_source &in, struct ring_feed &f,
                    uint8_t *slot, uint32_t bar)
{
    struct decode_walk w;
    w.s = 0;
    w.c = f.at.chunk;
    w.panel = in.first + f.at.panel;
    w.codes = f.codes;
    w.scale = f.scale;
    w.extra = f.extra;
#if __CUDA_ARCH__ >= 900
    const bool last = f.at.chunk == d.chunks - 1;
    if (d.in_line != 0 && !(last && d.ragged)) {
        decode_ask(d, w, ptx_shared(slot), bar, last ? d.last_bytes : DECODE_CHUNK);
        return;
    }
#endif
    decode_ask_any<UNITS>(d, w, in.blob, ptx_shared(slot), bar, (int32_t)threadIdx.x & 31);
}

enum { ASK_X = 1, ASK_WEIGHTS = 2 };
/* Asks for what comes next, if there is anything and it is one of what `which` names, into a slot
 * that has been read. By one lane for a warp; before sm_90, by all of its lanes. */
template <int FORMAT, int MT>
RING void ring_ask(const CUtensorMap *map, const struct decode &d, const struct ring_plan &e,
                   const struct ring_source &in, struct ring_feed &f, int32_t warp, int32_t which,
                   uint8_t *slot, uint32_t bar)
{
    enum { UNITS = RING_UNITS(FORMAT), PARTS = RING_X_PARTS(FORMAT), BLOCKS = MT * PARTS };
    if (f.at.row >= in.n)
        return;
    if (f.j < BLOCKS) {
        const int32_t begin = f.at.row + f.j / PARTS * 8;
        const int32_t from = (f.at.chunk * PARTS + f.j % PARTS) * RING_X_POSITIONS;
        f.j++;
        if ((which & ASK_X) == 0)
            return;
        if (e.box_rows != 0)
            ask_box(map, e, box_begin(in, begin), from, slot, bar);
        else
            ask_rows(d, in, begin, from, slot, bar);
        return;
    }
    if (f.j == BLOCKS) {
        struct decode_walk w;
        w.s = 0;
        w.c = f.at.chunk;
        w.panel = in.first + f.at.panel;
        decode_walk_point<UNITS>(d, in.blob, w);
        f.codes = w.codes;
        f.scale = w.scale;
        f.extra = w.extra;
        f.j++;
    }
    if ((which & ASK_WEIGHTS) != 0)
        ask_chunk<UNITS>(d, in, f, slot, bar);
    f.at.panel += f.at.step;
    f.codes += (size_t)f.at.step * d.panel_bytes;
    f.scale += f.at.step * (d.n_groups * d.row_bytes);
    f.extra += f.at.step * (d.n_groups * d.extra_bytes);
    if (f.at.panel >= in.count) {
        ring_leave(e, f.at, 8 * MT);
        feed_enter(d, e, in, 8 * MT, warp, f);
    }
}

/* ---- slots ----------------------------------------------------------------------------------- */

/* A ring as one who goes round it sees it. */
struct ring_slots {
    uint8_t *begin;
    int32_t depth, bytes, slot, parity;
};
RING struct ring_slots ring_of(const struct decode &d, const struct ring_plan &e, uint8_t *shared,
                               int32_t warp)
{
    const struct ring_slots r = {shared + d.at_ring +
                                     (warp * d.depth + min(warp, e.more_slots)) * d.slot_bytes,
                                 d.depth + (warp < e.more_slots), d.slot_bytes, 0, 0};
    return r;
}
RING uint8_t *ring_slot(const struct ring_slots &r)
{
    return r.begin + r.slot * r.bytes;
}
RING void ring_next(struct ring_slots &r)
{
    if (++r.slot == r.depth) {
        r.slot = 0;
        r.parity ^= 1;
    }
}

/* Waits until what lies next is there, for all lanes. */
RING void ring_wait(const struct ring_slots &r, uint32_t base, int32_t warp)
{
#if __CUDA_ARCH__ >= 900
    decode_bar_wait(ring_there(base, warp, r.slot), r.parity);
#else
    ptx_copies_wait<DECODE_MIN_DEPTH - 1>();
#endif
    __syncwarp();
}

/* Rows of block `row` of the place, 256 positions, to fragments; lane 4 g + t has row g. */
RING void ring_take_x(const struct ring_plan &e, const struct ring_source &in,
                      const struct ring_slots &r, int32_t row, uint32_t (*x)[4], int32_t lane)
{
    const uint32_t from = ptx_shared(ring_slot(r));
    const int32_t i = max(0, min(lane & 7, in.n - row - 1)), quarter = lane >> 3;
    if (e.box_rows != 0) {
        const int32_t at = min(i + row - box_begin(in, row), e.box_rows - 1);
#pragma unroll
        for (int u = 0; u < RING_X_POSITIONS / 32; u++) {
            const uint32_t line = from + (uint32_t)((u / 2 * e.box_rows + at) * 128);
            ptx_ldmatrix4(x[u], line + ((uint32_t)(u % 2 * 4 + quarter) ^ (line >> 7 & 7)) * 16);
        }
        return;
    }
#pragma unroll
    for (int u = 0; u < RING_X_POSITIONS / 32; u++)
        ptx_ldmatrix4(x[u], from + (uint32_t)(i * RING_X_STRIDE + quarter * 16 + u * 64));
}

/* ---- launches -------------------------------------------------------------------------------- */

/* Where things lie with this many warps, and as many slots as there is room for; rows: of x at a
 * time. */
static inline bool ring_fits(struct decode *d, struct ring_plan *e, int32_t warps, int32_t rows,
                             const struct qni_cuda_launch *launch)
{
    const int32_t most =
        warps * (launch->sm == 90 ? (int32_t)RING_MAX_DEPTH : (int32_t)DECODE_MIN_DEPTH);
    const int32_t all = d->m * d->x.planes, limit = decode_shared_limit(launch, 1);
    e->warps = warps;
    e->stretches = (d->chunks + warps - 1) / warps;
    e->sums = ((all < rows ? all : rows) + 7) / 8 * 8 * RING_SUM_STRIDE;
    const int32_t sums = RING_SUMS * warps * e->sums * 4;
    const int64_t kept =
        e->stretches > 1 || all > rows ? (int64_t)(d->share + (d->more > 0)) * d->m * 64 : 0;
    const int64_t room = (limit - RING_BEGIN - sums - kept) / d->slot_bytes;
    const int32_t slots = (int32_t)(room < most ? room : most);
    d->depth = slots / warps;
    e->more_slots = slots % warps;
    d->at_ring = RING_BEGIN;
    d->at_sums = d->at_ring + slots * d->slot_bytes;
    e->at_kept = d->at_sums + sums;
    d->bytes = e->at_kept + (int32_t)kept;
    return room >= DECODE_MIN_DEPTH * warps;
}

/* x as 64 positions x rows x pieces of 64 positions. */
static inline int32_t ring_describe(const struct qni_cuda_product *p, int32_t rows,
                                    CUtensorMap *map)
{
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                                           cudaEnableDefault, &found);
    if (e != cudaSuccess || found != cudaDriverEntryPointSuccess)
        return (int32_t)(e != cudaSuccess ? cudaGetLastError() : cudaErrorNotSupported);
    const cuuint64_t size[3] = {64, (cuuint64_t)p->m, (cuuint64_t)(p->x.columns / 64)};
    const cuuint64_t stride[2] = {(cuuint64_t)p->x.lda, 128};
    const cuuint32_t box[3] = {64, (cuuint32_t)rows, RING_X_POSITIONS / 64}, step[3] = {1, 1, 1};
    const CUresult r = ((decltype(&cuTensorMapEncodeTiled))encode)(
        map, CU_TENSOR_MAP_DATA_TYPE_UINT16, 3, (void *)(uintptr_t)p->x.a, size, stride, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? 0 : (int32_t)cudaErrorInvalidValue;
}

#define INLINE static __device__ __forceinline__

/* ---- products -------------------------------------------------------------------------------- */

template <int FORMAT>
INLINE void product(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (IS_BF16(FORMAT))
        mma_bf16(c, a, b0, b1);
    else
        mma_f16(c, a, b0, b1);
}

/* Sums of a warp by block of 8 rows: of x times integers, and of x, in what is scaled next. */
template <int MT> struct decode_sums {
    float products[MT][4], x[MT][4];
};
/* Where a lane finds its part of a chunk. */
struct decode_lane {
    const uint8_t *codes, *table, *zero;
};

/* Scales what has been summed. at: of the lane's pairs of scales. */
template <int MT, int SHIFT>
INLINE void scale_sums(const struct decode &d, float (&all)[MT][4], const struct decode_sums<MT> &s,
                       const uint8_t *table)
{
    const float2 scale = pair_at(table, d.scale_is_f16);
    float2 offset = make_float2(0.0f, 0.0f);
    if (SHIFT == QNI_CUDA_SHIFT_OFFSET)
        offset = pair_at(table + d.rows * d.row_bytes, d.scale_is_f16);
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            all[i][j] = fmaf(s.products[i][j], j < 2 ? scale.x : scale.y, all[i][j]);
            if (SHIFT == QNI_CUDA_SHIFT_OFFSET)
                all[i][j] = fmaf(s.x[i][j], j < 2 ? offset.x : offset.y, all[i][j]);
        }
}

/* A chunk: 512 positions of 4 bits or 256 of 8, two blocks side by side so that their chains of
 * products overlap. SPAN: units to a row of tables, 1, or 2 where there are more; with 16 rows,
 * whose two chains do without, 4. */
template <int FORMAT, int MT, int SHIFT, int SPAN>
INLINE void chunk(const struct decode &d, float (&all)[MT][4], const struct decode_lane &in,
                  const uint32_t (&x)[MT][RING_UNITS(FORMAT)][4])
{
    enum { BLOCK = IS_Q8(FORMAT) ? 1024 : 512, BLOCKS = DECODE_CHUNK / BLOCK, SETS = 4 / SPAN };
    enum { STEP_WORDS = IS_Q8(FORMAT) ? 2 : 1 };
    const uint32_t one = IS_BF16(FORMAT) ? 0x3f803f80 : 0x3c003c00;
    const uint32_t ones[4] = {one, one, one, one};
#pragma unroll
    for (int b = 0; b < BLOCKS; b += 2) {
        uint32_t words[2][BLOCK / 128];
        struct decode_sums<MT> s[SETS] = {
        };
        struct dequant_bias bias[SETS];
        int32_t at[SETS];
#pragma unroll
        for (int i = 0; i < BLOCK / 256; i++)
            *(uint4 *)(words[0] + 4 * i) = *(const uint4 *)(in.codes + b * BLOCK + i * 512);
#pragma unroll
        for (int i = 0; i < SETS; i++) {
            at[i] = ((2 * b + i * SPAN) * d.table_step) & -d.row_bytes;
            bias[i] = bias_of<FORMAT>(0, 0);
            if (SHIFT == QNI_CUDA_SHIFT_ZERO) {
                const char2 z =
                    *(const char2 *)(in.zero + (d.scale_is_f16 ? at[i] / 2 : at[i] / 4));
                bias[i] = bias_of<FORMAT>(z.x, z.y);
            }
        }
#pragma unroll
        for (int step = 0; step < 4; step++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int u = 2 * e + step / 2, set = u / SPAN;
                uint32_t a[4];
                integers<FORMAT>(a, words[e] + step * STEP_WORDS, bias[set],
                                 SHIFT == QNI_CUDA_SHIFT_ZERO);
#pragma unroll
                for (int i = 0; i < MT; i++) {
                    const uint32_t *const v = x[i][2 * b + u] + step % 2 * 2;
                    product<FORMAT>(s[set].products[i], a, v[0], v[1]);
                    if (SHIFT == QNI_CUDA_SHIFT_OFFSET)
                        product<FORMAT>(s[set].x[i], ones, v[0], v[1]);
                }
            }
#pragma unroll
        for (int i = 0; i < SETS; i++)
            scale_sums<MT, SHIFT>(d, all, s[i], in.table + at[i]);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Where the sums of outputs `output` ... of a row lie: lanes of put_sums() meet in no bank. */
INLINE int32_t sum_at(int32_t row, int32_t output)
{
    const int32_t place = (row & 8) + (row & 1) * 4 + (row >> 1 & 3);
    return place * RING_SUM_STRIDE + (output ^ (row & 4) * 2);
}
/* What a warp has of one panel. */
template <int MT>
INLINE void put_sums(const float (&all)[MT][4], float *to, int32_t rows, int32_t lane)
{
    const int32_t g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int32_t row = i * 8 + 2 * t + (j & 1);
            if (row < rows)
                to[sum_at(row, g + (j >> 1) * 8)] = all[i][j];
        }
}

/* Apart, so that its polynomials cost the fast path no register. */
static __device__ __noinline__ void store_any(const struct qni_cuda_sink *out, int64_t row,
                                              int32_t j, int32_t expert, float v)
{
    epilogue_store(*out, epilogue_row_of(*out, row), j, expert, v);
}

/* Who adds what: threads of these, to y of this part and expert. */
struct decode_adder {
    float *put, *kept;
    int32_t first, part, expert; /* panel of the CTA, in the part */
    int32_t thread, threads;
};

/* Four outputs of a row: to y. */
INLINE void store4(const struct decode &d, const struct qni_cuda_sink &out,
                   const struct decode_rows &rows, const struct decode_adder &a, int32_t row,
                   int32_t o, float4 v)
{
    const int64_t y = d.row + (rows.index != NULL ? rows.index[row] : row);
    const int32_t column = a.part * d.n + o;
    if (out.is_plain && o + 4 <= d.n &&
        epilogue_store4(out, y * out.stride[2] + column, (const float *)&v))
        return;
#pragma unroll 1
    for (int32_t j = 0; j < 4 && o + j < d.n; j++) {
        const float one = j == 0 ? v.x : j == 1 ? v.y : j == 2 ? v.z : v.w;
        if (out.is_plain)
            epilogue_round(out, y * out.stride[2] + column + j, one);
        else
            store_any(&out, y, column + j, a.expert, one);
    }
}

/* Panels p ... of the place have been multiplied with its chunks: what the warps have is added, in
 * their order, to what there is of stretches and rows before; after the last it goes to y. */
template <int ROWS>
INLINE void add_sums(const struct decode &d, const struct ring_plan &e,
                     const struct qni_cuda_sink &out, const struct ring_source &in,
                     const struct decode_adder &a, const struct ring_place &at, int32_t seq,
                     int32_t p)
{
    const int32_t m = in.rows.m, end = min(at.row + ROWS, in.n);
    const float *const put = a.put + seq % RING_SUMS * (e.warps * e.sums);
    const bool is_last = ring_is_last(e, at, ROWS, in.n);
#pragma unroll 1
    for (int32_t q = 0; q < at.step && p + q < in.count; q++)
#pragma unroll 1
        for (int32_t i = a.thread; i < m * 4; i += a.threads) {
            const int32_t row = i >> 2, o = (i & 3) * 4;
            float4 *const kept = (float4 *)a.kept + (p + q) * m * 4 + i;
            float4 v = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
            if (at.row > 0 || at.s > 0)
                v = *kept;
#pragma unroll 1
            for (int32_t r = row; r < end; r += m) {
                if (r < at.row)
                    continue;
                const float *const from = put + q * at.len * e.sums + sum_at(r - at.row, o);
                float4 w[DECODE_WARPS];
#pragma unroll
                for (int j = 0; j < DECODE_WARPS; j++)
                    w[j] = j < at.len ? *(const float4 *)(from + j * e.sums)
                                      : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll
                for (int j = 0; j < DECODE_WARPS; j++) {
                    v.x += w[j].x;
                    v.y += w[j].y;
                    v.z += w[j].z;
                    v.w += w[j].w;
                }
            }
            if (is_last)
                store4(d, out, in.rows, a, row, (a.first + p + q) * 16 + o, v);
            else
                *kept = v;
        }
}

/* The last panels, whose sums all threads add once all are there: the helper leaves them. */
INLINE bool is_tail(const struct ring_place &at, int32_t p, int32_t count)
{
    return p + RING_SUMS * at.step >= count;
}

template <int ROWS>
INLINE void add_tail(const struct decode &d, const struct ring_plan &e,
                     const struct qni_cuda_sink &out, const struct ring_source &in,
                     const struct decode_adder &a)
{
    const int32_t passes = (in.n - 1) / ROWS;
    struct ring_place at = {passes * ROWS, e.stretches - 1, 0, 0, 0, 0};
    ring_enter(d, e, at, 0);
    /* Stretches before the last have a panel at a time. */
    const int32_t before = at.s * in.count, all = before + (in.count + at.step - 1) / at.step;
    int32_t seq = passes * all + before;
    __syncthreads();
#pragma unroll 1
    for (int32_t p = 0; p < in.count; p += at.step, seq++)
        if (is_tail(at, p, in.count))
            add_sums<ROWS>(d, e, out, in, a, at, seq, p);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

/* With 16 rows x takes 128 registers of a thread: the helper has a warpgroup, whose registers the
 * others get. Idle warps of it leave. */
#define THREADS(mt) ((mt) == 1 ? DECODE_THREADS + 32 : DECODE_THREADS + 128)
template <int MT> INLINE void set_registers(bool is_helper)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    if (MT == 2 && is_helper)
        asm volatile("setmaxnreg.dec.sync.aligned.u32 88;" ::: "memory");
    if (MT == 2 && !is_helper)
        asm volatile("setmaxnreg.inc.sync.aligned.u32 208;" ::: "memory");
#endif
}

/* The helper: asks as slots become free, adds as sums are put. */
template <int FORMAT, int MT>
INLINE void help(const CUtensorMap *map, const struct decode &d, const struct ring_plan &e,
                 const struct qni_cuda_sink &out, const struct ring_source &in,
                 const struct decode_adder &a, struct ring_feed &f, uint8_t *shared)
{
    const int32_t lane = (int32_t)threadIdx.x & 31;
    const uint32_t base = ptx_shared(shared);
    struct ring_slots r = ring_of(d, e, shared, lane);
#if __CUDA_ARCH__ >= 900
    /* What each warp asks for itself, to begin with. */
#pragma unroll 1
    for (int32_t i = 0; i < r.depth; i++)
        ring_ask<FORMAT, MT>(map, d, e, in, f, lane, 0, NULL, 0);
#endif
    struct ring_place at = {};
    int32_t seq = 0, p = 0;
    ring_enter(d, e, at, 0);
    __syncthreads();
#pragma unroll 1
    for (bool adds = true;;) {
        const bool asks = f.at.row < in.n;
        bool is_idle = true;
        if (asks && ring_bar_done(ring_free(base, lane, r.slot), r.parity)) {
            ring_ask<FORMAT, MT>(map, d, e, in, f, lane, ASK_X | ASK_WEIGHTS, ring_slot(r),
                                 ring_there(base, lane, r.slot));
            ring_next(r);
            is_idle = false;
        }
        __syncwarp();
        adds = adds && !(ring_is_last(e, at, 8 * MT, in.n) && is_tail(at, p, in.count));
        if (adds &&
            __all_sync(0xffffffffu, ring_bar_done(ring_put(base, seq), seq / RING_SUMS & 1))) {
            add_sums<8 * MT>(d, e, out, in, a, at, seq, p);
            ring_bar_arrive(ring_added(base, seq));
            is_idle = false;
            seq++;
            p += at.step;
            if (p >= in.count) {
                p = 0;
                ring_leave(e, at, 8 * MT);
                ring_enter(d, e, at, 0);
            }
        }
        if (!adds && __all_sync(0xffffffffu, !asks))
            break;
#if __CUDA_ARCH__ >= 700
        if (__all_sync(0xffffffffu, is_idle))
            __nanosleep(40);
#endif
    }
}

/* A warp that multiplies: its first slots. */
template <int FORMAT, int MT>
INLINE void begin(const CUtensorMap *map, const struct decode &d, const struct ring_plan &e,
                  const struct ring_source &in, struct ring_feed &f, uint8_t *shared, int32_t warp,
                  bool asks)
{
    const uint32_t base = ptx_shared(shared);
    const struct ring_feed first = f;
    /* x first, in whose place in the queue weights would make it wait; but weights first where x is
     * not there yet. */
    const bool x_first = !d.pdl || d.routes.tiles != NULL;
#pragma unroll 1
    for (int32_t turn = 0; turn < 2; turn++) {
        if (turn == 1) {
            ptx_dependents_launch();
            ptx_dependency_wait();
            if (x_first)
                break;
            f = first;
        }
        struct ring_slots r = ring_of(d, e, shared, warp);
        const int32_t which = x_first ? ASK_X | ASK_WEIGHTS : turn == 0 ? ASK_WEIGHTS : ASK_X;
#pragma unroll 1
        for (; r.parity == 0; ring_next(r)) {
            if (asks)
                ring_ask<FORMAT, MT>(map, d, e, in, f, warp, which, ring_slot(r),
                                     ring_there(base, warp, r.slot));
#if __CUDA_ARCH__ < 900
            ptx_copies_commit();
#endif
        }
    }
}

/* A slot has been read. */
template <int FORMAT, int MT>
INLINE void give(const CUtensorMap *map, const struct decode &d, const struct ring_plan &e,
                 const struct ring_source &in, struct ring_feed &f, struct ring_slots &r,
                 uint32_t base, int32_t warp, int32_t lane)
{
    __syncwarp();
#if __CUDA_ARCH__ >= 900
    if (lane == 0)
        ring_bar_arrive(ring_free(base, warp, r.slot));
#else
    ring_ask<FORMAT, MT>(map, d, e, in, f, warp, ASK_X | ASK_WEIGHTS, ring_slot(r), 0);
    ptx_copies_commit();
#endif
    ring_next(r);
}

/* A warp that multiplies: all its chunks. */
template <int FORMAT, int MT, int SHIFT, int SPAN>
INLINE void multiply(const CUtensorMap *map, const struct decode &d, const struct ring_plan &e,
                     const struct ring_source &in, float *put, struct ring_feed &f, uint8_t *shared,
                     int32_t warp)
{
    enum { ROWS = 8 * MT, PARTS = RING_X_PARTS(FORMAT) };
    const int32_t lane = (int32_t)threadIdx.x & 31, g = lane >> 2;
    const uint32_t base = ptx_shared(shared);
    struct ring_slots r = ring_of(d, e, shared, warp);
    const int32_t at_table = DECODE_CHUNK + g * (d.scale_is_f16 ? 4 : 8);
    const int32_t at_zero = DECODE_CHUNK + d.rows * d.row_bytes + g * 2;
    struct ring_place at = {};
    int32_t seq = 0;
#pragma unroll 1
    for (; at.row < in.n; ring_leave(e, at, ROWS)) {
        ring_enter(d, e, at, warp);
        const bool is_busy = ring_is_busy(at, in.count);
        uint32_t x[MT][RING_UNITS(FORMAT)][4];
        if (is_busy)
#pragma unroll
            for (int j = 0; j < MT * PARTS; j++) {
                ring_wait(r, base, warp);
                ring_take_x(e, in, r, at.row + j / PARTS * 8, x[j / PARTS] + j % PARTS * 8, lane);
                give<FORMAT, MT>(map, d, e, in, f, r, base, warp, lane);
            }
#pragma unroll 1
        for (int32_t p = 0; p < in.count; p += at.step, seq++) {
            const bool is_mine = is_busy && p + at.panel < in.count;
            float all[MT][4] = {};
            if (is_mine) {
                ring_wait(r, base, warp);
                const uint8_t *const slot = ring_slot(r);
                const struct decode_lane from = {slot + lane * 16, slot + at_table, slot + at_zero};
                chunk<FORMAT, MT, SHIFT, SPAN>(d, all, from, x);
                give<FORMAT, MT>(map, d, e, in, f, r, base, warp, lane);
            }
            if (seq >= RING_SUMS)
                ring_bar_wait(ring_added(base, seq), (seq / RING_SUMS - 1) & 1);
            if (is_mine)
                put_sums<MT>(all, put + (seq % RING_SUMS * e.warps + warp) * e.sums,
                             min(ROWS, in.n - at.row), lane);
            ring_bar_arrive(ring_put(base, seq));
        }
    }
}

template <int FORMAT, int MT, int SHIFT, int SPAN>
static __global__ void __launch_bounds__(THREADS(MT), 1)
    decode_float(const __grid_constant__ CUtensorMap map, const __grid_constant__ struct decode d,
                 const __grid_constant__ struct ring_plan e,
                 const __grid_constant__ struct qni_cuda_sink out,
                 const __grid_constant__ struct qni_cuda_experts experts)
{
    enum { ROWS = 8 * MT };
    extern __shared__ __align__(128) uint8_t shared[];
    const int32_t lane = (int32_t)threadIdx.x & 31;
    const int32_t warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x >> 5, 0);
    const bool is_helper = warp >= e.warps;
    const int32_t cta = (int32_t)blockIdx.y, first = cta * d.share + min(cta, d.more);
    const uint32_t base = ptx_shared(shared);
    struct ring_source in = {d.blob, 0, d.share + (cta < d.more), 0, {NULL, 0, d.m}};
    struct decode_adder adder = {(float *)(shared + d.at_sums),
                                 (float *)(shared + e.at_kept),
                                 first,
                                 0,
                                 0,
                                 (int32_t)threadIdx.x,
                                 32 * (e.warps + 1)};

    if (!is_helper && lane < RING_MAX_DEPTH) {
        ring_bar_init(ring_there(base, warp, lane), 1);
        ring_bar_init(ring_free(base, warp, lane), 1);
    }
    if (warp == e.warps && lane < RING_SUMS) {
        ring_bar_init(ring_put(base, lane), 32 * e.warps);
        ring_bar_init(ring_added(base, lane), 32);
    }
#if __CUDA_ARCH__ >= 900
    decode_bar_fence();
#endif
    __syncwarp();
    if (d.routes.tiles != NULL) { /* which weights, the launch before this one may have decided */
        ptx_dependency_wait();
        const int32_t *const tile = d.routes.tiles + 3 * blockIdx.x;
        adder.expert = tile[0];
        in.rows.m = tile[2];
        if (in.rows.m == 0 || adder.expert < experts.first ||
            adder.expert >= experts.first + experts.n)
            return;
        in.blob = experts.blob[adder.expert - experts.first];
        in.rows.index = d.routes.rows == NULL ? NULL : d.routes.rows + tile[1];
        in.rows.base = d.routes.rows == NULL ? tile[1] : 0;
    } else {
        adder.part = (int32_t)blockIdx.x;
        in.rows.base = adder.part * d.x.part_rows;
    }
    /* nvcc 13.0 may take a pointer chosen between two parameters for always the second. */
    asm volatile("" : "+l"(in.blob));
    in.first = adder.part * d.panels + first;
    in.n = in.rows.m * d.x.planes;
#if __CUDA_ARCH__ >= 900
    const bool asks = is_helper ? lane < e.warps : lane == 0;
#else
    const bool asks = !is_helper;
#endif
    struct ring_feed f = {};
    f.at.row = asks ? 0 : in.n;
    feed_enter(d, e, in, ROWS, is_helper ? lane : warp, f);
    if (is_helper) {
        set_registers<MT>(true);
        if (warp > e.warps)
            return;
        ptx_dependents_launch();
        ptx_dependency_wait();
        struct decode_adder alone = adder;
        alone.thread = lane;
        alone.threads = 32;
        help<FORMAT, MT>(&map, d, e, out, in, alone, f, shared);
        add_tail<ROWS>(d, e, out, in, adder);
    } else {
        set_registers<MT>(false);
        begin<FORMAT, MT>(&map, d, e, in, f, shared, warp, asks);
        __syncthreads();
        multiply<FORMAT, MT, SHIFT, SPAN>(&map, d, e, in, adder.put, f, shared, warp);
        add_tail<ROWS>(d, e, out, in, adder);
    }
}

/* ---- launches -------------------------------------------------------------------------------- */

/* CTAs for the panels of a part or of a tile. A tile of an expert: enough chunks for each warp to
 * be worth the way in and out; else as many as there are multiprocessors. */
static int32_t ctas_for(const struct decode *d, const struct qni_cuda_product *p,
                        const struct qni_cuda_launch *launch)
{
    if (p->routes.tiles != NULL) {
        const int32_t each = (4 * DECODE_WARPS + d->chunks - 1) / d->chunks;
        return (d->panels + each - 1) / each;
    }
    return (launch->multiprocessors + p->w.parts - 1) / p->w.parts;
}

/* As many CTAs as are wanted, with eight warps or four; more if their sums do not fit. */
static bool plan(struct decode *d, struct ring_plan *e, int32_t rows,
                 const struct qni_cuda_product *p, const struct qni_cuda_launch *launch)
{
    const int32_t least = 8 * RING_X_STRIDE;
    d->slot_bytes = ((d->slot_bytes > least ? d->slot_bytes : least) + 127) / 128 * 128;
    for (int32_t ctas = ctas_for(d, p, launch);; ctas *= 2) {
        decode_plan_share(d, ctas, 1);
        for (int32_t warps = DECODE_WARPS; warps >= DECODE_WARPS / 2; warps /= 2)
            if (ring_fits(d, e, warps, rows, launch))
                return true;
        if (ctas >= d->panels)
            return false;
    }
}

template <int FORMAT, int MT, int SHIFT>
static int32_t launch(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                      const struct qni_cuda_launch *launch, int32_t mr)
{
    enum { UNITS = RING_UNITS(FORMAT), WIDE = SHIFT == QNI_CUDA_SHIFT_OFFSET || MT == 1 ? 2 : 4 };
    struct decode d;
    struct ring_plan e = {};
    CUtensorMap map = {};
    decode_plan(&d, p, launch, UNITS, mr);
    if (!plan(&d, &e, 8 * MT, p, launch))
        return (int32_t)cudaErrorInvalidConfiguration;
    if (launch->sm == 90 && p->x.planes == 1 && p->routes.tiles == NULL && p->w.parts == 1 &&
        p->x.columns > 0 && p->x.columns % 64 == 0) {
        e.box_rows = d.m < 8 ? d.m : 8;
        const int32_t status = ring_describe(p, e.box_rows, &map);
        if (status != 0)
            return status;
    }
    const void *const kernel = d.rows == UNITS ? (const void *)decode_float<FORMAT, MT, SHIFT, 1>
                               : 2 * d.rows == UNITS
                                   ? (const void *)decode_float<FORMAT, MT, SHIFT, 2>
                                   : (const void *)decode_float<FORMAT, MT, SHIFT, WIDE>;
    static const struct qni_cuda_experts none = {};
    struct qni_cuda_sink out = p->out;
    void *arguments[] = {&map, &d, &e, &out, (void *)(experts != NULL ? experts : &none)};
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)(p->routes.tiles != NULL ? p->routes.n_tiles : p->w.parts),
                          (unsigned)d.ctas);
    config.blockDim = dim3((unsigned)(32 * e.warps + THREADS(MT) - DECODE_THREADS));
    config.dynamicSmemBytes = (size_t)d.bytes;
    config.stream = (cudaStream_t)launch->stream;
    config.attrs = &attribute;
    config.numAttrs = launch->pdl ? 1 : 0;
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, d.bytes);
    if (status == cudaSuccess)
        status = cudaLaunchKernelExC(&config, kernel, arguments);
    (void)cudaGetLastError();
    return (int32_t)status;
}
template <int FORMAT, int MT>
static int32_t launch_shift(const struct qni_cuda_product *p,
                            const struct qni_cuda_experts *experts,
                            const struct qni_cuda_launch *how, int32_t mr)
{
    if (p->w.shift == QNI_CUDA_SHIFT_OFFSET)
        return launch<FORMAT, MT, QNI_CUDA_SHIFT_OFFSET>(p, experts, how, mr);
    if (p->w.shift == QNI_CUDA_SHIFT_ZERO)
        return launch<FORMAT, MT, QNI_CUDA_SHIFT_ZERO>(p, experts, how, mr);
    return launch<FORMAT, MT, QNI_CUDA_SHIFT_NONE>(p, experts, how, mr);
}
/* Rows of all planes decide how many go by at a time. */
template <int FORMAT>
static int32_t launch_rows(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                           const struct qni_cuda_launch *how, int32_t mr)
{
    return (p->m < mr ? p->m : mr) * p->x.planes > 8 ? launch_shift<FORMAT, 2>(p, experts, how, mr)
                                                     : launch_shift<FORMAT, 1>(p, experts, how, mr);
}

extern "C" int32_t registers_f16_q4(const struct qni_cuda_product *p,
                                    const struct qni_cuda_experts *experts,
                                    const struct qni_cuda_launch *how)
{
    return launch_rows<F16_Q4>(p, experts, how, 16);
}
extern "C" int32_t registers_f16_q8(const struct qni_cuda_product *p,
                                    const struct qni_cuda_experts *experts,
                                    const struct qni_cuda_launch *how)
{
    return launch_rows<F16_Q8>(p, experts, how, 16);
}
