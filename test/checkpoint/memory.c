/* SPDX-License-Identifier: Apache-2.0 */
/* Files that lie in memory, behind a descriptor or inside another file, and packed weights in the
 * caller's buffers: the same content as of a path, nothing copied, everybody told when it is over,
 * and hostile bytes refused as those of a disk are. */
#include "packed_bytes.h"

#include "quant/packed.h"

static const struct shape shape = {40, 200, 1, 1, 1};

static void count(void *arg)
{
    ++*(int *)arg;
}

/* Two tensors of one file through every door, whose bytes have so many others before them. */
static void expect_tensors(const qn_file *file, const uint8_t *data)
{
    qn_entry entry;
    assert_non_null(file);
    assert_int_equal(qn_file_count(file), 2);
    assert_ok(qn_file_find(file, "a", &entry));
    assert_int_equal(entry.bytes, 8);
    assert_memory_equal(entry.tensor.data, data, 8);
    assert_ok(qn_file_find(file, "b", &entry));
    assert_memory_equal(entry.tensor.data, data + 8, 6);
    double out[3];
    const qn_tensor to = qn_tensor_1d(out, QN_F64, 3);
    assert_ok(qn_entry_copy(&entry, &to));
    qn_file_prefetch(file, &entry);
    qn_file_forget(file, &entry);
    assert_memory_equal(entry.tensor.data, data + 8, 6);
}

static uint8_t *small_file(const uint8_t data[14], size_t *size)
{
    return safetensors_make("{\"a\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]},"
                            "\"b\":{\"dtype\":\"F16\",\"shape\":[3],\"data_offsets\":[8,14]}}",
                            data, 14, size);
}

static const uint8_t data[14] = {0, 0, 128, 63, 0, 0, 0, 64, 0, 60, 0, 64, 0, 66};

static void test_doors(void **state)
{
    static const size_t befores[] = {0, 1, 7, 64, 4095, 4096, 4097, 12289};
    const char *folder = folder_make(), *path = in(folder, "x");
    struct counted_ctx c;
    size_t size = 0;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = small_file(data, &size);
    for (size_t i = 0; i < sizeof befores / sizeof *befores; i++) {
        const size_t before = befores[i], behind = 33, all = before + size + behind;
        uint8_t *whole = malloc(all);
        memset(whole, 0xee, all);
        memcpy(whole + before, bytes, size);
        file_write(path, whole, all);
        qn_file_options options;
        qn_file *file = NULL;
        qn_file_options_init(&options);
        assert_error(qn_file_open_path(c.ctx, path, &options, &file, &err), QN_E_CORRUPT, "x: ");
        options.offset = (int64_t)before;
        options.bytes = (int64_t)size;
        for (int32_t wish = 0; wish < 4; wish++) {
            options.prefetch = wish & 1;
            options.lock = wish >> 1;
            assert_ok(qn_file_open_path(c.ctx, path, &options, &file, NULL));
            expect_tensors(file, data);
            qn_file_close(file);
            const int fd = open(path, O_RDONLY);
            assert_true(fd >= 0);
            assert_ok(qn_file_open_descriptor(c.ctx, fd, &options, &file, NULL));
            assert_int_equal(lseek(fd, 0, SEEK_CUR), 0);
            assert_int_equal(close(fd), 0);
            expect_tensors(file, data);
            qn_file_close(file);
            int calls = 0;
            options.release = count;
            options.release_arg = &calls;
            assert_ok(qn_file_open_memory(c.ctx, whole, all, &options, &file, NULL));
            expect_tensors(file, data);
            assert_int_equal(calls, 0);
            qn_file_close(file);
            assert_int_equal(calls, 1);
            options.release = NULL;
        }
        free(whole);
    }
    counted_check(&c);
    free(bytes);
    counted_destroy(&c);
    folder_remove(folder);
}

