/* SPDX-License-Identifier: Apache-2.0 */
/* int8-static with zero points of the weights: sums and biases of int32 are exact, on every
 * instruction set, in every operation; what int32 may not hold is refused. MatMulInteger,
 * ConvInteger and QLinearConv of ONNX with weights of type uint8 are these. */
#include "api.h"

static const uint64_t masks[] = {
    QN_ISA_PORTABLE,
    QN_ISA_AVX2,
    QN_ISA_AVX2 | QN_ISA_AVX_VNNI,
    QN_ISA_AVX2 | QN_ISA_AVX512,
    QN_ISA_AVX2 | QN_ISA_AVX512 | QN_ISA_VNNI512,
    QN_ISA_ALL,
};
enum { N_MASKS = sizeof masks / sizeof *masks };

static qn_ctx *masked(uint64_t mask)
{
    qn_ctx_options options;
    qn_ctx *ctx = NULL;
    qn_ctx_options_init(&options);
    options.n_threads = 2;
    options.isa_mask = mask;
    options.arena_bytes = 8 << 20;
    assert_ok(qn_ctx_create(&options, &ctx, NULL));
    return ctx;
}

/* uint8 weights [n, k] of a convolution or matrix, one zero point for each output. */
struct weights {
    int64_t n, k;
    int32_t kh, kw, groups;
    uint8_t *codes;
    int32_t *zero; /* as uint8 */
};

static struct weights weights_of(int64_t n, int64_t k, int32_t taps, int32_t groups)
{
    struct weights w = {n, k, taps, taps, groups, take((size_t)(n * k)), take((size_t)n * 4)};
    uint64_t seed = 11;
    for (int64_t i = 0; i < n * k; i++)
        w.codes[i] = (uint8_t)draw(&seed);
    for (int64_t j = 0; j < n; j++)
        w.zero[j] = j % 5 == 0 ? 128 : j % 5 == 1 ? 0 : j % 5 == 2 ? 255 : draw(&seed) & 255;
    return w;
}

static void forget(struct weights *w)
{
    free(w->codes);
    free(w->zero);
}

/* In the scale of signed codes, moved by `by`. */
static qn_packed *pack(const qn_ctx *ctx, const struct weights *w, const char *format, int32_t by)
{
    qn_weight_parts parts;
    qn_weight *weight = NULL;
    qn_packed *packed = NULL;
    float *scale = take((size_t)(w->n * w->k) * sizeof *scale);
    int32_t *zero = take((size_t)w->n * sizeof *zero);
    qn_weight_parts_init(&parts);
    assert_ok(qn_format_parse(format, &parts.format, NULL));
    for (int64_t i = 0; i < w->n * w->k; i++)
        scale[i] = 0.25f;
    for (int64_t j = 0; j < w->n; j++)
        zero[j] = w->zero[j] - 128 + by;
    parts.n = w->n;
    parts.k = w->k;
    parts.kh = w->kh;
    parts.kw = w->kw;
    parts.conv_groups = w->groups;
    parts.codes = w->codes;
    parts.scale = scale;
    parts.zero = parts.format.shift == QN_SHIFT_ZERO ? zero : NULL;
    parts.offset = parts.format.shift >= QN_SHIFT_OFFSET ? scale : NULL;
    assert_ok(qn_weight_create(ctx, &parts, &weight, NULL));
    assert_ok(qn_pack(ctx, weight, NULL, &packed, NULL));
    qn_weight_destroy(weight);
    free(scale);
    free(zero);
    return packed;
}

static void fill(uint8_t *x, int64_t n)
{
    uint64_t seed = 5;
    for (int64_t i = 0; i < n; i++)
        x[i] = (uint8_t)draw(&seed);
}

static int64_t sum_of(const struct weights *w, const uint8_t *x, int32_t x_zero, int64_t j)
{
    int64_t sum = 0;
    for (int64_t p = 0; p < w->k; p++)
        sum += (int64_t)(x[p] - x_zero) * (w->codes[j * w->k + p] - w->zero[j]);
    return sum;
}

