/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of depthwise convolutions, y[c] = sum over taps of x[c] * w[c, tap]:
 *
 *     rows of x --> rows of floats, borders real --> kernel --> lines --> epilogue --> y
 *
 * A piece of work is a band of output rows of some channels of one image. It walks down its band
 * and keeps the rows of x that the taps reach in a ring, so that each is converted once. What
 * the 16 lanes of the kernel are follows from where y's neighbours lie:
 *
 *     channels   NHWC, and narrow planes    ring row [column][64 channels], line of 64 channels
 *     pixels     NCHW                       ring row [residue][column], line of 256 pixels
 *
 * With a stride, the pixels of a ring row are sorted by residue, so that the inputs of
 * neighbouring outputs are neighbours. Taps so far apart that a ring row would mostly hold what
 * nobody reads get a strip of their own instead, holding one column for each output ("apart").
 * Pieces differ in nothing but where they lie: the bits do not depend on the cut. */
#include "depthwise.h"

#include <stdatomic.h>
#include <string.h>

#include "../../base/compiler.h"
#include "../../base/half.h"
#include "../rows/epilogue.h"
#include "../rows/rows.h"
#include "conv.h"

enum {
    LANE_TILE = 32,
    PIXEL_TILE = 256
}; /* outputs along a row: some 10 to 70 KiB of ring for 3 x 3 taps */

/* ---- selection ------------------------------------------------------------------------------- */

