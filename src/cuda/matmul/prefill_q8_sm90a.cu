/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of prefill_sm90a.cu for integers of 8 bits. */
#include "prefill_kernel.cuh"

QNI_PREFILL(f16, q8frag, 64, false, 8, false)
QNI_PREFILL(f16, q8frag, 128, false, 8, false)
QNI_PREFILL(bf16, q8frag, 64, true, 8, false)
QNI_PREFILL(bf16, q8frag, 128, true, 8, false)
QNI_PREFILL_IMAGE(f16, q8frag, 128, false, 8, false)
QNI_PREFILL_IMAGE(f16, q8frag, 64, false, 8, false)
QNI_PREFILL_IMAGE(bf16, q8frag, 128, true, 8, false)
QNI_PREFILL_IMAGE(bf16, q8frag, 64, true, 8, false)
