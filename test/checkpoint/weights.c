/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical weights in files: every format there and back bit for bit, the types chosen,
 * descriptions and tensors that contradict each other, values that are not allowed, damage. */
#include "files.h"

static void expect_same(const qn_weight *a, const qn_weight *b)
{
    qn_weight_parts p, q;
    qn_weight_parts_init(&p);
    qn_weight_parts_init(&q);
    assert_ok(qn_weight_view(a, &p));
    assert_ok(qn_weight_view(b, &q));
    assert_memory_equal(&p.format, &q.format, 8);
    assert_true(p.format.group == q.format.group && p.format.blocks == q.format.blocks &&
                p.format.shift == q.format.shift && p.format.scale_dtype == q.format.scale_dtype &&
                p.format.superblock == q.format.superblock &&
                p.format.superbits == q.format.superbits);
    assert_int_equal(p.n, q.n);
    assert_int_equal(p.k, q.k);
    assert_int_equal(p.kh, q.kh);
    assert_int_equal(p.kw, q.kw);
    assert_int_equal(p.conv_groups, q.conv_groups);
    assert_int_equal(p.n_groups, q.n_groups);
    const size_t groups = (size_t)(p.n * p.n_groups) * 4, columns = (size_t)p.k * 4;
    const int64_t each = p.format.code == QN_CODE_FLOAT ? p.format.bits / 8 : 1;
    assert_memory_equal(p.codes, q.codes, (size_t)(p.n * p.k * each));
    assert_memory_equal(p.scale, q.scale, groups);
    assert_int_equal(p.zero == NULL, q.zero == NULL);
    assert_int_equal(p.offset == NULL, q.offset == NULL);
    assert_int_equal(p.perm == NULL, q.perm == NULL);
    assert_int_equal(p.prescale == NULL, q.prescale == NULL);
    assert_int_equal(p.table == NULL, q.table == NULL);
    if (p.zero != NULL)
        assert_memory_equal(p.zero, q.zero, groups);
    if (p.offset != NULL)
        assert_memory_equal(p.offset, q.offset, groups);
    if (p.perm != NULL)
        assert_memory_equal(p.perm, q.perm, columns);
    if (p.prescale != NULL)
        assert_memory_equal(p.prescale, q.prescale, columns);
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
    if (p.table != NULL)
        assert_memory_equal(p.table, q.table, (size_t)4 << p.format.bits);
}

/* Write one weight as "w". streaming: declared without its arrays. */
static qn_status save(const qn_ctx *ctx, const char *path, const qn_weight *weight, bool streaming,
                      qn_error *err)
{
    qn_writer *writer = NULL;
    qn_weight_parts p;
    int64_t index = -1;
    qn_weight_parts_init(&p);
    assert_ok(qn_weight_view(weight, &p));
    if (streaming)
        p.scale = p.offset = p.super_scale = NULL, p.zero = NULL;
    assert_ok(qn_writer_create(ctx, path, &writer, NULL));
    assert_ok(qn_writer_add_weight(writer, "w", &p, &index, NULL));
    assert_int_equal(index, 0);
    assert_ok(qn_writer_begin(writer, 1, 0, NULL));
    const qn_status status = qn_writer_put_weight(writer, 0, weight, err);
    if (status != QN_OK) {
        assert_int_equal(qn_writer_is_done(writer, 0), 0);
        qn_writer_abort(writer, 0);
        return status;
    }
    assert_int_equal(qn_writer_is_done(writer, 0), 1);
    assert_ok(qn_writer_finish(writer, NULL));
    return QN_OK;
}

/* Load "w" and compare; gives the spelling of the scale's type. */
static void load_same(const qn_ctx *ctx, const char *path, const qn_weight *weight, char scale[16])
{
    qn_file *file = NULL;
    qn_weight *back = NULL;
    qn_entry entry;
    qn_error err = {0};
    qn_weight_parts info;
    size_t bytes = 0, sum = 0;
    qn_weight_parts_init(&info);
    assert_ok(qn_file_open(ctx, path, &file, NULL));
    assert_int_equal(qn_file_weight_count(file), 1);
    assert_string_equal(qn_file_weight_name(file, 0), "w");
    assert_null(qn_file_weight_name(file, 1));
    if (qn_file_load_weight(ctx, file, "w", &back, &err) != QN_OK)
        fail_msg("%s", err.text);
    expect_same(weight, back);
    assert_ok(qn_file_weight_info(file, "w", &info, &bytes, NULL));
    assert_null(info.codes);
    for (int64_t i = 0; i < qn_file_count(file); i++) {
        assert_ok(qn_file_entry(file, i, &entry));
        assert_int_equal(entry.is_aligned, 1);
        sum += entry.bytes;
    }
    assert_int_equal(bytes, sum);
    if (qn_file_find(file, "w.scale", &entry) != QN_OK)
        assert_ok(qn_file_find(file, "w.super_scale", &entry));
    snprintf(scale, 16, "%s", entry.dtype);
    qn_weight_destroy(back);
    qn_file_close(file);
}

static const char *const specs[] = {
    "int2:g32",
    "int3:g32",
    "int4:g128",
    "int5:g64",
    "int6:g16",
    "int7:g8",
    "int8:g32",
    "int4:g1",
    "int4:g128:zp",
    "int8:pc:zp",
    "int3:g7:zp:f16",
    "int4:g64:off",
    "int4:g32:off:f16",
    "int8:pc",
    "int8:pt",
    "int4:pt:off:bf16",
    "nf4:g64",
    "nf4:pc:f16",
    "e2m1:g32:e8m0",
    "e2m1:g16:e4m3",
    "fp8:pc",
    "fp8:g128:bf16",
    "iq4nl:g32",
    "int4:g32:s8x6",
    "int4:g32:f16:off:s4x4",
};

