/* SPDX-License-Identifier: Apache-2.0 */
/* Float steps whose bits are the same on every machine: a fused multiply-add that needs no FMA
 * unit, rounding, and the exponential functions of the epilogue. None of them calls the C library,
 * whose results differ between versions and processors. Files that include this are compiled with
 * -ffp-contract=off. */
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
static inline float qni_fmaf(float a, float b, float c)
{
#if defined(__FMA__) || defined(__aarch64__)
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
static inline float qni_rintf(float x)
{
    const float magic = 0x1.8p23f;
    return (x + magic) - magic;
}

/* e^x, within 2 units in the last place; 0 below -104, infinity above 88.8; NaN in, NaN out. */
float qni_expf(float x);
/* erf(x), absolute error below 2^-22; odd; 1 in magnitude beyond 4. */
float qni_erff(float x);
float qni_tanhf(float x);

#endif
