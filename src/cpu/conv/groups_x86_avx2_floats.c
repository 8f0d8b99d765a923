/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of grouped convolutions on vectors of 256 bits: simd/groups.h has the arithmetic,
 * groups_kernel.h the contract. 8 sums hide the 4 cycles of 2 multiply-adds each. */
#include <immintrin.h>
#include <string.h>

#include "../../base/half.h"
#include "kernel.h"

#ifndef __AVX2__
#error "needs the flags of an AVX2 file: see cmake/isa.cmake"
#endif

#define LANES                  8
#define TILE                   12
#define PAIR                   6
#define APART                  6
#define MADD(a, b, c)          FMA(a, b, c)
#define FMA(a, b, c)           ((vec)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#define HAS_FMA                1
#define SMALLER(a, b)          ((vec)_mm256_min_ps((__m256)(a), (__m256)(b)))
#define LARGER(a, b)           ((vec)_mm256_max_ps((__m256)(a), (__m256)(b)))
#define LARGER_INT(a, b)       ((ivec)_mm256_max_epi32((__m256i)(a), (__m256i)(b)))
#define SHUFFLE(v, which)      ((vec)_mm256_permutevar8x32_ps((__m256)(v), (__m256i)(which)))
#define REPEAT(at, n)          ((vec)repeat(at, n))
#define WIDEN_F16(src, n, dst) halves(src, n, dst)

static inline __attribute__((always_inline)) __m256 repeat(const float *at, const int n)
{
    if (n == 4)
        return _mm256_broadcast_ps((const __m128 *)(const void *)at);
    if (n == 2) {
        double two;
        memcpy(&two, at, sizeof two);
        return _mm256_castpd_ps(_mm256_set1_pd(two));
    }
    return _mm256_set1_ps(*at);
}

static inline void halves(const uint16_t *src, int64_t n, float *dst)
{
    int64_t i = 0;
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(
            dst + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(src + i))));
    for (; i < n; i++)
        dst[i] = qni_f32_from_f16(src[i]);
}

enum { VECTOR = LANES };

#include "../simd/groups.h"

bool qni_groups_f32_rows_mr8_avx2(const struct qni_groups_tile *tile)
{
    return plain_groups(tile);
}
bool qni_groups_q8_rows_mr8_avx2(const struct qni_groups_tile *tile)
{
    return plain_groups(tile);
}
bool qni_groups_q8_rows_row_avx2(const struct qni_groups_tile *tile)
{
    return row_groups(tile);
}
bool qni_groups_q8b_rows_block_avx2(const struct qni_groups_tile *tile)
{
    return block_groups(tile);
}
const struct qni_groups_helpers qni_groups_helpers_avx2 = {pixels_of, panel_of, VECTOR, false};
