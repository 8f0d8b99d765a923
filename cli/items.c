/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors are quantized, how, and what they will take: the plan of `quern quantize`. */
#define _GNU_SOURCE
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

#include "export.h"
#include "output.h"
#include "quantize.h"
#include "term.h"

/* -------------------------------------------------------------------------------------- recipe */

static int read_format(const struct args *args, struct recipe *r)
{
    static const char *const parts[] = {"bits", "group", "scheme"};
    const char *format = args_text(args, "format", NULL);
    qn_error err = {0};
    for (int i = 0; i < 3 && format != NULL; i++) {
        if (args_has(args, parts[i]))
            return complain(EXIT_USAGE, "give one or the other", "--%s: contradicts --format %s",
                            parts[i], format);
    }
    const char *const to = args_text(args, "to", "quern");
    r->is_usual = format == NULL;
    const int is_exported = strcmp(to, "quern") != 0 && export_usual_format(to) != NULL;
    for (int i = 0; i < 3; i++)
        r->is_usual = r->is_usual && !args_has(args, parts[i]);
    if (is_exported && r->is_usual)
        format = export_usual_format(to);
    int64_t bits = 4;
    const char *group = args_text(args, "group", "128");
    const char *scheme = args_text(args, "scheme", "sym");
    const int is_word = strcmp(group, "pc") == 0 || strcmp(group, "pt") == 0;
    int64_t size;
    int status = args_int(args, "bits", 2, 8, &bits);
    if (status == 0 && !is_word)
        status = parse_int("--group", group, 1, INT32_MAX, &size);
    if (status != 0)
        return status;
    char *text =
        format != NULL
            ? must_copy(format)
            : must_print("int%lld:%s%s%s%s%s", (long long)bits, is_word ? "" : "g", group,
                         strcmp(scheme, "sym") == 0 ? "" : ":",
                         strcmp(scheme, "sym") == 0 ? "" : scheme, is_exported ? ":f16" : "");
    const qn_status parsed = qn_format_parse(text, &r->format, &err);
    if (parsed != QN_OK)
        status = complain_status(text, parsed, &err);
    qn_format_print(&r->format, r->format_text, sizeof r->format_text);
    free(text);
    return status;
}

int recipe_from_args(const struct args *args, struct recipe *r)
{
    *r = (struct recipe){.damping = 0.01, .alpha = 0.5};
    const char *method = args_text(args, "method", "rtn");
    const char *range = args_text(args, "range", NULL);
    const char *prescale = args_text(args, "prescale", "none");
    int status = read_format(args, r);
    status = status != 0 ? status : args_real(args, "damping", 0, 10, &r->damping);
    status = status != 0 ? status : args_real(args, "alpha", 0, 1, &r->alpha);
    r->method = strcmp(method, "gptq") == 0     ? QN_METHOD_GPTQ
                : strcmp(method, "search") == 0 ? QN_METHOD_SEARCH
                                                : QN_METHOD_RTN;
    if (range != NULL)
        r->range = strcmp(range, "half") == 0   ? QN_RANGE_HALF
                   : strcmp(range, "full") == 0 ? QN_RANGE_FULL
                                                : QN_RANGE_NARROW;
    r->prescale = strcmp(prescale, "awq") == 0      ? PRESCALE_AWQ
                  : strcmp(prescale, "smooth") == 0 ? PRESCALE_SMOOTH
                                                    : PRESCALE_NONE;
    r->act_order = args_has(args, "act-order");
    if (status == 0 && r->act_order && r->method != QN_METHOD_GPTQ)
        return complain(EXIT_USAGE, "add --method gptq", "--act-order: only GPTQ orders columns");
    r->plain_scales = args_has(args, "plain-scales");
    if (status == 0 && r->plain_scales && r->method != QN_METHOD_GPTQ)
        return complain(EXIT_USAGE, "add --method gptq, or leave it out",
                        "--plain-scales: without GPTQ, --method says how scales are found");
    if (status == 0 && args_has(args, "damping") && r->method != QN_METHOD_GPTQ)
        return complain(EXIT_USAGE, "add --method gptq", "--damping: only GPTQ has a diagonal");
    if (status == 0 && args_has(args, "alpha") && r->prescale != PRESCALE_SMOOTH)
        return complain(EXIT_USAGE, "add --prescale smooth", "--alpha: only SmoothQuant has it");
    if (status == 0 && !args_has(args, "calibration") &&
        (r->method == QN_METHOD_GPTQ || r->prescale != PRESCALE_NONE))
        return complain(EXIT_USAGE, "add --calibration FILE with activations by tensor name",
                        "%s: needs activations",
                        r->method == QN_METHOD_GPTQ ? "--method gptq" : "--prescale");
    return status;
}

