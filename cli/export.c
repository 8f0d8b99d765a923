/* SPDX-License-Identifier: Apache-2.0 */
/* quern convert --to another program's format: which modules, what becomes of each, the files they
 * are written to, and what happens between the first byte and the name. Every shard has a part file
 * with a journal, so that --resume continues within a shard; shards that are done are not made
 * again. RESULT.part/.quern-convert says what the run was made from. */
#define _POSIX_C_SOURCE 200809L
#include "export.h"

#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "imports.h"
#include "inputs.h"
#include "source.h"
#include "term.h"
#include "whole.h"

#define MANIFEST ".quern-convert"
static const double shard_bytes = 5e9;

/* ------------------------------------------------------------------------------------- choosing */

static int is_embedding(const char *name)
{
    return strstr(name, "embed") != NULL || strcmp(name, "lm_head.weight") == 0;
}

/* The name in the target, and what is done about rows and norms. 0, 1: it is left out, or the exit
 * status. */
static int place_piece(const struct export *e, struct piece *p)
{
    enum { LEFT_OUT = 1 };
    char *hf = NULL;
    if (e->from_gguf == e->to_gguf) {
        p->target = must_copy(p->name);
        return 0;
    }
    hf = e->from_gguf ? name_to_hf(p->name, e->facts.arch) : must_copy(p->name);
    p->target =
        e->from_gguf ? must_copy(hf != NULL ? hf : "") : name_to_gguf(p->name, e->facts.arch);
    const int is_derived =
        strcmp(p->name, "rope_freqs.weight") == 0 || strstr(p->name, "rotary_emb.inv_freq") != NULL;
    if (hf == NULL || p->target == NULL) {
        free(hf);
        if (is_derived)
            return LEFT_OUT;
        return complain(
            EXIT_INPUT,
            "leave it out with --exclude; of what was made of a GGUF file, --config FILE.gguf has "
            "the names and metadata",
            "%s: has no name in %s (the names of llama, mistral, qwen2, qwen3 and gemma "
            "are known)",
            p->name, e->to_gguf ? "GGUF" : "Hugging Face's models");
    }
    p->heads = name_heads(hf, &e->facts);
    p->shift = name_is_shifted(hf, &e->facts) ? (e->to_gguf ? 1 : -1) : 0;
    /* Hugging Face's programs look up rows of plain embeddings only. */
    if (p->how == PIECE_EXPORT && e->from_gguf && is_embedding(hf))
        p->how = PIECE_DENSE;
    free(hf);
    return 0;
}

static int take_module(struct export *e, struct chosen *chosen, int64_t i)
{
    qn_module m;
    qn_error err = {0};
    qn_module_init(&m);
    const qn_status found = qn_checkpoint_module(e->model, i, &m, &err);
    struct piece *p = &e->pieces[e->n_pieces];
    *p = (struct piece){.module = i, .name = m.name, .bytes = (double)m.bytes};
    if (!e->is_all && chosen_refusal(chosen, m.name) != NULL)
        return 0;
    if (e->graph != NULL && !graph_takes(e, &m, p))
        return 0; /* the graph has it as it is */
    if (found != QN_OK) {
        free(p->target);
        return imports_complain(found, &err);
    }
    p->how = m.importer[0] != '\0' ? PIECE_EXPORT : PIECE_COPY;
    p->k = m.k;
    p->kh = m.kh;
    p->kw = m.kw;
    p->conv_groups = m.conv_groups;
    p->activation = m.activation;
    p->input_scale = m.input_scale;
    p->input_zero = m.input_zero;
    const int status = e->graph != NULL ? 0 : place_piece(e, p);
    if (status == 1) {
        free(p->target);
        return 0;
    }
    e->n_pieces++;
    e->n_weights += p->how == PIECE_EXPORT;
    e->n_dense += p->how == PIECE_DENSE;
    e->bytes += p->bytes;
    return status;
}

