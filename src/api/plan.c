/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing and running, the same for every operation: a plan keeps the backend's choice, a run
 * checks that it is asked for what was planned, finds scratch and calls the backend. Only
 * qni_plan_create() allocates. */
#include "plan.h"

#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "arena.h"
#include "check.h"
#include "refusals.h"

static qn_status check_strict(const struct qni_backend *backend, const union qni_choice *choice,
                              qn_error *err)
{
    struct qni_choice_facts facts = {.kernel = NULL};
    backend->facts(choice, &facts);
    if (facts.is_fallback)
        return qni_fail(err, QN_E_FALLBACK,
                        "a strict plan refuses %s, which stands in for a faster class of kernel",
                        facts.kernel);
    return QN_OK;
}

qn_status qni_choose(const qn_ctx *ctx, const struct qni_op *op, union qni_choice *choice,
                     qn_error *err)
{
    const struct qni_backend *backend = qni_backend_of(ctx->device.kind);
    memset(choice, 0, sizeof *choice);
    const qn_status status = backend->select(ctx, op, choice, NULL, NULL);
    if (status == QN_OK && op->strict)
        return check_strict(backend, choice, err);
    if (status == QN_OK || err == NULL)
        return status;
    if (status != QN_E_UNSUPPORTED)
        return qni_fail(err, status, "%s", qn_status_text(status));
    struct qni_refusals refusals;
    qni_refusals_gather(ctx, op, &refusals);
    return qni_refusals_fail(&refusals, err);
}

/* Selecting looks at the head and at the codebook. The latter lies in the plan; of all other
 * sections it is only known that they are there. */
static void keep_weights(qn_plan *plan, const qn_packed *w)
{
    plan->head = *w->head;
    plan->stand_in.device = w->device;
    plan->stand_in.head = &plan->head;
    plan->stand_in.blob = (const uint8_t *)plan;
    const uint64_t bytes = w->head->section[QNI_SECTION_TABLE].bytes;
    if (bytes == 0)
        return;
    plan->head.section[QNI_SECTION_TABLE].offset = offsetof(qn_plan, table);
    if (bytes <= sizeof plan->table)
        memcpy(plan->table, w->table, (size_t)bytes);
    plan->stand_in.table = plan->table;
}

static void keep(qn_plan *plan, const struct qni_op *op)
{
    keep_weights(plan, op->w[0]);
    for (int32_t i = 0; i < op->n_w; i++)
        plan->w[i] = &plan->stand_in;
    plan->op = *op;
    plan->op.w = plan->w;
    qn_tensor *const tensors[] = {&plan->op.x,
                                  &plan->op.y,
                                  &plan->op.offsets,
                                  &plan->op.ids,
                                  &plan->op.x_rows,
                                  &plan->op.x_scales,
                                  &plan->op.epilogue.bias,
                                  &plan->op.epilogue.residual,
                                  &plan->op.epilogue.row_scale,
                                  &plan->op.epilogue.col_scale,
                                  &plan->op.more.factor};
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++)
        tensors[i]->data = NULL;
    plan->op.prepared = NULL;
}

static void report_fallback(const qn_ctx *ctx, const char *kernel)
{
    char text[160];
    if (ctx->log == NULL)
        return;
    snprintf(text, sizeof text,
             "plan: %s stands in for a faster kernel; qn_plan_explain() says why", kernel);
    ctx->log(ctx->log_arg, 2, text);
}

