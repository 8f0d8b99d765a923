/* SPDX-License-Identifier: Apache-2.0 */
/* quern inspect: what is in a file; for tensors picked by name, how their values are spread. */
#define _GNU_SOURCE
#include <fnmatch.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "axes.h"
#include "folder.h"
#include "imports.h"
#include "inputs.h"
#include "source.h"
#include "term.h"

static const struct option_row own[] = {
    {"stats", 's', NULL, "statistics and histograms of every tensor (reads the whole file)"},
    {"json", 0, NULL, "one JSON object"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"what is in a file", "quern inspect model-int4.safetensors"},
    {"a sharded model, by file and by type", "quern inspect llama/"},
    {"codes and scales of some weights", "quern inspect model-int4.safetensors 'model.layers.0.*'"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_inspect = {
    .name = "inspect",
    .summary = "show tensors, formats, codes and scales of a file",
    .operands = "FILE|FOLDER [GLOB...]",
    .about = "Lists the tensors of a safetensors or npy file, quantized weights as one, and of "
             "packed weights how they are packed. For names "
             "that match a GLOB (or all, with --stats) it draws how often each code occurs and how "
             "the scales are spread; of plain tensors, the values.\n\n"
             "Of a folder (model.safetensors.index.json and its shards, model.safetensors, or all "
             ".safetensors in it) or an index it shows the files and types together, and where "
             "the tensors are that match a GLOB.\n\n"
             "Of a model that another program has quantized (GGUF, GPTQ, AWQ, compressed-tensors, "
             "bitsandbytes, fp8) it lists the modules with their formats, and of names that match "
             "a GLOB where each fact comes from.",
    .tables = {own, options_imports, options_context, options_common},
    .examples = examples,
    .min_operands = 1,
    .max_operands = -1,
    .run = run,
};

enum { BINS = 32, MAX_CODES = 256 };

/* Spread of some numbers: extremes, moments, equal bins from least to most. */
struct spread {
    double least, most, mean, deviation;
    int64_t n, not_finite, zeros;
    double bins[BINS];
};

static void spread_of(const float *values, int64_t n, int is_logarithmic, struct spread *s)
{
    *s = (struct spread){.n = n, .least = INFINITY, .most = -INFINITY};
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; i++) {
        const double v = (double)values[i];
        if (!isfinite(v)) {
            s->not_finite++;
            continue;
        }
        s->zeros += v == 0;
        s->least = v < s->least ? v : s->least;
        s->most = v > s->most ? v : s->most;
        sum += v;
        squares += v * v;
    }
    const double count = (double)(n - s->not_finite);
    if (count <= 0) {
        s->least = s->most = 0;
        return;
    }
    s->mean = sum / count;
    s->deviation = sqrt(fmax(0, squares / count - s->mean * s->mean));
    /* Scales span powers of two: their bins are equal in the logarithm. */
    const int by_log = is_logarithmic && s->least > 0;
    const double lo = by_log ? log2(s->least) : s->least, hi = by_log ? log2(s->most) : s->most;
    for (int64_t i = 0; i < n; i++) {
        const double v = by_log ? log2((double)values[i]) : (double)values[i];
        if (!isfinite(v))
            continue;
        const int at = hi > lo ? (int)((v - lo) / (hi - lo) * BINS) : 0;
        s->bins[at < BINS ? at : BINS - 1]++;
    }
}

/* One line of whatever the tensor is. */
struct weight_line {
    const char *name;
    qn_weight_parts parts;
    size_t bytes;
    char layout[24], device[8]; /* of packed weights */
};

static double bits_per_weight(const struct weight_line *w)
{
    const double n = (double)w->parts.n * (double)w->parts.k;
    return n > 0 ? 8.0 * (double)w->bytes / n : 0;
}

/* --------------------------------------------------------------------------------------- lists */

static const char *geometry(const qn_weight_parts *p, char text[SHAPE_TEXT])
{
    int length = snprintf(text, SHAPE_TEXT, "%lld x %lld", (long long)p->n, (long long)p->k);
    if (p->kh * p->kw > 1)
        length +=
            snprintf(text + length, (size_t)(SHAPE_TEXT - length), " (%d x %d taps)", p->kh, p->kw);
    if (p->conv_groups > 1)
        snprintf(text + length, (size_t)(SHAPE_TEXT - length), " %d groups", p->conv_groups);
    return text;
}

static int weight_line(const char *path, const qn_file *file, int64_t i, struct weight_line *line)
{
    qn_error err = {0};
    *line = (struct weight_line){.name = qn_file_weight_name(file, i)};
    qn_weight_parts_init(&line->parts);
    const qn_status status =
        qn_file_weight_info(file, line->name, &line->parts, &line->bytes, &err);
    return status == QN_OK ? 0 : complain_status(path, status, &err);
}

static const char packed_key[] = "quern.packed.";
enum { PACKED_KEY = sizeof packed_key - 1 };

/* Packed weights of any device as their head has them, which is what kernels read. 0: there are
 * none of that name that could be used; the tensor is then listed as one of bytes. */
static int packed_line(const qn_file *file, const char *name, struct weight_line *line)
{
    qn_packed_info info;
    qn_packed_info_init(&info);
    *line = (struct weight_line){.name = name};
    qn_weight_parts_init(&line->parts);
    if (qn_file_packed_info(file, name, &info, NULL) != QN_OK)
        return 0;
    line->parts.format = info.format;
    line->parts.n = info.n;
    line->parts.k = info.k;
    line->parts.kh = info.kh;
    line->parts.kw = info.kw;
    line->parts.conv_groups = info.conv_groups;
    line->bytes = info.bytes;
    snprintf(line->layout, sizeof line->layout, "%s", info.layout);
    snprintf(line->device, sizeof line->device, "%s", info.device.kind == QN_CPU ? "cpu" : "cuda");
    return 1;
}

/* The next packed weights from metadata *at on; 0: none. */
static int next_packed(const qn_file *file, int64_t *at, struct weight_line *line)
{
    const char *key, *value;
    while (qn_file_metadata(file, (*at)++, &key, &value) == QN_OK) {
        if (strncmp(key, packed_key, PACKED_KEY) == 0 && packed_line(file, key + PACKED_KEY, line))
            return 1;
    }
    return 0;
}

/* Is the tensor told of as a weight or part of one? */
static int is_told(const qn_file *file, const char *tensor)
{
    const size_t length = strlen(tensor), end = strlen(".packed");
    if (length < end || strcmp(tensor + length - end, ".packed") != 0)
        return is_part_of_weight(file, tensor);
    struct weight_line line;
    char *name = must_print("%.*s", (int)(length - end), tensor);
    const int is_packed = packed_line(file, name, &line);
    free(name);
    return is_packed;
}

static const char *name_of(const qn_file *file, const qn_entry *e)
{
    const int is_npy = qn_file_get_kind(file) == QN_FILE_NPY;
    return e->name[0] != '\0' ? e->name : is_npy ? "(npy)" : "\"\"";
}

static void print_styled(enum style style, const char *text)
{
    char *copy = text_shown(must_copy(text));
    printf("%s%s%s", style_on(stdout, style), copy, style_off(stdout));
    free(copy);
}

static void weight_cells(struct table *t, const struct weight_line *w, int has_packed)
{
    char text[96], a[HUMAN];
    table_cell(t, PLAIN, "%s", w->name);
    table_cell(t, PLAIN, "%s", geometry(&w->parts, text));
    qn_format_print(&w->parts.format, text, sizeof text);
    table_cell(t, GREEN, "%s", text);
    if (has_packed)
        table_cell(t, PLAIN, "%s", w->layout);
    table_cell(t, PLAIN, "%s", human_bytes((double)w->bytes, a));
    table_cell(t, PLAIN, "%.2f", bits_per_weight(w));
}

static int list_text(const char *path, const qn_file *file)
{
    static const struct column columns[] = {
        {"tensor", '<', 0, 1}, {"shape", '<', 0, 0},       {"type", '<', 0, 0},
        {"size", '>', 0, 0},   {"bits/weight", '>', 0, 0}, {NULL, 0, 0, 0},
    };
    static const struct column columns_packed[] = {
        {"tensor", '<', 0, 1}, {"shape", '<', 0, 0}, {"type", '<', 0, 0},
        {"layout", '<', 0, 0}, {"size", '>', 0, 0},  {"bits/weight", '>', 0, 0},
        {NULL, 0, 0, 0},
    };
    struct weight_line w;
    int64_t first = 0;
    const int has_packed = next_packed(file, &first, &w);
    struct table *t = table_create(has_packed ? columns_packed : columns);
    char text[96], a[HUMAN];
    double total = 0, n_weights = 0, n_packed = 0;
    int status = 0;
    for (int64_t i = 0; i < qn_file_weight_count(file) && status == 0; i++) {
        status = weight_line(path, file, i, &w);
        if (status == 0)
            weight_cells(t, &w, has_packed);
        total += (double)w.bytes;
        n_weights++;
    }
    for (int64_t at = 0; status == 0 && next_packed(file, &at, &w);) {
        weight_cells(t, &w, has_packed);
        total += (double)w.bytes;
        n_packed++;
    }
    for (int64_t i = 0; i < qn_file_count(file) && status == 0; i++) {
        qn_entry e;
        qn_file_entry(file, i, &e);
        if (is_told(file, e.name))
            continue;
        table_cell(t, PLAIN, "%s", name_of(file, &e));
        table_cell(t, PLAIN, "%s", shape_text(&e.tensor, text));
        table_cell(t, DIM, "%s", e.dtype);
        if (has_packed)
            table_cell(t, PLAIN, "%s", "");
        table_cell(t, PLAIN, "%s", human_bytes((double)e.bytes, a));
        table_cell(t, PLAIN, "%s", "");
        total += (double)e.bytes;
    }
    if (status == 0)
        table_print(t);
    table_destroy(t);
    const char *key, *value;
    qn_packed_info info;
    qn_packed_info_init(&info);
    for (int64_t i = 0; status == 0 && qn_file_metadata(file, i, &key, &value) == QN_OK; i++) {
        qn_error err = {0};
        if (strncmp(key, packed_key, PACKED_KEY) == 0 &&
            qn_file_packed_info(file, key + PACKED_KEY, &info, &err) != QN_OK)
            printf("%s\n", text_shown(err.text));
        if (strncmp(key, "quern.weight.", 13) == 0 || strncmp(key, packed_key, PACKED_KEY) == 0 ||
            strncmp(key, "quern.xxh64.", 12) == 0 || strncmp(key, "quern.header", 12) == 0 ||
            strncmp(key, ORIGIN_KEY, sizeof ORIGIN_KEY - 1) == 0)
            continue;
        char start[101];
        snprintf(start, sizeof start, "%s", value);
        print_styled(DIM, key);
        printf(" = %s\n", text_shown(start));
    }
    if (status == 0 && (n_weights > 0 || n_packed == 0))
        printf("%.0f quantized weights, ", n_weights);
    if (status == 0 && n_packed > 0)
        printf("%.0f packed weights, ", n_packed);
    if (status == 0)
        printf("%s of tensors\n", human_bytes(total, a));
    return status;
}

/* ------------------------------------------------------------------------------------- details */

static void draw_spread(const char *title, const struct spread *s)
{
    char bars[4 * BINS + 1];
    draw_spark(bars, s->bins, BINS);
    printf("  %-8s %10.4g |%s%s%s| %-10.4g mean %.4g, deviation %.4g", title, s->least,
           style_on(stdout, CYAN), bars, style_off(stdout), s->most, s->mean, s->deviation);
    if (s->zeros > 0)
        printf(", %lld zeros", (long long)s->zeros);
    if (s->not_finite > 0)
        printf(", %s%lld not finite%s", style_on(stdout, RED), (long long)s->not_finite,
               style_off(stdout));
    putchar('\n');
}

static cJSON *spread_json(const struct spread *s)
{
    cJSON *o = cJSON_CreateObject(), *bins = cJSON_CreateArray();
    cJSON_AddNumberToObject(o, "min", s->least);
    cJSON_AddNumberToObject(o, "max", s->most);
    cJSON_AddNumberToObject(o, "mean", s->mean);
    cJSON_AddNumberToObject(o, "deviation", s->deviation);
    cJSON_AddNumberToObject(o, "zeros", (double)s->zeros);
    cJSON_AddNumberToObject(o, "not_finite", (double)s->not_finite);
    for (int i = 0; i < BINS; i++)
        cJSON_AddItemToArray(bins, cJSON_CreateNumber(s->bins[i]));
    cJSON_AddItemToObject(o, "bins", bins);
    return o;
}

struct weight_stats {
    double codes[MAX_CODES];
    int n_codes;
    double entropy; /* bits a code, of the histogram */
    struct spread scale, shift;
    int has_shift;
};

static void weight_stats(const qn_weight_parts *p, struct weight_stats *s)
{
    memset(s, 0, sizeof *s);
    const int64_t n = p->n * p->k, n_scales = p->n * p->n_groups;
    if (p->format.code == QN_CODE_FLOAT)
        return; /* neither codes nor scales */
    s->n_codes = 1 << p->format.bits;
    for (int64_t i = 0; i < n; i++)
        s->codes[p->codes[i]]++;
    for (int i = 0; i < s->n_codes && n > 0; i++) {
        const double part = s->codes[i] / (double)n;
        s->entropy -= part > 0 ? part * log2(part) : 0;
    }
    spread_of(p->scale, n_scales, 1, &s->scale);
    s->has_shift = p->zero != NULL || p->offset != NULL;
    if (p->offset != NULL) {
        spread_of(p->offset, n_scales, 0, &s->shift);
    } else if (p->zero != NULL) {
        float *zeros = must_alloc(sizeof *zeros * (size_t)n_scales);
        for (int64_t i = 0; i < n_scales; i++)
            zeros[i] = (float)p->zero[i];
        spread_of(zeros, n_scales, 0, &s->shift);
        free(zeros);
    }
}

/* Up to 5 bits: a line a code with its bar; above, one line for all. */
static void draw_codes(const qn_weight_parts *p, const struct weight_stats *s)
{
    char bar[4 * 64 + 1];
    double most = 0, bins[64] = {0};
    for (int i = 0; i < s->n_codes; i++) {
        most = s->codes[i] > most ? s->codes[i] : most;
        bins[i * 64 / (s->n_codes > 64 ? s->n_codes : 64)] += s->codes[i];
    }
    const double n = (double)p->n * (double)p->k;
    if (p->format.bits > 5) {
        draw_spark(bar, bins, s->n_codes > 64 ? 64 : s->n_codes);
        printf("  codes    %10d |%s%s%s| %d\n", p->table != NULL ? 0 : -s->n_codes / 2,
               style_on(stdout, CYAN), bar, style_off(stdout),
               p->table != NULL ? s->n_codes - 1 : s->n_codes / 2 - 1);
        return;
    }
    for (int i = 0; i < s->n_codes; i++) {
        const double value = p->table != NULL ? (double)p->table[i] : i - s->n_codes / 2;
        draw_bar(bar, 40, most > 0 ? s->codes[i] / most : 0);
        printf("  %s %7.4g %s%s%s %5.2f %%\n", i == 0 ? "codes  " : "       ", value,
               style_on(stdout, CYAN), bar, style_off(stdout), n > 0 ? 100 * s->codes[i] / n : 0);
    }
}

static cJSON *weight_json(const struct weight_line *w)
{
    char text[64];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "name", w->name);
    qn_format_print(&w->parts.format, text, sizeof text);
    cJSON_AddStringToObject(o, "format", text);
    cJSON_AddNumberToObject(o, "n", (double)w->parts.n);
    cJSON_AddNumberToObject(o, "k", (double)w->parts.k);
    cJSON_AddNumberToObject(o, "kh", w->parts.kh);
    cJSON_AddNumberToObject(o, "kw", w->parts.kw);
    cJSON_AddNumberToObject(o, "conv_groups", w->parts.conv_groups);
    cJSON_AddNumberToObject(o, "bytes", (double)w->bytes);
    cJSON_AddNumberToObject(o, "bits_per_weight", bits_per_weight(w));
    if (w->layout[0] != '\0') {
        cJSON_AddStringToObject(o, "layout", w->layout);
        cJSON_AddStringToObject(o, "device", w->device);
    }
    return o;
}

