/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of x to what the matmul kernels read, where x comes in stretches of 16 neighbours: matrices,
 * and images with their channels innermost.
 *
 *     a piece is 16 packed positions, one step of a block: a lane has one (or a few) of them
 *     flat kernels     a lane a piece; what pieces share (a segment, a group) lies in one warp
 *     row kernel       a team of threads has a row, or a long segment, in its registers
 *
 * x is read once, 32 bytes a lane at a time, and codes are written once, 16 bytes a lane: the four
 * lanes of a block trade their words. So the time is that of the bytes, (size of x) + (size of the
 * rows), at the bandwidth of the memory; a row too long for the registers is read twice, the second
 * time mostly from the caches. Exact: rows.cuh. */
#include "pieces.cuh"

enum { THREADS = 256, MAX_WIDTH = 32 };

/* ---- where pieces are ------------------------------------------------------------------------ */

/* Where piece q is. PLAIN: a matrix with its positions in order and no prescale, the way of most
 * rows; knowing it while compiling saves a third of the instructions. */
template <int PLAIN>
ROWS_DEVICE struct rows_place place_of(const struct rows_job &j, const struct rows_row &row,
                                       int32_t q)
{
    if (!PLAIN)
        return rows_place_of(j, row, 16 * q);
    const struct rows_place p = {row.base + 16 * q, 16 * q, max((int32_t)j.s.k - 16 * q, 0),
                                 row.is_valid};
    return p;
}
template <int PLAIN> ROWS_DEVICE struct rows_row row_of(const struct rows_job &j, int64_t row)
{
    if (!PLAIN)
        return rows_row_of(j, row);
    struct rows_row r = {0, 0, 0, true};
    row = rows_number(j, row);
    if (j.s.index != NULL) {
        const int32_t from = __ldg(j.s.index + row);
        r.is_valid = from >= 0 && from < j.s.x_rows;
        row = r.is_valid ? from : 0;
    }
    r.base = row * j.s.ldx;
    return r;
}

/* Piece q of a row: how many of its positions are real. Zeros (of int8-static: the code of zero)
 * where it lies outside. */
template <int DTYPE, int PLAIN>
ROWS_DEVICE int32_t read_piece(const struct rows_job &j, const struct rows_row &row, int32_t q,
                               uint32_t (&raw)[WORDS<DTYPE>], int32_t *column)
{
    const struct rows_place p = place_of<PLAIN>(j, row, q);
    const int32_t n = min(p.n, 16);
    *column = p.column;
    uint32_t hole = 0;
    if (DTYPE == BYTES && !PLAIN && j.s.is_image && n > 0)
        hole = (uint32_t)(j.s.x_zero & 0xff) * 0x01010101u;
#pragma unroll
    for (int i = 0; i < WORDS<DTYPE>; i++)
        raw[i] = hole;
    if (n > 0 && p.is_inside) {
        if (PLAIN && j.s.index == NULL)
            load_piece<DTYPE, 1>(j.s.x, p.at, n, raw);
        else
            load_piece<DTYPE, 0>(j.s.x, p.at, n, raw);
        if (DTYPE == BYTES && j.s.dtype == QN_U8)
#pragma unroll
            for (int i = 0; i < WORDS<DTYPE>; i++)
                raw[i] ^= 0x80808080u;
    }
    return n;
}

/* ---- flat kernels ---------------------------------------------------------------------------- */

struct flat {
    int64_t row;
    int32_t q;
    bool is_active;
};

/* j.team 32: a row is cut in chunks of a warp each; less: so many lanes have a row. */
ROWS_DEVICE struct flat flat_of(const struct rows_job &j)
{
    const int64_t warp = (int64_t)blockIdx.x * (THREADS / 32) + (threadIdx.x >> 5);
    const int32_t lane = threadIdx.x & 31;
    struct flat f;
    if (j.team == 32) {
        f.row =
            warp <= INT32_MAX ? (int64_t)rows_divide((uint32_t)warp, j.chunks) : warp / j.chunks.by;
        f.q = (int32_t)(warp - f.row * j.chunks.by) * 32 + lane;
    } else {
        f.row = warp * (32 / j.team) + lane / j.team;
        f.q = lane & (j.team - 1);
    }
    f.is_active = f.row < j.n_rows && f.q < 2 * j.s.units && rows_is_wanted(j, f.row);
    return f;
}