static int choose(struct export *e)
{
    struct chosen chosen;
    int status = chosen_begin(&chosen, e->args);
    const int64_t all = qn_checkpoint_count(e->model);
    e->pieces = must_alloc(sizeof *e->pieces * (size_t)(all > 0 ? all : 1));
    for (int64_t i = 0; i < all && status == 0; i++)
        status = take_module(e, &chosen, i);
    if (status == 0 && !e->is_all)
        status = chosen_check(&chosen, "module");
    if (status == 0 && e->n_weights == 0 && e->graph != NULL)
        status = complain(EXIT_INPUT,
                          "'quern quantize' quantizes floats; 'quern convert --to "
                          "onnx:qdq' and 'onnx' make one of each other",
                          "%s: no weight of its graph is to become another", e->source);
    /* A GGUF file may hold floats alone. */
    const int is_plain = strcmp(e->target, "gguf") == 0 && e->n_pieces > 0;
    if (status == 0 && e->n_weights == 0 && !is_plain)
        status = complain(EXIT_INPUT, "'quern quantize' makes some",
                          "%s: no quantized weight is left to convert", e->source);
    return status;
}

/* ------------------------------------------------------------------------------------- planning */

static int plan_only(struct export *e, struct piece *piece, int i, const qn_tensor *tensor)
{
    (void)e;
    (void)piece;
    (void)i;
    (void)tensor;
    return 0;
}

static int each_piece(struct export *e, const char *what, int (*act)(struct export *, int64_t))
{
    int status = 0;
    progress_begin(&e->progress, e->bytes, 0, e->is_quiet);
    for (int64_t i = 0; i < e->n_pieces && status == 0; i++) {
        char *text = must_print("%s %s", what, e->pieces[i].name);
        progress_what(&e->progress, text);
        free(text);
        status = is_stopped() ? EXIT_STOPPED : act(e, i);
        qn_checkpoint_forget(e->model, e->pieces[i].module);
        progress_set(&e->progress, e->progress.done + e->pieces[i].bytes);
    }
    progress_end(&e->progress);
    return status;
}

static int plan_piece(struct export *e, int64_t i)
{
    return export_piece(e, &e->pieces[i], plan_only);
}

/* AWQ's configuration has one size of groups for all modules: the largest that divides each. 0:
 * they agree, or have one group a row. */
static int64_t common_group(const struct export *e)
{
    int64_t group = 0;
    int differs = 0, is_per_row = 1;
    for (int64_t i = 0; i < e->n_pieces; i++) {
        const struct piece *p = &e->pieces[i];
        if (p->how != PIECE_EXPORT)
            continue;
        const int64_t own = p->group < 0 ? p->k : p->group;
        int64_t a = own, b = group;
        while (b != 0) {
            const int64_t rest = a % b;
            a = b;
            b = rest;
        }
        differs = differs || (group != 0 && (a != own || a != group));
        is_per_row = is_per_row && p->group < 0;
        group = a;
    }
    return differs && !is_per_row ? group : 0;
}

/* A row of just one group of the size that other modules have is no other scheme. */
static void complete_groups(struct export *e)
{
    int64_t group = 0;
    for (int64_t i = 0; i < e->n_pieces && group <= 0; i++)
        group = e->pieces[i].how == PIECE_EXPORT ? e->pieces[i].group : 0;
    for (int64_t i = 0; i < e->n_pieces; i++)
        if (e->pieces[i].how == PIECE_EXPORT && e->pieces[i].group < 0 && e->pieces[i].k == group)
            e->pieces[i].group = group;
}

