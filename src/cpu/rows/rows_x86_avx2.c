/* SPDX-License-Identifier: Apache-2.0 */
/* Row functions, for AVX2, FMA and F16C. simd/rows_body.h has the loops, kernel.h what they
 * compute. */
#include "kernel.h"

#define QNI_ROWS_ISA   avx2
#define QNI_ROWS_NEEDS QN_ISA_AVX2
#include "../simd/rows_body.h"
