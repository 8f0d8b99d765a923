/* SPDX-License-Identifier: Apache-2.0 */
/* Small steps shared by the NEON kernels: 16 outputs are four vectors of four. */
#ifndef QNI_CPU_SIMD_NEON_H
#define QNI_CPU_SIMD_NEON_H

#include <arm_neon.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "../../base/compiler.h"

struct qni_f32x16 {
    float32x4_t v[4];
};
struct qni_i32x16 {
    int32x4_t v[4];
};

/* The i-th row of 16 scales or offsets, stored as f16 or f32. */
static inline struct qni_f32x16 qni_load16(const void *rows, int64_t i, int32_t is_f16)
{
    struct qni_f32x16 r;
    for (int q = 0; q < 4; q++) {
        if (is_f16) {
            const uint16x4_t h = vld1_u16((const uint16_t *)rows + 16 * i + 4 * q);
            r.v[q] = vcvt_f32_f16(vreinterpret_f16_u16(h));
        } else {
            r.v[q] = vld1q_f32((const float *)rows + 16 * i + 4 * q);
        }
    }
    return r;
}

#ifdef __ARM_FEATURE_DOTPROD
/* Adds products of four bytes of w and of lane `lane` of x: it is part of the instruction. */
QNI_TEMPLATE int32x4_t qni_dot_lane(int32x4_t sum, int8x16_t w, int8x16_t x, const int lane)
{
    switch (lane) {
    case 0:
        return vdotq_laneq_s32(sum, w, x, 0);
    case 1:
        return vdotq_laneq_s32(sum, w, x, 1);
    case 2:
        return vdotq_laneq_s32(sum, w, x, 2);
    default:
        return vdotq_laneq_s32(sum, w, x, 3);
    }
}
#endif

#endif
