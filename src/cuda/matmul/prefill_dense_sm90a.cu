/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of prefill_sm90a.cu for the dense strategy: each weight of 4 bits is scaled and
 * rounded to the type of x in registers (prefill_round.cuh), to the bits that the dense tier would
 * write out, and all of k is one sum. Groups of any size cost what one group does. For the float
 * strategy, too, where scales are so short that rounding changes nothing. */
#include "prefill_kernel.cuh"

QNI_PREFILL_DENSE_F16(q4frag, 4)
QNI_PREFILL_DENSE_BF16(q4frag, 4)
