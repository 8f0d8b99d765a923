/* SPDX-License-Identifier: Apache-2.0 */
/* npy: every version and type, headers that lie, and what is written read back. */
#include "files.h"

/* A file of the given version from the text of its header. */
static uint8_t *npy_make(int major, const char *header, const void *data, size_t data_bytes,
                         size_t *size)
{
    const size_t prefix = major == 1 ? 10 : 12, length = strlen(header);
    const uint32_t n = (uint32_t)length;
    *size = prefix + length + data_bytes;
    uint8_t *bytes = malloc(*size);
    assert_non_null(bytes);
    memcpy(bytes, "\x93NUMPY", 6);
    bytes[6] = (uint8_t)major;
    bytes[7] = 0;
    memcpy(bytes + 8, &n, prefix - 8);
    memcpy(bytes + prefix, header, length);
    if (data_bytes > 0)
        memcpy(bytes + prefix + length, data, data_bytes);
    return bytes;
}

static void test_versions(void **state)
{
    static const char header[] = "{'descr': '<i2', 'fortran_order': False, 'shape': (2, 3), }  \n";
    static const int16_t data[6] = {1, -2, 3, -4, 5, -6};
    struct counted_ctx c;
    (void)state;
    counted_make(&c);
    for (int major = 1; major <= 3; major++) {
        qn_file *file = NULL;
        qn_entry entry;
        size_t size;
        uint8_t *bytes = npy_make(major, header, data, sizeof data, &size);
        assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
        assert_int_equal(qn_file_get_kind(file), QN_FILE_NPY);
        assert_int_equal(qn_file_count(file), 1);
        assert_ok(qn_file_entry(file, 0, &entry));
        assert_string_equal(entry.name, "");
        assert_string_equal(entry.dtype, "<i2");
        assert_int_equal(entry.tensor.dtype, QN_I16);
        assert_int_equal(entry.tensor.rank, 2);
        assert_int_equal(entry.tensor.shape[0], 2);
        assert_int_equal(entry.tensor.shape[1], 3);
        assert_int_equal(entry.tensor.stride[0], 3);
        assert_int_equal(entry.tensor.stride[1], 1);
        assert_memory_equal(entry.tensor.data, data, sizeof data);
        assert_ok(qn_file_find(file, "", &entry));
        assert_status(qn_file_metadata(file, 0, NULL, NULL), QN_E_NOT_FOUND);
        qn_file_close(file);
        free(bytes);
    }
    counted_destroy(&c);
}

/* Other spellings that Python reads too: quotes, order of keys, blanks, Python 2's long integers.
 */
static void test_spellings(void **state)
{
    static const struct {
        const char *header;
        int32_t rank;
        size_t bytes;
    } cases[] = {
        {"{\"shape\":(2,),\"descr\":\"|u1\",\"fortran_order\":False}", 1, 2},
        {"{ 'fortran_order' : False , 'shape' : ( 2L , 1L ) , 'descr' : '|u1' }\n", 2, 2},
        {"{'descr': '|b1', 'fortran_order': False, 'shape': (), }", 0, 1},
        {"{'descr': '|u1', 'fortran_order': False, 'shape': (0, 7)}", 2, 0},
        {"{'descr': '>u1', 'fortran_order': False, 'shape': (3,)}", 1, 3},
        {"{'descr': '=f2', 'fortran_order': False, 'shape': (1,)}", 1, 2},
    };
    qn_ctx *ctx = ctx_make(1);
    uint8_t data[8] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_file *file = NULL;
        qn_entry entry;
        size_t size;
        uint8_t *bytes = npy_make(1, cases[i].header, data, cases[i].bytes, &size);
        qn_error err = {0};
        if (open_bytes(ctx, bytes, size, &file, &err) != QN_OK)
            fail_msg("%s: %s", cases[i].header, err.text);
        assert_ok(qn_file_entry(file, 0, &entry));
        assert_int_equal(entry.tensor.rank, cases[i].rank);
        assert_int_equal(entry.bytes, cases[i].bytes);
        qn_file_close(file);
        free(bytes);
    }
    qn_ctx_destroy(ctx);
}

