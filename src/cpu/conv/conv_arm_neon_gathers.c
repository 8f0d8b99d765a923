/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions on Armv8-A without dot products: simd/neon_direct.h but for the
 * products.
 *
 * smull gives 8 products of 16 bits (128 * 128 fits), sadalp adds neighbours into 32 bits: no step
 * can overflow. A vector of weights is 4 outputs x 4 positions, so that each output ends as two
 * halves, which one addp joins at the end. Two rows by 16 outputs are 16 sums.
 *
 * Bound: 2 m n k / (16 operations every smull + sadalp, of which one begins each cycle). */
#include "../simd/neon_direct.h"

QNI_TEMPLATE void put_eight(int8x16_t first, int8x16_t second, const int q, int8_t *to)
{
    vst1q_s8(to + 16 * q, first);
    vst1q_s8(to + 16 * q + EIGHT / 2, second);
}

/* Two rows; of each, sum[2 q + h] is outputs 4 q + 2 h and 4 q + 2 h + 1. */
QNI_TEMPLATE void multiply_two(const int8_t *x, const int8_t *w, int64_t n, struct qni_i32x16 *dot)
{
    int32x4_t sum[2][8];
    QNI_UNROLL
    for (int j = 0; j < 8; j++)
        sum[0][j] = sum[1][j] = vdupq_n_s32(0);
    for (n *= 4; n > 0; n--, x += 4, w += EIGHT / 2) {
        int8x8_t four[2];
        QNI_UNROLL
        for (int i = 0; i < 2; i++) {
            int32_t word;
            memcpy(&word, x + i * DEPTH, sizeof word);
            four[i] = vreinterpret_s8_s32(vdup_n_s32(word));
        }
        QNI_UNROLL
        for (int q = 0; q < 4; q++) {
            const int8x16_t v = vld1q_s8(w + 16 * q);
            QNI_UNROLL
            for (int i = 0; i < 2; i++) {
                int32x4_t *const to = &sum[i][2 * q];
                to[0] = vpadalq_s16(to[0], vmull_s8(vget_low_s8(v), four[i]));
                to[1] = vpadalq_s16(to[1], vmull_s8(vget_high_s8(v), four[i]));
            }
        }
    }
    QNI_UNROLL
    for (int i = 0; i < 2; i++)
        QNI_UNROLL
    for (int q = 0; q < 4; q++)
        dot[i].v[q] = vpaddq_s32(sum[i][2 * q], sum[i][2 * q + 1]);
}

QNI_TEMPLATE void multiply(const int8_t *x, const int8_t *w, int64_t n, const int mr,
                           struct qni_i32x16 *dot)
{
    for (int i = 0; i < mr; i += 2)
        multiply_two(x + i * DEPTH, w, n, dot + i);
}

void qni_conv_q8_q8n16_mr2_neon(const struct qni_direct_tile *t)
{
    tile(t, BYTES);
}
void qni_conv_q8_q4n16_mr2_neon(const struct qni_direct_tile *t)
{
    tile(t, NIBBLES);
}
static const struct qni_direct_images images = {NULL, NULL, NULL, spread};
const struct qni_direct_helpers qni_direct_gathers_neon = {.images = &images};
