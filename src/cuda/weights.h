/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights as kernels take them. */
#ifndef QNI_CUDA_WEIGHTS_H
#define QNI_CUDA_WEIGHTS_H

#include "../quant/packed.h"
#include "kernel.h"

/* For kernels that read `reads`. Follows from head and codebook alone: the blob is not looked at,
 * and may be anything for a plan. The layout is one of the GPU's. */
struct qni_cuda_weights qni_cuda_weights_of(const struct qn_packed *packed, int32_t reads);

#endif
