/* SPDX-License-Identifier: Apache-2.0 */
/* The int8 strategies by the f32 steps of docs/numerics.md: integer dot products per segment, then
 * fma in the order of the segments. Every row of the product is gathered as a patch (holes and
 * padding are real zeros), brought into packed order, quantized, and multiplied with code values
 * one by one. fmaf is the C library's.
 *
 * Beside each result stands how far it may be from exact arithmetic on the unquantized activations,
 * so that these steps themselves are tested against the double loops of product.c. */
#include <math.h>
#include <stdlib.h>

#include "../quant/op.h"
#include "ref.h"

/* One row of one convolution group, quantized. */
struct row {
    float *x;                        /* [k] in packed order */
    int32_t *codes;                  /* [k] */
    struct qni_ref_segment *segment; /* [n_segments] */
    float scale;                     /* int8-row */
    int32_t zero;                    /* int8-static, of the signed codes */
};

/* Column c of row i of convolution group `group`, or 0 where the patch has a hole: as a float,
 * codes of int8-static as signed integers. */
static float gather(const struct qni_ref_op *op, int64_t i, int64_t group, int64_t c)
{
    const bool is_static = op->strategy == QN_STRATEGY_INT8_STATIC;
    const int32_t shift = op->x.dtype == QN_U8 ? 128 : 0;
    const float hole = is_static ? (float)(op->quant.x_zero - shift) : 0.0f;
    int64_t at;
    if (op->kind == QNI_MATMUL || op->kind == QNI_GROUPED) {
        const int64_t row =
            op->x_rows.rank != 0 ? ((const int32_t *)op->x_rows.data)[i * op->x_rows.stride[0]] : i;
        at = row * op->x.stride[0] + c * op->x.stride[1];
    } else {
        const int64_t tap = c / op->ci, channel = group * op->ci + c % op->ci;
        int64_t out[2] = {i / op->ow % op->oh, i % op->ow};
        const int64_t k[2] = {tap / op->kw, tap % op->kw}, limit[2] = {op->ih, op->iw};
        for (int d = 0; d < 2; d++) {
            if (op->kind == QNI_CONV) {
                out[d] = out[d] * op->stride[d] + k[d] * op->dilation[d] - op->pad[d];
            } else {
                out[d] += op->pad[d] - k[d] * op->dilation[d];
                if (out[d] % op->stride[d] != 0)
                    return hole;
                out[d] /= op->stride[d];
            }
            if (out[d] < 0 || out[d] >= limit[d])
                return hole;
        }
        const int64_t *s = op->x.stride, batch = i / (op->oh * op->ow);
        if (op->x.rank == 3)
            at = batch * s[0] + channel * s[op->image == QN_NCHW ? 1 : 2] +
                 out[1] * s[op->image == QN_NCHW ? 2 : 1];
        else if (op->image == QN_NCHW)
            at = batch * s[0] + channel * s[1] + out[0] * s[2] + out[1] * s[3];
        else
            at = batch * s[0] + out[0] * s[1] + out[1] * s[2] + channel * s[3];
    }
    return (float)(qni_ref_get(op->x.data, op->x.dtype, at) - shift);
}

static void prepare_row(const struct qni_ref_op *op, const struct qn_weight *w,
                        const struct qni_ref_segments *segments, int64_t i, int64_t group,
                        struct row *row)
{
    for (int64_t q = 0; q < op->k; q++) {
        const int64_t p = segments->order[q], column = w->perm != NULL ? w->perm[p] : p;
        row->x[q] = gather(op, i, group, column);
        if (w->prescale != NULL)
            row->x[q] *= w->prescale[column];
    }
    row->scale = 1.0f;
    row->zero = 0;
    if (op->strategy == QN_STRATEGY_INT8_ROW) {
        row->scale = qni_ref_quantize(row->x, op->k, true, row->codes).scale;
    } else if (op->strategy == QN_STRATEGY_INT8_STATIC) {
        row->scale = op->quant.x_scale;
        row->zero = op->quant.x_zero - (op->x.dtype == QN_U8 ? 128 : 0);
        for (int64_t q = 0; q < op->k; q++)
            row->codes[q] = (int32_t)row->x[q];
    }
    for (int64_t s = 0; s < segments->n; s++) {
        const int64_t first = segments->start[s], n = segments->start[s + 1] - first;
        if (op->strategy == QN_STRATEGY_INT8_BLOCK) {
            row->segment[s] =
                qni_ref_quantize(row->x + first, n, op->quant.symmetric != 0, row->codes + first);
        } else {
            row->segment[s] = (struct qni_ref_segment){.scale = row->scale};
            for (int64_t q = first; q < first + n; q++)
                row->segment[s].sum += row->codes[q];
        }
    }
}

