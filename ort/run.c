/* SPDX-License-Identifier: Apache-2.0 */
/* One run of a program: shapes of y, operands into an epilogue, one call of the library. */
#include "program.h"

#include "pool.h"
#include "quantize.h"
#include "table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* What a run collects before it calls the library. */
struct call {
    const struct program *p;
    struct ort_run *run;
    struct worker *worker;
    struct tensor x;
    int64_t y_shape[GRAPH_MAX_RANK];
    void *y;
    qn_epilogue epilogue;
    qn_quant_args quant;
    float x_scale;   /* Of x that was quantized in this run; else 1. */
    int32_t x_zero;
    float *vectors;  /* Room for a factor and a bias an output. */
};

static qn_dtype dtype_of(int32_t type)
{
    switch (type) {
    case ORT_F32: return QN_F32;
    case ORT_F16: return QN_F16;
    case ORT_BF16: return QN_BF16;
    case ORT_U8: return QN_U8;
    case ORT_I8: return QN_I8;
    case ORT_I32: return QN_I32;
    default: return QN_DTYPE_NONE;
    }
}

static int32_t byte_of(const struct tensor *t)
{
    return t->type == ORT_I8 ? *(const int8_t *)t->data : *(const uint8_t *)t->data;
}

/* One number or one an output, times what is there. */
static struct ort_status *take_factor(struct call *call, const struct tensor *t, float *scalar,
                                      float *vector, bool *has_vector)
{
    const float *values = t->data;
    int64_t n = call->p->claim.n;
    if (t->type != ORT_F32 || (t->count != 1 && t->count != n))
        return runtime_fail(call->p->api, ORT_INVALID_ARGUMENT,
                            "a scale of %lld numbers for %lld outputs", (long long)t->count,
                            (long long)n);
    if (t->count == 1) {
        *scalar *= values[0];
        return NULL;
    }
    for (int64_t i = 0; i < n; i++)
        vector[i] = *has_vector ? vector[i] * values[i] : values[i];
    *has_vector = true;
    return NULL;
}

/* Scales of x and of the sums: x_scale of the library where it may be that, else one an output. */
static struct ort_status *take_factors(struct call *call)
{
    const struct program *p = call->p;
    float scalar = p->x_scale * call->x_scale;
    bool has_vector = false;
    struct tensor of_x;
    ORT_TRY(operand_get(p, call->run, &p->x_scale_operand, &of_x));
    if (of_x.data != NULL)
        ORT_TRY(take_factor(call, &of_x, &scalar, call->vectors, &has_vector));
    for (int32_t i = 0; i < p->claim.n_factors; i++) {
        struct tensor t;
        ORT_TRY(operand_get(p, call->run, &p->factors[i], &t));
        ORT_TRY(take_factor(call, &t, &scalar, call->vectors, &has_vector));
    }
    if (scalar == 1.0f) {
        ;
    } else if (p->claim.x_is_codes && scalar > 0.0f && scalar < INFINITY) {
        call->quant.x_scale = scalar;
    } else { /* 0, negative, no number: what the model says, but no scale of x. */
        for (int64_t i = 0; i < p->claim.n; i++)
            call->vectors[i] = has_vector ? call->vectors[i] * scalar : scalar;
        has_vector = true;
    }
    if (has_vector)
        call->epilogue.col_scale = qn_tensor_1d(call->vectors, QN_F32, p->claim.n);
    return NULL;
}

/* A bias of one number is that number for every output. */
static struct ort_status *take_bias(struct call *call, const struct operand *operand)
{
    const struct program *p = call->p;
    struct tensor t;
    int64_t n = p->claim.n;
    ORT_TRY(operand_get(p, call->run, operand, &t));
    if (t.data == NULL)
        return NULL;
    if (t.count != 1 && t.count != n)
        return runtime_fail(p->api, ORT_INVALID_ARGUMENT, "a bias of %lld numbers for %lld outputs",
                            (long long)t.count, (long long)n);
    if (t.count == 1 && n != 1) {
        uint32_t *bias = (uint32_t *)(void *)(call->vectors + n), value;
        memcpy(&value, t.data, sizeof value);
        for (int64_t i = 0; i < n; i++)
            bias[i] = value;
        t.data = bias;
    }
    call->epilogue.bias = qn_tensor_1d((void *)t.data, dtype_of(t.type), n);
    return NULL;
}

