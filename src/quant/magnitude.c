/* SPDX-License-Identifier: Apache-2.0 */
/* The largest magnitude that weights may have: magnitude.h. In double, where a product of four f32
 * neither overflows nor loses more than its last bits; the exponent is what is asked for, and a
 * bound that is off by a rounding is still a bound below the next power of two. */
#include "magnitude.h"

#include <string.h>

#include "../base/half.h"

/* ---- largest of many ------------------------------------------------------------------------- */

/* Bits of f32 without the sign are ordered as magnitudes are. */
static uint32_t larger(uint32_t most, float v)
{
    const uint32_t bits = qni_bits_of(v) & 0x7fffffffu;
    return bits < 0x7f800000u && bits > most ? bits : most;
}

static double value_of(uint32_t bits)
{
    float v;
    memcpy(&v, &bits, sizeof v);
    return (double)v;
}

static double largest(const float *v, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; v != NULL && i < n; i++)
        most = larger(most, v[i]);
    return value_of(most);
}

static double largest_f16(const uint16_t *v, int64_t n)
{
    uint32_t most = 0;
    for (int64_t i = 0; v != NULL && i < n; i++)
        most = larger(most, qni_f32_from_f16(v[i]));
    return value_of(most);
}

static double largest_i32(const int32_t *v, int64_t n)
{
    double most = 0.0;
    for (int64_t i = 0; v != NULL && i < n; i++) {
        const double size = v[i] < 0 ? -(double)v[i] : (double)v[i];
        most = size > most ? size : most;
    }
    return most;
}

static double largest_i8(const int8_t *v, int64_t n)
{
    int32_t most = 0;
    for (int64_t i = 0; v != NULL && i < n; i++) {
        const int32_t size = v[i] < 0 ? -v[i] : v[i];
        most = size > most ? size : most;
    }
    return most;
}

/* ---- weights --------------------------------------------------------------------------------- */

struct sizes {
    double scale, value, zero, offset, prescale;
};

static double combine(const struct sizes *s)
{
    return (s->scale * (s->value + s->zero) + s->offset) * s->prescale;
}

static double value_of_format(const qn_format *format, const float *table)
{
    return table != NULL ? largest(table, (int64_t)1 << format->bits)
                         : (double)((int64_t)1 << (format->bits - 1));
}

/* As packed: a minimum is an offset of signed codes there. */
static double largest_offset(const struct qn_weight *w)
{
    double most = 0.0;
    if (w->format.shift != QN_SHIFT_MIN)
        return w->zero == NULL ? largest(w->offset, w->n * w->n_groups) : 0.0;
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t g = 0; g < w->n_groups; g++) {
            const float offset = qni_group_offset(w, row, g);
            const double size = largest(&offset, 1);
            most = size > most ? size : most;
        }
    return most;
}

double qni_weight_magnitude(const struct qn_weight *w)
{
    const int64_t n = w->n * w->n_groups;
    const struct sizes s = {
        .scale = largest(w->scale, n),
        .value = value_of_format(&w->format, w->table),
        .zero = largest_i32(w->zero, n),
        .offset = largest_offset(w),
        .prescale = w->prescale != NULL ? largest(w->prescale, w->k) : 1.0,
    };
    return combine(&s);
}

static const void *section_of(const struct qni_packed_head *head, const uint8_t *blob, int32_t i)
{
    return head->section[i].bytes == 0 ? NULL : blob + head->section[i].offset;
}

static double largest_scale(const struct qni_packed_head *head, const uint8_t *blob, int32_t i)
{
    const void *const from = section_of(head, blob, i);
    const int64_t bytes = (int64_t)head->section[i].bytes;
    return head->scale_dtype == QN_F16 ? largest_f16(from, bytes / 2) : largest(from, bytes / 4);
}

double qni_packed_magnitude(const struct qni_packed_head *head, const uint8_t *blob)
{
    const void *const zero = section_of(head, blob, QNI_SECTION_ZERO);
    const int64_t n_zeros = (int64_t)head->section[QNI_SECTION_ZERO].bytes;
    const float *const prescale = section_of(head, blob, QNI_SECTION_PRESCALE);
    const int64_t n_prescale = (int64_t)head->section[QNI_SECTION_PRESCALE].bytes / 4;
    const float *const table = section_of(head, blob, QNI_SECTION_TABLE);
    const struct sizes s = {
        .scale = largest_scale(head, blob, QNI_SECTION_SCALE),
        .value = value_of_format(&head->format, table),
        .zero =
            head->zero_dtype == QN_I8 ? largest_i8(zero, n_zeros) : largest_i32(zero, n_zeros / 4),
        .offset = zero == NULL ? largest_scale(head, blob, QNI_SECTION_OFFSET) : 0.0,
        .prescale = prescale != NULL ? largest(prescale, n_prescale) : 1.0,
    };
    return combine(&s);
}

