/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of qn_prepare(), and products that read what it leaves. */
#include <string.h>

#include "../base/error.h"
#include "backend.h"
#include "check.h"
#include "validate.h"

static bool is_dynamic(qn_strategy strategy)
{
    return strategy == QN_STRATEGY_INT8_ROW || strategy == QN_STRATEGY_INT8_BLOCK;
}

static qn_status check_backend(const qn_ctx *ctx, qn_error *err)
{
    if (qni_backend_of(ctx->device.kind)->prepare != NULL)
        return QN_OK;
    return qni_fail(err, QN_E_UNSUPPORTED,
                    "rows are prepared on the CPU alone: on a GPU each product quantizes its own");
}

qn_status qni_validate_prepare(const qn_ctx *ctx, const qn_prepare_args *args, int with_data,
                               struct qni_op *op, qn_error *err)
{
    QNI_TRY(qni_check_weights(ctx, args->w, -1, err));
    const struct qni_packed_head *head = args->w->head;
    QNI_TRY(check_backend(ctx, err));
    if (head->conv_groups != 1)
        return qni_fail(err, QN_E_SHAPE,
                        "w belongs to a convolution of %d groups: it is not one matrix",
                        head->conv_groups);
    if (!is_dynamic(args->strategy))
        return qni_fail(err, QN_E_ARGUMENT,
                        "strategy is %d: int8-row and int8-block quantize rows of x",
                        args->strategy);
    QNI_TRY(qni_check_flag(args->quant.symmetric, "quant.symmetric", err));
    if (args->reserved != 0 || args->quant.reserved != 0)
        return qni_fail(err, QN_E_ARGUMENT, "reserved is not 0");
    memset(op, 0, sizeof *op);
    op->kind = QNI_MATMUL;
    op->strategy = args->strategy;
    op->n = head->n;
    op->k = head->k;
    op->w = &args->w;
    op->n_w = 1;
    op->x = args->x;
    op->quant = args->quant;
    QNI_TRY(qni_check_tensor(ctx, &op->x, "x", 2, QNI_FLOATS, err));
    op->m = op->x.shape[0];
    const int64_t shape[2] = {op->m, op->k};
    QNI_TRY(qni_check_shape(&op->x, "x", shape, err));
    return with_data ? qni_check_data(ctx, &op->x, "x", err) : QN_OK;
}

qn_status qni_validate_prepared(const qn_ctx *ctx, const void *prepared, int with_data,
                                struct qni_op *op, qn_error *err)
{
    size_t bytes = 0;
    if (prepared == NULL)
        return QN_OK;
    QNI_TRY(check_backend(ctx, err));
    if (!is_dynamic(op->strategy))
        return qni_fail(err, QN_E_ARGUMENT,
                        "prepared rows are of int8-row or int8-block, and strategy is %s",
                        qn_strategy_name(op->strategy));
    op->is_prepared = 1;
    if (!with_data)
        return QN_OK;
    if ((uintptr_t)prepared % 64 != 0)
        return qni_fail(err, QN_E_ALIGN, "prepared is not aligned to 64 bytes");
    op->prepared = prepared;
    QNI_TRY(qni_backend_of(ctx->device.kind)->prepared_check(op, &bytes, err));
    return qni_check_apart_bytes(&op->y, "y", prepared, bytes, "the prepared rows", err);
}
