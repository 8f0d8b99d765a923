/* SPDX-License-Identifier: Apache-2.0 */
/* Statuses, words of failures, memory, tensors, checked sizes. */
#include <stdio.h>

#include "base/error.h"
#include "base/file.h"
#include "base/size.h"
#include "unit.h"

static void every_status_has_words(void **state)
{
    (void)state;
    for (qn_status s = 0; s >= QN_E_RESUME; s--) {
        assert_string_not_equal(qn_status_name(s), "E_UNKNOWN");
        assert_true(strlen(qn_status_text(s)) > 3);
        for (qn_status t = 0; t > s; t--)
            assert_string_not_equal(qn_status_name(s), qn_status_name(t));
    }
    assert_string_equal(qn_status_name(QN_E_SHAPE), "E_SHAPE");
    assert_string_equal(qn_status_name(12345), "E_UNKNOWN");
    assert_non_null(qn_status_text(-12345));
}

static void version_is_of_the_header(void **state)
{
    (void)state;
    char text[32];
    snprintf(text, sizeof text, "%d.%d.%d", QN_VERSION_MAJOR, QN_VERSION_MINOR, QN_VERSION_PATCH);
    assert_string_equal(qn_version(), text);
    assert_true(strlen(qn_commit()) > 0);
}

static void failures_have_words(void **state)
{
    (void)state;
    qn_error err = {QN_OK, 7, "old"};
    assert_int_equal(qni_fail(&err, QN_E_SHAPE, "row %d", 3), QN_E_SHAPE);
    assert_int_equal(err.status, QN_E_SHAPE);
    assert_int_equal(err.offset, -1);
    assert_string_equal(err.text, "row 3");
    assert_int_equal(qni_fail_at(&err, QN_E_CORRUPT, 1234567890123, "x"), QN_E_CORRUPT);
    assert_int_equal(err.offset, 1234567890123);
    assert_int_equal(qni_fail(NULL, QN_E_MEMORY, "nobody reads %s", "this"), QN_E_MEMORY);

    char lengthy[2000];
    memset(lengthy, 'a', sizeof lengthy);
    lengthy[sizeof lengthy - 1] = 0;
    qni_fail(&err, QN_E_VALUE, "%s", lengthy);
    assert_int_equal(strlen(err.text), sizeof err.text - 1);
}

static void memory_is_aligned(void **state)
{
    (void)state;
    const struct qni_allocator a = qni_allocator_default();
    const size_t sizes[] = {0, 1, 63, 64, 65, 100000, (4 << 20) - 1, 4 << 20, (6 << 20) + 1};
    for (size_t i = 0; i < sizeof sizes / sizeof sizes[0]; i++) {
        char *memory = qni_alloc_zero(&a, sizes[i]);
        assert_non_null(memory);
        assert_int_equal((uintptr_t)memory % 64, 0);
        for (size_t j = 0; j < sizes[i]; j++)
            assert_int_equal(memory[j], 0);
        qni_free(&a, memory, sizes[i]);
    }
    assert_null(qni_alloc(&a, SIZE_MAX));
    assert_null(qni_alloc(&a, SIZE_MAX - 63));
    assert_null(qni_alloc(&a, (size_t)PTRDIFF_MAX + 1));
    qni_free(&a, NULL, 10);
}

static void the_default_memory_is_aligned_as_asked(void **state)
{
    (void)state;
    static const size_t bytes[] = {1, 100, 4 << 20, (4 << 20) + 1}, alignments[] = {1, 64, 4096};
    for (size_t i = 0; i < sizeof bytes / sizeof *bytes; i++)
        for (size_t j = 0; j < sizeof alignments / sizeof *alignments; j++) {
            char *const memory = qn_memory_alloc(NULL, bytes[i], alignments[j]);
            assert_non_null(memory);
            assert_int_equal((uintptr_t)memory % alignments[j], 0);
            memory[0] = memory[bytes[i] - 1] = 1;
            qn_memory_free(NULL, memory, bytes[i]);
        }
    assert_null(qn_memory_alloc(NULL, 100, 48));
    qn_memory_free(NULL, NULL, 100);
}

static void the_callers_allocator_sees_equal_sizes(void **state)
{
    (void)state;
    struct unit_memory m = {0, 0, 0, 0};
    const struct qni_allocator a = {unit_alloc, unit_free, &m};
    void *p = qni_alloc(&a, 0), *q = qni_alloc(&a, 10);
    assert_ptr_not_equal(p, q);
    assert_int_equal(m.live, 2);
    qni_free(&a, p, 0);
    qni_free(&a, q, 10);
    assert_int_equal(m.live_bytes, 0);
}

static void types_have_sizes_and_names(void **state)
{
    (void)state;
    assert_int_equal(qn_dtype_bytes(QN_F16), 2);
    assert_int_equal(qn_dtype_bytes(QN_I64), 8);
    assert_int_equal(qn_dtype_bytes(QN_E8M0), 1);
    assert_string_equal(qn_dtype_name(QN_BF16), "bf16");
    for (qn_dtype d = QN_F32; d <= QN_E5M2; d++) {
        assert_true(qn_dtype_bytes(d) > 0);
        assert_string_not_equal(qn_dtype_name(d), "?");
    }
    assert_int_equal(qn_dtype_bytes(QN_DTYPE_NONE), 0);
    assert_int_equal(qn_dtype_bytes(17), 0);
    assert_int_equal(qn_dtype_bytes(-1), 0);
    assert_string_equal(qn_dtype_name(1000), "?");
}

