/* SPDX-License-Identifier: Apache-2.0 */
/* qn_conv2d() and qn_conv_transpose2d() against plain loops over pixels in double: both image
 * layouts, one dimension, groups, depthwise, padding on every side, strides, dilation; a plan
 * for fewer images; static int8. */
#include "api.h"

/* A convolution and the tensors of one call. */
struct problem {
    bool transposed;
    qn_image image;
    int64_t batch, h, w, groups, ci, co;
    int32_t kh, kw, stride[2], dilation[2], pad[4], out_pad[2];
    int32_t rank;
    const char *spec;
    qn_strategy strategy;
};

static int64_t reach(int32_t dilation, int32_t taps)
{
    return (int64_t)dilation * (taps - 1) + 1;
}

/* Output length along dimension d, as the header defines it. */
static int64_t out_length(const struct problem *p, int d, int64_t in, int32_t taps)
{
    const int64_t pads = p->pad[d] + p->pad[d + 2];
    return p->transposed
               ? (in - 1) * p->stride[d] - pads + reach(p->dilation[d], taps) + p->out_pad[d]
               : (in + pads - reach(p->dilation[d], taps)) / p->stride[d] + 1;
}

static qn_tensor image_of(const struct problem *p, float *data, const int64_t nchw[4])
{
    const int64_t four[4] = {nchw[0], p->image == QN_NCHW ? nchw[1] : nchw[2],
                             p->image == QN_NCHW ? nchw[2] : nchw[3],
                             p->image == QN_NCHW ? nchw[3] : nchw[1]};
    const int64_t three[3] = {nchw[0], p->image == QN_NCHW ? nchw[1] : nchw[3],
                              p->image == QN_NCHW ? nchw[3] : nchw[1]};
    return qn_tensor_make(data, QN_F32, p->rank, p->rank == 4 ? four : three);
}

static int64_t at(const struct problem *p, const int64_t s[4], int64_t b, int64_t c, int64_t y,
                  int64_t x)
{
    return p->image == QN_NCHW ? ((b * s[1] + c) * s[2] + y) * s[3] + x
                               : ((b * s[2] + y) * s[3] + x) * s[1] + c;
}

/* Does tap t of output o read an input, and which? */
static bool source_of(const struct problem *p, int d, int64_t o, int32_t t, int64_t n, int64_t *i)
{
    const int64_t shifted = p->transposed
                                ? o + p->pad[d] - (int64_t)t * p->dilation[d]
                                : o * p->stride[d] - p->pad[d] + (int64_t)t * p->dilation[d];
    *i = p->transposed ? shifted / p->stride[d] : shifted;
    return shifted >= 0 && (!p->transposed || shifted % p->stride[d] == 0) && *i < n;
}

/* One output element, and the sum of the magnitudes of its weights, which a quantized patch's error
 * is measured by. What lies outside of the image is a zero of the patch and quantized with it. */
static double pixel(const struct problem *p, const float *x, const float *w,
                    const int64_t at_out[4], double *size)
{
    const int64_t shape[4] = {p->batch, p->groups * p->ci, p->h, p->w};
    const int64_t j = at_out[1], group = j / p->co, k = (int64_t)p->kh * p->kw * p->ci;
    double sum = 0.0;
    *size = 0.0;
    for (int32_t ky = 0; ky < p->kh; ky++) {
        for (int32_t kx = 0; kx < p->kw; kx++) {
            int64_t iy = 0, ix = 0;
            const bool inside = source_of(p, 0, at_out[2], ky, p->h, &iy) &&
                                source_of(p, 1, at_out[3], kx, p->w, &ix);
            for (int64_t c = 0; c < p->ci; c++) {
                const double u = (double)w[j * k + ((int64_t)ky * p->kw + kx) * p->ci + c];
                *size += fabs(u);
                if (inside)
                    sum += u * (double)x[at(p, shape, at_out[0], group * p->ci + c, iy, ix)];
            }
        }
    }
    return sum;
}

static qn_status call(const struct problem *p, const qn_ctx *ctx, const qn_conv_args *args,
                      void *scratch, size_t bytes)
{
    return p->transposed ? qn_conv_transpose2d(ctx, args, scratch, bytes)
                         : qn_conv2d(ctx, args, scratch, bytes);
}

