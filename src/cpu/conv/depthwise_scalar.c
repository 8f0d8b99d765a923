/* SPDX-License-Identifier: Apache-2.0 */
/* The portable depthwise kernels: simd/depthwise.h on vectors of four floats, which every
 * compiler turns into the vectors of the baseline (SSE2, NEON) or into four scalars. Multiply
 * and add are rounded apart; the bits of the int8 kernels do not depend on that. */
#include "kernel.h"

#include <string.h>

#include "../../base/exact.h"
#include "../../base/half.h"

#define LANES                      4
#define MR                         2
#define MADD(a, b, c)              ((a) * (b) + (c))
#define FMA(a, b, c)               fused(a, b, c)
#define HAS_FMA                    0
#define SMALLER(a, b)              choose((a) < (b), a, b)
#define LARGER(a, b)               choose((a) > (b), a, b)
#define LARGER_INT(a, b)           ((ivec)choose((a) > (b), (vec)(a), (vec)(b)))
#define TO_F16(at, a)              halves(at, a)
#define TO_BF16(at, a)             bf16(at, a)
#define TO_BYTES(at, a, is_signed) bytes(at, a, is_signed)

typedef float four QNI_VECTOR(16);
typedef int32_t four_codes QNI_VECTOR(16);

static inline four fused(four a, four b, four c)
{
    return (four){qni_fmaf(a[0], b[0], c[0]), qni_fmaf(a[1], b[1], c[1]),
                  qni_fmaf(a[2], b[2], c[2]), qni_fmaf(a[3], b[3], c[3])};
}

static inline void halves(uint8_t *at, four v)
{
    const uint16_t h[4] = {qni_f16_from_f32(v[0]), qni_f16_from_f32(v[1]), qni_f16_from_f32(v[2]),
                           qni_f16_from_f32(v[3])};
    memcpy(at, h, sizeof h);
}

static inline void bf16(uint8_t *at, four v)
{
    const uint16_t h[4] = {qni_bf16_from_f32(v[0]), qni_bf16_from_f32(v[1]),
                           qni_bf16_from_f32(v[2]), qni_bf16_from_f32(v[3])};
    memcpy(at, h, sizeof h);
}

static inline void bytes(uint8_t *at, four_codes codes, bool is_signed)
{
    const int32_t lo = is_signed ? -128 : 0, hi = lo + 255;
    for (int i = 0; i < 4; i++)
        at[i] = (uint8_t)(codes[i] < lo ? lo : codes[i] > hi ? hi : codes[i]);
}

#include "../simd/depthwise.h"

void qni_depthwise_f32_rows_mr2_scalar(const struct qni_depthwise_tile *tile)
{
    float_tile(tile);
}
bool qni_depthwise_f32_rows_image_scalar(const struct qni_depthwise_image *image)
{
    return float_image(image);
}
bool qni_depthwise_q8_rows_image_scalar(const struct qni_depthwise_image *image)
{
    return float_image(image);
}
void qni_depthwise_q8_rows_mr2_scalar(const struct qni_depthwise_tile *tile)
{
    given_tile(tile);
}
void qni_depthwise_q8_rows_row_scalar(const struct qni_depthwise_tile *tile)
{
    row_tile(tile);
}
void qni_depthwise_q8b_rows_block_scalar(const struct qni_depthwise_tile *tile)
{
    block_tile(tile);
}
