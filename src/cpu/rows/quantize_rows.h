/* SPDX-License-Identifier: Apache-2.0 */
/* qn_quantize_rows() on the CPU: the quantizer of activations without a product behind it. */
#ifndef QNI_CPU_ROWS_QUANTIZE_ROWS_H
#define QNI_CPU_ROWS_QUANTIZE_ROWS_H

#include "../../base/context.h"
#include "rows.h"

/* All arguments are validated. */
void qni_rows_quantize(const qn_ctx *ctx, const qn_quantize_rows_args *args);
/* The same with integer zero points, or scales that are given. */
void qni_rows_quantize_linear(const qn_ctx *ctx, const qn_quantize_rows_args *args);

#endif
