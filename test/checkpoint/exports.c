/* SPDX-License-Identifier: Apache-2.0 */
/* Exports and GGUF files that are written: the worked examples of the formats, what is no argument,
 * each allocation failing once, a GGUF file that our reader reads back. What other programs read of
 * them is in test/oracle/test_exports.py. */
#include "files.h"

static qn_weight *uniform_make(const qn_ctx *ctx, const char *format, int64_t n, int64_t k,
                               const uint8_t *codes, float scale)
{
    qn_weight_parts parts;
    qn_weight *weight = NULL;
    qn_weight_parts_init(&parts);
    assert_ok(qn_format_parse(format, &parts.format, NULL));
    parts.n = n;
    parts.k = k;
    parts.codes = codes;
    const int64_t groups = qn_format_groups(&parts.format, k, k);
    float *scales = malloc((size_t)(n * groups) * sizeof *scales);
    int32_t *zeros = calloc((size_t)(n * groups), sizeof *zeros);
    assert_true(scales != NULL && zeros != NULL);
    for (int64_t i = 0; i < n * groups; i++)
        scales[i] = scale;
    parts.scale = scales;
    parts.zero = parts.format.shift == QN_SHIFT_ZERO ? zeros : NULL;
    assert_ok(qn_weight_create(ctx, &parts, &weight, NULL));
    free(scales);
    free(zeros);
    return weight;
}

static const qn_entry *entry_of(const qn_export *made, const char *ending)
{
    static qn_entry e;
    for (int64_t i = 0; i < qn_export_count(made); i++) {
        assert_ok(qn_export_entry(made, i, &e));
        if (strcmp(e.name, ending) == 0)
            return &e;
    }
    fail_msg("no tensor %s", ending);
    return NULL;
}

static qn_export *export_make(const qn_ctx *ctx, const qn_weight *weight, const char *target)
{
    qn_export_options options;
    qn_export *made = NULL;
    qn_error err = {QN_OK, -1, ""};
    qn_export_options_init(&options);
    options.target = target;
    if (qn_export_create(ctx, weight, &options, &made, &err) != QN_OK)
        fail_msg("%s: %s", target, err.text);
    return made;
}

/* Codes 0..7 of consecutive columns, or rows, are the words of docs/checkpoints.md. */
static void test_words(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    uint8_t along_k[32 * 32], along_n[32 * 32];
    (void)state;
    for (int i = 0; i < 32 * 32; i++) {
        along_k[i] = (uint8_t)(i % 8);
        along_n[i] = (uint8_t)(i / 32 % 8);
    }
    qn_weight *k = uniform_make(ctx, "int4:g32", 32, 32, along_k, 0.5f);
    qn_weight *n = uniform_make(ctx, "int4:g32", 32, 32, along_n, 0.5f);
    qn_export *made = export_make(ctx, n, "awq");
    assert_int_equal(((const uint32_t *)entry_of(made, ".qweight")->tensor.data)[0], 0x75316420);
    assert_int_equal(((const uint32_t *)entry_of(made, ".qzeros")->tensor.data)[0], 0x88888888);
    qn_export_destroy(made);
    made = export_make(ctx, k, "gptq");
    assert_int_equal(((const uint32_t *)entry_of(made, ".qweight")->tensor.data)[0], 0x76543210);
    assert_int_equal(((const uint32_t *)entry_of(made, ".qzeros")->tensor.data)[0], 0x77777777);
    assert_int_equal(((const uint16_t *)entry_of(made, ".scales")->tensor.data)[0], 0x3800);
    qn_export_destroy(made);
    made = export_make(ctx, k, "gptq_v2");
    assert_int_equal(((const uint32_t *)entry_of(made, ".qzeros")->tensor.data)[0], 0x88888888);
    qn_export_destroy(made);
    made = export_make(ctx, k, "ct");
    assert_int_equal(((const uint32_t *)entry_of(made, ".weight_packed")->tensor.data)[0],
                     0x76543210);
    qn_export_destroy(made);
    made = export_make(ctx, k, "gguf");
    const qn_entry *block = entry_of(made, ".weight");
    assert_string_equal(block->dtype, "Q4_0");
    const uint8_t *bytes = block->tensor.data; /* d = 0.5, columns j and j + 16 in byte j */
    assert_true(bytes[0] == 0x00 && bytes[1] == 0x38 && bytes[2] == 0x00 && bytes[3] == 0x11);
    qn_export_destroy(made);
    qn_weight_destroy(k);
    qn_weight_destroy(n);
    qn_ctx_destroy(ctx);
}

