/* SPDX-License-Identifier: Apache-2.0 */
/* Part files: whose they are, which run they are of, what of them can be believed, and what mode
 * the finished file gets. */
#include "files.h"

enum { N = 3, COUNT = 6 };
static const uint16_t content[N][COUNT] = {{1, 2, 3, 4, 5, 6}, {7, 8}, {9, 10, 11, 12, 13, 14}};

static qn_writer *declare(const qn_ctx *ctx, const char *path)
{
    static const char *const names[N] = {"a", "b", "c"};
    const int64_t count = COUNT;
    qn_writer *writer = NULL;
    assert_ok(qn_writer_create(ctx, path, &writer, NULL));
    for (int i = 0; i < N; i++)
        assert_ok(qn_writer_add(writer, names[i], QN_U16, 1, &count, NULL, NULL));
    return writer;
}

static void fact(qn_writer *writer, const char *key, const char *value)
{
    if (value != NULL)
        assert_ok(qn_writer_fingerprint(writer, key, value, NULL));
}

static void put(qn_writer *writer, int i)
{
    const qn_tensor t = qn_tensor_1d((void *)(uintptr_t)content[i], QN_U16, COUNT);
    assert_ok(qn_writer_put(writer, i, &t, NULL));
}

/* Write what is missing, finish, compare with a file that was made in one go. */
static void complete(const qn_ctx *ctx, const char *folder, qn_writer *writer)
{
    size_t size, expected_size;
    for (int i = 0; i < N; i++)
        if (!qn_writer_is_done(writer, i))
            put(writer, i);
    assert_ok(qn_writer_finish(writer, NULL));
    qn_writer *whole = declare(ctx, in(folder, "whole"));
    assert_ok(qn_writer_begin(whole, 1, 0, NULL));
    for (int i = 0; i < N; i++)
        put(whole, i);
    assert_ok(qn_writer_finish(whole, NULL));
    uint8_t *bytes = file_bytes(in(folder, "x"), &size);
    uint8_t *expected = file_bytes(in(folder, "whole"), &expected_size);
    assert_int_equal(size, expected_size);
    assert_memory_equal(bytes, expected, size);
    free(bytes);
    free(expected);
}

static void assert_discarded(const qn_writer *writer, int64_t done, int64_t all)
{
    int64_t n = -7, of = -7;
    assert_ok(qn_writer_discarded(writer, &n, &of));
    assert_int_equal(n, done);
    assert_int_equal(of, all);
}

/* An interrupted run with these facts, and its first n tensors. */
static void interrupted(const qn_ctx *ctx, const char *path, const char *alpha, const char *beta,
                        int n)
{
    qn_writer *writer = declare(ctx, path);
    fact(writer, "alpha", alpha);
    fact(writer, "beta", beta);
    assert_ok(qn_writer_begin(writer, 1, 0, NULL));
    for (int i = 0; i < n; i++)
        put(writer, i);
    qn_writer_abort(writer, 1);
}

/* ---- which run ------------------------------------------------------------------------------- */

