/* SPDX-License-Identifier: Apache-2.0 */
/* Vectors of 16 bytes, in the compilers' common vector dialect: every target has them, if need be
 * as plain words. One step is spelled out per architecture, because no dialect names it: the
 * product of pairs of int16, which is a single instruction of the baseline of x86-64 and a few of
 * Armv8-A. */
#ifndef QNI_CPU_SIMD_PORTABLE_H
#define QNI_CPU_SIMD_PORTABLE_H

#include <stdint.h>
#include <string.h>

#include "../../base/compiler.h"
#include "../../base/exact.h"

#if defined(__SSE2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

typedef float qni_f32x4 QNI_VECTOR(16);
typedef int32_t qni_i32x4 QNI_VECTOR(16);
typedef uint32_t qni_u32x4 QNI_VECTOR(16);
typedef int16_t qni_i16x8 QNI_VECTOR(16);
typedef uint16_t qni_u16x8 QNI_VECTOR(16);
typedef uint8_t qni_u8x16 QNI_VECTOR(16);

QNI_TEMPLATE qni_f32x4 qni_f32x4_load(const float *p)
{
    qni_f32x4 v;
    memcpy(&v, p, sizeof v);
    return v;
}
QNI_TEMPLATE void qni_f32x4_store(float *p, qni_f32x4 v)
{
    memcpy(p, &v, sizeof v);
}
QNI_TEMPLATE qni_i32x4 qni_i32x4_load(const void *p)
{
    qni_i32x4 v;
    memcpy(&v, p, sizeof v);
    return v;
}
QNI_TEMPLATE void qni_i32x4_store(void *p, qni_i32x4 v)
{
    memcpy(p, &v, sizeof v);
}
QNI_TEMPLATE qni_f32x4 qni_f32x4_set(float a)
{
    return (qni_f32x4){a, a, a, a};
}
QNI_TEMPLATE qni_i32x4 qni_i32x4_set(int32_t a)
{
    return (qni_i32x4){a, a, a, a};
}
QNI_TEMPLATE qni_f32x4 qni_f32x4_from(qni_i32x4 v)
{
    return __builtin_convertvector(v, qni_f32x4);
}

/* fma(a, b, c) of four, rounded once (qni_fmaf). Without the instruction: the product is exact in
 * double and the sum s is the exact one, rounded. Rounding s again to f32 goes wrong only where s
 * is the middle of two floats, which is seen from its bits: the 29 that f32 lacks are 1 0...0, or
 * f32 is subnormal and lacks more. These lanes are rare and take the long way. */
QNI_TEMPLATE qni_f32x4 qni_f32x4_fma(qni_f32x4 a, qni_f32x4 b, qni_f32x4 c)
{
#if defined(__FMA__)
    return _mm_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
    return vfmaq_f32(c, a, b);
#elif defined(__SSE2__)
    /* Words of a double: low, high. Ties: the low word. Small: the high one, below 2^-126. */
    const __m128i bits = _mm_set_epi32(0x7fffffff, 0x1fffffff, 0x7fffffff, 0x1fffffff);
    const __m128i tie = _mm_set_epi32(-1, 0x10000000, -1, 0x10000000);
    const __m128i normal = _mm_set_epi32(0x38100000, INT32_MIN, 0x38100000, INT32_MIN);
    const __m128 a2 = _mm_movehl_ps(a, a), b2 = _mm_movehl_ps(b, b), c2 = _mm_movehl_ps(c, c);
    const __m128d low = _mm_add_pd(_mm_mul_pd(_mm_cvtps_pd(a), _mm_cvtps_pd(b)), _mm_cvtps_pd(c));
    const __m128d high =
        _mm_add_pd(_mm_mul_pd(_mm_cvtps_pd(a2), _mm_cvtps_pd(b2)), _mm_cvtps_pd(c2));
    const __m128i l = _mm_and_si128(_mm_castpd_si128(low), bits);
    const __m128i h = _mm_and_si128(_mm_castpd_si128(high), bits);
    const __m128i rare =
        _mm_or_si128(_mm_or_si128(_mm_cmpeq_epi32(l, tie), _mm_cmpeq_epi32(h, tie)),
                     _mm_or_si128(_mm_cmpgt_epi32(normal, l), _mm_cmpgt_epi32(normal, h)));
    if (QNI_LIKELY(_mm_movemask_epi8(rare) == 0))
        return _mm_movelh_ps(_mm_cvtpd_ps(low), _mm_cvtpd_ps(high));
    return (qni_f32x4){qni_fmaf(a[0], b[0], c[0]), qni_fmaf(a[1], b[1], c[1]),
                       qni_fmaf(a[2], b[2], c[2]), qni_fmaf(a[3], b[3], c[3])};
#else
    return (qni_f32x4){qni_fmaf(a[0], b[0], c[0]), qni_fmaf(a[1], b[1], c[1]),
                       qni_fmaf(a[2], b[2], c[2]), qni_fmaf(a[3], b[3], c[3])};
#endif
}

/* Every word holds two int16: the sum of the products of the two, in int32. */
QNI_TEMPLATE qni_i32x4 qni_i16x8_dot(qni_i32x4 a, qni_i32x4 b)
{
#if defined(__SSE2__)
    return (qni_i32x4)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
    const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
    return (qni_i32x4)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)), vmull_high_s16(x, y));
#else
    const qni_i32x4 low_a = (qni_i32x4)((qni_u32x4)a << 16) >> 16;
    const qni_i32x4 low_b = (qni_i32x4)((qni_u32x4)b << 16) >> 16;
    return low_a * low_b + (a >> 16) * (b >> 16);
#endif
}

/* Four rows of words to four columns. */
QNI_TEMPLATE void qni_u32x4_transpose(qni_u32x4 v[4])
{
    const qni_u32x4 a = QNI_PICK(v[0], v[1], 0, 4, 1, 5), b = QNI_PICK(v[0], v[1], 2, 6, 3, 7);
    const qni_u32x4 c = QNI_PICK(v[2], v[3], 0, 4, 1, 5), d = QNI_PICK(v[2], v[3], 2, 6, 3, 7);
    v[0] = QNI_PICK(a, c, 0, 1, 4, 5);
    v[1] = QNI_PICK(a, c, 2, 3, 6, 7);
    v[2] = QNI_PICK(b, d, 0, 1, 4, 5);
    v[3] = QNI_PICK(b, d, 2, 3, 6, 7);
}

#endif
