/* SPDX-License-Identifier: Apache-2.0 */
/* quern inspect of models that another program has quantized: modules, formats, and for names that
 * match a pattern where each fact comes from. */
#define _GNU_SOURCE
#include "imports.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "inputs.h"
#include "source.h"
#include "term.h"

const struct option_row options_imports[] = {
    {"gptq-zeros", 0, "v1|v1-wrap|v2",
     "how GPTQ's zeros are stored, where the model leaves it open"},
    {NULL, 0, NULL, NULL},
};

/* What is read beside the files with tensors: the configuration, and the index of the shards. */
static void note_settings(const char *path)
{
    static const char *const names[] = {"config.json", "quantize_config.json", "quant_config.json",
                                        "hf_quant_config.json", "model.safetensors.index.json"};
    const char *const slash = strrchr(path, '/');
    const size_t length = strlen(path);
    const int is_index = length > 5 && strcmp(path + length - 5, ".json") == 0;
    const int folder = !is_index ? (int)length : slash != NULL ? (int)(slash - path) : 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char *name = must_print("%.*s%s%s", folder, path, folder > 0 ? "/" : "", names[i]);
        input_note(name);
        free(name);
    }
}

qn_status imports_try(const struct args *args, qn_ctx *ctx, const char *path, qn_checkpoint **model,
                      qn_error *err)
{
    const char *zeros = args_text(args, "gptq-zeros", NULL);
    const qn_file *file;
    qn_checkpoint_options options;
    qn_checkpoint_options_init(&options);
    if (zeros != NULL)
        options.gptq_zeros = strcmp(zeros, "v2") == 0   ? QN_GPTQ_ZEROS_V2
                             : strcmp(zeros, "v1") == 0 ? QN_GPTQ_ZEROS_V1
                                                        : QN_GPTQ_ZEROS_V1_WRAP;
    if (is_several_files(path))
        note_settings(path);
    const qn_status status = qn_checkpoint_open(ctx, path, &options, model, err);
    for (int64_t i = 0; status == QN_OK && (file = qn_checkpoint_file(*model, i)) != NULL; i++)
        input_note(qn_file_path(file));
    return status;
}

int imports_open(const struct args *args, qn_ctx *ctx, const char *path, qn_checkpoint **model)
{
    qn_error err = {0};
    const qn_status status = imports_try(args, ctx, path, model, &err);
    return status == QN_OK ? 0 : complain_status(path, status, &err);
}

int imports_complain(qn_status status, const qn_error *err)
{
    if (status != QN_E_FORMAT)
        return complain_status("convert", status, err);
    return complain(EXIT_INPUT,
                    strstr(err->text, "gptq_zeros") != NULL
                        ? "--gptq-zeros decides it, or leave it out with --exclude"
                        : "leave it out with --exclude",
                    "%s", err->text);
}

int imports_is_foreign(const qn_checkpoint *model)
{
    qn_module m;
    if (qn_file_get_kind(qn_checkpoint_file(model, 0)) == QN_FILE_GGUF)
        return 1;
    for (int64_t i = 0; i < qn_checkpoint_count(model); i++) {
        qn_module_init(&m);
        if (qn_checkpoint_module(model, i, &m, NULL) != QN_OK ||
            (m.importer[0] != '\0' && strcmp(m.importer, "quern") != 0))
            return 1;
    }
    return 0;
}

/* ------------------------------------------------------------------------------------- one line */

struct line {
    qn_module m;
    char format[96]; /* or "refused" */
    char *why;       /* a refusal's sentence, or NULL */
};

static void line_read(const qn_checkpoint *model, int64_t i, struct line *l)
{
    qn_error err = {0};
    *l = (struct line){.why = NULL};
    qn_module_init(&l->m);
    const qn_status status = qn_checkpoint_module(model, i, &l->m, &err);
    if (status != QN_OK) {
        strcpy(l->format, "refused");
        l->why = text_shown(must_copy(err.text));
    } else if (l->m.importer[0] != '\0') {
        qn_format_print(&l->m.format, l->format, sizeof l->format);
    } else {
        snprintf(l->format, sizeof l->format, "%s", l->m.dtype);
        text_shown(l->format);
    }
}

static double bits_of(const qn_module *m)
{
    const double n = (double)m->n * (double)m->k;
    return n > 0 ? 8.0 * (double)m->bytes / n : 0;
}

