/* SPDX-License-Identifier: Apache-2.0 */
/* finish.h: rows of values are copied to a tile, since an epilogue works in place, and go the way
 * of a kernel's tile. Threads share the rows; every element is on its own. */
#include "finish.h"

#include <stdatomic.h>
#include <string.h>

#include "../../base/size.h"
#include "../../base/threads.h"
#include "epilogue.h"
#include "rows.h"

enum { ROWS_PER_ITEM = 4 };

struct finish_job {
    const struct qni_op *op;
    const struct qni_epilogue *epilogue;
    _Atomic int64_t next;
};

static void finish_row(const struct finish_job *j, int64_t row)
{
    /* Lines are rows here, so the epilogue needs no lines of its own. */
    union {
        max_align_t align;
        uint8_t bytes[offsetof(struct qni_epilogue_scratch, lines)];
    } scratch;
    float tile[QNI_EPILOGUE_COLUMNS];
    const struct qni_op *op = j->op;
    const float *v = (const float *)op->x.data + row * op->x.stride[0];
    const struct qni_part part = {.n = op->n, .n_rows = op->m};
    for (int64_t at = 0; at < op->n; at += QNI_EPILOGUE_COLUMNS) {
        const int64_t n = qni_min(QNI_EPILOGUE_COLUMNS, op->n - at);
        memcpy(tile, v + at, (size_t)n * sizeof *tile);
        const struct qni_epilogue_tile t = {.part = &part,
                                            .row = row,
                                            .rows = 1,
                                            .output = at,
                                            .n = n,
                                            .c = tile,
                                            .ldc = QNI_EPILOGUE_COLUMNS};
        qni_epilogue_run(j->epilogue, &t, (struct qni_epilogue_scratch *)(void *)scratch.bytes);
    }
}

static void work(void *arg, int32_t worker)
{
    struct finish_job *j = arg;
    int64_t row;
    (void)worker;
    while ((row = (int64_t)atomic_fetch_add(&j->next, ROWS_PER_ITEM)) < j->op->m)
        for (int64_t i = row; i < qni_min(row + ROWS_PER_ITEM, j->op->m); i++)
            finish_row(j, i);
}

void qni_rows_finish(const qn_ctx *ctx, const struct qni_op *op)
{
    const struct qni_rows *const rows = qni_rows_for(ctx->isa);
    const struct qni_row_sink sink = qni_sink_of_matrix(&op->y, &op->epilogue.residual);
    const struct qni_epilogue epilogue = qni_epilogue_make(op, rows, &sink);
    struct finish_job j = {op, &epilogue, 0};
    const int64_t items = qni_ceil_div(op->m, ROWS_PER_ITEM);
    const int64_t workers = qni_min(items, qni_max(1, ctx->threads.n_threads));
    qni_parallel(&ctx->threads, (int32_t)workers, work, &j);
}
