/* SPDX-License-Identifier: Apache-2.0 */
/* Scales in the types that files keep them in. */
#ifndef QNI_QUANT_NARROW_H
#define QNI_QUANT_NARROW_H

#include <stdbool.h>

#include <quern/base.h>

/* The bytes of a number as f16, bf16, E4M3 or E8M0, or as f32 for any other type. True if they have
 * exactly this value and sign. */
bool qni_narrow(qn_dtype dtype, float value, uint8_t out[4]);

#endif
