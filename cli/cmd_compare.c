/* SPDX-License-Identifier: Apache-2.0 */
/* quern compare: how far are the tensors of one file from those of another?
 *
 *     SQNR = 10 log10( sum b^2 / sum (a - b)^2 )       b: the original
 *
 * per tensor and for the worst group of a row, in double over values in f32. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "axes.h"
#include "inputs.h"
#include "models.h"
#include "source.h"
#include "term.h"

static const struct option_row own[] = {
    {"original", 0, "FILE", "compare with this one: the same as a second argument"},
    {"min-sqnr", 'm', "DB", "exit with status 1 if a tensor is below"},
    {"json", 0, NULL, "one JSON object"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"what quantization cost", "quern compare model-int4.safetensors --original model.safetensors"},
    {"a converted model, in whatever format, with the one that it was made of",
     "quern compare qwen-awq/ qwen.gguf"},
    {"fail a build when it costs too much",
     "quern compare new.safetensors old.safetensors --min-sqnr 20 --json"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_compare = {
    .name = "compare",
    .summary = "how far a file's tensors are from the original's",
    .operands = "FILE [ORIGINAL]",
    .about = "Dequantizes what is quantized and compares tensor by tensor: signal to noise (SQNR), "
             "largest difference, cosine, and the worst group of weights. Either side may be a "
             "model of another program, a file or a folder (docs/checkpoints.md); names and rows "
             "of GGUF and of Hugging Face are matched.\n\nThe exit status is 1 "
             "if a tensor is missing on one side, has another shape, holds a NaN or an infinity "
             "on either side, or is below --min-sqnr. Failed rows say FAILED, and lines after the "
             "table say why. Where the terminal has fewer than 100 columns (or COLUMNS says so), "
             "the original's type and the cosine are left out.",
    .tables = {own, options_imports, options_context, options_common},
    .examples = examples,
    .min_operands = 1,
    .max_operands = 2,
    .run = run,
};

struct side {
    struct source source;
    const char *path;
};

enum { TYPE_TEXT = 48 };
struct values {
    qn_tensor rows; /* [n, k] f32, to be freed */
    int64_t group;  /* of a quantized weight, or 0 */
    char type[TYPE_TEXT];
};

struct difference {
    double sqnr, max_abs, cosine; /* sqnr infinite: equal */
    int64_t worst_row, worst_begin, worst_end;
    double worst_sqnr;
    /* NaN and infinity: how many on each side; places where either is, and the first of these. */
    int64_t not_finite, original_not_finite, bad, bad_row, bad_column;
    const char *problem; /* not comparable: why */
};

/* The file that holds a quantized weight of that name, or NULL. */
static const qn_file *weight_file(const struct side *s, const char *name)
{
    for (int f = 0; f < s->source.n_files; f++) {
        if (has_weight(s->source.files[f], name))
            return s->source.files[f];
    }
    return NULL;
}

static int load_weight(qn_ctx *ctx, const struct side *s, const qn_file *file, const char *name,
                       struct values *v)
{
    qn_weight *weight;
    qn_error err = {0};
    qn_status status = qn_file_load_weight(ctx, file, name, &weight, &err);
    if (status != QN_OK)
        return complain_status(s->path, status, &err);
    qn_weight_parts p;
    qn_weight_parts_init(&p);
    qn_weight_view(weight, &p);
    v->group = p.format.group > 0 ? p.format.group : p.k;
    v->rows = qn_tensor_2d(must_alloc(sizeof(float) * (size_t)p.n * (size_t)p.k), QN_F32, p.n, p.k);
    status = qn_weight_dequantize(ctx, weight, true, &v->rows);
    qn_weight_destroy(weight);
    return status == QN_OK ? 0 : complain_status(name, status, NULL);
}

static int is_number(qn_dtype d)
{
    return d == QN_F32 || d == QN_F16 || d == QN_BF16 || d == QN_F64 || d == QN_E4M3;
}

/* Loads the values of the tensor `name`, which the side is known to have. */
static int load_values(qn_ctx *ctx, const struct side *s, const char *name, struct values *v)
{
    const qn_file *file = weight_file(s, name);
    if (file != NULL)
        return load_weight(ctx, s, file, name, v);
    const struct source_tensor *t = source_find(&s->source, name);
    const int status = entry_load_rows(name, &t->entry, QN_F32, &v->rows);
    qn_file_forget(t->file, &t->entry);
    return status;
}

