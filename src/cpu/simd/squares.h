/* SPDX-License-Identifier: Apache-2.0 */
/* 3 x 3 taps of stride 1 in squares of 2 x 2 outputs (Winograd's minimal filtering of small tiles):
 * 16 products for 36, of words, all integers.
 *
 *     of a line    y0 = x0 w0 + x1 w1 + x2 w2     y1 = x1 w0 + x2 w1 + x3 w2
 *     products     m0 = (x0 - x2) 2 w0            m1 = (x1 + x2) (w0 + w1 + w2)
 *                  m3 = (x1 - x3) (-2 w2)         m2 = (x2 - x1) (w0 - w1 + w2)
 *     so           2 y0 = m0 + m1 + m2            2 y1 = m1 - m2 + m3
 *
 * and the same of columns of that. With |x| <= 255 transformed x is at most 1020 and transformed
 * weights 9 * 128: words. Sums are 4 y modulo 2^32, which is 4 y where |y| < 2^29.
 *
 * Squares of 4 x 4 are 36 products for 144, with points 0, 1, -1, 2, -2 and infinity:
 *
 *     m0 = (4 x0 - 5 x2 + x4) 6 w0
 *     m1 = (x4 - 4 x2 + (x3 - 4 x1)) (-4) (w0 + w1 + w2)       m2 with - for the second of each sum
 *     m3 = (x4 - x2 + 2 (x3 - x1)) (w0 + 2 w1 + 4 w2)          m4 the same
 *     m5 = (4 x1 - 5 x3 + x5) 3 w2
 *     24 y0 = m0 + m1 + m2 + m3 + m4                           24 y1 = m1 - m2 + 2 (m3 - m4)
 *     24 y2 = m1 + m2 + 4 (m3 + m4)                            24 y3 = m1 - m2 + 8 (m3 - m4 + m5)
 *
 * With |x| <= 128 transformed x is at most 100 * 128 and weights 144 * 128: words. Sums are 576 y
 * modulo 2^32, and a ninth of that 64 y, so y where |y| < 2^25. */
#ifndef QNI_CPU_SIMD_SQUARES_H
#define QNI_CPU_SIMD_SQUARES_H

#include "../../base/compiler.h"
#include "../../quant/cut.h"
#include "avx2.h"

QNI_TEMPLATE void qni_squares_of_x(const __m256i *x, __m256i *to)
{
    to[0] = _mm256_sub_epi16(x[0], x[2]);
    to[1] = _mm256_add_epi16(x[1], x[2]);
    to[2] = _mm256_sub_epi16(x[2], x[1]);
    to[3] = _mm256_sub_epi16(x[1], x[3]);
}

/* Three weights of a line to four, twice as large, the last one turned. */
QNI_TEMPLATE void qni_squares_of_w(const __m256i *w, __m256i *to)
{
    const __m256i ends = _mm256_add_epi16(w[0], w[2]);
    to[0] = _mm256_add_epi16(w[0], w[0]);
    to[1] = _mm256_add_epi16(ends, w[1]);
    to[2] = _mm256_sub_epi16(ends, w[1]);
    to[3] = _mm256_sub_epi16(_mm256_setzero_si256(), _mm256_add_epi16(w[2], w[2]));
}

/* Values of a pair of channels of a quad of packed codes, of outputs 8 v and on, as words. */
QNI_TEMPLATE __m256i qni_squares_pair(const uint8_t *packed, int64_t quad, int64_t v,
                                      const int pair, const bool is_nibble)
{
    const int64_t vector = is_nibble ? quad / 8 * 4 + quad % 4 : quad;
    const void *const at = packed + vector * 64 + v * 32;
    __m256i codes = _mm256_loadu_si256((const __m256i *)at);
    if (is_nibble) {
        if (quad % 8 >= 4)
            codes = _mm256_srli_epi16(codes, 4);
        codes = _mm256_and_si256(codes, _mm256_set1_epi8(15));
        codes = _mm256_sub_epi8(codes, _mm256_set1_epi8(8));
    } else {
        codes = _mm256_xor_si256(codes, _mm256_set1_epi8((char)0x80));
    }
    /* Bytes 0 and 1, or 2 and 3, of every dword to the upper halves of words. */
    const __m256i first = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13));
    const __m256i second = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15));
    return _mm256_srai_epi16(_mm256_shuffle_epi8(codes, pair == 0 ? first : second), 8);
}

