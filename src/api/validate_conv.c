/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of qn_conv2d() and qn_conv_transpose2d(): images of either layout, two dimensions or
 * one (an image of height 1), against the geometry that the packed weights carry. */
#include <string.h>

#include "../base/error.h"
#include "../base/size.h"
#include "check.h"
#include "validate.h"

enum { BATCH, CHANNEL, ROW, COLUMN };

/* Tells which dimension of an image tensor is batch, channel, row and column. -1: there are no
 * rows, since the image is one-dimensional. */
static const int *axes_of(qn_image image, int32_t rank)
{
    static const int nchw[4] = {0, 1, 2, 3}, ncw[4] = {0, 1, -1, 2};
    static const int nhwc[4] = {0, 3, 1, 2}, nwc[4] = {0, 2, -1, 1};
    return image == QN_NCHW ? (rank == 4 ? nchw : ncw) : (rank == 4 ? nhwc : nwc);
}

static int64_t length(const qn_tensor *t, const int *axes, int which)
{
    return axes[which] < 0 ? 1 : t->shape[axes[which]];
}

/*
 * Strides in the order batch, channel, row, column. A dimension of length 1 is never stepped over;
 * it gets the stride that a contiguous image would have, so that merging dimensions is a matter of
 * comparing.
 */
static void read_strides(const qn_tensor *t, qn_image image, int64_t strides[4])
{
    static const int inward_nchw[4] = {COLUMN, ROW, CHANNEL, BATCH},
                     inward_nhwc[4] = {CHANNEL, COLUMN, ROW, BATCH};
    const int *inward = image == QN_NCHW ? inward_nchw : inward_nhwc;
    const int *axes = axes_of(image, t->rank);
    int64_t natural = 1;
    for (int i = 0; i < 4; i++) {
        const int64_t n = length(t, axes, inward[i]);
        strides[inward[i]] = n > 1 ? t->stride[axes[inward[i]]] : natural;
        /* Overflow means that an outer dimension is 0: no address is ever made from this. */
        if (!qni_i64_mul(strides[inward[i]], qni_max(n, 1), &natural))
            natural = 0;
    }
}

static qn_status check_switches(const qn_conv_args *args, int32_t kind, qn_error *err)
{
    static const char *const side[4] = {"top", "left", "bottom", "right"};
    if (args->image != QN_NCHW && args->image != QN_NHWC)
        return qni_fail(err, QN_E_ARGUMENT, "image is %d: neither QN_NCHW nor QN_NHWC",
                        args->image);
    for (int i = 0; i < 2; i++) {
        if (args->stride[i] < 1 || args->dilation[i] < 1)
            return qni_fail(err, QN_E_ARGUMENT,
                            "stride is %d and dilation %d along %s: both are at least 1",
                            args->stride[i], args->dilation[i], i == 0 ? "h" : "w");
        const int32_t most =
            args->stride[i] > args->dilation[i] ? args->stride[i] : args->dilation[i];
        if (kind == QNI_CONV ? args->out_pad[i] != 0
                             : args->out_pad[i] < 0 || args->out_pad[i] >= most)
            return qni_fail(err, QN_E_ARGUMENT, "out_pad is %d along %s: %s", args->out_pad[i],
                            i == 0 ? "h" : "w",
                            kind == QNI_CONV
                                ? "only a transposed convolution has one"
                                : "it is not negative and less than the stride or the dilation");
    }
    for (int i = 0; i < 4; i++) {
        if (args->pad[i] < 0)
            return qni_fail(err, QN_E_ARGUMENT, "pad is %d at the %s: not negative", args->pad[i],
                            side[i]);
    }
    return QN_OK;
}

/* Output length along one dimension. */
static qn_status output_length(const qn_conv_args *args, int32_t kind, int dim, int64_t in,
                               int32_t taps, int64_t *out, qn_error *err)
{
    const char *name = dim == 0 ? "h" : "w";
    const int64_t pads = (int64_t)args->pad[dim] + args->pad[dim + 2];
    const int64_t reach = (int64_t)args->dilation[dim] * (taps - 1) + 1; /* int32 * int32 fits */
    int64_t sum;
    bool fits;
    if (kind == QNI_CONV) {
        fits = qni_i64_add(in, pads, &sum) && sum >= reach;
        *out = fits ? (sum - reach) / args->stride[dim] + 1 : 0;
    } else {
        fits = qni_i64_mul(in - 1, args->stride[dim], &sum) &&
               qni_i64_add(sum, reach + args->out_pad[dim], &sum) && qni_i64_add(sum, -pads, out) &&
               *out >= 1;
    }
    if (!fits)
        return qni_fail(err, QN_E_SHAPE,
                        "no output along %s: input %lld, pads %lld, %d taps reaching over %lld",
                        name, (long long)in, (long long)pads, taps, (long long)reach);
    return QN_OK;
}

