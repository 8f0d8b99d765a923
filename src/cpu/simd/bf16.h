/* SPDX-License-Identifier: Apache-2.0 */
/* Codes as bf16, for the kernels that multiply it on vectors and on tiles. */
#ifndef QNI_CPU_SIMD_BF16_H
#define QNI_CPU_SIMD_BF16_H

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

/* bf16 of the integers that nibbles stand for, of a codebook or (NULL) -8 to 7; twice, since vpermw
 * looks at five bits of a word and codes leave the fifth as it is. */
static inline __m512i qni_bf16_of_nibbles(const int8_t *table8)
{
    const __m512 values =
        table8 == NULL
            ? _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)
            : _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)table8)));
    const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(values), 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
}

#endif
