/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of decode_float_rows.cuh for integers of 4 and 8 bits and e4m3. */
#include "decode_float_rows.cuh"

QNI_DECODE_ROWS(qni_matmul_f16_q4frag_mr8_sm80, F16_Q4, 1)
QNI_DECODE_ROWS(qni_matmul_f16_q4frag_mr16_sm80, F16_Q4, 2)
QNI_DECODE_ROWS(qni_matmul_bf16_q4frag_mr8_sm80, BF16_Q4, 1)
QNI_DECODE_ROWS(qni_matmul_bf16_q4frag_mr16_sm80, BF16_Q4, 2)
QNI_DECODE_ROWS(qni_matmul_f16_q8frag_mr8_sm80, F16_Q8, 1)
QNI_DECODE_ROWS(qni_matmul_f16_q8frag_mr16_sm80, F16_Q8, 2)
QNI_DECODE_ROWS(qni_matmul_bf16_q8frag_mr8_sm80, BF16_Q8, 1)
QNI_DECODE_ROWS(qni_matmul_bf16_q8frag_mr16_sm80, BF16_Q8, 2)
QNI_DECODE_ROWS(qni_matmul_f16_t8frag_mr8_sm80, F16_E4M3, 1)
QNI_DECODE_ROWS(qni_matmul_f16_t8frag_mr16_sm80, F16_E4M3, 2)
QNI_DECODE_ROWS(qni_matmul_bf16_t8frag_mr8_sm80, BF16_E4M3, 1)
QNI_DECODE_ROWS(qni_matmul_bf16_t8frag_mr16_sm80, BF16_E4M3, 2)
