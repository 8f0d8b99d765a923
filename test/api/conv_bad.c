/* SPDX-License-Identifier: Apache-2.0 */
/* Bad arguments of convolutions: geometry that has no output, images that do not fit the
 * weights, switches out of range, memory in the way. Nothing is written. */
#include "api.h"

enum { C = 6, O = 8, H = 5, W = 4, X = 2 * C * H * W, Y = 2 * O * 16 * 16 };

struct bench {
    qn_ctx *ctx;
    qn_packed *w, *flat; /* 3 x 3 taps in two groups; 1 x 3 taps in one */
    float x[X], y[Y], bias[O];
    qn_conv_args args;
};

/* clang-format off */
static void spoil_w(struct bench *b) { b->args.w = NULL; }
static void spoil_x_rank(struct bench *b) { b->args.x.rank = 2; }
static void spoil_x_rank_high(struct bench *b) { b->args.x.rank = 5; }
static void spoil_y_rank(struct bench *b) { b->args.y.rank = 3; }
static void spoil_image(struct bench *b) { b->args.image = 2; }
static void spoil_channels(struct bench *b) { b->args.x.shape[1] = C + 2; }
static void spoil_channels_odd(struct bench *b) { b->args.x.shape[1] = C - 1; }
static void spoil_y_channels(struct bench *b) { b->args.y.shape[1] = O - 1; }
static void spoil_y_batch(struct bench *b) { b->args.y.shape[0] = 3; }
static void spoil_y_h(struct bench *b) { b->args.y.shape[2] += 1; }
static void spoil_y_w(struct bench *b) { b->args.y.shape[3] -= 1; }
static void spoil_h_zero(struct bench *b) { b->args.x.shape[2] = 0; }
static void spoil_w_negative(struct bench *b) { b->args.x.shape[3] = -1; }
static void spoil_batch_negative(struct bench *b) { b->args.x.shape[0] = -1; }
static void spoil_stride_zero(struct bench *b) { b->args.stride[0] = 0; }
static void spoil_stride_negative(struct bench *b) { b->args.stride[1] = -2; }
static void spoil_dilation_zero(struct bench *b) { b->args.dilation[1] = 0; }
static void spoil_pad(struct bench *b) { b->args.pad[2] = -1; }
static void spoil_out_pad(struct bench *b) { b->args.out_pad[0] = -1; }
static void spoil_out_pad_high(struct bench *b) { b->args.out_pad[1] = 1; }
static void spoil_strict(struct bench *b) { b->args.strict = 3; }
static void spoil_x_dtype(struct bench *b) { b->args.x.dtype = QN_I8; }
static void spoil_y_dtype(struct bench *b) { b->args.y.dtype = QN_F64; }
static void spoil_x_stride(struct bench *b) { b->args.x.stride[1] = -1; }
static void spoil_x_inner(struct bench *b) { b->args.x.stride[3] = 2; }
static void spoil_x_overflow(struct bench *b) { b->args.x.stride[0] = INT64_MAX; }
static void spoil_y_overlap(struct bench *b) { b->args.y.stride[1] = 1; }
static void spoil_y_broadcast(struct bench *b) { b->args.y.stride[0] = 0; }
static void spoil_row_scale(struct bench *b)
{
    b->args.epilogue.row_scale = qn_tensor_1d(b->bias, QN_F32, O);
}
static void spoil_bias(struct bench *b)
{
    b->args.epilogue.bias = qn_tensor_1d(b->bias, QN_F32, O / 2);
}
static void spoil_bias_rank(struct bench *b)
{
    b->args.epilogue.bias = qn_tensor_2d(b->bias, QN_F32, 1, O);
}
static void spoil_residual(struct bench *b)
{
    b->args.epilogue.residual = b->args.y;
    b->args.epilogue.residual.shape[0] = 1;
}
static void spoil_clamp(struct bench *b) { b->args.epilogue.clamp_hi = NAN; }
static void spoil_taps_high(struct bench *b)
{
    b->args.x.shape[2] = b->args.x.shape[3] = 1; /* 3 taps over one pixel */
}
static void spoil_dilation(struct bench *b) { b->args.dilation[0] = INT32_MAX; }
static void spoil_pads(struct bench *b)
{
    for (int i = 0; i < 4; i++)
        b->args.pad[i] = INT32_MAX;
}

