/* SPDX-License-Identifier: Apache-2.0 */
/* Strategies with x of e4m3: floats are quantized as qn_quantize_rows() does it, so that codes and
 * scales that are given have the same bits in y; values that e4m3 holds exactly give the product in
 * double; y of e4m3; rows of another number than planned. */
#include "api.h"

enum { M = 5, N = 40, K = 300, BLOCKS = 3, E = 2 };

static _Alignas(64) uint8_t scratch[1 << 20];

struct scene {
    qn_ctx *ctx;
    qn_packed *w[E];
    float x[M * K], scales[M * BLOCKS];
    uint8_t codes[M * K];
};

static void scene_begin(struct scene *s, const char *spec)
{
    s->ctx = ctx_make(2);
    for (int e = 0; e < E; e++)
        s->w[e] = packed_make(s->ctx, spec, (struct shape){.n = N, .k = K}, 5 + (uint64_t)e,
                              NULL);
    fill_reals(s->x, M * K, 9);
}

static void scene_end(struct scene *s)
{
    for (int e = 0; e < E; e++)
        qn_packed_destroy(s->w[e]);
    qn_ctx_destroy(s->ctx);
}

static void quantize(struct scene *s, int64_t block)
{
    qn_quantize_rows_args q;
    qn_quantize_rows_args_init(&q);
    q.x = qn_tensor_2d(s->x, QN_F32, M, K);
    q.codes = qn_tensor_2d(s->codes, QN_E4M3, M, K);
    q.scale = qn_tensor_2d(s->scales, QN_F32, M, block == 0 ? 1 : BLOCKS);
    q.block = block;
    assert_ok(qn_quantize_rows(s->ctx, &q));
}

static void test_given_codes(void **state)
{
    static const char *const specs[] = {"fp8:pc", "fp8:g128", "int4:g32", "nf4:g64"};
    (void)state;
    for (size_t f = 0; f < sizeof specs / sizeof *specs; f++) {
        static struct scene s;
        scene_begin(&s, specs[f]);
        for (qn_strategy strategy = QN_STRATEGY_FP8_ROW; strategy <= QN_STRATEGY_FP8_BLOCK;
             strategy++) {
            static float y[M * N], z[M * N];
            const bool is_row = strategy == QN_STRATEGY_FP8_ROW;
            qn_matmul_args a;
            quantize(&s, is_row ? 0 : 128);
            qn_matmul_args_init(&a);
            a.w = s.w[0];
            a.strategy = strategy;
            a.x = qn_tensor_2d(s.x, QN_F32, M, K);
            a.y = qn_tensor_2d(y, QN_F32, M, N);
            assert_ok(qn_matmul(s.ctx, &a, scratch, sizeof scratch));
            a.x = qn_tensor_2d(s.codes, QN_E4M3, M, K);
            a.x_scales = qn_tensor_2d(s.scales, QN_F32, M, is_row ? 1 : BLOCKS);
            a.y = qn_tensor_2d(z, QN_F32, M, N);
            assert_ok(qn_matmul(s.ctx, &a, scratch, sizeof scratch));
            assert_memory_equal(y, z, sizeof y);
        }
        scene_end(&s);
    }
}

/* Small integers are e4m3, with a static scale of 1 and weights of integers: exact sums. */
static void test_static(void **state)
{
    static struct scene s;
    static float y[M * N], z[M * N];
    qn_matmul_args a;
    (void)state;
    scene_begin(&s, "int4:g32");
    for (int i = 0; i < M * K; i++)
        s.x[i] = (float)(i % 13 - 6);
    qn_matmul_args_init(&a);
    a.w = s.w[0];
    a.x = qn_tensor_2d(s.x, QN_F32, M, K);
    a.y = qn_tensor_2d(z, QN_F32, M, N);
    assert_ok(qn_matmul(s.ctx, &a, scratch, sizeof scratch));
    a.strategy = QN_STRATEGY_FP8_STATIC;
    a.y = qn_tensor_2d(y, QN_F32, M, N);
    assert_ok(qn_matmul(s.ctx, &a, scratch, sizeof scratch));
    for (int i = 0; i < M * N; i++)
        assert_float_equal(y[i], z[i], 1e-4f * fabsf(z[i]) + 1e-4f);
    for (int i = 0; i < M * K; i++) /* 0, 1, ... 6 are 0, 0x38, 0x40, 0x44, 0x48, 0x4a, 0x4c */
        s.codes[i] = (uint8_t)("\x4c\x4a\x48\x44\x40\x38\x00\x38\x40\x44\x48\x4a\x4c"[i % 13] |
                               (i % 13 < 6 ? 0x80 : 0));
    a.x = qn_tensor_2d(s.codes, QN_E4M3, M, K);
    a.y = qn_tensor_2d(z, QN_F32, M, N);
    assert_ok(qn_matmul(s.ctx, &a, scratch, sizeof scratch));
    assert_memory_equal(y, z, sizeof y);
    scene_end(&s);
}

