/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of depthwise convolutions, y[c] = sum over taps of x[c] * w[c, tap]:
 *
 *     rows of x --> rows of floats, borders real --> kernel --> lines --> epilogue --> y
 *
 * An item (driver.h) is a band of output rows of some channels of one image. It walks down its band
 * and keeps the rows of x that the taps reach in a ring, so that each is converted once. What
 * the 16 lanes of the kernel are follows from where y's neighbours lie:
 *
 *     channels   NHWC, and narrow planes    ring row [column][64 channels], line of 64 channels
 *     pixels     NCHW                       ring row [residue][column], line of 256 pixels
 *
 * With a stride, the pixels of a ring row are sorted by residue, so that the inputs of
 * neighbouring outputs are neighbours. Taps so far apart that a ring row would mostly hold what
 * nobody reads get a strip of their own instead, holding one column for each output ("apart").
 * Channels of f32 that lie together have a driver of their own: depthwise_image.c.
 * Items differ in nothing but where they lie: the bits do not depend on the cut. */
#include "depthwise.h"

#include <math.h>
#include <string.h>

#include "../../base/compiler.h"
#include "../../base/half.h"
#include "driver.h"

/* ---- one phase ------------------------------------------------------------------------------- */

struct depthwise_run {
    const struct qni_op *op;
    const struct qni_conv_kernel *kernel;
    const struct qni_rows *rows;
    struct qni_axis axis[2];
    struct qni_phase phase[2];
    struct qni_tap_list list;
    struct qni_ring_cut cut;
    int64_t n_bands;
    bool raw;                      /* the kernel gives int32 sums */
    struct qni_finish_step finish; /* but for what differs from line to line */
    bool is_finished;              /* it does more than to store f32 */
    size_t y_bytes;                /* of an element */
};

/* What a thread is at. */
struct depthwise_item {
    const struct depthwise_run *run;
    int64_t image, output, n, row, end; /* outputs [output, output + n) of output rows [row, end) */
    int64_t column, columns;            /* a tile of these rows */
    const float **in;                   /* of each tap */
    const float **rows;                 /* of each vertical tap: its ring row, or NULL */
    float *prescale;                    /* by tap, where the kernel multiplies; else NULL */
    int64_t *tags;
    struct qni_lane_weights panels[QNI_LANE_BLOCK / QNI_PANEL], one;
    float *ring, *c;
    struct qni_scale_step scale;
    bool is_scaled; /* the step does something */
    bool is_direct; /* the kernel writes into y */
    float *line[4];
};

static struct qni_input_row input_row(const struct depthwise_item *p, int64_t iy)
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

static int64_t advance_of(const struct depthwise_run *run)
{
    return qni_axis_advance(&run->axis[1]);
}

static void load_strip(const struct depthwise_item *p, const struct qni_input_row *row,
                       int64_t first, int64_t step, float *dst)
{
    const struct qni_ring *r = &p->run->cut.ring;
    const int64_t per_channel = p->run->op->conv.co;
    const struct qni_lane_block block = {p->output, per_channel, p->n, r->vector};
    /* A tile may be narrower than the widest one. */
    const int64_t unread = (r->tile - p->columns) * (r->is_apart ? 1 : advance_of(p->run));
    if (r->by_pixel)
        qni_load_pixels(row, p->output / per_channel, first, step, r->strip_columns, dst);
    else
        qni_load_lanes(row, &block, first, step, r->strip_columns - unread, dst);
}

/* Row iy of x, as the tile needs it. */
static void load_row(const struct depthwise_item *p, int64_t iy, float *dst)
{
    const struct depthwise_run *run = p->run;
    const struct qni_ring *r = &run->cut.ring;
    const struct qni_input_row row = input_row(p, iy);
    const int64_t advance = advance_of(run), moved = advance * p->column;
    for (int64_t i = 0; i < r->n_strips; i++, dst += r->strip) {
        int64_t first = run->list.lo[1] + i;
        if (r->is_apart && !qni_axis_base(&run->axis[1], &run->phase[1], (int32_t)i, &first))
            continue;
        load_strip(p, &row, first + moved, r->by_pixel || r->is_apart ? advance : 1, dst);
    }
}

