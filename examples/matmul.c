/* SPDX-License-Identifier: Apache-2.0 */
/* y = silu(x . W^T): quantize W to 4 bits and pack it once, then multiply as often as you like. */
#include <stdio.h>

#include <quern/quern.h>

enum { M = 2, N = 64, K = 256 };
static float dense[N * K], x[M * K], y[M * N];

int main(void)
{
    for (int i = 0; i < N * K; i++)
        dense[i] = (float)(i % 15 - 7) / 7.0f; /* your weights, [N, K] */
    for (int i = 0; i < M * K; i++)
        x[i] = (float)(i % 9) / 9.0f; /* your activations, [M, K] */

    qn_ctx *ctx = NULL;
    qn_weight *weight = NULL;
    qn_packed *packed = NULL;
    qn_error err = {QN_OK, -1, "the product failed"};
    qn_quantize_options how;
    qn_matmul_args args;
    qn_quantize_options_init(&how);
    qn_matmul_args_init(&args);

    const qn_tensor w = qn_tensor_2d(dense, QN_F32, N, K);
    bool failed =
        qn_ctx_create(NULL, &ctx, &err) || qn_format_parse("int4:g128", &how.format, &err) ||
        qn_quantize(ctx, &w, &how, &weight, &err) || qn_pack(ctx, weight, NULL, &packed, &err);
    args.w = packed;
    args.x = qn_tensor_2d(x, QN_F32, M, K);
    args.y = qn_tensor_2d(y, QN_F32, M, N);
    args.epilogue.act = QN_ACT_SILU;
    size_t scratch = 0; /* once: calls allocate nothing */
    failed = failed || qn_matmul_scratch(ctx, &args, &scratch) || qn_ctx_reserve(ctx, scratch) ||
             qn_matmul(ctx, &args, NULL, 0);

    printf("%s %g\n", failed ? err.text : "y[0][0] =", (double)y[0]);
    qn_packed_destroy(packed);
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
    return failed;
}
