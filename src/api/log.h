/* SPDX-License-Identifier: Apache-2.0 */
/* Words of calls that have no qn_error argument: those that run. What they refuse goes to the
 * `error` of the caller's arguments and to the context's log, where there are such; nothing is put
 * in words otherwise. */
#ifndef QNI_API_LOG_H
#define QNI_API_LOG_H

#include "../base/context.h"
#include "../base/error.h"

struct qni_words {
    const qn_ctx *ctx; /* whose log hears it; NULL: none */
    qn_error *error;   /* the caller's; NULL: none */
    qn_error err;
};

/* What to hand down as err: NULL if nobody listens. ctx and error may be NULL. */
static inline qn_error *qni_words_listen(const qn_ctx *ctx, qn_error *error,
                                         struct qni_words *words)
{
    words->ctx = ctx != NULL && ctx->log != NULL ? ctx : NULL;
    words->error = error;
    words->err.text[0] = 0;
    return words->ctx != NULL || error != NULL ? &words->err : NULL;
}

/* Tell what was put in words, if only the status; returns it. */
static inline qn_status qni_words_tell(struct qni_words *words, qn_status status)
{
    if (status == QN_OK || (words->ctx == NULL && words->error == NULL))
        return status;
    if (words->err.text[0] == 0)
        (void)qni_fail(&words->err, status, "%s", qn_status_text(status));
    if (words->error != NULL)
        *words->error = words->err;
    if (words->ctx != NULL)
        words->ctx->log(words->ctx->log_arg, 2, words->err.text);
    return status;
}

#endif
