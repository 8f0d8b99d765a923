/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolutions of channels that lie together (NHWC):
 *
 *     x, where it lies --> kernel: all taps, scale, bias, relu --> y, or a line --> epilogue --> y
 *
 * f16, bf16 and codes become floats first, some rows at a time. Codes less their zero point and
 * values of codes are integers whose sums are exact (depthwise_kernel.h).
 *
 * An item (driver.h) is a band of output rows of a block of channels of one image. Blocks are as
 * wide as lets the rows of x that one row of outputs reads stay in the first cache until the next
 * row of outputs; wide images are cut in columns for that. No output depends on the cut. */
#include <math.h>
#include <string.h>

#include "../../base/compiler.h"
#include "depthwise.h"
#include "driver.h"

/* ---- the cut --------------------------------------------------------------------------------- */

enum { LEAST = QNI_DEPTHWISE_LANES };

/* About how many columns of y are made at once. Of codes fewer: then more rows become floats at
 * once, and few of them twice. */
static int64_t columns_of(const struct qni_op *op, bool is_codes)
{
    return is_codes ? QNI_DEPTHWISE_CODES_COLUMNS : qn_dtype_bytes(op->x.dtype) == 1 ? 32 : 64;
}

/* About how many channels a block has. What comes from beyond the second cache comes best in long
 * stretches (96 channels of 112 x 112 at once: 240 us, 48 at a time: 355); else three rows of x
 * are to stay in the first cache (192 channels of 28 x 28: 64 at a time 30 us, 96 at a time 36).
 * Either way, so are the weights. */
static int64_t channels_of(const struct qni_op *op, bool is_codes)
{
    enum { FEW = 64, MANY = 512, ROW = 2048, WEIGHTS = 16384, SECOND = 1 << 19 };
    if (is_codes)
        return qni_max(FEW, qni_min(MANY / 2, 4 * ROW / op->conv.w));
    const struct qni_conv *g = &op->conv;
    const int64_t floats = op->n * (g->h * g->w + g->oh * g->ow);
    const bool is_long = floats > SECOND && op->x.dtype == QN_F32;
    const int64_t wanted = is_long ? MANY : ROW / g->w;
    return qni_max(FEW, qni_min(wanted, WEIGHTS / op->w[0]->head->k));
}

/* Inputs along an axis that so many neighbouring outputs read. */
static int64_t reach_of(const struct qni_op *op, int axis, int64_t outputs)
{
    const struct qni_conv *g = &op->conv;
    const int64_t taps = axis == 0 ? g->kh : g->kw;
    return (outputs - 1) * g->stride[axis] + (taps - 1) * g->dilation[axis] + 1;
}

/* Rows of outputs of an item: high enough that reading the rows between two bands twice does not
 * matter, and a few items for every thread where the work allows it. */
static void cut_rows(const struct qni_op *op, bool is_codes, int32_t n_threads,
                     struct qni_image_cut *cut)
{
    const struct qni_conv *c = &op->conv;
    const int64_t blocks = qni_max(1, c->batch * cut->n_blocks);
    const int64_t wanted = qni_ceil_div(4 * (int64_t)n_threads, blocks);
    const int64_t least = qni_min(c->oh, 4 * (int64_t)c->kh);
    cut->band = qni_max(qni_ceil_div(c->oh, wanted), qni_max(least, 1));
    cut->n_bands = qni_ceil_div(c->oh, cut->band);
    if (is_codes && cut->n_bands > 0) /* 7 and 7 rows rather than 12 and 2 */
        cut->band = qni_ceil_div(c->oh, cut->n_bands);
    cut->n_items = blocks * cut->n_bands;
}

