/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of x to what the matmul kernels read, whatever x is: act-order, any strides and alignment,
 * any groups, channels that are far apart. Two ways to deal out the work:
 *
 *     general kernel   a team of threads has a span of a row, a lane one position after another:
 *                      neighbours of a row are loaded together
 *     pixel kernel     NCHW: a lane has a pixel, so that neighbours of a plane are loaded together;
 *                      a warp has 32 pixels of a span, unit after unit
 *
 * Both read x twice, the second time from the caches. Bound: x from L2 in pieces of a sector a
 * warp, one byte (or two) stored at a time; exact as everything here (rows.cuh). */
#include "prepare.cuh"

/* What a span becomes. */
enum { FLOATS = 0, ROW = 1, BLOCK = 2, GIVEN = 3 };
enum { PIXELS = 32 };

/* ---- one position a lane --------------------------------------------------------------------- */

ROWS_DEVICE struct rows_range team_range(struct rows_range r, struct rows_range *parts)
{
    r = rows_warp_range(r, 32);
    if (blockDim.x <= 32)
        return r;
    if ((threadIdx.x & 31) == 0)
        parts[threadIdx.x >> 5] = r;
    __syncthreads();
    const uint32_t lane = threadIdx.x & 31;
    return rows_warp_range(parts[lane < blockDim.x / 32 ? lane : 0], 32);
}
ROWS_DEVICE int32_t team_sum(int32_t v, int32_t *parts)
{
    v = rows_warp_sum(v, 32);
    if (blockDim.x <= 32)
        return v;
    if ((threadIdx.x & 31) == 0)
        parts[threadIdx.x >> 5] = v;
    __syncthreads();
    const uint32_t lane = threadIdx.x & 31;
    return rows_warp_sum(lane < blockDim.x / 32 ? parts[lane] : 0, 32);
}
ROWS_DEVICE float team_total(float v, int32_t *parts)
{
    v = rows_warp_total(v, 32);
    if (blockDim.x <= 32)
        return v;
    if ((threadIdx.x & 31) == 0)
        parts[threadIdx.x >> 5] = __float_as_int(v);
    __syncthreads();
    const uint32_t lane = threadIdx.x & 31;
    return rows_warp_total(lane < blockDim.x / 32 ? __int_as_float(parts[lane]) : 0.0f, 32);
}

ROWS_DEVICE void store_float(const struct rows_job &j, int64_t row, int32_t position, float v)
{
    uint8_t *to = j.a + row * j.s.to.lda + 2 * (int64_t)position;
    if (j.s.reads == QNI_CUDA_READS_F16) {
        *(__half *)to = __float2half_rn(v);
        return;
    }
    for (int32_t plane = 0; plane < j.s.to.planes; plane++, to += j.s.to.plane_stride) {
        const uint32_t upper = rows_upper(v);
        *(uint16_t *)to = (uint16_t)(upper >> 16);
        v = __fsub_rn(v, __uint_as_float(upper));
    }
}

ROWS_DEVICE void store_code(const struct rows_job &j, int64_t row, int32_t position,
                            const struct rows_place &p, int32_t code)
{
    uint8_t *const to = j.a + row * j.s.to.lda;
    if (!j.is_natural)
        to[rows_byte_of(position, j.s.by_step)] = (uint8_t)code;
    else if (p.n > 0)
        to[p.column] = (uint8_t)((uint32_t)code ^ (j.flip & 0x80u));
}

