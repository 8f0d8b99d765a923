/* SPDX-License-Identifier: Apache-2.0 */
/* What the float kernels on tiles share: x86_amx_float.c, and for short groups of many rows
 * x86_amx_float_short.c. Only files compiled for AMX include this. */
#ifndef QNI_CPU_SIMD_AMX_FLOAT_H
#define QNI_CPU_SIMD_AMX_FLOAT_H

#include "../matmul/kernel.h"
#include "amx_bf16.h"

/* Multiplies blocks of 32 rows by short groups: how many rows that were. Its scratch is that of the
 * caller. */
int64_t qni_amx_float_short(const struct qni_matmul_tile *t, const struct qni_amx_table *table,
                            int32_t kind);

/* Infinities and NaN. */
QNI_TEMPLATE __mmask16 qni_amx_no_numbers(__m512 v)
{
    return _mm512_fpclass_ps_mask(v, 0x99);
}

/* Results of a pair of panels on their way to c, row by row. */
struct qni_amx_way_out {
    const float *part; /* [32][32], block after block */
    float *c;
    size_t ldc, second; /* to the other panel; 0 if there is none */
    int64_t left;       /* rows */
    bool streams;       /* stores pass the caches by */
    __mmask16 odd;      /* some of them are no numbers */
};

QNI_TEMPLATE void qni_amx_move_rows(struct qni_amx_way_out *o, int64_t rows)
{
    for (rows = rows < o->left ? rows : o->left; rows > 0; rows--) {
        const __m512 v0 = _mm512_load_ps(o->part), v1 = _mm512_load_ps(o->part + 16);
        o->odd |= qni_amx_no_numbers(v0) | qni_amx_no_numbers(v1);
        if (o->streams) {
            _mm512_stream_ps(o->c + o->second, v1);
            _mm512_stream_ps(o->c, v0);
        } else {
            _mm512_storeu_ps(o->c + o->second, v1);
            _mm512_storeu_ps(o->c, v0);
        }
        o->part += QNI_AMX_BF16_WIDTH;
        o->c += o->ldc;
        o->left--;
    }
}

/* ---- zero points in codes -------------------------------------------------------------------- */

/* bf16 of 0 to 15 and -16 to -1. */
static inline __m512i qni_amx_signed_nibbles(void)
{
    const __m512 low = _mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512 high = _mm512_sub_ps(low, _mm512_set1_ps(16.0f));
    const __m256i a = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(low), 16));
    const __m256i b = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(high), 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(a), b, 1);
}

/* Are some zero points beyond nibbles, -8 to 8? */
static inline bool qni_amx_has_far_zeros(const struct qni_matmul_tile *t)
{
    const int8_t *const zero = t->zero;
    const __m128i eight = _mm_set1_epi8(8);
    __m128i most = _mm_setzero_si128();
    for (int64_t i = 0; i < t->n_panels * t->n_groups; i++) {
        const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)(zero + 16 * i));
        most = _mm_max_epu8(most, _mm_add_epi8(v, eight));
    }
    return _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_max_epu8(most, _mm_set1_epi8(17)), most)) != 0;
}

/* What codes of a panel's group are shifted by, a zero point and what makes codes unsigned: bytes
 * of which nibbles take five bits; integers, if zero points are far; floats for bytes. t: NULL if
 * there are none. */
QNI_TEMPLATE __m512i qni_amx_shift_of(const struct qni_matmul_tile *t, int64_t at, const int kind,
                                      bool is_far)
{
    __m512i zero = _mm512_setzero_si512();
    if (t != NULL)
        zero = _mm512_cvtepi8_epi32(
            _mm_loadu_si128((const __m128i *)(const void *)((const int8_t *)t->zero + 16 * at)));
    if (kind == QNI_AMX_BYTES)
        return _mm512_castps_si512(
            _mm512_add_ps(_mm512_set1_ps(QNI_AMX_BYTE_ZERO), _mm512_cvtepi32_ps(zero)));
    const __m512i lowest =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12));
    if (is_far)
        return zero;
    return _mm512_shuffle_epi8(_mm512_sub_epi32(_mm512_set1_epi32(-8), zero), lowest);
}

