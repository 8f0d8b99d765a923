/* SPDX-License-Identifier: Apache-2.0 */
/* quern quantize: one tensor at a time from the mapped input through the quantizer to the output's
 * part file, so memory holds about one tensor whatever the size of the model. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "export.h"
#include "output.h"
#include "quantize.h"
#include "term.h"

static const struct option_row own[] = {
    {"out", 'o', "FILE", "the file to write; with --to, the folder"},
    {"to", 0, "FORMAT",
     "write another program's format: awq, gptq, gptq_v2, gptq_p, ct, bnb, gguf, gguf:q4_k, onnx "
     "(of an ONNX model: within its graph), ... (default: quern)"},
    {"bits", 'b', "N", "bits of a code, 2 to 8 (default 4)"},
    {"group", 'g', "N", "weights that share a scale (default 128); pc: a channel, pt: the tensor"},
    {"scheme", 0, "sym|zp|off", "symmetric (default), integer zero point, or float offset"},
    {"format", 'f', "SPEC",
     "a whole format instead of the three: int4:g64:off, nf4:g64, q4_k, ..."},
    {"method", 0, "rtn|search|gptq",
     "round to nearest (default), search for the scale of least error, or error feedback; AWQ and "
     "SmoothQuant are --prescale"},
    {"range", 0, "narrow|half|full", "symmetric scale from the largest weight: /7, /7.5 or /-8"},
    {"include", 'i', "GLOB", "quantize only tensors of such names; may be given several times"},
    {"exclude", 'e', "GLOB", "copy tensors of such names as they are; likewise"},
    {"all", 'a', NULL, "quantize embeddings, position tables, routers, norms, tiny matrices, too"},
    {"copy-unknown", 0, NULL, "copy what another program has quantized, as it is"},
    {"axes", 0, "GLOB=ORDER",
     "what the dimensions mean: oi (default), io, oihw (default), iohw, hwio, oiw, iow, eoi, eio"},
    {"conv-groups", 0, "GLOB=N",
     "groups of convolutions (default 1; one channel a group: depthwise)"},
    {"calibration", 'c', "FILE",
     "activations by tensor name, for --method gptq and search, --prescale awq and smooth"},
    {"prescale", 0, "none|awq|smooth",
     "scale input channels before quantizing, by AWQ or SmoothQuant; with any --method"},
    {"alpha", 0, "X", "SmoothQuant's exponent (default 0.5)"},
    {"plain-scales", 0, NULL,
     "gptq: the scales of round to nearest, which a search within GPTQ would better (faster)"},
    {"act-order", 0, NULL, "gptq: columns in the order of their importance"},
    {"damping", 0, "X", "gptq: part of the mean diagonal that is added (default 0.01)"},
    {"dry-run", 'n', NULL, "show what would happen to each tensor, write nothing"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"4-bit weights in groups of 128",
     "quern quantize model.safetensors -o model-int4.safetensors"},
    {"a folder for vLLM and transformers, another for llama.cpp",
     "quern quantize llama/ -o llama-awq --to awq && quern quantize llama/ -o llama.gguf --to "
     "gguf:q4_k"},
    {"an ONNX model within its graph", "quern quantize model.onnx -o model-int4.onnx --to onnx"},
    {"see first what would happen", "quern quantize llama/ --format int4:g64:zp -e '*embed*' -e "
                                    "'*lm_head*' --dry-run"},
    {"experts in one tensor, and GPT-2's order of axes",
     "quern quantize moe.safetensors -o out.safetensors --axes '*.experts.down_proj=eio' "
     "--axes '*.c_proj.weight=io'"},
    {"every matrix, even embeddings", "quern quantize model.safetensors -o out.safetensors --all"},
    {"go on after an interruption",
     "quern quantize model.safetensors -o model-int4.safetensors --resume"},
    {"GPTQ with activations of your own", "quern quantize model.safetensors -o out.safetensors "
                                          "--method gptq -c activations.safetensors"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_quantize = {
    .name = "quantize",
    .summary = "quantize the weights of safetensors, npy or ONNX files",
    .operands = "FILE|FOLDER...",
    .about =
        "Reads safetensors, npy, ONNX, or a folder with a sharded model, quantizes its 2-d weights "
        "and "
        "its 4-d convolution weights, copies everything else as it is, and writes a "
        "safetensors file with the codes and scales (docs/formats.md describes it).\n\n"
        "Without --all, embeddings, position tables, routers, norms and tiny matrices are copied, "
        "too, and with --to awq, gptq, ct or bnb the head lm_head, unless --include gives the name "
        "in full. What GPTQ, AWQ, bitsandbytes or others have "
        "quantized is refused.\n\n"
        "Weights are taken as [out, in], convolutions as [out, in, h, w], unless the bias beside "
        "them tells otherwise. --axes says what the dimensions are, a letter each: io of GPT-2's "
        "Conv1D, iohw of torch's ConvTranspose2d, hwio of Keras and JAX, oiw of Conv1d, eoi or eio "
        "of experts in one tensor (they become NAME.0, NAME.1, ...).\n\n"
        "The output appears under its name only when it is complete. Ctrl-C keeps FILE.part, and "
        "--resume continues there. Memory holds about one tensor at a time.\n\n"
        "With --to, the weights are quantized to FILE.quantized first and then written as 'quern "
        "convert' does, with quantization_config, index and the other files of the folder; the "
        "result holds exactly what was quantized.",
    .tables = {own, options_output, options_context, options_common},
    .examples = examples,
    .min_operands = 1,
    .max_operands = -1,
    .run = run,
};

#define MADE_FOR "quern.made_for"

struct job {
    qn_ctx *ctx;
    struct source source, activations;
    struct recipe recipe;
    struct items items;
    qn_writer *writer;
    struct progress progress;
    const char *out;
    double tensor_bytes, tensor_begin; /* of the one being quantized */
    double quantizing, writing;        /* seconds */
    int is_quiet, is_json, is_resumed, skipped;
    const char *made_for; /* --to: what the file is made of; it is not the result */
};

