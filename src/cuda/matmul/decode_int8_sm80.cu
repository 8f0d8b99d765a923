/* SPDX-License-Identifier: Apache-2.0 */
/* At most 16 rows of int8 x times weights of 4 or 8 bits, exactly: the int32 dot products of whole
 * segments, then the f32 steps of docs/numerics.md in their order. Bit-equal to the CPU.
 *
 *     per segment   dot = sum over its positions of code_x * value_w
 *     Q8            acc = fma(scale_w, fl(dot - x_zero sum_w), acc)
 *     Q8B           acc = fma(scale_w, fma(scale_x, fl(dot), fl(offset_x fl(sum_w))), acc)
 *     offsets       acc = fma(offset_w, fl(sum_x - x_zero count) or total_x, acc)
 *     one segment   also dot - x_zero sum_w itself, with a bias: raw sums
 *
 * k is cut between the warps of a CTA (decode_int8.cuh); what a warp does with a chunk of it is in
 * decode_int8_chunks.cuh and decode_int8_whole.cuh. A CTA has panels of a part, or of the expert of
 * one tile of a grouped product: which, the launch before may still be writing, so that such a CTA
 * waits before it reads anything.
 *
 * Roofline: bytes of the weights / bandwidth. A unit of a panel of 4 bits (288 bytes with a scale)
 * reaches a multiprocessor of an H100 every 20 cycles at 3.35 TB/s: 79 cycles of a scheduler, which
 * needs some 50 with one row of x, 80 with 16. Reached (us, as in decode_sm80.cu, without / with
 * programmatic dependent launch), m = 1: q4_0 x q8_1 4096 x 4096 7.4 / 6.2, 14336 x 4096 15.1 /
 * 12.7, 8192 x 8192 17.0 / 14.1, 28672 x 8192 49.8 / 46.8; int8 per channel, one scale a row of x,
 * 8.7 / 7.1, 22.7 / 20.5, 25.4 / 23.2, 80.5 / 77.9; m = 16: 9.1 / 8.8, 18.6 / 16.8, 19.6 / 17.7,
 * 54.6 / 52.7 and 9.3 / 7.6, 25.1 / 22.6, 27.6 / 25.9, 85.5 / 83.2. */
#include "decode_int8_rows.cuh"
#include "decode_int8_whole.cuh"

