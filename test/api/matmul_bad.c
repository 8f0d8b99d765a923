/* SPDX-License-Identifier: Apache-2.0 */
/* Bad arguments of qn_matmul(): each is refused by every call that can see it, with its own
 * status and, where there is a place for it, a sentence; and y keeps its bytes. */
#include "api.h"

enum { M = 4, N = 24, K = 64 };
static const struct shape shape = {.n = N, .k = K};

struct bench {
    qn_ctx *ctx;
    qn_packed *grouped, *plain, *image, *prescaled; /* int4:g32, int8:pt, two groups of channels */
    float x[M * K], bias[N], row[M], residual[M * N];
    int8_t x8[M * K], y8[M * N];
    int32_t bias32[N], y32[M * N];
    float y[M * N + 1];
    qn_matmul_args args;
};

/* clang-format off */
static void spoil_w(struct bench *b) { b->args.w = NULL; }
static void spoil_w_groups(struct bench *b) { b->args.w = b->image; }
static void spoil_x_rank(struct bench *b) { b->args.x.rank = 1; }
static void spoil_y_rank(struct bench *b) { b->args.y.rank = 3; }
static void spoil_x_none(struct bench *b) { b->args.x = qn_tensor_none(); }
static void spoil_x_dtype(struct bench *b) { b->args.x.dtype = QN_I8; }
static void spoil_x_dtype_unknown(struct bench *b) { b->args.x.dtype = 99; }
static void spoil_x_dtype_negative(struct bench *b) { b->args.x.dtype = -1; }
static void spoil_y_dtype(struct bench *b) { b->args.y.dtype = QN_I32; }
static void spoil_x_device(struct bench *b) { b->args.x.device.kind = QN_CUDA; }
static void spoil_y_device(struct bench *b) { b->args.y.device.index = 1; }
static void spoil_k(struct bench *b) { b->args.x.shape[1] = K - 1; }
static void spoil_n(struct bench *b) { b->args.y.shape[1] = N - 1; }
static void spoil_m(struct bench *b) { b->args.x.shape[0] = M - 1; }
static void spoil_m_negative(struct bench *b) { b->args.x.shape[0] = b->args.y.shape[0] = -1; }
static void spoil_x_stride(struct bench *b) { b->args.x.stride[0] = -K; }
static void spoil_x_columns(struct bench *b) { b->args.x.stride[1] = 2; }
static void spoil_y_stride(struct bench *b) { b->args.y.stride[0] = -N; }
static void spoil_y_columns(struct bench *b) { b->args.y.stride[1] = 0; }
static void spoil_y_rows_overlap(struct bench *b) { b->args.y.stride[0] = N - 1; }
static void spoil_x_overflow(struct bench *b) { b->args.x.stride[0] = INT64_MAX / 2; }
static void spoil_y_overflow(struct bench *b) { b->args.y.stride[0] = INT64_MAX / 8; }
static void spoil_m_huge(struct bench *b)
{
    b->args.x.shape[0] = b->args.y.shape[0] = (int64_t)1 << 60;
    b->args.x.stride[0] = 0;
}
static void spoil_strategy(struct bench *b) { b->args.strategy = 9; }
static void spoil_strategy_negative(struct bench *b) { b->args.strategy = -1; }
static void spoil_strict(struct bench *b) { b->args.strict = 2; }
static void spoil_symmetric(struct bench *b) { b->args.quant.symmetric = -1; }
static void spoil_reserved(struct bench *b) { b->args.quant.reserved = 1; }
static void spoil_kernel(struct bench *b) { b->args.kernel = "qni_matmul_of_dreams"; }

