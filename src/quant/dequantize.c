/* SPDX-License-Identifier: Apache-2.0 */
/* Weights back to f32, one rounding: fl(scale * (value - zero)) or fl(scale * value + offset),
 * where a minimum is an offset of codes that count from 0, times the prescale if asked for. Columns
 * return to their original order. */
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/exact.h"
#include "../base/size.h"
#include "canonical.h"

/* Rows are dealt out in items of about this many weights: long enough to hide the dealing. */
enum { ITEM_WEIGHTS = 1 << 16 };

struct job {
    const struct qn_weight *w;
    float *out;
    int64_t ld;
    int64_t rows_per_item;
    bool apply_prescale;
};

static inline float decode(const struct qn_weight *w, int64_t i, float value)
{
    if (w->zero != NULL)
        return w->scale[i] * (value - (float)w->zero[i]);
    if (w->format.shift == QN_SHIFT_MIN)
        value += (float)(1 << (w->format.bits - 1));
    if (w->offset != NULL)
        return qni_fmaf(w->scale[i], value, w->offset[i]);
    return w->scale[i] * value;
}

/* Every value that the group can take, once; pays where a group is longer than the table. */
static void decode_by_table(const struct qn_weight *w, int64_t i, const uint8_t *codes, int64_t n,
                            float *out)
{
    float values[256];
    for (int32_t c = 0; c < 1 << w->format.bits; c++)
        values[c] = decode(w, i, qni_code_value(w, (uint8_t)c));
    for (int64_t p = 0; p < n; p++)
        out[p] = values[codes[p]];
}

void qni_decode_span(const struct qn_weight *w, int64_t row, int64_t first, int64_t n, float *out)
{
    const uint8_t *codes = w->codes + row * w->k;
    const qn_format *f = &w->format;
    if (qni_is_float_format(f)) {
        for (int64_t p = 0; p < n; p++)
            out[p] = qni_load_float(w->codes, f->scale_dtype, row * w->k + first + p);
        return;
    }
    /* A run of positions in one group: channel blocks begin anew in every tap. */
    const bool is_channels = f->blocks == QN_BLOCKS_CHANNELS;
    const int64_t span = is_channels ? w->ci : w->k;
    for (int64_t p = first; p < first + n;) {
        const int64_t group = qni_group_of(f, p, w->ci), in_span = p % span;
        const int64_t rest = qni_min(span - in_span, first + n - p);
        const int64_t run = f->group < 0 ? rest : qni_min(rest, f->group - in_span % f->group);
        const int64_t i = row * w->n_groups + group;
        if (run >= 2 << f->bits)
            decode_by_table(w, i, codes + p, run, out + (p - first));
        else
            for (int64_t q = p; q < p + run; q++)
                out[q - first] = decode(w, i, qni_code_value(w, codes[q]));
        p += run;
    }
}

/* Positions are decoded where their columns are; neighbours in codes are strangers in out. */
static void decode_permuted(const struct qn_weight *w, int64_t row, float *out)
{
    for (int64_t p = 0; p < w->k; p++) {
        const int64_t i = row * w->n_groups + qni_group_of(&w->format, p, w->ci);
        out[w->perm[p]] = decode(w, i, qni_position_value(w, row, p));
    }
}

static void decode_item(void *arg, int32_t item)
{
    const struct job *j = arg;
    const struct qn_weight *w = j->w;
    const int64_t first = item * j->rows_per_item;
    const int64_t last = qni_min(first + j->rows_per_item, w->n);
    for (int64_t row = first; row < last; row++) {
        float *out = j->out + row * j->ld;
        if (w->perm != NULL)
            decode_permuted(w, row, out);
        else
            qni_decode_span(w, row, 0, w->k, out);
        for (int64_t c = 0; j->apply_prescale && c < w->k; c++)
            out[c] *= w->prescale[c];
    }
}

qn_status qn_weight_dequantize(const qn_ctx *ctx, const qn_weight *weight, bool apply_prescale,
                               const qn_tensor *out)
{
    if (ctx == NULL || weight == NULL || out == NULL || out->device.kind != QN_CPU)
        return QN_E_ARGUMENT;
    if (out->dtype != QN_F32)
        return QN_E_DTYPE;
    if (out->rank != 2 || out->shape[0] != weight->n || out->shape[1] != weight->k)
        return QN_E_SHAPE;
    QNI_TRY(qn_tensor_extent(out, NULL, NULL));
    if (weight->n == 0 || weight->k == 0)
        return QN_OK;
    if (out->data == NULL)
        return QN_E_ARGUMENT;
    if ((out->stride[1] != 1 && weight->k > 1) || (out->stride[0] < weight->k && weight->n > 1))
        return QN_E_STRIDE;
    struct job job = {weight, out->data, out->stride[0], qni_max(1, ITEM_WEIGHTS / weight->k),
                      apply_prescale && weight->prescale != NULL};
    if (weight->n / job.rows_per_item >= INT32_MAX)
        job.rows_per_item = qni_ceil_div(weight->n, INT32_MAX - 1);
    qni_parallel(&ctx->threads, (int32_t)qni_ceil_div(weight->n, job.rows_per_item), decode_item,
                 &job);
    return QN_OK;
}
