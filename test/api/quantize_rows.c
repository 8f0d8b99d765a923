/* SPDX-License-Identifier: Apache-2.0 */
/* qn_quantize_rows(): values come back within half a step, sums are sums, blocks may end short;
 * bad arguments. */
#include "api.h"

enum { M = 4, K = 70 };

struct bench {
    qn_ctx *ctx;
    float x[M * K];
    int8_t codes[M * K];
    float scale[M * K], offset[M * K];
    int32_t sum[M * K];
    qn_quantize_rows_args args;
};

static void bench_args(struct bench *b, int64_t block, bool asymmetric, qn_dtype codes)
{
    const int64_t blocks = block == 0 ? 1 : (K + block - 1) / block;
    qn_quantize_rows_args_init(&b->args);
    b->args.x = qn_tensor_2d(b->x, QN_F32, M, K);
    b->args.codes = qn_tensor_2d(b->codes, codes, M, K);
    b->args.scale = qn_tensor_2d(b->scale, QN_F32, M, blocks);
    if (asymmetric)
        b->args.offset = qn_tensor_2d(b->offset, QN_F32, M, blocks);
    b->args.sum = qn_tensor_2d(b->sum, QN_I32, M, blocks);
    b->args.block = block;
    memset(b->codes, 0x33, sizeof b->codes);
}

static int setup(void **state)
{
    struct bench *b = calloc(1, sizeof *b);
    b->ctx = ctx_make(2);
    fill_reals(b->x, M * K, 3);
    *state = b;
    return 0;
}

static int teardown(void **state)
{
    struct bench *b = *state;
    qn_ctx_destroy(b->ctx);
    free(b);
    return 0;
}

static void check(struct bench *b, int64_t block, bool asymmetric, qn_dtype codes)
{
    const int64_t width = block == 0 ? K : block, blocks = (K + width - 1) / width;
    bench_args(b, block, asymmetric, codes);
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
    for (int64_t r = 0; r < M; r++) {
        for (int64_t s = 0; s < blocks; s++) {
            const int64_t at = r * blocks + s;
            int32_t sum = 0;
            float lo = 0, hi = 0;
            for (int64_t p = s * width; p < K && p < (s + 1) * width; p++) {
                const int code =
                    codes == QN_U8 ? (uint8_t)b->codes[r * K + p] : b->codes[r * K + p];
                const float back = b->scale[at] * (float)code + (asymmetric ? b->offset[at] : 0.0f);
                const float x = b->x[r * K + p];
                assert_true(fabsf(back - x) <= 0.501f * b->scale[at]);
                sum += code;
                lo = fminf(lo, x);
                hi = fmaxf(hi, x);
            }
            assert_int_equal(sum, b->sum[at]);
            /* No step is wider than it must be. */
            assert_true(b->scale[at] <=
                        1.001f * (asymmetric ? (hi - lo) / 255 : fmaxf(hi, -lo) / 127));
        }
    }
}

static void test_values(void **state)
{
    static const int64_t blocks[] = {0, 1, 32, 33, K, 4 * K};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) {
        check(*state, blocks[i], false, QN_I8);
        check(*state, blocks[i], true, QN_I8);
        check(*state, blocks[i], true, QN_U8);
    }
}

