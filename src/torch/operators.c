/* SPDX-License-Identifier: Apache-2.0 */
/* The operators of torch's namespace "quern", for tensors on the CPU and on GPUs. Each makes its
 * argument struct, takes the plan that was kept for its like, and runs it: on a GPU in torch's
 * current stream, with scratch of torch's allocator, so that CUDA graphs can capture it. */
#include <string.h>

#include "call.h"
#include "operators.h"

/* A product of one of the four kinds, behind one face. */
typedef struct product {
    void *args; /* Of the kind's own type. */
    qn_status (*plan)(const qn_ctx *ctx, const void *args, qn_plan **plan, qn_error *err);
    qn_status (*run)(const qn_plan *plan, const void *args, void *scratch, size_t bytes);
    held_key key;
    int64_t rows; /* Of x. */
} product;

/* Plans for so many rows are kept; those for more take no time beside the product itself. */
enum { MOST_ROWS_KEPT = 64 };

#define FACE(name, type)                                                                           \
    static qn_status plan_##name(const qn_ctx *ctx, const void *args, qn_plan **plan,              \
                                 qn_error *err)                                                    \
    {                                                                                              \
        return qn_##name##_plan(ctx, (const type *)args, plan, err);                               \
    }                                                                                              \
    static qn_status run_##name(const qn_plan *plan, const void *args, void *scratch,              \
                                size_t bytes)                                                      \
    {                                                                                              \
        return qn_##name##_run(plan, (const type *)args, scratch, bytes);                          \
    }
FACE(matmul, qn_matmul_args)
FACE(grouped, qn_grouped_args)
FACE(conv2d, qn_conv_args)
FACE(conv_transpose2d, qn_conv_args)

/* ----------------------------------------------------------------------------------------- runs */

static void run_on_cpu(call *c, const product *p, const qn_plan *plan)
{
    held_scratch scratch;
    if (!held_scratch_take(qn_plan_scratch_bytes(plan), &scratch)) {
        call_fail(c, "out of memory for scratch");
        return;
    }
    call_check(c, p->run(plan, p->args, scratch.memory, scratch.bytes));
    held_scratch_give(&scratch);
}

static void run_on_gpu(call *c, const product *p, const qn_plan *plan, const array *like)
{
    const int64_t bytes = (int64_t)qn_plan_scratch_bytes(plan);
    array scratch = {.data = NULL};
    void *stream = NULL;
    if (bytes > 0 && !call_new(c, like, qni_torch.u8, 1, &bytes, &scratch, false))
        return;
    if (qni_torch.current_cuda_stream(like->device_index, &stream) != 0) {
        call_fail(c, "torch does not tell its current stream");
        return;
    }
    held_stream_lock();
    qn_status status = qn_cuda_set_stream(c->weights->ctx, (struct CUstream_st *)stream);
    if (status == QN_OK)
        status = p->run(plan, p->args, scratch.data, (size_t)bytes);
    held_stream_unlock();
    call_check(c, status);
}

static void run(call *c, product *p, const array *x)
{
    if (c->is_failed)
        return;
    qn_plan *own = NULL;
    const bool is_kept = p->rows <= MOST_ROWS_KEPT;
    const qn_plan *plan = is_kept ? held_plan(c->weights, &p->key) : NULL;
    if (plan == NULL) {
        qn_plan *made = NULL;
        if (!call_check(c, p->plan(c->weights->ctx, p->args, &made, &c->error)))
            return;
        plan = is_kept ? held_keep(c->weights, &p->key, made) : NULL;
        if (plan == NULL)
            plan = own = made;
    }
    if (x->device.kind == QN_CUDA)
        run_on_gpu(c, p, plan, x);
    else
        run_on_cpu(c, p, plan);
    qn_plan_destroy(own);
}

/* --------------------------------------------------------------------------------------- matmul */

