/* SPDX-License-Identifier: Apache-2.0 */
/* prefill_dense_sm90a.cu for integers of 8 bits. */
#include "prefill_kernel.cuh"

QNI_PREFILL_DENSE_F16(q8frag, 8)
QNI_PREFILL_DENSE_BF16(q8frag, 8)
