/* SPDX-License-Identifier: Apache-2.0 */
/* Where the matrix of GPTQ comes from: given, or summed from samples of the input. Inputs are
 * multiplied by the prescale first, as the weights' inputs will be. Sums are in double and in the
 * order of the samples. */
#include <math.h>
#include <string.h>

#include "../base/error.h"
#include "../base/size.h"
#include "hessian.h"

enum { PANEL = 64, ROWS = 32 };

static double prescale_of(const qn_quantize_options *o, int64_t column)
{
    return o->prescale != NULL ? (double)o->prescale[column] : 1.0;
}

/* ---- given ---- */

static qn_status check_given(const qn_tensor *t, int64_t k, qn_error *err)
{
    if (t->device.kind != QN_CPU || t->data == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "the Hessian has no data in the CPU's memory");
    if (t->dtype != QN_F32 && t->dtype != QN_F64)
        return qni_fail(err, QN_E_DTYPE, "the Hessian is of type %s; f32 and f64 can be read",
                        qn_dtype_name(t->dtype));
    if (t->rank != 2 || t->shape[0] != k || t->shape[1] != k)
        return qni_fail(err, QN_E_SHAPE, "the Hessian is not [%lld, %lld]", (long long)k,
                        (long long)k);
    return qn_tensor_extent(t, NULL, NULL) == QN_OK
               ? QN_OK
               : qni_fail(err, QN_E_STRIDE, "the Hessian has an impossible stride");
}

static double given(const qn_tensor *t, int64_t i, int64_t j)
{
    const int64_t at = i * t->stride[0] + j * t->stride[1];
    return t->dtype == QN_F64 ? ((const double *)t->data)[at]
                              : (double)((const float *)t->data)[at];
}

static qn_status fill_given(struct qni_hessian *h, const qn_quantize_options *o, qn_error *err)
{
    for (int64_t a = 0; a < h->k; a++) {
        const int64_t i = h->column[h->k - 1 - a];
        for (int64_t b = 0; b <= a; b++) {
            const int64_t j = h->column[h->k - 1 - b];
            const double mean = 0.5 * (given(o->hessian, i, j) + given(o->hessian, j, i));
            if (!isfinite(mean))
                return qni_fail(err, QN_E_VALUE,
                                "the Hessian at row %lld, column %lld is not finite", (long long)i,
                                (long long)j);
            h->a[a * h->k + b] = mean * prescale_of(o, i) * prescale_of(o, j);
        }
    }
    return QN_OK;
}

/* ---- from samples ---- */

struct sum {
    struct qni_hessian *h;
    const double *panel; /* [count, k], backwards */
    int64_t count;
};

static void add_panel(void *arg, int32_t item)
{
    const struct sum *s = arg;
    const int64_t k = s->h->k, begin = item * (int64_t)ROWS, end = qni_min(begin + ROWS, k);
    enum { TILE = 1024 };
    for (int64_t b = 0; b < end; b += TILE)
        for (int64_t a = begin; a < end; a++) {
            double *restrict row = s->h->a + a * k;
            const int64_t stop = qni_min(b + TILE, a + 1);
            for (int64_t r = 0; r < s->count; r++) {
                const double *restrict x = s->panel + r * k;
                const double f = x[a];
                for (int64_t c = b; c < stop; c++)
                    row[c] += f * x[c];
            }
        }
}