template <int DTYPE, int SYMMETRIC, int PLAIN>
static __global__ void __launch_bounds__(THREADS)
    block_kernel(const __grid_constant__ struct rows_job j)
{
    rows_begin();
    const struct flat f = flat_of(j);
    struct rows_row row = {0, 0, 0, false};
    uint32_t raw[WORDS<DTYPE>] = {0};
    int32_t column = 0, n = 0;
    if (f.is_active) {
        row = row_of<PLAIN>(j, f.row);
        n = read_piece<DTYPE, PLAIN>(j, row, f.q, raw, &column);
    }
    struct rows_extremes seen = rows_no_extremes(SYMMETRIC);
    see_piece<DTYPE, SYMMETRIC, PLAIN>(j, raw, n, column, &seen);
    const struct rows_range range = rows_warp_range(rows_range_of(seen), j.width);
    const struct rows_scaling s = rows_scaling_of(range, SYMMETRIC);
    uint32_t codes[4];
    encode_piece<DTYPE, SYMMETRIC, PLAIN>(j, raw, n, column, s, codes);
    const int32_t sum = rows_warp_sum(sum_piece(codes), j.width);
    store_codes(j, f.row, f.q, f.is_active, n, column, codes);
    const int32_t segment = f.q / j.width;
    if (f.is_active && (f.q & (j.width - 1)) == 0 && segment < j.s.n_segments)
        rows_store_facts(j, s, f.row, segment, sum,
                         min(place_of<PLAIN>(j, row, f.q).n, 16 * j.width));
}

/* Codes that are given: their order and their sums. */
template <int PLAIN>
static __global__ void __launch_bounds__(THREADS)
    given_kernel(const __grid_constant__ struct rows_job j)
{
    rows_begin();
    const struct flat f = flat_of(j);
    uint32_t codes[4] = {0, 0, 0, 0};
    int32_t column = 0, n = 0;
    if (f.is_active)
        n = read_piece<BYTES, PLAIN>(j, row_of<PLAIN>(j, f.row), f.q, codes, &column);
    cut_codes(codes, n);
    const int32_t sum = rows_warp_sum(sum_piece(codes), j.width);
    store_codes(j, f.row, f.q, f.is_active, n, column, codes);
    const int32_t segment = f.q / j.width;
    if (f.is_active && (f.q & (j.width - 1)) == 0 && segment < j.s.n_segments)
        j.sum[f.row * j.ld_sum + segment] = sum;
}

template <int DTYPE, int PLAIN>
static __global__ void __launch_bounds__(THREADS)
    convert_kernel(const __grid_constant__ struct rows_job j)
{
    rows_begin();
    const struct flat f = flat_of(j);
    uint32_t raw[WORDS<DTYPE>] = {0};
    int32_t column = 0, n = 0;
    if (f.is_active)
        n = read_piece<DTYPE, PLAIN>(j, row_of<PLAIN>(j, f.row), f.q, raw, &column);
    float v[16];
    widen_piece<DTYPE, PLAIN>(j, raw, n, column, v);
    if (j.total != NULL) {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; i++)
            total = __fadd_rn(total, v[i]);
        total = rows_warp_total(total, j.width);
        const int32_t group = f.q / j.width;
        if (f.is_active && (f.q & (j.width - 1)) == 0 && group < j.s.n_groups)
            j.total[f.row * j.ld_sum + group] = total;
    }
    if (f.is_active)
        store_floats(j, j.a + f.row * j.s.to.lda + 32 * (int64_t)f.q, v);
}

/* ---- the row kernel -------------------------------------------------------------------------- */

/* A piece of a row: its number, how many of its positions are real, and the column of the first. */
struct piece {
    int32_t q, n, column;
    bool is_active;
};

