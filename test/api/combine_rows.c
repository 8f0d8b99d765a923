/* SPDX-License-Identifier: Apache-2.0 */
/* qn_combine_rows(): the f32 steps as they are written, on any number of threads; bad arguments. */
#include "api.h"

enum { ROWS = 12, TOKENS = 6, TOP_K = 2, N = 1500 };

struct bench {
    float x[ROWS * N], add[TOKENS * N], weights[TOKENS * TOP_K];
    float y[TOKENS * N], expected[TOKENS * N];
    uint16_t half_x[ROWS * N], half_y[TOKENS * N];
    int32_t rows[TOKENS * TOP_K];
    qn_combine_rows_args args;
};

static void bench_args(struct bench *b)
{
    static const int32_t rows[TOKENS * TOP_K] = {3, 0, 11, -1, 5, 5, -2, -3, 1, 2, 10, 4};
    fill_reals(b->x, ROWS * N, 1);
    fill_reals(b->add, TOKENS * N, 2);
    fill_reals(b->weights, TOKENS * TOP_K, 3);
    memcpy(b->rows, rows, sizeof rows);
    qn_combine_rows_args_init(&b->args);
    b->args.x = qn_tensor_2d(b->x, QN_F32, ROWS, N);
    b->args.weights = qn_tensor_2d(b->weights, QN_F32, TOKENS, TOP_K);
    b->args.y = qn_tensor_2d(b->y, QN_F32, TOKENS, N);
    memset(b->y, 0x55, sizeof b->y);
}

/* Volatile: no step is fused or kept longer than f32. */
static void expect(struct bench *b, bool has_rows, bool adds)
{
    for (int t = 0; t < TOKENS; t++)
        for (int i = 0; i < N; i++) {
            volatile float sum = adds ? b->add[t * N + i] : 0.0f;
            for (int j = 0; j < TOP_K; j++) {
                const int32_t row = has_rows ? b->rows[t * TOP_K + j] : t * TOP_K + j;
                if (row < 0)
                    continue;
                volatile float product = b->weights[t * TOP_K + j] * b->x[row * N + i];
                sum = sum + product;
            }
            b->expected[t * N + i] = sum;
        }
}

static void test_values(void **state)
{
    struct bench *b = calloc(1, sizeof *b);
    (void)state;
    for (int32_t threads = 1; threads <= 3; threads++)
        for (int which = 0; which < 4; which++) {
            qn_ctx *ctx = ctx_make(threads);
            bench_args(b);
            if (which & 1)
                b->args.rows = qn_tensor_2d(b->rows, QN_I32, TOKENS, TOP_K);
            if (which & 2)
                b->args.add = qn_tensor_2d(b->add, QN_F32, TOKENS, N);
            expect(b, which & 1, which & 2);
            assert_ok(qn_combine_rows(ctx, &b->args));
            assert_memory_equal(b->y, b->expected, sizeof b->y);
            if (which & 2) { /* into itself */
                b->args.y = b->args.add;
                assert_ok(qn_combine_rows(ctx, &b->args));
                assert_memory_equal(b->add, b->expected, sizeof b->add);
            }
            qn_ctx_destroy(ctx);
        }
    free(b);
}

