/* SPDX-License-Identifier: Apache-2.0 */
/* quern pack: quantized weights from quern files, packed for a device, to a file that is used where
 * it lies. The sizes of packed weights depend on their values (scales that f16 holds, and so on),
 * so everything is packed once to declare it; what fits into a quarter of the memory that is left
 * (of a GPU's: into KEEP bytes) is kept for writing, the rest is packed again. */
#include <stdlib.h>
#include <string.h>

#include "output.h"
#include "source.h"
#include "term.h"

static const struct option_row own[] = {
    {"out", 'o', "FILE", "the file to write"},
    {"include", 'i', "GLOB", "pack only weights of such names; may be given several times"},
    {"exclude", 'e', "GLOB", "leave out weights of such names; likewise"},
    {"layout", 0, "NAME", "q4n16, q8n16, ... (default: the best for each weight)"},
    {"x-block", 0, "N", "block of the int8-block strategy (default: the group, at most 128)"},
    {"no-sums", 0, NULL,
     "leave out column sums: smaller, but no int8 activations with offsets or zero points"},
    {"shard", 0, "RANK/RANKS", "of each weight the part of one of several ranks: 0/4 to 3/4"},
    {"split", 0, "column|row", "what --shard cuts: outputs (default), or the columns of x"},
    {"dry-run", 'n', NULL, "show what would happen to each weight, write nothing"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"quantize, pack, and use it",
     "quern quantize model.safetensors -o int4.safetensors\n"
     "quern pack int4.safetensors -o packed.safetensors\n"
     "quern run -w packed.safetensors:layers.0.mlp.up.weight -x x.npy -o y.npy"},
    {"for a GPU", "quern pack int4.safetensors -o packed.safetensors --device cuda"},
    {"one layer", "quern pack int4.safetensors -o up.safetensors -i '*.mlp.up.weight'"},
    {"the first of two shards of a layer that is cut by row",
     "quern pack int4.safetensors -o down.0.safetensors -i '*.down*' --shard 0/2 --split row"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_pack = {
    .name = "pack",
    .summary = "pack quantized weights for a device, ready to be mapped and used",
    .operands = "FILE|FOLDER...",
    .about =
        "Reads quantized weights (what 'quern quantize' writes), packs them in the order in which "
        "the kernels of a device read them, and writes them to a safetensors file. Packed weights "
        "are used where they lie in the file, without a copy on a CPU; 'quern run' and "
        "qn_packed_load() take them. Plain tensors are left out.\n\n"
        "The output appears under its name only when it is complete. Ctrl-C keeps FILE.part, and "
        "--resume continues there. Layouts of CPUs are the same on all of them.\n\n"
        "With --shard, each weight is cut as qn_weight_shard() cuts it. A row shard of a weight "
        "with act-order reads columns of x that are no range: they are in the file as a tensor "
        "NAME.columns.",
    .tables = {own, options_output, options_context, options_common},
    .examples = examples,
    .min_operands = 1,
    .max_operands = -1,
    .run = run,
};

enum { KEEP = 256 << 20 };

struct item {
    int64_t module;
    const char *name;
    qn_packed *packed; /* kept for writing, or NULL */
    qn_packed_info info;
    int64_t index; /* in the writer */
    size_t bytes;  /* of the canonical weight */
    int32_t *columns; /* of x that a row shard reads, where they are no range; or NULL */
    int64_t n_columns, columns_index;
};

struct job {
    qn_ctx *ctx;
    struct source source;
    qn_checkpoint *model; /* of the source's files, which are its own from choose() on */
    struct item *items;
    int64_t n;
    qn_pack_options options;
    qn_writer *writer;
    struct progress progress;
    const char *out;
    double bytes_in, bytes_out, kept;
    double keep; /* at most */
    int is_quiet, is_json, is_dry, is_resumed;
    int64_t skipped;
    qn_split split;
    int32_t rank, n_ranks; /* 1: weights are not cut */
};

/* ---------------------------------------------------------------------------------- one weight */

/* Where the columns of a row shard are no range: which they are. */
static qn_status find_columns(const struct job *job, struct item *item, const qn_weight *weight,
                              qn_error *err)
{
    int64_t count = 0;
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    qn_status status = qn_weight_view(weight, &parts);
    if (status != QN_OK || job->split != QN_SPLIT_ROW || parts.perm == NULL ||
        parts.n_groups == 1 || item->columns != NULL)
        return status;
    status = qn_weight_shard_columns(weight, job->rank, job->n_ranks, NULL, 0, &count, err);
    if (status != QN_OK)
        return status;
    item->columns = must_alloc(((size_t)count + 1) * sizeof *item->columns);
    item->n_columns = count;
    return qn_weight_shard_columns(weight, job->rank, job->n_ranks, item->columns, count, &count,
                                   err);
}

/* Replaces the weight of an item by the part of it that belongs to this rank. */
static qn_status cut(const struct job *job, struct item *item, qn_weight **weight, qn_error *err)
{
    qn_weight *shard = NULL;
    if (job->n_ranks == 1)
        return QN_OK;
    qn_status status = find_columns(job, item, *weight, err);
    if (status == QN_OK)
        status = qn_weight_shard(job->ctx, *weight, job->split, job->rank, job->n_ranks, &shard,
                                 err);
    if (status != QN_OK)
        return status;
    qn_weight_destroy(*weight);
    *weight = shard;
    return QN_OK;
}

static qn_status load_part(const struct job *job, struct item *item, qn_weight **weight,
                           qn_error *err)
{
    qn_status status =
        qn_checkpoint_load(job->ctx, job->model, item->module, 0, -1, weight, NULL, err);
    if (status == QN_OK)
        status = cut(job, item, weight, err);
    if (status != QN_OK) {
        qn_weight_destroy(*weight);
        *weight = NULL;
    }
    return status;
}

static int pack_one(const struct job *job, struct item *item, qn_packed **packed)
{
    const qn_module_part whole = {item->module, 0, -1};
    qn_weight *weight = NULL;
    qn_error err = {0};
    qn_status status = QN_OK;
    if (job->n_ranks == 1) /* without a canonical weight in between */
        status = qn_checkpoint_pack(job->ctx, job->model, 1, &whole, &job->options, packed, NULL,
                                    &err);
    else
        status = load_part(job, item, &weight, &err);
    if (status == QN_E_UNSUPPORTED && job->n_ranks > 1) /* by cut(), and nothing else */
        return complain(EXIT_USAGE, "cut it by column, or leave it out with --exclude", "%s: %s",
                        item->name, err.text);
    if (status == QN_OK && job->n_ranks > 1)
        status = qn_pack(job->ctx, weight, &job->options, packed, &err);
    qn_weight_destroy(weight);
    qn_checkpoint_forget(job->model, item->module);
    if (status == QN_E_LAYOUT && job->options.layout != NULL)
        return complain(EXIT_USAGE, "leave --layout out, or choose weights with --include",
                        "%s: %s", item->name, err.text);
    return status == QN_OK ? 0 : complain_status(item->name, status, &err);
}

static qn_status declare_columns(const struct job *job, struct item *item, qn_error *err)
{
    static const char ending[] = ".columns";
    const size_t length = strlen(item->name) + sizeof ending;
    char *const name = must_alloc(length);
    snprintf(name, length, "%s%s", item->name, ending);
    const qn_status status = qn_writer_add(job->writer, name, QN_I32, 1, &item->n_columns,
                                           &item->columns_index, err);
    free(name);
    return status;
}

/* How large it becomes. */
static int declare_one(struct job *job, struct item *item)
{
    qn_packed *packed = NULL;
    qn_error err = {0};
    const int failed = pack_one(job, item, &packed);
    if (failed != 0)
        return failed;
    qn_packed_info_init(&item->info);
    qn_packed_query(packed, &item->info);
    job->bytes_out += (double)item->info.bytes;
    qn_status status = QN_OK;
    if (!job->is_dry)
        status = qn_writer_add_packed(job->writer, item->name, packed, &item->index, &err);
    if (!job->is_dry && status == QN_OK && item->columns != NULL)
        status = declare_columns(job, item, &err);
    if (!job->is_dry && !job->is_resumed && job->kept + (double)item->info.bytes <= job->keep) {
        job->kept += (double)item->info.bytes;
        item->packed = packed;
    } else {
        qn_packed_destroy(packed);
    }
    return status == QN_OK ? 0 : complain_status(item->name, status, &err);
}

static int write_one(const struct job *job, struct item *item)
{
    qn_error err = {0};
    const int failed = item->packed == NULL ? pack_one(job, item, &item->packed) : 0;
    if (failed != 0)
        return failed;
    qn_status status = QN_OK;
    if (item->columns != NULL && !qn_writer_is_done(job->writer, item->columns_index)) {
        const qn_tensor columns = qn_tensor_1d(item->columns, QN_I32, item->n_columns);
        status = qn_writer_put(job->writer, item->columns_index, &columns, &err);
    }
    if (status == QN_OK)
        status = qn_writer_put_packed(job->writer, item->index, job->ctx, item->packed, &err);
    qn_packed_destroy(item->packed);
    item->packed = NULL;
    return status == QN_OK ? 0 : complain_output(job->out, status, &err);
}

/* ------------------------------------------------------------------------------------- choosing */

/* The files as one checkpoint, and where the weights are in it. */
static int find_modules(const struct args *args, struct job *job)
{
    qn_error err = {0};
    const qn_status status = qn_checkpoint_open_files(
        job->ctx, job->source.files, job->source.n_files, NULL, 0, NULL, &job->model, &err);
    for (int f = 0; f < job->source.n_files; f++)
        job->source.files[f] = NULL; /* in any case no longer the source's */
    if (status != QN_OK)
        return complain_status(args->operands[0], status, &err);
    for (int64_t i = 0; i < job->n; i++)
        job->items[i].module = qn_checkpoint_find(job->model, job->items[i].name);
    return 0;
}

static int choose(const struct args *args, struct job *job)
{
    struct chosen chosen;
    int status = chosen_begin(&chosen, args);
    if (status != 0)
        return status;
    int64_t all = 0;
    for (int f = 0; f < job->source.n_files; f++)
        all += qn_file_weight_count(job->source.files[f]);
    if (all == 0)
        return complain(EXIT_INPUT,
                        "'quern quantize' makes some of plain tensors, 'quern convert --to packed' "
                        "packs those of other programs",
                        "%s: no quantized weights of quern's in it", args->operands[0]);
    job->items = must_alloc(sizeof *job->items * (size_t)all);
    for (int f = 0; f < job->source.n_files; f++) {
        const qn_file *const file = job->source.files[f];
        for (int64_t i = 0; i < qn_file_weight_count(file); i++) {
            struct item item = {.module = -1, .name = qn_file_weight_name(file, i)};
            if (chosen_refusal(&chosen, item.name) != NULL)
                continue;
            qn_error err = {0};
            const qn_status known = qn_file_weight_info(file, item.name, NULL, &item.bytes, &err);
            if (known != QN_OK)
                return complain_status(item.name, known, &err);
            job->bytes_in += (double)item.bytes;
            job->items[job->n++] = item;
        }
    }
    status = chosen_check(&chosen, "quantized weight");
    if (status == 0 && job->n == 0)
        status = complain(EXIT_INPUT, "take away an --exclude", "pack: no weight is left");
    return status != 0 ? status : find_modules(args, job);
}

/* ----------------------------------------------------------------------------------- the whole */

/* Pack everything once for its size. */
static int measure(struct job *job)
{
    qn_error err = {0};
    int status = 0;
    if (!job->is_dry) {
        const qn_status made = qn_writer_create(job->ctx, job->out, &job->writer, &err);
        if (made != QN_OK)
            return complain_output(job->out, made, &err);
    }
    job->keep = device_of(job->ctx).kind == QN_CPU ? memory_left() / 4 : KEEP;
    progress_begin(&job->progress, job->bytes_in, 0, job->is_quiet);
    for (int64_t i = 0; i < job->n && status == 0; i++) {
        progress_what(&job->progress, job->items[i].name);
        status = is_stopped() ? EXIT_STOPPED : declare_one(job, &job->items[i]);
        progress_set(&job->progress, job->progress.done + (double)job->items[i].bytes);
    }
    progress_end(&job->progress);
    return status;
}

static int write_all(struct job *job)
{
    int status = 0;
    double already = 0;
    for (int64_t i = 0; i < job->n; i++) {
        if (qn_writer_is_done(job->writer, job->items[i].index)) {
            already += (double)job->items[i].info.bytes;
            job->skipped++;
        }
    }
    if (job->is_resumed && !job->is_quiet)
        fprintf(stderr, "quern: %lld of %lld weights are there already\n", (long long)job->skipped,
                (long long)job->n);
    progress_begin(&job->progress, job->bytes_out, already, job->is_quiet);
    for (int64_t i = 0; i < job->n && status == 0; i++) {
        struct item *const item = &job->items[i];
        if (qn_writer_is_done(job->writer, item->index))
            continue;
        progress_what(&job->progress, item->name);
        status = is_stopped() ? EXIT_STOPPED : write_one(job, item);
        progress_set(&job->progress, job->progress.done + (double)item->info.bytes);
        if (status == 0 && !term_is_tty(stderr))
            progress_line(&job->progress, "[%lld/%lld] %s -> %s", (long long)i + 1,
                          (long long)job->n, item->name, item->info.layout);
    }
    progress_end(&job->progress);
    return status;
}

static int write_file(struct job *job, const struct args *args)
{
    const int declared = measure(job);
    const int status = output_begin(args, job->writer, declared);
    if (status == EXIT_STOPPED)
        return complain(status, "run it again", "stopped: nothing was written yet");
    return status != 0 ? status : output_end(args, job->writer, job->n, write_all(job));
}

/* --------------------------------------------------------------------------------------- output */

static void report_json(const struct job *job, double took)
{
    cJSON *o = cJSON_CreateObject();
    if (!job->is_dry)
        cJSON_AddStringToObject(o, "out", job->out);
    cJSON_AddStringToObject(o, "device", device_of(job->ctx).kind == QN_CPU ? "cpu" : "cuda");
    cJSON_AddNumberToObject(o, "bytes_before", job->bytes_in);
    cJSON_AddNumberToObject(o, "bytes_after", job->bytes_out);
    cJSON_AddNumberToObject(o, "resumed", (double)job->skipped);
    cJSON_AddNumberToObject(o, "seconds", took);
    cJSON *list = cJSON_AddArrayToObject(o, "weights");
    for (int64_t i = 0; i < job->n; i++) {
        const qn_packed_info *const info = &job->items[i].info;
        char format[96];
        qn_format_print(&info->format, format, sizeof format);
        cJSON *w = cJSON_CreateObject();
        cJSON_AddStringToObject(w, "name", job->items[i].name);
        cJSON_AddStringToObject(w, "format", format);
        cJSON_AddStringToObject(w, "layout", info->layout);
        cJSON_AddNumberToObject(w, "n", (double)info->n);
        cJSON_AddNumberToObject(w, "k", (double)info->k);
        cJSON_AddNumberToObject(w, "bytes", (double)info->bytes);
        cJSON_AddItemToArray(list, w);
    }
    json_print(o, 0);
}

static void report_table(const struct job *job)
{
    static const struct column columns[] = {
        {"weight", '<', 0, 1}, {"n x k", '<', 0, 0},  {"format", '<', 0, 0}, {"layout", '<', 0, 0},
        {"before", '>', 0, 0}, {"packed", '>', 0, 0}, {NULL, 0, 0, 0},
    };
    struct table *t = table_create(columns);
    char a[HUMAN], format[96];
    for (int64_t i = 0; i < job->n; i++) {
        const struct item *const item = &job->items[i];
        qn_format_print(&item->info.format, format, sizeof format);
        table_cell(t, PLAIN, "%s", item->name);
        table_cell(t, PLAIN, "%lld x %lld", (long long)item->info.n, (long long)item->info.k);
        table_cell(t, PLAIN, "%s", format);
        table_cell(t, GREEN, "%s", item->info.layout);
        table_cell(t, PLAIN, "%s", human_bytes((double)item->bytes, a));
        table_cell(t, PLAIN, "%s", human_bytes((double)item->info.bytes, a));
    }
    table_print(t);
    table_destroy(t);
}

static void report(const struct job *job, double took)
{
    char a[HUMAN], b[HUMAN], c[HUMAN];
    if (job->is_json)
        report_json(job, took);
    else if (job->is_dry)
        report_table(job);
    else if (!job->is_quiet)
        printf("%s: %lld weights packed for %s; %s -> %s in %s\n", job->out, (long long)job->n,
               device_of(job->ctx).kind == QN_CPU ? "CPUs" : "the GPU",
               human_bytes(job->bytes_in, a), human_bytes(job->bytes_out, b), human_time(took, c));
}

static int read_shard(struct job *job, const struct args *args)
{
    const char *const text = args_text(args, "shard", NULL);
    const char *const split = args_text(args, "split", NULL);
    char end;
    int rank = 0, ranks = 1;
    job->n_ranks = 1;
    job->split = split != NULL && strcmp(split, "row") == 0 ? QN_SPLIT_ROW : QN_SPLIT_COLUMN;
    if (text == NULL && split != NULL)
        return complain(EXIT_USAGE, "say which part with --shard RANK/RANKS",
                        "--split: it says what --shard cuts, and there is none");
    if (text == NULL)
        return 0;
    if (sscanf(text, "%d/%d%c", &rank, &ranks, &end) != 2 || ranks < 1 || rank < 0 ||
        rank >= ranks)
        return complain(EXIT_USAGE, "RANK counts from 0: --shard 0/4 to --shard 3/4",
                        "--shard: '%s' is not RANK/RANKS", text);
    job->rank = rank;
    job->n_ranks = ranks;
    return 0;
}

static int prepare(struct job *job, const struct args *args)
{
    qn_pack_options_init(&job->options);
    job->options.layout = args_text(args, "layout", NULL);
    job->options.without_sums = args_has(args, "no-sums");
    int status = output_check(args);
    if (status == 0)
        status = args_int(args, "x-block", 1, INT32_MAX, &job->options.x_block);
    if (status == 0)
        status = read_shard(job, args);
    status = status != 0 ? status : context_make(args, &job->ctx);
    if (status == 0)
        status = source_open(&job->source, job->ctx, args->operands, args->n_operands);
    status = status != 0 ? status : choose(args, job);
    return status != 0 ? status : output_place(args);
}

static int run(const struct args *args)
{
    struct job job = {.out = args_text(args, "out", NULL)};
    job.is_quiet = args_has(args, "quiet");
    job.is_json = args_has(args, "json");
    job.is_dry = args_has(args, "dry-run");
    job.is_resumed = args_has(args, "resume");
    int status = prepare(&job, args);
    const double begin = seconds_now();
    if (status == 0) {
        stop_on_interrupt();
        status = job.is_dry ? measure(&job) : write_file(&job, args);
    }
    if (status == 0)
        report(&job, seconds_now() - begin);
    for (int64_t i = 0; i < job.n; i++) {
        free(job.items[i].columns);
        qn_packed_destroy(job.items[i].packed);
    }
    free(job.items);
    qn_checkpoint_close(job.model);
    source_close(&job.source);
    qn_ctx_destroy(job.ctx);
    return status;
}
