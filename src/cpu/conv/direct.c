/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of direct convolutions: int8 images, given scales, weights with one scale an output.
 * The rows of the patch matrix are never made; a kernel (direct_kernel.h) reads each tap where it
 * lies, because every tap is the same distance from the first for all outputs of a band.
 * Five ways to have that:
 *
 *     in place   1 x 1, stride 1, no padding, NHWC: rows are the pixels of x
 *     planes     a band of x is copied once, apart by the phase of the stride, with its padding:
 *
 *                plane (py, px) [row j][image b][column i] = x[b, s j + py - pad, s i + px - pad]
 *                tap (ky, kx): plane (ky d mod s, kx d mod s), moved by ky d / s rows and
 *                              kx d / s columns
 *
 *                so output (j, b, i) finds its inputs at (j * images + b) * columns + i, plus what
 *                depends on the tap alone. Padding at the end of a line is that at the begin of the
 *                next one. Planes have some columns more than there are outputs all the same; those
 *                rows are computed in vain, unless that is more than a copy for every kx costs,
 *                which needs none
 *     lines      channels that are not whole steps of 64: one plane, its lines as they lie in x.
 *                Outputs are `stride` pixels apart, taps that are neighbours are one run of bytes,
 *                and its last step reaches into what follows, times weights that are zeros. So it
 *                is in place, too, where only the last rows of x are copied
 *     columns    few channels: the rows of x that a line of outputs reaches, interleaved pixel by
 *                pixel (direct_columns.h)
 *     patches    rows gathered as in patches.h: whatever else there is
 *
 * A thread takes a band (outputs whose inputs stay in its second cache) and all channels, or all
 * outputs and a range of channels, whichever should take less time: few outputs make poor tiles,
 * and large weights should be read once. An item is a band of outputs and a range of channels;
 * threads take items from a counter. Nothing here allocates. */
#include <string.h>

#include "../../base/half.h"
#include "../layouts.h"
#include "../rows/epilogue.h"
#include "../rows/rows.h"
#include "direct_columns.h"
#include "direct_runs.h"
#include "direct_shape.h"
#include "driver.h"

/* ---- a run ----------------------------------------------------------------------------------- */

struct direct_run {
    const struct qni_conv_run *conv;
    const struct qni_op *op;
    const struct qni_conv_kernel *kernel;
    const struct qni_patches *patches;
    struct qni_direct_shape shape;
    struct qni_epilogue epilogue; /* but for the bias of int32 that the kernel takes away */
    struct qni_part part;
    int32_t kind;
    int32_t has_bias;        /* in f32, and the kernel's to add */
    const int32_t *sum_bias; /* in int32, and taken away with the zero points; else NULL */
    bool turns;              /* bytes, and y lies in planes */
    uint8_t flip;            /* of the bytes of x: 0x80 for u8 */
};

/* Outputs whose inputs a thread has at hand. */
struct band {
    int64_t image, n_images, line, n_lines; /* planes */
    int64_t row;                            /* of the product, else */
    int64_t rows;                           /* of a, unused columns included */
    const int8_t *a;
    int64_t tail; /* rows at the end that lie in scratch instead */
};

/* Rows of a band that lie evenly: the tail, or all before it. */
struct stretch {
    const int8_t *a;
    int64_t pixel, row, rows;
};

static struct band band_at(const struct direct_run *r, int64_t index)
{
    const struct qni_direct_shape *s = &r->shape;
    struct band b;
    memset(&b, 0, sizeof b);
    if (!qni_has_lines(s)) {
        b.row = index * s->band_rows;
        b.rows = qni_min(s->band_rows, r->op->m - b.row);
        return b;
    }
    b.image = index / s->bands_per_image * s->band_images;
    b.n_images = qni_min(s->band_images, r->op->conv.batch - b.image);
    b.line = index % s->bands_per_image * s->band_lines;
    b.n_lines = qni_min(s->band_lines, r->op->conv.oh - b.line);
    const int64_t unused = qni_unused_rows(r->op, s);
    b.rows = b.n_lines * b.n_images * (r->op->conv.ow + unused) - unused;
    return b;
}

/* ---- rows of x ------------------------------------------------------------------------------- */

/* What follows the channels of n pixels. */
static void clear_tails(uint8_t *to, int64_t n, int64_t channels, int64_t pixel)
{
    for (; n > 0; n--, to += pixel)
        memset(to + channels, 0, (size_t)(pixel - channels));
}

/* memset, in line where it is short. */
static void fill(uint8_t *to, int value, size_t n)
{
    enum { SHORT = 256 };
    for (; n >= 32 && n <= SHORT; n -= 32, to += 32)
        memset(to, value, 32);
    if (n > 0)
        memset(to, value, n);
}