/* Integer sums of one segment and one output. factor: 2 for E2M1, whose values are halves. */
struct dots {
    int32_t dot, sum_w;
    double size; /* sum of |scale value| + |offset|, prescale left out since x has it */
};

static struct dots dot_segment(const struct qn_weight *w, const struct qni_ref_segments *segments,
                               const struct row *row, int64_t s, int64_t j)
{
    const double factor = w->format.code == QN_CODE_E2M1 ? 2.0 : 1.0;
    struct dots d = {0};
    for (int64_t q = segments->start[s]; q < segments->start[s + 1]; q++) {
        const int64_t p = segments->order[q], g = qni_ref_group(w, j, p);
        const int32_t value = (int32_t)(qni_ref_value(w, j, p) * factor);
        d.dot += row->codes[q] * value;
        d.sum_w += value;
        d.size += fabs((double)w->scale[g] * value / factor) +
                  fabs(w->zero != NULL ? (double)w->scale[g] * w->zero[g]
                                       : (double)qni_ref_group_offset(w, g));
    }
    return d;
}

/* How far a segment's part of the result may be from exact arithmetic. A code that was not given is
 * wrong by half a step (a little more, since inv is rounded), values below the threshold are lost,
 * and each f32 step adds an error relative to the largest number it can meet. */
static double slack_of(const struct qni_ref_segment *s, const struct row *row, double size,
                       bool given, int64_t steps)
{
    if (!isfinite(s->scale) || !isfinite(s->offset))
        return (double)INFINITY;
    const double step = fabs((double)s->scale), zero = fabs((double)row->zero);
    const double largest = step * (256.0 + zero) + fabs((double)s->offset);
    const double quantized = given ? 0.0 : 0.501 * step + 0x1p-119;
    return size * (quantized + largest * 0x1p-24 * (double)steps) + 0x1p-140;
}

/* Computes the value and the raw sum of row `row` and output j. */
static float multiply(const struct qni_ref_op *op, const struct qn_weight *w,
                      const struct qni_ref_segments *segments, const struct row *row, int64_t j,
                      int32_t *raw, double *slack)
{
    const float half = w->format.code == QN_CODE_E2M1 ? 0.5f : 1.0f;
    const bool has_offset = w->zero != NULL || w->offset != NULL;
    float acc = 0.0f;
    *raw = 0;
    *slack = 0.0;
    for (int64_t s = 0; s < segments->n; s++) {
        const int64_t first = segments->start[s], count = segments->start[s + 1] - first;
        const int64_t g = qni_ref_group(w, j, segments->order[first]);
        const struct qni_ref_segment *x = &row->segment[s];
        const struct dots d = dot_segment(w, segments, row, s, j);
        const float scale_w = w->scale[g] * half;
        const float offset_w = qni_ref_group_offset(w, g);
        *slack +=
            slack_of(x, row, d.size, op->strategy == QN_STRATEGY_INT8_STATIC, 4 * segments->n + 8);
        if (half != 1.0f) /* half of a subnormal scale is rounded; values are at most 12 */
            *slack += (double)count * 12.0 * 0x1p-150 *
                      ((256.0 + fabs((double)row->zero)) * fabs((double)x->scale) +
                       fabs((double)x->offset));
        if (op->strategy == QN_STRATEGY_INT8_BLOCK) {
            const float t = op->quant.symmetric != 0
                                ? x->scale * (float)d.dot
                                : fmaf(x->scale, (float)d.dot, x->offset * (float)d.sum_w);
            acc = fmaf(scale_w, t, acc);
            if (has_offset)
                acc = fmaf(offset_w, x->total, acc);
        } else {
            const int32_t sum = d.dot - row->zero * d.sum_w;
            const int32_t sum_x = x->sum - row->zero * (int32_t)count;
            const int64_t zero = w->zero != NULL ? w->zero[g] : 0;
            *raw += (int32_t)(sum - zero * sum_x);
            acc = fmaf(scale_w, (float)sum, acc);
            if (has_offset)
                acc = fmaf(offset_w, (float)sum_x, acc);
        }
    }
    return op->strategy == QN_STRATEGY_INT8_BLOCK ? acc : acc * row->scale;
}

