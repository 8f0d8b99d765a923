/* SPDX-License-Identifier: Apache-2.0 */
/* From the caller's arguments to an operation that backends trust. Every argument is checked
 * once, here, with its own status and a sentence that names it; nothing is computed, allocated
 * or written. */
#ifndef QNI_API_VALIDATE_H
#define QNI_API_VALIDATE_H

#include "../quant/op.h"

/* Planning knows types, shapes and strides; only a run has data: pointers, alignment, overlap,
 * routing. */
enum { QNI_WITHOUT_DATA = 0, QNI_WITH_DATA = 1 };

qn_status qni_validate_matmul(const qn_ctx *ctx, const qn_matmul_args *args, int with_data,
                              struct qni_op *op, qn_error *err);
qn_status qni_validate_grouped(const qn_ctx *ctx, const qn_grouped_args *args, int with_data,
                               struct qni_op *op, qn_error *err);
/* kind: QNI_CONV or QNI_CONV_TRANSPOSE. */
qn_status qni_validate_conv(const qn_ctx *ctx, const qn_conv_args *args, int32_t kind,
                            int with_data, struct qni_op *op, qn_error *err);
/* The shape, rank and contiguous strides of args->y follow from everything else. args: own,
 * complete struct. */
qn_status qni_conv_shape(qn_conv_args *args, int32_t kind, qn_error *err);
/* op: of QNI_MATMUL, without y. */
qn_status qni_validate_prepare(const qn_ctx *ctx, const qn_prepare_args *args, int with_data,
                               struct qni_op *op, qn_error *err);
qn_status qni_validate_quantize_rows(const qn_ctx *ctx, const qn_quantize_rows_args *args,
                                     qn_error *err);

/* With data. args: own, complete struct. op has no weights, and x for the values. */
qn_status qni_validate_finish(const qn_ctx *ctx, const qn_finish_args *args, struct qni_op *op,
                              qn_error *err);

/* Shared parts, on an op whose kind, strategy, w, x, y, m, n and epilogue are set. */

/* Types of x and y for the strategy, the given quantization, switches. */
qn_status qni_validate_types(const qn_ctx *ctx, const struct qni_op *op, qn_error *err);
/* The rest of the epilogue into op->more; given may be NULL. */
qn_status qni_validate_more(const qn_epilogue_more *given, struct qni_op *op, qn_error *err);
qn_status qni_validate_epilogue(const qn_ctx *ctx, const struct qni_op *op, qn_error *err);
/* Rows that were prepared: can this operation read such, and, where there are data, these? */
qn_status qni_validate_prepared(const qn_ctx *ctx, const void *prepared, int with_data,
                                struct qni_op *op, qn_error *err);
/* Pointers of x, y and the epilogue, on the context's device; y apart from everything that is read.
 * An x without elements gets an address: offsets from NULL are undefined even if they are 0. */
qn_status qni_validate_data(const qn_ctx *ctx, struct qni_op *op, qn_error *err);

#endif