static void test_bad(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    uint8_t codes[32 * 32] = {0};
    qn_export_options options;
    qn_export *made = NULL;
    qn_export_info info;
    qn_entry e;
    qn_error err = {QN_OK, -1, ""};
    (void)state;
    qn_weight *w = uniform_make(ctx, "int4:g32", 32, 32, codes, 0.1f);
    qn_export_options_init(&options);
    assert_int_equal(qn_export_create(ctx, w, &options, &made, &err), QN_E_ARGUMENT);
    options.target = "tensorflow";
    assert_int_equal(qn_export_create(ctx, w, &options, &made, &err), QN_E_ARGUMENT);
    assert_non_null(strstr(err.text, "awq, gptq"));
    options.target = "gguf:q9_9";
    assert_int_equal(qn_export_create(ctx, w, &options, &made, &err), QN_E_ARGUMENT);
    options.target = "awq";
    assert_int_equal(qn_export_create(ctx, w, &options, &made, &err), QN_E_VALUE);
    assert_non_null(strstr(err.text, "scale 0.100000001 is no f16 number; ct, onnx, quern could"));
    assert_null(made);
    assert_int_equal(qn_export_create(NULL, w, &options, &made, NULL), QN_E_ARGUMENT);
    assert_int_equal(qn_export_create(ctx, w, NULL, &made, NULL), QN_E_ARGUMENT);
    options.reserved = 1;
    assert_int_equal(qn_export_create(ctx, w, &options, &made, NULL), QN_E_ARGUMENT);
    assert_int_equal(qn_export_count(NULL), 0);
    assert_int_equal(qn_export_entry(NULL, 0, &e), QN_E_ARGUMENT);
    qn_export_info_init(&info);
    assert_int_equal(qn_export_query(NULL, &info), QN_E_ARGUMENT);
    assert_string_equal(qn_export_target(0), "awq");
    assert_null(qn_export_target(-1));
    assert_null(qn_export_target(99));
    made = export_make(ctx, w, "ct");
    assert_ok(qn_export_query(made, &info));
    assert_string_equal(info.kind, "pack-quantized");
    assert_true(info.bits == 4 && info.group == -1 && info.is_symmetric == 1);
    assert_int_equal(qn_export_entry(made, qn_export_count(made), &e), QN_E_ARGUMENT);
    qn_export_destroy(made);
    qn_export_destroy(NULL);
    qn_weight_destroy(w);
    qn_ctx_destroy(ctx);
}

static void test_no_memory(void **state)
{
    static const char *const targets[] = {"awq",  "gptq", "gptq_v2", "ct", "ct:int-quantized",
                                          "gguf", "onnx", "onnx:qdq"};
    uint8_t codes[32 * 32] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++) {
        bool is_last = false;
        for (int64_t refuse = 1; !is_last; refuse++) {
            struct counted_ctx c;
            qn_export_options options;
            qn_export *made = NULL;
            counted_make(&c);
            qn_weight *w = uniform_make(c.ctx, "int4:g32:zp", 32, 32, codes, 0.5f);
            qn_export_options_init(&options);
            options.target = targets[i]; /* one group is a row, too */
            c.counter.refuse = c.counter.calls + refuse;
            const qn_status status = qn_export_create(c.ctx, w, &options, &made, NULL);
            is_last = c.counter.calls < c.counter.refuse;
            assert_int_equal(status, is_last ? QN_OK : QN_E_MEMORY);
            assert_true((made != NULL) == is_last);
            c.counter.refuse = 0;
            qn_export_destroy(made);
            qn_weight_destroy(w);
            counted_destroy(&c);
        }
    }
}

/* Codes 1 and 2 are byte 0x21; a tail of K is padded; what has no zero points has none; blocks
 * divide the groups. DequantizeLinear has signed codes, two to a byte across rows. */
