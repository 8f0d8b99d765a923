/* SPDX-License-Identifier: Apache-2.0 */
/* quern convert: weights that another program has quantized, to a quern file, one module at a time.
 * Every module is loaded to be declared - the types of its scales follow from their values - and,
 * unless memory could keep it, once more to be written. */
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "imports.h"
#include "output.h"
#include "term.h"

static const struct option_row own[] = {
    {"out", 'o', "FILE", "the file (quern, gguf, onnx) or folder to write"},
    {"to", 0, "FORMAT",
     "quern (default), packed (for this machine, what 'quern pack' makes), awq, gptq, gptq_v2, "
     "gptq_p, ct, bnb, gguf, onnx, or one kind alone: gguf:q4_0, ct:int-quantized, onnx:qdq"},
    {"external-data", 0, NULL, "onnx: the tensors in FILE.data (so in any case above 2^31 bytes)"},
    {"config", 0, "FOLDER",
     "where config.json, the tokenizer and other files come from, if not from the model's folder; "
     "onnx: the model whose graph the weights go into; a GGUF file: what it was made of"},
    {"group", 'g', "N", "columns a group, which must divide those of the model; -1: a row"},
    {"requantize", 0, NULL, "quantize anew what the format does not hold exactly"},
    {"format", 'f', "SPEC", "how, with --requantize: int4:g64:zp, q4_k, ..."},
    {"resume", 0, NULL, "continue what an interrupted run has left"},
    {"include", 'i', "GLOB", "convert only modules of such names; may be given several times"},
    {"exclude", 'e', "GLOB", "leave out modules of such names; likewise"},
    {"exact", 0, NULL, "refuse weights of which any scale or offset would be rounded"},
    {"dry-run", 'n', NULL, "load everything, write nothing"},
    {"force", 0, NULL, "replace FILE if it exists"},
    {"quiet", 'q', NULL, "no progress"},
    {"json", 0, NULL, "the result as one JSON object"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"a GGUF model to a quern file, then packed for this machine",
     "quern convert model.gguf -o model.st && quern pack model.st -o model.packed"},
    {"an AWQ or GPTQ folder", "quern convert Qwen2.5-7B-AWQ/ -o qwen-awq.st"},
    {"a GPTQ model that does not tell how its zeros are stored",
     "quern convert old-gptq/ -o old.st --gptq-zeros v1"},
    {"another program's format: exactly, or the refusal says which value",
     "quern convert Qwen2.5-7B-AWQ/ -o qwen.gguf --to gguf"},
    {"a quern file, with the files of the model that it was made from",
     "quern convert qwen-int4.st -o qwen-gptq --to gptq_v2 --config Qwen2.5-7B/"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_convert = {
    .name = "convert",
    .summary = "convert GGUF, GPTQ, AWQ and other models to a quern file",
    .operands = "FILE|FOLDER",
    .about = "Reads a model as another program wrote it - GGUF, or a folder or file of safetensors "
             "with GPTQ, AWQ, compressed-tensors, bitsandbytes or fp8 weights "
             "(docs/checkpoints.md lists them) - and writes the same codes and scales as a quern "
             "file. Nothing is quantized again. Plain tensors are copied.\n\n"
             "What cannot be held exactly is refused, or counted and told: a few formats have "
             "offsets that need more than 24 bits in extreme groups.\n\n"
             "With --to the same values are written for another program: a folder with a right "
             "quantization_config, the index and the other files of the model, a GGUF file, or an "
             "ONNX model: of an ONNX model with its graph, else of one node a weight. It "
             "is read back and compared value by value before it gets its name. What the format "
             "does not hold exactly is refused with the value and the formats that do.",
    .tables = {own, options_imports, options_context, options_common},
    .examples = examples,
    .min_operands = 1,
    .max_operands = 1,
    .run = run,
};

struct item {
    int64_t module, index; /* in the writer */
    const char *name;
    size_t bytes;
    qn_weight *weight; /* kept for writing, or NULL */
    int32_t is_weight;
    int64_t groups, rounded;
};

struct job {
    qn_ctx *ctx;
    qn_checkpoint *model;
    struct item *items;
    int64_t n, weights, groups, rounded;
    qn_writer *writer; /* NULL: dry run */
    struct progress progress;
    const char *out;
    double bytes, kept, keep;
    int is_quiet, is_json, is_exact;
    int to_packed; /* weights alone, one packed at a time; nothing is kept between the passes */
};

/* ---------------------------------------------------------------------------------- one module */

/* What loading came to: counted, and a refusal where --exact says so. */
static int take_facts(const struct job *job, struct item *item, const qn_load_facts *facts)
{
    item->groups = facts->groups;
    item->rounded = facts->rounded;
    if (!job->is_exact || facts->rounded == 0)
        return 0;
    return complain(EXIT_INPUT, "leave out --exact, or exclude it",
                    "%s: %lld of %lld groups have an offset or scale that f32 does not hold",
                    item->name, (long long)facts->rounded, (long long)facts->groups);
}

static int load(const struct job *job, struct item *item, qn_weight **weight)
{
    qn_load_facts facts;
    qn_error err = {0};
    qn_load_facts_init(&facts);
    const qn_status status =
        qn_checkpoint_load(job->ctx, job->model, item->module, 0, -1, weight, &facts, &err);
    if (status != QN_OK)
        return imports_complain(status, &err);
    const int failed = take_facts(job, item, &facts);
    if (failed != 0) {
        qn_weight_destroy(*weight);
        *weight = NULL;
    }
    return failed;
}

/* The canonical weight is never in memory as a whole. */
static int load_packed(const struct job *job, struct item *item, qn_packed **packed)
{
    const qn_module_part whole = {item->module, 0, -1};
    qn_load_facts facts;
    qn_error err = {0};
    qn_load_facts_init(&facts);
    const qn_status status =
        qn_checkpoint_pack(job->ctx, job->model, 1, &whole, NULL, packed, &facts, &err);
    if (status != QN_OK)
        return imports_complain(status, &err);
    const int failed = take_facts(job, item, &facts);
    if (failed != 0) {
        qn_packed_destroy(*packed);
        *packed = NULL;
    }
    return failed;
}

static void count_weight(struct job *job, const struct item *item)
{
    job->weights++;
    job->groups += item->groups;
    job->rounded += item->rounded;
}

static int declare_packed(struct job *job, struct item *item)
{
    qn_packed *packed = NULL;
    qn_error err = {0};
    const int failed = load_packed(job, item, &packed);
    if (failed != 0)
        return failed;
    count_weight(job, item);
    const qn_status status = job->writer == NULL ? QN_OK
                                                 : qn_writer_add_packed(job->writer, item->name,
                                                                        packed, &item->index, &err);
    qn_packed_destroy(packed);
    return status == QN_OK ? 0 : complain_status(item->name, status, &err);
}

static int write_packed(const struct job *job, struct item *item)
{
    qn_packed *packed = NULL;
    qn_error err = {0};
    const int failed = load_packed(job, item, &packed);
    if (failed != 0)
        return failed;
    const qn_status status = qn_writer_put_packed(job->writer, item->index, job->ctx, packed, &err);
    qn_packed_destroy(packed);
    return status == QN_OK ? 0 : complain_output(job->out, status, &err);
}

static int declare_weight(struct job *job, struct item *item)
{
    qn_weight *weight = NULL;
    qn_error err = {0};
    qn_weight_parts parts;
    const int failed = load(job, item, &weight);
    if (failed != 0)
        return failed;
    count_weight(job, item);
    qn_weight_parts_init(&parts);
    qn_status status = qn_weight_view(weight, &parts);
    if (job->writer != NULL && status == QN_OK)
        status = qn_writer_add_weight(job->writer, item->name, &parts, &item->index, &err);
    const double bytes = (double)parts.n * ((double)parts.k + 8 * (double)parts.n_groups);
    if (job->writer != NULL && job->kept + bytes <= job->keep) {
        job->kept += bytes;
        item->weight = weight;
    } else {
        qn_weight_destroy(weight);
    }
    return status == QN_OK ? 0 : complain_status(item->name, status, &err);
}

static int declare_tensor(struct job *job, struct item *item)
{
    qn_entry e;
    qn_error err = {0};
    qn_status status = qn_checkpoint_tensor(job->model, item->name, &e);
    if (status == QN_OK && e.tensor.dtype == QN_DTYPE_NONE)
        return complain(EXIT_INPUT, "leave it out with --exclude",
                        "%s: tensors of type %s cannot be copied", item->name, e.dtype);
    if (status == QN_OK && job->writer != NULL)
        status = qn_writer_add(job->writer, item->name, e.tensor.dtype, e.tensor.rank,
                               e.tensor.shape, &item->index, &err);
    return status == QN_OK ? 0 : complain_status(item->name, status, &err);
}

static int write_one(const struct job *job, struct item *item)
{
    qn_error err = {0};
    qn_entry e;
    qn_status status = QN_OK;
    if (job->to_packed) {
        const int failed = write_packed(job, item);
        if (failed != 0)
            return failed;
    } else if (item->is_weight) {
        const int failed = item->weight == NULL ? load(job, item, &item->weight) : 0;
        if (failed != 0)
            return failed;
        status = qn_writer_put_weight(job->writer, item->index, item->weight, &err);
        qn_weight_destroy(item->weight);
        item->weight = NULL;
    } else {
        status = qn_checkpoint_tensor(job->model, item->name, &e);
        if (status == QN_OK)
            status = qn_writer_put(job->writer, item->index, &e.tensor, &err);
    }
    qn_checkpoint_forget(job->model, item->module);
    return status == QN_OK ? 0 : complain_output(job->out, status, &err);
}

/* ----------------------------------------------------------------------------------- the whole */

static int choose(const struct args *args, struct job *job)
{
    struct chosen chosen;
    int status = chosen_begin(&chosen, args);
    const int64_t all = qn_checkpoint_count(job->model);
    int64_t plain = 0;
    job->items = must_alloc(sizeof *job->items * (size_t)(all > 0 ? all : 1));
    for (int64_t i = 0; i < all && status == 0; i++) {
        qn_module m;
        qn_error err = {0};
        qn_module_init(&m);
        const qn_status found = qn_checkpoint_module(job->model, i, &m, &err);
        if (chosen_refusal(&chosen, m.name) != NULL)
            continue;
        if (found != QN_OK)
            return imports_complain(found, &err);
        if (job->to_packed && m.importer[0] == '\0') {
            plain++;
            continue;
        }
        job->items[job->n++] = (struct item){
            .module = i, .name = m.name, .bytes = m.bytes, .is_weight = m.importer[0] != '\0'};
        job->bytes += (double)m.bytes;
    }
    if (status == 0)
        status = chosen_check(&chosen, "module");
    if (status == 0 && job->n == 0 && plain > 0)
        status = complain(EXIT_INPUT,
                          "'quern quantize' makes weights of them, with --format f16, bf16 or f32 "
                          "of the same values; 'quern pack' packs these",
                          "convert: %lld plain tensors, and no quantized weight to be packed",
                          (long long)plain);
    if (status == 0 && job->n == 0)
        status = complain(EXIT_INPUT, "take away an --exclude", "convert: no module is left");
    return status;
}

static int declare_all(struct job *job)
{
    int status = 0;
    progress_begin(&job->progress, job->bytes, 0, job->is_quiet);
    for (int64_t i = 0; i < job->n && status == 0; i++) {
        struct item *item = &job->items[i];
        progress_what(&job->progress, item->name);
        status = is_stopped()      ? EXIT_STOPPED
                 : job->to_packed  ? declare_packed(job, item)
                 : item->is_weight ? declare_weight(job, item)
                                   : declare_tensor(job, item);
        progress_set(&job->progress, job->progress.done + (double)item->bytes);
    }
    progress_end(&job->progress);
    return status;
}

static int write_all(struct job *job)
{
    int status = 0;
    progress_begin(&job->progress, job->bytes, 0, job->is_quiet);
    for (int64_t i = 0; i < job->n && status == 0; i++) {
        progress_what(&job->progress, job->items[i].name);
        if (is_stopped())
            status = EXIT_STOPPED;
        else if (!qn_writer_is_done(job->writer, job->items[i].index))
            status = write_one(job, &job->items[i]);
        progress_set(&job->progress, job->progress.done + (double)job->items[i].bytes);
        if (status == 0 && !term_is_tty(stderr))
            progress_line(&job->progress, "[%lld/%lld] %s", (long long)i + 1, (long long)job->n,
                          job->items[i].name);
    }
    progress_end(&job->progress);
    return status;
}

static int convert(struct job *job, const struct args *args)
{
    qn_error err = {0};
    if (args_has(args, "dry-run"))
        return declare_all(job);
    const qn_status made = qn_writer_create(job->ctx, job->out, &job->writer, &err);
    if (made != QN_OK)
        return complain_output(job->out, made, &err);
    job->keep = memory_left() / 4;
    const int declared = declare_all(job);
    int status = output_begin(args, job->writer, declared);
    if (status == EXIT_STOPPED)
        return complain(status, "run it again", "stopped: nothing was written yet");
    if (status != 0)
        return status;
    status = output_end(args, job->writer, job->n, write_all(job));
    return status;
}

static void report(const struct job *job, double took)
{
    char a[HUMAN], b[HUMAN];
    if (job->is_json) {
        cJSON *o = cJSON_CreateObject();
        if (job->out != NULL)
            cJSON_AddStringToObject(o, "out", job->out);
        cJSON_AddNumberToObject(o, "weights", (double)job->weights);
        cJSON_AddNumberToObject(o, "tensors", (double)(job->n - job->weights));
        cJSON_AddNumberToObject(o, "bytes", job->bytes);
        cJSON_AddNumberToObject(o, "groups", (double)job->groups);
        cJSON_AddNumberToObject(o, "rounded", (double)job->rounded);
        cJSON_AddNumberToObject(o, "seconds", took);
        json_print(o, 0);
        return;
    }
    if (!job->is_quiet)
        printf("%s: %lld weights and %lld tensors of %s in %s, ", job->out ? job->out : "nothing",
               (long long)job->weights, (long long)(job->n - job->weights),
               human_bytes(job->bytes, a), human_time(took, b));
    if (!job->is_quiet && job->rounded == 0)
        printf("exact\n");
    else if (!job->is_quiet)
        printf("exact but for %lld of %lld groups, whose scale or offset was rounded to f32\n",
               (long long)job->rounded, (long long)job->groups);
}

static int run(const struct args *args)
{
    const char *to = args_text(args, "to", "quern");
    if (args_has(args, "format") && !args_has(args, "requantize"))
        return complain(EXIT_USAGE,
                        "give --requantize too, which rounds; 'quern quantize --format' makes "
                        "weights of plain tensors",
                        "convert: --format alone changes nothing: values stay as they are");
    if (strcmp(to, "quern") != 0 && strcmp(to, "packed") != 0)
        return export_run(args, to);
    if (args_has(args, "requantize"))
        return complain(EXIT_USAGE, "leave it out, or give another --to",
                        "convert: --to %s holds everything as it is, so --requantize has nothing "
                        "to round",
                        to);
    struct job job = {.out = args_text(args, "out", NULL)};
    job.is_quiet = args_has(args, "quiet");
    job.is_json = args_has(args, "json");
    job.is_exact = args_has(args, "exact");
    job.to_packed = strcmp(to, "packed") == 0;
    int status = output_check(args);
    if (status == 0)
        status = context_make(args, &job.ctx);
    if (status == 0)
        status = imports_open(args, job.ctx, args->operands[0], &job.model);
    if (status == 0)
        status = output_place(args);
    if (status == 0)
        status = choose(args, &job);
    const double begin = seconds_now();
    if (status == 0) {
        stop_on_interrupt();
        status = convert(&job, args);
    }
    if (status == 0)
        report(&job, seconds_now() - begin);
    for (int64_t i = 0; i < job.n; i++)
        qn_weight_destroy(job.items[i].weight);
    free(job.items);
    qn_checkpoint_close(job.model);
    qn_ctx_destroy(job.ctx);
    return status;
}