/* ---------------------------------------------------------------------------------- one tensor */

static bool on_progress(void *arg, int64_t done, int64_t total)
{
    struct job *job = arg;
    const double part = total > 0 ? (double)done / (double)total : 1;
    progress_set(&job->progress, job->tensor_begin + job->tensor_bytes * part);
    return !is_stopped();
}

/* The weight as rows of k: a view of the file where possible; otherwise a copy. *owned is to be
 * freed. */
static int dense_of(const struct item *item, qn_tensor *dense, void **owned)
{
    const qn_entry *e = &item->tensor->entry;
    const int is_in_order =
        strcmp(item->axes.text, "oi") == 0 || strcmp(item->axes.text, "eoi") == 0;
    const size_t bytes = (size_t)item->n * (size_t)item->k * qn_dtype_bytes(e->tensor.dtype);
    *owned = NULL;
    *dense = qn_tensor_2d(NULL, e->tensor.dtype, item->n, item->k);
    if (is_in_order && entry_is_plain(e)) {
        dense->data = (uint8_t *)e->tensor.data + (size_t)item->expert * bytes;
        return 0;
    }
    if (!memory_is_there(bytes))
        return complain(EXIT_LIBRARY, "free some memory", "%s: no memory for a copy of it",
                        item->name);
    *owned = dense->data = must_alloc(bytes);
    axes_gather(&item->axes, &e->tensor, item->expert, item->groups, dense);
    return 0;
}