/* Plain types that the library lacks are listed. */
static void test_unknown_types(void **state)
{
    static const struct {
        const char *descr;
        size_t bytes; /* of an element */
    } types[] = {{"<c8", 8}, {"<c16", 16},   {"<U3", 12}, {"|S5", 5},
                 {"|V2", 2}, {"<M8[ns]", 8}, {"<m8", 8},  {"<f16", 16}};
    qn_ctx *ctx = ctx_make(1);
    uint8_t data[64] = {0};
    char header[128];
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        qn_file *file = NULL;
        qn_entry entry;
        size_t size;
        snprintf(header, sizeof header, "{'descr': '%s', 'fortran_order': False, 'shape': (2,)}",
                 types[i].descr);
        uint8_t *bytes = npy_make(1, header, data, 2 * types[i].bytes, &size);
        assert_ok(open_bytes(ctx, bytes, size, &file, NULL));
        assert_ok(qn_file_entry(file, 0, &entry));
        assert_string_equal(entry.dtype, types[i].descr);
        assert_int_equal(entry.tensor.dtype, QN_DTYPE_NONE);
        assert_int_equal(entry.bytes, 2 * types[i].bytes);
        assert_memory_equal(entry.tensor.data, data, entry.bytes);
        qn_file_close(file);
        free(bytes);
    }
    qn_ctx_destroy(ctx);
}

/* Fortran order: strides say it, and a copy is row-major. */
static void test_fortran(void **state)
{
    static const char header[] = "{'descr': '<f4', 'fortran_order': True, 'shape': (2, 3)}";
    static const float data[6] = {1, 4, 2, 5, 3, 6};
    qn_ctx *ctx = ctx_make(1);
    qn_file *file = NULL;
    qn_entry entry;
    size_t size;
    double out[6];
    (void)state;
    uint8_t *bytes = npy_make(1, header, data, sizeof data, &size);
    assert_ok(open_bytes(ctx, bytes, size, &file, NULL));
    assert_ok(qn_file_entry(file, 0, &entry));
    assert_int_equal(entry.tensor.stride[0], 1);
    assert_int_equal(entry.tensor.stride[1], 2);
    const qn_tensor to = qn_tensor_2d(out, QN_F64, 2, 3);
    assert_ok(qn_entry_copy(&entry, &to));
    for (int i = 0; i < 6; i++)
        assert_true(out[i] == i + 1);
    qn_file_close(file);
    free(bytes);
    qn_ctx_destroy(ctx);
}

static void refuse(const qn_ctx *ctx, const void *bytes, size_t size, qn_status expected,
                   const char *word)
{
    qn_file *file = NULL;
    qn_error err = {0};
    const qn_status status = open_bytes(ctx, bytes, size, &file, &err);
    if (status != expected || err.status != expected || strstr(err.text, word) == NULL)
        fail_msg("%s: '%s' does not say '%s'", qn_status_name(status), err.text, word);
    assert_in_range(err.offset, 0, size);
}

#define H(descr, order, shape)                                                                     \
    "{'descr': " descr ", 'fortran_order': " order ", 'shape': " shape "}"

