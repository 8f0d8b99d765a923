/* SPDX-License-Identifier: Apache-2.0 */
/* Activations to int8, by the f32 steps of docs/numerics.md, one segment at a time:
 *     symmetric    scale = amax / 127,              code = rint(x / scale)
 *     asymmetric   scale = (hi - lo) / 255,         value = scale * code + offset
 * Rounding and fma are the C library's, not those of base/exact.h. Strides are obeyed, nothing is
 * packed. */
#include <math.h>
#include <stdlib.h>

#include "ref.h"

static int32_t clamp_code(float v, int32_t shift, int32_t lo)
{
    const float r = rintf(v) - (float)shift; /* |v| < 2^9: exact */
    return r < (float)lo ? lo : r > 127.0f ? 127 : (int32_t)r;
}

static struct qni_ref_segment quantize_symmetric(const float *x, int64_t n, int32_t *codes)
{
    struct qni_ref_segment s = {0};
    float amax = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        codes[i] = 0;
        if (fabsf(x[i]) > amax)
            amax = fabsf(x[i]);
    }
    if (!finite) {
        s.scale = NAN;
        s.total = NAN;
        return s;
    }
    if (amax >= 0x1p-120f) {
        const float inv = 127.0f / amax;
        s.scale = amax / 127.0f;
        for (int64_t i = 0; i < n; i++) {
            codes[i] = clamp_code(x[i] * inv, 0, -127);
            s.sum += codes[i];
        }
    }
    s.total = fmaf(s.scale, (float)s.sum, 0.0f * (float)n);
    return s;
}

static struct qni_ref_segment quantize_asymmetric(const float *x, int64_t n, int32_t *codes)
{
    struct qni_ref_segment s = {0};
    float lo = n > 0 ? x[0] : 0.0f, hi = lo;
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        finite = finite && isfinite(x[i]);
        codes[i] = 0;
        if (x[i] < lo)
            lo = x[i];
        if (x[i] > hi)
            hi = x[i];
    }
    lo += 0.0f; /* -0 becomes +0: which zero a row begins with must not show */
    const float h = hi / 2.0f - lo / 2.0f;
    if (!finite) {
        s.scale = NAN;
    } else if (h < 0x1p-120f) {
        s.offset = lo;
    } else {
        const float inv = 255.0f / h;
        s.scale = h / 127.5f;
        s.offset = fmaf(128.0f, s.scale, lo);
        for (int64_t i = 0; i < n; i++) {
            codes[i] = clamp_code((x[i] / 2.0f - lo / 2.0f) * inv, 128, -128);
            s.sum += codes[i];
        }
    }
    s.total = fmaf(s.scale, (float)s.sum, s.offset * (float)n);
    return s;
}

struct qni_ref_segment qni_ref_quantize(const float *x, int64_t n, bool symmetric, int32_t *codes)
{
    return symmetric ? quantize_symmetric(x, n, codes) : quantize_asymmetric(x, n, codes);
}

double qni_ref_e4m3(float v, bool saturates)
{
    if (isnan(v) || (isinf(v) && !saturates))
        return (double)NAN;
    const double a = fabs((double)v);
    int e = 0;
    (void)frexp(a, &e); /* a = f * 2^e, f from 1/2 on: the number has 2^(e - 1) */
    const double unit = ldexp(1.0, (e - 1 < -6 ? -6 : e - 1) - 3);
    const double r = isinf(v) ? 448.0 : fmin(nearbyint(a / unit) * unit, 448.0);
    return copysign(r, (double)v);
}

float qni_ref_quantize_e4m3(double *values, int64_t n)
{
    float amax = 0.0f, scale = 0.0f;
    bool finite = true;
    for (int64_t i = 0; i < n; i++) {
        finite = finite && isfinite(values[i]);
        amax = fmaxf(amax, fabsf((float)values[i]));
    }
    if (!finite)
        scale = NAN;
    else if (amax >= 0x1p-120f)
        scale = amax / 448.0f;
    const float inv = 448.0f / amax;
    for (int64_t i = 0; i < n; i++)
        values[i] =
            (double)scale *
            (scale > 0.0f ? qni_ref_e4m3((float)values[i] * inv, true) : 0.0);
    return scale;
}

