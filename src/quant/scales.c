/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scales that move difficulty between activations and weights: y = (x / s) . (W s)^T. They are
 * stored with a weight as prescale = 1 / s.
 *
 *     SmoothQuant  s[j] = max(amax x[j], 1e-5)^alpha / max(amax w[j], 1e-5)^(1 - alpha)
 *     AWQ          s[j] = mean|x[j]|^r, divided by sqrt(max s * min s); of 20 exponents r the one
 *                  with the least sum over samples of |x . (dequant(quant(W s)) / s - W)^T|^2
 */
#include <math.h>
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "coder.h"
#include "dense.h"

enum { ROWS = 32 };

/* ---- SmoothQuant ---- */

struct amax {
    const struct qni_dense *dense;
    float *part; /* [items, 2, k]: largest magnitudes, and a row */
    int64_t rows_per_item;
    bool *bad; /* [items] */
};

static void find_amax(void *arg, int32_t item)
{
    const struct amax *a = arg;
    const int64_t k = a->dense->k, first = item * a->rows_per_item;
    float *restrict most = a->part + (int64_t)item * 2 * k, *restrict x = most + k;
    memset(most, 0, (size_t)k * sizeof *most);
    for (int64_t row = first; row < qni_min(first + a->rows_per_item, a->dense->n); row++) {
        qni_dense_read(a->dense, row, x);
        if (qni_find_bad(x, k) >= 0)
            a->bad[item] = true;
        for (int64_t c = 0; c < k; c++)
            most[c] = fabsf(x[c]) > most[c] ? fabsf(x[c]) : most[c];
    }
}

qn_status qn_smooth_scales(const qn_ctx *ctx, const qn_tensor *dense, const float *x_amax,
                           double alpha, float *out, qn_error *err)
{
    enum { ITEMS = 64 };
    struct qni_dense d;
    bool bad[ITEMS] = {false};
    if (ctx == NULL || x_amax == NULL || out == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "context, x_amax or out is NULL");
    if (!(alpha >= 0.0 && alpha <= 1.0))
        return qni_fail(err, QN_E_ARGUMENT, "alpha is %g, must be in [0, 1]", alpha);
    QNI_TRY(qni_dense_open(dense, "weights", &d, err));
    const int64_t items = qni_max(1, qni_min(ITEMS, d.n));
    const size_t bytes = (size_t)items * 2 * (size_t)d.k * sizeof(float);
    struct amax a = {&d, qni_alloc(&ctx->allocator, bytes), qni_ceil_div(d.n, items), bad};
    if (a.part == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for the extremes of %lld columns",
                        (long long)d.k);
    qni_parallel(&ctx->threads, (int32_t)items, find_amax, &a);
    qn_status status = QN_OK;
    for (int64_t i = 0; i < items && status == QN_OK; i++)
        if (bad[i])
            status = qni_fail(err, QN_E_VALUE, "the weights hold a NaN or an infinity");
    for (int64_t c = 0; c < d.k && status == QN_OK; c++) {
        float w = 0.0f;
        for (int64_t i = 0; i < items; i++)
            w = fmaxf(w, a.part[i * 2 * d.k + c]);
        if (!(x_amax[c] >= 0.0f) || !isfinite(x_amax[c]))
            status =
                qni_fail(err, QN_E_VALUE, "x_amax[%lld] is %g, must be finite and not negative",
                         (long long)c, (double)x_amax[c]);
        else
            out[c] = (float)(pow(fmax((double)x_amax[c], 1e-5), alpha) /
                             pow(fmax((double)w, 1e-5), 1.0 - alpha));
    }
    qni_free(&ctx->allocator, a.part, bytes);
    return status;
}

/* ---- AWQ ---- */

/* Rows of weights are dealt out; each item keeps its own row and error. */
struct awq {
    struct qni_dense weights;
    const float *samples; /* [k rounded up to 4, n_samples] */
    int64_t n_samples, group, unit;
    const float *scale; /* [k], the candidate's */
    struct qni_coder coder;
    float *row; /* [items, row_floats]: a row, what changes in it, outputs by sample */
    int64_t row_floats;
    uint8_t *codes; /* [items, k] */
    double *error;  /* [items] */
    int64_t first;  /* row of this round */
};

