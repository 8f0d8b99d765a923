/* SPDX-License-Identifier: Apache-2.0 */
/* The matrix of GPTQ: sum of x x^T over samples, in sequence order, and its factor. */
#ifndef QNI_QUANT_HESSIAN_H
#define QNI_QUANT_HESSIAN_H

#include "quantize.h"

/*
 * Kept backwards: row and column a stand for sequence place k - 1 - a. Then the ordinary Cholesky
 * factor, read backwards, is the one whose first variable depends on nothing else.
 */
struct qni_hessian {
    double *a; /* [k, k]; the lower triangle is used */
    int64_t k;
    int32_t *column;  /* [k] sequence -> column of the samples */
    double *diagonal; /* [k] by column, prescale applied */
};

/* Fill h->diagonal. @return QN_OK; QN_E_ARGUMENT; QN_E_SHAPE; QN_E_DTYPE; QN_E_STRIDE; QN_E_VALUE;
 * QN_E_MEMORY. */
qn_status qni_hessian_diagonal(struct qni_hessian *h, const qn_ctx *ctx,
                               const qn_quantize_options *options, qn_error *err);
/* Fill h->a, given h->column. Threaded. */
qn_status qni_hessian_fill(struct qni_hessian *h, const qn_ctx *ctx,
                           const qn_quantize_options *options, qn_error *err);
/* a = L L^T, in place of the lower triangle. Threaded; the bits do not depend on it.
 * @return QN_OK; QN_E_VALUE: not positive definite; QN_E_MEMORY. */
qn_status qni_cholesky(const qn_ctx *ctx, double *a, int64_t k, qn_error *err);

#endif
