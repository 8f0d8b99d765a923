/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical weights as numbers: w = scale * (value - zero) or scale * value + offset, read code by
 * code; and the packed order in which the int8 strategies add them up. Never the f32 roundings of a
 * kernel. */
#include <math.h>
#include <stdlib.h>

#include "../base/half.h"
#include "../quant/magnitude.h"
#include "ref.h"

double qni_ref_value(const struct qn_weight *w, int64_t row, int64_t p)
{
    if (w->format.code == QN_CODE_FLOAT)
        return qni_ref_get(w->codes, w->format.scale_dtype, row * w->k + p);
    const uint8_t code = w->codes[row * w->k + p];
    if (w->format.code == QN_CODE_INT)
        return (double)code - (double)(1 << (w->format.bits - 1));
    return (double)w->table[code];
}

static int64_t group_of(const struct qn_weight *w, int64_t p)
{
    if (w->format.group < 0)
        return 0; /* per channel, per tensor */
    if (w->format.blocks == QN_BLOCKS_CHANNELS)
        return p % w->ci / w->format.group; /* all taps of a run of channels */
    return p / w->format.group;
}

int64_t qni_ref_group(const struct qn_weight *w, int64_t row, int64_t p)
{
    return row * w->n_groups + group_of(w, p);
}

/* What products add to scale x value where codes are signed, exact. */
static double exact_offset(const struct qn_weight *w, int64_t g)
{
    const double scale = (double)w->scale[g];
    if (w->format.shift == QN_SHIFT_MIN)
        return (double)w->offset[g] + scale * (double)(1 << (w->format.bits - 1));
    return w->zero != NULL ? -scale * w->zero[g] : w->offset != NULL ? (double)w->offset[g] : 0.0;
}

float qni_ref_group_offset(const struct qn_weight *w, int64_t g)
{
    if (w->format.shift == QN_SHIFT_MIN)
        return fmaf((float)(1 << (w->format.bits - 1)), w->scale[g], w->offset[g]);
    return w->zero != NULL     ? -(float)w->zero[g] * w->scale[g]
           : w->offset != NULL ? w->offset[g]
                               : 0.0f;
}

void qni_ref_dequantize(const struct qn_weight *w, bool apply_prescale, double *values,
                        double *sizes)
{
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t p = 0; p < w->k; p++) {
            const int64_t g = qni_ref_group(w, row, p);
            const double scaled = (double)w->scale[g] * qni_ref_value(w, row, p);
            const double offset = exact_offset(w, g);
            const int64_t column = w->perm != NULL ? w->perm[p] : p;
            const double s =
                apply_prescale && w->prescale != NULL ? (double)w->prescale[column] : 1.0;
            values[row * w->k + column] = (scaled + offset) * s;
            if (sizes != NULL)
                sizes[row * w->k + column] = (fabs(scaled) + fabs(offset)) * fabs(s);
        }
}

/* One code as f32, rounded where docs/numerics.md says so. */
static float dequantize(const struct qn_weight *w, int64_t row, int64_t p)
{
    const int64_t g = qni_ref_group(w, row, p);
    const float value = (float)qni_ref_value(w, row, p);
    float v = w->scale[g] * value;
    if (w->zero != NULL)
        v = w->scale[g] * (value - (float)w->zero[g]);
    else if (w->offset != NULL)
        v = fmaf(w->scale[g], value, qni_ref_group_offset(w, g));
    return w->prescale != NULL ? v * w->prescale[w->perm != NULL ? w->perm[p] : p] : v;
}

void qni_ref_round_weights(const struct qn_weight *w, qn_dtype dtype, bool in_place, double *values,
                           double *sizes)
{
    enum { FAR = 64 };
    const int32_t all = in_place ? 0 : qni_magnitude_exponent(qni_weight_magnitude(w), dtype);
    /* Tensor cores add the product of a subnormal as if it were as large as a normal number's. */
    const double least = ldexp(1.0, (dtype == QN_F16 ? -14 : -126) - all);
    qni_ref_dequantize(w, true, values, sizes);
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t p = 0; p < w->k; p++) {
            const int64_t at = row * w->k + (w->perm != NULL ? w->perm[p] : p);
            const float exact = dequantize(w, row, p);
            const int32_t e = in_place && fabsf(exact) >= 0x1p64f ? -FAR : all;
            const float v = ldexpf(exact, e);
            const float rounded = dtype == QN_F16 ? qni_f32_from_f16(qni_f16_from_f32(v))
                                                  : qni_f32_from_bf16(qni_bf16_from_f32(v));
            values[at] = ldexp((double)rounded, -e);
            sizes[at] = fmax(fmax(sizes[at], fabs(values[at])), least);
        }
}

int64_t qni_ref_segment_length(qn_strategy strategy, int64_t x_block)
{
    if (strategy == QN_STRATEGY_INT8_BLOCK)
        return (x_block + 31) / 32 * 32;
    return 32768;
}

qn_status qni_ref_segments_make(const struct qn_weight *w, int64_t length,
                                struct qni_ref_segments *segments)
{
    segments->n = 0;
    segments->order = malloc((size_t)(w->k + 1) * sizeof *segments->order);
    segments->start = malloc((size_t)(w->k + 1) * sizeof *segments->start);
    if (segments->order == NULL || segments->start == NULL) {
        qni_ref_segments_free(segments);
        return QN_E_MEMORY;
    }
    int64_t q = 0;
    for (int64_t g = 0; g < w->n_groups; g++) {
        int64_t in_group = 0;
        for (int64_t p = 0; p < w->k; p++)
            if (group_of(w, p) == g) {
                if (in_group++ % length == 0)
                    segments->start[segments->n++] = q;
                segments->order[q++] = p;
            }
    }
    segments->start[segments->n] = q;
    return QN_OK;
}

void qni_ref_segments_free(struct qni_ref_segments *segments)
{
    free(segments->order);
    free(segments->start);
    segments->order = segments->start = NULL;
}
