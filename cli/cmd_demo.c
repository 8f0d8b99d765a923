/* SPDX-License-Identifier: Apache-2.0 */
/* quern demo: layers of a language model and of an image network, quantized, run and held against
 * exact products and this machine's limits. Whatever the machine, it ends within its time: a short
 * probe decides how much the sizes are cut, and the demo says what it cut. */
#define _POSIX_C_SOURCE 200809L
#include "demo.h"

#include <stdlib.h>
#include <string.h>

#include "term.h"

static const struct option_row own[] = {
    {"time", 0, "SECONDS", "how long it may take, about (default 50)"},
    {"html", 0, "FILE", "the report (default quern-demo.html; none: no report)"},
    {"json", 0, NULL, "the rows as one JSON object instead of the table"},
    {"make-model", 0, "FILE", "only write a model of f16 weights to try 'quantize' on"},
    {"gb", 0, "X", "its size in gigabytes (default 1)"},
    {"force", 0, NULL, "replace that file if it exists"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"the tour", "quern demo"},
    {"with portable kernels only", "quern demo --isa portable"},
    {"a model to quantize", "quern demo --make-model model.safetensors --gb 1"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_demo = {
    .name = "demo",
    .summary = "layers of Llama-3-8B and ResNet-50: size, error, speed, limit, kernel",
    .operands = "",
    .about =
        "Makes the layers of a Llama-3-8B block and of ResNet-50 (random weights spread like "
        "trained ones, a fixed seed), quantizes them in several formats, runs decoding (m = 1), "
        "small batches, prefill and convolutions, and prints one table. The same table with a "
        "roofline plot goes to quern-demo.html, which needs no network.\n\n"
        "Error is the root mean square deviation from the exact product with the weights before "
        "quantization, relative to it. Beside each time stands that of plain C loops over f32 "
        "weights on as many threads. The limit is what measured memory bandwidth and measured "
        "peak allow.",
    .tables = {own, options_context, options_tuning, options_common},
    .examples = examples,
    .max_operands = 0,
    .shows_plans = 1,
    .run = run,
};

const char *const demo_sections[2] = {"Llama-3-8B block", "ResNet-50 and MobileNet-v2"};

const struct example demo_next[] = {
    {"quantize a model of your own; --dry-run shows what would happen",
     "quern quantize model.safetensors -o int4.safetensors"},
    {"what that costs in accuracy, tensor by tensor",
     "quern compare int4.safetensors --original model.safetensors"},
    {"the layers of a model on this machine, for a program",
     "quern bench --layers llama3-8b --m 1,128 --strategy int8-block --json"},
    {"why a kernel was chosen, and why not the others",
     "quern explain --n 4096 --k 4096 --m 1 --strategy int8-block"},
    {"in a program of one's own: docs/guide/quick-start.md, examples/, include/quern/quern.h",
     "quern help"},
    {NULL, NULL},
};

const char *demo_row_name(const struct demo_row *row, char text[ROW_NAME])
{
    snprintf(text, ROW_NAME, "%s m %lld %s %s", row->layer, (long long)row->m, row->weights,
             qn_strategy_name(row->strategy));
    return text;
}

/* ------------------------------------------------------------------------------- what is shown */

struct shot {
    qn_strategy strategy;
    int m;
};
enum { MAX_SHOTS = 6 };
struct scene {
    const char *model, *layer, *weights;
    int n_shots;
    struct shot shots[MAX_SHOTS];
};

#define FLOAT  QN_STRATEGY_FLOAT
#define ROW    QN_STRATEGY_INT8_ROW
#define BLOCK  QN_STRATEGY_INT8_BLOCK
#define STATIC QN_STRATEGY_INT8_STATIC

static const struct scene scenes[] = {
    {"llama3-8b", "attn.qkv", "int4:g128", 3, {{BLOCK, 1}, {BLOCK, 8}, {BLOCK, 128}}},
    {"llama3-8b",
     "attn.o",
     "int4:g128",
     6,
     {{BLOCK, 1}, {BLOCK, 8}, {BLOCK, 128}, {FLOAT, 1}, {FLOAT, 8}, {FLOAT, 128}}},
    {"llama3-8b", "attn.o", "int4:g128:zp", 2, {{BLOCK, 1}, {BLOCK, 128}}},
    {"llama3-8b", "attn.o", "q4_k", 2, {{BLOCK, 1}, {BLOCK, 128}}},
    {"llama3-8b", "attn.o", "nf4:g64", 2, {{FLOAT, 1}, {FLOAT, 128}}},
    {"llama3-8b", "attn.o", "int8:pc", 2, {{ROW, 1}, {ROW, 128}}},
    {"llama3-8b", "attn.o", "fp8:pc", 2, {{FLOAT, 1}, {FLOAT, 128}}},
    {"llama3-8b", "ffn.gate_up", "int4:g128", 3, {{BLOCK, 1}, {BLOCK, 8}, {BLOCK, 128}}},
    {"llama3-8b", "ffn.down", "int4:g128", 3, {{BLOCK, 1}, {BLOCK, 8}, {BLOCK, 128}}},
    {"resnet50", "conv1", "int8:pc", 1, {{ROW, 1}}},
    {"resnet50", "layer1.conv2", "int8:pc", 2, {{STATIC, 1}, {ROW, 1}}},
    {"resnet50", "layer1.conv2", "int4:g64", 2, {{BLOCK, 1}, {FLOAT, 1}}},
    {"resnet50", "layer1.conv3", "int8:pc", 1, {{STATIC, 1}}},
    {"resnet50", "layer2.down", "int8:pc", 1, {{STATIC, 1}}},
    {"resnet50", "layer3.conv2", "int4:c64", 1, {{BLOCK, 1}}},
    {"resnet50", "layer4.conv2", "int8:pc", 1, {{STATIC, 1}}},
    {"mobilenet-v2", "features.2.dw", "int8:pc", 2, {{STATIC, 1}, {FLOAT, 1}}},
};
enum { N_SCENES = sizeof scenes / sizeof *scenes };

static const struct layer *layer_of(const struct scene *scene)
{
    for (int i = 0; layer_at(i) != NULL; i++) {
        if (strcmp(layer_at(i)->model, scene->model) == 0 &&
            strcmp(layer_at(i)->name, scene->layer) == 0)
            return layer_at(i);
    }
    return NULL; /* scenes[] names rows of bench/shapes.inc */
}

static void problem_of_scene(const struct demo *demo, const struct scene *scene, struct problem *p)
{
    /* What engines have there. */
    const qn_dtype type = demo->info.device.kind == QN_CPU ? QN_F32 : QN_F16;
    *p = (struct problem){.layer = scene->layer, .x = type, .y = type};
    problem_of_layer(p, layer_of(scene), scene->shots[0].m);
    p->strategy = scene->shots[0].strategy;
    if (p->strategy == STATIC)
        p->x = QN_I8;
    if (p->op == OP_MATMUL)
        p->n = p->n / demo->cut / 64 * 64;
    qn_format_parse(scene->weights, &p->format, NULL);
    qn_format_print(&p->format, p->weights, sizeof p->weights);
    problem_complete(p);
}

/* ----------------------------------------------------------------------------------- the probe */

struct rates {
    double make, quantize, pack; /* weights a second */
    double ops[2];               /* int8, float */
};

/* A slice of a layer, to learn what this machine and build can do. */
static int probe(struct demo *demo, struct rates *rates)
{
    struct problem p = {.op = OP_MATMUL,
                        .layer = "probe",
                        .m = 32,
                        .n = 512,
                        .k = 4096,
                        .strategy = BLOCK,
                        .x = QN_F32,
                        .y = QN_F32};
    struct workload w;
    struct timing time;
    const double weights = (double)p.n * (double)p.k;
    qn_format_parse("int4:g128", &p.format, NULL);
    qn_format_print(&p.format, p.weights, sizeof p.weights);
    int status = workload_make(&w, demo->ctx, &p);
    for (int i = 0; i < 2 && status == 0; i++) {
        if (i == 1)
            status = workload_again(&w, 32, FLOAT);
        if (status == 0 && workload_time(&w, 0.03, &time) != QN_OK)
            status = EXIT_LIBRARY;
        if (status == 0)
            rates->ops[i] = workload_ops(&w) / time.median;
    }
    rates->make = weights / (w.make_seconds + 1e-9);
    rates->quantize = weights / (w.quantize_seconds + 1e-9);
    rates->pack = weights / (w.pack_seconds + 1e-9);
    workload_free(&w);
    return status;
}

/* Seconds that all scenes take when matmul layers have 1 / cut of their outputs. */
static double estimate(struct demo *demo, const struct rates *rates, int cut)
{
    double seconds = 3; /* measuring the limits */
    demo->cut = cut;
    for (int i = 0; i < N_SCENES; i++) {
        struct problem p;
        problem_of_scene(demo, &scenes[i], &p);
        const double weights = (double)p.n * (double)p.k;
        seconds += weights / rates->make + weights / rates->quantize + weights / rates->pack + 0.4;
        for (int s = 0; s < scenes[i].n_shots; s++) {
            const int is_float = scenes[i].shots[s].strategy == FLOAT;
            const double rows = p.op == OP_CONV2D ? (double)p.m : scenes[i].shots[s].m;
            /* one run for the check, three and more for the time */
            const double one = 2 * rows * weights / rates->ops[is_float];
            seconds += one + (3 * one > 0.15 ? 3 * one : 0.15) + 0.1;
        }
    }
    return seconds;
}

static int choose_cut(struct demo *demo)
{
    struct rates rates = {0};
    const int status = probe(demo, &rates);
    if (status != 0)
        return status;
    int cut = 1;
    while (cut < 32 && estimate(demo, &rates, cut) > demo->budget)
        cut *= 2;
    demo->cut = cut;
    demo->quantize_rate = rates.quantize;
    return 0;
}

/* -------------------------------------------------------------------------------------- output */

static const struct column columns[] = {
    {"layer", '<', 0, 0},  {"m", '>', 5, 0},     {"weights", '<', 12, 0}, {"strategy", '<', 11, 0},
    {"size", '>', 6, 0},   {"error", '>', 7, 0}, {"time", '>', 8, 0},     {"plain f32", '>', 0, 0},
    {"faster", '>', 0, 0}, {"GB/s", '>', 5, 0},  {"Gop/s", '>', 6, 0},    {"of limit", '>', 9, 0},
    {"kernel", '<', 0, 0}, {NULL, 0, 0, 0},
};

static void print_row(struct table *t, const struct demo_row *r)
{
    char a[HUMAN];
    const double fraction = r->bound / r->seconds;
    const char *kernel = strncmp(r->kernel, "qni_", 4) == 0 ? r->kernel + 4 : r->kernel;
    table_cell(t, PLAIN, "%s", r->layer);
    table_cell(t, PLAIN, "%lld", (long long)r->m);
    table_cell(t, PLAIN, "%s", r->weights);
    table_cell(t, PLAIN, "%s", qn_strategy_name(r->strategy));
    table_cell(t, PLAIN, "%.1f %%", 100 * r->size);
    table_cell(t, r->is_good ? PLAIN : RED, "%s", r->is_good ? human_error(r->error, a) : "WRONG");
    table_cell(t, BOLD, "%s", human_time(r->seconds, a));
    table_cell(t, PLAIN, "%s", r->plain > 0 ? human_time(r->plain, a) : "-");
    if (r->plain > 0)
        table_cell(t, PLAIN, "%.1f x", r->plain / r->seconds);
    else
        table_cell(t, PLAIN, "-");
    table_cell(t, PLAIN, "%s", human_number(r->bytes / r->seconds / 1e9, a));
    table_cell(t, PLAIN, "%s", human_number(r->ops / r->seconds / 1e9, a));
    table_cell(t,
               fraction > 0.6   ? GREEN
               : fraction > 0.2 ? PLAIN
                                : YELLOW,
               "%.0f %% %s", 100 * fraction, r->is_memory_bound ? "mem " : peak_name(r->peak));
    table_cell(t, DIM, "%s", kernel);
}

static void print_json(const struct demo *demo)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "version", qn_version());
    cJSON_AddStringToObject(o, "commit", qn_commit());
    cJSON_AddStringToObject(o, "isa", isa_newest(demo->info.isa));
    cJSON_AddNumberToObject(o, "threads", demo->info.n_threads);
    cJSON_AddStringToObject(o, "machine", demo->machine);
    cJSON_AddStringToObject(o, "date", demo->date);
    if (demo->load >= 0)
        cJSON_AddNumberToObject(o, "load_average", demo->load);
    cJSON_AddNumberToObject(o, "outputs_divided_by", demo->cut);
    cJSON *rows = cJSON_AddArrayToObject(o, "rows");
    for (int i = 0; i < demo->n_rows; i++) {
        const struct demo_row *r = &demo->rows[i];
        cJSON *row = cJSON_CreateObject();
        cJSON_AddItemToArray(rows, row);
        cJSON_AddStringToObject(row, "section", demo_sections[r->section]);
        cJSON_AddStringToObject(row, "layer", r->layer);
        cJSON_AddStringToObject(row, "shape", r->shape);
        cJSON_AddNumberToObject(row, "m", (double)r->m);
        cJSON_AddNumberToObject(row, "n", (double)r->n);
        cJSON_AddNumberToObject(row, "k", (double)r->k);
        cJSON_AddStringToObject(row, "weights", r->weights);
        cJSON_AddStringToObject(row, "strategy", qn_strategy_name(r->strategy));
        cJSON_AddNumberToObject(row, "size", r->size);
        cJSON_AddNumberToObject(row, "error", r->error);
        cJSON_AddNumberToObject(row, "us", r->seconds * 1e6);
        if (r->plain > 0)
            cJSON_AddNumberToObject(row, "plain_f32_us", r->plain * 1e6);
        if (r->outlier != NULL)
            cJSON_AddStringToObject(row, "outlier", r->outlier);
        cJSON_AddNumberToObject(row, "bytes", r->bytes);
        cJSON_AddNumberToObject(row, "ops", r->ops);
        cJSON_AddNumberToObject(row, "bound_us", r->bound * 1e6);
        cJSON_AddStringToObject(row, "bound_by",
                                r->is_memory_bound ? "memory" : peak_name(r->peak));
        cJSON_AddStringToObject(row, "kernel", r->kernel);
        cJSON_AddBoolToObject(row, "verified", r->is_good);
    }
    json_print(o, 0);
}

