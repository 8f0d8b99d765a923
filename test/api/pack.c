/* SPDX-License-Identifier: Apache-2.0 */
/* Packing through the public API: round trips of every named format, facts, layouts, bad
 * arguments, no memory. */
#include "api.h"

enum { N = 37, K = 96 };
static const struct shape shape = {.n = N, .k = K};

static void assert_same_weight(const qn_weight *a, const qn_weight *b)
{
    qn_weight_parts p, q;
    qn_weight_parts_init(&p);
    qn_weight_parts_init(&q);
    assert_ok(qn_weight_view(a, &p));
    assert_ok(qn_weight_view(b, &q));
    assert_memory_equal(&p.format, &q.format, offsetof(qn_format, superbits) + 4);
    assert_true(p.n == q.n && p.k == q.k && p.n_groups == q.n_groups && p.kh == q.kh &&
                p.kw == q.kw && p.conv_groups == q.conv_groups);
    const size_t groups = (size_t)(p.n * p.n_groups);
    assert_memory_equal(p.codes, q.codes, (size_t)(p.n * p.k));
    assert_memory_equal(p.scale, q.scale, groups * sizeof *p.scale);
    assert_int_equal(p.zero == NULL, q.zero == NULL);
    assert_int_equal(p.offset == NULL, q.offset == NULL);
    if (p.zero != NULL)
        assert_memory_equal(p.zero, q.zero, groups * sizeof *p.zero);
    if (p.offset != NULL)
        assert_memory_equal(p.offset, q.offset, groups * sizeof *p.offset);
    assert_int_equal(p.super_scale == NULL, q.super_scale == NULL);
    assert_int_equal(p.super_min == NULL, q.super_min == NULL);
    if (p.super_scale != NULL) {
        assert_memory_equal(p.super_scale, q.super_scale, (size_t)(p.n * p.n_supers) * 4);
        assert_memory_equal(p.sub_scale, q.sub_scale, (size_t)(p.n * p.n_groups) * 2);
    }
    if (p.super_min != NULL) {
        assert_memory_equal(p.super_min, q.super_min, (size_t)(p.n * p.n_supers) * 4);
        assert_memory_equal(p.sub_min, q.sub_min, (size_t)(p.n * p.n_groups) * 2);
    }
}

static void test_round_trips(void **state)
{
    (void)state;
    static const char *const more[] = {"int2:g16", "int3:g32:zp", "int4:g64:off", "int5:g20",
                                       "int6:pt",  "int8:pc",     "nf4:g64",      "e2m1:g32:e8m0",
                                       "fp8:pc",   "int4:g128"};
    qn_ctx *ctx = ctx_make(2);
    for (int32_t i = 0;; i++) {
        const char *named = qn_format_name(i);
        const size_t extra = (size_t)i;
        if (named == NULL && extra >= sizeof more / sizeof *more)
            break;
        for (int list = 0; list < 2; list++) {
            const char *spec = list == 0                            ? named
                               : extra < sizeof more / sizeof *more ? more[i]
                                                                    : NULL;
            if (spec == NULL)
                continue;
            qn_weight *weight = weight_make(ctx, spec, shape, (uint64_t)i), *back = NULL;
            qn_packed *packed = NULL;
            qn_packed_info info;
            size_t bytes = 0;
            assert_ok(qn_pack_bytes(ctx, weight, NULL, &bytes));
            assert_ok(qn_pack(ctx, weight, NULL, &packed, NULL));
            qn_packed_info_init(&info);
            assert_ok(qn_packed_query(packed, &info));
            assert_int_equal(info.bytes, bytes);
            assert_ok(qn_unpack(ctx, packed, &back, NULL));
            assert_same_weight(weight, back);
            qn_weight_destroy(weight);
            qn_weight_destroy(back);
            qn_packed_destroy(packed);
        }
    }
    qn_ctx_destroy(ctx);
}

