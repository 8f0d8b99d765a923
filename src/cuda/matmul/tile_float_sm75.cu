/* SPDX-License-Identifier: Apache-2.0 */
/* Float products on tensor cores of any GPU from sm_75 on: rows of x in f16 or in planes of bf16,
 * every layout, every group size, zero points, offsets, tables.
 *
 *     y[m, n] = sum over groups g of  scale[n, g] * (sum over p in g of x[m, p] * value[n, p])
 *               + offset[n, g] * total[m, g]
 *
 * Codes become integers in 16 bits in registers, exactly, in the order of the A fragment of
 * mma.m16n8k16 (dequant.cuh); x is the B fragment, out of shared memory by ldmatrix. A group's sum
 * has accumulators of its own, which are scaled into the total when the next group begins: weights
 * are never rounded. A value of a table is up to three pieces of 16 bits, each a product more.
 *
 * A CTA has 128 outputs x 64 rows, or 64 x 32; a warp 32 outputs and all rows. The small tile has
 * several sets of warps, each with a stretch of k of its own, whose sums meet in shared memory in a
 * fixed order. Codes and x come in stages of one block of 64 positions for each set, by
 * asynchronous copies (sm_80 and newer) or plain loads (sm_75).
 *
 * Bound: 2 m n k / 989 TFLOP/s on the H100, of which mma.sync is known to reach about 62 %; with
 * few rows, n k / 2 bytes at 3.35 TB/s, and x, which every CTA reads again, n / 64 times 2 m k
 * bytes out of L2. Reached (q4, f16, groups of 128, weights rotated past L2, us): 4096 x 4096 m =
 * 32: 16.3, 256: 45.8, 1024: 124, 4096: 483 (284 TFLOP/s); 14336 x 4096: 26.1, 123, 420, 1621 (297
 * TFLOP/s). What lies between is issue: a stage of the large tile is 64 products of a warp and
 * about 200 other instructions. */
#include "../dequant.cuh"
#include "../epilogue.cuh"
#include "../mma.cuh"
#include "tile.cuh"

