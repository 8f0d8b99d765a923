/* SPDX-License-Identifier: Apache-2.0 */
/* Armv8-A without dot products: int8 and f32 activations x 4- and 8-bit weights, and f32 x weights
 * that are floats. Contract: kernel.h.
 *
 * int8: smull gives 8 products of 16 bits (128 * 128 fits), sadalp adds neighbours into 32 bits: no
 * step can overflow. A vector of codes is 4 outputs x 4 positions, so that each output ends as two
 * halves that one addp joins at the end. f32: a lane of 4 bytes is one output; position b of it is
 * shifted down and masked, converted (or looked up: a load for each of the four outputs, which all
 * rows of a block share) and multiplied.
 *
 * Bound: 2 m n k / (16 products every smull + sadalp, two a cycle at best); f32: 2 m n k / (8
 * operations x 2 a cycle). */
#include "../../base/compiler.h"
#include "../simd/neon.h"
#include "kernel.h"

#define QNI_NEON_NAME(kind) qni_matmul_##kind##_mr4_neon
#define QNI_NEON_MR         4
#include "../simd/neon_q8.h"

/* sum[i].v[2 q + h]: outputs 2 h and 2 h + 1 of quarter q, two halves each. */
QNI_TEMPLATE void dot_vector(uint8x16_t code, const int kind, int8x16_t table,
                             const int8_t *const *a, const int mr, const int q, int32x4_t (*sum)[8])
{
    const int8x16_t w = value_of(code, kind, table);
    for (int i = 0; i < mr; i++) {
        int32_t four;
        memcpy(&four, a[i], sizeof four);
        const int8x8_t x = vreinterpret_s8_s32(vdup_n_s32(four));
        sum[i][2 * q] = vpadalq_s16(sum[i][2 * q], vmull_s8(vget_low_s8(w), x));
        sum[i][2 * q + 1] = vpadalq_s16(sum[i][2 * q + 1], vmull_s8(vget_high_s8(w), x));
    }
}

QNI_TEMPLATE void dot_units(const uint8_t *codes, const int8_t *const *rows, int64_t units,
                            const int mr, const int kind, int8x16_t table, struct qni_i32x16 *dot)
{
    int32x4_t sum[4][8];
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < 8; j++)
            sum[i][j] = vdupq_n_s32(0);
    const int vectors = kind == BYTES ? 8 : 4;
    for (int64_t u = 0; u < units; u++)
        for (int r = 0; r < vectors; r++)
            for (int q = 0; q < 4; q++) {
                const uint8x16_t v = vld1q_u8(codes + (u * vectors + r) * 64 + q * 16);
                const int8_t *low[4], *high[4];
                for (int i = 0; i < mr; i++) {
                    low[i] = rows[i] + u * QNI_UNIT + 4 * r;
                    high[i] = low[i] + 16;
                }
                if (kind == BYTES) {
                    dot_vector(v, kind, table, low, mr, q, sum);
                } else {
                    dot_vector(vandq_u8(v, vdupq_n_u8(15)), kind, table, low, mr, q, sum);
                    dot_vector(vshrq_n_u8(v, 4), kind, table, high, mr, q, sum);
                }
            }
    for (int i = 0; i < mr; i++)
        for (int q = 0; q < 4; q++)
            dot[i].v[q] = vpaddq_s32(sum[i][2 * q], sum[i][2 * q + 1]);
}

/* Four outputs' values of position b (shift = 8 b, or 8 b + 4 for the high nibbles) as floats:
 * integers, or entries of a table. */
QNI_TEMPLATE float32x4_t four_values(uint32x4_t code, const int shift, const int kind,
                                     const bool looked_up, const float *table)
{
    const int32x4_t down = vdupq_n_s32(-shift);
    const int32x4_t v = vreinterpretq_s32_u32(vshlq_u32(code, down));
    const int32x4_t small = vandq_s32(v, vdupq_n_s32(kind == BYTES ? 255 : 15));
    if (!looked_up)
        return vcvtq_f32_s32(vsubq_s32(small, vdupq_n_s32(kind == BYTES ? 128 : 8)));
    float32x4_t w = vld1q_dup_f32(table + vgetq_lane_s32(small, 0));
    w = vld1q_lane_f32(table + vgetq_lane_s32(small, 1), w, 1);
    w = vld1q_lane_f32(table + vgetq_lane_s32(small, 2), w, 2);
    return vld1q_lane_f32(table + vgetq_lane_s32(small, 3), w, 3);
}