/* Strided rows, no sums, nothing at all. */
static void test_shapes(void **state)
{
    struct bench *b = *state;
    int8_t dense[M * K / 2];
    bench_args(b, 0, false, QN_I8);
    b->args.x.shape[1] = b->args.codes.shape[1] = K / 2;
    b->args.sum = qn_tensor_none();
    assert_ok(qn_quantize_rows(b->ctx, &b->args)); /* the left half of rows of K */
    for (int r = 0; r < M; r++) {
        for (int p = K / 2; p < K; p++)
            assert_int_equal(b->codes[r * K + p], 0x33);
        memcpy(dense + r * K / 2, b->codes + r * K, K / 2);
    }
    for (int r = 0; r < M; r++)
        memmove(b->x + r * K / 2, b->x + r * K, K / 2 * sizeof *b->x);
    bench_args(b, 0, false, QN_I8);
    b->args.x = qn_tensor_2d(b->x, QN_F32, M, K / 2);
    b->args.codes = qn_tensor_2d(b->codes, QN_I8, M, K / 2);
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
    assert_memory_equal(dense, b->codes, sizeof dense);
    fill_reals(b->x, M * K, 3);
    bench_args(b, 32, true, QN_I8);
    b->args.x.shape[0] = b->args.codes.shape[0] = b->args.scale.shape[0] = 0;
    b->args.offset.shape[0] = b->args.sum.shape[0] = 0;
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
    bench_args(b, 32, true, QN_I8);
    b->args.x.shape[1] = b->args.codes.shape[1] = b->args.scale.shape[1] = 0;
    b->args.offset.shape[1] = b->args.sum.shape[1] = 0;
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
    assert_int_equal(b->codes[0], 0x33);
    /* Rows of length 0 have a scale of 0 and no address. */
    bench_args(b, 0, false, QN_I8);
    memset(b->scale, 0x44, sizeof b->scale);
    b->args.x.shape[1] = b->args.codes.shape[1] = 0;
    b->args.x.data = b->args.codes.data = NULL;
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
    for (int r = 0; r < M; r++)
        assert_true(b->scale[r] == 0.0f);
}

static uint8_t zeros[M * K];

static void linear_args(struct bench *b, int64_t block, qn_dtype codes, bool given)
{
    bench_args(b, block < 0 ? 0 : block, false, codes);
    b->args.block = block;
    b->args.zero = qn_tensor_2d(zeros, codes, M, b->args.scale.shape[1]);
    b->args.given = given;
    if (block < 0)
        b->args.scale.shape[0] = b->args.zero.shape[0] = 1;
}

/* ONNX's own example of DynamicQuantizeLinear; then values that no code is near: NaN, infinities,
 * numbers beyond the range. */
static void test_onnx(void **state)
{
    struct bench *b = *state;
    static const float x[6] = {0.0f, 2.0f, -3.0f, -2.5f, 1.34f, 0.5f};
    static const uint8_t codes[6] = {153, 255, 0, 26, 221, 179};
    linear_args(b, QN_GROUP_PER_TENSOR, QN_U8, false);
    b->args.x = qn_tensor_2d((void *)(uintptr_t)x, QN_F32, 1, 6);
    b->args.codes = qn_tensor_2d(b->codes, QN_U8, 1, 6);
    b->args.sum = qn_tensor_2d(b->sum, QN_I32, 1, 1);
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
    assert_true(b->scale[0] == 5.0f / 255.0f);
    assert_int_equal(zeros[0], 153);
    assert_memory_equal(b->codes, codes, sizeof codes);
    assert_int_equal(b->sum[0], 153 + 255 + 0 + 26 + 221 + 179);
    /* The same with its scale and zero point given; a NaN counts as 0, infinity saturates. */
    memset(b->codes, 0x33, sizeof b->codes);
    b->args.given = 1;
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
    assert_memory_equal(b->codes, codes, sizeof codes);
    float odd[6] = {NAN, INFINITY, -INFINITY, 1e30f, -0.0f, 0.5f};
    static const uint8_t odd_codes[6] = {153, 255, 0, 255, 153, 179};
    b->args.x.data = odd;
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
    assert_memory_equal(b->codes, odd_codes, sizeof odd_codes);
    b->args.given = 0;
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
    assert_true(isnan(b->scale[0]));
    assert_int_equal(zeros[0], 0);
    for (int i = 0; i < 6; i++)
        assert_int_equal(b->codes[i], 0);
    /* Nothing but zeros. */
    memset(odd, 0, sizeof odd);
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
    assert_true(b->scale[0] == 1.0f);
    assert_int_equal(zeros[0], 0);
    /* A range that f32 does not hold. */
    odd[0] = 3e38f;
    odd[1] = -3e38f;
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
    assert_true(b->scale[0] > 2e36f && b->scale[0] < 3e36f);
    assert_int_equal((uint8_t)b->codes[0], 255);
    assert_int_equal(b->codes[1], 0);
}

