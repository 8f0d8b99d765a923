/* SPDX-License-Identifier: Apache-2.0 */
/* Gathering the reasons of rows, and which of them to tell first (refusals.h). */
#include "refusals.h"

#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "../quant/reasons.h"

static void collect(void *arg, const char *kernel, const char *why)
{
    struct qni_refusals *r = arg;
    const bool is_wanted = r->wanted != NULL && strcmp(r->wanted, kernel) == 0;
    r->is_wanted_there = r->is_wanted_there || is_wanted;
    int32_t i = 0;
    while (i < r->n && strcmp(r->list[i].why, why) != 0)
        i++;
    if (i == QNI_MAX_REASONS)
        return;
    if (i == r->n)
        r->list[r->n++] = (struct qni_refused){kernel, why, 0, qni_reason_weight(why)};
    r->list[i].rows++;
    if (is_wanted) {
        r->list[i].kernel = kernel;
        r->list[i].weight = INT32_MAX;
    }
}

static bool governs(const struct qni_refused *a, const struct qni_refused *b)
{
    return a->weight != b->weight ? a->weight > b->weight : a->rows > b->rows;
}

void qni_refusals_gather(const qn_ctx *ctx, const struct qni_op *op, struct qni_refusals *r)
{
    union qni_choice unused;
    memset(r, 0, sizeof *r);
    memset(&unused, 0, sizeof unused);
    r->wanted = op->kernel;
    (void)qni_backend_of(ctx->device.kind)->select(ctx, op, &unused, collect, r);
    /* Insertion: equal ones stay in the order of the table. */
    for (int32_t i = 1; i < r->n; i++) {
        const struct qni_refused one = r->list[i];
        int32_t at = i;
        for (; at > 0 && governs(&one, &r->list[at - 1]); at--)
            r->list[at] = r->list[at - 1];
        r->list[at] = one;
    }
}

void qni_refusals_govern(const struct qni_refusals *r, char *text, size_t capacity)
{
    if (r->wanted != NULL && !r->is_wanted_there)
        snprintf(text, capacity, "no kernel of this operation is called %s", r->wanted);
    else if (r->n == 0)
        snprintf(text, capacity, "this library was built without kernels for the device");
    else
        snprintf(text, capacity, "%s%s%s", r->wanted != NULL ? r->wanted : "",
                 r->wanted != NULL ? ": " : "", r->list[0].why);
}

qn_status qni_refusals_fail(const struct qni_refusals *r, qn_error *err)
{
    char text[sizeof err->text - 96] = "";
    size_t length = 0;
    if (err == NULL)
        return QN_E_UNSUPPORTED;
    const bool is_listed = r->n > 0 && (r->wanted == NULL || r->is_wanted_there);
    if (!is_listed)
        qni_refusals_govern(r, text, sizeof text);
    for (int32_t i = 0; i < r->n && is_listed; i++) {
        const struct qni_refused *one = &r->list[i];
        if (length + strlen(one->kernel) + strlen(one->why) + 5 > sizeof text)
            break;
        length += (size_t)snprintf(text + length, sizeof text - length, "%s%s: %s",
                                   i > 0 ? "; " : "", one->kernel, one->why);
    }
    return qni_fail(err, QN_E_UNSUPPORTED, "%s: %s", qn_status_text(QN_E_UNSUPPORTED), text);
}