static int plan(struct export *e)
{
    double used = 0;
    int status = each_piece(e, "looking at", plan_piece);
    if (status == 0 && strcmp(e->target, "awq") == 0 && e->group == 0) {
        e->group = common_group(e);
        if (e->group != 0)
            status = each_piece(e, "looking at", plan_piece);
    }
    e->n_shards = 1;
    for (int64_t i = 0; i < e->n_pieces && !e->to_file; i++) {
        double bytes = 0;
        for (int t = 0; t < e->pieces[i].n_tensors; t++)
            bytes += (double)e->pieces[i].tensors[t].bytes;
        if (used > 0 && used + bytes > shard_bytes) {
            e->n_shards++;
            used = 0;
        }
        used += bytes;
        e->pieces[i].shard = e->n_shards - 1;
    }
    return status;
}

/* -------------------------------------------------------------------------------------- writing */

static char *shard_path(const struct export *e, int shard)
{
    if (e->to_file)
        return must_print("%s/model.%s", e->part, e->to_gguf ? "gguf" : "onnx");
    if (e->n_shards == 1)
        return must_print("%s/model.safetensors", e->part);
    return must_print("%s/model-%05d-of-%05d.safetensors", e->part, shard + 1, e->n_shards);
}

static qn_writer *writing; /* the shard that put_tensor() writes to */

static int put_tensor(struct export *e, struct piece *piece, int i, const qn_tensor *tensor)
{
    const struct tensor_plan *plan = &piece->tensors[i];
    qn_tensor t = *tensor;
    qn_error err = {0};
    if (plan->type[0] != '\0') {
        const int64_t bytes = (int64_t)plan->bytes;
        t = qn_tensor_make(tensor->data, QN_U8, 1, &bytes);
    }
    const qn_status status = qn_writer_put(writing, plan->index, &t, &err);
    return status == QN_OK ? 0 : complain_output(e->out, status, &err);
}

static qn_status declare(const struct export *e, qn_writer *writer, int shard, qn_error *err)
{
    qn_status status = QN_OK;
    for (int64_t i = 0; i < e->n_pieces; i++) {
        struct piece *p = &e->pieces[i];
        for (int t = 0; t < p->n_tensors && p->shard == shard && status == QN_OK; t++) {
            struct tensor_plan *plan = &p->tensors[t];
            status = plan->type[0] != '\0'
                         ? qn_writer_add_blocks(writer, plan->name, plan->type, plan->rank,
                                                plan->shape, &plan->index, err)
                         : qn_writer_add(writer, plan->name, plan->dtype, plan->rank, plan->shape,
                                         &plan->index, err);
        }
    }
    return status;
}

/* The one tensor of a GGUF file that no module of the source is: what frequencies are divided by.
 * is_declared: its values are given now. */
static qn_status put_rope_factors(const struct export *e, int is_declared, int64_t *index,
                                  qn_error *err)
{
    int64_t count;
    float *factors = export_rope_factors(e, &count);
    qn_status status = QN_OK;
    if (factors != NULL && !is_declared) {
        status = qn_writer_add(writing, "rope_freqs.weight", QN_F32, 1, &count, index, err);
    } else if (factors != NULL && !qn_writer_is_done(writing, *index)) {
        const qn_tensor t = qn_tensor_make(factors, QN_F32, 1, &count);
        status = qn_writer_put(writing, *index, &t, err);
    }
    free(factors);
    return status;
}

static int is_done(const struct piece *p)
{
    for (int t = 0; t < p->n_tensors; t++)
        if (!qn_writer_is_done(writing, p->tensors[t].index))
            return 0;
    return 1;
}

void export_progress(struct export *e, int64_t i, int status)
{
    progress_set(&e->progress, e->progress.done + e->pieces[i].bytes);
    if (status == 0 && !term_is_tty(stderr))
        progress_line(&e->progress, "[%lld/%lld] %s", (long long)i + 1, (long long)e->n_pieces,
                      e->pieces[i].name);
}

