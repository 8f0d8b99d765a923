/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolutions with 3 x 3 taps of given codes, a column of taps at a time: the three
 * codes that it reads, and any fourth one, are four bytes of an sdot, their weights and a zero the
 * others. simd/neon_depthwise.h has the rest.
 *
 * Bound, for 16 outputs: 12 products, 11 steps that make quads of 3 loads, 42 that make bytes of
 * sums. x and y are 16 bytes each.
 *
 * Columns outside of x hold the zero point, so that what is taken away from all sums is a constant
 * of the channel. */
#include <arm_neon.h>
#include <string.h>

#include "../../base/compiler.h"
#include "kernel.h"

enum { VECTORS = 4 };

struct sums {
    int32x4_t v[VECTORS];
};
struct weights {
    int8x16_t w[3][VECTORS];
    struct sums begin;
    int8x16_t flip; /* u8 to i8 */
};
struct column {
    int8x16_t quads[VECTORS];
};

static struct weights weights_of(const struct qni_depthwise_image *m, int64_t channel)
{
    const int32_t flip = m->x_type == QN_U8 ? 128 : 0;
    struct weights w = {.flip = vdupq_n_s8((int8_t)-flip)};
    for (int q = 0; q < VECTORS; q++, channel += 4) {
        int32x4_t all = vdupq_n_s32(0);
        for (int column = 0; column < 3; column++) {
            const float *const at = m->w + column * m->w_tap + channel;
            const int32x4_t a = vcvtnq_s32_f32(vld1q_f32(at));
            const int32x4_t b = vcvtnq_s32_f32(vld1q_f32(at + 3 * m->w_tap));
            const int32x4_t c = vcvtnq_s32_f32(vld1q_f32(at + 6 * m->w_tap));
            const int32x4_t quad = vsliq_n_s32(vsliq_n_s32(a, b, 8), c, 16);
            w.w[column][q] = vreinterpretq_s8_s32(vandq_s32(quad, vdupq_n_s32(0xffffff)));
            all = vaddq_s32(all, vaddq_s32(vaddq_s32(a, b), c));
        }
        w.begin.v[q] = vmulq_n_s32(all, flip - m->x_zero);
    }
    return w;
}

/* Bytes of channels side by side, or words of them. */
QNI_TEMPLATE int16x8_t bytes_beside(int8x16_t a, int8x16_t b, const int half)
{
    return vreinterpretq_s16_s8(half == 0 ? vzip1q_s8(a, b) : vzip2q_s8(a, b));
}
QNI_TEMPLATE int8x16_t words_beside(int16x8_t a, int16x8_t b, const int half)
{
    return vreinterpretq_s8_s16(half == 0 ? vzip1q_s16(a, b) : vzip2q_s16(a, b));
}

QNI_TEMPLATE struct column column_of(const struct weights *w, const uint8_t *const x[3])
{
    int8x16_t v[3];
    struct column c;
    QNI_UNROLL
    for (int r = 0; r < 3; r++)
        v[r] = veorq_s8(vld1q_s8((const int8_t *)x[r]), w->flip);
    QNI_UNROLL
    for (int q = 0; q < VECTORS; q++)
        c.quads[q] =
            words_beside(bytes_beside(v[0], v[1], q / 2), bytes_beside(v[2], v[2], q / 2), q % 2);
    return c;
}

QNI_TEMPLATE void add_column(struct sums *sum, const struct column *c, const struct weights *w,
                             const int tap)
{
    QNI_UNROLL
    for (int q = 0; q < VECTORS; q++)
        sum->v[q] = vdotq_s32(sum->v[q], c->quads[q], w->w[tap][q]);
}

#include "../simd/neon_depthwise.h"

bool qni_depthwise_q8_rows_quads_dotprod(const struct qni_depthwise_image *image)
{
    return codes_image(image);
}