namespace
{

enum { CODES4 = 0, CODES8 = 1, TABLES = 2 };
enum { F16 = QNI_CUDA_READS_F16, BF16 = QNI_CUDA_READS_BF16 };
enum { TILE32 = 0, TILE64 = 1 };
enum { PANELS = 2 /* of a warp */ };

/* ---- shapes ---------------------------------------------------------------------------------- */

#define SHAPE __host__ __device__ constexpr

SHAPE int rows_of(int tile)
{
    return 32 << tile;
}
/* Products of a warp along its rows, 8 each. */
SHAPE int columns_of(int tile)
{
    return rows_of(tile) / 8;
}
/* Warps side by side: along outputs, and along k. sm_75 has no room for four slices. */
SHAPE int across_of(int tile)
{
    return tile == TILE32 ? 2 : 4;
}
SHAPE int slices_of(int tile, int sm)
{
    return tile == TILE64 ? 1 : sm < 80 ? 2 : 4;
}
SHAPE int threads_of(int tile, int sm)
{
    return 32 * across_of(tile) * slices_of(tile, sm);
}
SHAPE int panels_of(int tile)
{
    return PANELS * across_of(tile);
}
#if defined(__CUDA_ARCH__)
enum { SM = __CUDA_ARCH__ / 10 };
#else
enum { SM = 80 };
#endif

#define DEVICE static __device__ __forceinline__

DEVICE int32_t block_bytes(const struct tile_args &a)
{
    return a.p.w.layout == QNI_CUDA_Q8FRAG || a.p.w.layout == QNI_CUDA_T8FRAG ? 1024 : 512;
}

/* Codes of a stage; of tables, the layout says how many. */
template <int KIND, int TILE> DEVICE void begin_codes(struct tile_feed &f, bool bytes)
{
    constexpr int panels = panels_of(TILE), slices = slices_of(TILE, SM);
    constexpr uint32_t at = (uint32_t)(slices * rows_of(TILE) * 128);
    if (KIND == CODES8 || (KIND == TABLES && bytes))
        tile_begin_codes<panels, slices, 64>(f, at);
    else
        tile_begin_codes<panels, slices, 32>(f, at);
}
template <int KIND, int TILE>
DEVICE void copy_codes(const struct tile_feed &f, int32_t slot, bool bytes)
{
    constexpr int panels = panels_of(TILE), slices = slices_of(TILE, SM);
    constexpr int threads = threads_of(TILE, SM);
    if (KIND == CODES8 || (KIND == TABLES && bytes))
        tile_copy_codes<panels, slices, 64, threads>(f, slot);
    else
        tile_copy_codes<panels, slices, 32, threads>(f, slot);
}

/* ---- groups ---------------------------------------------------------------------------------- */

/* The group that a warp is in, and its facts for outputs g and g + 8 of each panel. Scales are
 * wanted when the group ends, zero points when it begins: the latter come a group ahead. Both stay
 * as they were loaded until then, for a conversion waits for the load. */
struct group {
    const uint8_t *scales, *zeros; /* zeros NULL: none */
    int32_t is_f16;
    int32_t index, unit, units; /* it has [unit, unit + units) */
    int32_t units_each, last;
    uint32_t pair[PANELS]; /* of group 0 */
    uint2 scale[PANELS];
    struct dequant_bias bias[PANELS];
    int32_t next; /* whose zero points these are */
    uint32_t next_zero[PANELS];
};

template <int READS, int KIND> DEVICE struct dequant_bias bias_of(uint32_t pair)
{
    const int32_t zero = (int8_t)pair, zero8 = (int8_t)(pair >> 8);
    if (READS == BF16)
        return dequant_bias_bf16(zero, zero8);
    return KIND == CODES4 ? dequant_q4_bias_f16(zero, zero8) : dequant_q8_bias_f16(zero, zero8);
}

DEVICE uint32_t load_zeros(const struct group &s, uint32_t pair)
{
    return __ldg((const uint16_t *)s.zeros + pair);
}

/* Unit u begins another group: the next one, but where planes of x go back. */
template <int READS, int KIND> DEVICE void enter_group(struct group &s, int32_t u)
{
    if (u == s.unit + s.units)
        s.index++;
    else
        s.index = min(u / s.units_each, s.last);
    s.unit = s.index * s.units_each;
    s.units = s.index == s.last ? INT32_MAX / 2 : s.units_each;
#pragma unroll
    for (int p = 0; p < PANELS; p++) {
        const uint32_t pair = s.pair[p] + (uint32_t)s.index * 8;
        if (s.is_f16)
            s.scale[p].x = __ldg((const uint32_t *)s.scales + pair);
        else
            s.scale[p] = __ldg((const uint2 *)s.scales + pair);
        if (KIND != TABLES && s.zeros != NULL) {
            s.bias[p] =
                bias_of<READS, KIND>(s.index == s.next ? s.next_zero[p] : load_zeros(s, pair));
            if (s.index < s.last)
                s.next_zero[p] = load_zeros(s, pair + 8);
        }
    }
    s.next = s.index + 1;
}

/* A panel that does not exist has the scales of the last one, and its sums go nowhere. */
template <int READS, int KIND>
DEVICE void begin_groups(struct group &s, const struct tile_args &a, const struct tile_place &at,
                         int32_t panel, int32_t g)
{
    const struct qni_cuda_weights &w = a.p.w;
    s.scales = at.blob + w.scale;
    s.zeros = w.shift == QNI_CUDA_SHIFT_ZERO ? at.blob + w.zero : NULL;
    s.is_f16 = w.scale_is_f16;
    s.index = -1;
    s.unit = -1; /* no unit is in it, nor comes behind it */
    s.units = 0;
    s.units_each = w.group_units;
    s.last = w.n_groups - 1;
    s.next = -1;
#pragma unroll
    for (int p = 0; p < PANELS; p++) {
        const int32_t own = at.panel + min(panel + p, at.panels - 1);
        s.pair[p] = (uint32_t)own * (uint32_t)w.n_groups * 8 + (uint32_t)g;
        s.scale[p] = make_uint2(0, 0);
        s.bias[p] = bias_of<READS, KIND>(0);
        s.next_zero[p] = 0;
    }
}

DEVICE float2 scale_of(uint2 bits, int32_t is_f16)
{
    return is_f16 ? __half22float2(*(const __half2 *)&bits.x)
                  : make_float2(__uint_as_float(bits.x), __uint_as_float(bits.y));
}

template <int COLUMNS>
DEVICE void flush(float (&sum)[PANELS][COLUMNS][4], float (&part)[PANELS][COLUMNS][4],
                  const struct group &s, float times)
{
#pragma unroll
    for (int p = 0; p < PANELS; p++) {
        const float2 scale = scale_of(s.scale[p], s.is_f16);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                sum[p][j][c] = fmaf(c < 2 ? scale.x : scale.y, part[p][j][c] * times, sum[p][j][c]);
                part[p][j][c] = 0.0f;
            }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* The words of a lane for a block: of 4-bit codes one a step, of bytes two. */
struct words {
    uint4 low, high;
};

DEVICE uint32_t word_of(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* The A fragment of one step of panel p. */
template <int READS, int KIND>
DEVICE void fragment(uint32_t (&a)[4], const struct words &v, int step, const struct group &s,
                     int p)
{
    const uint4 &half = step < 2 ? v.low : v.high;
    const uint32_t w4 = word_of(v.low, step);
    const uint32_t w = word_of(half, 2 * (step & 1)), w8 = word_of(half, 2 * (step & 1) + 1);
    if (READS == F16) {
        if (KIND == CODES4)
            dequant_q4_f16(a, w4, s.bias[p]);
        else
            dequant_q8_f16(a, w, w8, s.bias[p]);
    } else {
        if (KIND == CODES4)
            dequant_q4_bf16(a, w4);
        else
            dequant_q8_bf16(a, w, w8);
        if (s.zeros != NULL)
            dequant_zero_bf16(a, s.bias[p]);
    }
}

/* Those of one piece of a table. */
DEVICE void fragment_of_table(uint32_t (&a)[PANELS][4], const struct words (&v)[PANELS], int step,
                              const struct dequant_table *table, int piece, bool bytes)
{
    if (bytes) {
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            const uint4 &half = step < 2 ? v[p].low : v[p].high;
            dequant_t8(a[p], word_of(half, 2 * (step & 1)), word_of(half, 2 * (step & 1) + 1),
                       table->piece[piece]);
        }
        return;
    }
    uint32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        low[i] = table->bytes4[piece][0][i];
        high[i] = table->bytes4[piece][1][i];
    }
#pragma unroll
    for (int p = 0; p < PANELS; p++)
        dequant_t4(a[p], dequant_t4_order(word_of(v[p].low, step)), low, high);
}

/* x of one step, two registers for 8 rows; x: the lane's shared address for step 0. */
template <int COLUMNS> DEVICE void load_x(uint32_t (&b)[COLUMNS / 2][4], uint32_t x, int step)
{
#pragma unroll
    for (int j = 0; j < COLUMNS / 2; j++)
        ptx_ldmatrix4(b[j], (x ^ (uint32_t)(step << 5)) + (uint32_t)j * 16 * 128);
}

template <int READS, int COLUMNS>
DEVICE void multiply(float (&part)[PANELS][COLUMNS][4], const uint32_t (&a)[PANELS][4],
                     const uint32_t (&b)[COLUMNS / 2][4])
{
#pragma unroll
    for (int p = 0; p < PANELS; p++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            const uint32_t b0 = b[j / 2][2 * (j & 1)], b1 = b[j / 2][2 * (j & 1) + 1];
            if (READS == BF16)
                mma_bf16(part[p][j], a[p], b0, b1);
            else
                mma_f16(part[p][j], a[p], b0, b1);
        }
}

/* A table that f16 cannot hold is one of bf16, and x becomes two planes of that. */
template <int COLUMNS>
DEVICE void multiply_wide(float (&part)[PANELS][COLUMNS][4], const uint32_t (&a)[PANELS][4],
                          const uint32_t (&b)[COLUMNS / 2][4])
{
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        uint32_t upper[2], lower[2];
        dequant_split_f16x2(b[j / 2][2 * (j & 1)], &upper[0], &lower[0]);
        dequant_split_f16x2(b[j / 2][2 * (j & 1) + 1], &upper[1], &lower[1]);
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            mma_bf16(part[p][j], a[p], upper[0], upper[1]);
            mma_bf16(part[p][j], a[p], lower[0], lower[1]);
        }
    }
}

