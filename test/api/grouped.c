/* SPDX-License-Identifier: Apache-2.0 */
/* qn_grouped(): rows routed to experts by ids and by offsets give the bits of one matmul for
 * each expert; bad routing is found before anything is written. */
#include "api.h"

enum { EXPERTS = 4, ROWS = 9, TOKENS = 6, N = 24, K = 64 };
static const struct shape shape = {.n = N, .k = K};

struct bench {
    qn_ctx *ctx;
    qn_packed *w[EXPERTS];
    float x[ROWS * K], bias[EXPERTS * N], y[ROWS * N], expected[ROWS * N];
    int32_t offsets[EXPERTS + 1], ids[ROWS], x_rows[ROWS];
    qn_grouped_args args;
};

static void bench_args(struct bench *b)
{
    static const int32_t offsets[EXPERTS + 1] = {0, 3, 3, 8, 9};
    static const int32_t ids[ROWS] = {2, 0, -1, 3, 3, 0, 2, -7, 2};
    static const int32_t x_rows[ROWS] = {5, 0, 0, 1, 4, 4, 2, 99, 3};
    memcpy(b->offsets, offsets, sizeof offsets);
    memcpy(b->ids, ids, sizeof ids);
    memcpy(b->x_rows, x_rows, sizeof x_rows);
    qn_grouped_args_init(&b->args);
    b->args.w = (const qn_packed *const *)b->w;
    b->args.n_experts = EXPERTS;
    b->args.strategy = QN_STRATEGY_INT8_BLOCK;
    b->args.x = qn_tensor_2d(b->x, QN_F32, ROWS, K);
    b->args.y = qn_tensor_2d(b->y, QN_F32, ROWS, N);
    b->args.offsets = qn_tensor_1d(b->offsets, QN_I32, EXPERTS + 1);
    for (int i = 0; i < ROWS * N; i++)
        b->y[i] = b->expected[i] = -3.0f;
}

static void by_ids(struct bench *b)
{
    b->args.offsets = qn_tensor_none();
    b->args.ids = qn_tensor_1d(b->ids, QN_I32, ROWS);
    b->args.x_rows = qn_tensor_1d(b->x_rows, QN_I32, ROWS);
    b->args.x.shape[0] = TOKENS;
}

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof *b);
    b->ctx = ctx_make(2);
    for (int e = 0; e < EXPERTS; e++)
        b->w[e] = packed_make(b->ctx, "int4:g32:zp", shape, (uint64_t)e + 1, NULL);
    fill_reals(b->x, ROWS * K, 17);
    fill_reals(b->bias, EXPERTS * N, 18);
    *state = b;
    bench_args(b);
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    for (int e = 0; e < EXPERTS; e++)
        qn_packed_destroy(b->w[e]);
    qn_ctx_destroy(b->ctx);
    free(b);
    return 0;
}

/* Row r of the expected y: a matmul of one row. */
static void expect_row(struct bench *b, int64_t r, int64_t source, int32_t expert)
{
    qn_matmul_args one;
    qn_matmul_args_init(&one);
    one.w = b->w[expert];
    one.strategy = b->args.strategy;
    one.x = qn_tensor_2d(b->x + source * K, QN_F32, 1, K);
    one.y = qn_tensor_2d(b->expected + r * N, QN_F32, 1, N);
    if (b->args.epilogue.bias.rank == 1)
        one.epilogue.bias = qn_tensor_1d(b->bias, QN_F32, N);
    if (b->args.epilogue.bias.rank == 2)
        one.epilogue.bias = qn_tensor_1d(b->bias + expert * N, QN_F32, N);
    assert_ok(matmul_in_arena(b->ctx, &one));
}

/* The int8 strategies are exact, so that even one row at a time must give the same bits. */
static void check_calls(struct bench *b)
{
    qn_plan *plan = NULL;
    assert_ok(grouped_in_arena(b->ctx, &b->args));
    assert_memory_equal(b->y, b->expected, sizeof b->y);
    for (int i = 0; i < ROWS * N; i++)
        b->y[i] = -3.0f;
    assert_ok(qn_grouped_plan(b->ctx, &b->args, &plan, NULL));
    size_t bytes = 0;
    assert_ok(qn_grouped_scratch(b->ctx, &b->args, &bytes));
    assert_int_equal(bytes, qn_plan_scratch_bytes(plan));
    void *scratch = take(bytes);
    assert_ok(qn_grouped_run(plan, &b->args, scratch, bytes));
    assert_memory_equal(b->y, b->expected, sizeof b->y);
    qn_plan_destroy(plan);
    free(scratch);
}