namespace chunks
{

/* ---- the CTA --------------------------------------------------------------------------------- */

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

/* The last steps of every sum. */
template <int ROWS, int SEG>
INLINE void finish(const struct job &d, const struct qni_cuda_sink &out, const uint8_t *shared,
                   const struct decode_rows &rows, const struct whose &w)
{
    const float *const sums = (const float *)(shared + d.at_sums);
    const int32_t *const dots = (const int32_t *)(shared + d.at_dots);
    const int32_t *const totals = (const int32_t *)(shared + d.at_totals);
    const int32_t shift = ROWS == 1 ? 0 : 32 - __clz(rows.m - 1); /* rows up to a power of two */
    const int32_t o = (int32_t)threadIdx.x & 15, line = (int32_t)threadIdx.x >> 4;
    const int32_t r = line & ((1 << shift) - 1);
    if (r >= rows.m)
        return;
    const int64_t row = d.row + (d.routes.tiles != NULL ? decode_row_of(rows, r) : r);
#pragma unroll 1
    for (int32_t p = line >> shift; p < w.count; p += THREADS / 16 >> shift) {
        const int32_t j = (w.first + p) * 16 + o;
        if (j >= d.n)
            return;
        const int32_t at = (p * ROWS + r) * LINE + o, output = w.part * d.n + j;
        float v;
        if constexpr (SEG == WHOLE) {
            const int32_t sum = d.has_sums ? totals[p * 16 + o] : 0;
            int32_t dot = dots[at] - (d.is_q8b ? 0 : d.x.x_zero * sum);
            if (d.is_raw) {
                if (d.extra_bytes != 0)
                    dot -= raw_zero(d, shared, w.blob, p, o, decode_row_of(rows, r));
                dot += epilogue_raw_bias(out, output, w.expert);
                if (out.y_dtype == QN_I32) {
                    store_raw(&out, row, output, dot);
                    continue;
                }
            }
            v = steps_of_one(d, shared, p, o, r, dot, sum);
        } else
            v = sums[at];
        if (!d.is_q8b) /* the scale of the row, or of all rows */
            v = __fmul_rn(v, ((const float *)(shared + AT_ROWS))[r]);
        if (out.is_plain)
            epilogue_round(out, row * out.stride[2] + output, v);
        else
            store_any(&out, row, output, w.expert, v);
    }
}

/* Segments [first, end) that the stretch of `len` chunks from `from` touches. */
struct reach {
    int32_t first, end;
};
template <int UNITS, int SEG>
INLINE struct reach reach_of(const struct job &d, int32_t from, int32_t len)
{
    struct reach r = {0, 1};
    if constexpr (SEG > 0) {
        r.first = from * (UNITS / SEG);
        r.end = min((from + len) * (UNITS / SEG), d.n_segments);
    } else if (SEG == ANY) {
        r.first = decode_place_at(d, from * UNITS).segment;
        r.end = min(decode_place_at(d, min((from + len) * UNITS, d.units) - 1).segment + 1,
                    d.n_segments);
    }
    return r;
}

/* Which weights and rows; false: none. */
INLINE bool whose_tile(const struct job &d, const struct qni_cuda_experts &experts, struct whose &w,
                       struct decode_rows &rows)
{
    uint64_t blob = (uint64_t)d.blob;
    if (d.routes.tiles != NULL) {
        ptx_dependency_wait();
        const int32_t *const tile = d.routes.tiles + 3 * blockIdx.x;
        w.expert = tile[0];
        rows.m = tile[2];
        if (rows.m == 0 || w.expert < experts.first || w.expert >= experts.first + experts.n)
            return false;
        blob = (uint64_t)experts.blob[w.expert - experts.first];
        rows.index = d.routes.rows + tile[1];
    } else {
        w.part = (int32_t)blockIdx.x;
        rows.base = w.part * d.x.part_rows;
    }
    /* nvcc 13.0 takes a choice between two parameters of the kernel for the second of them */
    asm volatile("" : "+l"(blob));
    w.blob = (const uint8_t *)blob;
    return true;
}

/* ROWS: 1, 8 or 16. SEG: decode_int8.cuh. */
template <int BITS, int ROWS, int SEG>
static __global__ void __launch_bounds__(THREADS, 1)
    decode_int8(const __grid_constant__ struct job d,
                const __grid_constant__ struct qni_cuda_sink out,
                const __grid_constant__ struct qni_cuda_experts experts)
{
    enum { UNITS = CHUNK / (BITS * 64), POSITIONS = UNITS * 32, MT = ROWS == 16 ? 2 : 1 };
    extern __shared__ __align__(128) uint8_t shared[];
    const int32_t lane = (int32_t)threadIdx.x & 31;
    const int32_t warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x >> 5, 0);
    const int32_t cta = (int32_t)blockIdx.y;
    struct whose w = {cta * d.share + min(cta, d.more), d.share + (cta < d.more), 0, 0, NULL};
    struct decode_rows rows = {NULL, 0, d.m};
    const uint32_t bars = ptx_shared(shared) + (uint32_t)(warp * MAX_DEPTH * 8);
    const uint32_t x_bar = ptx_shared(shared) + AT_BAR, all_done = ptx_shared(shared) + AT_DONE;
    const uint8_t *const slots = shared + AT_RING + warp * d.depth * d.slot_bytes;
    if (!whose_tile(d, experts, w, rows))
        return;
#if __CUDA_ARCH__ >= 900
    if (lane < d.depth)
        decode_bar_init(bars + 8 * (uint32_t)lane, 1);
    if (threadIdx.x == 0)
        decode_bar_init(x_bar, 1);
    decode_bar_fence();
#endif
    if (SEG != WHOLE && threadIdx.x < MOST_PANELS)
        ((int32_t *)(shared + AT_DONE))[threadIdx.x] = 0;
    struct item next, at;
    item_begin<SEG>(d, next, 0, warp, w.count);
    at = next;
    __syncthreads();