/* COUNT steps of 16 positions. What the next step multiplies is asked for before this one's
 * products. */
template <int READS, int KIND, int COLUMNS, int COUNT>
DEVICE void steps(float (&part)[PANELS][COLUMNS][4], const struct words (&v)[PANELS], int first,
                  const struct group &s, uint32_t x)
{
    uint32_t a[2][PANELS][4], b[2][COLUMNS / 2][4];
#pragma unroll
    for (int i = 0; i <= COUNT; i++) {
        if (i < COUNT) {
            load_x<COLUMNS>(b[i & 1], x, first + i);
#pragma unroll
            for (int p = 0; p < PANELS; p++)
                fragment<READS, KIND>(a[i & 1][p], v[p], first + i, s, p);
        }
        if (i > 0)
            multiply<READS, COLUMNS>(part, a[(i - 1) & 1], b[(i - 1) & 1]);
    }
}

/* The same for tables: every piece is a product. */
template <int READS, int COLUMNS, int COUNT>
DEVICE void steps_of_table(float (&part)[PANELS][COLUMNS][4], const struct words (&v)[PANELS],
                           int first, uint32_t x, const struct dequant_table *table, bool bytes)
{
    const int pieces = table->pieces;
    const bool wide = READS == F16 && !table->is_f16;
#pragma unroll
    for (int i = 0; i < COUNT; i++) {
        uint32_t b[COLUMNS / 2][4];
        load_x<COLUMNS>(b, x, first + i);
#pragma unroll 1
        for (int piece = 0; piece < pieces; piece++) {
            uint32_t a[PANELS][4];
            fragment_of_table(a, v, first + i, table, piece, bytes);
            if (READS == F16 && wide)
                multiply_wide<COLUMNS>(part, a, b);
            else
                multiply<READS, COLUMNS>(part, a, b);
        }
    }
}

