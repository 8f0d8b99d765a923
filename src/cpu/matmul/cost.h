/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel would cost: the model by which select.c chooses among the kernels of vectors, with
 * the constants of tuning.inc. Pure: it knows the kernel, how rows of x are cut, and m. The number
 * of outputs and that of threads divide out, so that a share of the columns gets the kernel of all
 * of them. */
#ifndef QNI_CPU_MATMUL_COST_H
#define QNI_CPU_MATMUL_COST_H

#include "prepare.h"

/* Is there a line for row i of kernels.inc? Tiles of AMX have none. */
bool qni_matmul_has_cost(int32_t i);
/* Picoseconds of row i for m rows of x and a panel of outputs. */
double qni_matmul_cost(int32_t i, const struct qni_row_layout *layout, int64_t m);
/* Microseconds of a product: t0 + max( bytes / bandwidth, panels x cost / threads ). times: what
 * the cost of row i is multiplied with on this context. */
double qni_matmul_predict(const qn_ctx *ctx, int32_t i, const struct qni_row_layout *layout,
                          const struct qni_op *op, int64_t m, double times);

/* What the context multiplies the cost of row i with, as it was set; 0: nothing was set. */
float qni_matmul_given_times(const qn_ctx *ctx, int32_t i);

#endif
