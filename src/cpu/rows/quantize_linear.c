/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of activations to codes with integer zero points, as ONNX's QuantizeLinear and
 * DynamicQuantizeLinear define them: quantize_rows.h. One scale a block is found and used by the
 * thread that has the row; of one scale for all rows the extremes are found first, by all threads,
 * and joined by integer maxima, whose order changes nothing. */
#include <stdatomic.h>

#include "../../base/size.h"
#include "quantize_rows.h"

enum { PIECE = 1024, ROWS_PER_ITEM = 4 };

struct job {
    const qn_quantize_rows_args *args;
    const struct qni_rows *rows;
    bool is_shared; /* one scale for all rows */
    struct qni_linear shared;
    atomic_int amax, not_lo, hi; /* of the range of all rows; not_lo: ~lo, so that more is wider */
    atomic_llong next;
};

/* The floats of n elements at x: where they are, or in buffer. */
static const float *floats(const struct job *j, int64_t row, int64_t first, int64_t n,
                           float *buffer)
{
    const qn_tensor *x = &j->args->x;
    const uint8_t *const at =
        (const uint8_t *)x->data + (size_t)(row * x->stride[0] + first) * qn_dtype_bytes(x->dtype);
    if (x->dtype == QN_F32)
        return (const float *)(const void *)at;
    j->rows->widen(buffer, at, x->dtype, NULL, n);
    return buffer;
}

static void extend(const struct job *j, int64_t row, int64_t first, int64_t n,
                   struct qni_range *range)
{
    float buffer[PIECE];
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t now = qni_min(PIECE, n - i);
        j->rows->range(floats(j, row, first + i, now, buffer), now, range);
    }
}

/* Where block b of a row has its number in scale or zero. */
static int64_t block_place(const struct job *j, const qn_tensor *t, int64_t row, int64_t b)
{
    return j->is_shared ? 0 : row * t->stride[0] + b;
}

static int32_t load_zero(const struct job *j, int64_t row, int64_t b)
{
    const qn_tensor *zero = &j->args->zero;
    if (zero->rank == 0)
        return 0;
    const int64_t at = block_place(j, zero, row, b);
    return zero->dtype == QN_I8 ? ((const int8_t *)zero->data)[at]
                                : ((const uint8_t *)zero->data)[at];
}

static void store(const struct job *j, int64_t row, int64_t b, struct qni_linear l)
{
    const qn_quantize_rows_args *a = j->args;
    ((float *)a->scale.data)[block_place(j, &a->scale, row, b)] = l.scale;
    ((uint8_t *)a->zero.data)[block_place(j, &a->zero, row, b)] = (uint8_t)l.zero;
}

/* What block b of a row is quantized with. */
static struct qni_linear linear_of(const struct job *j, int64_t row, int64_t b, int64_t first,
                                   int64_t n)
{
    struct qni_linear l = j->shared;
    if (j->args->given) {
        l.scale = ((const float *)j->args->scale.data)[block_place(j, &j->args->scale, row, b)];
        l.zero = load_zero(j, row, b);
    } else if (!j->is_shared) {
        struct qni_range range = qni_range_empty();
        extend(j, row, first, n, &range);
        l = qni_linear_of(&range, j->args->codes.dtype);
        store(j, row, b, l);
    }
    return l;
}

static void quantize_block(const void *job, int64_t row, int64_t b, int64_t first, int64_t n)
{
    const struct job *const j = job;
    const qn_quantize_rows_args *a = j->args;
    uint8_t *const codes = (uint8_t *)a->codes.data + row * a->codes.stride[0] + first;
    const struct qni_linear l = linear_of(j, row, b, first, n);
    float buffer[PIECE];
    int32_t sum = 0;
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t now = qni_min(PIECE, n - i);
        sum += j->rows->encode_linear(floats(j, row, first + i, now, buffer), now, l.scale, l.zero,
                                      a->codes.dtype, codes + i);
    }
    if (a->sum.rank != 0)
        ((int32_t *)a->sum.data)[row * a->sum.stride[0] + b] = sum;
}

static void quantize(void *arg, int32_t worker)
{
    struct job *j = arg;
    (void)worker;
    qni_rows_each_block(j->args, &j->next, quantize_block, j);
}

static void raise_to(atomic_int *most, int32_t value)
{
    int32_t now = atomic_load(most);
    while (now < value && !atomic_compare_exchange_weak(most, &now, value))
        ;
}

static void find_range(void *arg, int32_t worker)
{
    struct job *j = arg;
    const int64_t m = j->args->x.shape[0], k = j->args->x.shape[1];
    struct qni_range range = qni_range_empty();
    int64_t row;
    (void)worker;
    while ((row = (int64_t)atomic_fetch_add(&j->next, ROWS_PER_ITEM)) < m)
        for (int64_t i = row; i < qni_min(row + ROWS_PER_ITEM, m); i++)
            extend(j, i, 0, k, &range);
    raise_to(&j->amax, range.amax);
    raise_to(&j->not_lo, ~range.lo);
    raise_to(&j->hi, range.hi);
}

void qni_rows_quantize_linear(const qn_ctx *ctx, const qn_quantize_rows_args *args)
{
    const struct qni_range empty = qni_range_empty();
    struct job j = {.args = args, .rows = qni_rows_for(ctx->isa)};
    const int64_t items = qni_ceil_div(args->x.shape[0], ROWS_PER_ITEM);
    const int32_t workers = (int32_t)qni_min(items, qni_max(1, ctx->threads.n_threads));
    j.is_shared = args->block == QN_GROUP_PER_TENSOR;
    atomic_init(&j.amax, empty.amax);
    atomic_init(&j.not_lo, ~empty.lo);
    atomic_init(&j.hi, empty.hi);
    if (j.is_shared && !args->given) {
        qni_parallel(&ctx->threads, workers, find_range, &j);
        const struct qni_range range = {atomic_load(&j.amax), ~atomic_load(&j.not_lo),
                                        atomic_load(&j.hi)};
        j.shared = qni_linear_of(&range, args->codes.dtype);
        store(&j, 0, 0, j.shared);
        atomic_store(&j.next, 0);
    }
    qni_parallel(&ctx->threads, workers, quantize, &j);
}
