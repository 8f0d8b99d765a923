/* SPDX-License-Identifier: Apache-2.0 */
/* Opening what the command line names: files, folders, indices of shards, FILE:NAME. An index is a
 * untrusted text: its file names may not leave the folder, and each tensor must be there. */
#define _POSIX_C_SOURCE 200809L
#include "source.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "inputs.h"
#include "term.h"

enum { INDEX_LIMIT = 64 << 20 };

int path_is_folder(const char *path)
{
    struct stat facts;
    return stat(path, &facts) == 0 && S_ISDIR(facts.st_mode);
}

static int has_ending(const char *text, const char *ending)
{
    const size_t length = strlen(text), tail = strlen(ending);
    return length >= tail && strcmp(text + length - tail, ending) == 0;
}

static char *keep(struct source *s, char *text)
{
    s->texts = must_grow(s->texts, sizeof *s->texts * (size_t)(s->n_texts + 1));
    s->texts[s->n_texts++] = text;
    return text;
}

/* The name of an npy's tensor: its file without folders and ending. */
static char *stem_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *stem = must_copy(slash != NULL ? slash + 1 : path);
    char *dot = strrchr(stem, '.');
    if (dot != NULL && dot != stem)
        *dot = '\0';
    return stem;
}

static void add_tensors(struct source *s, const qn_file *file, const char *path)
{
    const int64_t count = qn_file_count(file);
    s->tensors = must_grow(s->tensors, sizeof *s->tensors * (size_t)(s->n_tensors + count));
    for (int64_t i = 0; i < count; i++) {
        struct source_tensor *t = &s->tensors[s->n_tensors++];
        t->file = file;
        qn_file_entry(file, i, &t->entry);
        t->name = t->entry.name[0] != '\0' ? t->entry.name : keep(s, stem_of(path));
    }
}

/* An ONNX model with its external data, and what its nodes do with the tensors. */
static int add_graph(struct source *s, qn_ctx *ctx, const char *path)
{
    const qn_file *file;
    qn_error err = {0};
    if (s->graph != NULL)
        return complain(EXIT_USAGE, "take them one by one", "%s: a second ONNX model", path);
    const qn_status status = qn_checkpoint_open(ctx, path, NULL, &s->model, &err);
    if (status != QN_OK)
        return complain_status(path, status, &err);
    s->graph = must_alloc(sizeof *s->graph);
    for (int64_t i = 0; (file = qn_checkpoint_file(s->model, i)) != NULL; i++) {
        if (i > 0)
            input_note(qn_file_path(file));
        add_tensors(s, file, path);
    }
    return graph_open(s->graph, path);
}

static int add_file(struct source *s, qn_ctx *ctx, const char *path)
{
    qn_error err = {0};
    for (int i = 0; i < s->n_files; i++) {
        if (strcmp(s->paths[i], path) == 0)
            return 0;
    }
    qn_file *file;
    const qn_status status = input_open(ctx, path, &file, &err);
    if (status != QN_OK)
        return complain_status(path, status, &err);
    if (qn_file_get_kind(file) == QN_FILE_ONNX) {
        qn_file_close(file);
        return add_graph(s, ctx, path);
    }
    s->files = must_grow(s->files, sizeof *s->files * (size_t)(s->n_files + 1));
    s->paths = must_grow(s->paths, sizeof *s->paths * (size_t)(s->n_files + 1));
    s->files[s->n_files] = file;
    s->paths[s->n_files++] = must_copy(path);
    add_tensors(s, file, path);
    return 0;
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "r");
    char *text = NULL;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0) {
        const long bytes = ftell(file);
        if (bytes >= 0 && bytes <= INDEX_LIMIT) {
            text = must_alloc((size_t)bytes + 1);
            rewind(file);
            if (fread(text, 1, (size_t)bytes, file) != (size_t)bytes) {
                free(text);
                text = NULL;
            }
        }
    }
    if (file != NULL)
        fclose(file);
    return text;
}

static int bad_index(const char *path, const char *why)
{
    return complain(EXIT_INPUT, "fetch the index and all its shards again", "%s: %s", path, why);
}

