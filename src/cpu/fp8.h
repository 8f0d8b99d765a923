/* SPDX-License-Identifier: Apache-2.0 */
/* Products with x of e4m3 on the CPU: rows are quantized as docs/numerics.md says ("fp8"), and what
 * the codes stand for, as f32, goes through a float product. */
#ifndef QNI_CPU_FP8_H
#define QNI_CPU_FP8_H

#include "../quant/op.h"
#include "backend.h"

qn_status qni_fp8_select(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice,
                         qni_refusal_fn tell, void *arg);
qn_status qni_fp8_run(const qn_ctx *ctx, const struct qni_op *op,
                      const struct qni_cpu_choice *choice, void *scratch);

#endif
