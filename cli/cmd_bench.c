/* SPDX-License-Identifier: Apache-2.0 */
/* quern bench: is it right, how long does it take, and how far is that from what this machine can
 * do? bound = max(bytes / measured bandwidth, operations / measured peak). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "problem.h"
#include "term.h"

static const struct option_row own[] = {
    {"warm", 0, NULL, "one copy of the weights; else copies larger than the caches take turns"},
    {"min-time", 0, "SECONDS", "time for the runs of each case (default 0.5)"},
    {"plain", 0, NULL, "also time plain C loops over the same codes (slow), and compare"},
    {"json", 0, NULL, "one JSON object a line"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"a layer of a language model, decode and prefill",
     "quern bench --n 4096 --k 4096 --m 1,128 --weights int4:g128 --strategy int8-block"},
    {"all layers of a model, several formats, for a program",
     "quern bench --layers llama3-8b --weights int4:g128,q4_k --strategy float,int8-block --json"},
    {"a convolution",
     "quern bench --op conv2d --n 64 --ci 64 --size 56x56 --kernel-size 3x3 --pad 1 "
     "--weights int8:pc --strategy int8-row"},
    {"portable kernels against plain loops", "quern bench --n 1024 --k 1024 --m 16 --isa portable "
                                             "--plain"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_bench = {
    .name = "bench",
    .summary = "measure products and convolutions, and check them",
    .operands = "",
    .about =
        "Makes weights of the given shape and format, checks the result against sums in double, "
        "then measures. The limit is what the measured memory bandwidth and the measured peak of "
        "this machine's instructions allow for the bytes and operations of the problem.\n\n"
        "Weights are read from memory: copies that together exceed the last level cache take "
        "turns, "
        "unless --warm. Error is the root mean square of the deviation from x times the quantized "
        "weights, in double, relative to the result.",
    .tables = {options_problem, own, options_context, options_common},
    .examples = examples,
    .max_operands = 0,
    .shows_plans = 1,
    .run = run,
};

struct bench {
    qn_ctx *ctx;
    qn_ctx_info info;
    const char *device;
    struct table *table;
    double min_time;
    int is_json, is_warm, with_plain;
};

struct result {
    struct timing time;
    struct verdict verdict;
    double bytes, ops, bound, plain;
    enum peak peak;
    int is_memory_bound;
};

static void list_layers(void)
{
    static const struct column columns[] = {
        {"layer", '<', 0, 0}, {"op", '<', 0, 0}, {"shape", '<', 0, 0}, {NULL, 0, 0, 0}};
    struct table *t = table_create(columns);
    for (int i = 0; layer_at(i) != NULL; i++) {
        const struct layer *l = layer_at(i);
        table_cell(t, PLAIN, "%s/%s", l->model, l->name);
        table_cell(t, DIM, "%s", op_name(l->op));
        if (l->op == OP_CONV2D)
            table_cell(t, PLAIN, "%dx%dx%d -> %lld channels, %dx%d, stride %d, groups %d", l->ci,
                       l->side, l->side, (long long)l->n, l->kernel, l->kernel, l->stride,
                       l->groups);
        else if (l->op == OP_GROUPED)
            table_cell(t, PLAIN, "n=%lld k=%lld, %d of %d experts", (long long)l->n,
                       (long long)l->k, l->top_k, l->experts);
        else
            table_cell(t, PLAIN, "n=%lld k=%lld", (long long)l->n, (long long)l->k);
    }
    table_print(t);
    table_destroy(t);
}

/* --------------------------------------------------------------------------------- plain loops */

/* What one would write first, compiled like everything else: one sum after another. */
static double plain_float(const qn_weight_parts *w, const float *x, int64_t m, float *y)
{
    const int64_t group = w->format.group > 0 ? w->format.group : w->k;
    const float middle = (float)(1 << (w->format.bits - 1));
    const double begin = seconds_now();
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < w->n; j++) {
            float sum = 0;
            for (int64_t p = 0; p < w->k; p++) {
                const float value = (float)w->codes[j * w->k + p] - middle;
                sum += x[i * w->k + p] * value * w->scale[j * w->n_groups + p / group];
            }
            y[i * w->n + j] = sum;
        }
    }
    return seconds_now() - begin;
}

