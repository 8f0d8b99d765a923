/* SPDX-License-Identifier: Apache-2.0 */
/* From a path to the files of a checkpoint: a file and the parts it belongs to, an index and its
 * shards, a folder and its configuration. Names that come from files stay in their folder
 * (paths.h). */
#include <stdio.h>
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "checkpoint.h"
#include "json.h"
#include "paths.h"

enum { MOST_SHARDS = 1 << 16, MOST_INDEX = 1 << 28 };

static qn_status add_file(const qn_ctx *ctx, qn_checkpoint *c, const char *path, qn_error *err)
{
    qn_file *file = NULL;
    qn_file_options options;
    qn_file_options_init(&options);
    options.prefetch = c->options.prefetch;
    options.lock = c->options.lock;
    QNI_TRY(qn_file_open_path(ctx, path, &options, &file, err));
    return qni_checkpoint_add(c, file, err);
}

/* All of a text beside the tensors. */
static qn_status map_text(const qn_ctx *ctx, const char *path, struct qni_mapping **mapping,
                          qn_error *err)
{
    qn_file_options whole;
    qn_file_options_init(&whole);
    return qni_mapping_open_path(&ctx->allocator, path, &whole, mapping, err);
}

/* ---- an index of shards ---------------------------------------------------------------------- */

struct index {
    struct qni_allocator allocator;
    struct qni_mapping *mapping;
    char *strings;
    struct qni_text *map; /* tensor, file */
    size_t n_map, capacity;
    uint32_t *by_file; /* [n_map] */
};

static void index_free(struct index *x)
{
    if (x->mapping == NULL)
        return;
    qni_free(&x->allocator, x->strings, x->mapping->size);
    qni_free(&x->allocator, x->map, x->capacity * sizeof *x->map);
    qni_free(&x->allocator, x->by_file, x->n_map * sizeof *x->by_file);
    qni_mapping_release(x->mapping);
}

static bool read_map(struct index *x, struct qni_json *j, bool *no_memory)
{
    const char *key = NULL, *value = NULL;
    if (!qni_json_object(j))
        return false;
    while (qni_json_key(j, &key)) {
        if (!qni_json_string(j, &value))
            return false;
        void *map = x->map;
        *no_memory = !qni_grow(&x->allocator, &map, &x->capacity, x->n_map, sizeof *x->map);
        x->map = map;
        if (*no_memory)
            return false;
        x->map[x->n_map++] = (struct qni_text){.key = key, .value = value};
    }
    return j->why == NULL;
}

static bool file_before(const void *arg, uint32_t a, uint32_t b)
{
    const struct index *x = arg;
    const int order = strcmp(x->map[a].value, x->map[b].value);
    return order < 0 || (order == 0 && a < b);
}