/* All numbers but the strides of y and the residual, which may not be known yet. */
static qn_status read_geometry(const qn_conv_args *args, int32_t kind,
                               const struct qni_packed_head *head, struct qni_conv *c,
                               qn_error *err)
{
    if (args->x.rank != 3 && args->x.rank != 4)
        return qni_fail(err, QN_E_SHAPE, "x has rank %d: 4, or 3 for one dimension", args->x.rank);
    QNI_TRY(check_switches(args, kind, err));
    const int *axes = axes_of(args->image, args->x.rank);
    c->batch = length(&args->x, axes, BATCH);
    c->h = length(&args->x, axes, ROW);
    c->w = length(&args->x, axes, COLUMN);
    c->kh = head->kh;
    c->kw = head->kw;
    c->groups = head->conv_groups;
    c->ci = head->ci;
    c->co = head->n / head->conv_groups;
    memcpy(c->stride, args->stride, sizeof c->stride);
    memcpy(c->dilation, args->dilation, sizeof c->dilation);
    memcpy(c->pad, args->pad, sizeof c->pad);
    if (args->x.rank == 3) {
        if (head->kh != 1)
            return qni_fail(err, QN_E_SHAPE,
                            "x has one dimension, the weights have %d rows of taps", head->kh);
        if (args->pad[0] != 0 || args->pad[2] != 0 || args->out_pad[0] != 0)
            return qni_fail(err, QN_E_ARGUMENT,
                            "x has one dimension: there is nothing to pad at the top and bottom");
        c->stride[0] = c->dilation[0] = 1;
    }
    const int64_t channels = length(&args->x, axes, CHANNEL);
    if (channels % c->groups != 0 || channels / c->groups != c->ci)
        return qni_fail(err, QN_E_SHAPE, "x has %lld channels, the weights take %d groups of %lld",
                        (long long)channels, c->groups, (long long)c->ci);
    if (c->batch < 0 || c->h < 1 || c->w < 1)
        return qni_fail(err, QN_E_SHAPE, "an image of %lld x %lld, %lld of them", (long long)c->h,
                        (long long)c->w, (long long)c->batch);
    QNI_TRY(output_length(args, kind, 0, c->h, c->kh, &c->oh, err));
    QNI_TRY(output_length(args, kind, 1, c->w, c->kw, &c->ow, err));
    read_strides(&args->x, args->image, c->xs);
    return QN_OK;
}

static void output_shape(const qn_conv_args *args, const struct qni_conv *c, int64_t n,
                         int64_t shape[4])
{
    const int *axes = axes_of(args->image, args->x.rank);
    shape[axes[BATCH]] = c->batch;
    shape[axes[CHANNEL]] = n;
    shape[axes[COLUMN]] = c->ow;
    if (axes[ROW] >= 0)
        shape[axes[ROW]] = c->oh;
}

qn_status qni_validate_conv(const qn_ctx *ctx, const qn_conv_args *args, int32_t kind,
                            int with_data, struct qni_op *op, qn_error *err)
{
    QNI_TRY(qni_check_weights(ctx, args->w, -1, err));
    const struct qni_packed_head *head = args->w->head;
    memset(op, 0, sizeof *op);
    QNI_TRY(read_geometry(args, kind, head, &op->conv, err));
    for (int i = 0; i < 2; i++)
        if (args->out_pad[i] >= args->stride[i] && ctx->device.kind != QN_CPU)
            return qni_fail(err, QN_E_UNSUPPORTED,
                            "out_pad of a stride or more is for the CPU alone");
    if (args->y.rank != args->x.rank)
        return qni_fail(err, QN_E_SHAPE, "x and y have ranks %d and %d", args->x.rank,
                        args->y.rank);
    op->kind = kind;
    op->strategy = args->strategy;
    op->n = head->n;
    op->k = head->k;
    op->w = &args->w;
    op->n_w = 1;
    op->strict = args->strict;
    op->x = args->x;
    op->y = args->y;
    op->epilogue = args->epilogue;
    op->quant = args->quant;
    op->kernel = args->kernel;
    if (qni_is_fp8(op->strategy))
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "%s is for matrix products, not for convolutions",
                        qn_strategy_name(op->strategy));
    if (!qni_i64_mul(op->conv.oh, op->conv.ow, &op->m) ||
        !qni_i64_mul(op->m, op->conv.batch, &op->m))
        return qni_fail(err, QN_E_SHAPE, "the output has more pixels than can be counted");
    QNI_TRY(qni_validate_types(ctx, op, err));
    QNI_TRY(qni_validate_more(args->more, op, err));
    int64_t shape[4];
    output_shape(args, &op->conv, op->n, shape);
    QNI_TRY(qni_check_shape(&op->y, "y", shape, err));
    QNI_TRY(qni_check_output(&op->y, "y", err));
    QNI_TRY(qni_validate_epilogue(ctx, op, err));
    read_strides(&op->y, args->image, op->conv.ys);
    if (!qni_is_none(&op->epilogue.residual))
        read_strides(&op->epilogue.residual, args->image, op->conv.rs);
    return with_data ? qni_validate_data(ctx, op, err) : QN_OK;
}

qn_status qni_conv_shape(qn_conv_args *args, int32_t kind, qn_error *err)
{
    if (args->w == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "w is NULL");
    struct qni_conv c;
    memset(&c, 0, sizeof c);
    QNI_TRY(read_geometry(args, kind, args->w->head, &c, err));
    int64_t shape[4] = {0};
    output_shape(args, &c, args->w->head->n, shape);
    const qn_tensor old = args->y;
    args->y = qn_tensor_make(old.data, old.dtype, args->x.rank, shape);
    args->y.device = old.device.kind != 0 ? old.device : args->x.device;
    return QN_OK;
}