/* The original of a weight whose tensor has other axes, or holds all experts. */
static int load_original(const struct source_tensor *t, const struct origin *origin,
                         const struct values *weight, struct values *v)
{
    const int64_t n = weight->rows.shape[0], k = weight->rows.shape[1];
    qn_tensor all;
    if (!origin_fits(origin, &t->entry.tensor, n, k))
        return complain(EXIT_INPUT, "compare with the file that was quantized",
                        "%s: it cannot be the original, its axes are not %s of %lld x %lld",
                        t->name, origin->axes.text, (long long)n, (long long)k);
    const int status = entry_load(t->name, &t->entry, QN_F32, &all);
    if (status != 0)
        return status;
    v->rows = qn_tensor_2d(must_alloc(sizeof(float) * (size_t)n * (size_t)k), QN_F32, n, k);
    axes_gather(&origin->axes, &all, origin->expert, origin->groups, &v->rows);
    free(all.data);
    qn_file_forget(t->file, &t->entry);
    return 0;
}

static double decibel(double signal, double noise)
{
    if (noise == 0)
        return INFINITY;
    return signal > 0 ? 10 * log10(signal / noise) : -INFINITY;
}

/* A difference with a NaN or an infinity says nothing: they are counted, and are the problem. */
static void find_not_finite(const struct values *a, const struct values *b, struct difference *d)
{
    const int64_t n = b->rows.shape[0], k = b->rows.shape[1];
    const float *x = a->rows.data, *y = b->rows.data;
    for (int64_t i = 0; i < n * k; i++) {
        const int is_good = isfinite(x[i]), was_good = isfinite(y[i]);
        if ((!is_good || !was_good) && d->bad++ == 0) {
            d->bad_row = i / k;
            d->bad_column = i % k;
        }
        d->not_finite += !is_good;
        d->original_not_finite += !was_good;
    }
    if (d->not_finite > 0 && d->original_not_finite > 0)
        d->problem = "not finite on both sides";
    else if (d->not_finite > 0)
        d->problem = "not finite";
    else if (d->original_not_finite > 0)
        d->problem = "not finite in the original";
}

static void compare_values(const struct values *a, const struct values *b, struct difference *d)
{
    *d = (struct difference){.worst_sqnr = INFINITY};
    const int64_t n = b->rows.shape[0], k = b->rows.shape[1];
    if (a->rows.shape[0] != n || a->rows.shape[1] != k) {
        d->problem = "other shape";
        return;
    }
    find_not_finite(a, b, d);
    if (d->problem != NULL)
        return;
    const float *x = a->rows.data, *y = b->rows.data;
    int64_t group = a->group > 0 ? a->group : b->group > 0 ? b->group : 128;
    group = group > k ? k : group;
    double xx = 0, yy = 0, xy = 0, noise = 0;
    for (int64_t row = 0; row < n; row++) {
        for (int64_t begin = 0; begin < k; begin += group) {
            const int64_t end = begin + group < k ? begin + group : k;
            double signal = 0, off = 0;
            for (int64_t i = row * k + begin; i < row * k + end; i++) {
                const double p = (double)x[i], q = (double)y[i], diff = p - q;
                xx += p * p;
                signal += q * q;
                xy += p * q;
                off += diff * diff;
                d->max_abs = fabs(diff) > d->max_abs ? fabs(diff) : d->max_abs;
            }
            yy += signal;
            noise += off;
            const double sqnr = decibel(signal, off);
            if (off > 0 && sqnr < d->worst_sqnr) {
                d->worst_sqnr = sqnr;
                d->worst_row = row;
                d->worst_begin = begin;
                d->worst_end = end;
            }
        }
    }
    d->sqnr = decibel(yy, noise);
    d->cosine = xx > 0 && yy > 0 ? xy / sqrt(xx * yy) : noise == 0 ? 1 : 0;
}