static const char *shape_of(const qn_checkpoint *model, const struct line *l, char text[SHAPE_TEXT])
{
    const qn_module *m = &l->m;
    qn_entry e;
    text[0] = '\0';
    if (m->importer[0] != '\0' && l->why == NULL) {
        if (m->experts > 1)
            snprintf(text, SHAPE_TEXT, "%lld x %lld x %lld", (long long)m->experts,
                     (long long)(m->n / m->experts), (long long)m->k);
        else
            snprintf(text, SHAPE_TEXT, "%lld x %lld", (long long)m->n, (long long)m->k);
    } else if (m->importer[0] == '\0' && qn_checkpoint_tensor(model, m->name, &e) == QN_OK) {
        shape_text(&e.tensor, text);
    }
    return text;
}

static int is_wanted(const struct args *args, const char *name)
{
    for (int i = 1; i < args->n_operands; i++)
        if (fnmatch(args->operands[i], name, 0) == 0)
            return 1;
    return args->n_operands < 2;
}

static char *provenance_of(const qn_checkpoint *model, int64_t i)
{
    const size_t bytes = qn_checkpoint_provenance(model, i, NULL, 0) + 1;
    char *text = must_alloc(bytes);
    qn_checkpoint_provenance(model, i, text, bytes);
    return text;
}

/* ---------------------------------------------------------------------------------------- lists */

struct totals {
    double bytes;
    int64_t weights, tensors, refused;
};

static void count(struct totals *t, const struct line *l)
{
    t->bytes += (double)l->m.bytes;
    t->refused += l->why != NULL;
    t->weights += l->why == NULL && l->m.importer[0] != '\0';
    t->tensors += l->m.importer[0] == '\0';
}

static void show_details(const qn_checkpoint *model, int64_t i, const struct line *l)
{
    char shape[SHAPE_TEXT], a[HUMAN], *name = text_shown(must_copy(l->m.name));
    char *text = provenance_of(model, i);
    printf("%s%s%s  %s  %s  %s", style_on(stdout, BOLD), name, style_off(stdout),
           shape_of(model, l, shape), l->format, human_bytes((double)l->m.bytes, a));
    if (l->why == NULL && l->m.importer[0] != '\0')
        printf(", %.2f bits a weight, read by %s%s%s", bits_of(&l->m), l->m.importer,
               l->m.has_perm ? ", columns permuted" : "", l->m.bias != NULL ? ", has a bias" : "");
    putchar('\n');
    for (char *at = text, *end; *at != '\0'; at = end) {
        end = strchr(at, '\n');
        end = end != NULL ? end : at + strlen(at);
        char *line = text_shown(must_print("%.*s", (int)(end - at), at));
        printf("  %s\n", line);
        free(line);
        end += *end == '\n';
    }
    free(text);
    free(name);
}

static void list_text(const struct args *args, const qn_checkpoint *model, struct totals *totals)
{
    static const struct column columns[] = {
        {"module", '<', 0, 1}, {"shape", '<', 0, 0},       {"format", '<', 0, 0},
        {"size", '>', 0, 0},   {"bits/weight", '>', 0, 0}, {NULL, 0, 0, 0},
    };
    struct table *t = table_create(columns);
    char shape[SHAPE_TEXT], a[HUMAN];
    const int is_detailed = args->n_operands > 1;
    for (int64_t i = 0; i < qn_checkpoint_count(model); i++) {
        struct line l;
        line_read(model, i, &l);
        if (is_wanted(args, l.m.name)) {
            count(totals, &l);
            if (is_detailed)
                show_details(model, i, &l);
            table_cell(t, PLAIN, "%s", l.m.name);
            table_cell(t, PLAIN, "%s", shape_of(model, &l, shape));
            table_cell(t, l.why != NULL ? RED : DIM, "%s", l.format);
            table_cell(t, PLAIN, "%s", human_bytes((double)l.m.bytes, a));
            if (bits_of(&l.m) > 0)
                table_cell(t, PLAIN, "%.2f", bits_of(&l.m));
            else
                table_cell(t, PLAIN, "%s", "");
        }
        qn_checkpoint_forget(model, i);
        free(l.why);
    }
    if (!is_detailed)
        table_print(t);
    table_destroy(t);
}