template <int DTYPE, int SYMMETRIC, int PLAIN>
ROWS_DEVICE int32_t finish_piece(const struct rows_job &j, int64_t row, const struct piece &p,
                                 const uint32_t (&raw)[WORDS<DTYPE>], const struct rows_scaling &s)
{
    uint32_t codes[4];
    if constexpr (DTYPE == BYTES) {
#pragma unroll
        for (int w = 0; w < 4; w++)
            codes[w] = raw[w];
        cut_codes(codes, p.n);
    } else {
        encode_piece<DTYPE, SYMMETRIC, PLAIN>(j, raw, p.n, p.column, s, codes);
    }
    store_codes(j, row, p.q, p.is_active, p.n, p.column, codes);
    const int32_t sum = sum_piece(codes);
    if (j.spans == 1 && j.s.n_segments > 1)
        add_to_segment(j, row, p.q, p.is_active, sum);
    return sum;
}

/* PIECES of a thread stay in its registers; 0: there may be any number, read again for the codes.
 */
template <int DTYPE, int PIECES, int SYMMETRIC, int PLAIN>
static __global__ void __launch_bounds__(512) row_kernel(const __grid_constant__ struct rows_job j)
{
    __shared__ struct rows_range ranges[32];
    __shared__ int32_t sums[32];
    rows_begin();
    constexpr int KEPT = PIECES == 0 ? 1 : PIECES;
    const int32_t thread = (int32_t)threadIdx.x, teams = (int32_t)blockDim.x / j.team;
    const int32_t lane = teams == 1 ? thread : thread & (j.team - 1); /* then a power of two */
    const int64_t at = (int64_t)blockIdx.x * teams + (teams == 1 ? 0 : thread / j.team);
    const int64_t row = j.spans == 1 ? at : at / j.spans;
    const int32_t span = (int32_t)(at - row * j.spans);
    const bool is_active = row < j.n_rows && rows_is_wanted(j, row);
    struct rows_row from = {0, 0, 0, false};
    int32_t first = 0, units = 0;
    if (teams == 1 && !is_active)
        return;
    if (is_active) {
        from = row_of<PLAIN>(j, row);
        rows_span(j, span, &first, &units);
    }
    const int32_t begin = 2 * first + lane, end = 2 * (first + units);
    if (is_active && j.spans == 1 && j.s.n_segments > 1 && j.width == 0)
        for (int32_t i = lane; i < j.s.n_segments; i += j.team)
            j.sum[row * j.ld_sum + i] = 0;
    if (j.team <= 32)
        __syncwarp(); /* wider teams meet when they know the range */
    else if (DTYPE == BYTES)
        __syncthreads();
    uint32_t raw[KEPT][WORDS<DTYPE>];
    struct piece p[KEPT];
#pragma unroll
    for (int i = 0; i < KEPT; i++) {
        p[i].q = begin + i * j.team;
        p[i].is_active = p[i].q < end;
        p[i].n = p[i].column = 0;
#pragma unroll
        for (int w = 0; w < WORDS<DTYPE>; w++)
            raw[i][w] = 0;
        if (p[i].is_active && PIECES != 0)
            p[i].n = read_piece<DTYPE, PLAIN>(j, from, p[i].q, raw[i], &p[i].column);
    }
    struct rows_scaling s = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    if constexpr (DTYPE != BYTES) {
        struct rows_extremes seen = rows_no_extremes(SYMMETRIC);
        if (PIECES != 0) {
#pragma unroll
            for (int i = 0; i < KEPT; i++)
                see_piece<DTYPE, SYMMETRIC, PLAIN>(j, raw[i], p[i].n, p[i].column, &seen);
        } else {
            for (int32_t q = begin; q < end; q += j.team) {
                p[0].n = read_piece<DTYPE, PLAIN>(j, from, q, raw[0], &p[0].column);
                see_piece<DTYPE, SYMMETRIC, PLAIN>(j, raw[0], p[0].n, p[0].column, &seen);
            }
        }
        s = rows_scaling_of(team_range(j, rows_range_of(seen), ranges), SYMMETRIC);
    }
    int32_t sum = 0;
    if (PIECES != 0) {
#pragma unroll
        for (int i = 0; i < KEPT; i++)
            sum += finish_piece<DTYPE, SYMMETRIC, PLAIN>(j, row, p[i], raw[i], s);
    } else {
        for (int32_t q = begin; q - lane < end; q += j.team) { /* whole warps */
            p[0].q = q;
            p[0].is_active = q < end;
            p[0].n = p[0].column = 0;
            if (q < end)
                p[0].n = read_piece<DTYPE, PLAIN>(j, from, q, raw[0], &p[0].column);
            sum += finish_piece<DTYPE, SYMMETRIC, PLAIN>(j, row, p[0], raw[0], s);
        }
    }
    const bool is_whole = j.spans > 1 || j.s.n_segments == 1 || j.s.reads == QNI_CUDA_READS_Q8B;
    if (is_whole)
        sum = team_sum(j, sum, sums);
    if (!is_active || lane != 0)
        return;
    if (j.s.reads == QNI_CUDA_READS_Q8B)
        rows_store_facts(j, s, row, span, sum,
                         min(place_of<PLAIN>(j, from, 2 * first).n, 32 * units));
    else if (is_whole)
        j.sum[row * j.ld_sum] = sum;
    if (j.row_scale != NULL && j.s.reads == QNI_CUDA_READS_Q8)
        j.row_scale[row] = s.scale;
}