/* n pixels, each `step` bytes behind the one before. */
static void copy_pixels(const struct direct_run *r, int64_t channels, const uint8_t *x,
                        int64_t step, int64_t n, uint8_t *at)
{
    const struct qni_direct_shape *s = &r->shape;
    const struct qni_conv *c = &r->op->conv;
    const int64_t pixel = s->run != 0 ? c->ci : s->pixel;
    if (c->xs[1] == 1) {
        const bool whole = step == pixel && channels == pixel;
        const struct qni_direct_spread spread = {
            .from = x,
            .step = (size_t)step,
            .n = whole ? 1 : n,
            .channels = whole ? n * pixel : channels,
            .pixel = whole ? n * pixel : pixel,
            .flip = r->flip,
            .to = at,
        };
        r->kernel->helpers.direct->images->spread(&spread);
        return;
    }
    const size_t n_bytes = (size_t)(n * pixel);
    if (channels < pixel)
        memset(at, 0, n_bytes);
    r->patches->rows->turn(at, (size_t)pixel, x, (size_t)c->xs[1], n, channels, 1);
    for (size_t i = 0; r->flip != 0 && i < n_bytes; i++)
        at[i] ^= r->flip;
}

/* One line of a plane from one row of x (NULL: outside). first: the column of element 0. */
static void copy_line(const struct direct_run *r, int64_t channels, const uint8_t *row,
                      int64_t first, uint8_t *to)
{
    const struct qni_direct_shape *s = &r->shape;
    const struct qni_conv *c = &r->op->conv;
    const int64_t stride = s->axis[1].stride, pixel = s->run != 0 ? c->ci : s->pixel;
    const int64_t n = s->columns * s->pixel / pixel;
    const int pad = (uint8_t)(r->patches->pad ^ r->flip);
    /* Elements [from, end) lie in x. */
    const int64_t from = qni_min(n, first >= 0 ? 0 : qni_ceil_div(-first, stride));
    const int64_t end = row == NULL || first >= c->w
                            ? from
                            : qni_max(from, qni_min(n, (c->w - first - 1) / stride + 1));
    fill(to, pad, (size_t)(from * pixel));
    if (end > from)
        copy_pixels(r, channels, row + (first + from * stride) * c->xs[3], stride * c->xs[3],
                    end - from, to + from * pixel);
    fill(to + end * pixel, pad, (size_t)((n - end) * pixel));
    if (s->is_padded && (pad != 0 || r->flip != 0))
        clear_tails(to, n, channels, pixel);
}

/* Channels [channel, channel + channels). */
static void copy_planes(const struct direct_run *r, int64_t channel, int64_t channels,
                        const struct band *b, uint8_t *to)
{
    const struct qni_direct_shape *s = &r->shape;
    const struct qni_conv *c = &r->op->conv;
    const size_t behind = (size_t)(s->shared * s->pixel);
    for (int32_t py = 0; py < s->axis[0].n_planes; py++)
        for (int32_t px = 0; px < s->axis[1].n_planes; px++) {
            for (int64_t j = 0; j < b->n_lines + s->axis[0].extra; j++)
                for (int64_t i = 0; i < b->n_images; i++, to += s->columns * s->pixel) {
                    const int64_t y = (b->line + j) * s->axis[0].stride + s->axis[0].first[py];
                    const uint8_t *row = NULL;
                    if (y >= 0 && y < c->h)
                        row = r->patches->x + (b->image + i) * c->xs[0] + y * c->xs[2] +
                              channel * c->xs[1];
                    copy_line(r, channels, row, s->axis[1].first[px], to);
                }
            fill(to, (uint8_t)(r->patches->pad ^ r->flip), behind);
            if (s->is_padded)
                clear_tails(to, s->shared, channels, s->pixel);
            to += behind;
        }
}

/* The planes of a slab, or of each group of it that lies apart. */
static void copy_groups(const struct direct_run *r, const struct qni_slab *slab,
                        const struct band *b, uint8_t *to)
{
    const bool apart = r->shape.slabs.is_apart;
    const int64_t n = apart ? slab->groups : 1, channels = slab->channels / n;
    for (int64_t i = 0; i < n; i++) {
        copy_planes(r, slab->channel + i * channels, channels, b, to);
        to += qni_group_bytes(&r->shape, b->n_images, b->n_lines);
    }
}

