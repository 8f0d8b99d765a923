/* SPDX-License-Identifier: Apache-2.0 */
/* The loops of convolutions of several groups that have more than one channel each, and not many
 * (ResNeXt, RegNet, ShuffleNet). A group on its own would be a product with few columns and a short
 * sum, and its patches would cost more than that product. Here
 *
 *     a band of x, a block of channels --> f32 [row][column][channels], borders real
 *                                      --> kernel: all taps, vectors across the groups
 *                                      --> y, or a tile --> epilogue --> y
 *
 * and the weights of a block are made floats once for all its bands (groups_kernel.h). An item is a
 * band of rows of an image and a block of groups; those of a block follow each other, so that a
 * thread makes its weights once. Bits do not depend on the cut: each output is summed in the same
 * order wherever it lies. Nothing here allocates. */
#include <math.h>
#include <string.h>

#include "../../base/compiler.h"
#include "driver.h"
#include "groups_shape.h"

/* ---- a run ----------------------------------------------------------------------------------- */

struct groups_run {
    const struct qni_conv_run *conv;
    const struct qni_op *op;
    const struct qni_conv_kernel *kernel;
    struct qni_groups_shape s;
    bool is_direct, is_raw; /* the kernel writes into y; it gives int32 sums */
    bool is_bytes;          /* words: the kernel writes bytes into y */
    const int64_t *taps;
    const int32_t *segments, *results, *inputs;
    const struct qni_groups_place *places;
};

/* What a thread is at. */
struct groups_item {
    const struct groups_run *run;
    int64_t image, block, group, groups; /* of the block */
    int64_t row, rows, column, columns;  /* outputs */
    struct qni_groups_weights weights;
    int64_t made;    /* the block they are of */
    bool is_bounded; /* it: groups_kernel.h */
    float *x, *c, *buffer;
    uint8_t *line;
    void *kernel;
    struct qni_epilogue_scratch *epilogue;
};

/* ---- inputs ---------------------------------------------------------------------------------- */

/* n pixels of all channels of the block, from `at` on. */
static void load_pixels(const struct groups_item *p, const uint8_t *at, int64_t n, void *to)
{
    const struct groups_run *run = p->run;
    const struct qni_op *op = run->op;
    const int64_t *xs = op->conv.xs, channels = p->groups * op->conv.ci;
    const size_t element = qn_dtype_bytes(op->x.dtype), row = (size_t)channels * element;
    const uint8_t *from = at;
    size_t pixel = (size_t)xs[3] * element;
    if (xs[1] != 1) {
        const size_t plane = (size_t)xs[1] * element;
        if (xs[3] == 1)
            run->conv->rows->turn(p->line, row, at, plane, n, channels, element);
        else
            for (int64_t i = 0; i < n; i++)
                for (int64_t c = 0; c < channels; c++)
                    memcpy(p->line + (size_t)i * row + (size_t)c * element,
                           at + (size_t)c * plane + (size_t)i * pixel, element);
        from = p->line;
        pixel = row;
    }
    const struct qni_groups_pixels pixels = {
        .from = from,
        .step = pixel,
        .dtype = op->x.dtype,
        .zero = op->strategy == QN_STRATEGY_INT8_STATIC ? op->quant.x_zero : 0,
        .n = n,
        .channels = channels,
        .ci = op->conv.ci,
        .groups = run->s.groups_of_set,
        .inputs = run->inputs,
        .buffer = p->buffer,
        .to = to,
        .set = run->s.height * run->s.width * run->s.inputs,
    };
    run->kernel->helpers.groups->pixels(&pixels);
}

/* n pixels of all sets of the block become zeros. */
static void zero(const struct groups_item *p, uint8_t *at, int64_t n)
{
    const struct qni_groups_shape *s = &p->run->s;
    const size_t pixel = (size_t)s->inputs * s->element;
    const size_t set = (size_t)(s->height * s->width) * pixel;
    for (int64_t i = 0; n > 0 && i < p->groups; i += s->groups_of_set, at += set)
        memset(at, 0, (size_t)n * pixel);
}

