/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints of several files: shards by an index, folders, and what an index may not do. */
#include "files.h"

#include <quern/checkpoint.h>

static void write_shard(const char *folder, const char *file, const char *tensor)
{
    char header[160];
    size_t size = 0;
    snprintf(header, sizeof header,
             "{\"%s\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,8]}}", tensor);
    uint8_t *bytes = safetensors_make(header, "\0\0\x80\x3f\0\0\0\x40", 8, &size);
    file_write(in(folder, file), bytes, size);
    free(bytes);
}

static void write_text(const char *folder, const char *file, const char *text)
{
    file_write(in(folder, file), text, strlen(text));
}

static const char index_name[] = "model.safetensors.index.json";

static void test_shards(void **state)
{
    const char *folder = folder_make();
    qn_ctx *ctx = ctx_make(1);
    qn_checkpoint *c = NULL;
    qn_entry entry;
    (void)state;
    write_shard(folder, "a.safetensors", "x");
    write_shard(folder, "b.safetensors", "y");
    write_text(folder, index_name,
               "{\"metadata\":{\"total_size\":16},\"weight_map\":{\"y\":\"b.safetensors\","
               "\"x\":\"a.safetensors\"}}");
    const char *const paths[] = {folder, in(folder, index_name)};
    for (int i = 0; i < 2; i++) {
        assert_ok(qn_checkpoint_open(ctx, paths[i], NULL, &c, NULL));
        assert_int_equal(qn_checkpoint_count(c), 2);
        assert_int_equal(qn_checkpoint_find(c, "y"), 1);
        assert_int_equal(qn_checkpoint_find(c, "z"), -1);
        assert_non_null(qn_checkpoint_file(c, 1));
        assert_null(qn_checkpoint_file(c, 2));
        assert_ok(qn_checkpoint_tensor(c, "y", &entry));
        assert_float_equal(((const float *)entry.tensor.data)[1], 2.0f, 0);
        qn_checkpoint_close(c);
    }
    /* A tensor that is in no shard, and one that is in two. */
    write_text(folder, index_name, "{\"weight_map\":{\"z\":\"a.safetensors\"}}");
    assert_error(qn_checkpoint_open(ctx, folder, NULL, &c, &err), QN_E_CORRUPT, "'z' is not in");
    write_shard(folder, "b.safetensors", "x");
    write_text(folder, index_name,
               "{\"weight_map\":{\"x\":\"a.safetensors\",\"x\":\"b.safetensors\"}}");
    assert_error(qn_checkpoint_open(ctx, folder, NULL, &c, &err), QN_E_CORRUPT, "two files hold");
    folder_remove(folder);
    qn_ctx_destroy(ctx);
}

/* What an index may say is a plain name of a file that lies in the folder. */
static void test_escapes(void **state)
{
    static const struct {
        const char *name, *word;
        qn_status status;
    } cases[] = {
        {"../a.safetensors", "not the name of a file", QN_E_CORRUPT},
        {"/etc/passwd", "not the name of a file", QN_E_CORRUPT},
        {"sub/a.safetensors", "not the name of a file", QN_E_CORRUPT},
        {"..\\\\a", "not the name of a file", QN_E_CORRUPT},
        {"", "not the name of a file", QN_E_CORRUPT},
        {".", "not the name of a file", QN_E_CORRUPT},
        {"..", "not the name of a file", QN_E_CORRUPT},
        {"gone.safetensors", "'gone.safetensors' is missing", QN_E_NOT_FOUND},
        {"out.safetensors", "symbolic link out of the folder", QN_E_CORRUPT},
        {"loop.safetensors", "missing", QN_E_NOT_FOUND},
        {"model.safetensors.index.json", "safetensors", QN_E_CORRUPT},
        {"\\u001b[2J", "'?[2J' is missing", QN_E_NOT_FOUND},
    };
    char text[256], outside[80];
    const char *folder = folder_make();
    qn_ctx *ctx = ctx_make(1);
    qn_checkpoint *c = NULL;
    (void)state;
    snprintf(outside, sizeof outside, "%s.safetensors", folder);
    write_shard("/tmp", outside + 5, "x");
    assert_int_equal(symlink(outside, in(folder, "out.safetensors")), 0);
    assert_int_equal(symlink("loop.safetensors", in(folder, "loop.safetensors")), 0);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(text, sizeof text, "{\"weight_map\":{\"x\":\"%s\"}}", cases[i].name);
        write_text(folder, index_name, text);
        assert_error(qn_checkpoint_open(ctx, folder, NULL, &c, &err), cases[i].status,
                     cases[i].word);
        assert_null(c);
    }
    /* A link that stays inside is a file as any. */
    write_shard(folder, "a.safetensors", "x");
    assert_int_equal(symlink("a.safetensors", in(folder, "link.safetensors")), 0);
    write_text(folder, index_name, "{\"weight_map\":{\"x\":\"link.safetensors\"}}");
    assert_ok(qn_checkpoint_open(ctx, folder, NULL, &c, NULL));
    qn_checkpoint_close(c);
    assert_int_equal(remove(outside), 0);
    folder_remove(folder);
    qn_ctx_destroy(ctx);
}