static void add_stats(cJSON *o, const qn_weight_parts *p, const struct weight_stats *s)
{
    if (p->format.code == QN_CODE_FLOAT)
        return;
    cJSON *codes = cJSON_AddArrayToObject(o, "codes");
    for (int i = 0; i < s->n_codes; i++)
        cJSON_AddItemToArray(codes, cJSON_CreateNumber(s->codes[i]));
    cJSON_AddNumberToObject(o, "groups", (double)(p->n * p->n_groups));
    cJSON_AddNumberToObject(o, "entropy_bits", s->entropy);
    cJSON_AddItemToObject(o, "scale", spread_json(&s->scale));
    if (s->has_shift)
        cJSON_AddItemToObject(o, p->zero != NULL ? "zero" : "offset", spread_json(&s->shift));
}

struct view {
    qn_ctx *ctx;
    const char *path;
    const qn_file *file;
    const struct args *args;
    struct json_list *json; /* of tensors, or NULL */
    int with_stats;         /* of all */
    int shown;
};

static int is_wanted(const struct view *v, const char *name)
{
    for (int i = 1; i < v->args->n_operands; i++) {
        if (fnmatch(v->args->operands[i], name, 0) == 0)
            return 1;
    }
    return v->args->n_operands < 2 && v->with_stats;
}

