/* SPDX-License-Identifier: Apache-2.0 */
/* Compact weights made wide, portable. simd/expand_body.h has the loops, kernel.h what
 * they compute. */
#include "kernel.h"

#define QNI_EXPAND_ISA   scalar
#define QNI_EXPAND_NEEDS QN_ISA_PORTABLE
#include "../simd/expand_body.h"
