/* SPDX-License-Identifier: Apache-2.0 */
/* Small floats to f32 and back, in portable integer arithmetic: the same bits on every machine and
 * whatever flags the including file has. Rounding is to nearest, ties to even; overflow gives
 * infinity (f16, bf16) or the largest value (E4M3, which has no infinity). A NaN in 16 bits is the
 * positive quiet one without payload (docs/numerics.md, "NaN"). */
#ifndef QNI_BASE_HALF_H
#define QNI_BASE_HALF_H

#include <stdint.h>
#include <string.h>

#include "compiler.h"

QNI_INLINE uint32_t qni_bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
QNI_INLINE float qni_float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* The one NaN that results have: which operand's NaN an addition keeps, and with which sign an
 * invalid operation makes one, differs between processors and with the order of operands. */
enum { QNI_NAN_F32 = 0x7fc00000, QNI_NAN_F16 = 0x7e00, QNI_NAN_BF16 = 0x7fc0 };
QNI_INLINE float qni_one_nan(float f)
{
    return f == f ? f : qni_float_of(QNI_NAN_F32);
}

QNI_INLINE float qni_f32_from_bf16(uint16_t h)
{
    return qni_float_of((uint32_t)h << 16);
}
QNI_INLINE uint16_t qni_bf16_from_f32(float f)
{
    const uint32_t u = qni_bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return QNI_NAN_BF16;
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* The exponent moves by a multiplication with 2^112, which also makes subnormals normal. */
QNI_INLINE float qni_f32_from_f16(uint16_t h)
{
    const uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    const uint32_t magnitude = (uint32_t)(h & 0x7fffu) << 13;
    if (magnitude >= 0x0f800000u) /* infinity or NaN */
        return qni_float_of(sign | magnitude | 0x7f800000u);
    return qni_float_of(sign | qni_bits_of(qni_float_of(magnitude) * 0x1p112f));
}
QNI_INLINE uint16_t qni_f16_from_f32(float f)
{
    const uint32_t u = qni_bits_of(f), sign = (u >> 16) & 0x8000u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return QNI_NAN_F16;
    if (a >= 0x477ff000u) /* 65520 and more round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    /* below 2^-14: adding 0.5 leaves the subnormal's bits, rounded, at the bottom */
    if (a < 0x38800000u) {
        const float shifted = qni_float_of(a) + 0.5f;
        return (uint16_t)(sign | (qni_bits_of(shifted) - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + ((a >> 13) & 1u)) >> 13));
}

QNI_INLINE float qni_f32_from_e8m0(uint8_t e)
{
    return e == 255 ? qni_float_of(0x7fc00000u)
           : e == 0 ? qni_float_of(0x00400000u)
                    : qni_float_of((uint32_t)e << 23);
}
QNI_INLINE float qni_f32_from_e4m3(uint8_t v)
{
    const uint32_t sign = (uint32_t)(v & 0x80u) << 24, e = (v >> 3) & 15u, m = v & 7u;
    if (e == 15 && m == 7)
        return qni_float_of(sign | 0x7fc00000u);
    if (e == 0)
        return qni_float_of(sign | qni_bits_of((float)m * 0x1p-9f));
    return qni_float_of(sign | ((e + 120u) << 23) | (m << 20));
}
QNI_INLINE uint8_t qni_e4m3_from_f32(float f)
{
    const uint32_t u = qni_bits_of(f), sign = (u >> 24) & 0x80u, a = u & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint8_t)(sign | 0x7fu);
    if (a >= 0x43e00000u) /* 448 and more */
        return (uint8_t)(sign | 0x7eu);
    if (a < 0x3c800000u) { /* below 2^-6: units of 2^-9; adding 2^14 rounds to them */
        const float shifted = qni_float_of(a) + 0x1p14f;
        return (uint8_t)(sign | (qni_bits_of(shifted) - 0x46800000u));
    }
    const uint32_t r = (a - 0x3c000000u + 0x7ffffu + ((a >> 20) & 1u)) >> 20;
    return (uint8_t)(sign | (r > 0x7eu ? 0x7eu : r));
}

#endif
