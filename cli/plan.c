/* SPDX-License-Identifier: Apache-2.0 */
/* What `quern quantize` says about its plan: the table of --dry-run, the same as JSON, and what was
 * skipped and what was assumed in sentences. */
#include <stdlib.h>
#include <string.h>

#include "quantize.h"
#include "term.h"

/* "kept as they are by rule: 2 embedding, 1 router", in the order in which the reasons come. */
static void print_skipped(const struct items *items)
{
    enum { MAX_REASONS = 16 };
    const char *reasons[MAX_REASONS];
    int64_t counts[MAX_REASONS];
    int n = 0;
    for (int64_t i = 0; i < items->n; i++) {
        int at = 0;
        if (!items->at[i].is_skipped)
            continue;
        while (at < n && strcmp(reasons[at], items->at[i].reason) != 0)
            at++;
        if (at == MAX_REASONS)
            continue;
        if (at == n) {
            reasons[n] = items->at[i].reason;
            counts[n++] = 0;
        }
        counts[at]++;
    }
    for (int i = 0; i < n; i++)
        printf("%s%lld %s", i == 0 ? "kept as they are by rule: " : "; ", (long long)counts[i],
               reasons[i]);
    if (n > 0)
        printf(" (--all quantizes them, too)\n");
}

/* Weights of this rank whose axes are what is usual, because nothing says more. */
static void print_assumed(const struct items *items, const char *order, const char *words)
{
    int64_t n = 0;
    const char *name = NULL;
    for (int64_t i = 0; i < items->n; i++) {
        const struct item *item = &items->at[i];
        if (!item->is_quantized || strcmp(item->axes.text, order) != 0 ||
            strcmp(item->axes_from, "assumed") != 0)
            continue;
        name = name == NULL ? item->name : name;
        n++;
    }
    char *shown = name != NULL ? text_shown(must_copy(name)) : NULL;
    if (n > 0)
        printf("%lld weight%s taken as %s, for want of a bias that tells (%s%s); --axes 'GLOB=%s' "
               "for others\n",
               (long long)n, n == 1 ? "" : "s", words, shown, n == 1 ? "" : ", ...",
               strlen(order) == 2 ? "io" : "iohw");
    free(shown);
}

void items_notes(const struct items *items)
{
    print_skipped(items);
    print_assumed(items, "oi", "[out, in]");
    print_assumed(items, "oihw", "[out, in, h, w]");
}

void items_print(const struct items *items, const struct recipe *r)
{
    static const struct column columns[] = {
        {"tensor", '<', 0, 1}, {"shape", '<', 0, 0}, {"type", '<', 0, 0},    {"before", '>', 0, 0},
        {"after", '>', 0, 0},  {"axes", '<', 0, 0},  {"becomes", '<', 0, 0}, {NULL, 0, 0, 0},
    };
    struct table *t = table_create(columns);
    char shape[SHAPE_TEXT], a[HUMAN], format[FORMAT_TEXT];
    for (int64_t i = 0; i < items->n; i++) {
        const struct item *item = &items->at[i];
        const qn_entry *e = &item->tensor->entry;
        qn_format_print(&item->format, format, sizeof format);
        table_cell(t, PLAIN, "%s", item->name);
        table_cell(t, PLAIN, "%s", shape_text(&e->tensor, shape));
        table_cell(t, PLAIN, "%s", e->dtype);
        table_cell(t, PLAIN, "%s", human_bytes(item->bytes_in, a));
        table_cell(t, PLAIN, "%s", human_bytes(item->bytes_out, a));
        if (item->is_quantized)
            table_cell(t, PLAIN, "%s, %s", item->axes.text, item->axes_from);
        else
            table_cell(t, PLAIN, "%s", "");
        if (!item->is_quantized)
            table_cell(t, DIM, "copied: %s%s%s%s", item->reason, item->scheme != NULL ? " (" : "",
                       item->scheme != NULL ? item->scheme : "", item->scheme != NULL ? ")" : "");
        else if (item->groups > 1)
            table_cell(t, GREEN, "%s, %d groups", format, item->groups);
        else
            table_cell(t, GREEN, "%s", format);
    }
    table_print(t);
    table_destroy(t);
    char b[HUMAN];
    printf("\n%lld of %lld tensors would be quantized to %s: %s become about %s (%.1f %%)\n",
           (long long)items->n_quantized, (long long)items->n, r->format_text,
           human_bytes(items->bytes_in, a), human_bytes(items->bytes_out, b),
           items->bytes_in > 0 ? 100 * items->bytes_out / items->bytes_in : 100);
    items_notes(items);
}

cJSON *items_json(const struct items *items)
{
    char format[FORMAT_TEXT];
    cJSON *list = cJSON_CreateArray();
    for (int64_t i = 0; i < items->n; i++) {
        const struct item *item = &items->at[i];
        const qn_entry *e = &item->tensor->entry;
        cJSON *o = cJSON_CreateObject(), *shape = cJSON_CreateArray();
        cJSON_AddStringToObject(o, "name", item->name);
        for (int32_t d = 0; d < e->tensor.rank; d++)
            cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)e->tensor.shape[d]));
        cJSON_AddItemToObject(o, "shape", shape);
        cJSON_AddStringToObject(o, "dtype", e->dtype);
        cJSON_AddBoolToObject(o, "quantized", item->is_quantized);
        if (item->is_quantized) {
            qn_format_print(&item->format, format, sizeof format);
            cJSON_AddStringToObject(o, "format", format);
            cJSON_AddStringToObject(o, "axes", item->axes.text);
            cJSON_AddStringToObject(o, "axes_from", item->axes_from);
        } else {
            cJSON_AddStringToObject(o, "reason", item->reason);
            cJSON_AddBoolToObject(o, "skipped", item->is_skipped);
        }
        if (item->axes.at[AXIS_E] >= 0 && item->is_quantized) {
            cJSON_AddStringToObject(o, "tensor", item->tensor->name);
            cJSON_AddNumberToObject(o, "expert", (double)item->expert);
        }
        if (item->scheme != NULL)
            cJSON_AddStringToObject(o, "quantized_by", item->scheme);
        if (item->groups > 1)
            cJSON_AddNumberToObject(o, "conv_groups", item->groups);
        cJSON_AddNumberToObject(o, "bytes_before", item->bytes_in);
        cJSON_AddNumberToObject(o, "bytes_after", (double)(int64_t)(item->bytes_out + 0.5));
        cJSON_AddItemToArray(list, o);
    }
    return list;
}