#define QNI_DEPTHWISE_KERNEL(fn, needs, reads, layout, kind, mr, numerics)                         \
    {{#fn, NULL, needs, QNI_READS_##reads, -1, 1, mr, QNI_NUMERICS_##numerics, 0},                 \
     fn,                                                                                           \
     QNI_DEPTHWISE_##kind},
static const struct qni_depthwise_kernel kernels[] = {
#include "kernels.inc"
};
#undef QNI_DEPTHWISE_KERNEL

static int32_t kind_of(qn_strategy strategy)
{
    switch (strategy) {
    case QN_STRATEGY_INT8_ROW:
        return QNI_DEPTHWISE_ROW;
    case QN_STRATEGY_INT8_BLOCK:
        return QNI_DEPTHWISE_BLOCK;
    case QN_STRATEGY_INT8_STATIC:
        return QNI_DEPTHWISE_GIVEN;
    default:
        return QNI_DEPTHWISE_FLOAT;
    }
}

static const char *refusal(const qn_ctx *ctx, const struct qni_op *op,
                           const struct qni_depthwise_kernel *k)
{
    const struct qni_packed_head *head = op->w[0]->head;
    if (k->kind != kind_of(op->strategy))
        return "serves another strategy";
    if ((k->row.needs & ~ctx->isa) != 0)
        return "CPU feature missing or masked";
    if (op->kernel != NULL && strcmp(op->kernel, k->row.name) != 0)
        return "another kernel is asked for";
    if (k->kind != QNI_DEPTHWISE_FLOAT && head->section[QNI_SECTION_COUNTS].bytes == 0)
        return "the weights are a codebook of other than small integers";
    if (k->kind == QNI_DEPTHWISE_BLOCK && !op->quant.symmetric &&
        head->section[QNI_SECTION_SUMS].bytes == 0)
        return "the weights are packed without column sums";
    if (op->strategy == QN_STRATEGY_INT8_STATIC && head->section[QNI_SECTION_PRESCALE].bytes != 0)
        return "the weights have a prescale, which cannot be multiplied into given int8 codes";
    if (qni_epilogue_raw(op) &&
        (head->n_groups > 1 || head->section[QNI_SECTION_OFFSET].bytes != 0))
        return "int32 sums and int32 biases are for weights without groups and offsets";
    return NULL;
}

/* ---- the shape of the work ------------------------------------------------------------------- */

/* A ring of rows of x as floats: n_slots rows, and one of zeros behind them. */
struct ring {
    bool by_pixel;  /* lanes are pixels */
    bool is_apart;  /* a strip for each horizontal tap */
    bool is_cyclic; /* row iy lives in slot iy mod n_slots; else in that of the tap that reads it */
    int64_t tile;   /* outputs along a row */
    int64_t vector; /* floats from column to column */
    int64_t strip;  /* floats from strip to strip: taps if apart, else residues */
    int64_t n_strips;
    int64_t strip_columns;
    int64_t n_slots;
};

/* The most that the bases of two taps of a phase differ. */
static int64_t reach(const struct qni_axis *a)
{
    const int64_t far = (int64_t)(a->taps - 1) * a->dilation;
    return a->transposed ? qni_ceil_div(far, a->stride) : far;
}

static struct ring ring_of(const struct qni_op *op, bool by_pixel)
{
    const struct qni_axis y = qni_conv_axis(op, 0), x = qni_conv_axis(op, 1);
    const int64_t outputs = qni_axis_phase(&x, 0).count, advance = qni_axis_advance(&x);
    struct ring r = {.by_pixel = by_pixel};
    r.tile = qni_min(outputs, by_pixel ? PIXEL_TILE : LANE_TILE);
    r.tile = by_pixel ? (int64_t)qni_round_up((size_t)r.tile, QNI_DEPTHWISE_LANES) : r.tile;
    const int64_t columns = reach(&x) + advance * (r.tile - 1) + 1;
    r.is_apart = columns > x.taps * r.tile;
    r.vector = by_pixel ? 1 : QNI_LANE_BLOCK;
    r.strip_columns = r.is_apart ? r.tile : by_pixel ? qni_ceil_div(columns, advance) : columns;
    r.n_strips = r.is_apart ? x.taps : by_pixel ? advance : 1;
    r.strip = r.strip_columns * r.vector;
    r.is_cyclic = reach(&y) + 1 <= 2 * (int64_t)y.taps;
    r.n_slots = r.is_cyclic ? reach(&y) + 1 : y.taps;
    return r;
}

static int64_t slot_floats(const struct ring *r)
{
    return (int64_t)qni_round_up((size_t)(r->strip * r->n_strips), 16);
}

/* Where the private scratch of a thread has what. */
struct places {
    size_t in, prescale, tags, panels, one, ring, c, line[4], end;
};

static struct places places_of(const struct qni_op *op, const struct ring *r)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const size_t panels = QNI_LANE_BLOCK / QNI_PANEL;
    const size_t line = (size_t)qni_max(r->tile, QNI_LANE_BLOCK) * sizeof(float);
    const size_t vectors = r->by_pixel ? 1 : QNI_LANE_BLOCK;
    struct places p;
    size_t at = 0;
    p.in = at;
    at += qni_round_up((size_t)head->k * sizeof(float *), 64);
    p.prescale = at;
    at += qni_round_up((size_t)head->k * sizeof(float), 64);
    p.tags = at;
    at += qni_round_up((size_t)r->n_slots * sizeof(int64_t), 64);
    p.panels = at;
    at += panels * qni_lane_weights_bytes(head);
    p.one = at;
    at += qni_lane_weights_bytes(head);
    p.ring = at;
    at += (size_t)((r->n_slots + 1) * slot_floats(r)) * sizeof(float);
    p.c = at;
    at += qni_round_up((size_t)r->tile * vectors * sizeof(float), 64);
    for (int32_t i = 0; i < 4; i++, at += qni_round_up(line, 64))
        p.line[i] = at;
    p.end = at;
    return p;
}

static size_t thread_bytes(const struct qni_op *op)
{
    const struct ring lanes = ring_of(op, false), pixels = ring_of(op, true);
    const size_t a = places_of(op, &lanes).end, b = places_of(op, &pixels).end;
    return qni_round_up(a > b ? a : b, 64);
}

qn_status qni_depthwise_select(const qn_ctx *ctx, const struct qni_op *op,
                               struct qni_cpu_choice *choice, qni_refusal_fn tell, void *arg)
{
    const struct qni_depthwise_kernel *chosen = NULL;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        const char *why = refusal(ctx, op, &kernels[i]);
        if (why == NULL && chosen == NULL)
            chosen = &kernels[i];
        else if (tell != NULL)
            tell(arg, kernels[i].row.name, why != NULL ? why : "a better row serves");
    }
    if (chosen == NULL)
        return QN_E_UNSUPPORTED;
    memset(choice, 0, sizeof *choice);
    choice->n_choices = 1;
    choice->m_from[0] = 1;
    choice->kernel[0] = choice->main = &chosen->row;
    choice->block_m = ring_of(op, false).tile;
    choice->panels_per_task = QNI_LANE_BLOCK / QNI_PANEL;
    choice->n_threads = ctx->threads.n_threads;
    choice->shared_bytes = qni_tap_list_bytes(op->w[0]->head);
    choice->thread_bytes = thread_bytes(op);
    choice->scratch_bytes = choice->shared_bytes + (size_t)choice->n_threads * choice->thread_bytes;
    return QN_OK;
}

