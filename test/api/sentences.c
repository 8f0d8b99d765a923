/* SPDX-License-Identifier: Apache-2.0 */
/* Every failure of a direct call reaches the caller in words, without a log callback: in the
 * `error` of the argument struct. One bad argument for each sentence of the validators; with
 * --print the program writes all sentences that arrived, and sentences.py compares them with those
 * that stand in src/api. */
#include "api.h"

enum {
    M = 4,
    N = 24,
    K = 64,
    E = 3,
    CI = 6,
    CO = 8,
    SIDE = 5,
    BATCH = 2,
    ROWS_SUM = (1 << 23) + 1,
    ROWS_BYTES = 4096,
    LONG_K = 1 << 17 /* 128 * 128 * LONG_K is no int32 */
};

struct bench {
    qn_ctx *ctx;
    qn_packed *grouped, *plain, *prescaled, *other_shape, *other_format, *other_layout;
    qn_packed *far_zeros, *deep; /* zero points beyond 8 bits; k of LONG_K */
    qn_packed *image, *flat;     /* 3 x 3 taps in two groups; 1 x 3 taps in one */
    const qn_packed *w[E];
    float x[BATCH * CI * SIDE * SIDE], bias[N + 8], y[BATCH * CO * 8 * 8];
    int8_t x8[M * K], y8[M * N];
    int32_t bias32[N], y32[M * N], offsets[E + 1], ids[M], x_rows[M];
    qn_matmul_args m;
    qn_grouped_args g;
    qn_conv_args c;
    qn_quantize_rows_args q;
    qn_prepare_args p;
    qn_epilogue_more more;
    uint8_t *memory, *rows; /* of ROWS_BYTES, for qn_prepare() */
    size_t rows_bytes;
};

/* clang-format off */

/* ---- any product ----------------------------------------------------------------------------- */
static void w_null(struct bench *b) { b->m.w = NULL; }
static void w_of_groups(struct bench *b) { b->m.w = b->image; }
static void ranks(struct bench *b) { b->m.x.rank = 3; }
static void shape(struct bench *b) { b->m.x.shape[1] = K - 1; }
static void shape_negative(struct bench *b) { b->m.x.shape[0] = -1; b->m.y.shape[0] = -1; }
static void dtype(struct bench *b) { b->m.x.dtype = QN_I64; }
static void device(struct bench *b) { b->m.y.device.index = 1; }
static void stride_negative(struct bench *b) { b->m.x.stride[0] = -K; }
static void stride_inner(struct bench *b) { b->m.x.stride[1] = 2; }
static void stride_far(struct bench *b) { b->m.x.stride[0] = INT64_MAX / 2; }
static void stride_overlap(struct bench *b) { b->m.y.stride[0] = N - 1; }
static void strategy(struct bench *b) { b->m.strategy = 9; }
static void strict(struct bench *b) { b->m.strict = 2; }
static void reserved(struct bench *b) { b->m.quant.reserved = 1; }
static void act(struct bench *b) { b->m.epilogue.act = 11; }
static void clamp_nan(struct bench *b) { b->m.epilogue.clamp_hi = NAN; }
static void clamp_order(struct bench *b)
{
    b->m.epilogue.clamp_hi = -INFINITY;
    b->m.epilogue.clamp_lo = 0;
}
static void clamp_zero(struct bench *b) { b->m.epilogue = (qn_epilogue){.act = QN_ACT_SILU}; }
static void bias_dtype(struct bench *b) { b->m.epilogue.bias = qn_tensor_1d(b->bias32, QN_I32, N); }
static void bias_rank(struct bench *b) { b->m.epilogue.bias = qn_tensor_2d(b->bias, QN_F32, 1, N); }
static void residual_dtype(struct bench *b)
{
    b->m.epilogue.residual = qn_tensor_2d(b->y32, QN_I32, M, N);
}
static void residual_codes(struct bench *b)
{
    b->m.epilogue.residual = qn_tensor_2d(b->y8, QN_I8, M, N);
    b->m.more = &b->more;
}
static void residual_scale(struct bench *b) { residual_codes(b); b->more.residual_scale = 0.0f; }
static void residual_zero(struct bench *b) { residual_codes(b); b->more.residual_zero = 128; }
static void finish_size(struct bench *b) { b->m.more = &b->more; b->more.size = 3; }
static void finish_slope(struct bench *b) { b->m.more = &b->more; b->more.leaky_slope = NAN; }
static void gate(struct bench *b) { b->m.more = &b->more; b->more.gate = 3; }
static void gate_n(struct bench *b) { b->m.more = &b->more; b->more.gate = QN_GATE_HALVES; }
static void gate_residual(struct bench *b)
{
    b->m.more = &b->more;
    b->more.gate = QN_GATE_PAIRS;
    b->m.y.shape[1] = N / 2;
    b->m.epilogue.residual = qn_tensor_2d(b->bias, QN_F32, 1, N / 2);
}
static void gate_conv(struct bench *b) { b->c.more = &b->more; b->more.gate = QN_GATE_PAIRS; }
static void factor_gate(struct bench *b)
{
    b->m.more = &b->more;
    b->more.gate = QN_GATE_PAIRS;
    b->m.y.shape[1] = N / 2;
    b->more.factor = b->m.y;
}
static void data_null(struct bench *b) { b->m.x.data = NULL; }
static void data_align(struct bench *b) { b->m.x.data = (char *)b->x + 2; }
static void data_overlap(struct bench *b) { b->m.x.data = b->y; }
static void kernel(struct bench *b) { b->m.kernel = "qni_matmul_of_dreams"; }