/* Transforms six inputs of a line for squares of 4 x 4 outputs. */
QNI_TEMPLATE void qni_fours_of_line(const __m256i *x, __m256i *to)
{
    const __m256i far = _mm256_sub_epi16(x[4], _mm256_slli_epi16(x[2], 2));
    const __m256i odd = _mm256_sub_epi16(x[3], _mm256_slli_epi16(x[1], 2));
    const __m256i near = _mm256_sub_epi16(x[4], x[2]), step = _mm256_sub_epi16(x[3], x[1]);
    const __m256i twice = _mm256_add_epi16(step, step);
    const __m256i ends = _mm256_slli_epi16(_mm256_sub_epi16(x[0], x[2]), 2);
    to[0] = _mm256_add_epi16(ends, near);
    to[1] = _mm256_add_epi16(far, odd);
    to[2] = _mm256_sub_epi16(far, odd);
    to[3] = _mm256_add_epi16(near, twice);
    to[4] = _mm256_sub_epi16(near, twice);
    to[5] = _mm256_sub_epi16(_mm256_sub_epi16(x[5], x[3]), _mm256_slli_epi16(step, 2));
}
QNI_TEMPLATE void qni_fours_of_taps(const __m256i *w, __m256i *to)
{
    const __m256i ends = _mm256_add_epi16(w[0], w[2]), twice = _mm256_add_epi16(w[1], w[1]);
    const __m256i far = _mm256_add_epi16(w[0], _mm256_slli_epi16(w[2], 2));
    const __m256i less = _mm256_set1_epi16(-4);
    to[0] = _mm256_mullo_epi16(w[0], _mm256_set1_epi16(6));
    to[1] = _mm256_mullo_epi16(_mm256_add_epi16(ends, w[1]), less);
    to[2] = _mm256_mullo_epi16(_mm256_sub_epi16(ends, w[1]), less);
    to[3] = _mm256_add_epi16(far, twice);
    to[4] = _mm256_sub_epi16(far, twice);
    to[5] = _mm256_mullo_epi16(w[2], _mm256_set1_epi16(3));
}
/* Sums of a line to four of outputs, 24 times as large. */
QNI_TEMPLATE void qni_fours_of_products(const __m256i *m, __m256i *y)
{
    const __m256i one = _mm256_add_epi32(m[1], m[2]), turned = _mm256_sub_epi32(m[1], m[2]);
    const __m256i two = _mm256_add_epi32(m[3], m[4]), far = _mm256_sub_epi32(m[3], m[4]);
    y[0] = _mm256_add_epi32(_mm256_add_epi32(m[0], one), two);
    y[1] = _mm256_add_epi32(turned, _mm256_add_epi32(far, far));
    y[2] = _mm256_add_epi32(one, _mm256_slli_epi32(two, 2));
    y[3] = _mm256_add_epi32(turned, _mm256_slli_epi32(_mm256_add_epi32(far, m[5]), 3));
}

/* A pair of channels of a quad of each of 9 taps, which are so many quads apart: to all products
 * of squares of this side. */
QNI_TEMPLATE void qni_squares_weights(const uint8_t *packed, int64_t quads, int64_t quad, int64_t v,
                                      const int pair, const bool is_nibble, const int side,
                                      __m256i *to)
{
    __m256i w[6][3];
    QNI_UNROLL
    for (int c = 0; c < 3; c++) {
        __m256i column[3], of[6];
        QNI_UNROLL
        for (int r = 0; r < 3; r++)
            column[r] = qni_squares_pair(packed, (3 * r + c) * quads + quad, v, pair, is_nibble);
        if (side == 4)
            qni_fours_of_taps(column, of);
        else
            qni_squares_of_w(column, of);
        QNI_UNROLL
        for (int r = 0; r < side + 2; r++)
            w[r][c] = of[r];
    }
    QNI_UNROLL
    for (int r = 0; r < side + 2; r++)
        if (side == 4)
            qni_fours_of_taps(w[r], to + r * (side + 2));
        else
            qni_squares_of_w(w[r], to + r * (side + 2));
}

/* A pair of words meets two vectors of such pairs. In this order: compilers add products first, for
 * which there are no registers. */
QNI_TEMPLATE void qni_squares_add_pair(uintptr_t x, const __m256i w0, const __m256i w1,
                                       __m256i *sum)
{
    __m256i a, b;
    __asm__("vpbroadcastd %[x], %[a]\n\t"
            "vpmaddwd %[w0], %[a], %[b]\n\t"
            "vpmaddwd %[w1], %[a], %[a]\n\t"
            "vpaddd %[b], %[s0], %[s0]\n\t"
            "vpaddd %[a], %[s1], %[s1]"
            : [a] "=&x"(a), [b] "=&x"(b), [s0] "+x"(sum[0]), [s1] "+x"(sum[1])
            : [x] "m"(*(const int16_t(*)[2])x), [w0] "x"(w0), [w1] "x"(w1));
}

/* All pairs of words of mr squares, `step` bytes apart, times those of 16 outputs. An address for
 * three of them: groups.h says why. */
enum { QNI_SQUARES_MOST = 6 };
QNI_TEMPLATE void qni_squares_multiply(const int16_t *x, uintptr_t step, const int16_t *w,
                                       int64_t words, int32_t *to, const int mr)
{
    uintptr_t at[QNI_SQUARES_MOST / 3];
    __m256i sum[2 * QNI_SQUARES_MOST];
    QNI_UNROLL
    for (int r = 0; r < mr; r++)
        sum[2 * r] = sum[2 * r + 1] = _mm256_setzero_si256();
    at[0] = (uintptr_t)x;
    at[1] = at[0] + 3 * step;
    for (; words > 0; words -= 4, w += 4 * QNI_PANEL) {
        QNI_UNROLL
        for (int i = 0; i < 2; i++) {
            const __m256i *const from = (const __m256i *)(const void *)(w + 32 * i);
            const __m256i w0 = _mm256_loadu_si256(from), w1 = _mm256_loadu_si256(from + 1);
            QNI_UNROLL
            for (int r = 0; r < mr; r++)
                qni_squares_add_pair(at[r / 3] + (uintptr_t)(r % 3) * step + (uintptr_t)i * 4, w0,
                                     w1, sum + 2 * r);
        }
        at[0] += 8;
        at[1] += 8;
        QNI_KEEP_WORD(at[0]);
        QNI_KEEP_WORD(at[1]);
    }
    QNI_UNROLL
    for (int i = 0; i < 2 * mr; i++)
        _mm256_storeu_si256((__m256i *)(void *)(to + 8 * i), sum[i]);
}

#endif