/* Formats of the language and all names, round to nearest: with the arrays at hand or not, the file
 * is the same, the scales are of the format's type where that is possible. */
static void test_formats(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x"), *other = in(folder, "y");
    struct counted_ctx c;
    const int64_t n = 5, k = 300;
    float *dense = take((size_t)(n * k) * sizeof *dense);
    (void)state;
    fill_reals(dense, n * k, 11);
    counted_make(&c);
    const int32_t n_specs = (int32_t)(sizeof specs / sizeof *specs);
    for (int32_t i = 0; i < n_specs || qn_format_name(i - n_specs) != NULL; i++) {
        const char *spec = i < n_specs ? specs[i] : qn_format_name(i - n_specs);
        qn_quantize_options options;
        qn_weight *weight = NULL;
        qn_error err = {0};
        char scale[16];
        size_t size, other_size;
        qn_quantize_options_init(&options);
        assert_ok(qn_format_parse(spec, &options.format, NULL));
        const qn_tensor t = qn_tensor_2d(dense, QN_F32, n, k);
        if (qn_quantize(c.ctx, &t, &options, &weight, &err) != QN_OK)
            fail_msg("%s: %s", spec, err.text);
        if (save(c.ctx, path, weight, true, &err) != QN_OK)
            fail_msg("%s: %s", spec, err.text);
        assert_ok(save(c.ctx, other, weight, false, NULL));
        load_same(c.ctx, other, weight, scale);
        load_same(c.ctx, path, weight, scale);
        assert_string_equal(scale, qni_dtype_spelling(options.format.scale_dtype));
        uint8_t *a = file_bytes(path, &size), *b = file_bytes(other, &other_size);
        /* A plain offset of a super-block is f32 where it is not known beforehand. */
        if (options.format.superblock == 0 || options.format.shift != QN_SHIFT_OFFSET) {
            assert_int_equal(size, other_size);
            assert_memory_equal(a, b, size);
        }
        free(a);
        free(b);
        qn_weight_destroy(weight);
        counted_check(&c);
    }
    free(dense);
    counted_destroy(&c);
    folder_remove(folder);
}