/* One dimension. */
static void flat(struct bench *b)
{
    const int64_t x[3] = {2, C, W}, y[3] = {2, O, W - 2};
    b->args.w = b->flat;
    b->args.x = qn_tensor_make(b->x, QN_F32, 3, x);
    b->args.y = qn_tensor_make(b->y, QN_F32, 3, y);
}
static void spoil_flat_taps(struct bench *b) { flat(b); b->args.w = b->w; }
static void spoil_flat_pad(struct bench *b) { flat(b); b->args.pad[0] = 1; }
static void spoil_flat_pad_bottom(struct bench *b) { flat(b); b->args.pad[2] = 1; }

static void spoil_x_data(struct bench *b) { b->args.x.data = NULL; }
static void spoil_y_data(struct bench *b) { b->args.y.data = NULL; }
static void spoil_x_align(struct bench *b) { b->args.x.data = (char *)b->x + 3; }
static void spoil_y_on_x(struct bench *b) { b->args.x.data = b->y + 8; }
static void spoil_bias_on_y(struct bench *b)
{
    b->args.epilogue.bias = qn_tensor_1d(b->y, QN_F32, O);
}
static void spoil_residual_on_y(struct bench *b)
{
    b->args.epilogue.residual = b->args.y;
    b->args.epilogue.residual.data = b->y + 1;
}
/* clang-format on */

enum { CONV = 1, TRANSPOSED = 2, BOTH = 3, RUN = 4 };
static const struct bad {
    const char *name;
    void (*spoil)(struct bench *);
    int which;
    qn_status status;
    const char *word;
} bads[] = {
    {"w NULL", spoil_w, BOTH, QN_E_ARGUMENT, "w is NULL"},
    {"rank of x", spoil_x_rank, BOTH, QN_E_SHAPE, "x has rank 2"},
    {"high rank of x", spoil_x_rank_high, BOTH, QN_E_SHAPE, "x has rank 5"},
    {"rank of y", spoil_y_rank, BOTH, QN_E_SHAPE, "ranks 4 and 3"},
    {"image", spoil_image, BOTH, QN_E_ARGUMENT, "image is 2"},
    {"channels", spoil_channels, BOTH, QN_E_SHAPE, "2 groups of 3"},
    {"odd channels", spoil_channels_odd, BOTH, QN_E_SHAPE, "x has 5 channels"},
    {"channels of y", spoil_y_channels, BOTH, QN_E_SHAPE, "y: dimension 1"},
    {"batch of y", spoil_y_batch, BOTH, QN_E_SHAPE, "y: dimension 0"},
    {"height of y", spoil_y_h, BOTH, QN_E_SHAPE, "y: dimension 2"},
    {"width of y", spoil_y_w, BOTH, QN_E_SHAPE, "y: dimension 3"},
    {"no rows", spoil_h_zero, BOTH, QN_E_SHAPE, "an image of 0 x 4"},
    {"negative width", spoil_w_negative, BOTH, QN_E_SHAPE, "an image of"},
    {"negative batch", spoil_batch_negative, BOTH, QN_E_SHAPE, "-1 of them"},
    {"stride 0", spoil_stride_zero, BOTH, QN_E_ARGUMENT, "stride is 0"},
    {"stride -2", spoil_stride_negative, BOTH, QN_E_ARGUMENT, "stride is -2"},
    {"dilation 0", spoil_dilation_zero, BOTH, QN_E_ARGUMENT, "dilation 0"},
    {"pad -1", spoil_pad, BOTH, QN_E_ARGUMENT, "at the bottom"},
    {"out_pad -1", spoil_out_pad, BOTH, QN_E_ARGUMENT, "out_pad is -1"},
    {"out_pad of the stride", spoil_out_pad_high, BOTH, QN_E_ARGUMENT, "out_pad is 1 along w"},
    {"strict", spoil_strict, BOTH, QN_E_ARGUMENT, "strict"},
    {"dtype of x", spoil_x_dtype, BOTH, QN_E_DTYPE, "x has type i8"},
    {"dtype of y", spoil_y_dtype, BOTH, QN_E_DTYPE, "y has type f64"},
    {"stride of x", spoil_x_stride, BOTH, QN_E_STRIDE, "negative"},
    {"innermost stride of x", spoil_x_inner, BOTH, QN_E_STRIDE, "innermost stride is 2"},
    {"x overflows", spoil_x_overflow, BOTH, QN_E_STRIDE, "beyond the address space"},
    {"channels of y overlap", spoil_y_overlap, BOTH, QN_E_STRIDE, "steps over"},
    {"images of y overlap", spoil_y_broadcast, BOTH, QN_E_STRIDE, "y: stride"},
    {"row_scale", spoil_row_scale, BOTH, QN_E_ARGUMENT, "no row_scale"},
    {"length of bias", spoil_bias, BOTH, QN_E_SHAPE, "bias: dimension 0 is 4, not 8"},
    {"rank of bias", spoil_bias_rank, BOTH, QN_E_SHAPE, "bias has rank 2"},
    {"shape of residual", spoil_residual, BOTH, QN_E_SHAPE, "residual: dimension 0"},
    {"clamp NaN", spoil_clamp, BOTH, QN_E_VALUE, "NaN"},
    {"more taps than pixels", spoil_taps_high, CONV, QN_E_SHAPE, "no output along h"},
    {"dilation too wide", spoil_dilation, CONV, QN_E_SHAPE, "no output along h"},
    {"pads eat the output", spoil_pads, TRANSPOSED, QN_E_SHAPE, "no output along h"},
    {"more pixels than numbers", spoil_pads, CONV, QN_E_SHAPE, "more pixels"},
    {"rows of taps in one dimension", spoil_flat_taps, BOTH, QN_E_SHAPE, "3 rows of taps"},
    {"top pad in one dimension", spoil_flat_pad, BOTH, QN_E_ARGUMENT, "one dimension"},
    {"bottom pad in one dimension", spoil_flat_pad_bottom, BOTH, QN_E_ARGUMENT, "one dimension"},
    {"x NULL", spoil_x_data, BOTH | RUN, QN_E_ARGUMENT, ""},
    {"y NULL", spoil_y_data, BOTH | RUN, QN_E_ARGUMENT, ""},
    {"x misaligned", spoil_x_align, BOTH | RUN, QN_E_ALIGN, ""},
    {"y on x", spoil_y_on_x, BOTH | RUN, QN_E_OVERLAP, ""},
    {"bias on y", spoil_bias_on_y, BOTH | RUN, QN_E_OVERLAP, ""},
    {"residual beside y", spoil_residual_on_y, BOTH | RUN, QN_E_OVERLAP, ""},
};

