/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fitting by range, and encoding.
 *
 *     symmetric   scale = amax / 7 (narrow), / 7.5 (half), or the signed extreme / -8 (full)
 *     zero point  scale = (hi - lo) / 15 over a range that includes 0, zero = -rint(lo / scale)
 *     offset      scale = (hi - lo) / 15, offset = lo - least * scale
 *     codebook    the largest entry to the largest weight
 *
 * A scale is rounded to its type before codes are chosen, so that codes make good for it.
 * code = clamp(rint(fl(fl(w - offset) / scale))): the division is a multiplication with 1 / scale.
 */
#include <math.h>

#include "../base/error.h"
#include "../base/exact.h"
#include "../base/size.h"
#include "canonical.h"
#include "coder.h"
#include "dense.h"
#include "format.h"

/* ---- the codebook, sorted ---- */

static void insert(struct qni_coder *c, float values[16], float value, uint8_t code)
{
    int32_t at = c->n_values;
    for (int32_t i = 0; i < c->n_values; i++)
        if (values[i] == value) /* the two zeros of E2M1: the first code wins */
            return;
    for (; at > 0 && values[at - 1] > value; at--) {
        values[at] = values[at - 1];
        c->code[at] = c->code[at - 1];
    }
    values[at] = value;
    c->code[at] = code;
    c->n_values++;
}

/* Ties go to the even code in E2M1, as hardware rounds, and else to the smaller value. A tie that
 * goes up is a middle one unit lower. The middles of E2M1 are exact. */
static void sort_table(struct qni_coder *c)
{
    float values[16];
    for (int32_t i = 0; i < 1 << c->format.bits; i++)
        insert(c, values, c->table[i], (uint8_t)i);
    for (int32_t i = 0; i + 1 < c->n_values; i++) {
        c->middle[i] = values[i] + 0.5f * (values[i + 1] - values[i]);
        if (c->format.code == QN_CODE_E2M1 && c->code[i + 1] % 2 == 0)
            c->middle[i] = nextafterf(c->middle[i], -INFINITY);
    }
}

qn_status qni_coder_init(struct qni_coder *c, const qn_format *format, qn_range range,
                         qn_error *err)
{
    QNI_TRY(qn_format_check(format, err));
    if (format->code == QN_CODE_TABLE)
        return qni_fail(err, QN_E_FORMAT,
                        "nothing can be quantized to a table of one's own; the tables nf4, iq4_nl, "
                        "e2m1 and fp8 can be used");
    if (format->code == QN_CODE_FLOAT)
        return qni_fail(err, QN_E_FORMAT, "%s has no scales to find: its values are not quantized",
                        qn_dtype_name(format->scale_dtype));
    if (range < QN_RANGE_NARROW || range > QN_RANGE_FULL)
        return qni_fail(err, QN_E_ARGUMENT, "range %d is none of QN_RANGE_NARROW, _HALF, _FULL",
                        (int)range);
    *c = (struct qni_coder){.format = *format, .range = qni_format_range(format, range)};
    c->is_signed = format->scale_dtype != QN_E8M0 && format->scale_dtype != QN_E4M3;
    c->unit = 1.0f;
    if (format->code == QN_CODE_INT) {
        c->bias = format->shift == QN_SHIFT_MIN ? 0 : 1 << (format->bits - 1);
        c->least = (float)-c->bias;
        c->most = c->least + (float)((1 << format->bits) - 1);
        c->zero_code = (uint8_t)c->bias;
        return QN_OK;
    }
    c->table = qni_code_table(format->code);
    const int32_t entries = 1 << format->bits;
    for (int32_t i = 0; i < entries; i++) {
        const float value = c->table[i];
        c->least = value < c->least ? value : c->least;
        c->most = value > c->most ? value : c->most;
        c->zero_code = fabsf(value) < fabsf(c->table[c->zero_code]) ? (uint8_t)i : c->zero_code;
    }
    c->peak = c->most >= -c->least ? c->most : c->least;
    if (format->code != QN_CODE_E4M3)
        sort_table(c);
    return QN_OK;
}

/* ---- scales as they are stored ---- */

/* floor(log2 |x|); below the normal numbers anything small. */
static int32_t exponent(float x)
{
    return (int32_t)((qni_bits_of(x) >> 23) & 255u) - 127;
}

static float power_of_two(int32_t e)
{
    return qni_f32_from_e8m0((uint8_t)(qni_min(qni_max(e, -127), 127) + 127));
}

/*
 * E4M3 holds 2^-9 to 448. Scales of weights lie around 1e-3, where it has no bits left; so they
 * are taken in units of a power of two, chosen for the tensor such that the largest scale lies in
 * [128, 256). Products with it are exact; it is what the formats' own scale per tensor is for.
 */