/* mr rows of one panel: sums of a group without scale, multiplied once a group by the scale. */
QNI_TEMPLATE void f32_rows(const struct qni_matmul_tile *t, int64_t panel, int64_t row,
                           const int mr, const int kind, const bool looked_up)
{
    const int vectors = kind == BYTES ? 8 : 4, positions = kind == BYTES ? 4 : 8;
    const uint8_t *codes = t->codes + (size_t)panel * t->codes_stride;
    const float *a[4];
    struct qni_f32x16 acc[4];
    for (int i = 0; i < mr; i++) {
        a[i] = (const float *)(const void *)((const char *)t->a + (size_t)(row + i) * t->lda);
        for (int q = 0; q < 4; q++)
            acc[i].v[q] = vdupq_n_f32(0);
    }
    int64_t unit = 0;
    for (int64_t g = 0; g < t->n_groups; g++) {
        const int64_t left = t->units - unit,
                      end = unit + (left < t->group_units ? left : t->group_units);
        struct qni_f32x16 sum[4];
        float32x4_t total[4];
        for (int i = 0; i < mr; i++) {
            total[i] = vdupq_n_f32(0);
            for (int q = 0; q < 4; q++)
                sum[i].v[q] = vdupq_n_f32(0);
        }
        for (; unit < end; unit++) {
            for (int i = 0; i < mr && t->offset != NULL; i++)
                for (int p = 0; p < QNI_UNIT; p += 4)
                    total[i] = vaddq_f32(total[i], vld1q_f32(a[i] + unit * QNI_UNIT + p));
            for (int r = 0; r < vectors; r++, codes += 64)
                for (int q = 0; q < 4; q++) {
                    const uint32x4_t v = vreinterpretq_u32_u8(vld1q_u8(codes + q * 16));
                    for (int p = 0; p < positions; p++) {
                        const int shift = positions == 8 ? 4 * p : 8 * p;
                        const int64_t k =
                            unit * QNI_UNIT + 4 * r + (positions == 8 ? p / 2 + p % 2 * 16 : p);
                        const float32x4_t w = four_values(v, shift, kind, looked_up, t->table);
                        for (int i = 0; i < mr; i++)
                            sum[i].v[q] = vfmaq_n_f32(sum[i].v[q], w, a[i][k]);
                    }
                }
        }
        const struct qni_f32x16 scale =
            qni_load16(t->scale, panel * t->n_groups + g, t->scale_is_f16);
        for (int i = 0; i < mr; i++)
            for (int q = 0; q < 4; q++)
                acc[i].v[q] = vfmaq_f32(acc[i].v[q], scale.v[q], sum[i].v[q]);
        if (t->offset == NULL)
            continue;
        const struct qni_f32x16 offset =
            qni_load16(t->offset, panel * t->n_groups + g, t->scale_is_f16);
        for (int i = 0; i < mr; i++)
            for (int q = 0; q < 4; q++)
                acc[i].v[q] = vfmaq_n_f32(acc[i].v[q], offset.v[q], vaddvq_f32(total[i]));
    }
    for (int i = 0; i < mr; i++)
        for (int q = 0; q < 4; q++)
            vst1q_f32(t->c + (size_t)(row + i) * t->ldc + (size_t)panel * QNI_PANEL + 4 * q,
                      acc[i].v[q]);
}

QNI_TEMPLATE void f32_tile(const struct qni_matmul_tile *t, const int kind, const bool looked_up)
{
    for (int64_t panel = 0; panel < t->n_panels; panel++) {
        int64_t row = 0;
        for (; row + 4 <= t->m; row += 4)
            f32_rows(t, panel, row, 4, kind, looked_up);
        for (; row < t->m; row++)
            f32_rows(t, panel, row, 1, kind, looked_up);
    }
}

