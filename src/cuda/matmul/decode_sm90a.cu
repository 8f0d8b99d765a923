/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of decode_quads.cuh for integers of 4 and 8 bits and e4m3. */
#include "decode_quads.cuh"

#define DECODE_KERNEL(name, format)                                                                \
    extern "C" int32_t name(const struct qni_cuda_product *p, const struct qni_cuda_experts *,     \
                            const struct qni_cuda_launch *how)                                     \
    {                                                                                              \
        return launch<format>(p, how);                                                             \
    }
DECODE_KERNEL(qni_matmul_f16_q4frag_mr32_sm90a, F16_Q4)
DECODE_KERNEL(qni_matmul_bf16_q4frag_mr32_sm90a, BF16_Q4)
DECODE_KERNEL(qni_matmul_f16_q8frag_mr32_sm90a, F16_Q8)
DECODE_KERNEL(qni_matmul_bf16_q8frag_mr32_sm90a, BF16_Q8)
DECODE_KERNEL(qni_matmul_f16_t8frag_mr32_sm90a, F16_E4M3)
DECODE_KERNEL(qni_matmul_bf16_t8frag_mr32_sm90a, BF16_E4M3)
