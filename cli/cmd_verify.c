/* SPDX-License-Identifier: Apache-2.0 */
/* quern verify: is a file what was written, and is everything in it usable? */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "imports.h"
#include "inputs.h"
#include "source.h"
#include "term.h"

static const struct option_row own[] = {
    {"json", 0, NULL, "one JSON object a file"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"before a model is deployed", "quern verify model-int4.safetensors"},
    {"a model of another program", "quern verify Qwen2.5-7B-AWQ/ && quern verify model.gguf"},
    {"for a script", "quern verify *.safetensors --json"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_verify = {
    .name = "verify",
    .summary = "check structure, values and checksums of files",
    .operands = "FILE|FOLDER...",
    .about =
        "Opens each file, which checks all of its structure; compares its header and the "
        "data of every tensor with their checksums, where the file has them; loads every quantized "
        "weight, which checks its values; unpacks packed weights and packs them again, which must "
        "give the same bytes.\n\n"
        "Files with quantized or packed weights that quern writes have checksums. Packed weights "
        "of another device or instruction set are checked as far as their head, checksum and "
        "metadata go.\n\n"
        "Of models that other programs wrote - GGUF, or files and folders of safetensors with "
        "GPTQ, AWQ and other weights - every module is loaded as 'quern convert' loads it, which "
        "checks shapes, ranges and what is known to go wrong with these formats.\n\n"
        "Exit status 0: all is well; 1: something is damaged; 3: a file could not be read at all.",
    .tables = {own, options_imports, options_context, options_common},
    .examples = examples,
    .min_operands = 1,
    .max_operands = -1,
    .run = run,
};

/* What was found in one file, or in the files of one model. */
struct report {
    const char *path;
    const qn_file *file;    /* the one that is looked at */
    qn_checkpoint *model;   /* NULL: a file that makes no model */
    qn_ctx *ctx;
    int is_json;
    int64_t n_files, n_tensors, n_modules, n_weights, n_packed, n_sums, n_bad;
    int32_t has_header_sum; /* every file's header */
    double bytes;
    cJSON *failures, *notes; /* of --json */
};

static void tell(struct report *r, int is_failure, const char *kind, const char *name,
                 const char *why)
{
    r->n_bad += is_failure;
    if (r->is_json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, kind, name);
        cJSON_AddStringToObject(o, "why", why);
        cJSON_AddItemToArray(is_failure ? r->failures : r->notes, o);
        return;
    }
    char *line = text_shown(must_print("%s: %s", r->path, why));
    printf("%s%s%s %s\n", style_on(stdout, is_failure ? RED : DIM),
           is_failure ? "damaged:" : "note:", style_off(stdout), line);
    free(line);
}

static void check_header(struct report *r)
{
    qn_error err = {0};
    int32_t has_sum = 0;
    if (qn_file_verify_header(r->file, &has_sum, &err) != QN_OK)
        tell(r, 1, "header", qn_file_path(r->file), err.text);
    r->has_header_sum = has_sum && (r->n_files == 0 || r->has_header_sum);
    r->n_tensors += qn_file_count(r->file);
    r->n_files++;
}

static void check_tensors(struct report *r)
{
    for (int64_t i = 0; i < qn_file_count(r->file); i++) {
        qn_entry e;
        qn_error err = {0};
        int32_t has_sum = 0;
        qn_file_entry(r->file, i, &e);
        r->bytes += (double)e.bytes;
        if (qn_file_verify(r->file, e.name, &has_sum, &err) != QN_OK)
            tell(r, 1, "tensor", e.name, err.text);
        r->n_sums += has_sum;
        qn_file_forget(r->file, &e);
    }
}

static void check_weights(struct report *r)
{
    for (int64_t i = 0; i < qn_file_weight_count(r->file); i++) {
        const char *name = qn_file_weight_name(r->file, i);
        qn_error err = {0};
        qn_weight *weight = NULL;
        r->n_weights++;
        if (qn_file_load_weight(r->ctx, r->file, name, &weight, &err) != QN_OK)
            tell(r, 1, "weight", name, err.text);
        qn_weight_destroy(weight);
    }
}

static void check_packed(struct report *r, const char *name)
{
    qn_error err = {0};
    qn_packed *packed = NULL;
    r->n_packed++;
    qn_status status = qn_packed_load(r->ctx, r->file, name, &packed, &err);
    if (status == QN_OK) {
        status = qn_packed_verify(r->ctx, packed, &err);
        if (status != QN_OK) {
            char *why = must_print("packed weights '%s': %s", name, err.text);
            tell(r, 1, "packed", name, why);
            free(why);
        }
    } else {
        tell(r, status != QN_E_LAYOUT, "packed", name, err.text);
    }
    qn_packed_destroy(packed);
}

/* Keys are looked at, and not tensors: what a key promises must be there. */
static void check_metadata(struct report *r)
{
    static const char packed[] = "quern.packed.", sum[] = "quern.xxh64.";
    const char *key, *value;
    for (int64_t i = 0; qn_file_metadata(r->file, i, &key, &value) == QN_OK; i++) {
        qn_entry e;
        if (strncmp(key, packed, strlen(packed)) == 0)
            check_packed(r, key + strlen(packed));
        if (strncmp(key, sum, strlen(sum)) == 0 &&
            qn_file_find(r->file, key + strlen(sum), &e) != QN_OK) {
            char *why = must_print("there is a checksum of tensor '%s', but no such tensor",
                                   key + strlen(sum));
            tell(r, 1, "tensor", key + strlen(sum), why);
            free(why);
        }
    }
}

static void check_file(struct report *r, const qn_file *file)
{
    r->file = file;
    check_header(r);
    check_tensors(r);
    check_weights(r);
    check_metadata(r);
}

/* What importers read: weights that the file itself does not know as such. */
static void check_modules(struct report *r)
{
    for (int64_t i = 0; i < qn_checkpoint_count(r->model); i++) {
        qn_error err = {0};
        qn_module m;
        qn_weight *weight = NULL;
        qn_module_init(&m);
        qn_status status = qn_checkpoint_module(r->model, i, &m, &err);
        const int is_foreign = m.importer != NULL && m.importer[0] != '\0' &&
                               strcmp(m.importer, "quern") != 0;
        if (status == QN_OK && !is_foreign)
            continue;
        r->n_modules++;
        if (status == QN_OK)
            status = qn_checkpoint_load(r->ctx, r->model, i, 0, -1, &weight, NULL, &err);
        if (status != QN_OK)
            tell(r, 1, "module", m.name != NULL ? m.name : "?", err.text);
        qn_weight_destroy(weight);
        qn_checkpoint_forget(r->model, i);
    }
}

static void print_report(const struct report *r)
{
    char a[HUMAN];
    if (r->is_json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "file", r->path);
        cJSON_AddBoolToObject(o, "good", r->n_bad == 0);
        cJSON_AddNumberToObject(o, "tensors", (double)r->n_tensors);
        cJSON_AddNumberToObject(o, "bytes", r->bytes);
        cJSON_AddNumberToObject(o, "checksums", (double)r->n_sums);
        cJSON_AddBoolToObject(o, "header_checksum", r->has_header_sum);
        cJSON_AddNumberToObject(o, "files", (double)r->n_files);
        cJSON_AddNumberToObject(o, "modules", (double)r->n_modules);
        cJSON_AddNumberToObject(o, "weights", (double)r->n_weights);
        cJSON_AddNumberToObject(o, "packed", (double)r->n_packed);
        cJSON_AddItemToObject(o, "damaged", r->failures);
        cJSON_AddItemToObject(o, "notes", r->notes);
        json_print(o, 1);
        return;
    }
    char *path = text_shown(must_copy(r->path));
    printf("%s%s%s %s: %lld tensors (%s), %lld of them%s with checksums",
           style_on(stdout, r->n_bad == 0 ? GREEN : RED),
           r->n_bad == 0 ? "good:" : "damaged:", style_off(stdout), path,
           (long long)r->n_tensors, human_bytes(r->bytes, a), (long long)r->n_sums,
           r->has_header_sum ? " and the header" : "");
    if (r->n_files > 1)
        printf(", %lld files", (long long)r->n_files);
    if (r->n_modules > 0)
        printf(", %lld weights of other programs", (long long)r->n_modules);
    if (r->n_weights > 0)
        printf(", %lld quantized weights", (long long)r->n_weights);
    if (r->n_packed > 0)
        printf(", %lld packed weights", (long long)r->n_packed);
    if (r->n_bad > 0)
        printf("; %lld failures", (long long)r->n_bad);
    putchar('\n');
    free(path);
}

