/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of int8 products with AVX2, exact for all bytes. vpmaddubsw saturates on full bytes, so both
 * operands are widened to int16, where vpmaddwd multiplies and adds two: two products and two
 * additions for 32 bytes, and the two ports that multiply are all there is to do it (measured: 24.7
 * products a cycle of 32, since additions take their turns in them). So half of the products are
 * traded for additions, which have four ports (Winograd 1968):
 *
 *     x0 w0 + x2 w2 = (x0 + w2)(x2 + w0) - x0 x2 - w0 w2
 *
 * and the same for positions 1 and 3 of every four. The last two terms belong to a row and to an
 * output; they come off once for all that meet (measured: 29 to 30 products a cycle). |x + w| <=
 * 256, two products are at most 2^17, and whatever leaves int32 on the way comes back: all sums are
 * modulo 2^32, and the result is less than 2^31.
 *
 *     x   a row of int16, as the bytes lie
 *     w   of every four positions ("quad") and 8 outputs two vectors: values 2 and 3, which are
 *         added to x0 and x1, then values 0 and 1; outputs 0 .. 7, then 8 .. 15
 *
 * 4 rows x 16 outputs take 8 registers for sums, 4 for w, 4 for what is on its way. */
#ifndef QNI_CPU_SIMD_PAIRS_H
#define QNI_CPU_SIMD_PAIRS_H

#include "../../base/compiler.h"
#include "avx2.h"

/* Positions that are widened at a time; rows of x are as many int16 apart, so that their addresses
 * need one register. Rows of a tile; int16 of a quad of w. */
enum { QNI_PAIRS_DEPTH = 256, QNI_PAIRS_ROWS = 4, QNI_PAIRS_QUAD = 64 };

/* ---- x --------------------------------------------------------------------------------------- */

QNI_TEMPLATE void qni_pairs_16(const int8_t *from, const __m128i flip, int16_t *to)
{
    const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)from);
    _mm256_storeu_si256((__m256i *)(void *)to, _mm256_cvtepi8_epi16(_mm_xor_si128(v, flip)));
}
QNI_TEMPLATE void qni_pairs_8(const int8_t *from, const __m128i flip, int16_t *to)
{
    const __m128i v = _mm_loadl_epi64((const __m128i *)(const void *)from);
    _mm_storeu_si128((__m128i *)(void *)to, _mm_cvtepi8_epi16(_mm_xor_si128(v, flip)));
}
QNI_TEMPLATE void qni_pairs_4(const int8_t *from, const __m128i flip, int16_t *to)
{
    int32_t four;
    memcpy(&four, from, sizeof four);
    _mm_storel_epi64((__m128i *)(void *)to,
                     _mm_cvtepi8_epi16(_mm_xor_si128(_mm_cvtsi32_si128(four), flip)));
}

/* n bytes, changed by flip. Touches nothing else: the last ones may be written twice. */
QNI_TEMPLATE void qni_pairs_of_x(const int8_t *from, int64_t n, const __m128i flip, int16_t *to)
{
    if (n >= 16) {
        for (; n > 16; n -= 16, from += 16, to += 16)
            qni_pairs_16(from, flip, to);
        qni_pairs_16(from + n - 16, flip, to + n - 16);
    } else if (n >= 8) {
        qni_pairs_8(from, flip, to);
        qni_pairs_8(from + n - 8, flip, to + n - 8);
    } else if (n >= 4) {
        qni_pairs_4(from, flip, to);
        qni_pairs_4(from + n - 4, flip, to + n - 4);
    } else {
        for (int64_t i = 0; i < n; i++)
            to[i] = (int8_t)(from[i] ^ (int8_t)_mm_cvtsi128_si32(flip));
    }
}

/* What comes off for a row of n widened positions: zeros follow them up to a multiple of 32. */
QNI_TEMPLATE int32_t qni_pairs_less_x(const int16_t *x, int64_t n)
{
    __m256i sum = _mm256_setzero_si256();
    for (int64_t i = 0; i < n; i += 32) {
        const __m256 a = _mm256_loadu_ps((const float *)(const void *)(x + i));
        const __m256 b = _mm256_loadu_ps((const float *)(const void *)(x + i + 16));
        sum = _mm256_add_epi32(
            sum, _mm256_madd_epi16(_mm256_castps_si256(_mm256_shuffle_ps(a, b, 0x88)),
                                   _mm256_castps_si256(_mm256_shuffle_ps(a, b, 0xdd))));
    }
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(sum), _mm256_extracti128_si256(sum, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4e));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0xb1));
    return _mm_cvtsi128_si32(s);
}

/* ---- w --------------------------------------------------------------------------------------- */

/* A quad of 8 outputs: dword j has the values of output j. Adds to what comes off for them. */
QNI_TEMPLATE __m256i qni_pairs_quad(const __m256i v, __m256i less, int16_t *to)
{
    const __m256i low = _mm256_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13,
                                         -1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13);
    const __m256i high =
        _mm256_setr_epi8(-1, 2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1, 2, -1, 3,
                         -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15);
    const __m256i w01 = _mm256_srai_epi16(_mm256_shuffle_epi8(v, low), 8);
    const __m256i w23 = _mm256_srai_epi16(_mm256_shuffle_epi8(v, high), 8);
    _mm256_storeu_si256((__m256i *)(void *)to, w23);
    _mm256_storeu_si256((__m256i *)(void *)(to + 16), w01);
    return _mm256_add_epi32(less, _mm256_madd_epi16(w01, w23));
}

