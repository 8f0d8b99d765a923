/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of a model as packed weights. */
#ifndef ORT_WEIGHTS_H
#define ORT_WEIGHTS_H

#include "claim.h"

/* Pack the weights of a claim. scale: one float an output that takes the place of the model's
 * scales, or NULL. */
struct ort_status *weights_pack(const struct graph *graph, const struct claim *claim,
                                const qn_ctx *ctx, const float *scale, qn_packed **packed);

#endif
