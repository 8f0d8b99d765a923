/* SPDX-License-Identifier: Apache-2.0 */
/* quern bench: is it right, how long does it take, and how far is that from what this machine can
 * do? bound = max(bytes / measured bandwidth, operations / measured peak). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "peers.h"
#include "problem.h"
#include "ranks.h"
#include "term.h"

static const struct option_row own[] = {
    {"warm", 0, NULL, "one copy of the weights; else copies larger than the caches take turns"},
    {"min-time", 0, "SECONDS", "time for the runs of each case (default 0.5)"},
    {"pdl", 0, NULL,
     "GPU: programmatic dependent launch: weights are read while the call before ends"},
    {"plain", 0, NULL,
     "also time plain C loops over the same codes (slow; matmul with integer codes), and compare"},
    {"peers", 0, NULL, "also time other libraries, in turn with ours, and compare"},
    {"peer", 0, "NAME,...", "these of the other libraries alone, as in onednn,openblas"},
    {"peer-folder", 0, "FOLDER", "where their programs are (default: peers, beside the command)"},
    {"parallel", 0, "column|row|block",
     "over the processes of mpirun: outputs cut, k cut, or the two products of a feed-forward "
     "block"},
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
    {"a transposed convolution, as a decoder of images has",
     "quern bench --op conv_transpose2d --n 64 --ci 128 --size 28x28 --kernel-size 4x4 --stride 2 "
     "--pad 1 --weights int8:pc"},
    {"beside other libraries",
     "quern bench --n 4096 --k 4096 --m 1,32,512 --weights int8:pc --strategy int8-row --peers"},
    {"a layer over four processes",
     "mpirun -np 4 quern bench --parallel row --n 4096 --k 14336 --m 1,128 --weights int8:pc "
     "--strategy int8-row"},
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
        "Weights are read from memory: copies that together exceed the last level cache of every "
        "thread take turns, unless --warm. Error is the root mean square of the deviation from x "
        "times the quantized "
        "weights, in double, relative to the result.\n\n"
        "With --peers, programs of other libraries (bench/peer.h; 'make bench-peers' builds them) "
        "get the same x and weights, as many copies and as many threads, and are timed in turn "
        "with ours in short stretches; ours / theirs is the ratio of the medians. They may do what "
        "suits them before the time begins: reorder weights, and quantize them to their formats."
        "\n\n"
        "With --parallel, mpirun starts several of this command, which share one product: strong "
        "scaling (the problem as given) and weak (as many times n, or k, as there are processes). "
        "Product is each process's own part alone, exchange what all takes longer than that, "
        "predicted what latency and bandwidth, which are measured first, let one expect of it. "
        "Times are medians, of the slowest process; nobody else may compute meanwhile.",
    .tables = {options_problem, own, options_ranks, options_context, options_tuning,
               options_common},
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
    int is_json, is_warm, with_plain, with_pdl;
    struct peers *peers; /* NULL: none */
    char machine[192];
    char *command;
};

