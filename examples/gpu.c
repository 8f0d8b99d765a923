/* SPDX-License-Identifier: Apache-2.0 */
/* The same calls on a GPU: memory of the device, work in a stream, nothing waits until it is asked
 * to. Where there is no GPU (or quern was built without CUDA) it says so and ends with status 0. */
#include <stdio.h>

#include <quern/quern.h>

enum { M = 4, N = 512, K = 1024 };

int main(void)
{
    static float dense[N * K], x[M * K], y[M * N];
    qn_error err = {QN_OK, -1, "a call failed"};
    qn_packed *packed = NULL;
    qn_weight *weight = NULL;
    void *on_device[3] = {NULL}; /* x, y, scratch */
    qn_ctx *ctx = NULL;
    int32_t gpus = 0;
    if (qn_cuda_device_count(&gpus, &err) != QN_OK || gpus == 0) {
        printf("no GPU: %s\n", gpus == 0 && err.status != QN_OK ? err.text : "none is there");
        return 0;
    }
    qn_ctx_options options;
    qn_ctx_options_init(&options);
    options.device = (qn_device){QN_CUDA, 0};
    qn_status status = qn_ctx_create(&options, &ctx, &err);
    /* qn_cuda_set_stream(ctx, stream) would join yours; the context has one of its own. */

    qn_quantize_options how;
    qn_quantize_options_init(&how);
    for (int i = 0; i < N * K; i++)
        dense[i] = (float)(i % 15 - 7) / 64.0f;
    for (int i = 0; i < M * K; i++)
        x[i] = (float)(i % 9 - 4) / 8.0f;
    const qn_tensor w = qn_tensor_2d(dense, QN_F32, N, K); /* quantizing is the CPU's work */
    if (status == QN_OK)
        status = qn_format_parse("int4:g128", &how.format, &err);
    if (status == QN_OK)
        status = qn_quantize(ctx, &w, &how, &weight, &err);
    if (status == QN_OK)
        status = qn_pack(ctx, weight, NULL, &packed, &err); /* on the device */

    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.w = packed;
    args.strategy = QN_STRATEGY_INT8_BLOCK; /* the CPU's bits */
    if (status == QN_OK)
        status = qn_cuda_alloc(ctx, sizeof x, &on_device[0], &err);
    if (status == QN_OK)
        status = qn_cuda_alloc(ctx, sizeof y, &on_device[1], &err);
    args.x = qn_tensor_2d(on_device[0], QN_F32, M, K);
    args.y = qn_tensor_2d(on_device[1], QN_F32, M, N);
    args.x.device = args.y.device = options.device;
    size_t scratch = 0;
    if (status == QN_OK)
        status = qn_matmul_scratch(ctx, &args, &scratch);
    if (status == QN_OK)
        status = qn_cuda_alloc(ctx, scratch, &on_device[2], &err);
    if (status == QN_OK)
        status = qn_cuda_upload(ctx, on_device[0], x, sizeof x, &err);
    if (status == QN_OK)
        status = qn_matmul(ctx, &args, on_device[2], scratch); /* queued: returns at once */
    if (status == QN_OK)
        status = qn_cuda_download(ctx, y, on_device[1], sizeof y, &err); /* waits for it */
    printf("%s %g\n", status == QN_OK ? "y[0][0] =" : err.text, (double)y[0]);

    for (int i = 0; ctx != NULL && i < 3; i++)
        qn_cuda_free(ctx, on_device[i]);
    qn_packed_destroy(packed);
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
    return status != QN_OK;
}
