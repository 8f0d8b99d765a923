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

/* Every word holds two int16: the sum of the products of the two, in int32. */
QNI_TEMPLATE qni_i32x4 qni_i16x8_dot(qni_i32x4 a, qni_i32x4 b)
{
#if defined(__SSE2__)
    return (qni_i32x4)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__aarch64__)
    const int16x8_t x = (int16x8_t)a, y = (int16x8_t)b;
    return (qni_i32x4)vpaddq_s32(vmull_s16(vget_low_s16(x), vget_low_s16(y)),
                                 vmull_high_s16(x, y));
#else
    const qni_i32x4 low_a = (qni_i32x4)((qni_u32x4)a << 16) >> 16;
    const qni_i32x4 low_b = (qni_i32x4)((qni_u32x4)b << 16) >> 16;
    return low_a * low_b + (a >> 16) * (b >> 16);
#endif
}

#endif