/* Levels of scales are the last section: no byte of it may be another. */
static void test_damaged_levels(void **state)
{
    (void)state;
    static const char *const specs[] = {"q2_k", "q3_k", "q4_k", "q6_k", "q4_1"};
    enum { OUTPUTS = 20, COLUMNS = 256, LAST = 300 };
    static float dense[OUTPUTS * COLUMNS];
    qn_ctx *ctx = ctx_make(1);
    for (int i = 0; i < OUTPUTS * COLUMNS; i++)
        dense[i] = sinf((float)i);
    const qn_tensor t = qn_tensor_2d(dense, QN_F32, OUTPUTS, COLUMNS);
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++) {
        qn_quantize_options how;
        qn_pack_options options; /* a wide layout, which has the products, too */
        qn_weight *weight = NULL, *back = NULL;
        qn_packed *packed = NULL;
        size_t bytes = 0;
        qn_quantize_options_init(&how);
        assert_ok(qn_format_parse(specs[s], &how.format, NULL));
        assert_ok(qn_quantize(ctx, &t, &how, &weight, NULL));
        qn_pack_options_init(&options);
        options.layout = how.format.bits > 4 ? "q8n16" : "q4n16";
        assert_ok(qn_pack_bytes(ctx, weight, &options, &bytes));
        uint8_t *blob = aligned_alloc(64, (bytes + 63) / 64 * 64);
        assert_ok(qn_pack_into(ctx, weight, &options, blob, bytes, &packed, NULL));
        assert_ok(qn_packed_verify(ctx, packed, NULL));
        assert_ok(qn_unpack(ctx, packed, &back, NULL));
        assert_same_weight(weight, back);
        for (size_t at = bytes - LAST; at < bytes; at++) {
            blob[at] ^= (uint8_t)(1 << at % 8);
            if (qn_packed_verify(ctx, packed, NULL) == QN_OK)
                fail_msg("%s: byte %zu of %zu may be anything", specs[s], at, bytes);
            blob[at] ^= (uint8_t)(1 << at % 8);
        }
        qn_packed_destroy(packed);
        free(blob);
        qn_weight_destroy(weight);
        qn_weight_destroy(back);
    }
    qn_ctx_destroy(ctx);
}

static void test_facts(void **state)
{
    (void)state;
    qn_ctx *ctx = ctx_make(1);
    const struct shape s = {.n = 12, .k = 9 * 8, .kh = 3, .kw = 3, .groups = 4};
    qn_packed *packed = packed_make(ctx, "int4:g24:zp", s, 1, NULL);
    qn_packed_info info;
    qn_packed_info_init(&info);
    assert_ok(qn_packed_query(packed, &info));
    assert_int_equal(info.n, 12);
    assert_int_equal(info.k, 72);
    assert_int_equal(info.kh, 3);
    assert_int_equal(info.kw, 3);
    assert_int_equal(info.conv_groups, 4);
    assert_int_equal(info.device.kind, QN_CPU);
    assert_int_equal(info.format.group, 24);
    assert_int_equal(info.has_perm, 0);
    assert_int_equal(info.has_prescale, 0);
    assert_int_equal(info.has_sums, 1);
    assert_true(info.bytes > 0 && info.x_block > 0);
    /* The layout's name is the library's own and outlives the weights. */
    const char *layout = info.layout;
    qn_packed_destroy(packed);
    bool found = false;
    for (int32_t i = 0; qn_layout_name(i) != NULL; i++)
        found = found || qn_layout_name(i) == layout;
    assert_true(found);
    assert_null(qn_layout_name(-1));
    assert_null(qn_layout_name(1000000));
    qn_packed_destroy(NULL);
    qn_ctx_destroy(ctx);
}