/* Where each tap begins in the planes of a band. */
static void place_taps(const struct direct_run *r, const struct band *b, int64_t *taps)
{
    const struct qni_direct_shape *s = &r->shape;
    const int64_t plane = (int64_t)qni_plane_bytes(s, b->n_images, b->n_lines);
    const struct qni_conv *c = &r->op->conv;
    const int64_t steps = s->slabs.is_apart ? s->run * c->ci / s->step_bytes : 1;
    for (int32_t ky = 0; ky < c->kh; ky++)
        for (int32_t kx = 0; kx < c->kw; kx += s->run != 0 ? s->run : 1) {
            const int64_t which =
                (int64_t)s->axis[0].plane[ky] * s->axis[1].n_planes + s->axis[1].plane[kx];
            const int64_t moved =
                s->axis[0].moved[ky] * b->n_images * s->columns + s->axis[1].moved[kx];
            const int64_t along = s->run != 0 ? (int64_t)kx * c->dilation[1] * c->ci : 0;
            for (int64_t i = 0; i < steps; i++)
                *taps++ = which * plane + moved * s->pixel + along + i * s->step_bytes;
        }
}

/* Copies the last rows of x, if a step of theirs reaches behind it, with zeros there instead. */
static void copy_tail(const struct direct_run *r, const struct qni_slab *slab, struct band *b,
                      int8_t *to)
{
    const struct qni_direct_shape *s = &r->shape;
    const int64_t step = s->steps * QNI_DIRECT_STEP, ci = slab->channels;
    if (!s->is_ragged || b->row + b->rows < r->op->m)
        return;
    /* Before it whole blocks; behind them at least 16 rows, so more bytes than a step reaches. */
    b->tail = b->rows < QNI_DIRECT_TAIL ? b->rows : 16 + (b->rows - 16) % 32;
    const int8_t *from = b->a + (b->rows - b->tail) * s->pixel;
    for (int64_t i = 0; i < b->tail; i++, from += s->pixel, to += step) {
        memcpy(to, from, (size_t)ci);
        memset(to + ci, 0, (size_t)(step - ci));
    }
}

static struct stretch stretch_at(const struct direct_run *r, const struct band *b,
                                 const struct qni_direct_scratch *scratch, int which)
{
    const struct stretch body = {b->a, r->shape.pixel, 0, b->rows - b->tail};
    const struct stretch tail = {scratch->a, r->shape.steps * QNI_DIRECT_STEP, body.rows, b->tail};
    return which == 0 ? body : tail;
}

/* In place: where each tap lies, from the first one on. */
static void place_inside(const struct direct_run *r, int64_t *taps)
{
    const struct qni_conv *c = &r->op->conv;
    for (int32_t ky = 0; ky < c->kh; ky++)
        for (int32_t kx = 0; kx < c->kw; kx++)
            *taps++ = ky * c->dilation[0] * c->xs[2] + kx * c->dilation[1] * c->xs[3];
}

static void bring_rows(const struct direct_run *r, const struct qni_slab *slab, struct band *b,
                       const struct qni_direct_scratch *scratch, int64_t *taps)
{
    const struct qni_direct_shape *s = &r->shape;
    taps[0] = 0;
    b->a = scratch->a;
    if (s->rows_are == QNI_ROWS_OF_COLUMNS) {
        const struct qni_columns_to to = {(uint8_t *)scratch->a, scratch->line,
                                          r->kernel->helpers.direct->images, &s->image_columns};
        qni_columns_gather(r->op, r->flip, b->image, b->line, b->n_lines, &to);
        for (int64_t t = 0; t < s->n_taps; t++)
            taps[t] = t * s->image_columns.per_unit / r->op->conv.stride[1] * s->pixel;
        return;
    }
    if (s->rows_are == QNI_ROWS_IN_PLACE && s->gathers) {
        b->a = (const int8_t *)r->op->x.data + slab->channel;
        place_inside(r, taps);
    } else if (s->rows_are == QNI_ROWS_IN_PLACE) {
        b->a = (const int8_t *)r->op->x.data + b->row * s->pixel + slab->channel;
        copy_tail(r, slab, b, scratch->a);
    } else if (s->rows_are == QNI_ROWS_IN_PLANES) {
        copy_groups(r, slab, b, (uint8_t *)scratch->a);
        place_taps(r, b, taps);
    } else if (s->has_runs) {
        const struct qni_runs_to to = {(uint8_t *)scratch->a, s->pixel, scratch->line,
                                       r->kernel->helpers.direct->images->runs};
        qni_runs_gather(r->op, r->flip, b->row, b->rows, &to);
    } else {
        uint8_t *const a = (uint8_t *)scratch->a;
        qni_patches_gather(r->patches, b->row, b->rows, 0, a, (size_t)s->pixel, scratch->line);
        for (int64_t i = 0; r->flip != 0 && i < b->rows * s->pixel; i++)
            a[i] ^= r->flip;
    }
}