static void spoil_act(struct bench *b) { b->args.epilogue.act = 11; }
static void spoil_act_negative(struct bench *b) { b->args.epilogue.act = -1; }
static void spoil_after(struct bench *b) { b->args.epilogue.residual_after = 7; }
static void spoil_clamp_nan(struct bench *b) { b->args.epilogue.clamp_lo = NAN; }
static void spoil_clamp_hi_nan(struct bench *b) { b->args.epilogue.clamp_hi = NAN; }
static void spoil_clamp_order(struct bench *b)
{
    b->args.epilogue.clamp_lo = 1.0f;
    b->args.epilogue.clamp_hi = 0.0f;
}
static void spoil_bias_length(struct bench *b)
{
    b->args.epilogue.bias = qn_tensor_1d(b->bias, QN_F32, N - 1);
}
static void spoil_bias_rank(struct bench *b)
{
    b->args.epilogue.bias = qn_tensor_2d(b->bias, QN_F32, 1, N);
}
static void spoil_bias_dtype(struct bench *b)
{
    b->args.epilogue.bias = qn_tensor_1d(b->bias32, QN_I32, N);
}
static void spoil_bias_stride(struct bench *b)
{
    b->args.epilogue.bias = qn_tensor_1d(b->bias, QN_F32, N);
    b->args.epilogue.bias.stride[0] = 2;
}
static void spoil_col_dtype(struct bench *b)
{
    b->args.epilogue.col_scale = qn_tensor_1d(b->bias, QN_F16, N);
}
static void spoil_row_length(struct bench *b)
{
    b->args.epilogue.row_scale = qn_tensor_1d(b->row, QN_F32, M + 1);
}
static void spoil_row_dtype(struct bench *b)
{
    b->args.epilogue.row_scale = qn_tensor_1d(b->row, QN_BF16, M);
}
static void spoil_residual_shape(struct bench *b)
{
    b->args.epilogue.residual = qn_tensor_2d(b->residual, QN_F32, N, M);
}
static void spoil_residual_rank(struct bench *b)
{
    b->args.epilogue.residual = qn_tensor_1d(b->residual, QN_F32, M * N);
}
static void spoil_residual_dtype(struct bench *b)
{
    b->args.epilogue.residual = qn_tensor_2d(b->residual, QN_I32, M, N);
}

/* From here on a good int8-static problem is spoilt. */
static void fixed(struct bench *b, qn_dtype y)
{
    b->args.strategy = QN_STRATEGY_INT8_STATIC;
    b->args.w = b->plain;
    b->args.x = qn_tensor_2d(b->x8, QN_I8, M, K);
    void *data = y == QN_F32 ? (void *)b->y : y == QN_I32 ? (void *)b->y32 : b->y8;
    b->args.y = qn_tensor_2d(data, y, M, N);
}
static void spoil_x_float(struct bench *b)
{
    fixed(b, QN_F32);
    b->args.x = qn_tensor_2d(b->x, QN_F32, M, K);
}
static void spoil_x_scale_nan(struct bench *b) { fixed(b, QN_F32); b->args.quant.x_scale = NAN; }
static void spoil_x_scale_inf(struct bench *b)
{
    fixed(b, QN_F32);
    b->args.quant.x_scale = INFINITY;
}
static void spoil_x_scale_zero(struct bench *b) { fixed(b, QN_F32); b->args.quant.x_scale = 0.0f; }
static void spoil_x_scale_minus(struct bench *b)
{
    fixed(b, QN_F32);
    b->args.quant.x_scale = -1.0f;
}
static void spoil_x_zero(struct bench *b) { fixed(b, QN_F32); b->args.quant.x_zero = 128; }
static void spoil_x_zero_low(struct bench *b) { fixed(b, QN_F32); b->args.quant.x_zero = -129; }
static void spoil_x_zero_unsigned(struct bench *b)
{
    fixed(b, QN_F32);
    b->args.x.dtype = QN_U8;
    b->args.quant.x_zero = -1;
}
static void spoil_y_scale_nan(struct bench *b) { fixed(b, QN_I8); b->args.epilogue.y_scale = NAN; }
static void spoil_y_scale_zero(struct bench *b)
{
    fixed(b, QN_I8);
    b->args.epilogue.y_scale = 0.0f;
}
static void spoil_y_scale_tiny(struct bench *b)
{
    fixed(b, QN_I8);
    b->args.epilogue.y_scale = 1e-42f;
}
static void spoil_y_zero(struct bench *b) { fixed(b, QN_I8); b->args.epilogue.y_zero = 200; }
static void spoil_y_zero_unsigned(struct bench *b)
{
    fixed(b, QN_U8);
    b->args.epilogue.y_zero = 256;
}
static void spoil_raw_groups(struct bench *b) { fixed(b, QN_I32); b->args.w = b->grouped; }
static void spoil_raw_bias(struct bench *b)
{
    fixed(b, QN_I32);
    b->args.epilogue.bias = qn_tensor_1d(b->bias32, QN_I32, N);
}
static void spoil_raw_act(struct bench *b) { fixed(b, QN_I32); b->args.epilogue.act = QN_ACT_RELU; }
static void spoil_raw_clamp(struct bench *b) { fixed(b, QN_I32); b->args.epilogue.clamp_lo = 0.0f; }
static void spoil_bias_unit(struct bench *b)
{
    fixed(b, QN_F32);
    b->args.w = b->grouped;
    b->args.epilogue.bias = qn_tensor_1d(b->bias32, QN_I32, N);
}
static void spoil_prescale(struct bench *b) { fixed(b, QN_F32); b->args.w = b->prescaled; }

