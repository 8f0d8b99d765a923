/* SPDX-License-Identifier: Apache-2.0 */
/* qn_finish(): the epilogue on its own. */
#include <string.h>

#include "../base/error.h"
#include "../base/sized.h"
#include "backend.h"
#include "check.h"
#include "log.h"
#include "validate.h"

/* The values are the x of an operation that multiplies nothing. */
qn_status qni_validate_finish(const qn_ctx *ctx, const qn_finish_args *args, struct qni_op *op,
                              qn_error *err)
{
    const unsigned y_types = QNI_FLOATS | QNI_BYTES;
    memset(op, 0, sizeof *op);
    QNI_TRY(qni_check_tensor(ctx, &args->v, "v", 2, QNI_TYPE(QN_F32), err));
    QNI_TRY(qni_check_tensor(ctx, &args->y, "y", 2, y_types, err));
    QNI_TRY(qni_check_shape(&args->y, "y", args->v.shape, err));
    QNI_TRY(qni_check_output(&args->y, "y", err));
    op->kind = QNI_MATMUL;
    op->strategy = QN_STRATEGY_INT8_ROW; /* its results have one NaN */
    op->m = args->v.shape[0];
    op->n = args->v.shape[1];
    op->x = args->v;
    op->y = args->y;
    op->epilogue = args->epilogue;
    QNI_TRY(qni_validate_more(args->more, op, err));
    if (op->more.gate != QN_GATE_NONE)
        return qni_fail(err, QN_E_ARGUMENT, "qn_finish() takes no gate: products have one");
    QNI_TRY(qni_validate_epilogue(ctx, op, err));
    const bool in_place = args->y.data == args->v.data && args->y.dtype == QN_F32 &&
                          args->y.stride[0] == args->v.stride[0];
    QNI_TRY(qni_check_data(ctx, &args->v, "v", err));
    if (in_place)
        op->x = qn_tensor_none(); /* every element is read before it is written */
    else
        QNI_TRY(qni_check_apart(&args->y, "y", &args->v, "v", err));
    QNI_TRY(qni_validate_data(ctx, op, err));
    op->x = args->v;
    return QN_OK;
}

static qn_status run(const qn_ctx *ctx, const qn_finish_args *args, qn_error *err)
{
    qn_finish_args own;
    struct qni_op op;
    if (ctx == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "ctx is NULL");
    qn_finish_args_init(&own);
    QNI_TRY(qni_sized_read(&own, sizeof own, args, err));
    const struct qni_backend *const backend = qni_backend_of(ctx->device.kind);
    if (backend->finish == NULL)
        return qni_fail(err, QN_E_UNSUPPORTED, "qn_finish() runs on the CPU; the context is of %s",
                        backend->name);
    QNI_TRY(qni_validate_finish(ctx, &own, &op, err));
    return op.m == 0 || op.n == 0 ? QN_OK : backend->finish(ctx, &op, err);
}

qn_status qn_finish(const qn_ctx *ctx, const qn_finish_args *args)
{
    struct qni_words words;
    qn_error *const error = qni_sized_error(args, offsetof(qn_finish_args, error));
    qn_error *const err = qni_words_listen(ctx, error, &words);
    return qni_words_tell(&words, run(ctx, args, err));
}