/* The cache of the hub: snapshots/<revision>/<name> leads to blobs/<hash>. */
static void test_hub_cache(void **state)
{
    const char *folder = folder_make();
    char snapshot[128], blobs[128], elsewhere[128];
    qn_ctx *ctx = ctx_make(1);
    qn_checkpoint *c = NULL;
    (void)state;
    snprintf(blobs, sizeof blobs, "%s/blobs", folder);
    snprintf(elsewhere, sizeof elsewhere, "%s/snapshots", folder);
    snprintf(snapshot, sizeof snapshot, "%s/snapshots/0123", folder);
    assert_int_equal(mkdir(blobs, 0777), 0);
    assert_int_equal(mkdir(elsewhere, 0777), 0);
    assert_int_equal(mkdir(snapshot, 0777), 0);
    write_shard(blobs, "abcd", "x");
    assert_int_equal(symlink("../../blobs/abcd", in(snapshot, "model.safetensors")), 0);
    assert_ok(qn_checkpoint_open(ctx, snapshot, NULL, &c, NULL));
    qn_checkpoint_close(c);
    assert_int_equal(remove(in(snapshot, "model.safetensors")), 0);
    write_shard(elsewhere, "abcd", "x");
    assert_int_equal(symlink("../abcd", in(snapshot, "model.safetensors")), 0);
    assert_error(qn_checkpoint_open(ctx, snapshot, NULL, &c, &err), QN_E_CORRUPT, "out of the");
    folder_remove(snapshot);
    folder_remove(elsewhere);
    folder_remove(blobs);
    folder_remove(folder);
    qn_ctx_destroy(ctx);
}

static void test_folders(void **state)
{
    const char *folder = folder_make();
    qn_ctx *ctx = ctx_make(1);
    qn_checkpoint *c = NULL;
    (void)state;
    assert_error(qn_checkpoint_open(ctx, folder, NULL, &c, &err), QN_E_NOT_FOUND, "no safetensors");
    assert_error(qn_checkpoint_open(ctx, in(folder, "none"), NULL, &c, &err), QN_E_OPEN, "none");
    write_shard(folder, "gptq_model-4bit-128g.safetensors", "x");
    assert_ok(qn_checkpoint_open(ctx, folder, NULL, &c, NULL));
    assert_string_equal(qn_checkpoint_quantization(c), "");
    qn_checkpoint_close(c);
    write_shard(folder, "other.safetensors", "y");
    assert_error(qn_checkpoint_open(ctx, folder, NULL, &c, &err), QN_E_NOT_FOUND, "2 files end in");
    write_shard(folder, "model.safetensors", "z");
    write_text(folder, "quantize_config.json", "{\"bits\":4,\"group_size\":128}");
    assert_ok(qn_checkpoint_open(ctx, folder, NULL, &c, NULL));
    assert_int_equal(qn_checkpoint_find(c, "z"), 0);
    assert_string_equal(qn_checkpoint_quantization(c), "gptq");
    qn_checkpoint_close(c);
    write_text(folder, "config.json",
               "{\"id2label\":{\"0\":\"a\"},\"quantization_config\":{\"quant_method\":\"awq\"}}");
    assert_ok(qn_checkpoint_open(ctx, folder, NULL, &c, NULL));
    assert_string_equal(qn_checkpoint_quantization(c), "awq");
    qn_checkpoint_close(c);
    folder_remove(folder);
    qn_ctx_destroy(ctx);
}

