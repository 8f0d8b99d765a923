/* SPDX-License-Identifier: Apache-2.0 */
/* Long taps along a line, four neighbouring outputs at a time (Toom's and Cook's products): 7
 * products for 16, of words, all integers.
 *
 * Output j is the sum of z[i + j] g[i], i = 0 to 3. z[i] are bytes that begin where output i does
 * (of 7 taps of stride 2 two pixels), so that a tap that is no longer than four of them is one
 * such sum for each byte of z. With points a = 0, 1, -1, 2, -2, 1/2 and infinity
 *
 *     y[j] = sum of a^j g(a) x(a) / n(a)           g(a) = g0 + g1 a + g2 a^2 + g3 a^3
 *
 * where x(a), of points but the last, is sum of c[i] z[i] with the c of the product of all other
 * points' (t - a), at most 30 * 128, and n(a) the value of that product in a. 360 holds all n, and
 * g(a) times what is left of it is a word, 60 * 512 at most. So sums are 360 y modulo 2^32, which
 * is 360 y of up to QNI_FOURS_MOST positions. */
#ifndef QNI_CPU_SIMD_FOURS_H
#define QNI_CPU_SIMD_FOURS_H

#include "../../base/compiler.h"
#include "avx2.h"

enum { QNI_FOURS_POINTS = 7, QNI_FOURS_MOST = (1u << 31) / 360 / 128 / 128 };

QNI_TEMPLATE __m256i qni_fours_twice(const __m256i v)
{
    return _mm256_add_epi16(v, v);
}

/* z of 7 to x of each point. Products of (t - 1)(t + 1) and t^k are r, of that and (t - 2)(t + 2)
 * q. */
QNI_TEMPLATE void qni_fours_of_x(const __m256i *z, __m256i *to)
{
    __m256i r[5], r4[3], q[3], p[4];
    QNI_UNROLL
    for (int k = 0; k < 5; k++)
        r[k] = _mm256_sub_epi16(z[k + 2], z[k]);
    QNI_UNROLL
    for (int k = 0; k < 3; k++) {
        r4[k] = _mm256_slli_epi16(r[k], 2);
        q[k] = _mm256_sub_epi16(r[k + 2], r4[k]);
        p[k + 1] = _mm256_sub_epi16(z[k + 3], _mm256_slli_epi16(z[k + 1], 2));
    }
    const __m256i ends = _mm256_sub_epi16(qni_fours_twice(p[3]), p[2]);
    const __m256i less = _mm256_sub_epi16(qni_fours_twice(p[2]), p[1]);
    const __m256i apart = qni_fours_twice(_mm256_sub_epi16(r[3], r[1]));
    const __m256i both = qni_fours_twice(_mm256_add_epi16(r[3], r[1]));
    to[0] = _mm256_sub_epi16(qni_fours_twice(q[1]), q[0]);
    to[1] = _mm256_add_epi16(ends, less);
    to[2] = _mm256_sub_epi16(ends, less);
    to[3] = _mm256_add_epi16(apart, _mm256_add_epi16(r[2], qni_fours_twice(r[2])));
    to[4] = _mm256_sub_epi16(both, _mm256_add_epi16(r[2], r4[2]));
    to[5] = q[1];
    to[6] = _mm256_sub_epi16(qni_fours_twice(q[2]), q[1]);
}

/* g of 4 to g of each point, times 360 / n (of 1/2 an eighth of that, of infinity half). */
QNI_TEMPLATE void qni_fours_of_w(const __m256i *g, __m256i *to)
{
    const __m256i even = _mm256_add_epi16(g[0], g[2]), odd = _mm256_add_epi16(g[1], g[3]);
    const __m256i two = _mm256_add_epi16(g[0], _mm256_slli_epi16(g[2], 2));
    const __m256i far = qni_fours_twice(_mm256_add_epi16(g[1], _mm256_slli_epi16(g[3], 2)));
    const __m256i half = _mm256_add_epi16(qni_fours_twice(g[0]), g[1]);
    const __m256i rest = _mm256_add_epi16(qni_fours_twice(g[2]), g[3]);
    to[0] = _mm256_mullo_epi16(g[0], _mm256_set1_epi16(-90));
    to[1] = _mm256_mullo_epi16(_mm256_add_epi16(even, odd), _mm256_set1_epi16(-60));
    to[2] = _mm256_mullo_epi16(_mm256_sub_epi16(even, odd), _mm256_set1_epi16(20));
    to[3] = _mm256_mullo_epi16(_mm256_add_epi16(two, far), _mm256_set1_epi16(5));
    to[4] = _mm256_mullo_epi16(_mm256_sub_epi16(two, far), _mm256_set1_epi16(-3));
    to[5] = _mm256_slli_epi16(_mm256_add_epi16(_mm256_slli_epi16(half, 2), rest), 2);
    to[6] = _mm256_mullo_epi16(g[3], _mm256_set1_epi16(180));
}

/* 8 sums of each point to those of four outputs. */
QNI_TEMPLATE void qni_fours_of_sums(const __m256i *m, __m256i *y)
{
    enum { OF_45 = -1527099483 }; /* 45 times it is 1 modulo 2^32 */
    const __m256i one = _mm256_add_epi32(m[1], m[2]), turned = _mm256_sub_epi32(m[1], m[2]);
    const __m256i two = _mm256_add_epi32(m[3], m[4]), far = _mm256_sub_epi32(m[3], m[4]);
    const __m256i h = m[5];
    y[0] = _mm256_add_epi32(_mm256_add_epi32(m[0], one),
                            _mm256_add_epi32(two, _mm256_slli_epi32(h, 3)));
    y[1] = _mm256_add_epi32(turned,
                            _mm256_add_epi32(_mm256_slli_epi32(far, 1), _mm256_slli_epi32(h, 2)));
    y[2] =
        _mm256_add_epi32(one, _mm256_add_epi32(_mm256_slli_epi32(two, 2), _mm256_slli_epi32(h, 1)));
    y[3] = _mm256_add_epi32(_mm256_add_epi32(turned, _mm256_slli_epi32(far, 3)),
                            _mm256_add_epi32(h, m[6]));
    QNI_UNROLL
    for (int j = 0; j < 4; j++)
        y[j] = _mm256_mullo_epi32(_mm256_srai_epi32(y[j], 3), _mm256_set1_epi32(OF_45));
}

#endif
