/* SPDX-License-Identifier: Apache-2.0 */
/* Running a product over several ranks: chunks of rows, each the rank's own product, an exchange,
 * and the epilogue of what came out.
 *
 * Exact sums (docs/numerics.md, int8-row and int8-static with one group an output):
 *     d = sum over ranks of int32 sums        any order gives the same integer
 *     v = fl(fl(scale_w * d) * x_scale)       as one process does with its own d
 * where x_scale of a row of int8-row comes from the largest |x| that any rank has in it.
 *
 * Every block that is exchanged tells whether its rank failed, so that a failure on one rank ends
 * the run on all, with a status. */
#include <string.h>

#include "../api/check.h"
#include "../api/validate.h"
#include "../base/error.h"
#include "../base/half.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "product.h"

struct parallel_run {
    const struct qn_parallel *p;
    const qn_matmul_args *args;         /* of a sum of given parts: y and epilogue alone */
    const struct qni_parallel_job *job; /* NULL: a sum of given parts */
    const qn_tensor *parts;             /* the parts; NULL: they are products */
    uint8_t *scratch;
    int64_t m;
    qn_error *err;
    size_t turn; /* of overlapping chunks: 0, 1, 0, ... */
};

/* ---- parts of tensors ------------------------------------------------------------------------ */

static void *at_element(const qn_tensor *t, int64_t element)
{
    if (t->data == NULL)
        return NULL;
    return (uint8_t *)t->data + (size_t)element * qn_dtype_bytes(t->dtype);
}

qn_tensor qni_parallel_rows_of(const qn_tensor *t, int64_t row, int64_t rows)
{
    qn_tensor part = *t;
    if (qni_is_none(t))
        return part;
    part.shape[0] = rows;
    part.data = rows == 0 ? t->data : at_element(t, row * t->stride[0]);
    return part;
}

qn_tensor qni_parallel_columns_of(const struct qn_parallel *p, const qn_tensor *t)
{
    qn_tensor part = *t;
    if (qni_is_none(t))
        return part;
    part.shape[1] = p->own_n;
    part.data = p->own_n == 0 ? t->data : at_element(t, p->first_n);
    return part;
}

qn_matmul_args qni_parallel_product(const struct qn_parallel *p, const qn_matmul_args *args,
                                    int64_t row, int64_t rows, const qn_tensor *y)
{
    qn_matmul_args own = *args;
    own.error = NULL;
    own.y = *y;
    own.y.shape[0] = rows;
    own.x = qni_parallel_rows_of(&args->x, row, rows);
    if (p->split == QN_SPLIT_ROW) {
        qn_epilogue_init(&own.epilogue);
        if (p->is_quantized) {
            own.strategy = QN_STRATEGY_INT8_STATIC;
            own.x = qn_tensor_2d(NULL, QN_I8, rows, p->own_k);
            own.kernel = NULL; /* a name of int8-row's rows */
        }
        return own;
    }
    own.epilogue.row_scale = qni_parallel_rows_of(&args->epilogue.row_scale, row, rows);
    own.epilogue.residual = qni_parallel_rows_of(&args->epilogue.residual, row, rows);
    if (p->exchange == QNI_EXCHANGE_Y)
        own.epilogue.residual = qni_parallel_columns_of(p, &own.epilogue.residual);
    return own;
}

/* ---- blocks ---------------------------------------------------------------------------------- */

struct block_head {
    int32_t status;
    int32_t reserved[15];
};
_Static_assert(sizeof(struct block_head) == QNI_BLOCK_HEAD, "a head is a cache line");

static uint8_t *block_of(const struct parallel_run *r, size_t part, int32_t rank)
{
    return r->scratch + part + (size_t)rank * r->p->block_bytes;
}

static void *begin_block(uint8_t *block, qn_status status)
{
    const struct block_head head = {.status = status};
    memcpy(block, &head, sizeof head);
    return block + QNI_BLOCK_HEAD;
}

static uint8_t *sent(const struct parallel_run *r)
{
    return r->scratch + r->p->scratch.send + r->turn * r->p->block_bytes;
}

static uint8_t *received(const struct parallel_run *r, int32_t rank)
{
    const size_t ranks = (size_t)r->p->comm.n_ranks;
    return block_of(r, r->p->scratch.recv + r->turn * ranks * r->p->block_bytes, rank);
}

/* QN_OK if no rank's block says that it failed. */
static qn_status check_blocks(const struct parallel_run *r)
{
    for (int32_t rank = 0; rank < r->p->comm.n_ranks; rank++) {
        struct block_head head;
        memcpy(&head, received(r, rank), sizeof head);
        if (head.status != QN_OK)
            return qni_fail(r->err, QN_E_PEER,
                            "rank %d failed during the run, and its own error says why", rank);
    }
    return QN_OK;
}