static int quantize_one(struct job *job, const struct item *item)
{
    struct recipe fitted = job->recipe;
    fitted.format = item->format;
    const struct recipe *r = &fitted;
    qn_quantize_options options;
    qn_quantize_options_init(&options);
    options.format = r->format;
    options.method = r->method;
    options.range = r->range;
    options.kh = item->kh;
    options.kw = item->kw;
    options.conv_groups = item->groups;
    options.act_order = r->act_order;
    options.search_scales = !r->plain_scales;
    options.damping = r->damping;
    options.progress = on_progress;
    options.progress_arg = job;

    struct calibration c;
    qn_tensor dense;
    void *owned = NULL;
    qn_weight *weight = NULL;
    qn_error err = {0};
    int failed = dense_of(item, &dense, &owned);
    if (failed == 0)
        failed = calibration_make(&c, job->ctx, &job->activations, item, r, &dense);
    if (failed != 0) {
        free(owned);
        return failed;
    }
    if (c.samples.data != NULL) {
        options.samples = r->method == QN_METHOD_GPTQ ? &c.samples : NULL;
        options.importance = r->method == QN_METHOD_SEARCH ? c.importance : NULL;
        options.prescale = c.prescale;
    }
    const double begin = seconds_now();
    qn_status status = qn_quantize(job->ctx, &dense, &options, &weight, &err);
    const double end = seconds_now();
    job->quantizing += end - begin;
    free(owned);
    calibration_free(&c);
    qn_file_forget(item->tensor->file, &item->tensor->entry);
    if (status == QN_OK)
        status = qn_writer_put_weight(job->writer, item->index, weight, &err);
    job->writing += seconds_now() - end;
    qn_weight_destroy(weight);
    if (status == QN_E_CANCELLED)
        return EXIT_STOPPED;
    return status == QN_OK ? 0 : complain_status(item->name, status, &err);
}

static int copy_one(struct job *job, const struct item *item)
{
    const qn_entry *e = &item->tensor->entry;
    qn_error err = {0};
    qn_tensor copy = e->tensor;
    void *owned = NULL;
    if (!entry_is_plain(e)) {
        const int failed = entry_load(item->name, e, e->tensor.dtype, &copy);
        if (failed != 0)
            return failed;
        owned = copy.data;
    }
    const double begin = seconds_now();
    const qn_status status = qn_writer_put(job->writer, item->index, &copy, &err);
    job->writing += seconds_now() - begin;
    free(owned);
    qn_file_forget(item->tensor->file, e);
    return status == QN_OK ? 0 : complain_status(item->name, status, &err);
}

static void tell(struct job *job, int64_t i)
{
    const struct item *item = &job->items.at[i];
    char shape[SHAPE_TEXT], a[HUMAN], format[FORMAT_TEXT];
    qn_format_print(&item->format, format, sizeof format);
    if (term_is_tty(stderr))
        return; /* the bar is enough */
    progress_line(&job->progress, "[%lld/%lld] %s %s %s -> %s%s, %s/s", (long long)i + 1,
                  (long long)job->items.n, item->name,
                  shape_text(&item->tensor->entry.tensor, shape), item->tensor->entry.dtype,
                  item->is_quantized ? "" : "copied: ", item->is_quantized ? format : item->reason,
                  human_bytes(progress_rate(&job->progress), a));
}

/* ----------------------------------------------------------------------------------- the whole */

/* What the model's file says about itself stays true of the copy; of shards, the first's. Weights
 * that are quantized already stay weights. */
static qn_status copy_metadata(const struct job *job, int f, qn_error *err)
{
    const char *key, *value;
    qn_status status = QN_OK;
    for (int64_t i = 0;
         status == QN_OK && qn_file_metadata(job->source.files[f], i, &key, &value) == QN_OK; i++) {
        const int is_weight = strncmp(key, "quern.weight.", 13) == 0 ||
                              strncmp(key, ORIGIN_KEY, strlen(ORIGIN_KEY)) == 0;
        if (is_weight || (f == 0 && strncmp(key, "quern.", 6) != 0))
            status = qn_writer_metadata(job->writer, key, value, err);
    }
    return status;
}