/* What quantization changes in a row, seen by the original input. False: not finite. */
static bool find_change(const struct awq *a, int64_t row, float *x, float *change, uint8_t *codes)
{
    struct qni_params params[1024];
    const int64_t k = a->weights.k;
    qni_dense_read(&a->weights, row, x);
    for (int64_t c = 0; c < k; c++)
        x[c] *= a->scale[c];
    for (int64_t at = 0; at < k; at += a->unit) {
        const int64_t n = qni_min(a->unit, k - at);
        if (!qni_fit_rtn(&a->coder, x + at, n, a->group, params))
            return false;
        for (int64_t g = 0; g * a->group < n; g++) {
            const int64_t first = at + g * a->group, count = qni_min(a->group, n - g * a->group);
            qni_encode(&a->coder, &params[g], x + first, count, codes + first);
            for (int64_t i = first; i < first + count; i++)
                change[i] = (qni_decode(&a->coder, &params[g], codes[i]) - x[i]) / a->scale[i];
        }
    }
    return true;
}

/* y += x . change, four columns at a time; samples are side by side, so that no sum has to be
 * reordered to run in vectors. f32 is enough: candidates differ by more than its last bits. */
static void add_columns(const float *restrict samples, int64_t n_samples, const float change[4],
                        float *restrict y)
{
    const float *restrict a = samples, *restrict b = a + n_samples;
    const float *restrict c = b + n_samples, *restrict d = c + n_samples;
    for (int64_t s = 0; s < n_samples; s++)
        y[s] += (a[s] * change[0] + b[s] * change[1]) + (c[s] * change[2] + d[s] * change[3]);
}

static void measure_row(void *arg, int32_t item)
{
    const struct awq *a = arg;
    const int64_t k = a->weights.k, padded = (k + 3) / 4 * 4;
    float *x = a->row + item * a->row_floats, *change = x + k, *y = change + padded;
    double sum = 0.0;
    if (!find_change(a, a->first + item, x, change, a->codes + item * k)) {
        a->error[item] = NAN;
        return;
    }
    for (int64_t c = k; c < padded; c++)
        change[c] = 0.0f;
    memset(y, 0, (size_t)a->n_samples * sizeof *y);
    for (int64_t c = 0; c < padded; c += 4)
        add_columns(a->samples + c * a->n_samples, a->n_samples, change + c, y);
    for (int64_t s = 0; s < a->n_samples; s++)
        sum += (double)y[s] * (double)y[s];
    a->error[item] = sum;
}

static double measure(const qn_ctx *ctx, struct awq *a)
{
    double sum = 0.0;
    for (a->first = 0; a->first < a->weights.n; a->first += ROWS) {
        const int32_t items = (int32_t)qni_min(ROWS, a->weights.n - a->first);
        qni_parallel(&ctx->threads, items, measure_row, a);
        for (int32_t i = 0; i < items; i++)
            sum += a->error[i];
    }
    return sum;
}

static void candidate(const float *x_mean, int64_t k, double exponent, float *scale)
{
    double lo = INFINITY, hi = 0.0;
    for (int64_t c = 0; c < k; c++) {
        const double s = fmax(pow((double)x_mean[c], exponent), 1e-4);
        scale[c] = (float)s;
        lo = fmin(lo, s);
        hi = fmax(hi, s);
    }
    const double middle = sqrt(lo * hi);
    for (int64_t c = 0; c < k; c++)
        scale[c] = (float)((double)scale[c] / middle);
}

/* scale: [k] spare floats. */
static qn_status search(const qn_ctx *ctx, struct awq *a, const float *x_mean, float *scale,
                        float *out)
{
    enum { STEPS = 20 };
    const int64_t k = a->weights.k;
    double least = INFINITY;
    a->scale = scale;
    for (int i = 0; i < STEPS; i++) {
        candidate(x_mean, k, (double)i / STEPS, scale);
        const double error = measure(ctx, a);
        if (error < least) {
            least = error;
            memcpy(out, scale, (size_t)k * sizeof *out);
        }
    }
    return isfinite(least) ? QN_OK : QN_E_VALUE; /* every candidate met a NaN or an infinity */
}

