/* SPDX-License-Identifier: Apache-2.0 */
/* The depthwise kernels for vectors of any width: an include-template. Contract:
 * conv/depthwise_kernel.h.
 *
 * Parameters, defined by the including file and undefined here:
 *     LANES            floats in a vector: 4, 8 or 16
 *     MR               vectors of 16 lanes kept in registers at a time; MR * 16 / LANES sums
 *                      hide the latency of the multiply-add
 *     MADD(a, b, c)    a * b + c, rounded once or twice
 *     FMA(a, b, c)     a * b + c, rounded once
 *     HAS_FMA          1: FMA is an instruction
 *     SMALLER(a, b)    a < b ? a : b, lane by lane
 *     LARGER(a, b)     a > b ? a : b
 *     LARGER_INT(a, b) the same of int32
 *     TO_F16(at, a)    a rounded to f16, stored
 *     TO_BF16(at, a)   the same to bf16; of NaN whatever comes
 *     TO_BYTES(at, a, is_signed)  LANES int32 as the nearest bytes
 * Gives the functions float_tile, float_image, given_tile, row_tile and block_tile. The bits of
 * the last three do not depend on the parameters: their sums are integers, the rest is element by
 * element in the order of docs/numerics.md.
 *
 * Bound: the inputs come from the first cache; 2 loads and 1 multiply-add a tap and vector (MR
 * share the weight's load). */
#include "lanes.h"

/* sum[r] += inputs of vector r times weights, taps [from, to), lanes from `lane` on. at: element
 * of vector 0. */
QNI_TEMPLATE void add_products(const struct qni_depthwise_tile *t, int64_t from, int64_t to,
                               int64_t at, int64_t lane, const int rows, vec *sum)
{
    for (int64_t tap = from; tap < to; tap++) {
        const vec w = load(t->w + 16 * tap + lane);
        const float *in = t->in[tap] + at + lane;
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            sum[r] = MADD(load(in + r * t->advance), w, sum[r]);
    }
}

QNI_TEMPLATE void float_rows(const struct qni_depthwise_tile *t, int64_t v, const int rows)
{
    QNI_UNROLL
    for (int lane = 0; lane < 16; lane += LANES) {
        vec sum[MR];
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            sum[r] = splat(0.0f);
        add_products(t, 0, t->n_taps, v * t->advance, lane, rows, sum);
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            store(t->c + t->ldc * (v + r) + lane, sum[r]);
    }
}

static void float_tile(const struct qni_depthwise_tile *t)
{
    int64_t v = 0;
    for (; v + MR <= t->vectors; v += MR)
        float_rows(t, v, MR);
    for (; v < t->vectors; v++)
        float_rows(t, v, 1);
}

/* ---- images ---------------------------------------------------------------------------------- */

/* A tile is T outputs side by side, all channels of them. Each input is loaded once a row of taps
 * and serves all the outputs that read it. 8 sums hide the latency of the multiply-add. */
enum { TILE = 8 };

struct span {
    const float *x; /* of the first row of taps that is in the image: column 0 */
    const float *w;
    int64_t rows;     /* of taps, in the image */
    int64_t first;    /* column of tap 0 of output 0 */
    int64_t from, to; /* columns [from, to) behind it are in the image */
};

/* TAPS horizontal taps next to each other; no more than TAPS - 1 columns of either side lie
 * outside. */
QNI_TEMPLATE void near_sums(const struct qni_depthwise_image *m, const struct span *s, const int T,
                            const int TAPS, const int STRIDE, const bool is_edge, vec *sum)
{
    const int columns = (T - 1) * STRIDE + TAPS;
    const float *x = s->x, *w = s->w;
    const int64_t from = s->from, to = s->to;
    const uintptr_t move = (uintptr_t)m->x_column * sizeof *x;
    for (int64_t row = 0; row < s->rows; row++) {
        /* An integer: columns outside of the image have no address. */
        uintptr_t at = (uintptr_t)x + (uintptr_t)s->first * move;
        QNI_UNROLL
        for (int i = 0; i < columns; i++, at += move) {
            QNI_KEEP_WORD(at);
            const bool may_miss = i < TAPS - 1 || i > columns - TAPS;
            if (is_edge && may_miss && (i < from || i >= to))
                continue;
            vec in = load((const float *)at);
            QNI_KEEP(in);
            QNI_UNROLL
            for (int r = 0; r < T; r++) {
                const int tap = i - r * STRIDE;
                if (tap >= 0 && tap < TAPS)
                    sum[r] = MADD(in, load(w + tap * m->w_tap), sum[r]);
            }
        }
        x += m->dilation[0] * m->x_row;
        w += TAPS * m->w_tap;
    }
}

