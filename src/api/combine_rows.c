/* SPDX-License-Identifier: Apache-2.0 */
/* qn_combine_rows(): the rows of a token's experts, weighted and added up. */
#include "../base/error.h"
#include "../base/sized.h"
#include "backend.h"
#include "check.h"
#include "log.h"

static qn_status check_matrix(const qn_ctx *ctx, const qn_tensor *t, const char *name,
                              unsigned types, const int64_t shape[2], qn_error *err)
{
    QNI_TRY(qni_check_tensor(ctx, t, name, 2, types, err));
    QNI_TRY(qni_check_shape(t, name, shape, err));
    return qni_check_data(ctx, t, name, err);
}

static qn_status check_count(const qn_combine_rows_args *a, qn_error *err)
{
    const int64_t tokens = a->weights.shape[0], top_k = a->weights.shape[1];
    if (qni_is_none(&a->rows) && top_k > 0 &&
        (a->x.shape[0] % top_k != 0 || a->x.shape[0] / top_k != tokens))
        return qni_fail(err, QN_E_SHAPE,
                        "x has %lld rows, %lld tokens of %lld rows each need as many; or give rows",
                        (long long)a->x.shape[0], (long long)tokens, (long long)top_k);
    return QN_OK;
}

static qn_status check_rows(const qn_combine_rows_args *a, qn_error *err)
{
    const int64_t tokens = a->weights.shape[0], top_k = a->weights.shape[1];
    const int32_t *const rows = a->rows.data;
    for (int64_t t = 0; t < tokens && !qni_is_none(&a->rows); t++)
        for (int64_t j = 0; j < top_k; j++)
            if (rows[t * a->rows.stride[0] + j] >= a->x.shape[0])
                return qni_fail(err, QN_E_VALUE, "rows[%lld, %lld] is %d: x has %lld rows",
                                (long long)t, (long long)j, rows[t * a->rows.stride[0] + j],
                                (long long)a->x.shape[0]);
    return QN_OK;
}

static bool is_in_place(const qn_combine_rows_args *a)
{
    return a->add.data == a->y.data && a->add.dtype == a->y.dtype &&
           a->add.stride[0] == a->y.stride[0];
}

static qn_status check_apart(const qn_combine_rows_args *a, qn_error *err)
{
    const struct {
        const qn_tensor *tensor;
        const char *name;
    } read[] = {{&a->x, "x"}, {&a->weights, "weights"}, {&a->rows, "rows"}, {&a->add, "add"}};
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        if (!qni_is_none(read[i].tensor) && !(read[i].tensor == &a->add && is_in_place(a)))
            QNI_TRY(qni_check_apart(&a->y, "y", read[i].tensor, read[i].name, err));
    return QN_OK;
}

static qn_status check(const qn_ctx *ctx, const qn_combine_rows_args *a, qn_error *err)
{
    QNI_TRY(qni_check_tensor(ctx, &a->x, "x", 2, QNI_FLOATS, err));
    QNI_TRY(qni_check_data(ctx, &a->x, "x", err));
    QNI_TRY(qni_check_tensor(ctx, &a->weights, "weights", 2, QNI_TYPE(QN_F32), err));
    QNI_TRY(qni_check_data(ctx, &a->weights, "weights", err));
    const int64_t y_shape[2] = {a->weights.shape[0], a->x.shape[1]};
    QNI_TRY(check_matrix(ctx, &a->y, "y", QNI_FLOATS, y_shape, err));
    QNI_TRY(qni_check_output(&a->y, "y", err));
    if (!qni_is_none(&a->rows))
        QNI_TRY(check_matrix(ctx, &a->rows, "rows", QNI_TYPE(QN_I32), a->weights.shape, err));
    if (!qni_is_none(&a->add))
        QNI_TRY(check_matrix(ctx, &a->add, "add", QNI_FLOATS, y_shape, err));
    QNI_TRY(check_apart(a, err));
    QNI_TRY(check_count(a, err));
    /* Rows on another device can only be looked at there: those that x has not are left out. */
    return ctx->device.kind == QN_CPU ? check_rows(a, err) : QN_OK;
}

static qn_status run(const qn_ctx *ctx, const qn_combine_rows_args *args, qn_error *err)
{
    qn_combine_rows_args own;
    if (ctx == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "ctx is NULL");
    qn_combine_rows_args_init(&own);
    QNI_TRY(qni_sized_read(&own, sizeof own, args, err));
    const struct qni_backend *const backend = qni_backend_of(ctx->device.kind);
    if (backend->combine_rows == NULL)
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "qn_combine_rows() runs on the CPU; the context is of %s", backend->name);
    QNI_TRY(check(ctx, &own, err));
    if (own.y.shape[0] == 0 || own.y.shape[1] == 0)
        return QN_OK;
    return backend->combine_rows(ctx, &own, err);
}

qn_status qn_combine_rows(const qn_ctx *ctx, const qn_combine_rows_args *args)
{
    struct qni_words words;
    qn_error *const error = qni_sized_error(args, offsetof(qn_combine_rows_args, error));
    qn_error *const err = qni_words_listen(ctx, error, &words);
    return qni_words_tell(&words, run(ctx, args, err));
}