static int write_pieces(struct export *e, int shard)
{
    int status = 0;
    /* Plans are made anew while tensors are given; indices stay those that were declared. */
    for (int64_t i = 0; i < e->n_pieces && status == 0; i++) {
        struct piece *p = &e->pieces[i];
        if (p->shard != shard)
            continue;
        progress_what(&e->progress, p->name);
        if (is_stopped())
            status = EXIT_STOPPED;
        else if (!is_done(p))
            status = export_piece(e, p, put_tensor);
        qn_checkpoint_forget(e->model, p->module);
        export_progress(e, i, status);
    }
    return status;
}

static int write_shard(struct export *e, int shard)
{
    qn_error err = {0};
    char *path = shard_path(e, shard);
    qn_status status = QN_OK;
    int64_t rope = -1;
    int result = 0;
    if (access(path, F_OK) == 0) { /* an earlier run has finished it */
        free(path);
        return 0;
    }
    if (e->to_onnx) {
        result = export_write_onnx(e, path);
        free(path);
        return result;
    }
    status = qn_writer_create(e->ctx, path, &writing, &err);
    if (status == QN_OK && e->to_gguf)
        status = qn_writer_set_kind(writing, QN_FILE_GGUF, &err);
    if (status == QN_OK && e->to_gguf)
        result = export_metadata(e, writing);
    else if (status == QN_OK)
        status = qn_writer_metadata(writing, "format", "pt", &err);
    if (status == QN_OK && result == 0)
        status = declare(e, writing, shard, &err);
    if (status == QN_OK && result == 0)
        status = put_rope_factors(e, 0, &rope, &err);
    if (status == QN_OK && result == 0)
        status = qn_writer_begin(writing, 0, 1, &err);
    if (status == QN_OK && result == 0)
        status = put_rope_factors(e, 1, &rope, &err);
    if (status != QN_OK || result != 0) {
        qn_writer_abort(writing, 1);
        result = status != QN_OK ? complain_output(path, status, &err) : result;
    } else {
        result = write_pieces(e, shard);
        if (result != 0)
            qn_writer_abort(writing, 1);
        else if ((status = qn_writer_finish(writing, &err)) != QN_OK)
            result = complain_output(path, status, &err);
    }
    writing = NULL;
    free(path);
    return result;
}

/* ------------------------------------------------------------------------------ the part folder */

/* What the part folder was made from. To be freed. */
static char *manifest_of(const struct export *e)
{
    char *words = must_print("quern %s (%s)\nto %s\nfrom %s\n", qn_version(), qn_commit(),
                             e->target, e->source);
    for (int t = 0; e->args->command->tables[t] != NULL; t++)
        for (const struct option_row *row = e->args->command->tables[t]; row->name != NULL; row++) {
            static const char *const none[] = {"out",  "resume", "force",   "quiet",
                                               "json", "color",  "threads", "dry-run"};
            int counts = 1;
            for (size_t i = 0; i < sizeof none / sizeof *none; i++)
                counts = counts && strcmp(none[i], row->name) != 0;
            for (int i = 0; counts && args_each(e->args, row->name, i) != NULL; i++) {
                char *more =
                    must_print("%s--%s %s\n", words, row->name, args_each(e->args, row->name, i));
                free(words);
                words = more;
            }
        }
    const qn_file *file;
    for (int64_t f = 0; (file = qn_checkpoint_file(e->model, f)) != NULL; f++) {
        char *more = must_print("%sfile %lld: %lld tensors", words, (long long)f,
                                (long long)qn_file_count(file));
        free(words);
        words = more;
    }
    const char *const paths[] = {e->source, e->graph_path, e->gguf_path};
    struct stat info;
    for (int i = 0; i < 3; i++) {
        if (paths[i] == NULL || stat(paths[i], &info) != 0)
            continue;
        char *more =
            must_print("%s\nof %lld.%09ld, %lld bytes\n", words, (long long)info.st_mtim.tv_sec,
                       info.st_mtim.tv_nsec, (long long)info.st_size);
        free(words);
        words = more;
    }
    return words;
}