static void test_rules(void **state)
{
    static const struct {
        const char *header;
        qn_status status;
        const char *word;
    } cases[] = {
        {H("'>f4'", "False", "(1,)"), QN_E_DTYPE, "big-endian"},
        {H("'|O'", "False", "(1,)"), QN_E_DTYPE, "pickles"},
        {H("'|O8'", "False", "(1,)"), QN_E_DTYPE, "pickles"},
        {H("[('a', '<f4')]", "False", "(1,)"), QN_E_CORRUPT, "structured"},
        {H("'f4'", "False", "(1,)"), QN_E_CORRUPT, "byte order"},
        {H("''", "False", "(1,)"), QN_E_CORRUPT, "byte order"},
        {H("'<'", "False", "(1,)"), QN_E_CORRUPT, "no plain element type"},
        {H("'<f'", "False", "(1,)"), QN_E_CORRUPT, "no plain element type"},
        {H("'<q4'", "False", "(1,)"), QN_E_CORRUPT, "no plain element type"},
        {H("'<f4x'", "False", "(1,)"), QN_E_CORRUPT, "no plain element type"},
        {H("'<f9999999999'", "False", "(1,)"), QN_E_CORRUPT, "absurd"},
        {H("'<f4\\x00'", "False", "(1,)"), QN_E_CORRUPT, "plain letters"},
        {H("'<f444444444444444444444444444444444444'", "False", "(1,)"), QN_E_CORRUPT, "too long"},
        {H("4", "False", "(1,)"), QN_E_CORRUPT, "quoted text"},
        {H("'<f4'", "0", "(1,)"), QN_E_CORRUPT, "True or False"},
        {H("'<f4'", "false", "(1,)"), QN_E_CORRUPT, "True or False"},
        {H("'<f4'", "False", "1"), QN_E_CORRUPT, "tuple"},
        {H("'<f4'", "False", "(1)"), QN_E_CORRUPT, "comma is missing"},
        {H("'<f4'", "False", "[1]"), QN_E_CORRUPT, "tuple"},
        {H("'<f4'", "False", "(-1,)"), QN_E_CORRUPT, "at least 0"},
        {H("'<f4'", "False", "(1.0,)"), QN_E_CORRUPT, "comma or ')'"},
        {H("'<f4'", "False", "(,)"), QN_E_CORRUPT, "at least 0"},
        {H("'<f4'", "False", "(1,,)"), QN_E_CORRUPT, "at least 0"},
        {H("'<f4'", "False", "(1 1)"), QN_E_CORRUPT, "comma or ')'"},
        {H("'<f4'", "False", "(1,"), QN_E_CORRUPT, "at least 0"},
        {H("'<f4'", "False", "(9223372036854775808,)"), QN_E_CORRUPT, "larger than 2^63"},
        {H("'<f4'", "False", "(4294967296, 4294967296)"), QN_E_CORRUPT, "overflows"},
        {H("'<f4'", "False", "(0, 4294967296, 4294967296)"), QN_E_CORRUPT, "overflows"},
        {H("'<f8'", "False", "(2305843009213693952,)"), QN_E_CORRUPT, "overflows"},
        {H("'<f4'", "False", "(1000000000,)"), QN_E_CORRUPT, "truncated"},
        {H("'<f4'", "False", "(0,)"), QN_E_CORRUPT, "4 follow the header"},
        {"{}", QN_E_CORRUPT, "is missing"},
        {"{'descr': '<f4', 'shape': (1,)}", QN_E_CORRUPT, "is missing"},
        {"{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", QN_E_CORRUPT,
         "twice"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'x': 1}", QN_E_CORRUPT,
         "unknown key"},
        {"{'descr' '<f4'}", QN_E_CORRUPT, "colon"},
        {"{'descr': '<f4' 'fortran_order': False}", QN_E_CORRUPT, "comma or '}'"},
        {"{'descr': '<f4", QN_E_CORRUPT, "ends inside a text"},
        {"{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", QN_E_CORRUPT,
         "follows the dict"},
        {"['descr']", QN_E_CORRUPT, "no dict"},
        {"", QN_E_CORRUPT, "no dict"},
        {"{'descr': __import__('os').system('x')}", QN_E_CORRUPT, "quoted text"},
    };
    struct counted_ctx c;
    const float one = 1.0f;
    (void)state;
    counted_make(&c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t size;
        uint8_t *bytes = npy_make(1, cases[i].header, &one, sizeof one, &size);
        refuse(c.ctx, bytes, size, cases[i].status, cases[i].word);
        free(bytes);
        counted_check(&c);
    }
    size_t size;
    uint8_t *bytes = npy_make(1, H("'<f4'", "False", "(1,)"), &one, sizeof one, &size);
    bytes[6] = 4;
    refuse(c.ctx, bytes, size, QN_E_CORRUPT, "version 4.0");
    bytes[6] = 0;
    refuse(c.ctx, bytes, size, QN_E_CORRUPT, "version 0.0");
    bytes[6] = bytes[7] = 1;
    refuse(c.ctx, bytes, size, QN_E_CORRUPT, "version 1.1");
    bytes[6] = 2;
    bytes[7] = 0;
    refuse(c.ctx, bytes, size, QN_E_CORRUPT, "limit is 65535");
    free(bytes);
    assert_true(c.counter.largest_bytes < 4096);
    counted_destroy(&c);
}

