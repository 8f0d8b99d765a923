/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of grouped convolutions on NEON: simd/groups.h has the arithmetic, groups_kernel.h
 * the contract. 12 sums, or 16 of two vectors, hide the 4 cycles of 2 to 4 multiply-adds each and
 * leave registers for weights and inputs. */
#include <arm_neon.h>
#include <string.h>

#include "../../base/half.h"
#include "kernel.h"

#define LANES                  4
#define TILE                   12
#define PAIR                   8
#define APART                  0
#define MADD(a, b, c)          FMA(a, b, c)
#define FMA(a, b, c)           ((vec)fused((float32x4_t)(a), (float32x4_t)(b), (float32x4_t)(c)))
#define HAS_FMA                1
#define SMALLER(a, b)          choose((a) < (b), a, b)
#define LARGER(a, b)           choose((a) > (b), a, b)
#define LARGER_INT(a, b)       ((ivec)vmaxq_s32((int32x4_t)(a), (int32x4_t)(b)))
#define SHUFFLE(v, which)      ((vec)shuffle((float32x4_t)(v), (int32x4_t)(which)))
#define REPEAT(at, n)          ((vec)repeat(at, n))
#define WIDEN_F16(src, n, dst) halves(src, n, dst)

static inline float32x4_t fused(float32x4_t a, float32x4_t b, float32x4_t c)
{
    return vfmaq_f32(c, a, b);
}

static inline __attribute__((always_inline)) float32x4_t repeat(const float *at, const int n)
{
    if (n == 4)
        return vld1q_f32(at);
    if (n == 2)
        return vcombine_f32(vld1_f32(at), vld1_f32(at));
    return vdupq_n_f32(*at);
}

static inline float32x4_t shuffle(float32x4_t v, int32x4_t which)
{
    const int32x4_t bytes = vmlaq_n_s32(vdupq_n_s32(0x03020100), which, 0x04040404);
    return vreinterpretq_f32_u8(vqtbl1q_u8(vreinterpretq_u8_f32(v), vreinterpretq_u8_s32(bytes)));
}

static inline void halves(const uint16_t *src, int64_t n, float *dst)
{
    int64_t i = 0;
    for (; i + 4 <= n; i += 4)
        vst1q_f32(dst + i, vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(src + i))));
    for (; i < n; i++)
        dst[i] = qni_f32_from_f16(src[i]);
}

enum { VECTOR = LANES };

#include "../simd/groups.h"

bool qni_groups_f32_rows_mr8_neon(const struct qni_groups_tile *tile)
{
    return plain_groups(tile);
}
bool qni_groups_q8_rows_mr8_neon(const struct qni_groups_tile *tile)
{
    return plain_groups(tile);
}
bool qni_groups_q8_rows_row_neon(const struct qni_groups_tile *tile)
{
    return row_groups(tile);
}
bool qni_groups_q8b_rows_block_neon(const struct qni_groups_tile *tile)
{
    return block_groups(tile);
}
const struct qni_groups_helpers qni_groups_helpers_neon = {pixels_of, panel_of, VECTOR, false};
