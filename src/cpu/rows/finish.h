/* SPDX-License-Identifier: Apache-2.0 */
/* The epilogue of values that no kernel of ours summed. */
#ifndef QNI_CPU_ROWS_FINISH_H
#define QNI_CPU_ROWS_FINISH_H

#include "../../base/context.h"
#include "../../quant/op.h"

/* y = epilogue(x) of an op that is validated like a matmul, but for x, which is [m, n] f32, and its
 * weights, which it has none of. */
void qni_rows_finish(const qn_ctx *ctx, const struct qni_op *op);

#endif
