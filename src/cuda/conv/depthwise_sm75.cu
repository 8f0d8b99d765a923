/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolutions, y[i, j] = sum over taps of x[i, tap, j / per_group] * w[j, tap], for
 * every layout and strategy. There is nothing to share between outputs but the weights, so a lane
 * has an output:
 *
 *     channels  (x has its channels innermost)   a warp has 32 outputs of a pixel, a CTA their taps
 *                                                and weights in shared memory
 *     pixels    (any other x)                    a CTA has one output, lanes are neighbouring
 *     pixels
 *
 * Floats: f32 sums of fma(x, w), w = scale * value + offset, within the bound of docs/numerics.md.
 * The int8 strategies quantize each patch as a row of the product, by the functions of rows.cuh,
 * and take the f32 steps in the order that is written there: exact. Sums of codes are int32; a
 * segment has 32768 taps at most. Bound: the caches; a tap costs a load of x and, shared by the
 * pixels of a thread, one of its weight. Kernels of more than 300 taps decode weights where they
 * need them. */
#include "../epilogue.cuh"
#include "../rows.cuh"

/* How the patch is quantized. */
enum { FLOATS = 0, GIVEN = 1, ROW = 2, BLOCK = 3 };
enum { THREADS = 256, LANES = 32 };

struct depthwise_job {
    struct qni_cuda_depthwise d;
    struct rows_divisor kw, oh, ow;
    int32_t outputs; /* of a CTA: 32 or 1 */
    int32_t tiles;   /* so many have them all */
    int32_t rows;    /* of a CTA */
    int32_t is_kept; /* taps and weights are in shared memory */
};

/* ---- weights --------------------------------------------------------------------------------- */

/* The stored code of a packed position of output `output` of its panel: kernel.h draws the blocks.
 * */
ROWS_DEVICE uint32_t stored_code(const struct qni_cuda_weights &w, int32_t panel, int32_t output,
                                 int32_t position)
{
    const int32_t in_step = position & 15, step = (position >> 4) & 3;
    const int32_t lane = 4 * (output & 7) + ((in_step & 7) >> 1), upper = output >> 3;
    const int32_t j = 2 * (in_step & 1) + (in_step >> 3);
    const size_t block = (size_t)panel * (size_t)(w.units / 2) + (size_t)(position >> 6);
    const uint8_t *const codes = w.blob + w.codes;
    if (w.layout == QNI_CUDA_Q4FRAG || w.layout == QNI_CUDA_T4FRAG) {
        const uint32_t byte = __ldg(codes + 512 * block + 16 * lane + 4 * step + j);
        return byte >> (4 * upper) & 15u;
    }
    return __ldg(codes + 1024 * block + 512 * (step >> 1) + 16 * lane + 8 * (step & 1) + 4 * upper +
                 j);
}

ROWS_DEVICE float section_float(const struct qni_cuda_weights &w, size_t section, size_t at)
{
    const uint8_t *const from = w.blob + section;
    return w.scale_is_f16 ? __half2float(((const __half *)from)[at]) : ((const float *)from)[at];
}

/* An output's constants of a group. */
struct group_scale {
    float scale, offset, zero;
};
ROWS_DEVICE struct group_scale scale_of(const struct qni_cuda_weights &w, int32_t output,
                                        int32_t group)
{
    const int32_t in_panel = output & 15;
    const size_t slot = (size_t)(2 * (in_panel & 7) + (in_panel >> 3));
    const size_t at = ((size_t)(output >> 4) * (size_t)w.n_groups + (size_t)group) * 16 + slot;
    struct group_scale g = {section_float(w, w.scale, at), 0.0f, 0.0f};
    if (w.shift == QNI_CUDA_SHIFT_OFFSET)
        g.offset = section_float(w, w.offset, at);
    if (w.shift == QNI_CUDA_SHIFT_ZERO)
        g.zero = (float)((const int8_t *)(w.blob + w.zero))[at];
    return g;
}