static int show_weight(struct view *v, const struct weight_line *line)
{
    qn_weight *weight;
    qn_error err = {0};
    qn_status status = qn_file_load_weight(v->ctx, v->file, line->name, &weight, &err);
    if (status != QN_OK)
        return complain_status(v->path, status, &err);
    qn_weight_parts p;
    qn_weight_parts_init(&p);
    qn_weight_view(weight, &p);
    struct weight_stats stats;
    weight_stats(&p, &stats);
    char text[SHAPE_TEXT], a[HUMAN];
    if (v->json != NULL) {
        cJSON *o = weight_json(line);
        add_stats(o, &p, &stats);
        json_list_add(v->json, o);
    } else {
        print_styled(BOLD, line->name);
        printf("  %s  ", geometry(&p, text));
        qn_format_print(&p.format, text, sizeof text);
        printf("%s  %s, %.2f bits a weight", text, human_bytes((double)line->bytes, a),
               bits_per_weight(line));
        if (stats.n_codes > 0)
            printf(" (entropy of codes %.2f)", stats.entropy);
        printf("%s%s\n", p.perm != NULL ? ", columns permuted" : "",
               p.prescale != NULL ? ", prescaled" : "");
        if (stats.n_codes > 0) {
            draw_codes(&p, &stats);
            draw_spread("scale", &stats.scale);
        }
        if (stats.has_shift)
            draw_spread(p.zero != NULL ? "zero" : "offset", &stats.shift);
    }
    v->shown++;
    qn_weight_destroy(weight);
    return 0;
}

