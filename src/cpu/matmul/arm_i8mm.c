/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights with smmla (Armv8.6 matrix products). Contract: kernel.h.
 *
 * smmla multiplies 2 x 8 by 8 x 2. Two vectors of codes (4 outputs x positions 4 r .. and the next
 * four) zipped by 32 bits give two vectors of 2 outputs x 8 positions; two rows of activations
 * share a vector. The 2 x 2 results are put back in rows at the end of a segment. A single row is
 * doubled. int32 lanes: 128 * 128 * 32768 < 2^31.
 *
 * Bound: 2 m n k / (64 operations x 2 a cycle) for m >= 2. */
#include "../../base/compiler.h"
#include "../simd/neon.h"
#include "kernel.h"

#define QNI_NEON_NAME(kind) qni_matmul_##kind##_mr4_i8mm
#define QNI_NEON_MR         4
#include "../simd/neon_q8.h"

/* Rows 2 i and 2 i + 1, eight positions from p. */
QNI_TEMPLATE int8x16_t two_rows(const int8_t *const *rows, const int i, const int mr, int64_t p)
{
    const int8x8_t first = vld1_s8(rows[2 * i] + p);
    return vcombine_s8(first, 2 * i + 1 < mr ? vld1_s8(rows[2 * i + 1] + p) : first);
}

/* Eight positions of four outputs, as vectors of two outputs each, times all pairs of rows. */
QNI_TEMPLATE void add_eight(int8x16_t w0, int8x16_t w1, const int8x16_t *x, const int pairs,
                            const int q, int32x4_t (*sum)[8])
{
    const int32x4_t a = vreinterpretq_s32_s8(w0), b = vreinterpretq_s32_s8(w1);
    const int8x16_t low = vreinterpretq_s8_s32(vzip1q_s32(a, b)),
                    high = vreinterpretq_s8_s32(vzip2q_s32(a, b));
    QNI_UNROLL
    for (int i = 0; i < pairs; i++) {
        sum[i][2 * q] = vmmlaq_s32(sum[i][2 * q], x[i], low);
        sum[i][2 * q + 1] = vmmlaq_s32(sum[i][2 * q + 1], x[i], high);
    }
}

QNI_TEMPLATE void dot_units(const uint8_t *codes, const int8_t *const *rows, int64_t units,
                            const int mr, const int kind, int8x16_t table, struct qni_i32x16 *dot)
{
    const int pairs = (mr + 1) / 2, vectors = kind == BYTES ? 8 : 4;
    int32x4_t sum[2][8];
    for (int i = 0; i < pairs; i++)
        for (int j = 0; j < 8; j++)
            sum[i][j] = vdupq_n_s32(0);
    for (int64_t u = 0; u < units; u++, codes += vectors * 64) {
        QNI_UNROLL
        for (int r = 0; r < 4; r += 2) {
            int8x16_t low[2], high[2];
            for (int i = 0; i < pairs; i++) {
                low[i] = two_rows(rows, i, mr, u * QNI_UNIT + 4 * r);
                high[i] = two_rows(rows, i, mr, u * QNI_UNIT + 16 + 4 * r);
            }
            QNI_UNROLL
            for (int q = 0; q < 4; q++) {
                const uint8_t *const at = codes + r * 64 + q * 16;
                const uint8x16_t v0 = vld1q_u8(at), v1 = vld1q_u8(at + 64), mask = vdupq_n_u8(15);
                if (kind == BYTES) {
                    add_eight(value_of(v0, kind, table), value_of(v1, kind, table), low, pairs, q,
                              sum);
                    add_eight(value_of(vld1q_u8(at + 256), kind, table),
                              value_of(vld1q_u8(at + 320), kind, table), high, pairs, q, sum);
                } else {
                    add_eight(value_of(vandq_u8(v0, mask), kind, table),
                              value_of(vandq_u8(v1, mask), kind, table), low, pairs, q, sum);
                    add_eight(value_of(vshrq_n_u8(v0, 4), kind, table),
                              value_of(vshrq_n_u8(v1, 4), kind, table), high, pairs, q, sum);
                }
            }
        }
    }
    /* sum[i][j] = row 2 i x outputs 2 j, 2 j + 1, then row 2 i + 1 x the same */
    for (int i = 0; i < mr; i++)
        for (int q = 0; q < 4; q++) {
            const int64x2_t a = vreinterpretq_s64_s32(sum[i / 2][2 * q]);
            const int64x2_t b = vreinterpretq_s64_s32(sum[i / 2][2 * q + 1]);
            dot[i].v[q] = vreinterpretq_s32_s64(i % 2 == 0 ? vzip1q_s64(a, b) : vzip2q_s64(a, b));
        }
}
