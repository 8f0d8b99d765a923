/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 32 rows of floats and short groups on tiles: how many rows that were. Its scratch is
 * that of the caller. */
#ifndef QNI_CPU_SIMD_AMX_FLOAT_SHORT_H
#define QNI_CPU_SIMD_AMX_FLOAT_SHORT_H

#include "../matmul/kernel.h"
#include "amx_bf16.h"

int64_t qni_amx_float_short(const struct qni_matmul_tile *t, const struct qni_amx_table *table,
                            int32_t kind);

#endif
