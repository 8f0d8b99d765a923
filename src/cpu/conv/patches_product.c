/* SPDX-License-Identifier: Apache-2.0 */
/* A convolution as products of its patch matrix, which is made a block of rows at a time
 * (patches.h):
 *
 *     y[output, group's channels] = patch[output, taps * ci of the group] . W[group]^T
 *
 * Each convolution group is a part of the product; each phase of a transposed convolution is a
 * product of its own, whose rows land on every stride-th pixel of y. Where patches are rows of x
 * as they lie in memory (1 x 1, stride 1, no padding, NHWC, one group) nothing is gathered. */
#include "../../base/compiler.h"
#include "../rows/rows.h"
#include "conv.h"
#include "patches.h"
#include "phase_weights.h"

static size_t parts_bytes(const struct qni_op *op)
{
    return qni_round_up((size_t)op->conv.groups * sizeof(struct qni_part), 64);
}

static int64_t phase_rows(const struct qni_op *op, const struct qni_patches *p)
{
    return op->conv.batch * qni_patches_per_image(p);
}

qn_status qni_patches_select(const qn_ctx *ctx, const struct qni_op *op,
                             struct qni_cpu_choice *choice, qni_refusal_fn tell, void *arg)
{
    const struct qni_patches first = qni_patches_of(op, NULL, 0, 0, false); /* the largest phase */
    const struct qni_product_shape shape = {
        .m = phase_rows(op, &first) * op->conv.groups,
        .part_m = phase_rows(op, &first),
        .n_parts = op->conv.groups,
        .n_panels = op->w[0]->head->panels / op->conv.groups,
        .is_made = 1,
        .source_bytes = qni_patches_line_bytes(&first),
    };
    QNI_TRY(qni_product_select(ctx, op, &shape, choice, tell, arg));
    choice->scratch_bytes += parts_bytes(op);
    if (qni_has_phase_weights(op))
        choice->scratch_bytes += qni_round_up(qni_phase_weights_bytes(op), 64);
    return QN_OK;
}

static void make_parts(const struct qni_op *op, const qn_packed *w, int64_t rows,
                       struct qni_part *parts)
{
    const int64_t panels = op->w[0]->head->panels / op->conv.groups;
    for (int64_t g = 0; g < op->conv.groups; g++) {
        const struct qni_part part = {
            .w = w,
            .panel = g * panels,
            .n_panels = panels,
            .n = op->conv.co,
            .column = g * op->conv.co,
            .expert = 0,
            .row = 0,
            .n_rows = rows,
            .tag = g,
        };
        parts[g] = part;
    }
}

static void fill(const void *arg, const struct qni_part *part, int64_t row, int64_t n_rows,
                 void *dst, size_t ld, void *scratch)
{
    const struct qni_patches *p = arg;
    qni_patches_gather(p, row, n_rows, part->tag * p->channels, dst, ld, scratch);
}

/* Is row r of the patch matrix x + r * ldx, as it lies? */
static bool is_matrix(const struct qni_op *op, const struct qni_patches *p)
{
    const struct qni_conv *c = &op->conv;
    for (int32_t i = 0; i < 2; i++)
        if (p->axis[i].taps != 1 || c->stride[i] != 1 || c->pad[i] != 0 ||
            p->axis[i].in != p->axis[i].out)
            return false;
    return c->groups == 1 && (c->xs[1] == 1 || c->ci == 1) && c->xs[2] == c->w * c->xs[3] &&
           (c->batch == 1 || c->xs[0] == c->h * c->xs[2]);
}

static struct qni_row_source source_of(const struct qni_op *op, const struct qni_patches *p)
{
    struct qni_row_source source = {.dtype = op->x.dtype};
    if (is_matrix(op, p)) {
        source.x = op->x.data;
        source.ldx = op->conv.xs[3];
    } else {
        source.fill = fill;
        source.arg = p;
        source.scratch_bytes = qni_patches_line_bytes(p);
    }
    return source;
}

/* Strides of the sink (image, row, column, channel) from those of a tensor, for the pixels of a
 * phase; the first of these, in elements. */
static int64_t sink_strides(const struct qni_patches *p, const int64_t tensor[4], int64_t stride[4])
{
    stride[0] = tensor[0];
    stride[1] = tensor[2] * p->phase[0].step;
    stride[2] = tensor[3] * p->phase[1].step;
    stride[3] = tensor[1];
    return tensor[2] * p->phase[0].first + tensor[3] * p->phase[1].first;
}

struct qni_row_sink qni_conv_sink(const struct qni_op *op, const struct qni_patches *p)
{
    struct qni_row_sink sink = {
        .dtype = op->y.dtype,
        .size = {p->phase[0].count, p->phase[1].count},
    };
    const int64_t at = sink_strides(p, op->conv.ys, sink.stride);
    sink.y = (uint8_t *)op->y.data + (size_t)at * qn_dtype_bytes(op->y.dtype);
    const qn_tensor *residual = &op->epilogue.residual;
    if (residual->rank != 0) {
        const int64_t from = sink_strides(p, op->conv.rs, sink.residual_stride);
        sink.residual =
            (const uint8_t *)residual->data + (size_t)from * qn_dtype_bytes(residual->dtype);
    }
    return sink;
}

void qni_patches_run(const qn_ctx *ctx, const struct qni_op *op,
                     const struct qni_cpu_choice *choice, void *scratch)
{
    const struct qni_rows *const rows = qni_rows_for(ctx->isa);
    struct qni_part *parts = scratch;
    uint8_t *memory = (uint8_t *)scratch + parts_bytes(op), *rest = memory;
    const bool live = qni_has_phase_weights(op);
    if (live)
        rest += qni_round_up(qni_phase_weights_bytes(op), 64);
    struct qni_phase_weights of_phase;
    const struct qni_axis y = qni_conv_axis(op, 0), x = qni_conv_axis(op, 1);
    const int64_t n_y = qni_min(qni_axis_phases(&y), y.out);
    const int64_t n_x = qni_min(qni_axis_phases(&x), x.out);
    for (int64_t py = 0; py < n_y; py++)
        for (int64_t px = 0; px < n_x; px++) {
            const struct qni_patches p = qni_patches_of(op, rows, py, px, live);
            if (live)
                qni_phase_weights_make(ctx, op, p.taps, memory, &of_phase);
            make_parts(op, live ? &of_phase.packed : op->w[0], phase_rows(op, &p), parts);
            const struct qni_product product = {
                .source = source_of(op, &p),
                .sink = qni_conv_sink(op, &p),
                .parts = parts,
                .n_parts = op->conv.groups,
                .has_own_weights = live,
            };
            qni_product_run(ctx, op, choice, &product, rest);
        }
}
