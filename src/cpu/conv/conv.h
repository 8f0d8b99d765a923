/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions and transposed convolutions on the CPU: what backend.c calls. Every field of op is
 * validated; select is pure; run computes in scratch of choice->scratch_bytes, 64-byte aligned. */
#ifndef QNI_CPU_CONV_CONV_H
#define QNI_CPU_CONV_CONV_H

#include "../backend.h"

qn_status qni_conv_select(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice,
                          qni_refusal_fn tell, void *arg);
void qni_conv_run(const qn_ctx *ctx, const struct qni_op *op, const struct qni_cpu_choice *choice,
                  void *scratch);

/* Every group has one input channel and there are several: kernels of their own (kernels.inc
 * here), for panels that run across the groups. */
static inline bool qni_is_depthwise(const struct qni_op *op)
{
    return op->conv.groups > 1 && op->conv.ci == 1;
}
qn_status qni_depthwise_select(const qn_ctx *ctx, const struct qni_op *op,
                               struct qni_cpu_choice *choice, qni_refusal_fn tell, void *arg);
void qni_depthwise_run(const qn_ctx *ctx, const struct qni_op *op,
                       const struct qni_cpu_choice *choice, void *scratch);

#endif