static qn_status gather_blocks(const struct parallel_run *r, qn_status own)
{
    const struct qn_parallel *const p = r->p;
    const qn_comm *const c = &p->comm;
    uint8_t *const send = sent(r), *const recv = received(r, 0);
    qn_status told = QN_OK;
    if (c->n_ranks == 1)
        memcpy(recv, send, p->block_bytes);
    else
        told = c->all_gather(c->arg, send, p->block_bytes, recv, qni_parallel_told(own, r->err));
    if (own != QN_OK || told != QN_OK)
        return own != QN_OK ? own : told;
    return check_blocks(r);
}

/* data[count] is where all_reduce counts the ranks that failed. */
static qn_status reduce(const struct parallel_run *r, void *data, size_t count, qn_dtype dtype,
                        qn_reduce how, qn_status own)
{
    const qn_comm *const c = &r->p->comm;
    const int32_t failed = own != QN_OK;
    const float failed_f32 = (float)failed;
    uint8_t *const flag = (uint8_t *)data + count * sizeof(int32_t);
    if (c->n_ranks == 1)
        return own;
    memcpy(flag, dtype == QN_F32 ? (const void *)&failed_f32 : (const void *)&failed,
           sizeof failed);
    const qn_status told =
        c->all_reduce(c->arg, data, count + 1, dtype, how, qni_parallel_told(own, r->err));
    if (own != QN_OK || told != QN_OK)
        return own != QN_OK ? own : told;
    int32_t any;
    memcpy(&any, flag, sizeof any);
    return any == 0 ? QN_OK : qni_fail(r->err, QN_E_PEER, "another rank failed during the run");
}

/* ---- the rank's own product ------------------------------------------------------------------ */

static qn_status multiply(const struct parallel_run *r, int64_t row, int64_t rows,
                          const qn_tensor *y)
{
    const struct qn_parallel *const p = r->p;
    for (int64_t i = 0; r->parts != NULL && p->n > 0 && i < rows; i++)
        memcpy(at_element(y, i * p->n), at_element(r->parts, (row + i) * r->parts->stride[0]),
               (size_t)p->n * sizeof(float));
    if (r->parts != NULL)
        return QN_OK;
    qn_matmul_args own = qni_parallel_product(p, r->args, row, rows, y);
    own.error = r->err;
    if (p->is_quantized)
        own.x.data = r->scratch + p->scratch.codes;
    void *const scratch = r->scratch + p->scratch.product;
    if (p->n_experts == 0)
        return qn_matmul_run(p->product, &own, scratch, qn_plan_scratch_bytes(p->product));
    /* Rows of no expert are sent like the others, and used by nobody. */
    for (int64_t i = 0; p->n > 0 && p->exchange != QNI_EXCHANGE_NOTHING && i < rows; i++)
        if (qni_parallel_expert(r->job, row + i) < 0)
            memset(at_element(y, i * y->stride[0]), 0,
                   (size_t)y->shape[1] * qn_dtype_bytes(y->dtype));
    const qn_grouped_args g = qni_parallel_experts_of(r->job, &own, row, rows);
    return qn_grouped_run(p->product, &g, scratch, qn_plan_scratch_bytes(p->product));
}

/* Bias or column scales of one expert, where each has its own. */
static qn_tensor of_expert(const qn_tensor *t, int32_t expert)
{
    qn_tensor own = *t;
    if (t->rank != 2)
        return own;
    own.rank = 1;
    own.shape[0] = t->shape[1];
    own.stride[0] = t->stride[1];
    own.data = at_element(t, expert * t->stride[0]);
    return own;
}

/* The epilogue of rows of sums, which are of all outputs, of one expert; sums: of the first of
 * these rows. */
static qn_status finish_rows(const struct parallel_run *r, float *sums, int64_t row, int64_t rows)
{
    const struct qn_parallel *const p = r->p;
    const qn_epilogue *const from = &r->args->epilogue;
    const int32_t expert = qni_parallel_expert(r->job, row);
    qn_finish_args f;
    qn_finish_args_init(&f);
    f.v = qn_tensor_2d(sums, QN_F32, rows, p->n);
    f.y = qni_parallel_rows_of(&r->args->y, row, rows);
    f.epilogue = *from;
    f.epilogue.row_scale = qni_parallel_rows_of(&from->row_scale, row, rows);
    f.epilogue.residual = qni_parallel_rows_of(&from->residual, row, rows);
    f.epilogue.bias = of_expert(&from->bias, expert);
    f.epilogue.col_scale = of_expert(&from->col_scale, expert);
    if (p->exchange == QNI_EXCHANGE_INT32 && from->bias.dtype == QN_I32)
        f.epilogue.bias = qn_tensor_none(); /* has been added to the integers */
    f.error = r->err;
    return qn_finish(p->ctx, &f);
}