/* Codes and scales of packed weights are in no order to be drawn. */
static void show_packed(struct view *v, const struct weight_line *w)
{
    char shape[SHAPE_TEXT], format[96], a[HUMAN];
    if (v->json != NULL) {
        json_list_add(v->json, weight_json(w));
    } else if (v->args->n_operands > 1) {
        qn_format_print(&w->parts.format, format, sizeof format);
        print_styled(BOLD, w->name);
        printf("  %s  %s  %s, %.2f bits a weight, packed as %s for %s\n",
               geometry(&w->parts, shape), format, human_bytes((double)w->bytes, a),
               bits_per_weight(w), w->layout, w->device);
    }
    v->shown++;
}

static int show_tensor(struct view *v, const qn_entry *e)
{
    qn_tensor copy;
    const char *name = name_of(v->file, e);
    const int status = entry_load(name, e, QN_F32, &copy);
    if (status != 0)
        return status;
    int64_t n;
    size_t bytes;
    qn_tensor_extent(&copy, &n, &bytes);
    struct spread s;
    spread_of(copy.data, n, 0, &s);
    free(copy.data);
    qn_file_forget(v->file, e);
    if (v->json != NULL) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "name", e->name);
        cJSON_AddStringToObject(o, "dtype", e->dtype);
        cJSON_AddNumberToObject(o, "elements", (double)n);
        cJSON_AddItemToObject(o, "values", spread_json(&s));
        json_list_add(v->json, o);
    } else {
        char text[SHAPE_TEXT];
        print_styled(BOLD, name);
        printf("  %s  %s\n", shape_text(&e->tensor, text), e->dtype);
        draw_spread("values", &s);
    }
    v->shown++;
    return 0;
}