/* ---- offsets as products --------------------------------------------------------------------- */

/* The nearest bf16 as the upper half, or, where that is infinite, the one towards zero. */
QNI_TEMPLATE __m512i qni_amx_near_bf16(__m512 v, __m512 *rest)
{
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000));
    const __m512i size = _mm512_and_si512(up, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 fits = _mm512_cmplt_epu32_mask(size, _mm512_set1_epi32(0x7f800000));
    const __m512i half = _mm512_and_si512(_mm512_mask_mov_epi32(bits, fits, up),
                                          _mm512_set1_epi32((int32_t)0xffff0000));
    *rest = _mm512_sub_ps(v, _mm512_castsi512_ps(half));
    return half;
}

/* Offsets of a panel's groups to tiles of B: of 32 groups the upper plane, once more, the lower. */
static inline void qni_amx_unpack_offsets(const struct qni_matmul_tile *t, int64_t panel,
                                          uint8_t *out)
{
    enum { LINE = 64, TILE = QNI_AMX_BF16_TILE };
    for (int64_t g = 0; g < (t->n_groups + 31) / 32 * 32; g += 2, out += LINE) {
        __m512i upper[2], lower[2];
        for (int64_t k = 0; k < 2; k++) {
            __m512 rest, v = _mm512_setzero_ps();
            if (g + k < t->n_groups)
                v = qni_load16(t->offset, panel * t->n_groups + g + k, t->scale_is_f16);
            upper[k] = qni_amx_near_bf16(v, &rest);
            lower[k] = qni_amx_near_bf16(rest, &rest);
        }
        const __mmask32 odd = 0xaaaaaaaau;
        const __m512i up = _mm512_mask_blend_epi16(odd, _mm512_srli_epi32(upper[0], 16), upper[1]);
        _mm512_store_si512(out, up);
        _mm512_store_si512(out + 2 * TILE, up);
        _mm512_store_si512(out + 4 * TILE,
                           _mm512_mask_blend_epi16(odd, _mm512_srli_epi32(lower[0], 16), lower[1]));
        if (g % 32 == 30)
            out += 5 * TILE;
    }
}

/* Offsets are products, too: of sums of x of a group and its offset, whose groups are positions.
 * Both are split in two planes; upper x upper, lower x upper and upper x lower count. All else
 * is below 2^-16 + 2 * 2^-17 of |total * offset|: with 1024 positions a quarter of the bound. An
 * infinite total leaves NaN for the lower plane. totals: [][units][32 rows][32]. */
static inline void qni_amx_split_totals(const struct qni_matmul_tile *t, int64_t rows,
                                        uint16_t *totals, int64_t units)
{
    enum { ROWS = QNI_BF16_ROWS };
    for (int64_t i = 0; i < rows; i++)
        for (int64_t g = 0; g < (t->n_groups + 31) / 32 * 32; g += 16) {
            uint16_t *const out =
                totals + ((i / ROWS * units + g / 32 * 3) * ROWS + i % ROWS) * 32 + g % 32;
            const float *const total = t->a_total + (size_t)i * t->ld_segment + g;
            const int64_t left = t->n_groups - g < 16 ? t->n_groups - g : 16;
            const __mmask16 there = (__mmask16)(left < 0 ? 0 : (1 << left) - 1);
            __m512 rest;
            const __m512i upper = qni_amx_near_bf16(_mm512_maskz_loadu_ps(there, total), &rest);
            const __m512i lower = qni_amx_near_bf16(rest, &rest);
            for (int k = 0; k < 3; k++)
                _mm256_store_si256(
                    (__m256i *)(void *)(out + k * ROWS * 32),
                    _mm512_cvtepi32_epi16(_mm512_srli_epi32(k == 1 ? lower : upper, 16)));
        }
}

#endif
