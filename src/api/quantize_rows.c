/* SPDX-License-Identifier: Apache-2.0 */
/* qn_quantize_rows(): the activation quantizer on its own, for engines that fuse around it. */
#include "../base/error.h"
#include "../base/sized.h"
#include "backend.h"
#include "check.h"
#include "log.h"
#include "validate.h"

qn_status qn_quantize_rows(const qn_ctx *ctx, const qn_quantize_rows_args *args)
{
    struct qni_words words;
    if (ctx == NULL)
        return QN_E_ARGUMENT;
    qn_error *const err = qni_log_listen(ctx, &words);
    qn_quantize_rows_args own;
    qn_quantize_rows_args_init(&own);
    qn_status status = qni_sized_read(&own, sizeof own, args, err);
    if (status == QN_OK)
        status = qni_validate_quantize_rows(ctx, &own, err);
    if (status != QN_OK)
        return qni_log_tell(&words, status);
    if (own.x.shape[0] == 0)
        return QN_OK;
    double nothing; /* an address for rows of length 0: offsets from NULL are undefined */
    if (own.x.data == NULL)
        own.x.data = &nothing;
    if (own.codes.data == NULL)
        own.codes.data = &nothing;
    return qni_backend_of(ctx->device.kind)->quantize_rows(ctx, &own);
}
