/* SPDX-License-Identifier: Apache-2.0 */
/* qn_prepare(): rows quantized once give several products the bits that they have without, with x
 * out of reach; what cannot share rows is refused before y is touched. */
#include "api.h"

enum { K = 200, MOST_M = 70, MOST_N = 120 };

static qn_weight *weight_of(const qn_ctx *ctx, const char *spec, int64_t n, uint64_t seed,
                            const int32_t *perm, const float *prescale)
{
    qn_weight *plain = weight_make(ctx, spec, (struct shape){.n = n, .k = K}, seed), *made = NULL;
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    assert_ok(qn_weight_view(plain, &parts));
    if (parts.format.code == QN_CODE_INT)
        parts.table = NULL;
    parts.perm = perm;
    parts.prescale = prescale;
    assert_ok(qn_weight_create(ctx, &parts, &made, NULL));
    qn_weight_destroy(plain);
    return made;
}

static qn_packed *pack_of(const qn_ctx *ctx, const char *spec, int64_t n, uint64_t seed,
                          const int32_t *perm, const float *prescale)
{
    qn_weight *weight = weight_of(ctx, spec, n, seed, perm, prescale);
    qn_packed *packed = NULL;
    assert_ok(qn_pack(ctx, weight, NULL, &packed, NULL));
    qn_weight_destroy(weight);
    return packed;
}

static void *prepare(const qn_ctx *ctx, qn_prepare_args *args)
{
    size_t bytes = 0;
    assert_ok(qn_prepare_bytes(ctx, args, &bytes));
    uint8_t *memory = take(bytes + 64);
    assert_ok(qn_prepare(ctx, args, memory, bytes));
    assert_int_equal(memory[bytes], 0xa5);
    return memory;
}

struct inputs {
    float x[MOST_M * K], prescale[K];
    int32_t perm[K];
};

static void inputs_make(struct inputs *in)
{
    uint64_t seed = 5;
    fill_reals(in->x, MOST_M * K, 7);
    for (int i = 0; i < K; i++) {
        in->prescale[i] = 0.5f + 0.25f * draw_real(&seed);
        in->perm[i] = (i * 77 + 3) % K;
    }
}

/* Three weights read x: each product with prepared rows is the product without. */
static void check_three(qn_ctx *ctx, struct inputs *in, const char *const specs[3], bool ordered,
                        qn_prepare_args *args)
{
    static const int64_t ns[3] = {16, MOST_N, 33};
    static const int64_t ms[] = {0, 1, 3, 17, MOST_M};
    qn_packed *w[3];
    for (int i = 0; i < 3; i++)
        w[i] = pack_of(ctx, specs[i], ns[i], 3 + (uint64_t)i, ordered ? in->perm : NULL,
                       ordered ? in->prescale : NULL);
    for (size_t j = 0; j < sizeof ms / sizeof *ms; j++) {
        args->w = w[2];
        args->x = qn_tensor_2d(in->x, QN_F32, ms[j], K);
        void *memory = prepare(ctx, args);
        for (int i = 0; i < 3; i++) {
            static float y[MOST_M * MOST_N], z[MOST_M * MOST_N];
            const size_t bytes = (size_t)(ms[j] * ns[i]) * sizeof *y;
            qn_matmul_args product;
            qn_matmul_args_init(&product);
            product.w = w[i];
            product.strategy = args->strategy;
            product.quant = args->quant;
            product.x = args->x;
            product.y = qn_tensor_2d(y, QN_F32, ms[j], ns[i]);
            product.epilogue.act = QN_ACT_SILU;
            assert_ok(matmul_in_arena(ctx, &product));
            product.y.data = z;
            product.x.data = NULL;
            product.prepared = memory;
            memset(z, 0x7f, sizeof z);
            assert_ok(matmul_in_arena(ctx, &product));
            assert_memory_equal(y, z, bytes);
        }
        free(memory);
    }
    for (int i = 0; i < 3; i++)
        qn_packed_destroy(w[i]);
}

