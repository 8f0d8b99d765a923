/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolutions with 3 x 3 taps of given codes on NEON, to codes: everything but the
 * products, which differ between instruction sets. Contract: conv/kernel.h; the steps after the
 * sums: docs/numerics.md.
 *
 * A row of outputs is made VECTORS * 4 channels at a time: each column of taps is loaded once, and
 * sums that are not whole move along. First all sums, then all bytes: together they want more
 * registers than there are. Conversions to int32 saturate and make 0 of a NaN, as the steps want
 * it, so that no scale is too large for this.
 *
 * Parameters, defined by the including file before:
 *     VECTORS          2 or 4
 *     struct sums      v[VECTORS]
 *     struct weights   of these channels, and what there is to know of x; begin: struct sums
 *     struct column    what outputs read of a column of x
 *     weights_of(m, channel)                  the weights
 *     column_of(weights, x)                   the column of three rows
 *     add_column(sum, column, weights, tap)   sum += products with that column of taps */

/* What becomes of the sums: of the channels, and of all. */
struct ends {
    float32x4_t w_scale[VECTORS], scale[VECTORS], bias[VECTORS];
    float32x4_t x_scale, y_inv;
    int16x8_t zero;
    int8x8_t lo, hi; /* before they are flipped */
    int8x8_t flip;   /* i8 to u8 */
};

_Static_assert(VECTORS * 4 <= QNI_PANEL &&
                   sizeof(struct weights) * QNI_PANEL <= QNI_DEPTHWISE_WORDS * VECTORS * 4,
               "the driver's room");

/* A bound of what is rounded bounds the byte as well: rounding and adding are monotonic. */
static int8x8_t bound(float v, int32_t zero)
{
    const int32_t most = 1 << 15;
    const int32_t at = zero + (v < (float)most ? vcvtns_s32_f32(v) : most);
    return vdup_n_s8((int8_t)(at < -128 ? -128 : at > 127 ? 127 : at));
}

static struct ends ends_of(const struct qni_depthwise_image *m)
{
    const bool is_u8 = m->y_type == QN_U8;
    const int32_t zero = m->y_zero - (is_u8 ? 128 : 0);
    struct ends e = {
        .x_scale = vdupq_n_f32(m->x_scale),
        .y_inv = vdupq_n_f32(m->y_inv),
        .zero = vdupq_n_s16((int16_t)zero),
        .lo = m->is_relu ? bound(0.0f, zero) : vdup_n_s8(-128),
        .hi = m->is_relu ? bound(m->most * m->y_inv, zero) : vdup_n_s8(127),
        .flip = vdup_n_s8(is_u8 ? -128 : 0),
    };
    for (int q = 0; q < VECTORS; q++) {
        e.scale[q] = vdupq_n_f32(1.0f);
        e.bias[q] = vdupq_n_f32(0.0f);
    }
    return e;
}

static void begin_channels(const struct qni_depthwise_image *m, int64_t channel, struct ends *e)
{
    for (int q = 0; q < VECTORS; q++, channel += 4) {
        e->w_scale[q] = vld1q_f32(m->w_scale + channel);
        if (m->scale != NULL)
            e->scale[q] = vld1q_f32(m->scale + channel);
        if (m->bias != NULL)
            e->bias[q] = vld1q_f32(m->bias + channel);
    }
}

/* The steps of docs/numerics.md, each rounded as there; adding a bias of 0 shows in no byte, and
 * multiplying by 1 in nothing. */
QNI_TEMPLATE int32x4_t rounded(const struct ends *e, int32x4_t sum, const int q)
{
    const float32x4_t v = vmulq_f32(vmulq_f32(vcvtq_f32_s32(sum), e->w_scale[q]), e->x_scale);
    const float32x4_t ended = vaddq_f32(vmulq_f32(v, e->scale[q]), e->bias[q]);
    return vcvtnq_s32_f32(vmulq_f32(ended, e->y_inv));
}

/* n sums to bytes. */
QNI_NOINLINE static void finish(const struct ends *ends, const struct sums *sum, int64_t n,
                                uint8_t *y, int64_t step)
{
    const struct ends e = *ends;
    for (; n > 0; n--, sum++, y += step)
        QNI_UNROLL
    for (int q = 0; q < VECTORS; q += 2) {
        const int16x4_t low = vqmovn_s32(rounded(&e, sum->v[q], q));
        const int16x8_t words = vqmovn_high_s32(low, rounded(&e, sum->v[q + 1], q + 1));
        const int8x8_t bytes = vqmovn_s16(vqaddq_s16(words, e.zero));
        const int8x8_t bounded = vmin_s8(vmax_s8(bytes, e.lo), e.hi);
        vst1_s8((int8_t *)y + 4 * q, veor_s8(bounded, e.flip));
    }
}

