/* SPDX-License-Identifier: Apache-2.0 */
/* Reading safetensors: files made byte by byte, every rule of the format broken one at a time,
 * every length and every bit of small files. */
#include "files.h"

static void expect_refusal(const qn_ctx *ctx, const void *bytes, size_t size, const char *word)
{
    qn_file *file = NULL;
    qn_error err = {0};
    const qn_status status = open_bytes(ctx, bytes, size, &file, &err);
    if (status != QN_E_CORRUPT || err.status != status || strstr(err.text, word) == NULL)
        fail_msg("%s: '%s' does not say '%s'", qn_status_name(status), err.text, word);
    assert_null(file);
    assert_in_range(err.offset, 0, size);
}

static void expect_header_refusal(const qn_ctx *ctx, const char *header, size_t data_bytes,
                                  const char *word)
{
    size_t size;
    uint8_t data[64] = {0};
    uint8_t *bytes = safetensors_make(header, data, data_bytes, &size);
    expect_refusal(ctx, bytes, size, word);
    free(bytes);
}

/* The 66-byte file of docs/formats.md: the length of the header (56), its text padded with spaces,
 * two bytes of data. */
static const char golden[] = "\x38\0\0\0\0\0\0\0"
                             "{\"t\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}   "
                             "\x05\xfb";

static void test_golden(void **state)
{
    struct counted_ctx c;
    qn_file *file = NULL;
    qn_entry entry;
    const char *folder = folder_make(), *path = in(folder, "golden.safetensors");
    (void)state;
    assert_int_equal(sizeof golden - 1, 66);
    file_write(path, golden, 66);
    counted_make(&c);
    assert_ok(qn_file_open(c.ctx, path, &file, NULL));
    assert_int_equal(qn_file_get_kind(file), QN_FILE_SAFETENSORS);
    assert_int_equal(qn_file_count(file), 1);
    assert_ok(qn_file_entry(file, 0, &entry));
    assert_string_equal(entry.name, "t");
    assert_string_equal(entry.dtype, "I8");
    assert_int_equal(entry.offset, 64);
    assert_int_equal(entry.bytes, 2);
    assert_int_equal(entry.is_aligned, 1);
    assert_int_equal(entry.tensor.dtype, QN_I8);
    assert_int_equal(entry.tensor.rank, 1);
    assert_int_equal(entry.tensor.shape[0], 2);
    assert_int_equal(entry.tensor.stride[0], 1);
    assert_int_equal(((const int8_t *)entry.tensor.data)[0], 5);
    assert_int_equal(((const int8_t *)entry.tensor.data)[1], -5);
    assert_ok(qn_file_find(file, "t", &entry));
    assert_status(qn_file_find(file, "u", &entry), QN_E_NOT_FOUND);
    assert_status(qn_file_entry(file, 1, &entry), QN_E_ARGUMENT);
    assert_status(qn_file_entry(file, -1, &entry), QN_E_ARGUMENT);
    assert_status(qn_file_metadata(file, 0, NULL, NULL), QN_E_NOT_FOUND);
    assert_null(qn_file_get_metadata(file, "t"));
    assert_int_equal(qn_file_weight_count(file), 0);
    assert_null(qn_file_weight_name(file, 0));
    qn_file_forget(file, &entry);
    assert_int_equal(((const int8_t *)entry.tensor.data)[1], -5);
    qn_file_close(file);
    qn_file_close(NULL);
    counted_destroy(&c);
    folder_remove(folder);
}

