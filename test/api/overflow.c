/* SPDX-License-Identifier: Apache-2.0 */
/* Finite inputs give an infinity or a NaN only where the exact result is too large: sums that pass
 * through an infinity on the way to a number, on every instruction set, for one row and for many,
 * to the same bits whatever the number of threads. */
#include "api.h"

enum { N = 40, MAX_K = 100, MAX_M = 40 };

static const uint64_t masks[] = {QN_ISA_PORTABLE, QN_ISA_AVX2, QN_ISA_AVX2 | QN_ISA_AVX512,
                                 QN_ISA_ALL & ~(uint64_t)QN_ISA_AMX_BF16, QN_ISA_ALL};

static qn_ctx *masked(uint64_t mask, int32_t n_threads)
{
    qn_ctx_options options;
    qn_ctx *ctx = NULL;
    qn_ctx_options_init(&options);
    options.n_threads = n_threads;
    options.isa_mask = mask;
    assert_ok(qn_ctx_create(&options, &ctx, NULL));
    return ctx;
}

/* One weight for all outputs: code, scale and shift. The outputs j take scale * (j + 1) / 64. */
struct problem {
    const char *format;
    int64_t k;
    uint8_t code;
    float scale;
    int32_t zero;
    float prescale; /* 0: none */
    float x[4];     /* of position p: x[p % 4] */
    float exact;    /* of an output, but for (j + 1) / 64 */
};

static qn_packed *pack(const qn_ctx *ctx, const struct problem *p)
{
    qn_weight_parts parts;
    qn_weight *weight = NULL;
    qn_packed *packed = NULL;
    qn_weight_parts_init(&parts);
    assert_ok(qn_format_parse(p->format, &parts.format, NULL));
    parts.n = N;
    parts.k = p->k;
    const int64_t groups = N * qn_format_groups(&parts.format, p->k, p->k);
    uint8_t codes[N * MAX_K];
    float scale[N * MAX_K], prescale[MAX_K];
    int32_t zero[N * MAX_K];
    for (int64_t i = 0; i < N * p->k; i++)
        codes[i] = p->code;
    for (int64_t i = 0; i < groups; i++) {
        scale[i] = p->scale * (float)(i / (groups / N) + 1) / 64.0f;
        zero[i] = p->zero;
    }
    for (int64_t i = 0; i < p->k; i++)
        prescale[i] = p->prescale;
    parts.codes = codes;
    parts.scale = scale;
    parts.zero = parts.format.shift == QN_SHIFT_ZERO ? zero : NULL;
    parts.prescale = p->prescale != 0.0f ? prescale : NULL;
    qn_error err = {0};
    if (qn_weight_create(ctx, &parts, &weight, &err) != QN_OK)
        fail_msg("%s: %s", p->format, err.text);
    assert_ok(qn_pack(ctx, weight, NULL, &packed, NULL));
    qn_weight_destroy(weight);
    return packed;
}

static void run(qn_ctx *ctx, const struct problem *p, const void *x, qn_dtype dtype, int64_t m,
                float *y)
{
    qn_matmul_args args;
    qn_packed *w = pack(ctx, p);
    qn_matmul_args_init(&args);
    args.w = w;
    args.x = qn_tensor_2d((void *)(uintptr_t)x, dtype, m, p->k);
    args.y = qn_tensor_2d(y, QN_F32, m, N);
    args.strategy = QN_STRATEGY_FLOAT;
    assert_ok(matmul_in_arena(ctx, &args));
    qn_packed_destroy(w);
}

static const struct problem problems[] = {
    /* A group is added up before its scale takes it down. */
    {"int4:pc",
     64,
     15,
     0x1p-20f,
     0,
     0.0f,
     {0x1p127f, 0x1p127f, 0x1p127f, 0x1p127f},
     448 * 0x1p107f},
    {"int4:g32",
     100,
     15,
     0x1p-20f,
     0,
     0.0f,
     {0x1p127f, 0x1p127f, 0x1p127f, 0x1p127f},
     700 * 0x1p107f},
    {"int8:pc",
     64,
     255,
     0x1p-20f,
     0,
     0.0f,
     {0x1p127f, 0x1p127f, 0x1p127f, 0x1p127f},
     127 * 64 * 0x1p107f},
    /* What one product adds, another takes away. */
    {"int8:pc", 4, 192, 0x1p-6f, 0, 0.0f, {0x1p127f, 0x1p127f, 0x1p127f, -0x1.8p127f}, 0x1.8p127f},
    {"fp8:pc", 4, 0x40, 1.0f, 0, 0.0f, {0x1.8p127f, 0x1.8p127f, -0x1.8p127f, -0x1p127f}, 0x1p127f},
    /* The product with the prescale is no f32. */
    {"int4:pc", 64, 9, 0x1p-20f, 0, 16.0f, {0x1p127f, 0x1p126f, 0x1p127f, 0x1p126f}, 48 * 0x1p111f},
    /* The same with large weights. */
    {"int8:pc", 32, 255, 0x1p119f, 0, 0.0f, {0x1p30f, 0x1p30f, -0x1p30f, -0x1p30f}, 0.0f},
    /* Code and zero point are equal. */
    {"int4:g32:zp", 64, 15, 0x1p90f, 7, 0.0f, {0x1p36f, 0x1p36f, 0x1p36f, 0x1p36f}, 0.0f},
};

static uint16_t bf16_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)(u >> 16);
}

