/* SPDX-License-Identifier: Apache-2.0 */
/* quern inspect of a folder or an index: the shards of a model together, by file and by type, and
 * the tensors that patterns pick. */
#define _GNU_SOURCE
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "folder.h"
#include "quantize.h"
#include "term.h"

enum { MAX_TYPES = 64 };
struct type {
    const char *name; /* of quantized weights, whose tensors count as one, the format */
    int64_t tensors;
    double bytes, elements;
};
struct summary {
    struct type types[MAX_TYPES];
    int n_types;
    double bytes, elements;
    int64_t weights;
    const char *scheme; /* of another program */
};

static double elements_of(const qn_tensor *t)
{
    double elements = t->dtype == QN_DTYPE_NONE && t->rank == 0 ? 0 : 1;
    for (int32_t i = 0; i < t->rank; i++)
        elements *= (double)t->shape[i];
    return elements;
}

static void count(struct summary *s, const char *name, double bytes, double elements)
{
    int at = 0;
    while (at < s->n_types && strcmp(s->types[at].name, name) != 0)
        at++;
    if (at == MAX_TYPES)
        at--; /* the remainder counts as the last */
    if (at == s->n_types)
        s->types[s->n_types++] = (struct type){.name = name};
    s->types[at].tensors++;
    s->types[at].bytes += bytes;
    s->types[at].elements += elements;
    s->bytes += bytes;
    s->elements += elements;
}

/* Quantized weights count under their format, their tensors not once more. */
static int count_weights(struct summary *s, const struct source *source, char **formats)
{
    for (int f = 0; f < source->n_files; f++) {
        const qn_file *file = source->files[f];
        for (int64_t i = 0; i < qn_file_weight_count(file); i++) {
            qn_weight_parts parts;
            size_t bytes;
            char text[48];
            qn_error err = {0};
            qn_weight_parts_init(&parts);
            const qn_status status =
                qn_file_weight_info(file, qn_file_weight_name(file, i), &parts, &bytes, &err);
            if (status != QN_OK)
                return complain_status(source->paths[f], status, &err);
            qn_format_print(&parts.format, text, sizeof text);
            int at = 0;
            while (at < MAX_TYPES && formats[at] != NULL && strcmp(formats[at], text) != 0)
                at++;
            at = at < MAX_TYPES ? at : MAX_TYPES - 1;
            if (formats[at] == NULL)
                formats[at] = must_copy(text);
            count(s, formats[at], (double)bytes, (double)parts.n * (double)parts.k);
            s->weights++;
        }
    }
    return 0;
}

static int summarize(struct summary *s, const struct source *source, char **formats)
{
    const int status = count_weights(s, source, formats);
    for (int64_t i = 0; i < source->n_tensors && status == 0; i++) {
        const struct source_tensor *t = &source->tensors[i];
        if (is_part_of_weight(t->file, t->name))
            continue;
        count(s, t->entry.dtype, (double)t->entry.bytes, elements_of(&t->entry.tensor));
        if (s->scheme == NULL)
            s->scheme = foreign_scheme(source, t->name);
    }
    return status;
}

static int is_picked(const struct args *args, const char *name)
{
    for (int i = 1; i < args->n_operands; i++)
        if (fnmatch(args->operands[i], name, 0) == 0)
            return 1;
    return 0;
}

static int file_index(const struct source *source, const qn_file *file)
{
    int f = 0;
    while (f < source->n_files - 1 && source->files[f] != file)
        f++;
    return f;
}

static void file_totals(const struct source *source, int f, int64_t *tensors, double *bytes)
{
    *tensors = qn_file_count(source->files[f]);
    *bytes = 0;
    for (int64_t i = 0; i < *tensors; i++) {
        qn_entry e;
        if (qn_file_entry(source->files[f], i, &e) == QN_OK)
            *bytes += (double)e.bytes;
    }
}

static const char *base_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

static void print_picked(const struct source *source, const struct args *args)
{
    static const struct column columns[] = {
        {"tensor", '<', 0, 1}, {"shape", '<', 0, 0}, {"type", '<', 0, 0},
        {"size", '>', 0, 0},   {"file", '<', 0, 0},  {NULL, 0, 0, 0},
    };
    struct table *t = table_create(columns);
    char shape[SHAPE_TEXT], a[HUMAN];
    for (int64_t i = 0; i < source->n_tensors; i++) {
        const struct source_tensor *tensor = &source->tensors[i];
        if (!is_picked(args, tensor->name))
            continue;
        table_cell(t, PLAIN, "%s", tensor->name);
        table_cell(t, PLAIN, "%s", shape_text(&tensor->entry.tensor, shape));
        table_cell(t, DIM, "%s", tensor->entry.dtype);
        table_cell(t, PLAIN, "%s", human_bytes((double)tensor->entry.bytes, a));
        table_cell(t, PLAIN, "%s", base_name(source->paths[file_index(source, tensor->file)]));
    }
    table_print(t);
    table_destroy(t);
}