/* What only a run sees. */
static void spoil_x_data(struct bench *b) { b->args.x.data = NULL; }
static void spoil_y_data(struct bench *b) { b->args.y.data = NULL; }
static void spoil_x_align(struct bench *b) { b->args.x.data = (char *)b->x + 2; }
static void spoil_y_align(struct bench *b) { b->args.y.data = (char *)b->y + 1; }
static void spoil_bias_data(struct bench *b)
{
    b->args.epilogue.bias = qn_tensor_1d(NULL, QN_F32, N);
}
static void spoil_bias_align(struct bench *b)
{
    b->args.epilogue.bias = qn_tensor_1d((char *)b->bias32 + 2, QN_F32, N);
}
static void spoil_y_on_x(struct bench *b) { b->args.y.data = b->x + M * K - 1; }
static void spoil_y_on_bias(struct bench *b)
{
    b->args.epilogue.bias = qn_tensor_1d(b->y + M * N - 1, QN_F32, N);
}
static void spoil_y_on_residual(struct bench *b)
{
    b->args.epilogue.residual = qn_tensor_2d(b->y + 1, QN_F32, M, N);
}
static void spoil_y_on_row_scale(struct bench *b)
{
    b->args.epilogue.row_scale = qn_tensor_1d(b->y, QN_F32, M);
}
static void spoil_residual_type_in_place(struct bench *b)
{
    b->args.epilogue.residual = qn_tensor_2d(b->y, QN_F16, M, N);
}
/* clang-format on */