/* Odd shapes, and one whose sums no f32 holds. */
static void test_products(void **state)
{
    (void)state;
    static const int64_t shapes[][3] = {{1, 1, 1},    {3, 17, 33},   {1, 40, 4096},
                                        {9, 31, 257}, {33, 19, 100}, {5, 64, 33025}};
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int32_t i = 0; i < N_MASKS; i++) {
            const int64_t m = shapes[s][0], n = shapes[s][1], k = shapes[s][2];
            qn_ctx *ctx = masked(masks[i]);
            struct weights w = weights_of(n, k, 1, 1);
            qn_packed *packed = pack(ctx, &w, "int8:pc:zp", 0);
            uint8_t *x = take((size_t)(m * k));
            int32_t *y = take((size_t)(m * n) * 4), *bias = take((size_t)n * 4);
            float *scaled = take((size_t)(m * n) * 4);
            fill(x, m * k);
            for (int64_t j = 0; j < n; j++)
                bias[j] = (int32_t)(j * 1001) - 7777;
            qn_matmul_args args;
            qn_matmul_args_init(&args);
            args.w = packed;
            args.x = qn_tensor_2d(x, QN_U8, m, k);
            args.y = qn_tensor_2d(y, QN_I32, m, n);
            args.strategy = QN_STRATEGY_INT8_STATIC;
            args.quant.x_zero = s % 2 == 0 ? 255 : 3;
            assert_ok(qn_matmul(ctx, &args, NULL, 0));
            args.y = qn_tensor_2d(scaled, QN_F32, m, n);
            args.epilogue.bias = qn_tensor_1d(bias, QN_I32, n);
            assert_ok(qn_matmul(ctx, &args, NULL, 0));
            for (int64_t r = 0; r < m; r++)
                for (int64_t j = 0; j < n; j++) {
                    const int64_t must = sum_of(&w, x + r * k, args.quant.x_zero, j);
                    assert_int_equal(y[r * n + j], must);
                    assert_true(scaled[r * n + j] == 0.25f * (float)(int32_t)(must + bias[j]));
                }
            free(x);
            free(y);
            free(bias);
            free(scaled);
            forget(&w);
            qn_packed_destroy(packed);
            qn_ctx_destroy(ctx);
        }
}

/* The sum that a detour through f32 gives as 266341888. */
static void test_last_bits(void **state)
{
    (void)state;
    enum { K = 4096 };
    static uint8_t x[K];
    struct weights w = weights_of(1, K, 1, 1);
    memset(x, 255, sizeof x);
    memset(w.codes, 255, K);
    w.zero[0] = 0;
    w.codes[0] = 241; /* 255 * 255 * 4096 - 255 * 14 */
    w.codes[1] = 255;
    qn_ctx *ctx = masked(QN_ISA_ALL);
    qn_packed *packed = pack(ctx, &w, "int8:pc:zp", 0);
    int32_t y = 0;
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.w = packed;
    args.x = qn_tensor_2d(x, QN_U8, 1, K);
    args.y = qn_tensor_2d(&y, QN_I32, 1, 1);
    args.strategy = QN_STRATEGY_INT8_STATIC;
    assert_ok(qn_matmul(ctx, &args, NULL, 0));
    assert_int_equal(y, 255 * 255 * K - 255 * 14);
    assert_true((int32_t)(float)y != y);
    forget(&w);
    qn_packed_destroy(packed);
    qn_ctx_destroy(ctx);
}

/* Groups, depthwise, strides, padding, both images, forwards and transposed. Padded taps have
 * x_zero: they add nothing. */
struct geometry {
    int32_t groups, ci, co, taps, stride, dilation, pad, transposed;
    qn_image image;
};

static int64_t conv_sum(const struct geometry *g, const struct weights *w, const uint8_t *x,
                        int32_t x_zero, int64_t size, const int64_t at[3])
{
    const int64_t j = at[0], group = j / g->co, channels = (int64_t)g->groups * g->ci;
    int64_t sum = 0;
    for (int64_t tap = 0; tap < g->taps * g->taps; tap++) {
        int64_t in[2] = {tap / g->taps * g->dilation, tap % g->taps * g->dilation};
        bool is_in = true;
        for (int d = 0; d < 2; d++) {
            in[d] =
                g->transposed ? at[1 + d] + g->pad - in[d] : at[1 + d] * g->stride + in[d] - g->pad;
            is_in = is_in && (!g->transposed || in[d] % g->stride == 0);
            in[d] = g->transposed && in[d] >= 0 ? in[d] / g->stride : in[d];
            is_in = is_in && in[d] >= 0 && in[d] < size;
        }
        for (int64_t c = 0; is_in && c < g->ci; c++) {
            const int64_t channel = group * g->ci + c, pixel = in[0] * size + in[1];
            const int32_t a =
                x[g->image == QN_NCHW ? channel * size * size + pixel : pixel * channels + channel];
            sum += (int64_t)(a - x_zero) * (w->codes[j * w->k + tap * g->ci + c] - w->zero[j]);
        }
    }
    return sum;
}