/* Names, metadata, order, empty tensors, rank 0, unaligned data. */
static void test_rich(void **state)
{
    static const char header[] =
        "{ \"b\\u00e4r/\\ud834\\udd1e\" : {\"shape\":[], \"data_offsets\":[1,5], "
        "\"dtype\":\"F32\"},"
        "\"__metadata__\":{\"z\":\"last\",\"a\":\"\\\"q\\\"\",\"\":\"\"},"
        "\"empty\":{\"dtype\":\"F64\",\"shape\":[3,0,5],\"data_offsets\":[5,5]},"
        "\"\":{\"dtype\":\"BOOL\",\"shape\":[1,1],\"data_offsets\":[0,1]},"
        "\"first\":{\"dtype\":\"I64\",\"shape\":[0],\"data_offsets\":[0,0],\"note\":{\"x\":[1]}}}";
    const uint8_t data[5] = {1, 0, 0, 0xc0, 0x3f}; /* true, 1.5f */
    const qn_ctx *ctx = ctx_make(1);
    qn_file *file = NULL;
    qn_entry entry;
    const char *key = NULL, *value = NULL;
    size_t size;
    float out = 0.0f;
    (void)state;
    uint8_t *bytes = safetensors_make(header, data, sizeof data, &size);
    assert_ok(open_bytes(ctx, bytes, size, &file, NULL));
    static const char *const order[] = {"first", "", "b\xc3\xa4r/\xf0\x9d\x84\x9e", "empty"};
    assert_int_equal(qn_file_count(file), 4);
    for (int i = 0; i < 4; i++) {
        assert_ok(qn_file_entry(file, i, &entry));
        assert_string_equal(entry.name, order[i]);
        assert_ok(qn_file_find(file, order[i], &entry));
    }
    assert_int_equal(entry.bytes, 0);
    assert_int_equal(entry.tensor.rank, 3);
    assert_int_equal(entry.tensor.shape[2], 5);
    assert_ok(qn_file_find(file, order[2], &entry));
    assert_int_equal(entry.tensor.rank, 0);
    assert_int_equal(entry.is_aligned, 0);
    const qn_tensor scalar = qn_tensor_make(&out, QN_F32, 0, NULL);
    assert_ok(qn_entry_copy(&entry, &scalar));
    assert_true(out == 1.5f);
    assert_ok(qn_file_metadata(file, 0, &key, &value));
    assert_string_equal(key, "z");
    assert_string_equal(value, "last");
    assert_ok(qn_file_metadata(file, 2, &key, NULL));
    assert_string_equal(key, "");
    assert_status(qn_file_metadata(file, 3, &key, &value), QN_E_NOT_FOUND);
    assert_status(qn_file_metadata(file, -1, &key, &value), QN_E_ARGUMENT);
    assert_string_equal(qn_file_get_metadata(file, "a"), "\"q\"");
    assert_null(qn_file_get_metadata(file, "b"));
    qn_file_close(file);
    free(bytes);
    qn_ctx_destroy((qn_ctx *)(uintptr_t)ctx);
}

/* Types that cannot be viewed are listed; those whose size is known are still checked. */
static void test_types(void **state)
{
    static const struct {
        const char *spelling;
        int32_t bits; /* 0: unknown to everybody */
        qn_dtype dtype;
    } types[] = {
        {"BOOL", 8, QN_BOOL},
        {"U8", 8, QN_U8},
        {"I8", 8, QN_I8},
        {"F8_E5M2", 8, QN_E5M2},
        {"F8_E4M3", 8, QN_E4M3},
        {"F8_E8M0", 8, QN_E8M0},
        {"I16", 16, QN_I16},
        {"U16", 16, QN_U16},
        {"F16", 16, QN_F16},
        {"BF16", 16, QN_BF16},
        {"I32", 32, QN_I32},
        {"U32", 32, QN_U32},
        {"F32", 32, QN_F32},
        {"F64", 64, QN_F64},
        {"I64", 64, QN_I64},
        {"U64", 64, QN_U64},
        {"F4", 4, 0},
        {"F6_E2M3", 6, 0},
        {"F6_E3M2", 6, 0},
        {"C64", 64, 0},
        {"F8_E4M3FNUZ", 8, 0},
        {"F8_E5M2FNUZ", 8, 0},
        {"Q77", 0, 0},
        {"", 0, 0},
        {"f32", 0, 0},
    };
    qn_ctx *ctx = ctx_make(1);
    char header[160];
    uint8_t data[64] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        const int32_t bytes = types[i].bits; /* of 8 elements */
        const char *form = "{\"t\":{\"dtype\":\"%s\",\"shape\":[2,%d],\"data_offsets\":[0,%d]}}";
        qn_file *file = NULL;
        qn_entry entry;
        size_t size;
        snprintf(header, sizeof header, form, types[i].spelling, 4, bytes);
        uint8_t *file_data = safetensors_make(header, data, (size_t)bytes, &size);
        assert_ok(open_bytes(ctx, file_data, size, &file, NULL));
        assert_ok(qn_file_entry(file, 0, &entry));
        assert_string_equal(entry.dtype, types[i].spelling);
        assert_int_equal(entry.tensor.dtype, types[i].dtype);
        assert_int_equal(entry.tensor.shape[1], 4);
        assert_memory_equal(entry.tensor.data, data, entry.bytes);
        if (types[i].dtype == QN_DTYPE_NONE)
            assert_status(qn_entry_copy(&entry, &entry.tensor), QN_E_DTYPE);
        qn_file_close(file);
        free(file_data);
        snprintf(header, sizeof header, form, types[i].spelling, 5, bytes);
        if (types[i].bits > 0)
            expect_header_refusal(ctx, header, (size_t)bytes, "do not make");
    }
    /* Half a byte. */
    expect_header_refusal(ctx, "{\"t\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,1]}}", 1,
                          "do not make");
    expect_header_refusal(ctx, "{\"t\":{\"dtype\":\"F4\",\"shape\":[3],\"data_offsets\":[0,2]}}", 2,
                          "do not make");
    qn_ctx_destroy(ctx);
}

