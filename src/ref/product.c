/* SPDX-License-Identifier: Apache-2.0 */
/* Products and convolutions in double, each by its own definition: P = x . W^T with the dequantized
 * weights and the real activations. A convolution is written as loops over taps and channels, its
 * transpose as the scattering of every pixel, so that neither shares an index computation with a
 * patch matrix.
 *
 * Beside each P stands the bound of docs/numerics.md for f32 accumulation in any order. */
#include <math.h>
#include <stdlib.h>

#include "../quant/op.h"
#include "ref.h"

/* What is known of one P[i, j] while it is added up. */
struct sums {
    double p, size, x_max;
    bool nan, inf;
};

struct dense {
    double *w, *size;    /* [n, k] by column, prescale included */
    double w_max;        /* the largest |scale value| + |offset|, and |scale| */
    double prescale_max; /* at least 1 */
};

static void add(struct sums *s, double x, const struct dense *d, int64_t at)
{
    s->p += x * d->w[at];
    s->size += fabs(x) * d->size[at];
    s->x_max = fmax(s->x_max, fabs(x) * d->prescale_max);
    s->nan = s->nan || isnan(x);
    s->inf = s->inf || isinf(x);
}

static double real_x(const struct qni_ref_op *op, int64_t at)
{
    const double x = qni_ref_get(op->x.data, op->x.dtype, at);
    if (op->strategy == QN_STRATEGY_INT8_STATIC)
        return (double)op->quant.x_scale * (x - op->quant.x_zero);
    return x;
}

void qni_ref_row(const struct qni_ref_op *op, int64_t row, double *values)
{
    const bool is_fp8 = qni_is_fp8(op->strategy);
    const int64_t from = row * op->x.stride[0];
    const int64_t block = op->strategy == QN_STRATEGY_FP8_BLOCK ? 128 : op->k;
    for (int64_t c = 0; c < op->k; c++)
        values[c] = real_x(op, from + c * op->x.stride[1]);
    for (int64_t c = 0; is_fp8 && c < op->k; c++) {
        const int64_t b = c / block;
        if (op->strategy == QN_STRATEGY_FP8_STATIC && op->x.dtype == QN_E4M3)
            values[c] *= (double)op->quant.x_scale;
        else if (op->x.dtype == QN_E4M3)
            values[c] *= qni_ref_get(op->x_scales.data, QN_F32,
                                     row * op->x_scales.stride[0] + b * op->x_scales.stride[1]);
        else if (op->strategy == QN_STRATEGY_FP8_STATIC)
            values[c] = (double)op->quant.x_scale *
                        qni_ref_e4m3((float)values[c] * (1.0f / op->quant.x_scale),
                                     isfinite(values[c]));
        else if (c % block == 0)
            qni_ref_quantize_e4m3(values + c, op->k - c < block ? op->k - c : block);
    }
}

static void matmul(const struct qni_ref_op *op, const struct dense *dense, struct sums *sums,
                   double *x)
{
    for (int64_t i = 0; i < op->m; i++) {
        const int64_t expert = qni_ref_expert(op, i);
        if (expert < 0)
            continue;
        const int64_t row =
            op->x_rows.rank != 0 ? ((const int32_t *)op->x_rows.data)[i * op->x_rows.stride[0]] : i;
        qni_ref_row(op, row, x);
        for (int64_t j = 0; j < op->n; j++)
            for (int64_t c = 0; c < op->k; c++)
                add(&sums[i * op->n + j], x[c], &dense[expert], j * op->k + c);
    }
}

/* Strides of x by batch, channel, row, column. */
static void image_strides(const struct qni_ref_op *op, int64_t s[4])
{
    const int64_t *t = op->x.stride;
    const bool flat = op->x.rank == 3;
    s[0] = t[0];
    s[1] = op->image == QN_NCHW ? t[1] : t[flat ? 2 : 3];
    s[2] = flat ? 0 : op->image == QN_NCHW ? t[2] : t[1];
    s[3] = op->image == QN_NCHW ? t[flat ? 2 : 3] : t[flat ? 1 : 2];
}

static void conv2d(const struct qni_ref_op *op, const struct dense *dense, struct sums *sums)
{
    int64_t xs[4];
    image_strides(op, xs);
    for (int64_t b = 0; b < op->batch; b++)
        for (int64_t oy = 0; oy < op->oh; oy++)
            for (int64_t ox = 0; ox < op->ow; ox++)
                for (int64_t j = 0; j < op->n; j++)
                    for (int64_t ky = 0; ky < op->kh; ky++)
                        for (int64_t kx = 0; kx < op->kw; kx++) {
                            const int64_t iy =
                                oy * op->stride[0] + ky * op->dilation[0] - op->pad[0];
                            const int64_t ix =
                                ox * op->stride[1] + kx * op->dilation[1] - op->pad[1];
                            if (iy < 0 || iy >= op->ih || ix < 0 || ix >= op->iw)
                                continue;
                            const int64_t group = j / op->co;
                            const int64_t i = (b * op->oh + oy) * op->ow + ox;
                            for (int64_t c = 0; c < op->ci; c++)
                                add(&sums[i * op->n + j],
                                    real_x(op, b * xs[0] + (group * op->ci + c) * xs[1] +
                                                   iy * xs[2] + ix * xs[3]),
                                    dense, j * op->k + (ky * op->kw + kx) * op->ci + c);
                        }
}