static bool is_float(const struct problem *p)
{
    return p->strategy == QN_STRATEGY_FLOAT || p->strategy == QN_STRATEGY_DENSE;
}

static void compare(const struct problem *p, const float *y, const float *x, const float *dense,
                    const int64_t out[4])
{
    const double step = is_float(p) ? 1e-5 : 0.51 / 127.0;
    int64_t o[4];
    for (o[0] = 0; o[0] < out[0]; o[0]++)
        for (o[1] = 0; o[1] < out[1]; o[1]++)
            for (o[2] = 0; o[2] < out[2]; o[2]++)
                for (o[3] = 0; o[3] < out[3]; o[3]++) {
                    double size;
                    const double exact = pixel(p, x, dense, o, &size);
                    const double got = (double)y[at(p, out, o[0], o[1], o[2], o[3])];
                    if (!(fabs(got - exact) <= step * size + 1e-4))
                        fail_msg("%s %s: y[%d, %d, %d, %d] is %g, not %g", p->spec,
                                 qn_strategy_name(p->strategy), (int)o[0], (int)o[1], (int)o[2],
                                 (int)o[3], got, exact);
                }
}

static void args_of(const struct problem *p, qn_conv_args *args)
{
    qn_conv_args_init(args);
    args->image = p->image;
    args->strategy = p->strategy;
    memcpy(args->stride, p->stride, sizeof p->stride);
    memcpy(args->dilation, p->dilation, sizeof p->dilation);
    memcpy(args->pad, p->pad, sizeof p->pad);
    memcpy(args->out_pad, p->out_pad, sizeof p->out_pad);
}

static void check_problem(const struct problem *p)
{
    qn_ctx *ctx = ctx_make(2);
    const struct shape s = {.n = p->groups * p->co,
                            .k = (int64_t)p->kh * p->kw * p->ci,
                            .kh = p->kh,
                            .kw = p->kw,
                            .groups = (int32_t)p->groups};
    const int64_t in[4] = {p->batch, p->groups * p->ci, p->h, p->w};
    const int64_t out[4] = {p->batch, s.n, out_length(p, 0, p->h, p->kh),
                            out_length(p, 1, p->w, p->kw)};
    float *dense, *x = take((size_t)(in[0] * in[1] * in[2] * in[3]) * sizeof *x);
    float *y = take((size_t)(out[0] * out[1] * out[2] * out[3]) * sizeof *y);
    qn_packed *w = packed_make(ctx, p->spec, s, 5, &dense);
    qn_conv_args args;
    fill_reals(x, in[0] * in[1] * in[2] * in[3], 23);
    args_of(p, &args);
    args.w = w;
    args.x = image_of(p, x, in);
    args.y.data = y;
    args.y.dtype = QN_F32;
    assert_ok(p->transposed ? qn_conv_transpose2d_shape(&args) : qn_conv2d_shape(&args));
    const qn_tensor expected = image_of(p, y, out);
    assert_memory_equal(&args.y, &expected, sizeof expected);
    size_t bytes = 0;
    assert_ok(p->transposed ? qn_conv_transpose2d_scratch(ctx, &args, &bytes)
                            : qn_conv2d_scratch(ctx, &args, &bytes));
    void *scratch = take(bytes);
    assert_ok(call(p, ctx, &args, scratch, bytes));
    compare(p, y, x, dense, out);

    /* The plan gives the same bits, and serves fewer images too. */
    qn_plan *plan = NULL;
    float *again = take((size_t)(out[0] * out[1] * out[2] * out[3]) * sizeof *again);
    assert_ok(p->transposed ? qn_conv_transpose2d_plan(ctx, &args, &plan, NULL)
                            : qn_conv2d_plan(ctx, &args, &plan, NULL));
    assert_int_equal(qn_plan_scratch_bytes(plan), bytes);
    args.y.data = again;
    for (int64_t batch = p->batch; batch >= 0; batch--) {
        args.x.shape[0] = args.y.shape[0] = batch;
        assert_ok(p->transposed ? qn_conv_transpose2d_run(plan, &args, scratch, bytes)
                                : qn_conv2d_run(plan, &args, scratch, bytes));
        const int64_t fewer[4] = {batch, out[1], out[2], out[3]};
        compare(p, again, x, dense, fewer);
        if (batch == p->batch || !is_float(p)) /* a float row may add fewer in another order */
            assert_memory_equal(again, y, (size_t)(batch * out[1] * out[2] * out[3]) * sizeof *y);
    }
    qn_plan_destroy(plan);
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
    free(dense);
    free(scratch);
    free(again);
    free(x);
    free(y);
}

