/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions whose rows nobody writes out: the kernels of the family IMAGE fetch them from the
 * image. That is x itself where its channels are innermost, aligned, and of the type that the
 * kernel reads; else a copy of x with its channels in packed order, one for each pixel and not one
 * for each tap: codes with the padding around them, floats in another type, channels that lie
 * apart. */
#ifndef QNI_CUDA_MATMUL_PIXELS_H
#define QNI_CUDA_MATMUL_PIXELS_H

#include "../../quant/op.h"
#include "../kernel.h"

/* Why the rows of this operation cannot be fetched from an image, a static text; NULL: they can. */
const char *qni_cuda_pixels_refusal(const struct qni_op *op, const struct qni_cuda_kernel *kernel);

/* Is x read where it lies, as far as types and strides go? Where it begins is the matter of each
 * call. */
bool qni_cuda_pixels_lie(const struct qni_op *op, const struct qni_cuda_kernel *kernel);
/* False: x is not aligned; else rows are those of x as it lies. */
bool qni_cuda_pixels_of_x(const struct qni_op *op, const struct qni_cuda_kernel *kernel,
                          struct qni_cuda_rows *rows);

/* A copy of so many images; memory NULL: only the size counts. Returns the bytes. */
size_t qni_cuda_pixels_in(const struct qni_op *op, const struct qni_cuda_kernel *kernel,
                          int64_t images, uint8_t *memory, struct qni_cuda_rows *rows);
/* Pixels of an image of the copy: the padding of codes counts. */
int64_t qni_cuda_pixels_of_image(const struct qni_op *op, const struct qni_cuda_kernel *kernel);
/* Where the copy comes from: each pixel is a row. `to` and the range are left out. */
void qni_cuda_pixels_source(const struct qni_op *op, const struct qni_cuda_kernel *kernel,
                            struct qni_cuda_source *source);

#endif