/* More dimensions than a view has: listed, not viewed. */
static void test_rank(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    qn_file *file = NULL;
    qn_entry entry;
    size_t size;
    uint8_t data[2] = {0};
    (void)state;
    uint8_t *bytes = safetensors_make(
        "{\"s\":{\"dtype\":\"I8\",\"shape\":[1,1,1,1,1,1],\"data_offsets\":[0,1]},"
        "\"t\":{\"dtype\":\"I8\",\"shape\":[1,1,1,1,1,1,1],\"data_offsets\":[1,2]}}",
        data, 2, &size);
    assert_ok(open_bytes(ctx, bytes, size, &file, NULL));
    assert_ok(qn_file_find(file, "s", &entry));
    assert_int_equal(entry.tensor.dtype, QN_I8);
    assert_ok(qn_file_find(file, "t", &entry));
    assert_int_equal(entry.tensor.dtype, QN_DTYPE_NONE);
    assert_string_equal(entry.dtype, "I8");
    qn_file_close(file);
    free(bytes);
    qn_ctx_destroy(ctx);
}

#define T(dtype, shape, span)                                                                      \
    "{\"t\":{\"dtype\":\"" dtype "\",\"shape\":" shape ",\"data_offsets\":" span "}}"

static void test_rules(void **state)
{
    static const struct {
        const char *header;
        size_t data_bytes;
        const char *word;
    } cases[] = {
        /* The header as JSON. */
        {" {}", 0, "does not begin with '{'"},
        {"[]", 0, "does not begin with '{'"},
        {"{", 0, "too early"},
        {"{}x", 0, "follows the end"},
        {"{\"t\":1}", 0, "object was expected"},
        {"{\"t\":{\"dtype\":\"\xff\"}}", 0, "UTF-8"},
        {"{\"t\\u0000\":{}}", 0, "NUL"},
        {T("I8", "[2]", "[0,2]") "{}", 2, "follows the end"},
        /* Fields. */
        {"{\"t\":{}}", 0, "lacks its dtype"},
        {"{\"t\":{\"dtype\":\"I8\",\"shape\":[2]}}", 2, "lacks its dtype"},
        {"{\"t\":{\"dtype\":\"I8\",\"data_offsets\":[0,2]}}", 2, "lacks its dtype"},
        {"{\"t\":{\"dtype\":\"I8\",\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}", 2,
         "occurs twice"},
        {"{\"t\":{\"dtype\":7,\"shape\":[2],\"data_offsets\":[0,2]}}", 2, "string was expected"},
        {T("I8", "2", "[0,2]"), 2, "array was expected"},
        {T("I8", "[2.0]", "[0,2]"), 2, "fraction"},
        {T("I8", "[-2]", "[0,2]"), 2, "at least 0"},
        {T("I8", "[\"2\"]", "[0,2]"), 2, "at least 0"},
        {T("I8", "[2]", "{}"), 2, "array was expected"},
        {T("I8", "[2]", "[]"), 2, "two integers"},
        {T("I8", "[2]", "[0]"), 2, "two integers"},
        {T("I8", "[2]", "[0,2,2]"), 2, "two integers"},
        {T("I8", "[2]", "[-1,1]"), 2, "at least 0"},
        {T("I8", "[2]", "[0,null]"), 2, "at least 0"},
        /* Names. */
        {"{\"t\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"t\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "two tensors are named 't'"},
        {"{\"\\u0074\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"t\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[1,2]}}",
         2, "two tensors are named 't'"},
        {"{\"__metadata__\":{},\"__metadata__\":{}}", 0, "occurs twice"},
        {"{\"__metadata__\":{\"a\":\"1\",\"b\":\"\",\"a\":\"2\"}}", 0, "key 'a' twice"},
        {"{\"__metadata__\":[]}", 0, "object was expected"},
        {"{\"__metadata__\":{\"a\":1}}", 0, "string was expected"},
        {"{\"__metadata__\":{\"a\":{\"b\":\"c\"}}}", 0, "string was expected"},
        {"{\"__metadata__\":null}", 0, "object was expected"},
        /* Spans. */
        {T("I8", "[2]", "[2,0]"), 2, "ends before it begins"},
        {T("I8", "[3]", "[0,3]"), 2, "truncated"},
        {T("I8", "[2]", "[0,2]"), 3, "1 bytes at the end belong to no tensor"},
        {T("I8", "[2]", "[1,3]"), 3, "belong to no tensor"},
        {T("I8", "[2]", "[9223372036854775805,9223372036854775807]"), 2, "truncated"},
        {T("I8", "[2]", "[0,18446744073709551615]"), 2, "larger than 2^63"},
        {T("I8", "[2]", "[18446744073709551615,1]"), 2, "larger than 2^63"},
        {"{\"s\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"t\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[1,3]}}",
         3, "overlaps"},
        {"{\"s\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]},"
         "\"t\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
         2, "overlaps"},
        {"{\"s\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[0,1]},"
         "\"t\":{\"dtype\":\"I8\",\"shape\":[1],\"data_offsets\":[2,3]}}",
         3, "belong to no tensor"},
        {"{\"s\":{\"dtype\":\"I8\",\"shape\":[0],\"data_offsets\":[1,1]},"
         "\"t\":{\"dtype\":\"I8\",\"shape\":[2],\"data_offsets\":[0,2]}}",
         2, "overlaps"},
        {"{}", 1, "belong to no tensor"},
        /* Sizes that overflow. */
        {T("I8", "[4294967296,4294967296]", "[0,0]"), 0, "overflows"},
        {T("I8", "[9223372036854775807,2]", "[0,2]"), 2, "overflows"},
        {T("F64", "[2305843009213693952]", "[0,0]"), 0, "overflows"},
        {T("I8", "[4294967296,4294967296,0]", "[0,0]"), 0, "overflows"},
        {T("I8", "[0,4294967296,4294967296]", "[0,0]"), 0, "overflows"},
        {T("I8", "[9223372036854775808]", "[0,2]"), 2, "larger than 2^63"},
        {T("F32", "[1]", "[0,2]"), 2, "1 elements of F32 do not make 2 bytes"},
        {T("F32", "[]", "[0,0]"), 0, "do not make"},
        {T("F32", "[0]", "[0,4]"), 4, "do not make"},
    };
    struct counted_ctx c;
    (void)state;
    counted_make(&c);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        expect_header_refusal(c.ctx, cases[i].header, cases[i].data_bytes, cases[i].word);
        counted_check(&c);
    }
    counted_destroy(&c);
}

