/* SPDX-License-Identifier: Apache-2.0 */
/* Shards of a checkpoint's modules: the same as shards of whole weights, and of the file no other
 * pages are touched. A file's pages are made unreadable; each that is touched is counted by the
 * fault it causes, and then opened. */
#include "files.h"

#include <signal.h>
#include <sys/mman.h>

#include <quern/parallel.h>

/* ---- pages that are counted ------------------------------------------------------------------ */

static uint8_t *pages;
static size_t pages_bytes, page_bytes;
static volatile sig_atomic_t touched;

static void open_page(int signal_number, siginfo_t *info, void *context)
{
    uint8_t *const at = info->si_addr;
    (void)context;
    if (at < pages || at >= pages + pages_bytes) {
        signal(signal_number, SIG_DFL); /* a fault of another kind: it comes again */
        return;
    }
    touched++;
    mprotect(pages + (size_t)(at - pages) / page_bytes * page_bytes, page_bytes, PROT_READ);
}

static void close_pages(void)
{
    touched = 0;
    assert_int_equal(mprotect(pages, pages_bytes, PROT_NONE), 0);
}

static void map_pages(const char *path, size_t *size)
{
    uint8_t *const bytes = file_bytes(path, size);
    struct sigaction action;
    page_bytes = (size_t)sysconf(_SC_PAGESIZE);
    pages_bytes = (*size + page_bytes) / page_bytes * page_bytes;
    pages = mmap(NULL, pages_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    assert_true(pages != MAP_FAILED);
    memcpy(pages, bytes, *size);
    free(bytes);
    memset(&action, 0, sizeof action);
    action.sa_sigaction = open_page;
    action.sa_flags = SA_SIGINFO;
    assert_int_equal(sigaction(SIGSEGV, &action, NULL), 0);
}

static void unmap_pages(void)
{
    signal(SIGSEGV, SIG_DFL);
    munmap(pages, pages_bytes);
}

/* ---- files ----------------------------------------------------------------------------------- */

static qn_weight *quantized(const qn_ctx *ctx, const char *format, int64_t n, int64_t k)
{
    float *const dense = take((size_t)(n * k) * sizeof *dense);
    qn_quantize_options how;
    qn_weight *w = NULL;
    fill_reals(dense, n * k, 5);
    qn_quantize_options_init(&how);
    assert_ok(qn_format_parse(format, &how.format, NULL));
    const qn_tensor t = qn_tensor_2d(dense, QN_F32, n, k);
    assert_ok(qn_quantize(ctx, &t, &how, &w, NULL));
    free(dense);
    return w;
}

/* One module "m" as `target` keeps it; "quern": as quern does. */
static void write_module(const qn_ctx *ctx, const char *path, const char *target,
                         const qn_weight *w)
{
    qn_export_options options;
    qn_export *made = NULL;
    qn_writer *writer = NULL;
    qn_error err = {QN_OK, -1, ""};
    int64_t index[8];
    qn_entry e;
    const bool is_gguf = strncmp(target, "gguf", 4) == 0;
    assert_ok(qn_writer_create(ctx, path, &writer, NULL));
    if (strcmp(target, "quern") == 0) {
        qn_weight_parts parts;
        qn_weight_parts_init(&parts);
        assert_ok(qn_weight_view(w, &parts));
        assert_ok(qn_writer_add_weight(writer, "m.weight", &parts, &index[0], NULL));
        assert_ok(qn_writer_begin(writer, 0, 0, NULL));
        assert_ok(qn_writer_put_weight(writer, index[0], w, NULL));
        assert_ok(qn_writer_finish(writer, NULL));
        return;
    }
    qn_export_options_init(&options);
    options.target = target;
    if (qn_export_create(ctx, w, &options, &made, &err) != QN_OK)
        fail_msg("%s: %s", target, err.text);
    if (is_gguf)
        assert_ok(qn_writer_set_kind(writer, QN_FILE_GGUF, NULL));
    for (int64_t i = 0; i < qn_export_count(made); i++) {
        char name[64];
        assert_ok(qn_export_entry(made, i, &e));
        snprintf(name, sizeof name, "m%s", e.name);
        const qn_tensor *const t = &e.tensor;
        if (t->dtype == QN_DTYPE_NONE)
            assert_ok(
                qn_writer_add_blocks(writer, name, e.dtype, t->rank, t->shape, &index[i], NULL));
        else
            assert_ok(qn_writer_add(writer, name, t->dtype, t->rank, t->shape, &index[i], NULL));
    }
    assert_ok(qn_writer_begin(writer, 0, 0, NULL));
    for (int64_t i = 0; i < qn_export_count(made); i++) {
        assert_ok(qn_export_entry(made, i, &e));
        qn_tensor t = e.tensor;
        if (t.dtype == QN_DTYPE_NONE)
            t = qn_tensor_1d(t.data, QN_U8, (int64_t)e.bytes);
        assert_ok(qn_writer_put(writer, index[i], &t, NULL));
    }
    assert_ok(qn_writer_finish(writer, NULL));
    qn_export_destroy(made);
}

/* fp8 in blocks of 128 x 128, as DeepSeek keeps it. */
static void write_fp8(const qn_ctx *ctx, const char *path, int64_t n, int64_t k)
{
    const int64_t shape[2] = {n, k}, blocks[2] = {(n + 127) / 128, (k + 127) / 128};
    uint8_t *const codes = take((size_t)(n * k));
    float *const scales = take((size_t)(blocks[0] * blocks[1]) * sizeof *scales);
    qn_writer *writer = NULL;
    int64_t index[2];
    uint64_t seed = 9;
    for (int64_t i = 0; i < n * k; i++)
        codes[i] = (uint8_t)(draw(&seed) & 0x77);
    fill_reals(scales, blocks[0] * blocks[1], 3);
    assert_ok(qn_writer_create(ctx, path, &writer, NULL));
    assert_ok(qn_writer_add(writer, "m.weight", QN_E4M3, 2, shape, &index[0], NULL));
    assert_ok(qn_writer_add(writer, "m.weight_scale_inv", QN_F32, 2, blocks, &index[1], NULL));
    assert_ok(qn_writer_begin(writer, 0, 0, NULL));
    const qn_tensor c = qn_tensor_2d(codes, QN_E4M3, n, k);
    const qn_tensor s = qn_tensor_2d(scales, QN_F32, blocks[0], blocks[1]);
    assert_ok(qn_writer_put(writer, index[0], &c, NULL));
    assert_ok(qn_writer_put(writer, index[1], &s, NULL));
    assert_ok(qn_writer_finish(writer, NULL));
    free(codes);
    free(scales);
}

/* ---- shards ---------------------------------------------------------------------------------- */

static void assert_same(const char *what, const qn_weight *a, const qn_weight *b)
{
    qn_weight_parts x, y;
    qn_weight_parts_init(&x);
    qn_weight_parts_init(&y);
    assert_ok(qn_weight_view(a, &x));
    assert_ok(qn_weight_view(b, &y));
    if (x.n != y.n || x.k != y.k || x.n_groups != y.n_groups)
        fail_msg("%s: [%lld, %lld] with %lld groups, not [%lld, %lld] with %lld", what,
                 (long long)x.n, (long long)x.k, (long long)x.n_groups, (long long)y.n,
                 (long long)y.k, (long long)y.n_groups);
    const size_t codes = (size_t)(x.n * x.k), groups = (size_t)(x.n * x.n_groups);
    if (memcmp(x.codes, y.codes, codes) != 0 ||
        memcmp(x.scale, y.scale, groups * sizeof *x.scale) != 0 ||
        (x.zero != NULL && memcmp(x.zero, y.zero, groups * sizeof *x.zero) != 0) ||
        (x.offset != NULL && memcmp(x.offset, y.offset, groups * sizeof *x.offset) != 0) ||
        (x.prescale != NULL && memcmp(x.prescale, y.prescale, (size_t)x.k * sizeof(float)) != 0) ||
        (x.sub_scale != NULL && memcmp(x.sub_scale, y.sub_scale, groups * sizeof(int16_t)) != 0))
        fail_msg("%s: the shard is not that of the whole weight", what);
}

/* most: pages of a shard, of pages of the whole, in percent for each split; 0: not compared. */
struct kind {
    const char *target, *format;
    int64_t n, k;
    int most_column, most_row;
};

static void check_shards(const qn_ctx *ctx, const struct kind *kind, const char *path)
{
    qn_error err = {QN_OK, -1, ""};
    qn_file *file = NULL;
    qn_checkpoint *c = NULL;
    qn_weight *whole = NULL, *part = NULL;
    size_t size;
    map_pages(path, &size);
    assert_ok(qn_file_open_memory(ctx, pages, size, NULL, &file, NULL));
    assert_ok(qn_checkpoint_open_files(ctx, &file, 1, NULL, 0, NULL, &c, NULL));
    const int64_t i = qn_checkpoint_find(c, "m.weight");
    close_pages();
    if (i < 0 || qn_checkpoint_load(ctx, c, i, 0, -1, &whole, NULL, &err) != QN_OK)
        fail_msg("%s: %s", kind->target, err.text);
    const int all = touched;
    for (int32_t split = QN_SPLIT_COLUMN; split <= QN_SPLIT_ROW; split++) {
        for (int32_t ranks = 1; ranks <= 4; ranks++) {
            for (int32_t rank = 0; rank < ranks; rank++) {
                qn_weight *shard = NULL;
                char what[128];
                snprintf(what, sizeof what, "%s %s: %s %d of %d", kind->target, kind->format,
                         qn_split_name(split), rank, ranks);
                close_pages();
                if (qn_checkpoint_load_shard(ctx, c, i, split, rank, ranks, &shard, &err) != QN_OK)
                    fail_msg("%s: %s", what, err.text);
                const int most = split == QN_SPLIT_ROW ? kind->most_row : kind->most_column;
                if (ranks == 4 && most > 0 && touched * 100 > all * most)
                    fail_msg("%s: touched %d pages; all of it are %d", what, (int)touched, all);
                assert_ok(qn_weight_shard(ctx, whole, split, rank, ranks, &part, NULL));
                assert_same(what, shard, part);
                qn_weight_destroy(shard);
                qn_weight_destroy(part);
            }
        }
    }
    /* A rectangle: an expert's shard. */
    const int64_t first = kind->n / 4 / 8 * 8;
    if (strstr(kind->format, ":pc") == NULL) {
        const qn_rectangle range = {first, first, kind->k / 2, -1};
        qn_weight *slice = NULL;
        close_pages();
        assert_ok(qn_checkpoint_load_part(ctx, c, i, &range, &part, NULL, NULL));
        if (kind->target[0] == 'g' && kind->target[1] == 'g')
            assert_true(touched * 3 < all);
        assert_ok(
            qn_weight_slice(ctx, whole, first, first, kind->k / 2, kind->k / 2, &slice, NULL));
        assert_same(kind->target, part, slice);
        qn_weight_destroy(slice);
        qn_weight_destroy(part);
    }
    qn_weight_destroy(whole);
    qn_checkpoint_close(c);
    unmap_pages();
}

/* Rows are long enough that a quarter of one is some pages; pages at the ends of a piece belong to
 * neighbours as well. Scales and zeros of a row are less than a page. */
static const struct kind kinds[] = {
    {"gguf:q4_0", "q4_0", 16, 65536, 30, 46},
    {"gguf:q4_k", "q4_k", 16, 65536, 30, 46},
    {"gguf:q8_0", "q8_0", 16, 65536, 30, 40},
    {"gptq", "int4:g128:f16", 4096, 512, 0, 30},
    {"awq", "int4:g128:zp:f16", 4096, 512, 0, 30},
    {"ct", "int4:g128", 16, 65536, 30, 50},
    {"ct:pack-quantized", "int4:g128:zp", 16, 65536, 32, 50},
    {"ct:int-quantized", "int8:g128", 16, 65536, 30, 40},
    {"ct:int-quantized", "int8:pc", 16, 65536, 30, 40},
    {"quern", "int4:g128", 16, 65536, 30, 45},
    {"quern", "int4:g128:zp", 16, 65536, 30, 60},
    {"quern", "q4_k", 16, 65536, 30, 60},
    {"quern", "int3:g128", 16, 65536, 30, 60},
    {"quern", "nf4:g64", 16, 65536, 30, 60},
    {"quern", "int8:pc", 16, 65536, 30, 40},
    {"bnb", "nf4:g64", 16, 4096, 0, 0},
};

static void test_shards(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        const struct kind *const kind = &kinds[i];
        char *folder = folder_make();
        const char *path = in(folder, "m");
        qn_weight *w = quantized(ctx, kind->format, kind->n, kind->k);
        write_module(ctx, path, kind->target, w);
        check_shards(ctx, kind, path);
        qn_weight_destroy(w);
        folder_remove(folder);
    }
    qn_ctx_destroy(ctx);
}