static const qn_strategy strategies[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                         QN_STRATEGY_INT8_BLOCK, QN_STRATEGY_DENSE};

static void check_everywhere(struct problem p)
{
    for (size_t s = 0; s < sizeof strategies / sizeof *strategies; s++) {
        p.strategy = strategies[s];
        p.image = QN_NCHW;
        check_problem(&p);
        p.image = QN_NHWC;
        check_problem(&p);
    }
}

static void test_plain(void **state)
{
    (void)state;
    check_everywhere((struct problem){.batch = 2,
                                      .h = 7,
                                      .w = 6,
                                      .groups = 1,
                                      .ci = 32,
                                      .co = 20,
                                      .kh = 3,
                                      .kw = 3,
                                      .stride = {1, 1},
                                      .dilation = {1, 1},
                                      .pad = {1, 1, 1, 1},
                                      .rank = 4,
                                      .spec = "int4:g32"});
    check_everywhere((struct problem){.batch = 2,
                                      .h = 9,
                                      .w = 8,
                                      .groups = 1,
                                      .ci = 5,
                                      .co = 17,
                                      .kh = 3,
                                      .kw = 2,
                                      .stride = {2, 3},
                                      .dilation = {2, 1},
                                      .pad = {0, 2, 3, 1},
                                      .rank = 4,
                                      .spec = "int8:pc"});
}

static void test_pointwise(void **state)
{
    (void)state;
    check_everywhere((struct problem){.batch = 2,
                                      .h = 4,
                                      .w = 5,
                                      .groups = 1,
                                      .ci = 48,
                                      .co = 33,
                                      .kh = 1,
                                      .kw = 1,
                                      .stride = {1, 1},
                                      .dilation = {1, 1},
                                      .rank = 4,
                                      .spec = "int4:g32:zp"});
}

static void test_groups(void **state)
{
    (void)state;
    check_everywhere((struct problem){.batch = 1,
                                      .h = 5,
                                      .w = 5,
                                      .groups = 3,
                                      .ci = 8,
                                      .co = 5,
                                      .kh = 3,
                                      .kw = 3,
                                      .stride = {1, 2},
                                      .dilation = {1, 1},
                                      .pad = {1, 1, 1, 1},
                                      .rank = 4,
                                      .spec = "int4:c4"});
}

static void test_depthwise(void **state)
{
    (void)state;
    check_everywhere((struct problem){.batch = 2,
                                      .h = 8,
                                      .w = 7,
                                      .groups = 19,
                                      .ci = 1,
                                      .co = 1,
                                      .kh = 3,
                                      .kw = 3,
                                      .stride = {1, 1},
                                      .dilation = {1, 1},
                                      .pad = {1, 1, 1, 1},
                                      .rank = 4,
                                      .spec = "int8:pc"});
}

static void test_one_dimension(void **state)
{
    (void)state;
    check_everywhere((struct problem){.batch = 2,
                                      .h = 1,
                                      .w = 13,
                                      .groups = 1,
                                      .ci = 32,
                                      .co = 10,
                                      .kh = 1,
                                      .kw = 4,
                                      .stride = {1, 2},
                                      .dilation = {1, 1},
                                      .pad = {0, 2, 0, 1},
                                      .rank = 3,
                                      .spec = "int4:g32"});
}

static void test_transposed(void **state)
{
    (void)state;
    check_everywhere((struct problem){.transposed = true,
                                      .batch = 2,
                                      .h = 4,
                                      .w = 3,
                                      .groups = 1,
                                      .ci = 32,
                                      .co = 6,
                                      .kh = 3,
                                      .kw = 4,
                                      .stride = {2, 3},
                                      .dilation = {1, 2},
                                      .pad = {1, 0, 1, 2},
                                      .out_pad = {1, 2},
                                      .rank = 4,
                                      .spec = "int4:g32"});
    check_everywhere((struct problem){.transposed = true,
                                      .batch = 1,
                                      .h = 1,
                                      .w = 6,
                                      .groups = 2,
                                      .ci = 4,
                                      .co = 3,
                                      .kh = 1,
                                      .kw = 3,
                                      .stride = {1, 2},
                                      .dilation = {1, 1},
                                      .out_pad = {0, 1},
                                      .rank = 3,
                                      .spec = "int8:pc"});
}