/* The eight bytes in front. */
static void test_length(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    uint8_t bytes[72];
    uint64_t n;
    (void)state;
    memcpy(bytes, golden, 66);
    expect_refusal(ctx, bytes, 0, "empty");
    expect_refusal(ctx, bytes, 7, "too few");
    n = 0;
    memcpy(bytes, &n, 8);
    expect_refusal(ctx, bytes, 66, "does not begin");
    n = 59;
    memcpy(bytes, &n, 8);
    expect_refusal(ctx, bytes, 66, "truncated");
    n = 100000001;
    memcpy(bytes, &n, 8);
    expect_refusal(ctx, bytes, 66, "allows 100000000");
    n = UINT64_MAX;
    memcpy(bytes, &n, 8);
    expect_refusal(ctx, bytes, 66, "allows 100000000");
    n = UINT64_MAX - 7;
    memcpy(bytes, &n, 8);
    expect_refusal(ctx, bytes, 66, "allows 100000000");
    /* What people try to open. */
    expect_refusal(ctx, "GGUF\3\0\0\0\0\0\0\0\0\0\0\0", 16, "GGUF");
    expect_refusal(ctx, "PK\3\4abcdefghijkl", 16, "zip");
    expect_refusal(ctx, "\x80\2}q\0abcdefgh", 13, "pickle");
    expect_refusal(ctx, "{\"metadata\":{}}", 15, "JSON");
    expect_refusal(ctx, "GGUF", 4, "GGUF");
    qn_ctx_destroy(ctx);
}

