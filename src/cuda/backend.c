/* SPDX-License-Identifier: Apache-2.0 */
/* The CUDA backend's door: select and size, make the device current, launch. What fails has a
 * status and a sentence. */
#include "backend.h"

#include <string.h>

#include "../base/compiler.h"
#include "../base/size.h"
#include "device.h"
#include "fp8.h"
#include "matmul/dense.h"
#include "matmul/driver.h"
#include "matmul/prepared.h"
#include "matmul/select.h"

/* The algorithms of the dense tier, where it is among the chosen. */
static qn_status plan_dense(const qn_ctx *ctx, const struct qni_cuda_blas *blas,
                            const struct qni_op *op, struct qni_cuda_choice *choice)
{
    struct qni_cuda_scope scope;
    const struct qni_cuda_kernel *row = NULL;
    for (int32_t i = 0; i < choice->n_choices; i++)
        if (qni_cuda_is_dense(choice->kernel[i]))
            row = choice->kernel[i];
    if (row == NULL)
        return QN_OK;
    QNI_TRY(qni_cuda_enter(ctx, &scope, NULL));
    const qn_status status = qni_cuda_dense_plan(blas, op, row, &choice->dense);
    qni_cuda_leave(ctx, &scope);
    return status;
}

static qn_status choose(const qn_ctx *ctx, const struct qni_op *op, struct qni_cuda_choice *choice,
                        qni_refusal_fn tell, void *arg)
{
    struct qni_cuda_facts facts = ctx->cuda->facts;
    const struct qni_cuda_offer offer = qni_cuda_offer_of(&facts);
    const struct qni_cuda_blas *blas = NULL;
    if (op->strategy == QN_STRATEGY_DENSE)
        blas = qni_cuda_blas_of(ctx, &facts.no_blas);
    qn_status status = qni_cuda_choose(&offer, op, choice, NULL, NULL);
    if (status == QN_OK)
        status = plan_dense(ctx, blas, op, choice);
    if (status == QN_E_UNSUPPORTED && facts.no_blas == NULL && choice->n_choices > 0) {
        facts.no_blas = "cuBLASLt knows no way to do this product";
        memset(choice, 0, sizeof *choice);
        status = qni_cuda_choose(&offer, op, choice, NULL, NULL);
    }
    struct qni_cuda_choice same = {.n_choices = 0};
    if (tell != NULL)
        (void)qni_cuda_choose(&offer, op, &same, tell, arg);
    return status;
}

/* ---- gates ----------------------------------------------------------------------------------- */

/* A gate's two outputs are a product of their own, with the scales and the bias, to f32 in front of
 * the scratch; another launch makes y of them (run_gate). */
static struct qni_op gate_inner(const struct qni_op *op, void *scratch)
{
    struct qni_op inner = *op;
    inner.y = qn_tensor_2d(scratch, QN_F32, op->m, op->n);
    inner.y.device = op->y.device;
    qn_epilogue_init(&inner.epilogue);
    inner.epilogue.bias = op->epilogue.bias;
    inner.epilogue.row_scale = op->epilogue.row_scale;
    inner.epilogue.col_scale = op->epilogue.col_scale;
    qn_epilogue_more_init(&inner.more);
    return inner;
}

static qn_status run_gate(const struct qni_op *op, const float *values,
                          const struct qni_cuda_launch *launch, qn_error *err)
{
    struct qni_op outer = *op;
    struct qni_cuda_gate gate;
    memset(&gate, 0, sizeof gate);
    memset(&outer.epilogue.bias, 0, sizeof outer.epilogue.bias);
    memset(&outer.epilogue.row_scale, 0, sizeof outer.epilogue.row_scale);
    memset(&outer.epilogue.col_scale, 0, sizeof outer.epilogue.col_scale);
    outer.epilogue.act = QN_ACT_NONE;
    qni_cuda_sink_of(&outer, &gate.out);
    gate.v = values;
    gate.m = op->m;
    gate.n = (int32_t)qni_op_columns(op);
    gate.by_pairs = op->more.gate == QN_GATE_PAIRS;
    gate.act = op->epilogue.act;
    return qni_cuda_launched(qni_cuda_gate_sm75(&gate, launch), "a gate", err);
}

/* ---- batches --------------------------------------------------------------------------------- */

/* Routes of a batch, whose experts have as many rows each: offsets in front of the scratch. */
static struct qni_op batch_inner(const struct qni_op *op, void *scratch)
{
    struct qni_op inner = *op;
    inner.batch_rows = -1;
    inner.offsets = qn_tensor_1d(scratch, QN_I32, op->n_w + 1);
    return inner;
}

