/* SPDX-License-Identifier: Apache-2.0 */
/* Gated products and products with a factor: what the plain product and qn_finish() give one after
 * the other, to the bit for the int8 strategies, for halves and pairs, types, rows and threads. */
#include "api.h"

enum { K = 96, MOST_M = 300, MOST_N = 128, EXPERTS = 3 };

struct bench {
    qn_ctx *ctx;
    float x[MOST_M * K], bias[EXPERTS * MOST_N], residual[MOST_M * MOST_N];
    float v[MOST_M * MOST_N], a[MOST_M * MOST_N], b[MOST_M * MOST_N];
    float y[MOST_M * MOST_N], expected[MOST_M * MOST_N]; /* of any type */
    int32_t ids[MOST_M];
};

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    fill_reals(b->x, MOST_M * K, 3);
    fill_reals(b->bias, EXPERTS * MOST_N, 4);
    fill_reals(b->residual, MOST_M * MOST_N, 5);
    for (int i = 0; i < MOST_M; i++)
        b->ids[i] = (i * 7 + 1) % EXPERTS;
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    free(*state);
    return 0;
}

/* How a product is finished. */
struct how {
    qn_gate gate;
    qn_act act;
    qn_dtype y;
    bool clamps, adds, has_factor;
};

static void ask(const struct bench *b, const struct how *h, int64_t m, int64_t n, qn_epilogue *e,
                qn_epilogue_more *more)
{
    e->act = h->act;
    e->y_scale = 0.05f;
    e->y_zero = 3;
    if (h->clamps) {
        e->clamp_lo = -0.75f;
        e->clamp_hi = 1.5f;
    }
    if (h->adds) {
        e->residual = qn_tensor_2d((void *)(uintptr_t)b->residual, QN_F32, m, n);
        e->residual_after = 1;
    }
    more->gate = h->gate;
    if (h->has_factor)
        more->factor = qn_tensor_2d((void *)(uintptr_t)b->residual, QN_F32, m, n);
}

/* expected from v [m, n]: the halves or pairs parted, one activated, both multiplied, and the rest
 * of the epilogue. */
static void finish_by_hand(struct bench *b, const struct how *h, int64_t m, int64_t n)
{
    const int64_t columns = h->gate == QN_GATE_NONE ? n : n / 2;
    qn_finish_args f;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < columns; j++) {
            const float *const row = b->v + i * n;
            const int64_t at = i * columns + j;
            b->a[at] = h->gate == QN_GATE_PAIRS ? row[2 * j] : row[j];
            b->b[at] = h->gate == QN_GATE_PAIRS    ? row[2 * j + 1]
                       : h->gate == QN_GATE_HALVES ? row[n / 2 + j]
                       : h->has_factor             ? b->residual[at]
                                                   : 1.0f;
        }
    qn_finish_args_init(&f);
    f.v = f.y = qn_tensor_2d(b->a, QN_F32, m, columns);
    f.epilogue.act = h->act;
    assert_ok(qn_finish(b->ctx, &f));
    for (int64_t at = 0; at < m * columns; at++)
        b->a[at] *= b->b[at];
    struct how rest = *h;
    qn_epilogue_more unused;
    qn_epilogue_more_init(&unused);
    rest.act = QN_ACT_NONE;
    rest.has_factor = false;
    qn_epilogue_init(&f.epilogue);
    ask(b, &rest, m, columns, &f.epilogue, &unused);
    f.y = qn_tensor_2d(b->expected, h->y, m, columns);
    assert_ok(qn_finish(b->ctx, &f));
}

/* Floats may differ in the order of their sums; codes by one. */
static void expect_near(const struct bench *b, const struct how *h, int64_t elements)
{
    for (int64_t i = 0; i < elements; i++) {
        if (h->y == QN_I8)
            assert_true(abs(((const int8_t *)b->y)[i] - ((const int8_t *)b->expected)[i]) <= 1);
        else if (h->y == QN_F32)
            assert_true(fabsf(b->y[i] - b->expected[i]) <= 1e-4f * (1.0f + fabsf(b->expected[i])));
    }
}

