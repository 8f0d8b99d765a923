/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of two panels to weights of bf16 in tiles, while other tiles multiply: a quarter of a tile
 * at a time, so that callers spread them over their products. Only files compiled for AMX include
 * this.
 *
 *     w = fl(scale * value + offset)     split in two planes, each the bf16 next to the remainder,
 *                                        ties away from zero; or
 *     w = what is dequantized            rounded to one plane, ties to even
 *
 * Groups of at most 16 positions, half of whose units of codes is padding, are made two to a unit:
 * the first halves of two tiles. */
#ifndef QNI_CPU_SIMD_AMX_WEIGHTS_H
#define QNI_CPU_SIMD_AMX_WEIGHTS_H

#include "../../base/compiler.h"
#include "../matmul/kernel.h"
#include "amx_bf16.h"

enum { QNI_AMX_BYTE_TABLE = 2 }; /* beside QNI_AMX_NIBBLES and QNI_AMX_BYTES */
enum {
    QNI_AMX_LINE = 64,
    QNI_AMX_QUARTERS = 8 /* of the two tiles of a unit */
};

/* Weights that are being made: a unit of both panels at a time. */
struct qni_amx_feed {
    const struct qni_matmul_tile *t;
    const uint8_t *codes[2];
    ptrdiff_t ahead;     /* to codes that come after these */
    int64_t panel[2];    /* of t */
    int64_t unit, left;  /* quarters */
    int64_t turn, group; /* the quarter of the unit; the group of the scales */
    uint8_t *out;        /* of a unit: the tiles of both panels; of two planes, the second first */
    int64_t unit_bytes;  /* of codes of a panel */
    int64_t second;      /* bytes from them to those of the second half of a tile */
    __m512 scale[2][2], table; /* [half of a tile][panel] */
    __m512 offset[2][2], zero[2][2];
    __m512i low;  /* bits of second planes */
    bool is_bf16; /* a table of 256 values that bf16 holds */
    struct qni_amx_bytes bytes;
};

/* One NaN for all, whose lower half does not carry into the sign when it is rounded. */
static inline __m512 qni_amx_plain_nan(__m512 v)
{
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q),
                              _mm512_set1_ps(__builtin_nanf("")));
}

static inline __m512 qni_amx_zeros(const struct qni_matmul_tile *t, int64_t at)
{
    __m512i v;
    if (t->zero_is_i8)
        v = _mm512_cvtepi8_epi32(
            _mm_loadu_si128((const __m128i *)(const void *)((const int8_t *)t->zero + 16 * at)));
    else
        v = _mm512_loadu_si512((const int32_t *)t->zero + 16 * at);
    return _mm512_cvtepi32_ps(v);
}

static inline void qni_amx_load_group(struct qni_amx_feed *f, int half, int64_t group, int planes)
{
    const struct qni_matmul_tile *t = f->t;
    for (int i = 0; i < 2; i++) {
        const int64_t at = f->panel[i] * t->n_groups + group;
        f->scale[half][i] = qni_amx_plain_nan(qni_load16(t->scale, at, t->scale_is_f16));
        f->offset[half][i] = f->zero[half][i] = _mm512_setzero_ps();
        if (planes == 1 && t->zero != NULL)
            f->zero[half][i] = qni_amx_zeros(t, at);
        else if (t->offset != NULL)
            f->offset[half][i] = qni_amx_plain_nan(qni_load16(t->offset, at, t->scale_is_f16));
    }
}

/* The groups of a unit that begins. An odd last one is made twice: zeros meet its second half. Out
 * of line: once a unit, and the callers are many. */
QNI_NOINLINE static void qni_amx_load_groups(struct qni_amx_feed *f, int planes)
{
    const struct qni_matmul_tile *t = f->t;
    if (t->halves) {
        const bool two = 2 * f->unit + 1 < t->n_groups;
        f->second = two ? f->unit_bytes / 2 : 0;
        qni_amx_load_group(f, 0, 2 * f->unit, planes);
        qni_amx_load_group(f, 1, 2 * f->unit + two, planes);
    } else if (f->unit / t->group_units != f->group) {
        f->group = f->unit / t->group_units;
        qni_amx_load_group(f, 0, f->group, planes);
        qni_amx_load_group(f, 1, f->group, planes);
    }
}

/* ---- values ---------------------------------------------------------------------------------- */

/* Index of vpshufb: byte b of each lane, wherever a mask says. */
QNI_TEMPLATE __m512i qni_amx_to_byte(const int b)
{
    const __m128i lanes = _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    return _mm512_add_epi8(_mm512_set1_epi8((char)b), _mm512_broadcast_i32x4(lanes));
}