/* Every length, every bit. */
static void test_damage(void **state)
{
    static const char header[] = "{'descr': '<u2', 'fortran_order': True, 'shape': (2, 2), }\n";
    static const uint16_t data[4] = {1, 2, 3, 4};
    struct counted_ctx c;
    (void)state;
    counted_make(&c);
    for (int major = 1; major <= 2; major++) {
        size_t size;
        int valid = 0;
        uint8_t *bytes = npy_make(major, header, data, sizeof data, &size);
        for (size_t length = 0; length < size; length++) {
            qn_file *file = NULL;
            uint8_t *copy = malloc(length > 0 ? length : 1);
            memcpy(copy, bytes, length);
            assert_status(open_bytes(c.ctx, copy, length, &file, NULL), QN_E_CORRUPT);
            free(copy);
        }
        for (size_t bit = 0; bit < 8 * size; bit++) {
            qn_file *file = NULL;
            qn_entry entry;
            uint16_t out[4];
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            const qn_status status = open_bytes(c.ctx, bytes, size, &file, NULL);
            if (status == QN_OK) {
                valid++;
                assert_ok(qn_file_entry(file, 0, &entry));
                assert_true(entry.bytes <= sizeof data);
                qn_tensor to = entry.tensor;
                to.data = out;
                qni_tensor_strides(&to, false);
                if (entry.tensor.dtype != QN_DTYPE_NONE)
                    assert_ok(qn_entry_copy(&entry, &to));
            } else {
                assert_true(status == QN_E_CORRUPT || status == QN_E_DTYPE);
            }
            qn_file_close(file);
            bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        assert_true(valid >= (int)(8 * sizeof data));
        free(bytes);
        counted_check(&c);
    }
    counted_destroy(&c);
}

/* The bytes that are written, checked one by one. */
static void test_write_golden(void **state)
{
    static const char expected[] =
        "\x93NUMPY\x01\0\x76\0{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
    const char *folder = folder_make(), *path = in(folder, "x.npy");
    float data[12];
    size_t size;
    (void)state;
    for (int i = 0; i < 12; i++)
        data[i] = (float)i;
    /* Every second column of a [2, 6] array. */
    qn_tensor tensor = qn_tensor_2d(data, QN_F32, 2, 3);
    tensor.stride[0] = 6;
    tensor.stride[1] = 2;
    assert_ok(qn_npy_write(path, &tensor, 0, NULL));
    uint8_t *bytes = file_bytes(path, &size);
    assert_int_equal(size, 128 + 24);
    assert_memory_equal(bytes, expected, sizeof expected - 1);
    for (size_t i = sizeof expected - 1; i < 127; i++)
        assert_int_equal(bytes[i], ' ');
    assert_int_equal(bytes[127], '\n');
    const float values[6] = {0, 2, 4, 6, 8, 10};
    assert_memory_equal(bytes + 128, values, sizeof values);
    free(bytes);
    assert_int_equal(folder_count(folder), 1);
    folder_remove(folder);
}

/* Every type and rank there and back; strides of 0; large enough for several blocks. */
static void test_round_trip(void **state)
{
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_F64, QN_I8,  QN_I16, QN_I32,
                                     QN_I64, QN_U8,  QN_U16, QN_U32, QN_U64, QN_BOOL};
    const char *folder = folder_make(), *path = in(folder, "x.npy");
    qn_ctx *ctx = ctx_make(1);
    uint8_t data[9000];
    (void)state;
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 7 + 3);
    for (size_t t = 0; t < sizeof types / sizeof *types; t++)
        for (int32_t rank = 0; rank <= QN_MAX_RANK; rank++) {
            const int64_t shape[QN_MAX_RANK] = {3, 2, 5, 1, 2, 3};
            qn_file *file = NULL;
            qn_entry entry;
            const qn_tensor tensor = qn_tensor_make(data, types[t], rank, shape);
            assert_ok(qn_npy_write(path, &tensor, 1, NULL));
            assert_ok(qn_file_open(ctx, path, &file, NULL));
            assert_ok(qn_file_entry(file, 0, &entry));
            assert_int_equal(entry.tensor.dtype, types[t]);
            assert_int_equal(entry.tensor.rank, rank);
            assert_int_equal(entry.offset % 64, 0);
            assert_memory_equal(entry.tensor.shape, shape, (size_t)rank * sizeof *shape);
            assert_memory_equal(entry.tensor.data, data, entry.bytes);
            qn_file_close(file);
        }
    /* One row repeated 5000 times. */
    qn_file *file = NULL;
    qn_entry entry;
    qn_tensor rows = qn_tensor_2d(data, QN_F32, 5000, 3);
    rows.stride[0] = 0;
    assert_ok(qn_npy_write(path, &rows, 1, NULL));
    assert_ok(qn_file_open(ctx, path, &file, NULL));
    assert_ok(qn_file_entry(file, 0, &entry));
    for (size_t i = 0; i < 5000; i++)
        assert_memory_equal((uint8_t *)entry.tensor.data + 12 * i, data, 12);
    qn_file_close(file);
    const qn_tensor none = qn_tensor_2d(NULL, QN_F32, 0, 3);
    assert_ok(qn_npy_write(path, &none, 1, NULL));
    assert_ok(qn_file_open(ctx, path, &file, NULL));
    qn_file_close(file);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