qn_status qni_plan_create(const qn_ctx *ctx, const struct qni_op *op, qn_plan **plan, qn_error *err)
{
    if (plan == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "plan is NULL: there is no place for the result");
    union qni_choice choice;
    QNI_TRY(qni_choose(ctx, op, &choice, err));
    const size_t bytes = sizeof(qn_plan) + (size_t)op->n_w * sizeof(const qn_packed *);
    qn_plan *p = qni_alloc_zero(&ctx->allocator, bytes);
    if (p == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for a plan");
    p->ctx = ctx;
    p->backend = qni_backend_of(ctx->device.kind);
    p->bytes = bytes;
    p->note = &p->ran;
    p->choice = choice;
    keep(p, op);
    struct qni_choice_facts facts = {.kernel = NULL};
    p->backend->facts(&p->choice, &facts);
    if (op->kernel != NULL)
        p->op.kernel = facts.kernel; /* the same text, but it outlives the caller's */
    if (facts.is_fallback)
        report_fallback(ctx, facts.kernel);
    *plan = p;
    return QN_OK;
}

void qn_plan_destroy(qn_plan *plan)
{
    if (plan != NULL)
        qni_free(&plan->ctx->allocator, plan, plan->bytes);
}

size_t qn_plan_scratch_bytes(const qn_plan *plan)
{
    return plan == NULL ? 0 : plan->backend->scratch_bytes(&plan->choice);
}

static qn_status check_scratch(const qn_ctx *ctx, const struct qni_op *op, const void *scratch,
                               size_t bytes, size_t needed, qn_error *err)
{
    QNI_TRY(qni_check_scratch(scratch, bytes, needed, err));
    QNI_TRY(qni_check_apart_bytes(&op->y, "y", scratch, needed, "scratch", err));
    QNI_TRY(qni_check_apart_bytes(&op->x, "x", scratch, needed, "scratch", err));
    return qni_check_place(ctx, scratch, "scratch", err);
}

/* Scratch of the caller, or the arena: run, and give the arena back. */
static qn_status execute(const qn_ctx *ctx, const struct qni_op *op, const union qni_choice *choice,
                         void *scratch, size_t scratch_bytes, qn_error *err)
{
    const struct qni_backend *backend = qni_backend_of(ctx->device.kind);
    const size_t needed = backend->scratch_bytes(choice);
    if (op->m == 0 || op->n == 0)
        return QN_OK;
    if (needed == 0)
        return backend->run(ctx, op, choice, NULL, err);
    if (scratch != NULL) {
        QNI_TRY(check_scratch(ctx, op, scratch, scratch_bytes, needed, err));
        return backend->run(ctx, op, choice, scratch, err);
    }
    void *arena = qni_arena_take(ctx, needed);
    if (arena == NULL)
        return qni_fail(err, QN_E_SCRATCH,
                        "no scratch was given, and the arena has not the %zu bytes needed", needed);
    const qn_status status = backend->run(ctx, op, choice, arena, err);
    qni_arena_give(ctx);
    return status;
}

/* Weights that a kernel chosen for the planned ones can read: same geometry, format, layout and
 * sections. */
static qn_status compare_weights(const qn_packed *planned, const qn_packed *w, qn_error *err)
{
    const struct qni_packed_head *a = planned->head, *b = w->head;
    if (a->n != b->n || a->k != b->k || a->ci != b->ci || a->kh != b->kh || a->kw != b->kw ||
        a->conv_groups != b->conv_groups)
        return qni_fail(err, QN_E_SHAPE,
                        "the weights are [%lld, %lld] of %d x %d taps in %d groups; the plan is "
                        "for [%lld, %lld] of %d x %d taps in %d groups",
                        (long long)b->n, (long long)b->k, b->kh, b->kw, b->conv_groups,
                        (long long)a->n, (long long)a->k, a->kh, a->kw, a->conv_groups);
    bool same = strncmp(a->layout, b->layout, sizeof a->layout) == 0 && a->x_block == b->x_block &&
                a->group_units == b->group_units && a->segment_units == b->segment_units &&
                a->n_groups == b->n_groups && a->units == b->units &&
                a->format.code == b->format.code && a->format.bits == b->format.bits &&
                a->format.shift == b->format.shift;
    for (int32_t s = 0; s < QNI_N_SECTIONS; s++)
        same = same && (a->section[s].bytes == 0) == (b->section[s].bytes == 0);
    if (!same || !qni_same_table(planned, w))
        return qni_fail(err, QN_E_LAYOUT,
                        "the weights are packed in another way than the planned ones");
    return QN_OK;
}

/* The tensors that a run has of the same types as its plan, or both have none of. */
static qn_status compare_types(const struct qni_op *planned, const struct qni_op *op, qn_error *err)
{
    static const struct {
        const char *name;
        size_t at;
    } tensors[] = {
        {"x", offsetof(struct qni_op, x)},
        {"y", offsetof(struct qni_op, y)},
        {"bias", offsetof(struct qni_op, epilogue.bias)},
        {"residual", offsetof(struct qni_op, epilogue.residual)},
        {"row_scale", offsetof(struct qni_op, epilogue.row_scale)},
        {"col_scale", offsetof(struct qni_op, epilogue.col_scale)},
        {"ids", offsetof(struct qni_op, ids)},
        {"x_rows", offsetof(struct qni_op, x_rows)},
        {"factor", offsetof(struct qni_op, more.factor)},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof *tensors; i++) {
        const qn_tensor *a = (const void *)((const char *)planned + tensors[i].at);
        const qn_tensor *b = (const void *)((const char *)op + tensors[i].at);
        if (qni_is_none(a) != qni_is_none(b))
            return qni_fail(err, QN_E_DTYPE, "%s is %s one", tensors[i].name,
                            qni_is_none(b) ? "none; the plan was made with"
                                           : "given; the plan was made without");
        if (!qni_is_none(a) && a->dtype != b->dtype)
            return qni_fail(err, QN_E_DTYPE, "%s has type %s; the plan is for %s", tensors[i].name,
                            qn_dtype_name(b->dtype), qn_dtype_name(a->dtype));
    }
    return QN_OK;
}

/* A zero point of 0 may stand in for any other, not the other way round. For uint8, 128 is the
 * zero of the codes. */
static bool has_zero(const struct qni_op *op)
{
    return qni_op_x_zero(op) != 0;
}

static qn_status compare_geometry(const struct qni_op *a, const struct qni_op *b, qn_error *err)
{
    const struct qni_conv *p = &a->conv, *q = &b->conv;
    if (b->m > a->m)
        return qni_fail(err, QN_E_SHAPE, "there are %lld rows; the plan is for %lld at most",
                        (long long)b->m, (long long)a->m);
    if (qni_is_fp8(b->strategy) && b->x.shape[0] > qni_max(a->x.shape[0], a->m))
        return qni_fail(err, QN_E_SHAPE, "x has %lld rows; the plan is for %lld at most",
                        (long long)b->x.shape[0], (long long)qni_max(a->x.shape[0], a->m));
    if (a->n_w != b->n_w)
        return qni_fail(err, QN_E_SHAPE, "there are %d experts; the plan is for %d", b->n_w,
                        a->n_w);
    if (a->kind != QNI_CONV && a->kind != QNI_CONV_TRANSPOSE)
        return QN_OK;
    const bool same = p->h == q->h && p->w == q->w && p->oh == q->oh && p->ow == q->ow &&
                      memcmp(p->stride, q->stride, sizeof p->stride) == 0 &&
                      memcmp(p->dilation, q->dilation, sizeof p->dilation) == 0 &&
                      memcmp(p->pad, q->pad, sizeof p->pad) == 0 &&
                      (p->xs[1] == 1) == (q->xs[1] == 1) && /* pixels in one piece, or planes */
                      (p->ys[1] == 1) == (q->ys[1] == 1);
    if (!same)
        return qni_fail(err, QN_E_SHAPE,
                        "the image, or how the kernel steps over it, is another "
                        "than the planned one");
    return QN_OK;
}

/* Is op one of the problems that the plan was made for? */
static qn_status compare(const qn_plan *plan, const struct qni_op *op, qn_error *err)
{
    const struct qni_op *p = &plan->op;
    QNI_TRY(compare_geometry(p, op, err));
    QNI_TRY(compare_weights(&plan->stand_in, op->w[0], err));
    if (p->strategy != op->strategy)
        return qni_fail(err, QN_E_ARGUMENT, "strategy is %s; the plan is for %s",
                        qn_strategy_name(op->strategy), qn_strategy_name(p->strategy));
    if (p->quant.symmetric != op->quant.symmetric)
        return qni_fail(err, QN_E_ARGUMENT, "quant.symmetric is %d; the plan is for %d",
                        op->quant.symmetric, p->quant.symmetric);
    if ((p->batch_rows < 0) != (op->batch_rows < 0))
        return qni_fail(err, QN_E_ARGUMENT, "x %s a batch of matrices; the plan's %s",
                        op->batch_rows < 0 ? "is not" : "is", p->batch_rows < 0 ? "is not" : "is");
    if (p->more.gate != op->more.gate)
        return qni_fail(err, QN_E_ARGUMENT, "gate is %d; the plan is for %d", op->more.gate,
                        p->more.gate);
    if (has_zero(op) && !has_zero(p))
        return qni_fail(err, QN_E_ARGUMENT, "x_zero is %d; the plan is for %d alone",
                        op->quant.x_zero, p->quant.x_zero);
    return compare_types(p, op, err);
}

qn_status qni_plan_run(const qn_plan *plan, const struct qni_op *op, void *scratch,
                       size_t scratch_bytes, qn_error *err)
{
    QNI_TRY(compare(plan, op, err));
    struct qni_op noted = *op;
    noted.ran = plan->note;
    QNI_TRY(execute(plan->ctx, &noted, &plan->choice, scratch, scratch_bytes, err));
    struct qni_choice_facts facts = {.kernel = NULL};
    plan->backend->facts(&plan->choice, &facts);
    if (facts.stand_in == NULL)
        qni_op_note(&noted, QNI_RAN_KERNEL);
    return QN_OK;
}

qn_status qni_direct_run(const qn_ctx *ctx, const struct qni_op *op, void *scratch,
                         size_t scratch_bytes, qn_error *err)
{
    union qni_choice choice;
    QNI_TRY(qni_choose(ctx, op, &choice, err));
    return execute(ctx, op, &choice, scratch, scratch_bytes, err);
}

qn_status qni_direct_scratch(const qn_ctx *ctx, const struct qni_op *op, size_t *bytes,
                             qn_error *err)
{
    union qni_choice choice;
    if (bytes == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "bytes is NULL: there is no place for the result");
    QNI_TRY(qni_choose(ctx, op, &choice, err));
    *bytes = qni_backend_of(ctx->device.kind)->scratch_bytes(&choice);
    return QN_OK;
}
