/* SPDX-License-Identifier: Apache-2.0 */
/* Constants of a model as packed weights. */
#ifndef ORT_WEIGHTS_H
#define ORT_WEIGHTS_H

#include "claim.h"

/* A scale becomes x_scale * scale / y_scale, rounded twice, as ONNX Runtime's own kernels do. */
struct weights_factor {
    float x_scale, y_scale;
};

/* Pack the weights of a claim. times: NULL leaves the model's scales as they are. Where the model
 * has none, a scale is 1. */
struct ort_status *weights_pack(const struct graph *graph, const struct claim *claim,
                                const qn_ctx *ctx, const struct weights_factor *times,
                                qn_packed **packed);

#endif
