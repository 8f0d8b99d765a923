/* SPDX-License-Identifier: Apache-2.0 */
/* What somebody else's program does with an installed quern: it includes the umbrella header,
 * quantizes a weight, multiplies, compares with the sum written out, and asks for the version. */
#include <quern/quern.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { N = 3, K = 64, GROUP = 32 };

int main(void)
{
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", QN_VERSION_MAJOR, QN_VERSION_MINOR,
             QN_VERSION_PATCH);
    if (strcmp(version, qn_version()) != 0) {
        fprintf(stderr, "headers are %s, the library is %s\n", version, qn_version());
        return 1;
    }

    /* Small integers whose groups all reach 7: int4 with scale 1 holds them exactly. */
    float dense[N * K], x[K], y[N];
    for (int i = 0; i < N * K; i++)
        dense[i] = i % GROUP == 0 ? 7.0f : (float)(i * 5 % 15 - 7);
    for (int i = 0; i < K; i++)
        x[i] = (float)(i % 9 - 4);

    qn_error err;
    qn_ctx *ctx = NULL;
    qn_weight *weight = NULL;
    qn_packed *packed = NULL;
    qn_quantize_options how;
    qn_quantize_options_init(&how);
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    const qn_tensor w = qn_tensor_2d(dense, QN_F32, N, K);

    qn_status status = qn_ctx_create(NULL, &ctx, &err);
    if (status == QN_OK)
        status = qn_format_parse("int4:g32", &how.format, &err);
    if (status == QN_OK)
        status = qn_quantize(ctx, &w, &how, &weight, &err);
    if (status == QN_OK)
        status = qn_pack(ctx, weight, NULL, &packed, &err);
    if (status != QN_OK) {
        fprintf(stderr, "%s: %s\n", qn_status_name(status), err.text);
        return 1;
    }

    args.w = packed;
    args.x = qn_tensor_2d(x, QN_F32, 1, K);
    args.y = qn_tensor_2d(y, QN_F32, 1, N);
    size_t bytes = 0;
    status = qn_matmul_scratch(ctx, &args, &bytes);
    if (status == QN_OK)
        status = qn_ctx_reserve(ctx, bytes);
    if (status == QN_OK)
        status = qn_matmul(ctx, &args, NULL, 0);
    if (status != QN_OK) {
        fprintf(stderr, "%s: %s\n", qn_status_name(status), qn_status_text(status));
        return 1;
    }
    for (int n = 0; n < N; n++) {
        float sum = 0.0f;
        for (int k = 0; k < K; k++)
            sum += x[k] * dense[n * K + k];
        if (!(fabsf(sum - y[n]) <= 0.0f)) { /* a NaN fails, too */
            fprintf(stderr, "y[%d] is %g, not %g\n", n, (double)y[n], (double)sum);
            return 1;
        }
    }
    qn_packed_destroy(packed);
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
    printf("quern %s (%s) works\n", qn_version(), qn_commit());
    return 0;
}
