/* SPDX-License-Identifier: Apache-2.0 */
/* Checked arithmetic on sizes. True means the result is good; on false nothing may be used. */
#ifndef QNI_BASE_SIZE_H
#define QNI_BASE_SIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

static inline bool qni_size_add(size_t a, size_t b, size_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}
static inline bool qni_size_mul(size_t a, size_t b, size_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}
static inline bool qni_i64_add(int64_t a, int64_t b, int64_t *sum)
{
    return !__builtin_add_overflow(a, b, sum);
}
static inline bool qni_i64_mul(int64_t a, int64_t b, int64_t *product)
{
    return !__builtin_mul_overflow(a, b, product);
}
/* For a >= 0, b > 0. */
static inline int64_t qni_ceil_div(int64_t a, int64_t b)
{
    return a / b + (a % b != 0);
}
/* The caller knows that it cannot overflow. */
static inline size_t qni_round_up(size_t a, size_t multiple)
{
    return (a + multiple - 1) / multiple * multiple;
}
static inline int64_t qni_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}
static inline int64_t qni_max(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

#endif