/* Codes by search: the one that stands for value / scale, of either sign of zero that of x. */
static void store_e4m3(const qn_quantize_rows_args *args, int64_t i, int64_t block, int64_t first,
                       int64_t n, const float *x)
{
    float amax = 0.0f, scale = 0.0f;
    bool finite = true;
    for (int64_t p = 0; p < n; p++) {
        finite = finite && isfinite(x[p]);
        amax = fmaxf(amax, fabsf(x[p]));
    }
    if (!finite)
        scale = NAN;
    else if (amax >= 0x1p-120f)
        scale = amax / 448.0f;
    for (int64_t p = 0; p < n; p++) {
        const double value = scale > 0.0f ? qni_ref_e4m3(x[p] * (448.0f / amax), true) : 0.0;
        uint8_t code = 0;
        for (int32_t c = 0; c < 256; c++) {
            const uint8_t tried = (uint8_t)c;
            if (qni_ref_get(&tried, QN_E4M3, 0) == value &&
                (c >= 128) == (signbit(value) != 0))
                code = tried;
        }
        ((uint8_t *)args->codes.data)[i * args->codes.stride[0] +
                                      (first + p) * args->codes.stride[1]] = code;
    }
    ((float *)args->scale.data)[i * args->scale.stride[0] + block * args->scale.stride[1]] = scale;
}

/* One block of one row into the caller's tensors. u8 codes are those of int8 + 128, so that value =
 * scale * code + lo. */
static void store_block(const qn_quantize_rows_args *args, int64_t i, int64_t block, int64_t first,
                        int64_t n, const float *x, int32_t *codes)
{
    const bool symmetric = args->offset.rank == 0;
    if (args->codes.dtype == QN_E4M3) {
        store_e4m3(args, i, block, first, n, x);
        return;
    }
    struct qni_ref_segment s = qni_ref_quantize(x, n, symmetric, codes);
    if (args->codes.dtype == QN_U8) {
        float lo = n > 0 ? x[0] : 0.0f;
        for (int64_t p = 0; p < n; p++) {
            codes[p] += 128;
            if (x[p] < lo)
                lo = x[p];
        }
        s.offset = isnan(s.scale) ? 0.0f : lo + 0.0f;
        s.sum += 128 * (int32_t)n;
    }
    for (int64_t p = 0; p < n; p++) {
        const int64_t at = i * args->codes.stride[0] + (first + p) * args->codes.stride[1];
        ((uint8_t *)args->codes.data)[at] = (uint8_t)(codes[p] & 0xff);
    }
    ((float *)args->scale.data)[i * args->scale.stride[0] + block * args->scale.stride[1]] =
        s.scale;
    if (!symmetric)
        ((float *)args->offset.data)[i * args->offset.stride[0] + block * args->offset.stride[1]] =
            s.offset;
    if (args->sum.rank != 0)
        ((int32_t *)args->sum.data)[i * args->sum.stride[0] + block * args->sum.stride[1]] = s.sum;
}

/* ONNX's QuantizeLinear, and DynamicQuantizeLinear, whose range takes 0 in. */
struct linear {
    float scale;
    int32_t zero;
};

static struct linear linear_of(const float *x, int64_t n, qn_dtype dtype)
{
    const float least = dtype == QN_I8 ? -128.0f : 0.0f;
    float lo = 0.0f, hi = 0.0f;
    for (int64_t p = 0; p < n; p++) {
        if (!isfinite(x[p]))
            return (struct linear){NAN, 0};
        lo = fminf(lo, x[p]);
        hi = fmaxf(hi, x[p]);
    }
    struct linear l = {(hi - lo) / 255.0f, 0};
    if (isinf(l.scale))
        l.scale = hi / 255.0f - lo / 255.0f;
    if (l.scale == 0.0f)
        l.scale = 1.0f;
    l.zero = (int32_t)rintf(fminf(fmaxf(least - lo / l.scale, least), least + 255.0f));
    return l;
}