static void compare(const struct bench *b, const struct how *h, int64_t elements, bool is_exact)
{
    const size_t bytes = (size_t)elements * qn_dtype_bytes(h->y);
    if (is_exact)
        assert_memory_equal(b->y, b->expected, bytes);
    else
        expect_near(b, h, elements);
    for (size_t i = bytes; i < sizeof b->y; i++)
        assert_int_equal(((const uint8_t *)b->y)[i], 0x77);
}

static void check_matmul(struct bench *b, const qn_packed *w, int64_t n, qn_strategy strategy,
                         int64_t m, const struct how *h)
{
    qn_matmul_args args;
    qn_epilogue_more more;
    const int64_t columns = h->gate == QN_GATE_NONE ? n : n / 2;
    qn_matmul_args_init(&args);
    args.w = w;
    args.strategy = strategy;
    args.x = qn_tensor_2d(b->x, QN_F32, m, K);
    args.y = qn_tensor_2d(b->v, QN_F32, m, n);
    args.epilogue.bias = qn_tensor_1d(b->bias, QN_F32, n);
    assert_ok(matmul_in_arena(b->ctx, &args));
    finish_by_hand(b, h, m, n);
    qn_epilogue_more_init(&more);
    ask(b, h, m, columns, &args.epilogue, &more);
    args.more = &more;
    args.y = qn_tensor_2d(b->y, h->y, m, columns);
    memset(b->y, 0x77, sizeof b->y);
    assert_ok(matmul_in_arena(b->ctx, &args));
    compare(b, h, m * columns, strategy != QN_STRATEGY_FLOAT);
}

static void check_grouped(struct bench *b, const qn_packed *const w[EXPERTS], int64_t n,
                          qn_strategy strategy, int64_t m, const struct how *h)
{
    qn_grouped_args args;
    qn_epilogue_more more;
    const int64_t columns = h->gate == QN_GATE_NONE ? n : n / 2;
    qn_grouped_args_init(&args);
    args.w = w;
    args.n_experts = EXPERTS;
    args.strategy = strategy;
    args.x = qn_tensor_2d(b->x, QN_F32, m, K);
    args.y = qn_tensor_2d(b->v, QN_F32, m, n);
    args.ids = qn_tensor_1d(b->ids, QN_I32, m);
    args.epilogue.bias = qn_tensor_2d(b->bias, QN_F32, EXPERTS, n);
    assert_ok(grouped_in_arena(b->ctx, &args));
    finish_by_hand(b, h, m, n);
    qn_epilogue_more_init(&more);
    ask(b, h, m, columns, &args.epilogue, &more);
    args.more = &more;
    args.y = qn_tensor_2d(b->y, h->y, m, columns);
    memset(b->y, 0x77, sizeof b->y);
    assert_ok(grouped_in_arena(b->ctx, &args));
    compare(b, h, m * columns, strategy != QN_STRATEGY_FLOAT);
}

static const struct how hows[] = {
    {QN_GATE_HALVES, QN_ACT_SILU, QN_F32, false, false, false},
    {QN_GATE_PAIRS, QN_ACT_SILU, QN_F32, false, false, false},
    {QN_GATE_HALVES, QN_ACT_GELU_TANH, QN_BF16, true, true, false},
    {QN_GATE_PAIRS, QN_ACT_SIGMOID, QN_I8, true, false, false},
    {QN_GATE_HALVES, QN_ACT_NONE, QN_I8, false, true, false},
    {QN_GATE_NONE, QN_ACT_SILU, QN_F32, true, false, true},
    {QN_GATE_NONE, QN_ACT_NONE, QN_F16, false, true, true},
};

static void test_products(void **state)
{
    static const char *const specs[] = {"int4:g32:zp", "int8:pc", "int3:g48"};
    static const int64_t ms[] = {0, 1, 2, 5, 17, 70, MOST_M};
    static const int64_t ns[] = {32, 128, 96};
    struct bench *b = *state;
    for (int32_t threads = 1; threads <= 3; threads += 2) {
        b->ctx = ctx_make(threads);
        for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
            const struct shape shape = {.n = ns[s], .k = K};
            const qn_packed *w[EXPERTS];
            for (int e = 0; e < EXPERTS; e++)
                w[e] = packed_make(b->ctx, specs[s], shape, 7 + (uint64_t)e, NULL);
            for (qn_strategy y = QN_STRATEGY_FLOAT; y <= QN_STRATEGY_INT8_BLOCK; y++)
                for (size_t i = 0; i < sizeof ms / sizeof *ms; i++)
                    for (size_t h = 0; h < sizeof hows / sizeof *hows; h++) {
                        check_matmul(b, w[0], ns[s], y, ms[i], &hows[h]);
                        check_grouped(b, w, ns[s], y, ms[i], &hows[h]);
                    }
            for (int e = 0; e < EXPERTS; e++)
                qn_packed_destroy((qn_packed *)(uintptr_t)w[e]);
        }
        qn_ctx_destroy(b->ctx);
    }
}