static void test_onnx(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    uint8_t codes[4 * 24];
    qn_export_info info;
    (void)state;
    for (size_t i = 0; i < sizeof codes; i++)
        codes[i] = (uint8_t)(1 + i % 2);
    qn_weight *w = uniform_make(ctx, "int4:pc", 4, 24, codes, 0.3f);
    qn_export *made = export_make(ctx, w, "onnx");
    assert_int_equal(qn_export_count(made), 2);
    const qn_entry *b = entry_of(made, "_Q4");
    assert_true(b->tensor.rank == 3 && b->tensor.shape[1] == 1 && b->tensor.shape[2] == 16);
    const uint8_t *bytes = b->tensor.data;
    assert_true(bytes[0] == 0x21 && bytes[11] == 0x21 && bytes[12] == 0x88 && bytes[15] == 0x88);
    qn_export_info_init(&info);
    assert_ok(qn_export_query(made, &info));
    assert_string_equal(info.kind, "MatMulNBits");
    qn_export_destroy(made);
    made = export_make(ctx, w, "onnx:qdq");
    const qn_entry *q = entry_of(made, "_quantized");
    assert_string_equal(q->dtype, "INT4");
    assert_true(q->bytes == 48 && ((const uint8_t *)q->tensor.data)[0] == 0xa9);
    qn_export_destroy(made);
    qn_weight_destroy(w);
    qn_ctx_destroy(ctx);
}

/* ---- GGUF files ------------------------------------------------------------------------------ */

static void test_gguf(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    char *folder = folder_make();
    const char *path = in(folder, "m.gguf");
    uint8_t codes[4 * 64];
    const int64_t shape[1] = {3}, blocks[2] = {4, 64};
    float norm[3] = {1, 2, 3};
    const uint32_t seven = 7;
    /* Two texts: their type, their number, and each with its length. */
    static const uint8_t words[] = "\x08\0\0\0\x02\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0a\x01\0\0\0\0\0\0"
                                   "\0b";
    qn_writer *writer = NULL;
    int64_t at[2];
    qn_error err = {QN_OK, -1, ""};
    (void)state;
    for (int i = 0; i < 4 * 64; i++)
        codes[i] = (uint8_t)(i * 7 % 16);
    qn_weight *w = uniform_make(ctx, "q4_0", 4, 64, codes, 0.25f);
    qn_export *made = export_make(ctx, w, "gguf:q4_0");
    const qn_entry *e = entry_of(made, ".weight");
    assert_ok(qn_writer_create(ctx, path, &writer, &err));
    assert_int_equal(qn_writer_add_blocks(writer, "b", "Q4_0", 2, blocks, &at[0], NULL),
                     QN_E_ARGUMENT);
    assert_int_equal(qn_writer_value(writer, "k", QN_VALUE_U32, &seven, 4, NULL), QN_E_ARGUMENT);
    assert_int_equal(qn_writer_set_kind(writer, QN_FILE_NPY, NULL), QN_E_ARGUMENT);
    assert_ok(qn_writer_set_kind(writer, QN_FILE_GGUF, &err));
    assert_ok(qn_writer_metadata(writer, "general.architecture", "test", &err));
    assert_ok(qn_writer_value(writer, "test.seven", QN_VALUE_U32, &seven, 4, &err));
    assert_int_equal(qn_writer_value(writer, "test.seven", QN_VALUE_U32, &seven, 4, NULL),
                     QN_E_EXISTS);
    assert_int_equal(qn_writer_value(writer, "test.six", QN_VALUE_U64, &seven, 4, NULL),
                     QN_E_ARGUMENT);
    assert_ok(qn_writer_value(writer, "test.words", QN_VALUE_ARRAY, words, sizeof words - 1, &err));
    assert_ok(qn_writer_add(writer, "norm", QN_F32, 1, shape, &at[0], &err));
    assert_int_equal(qn_writer_add_blocks(writer, "b", "F32", 2, blocks, &at[1], NULL), QN_E_DTYPE);
    assert_int_equal(qn_writer_add_blocks(writer, "b", "Q4_K", 2, blocks, &at[1], NULL),
                     QN_E_SHAPE);
    assert_ok(qn_writer_add_blocks(writer, "b", e->dtype, 2, e->tensor.shape, &at[1], &err));
    assert_int_equal(qn_writer_set_kind(writer, QN_FILE_SAFETENSORS, NULL), QN_E_ARGUMENT);
    assert_ok(qn_writer_begin(writer, 0, 0, &err));
    const int64_t bytes = (int64_t)e->bytes;
    const qn_tensor vector = qn_tensor_make(norm, QN_F32, 1, shape);
    const qn_tensor raw = qn_tensor_make(e->tensor.data, QN_U8, 1, &bytes);
    assert_ok(qn_writer_put(writer, at[0], &vector, &err));
    assert_ok(qn_writer_put(writer, at[1], &raw, &err));
    assert_ok(qn_writer_finish(writer, &err));

    qn_checkpoint *c = NULL;
    qn_weight *back = NULL;
    qn_weight_difference d;
    qn_value_type type;
    const void *value;
    size_t size;
    qn_weight_difference_init(&d);
    assert_ok(qn_checkpoint_open(ctx, path, NULL, &c, &err));
    assert_ok(qn_checkpoint_load(ctx, c, qn_checkpoint_find(c, "b"), 0, -1, &back, NULL, &err));
    assert_ok(qn_weight_compare(ctx, w, back, &d, &err));
    assert_int_equal(d.count, 0);
    const qn_file *file = qn_checkpoint_file(c, 0);
    assert_string_equal(qn_file_get_metadata(file, "general.architecture"), "test");
    assert_ok(qn_file_value(file, "test.seven", &type, &value, &size));
    assert_true(type == QN_VALUE_U32 && size == 4 && memcmp(value, &seven, 4) == 0);
    assert_ok(qn_file_value(file, "test.words", &type, &value, &size));
    assert_true(type == QN_VALUE_ARRAY && size == sizeof words - 1);
    assert_memory_equal(value, words, size);
    assert_ok(qn_file_value(file, "general.architecture", &type, &value, &size));
    assert_true(type == QN_VALUE_TEXT && size == 4 && memcmp(value, "test", 4) == 0);
    assert_int_equal(qn_file_value(file, "none", &type, &value, &size), QN_E_NOT_FOUND);
    qn_checkpoint_close(c);
    qn_weight_destroy(back);
    qn_export_destroy(made);
    qn_weight_destroy(w);
    folder_remove(folder);
    qn_ctx_destroy(ctx);
}

