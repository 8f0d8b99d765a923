/* SPDX-License-Identifier: Apache-2.0 */
/* The writer: the bytes it makes, resuming after an end at every stage (also a kill), a full disk,
 * and the promise that the final name never shows half a file. */
#include "files.h"

#include <errno.h>
#include <signal.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include "../harness/refused.h"

/* A small declaration used throughout: three tensors of different element sizes. */
struct sample {
    uint8_t bytes[5];
    float floats[6];
    double doubles[2];
};
static const struct sample sample = {{1, 2, 3, 4, 5}, {1, 2, 3, 4, 5, 6}, {0.5, -0.25}};
enum { BYTES = 0, FLOATS = 1, DOUBLES = 2, N_TENSORS = 3 };

static qn_tensor sample_tensor(int i)
{
    const struct sample *s = &sample;
    return i == BYTES    ? qn_tensor_1d((void *)(uintptr_t)s->bytes, QN_U8, 5)
           : i == FLOATS ? qn_tensor_2d((void *)(uintptr_t)s->floats, QN_F32, 2, 3)
                         : qn_tensor_1d((void *)(uintptr_t)s->doubles, QN_F64, 2);
}

static qn_writer *declare(const qn_ctx *ctx, const char *path)
{
    static const char *const names[N_TENSORS] = {"bytes", "floats \"\\\n", "d\xc3\xb6ubles"};
    qn_writer *writer = NULL;
    assert_ok(qn_writer_create(ctx, path, &writer, NULL));
    for (int i = 0; i < N_TENSORS; i++) {
        const qn_tensor t = sample_tensor(i);
        int64_t index = -1;
        assert_ok(qn_writer_add(writer, names[i], t.dtype, t.rank, t.shape, &index, NULL));
        assert_int_equal(index, i);
    }
    assert_ok(qn_writer_metadata(writer, "k\x01", "v\xf0\x9d\x84\x9e", NULL));
    return writer;
}

static void put(qn_writer *writer, int i)
{
    const qn_tensor t = sample_tensor(i);
    assert_ok(qn_writer_put(writer, i, &t, NULL));
    assert_int_equal(qn_writer_is_done(writer, i), 1);
}

/* The finished file: contents, order, alignment. */
static void check_file(const qn_ctx *ctx, const char *path)
{
    qn_file *file = NULL;
    qn_entry entry;
    qn_error err = {0};
    if (qn_file_open(ctx, path, &file, &err) != QN_OK)
        fail_msg("%s", err.text);
    assert_int_equal(qn_file_count(file), N_TENSORS);
    assert_ok(qn_file_entry(file, 0, &entry));
    assert_string_equal(entry.name, "d\xc3\xb6ubles");
    assert_int_equal(entry.offset % 64, 0);
    assert_memory_equal(entry.tensor.data, sample.doubles, sizeof sample.doubles);
    assert_ok(qn_file_entry(file, 1, &entry));
    assert_string_equal(entry.name, "floats \"\\\n");
    assert_int_equal(entry.is_aligned, 1);
    assert_memory_equal(entry.tensor.data, sample.floats, sizeof sample.floats);
    assert_int_equal(entry.tensor.shape[1], 3);
    assert_ok(qn_file_entry(file, 2, &entry));
    assert_memory_equal(entry.tensor.data, sample.bytes, sizeof sample.bytes);
    assert_string_equal(qn_file_get_metadata(file, "k\x01"), "v\xf0\x9d\x84\x9e");
    qn_file_close(file);
}