/* A header of the greatest length is read; one byte more is refused before anything is allocated.
 */
static void test_long_header(void **state)
{
    struct counted_ctx c;
    const uint64_t limit = 100000000;
    uint8_t *bytes = malloc(limit + 9);
    qn_file *file = NULL;
    (void)state;
    counted_make(&c);
    assert_non_null(bytes);
    memset(bytes, ' ', limit + 9);
    memcpy(bytes, &limit, 8);
    memcpy(bytes + 8, "{}", 2);
    assert_ok(open_bytes(c.ctx, bytes, limit + 8, &file, NULL));
    qn_file_close(file);
    c.counter.largest_bytes = 0;
    const uint64_t above = limit + 1;
    memcpy(bytes, &above, 8);
    expect_refusal(c.ctx, bytes, limit + 9, "allows 100000000");
    assert_true(c.counter.largest_bytes < 4096);
    free(bytes);
    counted_destroy(&c);
}

/* Whatever small files claim, memory stays small. */
static void test_small_memory(void **state)
{
    static const char *const headers[] = {
        T("F32", "[9007199254740991]", "[0,36028797018963964]"),
        T("F64", "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1]", "[0,8]"),
        "{\"__metadata__\":{\"quern.weight.t\":\"{\\\"version\\\":1}\"}}",
    };
    struct counted_ctx c;
    uint8_t data[8] = {0};
    (void)state;
    counted_make(&c);
    for (size_t i = 0; i < sizeof headers / sizeof *headers; i++) {
        qn_file *file = NULL;
        size_t size;
        uint8_t *bytes = safetensors_make(headers[i], data, i == 2 ? 0 : 8, &size);
        open_bytes(c.ctx, bytes, size, &file, NULL);
        assert_true(c.counter.largest_bytes < 8192);
        qn_file_close(file);
        free(bytes);
    }
    counted_destroy(&c);
}

/* Read everything that an open file offers, so that a wrong bound is noticed. */
static void touch(const qn_file *file)
{
    qn_entry entry;
    const char *key = NULL, *value = NULL;
    size_t sum = 0;
    for (int64_t i = 0; i < qn_file_count(file); i++) {
        assert_ok(qn_file_entry(file, i, &entry));
        sum += strlen(entry.name) + strlen(entry.dtype);
        const uint8_t *data = entry.tensor.data;
        for (size_t b = 0; data != NULL && b < entry.bytes; b++)
            sum += data[b];
        qn_entry found;
        assert_ok(qn_file_find(file, entry.name, &found));
        assert_int_equal(found.offset, entry.offset);
        if (entry.tensor.dtype != QN_DTYPE_NONE) {
            int64_t elements = 0;
            size_t extent = 0;
            assert_ok(qn_tensor_extent(&entry.tensor, &elements, &extent));
            assert_int_equal(extent, entry.bytes);
        }
    }
    for (int64_t i = 0; qn_file_metadata(file, i, &key, &value) == QN_OK; i++)
        assert_ptr_equal(qn_file_get_metadata(file, key), value);
    assert_true(sum < SIZE_MAX);
}

