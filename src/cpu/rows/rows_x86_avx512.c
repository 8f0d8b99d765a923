/* SPDX-License-Identifier: Apache-2.0 */
/* Row functions, for AVX-512. simd/rows_body.h has the loops, kernel.h what they compute. */
#include "kernel.h"

#define QNI_ROWS_ISA   avx512
#define QNI_ROWS_NEEDS QN_ISA_AVX512
#include "../simd/rows_body.h"