static void test_products(void **state)
{
    static const char *const blocks[3] = {"int4:g32:zp", "int8:g32", "nf4:g32"};
    static const char *const rows[3] = {"int4:pc", "int8:pc", "int3:pc:zp"};
    static struct inputs in;
    (void)state;
    inputs_make(&in);
    for (int32_t threads = 1; threads <= 3; threads++) {
        qn_ctx *ctx = ctx_make(threads);
        for (int which = 0; which < 6; which++) {
            qn_prepare_args args;
            qn_prepare_args_init(&args);
            args.strategy = which % 3 == 0 ? QN_STRATEGY_INT8_ROW : QN_STRATEGY_INT8_BLOCK;
            args.quant.symmetric = which % 3 == 1;
            const char *const ints[3] = {blocks[0], blocks[1], blocks[0]};
            check_three(ctx, &in, args.strategy == QN_STRATEGY_INT8_ROW ? rows : ints, which >= 3,
                        &args);
        }
        qn_ctx_destroy(ctx);
    }
}

/* Experts take rows of x in any order. */
static void test_experts(void **state)
{
    enum { EXPERTS = 3, ROWS = 11, TOKENS = 5, N = 24 };
    static const int32_t ids[ROWS] = {2, 0, -1, 1, 1, 0, 2, -7, 2, 2, 0};
    static const int32_t x_rows[ROWS] = {4, 0, 0, 1, 4, 4, 2, 99, 3, 0, 1};
    static const int32_t offsets[EXPERTS + 1] = {0, 4, 4, TOKENS};
    static struct inputs in;
    float y[ROWS * N], z[ROWS * N];
    qn_packed *w[EXPERTS];
    qn_ctx *ctx = ctx_make(2);
    (void)state;
    inputs_make(&in);
    for (int e = 0; e < EXPERTS; e++)
        w[e] = pack_of(ctx, "int4:g32:zp", N, 9 + (uint64_t)e, NULL, NULL);
    for (int which = 0; which < 4; which++) {
        const bool by_ids = which / 2 == 0;
        qn_prepare_args args;
        qn_grouped_args grouped;
        qn_prepare_args_init(&args);
        args.strategy = which % 2 == 0 ? QN_STRATEGY_INT8_ROW : QN_STRATEGY_INT8_BLOCK;
        args.w = w[1];
        args.x = qn_tensor_2d(in.x, QN_F32, TOKENS, K);
        void *memory = prepare(ctx, &args);
        qn_grouped_args_init(&grouped);
        grouped.w = (const qn_packed *const *)w;
        grouped.n_experts = EXPERTS;
        grouped.strategy = args.strategy;
        grouped.x = args.x;
        grouped.y = qn_tensor_2d(y, QN_F32, by_ids ? ROWS : TOKENS, N);
        if (by_ids) {
            grouped.ids = qn_tensor_1d((void *)(uintptr_t)ids, QN_I32, ROWS);
            grouped.x_rows = qn_tensor_1d((void *)(uintptr_t)x_rows, QN_I32, ROWS);
        } else {
            grouped.offsets = qn_tensor_1d((void *)(uintptr_t)offsets, QN_I32, EXPERTS + 1);
        }
        memset(y, 0x11, sizeof y);
        memset(z, 0x11, sizeof z);
        assert_ok(grouped_in_arena(ctx, &grouped));
        grouped.y.data = z;
        grouped.x.data = NULL;
        grouped.prepared = memory;
        assert_ok(grouped_in_arena(ctx, &grouped));
        assert_memory_equal(y, z, sizeof y);
        free(memory);
    }
    for (int e = 0; e < EXPERTS; e++)
        qn_packed_destroy(w[e]);
    qn_ctx_destroy(ctx);
}