/* 128 times the sum of what each row of a band meets. */
static void sum_rows(const struct direct_run *r, const struct band *b, const int64_t *taps,
                     const struct qni_direct_scratch *scratch)
{
    const struct qni_direct_shape *s = &r->shape;
    const int64_t bytes = s->tap_steps * QNI_DIRECT_STEP;
    for (int i = 0; s->rows_are != QNI_ROWS_IN_PLANES && i < 2; i++) {
        const struct stretch at = stretch_at(r, b, scratch, i);
        r->kernel->helpers.direct->sums(at.a, (size_t)at.pixel, at.rows, bytes,
                                        scratch->sums + at.row);
    }
    if (s->rows_are != QNI_ROWS_IN_PLANES)
        return;
    const int64_t n =
        qni_band_planes(s) * (int64_t)qni_plane_bytes(s, b->n_images, b->n_lines) / s->pixel;
    r->kernel->helpers.direct->sums(b->a, (size_t)s->pixel, n, bytes, scratch->pixels);
    memset(scratch->sums, 0, (size_t)b->rows * sizeof *scratch->sums);
    for (int64_t t = 0; t < s->n_taps; t++) {
        const int32_t *const from = scratch->pixels + taps[t] / s->pixel;
        for (int64_t i = 0; i < b->rows; i++)
            scratch->sums[i] += from[i];
    }
}

/* ---- rows of y ------------------------------------------------------------------------------- */

/* n places, step apart: four at a time, since this is 4 % of a layer whose bytes are few. */
static void places_of(uint8_t *to, size_t step, int64_t n, uint8_t **places)
{
    for (; n >= 4; n -= 4, places += 4, to += 4 * step) {
        places[0] = to;
        places[1] = to + step;
        places[2] = to + 2 * step;
        places[3] = to + 3 * step;
    }
    for (; n > 0; n--, to += step)
        *places++ = to;
}

/* Outputs of a band that are neighbours in y: row `at` and on. */
struct line {
    int64_t number, image, y, skip, at, n; /* number: of the band, or of all */
};

static bool next_line(const struct direct_run *r, const struct band *b, struct line *l)
{
    const struct qni_conv *c = &r->op->conv;
    const bool lines = qni_has_lines(&r->shape);
    if (l->n == 0) {
        l->skip = lines ? 0 : b->row % c->ow;
        l->number = lines ? 0 : b->row / c->ow;
    } else {
        l->at += l->n + qni_unused_rows(r->op, &r->shape);
        l->skip = 0;
        l->number++;
    }
    /* Of the band's images in turn, or as they follow each other. */
    l->image = lines ? b->image + l->number % b->n_images : l->number / c->oh;
    l->y = lines ? b->line + l->number / b->n_images : l->number % c->oh;
    l->n = qni_min(c->ow - l->skip, b->rows - l->at);
    return l->n > 0;
}

/* Notes for each row of a band which row of the product it is, and where in y it goes. */
static void number_rows(const struct direct_run *r, const struct band *b,
                        const struct qni_direct_scratch *scratch)
{
    const struct qni_direct_shape *s = &r->shape;
    const struct qni_conv *c = &r->op->conv;
    const size_t element = qn_dtype_bytes(r->op->y.dtype), step = (size_t)c->ys[3] * element;
    const bool needs_real = r->kind != QNI_DIRECT_BYTES;
    const int64_t unused = qni_unused_rows(r->op, s);
    if (r->turns) {
        places_of(scratch->turned, (size_t)(32 * s->blocks_per_call), b->rows, scratch->y);
        return;
    }
    for (struct line l = {0}; next_line(r, b, &l);) {
        const int64_t first = (l.image * c->oh + l.y) * c->ow + l.skip, end = l.at + l.n;
        uint8_t *const to =
            (uint8_t *)r->op->y.data +
            (size_t)(l.image * c->ys[0] + l.y * c->ys[2] + l.skip * c->ys[3]) * element;
        places_of(to, step, l.n, scratch->y + l.at);
        for (int64_t i = 0; needs_real && i < l.n; i++)
            scratch->real[l.at + i] = first + i;
        for (int64_t i = end; i < end + unused && i < b->rows; i++) {
            scratch->real[i] = -1;
            scratch->y[i] = scratch->nowhere;
        }
    }
}

/* Where each row of a band that is gathered begins. */
static void find_rows(const struct direct_run *r, const struct band *b, int64_t *at)
{
    const struct qni_direct_shape *s = &r->shape;
    const struct qni_conv *c = &r->op->conv;
    const bool inside = s->rows_are == QNI_ROWS_IN_PLACE;
    const int64_t step = inside ? c->stride[1] * c->xs[3] : s->pixel;
    for (struct line l = {0}; next_line(r, b, &l);) {
        int64_t first = l.at * s->pixel;
        if (inside)
            first = l.image * c->xs[0] + l.y * c->stride[0] * c->xs[2] + l.skip * step;
        else if (qni_has_lines(s))
            first = l.number * s->columns * s->pixel;
        for (int64_t i = 0; i < l.n; i++)
            at[l.at + i] = first + i * step;
    }
}