/* ---- int8-static ----------------------------------------------------------------------------- */
static void fixed(struct bench *b, qn_dtype y)
{
    b->m.strategy = QN_STRATEGY_INT8_STATIC;
    b->m.w = b->plain;
    b->m.x = qn_tensor_2d(b->x8, QN_I8, M, K);
    void *const data = y == QN_F32 ? (void *)b->y : y == QN_I32 ? (void *)b->y32 : b->y8;
    b->m.y = qn_tensor_2d(data, y, M, N);
}
static void x_scale_zero(struct bench *b) { fixed(b, QN_F32); b->m.quant.x_scale = 0.0f; }
static void x_scale_nan(struct bench *b) { fixed(b, QN_F32); b->m.quant.x_scale = NAN; }
static void x_zero(struct bench *b) { fixed(b, QN_F32); b->m.quant.x_zero = 128; }
static void y_scale_tiny(struct bench *b) { fixed(b, QN_I8); b->m.epilogue.y_scale = 1e-42f; }
static void prescale(struct bench *b) { fixed(b, QN_F32); b->m.w = b->prescaled; }
static void x_scale_tiny(struct bench *b)
{
    b->m.strategy = QN_STRATEGY_FP8_STATIC;
    b->m.quant.x_scale = 1e-42f;
}
static void e4m3(struct bench *b)
{
    b->m.strategy = QN_STRATEGY_FP8_ROW;
    b->m.x = qn_tensor_2d(b->x8, QN_E4M3, M, K);
}
static void x_scales_missing(struct bench *b) { e4m3(b); }
static void x_scales_of_floats(struct bench *b)
{
    b->m.strategy = QN_STRATEGY_FP8_BLOCK;
    b->m.x_scales = qn_tensor_2d(b->bias, QN_F32, M, 1);
}
static void x_scales_of_float(struct bench *b)
{
    x_scales_of_floats(b);
    b->m.strategy = QN_STRATEGY_FLOAT;
}
static void y_zero_e4m3(struct bench *b)
{
    b->m.strategy = QN_STRATEGY_FP8_ROW;
    b->m.y = qn_tensor_2d(b->y8, QN_E4M3, M, N);
    b->m.epilogue.y_zero = 1;
}
static void raw_groups(struct bench *b) { fixed(b, QN_I32); b->m.w = b->grouped; }
static void raw_zeros(struct bench *b) { fixed(b, QN_I32); b->m.w = b->far_zeros; }
static void raw_deep(struct bench *b)
{
    fixed(b, QN_I32);
    b->m.w = b->deep;
    b->m.x.shape[1] = b->m.x.stride[0] = LONG_K;
    b->m.y.shape[1] = 1;
}
static void raw_act(struct bench *b) { fixed(b, QN_I32); b->m.epilogue.act = QN_ACT_RELU; }
static void bias_unit(struct bench *b) { fixed(b, QN_F32); b->m.w = b->grouped; bias_dtype(b); }

/* ---- grouped --------------------------------------------------------------------------------- */
static void no_experts(struct bench *b) { b->g.n_experts = 0; }
static void expert_null(struct bench *b) { b->w[2] = NULL; }
static void expert_shape(struct bench *b) { b->w[1] = b->other_shape; }
static void expert_groups(struct bench *b) { b->w[0] = b->image; }
static void expert_format(struct bench *b) { b->w[1] = b->other_format; }
static void expert_layout(struct bench *b) { b->w[1] = b->other_layout; }
static void grouped_ranks(struct bench *b) { b->g.y.rank = 1; }
static void grouped_reserved(struct bench *b) { b->g.reserved = 1; }
static void batch_routes(struct bench *b)
{
    static const int64_t shape[3] = {E, 1, K};
    b->g.x = qn_tensor_make(b->x, QN_F32, 3, shape);
    b->g.y = qn_tensor_make(b->y, QN_F32, 3, shape);
}
static void batch_size(struct bench *b)
{
    batch_routes(b);
    b->g.offsets = qn_tensor_none();
    b->g.x.shape[0] = E - 1;
}
static void high_rank(struct bench *b)
{
    static const int64_t x[3] = {2, 2, K}, y[3] = {2, 2, N};
    b->m.x = qn_tensor_make(b->x, QN_F32, 3, x);
    b->m.y = qn_tensor_make(b->y, QN_F32, 3, y);
}
static void flat_dimension(struct bench *b) { high_rank(b); b->m.y.shape[1] = 3; }
static void flat_distance(struct bench *b) { high_rank(b); b->m.x.stride[0] = 3 * K; }
static void flat_rank(struct bench *b)
{
    high_rank(b);
    b->m.epilogue.residual = qn_tensor_2d(b->bias, QN_F32, 1, N);
}
static void flat_rows(struct bench *b)
{
    high_rank(b);
    b->m.x.shape[0] = b->m.x.shape[1] = b->m.y.shape[0] = b->m.y.shape[1] = (int64_t)1 << 40;
}
static void routes_both(struct bench *b) { b->g.ids = qn_tensor_1d(b->ids, QN_I32, M); }
static void by_ids(struct bench *b)
{
    b->g.offsets = qn_tensor_none();
    b->g.ids = qn_tensor_1d(b->ids, QN_I32, M);
    b->g.x_rows = qn_tensor_1d(b->x_rows, QN_I32, M);
}
static void routes_rows(struct bench *b)
{
    by_ids(b);
    b->g.x_rows = qn_tensor_none();
    b->g.x.shape[0] = 2;
}
static void routes_offset(struct bench *b) { b->offsets[1] = M + 1; }
static void routes_id(struct bench *b) { by_ids(b); b->ids[3] = E; }
static void routes_row(struct bench *b) { by_ids(b); b->x_rows[1] = M; }

