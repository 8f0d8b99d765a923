/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of direct convolutions that gather, on NEON: everything but the products, which differ
 * between instruction sets. Contract and operand layouts: conv/direct_kernel.h.
 *
 * Bytes of x are copied to rows that lie evenly, and weights become signed when a panel is brought
 * to the first cache. 96 rows at a time meet 256 positions of a panel, 4 rows by 16 outputs in
 * registers; of longer sums, those of 16 panels wait in memory.
 *
 * Parameters, functions that the including file defines:
 *   put_eight()     stores weights of four outputs 4 q .. at eight positions, given as two vectors
 *                   [output][4 positions], in the 128 bytes of 16 outputs at these positions
 *   multiply()      dot[i] = sums of mr rows, DEPTH bytes apart, over 16 * n positions
 * Gives the function tile and the spread of an image. */
#include "../../base/compiler.h"
#include "../conv/kernel.h"
#include "neon.h"

enum { ROWS = 96, MR = 4, DEPTH = 256, PANELS = 16 };
enum { BYTES = 0, NIBBLES = 1 };
enum { EIGHT = 8 * QNI_PANEL }; /* bytes of eight positions */

QNI_TEMPLATE void put_eight(int8x16_t first, int8x16_t second, const int q, int8_t *to);
QNI_TEMPLATE void multiply(const int8_t *x, const int8_t *w, int64_t n, const int mr,
                           struct qni_i32x16 *dot);

struct gather_scratch {
    int8_t x[ROWS * DEPTH];
    int8_t w[DEPTH * QNI_PANEL];
    int32_t sums[PANELS * ROWS * QNI_PANEL];
};
_Static_assert(sizeof(struct gather_scratch) <= QNI_DIRECT_SCRATCH_GATHERS, "scratch of a row");

/* ---- x --------------------------------------------------------------------------------------- */

QNI_TEMPLATE void flip_16(const uint8_t *from, uint8x16_t flip, uint8_t *to)
{
    vst1q_u8(to, veorq_u8(vld1q_u8(from), flip));
}

/* n bytes, changed by flip; the last ones may be written twice. */
static inline void copy(const uint8_t *from, int64_t n, uint8_t flip, uint8_t *to)
{
    const uint8x16_t wide = vdupq_n_u8(flip);
    if (n >= 16) {
        for (; n > 16; n -= 16, from += 16, to += 16)
            flip_16(from, wide, to);
        flip_16(from + n - 16, wide, to + n - 16);
        return;
    }
    if (n >= 8) {
        const uint8x8_t v = vld1_u8(from), last = vld1_u8(from + n - 8);
        vst1_u8(to, veor_u8(v, vget_low_u8(wide)));
        vst1_u8(to + n - 8, veor_u8(last, vget_low_u8(wide)));
        return;
    }
    for (int64_t i = 0; i < n; i++)
        to[i] = from[i] ^ flip;
}

static void bring_x(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                    struct gather_scratch *scratch)
{
    const int64_t *const rows = t->at + p->row;
    uint8_t *const x = (uint8_t *)scratch->x;
    int64_t tap = p->from / t->tap_bytes, at = p->from % t->tap_bytes;
    for (int64_t done = 0, n; done < p->n; done += n, at = 0, tap++) {
        n = t->tap_bytes - at < p->n - done ? t->tap_bytes - at : p->n - done;
        const uint8_t *const a = (const uint8_t *)t->a + t->taps[tap] + at;
        for (int64_t r = 0; r < p->rows; r++)
            copy(a + rows[r], n, t->flip, x + r * DEPTH + done);
    }
    for (int64_t r = 0; p->n % 16 != 0 && r < p->rows; r++)
        memset(x + r * DEPTH + p->n, 0, (size_t)(16 - p->n % 16));
}

/* Pixels of an image, for its planes. */
static void spread(const struct qni_direct_spread *s)
{
    const uint8_t *from = s->from;
    uint8_t *to = s->to;
    for (int64_t n = s->n; n > 0; n--, from += s->step, to += s->pixel) {
        copy(from, s->channels, s->flip, to);
        if (s->pixel > s->channels)
            memset(to + s->channels, 0, (size_t)(s->pixel - s->channels));
    }
}

