/* SPDX-License-Identifier: Apache-2.0 */
/* What rows of direct convolutions that gather have in common on 256 bits: bytes on their way in,
 * and sums on their way out. Contract: conv/direct_kernel.h. */
#ifndef QNI_CPU_SIMD_AVX2_BYTES_H
#define QNI_CPU_SIMD_AVX2_BYTES_H

#include "../../base/compiler.h"
#include "../conv/kernel.h"
#include "avx2.h"

/* ---- bytes of x ------------------------------------------------------------------------------ */

QNI_TEMPLATE void flip_16(const uint8_t *from, const __m128i flip, uint8_t *to)
{
    const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)from);
    _mm_storeu_si128((__m128i *)(void *)to, _mm_xor_si128(v, flip));
}

QNI_TEMPLATE void flip_8(const uint8_t *from, const __m128i flip, uint8_t *to)
{
    const __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)from);
    _mm_storel_epi64((__m128i *)(void *)to, _mm_xor_si128(v, flip));
}

/* Fewer than 16. */
QNI_TEMPLATE void copy_few(const uint8_t *from, int64_t n, const __m128i flip, uint8_t *to)
{
    const uint32_t word = (uint32_t)_mm_cvtsi128_si32(flip);
    if (n >= 8) {
        flip_8(from, flip, to);
        flip_8(from + n - 8, flip, to + n - 8);
        return;
    }
    for (; n >= 4; n -= 4, from += 4, to += 4) {
        uint32_t four;
        memcpy(&four, from, sizeof four);
        four ^= word;
        memcpy(to, &four, sizeof four);
    }
    for (int64_t i = 0; i < n; i++)
        to[i] = (uint8_t)(from[i] ^ word);
}

/* n bytes, changed by flip; the last ones may be written twice. */
QNI_TEMPLATE void copy(const uint8_t *from, int64_t n, const uint8_t flip, uint8_t *to)
{
    const __m256i wide = _mm256_set1_epi8((char)flip);
    const __m128i half = _mm256_castsi256_si128(wide);
    if (n < 16) {
        copy_few(from, n, half, to);
        return;
    }
    for (; n >= 32; n -= 32, from += 32, to += 32) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)from);
        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_xor_si256(v, wide));
    }
    if (n > 16)
        flip_16(from, half, to);
    if (n > 0)
        flip_16(from + n - 16, half, to + n - 16);
}

/* Units of 32 positions, 256 bytes of codes value + 8, become values: four positions of 16 outputs
 * in 64 bytes, dword j of output j. */
QNI_TEMPLATE void qni_nibbles_to_values(const uint8_t *from, int64_t units, int8_t *to)
{
    const __m256i nibble = _mm256_set1_epi8(0x0f), eight = _mm256_set1_epi8(8);
    for (; units > 0; units--, to += 256)
        for (int i = 0; i < 256; i += 32, from += 32, to += 32) {
            const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)from);
            const __m256i low = _mm256_and_si256(v, nibble);
            const __m256i high = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
            _mm256_storeu_si256((__m256i *)(void *)to, _mm256_sub_epi8(low, eight));
            _mm256_storeu_si256((__m256i *)(void *)(to + 256), _mm256_sub_epi8(high, eight));
        }
}

/* ---- from sums to bytes ---------------------------------------------------------------------- */

/* ZERO: x has a zero point. SHIFT: y has one, is unsigned or has a floor. UNBOUNDED: what becomes
 * a code may be a NaN, or beyond +-2^21. */
enum { ZERO = 1, SHIFT = 2, UNBOUNDED = 4 };

struct finish {
    __m256 x_scale, y_inv, scale[2], bias[2];
    __m256i zero[2], y_zero, floor, flip;
};