static void test_long_name(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    char *folder = folder_make();
    const int64_t shape[1] = {3};
    char name[80];
    qn_writer *writer = NULL;
    qn_error err = {QN_OK, -1, ""};
    (void)state;
    memset(name, 'n', sizeof name);
    name[64] = 0;
    assert_ok(qn_writer_create(ctx, in(folder, "m.gguf"), &writer, &err));
    assert_ok(qn_writer_set_kind(writer, QN_FILE_GGUF, &err));
    assert_ok(qn_writer_add(writer, name, QN_F32, 1, shape, NULL, &err));
    assert_int_equal(qn_writer_begin(writer, 0, 0, &err), QN_E_ARGUMENT);
    assert_non_null(strstr(err.text, "at most 63 bytes"));
    qn_writer_abort(writer, 0);
    folder_remove(folder);
    qn_ctx_destroy(ctx);
}

/* ---- comparing ------------------------------------------------------------------------------- */

static void test_compare(void **state)
{
    qn_ctx *ctx = ctx_make(2);
    uint8_t codes[64 * 32], others[64 * 32];
    qn_weight_difference d;
    qn_error err;
    (void)state;
    for (int i = 0; i < 64 * 32; i++)
        codes[i] = others[i] = (uint8_t)(i * 5 % 16);
    others[40 * 32 + 3] ^= 1;
    others[50 * 32] ^= 2;
    qn_weight *a = uniform_make(ctx, "int4:g32", 64, 32, codes, 0.5f);
    qn_weight *b = uniform_make(ctx, "int4:g16:zp", 64, 32, codes, 0.5f);
    qn_weight *other = uniform_make(ctx, "int4:g32", 64, 32, others, 0.5f);
    qn_weight *small = uniform_make(ctx, "int4:g32", 32, 32, codes, 0.5f);
    qn_weight_difference_init(&d);
    assert_ok(qn_weight_compare(ctx, a, b, &d, &err));
    assert_int_equal(d.count, 0);
    assert_ok(qn_weight_compare(ctx, a, other, &d, &err));
    assert_true(d.count == 2 && d.row == 40 && d.column == 3 && d.a - d.b != 0);
    assert_int_equal(qn_weight_compare(ctx, a, small, &d, &err), QN_E_SHAPE);
    assert_int_equal(qn_weight_compare(ctx, a, NULL, &d, &err), QN_E_ARGUMENT);
    qn_weight_destroy(a);
    qn_weight_destroy(b);
    qn_weight_destroy(other);
    qn_weight_destroy(small);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),     cmocka_unit_test(test_bad),
        cmocka_unit_test(test_no_memory), cmocka_unit_test(test_onnx),
        cmocka_unit_test(test_gguf),      cmocka_unit_test(test_long_name),
        cmocka_unit_test(test_compare),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
