/* SPDX-License-Identifier: Apache-2.0 */
/* Programs compiled against another version: argument structs that end earlier keep working,
 * those that end later do as long as what is new stays zero. */
#include "api.h"

enum { M = 2, N = 20, K = 64 };
static const struct shape shape = {.n = N, .k = K};

/* Structs of a later version: three words more. */
struct later_matmul {
    qn_matmul_args now;
    size_t more[3];
};
struct later_grouped {
    qn_grouped_args now;
    size_t more[3];
};
struct later_conv {
    qn_conv_args now;
    size_t more[3];
};
struct later_rows {
    qn_quantize_rows_args now;
    size_t more[3];
};
struct later_parts {
    qn_weight_parts now;
    size_t more[3];
};
struct later_quantize {
    qn_quantize_options now;
    size_t more[3];
};
struct later_options {
    qn_pack_options now;
    size_t more[3];
};
struct later_info {
    qn_packed_info now;
    size_t more[3];
};

static void test_matmul(void **state)
{
    (void)state;
    qn_ctx *ctx = ctx_make(1);
    qn_packed *w = packed_make(ctx, "int4:g32", shape, 1, NULL);
    float x[M * K], y[M * N], expected[M * N];
    struct later_matmul args = {.more = {0}};
    fill_reals(x, M * K, 2);
    qn_matmul_args_init(&args.now);
    args.now.w = w;
    args.now.x = qn_tensor_2d(x, QN_F32, M, K);
    args.now.y = qn_tensor_2d(expected, QN_F32, M, N);
    assert_ok(matmul_in_arena(ctx, &args.now));

    /* Before `kernel`, before `quant`, before the epilogue existed: bytes behind the end are
     * garbage. */
    static const size_t sizes[] = {
        offsetof(qn_matmul_args, kernel), offsetof(qn_matmul_args, quant),
        offsetof(qn_matmul_args, strategy), offsetof(qn_matmul_args, epilogue)};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        struct later_matmul old = args;
        memset((char *)&old + sizes[i], 0x5a, sizeof old - sizes[i]);
        memset(y, 0, sizeof y);
        old.now.size = sizes[i];
        old.now.y.data = y;
        assert_ok(matmul_in_arena(ctx, &old.now));
        assert_memory_equal(y, expected, sizeof y);
        qn_plan *plan = NULL;
        assert_ok(qn_matmul_plan(ctx, &old.now, &plan, NULL));
        assert_ok(run_in_arena(ctx, plan, &old.now));
        qn_plan_destroy(plan);
    }
    args.now.size = sizeof args;
    args.now.y.data = y;
    memset(y, 0, sizeof y);
    assert_ok(matmul_in_arena(ctx, &args.now));
    assert_memory_equal(y, expected, sizeof y);
    for (int i = 0; i < 3; i++) {
        qn_plan *plan = NULL;
        args.more[i] = (size_t)1 << 40;
        assert_error(qn_matmul_plan(ctx, &args.now, &plan, &err), QN_E_VERSION, qn_version());
        assert_status(qn_matmul(ctx, &args.now, NULL, 0), QN_E_VERSION);
        args.more[i] = 0;
    }
    /* Structs that nobody initialised. */
    static const size_t wrong[] = {0,       1, 8, 20, sizeof(qn_matmul_args) + 1, (size_t)1 << 40,
                                   SIZE_MAX};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        args.now.size = wrong[i];
        assert_status(qn_matmul(ctx, &args.now, NULL, 0), QN_E_ARGUMENT);
    }
    /* Too old to have had a w: valid, and w is missing. */
    args.now.size = 2 * sizeof(size_t) + 24;
    assert_true(qn_matmul(ctx, &args.now, NULL, 0) < 0);
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
}

static void test_other_operations(void **state)
{
    (void)state;
    qn_ctx *ctx = ctx_make(1);
    qn_packed *w = packed_make(ctx, "int4:g32", shape, 1, NULL);
    const qn_packed *experts[1] = {w};
    float x[M * K], y[M * N];
    int32_t offsets[2] = {0, M};
    int8_t codes[M * K];
    float scale[M];
    fill_reals(x, M * K, 2);
    struct later_grouped grouped = {.more = {0}};
    qn_grouped_args_init(&grouped.now);
    grouped.now.w = experts;
    grouped.now.n_experts = 1;
    grouped.now.x = qn_tensor_2d(x, QN_F32, M, K);
    grouped.now.y = qn_tensor_2d(y, QN_F32, M, N);
    grouped.now.offsets = qn_tensor_1d(offsets, QN_I32, 2);
    grouped.now.size = offsetof(qn_grouped_args, kernel);
    grouped.now.kernel = (const char *)1;
    assert_ok(grouped_in_arena(ctx, &grouped.now));
    grouped.now.kernel = NULL;
    grouped.now.size = sizeof grouped;
    assert_ok(grouped_in_arena(ctx, &grouped.now));
    grouped.more[2] = 1;
    assert_status(qn_grouped(ctx, &grouped.now, NULL, 0), QN_E_VERSION);

    struct later_conv conv = {.more = {0}};
    const int64_t x_shape[4] = {1, K, 1, M};
    qn_conv_args_init(&conv.now);
    conv.now.w = w;
    conv.now.x = qn_tensor_make(x, QN_F32, 4, x_shape);
    conv.now.y = qn_tensor_1d(y, QN_F32, 0);
    conv.now.size = offsetof(qn_conv_args, kernel);
    conv.now.kernel = (const char *)1;
    assert_ok(qn_conv2d_shape(&conv.now));
    assert_ok(conv2d_in_arena(ctx, &conv.now));
    assert_ok(conv_transpose2d_in_arena(ctx, &conv.now));
    conv.now.kernel = NULL;
    conv.now.size = sizeof conv;
    conv.more[0] = 1;
    assert_status(qn_conv2d(ctx, &conv.now, NULL, 0), QN_E_VERSION);
    assert_status(qn_conv2d_shape(&conv.now), QN_E_VERSION);
    assert_status(qn_conv_transpose2d(ctx, &conv.now, NULL, 0), QN_E_VERSION);

    struct later_rows rows = {.more = {0}};
    qn_quantize_rows_args_init(&rows.now);
    rows.now.x = qn_tensor_2d(x, QN_F32, M, K);
    rows.now.codes = qn_tensor_2d(codes, QN_I8, M, K);
    rows.now.scale = qn_tensor_2d(scale, QN_F32, M, 1);
    rows.now.block = 7;
    rows.now.size = offsetof(qn_quantize_rows_args, block);
    assert_ok(qn_quantize_rows(ctx, &rows.now));
    rows.now.block = 0;
    rows.now.size = sizeof rows;
    assert_ok(qn_quantize_rows(ctx, &rows.now));
    rows.more[1] = 1;
    assert_status(qn_quantize_rows(ctx, &rows.now), QN_E_VERSION);
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
}

