/* SPDX-License-Identifier: Apache-2.0 */
/* quern tune --device cpu: how the costs of the CPU's kernels compare on this machine with the
 * library's constants. Each kernel of the model is asked for by name, for products whose weights
 * stay in the caches, and timed; the median of measured / predicted is what its constants are
 * multiplied with. "memory" is the same of the bandwidth at which weights are read. */
#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "problem.h"
#include "term.h"
#include "tuning.h"

enum { N = 512, K = 1024, MAX_RATIOS = 64, MAX_SAMPLES = 4096, ROUNDS = 5 };

/* The first one has a byte a code: measure_reading(). */
static const char *const formats[] = {"int8:pc", "int8:g32", "int4:g32", "int4:g128", "nf4:g64",
                                      "iq4_nl",  "fp8:pc",   "f16",      "bf16",      "f32"};
static const qn_strategy strategies[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                         QN_STRATEGY_INT8_BLOCK, QN_STRATEGY_DENSE};
static const int64_t rows_all[] = {1, 2, 4, 8, 16, 32, 64}, rows_quick[] = {1, 8, 32};

struct line {
    qn_cpu_cost cost;
    double ratio[MAX_RATIOS]; /* measured over predicted, rising when all are there */
    int n;
};

/* One kernel on one case: a format, a strategy and a number of rows. */
struct sample {
    int which, line;
    double us, predicted;
};

struct tune_cpu {
    qn_ctx *ctx;
    int is_quick;
    struct line lines[MAX_CPU_LINES];
    int n_lines;
    struct sample *samples;
    int n_samples, n_cases;
    qn_packed *packed;
    float *x, *y;
    void *x_bf16;
};

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Microseconds of a run: the least median of a few rounds, since others can only add to it. */
static qn_status time_plan(const qn_plan *plan, const qn_matmul_args *args, double *us)
{
    enum { RUNS = 7 };
    const size_t bytes = qn_plan_scratch_bytes(plan);
    void *scratch = must_align(bytes + 64);
    qn_status status = QN_OK;
    *us = 0;
    for (int round = 0; round < ROUNDS && status == QN_OK; round++) {
        double each[RUNS];
        for (int i = 0; i < RUNS && status == QN_OK; i++) {
            const double begin = seconds_now();
            status = qn_matmul_run(plan, args, scratch, bytes);
            each[i] = (seconds_now() - begin) * 1e6;
        }
        qsort(each, RUNS, sizeof *each, by_size);
        if (round == 0 || each[RUNS / 2] < *us)
            *us = each[RUNS / 2];
    }
    free(scratch);
    return status;
}

/* One kernel on one case; a kernel that does not serve it is passed over. */
static int measure_case(struct tune_cpu *t, struct line *line, qn_strategy strategy, int64_t m)
{
    qn_error err = {0};
    qn_plan *plan = NULL;
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.w = t->packed;
    const int is_bf16 = strstr(line->cost.kernel, "_bf16_") != NULL; /* rows of f32 are three */
    args.x = qn_tensor_2d(is_bf16 ? t->x_bf16 : t->x, is_bf16 ? QN_BF16 : QN_F32, m, K);
    args.y = qn_tensor_2d(t->y, QN_F32, m, N);
    args.strategy = strategy;
    args.kernel = line->cost.kernel;
    if (line->n == MAX_RATIOS || t->n_samples == MAX_SAMPLES ||
        qn_matmul_plan(t->ctx, &args, &plan, &err) != QN_OK)
        return 0;
    double us = 0, predicted = 0;
    qn_status status = qn_cpu_predict(plan, &predicted);
    if (status == QN_OK && predicted > 1)
        status = time_plan(plan, &args, &us);
    qn_plan_destroy(plan);
    if (status != QN_OK)
        return complain_status(line->cost.kernel, status, &err);
    if (predicted > 1 && us > 1) { /* 1 us is the model's cost of a call */
        line->ratio[line->n++] = (us - 1) / (predicted - 1);
        t->samples[t->n_samples++] =
            (struct sample){t->n_cases, (int)(line - t->lines), us, predicted};
    }
    return 0;
}