/* ---- convolutions ---------------------------------------------------------------------------- */
static void image(struct bench *b) { b->c.image = 2; }
static void conv_stride(struct bench *b) { b->c.stride[1] = 0; }
static void conv_out_pad(struct bench *b) { b->c.out_pad[0] = 1; }
static void conv_out_pad_high(struct bench *b) { b->c.out_pad[1] = 1; }
static void conv_pad(struct bench *b) { b->c.pad[3] = -1; }
static void conv_no_output(struct bench *b) { b->c.x.shape[2] = 1; }
static void conv_rank(struct bench *b) { b->c.x.rank = 5; }
static void conv_ranks(struct bench *b) { b->c.y.rank = 3; }
static void conv_flat(struct bench *b) { b->c.x.rank = 3; b->c.x.shape[1] = CI; }
static void conv_flat_pad(struct bench *b) { conv_flat(b); b->c.w = b->flat; b->c.pad[0] = 1; }
static void conv_channels(struct bench *b) { b->c.x.shape[1] = CI - 1; }
static void conv_image(struct bench *b) { b->c.x.shape[3] = 0; }
static void conv_huge(struct bench *b) { b->c.x.shape[0] = (int64_t)1 << 62; }
static void conv_row_scale(struct bench *b)
{
    b->c.epilogue.row_scale = qn_tensor_1d(b->bias, QN_F32, 4);
}
static void conv_fp8(struct bench *b) { b->c.strategy = QN_STRATEGY_FP8_ROW; }
static void conv_w_null(struct bench *b) { b->c.w = NULL; }

/* ---- the quantizer of rows ------------------------------------------------------------------- */
static void rows_block(struct bench *b) { b->q.block = -1; }
static void rows_dtype(struct bench *b) { b->q.scale.dtype = QN_F16; }
static void rows_apart(struct bench *b) { b->q.scale.data = b->x; }
static void rows_sum(struct bench *b)
{
    b->q.x.shape[0] = b->q.codes.shape[0] = b->q.scale.shape[0] = 1;
    b->q.x.shape[1] = b->q.codes.shape[1] = ROWS_SUM;
    b->q.sum = qn_tensor_2d(b->y32, QN_I32, 1, 1);
}
static void rows_given(struct bench *b)
{
    b->y[1] = 0.0f;
    b->q.given = 1;
}
static void rows_offset(struct bench *b)
{
    b->q.given = 1;
    b->q.offset = qn_tensor_2d(b->bias, QN_F32, M, 1);
}
static void rows_sum_e4m3(struct bench *b)
{
    b->q.codes.dtype = QN_E4M3;
    b->q.offset = qn_tensor_none();
    b->q.zero = qn_tensor_none();
    b->q.sum = qn_tensor_2d(b->y32, QN_I32, M, 1);
}
static void rows_reserved(struct bench *b) { b->q.reserved = 1; }

/* ---- rows that are prepared ------------------------------------------------------------------ */
static void prepare_groups(struct bench *b) { b->p.w = b->image; }
static void prepare_strategy(struct bench *b) { b->p.strategy = QN_STRATEGY_FLOAT; }
static void prepare_reserved(struct bench *b) { b->p.reserved = 1; }
static void prepare_null(struct bench *b) { b->rows = NULL; }
static void prepare_small(struct bench *b) { b->rows_bytes--; }
static void prepare_align(struct bench *b) { b->rows += 8; }
static void prepared_strategy(struct bench *b) { b->m.prepared = b->x; }
static void prepared_align(struct bench *b)
{
    b->m.strategy = QN_STRATEGY_INT8_ROW;
    b->m.prepared = b->rows + 8;
}
/* clang-format on */

