/* SPDX-License-Identifier: Apache-2.0 */
/* What plans say: every row of the library is either chosen or refused with a reason; numbers
 * agree with the text; masks, rows by name and strict plans do what they promise. */
#include "api.h"

enum { M = 8, N = 64, K = 128 };
static const struct shape shape = {.n = N, .k = K};

struct bench {
    qn_ctx *ctx;
    qn_packed *w;
    float x[M * K], y[M * N];
    qn_matmul_args args;
};

static int n_warnings;

static void count_warnings(void *arg, int32_t severity, const char *text)
{
    ++*(int *)arg;
    assert_int_equal(severity, 2);
    assert_non_null(strstr(text, "qni_"));
}

static void bench_init(struct bench *b, uint64_t mask)
{
    qn_ctx_options o;
    qn_ctx_options_init(&o);
    o.log = count_warnings;
    o.log_arg = &n_warnings;
    o.isa_mask = mask;
    o.n_threads = 2;
    assert_ok(qn_ctx_create(&o, &b->ctx, NULL));
    b->w = packed_make(b->ctx, "int4:g32", shape, 1, NULL);
    fill_reals(b->x, M * K, 1);
    qn_matmul_args_init(&b->args);
    b->args.w = b->w;
    b->args.strategy = QN_STRATEGY_INT8_BLOCK;
    b->args.x = qn_tensor_2d(b->x, QN_F32, M, K);
    b->args.y = qn_tensor_2d(b->y, QN_F32, M, N);
}

static void bench_end(struct bench *b)
{
    qn_packed_destroy(b->w);
    qn_ctx_destroy(b->ctx);
}

static char *explained(const qn_plan *plan)
{
    const size_t length = qn_plan_explain(plan, NULL, 0);
    char *text = malloc(length + 1);
    assert_true(length > 100);
    assert_int_equal(qn_plan_explain(plan, text, length + 1), length);
    assert_int_equal(strlen(text), length);
    return text;
}

/* A line "  name: reason" of the refusals; NULL past the end. The name is copied out. */
static const char *next_refusal(const char *at, char *name, size_t capacity)
{
    const char *colon = at == NULL ? NULL : strchr(at, ':');
    if (colon == NULL || strncmp(at, "  ", 2) != 0)
        return NULL;
    const size_t length = (size_t)(colon - at) - 2;
    assert_true(length > 0 && length < capacity);
    memcpy(name, at + 2, length);
    name[length] = '\0';
    const char *end = strchr(colon, '\n');
    assert_true(end != NULL && end - colon > 4); /* a reason of some letters */
    return end + 1;
}

static void test_text(void **state)
{
    (void)state;
    struct bench b;
    qn_plan *plan;
    qn_plan_info info;
    char line[64];
    bench_init(&b, QN_ISA_ALL);
    assert_ok(qn_matmul_plan(b.ctx, &b.args, &plan, NULL));
    qn_plan_info_init(&info);
    assert_ok(qn_plan_query(plan, &info));
    char *text = explained(plan);
    assert_non_null(strstr(text, "matmul: m 8, n 64, k 128; x f32, y f32; strategy int8-block\n"));
    assert_non_null(strstr(text, "weights: int4:g32 packed as "));
    assert_non_null(strstr(text, info.kernel));
    snprintf(line, sizeof line, "scratch: %zu bytes", info.scratch_bytes);
    assert_non_null(strstr(text, line));
    assert_non_null(strstr(text, "the same bits on every CPU"));
    assert_non_null(strstr(text, "131.07 kop")); /* 2 * 8 * 64 * 128 */
    assert_non_null(strstr(text, "x 4.10 kB"));
    assert_non_null(strstr(text, "y 2.05 kB"));
    assert_true(info.ops == 2.0 * M * N * K);
    assert_true(info.bytes > 4.0 * (M * K + M * N) + N * K / 2.0);
    assert_int_equal(info.is_exact, 1);
    assert_int_equal(info.n_threads, 2);
    assert_int_equal(info.scratch_bytes, qn_plan_scratch_bytes(plan));
    assert_true((info.isa & ~qn_isa_detect()) == 0);

    /* A short buffer gets the beginning, terminated; nothing behind it is written. */
    for (size_t capacity = 0; capacity < 200; capacity++) {
        char part[201];
        memset(part, 'Z', sizeof part);
        assert_int_equal(qn_plan_explain(plan, part, capacity), strlen(text));
        if (capacity > 0)
            assert_memory_equal(part, text, capacity - 1);
        assert_true(capacity == 0 || part[capacity - 1] == '\0');
        assert_int_equal(part[capacity], 'Z');
    }
    char empty[4] = "abc";
    assert_int_equal(qn_plan_explain(NULL, empty, sizeof empty), 0);
    assert_string_equal(empty, "");
    assert_int_equal(qn_plan_explain(NULL, NULL, 0), 0);
    assert_status(qn_plan_query(NULL, &info), QN_E_ARGUMENT);
    assert_status(qn_plan_query(plan, NULL), QN_E_ARGUMENT);
    info.size = 0;
    assert_status(qn_plan_query(plan, &info), QN_E_ARGUMENT);
    qn_plan_destroy(plan);
    free(text);
    bench_end(&b);
}

