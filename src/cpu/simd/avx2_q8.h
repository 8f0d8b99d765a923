/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x packed codes with AVX2: everything but the integer products. Contract and
 * operand layouts: matmul/kernel.h; the float steps: docs/numerics.md. */
#ifndef QNI_CPU_SIMD_AVX2_Q8_H
#define QNI_CPU_SIMD_AVX2_Q8_H

#include "../../base/compiler.h"
#include "../matmul/kernel.h"
#include "avx2.h"

enum { NIBBLES = 0, NIBBLE_TABLE = 1, BYTES = 2 };

/* A segment of a panel, and the first of the rows it meets. */
struct segment_place {
    int64_t panel, row, group, segment, unit;
};

/* Sums of two halves of a panel, and of y, for some rows. */
typedef __m256i qni_dots[2];
typedef __m256 qni_floats[2];

static inline const int32_t *sums_of(const struct qni_matmul_tile *t,
                                     const struct segment_place *at)
{
    const int64_t row = at->panel * t->n_segments + at->segment;
    return t->sums == NULL ? NULL : t->sums + row * QNI_PANEL;
}

static inline __m256i load_i32(const int32_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

/* Four positions of a row. */
static inline __m256i quad(const int8_t *a)
{
    int32_t four;
    memcpy(&four, a, sizeof four);
    return _mm256_set1_epi32(four);
}

/* Units of a segment that begins at at->unit, in a group that ends at group_end. */
static inline int64_t segment_end(const struct qni_matmul_tile *t, int64_t unit, int64_t group_end)
{
    return unit + (group_end - unit < t->segment_units ? group_end - unit : t->segment_units);
}

static inline int64_t group_end(const struct qni_matmul_tile *t, int64_t group)
{
    const int64_t end = (group + 1) * t->group_units;
    return end < t->units ? end : t->units;
}

QNI_TEMPLATE void load_scale(const struct qni_matmul_tile *t, const struct segment_place *at,
                             const int kind, __m256 *scale)
{
    QNI_UNROLL
    for (int h = 0; h < 2; h++) {
        scale[h] = qni_load8(t->scale, at->panel * t->n_groups + at->group, h, t->scale_is_f16);
        if (kind == NIBBLE_TABLE && t->table8_doubled)
            scale[h] = _mm256_mul_ps(scale[h], _mm256_set1_ps(0.5f));
    }
}

QNI_TEMPLATE void add_q8(const struct qni_matmul_tile *t, const struct segment_place *at,
                         const qni_dots *dot, const __m256 *scale, const int mr, qni_floats *acc)
{
    const int32_t *const sums = sums_of(t, at);
    const int64_t group = at->panel * t->n_groups + at->group;
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        const size_t fact = (size_t)(at->row + i) * t->ld_segment + (size_t)at->segment;
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i d = dot[i][h];
            if (t->x_zero != 0)
                d = _mm256_sub_epi32(
                    d, _mm256_mullo_epi32(_mm256_set1_epi32(t->x_zero), load_i32(sums + 8 * h)));
            if (t->raw_i32) {
                acc[i][h] =
                    _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(acc[i][h]), d));
                continue;
            }
            acc[i][h] = _mm256_fmadd_ps(scale[h], _mm256_cvtepi32_ps(d), acc[i][h]);
            if (t->offset == NULL)
                continue;
            const int32_t zero = t->x_zero == 0 ? 0 : t->x_zero * t->counts[at->segment];
            acc[i][h] = _mm256_fmadd_ps(qni_load8(t->offset, group, h, t->scale_is_f16),
                                        _mm256_set1_ps((float)(t->a_sum[fact] - zero)), acc[i][h]);
        }
    }
}

QNI_TEMPLATE void add_q8b(const struct qni_matmul_tile *t, const struct segment_place *at,
                          const qni_dots *dot, const __m256 *scale, const int mr, qni_floats *acc)
{
    const int32_t *const sums = sums_of(t, at);
    const int64_t group = at->panel * t->n_groups + at->group;
    QNI_UNROLL
    for (int h = 0; h < 2; h++) {
        __m256 sum = _mm256_setzero_ps(), offset = _mm256_setzero_ps();
        if (t->a_offset != NULL)
            sum = _mm256_cvtepi32_ps(load_i32(sums + 8 * h));
        if (t->offset != NULL)
            offset = qni_load8(t->offset, group, h, t->scale_is_f16);
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            const size_t fact = (size_t)(at->row + i) * t->ld_segment + (size_t)at->segment;
            const __m256 sx = _mm256_set1_ps(t->a_scale[fact]), d = _mm256_cvtepi32_ps(dot[i][h]);
            __m256 term;
            if (t->a_offset != NULL)
                term =
                    _mm256_fmadd_ps(sx, d, _mm256_mul_ps(_mm256_set1_ps(t->a_offset[fact]), sum));
            else
                term = _mm256_mul_ps(sx, d);
            acc[i][h] = _mm256_fmadd_ps(scale[h], term, acc[i][h]);
            if (t->offset != NULL)
                acc[i][h] = _mm256_fmadd_ps(offset, _mm256_set1_ps(t->a_total[fact]), acc[i][h]);
        }
    }
}

/* A segment's products in floats. Q8 and Q8B differ in the facts of the rows, which tell which it
 * is. */
QNI_TEMPLATE void add_segment_sums(const struct qni_matmul_tile *t, const struct segment_place *at,
                                   const __m256 *scale, const int mr, const qni_dots *dot,
                                   qni_floats *acc)
{
    if (t->a_scale == NULL)
        add_q8(t, at, dot, scale, mr, acc);
    else
        add_q8b(t, at, dot, scale, mr, acc);
}

#endif
