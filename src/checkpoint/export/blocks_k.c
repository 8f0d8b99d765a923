/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 256 elements of GGUF, whose groups have small integers times an f16 number for scales:
 * scale = d sc, minimum = -(dmin mn). Where the canonical form has both levels in super-blocks of
 * just this kind they are taken as they are, which gives back the bytes that a file had. Else it
 * has the products, exact in f32: d is found again as the quotient of one of them and each integer
 * it could have, the largest first, which is the one that ggml's quantizers give to the largest
 * scale. */
#include <math.h>
#include <string.h>

#include "../../base/half.h"
#include "export.h"

enum { MOST_GROUPS = 16 };

/* The f16 number d and integers q[i] in [least, most] with value[i] == d q[i]. */
static bool factor(const double *value, int32_t count, int32_t least, int32_t most, uint16_t *d,
                   int32_t *q)
{
    int32_t top = 0;
    for (int32_t i = 1; i < count; i++)
        top = fabs(value[i]) > fabs(value[top]) ? i : top;
    memset(q, 0, (size_t)count * sizeof *q);
    *d = 0;
    if (value[top] == 0)
        return true;
    for (int32_t step = 0; step <= most - least; step++) {
        /* By falling magnitude, negative numbers first: -128, -127, 127, ... or 63, 62, ... */
        const int32_t width = -least > most ? -least : most;
        const int32_t size = least < 0 ? width - step / 2 : most - step;
        const int32_t try = least < 0 && step % 2 == 0 ? -size : size;
        if (try == 0 || try < least || try > most)
            continue;
        const double wanted = value[top] / try;
        *d = qni_f16_from_f32((float)wanted);
        const double unit = (double)qni_f32_from_f16(*d);
        bool fits = isfinite(unit) && unit != 0 && unit * try == value[top];
        for (int32_t i = 0; i < count && fits; i++) {
            const double quotient = nearbyint(value[i] / unit);
            fits = quotient >= least && quotient <= most && quotient * unit == value[i];
            q[i] = fits ? (int32_t)quotient : 0;
        }
        if (fits)
            return true;
    }
    return false;
}

/* Scales of a block's groups as they are stored: d, dmin and their integers. */
struct levels {
    uint16_t d, dmin;
    int32_t sc[MOST_GROUPS], mn[MOST_GROUPS];
};

/* Both levels as the weight has them, if its super-blocks are these. */
static bool copy_levels(const struct qn_weight *w, int64_t row, int64_t p, int32_t count,
                        int32_t least, int32_t most, struct levels *l)
{
    if (w->super_scale == NULL || w->format.superblock != count || w->format.group != 256 / count ||
        w->format.scale_dtype != QN_F16)
        return false;
    const int64_t at = qni_block_at(w, row, p), super = row * w->n_supers + p / 256;
    l->d = qni_f16_from_f32(w->super_scale[super]);
    l->dmin = w->super_min != NULL ? qni_f16_from_f32(w->super_min[super]) : 0;
    for (int32_t i = 0; i < count; i++) {
        l->sc[i] = w->sub_scale[at + i];
        l->mn[i] = w->sub_min != NULL ? w->sub_min[at + i] : 0;
        if (l->sc[i] < least || l->sc[i] > most || l->mn[i] > most)
            return false;
    }
    return true;
}

/* Scales, and minima if there are offsets, of the groups of a block, as doubles. */
static bool take_groups(const struct qn_weight *w, int64_t row, int64_t p, int32_t count,
                        int32_t bits, double *scale, double *minimum)
{
    const int64_t each = 256 / count;
    if (w->format.code != QN_CODE_INT || w->format.bits != bits || w->zero != NULL ||
        (w->offset != NULL) != (minimum != NULL))
        return false;
    for (int32_t i = 0; i < count; i++) {
        const int64_t at = qni_block_at(w, row, p + i * each);
        if (!qni_block_is_one(w, p + i * each, each))
            return false;
        scale[i] = (double)w->scale[at];
        if (minimum != NULL)
            minimum[i] = (w->format.shift == QN_SHIFT_MIN ? 0 : (1 << (bits - 1)) * scale[i]) -
                         (double)w->offset[at];
    }
    return true;
}

/* Copied or found. Blocks whose integers have no sign have minima. */
static bool take_levels(const struct qn_weight *w, int64_t row, int64_t p, int32_t count,
                        int32_t bits, int32_t least, int32_t most, struct levels *l)
{
    double scale[MOST_GROUPS], minimum[MOST_GROUPS];
    const bool has_min = least == 0;
    if (!take_groups(w, row, p, count, bits, scale, has_min ? minimum : NULL))
        return false;
    if (has_min == (w->format.shift == QN_SHIFT_MIN) &&
        copy_levels(w, row, p, count, least, most, l))
        return true;
    return factor(scale, count, least, most, &l->d, l->sc) &&
           (!has_min || factor(minimum, count, least, most, &l->dmin, l->mn));
}

/* Two bits of 256 elements: each 32 bytes hold four runs of 32. */
static void put_pairs(const uint8_t *codes, uint8_t *out)
{
    memset(out, 0, 64);
    for (int32_t i = 0; i < 256; i++) {
        uint8_t *byte = &out[i / 128 * 32 + i % 32];
        *byte = (uint8_t)(*byte | (codes[i] & 3) << (2 * (i / 32 % 4)));
    }
}