struct qni_image_cut qni_image_cut_of(const struct qni_op *op, bool is_codes, int32_t n_threads)
{
    const struct qni_packed_head *head = op->w[0]->head;
    struct qni_image_cut cut;
    const int64_t channels = channels_of(op, is_codes);
    const int64_t blocks = qni_max(1, (op->n + channels / 2) / channels);
    cut.block = (int64_t)qni_round_up((size_t)qni_ceil_div(op->n, blocks), QNI_PANEL);
    cut.n_blocks = qni_max(1, (op->n + cut.block - LEAST) / cut.block);
    cut.columns = qni_ceil_div(op->conv.ow, qni_ceil_div(op->conv.ow, columns_of(op, is_codes)));
    cut_rows(op, is_codes, n_threads, &cut);
    const size_t ld = (size_t)(cut.block + QNI_PANEL);
    size_t at = 0;
    cut.w = at;
    at += (size_t)head->k * ld * sizeof(float);
    for (int32_t i = 0; i < 3; i++, at += ld * sizeof(float))
        cut.line[i] = at;
    cut.words = at = qni_round_up(at, 64);
    at += is_codes ? ld / QNI_PANEL * QNI_DEPTHWISE_WORDS : 0;
    cut.c = at;
    at += (size_t)cut.columns * ld * sizeof(float);
    cut.wide = at;
    cut.wide_rows = 0;
    if (op->x.dtype != QN_F32) {
        enum { WIDE = 1 << 15 };
        cut.wide_columns = is_codes ? qni_min(cut.columns, 16) : cut.columns;
        const int64_t row = reach_of(op, 1, cut.wide_columns) * (int64_t)ld;
        const int64_t more = WIDE / row - reach_of(op, 0, 1);
        cut.wide_rows = more >= 0 ? more / op->conv.stride[0] + 1 : 0;
        at += WIDE * sizeof(float);
    }
    cut.end = at;
    return cut;
}

/* ---- an item --------------------------------------------------------------------------------- */

struct image_run {
    const struct qni_op *op;
    const struct qni_conv_kernel *kernel, *stand_in; /* of the plan */
    bool serves; /* the kernel can do what this run's activation asks for */
    const struct qni_rows *rows;
    struct qni_tap_list list;
    struct qni_image_cut cut;
    struct qni_finish_step finish; /* but for what differs from line to line */
    bool is_direct;                /* the kernel writes into y */
    bool is_relu;                  /* having done that, too */
    bool is_store;                 /* and that is all */
};

/* What a thread is at. */
struct image_item {
    const struct image_run *run;
    int64_t image, output, n; /* outputs [output, output + n) */
    float *w, *line[3], *c, *wide;
    int64_t ld; /* of w and c */
    const float *scale, *bias;
    const int32_t *sum_bias;
    float *w_scale; /* int8-static */
    void *words;
};

static bool is_of_codes(const struct image_run *run)
{
    return run->kernel->algorithm == QNI_CONV_CODES;
}

static bool is_static(const struct image_run *run)
{
    return run->kernel->strategy == QN_STRATEGY_INT8_STATIC;
}

static const float *read_vector(const struct image_item *p, const qn_tensor *t, float *line)
{
    if (t->rank == 0)
        return NULL;
    qni_read_vector(t, p->output, 1, p->n, line);
    return line;
}

/* Elements from the first of x, y or the residual to output or input (row, column). */
static int64_t place_of(const struct image_item *p, const int64_t strides[4], int64_t row,
                        int64_t column)
{
    return p->image * strides[0] + p->output + row * strides[2] + column * strides[3];
}

/* The sum at (row, column) of a channel in double, which no x and weights of f32 overflow; false if
 * an input is no number. */
static bool exact_sum(const struct qni_depthwise_image *m, int64_t row, int64_t column, int64_t i,
                      double *sum)
{
    *sum = 0.0;
    for (int64_t tap = 0; tap < m->taps[0] * m->taps[1]; tap++) {
        const int64_t y = m->first[0] + row * m->stride[0] + tap / m->taps[1] * m->dilation[0];
        const int64_t x = m->first[1] + column * m->stride[1] + tap % m->taps[1] * m->dilation[1];
        if (y < 0 || y >= m->in[0] || x < 0 || x >= m->in[1])
            continue;
        const float value = m->x[y * m->x_row + x * m->x_column + i];
        if (!isfinite(value))
            return false;
        *sum += (double)value * (double)m->w[tap * m->w_tap + i];
    }
    return true;
}

/* Results that are no numbers although all inputs are: matmul/overflow.h has the same for
 * products. */
static void recompute_overflowed(const struct qni_depthwise_image *m)
{
    if (m->w_scale != NULL)
        return; /* int8-static has its steps, whatever comes */
    for (int64_t row = 0; row < m->out[0]; row++)
        for (int64_t column = 0; column < m->out[1]; column++)
            for (int64_t i = 0; i < m->n; i++) {
                float *const y = (float *)m->y + row * m->y_row + column * m->y_column + i;
                double sum;
                if (isfinite(*y) || !exact_sum(m, row, column, i, &sum))
                    continue;
                *y = (float)sum;
                if (m->scale != NULL)
                    *y *= m->scale[i];
                if (m->bias != NULL)
                    *y += m->bias[i];
            }
}

