/* SPDX-License-Identifier: Apache-2.0 */
/* The patch gather: patches.h has the picture. Outputs are handled in segments that stay in one
 * row of y, so that the vertical taps are decided once for all of them; a segment is then filled
 * tap row by tap row. */
#include "patches.h"

#include <string.h>

#include "../../base/compiler.h"

/* Columns [first, ...) of one row of x with the channels next to each other. */
struct line {
    const uint8_t *at; /* channel 0 of column first */
    int64_t first;
    size_t stride; /* bytes from column to column */
};

struct segment {
    int64_t image, jy, jx, count;
};

static bool is_flat(const struct qni_patches *p)
{
    for (int32_t i = 0; i < 2; i++) {
        const struct qni_axis *const a = &p->axis[i];
        if (a->taps != 1 || a->transposed || qni_axis_advance(a) != 1 || a->pad != 0 ||
            p->phase[i].count != a->in)
            return false;
    }
    return p->axis[0].in == 1 || p->xs[2] == p->axis[1].in * p->xs[3];
}

struct qni_patches qni_patches_of(const struct qni_op *op, const struct qni_rows *rows, int64_t py,
                                  int64_t px, bool live)
{
    struct qni_patches p;
    p.rows = rows;
    p.x = op->x.data;
    p.element = qn_dtype_bytes(op->x.dtype);
    p.pad = op->strategy == QN_STRATEGY_INT8_STATIC ? (uint8_t)op->quant.x_zero : 0;
    p.channels = op->conv.ci;
    memcpy(p.xs, op->conv.xs, sizeof p.xs);
    for (int32_t i = 0; i < 2; i++) {
        p.axis[i] = qni_conv_axis(op, i);
        p.phase[i] = qni_axis_phase(&p.axis[i], i == 0 ? py : px);
        p.taps[i] =
            live ? qni_axis_live_taps(&p.axis[i], &p.phase[i]) : qni_axis_all_taps(&p.axis[i]);
    }
    p.is_flat = is_flat(&p);
    return p;
}

static inline const uint8_t *column(const struct line *line, int64_t i)
{
    return line->at + (size_t)(i - line->first) * line->stride;
}

/* Are the channels of a pixel far apart? */
static inline bool is_planar(const struct qni_patches *p)
{
    return p->xs[1] != 1 && p->channels > 1;
}

/* Columns of a row of x that the outputs of a segment reach. */
static int64_t reached_columns(const struct qni_patches *p)
{
    const struct qni_axis *a = &p->axis[1];
    const int64_t outputs = qni_min(QNI_SEGMENT, p->phase[1].count);
    const int64_t reach = (int64_t)(a->taps - 1) * a->dilation + 1;
    return qni_min(a->in, (outputs - 1) * qni_axis_advance(a) + reach);
}

/* A line does not pay where tap after tap is no more work: one tap, or taps so far apart that
 * most of what lies between them is not read. */
static bool has_line(const struct qni_patches *p)
{
    const int64_t taps = p->taps[1].count;
    return is_planar(p) && taps > 1 &&
           reached_columns(p) <= qni_min(QNI_SEGMENT, p->phase[1].count) * taps;
}

size_t qni_patches_line_bytes(const struct qni_patches *p)
{
    const int64_t taps = p->axis[1].taps;
    const int64_t outputs = qni_min(QNI_SEGMENT, p->phase[1].count);
    if (taps == 1 || outputs == 0)
        return 0;
    const int64_t columns = qni_min(reached_columns(p), outputs * taps);
    return qni_round_up((size_t)columns * (size_t)p->channels * p->element, 64);
}

/* A memcpy whose length the compiler knows for the lengths that small channel counts give: a call
 * costs more than such a copy. */
static inline void copy(uint8_t *restrict dst, const uint8_t *restrict src, size_t bytes)
{
    switch (bytes) {
    case 4:
        memcpy(dst, src, 4);
        break;
    case 8:
        memcpy(dst, src, 8);
        break;
    case 16:
        memcpy(dst, src, 16);
        break;
    case 32:
        memcpy(dst, src, 32);
        break;
    case 64:
        memcpy(dst, src, 64);
        break;
    default:
        memcpy(dst, src, bytes);
    }
}