/* Rows 0, 3, ... are those of the problem; 1, 4, ... are small; 2, 5, ... hold an infinity. */
static void check_rows(const struct problem *p, int64_t m, const float *y)
{
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < N; j++) {
            const double exact = (double)p->exact * (double)(j + 1) / 64.0;
            const double must = i % 3 == 0 ? exact : exact * 0x1p-70;
            const double got = (double)y[i * N + j];
            const int good = i % 3 == 2 ? !isfinite(got) : fabs(got - must) <= 1e-5 * fabs(must);
            if (!good)
                fail_msg("%s, m = %d: y[%d, %d] is %g, not %g", p->format, (int)m, (int)i, (int)j,
                         got, must);
        }
}

static void test_products(void **state)
{
    (void)state;
    static const int64_t ms[] = {1, 2, 5, 7, MAX_M};
    static float x[MAX_M * MAX_K], y[MAX_M * N], again[MAX_M * N];
    static uint16_t half[MAX_M * MAX_K];
    for (size_t f = 0; f < sizeof problems / sizeof *problems; f++)
        for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
            const struct problem *p = &problems[f];
            qn_ctx *one = masked(masks[i], 1), *three = masked(masks[i], 3);
            for (size_t s = 0; s < sizeof ms / sizeof *ms; s++) {
                for (int64_t at = 0; at < ms[s] * p->k; at++) {
                    const int64_t row = at / p->k;
                    x[at] = p->x[at % p->k % 4] * (row % 3 == 1 ? 0x1p-70f : 1.0f);
                    if (row % 3 == 2 && at % p->k == p->k - 1)
                        x[at] = INFINITY;
                    half[at] = bf16_of(x[at]);
                }
                run(one, p, x, QN_F32, ms[s], y);
                check_rows(p, ms[s], y);
                run(three, p, x, QN_F32, ms[s], again);
                for (int64_t at = 0; at < ms[s] * N; at++)
                    assert_true(memcmp(&y[at], &again[at], sizeof *y) == 0 || isnan(y[at]));
                run(three, p, half, QN_BF16, ms[s], y);
                check_rows(p, ms[s], y);
            }
            qn_ctx_destroy(one);
            qn_ctx_destroy(three);
        }
}

/* Sums beyond f32 are infinite, with their sign. */
static void test_too_large(void **state)
{
    (void)state;
    const struct problem p = {"int4:pc", 64, 15, 64.0f, 0, 0.0f, {0}, 0};
    static float x[2 * 64], y[2 * N];
    for (int64_t at = 0; at < 128; at++)
        x[at] = at < 64 ? 0x1p127f : -0x1p127f;
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        qn_ctx *ctx = masked(masks[i], 2);
        run(ctx, &p, x, QN_F32, 2, y);
        for (int64_t j = 0; j < N; j++)
            assert_true(y[j] == INFINITY && y[N + j] == -INFINITY);
        qn_ctx_destroy(ctx);
    }
}

/* Depthwise, three taps of weight 1: 2^127 + 2^127 - 2^127 in every channel and pixel. */
static void test_depthwise(void **state)
{
    (void)state;
    enum { CHANNELS = 20, W = 50, TAPS = 3, OUT = W - TAPS + 1 };
    static float x[CHANNELS * W], y[CHANNELS * OUT];
    uint8_t codes[CHANNELS * TAPS];
    float scale[CHANNELS];
    memset(codes, 129, sizeof codes);
    for (int64_t i = 0; i < CHANNELS; i++)
        scale[i] = 1.0f;
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++)
        for (int32_t image = QN_NCHW; image <= QN_NHWC; image++) {
            qn_ctx *ctx = masked(masks[i], 2);
            qn_weight_parts parts;
            qn_weight *weight = NULL;
            qn_packed *w = NULL;
            qn_conv_args args;
            qn_weight_parts_init(&parts);
            assert_ok(qn_format_parse("int8:pc", &parts.format, NULL));
            parts.n = parts.conv_groups = CHANNELS;
            parts.k = parts.kw = TAPS;
            parts.codes = codes;
            parts.scale = scale;
            assert_ok(qn_weight_create(ctx, &parts, &weight, NULL));
            assert_ok(qn_pack(ctx, weight, NULL, &w, NULL));
            for (int64_t c = 0; c < CHANNELS; c++)
                for (int64_t p = 0; p < W; p++)
                    x[image == QN_NCHW ? c * W + p : p * CHANNELS + c] =
                        p % 3 == 2 ? -0x1p127f : 0x1p127f;
            qn_conv_args_init(&args);
            args.w = w;
            args.image = (qn_image)image;
            args.strategy = QN_STRATEGY_FLOAT;
            const int64_t in[3] = {1, image == QN_NCHW ? CHANNELS : W,
                                   image == QN_NCHW ? W : CHANNELS};
            const int64_t out[3] = {1, image == QN_NCHW ? CHANNELS : OUT,
                                    image == QN_NCHW ? OUT : CHANNELS};
            args.x = qn_tensor_make(x, QN_F32, 3, in);
            args.y = qn_tensor_make(y, QN_F32, 3, out);
            assert_ok(conv2d_in_arena(ctx, &args));
            for (int64_t at = 0; at < CHANNELS * OUT; at++)
                assert_true(y[at] == 0x1p127f);
            qn_packed_destroy(w);
            qn_weight_destroy(weight);
            qn_ctx_destroy(ctx);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_too_large),
        cmocka_unit_test(test_depthwise),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