/* Finishes any rows; those of experts in runs of one expert. */
static qn_status finish(const struct parallel_run *r, int64_t row, int64_t rows)
{
    const struct qn_parallel *const p = r->p;
    float *const sums = (float *)(void *)(r->scratch + p->scratch.sums);
    if (p->n_experts == 0)
        return finish_rows(r, sums, row, rows);
    for (int64_t i = 0, end; i < rows; i = end) {
        const int32_t expert = qni_parallel_expert(r->job, row + i);
        for (end = i + 1; end < rows && qni_parallel_expert(r->job, row + end) == expert; end++)
            continue;
        if (expert >= 0)
            QNI_TRY(finish_rows(r, sums + i * p->n, row + i, end - i));
    }
    return QN_OK;
}

/* ---- column: outputs are gathered ------------------------------------------------------------ */

static void place_outputs(const struct parallel_run *r, int64_t row, int64_t rows)
{
    const struct qn_parallel *const p = r->p;
    const size_t element = qn_dtype_bytes(r->args->y.dtype);
    int64_t first = 0;
    for (int32_t rank = 0; rank < p->comm.n_ranks; rank++) {
        const uint8_t *const block = received(r, rank);
        int64_t n; /* how many outputs that rank has: behind the status */
        memcpy(&n, block + sizeof(int64_t), sizeof n);
        for (int64_t i = 0; n > 0 && i < rows; i++)
            if (qni_parallel_expert(r->job, row + i) >= 0)
                memcpy(at_element(&r->args->y, (row + i) * r->args->y.stride[0] + first),
                       block + QNI_BLOCK_HEAD + (size_t)(i * n) * element, (size_t)n * element);
        first += n;
    }
}

/* ---- row: int32 sums ------------------------------------------------------------------------- */

/* What the context's threads do with rows [row, row + n) of sums, each on its own. */
struct rows_work {
    const struct parallel_run *r;
    int32_t *amax; /* of all rows */
    int64_t row;
};

static void each_row(const struct parallel_run *r, int32_t *amax, int64_t row, int64_t rows,
                     qn_task_fn task)
{
    struct rows_work work = {r, amax, row};
    (void)qn_parallel_for(r->p->ctx, (int32_t)rows, task, &work);
}

/* Element j of a row of x as f32; where this is called for f32 the type is a constant. */
QNI_TEMPLATE float value_at(const void *x, qn_dtype dtype, int64_t j)
{
    return dtype == QN_F32   ? ((const float *)x)[j]
           : dtype == QN_F16 ? qni_f32_from_f16(((const uint16_t *)x)[j])
                             : qni_f32_from_bf16(((const uint16_t *)x)[j]);
}

/* Bits of |x| are ordered as |x| is, infinities and NaN above all numbers. */
QNI_TEMPLATE int32_t amax_of(const void *x, qn_dtype dtype, int64_t k)
{
    int32_t most = 0;
    for (int64_t j = 0; j < k; j++) {
        const int32_t bits = (int32_t)(qni_bits_of(value_at(x, dtype, j)) & 0x7fffffffu);
        most = bits > most ? bits : most;
    }
    return most;
}

static void amax_task(void *arg, int32_t i)
{
    const struct rows_work *const w = arg;
    const qn_tensor *const x = &w->r->args->x;
    const int64_t k = qni_parallel_expert(w->r->job, i) < 0 ? 0 : w->r->p->own_k;
    const void *const from = at_element(x, qni_parallel_x_row(w->r->job, i) * x->stride[0]);
    w->amax[i] = x->dtype == QN_F32 ? amax_of(from, QN_F32, k) : amax_of(from, x->dtype, k);
}

/* The scale of a row, and what x is multiplied with on its way to a code (docs/numerics.md). */
static float scale_of(int32_t amax_bits, float *inverse)
{
    const float amax = qni_float_of((uint32_t)amax_bits);
    *inverse = 0.0f;
    if (amax_bits >= 0x7f800000)
        return qni_float_of(QNI_NAN_F32);
    if (amax < 0x1p-120f)
        return 0.0f;
    *inverse = 127.0f / amax;
    return amax / 127.0f;
}