enum { MATMUL, GROUPED, CONV, TRANSPOSED, ROWS, PREPARE };
static const struct bad {
    void (*spoil)(struct bench *);
    int op;
    qn_status status;
    const char *word;
} bads[] = {
    {w_null, MATMUL, QN_E_ARGUMENT, "w is NULL"},
    {w_of_groups, MATMUL, QN_E_SHAPE, "2 groups"},
    {ranks, MATMUL, QN_E_SHAPE, "ranks 3 and 2"},
    {shape, MATMUL, QN_E_SHAPE, "x: dimension 1 is 63, not 64"},
    {shape_negative, MATMUL, QN_E_SHAPE, "x: dimension 0 is -1"},
    {dtype, MATMUL, QN_E_DTYPE, "x has type i64"},
    {device, MATMUL, QN_E_DEVICE, "y is on device 1:1"},
    {stride_negative, MATMUL, QN_E_STRIDE, "x: stride 0 is negative"},
    {stride_inner, MATMUL, QN_E_STRIDE, "x: the innermost stride is 2"},
    {stride_far, MATMUL, QN_E_STRIDE, "x reaches beyond"},
    {stride_overlap, MATMUL, QN_E_STRIDE, "y: stride 0 is 23"},
    {strategy, MATMUL, QN_E_ARGUMENT, "strategy is 9"},
    {strict, MATMUL, QN_E_ARGUMENT, "strict is 2"},
    {reserved, MATMUL, QN_E_ARGUMENT, "quant.reserved"},
    {act, MATMUL, QN_E_ARGUMENT, "act is 11"},
    {clamp_nan, MATMUL, QN_E_VALUE, "clamp_hi is NaN"},
    {clamp_order, MATMUL, QN_E_ARGUMENT, "clamp_lo is greater"},
    {clamp_zero, MATMUL, QN_E_VALUE, "both 0"},
    {bias_dtype, MATMUL, QN_E_DTYPE, "bias has type i32"},
    {bias_rank, MATMUL, QN_E_SHAPE, "bias has rank 2"},
    {residual_dtype, MATMUL, QN_E_DTYPE, "residual has type i32"},
    {residual_scale, MATMUL, QN_E_VALUE, "residual_scale is 0"},
    {residual_zero, MATMUL, QN_E_VALUE, "residual_zero is 128"},
    {finish_size, MATMUL, QN_E_ARGUMENT, "size is 3"},
    {finish_slope, MATMUL, QN_E_VALUE, "must be finite"},
    {gate, MATMUL, QN_E_ARGUMENT, "gate is 3"},
    {gate_n, MATMUL, QN_E_SHAPE, "24 outputs: a gate by halves"},
    {gate_residual, MATMUL, QN_E_ARGUMENT, "residual_after"},
    {gate_conv, CONV, QN_E_ARGUMENT, "no gate"},
    {factor_gate, MATMUL, QN_E_ARGUMENT, "without a gate"},
    {data_null, MATMUL, QN_E_ARGUMENT, "x: data is NULL"},
    {data_align, MATMUL, QN_E_ALIGN, "x: data is not aligned"},
    {data_overlap, MATMUL, QN_E_OVERLAP, "y overlaps x"},
    {kernel, MATMUL, QN_E_UNSUPPORTED, "is called qni_matmul_of_dreams"},
    {x_scale_zero, MATMUL, QN_E_VALUE, "x_scale is 0"},
    {x_scale_nan, MATMUL, QN_E_VALUE, "x_scale must be"},
    {x_zero, MATMUL, QN_E_VALUE, "x_zero is 128"},
    {y_scale_tiny, MATMUL, QN_E_VALUE, "1 / y_scale overflows"},
    {prescale, MATMUL, QN_E_UNSUPPORTED, "prescale"},
    {raw_groups, MATMUL, QN_E_DTYPE, "y of type i32 needs"},
    {raw_zeros, MATMUL, QN_E_DTYPE, "zero points of 8 bits"},
    {raw_deep, MATMUL, QN_E_UNSUPPORTED, "up to k = 131071"},
    {raw_act, MATMUL, QN_E_ARGUMENT, "raw sums"},
    {bias_unit, MATMUL, QN_E_DTYPE, "bias of type i32 needs"},
    {x_scale_tiny, MATMUL, QN_E_VALUE, "1 / x_scale overflows"},
    {x_scales_missing, MATMUL, QN_E_ARGUMENT, "fp8-row needs x_scales"},
    {x_scales_of_floats, MATMUL, QN_E_ARGUMENT, "x_scales belong to x of type e4m3"},
    {x_scales_of_float, MATMUL, QN_E_ARGUMENT, "x_scales belong to x of type e4m3"},
    {y_zero_e4m3, MATMUL, QN_E_VALUE, "y_zero is 1: e4m3"},
    {no_experts, GROUPED, QN_E_ARGUMENT, "n_experts is 0"},
    {expert_null, GROUPED, QN_E_ARGUMENT, "w[2] is NULL"},
    {expert_shape, GROUPED, QN_E_SHAPE, "expert 1"},
    {expert_groups, GROUPED, QN_E_SHAPE, "w[0] belongs to a convolution of 2 groups"},
    {expert_format, GROUPED, QN_E_FORMAT, "expert 1"},
    {expert_layout, GROUPED, QN_E_LAYOUT, "expert 1"},
    {grouped_ranks, GROUPED, QN_E_SHAPE, "ranks 2 and 1"},
    {grouped_reserved, GROUPED, QN_E_ARGUMENT, "reserved"},
    {batch_routes, GROUPED, QN_E_ARGUMENT, "of a batch"},
    {batch_size, GROUPED, QN_E_SHAPE, "a batch of 2, and there are 3"},
    {flat_dimension, MATMUL, QN_E_SHAPE, "y: dimension 1 is 3, not 2"},
    {flat_distance, MATMUL, QN_E_STRIDE, "one distance"},
    {flat_rank, MATMUL, QN_E_SHAPE, "residual has rank 2, not 3"},
    {flat_rows, MATMUL, QN_E_SHAPE, "more rows than fit"},
    {routes_both, GROUPED, QN_E_ARGUMENT, "exactly one"},
    {routes_rows, GROUPED, QN_E_SHAPE, "without x_rows"},
    {routes_offset, GROUPED, QN_E_VALUE, "offsets[1] is 5"},
    {routes_id, GROUPED, QN_E_VALUE, "ids[3] is 3"},
    {routes_row, GROUPED, QN_E_VALUE, "x_rows[1] is 4"},
    {image, CONV, QN_E_ARGUMENT, "image is 2"},
    {conv_stride, CONV, QN_E_ARGUMENT, "stride is 0"},
    {conv_out_pad, CONV, QN_E_ARGUMENT, "out_pad is 1 along h: only a transposed"},
    {conv_out_pad_high, TRANSPOSED, QN_E_ARGUMENT, "out_pad is 1 along w: it is not negative"},
    {conv_pad, CONV, QN_E_ARGUMENT, "at the right"},
    {conv_no_output, CONV, QN_E_SHAPE, "no output along h"},
    {conv_rank, CONV, QN_E_SHAPE, "x has rank 5"},
    {conv_ranks, CONV, QN_E_SHAPE, "ranks 4 and 3"},
    {conv_flat, CONV, QN_E_SHAPE, "3 rows of taps"},
    {conv_flat_pad, CONV, QN_E_ARGUMENT, "top and bottom"},
    {conv_channels, CONV, QN_E_SHAPE, "x has 5 channels"},
    {conv_image, CONV, QN_E_SHAPE, "an image of 5 x 0"},
    {conv_huge, CONV, QN_E_SHAPE, "more pixels"},
    {conv_row_scale, CONV, QN_E_ARGUMENT, "row_scale"},
    {conv_fp8, CONV, QN_E_UNSUPPORTED, "fp8-row is for matrix products"},
    {conv_w_null, TRANSPOSED, QN_E_ARGUMENT, "w is NULL"},
    {rows_block, ROWS, QN_E_ARGUMENT, "block is -1"},
    {rows_dtype, ROWS, QN_E_DTYPE, "scale has type f16"},
    {rows_apart, ROWS, QN_E_OVERLAP, "scale overlaps x"},
    {rows_sum, ROWS, QN_E_ARGUMENT, "may not fit in i32"},
    {rows_given, ROWS, QN_E_VALUE, "scale[1, 0]"},
    {rows_offset, ROWS, QN_E_ARGUMENT, "offset and given"},
    {rows_sum_e4m3, ROWS, QN_E_DTYPE, "sums are of integer codes"},
    {rows_reserved, ROWS, QN_E_ARGUMENT, "reserved"},
    {prepare_groups, PREPARE, QN_E_SHAPE, "2 groups"},
    {prepare_strategy, PREPARE, QN_E_ARGUMENT, "strategy is 0"},
    {prepare_reserved, PREPARE, QN_E_ARGUMENT, "reserved"},
    {prepare_null, PREPARE, QN_E_ARGUMENT, "memory is NULL"},
    {prepare_small, PREPARE, QN_E_SCRATCH, "are needed"},
    {prepare_align, PREPARE, QN_E_ALIGN, "memory"},
    {prepared_strategy, MATMUL, QN_E_ARGUMENT, "strategy is float"},
    {prepared_align, MATMUL, QN_E_ALIGN, "prepared"},
};

