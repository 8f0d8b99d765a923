/* SPDX-License-Identifier: Apache-2.0 */
/* qn_matmul() and its plan: every strategy and type against a product in double, sizes down to
 * nothing, strides, epilogues, scratch of the caller and of the context. */
#include "api.h"

enum { M = 5, N = 40, K = 96 };
static const struct shape shape = {.n = N, .k = K};

struct problem {
    qn_ctx *ctx;
    qn_packed *w;
    float *dense, *x, *y;
    qn_matmul_args args;
};

static struct problem problem_make(const char *spec, int64_t m)
{
    struct problem p = {.ctx = ctx_make(2)};
    p.w = packed_make(p.ctx, spec, shape, 7, &p.dense);
    p.x = take((size_t)(m * K) * sizeof *p.x);
    p.y = take((size_t)(m * N) * sizeof *p.y);
    fill_reals(p.x, m * K, 11);
    qn_matmul_args_init(&p.args);
    p.args.w = p.w;
    p.args.x = qn_tensor_2d(p.x, QN_F32, m, K);
    p.args.y = qn_tensor_2d(p.y, QN_F32, m, N);
    return p;
}

static void problem_free(struct problem *p)
{
    qn_packed_destroy(p->w);
    qn_ctx_destroy(p->ctx);
    free(p->dense);
    free(p->x);
    free(p->y);
}

static const qn_strategy dynamic[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                      QN_STRATEGY_INT8_BLOCK, QN_STRATEGY_DENSE};

/* Direct call and plan agree with each other to the bit and with exact arithmetic to the error
 * of the strategy. */
static void test_strategies(void **state)
{
    (void)state;
    static const char *const specs[] = {"int4:g32", "int4:g32:zp", "int8:pc",  "int4:g64:off",
                                        "nf4:g32",  "q4_0",        "int3:g32", "int5:pc"};
    static const int64_t mnk[3] = {M, N, K};
    for (size_t f = 0; f < sizeof specs / sizeof *specs; f++) {
        for (size_t s = 0; s < sizeof dynamic / sizeof *dynamic; s++) {
            struct problem p = problem_make(specs[f], M);
            float direct[M * N];
            p.args.strategy = dynamic[s];
            if (strcmp(specs[f], "nf4:g32") == 0 && dynamic[s] != QN_STRATEGY_FLOAT &&
                dynamic[s] != QN_STRATEGY_DENSE) { /* its values are no integers */
                assert_status(qn_matmul(p.ctx, &p.args, NULL, 0), QN_E_UNSUPPORTED);
                problem_free(&p);
                continue;
            }
            assert_ok(matmul_in_arena(p.ctx, &p.args));
            assert_product(dynamic[s], p.y, p.x, p.dense, mnk);
            memcpy(direct, p.y, sizeof direct);
            memset(p.y, 0xff, sizeof direct);
            qn_plan *plan = NULL;
            assert_ok(qn_matmul_plan(p.ctx, &p.args, &plan, NULL));
            assert_ok(run_in_arena(p.ctx, plan, &p.args));
            assert_memory_equal(p.y, direct, sizeof direct);
            qn_plan_destroy(plan);
            problem_free(&p);
        }
    }
    qn_plan_destroy(NULL);
}