/* Where the inputs of a tap begin for the outputs of a tile: floats into a ring row. */
static int64_t tap_offset(const struct depthwise_run *run, const struct qni_tap *tap)
{
    const struct qni_ring *r = &run->cut.ring;
    if (r->is_apart)
        return tap->at[1] * r->strip;
    const int64_t column = tap->base[1] - run->list.lo[1];
    const int64_t advance = advance_of(run);
    return r->by_pixel ? column % advance * r->strip + column / advance : column * r->vector;
}

/* The ring row that a vertical tap reads for output row jy: loaded if need be. NULL: nothing in
 * this phase. */
static const float *ring_row(const struct depthwise_item *p, int32_t tap, int64_t jy)
{
    const struct depthwise_run *run = p->run;
    const struct qni_ring *r = &run->cut.ring;
    int64_t iy;
    if (!qni_axis_base(&run->axis[0], &run->phase[0], tap, &iy))
        return NULL;
    iy += qni_axis_advance(&run->axis[0]) * jy;
    if (iy < 0 || iy >= run->axis[0].in)
        return p->ring + r->n_slots * qni_ring_slot(r);
    const int64_t slot = r->is_cyclic ? iy % r->n_slots : tap;
    float *row = p->ring + slot * qni_ring_slot(r);
    if (p->tags[slot] != iy) {
        load_row(p, iy, row);
        p->tags[slot] = iy;
    }
    return row;
}

static void begin_tile(const struct depthwise_item *p)
{
    const struct qni_ring *r = &p->run->cut.ring;
    for (int64_t i = 0; i < r->n_slots; i++)
        p->tags[i] = -1;
}

/* Sums that passed through an infinity although all inputs are numbers are added up again in
 * double, which no x and weights of f32 overflow (matmul/overflow.h has the same for products). */
static void recompute_overflowed(const struct qni_depthwise_tile *t, int64_t lanes)
{
    for (int64_t i = 0; i < t->vectors * QNI_DEPTHWISE_LANES; i++) {
        const int64_t v = i / QNI_DEPTHWISE_LANES, lane = i % QNI_DEPTHWISE_LANES;
        float *const c = t->c + v * t->ldc + lane;
        double sum = 0.0;
        bool is_good = lane < lanes && !isfinite(*c);
        for (int64_t tap = 0; is_good && tap < t->n_taps; tap++) {
            const float x = t->in[tap][v * t->advance + lane];
            is_good = isfinite(x);
            sum += (double)x * (double)t->w[tap * QNI_DEPTHWISE_LANES + lane];
        }
        if (is_good)
            *c = (float)sum;
    }
}

/* One row of a tile through the kernel, 16 lanes of it: the first ones, or those behind the last
 * call's. column: elements from column to column of the inputs. */
static void multiply(const struct depthwise_item *p, int64_t panel, int64_t column, float *c,
                     int64_t ldc)
{
    const struct depthwise_run *run = p->run;
    const struct qni_ring *r = &run->cut.ring;
    const struct qni_lane_weights *const w = r->by_pixel ? &p->one : &p->panels[panel];
    for (int32_t t = 0; panel > 0 && t < run->list.n_taps; t++)
        if (p->in[t] != NULL)
            p->in[t] += QNI_DEPTHWISE_LANES;
    const struct qni_depthwise_tile tile = {
        .in = p->in,
        .advance = r->by_pixel ? QNI_DEPTHWISE_LANES : column,
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
        .ldc = ldc,
    };
    run->kernel->fn.ring(&tile);
    if (run->kernel->strategy != QN_STRATEGY_FLOAT)
        return;
    /* Pixels past the end of a row are made of what lies behind it. */
    const int64_t lanes =
        r->by_pixel ? p->columns : qni_min(QNI_DEPTHWISE_LANES, p->n - panel * QNI_PANEL);
    const bool is_good = run->rows->is_finite(c, r->by_pixel ? 1 : tile.vectors, lanes, ldc);
    if (QNI_UNLIKELY(!is_good))
        recompute_overflowed(&tile, qni_min(QNI_DEPTHWISE_LANES, lanes));
}