/* Each layout either takes a weight by name or says that it cannot. */
static void test_layouts(void **state)
{
    (void)state;
    qn_ctx *ctx = ctx_make(1);
    static const char *const specs[] = {"int4:g32", "int8:pc", "nf4:g32", "fp8:pc"};
    for (size_t f = 0; f < sizeof specs / sizeof *specs; f++) {
        qn_weight *weight = weight_make(ctx, specs[f], shape, 1);
        int taken = 0;
        for (int32_t i = 0; qn_layout_name(i) != NULL; i++) {
            qn_pack_options options;
            qn_packed *packed = NULL;
            qn_packed_info info;
            qn_error err = {0};
            qn_pack_options_init(&options);
            options.layout = qn_layout_name(i);
            const qn_status status = qn_pack(ctx, weight, &options, &packed, &err);
            if (status != QN_OK) {
                assert_int_equal(status, QN_E_LAYOUT);
                assert_int_equal(err.status, QN_E_LAYOUT);
                assert_true(strlen(err.text) > 0);
                assert_null(packed);
                continue;
            }
            taken++;
            qn_packed_info_init(&info);
            assert_ok(qn_packed_query(packed, &info));
            assert_string_equal(info.layout, options.layout);
            qn_packed_destroy(packed);
        }
        assert_true(taken >= 1);
        qn_weight_destroy(weight);
    }
    qn_ctx_destroy(ctx);
}

/* Without sums the weights are smaller, and asymmetric activations are refused. */
static void test_without_sums(void **state)
{
    (void)state;
    qn_ctx *ctx = ctx_make(1);
    qn_weight *weight = weight_make(ctx, "int4:g128", shape, 1);
    qn_pack_options options;
    qn_packed *packed = NULL, *whole = NULL;
    qn_packed_info info, whole_info;
    float x[K], y[N];
    qn_matmul_args args;
    fill_reals(x, K, 1);
    qn_pack_options_init(&options);
    options.without_sums = 1;
    assert_ok(qn_pack(ctx, weight, &options, &packed, NULL));
    assert_ok(qn_pack(ctx, weight, NULL, &whole, NULL));
    qn_packed_info_init(&info);
    qn_packed_info_init(&whole_info);
    assert_ok(qn_packed_query(packed, &info));
    assert_ok(qn_packed_query(whole, &whole_info));
    assert_int_equal(info.has_sums, 0);
    assert_true(info.bytes < whole_info.bytes);
    qn_matmul_args_init(&args);
    args.w = packed;
    args.x = qn_tensor_2d(x, QN_F32, 1, K);
    args.y = qn_tensor_2d(y, QN_F32, 1, N);
    args.strategy = QN_STRATEGY_INT8_BLOCK;
    qn_plan *plan = NULL;
    assert_error(qn_matmul_plan(ctx, &args, &plan, &err), QN_E_UNSUPPORTED, "sums");
    args.quant.symmetric = 1;
    assert_ok(matmul_in_arena(ctx, &args));
    args.strategy = QN_STRATEGY_INT8_ROW;
    assert_ok(matmul_in_arena(ctx, &args));
    qn_packed_destroy(packed);
    qn_packed_destroy(whole);
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
}

/* The compact layout that holds a format; NULL: none does. */
static const char *compact_of(const qn_format *format)
{
    if (format->code != QN_CODE_INT)
        return format->bits <= 4 ? "t4c16" : NULL;
    return format->bits <= 4 ? "q4c16" : "q8c16";
}

/* Packed weights take hardly more than the bits of their file, with scales and padding: no more
 * than these, on a matrix of 4096 columns. In wide layouts they take up to three times as many. */