/* Neither the preparing nor a product with it allocates; the plan says that rows come prepared. */
static void test_plan(void **state)
{
    static struct inputs in;
    struct counter counter = {0};
    qn_ctx_options options;
    qn_ctx *ctx = NULL;
    qn_plan *plan = NULL;
    float y[33];
    (void)state;
    inputs_make(&in);
    options_counted(&options, &counter);
    options.n_threads = 2;
    assert_ok(qn_ctx_create(&options, &ctx, NULL));
    qn_packed *w = pack_of(ctx, "int4:pc", 33, 1, NULL, NULL);
    qn_matmul_args args;
    qn_prepare_args rows;
    qn_matmul_args_init(&args);
    qn_prepare_args_init(&rows);
    args.w = rows.w = w;
    args.strategy = QN_STRATEGY_INT8_ROW;
    args.x = rows.x = qn_tensor_2d(in.x, QN_F32, 1, K);
    args.y = qn_tensor_2d(y, QN_F32, 1, 33);
    args.prepared = y; /* not looked at */
    assert_ok(qn_matmul_plan(ctx, &args, &plan, NULL));
    char text[4096];
    qn_plan_explain(plan, text, sizeof text);
    assert_non_null(strstr(text, "rows of x: prepared before"));
    qn_matmul_explain(ctx, &args, text, sizeof text);
    assert_non_null(strstr(text, "rows of x: prepared before"));
    const size_t bytes = qn_plan_scratch_bytes(plan);
    void *scratch = take(bytes), *memory = prepare(ctx, &rows);
    const int64_t calls = counter.calls;
    args.prepared = memory;
    assert_ok(qn_matmul_run(plan, &args, scratch, bytes));
    size_t needed = 0;
    assert_ok(qn_prepare_bytes(ctx, &rows, &needed));
    assert_ok(qn_prepare(ctx, &rows, memory, needed));
    assert_int_equal(counter.calls, calls);
    args.prepared = NULL;
    assert_ok(qn_matmul_run(plan, &args, scratch, bytes)); /* the plan serves both */
    free(memory);
    free(scratch);
    qn_plan_destroy(plan);
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
    assert_int_equal(counter.live, 0);
}

/* The status and the words of a call that fails, and y as it was. */
static void refused(qn_ctx *ctx, qn_matmul_args *args, qn_status status, const char *word)
{
    qn_error error = {QN_OK, -1, ""};
    float *const y = args->y.data;
    args->error = &error;
    y[0] = -3.0f;
    const qn_status got = matmul_in_arena(ctx, args);
    assert_int_equal(got, status);
    if (strstr(error.text, word) == NULL)
        fail_msg("'%s' does not say '%s'", error.text, word);
    assert_true(y[0] == -3.0f);
    args->error = NULL;
}

static void test_bad_products(void **state)
{
    static struct inputs in;
    static float y[MOST_M * MOST_N];
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    inputs_make(&in);
    qn_packed *w = pack_of(ctx, "int4:g32:zp", 16, 1, NULL, NULL);
    qn_packed *other_group = pack_of(ctx, "int4:g64:zp", 16, 1, NULL, NULL);
    qn_packed *ordered = pack_of(ctx, "int4:g32:zp", 16, 1, in.perm, NULL);
    qn_packed *scaled = pack_of(ctx, "int4:g32:zp", 16, 1, NULL, in.prescale);
    qn_prepare_args rows;
    qn_prepare_args_init(&rows);
    rows.w = w;
    rows.x = qn_tensor_2d(in.x, QN_F32, 3, K);
    rows.strategy = QN_STRATEGY_INT8_BLOCK;
    uint8_t *memory = prepare(ctx, &rows);
    qn_matmul_args good, args;
    qn_matmul_args_init(&good);
    good.w = w;
    good.strategy = QN_STRATEGY_INT8_BLOCK;
    good.x = qn_tensor_2d(NULL, QN_F32, 3, K);
    good.y = qn_tensor_2d(y, QN_F32, 3, 16);
    good.prepared = memory;
    assert_ok(matmul_in_arena(ctx, &good));
    args = good;
    args.w = other_group;
    refused(ctx, &args, QN_E_LAYOUT, "groups");
    args.w = ordered;
    refused(ctx, &args, QN_E_LAYOUT, "act-order");
    args.w = scaled;
    refused(ctx, &args, QN_E_LAYOUT, "prescale");
    args = good;
    args.strategy = QN_STRATEGY_INT8_ROW;
    refused(ctx, &args, QN_E_ARGUMENT, "int8-block");
    args.strategy = QN_STRATEGY_FLOAT;
    refused(ctx, &args, QN_E_ARGUMENT, "int8-row or int8-block");
    args = good;
    args.quant.symmetric = 1;
    refused(ctx, &args, QN_E_ARGUMENT, "symmetric");
    args = good;
    args.x.shape[0] = args.y.shape[0] = 2;
    refused(ctx, &args, QN_E_SHAPE, "[3, 200]");
    args = good;
    args.x.dtype = QN_F16;
    refused(ctx, &args, QN_E_DTYPE, "f16");
    args = good;
    args.prepared = memory + 8;
    refused(ctx, &args, QN_E_ALIGN, "prepared");
    args = good;
    args.prepared = memory + 64;
    refused(ctx, &args, QN_E_VALUE, "qn_prepare");
    args = good;
    args.y.data = memory + 192;
    refused(ctx, &args, QN_E_OVERLAP, "prepared");
    free(memory);
    qn_packed_destroy(w);
    qn_packed_destroy(other_group);
    qn_packed_destroy(ordered);
    qn_packed_destroy(scaled);
    qn_ctx_destroy(ctx);
}

