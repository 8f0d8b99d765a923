/* SPDX-License-Identifier: Apache-2.0 */
/* The decode kernel of Hopper, which stands behind the rows of decode_sm80.cu for 2 to 16 rows of
 * x. */
#ifndef QNI_CUDA_MATMUL_DECODE_SM90A_CUH
#define QNI_CUDA_MATMUL_DECODE_SM90A_CUH

#include "../kernel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* format: F16_Q4, BF16_Q4, F16_Q8 or BF16_Q8 of decode_float.cuh. 0: not a product or a GPU for it,
 * nothing was done. 1: *status is what the launch came to. */
int32_t qni_decode_sm90a(const struct qni_cuda_product *product, int32_t format,
                         const struct qni_cuda_launch *launch, int32_t *status);

#ifdef __cplusplus
}
#endif
#endif