/* Plain entries of the JSON list, where no statistics are asked for. */
static cJSON *entry_json(const qn_entry *e)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "name", e->name);
    cJSON *shape = cJSON_AddArrayToObject(o, "shape");
    for (int32_t i = 0; i < e->tensor.rank; i++)
        cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)e->tensor.shape[i]));
    cJSON_AddStringToObject(o, "dtype", e->dtype);
    cJSON_AddNumberToObject(o, "bytes", (double)e->bytes);
    return o;
}

static int is_float(qn_dtype d)
{
    return d == QN_F32 || d == QN_F16 || d == QN_BF16 || d == QN_F64;
}

static int show_all(struct view *v)
{
    const qn_file *file = v->file;
    int status = 0;
    struct weight_line w;
    for (int64_t i = 0; i < qn_file_weight_count(file) && status == 0; i++) {
        status = weight_line(v->path, file, i, &w);
        if (status == 0 && is_wanted(v, w.name))
            status = show_weight(v, &w);
        else if (status == 0 && v->json != NULL && v->args->n_operands < 2)
            json_list_add(v->json, weight_json(&w));
    }
    for (int64_t at = 0; status == 0 && next_packed(file, &at, &w);) {
        if (is_wanted(v, w.name) || v->args->n_operands < 2)
            show_packed(v, &w);
    }
    for (int64_t i = 0; i < qn_file_count(file) && status == 0; i++) {
        qn_entry e;
        qn_file_entry(file, i, &e);
        if (is_told(file, e.name))
            continue;
        if (is_wanted(v, e.name) && is_float(e.tensor.dtype))
            status = show_tensor(v, &e);
        else if (v->json != NULL && v->args->n_operands < 2)
            json_list_add(v->json, entry_json(&e));
    }
    if (status == 0 && v->shown == 0 && v->args->n_operands > 1)
        return complain(EXIT_INPUT, "'quern inspect FILE' lists the names",
                        "%s: no tensor of floats or weight is called '%s'", v->path,
                        v->args->operands[1]);
    return status;
}

