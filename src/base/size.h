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
/* One more part of a buffer, of `count` elements: *offset, behind what there is. Parts are whole
 * cache lines. */
static inline bool qni_size_part(size_t *at, size_t count, size_t bytes_each, size_t *offset)
{
    size_t bytes;
    *offset = *at;
    return qni_size_mul(count, bytes_each, &bytes) && bytes <= SIZE_MAX / 2 &&
           qni_size_add(*at, qni_round_up(bytes, 64), at);
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
