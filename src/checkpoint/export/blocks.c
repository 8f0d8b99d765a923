/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of GGUF with one scale for 16 or 32 elements, and the list of all block types, in the
 * order in which they are tried: those that a weight came from have the format of just that type,
 * and for others smaller types are before larger ones.
 *
 *     Q4_0, Q5_0, Q8_0   d v: integers and their zero point together must fit the type's bits
 *     Q4_1, Q5_1         d u + m: m, the minimum or offset - 2^(b-1) d, must be an f16 number
 *     IQ4_NL             d table[u]
 *     MXFP4, NVFP4       E2M1 codes with E8M0 or E4M3 scales */
#include <string.h>

#include "../../base/half.h"
#include "export.h"

static bool put_f16(float value, uint8_t *out)
{
    uint8_t own[4];
    return qni_export_narrow(QN_F16, value, out == NULL ? own : out);
}

static void put_halves(const uint8_t *codes, int32_t half, uint8_t *out)
{
    for (int32_t j = 0; j < half; j++)
        out[j] = (uint8_t)((codes[j] & 15) | (codes[j + half] & 15) << 4);
}

static void put_fifth(const uint8_t *codes, uint8_t *out)
{
    uint32_t bits = 0;
    for (int32_t j = 0; j < 32; j++)
        bits |= (uint32_t)(codes[j] >> 4) << j;
    memcpy(out, &bits, sizeof bits);
}

/* v - zero of 32 positions, counted from -2^(bits-1); false: one does not fit. */
static bool take_signed(const struct qn_weight *w, int64_t row, int64_t p, int32_t bits,
                        uint8_t codes[32])
{
    const int32_t half = 1 << (bits - 1);
    int32_t zero = 0;
    if (w->format.code != QN_CODE_INT || !qni_block_is_one(w, p, 32) ||
        !qni_export_zero(w, qni_block_at(w, row, p), &zero))
        return false;
    for (int32_t j = 0; j < 32; j++) {
        const int32_t v = qni_block_value(w, row, p + j) - zero + half;
        if (v < 0 || v >= 2 * half)
            return false;
        codes[j] = (uint8_t)v;
    }
    return true;
}

static bool put_q4_0(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    uint8_t codes[32];
    if (!take_signed(w, row, p, 4, codes) || !put_f16(w->scale[qni_block_at(w, row, p)], out))
        return false;
    if (out != NULL)
        put_halves(codes, 16, out + 2);
    return true;
}

static bool put_q5_0(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    uint8_t codes[32];
    if (!take_signed(w, row, p, 5, codes) || !put_f16(w->scale[qni_block_at(w, row, p)], out))
        return false;
    if (out != NULL) {
        put_fifth(codes, out + 2);
        put_halves(codes, 16, out + 6);
    }
    return true;
}

static bool put_q8_0(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    uint8_t codes[32];
    if (!take_signed(w, row, p, 8, codes) || !put_f16(w->scale[qni_block_at(w, row, p)], out))
        return false;
    for (int32_t j = 0; j < 32 && out != NULL; j++)
        out[2 + j] = codes[j] ^ 0x80;
    return true;
}

/* The f16 number m with fl(m + 2^(b-1) d) == offset; the sum may have been rounded when it was
 * made, so m is looked for where it must be. */
static bool find_minimum(float d, float offset, int32_t half, uint8_t *out)
{
    const double wanted = (double)offset - half * (double)d;
    const uint16_t nearest = qni_f16_from_f32((float)wanted);
    for (int32_t step = -1; step <= 1; step++) {
        const uint16_t m = (uint16_t)(nearest + (step == -1 ? 0 : step == 0 ? 1 : -1));
        const double sum = (double)qni_f32_from_f16(m) + half * (double)d;
        if ((float)sum == offset) {
            if (out != NULL)
                memcpy(out, &m, sizeof m);
            return true;
        }
    }
    return false;
}

