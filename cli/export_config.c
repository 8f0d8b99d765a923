/* SPDX-License-Identifier: Apache-2.0 */
/* What a Hugging Face folder has beside its tensors: config.json with the right
 * quantization_config, the index of shards, and the other files of the source, untouched. */
#define _POSIX_C_SOURCE 200809L
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "export.h"
#include "whole.h"

enum { MOST_CONFIG = 64 << 20 };

/* -------------------------------------------------------------------------------------- reading */

static char *read_text(const char *path, size_t *size)
{
    FILE *file = fopen(path, "rb");
    if (file == NULL)
        return NULL;
    char *text = must_alloc(MOST_CONFIG + 1);
    *size = fread(text, 1, MOST_CONFIG, file);
    fclose(file);
    text[*size] = '\0';
    return text;
}

int export_read_config(struct export *e)
{
    size_t size = 0;
    if (e->from_gguf && e->folder == NULL) {
        e->config = e->to_gguf ? NULL : export_config_of_gguf(e);
        return 0;
    }
    if (e->folder == NULL)
        return 0;
    char *path = must_print("%s/config.json", e->folder);
    char *text = read_text(path, &size);
    e->config = text == NULL ? NULL : cJSON_ParseWithLength(text, size);
    const int is_bad = text != NULL && !cJSON_IsObject(e->config);
    e->config_text = text;
    const int status =
        is_bad ? complain(EXIT_INPUT, "repair it", "%s: is no JSON object", path) : 0;
    free(path);
    return status;
}

/* -------------------------------------------------------------------------- quantization_config */

static int is_linear(const struct piece *p)
{
    const size_t length = strlen(p->target);
    return p->how != PIECE_EXPORT && p->n_tensors > 0 && p->tensors[0].rank == 2 && length > 7 &&
           strcmp(p->target + length - 7, ".weight") == 0 && strstr(p->target, "embed") == NULL &&
           strstr(p->target, "norm") == NULL;
}

static char *stem_of(const char *name)
{
    return must_print("%.*s", (int)(strlen(name) - strlen(".weight")), name);
}

/* Matrices that stay as they are; the head among them, also where it is the embedding. */
static cJSON *plain_modules(const struct export *e)
{
    cJSON *list = cJSON_CreateArray();
    int has_head = 0;
    for (int64_t i = 0; i < e->n_pieces; i++) {
        has_head = has_head || strcmp(e->pieces[i].target, "lm_head.weight") == 0;
        if (!is_linear(&e->pieces[i]))
            continue;
        char *stem = stem_of(e->pieces[i].target);
        cJSON_AddItemToArray(list, cJSON_CreateString(stem));
        free(stem);
    }
    if (!has_head)
        cJSON_AddItemToArray(list, cJSON_CreateString("lm_head"));
    return list;
}

static const struct piece *first_weight(const struct export *e)
{
    for (int64_t i = 0; i < e->n_pieces; i++)
        if (e->pieces[i].how == PIECE_EXPORT)
            return &e->pieces[i];
    return NULL;
}

static cJSON *config_of_awq(const struct export *e, const struct piece *w)
{
    cJSON *q = cJSON_CreateObject();
    cJSON_AddStringToObject(q, "quant_method", "awq");
    cJSON_AddNumberToObject(q, "bits", 4);
    cJSON_AddNumberToObject(q, "group_size", (double)w->group);
    cJSON_AddBoolToObject(q, "zero_point", 1);
    cJSON_AddStringToObject(q, "version", "gemm");
    cJSON_AddStringToObject(q, "backend", "autoawq");
    cJSON_AddItemToObject(q, "modules_to_not_convert", plain_modules(e));
    return q;
}

/* A name as a regular expression. */
static char *pattern_of(const char *sign, const char *name)
{
    char *stem = stem_of(name);
    char *text = must_alloc(2 * strlen(stem) + 8);
    char *to = text + sprintf(text, "%s:^", sign);
    for (const char *from = stem; *from != '\0'; from++) {
        if (*from == '.')
            *to++ = '\\';
        *to++ = *from;
    }
    strcpy(to, "$");
    free(stem);
    return text;
}

