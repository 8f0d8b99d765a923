/* SPDX-License-Identifier: Apache-2.0 */
/* Why nothing serves an operation: the reasons of all rows, the one that governs first. */
#ifndef QNI_API_REFUSALS_H
#define QNI_API_REFUSALS_H

#include "backend.h"

enum { QNI_MAX_REASONS = 24 };

/* Each reason once, with the first row that gave it. Texts are static, or the caller's. */
struct qni_refusals {
    const char *wanted; /* the row that was asked for by name, or NULL */
    bool is_wanted_there;
    int32_t n;
    struct qni_refused {
        const char *kernel, *why;
        int32_t rows, weight;
    } list[QNI_MAX_REASONS];
};

/* Ask every row of the backend about an operation that none serves; the reason that governs is
 * list[0]: that of the row that was asked for, else that of the rows which came nearest, the most
 * frequent one if there are several. n may be 0 (a table without rows). */
void qni_refusals_gather(const qn_ctx *ctx, const struct qni_op *op, struct qni_refusals *r);

/* In one sentence why nothing serves. */
void qni_refusals_govern(const struct qni_refusals *r, char *text, size_t capacity);
/* All of them for a qn_error, as far as they fit. Returns QN_E_UNSUPPORTED. */
qn_status qni_refusals_fail(const struct qni_refusals *r, qn_error *err);

#endif
