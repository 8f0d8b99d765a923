/* SPDX-License-Identifier: Apache-2.0 */
/* Which tensors are quantized, how, and what they will take: the plan of `quern quantize`. */
#define _GNU_SOURCE
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

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
    char *text = format != NULL
                     ? must_copy(format)
                     : must_print("int%lld:%s%s%s%s", (long long)bits, is_word ? "" : "g", group,
                                  strcmp(scheme, "sym") == 0 ? "" : ":",
                                  strcmp(scheme, "sym") == 0 ? "" : scheme);
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

/* Why a tensor cannot be quantized, or NULL. */
static const char *refusal(const qn_entry *entry)
{
    const qn_tensor *t = &entry->tensor;
    if (!is_real(t->dtype))
        return "not f32, f16 or bf16";
    if (t->rank != 2 && t->rank != 4)
        return "neither 2-d nor 4-d";
    for (int32_t i = 0; i < t->rank; i++) {
        if (t->shape[i] == 0)
            return "empty";
    }
    return NULL;
}

/* Do these scales or offsets belong to weights that another program has quantized (GPTQ, AWQ, MLX,
 * compressed tensors, block-scaled FP8)? Then there are its codes beside them. */
static int is_foreign_scale(const struct source *s, const char *name)
{
    static const char *const endings[] = {".scales", ".biases", ".weight_scale",
                                          ".weight_scale_inv", NULL};
    static const char *const codes[] = {".qweight", ".weight_packed", ".weight", NULL};
    const char *dot = strrchr(name, '.');
    int found = 0;
    for (int i = 0; dot != NULL && endings[i] != NULL; i++)
        found |= strcmp(dot, endings[i]) == 0;
    for (int i = 0; found && codes[i] != NULL; i++) {
        char *sibling = must_print("%.*s%s", (int)(dot - name), name, codes[i]);
        const struct source_tensor *t = source_find(s, sibling);
        free(sibling);
        if (t != NULL)
            return !is_real(t->entry.tensor.dtype);
    }
    return 0;
}

/* --conv-groups PATTERN=N, the last that matches. One input channel a group and several outputs are
 * taken for a depthwise convolution. */