/* uint8 in, int8 out, padding by the zero point; the border shows if it were padded with the
 * code 0. */
static void test_static(void **state)
{
    (void)state;
    enum { C = 4, H = 4, O = 3 };
    qn_ctx *ctx = ctx_make(1);
    const struct shape s = {.n = O, .k = 9 * C, .kh = 3, .kw = 3};
    float *dense;
    qn_packed *w = packed_make(ctx, "int8:pc", s, 5, &dense);
    uint8_t x[C * H * H];
    int8_t y[O * H * H];
    uint64_t seed = 1;
    for (int i = 0; i < C * H * H; i++)
        x[i] = (uint8_t)draw(&seed);
    const int64_t x_shape[4] = {1, C, H, H}, y_shape[4] = {1, O, H, H};
    qn_conv_args args;
    qn_conv_args_init(&args);
    args.w = w;
    args.strategy = QN_STRATEGY_INT8_STATIC;
    args.x = qn_tensor_make(x, QN_U8, 4, x_shape);
    args.y = qn_tensor_make(y, QN_I8, 4, y_shape);
    for (int i = 0; i < 4; i++)
        args.pad[i] = 1;
    args.quant.x_scale = 0.125f;
    args.quant.x_zero = 90;
    args.epilogue.y_scale = 4.0f;
    args.epilogue.y_zero = -10;
    assert_ok(conv2d_in_arena(ctx, &args));
    for (int o = 0; o < O * H * H; o++) {
        double sum = 0.0;
        for (int t = 0; t < 9 * C; t++) {
            const int iy = o / H % H + t / C / 3 - 1, ix = o % H + t / C % 3 - 1;
            if (iy >= 0 && iy < H && ix >= 0 && ix < H)
                sum += 0.125 * (x[(t % C * H + iy) * H + ix] - 90.0) *
                       (double)dense[o / H / H * 9 * C + t];
        }
        const double v = fmin(fmax(sum / 4.0 - 10.0, -128.0), 127.0);
        assert_true(fabs(v - (double)y[o]) <= 0.51);
    }
    free(dense);
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
}

/* A plan for nine images serves fewer in the scratch it asked for, with the same bits: kernels that
 * cut an image differently when there are few of them must not need more. */
static void check_fewer(int64_t c, int64_t side, int32_t taps, int32_t stride, int64_t o)
{
    enum { MOST = 9, GUARD = 4096 };
    qn_ctx *ctx = ctx_make(3);
    const struct shape s = {.n = o, .k = taps * taps * c, .kh = taps, .kw = taps};
    const int64_t out = (side + taps / 2 * 2 - taps) / stride + 1;
    float *dense;
    qn_packed *w = packed_make(ctx, "int8:pc", s, 5, &dense);
    int8_t *x = take((size_t)(MOST * side * side * c)), *y = take((size_t)(MOST * out * out * o));
    int8_t *again = take((size_t)(MOST * out * out * o));
    uint64_t seed = 1;
    for (int64_t i = 0; i < MOST * side * side * c; i++)
        x[i] = (int8_t)draw(&seed);
    const int64_t x_shape[4] = {MOST, side, side, c}, y_shape[4] = {MOST, out, out, o};
    qn_conv_args args;
    qn_conv_args_init(&args);
    args.w = w;
    args.strategy = QN_STRATEGY_INT8_STATIC;
    args.image = QN_NHWC;
    args.x = qn_tensor_make(x, QN_I8, 4, x_shape);
    args.y = qn_tensor_make(y, QN_I8, 4, y_shape);
    args.stride[0] = args.stride[1] = stride;
    for (int i = 0; i < 4; i++)
        args.pad[i] = taps / 2;
    args.quant.x_scale = 0.0125f;
    args.quant.x_zero = 3;
    args.epilogue.y_scale = 0.5f;
    qn_plan *plan = NULL;
    assert_ok(qn_conv2d_plan(ctx, &args, &plan, NULL));
    const size_t bytes = qn_plan_scratch_bytes(plan);
    uint8_t guard[GUARD], *scratch = aligned_alloc(64, (bytes + GUARD + 63) / 64 * 64);
    assert_non_null(scratch);
    memset(scratch + bytes, 0xa5, GUARD);
    memset(guard, 0xa5, GUARD);
    assert_ok(qn_conv2d_run(plan, &args, scratch, bytes));
    args.y.data = again;
    for (int64_t batch = MOST; batch >= 1; batch--) {
        args.x.shape[0] = args.y.shape[0] = batch;
        assert_ok(qn_conv2d_run(plan, &args, scratch, bytes));
        assert_memory_equal(again, y, (size_t)(batch * out * out * o));
        assert_memory_equal(scratch + bytes, guard, GUARD);
    }
    qn_plan_destroy(plan);
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
    free(dense);
    free(scratch);
    free(again);
    free(x);
    free(y);
}