/* Every length below the right one is refused; every flipped bit gives an error or a valid reading.
 */
static void damage(const uint8_t *bytes, size_t size)
{
    struct counted_ctx c;
    counted_make(&c);
    for (size_t length = 0; length < size; length++) {
        qn_file *file = NULL;
        qn_error err = {0};
        uint8_t *copy = malloc(length > 0 ? length : 1);
        assert_non_null(copy);
        memcpy(copy, bytes, length);
        assert_status(open_bytes(c.ctx, copy, length, &file, &err), QN_E_CORRUPT);
        assert_true(err.text[0] != 0);
        assert_in_range(err.offset, 0, size);
        counted_check(&c);
        free(copy);
    }
    int valid = 0;
    uint8_t *copy = malloc(size);
    assert_non_null(copy);
    for (size_t bit = 0; bit < 8 * size; bit++) {
        qn_file *file = NULL;
        qn_error err = {0};
        memcpy(copy, bytes, size);
        copy[bit / 8] ^= (uint8_t)(1u << bit % 8);
        const qn_status status = open_bytes(c.ctx, copy, size, &file, &err);
        if (status == QN_OK) {
            touch(file);
            valid++;
        } else {
            assert_int_equal(status, QN_E_CORRUPT);
            assert_in_range(err.offset, 0, size);
        }
        qn_file_close(file);
        counted_check(&c);
    }
    assert_true(valid > 0); /* the data's bits at least */
    free(copy);
    counted_destroy(&c);
}

static void test_damage(void **state)
{
    static const char header[] =
        "{\"__metadata__\":{\"format\":\"pt\"},"
        "\"a\":{\"dtype\":\"F32\",\"shape\":[2,1],\"data_offsets\":[0,8]},"
        "\"b\\u00e9\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[8,11]},"
        "\"c\":{\"dtype\":\"BF16\",\"shape\":[0,7],\"data_offsets\":[11,11]}}";
    const uint8_t data[11] = {0, 0, 0x80, 0x3f, 0, 0, 0, 0x40, 7, 8, 9};
    size_t size;
    (void)state;
    damage((const uint8_t *)golden, 66);
    uint8_t *bytes = safetensors_make(header, data, sizeof data, &size);
    damage(bytes, size);
    free(bytes);
}

/* Many tensors, declared in an order that is not that of their data. */
static void test_many(void **state)
{
    enum { COUNT = 5000 };
    struct counted_ctx c;
    qn_file *file = NULL;
    qn_entry entry;
    char *header = malloc(COUNT * 80);
    uint8_t *data = calloc(COUNT, 1);
    size_t used = 1, size;
    (void)state;
    assert_non_null(header);
    assert_non_null(data);
    counted_make(&c);
    header[0] = '{';
    for (int i = 0; i < COUNT; i++) {
        const int at = (int)((int64_t)i * 1237 % COUNT); /* 1237 and 5000 share no factor */
        used +=
            (size_t)snprintf(header + used, 80,
                             "%s\"n%d\":{\"dtype\":\"U8\",\"shape\":[1],\"data_offsets\":[%d,%d]}",
                             i == 0 ? "" : ",", at, at, at + 1);
    }
    strcpy(header + used, "}");
    uint8_t *bytes = safetensors_make(header, data, COUNT, &size);
    assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
    assert_int_equal(qn_file_count(file), COUNT);
    for (int i = 0; i < COUNT; i++) {
        char name[16];
        snprintf(name, sizeof name, "n%d", i);
        assert_ok(qn_file_entry(file, i, &entry));
        assert_string_equal(entry.name, name);
        assert_ok(qn_file_find(file, name, &entry));
        assert_int_equal(entry.offset, size - COUNT + (size_t)i);
    }
    qn_file_close(file);
    free(bytes);
    free(header);
    free(data);
    counted_destroy(&c);
}

