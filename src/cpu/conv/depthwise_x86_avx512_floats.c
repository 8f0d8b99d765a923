/* SPDX-License-Identifier: Apache-2.0 */
/* The depthwise kernels on vectors of 512 bits: simd/depthwise.h has the arithmetic,
 * depthwise_kernel.h the contract. 8 accumulators cover the 4 cycles of 2 multiply-adds each. */
#include <immintrin.h>

#include "kernel.h"

#ifndef __AVX512F__
#error "needs the flags of an AVX-512 file: see cmake/isa.cmake"
#endif

#define LANES         16
#define MR            8
#define MADD(a, b, c) FMA(a, b, c)
#define FMA(a, b, c)  ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define HAS_FMA       1
/* The instructions choose the second of two equal operands, or where one is a NaN, as a comparison
 * does. */
#define SMALLER(a, b)    ((vec)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define LARGER(a, b)     ((vec)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define LARGER_INT(a, b) ((ivec)_mm512_max_epi32((__m512i)(a), (__m512i)(b)))
#define TO_F16(at, a)                                                                              \
    _mm256_storeu_si256((__m256i *)(void *)(at),                                                   \
                        _mm512_cvtps_ph((__m512)(a), _MM_FROUND_TO_NEAREST_INT))
#define TO_BF16(at, a)             bf16(at, (__m512i)(a))
#define TO_BYTES(at, a, is_signed) bytes(at, (__m512i)(a), is_signed)

/* Words 1, 3, 5 ... are the upper halves. */
static inline void bf16(uint8_t *at, __m512i bits)
{
    const __m512i one = _mm512_set1_epi32(1),
                  order = _mm512_set_epi16(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 31, 29,
                                           27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1);
    const __mmask16 odd = _mm512_test_epi32_mask(bits, _mm512_set1_epi32(0x10000));
    __m512i near = _mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff));
    near = _mm512_mask_add_epi32(near, odd, near, one);
    _mm256_storeu_si256((__m256i *)(void *)at,
                        _mm512_castsi512_si256(_mm512_permutexvar_epi16(order, near)));
}

static inline void bytes(uint8_t *at, __m512i codes, bool is_signed)
{
    const __m512i above = _mm512_max_epi32(codes, _mm512_setzero_si512());
    _mm_storeu_si128((__m128i *)(void *)at,
                     is_signed ? _mm512_cvtsepi32_epi8(codes) : _mm512_cvtusepi32_epi8(above));
}

#include "../simd/depthwise.h"

void qni_depthwise_f32_rows_mr8_avx512(const struct qni_depthwise_tile *tile)
{
    float_tile(tile);
}
bool qni_depthwise_f32_rows_image_avx512(const struct qni_depthwise_image *image)
{
    return float_image(image);
}
bool qni_depthwise_q8_rows_image_avx512(const struct qni_depthwise_image *image)
{
    return float_image(image);
}
void qni_depthwise_q8_rows_mr8_avx512(const struct qni_depthwise_tile *tile)
{
    given_tile(tile);
}
void qni_depthwise_q8_rows_row_avx512(const struct qni_depthwise_tile *tile)
{
    row_tile(tile);
}
void qni_depthwise_q8b_rows_block_avx512(const struct qni_depthwise_tile *tile)
{
    block_tile(tile);
}
