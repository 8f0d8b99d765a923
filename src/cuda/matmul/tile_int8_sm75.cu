/* SPDX-License-Identifier: Apache-2.0 */
/* int8 rows x packed codes on tensor cores of any GPU from sm_75 on: int32 dot products of whole
 * segments, then the f32 steps of docs/numerics.md in their order. Bit-equal to the CPU.
 *
 *     per segment   dot = sum over its positions of code_x * value_w
 *     Q8            acc = fma(scale_w, fl(dot - x_zero sum_w), acc)
 *     Q8B           acc = fma(scale_w, fma(scale_x, fl(dot), fl(offset_x fl(sum_w))), acc)
 *     offsets       acc = fma(offset_w, fl(sum_x - x_zero count) or total_x, acc)
 *
 * A word of codes gives the bytes of two outputs as they lie in the A fragment of mma.m16n8k32; x,
 * stored in the same order, is the B fragment: 16 bytes a lane are one block. Integers of 4 bits
 * are multiplied as 16 times themselves (one lop3 for four), and the sum is shifted back, exactly.
 *
 * A CTA sees all of k, so that the order of segments is kept: 128 outputs x 64 rows by 4 warps of
 * 32 x 64, or 64 x 32 by 8 warps of 16 x 16. A stage is 128 positions with the facts of the
 * segments that end there, by asynchronous copies (sm_80 and newer) or plain loads (sm_75).
 *
 * Bound: 2 m n k / 1979 TOP/s on the H100, of which mma.sync is known to reach about 62 %; the end
 * of a segment of s positions costs 4 to 7 instructions a sum, against s / 128 of a product
 * instruction a sum and lane; few rows: the bytes of weights. Reached (q4, weights rotated past L2,
 * us, q8 / q8b): 4096 x 4096, groups of 128, m = 32: 27 / 26, 256: 53 / 48, 1024: 129 / 122, 4096:
 * 512 / 476 (288 TOP/s), of 32: 1075, one group: 322 (427 TOP/s); 14336 x 4096, m = 4096: 1754 /
 * 1655. */
#include "../dequant.cuh"
#include "../epilogue.cuh"
#include "../mma.cuh"
#include "segments.cuh"
#include "tile.cuh"