/* Types that are no floats: equal or not. */
static void compare_bytes(const qn_entry *a, const qn_entry *b, struct difference *d)
{
    *d = (struct difference){.sqnr = INFINITY, .worst_sqnr = INFINITY, .cosine = 1};
    if (a->bytes != b->bytes || strcmp(a->dtype, b->dtype) != 0)
        d->problem = "other type or shape";
    else if (a->tensor.dtype == QN_DTYPE_NONE || b->tensor.dtype == QN_DTYPE_NONE)
        d->problem = "cannot be read"; /* a type or a rank that the library has not */
    else if (a->bytes > 0 && memcmp(a->tensor.data, b->tensor.data, a->bytes) != 0)
        d->problem = "other values";
}

/* -------------------------------------------------------------------------------------- output */

struct comparison {
    qn_ctx *ctx;
    struct side a, b;
    struct table *table;
    struct json_list *json; /* of tensors, or NULL */
    double min_sqnr, least;
    int n, failed;
    char least_name[128];
    int is_narrow;  /* fewer columns, for a terminal of 80 */
    char *failures; /* a line each, of the first MOST_FAILURES, or NULL */
    int is_models; /* of other programs */
};

static int is_failed(const struct comparison *c, const struct difference *d)
{
    return d->problem != NULL || !(d->sqnr >= c->min_sqnr); /* a NaN is below any limit */
}

static void add_number(cJSON *o, const char *key, double value)
{
    if (isfinite(value))
        cJSON_AddNumberToObject(o, key, value);
    else
        cJSON_AddNullToObject(o, key);
}

static cJSON *difference_json(const struct comparison *c, const char *name, const char *type_a,
                              const char *type_b, const struct difference *d)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "name", name);
    cJSON_AddStringToObject(o, "type", type_a);
    cJSON_AddStringToObject(o, "original_type", type_b);
    cJSON_AddBoolToObject(o, "pass", !is_failed(c, d));
    if (d->problem != NULL) {
        cJSON_AddStringToObject(o, "problem", d->problem);
        if (d->bad > 0) {
            cJSON *bad = cJSON_AddObjectToObject(o, "not_finite");
            cJSON_AddNumberToObject(bad, "file", (double)d->not_finite);
            cJSON_AddNumberToObject(bad, "original", (double)d->original_not_finite);
            cJSON_AddNumberToObject(bad, "row", (double)d->bad_row);
            cJSON_AddNumberToObject(bad, "column", (double)d->bad_column);
        }
        return o;
    }
    cJSON_AddBoolToObject(o, "equal", d->max_abs == 0);
    add_number(o, "sqnr_db", d->sqnr);
    cJSON_AddNumberToObject(o, "max_abs", d->max_abs);
    cJSON_AddNumberToObject(o, "cosine", d->cosine);
    if (isfinite(d->worst_sqnr)) {
        cJSON *worst = cJSON_AddObjectToObject(o, "worst_group");
        cJSON_AddNumberToObject(worst, "row", (double)d->worst_row);
        cJSON_AddNumberToObject(worst, "begin", (double)d->worst_begin);
        cJSON_AddNumberToObject(worst, "end", (double)d->worst_end);
        cJSON_AddNumberToObject(worst, "sqnr_db", d->worst_sqnr);
    }
    return o;
}

enum { MOST_FAILURES = 200 };

/* One line a failure below the table: the last lines of the output say what failed and why. */
static void note_failure(struct comparison *c, const char *name, const struct difference *d)
{
    char *why;
    if (c->failed > MOST_FAILURES)
        return;
    if (d->bad > 0)
        why = must_print("%s: %lld value%s, the first in row %lld, column %lld", d->problem,
                         (long long)d->bad, d->bad == 1 ? "" : "s", (long long)d->bad_row,
                         (long long)d->bad_column);
    else if (d->problem != NULL)
        why = must_copy(d->problem);
    else
        why = must_print("SQNR is %.2f dB, --min-sqnr %g dB", d->sqnr, c->min_sqnr);
    char *line = must_print("FAILED %s: %s", name, why);
    char *all = must_print("%s%s\n", c->failures != NULL ? c->failures : "", text_shown(line));
    free(c->failures);
    free(line);
    free(why);
    c->failures = all;
}