static void conv_transpose2d(const struct qni_ref_op *op, const struct dense *dense,
                             struct sums *sums)
{
    int64_t xs[4];
    image_strides(op, xs);
    for (int64_t b = 0; b < op->batch; b++)
        for (int64_t iy = 0; iy < op->ih; iy++)
            for (int64_t ix = 0; ix < op->iw; ix++)
                for (int64_t ky = 0; ky < op->kh; ky++)
                    for (int64_t kx = 0; kx < op->kw; kx++) {
                        const int64_t oy = iy * op->stride[0] + ky * op->dilation[0] - op->pad[0];
                        const int64_t ox = ix * op->stride[1] + kx * op->dilation[1] - op->pad[1];
                        if (oy < 0 || oy >= op->oh || ox < 0 || ox >= op->ow)
                            continue;
                        const int64_t i = (b * op->oh + oy) * op->ow + ox;
                        for (int64_t j = 0; j < op->n; j++)
                            for (int64_t c = 0; c < op->ci; c++)
                                add(&sums[i * op->n + j],
                                    real_x(op, b * xs[0] + (j / op->co * op->ci + c) * xs[1] +
                                                   iy * xs[2] + ix * xs[3]),
                                    dense, j * op->k + (ky * op->kw + kx) * op->ci + c);
                    }
}

static qn_status dense_make(const struct qn_weight *w, const struct qni_ref_op *op, struct dense *d)
{
    d->w = malloc((size_t)(w->n * w->k + 1) * sizeof *d->w);
    d->size = malloc((size_t)(w->n * w->k + 1) * sizeof *d->size);
    if (d->w == NULL || d->size == NULL)
        return QN_E_MEMORY;
    if (op->rounds_weights != 0)
        qni_ref_round_weights(w, op->rounds_weights, op->rounds_in_place, d->w, d->size);
    else
        qni_ref_dequantize(w, true, d->w, d->size);
    d->w_max = 0.0;
    for (int64_t g = 0; g < w->n * w->n_groups; g++)
        d->w_max = fmax(d->w_max, fabs((double)w->scale[g]));
    for (int64_t i = 0; i < w->n * w->k; i++)
        d->w_max = fmax(d->w_max, d->size[i]);
    d->prescale_max = 1.0;
    for (int64_t c = 0; w->prescale != NULL && c < w->k; c++)
        d->prescale_max = fmax(d->prescale_max, fabs((double)w->prescale[c]));
    return QN_OK;
}

static double bound_of(const struct qni_ref_op *op, const struct sums *s, const struct dense *d)
{
    if (s->nan)
        return (double)NAN;
    if (s->inf)
        return (double)INFINITY;
    const double k8 = (double)op->k + 8.0;
    const double tiny = op->no_subnormals ? 0x1p-126 : 0x1p-149;
    const double short_sums = op->short_sums ? 0x1p-8 * s->size : 0.0;
    return short_sums + 2.0 * k8 * 0x1p-24 * s->size + k8 * tiny * (1.0 + s->x_max + d->w_max);
}

qn_status qni_ref_product(const struct qni_ref_op *op, double *p, double *bound)
{
    qn_status status = QN_OK;
    struct sums *sums = calloc((size_t)(op->m * op->n + 1), sizeof *sums);
    struct dense *dense = calloc((size_t)op->n_w, sizeof *dense);
    double *x = malloc((size_t)(op->k + 1) * sizeof *x);
    if (sums == NULL || dense == NULL || x == NULL)
        status = QN_E_MEMORY;
    for (int32_t e = 0; status == QN_OK && e < op->n_w; e++)
        status = dense_make(op->w[e], op, &dense[e]);
    if (status == QN_OK) {
        if (op->kind == QNI_CONV)
            conv2d(op, dense, sums);
        else if (op->kind == QNI_CONV_TRANSPOSE)
            conv_transpose2d(op, dense, sums);
        else
            matmul(op, dense, sums, x);
        for (int64_t i = 0; i < op->m; i++)
            for (int64_t j = 0; j < op->n; j++) {
                const int64_t expert = qni_ref_expert(op, i);
                const struct sums *s = &sums[i * op->n + j];
                p[i * op->n + j] = s->p;
                bound[i * op->n + j] = bound_of(op, s, &dense[expert < 0 ? 0 : expert]);
            }
    }
    for (int32_t e = 0; dense != NULL && e < op->n_w; e++) {
        free(dense[e].w);
        free(dense[e].size);
    }
    free(x);
    free(dense);
    free(sums);
    return status;
}