/* ---- which kernel ---------------------------------------------------------------------------- */

static bool is_multiple(int64_t elements, int64_t bytes)
{
    return elements * bytes % 16 == 0;
}

/* Are the 16 positions of a piece 16 aligned neighbours of x (as far as they are real)? */
static bool is_vector(const struct qni_cuda_source *s)
{
    const int64_t bytes = s->dtype == QN_F32 ? 4 : rows_is_given(s) ? 1 : 2;
    if (s->perm != NULL || (uintptr_t)s->x % 16 != 0 || (uintptr_t)s->prescale % 16 != 0)
        return false;
    if (s->by_channel && (s->group_channels % 16 != 0 || s->ci % 16 != 0))
        return false;
    if (!s->is_image)
        return is_multiple(s->ldx, bytes) &&
               (s->n_groups <= 1 || s->by_channel || is_multiple(s->group_len, bytes));
    for (int32_t i = 0; i < 4; i++)
        if (i != 1 && !is_multiple(s->xs[i], bytes))
            return false;
    return s->xs[1] == 1 && s->ci % 16 == 0 &&
           (s->n_groups <= 1 || s->by_channel || s->group_len % 16 == 0);
}

/* Lanes of a stretch of so many units, if such stretches follow each other evenly along the row and
 * fit into a warp; else 0. */
static int32_t width_of(const struct qni_cuda_source *s, int64_t units, int64_t stretches)
{
    if (stretches == 1) {
        int32_t width = 4;
        while (width < 2 * s->units)
            width *= 2;
        return width <= MAX_WIDTH ? width : 0;
    }
    const bool is_even = s->n_groups <= 1 || s->group_units % units == 0;
    return is_even && units <= MAX_WIDTH / 2 && (units & (units - 1)) == 0 ? (int32_t)(2 * units)
                                                                           : 0;
}

static int32_t run_flat(const void *kernel, struct rows_job *j,
                        const struct qni_cuda_launch *launch)
{
    const int64_t pieces = 2 * (int64_t)j->s.units, chunks = (pieces + 31) / 32;
    j->team = 4;
    while (j->team < pieces && j->team < 32)
        j->team *= 2;
    j->chunks = rows_divisor_of(chunks);
    const int64_t warps = j->team == 32 ? j->n_rows * chunks : (j->n_rows * j->team + 31) / 32;
    return rows_launch(kernel, (warps + THREADS / 32 - 1) / (THREADS / 32), dim3(THREADS), j,
                       launch);
}

#define ROW_KERNELS(dtype, symmetric)                                                              \
    {                                                                                              \
        (const void *)row_kernel<dtype, 1, symmetric, 0>,                                          \
            (const void *)row_kernel<dtype, 4, symmetric, 0>,                                      \
            (const void *)row_kernel<dtype, 0, symmetric, 0>,                                      \
            (const void *)row_kernel<dtype, 1, symmetric, 1>,                                      \
            (const void *)row_kernel<dtype, 4, symmetric, 1>,                                      \
            (const void *)row_kernel<dtype, 0, symmetric, 0>                                       \
    }

