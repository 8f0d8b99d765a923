/* SPDX-License-Identifier: Apache-2.0 */
/* Words of calls that have no qn_error, for speed's sake: those that run. What they refuse is told
 * to the context's log, where there is one; nothing is put in words otherwise. */
#ifndef QNI_API_LOG_H
#define QNI_API_LOG_H

#include "../base/context.h"

struct qni_words {
    const qn_ctx *ctx; /* NULL: nobody listens */
    qn_error err;
};

/* What to hand down as err: NULL if nobody listens. ctx may be NULL. */
static inline qn_error *qni_log_listen(const qn_ctx *ctx, struct qni_words *words)
{
    words->ctx = ctx != NULL && ctx->log != NULL ? ctx : NULL;
    words->err.text[0] = 0;
    return words->ctx != NULL ? &words->err : NULL;
}

/* Tell what was put in words; returns status. Backends tell of failures of their own. */
static inline qn_status qni_log_tell(const struct qni_words *words, qn_status status)
{
    if (status != QN_OK && words->ctx != NULL && words->err.text[0] != 0)
        words->ctx->log(words->ctx->log_arg, 2, words->err.text);
    return status;
}

#endif
