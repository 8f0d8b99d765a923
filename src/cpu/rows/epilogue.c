/* SPDX-License-Identifier: Apache-2.0 */
/* From a tile to y: epilogue.h. */
#include "epilogue.h"

#include <math.h>

#include "../../base/half.h"
#include "../../base/size.h"

enum { EVERYTHING = 1 }; /* digits of a row number: see merge() */

/* Rows that follow each other evenly in y and in the residual need no division to be found: if
 * stride[1] = size[1] * stride[2], then
 *     b * stride[1] + c * stride[2] = (b * size[1] + c) * stride[2]. */
static struct qni_row_sink merge(struct qni_row_sink s)
{
    const int64_t *y = s.stride, *r = s.residual_stride;
    const bool residual = s.residual != NULL;
    if (y[1] == s.size[1] * y[2] && (!residual || r[1] == s.size[1] * r[2])) {
        s.size[1] *= s.size[0];
        s.size[0] = EVERYTHING;
        if (y[0] == s.size[1] * y[2] && (!residual || r[0] == s.size[1] * r[2]))
            s.size[1] = INT64_MAX;
    }
    return s;
}

struct qni_row_sink qni_sink_of_matrix(const qn_tensor *y, const qn_tensor *residual)
{
    struct qni_row_sink s = {
        .y = y->data, .dtype = y->dtype, .size = {1, INT64_MAX}, .stride = {0, 0, y->stride[0], 1}};
    if (residual->rank != 0) {
        s.residual = residual->data;
        s.residual_stride[2] = residual->stride[0];
        s.residual_stride[3] = 1;
    }
    return s;
}

/* RELU6 is a RELU and a clamp. */
static bool are_floats(const struct qni_epilogue *e, const struct qni_row_sink *sink)
{
    const struct qni_op *op = e->op;
    const qn_act act = e->finish.act;
    const bool is_known = act == QN_ACT_NONE || act == QN_ACT_RELU || act == QN_ACT_HARDSWISH ||
                          (act == QN_ACT_RELU6 && !e->finish.has_clamp);
    const bool is_plain = sink->residual == NULL ||
                          (e->finish.residual_dtype == QN_F32 && sink->residual_stride[3] == 1);
    return !e->raw && !e->has_zeros && is_known && is_plain && e->x_scale == 1.0f &&
           sink->dtype == QN_F32 && sink->stride[3] == 1 && op->more.gate == QN_GATE_NONE &&
           op->more.factor.rank == 0 && op->epilogue.row_scale.rank == 0;
}

struct qni_epilogue qni_epilogue_make(const struct qni_op *op, const struct qni_rows *rows,
                                      const struct qni_row_sink *sink)
{
    const qn_epilogue *from = &op->epilogue;
    struct qni_epilogue e;
    memset(&e, 0, sizeof e);
    e.op = op;
    e.rows = rows;
    e.sink = sink->size[1] == INT64_MAX ? *sink : merge(*sink);
    e.raw = qni_op_is_raw(op);
    e.has_zeros = qni_op_has_raw_zeros(op);
    e.by_column = sink->stride[3] != 1 && sink->stride[2] == 1 && sink->index == NULL;
    e.x_scale = op->strategy == QN_STRATEGY_INT8_STATIC ? op->quant.x_scale : 1.0f;
    if (sink->dtype == QN_I32)
        e.x_scale = 1.0f;
    struct qni_finish_step *f = &e.finish;
    f->residual_dtype = from->residual.dtype;
    f->residual_after = from->residual_after;
    qni_finish_add(f, &op->more);
    f->act = from->act;
    f->has_clamp =
        from->clamp_lo > -3.402823466e+38f * 2.0f || from->clamp_hi < 3.402823466e+38f * 2.0f;
    f->clamp_lo = from->clamp_lo;
    f->clamp_hi = from->clamp_hi;
    f->y_dtype = sink->dtype;
    f->y_inv = 1.0f / from->y_scale;
    f->y_zero = from->y_zero;
    e.is_store = !e.raw && from->bias.rank == 0 && sink->residual == NULL &&
                 from->act == QN_ACT_NONE && !f->has_clamp && from->row_scale.rank == 0 &&
                 from->col_scale.rank == 0 && op->more.gate == QN_GATE_NONE &&
                 op->more.factor.rank == 0;
    e.is_floats = are_floats(&e, sink);
    return e;
}