/* ---- the epilogue ---------------------------------------------------------------------------- */

void qni_read_vector(const qn_tensor *t, int64_t first, int64_t step, int64_t n, float *line)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t at = (first + step * i) * t->stride[0];
        if (t->dtype == QN_F16)
            line[i] = qni_f32_from_f16(((const uint16_t *)t->data)[at]);
        else if (t->dtype == QN_BF16)
            line[i] = qni_f32_from_bf16(((const uint16_t *)t->data)[at]);
        else
            memcpy(&line[i], (const uint8_t *)t->data + at * 4, sizeof *line);
    }
}

/* Outputs of a line one after another, or the same output all along the line. */
static const void *fill_line(const struct depthwise_item *p, float *line, const qn_tensor *t)
{
    const struct depthwise_run *run = p->run;
    const int64_t n = run->cut.ring.by_pixel ? run->cut.ring.tile : p->n;
    if (t->rank == 0)
        return NULL;
    qni_read_vector(t, p->output, run->cut.ring.by_pixel ? 0 : 1, n, line);
    return line;
}

/* May the kernel write into y? Full vectors of f32 channels, and no residual, which may be y. */
static bool is_direct(const struct depthwise_item *p)
{
    const struct qni_op *op = p->run->op;
    return !p->run->cut.ring.by_pixel && op->y.dtype == QN_F32 && op->conv.ys[1] == 1 &&
           p->n % QNI_PANEL == 0 && op->epilogue.residual.rank == 0;
}

static void begin_lines(struct depthwise_item *p)
{
    const struct depthwise_run *run = p->run;
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
    p->is_scaled =
        step.from_i32 || step.x_scale != 1.0f || step.col_scale != NULL || step.bias != NULL;
    p->is_direct = is_direct(p);
    if (step.w_scale == NULL)
        return;
    const int64_t n = run->cut.ring.by_pixel ? run->cut.ring.tile : p->n;
    for (int64_t i = 0; i < n; i++)
        p->line[1][i] = run->cut.ring.by_pixel ? p->one.scale[0]
                                               : p->panels[i / QNI_PANEL].scale[i % QNI_PANEL];
}

/* Output (jy, jx) in an image of these strides. */
static int64_t place_of(const struct depthwise_item *p, const int64_t strides[4], int64_t jy,
                        int64_t jx)
{
    const struct qni_phase *y = &p->run->phase[0], *x = &p->run->phase[1];
    return p->image * strides[0] + p->output * strides[1] + (y->first + y->step * jy) * strides[2] +
           (x->first + x->step * jx) * strides[3];
}

/* n results from (jy, jx) on: the channels of a pixel, or the pixels of a channel. */
static void finish_line(const struct depthwise_item *p, float *v, int64_t jy, int64_t jx, int64_t n)
{
    const struct depthwise_run *run = p->run;
    const struct qni_op *op = run->op;
    const bool by_pixel = run->cut.ring.by_pixel;
    const int64_t along = by_pixel ? run->phase[1].step : 1;
    const qn_tensor *residual = &op->epilogue.residual;
    struct qni_scale_step scale = p->scale;
    scale.n = n;
    if (p->is_scaled)
        run->rows->scale(v, &scale);
    struct qni_finish_step finish = run->finish;
    finish.n = n;
    finish.y_stride = along * op->conv.ys[by_pixel ? 3 : 1];
    finish.y = (uint8_t *)op->y.data + (size_t)place_of(p, op->conv.ys, jy, jx) * run->y_bytes;
    if (residual->rank != 0) {
        finish.residual_stride = along * op->conv.rs[by_pixel ? 3 : 1];
        finish.residual =
            (const uint8_t *)residual->data +
            (size_t)place_of(p, op->conv.rs, jy, jx) * qn_dtype_bytes(residual->dtype);
    }
    run->rows->finish(v, &finish);
}