/* ---- the end --------------------------------------------------------------------------------- */

/* sum += offset * total, over the groups of this slice. */
template <int COLUMNS, int SLICES>
DEVICE void add_offsets(float (&sum)[PANELS][COLUMNS][4], const struct tile_args &a,
                        const struct tile_place &at, const struct group &s, const int32_t *row_of,
                        int32_t slice)
{
    const uint8_t *const offsets = at.blob + a.p.w.offset;
    const int32_t t = (int32_t)threadIdx.x & 3, ld = a.p.x.ld_segment;
#pragma unroll 1
    for (int32_t g = slice; g <= s.last; g += SLICES) {
        float2 offset[PANELS];
#pragma unroll
        for (int p = 0; p < PANELS; p++)
            offset[p] = dequant_scale_pair(offsets, s.is_f16, s.pair[p] + (size_t)g * 8);
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const int32_t row = row_of[8 * j + 2 * t + i];
                const float total =
                    row < 0 ? 0.0f : a.p.x.total[(size_t)row * (size_t)ld + (size_t)g];
#pragma unroll
                for (int p = 0; p < PANELS; p++) {
                    sum[p][j][i] = fmaf(offset[p].x, total, sum[p][j][i]);
                    sum[p][j][2 + i] = fmaf(offset[p].y, total, sum[p][j][2 + i]);
                }
            }
    }
}

/* A warp's sums to [row][output] in shared memory; later slices add theirs. */
template <int COLUMNS>
DEVICE void place_sums(float *to, int32_t ld, const float (&sum)[PANELS][COLUMNS][4], bool first)
{
    const int32_t lane = (int32_t)threadIdx.x & 31, g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int p = 0; p < PANELS; p++)
#pragma unroll
        for (int j = 0; j < COLUMNS; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                float *const at = to + (8 * j + 2 * t + (c & 1)) * ld + 16 * p + g + 8 * (c >> 1);
                *at = first ? sum[p][j][c] : *at + sum[p][j][c];
            }
}

