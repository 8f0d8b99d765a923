/* SPDX-License-Identifier: Apache-2.0 */
/* Compact weights made wide, for AVX-512. simd/expand_body.h has the loops, kernel.h what
 * they compute. */
#include "kernel.h"

#define QNI_EXPAND_ISA   avx512
#define QNI_EXPAND_NEEDS QN_ISA_AVX512
#include "../simd/expand_body.h"
