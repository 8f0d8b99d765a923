/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the public calls as one plain struct, and where its elements lie. Nothing is
 * validated. */
#include <string.h>

#include "../base/half.h"
#include "../quant/op.h"
#include "ref.h"

static void take_finish(const qn_epilogue_more *given, struct qni_ref_op *op)
{
    qn_epilogue_more_init(&op->more);
    if (given != NULL)
        op->more = *given;
}

void qni_ref_matmul(const qn_matmul_args *args, const struct qn_weight *const *w,
                    struct qni_ref_op *op)
{
    memset(op, 0, sizeof *op);
    op->kind = QNI_MATMUL;
    op->strategy = args->strategy;
    op->w = w;
    op->n_w = 1;
    op->m = args->x.shape[0];
    op->n = w[0]->n;
    op->k = w[0]->k;
    op->x = args->x;
    op->y = args->y;
    op->epilogue = args->epilogue;
    take_finish(args->more, op);
    op->quant = args->quant;
    op->x_scales = args->x_scales;
    op->groups = 1;
    op->co = op->n;
}

void qni_ref_grouped(const qn_grouped_args *args, const struct qn_weight *const *w,
                     struct qni_ref_op *op)
{
    memset(op, 0, sizeof *op);
    op->kind = QNI_GROUPED;
    op->strategy = args->strategy;
    op->w = w;
    op->n_w = args->n_experts;
    op->m = args->y.shape[0];
    op->n = w[0]->n;
    op->k = w[0]->k;
    op->x = args->x;
    op->y = args->y;
    op->offsets = args->offsets;
    op->ids = args->ids;
    op->x_rows = args->x_rows;
    op->epilogue = args->epilogue;
    take_finish(args->more, op);
    op->quant = args->quant;
    op->x_scales = args->x_scales;
    op->groups = 1;
    op->co = op->n;
}

/* Tells which dimension of an image tensor is batch, channel, row and column; -1: there is none
 * (one dimension). */
static void axes(qn_image image, int32_t rank, int axis[4])
{
    static const int nchw[4] = {0, 1, 2, 3}, ncw[4] = {0, 1, -1, 2};
    static const int nhwc[4] = {0, 3, 1, 2}, nwc[4] = {0, 2, -1, 1};
    const int *which = image == QN_NCHW ? (rank == 4 ? nchw : ncw) : (rank == 4 ? nhwc : nwc);
    memcpy(axis, which, 4 * sizeof *axis);
}

static int64_t extent(const qn_tensor *t, int axis)
{
    return axis < 0 ? 1 : t->shape[axis];
}

static void convolution(const qn_conv_args *args, const struct qn_weight *const *w,
                        struct qni_ref_op *op)
{
    memset(op, 0, sizeof *op);
    op->strategy = args->strategy;
    op->w = w;
    op->n_w = 1;
    op->x = args->x;
    op->y = args->y;
    op->epilogue = args->epilogue;
    take_finish(args->more, op);
    op->quant = args->quant;
    op->image = args->image;
    memcpy(op->stride, args->stride, sizeof op->stride);
    memcpy(op->dilation, args->dilation, sizeof op->dilation);
    op->pad[0] = args->pad[0];
    op->pad[1] = args->pad[1];
    int axis[4];
    axes(op->image, op->x.rank, axis);
    op->batch = extent(&op->x, axis[0]);
    op->ih = extent(&op->x, axis[2]);
    op->iw = extent(&op->x, axis[3]);
    op->oh = extent(&op->y, axis[2]);
    op->ow = extent(&op->y, axis[3]);
    op->kh = w[0]->kh;
    op->kw = w[0]->kw;
    op->ci = w[0]->ci;
    op->groups = w[0]->conv_groups;
    op->co = w[0]->n / op->groups;
    op->m = op->batch * op->oh * op->ow;
    op->n = w[0]->n;
    op->k = w[0]->k;
}

void qni_ref_conv2d(const qn_conv_args *args, const struct qn_weight *const *w,
                    struct qni_ref_op *op)
{
    convolution(args, w, op);
    op->kind = QNI_CONV;
}

void qni_ref_conv_transpose2d(const qn_conv_args *args, const struct qn_weight *const *w,
                              struct qni_ref_op *op)
{
    convolution(args, w, op);
    op->kind = QNI_CONV_TRANSPOSE;
}

int64_t qni_ref_at(const struct qni_ref_op *op, const qn_tensor *t, int64_t i, int64_t j)
{
    if (op->kind == QNI_MATMUL || op->kind == QNI_GROUPED)
        return i * t->stride[0] + j * t->stride[1];
    const int64_t index[4] = {i / (op->oh * op->ow), j, i / op->ow % op->oh, i % op->ow};
    int axis[4];
    axes(op->image, t->rank, axis);
    int64_t at = 0;
    for (int d = 0; d < 4; d++)
        if (axis[d] >= 0)
            at += index[d] * t->stride[axis[d]];
    return at;
}

int64_t qni_ref_expert(const struct qni_ref_op *op, int64_t i)
{
    if (op->kind != QNI_GROUPED)
        return 0;
    if (op->ids.rank != 0) {
        const int64_t id = ((const int32_t *)op->ids.data)[i * op->ids.stride[0]];
        return id < 0 ? -1 : id;
    }
    const int32_t *offsets = op->offsets.data;
    for (int32_t e = 0; e < op->n_w; e++)
        if (i >= offsets[e * op->offsets.stride[0]] && i < offsets[(e + 1) * op->offsets.stride[0]])
            return e;
    return -1;
}

double qni_ref_get(const void *data, qn_dtype dtype, int64_t at)
{
    switch (dtype) {
    case QN_F64:
        return ((const double *)data)[at];
    case QN_F32:
        return (double)((const float *)data)[at];
    case QN_F16:
        return (double)qni_f32_from_f16(((const uint16_t *)data)[at]);
    case QN_BF16:
        return (double)qni_f32_from_bf16(((const uint16_t *)data)[at]);
    case QN_I8:
        return (double)((const int8_t *)data)[at];
    case QN_U8:
        return (double)((const uint8_t *)data)[at];
    case QN_E4M3:
        return (double)qni_f32_from_e4m3(((const uint8_t *)data)[at]);
    default:
        return (double)((const int32_t *)data)[at];
    }
}

uint32_t qni_ref_bits(const void *data, qn_dtype dtype, int64_t at)
{
    switch (dtype) {
    case QN_F32:
    case QN_I32:
        return ((const uint32_t *)data)[at];
    case QN_F16:
    case QN_BF16:
        return ((const uint16_t *)data)[at];
    default:
        return ((const uint8_t *)data)[at];
    }
}

bool qni_ref_is_nan(uint32_t bits, qn_dtype dtype)
{
    return (dtype == QN_E4M3 && (bits & 0x7fu) == 0x7fu) ||
           (dtype == QN_F32 && (bits & 0x7fffffffu) > 0x7f800000u) ||
           (dtype == QN_F16 && (bits & 0x7fffu) > 0x7c00u) ||
           (dtype == QN_BF16 && (bits & 0x7fffu) > 0x7f80u);
}