bool qni_block_q2_k(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    struct levels v;
    if (!take_levels(w, row, p, 16, 2, 0, 15, &v))
        return false;
    if (out == NULL)
        return true;
    for (int32_t i = 0; i < 16; i++)
        out[i] = (uint8_t)(v.sc[i] | v.mn[i] << 4);
    put_pairs(w->codes + row * w->k + p, out + 16);
    memcpy(out + 80, &v.d, sizeof v.d);
    memcpy(out + 82, &v.dmin, sizeof v.dmin);
    return true;
}

bool qni_block_q3_k(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    struct levels v;
    if (!take_levels(w, row, p, 16, 3, -32, 31, &v))
        return false;
    if (out == NULL)
        return true;
    const uint8_t *codes = w->codes + row * w->k + p;
    memset(out, 0, 110);
    for (int32_t i = 0; i < 256; i++)
        out[i % 32] = (uint8_t)(out[i % 32] | (codes[i] >> 2) << (i / 32));
    put_pairs(codes, out + 32);
    for (int32_t g = 0; g < 16; g++) {
        const int32_t q = v.sc[g] + 32;
        uint8_t *low = &out[96 + g % 8], *high = &out[104 + g % 4];
        *low = (uint8_t)(*low | (q & 15) << (g < 8 ? 0 : 4));
        *high = (uint8_t)(*high | (q >> 4) << (2 * (g / 4)));
    }
    memcpy(out + 108, &v.d, sizeof v.d);
    return true;
}

/* The head of Q4_K and Q5_K: d, dmin, and eight pairs of 6 bits in 12 bytes. */
static bool put_scales(const struct qn_weight *w, int64_t row, int64_t p, int32_t bits,
                       uint8_t *out)
{
    struct levels v;
    if (!take_levels(w, row, p, 8, bits, 0, 63, &v))
        return false;
    if (out == NULL)
        return true;
    memcpy(out, &v.d, sizeof v.d);
    memcpy(out + 2, &v.dmin, sizeof v.dmin);
    const int32_t *const sc = v.sc, *const mn = v.mn;
    uint8_t *q = out + 4;
    for (int32_t j = 0; j < 4; j++) {
        q[j] = (uint8_t)(sc[j] | sc[j + 4] >> 4 << 6);
        q[j + 4] = (uint8_t)(mn[j] | mn[j + 4] >> 4 << 6);
        q[j + 8] = (uint8_t)((sc[j + 4] & 15) | (mn[j + 4] & 15) << 4);
    }
    return true;
}

static void put_runs(const uint8_t *codes, uint8_t *out)
{
    for (int32_t i = 0; i < 4; i++)
        for (int32_t l = 0; l < 32; l++)
            out[32 * i + l] =
                (uint8_t)((codes[64 * i + l] & 15) | (codes[64 * i + 32 + l] & 15) << 4);
}

bool qni_block_q4_k(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    if (!put_scales(w, row, p, 4, out))
        return false;
    if (out != NULL)
        put_runs(w->codes + row * w->k + p, out + 16);
    return true;
}

bool qni_block_q5_k(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    if (!put_scales(w, row, p, 5, out))
        return false;
    if (out == NULL)
        return true;
    const uint8_t *codes = w->codes + row * w->k + p;
    memset(out + 16, 0, 32);
    for (int32_t i = 0; i < 256; i++)
        out[16 + i % 32] = (uint8_t)(out[16 + i % 32] | (codes[i] >> 4) << (i / 32));
    put_runs(codes, out + 48);
    return true;
}

bool qni_block_q6_k(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    struct levels v;
    if (!take_levels(w, row, p, 16, 6, -128, 127, &v))
        return false;
    if (out == NULL)
        return true;
    for (int32_t half = 0; half < 2; half++) {
        const uint8_t *c = w->codes + row * w->k + p + 128 * half;
        for (int32_t l = 0; l < 32; l++) {
            out[64 * half + l] = (uint8_t)((c[l] & 15) | (c[l + 64] & 15) << 4);
            out[64 * half + 32 + l] = (uint8_t)((c[l + 32] & 15) | (c[l + 96] & 15) << 4);
            out[128 + 32 * half + l] = (uint8_t)(c[l] >> 4 | c[l + 32] >> 4 << 2 |
                                                 c[l + 64] >> 4 << 4 | c[l + 96] >> 4 << 6);
        }
    }
    for (int32_t g = 0; g < 16; g++)
        out[192 + g] = (uint8_t)(int8_t)v.sc[g];
    memcpy(out + 208, &v.d, sizeof v.d);
    return true;
}

bool qni_block_iq4_xs(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    double scale[8];
    struct levels v;
    if (w->format.code != QN_CODE_IQ4_NL)
        return false;
    for (int32_t i = 0; i < 8; i++) {
        if (!qni_block_is_one(w, p + 32 * i, 32))
            return false;
        scale[i] = (double)w->scale[qni_block_at(w, row, p + 32 * i)];
    }
    if (!copy_levels(w, row, p, 8, -32, 31, &v) && !factor(scale, 8, -32, 31, &v.d, v.sc))
        return false;
    if (out == NULL)
        return true;
    int32_t high = 0;
    memcpy(out, &v.d, sizeof v.d);
    memset(out + 4, 0, 4);
    for (int32_t j = 0; j < 8; j++) {
        const int32_t q = v.sc[j] + 32;
        const uint8_t *codes = w->codes + row * w->k + p + 32 * j;
        high |= (q >> 4) << (2 * j);
        out[4 + j / 2] = (uint8_t)(out[4 + j / 2] | (q & 15) << (4 * (j % 2)));
        for (int32_t l = 0; l < 16; l++)
            out[8 + 16 * j + l] = (uint8_t)(codes[l] | codes[l + 16] << 4);
    }
    out[2] = (uint8_t)high;
    out[3] = (uint8_t)(high >> 8);
    return true;
}