/* The team of a span: all threads of the CTA, or of a row of it. */
template <int KIND>
static __global__ void __launch_bounds__(512)
    general_kernel(const __grid_constant__ struct rows_job j)
{
    __shared__ struct rows_range ranges[32];
    __shared__ int32_t sums[32];
    rows_begin();
    const bool symmetric = KIND == ROW || j.s.symmetric;
    const int64_t at = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int64_t row = j.spans == 1 ? at : at / j.spans;
    if (row >= j.n_rows || !rows_is_wanted(j, row))
        return; /* a warp of its own, or the whole CTA */
    const int32_t span = (int32_t)(at - row * j.spans), lane = (int32_t)threadIdx.x;
    const struct rows_row from = rows_row_of(j, row);
    int32_t first = 0, units = j.s.units;
    if (KIND != ROW)
        rows_span(j, span, &first, &units);
    if (KIND == ROW)
        for (int32_t i = lane; i < j.s.n_segments; i += (int32_t)blockDim.x)
            j.sum[row * j.ld_sum + i] = 0;
    struct rows_scaling s = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    if (KIND == ROW || KIND == BLOCK) {
        struct rows_extremes seen = rows_no_extremes(symmetric);
#pragma unroll 4
        for (int32_t i = lane; i < 32 * units; i += (int32_t)blockDim.x) {
            const struct rows_place p = rows_place_of(j, from, 32 * first + i);
            if (p.n > 0)
                rows_see(&seen, rows_value(j, p), symmetric);
        }
        s = rows_scaling_of(team_range(rows_range_of(seen), ranges), symmetric);
        __syncwarp();
    }
    const int32_t mask = (int32_t)rows_code_mask(s);
    int32_t sum = 0;
    float total = 0.0f;
#pragma unroll 4
    for (int32_t i = lane; i < 32 * units; i += (int32_t)blockDim.x) {
        const int32_t position = 32 * first + i;
        const struct rows_place p = rows_place_of(j, from, position);
        if (KIND == FLOATS) {
            const float v = rows_value(j, p);
            total = __fadd_rn(total, v);
            store_float(j, row, position, v);
            continue;
        }
        int32_t code = 0;
        if (KIND == GIVEN)
            code = rows_given(j, p);
        else if (p.n > 0)
            code = (int8_t)rows_encode(rows_value(j, p), s, symmetric, false) & mask;
        store_code(j, row, position, p, code);
        if (KIND == ROW) {
            const int32_t here = rows_warp_sum(code, 32);
            const int32_t segment = rows_segment_of(j, position >> 5);
            if ((lane & 31) == 0 && segment < j.s.n_segments)
                atomicAdd(&j.sum[row * j.ld_sum + segment], here);
        }
        sum += code;
    }
    if (KIND == ROW) {
        if (lane == 0)
            j.row_scale[row] = s.scale;
    } else if (KIND == FLOATS) {
        if (j.total == NULL)
            return;
        total = team_total(total, sums);
        if (lane == 0)
            j.total[row * j.ld_sum + span] = total;
    } else {
        sum = team_sum(sum, sums);
        if (lane != 0)
            return;
        if (KIND == GIVEN)
            j.sum[row * j.ld_sum + span] = sum;
        else
            rows_store_facts(j, s, row, span, sum, rows_count(j, from, first, units));
    }
}

/* ---- one pixel a lane ------------------------------------------------------------------------ */

/* Walks along packed positions of a group: what changes from tap to tap is the same for all lanes
 * but for the pixel itself. */
struct walk {
    int32_t left;         /* real positions */
    int32_t channel, end; /* of this tap; the next begins again at `begin` */
    int32_t begin, ky, kx;
    int64_t at;
    bool is_inside;
};

ROWS_DEVICE void enter_tap(const struct rows_job &j, const struct rows_row &row, struct walk *w)
{
    const int32_t y = rows_input(j.s, 0, row.y, w->ky), x = rows_input(j.s, 1, row.x, w->kx);
    w->is_inside = row.is_valid && y >= 0 && x >= 0;
    w->at = row.base + y * j.s.xs[2] + x * j.s.xs[3] + w->channel * j.s.xs[1];
}

ROWS_DEVICE struct walk walk_from(const struct rows_job &j, const struct rows_row &row,
                                  int32_t unit)
{
    const struct qni_cuda_source &s = j.s;
    struct walk w = {0, 0, 0, 0, 0, 0, 0, false};
    const int32_t g = rows_group_of(j, unit), i = 32 * (unit - g * s.group_units);
    w.left = (int32_t)(g + 1 == s.n_groups ? s.last_len : s.group_len) - i;
    if (w.left <= 0)
        return w;
    const int32_t canonical = rows_canonical(j, g, i);
    const int32_t tap = (int32_t)rows_divide((uint32_t)canonical, j.ci);
    w.channel = canonical - tap * s.ci;
    w.begin = s.by_channel ? g * s.group_channels : 0;
    w.end = !s.by_channel
                ? s.ci
                : w.begin + (int32_t)(g + 1 == s.n_groups ? j.last_channels.by : j.channels.by);
    w.ky = (int32_t)rows_divide((uint32_t)tap, j.kw);
    w.kx = tap - w.ky * s.kw;
    enter_tap(j, row, &w);
    return w;
}

