/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that are not quantized: f32, f16 and bf16 through quantizing, files of bytes, products
 * with every kind of epilogue, and what is refused of them. */
#include "api.h"

enum { N = 37, K = 70 };

static qn_ctx *ctx;

static int start(void **state)
{
    (void)state;
    return qn_ctx_create(NULL, &ctx, NULL) == QN_OK ? 0 : -1;
}

static int stop(void **state)
{
    (void)state;
    qn_ctx_destroy(ctx);
    return 0;
}

static const char *const specs[3] = {"f32", "f16", "bf16"};

/* To the digits that the type has, ties to even; f16 has no fewer below 2^-14. */
static float rounded(int s, float v)
{
    int exponent;
    if (s == 0 || v == 0.0f)
        return v;
    frexp((double)v, &exponent);
    const int least = s == 1 && exponent < -13 ? -13 : exponent;
    const double ulp = ldexp(1.0, least - (s == 1 ? 11 : 8));
    return (float)(rint((double)v / ulp) * ulp);
}

static qn_status quantize_rows(int64_t rows, const char *spec, const float *dense,
                               const float *prescale, qn_method method, qn_weight **w,
                               qn_error *err)
{
    const qn_tensor t = qn_tensor_2d((void *)(uintptr_t)dense, QN_F32, rows, K);
    qn_quantize_options how;
    qn_quantize_options_init(&how);
    assert_ok(qn_format_parse(spec, &how.format, NULL));
    how.method = method;
    how.prescale = prescale;
    return qn_quantize(ctx, &t, &how, w, err);
}

static qn_status quantize(const char *spec, const float *dense, const float *prescale,
                          qn_method method, qn_weight **w, qn_error *err)
{
    return quantize_rows(N, spec, dense, prescale, method, w, err);
}

/* Each weight is rounded once, after it was divided by the prescale. */
static void test_rounding(void **state)
{
    (void)state;
    float dense[N * K], prescale[K], out[N * K];
    fill_reals(dense, N * K, 1);
    dense[3] = 1.0f + 0x1p-11f;    /* between two f16: the even one */
    dense[4] = 1.0f + 3 * 0x1p-8f; /* and two bf16 */
    dense[5] = 0x1p-25f;
    for (int p = 0; p < K; p++)
        prescale[p] = 0.25f + (float)(p % 5);
    for (int s = 0; s < 3; s++)
        for (int scaled = 0; scaled < 2; scaled++) {
            qn_weight *w = NULL;
            qn_weight_parts parts;
            qn_packed *packed = NULL;
            qn_packed_info info;
            const qn_tensor to = qn_tensor_2d(out, QN_F32, N, K);
            assert_ok(quantize(specs[s], dense, scaled ? prescale : NULL, QN_METHOD_RTN, &w, NULL));
            assert_ok(qn_weight_dequantize(ctx, w, false, &to));
            for (int i = 0; i < N * K; i++)
                assert_true(out[i] == rounded(s, scaled ? dense[i] / prescale[i % K] : dense[i]));
            qn_weight_parts_init(&parts);
            assert_ok(qn_weight_view(w, &parts));
            assert_int_equal(parts.format.code, QN_CODE_FLOAT);
            for (int j = 0; j < N; j++)
                assert_true(parts.scale[j] == 1.0f);
            qn_packed_info_init(&info);
            assert_ok(qn_pack(ctx, w, NULL, &packed, NULL));
            assert_ok(qn_packed_query(packed, &info));
            assert_int_equal(info.has_sums, 0);
            assert_true(info.bytes < 4096 + 48 * 96 * qn_dtype_bytes(parts.format.scale_dtype) +
                                         48 * 4 + 4 * K + 256);
            assert_ok(qn_packed_verify(ctx, packed, NULL));
            qn_packed_destroy(packed);
            qn_weight_destroy(w);
        }
}

/* y = x w^T + bias + residual in each type of x, beside the sums in double; quern-check has the
 * other epilogues. */
