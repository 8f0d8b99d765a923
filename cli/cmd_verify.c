/* SPDX-License-Identifier: Apache-2.0 */
/* quern verify: is a file what was written, and is everything in it usable? */
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "inputs.h"
#include "source.h"
#include "term.h"

static const struct option_row own[] = {
    {"json", 0, NULL, "one JSON object a file"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"before a model is deployed", "quern verify model-int4.safetensors"},
    {"for a script", "quern verify *.safetensors --json"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_verify = {
    .name = "verify",
    .summary = "check structure, values and checksums of files",
    .operands = "FILE...",
    .about =
        "Opens each file, which checks all of its structure; compares its header and the "
        "data of every tensor with their checksums, where the file has them; loads every quantized "
        "weight, which checks its values; unpacks packed weights and packs them again, which must "
        "give the same bytes.\n\n"
        "Files with quantized or packed weights that quern writes have checksums. Packed weights "
        "of another device or instruction set are checked as far as their head, checksum and "
        "metadata go.\n\nExit status 0: all is well; 1: something is damaged; 3: a file "
        "could not be read at all.",
    .tables = {own, options_context, options_common},
    .examples = examples,
    .min_operands = 1,
    .max_operands = -1,
    .run = run,
};

/* What was found in one file. */
struct report {
    const char *path;
    qn_file *file;
    qn_ctx *ctx;
    int is_json;
    int64_t n_weights, n_packed, n_sums, n_bad;
    int32_t has_header_sum;
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
    if (qn_file_verify_header(r->file, &r->has_header_sum, &err) != QN_OK)
        tell(r, 1, "header", r->path, err.text);
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

static void print_report(const struct report *r)
{
    char a[HUMAN];
    if (r->is_json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "file", r->path);
        cJSON_AddBoolToObject(o, "good", r->n_bad == 0);
        cJSON_AddNumberToObject(o, "tensors", (double)qn_file_count(r->file));
        cJSON_AddNumberToObject(o, "bytes", r->bytes);
        cJSON_AddNumberToObject(o, "checksums", (double)r->n_sums);
        cJSON_AddBoolToObject(o, "header_checksum", r->has_header_sum);
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
           (long long)qn_file_count(r->file), human_bytes(r->bytes, a), (long long)r->n_sums,
           r->has_header_sum ? " and the header" : "");
    if (r->n_weights > 0)
        printf(", %lld quantized weights", (long long)r->n_weights);
    if (r->n_packed > 0)
        printf(", %lld packed weights", (long long)r->n_packed);
    if (r->n_bad > 0)
        printf("; %lld failures", (long long)r->n_bad);
    putchar('\n');
    free(path);
}

static int verify_one(qn_ctx *ctx, const char *path, int is_json)
{
    qn_error err = {0};
    struct report r = {.path = path, .ctx = ctx, .is_json = is_json};
    const qn_status status = input_open(ctx, path, &r.file, &err);
    if (status != QN_OK)
        return complain_status(path, status, &err);
    if (is_json) {
        r.failures = cJSON_CreateArray();
        r.notes = cJSON_CreateArray();
    }
    check_header(&r);
    check_tensors(&r);
    check_weights(&r);
    check_metadata(&r);
    const int changed = inputs_check();
    if (changed == 0)
        print_report(&r);
    qn_file_close(r.file);
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
        const int one = verify_one(ctx, args->operands[i], args_has(args, "json"));
        status = one > status ? one : status;
    }
    qn_ctx_destroy(ctx);
    return status;
}