static int is_same_text(const char *path, const char *text)
{
    FILE *file = fopen(path, "rb");
    int is_same = file != NULL;
    for (const char *at = text; is_same && *at != '\0'; at++)
        is_same = fgetc(file) == (unsigned char)*at;
    is_same = is_same && fgetc(file) == EOF;
    if (file != NULL)
        fclose(file);
    return is_same;
}

/* A part folder of ours: its files go, and the folder. Nothing that is no plain file is touched. */
static void clear_part(const struct export *e)
{
    DIR *folder = opendir(e->part);
    for (struct dirent *d; folder != NULL && (d = readdir(folder)) != NULL;) {
        struct stat info;
        char *path = must_print("%s/%s", e->part, d->d_name);
        if (lstat(path, &info) == 0 && S_ISREG(info.st_mode))
            unlink(path);
        free(path);
    }
    if (folder != NULL)
        closedir(folder);
    rmdir(e->part);
}

/* Nothing but what a run that was killed at once leaves. */
static int is_empty(const struct export *e)
{
    DIR *folder = opendir(e->part);
    int is_empty = folder != NULL;
    for (struct dirent *d; is_empty && (d = readdir(folder)) != NULL;)
        is_empty = strcmp(d->d_name, ".") == 0 || strcmp(d->d_name, "..") == 0 ||
                   strncmp(d->d_name, MANIFEST, strlen(MANIFEST)) == 0;
    if (folder != NULL)
        closedir(folder);
    return is_empty;
}

/* Small files that a run was writing when it was killed. */
static void clear_strays(const struct export *e)
{
    DIR *folder = opendir(e->part);
    for (struct dirent *d; folder != NULL && (d = readdir(folder)) != NULL;) {
        char *path = must_print("%s/%s", e->part, d->d_name);
        if (strstr(d->d_name, ".part.") != NULL)
            unlink(path);
        free(path);
    }
    if (folder != NULL)
        closedir(folder);
}

static int begin_part(const struct export *e)
{
    char *words = manifest_of(e), *path = must_print("%s/" MANIFEST, e->part);
    const int is_there = access(e->part, F_OK) == 0, is_ours = access(path, F_OK) == 0;
    const int is_resumed = args_has(e->args, "resume");
    int status = 0;
    if (is_there && !is_ours && is_empty(e))
        clear_part(e);
    else if (is_there && !is_ours)
        status = complain(EXIT_LIBRARY, "remove it, or choose another name",
                          "%s: is there already, and not of 'quern convert'", e->part);
    else if (is_there && is_resumed && !is_same_text(path, words))
        status = complain(EXIT_LIBRARY, "run it without --resume to begin anew",
                          "%s: was made from another model or with other options", e->part);
    else if (is_there && !is_resumed) {
        fprintf(stderr,
                "quern: %s: what an interrupted run has left is thrown away; --resume would "
                "have kept it\n",
                e->part);
        clear_part(e);
    }
    if (status == 0 && is_there)
        clear_strays(e);
    if (status == 0 && mkdir(e->part, 0777) != 0 && errno != EEXIST)
        status = complain(EXIT_LIBRARY, "choose another place", "%s: %s", e->part, strerror(errno));
    if (status == 0 && access(path, F_OK) != 0) {
        struct whole w;
        int reason = whole_begin(&w, path);
        if (reason == 0) {
            fputs(words, w.file);
            reason = whole_end(&w, 1);
        }
        if (reason != 0)
            status = complain(EXIT_LIBRARY, "make room", "%s: %s", path, strerror(reason));
    }
    free(words);
    free(path);
    return status;
}

/* External data of an ONNX model, if there are any, before the model itself. 0 or errno. */
static int publish_data(const struct export *e)
{
    char *from = export_onnx_data(e), *to = must_print("%s.data", e->out);
    const int reason = access(from, F_OK) != 0 || rename(from, to) == 0 ? 0 : errno;
    free(from);
    free(to);
    return reason;
}

