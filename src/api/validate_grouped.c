/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of qn_grouped(): many weights of one shape, and the tensors that route rows to them. */
#include <string.h>

#include "../base/error.h"
#include "check.h"
#include "validate.h"

static bool are_formats_equal(const qn_format *a, const qn_format *b)
{
    return a->code == b->code && a->bits == b->bits && a->group == b->group &&
           a->blocks == b->blocks && a->shift == b->shift && a->scale_dtype == b->scale_dtype &&
           a->superblock == b->superblock && a->superbits == b->superbits;
}

static qn_status check_experts(const qn_ctx *ctx, const qn_grouped_args *args, qn_error *err)
{
    if (args->w == NULL || args->n_experts <= 0)
        return qni_fail(err, QN_E_ARGUMENT, "there are no experts: w is NULL or n_experts is %d",
                        args->n_experts);
    for (int32_t e = 0; e < args->n_experts; e++) {
        QNI_TRY(qni_check_weights(ctx, args->w[e], e, err));
        const struct qni_packed_head *first = args->w[0]->head, *head = args->w[e]->head;
        if (head->conv_groups != 1)
            return qni_fail(err, QN_E_SHAPE,
                            "w[%d] belongs to a convolution of %d groups: it is not one matrix", e,
                            head->conv_groups);
        if (head->n != first->n || head->k != first->k)
            return qni_fail(err, QN_E_SHAPE,
                            "expert %d has weights [%lld, %lld], the first one [%lld, %lld]", e,
                            (long long)head->n, (long long)head->k, (long long)first->n,
                            (long long)first->k);
        if (!are_formats_equal(&head->format, &first->format) ||
            (head->format.code == QN_CODE_TABLE && !qni_same_table(args->w[0], args->w[e])))
            return qni_fail(err, QN_E_FORMAT,
                            "expert %d has another weight format than the first one", e);
        bool is_same = strncmp(head->layout, first->layout, sizeof head->layout) == 0 &&
                       head->x_block == first->x_block; /* scales may be f16 or f32 */
        for (int32_t s = 0; s < QNI_N_SECTIONS; s++)
            is_same = is_same && (head->section[s].bytes == 0) == (first->section[s].bytes == 0);
        if (!is_same)
            return qni_fail(err, QN_E_LAYOUT,
                            "expert %d is packed in another way than the first one", e);
    }
    return QN_OK;
}

static qn_status check_index(const qn_ctx *ctx, const qn_tensor *t, const char *name,
                             int64_t length, qn_error *err)
{
    if (qni_is_none(t))
        return QN_OK;
    QNI_TRY(qni_check_tensor(ctx, t, name, 1, QNI_TYPE(QN_I32), err));
    return qni_check_shape(t, name, &length, err);
}

static qn_status check_routing(const qn_ctx *ctx, const struct qni_op *op, qn_error *err)
{
    if (op->batch_rows >= 0)
        return QN_OK;
    if (qni_is_none(&op->offsets) == qni_is_none(&op->ids))
        return qni_fail(err, QN_E_ARGUMENT, "exactly one of offsets and ids tells the experts");
    QNI_TRY(check_index(ctx, &op->offsets, "offsets", (int64_t)op->n_w + 1, err));
    QNI_TRY(check_index(ctx, &op->ids, "ids", op->m, err));
    QNI_TRY(check_index(ctx, &op->x_rows, "x_rows", op->m, err));
    if (qni_is_none(&op->x_rows) && op->x.shape[0] != op->m)
        return qni_fail(err, QN_E_SHAPE,
                        "x has %lld rows and y %lld: without x_rows they are equal",
                        (long long)op->x.shape[0], (long long)op->m);
    return QN_OK;
}

/* Ranges rise and stay inside y; rows before the first and after the last one belong to nobody. */
static qn_status check_offsets(const struct qni_op *op, qn_error *err)
{
    const int32_t *offsets = op->offsets.data;
    for (int32_t e = 0; e <= op->n_w; e++) {
        const int32_t low = e == 0 ? 0 : offsets[e - 1];
        if (offsets[e] < low || offsets[e] > op->m)
            return qni_fail(err, QN_E_VALUE, "offsets[%d] is %d: it lies between %d and %lld", e,
                            offsets[e], low, (long long)op->m);
    }
    return QN_OK;
}

static qn_status check_ids(const struct qni_op *op, qn_error *err)
{
    const int32_t *ids = op->ids.data;
    for (int64_t r = 0; r < op->m; r++) {
        if (ids[r] >= op->n_w)
            return qni_fail(err, QN_E_VALUE, "ids[%lld] is %d: there are %d experts", (long long)r,
                            ids[r], op->n_w);
    }
    return QN_OK;
}