/* Any taps. */
QNI_TEMPLATE void far_sums(const struct qni_depthwise_image *m, const struct span *s, const int T,
                           const bool is_edge, vec *sum)
{
    const float *x = s->x, *w = s->w;
    const uintptr_t move = (uintptr_t)m->x_column * sizeof *x;
    const uintptr_t step = (uintptr_t)m->stride[1] * move;
    for (int64_t row = 0; row < s->rows; row++, x += m->dilation[0] * m->x_row)
        for (int64_t tap = 0; tap < m->taps[1]; tap++, w += m->w_tap) {
            const vec weight = load(w);
            int64_t i = tap * m->dilation[1];
            uintptr_t at = (uintptr_t)x + (uintptr_t)(s->first + i) * move;
            QNI_UNROLL
            for (int r = 0; r < T; r++, at += step, i += m->stride[1]) {
                QNI_KEEP_WORD(at);
                if (!is_edge || (i >= s->from && i < s->to))
                    sum[r] = MADD(load((const float *)at), weight, sum[r]);
            }
        }
}

QNI_TEMPLATE void store_as(uint8_t *y, qn_dtype type, vec v)
{
    if (type == QN_BF16)
        TO_BF16(y, v);
    else if (type == QN_F16)
        TO_F16(y, v);
    else
        memcpy(y, &v, sizeof v);
}

static inline int64_t y_bytes_of(const struct qni_depthwise_image *m)
{
    const bool is_code = m->y_type == QN_I8 || m->y_type == QN_U8;
    return is_code ? 1 : m->y_type == QN_F32 ? 4 : 2;
}

/* What follows exact or rounded sums, so that it changes nothing where it is not asked for. */
struct ends {
    vec scale, bias, zero, least, most;
};

QNI_TEMPLATE struct ends ends_of(const struct qni_depthwise_image *m, int64_t channel)
{
    const float infinity = qni_float_of(0x7f800000u);
    return (struct ends){
        .scale = m->scale != NULL ? load(m->scale + channel) : splat(1.0f),
        .bias = m->bias != NULL ? load(m->bias + channel) : splat(-0.0f),
        .zero = splat(m->is_relu ? 0.0f : -0.0f),
        .least = splat(m->is_relu ? 0.0f : -infinity),
        .most = splat(m->is_relu ? m->most : infinity),
    };
}

/* Scales and stores T sums; *bad becomes a NaN where one is not finite: times 0. */
QNI_TEMPLATE void finish_sums(const struct qni_depthwise_image *m, int64_t channel, const int T,
                              vec *sum, uint8_t *y, int64_t step, vec *bad)
{
    if (m->scale != NULL) {
        QNI_UNROLL
        for (int r = 0; r < T; r++)
            sum[r] *= load(m->scale + channel);
    }
    if (m->bias != NULL) {
        QNI_UNROLL
        for (int r = 0; r < T; r++)
            sum[r] += load(m->bias + channel);
    }
    vec total = sum[0];
    QNI_UNROLL
    for (int r = 1; r < T; r++)
        total += sum[r];
    *bad = MADD(total, splat(0.0f), *bad);
    if (m->is_relu) {
        /* A NaN is neither below 0 nor above; -0 becomes +0. */
        QNI_UNROLL
        for (int r = 0; r < T; r++)
            sum[r] = SMALLER(splat(m->most), LARGER(splat(0.0f), sum[r]) + splat(0.0f));
    }
    QNI_UNROLL
    for (int r = 0; r < T; r++)
        store_as(y + r * step, m->y_type, sum[r]);
}

/* The steps of int8-static after exact sums, n of them `step` bytes apart.
 * To bytes: saturate(rint(fl(v * y_inv)) + y_zero), a NaN counts as 0. What an activation bounds is
 * bounded after that product, whose rounding is monotonic, together with rint()'s argument; the
 * sign of a zero shows in no byte. */
