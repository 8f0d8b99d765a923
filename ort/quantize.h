/* SPDX-License-Identifier: Apache-2.0 */
/* DynamicQuantizeLinear's codes: one scale and zero point for all of x. */
#ifndef ORT_QUANTIZE_H
#define ORT_QUANTIZE_H

#include <quern/context.h>

/* scale = (max(x, 0) - min(x, 0)) / 255 (1 where that is 0), zero = rint(-min / scale),
 * code = clamp(rint(x / scale) + zero, 0, 255), each step rounded to f32. */
void quantize_range(const qn_ctx *ctx, const float *x, int64_t count, float *scale, uint8_t *zero);
void quantize_codes(const qn_ctx *ctx, const float *x, int64_t count, float scale, uint8_t zero,
                    uint8_t *codes);

#endif
