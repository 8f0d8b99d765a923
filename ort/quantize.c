/* SPDX-License-Identifier: Apache-2.0 */
/* The library's quantizer, with ONNX's definition. */
#include "quantize.h"

#include <quern/ops.h>

struct ort_status *quantize_tensor(const struct ort_api *api, const qn_ctx *ctx,
                                   const struct tensor *x, uint8_t *codes, float *scale,
                                   uint8_t *zero)
{
    qn_error error = {0};
    qn_quantize_rows_args args;
    int64_t columns = x->rank > 0 ? x->shape[x->rank - 1] : 1;
    *scale = 1.0f;
    *zero = 0;
    if (x->count == 0)
        return NULL;
    qn_quantize_rows_args_init(&args);
    args.x = qn_tensor_2d((void *)x->data, QN_F32, x->count / columns, columns);
    args.codes = qn_tensor_2d(codes, QN_U8, x->count / columns, columns);
    args.scale = qn_tensor_2d(scale, QN_F32, 1, 1);
    args.zero = qn_tensor_2d(zero, QN_U8, 1, 1);
    args.block = QN_GROUP_PER_TENSOR;
    args.error = &error;
    return runtime_check(api, "DynamicQuantizeLinear", qn_quantize_rows(ctx, &args), &error);
}