static void add_row(struct comparison *c, const char *name, const char *type_a, const char *type_b,
                    const struct difference *d)
{
    struct table *t = c->table;
    const int is_equal = d->problem == NULL && d->max_abs == 0;
    const int has_numbers = d->problem == NULL && !is_equal;
    const enum style style = is_failed(c, d) ? RED : GREEN;
    char cosine[32] = "", worst[96] = "";
    if (is_equal)
        snprintf(cosine, sizeof cosine, "1");
    if (has_numbers) {
        snprintf(cosine, sizeof cosine, "%.6f", d->cosine);
        snprintf(worst, sizeof worst,
                 c->is_narrow ? "%.2f, row %lld" : "%.2f dB, row %lld, %lld to %lld", d->worst_sqnr,
                 (long long)d->worst_row, (long long)d->worst_begin, (long long)d->worst_end - 1);
    }
    table_cell(t, PLAIN, "%s", name);
    table_cell(t, PLAIN, "%s", type_a);
    if (!c->is_narrow)
        table_cell(t, DIM, "%s", type_b);
    if (has_numbers)
        table_cell(t, style, "%.2f dB", d->sqnr);
    else
        table_cell(t, style, "%s", is_equal ? "equal" : "-");
    if (d->problem == NULL)
        table_cell(t, PLAIN, "%.3g", d->max_abs);
    else
        table_cell(t, PLAIN, "-");
    if (!c->is_narrow)
        table_cell(t, PLAIN, "%s", cosine);
    table_cell(t, PLAIN, "%s", worst);
    table_cell(t, style, "%s", is_failed(c, d) ? "FAILED" : "ok");
    if (is_failed(c, d))
        note_failure(c, name, d);
}

static void add(struct comparison *c, const char *name, const char *type_a, const char *type_b,
                const struct difference *d)
{
    c->n++;
    c->failed += is_failed(c, d);
    if (d->problem == NULL && !(d->sqnr >= c->least)) {
        c->least = d->sqnr;
        snprintf(c->least_name, sizeof c->least_name, "%s", name);
        text_shown(c->least_name);
    }
    if (c->json != NULL)
        json_list_add(c->json, difference_json(c, name, type_a, type_b, d));
    else
        add_row(c, name, type_a, type_b, d);
}

/* What a side has under a name, without reading it: the format of weights, the type of a tensor, or
 * "-". Is it numbers? */
static int look_up(const struct side *s, const char *name, char type[TYPE_TEXT])
{
    const qn_file *file = weight_file(s, name);
    const struct source_tensor *t = source_find(&s->source, name);
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    snprintf(type, TYPE_TEXT, "%s", t != NULL ? t->entry.dtype : "-");
    if (file != NULL && qn_file_weight_info(file, name, &parts, NULL, NULL) == QN_OK)
        qn_format_print(&parts.format, type, TYPE_TEXT);
    return file != NULL || (t != NULL && is_number(t->entry.tensor.dtype));
}

/* Is the original of a weight a tensor with other axes? Then what the weight's file says. */
static int find_original(const struct comparison *c, const char *name, struct origin *origin)
{
    const qn_file *file = weight_file(&c->a, name);
    return file != NULL && weight_file(&c->b, name) == NULL && origin_find(file, name, origin) &&
           source_find(&c->b.source, origin->tensor) != NULL;
}

/* Were its experts compared one by one? */
static int is_split(const struct comparison *c, const char *name)
{
    struct origin origin;
    char *first = must_print("%s.0", name);
    const int found = find_original(c, first, &origin) && strcmp(origin.tensor, name) == 0;
    free(first);
    return found;
}

static int compare_one(struct comparison *c, const char *name)
{
    struct values a = {.group = 0}, b = {.group = 0};
    struct difference d = {.problem = NULL};
    const struct source_tensor *p = source_find(&c->a.source, name);
    const struct source_tensor *q = source_find(&c->b.source, name);
    struct origin origin;
    const int has_origin = find_original(c, name, &origin);
    if (has_origin)
        q = source_find(&c->b.source, origin.tensor);
    const int in_a = p != NULL || weight_file(&c->a, name) != NULL;
    const int in_b = q != NULL || weight_file(&c->b, name) != NULL;
    const int a_counts = look_up(&c->a, name, a.type);
    const int b_counts = look_up(&c->b, has_origin ? origin.tensor : name, b.type);
    int status = 0;
    if (!in_a || !in_b) {
        d.problem = in_b ? "only in the original" : "not there";
    } else if (a_counts && b_counts) {
        status = load_values(c->ctx, &c->a, name, &a);
        if (status == 0)
            status = has_origin ? load_original(q, &origin, &a, &b)
                                : load_values(c->ctx, &c->b, name, &b);
        if (status == 0)
            compare_values(&a, &b, &d);
    } else if (p != NULL && q != NULL && !a_counts && !b_counts) {
        compare_bytes(&p->entry, &q->entry, &d);
    } else {
        d.problem = "other type or shape";
    }
    if (status == 0)
        add(c, name, a.type, b.type, &d);
    free(a.rows.data);
    free(b.rows.data);
    return status;
}

