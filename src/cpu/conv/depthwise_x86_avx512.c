/* SPDX-License-Identifier: Apache-2.0 */
/* The depthwise kernels on vectors of 512 bits: simd/depthwise.h has the arithmetic, kernel.h
 * the contract. 8 accumulators cover the 4 cycles of 2 multiply-adds each. */
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
/* Of two equal operands, or of NaNs, the second one: as the comparison says. */
#define SMALLER(a, b)    ((vec)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define LARGER(a, b)     ((vec)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define LARGER_INT(a, b) ((ivec)_mm512_max_epi32((__m512i)(a), (__m512i)(b)))

#include "../simd/depthwise.h"

void qni_depthwise_f32_rows_mr8_avx512(const struct qni_depthwise_tile *tile)
{
    float_tile(tile);
}
bool qni_depthwise_f32_rows_image_avx512(const struct qni_depthwise_image *image)
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
