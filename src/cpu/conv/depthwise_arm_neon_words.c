/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolutions with 3 x 3 taps of given codes, multiplied as words of 16 bits: a code
 * less its zero point is one. simd/neon_depthwise.h has the rest.
 *
 * Bound, for 8 outputs: 18 products, 6 steps that make words of 3 loads, 21 that make bytes of
 * sums. x and y are 8 bytes each. */
#include <arm_neon.h>
#include <string.h>

#include "../../base/compiler.h"
#include "kernel.h"

enum { VECTORS = 2 };

struct sums {
    int32x4_t v[VECTORS];
};
struct weights {
    int16x8_t w[3][3]; /* column, row */
    struct sums begin;
    int8x8_t flip, zero; /* u8 to i8; the zero point after that */
};
struct column {
    int16x8_t row[3];
};

static struct weights weights_of(const struct qni_depthwise_image *m, int64_t channel)
{
    const int32_t flip = m->x_type == QN_U8 ? 128 : 0;
    struct weights w = {
        .begin = {{vdupq_n_s32(0), vdupq_n_s32(0)}},
        .flip = vdup_n_s8((int8_t)-flip),
        .zero = vdup_n_s8((int8_t)(m->x_zero - flip)),
    };
    for (int i = 0; i < 9; i++) {
        const float *const at = m->w + i * m->w_tap + channel;
        const int16x4_t low = vmovn_s32(vcvtnq_s32_f32(vld1q_f32(at)));
        w.w[i % 3][i / 3] = vmovn_high_s32(low, vcvtnq_s32_f32(vld1q_f32(at + 4)));
    }
    return w;
}

QNI_TEMPLATE struct column column_of(const struct weights *w, const uint8_t *const x[3])
{
    struct column c;
    QNI_UNROLL
    for (int r = 0; r < 3; r++)
        c.row[r] = vsubl_s8(veor_s8(vld1_s8((const int8_t *)x[r]), w->flip), w->zero);
    return c;
}

QNI_TEMPLATE void add_column(struct sums *sum, const struct column *c, const struct weights *w,
                             const int tap)
{
    QNI_UNROLL
    for (int r = 0; r < 3; r++) {
        const int16x8_t x = c->row[r], v = w->w[tap][r];
        sum->v[0] = vmlal_s16(sum->v[0], vget_low_s16(x), vget_low_s16(v));
        sum->v[1] = vmlal_high_s16(sum->v[1], x, v);
    }
}

#include "../simd/neon_depthwise.h"

bool qni_depthwise_q8_rows_words_neon(const struct qni_depthwise_image *image)
{
    return codes_image(image);
}