/* The same for the int8 strategies: w = scale * value + offset, the values those of table8. */
ROWS_DEVICE struct group_scale exact_scale_of(const struct qni_cuda_weights &w, int32_t output,
                                              int32_t group)
{
    struct group_scale g = scale_of(w, output, group);
    if (w.shift == QNI_CUDA_SHIFT_ZERO)
        g.offset = __fmul_rn(-g.zero, g.scale);
    if (w.table8_doubled)
        g.scale = __fmul_rn(g.scale, 0.5f);
    return g;
}

/* Tap t (a canonical position), as the bits of a float; of an integer for the int8 strategies. */
template <int KIND>
ROWS_DEVICE uint32_t weight_at(const struct qni_cuda_depthwise &d, int32_t output, int32_t t)
{
    const struct qni_cuda_source &s = d.source;
    const int32_t group = s.n_groups <= 1 ? 0 : t / (int32_t)s.group_len;
    const int32_t position = 32 * group * s.group_units + t - group * (int32_t)s.group_len;
    const uint32_t code = stored_code(d.w, output >> 4, output & 15, position);
    const bool is_table = d.w.layout == QNI_CUDA_T4FRAG || d.w.layout == QNI_CUDA_T8FRAG;
    const int32_t bias = d.w.layout == QNI_CUDA_Q4FRAG ? 8 : 128;
    if (KIND != FLOATS)
        return (uint32_t)(is_table ? d.w.table8[code & 15u] : (int32_t)code - bias);
    const float value =
        is_table ? ((const float *)(d.w.blob + d.w.table))[code] : (float)((int32_t)code - bias);
    const struct group_scale g = scale_of(d.w, output, group);
    const float v = __fmaf_rn(g.scale, value - g.zero, g.offset);
    const int32_t column = s.perm != NULL ? s.perm[t] : t;
    return __float_as_uint(s.prescale != NULL ? v * s.prescale[column] : v);
}

/* ---- taps ------------------------------------------------------------------------------------ */

struct tap {
    int32_t y, x;
    float prescale;
    int32_t unused;
};

ROWS_DEVICE struct tap make_tap(const struct depthwise_job &j, int32_t t)
{
    const struct qni_cuda_source &s = j.d.source;
    const int32_t column = s.perm != NULL ? s.perm[t] : t;
    const int32_t y = (int32_t)rows_divide((uint32_t)column, j.kw);
    const float prescale = s.prescale != NULL ? s.prescale[column] : 1.0f;
    const struct tap tap = {y, column - y * s.kw, prescale, 0};
    return tap;
}

/* Shared memory: taps, then weights [tap][output of the CTA]. */
template <int KIND>
ROWS_DEVICE void keep_weights(const struct depthwise_job &j, int32_t first, struct tap *taps)
{
    const int32_t k = (int32_t)j.d.source.k;
    uint32_t *const weights = (uint32_t *)(taps + k);
    for (int32_t t = (int32_t)threadIdx.x; t < k; t += THREADS)
        taps[t] = make_tap(j, t);
    for (int32_t i = (int32_t)threadIdx.x; i < k * j.outputs; i += THREADS) {
        const int32_t t = i / j.outputs, output = first + i - t * j.outputs;
        weights[i] = output < j.d.w.n ? weight_at<KIND>(j.d, output, t) : 0u;
    }
    __syncthreads();
}

/* What a lane reads: its output's taps and weights. */
struct lane {
    const struct tap *taps; /* NULL: they are not kept */
    const uint32_t *weights;
    int32_t output;
};

ROWS_DEVICE struct tap tap_at(const struct depthwise_job &j, const struct lane &l, int32_t t)
{
    return l.taps != NULL ? l.taps[t] : make_tap(j, t);
}
template <int KIND>
ROWS_DEVICE uint32_t weight_of(const struct depthwise_job &j, const struct lane &l, int32_t t)
{
    return l.taps != NULL ? l.weights[t * j.outputs] : weight_at<KIND>(j.d, l.output, t);
}

/* ---- inputs ---------------------------------------------------------------------------------- */