QNI_TEMPLATE void codes_of(const void *x, qn_dtype dtype, float inverse, int64_t k, int8_t *codes)
{
    const float magic = 0x1.8p23f; /* a sum with it is rounded to an integer, ties to even */
    for (int64_t j = 0; j < k; j++)
        codes[j] = (int8_t)((value_at(x, dtype, j) * inverse + magic) - magic);
}

static void quantize_task(void *arg, int32_t i)
{
    const struct rows_work *const w = arg;
    const struct qn_parallel *const p = w->r->p;
    const qn_tensor *const x = &w->r->args->x;
    const int64_t x_row = qni_parallel_x_row(w->r->job, w->row + i);
    const void *const from = at_element(x, x_row * x->stride[0]);
    int8_t *const codes = (int8_t *)(w->r->scratch + p->scratch.codes) + i * p->own_k;
    float inverse;
    (void)scale_of(w->amax[w->row + i], &inverse);
    if (inverse == 0.0f)
        memset(codes, 0, (size_t)p->own_k);
    else if (x->dtype == QN_F32)
        codes_of(from, QN_F32, inverse, p->own_k, codes);
    else
        codes_of(from, x->dtype, inverse, p->own_k, codes);
}

/* Sums become values, in place. */
static void scale_task(void *arg, int32_t i)
{
    const struct rows_work *const w = arg;
    const struct qn_parallel *const p = w->r->p;
    const qn_tensor *const given = &w->r->args->epilogue.bias;
    const int32_t expert = qni_parallel_expert(w->r->job, w->row + i);
    float inverse, x_scale = w->r->args->quant.x_scale;
    if (expert < 0)
        return;
    const float *const w_scale = p->w_scale + expert * p->n;
    const qn_tensor bias = of_expert(given, expert);
    const bool is_biased = given->rank != 0 && given->dtype == QN_I32;
    uint8_t *const sums = w->r->scratch + p->scratch.sums + (size_t)(i * p->n) * sizeof(float);
    if (p->is_quantized)
        x_scale = scale_of(w->amax[w->row + i], &inverse);
    for (int64_t j = 0; j < p->n; j++) {
        int32_t d;
        memcpy(&d, sums + (size_t)j * sizeof d, sizeof d);
        if (is_biased)
            d = (int32_t)((uint32_t)d + (uint32_t)((const int32_t *)bias.data)[j]);
        /* fma(scale_w, d, +0): the sum with 0 makes -0 what it is there. */
        const float v = (w_scale[j] * (float)d + 0.0f) * x_scale;
        memcpy(sums + (size_t)j * sizeof v, &v, sizeof v);
    }
}

static qn_status add_int32(const struct parallel_run *r, int32_t *amax, int64_t row, int64_t rows)
{
    const struct qn_parallel *const p = r->p;
    uint8_t *const sums = r->scratch + p->scratch.sums;
    const qn_tensor y = qn_tensor_2d(sums, QN_I32, rows, p->n);
    if (p->is_quantized)
        each_row(r, amax, row, rows, quantize_task);
    const qn_status status = multiply(r, row, rows, &y);
    QNI_TRY(reduce(r, sums, (size_t)(rows * p->n), QN_I32, QN_REDUCE_SUM, status));
    if (r->args->y.dtype == QN_I32) {
        for (int64_t i = 0; i < rows && p->n > 0; i++)
            if (qni_parallel_expert(r->job, row + i) >= 0)
                memcpy(at_element(&r->args->y, (row + i) * r->args->y.stride[0]),
                       sums + (size_t)(i * p->n) * sizeof(int32_t), (size_t)p->n * sizeof(int32_t));
        return QN_OK;
    }
    each_row(r, amax, row, rows, scale_task);
    return finish(r, row, rows);
}

/* ---- row: f32 sums --------------------------------------------------------------------------- */

/* sums[i] = ((from rank 0 + from rank 1) + from rank 2) + ... */
struct sums_work {
    const struct parallel_run *r;
    float *sums;
    size_t count;
};
enum { SUMS_AT_ONCE = 4096 }; /* which the first cache holds with those of another rank */

static void add_task(void *arg, int32_t piece)
{
    const struct sums_work *const w = arg;
    const size_t first = (size_t)piece * SUMS_AT_ONCE, left = w->count - first;
    const size_t count = left < SUMS_AT_ONCE ? left : SUMS_AT_ONCE;
    float *const sums = w->sums + first;
    for (int32_t rank = 0; rank < w->r->p->comm.n_ranks; rank++) {
        const uint8_t *const block = received(w->r, rank) + QNI_BLOCK_HEAD;
        const float *const from = (const float *)(const void *)block + first;
        if (rank == 0)
            memcpy(sums, from, count * sizeof *sums);
        for (size_t i = 0; rank > 0 && i < count; i++)
            sums[i] += from[i];
    }
}