/* A plan knows all of this even when its weights and its arguments are gone. */
static void test_alone(void **state)
{
    (void)state;
    struct bench b;
    qn_plan *plan;
    bench_init(&b, QN_ISA_ALL);
    const qn_packed **experts = calloc(2, sizeof *experts);
    qn_packed *second = packed_make(b.ctx, "int4:g32", shape, 2, NULL);
    int32_t ids[M] = {0};
    char kernel[80];
    qn_plan_info info;
    qn_grouped_args grouped;
    experts[0] = b.w;
    experts[1] = second;
    qn_grouped_args_init(&grouped);
    grouped.w = experts;
    grouped.n_experts = 2;
    grouped.x = b.args.x;
    grouped.y = b.args.y;
    grouped.ids = qn_tensor_1d(ids, QN_I32, M);
    assert_ok(qn_grouped_plan(b.ctx, &grouped, &plan, NULL));
    qn_plan_info_init(&info);
    assert_ok(qn_plan_query(plan, &info));
    snprintf(kernel, sizeof kernel, "%s", info.kernel);
    qn_plan_destroy(plan);
    grouped.kernel = kernel;
    assert_ok(qn_grouped_plan(b.ctx, &grouped, &plan, NULL));
    char *before = explained(plan);
    qn_packed_destroy(b.w);
    qn_packed_destroy(second);
    free(experts);
    memset(kernel, 'x', sizeof kernel);
    memset(&grouped, 0xff, sizeof grouped);
    char *after = explained(plan);
    assert_string_equal(before, after);
    assert_non_null(strstr(after, "2 experts"));
    free(before);
    free(after);
    qn_plan_destroy(plan);
    qn_ctx_destroy(b.ctx);
}

/* Each row that any strategy and mask chooses appears in every other explanation as refused,
 * with a reason. */
static void test_every_row(void **state)
{
    (void)state;
    static const qn_strategy all[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                      QN_STRATEGY_INT8_BLOCK};
    char chosen[64][96];
    int n = 0;
    for (int mask = 0; mask < 2; mask++) {
        for (size_t s = 0; s < sizeof all / sizeof *all; s++) {
            struct bench b;
            qn_plan *plan;
            qn_plan_info info;
            bench_init(&b, mask == 0 ? QN_ISA_PORTABLE : QN_ISA_ALL);
            b.args.strategy = all[s];
            assert_ok(qn_matmul_plan(b.ctx, &b.args, &plan, NULL));
            qn_plan_info_init(&info);
            assert_ok(qn_plan_query(plan, &info));
            if (mask == 0)
                assert_true(info.isa == 0);
            snprintf(chosen[n++], sizeof chosen[0], "%s", info.kernel);
            qn_plan_destroy(plan);
            bench_end(&b);
        }
    }
    struct bench b;
    qn_plan *plan;
    bench_init(&b, QN_ISA_PORTABLE);
    assert_ok(qn_matmul_plan(b.ctx, &b.args, &plan, NULL));
    char *text = explained(plan), name[96];
    for (int i = 0; i < n; i++)
        if (strstr(text, chosen[i]) == NULL)
            fail_msg("%s is neither chosen nor refused in:\n%s", chosen[i], text);
    /* No row twice among the refusals. */
    char seen[256][96];
    int n_seen = 0;
    const char *at = strstr(text, "refused:\n");
    assert_non_null(at);
    for (at = next_refusal(at + 9, name, sizeof name); at != NULL;
         at = next_refusal(at, name, sizeof name)) {
        for (int i = 0; i < n_seen; i++)
            assert_string_not_equal(seen[i], name);
        snprintf(seen[n_seen++], sizeof seen[0], "%s", name);
        assert_true(n_seen < 256);
    }
    assert_true(n_seen >= 4);
    free(text);
    qn_plan_destroy(plan);
    bench_end(&b);
}