ROWS_DEVICE void step(const struct rows_job &j, const struct rows_row &row, struct walk *w)
{
    w->left--;
    w->channel++;
    w->at += j.s.xs[1];
    if (w->channel < w->end || w->left <= 0)
        return;
    w->channel = w->begin;
    w->kx++;
    if (w->kx == j.s.kw) {
        w->kx = 0;
        w->ky++;
    }
    enter_tap(j, row, w);
}

/* The bits of an element of BYTES bytes. */
template <int BYTES> ROWS_DEVICE uint32_t bits_at(const void *x, int64_t at)
{
    if (BYTES == 4)
        return __ldg((const uint32_t *)x + at);
    return BYTES == 2 ? __ldg((const uint16_t *)x + at) : __ldg((const uint8_t *)x + at);
}

/* A unit of a row: the bits of 32 values (as f32), or 32 codes; how many are real. All loads are
 * asked for before the first is used. */
template <int BYTES>
ROWS_DEVICE int32_t read_unit(const struct rows_job &j, const struct rows_row &row, int32_t unit,
                              uint32_t (&v)[32])
{
    struct walk w = walk_from(j, row, unit);
    const int32_t n = max(0, min(32, w.left));
    const uint32_t flip = j.s.dtype == QN_U8 ? 0x80u : 0u;
    const uint32_t hole = BYTES == 1 ? ((uint32_t)j.s.x_zero & 0xffu) ^ flip : 0u;
    if (w.end - w.channel >= n) { /* one tap */
#pragma unroll
        for (int i = 0; i < 32; i++) {
            v[i] = hole;
            if (i < n && w.is_inside)
                v[i] = bits_at<BYTES>(j.s.x, w.at + i * j.s.xs[1]);
        }
    } else {
#pragma unroll
        for (int i = 0; i < 32; i++) {
            v[i] = hole;
            if (i >= n)
                continue;
            if (w.is_inside)
                v[i] = bits_at<BYTES>(j.s.x, w.at);
            step(j, row, &w);
        }
    }
#pragma unroll
    for (int i = 0; i < 32; i++) {
        if (BYTES == 2)
            v[i] = j.s.dtype == QN_BF16
                       ? v[i] << 16
                       : __float_as_uint(__half2float(__ushort_as_half((unsigned short)v[i])));
        if (BYTES == 1)
            v[i] ^= flip;
        if (i >= n)
            v[i] = 0;
    }
    if (BYTES != 1 && j.s.prescale != NULL)
#pragma unroll
        for (int i = 0; i < 32; i++)
            if (i < n) {
                const int32_t g = rows_group_of(j, unit);
                const int32_t at = 32 * (unit - g * j.s.group_units) + i;
                const float by = __ldg(j.s.prescale + rows_canonical(j, g, at));
                v[i] = __float_as_uint(__fmul_rn(__uint_as_float(v[i]), by));
            }
    return n;
}

/* The codes of a unit: words [step][t] as a block has them, and their sum. */
template <int KIND>
ROWS_DEVICE int32_t unit_codes(const uint32_t (&v)[32], int32_t n, const struct rows_scaling &s,
                               bool symmetric, uint32_t (&words)[8])
{
    const uint32_t mask = rows_code_mask(s);
    int32_t sum = 0;
#pragma unroll
    for (int w = 0; w < 8; w++) {
        words[w] = 0;
#pragma unroll
        for (int b = 0; b < 4; b++) {
            const int i = 16 * (w / 4) + 2 * (w % 4) + (b >> 1) + 8 * (b & 1);
            uint32_t code = v[i];
            if (KIND != GIVEN)
                code = rows_encode(__uint_as_float(v[i]), s, symmetric, false) & mask;
            words[w] |= i < n ? (code & 0xffu) << (8 * b) : 0u;
        }
        sum = rows_add_bytes(words[w], sum);
    }
    return sum;
}

/* Bytes 16 t + 8 (unit & 1) .. + 7 of its block, for all t; by step: 32 (unit & 1) .. + 31. */
ROWS_DEVICE void store_unit_codes(const struct rows_job &j, int64_t row, int32_t unit,
                                  const uint32_t (&words)[8])
{
    if (j.s.by_step) {
        uint4 *const half = (uint4 *)(j.a + row * j.s.to.lda + 32 * (int64_t)unit);
        half[0] = make_uint4(words[0], words[1], words[2], words[3]);
        half[1] = make_uint4(words[4], words[5], words[6], words[7]);
        return;
    }
    uint8_t *const to =
        j.a + row * j.s.to.lda + 64 * (int64_t)(unit >> 1) + 8 * (int64_t)(unit & 1);
#pragma unroll
    for (int t = 0; t < 4; t++)
        *(uint2 *)(to + 16 * t) = make_uint2(words[t], words[4 + t]);
}

