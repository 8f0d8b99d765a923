/* SPDX-License-Identifier: Apache-2.0 */
/* Weighted sums of rows: combine_rows.h. A thread takes a token and as many of its columns as its
 * stack holds, adds the rows up in their order, and stores the sum as an epilogue would. */
#include "combine_rows.h"

#include <stdatomic.h>
#include <string.h>

#include "../../base/size.h"
#include "rows.h"

enum { PIECE = 1024 };

struct job {
    const qn_combine_rows_args *args;
    const struct qni_rows *rows;
    int64_t pieces; /* of a row */
    atomic_llong next;
};

static const uint8_t *at(const qn_tensor *t, int64_t row, int64_t column)
{
    return (const uint8_t *)t->data +
           (size_t)(row * t->stride[0] + column) * qn_dtype_bytes(t->dtype);
}

/* The floats of n elements: where they are, or in buffer. */
static const float *floats(const struct job *j, const qn_tensor *t, int64_t row, int64_t column,
                           int64_t n, float *buffer)
{
    const uint8_t *const from = at(t, row, column);
    if (t->dtype == QN_F32)
        return (const float *)(const void *)from;
    j->rows->widen(buffer, from, t->dtype, NULL, n);
    return buffer;
}

static void combine(const struct job *j, int64_t token, int64_t column, int64_t n)
{
    const qn_combine_rows_args *a = j->args;
    const int64_t top_k = a->weights.shape[1];
    const float *const weights = (const float *)(const void *)at(&a->weights, token, 0);
    const int32_t *const rows =
        a->rows.rank == 0 ? NULL : (const int32_t *)(const void *)at(&a->rows, token, 0);
    float sum[PIECE], wide[PIECE];
    memset(sum, 0, (size_t)n * sizeof *sum);
    if (a->add.rank != 0)
        memcpy(sum, floats(j, &a->add, token, column, n, wide), (size_t)n * sizeof *sum);
    for (int64_t i = 0; i < top_k; i++) {
        const int64_t row = rows == NULL ? token * top_k + i : rows[i];
        if (row >= 0)
            j->rows->add_scaled(sum, floats(j, &a->x, row, column, n, wide), weights[i], n);
    }
    const struct qni_finish_step store = {
        .n = n,
        .y = (uint8_t *)(uintptr_t)at(&a->y, token, column),
        .y_dtype = a->y.dtype,
        .y_stride = 1,
    };
    j->rows->finish(sum, &store);
}

static void work(void *arg, int32_t worker)
{
    struct job *j = arg;
    const int64_t n = j->args->y.shape[1], all = j->args->y.shape[0] * j->pieces;
    int64_t item;
    (void)worker;
    while ((item = (int64_t)atomic_fetch_add(&j->next, 1)) < all) {
        const int64_t column = item % j->pieces * PIECE;
        combine(j, item / j->pieces, column, qni_min(PIECE, n - column));
    }
}

void qni_rows_combine(const qn_ctx *ctx, const qn_combine_rows_args *args)
{
    enum { CHEAP = 16384 }; /* elements in the time of a fork and a join */
    struct job j = {.args = args, .rows = qni_rows_for(ctx->isa)};
    j.pieces = qni_ceil_div(args->y.shape[1], PIECE);
    const int64_t items = args->y.shape[0] * j.pieces;
    const int64_t elements = args->y.shape[0] * args->y.shape[1] * args->weights.shape[1];
    const int64_t most = elements <= CHEAP ? 1 : qni_max(1, ctx->threads.n_threads);
    if (items > 0)
        qni_parallel(&ctx->threads, (int32_t)qni_min(items, most), work, &j);
}