static struct ort_status *take_operands(struct call *call)
{
    const struct program *p = call->p;
    const struct claim *c = &p->claim;
    struct tensor t;
    qn_epilogue_init(&call->epilogue);
    call->quant.x_scale = 1.0f;
    call->quant.x_zero = call->x_zero;
    ORT_TRY(operand_get(p, call->run, &p->x_zero, &t));
    if (t.data != NULL) {
        if (t.count != 1)
            return runtime_fail(p->api, ORT_INVALID_ARGUMENT,
                                "a zero point of x of %lld numbers, 1 is possible",
                                (long long)t.count);
        call->quant.x_zero = byte_of(&t);
    }
    ORT_TRY(take_factors(call));
    if (p->zeros != NULL && c->sum_bias < 0 && c->bias < 0)
        call->epilogue.bias = qn_tensor_1d(p->zeros, QN_I32, c->n);
    ORT_TRY(take_bias(call, c->sum_bias >= 0 ? &p->sum_bias : &p->bias));
    call->epilogue.y_scale = p->y_scale;
    call->epilogue.y_zero = p->y_zero;
    call->epilogue.act = c->act;
    if (c->has_clamp) {
        call->epilogue.clamp_lo = c->clamp_lo;
        call->epilogue.clamp_hi = c->clamp_hi;
    }
    return NULL;
}

/* y of the shape that was found; a residual must have it, too. */
static struct ort_status *take_output(struct call *call, int32_t rank)
{
    const struct program *p = call->p;
    struct ort_value *value = NULL;
    struct tensor t;
    ORT_TRY(p->api->run_output(call->run, (size_t)p->outputs[0], call->y_shape, (size_t)rank,
                               &value));
    ORT_TRY(p->api->mutable_data(value, &call->y));
    ORT_TRY(operand_get(p, call->run, &p->residual, &t));
    if (t.data == NULL)
        return NULL;
    if (t.rank != rank || memcmp(t.shape, call->y_shape, (size_t)rank * sizeof *t.shape) != 0)
        return runtime_fail(p->api, ORT_INVALID_ARGUMENT, "what is added to y has another shape");
    call->epilogue.residual = qn_tensor_make((void *)t.data, QN_F32, rank, t.shape);
    call->epilogue.residual_after = p->claim.residual_after;
    return NULL;
}

/* Runs with the worker's scratch, which grows to what this shape needs. */
#define CALL_WITH_SCRATCH(function, call, args)                                                    \
    do {                                                                                           \
        size_t bytes_ = 0;                                                                         \
        qn_error error_ = {0};                                                                     \
        (args)->error = &error_;                                                                   \
        qn_status status_ = function##_scratch((call)->worker->ctx, args, &bytes_);                \
        if (status_ == QN_OK) {                                                                    \
            void *scratch_ = worker_scratch((call)->worker, bytes_ > 0 ? bytes_ : 1);              \
            status_ = scratch_ == NULL ? QN_E_MEMORY                                               \
                                       : function((call)->worker->ctx, args, scratch_, bytes_);    \
        }                                                                                          \
        return runtime_check((call)->p->api, (call)->p->what, status_, &error_);                   \
    } while (0)

static struct ort_status *run_matmul(struct call *call)
{
    const struct program *p = call->p;
    const struct claim *c = &p->claim;
    const struct tensor *x = &call->x;
    qn_matmul_args args;
    int64_t rows = 1;
    if (x->rank < 1 || x->shape[x->rank - 1] != c->k)
        return runtime_fail(p->api, ORT_INVALID_ARGUMENT,
                            "x has rows of %lld, its weights have %lld",
                            (long long)(x->rank < 1 ? 1 : x->shape[x->rank - 1]), (long long)c->k);
    for (int32_t i = 0; i + 1 < x->rank; i++) {
        call->y_shape[i] = x->shape[i];
        rows *= x->shape[i];
    }
    call->y_shape[x->rank - 1] = c->n;
    ORT_TRY(take_output(call, x->rank));
    qn_matmul_args_init(&args);
    args.w = p->w;
    args.x = qn_tensor_2d((void *)x->data, dtype_of(x->type), rows, c->k);
    args.y = qn_tensor_2d(call->y, dtype_of(c->y_type), rows, c->n);
    args.epilogue = call->epilogue;
    if (args.epilogue.residual.data != NULL)
        args.epilogue.residual = qn_tensor_2d(args.epilogue.residual.data, QN_F32, rows, c->n);
    args.strategy = c->strategy;
    args.quant = call->quant;
    CALL_WITH_SCRATCH(qn_matmul, call, &args);
}