ROWS_DEVICE float store_unit_floats(const struct rows_job &j, int64_t row, int32_t unit,
                                    uint32_t (&v)[32])
{
    float total = 0.0f;
#pragma unroll
    for (int i = 0; i < 32; i++)
        total = __fadd_rn(total, __uint_as_float(v[i]));
    uint8_t *to = j.a + row * j.s.to.lda + 64 * (int64_t)unit;
    const int32_t planes = j.s.reads == QNI_CUDA_READS_F16 ? 1 : j.s.to.planes;
    for (int32_t plane = 0; plane < planes; plane++, to += j.s.to.plane_stride)
#pragma unroll
        for (int i = 0; i < 32; i += 8) {
            uint32_t words[4];
#pragma unroll
            for (int e = 0; e < 4; e++) {
                uint32_t *const two = v + i + 2 * e;
                const __half2 halves =
                    __floats2half2_rn(__uint_as_float(two[0]), __uint_as_float(two[1]));
                uint32_t upper[2];
#pragma unroll
                for (int h = 0; h < 2; h++) {
                    upper[h] = rows_upper(__uint_as_float(two[h]));
                    two[h] = __float_as_uint(
                        __fsub_rn(__uint_as_float(two[h]), __uint_as_float(upper[h])));
                }
                words[e] = j.s.reads == QNI_CUDA_READS_F16
                               ? *(const uint32_t *)&halves
                               : __byte_perm(upper[0], upper[1], 0x7632);
            }
            *(uint4 *)(to + 2 * i) = make_uint4(words[0], words[1], words[2], words[3]);
        }
    return total;
}

ROWS_DEVICE void see_unit(const uint32_t (&v)[32], int32_t n, bool symmetric,
                          struct rows_extremes *seen)
{
#pragma unroll
    for (int i = 0; i < 32; i++)
        if (i < n)
            rows_see(seen, __uint_as_float(v[i]), symmetric);
}

/* A warp has 32 pixels of a span; rows of parts are cut apart. ROW: all warps of a CTA share the
 * pixels, and each takes every so manieth unit. */
