/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays in the metadata of GGUF files: vocabularies. What the file says, every truncation and
 * every single bit flip of it, and bytes that change after the file was opened. */
#include "files.h"

struct bytes {
    uint8_t at[1024];
    size_t n;
};

static void put(struct bytes *b, const void *from, size_t n)
{
    assert_true(b->n + n <= sizeof b->at);
    memcpy(b->at + b->n, from, n);
    b->n += n;
}

static void put_number(struct bytes *b, uint64_t v, size_t n)
{
    put(b, &v, n);
}

static void put_text(struct bytes *b, const char *text)
{
    put_number(b, strlen(text), 8);
    put(b, text, strlen(text));
}

static void put_array(struct bytes *b, const char *key, uint32_t type, uint64_t count)
{
    put_text(b, key);
    put_number(b, 9, 4);
    put_number(b, type, 4);
    put_number(b, count, 8);
}

static const char *const words[] = {"a", "", "bcd", "\xc4\xa0x"};
static const float scores[] = {0.5f, -1.0f, 2.0f};

static void make_file(struct bytes *b)
{
    memset(b, 0, sizeof *b);
    put(b, "GGUF", 4);
    put_number(b, 3, 4);
    put_number(b, 0, 8);
    put_number(b, 4, 8);
    put_text(b, "name");
    put_number(b, 8, 4);
    put_text(b, "m");
    put_array(b, "words", 8, 4);
    for (int i = 0; i < 4; i++)
        put_text(b, words[i]);
    put_array(b, "scores", 6, 3);
    put(b, scores, sizeof scores);
    put_array(b, "nothing", 8, 0);
}

static void test_what_the_file_says(void **state)
{
    (void)state;
    struct bytes b;
    qn_ctx *ctx = ctx_make(1);
    qn_file *file = NULL;
    qn_array a;
    size_t n = 7;
    make_file(&b);
    assert_ok(open_bytes(ctx, b.at, b.n, &file, NULL));
    qn_array_init(&a);
    assert_ok(qn_file_array(file, "words", &a));
    assert_int_equal(a.dtype, QN_DTYPE_NONE);
    assert_int_equal(a.count, 4);
    for (int i = 0; i < 4; i++) {
        const char *text = qn_array_next_text(&a, &n);
        assert_non_null(text);
        assert_int_equal(n, strlen(words[i]));
        assert_memory_equal(text, words[i], n);
    }
    assert_null(qn_array_next_text(&a, &n));
    assert_ok(qn_file_array(file, "scores", &a));
    assert_int_equal(a.dtype, QN_F32);
    assert_int_equal(a.count, 3);
    assert_int_equal(a.bytes, sizeof scores);
    assert_memory_equal(a.data, scores, sizeof scores);
    assert_null(qn_array_next_text(&a, &n));
    assert_ok(qn_file_array(file, "nothing", &a));
    assert_int_equal(a.count, 0);
    assert_null(qn_array_next_text(&a, &n));
    assert_status(qn_file_array(file, "name", &a), QN_E_DTYPE);
    assert_status(qn_file_array(file, "nowhere", &a), QN_E_NOT_FOUND);
    assert_status(qn_file_array(NULL, "words", &a), QN_E_ARGUMENT);
    assert_status(qn_file_array(file, "words", NULL), QN_E_ARGUMENT);
    a.size = 0;
    assert_status(qn_file_array(file, "words", &a), QN_E_ARGUMENT);
    qn_file_close(file);
    qn_ctx_destroy(ctx);
}

/* Read all there is; AddressSanitizer sees what leaves the file. */
static void read_all(const qn_file *file)
{
    const char *key;
    for (int64_t i = 0; qn_file_metadata(file, i, &key, NULL) == QN_OK; i++) {
        qn_array a;
        size_t n, sum = 0;
        qn_array_init(&a);
        if (qn_file_array(file, key, &a) != QN_OK)
            continue;
        for (size_t j = 0; j < a.bytes; j++)
            sum += ((const uint8_t *)a.data)[j];
        for (const char *text; (text = qn_array_next_text(&a, &n)) != NULL;)
            for (size_t j = 0; j < n; j++)
                sum += (uint8_t)text[j];
        assert_true(sum < SIZE_MAX);
    }
}

static void test_damage(void **state)
{
    (void)state;
    struct bytes b;
    qn_ctx *ctx = ctx_make(1);
    qn_file *file = NULL;
    make_file(&b);
    for (size_t n = 0; n < b.n; n++)
        if (open_bytes(ctx, b.at, n, &file, NULL) == QN_OK) {
            read_all(file);
            qn_file_close(file);
        }
    for (size_t bit = 0; bit < 8 * b.n; bit++) {
        struct bytes flipped = b;
        flipped.at[bit / 8] ^= (uint8_t)(1 << bit % 8);
        if (open_bytes(ctx, flipped.at, flipped.n, &file, NULL) == QN_OK) {
            read_all(file);
            qn_file_close(file);
        }
    }
    qn_ctx_destroy(ctx);
}

/* Somebody writes to the file while it is mapped: lengths are looked at again. */
static void test_bytes_that_change(void **state)
{
    (void)state;
    struct bytes b;
    qn_ctx *ctx = ctx_make(1);
    const char *folder = folder_make(), *path = in(folder, "a.gguf");
    make_file(&b);
    for (size_t at = 24; at < b.n; at++) {
        qn_file *file = NULL;
        FILE *out = fopen(path, "wb");
        assert_int_equal(fwrite(b.at, 1, b.n, out), b.n);
        fclose(out);
        assert_ok(qn_file_open(ctx, path, &file, NULL));
        out = fopen(path, "r+b");
        assert_int_equal(fseek(out, (long)at, SEEK_SET), 0);
        assert_int_equal(fwrite("\xff\xff\xff", 1, at + 3 < b.n ? 3 : 1, out),
                         at + 3 < b.n ? 3 : 1);
        fclose(out);
        read_all(file);
        qn_file_close(file);
    }
    folder_remove(folder);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_the_file_says),
        cmocka_unit_test(test_damage),
        cmocka_unit_test(test_bytes_that_change),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