void qni_coder_set_peak(struct qni_coder *c, float amax)
{
    const float most = c->table != NULL ? fabsf(c->peak) : c->most;
    if (amax > 0.0f)
        c->unit = power_of_two(exponent(amax / most) - 7);
}

float qni_round_scale(const struct qni_coder *c, float scale)
{
    switch (c->format.scale_dtype) {
    case QN_F16:
        return qni_f32_from_f16(qni_f16_from_f32(scale));
    case QN_BF16:
        return qni_f32_from_bf16(qni_bf16_from_f32(scale));
    case QN_E4M3:
        return qni_f32_from_e4m3(qni_e4m3_from_f32(scale / c->unit)) * c->unit;
    case QN_E8M0: /* the nearest power of two; a zero would be 2^-127, 1 does no harm either */
        return scale == 0.0f ? 1.0f : power_of_two(exponent(scale * 1.33333337f));
    default:
        return scale;
    }
}

/* extent / steps. Power-of-two scales follow the rule of the MX formats, which lets the largest
 * value saturate rather than lose a bit for all: floor(log2(extent)) - floor(log2(steps)). */
static float scale_for(const struct qni_coder *c, double extent, float steps)
{
    if (c->format.scale_dtype == QN_E8M0)
        return extent == 0.0 ? 1.0f : power_of_two(exponent((float)extent) - exponent(steps));
    return qni_round_scale(c, (float)(extent / (double)steps)) + 0.0f; /* no -0 */
}

/* ---- round to nearest ---- */

/* The symmetric scale before it is rounded: extreme / steps. Tie of the extremes: the negative. */
static float symmetric_steps(const struct qni_coder *c, float lo, float hi, double *extent)
{
    const double extreme = (double)(hi > -lo ? hi : lo);
    *extent = fabs(extreme);
    if (c->table != NULL) {
        const bool is_even = c->most == -c->least;
        if (!is_even && c->is_signed)
            *extent = extreme;
        return is_even || c->is_signed ? c->peak : fabsf(c->peak);
    }
    if (c->range == QN_RANGE_FULL) {
        if (c->is_signed)
            *extent = extreme;
        return c->is_signed ? c->least : -c->least;
    }
    return c->range == QN_RANGE_HALF ? c->most + 0.5f : c->most;
}

static struct qni_params fit_zero(const struct qni_coder *c, float lo, float hi)
{
    struct qni_params p = {.scale = 0.0f};
    lo = lo < 0.0f ? lo : 0.0f;
    hi = hi > 0.0f ? hi : 0.0f;
    const float steps = c->most - c->least;
    p.scale = scale_for(c, (double)hi - (double)lo, steps);
    if (p.scale > 0.0f && isfinite(p.scale)) {
        double zero = rint(-(double)lo / (double)p.scale); /* of unsigned codes */
        zero = zero > (double)steps ? (double)steps : zero;
        p.zero = (int32_t)zero + qni_code_min(&c->format);
    }
    return p;
}

static struct qni_params fit_offset(const struct qni_coder *c, float lo, float hi)
{
    struct qni_params p = {.scale = 0.0f};
    p.scale = scale_for(c, (double)hi - (double)lo, c->most - c->least);
    const double offset = p.scale == 0.0f ? 0.5 * ((double)lo + (double)hi)
                                          : (double)lo - (double)c->least * (double)p.scale;
    p.offset = qni_round_scale(c, (float)offset);
    return p;
}

struct qni_params qni_fit_range(const struct qni_coder *c, float lo, float hi)
{
    if (c->format.shift == QN_SHIFT_ZERO)
        return fit_zero(c, lo, hi);
    if (qni_coder_has_offset(c))
        return fit_offset(c, lo, hi);
    double extent;
    const float steps = symmetric_steps(c, lo, hi, &extent);
    return (struct qni_params){.scale = scale_for(c, extent, steps)};
}

/* ---- super-blocks ---- */

/* The common scale of a super-block, rounded such that its products with integers of superbits are
 * exact in f32: the small types have bits to spare, f32 gives some up. */
static float round_common(const struct qni_coder *c, float d)
{
    if (c->format.scale_dtype != QN_F32)
        return qni_round_scale(c, d);
    const uint32_t spare = 1u << c->format.superbits;
    const uint32_t bits = (qni_bits_of(d) + spare / 2) & ~(spare - 1);
    return qni_float_of(bits);
}

static int16_t nearest_integer(float d, float wanted, float lo, float hi)
{
    float t = d == 0.0f ? 0.0f : (float)rint((double)wanted / (double)d);
    t = t > hi ? hi : t;
    t = t < lo ? lo : t;
    return (int16_t)t;
}