static double plain_int8(const qn_weight_parts *w, const int8_t *x, int64_t m, float *y)
{
    const int64_t group = w->format.group > 0 ? w->format.group : w->k;
    const int32_t middle = 1 << (w->format.bits - 1);
    const double begin = seconds_now();
    for (int64_t i = 0; i < m; i++) {
        for (int64_t j = 0; j < w->n; j++) {
            float sum = 0;
            for (int64_t g = 0; g * group < w->k; g++) {
                const int64_t end = (g + 1) * group < w->k ? (g + 1) * group : w->k;
                int32_t dot = 0;
                for (int64_t p = g * group; p < end; p++)
                    dot += x[i * w->k + p] * ((int32_t)w->codes[j * w->k + p] - middle);
                sum += (float)dot * w->scale[j * w->n_groups + g];
            }
            y[i * w->n + j] = sum;
        }
    }
    return seconds_now() - begin;
}

/* Seconds of the plain loops on one thread; 0 where there are none: convolutions, codebooks. */
static double time_plain(const struct workload *w)
{
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    qn_weight_view(w->weights[0], &parts);
    if (w->p.op != OP_MATMUL || parts.table != NULL || w->y_elements == 0)
        return 0;
    float *y = must_alloc(sizeof *y * (size_t)w->y_elements);
    int8_t *codes = must_alloc((size_t)w->x_elements);
    for (int64_t i = 0; i < w->x_elements; i++)
        codes[i] = (int8_t)fminf(fmaxf(w->x_exact[i] * 16, -127), 127);
    double best = 1e30;
    for (int try = 0; try < 3 && !is_stopped(); try++) {
        const double took = peak_of(w->p.strategy, "") == PEAK_INT8
                                ? plain_int8(&parts, codes, w->p.m, y)
                                : plain_float(&parts, w->x_exact, w->p.m, y);
        best = took < best ? took : best;
    }
    free(y);
    free(codes);
    return best;
}

/* ----------------------------------------------------------------------------------- reporting */

static double rounded(double value, double step)
{
    return round(value / step) * step;
}

static double significant(double value)
{
    char text[32];
    snprintf(text, sizeof text, "%.4g", value);
    return strtod(text, NULL);
}

static void add_conv(cJSON *o, const struct conv_shape *c)
{
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"batch", (double)c->batch},
        {"ci", (double)c->ci},
        {"h", (double)c->h},
        {"w", (double)c->w},
        {"oh", (double)c->oh},
        {"ow", (double)c->ow},
        {"kh", c->kh},
        {"kw", c->kw},
        {"groups", c->groups},
        {"stride_h", c->stride[0]},
        {"stride_w", c->stride[1]},
        {"pad_top", c->pad[0]},
        {"pad_left", c->pad[1]},
        {"pad_bottom", c->pad[2]},
        {"pad_right", c->pad[3]},
        {"dilation_h", c->dilation[0]},
        {"dilation_w", c->dilation[1]},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cJSON_AddNumberToObject(o, numbers[i].key, numbers[i].value);
    cJSON_AddStringToObject(o, "image", c->image == QN_NHWC ? "nhwc" : "nchw");
}