static void add_in_order(const struct parallel_run *r, float *sums, size_t count)
{
    struct sums_work work = {r, sums, count};
    const size_t pieces = (count + SUMS_AT_ONCE - 1) / SUMS_AT_ONCE;
    (void)qn_parallel_for(r->p->ctx, (int32_t)pieces, add_task, &work);
}

/* ---- blocks that all gather: finished outputs, or f32 sums ----------------------------------- */

/* The rank's own block of some rows. */
static qn_status compute_block(const struct parallel_run *r, int64_t row, int64_t rows)
{
    const struct qn_parallel *const p = r->p;
    const bool is_y = p->exchange == QNI_EXCHANGE_Y;
    uint8_t *const send = sent(r);
    const qn_tensor y = is_y ? qn_tensor_2d(send + QNI_BLOCK_HEAD, r->args->y.dtype, rows, p->own_n)
                             : qn_tensor_2d(send + QNI_BLOCK_HEAD, QN_F32, rows, p->n);
    const qn_status status = multiply(r, row, rows, &y);
    begin_block(send, status);
    if (is_y)
        memcpy(send + sizeof(int64_t), &p->own_n, sizeof p->own_n);
    return status;
}

/* Computes y of these rows from the blocks of all ranks. */
static qn_status use_blocks(const struct parallel_run *r, int64_t row, int64_t rows)
{
    const struct qn_parallel *const p = r->p;
    if (p->exchange == QNI_EXCHANGE_Y) {
        place_outputs(r, row, rows);
        return QN_OK;
    }
    add_in_order(r, (float *)(void *)(r->scratch + p->scratch.sums), (size_t)(rows * p->n));
    return finish(r, row, rows);
}

static qn_status gather_chunk(const struct parallel_run *r, int64_t row, int64_t rows)
{
    const qn_status status = compute_block(r, row, rows);
    QNI_TRY(gather_blocks(r, status));
    return use_blocks(r, row, rows);
}

/* Waits for the blocks that are under way; own: this rank's status, which goes first. */
static qn_status wait_for_blocks(const struct parallel_run *r, qn_status own)
{
    const qn_comm *const c = &r->p->comm;
    const qn_status told = c->wait(c->arg, qni_parallel_told(own, r->err));
    if (own != QN_OK || told != QN_OK)
        return own != QN_OK ? own : told;
    return check_blocks(r);
}

/* Gathers the same chunks, but each one's blocks are under way while the next one is computed. A
 * chunk is only begun when the one before it is known to be good on all ranks, so that all stop at
 * the same one. */
static qn_status gather_overlapped(const struct parallel_run *r)
{
    const struct qn_parallel *const p = r->p;
    const qn_comm *const c = &p->comm;
    struct parallel_run turns[2] = {*r, *r};
    turns[1].turn = 1;
    for (int64_t i = 0, row = 0; row < r->m; i++, row += p->chunk) {
        const struct parallel_run *const now = &turns[i % 2], *const last = &turns[(i + 1) % 2];
        const qn_status status = compute_block(now, row, qni_min(p->chunk, r->m - row));
        if (i > 0)
            QNI_TRY(wait_for_blocks(last, QN_OK));
        QNI_TRY(c->all_gather_begin(c->arg, sent(now), p->block_bytes, received(now, 0),
                                    qni_parallel_told(status, r->err)));
        const qn_status used =
            status == QN_OK && i > 0 ? use_blocks(last, row - p->chunk, p->chunk) : status;
        if (used != QN_OK || row + p->chunk >= r->m) {
            QNI_TRY(wait_for_blocks(now, used));
            return use_blocks(now, row, r->m - row);
        }
    }
    return QN_OK;
}

/* Columns [first, first + n) of all outputs are added by this rank. */
static int64_t columns_of_rank(const struct qn_parallel *p, int32_t rank, int64_t *first)
{
    *first = qni_min(p->n, rank * p->widest);
    return qni_min(p->widest, p->n - *first);
}

/* Every rank sends each other the columns that that one adds, and gathers what was added: the same
 * sums as of gathered blocks, for two blocks instead of one for each rank. */
