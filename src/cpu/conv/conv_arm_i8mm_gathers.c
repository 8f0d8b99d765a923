/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions with smmla (Armv8.6 matrix products): simd/neon_direct.h but for the
 * products.
 *
 * smmla multiplies 2 x 8 by 8 x 2. Weights are brought as vectors of 2 outputs x 8 positions; two
 * rows share a vector. 4 rows by 16 outputs are 16 sums of 2 x 2, put back in rows at the end; of 6
 * rows, gcc would put some into memory.
 *
 * Bound: 2 m n k operations / 64 each, two a cycle. 12 loads, the halves of two rows among them,
 * and 16 products in 8 cycles. What is brought is a vector of 16 weights a cycle or two, that 96
 * rows meet in 24: 8 % at most. */
#include "../simd/neon_direct.h"

QNI_TEMPLATE void put_eight(int8x16_t first, int8x16_t second, const int q, int8_t *to)
{
    const int32x4_t a = vreinterpretq_s32_s8(first), b = vreinterpretq_s32_s8(second);
    vst1q_s8(to + 32 * q, vreinterpretq_s8_s32(vzip1q_s32(a, b)));
    vst1q_s8(to + 32 * q + 16, vreinterpretq_s8_s32(vzip2q_s32(a, b)));
}

QNI_TEMPLATE void multiply(const int8_t *x, const int8_t *w, int64_t n, const int mr,
                           struct qni_i32x16 *dot)
{
    const int pairs = mr / 2;
    int32x4_t sum[MR / 2][8]; /* [pair][outputs 2 j, 2 j + 1 of a row, then of the other] */
    QNI_UNROLL
    for (int i = 0; i < pairs; i++)
        QNI_UNROLL
    for (int j = 0; j < 8; j++)
        sum[i][j] = vdupq_n_s32(0);
    for (n *= 2; n > 0; n--, x += 8, w += EIGHT) {
        int8x16_t rows[MR / 2];
        QNI_UNROLL
        for (int i = 0; i < pairs; i++)
            rows[i] = vcombine_s8(vld1_s8(x + 2 * i * DEPTH), vld1_s8(x + (2 * i + 1) * DEPTH));
        QNI_UNROLL
        for (int j = 0; j < 8; j++) {
            const int8x16_t v = vld1q_s8(w + 16 * j);
            QNI_UNROLL
            for (int i = 0; i < pairs; i++)
                sum[i][j] = vmmlaq_s32(sum[i][j], rows[i], v);
        }
    }
    QNI_UNROLL
    for (int i = 0; i < pairs; i++)
        QNI_UNROLL
    for (int q = 0; q < 4; q++) {
        const int64x2_t a = vreinterpretq_s64_s32(sum[i][2 * q]);
        const int64x2_t b = vreinterpretq_s64_s32(sum[i][2 * q + 1]);
        dot[2 * i].v[q] = vreinterpretq_s32_s64(vzip1q_s64(a, b));
        dot[2 * i + 1].v[q] = vreinterpretq_s32_s64(vzip2q_s64(a, b));
    }
}

void qni_conv_q8_q8n16_mr4_i8mm(const struct qni_direct_tile *t)
{
    tile(t, BYTES);
}
void qni_conv_q8_q4n16_mr4_i8mm(const struct qni_direct_tile *t)
{
    tile(t, NIBBLES);
}
static const struct qni_direct_images images = {NULL, NULL, NULL, spread};
const struct qni_direct_helpers qni_direct_gathers_i8mm = {.images = &images};