/* The operator `matmul(Tensor x, int w, Tensor? bias, int strategy, int act) -> Tensor`. */
void qni_torch_matmul(uint64_t *stack, uint64_t n_in, uint64_t n_out)
{
    (void)n_in, (void)n_out;
    call c;
    array x, y;
    qn_matmul_args args;
    call_begin(&c, "matmul", (int64_t)stack[1]);
    torch_tensor *tensor = call_tensor(&c, stack[0]);
    qn_matmul_args_init(&args);
    args.error = &c.error;
    if (!call_operand(&c, stack[2], "bias", &args.epilogue.bias) ||
        !call_look(&c, tensor, "x", &x) || !call_rows(&c, &x, &args.x)) {
        call_end(&c, stack);
        return;
    }
    int64_t sizes[CALL_RANK];
    memcpy(sizes, x.size, sizeof sizes);
    sizes[x.rank - 1] = c.weights->info.n;
    args.w = c.weights->weights[0];
    args.strategy = (qn_strategy)stack[3];
    args.epilogue.act = (qn_act)stack[4];
    if (call_new(&c, &x, x.torch_dtype, x.rank, sizes, &y, true) && call_rows(&c, &y, &args.y)) {
        product p = {&args, plan_matmul, run_matmul, {{0}}, args.x.shape[0]};
        const int64_t key[] = {1, args.x.dtype, x.device.index, p.rows, args.strategy,
                               args.epilogue.bias.dtype, args.x.shape[1]};
        memcpy(p.key.word, key, sizeof key);
        run(&c, &p, &x);
    }
    call_end(&c, stack);
}

/* -------------------------------------------------------------------------------------- grouped */

/* grouped(Tensor x, int w, Tensor? offsets, Tensor? ids, Tensor? x_rows, Tensor? bias,
 *         int strategy, int act) -> Tensor */
void qni_torch_grouped(uint64_t *stack, uint64_t n_in, uint64_t n_out)
{
    (void)n_in, (void)n_out;
    call c;
    array x, y;
    qn_grouped_args args;
    call_begin(&c, "grouped", (int64_t)stack[1]);
    torch_tensor *tensor = call_tensor(&c, stack[0]);
    qn_grouped_args_init(&args);
    args.error = &c.error;
    bool is_fine = call_operand(&c, stack[2], "offsets", &args.offsets);
    is_fine = call_operand(&c, stack[3], "ids", &args.ids) && is_fine;
    is_fine = call_operand(&c, stack[4], "x_rows", &args.x_rows) && is_fine;
    is_fine = call_operand(&c, stack[5], "bias", &args.epilogue.bias) && is_fine;
    if (!is_fine || !call_look(&c, tensor, "x", &x)) {
        call_end(&c, stack);
        return;
    }
    if (x.rank != 2)
        call_fail(&c, "x is no matrix: [rows, k] is wanted");
    const qn_tensor *rows = args.x_rows.rank > 0 ? &args.x_rows : &args.ids;
    const int64_t sizes[2] = {rows->rank > 0 ? rows->shape[0] : x.size[0], c.weights->info.n};
    args.w = c.weights->weights;
    args.n_experts = c.weights->count;
    args.strategy = (qn_strategy)stack[6];
    args.epilogue.act = (qn_act)stack[7];
    if (call_rows(&c, &x, &args.x) && call_new(&c, &x, x.torch_dtype, 2, sizes, &y, true) &&
        call_rows(&c, &y, &args.y)) {
        product p = {&args, plan_grouped, run_grouped, {{0}}, sizes[0]};
        const int64_t key[] = {2, args.x.dtype, x.device.index, args.x.shape[0], sizes[0],
                               args.strategy, args.epilogue.bias.dtype, args.epilogue.bias.rank,
                               args.offsets.rank, args.ids.rank, args.x_rows.rank,
                               args.x.shape[1]};
        memcpy(p.key.word, key, sizeof key);
        if (qni_torch.zero(y.tensor) != 0) /* rows of no expert */
            call_fail(&c, "torch cannot fill the result with zeros");
        run(&c, &p, &x);
    }
    call_end(&c, stack);
}

/* --------------------------------------------------------------------------------- convolutions */

/* Geometry begins at stack[5]: stride, padding (top, left, bottom, right), dilation, and of
 * transposed ones what is padded to the result. */
