/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers that look like a trained model's, the same on every machine: integer arithmetic
 * and exact float products only.
 *
 * A normal number is the sum of four 16-bit uniforms (Irwin-Hall: standard deviation
 * 65536 / sqrt(3), tails to 3.46 of it); the long tails that models have are put on top: rows of
 * different size, every 257th column twice as large, one weight in 4096 three times. */
#include <string.h>

#include "problem.h"

uint64_t random_next(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9e3779b97f4a7c15);
    z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
    return z ^ z >> 31;
}

/* The sum of the four quarters, centred: an integer with deviation 37837. */
static int32_t bell(uint64_t bits)
{
    return (int32_t)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) +
                     (bits >> 48)) -
           131070;
}

static uint16_t bf16_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

float bf16_value(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &wide, sizeof value);
    return value;
}

void random_weight_row(uint64_t seed, int64_t row, int64_t k, uint16_t *out)
{
    uint64_t state = seed ^ (uint64_t)row * UINT64_C(0xd1342543de82ef95);
    const float size = (float)(8 + random_next(&state) % 16) * (0.02f / 16 / 37837);
    for (int64_t i = 0; i < k; i++) {
        const uint64_t bits = random_next(&state);
        float value = (float)bell(bits) * size;
        if (i % 257 == 7)
            value *= 2;
        if ((bits & 0xfff) == 0)
            value *= 3;
        out[i] = bf16_bits(value);
    }
}

void random_activations(uint64_t seed, int64_t n, int64_t columns, float *out)
{
    uint64_t state = seed;
    for (int64_t i = 0; i < n; i++) {
        const float value = (float)bell(random_next(&state)) * (1.0f / 37837);
        out[i] = columns > 0 && i % columns % 97 == 11 ? 6 * value : value;
    }
}