static qn_status fill_samples(struct qni_hessian *h, const qn_ctx *ctx,
                              const qn_quantize_options *o, qn_error *err)
{
    struct qni_dense samples;
    QNI_TRY(qni_dense_open(o->samples, "the tensor of samples", &samples, err));
    const size_t panel_bytes = (size_t)h->k * PANEL * sizeof(double);
    const size_t row_bytes = (size_t)h->k * sizeof(float);
    double *panel = qni_alloc(&ctx->allocator, panel_bytes + row_bytes);
    if (panel == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for %d samples", (int)PANEL);
    float *x = (float *)(void *)((char *)panel + panel_bytes);
    memset(h->a, 0, (size_t)h->k * (size_t)h->k * sizeof *h->a);
    for (int64_t first = 0; first < samples.n; first += PANEL) {
        struct sum s = {h, panel, qni_min(PANEL, samples.n - first)};
        for (int64_t r = 0; r < s.count; r++) {
            qni_dense_read(&samples, first + r, x);
            for (int64_t a = 0; a < h->k; a++) {
                const int64_t column = h->column[h->k - 1 - a];
                panel[r * h->k + a] = (double)x[column] * prescale_of(o, column);
            }
        }
        qni_parallel(&ctx->threads, (int32_t)qni_ceil_div(h->k, ROWS), add_panel, &s);
    }
    qni_free(&ctx->allocator, panel, panel_bytes + row_bytes);
    return QN_OK;
}

static qn_status diagonal_of_samples(struct qni_hessian *h, const qn_ctx *ctx,
                                     const qn_quantize_options *o, qn_error *err)
{
    struct qni_dense samples;
    QNI_TRY(qni_dense_open(o->samples, "the tensor of samples", &samples, err));
    if (samples.k != h->k || samples.n == 0)
        return qni_fail(err, QN_E_SHAPE, "samples are [%lld, %lld]; [1 or more, %lld] are needed",
                        (long long)samples.n, (long long)samples.k, (long long)h->k);
    const size_t bytes = (size_t)h->k * sizeof(float);
    float *x = qni_alloc(&ctx->allocator, bytes);
    if (x == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for a sample");
    memset(h->diagonal, 0, (size_t)h->k * sizeof *h->diagonal);
    qn_status status = QN_OK;
    for (int64_t r = 0; r < samples.n && status == QN_OK; r++) {
        qni_dense_read(&samples, r, x);
        const int64_t bad = qni_find_bad(x, h->k);
        if (bad >= 0)
            status = qni_fail(err, QN_E_VALUE, "sample %lld, column %lld is not finite",
                              (long long)r, (long long)bad);
        for (int64_t c = 0; c < h->k; c++) {
            const double v = (double)x[c] * prescale_of(o, c);
            h->diagonal[c] += v * v;
        }
    }
    qni_free(&ctx->allocator, x, bytes);
    return status;
}

/* ---- either ---- */

qn_status qni_hessian_diagonal(struct qni_hessian *h, const qn_ctx *ctx,
                               const qn_quantize_options *o, qn_error *err)
{
    if ((o->hessian != NULL) == (o->samples != NULL))
        return qni_fail(err, QN_E_ARGUMENT, "GPTQ needs either a Hessian or samples of the input");
    if (!(o->damping >= 0.0) || !isfinite(o->damping))
        return qni_fail(err, QN_E_ARGUMENT, "the damping %g is not 0 or more", o->damping);
    if (o->samples != NULL)
        return diagonal_of_samples(h, ctx, o, err);
    QNI_TRY(check_given(o->hessian, h->k, err));
    for (int64_t c = 0; c < h->k; c++) {
        const double d = given(o->hessian, c, c);
        if (!(d >= 0.0) || !isfinite(d))
            return qni_fail(err, QN_E_VALUE, "the Hessian's diagonal at column %lld is %g",
                            (long long)c, d);
        h->diagonal[c] = d * prescale_of(o, c) * prescale_of(o, c);
    }
    return QN_OK;
}

/* A column that no sample uses has no say: 1 keeps the matrix regular and feeds nothing back. */
qn_status qni_hessian_fill(struct qni_hessian *h, const qn_ctx *ctx, const qn_quantize_options *o,
                           qn_error *err)
{
    if (o->hessian != NULL)
        QNI_TRY(fill_given(h, o, err));
    else
        QNI_TRY(fill_samples(h, ctx, o, err));
    double mean = 0.0;
    for (int64_t a = 0; a < h->k; a++)
        mean += h->a[a * h->k + a] / (double)h->k;
    for (int64_t a = 0; a < h->k; a++) {
        double *d = &h->a[a * h->k + a];
        *d = *d == 0.0 && !(o->damping * mean > 0.0) ? 1.0 : *d + o->damping * mean;
    }
    return QN_OK;
}
