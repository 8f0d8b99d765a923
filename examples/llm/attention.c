/* SPDX-License-Identifier: Apache-2.0 */
/* Positions are taken in chunks; sums are rescaled when a chunk has a larger score than those
 * before it, so that no row of scores as long as the context is kept. */
#include <string.h>

#include "attention.h"

enum { LANES = 16, CHUNK = 64, LARGEST_HEAD = 1024 };
#define LEAST (-1e30f) /* below any score */

typedef float lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t int_lanes __attribute__((vector_size(4 * LANES), aligned(4), may_alias));

/* A version of the loops for each level of instructions that the processor may have. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_THREAD__)
#define VERSIONS __attribute__((target_clones("default", "arch=x86-64-v3", "arch=x86-64-v4")))
#else
#define VERSIONS
#endif
#define INLINE static inline __attribute__((always_inline))

static size_t rounded(int32_t head_dim)
{
    return ((size_t)head_dim + LANES - 1) / LANES * LANES;
}

size_t attention_cache_floats(int32_t longest, int32_t head_dim)
{
    return ((size_t)longest + LANES - 1) / LANES * LANES * rounded(head_dim);
}

void attention_put(float *keys, float *values, int32_t position, int32_t head_dim, const float *key,
                   const float *value)
{
    float *column =
        keys + (size_t)(position / LANES) * rounded(head_dim) * LANES + position % LANES;
    float *row = values + (size_t)position * rounded(head_dim);
    for (int32_t i = 0; i < head_dim; i++)
        column[i * LANES] = key[i];
    memcpy(row, value, (size_t)head_dim * sizeof *row);
    memset(row + head_dim, 0, (rounded(head_dim) - (size_t)head_dim) * sizeof *row);
}

/* a[i] = the larger of a[i] and b[i]. */
INLINE void keep_larger(lanes *a, const lanes *b)
{
    float *to = (float *)a;
    const float *from = (const float *)b;
    for (int32_t i = 0; i < LANES; i++)
        to[i] = to[i] > from[i] ? to[i] : from[i];
}

/* x[i] = exp(x[i]) for x <= 0, those below -87 as -87; exactly 1 for 0. */
INLINE void exponentials(lanes *x)
{
    const float round = 12582912.0f; /* 1.5 * 2^23: sums with it have no fraction */
    const lanes least = (lanes){0} - 87.0f;
    keep_larger(x, &least);
    const lanes turned = *x * 1.44269504f + round, n = turned - round;
    const lanes r = *x - n * 0.693359375f + n * 2.12194440e-4f; /* ln 2 in two parts */
    const lanes power =
        1.0f +
        r * (1.0f + r * (0.5f + r * (0.166666657f + r * (0.0416660011f +
                                                         r * (0.00836278126f + r * 0.00138144f)))));
    *x = (lanes)((int_lanes)power + (((int_lanes)turned - 0x4b400000) << 23));
}

/* score[r][t] = scale * q[r] . key of position from + t, t in [0, n). */
INLINE void score_chunk(const struct attention *a, int32_t from, int32_t n, float (*score)[CHUNK])
{
    const float *const q0 = a->q[0], *const q1 = a->q[1], *const q2 = a->q[2], *const q3 = a->q[3];
    for (int32_t t = 0; t < n; t += LANES) {
        const size_t block = (size_t)((from + t) / LANES) * rounded(a->head_dim) * LANES;
        const float *k = a->keys + block, *values = a->values + block; /* of the same positions */
        lanes dot0 = {0}, dot1 = {0}, dot2 = {0}, dot3 = {0};
        for (int32_t i = 0; i < a->head_dim; i++) {
            const lanes column = *(const lanes *)(k + (size_t)i * LANES);
            __builtin_prefetch(values + (size_t)i * LANES); /* mix_chunk() reads them in strides */
            dot0 += column * q0[i];
            dot1 += column * q1[i];
            dot2 += column * q2[i];
            dot3 += column * q3[i];
        }
        *(lanes *)(score[0] + t) = dot0 * a->scale;
        *(lanes *)(score[1] + t) = dot1 * a->scale;
        *(lanes *)(score[2] + t) = dot2 * a->scale;
        *(lanes *)(score[3] + t) = dot3 * a->scale;
    }
}