static void test_write_errors(void **state)
{
    const char *folder = folder_make();
    float x = 1.0f;
    qn_tensor tensor = qn_tensor_1d(&x, QN_F32, 1);
    (void)state;
    file_write(in(folder, "taken"), "old", 3);
    assert_error(qn_npy_write(in(folder, "taken"), &tensor, 0, &err), QN_E_EXISTS, "exists");
    assert_error(qn_npy_write(folder, &tensor, 1, &err), QN_E_OPEN, "folder");
    assert_error(qn_npy_write(in(folder, "no/x"), &tensor, 1, &err), QN_E_OPEN, "no such file");
    assert_error(qn_npy_write(in(folder, "no/x"), &tensor, 1, &err), QN_E_OPEN,
                 in(folder, "no/x: "));
    assert_error(qn_npy_write(in(folder, "taken/x"), &tensor, 1, &err), QN_E_OPEN, "not a folder");
    assert_error(qn_npy_write(NULL, &tensor, 1, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_npy_write(in(folder, "x"), NULL, 1, &err), QN_E_ARGUMENT, "NULL");
    tensor.dtype = QN_BF16;
    assert_error(qn_npy_write(in(folder, "x"), &tensor, 1, &err), QN_E_DTYPE, "bf16");
    tensor.dtype = QN_F32;
    tensor.data = NULL;
    assert_error(qn_npy_write(in(folder, "x"), &tensor, 1, &err), QN_E_ARGUMENT, "CPU memory");
    tensor.data = &x;
    tensor.shape[0] = -1;
    assert_status(qn_npy_write(in(folder, "x"), &tensor, 1, NULL), QN_E_ARGUMENT);
    assert_int_equal(folder_count(folder), 1);
    size_t size;
    uint8_t *bytes = file_bytes(in(folder, "taken"), &size);
    assert_int_equal(size, 3);
    free(bytes);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_versions),      cmocka_unit_test(test_spellings),
        cmocka_unit_test(test_unknown_types), cmocka_unit_test(test_fortran),
        cmocka_unit_test(test_rules),         cmocka_unit_test(test_damage),
        cmocka_unit_test(test_write_golden),  cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_write_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