/* ---- one phase ------------------------------------------------------------------------------- */

struct run {
    const struct qni_op *op;
    const struct qni_depthwise_kernel *kernel;
    const struct qni_rows *rows;
    struct qni_axis axis[2];
    struct qni_phase phase[2];
    struct qni_tap_list list;
    struct ring ring;
    struct places places;
    int64_t block;                   /* outputs of a piece */
    int64_t n_blocks, n_bands, band; /* band: rows */
    int64_t n_items;
    bool raw;                      /* the kernel gives int32 sums */
    struct qni_finish_step finish; /* but for what differs from line to line */
    uint8_t *scratch;
    size_t scratch_bytes; /* of a thread */
    _Atomic int64_t next;
};

/* What a thread is at. */
struct piece {
    const struct run *run;
    int64_t image, output, n, row, end; /* outputs [output, output + n) of output rows [row, end) */
    int64_t column, columns;            /* a tile of these rows */
    const float **in;
    float *prescale; /* by tap, where the kernel multiplies; else NULL */
    int64_t *tags;
    struct qni_lane_weights panels[QNI_LANE_BLOCK / QNI_PANEL], one;
    float *ring, *c;
    struct qni_scale_step scale;
    float *line[4];
};

static struct qni_input_row input_row(const struct piece *p, int64_t iy)
{
    const struct qni_op *op = p->run->op;
    const int64_t *xs = op->conv.xs;
    const size_t at = (size_t)(p->image * xs[0] + iy * xs[2]) * qn_dtype_bytes(op->x.dtype);
    const struct qni_input_row row = {
        .at = (const uint8_t *)op->x.data + at,
        .dtype = op->x.dtype,
        .zero = op->strategy == QN_STRATEGY_INT8_STATIC ? op->quant.x_zero : 0,
        .channel = xs[1],
        .column = xs[3],
        .columns = op->conv.w,
        .rows = p->run->rows,
    };
    return row;
}

static void load_strip(const struct piece *p, const struct qni_input_row *row, int64_t first,
                       int64_t step, float *dst)
{
    const struct ring *r = &p->run->ring;
    const int64_t per_channel = p->run->op->conv.co;
    const struct qni_lane_block block = {p->output, per_channel, p->n, r->vector};
    if (r->by_pixel)
        qni_load_pixels(row, p->output / per_channel, first, step, r->strip_columns, dst);
    else
        qni_load_lanes(row, &block, first, step, r->strip_columns, dst);
}

/* Row iy of x, as the tile needs it. */
static void load_row(const struct piece *p, int64_t iy, float *dst)
{
    const struct run *run = p->run;
    const struct ring *r = &run->ring;
    const struct qni_input_row row = input_row(p, iy);
    const int64_t advance = qni_axis_advance(&run->axis[1]), moved = advance * p->column;
    for (int64_t i = 0; i < r->n_strips; i++, dst += r->strip) {
        int64_t first = run->list.lo[1] + i;
        if (r->is_apart && !qni_axis_base(&run->axis[1], &run->phase[1], (int32_t)i, &first))
            continue;
        load_strip(p, &row, first + moved, r->by_pixel || r->is_apart ? advance : 1, dst);
    }
}

/* Where the inputs of a tap begin for the outputs of a tile: floats into a ring row. */
static int64_t tap_offset(const struct run *run, const struct qni_tap *tap)
{
    const struct ring *r = &run->ring;
    if (r->is_apart)
        return tap->at[1] * r->strip;
    const int64_t column = tap->base[1] - run->list.lo[1];
    const int64_t advance = qni_axis_advance(&run->axis[1]);
    return r->by_pixel ? column % advance * r->strip + column / advance : column * r->vector;
}

/* The ring row that a tap reads for output row jy: loaded if need be. */
static const float *ring_row(const struct piece *p, const struct qni_tap *tap, int64_t jy)
{
    const struct run *run = p->run;
    const struct ring *r = &run->ring;
    const int64_t iy = tap->base[0] + qni_axis_advance(&run->axis[0]) * jy;
    if (iy < 0 || iy >= run->axis[0].in)
        return p->ring + r->n_slots * slot_floats(r);
    const int64_t slot = r->is_cyclic ? iy % r->n_slots : tap->at[0];
    float *row = p->ring + slot * slot_floats(r);
    if (p->tags[slot] != iy) {
        load_row(p, iy, row);
        p->tags[slot] = iy;
    }
    return row;
}