template <int KIND, int BYTES>
static __global__ void __launch_bounds__(256)
    pixel_kernel(const __grid_constant__ struct rows_job j)
{
    __shared__ int32_t largest[8][PIXELS];
    rows_begin();
    const bool symmetric = KIND == ROW || j.s.symmetric;
    const int64_t strips = (j.s.n_rows + PIXELS - 1) / PIXELS;
    const int64_t at = KIND == ROW ? blockIdx.x : (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    const int64_t strip = at / j.spans, part = strip / strips;
    const int32_t span = (int32_t)(at - strip * j.spans);
    const int64_t in_part = (strip - part * strips) * PIXELS + threadIdx.x;
    if (part >= j.s.parts)
        return; /* whole warps; of ROW, no CTA */
    const bool is_active = in_part < j.s.n_rows;
    const int64_t row = part * j.s.n_rows + (is_active ? in_part : 0);
    const struct rows_row from = rows_row_of(j, row);
    int32_t first = 0, units = j.s.units;
    if (KIND != ROW)
        rows_span(j, span, &first, &units);
    const int32_t begin = KIND == ROW ? (int32_t)threadIdx.y : first;
    const int32_t end = first + units, apart = KIND == ROW ? (int32_t)blockDim.y : 1;
    uint32_t v[32];
    int32_t n = 0;
    struct rows_scaling s = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    if (KIND == ROW || KIND == BLOCK) {
        struct rows_extremes seen = rows_no_extremes(symmetric);
        for (int32_t unit = begin; unit < end; unit += apart) {
            n = read_unit<BYTES>(j, from, unit, v);
            see_unit(v, n, symmetric, &seen);
        }
        struct rows_range range = rows_range_of(seen);
        if (KIND == ROW) {
            for (int32_t i = (int32_t)threadIdx.y; is_active && i < j.s.n_segments; i += apart)
                j.sum[row * j.ld_sum + i] = 0;
            largest[threadIdx.y][threadIdx.x] = range.hi;
            __syncthreads();
            for (uint32_t i = 0; i < blockDim.y; i++)
                range.hi = max(range.hi, largest[i][threadIdx.x]);
        }
        s = rows_scaling_of(range, symmetric);
    }
    int32_t sum = 0;
    float total = 0.0f;
    for (int32_t unit = begin; unit < end; unit += apart) {
        if (KIND == FLOATS || KIND == GIVEN || begin + apart < end) /* else v still holds it */
            n = read_unit<BYTES>(j, from, unit, v);
        if (!is_active)
            continue;
        if (KIND == FLOATS) {
            total = __fadd_rn(total, store_unit_floats(j, row, unit, v));
            continue;
        }
        uint32_t words[8];
        const int32_t here = unit_codes<KIND>(v, n, s, symmetric, words);
        store_unit_codes(j, row, unit, words);
        sum += here;
        const int32_t segment = KIND == ROW ? rows_segment_of(j, unit) : 0;
        if (KIND == ROW && segment < j.s.n_segments)
            atomicAdd(&j.sum[row * j.ld_sum + segment], here);
    }
    if (!is_active)
        return;
    if (KIND == ROW && threadIdx.y == 0)
        j.row_scale[row] = s.scale;
    else if (KIND == FLOATS && j.total != NULL)
        j.total[row * j.ld_sum + span] = total;
    else if (KIND == GIVEN)
        j.sum[row * j.ld_sum + span] = sum;
    else if (KIND == BLOCK)
        rows_store_facts(j, s, row, span, sum, rows_count(j, from, first, units));
}

/* ---- which kernel ---------------------------------------------------------------------------- */

/* Neighbouring rows are neighbouring elements, and neighbouring channels are not. */
static bool is_by_pixel(const struct qni_cuda_source *s)
{
    return s->is_image && s->perm == NULL && s->xs[3] == 1 && s->xs[1] != 1 && s->ow >= 8 &&
           s->units > 0 && s->parts < INT32_MAX;
}

int32_t qni_cuda_rows_general(struct rows_job *j, const struct qni_cuda_launch *launch)
{
    static const void *const general[4] = {
        (const void *)general_kernel<FLOATS>, (const void *)general_kernel<ROW>,
        (const void *)general_kernel<BLOCK>, (const void *)general_kernel<GIVEN>};
    static const void *const pixel[2][4] = {
        {(const void *)pixel_kernel<FLOATS, 2>, (const void *)pixel_kernel<ROW, 2>,
         (const void *)pixel_kernel<BLOCK, 2>, (const void *)pixel_kernel<GIVEN, 1>},
        {(const void *)pixel_kernel<FLOATS, 4>, (const void *)pixel_kernel<ROW, 4>,
         (const void *)pixel_kernel<BLOCK, 4>, (const void *)pixel_kernel<GIVEN, 1>}};
    const struct qni_cuda_source *s = &j->s;
    const int32_t kind = rows_is_given(s)                 ? GIVEN
                         : s->reads == QNI_CUDA_READS_Q8  ? ROW
                         : s->reads == QNI_CUDA_READS_Q8B ? BLOCK
                                                          : FLOATS;
    j->spans = kind == ROW ? 1 : kind == FLOATS ? s->n_groups : s->n_segments;
    j->spans_per_group = kind == FLOATS ? 1 : j->segments_per_group;
    j->span_units = kind == ROW ? s->units : kind == FLOATS ? s->group_units : s->segment_units;
    if (j->spans == 0)
        return 0;
    if (is_by_pixel(s)) {
        const int64_t strips = (s->n_rows + PIXELS - 1) / PIXELS * s->parts * j->spans;
        const int64_t warps = kind == ROW ? (s->units < 8 ? s->units : 8) : 4;
        return rows_launch(pixel[s->dtype == QN_F32][kind],
                           kind == ROW ? strips : (strips + warps - 1) / warps,
                           dim3(PIXELS, (unsigned)warps), j, launch);
    }
    const int64_t positions = 32 * (int64_t)(kind == ROW ? s->units : j->span_units);
    const unsigned team = positions <= 256 ? 32 : positions <= 2048 ? 128 : 512;
    const unsigned teams = team == 32 ? 8 : 1;
    const int64_t spans = j->n_rows * j->spans;
    return rows_launch(general[kind], (spans + teams - 1) / teams, dim3(team, teams), j, launch);
}