static qn_status check_awq(const struct awq *a, const struct qni_dense *samples,
                           const float *x_mean, const qn_format *format, qn_error *err)
{
    if (samples->k != a->weights.k || samples->n < 1)
        return qni_fail(err, QN_E_SHAPE, "the samples are [%lld, %lld], must be [1 or more, %lld]",
                        (long long)samples->n, (long long)samples->k, (long long)a->weights.k);
    /* What depends on more than a row, or on the geometry of a convolution, is not asked for. */
    if (format->group == QN_GROUP_PER_TENSOR || format->blocks != QN_BLOCKS_RUN)
        return qni_fail(err, QN_E_FORMAT,
                        "AWQ's scales are for groups along a row, not per tensor or by channels");
    for (int64_t c = 0; c < a->weights.k; c++)
        if (!(x_mean[c] >= 0.0f) || !isfinite(x_mean[c]))
            return qni_fail(err, QN_E_VALUE, "x_mean[%lld] is %g, must be finite and not negative",
                            (long long)c, (double)x_mean[c]);
    return QN_OK;
}

qn_status qn_awq_scales(const qn_ctx *ctx, const qn_tensor *dense, const float *x_mean,
                        const qn_tensor *samples, const qn_format *format, float *out,
                        qn_error *err)
{
    struct awq a;
    struct qni_dense x;
    if (ctx == NULL || x_mean == NULL || samples == NULL || format == NULL || out == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "context, x_mean, samples, format or out is NULL");
    memset(&a, 0, sizeof a);
    QNI_TRY(qni_coder_init(&a.coder, format, QN_RANGE_NARROW, err));
    QNI_TRY(qni_dense_open(dense, "weights", &a.weights, err));
    QNI_TRY(qni_dense_open(samples, "samples", &x, err));
    QNI_TRY(check_awq(&a, &x, x_mean, format, err));
    const int64_t k = a.weights.k;
    if (k == 0)
        return QN_OK;
    a.group = format->group < 0 ? k : qni_min(format->group, k);
    a.unit = a.group * (format->superblock > 0 ? format->superblock : 1);
    a.n_samples = x.n;

    const int64_t padded = (k + 3) / 4 * 4;
    a.row_floats = k + padded + x.n;
    size_t floats, bytes;
    if (!qni_size_mul((size_t)x.n + 2 * ROWS + 1, (size_t)padded + ROWS, &floats) ||
        !qni_size_mul(floats, sizeof(float), &bytes) ||
        !qni_size_add(bytes, (size_t)k * ROWS + ROWS * sizeof(double), &bytes))
        return qni_fail(err, QN_E_MEMORY, "the samples are too large");
    char *memory = qni_alloc(&ctx->allocator, bytes);
    if (memory == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for %lld samples", (long long)x.n);
    a.error = (double *)(void *)memory;
    float *columns = (float *)(void *)(a.error + ROWS), *scale = columns + padded * x.n;
    a.samples = columns;
    a.row = scale + k;
    a.codes = (uint8_t *)(a.row + ROWS * a.row_floats);
    bool is_finite = true;
    memset(columns, 0, (size_t)(padded * x.n) * sizeof *columns);
    for (int64_t s = 0; s < x.n; s++) {
        qni_dense_read(&x, s, a.row);
        is_finite &= qni_find_bad(a.row, k) < 0;
        for (int64_t c = 0; c < k; c++)
            columns[c * x.n + s] = a.row[c];
    }
    qn_status status = is_finite ? search(ctx, &a, x_mean, scale, out) : QN_E_VALUE;
    if (status != QN_OK)
        status = qni_fail(err, status, "the %s hold a NaN or an infinity, or overflow when scaled",
                          is_finite ? "weights" : "samples");
    qni_free(&ctx->allocator, memory, bytes);
    return status;
}