/* ---------------------------------------------------------------------------------- the scenes */

static void describe_row(const struct demo *demo, const struct workload *w, struct demo_row *r)
{
    const struct problem *p = &w->p;
    const struct conv_shape *c = &p->conv;
    r->section = p->op == OP_CONV2D;
    if (demo->cut > 1 && p->op == OP_MATMUL)
        snprintf(r->layer, sizeof r->layer, "%s, 1/%d", p->layer, demo->cut);
    else
        snprintf(r->layer, sizeof r->layer, "%s", p->layer);
    if (p->op == OP_CONV2D)
        snprintf(r->shape, sizeof r->shape, "%lldx%lldx%lld to %lld, %dx%d", (long long)c->ci,
                 (long long)c->h, (long long)c->w, (long long)p->n, c->kh, c->kw);
    else
        snprintf(r->shape, sizeof r->shape, "n %lld, k %lld", (long long)p->n, (long long)p->k);
    if (p->op == OP_CONV2D) { /* the shape says more than the place in the network */
        const size_t length = strlen(r->layer);
        snprintf(r->layer + length, sizeof r->layer - length, " %dx%d/%d", c->kh, c->kw,
                 c->stride[0]);
    }
    r->m = p->m;
    r->n = p->n;
    r->k = p->k;
    r->strategy = p->strategy;
    snprintf(r->weights, sizeof r->weights, "%s", p->weights);
    snprintf(r->kernel, sizeof r->kernel, "%s", w->info.kernel);
    r->size = (double)w->packed_bytes / (2.0 * (double)p->n * (double)p->k);
}