namespace
{

enum { TILE32 = 0, TILE64 = 1 };
enum {
    ACROSS = 4, /* warps along outputs */
    UNITS = 4,  /* of a stage */
    BLOCKS = 2,
    FACTS = 3,
    FACTS_EACH = 2 /* that a thread copies at most */
};

#define SHAPE __host__ __device__ constexpr

SHAPE int rows_of(int tile)
{
    return 32 << tile;
}
/* Warps along rows. */
SHAPE int down_of(int tile)
{
    return tile == TILE32 ? 2 : 1;
}
SHAPE int threads_of(int tile)
{
    return 32 * ACROSS * down_of(tile);
}
/* Of a warp: panels, and products of 8 rows. */
SHAPE int panels_of(int tile)
{
    return tile == TILE32 ? 1 : 2;
}
SHAPE int columns_of(int tile)
{
    return rows_of(tile) / down_of(tile) / 8;
}
SHAPE int block_bytes_of(int kind)
{
    return kind == CODES8 ? 1024 : 512;
}
/* A stage: x, codes, facts. */
SHAPE int x_bytes_of(int tile)
{
    return rows_of(tile) * UNITS * QNI_CUDA_UNIT;
}
SHAPE int codes_bytes_of(int tile, int kind)
{
    return ACROSS * panels_of(tile) * BLOCKS * block_bytes_of(kind);
}
SHAPE int facts_bytes_of(int tile)
{
    return UNITS * FACTS * rows_of(tile) * 4;
}
SHAPE int stage_bytes_of(int tile, int kind)
{
    return x_bytes_of(tile) + codes_bytes_of(tile, kind) + facts_bytes_of(tile);
}

/* ---- stages ---------------------------------------------------------------------------------- */

/* x, with the pieces of odd rows 4 further round, so that two rows fill the 32 banks that a quarter
 * of a warp reads; codes of two blocks; facts. */
struct feed {
    struct tile_feed f;
    struct cursor at;              /* of facts */
    const float *fact[FACTS_EACH]; /* of a row that this thread copies; NULL: none */
    int32_t has_row[FACTS_EACH];
    uint32_t fact_to;
};

template <int KIND, int TILE> DEVICE void begin_codes(struct tile_feed &f)
{
    tile_begin_codes<ACROSS * panels_of(TILE), 1, BLOCKS * block_bytes_of(KIND) / 16>(
        f, x_bytes_of(TILE));
}
template <int KIND, int TILE> DEVICE void copy_codes(const struct tile_feed &f, int32_t slot)
{
    tile_copy_codes<ACROSS * panels_of(TILE), 1, BLOCKS * block_bytes_of(KIND) / 16,
                    threads_of(TILE)>(f, slot);
}

/* [units of the stage][facts][rows], only where a segment ends: Q8 has sums of x; Q8B scales,
 * offsets and totals, each if somebody asks for it. A thread copies one fact of one row. */
template <int READS, int KIND, int TILE>
DEVICE void begin_facts(struct feed &f, const struct qni_cuda_product &p, const int32_t *row_of)
{
    constexpr int rows = rows_of(TILE), threads = threads_of(TILE);
    static_assert(FACTS * rows <= threads * FACTS_EACH, "all of them");
    const bool has_offset = p.w.shift != QNI_CUDA_SHIFT_NONE;
#pragma unroll
    for (int j = 0; j * threads < FACTS * rows; j++) {
        const int32_t at = (int32_t)threadIdx.x + j * threads, fact = at / rows;
        const float *from = NULL;
        if (fact == 0)
            from = READS == Q8B ? p.x.scale : has_offset ? (const float *)p.x.sum : NULL;
        if (READS == Q8B && fact == 1)
            from = p.x.offset;
        if (READS == Q8B && fact == 2 && has_offset)
            from = p.x.total;
        const int32_t row = row_of[at % rows];
        f.has_row[j] = row >= 0;
        if (from != NULL && row >= 0)
            from += (size_t)row * (size_t)p.x.ld_segment;
        f.fact[j] = from;
    }
    f.fact_to = ptx_keep(f.f.to + (uint32_t)(x_bytes_of(TILE) + codes_bytes_of(TILE, KIND)) +
                         threadIdx.x * 4);
}

/* Of the stage that comes next. */
template <int TILE>
DEVICE void copy_facts(struct feed &f, const struct qni_cuda_weights &w, int32_t slot)
{
    constexpr int rows = rows_of(TILE), threads = threads_of(TILE);
    const uint32_t to = f.fact_to + (uint32_t)slot * f.f.stage_bytes;
    const int32_t first = f.f.turn * UNITS;
#pragma unroll 1
    while (f.at.segment < w.n_segments && f.at.end <= first + UNITS) {
        const uint32_t unit = (uint32_t)(f.at.end - 1 - first);
#pragma unroll
        for (int j = 0; j * threads < FACTS * rows; j++)
            if (f.fact[j] != NULL)
                ptx_copy4(to + unit * FACTS * rows * 4 + (uint32_t)(j * threads * 4),
                          f.fact[j] + (f.has_row[j] ? f.at.segment : 0), f.has_row[j]);
        cursor_next(f.at, w);
    }
}

/* ---- the end of a segment -------------------------------------------------------------------- */

/* acc takes in the sums, which become 0. */
template <int READS, int KIND, int TILE>
DEVICE void end_segment(float (&acc)[panels_of(TILE)][columns_of(TILE)][4],
                        int32_t (&dot)[panels_of(TILE)][columns_of(TILE)][4],
                        const struct loaded (&l)[panels_of(TILE)], const struct qni_cuda_weights &w,
                        const struct ending &e)
{
    constexpr int COLUMNS = columns_of(TILE);
#pragma unroll
    for (int p = 0; p < panels_of(TILE); p++) {
        const struct facts f = facts_in_f32<KIND>(l[p], w);
        if (KIND == CODES4 && e.times == 1.0f)
            FOR_SUMS dot[p][j][c] >>= 4;
        if (READS == Q8)
            end_q8<KIND, COLUMNS>(acc[p], dot[p], f, e);
        else
            end_q8b<rows_of(TILE), COLUMNS>(acc[p], dot[p], f, e);
        FOR_SUMS dot[p][j][c] = 0;
    }
}

/* ---- products -------------------------------------------------------------------------------- */

template <int KIND>
DEVICE void fragment(uint32_t (&a)[4], const uint4 &low, const uint4 &high, int unit,
                     const uint32_t (&table)[4])
{
    const uint4 &v = unit == 0 ? low : high;
    const uint32_t w0 = unit == 0 ? low.x : low.z, w1 = unit == 0 ? low.y : low.w;
    if (KIND == CODES8) {
        a[0] = dequant_q8_bytes(v.x);
        a[1] = dequant_q8_bytes(v.y);
        a[2] = dequant_q8_bytes(v.z);
        a[3] = dequant_q8_bytes(v.w);
    } else if (KIND == CODES4) {
        dequant_q4_bytes16(a[0], a[1], w0);
        dequant_q4_bytes16(a[2], a[3], w1);
    } else {
        dequant_t4_bytes(a[0], a[1], w0, table);
        dequant_t4_bytes(a[2], a[3], w1, table);
    }
}

/* One unit of 32 positions. */
template <int KIND, int TILE>
DEVICE void unit_of(int32_t (&dot)[panels_of(TILE)][columns_of(TILE)][4],
                    const uint4 (&low)[panels_of(TILE)], const uint4 (&high)[panels_of(TILE)],
                    const uint4 (&x)[columns_of(TILE)], int unit, const uint32_t (&table)[4])
{
#pragma unroll
    for (int p = 0; p < panels_of(TILE); p++) {
        uint32_t a[4];
        fragment<KIND>(a, low[p], high[p], unit, table);
#pragma unroll
        for (int j = 0; j < columns_of(TILE); j++)
            mma_s8(dot[p][j], a, unit == 0 ? x[j].x : x[j].z, unit == 0 ? x[j].y : x[j].w);
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

/* What is still to do for one sum: raw sums lose what zero points add to them and get their bias,
 * others get the scale of their row of x. */
DEVICE float last_steps(const struct tile_args &a, const struct tile_place &at, float acc,
                        bool is_raw, float scale_w, int32_t zero_w, int32_t output, int32_t row)
{
    const struct qni_cuda_sink &out = a.p.out;
    if (is_raw) {
        int32_t d = __float_as_int(acc);
        if (zero_w != 0 && row >= 0)
            d -= zero_w * epilogue_raw_row(a.p.x, a.p.w, at.blob, row);
        if (output < a.p.w.n)
            d += epilogue_raw_bias(out, at.part * a.p.w.n + output, at.expert);
        if (out.y_dtype == QN_I32)
            return __int_as_float(d);
        acc = fmaf(scale_w, __int2float_rn(d), 0.0f);
    }
    if (a.p.x.row_scale != NULL)
        return row < 0 ? 0.0f : acc * a.p.x.row_scale[row];
    return acc * a.p.x.x_scale;
}

template <int READS, int TILE>
DEVICE void leave(const struct tile_args &a, const struct tile_place &at,
                  const float (&acc)[panels_of(TILE)][columns_of(TILE)][4],
                  const struct loaded (&l)[panels_of(TILE)], const int32_t *row_of, float *tile,
                  bool is_raw)
{
    constexpr int panels = panels_of(TILE), ld = tile_ld(ACROSS * panels);
    const int32_t warp = (int32_t)threadIdx.x >> 5, lane = (int32_t)threadIdx.x & 31;
    const int32_t g = lane >> 2, t = lane & 3;
    const int32_t from_row = warp / ACROSS * columns_of(TILE) * 8;
    const int32_t from_output = warp % ACROSS * panels * QNI_CUDA_PANEL;
    __syncthreads();
#pragma unroll
    for (int p = 0; p < panels; p++) {
        const float2 scale = pair_of(l[p].scale, a.p.w.scale_is_f16);
        const bool has_zero = a.p.w.shift == QNI_CUDA_SHIFT_ZERO && a.p.w.units > 0;
        const int32_t zero = has_zero ? (int8_t)l[p].zero : 0;
        const int32_t zero8 = has_zero ? (int8_t)(l[p].zero >> 8) : 0;
#pragma unroll
        for (int j = 0; j < columns_of(TILE); j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int32_t i = from_row + 8 * j + 2 * t + (c & 1);
                const int32_t o = from_output + 16 * p + g + 8 * (c >> 1);
                float v = acc[p][j][c];
                if (READS == Q8)
                    v = last_steps(a, at, v, is_raw, c < 2 ? scale.x : scale.y,
                                   c < 2 ? zero : zero8, at.output + o, row_of[i]);
                tile[i * ld + o] = v;
            }
    }
    __syncthreads();
    const struct qni_cuda_routes &routes = a.p.routes;
    const struct epilogue_tile out = {tile,
                                      ld,
                                      at.rows,
                                      min(ACROSS * panels * QNI_CUDA_PANEL, a.p.w.n - at.output),
                                      at.part * a.p.w.n + at.output,
                                      at.expert,
                                      routes.rows != NULL ? a.p.row : a.p.row + at.first,
                                      routes.rows != NULL ? routes.rows + at.first : NULL};
    epilogue_tile_run(a.p.out, out, (int32_t)threadIdx.x, threads_of(TILE));
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <int READS, int KIND, int TILE>
__global__ void __launch_bounds__(threads_of(TILE), 2)
    tile_int8(const __grid_constant__ struct tile_args a)
{
    constexpr int rows = rows_of(TILE), panels = panels_of(TILE), columns = columns_of(TILE);
    constexpr int bytes = block_bytes_of(KIND);
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ int32_t row_of[rows];

    ptx_dependents_launch();
    if (a.p.routes.tiles != NULL) /* made by the launch before */
        ptx_dependency_wait();
    const struct tile_place at = tile_place_of(a, ACROSS * panels, rows);
    if (at.rows <= 0) {
        ptx_dependency_wait();
        return;
    }
    const struct qni_cuda_weights &w = a.p.w;
    const int32_t blocks = w.units / 2, ahead = a.stages - 1;
    struct feed feed;
    struct tile_feed &f = feed.f;
    f.panel_pieces = (uint32_t)(blocks * (bytes / 16));
    f.codes = at.blob + w.codes + (size_t)at.panel * (size_t)f.panel_pieces * 16;
    f.x = (const uint8_t *)a.p.x.a;
    f.to = ptx_shared(memory);
    f.stage_bytes = stage_bytes_of(TILE, KIND);
    f.per = (blocks + BLOCKS - 1) / BLOCKS;
    f.planes = 1;
    f.panels = at.panels;
    f.row_bytes = (uint32_t)a.p.x.columns;
    begin_codes<KIND, TILE>(f);
    f.turn = 0;
    f.plane = 0;
    for (int32_t i = 0; i < ahead; i++, tile_next(f))
        copy_codes<KIND, TILE>(f, i);
    ptx_dependency_wait();
    tile_rows(a, at, row_of, rows);
    __syncthreads();
    tile_begin_rows<rows, threads_of(TILE)>(f, a.p.x, row_of, (threadIdx.x / 8 & 1) << 2);
    feed.at = cursor_at_begin(w);
    begin_facts<READS, KIND, TILE>(feed, a.p, row_of);
    f.turn = 0;
    for (int32_t i = 0; i < ahead; i++, tile_next(f)) {
        tile_copy_x<rows, 1, threads_of(TILE)>(f, a.p.x, i);
        copy_facts<TILE>(feed, w, i);
        ptx_copies_commit();
    }

    const int32_t warp = (int32_t)threadIdx.x >> 5, lane = (int32_t)threadIdx.x & 31;
    const uint32_t g = ptx_keep((uint32_t)lane >> 2), t = (uint32_t)lane & 3;
    const int32_t panel = warp % ACROSS * panels, row = warp / ACROSS * columns * 8;
    /* of block 0; block 1: ^ 64 */
    const uint32_t my_x = ptx_keep(f.to + ((uint32_t)row + g) * 128 + ((t ^ ((g & 1) << 2)) << 4));
    const uint32_t my_codes =
        ptx_keep(f.to + (uint32_t)(x_bytes_of(TILE) + panel * BLOCKS * bytes + lane * 16));
    const uint32_t my_facts =
        ptx_keep((uint32_t)(x_bytes_of(TILE) + codes_bytes_of(TILE, KIND) + row * 4) + 8 * t);
    uint32_t table[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        table[i] = ((const uint32_t *)w.table8)[i];
    struct ending e;
    e.x_zero = READS == Q8 ? a.p.x.x_zero : 0;
    e.has_offset = w.shift != QNI_CUDA_SHIFT_NONE;
    e.has_x_offset = READS == Q8B && a.p.x.offset != NULL;
    e.is_raw = READS == Q8 && epilogue_is_raw(a.p.out);
    e.times = KIND == CODES4 && e.x_zero == 0 && !e.is_raw ? 0.0625f : 1.0f;
    const bool has_sums = e.x_zero != 0 || e.has_x_offset;
    const bool has_counts = e.x_zero != 0 && e.has_offset;

    struct cursor now = cursor_at_begin(w);
    uint32_t my_panel[panels];
    struct loaded facts[panels] = {};
#pragma unroll
    for (int p = 0; p < panels; p++) {
        my_panel[p] = ptx_keep((uint32_t)(at.panel + min(panel + p, at.panels - 1)));
        /* Without any position there is still the scale that an integer bias is in units of. */
        if (blocks > 0 || (e.is_raw && w.n_groups > 0))
            load_facts(facts[p], w, at.blob, my_panel[p], g, now, has_sums && blocks > 0);
    }
    float acc[panels][columns][4] = {};
    int32_t dot[panels][columns][4] = {};

    int32_t slot = 0, next_slot = ahead;
    for (int32_t i = 0; i < f.per; i++) {
        tile_wait(a.stages);
        __syncthreads();
        if (f.turn < f.per) {
            copy_codes<KIND, TILE>(f, next_slot);
            tile_copy_x<rows, 1, threads_of(TILE)>(f, a.p.x, next_slot);
            copy_facts<TILE>(feed, w, next_slot);
            tile_next(f);
        }
        ptx_copies_commit();
        const uint32_t stage = (uint32_t)slot * f.stage_bytes;
        next_slot = slot;
        slot = slot + 1 == a.stages ? 0 : slot + 1;
#pragma unroll 1
        for (int b = 0; b < BLOCKS; b++) {
            if (i * BLOCKS + b >= blocks)
                break;
            uint4 low[panels], high[panels], x[columns];
#pragma unroll
            for (int p = 0; p < panels; p++) {
                const uint32_t from = stage + my_codes + (uint32_t)((p * BLOCKS + b) * bytes);
                low[p] = ptx_shared_load16(from);
                high[p] = KIND == CODES8 ? ptx_shared_load16(from + 512) : low[p];
            }
#pragma unroll
            for (int j = 0; j < columns; j++)
                x[j] = ptx_shared_load16(((stage + my_x) ^ (uint32_t)(64 * b)) +
                                         (uint32_t)(j * 8 * 128));
#pragma unroll
            for (int unit = 0; unit < 2; unit++) {
                unit_of<KIND, TILE>(dot, low, high, x, unit, table);
                const int32_t u = i * UNITS + 2 * b + unit;
                if (u + 1 != now.end)
                    continue;
                e.x = (const float *)(memory + stage + my_facts) + (2 * b + unit) * FACTS * rows;
                e.count = has_counts ? ((const int32_t *)(at.blob + w.counts))[now.segment] : 0;
                end_segment<READS, KIND, TILE>(acc, dot, facts, w, e);
                cursor_next(now, w);
                if (u + 1 == w.units)
                    break;
#pragma unroll
                for (int p = 0; p < panels; p++)
                    load_facts(facts[p], w, at.blob, my_panel[p], g, now, has_sums);
            }
        }
    }
    ptx_copies_wait<0>();
    leave<READS, TILE>(a, at, acc, facts, row_of, (float *)memory, e.is_raw);
}

/* ---- launchers ------------------------------------------------------------------------------- */

template <int READS, int KIND, int TILE>
int32_t launch_tile(const struct qni_cuda_product *product, const struct qni_cuda_experts *experts,
                    const struct qni_cuda_launch *launch)
{
    const struct tile_shape shape = {ACROSS * panels_of(TILE), rows_of(TILE), threads_of(TILE),
                                     stage_bytes_of(TILE, KIND), 512};
    return tile_launch((const void *)tile_int8<READS, KIND, TILE>, &shape, product, experts,
                       launch);
}

} // namespace

TILE_LAUNCHERS(q8, q4frag, Q8, CODES4)
TILE_LAUNCHERS(q8, t4frag, Q8, TABLE4)
TILE_LAUNCHERS(q8, q8frag, Q8, CODES8)
TILE_LAUNCHERS(q8b, q4frag, Q8B, CODES4)
TILE_LAUNCHERS(q8b, t4frag, Q8B, TABLE4)
TILE_LAUNCHERS(q8b, q8frag, Q8B, CODES8)