static void test_offsets(void **state)
{
    struct bench *b = *state;
    for (int pass = 0; pass < 3; pass++) {
        bench_args(b);
        if (pass == 1)
            b->args.epilogue.bias = qn_tensor_1d(b->bias, QN_F32, N);
        if (pass == 2)
            b->args.epilogue.bias = qn_tensor_2d(b->bias, QN_F32, EXPERTS, N);
        for (int32_t e = 0; e < EXPERTS; e++)
            for (int32_t r = b->offsets[e]; r < b->offsets[e + 1]; r++)
                expect_row(b, r, r, e);
        check_calls(b);
    }
}

/* Rows before the first and after the last range belong to nobody. */
static void test_offsets_inside(void **state)
{
    struct bench *b = *state;
    static const int32_t offsets[EXPERTS + 1] = {2, 2, 5, 5, 7};
    bench_args(b);
    memcpy(b->offsets, offsets, sizeof offsets);
    for (int32_t e = 0; e < EXPERTS; e++)
        for (int32_t r = offsets[e]; r < offsets[e + 1]; r++)
            expect_row(b, r, r, e);
    check_calls(b);
}

static void test_ids(void **state)
{
    struct bench *b = *state;
    for (int pass = 0; pass < 2; pass++) {
        bench_args(b);
        by_ids(b);
        if (pass == 1)
            b->args.epilogue.bias = qn_tensor_2d(b->bias, QN_F32, EXPERTS, N);
        for (int32_t r = 0; r < ROWS; r++)
            if (b->ids[r] >= 0)
                expect_row(b, r, b->x_rows[r], b->ids[r]);
        check_calls(b);
    }
}

static void test_nothing(void **state)
{
    struct bench *b = *state;
    bench_args(b);
    by_ids(b);
    for (int i = 0; i < ROWS; i++)
        b->ids[i] = -1;
    check_calls(b);
    b->args.y.shape[0] = b->args.ids.shape[0] = b->args.x_rows.shape[0] = 0;
    b->args.y.data = b->args.ids.data = b->args.x_rows.data = NULL;
    check_calls(b);
    bench_args(b);
    memset(b->offsets, 0, sizeof b->offsets);
    check_calls(b);
}

/* ------------------------------------------------------------------------------------ bad input */

static const qn_packed *others[EXPERTS];

/* clang-format off */
static void spoil_w(struct bench *b) { b->args.w = NULL; }
static void spoil_no_experts(struct bench *b) { b->args.n_experts = 0; }
static void spoil_experts_negative(struct bench *b) { b->args.n_experts = -3; }
static void spoil_an_expert(struct bench *b)
{
    memcpy(others, b->w, sizeof others);
    others[2] = NULL;
    b->args.w = others;
}
static void spoil_both(struct bench *b) { b->args.ids = qn_tensor_1d(b->ids, QN_I32, ROWS); }
static void spoil_neither(struct bench *b) { b->args.offsets = qn_tensor_none(); }
static void spoil_offsets_length(struct bench *b) { b->args.offsets.shape[0] = EXPERTS; }
static void spoil_offsets_dtype(struct bench *b) { b->args.offsets.dtype = QN_I64; }
static void spoil_offsets_rank(struct bench *b)
{
    b->args.offsets = qn_tensor_2d(b->offsets, QN_I32, 1, EXPERTS + 1);
}
static void spoil_ids_length(struct bench *b) { by_ids(b); b->args.ids.shape[0] = ROWS - 1; }
static void spoil_ids_stride(struct bench *b) { by_ids(b); b->args.ids.stride[0] = 2; }
static void spoil_rows_length(struct bench *b) { by_ids(b); b->args.x_rows.shape[0] = ROWS + 1; }
static void spoil_rows_dtype(struct bench *b) { by_ids(b); b->args.x_rows.dtype = QN_U32; }
static void spoil_rows_none(struct bench *b) { by_ids(b); b->args.x_rows = qn_tensor_none(); }
static void spoil_x_rank(struct bench *b) { b->args.x.rank = 3; }
static void spoil_k(struct bench *b) { b->args.x.shape[1] = 32; }
static void spoil_n(struct bench *b) { b->args.y.shape[1] = 23; }
static void spoil_bias(struct bench *b)
{
    b->args.epilogue.bias = qn_tensor_2d(b->bias, QN_F32, EXPERTS - 1, N);
}
static void spoil_reserved(struct bench *b) { b->args.reserved = 1; }
static void spoil_strict(struct bench *b) { b->args.strict = -1; }