static struct ort_status *run_conv(struct call *call)
{
    const struct program *p = call->p;
    const struct claim *c = &p->claim;
    const struct tensor *x = &call->x;
    qn_error error = {0};
    qn_conv_args args;
    if (x->rank != c->n_axes + 2)
        return runtime_fail(p->api, ORT_INVALID_ARGUMENT, "x has rank %d, its weights have %d",
                            x->rank, c->n_axes + 2);
    qn_conv_args_init(&args);
    args.w = p->w;
    args.x = qn_tensor_make((void *)x->data, dtype_of(x->type), x->rank, x->shape);
    args.y.dtype = dtype_of(c->y_type);
    args.image = c->channels_last ? QN_NHWC : QN_NCHW;
    const int64_t *axes = x->shape + (c->channels_last ? 1 : 2);
    const int64_t size[2] = {c->n_axes == 2 ? axes[0] : 1, axes[c->n_axes - 1]};
    for (int32_t i = 0; i < 2; i++) {
        args.stride[i] = (int32_t)c->stride[i];
        args.dilation[i] = (int32_t)c->dilation[i];
        int64_t pad[2];
        claim_pad(c, i, size[i], pad);
        args.pad[i] = (int32_t)pad[0];
        args.pad[2 + i] = (int32_t)pad[1];
    }
    args.error = &error;
    bool transposed = c->kind == CLAIM_CONV_TRANSPOSE;
    if (transposed)
        memcpy(args.out_pad, (int32_t[]){(int32_t)c->out_pad[0], (int32_t)c->out_pad[1]},
               sizeof args.out_pad);
    qn_status status = transposed ? qn_conv_transpose2d_shape(&args) : qn_conv2d_shape(&args);
    ORT_TRY(runtime_check(p->api, p->what, status, &error));
    memcpy(call->y_shape, args.y.shape, (size_t)x->rank * sizeof *call->y_shape);
    ORT_TRY(take_output(call, x->rank));
    args.y.data = call->y;
    args.epilogue = call->epilogue;
    args.strategy = c->strategy;
    args.quant = call->quant;
    if (transposed)
        CALL_WITH_SCRATCH(qn_conv_transpose2d, call, &args);
    CALL_WITH_SCRATCH(qn_conv2d, call, &args);
}

/* DynamicQuantizeMatMul: x becomes codes of one scale. */
static struct ort_status *quantize_x(struct call *call)
{
    struct tensor *x = &call->x;
    uint8_t zero;
    uint8_t *codes = worker_codes(call->worker, (size_t)x->count + 1);
    if (codes == NULL)
        return runtime_no_memory(call->p->api);
    ORT_TRY(quantize_tensor(call->p->api, call->worker->ctx, x, codes, &call->x_scale, &zero));
    call->x_zero = zero;
    x->data = codes;
    x->type = ORT_U8;
    return NULL;
}

static struct ort_status *run_product(struct call *call)
{
    const struct program *p = call->p;
    size_t n = (size_t)p->claim.n;
    float own[512];
    call->x_scale = 1.0f;
    ORT_TRY(operand_get(p, call->run, &p->x, &call->x));
    if (p->claim.x_is_quantized_here)
        ORT_TRY(quantize_x(call));
    call->vectors = 2 * n <= sizeof own / sizeof *own ? own : malloc(2 * n * sizeof *call->vectors);
    if (call->vectors == NULL)
        return runtime_no_memory(p->api);
    struct ort_status *status = take_operands(call);
    if (status == NULL)
        status = p->claim.kind == CLAIM_MATMUL ? run_matmul(call) : run_conv(call);
    if (call->vectors != own)
        free(call->vectors);
    return status;
}

struct ort_status *quantize_run(const struct program *p, struct ort_run *run,
                                struct worker *worker)
{
    struct tensor x;
    struct ort_value *value = NULL;
    void *data[3] = {NULL, NULL, NULL};
    float scale;
    uint8_t zero;
    ORT_TRY(operand_get(p, run, &p->x, &x));
    for (int32_t i = 0; i < 3; i++) {
        if (p->outputs[i] < 0)
            continue;
        ORT_TRY(p->api->run_output(run, (size_t)p->outputs[i], x.shape,
                                   i == 0 ? (size_t)x.rank : 0, &value));
        ORT_TRY(p->api->mutable_data(value, &data[i]));
    }
    if (data[0] == NULL) { /* Only the scale or the zero point is wanted. */
        data[0] = worker_codes(worker, (size_t)x.count + 1);
        if (data[0] == NULL)
            return runtime_no_memory(p->api);
    }
    ORT_TRY(quantize_tensor(p->api, worker->ctx, &x, data[0], &scale, &zero));
    if (data[1] != NULL)
        *(float *)data[1] = scale;
    if (data[2] != NULL)
        *(uint8_t *)data[2] = zero;
    return NULL;
}

struct ort_status *program_run(const struct program *p, struct ort_run *run)
{
    struct call call = {.p = p, .run = run};
    ORT_TRY(worker_take(p->workers, run, &call.worker));
    struct ort_status *status = p->claim.kind == CLAIM_QUANTIZE ? quantize_run(p, run, call.worker)
                                : p->claim.kind == CLAIM_POOL   ? pool_run(p, run, call.worker)
                                : p->claim.kind == CLAIM_TABLE  ? table_run(p, run, call.worker)
                                                                : run_product(&call);
    worker_return(call.worker);
    return status;
}
