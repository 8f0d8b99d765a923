/* SPDX-License-Identifier: Apache-2.0 */
/* Where prepared rows lie in scratch, and how a product's rows are told to the device. Rows of a
 * chunk, of all parts, in one piece of memory, each array 256-byte aligned:
 *
 *     a          [planes][parts][rows][lda]       f16, bf16 or int8 in packed order
 *     row_scale  [parts][rows]                    Q8, dynamic
 *     sum        [parts][rows][ld_segment]        Q8, Q8B
 *     scale, offset, total  the same              Q8B; total also F16, BF16 where weights have
 *                                                 offsets and the kernel does not sum x itself */
#ifndef QNI_CUDA_MATMUL_PREPARED_H
#define QNI_CUDA_MATMUL_PREPARED_H

#include "../../quant/geometry.h"
#include "../../quant/op.h"
#include "../kernel.h"

/* Parts of the product and rows of each. */
struct qni_cuda_shape {
    int64_t rows, parts;
};
struct qni_cuda_shape qni_cuda_shape_of(const struct qni_op *op);

/* Prepared rows for this kernel; memory NULL: only the sizes count. Returns the bytes. */
size_t qni_cuda_rows_in(const struct qni_op *op, const struct qni_cuda_kernel *kernel,
                        const struct qni_cuda_shape *shape, uint8_t *memory,
                        struct qni_cuda_rows *rows);

/* qni_op_planes(). */
int32_t qni_cuda_planes(const struct qni_op *op);

/* Are rows of x, as they lie, rows of the product in packed order? */
bool qni_cuda_lies_in_order(const struct qni_op *op);
/* Have rows of x to be sorted by expert for this kernel? */
bool qni_cuda_sorts_x(const struct qni_op *op, const struct qni_cuda_kernel *kernel);
/* Can kernels that read this take x where it lies, as far as types and weights go? Its alignment
 * is the matter of each call: qni_cuda_rows_as_they_lie(). */
bool qni_cuda_reads_x(const struct qni_op *op, const struct qni_cuda_kernel *kernel);
/* Does an int8 decode kernel on sm_90 quantize m rows itself? Its rows are those of
 * qni_cuda_rows_to_quantize(). */
bool qni_cuda_quantizes_x(const struct qni_op *op, const struct qni_cuda_kernel *kernel, int64_t m);
/* False: not aligned; else rows describe x, for any number of rows. */
bool qni_cuda_rows_to_quantize(const struct qni_op *op, struct qni_cuda_rows *rows);
/* False: not aligned; else rows describe x. */
bool qni_cuda_rows_as_they_lie(const struct qni_op *op, struct qni_cuda_rows *rows);

/* Where rows come from, for all rows of the product; `to` and the range are left out. */
void qni_cuda_source_of(const struct qni_op *op, int32_t reads, struct qni_cuda_source *source);
/* Where they go. */
void qni_cuda_sink_of(const struct qni_op *op, struct qni_cuda_sink *sink);

/* Is it a convolution whose groups have one channel? */
static inline bool qni_cuda_is_depthwise(const struct qni_op *op)
{
    return (op->kind == QNI_CONV || op->kind == QNI_CONV_TRANSPOSE) && op->conv.groups > 1 &&
           op->conv.ci == 1;
}

#endif
