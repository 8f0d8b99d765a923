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
#include "depthwise.cuh"

enum { THREADS = 256, LANES = 32, BYTES = DEPTHWISE_BYTES };

struct depthwise_job {
    struct qni_cuda_depthwise d;
    struct rows_divisor kw, oh, across;
    int64_t first_line, strips; /* of output; strips of pixels of these lines */
    int64_t step;               /* elements of x from pixel to pixel */
    int32_t advance;            /* the same in columns */
    int32_t outputs;            /* of a CTA: 32 or 1 */
    int32_t tiles;              /* so many have them all */
    int32_t strips_of_cta;
    int32_t is_kept;     /* taps and weights are in shared memory */
    int32_t is_apart;    /* transposed with a stride: taps that read are stride apart */
    int32_t is_bare;     /* y is the rounded sum */
    uint32_t flip, hole; /* codes as they lie: what makes them i8; that of a zero */
};

/* ---- taps ------------------------------------------------------------------------------------ */

/* Reach of a tap: how far from tap (0, 0), in inputs and in elements. Of a transposed convolution
 * with a stride the place depends on the pixel, and y, x are the tap itself. */
struct tap {
    int32_t y, x;
    int64_t at;
};

ROWS_DEVICE struct tap make_tap(const struct depthwise_job &j, int32_t t)
{
    const struct qni_cuda_source &s = j.d.source;
    const int32_t column = column_of(s, t);
    const int32_t y = (int32_t)rows_divide((uint32_t)column, j.kw), x = column - y * s.kw;
    struct tap tap = {y, x, 0};
    if (j.is_apart)
        return tap;
    tap.y = s.transposed ? -y * s.dilation[0] : y * s.dilation[0];
    tap.x = s.transposed ? -x * s.dilation[1] : x * s.dilation[1];
    tap.at = tap.y * s.xs[2] + tap.x * s.xs[3];
    return tap;
}

/* Shared memory: taps, their prescales, then weights [tap][output of the CTA]. */
template <int KIND>
ROWS_DEVICE void keep_weights(const struct depthwise_job &j, int32_t first, struct tap *taps)
{
    const int32_t k = (int32_t)j.d.source.k;
    float *const prescale = (float *)(taps + k);
    uint32_t *const weights = (uint32_t *)(prescale + k);
    for (int32_t t = (int32_t)threadIdx.x; t < k; t += THREADS) {
        taps[t] = make_tap(j, t);
        if (j.d.source.prescale != NULL)
            prescale[t] = j.d.source.prescale[column_of(j.d.source, t)];
    }
    for (int32_t i = (int32_t)threadIdx.x; i < k * j.outputs; i += THREADS) {
        const int32_t t = i / j.outputs, output = first + i - t * j.outputs;
        weights[i] = output < j.d.w.n ? weight_at<KIND>(j.d, output, t) : 0u;
    }
    __syncthreads();
}

