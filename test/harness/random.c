/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of a case: splitmix64 from its seed, the same on every machine. */
#include "harness.h"

uint64_t check_random_next(struct check_random *r)
{
    uint64_t z = r->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

int64_t check_random_in(struct check_random *r, int64_t lo, int64_t hi)
{
    return lo + (int64_t)(check_random_next(r) % (uint64_t)(hi - lo + 1));
}

bool check_random_chance(struct check_random *r, int32_t percent)
{
    return check_random_in(r, 0, 99) < percent;
}

/* The sum of four even distributions on (-1/2, 1/2) has variance 1/3. */
double check_random_normal(struct check_random *r)
{
    double sum = 0.0;
    for (int i = 0; i < 4; i++)
        sum += (double)(check_random_next(r) >> 11) * 0x1p-53 - 0.5;
    return sum * 1.7320508075688772;
}

int64_t check_random_of(struct check_random *r, const int64_t *list, size_t n)
{
    return list[check_random_next(r) % n];
}
