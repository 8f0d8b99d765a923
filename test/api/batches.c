/* SPDX-License-Identifier: Apache-2.0 */
/* x of a higher rank than 2, and batches of weights: the bits of the same rows one by one. */
#include "api.h"

enum { A = 2, B = 3, K = 64, N = 40, GAP = 5, WEIGHTS = 3 };

/* [A, B, K] with a gap behind each row, and y likewise. */
static void test_ranks(void **state)
{
    static float x[A * B * (K + GAP)], residual[A * B * N];
    static float y[A * B * (N + GAP)], expected[A * B * N];
    static const int64_t x_shape[3] = {A, B, K}, y_shape[3] = {A, B, N};
    qn_ctx *ctx = ctx_make(2);
    (void)state;
    fill_reals(x, A * B * (K + GAP), 1);
    fill_reals(residual, A * B * N, 2);
    qn_packed *w = packed_make(ctx, "int4:g32:zp", (struct shape){.n = N, .k = K}, 3, NULL);
    qn_matmul_args flat, args;
    qn_matmul_args_init(&flat);
    flat.w = w;
    flat.strategy = QN_STRATEGY_INT8_BLOCK;
    flat.x = qn_tensor_2d(x, QN_F32, A * B, K);
    flat.x.stride[0] = K + GAP;
    flat.y = qn_tensor_2d(expected, QN_F32, A * B, N);
    flat.epilogue.residual = qn_tensor_2d(residual, QN_F32, A * B, N);
    assert_ok(matmul_in_arena(ctx, &flat));
    args = flat;
    args.x = qn_tensor_make(x, QN_F32, 3, x_shape);
    args.x.stride[0] = B * (K + GAP);
    args.x.stride[1] = K + GAP;
    args.y = qn_tensor_make(y, QN_F32, 3, y_shape);
    args.y.stride[0] = B * (N + GAP);
    args.y.stride[1] = N + GAP;
    args.epilogue.residual = qn_tensor_make(residual, QN_F32, 3, y_shape);
    memset(y, 0x33, sizeof y);
    assert_ok(matmul_in_arena(ctx, &args));
    for (int i = 0; i < A * B; i++) {
        assert_memory_equal(y + i * (N + GAP), expected + i * N, N * sizeof *y);
        for (int j = 0; j < GAP * (int)sizeof *y; j++)
            assert_int_equal(((const uint8_t *)(y + i * (N + GAP) + N))[j], 0x33);
    }
    /* Dimensions of length 1 may have any stride, and there may be no rows. */
    args.x.shape[0] = args.y.shape[0] = args.epilogue.residual.shape[0] = 1;
    args.x.stride[0] = 1;
    assert_ok(matmul_in_arena(ctx, &args));
    args.x.shape[1] = args.y.shape[1] = args.epilogue.residual.shape[1] = 0;
    assert_ok(matmul_in_arena(ctx, &args));
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
}

static void test_batch(void **state)
{
    enum { M = 7 };
    static float x[WEIGHTS * M * K], bias[WEIGHTS * N], y[WEIGHTS * M * N], z[WEIGHTS * M * N];
    static const int64_t x_shape[3] = {WEIGHTS, M, K}, y_shape[3] = {WEIGHTS, M, N};
    (void)state;
    fill_reals(x, WEIGHTS * M * K, 1);
    fill_reals(bias, WEIGHTS * N, 2);
    for (int32_t threads = 1; threads <= 3; threads++) {
        qn_ctx *ctx = ctx_make(threads);
        qn_packed *w[WEIGHTS];
        qn_plan *plan = NULL;
        for (int e = 0; e < WEIGHTS; e++)
            w[e] =
                packed_make(ctx, "int8:g32", (struct shape){.n = N, .k = K}, 5 + (uint64_t)e, NULL);
        qn_grouped_args args;
        qn_grouped_args_init(&args);
        args.w = (const qn_packed *const *)w;
        args.n_experts = WEIGHTS;
        args.strategy = QN_STRATEGY_INT8_ROW;
        args.x = qn_tensor_make(x, QN_F32, 3, x_shape);
        args.y = qn_tensor_make(y, QN_F32, 3, y_shape);
        args.epilogue.bias = qn_tensor_2d(bias, QN_F32, WEIGHTS, N);
        assert_ok(grouped_in_arena(ctx, &args));
        for (int e = 0; e < WEIGHTS; e++) {
            qn_matmul_args one;
            qn_matmul_args_init(&one);
            one.w = w[e];
            one.strategy = args.strategy;
            one.x = qn_tensor_2d(x + e * M * K, QN_F32, M, K);
            one.y = qn_tensor_2d(z + e * M * N, QN_F32, M, N);
            one.epilogue.bias = qn_tensor_1d(bias + e * N, QN_F32, N);
            assert_ok(matmul_in_arena(ctx, &one));
        }
        assert_memory_equal(y, z, sizeof y);
        /* Fewer rows with the same plan, and no plan for what offsets tell. */
        assert_ok(qn_grouped_plan(ctx, &args, &plan, NULL));
        const size_t bytes = qn_plan_scratch_bytes(plan);
        void *scratch = take(bytes);
        args.x.shape[1] = args.y.shape[1] = M - 2;
        args.x.stride[0] = (M - 2) * K;
        args.y.stride[0] = (M - 2) * N;
        assert_ok(qn_grouped_run(plan, &args, scratch, bytes));
        static const int32_t offsets[WEIGHTS + 1] = {0, 1, 2, 3};
        args.x = qn_tensor_2d(x, QN_F32, 3, K);
        args.y = qn_tensor_2d(y, QN_F32, 3, N);
        args.offsets = qn_tensor_1d((void *)(uintptr_t)offsets, QN_I32, WEIGHTS + 1);
        assert_status(qn_grouped_run(plan, &args, scratch, bytes), QN_E_ARGUMENT);
        free(scratch);
        qn_plan_destroy(plan);
        for (int e = 0; e < WEIGHTS; e++)
            qn_packed_destroy(w[e]);
        qn_ctx_destroy(ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_batch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