/* y of e4m3 is y of f32 by qn_quantize_rows()'s rounding, here with a given scale. */
static void test_output(void **state)
{
    static struct scene s;
    static float y[M * N];
    static uint8_t z[M * N];
    qn_matmul_args a;
    (void)state;
    scene_begin(&s, "fp8:pc");
    qn_matmul_args_init(&a);
    a.w = s.w[0];
    a.strategy = QN_STRATEGY_FP8_ROW;
    a.x = qn_tensor_2d(s.x, QN_F32, M, K);
    a.y = qn_tensor_2d(y, QN_F32, M, N);
    assert_ok(qn_matmul(s.ctx, &a, scratch, sizeof scratch));
    a.epilogue.y_scale = 0.03125f;
    a.y = qn_tensor_2d(z, QN_E4M3, M, N);
    assert_ok(qn_matmul(s.ctx, &a, scratch, sizeof scratch));
    for (int i = 0; i < M * N; i++) {
        const int e = z[i] >> 3 & 15, m = z[i] & 7;
        const double size = e == 0 ? ldexp(m, -9) : ldexp(8 + m, e - 10);
        const double v = fmin(fmax((double)y[i] * 32.0, -448.0), 448.0);
        const double got = (z[i] & 128) != 0 ? -size : size;
        assert_true(fabs(got - v) <= fabs(v) * 0x1p-4 + 0x1p-10);
    }
    scene_end(&s);
}

/* Each expert's rows are those of its product alone; a plan takes no more rows of x than it was
 * made for. */
static void test_grouped(void **state)
{
    static struct scene s;
    static float y[M * N], z[M * N];
    int32_t ids[M] = {1, 0, 1, 1, 0}, from[M] = {4, 0, 3, 3, 1};
    qn_grouped_args g;
    qn_matmul_args a;
    qn_plan *plan = NULL;
    qn_error error = {QN_OK, -1, ""};
    (void)state;
    scene_begin(&s, "fp8:g128");
    qn_grouped_args_init(&g);
    g.w = (const qn_packed *const *)s.w;
    g.n_experts = E;
    g.strategy = QN_STRATEGY_FP8_BLOCK;
    g.x = qn_tensor_2d(s.x, QN_F32, M, K);
    g.y = qn_tensor_2d(y, QN_F32, M, N);
    g.ids = qn_tensor_1d(ids, QN_I32, M);
    g.x_rows = qn_tensor_1d(from, QN_I32, M);
    assert_ok(qn_grouped(s.ctx, &g, scratch, sizeof scratch));
    for (int r = 0; r < M; r++) {
        qn_matmul_args_init(&a);
        a.w = s.w[ids[r]];
        a.strategy = QN_STRATEGY_FP8_BLOCK;
        a.x = qn_tensor_2d(s.x + from[r] * K, QN_F32, 1, K);
        a.y = qn_tensor_2d(z, QN_F32, 1, N);
        assert_ok(qn_matmul(s.ctx, &a, scratch, sizeof scratch));
        for (int j = 0; j < N; j++)
            assert_float_equal(y[r * N + j], z[j], 1e-4f * fabsf(z[j]) + 1e-4f);
    }
    g.x.shape[0] = M - 1;
    g.y.shape[0] = 1;
    g.ids.shape[0] = g.x_rows.shape[0] = 1;
    assert_ok(qn_grouped_plan(s.ctx, &g, &plan, NULL));
    g.x.shape[0] = M;
    g.error = &error;
    assert_status(qn_grouped_run(plan, &g, scratch, sizeof scratch), QN_E_SHAPE);
    assert_non_null(strstr(error.text, "x has 5 rows; the plan is for 4"));
    qn_plan_destroy(plan);
    scene_end(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_given_codes),
        cmocka_unit_test(test_static),
        cmocka_unit_test(test_output),
        cmocka_unit_test(test_grouped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