struct result {
    struct timing time;
    struct verdict verdict;
    double bytes, ops, bound, plain;
    double predicted_us; /* on a GPU; else 0 */
    enum peak peak;
    int is_memory_bound;
    struct contest contests[MAX_CONTESTS];
    int n_contests;
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

/* Seconds of the plain loops on one thread; 0 where there are none: convolutions, codebooks,
 * floats. */
static double time_plain(const struct workload *w)
{
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    qn_weight_view(w->weights[0], &parts);
    if (w->p.op != OP_MATMUL || parts.table != NULL || parts.format.code == QN_CODE_FLOAT ||
        w->y_elements == 0)
        return 0;
    float *y = must_alloc(sizeof *y * (size_t)w->y_elements);
    int8_t *codes = must_alloc((size_t)w->x_elements);
    for (int64_t i = 0; i < w->x_elements; i++)
        codes[i] = (int8_t)fminf(fmaxf(w->x_exact[i] * 16, -127), 127);
    double best = 1e30;
    for (int try = 0; try < 3 && !is_stopped(); try++) {
        const double took = is_float_strategy(w->p.strategy)
                                ? plain_float(&parts, w->x_exact, w->p.m, y)
                                : plain_int8(&parts, codes, w->p.m, y);
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
    json_add_images(o, c);
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"stride_h", c->stride[0]},     {"stride_w", c->stride[1]},     {"pad_top", c->pad[0]},
        {"pad_left", c->pad[1]},        {"pad_bottom", c->pad[2]},      {"pad_right", c->pad[3]},
        {"dilation_h", c->dilation[0]}, {"dilation_w", c->dilation[1]},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cJSON_AddNumberToObject(o, numbers[i].key, numbers[i].value);
}

static void add_peers(cJSON *o, const struct result *r)
{
    cJSON *list = cJSON_AddArrayToObject(o, "peers");
    for (int i = 0; i < r->n_contests; i++) {
        const struct contest *c = &r->contests[i];
        cJSON *one = cJSON_CreateObject();
        cJSON_AddStringToObject(one, "peer", c->peer);
        cJSON_AddStringToObject(one, "version", c->version);
        cJSON_AddStringToObject(one, "way", c->way);
        cJSON_AddNumberToObject(one, "us_median", rounded(c->time.median * 1e6, 1e-3));
        cJSON_AddNumberToObject(one, "us_p10", rounded(c->time.p10 * 1e6, 1e-3));
        cJSON_AddNumberToObject(one, "us_p90", rounded(c->time.p90 * 1e6, 1e-3));
        cJSON_AddNumberToObject(one, "runs", c->time.runs);
        if (c->time.median > 0)
            cJSON_AddNumberToObject(one, "ratio", significant(r->time.median / c->time.median));
        if (c->error >= 0)
            cJSON_AddNumberToObject(one, "error", significant(c->error));
        cJSON_AddBoolToObject(one, "verified", c->is_good);
        if (!c->is_good)
            cJSON_AddStringToObject(one, "why", c->why);
        cJSON_AddItemToArray(list, one);
    }
}

/* The name of a value of qn_plan_info.ran, which says which rows of a plan ran. */
static const char *ran_name(int32_t ran)
{
    static const char *const names[] = {"none", "kernel", "stand_in", "both"};
    return names[ran & 3];
}

static void print_json(const struct bench *b, const struct workload *w, const struct result *r)
{
    const struct problem *p = &w->p;
    const double step = 1e-3; /* nanoseconds */
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "op", problem_op_name(p));
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
    if (w->info.stand_in != NULL) {
        cJSON_AddStringToObject(o, "stand_in", w->info.stand_in);
        cJSON_AddStringToObject(o, "ran", ran_name(w->info.ran));
    }
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
    if (r->predicted_us > 0)
        cJSON_AddNumberToObject(o, "predicted_us", rounded(r->predicted_us, step));
    if (device_of(b->ctx).kind == QN_CUDA)
        cJSON_AddBoolToObject(o, "pdl", b->with_pdl);
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
    if (b->peers != NULL)
        add_peers(o, r);
    cJSON_AddStringToObject(o, "version", qn_version());
    cJSON_AddStringToObject(o, "commit", qn_commit());
    cJSON_AddStringToObject(o, "machine", b->machine);
    cJSON_AddStringToObject(o, "command", b->command);
    json_print(o, 1);
}

#define LEADING                                                                                    \
    {"layer", '<', 12, 0}, {"m", '>', 5, 0}, {"n", '>', 6, 0}, {"k", '>', 6, 0},                   \
        {"weights", '<', 12, 0}, {"strategy", '<', 10, 0}, {"median", '>', 8, 0},                  \
        {"p10", '>', 8, 0}, {"p90", '>', 8, 0}, {"GB/s", '>', 6, 0}, {"Gop/s", '>', 7, 0},         \
        {"of limit", '>', 8, 0},                                                                   \
    {                                                                                              \
        "error", '>', 8, 0                                                                         \
    }
static const struct column columns[] = {LEADING, {"kernel", '<', 0, 0}, {NULL, 0, 0, 0}};
static const struct column columns_peers[] = {
    LEADING, {"ours/theirs", '>', 11, 0}, {"kernel", '<', 0, 0}, {NULL, 0, 0, 0}};

/* A row of the same shape that only has what a peer has. */
static void print_contest(struct bench *b, const struct result *r, const struct contest *c)
{
    char a[HUMAN];
    struct table *t = b->table;
    const double ratio = c->time.median > 0 ? r->time.median / c->time.median : 0;
    for (int i = 0; i < 6; i++)
        table_cell(t, PLAIN, "%s", i == 0 ? "  beside" : "");
    table_cell(t, PLAIN, "%s", human_time(c->time.median, a));
    table_cell(t, DIM, "%s", human_time(c->time.p10, a));
    table_cell(t, DIM, "%s", human_time(c->time.p90, a));
    table_cell(t, PLAIN, "%s", "");
    table_cell(t, PLAIN, "%s", human_number(r->ops / c->time.median / 1e9, a));
    table_cell(t, PLAIN, "%s", "");
    if (c->is_good)
        table_cell(t, PLAIN, "%s", human_error(c->error, a));
    else
        table_cell(t, RED, "WRONG");
    table_cell(t, ratio < 1 ? GREEN : YELLOW, "%.2f", ratio);
    table_cell(t, PLAIN, "%s %.12s: %s%s%s", c->peer, c->version, c->way, c->is_good ? "" : ": ",
               c->why);
}