static void test_bits(void **state)
{
    static const struct {
        const char *spec;
        double most;
    } formats[] = {
        {"q4_0", 4.77},
        {"q4_1", 5.3},
        {"q5_0", 5.83},
        {"q5_1", 6.36},
        {"q8_0", 9.0},
        {"q2_k", 2.8},
        {"q3_k", 3.65},
        {"q4_k", 4.77},
        {"q5_k", 5.83},
        {"q6_k", 6.95},
        {"iq4_nl", 4.77},
        {"iq4_xs", 4.5},
        {"mxfp4", 4.5},
        {"nvfp4", 4.77},
        {"int2:g32:f16", 2.65},
        {"int3:g64:f16", 3.45},
        {"int5:pc", 5.3},
        {"int6:pc", 6.3},
        {"int7:pc", 7.3},
        {"fp8:pc", 8.3},
        {"int4:g32:zp:f16", 5.07},
        {"int8:g32:zp:f16", 9.3},
    };
    enum { OUTPUTS = 512, COLUMNS = 4096 };
    (void)state;
    qn_ctx *ctx = ctx_make(2);
    float *dense = malloc((size_t)OUTPUTS * COLUMNS * sizeof *dense);
    assert_non_null(dense);
    for (int i = 0; i < OUTPUTS * COLUMNS; i++)
        dense[i] = (float)((i * 7919LL + i / 64) % 2003 - 1001) * 1e-4f;
    const qn_tensor t = qn_tensor_2d(dense, QN_F32, OUTPUTS, COLUMNS);
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        qn_quantize_options how;
        qn_pack_options options;
        qn_weight *weight = NULL;
        size_t bytes = 0;
        qn_quantize_options_init(&how);
        qn_pack_options_init(&options);
        assert_ok(qn_format_parse(formats[i].spec, &how.format, NULL));
        options.layout = compact_of(&how.format);
        assert_ok(qn_quantize(ctx, &t, &how, &weight, NULL));
        assert_ok(qn_pack_bytes(ctx, weight, &options, &bytes));
        const double bits = 8.0 * (double)bytes / ((double)OUTPUTS * COLUMNS);
        if (bits > formats[i].most)
            fail_msg("%s: %.3f bits a weight, at most %.2f", formats[i].spec, bits,
                     formats[i].most);
        qn_weight_destroy(weight);
    }
    free(dense);
    qn_ctx_destroy(ctx);
}

/* Compact layouts hold matrices alone, and unpack to what was packed; both layouts give the same
 * bits. */
static void test_compact(void **state)
{
    static const char *const specs[] = {"q4_k", "q6_k", "q2_k", "q3_k", "q5_1", "nvfp4", "iq4_nl",
                                        "int3:g64:zp", "int5:pc", "int7:g32:off"};
    const struct shape taps = {.n = 4, .k = 9 * 32, .kh = 3, .kw = 3};
    enum { ROWS = 3, OUTPUTS = 40, COLUMNS = 512 };
    static float x[ROWS * COLUMNS], y[2][ROWS * OUTPUTS];
    (void)state;
    qn_ctx *ctx = ctx_make(1);
    qn_pack_options options;
    fill_reals(x, ROWS * COLUMNS, 1);
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        const struct shape matrix = {.n = OUTPUTS, .k = COLUMNS};
        qn_weight *weight = weight_make(ctx, specs[i], matrix, 1), *back = NULL;
        for (int wide = 0; wide < 2; wide++) {
            static const char *const layouts[2][2] = {{"q4n16", "q8n16"}, {"t4n16", "t4n16"}};
            qn_packed *packed = NULL;
            qn_packed_info info;
            qn_matmul_args args;
            qn_format format;
            assert_ok(qn_format_parse(specs[i], &format, NULL));
            qn_pack_options_init(&options);
            options.layout = wide ? layouts[format.code != QN_CODE_INT][format.bits > 4]
                                  : compact_of(&format);
            assert_ok(qn_pack(ctx, weight, &options, &packed, NULL));
            qn_packed_info_init(&info);
            assert_ok(qn_packed_query(packed, &info));
            assert_int_equal(strstr(info.layout, "c16") != NULL, !wide);
            assert_ok(qn_unpack(ctx, packed, &back, NULL));
            assert_same_weight(weight, back);
            qn_weight_destroy(back);
            qn_matmul_args_init(&args);
            args.w = packed;
            args.x = qn_tensor_2d(x, QN_F32, ROWS, COLUMNS);
            args.y = qn_tensor_2d(y[wide], QN_F32, ROWS, OUTPUTS);
            args.strategy = QN_STRATEGY_INT8_BLOCK;
            assert_ok(matmul_in_arena(ctx, &args));
            qn_packed_destroy(packed);
        }
        assert_memory_equal(y[0], y[1], sizeof y[0]);
        qn_weight_destroy(weight);
    }
    qn_weight *weight = weight_make(ctx, "int8:c16", taps, 1);
    qn_packed *packed = NULL;
    qn_pack_options_init(&options);
    options.layout = "q8c16";
    assert_error(qn_pack(ctx, weight, &options, &packed, &err), QN_E_LAYOUT, "holds matrices");
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
}