static int shoot(struct demo *demo, struct workload *w, struct demo_row *r)
{
    struct verdict verdict;
    struct timing time;
    qn_error err = {0};
    qn_status status = workload_run(w);
    if (status == QN_OK)
        status = workload_finish(w, &err);
    if (status == QN_OK) {
        workload_check(w, 0, &verdict);
        status = workload_time(w, 0.15, &time);
    }
    if (status != QN_OK)
        return complain_status(w->p.layer, status, err.status == status ? &err : NULL);
    if (is_stopped())
        return EXIT_STOPPED;
    describe_row(demo, w, r);
    r->is_good = verdict.is_good;
    r->error = verdict.model_error;
    r->seconds = time.median;
    r->bytes = workload_bytes(w);
    r->ops = workload_ops(w);
    r->plain = plain_seconds(demo->ctx, r->m, r->n, r->k);
    r->peak = peak_of(demo->ctx, w->p.strategy, w->p.format.bits, w->info.kernel);
    if (!verdict.is_good)
        return complain(EXIT_DIFFERS, "please report it", "%s %s by %s: the result is wrong: %s",
                        r->layer, r->weights, r->kernel, verdict.why);
    return 0;
}

static void say(int i)
{
    char bar[4 * 24 + 1];
    draw_bar(bar, 24, (double)i / N_SCENES);
    if (term_is_tty(stderr))
        fprintf(stderr, "\r\033[K%s%s%s %d of %d: %s %s, %s", style_on(stderr, CYAN), bar,
                style_off(stderr), i + 1, N_SCENES, scenes[i].model, scenes[i].layer,
                scenes[i].weights);
}

