/* SPDX-License-Identifier: Apache-2.0 */
/* See sweep.h. The order of the loops: masks, then kernels, then threads. For each mask the weights
 * are packed anew, since the best layout is the context's choice; the reference is computed once.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <quern/cuda.h>

#include "../../src/cpu/conv/kernel.h"
#include "../../src/cpu/matmul/kernel.h"
#include "sweep.h"

/* --------------------------------------------------------------------------------- public calls */

static qn_status matmul_plan(const qn_ctx *ctx, const void *args, qn_plan **plan, qn_error *err)
{
    return qn_matmul_plan(ctx, args, plan, err);
}
static qn_status matmul_run(const qn_plan *plan, const void *args, void *scratch, size_t bytes)
{
    return qn_matmul_run(plan, args, scratch, bytes);
}
static qn_status matmul_direct(const qn_ctx *ctx, const void *args, void *scratch, size_t bytes)
{
    return qn_matmul(ctx, args, scratch, bytes);
}
static qn_status matmul_scratch(const qn_ctx *ctx, const void *args, size_t *bytes)
{
    return qn_matmul_scratch(ctx, args, bytes);
}
static void matmul_set(void *args, const qn_packed *const *w, const char *kernel)
{
    ((qn_matmul_args *)args)->w = w[0];
    ((qn_matmul_args *)args)->kernel = kernel;
}
const struct sweep_calls sweep_matmul = {"qn_matmul",   matmul_plan,    matmul_run,
                                         matmul_direct, matmul_scratch, matmul_set};

static qn_status grouped_plan(const qn_ctx *ctx, const void *args, qn_plan **plan, qn_error *err)
{
    return qn_grouped_plan(ctx, args, plan, err);
}
static qn_status grouped_run(const qn_plan *plan, const void *args, void *scratch, size_t bytes)
{
    return qn_grouped_run(plan, args, scratch, bytes);
}
static qn_status grouped_direct(const qn_ctx *ctx, const void *args, void *scratch, size_t bytes)
{
    return qn_grouped(ctx, args, scratch, bytes);
}
static qn_status grouped_scratch(const qn_ctx *ctx, const void *args, size_t *bytes)
{
    return qn_grouped_scratch(ctx, args, bytes);
}
static void grouped_set(void *args, const qn_packed *const *w, const char *kernel)
{
    ((qn_grouped_args *)args)->w = w;
    ((qn_grouped_args *)args)->kernel = kernel;
}
const struct sweep_calls sweep_grouped = {"qn_grouped",   grouped_plan,    grouped_run,
                                          grouped_direct, grouped_scratch, grouped_set};

static qn_status conv2d_plan(const qn_ctx *ctx, const void *args, qn_plan **plan, qn_error *err)
{
    return qn_conv2d_plan(ctx, args, plan, err);
}
static qn_status conv2d_run(const qn_plan *plan, const void *args, void *scratch, size_t bytes)
{
    return qn_conv2d_run(plan, args, scratch, bytes);
}
static qn_status conv2d_direct(const qn_ctx *ctx, const void *args, void *scratch, size_t bytes)
{
    return qn_conv2d(ctx, args, scratch, bytes);
}
static qn_status conv2d_scratch(const qn_ctx *ctx, const void *args, size_t *bytes)
{
    return qn_conv2d_scratch(ctx, args, bytes);
}
static void conv_set(void *args, const qn_packed *const *w, const char *kernel)
{
    ((qn_conv_args *)args)->w = w[0];
    ((qn_conv_args *)args)->kernel = kernel;
}
const struct sweep_calls sweep_conv2d = {"qn_conv2d",   conv2d_plan,    conv2d_run,
                                         conv2d_direct, conv2d_scratch, conv_set};