/* Other orders of axes are kept, for who compares the weight with its original. */
static qn_status note_origin(const struct job *job, const struct item *item, qn_error *err)
{
    if (strcmp(item->axes.text, "oi") == 0 || strcmp(item->axes.text, "oihw") == 0)
        return QN_OK;
    char *key = must_print(ORIGIN_KEY "%s", item->name);
    char *value = must_print("%s %lld %d %s", item->axes.text, (long long)item->expert,
                             item->groups, item->tensor->name);
    const qn_status status = qn_writer_metadata(job->writer, key, value, err);
    free(key);
    free(value);
    return status;
}

static int declare(struct job *job)
{
    qn_error err = {0};
    qn_status status = qn_writer_create(job->ctx, job->out, &job->writer, &err);
    for (int64_t i = 0; i < job->items.n && status == QN_OK; i++) {
        struct item *item = &job->items.at[i];
        const qn_tensor *t = &item->tensor->entry.tensor;
        if (item->is_quantized) {
            qn_weight_parts parts;
            item_parts(item, &job->recipe, &parts);
            status = qn_writer_add_weight(job->writer, item->name, &parts, &item->index, &err);
            status = status == QN_OK ? note_origin(job, item, &err) : status;
        } else {
            status = qn_writer_add(job->writer, item->name, t->dtype, t->rank, t->shape,
                                   &item->index, &err);
        }
    }
    for (int f = 0; f < job->source.n_files && status == QN_OK; f++)
        status = copy_metadata(job, f, &err);
    static const char *const methods[] = {"rtn", "search", "gptq"};
    if (status == QN_OK)
        status = qn_writer_metadata(job->writer, "quern.method", methods[job->recipe.method], &err);
    if (status == QN_OK && job->made_for != NULL)
        status = qn_writer_metadata(job->writer, MADE_FOR, job->made_for, &err);
    return status == QN_OK ? 0 : complain_output(job->out, status, &err);
}

static int write_all(struct job *job)
{
    int status = 0;
    double done = 0, already = 0;
    for (int64_t i = 0; i < job->items.n; i++) {
        if (qn_writer_is_done(job->writer, job->items.at[i].index)) {
            already += job->items.at[i].bytes_in;
            job->skipped++;
        }
    }
    if (job->is_resumed && !job->is_quiet)
        fprintf(stderr, "quern: %d of %lld tensors are there already\n", job->skipped,
                (long long)job->items.n);
    progress_begin(&job->progress, job->items.bytes_in, already, job->is_quiet);
    done = already;
    for (int64_t i = 0; i < job->items.n && status == 0; i++) {
        const struct item *item = &job->items.at[i];
        if (qn_writer_is_done(job->writer, item->index))
            continue;
        progress_what(&job->progress, item->name);
        job->tensor_begin = done;
        job->tensor_bytes = item->bytes_in;
        progress_set(&job->progress, done);
        status = is_stopped()         ? EXIT_STOPPED
                 : item->is_quantized ? quantize_one(job, item)
                                      : copy_one(job, item);
        done += job->tensor_bytes;
        job->progress.done = done;
        if (status == 0)
            tell(job, i);
    }
    progress_end(&job->progress);
    return status;
}

static double size_of_file(const char *path)
{
    FILE *file = fopen(path, "r");
    long bytes = 0;
    if (file != NULL && fseek(file, 0, SEEK_END) == 0)
        bytes = ftell(file);
    if (file != NULL)
        fclose(file);
    return (double)bytes;
}