static void test_blocks_of_fp8(void **state)
{
    static const struct kind kind = {"fp8", "128 x 128", 256, 32768, 30, 40};
    qn_ctx *ctx = ctx_make(1);
    char *folder = folder_make();
    (void)state;
    write_fp8(ctx, in(folder, "m"), kind.n, kind.k);
    check_shards(ctx, &kind, in(folder, "m"));
    folder_remove(folder);
    qn_ctx_destroy(ctx);
}

static void test_bad(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    char *folder = folder_make();
    const char *path = in(folder, "m");
    qn_checkpoint *c = NULL;
    qn_weight *w = quantized(ctx, "int4:g32", 8, 256), *part = NULL;
    (void)state;
    write_module(ctx, path, "quern", w);
    assert_ok(qn_checkpoint_open(ctx, path, NULL, &c, NULL));
    assert_error(
        qn_checkpoint_load_part(ctx, c, 0, &(qn_rectangle){0, 8, 32, 225}, &part, NULL, &err),
        QN_E_ARGUMENT, "columns 32");
    assert_error(
        qn_checkpoint_load_part(ctx, c, 0, &(qn_rectangle){0, 9, 0, -1}, &part, NULL, &err),
        QN_E_ARGUMENT, "rows 0");
    assert_error(
        qn_checkpoint_load_part(ctx, c, 0, &(qn_rectangle){0, 8, 16, 32}, &part, NULL, &err),
        QN_E_UNSUPPORTED, "borders of groups");
    assert_error(qn_checkpoint_load_shard(ctx, c, 0, 2, 0, 1, &part, &err), QN_E_ARGUMENT,
                 "split is 2");
    assert_error(qn_checkpoint_load_shard(ctx, c, 0, QN_SPLIT_ROW, 3, 3, &part, &err),
                 QN_E_ARGUMENT, "rank 3 of 3");
    assert_error(qn_checkpoint_load_shard(ctx, NULL, 0, QN_SPLIT_ROW, 0, 3, &part, &err),
                 QN_E_ARGUMENT, "checkpoint is NULL");
    assert_null(part);
    qn_checkpoint_close(c);
    qn_weight_destroy(w);
    folder_remove(folder);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_blocks_of_fp8),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