/* ---- where rows are -------------------------------------------------------------------------- */

/* The number of row r of y, and its offset for the given strides. */
static int64_t number_of(const struct qni_row_sink *s, int64_t r)
{
    return s->index == NULL ? r : s->index[r * s->index_stride];
}

static int64_t offset_of(const struct qni_row_sink *s, const int64_t stride[4], int64_t i)
{
    if (s->size[1] == INT64_MAX)
        return i * stride[2];
    const int64_t c = i % s->size[1], ab = i / s->size[1];
    return ab / s->size[0] * stride[0] + ab % s->size[0] * stride[1] + c * stride[2];
}

/* Rows from r on, at most n, that are evenly spaced. */
static int64_t span_of(const struct qni_row_sink *s, int64_t r, int64_t n)
{
    if (s->index != NULL)
        return 1;
    return s->size[1] == INT64_MAX ? n : qni_min(n, s->size[1] - r % s->size[1]);
}

float *qni_epilogue_direct(const struct qni_epilogue *e, const struct qni_part *part, int64_t row,
                           int64_t rows, size_t *ldc)
{
    const struct qni_row_sink *s = &e->sink;
    if (s->dtype != QN_F32 || s->stride[3] != 1 || s->residual != NULL ||
        e->op->more.gate != QN_GATE_NONE || span_of(s, row, rows) < rows)
        return NULL;
    *ldc = (size_t)s->stride[2];
    return (float *)s->y + offset_of(s, s->stride, number_of(s, row)) + part->column;
}

/* ---- scales and bias ------------------------------------------------------------------------- */

/* n values of a row of a [n] or [experts, n] tensor as floats: where they lie, or converted to
 * `into`. */
static const float *row_of(const struct qni_rows *rows, const qn_tensor *t, int64_t expert,
                           int64_t column, int64_t n, float *into)
{
    if (t->rank == 0)
        return NULL;
    const int64_t at = (t->rank == 2 ? expert * t->stride[0] : 0) + column;
    const uint8_t *const data = (const uint8_t *)t->data + (size_t)at * qn_dtype_bytes(t->dtype);
    if (t->dtype == QN_F32 || t->dtype == QN_I32)
        return (const float *)(const void *)data;
    rows->widen(into, data, t->dtype, NULL, n);
    return into;
}

/* The weights' scales of one group as f32; half of them for E2M1, whose integers are doubled. */
static void weight_scales(const qn_packed *w, int64_t lane, int64_t n, float *into)
{
    const void *const scale = qni_section(w, QNI_SECTION_SCALE);
    const float times = w->head->format.code == QN_CODE_E2M1 ? 0.5f : 1.0f;
    for (int64_t j = 0; j < n; j++)
        into[j] = times * (w->head->scale_dtype == QN_F16
                               ? qni_f32_from_f16(((const uint16_t *)scale)[lane + j])
                               : ((const float *)scale)[lane + j]);
}

/* Zero points of n outputs from `lane` on as int32, or NULL (k = 0: the sums are 0). Their type may
 * differ from expert to expert. */
static const int32_t *weight_zeros(const qn_packed *w, int64_t lane, int64_t n, int32_t *into)
{
    const void *const zero = qni_section(w, QNI_SECTION_ZERO);
    for (int64_t j = 0; zero != NULL && j < n; j++)
        into[j] = w->head->zero_dtype == QN_I8 ? ((const int8_t *)zero)[lane + j]
                                               : ((const int32_t *)zero)[lane + j];
    return zero == NULL ? NULL : into;
}

/* sum of x - x_zero * count: what zero points are multiplied with. */
static int32_t sum_of_row(const struct qni_epilogue *e, const struct qni_epilogue_tile *t,
                          int64_t i)
{
    int64_t sum = -qni_op_x_zero(e->op) * t->k;
    for (int64_t s = 0; s < t->n_sums; s++)
        sum += t->x_sum[(size_t)i * t->ld_sum + (size_t)s];
    return (int32_t)sum;
}