/* Packs weights of one format. */
static int pack_format(struct tune_cpu *t, const char *text)
{
    qn_error err = {0};
    qn_weight *weight = NULL;
    qn_quantize_options how;
    qn_quantize_options_init(&how);
    float *dense = must_alloc(sizeof *dense * N * K);
    random_activations(5, (int64_t)N * K, 0, dense);
    const qn_tensor w = qn_tensor_2d(dense, QN_F32, N, K);
    qn_status status = qn_format_parse(text, &how.format, &err);
    if (status == QN_OK)
        status = qn_quantize(t->ctx, &w, &how, &weight, &err);
    if (status == QN_OK)
        status = qn_pack(t->ctx, weight, NULL, &t->packed, &err);
    qn_weight_destroy(weight);
    free(dense);
    return status == QN_OK ? 0 : complain_status(text, status, &err);
}

/* All kernels with the weights that are packed. */
static int measure_kernels(struct tune_cpu *t)
{
    const int64_t *const rows = t->is_quick ? rows_quick : rows_all;
    const size_t n_rows =
        t->is_quick ? sizeof rows_quick / sizeof *rows_quick : sizeof rows_all / sizeof *rows_all;
    int failed = 0;
    for (size_t s = 0; s < sizeof strategies / sizeof *strategies; s++)
        for (size_t r = 0; r < n_rows; r++, t->n_cases++)
            for (int i = 1; i < t->n_lines && !failed && !is_stopped(); i++)
                failed = measure_case(t, &t->lines[i], strategies[s], rows[r]);
    return failed;
}

/* The bandwidth that the model assumes, over the measured one. The model tells it by predicting a
 * product of one row while memory counts a hundredfold: only reading the codes takes time then. */
static int measure_reading(struct tune_cpu *t)
{
    struct line *const line = &t->lines[0];
    qn_plan *plan = NULL;
    qn_matmul_args args;
    double us = 0;
    qn_matmul_args_init(&args);
    args.w = t->packed;
    args.x = qn_tensor_2d(t->x, QN_F32, 1, K);
    args.y = qn_tensor_2d(t->y, QN_F32, 1, N);
    line->cost.times = 100;
    qn_status status = qn_cpu_set_cost(t->ctx, &line->cost, NULL);
    if (status == QN_OK)
        status = qn_matmul_plan(t->ctx, &args, &plan, NULL);
    if (status == QN_OK)
        status = qn_cpu_predict(plan, &us);
    qn_plan_destroy(plan);
    line->cost.times = 0.01; /* weights that stay in the caches are not read at memory's speed */
    if (status == QN_OK)
        status = qn_cpu_set_cost(t->ctx, &line->cost, NULL);
    if (status != QN_OK)
        return complain_status("memory", status, NULL);
    if (us > 1) /* int8:pc: a byte a code */
        line->ratio[line->n++] = 100.0 * N * K / ((us - 1) * 1e-6) / measure_bandwidth(t->ctx);
    return 0;
}

static void finish_lines(struct tune_cpu *t, struct tuning_cpu *out)
{
    tuning_cpu_name(out->cpu, sizeof out->cpu);
    out->n = 0;
    for (int i = 0; i < t->n_lines; i++) {
        struct line *const line = &t->lines[i];
        if (line->n == 0)
            continue;
        qsort(line->ratio, (size_t)line->n, sizeof *line->ratio, by_size);
        const double median = line->ratio[line->n / 2];
        line->cost.times = median < 0.01 ? 0.01 : median > 100 ? 100 : median;
        out->lines[out->n++] = line->cost;
    }
}

/* In how many cases the model takes the fastest kernel or one within 10 % of it: with the library's
 * constants, or with the measured ones. bf16 rows are another problem than f32 ones. */