static void tensors_are_contiguous(void **state)
{
    (void)state;
    char data[64];
    const int64_t shape[3] = {2, 3, 5};
    const qn_tensor t = qn_tensor_make(data, QN_F16, 3, shape);
    int64_t elements;
    size_t bytes;
    assert_int_equal(t.stride[0], 15);
    assert_int_equal(t.stride[1], 5);
    assert_int_equal(t.stride[2], 1);
    assert_int_equal(t.device.kind, QN_CPU);
    assert_int_equal(qn_tensor_extent(&t, &elements, &bytes), QN_OK);
    assert_int_equal(elements, 30);
    assert_int_equal(bytes, 60);

    const qn_tensor scalar = qn_tensor_make(data, QN_F64, 0, NULL);
    assert_int_equal(qn_tensor_extent(&scalar, &elements, &bytes), QN_OK);
    assert_int_equal(elements, 1);
    assert_int_equal(bytes, 8);

    const qn_tensor none = qn_tensor_none();
    assert_int_equal(qn_tensor_extent(&none, &elements, &bytes), QN_E_DTYPE);

    const qn_tensor empty = qn_tensor_2d(NULL, QN_F32, 0, 1000);
    assert_int_equal(qn_tensor_extent(&empty, &elements, &bytes), QN_OK);
    assert_int_equal(elements, 0);
    assert_int_equal(bytes, 0);
}

static void strided_tensors_reach_further(void **state)
{
    (void)state;
    qn_tensor t = qn_tensor_2d(NULL, QN_F32, 3, 4);
    t.stride[0] = 10;
    int64_t elements;
    size_t bytes;
    assert_int_equal(qn_tensor_extent(&t, &elements, &bytes), QN_OK);
    assert_int_equal(elements, 12);
    assert_int_equal(bytes, (2 * 10 + 3 + 1) * 4);
}

static void impossible_tensors_are_refused(void **state)
{
    (void)state;
    qn_tensor t = qn_tensor_2d(NULL, QN_F32, 3, 4);
    assert_int_equal(qn_tensor_extent(NULL, NULL, NULL), QN_E_ARGUMENT);
    t.rank = QN_MAX_RANK + 1;
    assert_int_equal(qn_tensor_extent(&t, NULL, NULL), QN_E_ARGUMENT);
    t.rank = -1;
    assert_int_equal(qn_tensor_extent(&t, NULL, NULL), QN_E_ARGUMENT);
    t = qn_tensor_2d(NULL, QN_F32, -3, 4);
    assert_int_equal(qn_tensor_extent(&t, NULL, NULL), QN_E_ARGUMENT);
    t = qn_tensor_2d(NULL, 99, 3, 4);
    assert_int_equal(qn_tensor_extent(&t, NULL, NULL), QN_E_DTYPE);
    t = qn_tensor_2d(NULL, QN_F32, 3, 4);
    t.stride[0] = -4;
    assert_int_equal(qn_tensor_extent(&t, NULL, NULL), QN_E_STRIDE);
    t.stride[0] = INT64_MAX / 2;
    assert_int_equal(qn_tensor_extent(&t, NULL, NULL), QN_E_STRIDE);
    const int64_t huge[3] = {(int64_t)1 << 31, (int64_t)1 << 31, 4};
    t = qn_tensor_make(NULL, QN_I8, 3, huge);
    assert_int_equal(qn_tensor_extent(&t, NULL, NULL), QN_E_STRIDE);
    const int64_t seven[7] = {1, 1, 1, 1, 1, 1, 1};
    t = qn_tensor_make(NULL, QN_I8, 7, seven);
    assert_int_equal(qn_tensor_extent(&t, NULL, NULL), QN_E_ARGUMENT);
}

static void sizes_are_checked(void **state)
{
    (void)state;
    size_t s;
    int64_t i;
    assert_true(qni_size_mul(1u << 20, 1u << 20, &s) && s == (size_t)1 << 40);
    assert_false(qni_size_mul(SIZE_MAX, 2, &s));
    assert_false(qni_size_add(SIZE_MAX, 1, &s));
    assert_false(qni_i64_mul(INT64_MAX, 2, &i));
    assert_false(qni_i64_add(INT64_MAX, 1, &i));
    assert_int_equal(qni_ceil_div(0, 4), 0);
    assert_int_equal(qni_ceil_div(1, 4), 1);
    assert_int_equal(qni_ceil_div(8, 4), 2);
    assert_int_equal(qni_ceil_div(INT64_MAX, 1), INT64_MAX);
    assert_int_equal(qni_round_up(65, 64), 128);
}

static void files_are_read_as_text(void **state)
{
    (void)state;
    char text[16];
    assert_int_equal(qni_file_text("/proc/self/no such file", text, sizeof text), -1);
    assert_string_equal(text, "");
    assert_true(qni_file_text("/proc/self/stat", text, sizeof text) == sizeof text - 1);
    assert_int_equal(strlen(text), sizeof text - 1);
    assert_int_equal(qni_file_open("/no such folder/x", QNI_FILE_NEW), -1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_words),
        cmocka_unit_test(version_is_of_the_header),
        cmocka_unit_test(failures_have_words),
        cmocka_unit_test(memory_is_aligned),
        cmocka_unit_test(the_default_memory_is_aligned_as_asked),
        cmocka_unit_test(the_callers_allocator_sees_equal_sizes),
        cmocka_unit_test(types_have_sizes_and_names),
        cmocka_unit_test(tensors_are_contiguous),
        cmocka_unit_test(strided_tensors_reach_further),
        cmocka_unit_test(impossible_tensors_are_refused),
        cmocka_unit_test(sizes_are_checked),
        cmocka_unit_test(files_are_read_as_text),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
