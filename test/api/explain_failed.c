/* SPDX-License-Identifier: Apache-2.0 */
/* What cannot be planned is explained too: the reason that governs stands first, then the problem
 * and the reason of every row; and the plan's own error leads with the same reason. */
#include "api.h"

enum { M = 3, N = 32, K = 64, C = 16, SIDE = 6 };

static const struct shape shape = {.n = N, .k = K};

struct bench {
    qn_ctx *ctx;
    qn_packed *w;
    float x[C * SIDE * SIDE + M * K], y[C * SIDE * SIDE + M * N];
    int8_t x8[C * SIDE * SIDE + M * K];
    qn_matmul_args args;
};

static void start(struct bench *b, const char *spec)
{
    memset(b, 0, sizeof *b);
    b->ctx = ctx_make(1);
    b->w = packed_make(b->ctx, spec, shape, 1, NULL);
    qn_matmul_args_init(&b->args);
    b->args.w = b->w;
    b->args.x = qn_tensor_2d(NULL, QN_F32, M, K);
    b->args.y = qn_tensor_2d(NULL, QN_F32, M, N);
}

static void stop(struct bench *b)
{
    qn_packed_destroy(b->w);
    qn_ctx_destroy(b->ctx);
}

/* The text, to be freed; its length is what was promised, and a short buffer is terminated. */
static char *explained(const qn_ctx *ctx, const qn_matmul_args *args)
{
    char few[8];
    const size_t length = qn_matmul_explain(ctx, args, NULL, 0);
    char *text = take(length + 1);
    assert_int_equal(qn_matmul_explain(ctx, args, few, sizeof few), length);
    assert_true(strlen(few) < sizeof few);
    assert_int_equal(qn_matmul_explain(ctx, args, text, length + 1), length);
    assert_int_equal(strlen(text), length);
    return text;
}

static void assert_begins(const char *text, const char *beginning)
{
    if (strncmp(text, beginning, strlen(beginning)) != 0)
        fail_msg("this does not begin with '%s':\n%s", beginning, text);
}

static void assert_says(const char *text, const char *words)
{
    if (strstr(text, words) == NULL)
        fail_msg("'%s' is not in:\n%s", words, text);
}

/* Of a plan that can be made, what the plan says. */
static void test_served(void **state)
{
    struct bench b;
    qn_plan *plan = NULL;
    char expected[16384];
    (void)state;
    start(&b, "int4:g32");
    assert_ok(qn_matmul_plan(b.ctx, &b.args, &plan, NULL));
    assert_true(qn_plan_explain(plan, expected, sizeof expected) < sizeof expected);
    char *text = explained(b.ctx, &b.args);
    assert_string_equal(text, expected);
    free(text);
    qn_plan_destroy(plan);
    stop(&b);
}

static const char nothing_serves[] =
    "no kernel serves this: int8 strategies multiply integers, which the values of the codebook";

static void test_unsupported(void **state)
{
    struct bench b;
    qn_plan *plan = NULL;
    (void)state;
    start(&b, "nf4:g32");
    b.args.strategy = QN_STRATEGY_INT8_BLOCK;
    char *text = explained(b.ctx, &b.args);
    assert_begins(text, nothing_serves);
    assert_says(text, "matmul: m 3, n 32, k 64");
    assert_says(text, "weights: nf4:g32 packed as");
    assert_says(text, "refused:\n  qni_matmul_");
    free(text);
    qn_error error = {.offset = 0};
    assert_status(qn_matmul_plan(b.ctx, &b.args, &plan, &error), QN_E_UNSUPPORTED);
    assert_says(error.text, "explain()");
    assert_true(strstr(error.text, "qni_") != NULL &&
                strstr(error.text, "which the values of the codebook") != NULL);
    stop(&b);
}

/* A row that was asked for by name gives its own reason; a name that no row has says that. */
static void test_by_name(void **state)
{
    struct bench b;
    qn_plan *plan = NULL;
    (void)state;
    start(&b, "int4:g32");
    b.args.kernel = "qni_matmul_q8_q8n16_scalar";
    char *text = explained(b.ctx, &b.args);
    assert_begins(text, "no kernel serves this: ");
    assert_true(strstr(text, "asked for by name") > strstr(text, "refused:\n"));
    free(text);
    b.args.kernel = "qni_matmul_of_dreams";
    text = explained(b.ctx, &b.args);
    assert_begins(text, "no kernel serves this: no kernel of this operation is called "
                        "qni_matmul_of_dreams");
    free(text);
    assert_error(qn_matmul_plan(b.ctx, &b.args, &plan, &err), QN_E_UNSUPPORTED,
                 "is called qni_matmul_of_dreams");
    stop(&b);
}