static const struct bad {
    const char *name;
    void (*spoil)(struct bench *);
    qn_status status;
    const char *word; /* of the sentence */
} before_data[] = {
    {"w NULL", spoil_w, QN_E_ARGUMENT, "w is NULL"},
    {"w of a grouped convolution", spoil_w_groups, QN_E_SHAPE, "2 groups"},
    {"rank of x", spoil_x_rank, QN_E_SHAPE, "rank"},
    {"rank of y", spoil_y_rank, QN_E_SHAPE, "rank"},
    {"no x", spoil_x_none, QN_E_SHAPE, "rank"},
    {"dtype of x", spoil_x_dtype, QN_E_DTYPE, "x has type i8"},
    {"dtype of x unknown", spoil_x_dtype_unknown, QN_E_DTYPE, "possible here: f32, f16, bf16"},
    {"dtype of x negative", spoil_x_dtype_negative, QN_E_DTYPE, "x has type"},
    {"dtype of y", spoil_y_dtype, QN_E_DTYPE, "y has type i32"},
    {"device of x", spoil_x_device, QN_E_DEVICE, "x is on device 2:0"},
    {"device of y", spoil_y_device, QN_E_DEVICE, "y is on device 1:1"},
    {"k", spoil_k, QN_E_SHAPE, "x: dimension 1 is 63, not 64"},
    {"n", spoil_n, QN_E_SHAPE, "y: dimension 1 is 23, not 24"},
    {"m", spoil_m, QN_E_SHAPE, "y: dimension 0"},
    {"m negative", spoil_m_negative, QN_E_SHAPE, "dimension 0 is -1"},
    {"stride of x", spoil_x_stride, QN_E_STRIDE, "negative"},
    {"columns of x", spoil_x_columns, QN_E_STRIDE, "innermost stride is 2"},
    {"stride of y", spoil_y_stride, QN_E_STRIDE, "negative"},
    {"columns of y", spoil_y_columns, QN_E_STRIDE, "innermost stride is 0"},
    {"rows of y overlap", spoil_y_rows_overlap, QN_E_STRIDE, "takes 24 elements"},
    {"x overflows", spoil_x_overflow, QN_E_STRIDE, "x reaches beyond"},
    {"y overflows", spoil_y_overflow, QN_E_STRIDE, "y reaches beyond"},
    {"m beyond memory", spoil_m_huge, QN_E_STRIDE, "y reaches beyond"},
    {"strategy", spoil_strategy, QN_E_ARGUMENT, "strategy is 9"},
    {"strategy negative", spoil_strategy_negative, QN_E_ARGUMENT, "strategy is -1"},
    {"strict", spoil_strict, QN_E_ARGUMENT, "strict is 2"},
    {"symmetric", spoil_symmetric, QN_E_ARGUMENT, "symmetric is -1"},
    {"reserved", spoil_reserved, QN_E_ARGUMENT, "reserved"},
    {"kernel", spoil_kernel, QN_E_UNSUPPORTED, ""},
    {"act", spoil_act, QN_E_ARGUMENT, "act is 11"},
    {"act negative", spoil_act_negative, QN_E_ARGUMENT, "act is -1"},
    {"residual_after", spoil_after, QN_E_ARGUMENT, "residual_after"},
    {"clamp_lo NaN", spoil_clamp_nan, QN_E_VALUE, "NaN"},
    {"clamp_hi NaN", spoil_clamp_hi_nan, QN_E_VALUE, "NaN"},
    {"clamp upside down", spoil_clamp_order, QN_E_ARGUMENT, "clamp_lo is greater"},
    {"length of bias", spoil_bias_length, QN_E_SHAPE, "bias: dimension 0 is 23"},
    {"rank of bias", spoil_bias_rank, QN_E_SHAPE, "bias has rank 2"},
    {"dtype of bias", spoil_bias_dtype, QN_E_DTYPE, "bias has type i32"},
    {"stride of bias", spoil_bias_stride, QN_E_STRIDE, "bias"},
    {"dtype of col_scale", spoil_col_dtype, QN_E_DTYPE, "col_scale has type f16"},
    {"length of row_scale", spoil_row_length, QN_E_SHAPE, "row_scale"},
    {"dtype of row_scale", spoil_row_dtype, QN_E_DTYPE, "row_scale"},
    {"shape of residual", spoil_residual_shape, QN_E_SHAPE, "residual: dimension 0"},
    {"rank of residual", spoil_residual_rank, QN_E_SHAPE, "residual has rank 1"},
    {"dtype of residual", spoil_residual_dtype, QN_E_DTYPE, "residual has type i32"},
    {"float x for int8-static", spoil_x_float, QN_E_DTYPE, "possible here: i8, u8"},
    {"x_scale NaN", spoil_x_scale_nan, QN_E_VALUE, "x_scale"},
    {"x_scale infinite", spoil_x_scale_inf, QN_E_VALUE, "x_scale"},
    {"x_scale zero", spoil_x_scale_zero, QN_E_VALUE, "x_scale"},
    {"x_scale negative", spoil_x_scale_minus, QN_E_VALUE, "x_scale"},
    {"x_zero", spoil_x_zero, QN_E_VALUE, "x_zero is 128"},
    {"x_zero low", spoil_x_zero_low, QN_E_VALUE, "x_zero is -129"},
    {"x_zero of u8", spoil_x_zero_unsigned, QN_E_VALUE, "0 to 255"},
    {"y_scale NaN", spoil_y_scale_nan, QN_E_VALUE, "y_scale"},
    {"y_scale zero", spoil_y_scale_zero, QN_E_VALUE, "y_scale"},
    {"y_scale tiny", spoil_y_scale_tiny, QN_E_VALUE, "overflows"},
    {"y_zero", spoil_y_zero, QN_E_VALUE, "y_zero is 200"},
    {"y_zero of u8", spoil_y_zero_unsigned, QN_E_VALUE, "y_zero is 256"},
    {"raw sums of groups", spoil_raw_groups, QN_E_DTYPE, "y of type i32"},
    {"raw sums with bias", spoil_raw_bias, QN_E_ARGUMENT, "raw sums"},
    {"raw sums with activation", spoil_raw_act, QN_E_ARGUMENT, "raw sums"},
    {"raw sums clamped", spoil_raw_clamp, QN_E_ARGUMENT, "raw sums"},
    {"integer bias without a unit", spoil_bias_unit, QN_E_DTYPE, "bias of type i32"},
    {"int8-static with prescale", spoil_prescale, QN_E_UNSUPPORTED, "prescale"},
};