static uint16_t bf16_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)(u >> 16);
}
static float of_bf16(uint16_t h)
{
    const uint32_t u = (uint32_t)h << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* bf16 in and out: the same as f32 in and rounded out. */
static void test_bf16(void **state)
{
    (void)state;
    struct problem p = problem_make("int4:g32", M);
    uint16_t x[M * K], y[M * N];
    for (int i = 0; i < M * K; i++) {
        x[i] = bf16_of(p.x[i]);
        p.x[i] = of_bf16(x[i]);
    }
    p.args.strategy = QN_STRATEGY_INT8_ROW;
    assert_ok(matmul_in_arena(p.ctx, &p.args));
    qn_matmul_args args = p.args;
    args.x = qn_tensor_2d(x, QN_BF16, M, K);
    args.y = qn_tensor_2d(y, QN_BF16, M, N);
    assert_ok(matmul_in_arena(p.ctx, &args));
    for (int i = 0; i < M * N; i++)
        assert_true(fabsf(of_bf16(y[i]) - p.y[i]) <= fabsf(p.y[i]) * 0x1p-8f);
    problem_free(&p);
}

/* int8 in with a zero point, every type out, from one set of exact sums. */
static void test_static(void **state)
{
    (void)state;
    struct problem p = problem_make("int8:pt", M);
    uint8_t x[M * K], q[M * N];
    int32_t sums[M * N], bias[N];
    uint64_t seed = 3;
    for (int i = 0; i < M * K; i++)
        x[i] = (uint8_t)draw(&seed);
    for (int i = 0; i < N; i++)
        bias[i] = (int32_t)(draw(&seed) % 1000u);
    p.args.strategy = QN_STRATEGY_INT8_STATIC;
    p.args.x = qn_tensor_2d(x, QN_U8, M, K);
    p.args.quant.x_scale = 0.25f;
    p.args.quant.x_zero = 131;
    assert_ok(matmul_in_arena(p.ctx, &p.args));
    for (int i = 0; i < M; i++) {
        for (int j = 0; j < N; j++) {
            double sum = 0.0;
            for (int k = 0; k < K; k++)
                sum += 0.25 * ((double)x[i * K + k] - 131.0) * (double)p.dense[j * K + k];
            assert_true(fabs(sum - (double)p.y[i * N + j]) <= 1e-5 * fabs(sum) + 1e-3);
        }
    }
    qn_matmul_args raw = p.args;
    raw.y = qn_tensor_2d(sums, QN_I32, M, N);
    assert_ok(matmul_in_arena(p.ctx, &raw));
    const double unit = (double)p.y[0] / (double)sums[0];
    for (int i = 0; i < M * N; i++)
        assert_true(fabs(unit * sums[i] - (double)p.y[i]) <= 1e-5 * fabs((double)p.y[i]) + 1e-3);
    /* Requantized, with a bias in units of the sums. */
    qn_matmul_args out = p.args;
    out.y = qn_tensor_2d(q, QN_U8, M, N);
    out.epilogue.bias = qn_tensor_1d(bias, QN_I32, N);
    out.epilogue.y_scale = 2.0f;
    out.epilogue.y_zero = 100;
    assert_ok(matmul_in_arena(p.ctx, &out));
    for (int i = 0; i < M * N; i++) {
        const double v = unit * ((double)sums[i] + bias[i % N]) / 2.0 + 100.0;
        assert_true(fabs(fmin(fmax(v, 0.0), 255.0) - (double)q[i]) <= 0.51);
    }
    problem_free(&p);
}

/* No rows, no outputs, no reduction: the same call. */
static void test_nothing(void **state)
{
    (void)state;
    qn_ctx *ctx = ctx_make(2);
    for (size_t s = 0; s < sizeof dynamic / sizeof *dynamic; s++) {
        for (int zero = 0; zero < 3; zero++) {
            const int64_t m = zero == 0 ? 0 : 3, n = zero == 1 ? 0 : 17, k = zero == 2 ? 0 : 64;
            const struct shape empty = {.n = n, .k = k};
            qn_packed *w = packed_make(ctx, "int4:g32", empty, 1, NULL);
            float x[3 * 64] = {1}, y[3 * 17], bias[17];
            qn_matmul_args args;
            for (int i = 0; i < 3 * 17; i++)
                y[i] = -1.0f;
            fill_reals(bias, 17, 5);
            qn_matmul_args_init(&args);
            args.w = w;
            args.strategy = dynamic[s];
            args.x = qn_tensor_2d(m == 0 || k == 0 ? NULL : x, QN_F32, m, k);
            args.y = qn_tensor_2d(m == 0 || n == 0 ? NULL : y, QN_F32, m, n);
            args.epilogue.bias = qn_tensor_1d(bias, QN_F32, n);
            assert_ok(matmul_in_arena(ctx, &args));
            qn_plan *plan = NULL;
            assert_ok(qn_matmul_plan(ctx, &args, &plan, NULL));
            assert_ok(run_in_arena(ctx, plan, &args));
            assert_true(qn_plan_explain(plan, NULL, 0) > 0);
            qn_plan_destroy(plan);
            for (int i = 0; i < 3 * 17; i++) /* without a reduction the bias is what remains */
                assert_true(y[i] == (zero == 2 ? bias[i % 17] : -1.0f));
            qn_packed_destroy(w);
        }
    }
    qn_ctx_destroy(ctx);
}

/* Rows apart from each other, rows of x upon each other, x and y side by side in one matrix. */
static void test_strides(void **state)
{
    (void)state;
    struct problem p = problem_make("int4:g32", M);
    enum { PITCH = K + N + 3 };
    float *both = take(M * PITCH * sizeof *both), *sliding = take((K + M) * sizeof *sliding);
    p.args.strategy = QN_STRATEGY_INT8_BLOCK;
    assert_ok(matmul_in_arena(p.ctx, &p.args));
    for (int i = 0; i < M * PITCH; i++)
        both[i] = 77.0f;
    for (int i = 0; i < M; i++)
        memcpy(both + i * PITCH, p.x + i * K, K * sizeof *both);
    qn_matmul_args args = p.args;
    args.x.data = both;
    args.y.data = both + K;
    args.x.stride[0] = args.y.stride[0] = PITCH;
    assert_ok(matmul_in_arena(p.ctx, &args));
    for (int i = 0; i < M; i++) {
        assert_memory_equal(both + i * PITCH + K, p.y + i * N, N * sizeof *both);
        for (int j = K + N; j < PITCH; j++)
            assert_true(both[i * PITCH + j] == 77.0f);
    }
    /* A window that moves by one element from row to row. */
    fill_reals(sliding, K + M, 19);
    for (int i = 0; i < M; i++)
        memcpy(p.x + i * K, sliding + i, K * sizeof *sliding);
    assert_ok(matmul_in_arena(p.ctx, &p.args));
    float *window_y = take(M * N * sizeof *window_y);
    args = p.args;
    args.x.data = sliding;
    args.x.stride[0] = 1;
    args.y.data = window_y;
    assert_ok(matmul_in_arena(p.ctx, &args));
    assert_memory_equal(window_y, p.y, M * N * sizeof *window_y);
    free(window_y);
    free(sliding);
    free(both);
    problem_free(&p);
}

/* All the steps of an epilogue, against the same steps on the bare product. */
static void test_epilogue(void **state)
{
    (void)state;
    struct problem p = problem_make("int4:g32", M);
    float bare[M * N], bias[N], col[N], row[M], residual[M * N];
    p.args.strategy = QN_STRATEGY_INT8_ROW;
    assert_ok(matmul_in_arena(p.ctx, &p.args));
    memcpy(bare, p.y, sizeof bare);
    fill_reals(bias, N, 1);
    fill_reals(col, N, 2);
    fill_reals(row, M, 3);
    fill_reals(residual, M * N, 4);
    qn_epilogue *e = &p.args.epilogue;
    e->bias = qn_tensor_1d(bias, QN_F32, N);
    e->col_scale = qn_tensor_1d(col, QN_F32, N);
    e->row_scale = qn_tensor_1d(row, QN_F32, M);
    e->residual = qn_tensor_2d(residual, QN_F32, M, N);
    e->act = QN_ACT_RELU;
    e->clamp_hi = 0.5f;
    for (int after = 0; after < 2; after++) {
        e->residual_after = after;
        assert_ok(matmul_in_arena(p.ctx, &p.args));
        for (int i = 0; i < M * N; i++) {
            float v = bare[i] * row[i / N];
            v = v * col[i % N];
            v = v + bias[i % N];
            v = after ? v : v + residual[i];
            v = v > 0.0f ? v : 0.0f;
            v = v < 0.5f ? v : 0.5f;
            v = after ? v + residual[i] : v;
            assert_true(p.y[i] == v);
        }
    }
    /* The residual may be y itself. */
    memcpy(p.y, residual, sizeof residual);
    e->residual_after = 0;
    float expected[M * N];
    e->residual = qn_tensor_2d(residual, QN_F32, M, N);
    qn_matmul_args apart = p.args;
    apart.y.data = expected;
    assert_ok(matmul_in_arena(p.ctx, &apart));
    e->residual.data = p.y;
    assert_ok(matmul_in_arena(p.ctx, &p.args));
    assert_memory_equal(p.y, expected, sizeof expected);
    problem_free(&p);
}

/* Scratch of the caller, of the context, too small, missing, crooked, in the way. */
static void test_scratch(void **state)
{
    (void)state;
    struct problem p = problem_make("int4:g32", M);
    qn_ctx_options o;
    qn_ctx *bare = NULL;
    size_t bytes = 0;
    qn_plan *plan = NULL;
    qn_ctx_options_init(&o);
    o.n_threads = 2;
    assert_ok(qn_ctx_create(&o, &bare, NULL));
    p.args.strategy = QN_STRATEGY_INT8_BLOCK;
    assert_ok(qn_matmul_scratch(bare, &p.args, &bytes));
    assert_true(bytes > 0);
    assert_ok(qn_matmul_plan(bare, &p.args, &plan, NULL));
    assert_int_equal(qn_plan_scratch_bytes(plan), bytes);
    assert_int_equal(qn_plan_scratch_bytes(NULL), 0);
    unsigned char *scratch = take(bytes + 64);
    memset(p.y, 0x55, M * N * sizeof *p.y);
    float *before = take(M * N * sizeof *before);
    memcpy(before, p.y, M * N * sizeof *before);
    assert_status(qn_matmul_run(plan, &p.args, NULL, 0), QN_E_SCRATCH);
    assert_status(qn_matmul(bare, &p.args, NULL, bytes), QN_E_SCRATCH);
    assert_status(qn_matmul_run(plan, &p.args, scratch, bytes - 1), QN_E_SCRATCH);
    assert_status(qn_matmul_run(plan, &p.args, scratch + 32, bytes), QN_E_ALIGN);
    qn_matmul_args inside = p.args;
    inside.y.data = scratch;
    assert_status(qn_matmul_run(plan, &inside, scratch, bytes), QN_E_OVERLAP);
    inside = p.args;
    inside.x.data = scratch + bytes - 64;
    assert_status(qn_matmul_run(plan, &inside, scratch, bytes), QN_E_OVERLAP);
    assert_ok(qn_ctx_reserve(bare, bytes - 1));
    assert_status(qn_matmul_run(plan, &p.args, NULL, 0), QN_E_SCRATCH);
    assert_memory_equal(p.y, before, M * N * sizeof *before);
    memset(scratch, 0xee, bytes + 64);
    assert_ok(qn_matmul_run(plan, &p.args, scratch, bytes));
    for (int i = 0; i < 64; i++)
        assert_int_equal(scratch[bytes + (size_t)i], 0xee);
    memcpy(before, p.y, M * N * sizeof *before);
    assert_ok(qn_ctx_reserve(bare, bytes));
    memset(p.y, 0, M * N * sizeof *p.y);
    assert_ok(qn_matmul_run(plan, &p.args, NULL, 0));
    assert_memory_equal(p.y, before, M * N * sizeof *before);
    free(scratch);
    free(before);
    qn_plan_destroy(plan);
    qn_ctx_destroy(bare);
    problem_free(&p);
}

/* One plan serves every number of rows up to its own, and other weights of the same make. */
static void test_one_plan(void **state)
{
    (void)state;
    struct problem p = problem_make("int4:g32", 70);
    qn_plan *plan = NULL;
    float *dense, *y = take(70 * N * sizeof *y);
    qn_packed *other = packed_make(p.ctx, "int4:g32", shape, 99, &dense);
    p.args.strategy = QN_STRATEGY_INT8_ROW;
    assert_ok(qn_matmul_plan(p.ctx, &p.args, &plan, NULL));
    for (int64_t m = 0; m <= 70; m += m < 4 ? 1 : 11) {
        qn_matmul_args args = p.args;
        args.w = other;
        args.x.shape[0] = args.y.shape[0] = m;
        assert_ok(matmul_in_arena(p.ctx, &args));
        args.y.data = y;
        assert_ok(run_in_arena(p.ctx, plan, &args));
        assert_memory_equal(y, p.y, (size_t)(m * N) * sizeof *y);
        const int64_t mnk[3] = {m, N, K};
        assert_product(QN_STRATEGY_INT8_ROW, y, p.x, dense, mnk);
    }
    qn_plan_destroy(plan);
    qn_packed_destroy(other);
    free(dense);
    free(y);
    problem_free(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_strategies), cmocka_unit_test(test_bf16),
        cmocka_unit_test(test_static),     cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_strides),    cmocka_unit_test(test_epilogue),
        cmocka_unit_test(test_scratch),    cmocka_unit_test(test_one_plan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