QNI_NOINLINE static void finish_bytes(const struct qni_depthwise_image *m, int64_t channel,
                                      int64_t n, const vec *sums, uint8_t *y, int64_t step)
{
    const vec w_scale = load(m->w_scale + channel);
    const vec scale = m->scale != NULL ? load(m->scale + channel) : splat(1.0f);
    const vec bias = m->bias != NULL ? load(m->bias + channel) : splat(0.0f);
    const float most = m->is_relu ? m->most * m->y_inv : 0x1p21f;
    const vec lo = splat(m->is_relu ? 0.0f : -0x1p21f), hi = splat(most < 0x1p21f ? most : 0x1p21f);
    const ivec zero = (ivec){0} + (m->y_zero - 0x4b400000);
    for (int64_t i = 0; i < n; i++, y += step) {
        const vec v = (sums[i] * w_scale * m->x_scale * scale + bias) * m->y_inv;
        const vec number = choose(v == v, v, splat(0.0f));
        const vec bounded = SMALLER(hi, LARGER(lo, number));
        TO_BYTES(y, (ivec)(bounded + 0x1.8p23f) + zero, m->y_type == QN_I8);
    }
}

/* To floats, of all NaN the same one. Gives what walk_sums() does. */
QNI_NOINLINE static vec finish_floats(const struct qni_depthwise_image *m, int64_t channel,
                                      int64_t n, const vec *sums, uint8_t *y, int64_t step)
{
    const struct ends e = ends_of(m, channel);
    const vec nan = splat(qni_float_of(QNI_NAN_F32));
    vec total = splat(0.0f);
    for (int64_t i = 0; i < n; i++, y += step) {
        vec v = sums[i];
        if (m->w_scale != NULL)
            v = (v * load(m->w_scale + channel) + splat(0.0f)) * m->x_scale;
        v = v * e.scale + e.bias;
        total += v;
        v = choose(v == v, v, nan);
        store_as(y, m->y_type, SMALLER(e.most, LARGER(e.least, v) + e.zero));
    }
    return total;
}

/* Sums of integers are exact in floats, and so they stay until the bias is added in int32. */
QNI_NOINLINE static void add_sum_bias(const struct qni_depthwise_image *m, int64_t channel,
                                      int64_t n, vec *sums)
{
    uvec bias;
    memcpy(&bias, m->sum_bias + channel, sizeof bias);
    for (int64_t i = 0; i < n; i++) {
        const ivec sum = (ivec)((uvec)__builtin_convertvector(sums[i], ivec) + bias);
        sums[i] = __builtin_convertvector(sum, vec);
    }
}

static vec finish(const struct qni_depthwise_image *m, int64_t channel, int64_t n, vec *sums,
                  uint8_t *y)
{
    if (m->sum_bias != NULL)
        add_sum_bias(m, channel, n, sums);
    const int64_t bytes = y_bytes_of(m), step = m->y_column * bytes;
    y += channel * bytes;
    if (bytes > 1)
        return finish_floats(m, channel, n, sums, y, step);
    finish_bytes(m, channel, n, sums, y, step);
    return splat(0.0f);
}

/* The last vector reaches back: what it writes twice is the same. */
static inline int64_t channel_at(const struct qni_depthwise_image *m, int64_t i)
{
    return i + LANES <= m->n ? i : m->n - LANES;
}

/* TAPS 0: any. */
QNI_TEMPLATE void image_tile(const struct qni_depthwise_image *m, const struct span *whole,
                             const int T, const int TAPS, const int STRIDE, uint8_t *y, vec *bad)
{
    const int64_t reach = (T - 1) * m->stride[1] + (m->taps[1] - 1) * m->dilation[1];
    const bool is_edge = whole->from > 0 || whole->to <= reach;
    const int64_t bytes = y_bytes_of(m), step = m->y_column * bytes;
    for (int64_t i = 0; i < m->n; i += LANES) {
        const int64_t channel = channel_at(m, i);
        struct span s = *whole;
        vec sum[TILE];
        s.x += channel;
        s.w += channel;
        /* While the lines of y come into the first cache, products are made. */
        QNI_UNROLL
        for (int r = 0; r < T; r++) {
            QNI_WILL_WRITE(y + channel * bytes + r * step);
            sum[r] = splat(0.0f);
        }
        if (TAPS != 0 && is_edge)
            near_sums(m, &s, T, TAPS, STRIDE, true, sum);
        else if (TAPS != 0)
            near_sums(m, &s, T, TAPS, STRIDE, false, sum);
        else if (is_edge)
            far_sums(m, &s, T, true, sum);
        else
            far_sums(m, &s, T, false, sum);
        if (TAPS != 0 && m->w_scale == NULL) {
            finish_sums(m, channel, T, sum, y + channel * bytes, step, bad);
            continue;
        }
        vec kept[TILE]; /* the sums themselves stay in registers */
        QNI_UNROLL
        for (int r = 0; r < T; r++)
            kept[r] = sum[r];
        *bad += finish(m, channel, T, kept, y);
    }
}