/* How many pieces a thread has (1, 4, or any number). A team has 512 threads at most, so 32768
 * positions stay in registers. Measured on the H100, us, 16 Mi elements (1 / 4 pieces): f16 rows of
 * 512 20.8 / 40.7, of 4096 22.5 / 20.3, of 8192 24.0 / 20.3; f32 rows of 4096 30.4 / 32.3; bytes
 * 13.2 / 15.3. A few rows are done soonest by many threads. */
static int32_t pieces_of_thread(const struct rows_job *j, int64_t pieces,
                                const struct qni_cuda_launch *launch)
{
    const bool is_few = j->n_rows * j->spans <= 2 * (int64_t)launch->multiprocessors;
    const bool is_half = j->s.dtype == QN_F16 || j->s.dtype == QN_BF16;
    if (pieces <= 512 && (is_few || !is_half || pieces < 128))
        return 1;
    return pieces <= 2048 ? 4 : 0;
}

static int32_t run_rows(struct rows_job *j, bool is_simple, const struct qni_cuda_launch *launch)
{
    static const void *const kernels[2][4][6] = {{ROW_KERNELS(BYTES, 1), ROW_KERNELS(QN_F32, 0),
                                                  ROW_KERNELS(QN_F16, 0), ROW_KERNELS(QN_BF16, 0)},
                                                 {ROW_KERNELS(BYTES, 1), ROW_KERNELS(QN_F32, 1),
                                                  ROW_KERNELS(QN_F16, 1), ROW_KERNELS(QN_BF16, 1)}};
    const int64_t pieces = 2 * (int64_t)(j->spans == 1 ? j->s.units : j->span_units);
    const int32_t own = pieces_of_thread(j, pieces, launch);
    const int32_t which = own == 1 ? 0 : own == 4 ? 1 : 2;
    const int64_t threads = own == 0 ? 512 : (pieces + own - 1) / own;
    j->team = 4;
    while ((j->team < threads || j->team < j->width) && j->team < 32)
        j->team *= 2; /* segments of a width lie in one go of the team */
    if (threads > 32)
        j->team = (int32_t)(threads + 31) / 32 * 32;
    const int32_t teams = j->team > 32 ? 1 : 128 / j->team;
    const int64_t grid = (j->n_rows * j->spans + teams - 1) / teams;
    const bool symmetric = j->s.reads == QNI_CUDA_READS_Q8 || j->s.symmetric;
    const void *kernel =
        kernels[symmetric][rows_is_given(&j->s) ? 0 : j->s.dtype][which + 3 * is_simple];
    return rows_launch(kernel, grid, dim3((unsigned)(teams * j->team)), j, launch);
}

#define BLOCK_KERNELS(dtype, symmetric)                                                            \
    {                                                                                              \
        (const void *)block_kernel<dtype, symmetric, 0>,                                           \
            (const void *)block_kernel<dtype, symmetric, 1>                                        \
    }

static int32_t run_blocks(struct rows_job *j, bool is_simple, const struct qni_cuda_launch *launch)
{
    static const void *const kernels[2][3][2] = {
        {BLOCK_KERNELS(QN_F32, 0), BLOCK_KERNELS(QN_F16, 0), BLOCK_KERNELS(QN_BF16, 0)},
        {BLOCK_KERNELS(QN_F32, 1), BLOCK_KERNELS(QN_F16, 1), BLOCK_KERNELS(QN_BF16, 1)}};
    return run_flat(kernels[j->s.symmetric != 0][j->s.dtype - QN_F32][is_simple], j, launch);
}

static int32_t run_floats(struct rows_job *j, bool is_simple, const struct qni_cuda_launch *launch)
{
    static const void *const kernels[3][2] = {
        {(const void *)convert_kernel<QN_F32, 0>, (const void *)convert_kernel<QN_F32, 1>},
        {(const void *)convert_kernel<QN_F16, 0>, (const void *)convert_kernel<QN_F16, 1>},
        {(const void *)convert_kernel<QN_BF16, 0>, (const void *)convert_kernel<QN_BF16, 1>}};
    return run_flat(kernels[j->s.dtype - QN_F32][is_simple], j, launch);
}