static int publish(const struct export *e)
{
    char *from = shard_path(e, 0);
    const char *const folder = e->to_file ? e->part : e->out;
    int reason = e->to_onnx ? publish_data(e) : 0;
    if (reason == 0 && rename(e->to_file ? from : e->part, e->out) != 0)
        reason = errno;
    if (reason == 0) {
        char *manifest = must_print("%s/" MANIFEST, folder);
        unlink(manifest);
        free(manifest);
    }
    if (reason == 0 && e->to_file)
        rmdir(e->part);
    free(from);
    return reason == 0 ? 0
                       : complain(EXIT_LIBRARY, "rename it by hand",
                                  "%s: is complete but cannot be "
                                  "renamed to %s: %s",
                                  e->part, e->out, strerror(reason));
}

/* ------------------------------------------------------------------------------------ the whole */

static int verify_piece(struct export *e, int64_t i)
{
    return export_verify(e, &e->pieces[i]);
}

static int verify(struct export *e)
{
    qn_error err = {0};
    char *path = e->to_file ? shard_path(e, 0) : must_copy(e->part);
    const qn_status status = qn_checkpoint_open(e->ctx, path, NULL, &e->made, &err);
    const int carried = status == QN_OK ? export_verify_onnx(e, path) : 0;
    free(path);
    if (status != QN_OK)
        return complain_output(e->out, status, &err);
    if (carried != 0)
        return carried;
    return each_piece(e, "comparing", verify_piece);
}

static int write_all(struct export *e)
{
    int status = begin_part(e);
    if (status != 0)
        return status;
    progress_begin(&e->progress, e->bytes, 0, e->is_quiet);
    for (int s = 0; s < e->n_shards && status == 0; s++)
        status = write_shard(e, s);
    progress_end(&e->progress);
    complete_groups(e);
    if (status == 0 && !e->to_file)
        status = export_write_config(e);
    if (status == 0)
        status = verify(e);
    if (status == EXIT_STOPPED)
        return complain(status, "the same command with --resume goes on from there",
                        "stopped: what is done is kept in %s", e->part);
    if (status == 0)
        status = inputs_check();
    return status == 0 ? publish(e) : status;
}

static void report(const struct export *e, double took)
{
    char a[HUMAN], b[HUMAN];
    double bytes = 0;
    int64_t requantized = 0;
    for (int64_t i = 0; i < e->n_pieces; i++) {
        requantized += e->pieces[i].is_requantized;
        for (int t = 0; t < e->pieces[i].n_tensors; t++)
            bytes += (double)e->pieces[i].tensors[t].bytes;
    }
    if (e->is_json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "out", e->out != NULL ? e->out : "");
        cJSON_AddStringToObject(o, "to", e->target);
        cJSON_AddNumberToObject(o, "weights", (double)e->n_weights);
        cJSON_AddNumberToObject(o, "dense", (double)e->n_dense);
        cJSON_AddNumberToObject(o, "tensors", (double)(e->n_pieces - e->n_weights - e->n_dense));
        cJSON_AddNumberToObject(o, "requantized", (double)requantized);
        cJSON_AddNumberToObject(o, "shards", e->n_shards);
        cJSON_AddNumberToObject(o, "bytes_before", e->bytes);
        cJSON_AddNumberToObject(o, "bytes_after", bytes);
        cJSON_AddNumberToObject(o, "seconds", took);
        json_print(o, 0);
    } else if (!e->is_quiet) {
        printf("%s: %lld weights as %s, %lld tensors, %s in %s, ", e->out ? e->out : "nothing",
               (long long)e->n_weights, e->target, (long long)(e->n_pieces - e->n_weights),
               human_bytes(bytes, a), human_time(took, b));
        if (requantized == 0)
            printf("exact: every value %s\n",
                   e->out != NULL ? "was read back and compared" : "can be held");
        else
            printf("%lld weights quantized again\n", (long long)requantized);
    }
}

