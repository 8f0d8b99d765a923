/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of prefill_sm90a.cu for tables of 16 values. Byte permutations look values up, 26
 * instructions for 8 of them (integers: 9), and a value of more than one piece of 16 bits
 * (dequant.cuh) is a product for each piece: a stage of its own. */
#include "prefill_kernel.cuh"

QNI_PREFILL(f16, t4frag, 64, false, 4, true)
QNI_PREFILL(f16, t4frag, 128, false, 4, true)
QNI_PREFILL(bf16, t4frag, 64, true, 4, true)
QNI_PREFILL(bf16, t4frag, 128, true, 4, true)
QNI_PREFILL_IMAGE(f16, t4frag, 128, false, 4, true)
QNI_PREFILL_IMAGE(f16, t4frag, 64, false, 4, true)
QNI_PREFILL_IMAGE(bf16, t4frag, 128, true, 4, true)
QNI_PREFILL_IMAGE(bf16, t4frag, 64, true, 4, true)