static void check_conv(const struct geometry *g, uint64_t mask)
{
    enum { SIZE = 9, X_ZERO = 201 };
    const int64_t n = (int64_t)g->groups * g->co, channels = (int64_t)g->groups * g->ci;
    const int64_t reach = (int64_t)g->dilation * (g->taps - 1) + 1;
    const int64_t out = g->transposed ? (SIZE - 1) * g->stride + reach - 2 * g->pad
                                      : (SIZE + 2 * g->pad - reach) / g->stride + 1;
    qn_ctx *ctx = masked(mask);
    struct weights w = weights_of(n, (int64_t)g->taps * g->taps * g->ci, g->taps, g->groups);
    qn_packed *packed = pack(ctx, &w, "int8:pc:zp", 0);
    uint8_t *x = take((size_t)(channels * SIZE * SIZE));
    int32_t *y = take((size_t)(n * out * out) * 4), *bias = take((size_t)n * 4);
    uint8_t *codes = take((size_t)(n * out * out));
    fill(x, channels * SIZE * SIZE);
    for (int64_t j = 0; j < n; j++)
        bias[j] = (int32_t)(j * 301) - 2000;
    const bool nchw = g->image == QN_NCHW;
    const int64_t in_shape[4] = {1, nchw ? channels : SIZE, SIZE, nchw ? SIZE : channels};
    const int64_t out_shape[4] = {1, nchw ? n : out, out, nchw ? out : n};
    qn_conv_args args;
    qn_conv_args_init(&args);
    args.w = packed;
    args.image = g->image;
    args.x = qn_tensor_make(x, QN_U8, 4, in_shape);
    args.y = qn_tensor_make(y, QN_I32, 4, out_shape);
    for (int i = 0; i < 4; i++) {
        args.pad[i] = g->pad;
        args.stride[i % 2] = g->stride;
        args.dilation[i % 2] = g->dilation;
    }
    args.strategy = QN_STRATEGY_INT8_STATIC;
    args.quant.x_zero = X_ZERO;
    qn_status (*const run)(const qn_ctx *, const qn_conv_args *, void *, size_t) =
        g->transposed ? qn_conv_transpose2d : qn_conv2d;
    assert_ok(run(ctx, &args, NULL, 0));
    args.y = qn_tensor_make(codes, QN_U8, 4, out_shape);
    args.epilogue.bias = qn_tensor_1d(bias, QN_I32, n);
    args.epilogue.y_scale = 512.0f;
    args.epilogue.y_zero = 120;
    assert_ok(run(ctx, &args, NULL, 0));
    for (int64_t j = 0; j < n; j++)
        for (int64_t p = 0; p < out * out; p++) {
            const int64_t at[3] = {j, p / out, p % out};
            const int64_t i = nchw ? j * out * out + p : p * n + j;
            const int64_t must = conv_sum(g, &w, x, X_ZERO, SIZE, at);
            const double code = nearbyint(0.25 * (double)(must + bias[j]) / 512.0) + 120.0;
            assert_int_equal(y[i], must);
            assert_int_equal(codes[i], code < 0.0 ? 0.0 : code > 255.0 ? 255.0 : code);
        }
    free(x);
    free(y);
    free(bias);
    free(codes);
    forget(&w);
    qn_packed_destroy(packed);
    qn_ctx_destroy(ctx);
}

static void test_convolutions(void **state)
{
    (void)state;
    static const struct geometry shapes[] = {
        {1, 32, 24, 3, 1, 1, 1, 0, QN_NHWC}, {1, 3, 17, 3, 2, 1, 1, 0, QN_NCHW},
        {1, 40, 9, 1, 1, 1, 0, 0, QN_NHWC},  {4, 8, 8, 3, 1, 1, 1, 0, QN_NHWC},
        {2, 4, 5, 3, 2, 2, 2, 0, QN_NCHW},   {24, 1, 1, 3, 1, 1, 1, 0, QN_NHWC},
        {24, 1, 1, 3, 2, 1, 1, 0, QN_NCHW},  {5, 1, 3, 5, 1, 1, 2, 0, QN_NHWC},
        {1, 32, 20, 3, 2, 1, 1, 1, QN_NHWC}, {1, 6, 7, 4, 3, 1, 0, 1, QN_NCHW},
        {3, 4, 2, 3, 2, 1, 1, 1, QN_NHWC},   {18, 1, 1, 3, 2, 1, 1, 1, QN_NHWC},
    };
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (int32_t i = 0; i < N_MASKS; i++)
            check_conv(&shapes[s], masks[i]);
}

