/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers for tests: splitmix64, where every 64-bit state is a good one. */
#ifndef TEST_UNIT_RANDOM_H
#define TEST_UNIT_RANDOM_H

#include <stdint.h>

static inline uint64_t unit_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static inline int64_t unit_in(uint64_t *state, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(unit_random(state) % (uint64_t)(hi - lo + 1));
}

/* Roughly normal: the sum of twelve uniform numbers. */
static inline float unit_normal(uint64_t *state)
{
    double sum = -6.0;
    for (int i = 0; i < 12; i++)
        sum += (double)(unit_random(state) >> 11) * 0x1p-53;
    return (float)sum;
}

#endif