static qn_status transpose_plan(const qn_ctx *ctx, const void *args, qn_plan **plan, qn_error *err)
{
    return qn_conv_transpose2d_plan(ctx, args, plan, err);
}
static qn_status transpose_run(const qn_plan *plan, const void *args, void *scratch, size_t bytes)
{
    return qn_conv_transpose2d_run(plan, args, scratch, bytes);
}
static qn_status transpose_direct(const qn_ctx *ctx, const void *args, void *scratch, size_t bytes)
{
    return qn_conv_transpose2d(ctx, args, scratch, bytes);
}
static qn_status transpose_scratch(const qn_ctx *ctx, const void *args, size_t *bytes)
{
    return qn_conv_transpose2d_scratch(ctx, args, bytes);
}
const struct sweep_calls sweep_conv_transpose2d = {"qn_conv_transpose2d", transpose_plan,
                                                   transpose_run,         transpose_direct,
                                                   transpose_scratch,     conv_set};

/* -------------------------------------------------------------------------------------- kernels */

/* The names of all rows, best first, and what they need. */
struct row {
    const char *name;
    uint64_t needs;
    int32_t device;
};
#define QNI_MATMUL_KERNEL(fn, needs, reads, layout, m_min, mr, numerics, traits, scratch)          \
    {#fn, (needs), QN_CPU},
#define QNI_CONV_KERNEL(fn, needs, layout, strategy, algorithm, m_min, mr, helpers)                \
    {#fn, (needs), QN_CPU},
#define QNI_CUDA_KERNEL(fn, sm, exact, reads, layout, m_max, mr, family, takes_total)              \
    {#fn, 0, QN_CUDA},
static const struct row rows[] = {
#include "../../src/cpu/matmul/kernels.inc"

#include "../../src/cpu/conv/kernels.inc"

#include "../../src/cuda/matmul/kernels.inc"
#define QNI_CUDA_DEPTHWISE(fn, sm, reads) {#fn, 0, QN_CUDA},
#define QNI_CUDA_DENSE                    QNI_CUDA_DEPTHWISE
#include "../../src/cuda/matmul/others.inc"
};
#undef QNI_CUDA_DEPTHWISE
#undef QNI_CUDA_DENSE
#undef QNI_MATMUL_KERNEL
#undef QNI_CONV_KERNEL
#undef QNI_CUDA_KERNEL

/* ---------------------------------------------------------------------------------------- a run */

void sweep_use(struct sweep *s, qn_tensor *operand)
{
    if (operand->rank != 0)
        s->operand[s->n_operands++] = operand;
}

void sweep_use_epilogue(struct sweep *s, qn_epilogue *e)
{
    sweep_use(s, &e->bias);
    sweep_use(s, &e->residual);
    sweep_use(s, &e->row_scale);
    sweep_use(s, &e->col_scale);
}

/* Every operand of args becomes its counterpart on the device; a residual that is y remains y. */
static void move_operands(struct check *c, struct sweep *s)
{
    const struct check_device *device = c->options->device;
    const void *y = s->operand[0]->data;
    for (int32_t i = 0; i < s->n_operands; i++) {
        const qn_tensor host = *s->operand[i];
        if (i > 0 && host.data == y) {
            s->operand[i]->data = s->operand[0]->data;
            s->operand[i]->device = s->operand[0]->device;
            continue;
        }
        *s->operand[i] = device->make(c, &host);
        device->send(c, s->operand[i], &host);
    }
}

/* What one mask works with. */
struct session {
    struct check *c;
    struct sweep *s;
    const qn_ctx *ctx;
    uint64_t mask;
    qn_weight *weight[SWEEP_MAX_EXPERTS];
    qn_packed *packed[SWEEP_MAX_EXPERTS];
    struct check_expected *expected;
    char kernel[64]; /* of the last plan */
};

/* y as it was before any call, here and over there. */
static void prepare_y(struct session *t)
{
    check_prepare_y(t->c, t->expected);
    t->c->options->device->send(t->c, t->s->operand[0], &t->s->op.y);
}

static void *scratch_of(struct check *c, size_t bytes)
{
    return c->options->device->scratch(c, bytes);
}

/* Plan, run, compare. Returns the status of planning. */
static qn_status run_plan(struct session *t, const qn_ctx *ctx, const char *kernel, const char *who)
{
    struct check *c = t->c;
    const struct sweep_calls *calls = t->s->calls;
    qn_plan *plan = NULL;
    qn_error err = {0};
    calls->set(t->s->args, (const qn_packed *const *)t->packed, kernel);
    const qn_status status = calls->plan(ctx, t->s->args, &plan, &err);
    if (status != QN_OK) {
        if (kernel == NULL)
            check_status(c, who, status, t->s->refusal, &err);
        return status;
    }
    if (t->s->refusal != QN_OK)
        check_fail(c, "%s: planned, must be %s", who, qn_status_name(t->s->refusal));
    qn_plan_info info;
    qn_plan_info_init(&info);
    check_status(c, "qn_plan_query", qn_plan_query(plan, &info), QN_OK, NULL);
    snprintf(t->kernel, sizeof t->kernel, "%s", info.kernel != NULL ? info.kernel : "");
    if (kernel != NULL && t->s->op.m > 0 && strcmp(kernel, t->kernel) != 0)
        check_fail(c, "%s: asked for %s, the plan says %s", who, kernel, t->kernel);
    if (sweep_is_int8(t->s->op.strategy) && !info.is_exact)
        check_fail(c, "%s: the plan of an int8 strategy is not exact", who);
    const size_t bytes = qn_plan_scratch_bytes(plan);
    void *scratch = scratch_of(c, bytes);
    prepare_y(t);
    const int64_t allocations = check_allocations();
    check_status(c, who, calls->run(plan, t->s->args, scratch, bytes), QN_OK, NULL);
    if (check_allocations() != allocations)
        check_fail(c, "%s: a run has allocated memory", who);
    c->options->device->fetch(c, t->s->operand[0], &t->s->op.y);
    qn_plan_destroy(plan);
    return QN_OK;
}

static void run_direct(struct session *t, const char *who)
{
    const struct sweep_calls *calls = t->s->calls;
    size_t bytes = 0;
    calls->set(t->s->args, (const qn_packed *const *)t->packed, NULL);
    const qn_status status = calls->scratch(t->ctx, t->s->args, &bytes);
    if (!check_status(t->c, "scratch", status, t->s->refusal, NULL) || status != QN_OK)
        return;
    void *scratch = scratch_of(t->c, bytes);
    prepare_y(t);
    const int64_t allocations = check_allocations();
    if (!check_status(t->c, who, calls->direct(t->ctx, t->s->args, scratch, bytes), QN_OK, NULL))
        return;
    if (check_allocations() != allocations)
        check_fail(t->c, "%s: a direct call has allocated memory", who);
    t->c->options->device->fetch(t->c, t->s->operand[0], &t->s->op.y);
    check_y(t->c, t->expected, t->kernel, who);
}

static bool pack(struct session *t)
{
    qn_error err = {0};
    qn_pack_options options;
    qn_pack_options_init(&options);
    options.layout = t->s->layout;
    options.x_block = t->s->x_block;
    options.without_sums = t->s->without_sums;
    for (int32_t e = 0; e < t->s->n_experts; e++) {
        if (!check_status(t->c, "qn_weight_create",
                          qn_weight_create(t->ctx, &t->s->weights[e].parts, &t->weight[e], &err),
                          QN_OK, &err))
            return false;
        qn_status status = qn_pack(t->ctx, t->weight[e], &options, &t->packed[e], &err);
        if (status == QN_E_LAYOUT && options.layout != NULL) {
            options.layout = NULL;
            status = qn_pack(t->ctx, t->weight[e], &options, &t->packed[e], &err);
        }
        const bool is_float = t->s->weights[e].parts.format.code == QN_CODE_FLOAT;
        if (status == QN_E_LAYOUT && is_float && t->c->options->device->kind != QN_CPU)
            return false; /* as unit.cuda_pack asks: there is nothing to multiply */
        if (!check_status(t->c, "qn_pack", status, QN_OK, &err))
            return false;
        qn_weight_destroy(t->weight[e]); /* packed weights stand on their own */
        t->weight[e] = NULL;
    }
    return true;
}

static void unpack_all(struct session *t)
{
    for (int32_t e = 0; e < t->s->n_experts; e++) {
        qn_packed_destroy(t->packed[e]);
        qn_weight_destroy(t->weight[e]);
        t->packed[e] = NULL;
        t->weight[e] = NULL;
    }
}

/* Every row of the lists that this mask allows and that takes the problem. */
static void run_kernels(struct session *t, const char *chosen)
{
    char who[160];
    bool taken = t->s->op.m == 0;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        if ((rows[i].needs & ~t->mask) != 0 || rows[i].device != t->c->options->device->kind)
            continue;
        snprintf(who, sizeof who, "%s on %s", rows[i].name, check_mask_name(t->mask));
        const qn_status status = run_plan(t, t->ctx, rows[i].name, who);
        if (status == QN_OK)
            check_y(t->c, t->expected, rows[i].name, who);
        else if (status != QN_E_UNSUPPORTED)
            check_status(t->c, who, status, QN_E_UNSUPPORTED, NULL);
        taken = taken || (status == QN_OK && strcmp(rows[i].name, chosen) == 0);
    }
    if (!taken)
        check_fail(t->c, "the chosen kernel '%s' refuses when asked for by name", chosen);
}

static void run_threads(struct session *t, const char *chosen)
{
    static const int32_t counts[] = {2, 5, CHECK_SERIAL};
    const uint8_t *image = check_remember_y(t->c, t->expected);
    char who[160];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        snprintf(who, sizeof who, "%s on %s, %d threads", chosen, check_mask_name(t->mask),
                 counts[i]);
        if (run_plan(t, check_context(t->c, t->mask, counts[i]), NULL, who) == QN_OK) {
            check_same_y(t->c, t->expected, image, who);
            check_y(t->c, t->expected, t->kernel, who);
        }
    }
}

/* The chosen kernel in a graph, and often: equal bits. The plan's call is what is captured. */
struct captured {
    const struct sweep_calls *calls;
    const qn_plan *plan;
    const void *args;
    void *scratch;
    size_t bytes;
};

static qn_status call_captured(void *arg, int32_t i)
{
    const struct captured *p = arg;
    (void)i;
    return p->calls->run(p->plan, p->args, p->scratch, p->bytes);
}

/* On a GPU: twice from a graph, with programmatic launches and without, and then as often as the
 * sweep has time for. */
static void run_again(struct session *t, const char *chosen)
{
    struct check *c = t->c;
    const uint8_t *image = check_remember_y(c, t->expected);
    struct captured p = {.calls = t->s->calls, .args = t->s->args};
    qn_plan *plan = NULL;
    qn_error err = {QN_OK, -1, ""};
    double us[1];
    qn_ctx *ctx = (qn_ctx *)(uintptr_t)t->ctx; /* the harness made it */
    t->s->calls->set(t->s->args, (const qn_packed *const *)t->packed, NULL);
    if (!check_status(c, "planning again", t->s->calls->plan(ctx, t->s->args, &plan, &err), QN_OK,
                      &err))
        return;
    p.plan = plan;
    p.bytes = qn_plan_scratch_bytes(plan);
    p.scratch = scratch_of(c, p.bytes);
    for (int32_t pdl = 0; pdl < 2 && !c->failed; pdl++) {
        prepare_y(t);
        check_status(c, "qn_cuda_set_pdl", qn_cuda_set_pdl(ctx, pdl), QN_OK, NULL);
        check_status(c, "a graph", qn_cuda_measure(ctx, call_captured, &p, 2, 1, us, &err), QN_OK,
                     &err);
        c->options->device->fetch(c, t->s->operand[0], &t->s->op.y);
        check_same_y(c, t->expected, image, pdl ? "a graph with programmatic launches" : "a graph");
    }
    qn_cuda_set_pdl(ctx, 0);
    for (int32_t i = 0; i < 3 && !c->failed; i++) {
        prepare_y(t);
        check_status(c, chosen, call_captured(&p, 0), QN_OK, NULL);
        c->options->device->fetch(c, t->s->operand[0], &t->s->op.y);
        check_same_y(c, t->expected, image, "the same again");
    }
    qn_plan_destroy(plan);
}

/* A residual in y changes from call to call. */
static bool is_in_place(const struct sweep *s)
{
    for (int32_t i = 1; i < s->n_operands; i++)
        if (s->operand[i]->data == s->operand[0]->data)
            return true;
    return false;
}

/* Experts that order or scale columns each in their own way read no common rows. */
static bool has_own_orders(const struct session *t)
{
    for (int32_t e = 0; t->s->n_experts > 1 && e < t->s->n_experts; e++)
        if (t->s->weights[e].w.perm != NULL || t->s->weights[e].w.prescale != NULL)
            return true;
    return false;
}

/* A direct call with rows that were prepared before, x itself out of reach. */
static void run_prepared(struct session *t, const char *who)
{
    struct check *c = t->c;
    qn_matmul_args *const matmul = t->s->calls == &sweep_matmul ? t->s->args : NULL;
    qn_grouped_args *const grouped = t->s->calls == &sweep_grouped ? t->s->args : NULL;
    const qn_strategy strategy = t->s->op.strategy;
    if ((matmul == NULL && grouped == NULL) || has_own_orders(t) ||
        (strategy != QN_STRATEGY_INT8_ROW && strategy != QN_STRATEGY_INT8_BLOCK))
        return;
    qn_tensor *const x = matmul != NULL ? &matmul->x : &grouped->x;
    const void **const prepared = matmul != NULL ? &matmul->prepared : &grouped->prepared;
    void *const data = x->data;
    qn_prepare_args args;
    size_t bytes = 0;
    qn_prepare_args_init(&args);
    args.w = t->packed[0];
    args.x = *x;
    args.strategy = strategy;
    args.quant = matmul != NULL ? matmul->quant : grouped->quant;
    args.x.data = NULL;
    check_status(c, "qn_prepare_bytes", qn_prepare_bytes(t->ctx, &args, &bytes), QN_OK, NULL);
    args.x.data = data;
    void *const memory = aligned_alloc(64, (bytes + 63) / 64 * 64);
    const int64_t allocations = check_allocations();
    check_status(c, "qn_prepare", qn_prepare(t->ctx, &args, memory, bytes), QN_OK, NULL);
    if (check_allocations() != allocations)
        check_fail(c, "%s: qn_prepare() has allocated memory", who);
    *prepared = memory;
    x->data = NULL;
    if (!c->failed)
        run_direct(t, who);
    *prepared = NULL;
    x->data = data;
    free(memory);
}

/* The block of int8-block that the packed weights were made for. */
static int64_t x_block_of(struct session *t)
{
    qn_packed_info info;
    qn_packed_info_init(&info);
    check_status(t->c, "qn_packed_query", qn_packed_query(t->packed[0], &info), QN_OK, NULL);
    return info.x_block;
}

void sweep_run(struct check *c, struct sweep *s)
{
    const struct check_options *o = c->options;
    const uint64_t *masks;
    const int32_t n_masks = check_masks(o, &masks);
    const int32_t lucky = (int32_t)check_random_in(&c->random, 0, n_masks - 1);
    struct check_expected expected = {0};
    int64_t x_block = 0;
    move_operands(c, s);
    for (int32_t i = 0; i < n_masks; i++) {
        if (o->quick && i != 0 && i != n_masks - 1 && i != lucky)
            continue;
        const int32_t threads = o->threads > 0 ? o->threads : 1;
        struct session t = {.c = c, .s = s, .mask = masks[i], .expected = &expected};
        t.ctx = check_context(c, masks[i], threads);
        char who[160];
        snprintf(who, sizeof who, "%s on %s", s->calls->name, check_mask_name(masks[i]));
        if (pack(&t)) {
            if (i == 0) {
                x_block = s->op.x_block = x_block_of(&t);
                if (s->refusal == QN_OK)
                    check_expect(c, &s->op, s->data, &expected);
                expected.one_nan = true;
            } else if (x_block_of(&t) != x_block) {
                check_fail(c, "%s: another x_block than with all features", who);
            }
            if (run_plan(&t, t.ctx, NULL, who) == QN_OK && s->refusal == QN_OK) {
                char chosen[64];
                memcpy(chosen, t.kernel, sizeof chosen);
                check_y(c, &expected, chosen, who);
                const bool extra = i == 0 || i == n_masks - 1 || i == lucky;
                if (o->device->kind == QN_CPU && o->threads == 0 && extra)
                    run_threads(&t, chosen);
                else if (o->device->kind != QN_CPU && s->op.m > 0 && !is_in_place(s))
                    run_again(&t, chosen);
                run_kernels(&t, chosen);
                memcpy(t.kernel, chosen, sizeof chosen); /* what a direct call chooses, too */
                run_direct(&t, "the direct call");
                if (o->device->kind == QN_CPU && s->refusal == QN_OK && extra)
                    run_prepared(&t, "prepared rows");
            }
        }
        unpack_all(&t);
        if (c->failed)
            return; /* the same again on other masks would say nothing new */
    }
}

void sweep_run_row(struct check *c, struct sweep *s, const char *kernel)
{
    struct check_expected expected = {0};
    struct session t = {.c = c, .s = s, .mask = c->options->isa, .expected = &expected};
    t.ctx = check_context(c, t.mask, c->options->threads > 0 ? c->options->threads : 2);
    if (pack(&t)) {
        s->op.x_block = x_block_of(&t);
        check_expect(c, &s->op, s->data, &expected);
        move_operands(c, s);
        if (check_status(c, kernel, run_plan(&t, t.ctx, kernel, kernel), QN_OK, NULL))
            check_y(c, &expected, kernel, "alone");
    }
    unpack_all(&t);
}

/* -------------------------------------------------------------------------------------- drawing */

bool sweep_is_int8(qn_strategy s)
{
    return s == QN_STRATEGY_INT8_ROW || s == QN_STRATEGY_INT8_BLOCK || s == QN_STRATEGY_INT8_STATIC;
}

bool sweep_is_fp8(qn_strategy s)
{
    return s == QN_STRATEGY_FP8_ROW || s == QN_STRATEGY_FP8_BLOCK || s == QN_STRATEGY_FP8_STATIC;
}

bool sweep_is_one_unit(const struct check_weight *weight)
{
    return weight->w.format.code == QN_CODE_INT && weight->w.n_groups == 1 &&
           weight->w.format.shift != QN_SHIFT_OFFSET && weight->w.format.shift != QN_SHIFT_MIN;
}

bool sweep_draw_small(struct check *c, qn_strategy strategy, int32_t data)
{
    return c->options->device->kind == QN_CPU && data == CHECK_EXTREME &&
           !sweep_is_int8(strategy) && check_random_chance(&c->random, 50);
}

const char *sweep_draw_layout(struct check *c, qn_strategy strategy)
{
    static const char *const compact[] = {"q4c16", "t4c16", "q8c16"};
    int32_t n = 0;
    while (qn_layout_name(n) != NULL)
        n++;
    if (check_random_chance(&c->random, 50))
        return NULL;
    if (check_random_chance(&c->random, 60)) /* also where the processor would have wide ones */
        return compact[check_random_in(&c->random, 0, 2)];
    const char *name = qn_layout_name((int32_t)check_random_in(&c->random, 0, n - 1));
    /* As a table of 256 floats a codebook of a few integers serves the float strategies only. */
    return sweep_is_int8(strategy) && strncmp(name, "t8", 2) == 0 ? NULL : name;
}

qn_dtype sweep_draw_x_type(struct check *c, qn_strategy strategy)
{
    if (strategy == QN_STRATEGY_INT8_STATIC)
        return (qn_dtype)CHECK_OF(&c->random, QN_I8, QN_U8);
    if (strategy == QN_STRATEGY_DENSE)
        return (qn_dtype)CHECK_OF(&c->random, QN_F32, QN_F16, QN_BF16, QN_BF16);
    if (sweep_is_fp8(strategy))
        return (qn_dtype)CHECK_OF(&c->random, QN_F32, QN_F16, QN_BF16, QN_E4M3);
    return (qn_dtype)CHECK_OF(&c->random, QN_F32, QN_F32, QN_F16, QN_BF16);
}

qn_dtype sweep_draw_y_type(struct check *c, qn_strategy strategy, bool raw)
{
    if (strategy == QN_STRATEGY_INT8_STATIC)
        return (qn_dtype)CHECK_OF(&c->random, QN_F32, QN_F16, QN_BF16, QN_I8, QN_U8,
                                  raw ? QN_I32 : QN_I8);
    if (check_random_chance(&c->random, 15))
        return (qn_dtype)CHECK_OF(&c->random, QN_I8, QN_U8);
    if (sweep_is_fp8(strategy))
        return (qn_dtype)CHECK_OF(&c->random, QN_F32, QN_F32, QN_F16, QN_BF16, QN_E4M3);
    return (qn_dtype)CHECK_OF(&c->random, QN_F32, QN_F32, QN_F16, QN_BF16);
}

void sweep_draw_quant(struct check *c, qn_strategy strategy, qn_dtype x_type, qn_quant_args *quant)
{
    struct check_random *r = &c->random;
    const int32_t lo = x_type == QN_U8 ? 0 : -128;
    quant->symmetric = strategy == QN_STRATEGY_INT8_BLOCK && check_random_chance(r, 40);
    if (strategy == QN_STRATEGY_FP8_STATIC)
        quant->x_scale = (float)(0.001 * (double)check_random_in(r, 1, 400));
    if (strategy != QN_STRATEGY_INT8_STATIC)
        return;
    quant->x_scale = (float)(0.001 * (double)check_random_in(r, 1, 400));
    quant->x_zero = check_random_chance(r, 40) ? (x_type == QN_U8 ? 128 : 0)
                                               : (int32_t)check_random_in(r, lo, lo + 255);
}

static qn_tensor draw_tensor(struct check *c, const char *name, qn_dtype dtype, int32_t rank,
                             const int64_t *shape)
{
    const qn_tensor t = check_tensor(c, name, dtype, rank, shape, true);
    check_fill_x(c, &t, CHECK_NORMAL, false);
    check_memory_freeze(t.data);
    return t;
}

qn_tensor sweep_draw_x_scales(struct check *c, qn_strategy strategy, const qn_tensor *x)
{
    const int64_t columns = strategy == QN_STRATEGY_FP8_ROW ? 1 : (x->shape[1] + 127) / 128;
    const int64_t shape[2] = {x->shape[0], columns};
    if (!sweep_is_fp8(strategy) || strategy == QN_STRATEGY_FP8_STATIC || x->dtype != QN_E4M3)
        return qn_tensor_none();
    return draw_tensor(c, "x_scales", QN_F32, 2, shape);
}

static qn_dtype draw_float(struct check *c)
{
    return (qn_dtype)CHECK_OF(&c->random, QN_F32, QN_F16, QN_BF16);
}

/* [n], or for some grouped products [n_experts, n]. Rows of the latter are whole. */
static qn_tensor draw_by_column(struct check *c, const struct sweep_epilogue *o, const char *name,
                                qn_dtype dtype)
{
    const int64_t shape[2] = {o->n_experts, o->n};
    const bool by_expert = o->n_experts > 1 && check_random_chance(&c->random, 50);
    return by_expert ? draw_tensor(c, name, dtype, 2, shape)
                     : draw_tensor(c, name, dtype, 1, shape + 1);
}

static void draw_integer_bias(struct check *c, const struct sweep_epilogue *o, qn_epilogue *e)
{
    e->bias = draw_by_column(c, o, "bias", QN_I32);
    check_memory_thaw(e->bias.data);
    const int64_t n_rows = e->bias.rank == 2 ? e->bias.shape[0] : 1;
    /* At times so large that codes of y saturate and floats round the sums. */
    const int64_t most = check_random_chance(&c->random, 15) ? 2000000000 : 20000;
    for (int64_t i = 0; i < n_rows; i++)
        for (int64_t j = 0; j < o->n; j++)
            ((int32_t *)e->bias.data)[i * (e->bias.rank == 2 ? e->bias.stride[0] : 0) + j] =
                (int32_t)check_random_in(&c->random, -most, most);
    check_memory_freeze(e->bias.data);
}

/* Codes with a scale and a zero point of their own. */
static void draw_codes(struct check *c, const struct sweep_epilogue *o, qn_epilogue *e)
{
    struct check_random *r = &c->random;
    const qn_dtype type = (qn_dtype)CHECK_OF(r, QN_I8, QN_U8);
    e->residual = draw_tensor(c, "residual", type, o->y->rank, o->y->shape);
    o->more->residual_scale = (float)(0.003 * (double)check_random_in(r, 1, 300));
    o->more->residual_zero = (int32_t)check_random_in(r, type == QN_U8 ? 0 : -128, 127);
}

static qn_act draw_act(struct check *c, const struct sweep_epilogue *o)
{
    struct check_random *r = &c->random;
    if (check_random_chance(r, 60))
        return (qn_act)CHECK_OF(r, QN_ACT_NONE, QN_ACT_NONE, QN_ACT_NONE, QN_ACT_RELU,
                                QN_ACT_RELU6, QN_ACT_GELU, QN_ACT_GELU_TANH, QN_ACT_SILU);
    o->more->leaky_slope = (float)(0.01 * (double)check_random_in(r, -10, 150));
    if (check_random_chance(r, 50)) {
        o->more->hard_slope = (float)(0.1 * (double)check_random_in(r, -10, 20));
        o->more->hard_shift = (float)(0.1 * (double)check_random_in(r, -5, 15));
    }
    return (qn_act)check_random_in(r, QN_ACT_SIGMOID, QN_ACT_LEAKY_RELU);
}

void sweep_draw_epilogue(struct check *c, const struct sweep_epilogue *o, qn_epilogue *e)
{
    struct check_random *r = &c->random;
    const bool is_float = o->y->dtype == QN_F32 || o->y->dtype == QN_F16 || o->y->dtype == QN_BF16;
    qn_epilogue_init(e);
    if (o->y->dtype == QN_I32 || check_random_chance(r, 20))
        return;
    if (check_random_chance(r, 50))
        e->bias = draw_by_column(c, o, "bias", draw_float(c));
    else if (o->one_unit && check_random_chance(r, 60))
        draw_integer_bias(c, o, e);
    if (!o->image && check_random_chance(r, 20))
        e->row_scale = draw_tensor(c, "row_scale", QN_F32, 1, &o->m);
    if (check_random_chance(r, 20))
        e->col_scale = draw_by_column(c, o, "col_scale", QN_F32);
    if (check_random_chance(r, 30)) {
        e->residual_after = check_random_chance(r, 50);
        if (is_float && check_random_chance(r, 30)) {
            check_fill_x(c, o->y, CHECK_NORMAL, false); /* in place */
            e->residual = *o->y;
        } else if (check_random_chance(r, 30)) {
            draw_codes(c, o, e);
        } else {
            e->residual = draw_tensor(c, "residual", draw_float(c), o->y->rank, o->y->shape);
        }
    }
    e->act = draw_act(c, o);
    if (check_random_chance(r, 20)) {
        e->clamp_lo = (float)check_random_in(r, -3, 0);
        e->clamp_hi = (float)check_random_in(r, 0, 3);
        if (e->clamp_lo == 0.0f && e->clamp_hi == 0.0f) /* refused */
            e->clamp_hi = 1.0f;
    }
    if (is_float)
        return;
    e->y_scale = (float)(0.003 * (double)check_random_in(r, 1, 300));
    if (o->y->dtype == QN_E4M3)
        return;
    e->y_zero = (int32_t)check_random_in(r, o->y->dtype == QN_U8 ? 0 : -128,
                                         o->y->dtype == QN_U8 ? 255 : 127);
}
