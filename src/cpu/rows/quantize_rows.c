/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of activations to int8, block by block: quantize_rows.h. There is no scratch for a row as
 * floats, so a block that is not f32 is converted twice, piece by piece: once for its range, once
 * for its codes. */
#include "quantize_rows.h"

#include <stdatomic.h>
#include <string.h>

#include "../../base/size.h"

enum { PIECE = 1024, ROWS_PER_ITEM = 4 };

struct qni_scaling qni_fp8_scaling_of(const struct qni_range *range)
{
    struct qni_scaling s = {0.0f, 0.0f, 0.0f, 0.0f};
    const float amax = qni_float_of((uint32_t)range->amax);
    if (range->amax >= 0x7f800000) {
        s.scale = qni_float_of(QNI_NAN_F32);
    } else if (amax >= 0x1p-120f) {
        s.scale = amax / 448.0f;
        s.inv = 448.0f / amax;
    }
    return s;
}

struct job {
    const qn_quantize_rows_args *args;
    const struct qni_rows *rows;
    atomic_llong next;
};

/* The floats of n elements at x: where they are, or in buffer. */
static const float *floats(const struct job *j, const uint8_t *x, int64_t n, float *buffer)
{
    if (j->args->x.dtype == QN_F32)
        return (const float *)(const void *)x;
    j->rows->widen(buffer, x, j->args->x.dtype, NULL, n);
    return buffer;
}

/* u8: the asymmetric codes + 128, so that value = scale * code + lo. */
static int32_t to_unsigned(uint8_t *codes, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        codes[i] ^= 0x80;
    return (int32_t)(128 * n);
}

static void quantize_block(const void *job, int64_t row, int64_t block, int64_t first, int64_t n)
{
    const struct job *const j = job;
    const qn_quantize_rows_args *a = j->args;
    const int32_t symmetric = a->offset.rank == 0;
    const size_t element = qn_dtype_bytes(a->x.dtype);
    const uint8_t *x =
        (const uint8_t *)a->x.data + (size_t)(row * a->x.stride[0] + first) * element;
    uint8_t *codes = (uint8_t *)a->codes.data + row * a->codes.stride[0] + first;
    float buffer[PIECE];
    struct qni_range range = qni_range_empty();
    for (int64_t i = 0; i < n; i += PIECE) {
        const int64_t now = qni_min(PIECE, n - i);
        j->rows->range(floats(j, x + (size_t)i * element, now, buffer), now, &range);
    }
    const bool is_e4m3 = a->codes.dtype == QN_E4M3;
    struct qni_scaling s = is_e4m3 ? qni_fp8_scaling_of(&range) : qni_scaling_of(&range, symmetric);
    int32_t sum = 0;
    if (is_e4m3 && s.inv == 0.0f)
        memset(codes, 0, (size_t)n);
    for (int64_t i = 0; is_e4m3 && s.inv != 0.0f && i < n; i += PIECE) {
        const int64_t now = qni_min(PIECE, n - i);
        j->rows->to_e4m3(codes + i, floats(j, x + (size_t)i * element, now, buffer), s.inv, now);
    }
    for (int64_t i = 0; !is_e4m3 && i < n; i += PIECE) {
        const int64_t now = qni_min(PIECE, n - i);
        sum += j->rows->encode(floats(j, x + (size_t)i * element, now, buffer), now, &s, symmetric,
                               (int8_t *)codes + i);
    }
    if (a->codes.dtype == QN_U8) {
        sum += to_unsigned(codes, n);
        if (range.lo <= range.hi && range.amax < 0x7f800000)
            s.offset = qni_ordered_value(range.lo);
    }
    ((float *)a->scale.data)[row * a->scale.stride[0] + block] = s.scale;
    if (!symmetric)
        ((float *)a->offset.data)[row * a->offset.stride[0] + block] = s.offset;
    if (a->sum.rank != 0)
        ((int32_t *)a->sum.data)[row * a->sum.stride[0] + block] = sum;
}

void qni_rows_each_block(const qn_quantize_rows_args *args, atomic_llong *next,
                         qni_block_fn *quantize, const void *job)
{
    const int64_t m = args->x.shape[0], k = args->x.shape[1];
    const int64_t length = args->block > 0 ? args->block : qni_max(k, 1);
    const int64_t blocks = args->block > 0 ? qni_ceil_div(k, length) : 1;
    int64_t row;
    while ((row = (int64_t)atomic_fetch_add(next, ROWS_PER_ITEM)) < m)
        for (int64_t i = row; i < qni_min(row + ROWS_PER_ITEM, m); i++)
            for (int64_t b = 0; b < blocks; b++)
                quantize(job, i, b, b * length, qni_min(length, k - b * length));
}

static void work(void *arg, int32_t worker)
{
    struct job *j = arg;
    (void)worker;
    qni_rows_each_block(j->args, &j->next, quantize_block, j);
}

void qni_rows_quantize(const qn_ctx *ctx, const qn_quantize_rows_args *args)
{
    struct job j = {args, qni_rows_for(ctx->isa), 0};
    const int64_t items = qni_ceil_div(args->x.shape[0], ROWS_PER_ITEM);
    const int64_t workers = qni_min(items, qni_max(1, ctx->threads.n_threads));
    qni_parallel(&ctx->threads, (int32_t)workers, work, &j);
}
