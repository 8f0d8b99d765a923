/* SPDX-License-Identifier: Apache-2.0 */
/* The grouped (mixture-of-experts) product on the CPU: what backend.c calls. Every field of op is
 * validated; select is pure; run computes in scratch of choice->scratch_bytes, 64-byte aligned. */
#ifndef QNI_CPU_MATMUL_GROUPED_H
#define QNI_CPU_MATMUL_GROUPED_H

#include "../backend.h"

qn_status qni_grouped_select(const qn_ctx *ctx, const struct qni_op *op,
                             struct qni_cpu_choice *choice, qni_refusal_fn tell, void *arg);
void qni_grouped_run(const qn_ctx *ctx, const struct qni_op *op,
                     const struct qni_cpu_choice *choice, void *scratch);

#endif