static qn_status make_even(const struct qni_op *op, void *scratch,
                           const struct qni_cuda_launch *launch, qn_error *err)
{
    const struct qni_cuda_even even = {scratch, op->batch_rows, op->n_w};
    return qni_cuda_launched(qni_cuda_even_sm75(&even, launch), "offsets of a batch", err);
}

static bool is_batch(const struct qni_op *op)
{
    return op->kind == QNI_GROUPED && op->batch_rows >= 0;
}

/* ---- selection ------------------------------------------------------------------------------- */

qn_status qni_cuda_select(const qn_ctx *ctx, const struct qni_op *op,
                          struct qni_cuda_choice *choice, qni_refusal_fn tell, void *arg)
{
    memset(choice, 0, sizeof *choice);
    if (is_batch(op)) {
        const struct qni_op inner = batch_inner(op, NULL);
        QNI_TRY(qni_cuda_select(ctx, &inner, choice, tell, arg));
        choice->even_bytes = qni_round_up(((size_t)op->n_w + 1) * sizeof(int32_t), 256);
        choice->scratch_bytes += choice->even_bytes;
        return QN_OK;
    }
    if (op->more.gate != QN_GATE_NONE) {
        const struct qni_op inner = gate_inner(op, NULL);
        QNI_TRY(qni_cuda_select(ctx, &inner, choice, tell, arg));
        choice->gate_bytes = qni_round_up((size_t)op->m * (size_t)op->n * sizeof(float), 256);
        choice->scratch_bytes += choice->gate_bytes;
        return QN_OK;
    }
    if (qni_cuda_is_depthwise(op)) {
        const struct qni_cuda_offer offer = qni_cuda_offer_of(&ctx->cuda->facts);
        choice->chunk = op->m;
        return qni_cuda_choose_depthwise(&offer, op, choice, tell, arg);
    }
    if (qni_is_fp8(op->strategy)) {
        const struct qni_op inner = qni_cuda_fp8_inner(op, NULL);
        QNI_TRY(choose(ctx, &inner, choice, tell, arg));
        qni_cuda_size(&inner, choice);
        choice->fp8_bytes = qni_cuda_fp8_bytes(op);
        choice->scratch_bytes += choice->fp8_bytes;
        return QN_OK;
    }
    QNI_TRY(choose(ctx, op, choice, tell, arg));
    qni_cuda_size(op, choice);
    return QN_OK;
}

qn_status qni_cuda_get_cost(const qn_ctx *ctx, int32_t i, qn_cuda_cost *cost, qn_error *err)
{
    const struct qni_cuda_offer offer = qni_cuda_offer_of(&ctx->cuda->facts);
    return qni_cuda_cost_get(ctx->cuda, offer.rows, offer.n_rows, i, cost, err);
}

qn_status qni_cuda_set_cost(qn_ctx *ctx, const qn_cuda_cost *cost, qn_error *err)
{
    const struct qni_cuda_offer offer = qni_cuda_offer_of(&ctx->cuda->facts);
    return qni_cuda_cost_set(ctx->cuda, offer.rows, offer.n_rows, cost, err);
}

static qn_status run_product(const qn_ctx *ctx, const struct qni_op *op,
                             const struct qni_cuda_choice *choice, void *scratch,
                             const struct qni_cuda_launch *launch, qn_error *err)
{
    const struct qni_cuda_kernel *row = qni_cuda_kernel_for(choice, op->m);
    const char *why;
    if (qni_is_fp8(op->strategy)) {
        struct qni_op inner = qni_cuda_fp8_inner(op, scratch);
        if (qni_cuda_reads_e4m3(row->reads)) /* it gets the scales with the codes */
            inner.x_scales.rank = 0;
        else
            QNI_TRY(qni_cuda_fp8_convert(&inner, launch, err));
        return qni_cuda_product_run(&inner, choice, (uint8_t *)scratch + choice->fp8_bytes, launch,
                                    err);
    }
    if (!qni_cuda_is_dense(row))
        return qni_cuda_product_run(op, choice, scratch, launch, err);
    return qni_cuda_dense_run(qni_cuda_blas_of(ctx, &why), op, row, &choice->dense, scratch, launch,
                              err);
}