static void test_other_facts(void **state)
{
    static const struct {
        const char *alpha, *beta; /* of the second run; the first had 0.5 and "narrow" */
        const char *says;
    } cases[] = {
        {"0.7", "narrow", "alpha was '0.5' and is '0.7'; 2 of 3 tensors"},
        {"0.5", "half", "beta was 'narrow' and is 'half'; 2 of 3"},
        {"0.7", "half", "alpha was '0.5' and is '0.7', and 1 more; 2 of 3"},
        {"0.5", NULL, "beta was 'narrow' and is not given"},
        {NULL, NULL, "alpha was '0.5' and is not given, and 1 more"},
        {"", "narrow", "alpha was '0.5' and is ''"},
    };
    const char *folder = folder_make();
    char path[300], part[310];
    snprintf(path, sizeof path, "%s", in(folder, "x"));
    snprintf(part, sizeof part, "%s.part", path);
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t size, size_after;
        interrupted(ctx, path, "0.5", "narrow", 2);
        uint8_t *before = file_bytes(part, &size);
        qn_writer *writer = declare(ctx, path);
        fact(writer, "alpha", cases[i].alpha);
        fact(writer, "beta", cases[i].beta);
        assert_error(qn_writer_begin(writer, 1, 1, &err), QN_E_RESUME, cases[i].says);
        assert_error(qn_writer_begin(writer, 1, 1, &err), QN_E_RESUME, "x: its .part");
        uint8_t *after = file_bytes(part, &size_after);
        assert_int_equal(size, size_after);
        assert_memory_equal(before, after, size);
        free(before);
        free(after);
        /* The same writer may begin anew, and knows what that costs. */
        assert_ok(qn_writer_begin(writer, 1, 0, NULL));
        assert_discarded(writer, 2, 3);
        assert_int_equal(qn_writer_is_done(writer, 0), 0);
        complete(ctx, folder, writer);
    }
    /* The same facts, also in another order. */
    for (int turned = 0; turned < 2; turned++) {
        interrupted(ctx, path, "0.5", "narrow", 2);
        qn_writer *writer = declare(ctx, path);
        fact(writer, turned ? "beta" : "alpha", turned ? "narrow" : "0.5");
        fact(writer, turned ? "alpha" : "beta", turned ? "0.5" : "narrow");
        assert_ok(qn_writer_begin(writer, 1, 1, NULL));
        assert_discarded(writer, turned ? 2 : 0, 3);
        complete(ctx, folder, writer);
    }
    /* A run without facts is another one, too. */
    interrupted(ctx, path, NULL, NULL, 1);
    qn_writer *writer = declare(ctx, path);
    fact(writer, "alpha", "0.5");
    assert_error(qn_writer_begin(writer, 1, 1, &err), QN_E_RESUME,
                 "alpha was not given and is '0.5'; 1 of 3");
    qn_writer_abort(writer, 0);
    qn_ctx_destroy(ctx);
    assert_int_equal(remove(part), 0);
    folder_remove(folder);
}

static void test_fact_misuse(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    int64_t n, all;
    struct counted_ctx c;
    (void)state;
    counted_make(&c);
    qn_writer *w = declare(c.ctx, path);
    assert_error(qn_writer_fingerprint(NULL, "a", "b", &err), QN_E_ARGUMENT, "writer");
    assert_error(qn_writer_fingerprint(w, NULL, "b", &err), QN_E_ARGUMENT, "key");
    assert_error(qn_writer_fingerprint(w, "a", NULL, &err), QN_E_ARGUMENT, "value");
    fact(w, "a", "b");
    assert_error(qn_writer_fingerprint(w, "a", "c", &err), QN_E_EXISTS, "'a'");
    const size_t large = (size_t)17 << 20;
    char *text = malloc(large);
    memset(text, 'x', large - 1);
    text[large - 1] = 0;
    assert_error(qn_writer_fingerprint(w, "c", text, &err), QN_E_ARGUMENT, "16 MiB");
    text[1 << 20] = 0; /* what is long is kept whole, and shown short */
    fact(w, "long", text);
    assert_status(qn_writer_discarded(w, &n, &all), QN_E_ARGUMENT);
    assert_status(qn_writer_discarded(NULL, &n, &all), QN_E_ARGUMENT);
    assert_ok(qn_writer_begin(w, 0, 0, NULL));
    assert_status(qn_writer_discarded(w, NULL, &all), QN_E_ARGUMENT);
    assert_status(qn_writer_discarded(w, &n, NULL), QN_E_ARGUMENT);
    assert_discarded(w, 0, 0);
    assert_error(qn_writer_fingerprint(w, "c", "d", &err), QN_E_ARGUMENT, "too late");
    put(w, 0);
    qn_writer_abort(w, 1);
    w = declare(c.ctx, path);
    fact(w, "a", "b");
    text[(1 << 20) - 1] = 'y';
    fact(w, "long", text);
    assert_error(qn_writer_begin(w, 0, 1, &err), QN_E_RESUME, "long was 'xxx");
    qn_writer_abort(w, 0);
    free(text);
    assert_int_equal(remove(in(folder, "x.part")), 0);
    counted_destroy(&c);
    folder_remove(folder);
}

/* ---- what can be believed -------------------------------------------------------------------- */

/* A bit turned anywhere in a part file of a run that had written everything: found, and what is
 * published is right. */
