/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan of a convolution says is what its runs do: the row that stands in where scales, or
 * the activation of a run, are not for the row it names; and images that are not what was planned
 * are refused. */
#include "api.h"

enum { SIDE = 9, CHANNELS = 48, PIXELS = SIDE * SIDE };

/* A depthwise convolution of bytes in NHWC, and memory of its own. */
struct scene {
    qn_packed *w;
    int8_t x[PIXELS * CHANNELS], y[PIXELS * CHANNELS], again[PIXELS * CHANNELS];
    qn_conv_args args;
};

static void scene_make(const qn_ctx *ctx, struct scene *s)
{
    const struct shape shape = {.n = CHANNELS, .k = 9, .kh = 3, .kw = 3, .groups = CHANNELS};
    const int64_t lengths[4] = {1, SIDE, SIDE, CHANNELS};
    uint64_t seed = 3;
    s->w = packed_make(ctx, "int8:pc", shape, 5, NULL);
    for (int i = 0; i < PIXELS * CHANNELS; i++)
        s->x[i] = (int8_t)draw(&seed);
    qn_conv_args_init(&s->args);
    s->args.w = s->w;
    s->args.strategy = QN_STRATEGY_INT8_STATIC;
    s->args.image = QN_NHWC;
    s->args.x = qn_tensor_make(s->x, QN_I8, 4, lengths);
    s->args.y = qn_tensor_make(s->y, QN_I8, 4, lengths);
    for (int i = 0; i < 4; i++)
        s->args.pad[i] = 1;
    s->args.quant.x_scale = 0.0125f;
    s->args.quant.x_zero = 3;
    s->args.epilogue.y_scale = 0.5f;
}

/* Runs the plan, and the portable rows alone: the same bits. Returns what ran, of all runs. */
static int32_t run_both(const qn_plan *plan, struct scene *s)
{
    qn_ctx_options options;
    qn_ctx *portable = NULL;
    qn_plan_info info;
    qn_ctx_options_init(&options);
    options.isa_mask = QN_ISA_PORTABLE;
    assert_ok(qn_ctx_create(&options, &portable, NULL));
    void *const scratch = take(qn_plan_scratch_bytes(plan));
    s->args.y.data = s->y;
    assert_ok(qn_conv2d_run(plan, &s->args, scratch, qn_plan_scratch_bytes(plan)));
    s->args.y.data = s->again;
    assert_ok(conv2d_in_arena(portable, &s->args));
    assert_memory_equal(s->y, s->again, sizeof s->y);
    qn_plan_info_init(&info);
    assert_ok(qn_plan_query(plan, &info));
    qn_ctx_destroy(portable);
    free(scratch);
    return info.ran;
}

static void test_stand_in(void **state)
{
    (void)state;
    static struct scene s;
    qn_ctx *ctx = ctx_make(2);
    scene_make(ctx, &s);
    for (int how = 0; how < 3; how++) {
        qn_plan *plan = NULL;
        qn_plan_info info;
        s.args.epilogue.act = QN_ACT_NONE;
        s.args.quant.x_scale = 0.0125f;
        assert_ok(qn_conv2d_plan(ctx, &s.args, &plan, NULL));
        qn_plan_info_init(&info);
        assert_ok(qn_plan_query(plan, &info));
        if (how == 1) /* the plan is for any activation */
            s.args.epilogue.act = QN_ACT_SILU;
        if (how == 2) /* and for any scale */
            s.args.quant.x_scale = 1e30f;
        const int32_t ran = run_both(plan, &s);
        if (info.stand_in != NULL) {
            char text[4096];
            assert_int_equal(ran, how == 0 ? 1 : 2);
            qn_plan_explain(plan, text, sizeof text);
            assert_non_null(strstr(text, info.stand_in));
        } else {
            assert_int_equal(ran, 1); /* another ISA: no row depends on data */
        }
        qn_plan_destroy(plan);
    }
    qn_packed_destroy(s.w);
    qn_ctx_destroy(ctx);
}

/* One pixel of y, whose channels lie together or in planes: a plan for one is not for the other,
 * since rows would need other memory. */
static void test_planes(void **state)
{
    enum { OUTPUTS = 32, TAPS = 3 };
    (void)state;
    static int8_t x[CHANNELS * TAPS * TAPS], y[2 * OUTPUTS];
    const struct shape shape = {.n = OUTPUTS, .k = CHANNELS * TAPS * TAPS, .kh = TAPS, .kw = TAPS};
    qn_ctx *ctx = ctx_make(2);
    qn_packed *const w = packed_make(ctx, "int8:pc", shape, 5, NULL);
    qn_conv_args args;
    qn_conv_args_init(&args);
    args.w = w;
    args.strategy = QN_STRATEGY_INT8_STATIC;
    args.image = QN_NCHW;
    args.x = qn_tensor_make(x, QN_I8, 4, (const int64_t[]){1, CHANNELS, TAPS, TAPS});
    args.y = qn_tensor_make(y, QN_I8, 4, (const int64_t[]){1, OUTPUTS, 1, 1});
    for (int64_t planned = 1; planned <= 2; planned++) {
        qn_plan *plan = NULL;
        args.y.stride[1] = planned;
        assert_ok(qn_conv2d_plan(ctx, &args, &plan, NULL));
        const size_t bytes = qn_plan_scratch_bytes(plan);
        void *const scratch = take(bytes);
        assert_ok(qn_conv2d_run(plan, &args, scratch, bytes));
        args.y.stride[1] = 3 - planned;
        assert_int_equal(qn_conv2d_run(plan, &args, scratch, bytes), QN_E_SHAPE);
        free(scratch);
        qn_plan_destroy(plan);
    }
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stand_in),
                                       cmocka_unit_test(test_planes)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