template <int TILE>
DEVICE void leave(const struct tile_args &a, const struct tile_place &at,
                  const float (&sum)[PANELS][columns_of(TILE)][4], float *tile, int32_t across,
                  int32_t slice)
{
    constexpr int slices = slices_of(TILE, SM), ld = tile_ld(panels_of(TILE));
    for (int32_t q = 0; q < slices; q++) {
        __syncthreads();
        if (slice == q)
            place_sums(tile + across * PANELS * QNI_CUDA_PANEL, ld, sum, q == 0);
    }
    __syncthreads();
    const struct qni_cuda_routes &routes = a.p.routes;
    const struct epilogue_tile t = {tile,
                                    ld,
                                    at.rows,
                                    min(panels_of(TILE) * QNI_CUDA_PANEL, a.p.w.n - at.output),
                                    at.part * a.p.w.n + at.output,
                                    at.expert,
                                    routes.rows != NULL ? a.p.row : a.p.row + at.first,
                                    routes.rows != NULL ? routes.rows + at.first : NULL};
    epilogue_tile_run(a.p.out, t, (int32_t)threadIdx.x, threads_of(TILE, SM));
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <int READS, int KIND, int TILE>
__global__ void __launch_bounds__(threads_of(TILE, SM), 2)
    tile_float(const __grid_constant__ struct tile_args a)
{
    constexpr int rows = rows_of(TILE), columns = columns_of(TILE), slices = slices_of(TILE, SM);
    constexpr int across = across_of(TILE);
    extern __shared__ __align__(128) uint8_t memory[];
    __shared__ int32_t row_of[rows];
    __shared__ struct dequant_table tables[KIND == TABLES ? 1 : 1];
    const struct dequant_table *const table = tables;

    ptx_dependents_launch();
    if (a.p.routes.tiles != NULL) /* made by the launch before */
        ptx_dependency_wait();
    const struct tile_place at = tile_place_of(a, panels_of(TILE), rows);
    if (at.rows <= 0) {
        ptx_dependency_wait();
        return;
    }
    const struct qni_cuda_weights &w = a.p.w;
    if (KIND == TABLES)
        dequant_table_make(tables, (const float *)(at.blob + w.table),
                           w.layout == QNI_CUDA_T8FRAG ? 256 : 16, READS == F16);
    const float times = KIND == TABLES ? table->times : 1.0f;

    const bool bytes = KIND == CODES4 ? false : KIND == CODES8 ? true : block_bytes(a) == 1024;
    const int32_t code_bytes = bytes ? 1024 : 512, blocks = w.units / 2;
    struct tile_feed f;
    f.panel_pieces = (uint32_t)(blocks * (code_bytes / 16));
    f.codes = at.blob + w.codes + (size_t)at.panel * (size_t)f.panel_pieces * 16;
    f.x = (const uint8_t *)a.p.x.a;
    f.to = ptx_shared(memory);
    f.stage_bytes = (uint32_t)(slices * (rows * 128 + panels_of(TILE) * code_bytes));
    f.per = (blocks + slices - 1) / slices;
    f.planes = READS == BF16 ? a.p.x.planes : 1;
    f.panels = at.panels;
    f.row_bytes = (uint32_t)a.p.x.columns * 2;
    const int32_t ahead = a.stages - 1, turns = f.per * f.planes;
    begin_codes<KIND, TILE>(f, bytes);
    f.turn = 0;
    f.plane = 0;
    for (int32_t i = 0; i < ahead; i++, tile_next(f))
        copy_codes<KIND, TILE>(f, i, bytes);
    ptx_dependency_wait();
    tile_rows(a, at, row_of, rows);
    __syncthreads();
    tile_begin_rows<rows, threads_of(TILE, SM)>(f, a.p.x, row_of, threadIdx.x / 8 % 8);
    f.turn = 0;
    f.plane = 0;
    for (int32_t i = 0; i < ahead; i++, tile_next(f)) {
        tile_copy_x<rows, slices, threads_of(TILE, SM)>(f, a.p.x, i);
        ptx_copies_commit();
    }

    const int32_t warp = (int32_t)threadIdx.x >> 5, lane = (int32_t)threadIdx.x & 31;
    const int32_t my_across = warp % across, slice = warp / across, panel = my_across * PANELS;
    const int32_t my_row = (lane & 7) + (lane >> 4) * 8;
    const uint32_t my_x = ptx_keep(
        f.to + (uint32_t)((slice * rows + my_row) * 128 + (((lane >> 3 & 1) ^ (my_row & 7)) << 4)));
    const uint32_t my_codes =
        ptx_keep(f.to + (uint32_t)(slices * rows * 128 +
                                   (slice * panels_of(TILE) + panel) * code_bytes + lane * 16));
    struct group s;
    begin_groups<READS, KIND>(s, a, at, panel, lane >> 2);
    float sum[PANELS][columns][4] = {}, part[PANELS][columns][4] = {};

    int32_t slot = 0, next_slot = ahead, block = slice * f.per, plane = 0;
    for (int32_t i = 0; i < turns; i++) {
        tile_wait(a.stages);
        __syncthreads();
        const uint32_t stage = (uint32_t)slot * f.stage_bytes;
        struct words v[PANELS];
#pragma unroll
        for (int p = 0; p < PANELS; p++) {
            v[p].low = ptx_shared_load16(stage + my_codes + (uint32_t)(p * code_bytes));
            v[p].high = v[p].low;
            if (KIND == CODES8 || (KIND == TABLES && bytes))
                v[p].high = ptx_shared_load16(stage + my_codes + (uint32_t)(p * code_bytes) + 512);
        }
        if (f.turn < f.per) {
            copy_codes<KIND, TILE>(f, next_slot, bytes);
            tile_copy_x<rows, slices, threads_of(TILE, SM)>(f, a.p.x, next_slot);
            tile_next(f);
        }
        ptx_copies_commit();
        next_slot = slot;
        slot = slot + 1 == a.stages ? 0 : slot + 1;
        if (block < blocks) {
#pragma unroll
            for (int unit = 0; unit < 2; unit++) {
                const int32_t u = 2 * block + unit;
                if ((uint32_t)(u - s.unit) >= (uint32_t)s.units) {
                    flush(sum, part, s, times);
                    enter_group<READS, KIND>(s, u);
                }
                if (KIND == TABLES)
                    steps_of_table<READS, columns, 2>(part, v, 2 * unit, stage + my_x, table,
                                                      bytes);
                else
                    steps<READS, KIND, columns, 2>(part, v, 2 * unit, s, stage + my_x);
            }
        }
        plane = plane + 1 == f.planes ? 0 : plane + 1;
        block += plane == 0 ? 1 : 0;
    }
    flush(sum, part, s, times);
    ptx_copies_wait<0>();
    if (w.shift == QNI_CUDA_SHIFT_OFFSET)
        add_offsets<columns, slices>(sum, a, at, s, row_of, slice);
    leave<TILE>(a, at, sum, (float *)memory, my_across, slice);
}

/* ---- launchers ------------------------------------------------------------------------------- */

template <int READS, int KIND, int TILE>
int32_t launch_tile(const struct qni_cuda_product *product, const struct qni_cuda_experts *experts,
                    const struct qni_cuda_launch *launch)
{
    const int32_t layout = product->w.layout;
    const int32_t bytes = layout == QNI_CUDA_Q8FRAG || layout == QNI_CUDA_T8FRAG ? 1024 : 512;
    const int32_t rows = rows_of(TILE), slices = slices_of(TILE, launch->sm);
    const struct tile_shape shape = {panels_of(TILE), rows, threads_of(TILE, launch->sm),
                                     slices * (rows * 128 + panels_of(TILE) * bytes), 2560};
    return tile_launch((const void *)tile_float<READS, KIND, TILE>, &shape, product, experts,
                       launch);
}

} // namespace

TILE_LAUNCHERS(f16, q4frag, F16, CODES4)
TILE_LAUNCHERS(f16, q8frag, F16, CODES8)
TILE_LAUNCHERS(f16, t4frag, F16, TABLES)
TILE_LAUNCHERS(f16, t8frag, F16, TABLES)
TILE_LAUNCHERS(bf16, q4frag, BF16, CODES4)
TILE_LAUNCHERS(bf16, q8frag, BF16, CODES8)
TILE_LAUNCHERS(bf16, t4frag, BF16, TABLES)
TILE_LAUNCHERS(bf16, t8frag, BF16, TABLES)