void qni_super_products(const struct qni_coder *c, struct qni_params *p)
{
    p->scale = p->super_scale * (float)p->sub_scale;
    if (!qni_coder_has_offset(c))
        return;
    p->offset = -(p->super_min * (float)p->sub_min);
    if (c->least != 0.0f) /* an offset of signed codes */
        p->offset = (float)((double)p->offset - (double)c->least * (double)p->scale);
}

/* Signed integers. With the full range the extreme scale becomes the most negative one. */
static void super_scales(const struct qni_coder *c, int64_t n_groups, struct qni_params *params)
{
    const float half = (float)(1 << (c->format.superbits - 1));
    float extreme = 0.0f;
    for (int64_t g = 0; g < n_groups; g++)
        extreme = fabsf(params[g].scale) > fabsf(extreme) ? params[g].scale : extreme;
    const float d = round_common(c, c->range == QN_RANGE_FULL ? extreme / -half
                                                              : fabsf(extreme) / (half - 1.0f));
    for (int64_t g = 0; g < n_groups; g++) {
        params[g].super_scale = d;
        params[g].sub_scale = nearest_integer(d, params[g].scale, -half, half - 1.0f);
        qni_super_products(c, &params[g]);
    }
}

/* Unsigned integers for scales, and for how far the smallest value lies below 0. */
static void super_offsets(const struct qni_coder *c, int64_t n_groups, struct qni_params *params)
{
    const float top = (float)((1 << c->format.superbits) - 1);
    float scale = 0.0f, depth = 0.0f;
    for (int64_t g = 0; g < n_groups; g++) {
        const double least = (double)params[g].offset + (double)c->least * params[g].scale;
        params[g].offset = least < 0.0 ? (float)-least : 0.0f; /* the depth, for the moment */
        params[g].scale = params[g].scale > 0.0f ? params[g].scale : 0.0f;
        scale = params[g].scale > scale ? params[g].scale : scale;
        depth = params[g].offset > depth ? params[g].offset : depth;
    }
    const float d = round_common(c, scale / top), dmin = round_common(c, depth / top);
    for (int64_t g = 0; g < n_groups; g++) {
        struct qni_params *const p = &params[g];
        p->super_scale = d;
        p->super_min = dmin;
        p->sub_scale = nearest_integer(d, p->scale, 0.0f, top);
        p->sub_min = nearest_integer(dmin, p->offset, 0.0f, top);
        qni_super_products(c, p);
    }
}

void qni_fit_super(const struct qni_coder *c, int64_t n_groups, struct qni_params *params)
{
    if (qni_coder_has_offset(c))
        super_offsets(c, n_groups, params);
    else
        super_scales(c, n_groups, params);
}

/* What a group of a super-block would like: its scale in f32, an offset only downwards. */
static struct qni_params fit_wanted(const struct qni_coder *c, float lo, float hi)
{
    if (qni_coder_has_offset(c)) {
        const double low = lo < 0.0f ? (double)lo : 0.0;
        const double extent = (double)hi > low ? (double)hi - low : 0.0;
        const float scale = (float)(extent / (double)(c->most - c->least));
        return (struct qni_params){.scale = scale,
                                   .offset = (float)(low - (double)c->least * (double)scale)};
    }
    double extent;
    const float steps = symmetric_steps(c, lo, hi, &extent);
    return (struct qni_params){.scale = (float)(extent / (double)steps)};
}

bool qni_fit_rtn(const struct qni_coder *c, const float *x, int64_t n, int64_t group,
                 struct qni_params *params)
{
    const bool is_super = c->format.superblock > 0;
    bool is_finite = true;
    const int64_t n_groups = qni_ceil_div(n, group);
    for (int64_t g = 0; g < n_groups; g++) {
        float lo, hi;
        is_finite &= qni_range_find(x + g * group, qni_min(group, n - g * group), &lo, &hi);
        params[g] = is_super ? fit_wanted(c, lo, hi) : qni_fit_range(c, lo, hi);
    }
    if (is_super && is_finite)
        qni_fit_super(c, n_groups, params);
    for (int64_t g = 0; g < n_groups; g++)
        is_finite &= isfinite(params[g].scale) && isfinite(params[g].offset);
    return is_finite;
}

/* ---- encoding ---- */

/* Clamping first makes rint() safe: bounds are integers. bias + zero is added where the code is an
 * integer already, so that ties go to even quotients whatever the zero point. */