/* The example of docs/formats.md, byte by byte. */
static void test_golden(void **state)
{
    static const char header[] =
        "{\"__metadata__\":{\"quern.weight.w\":\"{\\\"version\\\":1,\\\"format\\\":\\\"int4:g2:f16"
        "\\\",\\\"n\\\":2,\\\"k\\\":3,\\\"kh\\\":1,\\\"kw\\\":1,\\\"conv_groups\\\":1}\","
        "\"quern.xxh64.w.codes\":\"ff56b393289fbb72\","
        "\"quern.xxh64.w.scale\":\"911ec36f72a658d0\",\"quern.header\":\"xxh64\","
        "\"quern.header.xxh64\":\"806ef3fd55ca3458\"},"
        "\"w.scale\":{\"dtype\":\"F16\",\"shape\":[2,2],\"data_offsets\":[0,8]},"
        "\"w.codes\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[8,12]}}";
    static const uint8_t codes[6] = {1, 2, 3, 4, 5, 6};
    static const float scale[4] = {1.0f, 2.0f, 0.5f, -1.0f};
    static const float values[6] = {-7, -6, -10, -2, -1.5f, 2};
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    qn_weight_parts p;
    qn_weight *weight = NULL;
    float out[6];
    size_t size;
    (void)state;
    qn_weight_parts_init(&p);
    assert_ok(qn_format_parse("int4:g2:f16", &p.format, NULL));
    p.n = 2;
    p.k = 3;
    p.codes = codes;
    p.scale = scale;
    assert_ok(qn_weight_create(ctx, &p, &weight, NULL));
    const qn_tensor to = qn_tensor_2d(out, QN_F32, 2, 3);
    assert_ok(qn_weight_dequantize(ctx, weight, false, &to));
    assert_memory_equal(out, values, sizeof out);
    assert_ok(save(ctx, path, weight, true, NULL));
    uint8_t *bytes = file_bytes(path, &size);
    assert_int_equal(size, 460);
    assert_memory_equal(bytes, "\xb8\x01\0\0\0\0\0\0", 8);
    assert_memory_equal(bytes + 8, header, sizeof header - 1);
    for (size_t i = 8 + sizeof header - 1; i < 448; i++)
        assert_int_equal(bytes[i], ' ');
    assert_memory_equal(bytes + 448, "\x00\x3c\x00\x40\x00\x38\x00\xbc\x21\x03\x54\x06", 12);
    free(bytes);
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* Any values, any shape: convolutions, 0 rows, 0 columns, rows whose bits end inside a byte. */
static void test_shapes(void **state)
{
    static const struct shape shapes[] = {{1, 1, 1, 1, 1},  {3, 5, 1, 1, 1},   {0, 64, 1, 1, 1},
                                          {4, 0, 1, 1, 1},  {0, 0, 1, 1, 1},   {6, 27, 3, 3, 2},
                                          {8, 45, 3, 1, 4}, {2, 1000, 1, 1, 1}};
    static const char *const some[] = {"int3:g32",    "int4:g8:zp", "int5:pc:off", "int8:pt",
                                       "nf4:g16:f16", "int4:c2",    "fp8:pc"};
    const char *folder = folder_make(), *path = in(folder, "x");
    struct counted_ctx c;
    char scale[16];
    (void)state;
    counted_make(&c);
    for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
        for (size_t f = 0; f < sizeof some / sizeof *some; f++) {
            qn_weight *weight = weight_make(c.ctx, some[f], shapes[s], 7 + s);
            assert_ok(save(c.ctx, path, weight, false, NULL));
            load_same(c.ctx, path, weight, scale);
            qn_weight_destroy(weight);
            counted_check(&c);
        }
    counted_destroy(&c);
    folder_remove(folder);
}

/* perm, prescale, a table, zero points of every width, scales that their type cannot hold. */
static void test_extras(void **state)
{
    enum { N = 3, K = 10 };
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    uint8_t codes[N * K];
    float scale[N * 2], prescale[K], table[8], tiny = 1e-40f;
    int32_t zero[N * 2], perm[K];
    char spelling[16];
    (void)state;
    for (int i = 0; i < N * K; i++)
        codes[i] = (uint8_t)(i % 8);
    for (int i = 0; i < K; i++) {
        perm[i] = (i * 3 + 1) % K;
        prescale[i] = (float)(i + 1) * 0.3f;
    }
    for (int i = 0; i < 8; i++)
        table[i] = (float)(i * i) - 3.3f;
    static const int32_t far[] = {7, -128, 128, 32767, -32769, 1 << 22};
    for (int i = 0; i < 6; i++) {
        qn_weight_parts p;
        qn_weight *weight = NULL;
        qn_weight_parts_init(&p);
        assert_ok(qn_format_parse("int3:g5:zp:f16", &p.format, NULL));
        p.n = N;
        p.k = K;
        p.codes = codes;
        p.scale = scale;
        p.zero = zero;
        p.perm = perm;
        p.prescale = prescale;
        for (int g = 0; g < N * 2; g++) {
            scale[g] = 0.5f;
            zero[g] = g;
        }
        zero[4] = far[i];
        assert_ok(qn_weight_create(ctx, &p, &weight, NULL));
        assert_ok(save(ctx, path, weight, false, NULL));
        load_same(ctx, path, weight, spelling);
        assert_string_equal(spelling, "F16");
        if (i < 2)
            assert_ok(save(ctx, path, weight, true, NULL));
        else
            assert_error(save(ctx, path, weight, true, &err), QN_E_VALUE, "row 2, group 0");
        qn_weight_destroy(weight);
        /* A scale that is no f16. */
        zero[4] = 0;
        scale[3] = i % 2 == 0 ? 0.1f : tiny;
        assert_ok(qn_weight_create(ctx, &p, &weight, NULL));
        assert_ok(save(ctx, path, weight, false, NULL));
        load_same(ctx, path, weight, spelling);
        assert_string_equal(spelling, "F32");
        assert_error(save(ctx, path, weight, true, &err), QN_E_VALUE, "row 1, group 1 is no f16");
        qn_weight_destroy(weight);
        assert_ok(qn_format_parse("table3:pc:e8m0", &p.format, NULL));
        p.zero = NULL;
        p.table = table;
        scale[0] = -0.0f;
        scale[1] = 0x1p100f;
        scale[2] = 1e-45f;
        assert_ok(qn_weight_create(ctx, &p, &weight, NULL));
        assert_ok(save(ctx, path, weight, false, NULL));
        load_same(ctx, path, weight, spelling);
        assert_string_equal(spelling, "F32");
        qn_weight_destroy(weight);
        scale[0] = 1.0f;
        scale[2] = 0x1p-127f;
        assert_ok(qn_weight_create(ctx, &p, &weight, NULL));
        assert_ok(save(ctx, path, weight, true, NULL));
        load_same(ctx, path, weight, spelling);
        assert_string_equal(spelling, "F8_E8M0");
        qn_weight_destroy(weight);
    }
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* A plain matrix of floats loads as a weight of its type, with the same bits, whole, in part and
 * straight to packed weights; other plain tensors do not. */
static void test_plain_floats(void **state)
{
    enum { N = 5, K = 40 };
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16};
    const int64_t shape[2] = {N, K}, line = K;
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const char *folder = folder_make(), *path = in(folder, "x");
        const size_t each = qn_dtype_bytes(types[i]);
        uint8_t bytes[N * K * 4];
        qn_ctx *ctx = ctx_make(1);
        qn_writer *writer = NULL;
        qn_checkpoint *c = NULL;
        qn_weight *weight = NULL;
        qn_packed *packed = NULL, *straight = NULL;
        qn_weight_parts parts;
        qn_module module;
        int64_t index[2];
        for (size_t b = 0; b < sizeof bytes; b++) /* no exponent is all ones */
            bytes[b] = (uint8_t)((b * 37 + b / 7) % 0x3b);
        assert_ok(qn_writer_create(ctx, path, &writer, NULL));
        assert_ok(qn_writer_add(writer, "w", types[i], 2, shape, &index[0], NULL));
        assert_ok(qn_writer_add(writer, "norm", types[i], 1, &line, &index[1], NULL));
        assert_ok(qn_writer_begin(writer, 1, 0, NULL));
        const qn_tensor w = qn_tensor_2d(bytes, types[i], N, K);
        const qn_tensor norm = qn_tensor_1d(bytes, types[i], K);
        assert_ok(qn_writer_put(writer, index[0], &w, NULL));
        assert_ok(qn_writer_put(writer, index[1], &norm, NULL));
        assert_ok(qn_writer_finish(writer, NULL));
        assert_ok(qn_checkpoint_open(ctx, path, NULL, &c, NULL));
        const int64_t at = qn_checkpoint_find(c, "w");
        qn_module_init(&module);
        assert_ok(qn_checkpoint_module(c, at, &module, NULL));
        assert_true(module.n == N && module.k == K && module.format.code == QN_CODE_FLOAT &&
                    module.format.scale_dtype == types[i] && module.importer[0] == 0);
        assert_ok(qn_checkpoint_load(ctx, c, at, 1, 3, &weight, NULL, NULL));
        qn_weight_parts_init(&parts);
        assert_ok(qn_weight_view(weight, &parts));
        assert_true(parts.n == 3 && parts.k == K);
        assert_memory_equal(parts.codes, bytes + K * each, 3 * K * each);
        qn_weight_destroy(weight);
        const qn_rectangle part = {.first_n = 0, .n = N, .first_k = 8, .k = 16};
        assert_ok(qn_checkpoint_load_part(ctx, c, at, &part, &weight, NULL, NULL));
        assert_ok(qn_weight_view(weight, &parts));
        assert_true(parts.n == N && parts.k == 16);
        for (size_t row = 0; row < N; row++)
            assert_memory_equal((const uint8_t *)parts.codes + row * 16 * each,
                                bytes + (row * K + 8) * each, 16 * each);
        qn_weight_destroy(weight);
        const qn_module_part all = {.module = at, .first = 0, .n = -1};
        assert_ok(qn_checkpoint_pack(ctx, c, 1, &all, NULL, &straight, NULL, NULL));
        assert_ok(qn_checkpoint_load(ctx, c, at, 0, -1, &weight, NULL, NULL));
        assert_ok(qn_pack(ctx, weight, NULL, &packed, NULL));
        qn_packed_info one, other;
        qn_packed_info_init(&one);
        qn_packed_info_init(&other);
        assert_ok(qn_packed_query(straight, &one));
        assert_ok(qn_packed_query(packed, &other));
        assert_string_equal(one.layout, other.layout);
        assert_int_equal(one.bytes, other.bytes);
        qn_weight_destroy(weight);
        weight = NULL;
        assert_error(
            qn_checkpoint_load(ctx, c, qn_checkpoint_find(c, "norm"), 0, -1, &weight, NULL, &err),
            QN_E_DTYPE, "no matrix");
        qn_packed_destroy(packed);
        qn_packed_destroy(straight);
        qn_checkpoint_close(c);
        qn_ctx_destroy(ctx);
        folder_remove(folder);
    }
}

