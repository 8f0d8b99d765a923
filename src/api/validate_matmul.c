/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of qn_matmul(). */
#include <string.h>

#include "../base/error.h"
#include "check.h"
#include "validate.h"

qn_status qni_validate_matmul(const qn_ctx *ctx, const qn_matmul_args *args, int with_data,
                              struct qni_op *op, qn_error *err)
{
    QNI_TRY(qni_check_weights(ctx, args->w, -1, err));
    const struct qni_packed_head *head = args->w->head;
    if (head->conv_groups != 1)
        return qni_fail(err, QN_E_SHAPE,
                        "w belongs to a convolution of %d groups: it is not one matrix",
                        head->conv_groups);
    if (args->x.rank < 2 || args->y.rank != args->x.rank || args->x.rank > QN_MAX_RANK)
        return qni_fail(err, QN_E_SHAPE, "x and y have ranks %d and %d: the same, 2 at least",
                        args->x.rank, args->y.rank);
    memset(op, 0, sizeof *op);
    op->kind = QNI_MATMUL;
    op->strategy = args->strategy;
    op->x = args->x;
    op->y = args->y;
    QNI_TRY(qni_check_flat(&op->y, "y", &args->x, err));
    QNI_TRY(qni_check_flat(&op->x, "x", &args->x, err));
    op->m = op->x.shape[0];
    op->n = head->n;
    op->k = head->k;
    op->w = &args->w;
    op->n_w = 1;
    op->strict = args->strict;
    op->epilogue = args->epilogue;
    op->quant = args->quant;
    op->kernel = args->kernel;
    op->x_scales = args->x_scales;
    QNI_TRY(qni_validate_types(ctx, op, err));
    QNI_TRY(qni_validate_more(args->more, op, err));
    QNI_TRY(qni_check_flat(&op->epilogue.residual, "residual", &args->y, err));
    QNI_TRY(qni_check_flat(&op->more.factor, "factor", &args->y, err));
    const int64_t x_shape[2] = {op->m, op->k}, y_shape[2] = {op->m, qni_op_columns(op)};
    QNI_TRY(qni_check_shape(&op->x, "x", x_shape, err));
    QNI_TRY(qni_check_shape(&op->y, "y", y_shape, err));
    QNI_TRY(qni_check_output(&op->y, "y", err));
    QNI_TRY(qni_validate_epilogue(ctx, op, err));
    QNI_TRY(qni_validate_prepared(ctx, args->prepared, with_data, op, err));
    return with_data ? qni_validate_data(ctx, op, err) : QN_OK;
}
