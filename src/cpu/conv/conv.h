/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions and transposed convolutions on the CPU: what backend.c calls, and what conv.c calls
 * for each algorithm. Every field of op is validated; select is pure; run computes in scratch of
 * choice->scratch_bytes, 64-byte aligned. */
#ifndef QNI_CPU_CONV_CONV_H
#define QNI_CPU_CONV_CONV_H

#include "../backend.h"
#include "kernel.h"

qn_status qni_conv_select(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice,
                          qni_refusal_fn tell, void *arg);
void qni_conv_run(const qn_ctx *ctx, const struct qni_op *op, const struct qni_cpu_choice *choice,
                  void *scratch);

/* The row that runs where data rule this one out, or NULL: they cannot (select.c). */
const struct qni_conv_kernel *qni_conv_stand_in(const qn_ctx *ctx,
                                                const struct qni_conv_kernel *kernel);

/* The best row of the table that serves, or NULL. tell (may be NULL) hears why the others do not.
 * Pure (select.c). */
const struct qni_conv_kernel *qni_conv_choose(const qn_ctx *ctx, const struct qni_op *op,
                                              qni_refusal_fn tell, void *arg);

/* An algorithm's loops. cut makes every decision of a run; plan says from choice->cut how much
 * scratch all threads share and each has of its own, whatever the run's strides and however much
 * smaller its batch; run follows run->cut. */
struct qni_conv_run;
struct qni_conv_driver {
    void (*cut)(const qn_ctx *ctx, const struct qni_op *op, const struct qni_conv_kernel *kernel,
                struct qni_conv_cut *cut);
    void (*plan)(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice);
    void (*run)(struct qni_conv_run *run);
};
extern const struct qni_conv_driver qni_direct_driver; /* images of bytes, where they lie */
extern const struct qni_conv_driver qni_groups_driver; /* groups of few channels */
extern const struct qni_conv_driver qni_image_driver;  /* groups of one channel, NHWC */
extern const struct qni_conv_driver qni_ring_driver;   /* groups of one channel, anything else */

/* Where no row serves: a product of patches, by rows of the matmul list. */
qn_status qni_patches_select(const qn_ctx *ctx, const struct qni_op *op,
                             struct qni_cpu_choice *choice, qni_refusal_fn tell, void *arg);
void qni_patches_run(const qn_ctx *ctx, const struct qni_op *op,
                     const struct qni_cpu_choice *choice, void *scratch);

/* Every group has one input channel and there are several: weights whose panels run across the
 * groups. */
static inline bool qni_is_depthwise(const struct qni_op *op)
{
    return op->conv.groups > 1 && op->conv.ci == 1;
}

/* How activations are quantized: the strategies of floats are one. */
static inline qn_strategy qni_conv_strategy(const struct qni_op *op)
{
    const bool is_int8 = op->strategy == QN_STRATEGY_INT8_ROW ||
                         op->strategy == QN_STRATEGY_INT8_BLOCK ||
                         op->strategy == QN_STRATEGY_INT8_STATIC;
    return is_int8 ? op->strategy : QN_STRATEGY_FLOAT;
}
/* What kernels read then, for qni_cut_of(). */
static inline int32_t qni_conv_reads(qn_strategy strategy)
{
    return strategy == QN_STRATEGY_FLOAT        ? QNI_READS_F32
           : strategy == QN_STRATEGY_INT8_BLOCK ? QNI_READS_Q8B
                                                : QNI_READS_Q8;
}

#endif