static void convolve(uint64_t *stack, bool is_transposed)
{
    call c;
    array x, y;
    qn_conv_args args;
    call_begin(&c, is_transposed ? "conv_transpose2d" : "conv2d", (int64_t)stack[1]);
    torch_tensor *tensor = call_tensor(&c, stack[0]);
    qn_conv_args_init(&args);
    args.error = &c.error;
    if (!call_operand(&c, stack[2], "bias", &args.epilogue.bias) ||
        !call_look(&c, tensor, "x", &x) || !call_together(&c, &x) ||
        !call_as(&c, &x, "x", &args.x)) {
        call_end(&c, stack);
        return;
    }
    args.w = c.weights->weights[0];
    args.strategy = (qn_strategy)stack[3];
    args.epilogue.act = (qn_act)stack[4];
    product p = {&args, is_transposed ? plan_conv_transpose2d : plan_conv2d,
                 is_transposed ? run_conv_transpose2d : run_conv2d, {{0}}, 0};
    int32_t *const into[] = {&args.stride[0], &args.stride[1], &args.pad[0], &args.pad[1],
                             &args.pad[2], &args.pad[3], &args.dilation[0], &args.dilation[1],
                             &args.out_pad[0], &args.out_pad[1]};
    const int n = is_transposed ? 10 : 8;
    for (int i = 0; i < n; i++) {
        const int64_t value = (int64_t)stack[5 + i];
        if (value < 0 || value > 1 << 20)
            call_fail(&c, "a stride, padding or dilation is out of range");
        p.key.word[i] = *into[i] = (int32_t)value;
    }
    args.y.dtype = args.x.dtype;
    args.y.device = args.x.device;
    if (!c.is_failed &&
        call_check(&c, is_transposed ? qn_conv_transpose2d_shape(&args) : qn_conv2d_shape(&args)) &&
        call_new(&c, &x, x.torch_dtype, args.y.rank, args.y.shape, &y, true)) {
        args.y.data = y.data;
        const int64_t key[] = {3, args.x.dtype, x.device.index, args.strategy,
                               args.epilogue.bias.dtype, args.x.rank, is_transposed};
        memcpy(p.key.word + 10, key, sizeof key);
        for (int32_t i = 0; i < args.x.rank && i < 4; i++)
            p.key.word[17 + i] = args.x.shape[i];
        run(&c, &p, &x);
    }
    call_end(&c, stack);
}

void qni_torch_conv2d(uint64_t *stack, uint64_t n_in, uint64_t n_out)
{
    (void)n_in, (void)n_out;
    convolve(stack, false);
}

void qni_torch_conv_transpose2d(uint64_t *stack, uint64_t n_in, uint64_t n_out)
{
    (void)n_in, (void)n_out;
    convolve(stack, true);
}

/* -------------------------------------------------------------------------------- rows by index */

/* Rows `ids` of the weights, to y. */
static void look_up_rows(call *c, const array *ids, array *y)
{
    qn_tensor to, flat = qn_tensor_1d(ids->data, ids->dtype, 1);
    for (int64_t i = 0; i < ids->rank; i++)
        flat.shape[0] *= ids->size[i];
    if (!call_rows(c, y, &to))
        return;
    call_check(c, qn_packed_rows(c->weights->ctx, c->weights->weights[0], &flat, true, &to,
                                 &c->error));
}

/* The operator `embedding(Tensor ids, int w, int dtype) -> Tensor`; dtype is 0 for f32, 1 for f16
 * and 2 for bf16. */
void qni_torch_embedding(uint64_t *stack, uint64_t n_in, uint64_t n_out)
{
    (void)n_in, (void)n_out;
    call c;
    array ids, y;
    call_begin(&c, "embedding", (int64_t)stack[1]);
    torch_tensor *tensor = call_tensor(&c, stack[0]);
    if (call_look(&c, tensor, "ids", &ids) && call_together(&c, &ids)) {
        if (ids.rank >= CALL_RANK)
            call_fail(&c, "ids has more dimensions than quern takes");
        if (stack[2] > 2)
            call_fail(&c, "dtype is none of 0 (f32), 1 (f16), 2 (bf16)");
        int64_t sizes[CALL_RANK + 1];
        memcpy(sizes, ids.size, sizeof ids.size);
        sizes[ids.rank] = c.weights->info.k;
        const int32_t type = stack[2] == 0   ? qni_torch.f32
                             : stack[2] == 1 ? qni_torch.f16
                                             : qni_torch.bf16;
        if (call_new(&c, &ids, type, ids.rank + 1, sizes, &y, true))
            look_up_rows(&c, &ids, &y);
    }
    call_end(&c, stack);
}

/* The operator `dense(Tensor like, int w) -> Tensor`: the values of the weights, [n, k], of the
 * type of `like`. */
void qni_torch_dense(uint64_t *stack, uint64_t n_in, uint64_t n_out)
{
    (void)n_in, (void)n_out;
    call c;
    array like, ids, y;
    call_begin(&c, "dense", (int64_t)stack[1]);
    torch_tensor *tensor = call_tensor(&c, stack[0]);
    if (call_look(&c, tensor, "like", &like)) {
        const int64_t sizes[2] = {c.weights->info.n, c.weights->info.k};
        if (call_new(&c, &like, qni_torch.i64, 1, sizes, &ids, false) &&
            call_new(&c, &like, like.torch_dtype, 2, sizes, &y, true)) {
            for (int64_t i = 0; i < sizes[0]; i++)
                ((int64_t *)ids.data)[i] = i;
            look_up_rows(&c, &ids, &y);
        }
    }
    call_end(&c, stack);
}
