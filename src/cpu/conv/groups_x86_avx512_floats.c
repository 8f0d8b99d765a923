/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of grouped convolutions on vectors of 512 bits: simd/groups.h has the arithmetic,
 * groups_kernel.h the contract. 16 sums hide the 4 cycles of 2 multiply-adds each and leave
 * registers for weights. */
#include <immintrin.h>
#include <string.h>

#include "kernel.h"

#ifndef __AVX512F__
#error "needs the flags of an AVX-512 file: see cmake/isa.cmake"
#endif

#define LANES                  16
#define TILE                   14
#define PAIR                   8
#define APART                  0
#define MADD(a, b, c)          FMA(a, b, c)
#define FMA(a, b, c)           ((vec)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#define HAS_FMA                1
#define SMALLER(a, b)          ((vec)_mm512_min_ps((__m512)(a), (__m512)(b)))
#define LARGER(a, b)           ((vec)_mm512_max_ps((__m512)(a), (__m512)(b)))
#define LARGER_INT(a, b)       ((ivec)_mm512_max_epi32((__m512i)(a), (__m512i)(b)))
#define SHUFFLE(v, which)      ((vec)_mm512_permutexvar_ps((__m512i)(which), (__m512)(v)))
#define REPEAT(at, n)          ((vec)repeat(at, n))
#define WIDEN_F16(src, n, dst) halves(src, n, dst)

static inline __attribute__((always_inline)) __m512 repeat(const float *at, const int n)
{
    if (n == 4)
        return _mm512_broadcast_f32x4(_mm_loadu_ps(at));
    if (n == 2) {
        double two;
        memcpy(&two, at, sizeof two);
        return _mm512_castpd_ps(_mm512_set1_pd(two));
    }
    return _mm512_set1_ps(*at);
}

static inline void halves(const uint16_t *src, int64_t n, float *dst)
{
    for (int64_t i = 0; i < n; i += 16) {
        const __mmask16 mask = n - i < 16 ? (__mmask16)((1u << (n - i)) - 1) : (__mmask16)0xffff;
        const __m256i h = _mm256_maskz_loadu_epi16(mask, src + i);
        _mm512_mask_storeu_ps(dst + i, mask, _mm512_cvtph_ps(h));
    }
}

enum { VECTOR = LANES };

#include "../simd/groups.h"

bool qni_groups_f32_rows_mr8_avx512(const struct qni_groups_tile *tile)
{
    return plain_groups(tile);
}
bool qni_groups_q8_rows_mr8_avx512(const struct qni_groups_tile *tile)
{
    return plain_groups(tile);
}
bool qni_groups_q8_rows_row_avx512(const struct qni_groups_tile *tile)
{
    return row_groups(tile);
}
bool qni_groups_q8b_rows_block_avx512(const struct qni_groups_tile *tile)
{
    return block_groups(tile);
}
const struct qni_groups_helpers qni_groups_helpers_avx512 = {pixels_of, panel_of, VECTOR, false};