    /* A few items first, then x: behind all of them in the queues it would wait for them. Where the
     * launch before this one makes x, its end is still to come, and there is time for more. */
    struct reach r = reach_of<UNITS, SEG>(d, 0, at.len);
    if (SEG == WHOLE)
        tables_ask(d, w, shared);
    if (!d.pdl)
        ptx_dependency_wait();
#pragma unroll 1
    for (int32_t i = 0; i < d.depth; i++) {
        if (i == d.ahead) {
            ptx_dependents_launch();
            ptx_dependency_wait();
            if (d.x.lies != 0)
                lying_ask(d, rows, shared);
            if (d.x.lies == 0 || ROWS == 1) /* ... and ones, beside one row */
                x_ask<ROWS == 1>(d, rows, 0, at.len * POSITIONS, shared, x_bar, warp, lane);
            if (d.x.lies == 0) {
                row_scales_ask(d, rows, shared);
                facts_ask(d, w, rows, r.first, r.end - r.first, shared, warp, lane);
            }
        }
        fetch<UNITS, SEG>(d, w, next, ptx_shared(slots) + (uint32_t)(i * d.slot_bytes),
                          bars + 8 * (uint32_t)i, warp, lane);
    }
    if (SEG == WHOLE)
        clear<ROWS>(d, shared, w.count);
    if constexpr (SEG != ANY && ROWS != 16)
        if (d.x.lies != 0)
            lying_quantize<SEG>(d, rows, shared, at.len * POSITIONS);

    struct lane l;
    const int32_t g = lane >> 2, t = lane & 3;
    const int32_t row = ROWS == 1 ? g >> 2 : min(g, rows.m - 1), row8 = min(g + 8, rows.m - 1);
    l.x = shared + d.at_x + row * d.x_stride + t * 16;
    l.x_tile = (row8 - row) * d.x_stride;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const int32_t r = ROWS == 1 ? 0 : min((i >> 1) * 8 + 2 * t + (i & 1), rows.m - 1);
        l.scale[i] = (const float *)(shared + d.at_scale) + r * d.facts_stride;
        l.on[i] = (g & 3) == i ? 0xffffffffu : 0;
        l.begin[i] = (int32_t)ptx_keep(MAGIC);
    }
    const int32_t to_line = ROWS == 1 ? lane & 15 : 2 * t * LINE + g;
    l.to_offset = (d.at_offset - d.at_scale) / 4;
    l.to_total = (d.at_total - d.at_scale) / 4;
    l.trade = (float *)(shared + d.at_trade) + warp * (16 * TRADE);

    int32_t stage = 0, parity = 0, x_parity = 0;
    int32_t dot[MT][4] = {}, sum[4] = {}; /* WHOLE */
#pragma unroll 1
    for (int32_t from = 0; from < d.chunks; from += d.stretch) {
        if (from > 0) {
            __syncthreads();
            item_begin<SEG>(d, at, from, warp, w.count);
            r = reach_of<UNITS, SEG>(d, from, at.len);
            x_ask<ROWS == 1>(d, rows, from * POSITIONS, at.len * POSITIONS, shared, x_bar, warp,
                             lane);
            facts_ask(d, w, rows, r.first, r.end - r.first, shared, warp, lane);
        }
        x_wait<ROWS == 1>(d, x_bar, x_parity);
        x_parity ^= 1;
#pragma unroll 1
        while (item_is<SEG>(at)) {
#if __CUDA_ARCH__ >= 900
            decode_bar_wait(bars + 8 * (uint32_t)stage, parity);
#else
            ptx_copies_wait<MIN_DEPTH - 1>();
            __syncwarp();
#endif
            const uint8_t *const slot = slots + stage * d.slot_bytes, *const x =
                                                                          l.x + at.c * POSITIONS;
            const int32_t lines = at.p * (ROWS * LINE) + to_line;
            float *const panel = (float *)(shared + d.at_sums) + lines;
            int32_t *const dots = (int32_t *)(shared + d.at_dots) + lines;
            int32_t *const totals = (int32_t *)(shared + d.at_totals) + at.p * 16;
            const uint32_t done = all_done + (uint32_t)at.p * 4;
            const int32_t chunk = from + at.c;
            if constexpr (SEG == WHOLE) {
                chunk_of_whole<BITS, MT>(d, l, slot, x, chunk, dot, sum, lane);
                __syncwarp();
            } else {
                if constexpr (SEG == ANY) {
                    const struct carried_at carried = {panel, dots, totals, done, chunk};
                    chunk_of_any<BITS, MT>(d, l, slot, x, r.first, carried, lane);
                } else {
                    const int32_t segment = at.c * (UNITS / SEG);
                    const int32_t n = r.end - r.first - segment;
                    if constexpr (ROWS == 1)
                        chunk_of_one<BITS, SEG>(d, l, slot, x, segment, n, panel, done, chunk,
                                                lane);
                    else
                        chunk_of_rows<BITS, MT, SEG>(d, l, slot, x, segment, n, panel, done, chunk,
                                                     lane);
                }
                done_set(done, chunk + 1, lane);
            }
            fetch<UNITS, SEG>(d, w, next, ptx_shared(slot), bars + 8 * (uint32_t)stage, warp, lane);
            if (++stage == d.depth) {
                stage = 0;
                parity ^= 1;
            }
            item_next<SEG>(at, w.count);
            /* the panel's or the run's end; or 32768 positions, whose sums times 16 are int32 */
            if (SEG == WHOLE && (at.c == 0 || at.left == 0 || (chunk & 63) == 63))
                add_whole<BITS, MT>(d, dot, sum, dots, totals, lane);
        }
    }
    __syncthreads();
    finish<ROWS, SEG>(d, out, shared, rows, w);
}

