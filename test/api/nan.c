/* SPDX-License-Identifier: Apache-2.0 */
/* The int8 strategies, and every result of 16 bits, have one NaN: the same bits on every
 * instruction set, whatever made it (a NaN in x or in the epilogue, or infinities that meet).
 * docs/numerics.md, "NaN". */
#include "api.h"

enum { N = 40, K = 96, M = 21, GROUPS = K / 32 };

static const uint64_t masks[] = {
    QN_ISA_PORTABLE,
    QN_ISA_AVX2,
    QN_ISA_AVX2 | QN_ISA_AVX_VNNI,
    QN_ISA_AVX2 | QN_ISA_AVX512,
    QN_ISA_AVX2 | QN_ISA_AVX512 | QN_ISA_VNNI512,
    QN_ISA_NEON,
    QN_ISA_ALL & ~(uint64_t)QN_ISA_AMX_BF16,
    QN_ISA_ALL,
};
enum { N_MASKS = sizeof masks / sizeof *masks };

/* One instruction set. */
static qn_ctx *masked(uint64_t mask)
{
    qn_ctx_options options;
    qn_ctx *ctx = NULL;
    qn_ctx_options_init(&options);
    options.n_threads = 2;
    options.isa_mask = mask;
    options.arena_bytes = 4 << 20;
    assert_ok(qn_ctx_create(&options, &ctx, NULL));
    return ctx;
}

/* What a case is. Convolutions: K = channels times 3 taps of one row. */
struct problem {
    const char *format;
    qn_strategy strategy;
    int32_t symmetric;
    int64_t m;
    qn_dtype y;
    float bias; /* of the odd outputs; 0: no bias */
    int32_t act;
    int32_t groups; /* 0: a matmul; convolution groups */
    qn_image image;
};

/* Depthwise: an output for each channel. */
static int64_t outputs_of(const struct problem *p)
{
    return p->groups == K / 3 ? K / 3 : N;
}

static qn_packed *pack(const qn_ctx *ctx, const struct problem *p)
{
    static uint8_t codes[N * K];
    static float scale[N * K], offset[N * K];
    qn_weight_parts parts;
    qn_weight *weight = NULL;
    qn_packed *packed = NULL;
    qn_weight_parts_init(&parts);
    assert_ok(qn_format_parse(p->format, &parts.format, NULL));
    const int32_t groups = p->groups > 0 ? p->groups : 1;
    parts.n = outputs_of(p);
    parts.k = K / groups;
    parts.kw = p->groups > 0 ? 3 : 1;
    parts.conv_groups = groups;
    const int64_t per_row = qn_format_groups(&parts.format, parts.k, parts.k / parts.kw);
    uint64_t seed = 7;
    for (int64_t i = 0; i < parts.n * parts.k; i++)
        codes[i] = (uint8_t)(draw(&seed) % (1u << parts.format.bits));
    /* Products of a row's large segment are infinite, of either sign. */
    for (int64_t i = 0; i < parts.n * per_row; i++) {
        scale[i] = i % 3 == 0 ? 0x1p120f : 1.0f;
        offset[i] = i % 2 == 0 ? -0x1p120f : 1.0f;
    }
    parts.codes = codes;
    parts.scale = scale;
    parts.offset = parts.format.shift >= QN_SHIFT_OFFSET ? offset : NULL;
    qn_error err = {0};
    if (qn_weight_create(ctx, &parts, &weight, &err) != QN_OK)
        fail_msg("%s: %s", p->format, err.text);
    assert_ok(qn_pack(ctx, weight, NULL, &packed, NULL));
    qn_weight_destroy(weight);
    return packed;
}

/* Every third row holds a NaN of either sign behind a segment that overflows, every third one
 * infinities, and the others numbers. */
static void fill_x(float *x)
{
    uint64_t seed = 3;
    for (int64_t i = 0; i < M * K; i++) {
        const int64_t row = i / K, p = i % K;
        x[i] = draw_real(&seed) * (row % 3 != 2 && p < 32 ? 0x1p120f : 1.0f);
        if (row % 3 == 0 && p == 40)
            x[i] = row % 2 == 0 ? NAN : -NAN;
        if (row % 3 == 1 && p == 70)
            x[i] = row % 2 == 0 ? INFINITY : -INFINITY;
    }
}

static int64_t run(uint64_t mask, const struct problem *p, const float *x, void *y)
{
    static int8_t given[M * K];
    static float bias[N];
    qn_ctx *ctx = masked(mask);
    qn_packed *w = pack(ctx, p);
    qn_epilogue epilogue;
    const bool is_static = p->strategy == QN_STRATEGY_INT8_STATIC;
    qn_epilogue_init(&epilogue);
    for (int64_t j = 0; j < N; j++)
        bias[j] = j % 2 == 0 ? 1.0f : p->bias;
    if (p->bias != 0.0f)
        epilogue.bias = qn_tensor_1d(bias, QN_F32, outputs_of(p));
    epilogue.act = (qn_act)p->act;
    for (int64_t i = 0; i < M * K; i++)
        given[i] = (int8_t)(i * 37 % 251 - 125);
    void *const data = is_static ? (void *)given : (void *)(uintptr_t)x;
    const qn_dtype dtype = is_static ? QN_I8 : QN_F32;
    const int64_t outputs = outputs_of(p);
    int64_t n;
    if (p->groups == 0) {
        qn_matmul_args args;
        qn_matmul_args_init(&args);
        args.w = w;
        args.x = qn_tensor_2d(data, dtype, p->m, K);
        args.y = qn_tensor_2d(y, p->y, p->m, outputs);
        args.strategy = p->strategy;
        args.epilogue = epilogue;
        args.quant.symmetric = p->symmetric;
        args.quant.x_scale = 0x1p100f;
        assert_ok(qn_matmul(ctx, &args, NULL, 0));
        n = p->m * outputs;
    } else {
        enum { W = 40, OUT = W - 2 };
        qn_conv_args args;
        const bool first = p->image == QN_NCHW;
        const int64_t channels = K / 3;
        const int64_t in[3] = {1, first ? channels : W, first ? W : channels};
        const int64_t out[3] = {1, first ? outputs : OUT, first ? OUT : outputs};
        qn_conv_args_init(&args);
        args.w = w;
        args.image = p->image;
        args.x = qn_tensor_make(data, dtype, 3, in);
        args.y = qn_tensor_make(y, p->y, 3, out);
        args.strategy = p->strategy;
        args.epilogue = epilogue;
        args.quant.symmetric = p->symmetric;
        args.quant.x_scale = 0x1p100f;
        assert_ok(qn_conv2d(ctx, &args, NULL, 0));
        n = OUT * outputs;
    }
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
    return n;
}