static void print_json(const struct bench *b, const struct workload *w, const struct result *r)
{
    const struct problem *p = &w->p;
    const double step = 1e-3; /* nanoseconds */
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "op", op_name(p->op));
    if (p->layer[0] != '\0')
        cJSON_AddStringToObject(o, "layer", p->layer);
    cJSON_AddNumberToObject(o, "n", (double)p->n);
    cJSON_AddNumberToObject(o, "k", (double)p->k);
    cJSON_AddNumberToObject(o, "m", (double)p->m);
    if (p->op == OP_CONV2D)
        add_conv(o, &p->conv);
    if (p->op == OP_GROUPED) {
        cJSON_AddNumberToObject(o, "experts", p->experts);
        cJSON_AddNumberToObject(o, "top_k", p->top_k);
    }
    cJSON_AddStringToObject(o, "weights", p->weights);
    cJSON_AddStringToObject(o, "strategy", qn_strategy_name(p->strategy));
    cJSON_AddStringToObject(o, "x", qn_dtype_name(p->x));
    cJSON_AddStringToObject(o, "y", qn_dtype_name(p->y));
    cJSON_AddStringToObject(o, "device", b->device);
    cJSON_AddNumberToObject(o, "threads", b->info.n_threads);
    cJSON_AddStringToObject(o, "isa", isa_newest(b->info.isa));
    cJSON_AddStringToObject(o, "kernel", w->info.kernel);
    cJSON_AddBoolToObject(o, "fallback", w->info.is_fallback);
    cJSON_AddStringToObject(o, "layout", w->facts.layout);
    cJSON_AddNumberToObject(o, "us_median", rounded(r->time.median * 1e6, step));
    cJSON_AddNumberToObject(o, "us_p10", rounded(r->time.p10 * 1e6, step));
    cJSON_AddNumberToObject(o, "us_p90", rounded(r->time.p90 * 1e6, step));
    cJSON_AddNumberToObject(o, "runs", r->time.runs);
    cJSON_AddNumberToObject(o, "bytes", r->bytes);
    cJSON_AddNumberToObject(o, "ops", r->ops);
    cJSON_AddNumberToObject(o, "gb_per_s", significant(r->bytes / r->time.median / 1e9));
    cJSON_AddNumberToObject(o, "gop_per_s", significant(r->ops / r->time.median / 1e9));
    cJSON_AddNumberToObject(o, "bound_us", rounded(r->bound * 1e6, step));
    cJSON_AddStringToObject(o, "bound_by", r->is_memory_bound ? "memory" : peak_name(r->peak));
    cJSON_AddNumberToObject(o, "fraction", significant(r->bound / r->time.median));
    cJSON_AddNumberToObject(o, "limit_gb_per_s", significant(measure_bandwidth(b->ctx) / 1e9));
    cJSON_AddNumberToObject(o, "limit_gop_per_s", significant(measure_peak(b->ctx, r->peak) / 1e9));
    cJSON_AddNumberToObject(o, "error", significant(r->verdict.error));
    cJSON_AddBoolToObject(o, "verified", r->verdict.is_good);
    cJSON_AddNumberToObject(o, "copies", w->copies);
    cJSON_AddBoolToObject(o, "warm", b->is_warm);
    cJSON_AddNumberToObject(o, "packed_bytes", (double)w->packed_bytes);
    if (b->with_plain && r->plain > 0) {
        cJSON_AddNumberToObject(o, "us_plain", rounded(r->plain * 1e6, step));
        cJSON_AddNumberToObject(o, "times_plain", significant(r->plain / r->time.median));
    }
    cJSON_AddStringToObject(o, "version", qn_version());
    cJSON_AddStringToObject(o, "commit", qn_commit());
    json_print(o, 1);
}

static const struct column columns[] = {
    {"layer", '<', 12, 0}, {"m", '>', 5, 0},        {"n", '>', 6, 0},
    {"k", '>', 6, 0},      {"weights", '<', 12, 0}, {"strategy", '<', 10, 0},
    {"median", '>', 8, 0}, {"p10", '>', 8, 0},      {"p90", '>', 8, 0},
    {"GB/s", '>', 6, 0},   {"Gop/s", '>', 7, 0},    {"of limit", '>', 8, 0},
    {"error", '>', 8, 0},  {"kernel", '<', 0, 0},   {NULL, 0, 0, 0},
};