const char *export_usual_format(const char *target)
{
    static const char *const usual[][2] = {
        {"awq", "int4:g128:zp:f16"},  {"gptq", "int4:g128:f16"}, {"gptq_v2", "int4:g128:f16"},
        {"gptq_p", "int6:g128:f16"},  {"ct", "int4:g128:f16"},   {"bnb", "nf4:g64"},
        {"gguf", "q4_0"},             {"onnx", "int4:g32:zp"}};
    const size_t length = strcspn(target, ":");
    for (size_t i = 0; i < sizeof usual / sizeof *usual; i++)
        if (strlen(usual[i][0]) == length && strncmp(target, usual[i][0], length) == 0)
            return strncmp(target, "gguf:", 5) == 0 ? target + 5 : usual[i][1];
    return NULL;
}

/* The format of --requantize: --format, or the target's usual one. */
static int read_format(struct export *e)
{
    qn_error err = {0};
    e->is_requantized = args_has(e->args, "requantize");
    if (!e->is_requantized)
        return 0;
    const char *text = args_text(e->args, "format", export_usual_format(e->target));
    const qn_status status = qn_format_parse(text, &e->format, &err);
    return status == QN_OK ? 0 : complain(EXIT_USAGE, "--format gives one", "%s", err.text);
}

int export_check(const struct args *args, const char *target, const char *out)
{
    qn_error err = {0};
    if (export_usual_format(target) == NULL)
        return complain(EXIT_USAGE,
                        "quern, packed, awq, gptq, gptq_v2, gptq_p, ct, bnb, gguf, gguf:TYPE or "
                        "onnx",
                        "--to %s: no such format", target);
    if (out == NULL)
        return output_check(args);
    const int to_file = strncmp(target, "gguf", 4) == 0 || strncmp(target, "onnx", 4) == 0;
    if (!to_file && access(out, F_OK) == 0)
        return complain(EXIT_USAGE, "remove it first, or choose another name",
                        "%s: is there already, and a folder is not replaced", out);
    char *part = must_print("%s.part", out);
    const int is_begun = path_is_folder(part); /* of an earlier run */
    free(part);
    if (is_begun && access(out, F_OK) == 0 && !args_has(args, "force"))
        return complain(EXIT_USAGE, "choose another name, or --force to replace it",
                        "%s: is there already", out);
    const qn_status status =
        to_file && !is_begun ? qn_output_check(out, args_has(args, "force"), &err) : QN_OK;
    return status == QN_OK ? 0 : complain_output(out, status, &err);
}

/* A model of GGUF's names: a GGUF file, or what was made of one. */
static int take_metadata(struct export *e)
{
    qn_error err = {0};
    e->metadata = qn_checkpoint_file(e->model, 0);
    if (e->gguf_path != NULL) {
        const qn_status status = qn_file_open(e->ctx, e->gguf_path, &e->gguf_file, &err);
        if (status != QN_OK)
            return complain_status(e->gguf_path, status, &err);
        e->metadata = e->gguf_file;
    }
    e->from_gguf = qn_file_get_kind(e->metadata) == QN_FILE_GGUF;
    return 0;
}

static int open_source(struct export *e)
{
    int status = imports_open(e->args, e->ctx, e->source, &e->model);
    if (status != 0)
        return status;
    status = take_metadata(e);
    if (status != 0)
        return status;
    if (e->to_onnx && qn_file_get_kind(qn_checkpoint_file(e->model, 0)) == QN_FILE_ONNX)
        e->graph_path = e->source;
    status = graph_begin(e);
    if (status != 0)
        return status;
    if (e->folder == NULL && path_is_folder(e->source))
        e->folder = e->source;
    if (e->from_gguf)
        facts_of_gguf(&e->facts, e->metadata);
    status = export_read_config(e);
    if (status == 0 && !e->from_gguf)
        facts_of_config(&e->facts, e->config);
    if (status == 0 && e->from_gguf && !e->to_file && e->folder == NULL && !e->is_quiet)
        fprintf(stderr, "quern: a GGUF file has no tokenizer.json; --config FOLDER carries the "
                        "files of the original model along\n");
    return status;
}

