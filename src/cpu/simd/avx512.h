/* SPDX-License-Identifier: Apache-2.0 */
/* Small steps shared by the AVX-512 kernels. Only files compiled for AVX-512 include this. */
#ifndef QNI_CPU_SIMD_AVX512_H
#define QNI_CPU_SIMD_AVX512_H

#ifndef __AVX512BW__
#error "needs the flags of an AVX-512 file: see cmake/isa.cmake"
#endif

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The i-th row of 16 scales or offsets, stored as f16 or f32. */
static inline __m512 qni_load16(const void *rows, int64_t i, int32_t is_f16)
{
    if (is_f16)
        return _mm512_cvtph_ps(
            _mm256_loadu_si256((const __m256i *)((const uint16_t *)rows + 16 * i)));
    return _mm512_loadu_ps((const float *)rows + 16 * i);
}

/* The lower and the upper half of each byte. */
static inline void qni_nibbles16(__m512i bytes, __m512i *low, __m512i *high)
{
    const __m512i nibble = _mm512_set1_epi8(15);
    *low = _mm512_and_si512(bytes, nibble);
    *high = _mm512_and_si512(_mm512_srli_epi16(bytes, 4), nibble);
}

#endif