static void print_summary(const struct source *source, const struct summary *s)
{
    static const struct column files[] = {
        {"file", '<', 0, 1}, {"tensors", '>', 0, 0}, {"size", '>', 0, 0}, {NULL, 0, 0, 0}};
    static const struct column types[] = {{"type", '<', 0, 0},
                                          {"tensors", '>', 0, 0},
                                          {"size", '>', 0, 0},
                                          {"elements", '>', 0, 0},
                                          {NULL, 0, 0, 0}};
    struct table *t = table_create(files);
    char a[HUMAN];
    for (int f = 0; f < source->n_files; f++) {
        int64_t tensors;
        double bytes;
        file_totals(source, f, &tensors, &bytes);
        table_cell(t, PLAIN, "%s", base_name(source->paths[f]));
        table_cell(t, PLAIN, "%lld", (long long)tensors);
        table_cell(t, PLAIN, "%s", human_bytes(bytes, a));
    }
    table_print(t);
    table_destroy(t);
    putchar('\n');
    t = table_create(types);
    for (int i = 0; i < s->n_types; i++) {
        table_cell(t, PLAIN, "%s", s->types[i].name);
        table_cell(t, PLAIN, "%lld", (long long)s->types[i].tensors);
        table_cell(t, PLAIN, "%s", human_bytes(s->types[i].bytes, a));
        table_cell(t, PLAIN, "%.0f", s->types[i].elements);
    }
    table_print(t);
    table_destroy(t);
    printf("\n%d file%s, %lld tensors, %lld quantized weights, %.0f elements, %s\n",
           source->n_files, source->n_files == 1 ? "" : "s", (long long)source->n_tensors,
           (long long)s->weights, s->elements, human_bytes(s->bytes, a));
    if (s->scheme != NULL)
        printf("weights in it were quantized by another program: %s\n", s->scheme);
}

static void print_json(const char *path, const struct source *source, const struct summary *s,
                       const struct args *args)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "folder", path);
    cJSON *files = cJSON_AddArrayToObject(o, "files");
    for (int f = 0; f < source->n_files; f++) {
        int64_t tensors;
        double bytes;
        cJSON *one = cJSON_CreateObject();
        file_totals(source, f, &tensors, &bytes);
        cJSON_AddStringToObject(one, "file", base_name(source->paths[f]));
        cJSON_AddNumberToObject(one, "tensors", (double)tensors);
        cJSON_AddNumberToObject(one, "bytes", bytes);
        cJSON_AddItemToArray(files, one);
    }
    cJSON *types = cJSON_AddArrayToObject(o, "types");
    for (int i = 0; i < s->n_types; i++) {
        cJSON *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "type", s->types[i].name);
        cJSON_AddNumberToObject(one, "tensors", (double)s->types[i].tensors);
        cJSON_AddNumberToObject(one, "bytes", s->types[i].bytes);
        cJSON_AddNumberToObject(one, "elements", s->types[i].elements);
        cJSON_AddItemToArray(types, one);
    }
    cJSON_AddNumberToObject(o, "weights", (double)s->weights);
    cJSON_AddNumberToObject(o, "bytes", s->bytes);
    cJSON_AddNumberToObject(o, "elements", s->elements);
    if (s->scheme != NULL)
        cJSON_AddStringToObject(o, "quantized_by", s->scheme);
    cJSON *list = cJSON_AddArrayToObject(o, "tensors");
    for (int64_t i = 0; i < source->n_tensors; i++) {
        const struct source_tensor *t = &source->tensors[i];
        if (args->n_operands > 1 && !is_picked(args, t->name))
            continue;
        cJSON *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "name", t->name);
        cJSON *shape = cJSON_AddArrayToObject(one, "shape");
        for (int32_t d = 0; d < t->entry.tensor.rank; d++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t->entry.tensor.shape[d]));
        cJSON_AddStringToObject(one, "dtype", t->entry.dtype);
        cJSON_AddNumberToObject(one, "bytes", (double)t->entry.bytes);
        cJSON_AddStringToObject(one, "file", base_name(source->paths[file_index(source, t->file)]));
        cJSON_AddItemToArray(list, one);
    }
    json_print(o, 0);
}

static int check_picked(const struct source *source, const struct args *args)
{
    int64_t n = 0;
    for (int64_t i = 0; i < source->n_tensors; i++)
        n += is_picked(args, source->tensors[i].name);
    return args->n_operands < 2 || n > 0
               ? 0
               : complain(EXIT_INPUT, "'quern inspect FOLDER --json' lists the names",
                          "%s: no tensor is called '%s'", args->operands[0], args->operands[1]);
}

int folder_inspect(const struct args *args, qn_ctx *ctx)
{
    struct source source;
    struct summary summary = {.n_types = 0};
    char *formats[MAX_TYPES] = {NULL};
    int status = args_has(args, "stats")
                     ? complain(EXIT_USAGE, "give one of its files", "--stats: of a folder, no")
                     : 0;
    if (status != 0)
        return status;
    status = source_open(&source, ctx, args->operands, 1);
    if (status == 0)
        status = summarize(&summary, &source, formats);
    if (status == 0)
        status = check_picked(&source, args);
    if (status == 0 && args_has(args, "json"))
        print_json(args->operands[0], &source, &summary, args);
    else if (status == 0 && args->n_operands > 1)
        print_picked(&source, args);
    else if (status == 0)
        print_summary(&source, &summary);
    for (int i = 0; i < MAX_TYPES; i++)
        free(formats[i]);
    source_close(&source);
    return status;
}