static void print_row(struct bench *b, const struct workload *w, const struct result *r)
{
    const struct problem *p = &w->p;
    char a[HUMAN];
    struct table *t = b->table;
    const double fraction = r->bound / r->time.median;
    table_cell(t, PLAIN, "%s", p->layer[0] != '\0' ? p->layer : op_name(p->op));
    table_cell(t, PLAIN, "%lld", (long long)p->m);
    table_cell(t, PLAIN, "%lld", (long long)p->n);
    table_cell(t, PLAIN, "%lld", (long long)p->k);
    table_cell(t, PLAIN, "%s", p->weights);
    table_cell(t, PLAIN, "%s", qn_strategy_name(p->strategy));
    table_cell(t, BOLD, "%s", human_time(r->time.median, a));
    table_cell(t, DIM, "%s", human_time(r->time.p10, a));
    table_cell(t, DIM, "%s", human_time(r->time.p90, a));
    table_cell(t, PLAIN, "%s", human_number(r->bytes / r->time.median / 1e9, a));
    table_cell(t, PLAIN, "%s", human_number(r->ops / r->time.median / 1e9, a));
    table_cell(t,
               fraction > 0.6   ? GREEN
               : fraction > 0.2 ? PLAIN
                                : YELLOW,
               "%.0f %% %s", 100 * fraction, r->is_memory_bound ? "mem" : peak_name(r->peak));
    if (r->verdict.is_good)
        table_cell(t, PLAIN, "%s", human_error(r->verdict.error, a));
    else
        table_cell(t, RED, "WRONG");
    const char *kernel = w->info.kernel + (strncmp(w->info.kernel, "qni_", 4) == 0 ? 4 : 0);
    if (b->with_plain && r->plain > 0)
        table_cell(t, PLAIN, "%s (%.1f x plain loops)", kernel, r->plain / r->time.median);
    else
        table_cell(t, PLAIN, "%s", kernel);
    table_flow(t);
}

/* ------------------------------------------------------------------------------------- running */

static int measure(struct bench *b, struct workload *w, struct result *r)
{
    qn_status status = workload_run(w);
    if (status != QN_OK)
        return complain_status(op_name(w->p.op), status, NULL);
    workload_check(w, 1, &r->verdict);
    int failed = 0;
    if (!b->is_warm)
        failed = workload_rotate(w, rotation_bytes(b->ctx), 60);
    if (failed == 0 && (status = workload_time(w, b->min_time, &r->time)) != QN_OK)
        failed = complain_status(op_name(w->p.op), status, NULL);
    measure_again(b->ctx);
    if (failed != 0 || is_stopped())
        return is_stopped() ? EXIT_STOPPED : failed;
    r->plain = b->with_plain ? time_plain(w) : 0;
    r->bytes = workload_bytes(w);
    r->ops = workload_ops(w);
    r->peak = peak_of(w->p.strategy, w->info.kernel);
    const double by_memory = r->bytes / measure_bandwidth(b->ctx);
    const double by_peak = r->ops / measure_peak(b->ctx, r->peak);
    r->is_memory_bound = by_memory > by_peak;
    r->bound = r->is_memory_bound ? by_memory : by_peak;
    return 0;
}

static int run_one(struct bench *b, const struct problem *p)
{
    struct workload w;
    struct result r = {0};
    int status = workload_make(&w, b->ctx, p);
    if (status == 0)
        status = measure(b, &w, &r);
    if (status == 0) {
        if (b->is_json)
            print_json(b, &w, &r);
        else
            print_row(b, &w, &r);
        if (!r.verdict.is_good)
            status = complain(EXIT_DIFFERS, "please report it with this command line",
                              "%s by %s: the result is wrong: %s", p->weights, w.info.kernel,
                              r.verdict.why);
    }
    workload_free(&w);
    return status;
}

static int run_all(struct bench *b, const struct args *args)
{
    struct problem_list list;
    int status = problems_from_args(args, &list);
    if (status == 0) {
        for (int i = 0; i < list.n; i++) {
            const int one = is_stopped() ? EXIT_STOPPED : run_one(b, &list.items[i]);
            status = status == 0 || one == EXIT_STOPPED ? one : status;
            if (one == EXIT_STOPPED)
                break;
        }
    }
    problems_free(&list);
    return status;
}

static int run(const struct args *args)
{
    if (strcmp(args_text(args, "layers", ""), "list") == 0) {
        list_layers();
        return EXIT_GOOD;
    }
    struct bench b = {.min_time = 0.5, .device = args_text(args, "device", "cpu")};
    b.is_json = args_has(args, "json");
    b.is_warm = args_has(args, "warm");
    b.with_plain = args_has(args, "plain");
    int status = args_real(args, "min-time", 0, 3600, &b.min_time);
    status = status != 0 ? status : context_make(args, &b.ctx);
    if (status != 0)
        return status;
    qn_ctx_info_init(&b.info);
    qn_ctx_query(b.ctx, &b.info);
    stop_on_interrupt();
    b.table = table_create(columns);
    status = run_all(&b, args);
    table_destroy(b.table);
    qn_ctx_destroy(b.ctx);
    return status;
}
