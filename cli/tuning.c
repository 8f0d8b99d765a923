/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing constants of the cost models. The file is taken for hostile: of bounded size,
 * every field has its type and range or the sentence names it. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "measure.h"
#include "tuning.h"
#include "whole.h"

enum { MAX_BYTES = 1 << 20, MAX_GPUS = 256 };
static const char format_name[] = "quern tuning 1";

char *tuning_path(void)
{
    const char *config = getenv("XDG_CONFIG_HOME"), *home = getenv("HOME");
    if (config != NULL && config[0] == '/')
        return must_print("%s/quern/tuning.json", config);
    if (home != NULL && home[0] == '/')
        return must_print("%s/.config/quern/tuning.json", home);
    return NULL;
}

/* ------------------------------------------------------------------------------------- reading */

/* All of a file, ended by a zero; NULL after the error was told. */
static char *read_all(const char *path, size_t *length)
{
    static const char todo[] = "'quern tune' makes such a file";
    char *text = must_alloc(MAX_BYTES + 1);
    FILE *file = NULL;
    struct stat facts;
    int failed = 1;
    if (stat(path, &facts) == 0 && !S_ISREG(facts.st_mode)) {
        complain(EXIT_INPUT, todo, "%s: not a plain file", path);
    } else if ((file = fopen(path, "rb")) == NULL || fstat(fileno(file), &facts) != 0) {
        complain(EXIT_INPUT, "check the path and its permissions", "%s: %s", path, strerror(errno));
    } else if (facts.st_size > MAX_BYTES) {
        complain(EXIT_INPUT, todo, "%s: larger than a megabyte, which no file of constants is",
                 path);
    } else {
        *length = fread(text, 1, MAX_BYTES, file);
        failed = ferror(file) != 0;
        if (failed)
            complain(EXIT_INPUT, "check the disk", "%s: cannot be read", path);
    }
    if (file != NULL)
        fclose(file);
    if (failed) {
        free(text);
        return NULL;
    }
    return text;
}

/* Where in the file something is wrong. */
struct tuning_place {
    const char *path;
    const char *list, *lines; /* "gpus" and "lines", or "cpus" and "kernels" */
    int entry, line;          /* line -1: of the entry itself */
};

static int bad_field(const struct tuning_place *p, const char *field, const char *why)
{
    static const char todo[] = "'quern tune' writes it anew; --tuning none does without";
    if (p->line < 0)
        return complain(EXIT_INPUT, todo, "%s: %s[%d].%s: %s", p->path, p->list, p->entry, field,
                        why);
    return complain(EXIT_INPUT, todo, "%s: %s[%d].%s[%d].%s: %s", p->path, p->list, p->entry,
                    p->lines, p->line, field, why);
}

static int read_number(const struct tuning_place *p, const cJSON *o, const char *field, double lo,
                       double hi, double *out)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, field);
    char why[96];
    if (!cJSON_IsNumber(item))
        return bad_field(p, field, item == NULL ? "missing" : "not a number");
    *out = item->valuedouble;
    if (*out >= lo && *out <= hi)
        return 0;
    snprintf(why, sizeof why, "%g is not from %g to %g", *out, lo, hi);
    return bad_field(p, field, why);
}

static int read_whole(const struct tuning_place *p, const cJSON *o, const char *field, double hi,
                      int32_t *out)
{
    double value = 0;
    const int status = read_number(p, o, field, 1, hi, &value);
    if (status == 0 && value != floor(value))
        return bad_field(p, field, "not a whole number");
    *out = (int32_t)value;
    return status;
}

static int read_word(const struct tuning_place *p, const cJSON *o, const char *field, char *out,
                     size_t capacity)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(o, field);
    if (!cJSON_IsString(item))
        return bad_field(p, field, item == NULL ? "missing" : "not a text");
    if (item->valuestring[0] == '\0' || strlen(item->valuestring) >= capacity)
        return bad_field(p, field, "empty or too long");
    memset(out, 0, capacity);
    memcpy(out, item->valuestring, strlen(item->valuestring));
    return 0;
}

