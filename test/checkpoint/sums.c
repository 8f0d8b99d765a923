/* SPDX-License-Identifier: Apache-2.0 */
/* Checksums: every tensor of a file with weights has one, and its header, no flipped bit gets past
 * them, files without them still load; and packed weights against what packing makes of
 * their own codes. */
#include "packed_bytes.h"

static const struct shape shape = {18, 72, 1, 1, 1};

/* A quantized weight, packed weights and a plain tensor in one file. */
static uint8_t *mixed_file(const qn_ctx *ctx, size_t *size)
{
    static const int64_t five = 5;
    float plain[5] = {1, 2, 3, 4, 5};
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_writer *writer = NULL;
    qn_weight_parts parts;
    int64_t index[3];
    qn_weight *weight = weight_make(ctx, "int4:g32:zp", shape, 3);
    qn_packed *packed = packed_make(ctx, "nf4:g16", shape, 5, NULL);
    qn_weight_parts_init(&parts);
    assert_ok(qn_weight_view(weight, &parts));
    assert_ok(qn_writer_create(ctx, path, &writer, NULL));
    assert_error(qn_writer_metadata(writer, "quern.xxh64.a", "0", &err), QN_E_ARGUMENT,
                 "checksums");
    assert_error(qn_writer_metadata(writer, "quern.header", "0", &err), QN_E_ARGUMENT, "header's");
    assert_error(qn_writer_metadata(writer, "quern.header.xxh64", "0", &err), QN_E_ARGUMENT,
                 "header's");
    assert_ok(qn_writer_add_weight(writer, "w", &parts, &index[0], NULL));
    assert_ok(qn_writer_add(writer, "pl\"ain\xcf\x80", QN_F32, 1, &five, &index[1], NULL));
    assert_ok(qn_writer_add_packed(writer, "p", packed, &index[2], NULL));
    assert_ok(qn_writer_begin(writer, 0, 0, NULL));
    const qn_tensor t = qn_tensor_make(plain, QN_F32, 1, &five);
    assert_ok(qn_writer_put(writer, index[1], &t, NULL));
    assert_ok(qn_writer_put_packed(writer, index[2], ctx, packed, NULL));
    assert_ok(qn_writer_put_weight(writer, index[0], weight, NULL));
    assert_ok(qn_writer_finish(writer, NULL));
    qn_weight_destroy(weight);
    qn_packed_destroy(packed);
    uint8_t *bytes = file_bytes(path, size), *aligned = take(*size);
    memcpy(aligned, bytes, *size);
    free(bytes);
    folder_remove(folder);
    return aligned;
}

/* Tensors that have a checksum; *bad: of those, how many are not what was written. */
static int64_t verify_all(const qn_file *file, int64_t *bad)
{
    int64_t covered = 0;
    *bad = 0;
    for (int64_t i = 0; i < qn_file_count(file); i++) {
        qn_entry entry;
        int32_t has_sum = 0;
        assert_ok(qn_file_entry(file, i, &entry));
        const qn_status status = qn_file_verify(file, entry.name, &has_sum, NULL);
        assert_true(status == QN_OK || status == QN_E_CORRUPT);
        covered += has_sum;
        *bad += status != QN_OK;
    }
    return covered;
}

