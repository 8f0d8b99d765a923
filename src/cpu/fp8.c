/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of e4m3: fp8.h. The float product reads f32 rows, in memory of the run; so any kernel and
 * any weights serve, with all that a plan knows of them. */
#include "fp8.h"

#include <stdatomic.h>
#include <string.h>

#include "../base/size.h"
#include "rows/quantize_rows.h"
#include "rows/rows.h"

enum { ALIGNMENT = 16 /* floats */, ROWS_PER_ITEM = 4 };

static int64_t row_length(const struct qni_op *op)
{
    return (int64_t)qni_round_up((size_t)qni_max(op->k, 1), ALIGNMENT);
}

/* The float product behind: x are f32 rows at `rows`, or nowhere yet. */
static struct qni_op inner_of(const struct qni_op *op, void *rows)
{
    struct qni_op inner = *op;
    inner.strategy = QN_STRATEGY_FLOAT;
    inner.x.dtype = QN_F32;
    inner.x.data = rows;
    inner.x.stride[0] = row_length(op);
    inner.x.stride[1] = 1;
    memset(&inner.x_scales, 0, sizeof inner.x_scales);
    return inner;
}

static qn_status select_inner(const qn_ctx *ctx, const struct qni_op *op,
                              struct qni_cpu_choice *choice, qni_refusal_fn tell, void *arg)
{
    const struct qni_op inner = inner_of(op, NULL);
    return qni_cpu_select(ctx, &inner, choice, tell, arg);
}

qn_status qni_fp8_select(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice,
                         qni_refusal_fn tell, void *arg)
{
    QNI_TRY(select_inner(ctx, op, choice, tell, arg));
    const int64_t rows = qni_max(op->x.shape[0], op->m);
    choice->fp8_bytes = qni_round_up((size_t)rows * (size_t)row_length(op) * sizeof(float), 64);
    choice->scratch_bytes += choice->fp8_bytes;
    return QN_OK;
}

/* ---- rows ------------------------------------------------------------------------------------ */

struct job {
    const struct qni_op *op;
    const struct qni_rows *rows;
    float *to;
    int64_t ld, block;
    atomic_llong next;
};

/* n floats, which become what their codes stand for. */
static void round_block(const struct job *j, float *v, int64_t n)
{
    enum { PIECE = 1024 };
    uint8_t codes[PIECE];
    struct qni_range range = qni_range_empty();
    struct qni_scaling s = {j->op->quant.x_scale, 0.0f, 0.0f, 0.0f};
    j->rows->range(v, n, &range);
    if (j->op->strategy != QN_STRATEGY_FP8_STATIC)
        s = qni_fp8_scaling_of(&range);
    else
        s.inv = 1.0f / s.scale;
    if (s.inv == 0.0f) { /* all codes are 0; the scale may be NaN */
        for (int64_t i = 0; i < n; i++)
            v[i] = 0.0f * s.scale;
        return;
    }
    /* A static scale does not know of infinities: they are no numbers. */
    for (int64_t i = 0; range.amax >= 0x7f800000 && i < n; i++)
        v[i] = v[i] - v[i] == 0.0f ? v[i] : qni_float_of(QNI_NAN_F32);
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t now = qni_min(PIECE, n - i);
        j->rows->to_e4m3(codes, v + i, s.inv, now);
        j->rows->from_e4m3(v + i, codes, s.scale, now);
    }
}

static void take_row(const struct job *j, int64_t row)
{
    const struct qni_op *op = j->op;
    const uint8_t *const x =
        (const uint8_t *)op->x.data + (size_t)(row * op->x.stride[0]) * qn_dtype_bytes(op->x.dtype);
    float *const to = j->to + row * j->ld;
    const bool is_given = op->x.dtype == QN_E4M3;
    if (!is_given)
        j->rows->widen(to, x, op->x.dtype, NULL, op->k);
    for (int64_t at = 0; at < op->k; at += j->block) {
        const int64_t n = qni_min(j->block, op->k - at);
        if (!is_given) {
            round_block(j, to + at, n);
            continue;
        }
        float scale = op->quant.x_scale;
        if (op->strategy != QN_STRATEGY_FP8_STATIC)
            scale =
                ((const float *)op->x_scales.data)[row * op->x_scales.stride[0] + at / j->block];
        j->rows->from_e4m3(to + at, x + at, scale, n);
    }
}

static void work(void *arg, int32_t worker)
{
    struct job *const j = arg;
    const int64_t m = j->op->x.shape[0];
    int64_t row;
    (void)worker;
    while ((row = (int64_t)atomic_fetch_add(&j->next, ROWS_PER_ITEM)) < m)
        for (int64_t i = row; i < qni_min(row + ROWS_PER_ITEM, m); i++)
            take_row(j, i);
}

qn_status qni_fp8_run(const qn_ctx *ctx, const struct qni_op *op,
                      const struct qni_cpu_choice *choice, void *scratch)
{
    struct job j = {.op = op,
                    .rows = qni_rows_for(ctx->isa),
                    .to = scratch,
                    .ld = row_length(op),
                    .block = qni_max(op->k, 1)};
    if (op->strategy == QN_STRATEGY_FP8_BLOCK)
        j.block = QNI_FP8_BLOCK;
    const int64_t items = qni_ceil_div(op->x.shape[0], ROWS_PER_ITEM);
    const int64_t workers = qni_min(items, qni_max(1, ctx->threads.n_threads));
    qni_parallel(&ctx->threads, (int32_t)workers, work, &j);
    const struct qni_op inner = inner_of(op, scratch);
    return qni_cpu_run(ctx, &inner, choice, (uint8_t *)scratch + choice->fp8_bytes);
}
