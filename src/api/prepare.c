/* SPDX-License-Identifier: Apache-2.0 */
/* qn_prepare(): rows of x quantized once, for products that read the same x. */
#include "../base/error.h"
#include "../base/sized.h"
#include "backend.h"
#include "check.h"
#include "log.h"
#include "validate.h"

/* own must live as long as op, which points into it. */
static qn_status read_args(const qn_ctx *ctx, const qn_prepare_args *args, int with_data,
                           qn_prepare_args *own, struct qni_op *op, qn_error *err)
{
    if (ctx == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "ctx is NULL");
    qn_prepare_args_init(own);
    QNI_TRY(qni_sized_read(own, sizeof *own, args, err));
    return qni_validate_prepare(ctx, own, with_data, op, err);
}

static qn_status find_bytes(const qn_ctx *ctx, const qn_prepare_args *args, size_t *bytes,
                            qn_error *err)
{
    qn_prepare_args own;
    struct qni_op op;
    QNI_TRY(read_args(ctx, args, QNI_WITHOUT_DATA, &own, &op, err));
    if (bytes == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "bytes is NULL: there is no place for the result");
    *bytes = qni_backend_of(ctx->device.kind)->prepare_bytes(ctx, &op);
    return QN_OK;
}

static qn_status prepare(const qn_ctx *ctx, const qn_prepare_args *args, void *memory,
                         size_t memory_bytes, qn_error *err)
{
    qn_prepare_args own;
    struct qni_op op;
    QNI_TRY(read_args(ctx, args, QNI_WITH_DATA, &own, &op, err));
    const struct qni_backend *backend = qni_backend_of(ctx->device.kind);
    const size_t needed = backend->prepare_bytes(ctx, &op);
    if (memory == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "memory is NULL: there is no place for the rows");
    if (memory_bytes < needed)
        return qni_fail(err, QN_E_SCRATCH, "memory has %zu bytes, %zu are needed", memory_bytes,
                        needed);
    if ((uintptr_t)memory % 64 != 0)
        return qni_fail(err, QN_E_ALIGN, "memory is not aligned to 64 bytes");
    QNI_TRY(qni_check_apart_bytes(&op.x, "x", memory, needed, "memory", err));
    double nothing = 0.0; /* an address for rows of length 0 */
    if (op.x.data == NULL)
        op.x.data = &nothing;
    backend->prepare(ctx, &op, memory);
    return QN_OK;
}

qn_status qn_prepare_bytes(const qn_ctx *ctx, const qn_prepare_args *args, size_t *bytes)
{
    struct qni_words words;
    qn_error *const error = qni_sized_error(args, offsetof(qn_prepare_args, error));
    qn_error *const err = qni_words_listen(ctx, error, &words);
    return qni_words_tell(&words, find_bytes(ctx, args, bytes, err));
}

qn_status qn_prepare(const qn_ctx *ctx, const qn_prepare_args *args, void *memory,
                     size_t memory_bytes)
{
    struct qni_words words;
    qn_error *const error = qni_sized_error(args, offsetof(qn_prepare_args, error));
    qn_error *const err = qni_words_listen(ctx, error, &words);
    return qni_words_tell(&words, prepare(ctx, args, memory, memory_bytes, err));
}
