/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of e4m3 for products: fp8.h. */
#include "fp8.h"

#include <string.h>

#include "../base/compiler.h"
#include "../base/size.h"

enum { ALIGNMENT = 256 };

static bool by_block(const struct qni_op *op)
{
    return op->strategy == QN_STRATEGY_FP8_BLOCK;
}

static int64_t rows_of(const struct qni_op *op)
{
    return qni_max(op->x.shape[0], op->m);
}

static int64_t row_length(const struct qni_op *op)
{
    return (int64_t)qni_round_up((size_t)qni_max(op->k, 1), 16);
}

static size_t element_bytes(const struct qni_op *op)
{
    return by_block(op) ? sizeof(float) : sizeof(uint16_t);
}

static size_t values_bytes(const struct qni_op *op)
{
    return qni_round_up((size_t)(rows_of(op) * row_length(op)) * element_bytes(op), ALIGNMENT);
}

size_t qni_cuda_fp8_bytes(const struct qni_op *op)
{
    const size_t scales = by_block(op) ? 0 : (size_t)rows_of(op) * sizeof(float);
    return ALIGNMENT + values_bytes(op) + qni_round_up(scales, ALIGNMENT);
}

struct qni_op qni_cuda_fp8_inner(const struct qni_op *op, void *rows)
{
    struct qni_op inner = *op;
    uint8_t *at = rows;
    if (at != NULL)
        at += (size_t)(-(uintptr_t)at % ALIGNMENT);
    inner.fp8 = op;
    inner.strategy = QN_STRATEGY_FLOAT;
    inner.x.dtype = by_block(op) ? QN_F32 : QN_F16;
    inner.x.data = at;
    inner.x.stride[0] = row_length(op);
    inner.x.stride[1] = 1;
    memset(&inner.x_scales, 0, sizeof inner.x_scales);
    if (!by_block(op)) {
        const int64_t n = op->x.shape[0];
        inner.x_scales = qn_tensor_1d(at == NULL ? NULL : at + values_bytes(op), QN_F32, n);
    }
    return inner;
}

/* x and how it is quantized; what is written is left out. */
static struct qni_cuda_fp8 source_of(const struct qni_op *op)
{
    struct qni_cuda_fp8 a;
    memset(&a, 0, sizeof a);
    a.x = op->x.data;
    a.dtype = op->x.dtype;
    a.ldx = op->x.shape[0] > 1 ? op->x.stride[0] : op->k;
    a.x_rows = op->x.shape[0];
    a.k = op->k;
    a.block = by_block(op) ? QNI_FP8_BLOCK : 0;
    a.x_scale = op->strategy == QN_STRATEGY_FP8_STATIC ? op->quant.x_scale : 0.0f;
    if (op->x_scales.rank != 0) {
        a.given = op->x_scales.data;
        a.ld_given = op->x_scales.shape[0] > 1 ? op->x_scales.stride[0] : op->x_scales.shape[1];
    }
    return a;
}

qn_status qni_cuda_fp8_convert(const struct qni_op *inner, const struct qni_cuda_launch *launch,
                               qn_error *err)
{
    const struct qni_op *op = inner->fp8;
    struct qni_cuda_fp8 a = source_of(op);
    a.m = op->x.shape[0];
    a.form = by_block(op) ? QNI_CUDA_FP8_F32 : QNI_CUDA_FP8_F16;
    a.columns = row_length(op);
    a.to = inner->x.data;
    a.ld_to = row_length(op) * (int64_t)element_bytes(op);
    a.scale = by_block(op) ? NULL : inner->x_scales.data;
    a.ld_scale = 1;
    return qni_cuda_launched(qni_cuda_fp8_sm75(&a, launch), "rounding rows to e4m3", err);
}

qn_status qni_cuda_fp8_prepare(const struct qni_op *inner, const struct qni_cuda_rows *to,
                               int64_t row, int64_t n, const int32_t *order,
                               const struct qni_cuda_launch *launch, qn_error *err)
{
    const struct qni_op *op = inner->fp8;
    struct qni_cuda_fp8 a = source_of(op);
    a.m = n;
    a.row = row;
    a.order = order;
    a.index = op->x_rows.rank != 0 ? op->x_rows.data : NULL;
    a.form = QNI_CUDA_FP8_STEPS;
    a.columns = to->columns;
    a.to = (void *)(uintptr_t)to->a;
    a.ld_to = to->lda;
    a.scale = (float *)(uintptr_t)(by_block(op) ? to->scale : to->row_scale);
    a.ld_scale = by_block(op) ? to->ld_segment : 1;
    return qni_cuda_launched(qni_cuda_fp8_sm75(&a, launch), "rounding rows to e4m3", err);
}
