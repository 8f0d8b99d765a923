/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU layouts, for drivers: which there are (layouts.inc), and how their rows are cut for what
 * a kernel reads. */
#ifndef QNI_CPU_LAYOUTS_H
#define QNI_CPU_LAYOUTS_H

#include "../quant/geometry.h"
#include "../quant/pack.h"
#include "matmul/kernel.h"
#include "rows/kernel.h"

extern const struct qni_packing qni_cpu_packing; /* matmul/pack.c */

/* NULL for an unknown name. */
static inline const struct qni_layout *qni_layout_find(const char *name)
{
    return qni_packing_find(&qni_cpu_packing, name);
}

/* Bytes of the codes of a unit of 32 positions x 16 outputs. */
static inline size_t qni_layout_unit_bytes(int32_t layout)
{
    static const int32_t code_bits[QNI_N_LAYOUTS] = {4, 4, 8, 8, 16, 16, 32};
    return qni_packed_unit_bytes(code_bits[layout]);
}

/* Where in a unit the position of the first output is: matmul/kernel.h draws it. */
static inline size_t qni_layout_float_place(qn_dtype floats, int64_t position)
{
    const size_t p = (size_t)position;
    if (floats == QN_BF16)
        return (p / 4 * 2 + (p & 1)) * QNI_PANEL * 4 + (p >> 1 & 1) * 2;
    return p * QNI_PANEL * qn_dtype_bytes(floats);
}

/* The cut of packed weights for kernels that read Q8B (x_block) or anything else (groups). */
static inline struct qni_cut qni_cut_of(const struct qni_packed_head *head, int32_t reads)
{
    return qni_packed_cut(head, reads == QNI_READS_Q8B);
}

#endif
