/* SPDX-License-Identifier: Apache-2.0 */
/* Structs whose fields are zero because nobody set them - a C initialiser with few names, Rust's
 * and Go's zero values, a binding without the defaults - either mean what one would think or are
 * refused with a sentence that names the field. None computes something else. */
#include "api.h"

#include <quern/cuda.h>

enum { M = 3, N = 16, K = 64, SIDE = 4, O = 8 };

static const struct shape shape = {.n = N, .k = K};

struct bench {
    qn_ctx *ctx;
    qn_packed *w, *plain, *image;
    float x[M * K], y[M * N + 1];
    int8_t x8[M * K], y8[M * N];
};

static void start(struct bench *b)
{
    memset(b, 0, sizeof *b);
    b->ctx = ctx_make(1);
    b->w = packed_make(b->ctx, "int4:g32", shape, 1, NULL);
    b->plain = packed_make(b->ctx, "int8:pc", shape, 2, NULL);
    b->image =
        packed_make(b->ctx, "int4:g32", (struct shape){.n = O, .k = 4, .kh = 1, .kw = 1}, 3, NULL);
    fill_reals(b->x, M * K, 4);
}

static void stop(struct bench *b)
{
    qn_packed_destroy(b->w);
    qn_packed_destroy(b->plain);
    qn_packed_destroy(b->image);
    qn_ctx_destroy(b->ctx);
}

static qn_status plan_matmul(const struct bench *b, const qn_matmul_args *args, qn_error *err)
{
    qn_plan *plan = NULL;
    const qn_status status = qn_matmul_plan(b->ctx, args, &plan, err);
    qn_plan_destroy(plan);
    return status;
}

/* An epilogue of zeros has a clamp of 0 to 0, which would make every output 0. */
static void test_epilogue(void **state)
{
    struct bench b;
    qn_matmul_args args;
    (void)state;
    start(&b);
    qn_matmul_args_init(&args);
    args.w = b.w;
    args.x = qn_tensor_2d(b.x, QN_F32, M, K);
    args.y = qn_tensor_2d(b.y, QN_F32, M, N);
    args.epilogue = (qn_epilogue){.act = QN_ACT_SILU};
    assert_error(plan_matmul(&b, &args, &err), QN_E_VALUE, "qn_epilogue_init()");
    b.y[0] = 7.0f;
    assert_status(qn_matmul(b.ctx, &args, NULL, 0), QN_E_VALUE);
    assert_true(b.y[0] == 7.0f);
    args.epilogue.clamp_lo = -0.0f;
    assert_error(plan_matmul(&b, &args, &err), QN_E_VALUE, "clamp_lo and clamp_hi are both 0");
    /* Other clamps of one value are what the caller wrote. */
    args.epilogue.clamp_lo = args.epilogue.clamp_hi = 2.0f;
    assert_ok(matmul_in_arena(b.ctx, &args));
    assert_true(b.y[0] == 2.0f && b.y[M * N - 1] == 2.0f);
    args.epilogue.clamp_lo = 0.0f;
    assert_ok(matmul_in_arena(b.ctx, &args));
    stop(&b);
}

/* Argument structs of nothing but their size and tensors. */
static void test_args(void **state)
{
    struct bench b;
    (void)state;
    start(&b);
    const qn_matmul_args matmul = {.size = sizeof matmul,
                                   .w = b.w,
                                   .x = qn_tensor_2d(b.x, QN_F32, M, K),
                                   .y = qn_tensor_2d(b.y, QN_F32, M, N)};
    assert_error(plan_matmul(&b, &matmul, &err), QN_E_VALUE, "clamp");
    const qn_packed *const experts[1] = {b.w};
    int32_t ids[M] = {0};
    qn_plan *plan = NULL;
    const qn_grouped_args grouped = {.size = sizeof grouped,
                                     .w = experts,
                                     .n_experts = 1,
                                     .x = matmul.x,
                                     .y = matmul.y,
                                     .ids = qn_tensor_1d(ids, QN_I32, M)};
    assert_error(qn_grouped_plan(b.ctx, &grouped, &plan, &err), QN_E_VALUE, "clamp");
    static const int64_t x_shape[4] = {1, 4, SIDE, SIDE}, y_shape[4] = {1, O, SIDE, SIDE};
    const qn_conv_args conv = {.size = sizeof conv,
                               .w = b.image,
                               .x = qn_tensor_make(b.x, QN_F32, 4, x_shape),
                               .y = qn_tensor_make(b.y, QN_F32, 4, y_shape)};
    assert_error(qn_conv2d_plan(b.ctx, &conv, &plan, &err), QN_E_ARGUMENT, "stride is 0");
    qn_matmul_args no_size = matmul;
    no_size.size = 0;
    assert_error(plan_matmul(&b, &no_size, &err), QN_E_ARGUMENT, "_init()");
    assert_null(plan);
    stop(&b);
}