/* int8-static, integer codes of one group, zero points or none, i32 bias: the bias joins the
 * integers, from which zero points have been taken. */
static float with_integer_bias(const struct qni_ref_op *op, const struct qn_weight *w,
                               int64_t expert, int64_t j, int32_t raw)
{
    const qn_tensor *bias = &op->epilogue.bias;
    const int64_t at =
        bias->rank == 2 ? expert * bias->stride[0] + j * bias->stride[1] : j * bias->stride[0];
    const float acc = fmaf(w->scale[j], (float)(raw + ((const int32_t *)bias->data)[at]), 0.0f);
    return acc * op->quant.x_scale;
}

static bool integer_values(const struct qn_weight *w)
{
    if (w->format.code == QN_CODE_INT)
        return true;
    for (int c = 0; c < 1 << w->format.bits; c++) {
        const float v = w->table[c] * (w->format.code == QN_CODE_E2M1 ? 2.0f : 1.0f);
        if (!(v >= -128.0f && v <= 127.0f && v == rintf(v)))
            return false;
    }
    return true;
}

/* All rows that use weight e. */
static void rows_of(const struct qni_ref_op *op, int32_t e, const struct qni_ref_segments *segments,
                    struct row *row, float *v, int32_t *d, double *slack)
{
    const struct qn_weight *w = op->w[e];
    for (int64_t i = 0; i < op->m; i++) {
        if (qni_ref_expert(op, i) != e)
            continue;
        for (int64_t group = 0; group < op->groups; group++) {
            prepare_row(op, w, segments, i, group, row);
            for (int64_t j = group * op->co; j < (group + 1) * op->co; j++) {
                const int64_t at = i * op->n + j;
                int32_t raw;
                double error;
                v[at] = multiply(op, w, segments, row, j, &raw, &error);
                if (op->epilogue.bias.dtype == QN_I32)
                    v[at] = with_integer_bias(op, w, e, j, raw);
                if (d != NULL)
                    d[at] = raw;
                if (slack != NULL)
                    slack[at] = error;
            }
        }
    }
}

qn_status qni_ref_exact(const struct qni_ref_op *op, float *v, int32_t *d, double *slack)
{
    qn_status status = QN_OK;
    for (int64_t at = 0; at < op->m * op->n; at++) {
        v[at] = 0.0f;
        if (d != NULL)
            d[at] = 0;
        if (slack != NULL)
            slack[at] = 0.0;
    }
    for (int32_t e = 0; e < op->n_w && status == QN_OK; e++) {
        struct qni_ref_segments segments;
        if (!integer_values(op->w[e]))
            return QN_E_UNSUPPORTED;
        status = qni_ref_segments_make(op->w[e], qni_ref_segment_length(op->strategy, op->x_block),
                                       &segments);
        if (status != QN_OK)
            return status;
        struct row row = {
            .x = malloc((size_t)(op->k + 1) * sizeof *row.x),
            .codes = malloc((size_t)(op->k + 1) * sizeof *row.codes),
            .segment = malloc((size_t)(segments.n + 1) * sizeof *row.segment),
        };
        if (row.x != NULL && row.codes != NULL && row.segment != NULL)
            rows_of(op, e, &segments, &row, v, d, slack);
        else
            status = QN_E_MEMORY;
        free(row.x);
        free(row.codes);
        free(row.segment);
        qni_ref_segments_free(&segments);
    }
    return status;
}
