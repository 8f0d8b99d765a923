/* SPDX-License-Identifier: Apache-2.0 */
/* Columns of x that are several times as large as the others leave those few of the codes there
 * are, for which kernels may have forms of their own: whatever they cut many rows into and however
 * many threads there are, the bits are those of portable C. */
#include "api.h"

enum { N = 200, K = 576, M = 150 };

static qn_packed *pack(const qn_ctx *ctx)
{
    static uint8_t codes[N * K];
    static float scale[N];
    uint64_t seed = 1;
    qn_weight_parts parts;
    qn_weight *weight = NULL;
    qn_packed *packed = NULL;
    for (int64_t i = 0; i < N * K; i++)
        codes[i] = (uint8_t)(draw(&seed) >> 20 & 255u);
    for (int64_t i = 0; i < N; i++)
        scale[i] = 1.0f / (float)(i + 3);
    qn_weight_parts_init(&parts);
    assert_ok(qn_format_parse("int8:pc", &parts.format, NULL));
    parts.n = N;
    parts.k = K;
    parts.codes = codes;
    parts.scale = scale;
    assert_ok(qn_weight_create(ctx, &parts, &weight, NULL));
    assert_ok(qn_pack(ctx, weight, NULL, &packed, NULL));
    qn_weight_destroy(weight);
    return packed;
}

static void multiply(uint64_t mask, int32_t threads, int64_t m, float *x, float *y)
{
    qn_ctx_options options;
    qn_ctx *ctx = NULL;
    qn_matmul_args args;
    qn_ctx_options_init(&options);
    options.n_threads = threads;
    options.isa_mask = mask;
    assert_ok(qn_ctx_create(&options, &ctx, NULL));
    qn_packed *const w = pack(ctx);
    qn_matmul_args_init(&args);
    args.w = w;
    args.x = qn_tensor_2d(x, QN_F32, m, K);
    args.y = qn_tensor_2d(y, QN_F32, m, N);
    args.strategy = QN_STRATEGY_INT8_ROW;
    assert_ok(matmul_in_arena(ctx, &args));
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
}

static void test_many_rows(void **state)
{
    static const uint64_t masks[] = {QN_ISA_AVX2, QN_ISA_ALL};
    static const int64_t rows[] = {24, 64, 65, 131, M};
    static const float large[] = {1, 3, 8};
    static float x[M * K], expected[M * N], y[M * N];
    uint64_t seed = 2;
    (void)state;
    for (size_t l = 0; l < sizeof large / sizeof *large; l++) {
        for (int64_t i = 0; i < M * K; i++) {
            float v = -2.0f;
            for (int j = 0; j < 4; j++)
                v += (float)(draw(&seed) >> 8) * 0x1p-24f;
            x[i] = i % K % 37 == 11 ? large[l] * v : v;
        }
        multiply(QN_ISA_PORTABLE, 1, M, x, expected);
        for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
            for (size_t mask = 0; mask < 2; mask++)
                for (int32_t threads = 1; threads <= 3; threads++) {
                    memset(y, 0xff, sizeof y);
                    multiply(masks[mask], threads, rows[i], x, y);
                    assert_memory_equal(y, expected, (size_t)(rows[i] * N) * sizeof *y);
                }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_many_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