static const struct bad with_data[] = {
    {"x NULL", spoil_x_data, QN_E_ARGUMENT, NULL},
    {"y NULL", spoil_y_data, QN_E_ARGUMENT, NULL},
    {"x misaligned", spoil_x_align, QN_E_ALIGN, NULL},
    {"y misaligned", spoil_y_align, QN_E_ALIGN, NULL},
    {"bias NULL", spoil_bias_data, QN_E_ARGUMENT, NULL},
    {"bias misaligned", spoil_bias_align, QN_E_ALIGN, NULL},
    {"y on x", spoil_y_on_x, QN_E_OVERLAP, NULL},
    {"y on bias", spoil_y_on_bias, QN_E_OVERLAP, NULL},
    {"y on residual", spoil_y_on_residual, QN_E_OVERLAP, NULL},
    {"y on row_scale", spoil_y_on_row_scale, QN_E_OVERLAP, NULL},
    {"residual in place of another type", spoil_residual_type_in_place, QN_E_OVERLAP, NULL},
};

static qn_packed *prescaled_make(const qn_ctx *ctx)
{
    qn_weight_parts parts;
    float scale[K];
    qn_weight *plain = weight_make(ctx, "int8:pt", shape, 5), *weight = NULL;
    qn_packed *packed = NULL;
    for (int i = 0; i < K; i++)
        scale[i] = 0.5f;
    qn_weight_parts_init(&parts);
    assert_ok(qn_weight_view(plain, &parts));
    parts.prescale = scale;
    assert_ok(qn_weight_create(ctx, &parts, &weight, NULL));
    assert_ok(qn_pack(ctx, weight, NULL, &packed, NULL));
    qn_weight_destroy(plain);
    qn_weight_destroy(weight);
    return packed;
}

static void bench_args(struct bench *b)
{
    qn_matmul_args_init(&b->args);
    b->args.w = b->grouped;
    b->args.strategy = QN_STRATEGY_INT8_BLOCK;
    b->args.x = qn_tensor_2d(b->x, QN_F32, M, K);
    b->args.y = qn_tensor_2d(b->y, QN_F32, M, N);
}

static struct bench *bench_make(void)
{
    const struct shape two = {.n = N, .k = K, .groups = 2};
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->ctx = ctx_make(2);
    b->grouped = packed_make(b->ctx, "int4:g32", shape, 1, NULL);
    b->plain = packed_make(b->ctx, "int8:pt", shape, 2, NULL);
    b->image = packed_make(b->ctx, "int4:g32", two, 3, NULL);
    b->prescaled = prescaled_make(b->ctx);
    fill_reals(b->x, M * K, 1);
    bench_args(b);
    return b;
}

static void bench_free(struct bench *b)
{
    qn_packed_destroy(b->grouped);
    qn_packed_destroy(b->plain);
    qn_packed_destroy(b->image);
    qn_packed_destroy(b->prescaled);
    qn_ctx_destroy(b->ctx);
    free(b);
}

/* Every output of the bench is as it was. */
static void assert_untouched(const struct bench *b, const struct bench *before, const char *name)
{
    if (memcmp(b->x, before->x, offsetof(struct bench, args) - offsetof(struct bench, x)) != 0)
        fail_msg("%s: memory was written by a failed call", name);
}

