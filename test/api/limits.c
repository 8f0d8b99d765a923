/* SPDX-License-Identifier: Apache-2.0 */
/* What is at the limits: weights whose values are beyond f32, however they are made; shapes that
 * cost nothing to write down; tensors of size zero, whose strides nobody reads. */
#include "api.h"

#include <float.h>

/* One row of `k` equal codes. */
static qn_status create(const qn_ctx *ctx, const char *format, uint8_t code, float scale,
                        float shift, qn_weight **weight, qn_error *why)
{
    enum { K = 8 };
    uint8_t codes[K];
    qn_weight_parts p;
    const int32_t zero = (int32_t)fmaxf(fminf(shift, 1e6f), -1e6f);
    memset(codes, code, sizeof codes);
    qn_weight_parts_init(&p);
    assert_ok(qn_format_parse(format, &p.format, NULL));
    p.n = 1;
    p.k = K;
    p.codes = codes;
    p.scale = &scale;
    p.zero = p.format.shift == QN_SHIFT_ZERO ? &zero : NULL;
    p.offset = p.format.shift >= QN_SHIFT_OFFSET ? &shift : NULL;
    return qn_weight_create(ctx, &p, weight, why);
}

static void test_values(void **state)
{
    static const struct {
        const char *format;
        uint8_t code; /* as stored */
        float scale, shift;
        bool is_good;
    } cases[] = {
        {"int4:pc", 15, 3e38f, 0, false},
        {"int4:pc", 9, 3e38f, 0, true},
        {"int4:pc", 7, -3e38f, 0, true},
        {"int4:pc", 0, 4e37f, 0, true},
        {"int4:pc", 0, 4.3e37f, 0, false},
        {"int8:pc", 255, FLT_MAX / 128, 0, true},
        {"int4:pc:off", 9, 3e38f, 3e38f, false},
        {"int4:pc:off", 9, 3e38f, -3e38f, true},
        {"int4:pc:off", 15, 3e38f, -FLT_MAX, false}, /* 7 * 3e38 on the way */
        {"int4:pc:zp", 15, 1e38f, 7, false},
        {"int4:pc:zp", 9, 1e38f, -1, true},
        {"int4:pc:zp", 8, 1e38f, 4, false},
        {"nf4:pc", 15, FLT_MAX, 0, true},
        {"e2m1:pc", 7, FLT_MAX, 0, false},
        {"e2m1:pc", 2, FLT_MAX, 0, true},
        {"iq4nl:pc", 0, 1e37f, 0, false},
        {"fp8:pc", 0x7e, 1e36f, 0, false},
        {"fp8:pc", 0x38, 1e38f, 0, true},
    };
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        float values[8];
        qn_weight *weight = NULL;
        qn_error why = {0};
        const qn_status status = create(ctx, cases[i].format, cases[i].code, cases[i].scale,
                                        cases[i].shift, &weight, &why);
        if (status != (cases[i].is_good ? QN_OK : QN_E_VALUE))
            fail_msg("case %zu: %s %s", i, qn_status_name(status), why.text);
        if (!cases[i].is_good) {
            assert_non_null(strstr(why.text, "beyond f32"));
            continue;
        }
        const qn_tensor out = qn_tensor_2d(values, QN_F32, 1, 8);
        assert_ok(qn_weight_dequantize(ctx, weight, false, &out));
        assert_true(isfinite(values[0]));
        qn_weight_destroy(weight);
    }
    qn_ctx_destroy(ctx);
}

/* The largest numbers of f32 in every format and by every method: finite weights, or a refusal. */
static void test_quantizing(void **state)
{
    enum { N = 3, K = 64 };
    static const char *const formats[] = {
        "int2:g32", "int4:g32",    "int8:pc",           "int8:pt", "int4:g16:zp", "int4:g32:off",
        "nf4:g16",  "iq4nl:g32",   "e2m1:g32",          "fp8:pc",  "int4:c16",    "q4_k",
        "int5:pc",  "int4:pt:off", "int4:g32:off:bf16", "q6_k",    "mxfp4",       "nvfp4"};
    static const float magnitudes[] = {FLT_MAX, 0x1p127f, 3e38f, 1e38f, 1e37f};
    qn_ctx *ctx = ctx_make(2);
    int good = 0;
    (void)state;
    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (int32_t way = 0; way < 4 * 3 * 5; way++) {
            float dense[N * K], values[N * K], samples[4 * K], prescale[K];
            qn_quantize_options o;
            qn_weight *weight = NULL;
            qn_error why = {0};
            qn_quantize_options_init(&o);
            assert_ok(qn_format_parse(formats[f], &o.format, NULL));
            o.method = way % 3;
            o.range = way / 3 % 3 == 1 ? QN_RANGE_HALF : QN_RANGE_NARROW;
            for (int i = 0; i < N * K; i++)
                dense[i] = magnitudes[way / 12] * (i % 3 == 0 ? 1.0f : i % 3 == 1 ? -1.0f : 0.3f);
            for (int i = 0; i < 4 * K; i++)
                samples[i] = (float)(i * 37 % 101 - 50);
            for (int i = 0; i < K; i++)
                prescale[i] = way / 3 % 4 == 2 ? 0.5f : 2.0f;
            const qn_tensor x = qn_tensor_2d(samples, QN_F32, 4, K);
            o.samples = o.method == QN_METHOD_GPTQ ? &x : NULL;
            o.prescale = way / 3 % 4 >= 2 ? prescale : NULL;
            const qn_tensor w = qn_tensor_2d(dense, QN_F32, N, K);
            const qn_status status = qn_quantize(ctx, &w, &o, &weight, &why);
            if (status != QN_OK && status != QN_E_VALUE)
                fail_msg("%s: %s %s", formats[f], qn_status_name(status), why.text);
            if (status != QN_OK)
                continue;
            const qn_tensor out = qn_tensor_2d(values, QN_F32, N, K);
            assert_ok(qn_weight_dequantize(ctx, weight, false, &out));
            for (int i = 0; i < N * K; i++)
                if (!isfinite(values[i]))
                    fail_msg("%s, way %d: element %d is not finite", formats[f], way, i);
            qn_weight_destroy(weight);
            good++;
        }
    assert_true(good > 100);
    qn_ctx_destroy(ctx);
}