static inline struct finish finish_of(const struct qni_direct_tile *t, int64_t panel)
{
    struct finish f;
    const int32_t zero = t->y_zero - (t->is_u8 ? 128 : 0); /* bytes are made signed, then flipped */
    const int32_t floor = zero < -128 ? -128 : zero > 127 ? 127 : zero;
    f.x_scale = _mm256_set1_ps(t->x_scale);
    f.y_inv = _mm256_set1_ps(t->y_inv);
    f.y_zero = _mm256_set1_epi16((short)zero);
    f.floor = _mm256_set1_epi8((char)(t->relu ? floor : -128));
    f.flip = _mm256_set1_epi8((char)(t->is_u8 ? 0x80 : 0));
    for (int h = 0; h < 2; h++) {
        const int64_t at = panel * QNI_PANEL + 8 * h;
        f.scale[h] = _mm256_loadu_ps(t->scale + at);
        f.bias[h] = _mm256_loadu_ps(t->bias + at);
        f.zero[h] = _mm256_loadu_si256((const __m256i *)(const void *)(t->zero + at));
    }
    return f;
}

QNI_TEMPLATE __m256i code_of(const struct finish *f, const int32_t *sum, const int h,
                             const int what)
{
    __m256i d = _mm256_loadu_si256((const __m256i *)(const void *)(sum + 8 * h));
    if (what & ZERO)
        d = _mm256_sub_epi32(d, f->zero[h]);
    __m256 v = _mm256_mul_ps(_mm256_mul_ps(f->scale[h], _mm256_cvtepi32_ps(d)), f->x_scale);
    v = _mm256_mul_ps(_mm256_add_ps(v, f->bias[h]), f->y_inv);
    if (what & UNBOUNDED) {
        const __m256 most = _mm256_set1_ps(0x1p21f), least = _mm256_set1_ps(-0x1p21f);
        const __m256 number = _mm256_cmp_ps(v, v, _CMP_ORD_Q);
        v = _mm256_and_ps(_mm256_min_ps(_mm256_max_ps(v, least), most), number);
    }
    return _mm256_cvtps_epi32(v);
}

/* A row as int16. What saturates here does so as a byte, too: |y_zero| is 128 at most. */
QNI_TEMPLATE __m256i row_of(const struct finish *f, const int32_t *sum, const int what)
{
    const __m256i row = _mm256_packs_epi32(code_of(f, sum, 0, what), code_of(f, sum, 1, what));
    return (what & SHIFT) ? _mm256_adds_epi16(row, f->y_zero) : row;
}

/* Rows r and r + second of a panel. Relu is a floor on the code: v <= 0 gives y_zero, and any other
 * v no less. */