/* Names of `s`, without those that `other` has too if it is given. */
static int compare_names(struct comparison *c, const struct side *s, const struct side *other)
{
    int status = 0;
    for (int f = 0; f < s->source.n_files && status == 0; f++) {
        for (int64_t i = 0; i < qn_file_weight_count(s->source.files[f]) && status == 0; i++) {
            const char *name = qn_file_weight_name(s->source.files[f], i);
            if (other == NULL ||
                (weight_file(other, name) == NULL && source_find(&other->source, name) == NULL))
                status = compare_one(c, name);
        }
    }
    for (int64_t i = 0; i < s->source.n_tensors && status == 0; i++) {
        const char *name = s->source.tensors[i].name;
        if (is_part_of_weight(s->source.tensors[i].file, name))
            continue;
        if (other == NULL || (weight_file(other, name) == NULL &&
                              source_find(&other->source, name) == NULL && !is_split(c, name)))
            status = compare_one(c, name);
    }
    return status;
}

/* ---- models of any program ------------------------------------------------------------------- */

/* Module i of a with module j of b; -1: it is not there. */
static int compare_modules(struct comparison *c, const struct model *a, const struct model *b,
                           int64_t i, int64_t j, const char *name)
{
    struct values x = {.group = 0}, y = {.group = 0};
    struct difference d = {.problem = NULL};
    qn_entry p, q;
    strcpy(x.type, "-");
    strcpy(y.type, "-");
    if (i >= 0)
        model_type(a, i, x.type, sizeof x.type);
    if (j >= 0)
        model_type(b, j, y.type, sizeof y.type);
    int first = 0, second = 0;
    if (i < 0 || j < 0)
        d.problem = i < 0 ? "only in the original" : "not there";
    else
        first = model_values(a, b, c->ctx, i, &x.rows, &x.group);
    if (i >= 0 && j >= 0 && first <= 0)
        second = model_values(b, a, c->ctx, j, &y.rows, &y.group);
    if (d.problem == NULL && first == 0 && second == 0)
        compare_values(&x, &y, &d);
    else if (d.problem == NULL && first < 0 && second < 0 &&
             qn_checkpoint_tensor(a->c, name, &p) == QN_OK &&
             qn_checkpoint_tensor(b->c, name, &q) == QN_OK)
        compare_bytes(&p, &q, &d);
    else if (d.problem == NULL && first <= 0 && second <= 0)
        d.problem = "other type or shape";
    const int status = first > 0 ? first : second > 0 ? second : 0;
    if (status == 0)
        add(c, name, x.type, y.type, &d);
    free(x.rows.data);
    free(y.rows.data);
    return status;
}

static const char *module_name(const struct model *m, int64_t i)
{
    qn_module module;
    qn_module_init(&module);
    qn_checkpoint_module(m->c, i, &module, NULL);
    return module.name;
}

/* Modules of a; then those of b that a has not. */
static int compare_models(struct comparison *c, const struct model *a, const struct model *b)
{
    int status = 0;
    for (int64_t i = 0; i < qn_checkpoint_count(a->c) && status == 0; i++) {
        char *other = model_name(a, b, module_name(a, i));
        status = compare_modules(c, a, b, i, qn_checkpoint_find(b->c, other), module_name(a, i));
        free(other);
    }
    for (int64_t j = 0; j < qn_checkpoint_count(b->c) && status == 0; j++) {
        char *other = model_name(b, a, module_name(b, j));
        if (qn_checkpoint_find(a->c, other) < 0)
            status = compare_modules(c, a, b, -1, j, module_name(b, j));
        free(other);
    }
    return status;
}