/* A row of outputs in tiles of about equal length: 4 to 8, but in narrow images. */
QNI_TEMPLATE void image_row(const struct qni_depthwise_image *m, const struct span *row,
                            const int TAPS, const int STRIDE, uint8_t *y, vec *bad)
{
    const int64_t step = m->y_column * y_bytes_of(m);
    struct span s = *row;
    int64_t tiles = m->out[1] < TILE / 2 ? m->out[1] : (m->out[1] + TILE - 1) / TILE;
    for (int64_t j = 0, n; j < m->out[1]; j += n, y += n * step, tiles--) {
        n = (m->out[1] - j + tiles - 1) / tiles;
        s.first = m->first[1] + j * m->stride[1];
        s.from = s.first < 0 ? -s.first : 0;
        s.to = m->in[1] - s.first;
        switch (n) {
        case 8:
            image_tile(m, &s, 8, TAPS, STRIDE, y, bad);
            break;
        case 7:
            image_tile(m, &s, 7, TAPS, STRIDE, y, bad);
            break;
        case 6:
            image_tile(m, &s, 6, TAPS, STRIDE, y, bad);
            break;
        case 5:
            image_tile(m, &s, 5, TAPS, STRIDE, y, bad);
            break;
        case 4:
            image_tile(m, &s, 4, TAPS, STRIDE, y, bad);
            break;
        default:
            image_tile(m, &s, 1, TAPS, STRIDE, y, bad);
        }
    }
}

QNI_TEMPLATE vec image_rows(const struct qni_depthwise_image *m, const int TAPS, const int STRIDE)
{
    const int64_t step = m->dilation[0];
    vec bad = splat(0.0f);
    for (int64_t i = 0; i < m->out[0]; i++) {
        const int64_t y = m->first[0] + i * m->stride[0];
        const int64_t from = y >= 0 ? 0 : (step - 1 - y) / step;
        const int64_t inside = m->in[0] > y ? (m->in[0] - y + step - 1) / step : 0;
        const int64_t rows = (inside < m->taps[0] ? inside : m->taps[0]) - from;
        struct span s = {.x = m->x, .w = m->w};
        if (rows > 0) {
            s.x += (y + from * step) * m->x_row;
            s.w += from * m->taps[1] * m->w_tap;
            s.rows = rows;
        }
        image_row(m, &s, TAPS, STRIDE, (uint8_t *)m->y + i * m->y_row * y_bytes_of(m), &bad);
    }
    return bad;
}

/* ---- walks along rows ------------------------------------------------------------------------ */

/* Three rows of x, from the first column on that is read. A row outside of x is one of zeros that
 * does not move. */
struct walk {
    const float *x[3];
    int64_t move[3];
    int64_t from, inside; /* columns behind that of tap 0 of output 0 */
};

QNI_TEMPLATE void next_column(struct walk *l, int64_t i, vec x[3])
{
    const bool is_inside = (uint64_t)(i - l->from) < (uint64_t)l->inside;
    QNI_UNROLL
    for (int r = 0; r < 3; r++)
        x[r] = splat(0.0f);
    if (QNI_UNLIKELY(!is_inside))
        return;
    QNI_UNROLL
    for (int r = 0; r < 3; r++) {
        x[r] = load(l->x[r]);
        QNI_KEEP(x[r]);
        l->x[r] += l->move[r];
    }
}

/* The taps of a column, in sums of their own: what waits for the column before is one addition. */
QNI_TEMPLATE vec column_sum(const vec x[3], const vec *w)
{
    return MADD(x[2], w[6], MADD(x[1], w[3], x[0] * w[0]));
}

enum { LINE = 32 }; /* sums of a walk */