/* Bytes of a call, which lie as rows, to the planes of y. */
static void turn_rows(const struct direct_run *r, const struct band *b, int64_t output, int64_t n,
                      const struct qni_direct_scratch *scratch)
{
    const struct qni_conv *c = &r->op->conv;
    const size_t ld = (size_t)(32 * r->shape.blocks_per_call);
    for (struct line l = {0}; next_line(r, b, &l);)
        r->patches->rows->turn((uint8_t *)r->op->y.data + l.image * c->ys[0] + output * c->ys[1] +
                                   l.y * c->ys[2] + l.skip,
                               (size_t)c->ys[1], scratch->turned + (size_t)l.at * ld, ld, n, l.n,
                               1);
}

/* Rows [row, row + rows) of a band are in scratch->c: those that are real go to y. */
static void finish_outputs(const struct direct_run *r, const struct qni_direct_scratch *scratch,
                           int64_t row, int64_t rows, const struct qni_part *part, int64_t output,
                           int64_t n, float *c)
{
    const int64_t *const real = scratch->real + row;
    for (int64_t i = 0, end; i < rows; i = end) {
        end = i + 1;
        if (real[i] < 0)
            continue;
        while (end < rows && real[end] == real[end - 1] + 1)
            end++;
        const struct qni_epilogue_tile tile = {
            .part = part,
            .row = real[i],
            .rows = end - i,
            .output = output,
            .n = n,
            .c = c + i * 32,
            .ldc = 32,
        };
        qni_epilogue_run(&r->epilogue, &tile, scratch->epilogue);
    }
}

/* Where the epilogue reads scales of the weights, outputs of one group at a time: panels begin with
 * it. */
static void finish_words(const struct direct_run *r, const struct qni_slab *slab,
                         const struct qni_direct_scratch *scratch, int64_t row, int64_t rows,
                         int64_t output, int64_t n)
{
    const int64_t co = r->op->conv.co, panels = r->part.n_panels / r->op->conv.groups;
    struct qni_part part = r->part;
    if (!r->epilogue.raw || r->op->y.dtype == QN_I32) {
        part.column = slab->output;
        finish_outputs(r, scratch, row, rows, &part, output, n, scratch->c);
        return;
    }
    for (int64_t j = 0, count; j < n; j += count) {
        const int64_t at = output + j, group = slab->group + at / co;
        part.panel = group * panels;
        part.column = group * co;
        count = qni_min(n - j, co - at % co);
        finish_outputs(r, scratch, row, rows, &part, at % co, count, scratch->c + j);
    }
}

/* ---- channels -------------------------------------------------------------------------------- */

/* Scales and zero points of outputs [at, at + n) of a slab: of n lanes that follow each other. */
static void describe_lanes(const struct direct_run *r, int64_t lane, int64_t at, int64_t n,
                           const struct qni_direct_scratch *to)
{
    const qn_packed *w = r->part.w;
    const void *const from = qni_section(w, QNI_SECTION_SCALE);
    const int32_t *const sums = qni_direct_column_sums(w);
    const int32_t x_zero = qni_op_x_zero(r->op);
    if (w->head->scale_dtype != QN_F16)
        memcpy(to->scale + at, (const float *)from + lane, (size_t)n * sizeof *to->scale);
    for (int64_t j = 0; w->head->scale_dtype == QN_F16 && j < n; j++)
        to->scale[at + j] = qni_f32_from_f16(((const uint16_t *)from)[lane + j]);
    for (int64_t j = 0; x_zero != 0 && j < n; j++)
        to->zero[at + j] = x_zero * sums[lane + j];
}

/* A bias of int32 is taken away as a zero point is, with its sign changed: the same sums. */
static void describe_sum_bias(const int32_t *sum_bias, int64_t n, int32_t *zero)
{
    for (int64_t j = 0; j < n; j++)
        zero[j] = (int32_t)((uint32_t)zero[j] - (uint32_t)sum_bias[j]);
}

/* Scales, biases and zero points of `blocks` blocks; true if all codes are bounded
 * (direct_kernel.h). Plain loops, since small layers have many outputs for their rows. */
static bool describe_outputs(const struct direct_run *r, const struct qni_slab *slab, int64_t block,
                             int64_t blocks, const struct qni_direct_scratch *to)
{
    const int64_t at = block * 32, n = qni_min(blocks * 32, slab->outputs - at);
    const int64_t co = r->op->conv.co;
    float *const scale = to->scale + at, *const bias = to->bias + at;
    memset(scale, 0, (size_t)blocks * 32 * sizeof *scale);
    memset(bias, 0, (size_t)blocks * 32 * sizeof *bias);
    memset(to->zero + at, 0, (size_t)blocks * 32 * sizeof *to->zero);
    for (int64_t j = 0, count; j < n; j += count) {
        count = qni_min(n - j, co - (at + j) % co);
        describe_lanes(r, qni_slab_lane(r->op, slab, at + j), at + j, count, to);
    }
    if (r->has_bias)
        memcpy(bias, (const float *)r->op->epilogue.bias.data + slab->output + at,
               (size_t)n * sizeof *bias);
    const int32_t *const sum_bias = r->sum_bias == NULL ? NULL : r->sum_bias + slab->output + at;
    if (sum_bias != NULL)
        describe_sum_bias(sum_bias, n, to->zero + at);
    return qni_conv_is_bounded(r->conv, scale, bias, sum_bias, 0.0f, n);
}