static int read_groups(struct chosen *chosen, struct item *item)
{
    const struct args *const args = chosen->args;
    const char *text;
    int64_t groups = item->tensor->entry.tensor.shape[1] == 1 ? item->n : 1;
    for (int i = 0; (text = args_each(args, "conv-groups", i)) != NULL; i++) {
        int64_t given;
        const char *equals = strrchr(text, '=');
        if (equals == NULL)
            return complain(EXIT_USAGE, "write it as PATTERN=N", "--conv-groups '%s': no number",
                            text);
        char *pattern = must_print("%.*s", (int)(equals - text), text);
        const int matches = fnmatch(pattern, item->tensor->name, 0) == 0;
        free(pattern);
        const int status = parse_int("--conv-groups", equals + 1, 1, INT32_MAX, &given);
        if (status != 0)
            return status;
        if (!matches)
            continue;
        groups = given;
        chosen->used[GROUPS][i] = 1;
        if (item->n % groups != 0)
            return complain(EXIT_USAGE, "give a divisor of the output channels",
                            "--conv-groups %s: %lld outputs of %s are not divisible", text,
                            (long long)item->n, item->tensor->name);
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
    const double groups = (double)qn_format_groups(&r->format, item->k, ci);
    const double shift = r->format.shift == QN_SHIFT_ZERO     ? r->format.bits > 4 ? 16 : 8
                         : r->format.shift == QN_SHIFT_OFFSET ? bits_of(r->format.scale_dtype)
                                                              : 0;
    double bits = (double)item->n * (double)item->k * r->format.bits;
    const double n_scales = r->format.group == QN_GROUP_PER_TENSOR ? 1 : (double)item->n * groups;
    bits += n_scales * (bits_of(r->format.scale_dtype) + shift);
    if (r->prescale != PRESCALE_NONE)
        bits += 32.0 * (double)item->k;
    if (r->act_order)
        bits += 32.0 * (double)item->k;
    return bits / 8;
}

static int choose_one(struct chosen *chosen, const struct source *source, const struct recipe *r,
                      struct item *item)
{
    const qn_tensor *t = &item->tensor->entry.tensor;
    const char *name = item->tensor->name;
    const char *const left_out = chosen_refusal(chosen, name);
    const int is_part = is_part_of_weight(item->tensor->file, item->tensor->name);
    const int is_scale = is_foreign_scale(source, item->tensor->name);
    item->reason = left_out != NULL      ? left_out
                   : is_part || is_scale ? "of a quantized weight"
                                         : refusal(&item->tensor->entry);
    item->bytes_out = (double)item->tensor->entry.bytes;
    if (item->reason != NULL && t->dtype == QN_DTYPE_NONE)
        return complain(EXIT_INPUT, "this version of quern cannot copy it; take it out of the file",
                        "tensor '%s': it has type %s", name, item->tensor->entry.dtype);
    if (item->reason != NULL)
        return 0;
    item->is_quantized = 1;
    item->n = t->shape[0];
    item->kh = t->rank == 4 ? (int32_t)t->shape[2] : 1;
    item->kw = t->rank == 4 ? (int32_t)t->shape[3] : 1;
    item->k = t->shape[1] * item->kh * item->kw;
    item->groups = 1;
    item->bytes_out = size_of(item, r);
    return t->rank == 4 ? read_groups(chosen, item) : 0;
}

static int by_place(const void *a, const void *b)
{
    const struct source_tensor *x = ((const struct item *)a)->tensor;
    const struct source_tensor *y = ((const struct item *)b)->tensor;
    if (x->file != y->file)
        return (x->file > y->file) - (x->file < y->file);
    return (x->entry.offset > y->entry.offset) - (x->entry.offset < y->entry.offset);
}

int items_choose(const struct args *args, const struct source *source, const struct recipe *recipe,
                 struct items *items)
{
    struct chosen chosen;
    int status = chosen_begin(&chosen, args);
    *items = (struct items){.n = source->n_tensors};
    if (status != 0)
        return status;
    items->at = must_alloc(sizeof *items->at * (size_t)items->n);
    for (int64_t i = 0; i < items->n; i++)
        items->at[i].tensor = &source->tensors[i];
    if (items->n > 0)
        qsort(items->at, (size_t)items->n, sizeof *items->at, by_place);
    for (int64_t i = 0; i < items->n && status == 0; i++) {
        struct item *item = &items->at[i];
        status = choose_one(&chosen, source, recipe, item);
        items->n_quantized += item->is_quantized;
        items->bytes_in += (double)item->tensor->entry.bytes;
        items->bytes_out += item->bytes_out;
        if (item->is_quantized)
            items->bytes_to_quantize += (double)item->tensor->entry.bytes;
    }
    return status != 0 ? status : chosen_check(&chosen, "tensor");
}

void items_free(struct items *items)
{
    free(items->at);
    *items = (struct items){0};
}

void item_parts(const struct item *item, const struct recipe *r, qn_weight_parts *parts)
{
    static const int32_t some_perm;
    static const float some_prescale;
    qn_weight_parts_init(parts);
    parts->format = r->format;
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

/* -------------------------------------------------------------------------------------- output */

void items_print(const struct items *items, const struct recipe *r)
{
    static const struct column columns[] = {
        {"tensor", '<', 0, 1}, {"shape", '<', 0, 0}, {"type", '<', 0, 0}, {"becomes", '<', 0, 0},
        {"before", '>', 0, 0}, {"after", '>', 0, 0}, {NULL, 0, 0, 0},
    };
    struct table *t = table_create(columns);
    char shape[SHAPE_TEXT], a[HUMAN];
    for (int64_t i = 0; i < items->n; i++) {
        const struct item *item = &items->at[i];
        const qn_entry *e = &item->tensor->entry;
        table_cell(t, PLAIN, "%s", item->tensor->name);
        table_cell(t, PLAIN, "%s", shape_text(&e->tensor, shape));
        table_cell(t, PLAIN, "%s", e->dtype);
        if (!item->is_quantized)
            table_cell(t, DIM, "copied: %s", item->reason);
        else if (item->groups > 1)
            table_cell(t, GREEN, "%s, %d groups", r->format_text, item->groups);
        else
            table_cell(t, GREEN, "%s", r->format_text);
        table_cell(t, PLAIN, "%s", human_bytes((double)e->bytes, a));
        table_cell(t, PLAIN, "%s", human_bytes(item->bytes_out, a));
    }
    table_print(t);
    table_destroy(t);
    char b[HUMAN];
    printf("\n%lld of %lld tensors would be quantized to %s: %s become about %s (%.1f %%)\n",
           (long long)items->n_quantized, (long long)items->n, r->format_text,
           human_bytes(items->bytes_in, a), human_bytes(items->bytes_out, b),
           items->bytes_in > 0 ? 100 * items->bytes_out / items->bytes_in : 100);
}

cJSON *items_json(const struct items *items, const struct recipe *r)
{
    cJSON *list = cJSON_CreateArray();
    for (int64_t i = 0; i < items->n; i++) {
        const struct item *item = &items->at[i];
        const qn_entry *e = &item->tensor->entry;
        cJSON *o = cJSON_CreateObject(), *shape = cJSON_CreateArray();
        cJSON_AddStringToObject(o, "name", item->tensor->name);
        for (int32_t d = 0; d < e->tensor.rank; d++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)e->tensor.shape[d]));
        cJSON_AddItemToObject(o, "shape", shape);
        cJSON_AddStringToObject(o, "dtype", e->dtype);
        cJSON_AddBoolToObject(o, "quantized", item->is_quantized);
        if (item->is_quantized)
            cJSON_AddStringToObject(o, "format", r->format_text);
        else
            cJSON_AddStringToObject(o, "reason", item->reason);
        if (item->groups > 1)
            cJSON_AddNumberToObject(o, "conv_groups", item->groups);
        cJSON_AddNumberToObject(o, "bytes_before", (double)e->bytes);
        cJSON_AddNumberToObject(o, "bytes_after", (double)(int64_t)(item->bytes_out + 0.5));
        cJSON_AddItemToArray(list, o);
    }
    return list;
}