static void begin_tile(const struct piece *p)
{
    const struct ring *r = &p->run->ring;
    for (int64_t i = 0; i < r->n_slots; i++)
        p->tags[i] = -1;
    memset(p->ring + r->n_slots * slot_floats(r), 0, (size_t)slot_floats(r) * sizeof(float));
}

/* One row of a tile through the kernel: 16 outputs a time, `offset` floats into the ring rows. */
static void multiply(const struct piece *p, const struct qni_lane_weights *w, int64_t offset,
                     float *c)
{
    const struct run *run = p->run;
    const struct ring *r = &run->ring;
    const int64_t advance = r->is_apart ? 1 : qni_axis_advance(&run->axis[1]);
    if (offset > 0)
        for (int32_t t = 0; t < run->list.n_taps; t++)
            p->in[t] += p->in[t] != NULL ? QNI_DEPTHWISE_LANES : 0;
    const struct qni_depthwise_tile tile = {
        .in = p->in,
        .advance = r->by_pixel ? QNI_DEPTHWISE_LANES : advance * r->vector,
        .vectors = r->by_pixel ? qni_ceil_div(p->columns, QNI_DEPTHWISE_LANES) : p->columns,
        .n_taps = run->list.n_taps,
        .w = w->w,
        .segments = run->list.segments,
        .n_segments = run->list.n_segments,
        .scale = w->scale,
        .offset = w->offset,
        .sums = w->sums,
        .symmetric = run->op->quant.symmetric,
        .raw_i32 = run->raw,
        .prescale = p->prescale,
        .c = c,
        .ldc = r->by_pixel ? QNI_DEPTHWISE_LANES : QNI_LANE_BLOCK,
    };
    run->kernel->fn(&tile);
}

/* ---- the epilogue ---------------------------------------------------------------------------- */

/* Element i of a vector of the epilogue: its value as f32, or an i32 as it is. */
static void read_element(const qn_tensor *t, int64_t i, void *out)
{
    const int64_t at = i * t->stride[0];
    float v;
    if (t->dtype == QN_F16)
        v = qni_f32_from_f16(((const uint16_t *)t->data)[at]);
    else if (t->dtype == QN_BF16)
        v = qni_f32_from_bf16(((const uint16_t *)t->data)[at]);
    else
        memcpy(&v, (const uint8_t *)t->data + at * 4, sizeof v);
    memcpy(out, &v, sizeof v);
}

/* Outputs of a line one after another, or the same output all along the line. */
static const void *fill_line(const struct piece *p, float *line, const qn_tensor *t)
{
    const struct run *run = p->run;
    const int64_t n = run->ring.by_pixel ? run->ring.tile : p->n;
    if (t->rank == 0)
        return NULL;
    for (int64_t i = 0; i < n; i++)
        read_element(t, run->ring.by_pixel ? p->output : p->output + i, &line[i]);
    return line;
}

static void begin_lines(struct piece *p)
{
    const struct run *run = p->run;
    const struct qni_op *op = run->op;
    const qn_epilogue *e = &op->epilogue;
    const bool is_static = op->strategy == QN_STRATEGY_INT8_STATIC;
    const bool bias_i32 = e->bias.rank != 0 && e->bias.dtype == QN_I32;
    const void *bias = fill_line(p, p->line[0], &e->bias);
    const bool raw_y = op->y.dtype == QN_I32;
    const struct qni_scale_step step = {
        .from_i32 = run->raw,
        .bias_i32 = bias_i32 ? bias : NULL,
        .w_scale = run->raw && !raw_y ? p->line[1] : NULL,
        .x_scale = is_static && !raw_y ? op->quant.x_scale : 1.0f,
        .row_scale = 1.0f,
        .col_scale = fill_line(p, p->line[2], &e->col_scale),
        .bias = bias_i32 ? NULL : bias,
    };
    p->scale = step;
    if (step.w_scale == NULL)
        return;
    const int64_t n = run->ring.by_pixel ? run->ring.tile : p->n;
    for (int64_t i = 0; i < n; i++)
        p->line[1][i] =
            run->ring.by_pixel ? p->one.scale[0] : p->panels[i / QNI_PANEL].scale[i % QNI_PANEL];
}