/* Words of one block, 256 rows at a time (all of them if lines stay whole), through the common
 * epilogue. */
static void multiply_words(const struct direct_run *r, const struct qni_slab *slab,
                           const struct qni_direct_tile *all, int64_t first, int64_t output,
                           const struct qni_direct_scratch *scratch)
{
    struct qni_direct_tile t = *all;
    const int64_t most = r->shape.whole_lines ? all->rows : QNI_DIRECT_WORDS;
    for (int64_t row = 0; row < all->rows; row += most) {
        t.a = all->a + (all->at != NULL ? 0 : (size_t)row * all->pixel);
        t.rows = qni_min(most, all->rows - row);
        t.row_sums = all->row_sums != NULL ? all->row_sums + row : NULL;
        t.at = all->at != NULL ? all->at + row : NULL;
        r->kernel->fn.direct(&t);
        finish_words(r, slab, scratch, first + row, t.rows, output, t.n);
    }
}

/* What a worker has at hand. */
struct direct_worker {
    struct qni_direct_scratch scratch;
    int64_t taps[QNI_DIRECT_TAPS], ready; /* the slab and band that b is, or -1 */
    int64_t numbered;                     /* the band that scratch knows the places of, or -1 */
    struct band b;
    struct qni_slab slab;
    int64_t slab_index;
    int64_t first, end; /* blocks whose weights and scales scratch holds */
    bool is_bounded;    /* all of them */
    bool has_x;         /* the kernel has met the band */
};

static const uint8_t *codes_of(const struct direct_run *r, const struct direct_worker *h,
                               int64_t block)
{
    const size_t panel =
        (size_t)r->part.w->head->units * qni_layout_unit_bytes(r->kernel->row.layout);
    const int64_t first = qni_slab_lane(r->op, &h->slab, 0) / QNI_PANEL;
    return (const uint8_t *)qni_section(r->part.w, QNI_SECTION_CODES) +
           (size_t)(first + 2 * block) * panel;
}

static int64_t panels_of(const struct direct_worker *h, int64_t block, int64_t blocks)
{
    return qni_min(2 * blocks, qni_ceil_div(h->slab.outputs, QNI_PANEL) - 2 * block);
}

/* Where weights of a block are unpacked to: a place of its own for each, if that is not much. */
static uint8_t *unpacked_at(const struct direct_run *r, const struct direct_worker *h,
                            int64_t block)
{
    const struct qni_direct_shape *s = &r->shape;
    const int64_t at = s->unpacked_blocks >= s->n_blocks ? block : 0;
    return h->scratch.b + 2 * (size_t)at * s->panel_bytes;
}

/* A panel's taps of `run` positions, a multiple of 4, to whole steps each. */
static void part_taps(const struct qni_direct_shape *s, int64_t run, const uint8_t *panel,
                      uint8_t *to)
{
    const size_t bytes = (size_t)run * QNI_PANEL;
    const size_t step = (size_t)s->tap_steps * QNI_DIRECT_STEP_BYTES;
    for (int64_t t = 0; t < s->n_taps; t++, panel += bytes, to += step) {
        memcpy(to, panel, bytes);
        memset(to + bytes, 0, step - bytes);
    }
}

/* Scales and, where they are unpacked, weights of so many blocks. */
static void bring_outputs(const struct direct_run *r, int64_t block, int64_t blocks,
                          struct direct_worker *h)
{
    const struct qni_direct_shape *s = &r->shape;
    const int64_t units = r->part.w->head->units;
    const int64_t panels = panels_of(h, block, blocks);
    const struct qni_slab_weights weights = {r->kernel->helpers.direct->unpack,
                                             r->kernel->row.layout, h->scratch.line};
    if (h->first <= block && block + blocks <= h->end)
        return;
    const bool is_bounded = describe_outputs(r, &h->slab, block, blocks, &h->scratch);
    const bool adds = h->end == block && s->unpacked_blocks >= s->n_blocks;
    h->is_bounded = is_bounded && (!adds || h->is_bounded);
    h->first = adds ? h->first : block;
    h->end = block + blocks;
    for (int64_t j = 0; !s->reads_codes && j < panels; j++) {
        const bool parts = qni_direct_parts_taps(r->op, s);
        const bool moves = parts || s->rows_are == QNI_ROWS_OF_COLUMNS;
        uint8_t *const to = unpacked_at(r, h, block) + (size_t)j * s->panel_bytes;
        uint8_t *const panel = moves ? h->scratch.line : to;
        if (s->moves && !s->slabs.is_apart) {
            qni_slab_panel(r->op, &s->slabs, &h->slab, 2 * block + j, &weights, to);
            continue;
        }
        r->kernel->helpers.direct->unpack(codes_of(r, h, block) +
                                              (size_t)j * (size_t)units *
                                                  qni_layout_unit_bytes(r->kernel->row.layout),
                                          units, panel);
        if (parts)
            part_taps(s, s->run * r->op->conv.ci, panel, to);
        else if (moves)
            qni_columns_order(r->op, &s->image_columns, panel, to);
    }
}