static bool prints;

/* The caller's error has the status and the word; and it is forgotten. */
static void check_words(qn_error *error, qn_status got, qn_status status, const char *word)
{
    if (got != status || error->status != status)
        fail_msg("%s, error %s: '%s', not %s ('%s')", qn_status_name(got),
                 qn_status_name(error->status), error->text, qn_status_name(status), word);
    if (error->text[0] == '\0' || strstr(error->text, word) == NULL)
        fail_msg("'%s' does not say '%s'", error->text, word);
    if (prints)
        printf("sentence: %s\n", error->text);
    memset(error, 0, sizeof *error);
}

static qn_packed *prescaled_make(const qn_ctx *ctx)
{
    float half[K];
    qn_weight_parts parts;
    qn_weight *plain = weight_make(ctx, "int8:pc", (struct shape){.n = N, .k = K}, 5), *w = NULL;
    qn_packed *packed = NULL;
    for (int i = 0; i < K; i++)
        half[i] = 0.5f;
    qn_weight_parts_init(&parts);
    assert_ok(qn_weight_view(plain, &parts));
    parts.prescale = half;
    assert_ok(qn_weight_create(ctx, &parts, &w, NULL));
    assert_ok(qn_pack(ctx, w, NULL, &packed, NULL));
    qn_weight_destroy(plain);
    qn_weight_destroy(w);
    return packed;
}

/* Zero points that no 8 bits hold. */
static qn_packed *far_zeros_make(const qn_ctx *ctx)
{
    int32_t zero[N];
    qn_weight_parts parts;
    qn_weight *near = weight_make(ctx, "int8:pc:zp", (struct shape){.n = N, .k = K}, 8), *w = NULL;
    qn_packed *packed = NULL;
    for (int i = 0; i < N; i++)
        zero[i] = 128;
    qn_weight_parts_init(&parts);
    assert_ok(qn_weight_view(near, &parts));
    parts.zero = zero;
    assert_ok(qn_weight_create(ctx, &parts, &w, NULL));
    assert_ok(qn_pack(ctx, w, NULL, &packed, NULL));
    qn_weight_destroy(near);
    qn_weight_destroy(w);
    return packed;
}

/* Packs the weights of packed_make() in a layout that they do not get by themselves. */
static qn_packed *other_layout_make(const qn_ctx *ctx)
{
    qn_weight *w = weight_make(ctx, "int4:g32", (struct shape){.n = N, .k = K}, 1);
    qn_packed *packed = NULL;
    qn_pack_options options;
    qn_pack_options_init(&options);
    options.layout = "q8n16";
    assert_ok(qn_pack(ctx, w, &options, &packed, NULL));
    qn_weight_destroy(w);
    return packed;
}

static struct bench *bench_make(void)
{
    static const struct shape matrix = {.n = N, .k = K}, longer = {.n = N + 8, .k = K},
                              taps = {.n = CO, .k = 27, .kh = 3, .kw = 3, .groups = 2},
                              line = {.n = CO, .k = 18, .kh = 1, .kw = 3};
    struct bench *b = calloc(1, sizeof *b);
    assert_non_null(b);
    b->ctx = ctx_make(1);
    b->grouped = packed_make(b->ctx, "int4:g32", matrix, 1, NULL);
    b->plain = packed_make(b->ctx, "int8:pc", matrix, 2, NULL);
    b->prescaled = prescaled_make(b->ctx);
    b->far_zeros = far_zeros_make(b->ctx);
    b->deep = packed_make(b->ctx, "int8:pc", (struct shape){.n = 1, .k = LONG_K}, 9, NULL);
    b->other_shape = packed_make(b->ctx, "int4:g32", longer, 3, NULL);
    b->other_format = packed_make(b->ctx, "int4:g64", matrix, 4, NULL);
    b->other_layout = other_layout_make(b->ctx);
    b->image = packed_make(b->ctx, "int8:pc", taps, 5, NULL);
    b->flat = packed_make(b->ctx, "int8:pc", line, 6, NULL);
    fill_reals(b->x, BATCH * CI * SIDE * SIDE, 7);
    b->memory = take(ROWS_BYTES);
    return b;
}