static cJSON *config_of_gptq(const struct export *e, const struct piece *w)
{
    cJSON *q = cJSON_CreateObject(), *dynamic = cJSON_CreateObject(), *meta, *list;
    int is_symmetric = 1, has_order = 0, has_head = 0;
    for (int64_t i = 0; i < e->n_pieces; i++) {
        const struct piece *p = &e->pieces[i];
        has_head =
            has_head || (p->how == PIECE_EXPORT && strcmp(p->target, "lm_head.weight") == 0);
        const int is_other = p->how == PIECE_EXPORT && (p->bits != w->bits || p->group != w->group);
        is_symmetric = is_symmetric && (p->how != PIECE_EXPORT || p->is_symmetric);
        has_order = has_order || (p->how == PIECE_EXPORT && p->has_order);
        if (!is_other && !is_linear(p))
            continue;
        char *key = pattern_of(is_other ? "+" : "-", p->target);
        cJSON *own = cJSON_AddObjectToObject(dynamic, key);
        if (is_other) {
            cJSON_AddNumberToObject(own, "bits", p->bits);
            cJSON_AddNumberToObject(own, "group_size", (double)p->group);
        }
        free(key);
    }
    cJSON_AddStringToObject(q, "quant_method", "gptq");
    cJSON_AddNumberToObject(q, "bits", w->bits);
    cJSON_AddNumberToObject(q, "group_size", (double)w->group);
    cJSON_AddBoolToObject(q, "desc_act", has_order);
    cJSON_AddBoolToObject(q, "sym", is_symmetric);
    cJSON_AddBoolToObject(q, "lm_head", has_head);
    cJSON_AddStringToObject(q, "checkpoint_format", w->kind);
    cJSON_AddStringToObject(q, "pack_dtype", "int32");
    if (dynamic->child != NULL)
        cJSON_AddItemToObject(q, "dynamic", dynamic);
    else
        cJSON_Delete(dynamic);
    meta = cJSON_AddObjectToObject(q, "meta");
    list = cJSON_AddArrayToObject(meta, "quantizer");
    char *us = must_print("quern:%s", qn_version());
    cJSON_AddItemToArray(list, cJSON_CreateString(us));
    free(us);
    return q;
}

static int is_same_scheme(const struct piece *a, const struct piece *b)
{
    return strcmp(a->kind, b->kind) == 0 && a->bits == b->bits && a->group == b->group &&
           a->is_symmetric == b->is_symmetric && a->activation == b->activation &&
           a->has_order == b->has_order;
}

static cJSON *scheme_of_ct(const struct piece *p)
{
    const int is_float = strstr(p->kind, "fp4") != NULL || strstr(p->kind, "float") != NULL;
    const int is_nv = strncmp(p->kind, "nvfp4", 5) == 0;
    cJSON *s = cJSON_CreateObject(), *w = cJSON_AddObjectToObject(s, "weights");
    cJSON_AddNumberToObject(w, "num_bits", p->bits);
    cJSON_AddStringToObject(w, "type", is_float ? "float" : "int");
    cJSON_AddBoolToObject(w, "symmetric", p->is_symmetric);
    cJSON_AddStringToObject(w, "strategy",
                            is_nv          ? "tensor_group"
                            : p->group < 0 ? "channel"
                                           : "group");
    if (p->group > 0)
        cJSON_AddNumberToObject(w, "group_size", (double)p->group);
    else
        cJSON_AddNullToObject(w, "group_size");
    if (p->has_order)
        cJSON_AddStringToObject(w, "actorder", "group");
    else
        cJSON_AddNullToObject(w, "actorder");
    cJSON_AddBoolToObject(w, "dynamic", 0);
    cJSON_AddStringToObject(w, "observer", "minmax");
    if (p->activation == QN_ACTIVATION_NONE || strcmp(p->kind, "int-quantized") != 0) {
        cJSON_AddNullToObject(s, "input_activations");
    } else {
        const int is_static = p->activation == QN_ACTIVATION_INT8_STATIC;
        cJSON *a = cJSON_AddObjectToObject(s, "input_activations");
        cJSON_AddNumberToObject(a, "num_bits", 8);
        cJSON_AddStringToObject(a, "type", "int");
        cJSON_AddBoolToObject(a, "symmetric", p->input_zero == 0);
        cJSON_AddStringToObject(a, "strategy", is_static ? "tensor" : "token");
        cJSON_AddBoolToObject(a, "dynamic", !is_static);
    }
    cJSON_AddNullToObject(s, "output_activations");
    return s;
}