static int finish(struct comparison *c)
{
    const int pass = c->failed == 0 && c->n > 0;
    if (c->n == 0)
        complain(EXIT_DIFFERS, "check the names of the files", "%s, %s: no tensor to compare",
                 c->a.path, c->b.path);
    if (c->json != NULL) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddNumberToObject(o, "failed", c->failed);
        add_number(o, "min_sqnr_db", c->least);
        cJSON_AddBoolToObject(o, "pass", pass);
        json_list_print(c->json, o);
    } else {
        table_print(c->table);
        if (c->failures != NULL)
            printf("\n%s", c->failures);
        if (c->failed > MOST_FAILURES)
            printf("FAILED: %d more, marked in the table\n", c->failed - MOST_FAILURES);
        if (isfinite(c->least))
            printf("%d tensors, %d failed; least SQNR %.2f dB: %s\n", c->n, c->failed, c->least,
                   c->least_name);
        else
            printf("%d tensors, %d failed\n", c->n, c->failed);
    }
    return pass ? EXIT_GOOD : EXIT_DIFFERS;
}

static int open_sides(struct comparison *c, const struct args *args)
{
    const char *original = args_text(args, "original", NULL);
    if ((original != NULL) + (args->n_operands > 1) != 1)
        return complain(EXIT_USAGE, "give the original as second argument or with --original",
                        "compare: two files are needed");
    c->a.path = args->operands[0];
    c->b.path = original != NULL ? original : args->operands[1];
    char *paths[2] = {(char *)(uintptr_t)c->a.path, (char *)(uintptr_t)c->b.path};
    int status = args_real(args, "min-sqnr", -1000, 1000, &c->min_sqnr);
    status = status != 0 ? status : context_make(args, &c->ctx);
    c->is_models = status == 0 && models_are_foreign(c->ctx, c->a.path, c->b.path);
    if (c->is_models)
        return 0;
    status = status != 0 ? status : source_open(&c->a.source, c->ctx, &paths[0], 1);
    status = status != 0 ? status : source_open(&c->b.source, c->ctx, &paths[1], 1);
    /* Two arrays, whatever they are called: their files need not agree on a name. */
    if (status == 0 && c->a.source.n_tensors == 1 && c->b.source.n_tensors == 1)
        c->a.source.tensors[0].name = c->b.source.tensors[0].name;
    return status;
}

static int run(const struct args *args)
{
    static const struct column columns[] = {
        {"tensor", '<', 0, 1},      {"type", '<', 0, 0},    {"original", '<', 0, 0},
        {"SQNR", '>', 0, 0},        {"max abs", '>', 0, 0}, {"cosine", '>', 0, 0},
        {"worst group", '<', 0, 0}, {"result", '<', 0, 0},  {NULL, 0, 0, 0},
    };
    static const struct column narrow[] = {
        {"tensor", '<', 0, 1},  {"type", '<', 0, 0},        {"SQNR", '>', 0, 0},
        {"max abs", '>', 0, 0}, {"worst group", '<', 0, 0}, {"result", '<', 0, 0},
        {NULL, 0, 0, 0},
    };
    struct comparison c = {.min_sqnr = -INFINITY, .least = INFINITY};
    int status = open_sides(&c, args);
    if (status == 0) {
        if (args_has(args, "json")) {
            cJSON *o = cJSON_CreateObject();
            cJSON_AddStringToObject(o, "file", c.a.path);
            cJSON_AddStringToObject(o, "original", c.b.path);
            c.json = json_list_begin(o, "tensors");
        }
        c.is_narrow = term_width() < 100;
        c.table = table_create(c.is_narrow ? narrow : columns);
        if (c.is_models) {
            struct model a, b = {.c = NULL};
            status = model_open(&a, args, c.ctx, c.a.path);
            if (status == 0)
                status = model_open(&b, args, c.ctx, c.b.path);
            if (status == 0)
                status = compare_models(&c, &a, &b);
            model_close(&a);
            model_close(&b);
        } else {
            status = compare_names(&c, &c.a, NULL);
            if (status == 0)
                status = compare_names(&c, &c.b, &c.a);
        }
        if (status == 0)
            status = inputs_check();
        if (status == 0)
            status = finish(&c);
        else
            json_list_drop(c.json);
        table_destroy(c.table);
        free(c.failures);
    }
    source_close(&c.a.source);
    source_close(&c.b.source);
    qn_ctx_destroy(c.ctx);
    return status;
}