/* dst[i * ld + c * element] = plane c, pixel i. Tiles of 16 x 16 keep both sides in the first
 * cache. */
QNI_TEMPLATE void transpose(uint8_t *dst, size_t ld, const uint8_t *src, size_t plane, size_t pixel,
                            int64_t pixels, int64_t channels, const size_t element)
{
    for (int64_t i0 = 0; i0 < pixels; i0 += 16)
        for (int64_t c0 = 0; c0 < channels; c0 += 16) {
            const int64_t i1 = qni_min(i0 + 16, pixels), c1 = qni_min(c0 + 16, channels);
            for (int64_t i = i0; i < i1; i++)
                for (int64_t c = c0; c < c1; c++)
                    memcpy(dst + (size_t)i * ld + (size_t)c * element,
                           src + (size_t)c * plane + (size_t)i * pixel, element);
        }
}

/* pixels inputs from column on, `advance` apart, of the segment's channels: to dst, ld bytes
 * apart. */
static void gather_columns(const struct qni_patches *p, const uint8_t *row, int64_t column,
                           int64_t advance, int64_t pixels, uint8_t *dst, size_t ld)
{
    const size_t plane = (size_t)p->xs[1] * p->element;
    const size_t pixel = (size_t)(advance * p->xs[3]) * p->element;
    const uint8_t *src = row + (size_t)(column * p->xs[3]) * p->element;
    if (pixel == p->element)
        p->rows->turn(dst, ld, src, plane, pixels, p->channels, p->element);
    else if (p->element == 4)
        transpose(dst, ld, src, plane, pixel, pixels, p->channels, 4);
    else if (p->element == 2)
        transpose(dst, ld, src, plane, pixel, pixels, p->channels, 2);
    else
        transpose(dst, ld, src, plane, pixel, pixels, p->channels, 1);
}

static void fill(const struct qni_patches *p, uint8_t *dst, size_t ld, int64_t rows, size_t bytes)
{
    for (int64_t i = 0; i < rows; i++)
        memset(dst + (size_t)i * ld, p->pad, bytes);
}

/* One tap of every output of a segment, straight from planes. */
static void gather_tap_nchw(const struct qni_patches *p, const uint8_t *row, int64_t base,
                            int64_t count, uint8_t *dst, size_t ld)
{
    const int64_t advance = qni_axis_advance(&p->axis[1]);
    const size_t bytes = (size_t)p->channels * p->element;
    int64_t from, to;
    qni_axis_inside(&p->axis[1], base, count, &from, &to);
    fill(p, dst, ld, from, bytes);
    if (to > from)
        gather_columns(p, row, base + from * advance, advance, to - from, dst + (size_t)from * ld,
                       ld);
    fill(p, dst + (size_t)to * ld, ld, count - to, bytes);
}

/* A row of taps that is one stretch of memory, but for what lies outside. base: input of the
 * first tap. */
static void copy_stretches(const struct qni_patches *p, const struct line *line, int64_t base,
                           int64_t count, uint8_t *dst, size_t ld)
{
    const int64_t taps = p->taps[1].count, advance = qni_axis_advance(&p->axis[1]);
    const size_t bytes = (size_t)p->channels * p->element;
    for (int64_t j = 0; j < count; j++, base += advance, dst += ld) {
        const int64_t to = qni_max(0, qni_min(taps, p->axis[1].in - base));
        const int64_t from = qni_min(to, qni_max(0, -base));
        if (QNI_UNLIKELY(to - from < taps))
            memset(dst, p->pad, (size_t)taps * bytes);
        if (to > from)
            copy(dst + (size_t)from * bytes, column(line, base + from),
                 (size_t)(to - from) * bytes);
    }
}

/* One tap of every output of a segment. */
static void copy_tap(const struct qni_patches *p, const struct line *line, int64_t base,
                     int64_t count, uint8_t *dst, size_t ld)
{
    const size_t bytes = (size_t)p->channels * p->element;
    const int64_t advance = qni_axis_advance(&p->axis[1]);
    int64_t from, to;
    qni_axis_inside(&p->axis[1], base, count, &from, &to);
    fill(p, dst, ld, from, bytes);
    for (int64_t j = from; j < to; j++)
        copy(dst + (size_t)j * ld, column(line, base + j * advance), bytes);
    fill(p, dst + (size_t)to * ld, ld, count - to, bytes);
}