/* Three rows of x, from the first column inside on. A row outside of x is one of zero points that
 * does not move; so are columns outside. */
struct line {
    const uint8_t *x[3];
    int64_t move[3];
    const uint8_t *zeros;
    int64_t from, inside; /* columns behind that of tap 0 of output 0 */
};

QNI_TEMPLATE struct column next_column(struct line *l, const struct weights *w, int64_t i)
{
    const bool is_inside = (uint64_t)(i - l->from) < (uint64_t)l->inside;
    if (QNI_UNLIKELY(!is_inside))
        return column_of(w, (const uint8_t *const[]){l->zeros, l->zeros, l->zeros});
    const struct column column = column_of(w, l->x);
    QNI_UNROLL
    for (int r = 0; r < 3; r++)
        l->x[r] += l->move[r];
    return column;
}

/* n sums of a row. */
QNI_TEMPLATE void row_sums(const struct line *from, const struct weights *weights, int64_t n,
                           struct sums *sum, const int STRIDE)
{
    /* Copies have no other name, so that stores of sums leave them in registers. */
    const struct weights w = *weights;
    struct line l = *from;
    struct column x = next_column(&l, &w, 0);
    struct sums part = w.begin, begun = part;
    add_column(&part, &x, &w, 0);
    x = next_column(&l, &w, 1);
    add_column(&part, &x, &w, 1);
    if (STRIDE == 1)
        add_column(&begun, &x, &w, 0);
    for (int64_t i = 0; i < n; i++) {
        x = next_column(&l, &w, 2 + STRIDE * i);
        add_column(&part, &x, &w, 2);
        sum[i] = part;
        part = begun;
        if (STRIDE == 1) {
            begun = w.begin;
            add_column(&part, &x, &w, 1);
            add_column(&begun, &x, &w, 0);
        } else {
            add_column(&part, &x, &w, 0);
            x = next_column(&l, &w, 3 + STRIDE * i);
            add_column(&part, &x, &w, 1);
        }
    }
}

/* The last channels reach back: what is written twice is the same. */
static inline int64_t channel_at(const struct qni_depthwise_image *m, int64_t i)
{
    return i + 4 * VECTORS <= m->n ? i : m->n - 4 * VECTORS;
}

static void row(const struct qni_depthwise_image *m, const struct line *rows, struct ends *e,
                uint8_t *y)
{
    const struct weights *w = m->words;
    struct sums sums[QNI_DEPTHWISE_CODES_COLUMNS];
    for (int64_t i = 0; i < m->n; i += 4 * VECTORS, w++) {
        const int64_t channel = channel_at(m, i);
        struct line l = *rows;
        for (int r = 0; r < 3; r++)
            l.x[r] += l.move[r] != 0 ? channel : 0;
        if (m->stride[1] == 1)
            row_sums(&l, w, m->out[1], sums, 1);
        else
            row_sums(&l, w, m->out[1], sums, 2);
        begin_channels(m, channel, e);
        finish(e, sums, m->out[1], y + channel, m->y_column);
    }
}

static bool codes_image(const struct qni_depthwise_image *m)
{
    struct weights *w = m->words;
    for (int64_t i = 0; i < m->n; i += 4 * VECTORS)
        *w++ = weights_of(m, channel_at(m, i));
    struct ends ends = ends_of(m);
    uint8_t zeros[4 * VECTORS];
    memset(zeros, m->x_zero, sizeof zeros);
    const int64_t from = m->first[1] < 0 ? -m->first[1] : 0, column = m->first[1] + from;
    for (int64_t i = 0; i < m->out[0]; i++) {
        struct line l = {.zeros = zeros, .from = from, .inside = m->in[1] - column};
        for (int r = 0; r < 3; r++) {
            const int64_t at = m->first[0] + i * m->stride[0] + r;
            const bool is_inside = at >= 0 && at < m->in[0];
            l.x[r] = is_inside ? m->codes + at * m->x_row + column * m->x_column : zeros;
            l.move[r] = is_inside ? m->x_column : 0;
        }
        row(m, &l, &ends, (uint8_t *)m->y + i * m->y_row);
    }
    return true;
}