/* What a lane reads: its output's taps and weights. */
struct lane {
    const struct tap *taps; /* NULL: they are not kept */
    const float *prescale;
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

/* Neighbouring outputs of a line: what tap (0, 0) of the first reads, which may lie outside, and
 * where the first is. */
struct strip {
    int64_t at, row;
    int32_t y, x;
    int32_t image, out_y, out_x, n;
};

template <int PIXELS>
ROWS_DEVICE struct strip strip_of(const struct depthwise_job &j, int64_t number, int32_t channel)
{
    const struct qni_cuda_source &s = j.d.source;
    int64_t line, image;
    if (number <= INT32_MAX) {
        line = rows_divide((uint32_t)number, j.across);
    } else {
        line = number / j.across.by;
    }
    struct strip p;
    p.out_x = (int32_t)(number - line * j.across.by) * PIXELS;
    p.n = min(PIXELS, (int32_t)s.ow - p.out_x);
    line += j.first_line;
    image = line <= INT32_MAX ? (int64_t)rows_divide((uint32_t)line, j.oh) : line / s.oh;
    p.image = (int32_t)image;
    p.out_y = (int32_t)(line - image * s.oh);
    p.row = line * s.ow + p.out_x;
    p.y = s.transposed ? p.out_y + s.pad[0] : p.out_y * s.stride[0] - s.pad[0];
    p.x = s.transposed ? p.out_x + s.pad[1] : p.out_x * s.stride[1] - s.pad[1];
    p.at = image * s.xs[0] + channel * s.xs[1];
    if (!j.is_apart)
        p.at += p.y * s.xs[2] + p.x * s.xs[3];
    return p;
}

/* The bits of an element, to be made a number when all that are wanted have been asked for. */
template <int DTYPE> ROWS_DEVICE uint32_t bits_at(const void *x, int64_t at)
{
    if (DTYPE == BYTES)
        return __ldg((const uint8_t *)x + at);
    return DTYPE == QN_F32 ? __ldg((const uint32_t *)x + at) : __ldg((const uint16_t *)x + at);
}
template <int DTYPE> ROWS_DEVICE float float_of(uint32_t bits)
{
    if (DTYPE == QN_F16)
        return __half2float(__ushort_as_half((unsigned short)bits));
    return __uint_as_float(DTYPE == QN_BF16 ? bits << 16 : bits);
}
/* A given code less the zero point. */
ROWS_DEVICE int32_t given_of(const struct depthwise_job &j, uint32_t bits)
{
    return (int8_t)(bits ^ j.flip) - j.d.source.x_zero;
}

/* What a tap reads for each pixel of a strip. */
template <int DTYPE, int PIXELS>
ROWS_DEVICE void read_tap(const struct depthwise_job &j, const struct strip &p,
                          const struct tap &tap, uint32_t (&bits)[PIXELS])
{
    const struct qni_cuda_source &s = j.d.source;
    if (j.is_apart) {
        const int32_t y = rows_input(s, 0, p.y, tap.y);
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {
            const int32_t x = rows_input(s, 1, p.x + i, tap.x);
            bits[i] = j.hole;
            if (y >= 0 && x >= 0)
                bits[i] = bits_at<DTYPE>(s.x, p.at + y * s.xs[2] + x * s.xs[3]);
        }
        return;
    }
    const bool is_inside = (uint32_t)(p.y + tap.y) < (uint32_t)s.h;
    const int64_t at = p.at + tap.at;
#pragma unroll
    for (int i = 0; i < PIXELS; i++) {
        bits[i] = j.hole;
        if (is_inside && (uint32_t)(p.x + tap.x + i * j.advance) < (uint32_t)s.w)
            bits[i] = bits_at<DTYPE>(s.x, at + i * j.step);
    }
}

/* The same times the prescale: what is quantized. */
template <int DTYPE, int PIXELS>
ROWS_DEVICE void read_scaled(const struct depthwise_job &j, const struct lane &l,
                             const struct strip &p, int32_t t, float (&v)[PIXELS])
{
    uint32_t bits[PIXELS];
    read_tap<DTYPE>(j, p, tap_at(j, l, t), bits);
    const bool is_scaled = j.d.source.prescale != NULL;
    float by = 1.0f;
    if (is_scaled)
        by = l.taps != NULL ? l.prescale[t] : j.d.source.prescale[column_of(j.d.source, t)];
#pragma unroll
    for (int i = 0; i < PIXELS; i++) {
        v[i] = float_of<DTYPE>(bits[i]);
        if (is_scaled)
            v[i] = __fmul_rn(v[i], by);
    }
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

template <int DTYPE, int PIXELS>
ROWS_DEVICE void float_sums(const struct depthwise_job &j, const struct lane &l,
                            const struct strip &p, float (&v)[PIXELS])
{
#pragma unroll
    for (int i = 0; i < PIXELS; i++)
        v[i] = 0.0f;
#pragma unroll 3
    for (int32_t t = 0; t < (int32_t)j.d.source.k; t++) {
        const float w = __uint_as_float(weight_of<DEPTHWISE_FLOATS>(j, l, t));
        uint32_t x[PIXELS];
        read_tap<DTYPE>(j, p, tap_at(j, l, t), x);
#pragma unroll
        for (int i = 0; i < PIXELS; i++)
            v[i] = __fmaf_rn(float_of<DTYPE>(x[i]), w, v[i]);
    }
}

/* raw: all of the row, int32. */
template <int PIXELS>
ROWS_DEVICE void given_sums(const struct depthwise_job &j, const struct lane &l,
                            const struct strip &p, float (&v)[PIXELS], int32_t (&raw)[PIXELS])
{
    const bool is_shifted = j.d.w.shift != QNI_CUDA_SHIFT_NONE;
    struct segment s = {0, 0, 0};
    while (next_segment(j, &s)) {
        int32_t dot[PIXELS] = {0}, sum[PIXELS] = {0};
#pragma unroll 3
        for (int32_t t = s.first; t < s.first + s.n; t++) {
            const int32_t w = (int32_t)weight_of<DEPTHWISE_GIVEN>(j, l, t);
            uint32_t x[PIXELS];
            read_tap<BYTES>(j, p, tap_at(j, l, t), x);
#pragma unroll
            for (int i = 0; i < PIXELS; i++) {
                dot[i] += given_of(j, x[i]) * w;
                sum[i] += given_of(j, x[i]);
            }
        }
        const struct group_scale g = exact_scale_of(j.d.w, l.output, s.group);
#pragma unroll
        for (int i = 0; i < PIXELS; i++) {
            raw[i] += dot[i] - (int32_t)g.zero * sum[i];
            v[i] = __fmaf_rn(g.scale, (float)dot[i], v[i]);
            if (is_shifted)
                v[i] = __fmaf_rn(g.offset, (float)sum[i], v[i]);
        }
    }
}

template <int DTYPE, int PIXELS>
ROWS_DEVICE void scalings_of(const struct depthwise_job &j, const struct lane &l,
                             const struct strip &p, const struct segment &s, bool symmetric,
                             struct rows_scaling (&q)[PIXELS])
{
    struct rows_extremes seen[PIXELS];
#pragma unroll
    for (int i = 0; i < PIXELS; i++)
        seen[i] = rows_no_extremes(symmetric);
#pragma unroll 3
    for (int32_t t = s.first; t < s.first + s.n; t++) {
        float x[PIXELS];
        read_scaled<DTYPE>(j, l, p, t, x);
#pragma unroll
        for (int i = 0; i < PIXELS; i++)
            rows_see(&seen[i], x[i], symmetric);
    }
#pragma unroll
    for (int i = 0; i < PIXELS; i++)
        q[i] = rows_scaling_of(rows_range_of(seen[i]), symmetric);
}

/* int8-row and int8-block: the patch is read twice. */
template <int KIND, int DTYPE, int PIXELS>
ROWS_DEVICE void coded_sums(const struct depthwise_job &j, const struct lane &l,
                            const struct strip &p, float (&v)[PIXELS])
{
    const bool symmetric = KIND == DEPTHWISE_ROW || j.d.source.symmetric;
    const bool is_shifted = j.d.w.shift != QNI_CUDA_SHIFT_NONE;
    struct rows_scaling q[PIXELS];
    struct segment s = {0, 0, 0};
    const struct segment all = {0, 0, (int32_t)j.d.source.k};
    if (KIND == DEPTHWISE_ROW)
        scalings_of<DTYPE>(j, l, p, all, true, q);
    while (next_segment(j, &s)) {
        if (KIND == DEPTHWISE_BLOCK)
            scalings_of<DTYPE>(j, l, p, s, symmetric, q);
        int32_t sums[PIXELS][3] = {};
#pragma unroll 3
        for (int32_t t = s.first; t < s.first + s.n; t++) {
            const int32_t w = (int32_t)weight_of<KIND>(j, l, t);
            float x[PIXELS];
            read_scaled<DTYPE>(j, l, p, t, x);
#pragma unroll
            for (int i = 0; i < PIXELS; i++) {
                const uint32_t code = rows_encode(x[i], q[i], symmetric, false);
                const int32_t c = (int8_t)(code & rows_code_mask(q[i]));
                sums[i][0] += c * w;
                sums[i][1] += c;
                sums[i][2] += w;
            }
        }
        const struct group_scale g = exact_scale_of(j.d.w, l.output, s.group);
#pragma unroll
        for (int i = 0; i < PIXELS; i++)
            v[i] = add_segment<KIND>(
                g, q[i], {(float)sums[i][0], (float)sums[i][1], (float)sums[i][2], (float)s.n},
                symmetric, is_shifted, v[i]);
    }
#pragma unroll
    for (int i = 0; i < PIXELS && KIND == DEPTHWISE_ROW; i++)
        v[i] = __fmul_rn(v[i], q[i].scale);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

ROWS_DEVICE int64_t place_of(const int64_t (&stride)[4], const struct strip &p, int32_t i)
{
    return p.image * stride[0] + p.out_y * stride[1] + (p.out_x + i) * stride[2];
}

template <int KIND>
ROWS_DEVICE void store(const struct depthwise_job &j, const struct strip &p, int32_t i,
                       int32_t output, float v, int32_t raw)
{
    const struct qni_cuda_sink &out = j.d.out;
    const int64_t y = place_of(out.stride, p, i);
    const int64_t at = y + (int64_t)output * out.stride[3];
    if (KIND == DEPTHWISE_GIVEN && epilogue_is_raw(out)) {
        raw += epilogue_raw_bias(out, output, 0);
        if (out.y_dtype == QN_I32) {
            ((int32_t *)out.y)[at] = raw;
            return;
        }
        v = __fmaf_rn(exact_scale_of(j.d.w, output, 0).scale, (float)raw, 0.0f);
    }
    if (KIND == DEPTHWISE_GIVEN)
        v = __fmul_rn(v, j.d.x_scale);
    if (j.is_bare) {
        epilogue_round(out, at, v);
        return;
    }
    const struct epilogue_row row = {y, place_of(out.residual_stride, p, i),
                                     out.row_scale != NULL ? out.row_scale[p.row + i] : 1.0f};
    epilogue_store(out, row, output, 0, v);
}

/* Pixels of a strip share a thread: its weights, its lines of x and its place are found once. */
template <int KIND, int DTYPE, int PIXELS>
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
    const int32_t thread = (int32_t)threadIdx.x, in_tile = by_channel ? thread % LANES : 0;
    const int32_t apart = by_channel ? THREADS / LANES : THREADS;
    const int32_t kept = j.is_kept ? (int32_t)j.d.source.k : 0;
    const float *const prescale = (const float *)(taps + kept);
    const struct lane l = {j.is_kept ? taps : NULL, prescale,
                           (const uint32_t *)(prescale + kept) + in_tile, first + in_tile};
    if (l.output >= j.d.w.n)
        return;
    const int32_t channel = l.output / j.d.per_group;
    const int64_t row = j.d.source.row, end = min((chunk + 1) * j.strips_of_cta, j.strips);
    for (int64_t at = chunk * j.strips_of_cta + (by_channel ? thread / LANES : thread); at < end;
         at += apart) {
        const struct strip p = strip_of<PIXELS>(j, at, channel);
        float v[PIXELS] = {};
        int32_t raw[PIXELS] = {};
        if constexpr (KIND == DEPTHWISE_FLOATS)
            float_sums<DTYPE>(j, l, p, v);
        else if constexpr (KIND == DEPTHWISE_GIVEN)
            given_sums(j, l, p, v, raw);
        else
            coded_sums<KIND, DTYPE>(j, l, p, v);
#pragma unroll
        for (int i = 0; i < PIXELS; i++)
            if (i < p.n && p.row + i >= row && p.row + i < row + j.d.m)
                store<KIND>(j, p, i, l.output, v[i], raw[i]);
    }
}

#define KERNELS(kind, pixels)                                                                      \
    {                                                                                              \
        (const void *)depthwise_kernel<kind, QN_F32, pixels>,                                      \
            (const void *)depthwise_kernel<kind, QN_F16, pixels>,                                  \
            (const void *)depthwise_kernel<kind, QN_BF16, pixels>                                  \
    }

/* Every kernel, layout and strategy. */
static int32_t run_general(const struct qni_cuda_depthwise *args,
                           const struct qni_cuda_launch *launch)
{
    static const void *const kernels[4][3] = {
        KERNELS(DEPTHWISE_FLOATS, 4),
        {(const void *)depthwise_kernel<DEPTHWISE_GIVEN, BYTES, 4>},
        KERNELS(DEPTHWISE_ROW, 2),
        KERNELS(DEPTHWISE_BLOCK, 2),
    };
    const struct qni_cuda_source *const s = &args->source;
    const struct qni_cuda_sink *const out = &args->out;
    const int32_t kind = depthwise_kind(args);
    const int64_t pixels = kind == DEPTHWISE_FLOATS || kind == DEPTHWISE_GIVEN ? 4 : 2;
    struct depthwise_job j = {};
    j.d = *args;
    j.kw = rows_divisor_of(s->kw);
    j.oh = rows_divisor_of(s->oh);
    j.across = rows_divisor_of((s->ow + pixels - 1) / pixels);
    j.first_line = s->row / s->ow;
    j.strips = ((s->row + args->m - 1) / s->ow - j.first_line + 1) * j.across.by;
    j.advance = s->transposed ? 1 : s->stride[1];
    j.step = j.advance * s->xs[3];
    j.outputs = s->xs[1] == 1 && args->w.n >= 8 ? (int32_t)LANES : 1;
    j.tiles = (args->w.n + j.outputs - 1) / j.outputs;
    j.strips_of_cta = j.outputs > 1 ? 64 : 512;
    const size_t bytes =
        (size_t)s->k * (sizeof(struct tap) + ((size_t)j.outputs + 1) * sizeof(uint32_t));
    j.is_kept = bytes <= ROWS_SHARED;
    j.is_apart = s->transposed && (s->stride[0] > 1 || s->stride[1] > 1);
    j.is_bare = out->row_scale == NULL && out->col_scale == NULL && out->bias == NULL &&
                out->residual == NULL && out->act == QN_ACT_NONE && !out->has_clamp;
    j.flip = s->dtype == QN_U8 ? 0x80u : 0u;
    j.hole = kind == DEPTHWISE_GIVEN ? ((uint32_t)s->x_zero & 0xffu) ^ j.flip : 0u;
    const int64_t grid = (j.strips + j.strips_of_cta - 1) / j.strips_of_cta * j.tiles;
    return rows_launch_shared(kernels[kind][kind == DEPTHWISE_GIVEN ? 0 : s->dtype - QN_F32], grid,
                              dim3(THREADS), j.is_kept ? bytes : 0, &j, launch);
}

/* May the kernels with windows be asked? int8 kernels have one segment there, and int8-static no
 * sum of x. */
static bool is_common(const struct qni_cuda_depthwise *args)
{
    const struct qni_cuda_source *const s = &args->source;
    const int32_t kind = depthwise_kind(args);
    if (!s->is_image || s->transposed || args->per_group != 1 || s->row != 0 ||
        args->m % (s->oh * s->ow) != 0)
        return false;
    if (kind == DEPTHWISE_FLOATS)
        return true;
    if (args->w.n_groups > 1 || args->w.n_segments > 1)
        return false;
    return kind == DEPTHWISE_GIVEN ? args->w.shift == QNI_CUDA_SHIFT_NONE : s->prescale == NULL;
}

int32_t qni_cuda_depthwise_sm75(const struct qni_cuda_depthwise *args,
                                const struct qni_cuda_launch *launch)
{
    int32_t failed = DEPTHWISE_PASS;
    if (args->m == 0 || args->w.n == 0)
        return 0;
    if (is_common(args))
        failed = qni_cuda_depthwise_channels(args, launch);
    if (is_common(args) && failed == DEPTHWISE_PASS)
        failed = qni_cuda_depthwise_lines(args, launch);
    if (is_common(args) && failed == DEPTHWISE_PASS)
        failed = qni_cuda_depthwise_planes(args, launch);
    return failed == DEPTHWISE_PASS ? run_general(args, launch) : failed;
}