/* ------------------------------------------------------------------------------------ choosing */

static int is_real(qn_dtype d)
{
    return d == QN_F32 || d == QN_F16 || d == QN_BF16;
}

/* What a graph does with the tensor; NULL: there is none, or nothing. */
static const struct graph_weight *find_weight(const struct source *source, const struct item *item)
{
    return source->graph == NULL ? NULL : graph_find(source->graph, item->tensor->name);
}

/* Why a tensor cannot be quantized, or NULL. */
static const char *refusal(const struct source *source, const struct item *item)
{
    const qn_tensor *t = &item->tensor->entry.tensor;
    if (!is_real(t->dtype))
        return "not f32, f16 or bf16";
    for (int32_t i = 0; i < t->rank; i++) {
        if (t->shape[i] == 0)
            return "empty";
    }
    if (item->axes.rank > 0)
        return NULL;
    if (source->graph != NULL)
        return find_weight(source, item) == NULL ? "no node of the graph has it as its weight"
                                                 : "nodes take it in different ways";
    if (t->rank == 3)
        return "3-d: --axes NAME=oiw (Conv1d) or NAME=eoi (experts) quantizes it";
    if (t->rank == 4)
        return "perhaps a transposed convolution: --axes NAME=iohw or NAME=oihw quantizes it";
    return "neither 2-d nor 4-d";
}

/* -------------------------------------------------------------------------------------- axes */

struct choice {
    struct chosen chosen;
    const struct source *source;
    const struct recipe *recipe;
    int is_gpt2; /* c_attn or c_fc have the bias of [in, out] */
    int is_kept; /* the result is the source's graph, from which all else is carried along */
};

/* Splits "PATTERN=VALUE" of an option; *pattern is to be freed. The value, or NULL after the error
 * was told. */
static const char *split_pattern(const char *option, const char *text, char **pattern)
{
    const char *equals = strrchr(text, '=');
    *pattern = NULL;
    if (equals == NULL) {
        complain(EXIT_USAGE, "write it as PATTERN=VALUE", "--%s '%s': no =", option, text);
        return NULL;
    }
    *pattern = must_print("%.*s", (int)(equals - text), text);
    return equals + 1;
}

/* The last --axes PATTERN=ORDER that matches. */
static int read_axes(struct choice *c, struct item *item)
{
    const char *text;
    for (int i = 0; (text = args_each(c->chosen.args, "axes", i)) != NULL; i++) {
        char *pattern;
        struct axes axes;
        const char *order = split_pattern("axes", text, &pattern);
        if (order == NULL)
            return EXIT_USAGE;
        const int matches = fnmatch(pattern, item->tensor->name, 0) == 0;
        const int is_exact = strcmp(pattern, item->tensor->name) == 0;
        free(pattern);
        if (!axes_parse(order, &axes))
            return complain(EXIT_USAGE, "orders look like oi, io, oihw, iohw, hwio, oiw, iow, eoi",
                            "--axes '%s': '%s' is no order of o, i, h, w and e", text, order);
        const int fits = axes.rank == item->tensor->entry.tensor.rank;
        if (!matches || (!fits && !is_exact)) /* a wide pattern is about those that it fits */
            continue;
        c->chosen.used[AXES][i] = 1;
        if (!fits)
            return complain(EXIT_USAGE, "give a letter for each dimension",
                            "--axes '%s': %s has %d dimensions", text, item->tensor->name,
                            item->tensor->entry.tensor.rank);
        item->axes = axes;
        item->axes_from = "option";
    }
    return 0;
}

