/* SPDX-License-Identifier: Apache-2.0 */
/* An x that is huge beside the others of its row, and meets weights of zero, costs the others none
 * of their digits: the bound of docs/numerics.md counts what each x meets. */
#include "api.h"

/* So many outputs that kernels are called twice. */
enum { N = 552, K = 512, GROUP = 128, M = 3, HUGE_AT = 133 };

static const uint64_t masks[] = {QN_ISA_PORTABLE, QN_ISA_AVX2, QN_ISA_AVX2 | QN_ISA_AVX512,
                                 QN_ISA_ALL};

static qn_packed *pack(const qn_ctx *ctx, uint8_t *codes)
{
    float scale[N * K / GROUP];
    uint64_t seed = 1;
    qn_weight_parts parts;
    qn_weight *weight = NULL;
    qn_packed *packed = NULL;
    for (int64_t i = 0; i < N * K; i++)
        codes[i] = i % K == HUGE_AT ? 8 : (uint8_t)(draw(&seed) / 7 % 16);
    for (int64_t i = 0; i < N * K / GROUP; i++)
        scale[i] = 1.0f;
    qn_weight_parts_init(&parts);
    assert_ok(qn_format_parse("int4:g128", &parts.format, NULL));
    parts.n = N;
    parts.k = K;
    parts.codes = codes;
    parts.scale = scale;
    assert_ok(qn_weight_create(ctx, &parts, &weight, NULL));
    assert_ok(qn_pack(ctx, weight, NULL, &packed, NULL));
    qn_weight_destroy(weight);
    return packed;
}

static void compare(const uint8_t *codes, const float *x, float got, int64_t j)
{
    double exact = 0, size = 0;
    for (int64_t p = 0; p < K; p++) {
        const double product = (double)x[p] * (codes[j * K + p] - 8);
        exact += product;
        size += fabs(product);
    }
    const double bound = 2 * (K + 8) * 0x1p-24 * size;
    if (!(fabs((double)got - exact) <= bound))
        fail_msg("output %d: %g, not %g within %g", (int)j, (double)got, exact, bound);
}

static void one_problem(qn_ctx *ctx, int64_t m, float huge)
{
    static uint8_t codes[N * K];
    static float x[M * K], y[M * N];
    uint64_t seed = 2;
    qn_packed *const w = pack(ctx, codes);
    qn_matmul_args args;
    for (int64_t i = 0; i < m * K; i++)
        x[i] = i % K == HUGE_AT ? huge : (float)((double)(draw(&seed) >> 8) * 0x1p-54 - 0x1p-31);
    qn_matmul_args_init(&args);
    args.w = w;
    args.x = qn_tensor_2d(x, QN_F32, m, K);
    args.y = qn_tensor_2d(y, QN_F32, m, N);
    args.strategy = QN_STRATEGY_FLOAT;
    assert_ok(matmul_in_arena(ctx, &args));
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < N; j++)
            compare(codes, x + i * K, y[i * N + j], j);
    qn_packed_destroy(w);
}

static void test_one_huge_x(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        qn_ctx_options options;
        qn_ctx *ctx = NULL;
        qn_ctx_options_init(&options);
        options.n_threads = 1;
        options.isa_mask = masks[i];
        assert_ok(qn_ctx_create(&options, &ctx, NULL));
        for (int64_t m = 1; m <= M; m++) {
            one_problem(ctx, m, 0x1p-25f);
            one_problem(ctx, m, 1.0f);
            one_problem(ctx, m, 0x1p40f);
        }
        qn_ctx_destroy(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_huge_x),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