/* What a batch and a gate do beside their products. */
static qn_status run_any(const qn_ctx *ctx, const struct qni_op *op,
                         const struct qni_cuda_choice *choice, uint8_t *scratch,
                         const struct qni_cuda_launch *launch, qn_error *err)
{
    if (choice->is_depthwise)
        return qni_cuda_depthwise_run(op, launch, err);
    if (is_batch(op)) {
        const struct qni_op inner = batch_inner(op, scratch);
        QNI_TRY(make_even(op, scratch, launch, err));
        return run_any(ctx, &inner, choice, scratch + choice->even_bytes, launch, err);
    }
    if (op->more.gate == QN_GATE_NONE)
        return run_product(ctx, op, choice, scratch, launch, err);
    const struct qni_op inner = gate_inner(op, scratch);
    QNI_TRY(run_product(ctx, &inner, choice, scratch + choice->gate_bytes, launch, err));
    return run_gate(op, (const float *)(const void *)scratch, launch, err);
}

qn_status qni_cuda_run(const qn_ctx *ctx, const struct qni_op *op,
                       const struct qni_cuda_choice *choice, void *scratch, qn_error *err)
{
    struct qni_cuda_scope scope;
    QNI_TRY(qni_cuda_enter(ctx, &scope, err));
    const qn_status status = run_any(ctx, op, choice, scratch, &scope.launch, err);
    qni_cuda_leave(ctx, &scope);
    return status;
}

static int64_t row_stride(const qn_tensor *t)
{
    return t->shape[0] > 1 ? t->stride[0] : t->shape[1];
}

qn_status qni_cuda_combine_rows(const qn_ctx *ctx, const qn_combine_rows_args *a, qn_error *err)
{
    struct qni_cuda_combine_rows c;
    struct qni_cuda_scope scope;
    memset(&c, 0, sizeof c);
    c.x = a->x.data;
    c.x_dtype = a->x.dtype;
    c.x_rows = a->x.shape[0];
    c.ldx = row_stride(&a->x);
    if (a->add.rank != 0) {
        c.add = a->add.data;
        c.add_dtype = a->add.dtype;
        c.ld_add = row_stride(&a->add);
    }
    c.weights = a->weights.data;
    c.ld_weights = row_stride(&a->weights);
    if (a->rows.rank != 0) {
        c.rows = a->rows.data;
        c.ld_rows = row_stride(&a->rows);
    }
    c.tokens = a->weights.shape[0];
    c.top_k = a->weights.shape[1];
    c.n = a->y.shape[1];
    c.out.y = a->y.data;
    c.out.y_dtype = a->y.dtype;
    c.out.stride[2] = row_stride(&a->y);
    QNI_TRY(qni_cuda_enter(ctx, &scope, err));
    const int32_t launched = qni_cuda_combine_rows_sm75(&c, &scope.launch);
    const qn_status status = qni_cuda_launched(launched, "combining rows", err);
    qni_cuda_leave(ctx, &scope);
    return status;
}

qn_status qni_cuda_quantize_rows(const qn_ctx *ctx, const qn_quantize_rows_args *a,
                                 qn_error *err)
{
    struct qni_cuda_quantize_rows rows;
    struct qni_cuda_scope scope;
    memset(&rows, 0, sizeof rows);
    rows.x = a->x.data;
    rows.dtype = a->x.dtype;
    rows.is_u8 = a->codes.dtype == QN_U8;
    rows.m = a->x.shape[0];
    rows.k = a->x.shape[1];
    rows.ldx = row_stride(&a->x);
    rows.block = a->block;
    rows.codes = a->codes.data;
    rows.ld_codes = row_stride(&a->codes);
    rows.scale = a->scale.data;
    rows.ld_scale = row_stride(&a->scale);
    if (a->offset.rank != 0) {
        rows.offset = a->offset.data;
        rows.ld_offset = row_stride(&a->offset);
    }
    if (a->sum.rank != 0) {
        rows.sum = a->sum.data;
        rows.ld_sum = row_stride(&a->sum);
    }
    const struct qni_cuda_fp8 codes = {
        .x = rows.x,
        .dtype = rows.dtype,
        .ldx = rows.ldx,
        .x_rows = rows.m,
        .k = rows.k,
        .m = rows.m,
        .block = rows.block,
        .form = QNI_CUDA_FP8_CODES,
        .is_aligned = rows.ld_codes % 4 == 0 && (uintptr_t)rows.codes % 4 == 0,
        .columns = rows.k,
        .to = rows.codes,
        .ld_to = rows.ld_codes,
        .scale = rows.scale,
        .ld_scale = rows.ld_scale,
    };
    QNI_TRY(qni_cuda_enter(ctx, &scope, err));
    const int32_t launched = a->codes.dtype == QN_E4M3
                                 ? qni_cuda_fp8_sm75(&codes, &scope.launch)
                                 : qni_cuda_quantize_rows_sm75(&rows, &scope.launch);
    const qn_status status = qni_cuda_launched(launched, "quantizing rows", err);
    qni_cuda_leave(ctx, &scope);
    return status;
}