static void test_before_data(void **state)
{
    (void)state;
    struct bench *b = bench_make();
    struct bench before = *b;
    for (size_t i = 0; i < sizeof before_data / sizeof *before_data; i++) {
        const struct bad *bad = &before_data[i];
        qn_plan *plan = NULL;
        size_t bytes = 7;
        qn_error err = {0};
        bench_args(b);
        bad->spoil(b);
        const qn_status status = qn_matmul_plan(b->ctx, &b->args, &plan, &err);
        if (status != bad->status || err.status != status || strstr(err.text, bad->word) == NULL)
            fail_msg("%s: plan gave %s: %s", bad->name, qn_status_name(status), err.text);
        assert_null(plan);
        assert_status(qn_matmul_plan(b->ctx, &b->args, &plan, NULL), bad->status);
        assert_status(qn_matmul_scratch(b->ctx, &b->args, &bytes), bad->status);
        assert_int_equal(bytes, 7);
        assert_status(qn_matmul(b->ctx, &b->args, NULL, 0), bad->status);
        assert_untouched(b, &before, bad->name);
    }
    bench_free(b);
}

/* Runs of a plan see the same things; what the plan knows better than the arguments is not asked
 * again. */
static void test_runs(void **state)
{
    (void)state;
    struct bench *b = bench_make();
    struct bench before = *b;
    qn_plan *plan = NULL;
    assert_ok(qn_matmul_plan(b->ctx, &b->args, &plan, NULL));
    for (size_t i = 0; i < sizeof before_data / sizeof *before_data; i++) {
        const struct bad *bad = &before_data[i];
        if (bad->spoil == spoil_kernel)
            continue;
        bench_args(b);
        bad->spoil(b);
        assert_status(qn_matmul_run(plan, &b->args, NULL, 0), bad->status);
        assert_untouched(b, &before, bad->name);
    }
    qn_plan_destroy(plan);
    bench_free(b);
}

static void test_with_data(void **state)
{
    (void)state;
    struct bench *b = bench_make();
    struct bench before = *b;
    for (size_t i = 0; i < sizeof with_data / sizeof *with_data; i++) {
        const struct bad *bad = &with_data[i];
        qn_plan *plan = NULL;
        size_t bytes;
        bench_args(b);
        bad->spoil(b);
        assert_ok(qn_matmul_plan(b->ctx, &b->args, &plan, NULL));
        assert_ok(qn_matmul_scratch(b->ctx, &b->args, &bytes));
        const qn_status planned = qn_matmul_run(plan, &b->args, NULL, 0);
        const qn_status direct = qn_matmul(b->ctx, &b->args, NULL, 0);
        if (planned != bad->status || direct != bad->status)
            fail_msg("%s: run gave %s, direct call %s", bad->name, qn_status_name(planned),
                     qn_status_name(direct));
        assert_untouched(b, &before, bad->name);
        qn_plan_destroy(plan);
    }
    bench_free(b);
}

/* y in the middle of the weights themselves. */
static void test_on_weights(void **state)
{
    (void)state;
    struct bench *b = bench_make();
    struct counter counter = {0};
    qn_ctx_options o;
    qn_ctx *ctx;
    options_counted(&o, &counter);
    o.n_threads = 1;
    assert_ok(qn_ctx_create(&o, &ctx, NULL));
    qn_weight *weight = weight_make(ctx, "int4:g32", shape, 1);
    qn_packed *w = NULL;
    qn_packed_info info;
    counter.largest_bytes = 0;
    assert_ok(qn_pack(ctx, weight, NULL, &w, NULL));
    qn_packed_info_init(&info);
    assert_ok(qn_packed_query(w, &info));
    assert_true(counter.largest_bytes >=
                info.bytes); /* the blob: the allocator knows where it is */
    b->args.w = w;
    b->args.y.data = (void *)(counter.largest + info.bytes / 2 / 64 * 64);
    assert_status(qn_matmul(ctx, &b->args, NULL, 0), QN_E_OVERLAP);
    qn_weight_destroy(weight);
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
    assert_int_equal(counter.live, 0);
    bench_free(b);
}