static void unsay(void)
{
    if (term_is_tty(stderr))
        fputs("\r\033[K", stderr);
}

static int play(struct demo *demo, const struct scene *scene)
{
    struct workload w = {0};
    struct problem p;
    problem_of_scene(demo, scene, &p);
    int status = workload_make(&w, demo->ctx, &p), worst = 0;
    /* A convolution's few weights stay in the caches in real networks too. */
    if (status == 0 && p.op == OP_MATMUL) {
        status = workload_rotate(&w, rotation_bytes(demo->ctx), demo->budget / 40);
        demo->cold_missed += (size_t)w.copies * w.packed_bytes < rotation_bytes(demo->ctx);
    }
    for (int s = 0; s < scene->n_shots && status == 0; s++) {
        struct demo_row row = {0};
        if (s > 0)
            status = workload_again(&w, scene->shots[s].m, scene->shots[s].strategy);
        if (status == 0)
            status = shoot(demo, &w, &row);
        if (status != 0 && status != EXIT_DIFFERS)
            break;
        worst = status != 0 ? status : worst;
        status = 0;
        demo->rows = must_grow(demo->rows, sizeof *demo->rows * (size_t)(demo->n_rows + 1));
        demo->rows[demo->n_rows++] = row;
    }
    workload_free(&w);
    measure_again(demo->ctx);
    return status != 0 ? status : worst;
}

