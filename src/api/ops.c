/* SPDX-License-Identifier: Apache-2.0 */
/* The public calls of the four operations. Each reads the caller's struct into one of this
 * version, validates it into a qni_op, and hands that to plan.c. Those without a qn_error argument
 * tell the `error` of their arguments and the context's log why they fail (log.h). */
#include "../base/error.h"
#include "../base/sized.h"
#include "log.h"
#include "plan.h"
#include "validate.h"

static qn_status check_ctx(const qn_ctx *ctx, qn_error *err)
{
    return ctx == NULL ? qni_fail(err, QN_E_ARGUMENT, "ctx is NULL") : QN_OK;
}

static qn_status check_plan(const qn_plan *plan, int32_t kind, qn_error *err)
{
    if (plan == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "plan is NULL");
    if (plan->op.kind != kind)
        return qni_fail(err, QN_E_ARGUMENT, "the plan is of a %s, not of a %s",
                        qni_kind_name(plan->op.kind), qni_kind_name(kind));
    return QN_OK;
}

/* The caller's arguments, of our size. */
union own {
    qn_matmul_args matmul;
    qn_grouped_args grouped;
    qn_conv_args conv;
};

/* Where the caller wants to read why a call failed, or NULL. */
static qn_error *error_of(int32_t kind, const void *args)
{
    switch (kind) {
    case QNI_MATMUL:
        return qni_sized_error(args, offsetof(qn_matmul_args, error));
    case QNI_GROUPED:
        return qni_sized_error(args, offsetof(qn_grouped_args, error));
    default:
        return qni_sized_error(args, offsetof(qn_conv_args, error));
    }
}

/* own must live as long as op, which points into it. */
static qn_status read_args(const qn_ctx *ctx, int32_t kind, const void *args, int with_data,
                           union own *own, struct qni_op *op, qn_error *err)
{
    QNI_TRY(check_ctx(ctx, err));
    switch (kind) {
    case QNI_MATMUL:
        qn_matmul_args_init(&own->matmul);
        QNI_TRY(qni_sized_read(&own->matmul, sizeof own->matmul, args, err));
        return qni_validate_matmul(ctx, &own->matmul, with_data, op, err);
    case QNI_GROUPED:
        qn_grouped_args_init(&own->grouped);
        QNI_TRY(qni_sized_read(&own->grouped, sizeof own->grouped, args, err));
        return qni_validate_grouped(ctx, &own->grouped, with_data, op, err);
    default:
        qn_conv_args_init(&own->conv);
        QNI_TRY(qni_sized_read(&own->conv, sizeof own->conv, args, err));
        return qni_validate_conv(ctx, &own->conv, kind, with_data, op, err);
    }
}

/* ---- what can be done with arguments of any kind --------------------------------------------- */

static qn_status plan_of(const qn_ctx *ctx, int32_t kind, const void *args, qn_plan **plan,
                         qn_error *err)
{
    union own own;
    struct qni_op op;
    qn_error *const to = err != NULL ? err : error_of(kind, args);
    QNI_TRY(read_args(ctx, kind, args, QNI_WITHOUT_DATA, &own, &op, to));
    return qni_plan_create(ctx, &op, plan, to);
}

static qn_status run_plan(const qn_plan *plan, int32_t kind, const void *args, void *scratch,
                          size_t scratch_bytes)
{
    union own own;
    struct qni_op op;
    struct qni_words words;
    const qn_ctx *const ctx = plan != NULL ? plan->ctx : NULL;
    qn_error *const err = qni_words_listen(ctx, error_of(kind, args), &words);
    qn_status status = check_plan(plan, kind, err);
    if (status == QN_OK)
        status = read_args(ctx, kind, args, QNI_WITH_DATA, &own, &op, err);
    if (status == QN_OK)
        status = qni_plan_run(plan, &op, scratch, scratch_bytes, err);
    return qni_words_tell(&words, status);
}

static qn_status run_at_once(const qn_ctx *ctx, int32_t kind, const void *args, void *scratch,
                             size_t scratch_bytes)
{
    union own own;
    struct qni_op op;
    struct qni_words words;
    qn_error *const err = qni_words_listen(ctx, error_of(kind, args), &words);
    qn_status status = read_args(ctx, kind, args, QNI_WITH_DATA, &own, &op, err);
    if (status == QN_OK)
        status = qni_direct_run(ctx, &op, scratch, scratch_bytes, err);
    return qni_words_tell(&words, status);
}

static qn_status scratch_of(const qn_ctx *ctx, int32_t kind, const void *args, size_t *bytes)
{
    union own own;
    struct qni_op op;
    struct qni_words words;
    qn_error *const err = qni_words_listen(ctx, error_of(kind, args), &words);
    qn_status status = read_args(ctx, kind, args, QNI_WITHOUT_DATA, &own, &op, err);
    if (status == QN_OK)
        status = qni_direct_scratch(ctx, &op, bytes, err);
    return qni_words_tell(&words, status);
}

static size_t explain(const qn_ctx *ctx, int32_t kind, const void *args, char *text,
                      size_t capacity)
{
    union own own;
    struct qni_op op;
    qn_error err = {QN_OK, -1, ""};
    if (read_args(ctx, kind, args, QNI_WITHOUT_DATA, &own, &op, &err) != QN_OK)
        return qni_explain_error(&err, text, capacity);
    return qni_explain(ctx, &op, text, capacity);
}