/* Arguments that no plan is asked about: their sentence. */
static void test_bad_arguments(void **state)
{
    struct bench b;
    (void)state;
    start(&b, "int4:g32");
    b.args.x.shape[1] = K - 1;
    char *text = explained(b.ctx, &b.args);
    assert_string_equal(text, "E_SHAPE: x: dimension 1 is 63, not 64\n");
    free(text);
    text = explained(NULL, &b.args);
    assert_string_equal(text, "E_ARGUMENT: ctx is NULL\n");
    free(text);
    text = explained(b.ctx, NULL);
    assert_begins(text, "E_ARGUMENT: ");
    free(text);
    stop(&b);
}

/* In convolutions, rows that make no patches are asked first; their reasons govern nothing. */
static void test_convolutions(void **state)
{
    static const struct shape taps = {.n = C, .k = 9 * C, .kh = 3, .kw = 3},
                              lone = {.n = C, .k = 9, .kh = 3, .kw = 3, .groups = C},
                              pairs = {.n = C, .k = 18, .kh = 3, .kw = 3, .groups = C / 2};
    static const struct {
        const struct shape *shape;
        const char *why; /* the first line has this */
    } cases[] = {{&taps, "codebook"}, {&lone, "codebook"}, {&pairs, "codebook"}};
    static const int64_t image[4] = {1, C, SIDE, SIDE};
    struct bench b;
    char text[32768];
    (void)state;
    start(&b, "int4:g32");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_packed *w = packed_make(b.ctx, "nf4:pc", *cases[i].shape, 3, NULL);
        qn_conv_args args;
        qn_error error = {.offset = 0};
        qn_plan *plan = NULL;
        qn_conv_args_init(&args);
        args.w = w;
        args.strategy = QN_STRATEGY_INT8_STATIC;
        args.x = qn_tensor_make(NULL, QN_I8, 4, image);
        args.y = qn_tensor_make(NULL, QN_F32, 4, image);
        for (int side = 0; side < 4; side++)
            args.pad[side] = 1;
        assert_true(qn_conv2d_explain(b.ctx, &args, text, sizeof text) < sizeof text);
        assert_begins(text, "no kernel serves this: ");
        char *end = strchr(text, '\n');
        assert_says(end, "conv2d: m 36");
        *end = '\0';
        assert_says(text, cases[i].why);
        assert_status(qn_conv2d_plan(b.ctx, &args, &plan, &error), QN_E_UNSUPPORTED);
        /* The first reason of the plan's error, behind its first ": ", is the same. */
        const char *first = strstr(error.text, "qni_");
        assert_non_null(first);
        *strpbrk(first, ";") = '\0';
        assert_says(first, cases[i].why);
        assert_true(qn_conv_transpose2d_explain(b.ctx, &args, text, sizeof text) > 0);
        assert_begins(text, "no kernel serves this: ");
        qn_packed_destroy(w);
    }
    stop(&b);
}

static void test_grouped(void **state)
{
    struct bench b;
    char text[16384];
    (void)state;
    start(&b, "nf4:g32");
    const qn_packed *const experts[2] = {b.w, b.w};
    qn_grouped_args args;
    qn_grouped_args_init(&args);
    args.w = experts;
    args.n_experts = 2;
    args.x = b.args.x;
    args.y = b.args.y;
    args.ids = qn_tensor_1d(NULL, QN_I32, M);
    args.strategy = QN_STRATEGY_INT8_ROW;
    assert_true(qn_grouped_explain(b.ctx, &args, text, sizeof text) < sizeof text);
    assert_begins(text, nothing_serves);
    assert_says(text, "2 experts");
    args.strategy = QN_STRATEGY_FLOAT;
    assert_true(qn_grouped_explain(b.ctx, &args, text, sizeof text) < sizeof text);
    assert_begins(text, "matmul_grouped: ");
    stop(&b);
}

/* A strict plan that falls back tells so, and what stands in. */
static void test_strict(void **state)
{
    static const qn_strategy all[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                      QN_STRATEGY_INT8_BLOCK};
    qn_ctx_options options;
    qn_ctx *ctx = NULL;
    struct bench b;
    (void)state;
    qn_ctx_options_init(&options);
    options.isa_mask = QN_ISA_PORTABLE;
    options.n_threads = 1;
    assert_ok(qn_ctx_create(&options, &ctx, NULL));
    start(&b, "int4:g32");
    b.args.strict = 1;
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        qn_plan *plan = NULL;
        b.args.strategy = all[i];
        const qn_status status = qn_matmul_plan(ctx, &b.args, &plan, NULL);
        char *text = explained(ctx, &b.args);
        assert_begins(text, status == QN_OK ? "matmul: " : "a strict plan refuses qni_");
        assert_says(text, "kernel: qni_");
        free(text);
        qn_plan_destroy(plan);
    }
    stop(&b);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_served),       cmocka_unit_test(test_unsupported),
        cmocka_unit_test(test_by_name),      cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_convolutions), cmocka_unit_test(test_grouped),
        cmocka_unit_test(test_strict),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
