/* SPDX-License-Identifier: Apache-2.0 */
/* Modules of a checkpoint straight to packed weights: the bytes of loading, joining and packing,
 * whatever the format, the rows and the threads; types of scales that only a late row decides; the
 * first row that is bad, by its number; and how much memory it takes. */
#include "files.h"

enum { N = 300, K = 256 };

static const struct {
    const char *spec, *target; /* NULL: a quern file */
    const char *config;
} forms[] = {
    {"int4:g64:zp:f16", NULL, NULL},
    {"int4:g48", NULL, NULL},
    {"int8:pt", NULL, NULL},
    {"nf4:g64", NULL, NULL},
    {"q4_k", NULL, NULL},
    {"q6_k", NULL, NULL},
    {"q4_1", NULL, NULL},
    {"fp8:pc", NULL, NULL},
    {"int4:g64:zp:f16", "awq", "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}"},
    {"int4:g64:zp:f16", "gptq_v2",
     "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4,\"group_size\":64,"
     "\"sym\":false,\"checkpoint_format\":\"gptq_v2\"}}"},
    {"int8:g64:f16", "gptq_v2",
     "{\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":8,\"group_size\":64}}"},
    {"q4_k", "gguf", NULL},
    {"q3_k", "gguf", NULL},
    {"q5_0", "gguf", NULL},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

static qn_weight *quantized(const qn_ctx *ctx, const char *spec, int64_t n, int64_t k,
                            uint64_t seed)
{
    qn_quantize_options options;
    qn_weight *weight = NULL;
    qn_error err = {QN_OK, -1, ""};
    float *values = take((size_t)(n * k) * sizeof *values);
    const qn_tensor dense = qn_tensor_2d(values, QN_F32, n, k);
    fill_reals(values, n * k, seed);
    qn_quantize_options_init(&options);
    assert_ok(qn_format_parse(spec, &options.format, NULL));
    if (qn_quantize(ctx, &dense, &options, &weight, &err) != QN_OK)
        fail_msg("%s: %s", spec, err.text);
    free(values);
    return weight;
}

static void put_export(qn_writer *writer, const qn_export *made)
{
    qn_entry e;
    int64_t index;
    char name[64];
    for (int pass = 0; pass < 2; pass++) {
        for (int64_t i = 0; i < qn_export_count(made); i++) {
            assert_ok(qn_export_entry(made, i, &e));
            snprintf(name, sizeof name, "m%s", e.name);
            if (pass == 1) {
                qn_tensor bytes = qn_tensor_1d(e.tensor.data, QN_U8, (int64_t)e.bytes);
                assert_ok(qn_writer_put(writer, i, e.tensor.dtype == QN_DTYPE_NONE ? &bytes
                                                                                  : &e.tensor,
                                        NULL));
            } else if (e.tensor.dtype == QN_DTYPE_NONE) {
                assert_ok(qn_writer_add_blocks(writer, name, e.dtype, e.tensor.rank,
                                               e.tensor.shape, &index, NULL));
            } else {
                assert_ok(qn_writer_add(writer, name, e.tensor.dtype, e.tensor.rank,
                                        e.tensor.shape, &index, NULL));
            }
        }
        if (pass == 0)
            assert_ok(qn_writer_begin(writer, 1, 0, NULL));
    }
}

/* A checkpoint of one weight "m.weight" (of a quern file "m"). */
static qn_checkpoint *kept(const qn_ctx *ctx, const char *folder, const qn_weight *weight,
                           const char *target, const char *config)
{
    const char *path = in(folder, "file");
    qn_writer *writer = NULL;
    qn_file *file = NULL;
    qn_checkpoint *c = NULL;
    qn_error err = {QN_OK, -1, ""};
    assert_ok(qn_writer_create(ctx, path, &writer, NULL));
    if (target == NULL) {
        qn_weight_parts parts;
        int64_t index;
        qn_weight_parts_init(&parts);
        qn_weight_view(weight, &parts);
        assert_ok(qn_writer_add_weight(writer, "m", &parts, &index, NULL));
        assert_ok(qn_writer_begin(writer, 1, 0, NULL));
        assert_ok(qn_writer_put_weight(writer, index, weight, NULL));
    } else {
        qn_export_options options;
        qn_export *made = NULL;
        qn_export_options_init(&options);
        options.target = target;
        if (qn_export_create(ctx, weight, &options, &made, &err) != QN_OK)
            fail_msg("%s: %s", target, err.text);
        if (strcmp(target, "gguf") == 0)
            assert_ok(qn_writer_set_kind(writer, QN_FILE_GGUF, NULL));
        put_export(writer, made);
        qn_export_destroy(made);
    }
    assert_ok(qn_writer_finish(writer, NULL));
    assert_ok(qn_file_open(ctx, path, &file, NULL));
    if (qn_checkpoint_open_files(ctx, &file, 1, config, config == NULL ? 0 : strlen(config), NULL,
                                 &c, &err) != QN_OK)
        fail_msg("%s: %s", target, err.text);
    return c;
}

static void assert_same(const qn_packed *a, const qn_packed *b)
{
    const void *x, *y;
    size_t x_bytes, y_bytes;
    assert_ok(qn_packed_data(a, &x, &x_bytes));
    assert_ok(qn_packed_data(b, &y, &y_bytes));
    assert_int_equal(x_bytes, y_bytes);
    assert_memory_equal(x, y, x_bytes);
}

static qn_packed *straight(const qn_ctx *ctx, const qn_checkpoint *c, int32_t count,
                           const qn_module_part *parts, qn_load_facts *facts)
{
    qn_packed *packed = NULL;
    qn_error err = {QN_OK, -1, ""};
    if (qn_checkpoint_pack(ctx, c, count, parts, NULL, &packed, facts, &err) != QN_OK)
        fail_msg("%s", err.text);
    return packed;
}

/* Rows by way of the canonical weight. */
static qn_packed *by_parts(const qn_ctx *ctx, const qn_checkpoint *c, int32_t count,
                           const qn_module_part *parts)
{
    qn_weight *part[4] = {NULL}, *joined = NULL;
    qn_packed *packed = NULL;
    for (int32_t i = 0; i < count; i++)
        assert_ok(qn_checkpoint_load(ctx, c, parts[i].module, parts[i].first, parts[i].n, &part[i],
                                     NULL, NULL));
    assert_ok(qn_weight_concat(ctx, count, (const qn_weight *const *)part, &joined, NULL));
    assert_ok(qn_pack(ctx, joined, NULL, &packed, NULL));
    for (int32_t i = 0; i < count; i++)
        qn_weight_destroy(part[i]);
    qn_weight_destroy(joined);
    return packed;
}

static void test_same_bytes(void **state)
{
    static const qn_module_part whole[] = {{0, 0, -1}}, some[] = {{0, 7, 130}},
                                several[] = {{0, 0, 48}, {0, 100, 33}, {0, 5, -1}};
    static const struct {
        int32_t count;
        const qn_module_part *parts;
    } cases[] = {{1, whole}, {1, some}, {3, several}};
    char *folder = folder_make();
    (void)state;
    for (int i = 0; i < N_FORMS; i++)
        for (int32_t threads = 1; threads <= 4; threads += 3) {
            const int64_t n = forms[i].target == NULL ? N : 304; /* whole words */
            const int64_t k = strcmp(forms[i].spec, "int4:g48") == 0 ? 250 : K;
            qn_ctx *ctx = ctx_make(threads);
            qn_weight *weight = quantized(ctx, forms[i].spec, n, k, 5);
            qn_checkpoint *c = kept(ctx, folder, weight, forms[i].target, forms[i].config);
            for (int j = 0; j < 3; j++) {
                qn_load_facts facts;
                qn_load_facts_init(&facts);
                qn_packed *a = straight(ctx, c, cases[j].count, cases[j].parts, &facts);
                qn_packed *b = by_parts(ctx, c, cases[j].count, cases[j].parts);
                assert_same(a, b);
                assert_true(facts.groups > 0 && facts.rounded == 0);
                qn_packed_destroy(a);
                qn_packed_destroy(b);
            }
            qn_checkpoint_close(c);
            qn_weight_destroy(weight);
            qn_ctx_destroy(ctx);
        }
    folder_remove(folder);
}

/* Scales of f16 until the last row, zero points of int8 until the one before; act-order and
 * prescale. */
static void test_late_rows(void **state)
{
    qn_weight_parts p;
    qn_weight *weight = NULL;
    static uint8_t codes[N * K];
    static float scale[N * 4], prescale[K];
    static int32_t zero[N * 4], perm[K];
    static const qn_module_part whole[] = {{0, 0, -1}};
    char *folder = folder_make();
    (void)state;
    for (int32_t wide = 0; wide < 4; wide++) {
        qn_ctx *ctx = ctx_make(2);
        qn_weight_parts_init(&p);
        assert_ok(qn_format_parse(wide < 3 ? "int4:g64:zp" : "int4:g64", &p.format, NULL));
        p.n = N;
        p.k = K;
        for (int i = 0; i < N * 4; i++)
            scale[i] = 0.5f;
        memset(zero, 0, sizeof zero);
        for (int i = 0; i < K; i++) {
            perm[i] = (i * 5 + 3) % K;
            prescale[i] = 1.0f + (float)i;
        }
        if (wide == 1 || wide == 2)
            zero[(N - 70) * 4] = 1000;
        if (wide >= 2)
            scale[N * 4 - 1] = 0.1f;
        p.codes = codes;
        p.scale = scale;
        p.zero = wide < 3 ? zero : NULL;
        p.perm = perm;
        p.prescale = prescale;
        assert_ok(qn_weight_create(ctx, &p, &weight, NULL));
        qn_checkpoint *c = kept(ctx, folder, weight, NULL, NULL);
        qn_load_facts facts;
        qn_load_facts_init(&facts);
        qn_packed *a = straight(ctx, c, 1, whole, &facts), *b = by_parts(ctx, c, 1, whole);
        assert_same(a, b);
        assert_int_equal(facts.groups, N * 4); /* once, whatever the passes */
        qn_packed_destroy(a);
        qn_packed_destroy(b);
        qn_weight_destroy(weight);
        qn_checkpoint_close(c);
        qn_ctx_destroy(ctx);
    }
    folder_remove(folder);
}

/* Rows 150 and 222 of a file have scales that are no numbers. */
static void test_bad_rows(void **state)
{
    char *folder = folder_make();
    qn_ctx *ctx = ctx_make(4);
    qn_file *file = NULL;
    qn_checkpoint *c = NULL;
    qn_packed *packed = (qn_packed *)1;
    qn_entry e;
    size_t size = 0;
    (void)state;
    qn_weight *weight = quantized(ctx, "int4:g64", N, K, 1);
    qn_checkpoint_close(kept(ctx, folder, weight, NULL, NULL));
    uint8_t *bytes = file_bytes(in(folder, "file"), &size);
    const float nan = NAN;
    assert_ok(open_bytes(ctx, bytes, size, &file, NULL));
    assert_ok(qn_file_find(file, "m.scale", &e));
    memcpy(bytes + e.offset + 4 * (222 * 4 + 1), &nan, sizeof nan);
    memcpy(bytes + e.offset + 4 * (150 * 4 + 3), &nan, sizeof nan);
    assert_ok(qn_checkpoint_open_files(ctx, &file, 1, NULL, 0, NULL, &c, NULL));
    const qn_module_part whole = {0, 0, -1}, late = {0, 200, -1}, beyond = {0, 200, 101},
                         none = {1, 0, -1};
    for (int round = 0; round < 20; round++)
        assert_error(qn_checkpoint_pack(ctx, c, 1, &whole, NULL, &packed, NULL, &err), QN_E_VALUE,
                     "'m': the scale of row 150, group 3 is not finite");
    assert_null(packed);
    assert_error(qn_checkpoint_pack(ctx, c, 1, &late, NULL, &packed, NULL, &err), QN_E_VALUE,
                 "the scale of row 222, group 1 is not finite");
    qn_weight *loaded = NULL;
    assert_error(qn_checkpoint_load(ctx, c, 0, 200, -1, &loaded, NULL, &err), QN_E_VALUE,
                 "the scale of row 222, group 1 is not finite");
    assert_error(qn_checkpoint_pack(ctx, c, 1, &beyond, NULL, &packed, NULL, &err), QN_E_ARGUMENT,
                 "of 300");
    assert_error(qn_checkpoint_pack(ctx, c, 1, &none, NULL, &packed, NULL, &err), QN_E_ARGUMENT,
                 "no module");
    assert_error(qn_checkpoint_pack(ctx, c, 0, &whole, NULL, &packed, NULL, &err), QN_E_ARGUMENT,
                 "count");
    assert_error(qn_checkpoint_pack(ctx, c, 1, NULL, NULL, &packed, NULL, &err), QN_E_ARGUMENT,
                 "NULL");
    assert_error(qn_checkpoint_pack(ctx, NULL, 1, &whole, NULL, &packed, NULL, &err),
                 QN_E_ARGUMENT, "NULL");
    qn_checkpoint_close(c);
    qn_weight_destroy(weight);
    free(bytes);
    qn_ctx_destroy(ctx);
    folder_remove(folder);
}

/* ---- memory ---------------------------------------------------------------------------------- */

struct peak {
    size_t now, most;
};

static void *peak_alloc(void *arg, size_t bytes, size_t alignment)
{
    struct peak *p = arg;
    p->now += bytes;
    p->most = p->now > p->most ? p->now : p->most;
    return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
}

static void peak_free(void *arg, void *memory, size_t bytes)
{
    struct peak *p = arg;
    p->now -= memory == NULL ? 0 : bytes;
    free(memory);
}

/* With one thread a block of 128 rows; the canonical weight would be 8 MB beside the packed one's
 * 5. */
static void test_memory(void **state)
{
    char *folder = folder_make();
    struct peak peak = {0, 0};
    qn_ctx_options options;
    qn_ctx *ctx = NULL, *other = ctx_make(2);
    qn_packed_info info;
    const qn_module_part whole = {0, 0, -1};
    (void)state;
    qn_weight *weight = quantized(other, "int4:g64:zp:f16", 2048, 4096, 3);
    qn_checkpoint *c = kept(other, folder, weight, "gptq_v2", forms[9].config);
    qn_ctx_options_init(&options);
    options.n_threads = 1;
    options.alloc = peak_alloc;
    options.free = peak_free;
    options.alloc_arg = &peak;
    assert_ok(qn_ctx_create(&options, &ctx, NULL));
    const size_t before = peak.most = peak.now;
    qn_packed *packed = straight(ctx, c, 1, &whole, NULL);
    qn_packed_info_init(&info);
    assert_ok(qn_packed_query(packed, &info));
    assert_in_range(peak.most - before, info.bytes, info.bytes + (1 << 20));
    qn_packed_destroy(packed);
    assert_int_equal(peak.now, before);
    qn_ctx_destroy(ctx);
    qn_checkpoint_close(c);
    qn_weight_destroy(weight);
    qn_ctx_destroy(other);
    folder_remove(folder);
}

/* Each allocation fails once. */
static void test_no_memory(void **state)
{
    char *folder = folder_make();
    const qn_module_part parts[] = {{0, 0, 100}, {0, 50, -1}};
    qn_ctx *other = ctx_make(1);
    (void)state;
    qn_weight *weight = quantized(other, "q4_k", N, K, 3);
    qn_checkpoint *c = kept(other, folder, weight, "gguf", NULL);
    for (int64_t refuse = 1;; refuse++) {
        struct counted_ctx counted;
        qn_packed *packed = NULL;
        qn_error err = {QN_OK, -1, ""};
        counted_make(&counted);
        counted.counter.refuse = counted.counter.calls + refuse;
        const qn_status status =
            qn_checkpoint_pack(counted.ctx, c, 2, parts, NULL, &packed, NULL, &err);
        const bool is_last = counted.counter.calls < counted.counter.refuse;
        assert_int_equal(status, is_last ? QN_OK : QN_E_MEMORY);
        assert_true(is_last == (packed != NULL));
        qn_packed_destroy(packed);
        counted_destroy(&counted);
        if (is_last)
            break;
    }
    qn_checkpoint_close(c);
    qn_weight_destroy(weight);
    qn_ctx_destroy(other);
    folder_remove(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_bytes), cmocka_unit_test(test_late_rows),
        cmocka_unit_test(test_bad_rows),   cmocka_unit_test(test_memory),
        cmocka_unit_test(test_no_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