/* No memory at any point: an error, nothing lost. */
static void test_no_memory(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    struct counted_ctx c;
    qn_file *file = NULL;
    (void)state;
    file_write(path, golden, 66);
    counted_make(&c);
    int64_t failures = 0;
    for (;; failures++) {
        qn_error err = {0};
        c.counter.refuse = c.counter.calls + failures + 1;
        const qn_status status = qn_file_open(c.ctx, path, &file, &err);
        if (status == QN_OK)
            break;
        assert_int_equal(status, QN_E_MEMORY);
        assert_int_equal(err.status, QN_E_MEMORY);
        assert_null(file);
        counted_check(&c);
    }
    assert_true(failures >= 5);
    qn_file_close(file);
    counted_destroy(&c);
    folder_remove(folder);
}

/* Of a long path the end is shown, and no half letter. */
static void test_long_paths(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    qn_file *file = NULL;
    qn_error why;
    char path[400];
    (void)state;
    for (size_t extra = 0; extra < 2; extra++) {
        for (size_t i = 0; i < 300; i += 2)
            memcpy(path + i, "\xc3\xa4", 2);
        snprintf(path + 300, 16, "/absent%s", extra == 0 ? "" : "s");
        assert_status(qn_file_open(ctx, path, &file, &why), QN_E_OPEN);
        const size_t shown = strcspn(why.text, ":");
        assert_in_range(shown, 242, 243);
        assert_memory_equal(why.text, "...\xc3\xa4", 5);
        assert_memory_equal(why.text + 3, path + strlen(path) - (shown - 3), shown - 3);
    }
    qn_ctx_destroy(ctx);
}

/* Paths that are no files. */
static void test_paths(void **state)
{
    const char *folder = folder_make();
    qn_ctx *ctx = ctx_make(1);
    qn_file *file = NULL;
    (void)state;
    const char *absent = in(folder, "absent");
    assert_error(qn_file_open(ctx, absent, &file, &err), QN_E_OPEN, "absent: cannot");
    assert_error(qn_file_open(ctx, absent, &file, &err), QN_E_OPEN, absent);
    assert_error(qn_file_open(ctx, folder, &file, &err), QN_E_OPEN, "folder");
    assert_error(qn_file_open(ctx, "", &file, &err), QN_E_OPEN, "no such file");
    file_write(in(folder, "file"), golden, 66);
    assert_error(qn_file_open(ctx, in(folder, "file/below"), &file, &err), QN_E_OPEN,
                 "not a folder");
    assert_int_equal(mkfifo(in(folder, "pipe"), 0600), 0);
    assert_error(qn_file_open(ctx, in(folder, "pipe"), &file, &err), QN_E_OPEN, "regular");
    assert_error(qn_file_open(ctx, "/dev/null", &file, &err), QN_E_OPEN, "regular");
    file_write(in(folder, "empty"), "", 0);
    assert_error(qn_file_open(ctx, in(folder, "empty"), &file, &err), QN_E_CORRUPT, "empty");
    assert_error(qn_file_open(NULL, in(folder, "file"), &file, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_file_open(ctx, NULL, &file, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_file_open(ctx, in(folder, "file"), NULL, &err), QN_E_ARGUMENT, "NULL");
    /* Control characters of a name do not reach the terminal; err may be NULL. */
    file_write(in(folder, "\x1b[31mred"), "x", 1);
    assert_error(qn_file_open(ctx, in(folder, "\x1b[31mred"), &file, &err), QN_E_CORRUPT,
                 "?[31mred: ");
    assert_status(qn_file_open(ctx, in(folder, "\x1b[31mred"), &file, NULL), QN_E_CORRUPT);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),      cmocka_unit_test(test_rich),
        cmocka_unit_test(test_types),       cmocka_unit_test(test_rank),
        cmocka_unit_test(test_rules),       cmocka_unit_test(test_length),
        cmocka_unit_test(test_long_header), cmocka_unit_test(test_small_memory),
        cmocka_unit_test(test_damage),      cmocka_unit_test(test_many),
        cmocka_unit_test(test_no_memory),   cmocka_unit_test(test_paths),
        cmocka_unit_test(test_long_paths),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