/* ---- launches -------------------------------------------------------------------------------- */

template <int BITS, int ROWS> static const void *kernel_for(int32_t seg, bool is_one)
{
    enum { ONE = ROWS == 8 ? 1 : ROWS };
    if (seg == 1)
        return is_one ? (const void *)decode_int8<BITS, ONE, 1>
                      : (const void *)decode_int8<BITS, ROWS, 1>;
    if (seg == 2)
        return is_one ? (const void *)decode_int8<BITS, ONE, 2>
                      : (const void *)decode_int8<BITS, ROWS, 2>;
    if (seg == 4)
        return is_one ? (const void *)decode_int8<BITS, ONE, 4>
                      : (const void *)decode_int8<BITS, ROWS, 4>;
    return seg == WHOLE ? (const void *)decode_int8<BITS, ROWS, WHOLE>
                        : (const void *)decode_int8<BITS, ROWS, ANY>;
}

template <int BITS, int ROWS>
static int32_t launch(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                      const struct qni_cuda_launch *launch, int32_t is_q8b)
{
    enum { UNITS = CHUNK / (BITS * 64) };
    struct job d;
    plan(&d, p, launch, UNITS, ROWS);
    d.is_q8b = is_q8b;
    d.has_sums = is_q8b ? p->x.offset != NULL : p->x.x_zero != 0;
    if (p->x.lies != 0)
        d.has_sums = is_q8b && !p->x.symmetric;
    d.is_raw = p->out.y_dtype == QN_I32 || (p->out.bias != NULL && p->out.bias_dtype == QN_I32);
    /* Segments that no chunk cuts: the length divides the chunk and the groups. */
    int32_t seg = d.segment_units;
    if ((seg != 1 && seg != 2 && seg != 4) || d.group_units % seg != 0)
        seg = ANY;
    if (d.n_segments == 1 || d.is_raw) {
        seg = WHOLE;
        d.slot_bytes = CHUNK;
    }
    const bool is_one = seg > 0 && ROWS == 8 && d.m == 1;
    plan_shared(&d, launch, UNITS, seg, is_one ? 1 : ROWS, plan_ctas(&d, p, launch));
    /* Items before x: one; none where the rings hold all and x is still to be quantized. */
    const bool is_short = (d.share + (d.more > 0)) * d.chunks <= WARPS * d.depth;
    d.ahead = launch->pdl && p->routes.tiles == NULL ? d.depth / 2 : p->x.lies == 0 || !is_short;
    return launch_job(kernel_for<BITS, ROWS>(seg, is_one), &d, p, experts, launch);
}

} // namespace chunks

#define DECODE_KERNEL(name, bits, rows, is_q8b)                                                    \
    extern "C" int32_t name(const struct qni_cuda_product *p,                                      \
                            const struct qni_cuda_experts *experts,                                \
                            const struct qni_cuda_launch *how)                                     \
    {                                                                                              \
        return chunks::launch<bits, rows>(p, experts, how, is_q8b);                                \
    }
DECODE_KERNEL(qni_matmul_q8_q4frag_mr8_sm80, 4, 8, 0)
DECODE_KERNEL(qni_matmul_q8_q4frag_mr16_sm80, 4, 16, 0)
DECODE_KERNEL(qni_matmul_q8_q8frag_mr8_sm80, 8, 8, 0)
DECODE_KERNEL(qni_matmul_q8_q8frag_mr16_sm80, 8, 16, 0)
DECODE_KERNEL(qni_matmul_q8b_q4frag_mr8_sm80, 4, 8, 1)
DECODE_KERNEL(qni_matmul_q8b_q4frag_mr16_sm80, 4, 16, 1)
DECODE_KERNEL(qni_matmul_q8b_q8frag_mr8_sm80, 8, 8, 1)
DECODE_KERNEL(qni_matmul_q8b_q8frag_mr16_sm80, 8, 16, 1)