/* Columns [column, column + columns) of a row, which the kernel left in v. */
static void finish_row(const struct image_item *p, float *v, int64_t ld, int64_t row,
                       int64_t column, int64_t columns)
{
    const struct image_run *run = p->run;
    const struct qni_op *op = run->op;
    const qn_tensor *residual = &op->epilogue.residual;
    const bool is_line =
        ld == p->n && op->conv.ys[3] == p->n && (residual->rank == 0 || op->conv.rs[3] == p->n);
    const int64_t together = is_line ? columns : 1;
    struct qni_finish_step finish = run->finish;
    finish.n = together * p->n;
    finish.y_stride = 1;
    for (int64_t j = 0; j < columns; j += together) {
        const int64_t y = place_of(p, op->conv.ys, row, column + j);
        finish.y = (uint8_t *)op->y.data + (size_t)y * qn_dtype_bytes(op->y.dtype);
        if (residual->rank != 0) {
            const int64_t r = place_of(p, op->conv.rs, row, column + j);
            finish.residual_stride = op->conv.rs[1];
            finish.residual =
                (const uint8_t *)residual->data + (size_t)r * qn_dtype_bytes(residual->dtype);
        }
        run->rows->finish(v + j * ld, &finish);
    }
}

/* What the first rows of outputs of m read, as floats: m reads these. */
static void widen(const struct image_item *p, struct qni_depthwise_image *m, int64_t rows)
{
    const struct image_run *run = p->run;
    const struct qni_op *op = run->op;
    const int64_t reach[2] = {reach_of(op, 0, rows), reach_of(op, 1, m->out[1])};
    const size_t element = qn_dtype_bytes(op->x.dtype);
    int64_t from[2];
    for (int d = 0; d < 2; d++) {
        from[d] = qni_min(qni_max(m->first[d], 0), m->in[d]);
        m->in[d] = qni_max(qni_min(m->first[d] + reach[d], m->in[d]) - from[d], 0);
        m->first[d] -= from[d];
    }
    const bool is_line = op->conv.xs[3] == p->n;
    const int64_t together = is_line ? m->in[1] : 1, n = together * p->n;
    const size_t step = (size_t)(together * op->conv.xs[3]) * element;
    float *to = p->wide;
    for (int64_t i = 0; i < m->in[0]; i++) {
        const int64_t at = place_of(p, op->conv.xs, from[0] + i, from[1]);
        const uint8_t *x = (const uint8_t *)op->x.data + (size_t)at * element;
        for (int64_t j = 0; j < m->in[1]; j += together, x += step, to += n)
            if (is_static(run))
                run->rows->widen_codes(to, x, op->x.dtype, op->quant.x_zero, n);
            else
                run->rows->widen(to, x, op->x.dtype, NULL, n);
    }
    m->x = p->wide;
    m->x_row = m->in[1] * p->n;
    m->x_column = p->n;
}

/* All that m says by the row that stands in, which reads floats and has no bound for scales. */
static void run_wide(const struct image_item *p, const struct qni_depthwise_image *m)
{
    const struct qni_image_cut *cut = &p->run->cut;
    for (int64_t i = 0; i < m->out[0]; i += cut->wide_rows)
        for (int64_t j = 0; j < m->out[1]; j += cut->wide_columns) {
            struct qni_depthwise_image cut_image = *m;
            cut_image.out[0] = qni_min(cut->wide_rows, m->out[0] - i);
            cut_image.out[1] = qni_min(cut->wide_columns, m->out[1] - j);
            cut_image.first[0] += i * m->stride[0];
            cut_image.first[1] += j * m->stride[1];
            cut_image.y = (uint8_t *)m->y + i * m->y_row + j * m->y_column;
            widen(p, &cut_image, cut_image.out[0]);
            p->run->stand_in->fn.image(&cut_image);
        }
}

/* Recomputes what the kernel wrote, as f32 and before the activation. Then y is finished, or
 * it is f32 and waits for finish_row(). */