static void print_row(struct bench *b, const struct workload *w, const struct result *r)
{
    const struct problem *p = &w->p;
    char a[HUMAN];
    struct table *t = b->table;
    const double fraction = r->bound / r->time.median;
    table_cell(t, PLAIN, "%s", p->layer[0] != '\0' ? p->layer : problem_op_name(p));
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
    if (b->peers != NULL)
        table_cell(t, PLAIN, "%s", "");
    const char *const ran = w->info.ran == 2 ? w->info.stand_in : w->info.kernel;
    const char *kernel = ran + (strncmp(ran, "qni_", 4) == 0 ? 4 : 0);
    if (b->with_plain && r->plain > 0)
        table_cell(t, PLAIN, "%s (%.1f x plain loops)", kernel, r->plain / r->time.median);
    else
        table_cell(t, PLAIN, "%s", kernel);
    for (int i = 0; i < r->n_contests; i++)
        print_contest(b, r, &r->contests[i]);
    table_flow(t);
}

/* ------------------------------------------------------------------------------------- running */

/* Ours and every peer in turn. A pause between two lets the threads of the one before fall asleep:
 * several libraries let them spin for a while after each call. */
static qn_status time_in_turn(struct bench *b, struct workload *w, struct result *r)
{
    enum { ROUNDS = 5 };
    /* After OpenBLAS, half of our runs took twice as long with 0.03 s, none with 0.12 s. */
    const double pause = 0.12;
    /* A thread that slept is put beside the one that woke it: for some calls both share a
     * processor. */
    const double waking_time = 0.02;
    struct samples ours = {NULL, 0}, waking = {NULL, 0};
    const double stretch = b->min_time / ROUNDS;
    const size_t rotate = b->is_warm ? 0 : rotation_bytes(b->ctx);
    qn_status status = QN_OK;
    r->n_contests = peers_make(b->peers, w, rotate, r->contests);
    for (int round = 0; round < ROUNDS && status == QN_OK && !is_stopped(); round++) {
        sleep_seconds(pause);
        status = workload_sample(w, waking_time, 2, &waking);
        if (status == QN_OK)
            status = workload_sample(w, stretch, 1, &ours);
        for (int i = 0; i < r->n_contests && !is_stopped(); i++) {
            sleep_seconds(pause);
            peers_run(b->peers, &r->contests[i], stretch);
        }
    }
    r->time = timing_of(&ours);
    for (int i = 0; i < r->n_contests && !is_stopped(); i++) {
        struct contest *c = &r->contests[i];
        c->time = timing_of(&c->samples);
        peers_check(b->peers, w, c);
    }
    peers_drop(b->peers, r->contests, r->n_contests);
    samples_free(&ours);
    samples_free(&waking);
    return status;
}

static int measure(struct bench *b, struct workload *w, struct result *r)
{
    qn_error err = {0};
    qn_status status = workload_run(w);
    if (status == QN_OK)
        status = workload_finish(w, &err);
    if (status != QN_OK)
        return complain_status(problem_op_name(&w->p), status, err.status == status ? &err : NULL);
    workload_check(w, 1, &r->verdict);
    int failed = 0;
    if (!b->is_warm)
        failed = workload_rotate(w, rotation_bytes(b->ctx), 60);
    if (failed == 0) {
        status = b->peers != NULL ? time_in_turn(b, w, r) : workload_time(w, b->min_time, &r->time);
        if (status != QN_OK)
            failed = complain_status(problem_op_name(&w->p), status, NULL);
    }
    measure_again(b->ctx);
    if (failed != 0 || is_stopped())
        return is_stopped() ? EXIT_STOPPED : failed;
    qn_plan_query(w->plan, &w->info); /* it tells which rows ran */
    r->plain = b->with_plain ? time_plain(w) : 0;
    r->bytes = workload_bytes(w);
    r->ops = workload_ops(w);
    r->peak = peak_of(b->ctx, w->p.strategy, w->p.format.bits, w->info.kernel);
    const double by_memory = r->bytes / measure_bandwidth(b->ctx);
    const double by_peak = r->ops / measure_peak(b->ctx, r->peak);
    qn_cuda_prediction prediction;
    qn_cuda_prediction_init(&prediction);
    if (qn_cuda_predict(w->plan, &prediction) == QN_OK)
        r->predicted_us = prediction.us;
    r->is_memory_bound = by_memory > by_peak;
    r->bound = r->is_memory_bound ? by_memory : by_peak;
    return 0;
}

