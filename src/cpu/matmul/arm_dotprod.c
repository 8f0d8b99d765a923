/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights with sdot (Armv8.2 dot products). Contract: kernel.h.
 *
 * A vector of codes is 4 outputs x 4 positions, which is what sdot takes; the activations of 16
 * positions are loaded once and the instruction picks four of them by lane. int32 lanes: 128 * 128
 * * 32768 < 2^31.
 *
 * Bound: bytes of the codes / bandwidth for small m, then 2 m n k / (32 operations x 2 a cycle). */
#include "../../base/compiler.h"
#include "../simd/neon.h"
#include "kernel.h"

#define QNI_NEON_NAME(kind) qni_matmul_##kind##_mr4_dotprod
#define QNI_NEON_MR         4
#include "../simd/neon_q8.h"

QNI_TEMPLATE void dot_units(const uint8_t *codes, const int8_t *const *rows, int64_t units,
                            const int mr, const int kind, int8x16_t table, struct qni_i32x16 *dot)
{
    for (int i = 0; i < mr; i++)
        for (int q = 0; q < 4; q++)
            dot[i].v[q] = vdupq_n_s32(0);
    const int vectors = kind == BYTES ? 8 : 4;
    for (int64_t u = 0; u < units; u++, codes += vectors * 64) {
        int8x16_t low[4], high[4];
        for (int i = 0; i < mr; i++) {
            low[i] = vld1q_s8(rows[i] + u * QNI_UNIT);
            high[i] = vld1q_s8(rows[i] + u * QNI_UNIT + 16);
        }
        QNI_UNROLL
        for (int r = 0; r < 4; r++)
            QNI_UNROLL
        for (int q = 0; q < 4; q++) {
            const uint8x16_t v = vld1q_u8(codes + r * 64 + q * 16);
            const uint8x16_t first = kind == BYTES ? v : vandq_u8(v, vdupq_n_u8(15));
            const uint8x16_t second =
                kind == BYTES ? vld1q_u8(codes + (r + 4) * 64 + q * 16) : vshrq_n_u8(v, 4);
            const int8x16_t w0 = value_of(first, kind, table), w1 = value_of(second, kind, table);
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                dot[i].v[q] = qni_dot_lane(dot[i].v[q], w0, low[i], r);
                dot[i].v[q] = qni_dot_lane(dot[i].v[q], w1, high[i], r);
            }
        }
    }
}
