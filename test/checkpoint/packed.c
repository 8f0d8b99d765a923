/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights in files: used where they lie, tagged, checked; what does not suit this machine
 * and what is damaged is refused. */
#include "packed_bytes.h"

#include "base/context.h"
#include "base/error.h"
#include "quant/packed.h"

static const struct shape shape = {40, 200, 1, 1, 1};

static void expect_blobs(const qn_packed *a, const qn_packed *b)
{
    assert_int_equal(a->head->bytes, b->head->bytes);
    assert_memory_equal(a->head, b->head, sizeof *a->head);
    assert_memory_equal(a->blob, b->blob, (size_t)a->head->bytes);
}

/* Several formats in one file: the same bits, no copy, alive after the file is closed, and the same
 * product. */
static void test_round_trip(void **state)
{
    static const char *const specs[] = {"int4:g32", "int4:g64:zp", "int8:pc", "nf4:g64",
                                        "int3:g40:off:f16"};
    enum { COUNT = 5 };
    const char *folder = folder_make(), *path = in(folder, "x");
    struct counted_ctx c;
    qn_packed *packed[COUNT];
    const char *names[COUNT] = {"a", "b", "layer.\xcf\x80", "d", ""};
    qn_file *file = NULL;
    (void)state;
    counted_make(&c);
    for (int i = 0; i < COUNT; i++)
        packed[i] = packed_make(c.ctx, specs[i], shape, 5 + (uint64_t)i, NULL);
    assert_ok(qn_packed_save(c.ctx, path, COUNT, names, (const qn_packed *const *)packed, 0, NULL));
    assert_int_equal(folder_count(folder), 1);
    c.counter.largest_bytes = 0;
    assert_ok(qn_file_open(c.ctx, path, &file, NULL));
    qn_packed *mapped[COUNT];
    for (int i = 0; i < COUNT; i++) {
        char key[64];
        qn_entry entry;
        qn_error err = {0};
        if (qn_packed_load(c.ctx, file, names[i], &mapped[i], &err) != QN_OK)
            fail_msg("%s", err.text);
        snprintf(key, sizeof key, "%s.packed", names[i]);
        assert_ok(qn_file_find(file, key, &entry));
        assert_int_equal(entry.offset % 64, 0);
        assert_ptr_equal(mapped[i]->blob, entry.tensor.data);
        snprintf(key, sizeof key, "quern.packed.%s", names[i]);
        const char *text = qn_file_get_metadata(file, key);
        assert_non_null(text);
        assert_non_null(strstr(text, packed[i]->head->layout));
        assert_non_null(strstr(text, specs[i]));
    }
    /* Nothing of the size of the weights was allocated. */
    assert_true(c.counter.largest_bytes < 4096);
    qn_file_close(file);
    assert_int_equal(remove(path), 0);
    for (int i = 0; i < COUNT; i++) {
        qn_packed_info info;
        float x[200], y[40], z[40];
        expect_blobs(packed[i], mapped[i]);
        qn_packed_info_init(&info);
        assert_ok(qn_packed_query(mapped[i], &info));
        assert_int_equal(info.n, 40);
        assert_int_equal(info.k, 200);
        fill_reals(x, 200, 3);
        qn_matmul_args args;
        qn_matmul_args_init(&args);
        args.x = qn_tensor_2d(x, QN_F32, 1, 200);
        args.y = qn_tensor_2d(y, QN_F32, 1, 40);
        args.w = packed[i];
        size_t bytes = 0;
        assert_ok(qn_matmul_scratch(c.ctx, &args, &bytes));
        void *scratch = take(bytes);
        assert_ok(qn_matmul(c.ctx, &args, scratch, bytes));
        args.y.data = z;
        args.w = mapped[i];
        assert_ok(qn_matmul(c.ctx, &args, scratch, bytes));
        assert_memory_equal(y, z, sizeof y);
        free(scratch);
        qn_packed_destroy(mapped[i]);
        qn_packed_destroy(packed[i]);
    }
    counted_destroy(&c);
    folder_remove(folder);
}

