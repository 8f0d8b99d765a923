/* SPDX-License-Identifier: Apache-2.0 */
/* qn_finish(): the epilogue alone gives the bits that it gives behind a product. */
#include "api.h"

enum { M = 9, N = 1100, K = 32 };

struct scene {
    qn_ctx *ctx;
    qn_packed *w;
    float *x, *v, *bias, *residual, *row_scale, *col_scale;
};

static int make_scene(void **state)
{
    struct scene *const s = calloc(1, sizeof *s);
    s->ctx = ctx_make(2);
    s->w = packed_make(s->ctx, "int8:g32", (struct shape){.n = N, .k = K}, 1, NULL);
    s->x = take(M * K * sizeof(float));
    s->v = take(M * N * sizeof(float));
    s->bias = take(N * sizeof(float));
    s->residual = take(M * N * sizeof(float));
    s->row_scale = take(M * sizeof(float));
    s->col_scale = take(N * sizeof(float));
    fill_reals(s->x, M * K, 2);
    fill_reals(s->bias, N, 3);
    fill_reals(s->residual, M * N, 4);
    fill_reals(s->row_scale, M, 5);
    fill_reals(s->col_scale, N, 6);
    s->x[3] = NAN; /* a row that is not a number */
    *state = s;
    return 0;
}

static int free_scene(void **state)
{
    struct scene *const s = *state;
    qn_packed_destroy(s->w);
    qn_ctx_destroy(s->ctx);
    free(s->x);
    free(s->v);
    free(s->bias);
    free(s->residual);
    free(s->row_scale);
    free(s->col_scale);
    free(s);
    return 0;
}

static qn_epilogue epilogue_of(const struct scene *s, int32_t which, qn_dtype y)
{
    qn_epilogue e;
    qn_epilogue_init(&e);
    if (which & 1)
        e.bias = qn_tensor_1d(s->bias, QN_F32, N);
    if (which & 2)
        e.residual = qn_tensor_2d(s->residual, QN_F32, M, N);
    if (which & 4)
        e.row_scale = qn_tensor_1d(s->row_scale, QN_F32, M);
    if (which & 8)
        e.col_scale = qn_tensor_1d(s->col_scale, QN_F32, N);
    if (which & 16)
        e.act = QN_ACT_GELU;
    if (which & 32)
        e.clamp_lo = -0.5f;
    if (which & 64)
        e.residual_after = 1;
    if (y == QN_I8 || y == QN_U8)
        e.y_scale = 0.05f;
    return e;
}

static void test_same_bits_as_a_product(void **state)
{
    struct scene *const s = *state;
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    uint8_t *const expected = take(M * N * 4), *const y = take(M * N * 4);
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.w = s->w;
    args.strategy = QN_STRATEGY_INT8_ROW;
    args.x = qn_tensor_2d(s->x, QN_F32, M, K);
    args.y = qn_tensor_2d(s->v, QN_F32, M, N);
    assert_ok(matmul_in_arena(s->ctx, &args));
    for (int32_t t = 0; t < 3; t++) {
        for (int32_t which = 0; which < 128; which++) {
            const size_t bytes = M * N * qn_dtype_bytes(types[t]);
            args.y = qn_tensor_2d(expected, types[t], M, N);
            args.epilogue = epilogue_of(s, which, types[t]);
            assert_ok(matmul_in_arena(s->ctx, &args));
            qn_finish_args finish;
            qn_finish_args_init(&finish);
            finish.v = qn_tensor_2d(s->v, QN_F32, M, N);
            finish.y = qn_tensor_2d(y, types[t], M, N);
            finish.epilogue = args.epilogue;
            assert_ok(qn_finish(s->ctx, &finish));
            assert_memory_equal(y, expected, bytes);
            if (types[t] != QN_F32)
                continue;
            memcpy(y, s->v, bytes); /* in place */
            finish.v.data = y;
            assert_ok(qn_finish(s->ctx, &finish));
            assert_memory_equal(y, expected, bytes);
        }
    }
    free(expected);
    free(y);
}

static void test_bytes_out(void **state)
{
    struct scene *const s = *state;
    const float v[4] = {0.26f, -10.0f, 10.0f, NAN};
    int8_t y[4];
    uint8_t u[4];
    qn_finish_args f;
    qn_finish_args_init(&f);
    f.v = qn_tensor_2d((void *)(uintptr_t)v, QN_F32, 1, 4);
    f.y = qn_tensor_2d(y, QN_I8, 1, 4);
    f.epilogue.y_scale = 0.05f;
    f.epilogue.y_zero = 3;
    assert_ok(qn_finish(s->ctx, &f));
    assert_true(y[0] == 8 && y[1] == -128 && y[2] == 127 && y[3] == 3);
    f.y = qn_tensor_2d(u, QN_U8, 1, 4);
    assert_ok(qn_finish(s->ctx, &f));
    assert_true(u[0] == 8 && u[1] == 0 && u[2] == 203 && u[3] == 3);
}

static void test_bad_arguments(void **state)
{
    struct scene *const s = *state;
    float y[4], v[4] = {0};
    qn_error err = {0};
    qn_finish_args f;
    qn_finish_args_init(&f);
    f.error = &err;
    f.v = qn_tensor_2d(v, QN_F32, 2, 2);
    f.y = qn_tensor_2d(y, QN_F32, 2, 2);
    assert_ok(qn_finish(s->ctx, &f));
    assert_status(qn_finish(NULL, &f), QN_E_ARGUMENT);
    assert_status(qn_finish(s->ctx, NULL), QN_E_ARGUMENT);
    const struct {
        qn_tensor v, y;
        qn_status status;
        const char *word;
    } bad[] = {
        {qn_tensor_2d(v, QN_F16, 2, 2), qn_tensor_2d(y, QN_F32, 2, 2), QN_E_DTYPE, "v"},
        {qn_tensor_2d(v, QN_F32, 2, 2), qn_tensor_2d(y, QN_I32, 2, 2), QN_E_DTYPE, "y"},
        {qn_tensor_2d(v, QN_F32, 2, 2), qn_tensor_2d(y, QN_F32, 1, 4), QN_E_SHAPE, "y"},
        {qn_tensor_2d(v, QN_F32, 2, 2), qn_tensor_2d(v, QN_I8, 2, 2), QN_E_OVERLAP, "v"},
        {qn_tensor_2d(NULL, QN_F32, 2, 2), qn_tensor_2d(y, QN_F32, 2, 2), QN_E_ARGUMENT, "v"},
        {qn_tensor_1d(v, QN_F32, 4), qn_tensor_2d(y, QN_F32, 2, 2), QN_E_SHAPE, "v"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        f.v = bad[i].v;
        f.y = bad[i].y;
        const qn_status status = qn_finish(s->ctx, &f);
        if (status != bad[i].status || err.status != status ||
            strstr(err.text, bad[i].word) == NULL)
            fail_msg("case %zu: %s, '%s'", i, qn_status_name(status), err.text);
    }
    /* Nothing to do. */
    f.v = qn_tensor_2d(NULL, QN_F32, 0, 4);
    f.y = qn_tensor_2d(NULL, QN_F32, 0, 4);
    assert_ok(qn_finish(s->ctx, &f));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bits_as_a_product),
        cmocka_unit_test(test_bytes_out),
        cmocka_unit_test(test_bad_arguments),
    };
    return cmocka_run_group_tests(tests, make_scene, free_scene);
}