/* All rows are held against the same limits: the best that was measured at any time. */
static void find_bounds(struct demo *demo)
{
    for (int i = 0; i < demo->n_rows; i++) {
        struct demo_row *r = &demo->rows[i];
        const double by_memory = r->bytes / measure_bandwidth(demo->ctx);
        const double by_peak = r->ops / measure_peak(demo->ctx, r->peak);
        r->is_memory_bound = by_memory > by_peak;
        r->bound = r->is_memory_bound ? by_memory : by_peak;
    }
}

static int by_fraction(const void *a, const void *b)
{
    const struct demo_row *x = *(struct demo_row *const *)a, *y = *(struct demo_row *const *)b;
    const double p = x->bound / x->seconds, q = y->bound / y->seconds;
    return (p > q) - (p < q);
}

/* Marks the results that a reader would ask about: at most five that come less than half as near to
 * the limit as most results do, and those that are beyond the limit. */
static void find_outliers(struct demo *demo)
{
    enum { MOST = 5 };
    struct demo_row **order = must_alloc(sizeof *order * (size_t)(demo->n_rows + 1));
    for (int i = 0; i < demo->n_rows; i++)
        order[i] = &demo->rows[i];
    if (demo->n_rows > 1)
        qsort(order, (size_t)demo->n_rows, sizeof *order, by_fraction);
    for (int i = 0; i < demo->n_rows; i++) {
        struct demo_row *middle = order[demo->n_rows / 2], *r = order[i];
        const double fraction = r->bound / r->seconds;
        if (fraction > 1.05)
            r->outlier = "beyond the limit: its bytes come from a cache";
        else if (i < MOST && fraction < 0.5 * middle->bound / middle->seconds)
            r->outlier = "far from the limit";
    }
    free(order);
}

static void note_scaling(struct demo *demo)
{
    char *cut = demo->cut > 1
                    ? must_print("To end in time, matmul layers have 1/%d of their outputs (k is "
                                 "whole, so errors are what they would be). ",
                                 demo->cut)
                    : must_copy("All layers have their full size. ");
    demo->notes = must_print(
        "%s%sWeights were quantized at %.3g million a second (int4:g128).", cut,
        demo->cold_missed > 0
            ? "The copies of some weights together do not exceed the last level cache, so their "
              "bytes may come from there: fractions of the memory limit can pass 100 %. "
            : "",
        demo->quantize_rate / 1e6);
    free(cut);
}

static int perform(struct demo *demo)
{
    int status = choose_cut(demo), worst = 0;
    for (int i = 0; i < N_SCENES && status == 0; i++) {
        say(i);
        status = is_stopped() ? EXIT_STOPPED : play(demo, &scenes[i]);
        unsay();
        if (status == EXIT_DIFFERS) {
            worst = status;
            status = 0;
        }
    }
    if (status == 0) {
        find_bounds(demo);
        find_outliers(demo);
    }
    return status != 0 ? status : worst;
}

