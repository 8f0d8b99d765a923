/* SPDX-License-Identifier: Apache-2.0 */
/* quern tune: constants of the GPU's cost model from measured times (those of the CPU's are in
 * tune_cpu.c). Each kernel of the model is asked for by name, for products of several shapes, and
 * timed in a graph (qn_cuda_measure); the library tells the model's terms of each
 * (qn_cuda_predict), a fit gives the constants. What the numbers multiply does not matter here, so
 * weights are random codes. */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "fit.h"
#include "problem.h"
#include "term.h"
#include "ranks.h"
#include "tuning.h"

static const struct option_row own[] = {
    {"device", 0, "DEVICE", "cuda (default), cuda:INDEX or cpu"},
    {"isa", 0, "LIST", "cpu: instructions that may be used; else QUERN_ISA"},
    {"threads", 't', "N", "cpu: threads; 0: as many as this process may use; else QUERN_THREADS"},
    {"output", 'o', "FILE", "where the constants are kept (default: where --tuning looks)"},
    {"quick", 'q', NULL, "fewer shapes"},
    {"weights", 'w', "SPEC,...", "formats to measure with (default int4:g128,int8:pc)"},
    {"dry-run", 0, NULL, "measure and report; write nothing"},
    {"json", 0, NULL, "one JSON object a line: what was measured, then the constants"},
    {"comm", 0, NULL, "measure exchanges between the processes of mpirun instead"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"measure this machine's first GPU; bench, run, explain and demo use the result", "quern tune"},
    {"how good are the library's constants?", "quern tune --dry-run"},
    {"and for groups of 32 and zero points?", "quern tune --dry-run -q --weights q4_0,int4:g64:zp"},
    {"keep them somewhere else", "quern tune --device cuda:1 -o gpu1.json"},
    {"this processor, with all its threads", "quern tune --device cpu -o cpu.json"},
    {"what lies between two processes", "mpirun -np 2 quern tune --comm"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_tune = {
    .name = "tune",
    .summary = "measure the constants by which plans choose kernels",
    .operands = "",
    .about =
        "A plan on a GPU takes the kernel that a model of costs finds fastest: time = t0 + max( "
        "bytes / bandwidth, steps of 64 positions x the time of one ). The library has constants "
        "for each kind of GPU; this command measures those of the GPU at hand. Every kernel that "
        "serves it multiplies several shapes, and the constants that deviate least from the times "
        "are written to a file.\n\n"
        "The table shows, for each line of the model, the library's constants and the measured "
        "ones, and how far predictions are from the times, typically and at most. Below stands in "
        "how many cases the model chose the fastest kernel or one within 10 % of it.\n\n"
        "The file is written when all is measured; Ctrl-C leaves things as they were. It holds "
        "one entry for each GPU by name. Nothing else may run on the GPU meanwhile.\n\n"
        "With --device cpu: every kernel of the processor's model multiplies weights that stay in "
        "the caches, and the median of measured over predicted time is what the library's "
        "constants are multiplied with; so is the bandwidth of the memory. Commands use them where "
        "--tuning names the file.\n\n"
        "With --comm, nothing of a GPU: latency and bandwidth between the processes that mpirun "
        "has started, for qn_comm.latency_s and .bytes_per_s.",
    .tables = {own, options_ranks, options_common},
    .examples = examples,
    .max_operands = 0,
    .shows_plans = 1,
    .run = run,
};

/* ----------------------------------------------------------------------------- what is measured */

static const int64_t shapes_all[][2] = {
    {4096, 4096}, {1024, 4096}, {14336, 4096}, {4096, 14336}, {8192, 8192}};
static const int64_t shapes_quick[][2] = {{4096, 4096}, {8192, 8192}};
static const int64_t rows_all[] = {1,  2,   4,   8,   12,  16,  24,   32,   48,  64,
                                   96, 128, 192, 256, 384, 512, 1024, 2048, 4096};
static const int64_t rows_quick[] = {1, 8, 16, 32, 64, 128, 256, 1024};

enum { MAX_WEIGHTS_OF_TUNE = 8, MAX_COPIES = 64, MAX_SAMPLES = 4096, REPLAYS = 7 };

struct sample {
    int line;
    int which; /* a case: the same for all kernels that did it */
    int64_t n, k, m;
    int is_int8;
    const char *weights;
    struct fit_sample fit;
};

struct tune {
    qn_ctx *ctx;
    qn_cuda_info gpu;
    qn_cuda_cost lines[MAX_LINES];
    int n_lines;
    struct sample *samples;
    int n_samples, n_cases;
    int is_quick, is_json;
    char *weights[MAX_WEIGHTS_OF_TUNE];
    int n_weights;
    int64_t most_m;
    struct progress progress;
};

/* One shape on the device: packed copies that together exceed the second level cache, x and y. */
struct stage {
    struct tune *t;
    int64_t n, k;
    const char *weights;
    int bits;
    qn_packed *packed[MAX_COPIES];
    int copies;
    size_t bytes; /* of a copy */
    void *x, *y, *scratch;
    size_t scratch_bytes;
};

static int failed(const struct stage *s, qn_status status, const qn_error *err)
{
    char *what = must_print("tune: n=%lld k=%lld %s", (long long)s->n, (long long)s->k, s->weights);
    const int exit_status = complain_status(what, status, err);
    free(what);
    return exit_status;
}

static qn_status make_weight(const struct stage *s, const qn_format *format, qn_weight **weight,
                             qn_error *err)
{
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    parts.format = *format;
    const size_t groups = (size_t)(s->n * qn_format_groups(format, s->k, s->k));
    uint8_t *codes = must_alloc((size_t)(s->n * s->k) + 8);
    float *facts = must_alloc(sizeof *facts * groups);
    const uint64_t mask = (UINT64_C(1) << format->bits) - 1;
    uint64_t state = 7;
    for (int64_t i = 0; i < s->n * s->k; i += 8) {
        const uint64_t eight = random_next(&state) & mask * UINT64_C(0x0101010101010101);
        memcpy(codes + i, &eight, sizeof eight);
    }
    for (size_t i = 0; i < groups; i++)
        facts[i] = 0.015625f;
    parts.n = s->n;
    parts.k = s->k;
    parts.codes = codes;
    parts.scale = facts;
    parts.offset = format->shift >= QN_SHIFT_OFFSET ? facts : NULL;
    int32_t *zero = format->shift == QN_SHIFT_ZERO ? must_alloc(sizeof *zero * groups) : NULL;
    parts.zero = zero;
    const qn_status status = qn_weight_create(s->t->ctx, &parts, weight, err);
    free(codes);
    free(facts);
    free(zero);
    return status;
}

static qn_status pack_copies(struct stage *s, const qn_weight *weight, qn_error *err)
{
    const size_t wanted = 5 * s->t->gpu.l2_bytes;
    qn_status status = QN_OK;
    do {
        qn_packed_info info;
        qn_packed_info_init(&info);
        status = qn_pack(s->t->ctx, weight, NULL, &s->packed[s->copies], err);
        if (status == QN_OK) {
            qn_packed_query(s->packed[s->copies++], &info);
            s->bytes = info.bytes;
        }
    } while (status == QN_OK && s->copies < MAX_COPIES &&
             ((size_t)s->copies * s->bytes < wanted || s->copies < 2) && !is_stopped());
    return status;
}

/* x: the same few rows again and again. */
static qn_status make_rows(struct stage *s, qn_error *err)
{
    enum { DISTINCT = 64 };
    const int64_t count = DISTINCT * s->k;
    const size_t bytes = 2 * (size_t)count, rows = (size_t)(s->t->most_m + DISTINCT - 1);
    float *exact = must_alloc(sizeof *exact * (size_t)count);
    uint8_t *x = must_alloc(rows / DISTINCT * bytes);
    random_activations(3, count, s->k, exact);
    for (size_t at = 0; at < rows / DISTINCT; at++)
        floats_to(exact, QN_F16, count, x + at * bytes);
    qn_status status = qn_cuda_alloc(s->t->ctx, rows / DISTINCT * bytes, &s->x, err);
    if (status == QN_OK)
        status = qn_cuda_alloc(s->t->ctx, 2 * (size_t)(s->t->most_m * s->n), &s->y, err);
    if (status == QN_OK)
        status = qn_cuda_upload(s->t->ctx, s->x, x, rows / DISTINCT * bytes, err);
    free(exact);
    free(x);
    return status;
}

static void stage_free(struct stage *s)
{
    for (int i = 0; i < s->copies; i++)
        qn_packed_destroy(s->packed[i]);
    qn_cuda_free(s->t->ctx, s->x);
    qn_cuda_free(s->t->ctx, s->y);
    qn_cuda_free(s->t->ctx, s->scratch);
}

static int stage_make(struct stage *s)
{
    qn_error err = {0};
    qn_weight *weight = NULL;
    qn_format format;
    qn_status status = qn_format_parse(s->weights, &format, &err);
    s->bits = format.bits <= 4 ? 4 : 8;
    if (status == QN_OK)
        status = make_weight(s, &format, &weight, &err);
    if (status == QN_OK)
        status = pack_copies(s, weight, &err);
    qn_weight_destroy(weight);
    if (status == QN_OK)
        status = make_rows(s, &err);
    return status == QN_OK ? 0 : failed(s, status, &err);
}

/* --------------------------------------------------------------------------------------- timing */

struct call {
    const struct stage *s;
    const qn_plan *plan;
    qn_matmul_args args;
};

static qn_status call_once(void *arg, int32_t i)
{
    const struct call *c = arg;
    qn_matmul_args a = c->args;
    a.w = c->s->packed[i % c->s->copies];
    return qn_matmul_run(c->plan, &a, c->s->scratch, c->s->scratch_bytes);
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static qn_tensor on_device(const struct stage *s, void *data, int64_t rows, int64_t columns)
{
    qn_tensor t = qn_tensor_2d(data, QN_F16, rows, columns);
    t.device = device_of(s->t->ctx);
    return t;
}

/* Scratch as large as any plan of this shape wanted so far. */
static qn_status need_scratch(struct stage *s, size_t bytes, qn_error *err)
{
    if (bytes <= s->scratch_bytes)
        return QN_OK;
    qn_cuda_free(s->t->ctx, s->scratch);
    s->scratch = NULL;
    s->scratch_bytes = 0;
    const qn_status status = qn_cuda_alloc(s->t->ctx, bytes, &s->scratch, err);
    s->scratch_bytes = status == QN_OK ? bytes : 0;
    return status;
}

/* The median of some replays. A short call is repeated with every copy, a long one a few times. */
static qn_status time_plan(struct stage *s, struct call *c, double predicted, double *us,
                           qn_error *err)
{
    double all[REPLAYS];
    const int32_t turns = (24 + s->copies - 1) / s->copies * s->copies;
    const int32_t calls = predicted < 60 ? turns : predicted < 400 ? 10 : 4;
    const qn_status status = qn_cuda_measure(s->t->ctx, call_once, c, calls, REPLAYS, all, err);
    qsort(all, REPLAYS, sizeof *all, by_size);
    *us = all[REPLAYS / 2];
    return status;
}

static qn_strategy strategy_of(const qn_cuda_cost *cost)
{
    if (strcmp(cost->family, "rounded") == 0) /* weights, to the type of x */
        return QN_STRATEGY_DENSE;
    return cost->is_int8 ? QN_STRATEGY_INT8_ROW : QN_STRATEGY_FLOAT;
}

/* One kernel on one case; a kernel that does not serve it is passed over. */
static int measure_line(struct stage *s, int line, int64_t m, struct sample *sample, int *is_there)
{
    const qn_cuda_cost *cost = &s->t->lines[line];
    qn_error err = {0};
    qn_plan *plan = NULL;
    qn_cuda_prediction p;
    qn_cuda_prediction_init(&p);
    struct call c = {.s = s};
    qn_matmul_args_init(&c.args);
    c.args.w = s->packed[0];
    c.args.x = on_device(s, s->x, m, s->k);
    c.args.y = on_device(s, s->y, m, s->n);
    c.args.strategy = strategy_of(cost);
    c.args.kernel = cost->kernel;
    qn_status status = qn_matmul_plan(s->t->ctx, &c.args, &plan, &err);
    *is_there = status == QN_OK;
    if (status == QN_E_UNSUPPORTED)
        return 0;
    if (status == QN_OK)
        status = need_scratch(s, qn_plan_scratch_bytes(plan), &err);
    if (status == QN_OK)
        status = qn_cuda_predict(plan, &p);
    c.plan = plan;
    if (status == QN_OK)
        status = time_plan(s, &c, p.us, &sample->fit.us, &err);
    qn_plan_destroy(plan);
    sample->line = line;
    sample->n = s->n;
    sample->k = s->k;
    sample->m = m;
    sample->is_int8 = cost->is_int8;
    sample->weights = s->weights;
    sample->fit.bytes = p.bytes;
    sample->fit.steps = p.steps;
    sample->fit.before_us = p.before_us;
    return status == QN_OK ? 0 : failed(s, status, &err);
}

static void print_sample(const struct tune *t, const struct sample *s)
{
    const qn_cuda_cost *line = &t->lines[s->line];
    const struct fit_line now = {line->t0_us, line->bandwidth, line->block_ns};
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "kernel", line->kernel);
    cJSON_AddNumberToObject(o, "n", (double)s->n);
    cJSON_AddNumberToObject(o, "k", (double)s->k);
    cJSON_AddNumberToObject(o, "m", (double)s->m);
    cJSON_AddStringToObject(o, "weights", s->weights);
    cJSON_AddStringToObject(o, "strategy", qn_strategy_name(strategy_of(line)));
    cJSON_AddNumberToObject(o, "us", round(s->fit.us * 1e3) / 1e3);
    cJSON_AddNumberToObject(o, "predicted_us", round(fit_predict(&now, &s->fit) * 1e3) / 1e3);
    cJSON_AddNumberToObject(o, "bytes", s->fit.bytes);
    cJSON_AddNumberToObject(o, "steps", s->fit.steps);
    cJSON_AddNumberToObject(o, "before_us", s->fit.before_us);
    json_print(o, 1);
}

/* All kernels of one arithmetic on one case. How far a kernel is from the fastest decides how much
 * its time counts: where nobody would choose it, its prediction need not be good. */
static int measure_case(struct stage *s, int is_int8, int64_t m)
{
    struct tune *t = s->t;
    const int first = t->n_samples;
    int status = 0;
    double least = INFINITY;
    for (int i = 0; i < t->n_lines && status == 0; i++) {
        int is_there = 0;
        if (t->lines[i].bits != s->bits || t->lines[i].is_int8 != is_int8 ||
            t->n_samples == MAX_SAMPLES)
            continue;
        if (is_stopped())
            return EXIT_STOPPED;
        status = measure_line(s, i, m, &t->samples[t->n_samples], &is_there);
        if (status != 0 || !is_there)
            continue;
        t->samples[t->n_samples].which = t->n_cases;
        least = fmin(least, t->samples[t->n_samples].fit.us);
        t->n_samples++;
    }
    for (int i = first; i < t->n_samples; i++) {
        t->samples[i].fit.weight = least / t->samples[i].fit.us;
        if (t->is_json && status == 0)
            print_sample(t, &t->samples[i]);
    }
    t->n_cases++;
    return status;
}

static int measure_shape(struct tune *t, const int64_t shape[2], const char *weights)
{
    struct stage s = {.t = t, .n = shape[0], .k = shape[1], .weights = weights};
    const int64_t *rows = t->is_quick ? rows_quick : rows_all;
    const int n_rows = t->is_quick ? (int)(sizeof rows_quick / sizeof *rows_quick)
                                   : (int)(sizeof rows_all / sizeof *rows_all);
    char what[96];
    snprintf(what, sizeof what, "%lld x %lld, %s", (long long)s.n, (long long)s.k, weights);
    progress_what(&t->progress, what);
    progress_line(&t->progress, "measuring %s", what);
    int status = stage_make(&s);
    for (int is_int8 = 0; is_int8 < 2 && status == 0; is_int8++) {
        for (int i = 0; i < n_rows && status == 0; i++) {
            status = is_stopped() ? EXIT_STOPPED : measure_case(&s, is_int8, rows[i]);
            progress_set(&t->progress, t->progress.done + 1);
        }
    }
    stage_free(&s);
    return status;
}

static int measure_all(struct tune *t)
{
    const int64_t(*shapes)[2] = t->is_quick ? shapes_quick : shapes_all;
    const int n_shapes = t->is_quick ? (int)(sizeof shapes_quick / sizeof *shapes_quick)
                                     : (int)(sizeof shapes_all / sizeof *shapes_all);
    const int n_rows = t->is_quick ? (int)(sizeof rows_quick / sizeof *rows_quick)
                                   : (int)(sizeof rows_all / sizeof *rows_all);
    int status = 0;
    t->most_m = t->is_quick ? rows_quick[n_rows - 1] : rows_all[n_rows - 1];
    progress_begin(&t->progress, n_shapes * n_rows * t->n_weights * 2, 0, 0);
    t->progress.is_count = 1;
    for (int w = 0; w < t->n_weights && status == 0; w++)
        for (int i = 0; i < n_shapes && status == 0; i++)
            status = measure_shape(t, shapes[i], t->weights[w]);
    progress_end(&t->progress);
    if (status == EXIT_STOPPED)
        complain(EXIT_STOPPED, "run it again when ready", "tune: stopped, nothing was written");
    return status;
}

/* -------------------------------------------------------------------------------------- results */

struct fitted {
    struct fit_line old, new;
    struct fit_quality old_quality, new_quality;
    int n, worst; /* worst: a sample, -1 */
};

static void fit_one(const struct tune *t, int line, struct fitted *f)
{
    struct fit_sample *own_samples = must_alloc(sizeof *own_samples * (size_t)t->n_samples);
    int *at = must_alloc(sizeof *at * (size_t)t->n_samples);
    const qn_cuda_cost *c = &t->lines[line];
    *f = (struct fitted){.old = {c->t0_us, c->bandwidth, c->block_ns}, .worst = -1};
    for (int i = 0; i < t->n_samples; i++) {
        if (t->samples[i].line == line) {
            at[f->n] = i;
            own_samples[f->n++] = t->samples[i].fit;
        }
    }
    const double fastest = t->gpu.bandwidth > 0 ? t->gpu.bandwidth : INFINITY;
    f->new = fit_line_to(own_samples, f->n, &f->old, fastest);
    f->old_quality = fit_quality_of(&f->old, own_samples, f->n);
    f->new_quality = fit_quality_of(&f->new, own_samples, f->n);
    if (f->new_quality.worst_at >= 0)
        f->worst = at[f->new_quality.worst_at];
    free(own_samples);
    free(at);
}

/* How many choices of the model are the fastest kernel or within a tenth of it, and the worst. */
struct choices {
    int good, all, worst_at; /* of the chosen kernel; -1 */
    double worst;
};

static struct choices judge(const struct tune *t, const struct fitted *lines, int is_new)
{
    struct choices c = {0, 0, -1, 1};
    for (int i = 0, end; i < t->n_samples; i = end) {
        int chosen = i;
        double predicted = INFINITY, least = INFINITY;
        for (end = i; end < t->n_samples && t->samples[end].which == t->samples[i].which; end++) {
            const struct sample *s = &t->samples[end];
            const struct fitted *f = &lines[s->line];
            const double us = fit_predict(is_new ? &f->new : &f->old, &s->fit);
            chosen = us < predicted ? end : chosen;
            predicted = fmin(predicted, us);
            least = fmin(least, s->fit.us);
        }
        const double ratio = t->samples[chosen].fit.us / least;
        c.all++;
        c.good += ratio <= 1.1;
        if (ratio > c.worst || c.worst_at < 0) {
            c.worst = ratio;
            c.worst_at = chosen;
        }
    }
    return c;
}

static void print_choices(const struct tune *t, const char *whose, const struct choices *c)
{
    if (c->worst_at < 0)
        return;
    const struct sample *s = &t->samples[c->worst_at];
    printf("%s chose the fastest kernel, or one within 10 %% of it, in %d of %d cases; at worst "
           "%.2f times its time\n  (n %lld, k %lld, m %lld, %s, %s: %s)\n",
           whose, c->good, c->all, c->worst, (long long)s->n, (long long)s->k, (long long)s->m,
           s->weights, s->is_int8 ? "int8-row" : "float", t->lines[s->line].kernel);
}

static void print_table(const struct tune *t, const struct fitted *lines)
{
    static const struct column columns[] = {
        {"kernels", '<', 0, 0},  {"rows", '>', 0, 0},     {"of x", '<', 0, 0},
        {"bits", '>', 0, 0},     {"t0 us", '>', 0, 0},    {"measured", '>', 0, 0},
        {"GB/s", '>', 0, 0},     {"measured", '>', 0, 0}, {"block ns", '>', 0, 0},
        {"measured", '>', 0, 0}, {"off by", '>', 0, 0},   {"measured", '>', 0, 0},
        {"at most", '>', 0, 0},  {"where", '<', 0, 0},    {NULL, 0, 0, 0}};
    struct table *table = table_create(columns);
    for (int i = 0; i < t->n_lines; i++) {
        const struct fitted *f = &lines[i];
        const qn_cuda_cost *c = &t->lines[i];
        table_cell(table, PLAIN, "%s", c->family);
        table_cell(table, PLAIN, "%d", c->rows);
        table_cell(table, PLAIN, "%s", c->is_int8 ? "int8" : "f16");
        table_cell(table, PLAIN, "%d", c->bits);
        table_cell(table, DIM, "%.1f", f->old.t0_us);
        table_cell(table, BOLD, "%.1f", f->new.t0_us);
        table_cell(table, DIM, "%.0f", f->old.bandwidth * 1e-9);
        table_cell(table, BOLD, "%.0f", f->new.bandwidth * 1e-9);
        table_cell(table, DIM, "%.1f", f->old.block_ns);
        table_cell(table, BOLD, "%.1f", f->new.block_ns);
        table_cell(table, DIM, "%.2f x", f->old_quality.typical);
        table_cell(table, BOLD, "%.2f x", f->new_quality.typical);
        table_cell(table, PLAIN, "%.2f x", f->new_quality.worst);
        if (f->worst < 0)
            table_cell(table, YELLOW, "not measured: no such shape is served");
        else
            table_cell(table, PLAIN, "%lld x %lld, m %lld", (long long)t->samples[f->worst].n,
                       (long long)t->samples[f->worst].k, (long long)t->samples[f->worst].m);
    }
    table_print(table);
    table_destroy(table);
}

static void print_line_json(const struct tune *t, const struct fitted *f, int i)
{
    const qn_cuda_cost *c = &t->lines[i];
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "family", c->family);
    cJSON_AddNumberToObject(o, "rows", c->rows);
    cJSON_AddBoolToObject(o, "int8", c->is_int8);
    cJSON_AddNumberToObject(o, "bits", c->bits);
    cJSON_AddNumberToObject(o, "samples", f->n);
    cJSON_AddNumberToObject(o, "t0_us", f->new.t0_us);
    cJSON_AddNumberToObject(o, "gb_per_s", f->new.bandwidth * 1e-9);
    cJSON_AddNumberToObject(o, "block_ns", f->new.block_ns);
    cJSON_AddNumberToObject(o, "typical_ratio", f->new_quality.typical);
    cJSON_AddNumberToObject(o, "worst_ratio", f->new_quality.worst);
    cJSON_AddNumberToObject(o, "typical_ratio_before", f->old_quality.typical);
    cJSON_AddNumberToObject(o, "worst_ratio_before", f->old_quality.worst);
    json_print(o, 1);
}

static void print_choices_json(const struct tune *t, const struct choices *old,
                               const struct choices *new)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "gpu", t->gpu.name);
    cJSON_AddStringToObject(o, "commit", qn_commit());
    cJSON_AddNumberToObject(o, "cases", new->all);
    cJSON_AddNumberToObject(o, "good_before", old->good);
    cJSON_AddNumberToObject(o, "worst_before", old->worst);
    cJSON_AddNumberToObject(o, "good", new->good);
    cJSON_AddNumberToObject(o, "worst", new->worst);
    json_print(o, 1);
}

