/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU layouts as packing sees them (layouts.inc). */
#ifndef QNI_CUDA_LAYOUTS_H
#define QNI_CUDA_LAYOUTS_H

#include "../quant/pack.h"

extern const struct qni_packing qni_cuda_packing;

/* Heads hold 64-bit numbers, kernels count in 32 bits. QN_E_LAYOUT: beyond that. */
qn_status qni_cuda_head_fits(const struct qni_packed_head *head, qn_error *err);

#endif