/* More taps than one f32 sum of the depthwise kernels holds exactly, all at the limits. */
static void test_many_taps(void **state)
{
    (void)state;
    enum { TAPS = 19, CHANNELS = 16, SIZE = 20, OUT = SIZE - TAPS + 1 };
    static uint8_t x[CHANNELS * SIZE * SIZE];
    static int32_t y[CHANNELS * OUT * OUT];
    const int64_t in[4] = {1, SIZE, SIZE, CHANNELS}, out[4] = {1, OUT, OUT, CHANNELS};
    memset(x, 255, sizeof x);
    for (int32_t i = 0; i < N_MASKS; i++) {
        qn_ctx *ctx = masked(masks[i]);
        struct weights w = weights_of(CHANNELS, TAPS * TAPS, TAPS, CHANNELS);
        memset(w.codes, 255, CHANNELS * TAPS * TAPS);
        memset(w.zero, 0, CHANNELS * sizeof *w.zero);
        w.codes[0] = 254;
        qn_packed *packed = pack(ctx, &w, "int8:pc:zp", 0);
        qn_conv_args args;
        qn_conv_args_init(&args);
        args.w = packed;
        args.image = QN_NHWC;
        args.x = qn_tensor_make(x, QN_U8, 4, in);
        args.y = qn_tensor_make(y, QN_I32, 4, out);
        args.strategy = QN_STRATEGY_INT8_STATIC;
        assert_ok(qn_conv2d(ctx, &args, NULL, 0));
        for (int64_t at = 0; at < CHANNELS * OUT * OUT; at++)
            assert_int_equal(y[at], 255 * 255 * TAPS * TAPS - (at % CHANNELS == 0 ? 255 : 0));
        forget(&w);
        qn_packed_destroy(packed);
        qn_ctx_destroy(ctx);
    }
}

/* What int32 may not hold, zero points that are no bytes, and units of their own. */
static void test_refused(void **state)
{
    (void)state;
    qn_ctx *ctx = masked(QN_ISA_ALL);
    static const struct {
        const char *format, *word;
        int64_t k;
        int32_t x_zero, by;
        qn_status status;
    } cases[] = {
        {"int8:pc:zp", "k = 33025", 33026, 255, 0, QN_E_UNSUPPORTED},
        {"int8:pc:zp", "", 33026, 128, 0, QN_OK},
        {"int8:pc", "k = 65793", 65794, 0, 0, QN_E_UNSUPPORTED},
        {"int8:pc", "", 65793, 0, 0, QN_OK},
        {"int8:pc:zp", "zero points of 8 bits", 8, 0, 1000, QN_E_DTYPE},
        {"int8:g32:zp", "one group", 64, 0, 0, QN_E_DTYPE},
        {"int8:pc:off", "offsets", 64, 0, 0, QN_E_DTYPE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct weights w = weights_of(2, cases[i].k, 1, 1);
        memset(w.zero, 0, 2 * sizeof *w.zero);
        qn_packed *packed = NULL;
        if (strcmp(cases[i].format, "int8:g32:zp") == 0) {
            const struct shape shape = {2, 64, 1, 1, 1};
            packed = packed_make(ctx, cases[i].format, shape, 3, NULL);
        } else {
            packed = pack(ctx, &w, cases[i].format, cases[i].by);
        }
        uint8_t *x = take((size_t)cases[i].k);
        int32_t y[2], bias[2] = {0, 0};
        float f[2];
        fill(x, cases[i].k);
        qn_matmul_args args;
        qn_matmul_args_init(&args);
        args.w = packed;
        args.x = qn_tensor_2d(x, QN_U8, 1, cases[i].k);
        args.strategy = QN_STRATEGY_INT8_STATIC;
        args.quant.x_zero = cases[i].x_zero;
        for (int pass = 0; pass < 2; pass++) {
            args.y = pass == 0 ? qn_tensor_2d(y, QN_I32, 1, 2) : qn_tensor_2d(f, QN_F32, 1, 2);
            if (pass == 1)
                args.epilogue.bias = qn_tensor_1d(bias, QN_I32, 2);
            qn_plan *plan = NULL;
            if (cases[i].status == QN_OK) {
                assert_ok(qn_matmul(ctx, &args, NULL, 0));
                continue;
            }
            assert_error(qn_matmul_plan(ctx, &args, &plan, &err), cases[i].status, cases[i].word);
            assert_error(qn_matmul_plan(ctx, &args, &plan, &err), cases[i].status,
                         pass == 0 ? "y of type i32" : "bias of type i32");
        }
        free(x);
        forget(&w);
        qn_packed_destroy(packed);
    }
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),     cmocka_unit_test(test_last_bits),
        cmocka_unit_test(test_convolutions), cmocka_unit_test(test_many_taps),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