/* ---- weights --------------------------------------------------------------------------------- */

QNI_TEMPLATE int8x16_t value_of(uint8x16_t code, const int kind)
{
    return vreinterpretq_s8_u8(kind == NIBBLES ? vsubq_u8(code, vdupq_n_u8(8))
                                               : veorq_u8(code, vdupq_n_u8(0x80)));
}

/* Units of 32 positions: vector r of 64 bytes has positions 4 r .. of 16 outputs, as nibbles
 * 16 + 4 r .., too. */
QNI_TEMPLATE void bring_w(const struct qni_direct_tile *t, int64_t panel,
                          const struct qni_direct_range *p, struct gather_scratch *scratch,
                          const int kind)
{
    const int vectors = kind == NIBBLES ? 4 : 8;
    const uint8x16_t low = vdupq_n_u8(15);
    const uint8_t *codes =
        t->b + (size_t)panel * t->b_panel + (size_t)p->from * (kind == NIBBLES ? 8 : 16);
    int8_t *to = scratch->w;
    for (int64_t unit = 0; unit < (p->n + 31) / 32; unit++, to += 4 * EIGHT, codes += 64 * vectors)
        for (int r = 0; r < vectors; r += 2)
            for (int q = 0; q < 4; q++) {
                const uint8x16_t v = vld1q_u8(codes + 64 * r + 16 * q);
                const uint8x16_t next = vld1q_u8(codes + 64 * r + 16 * q + 64);
                int8_t *const here = to + r / 2 * EIGHT;
                if (kind == BYTES) {
                    put_eight(value_of(v, kind), value_of(next, kind), q, here);
                    continue;
                }
                put_eight(value_of(vandq_u8(v, low), kind), value_of(vandq_u8(next, low), kind), q,
                          here);
                put_eight(value_of(vshrq_n_u8(v, 4), kind), value_of(vshrq_n_u8(next, 4), kind), q,
                          here + 2 * EIGHT);
            }
}

/* ---- sums ------------------------------------------------------------------------------------ */

QNI_TEMPLATE void add_rows(const struct gather_scratch *scratch, const struct qni_direct_range *p,
                           int64_t row, int32_t *sums, const int mr)
{
    struct qni_i32x16 dot[MR];
    multiply(scratch->x + row * DEPTH, scratch->w, (p->n + 15) / 16, mr, dot);
    sums += row * QNI_PANEL;
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int q = 0; q < 4; q++) {
        int32_t *const to = sums + i * QNI_PANEL + 4 * q;
        vst1q_s32(to, p->from == 0 ? dot[i].v[q] : vaddq_s32(dot[i].v[q], vld1q_s32(to)));
    }
}

/* Rows more than there are, of what scratch happens to hold: their sums are nobody's. */
QNI_NOINLINE static void add_panel(const struct gather_scratch *scratch,
                                   const struct qni_direct_range *p, int32_t *sums)
{
    int64_t row = 0;
    for (; p->rows - row > 2; row += MR)
        add_rows(scratch, p, row, sums, MR);
    if (p->rows > row)
        add_rows(scratch, p, row, sums, 2);
}

/* ---- from sums to results -------------------------------------------------------------------- */

struct finish {
    struct qni_f32x16 scale, bias;
    struct qni_i32x16 zero;
    int32x4_t y_zero;
    int8x16_t floor;
    uint8x16_t flip;
};

static struct finish finish_of(const struct qni_direct_tile *t, int64_t panel)
{
    struct finish f;
    const int32_t zero = t->y_zero - (t->is_u8 ? 128 : 0); /* bytes are made signed, then flipped */
    const int32_t floor = zero < -128 ? -128 : zero > 127 ? 127 : zero;
    for (int q = 0; q < 4; q++) {
        const int64_t at = panel * QNI_PANEL + 4 * q;
        f.scale.v[q] = vld1q_f32(t->scale + at);
        f.bias.v[q] = vld1q_f32(t->bias + at);
        f.zero.v[q] = vld1q_s32(t->zero + at);
    }
    f.y_zero = vdupq_n_s32(zero);
    f.floor = vdupq_n_s8((int8_t)(t->relu ? floor : -128));
    f.flip = vdupq_n_u8(t->is_u8 ? 0x80 : 0);
    return f;
}