/* Elements of the bias that belongs to a weight; 0: there is none. */
static int64_t bias_of(const struct source *source, const char *weight)
{
    const size_t length = strlen(weight);
    if (length <= 7 || strcmp(weight + length - 7, ".weight") != 0)
        return 0;
    char *name = must_print("%.*s.bias", (int)(length - 7), weight);
    const struct source_tensor *bias = source_find(source, name);
    free(name);
    return bias != NULL && bias->entry.tensor.rank == 1 ? bias->entry.tensor.shape[0] : 0;
}

static int contains_any(const char *name, const char *const *words)
{
    for (; *words != NULL; words++)
        if (strstr(name, *words) != NULL)
            return 1;
    return 0;
}

static const char *const gpt2_words[] = {".c_attn.", ".c_fc.", ".c_proj.", ".q_attn.", NULL};

/* A bias has as many elements as there are outputs, and tells which dimension these are where the
 * two differ. */
static void find_axes(const struct choice *c, struct item *item)
{
    static const char *const transposed[] = {"transpose", "Transpose", "deconv", "upconv", NULL};
    const qn_tensor *t = &item->tensor->entry.tensor;
    const struct graph_weight *w = find_weight(c->source, item);
    if (item->axes.rank == 0 && w != NULL && w->is_float && !w->is_mixed && !w->differs) {
        axes_parse(w->uses->axes, &item->axes);
        item->axes_from = "graph";
    }
    if (item->axes.rank > 0 || c->source->graph != NULL || (t->rank != 2 && t->rank != 4))
        return;
    const int is_conv = t->rank == 4;
    const int64_t bias = bias_of(c->source, item->tensor->name);
    const int is_second = bias > 0 && bias == t->shape[1] && bias != t->shape[0];
    const int is_first = bias > 0 && bias == t->shape[0] && bias != t->shape[1];
    const int is_like_gpt2 = c->is_gpt2 && contains_any(item->tensor->name, gpt2_words);
    item->axes_from = is_first || is_second ? "bias" : "assumed";
    if (is_second) {
        axes_parse(is_conv ? "iohw" : "io", &item->axes);
    } else if (!is_conv && !is_first && is_like_gpt2) {
        axes_parse("io", &item->axes);
        item->axes_from = "name"; /* the same layers elsewhere in the file have a bias to tell */
    } else if (!is_conv || is_first || !contains_any(item->tensor->name, transposed)) {
        axes_parse(is_conv ? "oihw" : "oi", &item->axes);
    }
}

static int has_gpt2(const struct source *s)
{
    for (int64_t i = 0; i < s->n_tensors; i++) {
        const qn_tensor *t = &s->tensors[i].entry.tensor;
        const int64_t bias = t->rank == 2 && contains_any(s->tensors[i].name, gpt2_words)
                                 ? bias_of(s, s->tensors[i].name)
                                 : 0;
        if (bias > 0 && bias == t->shape[1] && bias != t->shape[0])
            return 1;
    }
    return 0;
}

/* --conv-groups PATTERN=N, the last that matches. One input channel a group and several outputs are
 * taken for a depthwise convolution, transposed ones where the bias says so. */