/* What only a run sees. */
static void spoil_id(struct bench *b) { by_ids(b); b->ids[8] = EXPERTS; }
static void spoil_offsets_fall(struct bench *b) { b->offsets[2] = 2; }
static void spoil_offsets_begin(struct bench *b) { b->offsets[0] = -1; }
static void spoil_offsets_end(struct bench *b) { b->offsets[EXPERTS] = ROWS + 1; }
static void spoil_row(struct bench *b) { by_ids(b); b->x_rows[8] = TOKENS; }
static void spoil_row_negative(struct bench *b) { by_ids(b); b->x_rows[0] = -1; }
static void spoil_row_of_range(struct bench *b)
{
    b->args.x_rows = qn_tensor_1d(b->x_rows, QN_I32, ROWS); /* one of them is 99 */
}
static void spoil_offsets_data(struct bench *b) { b->args.offsets.data = NULL; }
static void spoil_ids_align(struct bench *b) { by_ids(b); b->args.ids.data = (char *)b->ids + 1; }
static void spoil_y_on_ids(struct bench *b) { by_ids(b); b->args.ids.data = b->y; }
static void spoil_y_on_x(struct bench *b) { b->args.x.data = b->y + 1; }
/* clang-format on */

static const struct bad {
    const char *name;
    void (*spoil)(struct bench *);
    qn_status status;
    const char *word; /* NULL: only runs can see it */
} bads[] = {
    {"w NULL", spoil_w, QN_E_ARGUMENT, "no experts"},
    {"no experts", spoil_no_experts, QN_E_ARGUMENT, "n_experts is 0"},
    {"negative experts", spoil_experts_negative, QN_E_ARGUMENT, "n_experts is -3"},
    {"an expert NULL", spoil_an_expert, QN_E_ARGUMENT, "w[2] is NULL"},
    {"offsets and ids", spoil_both, QN_E_ARGUMENT, "exactly one"},
    {"neither", spoil_neither, QN_E_ARGUMENT, "exactly one"},
    {"length of offsets", spoil_offsets_length, QN_E_SHAPE, "offsets: dimension 0 is 4, not 5"},
    {"dtype of offsets", spoil_offsets_dtype, QN_E_DTYPE, "offsets has type i64"},
    {"rank of offsets", spoil_offsets_rank, QN_E_SHAPE, "offsets has rank 2"},
    {"length of ids", spoil_ids_length, QN_E_SHAPE, "ids: dimension 0 is 8, not 9"},
    {"stride of ids", spoil_ids_stride, QN_E_STRIDE, "ids"},
    {"length of x_rows", spoil_rows_length, QN_E_SHAPE, "x_rows"},
    {"dtype of x_rows", spoil_rows_dtype, QN_E_DTYPE, "x_rows has type u32"},
    {"rows without x_rows", spoil_rows_none, QN_E_SHAPE, "without x_rows"},
    {"rank of x", spoil_x_rank, QN_E_SHAPE, "rank"},
    {"k", spoil_k, QN_E_SHAPE, "x: dimension 1"},
    {"n", spoil_n, QN_E_SHAPE, "y: dimension 1"},
    {"experts of bias", spoil_bias, QN_E_SHAPE, "bias: dimension 0 is 3, not 4"},
    {"reserved", spoil_reserved, QN_E_ARGUMENT, "reserved"},
    {"strict", spoil_strict, QN_E_ARGUMENT, "strict"},
    {"id", spoil_id, QN_E_VALUE, NULL},
    {"falling offsets", spoil_offsets_fall, QN_E_VALUE, NULL},
    {"first offset", spoil_offsets_begin, QN_E_VALUE, NULL},
    {"last offset", spoil_offsets_end, QN_E_VALUE, NULL},
    {"row of x", spoil_row, QN_E_VALUE, NULL},
    {"negative row of x", spoil_row_negative, QN_E_VALUE, NULL},
    {"row of x in a range", spoil_row_of_range, QN_E_VALUE, NULL},
    {"offsets NULL", spoil_offsets_data, QN_E_ARGUMENT, NULL},
    {"ids misaligned", spoil_ids_align, QN_E_ALIGN, NULL},
    {"y on ids", spoil_y_on_ids, QN_E_OVERLAP, NULL},
    {"y on x", spoil_y_on_x, QN_E_OVERLAP, NULL},
};

