/* SPDX-License-Identifier: Apache-2.0 */
/* quern info: the machine as quern sees it, its measured limits, and what this build can do. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "measure.h"
#include "problem.h"
#include "term.h"

static const struct option_row own[] = {
    {"quick", 'q', NULL, "leave out the measurements"},
    {"json", 0, NULL, "one JSON object"},
    {NULL, 0, NULL, NULL},
};

static const struct example examples[] = {
    {"this machine and its limits", "quern info"},
    {"the limits without AMX, on one thread", "quern info --isa -amx_int8,-amx_bf16 --threads 1"},
    {"for a program", "quern info --json"},
    {NULL, NULL},
};

static int run(const struct args *args);

const struct command command_info = {
    .name = "info",
    .summary = "what this machine can do, and what was built",
    .operands = "",
    .about = "Shows devices, instructions (all, and those in use after --isa), caches, threads, "
             "the measured memory bandwidth and peaks, and the kernels, layouts and formats of "
             "this build. Measuring takes a second or two.",
    .tables = {own, options_context, options_common},
    .examples = examples,
    .max_operands = 0,
    .shows_plans = 1,
    .run = run,
};

/* ------------------------------------------------------------------------------ kernels by ISA */

enum { MAX_KERNELS = 512 };
struct kernels {
    char *names[MAX_KERNELS];
    int n;
};

static void note(struct kernels *k, const char *name, size_t length)
{
    for (int i = 0; i < k->n; i++) {
        if (strlen(k->names[i]) == length && strncmp(k->names[i], name, length) == 0)
            return;
    }
    if (k->n < MAX_KERNELS)
        k->names[k->n++] = must_print("%.*s", (int)length, name);
}

/* The rows of the kernel tables, as the explanation of a product (0), or of a convolution of so
 * many groups, names them. */
static void collect(struct kernels *k, qn_ctx *ctx, int32_t groups)
{
    struct problem p = {.layer = "", .m = 1, .n = 32, .k = 32, .x = QN_F32, .y = QN_F32};
    if (groups > 0) {
        const struct layer layer = {.op = OP_CONV2D,
                                    .n = 32,
                                    .ci = 32,
                                    .side = 8,
                                    .kernel = 3,
                                    .stride = 1,
                                    .groups = groups};
        problem_of_layer(&p, &layer, 1);
        problem_complete(&p);
    }
    struct workload w;
    qn_format_parse(groups > 0 ? "int8:pc" : "int4:g32", &p.format, NULL);
    if (workload_plan(&w, ctx, &p) == 0) {
        const size_t length = qn_plan_explain(w.plan, NULL, 0);
        char *text = must_alloc(length + 1);
        qn_plan_explain(w.plan, text, length + 1);
        for (const char *at = text; (at = strstr(at, "qni_")) != NULL;) {
            const size_t name = strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_");
            note(k, at, name);
            at += name;
        }
        free(text);
    }
    workload_free(&w);
}

/* "avx2 12, scalar 20": in the order in which they are met. */
static int count_by_isa(const struct kernels *k, const char **isa, int *count, int max)
{
    int n = 0;
    for (int i = 0; i < k->n; i++) {
        const char *suffix = strrchr(k->names[i], '_') + 1;
        int at = 0;
        while (at < n && strcmp(isa[at], suffix) != 0)
            at++;
        if (at == n && n < max) {
            isa[n] = suffix;
            count[n++] = 0;
        }
        if (at < n)
            count[at]++;
    }
    return n;
}

/* -------------------------------------------------------------------------------------- output */

struct facts {
    qn_ctx *ctx;
    qn_ctx_info info;
    char cpu[128], detected[256], used[256];
    double memory;
    int is_quick;
    struct kernels kernels;
    const char *isa[32];
    int count[32], n_isa;
};

static void label(const char *text)
{
    printf("%s%-11s%s", style_on(stdout, BOLD), text, style_off(stdout));
}

