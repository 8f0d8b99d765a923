/* SPDX-License-Identifier: Apache-2.0 */
/* quern run --parallel: every process loads the weights, keeps its shard, and has all of y in the
 * end. */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "run.h"

static qn_status wrong_hidden(const struct task *t, int64_t n, qn_error *err)
{
    err->status = QN_E_SHAPE;
    err->offset = -1;
    snprintf(
        err->text, sizeof err->text,
        "the weights of --down take %lld hidden values, and the first product has %lld outputs",
        (long long)t->hidden, (long long)n);
    return QN_E_SHAPE;
}

qn_status run_pack_shard(struct task *t, qn_weight *weight, qn_error *err)
{
    const qn_comm *const c = &t->ranks.comm;
    const int is_row = t->is_down || strcmp(t->way, "row") == 0;
    const int is_up = !t->is_down && t->down != NULL;
    qn_weight_parts parts;
    qn_weight *shard = NULL;
    qn_weight_parts_init(&parts);
    qn_status status = qn_weight_view(weight, &parts);
    if (status == QN_OK && is_row) {
        t->columns = must_alloc((size_t)(parts.k + 1) * sizeof *t->columns);
        status = qn_weight_shard_columns(weight, c->rank, c->n_ranks, t->columns, parts.k,
                                         &t->n_columns, err);
    }
    if (status == QN_OK && is_up && parts.n != t->hidden)
        status = wrong_hidden(t, parts.n, err);
    if (status == QN_OK && is_up) /* just the hidden values that this rank's down reads */
        status = qn_weight_take(t->ctx, weight, t->columns, t->n_columns, &shard, err);
    else if (status == QN_OK)
        status = qn_weight_shard(t->ctx, weight, is_row ? QN_SPLIT_ROW : QN_SPLIT_COLUMN, c->rank,
                                 c->n_ranks, &shard, err);
    if (status == QN_OK)
        status = qn_pack(t->ctx, shard, NULL, t->is_down ? &t->down : &t->w, err);
    t->n = is_up ? t->n : parts.n;
    *(t->is_down ? &t->hidden : &t->k) = parts.k;
    t->conv_groups_of_all = parts.conv_groups;
    qn_weight_destroy(shard);
    qn_weight_destroy(weight);
    return status;
}

/* Columns columns[0 ... n) of x [m, k]; to be freed. */
static void *take_columns(const qn_tensor *x, int64_t m, const int32_t *columns, int64_t n)
{
    const size_t bytes = qn_dtype_bytes(x->dtype);
    const size_t k = (size_t)x->shape[x->rank - 1];
    uint8_t *const part = must_alloc((size_t)m * (size_t)n * bytes + 64);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            memcpy(part + (size_t)(i * n + j) * bytes,
                   (const uint8_t *)x->data + ((size_t)i * k + (size_t)columns[j]) * bytes, bytes);
    return part;
}

static qn_matmul_args product_of(const struct task *t, const qn_packed *w)
{
    qn_matmul_args a;
    qn_matmul_args_init(&a);
    a.w = w;
    a.strategy = t->strategy;
    a.quant = t->quant;
    a.strict = t->strict;
    a.epilogue = t->epilogue;
    return a;
}

static qn_status run_product(struct task *t, const qn_matmul_args *a, qn_split split, int gather,
                             qn_error *err)
{
    qn_parallel_args p;
    qn_parallel *plan = NULL;
    qn_parallel_args_init(&p);
    p.comm = &t->ranks.comm;
    p.matmul = a;
    p.split = split;
    p.gather_y = gather;
    qn_status status = qn_parallel_plan(t->ctx, &p, &plan, err);
    if (status != QN_OK)
        return status;
    const size_t bytes = qn_parallel_scratch_bytes(plan);
    void *const scratch = must_align(bytes + 64);
    const double begin = seconds_now();
    status = qn_parallel_run(plan, &p, scratch, bytes, err);
    t->seconds += seconds_now() - begin;
    qn_parallel_destroy(plan);
    free(scratch);
    return status;
}

/* Bias of the rank's own outputs. */
static qn_tensor own_bias(const struct task *t, int64_t first, int64_t n)
{
    qn_tensor bias = t->bias;
    if (bias.rank != 1)
        return bias;
    bias.shape[0] = n;
    bias.data = (uint8_t *)bias.data + (size_t)first * qn_dtype_bytes(bias.dtype);
    return bias;
}

static qn_tensor make_y(struct task *t, int64_t *m)
{
    const int32_t last = t->x.rank - 1;
    *m = 1;
    for (int32_t i = 0; i < last; i++)
        *m *= t->x.shape[i];
    t->y = t->x;
    t->y.shape[last] = t->n;
    t->y = qn_tensor_make(NULL, t->y_dtype, t->y.rank, t->y.shape);
    t->y.data = must_alloc(qn_dtype_bytes(t->y_dtype) * (size_t)*m * (size_t)t->n + 64);
    return qn_tensor_2d(t->y.data, t->y_dtype, *m, t->n);
}

