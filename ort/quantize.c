/* SPDX-License-Identifier: Apache-2.0 */
/* Two passes over x, in chunks that the context's threads share. */
#include "quantize.h"

#include <math.h>

enum { CHUNK = 1 << 14, LANES = 16, MAX_PARTS = 64 };

struct pass {
    const float *x;
    int64_t count, step; /* Elements, and elements of a part. */
    float lo[MAX_PARTS], hi[MAX_PARTS];
    float scale, zero;
    uint8_t *codes;
};

static int64_t end_of(const struct pass *p, int64_t part)
{
    int64_t end = (part + 1) * p->step;
    return end < p->count ? end : p->count;
}

static void range_of_part(void *arg, int32_t part)
{
    struct pass *p = arg;
    float lo[LANES] = {0}, hi[LANES] = {0};
    int64_t i = part * p->step, end = end_of(p, part);
    for (; i + LANES <= end; i += LANES)
        for (int j = 0; j < LANES; j++) {
            float x = p->x[i + j];
            lo[j] = x < lo[j] ? x : lo[j];
            hi[j] = x > hi[j] ? x : hi[j];
        }
    for (; i < end; i++) {
        lo[0] = p->x[i] < lo[0] ? p->x[i] : lo[0];
        hi[0] = p->x[i] > hi[0] ? p->x[i] : hi[0];
    }
    for (int j = 1; j < LANES; j++) {
        lo[0] = lo[j] < lo[0] ? lo[j] : lo[0];
        hi[0] = hi[j] > hi[0] ? hi[j] : hi[0];
    }
    p->lo[part] = lo[0];
    p->hi[part] = hi[0];
}

/* Adding and taking away 1.5 * 2^23 rounds to the nearest integer, ties to even: numbers here are
 * below 2^22 after the clamp, which changes no code. */
static inline uint8_t code_of(float x, float scale, float zero)
{
    const float rounder = 12582912.0f;
    float v = x / scale;
    v = v < 512.0f ? v : 512.0f;
    v = v > -512.0f ? v : -512.0f;
    v = (v + rounder) - rounder + zero;
    v = v < 255.0f ? v : 255.0f;
    v = v > 0.0f ? v : 0.0f;
    return (uint8_t)(int32_t)v;
}

static void codes_of_part(void *arg, int32_t part)
{
    const struct pass *p = arg;
    const float scale = p->scale, zero = p->zero;
    int64_t first = part * p->step, end = end_of(p, part);
    const float *restrict x = p->x;
    uint8_t *restrict codes = p->codes;
    for (int64_t i = first; i < end; i++)
        codes[i] = code_of(x[i], scale, zero);
}

/* In how many parts; their size is a multiple of LANES. */
static int32_t divide(struct pass *p)
{
    int64_t parts = (p->count + CHUNK - 1) / CHUNK;
    parts = parts < MAX_PARTS ? parts : MAX_PARTS;
    parts = parts > 0 ? parts : 1;
    p->step = (p->count + parts - 1) / parts;
    p->step = (p->step + LANES - 1) / LANES * LANES;
    return p->step > 0 ? (int32_t)((p->count + p->step - 1) / p->step) : 0;
}

void quantize_range(const qn_ctx *ctx, const float *x, int64_t count, float *scale, uint8_t *zero)
{
    struct pass p = {.x = x, .count = count};
    int32_t parts = divide(&p);
    float lo = 0.0f, hi = 0.0f;
    qn_parallel_for(ctx, parts, range_of_part, &p);
    for (int32_t i = 0; i < parts; i++) {
        lo = p.lo[i] < lo ? p.lo[i] : lo;
        hi = p.hi[i] > hi ? p.hi[i] : hi;
    }
    *scale = hi == lo ? 1.0f : (hi - lo) / 255.0f;
    float at = rintf((0.0f - lo) / *scale);
    at = at < 255.0f ? at : 255.0f;
    *zero = (uint8_t)(at > 0.0f ? at : 0.0f);
}

void quantize_codes(const qn_ctx *ctx, const float *x, int64_t count, float scale, uint8_t zero,
                    uint8_t *codes)
{
    struct pass p = {.x = x, .count = count, .scale = scale, .zero = zero, .codes = codes};
    qn_parallel_for(ctx, divide(&p), codes_of_part, &p);
}