static void report(const struct job *job, double took)
{
    char a[HUMAN], b[HUMAN], c[HUMAN], d[HUMAN];
    const double bytes_out = size_of_file(job->out);
    const struct items *items = &job->items;
    if (job->is_json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "out", job->out);
        cJSON_AddStringToObject(o, "format", job->recipe.format_text);
        cJSON_AddNumberToObject(o, "tensors", (double)items->n);
        cJSON_AddNumberToObject(o, "quantized", (double)items->n_quantized);
        cJSON_AddNumberToObject(o, "skipped", (double)items->n_skipped);
        cJSON_AddNumberToObject(o, "resumed", job->skipped);
        cJSON_AddNumberToObject(o, "bytes_before", items->bytes_in);
        cJSON_AddNumberToObject(o, "bytes_after", bytes_out);
        cJSON_AddNumberToObject(o, "seconds", took);
        cJSON_AddNumberToObject(o, "seconds_quantizing", job->quantizing);
        cJSON_AddNumberToObject(o, "seconds_writing", job->writing);
        cJSON_AddStringToObject(o, "version", qn_version());
        cJSON_AddStringToObject(o, "commit", qn_commit());
        cJSON_AddItemToObject(o, "plan", items_json(items));
        json_print(o, 0);
        return;
    }
    if (job->is_quiet)
        return;
    printf("%s: %lld tensors quantized to %s, %lld copied; %s -> %s in %s (%s/s)\n", job->out,
           (long long)items->n_quantized, job->recipe.format_text,
           (long long)(items->n - items->n_quantized), human_bytes(items->bytes_in, a),
           human_bytes(bytes_out, b), human_time(took, c),
           human_bytes(progress_rate(&job->progress), d));
    items_notes(items);
}

static int write_file(struct job *job, const struct args *args)
{
    job->is_resumed = args_has(args, "resume");
    const double begin = seconds_now();
    int status = declare(job);
    status = output_begin(args, job->writer, status);
    if (status != 0)
        return status;
    status = write_all(job);
    const double last = seconds_now();
    status = output_end(args, job->writer, job->items.n, status);
    job->writing += seconds_now() - last;
    if (status == 0 && job->made_for == NULL)
        report(job, seconds_now() - begin);
    return status;
}

static int show_plan(const struct job *job)
{
    if (job->is_json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "format", job->recipe.format_text);
        cJSON_AddNumberToObject(o, "bytes_before", job->items.bytes_in);
        cJSON_AddNumberToObject(o, "bytes_after", (double)(int64_t)job->items.bytes_out);
        cJSON_AddItemToObject(o, "tensors", items_json(&job->items));
        json_print(o, 0);
    } else {
        items_print(&job->items, &job->recipe);
    }
    return EXIT_GOOD;
}

static int prepare(struct job *job, const struct args *args)
{
    char *calibration = (char *)(uintptr_t)args_text(args, "calibration", NULL);
    int status = recipe_from_args(args, &job->recipe);
    status = status != 0 ? status : output_check(args);
    status = status != 0 ? status : context_make(args, &job->ctx);
    if (status == 0)
        status = source_open(&job->source, job->ctx, args->operands, args->n_operands);
    if (status == 0)
        status = items_choose(args, &job->source, &job->recipe, &job->items);
    if (status == 0 && job->items.n_quantized == 0 && !args_has(args, "dry-run"))
        status = complain(EXIT_INPUT, "'quern quantize --dry-run' gives the reason for each tensor",
                          "%s: nothing in it can be quantized", args->operands[0]);
    if (status == 0 && calibration != NULL)
        status = source_open(&job->activations, job->ctx, &calibration, 1);
    if (status == 0 && calibration != NULL)
        status = calibration_check(&job->activations, &job->items);
    return status != 0 ? status : output_place(args);
}

static int quantize(const struct args *args, const char *made_for)
{
    struct job job = {.out = args_text(args, "out", NULL), .made_for = made_for};
    job.is_quiet = args_has(args, "quiet");
    job.is_json = args_has(args, "json");
    int status = prepare(&job, args);
    if (status == 0 && args_has(args, "dry-run")) {
        status = show_plan(&job);
    } else if (status == 0) {
        stop_on_interrupt();
        status = write_file(&job, args);
    }
    items_free(&job.items);
    source_close(&job.source);
    source_close(&job.activations);
    qn_ctx_destroy(job.ctx);
    return status;
}