static int read_line(const struct tuning_place *p, const cJSON *o, qn_cuda_cost *cost)
{
    qn_cuda_cost_init(cost);
    const cJSON *is_int8 = cJSON_GetObjectItemCaseSensitive(o, "int8");
    double gb_per_s = 0;
    if (!cJSON_IsObject(o))
        return bad_field(p, "family", "the line is no object");
    if (!cJSON_IsBool(is_int8))
        return bad_field(p, "int8", is_int8 == NULL ? "missing" : "neither true nor false");
    cost->is_int8 = cJSON_IsTrue(is_int8);
    int status = read_word(p, o, "family", cost->family, sizeof cost->family);
    status = status != 0 ? status : read_whole(p, o, "rows", 65536, &cost->rows);
    status = status != 0 ? status : read_whole(p, o, "bits", 16, &cost->bits);
    status = status != 0 ? status : read_number(p, o, "t0_us", 0, 1e6, &cost->t0_us);
    status = status != 0 ? status : read_number(p, o, "gb_per_s", 1e-3, 1e9, &gb_per_s);
    status = status != 0 ? status : read_number(p, o, "block_ns", 0, 1e9, &cost->block_ns);
    cost->bandwidth = gb_per_s * 1e9;
    return status;
}

static int read_gpu(struct tuning_place *p, const cJSON *o, struct tuning *t)
{
    const cJSON *lines = cJSON_GetObjectItemCaseSensitive(o, "lines"), *line;
    p->line = -1;
    t->n = 0;
    if (!cJSON_IsObject(o))
        return bad_field(p, "gpu", "the entry is no object");
    int status = read_word(p, o, "gpu", t->gpu, sizeof t->gpu);
    if (status == 0 && !cJSON_IsArray(lines))
        return bad_field(p, "lines", lines == NULL ? "missing" : "not a list");
    if (status == 0 && cJSON_GetArraySize(lines) > MAX_LINES)
        return bad_field(p, "lines", "too many");
    cJSON_ArrayForEach(line, lines)
    {
        if (status != 0)
            break;
        p->line = t->n;
        status = read_line(p, line, &t->lines[t->n++]);
    }
    return status;
}

static int read_cpu(struct tuning_place *p, const cJSON *o, struct tuning_cpu *t)
{
    const cJSON *lines = cJSON_GetObjectItemCaseSensitive(o, "kernels"), *line;
    p->line = -1;
    t->n = 0;
    if (!cJSON_IsObject(o))
        return bad_field(p, "cpu", "the entry is no object");
    int status = read_word(p, o, "cpu", t->cpu, sizeof t->cpu);
    if (status == 0 && !cJSON_IsArray(lines))
        return bad_field(p, "kernels", lines == NULL ? "missing" : "not a list");
    if (status == 0 && cJSON_GetArraySize(lines) > MAX_CPU_LINES)
        return bad_field(p, "kernels", "too many");
    cJSON_ArrayForEach(line, lines)
    {
        if (status != 0)
            break;
        p->line = t->n;
        qn_cpu_cost *cost = &t->lines[t->n++];
        qn_cpu_cost_init(cost);
        if (!cJSON_IsObject(line))
            return bad_field(p, "kernel", "the line is no object");
        status = read_word(p, line, "kernel", cost->kernel, sizeof cost->kernel);
        status = status != 0 ? status : read_number(p, line, "times", 0.01, 100, &cost->times);
    }
    return status;
}

/* Checks the list "cpus", which may be missing; the entry of `cpu` to t, whose n is -1 where the
 * list has none, and -2 where there is no list. */
