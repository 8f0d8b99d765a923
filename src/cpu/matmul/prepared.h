/* SPDX-License-Identifier: Apache-2.0 */
/* Rows that were quantized once for several products: what qn_prepare() leaves in memory of the
 * caller's. All rows lie in one piece of memory as prepare.h lays out those of a unit, so that
 * units of any length are ranges of it. The head before them says how they were made; a product
 * whose weights read rows in any other way refuses them.
 *
 *     head | rows of int8, scales, facts | floats of a row for each thread, while they are made */
#ifndef QNI_CPU_MATMUL_PREPARED_H
#define QNI_CPU_MATMUL_PREPARED_H

#include "prepare.h"

/* Rows [row, row + n) of what op->prepared holds, for a kernel that reads this layout. */
struct qni_prepared qni_prepared_range(const struct qni_op *op, const struct qni_row_layout *layout,
                                       int64_t row, int64_t n);
/* Copy row `row` of them to row `to` of out. */
void qni_prepared_copy(const struct qni_op *op, const struct qni_row_layout *layout, int64_t row,
                       const struct qni_prepared *out, int64_t to);

#endif