static void test_bad(void **state)
{
    struct bench *b = *state;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        const struct bad *bad = &bads[i];
        qn_plan *plan = NULL;
        qn_error err = {0};
        size_t bytes;
        bench_args(b);
        bad->spoil(b);
        const qn_status status = qn_grouped_plan(b->ctx, &b->args, &plan, &err);
        if (bad->word == NULL) {
            assert_ok(status);
            assert_status(qn_grouped_run(plan, &b->args, NULL, 0), bad->status);
        } else if (status != bad->status || strstr(err.text, bad->word) == NULL) {
            fail_msg("%s: plan gave %s: %s", bad->name, qn_status_name(status), err.text);
        } else {
            assert_status(qn_grouped_scratch(b->ctx, &b->args, &bytes), bad->status);
        }
        const qn_status direct = qn_grouped(b->ctx, &b->args, NULL, 0);
        if (direct != bad->status)
            fail_msg("%s: direct call gave %s", bad->name, qn_status_name(direct));
        for (int k = 0; k < ROWS * N; k++)
            assert_true(b->y[k] == -3.0f);
        qn_plan_destroy(plan);
    }
}

/* Experts that are not of one make. */
static void test_mixed_experts(void **state)
{
    struct bench *b = *state;
    const struct shape narrow = {.n = N - 1, .k = K};
    const struct {
        const char *spec;
        struct shape shape;
        int64_t x_block;
        qn_status status;
    } odd[] = {{"int4:g32:zp", narrow, 0, QN_E_SHAPE},
               {"int8:g32:zp", shape, 0, QN_E_FORMAT},
               {"int4:g32", shape, 0, QN_E_FORMAT},
               {"int4:g32:zp", shape, 16, QN_E_LAYOUT}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; i++) {
        qn_weight *weight = weight_make(b->ctx, odd[i].spec, odd[i].shape, 1);
        qn_pack_options options;
        qn_packed *packed = NULL;
        qn_pack_options_init(&options);
        options.x_block = odd[i].x_block;
        assert_ok(qn_pack(b->ctx, weight, &options, &packed, NULL));
        bench_args(b);
        memcpy(others, b->w, sizeof others);
        others[3] = packed;
        b->args.w = others;
        qn_plan *plan = NULL;
        assert_error(qn_grouped_plan(b->ctx, &b->args, &plan, &err), odd[i].status, "expert 3");
        assert_status(qn_grouped(b->ctx, &b->args, NULL, 0), odd[i].status);
        qn_packed_destroy(packed);
        qn_weight_destroy(weight);
    }
}

static void test_null(void **state)
{
    struct bench *b = *state;
    qn_plan *plan = NULL;
    size_t bytes;
    bench_args(b);
    assert_error(qn_grouped_plan(NULL, &b->args, &plan, &err), QN_E_ARGUMENT, "ctx is NULL");
    assert_error(qn_grouped_plan(b->ctx, NULL, &plan, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_grouped_plan(b->ctx, &b->args, NULL, &err), QN_E_ARGUMENT, "plan is NULL");
    assert_status(qn_grouped(NULL, &b->args, NULL, 0), QN_E_ARGUMENT);
    assert_status(qn_grouped(b->ctx, NULL, NULL, 0), QN_E_ARGUMENT);
    assert_status(qn_grouped_run(NULL, &b->args, NULL, 0), QN_E_ARGUMENT);
    assert_status(qn_grouped_scratch(NULL, &b->args, &bytes), QN_E_ARGUMENT);
    assert_status(qn_grouped_scratch(b->ctx, &b->args, NULL), QN_E_ARGUMENT);
    assert_ok(qn_grouped_plan(b->ctx, &b->args, &plan, NULL));
    assert_status(qn_grouped_run(plan, NULL, NULL, 0), QN_E_ARGUMENT);
    by_ids(b);
    assert_status(qn_grouped_run(plan, &b->args, NULL, 0), QN_E_DTYPE);
    bench_args(b);
    b->args.n_experts = EXPERTS - 1;
    b->args.offsets.shape[0] = EXPERTS;
    assert_status(qn_grouped_run(plan, &b->args, NULL, 0), QN_E_SHAPE);
    qn_plan_destroy(plan);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_offsets), cmocka_unit_test(test_offsets_inside),
        cmocka_unit_test(test_ids),     cmocka_unit_test(test_nothing),
        cmocka_unit_test(test_bad),     cmocka_unit_test(test_mixed_experts),
        cmocka_unit_test(test_null),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
