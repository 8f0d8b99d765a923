/* SPDX-License-Identifier: Apache-2.0 */
/* Single rows of a weight as floats: what an embedding table is asked for. Arguments are trusted
 * (src/api/rows.c checks them). Nothing here allocates. */
#ifndef QNI_QUANT_ROWS_H
#define QNI_QUANT_ROWS_H

#include "../base/context.h"
#include "canonical.h"
#include "pack.h"

/* Rows ids[0] to ids[count - 1]. */
struct qni_row_lookup {
    const void *ids; /* i64 or i32 */
    int32_t ids_are_i64;
    int64_t count;
    qn_tensor out; /* [count, k] f32, f16 or bf16; the innermost stride is 1 */
    int32_t apply_prescale;
};

static inline int64_t qni_row_id(const struct qni_row_lookup *rows, int64_t i)
{
    return rows->ids_are_i64 ? ((const int64_t *)rows->ids)[i]
                             : (int64_t)((const int32_t *)rows->ids)[i];
}

void qni_weight_rows(const qn_ctx *ctx, const struct qn_weight *w,
                     const struct qni_row_lookup *rows);
/* Writes the same values from packed weights whose blob lies in host memory. */
void qni_packed_rows(const qn_ctx *ctx, const struct qni_packing *packing,
                     const struct qn_packed *packed, const struct qni_row_lookup *rows);

#endif