static void recompute_rows(const struct image_item *p, const struct qni_depthwise_image *m,
                           int64_t row, int64_t column)
{
    if (is_of_codes(p->run)) {
        run_wide(p, m);
        return;
    }
    struct qni_depthwise_image plain = *m;
    const bool again = m->is_relu || m->y_type != QN_F32;
    if (!again) {
        recompute_overflowed(m);
        return;
    }
    plain.is_relu = false;
    plain.y = p->c;
    plain.y_type = QN_F32;
    plain.y_column = p->ld;
    plain.out[0] = 1;
    for (int64_t i = 0; i < m->out[0]; i++, plain.first[0] += m->stride[0]) {
        p->run->kernel->fn.image(&plain);
        recompute_overflowed(&plain);
        finish_row(p, p->c, p->ld, row + i, column, m->out[1]);
    }
}

/* Output rows [row, row + rows), columns from `column` on: as m says, but for what differs from row
 * to row. */
static void run_rows(const struct image_item *p, struct qni_depthwise_image *m, int64_t row,
                     int64_t rows, int64_t column)
{
    const struct image_run *run = p->run;
    const struct qni_op *op = run->op;
    m->out[0] = run->is_store ? rows : 1;
    for (int64_t i = 0; i < rows; i += m->out[0], m->first[0] += op->conv.stride[0]) {
        if (run->is_direct)
            m->y = (uint8_t *)op->y.data +
                   (size_t)place_of(p, op->conv.ys, row + i, column) * qn_dtype_bytes(op->y.dtype);
        const bool is_good = run->serves && run->kernel->fn.image(m);
        if (!QNI_LIKELY(is_good))
            recompute_rows(p, m, row + i, column);
        if (run->stand_in != NULL)
            qni_op_note(op, is_good ? QNI_RAN_KERNEL : QNI_RAN_STAND_IN);
        if (!run->is_store)
            finish_row(p, m->y, m->y_column, row + i, column, m->out[1]);
    }
}

/* Output rows [row, end), columns [column, column + columns). */
static void run_columns(const struct image_item *p, int64_t row, int64_t end, int64_t column,
                        int64_t columns)
{
    const struct image_run *run = p->run;
    const struct qni_op *op = run->op;
    const struct qni_conv *g = &op->conv;
    const bool is_f32 = op->x.dtype == QN_F32, is_codes = is_of_codes(run);
    const bool is_wide = !is_f32 && !is_codes;
    const int64_t x = place_of(p, g->xs, 0, 0);
    const int64_t cut_image = is_wide ? run->cut.wide_rows : end - row;
    const struct qni_depthwise_image whole = {
        .x = is_f32 ? (const float *)op->x.data + x : NULL,
        .x_row = g->xs[2],
        .x_column = g->xs[3],
        .in = {g->h, g->w},
        .taps = {g->kh, g->kw},
        .stride = {g->stride[0], g->stride[1]},
        .dilation = {g->dilation[0], g->dilation[1]},
        .w = p->w,
        .w_tap = p->ld,
        .w_scale = p->w_scale,
        .x_scale = op->quant.x_scale,
        .scale = p->scale,
        .bias = p->bias,
        .sum_bias = p->sum_bias,
        .is_relu = run->is_relu,
        .most = run->finish.act == QN_ACT_RELU6 ? 6.0f : INFINITY,
        .y = p->c,
        .y_type = run->is_direct ? op->y.dtype : QN_F32,
        .y_inv = run->finish.y_inv,
        .y_zero = run->finish.y_zero,
        .y_row = g->ys[2],
        .y_column = run->is_direct ? g->ys[3] : p->ld,
        .out = {1, columns},
        .n = p->n,
        .codes = is_codes ? (const uint8_t *)op->x.data + x : NULL,
        .x_type = op->x.dtype,
        .x_zero = op->quant.x_zero,
        .words = p->words,
    };
    for (int64_t rows; row < end; row += rows) {
        struct qni_depthwise_image m = whole;
        rows = qni_min(cut_image, end - row);
        m.first[0] = row * g->stride[0] - g->pad[0];
        m.first[1] = column * g->stride[1] - g->pad[1];
        if (is_wide)
            widen(p, &m, rows);
        run_rows(p, &m, row, rows, column);
    }
}