static void test_every_bit(void **state)
{
    struct counted_ctx c;
    qn_file *file = NULL;
    size_t size;
    int64_t bad;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = mixed_file(c.ctx, &size);
    assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
    assert_int_equal(qn_file_count(file), 5);
    assert_int_equal(verify_all(file, &bad), 5);
    assert_int_equal(bad, 0);
    assert_error(qn_file_verify(file, "none", NULL, &err), QN_E_NOT_FOUND, "'none'");
    assert_error(qn_file_verify(file, NULL, NULL, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_file_verify(NULL, "w", NULL, &err), QN_E_ARGUMENT, "NULL");
    qn_file_close(file);
    uint64_t length;
    memcpy(&length, bytes, sizeof length);
    for (size_t bit = 8 * (8 + (size_t)length); bit < 8 * size; bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
        verify_all(file, &bad);
        assert_int_equal(bad, 1);
        qn_file_close(file);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    free(bytes);
    counted_destroy(&c);
}

/* Every bit of the header: refused when the file is opened, or found by its checksum; and then
 * nothing loads where checksums are compared. */
static void test_every_bit_of_the_header(void **state)
{
    struct counted_ctx c;
    qn_file *file = NULL;
    qn_weight *weight = NULL;
    size_t size, opened = 0;
    uint64_t length;
    int32_t has_sum = 0;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = mixed_file(c.ctx, &size);
    assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
    assert_ok(qn_file_verify_header(file, &has_sum, NULL));
    assert_int_equal(has_sum, 1);
    assert_error(qn_file_verify_header(NULL, &has_sum, &err), QN_E_ARGUMENT, "NULL");
    assert_int_equal(has_sum, 0);
    qn_file_close(file);
    memcpy(&length, bytes, sizeof length);
    for (size_t bit = 0; bit < 8 * (8 + (size_t)length); bit++) {
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (open_bytes(c.ctx, bytes, size, &file, NULL) == QN_OK) {
            opened++;
            assert_error(qn_file_verify_header(file, &has_sum, &err), QN_E_CORRUPT, "header");
            assert_int_equal(has_sum, 1);
            qn_file_set_verify(file, 1);
            assert_int_not_equal(qn_file_load_weight(c.ctx, file, "w", &weight, NULL), QN_OK);
            qn_file_close(file);
        }
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(opened > 1000);
    free(bytes);
    counted_destroy(&c);
}

/* A group size with the same number of groups changes values, and only this tells. */
static void test_group_size(void **state)
{
    struct counted_ctx c;
    qn_file *file = NULL;
    qn_weight *weight = NULL;
    size_t size;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = mixed_file(c.ctx, &size);
    edit_header(bytes, "int4:g32:zp", "int4:g24:zp");
    assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
    assert_ok(qn_file_load_weight(c.ctx, file, "w", &weight, NULL));
    qn_weight_destroy(weight);
    qn_file_set_verify(file, 1);
    assert_error(qn_file_load_weight(c.ctx, file, "w", &weight, &err), QN_E_CORRUPT,
                 "the header is damaged");
    qn_file_set_verify(file, 0);
    assert_ok(qn_file_load_weight(c.ctx, file, "w", &weight, NULL));
    qn_weight_destroy(weight);
    qn_file_close(file);
    free(bytes);
    counted_destroy(&c);
}

static void test_loading(void **state)
{
    struct counted_ctx c;
    qn_file *file = NULL;
    qn_entry entry;
    qn_weight *weight = NULL;
    qn_packed *packed = NULL;
    size_t size;
    int64_t bad;
    int32_t has_sum = 0;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = mixed_file(c.ctx, &size);
    qn_file_set_verify(NULL, 1);
    assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
    for (int32_t verify = 0; verify < 2; verify++) {
        qn_file_set_verify(file, verify);
        assert_ok(qn_file_load_weight(c.ctx, file, "w", &weight, NULL));
        qn_weight_destroy(weight);
        assert_ok(qn_packed_load(c.ctx, file, "p", &packed, NULL));
        qn_packed_destroy(packed);
    }
    /* A code of each: still a code. */
    assert_ok(qn_file_find(file, "w.codes", &entry));
    bytes[entry.offset] ^= 1;
    assert_ok(qn_file_find(file, "p.packed", &entry));
    const struct qni_packed_head *head = entry.tensor.data;
    bytes[(size_t)entry.offset + head->section[QNI_SECTION_CODES].offset] ^= 1;
    assert_error(qn_file_load_weight(c.ctx, file, "w", &weight, &err), QN_E_CORRUPT,
                 "tensor 'w.codes' is damaged");
    assert_error(qn_packed_load(c.ctx, file, "p", &packed, &err), QN_E_CORRUPT,
                 "tensor 'p.packed' is damaged");
    qn_file_set_verify(file, 0);
    assert_ok(qn_file_load_weight(c.ctx, file, "w", &weight, NULL));
    qn_weight_destroy(weight);
    qn_file_close(file);
    /* Files of earlier versions have no checksums, those between them none of the header. */
    edit_header(bytes, "quern.header\"", "quern.hidden\"");
    edit_header(bytes, "quern.header.xxh64", "quern.hidden.xxh64");
    assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
    assert_int_equal(verify_all(file, &bad), 5);
    assert_ok(qn_file_verify_header(file, &has_sum, NULL));
    assert_int_equal(has_sum, 0);
    qn_file_set_verify(file, 1);
    bytes[(size_t)entry.offset + head->section[QNI_SECTION_CODES].offset] ^= 1;
    assert_ok(qn_packed_load(c.ctx, file, "p", &packed, NULL));
    qn_packed_destroy(packed);
    qn_file_close(file);
    for (int i = 0; i < 5; i++)
        edit_header(bytes, "quern.xxh64.", "quern.hidden");
    assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
    assert_int_equal(verify_all(file, &bad), 0);
    assert_ok(qn_packed_load(c.ctx, file, "p", &packed, NULL));
    qn_packed_destroy(packed);
    qn_file_set_verify(file, 1);
    assert_error(qn_packed_load(c.ctx, file, "p", &packed, &err), QN_E_NOT_FOUND,
                 "has no checksum");
    qn_file_close(file);
    free(bytes);
    counted_destroy(&c);
}

/* A type that the library does not know has data all the same. */
static void test_unknown_type(void **state)
{
    struct counted_ctx c;
    qn_file *file = NULL;
    int32_t has_sum = 0;
    size_t size;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = mixed_file(c.ctx, &size);
    edit_header(bytes, "w.codes\":{\"dtype\":\"U8\"", "w.codes\":{\"dtype\":\"X8\"");
    assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
    assert_ok(qn_file_verify(file, "w.codes", &has_sum, NULL));
    assert_int_equal(has_sum, 1);
    qn_file_close(file);
    free(bytes);
    counted_destroy(&c);
}

/* What is no checksum is a failure of the file, not of the tensor's data. */
static void test_bad_digits(void **state)
{
    struct counted_ctx c;
    qn_file *file = NULL;
    size_t size;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = mixed_file(c.ctx, &size);
    edit_header(bytes, "quern.xxh64.w.scale\":\"", "quern.xxh64.w.scale\": ");
    assert_error(open_bytes(c.ctx, bytes, size, &file, &err), QN_E_CORRUPT, "string");
    edit_header(bytes, "quern.xxh64.w.scale\": ", "quern.xxh64.w.scale\":\"");
    char *at = strstr((char *)bytes + 8, "quern.xxh64.w.scale\":\"") + 22;
    *at = 'g';
    assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
    assert_error(qn_file_verify(file, "w.scale", NULL, &err), QN_E_CORRUPT, "hexadecimal");
    qn_file_close(file);
    free(bytes);
    counted_destroy(&c);
}

/* Sections that nothing else looks at: sums, padding. */
static void test_packed_verify(void **state)
{
    static const struct {
        int32_t section;
        const char *words;
    } sections[] = {{QNI_SECTION_SUMS, "column sums"}, {QNI_SECTION_CODES, "column sums"}};
    struct counted_ctx c;
    qn_file *file = NULL;
    qn_packed *packed = NULL;
    qn_packed_info info;
    size_t size, blob;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = saved_bytes(c.ctx, "int4:g128:zp", shape, &size, &blob);
    const struct qni_packed_head *head = (const void *)(bytes + blob);
    assert_ok(try_load(c.ctx, bytes, size, &packed, NULL));
    assert_ok(qn_packed_verify(c.ctx, packed, NULL));
    for (int i = 0; i < 2; i++) {
        uint8_t *at = bytes + blob + head->section[sections[i].section].offset;
        *at ^= 1;
        assert_error(qn_packed_verify(c.ctx, packed, &err), QN_E_CORRUPT, sections[i].words);
        *at ^= 1;
    }
    bytes[blob + sizeof *head] ^= 1;
    assert_error(qn_packed_verify(c.ctx, packed, &err), QN_E_CORRUPT, "padding");
    bytes[blob + sizeof *head] ^= 1;
    assert_error(qn_packed_verify(c.ctx, NULL, &err), QN_E_ARGUMENT, "NULL");
    qn_packed_destroy(packed);
    /* What kernels read, without a device. */
    qn_packed_info_init(&info);
    assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
    assert_ok(qn_file_packed_info(file, "w", &info, NULL));
    assert_int_equal(info.n, 18);
    assert_int_equal(info.k, 72);
    assert_string_equal(info.layout, head->layout);
    assert_error(qn_file_packed_info(file, "v", &info, &err), QN_E_NOT_FOUND, "'v'");
    assert_error(qn_file_packed_info(file, "w", NULL, &err), QN_E_ARGUMENT, "NULL");
    qn_file_close(file);
    free(bytes);
    counted_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_bit),     cmocka_unit_test(test_every_bit_of_the_header),
        cmocka_unit_test(test_group_size),    cmocka_unit_test(test_loading),
        cmocka_unit_test(test_unknown_type),  cmocka_unit_test(test_bad_digits),
        cmocka_unit_test(test_packed_verify),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