/* A row by name is the row that runs, or the plan is refused; with int8-block each gives the
 * same bits. */
static void test_by_name(void **state)
{
    (void)state;
    struct bench b;
    qn_plan *plan;
    qn_plan_info info;
    float expected[M * N];
    char name[96];
    int served = 0, refused = 0;
    bench_init(&b, QN_ISA_ALL);
    assert_ok(matmul_in_arena(b.ctx, &b.args));
    memcpy(expected, b.y, sizeof expected);
    assert_ok(qn_matmul_plan(b.ctx, &b.args, &plan, NULL));
    char *text = explained(plan);
    qn_plan_destroy(plan);
    const char *at = strstr(text, "refused:\n") + 9;
    while ((at = next_refusal(at, name, sizeof name)) != NULL) {
        b.args.kernel = name;
        memset(b.y, 0, sizeof b.y);
        const qn_status status = qn_matmul_plan(b.ctx, &b.args, &plan, NULL);
        if (status != QN_OK) {
            assert_int_equal(status, QN_E_UNSUPPORTED);
            refused++;
            continue;
        }
        served++;
        qn_plan_info_init(&info);
        assert_ok(qn_plan_query(plan, &info));
        assert_string_equal(info.kernel, name);
        assert_ok(run_in_arena(b.ctx, plan, &b.args));
        assert_memory_equal(b.y, expected, sizeof expected);
        qn_plan_destroy(plan);
    }
    assert_true(refused >= 1);
    (void)served; /* a machine with the portable row only has no other one to serve */
    free(text);
    bench_end(&b);
}

/* Strict and not strict agree wherever nothing is a fallback; where something is, strict
 * refuses. */
static void test_strict(void **state)
{
    (void)state;
    static const qn_strategy all[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                      QN_STRATEGY_INT8_BLOCK, QN_STRATEGY_DENSE};
    for (size_t s = 0; s < sizeof all / sizeof *all; s++) {
        for (int mask = 0; mask < 2; mask++) {
            struct bench b;
            qn_plan *plan = NULL;
            qn_plan_info info;
            bench_init(&b, mask == 0 ? QN_ISA_PORTABLE : QN_ISA_ALL);
            b.args.strategy = all[s];
            n_warnings = 0;
            assert_ok(qn_matmul_plan(b.ctx, &b.args, &plan, NULL));
            qn_plan_info_init(&info);
            assert_ok(qn_plan_query(plan, &info));
            assert_int_equal(n_warnings, info.is_fallback);
            qn_plan_destroy(plan);
            plan = NULL;
            b.args.strict = 1;
            const qn_status status = qn_matmul_plan(b.ctx, &b.args, &plan, NULL);
            assert_int_equal(status, info.is_fallback ? QN_E_FALLBACK : QN_OK);
            assert_status(matmul_in_arena(b.ctx, &b.args), status);
            assert_int_equal(plan == NULL, status != QN_OK);
            qn_plan_destroy(plan);
            bench_end(&b);
        }
    }
}

/* A refused plan says why in its error. */
static void test_refusal(void **state)
{
    (void)state;
    struct bench b;
    qn_plan *plan = NULL;
    bench_init(&b, QN_ISA_ALL);
    qn_packed *codebook = packed_make(b.ctx, "nf4:g32", shape, 1, NULL);
    b.args.w = codebook;
    assert_error(qn_matmul_plan(b.ctx, &b.args, &plan, &err), QN_E_UNSUPPORTED, "qni_");
    assert_status(qn_matmul(b.ctx, &b.args, NULL, 0), QN_E_UNSUPPORTED);
    assert_null(plan);
    qn_packed_destroy(codebook);
    bench_end(&b);
}

/* Codebooks have no sums, since they are no integers: that is the reason to tell. */
static void test_codebook(void **state)
{
    static const char *const specs[] = {"nf4:g64", "fp8:pc", "nf4:g32:off"};
    static int8_t x8[M * K];
    (void)state;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct bench b;
        qn_error why = {0};
        qn_plan *plan = NULL;
        bench_init(&b, QN_ISA_ALL);
        qn_packed *w = packed_make(b.ctx, specs[i], shape, 3, NULL);
        b.args.w = w;
        b.args.strategy = QN_STRATEGY_INT8_STATIC;
        b.args.x = qn_tensor_2d(x8, QN_I8, M, K);
        b.args.quant.x_zero = 3;
        assert_status(qn_matmul_plan(b.ctx, &b.args, &plan, &why), QN_E_UNSUPPORTED);
        assert_non_null(strstr(why.text, "codebook"));
        assert_null(strstr(why.text, "left out"));
        qn_packed_destroy(w);
        bench_end(&b);
    }
}