/* A plan serves images with other gaps between their pixels and rows in the scratch it asked for,
 * though kernels read them in another way. */
static void check_gaps(int64_t c, int64_t side, int32_t taps, int64_t o, bool gaps_first)
{
    enum { GUARD = 1 << 20, BATCH = 3 };
    qn_ctx *ctx = ctx_make(2);
    const struct shape s = {.n = o, .k = taps * taps * c, .kh = taps, .kw = taps};
    float *dense;
    qn_packed *w = packed_make(ctx, "int8:pc", s, 5, &dense);
    const int64_t pixels = BATCH * side * side, ld[2] = {c, c + 9}, row[2] = {c * side, ld[1] * 70};
    int8_t *x[2] = {take((size_t)(pixels * c)), take((size_t)(BATCH * side * row[1]))};
    int8_t *y[2] = {take((size_t)(pixels * o)), take((size_t)(pixels * o))};
    uint64_t seed = 1;
    for (int64_t i = 0; i < pixels * c; i++)
        x[0][i] = x[1][i / c / side * row[1] + i / c % side * ld[1] + i % c] = (int8_t)draw(&seed);
    const int64_t x_shape[4] = {BATCH, side, side, c}, y_shape[4] = {BATCH, side, side, o};
    qn_conv_args args[2];
    for (int i = 0; i < 2; i++) {
        qn_conv_args_init(&args[i]);
        args[i].w = w;
        args[i].strategy = QN_STRATEGY_INT8_STATIC;
        args[i].image = QN_NHWC;
        args[i].x = qn_tensor_make(x[i], QN_I8, 4, x_shape);
        args[i].y = qn_tensor_make(y[i], QN_I8, 4, y_shape);
        args[i].x.stride[2] = ld[i];
        args[i].x.stride[1] = row[i];
        args[i].x.stride[0] = row[i] * side;
        for (int p = 0; p < 4; p++)
            args[i].pad[p] = taps / 2;
        args[i].quant.x_scale = 0.0125f;
        args[i].epilogue.y_scale = 0.5f;
    }
    qn_plan *plan = NULL;
    assert_ok(qn_conv2d_plan(ctx, &args[gaps_first], &plan, NULL));
    const size_t bytes = qn_plan_scratch_bytes(plan);
    uint8_t *const scratch = take(bytes + GUARD), *const guard = take(GUARD); /* both 0xa5 */
    assert_ok(qn_conv2d_run(plan, &args[0], scratch, bytes));
    assert_ok(qn_conv2d_run(plan, &args[1], scratch, bytes));
    assert_memory_equal(y[0], y[1], (size_t)(pixels * o));
    assert_memory_equal(scratch + bytes, guard, GUARD);
    qn_plan_destroy(plan);
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
    free(dense);
    free(scratch);
    free(guard);
    for (int i = 0; i < 2; i++) {
        free(x[i]);
        free(y[i]);
    }
}

static void test_gaps(void **state)
{
    (void)state;
    for (int i = 0; i < 2; i++) {
        check_gaps(64, 40, 1, 96, i == 1);
        check_gaps(24, 40, 1, 40, i == 1);
        check_gaps(5, 60, 3, 16, i == 1);
        check_gaps(48, 20, 3, 48, i == 1);
    }
}