static int read_cpus(const char *path, const cJSON *root, const char *cpu, struct tuning_cpu *t)
{
    const cJSON *cpus = cJSON_GetObjectItemCaseSensitive(root, "cpus"), *one;
    struct tuning_place place = {path, "cpus", "kernels", 0, -1};
    int status = 0;
    t->n = -2;
    if (cpus == NULL)
        return 0;
    if (!cJSON_IsArray(cpus) || cJSON_GetArraySize(cpus) > MAX_GPUS)
        return complain(EXIT_INPUT, "'quern tune' writes it anew; --tuning none does without",
                        "%s: cpus: no list, or too long", path);
    struct tuning_cpu *entry = must_alloc(sizeof *entry);
    t->n = -1;
    cJSON_ArrayForEach(one, cpus)
    {
        if (status == 0)
            status = read_cpu(&place, one, entry);
        if (status == 0 && strcmp(entry->cpu, cpu) == 0)
            *t = *entry;
        place.entry++;
    }
    free(entry);
    return status;
}

void tuning_cpu_name(char *out, size_t capacity)
{
    cpu_model(out, capacity);
    if (out[0] == '\0')
        snprintf(out, capacity, "unknown");
}

/* The whole file, checked; the entry of `gpu` (NULL: none is looked for) to t, whose n is else -1,
 * and that of this processor to c. */
static int read_file(const char *path, const char *gpu, struct tuning *t, struct tuning_cpu *c,
                     cJSON **json)
{
    static const char todo[] = "'quern tune' writes it anew; --tuning none does without";
    size_t length = 0;
    char *text = read_all(path, &length);
    t->n = -1;
    if (text == NULL)
        return EXIT_INPUT;
    cJSON *root = strlen(text) == length ? cJSON_ParseWithOpts(text, NULL, 1) : NULL;
    const cJSON *format = cJSON_GetObjectItemCaseSensitive(root, "format");
    const cJSON *gpus = cJSON_GetObjectItemCaseSensitive(root, "gpus"), *one;
    int status = 0;
    if (root == NULL)
        status = complain(EXIT_INPUT, todo, "%s: not JSON", path);
    else if (!cJSON_IsString(format) || strcmp(format->valuestring, format_name) != 0)
        status = complain(EXIT_INPUT, todo, "%s: format: not '%s'", path, format_name);
    else if (!cJSON_IsArray(gpus) || cJSON_GetArraySize(gpus) > MAX_GPUS)
        status = complain(EXIT_INPUT, todo, "%s: gpus: missing, no list, or too long", path);
    struct tuning_place place = {path, "gpus", "lines", 0, -1};
    struct tuning *entry = must_alloc(sizeof *entry);
    cJSON_ArrayForEach(one, gpus)
    {
        if (status == 0)
            status = read_gpu(&place, one, entry);
        if (status == 0 && gpu != NULL && strcmp(entry->gpu, gpu) == 0)
            *t = *entry;
        place.entry++;
    }
    char cpu[sizeof c->cpu];
    tuning_cpu_name(cpu, sizeof cpu);
    if (status == 0)
        status = read_cpus(path, root, cpu, c);
    free(entry);
    free(text);
    if (json != NULL && status == 0)
        *json = root;
    else
        cJSON_Delete(root);
    return status;
}

/* --------------------------------------------------------------------------------------- using */

static int set_lines(const char *path, const struct tuning *t, qn_ctx *ctx)
{
    qn_error err = {0};
    for (int i = 0; i < t->n; i++) {
        if (qn_cuda_set_cost(ctx, &t->lines[i], &err) != QN_OK)
            return complain(EXIT_INPUT, "'quern tune' writes it anew; --tuning none does without",
                            "%s: %s: lines[%d]: %s", path, t->gpu, i, err.text);
    }
    return 0;
}

static int set_cpu_lines(const char *path, const struct tuning_cpu *t, qn_ctx *ctx)
{
    qn_error err = {0};
    for (int i = 0; i < t->n; i++) {
        if (qn_cpu_set_cost(ctx, &t->lines[i], &err) != QN_OK)
            return complain(EXIT_INPUT, "'quern tune' writes it anew; --tuning none does without",
                            "%s: %s: kernels[%d].%s", path, t->cpu, i, err.text);
    }
    return 0;
}

