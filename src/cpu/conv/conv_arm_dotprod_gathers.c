/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions with sdot (Armv8.2 dot products): simd/neon_direct.h but for the
 * products.
 *
 * A vector of weights is 4 outputs x 4 positions, which is what sdot takes; 16 positions of a row
 * are loaded once and the instruction picks four of them by lane. 4 rows by 16 outputs: of 6, which
 * need 31 registers, gcc would move some about.
 *
 * Bound: 2 m n k operations / 32 each, two a cycle. 20 loads and 64 products in 32 cycles. What is
 * brought is a vector of 16 weights a cycle or two, that 96 rows meet in 48: 4 % at most. */
#include "../simd/neon_direct.h"

QNI_TEMPLATE void put_eight(int8x16_t first, int8x16_t second, const int q, int8_t *to)
{
    vst1q_s8(to + 16 * q, first);
    vst1q_s8(to + 16 * q + EIGHT / 2, second);
}

QNI_TEMPLATE void multiply(const int8_t *x, const int8_t *w, int64_t n, const int mr,
                           struct qni_i32x16 *dot)
{
    struct qni_i32x16 sum[MR];
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int q = 0; q < 4; q++)
        sum[i].v[q] = vdupq_n_s32(0);
    for (; n > 0; n--, x += 16, w += 2 * EIGHT) {
        int8x16_t rows[MR];
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            rows[i] = vld1q_s8(x + i * DEPTH);
        QNI_UNROLL
        for (int lane = 0; lane < 4; lane++)
            QNI_UNROLL
        for (int q = 0; q < 4; q++) {
            const int8x16_t v = vld1q_s8(w + 64 * lane + 16 * q);
            QNI_UNROLL
            for (int i = 0; i < mr; i++)
                sum[i].v[q] = qni_dot_lane(sum[i].v[q], v, rows[i], lane);
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        dot[i] = sum[i];
}

void qni_conv_q8_q8n16_mr4_dotprod(const struct qni_direct_tile *t)
{
    tile(t, BYTES);
}
void qni_conv_q8_q4n16_mr4_dotprod(const struct qni_direct_tile *t)
{
    tile(t, NIBBLES);
}
static const struct qni_direct_images images = {NULL, NULL, NULL, spread};
const struct qni_direct_helpers qni_direct_gathers_dotprod = {.images = &images};