/* Quads of 16 outputs, 64 bytes each, changed by flip: 0x80 makes codes of value + 128 values. What
 * comes off for each output: less, 16 of them. */
QNI_TEMPLATE void qni_pairs_of_bytes(const uint8_t *from, int64_t quads, const __m256i flip,
                                     int16_t *to, int32_t *less)
{
    __m256i less0 = _mm256_setzero_si256(), less1 = less0;
    for (; quads > 0; quads--, from += 64, to += QNI_PAIRS_QUAD) {
        const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)from);
        const __m256i b = _mm256_loadu_si256((const __m256i *)(const void *)(from + 32));
        less0 = qni_pairs_quad(_mm256_xor_si256(a, flip), less0, to);
        less1 = qni_pairs_quad(_mm256_xor_si256(b, flip), less1, to + 32);
    }
    _mm256_storeu_si256((__m256i *)(void *)less, less0);
    _mm256_storeu_si256((__m256i *)(void *)(less + 8), less1);
}

/* The same of nibbles of value + 8, units of 32 positions in 256 bytes: those of quads 0 to 3 are
 * the low ones. Quads that no x meets have to be values of 0. */
QNI_TEMPLATE void qni_pairs_of_nibbles(const uint8_t *from, int64_t units, int16_t *to,
                                       int32_t *less)
{
    const __m256i nibble = _mm256_set1_epi8(0x0f), eight = _mm256_set1_epi8(8);
    __m256i less0 = _mm256_setzero_si256(), less1 = less0;
    for (; units > 0; units--, from += 256, to += 8 * QNI_PAIRS_QUAD)
        for (int q = 0; q < 4; q++) {
            int16_t *const at = to + q * QNI_PAIRS_QUAD, *const behind = at + 4 * QNI_PAIRS_QUAD;
            const __m256i a = _mm256_loadu_si256((const __m256i *)(const void *)(from + 64 * q));
            const __m256i b =
                _mm256_loadu_si256((const __m256i *)(const void *)(from + 64 * q + 32));
            less0 = qni_pairs_quad(_mm256_sub_epi8(_mm256_and_si256(a, nibble), eight), less0, at);
            less1 =
                qni_pairs_quad(_mm256_sub_epi8(_mm256_and_si256(b, nibble), eight), less1, at + 32);
            const __m256i c = _mm256_and_si256(_mm256_srli_epi16(a, 4), nibble);
            const __m256i d = _mm256_and_si256(_mm256_srli_epi16(b, 4), nibble);
            less0 = qni_pairs_quad(_mm256_sub_epi8(c, eight), less0, behind);
            less1 = qni_pairs_quad(_mm256_sub_epi8(d, eight), less1, behind + 32);
        }
    _mm256_storeu_si256((__m256i *)(void *)less, less0);
    _mm256_storeu_si256((__m256i *)(void *)(less + 8), less1);
}

/* ---- sums ------------------------------------------------------------------------------------ */

QNI_TEMPLATE __m256i qni_pairs_load(const int16_t *w)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)w);
}

/* A quad of one row and 16 outputs. In this order, since ports are given to instructions before
 * their operands are there: in the orders that compilers choose the same instructions take 1.1 to
 * 1.5 of the time (measured). */
QNI_TEMPLATE void qni_pairs_quad_of_row(const int16_t *x, const __m256i *w, __m256i *sum)
{
    __m256i a, b, c, d;
    __asm__("vpbroadcastd %[x01], %[a]\n\t"
            "vpbroadcastd %[x23], %[b]\n\t"
            "vpaddw %[a], %[w0], %[c]\n\t"
            "vpaddw %[b], %[w1], %[d]\n\t"
            "vpaddw %[a], %[w2], %[a]\n\t"
            "vpaddw %[b], %[w3], %[b]\n\t"
            "vpmaddwd %[c], %[d], %[c]\n\t"
            "vpaddd %[c], %[s0], %[s0]\n\t"
            "vpmaddwd %[a], %[b], %[a]\n\t"
            "vpaddd %[a], %[s1], %[s1]"
            : [a] "=&x"(a), [b] "=&x"(b), [c] "=&x"(c), [d] "=&x"(d), [s0] "+x"(sum[0]),
              [s1] "+x"(sum[1])
            : [x01] "m"(*(const int16_t(*)[2])(const void *)x),
              [x23] "m"(*(const int16_t(*)[2])(const void *)(x + 2)), [w0] "x"(w[0]),
              [w1] "x"(w[1]), [w2] "x"(w[2]), [w3] "x"(w[3]));
}

/* sum[i] += all quads of row i and 16 outputs, with what has to come off. */
QNI_TEMPLATE void qni_pairs_add(const int16_t *x, const int16_t *w, int64_t quads, const int mr,
                                __m256i (*sum)[2])
{
    for (; quads > 0; quads--, x += 4, w += QNI_PAIRS_QUAD) {
        const __m256i v[4] = {qni_pairs_load(w), qni_pairs_load(w + 16), qni_pairs_load(w + 32),
                              qni_pairs_load(w + 48)};
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            qni_pairs_quad_of_row(x + i * QNI_PAIRS_DEPTH, v, sum[i]);
    }
}

#endif