static void test_shapes(void **state)
{
    static const struct {
        int64_t n, k;
        bool is_good;
    } cases[] = {{1 << 24, 0, true},           {(1 << 24) + 1, 0, false},    {INT64_MAX, 0, false},
                 {(int64_t)1 << 36, 0, false}, {0, INT32_MAX, true},         {0, INT64_MAX, false},
                 {(int64_t)1 << 31, 1, false}, {INT64_MAX, INT64_MAX, false}};
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_quantize_options o;
        qn_weight *weight = NULL;
        qn_error why = {0};
        uint8_t nothing[1];
        qn_quantize_options_init(&o);
        assert_ok(qn_format_parse("int4:g32", &o.format, NULL));
        const qn_tensor w = qn_tensor_2d(nothing, QN_F32, cases[i].n, cases[i].k);
        const qn_status status = qn_quantize(ctx, &w, &o, &weight, &why);
        if ((status == QN_OK) != cases[i].is_good)
            fail_msg("case %zu: %s %s", i, qn_status_name(status), why.text);
        qn_weight_destroy(weight);
    }
    qn_ctx_destroy(ctx);
}

static qn_tensor empty_tensor(int64_t rows, int64_t columns)
{
    qn_tensor t = qn_tensor_2d(NULL, QN_F32, rows, columns);
    t.stride[0] = t.stride[1] = 0;
    return t;
}

/* Strides of 0, as numpy may have them. */
static void test_empty(void **state)
{
    enum { N = 24, K = 64 };
    qn_ctx *ctx = ctx_make(1);
    qn_packed *packed = packed_make(ctx, "int4:g32", (struct shape){.n = N, .k = K}, 1, NULL);
    qn_packed *no_columns = packed_make(ctx, "int4:g32", (struct shape){.n = N}, 1, NULL);
    qn_packed *no_rows = packed_make(ctx, "int4:g32", (struct shape){.k = K}, 1, NULL);
    float y[3 * N], x[3 * K] = {0};
    qn_quantize_options o;
    qn_weight *weight = NULL;
    (void)state;
    for (qn_strategy s = QN_STRATEGY_FLOAT; s <= QN_STRATEGY_INT8_BLOCK; s++) {
        qn_matmul_args a;
        qn_matmul_args_init(&a);
        a.strategy = s;
        a.w = packed;
        a.x = empty_tensor(0, K);
        a.y = empty_tensor(0, N);
        assert_ok(matmul_in_arena(ctx, &a));
        a.w = no_columns;
        a.x = empty_tensor(3, 0);
        a.y = qn_tensor_2d(y, QN_F32, 3, N);
        y[0] = 1.0f;
        assert_ok(matmul_in_arena(ctx, &a));
        assert_true(y[0] == 0.0f);
        a.w = no_rows;
        a.x = qn_tensor_2d(x, QN_F32, 3, K);
        a.y = empty_tensor(3, 0);
        assert_ok(matmul_in_arena(ctx, &a));
    }
    qn_quantize_options_init(&o);
    assert_ok(qn_format_parse("int4:g32", &o.format, NULL));
    const qn_tensor none = empty_tensor(0, K);
    assert_ok(qn_quantize(ctx, &none, &o, &weight, NULL));
    assert_ok(qn_weight_dequantize(ctx, weight, true, &none));
    qn_weight_destroy(weight);
    qn_packed_destroy(packed);
    qn_packed_destroy(no_columns);
    qn_packed_destroy(no_rows);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_quantizing),
        cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_empty),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