ROWS_DEVICE struct rows_row pixel_of(const struct depthwise_job &j, int64_t row, int32_t channel)
{
    const struct qni_cuda_source &s = j.d.source;
    int64_t line, image;
    if (row <= INT32_MAX) {
        line = rows_divide((uint32_t)row, j.ow);
        image = rows_divide((uint32_t)line, j.oh);
    } else {
        line = row / s.ow;
        image = line / s.oh;
    }
    const int32_t x = (int32_t)(row - line * s.ow), y = (int32_t)(line - image * s.oh);
    struct rows_row r = {image * s.xs[0] + channel * s.xs[1], y, x, true};
    r.y = s.transposed ? y + s.pad[0] : y * s.stride[0] - s.pad[0];
    r.x = s.transposed ? x + s.pad[1] : x * s.stride[1] - s.pad[1];
    return r;
}

/* The element that a tap reads, or -1: none. */
ROWS_DEVICE int64_t element_of(const struct depthwise_job &j, const struct rows_row &pixel,
                               const struct tap &tap)
{
    const struct qni_cuda_source &s = j.d.source;
    const int32_t y = rows_input(s, 0, pixel.y, tap.y), x = rows_input(s, 1, pixel.x, tap.x);
    return y >= 0 && x >= 0 && pixel.is_valid ? pixel.base + y * s.xs[2] + x * s.xs[3] : -1;
}
ROWS_DEVICE float float_at(const struct depthwise_job &j, const struct rows_row &pixel,
                           const struct tap &tap)
{
    const int64_t at = element_of(j, pixel, tap);
    return at >= 0 ? rows_element(j.d.source.x, j.d.source.dtype, at) : 0.0f;
}
/* Times the prescale: what is quantized. */
ROWS_DEVICE float scaled_at(const struct depthwise_job &j, const struct rows_row &pixel,
                            const struct tap &tap)
{
    const float v = float_at(j, pixel, tap);
    return j.d.source.prescale != NULL ? __fmul_rn(v, tap.prescale) : v;
}
/* A given code less the zero point: 0 outside. */
ROWS_DEVICE int32_t given_at(const struct depthwise_job &j, const struct rows_row &pixel,
                             const struct tap &tap)
{
    const int64_t at = element_of(j, pixel, tap);
    if (at < 0)
        return 0;
    const int32_t code = __ldg((const int8_t *)j.d.source.x + at);
    return (j.d.source.dtype == QN_U8 ? (int8_t)(code ^ 0x80) : code) - j.d.source.x_zero;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Taps [first, first + n) of a segment; false behind the last. */
struct segment {
    int32_t group, first, n;
};
ROWS_DEVICE bool next_segment(const struct depthwise_job &j, struct segment *s)
{
    const struct qni_cuda_source &from = j.d.source;
    const int32_t length = 32 * j.d.w.segment_units, len = (int32_t)from.group_len;
    s->first += s->n;
    if (s->first >= (int32_t)from.k)
        return false;
    s->group = from.n_groups <= 1 ? 0 : s->first / len;
    const int32_t end =
        from.n_groups <= 1 ? (int32_t)from.k : min((s->group + 1) * len, (int32_t)from.k);
    s->n = min(length, end - s->first);
    return true;
}

template <int PIXELS>
ROWS_DEVICE void float_sums(const struct depthwise_job &j, const struct lane &l,
                            const struct rows_row (&pixel)[PIXELS], float (&v)[PIXELS])
{
#pragma unroll
    for (int p = 0; p < PIXELS; p++)
        v[p] = 0.0f;
    for (int32_t t = 0; t < (int32_t)j.d.source.k; t++) {
        const struct tap tap = tap_at(j, l, t);
        const float w = __uint_as_float(weight_of<FLOATS>(j, l, t));
#pragma unroll
        for (int p = 0; p < PIXELS; p++)
            v[p] = __fmaf_rn(float_at(j, pixel[p], tap), w, v[p]);
    }
}

/* raw: all of the row, int32. */
template <int PIXELS>
ROWS_DEVICE void given_sums(const struct depthwise_job &j, const struct lane &l,
                            const struct rows_row (&pixel)[PIXELS], float (&v)[PIXELS],
                            int32_t (&raw)[PIXELS])
{
    const bool is_shifted = j.d.w.shift != QNI_CUDA_SHIFT_NONE;
    struct segment s = {0, 0, 0};
#pragma unroll
    for (int p = 0; p < PIXELS; p++) {
        v[p] = 0.0f;
        raw[p] = 0;
    }
    while (next_segment(j, &s)) {
        int32_t dot[PIXELS] = {0}, sum[PIXELS] = {0};
        for (int32_t t = s.first; t < s.first + s.n; t++) {
            const struct tap tap = tap_at(j, l, t);
            const int32_t w = (int32_t)weight_of<GIVEN>(j, l, t);
#pragma unroll
            for (int p = 0; p < PIXELS; p++) {
                const int32_t x = given_at(j, pixel[p], tap);
                dot[p] += x * w;
                sum[p] += x;
            }
        }
        const struct group_scale g = exact_scale_of(j.d.w, l.output, s.group);
#pragma unroll
        for (int p = 0; p < PIXELS; p++) {
            raw[p] += dot[p];
            v[p] = __fmaf_rn(g.scale, (float)dot[p], v[p]);
            if (is_shifted)
                v[p] = __fmaf_rn(g.offset, (float)sum[p], v[p]);
        }
    }
}

ROWS_DEVICE struct rows_scaling scaling_of(const struct depthwise_job &j, const struct lane &l,
                                           const struct rows_row &pixel, int32_t first, int32_t n,
                                           bool symmetric)
{
    struct rows_extremes seen = rows_no_extremes(symmetric);
#pragma unroll 4
    for (int32_t t = first; t < first + n; t++)
        rows_see(&seen, scaled_at(j, pixel, tap_at(j, l, t)), symmetric);
    return rows_scaling_of(rows_range_of(seen), symmetric);
}

/* int8-row and int8-block: the patch is read twice. */
template <int KIND>
ROWS_DEVICE float coded_sum(const struct depthwise_job &j, const struct lane &l,
                            const struct rows_row &pixel)
{
    const bool symmetric = KIND == ROW || j.d.source.symmetric;
    const bool is_shifted = j.d.w.shift != QNI_CUDA_SHIFT_NONE;
    struct rows_scaling q = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    if (KIND == ROW)
        q = scaling_of(j, l, pixel, 0, (int32_t)j.d.source.k, true);
    float v = 0.0f;
    struct segment s = {0, 0, 0};
    while (next_segment(j, &s)) {
        if (KIND == BLOCK)
            q = scaling_of(j, l, pixel, s.first, s.n, symmetric);
        const uint32_t mask = rows_code_mask(q);
        int32_t dot = 0, sum = 0, sum_w = 0;
#pragma unroll 4
        for (int32_t t = s.first; t < s.first + s.n; t++) {
            const float x = scaled_at(j, pixel, tap_at(j, l, t));
            const int32_t w = (int32_t)weight_of<KIND>(j, l, t);
            const int32_t code = (int8_t)(rows_encode(x, q, symmetric, false) & mask);
            dot += code * w;
            sum += code;
            sum_w += w;
        }
        const struct group_scale g = exact_scale_of(j.d.w, l.output, s.group);
        if (KIND == ROW) {
            v = __fmaf_rn(g.scale, (float)dot, v);
            if (is_shifted)
                v = __fmaf_rn(g.offset, (float)sum, v);
            continue;
        }
        const float t = symmetric
                            ? __fmul_rn(q.scale, (float)dot)
                            : __fmaf_rn(q.scale, (float)dot, __fmul_rn(q.offset, (float)sum_w));
        v = __fmaf_rn(g.scale, t, v);
        if (is_shifted)
            v = __fmaf_rn(g.offset, __fmaf_rn(q.scale, (float)sum, __fmul_rn(q.offset, (float)s.n)),
                          v);
    }
    return KIND == ROW ? __fmul_rn(v, q.scale) : v;
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <int KIND>
ROWS_DEVICE void store(const struct depthwise_job &j, int64_t row, int32_t output, float v,
                       int32_t raw)
{
    const struct qni_cuda_sink &out = j.d.out;
    const struct epilogue_row to = epilogue_row_of(out, row);
    if (KIND == GIVEN && epilogue_is_raw(out)) {
        raw += epilogue_raw_bias(out, output, 0);
        if (out.y_dtype == QN_I32) {
            ((int32_t *)out.y)[to.y + (int64_t)output * out.stride[3]] = raw;
            return;
        }
        v = __fmaf_rn(exact_scale_of(j.d.w, output, 0).scale, (float)raw, 0.0f);
    }
    if (KIND == GIVEN)
        v = __fmul_rn(v, j.d.x_scale);
    epilogue_store(out, to, output, 0, v);
}

/* Pixels of a thread go together where they share a weight: one more load of x for each. */
template <int KIND, int PIXELS>
static __global__ void __launch_bounds__(THREADS)
    depthwise_kernel(const __grid_constant__ struct depthwise_job j)
{
    extern __shared__ struct tap taps[];
    rows_begin();
    const int64_t chunk = blockIdx.x / j.tiles;
    const int32_t first = (int32_t)(blockIdx.x - chunk * j.tiles) * j.outputs;
    if (j.is_kept)
        keep_weights<KIND>(j, first, taps);
    const bool by_channel = j.outputs > 1;
    const int32_t thread = (int32_t)threadIdx.x;
    const int32_t in_tile = by_channel ? thread % LANES : 0;
    const int32_t apart = by_channel ? THREADS / LANES : THREADS;
    const struct lane l = {j.is_kept ? taps : NULL,
                           (const uint32_t *)(taps + (j.is_kept ? j.d.source.k : 0)) + in_tile,
                           first + in_tile};
    if (l.output >= j.d.w.n)
        return;
    const int32_t channel = l.output / j.d.per_group;
    const int64_t end = min((chunk + 1) * j.rows, j.d.m);
    for (int64_t at = chunk * j.rows + (by_channel ? thread / LANES : thread); at < end;
         at += PIXELS * apart) {
        struct rows_row pixel[PIXELS];
        float v[PIXELS];
        int32_t raw[PIXELS];
#pragma unroll
        for (int p = 0; p < PIXELS; p++) {
            const int64_t row = at + p * apart;
            pixel[p] = pixel_of(j, j.d.source.row + min(row, end - 1), channel);
            raw[p] = 0;
        }
        if constexpr (KIND == FLOATS) {
            float_sums(j, l, pixel, v);
        } else if constexpr (KIND == GIVEN) {
            given_sums(j, l, pixel, v, raw);
        } else {
#pragma unroll
            for (int p = 0; p < PIXELS; p++)
                v[p] = coded_sum<KIND>(j, l, pixel[p]);
        }
#pragma unroll
        for (int p = 0; p < PIXELS; p++)
            if (at + p * apart < end)
                store<KIND>(j, j.d.source.row + at + p * apart, l.output, v[p], raw[p]);
    }
}

int32_t qni_cuda_depthwise_sm75(const struct qni_cuda_depthwise *args,
                                const struct qni_cuda_launch *launch)
{
    static const void *const kernels[4] = {
        (const void *)depthwise_kernel<FLOATS, 4>, (const void *)depthwise_kernel<GIVEN, 4>,
        (const void *)depthwise_kernel<ROW, 1>, (const void *)depthwise_kernel<BLOCK, 1>};
    struct depthwise_job j = {};
    j.d = *args;
    const struct qni_cuda_source *const s = &args->source;
    if (args->m == 0 || args->w.n == 0)
        return 0;
    j.kw = rows_divisor_of(s->kw);
    j.oh = rows_divisor_of(s->oh);
    j.ow = rows_divisor_of(s->ow);
    j.outputs = s->xs[1] == 1 && args->w.n >= 8 ? LANES : 1;
    j.tiles = (args->w.n + j.outputs - 1) / j.outputs;
    j.rows = j.outputs > 1 ? 128 : 1024;
    const size_t bytes = (size_t)s->k * (sizeof(struct tap) + (size_t)j.outputs * sizeof(uint32_t));
    j.is_kept = bytes <= ROWS_SHARED;
    const int32_t kind = args->strategy == QN_STRATEGY_INT8_ROW      ? ROW
                         : args->strategy == QN_STRATEGY_INT8_BLOCK  ? BLOCK
                         : args->strategy == QN_STRATEGY_INT8_STATIC ? GIVEN
                                                                     : FLOATS;
    const int64_t grid = (args->m + j.rows - 1) / j.rows * j.tiles;
    return rows_launch_shared(kernels[kind], grid, dim3(THREADS), j.is_kept ? bytes : 0, &j,
                              launch);
}