/* A group for each scheme; several of them name their modules. */
static cJSON *config_of_ct(const struct export *e, const struct piece *w)
{
    cJSON *q = cJSON_CreateObject(), *groups = cJSON_CreateObject();
    int count = 0, is_mixed = 0;
    for (int64_t i = 0; i < e->n_pieces; i++) {
        const struct piece *p = &e->pieces[i];
        int is_new = p->how == PIECE_EXPORT;
        for (int64_t j = 0; j < i && is_new; j++)
            is_new = e->pieces[j].how != PIECE_EXPORT || !is_same_scheme(&e->pieces[j], p);
        if (!is_new)
            continue;
        is_mixed = is_mixed || strcmp(p->kind, w->kind) != 0;
        char key[32];
        snprintf(key, sizeof key, "group_%d", count++);
        cJSON *group = scheme_of_ct(p);
        cJSON *targets = cJSON_AddArrayToObject(group, "targets");
        cJSON_AddStringToObject(group, "format", p->kind);
        for (int64_t j = i; j < e->n_pieces; j++) {
            if (e->pieces[j].how != PIECE_EXPORT || !is_same_scheme(&e->pieces[j], p))
                continue;
            char *stem = stem_of(e->pieces[j].target);
            cJSON_AddItemToArray(targets, cJSON_CreateString(stem));
            free(stem);
        }
        cJSON_AddItemToObject(groups, key, group);
    }
    if (count == 1) {
        cJSON *targets = cJSON_CreateArray();
        cJSON_AddItemToArray(targets, cJSON_CreateString("Linear"));
        cJSON_ReplaceItemInObjectCaseSensitive(groups->child, "targets", targets);
    }
    cJSON_AddStringToObject(q, "quant_method", "compressed-tensors");
    cJSON_AddStringToObject(q, "format", is_mixed ? "mixed-precision" : w->kind);
    cJSON_AddStringToObject(q, "quantization_status", "compressed");
    cJSON_AddItemToObject(q, "config_groups", groups);
    cJSON_AddItemToObject(q, "ignore", plain_modules(e));
    cJSON_AddNullToObject(q, "kv_cache_scheme");
    cJSON_AddNullToObject(q, "global_compression_ratio");
    return q;
}

static cJSON *config_of_bnb(const struct export *e, const struct piece *w)
{
    const int is_int8 = strcmp(w->kind, "int8") == 0;
    cJSON *q = cJSON_CreateObject();
    cJSON_AddStringToObject(q, "quant_method", "bitsandbytes");
    cJSON_AddBoolToObject(q, "load_in_4bit", !is_int8);
    cJSON_AddBoolToObject(q, "load_in_8bit", is_int8);
    cJSON_AddBoolToObject(q, "_load_in_4bit", !is_int8);
    cJSON_AddBoolToObject(q, "_load_in_8bit", is_int8);
    cJSON_AddStringToObject(q, "bnb_4bit_quant_type", is_int8 ? "nf4" : w->kind);
    cJSON_AddBoolToObject(q, "bnb_4bit_use_double_quant", 0);
    cJSON_AddStringToObject(q, "bnb_4bit_compute_dtype", "float16");
    cJSON_AddStringToObject(q, "bnb_4bit_quant_storage", "uint8");
    /* With a point, or transformers takes it for an integer and refuses. */
    cJSON_AddRawToObject(q, "llm_int8_threshold", "6.0");
    cJSON_AddItemToObject(q, "llm_int8_skip_modules", plain_modules(e));
    return q;
}

/* -------------------------------------------------------------------------------------- writing */

static int write_json(const struct export *e, const char *name, const cJSON *object)
{
    struct whole w;
    char *path = must_print("%s/%s", e->part, name);
    char *text = cJSON_Print(object);
    int reason = whole_begin(&w, path);
    if (reason == 0) {
        fprintf(w.file, "%s\n", text);
        reason = whole_end(&w, 1);
    }
    cJSON_free(text);
    const int status = reason == 0 ? 0
                                   : complain(EXIT_LIBRARY, "make room or choose another folder",
                                              "%s: %s", path, strerror(reason));
    free(path);
    return status;
}

static int write_index(const struct export *e)
{
    cJSON *index = cJSON_CreateObject(), *meta = cJSON_AddObjectToObject(index, "metadata");
    cJSON *map = cJSON_AddObjectToObject(index, "weight_map");
    double total = 0;
    for (int64_t i = 0; i < e->n_pieces; i++)
        for (int t = 0; t < e->pieces[i].n_tensors; t++) {
            char shard[48];
            snprintf(shard, sizeof shard, "model-%05d-of-%05d.safetensors", e->pieces[i].shard + 1,
                     e->n_shards);
            cJSON_AddItemToObject(map, e->pieces[i].tensors[t].name, cJSON_CreateString(shard));
            total += (double)e->pieces[i].tensors[t].bytes;
        }
    cJSON_AddNumberToObject(meta, "total_size", total);
    const int status = write_json(e, "model.safetensors.index.json", index);
    cJSON_Delete(index);
    return status;
}

