/* SPDX-License-Identifier: Apache-2.0 */
/* quern explain: the library's own words about a plan, or why there is none. */
#include <stdlib.h>
#include <string.h>

#include "problem.h"
#include "term.h"

static const struct option_row own[] = {
    {"json", 0, NULL, "one JSON object a line"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"why this kernel, and why not the others",
     "quern explain --n 4096 --k 4096 --m 1 --weights int4:g128 --strategy int8-block"},
    {"what a machine without AMX would do",
     "quern explain --layers resnet50/layer1.conv2 --weights int8:pc --strategy int8-row "
     "--isa -amx_int8"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_explain = {
    .name = "explain",
    .summary = "why this kernel, and why not the others",
    .operands = "",
    .about = "Plans the problem and prints what was chosen - kernel, tiles, scratch, bytes, "
             "operations - and then every other kernel with its reason for refusing. Where no "
             "kernel serves, the reason for that comes first. Nothing is "
             "run.\n\nThe options are those of bench.",
    .tables = {options_problem, own, options_context, options_tuning, options_common},
    .examples = examples,
    .max_operands = 0,
    .shows_plans = 1,
    .run = run,
};

static char *explanation(const struct workload *w)
{
    const size_t length = workload_explain(w, NULL, 0);
    char *text = must_alloc(length + 1);
    workload_explain(w, text, length + 1);
    return text;
}

static void add_plan(cJSON *o, const struct workload *w)
{
    cJSON_AddStringToObject(o, "kernel", w->info.kernel);
    cJSON_AddNumberToObject(o, "threads", w->info.n_threads);
    cJSON_AddBoolToObject(o, "fallback", w->info.is_fallback);
    cJSON_AddBoolToObject(o, "exact", w->info.is_exact);
    cJSON_AddNumberToObject(o, "scratch_bytes", (double)w->info.scratch_bytes);
    cJSON_AddNumberToObject(o, "bytes", w->info.bytes);
    cJSON_AddNumberToObject(o, "ops", w->info.ops);
    qn_cuda_prediction prediction;
    qn_cuda_prediction_init(&prediction);
    if (qn_cuda_predict(w->plan, &prediction) == QN_OK) {
        cJSON_AddNumberToObject(o, "predicted_us", prediction.us);
        cJSON_AddNumberToObject(o, "roofline_us", prediction.roofline_us);
    }
}

/* w->plan is NULL where nothing serves: there is no kernel then, and its facts are left out. */
static void print_json(const struct workload *w, const char *text)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "op", problem_op_name(&w->p));
    cJSON_AddNumberToObject(o, "n", (double)w->p.n);
    cJSON_AddNumberToObject(o, "k", (double)w->p.k);
    cJSON_AddNumberToObject(o, "m", (double)w->p.m);
    cJSON_AddStringToObject(o, "weights", w->p.weights);
    cJSON_AddStringToObject(o, "strategy", qn_strategy_name(w->p.strategy));
    cJSON_AddStringToObject(o, "layout", w->facts.layout);
    cJSON_AddBoolToObject(o, "served", w->plan != NULL);
    if (w->plan != NULL)
        add_plan(o, w);
    cJSON_AddStringToObject(o, "text", text);
    json_print(o, 1);
}
/* The explanation stands on stdout whether or not there is a plan; without one, the failure and its
 * exit status are those of every command. */
static int explain_one(qn_ctx *ctx, const struct problem *p, int is_json)
{
    struct workload w;
    int status = workload_weights(&w, ctx, p);
    if (status == 0) {
        char *text = explanation(&w);
        if (!is_json) {
            if (p->layer[0] != '\0')
                printf("%s%s%s\n", style_on(stdout, BOLD), p->layer, style_off(stdout));
            fputs(text, stdout);
            puts(text[0] != '\0' && text[strlen(text) - 1] == '\n' ? "" : "\n");
        }
        status = workload_choose(&w);
        if (is_json)
            print_json(&w, text);
        free(text);
    }
    workload_free(&w);
    return status;
}

static int run(const struct args *args)
{
    qn_ctx *ctx = NULL;
    struct problem_list list;
    int status = problems_from_args(args, &list);
    if (status == 0)
        status = context_make(args, &ctx);
    for (int i = 0; ctx != NULL && i < list.n; i++) {
        const int one = explain_one(ctx, &list.items[i], args_has(args, "json"));
        status = status == 0 ? one : status;
    }
    problems_free(&list);
    qn_ctx_destroy(ctx);
    return status;
}