/* n sums of 3 x 3 taps next to each other, `step` floats apart: the weights stay in registers while
 * the columns go by. Gives all sums in one, which is no number if one of them is none. */
QNI_TEMPLATE vec walk_sums(const struct walk *from, const float *weights, int64_t w_tap,
                           const struct ends *e, int64_t n, float *y, int64_t step,
                           const int STRIDE)
{
    struct walk l = *from;
    vec w[9], x[3], part = splat(0.0f), begun = part, total = part;
    QNI_UNROLL
    for (int i = 0; i < 9; i++)
        w[i] = load(weights + i * w_tap);
    next_column(&l, 0, x);
    part = column_sum(x, w);
    next_column(&l, 1, x);
    part += column_sum(x, w + 1);
    if (STRIDE == 1)
        begun = column_sum(x, w);
    for (int64_t i = 0; i < n; i++, y += step) {
        next_column(&l, 2 + STRIDE * i, x);
        vec sum = part + column_sum(x, w + 2);
        if (STRIDE == 1) {
            part = begun + column_sum(x, w + 1);
            begun = column_sum(x, w);
        } else {
            part = column_sum(x, w);
            next_column(&l, 3 + STRIDE * i, x);
            part += column_sum(x, w + 1);
        }
        if (e != NULL)
            sum = sum * e->scale + e->bias;
        total += sum;
        if (e != NULL)
            sum = SMALLER(e->most, LARGER(e->least, sum) + e->zero);
        store(y, sum);
    }
    return total;
}

static const float no_row[LANES];

/* Rows of x that outputs of row i read, and columns from that of output j on. */
static struct walk walk_of(const struct qni_depthwise_image *m, int64_t i, int64_t j)
{
    const int64_t y = m->first[0] + i * m->stride[0], x = m->first[1] + j * m->stride[1];
    struct walk l = {.from = x < 0 ? -x : 0};
    l.inside = m->in[1] - x - l.from;
    for (int r = 0; r < 3; r++) {
        const int64_t row = y + r * m->dilation[0];
        const bool is_inside = row >= 0 && row < m->in[0];
        l.x[r] = is_inside ? m->x + row * m->x_row + (x + l.from) * m->x_column : no_row;
        l.move[r] = is_inside ? m->x_column : 0;
    }
    return l;
}

/* n outputs of a row. */
QNI_TEMPLATE void walk_row(const struct qni_depthwise_image *m, const struct walk *row, int64_t n,
                           const int STRIDE, uint8_t *y, vec *bad)
{
    const bool is_plain = m->scale == NULL && m->bias == NULL && !m->is_relu;
    for (int64_t i = 0; i < m->n; i += LANES) {
        const int64_t channel = channel_at(m, i);
        const float *const w = m->w + channel;
        struct walk l = *row;
        vec sums[LINE];
        for (int r = 0; r < 3; r++)
            l.x[r] += l.move[r] != 0 ? channel : 0;
        if (m->y_type != QN_F32 || m->w_scale != NULL) {
            walk_sums(&l, w, m->w_tap, NULL, n, (float *)sums, LANES, STRIDE);
            *bad += finish(m, channel, n, sums, y);
            continue;
        }
        float *const to = (float *)(void *)y + channel;
        if (is_plain) {
            *bad += walk_sums(&l, w, m->w_tap, NULL, n, to, m->y_column, STRIDE);
        } else {
            const struct ends e = ends_of(m, channel);
            *bad += walk_sums(&l, w, m->w_tap, &e, n, to, m->y_column, STRIDE);
        }
    }
}

/* 3 x 3 taps next to each other; no more than 2 columns of either side lie outside. */
QNI_TEMPLATE vec walk_rows(const struct qni_depthwise_image *m, const int STRIDE)
{
    const int64_t bytes = y_bytes_of(m);
    vec bad = splat(0.0f);
    for (int64_t i = 0; i < m->out[0]; i++)
        for (int64_t j = 0, n; j < m->out[1]; j += n) {
            const struct walk l = walk_of(m, i, j);
            n = m->out[1] - j < LINE ? m->out[1] - j : LINE;
            walk_row(m, &l, n, STRIDE, (uint8_t *)m->y + (i * m->y_row + j * m->y_column) * bytes,
                     &bad);
        }
    return bad;
}