/* n results from (jy, jx) on: the channels of a pixel, or the pixels of a channel. */
static void finish_line(const struct piece *p, float *v, int64_t jy, int64_t jx, int64_t n)
{
    const struct run *run = p->run;
    const struct qni_op *op = run->op;
    const bool by_pixel = run->ring.by_pixel;
    const int64_t oy = run->phase[0].first + run->phase[0].step * jy;
    const int64_t ox = run->phase[1].first + run->phase[1].step * jx;
    const int64_t along = by_pixel ? run->phase[1].step : 1;
    const int64_t *ys = op->conv.ys, *rs = op->conv.rs;
    const qn_tensor *residual = &op->epilogue.residual;
    struct qni_scale_step scale = p->scale;
    scale.n = n;
    if (scale.from_i32 || scale.x_scale != 1.0f || scale.col_scale != NULL || scale.bias != NULL)
        run->rows->scale(v, &scale);
    struct qni_finish_step finish = run->finish;
    finish.n = n;
    finish.y_stride = along * ys[by_pixel ? 3 : 1];
    finish.y = (uint8_t *)op->y.data +
               (size_t)(p->image * ys[0] + p->output * ys[1] + oy * ys[2] + ox * ys[3]) *
                   qn_dtype_bytes(op->y.dtype);
    if (residual->rank != 0) {
        finish.residual_stride = along * rs[by_pixel ? 3 : 1];
        finish.residual = (const uint8_t *)residual->data +
                          (size_t)(p->image * rs[0] + p->output * rs[1] + oy * rs[2] + ox * rs[3]) *
                              qn_dtype_bytes(residual->dtype);
    }
    run->rows->finish(v, &finish);
}

/* ---- pieces ---------------------------------------------------------------------------------- */

static void find_inputs(const struct piece *p, int64_t jy)
{
    const struct qni_tap_list *list = &p->run->list;
    for (int32_t t = 0; t < list->n_taps; t++)
        p->in[t] = list->taps[t].is_live
                       ? ring_row(p, &list->taps[t], jy) + tap_offset(p->run, &list->taps[t])
                       : NULL;
}

static void run_row(const struct piece *p, int64_t jy)
{
    find_inputs(p, jy);
    if (p->run->ring.by_pixel) {
        multiply(p, &p->one, 0, p->c);
        finish_line(p, p->c, jy, p->column, p->columns);
        return;
    }
    for (int64_t i = 0; i * QNI_PANEL < p->n; i++)
        multiply(p, &p->panels[i], i, p->c + i * QNI_PANEL);
    for (int64_t j = 0; j < p->columns; j++)
        finish_line(p, p->c + j * QNI_LANE_BLOCK, jy, p->column + j, p->n);
}

static void run_tiles(struct piece *p)
{
    const struct run *run = p->run;
    begin_lines(p);
    for (p->column = 0; p->column < run->phase[1].count; p->column += run->ring.tile) {
        p->columns = qni_min(run->ring.tile, run->phase[1].count - p->column);
        begin_tile(p);
        for (int64_t jy = p->row; jy < p->end; jy++)
            run_row(p, jy);
    }
}

static void run_piece(struct piece *p, int64_t item)
{
    const struct run *run = p->run;
    const int64_t block = item / run->n_bands % run->n_blocks;
    const int64_t output = block * run->block, n = qni_min(run->block, run->op->n - output);
    p->image = item / run->n_bands / run->n_blocks;
    p->row = item % run->n_bands * run->band;
    p->end = qni_min(p->row + run->band, run->phase[0].count);
    for (int64_t i = 0; i * QNI_PANEL < n; i++)
        qni_lane_weights_expand(run->op->w[0], output / QNI_PANEL + i, &run->list,
                                run->kernel->kind, &p->panels[i]);
    p->output = output;
    p->n = n;
    if (!run->ring.by_pixel) {
        run_tiles(p);
        return;
    }
    p->n = 1;
    for (int64_t i = 0; i < n; i++, p->output++) {
        qni_lane_weights_repeat(&p->panels[0], i, &run->list, &p->one);
        run_tiles(p);
    }
}