static qn_status add_by_columns(const struct parallel_run *r, int64_t row, int64_t rows)
{
    const struct qn_parallel *const p = r->p;
    const qn_comm *const c = &p->comm;
    float *const sums = (float *)(void *)(r->scratch + p->scratch.sums);
    const qn_tensor y = qn_tensor_2d(sums, QN_F32, rows, p->n);
    const qn_status status = multiply(r, row, rows, &y);
    int64_t first, n;
    for (int32_t rank = 0; rank < c->n_ranks; rank++) {
        float *const to = begin_block(block_of(r, p->scratch.send, rank), status);
        n = columns_of_rank(p, rank, &first);
        for (int64_t i = 0; n > 0 && i < rows; i++)
            memcpy(to + i * n, sums + i * p->n + first, (size_t)n * sizeof *to);
    }
    const qn_status told =
        c->all_to_all(c->arg, r->scratch + p->scratch.send, p->block_bytes,
                      r->scratch + p->scratch.recv, qni_parallel_told(status, r->err));
    if (status != QN_OK || told != QN_OK)
        return status != QN_OK ? status : told;
    QNI_TRY(check_blocks(r));
    n = columns_of_rank(p, c->rank, &first);
    add_in_order(r, begin_block(r->scratch + p->scratch.send, QN_OK), (size_t)(rows * n));
    QNI_TRY(gather_blocks(r, QN_OK));
    for (int32_t rank = 0; rank < c->n_ranks; rank++) {
        const uint8_t *const block = received(r, rank) + QNI_BLOCK_HEAD;
        n = columns_of_rank(p, rank, &first);
        for (int64_t i = 0; n > 0 && i < rows; i++)
            memcpy(sums + i * p->n + first, block + (size_t)(i * n) * sizeof *sums,
                   (size_t)n * sizeof *sums);
    }
    return finish(r, row, rows);
}

static qn_status add_fast(const struct parallel_run *r, int64_t row, int64_t rows)
{
    const struct qn_parallel *const p = r->p;
    uint8_t *const sums = r->scratch + p->scratch.sums;
    const qn_tensor y = qn_tensor_2d(sums, QN_F32, rows, p->n);
    const qn_status status = multiply(r, row, rows, &y);
    QNI_TRY(reduce(r, sums, (size_t)(rows * p->n), QN_F32, QN_REDUCE_SUM, status));
    return finish(r, row, rows);
}

/* ---- a run ----------------------------------------------------------------------------------- */

/* What makes y of a row product is validated before any rank writes. */
static qn_status check_finish(const struct parallel_run *r)
{
    const struct qn_parallel *const p = r->p;
    struct qni_op op;
    qn_finish_args f;
    qn_finish_args_init(&f);
    if (p->split == QN_SPLIT_COLUMN || r->args->y.dtype == QN_I32)
        return QN_OK;
    f.v = qn_tensor_2d(r->scratch + p->scratch.sums, QN_F32, r->m, p->n);
    f.v.stride[0] = 0; /* one row, read many times */
    f.y = r->args->y;
    f.epilogue = r->args->epilogue;
    /* Those of each expert have been validated with the experts. */
    if ((p->exchange == QNI_EXCHANGE_INT32 && f.epilogue.bias.dtype == QN_I32) ||
        f.epilogue.bias.rank == 2)
        f.epilogue.bias = qn_tensor_none();
    if (f.epilogue.col_scale.rank == 2)
        f.epilogue.col_scale = qn_tensor_none();
    return qni_validate_finish(p->ctx, &f, &op, r->err);
}

static qn_status check_y(const struct parallel_run *r)
{
    const struct qn_parallel *const p = r->p;
    const qn_tensor *const y = &r->args->y;
    const int64_t shape[2] = {r->m, p->exchange == QNI_EXCHANGE_NOTHING ? p->own_n : p->n};
    QNI_TRY(qni_check_tensor(p->ctx, y, "y", 2, ~0u, r->err));
    QNI_TRY(qni_check_shape(y, "y", shape, r->err));
    QNI_TRY(qni_check_output(y, "y", r->err));
    QNI_TRY(qni_check_data(p->ctx, y, "y", r->err));
    if (r->args->x.data != NULL)
        QNI_TRY(qni_check_apart(y, "y", &r->args->x, "x", r->err));
    QNI_TRY(qni_check_apart_bytes(y, "y", r->scratch, p->scratch.bytes, "scratch", r->err));
    return check_finish(r);
}