/* Transpose the columns that the outputs of a segment reach, once for all horizontal taps. */
static struct line make_line(const struct qni_patches *p, const uint8_t *row,
                             const struct segment *s, void *buffer)
{
    const struct qni_axis *a = &p->axis[1];
    const size_t bytes = (size_t)p->channels * p->element;
    int64_t lo = a->in, hi = 0;
    for (int32_t i = 0; i < p->taps[1].count; i++) {
        int64_t base;
        if (!qni_axis_base(a, &p->phase[1], p->taps[1].first + i * p->taps[1].step, &base))
            continue;
        base += s->jx * qni_axis_advance(a);
        lo = qni_min(lo, base);
        hi = qni_max(hi, base + (s->count - 1) * qni_axis_advance(a) + 1);
    }
    lo = qni_max(lo, 0);
    hi = qni_min(hi, a->in);
    if (hi > lo)
        gather_columns(p, row, lo, 1, hi - lo, buffer, bytes);
    const struct line line = {buffer, lo, bytes};
    return line;
}

/* All horizontal taps of one vertical tap. row: the row of x, group's channel 0. */
static void gather_row(const struct qni_patches *p, const uint8_t *row, const struct segment *s,
                       uint8_t *dst, size_t ld, void *buffer)
{
    const struct qni_axis *a = &p->axis[1];
    const struct qni_taps *taps = &p->taps[1];
    const size_t bytes = (size_t)p->channels * p->element;
    const int64_t moved = s->jx * qni_axis_advance(a);
    const bool planar = is_planar(p), lined = has_line(p);
    struct line line = {row, 0, (size_t)p->xs[3] * p->element};
    if (lined)
        line = make_line(p, row, s, buffer);
    if (planar == lined && !a->transposed && a->dilation == 1 && line.stride == bytes) {
        copy_stretches(p, &line, moved - a->pad, s->count, dst, ld);
        return;
    }
    int64_t base;
    for (int32_t i = 0; i < taps->count; i++, dst += bytes) {
        if (!qni_axis_base(a, &p->phase[1], taps->first + i * taps->step, &base))
            fill(p, dst, ld, s->count, bytes);
        else if (planar && !lined)
            gather_tap_nchw(p, row, base + moved, s->count, dst, ld);
        else
            copy_tap(p, &line, base + moved, s->count, dst, ld);
    }
}

void qni_patches_gather(const struct qni_patches *p, int64_t row, int64_t rows, int64_t channel,
                        uint8_t *dst, size_t ld, void *line)
{
    const struct qni_axis *a = &p->axis[0];
    const int64_t nx = p->phase[1].count;
    const size_t bytes = (size_t)p->taps[1].count * (size_t)p->channels * p->element;
    while (rows > 0) {
        if (p->is_flat && is_planar(p)) {
            const int64_t pixels = qni_patches_per_image(p), first = row % pixels;
            const int64_t n = qni_min(rows, pixels - first);
            const int64_t at = row / pixels * p->xs[0] + channel * p->xs[1];
            gather_columns(p, p->x + (size_t)at * p->element, first, 1, n, dst, ld);
            dst += (size_t)n * ld;
            row += n;
            rows -= n;
            continue;
        }
        const struct segment s = {row / qni_patches_per_image(p),
                                  row % qni_patches_per_image(p) / nx, row % nx,
                                  qni_min(qni_min(rows, QNI_SEGMENT), nx - row % nx)};
        uint8_t *out = dst;
        for (int32_t i = 0; i < p->taps[0].count; i++, out += bytes) {
            int64_t iy;
            const bool live =
                qni_axis_base(a, &p->phase[0], p->taps[0].first + i * p->taps[0].step, &iy);
            iy += s.jy * qni_axis_advance(a);
            if (!live || iy < 0 || iy >= a->in) {
                fill(p, out, ld, s.count, bytes);
                continue;
            }
            const int64_t at = s.image * p->xs[0] + channel * p->xs[1] + iy * p->xs[2];
            gather_row(p, p->x + (size_t)at * p->element, &s, out, ld, line);
        }
        dst += (size_t)s.count * ld;
        row += s.count;
        rows -= s.count;
    }
}
