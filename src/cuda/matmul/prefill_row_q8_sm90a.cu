/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of prefill_row_q4_sm90a.cu for integers of 8 bits. */
#include "prefill_int8_launch.cuh"

QNI_PREFILL_INT8(q8, q8frag, Q8, 8)
QNI_PREFILL_INT8_IMAGE(q8frag, 8)
