/* SPDX-License-Identifier: Apache-2.0 */
/* Mixture of experts: each token goes to TOP of EXPERTS experts, one grouped product does all of
 * them. ids says which expert a row of y belongs to, x_rows which token it reads; nothing is sorted
 * or copied. The weighted sum at the end is the router's. */
#include <stdio.h>

#include <quern/quern.h>

enum { EXPERTS = 8, TOP = 2, TOKENS = 5, ROWS = TOKENS * TOP, N = 96, K = 128 };

int main(void)
{
    static float dense[N * K], x[TOKENS * K], y[ROWS * N], out[TOKENS * N];
    int32_t ids[ROWS], x_rows[ROWS];
    qn_error err = {QN_OK, -1, "the grouped product failed"};
    qn_packed *experts[EXPERTS] = {NULL};
    qn_ctx *ctx = NULL;
    qn_quantize_options how;
    qn_quantize_options_init(&how);
    qn_status status = qn_ctx_create(NULL, &ctx, &err);
    if (status == QN_OK)
        status = qn_format_parse("int4:g32", &how.format, &err);
    for (int e = 0; status == QN_OK && e < EXPERTS; e++) {
        const qn_tensor w = qn_tensor_2d(dense, QN_F32, N, K);
        qn_weight *weight = NULL;
        for (int i = 0; i < N * K; i++)
            dense[i] = (float)((i + e * 17) % 23 - 11) / 64.0f; /* expert e, [n, k] */
        status = qn_quantize(ctx, &w, &how, &weight, &err);
        if (status == QN_OK)
            status = qn_pack(ctx, weight, NULL, &experts[e], &err);
        qn_weight_destroy(weight);
    }
    for (int i = 0; i < TOKENS * K; i++)
        x[i] = (float)(i % 11 - 5) / 8.0f;
    for (int r = 0; r < ROWS; r++) {
        x_rows[r] = r / TOP;                        /* the token */
        ids[r] = (r / TOP * 3 + r % TOP) % EXPERTS; /* what your router chose */
    }

    qn_grouped_args args;
    qn_grouped_args_init(&args);
    args.w = (const qn_packed *const *)experts;
    args.n_experts = EXPERTS;
    args.x = qn_tensor_2d(x, QN_F32, TOKENS, K);
    args.y = qn_tensor_2d(y, QN_F32, ROWS, N);
    args.ids = qn_tensor_1d(ids, QN_I32, ROWS);
    args.x_rows = qn_tensor_1d(x_rows, QN_I32, ROWS);
    args.strategy = QN_STRATEGY_INT8_BLOCK;
    args.epilogue.act = QN_ACT_SILU;
    size_t scratch = 0;
    if (status == QN_OK)
        status = qn_grouped_scratch(ctx, &args, &scratch);
    if (status == QN_OK)
        status = qn_ctx_reserve(ctx, scratch);
    if (status == QN_OK)
        status = qn_grouped(ctx, &args, NULL, 0);

    for (int r = 0; r < ROWS; r++)
        for (int j = 0; j < N; j++)
            out[r / TOP * N + j] += y[r * N + j] / TOP; /* your router's weights */
    printf("%s %g\n", status == QN_OK ? "out[0][0] =" : err.text, (double)out[0]);
    for (int e = 0; e < EXPERTS; e++)
        qn_packed_destroy(experts[e]);
    qn_ctx_destroy(ctx);
    return status != QN_OK;
}