/* ---- matmul ---------------------------------------------------------------------------------- */

qn_status qn_matmul_plan(const qn_ctx *ctx, const qn_matmul_args *args, qn_plan **plan,
                         qn_error *err)
{
    return plan_of(ctx, QNI_MATMUL, args, plan, err);
}

qn_status qn_matmul_run(const qn_plan *plan, const qn_matmul_args *args, void *scratch,
                        size_t scratch_bytes)
{
    return run_plan(plan, QNI_MATMUL, args, scratch, scratch_bytes);
}

qn_status qn_matmul(const qn_ctx *ctx, const qn_matmul_args *args, void *scratch,
                    size_t scratch_bytes)
{
    return run_at_once(ctx, QNI_MATMUL, args, scratch, scratch_bytes);
}

qn_status qn_matmul_scratch(const qn_ctx *ctx, const qn_matmul_args *args, size_t *bytes)
{
    return scratch_of(ctx, QNI_MATMUL, args, bytes);
}

size_t qn_matmul_explain(const qn_ctx *ctx, const qn_matmul_args *args, char *text, size_t capacity)
{
    return explain(ctx, QNI_MATMUL, args, text, capacity);
}

/* ---- grouped --------------------------------------------------------------------------------- */

qn_status qn_grouped_plan(const qn_ctx *ctx, const qn_grouped_args *args, qn_plan **plan,
                          qn_error *err)
{
    return plan_of(ctx, QNI_GROUPED, args, plan, err);
}

qn_status qn_grouped_run(const qn_plan *plan, const qn_grouped_args *args, void *scratch,
                         size_t scratch_bytes)
{
    return run_plan(plan, QNI_GROUPED, args, scratch, scratch_bytes);
}

qn_status qn_grouped(const qn_ctx *ctx, const qn_grouped_args *args, void *scratch,
                     size_t scratch_bytes)
{
    return run_at_once(ctx, QNI_GROUPED, args, scratch, scratch_bytes);
}

qn_status qn_grouped_scratch(const qn_ctx *ctx, const qn_grouped_args *args, size_t *bytes)
{
    return scratch_of(ctx, QNI_GROUPED, args, bytes);
}

size_t qn_grouped_explain(const qn_ctx *ctx, const qn_grouped_args *args, char *text,
                          size_t capacity)
{
    return explain(ctx, QNI_GROUPED, args, text, capacity);
}

/* ---- convolutions ---------------------------------------------------------------------------- */

static qn_status find_shape(qn_conv_args *args, int32_t kind, qn_error *err)
{
    qn_conv_args own;
    qn_conv_args_init(&own);
    QNI_TRY(qni_sized_read(&own, sizeof own, args, err));
    if (args->size < offsetof(qn_conv_args, y) + sizeof args->y)
        return qni_fail(err, QN_E_ARGUMENT, "the argument struct's size is %zu: it ends before y",
                        args->size);
    QNI_TRY(qni_conv_shape(&own, kind, err));
    args->y = own.y;
    return QN_OK;
}

static qn_status shape_conv(qn_conv_args *args, int32_t kind)
{
    struct qni_words words;
    qn_error *const err = qni_words_listen(NULL, error_of(kind, args), &words);
    return qni_words_tell(&words, find_shape(args, kind, err));
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
    return plan_of(ctx, QNI_CONV, args, plan, err);
}

qn_status qn_conv2d_run(const qn_plan *plan, const qn_conv_args *args, void *scratch,
                        size_t scratch_bytes)
{
    return run_plan(plan, QNI_CONV, args, scratch, scratch_bytes);
}

qn_status qn_conv2d(const qn_ctx *ctx, const qn_conv_args *args, void *scratch,
                    size_t scratch_bytes)
{
    return run_at_once(ctx, QNI_CONV, args, scratch, scratch_bytes);
}

qn_status qn_conv2d_scratch(const qn_ctx *ctx, const qn_conv_args *args, size_t *bytes)
{
    return scratch_of(ctx, QNI_CONV, args, bytes);
}

size_t qn_conv2d_explain(const qn_ctx *ctx, const qn_conv_args *args, char *text, size_t capacity)
{
    return explain(ctx, QNI_CONV, args, text, capacity);
}

qn_status qn_conv_transpose2d_plan(const qn_ctx *ctx, const qn_conv_args *args, qn_plan **plan,
                                   qn_error *err)
{
    return plan_of(ctx, QNI_CONV_TRANSPOSE, args, plan, err);
}

qn_status qn_conv_transpose2d_run(const qn_plan *plan, const qn_conv_args *args, void *scratch,
                                  size_t scratch_bytes)
{
    return run_plan(plan, QNI_CONV_TRANSPOSE, args, scratch, scratch_bytes);
}

qn_status qn_conv_transpose2d(const qn_ctx *ctx, const qn_conv_args *args, void *scratch,
                              size_t scratch_bytes)
{
    return run_at_once(ctx, QNI_CONV_TRANSPOSE, args, scratch, scratch_bytes);
}

qn_status qn_conv_transpose2d_scratch(const qn_ctx *ctx, const qn_conv_args *args, size_t *bytes)
{
    return scratch_of(ctx, QNI_CONV_TRANSPOSE, args, bytes);
}

size_t qn_conv_transpose2d_explain(const qn_ctx *ctx, const qn_conv_args *args, char *text,
                                   size_t capacity)
{
    return explain(ctx, QNI_CONV_TRANSPOSE, args, text, capacity);
}
