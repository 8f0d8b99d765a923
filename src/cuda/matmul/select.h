/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels serve an operation. Pure: rows, facts of a GPU and an operation give a choice, so a
 * test asks for any GPU on any machine. */
#ifndef QNI_CUDA_MATMUL_SELECT_H
#define QNI_CUDA_MATMUL_SELECT_H

#include "../backend.h"
#include "../device.h"
#include "cost.h"

/* The rows that were built in; NULL past the end. */
const struct qni_cuda_kernel *qni_cuda_kernel_at(int32_t i);

/* Rows to choose from, on this GPU. */
struct qni_cuda_offer {
    const struct qni_cuda_kernel *rows;
    int32_t n_rows;
    const struct qni_cuda_facts *facts;
};

/* Fills kernels, m_from, is_fallback, times and note; sizes are qni_cuda_select()'s. op is no
 * depthwise convolution. QN_E_UNSUPPORTED; tell may be NULL. */
qn_status qni_cuda_choose(const struct qni_cuda_offer *offer, const struct qni_op *op,
                          struct qni_cuda_choice *choice, qni_refusal_fn tell, void *arg);
/* Chooses for a depthwise convolution, which one kernel serves. */
qn_status qni_cuda_choose_depthwise(const struct qni_cuda_offer *offer, const struct qni_op *op,
                                    struct qni_cuda_choice *choice, qni_refusal_fn tell, void *arg);
/* What is built in, on this GPU. */
struct qni_cuda_offer qni_cuda_offer_of(const struct qni_cuda_facts *facts);

#endif
