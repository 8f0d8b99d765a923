/* SPDX-License-Identifier: Apache-2.0 */
/* An operation after validation: what src/api hands to a backend. Every field is checked and
 * consistent; backends trust it. One struct serves the four operations, since each is a matrix
 * product whose rows come from somewhere else. */
#ifndef QNI_QUANT_OP_H
#define QNI_QUANT_OP_H

#include <stdatomic.h>
#include <quern/ops.h>

#include "packed.h"

enum { QNI_MATMUL = 0, QNI_GROUPED = 1, QNI_CONV = 2, QNI_CONV_TRANSPOSE = 3 };

/* Geometry of a convolution; strides in elements. */
struct qni_conv {
    int64_t batch, h, w, oh, ow;
    int64_t xs[4], ys[4], rs[4]; /* strides of x, y, residual: batch, channel, row, column */
    int32_t kh, kw, stride[2], dilation[2], pad[4];
    int64_t ci, co; /* channels of one group */
    int32_t groups;
};

struct qni_op {
    int32_t kind;
    qn_strategy strategy;
    int64_t m;                 /* rows of the product: of y; of a convolution batch * oh * ow */
    int64_t n, k;              /* n: all outputs */
    const qn_packed *const *w; /* [n_w], same head but for contents */
    int32_t n_w;
    int32_t strict;
    qn_tensor x, y; /* matmul, grouped: rank 2 */
    qn_tensor offsets, ids, x_rows;
    int64_t batch_rows; /* grouped: of each weight, one after the other; -1: offsets or ids tell */
    qn_epilogue epilogue;
    qn_epilogue_more more; /* never NULL: the defaults, or the caller's */
    qn_quant_args quant;
    struct qni_conv conv;
    const char *kernel; /* wanted row, or NULL */
    int32_t is_prepared;
    const void *prepared; /* rows of x that qn_prepare() quantized; only where there are data */
    qn_tensor x_scales; /* given: fp8-row and fp8-block with x of e4m3 */
    /* Of a backend: the product with x of e4m3 that this one of floats stands for. NULL: none. */
    const struct qni_op *fp8;
    _Atomic uint32_t *ran; /* NULL, or which rows of the plan ran: QNI_RAN_... */
};

/* Bits of qn_plan_info.ran. */
enum { QNI_RAN_KERNEL = 1, QNI_RAN_STAND_IN = 2 };

/* Notes that a row of the plan ran. Writes seldom: threads share the line. */
static inline void qni_op_note(const struct qni_op *op, uint32_t ran)
{
    if (op->ran != NULL && (atomic_load_explicit(op->ran, memory_order_relaxed) & ran) == 0)
        atomic_fetch_or_explicit(op->ran, ran, memory_order_relaxed);
}

/* The strategies that make x e4m3 first. After that they are a float product. */
static inline bool qni_is_fp8(qn_strategy s)
{
    return s == QN_STRATEGY_FP8_ROW || s == QN_STRATEGY_FP8_BLOCK || s == QN_STRATEGY_FP8_STATIC;
}
enum { QNI_FP8_BLOCK = 128 /* columns with one scale */ };
static inline int64_t qni_fp8_scales(const struct qni_op *op)
{
    return op->strategy == QN_STRATEGY_FP8_BLOCK ? (op->k + QNI_FP8_BLOCK - 1) / QNI_FP8_BLOCK : 1;
}

/* Columns of y: a gate makes one of two outputs. */
static inline int64_t qni_op_columns(const struct qni_op *op)
{
    return op->more.gate == QN_GATE_NONE ? op->n : op->n / 2;
}

/* Does the epilogue want int32 sums: to return them, or to add an int32 bias to them? */
static inline bool qni_op_is_raw(const struct qni_op *op)
{
    return op->strategy == QN_STRATEGY_INT8_STATIC &&
           (op->y.dtype == QN_I32 ||
            (op->epilogue.bias.rank != 0 && op->epilogue.bias.dtype == QN_I32));
}

/* Do these sums lack the part of the weights' integer zero points,
 *     zero * (sum of x - x_zero * count)?
 * Kernels leave it to what comes after them. */
static inline bool qni_op_has_raw_zeros(const struct qni_op *op)
{
    return qni_op_is_raw(op) && op->w[0]->head->format.shift == QN_SHIFT_ZERO;
}

/* The zero point of given codes, which are signed everywhere inside: u8 is read as code - 128. 0
 * where codes are not given. */
static inline int32_t qni_op_x_zero(const struct qni_op *op)
{
    if (op->strategy != QN_STRATEGY_INT8_STATIC)
        return 0;
    return op->quant.x_zero - (op->x.dtype == QN_U8 ? 128 : 0);
}

/* Planes of bf16 that hold x, times a prescale or not: exactly, or to 2^-17 |x|, which long sums do
 * not notice (docs/numerics.md: half of their bound at most). */
static inline int32_t qni_op_planes(const struct qni_op *op, bool is_prescaled)
{
    enum { SHORT = 128 };
    if (is_prescaled || op->x.dtype == QN_F32)
        return op->k < SHORT ? 3 : 2;
    return op->x.dtype == QN_F16 ? 2 : 1;
}

/* What backends choose by: at most so many kernels for one operation, each from some m on. */
enum { QNI_MAX_CHOICES = 6 };
/* Told for every row that refuses: name and reason (static texts). */
typedef void (*qni_refusal_fn)(void *arg, const char *kernel, const char *why);

#endif
