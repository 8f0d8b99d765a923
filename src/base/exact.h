/* SPDX-License-Identifier: Apache-2.0 */
/* Float steps whose bits are the same on every machine: a fused multiply-add that needs no FMA
 * unit, rounding, and the exponential functions of the epilogue. None of them calls the C library,
 * whose results differ between versions and processors. Files that include this are compiled with
 * -ffp-contract=off, or nvcc's --fmad=false. */
#ifndef QNI_BASE_EXACT_H
#define QNI_BASE_EXACT_H

#include "compiler.h"
#include "half.h"

/*
 * a * b + c, rounded once. The product of two floats is exact in double (48 bits). The sum is
 * rounded to odd: if it is inexact and its last bit is even, it moves one unit towards the lost
 * part, so that the second rounding, to float, sees which side of a tie the exact sum lies on
 * (Boldo and Melquiond: p + 2 bits are enough, and 53 > 24 + 2).
 */
QNI_INLINE float qni_fmaf(float a, float b, float c)
{
#if defined(__CUDA_ARCH__)
    return __fmaf_rn(a, b, c);
#elif defined(__FMA__) || defined(__aarch64__)
    return __builtin_fmaf(a, b, c); /* one instruction, the same result */
#else
    const double p = (double)a * (double)b, z = (double)c;
    const double s = p + z;
    const double t = s - p;
    const double lost = (p - (s - t)) + (z - t); /* Knuth's two-sum */
    uint64_t bits;
    memcpy(&bits, &s, sizeof bits);
    const uint64_t finite = (bits & 0x7ff0000000000000u) != 0x7ff0000000000000u;
    /* away from zero, else towards it */
    const uint64_t odd_up = (uint64_t)((lost > 0.0) == (s > 0.0));
    const uint64_t move = finite & (uint64_t)(lost != 0.0) & ~bits & 1u;
    bits += move * (odd_up * 2u - 1u);
    double odd;
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
#endif
}

/* Nearest integer, ties to even, for |x| < 2^22 (larger values must be clamped before). The
 * compiler may not fold it: no -ffast-math here. */
QNI_INLINE float qni_rintf(float x)
{
    const float magic = 0x1.8p23f;
    return (x + magic) - magic;
}

/*
 * The bodies of the exponential functions: straight-line code without calls, so that a loop over
 * them vectorises in any file (the bits are the same in all of them, since no step is fused). NaN
 * in, NaN out.
 *
 * e^x = 2^n * e^r, n = rint(x / ln 2), |r| <= ln(2) / 2: r is exact but for its last bit, because n
 * * LN2_HI fits in 24 bits (8 + 15). e^r = 1 + (r + r^2 q(r)), q of degree 4 by minimax (relative
 * error 3.1e-9). 2^n is multiplied in two halves, for n reaches 128 and -150 where 2^n itself is no
 * f32.
 */
QNI_TEMPLATE float qni_exp_inline(float x)
{
    const float magic = 0x1.8p23f, ln2_hi = 0x1.62e4p-1f, ln2_lo = 0x1.7f7d1cp-20f;
    x = x > 89.0f ? 89.0f : x;     /* infinity */
    x = x < -104.0f ? -104.0f : x; /* 0 */
    const float shifted = x * 0x1.715476p+0f + magic;
    const int32_t n =
        (int32_t)(qni_bits_of(shifted) - 0x4b400000u); /* garbage for NaN, which r keeps */
    const float whole = shifted - magic;
    const float r = (x - whole * ln2_hi) - whole * ln2_lo;
    float q = 0x1.6a2434p-10f;
    q = q * r + 0x1.1239e2p-7f;
    q = q * r + 0x1.5558f2p-5f;
    q = q * r + 0x1.555492p-3f;
    q = q * r + 0x1.fffffcp-2f;
    const float p = (q * r * r + r) + 1.0f;
    const int32_t half = n >> 1;
    const float a = qni_float_of((uint32_t)(half + 127) << 23);
    const float b = qni_float_of((uint32_t)(n - half + 127) << 23);
    return p * a * b;
}

/*
 * Below 1: x * P(x^2), minimax of relative error 1.2e-9. Above: 1 - e^-Q(|x|), Q = -log(erfc) by
 * minimax on [0.9, 4], error 5.4e-11 of the result. At 4 the tail is 1.5e-8, less than half a unit
 * of 1, so that the result is 1 from there.
 */
QNI_TEMPLATE float qni_erf_inline(float x)
{
    const uint32_t sign = qni_bits_of(x) & 0x80000000u;
    float a = qni_float_of(qni_bits_of(x) ^ sign);
    a = a > 4.0f ? 4.0f : a;
    const float t = a * a;
    float p = 0x1.496a3p-14f;
    p = p * t - 0x1.a3f7p-11f;
    p = p * t + 0x1.5405b2p-8f;
    p = p * t - 0x1.b7f90ep-6f;
    p = p * t + 0x1.ce2cf8p-4f;
    p = p * t - 0x1.81273ep-2f;
    p = p * t + 0x1.20dd74p+0f;
    float q = 0x1.5ecd78p-16f;
    q = q * a - 0x1.c54d3p-12f;
    q = q * a + 0x1.10a9fcp-8f;
    q = q * a - 0x1.9b1952p-6f;
    q = q * a + 0x1.bb564ep-4f;
    q = q * a + 0x1.444b42p-1f;
    q = q * a + 0x1.212698p+0f;
    q = q * a - 0x1.65abc4p-13f;
    const float near = a * p, far = 1.0f - qni_exp_inline(-q);
    return qni_float_of(qni_bits_of(a < 1.0f ? near : far) | sign);
}

/*
 * Below 0.625: x + x^3 P(x^2), minimax of relative error 4.1e-9. Above: 1 - 2 / (e^2|x| + 1), where
 * the subtrahend is below 0.45 and its error of 2 units counts for less than one.
 */
QNI_TEMPLATE float qni_tanh_inline(float x)
{
    const uint32_t sign = qni_bits_of(x) & 0x80000000u;
    const float a = qni_float_of(qni_bits_of(x) ^ sign);
    const float t = a * a;
    float p = -0x1.76ac1ap-8f;
    p = p * t + 0x1.5256d8p-6f;
    p = p * t - 0x1.b84448p-5f;
    p = p * t + 0x1.110768p-3f;
    p = p * t - 0x1.555534p-2f;
    const float near = a + a * (t * p), far = 1.0f - 2.0f / (qni_exp_inline(a + a) + 1.0f);
    return qni_float_of(qni_bits_of(a < 0.625f ? near : far) | sign);
}

/* The functions below have the same bits as the inline ones above. */
/* qni_expf: e^x, within 2 units in the last place; 0 below -104, infinity above 88.8; NaN in, NaN
 * out. */
float qni_expf(float x);
/* erf(x), absolute error below 2^-22; odd; 1 in magnitude beyond 4. */
float qni_erff(float x);
/* tanh(x), within 2 units in the last place; odd. */
float qni_tanhf(float x);

#endif