/* The bits of y at i; is it a NaN, and which one must it be? */
static uint32_t bits_at(const void *y, qn_dtype dtype, int64_t i, bool *is_nan, uint32_t *must)
{
    uint32_t word;
    uint16_t half;
    if (dtype == QN_F32) {
        memcpy(&word, (const uint8_t *)y + 4 * i, 4);
        *is_nan = (word & 0x7fffffffu) > 0x7f800000u;
        *must = 0x7fc00000u;
        return word;
    }
    memcpy(&half, (const uint8_t *)y + 2 * i, 2);
    *is_nan = (half & 0x7fffu) > (dtype == QN_F16 ? 0x7c00u : 0x7f80u);
    *must = dtype == QN_F16 ? 0x7e00u : 0x7fc0u;
    return half;
}

/* Returns how many NaN there were. */
static int64_t check(const struct problem *p)
{
    static float x[M * K];
    static float y[40 * N], first[40 * N];
    int64_t found = 0;
    fill_x(x);
    for (int32_t i = 0; i < N_MASKS; i++) {
        const int64_t n = run(masks[i], p, x, i == 0 ? first : y);
        for (int64_t at = 0; at < n; at++) {
            bool is_nan, first_is;
            uint32_t must;
            const uint32_t a = bits_at(first, p->y, at, &first_is, &must);
            const uint32_t b = bits_at(i == 0 ? first : y, p->y, at, &is_nan, &must);
            if (is_nan ? b != must : a != b && p->strategy != QN_STRATEGY_FLOAT)
                fail_msg("%s, strategy %d, m %d, y of type %d, groups %d, mask %d: y[%d] is %x, "
                         "must be %x",
                         p->format, p->strategy, (int)p->m, p->y, p->groups, i, (int)at, b,
                         is_nan ? must : a);
            found += is_nan;
        }
    }
    return found;
}

static void test_products(void **state)
{
    (void)state;
    static const int64_t ms[] = {1, 3, 9, M};
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    static const char *const formats[] = {"int8:g32", "int4:g32", "int4:g32:off", "int8:pc"};
    static const qn_strategy strategies[] = {QN_STRATEGY_INT8_ROW, QN_STRATEGY_INT8_BLOCK,
                                             QN_STRATEGY_FLOAT};
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (size_t s = 0; s < 3; s++)
            for (size_t i = 0; i < 4; i++)
                for (size_t t = 0; t < 3; t++)
                    for (int32_t act = 0; act <= (int32_t)QN_ACT_RELU; act++) {
                        const struct problem p = {.format = formats[f],
                                                  .strategy = strategies[s],
                                                  .symmetric = i % 2 == 0,
                                                  .m = ms[i],
                                                  .y = types[t],
                                                  .act = act};
                        if (p.strategy == QN_STRATEGY_FLOAT && p.y == QN_F32 && act == 0)
                            continue; /* what is left as it is: no promise */
                        assert_true(check(&p) > 0);
                    }
}

/* Given codes are numbers: a NaN comes from the epilogue, in every kind of kernel. */
static void test_given(void **state)
{
    (void)state;
    static const float biases[] = {NAN, -NAN, INFINITY, -INFINITY};
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    static const int32_t groups[] = {0, 1, 8, K / 3};
    for (size_t b = 0; b < 4; b++)
        for (size_t t = 0; t < 3; t++)
            for (size_t g = 0; g < 4; g++)
                for (int32_t image = QN_NCHW; image <= QN_NHWC; image++) {
                    const struct problem p = {.format = "int8:pc",
                                              .strategy = QN_STRATEGY_INT8_STATIC,
                                              .m = M,
                                              .y = types[t],
                                              .bias = biases[b],
                                              .groups = groups[g],
                                              .image = (qn_image)image};
                    assert_true(check(&p) > 0);
                }
}

/* The dynamic strategies of convolutions of every kind. */
static void test_patches(void **state)
{
    (void)state;
    static const int32_t groups[] = {1, 8};
    for (int32_t s = QN_STRATEGY_INT8_ROW; s <= (int32_t)QN_STRATEGY_INT8_BLOCK; s++)
        for (size_t g = 0; g < 2; g++)
            for (int32_t image = QN_NCHW; image <= QN_NHWC; image++)
                for (int32_t type = 0; type < 2; type++) {
                    const struct problem p = {.format = "int8:g32",
                                              .strategy = (qn_strategy)s,
                                              .m = M,
                                              .y = type == 0 ? QN_F32 : QN_BF16,
                                              .groups = groups[g],
                                              .image = (qn_image)image};
                    assert_true(check(&p) > 0);
                }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_given),
        cmocka_unit_test(test_patches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