/* Everything that can be wrong with a run's arguments, without the other ranks. */
static qn_status check_run(struct parallel_run *r, size_t scratch_bytes)
{
    const struct qn_parallel *const p = r->p;
    const qn_matmul_args *const a = r->args;
    QNI_TRY(qni_check_scratch(r->scratch, scratch_bytes, p->scratch.bytes, r->err));
    QNI_TRY(qni_parallel_check_experts(r->job, r->err));
    if ((r->job->is_grouped ? r->job->grouped.n_experts : 0) != p->n_experts)
        return qni_fail(r->err, QN_E_SHAPE, "there are %d experts; the plan is for %d",
                        r->job->is_grouped ? r->job->grouped.n_experts : 0, p->n_experts);
    if (a->more != NULL || a->prepared != NULL)
        return qni_fail(r->err, QN_E_UNSUPPORTED,
                        "products over several ranks take neither prepared rows nor more of an "
                        "epilogue");
    QNI_TRY(qni_check_tensor(p->ctx, &a->x, "x", 2, ~0u, r->err));
    QNI_TRY(qni_check_tensor(p->ctx, &a->y, "y", 2, ~0u, r->err));
    r->m = p->n_experts > 0 ? a->y.shape[0] : a->x.shape[0];
    if (r->m > p->m)
        return qni_fail(r->err, QN_E_SHAPE, "there are %lld rows; the plan is for %lld at most",
                        (long long)r->m, (long long)p->m);
    QNI_TRY(check_y(r));
    /* As its own product sees them: x, weights and, of columns, the epilogue. */
    qn_matmul_args own = *a;
    if (p->exchange == QNI_EXCHANGE_Y)
        own.y = qni_parallel_columns_of(p, &a->y);
    if (p->exchange == QNI_EXCHANGE_Y)
        own.epilogue.residual = qni_parallel_columns_of(p, &a->epilogue.residual);
    return qni_parallel_validate(p->ctx, r->job, &own, QNI_WITH_DATA, r->err);
}

/* All ranks are in this run with the same m and n. */
static qn_status agree(const struct parallel_run *r, qn_status status)
{
    const qn_comm *const c = &r->p->comm;
    struct qni_facts facts = {
        .n = 2, .n_same = 2, .of = {(int32_t)r->m, (int32_t)r->p->n}, .differs = -1};
    if (r->p->is_trusted)
        return status;
    QNI_TRY(qni_parallel_agree(c, status, &facts, "a run", r->err));
    const int32_t i = facts.differs;
    return i < 0 ? QN_OK
                 : qni_fail(r->err, QN_E_PEER, "ranks have between %d and %d %s", facts.least[i],
                            facts.most[i], i == 0 ? "rows of x" : "outputs");
}

static qn_status run_chunk(const struct parallel_run *r, int32_t *amax, int64_t row, int64_t rows)
{
    switch (r->p->exchange) {
    case QNI_EXCHANGE_Y:
        return gather_chunk(r, row, rows);
    case QNI_EXCHANGE_INT32:
        return add_int32(r, amax, row, rows);
    case QNI_EXCHANGE_FAST:
        return add_fast(r, row, rows);
    default:
        return r->p->by_columns ? add_by_columns(r, row, rows) : gather_chunk(r, row, rows);
    }
}

static qn_status run_chunks(const struct parallel_run *r, int32_t *amax)
{
    const struct qn_parallel *const p = r->p;
    if (p->overlaps && r->m > p->chunk)
        return gather_overlapped(r);
    for (int64_t row = 0; row < r->m; row += p->chunk)
        QNI_TRY(run_chunk(r, amax, row, qni_min(p->chunk, r->m - row)));
    return QN_OK;
}

static qn_status run(struct parallel_run *r, size_t scratch_bytes)
{
    const struct qn_parallel *const p = r->p;
    qn_status status = check_run(r, scratch_bytes);
    if (p->exchange == QNI_EXCHANGE_NOTHING)
        return status == QN_OK ? multiply(r, 0, r->m, &r->args->y) : status;
    QNI_TRY(agree(r, status));
    int32_t *const amax = (int32_t *)(void *)(r->scratch + p->scratch.amax);
    if (p->is_quantized) {
        each_row(r, amax, 0, r->m, amax_task);
        QNI_TRY(reduce(r, amax, (size_t)r->m, QN_I32, QN_REDUCE_MAX, QN_OK));
    }
    return run_chunks(r, amax);
}

qn_status qn_parallel_run(const qn_parallel *plan, const qn_parallel_args *args, void *scratch,
                          size_t scratch_bytes, qn_error *err)
{
    qn_parallel_args own;
    struct qni_parallel_job job;
    qn_parallel_args_init(&own);
    if (plan == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "plan is NULL");
    struct parallel_run r = {
        .p = plan, .args = &job.all, .job = &job, .scratch = scratch, .err = err};
    qn_status status = qni_sized_read(&own, sizeof own, args, err);
    if (status == QN_OK)
        status = qni_parallel_read(&own, &job, err);
    if (status == QN_OK)
        status = qni_parallel_check_prepared(&own, &job.all, err);
    if (status == QN_OK && (own.split != plan->split || own.sum_order != plan->sum_order ||
                            own.is_trusted != plan->is_trusted))
        status =
            qni_fail(err, QN_E_ARGUMENT, "split, sum_order or is_trusted is not what was planned");
    if (status == QN_OK)
        return run(&r, scratch_bytes);
    return plan->exchange == QNI_EXCHANGE_NOTHING ? status : agree(&r, status);
}