static void load_band(const struct groups_item *p)
{
    const struct groups_run *run = p->run;
    const struct qni_conv *c = &run->op->conv;
    const struct qni_groups_shape *s = &run->s;
    const int64_t y = p->row * c->stride[0] - c->pad[0];
    const int64_t x = p->column * c->stride[1] - c->pad[1];
    const int64_t height = qni_groups_reach(run->op, s, 0, p->rows);
    const int64_t width = qni_groups_reach(run->op, s, 1, p->columns);
    const size_t pixel = (size_t)s->inputs * s->element;
    const int64_t from = qni_min(qni_max(0, -x), width);
    const int64_t to = qni_max(from, qni_min(width, c->w - x));
    for (int64_t i = 0; i < height; i++) {
        uint8_t *const row = (uint8_t *)p->x + (size_t)(i * s->width) * pixel;
        if (y + i < 0 || y + i >= c->h || to == from) {
            zero(p, row, width);
            continue;
        }
        zero(p, row, from);
        zero(p, row + (size_t)to * pixel, width - to);
        const int64_t at = p->image * c->xs[0] + p->group * c->ci * c->xs[1] + (y + i) * c->xs[2] +
                           (x + from) * c->xs[3];
        load_pixels(
            p, (const uint8_t *)run->op->x.data + (size_t)at * qn_dtype_bytes(run->op->x.dtype),
            to - from, row + (size_t)from * pixel);
    }
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* The sum of an output in double, which no x and weights of f32 overflow; false if an input is no
 * number. x: tap 0 of the output, its group's first channel; w: the output's lane. */
static bool exact_sum(const struct qni_groups_tile *t, const float *x, const float *w,
                      int64_t lanes, double *sum)
{
    *sum = 0.0;
    for (int64_t tap = 0; tap < t->n_taps; tap++)
        for (int64_t i = 0; i < t->ci; i++, w += lanes) {
            const float value = x[t->taps[tap] + i * t->groups];
            if (!isfinite(value))
                return false;
            *sum += (double)value * (double)*w;
        }
    return true;
}

/* Results that are no numbers although all inputs are: matmul/overflow.h has the same for
 * products. */
static void recompute_overflowed(const struct groups_item *p, const struct qni_groups_tile *t)
{
    const struct qni_groups_shape *s = &p->run->s;
    const int64_t co = p->run->op->conv.co, lanes = s->lanes;
    for (int64_t row = 0; row < t->rows; row++)
        for (int64_t column = 0; column < t->columns; column++)
            for (int64_t i = 0; i < p->groups * co; i++) {
                const int64_t set = i / s->outputs, at = i % s->outputs;
                const int64_t group = at / co, lane = at % co * s->groups_of_set + group;
                const int64_t vector = set * s->vectors + lane / lanes;
                float *const c = t->c + row * t->c_row + column * t->c_column + set * t->c_set + at;
                const float *const x =
                    t->x + row * t->x_row + column * t->x_column + set * t->x_set + group;
                double sum;
                if (!isfinite(*c) &&
                    exact_sum(t, x, t->w + vector * t->n_taps * t->ci * lanes + lane % lanes, lanes,
                              &sum))
                    *c = (float)sum;
            }
}

/* Groups [group, group + groups) of the block, which lie together in c. */
static void finish_groups(const struct groups_item *p, const struct qni_groups_tile *t,
                          int64_t group, int64_t groups, float *c)
{
    const struct groups_run *run = p->run;
    const struct qni_conv *g = &run->op->conv;
    const int64_t first = p->group + group;
    const qn_packed *w = run->op->w[0];
    const struct qni_part part = {
        .w = w,
        .panel = first * (w->head->panels / g->groups),
        .n = groups * g->co,
        .column = first * g->co,
        .n_rows = run->op->m,
    };
    /* Rows of whole images follow each other in a tile, too. */
    const bool whole = p->columns == g->ow && t->c_row == p->columns * t->c_column;
    for (int64_t i = 0; i < (whole ? 1 : p->rows); i++) {
        const struct qni_epilogue_tile tile = {
            .part = &part,
            .row = (p->image * g->oh + p->row + i) * g->ow + p->column,
            .rows = whole ? p->rows * p->columns : p->columns,
            .n = groups * g->co,
            .c = c + i * t->c_row,
            .ldc = (size_t)t->c_column,
        };
        qni_epilogue_run(&run->conv->epilogue, &tile, p->epilogue);
    }
}

static void finish(const struct groups_item *p, const struct qni_groups_tile *t)
{
    const struct groups_run *run = p->run;
    const struct qni_groups_shape *s = &run->s;
    if (run->is_bytes)
        return;
    const bool is_float = run->kernel->strategy == QN_STRATEGY_FLOAT;
    if (is_float && run->is_direct && run->conv->epilogue.is_store &&
        run->conv->epilogue.x_scale == 1.0f)
        return; /* of int8 the epilogue looks for NaN */
    const int64_t per_call = run->is_raw ? 1 : s->is_dense ? p->groups : s->groups_of_set;
    for (int64_t i = 0; i < p->groups; i += per_call) {
        const int64_t set = i / s->groups_of_set;
        finish_groups(p, t, i, qni_min(per_call, p->groups - i),
                      t->c + set * t->c_set + i % s->groups_of_set * run->op->conv.co);
    }
}

/* Biases of the outputs from this one on; NULL: there are none. */
static const float *bias_of(const struct groups_run *run, int64_t output)
{
    const qn_tensor *bias = &run->op->epilogue.bias;
    return bias->rank == 0 ? NULL : (const float *)bias->data + output;
}

/* ---- items ----------------------------------------------------------------------------------- */

static void set_bytes(const struct groups_item *p, struct qni_groups_tile *t)
{
    const struct groups_run *run = p->run;
    const struct qni_conv *c = &run->op->conv;
    const struct qni_finish_step *f = &run->conv->epilogue.finish;
    const int64_t output = p->group * c->co;
    t->y = (uint8_t *)run->op->y.data + p->image * c->ys[0] + output + p->row * c->ys[2] +
           p->column * c->ys[3];
    t->c_row = c->ys[2];
    t->c_column = c->ys[3];
    t->bias = bias_of(run, output);
    t->x_scale = run->conv->epilogue.x_scale;
    t->y_inv = f->y_inv;
    t->y_zero = f->y_zero;
    t->relu = f->act == QN_ACT_RELU;
    t->is_u8 = f->y_dtype == QN_U8;
    t->is_bounded = p->is_bounded;
}

static struct qni_groups_tile tile_of(const struct groups_item *p)
{
    const struct groups_run *run = p->run;
    const struct qni_op *op = run->op;
    const struct qni_conv *c = &op->conv;
    const struct qni_groups_shape *s = &run->s;
    struct qni_groups_tile t = {
        .x = p->x,
        .x_row = c->stride[0] * s->width * s->inputs,
        .x_column = c->stride[1] * s->inputs,
        .x_set = s->height * s->width * s->inputs,
        .taps = run->taps,
        .n_taps = s->n_taps,
        .ci = c->ci,
        .rows = p->rows,
        .columns = p->columns,
        .sets = qni_ceil_div(p->groups, s->groups_of_set),
        .vectors = s->vectors,
        .groups = s->groups_of_set,
        .results = run->results,
        .segments = run->segments,
        .n_segments = s->n_segments,
        .w = p->weights.w,
        .scale = p->weights.scale,
        .offset = p->weights.offset,
        .sums = p->weights.sums,
        .symmetric = op->quant.symmetric != 0,
        .raw_i32 = run->is_raw,
        .c = p->c,
        .c_set = s->vectors * s->lanes,
        .scratch = p->kernel,
        .in_squares = s->in_squares,
    };
    t.c_column = s->block * t.c_set;
    t.c_row = p->columns * t.c_column;
    if (run->is_direct) {
        t.c = (float *)op->y.data + p->image * c->ys[0] + p->group * c->co + p->row * c->ys[2] +
              p->column * c->ys[3];
        t.c_row = c->ys[2];
        t.c_column = c->ys[3];
    }
    if (run->is_bytes)
        set_bytes(p, &t);
    return t;
}

/* Are all codes of the block's results bounded (groups_kernel.h)? Scales are in the order of
 * lanes, results in that of outputs: each scale is compared with the largest bias, and a no costs a
 * little time. */
static bool is_bounded(const struct groups_item *p)
{
    const struct groups_run *run = p->run;
    const struct qni_groups_shape *s = &run->s;
    const float *const bias = bias_of(run, p->group * run->op->conv.co);
    const int64_t n = p->groups * run->op->conv.co, lanes = s->block * s->vectors * s->lanes;
    float most = 0.0f;
    for (int64_t i = 0; bias != NULL && i < n; i++) {
        if (!(fabsf(bias[i]) < 0x1p100f)) /* a NaN is not, either */
            return false;
        most = fabsf(bias[i]) > most ? fabsf(bias[i]) : most;
    }
    return qni_conv_is_bounded(run->conv, p->weights.scale, NULL, NULL, most, qni_min(lanes, n));
}

static void run_item(struct groups_item *p, int64_t item)
{
    const struct groups_run *run = p->run;
    const struct qni_op *op = run->op;
    const struct qni_groups_shape *s = &run->s;
    const int64_t per_block = op->conv.batch * s->n_bands;
    p->block = item / per_block;
    p->image = item % per_block / s->n_bands;
    p->row = item % s->n_bands * s->band;
    p->rows = qni_min(s->band, op->conv.oh - p->row);
    p->groups = qni_groups_of_block(op, s, p->block, &p->group);
    if (p->made != p->block) {
        qni_groups_weights_make(op, s, run->kernel, run->places, p->block, &p->weights);
        p->made = p->block;
        p->is_bounded = run->is_bytes && is_bounded(p);
    }
    for (p->column = 0; p->column < op->conv.ow; p->column += s->columns) {
        p->columns = qni_min(s->columns, op->conv.ow - p->column);
        load_band(p);
        const struct qni_groups_tile t = tile_of(p);
        const bool is_good = run->kernel->fn.groups(&t);
        if (QNI_UNLIKELY(!is_good) && run->kernel->strategy == QN_STRATEGY_FLOAT)
            recompute_overflowed(p, &t);
        finish(p, &t);
    }
}

static void run_thread(void *arg, struct qni_conv_worker *worker)
{
    const struct groups_run *run = arg;
    const struct qni_groups_shape *s = &run->s;
    const qn_strategy strategy = run->kernel->strategy;
    uint8_t *const memory = worker->memory;
    const bool has_offset = run->op->w[0]->head->section[QNI_SECTION_OFFSET].bytes != 0;
    struct groups_item p = {.run = run, .made = -1, .line = memory + s->line};
    p.weights.w = (float *)(void *)(memory + s->w);
    if (strategy != QN_STRATEGY_FLOAT) {
        p.weights.scale = (float *)(void *)(memory + s->scale);
        p.weights.offset = has_offset ? (float *)(void *)(memory + s->offset) : NULL;
    }
    if (strategy == QN_STRATEGY_INT8_BLOCK && !run->op->quant.symmetric)
        p.weights.sums = (float *)(void *)(memory + s->sums);
    p.weights.rows = (float *)(void *)(memory + s->rows);
    p.buffer = (float *)(void *)(memory + s->buffer);
    p.x = (float *)(void *)(memory + s->x);
    p.c = (float *)(void *)(memory + s->c);
    p.kernel = memory + s->kernel;
    p.epilogue = (struct qni_epilogue_scratch *)(void *)(memory + s->epilogue);
    for (int64_t i; qni_conv_next(worker, &i);)
        run_item(&p, i);
}

/* ---- the whole ------------------------------------------------------------------------------- */

/* What all threads read: taps, segments, lanes, places. */
static void make_tables(struct groups_run *run, uint8_t *memory)
{
    const struct qni_op *op = run->op;
    const struct qni_conv *c = &op->conv;
    const struct qni_groups_shape *s = &run->s;
    int64_t *const taps = (int64_t *)(void *)(memory + s->taps);
    int32_t *const segments = (int32_t *)(void *)(memory + s->segments);
    int32_t *const results = (int32_t *)(void *)(memory + s->results);
    int32_t *const inputs = (int32_t *)(void *)(memory + s->inputs_at);
    struct qni_groups_place *const places = (void *)(memory + s->places);
    for (int64_t i = 0; i < s->n_taps; i++)
        taps[i] = (i / c->kw * c->dilation[0] * s->width + i % c->kw * c->dilation[1]) * s->inputs;
    const int64_t groups = s->groups_of_set;
    for (int64_t i = 0; i < s->lanes; i++) {
        results[i] = (int32_t)(i < s->outputs ? i % c->co * groups + i / c->co : i);
        inputs[i] = (int32_t)(i < s->inputs ? i % groups * c->ci + i / groups : i);
    }
    if (run->kernel->algorithm == QNI_CONV_WORDS) {
        segments[0] = 0;
        segments[1] = (int32_t)s->n_taps;
    } else {
        qni_groups_order(op, run->kernel->strategy, places, segments);
    }
    run->taps = taps;
    run->segments = segments;
    run->results = results;
    run->inputs = inputs;
    run->places = places;
}

static void run_all(struct qni_conv_run *run)
{
    const struct qni_op *const op = run->op;
    const bool is_raw = qni_op_is_raw(op), is_near = op->conv.ys[1] == 1;
    const struct qni_groups_shape *const s = &run->cut->of.groups;
    struct groups_run own = {
        .conv = run,
        .op = op,
        .kernel = run->kernel,
        .s = *s,
        .is_raw = is_raw,
        .is_direct =
            s->is_dense && is_near && op->y.dtype == QN_F32 && op->epilogue.residual.rank == 0,
        .is_bytes = s->is_dense && is_near && run->kernel->algorithm == QNI_CONV_WORDS &&
                    op->epilogue.bias.rank <= 1 && qni_conv_stores_bytes(run, is_raw),
    };
    make_tables(&own, run->shared);
    qni_conv_share(run, s->n_items, false, run_thread, &own);
}

static void cut(const qn_ctx *ctx, const struct qni_op *op, const struct qni_conv_kernel *kernel,
                struct qni_conv_cut *cut)
{
    (void)ctx;
    cut->of.groups = qni_groups_shape_of(op, kernel);
}

static void plan(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice)
{
    const struct qni_groups_shape *const s = &choice->cut.conv.of.groups;
    (void)ctx;
    (void)op;
    choice->block_m = s->band * s->columns;
    choice->panels_per_task = qni_ceil_div(s->block * s->outputs, QNI_PANEL);
    choice->shared_bytes = s->shared_end;
    choice->thread_bytes = s->thread_end;
}

const struct qni_conv_driver qni_groups_driver = {cut, plan, run_all};