static void test_save_errors(void **state)
{
    const char *folder = folder_make(), *path = in(folder, "x");
    qn_ctx *ctx = ctx_make(1);
    qn_packed *packed = packed_make(ctx, "int4:g32", shape, 1, NULL);
    const qn_packed *list[2] = {packed, packed}, *none[1] = {NULL};
    const char *names[2] = {"a", "a"}, *no_name[1] = {NULL};
    (void)state;
    assert_error(qn_packed_save(ctx, path, 2, names, list, 0, &err), QN_E_EXISTS, "a.packed");
    assert_error(qn_packed_save(ctx, path, -1, names, list, 0, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_packed_save(ctx, path, 1, NULL, list, 0, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_packed_save(ctx, path, 1, names, NULL, 0, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_packed_save(ctx, path, 1, no_name, list, 0, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_packed_save(ctx, path, 1, names, none, 0, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_packed_save(NULL, path, 1, names, list, 0, &err), QN_E_ARGUMENT, "ctx");
    assert_error(qn_packed_save(ctx, in(folder, "no/x"), 1, names, list, 0, &err), QN_E_OPEN,
                 in(folder, "no/x: "));
    assert_int_equal(folder_count(folder), 0);
    assert_ok(qn_packed_save(ctx, path, 1, names, list, 0, NULL));
    assert_error(qn_packed_save(ctx, path, 1, names, list, 0, &err), QN_E_EXISTS, "x: exists");
    assert_ok(qn_packed_save(ctx, path, 1, names, list, 1, NULL));
    assert_ok(qn_packed_save(ctx, path, 0, NULL, NULL, 1, NULL));
    assert_int_equal(folder_count(folder), 1);
    qn_packed_destroy(packed);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* A device whose memory the host cannot see: the blob comes through read(), a piece at a time. */
struct elsewhere {
    qn_packed packed; /* first: read() gets its address */
    const qn_packed *real;
    int *calls, fail_at;
};

static qn_status read_elsewhere(const qn_ctx *ctx, const qn_packed *packed, size_t at, size_t n,
                                void *to, qn_error *error)
{
    const struct elsewhere *e = (const struct elsewhere *)packed;
    assert_int_equal(ctx->device.index, packed->device.index);
    assert_true(at + n <= e->real->head->bytes);
    if (++*e->calls == e->fail_at)
        return qni_fail(error, QN_E_DEVICE, "the device is gone");
    memcpy(to, e->real->blob + at, n);
    return QN_OK;
}

static void test_save_from_device(void **state)
{
    const struct shape large = {1024, 9000, 1, 1, 1}; /* 4.5 MiB: two pieces */
    const char *folder = folder_make(), *path = in(folder, "x");
    const char *const names[] = {"w"};
    struct counted_ctx c;
    qn_packed *loaded;
    qn_file *file;
    int calls = 0;
    (void)state;
    counted_make(&c);
    qn_packed *real = packed_make(c.ctx, "int4:g128", large, 3, NULL);
    struct elsewhere e = {*real, real, &calls, 0};
    const qn_packed *const list[] = {&e.packed};
    e.packed.blob = NULL;
    e.packed.read = read_elsewhere;
    assert_ok(qn_packed_save(c.ctx, path, 1, names, list, 0, NULL));
    assert_int_equal(calls, 2);
    assert_ok(qn_file_open(c.ctx, path, &file, NULL));
    assert_ok(qn_packed_load(c.ctx, file, "w", &loaded, NULL));
    expect_blobs(loaded, real);
    qn_packed_destroy(loaded);
    qn_file_close(file);
    e.fail_at = calls + 2;
    assert_error(qn_packed_save(c.ctx, path, 1, names, list, 1, &err), QN_E_DEVICE, "gone");
    e.packed.device.index = 1;
    assert_error(qn_packed_save(c.ctx, path, 1, names, list, 1, &err), QN_E_DEVICE,
                 "a context of their device");
    assert_int_equal(folder_count(folder), 1);
    qn_packed_destroy(real);
    counted_destroy(&c);
    folder_remove(folder);
}

/* A whole number of blocks of 64 positions, so that the head is one of GPU weights, too. */
static void test_other_device(void **state)
{
    const struct shape even = {40, 192, 1, 1, 1};
    struct counted_ctx c;
    size_t size, blob;
    qn_packed *packed = NULL;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = saved_bytes(c.ctx, "int4:g32", even, &size, &blob);
    hide_words(bytes);
    ((struct qni_packed_head *)(void *)(bytes + blob))->device_kind = QN_CUDA;
    assert_error(try_load(c.ctx, bytes, size, &packed, &err), QN_E_LAYOUT, "GPU");
    free(bytes);
    counted_destroy(&c);
}

static void test_refusals(void **state)
{
    struct counted_ctx c;
    size_t size, blob;
    qn_packed *packed = NULL;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = saved_bytes(c.ctx, "int4:g32", shape, &size, &blob);
    hide_words(bytes);
    struct qni_packed_head *head = (struct qni_packed_head *)(void *)(bytes + blob);
    const struct qni_packed_head good = *head;
    assert_ok(try_load(c.ctx, bytes, size, &packed, NULL));
    qn_packed_destroy(packed);
    head->isa = (uint64_t)1 << 60;
    assert_error(try_load(c.ctx, bytes, size, &packed, &err), QN_E_LAYOUT,
                 "weights 'w': are packed for");
    *head = good;
    strcpy(head->layout, "z9n99");
    assert_error(try_load(c.ctx, bytes, size, &packed, &err), QN_E_LAYOUT, "z9n99");
    *head = good;
    head->version = 3;
    assert_error(try_load(c.ctx, bytes, size, &packed, &err), QN_E_VERSION, "version 3");
    *head = good;
    head->magic[0] = 'Q';
    assert_error(try_load(c.ctx, bytes, size, &packed, &err), QN_E_CORRUPT, "quernpk");
    *head = good;
    head->bytes += 64;
    assert_error(try_load(c.ctx, bytes, size, &packed, &err), QN_E_CORRUPT, "bytes");
    *head = good;
    head->n *= 2;
    assert_error(try_load(c.ctx, bytes, size, &packed, &err), QN_E_CORRUPT, "panels");
    *head = good;
    head->section[QNI_SECTION_CODES].offset = UINT64_MAX - 63;
    assert_error(try_load(c.ctx, bytes, size, &packed, &err), QN_E_CORRUPT, "section");
    *head = good;
    struct qni_run *run =
        (struct qni_run *)(void *)(bytes + blob + good.section[QNI_SECTION_RUNS].offset);
    run->src = 1;
    assert_error(try_load(c.ctx, bytes, size, &packed, &err), QN_E_CORRUPT, "run 0");
    run->src = 0;
    /* The same file from memory that is not aligned: what another program's rewrite may do. */
    uint8_t *moved = take(size + 8);
    memcpy(moved + 8, bytes, size);
    assert_error(try_load(c.ctx, moved + 8, size, &packed, &err), QN_E_CORRUPT, "64 bytes");
    free(moved);
    qn_file *file = NULL;
    assert_ok(open_bytes(c.ctx, bytes, size, &file, NULL));
    assert_error(qn_packed_load(c.ctx, file, "v", &packed, &err), QN_E_NOT_FOUND, "'v'");
    assert_error(qn_packed_load(c.ctx, file, NULL, &packed, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_packed_load(NULL, file, "w", &packed, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_packed_load(c.ctx, NULL, "w", &packed, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_packed_load(c.ctx, file, "w", NULL, &err), QN_E_ARGUMENT, "NULL");
    qn_file_close(file);
    free(bytes);
    counted_destroy(&c);
}

/* Every bit of the head and of the indices: refused, or weights whose every use stays inside. */
static void test_damage(void **state)
{
    struct counted_ctx c;
    size_t size, blob;
    const struct shape small = {3, 40, 1, 1, 1};
    int valid = 0;
    (void)state;
    counted_make(&c);
    uint8_t *bytes = saved_bytes(c.ctx, "int4:g24:zp", small, &size, &blob);
    for (size_t bit = 8 * blob; bit < 8 * size; bit++) {
        qn_packed *packed = NULL;
        qn_weight *weight = NULL;
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        const qn_status status = try_load(c.ctx, bytes, size, &packed, NULL);
        if (status == QN_OK) {
            valid++;
            qn_unpack(c.ctx, packed, &weight, NULL);
            qn_weight_destroy(weight);
        } else {
            assert_true(status == QN_E_CORRUPT || status == QN_E_VERSION || status == QN_E_LAYOUT);
        }
        qn_packed_destroy(packed);
        counted_check(&c);
        bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(valid > 8 * 40); /* the codes */
    free(bytes);
    counted_destroy(&c);
}

/* One by one, as qn_packed_save() does it at once: the same file to the byte; a run that ends
 * before the last one goes on. */
static void test_one_by_one(void **state)
{
    enum { COUNT = 3 };
    static const char *const names[COUNT] = {"a", "b", "c"};
    static const char *const specs[COUNT] = {"int4:g32", "int8:pc:zp", "nf4:g64"};
    const char *folder = folder_make();
    struct counted_ctx c;
    qn_packed *packed[COUNT];
    int64_t index[COUNT];
    qn_writer *writer = NULL;
    (void)state;
    counted_make(&c);
    for (int i = 0; i < COUNT; i++)
        packed[i] = packed_make(c.ctx, specs[i], shape, 5 + (uint64_t)i, NULL);
    char whole[512], single[512];
    snprintf(whole, sizeof whole, "%s", in(folder, "whole"));
    snprintf(single, sizeof single, "%s", in(folder, "single"));
    assert_ok(
        qn_packed_save(c.ctx, whole, COUNT, names, (const qn_packed *const *)packed, 0, NULL));
    for (int run = 0; run < 2; run++) {
        assert_ok(qn_writer_create(c.ctx, single, &writer, NULL));
        for (int i = 0; i < COUNT; i++)
            assert_ok(qn_writer_add_packed(writer, names[i], packed[i], &index[i], NULL));
        assert_error(qn_writer_add_packed(writer, "a", packed[1], NULL, &err), QN_E_EXISTS, "a");
        assert_error(qn_writer_add_packed(writer, NULL, packed[1], NULL, &err), QN_E_ARGUMENT,
                     "NULL");
        assert_error(qn_writer_put_packed(writer, index[0], c.ctx, packed[0], &err), QN_E_ARGUMENT,
                     "begin");
        assert_ok(qn_writer_begin(writer, 0, run, NULL));
        assert_int_equal(qn_writer_is_done(writer, index[0]), run);
        assert_error(qn_writer_put_packed(writer, 3, c.ctx, packed[0], &err), QN_E_ARGUMENT, "3");
        assert_error(qn_writer_put_packed(writer, -1, c.ctx, packed[0], &err), QN_E_ARGUMENT, "-1");
        assert_error(qn_writer_put_packed(writer, index[1], c.ctx, packed[0], &err), QN_E_SHAPE,
                     "declared");
        assert_error(qn_writer_put_packed(writer, index[1], c.ctx, NULL, &err), QN_E_ARGUMENT,
                     "NULL");
        for (int i = run; i < (run == 0 ? 1 : COUNT); i++)
            assert_ok(qn_writer_put_packed(writer, index[i], c.ctx, packed[i], NULL));
        if (run == 0)
            qn_writer_abort(writer, 1);
    }
    assert_ok(qn_writer_finish(writer, NULL));
    size_t bytes[2];
    uint8_t *a = file_bytes(whole, &bytes[0]), *b = file_bytes(single, &bytes[1]);
    assert_int_equal(bytes[0], bytes[1]);
    assert_memory_equal(a, b, bytes[0]);
    free(a);
    free(b);
    for (int i = 0; i < COUNT; i++)
        qn_packed_destroy(packed[i]);
    counted_destroy(&c);
    folder_remove(folder);
}

/* Packed weights in one file with tensors and weights of every size: usable where they lie, as
 * from a file of their own. A declaration that fails leaves none. */
static void test_among_others(void **state)
{
    static const int64_t odd[2] = {3, 7};
    static const char three[3 * 7 * 8];
    const char *folder = folder_make();
    struct counted_ctx c;
    qn_writer *writer = NULL;
    qn_file *file = NULL;
    qn_packed *mapped = NULL;
    qn_weight_parts parts;
    int64_t index[5];
    (void)state;
    counted_make(&c);
    qn_packed *packed = packed_make(c.ctx, "int4:g32:zp", shape, 5, NULL);
    qn_weight *weight = weight_make(c.ctx, "int3:g5:zp", (struct shape){3, 7, 1, 1, 1}, 2);
    qn_weight_parts_init(&parts);
    assert_ok(qn_weight_view(weight, &parts));
    assert_ok(qn_writer_create(c.ctx, in(folder, "x"), &writer, NULL));
    assert_ok(qn_writer_add(writer, "bytes", QN_U8, 2, odd, &index[0], NULL));
    assert_ok(qn_writer_add(writer, "words", QN_F64, 2, odd, &index[1], NULL));
    assert_ok(qn_writer_add_weight(writer, "w", &parts, &index[2], NULL));
    assert_ok(qn_writer_metadata(writer, "quern.packed.b", "taken", NULL));
    assert_error(qn_writer_add_packed(writer, "b", packed, NULL, &err), QN_E_EXISTS, "taken");
    assert_ok(qn_writer_add_packed(writer, "a", packed, &index[3], NULL));
    assert_int_equal(index[3], 3);
    assert_ok(qn_writer_add(writer, "b.packed", QN_U8, 2, odd, &index[4], NULL));
    assert_ok(qn_writer_begin(writer, 0, 0, NULL));
    qn_tensor t = qn_tensor_make((void *)(uintptr_t)three, QN_U8, 2, odd);
    assert_ok(qn_writer_put(writer, index[0], &t, NULL));
    assert_ok(qn_writer_put(writer, index[4], &t, NULL));
    t.dtype = QN_F64;
    assert_ok(qn_writer_put(writer, index[1], &t, NULL));
    assert_ok(qn_writer_put_weight(writer, index[2], weight, NULL));
    assert_ok(qn_writer_put_packed(writer, index[3], c.ctx, packed, NULL));
    assert_ok(qn_writer_finish(writer, NULL));
    assert_ok(qn_file_open(c.ctx, in(folder, "x"), &file, NULL));
    qn_error why = {0};
    if (qn_packed_load(c.ctx, file, "a", &mapped, &why) != QN_OK)
        fail_msg("%s", why.text);
    expect_blobs(packed, mapped);
    for (int64_t i = 0; i < qn_file_count(file); i++) {
        qn_entry entry;
        assert_ok(qn_file_entry(file, i, &entry));
        assert_int_equal(entry.is_aligned, 1);
    }
    qn_file_close(file);
    qn_packed_destroy(mapped);
    qn_packed_destroy(packed);
    qn_weight_destroy(weight);
    counted_destroy(&c);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),   cmocka_unit_test(test_save_errors),
        cmocka_unit_test(test_one_by_one),   cmocka_unit_test(test_save_from_device),
        cmocka_unit_test(test_other_device), cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_damage),       cmocka_unit_test(test_among_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