static int inspect_file(const struct args *args, qn_ctx *ctx, const char *path, const qn_file *file)
{
    const int is_json = args_has(args, "json");
    int status = 0;
    struct view v = {.ctx = ctx, .path = path, .file = file, .args = args};
    v.with_stats = args_has(args, "stats");
    if (is_json) {
        cJSON *o = cJSON_CreateObject();
        cJSON_AddStringToObject(o, "file", path);
        v.json = json_list_begin(o, "tensors");
    } else if (args->n_operands < 2) {
        status = list_text(path, file);
    }
    /* One weight alone is drawn without being asked for. */
    if (qn_file_weight_count(file) == 1 && qn_file_count(file) <= 4)
        v.with_stats = 1;
    if (status == 0)
        status = show_all(&v);
    if (is_json && status == 0)
        json_list_print(v.json, cJSON_CreateObject());
    else
        json_list_drop(v.json);
    return status;
}

/* A file that makes no checkpoint, as `why` says, may yet be one that can be looked at; but a graph
 * without its data is none. */
static int inspect_alone(const struct args *args, qn_ctx *ctx, const char *path,
                         const qn_error *why)
{
    qn_error err = {0};
    qn_file *file = NULL;
    const qn_status opened = input_open(ctx, path, &file, &err);
    const int is_graph = opened == QN_OK && qn_file_get_kind(file) == QN_FILE_ONNX;
    const int status = is_graph          ? complain_status(path, why->status, why)
                       : opened == QN_OK ? inspect_file(args, ctx, path, file)
                                         : complain_status(path, opened, &err);
    qn_file_close(file);
    return status;
}

static int run(const struct args *args)
{
    const char *const path = args->operands[0];
    qn_ctx *ctx = NULL;
    qn_checkpoint *model = NULL;
    qn_error err = {0};
    int status = context_make(args, &ctx);
    if (status == 0 && imports_try(args, ctx, path, &model, &err) != QN_OK)
        model = NULL;
    if (status == 0 && model != NULL && imports_is_foreign(model))
        status = imports_inspect(args, model);
    else if (status == 0 && is_several_files(path))
        status = folder_inspect(args, ctx);
    else if (status == 0 && model != NULL)
        status = inspect_file(args, ctx, path, qn_checkpoint_file(model, 0));
    else if (status == 0)
        status = inspect_alone(args, ctx, path, &err);
    qn_checkpoint_close(model);
    qn_ctx_destroy(ctx);
    return status;
}