void qni_matmul_f32_q4n16_mr4_neon(const struct qni_matmul_tile *t)
{
    f32_tile(t, NIBBLES, false);
}
void qni_matmul_f32_t4n16_mr4_neon(const struct qni_matmul_tile *t)
{
    f32_tile(t, NIBBLES, true);
}
void qni_matmul_f32_q8n16_mr4_neon(const struct qni_matmul_tile *t)
{
    f32_tile(t, BYTES, false);
}
void qni_matmul_f32_t8n16_mr4_neon(const struct qni_matmul_tile *t)
{
    f32_tile(t, BYTES, true);
}

/* ---- weights that are floats ----------------------------------------------------------------- */

enum { HALVES, BRAINS, FLOATS };

/* Quarter q of the outputs, four positions. */
QNI_TEMPLATE void floats_of(const uint8_t *at, const int q, const int kind, float32x4_t v[4])
{
    for (int b = 0; b < 4 && kind == FLOATS; b++)
        v[b] = vreinterpretq_f32_u8(vld1q_u8(at + 64 * b + 16 * q));
    for (int b = 0; b < 4 && kind == HALVES; b++)
        v[b] = vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(at + 32 * b + 8 * q)));
    for (int b = 0; b < 2 && kind == BRAINS; b++) {
        const uint32x4_t pair = vreinterpretq_u32_u8(vld1q_u8(at + 64 * b + 16 * q));
        v[b] = vreinterpretq_f32_u32(vshlq_n_u32(pair, 16));
        v[b + 2] = vreinterpretq_f32_u32(vandq_u32(pair, vdupq_n_u32(0xffff0000u)));
    }
}

/* mr rows of one panel. */
QNI_TEMPLATE void float_rows(const struct qni_matmul_tile *t, int64_t panel, int64_t row,
                             const int mr, const int kind)
{
    const int64_t four_bytes = kind == FLOATS ? 256 : 128;
    const uint8_t *codes = t->codes + (size_t)panel * t->codes_stride;
    const uint8_t *const end = codes + t->codes_stride;
    const float *a[4];
    struct qni_f32x16 sum[4];
    for (int i = 0; i < mr; i++) {
        a[i] = (const float *)(const void *)((const char *)t->a + (size_t)(row + i) * t->lda);
        for (int q = 0; q < 4; q++)
            sum[i].v[q] = vdupq_n_f32(0);
    }
    for (int64_t p = 0; codes < end; codes += four_bytes, p += 4)
        for (int q = 0; q < 4; q++) {
            float32x4_t w[4];
            floats_of(codes, q, kind, w);
            for (int b = 0; b < 4; b++)
                for (int i = 0; i < mr; i++)
                    sum[i].v[q] = vfmaq_n_f32(sum[i].v[q], w[b], a[i][p + b]);
        }
    for (int i = 0; i < mr; i++)
        for (int q = 0; q < 4; q++)
            vst1q_f32(t->c + (size_t)(row + i) * t->ldc + (size_t)panel * QNI_PANEL + 4 * q,
                      sum[i].v[q]);
}

QNI_TEMPLATE void float_tile(const struct qni_matmul_tile *t, const int kind)
{
    for (int64_t panel = 0; panel < t->n_panels; panel++) {
        int64_t row = 0;
        for (; row + 4 <= t->m; row += 4)
            float_rows(t, panel, row, 4, kind);
        for (; row < t->m; row++)
            float_rows(t, panel, row, 1, kind);
    }
}

void qni_matmul_f32_h16n16_mr4_neon(const struct qni_matmul_tile *t)
{
    float_tile(t, HALVES);
}
void qni_matmul_f32_b16n16_mr4_neon(const struct qni_matmul_tile *t)
{
    float_tile(t, BRAINS);
}
void qni_matmul_f32_f32n16_mr4_neon(const struct qni_matmul_tile *t)
{
    float_tile(t, FLOATS);
}