static void test_null(void **state)
{
    (void)state;
    struct bench *b = bench_make();
    qn_plan *plan = NULL;
    size_t bytes;
    assert_error(qn_matmul_plan(NULL, &b->args, &plan, &err), QN_E_ARGUMENT, "ctx is NULL");
    assert_error(qn_matmul_plan(b->ctx, NULL, &plan, &err), QN_E_ARGUMENT, "struct is NULL");
    assert_error(qn_matmul_plan(b->ctx, &b->args, NULL, &err), QN_E_ARGUMENT, "plan is NULL");
    assert_status(qn_matmul(NULL, &b->args, NULL, 0), QN_E_ARGUMENT);
    assert_status(qn_matmul(b->ctx, NULL, NULL, 0), QN_E_ARGUMENT);
    assert_status(qn_matmul_run(NULL, &b->args, NULL, 0), QN_E_ARGUMENT);
    assert_status(qn_matmul_scratch(NULL, &b->args, &bytes), QN_E_ARGUMENT);
    assert_status(qn_matmul_scratch(b->ctx, NULL, &bytes), QN_E_ARGUMENT);
    assert_status(qn_matmul_scratch(b->ctx, &b->args, NULL), QN_E_ARGUMENT);
    assert_ok(qn_matmul_plan(b->ctx, &b->args, &plan, NULL));
    assert_status(qn_matmul_run(plan, NULL, NULL, 0), QN_E_ARGUMENT);
    /* A plan runs what it was made for only. */
    qn_grouped_args grouped;
    qn_conv_args conv;
    qn_grouped_args_init(&grouped);
    qn_conv_args_init(&conv);
    assert_status(qn_grouped_run(plan, &grouped, NULL, 0), QN_E_ARGUMENT);
    assert_status(qn_conv2d_run(plan, &conv, NULL, 0), QN_E_ARGUMENT);
    assert_status(qn_conv_transpose2d_run(plan, &conv, NULL, 0), QN_E_ARGUMENT);
    qn_plan_destroy(plan);
    bench_free(b);
}

/* A plan refuses problems that it was not made for. */
static void test_other_problem(void **state)
{
    (void)state;
    struct bench *b = bench_make();
    qn_plan *plan = NULL;
    float x[(M + 1) * K] = {0}, y[(M + 1) * N];
    uint16_t half[M * N];
    assert_ok(qn_matmul_plan(b->ctx, &b->args, &plan, NULL));
    qn_matmul_args args = b->args;
    args.x = qn_tensor_2d(x, QN_F32, M + 1, K);
    args.y = qn_tensor_2d(y, QN_F32, M + 1, N);
    assert_status(qn_matmul_run(plan, &args, NULL, 0), QN_E_SHAPE);
    args = b->args;
    args.strategy = QN_STRATEGY_FLOAT;
    assert_status(qn_matmul_run(plan, &args, NULL, 0), QN_E_ARGUMENT);
    args = b->args;
    args.quant.symmetric = 1;
    assert_status(qn_matmul_run(plan, &args, NULL, 0), QN_E_ARGUMENT);
    args = b->args;
    args.y = qn_tensor_2d(half, QN_BF16, M, N);
    assert_status(qn_matmul_run(plan, &args, NULL, 0), QN_E_DTYPE);
    args = b->args;
    args.epilogue.bias = qn_tensor_1d(b->bias, QN_F32, N);
    assert_status(qn_matmul_run(plan, &args, NULL, 0), QN_E_DTYPE);
    args = b->args;
    args.w = b->plain;
    assert_status(qn_matmul_run(plan, &args, NULL, 0), QN_E_LAYOUT);
    const struct shape wide = {.n = N, .k = 2 * K};
    qn_packed *w = packed_make(b->ctx, "int4:g32", wide, 1, NULL);
    float wide_x[M * 2 * K] = {0};
    args = b->args;
    args.w = w;
    args.x = qn_tensor_2d(wide_x, QN_F32, M, 2 * K);
    assert_status(qn_matmul_run(plan, &args, NULL, 0), QN_E_SHAPE);
    qn_packed_destroy(w);
    qn_plan_destroy(plan);
    bench_free(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_before_data), cmocka_unit_test(test_runs),
        cmocka_unit_test(test_with_data),   cmocka_unit_test(test_on_weights),
        cmocka_unit_test(test_null),        cmocka_unit_test(test_other_problem),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