static void test_packing(void **state)
{
    (void)state;
    qn_ctx *ctx = ctx_make(1);
    qn_weight *weight = weight_make(ctx, "int4:g32", shape, 1);
    qn_packed *packed = NULL;
    struct later_options options = {.more = {0}};
    struct later_info info = {.more = {7, 7, 7}};
    qn_pack_options_init(&options.now);
    options.now.size = offsetof(qn_pack_options, without_sums);
    options.now.without_sums = 99;
    assert_ok(qn_pack(ctx, weight, &options.now, &packed, NULL));
    qn_packed_info_init(&info.now);
    info.now.size = offsetof(qn_packed_info, x_block);
    info.now.x_block = -9;
    assert_ok(qn_packed_query(packed, &info.now));
    assert_int_equal(info.now.n, N);
    assert_int_equal(info.now.x_block, -9);
    info.now.size = sizeof info;
    assert_ok(qn_packed_query(packed, &info.now));
    assert_int_equal(info.now.size, sizeof info);
    assert_int_equal(info.more[2], 0);
    info.now.size = 4;
    assert_status(qn_packed_query(packed, &info.now), QN_E_ARGUMENT);
    qn_packed_destroy(packed);
    packed = NULL;
    options.now.without_sums = 0;
    options.now.size = sizeof options;
    options.more[0] = 1;
    size_t bytes;
    assert_error(qn_pack(ctx, weight, &options.now, &packed, &err), QN_E_VERSION, "field");
    assert_status(qn_pack_bytes(ctx, weight, &options.now, &bytes), QN_E_VERSION);
    assert_null(packed);
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
}

/* The parts of a weight on their way in and out, and to a file; what a quantizer is told. */
static void test_weights(void **state)
{
    (void)state;
    qn_ctx *ctx = ctx_make(1);
    qn_weight *weight = weight_make(ctx, "int4:g32", shape, 1), *other = NULL;
    qn_writer *writer = NULL;
    struct later_parts parts = {.more = {7, 7, 7}};
    struct later_quantize how = {.more = {0}};
    float dense[N * K];
    const qn_tensor w = qn_tensor_2d(dense, QN_F32, N, K);
    int64_t index;
    qn_weight_parts_init(&parts.now);
    parts.now.size = offsetof(qn_weight_parts, perm);
    parts.now.n_groups = -9;
    assert_ok(qn_weight_view(weight, &parts.now));
    assert_int_equal(parts.now.n_groups, -9);
    parts.now.size = sizeof parts;
    assert_ok(qn_weight_view(weight, &parts.now));
    assert_int_equal(parts.now.n_groups, 2);
    assert_int_equal(parts.more[2], 0);
    assert_ok(qn_weight_create(ctx, &parts.now, &other, NULL));
    qn_weight_destroy(other);
    assert_ok(qn_writer_create(ctx, "never-begun", &writer, NULL));
    assert_ok(qn_writer_add_weight(writer, "a", &parts.now, &index, NULL));
    parts.more[1] = 1;
    assert_error(qn_weight_create(ctx, &parts.now, &other, &err), QN_E_VERSION, "field");
    assert_error(qn_writer_add_weight(writer, "b", &parts.now, &index, &err), QN_E_VERSION,
                 "field");
    parts.now.size = 4;
    assert_status(qn_weight_view(weight, &parts.now), QN_E_ARGUMENT);
    assert_error(qn_weight_create(ctx, &parts.now, &other, &err), QN_E_ARGUMENT, "_init()");
    qn_writer_abort(writer, 0);

    fill_reals(dense, N * K, 3);
    qn_quantize_options_init(&how.now);
    assert_ok(qn_format_parse("int4:g32", &how.now.format, NULL));
    how.now.size = sizeof how;
    assert_ok(qn_quantize(ctx, &w, &how.now, &other, NULL));
    qn_weight_destroy(other);
    how.more[0] = 1;
    assert_error(qn_quantize(ctx, &w, &how.now, &other, &err), QN_E_VERSION, "field");
    how.now.size = 12;
    assert_error(qn_quantize(ctx, &w, &how.now, &other, &err), QN_E_ARGUMENT, "_init()");
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_matmul),
        cmocka_unit_test(test_other_operations),
        cmocka_unit_test(test_packing),
        cmocka_unit_test(test_weights),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