static void refuse_prepare(const qn_ctx *ctx, qn_prepare_args *args, void *memory, size_t bytes,
                           qn_status status, const char *word)
{
    qn_error error = {QN_OK, -1, ""};
    args->error = &error;
    assert_int_equal(qn_prepare(ctx, args, memory, bytes), status);
    if (strstr(error.text, word) == NULL)
        fail_msg("'%s' does not say '%s'", error.text, word);
    args->error = NULL;
}

static void test_bad_arguments(void **state)
{
    static struct inputs in;
    qn_ctx *ctx = ctx_make(1);
    qn_prepare_args good, args;
    size_t bytes = 0;
    (void)state;
    inputs_make(&in);
    qn_packed *w = pack_of(ctx, "int4:g32", 16, 1, NULL, NULL);
    qn_packed *conv = packed_make(ctx, "int4:g32", (struct shape){16, 64, 1, 1, 2}, 1, NULL);
    qn_prepare_args_init(&good);
    good.w = w;
    good.x = qn_tensor_2d(in.x, QN_F32, 3, K);
    assert_ok(qn_prepare_bytes(ctx, &good, &bytes));
    uint8_t *memory = take(bytes);
    assert_status(qn_prepare(NULL, &good, memory, bytes), QN_E_ARGUMENT);
    assert_status(qn_prepare(ctx, NULL, memory, bytes), QN_E_ARGUMENT);
    assert_status(qn_prepare_bytes(ctx, &good, NULL), QN_E_ARGUMENT);
    args = good;
    args.w = NULL;
    refuse_prepare(ctx, &args, memory, bytes, QN_E_ARGUMENT, "w is NULL");
    args.w = conv;
    refuse_prepare(ctx, &args, memory, bytes, QN_E_SHAPE, "convolution");
    args = good;
    args.strategy = QN_STRATEGY_INT8_STATIC;
    refuse_prepare(ctx, &args, memory, bytes, QN_E_ARGUMENT, "strategy");
    args = good;
    args.quant.symmetric = 2;
    refuse_prepare(ctx, &args, memory, bytes, QN_E_ARGUMENT, "symmetric");
    args = good;
    args.reserved = 1;
    refuse_prepare(ctx, &args, memory, bytes, QN_E_ARGUMENT, "reserved");
    args = good;
    args.x.dtype = QN_I8;
    refuse_prepare(ctx, &args, memory, bytes, QN_E_DTYPE, "x");
    args = good;
    args.x.shape[1] = K - 1;
    refuse_prepare(ctx, &args, memory, bytes, QN_E_SHAPE, "x");
    args = good;
    args.x.stride[1] = 2;
    refuse_prepare(ctx, &args, memory, bytes, QN_E_STRIDE, "x");
    args = good;
    args.x.data = NULL;
    refuse_prepare(ctx, &args, memory, bytes, QN_E_ARGUMENT, "x");
    args = good;
    args.x.data = memory + 128;
    refuse_prepare(ctx, &args, memory, bytes, QN_E_OVERLAP, "memory");
    refuse_prepare(ctx, &good, NULL, bytes, QN_E_ARGUMENT, "memory");
    refuse_prepare(ctx, &good, memory, bytes - 1, QN_E_SCRATCH, "memory");
    refuse_prepare(ctx, &good, memory + 8, bytes, QN_E_ALIGN, "memory");
    free(memory);
    qn_packed_destroy(w);
    qn_packed_destroy(conv);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),      cmocka_unit_test(test_experts),
        cmocka_unit_test(test_plan),          cmocka_unit_test(test_bad_products),
        cmocka_unit_test(test_bad_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
