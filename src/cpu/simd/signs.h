/* SPDX-License-Identifier: Apache-2.0 */
/* Sums of int8 products with AVX2 where x spans all bytes, exact without lists (pairs.h): x meets
 * |w|, and takes its sign.
 *
 *     x w = |w| (x ^ m) + (w < 0 ? |w| : 0)         m = w < 0 ? -1 : 0, so x ^ m is x or -x - 1
 *
 * x ^ m is a signed byte whatever x is, and |w| at most 128, so that two products are -32768 to
 * 32512: no lane saturates. What is added is constant for an output. Four instructions for 32
 * products, of which two need no multiplier: as many cycles as the three of pairs.h, where nothing
 * else runs on the core, and nothing to make of x.
 *
 *     x   bytes plus 128
 *     w   quads of pairs.h: 64 bytes of m ^ 128, 64 of |w| */
#ifndef QNI_CPU_SIMD_SIGNS_H
#define QNI_CPU_SIMD_SIGNS_H

#include "pairs.h"

enum { QNI_SIGNS_ROWS = 5, QNI_SIGNS_QUAD = 2 * QNI_PAIRS_QUAD };

/* Weights of 16 outputs. */
struct qni_signs_w {
    _Alignas(64) int8_t quads[2 * QNI_PAIRS_DEPTH * QNI_PAIRS_OUTPUTS];
    int32_t below[QNI_PAIRS_OUTPUTS]; /* sums of |w| where w is negative */
};
_Static_assert(QNI_PAIRS_DEPTH / 2 * 128 <= 32767, "their lanes of int16, of two in four");

/* Of chunks of 8 positions, from codes, which are changed by flip. What lies so far ahead is asked
 * for. */
static void qni_signs_of(struct qni_signs_w *w, const int8_t *codes, uint8_t flip, int64_t chunks,
                         ptrdiff_t ahead)
{
    const __m256i none = _mm256_setzero_si256(), flips = _mm256_set1_epi8((char)flip);
    const __m256i middle = _mm256_set1_epi8(-128), less8 = _mm256_set1_epi8(-1);
    __m256i sum[2] = {none, none};
    int8_t *to = w->quads;
    for (int64_t n = 2 * chunks; n > 0; n--, codes += QNI_PAIRS_QUAD, to += QNI_SIGNS_QUAD) {
        _mm_prefetch((const char *)codes + ahead, _MM_HINT_T1);
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256i v = _mm256_xor_si256(qni_pairs_load(codes + 32 * h), flips);
            const __m256i size = _mm256_abs_epi8(v), is_below = _mm256_cmpgt_epi8(none, v);
            const __m256i below = _mm256_and_si256(size, is_below);
            sum[h] = _mm256_sub_epi16(sum[h], _mm256_maddubs_epi16(below, less8));
            qni_pairs_store(to + 32 * h, _mm256_xor_si256(is_below, middle));
            qni_pairs_store(to + QNI_PAIRS_QUAD + 32 * h, size);
        }
    }
    QNI_UNROLL
    for (int h = 0; h < 2; h++)
        qni_pairs_store(w->below + 8 * h, _mm256_madd_epi16(sum[h], _mm256_set1_epi16(1)));
}

/* *sum += x times 8 outputs of a quad, of which m comes from memory. */
QNI_TEMPLATE void qni_signs_add(const __m256i x, const int8_t *m, const __m256i size,
                                const __m256i ones, __m256i *sum)
{
    __m256i t;
    __asm__("vpxor %[m], %[x], %[t]\n\t"
            "vpmaddubsw %[t], %[size], %[t]\n\t"
            "vpmaddwd %[ones], %[t], %[t]\n\t"
            "vpaddd %[t], %[sum], %[sum]"
            : [t] "=&x"(t), [sum] "+x"(*sum)
            : [m] "m"(*(const int8_t(*)[32])m), [x] "x"(x), [size] "x"(size), [ones] "x"(ones));
}

/* sum[i] += all chunks of 8 positions of row i and 16 outputs. */
QNI_TEMPLATE void qni_signs_rows(const uint8_t *x, const int8_t *w, int64_t chunks, const int mr,
                                 __m256i (*sum)[2])
{
    const __m256i ones = _mm256_set1_epi16(1);
    for (; chunks > 0; chunks--, x += 8, w += 2 * QNI_SIGNS_QUAD) {
        QNI_UNROLL
        for (int q = 0; q < 2; q++) {
            const int8_t *const m = w + q * QNI_SIGNS_QUAD;
            const __m256i size[2] = {qni_pairs_load(m + QNI_PAIRS_QUAD),
                                     qni_pairs_load(m + QNI_PAIRS_QUAD + 32)};
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m256i four = qni_pairs_four(x + i * QNI_PAIRS_DEPTH + 4 * q);
                qni_signs_add(four, m, size[0], ones, &sum[i][0]);
                qni_signs_add(four, m + 32, size[1], ones, &sum[i][1]);
            }
        }
    }
}

#endif
