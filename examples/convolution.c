/* SPDX-License-Identifier: Apache-2.0 */
/* Two int8 convolutions, NHWC, that hand bytes to each other: the first one requantizes its sums to
 * uint8 with relu built in, the second one reads them. No float tensor lies between. */
#include <stdio.h>
#include <string.h>

#include <quern/quern.h>

enum { H = 16, W = 16, CI = 8, C = 16, CO = 12, TAPS = 9 };

/* Weights [co, kh, kw, ci] in int8, one scale an output. */
static qn_status make_layer(const qn_ctx *ctx, int64_t co, int64_t ci, qn_packed **packed,
                            qn_error *err)
{
    static float dense[C * TAPS * C];
    qn_quantize_options how;
    qn_weight *weight = NULL;
    qn_quantize_options_init(&how);
    how.kh = how.kw = 3;
    for (int64_t i = 0; i < co * TAPS * ci; i++)
        dense[i] = (float)(i * 29 % 41 - 20) / 256.0f;
    const qn_tensor w = qn_tensor_2d(dense, QN_F32, co, TAPS * ci);
    qn_status status = qn_format_parse("int8:pc", &how.format, err);
    if (status == QN_OK)
        status = qn_quantize(ctx, &w, &how, &weight, err);
    if (status == QN_OK)
        status = qn_pack(ctx, weight, NULL, packed, err);
    qn_weight_destroy(weight);
    return status;
}

static qn_tensor image(void *data, qn_dtype dtype, int64_t channels)
{
    const int64_t shape[4] = {1, H, W, channels};
    return qn_tensor_make(data, dtype, 4, shape);
}

static void fill_args(qn_conv_args *args, const qn_packed *w)
{
    qn_conv_args_init(args);
    args->w = w;
    args->image = QN_NHWC;
    args->strategy = QN_STRATEGY_INT8_STATIC;
    for (int side = 0; side < 4; side++)
        args->pad[side] = 1; /* padding is x_zero, a real zero */
}

int main(void)
{
    static uint8_t x[H * W * CI], between[H * W * C];
    static float y[H * W * CO];
    qn_error err = {QN_OK, -1, "a convolution failed"};
    qn_packed *first = NULL, *second = NULL;
    qn_conv_args a, b;
    qn_ctx *ctx = NULL;
    size_t bytes_a = 0, bytes_b = 0;
    for (int i = 0; i < H * W * CI; i++)
        x[i] = (uint8_t)(i * 7 % 256);
    bool failed = qn_ctx_create(NULL, &ctx, &err) || make_layer(ctx, C, CI, &first, &err) ||
                  make_layer(ctx, CO, C, &second, &err);

    fill_args(&a, first);
    a.x = image(x, QN_U8, CI);
    a.y = image(between, QN_U8, C);
    a.quant.x_scale = 1.0f / 128.0f; /* x = x_scale * (code - x_zero) */
    a.quant.x_zero = 128;
    a.epilogue.act = QN_ACT_RELU;
    a.epilogue.y_scale = 1.0f / 32.0f; /* from calibration */

    fill_args(&b, second);
    b.x = image(between, QN_U8, C);
    b.y = image(y, QN_F32, CO);
    b.quant.x_scale = a.epilogue.y_scale; /* what the first one wrote */
    b.quant.x_zero = a.epilogue.y_zero;

    failed = failed || qn_conv2d_scratch(ctx, &a, &bytes_a) ||
             qn_conv2d_scratch(ctx, &b, &bytes_b) ||
             qn_ctx_reserve(ctx, bytes_a > bytes_b ? bytes_a : bytes_b) ||
             qn_conv2d(ctx, &a, NULL, 0) || qn_conv2d(ctx, &b, NULL, 0);
    printf("%s %g\n", failed ? err.text : "y[0] =", (double)y[0]);
    qn_packed_destroy(first);
    qn_packed_destroy(second);
    qn_ctx_destroy(ctx);
    return failed;
}