static int32_t linear_code(float x, struct linear l, qn_dtype dtype)
{
    const float least = dtype == QN_I8 ? -128.0f : 0.0f, quotient = x / l.scale;
    const float code = isnan(quotient)          ? (float)l.zero
                       : fabsf(quotient) < 1e6f ? rintf(quotient) + (float)l.zero
                                                : quotient;
    return (int32_t)fminf(fmaxf(code, least), least + 255.0f);
}

/* x: [m, k] floats that follow each other. Blocks of k columns where block is not positive. */
static void quantize_linear(const qn_quantize_rows_args *a, const float *x)
{
    const int64_t m = a->x.shape[0], k = a->x.shape[1], block = a->block > 0 ? a->block : k;
    const bool is_whole = a->block == QN_GROUP_PER_TENSOR;
    const qn_dtype dtype = a->codes.dtype;
    for (int64_t i = 0; i < m; i++)
        for (int64_t b = 0; b * block < k || (b == 0 && a->block <= 0); b++) {
            const int64_t first = b * block, n = k - first < block ? k - first : block;
            const int64_t at = is_whole ? 0 : i * a->scale.stride[0] + b;
            const int64_t zero_at = is_whole || a->zero.rank == 0 ? 0 : i * a->zero.stride[0] + b;
            float *const scale = (float *)a->scale.data + at;
            uint8_t *const zero = a->zero.rank == 0 ? NULL : (uint8_t *)a->zero.data + zero_at;
            struct linear l = {*scale, zero == NULL ? 0 : dtype == QN_I8 ? (int8_t)*zero : *zero};
            int32_t sum = 0;
            if (!a->given) {
                l = is_whole ? linear_of(x, m * k, dtype) : linear_of(x + i * k + first, n, dtype);
                *scale = l.scale;
                *zero = (uint8_t)l.zero;
            }
            for (int64_t p = first; p < first + n; p++) {
                const int32_t code = linear_code(x[i * k + p], l, dtype);
                ((uint8_t *)a->codes.data)[i * a->codes.stride[0] + p] = (uint8_t)code;
                sum += code;
            }
            if (a->sum.rank != 0)
                ((int32_t *)a->sum.data)[i * a->sum.stride[0] + b] = sum;
        }
}

static qn_status quantize_linear_rows(const qn_quantize_rows_args *a)
{
    const int64_t m = a->x.shape[0], k = a->x.shape[1];
    float *const x = malloc((size_t)(m * k + 1) * sizeof *x);
    if (x == NULL)
        return QN_E_MEMORY;
    for (int64_t i = 0; i < m; i++)
        for (int64_t p = 0; p < k; p++)
            x[i * k + p] =
                (float)qni_ref_get(a->x.data, a->x.dtype, i * a->x.stride[0] + p * a->x.stride[1]);
    quantize_linear(a, x);
    free(x);
    return QN_OK;
}

qn_status qni_ref_quantize_rows(const qn_quantize_rows_args *args)
{
    if (args->given || args->zero.rank != 0)
        return quantize_linear_rows(args);

    const int64_t m = args->x.shape[0], k = args->x.shape[1];
    const int64_t block = args->block > 0 ? args->block : k;
    float *x = malloc((size_t)(k + 1) * sizeof *x);
    int32_t *codes = malloc((size_t)(k + 1) * sizeof *codes);
    if (x != NULL && codes != NULL)
        for (int64_t i = 0; i < m; i++) {
            for (int64_t p = 0; p < k; p++)
                x[p] = (float)qni_ref_get(args->x.data, args->x.dtype,
                                          i * args->x.stride[0] + p * args->x.stride[1]);
            for (int64_t b = 0; b * block < k || (b == 0 && args->block <= 0); b++) {
                const int64_t first = b * block, n = k - first < block ? k - first : block;
                store_block(args, i, b, first, n, x + first, codes);
            }
        }
    const bool enough = x != NULL && codes != NULL;
    free(x);
    free(codes);
    return enough ? QN_OK : QN_E_MEMORY;
}