char *export_place(const char *out)
{
    char *place = must_copy(out);
    for (size_t n = strlen(place); n > 1 && place[n - 1] == '/'; n--)
        place[n - 1] = '\0';
    return place;
}

int export_files(const struct args *args, const struct export_request *request)
{
    struct export e = {.args = args,
                       .target = request->target,
                       .source = request->source,
                       .folder = request->folder,
                       .graph_path = request->graph,
                       .gguf_path = request->gguf,
                       .group = request->group,
                       .is_all = request->is_all,
                       .out = request->out};
    e.to_gguf = strncmp(e.target, "gguf", 4) == 0;
    e.to_onnx = strncmp(e.target, "onnx", 4) == 0;
    e.to_file = e.to_gguf || e.to_onnx;
    e.is_quiet = args_has(args, "quiet");
    e.is_json = args_has(args, "json");
    char *place = e.out != NULL ? export_place(e.out) : NULL;
    e.out = place;
    e.part = must_print("%s.part", e.out != NULL ? e.out : "");
    const double begin = seconds_now();
    int status = export_check(args, e.target, e.out);
    if (status == 0)
        status = read_format(&e);
    if (status == 0)
        status = context_make(args, &e.ctx);
    if (status == 0)
        status = open_source(&e);
    if (status == 0 && e.out != NULL && input_at(e.out) != NULL)
        status = complain(EXIT_USAGE, "give the result a name of its own",
                          "%s: it is the input %s, which is read while the result is written",
                          e.out, input_at(e.out));
    if (status == 0)
        status = choose(&e);
    if (status == 0) {
        stop_on_interrupt();
        status = plan(&e);
        status = status == 0 ? graph_plan(&e) : status;
        if (status == EXIT_STOPPED)
            complain(status, "run it again", "stopped: nothing was written yet");
    }
    if (status == 0 && e.out != NULL)
        status = write_all(&e);
    if (status == 0)
        report(&e, seconds_now() - begin);
    for (int64_t i = 0; i < e.n_pieces; i++) {
        for (int t = 0; t < e.pieces[i].n_tensors; t++)
            free(e.pieces[i].tensors[t].name);
        free(e.pieces[i].target);
    }
    graph_end(&e);
    free(e.pieces);
    free(e.part);
    free(place);
    cJSON_Delete(e.config);
    free(e.config_text);
    qn_file_close(e.gguf_file);
    qn_checkpoint_close(e.made);
    qn_checkpoint_close(e.model);
    qn_ctx_destroy(e.ctx);
    return status;
}

int path_is(const char *path, qn_file_kind kind)
{
    qn_ctx *ctx = NULL;
    qn_file *file = NULL;
    int is_it = 0;
    if (!path_is_folder(path) && qn_ctx_create(NULL, &ctx, NULL) == QN_OK &&
        qn_file_open(ctx, path, &file, NULL) == QN_OK)
        is_it = qn_file_get_kind(file) == kind;
    qn_file_close(file);
    qn_ctx_destroy(ctx);
    return is_it;
}

int export_run(const struct args *args, const char *target)
{
    struct export_request request = {.target = target, .source = args->operands[0]};
    request.out = args_has(args, "dry-run") ? NULL : args_text(args, "out", NULL);
    request.folder = args_text(args, "config", NULL);
    if (strncmp(target, "onnx", 4) == 0 && request.folder != NULL &&
        !path_is_folder(request.folder)) {
        request.graph = request.folder;
        request.folder = NULL;
    }
    if (request.folder != NULL && path_is(request.folder, QN_FILE_GGUF)) {
        request.gguf = request.folder;
        request.folder = NULL;
    }
    const int status = args_int(args, "group", -1, 1 << 20, &request.group);
    return status == 0 ? export_files(args, &request) : status;
}