static int ends_with(const char *name, const char *tail)
{
    const size_t a = strlen(name), b = strlen(tail);
    return a >= b && strcmp(name + a - b, tail) == 0;
}

/* The next number of JSON text, outside of strings: its length, 0 at the end. */
static size_t next_number(const char **text)
{
    const char *at = *text;
    for (; *at != '\0' && strchr("-0123456789", *at) == NULL; at++)
        for (int is_open = *at == '"'; is_open && at[1] != '\0';) {
            at++;
            if (*at == '\\' && at[1] != '\0')
                at++;
            else
                is_open = *at != '"';
        }
    *text = at;
    return strspn(at, "+-.0123456789eE");
}

/* Numbers stay written as they were: 10000.0 is a float for Python, 10000 is none. The text is that
 * of which the items were made, so that its numbers are theirs, in that order. */
static void keep_points(cJSON *item, const char **text)
{
    for (; item != NULL; item = item->next) {
        keep_points(item->child, text);
        if (!cJSON_IsNumber(item))
            continue;
        const size_t length = next_number(text);
        item->valuestring = must_alloc(length + 1);
        memcpy(item->valuestring, *text, length);
        item->valuestring[length] = '\0';
        item->type = cJSON_Raw;
        *text += length;
    }
}

/* Weights, and what is written anew, are not carried along. */
static int is_carried(const char *name)
{
    static const char *const tails[] = {".safetensors", ".gguf", ".bin",        ".pt",
                                        ".pth",         ".onnx", ".index.json", ".h5",
                                        ".msgpack",     ".part", ".mnn"};
    static const char *const names[] = {"config.json", "quantize_config.json", "quant_config.json",
                                        "hf_quant_config.json"};
    for (size_t i = 0; i < sizeof tails / sizeof *tails; i++)
        if (ends_with(name, tails[i]))
            return 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0)
            return 0;
    return name[0] != '.';
}

static int copy_file(const char *from, const char *to)
{
    enum { BLOCK = 1 << 20 };
    struct whole w;
    FILE *in = fopen(from, "rb");
    if (in == NULL)
        return complain(EXIT_INPUT, "check its permissions", "%s: cannot be read", from);
    int reason = whole_begin(&w, to), is_good = 1;
    char *block = must_alloc(BLOCK);
    size_t n = 0;
    while (reason == 0 && is_good && (n = fread(block, 1, BLOCK, in)) > 0)
        is_good = fwrite(block, 1, n, w.file) == n;
    const int is_read = !ferror(in);
    if (reason == 0)
        reason = whole_end(&w, is_good && is_read);
    free(block);
    fclose(in);
    return reason == 0 ? 0
                       : complain(EXIT_LIBRARY, "make room or choose another folder", "%s: %s", to,
                                  strerror(reason));
}

static int carry_files(const struct export *e)
{
    DIR *folder = e->folder == NULL ? NULL : opendir(e->folder);
    int status = 0;
    for (struct dirent *d; folder != NULL && status == 0 && (d = readdir(folder)) != NULL;) {
        struct stat info;
        char *from = must_print("%s/%s", e->folder, d->d_name);
        char *to = must_print("%s/%s", e->part, d->d_name);
        if (is_carried(d->d_name) && stat(from, &info) == 0 && S_ISREG(info.st_mode))
            status = copy_file(from, to);
        free(from);
        free(to);
    }
    if (folder != NULL)
        closedir(folder);
    return status;
}

int export_write_config(struct export *e)
{
    const struct piece *w = first_weight(e);
    if (e->config == NULL)
        e->config = cJSON_CreateObject();
    if (e->config_text != NULL) {
        const char *text = e->config_text;
        keep_points(e->config->child, &text);
    }
    cJSON_DeleteItemFromObjectCaseSensitive(e->config, "quantization_config");
    cJSON_DeleteItemFromObjectCaseSensitive(e->config, "compression_config");
    if (w != NULL) {
        cJSON *q = strncmp(e->target, "awq", 3) == 0    ? config_of_awq(e, w)
                   : strncmp(e->target, "gptq", 4) == 0 ? config_of_gptq(e, w)
                   : strncmp(e->target, "ct", 2) == 0   ? config_of_ct(e, w)
                                                        : config_of_bnb(e, w);
        if (strncmp(e->target, "gptq", 4) == 0) {
            const int failed = write_json(e, "quantize_config.json", q);
            if (failed != 0)
                return failed;
        }
        cJSON_AddItemToObject(e->config, "quantization_config", q);
    }
    int status = write_json(e, "config.json", e->config);
    if (status == 0 && e->n_shards > 1)
        status = write_index(e);
    return status == 0 ? carry_files(e) : status;
}
