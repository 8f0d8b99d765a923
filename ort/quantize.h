/* SPDX-License-Identifier: Apache-2.0 */
/* DynamicQuantizeLinear's codes: one scale and zero point for all of x. */
#ifndef ORT_QUANTIZE_H
#define ORT_QUANTIZE_H

#include "graph.h"

#include <quern/context.h>

/* x is of floats. codes: as many bytes. */
struct ort_status *quantize_tensor(const struct ort_api *api, const qn_ctx *ctx,
                                   const struct tensor *x, uint8_t *codes, float *scale,
                                   uint8_t *zero);

#endif