/* Bytes by which the steps of a tap are longer than its packed weights: b_back of a tile. */
static size_t back_of(const struct direct_run *r)
{
    const struct qni_direct_shape *s = &r->shape;
    if (s->slabs.is_apart)
        return (size_t)(QNI_DIRECT_STEP - s->step_bytes) * QNI_PANEL;
    if (s->is_padded)
        return (size_t)(s->tap_steps * QNI_DIRECT_STEP - r->op->conv.ci) * QNI_PANEL;
    return 0;
}

/* Outputs [32 block, 32 (block + blocks)) of all rows of a band. */
static void multiply_blocks(const struct direct_run *r, struct direct_worker *h, int64_t block,
                            int64_t blocks)
{
    const struct qni_direct_shape *s = &r->shape;
    const struct qni_packed_head *head = r->part.w->head;
    const struct qni_finish_step *f = &r->epilogue.finish;
    const struct qni_direct_scratch *scratch = &h->scratch;
    bring_outputs(r, block, blocks, h);
    struct qni_direct_tile t = {
        .taps = h->taps,
        .n_taps = s->n_taps,
        .tap_steps = s->tap_steps,
        .a_block = s->slabs.is_apart ? qni_group_bytes(s, h->b.n_images, h->b.n_lines) : 0,
        .step_bytes = s->reads_codes ? QNI_DIRECT_STEP : s->step_bytes,
        .tap_bytes = s->tap_bytes,
        .width = r->op->conv.ow,
        .images = h->b.n_images,
        .has_x = h->has_x,
        .flip = s->rows_are == QNI_ROWS_IN_PLACE ? r->flip : 0,
        .b = s->reads_codes ? codes_of(r, h, block) : unpacked_at(r, h, block),
        .b_panel = s->reads_codes
                       ? (size_t)head->units * qni_layout_unit_bytes(r->kernel->row.layout)
                       : s->panel_bytes,
        .b_back = back_of(r),
        .n_panels = panels_of(h, block, blocks),
        .kind = r->kind,
        .scale = scratch->scale + 32 * block,
        .zero = scratch->zero + 32 * block,
        .has_zero = qni_op_x_zero(r->op) != 0 || r->sum_bias != NULL,
        .column = r->turns ? 0 : h->slab.output + 32 * block,
        .n = qni_min(32 * blocks, h->slab.outputs - 32 * block),
        .bias = scratch->bias + 32 * block,
        .has_bias = r->has_bias,
        .x_scale = r->epilogue.x_scale,
        .y_inv = f->y_inv,
        .y_zero = f->y_zero,
        .relu = f->act == QN_ACT_RELU,
        .is_u8 = f->y_dtype == QN_U8,
        .is_bounded = h->is_bounded,
        .is_tall = s->is_tall,
        .is_near = qni_op_x_zero(r->op) == 0 && r->sum_bias == NULL && r->op->k <= 256 &&
                   s->steps <= QNI_DIRECT_NEAR,
        .c = scratch->c,
        .scratch = scratch->kernel,
    };
    for (int i = 0; i < 2; i++) {
        const struct stretch at = stretch_at(r, &h->b, scratch, i);
        t.a = at.a + (size_t)block * t.a_block;
        t.pixel = (size_t)at.pixel;
        t.rows = at.rows;
        t.row_sums = s->reads_codes && !s->gathers ? scratch->sums + at.row : NULL;
        t.at = s->gathers ? scratch->at + at.row : NULL;
        t.y = scratch->y + at.row;
        if (r->kind != QNI_DIRECT_BYTES)
            multiply_words(r, &h->slab, &t, at.row, 32 * block, scratch);
        else if (at.rows > 0)
            r->kernel->fn.direct(&t);
    }
    h->has_x = true;
    if (r->turns)
        turn_rows(r, &h->b, h->slab.output + 32 * block, t.n, scratch);
}