static void list_refusals(const qn_checkpoint *model)
{
    enum { MOST = 5 };
    int64_t shown = 0;
    for (int64_t i = 0; i < qn_checkpoint_count(model) && shown < MOST; i++) {
        struct line l;
        line_read(model, i, &l);
        if (l.why != NULL) {
            printf("%srefused%s by %s: %s\n", style_on(stdout, RED), style_off(stdout),
                   l.m.importer, l.why);
            shown++;
        }
        free(l.why);
    }
}

static cJSON *line_json(const qn_checkpoint *model, int64_t i, const struct line *l)
{
    static const char *const roles[] = {"tensor", "linear", "embedding", "experts", "conv"};
    static const char *const activations[] = {"none", "int8-row", "int8-static", "other"};
    cJSON *o = cJSON_CreateObject();
    char *text = provenance_of(model, i);
    cJSON_AddStringToObject(o, "name", l->m.name);
    cJSON_AddStringToObject(o, "dtype", l->m.dtype);
    cJSON_AddNumberToObject(o, "bytes", (double)l->m.bytes);
    if (l->m.importer[0] != '\0')
        cJSON_AddStringToObject(o, "importer", l->m.importer);
    if (l->why != NULL) {
        cJSON_AddStringToObject(o, "refused", l->why);
    } else if (l->m.importer[0] != '\0') {
        cJSON_AddStringToObject(o, "role", roles[l->m.role]);
        cJSON_AddStringToObject(o, "format", l->format);
        cJSON_AddNumberToObject(o, "n", (double)l->m.n);
        cJSON_AddNumberToObject(o, "k", (double)l->m.k);
        cJSON_AddNumberToObject(o, "experts", (double)l->m.experts);
        cJSON_AddNumberToObject(o, "bits_per_weight", bits_of(&l->m));
        cJSON_AddBoolToObject(o, "act_order", l->m.has_perm);
        cJSON_AddBoolToObject(o, "bias", l->m.bias != NULL);
        cJSON_AddStringToObject(o, "activation", activations[l->m.activation]);
    }
    cJSON *list = cJSON_AddArrayToObject(o, "provenance");
    for (char *save = NULL, *at = strtok_r(text, "\n", &save); at != NULL;
         at = strtok_r(NULL, "\n", &save))
        cJSON_AddItemToArray(list, cJSON_CreateString(at));
    free(text);
    return o;
}

static void print_json(const struct args *args, const qn_checkpoint *model, struct totals *totals)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "model", args->operands[0]);
    cJSON_AddStringToObject(o, "quantization", qn_checkpoint_quantization(model));
    cJSON *list = cJSON_AddArrayToObject(o, "modules");
    for (int64_t i = 0; i < qn_checkpoint_count(model); i++) {
        struct line l;
        line_read(model, i, &l);
        if (is_wanted(args, l.m.name)) {
            count(totals, &l);
            cJSON_AddItemToArray(list, line_json(model, i, &l));
        }
        qn_checkpoint_forget(model, i);
        free(l.why);
    }
    cJSON_AddNumberToObject(o, "weights", (double)totals->weights);
    cJSON_AddNumberToObject(o, "refused", (double)totals->refused);
    cJSON_AddNumberToObject(o, "bytes", totals->bytes);
    json_print(o, 0);
}

int imports_inspect(const struct args *args, const qn_checkpoint *model)
{
    struct totals totals = {0};
    char a[HUMAN];
    if (args_has(args, "stats"))
        return complain(EXIT_USAGE, "'quern convert' makes a file of it that has them",
                        "--stats: statistics are of quern files");
    if (args_has(args, "json")) {
        print_json(args, model, &totals);
    } else {
        list_text(args, model, &totals);
        if (args->n_operands < 2) {
            list_refusals(model);
            const char *method = qn_checkpoint_quantization(model);
            printf("%lld quantized weights, %lld plain tensors, %lld refused, %s%s%s\n",
                   (long long)totals.weights, (long long)totals.tensors, (long long)totals.refused,
                   human_bytes(totals.bytes, a), method[0] != '\0' ? "; quantized as " : "",
                   method);
        }
    }
    if (totals.weights + totals.tensors + totals.refused == 0 && args->n_operands > 1)
        return complain(EXIT_INPUT, "'quern inspect FILE' lists the names",
                        "%s: no module is called '%s'", args->operands[0], args->operands[1]);
    return 0;
}