static void refuse_linear(struct bench *b, qn_status status, const char *word)
{
    qn_error error = {QN_OK, -1, ""};
    b->args.error = &error;
    assert_int_equal(qn_quantize_rows(b->ctx, &b->args), status);
    if (strstr(error.text, word) == NULL)
        fail_msg("'%s' does not say '%s'", error.text, word);
    for (size_t i = 0; i < sizeof b->codes; i++)
        assert_int_equal(b->codes[i], 0x33);
    linear_args(b, 32, QN_U8, true);
    for (int i = 0; i < M * K; i++)
        b->scale[i] = 0.5f;
}

static void test_bad_linear(void **state)
{
    struct bench *b = *state;
    linear_args(b, 32, QN_U8, true);
    for (int i = 0; i < M * K; i++)
        b->scale[i] = 0.5f;
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
    linear_args(b, 32, QN_U8, true);
    b->scale[5] = 0.0f;
    refuse_linear(b, QN_E_VALUE, "scale[1, 2]");
    b->scale[0] = NAN;
    refuse_linear(b, QN_E_VALUE, "scale[0, 0]");
    b->args.given = 2;
    refuse_linear(b, QN_E_ARGUMENT, "given");
    b->args.reserved = 1;
    refuse_linear(b, QN_E_ARGUMENT, "reserved");
    b->args.block = -1;
    refuse_linear(b, QN_E_ARGUMENT, "block");
    b->args.offset = qn_tensor_2d(b->offset, QN_F32, M, 3);
    refuse_linear(b, QN_E_ARGUMENT, "offset");
    b->args.zero.dtype = QN_I8;
    refuse_linear(b, QN_E_DTYPE, "zero");
    b->args.zero.shape[1] = 2;
    refuse_linear(b, QN_E_SHAPE, "zero");
    b->args.zero.data = b->codes;
    refuse_linear(b, QN_E_OVERLAP, "zero");
    b->args.block = QN_GROUP_PER_TENSOR;
    refuse_linear(b, QN_E_SHAPE, "scale");
    b->args.given = 0;
    b->args.zero.stride[0] = 1;
    refuse_linear(b, QN_E_STRIDE, "zero");
    b->args.zero = qn_tensor_none();
    b->args.given = 0;
    b->args.block = QN_GROUP_PER_TENSOR;
    refuse_linear(b, QN_E_ARGUMENT, "block");
}

/* clang-format off */
static void spoil_block(struct bench *b) { b->args.block = -1; }
static void spoil_x_rank(struct bench *b) { b->args.x.rank = 1; }
static void spoil_x_dtype(struct bench *b) { b->args.x.dtype = QN_F64; }
static void spoil_x_data(struct bench *b) { b->args.x.data = NULL; }
static void spoil_x_align(struct bench *b) { b->args.x.data = (char *)b->x + 1; }
static void spoil_x_stride(struct bench *b) { b->args.x.stride[0] = -K; }
static void spoil_codes_shape(struct bench *b) { b->args.codes.shape[1] = K - 1; }
static void spoil_codes_dtype(struct bench *b) { b->args.codes.dtype = QN_I16; }
static void spoil_codes_unsigned(struct bench *b)
{
    b->args.codes.dtype = QN_U8;
    b->args.offset = qn_tensor_none();
}
static void spoil_codes_rows(struct bench *b) { b->args.codes.stride[0] = K - 1; }
static void spoil_codes_data(struct bench *b) { b->args.codes.data = NULL; }
static void spoil_codes_on_x(struct bench *b) { b->args.codes.data = b->x; }
static void spoil_scale_none(struct bench *b) { b->args.scale = qn_tensor_none(); }
static void spoil_scale_shape(struct bench *b) { b->args.scale.shape[1] = 2; }
static void spoil_scale_dtype(struct bench *b) { b->args.scale.dtype = QN_F16; }
static void spoil_scale_rows(struct bench *b) { b->args.scale.stride[0] = 1; }
static void spoil_offset_shape(struct bench *b) { b->args.offset.shape[0] = M - 1; }
static void spoil_offset_on_scale(struct bench *b) { b->args.offset.data = b->scale + 1; }
static void spoil_sum_dtype(struct bench *b) { b->args.sum.dtype = QN_I64; }
static void spoil_sum_align(struct bench *b) { b->args.sum.data = (char *)b->sum + 2; }
static void spoil_sum_on_codes(struct bench *b) { b->args.sum.data = b->codes; }
static void spoil_device(struct bench *b) { b->args.scale.device.kind = QN_CUDA; }
static void spoil_size(struct bench *b) { b->args.size = 3; }
/* clang-format on */