static int use_file(const char *path, qn_ctx *ctx, int is_asked_for)
{
    qn_cuda_info gpu;
    qn_cuda_info_init(&gpu);
    const qn_device device = device_of(ctx);
    const int is_gpu = device.kind == QN_CUDA && qn_cuda_query(device.index, &gpu, NULL) == QN_OK;
    if (!is_gpu && !is_asked_for)
        return 0;
    struct tuning *t = must_alloc(sizeof *t);
    struct tuning_cpu *c = must_alloc(sizeof *c);
    int status = read_file(path, is_gpu ? gpu.name : NULL, t, c, NULL);
    if (status == 0 && device.kind == QN_CPU && c->n == -1) {
        tuning_cpu_name(c->cpu, sizeof c->cpu);
        status = complain(EXIT_INPUT, "'quern tune --device cpu' measures them",
                          "%s: it has no constants for %s", path, c->cpu);
    }
    if (status == 0 && device.kind == QN_CPU)
        status = set_cpu_lines(path, c, ctx);
    if (status == 0 && is_gpu && t->n < 0 && is_asked_for)
        status = complain(EXIT_INPUT, "'quern tune' measures them",
                          "%s: it has no constants for %s", path, gpu.name);
    if (status == 0 && is_gpu)
        status = set_lines(path, t, ctx);
    free(c);
    free(t);
    return status;
}

static int takes_tuning(const struct command *c)
{
    for (int t = 0; t < MAX_TABLES && c->tables[t] != NULL; t++) {
        if (c->tables[t] == options_tuning)
            return 1;
    }
    return 0;
}

int tuning_use(const struct args *args, qn_ctx *ctx)
{
    const char *given = args_text(args, "tuning", NULL);
    if (!takes_tuning(args->command) || (given != NULL && strcmp(given, "none") == 0))
        return 0;
    if (given != NULL)
        return use_file(given, ctx, 1);
    char *path = device_of(ctx).kind == QN_CUDA ? tuning_path() : NULL;
    const int status = path != NULL && access(path, F_OK) == 0 ? use_file(path, ctx, 0) : 0;
    free(path);
    return status;
}

/* ------------------------------------------------------------------------------------- writing */

static cJSON *begin_entry(const char *key, const char *name)
{
    cJSON *o = cJSON_CreateObject();
    char version[128];
    snprintf(version, sizeof version, "%s (%s)", qn_version(), qn_commit());
    cJSON_AddStringToObject(o, key, name);
    cJSON_AddStringToObject(o, "version", version);
    return o;
}

static cJSON *entry_of(const struct tuning *t)
{
    cJSON *o = begin_entry("gpu", t->gpu), *lines = cJSON_AddArrayToObject(o, "lines");
    for (int i = 0; i < t->n; i++) {
        const qn_cuda_cost *c = &t->lines[i];
        cJSON *line = cJSON_CreateObject();
        cJSON_AddStringToObject(line, "family", c->family);
        cJSON_AddNumberToObject(line, "rows", c->rows);
        cJSON_AddBoolToObject(line, "int8", c->is_int8);
        cJSON_AddNumberToObject(line, "bits", c->bits);
        cJSON_AddNumberToObject(line, "t0_us", round(c->t0_us * 1e3) / 1e3);
        cJSON_AddNumberToObject(line, "gb_per_s", round(c->bandwidth / 1e6) / 1e3);
        cJSON_AddNumberToObject(line, "block_ns", round(c->block_ns * 1e3) / 1e3);
        cJSON_AddItemToArray(lines, line);
    }
    return o;
}