/* A number or not, as walk_sums() tells. */
QNI_TEMPLATE vec image_sums(const struct qni_depthwise_image *m)
{
    const int64_t taps = m->taps[1], stride = m->stride[1];
    const int64_t behind = m->first[1] + (m->out[1] - 1) * stride + taps - m->in[1];
    const bool is_near = m->dilation[1] == 1 && m->first[1] > -taps && behind < taps;
    /* 16 lanes gain in images of the second cache alone: larger ones want all channels of a few
     * columns at a time. Portable code stays small. */
    if (LANES < 16 && HAS_FMA && is_near && taps == 3 && m->taps[0] == 3 && stride <= 2)
        return stride == 1 ? walk_rows(m, 1) : walk_rows(m, 2);
    if (LANES == 16 && is_near && taps == 3 && stride == 1)
        return image_rows(m, 3, 1);
    if (LANES == 16 && is_near && taps == 3 && stride == 2)
        return image_rows(m, 3, 2);
    /* Each form is 8 KB of code: 5 x 5 taps with a stride, or on fewer lanes, gain least. */
    if (LANES == 16 && is_near && taps == 5 && stride == 1)
        return image_rows(m, 5, 1);
    return image_rows(m, 0, 0);
}

static bool float_image(const struct qni_depthwise_image *m)
{
    const vec zero = image_sums(m) * splat(0.0f);
    const ivec is_good = zero == zero;
    bool all = true;
    for (int i = 0; i < LANES; i++)
        all = all && is_good[i] != 0;
    return all;
}

/* ---- int8 ------------------------------------------------------------------------------------ */

/* Exact sums of integers over a segment, as int32. Inputs are integers already. */
QNI_TEMPLATE void given_segment(const struct qni_depthwise_tile *t, int64_t s, int64_t v,
                                int64_t lane, const int rows, ivec *dot, ivec *sum)
{
    QNI_UNROLL
    for (int r = 0; r < rows; r++)
        dot[r] = sum[r] = (ivec){0};
    for (int64_t from = t->segments[s]; from < t->segments[s + 1]; from += QNI_EXACT_TAPS) {
        const int64_t left = t->segments[s + 1] - from;
        const int64_t to = from + (left < QNI_EXACT_TAPS ? left : QNI_EXACT_TAPS);
        vec part[MR];
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            part[r] = splat(0.0f);
        add_products(t, from, to, v * t->advance, lane, rows, part);
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            dot[r] += __builtin_convertvector(part[r], ivec);
        if (t->offset == NULL)
            continue;
        for (int64_t tap = from; tap < to; tap++)
            QNI_UNROLL
        for (int r = 0; r < rows; r++)
            sum[r] += __builtin_convertvector(load(t->in[tap] + (v + r) * t->advance + lane), ivec);
    }
}

QNI_TEMPLATE void given_rows(const struct qni_depthwise_tile *t, int64_t v, const int rows)
{
    QNI_UNROLL
    for (int lane = 0; lane < 16; lane += LANES) {
        vec acc[MR];
        ivec dot[MR], sum[MR];
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            acc[r] = splat(0.0f);
        for (int64_t s = 0; s < t->n_segments; s++) {
            given_segment(t, s, v, lane, rows, dot, sum);
            if (t->raw_i32) {
                QNI_UNROLL
                for (int r = 0; r < rows; r++)
                    acc[r] = (vec)((ivec)acc[r] + dot[r]);
                continue;
            }
            const vec scale = load(t->scale + 16 * s + lane);
            QNI_UNROLL
            for (int r = 0; r < rows; r++)
                acc[r] = step(scale, __builtin_convertvector(dot[r], vec), acc[r], s == 0);
            if (t->offset == NULL)
                continue;
            const vec offset = load(t->offset + 16 * s + lane);
            QNI_UNROLL
            for (int r = 0; r < rows; r++)
                acc[r] = FMA(offset, __builtin_convertvector(sum[r], vec), acc[r]);
        }
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            store(t->c + t->ldc * (v + r) + lane, acc[r]);
    }
}

static void given_tile(const struct qni_depthwise_tile *t)
{
    int64_t v = 0;
    for (; v + MR <= t->vectors; v += MR)
        given_rows(t, v, MR);
    for (; v < t->vectors; v++)
        given_rows(t, v, 1);
}

