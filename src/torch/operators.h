/* SPDX-License-Identifier: Apache-2.0 */
/* The operators as torch calls them (torch_operator in abi.h); register.c has their schemas. */
#ifndef QUERN_SRC_TORCH_OPERATORS_H
#define QUERN_SRC_TORCH_OPERATORS_H

#include <stdint.h>

void qni_torch_matmul(uint64_t *stack, uint64_t n_in, uint64_t n_out);
void qni_torch_grouped(uint64_t *stack, uint64_t n_in, uint64_t n_out);
void qni_torch_conv2d(uint64_t *stack, uint64_t n_in, uint64_t n_out);
void qni_torch_conv_transpose2d(uint64_t *stack, uint64_t n_in, uint64_t n_out);
void qni_torch_embedding(uint64_t *stack, uint64_t n_in, uint64_t n_out);
void qni_torch_dense(uint64_t *stack, uint64_t n_in, uint64_t n_out);

#endif