static void print_limits(const struct facts *f)
{
    char a[HUMAN];
    if (f->is_quick)
        return;
    label("limits");
    const int threads = measure_threads(f->ctx);
    printf("memory %s/s read by %d thread%s (measured)\n",
           human_bytes(measure_bandwidth(f->ctx), a), threads, threads == 1 ? "" : "s");
    const enum peak last = peak_of(f->ctx, QN_STRATEGY_INT8_BLOCK, 4, "");
    for (enum peak p = PEAK_F32; p <= last; p++) {
        label("");
        printf("%-6s %s by %s (measured)\n", peak_name(p), human_rate(measure_peak(f->ctx, p), a),
               peak_instruction(f->ctx, p));
    }
}

static void print_list(const char *title, const char *(*name)(int32_t))
{
    label(title);
    int column = 11;
    for (int32_t i = 0; name(i) != NULL; i++) {
        const int length = (int)strlen(name(i)) + (i > 0);
        if (column + length > term_width()) {
            printf("\n%-10s", "");
            column = 10;
        }
        column += printf("%s%s", i > 0 ? " " : "", name(i));
    }
    putchar('\n');
}

/* The first GPU from number *i on; 0 past the last. Without CUDA there is none. */
static int find_gpu(int32_t *i, qn_cuda_info *gpu)
{
    int32_t n = 0;
    qn_cuda_device_count(&n, NULL);
    for (; *i < n; ++*i) {
        qn_cuda_info_init(gpu);
        if (qn_cuda_query(*i, gpu, NULL) == QN_OK)
            return 1;
    }
    return 0;
}

/* Prints the GPUs that this library can use, and those that it has no kernels for. */
static void print_gpus(void)
{
    char a[3][HUMAN];
    qn_cuda_info gpu;
    for (int32_t i = 0; find_gpu(&i, &gpu); i++) {
        label("");
        printf("cuda:%d: %s, sm_%d, %d multiprocessors, %s of memory, rated %s/s, int8 %s%s\n", i,
               gpu.name, gpu.sm, gpu.multiprocessors, human_bytes((double)gpu.memory_bytes, a[0]),
               human_bytes(gpu.bandwidth, a[1]), human_rate(gpu.int8_ops, a[2]),
               gpu.is_served ? "" : " (no kernels for it)");
    }
}

static void add_gpus(cJSON *devices)
{
    qn_cuda_info gpu;
    for (int32_t i = 0; find_gpu(&i, &gpu); i++) {
        cJSON *o = cJSON_CreateObject();
        char *device = must_print("cuda:%d", i);
        cJSON_AddStringToObject(o, "device", device);
        free(device);
        cJSON_AddStringToObject(o, "name", gpu.name);
        cJSON_AddNumberToObject(o, "sm", gpu.sm);
        cJSON_AddNumberToObject(o, "multiprocessors", gpu.multiprocessors);
        cJSON_AddNumberToObject(o, "memory_bytes", (double)gpu.memory_bytes);
        cJSON_AddNumberToObject(o, "l2_bytes", (double)gpu.l2_bytes);
        cJSON_AddNumberToObject(o, "bytes_per_s", gpu.bandwidth);
        cJSON_AddNumberToObject(o, "f16_ops_per_s", gpu.f16_ops);
        cJSON_AddNumberToObject(o, "int8_ops_per_s", gpu.int8_ops);
        cJSON_AddBoolToObject(o, "served", gpu.is_served);
        cJSON_AddItemToArray(devices, o);
    }
}

static void print_text(const struct facts *f)
{
    char a[3][HUMAN];
    label("quern");
    printf("%s, commit %s\n", qn_version(), qn_commit());
    label("device");
    printf("cpu: %s, %d thread%s, %s of memory\n", f->cpu[0] != '\0' ? f->cpu : "unknown model",
           f->info.n_threads, f->info.n_threads == 1 ? "" : "s", human_bytes(f->memory, a[0]));
    print_gpus();
    label("caches");
    for (int i = 0; i < 3; i++) { /* powers of two, as their makers count */
        const double kib = (double)f->info.cache_bytes[i] / 1024;
        printf("%sL%d ", i > 0 ? ", " : "", i + 1);
        if (kib > 0)
            printf("%.4g %s", kib < 1024 ? kib : kib / 1024, kib < 1024 ? "KiB" : "MiB");
        else
            printf("unknown");
    }
    putchar('\n');
    label("isa");
    printf("%s\n", f->used);
    if (strcmp(f->used, f->detected) != 0) {
        label("");
        printf("(the CPU has: %s)\n", f->detected);
    }
    print_limits(f);
    label("kernels");
    for (int i = 0; i < f->n_isa; i++)
        printf("%s%s %d", i > 0 ? ", " : "", f->isa[i], f->count[i]);
    putchar('\n');
    print_list("layouts", qn_layout_name);
    print_list("formats", qn_format_name);
    label("");
    printf("and int2..int8 (:zp, :off), nf4, iq4nl, e2m1, fp8 (:off), with any group: :g128, :pc, "
           ":pt, :c64\n");
}