/* Do the weights of problem a serve b? */
static int has_same_weights(const struct problem *a, const struct problem *b)
{
    return a->op == b->op && a->op != OP_CONV2D && a->layer == b->layer && a->n == b->n &&
           a->k == b->k && a->experts == b->experts && a->top_k == b->top_k &&
           a->strategy == b->strategy && a->x == b->x && a->x != QN_I8 && a->x != QN_U8 &&
           a->y == b->y && strcmp(a->weights, b->weights) == 0;
}

/* w: of the problem before, or nothing yet. */
static int run_one(struct bench *b, struct workload *w, const struct problem *p)
{
    struct result r = {0};
    int status;
    if (w->plan != NULL && has_same_weights(&w->p, p)) {
        status = workload_again(w, p->m, p->strategy);
    } else {
        workload_free(w);
        status = workload_make(w, b->ctx, p);
    }
    if (status == 0)
        status = measure(b, w, &r);
    if (status == 0) {
        if (b->is_json)
            print_json(b, w, &r);
        else
            print_row(b, w, &r);
        if (!r.verdict.is_good)
            status = complain(EXIT_DIFFERS, "please report it with this command line",
                              "%s by %s: the result is wrong: %s", p->weights, w->info.kernel,
                              r.verdict.why);
    }
    return status;
}

static int run_all(struct bench *b, const struct args *args)
{
    struct problem_list list;
    struct workload w = {0};
    int status = problems_from_args(args, &list);
    if (status == 0) {
        for (int i = 0; i < list.n; i++) {
            const int one = is_stopped() ? EXIT_STOPPED : run_one(b, &w, &list.items[i]);
            status = status == 0 || one == EXIT_STOPPED ? one : status;
            if (one == EXIT_STOPPED)
                break;
        }
    }
    workload_free(&w);
    problems_free(&list);
    return status;
}

/* --pdl, on the context that is there. */
static int choose_launches(struct bench *b)
{
    if (!b->with_pdl)
        return 0;
    const qn_status status = qn_cuda_set_pdl(b->ctx, 1);
    return status == QN_OK
               ? 0
               : complain(EXIT_USAGE, "give --device cuda", "--pdl: launches are a matter of GPUs");
}

static int run(const struct args *args)
{
    if (strcmp(args_text(args, "layers", ""), "list") == 0) {
        list_layers();
        return EXIT_GOOD;
    }
    if (args_has(args, "parallel"))
        return bench_parallel(args, args_text(args, "parallel", ""));
    struct bench b = {.min_time = 0.5, .device = args_text(args, "device", "cpu")};
    b.is_json = args_has(args, "json");
    b.is_warm = args_has(args, "warm");
    b.with_plain = args_has(args, "plain");
    b.with_pdl = args_has(args, "pdl");
    int status = args_real(args, "min-time", 0, 3600, &b.min_time);
    status = status != 0 ? status : context_make(args, &b.ctx);
    if (status != 0)
        return status;
    const char *only = args_text(args, "peer", NULL);
    if ((only != NULL || args_has(args, "peers")) && device_of(b.ctx).kind != QN_CPU)
        status = complain(EXIT_USAGE, "bench/gpu.py measures them on a GPU",
                          "--%s: these are peers on the CPU", only != NULL ? "peer" : "peers");
    else if (only != NULL || args_has(args, "peers"))
        status = peers_start(args_text(args, "peer-folder", NULL), only, &b.peers);
    status = status != 0 ? status : choose_launches(&b);
    if (status != 0) {
        qn_ctx_destroy(b.ctx);
        return status;
    }
    machine_words(b.ctx, b.machine, sizeof b.machine);
    b.command = args_words(args);
    qn_ctx_info_init(&b.info);
    qn_ctx_query(b.ctx, &b.info);
    stop_on_interrupt();
    b.table = table_create(b.peers != NULL ? columns_peers : columns);
    status = run_all(&b, args);
    table_destroy(b.table);
    free(b.command);
    if (b.peers != NULL)
        peers_stop(b.peers);
    qn_ctx_destroy(b.ctx);
    return status;
}
