/* SPDX-License-Identifier: Apache-2.0 */
/* What a kernel would cost: the model by which select.c chooses (its formula: tuning.inc), with the
 * constants that were shipped, or those that a context was given. Pure, as select.c is. */
#ifndef QNI_CUDA_MATMUL_COST_H
#define QNI_CUDA_MATMUL_COST_H

#include <quern/cuda.h>

#include "../../quant/op.h"
#include "../backend.h"
#include "../device.h"

/* The line of this kernel, for the GPU at hand. */
struct qni_cuda_costs qni_cuda_costs_of(const struct qni_cuda_facts *facts,
                                        const struct qni_cuda_kernel *kernel);
/* For m rows (each part). */
struct qni_cuda_terms qni_cuda_terms_of(const struct qni_cuda_facts *facts, const struct qni_op *op,
                                        const struct qni_cuda_kernel *kernel,
                                        const struct qni_cuda_costs *costs, int64_t m);
double qni_cuda_predict(const struct qni_cuda_costs *costs, const struct qni_cuda_terms *terms);
/* Microseconds of m rows, by the model and by the memory's and the arithmetic's rated speed. */
double qni_cuda_cost(const struct qni_cuda_facts *facts, const struct qni_op *op,
                     const struct qni_cuda_kernel *kernel, int64_t m);
double qni_cuda_roofline(const struct qni_cuda_facts *facts, const struct qni_op *op);

/* qn_cuda_get_cost() and qn_cuda_set_cost() for rows to choose from; arguments are not NULL. Each
 * line that some row of this GPU has, in the order of the rows; QN_E_NOT_FOUND past the end. */
qn_status qni_cuda_cost_get(const struct qni_cuda *cuda, const struct qni_cuda_kernel *rows,
                            int32_t n_rows, int32_t i, qn_cuda_cost *cost, qn_error *err);
qn_status qni_cuda_cost_set(struct qni_cuda *cuda, const struct qni_cuda_kernel *rows,
                            int32_t n_rows, const qn_cuda_cost *cost, qn_error *err);

/* The bits of a code as it lies in the layout: 4 or 8. */
int32_t qni_cuda_bits_of(const struct qni_cuda_kernel *k);

#endif