static cJSON *names_json(const char *(*name)(int32_t))
{
    cJSON *list = cJSON_CreateArray();
    for (int32_t i = 0; name(i) != NULL; i++)
        cJSON_AddItemToArray(list, cJSON_CreateString(name(i)));
    return list;
}

static cJSON *isa_json(uint64_t isa)
{
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < 64; i++) {
        const char *name = qn_isa_name(UINT64_C(1) << i);
        if ((isa >> i & 1) != 0 && name != NULL)
            cJSON_AddItemToArray(list, cJSON_CreateString(name));
    }
    return list;
}

static void print_json(const struct facts *f)
{
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "version", qn_version());
    cJSON_AddStringToObject(o, "commit", qn_commit());
    cJSON *devices = cJSON_AddArrayToObject(o, "devices"), *cpu = cJSON_CreateObject();
    cJSON_AddItemToArray(devices, cpu);
    cJSON_AddStringToObject(cpu, "device", "cpu");
    cJSON_AddStringToObject(cpu, "name", f->cpu);
    cJSON_AddNumberToObject(cpu, "threads", f->info.n_threads);
    cJSON_AddNumberToObject(cpu, "memory_bytes", f->memory);
    cJSON *caches = cJSON_AddArrayToObject(cpu, "cache_bytes");
    for (int i = 0; i < 3; i++)
        cJSON_AddItemToArray(caches, cJSON_CreateNumber((double)f->info.cache_bytes[i]));
    cJSON_AddItemToObject(cpu, "isa_detected", isa_json(qn_isa_detect()));
    cJSON_AddItemToObject(cpu, "isa", isa_json(f->info.isa));
    if (!f->is_quick) {
        cJSON_AddNumberToObject(cpu, "bytes_per_s", measure_bandwidth(f->ctx));
        cJSON *peaks = cJSON_AddObjectToObject(cpu, "peak_ops_per_s");
        for (enum peak p = PEAK_F32; p <= PEAK_INT4; p++)
            cJSON_AddNumberToObject(peaks, peak_name(p), measure_peak(f->ctx, p));
    }
    add_gpus(devices);
    cJSON *kernels = cJSON_AddObjectToObject(o, "kernels");
    for (int i = 0; i < f->n_isa; i++)
        cJSON_AddNumberToObject(kernels, f->isa[i], f->count[i]);
    cJSON_AddItemToObject(o, "layouts", names_json(qn_layout_name));
    cJSON_AddItemToObject(o, "formats", names_json(qn_format_name));
    json_print(o, 0);
}

static int run(const struct args *args)
{
    struct facts f = {.is_quick = args_has(args, "quick")};
    const int status = context_make(args, &f.ctx);
    if (status != 0)
        return status;
    qn_ctx_info_init(&f.info);
    qn_ctx_query(f.ctx, &f.info);
    cpu_model(f.cpu, sizeof f.cpu);
    isa_text(f.info.isa, f.used, sizeof f.used);
    isa_text(qn_isa_detect(), f.detected, sizeof f.detected);
    f.memory = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    collect(&f.kernels, f.ctx, 0);
    collect(&f.kernels, f.ctx, 1);
    collect(&f.kernels, f.ctx, 32); /* depthwise */
    f.n_isa = count_by_isa(&f.kernels, f.isa, f.count, 32);
    if (args_has(args, "json"))
        print_json(&f);
    else
        print_text(&f);
    for (int i = 0; i < f.kernels.n; i++)
        free(f.kernels.names[i]);
    qn_ctx_destroy(f.ctx);
    return EXIT_GOOD;
}