/* Conversions saturate and make 0 of no number, as a code wants it. */
QNI_TEMPLATE int16x4_t code_of(const struct qni_direct_tile *t, const struct finish *f,
                               const int32_t *sum, const int q)
{
    const int32x4_t d = vsubq_s32(vld1q_s32(sum + 4 * q), f->zero.v[q]);
    float32x4_t v = vmulq_n_f32(vmulq_f32(f->scale.v[q], vcvtq_f32_s32(d)), t->x_scale);
    v = vmulq_n_f32(vaddq_f32(v, f->bias.v[q]), t->y_inv);
    return vqmovn_s32(vqaddq_s32(vcvtnq_s32_f32(v), f->y_zero));
}

/* Relu is a floor on the code: v <= 0 gives y_zero, and any other v no less. */
static void panel_to_bytes(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                           int64_t panel, const int32_t *sums)
{
    const struct finish f = finish_of(t, panel);
    const int64_t column = t->column + panel * QNI_PANEL, n = t->n - panel * QNI_PANEL;
    for (int64_t r = 0; r < p->rows; r++, sums += QNI_PANEL) {
        uint8_t *const to = t->y[p->row + r] + column;
        const int16x8_t low = vcombine_s16(code_of(t, &f, sums, 0), code_of(t, &f, sums, 1));
        const int16x8_t high = vcombine_s16(code_of(t, &f, sums, 2), code_of(t, &f, sums, 3));
        const int8x16_t codes = vmaxq_s8(vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)), f.floor);
        const uint8x16_t row = veorq_u8(vreinterpretq_u8_s8(codes), f.flip);
        uint8_t bytes[QNI_PANEL];
        if (n >= QNI_PANEL) {
            vst1q_u8(to, row);
            continue;
        }
        vst1q_u8(bytes, row);
        for (int64_t j = 0; j < n; j++)
            to[j] = bytes[j];
    }
}

static void panel_to_words(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                           int64_t panel, const int32_t *sums)
{
    for (int64_t r = 0; r < p->rows; r++)
        for (int64_t j = 0; j < QNI_PANEL; j += 4) {
            const int64_t at = panel * QNI_PANEL + j;
            float *const to = t->c + (p->row + r) * 32 + at;
            const int32x4_t d =
                vsubq_s32(vld1q_s32(sums + r * QNI_PANEL + j), vld1q_s32(t->zero + at));
            const float32x4_t v =
                vfmaq_f32(vdupq_n_f32(0), vld1q_f32(t->scale + at), vcvtq_f32_s32(d));
            vst1q_f32(to, t->kind == QNI_DIRECT_RAW ? vreinterpretq_f32_s32(d) : v);
        }
}

/* ---- a tile ---------------------------------------------------------------------------------- */

QNI_TEMPLATE void tile(const struct qni_direct_tile *t, const int kind)
{
    struct gather_scratch *const scratch = t->scratch;
    struct qni_direct_walk w =
        qni_direct_walk_of(t, qni_direct_even_rows(t->rows, ROWS, MR), DEPTH, PANELS);
    const struct qni_direct_range *const p = &w.p;
    while (qni_direct_walk_next(&w)) {
        bring_x(t, p, scratch);
        for (int64_t panel = w.first; panel < w.end; panel++) {
            const int64_t waiting = w.is_long ? panel - w.first : 0;
            int32_t *const sums = scratch->sums + waiting * ROWS * QNI_PANEL;
            bring_w(t, panel, p, scratch, kind);
            add_panel(scratch, p, sums);
            if (p->from + p->n < w.k)
                continue;
            if (t->kind == QNI_DIRECT_BYTES)
                panel_to_bytes(t, p, panel, sums);
            else
                panel_to_words(t, p, panel, sums);
        }
    }
}