static void run_item(struct image_item *p, int64_t item)
{
    const struct image_run *run = p->run;
    const struct qni_image_cut *cut = &run->cut;
    const int64_t rest = item / cut->n_bands, block = rest % cut->n_blocks;
    const int64_t row = item % cut->n_bands * cut->band, ow = run->op->conv.ow;
    p->image = rest / cut->n_blocks;
    p->output = block * cut->block;
    p->n = block + 1 < cut->n_blocks ? cut->block : run->op->n - p->output;
    qni_image_weights_expand(run->op->w[0], p->output / QNI_PANEL, qni_ceil_div(p->n, QNI_PANEL),
                             &run->list, p->w, p->ld, p->w_scale);
    p->scale = read_vector(p, &run->op->epilogue.col_scale, p->line[0]);
    const qn_tensor *bias = &run->op->epilogue.bias;
    const void *line = read_vector(p, bias, p->line[1]);
    p->bias = bias->dtype == QN_I32 ? NULL : line;
    p->sum_bias = bias->dtype == QN_I32 ? line : NULL;
    for (int64_t j = 0; j < ow; j += cut->columns)
        run_columns(p, row, qni_min(row + cut->band, run->op->conv.oh), j,
                    qni_min(cut->columns, ow - j));
}

static void run_thread(void *arg, struct qni_conv_worker *worker)
{
    const struct image_run *run = arg;
    uint8_t *const memory = worker->memory;
    struct image_item p = {
        .run = run,
        .w = (float *)(void *)(memory + run->cut.w),
        .line = {(float *)(void *)(memory + run->cut.line[0]),
                 (float *)(void *)(memory + run->cut.line[1]),
                 (float *)(void *)(memory + run->cut.line[2])},
        .words = memory + run->cut.words,
        .c = (float *)(void *)(memory + run->cut.c),
        .wide = (float *)(void *)(memory + run->cut.wide),
        .ld = run->cut.block + QNI_PANEL,
    };
    p.w_scale = is_static(run) ? p.line[2] : NULL;
    for (int64_t i; qni_conv_next(worker, &i);)
        run_item(&p, i);
}

bool qni_image_is_store(const struct qni_op *op)
{
    const qn_epilogue *const e = &op->epilogue;
    const bool has_clamp = e->clamp_lo > -INFINITY || e->clamp_hi < INFINITY;
    /* A residual may be y. */
    return e->residual.rank == 0 && !has_clamp &&
           (e->act == QN_ACT_NONE || e->act == QN_ACT_RELU || e->act == QN_ACT_RELU6);
}

/* ---- the whole ------------------------------------------------------------------------------- */

static void run_all(struct qni_conv_run *conv)
{
    const struct qni_op *const op = conv->op;
    const struct qni_conv_kernel *const kernel = conv->kernel;
    struct image_run run = {
        .op = op,
        .kernel = kernel,
        .stand_in = conv->stand_in,
        .rows = conv->rows,
        .cut = conv->cut->of.image,
        .finish = conv->epilogue.finish,
    };
    run.list = qni_tap_list_make(op, conv->patches.axis, conv->patches.phase, kernel->strategy,
                                 false, conv->shared);
    /* Kernels of floats store no codes. */
    run.is_store = qni_image_is_store(op) &&
                   (kernel->strategy != QN_STRATEGY_FLOAT || qn_dtype_bytes(op->y.dtype) > 1);
    run.serves = run.is_store || kernel->algorithm != QNI_CONV_CODES;
    run.is_relu = run.is_store && run.finish.act != QN_ACT_NONE;
    run.is_direct = op->epilogue.residual.rank == 0 && (run.is_store || op->y.dtype == QN_F32);
    qni_conv_share(conv, run.cut.n_items, false, run_thread, &run);
}

static void cut(const qn_ctx *ctx, const struct qni_op *op, const struct qni_conv_kernel *kernel,
                struct qni_conv_cut *cut)
{
    const bool is_codes = kernel->algorithm == QNI_CONV_CODES;
    cut->of.image = qni_image_cut_of(op, is_codes, ctx->threads.n_threads);
}

static void plan(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice)
{
    const struct qni_image_cut *const cut = &choice->cut.conv.of.image;
    (void)ctx;
    choice->block_m = cut->columns;
    choice->panels_per_task = (int32_t)(cut->block / QNI_PANEL);
    choice->thread_bytes = qni_round_up(cut->end, 64);
    choice->shared_bytes = qni_tap_list_bytes(op->w[0]->head);
}

const struct qni_conv_driver qni_image_driver = {cut, plan, run_all};