static int read_groups(struct choice *c, struct item *item)
{
    const qn_tensor *t = &item->tensor->entry.tensor;
    const int64_t o = axes_size(&item->axes, t, AXIS_O), i = axes_size(&item->axes, t, AXIS_I);
    const struct graph_weight *w = find_weight(c->source, item);
    const char *text;
    int64_t groups = 1;
    if (w != NULL && !w->is_mixed)
        groups = w->uses->groups;
    else if (axes_are_transposed(&item->axes))
        groups = o == 1 && bias_of(c->source, item->tensor->name) == i ? i : 1;
    else if (i == 1)
        groups = o;
    for (int at = 0; (text = args_each(c->chosen.args, "conv-groups", at)) != NULL; at++) {
        int64_t given;
        char *pattern;
        const char *number = split_pattern("conv-groups", text, &pattern);
        if (number == NULL)
            return EXIT_USAGE;
        const int matches = fnmatch(pattern, item->tensor->name, 0) == 0;
        free(pattern);
        const int status = parse_int("--conv-groups", number, 1, INT32_MAX, &given);
        if (status != 0)
            return status;
        if (!matches)
            continue;
        groups = given;
        c->chosen.used[GROUPS][at] = 1;
        if (!axes_geometry(&item->axes, t, groups, &item->n, &item->k))
            return complain(EXIT_USAGE, "give a divisor of the channels",
                            "--conv-groups %s: the channels of %s are not divisible", text,
                            item->tensor->name);
    }
    item->groups = (int32_t)groups;
    return 0;
}

static double bits_of(qn_dtype dtype)
{
    return 8.0 * (double)qn_dtype_bytes(dtype);
}

/* Codes, and scale and shift of each group, as a quern file keeps them. */
static double size_of(const struct item *item, const struct recipe *r)
{
    const int64_t ci = item->k / ((int64_t)item->kh * item->kw);
    const qn_format *f = &item->format;
    const double groups = (double)qn_format_groups(f, item->k, ci);
    const double shift = f->shift == QN_SHIFT_ZERO     ? f->bits > 4 ? 16 : 8
                         : f->shift >= QN_SHIFT_OFFSET ? bits_of(f->scale_dtype)
                                                       : 0;
    double bits = (double)item->n * (double)item->k * f->bits;
    const double n_scales = f->group == QN_GROUP_PER_TENSOR ? 1 : (double)item->n * groups;
    bits += n_scales * (bits_of(f->scale_dtype) + shift);
    if (r->prescale != PRESCALE_NONE)
        bits += 32.0 * (double)item->k;
    if (r->act_order)
        bits += 32.0 * (double)item->k;
    return bits / 8;
}

/* What the weight can have within its graph. Nodes have scales of the type of what they compute;
 * where nobody asks for another format convolutions have 8 bits and one scale an output. Blocks of
 * DequantizeLinear lie within a tap, and operator sets before 21 do not have them: then there is
 * one scale an output, and one for all of a transposed convolution of groups. */
static void fit_format(const struct choice *c, struct item *item)
{
    static const qn_format usual = {
        .code = QN_CODE_INT, .bits = 8, .group = QN_GROUP_PER_CHANNEL, .scale_dtype = QN_F32};
    const struct graph_weight *w = find_weight(c->source, item);
    const int64_t taps = (int64_t)item->kh * item->kw, ci = item->k / taps;
    const int is_conv = item->axes.at[AXIS_W] >= 0;
    qn_format *f = &item->format;
    *f = c->recipe->format;
    if (!c->is_kept || w == NULL)
        return;
    if (is_conv && c->recipe->is_usual)
        *f = usual;
    const int is_pair =
        is_conv || !w->is_plain || strchr(args_text(c->chosen.args, "to", ""), ':') != NULL;
    const int has_blocks = c->source->graph->opset >= GRAPH_OPSET_OF_BLOCKS;
    const int crosses =
        f->group > 0 && is_conv && (taps > 1 || item->groups > 1) && ci % f->group != 0;
    if (crosses || (is_pair && f->group > 0 && !has_blocks))
        f->group = QN_GROUP_PER_CHANNEL;
    if (!has_blocks && axes_are_transposed(&item->axes) && item->groups > 1)
        f->group = QN_GROUP_PER_TENSOR;
    if (item->tensor->entry.tensor.dtype != QN_F32)
        f->scale_dtype = item->tensor->entry.tensor.dtype;
}