static void bench_free(struct bench *b)
{
    qn_packed *const all[] = {b->grouped,      b->plain,        b->prescaled, b->other_shape,
                              b->other_format, b->other_layout, b->image,     b->flat,
                              b->far_zeros,    b->deep};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        qn_packed_destroy(all[i]);
    qn_ctx_destroy(b->ctx);
    free(b->memory);
    free(b);
}

/* Arguments that work, each with an error of the caller's. */
static void bench_args(struct bench *b, qn_error *error)
{
    static const int64_t x_shape[4] = {BATCH, CI, SIDE, SIDE}, y_shape[4] = {BATCH, CO, 3, 3};
    const qn_tensor x = qn_tensor_2d(b->x, QN_F32, M, K), y = qn_tensor_2d(b->y, QN_F32, M, N);
    qn_matmul_args_init(&b->m);
    b->m.w = b->grouped;
    b->m.x = x;
    b->m.y = y;
    qn_grouped_args_init(&b->g);
    for (int32_t i = 0; i < E; i++)
        b->w[i] = b->grouped;
    for (int32_t i = 0; i <= E; i++)
        b->offsets[i] = i;
    for (int32_t i = 0; i < M; i++) {
        b->ids[i] = i % E;
        b->x_rows[i] = i;
    }
    b->g.w = b->w;
    b->g.n_experts = E;
    b->g.x = x;
    b->g.y = y;
    b->g.offsets = qn_tensor_1d(b->offsets, QN_I32, E + 1);
    qn_conv_args_init(&b->c);
    b->c.w = b->image;
    b->c.x = qn_tensor_make(b->x, QN_F32, 4, x_shape);
    b->c.y = qn_tensor_make(b->y, QN_F32, 4, y_shape);
    qn_quantize_rows_args_init(&b->q);
    b->q.x = x;
    b->q.codes = qn_tensor_2d(b->x8, QN_I8, M, K);
    b->q.scale = qn_tensor_2d(b->y, QN_F32, M, 1);
    for (int32_t i = 0; i < M; i++)
        b->y[i] = 1.0f;
    qn_epilogue_more_init(&b->more);
    qn_prepare_args_init(&b->p);
    b->p.w = b->grouped;
    b->p.x = x;
    b->rows = b->memory;
    b->rows_bytes = 0;
    assert_ok(qn_prepare_bytes(b->ctx, &b->p, &b->rows_bytes));
    assert_true(b->rows_bytes <= ROWS_BYTES);
    b->p.error = b->m.error = b->g.error = b->c.error = b->q.error = error;
}

static qn_status call(const struct bench *b, int op)
{
    switch (op) {
    case MATMUL:
        return qn_matmul(b->ctx, &b->m, NULL, 0);
    case GROUPED:
        return qn_grouped(b->ctx, &b->g, NULL, 0);
    case CONV:
        return qn_conv2d(b->ctx, &b->c, NULL, 0);
    case TRANSPOSED:
        return qn_conv_transpose2d(b->ctx, &b->c, NULL, 0);
    case PREPARE:
        return qn_prepare(b->ctx, &b->p, b->rows, b->rows_bytes);
    default:
        return qn_quantize_rows(b->ctx, &b->q);
    }
}

static void test_direct_calls(void **state)
{
    struct bench *b = bench_make();
    qn_error error;
    (void)state;
    memset(&error, 0, sizeof error);
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        bench_args(b, &error);
        bads[i].spoil(b);
        check_words(&error, call(b, bads[i].op), bads[i].status, bads[i].word);
    }
    /* What is right has no words. */
    static const qn_error untouched = {.offset = 0};
    bench_args(b, &error);
    assert_ok(matmul_in_arena(b->ctx, &b->m));
    assert_ok(grouped_in_arena(b->ctx, &b->g));
    assert_ok(conv2d_in_arena(b->ctx, &b->c));
    assert_ok(qn_conv_transpose2d_shape(&b->c));
    assert_ok(conv_transpose2d_in_arena(b->ctx, &b->c));
    assert_ok(qn_quantize_rows(b->ctx, &b->q));
    assert_ok(qn_prepare(b->ctx, &b->p, b->rows, b->rows_bytes));
    assert_memory_equal(&error, &untouched, sizeof error);
    bench_free(b);
}

