/* SPDX-License-Identifier: Apache-2.0 */
/* Y[r] = X[source(r)] . W[expert(r)]^T: the rows of an expert are brought together by a counting
 * sort, and each expert is a part of one product, so that the driver sees all work at once and
 * cuts it for all threads.
 *
 *     ids      2 0 2 - 0 1        order    1 4 | 5 | 0 2        row 3 has no expert: left alone
 *     part     0: [0, 2)   1: [2, 3)   2: [3, 5)
 *
 * The sort is stable, so that equal calls do the same work in the same order; the bits do not
 * depend on it, since a row of y is a product of its own. With offsets the rows lie in order
 * already. */
#include "grouped.h"

#include "../../base/compiler.h"
#include "../../base/size.h"
#include "driver.h"

/* Scratch: parts, then the order, then the rows of x in that order. */
static size_t parts_bytes(const struct qni_op *op)
{
    return qni_round_up((size_t)op->n_w * sizeof(struct qni_part), 64);
}
static size_t rows_bytes(int64_t m)
{
    return qni_round_up((size_t)m * sizeof(int32_t), 64);
}
static size_t own_bytes(const struct qni_op *op)
{
    const bool is_sorted = op->ids.rank == 0;
    const int64_t lists = is_sorted ? 0 : op->x_rows.rank == 0 ? 1 : 2;
    return parts_bytes(op) + (size_t)lists * rows_bytes(op->m);
}

qn_status qni_grouped_select(const qn_ctx *ctx, const struct qni_op *op,
                             struct qni_cpu_choice *choice, qni_refusal_fn tell, void *arg)
{
    if (op->ids.rank != 0 && op->m > INT32_MAX)
        return QN_E_UNSUPPORTED; /* the order holds int32 */
    const struct qni_product_shape shape = {
        .m = op->m,
        .part_m = op->m, /* all rows may meet one expert */
        .n_parts = op->n_w,
        .n_panels = op->w[0]->head->panels,
    };
    QNI_TRY(qni_product_select(ctx, op, &shape, choice, tell, arg));
    choice->scratch_bytes += own_bytes(op);
    return QN_OK;
}

static void make_parts(const struct qni_op *op, struct qni_part *parts)
{
    const int64_t n_halves = op->more.gate == QN_GATE_HALVES ? 2 : 1;
    for (int32_t e = 0; e < op->n_w; e++) {
        const struct qni_part part = {
            .w = op->w[e],
            .n_panels = op->w[e]->head->panels / n_halves,
            .n = op->n / n_halves,
            .expert = e,
            .tag = e,
        };
        parts[e] = part;
    }
}

static void parts_of_offsets(const struct qni_op *op, struct qni_part *parts)
{
    const int32_t *offsets = op->offsets.data;
    const int64_t stride = op->offsets.stride[0];
    for (int64_t e = 0; e < op->n_w; e++) {
        parts[e].row = offsets[e * stride];
        parts[e].n_rows = offsets[(e + 1) * stride] - offsets[e * stride];
    }
}

/* Rows of y by expert; a part's n_rows serves as its place in the order while that is filled. */
static void parts_of_ids(const struct qni_op *op, struct qni_part *parts, int32_t *order)
{
    const int32_t *ids = op->ids.data;
    const int64_t stride = op->ids.stride[0];
    for (int64_t r = 0; r < op->m; r++)
        if (ids[r * stride] >= 0)
            parts[ids[r * stride]].n_rows++;
    int64_t row = 0;
    for (int64_t e = 0; e < op->n_w; e++) {
        parts[e].row = row;
        row += parts[e].n_rows;
        parts[e].n_rows = 0;
    }
    for (int64_t r = 0; r < op->m; r++)
        if (ids[r * stride] >= 0) {
            struct qni_part *part = &parts[ids[r * stride]];
            order[part->row + part->n_rows++] = (int32_t)r;
        }
}

void qni_grouped_run(const qn_ctx *ctx, const struct qni_op *op,
                     const struct qni_cpu_choice *choice, void *scratch)
{
    struct qni_part *parts = scratch;
    int32_t *order = (int32_t *)((uint8_t *)scratch + parts_bytes(op));
    int32_t *rows_of_x = (int32_t *)((uint8_t *)order + rows_bytes(op->m));
    struct qni_product product = {
        .source = qni_source_of_matrix(&op->x),
        .sink = qni_sink_of_matrix(&op->y, &op->epilogue.residual),
        .parts = parts,
        .n_parts = op->n_w,
    };
    product.source.index_stride = product.sink.index_stride = 1;
    make_parts(op, parts);
    const int32_t *x_rows = op->x_rows.rank == 0 ? NULL : op->x_rows.data;
    const int64_t stride = x_rows == NULL ? 0 : op->x_rows.stride[0];
    if (op->batch_rows >= 0) {
        for (int64_t e = 0; e < op->n_w; e++) {
            parts[e].row = e * op->batch_rows;
            parts[e].n_rows = op->batch_rows;
        }
    } else if (op->ids.rank == 0) {
        parts_of_offsets(op, parts);
        product.source.index = x_rows;
        product.source.index_stride = stride;
    } else {
        parts_of_ids(op, parts, order);
        product.sink.index = product.source.index = order;
        if (x_rows != NULL) {
            const struct qni_part *last = &parts[op->n_w - 1];
            for (int64_t i = 0; i < last->row + last->n_rows; i++)
                rows_of_x[i] = x_rows[order[i] * stride];
            product.source.index = rows_of_x;
        }
    }
    qni_product_run(ctx, op, choice, &product, (uint8_t *)scratch + own_bytes(op));
}