QNI_TEMPLATE __m256i two_rows(const struct finish *f, const int32_t *sum, const int second,
                              const int what)
{
    __m256i packed =
        _mm256_packs_epi16(row_of(f, sum, what), row_of(f, sum + second * QNI_PANEL, what));
    if (what & SHIFT)
        packed = _mm256_xor_si256(_mm256_max_epi8(packed, f->floor), f->flip);
    /* Dwords: of the first row outputs 0 and 8, of the second 0 and 8; then 4 and 12 of both. */
    return _mm256_permutevar8x32_epi32(packed, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
}

/* Writes n bytes of a row of outputs. */
static inline void write_row(const __m128i row, int64_t n, uint8_t *to)
{
    uint8_t bytes[16];
    if (n >= 16) {
        _mm_storeu_si128((__m128i *)(void *)to, row);
        return;
    }
    _mm_storeu_si128((__m128i *)(void *)bytes, row);
    for (int64_t j = 0; j < n; j++)
        to[j] = bytes[j];
}

QNI_TEMPLATE void panel_to_bytes(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                                 int64_t panel, const int32_t *sums, const int what)
{
    const struct finish f = finish_of(t, panel);
    const int64_t column = t->column + panel * QNI_PANEL, n = t->n - panel * QNI_PANEL;
    uint8_t *const *const y = t->y + p->row;
    int64_t r = 0;
    for (; r + 2 <= p->rows; r += 2, sums += 2 * QNI_PANEL) {
        const __m256i two = two_rows(&f, sums, 1, what);
        write_row(_mm256_castsi256_si128(two), n, y[r] + column);
        write_row(_mm256_extracti128_si256(two, 1), n, y[r + 1] + column);
    }
    if (r < p->rows)
        write_row(_mm256_castsi256_si128(two_rows(&f, sums, 0, what)), n, y[r] + column);
}

/* Two panels that follow each other, of whole rows of outputs. */
QNI_TEMPLATE void panels_to_bytes(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                                  int64_t panel, const int32_t *const *sums, const int what)
{
    const struct finish f[2] = {finish_of(t, panel), finish_of(t, panel + 1)};
    const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
    const int64_t column = t->column + panel * QNI_PANEL;
    for (int64_t r = 0; r < p->rows; r++) {
        __m256i packed = _mm256_packs_epi16(row_of(&f[0], sums[0] + r * QNI_PANEL, what),
                                            row_of(&f[1], sums[1] + r * QNI_PANEL, what));
        if (what & SHIFT)
            packed = _mm256_xor_si256(_mm256_max_epi8(packed, f[0].floor), f[0].flip);
        _mm256_storeu_si256((__m256i *)(void *)(t->y[p->row + r] + column),
                            _mm256_permutevar8x32_epi32(packed, order));
    }
}

/* Outputs of a panel. */
static inline void prefetch_y(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                              int64_t panel)
{
    uint8_t *const *const y = t->y + p->row;
    for (int64_t r = 0; t->kind == QNI_DIRECT_BYTES && r < p->rows; r++)
        _mm_prefetch((const char *)(y[r] + t->column + panel * QNI_PANEL), _MM_HINT_T0);
}

static inline void panel_to_words(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                                  int64_t panel, const int32_t *sums)
{
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t j = 0; j < QNI_PANEL; j += 8) {
            const int64_t at = panel * QNI_PANEL + j;
            float *const to = t->c + (p->row + r) * 32 + at;
            const __m256i d = _mm256_sub_epi32(
                _mm256_loadu_si256((const __m256i *)(const void *)(sums + r * QNI_PANEL + j)),
                _mm256_loadu_si256((const __m256i *)(const void *)(t->zero + at)));
            if (t->kind == QNI_DIRECT_RAW)
                _mm256_storeu_si256((__m256i *)(void *)to, d);
            else
                _mm256_storeu_ps(to, _mm256_fmadd_ps(_mm256_loadu_ps(t->scale + at),
                                                     _mm256_cvtepi32_ps(d), _mm256_setzero_ps()));
        }
}

static inline void finish_panel(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                                int64_t panel, const int32_t *sums)
{
    if (t->kind != QNI_DIRECT_BYTES)
        panel_to_words(t, p, panel, sums);
    else if (!t->is_bounded)
        panel_to_bytes(t, p, panel, sums, ZERO | SHIFT | UNBOUNDED);
    else if (t->has_zero)
        panel_to_bytes(t, p, panel, sums, ZERO | SHIFT);
    else if (t->y_zero != 0 || t->is_u8 || t->relu)
        panel_to_bytes(t, p, panel, sums, SHIFT);
    else
        panel_to_bytes(t, p, panel, sums, 0);
}

/* Outputs of two panels that follow each other. */
static inline void finish_panels(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                                 int64_t panel, const int32_t *const *sums)
{
    if (t->kind != QNI_DIRECT_BYTES || !t->is_bounded || t->n < (panel + 2) * QNI_PANEL) {
        finish_panel(t, p, panel, sums[0]);
        finish_panel(t, p, panel + 1, sums[1]);
    } else if (t->has_zero) {
        panels_to_bytes(t, p, panel, sums, ZERO | SHIFT);
    } else if (t->y_zero != 0 || t->is_u8 || t->relu) {
        panels_to_bytes(t, p, panel, sums, SHIFT);
    } else {
        panels_to_bytes(t, p, panel, sums, 0);
    }
}

#endif