static int make_folders(const char *path)
{
    char *folder = must_copy(path);
    int failed = 0;
    for (char *at = strchr(folder + 1, '/'); at != NULL && !failed; at = strchr(at + 1, '/')) {
        *at = '\0';
        failed = mkdir(folder, 0777) != 0 && errno != EEXIST;
        *at = '/';
    }
    free(folder);
    return failed;
}

static int failed_to_write(const char *path)
{
    return complain(EXIT_LIBRARY, "make room there or write to another place", "%s: %s", path,
                    strerror(errno));
}

/* Under a name of its own until it is complete. */
static int write_text(const char *path, const char *text)
{
    struct whole file;
    int reason = make_folders(path) ? errno : whole_begin(&file, path);
    if (reason == 0) {
        const int is_good = fputs(text, file.file) >= 0 && fputc('\n', file.file) != EOF;
        reason = whole_end(&file, is_good);
    }
    errno = reason;
    return reason != 0 ? failed_to_write(path) : 0;
}

/* What is there, or an empty file's content. */
static int read_or_begin(const char *path, cJSON **root)
{
    struct tuning *unused = must_alloc(sizeof *unused);
    struct tuning_cpu *neither = must_alloc(sizeof *neither);
    int status = 0;
    *root = NULL;
    if (access(path, F_OK) == 0) {
        status = read_file(path, NULL, unused, neither, root);
    } else {
        *root = cJSON_CreateObject();
        cJSON_AddStringToObject(*root, "format", format_name);
        cJSON_AddArrayToObject(*root, "gpus");
    }
    free(neither);
    free(unused);
    return status;
}

int tuning_check(const char *path)
{
    cJSON *root;
    const int status = read_or_begin(path, &root);
    cJSON_Delete(root);
    if (status != 0)
        return status;
    if (access(path, F_OK) == 0 && access(path, W_OK) != 0)
        return failed_to_write(path);
    qn_error err = {0};
    if (make_folders(path))
        return failed_to_write(path);
    const qn_status possible = qn_output_check(path, 1, &err);
    return possible == QN_OK ? 0 : complain_output(path, possible, &err);
}

/* Puts an entry into a list of the file, in place of the one of the same name. Takes the entry. */
static int save_entry(const char *path, const char *list, const char *key, cJSON *entry)
{
    cJSON *root;
    int status = read_or_begin(path, &root);
    if (status != 0) {
        cJSON_Delete(entry);
        return status;
    }
    cJSON *all = cJSON_GetObjectItemCaseSensitive(root, list);
    if (all == NULL)
        all = cJSON_AddArrayToObject(root, list);
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(entry, key);
    for (int i = cJSON_GetArraySize(all) - 1; i >= 0; i--) {
        const cJSON *name = cJSON_GetObjectItemCaseSensitive(cJSON_GetArrayItem(all, i), key);
        if (strcmp(name->valuestring, own->valuestring) == 0)
            cJSON_DeleteItemFromArray(all, i);
    }
    cJSON_AddItemToArray(all, entry);
    char *text = cJSON_Print(root);
    status = text == NULL ? complain(EXIT_LIBRARY, "free some", "out of memory")
                          : write_text(path, text);
    cJSON_free(text);
    cJSON_Delete(root);
    return status;
}

int tuning_save(const char *path, const struct tuning *tuning)
{
    return save_entry(path, "gpus", "gpu", entry_of(tuning));
}

int tuning_save_cpu(const char *path, const struct tuning_cpu *tuning)
{
    cJSON *entry = begin_entry("cpu", tuning->cpu);
    cJSON *lines = cJSON_AddArrayToObject(entry, "kernels");
    for (int i = 0; i < tuning->n; i++) {
        cJSON *line = cJSON_CreateObject();
        cJSON_AddStringToObject(line, "kernel", tuning->lines[i].kernel);
        cJSON_AddNumberToObject(line, "times", round(tuning->lines[i].times * 1e3) / 1e3);
        cJSON_AddItemToArray(lines, line);
    }
    return save_entry(path, "cpus", "cpu", entry);
}