static void test_bad_arguments(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    qn_file_options options, bad;
    qn_file *file = NULL;
    size_t size = 0;
    int calls = 0, pipes[2];
    (void)state;
    uint8_t *bytes = small_file(data, &size);
    file_write(path, bytes, size);
    qn_file_options_init(&options);
    options.release = count;
    options.release_arg = &calls;
    assert_error(qn_file_open_memory(NULL, bytes, size, NULL, &file, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_file_open_memory(ctx, NULL, size, NULL, &file, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_file_open_memory(ctx, bytes, size, NULL, NULL, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_file_open_memory(ctx, NULL, 0, NULL, &file, &err), QN_E_CORRUPT, "empty");
    assert_error(qn_file_open_memory(ctx, bytes, SIZE_MAX, &options, &file, &err), QN_E_ARGUMENT,
                 "address space");
    assert_error(qn_file_open_memory(ctx, bytes, size - 1, &options, &file, &err), QN_E_CORRUPT,
                 "the file in memory: ");
    assert_error(qn_file_open_path(ctx, NULL, NULL, &file, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_file_open_path(ctx, path, &options, &file, &err), QN_E_ARGUMENT, "release");
    assert_error(qn_file_open_descriptor(ctx, 0, &options, &file, &err), QN_E_ARGUMENT, "release");
    assert_error(qn_file_open_path(ctx, in(folder, "no"), NULL, &file, &err), QN_E_OPEN, "no: ");
    assert_error(qn_file_open_descriptor(ctx, -1, NULL, &file, &err), QN_E_READ, "descriptor -1");
    assert_int_equal(pipe(pipes), 0);
    assert_error(qn_file_open_descriptor(ctx, pipes[0], NULL, &file, &err), QN_E_OPEN, "regular");
    close(pipes[0]);
    close(pipes[1]);
    const int folder_fd = open(folder, O_RDONLY);
    assert_error(qn_file_open_descriptor(ctx, folder_fd, NULL, &file, &err), QN_E_OPEN, "folder");
    close(folder_fd);
    const int write_fd = open(path, O_WRONLY);
    assert_error(qn_file_open_descriptor(ctx, write_fd, NULL, &file, &err), QN_E_READ, "mapped");
    close(write_fd);
    static const int64_t parts[][2] = {{-1, -1},       {0, -2},        {INT64_MIN, -1},
                                       {1 << 20, -1},  {0, 1 << 20},   {8, INT64_MAX},
                                       {INT64_MAX, 1}, {INT64_MAX, -1}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        bad = options;
        bad.offset = parts[i][0];
        bad.bytes = parts[i][1];
        assert_error(qn_file_open_memory(ctx, bytes, size, &bad, &file, &err), QN_E_ARGUMENT,
                     "bytes");
        bad.release = NULL;
        assert_error(qn_file_open_path(ctx, path, &bad, &file, &err), QN_E_ARGUMENT, "bytes");
    }
    bad = options;
    bad.lock = 2;
    assert_error(qn_file_open_memory(ctx, bytes, size, &bad, &file, &err), QN_E_ARGUMENT, "lock");
    bad = options;
    bad.size = 3;
    assert_error(qn_file_open_memory(ctx, bytes, size, &bad, &file, &err), QN_E_ARGUMENT, "size");
    assert_null(file);
    assert_int_equal(calls, 0);
    qn_file_prefetch(NULL, NULL);
    free(bytes);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* More than the process may lock. Root may lock what it likes, whatever the limit. */
static void test_lock_limit(void **state)
{
    struct rlimit before;
    qn_file_options options;
    qn_file *file = NULL;
    int calls = 0;
    (void)state;
    if (geteuid() == 0 || getrlimit(RLIMIT_MEMLOCK, &before) != 0)
        skip();
    const struct rlimit none = {0, before.rlim_max};
    qn_ctx *ctx = ctx_make(1);
    size_t size = 0;
    uint8_t *bytes = small_file(data, &size);
    qn_file_options_init(&options);
    options.lock = 1;
    options.release = count;
    options.release_arg = &calls;
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &none), 0);
    assert_error(qn_file_open_memory(ctx, bytes, size, &options, &file, &err), QN_E_MEMORY,
                 "locked");
    assert_int_equal(setrlimit(RLIMIT_MEMLOCK, &before), 0);
    assert_int_equal(calls, 0);
    free(bytes);
    qn_ctx_destroy(ctx);
}

static void product(qn_ctx *ctx, const qn_packed *packed, float y[40])
{
    float x[200];
    qn_matmul_args args;
    fill_reals(x, 200, 3);
    qn_matmul_args_init(&args);
    args.x = qn_tensor_2d(x, QN_F32, 1, 200);
    args.y = qn_tensor_2d(y, QN_F32, 1, 40);
    args.w = packed;
    assert_ok(matmul_in_arena(ctx, &args));
}

/* Packed weights outlive the file, and the memory outlives both. */
static void test_packed_outlives(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    qn_packed *real = packed_make(ctx, "int4:g32", shape, 9, NULL), *packed = NULL;
    qn_file_options options;
    qn_file *file = NULL;
    size_t size = 0, blob = 0;
    int calls = 0;
    float y[40], z[40];
    (void)state;
    uint8_t *bytes = saved_bytes(ctx, "int4:g32", shape, &size, &blob);
    qn_file_options_init(&options);
    options.release = count;
    options.release_arg = &calls;
    assert_ok(qn_file_open_memory(ctx, bytes, size, &options, &file, NULL));
    assert_ok(qn_packed_load(ctx, file, "w", &packed, NULL));
    assert_ptr_equal(packed->blob, bytes + blob);
    qn_file_close(file);
    assert_int_equal(calls, 0);
    product(ctx, real, y);
    product(ctx, packed, z);
    assert_memory_equal(y, z, sizeof y);
    qn_packed_destroy(packed);
    assert_int_equal(calls, 1);
    free(bytes);
    qn_packed_destroy(real);
    qn_ctx_destroy(ctx);
}

/* Into the caller's memory and back from it: the same bytes as of qn_pack(), none beside them. */
static void test_buffers(void **state)
{
    static const char *const specs[] = {"int4:g32", "int4:g64:zp", "int8:pc", "nf4:g64",
                                        "int3:g40:off:f16"};
    (void)state;
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        struct counted_ctx c;
        counted_make(&c);
        qn_weight *weight = weight_make(c.ctx, specs[i], shape, 5 + i);
        qn_packed *packed = NULL, *into = NULL, *from = NULL;
        size_t bytes = 0, found = 0;
        const void *at = NULL;
        int calls = 0;
        float y[40], z[40];
        assert_ok(qn_pack_bytes(c.ctx, weight, NULL, &bytes));
        assert_ok(qn_pack(c.ctx, weight, NULL, &packed, NULL));
        uint8_t *buffer = take(bytes + 192);
        memset(buffer, 0xaa, bytes + 192);
        assert_error(qn_pack_into(c.ctx, weight, NULL, buffer, bytes - 1, &into, &err),
                     QN_E_SCRATCH, "buffer");
        assert_error(qn_pack_into(c.ctx, weight, NULL, buffer + 8, bytes, &into, &err), QN_E_ALIGN,
                     "64");
        assert_null(into);
        c.counter.largest_bytes = 0;
        assert_ok(qn_pack_into(c.ctx, weight, NULL, buffer + 64, bytes, &into, NULL));
        assert_true(c.counter.largest_bytes < 4096);
        for (size_t j = 0; j < 64; j++)
            assert_int_equal(buffer[j] + buffer[64 + bytes + j], 2 * 0xaa);
        assert_ok(qn_packed_data(into, &at, &found));
        assert_ptr_equal(at, buffer + 64);
        assert_int_equal(found, bytes);
        assert_ok(qn_packed_data(packed, &at, &found));
        assert_memory_equal(at, buffer + 64, bytes);
        uint8_t *copy = take(bytes);
        assert_ok(qn_packed_copy(c.ctx, packed, copy, bytes, NULL));
        assert_memory_equal(at, copy, bytes);
        assert_error(qn_packed_copy(c.ctx, packed, copy, bytes - 1, &err), QN_E_SCRATCH, "room");
        c.counter.largest_bytes = 0;
        assert_ok(qn_packed_from_memory(c.ctx, copy, bytes, count, &calls, &from, NULL));
        assert_true(c.counter.largest_bytes < 4096);
        product(c.ctx, packed, y);
        product(c.ctx, into, z);
        assert_memory_equal(y, z, sizeof y);
        product(c.ctx, from, z);
        assert_memory_equal(y, z, sizeof y);
        qn_packed_destroy(into);
        qn_packed_destroy(from);
        assert_int_equal(calls, 1);
        assert_error(qn_packed_from_memory(c.ctx, copy + 8, bytes - 8, count, &calls, &from, &err),
                     QN_E_ALIGN, "64");
        for (size_t cut = 0; cut < bytes; cut += cut < 600 ? 1 : 97)
            assert_error(qn_packed_from_memory(c.ctx, copy, cut, count, &calls, &from, &err),
                         QN_E_CORRUPT, "packed weights in memory: ");
        assert_null(from);
        assert_int_equal(calls, 1);
        free(copy);
        free(buffer);
        qn_packed_destroy(packed);
        qn_weight_destroy(weight);
        qn_ctx_destroy(c.ctx); /* with its arena */
        assert_int_equal(c.counter.live, 0);
    }
}

/* Every byte of the head with other bits: refused, or weights that can be run. */
static void test_hostile_heads(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    qn_packed *real = packed_make(ctx, "int4:g24:zp", shape, 9, NULL);
    size_t bytes = 0;
    const void *at = NULL;
    int calls = 0, made = 0;
    (void)state;
    assert_ok(qn_packed_data(real, &at, &bytes));
    uint8_t *copy = take(bytes);
    for (size_t place = 0; place < sizeof(struct qni_packed_head); place++)
        for (int bit = 0; bit < 9; bit++) {
            qn_packed *packed = NULL;
            qn_error error = {0};
            memcpy(copy, at, bytes);
            copy[place] ^= bit < 8 ? (uint8_t)(1 << bit) : 0xff;
            const qn_status status =
                qn_packed_from_memory(ctx, copy, bytes, count, &calls, &packed, &error);
            assert_int_equal(status == QN_OK, packed != NULL);
            assert_true(status == QN_OK || error.text[0] != 0);
            made += status == QN_OK;
            qn_packed_info info;
            qn_packed_info_init(&info);
            if (packed != NULL && qn_packed_query(packed, &info) == QN_OK && info.n == 40 &&
                info.k == 200) {
                float y[40];
                product(ctx, packed, y);
            }
            qn_packed_destroy(packed);
            assert_int_equal(calls, made);
        }
    free(copy);
    qn_packed_destroy(real);
    qn_ctx_destroy(ctx);
}

static void test_bad_buffers(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    qn_weight *weight = weight_make(ctx, "int4:g32", shape, 5);
    qn_packed *packed = NULL;
    const void *at = NULL;
    size_t bytes = 0;
    (void)state;
    uint8_t *buffer = take(1 << 16);
    assert_error(qn_pack_into(NULL, weight, NULL, buffer, 1 << 16, &packed, &err), QN_E_ARGUMENT,
                 "ctx");
    assert_error(qn_pack_into(ctx, NULL, NULL, buffer, 1 << 16, &packed, &err), QN_E_ARGUMENT,
                 "weight");
    assert_error(qn_pack_into(ctx, weight, NULL, NULL, 1 << 16, &packed, &err), QN_E_ARGUMENT,
                 "buffer");
    assert_error(qn_pack_into(ctx, weight, NULL, buffer, 1 << 16, NULL, &err), QN_E_ARGUMENT,
                 "packed");
    assert_error(qn_packed_from_memory(NULL, buffer, 64, NULL, NULL, &packed, &err), QN_E_ARGUMENT,
                 "NULL");
    assert_error(qn_packed_from_memory(ctx, NULL, 64, NULL, NULL, &packed, &err), QN_E_ARGUMENT,
                 "NULL");
    assert_error(qn_packed_from_memory(ctx, buffer, 64, NULL, NULL, NULL, &err), QN_E_ARGUMENT,
                 "NULL");
    assert_error(qn_packed_copy(ctx, NULL, buffer, 64, &err), QN_E_ARGUMENT, "NULL");
    assert_status(qn_packed_data(NULL, &at, &bytes), QN_E_ARGUMENT);
    assert_ok(qn_pack_into(ctx, weight, NULL, buffer, 1 << 16, &packed, NULL));
    assert_status(qn_packed_data(packed, NULL, &bytes), QN_E_ARGUMENT);
    assert_status(qn_packed_data(packed, &at, NULL), QN_E_ARGUMENT);
    assert_error(qn_packed_copy(ctx, packed, NULL, 64, &err), QN_E_ARGUMENT, "NULL");
    qn_packed_destroy(packed);
    free(buffer);
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
}

/* The files of a checkpoint are closed whatever happens. */
static void test_checkpoint(void **state)
{
    struct counted_ctx c;
    qn_checkpoint *checkpoint = NULL;
    qn_checkpoint_options options;
    qn_file *files[2] = {NULL, NULL};
    size_t size = 0;
    int calls = 0;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = small_file(data, &size);
    qn_file_options given;
    qn_file_options_init(&given);
    given.release = count;
    given.release_arg = &calls;
    qn_checkpoint_options_init(&options);
    options.gptq_zeros = 77;
    assert_ok(qn_file_open_memory(c.ctx, bytes, size, &given, &files[0], NULL));
    assert_error(qn_checkpoint_open_files(c.ctx, files, 1, NULL, 0, &options, &checkpoint, &err),
                 QN_E_ARGUMENT, "gptq_zeros");
    assert_int_equal(calls, 1);
    assert_ok(qn_file_open_memory(c.ctx, bytes, size, &given, &files[0], NULL));
    assert_error(qn_checkpoint_open_files(c.ctx, files, 2, NULL, 0, NULL, &checkpoint, &err),
                 QN_E_ARGUMENT, "NULL");
    assert_int_equal(calls, 2);
    assert_error(qn_checkpoint_open_files(c.ctx, NULL, 1, NULL, 0, NULL, &checkpoint, &err),
                 QN_E_ARGUMENT, "NULL");
    assert_ok(qn_file_open_memory(c.ctx, bytes, size, &given, &files[0], NULL));
    assert_error(qn_checkpoint_open_files(c.ctx, files, 1, "{", 1, NULL, &checkpoint, &err),
                 QN_E_CORRUPT, "config: ");
    assert_int_equal(calls, 3);
    assert_null(checkpoint);
    assert_ok(qn_file_open_memory(c.ctx, bytes, size, &given, &files[0], NULL));
    assert_ok(qn_checkpoint_open_files(c.ctx, files, 1, "{}", 2, NULL, &checkpoint, NULL));
    assert_int_equal(qn_checkpoint_count(checkpoint), 2);
    assert_int_equal(calls, 3);
    qn_checkpoint_close(checkpoint);
    assert_int_equal(calls, 4);
    free(bytes);
    counted_destroy(&c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_doors),       cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_lock_limit),  cmocka_unit_test(test_packed_outlives),
        cmocka_unit_test(test_buffers),     cmocka_unit_test(test_hostile_heads),
        cmocka_unit_test(test_bad_buffers), cmocka_unit_test(test_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
