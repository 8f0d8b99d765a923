/* SPDX-License-Identifier: Apache-2.0 */
/* How large weights can be, from their scales alone: no code is looked at. Of finite numbers,
 *
 *     max |scale| * (max |value| + max |zero|) + max |offset|,   times max |prescale|
 *
 * which no weight exceeds. The dense strategy on GPUs brings weights near the top of a 16-bit type
 * by a power of two (docs/numerics.md), and the reference must know the same one. */
#ifndef QNI_QUANT_MAGNITUDE_H
#define QNI_QUANT_MAGNITUDE_H

#include "canonical.h"
#include "packed.h"

double qni_weight_magnitude(const struct qn_weight *w);
/* The magnitude of packed weights whose blob is in host memory. */
double qni_packed_magnitude(const struct qni_packed_head *head, const uint8_t *blob);

/* e of the 2^e by which weights are multiplied before they are rounded to f16 or bf16: it brings
 * the magnitude below 2^15 (f16) or 2^7, and 2^e and 2^-e are normal numbers of f32. */
int32_t qni_magnitude_exponent(double magnitude, qn_dtype dtype);

/* In which types of 16 bits are all 2^e * scale * (value - zero) exact and not subnormal, whatever
 * the codes? Integers without offset and prescale: where the digits of scales and values together
 * are few enough, as with scales of bf16 and symmetric integers of 4 bits for f16. */
enum { QNI_EXACT_F16 = 1, QNI_EXACT_BF16 = 2 };
int32_t qni_weight_exact(const struct qn_weight *w);
int32_t qni_packed_exact(const struct qni_packed_head *head, const uint8_t *blob);

#endif