/* ---- items ----------------------------------------------------------------------------------- */

static void find_inputs(const struct depthwise_item *p, int64_t jy)
{
    const struct qni_tap_list *list = &p->run->list;
    const bool is_read = list->lo[1] <= list->hi[1]; /* a tap of this phase reads anything */
    for (int32_t y = 0; is_read && y < p->run->axis[0].taps; y++)
        p->rows[y] = ring_row(p, y, jy);
    for (int32_t t = 0; t < list->n_taps; t++) {
        const struct qni_tap *tap = &list->taps[t];
        p->in[t] = tap->is_live ? p->rows[tap->at[0]] + tap->offset : NULL;
    }
}

static void run_row(const struct depthwise_item *p, int64_t jy)
{
    const struct depthwise_run *run = p->run;
    const struct qni_ring *r = &run->cut.ring;
    const int64_t column = r->is_apart ? r->vector : advance_of(run) * r->vector;
    find_inputs(p, jy);
    if (run->cut.ring.by_pixel) {
        multiply(p, 0, column, p->c, QNI_DEPTHWISE_LANES);
        finish_line(p, p->c, jy, p->column, p->columns);
        return;
    }
    float *c = p->c;
    int64_t ldc = QNI_LANE_BLOCK;
    if (p->is_direct) {
        c = (float *)run->op->y.data + place_of(p, run->op->conv.ys, jy, p->column);
        ldc = run->op->conv.ys[3] * run->phase[1].step;
    }
    for (int64_t i = 0; i * QNI_PANEL < p->n; i++)
        multiply(p, i, column, c + i * QNI_PANEL, ldc);
    const bool is_float = run->kernel->strategy == QN_STRATEGY_FLOAT;
    if (p->is_direct && !p->is_scaled && !run->is_finished && is_float)
        return; /* of int8 the last step makes all NaN one */
    for (int64_t j = 0; j < p->columns; j++)
        finish_line(p, c + j * ldc, jy, p->column + j, p->n);
}

static void run_tiles(struct depthwise_item *p)
{
    const struct depthwise_run *run = p->run;
    begin_lines(p);
    for (p->column = 0; p->column < run->phase[1].count; p->column += p->columns) {
        p->columns = qni_min(run->cut.ring.tile, run->phase[1].count - p->column);
        begin_tile(p);
        for (int64_t jy = p->row; jy < p->end; jy++)
            run_row(p, jy);
    }
}

static void run_item(struct depthwise_item *p, int64_t item)
{
    const struct depthwise_run *run = p->run;
    const struct qni_ring_cut *const cut = &run->cut;
    const int64_t block = item / run->n_bands % cut->n_blocks;
    const int64_t output = block * cut->block, n = qni_min(cut->block, run->op->n - output);
    p->image = item / run->n_bands / cut->n_blocks;
    p->row = item % run->n_bands * cut->band;
    p->end = qni_min(p->row + cut->band, run->phase[0].count);
    for (int64_t i = 0; i * QNI_PANEL < n; i++)
        qni_lane_weights_expand(run->op->w[0], output / QNI_PANEL + i, &run->list,
                                run->kernel->strategy, &p->panels[i]);
    p->output = output;
    p->n = n;
    if (!run->cut.ring.by_pixel) {
        run_tiles(p);
        return;
    }
    p->n = 1;
    for (int64_t i = 0; i < n; i++, p->output++) {
        qni_lane_weights_repeat(&p->panels[0], i, &run->list, &p->one);
        run_tiles(p);
    }
}