static void test_golden(void **state)
{
    static const char header[] =
        "{\"__metadata__\":{\"who\":\"me\"},\"t\":{\"dtype\":\"I8\",\"shape\":[2],"
        "\"data_offsets\":[0,2]}}";
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    qn_writer *writer = NULL;
    const int64_t two = 2;
    int8_t data[2] = {5, -5};
    size_t size;
    (void)state;
    assert_ok(qn_writer_create(ctx, path, &writer, NULL));
    assert_ok(qn_writer_metadata(writer, "who", "me", NULL));
    assert_ok(qn_writer_add(writer, "t", QN_I8, 1, &two, NULL, NULL));
    assert_ok(qn_writer_begin(writer, 0, 0, NULL));
    const qn_tensor t = qn_tensor_1d(data, QN_I8, 2);
    assert_ok(qn_writer_put(writer, 0, &t, NULL));
    assert_false(file_exists(path));
    assert_ok(qn_writer_finish(writer, NULL));
    uint8_t *bytes = file_bytes(path, &size);
    assert_int_equal(size, 128 + 2);
    assert_memory_equal(bytes, "\x78\0\0\0\0\0\0\0", 8);
    assert_memory_equal(bytes + 8, header, sizeof header - 1);
    for (size_t i = 8 + sizeof header - 1; i < 128; i++)
        assert_int_equal(bytes[i], ' ');
    assert_memory_equal(bytes + 128, "\x05\xfb", 2);
    free(bytes);
    assert_int_equal(folder_count(folder), 1);
    /* Nothing at all is a file too. */
    assert_ok(qn_writer_create(ctx, path, &writer, NULL));
    assert_ok(qn_writer_begin(writer, 1, 0, NULL));
    assert_ok(qn_writer_finish(writer, NULL));
    bytes = file_bytes(path, &size);
    assert_int_equal(size, 64);
    assert_memory_equal(bytes + 8, "{} ", 3);
    free(bytes);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* Any order, twice the same, empty tensors, rank 0; memory is given back. */
static void test_orders(void **state)
{
    static const int orders[][4] = {{0, 1, 2, 2}, {2, 1, 0, 0}, {1, 0, 2, 1}};
    const char *folder = folder_make(), *path = in(folder, "x");
    struct counted_ctx c;
    (void)state;
    counted_make(&c);
    for (size_t o = 0; o < 3; o++) {
        qn_writer *writer = declare(c.ctx, path);
        assert_ok(qn_writer_begin(writer, 1, 0, NULL));
        for (int i = 0; i < 4; i++)
            put(writer, orders[o][i]);
        assert_ok(qn_writer_finish(writer, NULL));
        check_file(c.ctx, path);
        counted_check(&c);
    }
    qn_writer *writer = NULL;
    const int64_t shape[3] = {4, 0, 2};
    float x = 2.5f;
    assert_ok(qn_writer_create(c.ctx, path, &writer, NULL));
    assert_ok(qn_writer_add(writer, "", QN_F16, 3, shape, NULL, NULL));
    assert_ok(qn_writer_add(writer, "s", QN_F32, 0, NULL, NULL, NULL));
    assert_ok(qn_writer_begin(writer, 1, 0, NULL));
    assert_int_equal(qn_writer_is_done(writer, 0), 0);
    const qn_tensor empty = qn_tensor_make(NULL, QN_F16, 3, shape);
    const qn_tensor scalar = qn_tensor_make(&x, QN_F32, 0, NULL);
    assert_ok(qn_writer_put(writer, 0, &empty, NULL));
    assert_ok(qn_writer_put(writer, 1, &scalar, NULL));
    assert_ok(qn_writer_finish(writer, NULL));
    qn_file *file = NULL;
    qn_entry entry;
    assert_ok(qn_file_open(c.ctx, path, &file, NULL));
    assert_ok(qn_file_find(file, "s", &entry));
    assert_true(*(const float *)entry.tensor.data == 2.5f);
    assert_ok(qn_file_find(file, "", &entry));
    assert_int_equal(entry.bytes, 0);
    qn_file_close(file);
    counted_destroy(&c);
    folder_remove(folder);
}

/* Larger than the buffer, so that tensors go out in several pieces. */
static void test_large(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    const int64_t n = (3 << 20) + 77;
    uint8_t *data = malloc((size_t)n);
    (void)state;
    for (int64_t i = 0; i < n; i++)
        data[i] = (uint8_t)(i * 2654435761u >> 13);
    for (int resume = 0; resume < 2; resume++) {
        qn_writer *writer = NULL;
        assert_ok(qn_writer_create(ctx, path, &writer, NULL));
        assert_ok(qn_writer_add(writer, "x", QN_U8, 1, &n, NULL, NULL));
        assert_ok(qn_writer_begin(writer, 0, 1, NULL));
        assert_int_equal(qn_writer_is_done(writer, 0), resume);
        const qn_tensor t = qn_tensor_1d(data, QN_U8, n);
        if (resume) {
            assert_ok(qn_writer_finish(writer, NULL));
        } else {
            assert_ok(qn_writer_put(writer, 0, &t, NULL));
            qn_writer_abort(writer, 1);
        }
    }
    qn_file *file = NULL;
    qn_entry entry;
    assert_ok(qn_file_open(ctx, path, &file, NULL));
    assert_ok(qn_file_entry(file, 0, &entry));
    assert_memory_equal(entry.tensor.data, data, (size_t)n);
    qn_file_forget(file, &entry);
    assert_memory_equal(entry.tensor.data, data, (size_t)n);
    qn_file_close(file);
    free(data);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* What may not be declared or put. */
static void test_misuse(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    qn_writer *w = NULL;
    const int64_t shape[2] = {2, 3}, bad[2] = {2, -3}, huge[2] = {INT64_MAX, 2};
    int64_t index = 0;
    (void)state;
    assert_error(qn_writer_create(NULL, path, &w, &err), QN_E_ARGUMENT, "ctx");
    assert_error(qn_writer_create(ctx, NULL, &w, &err), QN_E_ARGUMENT, "path");
    assert_error(qn_writer_create(ctx, "", &w, &err), QN_E_ARGUMENT, "path");
    assert_error(qn_writer_create(ctx, path, NULL, &err), QN_E_ARGUMENT, "writer");
    w = declare(ctx, path);
    const qn_tensor t = sample_tensor(FLOATS);
    assert_error(qn_writer_put(w, FLOATS, &t, &err), QN_E_ARGUMENT, "begin() comes first");
    assert_int_equal(qn_writer_is_done(w, FLOATS), 0);
    assert_error(qn_writer_add(w, "bytes", QN_U8, 2, shape, &index, &err), QN_E_EXISTS, "bytes");
    assert_error(qn_writer_add(w, "__metadata__", QN_U8, 2, shape, &index, &err), QN_E_ARGUMENT,
                 "__metadata__");
    assert_error(qn_writer_add(w, "\xff", QN_U8, 2, shape, &index, &err), QN_E_ARGUMENT, "UTF-8");
    assert_error(qn_writer_add(w, NULL, QN_U8, 2, shape, &index, &err), QN_E_ARGUMENT, "UTF-8");
    assert_error(qn_writer_add(w, "a", 99, 2, shape, &index, &err), QN_E_ARGUMENT, "element type");
    assert_error(qn_writer_add(w, "a", QN_DTYPE_NONE, 2, shape, &index, &err), QN_E_ARGUMENT,
                 "element type");
    assert_error(qn_writer_add(w, "a", QN_U8, 7, shape, &index, &err), QN_E_ARGUMENT, "rank 7");
    assert_error(qn_writer_add(w, "a", QN_U8, -1, shape, &index, &err), QN_E_ARGUMENT, "rank -1");
    assert_error(qn_writer_add(w, "a", QN_U8, 2, NULL, &index, &err), QN_E_ARGUMENT, "rank 2");
    assert_error(qn_writer_add(w, "a", QN_U8, 2, bad, &index, &err), QN_E_ARGUMENT, "negative");
    assert_error(qn_writer_add(w, "a", QN_U8, 2, huge, &index, &err), QN_E_ARGUMENT, "too large");
    assert_error(qn_writer_metadata(w, "k\x01", "x", &err), QN_E_EXISTS, "taken");
    assert_error(qn_writer_metadata(w, NULL, "x", &err), QN_E_ARGUMENT, "UTF-8");
    assert_error(qn_writer_metadata(w, "k", "\xc3", &err), QN_E_ARGUMENT, "UTF-8");
    /* A refused declaration leaves nothing behind. */
    assert_ok(qn_writer_begin(w, 0, 0, NULL));
    assert_error(qn_writer_begin(w, 0, 0, &err), QN_E_ARGUMENT, "too late");
    assert_error(qn_writer_add(w, "a", QN_U8, 2, shape, &index, &err), QN_E_ARGUMENT, "too late");
    assert_error(qn_writer_metadata(w, "k", "v", &err), QN_E_ARGUMENT, "too late");
    assert_error(qn_writer_put(w, -1, &t, &err), QN_E_ARGUMENT, "index -1");
    assert_error(qn_writer_put(w, N_TENSORS, &t, &err), QN_E_ARGUMENT, "index 3");
    assert_error(qn_writer_put(w, FLOATS, NULL, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_writer_put(w, BYTES, &t, &err), QN_E_DTYPE, "u8 and is given as f32");
    qn_tensor other = t;
    other.shape[1] = 4;
    assert_error(qn_writer_put(w, FLOATS, &other, &err), QN_E_SHAPE, "another shape");
    other = t;
    other.rank = 1;
    assert_error(qn_writer_put(w, FLOATS, &other, &err), QN_E_SHAPE, "another shape");
    other = t;
    other.stride[0] = 4;
    assert_error(qn_writer_put(w, FLOATS, &other, &err), QN_E_STRIDE, "contiguous");
    other = t;
    other.data = NULL;
    assert_error(qn_writer_put(w, FLOATS, &other, &err), QN_E_ARGUMENT, "CPU memory");
    put(w, FLOATS);
    put(w, DOUBLES);
    assert_error(qn_writer_finish(w, &err), QN_E_ARGUMENT, "x: tensor 'bytes' was not written");
    assert_false(file_exists(path));
    assert_true(file_exists(in(folder, "x.part")));
    assert_status(qn_writer_finish(NULL, NULL), QN_E_ARGUMENT);
    qn_writer_abort(NULL, 0);
    w = declare(ctx, path);
    assert_error(qn_writer_finish(w, &err), QN_E_ARGUMENT, "begin() comes first");
    w = declare(ctx, path);
    qn_writer_abort(w, 0); /* never begun: somebody else's part file stays */
    assert_true(file_exists(in(folder, "x.part")));
    w = declare(ctx, path);
    assert_ok(qn_writer_begin(w, 0, 0, NULL));
    qn_writer_abort(w, 0);
    assert_int_equal(folder_count(folder), 0);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* An end after `stage` tensors, then a resumed run: what was written is done, and only that. */
static void test_resume(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    for (int stage = 0; stage <= N_TENSORS; stage++) {
        qn_writer *writer = declare(ctx, path);
        assert_ok(qn_writer_begin(writer, 1, 1, NULL));
        for (int i = 0; i < stage; i++)
            put(writer, N_TENSORS - 1 - i);
        qn_writer_abort(writer, 1);
        writer = declare(ctx, path);
        assert_ok(qn_writer_begin(writer, 1, 1, NULL));
        for (int i = 0; i < N_TENSORS; i++) {
            const int is_done = N_TENSORS - 1 - i < stage;
            assert_int_equal(qn_writer_is_done(writer, i), is_done);
            if (!is_done)
                put(writer, i);
        }
        assert_ok(qn_writer_finish(writer, NULL));
        check_file(ctx, path);
        assert_int_equal(folder_count(folder), 1);
    }
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* Part files that must not be believed. damage: changes the part file of a run that wrote all. */
static void resume_damaged(const qn_ctx *ctx, const char *folder,
                           void (*damage)(uint8_t *bytes, size_t *size), int expected_done)
{
    const char *path = in(folder, "x"), *part = in(folder, "x.part");
    size_t size;
    qn_writer *writer = declare(ctx, path);
    assert_ok(qn_writer_begin(writer, 1, 0, NULL));
    for (int i = 0; i < N_TENSORS; i++)
        put(writer, i);
    qn_writer_abort(writer, 1);
    uint8_t *bytes = file_bytes(part, &size);
    damage(bytes, &size);
    file_write(part, bytes, size);
    free(bytes);
    writer = declare(ctx, path);
    assert_ok(qn_writer_begin(writer, 1, 1, NULL));
    int done = 0;
    for (int i = 0; i < N_TENSORS; i++) {
        done += qn_writer_is_done(writer, i);
        if (!qn_writer_is_done(writer, i))
            put(writer, i);
    }
    assert_int_equal(done, expected_done);
    assert_ok(qn_writer_finish(writer, NULL));
    check_file(ctx, path);
}

static uint64_t data_start(const uint8_t *bytes)
{
    uint64_t n;
    memcpy(&n, bytes, 8);
    return n + 8;
}
static void damage_nothing(uint8_t *bytes, size_t *size)
{
    (void)bytes;
    (void)size;
}
static void damage_data(uint8_t *bytes, size_t *size)
{
    (void)size;
    bytes[data_start(bytes) + 20] ^= 1; /* in the floats: 16 bytes of doubles come first */
}
static void lose_data(uint8_t *bytes, size_t *size)
{
    (void)size;
    memset(bytes + data_start(bytes), 0, 16 + 24 + 5); /* as after a power failure */
}
static void damage_header(uint8_t *bytes, size_t *size)
{
    (void)size;
    bytes[20] ^= 1;
}
/* The journal: a note of 16 bytes per tensor, no facts, a tail. */
enum { NOTE = 16, TAIL = 64 };
static void damage_journal(uint8_t *bytes, size_t *size)
{
    bytes[*size - TAIL] ^= 1; /* its magic */
}
static void damage_note(uint8_t *bytes, size_t *size)
{
    bytes[*size - TAIL - NOTE] ^= 1;
}
static void forget_note(uint8_t *bytes, size_t *size)
{
    memset(bytes + *size - TAIL - NOTE, 0, 8);
}
static void cut_short(uint8_t *bytes, size_t *size)
{
    (void)bytes;
    *size -= 1;
}
static void cut_journal(uint8_t *bytes, size_t *size)
{
    *size = data_start(bytes) + 16 + 24 + 5; /* killed between the last two steps of finish, or
                                                 planted: nothing tells that it is whole */
}
static void cut_all(uint8_t *bytes, size_t *size)
{
    (void)bytes;
    *size = 0;
}
static void append(uint8_t *bytes, size_t *size)
{
    bytes[*size] = 0; /* file_bytes() leaves room for one */
    *size += 1;
}

static void test_resume_damaged(void **state)
{
    const char *folder = folder_make();
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    resume_damaged(ctx, folder, damage_nothing, 3);
    resume_damaged(ctx, folder, damage_data, 2);
    resume_damaged(ctx, folder, lose_data, 0);
    resume_damaged(ctx, folder, damage_header, 0);
    resume_damaged(ctx, folder, damage_journal, 0);
    resume_damaged(ctx, folder, damage_note, 2);
    resume_damaged(ctx, folder, forget_note, 2);
    resume_damaged(ctx, folder, cut_short, 0);
    resume_damaged(ctx, folder, cut_journal, 0);
    resume_damaged(ctx, folder, cut_all, 0);
    resume_damaged(ctx, folder, append, 0);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* Another declaration begins anew: a name, a type, a shape, one tensor more, other metadata. */
static void test_resume_other(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    for (int other = 0; other < 6; other++) {
        qn_writer *writer = NULL;
        uint8_t data[8] = {9, 9, 9, 9, 9, 9, 9, 9};
        for (int run = 0; run < 2; run++) {
            const int64_t shape[2] = {run == 1 && other == 2 ? 4 : 8, 1};
            assert_ok(qn_writer_create(ctx, path, &writer, NULL));
            assert_ok(qn_writer_add(writer, run == 1 && other == 0 ? "b" : "a",
                                    run == 1 && other == 1 ? QN_I8 : QN_U8,
                                    run == 1 && other == 3 ? 2 : 1, shape, NULL, NULL));
            if (run == 1 && other == 4)
                assert_ok(qn_writer_add(writer, "c", QN_U8, 1, shape, NULL, NULL));
            assert_ok(qn_writer_metadata(writer, "k", run == 1 && other == 5 ? "2" : "1", NULL));
            assert_ok(qn_writer_begin(writer, 0, 1, NULL));
            assert_int_equal(qn_writer_is_done(writer, 0), 0);
            if (run == 0) {
                const qn_tensor t = qn_tensor_1d(data, QN_U8, 8);
                assert_ok(qn_writer_put(writer, 0, &t, NULL));
            }
            qn_writer_abort(writer, run == 0);
        }
    }
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* Killed at any moment: the next run ends with the right file, the final name shows nothing before.
 */
static void test_kill(void **state)
{
    enum { N = 40, BYTES_EACH = 1 << 16 };
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    uint8_t *data = malloc(BYTES_EACH);
    int finished = 0;
    (void)state;
    /* Child c tells through a pipe each tensor that it has written, is killed after c of them, and
     * waits for that after twice as many. The last child has fewer than c to write and ends. */
    for (int kill_after = 1; !finished; kill_after++) {
        int told[2];
        assert_int_equal(pipe(told), 0);
        const pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            close(told[0]);
            qn_writer *w = NULL;
            const int64_t size = BYTES_EACH;
            char name[24];
            if (qn_writer_create(ctx, path, &w, NULL) != QN_OK)
                _exit(1);
            for (int i = 0; i < N; i++) {
                snprintf(name, sizeof name, "t%d", i);
                if (qn_writer_add(w, name, QN_U8, 1, &size, NULL, NULL) != QN_OK)
                    _exit(1);
            }
            if (qn_writer_begin(w, 0, 1, NULL) != QN_OK)
                _exit(2);
            int already = 0, n_written = 0;
            for (int i = 0; i < N; i++)
                already += qn_writer_is_done(w, i);
            if (already < kill_after * (kill_after - 1) / 2)
                _exit(5); /* what the children before this one wrote is not lost */
            for (int i = 0; i < N; i++) {
                if (qn_writer_is_done(w, i))
                    continue;
                memset(data, i + 1, BYTES_EACH);
                const qn_tensor t = qn_tensor_1d(data, QN_U8, size);
                if (qn_writer_put(w, i, &t, NULL) != QN_OK)
                    _exit(3);
                if (write(told[1], "", 1) != 1)
                    _exit(6);
                if (++n_written == 2 * kill_after)
                    pause();
            }
            _exit(qn_writer_finish(w, NULL) == QN_OK ? (already > 0 ? 10 : 11) : 4);
        }
        close(told[1]);
        char one;
        int written = 0;
        while (written < kill_after && read(told[0], &one, 1) == 1)
            written++;
        if (written == kill_after)
            kill(child, SIGKILL);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        close(told[0]);
        if (WIFEXITED(status)) {
            assert_int_equal(WEXITSTATUS(status), 10);
            assert_true(kill_after > 1);
            finished = 1;
        } else {
            /* Both names stand only where naming takes two steps, and then for the whole file. */
            struct stat whole, part;
            if (stat(path, &whole) == 0 && stat(in(folder, "x.part"), &part) == 0)
                assert_true(whole.st_ino == part.st_ino);
        }
        if (file_exists(path))
            finished = 1;
    }
    qn_file *file = NULL;
    qn_entry entry;
    assert_ok(qn_file_open(ctx, path, &file, NULL));
    assert_int_equal(qn_file_count(file), N);
    for (int i = 0; i < N; i++) {
        assert_ok(qn_file_entry(file, i, &entry));
        memset(data, i + 1, BYTES_EACH);
        assert_memory_equal(entry.tensor.data, data, BYTES_EACH);
    }
    qn_file_close(file);
    free(data);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* Two writers of one path: the second is told so; it may begin when the first is gone. */
static void test_two_writers(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    qn_writer *first = declare(ctx, path), *second = declare(ctx, path);
    assert_ok(qn_writer_begin(first, 0, 0, NULL));
    put(first, BYTES);
    assert_error(qn_writer_begin(second, 0, 0, &err), QN_E_OPEN, "another process or writer");
    assert_error(qn_writer_begin(second, 1, 1, &err), QN_E_OPEN, "another process or writer");
    put(first, FLOATS);
    put(first, DOUBLES);
    assert_ok(qn_writer_finish(first, NULL));
    check_file(ctx, path);
    assert_error(qn_writer_begin(second, 0, 0, &err), QN_E_EXISTS, "x: exists already");
    assert_ok(qn_writer_begin(second, 1, 0, NULL));
    /* The name is taken by somebody while a writer that must not overwrite works. */
    qn_writer_abort(second, 0);
    assert_int_equal(remove(path), 0);
    first = declare(ctx, path);
    assert_ok(qn_writer_begin(first, 0, 0, NULL));
    for (int i = 0; i < N_TENSORS; i++)
        put(first, i);
    file_write(path, "mine", 4);
    assert_error(qn_writer_finish(first, &err), QN_E_EXISTS, "meanwhile");
    size_t size;
    uint8_t *bytes = file_bytes(path, &size);
    assert_int_equal(size, 4);
    free(bytes);
    assert_true(file_exists(in(folder, "x.part"))); /* the work is not lost */
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

#if defined(__linux__) && defined(SYS_renameat2)
/* The file gets its name in two steps: with the name free, and with the name taken. */
static void test_two_steps(void **state)
{
    enum { NO_FILTER = 77, OK = 78 };
    const char *folder = folder_make(), *path = in(folder, "x"), *taken = in(folder, "taken");
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    qn_writer *writer = declare(ctx, path), *late = declare(ctx, taken);
    assert_ok(qn_writer_begin(writer, 0, 0, NULL));
    assert_ok(qn_writer_begin(late, 0, 0, NULL));
    for (int i = 0; i < N_TENSORS; i++) {
        put(writer, i);
        put(late, i);
    }
    file_write(taken, "mine", 4);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!test_refuse(SYS_renameat2, EINVAL)) /* a kernel that cannot rename and not replace */
            _exit(NO_FILTER);
        if (qn_writer_finish(writer, NULL) != QN_OK)
            _exit(1);
        _exit(qn_writer_finish(late, NULL) == QN_E_EXISTS ? OK : 2);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) != NO_FILTER) {
        assert_int_equal(WEXITSTATUS(status), OK);
        check_file(ctx, path);
        assert_false(file_exists(in(folder, "x.part")));
        assert_true(file_exists(in(folder, "taken.part")));
    }
    qn_writer_abort(writer, 1);
    qn_writer_abort(late, 1);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}
#endif

/* Places where nothing can be written. Tests may run as root, whom permissions do not stop; these
 * do. */
static void test_places(void **state)
{
    const char *folder = folder_make();
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    static const struct {
        const char *path; /* in the folder */
        qn_status status;
        const char *word;
    } cases[] = {
        {"none/x", QN_E_OPEN, "no such file or folder"},
        {"file/x", QN_E_OPEN, "not a folder"},
        {"folder", QN_E_OPEN, "it is a folder"},
        {"blocked", QN_E_OPEN, "it is a folder"},
        {"linked", QN_E_OPEN, "symbolic link"},
        {"piped", QN_E_OPEN, "regular"},
        {"file", QN_E_EXISTS, "overwriting"},
    };
    file_write(in(folder, "file"), "f", 1);
    mkdir(in(folder, "folder"), 0777);
    mkdir(in(folder, "blocked.part"), 0777);
    assert_int_equal(symlink("file", in(folder, "linked.part")), 0);
    assert_int_equal(mkfifo(in(folder, "piped.part"), 0600), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        qn_writer *writer = declare(ctx, in(folder, cases[i].path));
        assert_error(qn_writer_begin(writer, 0, 0, &err), cases[i].status, cases[i].word);
        qn_writer_abort(writer, 0);
    }
    qn_writer *writer = declare(ctx, "/proc/quern-test"); /* a read-only place, also for root */
    assert_status(qn_writer_begin(writer, 0, 0, NULL), QN_E_OPEN);
    qn_writer_abort(writer, 0);
    writer = declare(ctx, "/dev/null");
    assert_error(qn_writer_begin(writer, 1, 0, &err), QN_E_OPEN, "regular");
    qn_writer_abort(writer, 0);
    char long_name[300];
    memset(long_name, 'n', sizeof long_name);
    long_name[299] = 0;
    writer = declare(ctx, in(folder, long_name));
    assert_error(qn_writer_begin(writer, 0, 0, &err), QN_E_OPEN, "too long");
    qn_writer_abort(writer, 0);
    size_t size;
    uint8_t *bytes = file_bytes(in(folder, "file"), &size);
    assert_int_equal(size, 1);
    free(bytes);
    assert_int_equal(folder_count(folder), 5);
    folder_remove(folder);
    qn_ctx_destroy(ctx);
}

/* A part file with a second name is somebody's finished file (killed between link and unlink). */
static void test_second_name(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    file_write(in(folder, "x.part"), "precious", 8);
    assert_int_equal(link(in(folder, "x.part"), in(folder, "kept")), 0);
    qn_writer *writer = declare(ctx, path);
    assert_ok(qn_writer_begin(writer, 0, 0, NULL));
    for (int i = 0; i < N_TENSORS; i++)
        put(writer, i);
    assert_ok(qn_writer_finish(writer, NULL));
    check_file(ctx, path);
    size_t size;
    uint8_t *bytes = file_bytes(in(folder, "kept"), &size);
    assert_int_equal(size, 8);
    assert_memory_equal(bytes, "precious", 8);
    free(bytes);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* A full disk, played by the limit on file sizes: found at begin, before any work; nothing is left.
 */
static void test_no_space(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    const int64_t size = 1 << 20;
    uint8_t *data = calloc((size_t)size, 1);
    struct rlimit old, low;
    (void)state;
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = 100000;
    qn_writer *writer = NULL;
    assert_ok(qn_writer_create(ctx, path, &writer, NULL));
    assert_ok(qn_writer_add(writer, "t", QN_U8, 1, &size, NULL, NULL));
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    qn_error err = {0};
    const qn_status began = qn_writer_begin(writer, 0, 0, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(began, QN_E_WRITE);
    assert_non_null(strstr(err.text, "file size limit"));
    assert_int_equal(folder_count(folder), 0);
    /* The same writer can begin when there is room again; the limit then strikes in a put, which
     * may be repeated. */
    assert_ok(qn_writer_begin(writer, 0, 0, NULL));
    const qn_tensor t = qn_tensor_1d(data, QN_U8, size);
    setrlimit(RLIMIT_FSIZE, &low);
    const qn_status put_status = qn_writer_put(writer, 0, &t, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(put_status, QN_E_WRITE);
    assert_int_equal(qn_writer_is_done(writer, 0), 0);
    assert_ok(qn_writer_put(writer, 0, &t, NULL));
    assert_ok(qn_writer_finish(writer, NULL));
    assert_int_equal(folder_count(folder), 1);
    setrlimit(RLIMIT_FSIZE, &low);
    const qn_tensor floats = qn_tensor_1d(data, QN_F32, size / 4);
    const qn_status npy = qn_npy_write(in(folder, "n.npy"), &floats, 0, &err);
    setrlimit(RLIMIT_FSIZE, &old);
    assert_int_equal(npy, QN_E_WRITE);
    assert_int_equal(folder_count(folder), 1);
    signal(SIGXFSZ, SIG_DFL);
    free(data);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* No memory at any point of a whole run: an error, nothing lost, nothing left. */
static void test_no_memory(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    struct counted_ctx c;
    (void)state;
    counted_make(&c);
    int64_t failures = 0;
    for (bool finished = false; !finished; failures++) {
        qn_writer *writer = NULL;
        char name[24];
        const int64_t size = 4;
        float data[4] = {1, 2, 3, 4};
        c.counter.refuse = c.counter.calls + failures + 1;
        qn_status status = qn_writer_create(c.ctx, path, &writer, NULL);
        for (int i = 0; status == QN_OK && i < 100; i++) {
            snprintf(name, sizeof name, "tensor %d", i);
            status = qn_writer_add(writer, name, QN_F32, 1, &size, NULL, NULL);
            if (status == QN_OK)
                status = qn_writer_metadata(writer, name, "value", NULL);
        }
        if (status == QN_OK)
            status = qn_writer_begin(writer, 1, 0, NULL);
        const qn_tensor t = qn_tensor_1d(data, QN_F32, 4);
        for (int i = 0; status == QN_OK && i < 100; i++)
            status = qn_writer_put(writer, i, &t, NULL);
        finished = status == QN_OK;
        if (finished)
            assert_ok(qn_writer_finish(writer, NULL));
        else
            qn_writer_abort(writer, 0);
        assert_true(finished || status == QN_E_MEMORY);
        counted_check(&c);
        assert_int_equal(folder_count(folder), finished);
    }
    assert_true(failures > 15);
    counted_destroy(&c);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_orders),
        cmocka_unit_test(test_large),
        cmocka_unit_test(test_misuse),
        cmocka_unit_test(test_resume),
        cmocka_unit_test(test_resume_damaged),
        cmocka_unit_test(test_resume_other),
        cmocka_unit_test(test_kill),
        cmocka_unit_test(test_two_writers),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_second_name),
        cmocka_unit_test(test_no_space),
        cmocka_unit_test(test_no_memory),
#if defined(__linux__) && defined(SYS_renameat2)
        cmocka_unit_test(test_two_steps),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
