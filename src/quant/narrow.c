/* SPDX-License-Identifier: Apache-2.0 */
/* narrow.h */
#include "narrow.h"

#include <string.h>

#include "../base/half.h"

bool qni_narrow(qn_dtype dtype, float value, uint8_t out[4])
{
    const uint32_t bits = qni_bits_of(value);
    uint16_t half;
    switch (dtype) {
    case QN_F16:
        half = qni_f16_from_f32(value);
        memcpy(out, &half, sizeof half);
        return qni_bits_of(qni_f32_from_f16(half)) == bits;
    case QN_BF16:
        half = (uint16_t)(bits >> 16);
        memcpy(out, &half, sizeof half);
        return (bits & 0xffffu) == 0;
    case QN_E4M3:
        out[0] = qni_e4m3_from_f32(value);
        return qni_bits_of(qni_f32_from_e4m3(out[0])) == bits;
    case QN_E8M0: /* its smallest is 2^-127, a number that f32 keeps with leading zeros */
        out[0] = (uint8_t)(bits >> 23);
        return qni_bits_of(qni_f32_from_e8m0(out[0])) == bits;
    default:
        memcpy(out, &value, sizeof value);
        return true;
    }
}
