/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of the four operations. Each reads the caller's struct into one of this
 * version, validates it into a qni_op, and hands that to plan.c. Those without a qn_error tell the
 * context's log why they fail (log.h). */
#include "../base/error.h"
#include "log.h"
#include "plan.h"
#include "sized.h"
#include "validate.h"

static qn_status check_ctx(const qn_ctx *ctx, qn_error *err)
{
    return ctx == NULL ? qni_fail(err, QN_E_ARGUMENT, "ctx is NULL") : QN_OK;
}

static qn_status check_plan(const qn_plan *plan, int32_t kind)
{
    return plan == NULL || plan->op.kind != kind ? QN_E_ARGUMENT : QN_OK;
}

/* --------------------------------------------------------------------------------------- matmul */

/* own must live as long as op, which points into it. */
static qn_status read_matmul(const qn_ctx *ctx, const qn_matmul_args *args, int with_data,
                             qn_matmul_args *own, struct qni_op *op, qn_error *err)
{
    QNI_TRY(check_ctx(ctx, err));
    qn_matmul_args_init(own);
    QNI_TRY(qni_sized_read(own, sizeof *own, args, err));
    return qni_validate_matmul(ctx, own, with_data, op, err);
}

qn_status qn_matmul_plan(const qn_ctx *ctx, const qn_matmul_args *args, qn_plan **plan,
                         qn_error *err)
{
    qn_matmul_args own;
    struct qni_op op;
    QNI_TRY(read_matmul(ctx, args, QNI_WITHOUT_DATA, &own, &op, err));
    return qni_plan_create(ctx, &op, plan, err);
}

qn_status qn_matmul_run(const qn_plan *plan, const qn_matmul_args *args, void *scratch,
                        size_t scratch_bytes)
{
    qn_matmul_args own;
    struct qni_op op;
    struct qni_words words;
    QNI_TRY(check_plan(plan, QNI_MATMUL));
    qn_error *const err = qni_log_listen(plan->ctx, &words);
    qn_status status = read_matmul(plan->ctx, args, QNI_WITH_DATA, &own, &op, err);
    if (status == QN_OK)
        status = qni_plan_run(plan, &op, scratch, scratch_bytes, err);
    return qni_log_tell(&words, status);
}

qn_status qn_matmul(const qn_ctx *ctx, const qn_matmul_args *args, void *scratch,
                    size_t scratch_bytes)
{
    qn_matmul_args own;
    struct qni_op op;
    struct qni_words words;
    qn_error *const err = qni_log_listen(ctx, &words);
    qn_status status = read_matmul(ctx, args, QNI_WITH_DATA, &own, &op, err);
    if (status == QN_OK)
        status = qni_direct_run(ctx, &op, scratch, scratch_bytes, err);
    return qni_log_tell(&words, status);
}

qn_status qn_matmul_scratch(const qn_ctx *ctx, const qn_matmul_args *args, size_t *bytes)
{
    qn_matmul_args own;
    struct qni_op op;
    struct qni_words words;
    qn_error *const err = qni_log_listen(ctx, &words);
    qn_status status = read_matmul(ctx, args, QNI_WITHOUT_DATA, &own, &op, err);
    if (status == QN_OK)
        status = qni_direct_scratch(ctx, &op, bytes, err);
    return qni_log_tell(&words, status);
}

/* -------------------------------------------------------------------------------------- grouped */

static qn_status read_grouped(const qn_ctx *ctx, const qn_grouped_args *args, int with_data,
                              qn_grouped_args *own, struct qni_op *op, qn_error *err)
{
    QNI_TRY(check_ctx(ctx, err));
    qn_grouped_args_init(own);
    QNI_TRY(qni_sized_read(own, sizeof *own, args, err));
    return qni_validate_grouped(ctx, own, with_data, op, err);
}

qn_status qn_grouped_plan(const qn_ctx *ctx, const qn_grouped_args *args, qn_plan **plan,
                          qn_error *err)
{
    qn_grouped_args own;
    struct qni_op op;
    QNI_TRY(read_grouped(ctx, args, QNI_WITHOUT_DATA, &own, &op, err));
    return qni_plan_create(ctx, &op, plan, err);
}

qn_status qn_grouped_run(const qn_plan *plan, const qn_grouped_args *args, void *scratch,
                         size_t scratch_bytes)
{
    qn_grouped_args own;
    struct qni_op op;
    struct qni_words words;
    QNI_TRY(check_plan(plan, QNI_GROUPED));
    qn_error *const err = qni_log_listen(plan->ctx, &words);
    qn_status status = read_grouped(plan->ctx, args, QNI_WITH_DATA, &own, &op, err);
    if (status == QN_OK)
        status = qni_plan_run(plan, &op, scratch, scratch_bytes, err);
    return qni_log_tell(&words, status);
}

qn_status qn_grouped(const qn_ctx *ctx, const qn_grouped_args *args, void *scratch,
                     size_t scratch_bytes)
{
    qn_grouped_args own;
    struct qni_op op;
    struct qni_words words;
    qn_error *const err = qni_log_listen(ctx, &words);
    qn_status status = read_grouped(ctx, args, QNI_WITH_DATA, &own, &op, err);
    if (status == QN_OK)
        status = qni_direct_run(ctx, &op, scratch, scratch_bytes, err);
    return qni_log_tell(&words, status);
}

