/* SPDX-License-Identifier: Apache-2.0 */
/* Products with x of e4m3 on the GPU. Rows are quantized into scratch; then a kernel of FP8 tensor
 * cores takes codes and scales (reads E4M3, E4M3B); or a float kernel takes the codes as f16, and
 * the scale of a row goes to its sums; or, of blocks of 128, it takes the values as f32. */
#ifndef QNI_CUDA_FP8_H
#define QNI_CUDA_FP8_H

#include "backend.h"
#include "device.h"

/* The float product that a backend chooses kernels for. rows: scratch of choice->fp8_bytes, or
 * NULL. inner->fp8 is op. */
struct qni_op qni_cuda_fp8_inner(const struct qni_op *op, void *rows);
/* Bytes of the rows that float kernels read. */
size_t qni_cuda_fp8_bytes(const struct qni_op *op);
/* All rows of x, to where inner.x and inner.x_scales are. */
qn_status qni_cuda_fp8_convert(const struct qni_op *inner, const struct qni_cuda_launch *launch,
                               qn_error *err);
/* Rows [row, row + n) of the product, sorted as `order` says (NULL: not), for kernels that read
 * codes. */
qn_status qni_cuda_fp8_prepare(const struct qni_op *inner, const struct qni_cuda_rows *to,
                               int64_t row, int64_t n, const int32_t *order,
                               const struct qni_cuda_launch *launch, qn_error *err);

#endif
