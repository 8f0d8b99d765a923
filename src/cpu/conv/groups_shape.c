/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting a grouped convolution: groups_shape.h. */
#include "groups_shape.h"

#include <string.h>

#include "../../base/size.h"
#include "../rows/epilogue.h"

/* About 64 channels a block: x is read in lines of 256 bytes, and a band of it and the weights stay
 * in the second cache. */
enum { CHANNELS = 64, WEIGHTS_BYTES = 40 * 1024, BAND_BYTES = 192 * 1024, COLUMNS = 64 };

static void choose_sets(const struct qni_op *op, struct qni_groups_shape *s)
{
    const struct qni_conv *c = &op->conv;
    const int64_t fit_lanes = qni_min(s->lanes / qni_max(c->co, 1), c->groups);
    s->groups_of_set = fit_lanes >= 4 ? 4 : fit_lanes >= 2 ? 2 : 1;
    s->inputs = s->groups_of_set * c->ci;
    s->outputs = s->groups_of_set * c->co;
    s->vectors = qni_ceil_div(s->outputs, s->lanes);
    s->sets = qni_ceil_div(c->groups, s->groups_of_set);
    s->is_dense = s->outputs == s->vectors * s->lanes && c->groups % s->groups_of_set == 0;
    const int64_t bytes = s->vectors * s->lanes * s->positions * (int64_t)s->element;
    const int64_t fit = qni_min(CHANNELS / s->inputs, WEIGHTS_BYTES / qni_max(bytes, 1));
    s->n_blocks = qni_ceil_div(s->sets, qni_max(1, fit));
    s->block = qni_ceil_div(s->sets, s->n_blocks);
    s->n_blocks = qni_ceil_div(s->sets, s->block);
}

int64_t qni_groups_reach(const struct qni_op *op, const struct qni_groups_shape *s, int axis,
                         int64_t outputs)
{
    const struct qni_conv *c = &op->conv;
    const int64_t taps = axis == 0 ? c->kh : c->kw;
    outputs += s->in_squares ? outputs % 2 : 0;
    return (outputs - 1) * c->stride[axis] + (taps - 1) * c->dilation[axis] + 1;
}

/* Squares of 2 x 2 outputs of 3 x 3 neighbouring taps. */
static bool has_squares(const struct qni_conv *c)
{
    for (int axis = 0; axis < 2; axis++)
        if (c->stride[axis] != 1 || c->dilation[axis] != 1)
            return false;
    return c->kh == 3 && c->kw == 3;
}

static void choose_band(const struct qni_op *op, struct qni_groups_shape *s)
{
    const struct qni_conv *c = &op->conv;
    s->columns = qni_ceil_div(c->ow, qni_ceil_div(c->ow, COLUMNS));
    s->width = qni_groups_reach(op, s, 1, s->columns);
    const int64_t pixel = s->block * s->inputs * (int64_t)s->element;
    const int64_t rows = BAND_BYTES / (s->width * pixel);
    const int64_t more = (rows - qni_groups_reach(op, s, 0, 1)) / c->stride[0];
    const int64_t fit = qni_max(1, qni_min(c->oh, more + 1));
    s->n_bands = qni_ceil_div(c->oh, fit);
    s->band = qni_ceil_div(c->oh, s->n_bands);
    s->n_bands = qni_ceil_div(c->oh, s->band);
    s->n_items = s->n_blocks * c->batch * s->n_bands;
    s->height = qni_groups_reach(op, s, 0, s->band);
}

static size_t take(size_t *at, size_t bytes)
{
    const size_t here = *at;
    *at += qni_round_up(bytes, 64);
    return here;
}

static void place_scratch(const struct qni_op *op, qn_strategy strategy, struct qni_groups_shape *s)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const size_t n_lanes = (size_t)(s->block * s->vectors * s->lanes);
    const size_t lanes = n_lanes * sizeof(float);
    const size_t table = (size_t)s->lanes * sizeof(int32_t);
    size_t at = 0;
    s->taps = take(&at, (size_t)s->n_taps * sizeof(int64_t));
    s->segments = take(&at, (size_t)(s->n_segments + 1) * sizeof(int32_t));
    s->results = take(&at, table);
    s->inputs_at = take(&at, table);
    s->places = take(&at, (size_t)op->k * sizeof(struct qni_groups_place));
    s->shared_end = at;
    at = 0;
    s->w = take(&at, n_lanes * (size_t)s->positions * s->element);
    const size_t facts = strategy == QN_STRATEGY_FLOAT ? 0 : lanes * (size_t)s->n_segments;
    s->scale = take(&at, facts);
    s->offset = take(&at, head->section[QNI_SECTION_OFFSET].bytes == 0 ? 0 : facts);
    s->sums = take(&at, strategy == QN_STRATEGY_INT8_BLOCK ? facts : 0);
    s->rows = take(&at, strategy == QN_STRATEGY_FLOAT
                            ? (size_t)(2 * head->n_groups * QNI_PANEL) * sizeof(float)
                            : 0);
    s->x = take(&at, (size_t)(s->height * s->width * s->block * s->inputs + QNI_GROUPS_LANES) *
                         s->element);
    s->line = take(&at, (size_t)(s->width * s->block * s->inputs) * qn_dtype_bytes(op->x.dtype));
    s->buffer = take(&at, (size_t)(s->block * s->inputs + QNI_GROUPS_LANES) * sizeof(float));
    s->c = take(&at, lanes * (size_t)(s->band * s->columns));
    s->kernel = take(&at, strategy == QN_STRATEGY_INT8_ROW || strategy == QN_STRATEGY_INT8_BLOCK
                              ? qni_groups_scratch_bytes(s->n_taps, s->inputs, s->n_segments)
                          : s->in_squares ? qni_groups_squares_bytes(s->inputs)
                                          : 0);
    s->epilogue = take(&at, sizeof(struct qni_epilogue_scratch));
    s->thread_end = at;
}

struct qni_groups_shape qni_groups_shape_of(const struct qni_op *op,
                                            const struct qni_conv_kernel *kernel)
{
    struct qni_groups_shape s;
    memset(&s, 0, sizeof s);
    s.lanes = kernel->helpers.groups->lanes;
    s.n_taps = (int64_t)op->conv.kh * op->conv.kw;
    s.in_squares = kernel->algorithm == QNI_CONV_WORDS && has_squares(&op->conv);
    s.positions = s.in_squares ? QNI_GROUPS_SQUARE_TAPS * op->conv.ci : op->k;
    s.element = kernel->algorithm == QNI_CONV_WORDS ? sizeof(int16_t) : sizeof(float);
    const struct qni_cut cut = qni_cut_of(op->w[0]->head, kernel->row.reads);
    s.n_segments = kernel->strategy == QN_STRATEGY_FLOAT ? 1 : cut.n_segments;
    choose_sets(op, &s);
    choose_band(op, &s);
    place_scratch(op, kernel->strategy, &s);
    return s;
}
