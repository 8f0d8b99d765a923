/* SPDX-License-Identifier: Apache-2.0 */
/* Are two weights the same values? Rows are decoded in double, where a scale of 24 bits times a
 * code is exact, and compared by column of x, so that formats, zero points instead of offsets and
 * the order of columns do not matter. */
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "canonical.h"

struct item { /* what one run of rows found */
    int64_t count, row, column;
    double a, b;
};

struct job {
    const struct qn_weight *a, *b;
    int64_t each;
    double *rows; /* of item i: three rows from 3 i k on */
    struct item *found;
};

/* A row by column, the prescale multiplied in. */
static void take_row(const struct qn_weight *w, int64_t row, double *own, double *out)
{
    qni_weight_row(w, row, own);
    for (int64_t p = 0; p < w->k; p++) {
        const int64_t column = w->perm != NULL ? w->perm[p] : p;
        out[column] = own[p] * (w->prescale != NULL ? (double)w->prescale[column] : 1.0);
    }
}

static void compare_rows(void *arg, int32_t i)
{
    const struct job *j = arg;
    const int64_t k = j->a->k, first = i * j->each, last = qni_min(first + j->each, j->a->n);
    double *own = j->rows + 3 * (int64_t)i * k, *a = own + k, *b = a + k;
    struct item *found = &j->found[i];
    for (int64_t row = first; row < last; row++) {
        take_row(j->a, row, own, a);
        take_row(j->b, row, own, b);
        for (int64_t c = 0; c < k; c++) {
            if (a[c] == b[c])
                continue;
            if (found->count++ == 0)
                *found = (struct item){1, row, c, a[c], b[c]};
        }
    }
}

qn_status qn_weight_compare(const qn_ctx *ctx, const qn_weight *a, const qn_weight *b,
                            qn_weight_difference *difference, qn_error *err)
{
    enum { ITEMS = 16 };
    struct item found[ITEMS] = {{0}};
    qn_weight_difference own;
    qn_weight_difference_init(&own);
    if (ctx == NULL || a == NULL || b == NULL || difference == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_weight_compare: an argument is NULL");
    if (a->n != b->n || a->k != b->k)
        return qni_fail(err, QN_E_SHAPE, "[%lld, %lld] against [%lld, %lld]", (long long)a->n,
                        (long long)a->k, (long long)b->n, (long long)b->k);
    const int64_t each = qni_max(1, qni_ceil_div(a->n, ITEMS));
    const int64_t items = qni_ceil_div(a->n, each);
    const size_t bytes = (size_t)(3 * items * a->k) * sizeof(double);
    struct job job = {a, b, each, qni_alloc(&ctx->allocator, bytes), found};
    if (job.rows == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    qni_parallel(&ctx->threads, (int32_t)items, compare_rows, &job);
    qni_free(&ctx->allocator, job.rows, bytes);
    for (int64_t i = items - 1; i >= 0; i--) {
        own.count += found[i].count;
        if (found[i].count == 0)
            continue;
        own.row = found[i].row;
        own.column = found[i].column;
        own.a = found[i].a;
        own.b = found[i].b;
    }
    return qni_sized_write(difference, &own, sizeof own) == QN_OK
               ? QN_OK
               : qni_fail(err, QN_E_ARGUMENT, "qn_weight_compare: difference was not initialised");
}
