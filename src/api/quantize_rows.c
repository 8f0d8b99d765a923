/* SPDX-License-Identifier: Apache-2.0 */
/* qn_quantize_rows(): the activation quantizer on its own, for engines that fuse around it. */
#include "../base/error.h"
#include "../base/sized.h"
#include "backend.h"
#include "check.h"
#include "log.h"
#include "validate.h"

static qn_status run(const qn_ctx *ctx, const qn_quantize_rows_args *args, qn_error *err)
{
    qn_quantize_rows_args own;
    if (ctx == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "ctx is NULL");
    qn_quantize_rows_args_init(&own);
    QNI_TRY(qni_sized_read(&own, sizeof own, args, err));
    QNI_TRY(qni_validate_quantize_rows(ctx, &own, err));
    if (own.x.shape[0] == 0)
        return QN_OK;
    double nothing; /* an address for rows of length 0: offsets from NULL are undefined */
    if (own.x.data == NULL)
        own.x.data = &nothing;
    if (own.codes.data == NULL)
        own.codes.data = &nothing;
    return qni_backend_of(ctx->device.kind)->quantize_rows(ctx, &own, err);
}

qn_status qn_quantize_rows(const qn_ctx *ctx, const qn_quantize_rows_args *args)
{
    struct qni_words words;
    qn_error *const error = qni_sized_error(args, offsetof(qn_quantize_rows_args, error));
    qn_error *const err = qni_words_listen(ctx, error, &words);
    return qni_words_tell(&words, run(ctx, args, err));
}