/* Lines that nothing was measured of stay the library's. */
static int save(const struct tune *t, const struct fitted *lines, const char *path)
{
    struct tuning *out = must_alloc(sizeof *out);
    snprintf(out->gpu, sizeof out->gpu, "%s", t->gpu.name);
    for (int i = 0; i < t->n_lines; i++) {
        if (lines[i].n == 0)
            continue;
        out->lines[out->n] = t->lines[i];
        out->lines[out->n].t0_us = lines[i].new.t0_us;
        out->lines[out->n].bandwidth = lines[i].new.bandwidth;
        out->lines[out->n++].block_ns = lines[i].new.block_ns;
    }
    const int status = tuning_save(path, out);
    free(out);
    return status;
}

static int report(const struct tune *t, const char *path)
{
    struct fitted *lines = must_alloc(sizeof *lines * (size_t)(t->n_lines + 1));
    for (int i = 0; i < t->n_lines; i++)
        fit_one(t, i, &lines[i]);
    const struct choices old = judge(t, lines, 0), new = judge(t, lines, 1);
    if (t->is_json) {
        for (int i = 0; i < t->n_lines; i++)
            print_line_json(t, &lines[i], i);
        print_choices_json(t, &old, &new);
    } else {
        print_table(t, lines);
        puts("");
        print_choices(t, "the library's constants", &old);
        print_choices(t, "the measured constants", &new);
    }
    const int status = path == NULL ? 0 : save(t, lines, path);
    if (status == 0 && path != NULL && !t->is_json)
        printf("written: %s\n", path);
    free(lines);
    return status;
}