/* ----------------------------------------------------------------------------------------- --to */

/* Everything that the quantized weights depend on; to be freed. */
static char *words_of(const struct args *args)
{
    static const char *const none[] = {"out",  "resume", "force",  "quiet",
                                       "json", "color",  "threads"};
    char *words = must_print("%s %s: %s", qn_version(), qn_commit(), args->operands[0]);
    for (int i = 0; i < args->n_given; i++) {
        int counts = 1;
        for (size_t j = 0; j < sizeof none / sizeof *none; j++)
            counts = counts && strcmp(none[j], args->given[i].row->name) != 0;
        char *more = must_print("%s%s%s%s%s", words, counts ? " --" : "",
                                counts ? args->given[i].row->name : "", counts ? " " : "",
                                counts && args->given[i].value != NULL ? args->given[i].value : "");
        free(words);
        words = more;
    }
    return text_utf8(words);
}

/* What lies where the quantized weights go: nothing, the same of an earlier run, others of one, or
 * a file that is not ours. */
enum made { NOT_THERE, SAME, OTHER, NOT_OURS };

static enum made find_made(const char *path, const char *words)
{
    qn_ctx *ctx = NULL;
    qn_file *file = NULL;
    enum made made = NOT_OURS;
    if (access(path, F_OK) != 0)
        return NOT_THERE;
    if (qn_ctx_create(NULL, &ctx, NULL) == QN_OK && qn_file_open(ctx, path, &file, NULL) == QN_OK) {
        const char *found = qn_file_get_metadata(file, MADE_FOR);
        if (found != NULL)
            made = strcmp(found, words) == 0 ? SAME : OTHER;
    }
    qn_file_close(file);
    qn_ctx_destroy(ctx);
    return made;
}

/* Quantize to a file beside the result, and export that. The file stays until the result is there,
 * so that nothing is quantized twice. */
static int quantize_to(const struct args *args, const char *to)
{
    const char *out = args_text(args, "out", NULL);
    int status = export_check(args, to, out);
    if (status == 0 && args->n_operands != 1)
        status = complain(EXIT_USAGE, "give the folder, or its index", "--to: takes one model");
    if (status != 0 || args_has(args, "dry-run"))
        return status != 0 ? status : quantize(args, NULL);
    char *place = export_place(out), *made = must_print("%s.quantized", place);
    char *words = words_of(args);
    struct args inner = *args;
    inner.given = must_alloc(sizeof *inner.given * (size_t)args->n_given);
    memcpy(inner.given, args->given, sizeof *inner.given * (size_t)args->n_given);
    for (int i = 0; i < args->n_given; i++)
        if (strcmp(inner.given[i].row->name, "out") == 0)
            inner.given[i].value = made;
    const enum made found = find_made(made, words);
    if (found == NOT_OURS)
        status = complain(EXIT_USAGE, "move it away", "%s: is there, and is not ours", made);
    if (found == OTHER)
        unlink(made);
    if (status == 0 && found != SAME)
        status = quantize(&inner, words);
    struct export_request request = {.target = to, .source = made, .out = out, .is_all = 1};
    if (strncmp(to, "onnx", 4) == 0 && path_is(args->operands[0], QN_FILE_ONNX))
        request.graph = args->operands[0];
    if (path_is(args->operands[0], QN_FILE_GGUF))
        request.gguf = args->operands[0];
    request.folder = is_several_files(args->operands[0]) ? args->operands[0] : NULL;
    if (status == 0)
        status = export_files(args, &request);
    if (status == 0)
        unlink(made);
    free(inner.given);
    free(place);
    free(made);
    free(words);
    return status;
}

static int run(const struct args *args)
{
    const char *to = args_text(args, "to", "quern");
    return strcmp(to, "quern") != 0 ? quantize_to(args, to) : quantize(args, NULL);
}
