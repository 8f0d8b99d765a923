/* SPDX-License-Identifier: Apache-2.0 */
/* What validators are made of: one tensor argument at a time, failing with the argument's name.
 * Each check trusts that those above it in this file have passed. */
#ifndef QNI_API_CHECK_H
#define QNI_API_CHECK_H

#include "../base/context.h"
#include "../quant/packed.h"

/* Sets of element types. */
#define QNI_TYPE(dtype) (1u << (dtype))
enum {
    QNI_FLOATS = QNI_TYPE(QN_F32) | QNI_TYPE(QN_F16) | QNI_TYPE(QN_BF16),
    QNI_BYTES = QNI_TYPE(QN_I8) | QNI_TYPE(QN_U8)
};

/*
 * Rank, type, device, dimensions, strides and that all of it fits in the address space. The
 * innermost stride is 1. Dimensions of length 1 may have any stride that is not negative. Elements
 * may lie on each other: that is fine for what is only read (a sliding window, a broadcast row).
 */
qn_status qni_check_tensor(const qn_ctx *ctx, const qn_tensor *t, const char *name, int32_t rank,
                           unsigned types, qn_error *err);
/* The tensor's dimensions are these. */
qn_status qni_check_shape(const qn_tensor *t, const char *name, const int64_t *shape,
                          qn_error *err);
/* A tensor of rank 2 or more as a matrix: leading dimensions become one. QN_E_SHAPE: it has not the
 * leading dimensions of like (which may be t itself); QN_E_STRIDE: its rows lie at more than one
 * distance. None stays none. */
qn_status qni_check_flat(qn_tensor *t, const char *name, const qn_tensor *like, qn_error *err);
/* No element lies on another: for what is written. */
qn_status qni_check_output(const qn_tensor *t, const char *name, qn_error *err);
/* There is memory, aligned for its elements, on the device of the context. */
qn_status qni_check_data(const qn_ctx *ctx, const qn_tensor *t, const char *name, qn_error *err);
/* Is this memory of the context's device? Always, on the CPU: nobody can tell. */
qn_status qni_check_place(const qn_ctx *ctx, const void *memory, const char *name, qn_error *err);
/* No byte of y is a byte of x. Slices of one matrix that lie side by side are apart; where that
 * cannot be seen from common strides, touching ranges count as overlap. */
qn_status qni_check_apart(const qn_tensor *y, const char *y_name, const qn_tensor *x,
                          const char *x_name, qn_error *err);
/* Checks the same for y and plain memory: no byte of y lies in it. */
qn_status qni_check_apart_bytes(const qn_tensor *y, const char *y_name, const void *memory,
                                size_t bytes, const char *name, qn_error *err);

/* Scratch of this many bytes, at this place, serves a call that needs so many. */
qn_status qni_check_scratch(const void *scratch, size_t bytes, size_t needed, qn_error *err);

/* A flag of an argument struct is 0 or 1. */
qn_status qni_check_flag(int32_t flag, const char *name, qn_error *err);

/* Packed weights that this context can read. expert: its number among many; -1: it is alone. */
qn_status qni_check_weights(const qn_ctx *ctx, const qn_packed *w, int32_t expert, qn_error *err);

/* A codebook decides which kernels can read the weights: do these two have the same? */
bool qni_same_table(const qn_packed *a, const qn_packed *b);

static inline bool qni_is_none(const qn_tensor *t)
{
    return t->rank == 0;
}
static inline bool qni_is_empty(const qn_tensor *t)
{
    for (int32_t d = 0; d < t->rank; d++) {
        if (t->shape[d] == 0)
            return true;
    }
    return false;
}

#endif