static int add_shards(struct source *s, qn_ctx *ctx, const char *path, const cJSON *map)
{
    const char *slash = strrchr(path, '/');
    const int folder = slash != NULL ? (int)(slash - path) + 1 : 0;
    const cJSON *item;
    cJSON_ArrayForEach(item, map)
    {
        const char *shard = cJSON_GetStringValue(item);
        if (shard == NULL || shard[0] == '\0' || strchr(shard, '/') != NULL ||
            strchr(shard, '\\') != NULL || shard[0] == '.')
            return bad_index(path, "the index names a file outside its folder");
        char *full = must_print("%.*s%s", folder, path, shard);
        const int status = add_file(s, ctx, full);
        free(full);
        if (status != 0)
            return status;
    }
    return 0;
}

/* Whether the shards hold what the index promises; the tensors must be sorted. */
static int check_promises(const struct source *s, const char *path, const cJSON *map)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, map)
    {
        if (source_find(s, item->string) == NULL)
            return complain(EXIT_INPUT, "fetch the index and all its shards again",
                            "%s: tensor '%s' is in none of the shards", path, item->string);
    }
    return 0;
}

static int by_name(const void *a, const void *b)
{
    const struct source_tensor *x = a, *y = b;
    return strcmp(x->name, y->name);
}

static int sort_names(struct source *s)
{
    if (s->n_tensors > 1)
        qsort(s->tensors, (size_t)s->n_tensors, sizeof *s->tensors, by_name);
    for (int64_t i = 1; i < s->n_tensors; i++) {
        if (strcmp(s->tensors[i - 1].name, s->tensors[i].name) == 0)
            return complain(EXIT_INPUT, "give files that do not overlap",
                            "tensor '%s': it is in two of the files", s->tensors[i].name);
    }
    return 0;
}

static int add_index(struct source *s, qn_ctx *ctx, const char *path)
{
    char *text = read_text(path);
    if (text == NULL)
        return complain(EXIT_INPUT, "check the path and its permissions", "%s: cannot be read",
                        path);
    cJSON *json = cJSON_Parse(text);
    const cJSON *map = cJSON_GetObjectItemCaseSensitive(json, "weight_map");
    int status = cJSON_IsObject(map) ? 0 : bad_index(path, "no JSON with a weight_map");
    if (status == 0)
        status = add_shards(s, ctx, path, map);
    if (status == 0)
        status = sort_names(s);
    if (status == 0)
        status = check_promises(s, path, map);
    cJSON_Delete(json);
    free(text);
    return status;
}