static void run_thread(void *arg, struct qni_conv_worker *worker)
{
    const struct depthwise_run *run = arg;
    const struct qni_packed_head *head = run->op->w[0]->head;
    const struct qni_ring_places *at = &run->cut.places;
    uint8_t *const memory = worker->memory;
    struct depthwise_item p = {.run = run};
    p.in = (const float **)(void *)(memory + at->in);
    p.rows = (const float **)(void *)(memory + at->rows);
    if (head->section[QNI_SECTION_PRESCALE].bytes != 0) {
        p.prescale = (float *)(void *)(memory + at->prescale);
        for (int32_t t = 0; t < run->list.n_taps; t++)
            p.prescale[t] = run->list.taps[t].prescale;
    }
    p.tags = (int64_t *)(void *)(memory + at->tags);
    for (size_t i = 0; i < QNI_LANE_BLOCK / QNI_PANEL; i++)
        p.panels[i] = qni_lane_weights_at(head, !run->raw,
                                          memory + at->panels + i * qni_lane_weights_bytes(head));
    p.one = qni_lane_weights_at(head, !run->raw, memory + at->one);
    p.ring = (float *)(void *)(memory + at->ring);
    memset(p.ring + run->cut.ring.n_slots * qni_ring_slot(&run->cut.ring), 0,
           (size_t)qni_ring_slot(&run->cut.ring) * sizeof(float));
    p.c = (float *)(void *)(memory + at->c);
    for (int32_t i = 0; i < 4; i++)
        p.line[i] = (float *)(void *)(memory + at->line[i]);
    for (int64_t i; qni_conv_next(worker, &i);)
        run_item(&p, i);
}

/* ---- the whole ------------------------------------------------------------------------------- */

bool qni_finish_is_store(const struct qni_finish_step *finish)
{
    return finish->act == QN_ACT_NONE && !finish->has_clamp;
}

static void run_phase(struct qni_conv_run *conv, struct depthwise_run *run)
{
    const struct qni_op *const op = conv->op;
    const qn_strategy strategy = conv->kernel->strategy;
    const bool keep_dead = strategy == QN_STRATEGY_INT8_BLOCK && !op->quant.symmetric;
    run->list = qni_tap_list_make(op, run->axis, run->phase, strategy, keep_dead, conv->shared);
    for (int32_t t = 0; t < run->list.n_taps; t++) {
        struct qni_tap *tap = &run->list.taps[t];
        tap->offset = tap->is_live ? tap_offset(run, tap) : 0;
    }
    run->n_bands = qni_ceil_div(run->phase[0].count, run->cut.band);
    qni_conv_share(conv, op->conv.batch * run->cut.n_blocks * run->n_bands, false, run_thread, run);
}

static void run_all(struct qni_conv_run *conv)
{
    const struct qni_op *const op = conv->op;
    struct depthwise_run run = {
        .op = op,
        .kernel = conv->kernel,
        .rows = conv->rows,
        .cut = conv->cut->of.ring,
        .axis = {conv->patches.axis[0], conv->patches.axis[1]},
        .raw = qni_op_is_raw(op),
        .finish = conv->epilogue.finish,
        .y_bytes = qn_dtype_bytes(op->y.dtype),
    };
    run.is_finished = !qni_finish_is_store(&run.finish);
    const int64_t n_y = qni_min(qni_axis_phases(&run.axis[0]), run.axis[0].out);
    const int64_t n_x = qni_min(qni_axis_phases(&run.axis[1]), run.axis[1].out);
    for (int64_t py = 0; py < n_y; py++)
        for (int64_t px = 0; px < n_x; px++) {
            run.phase[0] = qni_axis_phase(&run.axis[0], py);
            run.phase[1] = qni_axis_phase(&run.axis[1], px);
            run_phase(conv, &run);
        }
}

static void cut(const qn_ctx *ctx, const struct qni_op *op, const struct qni_conv_kernel *kernel,
                struct qni_conv_cut *cut)
{
    (void)kernel;
    cut->of.ring = qni_ring_cut_of(op, ctx->threads.n_threads);
}

static void plan(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice)
{
    const struct qni_ring_cut *const cut = &choice->cut.conv.of.ring;
    (void)ctx;
    choice->block_m = cut->ring.tile;
    choice->panels_per_task = QNI_LANE_BLOCK / QNI_PANEL;
    choice->thread_bytes = qni_round_up(cut->places.end, 64);
    choice->shared_bytes = qni_tap_list_bytes(op->w[0]->head);
}

const struct qni_conv_driver qni_ring_driver = {cut, plan, run_all};