static void test_every_bit(void **state)
{
    const char *folder = folder_make();
    char path[300], part[310];
    snprintf(path, sizeof path, "%s", in(folder, "x"));
    snprintf(part, sizeof part, "%s.part", path);
    qn_ctx *ctx = ctx_make(1);
    size_t size;
    (void)state;
    interrupted(ctx, path, "0.5", "narrow", N);
    uint8_t *bytes = file_bytes(part, &size);
    for (size_t i = 0; i < size; i++) {
        bytes[i] ^= (uint8_t)(1 << i % 8);
        file_write(part, bytes, size);
        bytes[i] ^= (uint8_t)(1 << i % 8);
        qn_writer *writer = declare(ctx, path);
        fact(writer, "alpha", "0.5");
        fact(writer, "beta", "narrow");
        assert_ok(qn_writer_begin(writer, 1, 1, NULL));
        complete(ctx, folder, writer);
    }
    /* One that is finished but for its name: no checksum tells that it is what it was. */
    uint64_t header_bytes;
    memcpy(&header_bytes, bytes, 8);
    file_write(part, bytes, 8 + (size_t)header_bytes + sizeof content);
    free(bytes);
    qn_writer *writer = declare(ctx, path);
    assert_ok(qn_writer_begin(writer, 1, 1, NULL));
    for (int i = 0; i < N; i++)
        assert_int_equal(qn_writer_is_done(writer, i), 0);
    assert_discarded(writer, 0, -1);
    complete(ctx, folder, writer);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* The name is taken at the last moment: the work can be resumed, by who may replace. */
static void test_name_taken(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    const mode_t before = umask(0);
    qn_writer *writer = declare(ctx, path);
    fact(writer, "alpha", "1");
    assert_ok(qn_writer_begin(writer, 0, 0, NULL));
    for (int i = 0; i < N; i++)
        put(writer, i);
    file_write(path, "mine", 4);
    assert_error(qn_writer_finish(writer, &err), QN_E_EXISTS, "meanwhile");
    umask(before);
    writer = declare(ctx, path);
    fact(writer, "alpha", "1");
    assert_ok(qn_writer_begin(writer, 1, 1, NULL));
    for (int i = 0; i < N; i++)
        assert_int_equal(qn_writer_is_done(writer, i), 1);
    assert_discarded(writer, 0, 3);
    complete(ctx, folder, writer);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* ---- whose it is ----------------------------------------------------------------------------- */

static mode_t mode_of(const char *path)
{
    struct stat info;
    assert_int_equal(lstat(path, &info), 0);
    return info.st_mode & 07777;
}

/* Of ours, but others could have written to it: nothing of it is used, nor is it emptied under who
 * has it open. */
static void test_open_to_others(void **state)
{
    static const mode_t modes[] = {0666, 0664, 0622, 0602};
    const char *folder = folder_make();
    char path[300], part[310];
    snprintf(path, sizeof path, "%s", in(folder, "x"));
    snprintf(part, sizeof part, "%s.part", path);
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        for (int resume = 0; resume < 2; resume++) {
            size_t size, size_after;
            interrupted(ctx, path, NULL, NULL, N);
            assert_int_equal(chmod(part, modes[i]), 0);
            uint8_t *bytes = file_bytes(part, &size);
            FILE *theirs = fopen(part, "rb");
            assert_non_null(theirs);
            qn_writer *writer = declare(ctx, path);
            assert_ok(qn_writer_begin(writer, 1, resume, NULL));
            assert_int_equal(mode_of(part) & 022, 0);
            assert_int_equal(qn_writer_is_done(writer, 0), 0);
            assert_discarded(writer, 0, -1);
            complete(ctx, folder, writer);
            uint8_t *after = malloc(size + 1);
            size_after = fread(after, 1, size + 1, theirs);
            fclose(theirs);
            assert_int_equal(size_after, size);
            assert_memory_equal(after, bytes, size);
            free(after);
            free(bytes);
        }
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

static void test_foreign(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x"), *part = in(folder, "x.part");
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    if (geteuid() == 0) { /* only root can give a file away */
        for (int resume = 0; resume < 2; resume++) {
            file_write(part, "planted", 7);
            assert_int_equal(chmod(part, 0644), 0);
            assert_int_equal(chown(part, 12345, 12345), 0);
            qn_writer *writer = declare(ctx, path);
            assert_error(qn_writer_begin(writer, 1, resume, &err), QN_E_OPEN,
                         "x: cannot be written: its .part is there and belongs to another user "
                         "(12345)");
            qn_writer_abort(writer, 0);
            size_t size;
            free(file_bytes(part, &size));
            assert_int_equal(size, 7);
            const qn_tensor t = qn_tensor_1d((void *)(uintptr_t)content[0], QN_U16, COUNT);
            assert_error(qn_npy_write(path, &t, 1, &err), QN_E_OPEN, "another user");
        }
        assert_int_equal(remove(part), 0);
    }
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* ---- what it becomes ------------------------------------------------------------------------- */

static void write_all(const qn_ctx *ctx, const char *path, int overwrite)
{
    qn_writer *writer = declare(ctx, path);
    assert_ok(qn_writer_begin(writer, overwrite, 0, NULL));
    for (int i = 0; i < N; i++)
        put(writer, i);
    assert_ok(qn_writer_finish(writer, NULL));
}

static void test_modes(void **state)
{
    static const mode_t masks[] = {0, 02, 022, 027, 077}, kept[] = {0600, 0640, 0644, 0755, 0666};
    const char *folder = folder_make(), *path = in(folder, "x"), *npy = in(folder, "y");
    const qn_tensor t = qn_tensor_1d((void *)(uintptr_t)content[0], QN_U16, COUNT);
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    const mode_t before = umask(022);
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        umask(masks[i]);
        write_all(ctx, path, 0);
        assert_ok(qn_npy_write(npy, &t, 0, NULL));
        assert_int_equal(mode_of(path), 0666 & ~masks[i]);
        assert_int_equal(mode_of(npy), 0666 & ~masks[i]);
        remove(path);
        remove(npy);
    }
    umask(022);
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        struct stat info;
        file_write(path, "old", 3);
        file_write(npy, "old", 3);
        assert_int_equal(chmod(path, kept[i]), 0);
        assert_int_equal(chmod(npy, kept[i]), 0);
        if (geteuid() == 0)
            assert_int_equal(chown(path, 12345, 54321), 0);
        write_all(ctx, path, 1);
        assert_ok(qn_npy_write(npy, &t, 1, NULL));
        assert_int_equal(mode_of(path), kept[i]);
        assert_int_equal(mode_of(npy), kept[i]);
        assert_int_equal(stat(path, &info), 0);
        assert_int_equal(info.st_uid, geteuid() == 0 ? 12345 : geteuid());
        if (geteuid() == 0)
            assert_int_equal(info.st_gid, 54321);
        remove(path);
        remove(npy);
    }
    umask(before);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* Links that lead nowhere are found before anything is written. */
static void test_dangling(void **state)
{
    const char *folder = folder_make(), *link_path = in(folder, "l"), *loop = in(folder, "loop");
    const qn_tensor t = qn_tensor_1d((void *)(uintptr_t)content[0], QN_U16, COUNT);
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    assert_int_equal(symlink("nowhere", link_path), 0);
    assert_int_equal(symlink("loop", loop), 0);
    for (int overwrite = 0; overwrite < 2; overwrite++)
        for (int l = 0; l < 2; l++) {
            const char *path = l == 0 ? link_path : loop;
            qn_writer *writer = declare(ctx, path);
            assert_error(qn_writer_begin(writer, overwrite, 0, &err), QN_E_OPEN, "leads nowhere");
            qn_writer_abort(writer, 0);
            assert_error(qn_npy_write(path, &t, overwrite, &err), QN_E_OPEN, "leads nowhere");
        }
    assert_int_equal(folder_count(folder), 2);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_other_facts),    cmocka_unit_test(test_fact_misuse),
        cmocka_unit_test(test_every_bit),      cmocka_unit_test(test_name_taken),
        cmocka_unit_test(test_open_to_others), cmocka_unit_test(test_foreign),
        cmocka_unit_test(test_modes),          cmocka_unit_test(test_dangling),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