/* Without a wish, weights that a compact layout makes smaller go there where the processor has rows
 * that read it; elsewhere, and all others, they do not. */
static void test_preferred(void **state)
{
    static const struct {
        const char *spec, *wide, *compact;
    } cases[] = {{"q6_k", "q8n16", "q8c16"},    {"int4:g32", "q4n16", "q4c16"},
                 {"int4:g128", "q4n16", NULL},  {"nvfp4", "t4n16", "t4c16"},
                 {"int8:pc", "q8n16", NULL},    {"nf4:g64", "t4n16", NULL},
                 {"int4:g24", "q4n16", NULL},   {"int3:g64", "q4n16", "q4c16"}};
    static const uint64_t masks[] = {QN_ISA_PORTABLE, QN_ISA_AVX2, QN_ISA_AVX2 | QN_ISA_AVX512,
                                     QN_ISA_ALL};
    (void)state;
    for (size_t m = 0; m < sizeof masks / sizeof *masks; m++) {
        qn_ctx_options how;
        qn_ctx *ctx = NULL;
        qn_ctx_info about;
        qn_ctx_options_init(&how);
        how.n_threads = 1;
        how.isa_mask = masks[m];
        assert_ok(qn_ctx_create(&how, &ctx, NULL));
        qn_ctx_info_init(&about);
        assert_ok(qn_ctx_query(ctx, &about));
        const bool has_tiles = (about.isa & QN_ISA_AMX_INT8) != 0; /* read wide ones only */
        const bool reads = (about.isa & QN_ISA_VNNI512) != 0 && !has_tiles;
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            const struct shape matrix = {.n = 32, .k = 512};
            qn_packed *packed = packed_make(ctx, cases[i].spec, matrix, 1, NULL);
            qn_packed_info info;
            qn_packed_info_init(&info);
            assert_ok(qn_packed_query(packed, &info));
            assert_string_equal(info.layout, reads && cases[i].compact != NULL ? cases[i].compact
                                                                               : cases[i].wide);
            qn_packed_destroy(packed);
        }
        qn_ctx_destroy(ctx);
    }
}

static void test_bad(void **state)
{
    (void)state;
    qn_ctx *ctx = ctx_make(1);
    qn_weight *weight = weight_make(ctx, "int4:g32", shape, 1), *back = NULL;
    qn_packed *packed = NULL;
    qn_pack_options o;
    size_t bytes = 0;
    assert_error(qn_pack(NULL, weight, NULL, &packed, &err), QN_E_ARGUMENT, "ctx is NULL");
    assert_error(qn_pack(ctx, NULL, NULL, &packed, &err), QN_E_ARGUMENT, "weight is NULL");
    assert_error(qn_pack(ctx, weight, NULL, NULL, &err), QN_E_ARGUMENT, "packed is NULL");
    assert_status(qn_pack_bytes(NULL, weight, NULL, &bytes), QN_E_ARGUMENT);
    assert_status(qn_pack_bytes(ctx, NULL, NULL, &bytes), QN_E_ARGUMENT);
    assert_status(qn_pack_bytes(ctx, weight, NULL, NULL), QN_E_ARGUMENT);
    qn_pack_options_init(&o);
    o.layout = "of_dreams";
    assert_error(qn_pack(ctx, weight, &o, &packed, &err), QN_E_LAYOUT, "of_dreams");
    assert_status(qn_pack_bytes(ctx, weight, &o, &bytes), QN_E_LAYOUT);
    qn_pack_options_init(&o);
    o.x_block = -1;
    assert_error(qn_pack(ctx, weight, &o, &packed, &err), QN_E_ARGUMENT, "x_block is -1");
    qn_pack_options_init(&o);
    o.without_sums = 2;
    assert_error(qn_pack(ctx, weight, &o, &packed, &err), QN_E_ARGUMENT, "without_sums");
    qn_pack_options_init(&o);
    o.reserved = 1;
    assert_error(qn_pack(ctx, weight, &o, &packed, &err), QN_E_ARGUMENT, "reserved");
    assert_null(packed);
    assert_ok(qn_pack(ctx, weight, NULL, &packed, NULL));
    assert_error(qn_unpack(NULL, packed, &back, &err), QN_E_ARGUMENT, "ctx is NULL");
    assert_error(qn_unpack(ctx, NULL, &back, &err), QN_E_ARGUMENT, "packed is NULL");
    assert_error(qn_unpack(ctx, packed, NULL, &err), QN_E_ARGUMENT, "weight is NULL");
    assert_status(qn_packed_query(NULL, NULL), QN_E_ARGUMENT);
    assert_status(qn_packed_query(packed, NULL), QN_E_ARGUMENT);
    qn_packed_destroy(packed);
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
}