int32_t qni_magnitude_exponent(double magnitude, qn_dtype dtype)
{
    const int32_t top = dtype == QN_F16 ? 15 : 7;
    uint64_t bits;
    memcpy(&bits, &magnitude, sizeof bits);
    if (magnitude == 0.0)
        return 0;
    /* magnitude < 2^(biased - 1022); no product of f32 is subnormal in double but one with 0. */
    const int32_t e = top - ((int32_t)(bits >> 52 & 0x7ff) - 1022);
    return e < -126 ? -126 : e > 126 ? 126 : e;
}

/* ---- exact products -------------------------------------------------------------------------- */

/* What numbers that are not 0 need at least: the digits of the longest, the exponent of the
 * smallest. */
struct digits {
    int32_t most, least;
};
enum { TOO_MANY = 99 };

static int32_t exponent_of(uint32_t v) /* floor(log2), v > 0 and of 24 bits */
{
    return (int32_t)(qni_bits_of((float)v) >> 23) - 127;
}

static void count_digits(struct digits *d, float v)
{
    const uint32_t bits = qni_bits_of(v) & 0x7fffffffu, biased = bits >> 23;
    const uint32_t mantissa = (bits & 0x7fffffu) | (biased > 0 ? 0x800000u : 0u);
    if (mantissa == 0)
        return;
    const int32_t top = exponent_of(mantissa), low = exponent_of(mantissa & (0u - mantissa));
    const int32_t digits = biased == 255 ? TOO_MANY : top - low + 1;
    const int32_t exponent = (int32_t)(biased > 0 ? biased : 1) - 150 + top;
    d->most = digits > d->most ? digits : d->most;
    d->least = exponent < d->least ? exponent : d->least;
}

/* Digits that f16 has left for scales: values up to 2^d have d, or one. */
static int32_t room_for_scales(const qn_format *format, double zero)
{
    const double value = value_of_format(format, NULL) + zero;
    int32_t room = 11;
    for (double end = 1.0; end < value; end *= 2.0)
        room--;
    return room;
}

static int32_t exact_types(const struct digits *scale, int32_t room, double magnitude)
{
    int32_t types = 0;
    if (scale->most <= room && scale->least + qni_magnitude_exponent(magnitude, QN_F16) >= -14)
        types |= QNI_EXACT_F16;
    if (scale->most <= room - 3 && scale->least + qni_magnitude_exponent(magnitude, QN_BF16) >= -14)
        types |= QNI_EXACT_BF16;
    return types;
}

int32_t qni_weight_exact(const struct qn_weight *w)
{
    struct digits digits = {0, INT32_MAX / 2};
    const int64_t n = w->n * w->n_groups;
    const double zero = largest_i32(w->zero, n);
    if (w->format.code != QN_CODE_INT || qni_has_float_shift(&w->format) || w->prescale != NULL ||
        zero > 127.0)
        return 0;
    const int32_t room = room_for_scales(&w->format, zero);
    for (int64_t i = 0; i < n && digits.most <= room; i++)
        count_digits(&digits, w->scale[i]);
    return digits.most <= room ? exact_types(&digits, room, qni_weight_magnitude(w)) : 0;
}

int32_t qni_packed_exact(const struct qni_packed_head *head, const uint8_t *blob)
{
    struct digits digits = {0, INT32_MAX / 2};
    const uint8_t *const scale = section_of(head, blob, QNI_SECTION_SCALE);
    const int8_t *const zeros = section_of(head, blob, QNI_SECTION_ZERO);
    const int64_t bytes = (int64_t)head->section[QNI_SECTION_SCALE].bytes;
    const int64_t n = bytes / (head->scale_dtype == QN_F16 ? 2 : 4);
    const double zero = largest_i8(zeros, (int64_t)head->section[QNI_SECTION_ZERO].bytes);
    if (head->format.code != QN_CODE_INT || qni_has_float_shift(&head->format) ||
        head->section[QNI_SECTION_PRESCALE].bytes != 0 || head->zero_dtype != QN_I8 || zero > 127.0)
        return 0;
    const int32_t room = room_for_scales(&head->format, zero);
    for (int64_t i = 0; i < n && digits.most <= room; i++)
        count_digits(&digits, head->scale_dtype == QN_F16
                                  ? qni_f32_from_f16(((const uint16_t *)(const void *)scale)[i])
                                  : ((const float *)(const void *)scale)[i]);
    return digits.most <= room ? exact_types(&digits, room, qni_packed_magnitude(head, blob)) : 0;
}