static void test_products(void **state)
{
    (void)state;
    enum { M = 19 };
    static const qn_dtype types[3] = {QN_F32, QN_F16, QN_BF16};
    float dense[N * K], real[M * K], bias[N], residual[M * N], y[M * N];
    fill_reals(dense, N * K, 2);
    fill_reals(real, M * K, 3);
    fill_reals(bias, N, 4);
    fill_reals(residual, M * N, 5);
    for (int s = 0; s < 3; s++)
        for (int t = 0; t < 3; t++) {
            qn_weight *w = NULL;
            qn_packed *packed = NULL;
            assert_ok(quantize(specs[s], dense, NULL, QN_METHOD_RTN, &w, NULL));
            assert_ok(qn_pack(ctx, w, NULL, &packed, NULL));
            qn_weight *rows = NULL; /* x as numbers of its type */
            qn_weight_parts parts;
            qn_weight_parts_init(&parts);
            assert_ok(quantize_rows(M, specs[t], real, NULL, QN_METHOD_RTN, &rows, NULL));
            assert_ok(qn_weight_view(rows, &parts));
            qn_matmul_args a;
            qn_matmul_args_init(&a);
            a.strategy = QN_STRATEGY_FLOAT;
            a.x = qn_tensor_2d((void *)(uintptr_t)parts.codes, types[t], M, K);
            a.w = packed;
            a.y = qn_tensor_2d(y, QN_F32, M, N);
            a.epilogue.bias = qn_tensor_1d(bias, QN_F32, N);
            a.epilogue.residual = qn_tensor_2d(residual, QN_F32, M, N);
            assert_ok(matmul_in_arena(ctx, &a));
            for (int i = 0; i < M * N; i++) {
                double sum = 0;
                for (int p = 0; p < K; p++)
                    sum += (double)rounded(t, real[i / N * K + p]) *
                           (double)rounded(s, dense[i % N * K + p]);
                sum += (double)bias[i % N] + (double)residual[i];
                assert_true(fabs((double)y[i] - sum) < 1e-4);
            }
            qn_weight_destroy(rows);
            qn_packed_destroy(packed);
            qn_weight_destroy(w);
        }
}

static void expect_refusal(qn_status status, qn_status wanted, const qn_error *err,
                           const char *words)
{
    assert_int_equal(status, wanted);
    if (strstr(err->text, words) == NULL)
        fail_msg("\"%s\" lacks \"%s\"", err->text, words);
}

static void test_refusals(void **state)
{
    (void)state;
    float dense[N * K], y[2 * N], x[2 * K];
    qn_error err = {0};
    qn_weight *w = NULL;
    fill_reals(dense, N * K, 6);
    fill_reals(x, 2 * K, 7);
    expect_refusal(quantize("f16", dense, NULL, QN_METHOD_SEARCH, &w, &err), QN_E_ARGUMENT, &err,
                   "no scales to search");
    dense[2 * K + 7] = 65520.0f;
    expect_refusal(quantize("f16", dense, NULL, QN_METHOD_RTN, &w, &err), QN_E_VALUE, &err,
                   "row 2, column 7 is 65520, too large for f16");
    dense[2 * K + 7] = INFINITY;
    expect_refusal(quantize("f32", dense, NULL, QN_METHOD_RTN, &w, &err), QN_E_VALUE, &err,
                   "row 2, column 7 is infinite");
    assert_null(w);

    qn_weight_parts p;
    qn_weight_parts_init(&p);
    assert_ok(qn_format_parse("f32", &p.format, NULL));
    p.n = N;
    p.k = K;
    p.codes = (const uint8_t *)dense;
    expect_refusal(qn_weight_create(ctx, &p, &w, &err), QN_E_VALUE, &err,
                   "row 2, position 7 is infinite");
    dense[2 * K + 7] = 1.0f;
    p.scale = x;
    expect_refusal(qn_weight_create(ctx, &p, &w, &err), QN_E_VALUE, &err, "have none, or 1");
    p.format.bits = 16;
    expect_refusal(qn_weight_create(ctx, &p, &w, &err), QN_E_FORMAT, &err, "f32, f16 or bf16");
    p.format.bits = 32;
    p.scale = NULL;
    assert_ok(qn_weight_create(ctx, &p, &w, &err));

    qn_packed *packed = NULL;
    qn_pack_options options;
    qn_pack_options_init(&options);
    options.layout = "q8n16";
    expect_refusal(qn_pack(ctx, w, &options, &packed, &err), QN_E_LAYOUT, &err, "floats");
    assert_ok(qn_pack(ctx, w, NULL, &packed, NULL));
    qn_matmul_args a;
    qn_matmul_args_init(&a);
    a.x = qn_tensor_2d(x, QN_F32, 2, K);
    a.w = packed;
    a.y = qn_tensor_2d(y, QN_F32, 2, N);
    for (int i = 0; i < 2; i++) {
        a.strategy = i == 0 ? QN_STRATEGY_INT8_ROW : QN_STRATEGY_INT8_BLOCK;
        a.error = &err;
        expect_refusal(matmul_in_arena(ctx, &a), QN_E_UNSUPPORTED, &err, "not quantized");
    }
    a.strategy = QN_STRATEGY_FLOAT;
    assert_ok(matmul_in_arena(ctx, &a));
    qn_packed_destroy(packed);
    qn_weight_destroy(w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rounding),
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, start, stop);
}