static void test_strategy_names(void **state)
{
    (void)state;
    for (qn_strategy s = QN_STRATEGY_FLOAT; s <= QN_STRATEGY_FP8_STATIC; s++) {
        qn_strategy back = -1;
        assert_ok(qn_strategy_parse(qn_strategy_name(s), &back, NULL));
        assert_int_equal(back, s);
    }
    qn_strategy back = -1;
    assert_string_equal(qn_strategy_name(-1), "?");
    assert_string_equal(qn_strategy_name(8), "?");
    assert_error(qn_strategy_parse("int9", &back, &err), QN_E_ARGUMENT, "int8-block");
    assert_error(qn_strategy_parse(NULL, &back, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_strategy_parse("float", NULL, &err), QN_E_ARGUMENT, "NULL");
    assert_int_equal(back, -1);
}

/* Rows of x with a few outliers are served by the row that splits them, rows of all bytes by the
 * row that stands in; a query tells which it was, and both are in the explanation. */
static void test_what_ran(void **state)
{
    enum { LONG = 512, ROWS = 4, OUTPUTS = 32 };
    (void)state;
    static float x[ROWS * LONG], y[ROWS * OUTPUTS];
    const struct shape long_shape = {.n = OUTPUTS, .k = LONG};
    struct bench b;
    qn_plan *plan;
    qn_plan_info info;
    bench_init(&b, QN_ISA_AVX2);
    qn_packed *const w = packed_make(b.ctx, "int8:pc", long_shape, 1, NULL);
    b.args.w = w;
    b.args.strategy = QN_STRATEGY_INT8_ROW;
    b.args.x = qn_tensor_2d(x, QN_F32, ROWS, LONG);
    b.args.y = qn_tensor_2d(y, QN_F32, ROWS, OUTPUTS);
    for (int32_t pass = 0; pass < 2; pass++) {
        for (int32_t i = 0; i < ROWS * LONG; i++) /* all large, or one in a hundred */
            x[i] = (pass == 1 || i % 100 == 7) ? (i % 2 == 0 ? 1.0f : -1.0f) : 0.05f;
        assert_ok(qn_matmul_plan(b.ctx, &b.args, &plan, NULL));
        qn_plan_info_init(&info);
        assert_ok(qn_plan_query(plan, &info));
        assert_int_equal(info.ran, 0);
        assert_ok(run_in_arena(b.ctx, plan, &b.args));
        assert_ok(qn_plan_query(plan, &info));
        if (info.stand_in == NULL) {
            assert_int_equal(info.ran, 1); /* another ISA: no row depends on data */
        } else {
            char *const text = explained(plan);
            assert_int_equal(info.ran, pass == 0 ? 1 : 2);
            assert_non_null(strstr(text, info.stand_in));
            free(text);
        }
        qn_plan_destroy(plan);
    }
    qn_packed_destroy(w);
    bench_end(&b);
}

/* No rows: nothing moves and nothing is done. */
static void test_no_rows(void **state)
{
    (void)state;
    struct bench b;
    qn_plan *plan;
    qn_plan_info info;
    bench_init(&b, QN_ISA_ALL);
    b.args.x.shape[0] = b.args.y.shape[0] = 0;
    assert_ok(qn_matmul_plan(b.ctx, &b.args, &plan, NULL));
    qn_plan_info_init(&info);
    assert_ok(qn_plan_query(plan, &info));
    assert_true(info.bytes == 0.0 && info.ops == 0.0);
    char *text = explained(plan);
    assert_non_null(strstr(text, "moves: 0.00 B at least"));
    free(text);
    qn_plan_destroy(plan);
    bench_end(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_no_rows),  cmocka_unit_test(test_text),
        cmocka_unit_test(test_alone),    cmocka_unit_test(test_every_row),
        cmocka_unit_test(test_by_name),  cmocka_unit_test(test_strict),
        cmocka_unit_test(test_refusal),  cmocka_unit_test(test_strategy_names),
        cmocka_unit_test(test_codebook), cmocka_unit_test(test_what_ran),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