static void run_thread(void *arg, int32_t thread)
{
    struct run *run = arg;
    const struct qni_packed_head *head = run->op->w[0]->head;
    const struct places *at = &run->places;
    uint8_t *memory = run->scratch + (size_t)thread * run->scratch_bytes;
    struct piece p = {.run = run};
    p.in = (const float **)(void *)(memory + at->in);
    if (head->section[QNI_SECTION_PRESCALE].bytes != 0) {
        p.prescale = (float *)(void *)(memory + at->prescale);
        for (int32_t t = 0; t < run->list.n_taps; t++)
            p.prescale[t] = run->list.taps[t].prescale;
    }
    p.tags = (int64_t *)(void *)(memory + at->tags);
    for (size_t i = 0; i < QNI_LANE_BLOCK / QNI_PANEL; i++)
        p.panels[i] =
            qni_lane_weights_at(head, memory + at->panels + i * qni_lane_weights_bytes(head));
    p.one = qni_lane_weights_at(head, memory + at->one);
    p.ring = (float *)(void *)(memory + at->ring);
    p.c = (float *)(void *)(memory + at->c);
    for (int32_t i = 0; i < 4; i++)
        p.line[i] = (float *)(void *)(memory + at->line[i]);
    for (int64_t i; (i = atomic_fetch_add(&run->next, 1)) < run->n_items;)
        run_piece(&p, i);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static struct qni_finish_step finish_of(const struct qni_op *op)
{
    const qn_epilogue *e = &op->epilogue;
    const float infinity = qni_float_of(0x7f800000u);
    const struct qni_finish_step finish = {
        .residual_dtype = e->residual.dtype,
        .residual_after = e->residual_after,
        .act = e->act,
        .has_clamp = e->clamp_lo > -infinity || e->clamp_hi < infinity,
        .clamp_lo = e->clamp_lo,
        .clamp_hi = e->clamp_hi,
        .y_dtype = op->y.dtype,
        .y_inv = 1.0f / e->y_scale,
        .y_zero = e->y_zero,
    };
    return finish;
}

/* Are there enough pixels next to each other to fill the lanes? */
static bool is_by_pixel(const struct qni_op *op, const struct qni_phase *x)
{
    return op->conv.xs[1] != 1 && x->count >= QNI_DEPTHWISE_LANES / 2;
}

/* Bands are high enough that reading the rows between them twice does not matter, and there are
 * a few pieces for every thread where the work allows it. */
static void cut(struct run *run, int32_t n_threads)
{
    const struct qni_op *op = run->op;
    const int64_t rows = run->phase[0].count;
    run->block = run->ring.by_pixel ? QNI_PANEL : QNI_LANE_BLOCK;
    run->n_blocks = qni_ceil_div(op->n, run->block);
    const int64_t wanted = qni_ceil_div(4 * (int64_t)n_threads, op->conv.batch * run->n_blocks);
    const int64_t least = qni_min(rows, 4 * (int64_t)run->axis[0].taps);
    run->band = qni_max(qni_ceil_div(rows, wanted), least);
    run->n_bands = qni_ceil_div(rows, run->band);
    run->n_items = op->conv.batch * run->n_blocks * run->n_bands;
}

static void run_phase(const qn_ctx *ctx, const struct qni_op *op, struct run *run,
                      const struct qni_cpu_choice *choice, uint8_t *scratch)
{
    const bool keep_dead = run->kernel->kind == QNI_DEPTHWISE_BLOCK && !op->quant.symmetric;
    run->list = qni_tap_list_make(op, run->axis, run->phase, run->kernel->kind, keep_dead, scratch);
    run->ring = ring_of(op, is_by_pixel(op, &run->phase[1]));
    run->places = places_of(op, &run->ring);
    cut(run, choice->n_threads);
    run->scratch = scratch + choice->shared_bytes;
    run->scratch_bytes = choice->thread_bytes;
    atomic_init(&run->next, 0);
    qni_parallel(&ctx->threads, (int32_t)qni_min(choice->n_threads, run->n_items), run_thread, run);
}

void qni_depthwise_run(const qn_ctx *ctx, const struct qni_op *op,
                       const struct qni_cpu_choice *choice, void *scratch)
{
    struct run run = {
        .op = op,
        .kernel = (const struct qni_depthwise_kernel *)(const void *)choice->main,
        .rows = qni_rows_for(ctx->isa),
        .axis = {qni_conv_axis(op, 0), qni_conv_axis(op, 1)},
        .raw = qni_epilogue_raw(op) != 0,
        .finish = finish_of(op),
    };
    const int64_t n_y = qni_min(qni_axis_phases(&run.axis[0]), run.axis[0].out);
    const int64_t n_x = qni_min(qni_axis_phases(&run.axis[1]), run.axis[1].out);
    for (int64_t py = 0; py < n_y; py++)
        for (int64_t px = 0; px < n_x; px++) {
            run.phase[0] = qni_axis_phase(&run.axis[0], py);
            run.phase[1] = qni_axis_phase(&run.axis[1], px);
            run_phase(ctx, op, &run, choice, scratch);
        }
}