/* Scales that nobody gave: refused where they are used, not looked at elsewhere. */
static void test_scales(void **state)
{
    struct bench b;
    qn_matmul_args args;
    (void)state;
    start(&b);
    qn_matmul_args_init(&args);
    args.w = b.plain;
    args.strategy = QN_STRATEGY_INT8_STATIC;
    args.x = qn_tensor_2d(b.x8, QN_I8, M, K);
    args.y = qn_tensor_2d(b.y8, QN_I8, M, N);
    args.quant = (qn_quant_args){.x_zero = 3};
    assert_error(plan_matmul(&b, &args, &err), QN_E_VALUE, "x_scale is 0");
    args.quant.x_scale = 1.0f;
    args.epilogue.y_scale = 0.0f;
    assert_error(plan_matmul(&b, &args, &err), QN_E_VALUE, "y_scale is 0");
    args.y = qn_tensor_2d(b.y, QN_F32, M, N);
    assert_ok(plan_matmul(&b, &args, NULL));
    args.strategy = QN_STRATEGY_INT8_ROW;
    args.x = qn_tensor_2d(b.x, QN_F32, M, K);
    args.quant = (qn_quant_args){.x_scale = 0.0f};
    assert_ok(plan_matmul(&b, &args, NULL));
    stop(&b);
}

/* A tensor without a device or without strides. */
static void test_tensors(void **state)
{
    struct bench b;
    qn_matmul_args args;
    (void)state;
    start(&b);
    qn_matmul_args_init(&args);
    args.w = b.w;
    args.x = (qn_tensor){.data = b.x, .dtype = QN_F32, .rank = 2, .shape = {M, K}};
    args.y = qn_tensor_2d(b.y, QN_F32, M, N);
    assert_error(plan_matmul(&b, &args, &err), QN_E_DEVICE, "x is on device 0:0");
    args.x.device.kind = QN_CPU;
    assert_error(plan_matmul(&b, &args, &err), QN_E_STRIDE, "x: the innermost stride is 0");
    args.x.stride[1] = 1; /* one row, read M times: a broadcast is legal where nothing is written */
    assert_ok(plan_matmul(&b, &args, NULL));
    args.y.stride[0] = 0;
    assert_error(plan_matmul(&b, &args, &err), QN_E_STRIDE, "y: stride 0 is 0");
    stop(&b);
}

/* Options and parts. */
static void test_creation(void **state)
{
    struct bench b;
    qn_ctx *ctx = NULL;
    qn_weight *weight = NULL;
    (void)state;
    start(&b);
    const qn_ctx_options options = {.size = sizeof options};
    assert_error(qn_ctx_create(&options, &ctx, &err), QN_E_DEVICE, "device kind 0");
    assert_null(ctx);

    const qn_weight_parts parts = {.size = sizeof parts};
    assert_error(qn_weight_create(b.ctx, &parts, &weight, &err), QN_E_FORMAT, "code");
    qn_weight_parts with_format = {.size = sizeof with_format, .n = N, .k = K};
    assert_ok(qn_format_parse("int4:g32", &with_format.format, NULL));
    assert_error(qn_weight_create(b.ctx, &with_format, &weight, &err), QN_E_SHAPE, "kernel 0 x 0");

    const qn_tensor dense = qn_tensor_2d(b.x, QN_F32, M, K);
    qn_quantize_options quantize = {.size = sizeof quantize};
    assert_error(qn_quantize(b.ctx, &dense, &quantize, &weight, &err), QN_E_FORMAT, "code");
    quantize.format = with_format.format;
    assert_error(qn_quantize(b.ctx, &dense, &quantize, &weight, &err), QN_E_SHAPE, "_init()");
    quantize.kh = quantize.kw = quantize.conv_groups = 1;
    const qn_tensor nowhere = {.data = b.x, .dtype = QN_F32, .rank = 2, .shape = {M, K}};
    assert_int_not_equal(qn_quantize(b.ctx, &nowhere, &quantize, &weight, NULL), QN_OK);
    assert_null(weight);
    assert_ok(qn_quantize(b.ctx, &dense, &quantize, &weight, NULL));
    assert_int_not_equal(qn_weight_dequantize(b.ctx, weight, false, &nowhere), QN_OK);

    /* All of these zeros are the defaults. */
    qn_packed *packed = NULL;
    const qn_pack_options pack = {.size = sizeof pack};
    assert_ok(qn_pack(b.ctx, weight, &pack, &packed, NULL));
    qn_packed_destroy(packed);
    qn_weight_destroy(weight);
    const qn_quantize_rows_args rows = {.size = sizeof rows};
    assert_int_not_equal(qn_quantize_rows(b.ctx, &rows), QN_OK);
    stop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_epilogue), cmocka_unit_test(test_args),
        cmocka_unit_test(test_scales),   cmocka_unit_test(test_tensors),
        cmocka_unit_test(test_creation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