static bool put_minimum(const struct qn_weight *w, int64_t row, int64_t p, int32_t bits,
                        uint8_t codes[32], uint8_t *out)
{
    const int64_t at = qni_block_at(w, row, p);
    const bool has_min = w->format.shift == QN_SHIFT_MIN;
    const int32_t wider = has_min ? 0 : (1 << (bits - 1)) - (1 << (w->format.bits - 1));
    if (w->format.code != QN_CODE_INT || w->format.bits > bits || !qni_block_is_one(w, p, 32))
        return false;
    const float offset = qni_group_offset(w, at / w->n_groups, at % w->n_groups);
    if (w->zero != NULL && (double)offset != -(double)w->zero[at] * (double)w->scale[at])
        return false;
    for (int32_t j = 0; j < 32; j++)
        codes[j] = (uint8_t)(w->codes[row * w->k + p + j] + wider);
    if (has_min)
        return put_f16(w->scale[at], out) && put_f16(w->offset[at], out == NULL ? NULL : out + 2);
    return put_f16(w->scale[at], out) &&
           find_minimum(w->scale[at], offset, 1 << (bits - 1), out == NULL ? NULL : out + 2);
}

static bool put_q4_1(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    uint8_t codes[32];
    if (!put_minimum(w, row, p, 4, codes, out))
        return false;
    if (out != NULL)
        put_halves(codes, 16, out + 4);
    return true;
}

static bool put_q5_1(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    uint8_t codes[32];
    if (!put_minimum(w, row, p, 5, codes, out))
        return false;
    if (out != NULL) {
        put_fifth(codes, out + 4);
        put_halves(codes, 16, out + 8);
    }
    return true;
}

static bool put_iq4_nl(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    if (w->format.code != QN_CODE_IQ4_NL || !qni_block_is_one(w, p, 32) ||
        !put_f16(w->scale[qni_block_at(w, row, p)], out))
        return false;
    if (out != NULL)
        put_halves(w->codes + row * w->k + p, 16, out + 2);
    return true;
}

static bool put_mxfp4(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    uint8_t own[4];
    if (w->format.code != QN_CODE_E2M1 || !qni_block_is_one(w, p, 32) ||
        !qni_export_narrow(QN_E8M0, w->scale[qni_block_at(w, row, p)], own))
        return false;
    if (out != NULL) {
        out[0] = own[0];
        put_halves(w->codes + row * w->k + p, 16, out + 1);
    }
    return true;
}

/* Scales have no sign, and 0x7f would be 0. */
static bool put_nvfp4(const struct qn_weight *w, int64_t row, int64_t p, uint8_t *out)
{
    uint8_t own[4];
    if (w->format.code != QN_CODE_E2M1)
        return false;
    for (int64_t i = 0; i < 4; i++, p += 16) {
        const bool is_one = qni_block_is_one(w, p, 16);
        const float scale = w->scale[qni_block_at(w, row, p)];
        if (!is_one || scale < 0 || !qni_export_narrow(QN_E4M3, scale, own) || own[0] >= 0x7f)
            return false;
        if (out != NULL) {
            out[i] = own[0];
            put_halves(w->codes + row * w->k + p, 8, out + 4 + 8 * i);
        }
    }
    return true;
}

const struct qni_block qni_blocks[] = {
    {"Q4_0", put_q4_0},       {"Q4_1", put_q4_1},       {"Q3_K", qni_block_q3_k},
    {"Q2_K", qni_block_q2_k}, {"Q4_K", qni_block_q4_k}, {"Q5_0", put_q5_0},
    {"Q5_1", put_q5_1},       {"Q5_K", qni_block_q5_k}, {"Q6_K", qni_block_q6_k},
    {"Q8_0", put_q8_0},       {"IQ4_NL", put_iq4_nl},   {"IQ4_XS", qni_block_iq4_xs},
    {"MXFP4", put_mxfp4},     {"NVFP4", put_nvfp4},     {NULL, NULL},
};