static void do_item(const struct direct_run *r, struct direct_worker *h, int64_t item)
{
    const struct qni_direct_shape *s = &r->shape;
    const int64_t index = item / s->items_per_band, band = index % s->n_bands;
    const int64_t first = item % s->items_per_band * s->blocks_per_item;
    if (index / s->n_bands != h->slab_index) {
        h->slab_index = index / s->n_bands;
        h->slab = qni_slab_at(r->op, &s->slabs, h->slab_index);
        h->first = h->end = 0;
        h->is_bounded = true;
    }
    if (index != h->ready) {
        h->b = band_at(r, band);
        bring_rows(r, &h->slab, &h->b, &h->scratch, h->taps);
        if (band != h->numbered)
            number_rows(r, &h->b, &h->scratch);
        if (band != h->numbered && s->gathers)
            find_rows(r, &h->b, h->scratch.at);
        else if (s->reads_codes && !s->gathers)
            sum_rows(r, &h->b, h->taps, &h->scratch);
        h->has_x = false;
        h->ready = index;
        h->numbered = band;
    }
    const int64_t blocks = qni_ceil_div(h->slab.outputs, 32);
    const int64_t end = qni_min(first + s->blocks_per_item, blocks);
    for (int64_t i = first; i < end; i += s->blocks_per_call)
        multiply_blocks(r, h, i, qni_min(s->blocks_per_call, end - i));
}

static void work(void *arg, struct qni_conv_worker *worker)
{
    const struct direct_run *r = arg;
    struct direct_worker h;
    h.ready = h.numbered = h.slab_index = -1;
    h.scratch = qni_direct_scratch_in(&r->shape, worker->memory);
    for (int64_t item; qni_conv_next(worker, &item);)
        do_item(r, &h, item);
}

/* Can a kernel write y itself? */
static int32_t kind_of(const struct direct_run *r)
{
    if (r->epilogue.raw)
        return QNI_DIRECT_RAW;
    const bool has_lines = r->op->conv.ys[1] == 1 || qni_direct_turns(r->op);
    const bool has_f32 = r->op->epilogue.bias.dtype == QN_F32 || r->sum_bias != NULL;
    return has_lines && (r->op->epilogue.bias.rank == 0 || has_f32) &&
                   qni_conv_stores_bytes(r->conv, false)
               ? QNI_DIRECT_BYTES
               : QNI_DIRECT_FLOATS;
}

/* The bias of int32 that can go with the zero points of x, where sums do not leave as they are: it
 * follows the outputs without gaps, and no zero points of weights are the epilogue's. */
static const int32_t *sum_bias_of(const struct direct_run *r)
{
    const qn_tensor *bias = &r->op->epilogue.bias;
    return bias->rank == 1 && bias->dtype == QN_I32 && bias->stride[0] == 1 &&
                   r->op->y.dtype != QN_I32 && !r->epilogue.has_zeros
               ? bias->data
               : NULL;
}

static void run_all(struct qni_conv_run *run)
{
    const struct qni_op *const op = run->op;
    struct direct_run r;
    memset(&r, 0, sizeof r);
    r.conv = run;
    r.op = op;
    r.kernel = run->kernel;
    r.patches = &run->patches;
    r.shape = run->cut->of.direct;
    r.epilogue = run->epilogue;
    r.part = (struct qni_part){.w = op->w[0], .n_panels = op->w[0]->head->panels, .n = op->n};
    r.part.n_rows = op->m;
    r.sum_bias = sum_bias_of(&r);
    if (r.sum_bias != NULL)
        r.epilogue.raw = 0;
    r.kind = kind_of(&r);
    r.turns = r.kind == QNI_DIRECT_BYTES && qni_direct_turns(op);
    r.has_bias = r.kind == QNI_DIRECT_BYTES && op->epilogue.bias.rank != 0 && r.sum_bias == NULL;
    if (r.kind != QNI_DIRECT_BYTES)
        r.shape.blocks_per_call = 1;
    r.flip = op->x.dtype == QN_U8 ? 0x80 : 0;
    qni_conv_share(run, r.shape.n_items, true, work, &r);
}

static void cut(const qn_ctx *ctx, const struct qni_op *op, const struct qni_conv_kernel *kernel,
                struct qni_conv_cut *cut)
{
    cut->of.direct = qni_direct_shape_of(ctx, op, kernel->algorithm);
}

static void plan(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice)
{
    const struct qni_direct_shape *const s = &choice->cut.conv.of.direct;
    choice->block_m = s->band_rows;
    choice->panels_per_task = 2 * s->blocks_per_item;
    choice->thread_bytes = qni_direct_scratch_bytes(ctx, op, choice->conv->algorithm, s);
}

const struct qni_conv_driver qni_direct_driver = {cut, plan, run_all};