/* Inputs of a tap. Not plain: a factor, and taps that are zero everywhere. */
QNI_TEMPLATE vec input(const struct qni_depthwise_tile *t, int64_t tap, int64_t at,
                       const bool plain)
{
    if (plain)
        return load(t->in[tap] + at);
    const vec x = t->in[tap] != NULL ? load(t->in[tap] + at) : splat(0.0f);
    return t->prescale != NULL ? x * t->prescale[tap] : x;
}

static bool is_plain(const struct qni_depthwise_tile *t)
{
    bool plain = t->prescale == NULL && t->offset == NULL;
    for (int64_t tap = 0; tap < t->n_taps; tap++)
        plain = plain && t->in[tap] != NULL;
    return plain;
}

/* Vectors that are made together: the first one's inputs begin at element `at` of each tap. */
struct vectors {
    const struct qni_depthwise_tile *t;
    int64_t at, lane;
    int rows;
    bool plain, symmetric;
};

QNI_TEMPLATE vec input_of(const struct vectors *g, int64_t tap, int r)
{
    return input(g->t, tap, g->at + r * g->t->advance, g->plain);
}

QNI_TEMPLATE void symmetric_quantizers(const struct vectors *g, int64_t from, int64_t to,
                                       struct quantizer *q)
{
    const int rows = g->rows;
    ivec most[MR];
    QNI_UNROLL
    for (int r = 0; r < rows; r++)
        most[r] = (ivec){0};
    for (int64_t tap = from; tap < to; tap++)
        QNI_UNROLL
    for (int r = 0; r < rows; r++)
        most[r] = LARGER_INT(most[r], size_bits(input_of(g, tap, r)));
    QNI_UNROLL
    for (int r = 0; r < rows; r++)
        q[r] = symmetric_quantizer(most[r]);
}

QNI_TEMPLATE void asymmetric_quantizers(const struct vectors *g, int64_t from, int64_t to,
                                        struct quantizer *q)
{
    const int rows = g->rows;
    vec lo[MR], hi[MR];
    ivec most[MR];
    QNI_UNROLL
    for (int r = 0; r < rows; r++) {
        lo[r] = hi[r] = input_of(g, from, r);
        most[r] = size_bits(lo[r]);
    }
    for (int64_t tap = from + 1; tap < to; tap++)
        QNI_UNROLL
    for (int r = 0; r < rows; r++) {
        const vec x = input_of(g, tap, r);
        most[r] = LARGER_INT(most[r], size_bits(x));
        lo[r] = SMALLER(x, lo[r]);
        hi[r] = LARGER(x, hi[r]);
    }
    QNI_UNROLL
    for (int r = 0; r < rows; r++)
        q[r] = asymmetric_quantizer(lo[r], hi[r], most[r]);
}

/* Exact sums over the taps of a segment of code * value, and of the codes if there are offsets. */
QNI_TEMPLATE void coded_sums(const struct vectors *g, const struct quantizer *q, int64_t s,
                             vec *dot, vec *sum)
{
    const struct qni_depthwise_tile *const t = g->t;
    const int rows = g->rows;
    ivec dots[MR], sums[MR];
    QNI_UNROLL
    for (int r = 0; r < rows; r++)
        dots[r] = sums[r] = (ivec){0};
    for (int64_t from = t->segments[s]; from < t->segments[s + 1]; from += QNI_EXACT_TAPS) {
        const int64_t left = t->segments[s + 1] - from;
        const int64_t to = from + (left < QNI_EXACT_TAPS ? left : QNI_EXACT_TAPS);
        vec d[MR], c[MR];
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            d[r] = c[r] = splat(0.0f);
        for (int64_t tap = from; tap < to; tap++) {
            const vec w = load(t->w + 16 * tap + g->lane);
            QNI_UNROLL
            for (int r = 0; r < rows; r++) {
                const vec code = code_of(&q[r], input_of(g, tap, r), g->symmetric);
                d[r] = MADD(code, w, d[r]);
                if (!g->plain)
                    c[r] += code;
            }
        }
        QNI_UNROLL
        for (int r = 0; r < rows; r++) {
            const vec zero = splat(0.0f);
            dots[r] += __builtin_convertvector(choose(q[r].bad, zero, d[r]), ivec);
            sums[r] += __builtin_convertvector(choose(q[r].bad, zero, c[r]), ivec);
        }
    }
    QNI_UNROLL
    for (int r = 0; r < rows; r++) {
        dot[r] = __builtin_convertvector(dots[r], vec);
        sum[r] = __builtin_convertvector(sums[r], vec);
    }
}

