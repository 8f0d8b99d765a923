/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of prefill_row_q4_sm90a.cu for rows of x with a scale for every segment. */
#include "prefill_int8_launch.cuh"

QNI_PREFILL_INT8(q8b, q4frag, Q8B, 4)
