/* SPDX-License-Identifier: Apache-2.0 */
/* The depthwise kernels on vectors of 128 bits: simd/depthwise.h has the arithmetic,
 * depthwise_kernel.h the contract. 8 accumulators cover the 4 cycles of 2 multiply-adds each. */
#include <arm_neon.h>
#include <string.h>

#include "../../base/compiler.h"
#include "kernel.h"

#define LANES         4
#define MR            8
#define MADD(a, b, c) FMA(a, b, c)
#define FMA(a, b, c)  ((vec)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#define HAS_FMA       1
/* Comparisons that choose the second of two equal operands, or where one is a NaN, which neither
 * fmin nor fminnm does. */
#define SMALLER(a, b)              ((vec)smaller((float32x4_t)(a), (float32x4_t)(b)))
#define LARGER(a, b)               ((vec)larger((float32x4_t)(a), (float32x4_t)(b)))
#define LARGER_INT(a, b)           ((ivec)vmaxq_s32((int32x4_t)(a), (int32x4_t)(b)))
#define TO_F16(at, a)              vst1_u16((uint16_t *)(void *)(at), halves((float32x4_t)(a)))
#define TO_BF16(at, a)             vst1_u16((uint16_t *)(void *)(at), bf16((uint32x4_t)(a)))
#define TO_BYTES(at, a, is_signed) bytes(at, (int32x4_t)(a), is_signed)

static inline float32x4_t smaller(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

static inline float32x4_t larger(float32x4_t a, float32x4_t b)
{
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

static inline uint16x4_t halves(float32x4_t v)
{
    return vreinterpret_u16_f16(vcvt_f16_f32(v));
}

static inline uint16x4_t bf16(uint32x4_t bits)
{
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits, 16), vdupq_n_u32(1));
    return vaddhn_u32(vaddq_u32(bits, odd), vdupq_n_u32(0x7fff));
}

static inline void bytes(uint8_t *at, int32x4_t codes, bool is_signed)
{
    const int16x4_t words = vqmovn_s32(codes);
    const int16x8_t twice = vcombine_s16(words, words);
    const uint8x8_t both = is_signed ? vreinterpret_u8_s8(vqmovn_s16(twice)) : vqmovun_s16(twice);
    memcpy(at, &both, 4);
}

#include "../simd/depthwise.h"

void qni_depthwise_f32_rows_mr8_neon(const struct qni_depthwise_tile *tile)
{
    float_tile(tile);
}
bool qni_depthwise_f32_rows_image_neon(const struct qni_depthwise_image *image)
{
    return float_image(image);
}
bool qni_depthwise_q8_rows_image_neon(const struct qni_depthwise_image *image)
{
    return float_image(image);
}
void qni_depthwise_q8_rows_mr8_neon(const struct qni_depthwise_tile *tile)
{
    given_tile(tile);
}
void qni_depthwise_q8_rows_row_neon(const struct qni_depthwise_tile *tile)
{
    row_tile(tile);
}
void qni_depthwise_q8b_rows_block_neon(const struct qni_depthwise_tile *tile)
{
    block_tile(tile);
}