/* The scratch of a kernel grows with the images: what a plan asked for is enough for fewer of them,
 * whatever the shape and the number of threads. Nothing is run, so many shapes can be asked. */
static void check_scratch(const qn_ctx *ctx, const qn_packed *w, int64_t c, int64_t side,
                          int32_t taps, int32_t stride, int64_t o)
{
    enum { MOST = 12 };
    static int8_t x[64], y[64];
    const int64_t out = (side + taps / 2 * 2 - taps) / stride + 1;
    size_t before = 0;
    char kernel[96] = "";
    for (int64_t batch = MOST; batch >= 1; batch--) {
        const int64_t x_shape[4] = {batch, side, side, c}, y_shape[4] = {batch, out, out, o};
        qn_conv_args args;
        qn_conv_args_init(&args);
        args.w = w;
        args.strategy = QN_STRATEGY_INT8_STATIC;
        args.image = QN_NHWC;
        args.x = qn_tensor_make(x, QN_I8, 4, x_shape);
        args.y = qn_tensor_make(y, QN_I8, 4, y_shape);
        args.stride[0] = args.stride[1] = stride;
        for (int i = 0; i < 4; i++)
            args.pad[i] = taps / 2;
        args.kernel = batch == MOST ? NULL : kernel;
        qn_plan *plan = NULL;
        qn_plan_info info;
        qn_plan_info_init(&info);
        const qn_status status = qn_conv2d_plan(ctx, &args, &plan, NULL);
        if (status == QN_E_UNSUPPORTED && batch < MOST)
            return; /* that kernel does not begin with so few: the plan has it all the same */
        assert_ok(status);
        assert_ok(qn_plan_query(plan, &info));
        snprintf(kernel, sizeof kernel, "%s", info.kernel);
        const size_t bytes = qn_plan_scratch_bytes(plan);
        if (batch < MOST && bytes > before)
            fail_msg("%dx%d, %d x %d channels, %d taps, stride %d, %s: %d images take %zu bytes, "
                     "one more %zu",
                     (int)side, (int)side, (int)c, (int)o, taps, stride, kernel, (int)batch, bytes,
                     before);
        before = bytes;
        qn_plan_destroy(plan);
    }
}

static void test_scratch_grows(void **state)
{
    (void)state;
    static const int64_t sides[] = {7, 14, 15, 28, 29, 56}, channels[] = {3, 40, 64, 128, 256},
                         outputs[] = {32, 96, 700};
    static const int32_t threads[] = {1, 2, 3, 8};
    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++)
        for (size_t c = 0; c < sizeof channels / sizeof *channels; c++)
            for (size_t o = 0; o < sizeof outputs / sizeof *outputs; o++)
                for (int32_t taps = 1; taps <= 3; taps += 2) {
                    qn_ctx *ctx = ctx_make(threads[t]);
                    const struct shape s = {
                        .n = outputs[o], .k = taps * taps * channels[c], .kh = taps, .kw = taps};
                    qn_packed *w = packed_make(ctx, "int8:pc", s, 5, NULL);
                    for (size_t i = 0; i < sizeof sides / sizeof *sides; i++)
                        for (int32_t stride = 1; stride <= 2; stride++)
                            check_scratch(ctx, w, channels[c], sides[i], taps, stride, outputs[o]);
                    qn_packed_destroy(w);
                    qn_ctx_destroy(ctx);
                }
}

static void test_fewer_images(void **state)
{
    (void)state;
    check_fewer(64, 14, 3, 1, 1536);
    check_fewer(64, 15, 3, 2, 96);
    check_fewer(128, 14, 1, 1, 96);
    check_fewer(256, 7, 3, 1, 96);
    check_fewer(3, 32, 7, 2, 96);
    check_fewer(40, 9, 3, 1, 96);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_plain),         cmocka_unit_test(test_pointwise),
        cmocka_unit_test(test_groups),        cmocka_unit_test(test_depthwise),
        cmocka_unit_test(test_one_dimension), cmocka_unit_test(test_transposed),
        cmocka_unit_test(test_static),        cmocka_unit_test(test_fewer_images),
        cmocka_unit_test(test_scratch_grows), cmocka_unit_test(test_gaps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