/* Every call that has no qn_error argument of its own, and plans where theirs is NULL. */
static void test_every_call(void **state)
{
    struct bench *b = bench_make();
    qn_error error;
    qn_plan *plan = NULL, *conv = NULL;
    size_t bytes = 0;
    (void)state;
    memset(&error, 0, sizeof error);
    bench_args(b, &error);
    assert_ok(qn_matmul_plan(b->ctx, &b->m, &plan, NULL));
    assert_ok(qn_conv2d_plan(b->ctx, &b->c, &conv, NULL));

    check_words(&error, qn_matmul_run(NULL, &b->m, NULL, 0), QN_E_ARGUMENT, "plan is NULL");
    check_words(&error, qn_matmul_run(conv, &b->m, NULL, 0), QN_E_ARGUMENT, "is of a conv2d");
    check_words(&error, qn_grouped_run(plan, &b->g, NULL, 0), QN_E_ARGUMENT, "is of a matmul");
    check_words(&error, qn_conv2d_run(plan, &b->c, NULL, 0), QN_E_ARGUMENT, "plan");
    check_words(&error, qn_conv_transpose2d_run(conv, &b->c, NULL, 0), QN_E_ARGUMENT, "plan");
    check_words(&error, qn_matmul(NULL, &b->m, NULL, 0), QN_E_ARGUMENT, "ctx is NULL");
    check_words(&error, qn_grouped(NULL, &b->g, NULL, 0), QN_E_ARGUMENT, "ctx is NULL");
    check_words(&error, qn_conv2d(NULL, &b->c, NULL, 0), QN_E_ARGUMENT, "ctx is NULL");
    check_words(&error, qn_quantize_rows(NULL, &b->q), QN_E_ARGUMENT, "ctx is NULL");
    check_words(&error, qn_matmul_scratch(b->ctx, &b->m, NULL), QN_E_ARGUMENT, "bytes is NULL");
    check_words(&error, qn_grouped_scratch(b->ctx, &b->g, NULL), QN_E_ARGUMENT, "bytes");
    check_words(&error, qn_conv2d_scratch(b->ctx, &b->c, NULL), QN_E_ARGUMENT, "bytes");
    check_words(&error, qn_conv_transpose2d_scratch(NULL, &b->c, &bytes), QN_E_ARGUMENT, "ctx");
    check_words(&error, qn_matmul_plan(b->ctx, &b->m, NULL, NULL), QN_E_ARGUMENT, "plan is NULL");

    /* A plan's own qn_error comes first. */
    qn_error own = {.offset = 0};
    assert_status(qn_matmul_plan(b->ctx, &b->m, NULL, &own), QN_E_ARGUMENT);
    assert_int_equal(own.status, QN_E_ARGUMENT);
    assert_int_equal(error.status, QN_OK);
    qn_plan_destroy(plan);
    qn_plan_destroy(conv);
    bench_free(b);
}

static void test_shapes(void **state)
{
    struct bench *b = bench_make();
    qn_error error;
    (void)state;
    memset(&error, 0, sizeof error);
    bench_args(b, &error);
    const qn_tensor y = b->c.y;
    b->c.w = NULL;
    check_words(&error, qn_conv2d_shape(&b->c), QN_E_ARGUMENT, "w is NULL");
    bench_args(b, &error);
    b->c.x.shape[1]++;
    check_words(&error, qn_conv2d_shape(&b->c), QN_E_SHAPE, "x has 7 channels");
    b->c.x.shape[1]--;
    b->c.pad[0] = -2;
    check_words(&error, qn_conv_transpose2d_shape(&b->c), QN_E_ARGUMENT, "pad is -2 at the top");
    assert_memory_equal(&b->c.y, &y, sizeof y);
    bench_free(b);
}

/* An argument struct that is older than its `error`, and one that nobody initialised: nothing
 * behind its end is looked at. */
static void test_short_structs(void **state)
{
    struct bench *b = bench_make();
    qn_error error, untouched;
    (void)state;
    memset(&error, 0, sizeof error);
    memset(&untouched, 0, sizeof untouched);
    bench_args(b, &error);
    b->m.size = offsetof(qn_matmul_args, error);
    b->m.strategy = 9;
    assert_status(qn_matmul(b->ctx, &b->m, NULL, 0), QN_E_ARGUMENT);
    b->m.size = 0;
    assert_status(qn_matmul(b->ctx, &b->m, NULL, 0), QN_E_ARGUMENT);
    assert_status(qn_matmul(b->ctx, NULL, NULL, 0), QN_E_ARGUMENT);
    assert_memory_equal(&error, &untouched, sizeof error);
    /* One from the future is read as far as it is known. */
    struct {
        qn_matmul_args now;
        size_t more;
    } later = {.now = b->m, .more = 1};
    later.now.size = sizeof later;
    check_words(&error, qn_matmul(b->ctx, &later.now, NULL, 0), QN_E_VERSION, "does not have");
    bench_free(b);
}

/* ---- what a plan was not made for ------------------------------------------------------------ */

/* clang-format off */
static void run_rows(struct bench *b) { b->m.x.shape[0] = b->m.y.shape[0] = M; }
static void run_bias_type(struct bench *b) { b->m.epilogue.bias.dtype = QN_F16; }
static void run_bias_none(struct bench *b) { b->m.epilogue.bias = qn_tensor_none(); }
static void run_residual(struct bench *b) { b->m.epilogue.residual = b->m.y; }
static void run_x_type(struct bench *b) { b->m.x.dtype = QN_BF16; }
static void run_y_type(struct bench *b) { b->m.y.dtype = QN_F16; }
static void run_col_scale(struct bench *b)
{
    b->m.epilogue.col_scale = qn_tensor_1d(b->bias, QN_F32, N);
}
static void run_strategy(struct bench *b) { b->m.strategy = QN_STRATEGY_INT8_ROW; }
static void run_symmetric(struct bench *b) { b->m.quant.symmetric = 1; }
static void run_shape(struct bench *b)
{
    b->m.w = b->other_shape;
    b->m.y.shape[1] = b->m.y.stride[0] = N + 8;
    b->m.epilogue.bias.shape[0] = N + 8;
}
static void run_format(struct bench *b) { b->m.w = b->other_format; }
static void run_gate(struct bench *b)
{
    b->m.more = &b->more;
    b->more.gate = QN_GATE_PAIRS;
    b->m.y = qn_tensor_2d(b->y, QN_F32, M - 1, N / 2);
}
/* clang-format on */