static void scale_rows(const struct qni_epilogue *e, const struct qni_epilogue_tile *t,
                       struct qni_epilogue_scratch *scratch)
{
    const qn_epilogue *from = &e->op->epilogue;
    const int64_t column = t->part->column + t->output;
    struct qni_scale_step step;
    memset(&step, 0, sizeof step);
    step.n = t->n;
    step.col_scale =
        row_of(e->rows, &from->col_scale, t->part->expert, column, t->n, scratch->col_scale);
    step.bias = row_of(e->rows, &from->bias, t->part->expert, column, t->n, scratch->bias);
    step.from_i32 = e->raw;
    if (from->bias.rank != 0 && from->bias.dtype == QN_I32) {
        step.bias_i32 = (const int32_t *)(const void *)step.bias;
        step.bias = NULL;
    }
    const int64_t lane = t->part->panel * QNI_PANEL + t->output;
    if (e->raw && e->sink.dtype != QN_I32) {
        /* Phases of a transposed convolution without taps have none; biases are in them, too. */
        const bool has_taps = qni_section(t->part->w, QNI_SECTION_SCALE) != NULL;
        weight_scales(has_taps ? t->part->w : e->op->w[0], lane, t->n, scratch->w_scale);
        step.w_scale = scratch->w_scale;
    }
    if (e->has_zeros)
        step.w_zero = weight_zeros(t->part->w, lane, t->n, scratch->w_zero);
    for (int64_t i = 0; i < t->rows; i++) {
        step.x_sum = step.w_zero != NULL ? sum_of_row(e, t, i) : 0;
        step.x_scale = t->x_scale != NULL ? t->x_scale[i] : e->x_scale;
        step.row_scale = 1.0f;
        if (from->row_scale.rank != 0)
            step.row_scale =
                ((const float *)from->row_scale
                     .data)[number_of(&e->sink, t->row + i) * from->row_scale.stride[0]];
        e->rows->scale(t->c + (size_t)i * t->ldc, &step);
    }
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void place_line(const struct qni_epilogue *e, struct qni_finish_step *f, int64_t y,
                       int64_t residual)
{
    const size_t bytes = qn_dtype_bytes(e->sink.dtype);
    f->y = (uint8_t *)e->sink.y + (size_t)y * bytes;
    f->residual = NULL;
    if (e->sink.residual != NULL)
        f->residual = (const uint8_t *)e->sink.residual +
                      (size_t)residual * qn_dtype_bytes(f->residual_dtype);
}

/* Outputs 2 j, and outputs 2 j + 1. */
static void part_pairs(const float *v, int64_t n, float *even, float *odd)
{
    for (int64_t j = 0; j < n; j++) {
        even[j] = v[2 * j];
        odd[j] = v[2 * j + 1];
    }
}

/* What row i of the tile, whose results are v, is multiplied with. */
static void place_factor(const struct qni_epilogue *e, const struct qni_epilogue_tile *t, int64_t i,
                         struct qni_finish_step *f)
{
    const qn_tensor *factor = &e->op->more.factor;
    f->factor_dtype = QN_F32;
    if (t->other != NULL) {
        f->factor = t->other + (size_t)i * t->ldc;
    } else if (factor->rank != 0) {
        const int64_t at =
            number_of(&e->sink, t->row + i) * factor->stride[0] + t->part->column + t->output;
        f->factor_dtype = factor->dtype;
        f->factor = (const uint8_t *)factor->data + (size_t)at * qn_dtype_bytes(factor->dtype);
    }
}

/* Once rows are scaled, there is room in scratch for the halves of pairs. */
static void finish_rows(const struct qni_epilogue *e, const struct qni_epilogue_tile *t,
                        struct qni_epilogue_scratch *scratch)
{
    const struct qni_row_sink *s = &e->sink;
    const bool is_paired = e->op->more.gate == QN_GATE_PAIRS;
    const int64_t column = t->part->column + (is_paired ? t->output / 2 : t->output);
    struct qni_finish_step f = e->finish;
    f.n = is_paired ? t->n / 2 : t->n;
    f.y_stride = s->stride[3];
    f.residual_stride = s->residual_stride[3];
    for (int64_t i = 0; i < t->rows; i++) {
        const int64_t number = number_of(s, t->row + i);
        place_line(e, &f, offset_of(s, s->stride, number) + column * s->stride[3],
                   offset_of(s, s->residual_stride, number) + column * s->residual_stride[3]);
        float *v = t->c + (size_t)i * t->ldc;
        place_factor(e, t, i, &f);
        if (is_paired) {
            part_pairs(v, f.n, scratch->col_scale, scratch->bias);
            v = scratch->col_scale;
            f.factor = scratch->bias;
        }
        e->rows->finish(v, &f);
    }
}

/* Is a finished line what the tile holds? */
static bool is_bare(const struct qni_epilogue *e)
{
    const struct qni_finish_step *f = &e->finish;
    return (e->sink.dtype == QN_F32 || e->sink.dtype == QN_I32) && e->sink.residual == NULL &&
           f->act == QN_ACT_NONE && !f->has_clamp;
}

/* Columns of n rows of the tile, from element (row i, output j) on, as lines of y. */
static void finish_lines(const struct qni_epilogue *e, const struct qni_epilogue_tile *t, int64_t i,
                         int64_t j, struct qni_finish_step *f, struct qni_epilogue_scratch *scratch)
{
    const struct qni_row_sink *s = &e->sink;
    const int64_t columns = qni_min(QNI_PANEL, t->n - j), column = t->part->column + t->output + j;
    const int64_t y = offset_of(s, s->stride, t->row + i) + column * s->stride[3];
    const int64_t residual =
        offset_of(s, s->residual_stride, t->row + i) + column * s->residual_stride[3];
    const uint8_t *const from = (const uint8_t *)(t->c + (size_t)i * t->ldc + j);
    const size_t ldc = t->ldc * sizeof *t->c;
    if (is_bare(e)) {
        e->rows->turn((uint8_t *)((float *)s->y + y), (size_t)s->stride[3] * sizeof(float), from,
                      ldc, columns, f->n, sizeof(float));
        return;
    }
    const size_t line = qni_round_up((size_t)f->n, QNI_PANEL);
    e->rows->turn((uint8_t *)scratch->lines, line * sizeof(float), from, ldc, columns, f->n,
                  sizeof(float));
    for (int64_t q = 0; q < columns; q++) {
        place_line(e, f, y + q * s->stride[3], residual + q * s->residual_stride[3]);
        e->rows->finish(scratch->lines + (size_t)q * line, f);
    }
}

/* What a kernel leaves as it is, in y or on its way there: its NaN is made the one of all
 * processors. Float products promise none. */
static void leave_one_nan(const struct qni_epilogue *e, const struct qni_epilogue_tile *t)
{
    const bool is_int8 = e->op->strategy == QN_STRATEGY_INT8_ROW ||
                         e->op->strategy == QN_STRATEGY_INT8_BLOCK ||
                         e->op->strategy == QN_STRATEGY_INT8_STATIC;
    if (!is_int8 || QNI_LIKELY(e->rows->is_finite(t->c, t->rows, t->n, (int64_t)t->ldc)))
        return;
    for (int64_t i = 0; i < t->rows; i++) {
        float *const v = t->c + (size_t)i * t->ldc;
        e->rows->scale_to(v, v, 1.0f, t->n);
    }
}

/* 16 columns of the tile become lines at a time; a line ends where y's rows are no longer even. */
static void finish_columns(const struct qni_epilogue *e, const struct qni_epilogue_tile *t,
                           struct qni_epilogue_scratch *scratch)
{
    const struct qni_row_sink *s = &e->sink;
    struct qni_finish_step f = e->finish;
    f.y_stride = s->stride[2];
    f.residual_stride = s->residual_stride[2];
    if (is_bare(e) && s->dtype == QN_F32)
        leave_one_nan(e, t);
    for (int64_t i = 0; i < t->rows; i += f.n) {
        f.n = span_of(s, t->row + i, qni_min(t->rows - i, QNI_EPILOGUE_ROWS));
        for (int64_t j = 0; j < t->n; j += QNI_PANEL)
            finish_lines(e, t, i, j, &f, scratch);
    }
}

/* Nothing but the scale of a row: from the tile to y in one pass. A line of y that is stored whole
 * past the caches need not be read first. */
static void store_rows(const struct qni_epilogue *e, const struct qni_epilogue_tile *t)
{
    const struct qni_row_sink *s = &e->sink;
    const int64_t column = t->part->column + t->output;
    const bool is_even = span_of(s, t->row, t->rows) >= t->rows;
    bool is_past = false;
    float *y = (float *)s->y + column + offset_of(s, s->stride, number_of(s, t->row));
    if (y == t->c && (t->is_scaled || (t->x_scale == NULL && e->x_scale == 1.0f))) {
        leave_one_nan(e, t);
        return;
    }
    for (int64_t i = 0; i < t->rows; i++, y += s->stride[2]) {
        if (!is_even)
            y = (float *)s->y + offset_of(s, s->stride, number_of(s, t->row + i)) + column;
        const float *const v = t->c + (size_t)i * t->ldc;
        const float times = t->is_scaled ? 1.0f : t->x_scale != NULL ? t->x_scale[i] : e->x_scale;
        if (y != v && t->is_far && (uintptr_t)y % 64 == 0 && t->n % 16 == 0) {
            e->rows->scale_past(y, v, times, t->n);
            is_past = true;
        } else if (y != v || times != 1.0f) {
            e->rows->scale_to(y, v, times, t->n);
        }
    }
    if (is_past)
        e->rows->fence();
}

/* Tiles of floats: all steps in one pass, span by span. */
static void run_floats(const struct qni_epilogue *e, const struct qni_epilogue_tile *t,
                       struct qni_epilogue_scratch *scratch)
{
    const struct qni_row_sink *s = &e->sink;
    const struct qni_finish_step *f = &e->finish;
    const qn_epilogue *from = &e->op->epilogue;
    const int64_t column = t->part->column + t->output;
    struct qni_float_rows r = {.n = t->n, .ldv = (int64_t)t->ldc, .ldy = s->stride[2]};
    r.ldr = s->residual_stride[2];
    r.col_scale =
        row_of(e->rows, &from->col_scale, t->part->expert, column, t->n, scratch->col_scale);
    r.bias = row_of(e->rows, &from->bias, t->part->expert, column, t->n, scratch->bias);
    r.residual_after = f->residual_after;
    r.act = f->act == QN_ACT_RELU6 ? QN_ACT_RELU : f->act;
    r.clamp_lo = f->has_clamp ? f->clamp_lo : -INFINITY;
    r.clamp_hi = f->has_clamp ? f->clamp_hi : f->act == QN_ACT_RELU6 ? 6.0f : INFINITY;
    for (int64_t i = 0; i < t->rows; i += r.rows) {
        const int64_t number = number_of(s, t->row + i);
        r.rows = span_of(s, t->row + i, t->rows - i);
        r.v = t->c + (size_t)i * t->ldc;
        r.x_scale = t->x_scale != NULL ? t->x_scale + i : NULL;
        r.y = (float *)s->y + offset_of(s, s->stride, number) + column;
        if (s->residual != NULL)
            r.residual =
                (const float *)s->residual + offset_of(s, s->residual_stride, number) + column;
        e->rows->float_rows(&r);
    }
}

void qni_epilogue_run(const struct qni_epilogue *e, const struct qni_epilogue_tile *tile,
                      struct qni_epilogue_scratch *scratch)
{
    if (e->is_store && e->sink.dtype == QN_F32 && e->sink.stride[3] == 1) {
        store_rows(e, tile);
        return;
    }
    if (e->is_floats && !e->is_store && tile->other == NULL) {
        run_floats(e, tile, scratch);
        return;
    }
    const bool has_scale = tile->x_scale != NULL || e->x_scale != 1.0f;
    if (!e->is_store || (has_scale && !tile->is_scaled))
        scale_rows(e, tile, scratch);
    if (tile->other != NULL) {
        struct qni_epilogue_tile other = *tile;
        other.c = tile->other;
        other.output += tile->part->n;
        scale_rows(e, &other, scratch);
    }
    if (e->by_column)
        finish_columns(e, tile, scratch);
    else
        finish_rows(e, tile, scratch);
}