/* Scores become weights relative to the largest so far, those outside of [begin, end) zero; returns
 * the factor of what was summed before. */
INLINE float weigh_chunk(int32_t begin, int32_t end, int32_t n, float *score, float *most,
                         lanes *sum)
{
    const int32_t n_lanes = (n + LANES - 1) / LANES * LANES;
    for (int32_t t = 0; t < begin && t < n_lanes; t++)
        score[t] = LEAST;
    for (int32_t t = end < 0 ? 0 : end; t < n_lanes; t++)
        score[t] = LEAST;
    lanes largest = (lanes){0} + *most, factor = largest;
    for (int32_t t = 0; t < n_lanes; t += LANES)
        keep_larger(&largest, (const lanes *)(score + t));
    for (int32_t i = 0; i < LANES; i++)
        *most = largest[i] > *most ? largest[i] : *most;
    factor -= *most;
    exponentials(&factor);
    *sum *= factor;
    for (int32_t t = 0; t < n_lanes; t += LANES) {
        lanes *weight = (lanes *)(score + t);
        *weight -= *most;
        exponentials(weight);
    }
    for (int32_t t = 0; t < begin && t < n_lanes; t++)
        score[t] = 0.0f;
    for (int32_t t = end < 0 ? 0 : end; t < n_lanes; t++)
        score[t] = 0.0f;
    for (int32_t t = 0; t < n_lanes; t += LANES)
        *sum += *(const lanes *)(score + t);
    return factor[0];
}

/* mixed[r] = mixed[r] * factor[r] + sum of score[r][t] * value of position from + t. */
INLINE void mix_chunk(const struct attention *a, int32_t from, int32_t n,
                      const float (*score)[CHUNK], const float *factor,
                      float (*mixed)[LARGEST_HEAD])
{
    const size_t wide = rounded(a->head_dim);
    for (size_t i = 0; i < wide; i += LANES) {
        const float *v = a->values + (size_t)from * wide + i;
        lanes sum0 = *(lanes *)(mixed[0] + i) * factor[0],
              sum1 = *(lanes *)(mixed[1] + i) * factor[1];
        lanes sum2 = *(lanes *)(mixed[2] + i) * factor[2],
              sum3 = *(lanes *)(mixed[3] + i) * factor[3];
        for (int32_t t = 0; t < n; t++, v += wide) {
            const lanes value = *(const lanes *)v;
            sum0 += value * score[0][t];
            sum1 += value * score[1][t];
            sum2 += value * score[2][t];
            sum3 += value * score[3][t];
        }
        *(lanes *)(mixed[0] + i) = sum0;
        *(lanes *)(mixed[1] + i) = sum1;
        *(lanes *)(mixed[2] + i) = sum2;
        *(lanes *)(mixed[3] + i) = sum3;
    }
}

VERSIONS void attention_rows(const struct attention *a)
{
    float score[ATTENTION_ROWS][CHUNK], mixed[ATTENTION_ROWS][LARGEST_HEAD];
    float most[ATTENTION_ROWS], factor[ATTENTION_ROWS];
    lanes sum[ATTENTION_ROWS] = {{0}};
    int32_t first = a->begin[0], last = a->end[0];
    for (int32_t r = 0; r < ATTENTION_ROWS; r++) {
        first = a->begin[r] < first ? a->begin[r] : first;
        last = a->end[r] > last ? a->end[r] : last;
        most[r] = LEAST;
        memset(mixed[r], 0, rounded(a->head_dim) * sizeof(float));
    }
    for (int32_t from = first / CHUNK * CHUNK; from < last; from += CHUNK) {
        const int32_t n = last - from < CHUNK ? last - from : CHUNK;
        score_chunk(a, from, n, score);
        for (int32_t r = 0; r < ATTENTION_ROWS; r++)
            factor[r] =
                weigh_chunk(a->begin[r] - from, a->end[r] - from, n, score[r], &most[r], &sum[r]);
        mix_chunk(a, from, n, (const float(*)[CHUNK])score, factor, mixed);
    }
    for (int32_t r = 0; r < ATTENTION_ROWS; r++) {
        float all = 0.0f;
        for (int32_t i = 0; i < LANES; i++)
            all += sum[r][i];
        for (int32_t i = 0; i < a->head_dim; i++)
            a->out[r][i] = mixed[r][i] / all;
    }
}
