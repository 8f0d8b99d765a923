/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of decode_float_rows.cuh for tables of 16 values. */
#include "decode_float_rows.cuh"

#define DECODE_KERNEL(name, format, mt)                                                            \
    extern "C" int32_t name(const struct qni_cuda_product *p,                                      \
                            const struct qni_cuda_experts *experts,                                \
                            const struct qni_cuda_launch *how)                                     \
    {                                                                                              \
        return p->w.table_is_short ? launch<(format) | T4, mt>(p, experts, how)                    \
                                   : launch<(format) | T4 | MANY, mt>(p, experts, how);            \
    }
DECODE_KERNEL(qni_matmul_f16_t4frag_mr8_sm80, F16_Q4, 1)
DECODE_KERNEL(qni_matmul_f16_t4frag_mr16_sm80, F16_Q4, 2)
DECODE_KERNEL(qni_matmul_bf16_t4frag_mr8_sm80, BF16_Q4, 1)
DECODE_KERNEL(qni_matmul_bf16_t4frag_mr16_sm80, BF16_Q4, 2)