/* Given codes, an integer bias and zero points of the weights: sums stay integers until both halves
 * are scaled. */
static void test_static(void **state)
{
    enum { N = 96, M = 19 };
    struct bench *b = *state;
    static int8_t x8[M * K];
    int32_t bias[N];
    uint64_t seed = 11;
    for (int i = 0; i < M * K; i++)
        x8[i] = (int8_t)(draw(&seed) % 255 - 127);
    for (int i = 0; i < N; i++)
        bias[i] = (int32_t)(draw(&seed) % 4001) - 2000;
    b->ctx = ctx_make(2);
    qn_packed *w = packed_make(b->ctx, "int8:pc:zp", (struct shape){.n = N, .k = K}, 5, NULL);
    for (size_t h = 0; h < sizeof hows / sizeof *hows; h++) {
        qn_matmul_args args;
        qn_epilogue_more more;
        const int64_t columns = hows[h].gate == QN_GATE_NONE ? N : N / 2;
        qn_matmul_args_init(&args);
        args.w = w;
        args.strategy = QN_STRATEGY_INT8_STATIC;
        args.quant.x_scale = 0.01f;
        args.quant.x_zero = 7;
        args.x = qn_tensor_2d(x8, QN_I8, M, K);
        args.y = qn_tensor_2d(b->v, QN_F32, M, N);
        args.epilogue.bias = qn_tensor_1d(bias, QN_I32, N);
        assert_ok(matmul_in_arena(b->ctx, &args));
        finish_by_hand(b, &hows[h], M, N);
        qn_epilogue_more_init(&more);
        ask(b, &hows[h], M, columns, &args.epilogue, &more);
        args.more = &more;
        args.y = qn_tensor_2d(b->y, hows[h].y, M, columns);
        memset(b->y, 0x77, sizeof b->y);
        assert_ok(matmul_in_arena(b->ctx, &args));
        compare(b, &hows[h], M * columns, true);
    }
    qn_packed_destroy(w);
    qn_ctx_destroy(b->ctx);
}

/* A plan tells of the gate, and serves no other. */
static void test_plan(void **state)
{
    struct bench *b = *state;
    qn_matmul_args args;
    qn_epilogue_more more;
    qn_error error = {QN_OK, -1, ""};
    qn_plan *plan = NULL;
    char text[4096];
    b->ctx = ctx_make(1);
    qn_packed *w = packed_make(b->ctx, "int4:g32", (struct shape){.n = 64, .k = K}, 1, NULL);
    qn_matmul_args_init(&args);
    qn_epilogue_more_init(&more);
    more.gate = QN_GATE_HALVES;
    args.w = w;
    args.more = &more;
    args.error = &error;
    args.x = qn_tensor_2d(b->x, QN_F32, 2, K);
    args.y = qn_tensor_2d(b->y, QN_F32, 2, 32);
    assert_ok(qn_matmul_plan(b->ctx, &args, &plan, NULL));
    qn_plan_explain(plan, text, sizeof text);
    assert_non_null(strstr(text, "gate: the two halves"));
    const size_t bytes = qn_plan_scratch_bytes(plan);
    void *scratch = take(bytes);
    assert_ok(qn_matmul_run(plan, &args, scratch, bytes));
    more.gate = QN_GATE_PAIRS;
    assert_status(qn_matmul_run(plan, &args, scratch, bytes), QN_E_ARGUMENT);
    assert_non_null(strstr(error.text, "gate is 2"));
    args.y.shape[1] = 64;
    assert_status(qn_matmul_run(plan, &args, scratch, bytes), QN_E_SHAPE);
    free(scratch);
    qn_plan_destroy(plan);
    qn_packed_destroy(w);
    qn_ctx_destroy(b->ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_static),
        cmocka_unit_test(test_plan),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