static void test_other_problems(void **state)
{
    static const struct {
        void (*spoil)(struct bench *);
        qn_status status;
        const char *word;
    } others[] = {
        {run_rows, QN_E_SHAPE, "there are 4 rows; the plan is for 3"},
        {run_bias_type, QN_E_DTYPE, "bias has type f16; the plan is for f32"},
        {run_bias_none, QN_E_DTYPE, "bias is none; the plan was made with one"},
        {run_residual, QN_E_DTYPE, "residual is given; the plan was made without one"},
        {run_x_type, QN_E_DTYPE, "x has type bf16; the plan is for f32"},
        {run_y_type, QN_E_DTYPE, "y has type f16; the plan is for f32"},
        {run_col_scale, QN_E_DTYPE, "col_scale is given"},
        {run_strategy, QN_E_ARGUMENT, "strategy is int8-row; the plan is for float"},
        {run_symmetric, QN_E_ARGUMENT, "quant.symmetric is 1; the plan is for 0"},
        {run_shape, QN_E_SHAPE, "[32, 64]"},
        {run_format, QN_E_LAYOUT, "packed in another way"},
        {run_gate, QN_E_ARGUMENT, "gate is 2; the plan is for 0"},
    };
    struct bench *b = bench_make();
    qn_error error;
    qn_plan *plan = NULL;
    (void)state;
    memset(&error, 0, sizeof error);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        bench_args(b, &error);
        b->m.x.shape[0] = b->m.y.shape[0] = M - 1;
        b->m.epilogue.bias = qn_tensor_1d(b->bias, QN_F32, N);
        assert_ok(qn_matmul_plan(b->ctx, &b->m, &plan, NULL));
        others[i].spoil(b);
        check_words(&error, qn_matmul_run(plan, &b->m, NULL, 0), others[i].status, others[i].word);
        qn_plan_destroy(plan);
    }
    bench_args(b, &error);
    b->m.strategy = QN_STRATEGY_INT8_STATIC;
    b->m.w = b->plain;
    b->m.x = qn_tensor_2d(b->x8, QN_I8, M, K);
    assert_ok(qn_matmul_plan(b->ctx, &b->m, &plan, NULL));
    b->m.quant.x_zero = 5;
    check_words(&error, qn_matmul_run(plan, &b->m, NULL, 0), QN_E_ARGUMENT, "x_zero is 5");
    qn_plan_destroy(plan);
    bench_args(b, &error);
    by_ids(b);
    b->g.strategy = QN_STRATEGY_FP8_ROW;
    b->g.x.shape[0] = b->g.y.shape[0] = b->g.ids.shape[0] = b->g.x_rows.shape[0] = M - 1;
    assert_ok(qn_grouped_plan(b->ctx, &b->g, &plan, NULL));
    b->g.x.shape[0] = M;
    check_words(&error, qn_grouped_run(plan, &b->g, NULL, 0), QN_E_SHAPE, "x has 4 rows");
    qn_plan_destroy(plan);
    bench_free(b);
}

static void test_scratch(void **state)
{
    struct bench *b = bench_make(); /* its context has no arena */
    qn_error error;
    size_t bytes = 0;
    (void)state;
    memset(&error, 0, sizeof error);
    bench_args(b, &error);
    b->m.strategy = QN_STRATEGY_INT8_ROW;
    assert_ok(qn_matmul_scratch(b->ctx, &b->m, &bytes));
    assert_true(bytes > 0);
    uint8_t *scratch = take(bytes + 64);
    check_words(&error, qn_matmul(b->ctx, &b->m, NULL, 0), QN_E_SCRATCH, "arena");
    check_words(&error, qn_matmul(b->ctx, &b->m, scratch, bytes - 1), QN_E_SCRATCH, "are needed");
    check_words(&error, qn_matmul(b->ctx, &b->m, scratch + 8, bytes), QN_E_ALIGN, "64 bytes");
    free(scratch);
    bench_free(b);
}

/* Plans of experts and of images. */
static void test_other_geometry(void **state)
{
    struct bench *b = bench_make();
    qn_error error;
    qn_plan *plan = NULL;
    (void)state;
    memset(&error, 0, sizeof error);
    bench_args(b, &error);
    assert_ok(qn_grouped_plan(b->ctx, &b->g, &plan, NULL));
    b->g.n_experts = E - 1;
    b->g.offsets.shape[0] = E;
    check_words(&error, qn_grouped_run(plan, &b->g, NULL, 0), QN_E_SHAPE, "there are 2 experts");
    qn_plan_destroy(plan);
    assert_ok(qn_conv2d_plan(b->ctx, &b->c, &plan, NULL));
    b->c.stride[0] = 2;
    assert_ok(qn_conv2d_shape(&b->c));
    check_words(&error, qn_conv2d_run(plan, &b->c, NULL, 0), QN_E_SHAPE, "image");
    qn_plan_destroy(plan);
    b->c.size = offsetof(qn_conv_args, y);
    b->c.error = NULL;
    assert_status(qn_conv2d_shape(&b->c), QN_E_ARGUMENT);
    bench_free(b);
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_direct_calls),   cmocka_unit_test(test_every_call),
        cmocka_unit_test(test_shapes),         cmocka_unit_test(test_short_structs),
        cmocka_unit_test(test_other_problems), cmocka_unit_test(test_scratch),
        cmocka_unit_test(test_other_geometry),
    };
    prints = argc > 1 && strcmp(argv[1], "--print") == 0;
    return cmocka_run_group_tests(tests, NULL, NULL);
}