qn_status qn_grouped_scratch(const qn_ctx *ctx, const qn_grouped_args *args, size_t *bytes)
{
    qn_grouped_args own;
    struct qni_op op;
    struct qni_words words;
    qn_error *const err = qni_log_listen(ctx, &words);
    qn_status status = read_grouped(ctx, args, QNI_WITHOUT_DATA, &own, &op, err);
    if (status == QN_OK)
        status = qni_direct_scratch(ctx, &op, bytes, err);
    return qni_log_tell(&words, status);
}

/* --------------------------------------------------------------------------------- convolutions */

static qn_status read_conv(const qn_ctx *ctx, const qn_conv_args *args, int32_t kind, int with_data,
                           qn_conv_args *own, struct qni_op *op, qn_error *err)
{
    QNI_TRY(check_ctx(ctx, err));
    qn_conv_args_init(own);
    QNI_TRY(qni_sized_read(own, sizeof *own, args, err));
    return qni_validate_conv(ctx, own, kind, with_data, op, err);
}

static qn_status plan_conv(const qn_ctx *ctx, const qn_conv_args *args, int32_t kind,
                           qn_plan **plan, qn_error *err)
{
    qn_conv_args own;
    struct qni_op op;
    QNI_TRY(read_conv(ctx, args, kind, QNI_WITHOUT_DATA, &own, &op, err));
    return qni_plan_create(ctx, &op, plan, err);
}

static qn_status run_conv(const qn_plan *plan, const qn_conv_args *args, int32_t kind,
                          void *scratch, size_t scratch_bytes)
{
    qn_conv_args own;
    struct qni_op op;
    struct qni_words words;
    QNI_TRY(check_plan(plan, kind));
    qn_error *const err = qni_log_listen(plan->ctx, &words);
    qn_status status = read_conv(plan->ctx, args, kind, QNI_WITH_DATA, &own, &op, err);
    if (status == QN_OK)
        status = qni_plan_run(plan, &op, scratch, scratch_bytes, err);
    return qni_log_tell(&words, status);
}

static qn_status direct_conv(const qn_ctx *ctx, const qn_conv_args *args, int32_t kind,
                             void *scratch, size_t scratch_bytes)
{
    qn_conv_args own;
    struct qni_op op;
    struct qni_words words;
    qn_error *const err = qni_log_listen(ctx, &words);
    qn_status status = read_conv(ctx, args, kind, QNI_WITH_DATA, &own, &op, err);
    if (status == QN_OK)
        status = qni_direct_run(ctx, &op, scratch, scratch_bytes, err);
    return qni_log_tell(&words, status);
}

static qn_status scratch_conv(const qn_ctx *ctx, const qn_conv_args *args, int32_t kind,
                              size_t *bytes)
{
    qn_conv_args own;
    struct qni_op op;
    struct qni_words words;
    qn_error *const err = qni_log_listen(ctx, &words);
    qn_status status = read_conv(ctx, args, kind, QNI_WITHOUT_DATA, &own, &op, err);
    if (status == QN_OK)
        status = qni_direct_scratch(ctx, &op, bytes, err);
    return qni_log_tell(&words, status);
}

static qn_status shape_conv(qn_conv_args *args, int32_t kind)
{
    qn_conv_args own;
    qn_conv_args_init(&own);
    QNI_TRY(qni_sized_read(&own, sizeof own, args, NULL));
    if (args->size < offsetof(qn_conv_args, y) + sizeof args->y)
        return QN_E_ARGUMENT;
    QNI_TRY(qni_conv_shape(&own, kind, NULL));
    args->y = own.y;
    return QN_OK;
}

qn_status qn_conv2d_shape(qn_conv_args *args)
{
    return shape_conv(args, QNI_CONV);
}

qn_status qn_conv_transpose2d_shape(qn_conv_args *args)
{
    return shape_conv(args, QNI_CONV_TRANSPOSE);
}

qn_status qn_conv2d_plan(const qn_ctx *ctx, const qn_conv_args *args, qn_plan **plan, qn_error *err)
{
    return plan_conv(ctx, args, QNI_CONV, plan, err);
}

qn_status qn_conv2d_run(const qn_plan *plan, const qn_conv_args *args, void *scratch,
                        size_t scratch_bytes)
{
    return run_conv(plan, args, QNI_CONV, scratch, scratch_bytes);
}

qn_status qn_conv2d(const qn_ctx *ctx, const qn_conv_args *args, void *scratch,
                    size_t scratch_bytes)
{
    return direct_conv(ctx, args, QNI_CONV, scratch, scratch_bytes);
}

qn_status qn_conv2d_scratch(const qn_ctx *ctx, const qn_conv_args *args, size_t *bytes)
{
    return scratch_conv(ctx, args, QNI_CONV, bytes);
}

qn_status qn_conv_transpose2d_plan(const qn_ctx *ctx, const qn_conv_args *args, qn_plan **plan,
                                   qn_error *err)
{
    return plan_conv(ctx, args, QNI_CONV_TRANSPOSE, plan, err);
}

qn_status qn_conv_transpose2d_run(const qn_plan *plan, const qn_conv_args *args, void *scratch,
                                  size_t scratch_bytes)
{
    return run_conv(plan, args, QNI_CONV_TRANSPOSE, scratch, scratch_bytes);
}

qn_status qn_conv_transpose2d(const qn_ctx *ctx, const qn_conv_args *args, void *scratch,
                              size_t scratch_bytes)
{
    return direct_conv(ctx, args, QNI_CONV_TRANSPOSE, scratch, scratch_bytes);
}

qn_status qn_conv_transpose2d_scratch(const qn_ctx *ctx, const qn_conv_args *args, size_t *bytes)
{
    return scratch_conv(ctx, args, QNI_CONV_TRANSPOSE, bytes);
}
