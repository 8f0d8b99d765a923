/* SPDX-License-Identifier: Apache-2.0 */
/* Small steps shared by the AVX2 kernels. Only files compiled for AVX2 include this. */
#ifndef QNI_CPU_SIMD_AVX2_H
#define QNI_CPU_SIMD_AVX2_H

#if !defined(__AVX2__) || !defined(__FMA__) || !defined(__F16C__)
#error "needs the flags of an AVX2 file: see cmake/isa.cmake"
#endif

#include <immintrin.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* Half h (8 outputs) of the i-th row of 16 scales or offsets, stored as f16 or f32. */
static inline __m256 qni_load8(const void *rows, int64_t i, int h, int32_t is_f16)
{
    if (is_f16)
        return _mm256_cvtph_ps(_mm_loadu_si128(
            (const __m128i *)(const void *)((const uint16_t *)rows + 16 * i + 8 * h)));
    return _mm256_loadu_ps((const float *)rows + 16 * i + 8 * h);
}

static inline float qni_sum8(__m256 v)
{
    __m128 s = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    s = _mm_add_ps(s, _mm_movehl_ps(s, s));
    return _mm_cvtss_f32(_mm_add_ss(s, _mm_movehdup_ps(s)));
}

#endif