/* ---- sums of given parts --------------------------------------------------------------------- */

/* A plan of nothing but the exchange, over p->comm. */
static qn_status plan_sum(const qn_parallel_sum_args *args, struct qn_parallel *p, qn_error *err)
{
    if (args->v.rank != 2 || args->v.shape[0] < 0 || args->v.shape[1] < 0 ||
        args->v.shape[0] > INT32_MAX || args->v.shape[1] > INT32_MAX)
        return qni_fail(err, QN_E_SHAPE, "v has rank %d, or a side that is no int32: it is [m, n]",
                        args->v.rank);
    if (args->sum_order < QN_SUM_EXACT || args->sum_order > QN_SUM_FAST)
        return qni_fail(err, QN_E_ARGUMENT, "sum_order is %d: see qn_sum_order", args->sum_order);
    QNI_TRY(qni_check_flag(args->is_trusted, "is_trusted", err));
    p->split = QN_SPLIT_ROW;
    p->sum_order = args->sum_order;
    p->is_trusted = args->is_trusted;
    p->exchange = args->sum_order == QN_SUM_FAST ? QNI_EXCHANGE_FAST : QNI_EXCHANGE_ORDERED;
    p->by_columns =
        p->exchange == QNI_EXCHANGE_ORDERED && p->comm.n_ranks > 2 && p->comm.all_to_all != NULL;
    p->m = args->v.shape[0];
    p->n = p->own_n = args->v.shape[1];
    p->widest = qni_ceil_div(p->n, p->comm.n_ranks);
    p->chunk = qni_parallel_chunk(p);
    return qni_parallel_lay_out(p, QN_F32, err);
}

qn_status qn_parallel_sum_scratch(const qn_parallel_sum_args *args, size_t *bytes, qn_error *err)
{
    qn_parallel_sum_args own;
    struct qn_parallel p;
    if (bytes == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "bytes is NULL: there is no place for the result");
    qn_parallel_sum_args_init(&own);
    QNI_TRY(qni_sized_read(&own, sizeof own, args, err));
    memset(&p, 0, sizeof p);
    QNI_TRY(qni_parallel_check_comm(own.comm, &p.comm, err));
    QNI_TRY(plan_sum(&own, &p, err));
    *bytes = p.scratch.bytes;
    return QN_OK;
}

static qn_status check_sum(const struct parallel_run *r, size_t scratch_bytes)
{
    const struct qn_parallel *const p = r->p;
    struct qni_op op;
    qn_finish_args f;
    QNI_TRY(qni_check_scratch(r->scratch, scratch_bytes, p->scratch.bytes, r->err));
    qn_finish_args_init(&f);
    f.v = *r->parts;
    f.y = r->args->y;
    f.epilogue = r->args->epilogue;
    QNI_TRY(qni_validate_finish(p->ctx, &f, &op, r->err));
    QNI_TRY(qni_check_apart_bytes(&f.v, "v", r->scratch, p->scratch.bytes, "scratch", r->err));
    return qni_check_apart_bytes(&f.y, "y", r->scratch, p->scratch.bytes, "scratch", r->err);
}

qn_status qn_parallel_sum(const qn_ctx *ctx, const qn_parallel_sum_args *args, void *scratch,
                          size_t scratch_bytes, qn_error *err)
{
    qn_parallel_sum_args own;
    struct qn_parallel p;
    qn_matmul_args to;
    qn_parallel_sum_args_init(&own);
    qn_matmul_args_init(&to);
    memset(&p, 0, sizeof p);
    QNI_TRY(qni_parallel_open(ctx, args, &own, sizeof own, &own.comm, &p.comm, err));
    const qn_status planned = plan_sum(&own, &p, err);
    p.ctx = ctx;
    to.y = own.y;
    to.epilogue = own.epilogue;
    struct parallel_run r = {
        .p = &p, .args = &to, .parts = &own.v, .scratch = scratch, .m = p.m, .err = err};
    QNI_TRY(agree(&r, planned == QN_OK ? check_sum(&r, scratch_bytes) : planned));
    return run_chunks(&r, NULL);
}
