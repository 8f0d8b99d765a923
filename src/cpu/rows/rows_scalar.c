/* SPDX-License-Identifier: Apache-2.0 */
/* Row functions, portable: the definition of the other instances. simd/rows_body.h has the loops,
 * kernel.h what they compute. */
#include "kernel.h"

#define QNI_ROWS_ISA   scalar
#define QNI_ROWS_NEEDS QN_ISA_PORTABLE
#include "../simd/rows_body.h"