static qn_status run_one(struct task *t, qn_error *err)
{
    const int is_row = t->columns != NULL;
    int64_t m, first = 0, own = 0;
    void *part = NULL;
    qn_matmul_args a = product_of(t, t->w);
    a.y = make_y(t, &m);
    a.x = qn_tensor_2d(t->x.data, t->x.dtype, m, t->k);
    a.epilogue.residual = run_shaped(&t->residual, &a.y);
    (void)qn_shard_range(t->n, 1, t->ranks.comm.rank, t->ranks.comm.n_ranks, &first, &own);
    if (is_row) {
        part = take_columns(&t->x, m, t->columns, t->n_columns);
        a.x = qn_tensor_2d(part, t->x.dtype, m, t->n_columns);
    } else {
        a.epilogue.bias = own_bias(t, first, own);
    }
    const qn_status status =
        run_product(t, &a, is_row ? QN_SPLIT_ROW : QN_SPLIT_COLUMN, !is_row, err);
    free(part);
    return status;
}

/* y = residual + down . act(up . x + bias): nothing is exchanged in the middle. */
static qn_status run_block(struct task *t, qn_error *err)
{
    int64_t m;
    void *bias = NULL;
    const qn_tensor y = make_y(t, &m);
    float *const hidden = must_alloc(sizeof(float) * (size_t)m * (size_t)t->n_columns + 64);
    qn_matmul_args up = product_of(t, t->w), down = product_of(t, t->down);
    up.x = qn_tensor_2d(t->x.data, t->x.dtype, m, t->k);
    up.y = qn_tensor_2d(hidden, QN_F32, m, t->n_columns);
    if (t->bias.rank == 1 && t->bias.shape[0] == t->hidden) {
        bias = take_columns(&t->bias, 1, t->columns, t->n_columns);
        up.epilogue.bias = qn_tensor_1d(bias, t->bias.dtype, t->n_columns);
    }
    qn_epilogue_init(&down.epilogue);
    down.epilogue.residual = run_shaped(&t->residual, &y);
    down.x = up.y;
    down.y = y;
    qn_status status = run_product(t, &up, QN_SPLIT_COLUMN, 0, err);
    if (status == QN_OK)
        status = run_product(t, &down, QN_SPLIT_ROW, 0, err);
    free(hidden);
    free(bias);
    return status;
}

/* Channels of x that the rank's convolution groups read. */
static qn_tensor own_channels(const struct task *t)
{
    qn_tensor x = t->x;
    const int32_t channel = t->conv.image == QN_NHWC ? x.rank - 1 : 1;
    int64_t first = 0, n = 0;
    const int64_t groups = t->conv_groups_of_all;
    if (groups <= 1 || x.rank < 3 || x.shape[channel] % groups != 0)
        return x;
    (void)qn_shard_range(groups, 1, t->ranks.comm.rank, t->ranks.comm.n_ranks, &first, &n);
    const int64_t each = x.shape[channel] / groups;
    x.data =
        (uint8_t *)x.data + (size_t)(first * each * x.stride[channel]) * qn_dtype_bytes(x.dtype);
    x.shape[channel] = n * each;
    return x;
}

static qn_status run_image(struct task *t, qn_error *err)
{
    qn_conv_args *const a = &t->conv;
    qn_parallel_conv_args p;
    const int is_transposed = t->op == TRANSPOSE;
    const int64_t groups = t->conv_groups_of_all;
    int64_t elements = 0, first = 0, own = 0;
    size_t bytes = 0;
    a->w = t->w;
    a->x = own_channels(t);
    a->strategy = t->strategy;
    a->quant = t->quant;
    a->epilogue = t->epilogue;
    a->strict = t->strict;
    a->error = err;
    a->y = qn_tensor_make(NULL, t->y_dtype, t->x.rank, t->x.shape);
    qn_status status = is_transposed ? qn_conv_transpose2d_shape(a) : qn_conv2d_shape(a);
    if (status != QN_OK)
        return status;
    a->y.shape[a->image == QN_NHWC ? a->y.rank - 1 : 1] = t->n;
    a->y = qn_tensor_make(NULL, t->y_dtype, a->y.rank, a->y.shape);
    status = qn_tensor_extent(&a->y, &elements, &bytes);
    if (status != QN_OK)
        return status;
    a->y.data = must_alloc(bytes + 64);
    t->y = a->y;
    (void)qn_shard_range(t->n, groups > 1 ? t->n / groups : 1, t->ranks.comm.rank,
                         t->ranks.comm.n_ranks, &first, &own);
    a->epilogue.bias = own_bias(t, first, own);
    a->epilogue.residual = run_shaped(&t->residual, &a->y);
    qn_parallel_conv_args_init(&p);
    p.comm = &t->ranks.comm;
    p.conv = a;
    p.is_transposed = is_transposed;
    p.gather_y = 1;
    p.conv_groups = (int32_t)groups;
    status = qn_parallel_conv_scratch(t->ctx, &p, &bytes, err);
    if (status != QN_OK)
        return status;
    void *const scratch = must_align(bytes + 64);
    const double begin = seconds_now();
    status = qn_parallel_conv(t->ctx, &p, scratch, bytes, err);
    t->seconds = seconds_now() - begin;
    free(scratch);
    return status;
}

qn_status run_over_ranks(struct task *t, qn_error *err)
{
    snprintf(t->kernel_used, sizeof t->kernel_used, "%d ranks by %s", t->ranks.comm.n_ranks,
             t->way);
    if (t->op != MATMUL)
        return run_image(t, err);
    return t->down != NULL ? run_block(t, err) : run_one(t, err);
}