/* Nibble or byte b of every lane as a value. */
QNI_TEMPLATE __m512 qni_amx_value(const struct qni_amx_feed *f, __m512i v, const int b,
                                  const int kind)
{
    if (kind == QNI_AMX_BYTES) {
        /* In the low bits of 2^23 it makes 2^23 + byte; less 2^23 + 128 it is the code. */
        const __m512i one = _mm512_set1_epi32(0x4b000000);
        const __m512i bits =
            _mm512_mask_shuffle_epi8(one, 0x1111111111111111u, v, qni_amx_to_byte(b));
        return _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p23f + 128.0f));
    }
    const __m512i at = b == 0 ? v : _mm512_srli_epi32(v, (unsigned)(8 * b));
    if (kind == QNI_AMX_NIBBLES) /* vpermps looks at four bits */
        return _mm512_permutexvar_ps(at, f->table);
    return _mm512_i32gather_ps(_mm512_and_si512(at, _mm512_set1_epi32(0xff)), f->t->table, 4);
}

/* The values of all four of a lane. */
QNI_TEMPLATE void qni_amx_values(const struct qni_amx_feed *f, __m512i v, const int kind,
                                 __m512 value[4])
{
    if (kind == QNI_AMX_BYTE_TABLE && f->is_bf16) {
        const __m512i lower = qni_amx_look_up(f->bytes.lower, v);
        const __m512i upper = qni_amx_look_up(f->bytes.upper, v);
        QNI_UNROLL
        for (int b = 0; b < 4; b++) {
            const __m512i at = qni_amx_to_byte(b);
            const __m512i part = _mm512_maskz_shuffle_epi8(0x4444444444444444u, lower, at);
            value[b] =
                _mm512_castsi512_ps(_mm512_mask_shuffle_epi8(part, 0x8888888888888888u, upper, at));
        }
        return;
    }
    QNI_UNROLL
    for (int b = 0; b < 4; b++)
        value[b] = qni_amx_value(f, v, b, kind);
}

/* ---- weights to planes ----------------------------------------------------------------------- */

/* A row of a tile, one plane: a in the lower half of each lane. */
QNI_TEMPLATE void qni_amx_round_row(__m512 a, __m512 b, uint8_t *out)
{
    const __m512i in_turn =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    _mm512_store_si512(out, _mm512_permutexvar_epi16(in_turn, both));
}

/* The upper halves of both as bf16, a in the lower half of each lane. */
QNI_TEMPLATE __m512i qni_amx_pair_up(__m512i a, __m512i b)
{
    const __m512i down = _mm512_broadcast_i32x4(
        _mm_setr_epi8(2, 3, -1, -1, 6, 7, -1, -1, 10, 11, -1, -1, 14, 15, -1, -1));
    return _mm512_mask_shuffle_epi8(b, 0x3333333333333333u, a, down);
}

QNI_TEMPLATE __m512 qni_amx_below(__m512 v, __m512i rounded)
{
    const __m512i upper = _mm512_and_si512(rounded, _mm512_set1_epi32((int32_t)0xffff0000));
    return _mm512_sub_ps(v, _mm512_castsi512_ps(upper));
}

/* A row of the tiles of two planes; returns that of the second. Ties go away from zero. */
QNI_TEMPLATE __m512i qni_amx_split_row(__m512 a, __m512 b, uint8_t *out)
{
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i near_a = _mm512_add_epi32(_mm512_castps_si512(a), half);
    const __m512i near_b = _mm512_add_epi32(_mm512_castps_si512(b), half);
    _mm512_store_si512(out + 2 * QNI_AMX_BF16_TILE, qni_amx_pair_up(near_a, near_b));
    const __m512i rest_a = _mm512_castps_si512(qni_amx_below(a, near_a));
    const __m512i rest_b = _mm512_castps_si512(qni_amx_below(b, near_b));
    const __m512i low =
        qni_amx_pair_up(_mm512_add_epi32(rest_a, half), _mm512_add_epi32(rest_b, half));
    _mm512_store_si512(out, low);
    return low;
}

/* Four positions of 16 outputs: two rows. x has positions 0 2, 1 3 in pairs. -zero * scale may have
 * more digits than f32, so one plane takes zeros away first. */