/* Only rows that have an expert read x. */
static qn_status check_x_rows(const struct qni_op *op, qn_error *err)
{
    const int32_t *rows = op->x_rows.data;
    const int32_t *ids = qni_is_none(&op->ids) ? NULL : op->ids.data;
    const int32_t *offsets = qni_is_none(&op->offsets) ? NULL : op->offsets.data;
    const int64_t begin = offsets != NULL ? offsets[0] : 0,
                  end = offsets != NULL ? offsets[op->n_w] : op->m;
    for (int64_t r = begin; r < end; r++) {
        if (ids != NULL && ids[r] < 0)
            continue;
        if (rows[r] < 0 || rows[r] >= op->x.shape[0])
            return qni_fail(err, QN_E_VALUE, "x_rows[%lld] is %d: x has %lld rows", (long long)r,
                            rows[r], (long long)op->x.shape[0]);
    }
    return QN_OK;
}

static qn_status check_routes(const struct qni_op *op, qn_error *err)
{
    if (op->batch_rows >= 0)
        return QN_OK;
    if (!qni_is_none(&op->offsets))
        QNI_TRY(check_offsets(op, err));
    else
        QNI_TRY(check_ids(op, err));
    return qni_is_none(&op->x_rows) ? QN_OK : check_x_rows(op, err);
}

/* x [n_experts, m, k] and y [n_experts, m, n]: as many rows for each of the weights. */
static qn_status flatten(const qn_grouped_args *args, struct qni_op *op, qn_error *err)
{
    if (!qni_is_none(&args->offsets) || !qni_is_none(&args->ids) || !qni_is_none(&args->x_rows))
        return qni_fail(
            err, QN_E_ARGUMENT,
            "of a batch (x and y of rank 3) no offsets, ids or x_rows tell the experts");
    if (args->x.shape[0] != args->n_experts)
        return qni_fail(err, QN_E_SHAPE, "x is a batch of %lld, and there are %d weights",
                        (long long)args->x.shape[0], args->n_experts);
    QNI_TRY(qni_check_flat(&op->y, "y", &args->x, err));
    QNI_TRY(qni_check_flat(&op->x, "x", &args->x, err));
    op->batch_rows = args->x.shape[1];
    return QN_OK;
}

qn_status qni_validate_grouped(const qn_ctx *ctx, const qn_grouped_args *args, int with_data,
                               struct qni_op *op, qn_error *err)
{
    QNI_TRY(check_experts(ctx, args, err));
    const bool is_batch = args->x.rank == 3 && args->y.rank == 3;
    if (!is_batch && (args->x.rank != 2 || args->y.rank != 2))
        return qni_fail(err, QN_E_SHAPE, "x and y have ranks %d and %d, not 2 (or 3: a batch)",
                        args->x.rank, args->y.rank);
    if (args->reserved != 0)
        return qni_fail(err, QN_E_ARGUMENT, "reserved is not 0");
    memset(op, 0, sizeof *op);
    op->kind = QNI_GROUPED;
    op->strategy = args->strategy;
    op->x = args->x;
    op->y = args->y;
    op->batch_rows = -1;
    if (is_batch)
        QNI_TRY(flatten(args, op, err));
    op->m = op->y.shape[0];
    op->n = args->w[0]->head->n;
    op->k = args->w[0]->head->k;
    op->w = args->w;
    op->n_w = args->n_experts;
    op->strict = args->strict;
    op->offsets = args->offsets;
    op->ids = args->ids;
    op->x_rows = args->x_rows;
    op->epilogue = args->epilogue;
    op->quant = args->quant;
    op->kernel = args->kernel;
    op->x_scales = args->x_scales;
    QNI_TRY(qni_validate_types(ctx, op, err));
    QNI_TRY(qni_validate_more(args->more, op, err));
    QNI_TRY(qni_check_flat(&op->epilogue.residual, "residual", &args->y, err));
    QNI_TRY(qni_check_flat(&op->more.factor, "factor", &args->y, err));
    const int64_t x_shape[2] = {op->x.shape[0], op->k}, y_shape[2] = {op->m, qni_op_columns(op)};
    QNI_TRY(qni_check_shape(&op->x, "x", x_shape, err));
    QNI_TRY(qni_check_shape(&op->y, "y", y_shape, err));
    QNI_TRY(qni_check_output(&op->y, "y", err));
    QNI_TRY(check_routing(ctx, op, err));
    QNI_TRY(qni_validate_epilogue(ctx, op, err));
    QNI_TRY(qni_validate_prepared(ctx, args->prepared, with_data, op, err));
    if (!with_data)
        return QN_OK;
    QNI_TRY(qni_validate_data(ctx, op, err));
    /* Routing on another device can only be checked there. */
    return ctx->device.kind == QN_CPU ? check_routes(op, err) : QN_OK;
}