static float widened(uint16_t bf16)
{
    const uint32_t bits = (uint32_t)bf16 << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

/* To the nearest bf16, ties to even; no NaN comes here. */
static uint16_t narrowed(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* Other types are widened before and rounded once after; a token of no rows is 0. */
static void test_types(void **state)
{
    struct bench *b = calloc(1, sizeof *b);
    qn_ctx *ctx = ctx_make(2);
    (void)state;
    bench_args(b);
    for (int i = 0; i < ROWS * N; i++) {
        b->half_x[i] = narrowed(b->x[i]);
        b->x[i] = widened(b->half_x[i]);
    }
    b->args.x = qn_tensor_2d(b->half_x, QN_BF16, ROWS, N);
    b->args.y = qn_tensor_2d(b->half_y, QN_BF16, TOKENS, N);
    b->args.rows = qn_tensor_2d(b->rows, QN_I32, TOKENS, TOP_K);
    expect(b, true, false);
    assert_ok(qn_combine_rows(ctx, &b->args));
    for (int i = 0; i < TOKENS * N; i++)
        assert_int_equal(b->half_y[i], narrowed(b->expected[i]));
    for (int i = 0; i < N; i++)
        assert_int_equal(b->half_y[3 * N + i], 0);
    b->args.x.shape[0] = b->args.weights.shape[0] = b->args.y.shape[0] = 0;
    b->args.rows = qn_tensor_none();
    assert_ok(qn_combine_rows(ctx, &b->args));
    qn_ctx_destroy(ctx);
    free(b);
}

/* clang-format off */
static void x_rows(struct bench *b) { b->args.x.shape[0] = ROWS - 1; }
static void row(struct bench *b)
{
    b->args.rows = qn_tensor_2d(b->rows, QN_I32, TOKENS, TOP_K);
    b->rows[3] = ROWS;
}
static void rows_shape(struct bench *b)
{
    b->args.rows = qn_tensor_2d(b->rows, QN_I32, TOKENS, 1);
}
static void rows_type(struct bench *b) { b->args.rows = b->args.weights; }
static void weights_type(struct bench *b) { b->args.weights.dtype = QN_F16; }
static void y_shape(struct bench *b) { b->args.y.shape[1] = N - 1; }
static void y_type(struct bench *b) { b->args.y.dtype = QN_I8; }
static void y_null(struct bench *b) { b->args.y.data = NULL; }
static void y_on_x(struct bench *b) { b->args.y.data = b->x + N; }
static void y_stride(struct bench *b) { b->args.y.stride[0] = N - 1; }
static void add_shape(struct bench *b) { b->args.add = qn_tensor_2d(b->add, QN_F32, 1, N); }
static void add_apart(struct bench *b)
{
    b->args.add = b->args.y;
    b->args.add.data = b->y + 1;
}
static void x_type(struct bench *b) { b->args.x.dtype = QN_F64; }
static void size(struct bench *b) { b->args.size = 5; }
/* clang-format on */

static void test_bad(void **state)
{
    static const struct {
        void (*spoil)(struct bench *);
        qn_status status;
        const char *word;
    } bads[] = {
        {x_rows, QN_E_SHAPE, "x has 11 rows"},
        {row, QN_E_VALUE, "rows[1, 1] is 12"},
        {rows_shape, QN_E_SHAPE, "rows"},
        {rows_type, QN_E_DTYPE, "rows has type f32"},
        {weights_type, QN_E_DTYPE, "weights has type f16"},
        {y_shape, QN_E_SHAPE, "y"},
        {y_type, QN_E_DTYPE, "y has type i8"},
        {y_null, QN_E_ARGUMENT, "y"},
        {y_on_x, QN_E_OVERLAP, "y overlaps x"},
        {y_stride, QN_E_STRIDE, "y"},
        {add_shape, QN_E_SHAPE, "add"},
        {add_apart, QN_E_OVERLAP, "y overlaps add"},
        {x_type, QN_E_DTYPE, "x has type f64"},
        {size, QN_E_ARGUMENT, "size is 5"},
    };
    struct bench *b = calloc(1, sizeof *b);
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        qn_error error = {QN_OK, -1, ""};
        bench_args(b);
        b->args.error = &error;
        bads[i].spoil(b);
        const qn_status status = qn_combine_rows(ctx, &b->args);
        if (status != bads[i].status)
            fail_msg("%zu: %s", i, qn_status_name(status));
        if (b->args.size != 5 && strstr(error.text, bads[i].word) == NULL)
            fail_msg("'%s' does not say '%s'", error.text, bads[i].word);
        for (size_t at = 0; at < sizeof b->y; at++)
            assert_int_equal(((const uint8_t *)b->y)[at], 0x55);
    }
    assert_status(qn_combine_rows(NULL, &b->args), QN_E_ARGUMENT);
    assert_status(qn_combine_rows(ctx, NULL), QN_E_ARGUMENT);
    qn_ctx_destroy(ctx);
    free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values),
        cmocka_unit_test(test_types),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