static void print_text(const struct demo *demo)
{
    char where[256], bytes[HUMAN], f32[HUMAN], int8[HUMAN];
    const int is_cpu = demo->info.device.kind == QN_CPU;
    printf("quern %s, %s", qn_version(), demo->date);
    if (demo->load >= 0)
        printf(", load average %.1f when it began", demo->load);
    printf("\n%s", demo->machine);
    if (is_cpu)
        printf("; %d thread%s, %s", demo->info.n_threads, demo->info.n_threads == 1 ? "" : "s",
               isa_text(demo->info.isa, where, sizeof where));
    putchar('\n');
    const enum peak codes = peak_of(demo->ctx, QN_STRATEGY_INT8_BLOCK, 4, "");
    printf("limits: memory %s/s, %s %s, %s %s (%s)\n\n",
           human_bytes(measure_bandwidth(demo->ctx), bytes), is_cpu ? "f32" : "f16",
           human_rate(measure_peak(demo->ctx, PEAK_F32), f32), peak_name(codes),
           human_rate(measure_peak(demo->ctx, codes), int8), is_cpu ? "measured" : "rated");
    struct table *table = table_create(columns);
    for (int i = 0; i < demo->n_rows; i++) {
        const int section = demo->rows[i].section;
        if (i == 0 || section != demo->rows[i - 1].section)
            table_heading(table, "%s", demo_sections[section]);
        print_row(table, &demo->rows[i]);
    }
    table_print(table);
    table_destroy(table);
    for (int i = 0; i < demo->n_rows; i++) {
        char name[ROW_NAME];
        if (demo->rows[i].outlier != NULL)
            printf("%s%s: %s\n", i == 0 ? "\n" : "", demo_row_name(&demo->rows[i], name),
                   demo->rows[i].outlier);
    }
    printf("\nsize: of f16 weights; error: against the exact product before quantization; plain "
           "f32: the same product by plain C loops over f32 weights, as many threads; limit: "
           "memory or the peak named\n%s\n\nnext:\n",
           demo->notes);
    for (const struct example *e = demo_next; e->what != NULL; e++)
        printf("  %s# %s%s\n  %s\n", style_on(stdout, DIM), e->what, style_off(stdout), e->command);
}

static int show(struct demo *demo, const struct args *args)
{
    const char *html = args_text(args, "html", "quern-demo.html");
    const int is_json = args_has(args, "json"), has_report = strcmp(html, "none") != 0;
    qn_error err = {0};
    const qn_status possible = has_report ? qn_output_check(html, 1, &err) : QN_OK;
    if (possible != QN_OK)
        return complain_output(html, possible, &err);
    demo->began = seconds_now();
    demo->load = load_average();
    date_words(demo->date);
    machine_words(demo->ctx, demo->machine, sizeof demo->machine);
    if (!is_json && term_is_tty(stderr) == 0)
        fprintf(stderr, "quern: this takes up to %.0f seconds\n", demo->budget);
    int status = perform(demo);
    if (status != 0 && status != EXIT_DIFFERS)
        return status == EXIT_STOPPED
                   ? complain(status, "run it again when ready", "stopped: no report was written")
                   : status;
    note_scaling(demo);
    if (is_json)
        print_json(demo);
    else
        print_text(demo);
    if (has_report) {
        const int written = demo_report(demo, html);
        if (written == 0 && !is_json)
            printf("report: %s (%.0f s)\n", html, seconds_now() - demo->began);
        status = status != 0 ? status : written;
    }
    return status;
}

static int run(const struct args *args)
{
    struct demo demo = {.budget = 50};
    double gigabytes = 1;
    const char *model = args_text(args, "make-model", NULL);
    int status = args_real(args, "time", 5, 3600, &demo.budget);
    status = status != 0 ? status : args_real(args, "gb", 0.001, 1000, &gigabytes);
    int32_t gpus = 0;
    if (model == NULL)
        qn_cuda_device_count(&gpus, NULL);
    status = status != 0 ? status : context_make_on(args, gpus > 0 ? "cuda" : "cpu", &demo.ctx);
    if (status != 0)
        return status;
    qn_ctx_info_init(&demo.info);
    qn_ctx_query(demo.ctx, &demo.info);
    stop_on_interrupt();
    status = model != NULL ? demo_make_model(demo.ctx, model, gigabytes, args_has(args, "force"))
                           : show(&demo, args);
    free(demo.rows);
    free(demo.notes);
    qn_ctx_destroy(demo.ctx);
    return status;
}