int32_t qni_cuda_rows_run(struct rows_job *j, const struct qni_cuda_launch *launch)
{
    const struct qni_cuda_source *s = &j->s;
    const bool is_float = s->reads == QNI_CUDA_READS_F16 || s->reads == QNI_CUDA_READS_BF16;
    if (j->n_rows == 0)
        return 0;
    j->spans = j->spans_per_group = 1;
    j->width = is_float ? width_of(s, s->group_units, s->n_groups)
                        : width_of(s, s->segment_units, s->n_segments);
    if (!is_vector(s) || s->units == 0)
        return qni_cuda_rows_staged(j, launch);
    const bool is_simple = j->is_plain && s->prescale == NULL;
    if (is_float)
        return j->total == NULL || j->width != 0 ? run_floats(j, is_simple, launch)
                                                 : qni_cuda_rows_general(j, launch);
    if (rows_is_given(s) && j->width != 0)
        return run_flat(is_simple ? (const void *)given_kernel<1> : (const void *)given_kernel<0>,
                        j, launch);
    if (rows_is_given(s) || s->reads == QNI_CUDA_READS_Q8)
        return run_rows(j, is_simple, launch);
    if (j->width != 0)
        return run_blocks(j, is_simple, launch);
    const bool is_even = s->n_groups <= 1 || s->group_units % s->segment_units == 0;
    if (s->n_segments > 1 && (!is_even || s->segment_units % 2 != 0))
        return qni_cuda_rows_general(j, launch);
    if (s->n_segments > 1) {
        j->spans = s->n_segments;
        j->span_units = s->segment_units;
        j->spans_per_group = j->segments_per_group;
    }
    return run_rows(j, is_simple, launch);
}

struct rows_job qni_cuda_rows_job(const struct qni_cuda_source *source)
{
    struct rows_job j = {};
    j.s = *source;
    struct qni_cuda_source *const s = &j.s;
    s->parts = s->parts > 1 ? s->parts : 1;
    if (s->by_channel && s->group_len == s->group_channels)
        s->by_channel = 0; /* a single tap: the groups follow each other */
    s->segment_units = s->segment_units > 0 ? s->segment_units : 1;
    s->group_units = s->group_units > 0 ? s->group_units : 1;
    j.n_rows = s->n_rows * s->parts;
    j.segments_per_group = (s->group_units + s->segment_units - 1) / s->segment_units;
    j.group = rows_divisor_of(s->group_units);
    j.segment = rows_divisor_of(s->segment_units);
    j.ci = rows_divisor_of(s->ci);
    j.kw = rows_divisor_of(s->kw);
    j.oh = rows_divisor_of(s->oh);
    j.ow = rows_divisor_of(s->ow);
    j.is_plain = !s->is_image && !s->by_channel &&
                 (s->n_groups <= 1 || s->group_len == (int64_t)s->group_units * QNI_CUDA_UNIT);
    if (s->by_channel) {
        const int64_t taps = s->group_len / s->group_channels;
        j.channels = rows_divisor_of(s->group_channels);
        j.last_channels = rows_divisor_of(s->last_len / taps);
    }
    return j;
}

int32_t qni_cuda_prepare_sm75(const struct qni_cuda_source *source,
                              const struct qni_cuda_launch *launch)
{
    struct rows_job j = qni_cuda_rows_job(source);
    const struct qni_cuda_rows *const to = &source->to;
    j.a = (uint8_t *)const_cast<void *>(to->a);
    j.row_scale = const_cast<float *>(to->row_scale);
    j.sum = const_cast<int32_t *>(to->sum);
    j.scale = const_cast<float *>(to->scale);
    j.offset = const_cast<float *>(to->offset);
    j.total = const_cast<float *>(to->total);
    j.ld_sum = j.ld_scale = j.ld_offset = to->ld_segment;
    return qni_cuda_rows_run(&j, launch);
}
