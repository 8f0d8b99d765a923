/* SPDX-License-Identifier: Apache-2.0 */
/* qn_quantize_rows() on the CPU: the quantizer of activations without a product behind it. */
#ifndef QNI_CPU_ROWS_QUANTIZE_ROWS_H
#define QNI_CPU_ROWS_QUANTIZE_ROWS_H

#include <stdatomic.h>

#include "../../base/context.h"
#include "rows.h"

/* Columns [first, first + n) of a row are its block `block`. */
typedef void qni_block_fn(const void *job, int64_t row, int64_t block, int64_t first, int64_t n);
/* What each thread does: quantizes the blocks of the rows that it takes, until `next` tells that
 * all are taken. */
void qni_rows_each_block(const qn_quantize_rows_args *args, atomic_llong *next,
                         qni_block_fn *quantize, const void *job);

/* All arguments are validated. */
void qni_rows_quantize(const qn_ctx *ctx, const qn_quantize_rows_args *args);
/* Quantizes rows with integer zero points, or with scales that are given. */
void qni_rows_quantize_linear(const qn_ctx *ctx, const qn_quantize_rows_args *args);

/* One scale for floats with these extremes: amax / 448, and 448 / amax. */
struct qni_scaling qni_fp8_scaling_of(const struct qni_range *range);

#endif
