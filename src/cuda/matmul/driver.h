/* SPDX-License-Identifier: Apache-2.0 */
/* The sequence of launches of an operation:
 *
 *     routes (grouped: rows by expert, in tiles)
 *     for each chunk of rows:  prepare, unless x is read as it lies;  the matmul kernel
 *
 * A chunk bounds the scratch that prepared rows take. Nothing here allocates or waits, and where
 * launches go depends on shapes alone, so all of it can be captured. */
#ifndef QNI_CUDA_MATMUL_DRIVER_H
#define QNI_CUDA_MATMUL_DRIVER_H

#include "../backend.h"
#include "../device.h"

/* The row of a choice for m rows. */
const struct qni_cuda_kernel *qni_cuda_kernel_for(const struct qni_cuda_choice *choice, int64_t m);
/* Computes chunk, sizes and reads_x of a choice whose kernels are chosen. */
void qni_cuda_size(const struct qni_op *op, struct qni_cuda_choice *choice);

/* By a row of kernels.inc; the dense tier has a run of its own (dense.h). */
qn_status qni_cuda_product_run(const struct qni_op *op, const struct qni_cuda_choice *choice,
                               void *scratch, const struct qni_cuda_launch *launch, qn_error *err);
qn_status qni_cuda_depthwise_run(const struct qni_op *op, const struct qni_cuda_launch *launch,
                                 qn_error *err);

#endif