/* A name that --include gives in full, and an array that is a file of its own, are meant. */
static int is_meant(const struct choice *c, const struct item *item)
{
    const char *pattern;
    for (int i = 0; (pattern = args_each(c->chosen.args, "include", i)) != NULL; i++)
        if (strcmp(pattern, item->tensor->name) == 0)
            return 1;
    return args_has(c->chosen.args, "all") || qn_file_get_kind(item->tensor->file) == QN_FILE_NPY;
}

/* Does --to name a format of Hugging Face's folders? */
static int is_for_folder(const struct args *args)
{
    static const char *const others[] = {"quern", "packed", "gguf", "onnx"};
    const char *to = args_text(args, "to", "quern");
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (strncmp(to, others[i], strlen(others[i])) == 0)
            return 0;
    return 1;
}

static int find_geometry(struct choice *c, struct item *item)
{
    const qn_tensor *t = &item->tensor->entry.tensor;
    item->kh = (int32_t)axes_size(&item->axes, t, AXIS_H);
    item->kw = (int32_t)axes_size(&item->axes, t, AXIS_W);
    item->groups = 1;
    const int status = item->axes.at[AXIS_W] >= 0 ? read_groups(c, item) : 0;
    if (status == 0)
        axes_geometry(&item->axes, t, item->groups, &item->n, &item->k);
    return status;
}

static int choose_one(struct choice *c, struct item *item)
{
    const char *name = item->name = item->tensor->name;
    item->bytes_in = item->bytes_out = (double)item->tensor->entry.bytes;
    item->reason = chosen_refusal(&c->chosen, name);
    int status = read_axes(c, item);
    if (status == 0 && item->reason == NULL && is_part_of_weight(item->tensor->file, name))
        item->reason = "of a quantized weight";
    if (status == 0 && item->reason == NULL &&
        (item->scheme = foreign_scheme(c->source, name)) != NULL)
        item->reason = "of a weight that another program has quantized";
    if (status == 0 && item->reason == NULL) {
        find_axes(c, item);
        item->reason = refusal(c->source, item);
    }
    if (status == 0 && item->reason == NULL)
        status = find_geometry(c, item);
    if (status == 0 && item->reason == NULL && !is_meant(c, item)) {
        item->reason = skip_reason(name, item->n, item->k, item->axes.at[AXIS_W] < 0,
                                   is_for_folder(c->chosen.args));
        item->is_skipped = item->reason != NULL;
    }
    if (status != 0)
        return status;
    /* What another program has quantized is named when all is known (check_foreign). */
    const int is_named = item->scheme != NULL && !args_has(c->chosen.args, "copy-unknown");
    if (item->reason != NULL && !is_named && !c->is_kept &&
        item->tensor->entry.tensor.dtype == QN_DTYPE_NONE)
        return complain(EXIT_INPUT, "this version of quern cannot copy it; take it out of the file",
                        "tensor '%s': it has type %s", name, item->tensor->entry.dtype);
    if (item->reason != NULL)
        return 0;
    item->is_quantized = 1;
    fit_format(c, item);
    item->bytes_out = size_of(item, c->recipe);
    return 0;
}

static int by_place(const void *a, const void *b)
{
    const struct source_tensor *x = *(struct source_tensor *const *)a;
    const struct source_tensor *y = *(struct source_tensor *const *)b;
    if (x->file != y->file)
        return (x->file > y->file) - (x->file < y->file);
    return (x->entry.offset > y->entry.offset) - (x->entry.offset < y->entry.offset);
}

/* Room for one more. */
static struct item *append(struct items *items, int64_t *capacity)
{
    if (items->n == *capacity) {
        *capacity = *capacity > 0 ? 2 * *capacity : 64;
        items->at = must_grow(items->at, sizeof *items->at * (size_t)*capacity);
    }
    items->at[items->n] = (struct item){.tensor = NULL};
    return &items->at[items->n++];
}