/* Every allocation of packing, unpacking and planning refused in turn: QN_E_MEMORY, no result,
 * no leak. */
enum { PACK, UNPACK, PLAN, PLAN_GROUPED };

static qn_status make(int what, const qn_ctx *ctx, const qn_weight *weight, const qn_packed *packed,
                      qn_error *err)
{
    float x[K] = {0}, y[N];
    int32_t ids[1] = {0};
    qn_packed *new_packed = NULL;
    qn_weight *back = NULL;
    qn_plan *plan = NULL;
    qn_status status;
    qn_matmul_args args;
    qn_grouped_args grouped;
    qn_matmul_args_init(&args);
    args.w = packed;
    args.x = qn_tensor_2d(x, QN_F32, 1, K);
    args.y = qn_tensor_2d(y, QN_F32, 1, N);
    qn_grouped_args_init(&grouped);
    grouped.w = &packed;
    grouped.n_experts = 1;
    grouped.x = args.x;
    grouped.y = args.y;
    grouped.ids = qn_tensor_1d(ids, QN_I32, 1);
    switch (what) {
    case PACK:
        status = qn_pack(ctx, weight, NULL, &new_packed, err);
        break;
    case UNPACK:
        status = qn_unpack(ctx, packed, &back, err);
        break;
    case PLAN:
        status = qn_matmul_plan(ctx, &args, &plan, err);
        break;
    default:
        status = qn_grouped_plan(ctx, &grouped, &plan, err);
        break;
    }
    if (status != QN_OK) {
        assert_null(new_packed);
        assert_null(back);
        assert_null(plan);
    }
    qn_packed_destroy(new_packed);
    qn_weight_destroy(back);
    qn_plan_destroy(plan);
    return status;
}

static void test_memory(void **state)
{
    (void)state;
    struct counter counter = {0};
    qn_ctx_options o;
    qn_ctx *ctx;
    options_counted(&o, &counter);
    o.n_threads = 2;
    assert_ok(qn_ctx_create(&o, &ctx, NULL));
    qn_weight *weight = weight_make(ctx, "int4:g32:zp", shape, 1);
    qn_packed *packed = NULL;
    assert_ok(qn_pack(ctx, weight, NULL, &packed, NULL));
    const int64_t live = counter.live;
    for (int what = PACK; what <= PLAN_GROUPED; what++) {
        int refused = 0;
        for (;; refused++) {
            qn_error err = {0};
            counter.refuse = counter.calls + 1 + refused;
            const qn_status status = make(what, ctx, weight, packed, &err);
            assert_int_equal(counter.live, live);
            if (status == QN_OK)
                break;
            assert_int_equal(status, QN_E_MEMORY);
            assert_int_equal(err.status, QN_E_MEMORY);
            assert_true(strlen(err.text) > 0);
        }
        assert_true(refused >= 1);
        counter.refuse = 0;
    }
    qn_packed_destroy(packed);
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
    assert_int_equal(counter.live, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trips),  cmocka_unit_test(test_damaged_levels),
        cmocka_unit_test(test_facts),        cmocka_unit_test(test_layouts),
        cmocka_unit_test(test_bits),         cmocka_unit_test(test_compact),
        cmocka_unit_test(test_preferred),
        cmocka_unit_test(test_without_sums), cmocka_unit_test(test_bad),
        cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