/* Vectors [v, v + rows) of 16 outputs. */
QNI_TEMPLATE void row_vectors(const struct qni_depthwise_tile *t, int64_t v, const int rows,
                              const bool plain)
{
    for (int64_t lane = 0; lane < 16; lane += LANES) {
        const struct vectors g = {t, v * t->advance + lane, lane, rows, plain, true};
        struct quantizer q[MR];
        vec acc[MR], dot[MR], sum[MR];
        symmetric_quantizers(&g, 0, t->n_taps, q);
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            acc[r] = splat(0.0f);
        for (int64_t s = 0; s < t->n_segments; s++) {
            coded_sums(&g, q, s, dot, sum);
            const vec scale = load(t->scale + 16 * s + lane);
            QNI_UNROLL
            for (int r = 0; r < rows; r++) {
                acc[r] = step(scale, dot[r], acc[r], s == 0);
                if (!plain && t->offset != NULL)
                    acc[r] = FMA(load(t->offset + 16 * s + lane), sum[r], acc[r]);
            }
        }
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            store(t->c + t->ldc * (v + r) + lane, acc[r] * q[r].scale);
    }
}

QNI_TEMPLATE void block_segment(const struct vectors *g, int64_t s, vec *acc)
{
    const struct qni_depthwise_tile *const t = g->t;
    const int rows = g->rows;
    const int64_t from = t->segments[s], to = t->segments[s + 1];
    const vec scale = load(t->scale + 16 * s + g->lane);
    struct quantizer q[MR];
    vec dot[MR], sum[MR];
    if (g->symmetric)
        symmetric_quantizers(g, from, to, q);
    else
        asymmetric_quantizers(g, from, to, q);
    coded_sums(g, q, s, dot, sum);
    QNI_UNROLL
    for (int r = 0; r < rows; r++) {
        vec x = q[r].scale * dot[r];
        if (!g->symmetric)
            x = FMA(q[r].scale, dot[r], q[r].offset * load(t->sums + 16 * s + g->lane));
        acc[r] = FMA(scale, x, acc[r]);
        if (!g->plain && t->offset != NULL) {
            const vec total = FMA(q[r].scale, sum[r], q[r].offset * (float)(to - from));
            acc[r] = FMA(load(t->offset + 16 * s + g->lane), total, acc[r]);
        }
    }
}

QNI_TEMPLATE void block_vectors(const struct qni_depthwise_tile *t, int64_t v, const int rows,
                                const bool plain, const bool symmetric)
{
    for (int64_t lane = 0; lane < 16; lane += LANES) {
        const struct vectors g = {t, v * t->advance + lane, lane, rows, plain, symmetric};
        vec acc[MR];
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            acc[r] = splat(0.0f);
        for (int64_t s = 0; s < t->n_segments; s++)
            block_segment(&g, s, acc);
        QNI_UNROLL
        for (int r = 0; r < rows; r++)
            store(t->c + t->ldc * (v + r) + lane, acc[r]);
    }
}

/* Vectors of a call that share a load of weights and hide the latency of a division. */
enum { CODED = MR < 4 ? MR : 4 };

static void row_tile(const struct qni_depthwise_tile *t)
{
    const bool plain = is_plain(t);
    int64_t v = 0;
    for (; plain && v + CODED <= t->vectors; v += CODED)
        row_vectors(t, v, CODED, true);
    for (; v < t->vectors; v++)
        row_vectors(t, v, 1, false);
}

QNI_TEMPLATE void block_rows(const struct qni_depthwise_tile *t, const bool symmetric)
{
    const bool plain = is_plain(t);
    int64_t v = 0;
    for (; plain && v + CODED <= t->vectors; v += CODED)
        block_vectors(t, v, CODED, true, symmetric);
    for (; v < t->vectors; v++)
        block_vectors(t, v, 1, false, symmetric);
}

static void block_tile(const struct qni_depthwise_tile *t)
{
    if (t->symmetric)
        block_rows(t, true);
    else
        block_rows(t, false);
}

#undef LANES
#undef MR
#undef MADD
#undef FMA
#undef HAS_FMA
#undef SMALLER
#undef LARGER
#undef LARGER_INT
#undef TO_F16
#undef TO_BF16
#undef TO_BYTES