/* Several weights and plain tensors in one file; resumed. */
static void test_mixed(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    static const char *const names[3] = {"model.layers.0.q", "\xd0\xb2\xd0\xb5\xd1\x81", "b"};
    qn_weight *weights[3];
    float bias[4] = {1, 2, 3, 4};
    const int64_t four = 4;
    (void)state;
    for (int i = 0; i < 3; i++)
        weights[i] = weight_make(ctx, specs[3 + i], (struct shape){4, 66, 1, 1, 1}, 3);
    for (int run = 0; run < 2; run++) {
        qn_writer *writer = NULL;
        int64_t index[4];
        assert_ok(qn_writer_create(ctx, path, &writer, NULL));
        for (int i = 0; i < 3; i++) {
            qn_weight_parts p;
            qn_weight_parts_init(&p);
            assert_ok(qn_weight_view(weights[i], &p));
            assert_ok(qn_writer_add_weight(writer, names[i], &p, &index[i], NULL));
            assert_error(qn_writer_add_weight(writer, names[i], &p, NULL, &err), QN_E_EXISTS,
                         "declared already");
        }
        assert_ok(qn_writer_add(writer, "bias", QN_F32, 1, &four, &index[3], NULL));
        assert_error(qn_writer_add(writer, "b.scale", QN_F32, 1, &four, NULL, &err), QN_E_EXISTS,
                     "b.scale");
        assert_ok(qn_writer_begin(writer, 1, 1, NULL));
        assert_int_equal(qn_writer_is_done(writer, index[1]), run);
        assert_int_equal(qn_writer_is_done(writer, index[0]), 0);
        const qn_tensor t = qn_tensor_1d(bias, QN_F32, 4);
        assert_error(qn_writer_put(writer, index[0], &t, &err), QN_E_ARGUMENT, "no tensor");
        assert_error(qn_writer_put_weight(writer, index[3], weights[0], &err), QN_E_ARGUMENT,
                     "no weight");
        assert_error(qn_writer_put_weight(writer, index[0], NULL, &err), QN_E_ARGUMENT, "NULL");
        assert_error(qn_writer_put_weight(writer, index[0], weights[1], &err), QN_E_FORMAT,
                     "weight 'model.layers.0.q' was declared as int5:g64 and is");
        if (run == 0) {
            assert_ok(qn_writer_put_weight(writer, index[1], weights[1], NULL));
            qn_writer_abort(writer, 1);
            continue;
        }
        assert_ok(qn_writer_put(writer, index[3], &t, NULL));
        assert_ok(qn_writer_put_weight(writer, index[2], weights[2], NULL));
        assert_ok(qn_writer_put_weight(writer, index[0], weights[0], NULL));
        assert_ok(qn_writer_finish(writer, NULL));
    }
    qn_file *file = NULL;
    qn_weight *back = NULL;
    assert_ok(qn_file_open(ctx, path, &file, NULL));
    assert_int_equal(qn_file_weight_count(file), 3);
    for (int i = 0; i < 3; i++) {
        assert_string_equal(qn_file_weight_name(file, i), names[i]);
        assert_ok(qn_file_load_weight(ctx, file, names[i], &back, NULL));
        expect_same(weights[i], back);
        qn_weight_destroy(back);
        qn_weight_destroy(weights[i]);
    }
    assert_error(qn_file_load_weight(ctx, file, "absent", &back, &err), QN_E_NOT_FOUND, "'absent'");
    assert_error(qn_file_load_weight(ctx, file, "bias", &back, &err), QN_E_NOT_FOUND, "'bias'");
    assert_error(qn_file_weight_info(file, "c", NULL, NULL, &err), QN_E_NOT_FOUND, "'c'");
    assert_error(qn_file_weight_info(NULL, "c", NULL, NULL, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_file_load_weight(ctx, file, NULL, &back, &err), QN_E_ARGUMENT, "NULL");
    assert_ok(qn_file_weight_info(file, "b", NULL, NULL, NULL));
    qn_file_close(file);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

static void test_declare_errors(void **state)
{
    const char *folder = folder_make();
    qn_ctx *ctx = ctx_make(1);
    qn_writer *writer = NULL;
    qn_weight_parts p;
    (void)state;
    assert_ok(qn_writer_create(ctx, in(folder, "x"), &writer, NULL));
    qn_weight_parts_init(&p);
    assert_ok(qn_format_parse("int4:g32", &p.format, NULL));
    p.n = 4;
    p.k = 64;
    assert_error(qn_writer_add_weight(writer, NULL, &p, NULL, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_writer_add_weight(writer, "w", NULL, NULL, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_writer_add_weight(writer, "\xff", &p, NULL, &err), QN_E_ARGUMENT, "UTF-8");
    p.n = -1;
    assert_error(qn_writer_add_weight(writer, "w", &p, NULL, &err), QN_E_SHAPE, "out of range");
    p.n = 4;
    p.kh = 3;
    assert_error(qn_writer_add_weight(writer, "w", &p, NULL, &err), QN_E_SHAPE, "multiple");
    p.kh = 1;
    p.conv_groups = 3;
    assert_error(qn_writer_add_weight(writer, "w", &p, NULL, &err), QN_E_SHAPE, "groups");
    p.conv_groups = 1;
    p.format.bits = 9;
    assert_error(qn_writer_add_weight(writer, "w", &p, NULL, &err), QN_E_FORMAT, "bits");
    p.format.bits = 4;
    p.size = 0;
    assert_error(qn_writer_add_weight(writer, "w", &p, NULL, &err), QN_E_ARGUMENT, "_init()");
    p.size = sizeof p;
    assert_ok(qn_writer_add_weight(writer, "w", &p, NULL, NULL));
    assert_ok(qn_writer_begin(writer, 0, 0, NULL));
    assert_error(qn_writer_add_weight(writer, "v", &p, NULL, &err), QN_E_ARGUMENT, "too late");
    qn_weight *weight = weight_make(ctx, "int4:g32", (struct shape){5, 64, 1, 1, 1}, 1);
    assert_error(qn_writer_put_weight(writer, 0, weight, &err), QN_E_SHAPE, "another shape");
    qn_weight_destroy(weight);
    qn_writer_abort(writer, 0);
    /* A permutation that was not declared. */
    int32_t order[2] = {1, 0};
    const uint8_t codes[2] = {1, 2};
    const float scale = 1.0f;
    qn_weight_parts_init(&p);
    assert_ok(qn_format_parse("int4:pc", &p.format, NULL));
    p.n = 1;
    p.k = 2;
    assert_ok(qn_writer_create(ctx, in(folder, "x"), &writer, NULL));
    p.format.reserved = 1;
    assert_error(qn_writer_add_weight(writer, "w", &p, NULL, &err), QN_E_ARGUMENT,
                 "format.reserved");
    p.format.reserved = 0;
    assert_ok(qn_writer_add_weight(writer, "w", &p, NULL, NULL));
    assert_ok(qn_writer_begin(writer, 0, 0, NULL));
    p.codes = codes;
    p.scale = &scale;
    p.perm = order;
    assert_ok(qn_weight_create(ctx, &p, &weight, NULL));
    assert_error(qn_writer_put_weight(writer, 0, weight, &err), QN_E_ARGUMENT,
                 "without permutation");
    qn_weight_destroy(weight);
    qn_writer_abort(writer, 0);
    assert_int_equal(folder_count(folder), 0);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* ---- hostile files --------------------------------------------------------------------------- */

/* int4:g2, n 2, k 3: rows of 2 bytes, 2 groups. */
static const char *const good_parts =
    "\"w.scale\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]},"
    "\"w.codes\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[16,20]}";
#define GOOD                                                                                       \
    "{\\\"version\\\":1,\\\"format\\\":\\\"int4:g2\\\",\\\"n\\\":2,\\\"k\\\":3,\\\"kh\\\":1,"      \
    "\\\"kw\\\":1,\\\"conv_groups\\\":1}"

static uint8_t *weight_file(const char *description, const char *parts, const uint8_t data[20],
                            size_t data_bytes, size_t *size)
{
    char header[2000];
    snprintf(header, sizeof header, "{\"__metadata__\":{\"quern.weight.w\":\"%s\"}%s%s}",
             description, parts[0] != 0 ? "," : "", parts);
    return safetensors_make(header, data, data_bytes, size);
}

static qn_status try_load(const qn_ctx *ctx, const uint8_t *bytes, size_t size, qn_error *err)
{
    qn_file *file = NULL;
    qn_weight *weight = NULL;
    assert_ok(open_bytes(ctx, bytes, size, &file, NULL));
    const qn_status info = qn_file_weight_info(file, "w", NULL, NULL, NULL);
    const qn_status status = qn_file_load_weight(ctx, file, "w", &weight, err);
    assert_true(info == QN_OK || info == status);
    assert_int_equal(status == QN_OK, weight != NULL);
    qn_weight_destroy(weight);
    qn_file_close(file);
    return status;
}

/* An earlier version: q4_1 had an offset of signed codes, w = scale * (u - 8) + offset. */
static void test_version_1(void **state)
{
    static const char header[] =
        "{\"__metadata__\":{\"quern.weight.w\":\"{\\\"version\\\":1,"
        "\\\"format\\\":\\\"q4_1\\\",\\\"n\\\":1,\\\"k\\\":2,\\\"kh\\\":1,"
        "\\\"kw\\\":1,\\\"conv_groups\\\":1}\"},"
        "\"w.scale\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[0,4]},"
        "\"w.offset\":{\"dtype\":\"F32\",\"shape\":[1,1],\"data_offsets\":[4,8]},"
        "\"w.codes\":{\"dtype\":\"U8\",\"shape\":[1,1],\"data_offsets\":[8,9]}}";
    static const uint8_t data[9] = {0, 0, 0, 0x3f, 0, 0, 0x40, 0x40, 0xf1}; /* 0.5, 3; 1, 15 */
    qn_ctx *ctx = ctx_make(1);
    qn_file *file = NULL;
    qn_weight *w = NULL;
    qn_error err = {0};
    char text[64];
    float out[2];
    size_t size;
    (void)state;
    uint8_t *bytes = safetensors_make(header, data, sizeof data, &size);
    assert_ok(open_bytes(ctx, bytes, size, &file, NULL));
    if (qn_file_load_weight(ctx, file, "w", &w, &err) != QN_OK)
        fail_msg("%s", err.text);
    qn_weight_parts p;
    qn_weight_parts_init(&p);
    assert_ok(qn_weight_view(w, &p));
    qn_format_print(&p.format, text, sizeof text);
    assert_string_equal(text, "int4:g32:off:f16");
    const qn_tensor to = qn_tensor_2d(out, QN_F32, 1, 2);
    assert_ok(qn_weight_dequantize(ctx, w, true, &to));
    assert_true(out[0] == -0.5f && out[1] == 6.5f);
    qn_weight_destroy(w);
    qn_file_close(file);
    free(bytes);
    qn_ctx_destroy(ctx);
}

static const uint8_t good_data[20] = {0,    0,    0x80, 0x3f, 0, 0,    0,    0x40, 0,    0,
                                      0x80, 0x3f, 0,    0,    0, 0x40, 0x21, 0x03, 0x54, 0x06};

static void test_descriptions(void **state)
{
#define D(version, format, n, k, kh, kw, groups)                                                   \
    "{\\\"version\\\":" version ",\\\"format\\\":" format ",\\\"n\\\":" n ",\\\"k\\\":" k          \
    ",\\\"kh\\\":" kh ",\\\"kw\\\":" kw ",\\\"conv_groups\\\":" groups "}"
#define F "\\\"int4:g2\\\""
    static const struct {
        const char *description;
        qn_status status;
        const char *word;
    } cases[] = {
        {GOOD, QN_OK, ""},
        {"", QN_E_CORRUPT, "letter 0"},
        {"x", QN_E_CORRUPT, "letter 0"},
        {"{}", QN_E_CORRUPT, "no version"},
        {"[]", QN_E_CORRUPT, "object"},
        {GOOD "x", QN_E_CORRUPT, "follows"},
        {D("0", F, "2", "3", "1", "1", "1"), QN_E_CORRUPT, "no version"},
        {D("\\\"1\\\"", F, "2", "3", "1", "1", "1"), QN_E_CORRUPT, "no version"},
        {D("3", F, "2", "3", "1", "1", "1"), QN_E_VERSION, "version 3"},
        {D("2", F, "2", "3", "1", "1", "1"), QN_OK, ""},
        {D("0", F, "2", "3", "1", "1", "1"), QN_E_CORRUPT, "no version"},
        {D("2", "\\\"int4:g2:min\\\"", "2", "3", "1", "1", "1"), QN_E_CORRUPT,
         ".offset is missing"},
        {"{\\\"version\\\":3,\\\"shape\\\":{\\\"n\\\":[1]}}", QN_E_VERSION, "version 3"},
        {D("1", "\\\"int4\\\"", "2", "3", "1", "1", "1"), QN_E_CORRUPT, "no known format"},
        {D("1", "\\\"int9:g2\\\"", "2", "3", "1", "1", "1"), QN_E_CORRUPT, "no known format"},
        {D("1", "4", "2", "3", "1", "1", "1"), QN_E_CORRUPT, "unknown field"},
        {D("1", F, "-2", "3", "1", "1", "1"), QN_E_CORRUPT, "at least 0"},
        {D("1", F, "null", "3", "1", "1", "1"), QN_E_CORRUPT, "unknown field"},
        {D("1", F, "2", "3", "0", "1", "1"), QN_E_CORRUPT, "impossible"},
        {D("1", F, "2", "3", "2", "1", "1"), QN_E_CORRUPT, "multiple"},
        {D("1", F, "2", "3", "1", "1", "3"), QN_E_CORRUPT, "groups"},
        {D("1", F, "2", "3", "4294967297", "1", "1"), QN_E_CORRUPT, "no good kh"},
        {D("1", F, "2", "3", "1", "1", "0"), QN_E_CORRUPT, "impossible"},
        {D("1", F, "9223372036854775807", "3", "1", "1", "1"), QN_E_CORRUPT, "out of range"},
        {D("1", F, "2", "9223372036854775807", "1", "1", "1"), QN_E_CORRUPT, "out of range"},
        {D("1", F, "2147483647", "2147483647", "1", "1", "1"), QN_E_CORRUPT, ".codes has not"},
        {D("1", F, "3", "3", "1", "1", "1"), QN_E_CORRUPT, ".codes has not the shape"},
        {D("1", F, "2", "5", "1", "1", "1"), QN_E_CORRUPT, ".codes has not the shape"},
        {D("1", F, "2", "2", "1", "1", "1"), QN_E_CORRUPT, ".codes has not the shape"},
        {D("1", F, "2", "4", "1", "1", "1"), QN_OK, ""},
        {D("1", "\\\"int4:pc\\\"", "2", "3", "1", "1", "1"), QN_E_CORRUPT, ".scale has not"},
        {D("1", "\\\"int4:g2:zp\\\"", "2", "3", "1", "1", "1"), QN_E_CORRUPT, ".zero is missing"},
        {D("1", "\\\"int4:g2:off\\\"", "2", "3", "1", "1", "1"), QN_E_CORRUPT,
         ".offset is missing"},
        {D("1", "\\\"table4:g2\\\"", "2", "3", "1", "1", "1"), QN_E_CORRUPT, ".table is missing"},
        {D("1", "\\\"nf4:g2\\\"", "2", "3", "1", "1", "1"), QN_OK, ""},
        {"{\\\"version\\\":1,\\\"version\\\":1}", QN_E_CORRUPT, "twice"},
        {"{\\\"version\\\":1,\\\"format\\\":\\\"int4:g2\\\",\\\"format\\\":\\\"int4:g2\\\"}",
         QN_E_CORRUPT, "twice"},
        {"{\\\"version\\\":1,\\\"format\\\":\\\"int4:g2\\\",\\\"n\\\":2}", QN_E_CORRUPT,
         "no good k"},
        {"{\\\"version\\\":1,\\\"extra\\\":0}", QN_E_CORRUPT, "unknown field"},
    };
    struct counted_ctx c;
    (void)state;
    counted_make(&c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t size;
        qn_error err = {0};
        uint8_t *bytes = weight_file(cases[i].description, good_parts, good_data, 20, &size);
        const qn_status status = try_load(c.ctx, bytes, size, &err);
        if (status != cases[i].status || strstr(err.text, cases[i].word) == NULL)
            fail_msg("%s: %s: '%s' does not say '%s'", cases[i].description, qn_status_name(status),
                     err.text, cases[i].word);
        assert_true(c.counter.largest_bytes < 8192);
        free(bytes);
        counted_check(&c);
    }
    counted_destroy(&c);
}

static void test_parts(void **state)
{
#define SCALE "\"w.scale\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}"
#define CODES "\"w.codes\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[16,20]}"
    static const struct {
        const char *parts;
        size_t data_bytes;
        const char *word; /* NULL: loads */
    } cases[] = {
        {SCALE "," CODES, 20, NULL},
        {CODES "," SCALE, 20, NULL},
        {"", 0, ".codes is missing"},
        {SCALE, 16, ".codes is missing"},
        {"\"w.codes\":{\"dtype\":\"U8\",\"shape\":[2,2],\"data_offsets\":[0,4]}", 4,
         ".scale is missing"},
        {SCALE ",\"w.codes\":{\"dtype\":\"I8\",\"shape\":[2,2],\"data_offsets\":[16,20]}", 20,
         ".codes has a bad type"},
        {SCALE ",\"w.codes\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[16,20]}", 20,
         ".codes has not the shape"},
        {SCALE ",\"w.codes\":{\"dtype\":\"U8\",\"shape\":[1,4],\"data_offsets\":[16,20]}", 20,
         ".codes has not the shape"},
        {"\"w.scale\":{\"dtype\":\"I32\",\"shape\":[2,2],\"data_offsets\":[0,16]}," CODES, 20,
         ".scale has a bad type"},
        {"\"w.scale\":{\"dtype\":\"F64\",\"shape\":[1,2],\"data_offsets\":[0,16]}," CODES, 20,
         ".scale has a bad type"},
        {"\"w.scale\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0,16]}," CODES, 20,
         ".scale has not the shape"},
        {"\"w.scale\":{\"dtype\":\"C64\",\"shape\":[2],\"data_offsets\":[0,16]}," CODES, 20,
         ".scale has a bad type"},
        {SCALE "," CODES ",\"w.zero\":{\"dtype\":\"I8\",\"shape\":[2,2],\"data_offsets\":[20,24]}",
         24, ".zero is there"},
        {SCALE "," CODES ",\"w.unit\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[20,24]}",
         24, ".unit is there"},
        {SCALE "," CODES ",\"w.perm\":{\"dtype\":\"I32\",\"shape\":[2],\"data_offsets\":[20,28]}",
         28, ".perm has not the shape"},
        {SCALE "," CODES ",\"w.perm\":{\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[20,44]}",
         44, ".perm has a bad type"},
        {SCALE "," CODES
               ",\"w.prescale\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[20,26]}",
         26, ".prescale has a bad type"},
    };
    qn_ctx *ctx = ctx_make(1);
    uint8_t data[64] = {0};
    (void)state;
    memcpy(data, good_data, 20);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t size;
        qn_error err = {0};
        uint8_t *bytes = weight_file(GOOD, cases[i].parts, data, cases[i].data_bytes, &size);
        const qn_status status = try_load(ctx, bytes, size, &err);
        if (status != (cases[i].word == NULL ? QN_OK : QN_E_CORRUPT) ||
            strstr(err.text, cases[i].word == NULL ? "" : cases[i].word) == NULL)
            fail_msg("%s: %s: '%s'", cases[i].parts, qn_status_name(status), err.text);
        free(bytes);
    }
    qn_ctx_destroy(ctx);
}

static void test_values(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    for (int i = 0; i < 4; i++) {
        uint8_t data[20 + 12];
        size_t size;
        qn_error err = {0};
        const char *parts = good_parts, *word = ".codes does not end in zeros";
        char longer[400];
        memcpy(data, good_data, 20);
        size_t data_bytes = 20;
        if (i == 0)
            data[17] |= 0x10; /* behind the third code of row 0 */
        if (i == 1) {
            memcpy(data + 4, "\0\0\xc0\x7f", 4);
            word = "scale of row 0, group 1 is not finite";
        }
        if (i >= 2) {
            const int32_t perm[3] = {0, i == 2 ? 3 : 1, 1};
            snprintf(longer, sizeof longer,
                     "%s,\"w.perm\":{\"dtype\":\"I32\",\"shape\":[3],\"data_offsets\":[20,32]}",
                     good_parts);
            memcpy(data + 20, perm, 12);
            data_bytes = 32;
            parts = longer;
            word = "no permutation";
        }
        uint8_t *bytes = weight_file(GOOD, parts, data, data_bytes, &size);
        assert_int_equal(try_load(ctx, bytes, size, &err), QN_E_VALUE);
        if (strstr(err.text, word) == NULL || strstr(err.text, "weight 'w': ") == NULL)
            fail_msg("'%s' does not say '%s'", err.text, word);
        free(bytes);
    }
    qn_ctx_destroy(ctx);
}

/* Every bit of a file with all kinds of parts: an error, or a weight that can be used. */
static void test_damage(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    struct counted_ctx c;
    int32_t perm[6] = {5, 4, 3, 2, 1, 0};
    float prescale[6] = {1, 2, 3, 4, 5, 6}, scale[4] = {1, 2, 4, 8}, out[12];
    int32_t zero[4] = {1, -1, 2, 0};
    const uint8_t codes[12] = {0, 1, 2, 3, 4, 5, 6, 7, 0, 1, 2, 3};
    qn_weight_parts p;
    qn_weight *weight = NULL;
    size_t size;
    int valid = 0;
    (void)state;
    counted_make(&c);
    qn_weight_parts_init(&p);
    assert_ok(qn_format_parse("int3:g3:zp:e4m3", &p.format, NULL));
    p.n = 2;
    p.k = 6;
    p.codes = codes;
    p.scale = scale;
    p.zero = zero;
    p.perm = perm;
    p.prescale = prescale;
    assert_ok(qn_weight_create(c.ctx, &p, &weight, NULL));
    assert_ok(save(c.ctx, path, weight, false, NULL));
    qn_weight_destroy(weight);
    uint8_t *bytes = file_bytes(path, &size);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        qn_file *file = NULL;
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (open_bytes(c.ctx, bytes, size, &file, NULL) == QN_OK) {
            weight = NULL;
            const qn_status status = qn_file_load_weight(c.ctx, file, "w", &weight, NULL);
            assert_true(status == QN_OK || status == QN_E_CORRUPT || status == QN_E_VALUE ||
                        status == QN_E_VERSION || status == QN_E_NOT_FOUND);
            if (status == QN_OK) {
                qn_weight_parts q;
                qn_weight_parts_init(&q);
                assert_ok(qn_weight_view(weight, &q));
                const qn_tensor to = qn_tensor_2d(out, QN_F32, q.n, q.k);
                if (q.n * q.k <= 12)
                    assert_ok(qn_weight_dequantize(c.ctx, weight, true, &to));
                qn_weight_destroy(weight);
                valid++;
            }
        }
        qn_file_close(file);
        counted_check(&c);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(valid > 36); /* the codes' bits at least */
    free(bytes);
    counted_destroy(&c);
    folder_remove(folder);
}

/* No memory at any point of a load. */
static void test_no_memory(void **state)
{
    struct counted_ctx c;
    size_t size;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = weight_file(GOOD, good_parts, good_data, 20, &size);
    qn_file *file = NULL;
    assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
    const int64_t live = c.counter.live;
    for (int64_t i = 1;; i++) {
        qn_weight *weight = NULL;
        c.counter.refuse = c.counter.calls + i;
        const qn_status status = qn_file_load_weight(c.ctx, file, "w", &weight, NULL);
        qn_weight_destroy(weight);
        assert_int_equal(c.counter.live, live);
        if (status == QN_OK) {
            assert_true(i > 4);
            break;
        }
        assert_int_equal(status, QN_E_MEMORY);
    }
    qn_file_close(file);
    free(bytes);
    counted_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats),        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_shapes),         cmocka_unit_test(test_extras),
        cmocka_unit_test(test_plain_floats),   cmocka_unit_test(test_mixed),
        cmocka_unit_test(test_declare_errors), cmocka_unit_test(test_version_1),
        cmocka_unit_test(test_descriptions),   cmocka_unit_test(test_parts),
        cmocka_unit_test(test_values),         cmocka_unit_test(test_damage),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