QNI_TEMPLATE void qni_amx_two_rows(struct qni_amx_feed *f, __m512i v, int half, int i, uint8_t *out,
                                   const int planes, const int kind)
{
    const __m512 scale = f->scale[half][i], offset = f->offset[half][i];
    const bool has_zero = planes == 1 && f->t->zero != NULL;
    __m512 w[4];
    qni_amx_values(f, v, kind, w);
    if (has_zero) {
        const __m512 zero = f->zero[half][i];
        QNI_UNROLL
        for (int b = 0; b < 4; b++)
            w[b] = _mm512_mul_ps(scale, _mm512_sub_ps(w[b], zero));
    } else {
        QNI_UNROLL
        for (int b = 0; b < 4; b++)
            w[b] = _mm512_fmadd_ps(scale, w[b], offset);
    }
    if (planes == 1) {
        qni_amx_round_row(w[0], w[2], out);
        qni_amx_round_row(w[1], w[3], out + QNI_AMX_LINE);
    } else {
        const __m512i low0 = qni_amx_split_row(w[0], w[2], out);
        const __m512i low1 = qni_amx_split_row(w[1], w[3], out + QNI_AMX_LINE);
        f->low = _mm512_ternarylogic_epi32(f->low, low0, low1, 0xfe); /* or of all three */
    }
}

/* ---- quarters -------------------------------------------------------------------------------- */

QNI_VARIANTS void qni_amx_make(struct qni_amx_feed *f, const int planes, const int kind)
{
    enum { LINE = QNI_AMX_LINE, TILE = QNI_AMX_BF16_TILE };
    const int i = (int)(f->turn >> 2), r = (int)(f->turn & 3);
    if (f->turn == 0)
        qni_amx_load_groups(f, planes);
    uint8_t *const out = f->out + TILE * i;
    const uint8_t *codes = f->codes[i];
    if (kind == QNI_AMX_NIBBLES) {
        codes += LINE * r;
        _mm_prefetch((const char *)codes + f->ahead, _MM_HINT_T1);
        const __m512i v0 = _mm512_loadu_si512(codes);
        __m512i v1 = _mm512_srli_epi32(v0, 4);
        if (f->t->halves) {
            _mm_prefetch((const char *)codes + f->second + f->ahead, _MM_HINT_T1);
            v1 = _mm512_loadu_si512(codes + f->second);
        }
        qni_amx_two_rows(f, v0, 0, i, out + 2 * LINE * r, planes, kind);
        qni_amx_two_rows(f, v1, 1, i, out + TILE / 2 + 2 * LINE * r, planes, kind);
    } else {
        const int half = r >> 1;
        codes += (half ? f->second : 0) + 2 * LINE * (r & 1);
        _mm_prefetch((const char *)codes + f->ahead, _MM_HINT_T1);
        _mm_prefetch((const char *)codes + LINE + f->ahead, _MM_HINT_T1);
        const __m512i v0 = _mm512_loadu_si512(codes), v1 = _mm512_loadu_si512(codes + LINE);
        qni_amx_two_rows(f, v0, half, i, out + 4 * LINE * r, planes, kind);
        qni_amx_two_rows(f, v1, half, i, out + 4 * LINE * r + 2 * LINE, planes, kind);
    }
    f->left--;
    if (++f->turn == QNI_AMX_QUARTERS) {
        f->turn = 0;
        f->unit++;
        f->out += 2 * planes * TILE;
        f->codes[0] += f->unit_bytes;
        f->codes[1] += f->unit_bytes;
    }
}

/* n quarters, or the remaining ones. */
QNI_TEMPLATE void qni_amx_make_some(struct qni_amx_feed *f, int64_t n, const int planes,
                                    const int kind)
{
    for (n = n < f->left ? n : f->left; n > 0; n--)
        qni_amx_make(f, planes, kind);
}

/* What does not change from one stretch of weights to the next; all else is zero. */
QNI_TEMPLATE void qni_amx_feed_begin(struct qni_amx_feed *f, const struct qni_matmul_tile *t,
                                     const int kind)
{
    f->t = t;
    f->second = QNI_AMX_BF16_TILE / 4; /* of bytes */
    f->unit_bytes = (kind == QNI_AMX_NIBBLES ? 256 : 512) << t->halves;
    if (kind == QNI_AMX_NIBBLES)
        f->table = t->table != NULL
                       ? qni_amx_plain_nan(_mm512_loadu_ps(t->table))
                       : _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    if (kind != QNI_AMX_BYTE_TABLE)
        return;
    /* A gather takes three times as long as bytes from registers: those of FP8 are two. */
    uint32_t all = 0;
    for (int i = 0; i < 256; i++) {
        uint32_t bits;
        memcpy(&bits, t->table + i, sizeof bits);
        all |= bits;
    }
    qni_amx_bytes_of(t->table, &f->bytes);
    f->is_bf16 = (all & 0xffff) == 0;
}

#endif