static const struct bad {
    const char *name;
    void (*spoil)(struct bench *);
    qn_status status;
} bads[] = {
    {"block", spoil_block, QN_E_ARGUMENT},
    {"rank of x", spoil_x_rank, QN_E_SHAPE},
    {"dtype of x", spoil_x_dtype, QN_E_DTYPE},
    {"x NULL", spoil_x_data, QN_E_ARGUMENT},
    {"x misaligned", spoil_x_align, QN_E_ALIGN},
    {"stride of x", spoil_x_stride, QN_E_STRIDE},
    {"shape of codes", spoil_codes_shape, QN_E_SHAPE},
    {"dtype of codes", spoil_codes_dtype, QN_E_DTYPE},
    {"symmetric u8", spoil_codes_unsigned, QN_E_DTYPE},
    {"rows of codes overlap", spoil_codes_rows, QN_E_STRIDE},
    {"codes NULL", spoil_codes_data, QN_E_ARGUMENT},
    {"codes on x", spoil_codes_on_x, QN_E_OVERLAP},
    {"no scale", spoil_scale_none, QN_E_SHAPE},
    {"shape of scale", spoil_scale_shape, QN_E_SHAPE},
    {"dtype of scale", spoil_scale_dtype, QN_E_DTYPE},
    {"rows of scale overlap", spoil_scale_rows, QN_E_STRIDE},
    {"shape of offset", spoil_offset_shape, QN_E_SHAPE},
    {"offset on scale", spoil_offset_on_scale, QN_E_OVERLAP},
    {"dtype of sum", spoil_sum_dtype, QN_E_DTYPE},
    {"sum misaligned", spoil_sum_align, QN_E_ALIGN},
    {"sum on codes", spoil_sum_on_codes, QN_E_OVERLAP},
    {"device of scale", spoil_device, QN_E_DEVICE},
    {"size", spoil_size, QN_E_ARGUMENT},
};

static void test_bad(void **state)
{
    struct bench *b = *state;
    for (size_t i = 0; i < sizeof bads / sizeof *bads; i++) {
        bench_args(b, 32, true, QN_I8);
        memset(b->scale, 0x44, sizeof b->scale);
        bads[i].spoil(b);
        const qn_status status = qn_quantize_rows(b->ctx, &b->args);
        if (status != bads[i].status)
            fail_msg("%s: %s", bads[i].name, qn_status_name(status));
        for (size_t k = 0; k < sizeof b->codes; k++)
            assert_int_equal(b->codes[k], 0x33);
        for (size_t k = 0; k < sizeof b->scale; k++)
            assert_int_equal(((const char *)b->scale)[k], 0x44);
    }
    assert_status(qn_quantize_rows(NULL, &b->args), QN_E_ARGUMENT);
    assert_status(qn_quantize_rows(b->ctx, NULL), QN_E_ARGUMENT);
    /* A row whose sum of codes may not fit. */
    bench_args(b, 0, false, QN_I8);
    b->args.x.shape[1] = b->args.codes.shape[1] = ((int64_t)1 << 23) + 1;
    b->args.x.shape[0] = b->args.codes.shape[0] = b->args.scale.shape[0] = b->args.sum.shape[0] = 0;
    assert_status(qn_quantize_rows(b->ctx, &b->args), QN_E_ARGUMENT);
    b->args.sum = qn_tensor_none();
    assert_ok(qn_quantize_rows(b->ctx, &b->args));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_values), cmocka_unit_test(test_shapes),
        cmocka_unit_test(test_onnx),   cmocka_unit_test(test_bad_linear),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
