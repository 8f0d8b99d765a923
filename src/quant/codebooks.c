/* SPDX-License-Identifier: Apache-2.0 */
/* The fixed codebooks: the value of every code before its scale. */
#include <math.h>

#include "canonical.h"

/* Quantiles of the normal distribution as bitsandbytes stores them, rounded to f32. */
static const float nf4[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

static const float iq4_nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                 1,    13,   25,  38,  53,  69,  89,  113};

/* One sign bit, two of exponent, one of mantissa. */
static const float e2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                               -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

/* Eight codes share an exponent; the first eight are subnormal, the last of each sign is NaN. */
#define ROW(u, a, b, c, d, e, f, g, h) a *u, b *u, c *u, d *u, e *u, f *u, g *u, h *u,
#define NORMAL(u)                      ROW(u, 8, 9, 10, 11, 12, 13, 14, 15)
#define HALF(s)                                                                                    \
    ROW(s 0x1p-9f, 0, 1, 2, 3, 4, 5, 6, 7)                                                         \
    NORMAL(s 0x1p-9f)                                                                              \
    NORMAL(s 0x1p-8f)                                                                              \
    NORMAL(s 0x1p-7f)                                                                              \
    NORMAL(s 0x1p-6f)                                                                              \
    NORMAL(s 0x1p-5f)                                                                              \
    NORMAL(s 0x1p-4f)                                                                              \
    NORMAL(s 0x1p-3f)                                                                              \
    NORMAL(s 0x1p-2f)                                                                              \
    NORMAL(s 0x1p-1f)                                                                              \
    NORMAL(s 0x1p+0f)                                                                              \
    NORMAL(s 0x1p+1f)                                                                              \
    NORMAL(s 0x1p+2f)                                                                              \
    NORMAL(s 0x1p+3f)                                                                              \
    NORMAL(s 0x1p+4f)                                                                              \
    ROW(s 0x1p+5f, 8, 9, 10, 11, 12, 13, 14, (float)NAN)

static const float e4m3[256] = {HALF(+) HALF(-)};

const float *qni_code_table(qn_code code)
{
    switch (code) {
    case QN_CODE_NF4:
        return nf4;
    case QN_CODE_IQ4_NL:
        return iq4_nl;
    case QN_CODE_E2M1:
        return e2m1;
    case QN_CODE_E4M3:
        return e4m3;
    default:
        return NULL;
    }
}