/* Experts in one tensor become weights of their own, "NAME.0" to "NAME.e". */
static void split_experts(struct items *items, int64_t *capacity)
{
    const struct item all = items->at[items->n - 1];
    const int64_t experts = axes_size(&all.axes, &all.tensor->entry.tensor, AXIS_E);
    if (!all.is_quantized || all.axes.at[AXIS_E] < 0)
        return;
    items->n--;
    items->names =
        must_grow(items->names, sizeof *items->names * (size_t)(items->n_names + experts));
    for (int64_t e = 0; e < experts; e++) {
        struct item *item = append(items, capacity);
        *item = all;
        item->expert = e;
        item->bytes_in = all.bytes_in / (double)experts;
        items->names[items->n_names] = must_print("%s.%lld", all.tensor->name, (long long)e);
        item->name = items->names[items->n_names++];
    }
}

/* A model that is quantized already is refused by name rather than copied by halves. */
static int check_foreign(const struct args *args, const struct items *items)
{
    const struct item *first = NULL;
    int64_t n = 0;
    for (int64_t i = 0; i < items->n; i++) {
        if (items->at[i].scheme == NULL)
            continue;
        first = first == NULL ? &items->at[i] : first;
        n++;
    }
    if (n == 0 || args_has(args, "copy-unknown"))
        return 0;
    return complain(EXIT_INPUT,
                    "'quern convert' makes a quern file of the formats that it knows; or "
                    "--copy-unknown copies these tensors as they are",
                    "tensor '%s': it is part of a weight quantized already (%s), as %lld tensors "
                    "are",
                    first->name, first->scheme, (long long)n);
}

int items_choose(const struct args *args, const struct source *source, const struct recipe *recipe,
                 struct items *items)
{
    struct choice c = {.source = source, .recipe = recipe, .is_gpt2 = has_gpt2(source)};
    const int is_plan = args_has(args, "dry-run");
    c.is_kept = source->graph != NULL && strncmp(args_text(args, "to", ""), "onnx", 4) == 0;
    const size_t count = (size_t)source->n_tensors;
    int64_t capacity = 0;
    int status = chosen_begin(&c.chosen, args);
    *items = (struct items){.n = 0};
    if (status != 0)
        return status;
    const struct source_tensor **order = must_alloc(sizeof(struct source_tensor *) * count);
    for (size_t i = 0; i < count; i++)
        order[i] = &source->tensors[i];
    if (count > 0)
        qsort(order, count, sizeof(struct source_tensor *), by_place);
    for (size_t i = 0; i < count && status == 0; i++) {
        struct item *item = append(items, &capacity);
        item->tensor = order[i];
        status = choose_one(&c, item);
        if (status == 0 && c.is_kept && !item->is_quantized && !is_plan) {
            items->n_skipped += item->is_skipped;
            items->n--; /* the graph carries it along */
            continue;
        }
        if (status == 0)
            split_experts(items, &capacity);
    }
    free(order);
    for (int64_t i = 0; i < items->n && status == 0; i++) {
        const struct item *item = &items->at[i];
        items->n_quantized += item->is_quantized;
        items->n_skipped += item->is_skipped;
        items->bytes_in += item->bytes_in;
        items->bytes_out += item->bytes_out;
        items->bytes_to_quantize += item->is_quantized ? item->bytes_in : 0;
    }
    status = status != 0 ? status : chosen_check(&c.chosen, "tensor");
    return status != 0 ? status : check_foreign(args, items);
}

void items_free(struct items *items)
{
    for (int64_t i = 0; i < items->n_names; i++)
        free(items->names[i]);
    free(items->names);
    free(items->at);
    *items = (struct items){0};
}

void item_parts(const struct item *item, const struct recipe *r, qn_weight_parts *parts)
{
    static const int32_t some_perm;
    static const float some_prescale;
    qn_weight_parts_init(parts);
    parts->format = item->format;
    parts->n = item->n;
    parts->k = item->k;
    parts->kh = item->kh;
    parts->kw = item->kw;
    parts->conv_groups = item->groups;
    if (r->act_order)
        parts->perm = &some_perm;
    if (r->prescale != PRESCALE_NONE)
        parts->prescale = &some_prescale;
}