static void bench_args(struct bench *b, int which)
{
    const int64_t x[4] = {2, C, H, W};
    qn_conv_args_init(&b->args);
    b->args.w = b->w;
    b->args.strategy = QN_STRATEGY_INT8_ROW;
    b->args.x = qn_tensor_make(b->x, QN_F32, 4, x);
    b->args.y.data = b->y;
    b->args.y.dtype = QN_F32;
    assert_ok(which == CONV ? qn_conv2d_shape(&b->args) : qn_conv_transpose2d_shape(&b->args));
    for (int i = 0; i < Y; i++)
        b->y[i] = 4.0f;
}

static int setup(void **state)
{
    const struct shape s = {.n = O, .k = 9 * C / 2, .kh = 3, .kw = 3, .groups = 2};
    const struct shape one = {.n = O, .k = 3 * C, .kh = 1, .kw = 3, .groups = 1};
    struct bench *b = calloc(1, sizeof *b);
    b->ctx = ctx_make(1);
    b->w = packed_make(b->ctx, "int8:pc", s, 1, NULL);
    b->flat = packed_make(b->ctx, "int8:pc", one, 1, NULL);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    qn_packed_destroy(b->w);
    qn_packed_destroy(b->flat);
    qn_ctx_destroy(b->ctx);
    free(b);
    return 0;
}

struct calls {
    qn_status (*plan)(const qn_ctx *, const qn_conv_args *, qn_plan **, qn_error *);
    qn_status (*run)(const qn_plan *, const qn_conv_args *, void *, size_t);
    qn_status (*direct)(const qn_ctx *, const qn_conv_args *, void *, size_t);
    qn_status (*scratch)(const qn_ctx *, const qn_conv_args *, size_t *);
    qn_status (*shape)(qn_conv_args *);
    int which;
};
static const struct calls calls[2] = {
    {qn_conv2d_plan, qn_conv2d_run, qn_conv2d, qn_conv2d_scratch, qn_conv2d_shape, CONV},
    {qn_conv_transpose2d_plan, qn_conv_transpose2d_run, qn_conv_transpose2d,
     qn_conv_transpose2d_scratch, qn_conv_transpose2d_shape, TRANSPOSED},
};