/* Configurations that are no JSON, repeat a key, or are nested without end. */
static void test_bad_configurations(void **state)
{
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"{", "ends too early"},
        {"[1]", NULL},
        {"{\"quantization_config\":{\"bits\":4,\"bits\":8}}", "occurs twice"},
        {"{\"a\":[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]}", "nested too deeply"},
        {"{\"quantization_config\":[1,2,{\"a\":null}]}", NULL},
        {"{\"quantization_config\":{\"quant_method\":7}}", NULL},
        {"{\"quantization_config\":{\"bits\":01}}", "comma or the end"},
    };
    const char *folder = folder_make();
    qn_ctx *ctx = ctx_make(1);
    qn_checkpoint *c = NULL;
    (void)state;
    write_shard(folder, "model.safetensors", "x");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        write_text(folder, "config.json", cases[i].text);
        if (cases[i].word == NULL) {
            assert_ok(qn_checkpoint_open(ctx, folder, NULL, &c, NULL));
            qn_checkpoint_close(c);
            continue;
        }
        assert_error(qn_checkpoint_open(ctx, folder, NULL, &c, &err), QN_E_CORRUPT, cases[i].word);
        assert_error(qn_checkpoint_open(ctx, folder, NULL, &c, &err), QN_E_CORRUPT, "config.json");
    }
    folder_remove(folder);
    qn_ctx_destroy(ctx);
}

static void test_arguments(void **state)
{
    qn_ctx *ctx = ctx_make(1);
    qn_checkpoint *c = NULL;
    qn_checkpoint_options options;
    qn_module module;
    qn_weight *weight = NULL;
    (void)state;
    qn_checkpoint_options_init(&options);
    options.gptq_zeros = 4;
    assert_status(qn_checkpoint_open(NULL, "x", NULL, &c, NULL), QN_E_ARGUMENT);
    assert_status(qn_checkpoint_open(ctx, NULL, NULL, &c, NULL), QN_E_ARGUMENT);
    assert_status(qn_checkpoint_open(ctx, "x", NULL, NULL, NULL), QN_E_ARGUMENT);
    assert_error(qn_checkpoint_open(ctx, "x", &options, &c, &err), QN_E_ARGUMENT, "gptq_zeros");
    qn_checkpoint_close(NULL);
    qn_checkpoint_forget(NULL, 0);
    qn_module_init(&module);
    assert_status(qn_checkpoint_module(NULL, 0, &module, NULL), QN_E_ARGUMENT);
    assert_status(qn_checkpoint_load(ctx, NULL, 0, 0, -1, &weight, NULL, NULL), QN_E_ARGUMENT);
    assert_int_equal(qn_checkpoint_count(NULL), 0);
    assert_int_equal(qn_checkpoint_find(NULL, "x"), -1);
    assert_int_equal(qn_checkpoint_provenance(NULL, 0, NULL, 0), 0);
    assert_string_equal(qn_checkpoint_quantization(NULL), "");
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shards),
        cmocka_unit_test(test_escapes),
        cmocka_unit_test(test_hub_cache),
        cmocka_unit_test(test_folders),
        cmocka_unit_test(test_bad_configurations),
        cmocka_unit_test(test_arguments),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
