/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of decode_quads.cuh for tables of 16 values. */
#include "decode_quads.cuh"

#define DECODE_KERNEL(name, format)                                                                \
    extern "C" int32_t name(const struct qni_cuda_product *p, const struct qni_cuda_experts *,     \
                            const struct qni_cuda_launch *how)                                     \
    {                                                                                              \
        return p->w.table_is_short ? launch<(format) | T4>(p, how)                                 \
                                   : launch<(format) | T4 | MANY>(p, how);                         \
    }
DECODE_KERNEL(qni_matmul_f16_t4frag_mr32_sm90a, F16_Q4)
DECODE_KERNEL(qni_matmul_bf16_t4frag_mr32_sm90a, BF16_Q4)