static void check_bad(struct bench *b, const struct calls *c, const struct bad *bad)
{
    qn_plan *plan = NULL;
    qn_error err = {0};
    size_t bytes;
    bench_args(b, c->which);
    bad->spoil(b);
    const qn_status status = c->plan(b->ctx, &b->args, &plan, &err);
    if ((bad->which & RUN) != 0) {
        assert_ok(status);
        assert_status(c->run(plan, &b->args, NULL, 0), bad->status);
        qn_plan_destroy(plan);
    } else if (status != bad->status || strstr(err.text, bad->word) == NULL) {
        fail_msg("%s: plan gave %s: %s", bad->name, qn_status_name(status), err.text);
    } else {
        assert_null(plan);
        assert_status(c->scratch(b->ctx, &b->args, &bytes), bad->status);
    }
    const qn_status direct = c->direct(b->ctx, &b->args, NULL, 0);
    if (direct != bad->status)
        fail_msg("%s: direct call gave %s", bad->name, qn_status_name(direct));
    for (int i = 0; i < Y; i++)
        assert_true(b->y[i] == 4.0f);
}

static void test_bad(void **state)
{
    struct bench *b = *state;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++)
        for (int k = 0; k < 2; k++)
            if ((bads[i].which & calls[k].which) != 0)
                check_bad(b, &calls[k], &bads[i]);
}

/* The shape functions refuse the same geometry, and leave y as it was. */
static void test_bad_shapes(void **state)
{
    struct bench *b = *state;
    static void (*const spoilt[])(struct bench *) = {
        spoil_w,           spoil_x_rank, spoil_image,   spoil_channels,  spoil_h_zero,
        spoil_stride_zero, spoil_pad,    spoil_out_pad, spoil_flat_taps, spoil_batch_negative};
    for (size_t i = 0; i < sizeof spoilt / sizeof *spoilt; i++) {
        for (int k = 0; k < 2; k++) {
            bench_args(b, calls[k].which);
            spoilt[i](b);
            const qn_tensor before = b->args.y;
            assert_true(calls[k].shape(&b->args) < 0);
            assert_memory_equal(&b->args.y, &before, sizeof before);
        }
    }
    for (int k = 0; k < 2; k++) {
        assert_status(calls[k].shape(NULL), QN_E_ARGUMENT);
        bench_args(b, calls[k].which);
        b->args.size = offsetof(qn_conv_args, image) - sizeof(qn_tensor);
        assert_status(calls[k].shape(&b->args), QN_E_ARGUMENT);
    }
}

static void test_null(void **state)
{
    struct bench *b = *state;
    for (int k = 0; k < 2; k++) {
        const struct calls *c = &calls[k];
        qn_plan *plan = NULL;
        size_t bytes;
        bench_args(b, c->which);
        assert_error(c->plan(NULL, &b->args, &plan, &err), QN_E_ARGUMENT, "ctx is NULL");
        assert_error(c->plan(b->ctx, NULL, &plan, &err), QN_E_ARGUMENT, "NULL");
        assert_error(c->plan(b->ctx, &b->args, NULL, &err), QN_E_ARGUMENT, "plan is NULL");
        assert_status(c->direct(NULL, &b->args, NULL, 0), QN_E_ARGUMENT);
        assert_status(c->direct(b->ctx, NULL, NULL, 0), QN_E_ARGUMENT);
        assert_status(c->run(NULL, &b->args, NULL, 0), QN_E_ARGUMENT);
        assert_status(c->scratch(NULL, &b->args, &bytes), QN_E_ARGUMENT);
        assert_status(c->scratch(b->ctx, &b->args, NULL), QN_E_ARGUMENT);
        assert_ok(c->plan(b->ctx, &b->args, &plan, NULL));
        assert_status(c->run(plan, NULL, NULL, 0), QN_E_ARGUMENT);
        /* The other convolution is another operation. */
        assert_status(calls[1 - k].run(plan, &b->args, NULL, 0), QN_E_ARGUMENT);
        /* So are another stride and more images. */
        qn_conv_args other = b->args;
        other.x.shape[0] = 1;
        other.y.shape[0] = 1;
        other.stride[1] = 2;
        assert_ok(c->shape(&other));
        assert_status(c->run(plan, &other, NULL, 0), QN_E_SHAPE);
        other = b->args;
        other.x.shape[0] = other.y.shape[0] = 3;
        other.x.stride[0] = 0;
        assert_status(c->run(plan, &other, NULL, 0), QN_E_SHAPE);
        qn_plan_destroy(plan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_bad_shapes),
        cmocka_unit_test(test_null),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
