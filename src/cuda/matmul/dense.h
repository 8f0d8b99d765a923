/* SPDX-License-Identifier: Apache-2.0 */
/* The dense tier: weights are written out as plain rows of the type of x, and cuBLASLt multiplies
 * (blas.h). Its two rows, for f16 and for bf16, stand beside those of kernels.inc: they are chosen
 * by the same costs, but only for the dense strategy, since a weight is rounded once more.
 *
 *     for each chunk of outputs:    dequantize
 *         for each chunk of rows:   prepare, unless x is read as it lies;  cuBLASLt
 *                                   into y;  or into sums, which the epilogue takes to y
 *
 * x goes as for the float kernels that read f16 or one plane of bf16, except that a prescale is
 * multiplied into the weights. Chunks bound what scratch is taken. */
#ifndef QNI_CUDA_MATMUL_DENSE_H
#define QNI_CUDA_MATMUL_DENSE_H

#include "../backend.h"
#include "../blas.h"
#include "../device.h"
#include "../kernel.h"

/* NULL past the end. */
const struct qni_cuda_kernel *qni_cuda_dense_at(int32_t i);
static inline bool qni_cuda_is_dense(const struct qni_cuda_kernel *kernel)
{
    return kernel->family == QNI_CUDA_FAMILY_DENSE;
}

/* Why a row cannot serve, a static text; NULL: it can. facts->no_blas comes last, so that it is the
 * answer where nothing else is in the way. op: its layout is one of the GPU's. */
const char *qni_cuda_dense_refusal(const struct qni_cuda_kernel *row, const struct qni_op *op,
                                   const struct qni_cuda_facts *facts);
/* The refusal where everything but the strategy is right. */
extern const char *const qni_cuda_dense_unasked;
/* Rows of kernels.inc that round weights in registers to the same bits (prefill_round.cuh): why one
 * that reads this cannot serve, or NULL. And do they take the short way? */
const char *qni_cuda_rounded_refusal(int32_t reads, const struct qni_op *op);
bool qni_cuda_rounds_by_f16(const struct qni_op *op);
/* Are these weights exact in the type of x? Then such rows serve the float strategy, too. */
bool qni_cuda_rounds_nothing(const struct qni_op *op);
/* The model: constants, and terms for m rows. */
struct qni_cuda_costs qni_cuda_dense_costs(const struct qni_cuda_facts *facts);
struct qni_cuda_terms qni_cuda_dense_terms(const struct qni_cuda_facts *facts,
                                           const struct qni_op *op, int64_t m);

/* Can x be multiplied as it lies, and y be written without our epilogue, if they are aligned? */
bool qni_cuda_dense_reads_x(const struct qni_op *op);
bool qni_cuda_dense_is_direct(const struct qni_op *op, const struct qni_cuda_sink *out);

/* Chunks, scratch and algorithms. QN_E_UNSUPPORTED: cuBLASLt knows none. The device is current. */
qn_status qni_cuda_dense_plan(const struct qni_cuda_blas *blas, const struct qni_op *op,
                              const struct qni_cuda_kernel *row, struct qni_cuda_dense *dense);
qn_status qni_cuda_dense_run(const struct qni_cuda_blas *blas, const struct qni_op *op,
                             const struct qni_cuda_kernel *row, const struct qni_cuda_dense *dense,
                             void *scratch, const struct qni_cuda_launch *launch, qn_error *err);

#endif