QNI_TEMPLATE void encode_integers(const struct qni_coder *c, const struct qni_params *p,
                                  const float *restrict x, int64_t n, uint8_t *restrict codes,
                                  const int has_offset)
{
    const float inverse = 1.0f / p->scale, offset = p->offset;
    const float lo = c->least - (float)p->zero, hi = c->most - (float)p->zero;
    const float magic = 0x1.8p23f, shifted = 0x1.8p23f + (float)(c->bias + p->zero);
    for (int64_t i = 0; i < n; i++) {
        float t = (has_offset ? x[i] - offset : x[i]) * inverse;
        t = t > hi ? hi : t;
        t = t < lo ? lo : t;
        codes[i] = (uint8_t)qni_bits_of(((t + magic) - magic) + shifted);
    }
}

/* How many middles lie below. Short fixed loops vectorise; a binary search does not. */
static void encode_sorted(const struct qni_coder *c, const struct qni_params *p,
                          const float *restrict x, int64_t n, uint8_t *restrict codes)
{
    const float inverse = 1.0f / p->scale;
    float middle[15];
    for (int32_t j = 0; j < 15; j++)
        middle[j] = j + 1 < c->n_values ? c->middle[j] : INFINITY;
    for (int64_t i = 0; i < n; i++) {
        const float t = (x[i] - p->offset) * inverse;
        uint32_t below = 0;
        QNI_UNROLL
        for (int32_t j = 0; j < 15; j++)
            below += t > middle[j];
        codes[i] = (uint8_t)below;
    }
    for (int64_t i = 0; i < n; i++)
        codes[i] = c->code[codes[i]];
}

/* Scales whose inverse f32 cannot hold well: the same steps in double. */
static void encode_wide(const struct qni_coder *c, const struct qni_params *p, const float *x,
                        int64_t n, uint8_t *codes)
{
    for (int64_t i = 0; i < n; i++) {
        double t = ((double)x[i] - (double)p->offset) / (double)p->scale;
        t = t > 1e6 ? 1e6 : t < -1e6 ? -1e6 : t;
        const struct qni_params one = {.scale = 1.0f, .zero = p->zero};
        const float value = (float)t;
        qni_encode(c, &one, &value, 1, &codes[i]);
    }
}

void qni_encode(const struct qni_coder *c, const struct qni_params *p, const float *x, int64_t n,
                uint8_t *codes)
{
    const float size = fabsf(p->scale);
    if (size == 0.0f) {
        for (int64_t i = 0; i < n; i++)
            codes[i] = c->zero_code;
    } else if (size < 0x1p-126f || size > 0x1p126f) {
        encode_wide(c, p, x, n, codes);
    } else if (c->format.code == QN_CODE_INT) {
        if (qni_coder_has_offset(c))
            encode_integers(c, p, x, n, codes, 1);
        else
            encode_integers(c, p, x, n, codes, 0);
    } else if (c->n_values > 0) {
        encode_sorted(c, p, x, n, codes);
    } else {
        const float inverse = 1.0f / p->scale;
        for (int64_t i = 0; i < n; i++)
            codes[i] = qni_e4m3_from_f32((x[i] - p->offset) * inverse);
    }
}

float qni_decode(const struct qni_coder *c, const struct qni_params *p, uint8_t code)
{
    const float value = c->table != NULL ? c->table[code] : (float)((int32_t)code - c->bias);
    if (c->format.shift == QN_SHIFT_ZERO)
        return p->scale * (value - (float)p->zero);
    if (qni_coder_has_offset(c))
        return qni_fmaf(p->scale, value, p->offset);
    return p->scale * value;
}

/* Decoding by table pays only where values are more than codes. */
double qni_params_error(const struct qni_coder *c, const struct qni_params *p, const float *x,
                        const float *weights, int64_t n)
{
    enum { PIECE = 256 };
    uint8_t codes[PIECE];
    float values[256];
    const int32_t n_values = 1 << c->format.bits;
    const bool by_table = n >= n_values;
    for (int32_t i = 0; by_table && i < n_values; i++)
        values[i] = qni_decode(c, p, (uint8_t)i);
    double sum = 0.0;
    for (int64_t first = 0; first < n; first += PIECE) {
        const int64_t count = qni_min(PIECE, n - first);
        qni_encode(c, p, x + first, count, codes);
        double part[4] = {0.0, 0.0, 0.0, 0.0};
        for (int64_t i = 0; i < count; i++) {
            const float value = by_table ? values[codes[i]] : qni_decode(c, p, codes[i]);
            const double e = (double)x[first + i] - (double)value;
            part[i & 3] += (weights != NULL ? (double)weights[first + i] : 1.0) * e * e;
        }
        sum += (part[0] + part[1]) + (part[2] + part[3]);
    }
    return sum;
}