/* ------------------------------------------------------------------------------------------ run */

static int tune(struct tune *t, const char *path)
{
    const qn_device device = device_of(t->ctx);
    qn_error err = {0};
    qn_cuda_info_init(&t->gpu);
    const qn_status status = qn_cuda_query(device.index, &t->gpu, &err);
    if (status != QN_OK)
        return complain_status("tune", status, &err);
    for (; t->n_lines < MAX_LINES; t->n_lines++) {
        qn_cuda_cost_init(&t->lines[t->n_lines]);
        if (qn_cuda_get_cost(t->ctx, t->n_lines, &t->lines[t->n_lines], NULL) != QN_OK)
            break;
    }
    int failed_at = path == NULL ? 0 : tuning_check(path);
    t->samples = must_alloc(sizeof *t->samples * MAX_SAMPLES);
    failed_at = failed_at != 0 ? failed_at : measure_all(t);
    failed_at = failed_at != 0 ? failed_at : report(t, path);
    free(t->samples);
    return failed_at;
}

/* --weights, cut at its commas; each is a format. */
static int read_weights(struct tune *t, char *list)
{
    char *rest = NULL;
    qn_format format;
    qn_error err = {0};
    for (char *word = strtok_r(list, ",", &rest); word != NULL; word = strtok_r(NULL, ",", &rest)) {
        if (t->n_weights == MAX_WEIGHTS_OF_TUNE)
            return complain(EXIT_USAGE, "run the command several times",
                            "--weights: more than %d formats", MAX_WEIGHTS_OF_TUNE);
        if (qn_format_parse(word, &format, &err) != QN_OK)
            return complain_status("--weights", QN_E_FORMAT, &err);
        t->weights[t->n_weights++] = word;
    }
    return t->n_weights > 0 ? 0 : complain(EXIT_USAGE, "give at least one", "--weights: empty");
}

static int run(const struct args *args)
{
    if (args_has(args, "comm"))
        return tune_comm(args);
    struct tune t = {.is_quick = args_has(args, "quick"), .is_json = args_has(args, "json")};
    char *path = NULL;
    if (!args_has(args, "dry-run")) {
        const char *given = args_text(args, "output", NULL);
        path = given != NULL ? must_copy(given) : tuning_path();
        if (path == NULL)
            return complain(EXIT_USAGE, "name one with -o FILE",
                            "tune: neither XDG_CONFIG_HOME nor HOME says where the file belongs");
    }
    char *list = must_copy(args_text(args, "weights", "int4:g128,int8:pc"));
    int status = read_weights(&t, list);
    status = status != 0 ? status : context_make_on(args, "cuda", &t.ctx);
    if (status == 0) {
        stop_on_interrupt();
        status = device_of(t.ctx).kind == QN_CPU ? tune_cpu(args, t.ctx, path) : tune(&t, path);
    }
    qn_ctx_destroy(t.ctx);
    free(list);
    free(path);
    return status;
}