static int by_text(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* All .safetensors of a folder, by name. */
static int add_folder(struct source *s, qn_ctx *ctx, const char *path)
{
    char **names = NULL;
    size_t n = 0;
    DIR *folder = opendir(path);
    for (struct dirent *e; folder != NULL && (e = readdir(folder)) != NULL;) {
        if (e->d_name[0] == '.' || !has_ending(e->d_name, ".safetensors"))
            continue;
        names = must_grow(names, sizeof *names * (n + 1));
        names[n++] = must_print("%s/%s", path, e->d_name);
    }
    if (folder != NULL)
        closedir(folder);
    if (n > 1)
        qsort(names, n, sizeof *names, by_text);
    int status = n > 0 ? 0
                       : complain(EXIT_INPUT, "name the files themselves",
                                  "%s: a folder without .safetensors files", path);
    for (size_t i = 0; i < n; i++) {
        if (status == 0)
            status = add_file(s, ctx, names[i]);
        free(names[i]);
    }
    free(names);
    return status;
}

static int add_path(struct source *s, qn_ctx *ctx, const char *path)
{
    if (path_is_folder(path)) {
        char *index = must_print("%s/model.safetensors.index.json", path);
        char *single = must_print("%s/model.safetensors", path);
        int status;
        if (access(index, F_OK) == 0)
            status = add_index(s, ctx, index);
        else if (access(single, F_OK) == 0)
            status = add_file(s, ctx, single);
        else
            status = add_folder(s, ctx, path);
        free(index);
        free(single);
        return status;
    }
    return has_ending(path, ".index.json") ? add_index(s, ctx, path) : add_file(s, ctx, path);
}

int is_several_files(const char *path)
{
    return path_is_folder(path) || has_ending(path, ".index.json");
}

int source_open(struct source *s, qn_ctx *ctx, char *const *paths, int n_paths)
{
    *s = (struct source){0};
    int status = 0;
    for (int i = 0; i < n_paths && status == 0; i++)
        status = add_path(s, ctx, paths[i]);
    return status != 0 ? status : sort_names(s);
}

void source_close(struct source *s)
{
    for (int i = 0; i < s->n_files; i++) {
        qn_file_close(s->files[i]);
        free(s->paths[i]);
    }
    for (int i = 0; i < s->n_texts; i++)
        free(s->texts[i]);
    free(s->files);
    free(s->paths);
    free(s->texts);
    free(s->tensors);
    graph_close(s->graph);
    free(s->graph);
    qn_checkpoint_close(s->model);
    *s = (struct source){0};
}

const struct source_tensor *source_find(const struct source *s, const char *name)
{
    const struct source_tensor key = {.name = name};
    return s->n_tensors == 0 ? NULL
                             : bsearch(&key, s->tensors, (size_t)s->n_tensors, sizeof key, by_name);
}

/* ----------------------------------------------------------------------------------- FILE:NAME */

int pick_open(struct picked *p, qn_ctx *ctx, const char *text)
{
    qn_error err = {0};
    *p = (struct picked){.path = must_copy(text)};
    char *name = NULL;
    /* Paths and names may hold colons themselves: the longest path that is there, then. */
    while (access(p->path, F_OK) != 0 && (name = strrchr(p->path, ':')) != NULL)
        *name = '\0';
    if (name == NULL && access(p->path, F_OK) != 0) { /* none is: the text before the last colon */
        strcpy(p->path, text);
        name = strrchr(p->path, ':');
        if (name != NULL)
            *name = '\0';
    }
    const size_t length = strlen(p->path);
    p->name = must_copy(text[length] == ':' ? text + length + 1 : "");
    if (path_is_folder(p->path))
        return complain(EXIT_INPUT, "name a file in it", "%s: a folder", p->path);
    const qn_status status = input_open(ctx, p->path, &p->file, &err);
    return status == QN_OK ? 0 : complain_status(p->path, status, &err);
}

void pick_close(struct picked *p)
{
    qn_file_close(p->file);
    free(p->path);
    free(p->name);
    *p = (struct picked){0};
}

int pick_entry(const struct picked *p, qn_entry *entry)
{
    if (p->name[0] == '\0' && qn_file_count(p->file) == 1)
        return qn_file_entry(p->file, 0, entry) == QN_OK ? 0 : EXIT_INPUT;
    if (p->name[0] == '\0')
        return complain(EXIT_INPUT, "choose one as FILE:NAME, 'quern inspect FILE' lists them",
                        "%s: it holds %lld tensors", p->path, (long long)qn_file_count(p->file));
    if (qn_file_find(p->file, p->name, entry) != QN_OK)
        return complain(EXIT_INPUT, "'quern inspect FILE' lists the names", "%s: no tensor '%s'",
                        p->path, p->name);
    return 0;
}

const char *pick_weight(const struct picked *p)
{
    const int64_t count = qn_file_weight_count(p->file);
    if (p->name[0] == '\0')
        return count == 1 ? qn_file_weight_name(p->file, 0) : NULL;
    return has_weight(p->file, p->name) ? p->name : NULL;
}

int has_weight(const qn_file *file, const char *name)
{
    char *key = must_print("quern.weight.%s", name);
    const int found = qn_file_get_metadata(file, key) != NULL;
    free(key);
    return found;
}

int is_part_of_weight(const qn_file *file, const char *tensor)
{
    static const char *const parts[] = {".codes",  ".scale", ".unit",     ".zero",
                                        ".offset", ".perm",  ".prescale", ".table"};
    const char *dot = strrchr(tensor, '.');
    int is_part = 0;
    for (size_t i = 0; dot != NULL && i < sizeof parts / sizeof *parts; i++)
        is_part |= strcmp(dot, parts[i]) == 0;
    if (!is_part || qn_file_weight_count(file) == 0)
        return 0;
    char *weight = must_print("%.*s", (int)(dot - tensor), tensor);
    is_part = has_weight(file, weight);
    free(weight);
    return is_part;
}

int entry_is_plain(const qn_entry *entry)
{
    const qn_tensor *t = &entry->tensor;
    int64_t step = 1;
    int is_in_order = 1;
    for (int32_t i = t->rank - 1; i >= 0; i--) {
        is_in_order &= t->shape[i] <= 1 || t->stride[i] == step;
        step *= t->shape[i] > 0 ? t->shape[i] : 1;
    }
    return entry->is_aligned && is_in_order;
}

int entry_load(const char *what, const qn_entry *entry, qn_dtype dtype, qn_tensor *out)
{
    int64_t elements;
    size_t bytes;
    *out = entry->tensor;
    out->data = NULL;
    out->dtype = dtype;
    for (int32_t i = out->rank - 1; i >= 0; i--)
        out->stride[i] = i == out->rank - 1 ? 1 : out->stride[i + 1] * out->shape[i + 1];
    qn_status status = qn_tensor_extent(out, &elements, &bytes);
    if (status == QN_OK && !memory_is_there(bytes)) {
        char wanted[HUMAN];
        return complain(EXIT_LIBRARY, "free some memory", "%s: no memory for %s of %s", what,
                        human_bytes((double)bytes, wanted), qn_dtype_name(dtype));
    }
    if (status == QN_OK) {
        out->data = must_alloc(bytes);
        status = qn_entry_copy(entry, out);
    }
    if (status == QN_OK)
        return 0;
    free(out->data);
    out->data = NULL;
    char *why = must_print("type %s cannot be read as %s", entry->dtype, qn_dtype_name(dtype));
    const int result = status == QN_E_DTYPE
                           ? complain(EXIT_INPUT, "convert the tensor first", "%s: %s", what, why)
                           : complain_status(what, status, NULL);
    free(why);
    return result;
}

/* Rows of ci x taps elements become taps x ci, each in place. */
static void turn_rows(qn_tensor *rows, int64_t ci, int64_t taps)
{
    const size_t bytes = qn_dtype_bytes(rows->dtype), row = bytes * (size_t)(ci * taps);
    uint8_t *turned = must_alloc(row);
    for (int64_t o = 0; o < rows->shape[0]; o++) {
        uint8_t *at = (uint8_t *)rows->data + (size_t)o * row;
        for (int64_t i = 0; i < ci; i++) {
            for (int64_t t = 0; t < taps; t++)
                memcpy(turned + (size_t)(t * ci + i) * bytes, at + (size_t)(i * taps + t) * bytes,
                       bytes);
        }
        memcpy(at, turned, row);
    }
    free(turned);
}

int entry_load_rows(const char *what, const qn_entry *entry, qn_dtype dtype, qn_tensor *out)
{
    qn_tensor copy;
    const int status = entry_load(what, entry, dtype, &copy);
    if (status != 0)
        return status;
    int64_t k = 1;
    for (int32_t i = 1; i < copy.rank; i++)
        k *= copy.shape[i];
    *out = qn_tensor_2d(copy.data, dtype, copy.rank > 0 ? copy.shape[0] : 1, k);
    if (copy.rank == 4 && copy.shape[2] * copy.shape[3] > 1)
        turn_rows(out, copy.shape[1], copy.shape[2] * copy.shape[3]);
    return 0;
}

const char *shape_text(const qn_tensor *tensor, char text[SHAPE_TEXT])
{
    /* What cannot be viewed - more dimensions than the library has, for one - says nothing. */
    const char *none = tensor->dtype == QN_DTYPE_NONE ? "?" : "scalar";
    int length = snprintf(text, SHAPE_TEXT, "%s", tensor->rank == 0 ? none : "");
    for (int32_t i = 0; i < tensor->rank && length < SHAPE_TEXT; i++)
        length += snprintf(text + length, (size_t)(SHAPE_TEXT - length), "%s%lld",
                           i > 0 ? " x " : "", (long long)tensor->shape[i]);
    return text;
}