static int count_good(const struct tune_cpu *t, int is_new, int *n)
{
    int good = 0;
    *n = 0;
    for (int first = 0, last; first < t->n_samples; first = last) {
        for (int is_bf16 = 0; is_bf16 < 2; is_bf16++) {
            double fastest = 0, least = 0, taken = 0;
            int kernels = 0;
            for (last = first; last < t->n_samples; last++) {
                const struct sample *const s = &t->samples[last];
                const qn_cpu_cost *const cost = &t->lines[s->line].cost;
                if (s->which != t->samples[first].which)
                    break;
                if ((strstr(cost->kernel, "_bf16_") != NULL) != is_bf16)
                    continue;
                const double predicted = s->predicted * (is_new ? cost->times : 1);
                if (kernels == 0 || s->us < fastest)
                    fastest = s->us;
                if (kernels == 0 || predicted < least) {
                    least = predicted;
                    taken = s->us;
                }
                kernels++;
            }
            *n += kernels > 1;
            good += kernels > 1 && taken <= 1.1 * fastest;
        }
    }
    return good;
}

static void report(const struct tune_cpu *t, int is_json)
{
    if (!is_json)
        printf("%-44s %7s %7s %7s %6s\n", "kernel", "times", "least", "most", "cases");
    for (int i = 0; i < t->n_lines; i++) {
        const struct line *const line = &t->lines[i];
        if (line->n == 0)
            continue;
        const double least = line->ratio[0], most = line->ratio[line->n - 1];
        if (is_json)
            printf("{\"kernel\": \"%s\", \"times\": %.3f, \"least\": %.3f, \"most\": %.3f, "
                   "\"cases\": %d}\n",
                   line->cost.kernel, line->cost.times, least, most, line->n);
        else
            printf("%-44s %7.2f %7.2f %7.2f %6d\n", line->cost.kernel, line->cost.times, least,
                   most, line->n);
    }
    int n = 0;
    const int old = count_good(t, 0, &n), new = count_good(t, 1, &n);
    if (is_json)
        printf("{\"cases\": %d, \"good_before\": %d, \"good_after\": %d}\n", n, old, new);
    else
        printf(
            "\nthe fastest kernel, or one within 10 %% of it: in %d of %d cases by the library's "
            "constants, in %d by these\n",
            old, n, new);
}

int tune_cpu(const struct args *args, qn_ctx *ctx, const char *path)
{
    struct tune_cpu *t = must_alloc(sizeof *t);
    struct tuning_cpu *out = must_alloc(sizeof *out);
    *t = (struct tune_cpu){.ctx = ctx, .is_quick = args_has(args, "quick")};
    for (; t->n_lines < MAX_CPU_LINES; t->n_lines++) {
        qn_cpu_cost_init(&t->lines[t->n_lines].cost);
        if (qn_cpu_get_cost(ctx, t->n_lines, &t->lines[t->n_lines].cost, NULL) != QN_OK)
            break;
    }
    int status = path == NULL ? 0 : tuning_check(path);
    t->samples = must_alloc(sizeof *t->samples * MAX_SAMPLES);
    t->x = must_align(sizeof *t->x * 64 * K);
    t->x_bf16 = must_align((size_t)2 * 64 * K);
    t->y = must_align(sizeof *t->y * 64 * N);
    random_activations(3, (int64_t)64 * K, K, t->x);
    floats_to(t->x, QN_BF16, (int64_t)64 * K, t->x_bf16);
    for (size_t f = 0; f < sizeof formats / sizeof *formats && status == 0 && !is_stopped(); f++) {
        status = pack_format(t, formats[f]);
        if (status == 0 && f == 0)
            status = measure_reading(t);
        if (status == 0)
            status = measure_kernels(t);
        qn_packed_destroy(t->packed);
        t->packed = NULL;
    }
    if (status == 0 && is_stopped())
        status = EXIT_STOPPED;
    if (status == 0) {
        finish_lines(t, out);
        report(t, args_has(args, "json"));
        status = path == NULL ? 0 : tuning_save_cpu(path, out);
        if (status == 0 && path != NULL && !args_has(args, "json"))
            printf("written: %s\n", path);
    }
    free(t->samples);
    free(t->x_bf16);
    free(t->y);
    free(t->x);
    free(out);
    free(t);
    return status;
}
