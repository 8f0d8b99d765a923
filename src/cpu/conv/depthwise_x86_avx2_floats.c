/* SPDX-License-Identifier: Apache-2.0 */
/* The depthwise kernels on vectors of 256 bits: simd/depthwise.h has the arithmetic,
 * depthwise_kernel.h the contract. 8 accumulators cover the 4 cycles of 2 multiply-adds each. */
#include <immintrin.h>

#include "kernel.h"

#ifndef __AVX2__
#error "needs the flags of an AVX2 file: see cmake/isa.cmake"
#endif

#define LANES         8
#define MR            4
#define MADD(a, b, c) FMA(a, b, c)
#define FMA(a, b, c)  ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define HAS_FMA       1
/* The instructions choose the second of two equal operands, or where one is a NaN, as a comparison
 * does. */
#define SMALLER(a, b)    ((vec)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define LARGER(a, b)     ((vec)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define LARGER_INT(a, b) ((ivec)_mm256_max_epi32((__m256i)(a), (__m256i)(b)))
#define TO_F16(at, a)                                                                              \
    _mm_storeu_si128((__m128i *)(void *)(at),                                                      \
                     _mm256_cvtps_ph((__m256)(a), _MM_FROUND_TO_NEAREST_INT))
#define TO_BF16(at, a)             bf16(at, (__m256i)(a))
#define TO_BYTES(at, a, is_signed) bytes(at, (__m256i)(a), is_signed)

static inline void bf16(uint8_t *at, __m256i bits)
{
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i near = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i upper = _mm256_srli_epi32(near, 16);
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packus_epi32(upper, upper), 0x08);
    _mm_storeu_si128((__m128i *)(void *)at, _mm256_castsi256_si128(packed));
}

static inline void bytes(uint8_t *at, __m256i codes, bool is_signed)
{
    const __m128i words =
        _mm_packs_epi32(_mm256_castsi256_si128(codes), _mm256_extracti128_si256(codes, 1));
    _mm_storel_epi64((__m128i *)(void *)at,
                     is_signed ? _mm_packs_epi16(words, words) : _mm_packus_epi16(words, words));
}

#include "../simd/depthwise.h"

void qni_depthwise_f32_rows_mr4_avx2(const struct qni_depthwise_tile *tile)
{
    float_tile(tile);
}
bool qni_depthwise_f32_rows_image_avx2(const struct qni_depthwise_image *image)
{
    return float_image(image);
}
bool qni_depthwise_q8_rows_image_avx2(const struct qni_depthwise_image *image)
{
    return float_image(image);
}
void qni_depthwise_q8_rows_mr4_avx2(const struct qni_depthwise_tile *tile)
{
    given_tile(tile);
}
void qni_depthwise_q8_rows_row_avx2(const struct qni_depthwise_tile *tile)
{
    row_tile(tile);
}
void qni_depthwise_q8b_rows_block_avx2(const struct qni_depthwise_tile *tile)
{
    block_tile(tile);
}