static qn_status read_index(struct index *x, qn_error *err)
{
    struct qni_json j;
    const char *key = NULL;
    bool found = false, no_memory = false;
    if (x->mapping->size > MOST_INDEX)
        return qni_fail(err, QN_E_CORRUPT, "larger than any index (2^28 bytes)");
    x->strings = qni_alloc(&x->allocator, x->mapping->size);
    if (x->strings == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    qni_json_start(&j, x->mapping->bytes, x->mapping->size, x->strings);
    bool fine = qni_json_object(&j);
    while (fine && qni_json_key(&j, &key)) {
        const bool is_map = strcmp(key, "weight_map") == 0;
        if (is_map && found)
            fine = qni_json_refuse(&j, "weight_map occurs twice");
        else
            fine = is_map ? read_map(x, &j, &no_memory) : qni_json_skip(&j);
        found = found || is_map;
    }
    if (no_memory)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    if (!qni_json_end(&j))
        return qni_fail_at(err, QN_E_CORRUPT, (int64_t)j.why_at, "byte %llu: %s",
                           (unsigned long long)j.why_at, j.why);
    if (!found || x->n_map == 0)
        return qni_fail(err, QN_E_CORRUPT, "no index: it has no weight_map with tensors");
    x->by_file = qni_alloc(&x->allocator, x->n_map * sizeof *x->by_file);
    if (x->by_file == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    for (size_t i = 0; i < x->n_map; i++)
        x->by_file[i] = (uint32_t)i;
    qni_sort(x->by_file, x->n_map, file_before, x);
    return QN_OK;
}

/* The shard of each run of entries, and what the index promises of it. */
static qn_status add_shards(const qn_ctx *ctx, qn_checkpoint *c, const struct index *x,
                            const char *folder, qn_error *err)
{
    char path[QNI_PATH], shown[QNI_SHOWN], file_shown[QNI_SHOWN];
    qn_entry entry;
    for (size_t i = 0; i < x->n_map; i++) {
        const struct qni_text *t = &x->map[x->by_file[i]];
        const bool is_new = i == 0 || strcmp(t->value, x->map[x->by_file[i - 1]].value) != 0;
        if (is_new) {
            if (c->n_files == MOST_SHARDS)
                return qni_fail(err, QN_E_CORRUPT, "more than 65536 shards");
            QNI_TRY(qni_path_inside(folder, t->value, path, err));
            QNI_TRY(add_file(ctx, c, path, err));
            if (qn_file_get_kind(c->files[c->n_files - 1]) != QN_FILE_SAFETENSORS)
                return qni_fail(err, QN_E_CORRUPT, "'%s' is no safetensors file",
                                qni_shown(file_shown, t->value));
        }
        if (qn_file_find(c->files[c->n_files - 1], t->key, &entry) != QN_OK)
            return qni_fail(err, QN_E_CORRUPT, "tensor '%s' is not in '%s'; fetch both again",
                            qni_shown(shown, t->key), qni_shown(file_shown, t->value));
    }
    return QN_OK;
}

static qn_status add_index(const qn_ctx *ctx, qn_checkpoint *c, const char *path, qn_error *err)
{
    struct index x = {.allocator = ctx->allocator};
    char folder[QNI_PATH], shown[QNI_SHOWN_PATH];
    qn_error inner = {QN_OK, -1, ""};
    if (!qni_path_folder(folder, path))
        return qni_fail(err, QN_E_OPEN, "the path is too long");
    qn_status status = map_text(ctx, path, &x.mapping, &inner);
    if (status == QN_OK)
        status = read_index(&x, &inner);
    if (status == QN_OK)
        status = add_shards(ctx, c, &x, folder, &inner);
    index_free(&x);
    return status == QN_OK ? QN_OK
                           : qni_fail_at(err, status, inner.offset, "%s: %s",
                                         qni_shown_path(shown, path), inner.text);
}

/* ---- GGUF in parts --------------------------------------------------------------------------- */

/* Splits a name of the form "<prefix>-00001-of-00003.gguf". */
static bool parse_part(const char *name, size_t *prefix, long *part, long *count)
{
    static const char pattern[] = "-00000-of-00000.gguf";
    const size_t length = strlen(name), tail = sizeof pattern - 1;
    if (length < tail)
        return false;
    const char *end = name + length - tail;
    for (size_t i = 0; i < tail; i++) {
        const bool is_digit = end[i] >= '0' && end[i] <= '9';
        if (pattern[i] == '0' ? !is_digit : end[i] != pattern[i])
            return false;
    }
    *prefix = length - tail;
    *part = 0;
    *count = 0;
    for (size_t i = 0; i < 5; i++) {
        *part = *part * 10 + (end[1 + i] - '0');
        *count = *count * 10 + (end[10 + i] - '0');
    }
    return *part >= 1 && *part <= *count;
}

static bool says(const qn_file *file, const char *key, long wanted)
{
    char text[32];
    const char *value = qn_file_get_metadata(file, key);
    snprintf(text, sizeof text, "%ld", wanted);
    return value == NULL || strcmp(value, text) == 0;
}

static qn_status add_parts(const qn_ctx *ctx, qn_checkpoint *c, const char *path, size_t prefix,
                           long count, qn_error *err)
{
    char folder[QNI_PATH], name[QNI_PATH], full[QNI_PATH], shown[QNI_SHOWN];
    const char *given = qni_path_name(path);
    if (!qni_path_folder(folder, path) || strlen(given) + 1 > sizeof name)
        return qni_fail(err, QN_E_OPEN, "the path is too long");
    for (long i = 1; i <= count; i++) {
        snprintf(name, sizeof name, "%.*s-%05ld-of-%05ld.gguf", (int)prefix, given, i, count);
        if (!qni_path_join(full, folder, name))
            return qni_fail(err, QN_E_OPEN, "the path is too long");
        if (!qni_path_exists(full))
            return qni_fail(err, QN_E_NOT_FOUND, "part '%s' is missing", qni_shown(shown, name));
        QNI_TRY(add_file(ctx, c, full, err));
        const qn_file *file = c->files[c->n_files - 1];
        if (qn_file_get_kind(file) != QN_FILE_GGUF || !says(file, "split.no", i - 1) ||
            !says(file, "split.count", count))
            return qni_fail(err, QN_E_CORRUPT, "'%s' is not the part that its name says",
                            qni_shown(shown, name));
    }
    return QN_OK;
}

/* ---- graphs with external data --------------------------------------------------------------- */

/* MNN's is called as the model and ".weight". */
static qn_status find_external(const char *folder, const char *path, const char *location,
                               char *full, qn_error *err)
{
    char name[QNI_PATH], shown[QNI_SHOWN];
    if (location[0] != 0)
        return qni_path_below(folder, location, full, err);
    const int length = snprintf(name, sizeof name, "%s.weight", qni_path_name(path));
    if (length < 0 || (size_t)length >= sizeof name || !qni_path_join(full, folder, name))
        return qni_fail(err, QN_E_OPEN, "the path is too long");
    if (!qni_path_exists(full))
        return qni_fail(err, QN_E_NOT_FOUND, "its weights, '%s', are missing",
                        qni_shown(shown, name));
    return QN_OK;
}

/* The files that a graph's tensors lie in, each once; they may be in folders below its own. */
static qn_status add_external(const qn_ctx *ctx, qn_checkpoint *c, const char *path, qn_error *err)
{
    char folder[QNI_PATH], full[QNI_PATH];
    const qn_file *graph = c->files[c->n_files - 1];
    qn_file_options options;
    qn_file_options_init(&options);
    options.prefetch = c->options.prefetch;
    options.lock = c->options.lock;
    if (!qni_path_folder(folder, path))
        return qni_fail(err, QN_E_OPEN, "the path is too long");
    for (size_t i = 0; i < graph->n_externals; i++) {
        const char *location = graph->externals[i].location;
        size_t first = 0;
        while (strcmp(graph->externals[first].location, location) != 0)
            first++;
        if (first < i)
            continue;
        qn_file *file = NULL;
        if (c->n_files == MOST_SHARDS)
            return qni_fail(err, QN_E_CORRUPT, "more than 65536 files");
        QNI_TRY(find_external(folder, path, location, full, err));
        QNI_TRY(qni_file_open_data(ctx, graph, first, full, &options, &file, err));
        QNI_TRY(qni_checkpoint_add(c, file, err));
    }
    return QN_OK;
}

static qn_status add_single(const qn_ctx *ctx, qn_checkpoint *c, const char *path, qn_error *err)
{
    size_t prefix = 0;
    long part = 0, count = 0;
    if (qni_text_ends(path, ".index.json"))
        return add_index(ctx, c, path, err);
    if (parse_part(qni_path_name(path), &prefix, &part, &count))
        return add_parts(ctx, c, path, prefix, count, err);
    QNI_TRY(add_file(ctx, c, path, err));
    if (c->files[0]->n_externals > 0)
        return add_external(ctx, c, path, err);
    if (qn_file_get_kind(c->files[0]) == QN_FILE_GGUF && !says(c->files[0], "split.count", 1) &&
        !says(c->files[0], "split.count", 0))
        return qni_fail(err, QN_E_NOT_FOUND,
                        "a part of a model whose name does not tell where the others are");
    return QN_OK;
}

/* ---- folders --------------------------------------------------------------------------------- */

/* config.json first: the others are copies of its part, or older. */
static const char *const configurations[] = {"config.json", "quantize_config.json",
                                             "quant_config.json", "hf_quant_config.json"};

static qn_status configure(const qn_ctx *ctx, qn_checkpoint *c, const char *folder, qn_error *err)
{
    char path[QNI_PATH], shown[QNI_SHOWN_PATH];
    for (size_t i = 0; i < sizeof configurations / sizeof *configurations; i++) {
        struct qni_mapping *mapping = NULL;
        qn_error inner = {QN_OK, -1, ""};
        if (!qni_path_join(path, folder, configurations[i]) || !qni_path_exists(path))
            continue;
        qn_status status = qni_path_inside(folder, configurations[i], path, &inner);
        if (status == QN_OK)
            status = map_text(ctx, path, &mapping, &inner);
        if (status == QN_OK)
            status = qni_checkpoint_configure(c, configurations[i], (const char *)mapping->bytes,
                                              mapping->size, &inner);
        qni_mapping_release(mapping);
        if (status != QN_OK)
            return qni_fail_at(err, status, inner.offset, "%s: %s", qni_shown_path(shown, path),
                               inner.text);
        if (c->quantization >= 0)
            return QN_OK;
    }
    return QN_OK;
}

/* The tensors of a folder: an index, one file, or the parts of one. */
static qn_status add_folder(const qn_ctx *ctx, qn_checkpoint *c, const char *folder, qn_error *err)
{
    static const char *const endings[] = {".safetensors.index.json", ".safetensors", ".gguf",
                                          ".onnx", ".mnn"};
    static const char *const preferred[] = {"model.safetensors.index.json", "model.safetensors"};
    char name[QNI_PATH], path[QNI_PATH], shown[QNI_SHOWN_PATH];
    size_t prefix = 0;
    long part = 0, parts = 0;
    for (size_t i = 0; i < 2; i++)
        if (qni_path_join(path, folder, preferred[i]) && qni_path_exists(path)) {
            QNI_TRY(qni_path_inside(folder, preferred[i], path, err));
            return add_single(ctx, c, path, err);
        }
    for (size_t i = 0; i < 5; i++) {
        int32_t count = 0;
        QNI_TRY(qni_path_only(folder, endings[i], name, &count, err));
        if (count == 0)
            continue;
        const bool is_parts = parse_part(name, &prefix, &part, &parts) && (long)count == parts;
        if (count > 1 && !is_parts)
            return qni_fail(err, QN_E_NOT_FOUND,
                            "%s: %d files end in %s, and no index says which belong together; name "
                            "one of them",
                            qni_shown_path(shown, folder), (int)count, endings[i]);
        QNI_TRY(qni_path_inside(folder, name, path, err));
        return add_single(ctx, c, path, err);
    }
    return qni_fail(err, QN_E_NOT_FOUND, "%s: no safetensors, GGUF, ONNX or MNN file in the folder",
                    qni_shown_path(shown, folder));
}

qn_status qni_checkpoint_gather(const qn_ctx *ctx, const char *path, qn_checkpoint *c,
                                qn_error *err)
{
    char folder[QNI_PATH];
    const bool is_folder = qni_path_is_folder(path);
    QNI_TRY(is_folder ? add_folder(ctx, c, path, err) : add_single(ctx, c, path, err));
    /* What lies beside a single file may be about another one, unless the file is the model's. */
    const char *name = qni_path_name(path);
    if (!is_folder && !qni_text_ends(name, ".index.json") && strcmp(name, "model.safetensors") != 0)
        return QN_OK;
    if (!is_folder && !qni_path_folder(folder, path))
        return QN_OK;
    return configure(ctx, c, is_folder ? path : folder, err);
}