/* As a model where it is one, so that a file is opened once; else as a file. */
static int open_one(const struct args *args, struct report *r, qn_file **alone)
{
    qn_error err = {0};
    const qn_status status = imports_try(args, r->ctx, r->path, &r->model, &err);
    if (status == QN_OK)
        return 0;
    r->model = NULL;
    if (path_is_folder(r->path))
        return complain_status(r->path, status, &err);
    const qn_status opened = input_open(r->ctx, r->path, alone, &err);
    return opened == QN_OK ? 0 : complain_status(r->path, opened, &err);
}

static int verify_one(const struct args *args, qn_ctx *ctx, const char *path)
{
    struct report r = {.path = path, .ctx = ctx, .is_json = args_has(args, "json")};
    qn_file *alone = NULL;
    const qn_file *file;
    const int failed = open_one(args, &r, &alone);
    if (failed != 0)
        return failed;
    if (r.is_json) {
        r.failures = cJSON_CreateArray();
        r.notes = cJSON_CreateArray();
    }
    if (alone != NULL)
        check_file(&r, alone);
    for (int64_t i = 0; r.model != NULL && (file = qn_checkpoint_file(r.model, i)) != NULL; i++)
        check_file(&r, file);
    if (r.model != NULL)
        check_modules(&r);
    const int changed = inputs_check();
    if (changed == 0) {
        print_report(&r);
    } else {
        cJSON_Delete(r.failures);
        cJSON_Delete(r.notes);
    }
    qn_checkpoint_close(r.model);
    qn_file_close(alone);
    if (changed != 0)
        return changed;
    return r.n_bad == 0 ? EXIT_GOOD : EXIT_DIFFERS;
}

/* The worst of all files: one that cannot be read counts more than one that is damaged. */
static int run(const struct args *args)
{
    qn_ctx *ctx = NULL;
    int status = context_make(args, &ctx);
    for (int i = 0; ctx != NULL && i < args->n_operands; i++) {
        const int one = verify_one(args, ctx, args->operands[i]);
        status = one > status ? one : status;
    }
    qn_ctx_destroy(ctx);
    return status;
}
