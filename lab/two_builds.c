/* SPDX-License-Identifier: Apache-2.0 */
/* Two builds of the library in one process: the same weights, x and y, calls in turn. Is y the same
 * to the bit, and how long does the second take beside the first? Linux.
 *
 *   cc -O2 -std=gnu11 -Iinclude lab/two_builds.c -LBUILD -lquern -ldl -o /tmp/two_builds
 *   /tmp/two_builds OLD.so NEW.so WEIGHTS STRATEGY X Y N K THREADS SECONDS M [M ...]
 *
 * X and Y are f32, bf16, f16; COPIES=c: so many copies of the weights take turns (1 or 8, by their
 * size), ISA=... bits of what may be used, LARGE=f: f32 x are a bell, and every 97th column f times
 * as large, as `quern bench` has them with 6. A line for each m: 10 % quantile and median of each, us,
 * their ratios, and the median of the ratios of neighbours. */
#include "bench.h"

#include <dlfcn.h>
#include <quern/quern.h>
#include <stdio.h>

#define CALLS(X)                                                                                   \
    X(qn_ctx_create)                                                                               \
    X(qn_format_parse)                                                                             \
    X(qn_quantize)                                                                                 \
    X(qn_pack)                                                                                     \
    X(qn_matmul_scratch)                                                                           \
    X(qn_matmul)                                                                                   \
    X(qn_strategy_parse)

enum { COPIES = 8 };

struct build {
#define X(name) __typeof__(&(name)) name;
    CALLS(X)
#undef X
    qn_ctx *ctx;
    qn_packed *w[COPIES];
    void *scratch;
    size_t scratch_bytes;
    char *y;
    double us[TIMES];
};

static struct build builds[2];
static int n_copies = COPIES;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void open_build(struct build *b, const char *path, const char *weights, int threads,
                       const qn_tensor *dense)
{
    void *lib = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
    qn_error err;
    qn_ctx_options options;
    qn_quantize_options how;
    qn_weight *weight = NULL;
    if (lib == NULL)
        fail(path, dlerror());
#define X(name) *(void **)&b->name = dlsym(lib, #name);
    CALLS(X)
#undef X
    qn_ctx_options_init(&options);
    options.n_threads = threads;
    if (getenv("ISA") != NULL)
        options.isa_mask = strtoull(getenv("ISA"), NULL, 0);
    qn_quantize_options_init(&how);
    if (b->qn_ctx_create(&options, &b->ctx, &err) ||
        b->qn_format_parse(weights, &how.format, &err) ||
        b->qn_quantize(b->ctx, dense, &how, &weight, &err))
        fail(path, err.text);
    for (int i = 0; i < n_copies; i++)
        if (b->qn_pack(b->ctx, weight, NULL, &b->w[i], &err))
            fail(path, err.text);
}

static qn_dtype dtype_of(const char *name)
{
    return strcmp(name, "bf16") == 0 ? QN_BF16 : strcmp(name, "f16") == 0 ? QN_F16 : QN_F32;
}

static double once(struct build *b, qn_matmul_args *args, int turn)
{
    args->w = b->w[turn % n_copies];
    args->y.data = b->y;
    const double begin = now();
    if (b->qn_matmul(b->ctx, args, b->scratch, b->scratch_bytes))
        fail("qn_matmul", "failed");
    return now() - begin;
}

int main(int argc, char **argv)
{
    if (argc < 12)
        fail(argv[0], "OLD.so NEW.so WEIGHTS STRATEGY X Y N K THREADS SECONDS M ...");
    const int64_t n = atoll(argv[7]), k = atoll(argv[8]);
    const qn_dtype x_type = dtype_of(argv[5]), y_type = dtype_of(argv[6]);
    qn_error err;
    if (getenv("COPIES") != NULL && atoi(getenv("COPIES")) < COPIES)
        n_copies = atoi(getenv("COPIES"));
    const float large = getenv("LARGE") != NULL ? strtof(getenv("LARGE"), NULL) : 0.0f;
    float *dense = room((size_t)(n * k) * 4);
    for (int64_t i = 0; i < n * k; i++)
        dense[i] = ((float)rnd() + (float)rnd() + (float)rnd()) / (1 << 24) - 1.5f;
    const qn_tensor w = qn_tensor_2d(dense, QN_F32, n, k);
    for (int i = 0; i < 2; i++)
        open_build(&builds[i], argv[1 + i], argv[3], atoi(argv[9]), &w);
    for (int a = 11; a < argc; a++) {
        const int64_t m = atoll(argv[a]);
        uint16_t *const x = room((size_t)(m * k) * 4);
        const size_t y_bytes = (size_t)(m * n) * (y_type == QN_F32 ? 4 : 2);
        for (int64_t i = 0; i < m * k; i++) { /* about -4 to 4, in both halves of an f32 */
            float v = (float)rnd() / (1 << 21) - 4.0f;
            if (large != 0)
                v = ((float)rnd() + (float)rnd() + (float)rnd() + (float)rnd()) / (1 << 24) - 2.0f;
            if (large != 0 && i % k % 97 == 11)
                v *= large;
            uint32_t bits;
            memcpy(&bits, &v, 4);
            if (x_type == QN_F32)
                memcpy((char *)x + 4 * i, &bits, 4);
            else
                x[i] = x_type == QN_BF16 ? (uint16_t)(bits >> 16) : (uint16_t)(0x3000 + i % 2048);
        }
        qn_matmul_args args;
        qn_matmul_args_init(&args);
        args.x = qn_tensor_2d(x, x_type, m, k);
        args.y = qn_tensor_2d(x, y_type, m, n);
        if (builds[0].qn_strategy_parse(argv[4], &args.strategy, &err))
            fail(argv[4], err.text);
        for (int i = 0; i < 2; i++) {
            struct build *const b = &builds[i];
            args.w = b->w[0];
            if (b->qn_matmul_scratch(b->ctx, &args, &b->scratch_bytes))
                fail("qn_matmul_scratch", "failed");
            b->scratch = room(b->scratch_bytes + 64);
            b->y = room(y_bytes);
        }
        int times = 0;
        static double ratio[TIMES];
        once(&builds[0], &args, 0);
        once(&builds[1], &args, 0);
        const int same = memcmp(builds[0].y, builds[1].y, y_bytes) == 0;
        for (const double begin = now();
             times < TIMES && (times < 5 || now() - begin < atof(argv[10]) * 1e6); times++) {
            const int first = times % 2;
            builds[first].us[times] = once(&builds[first], &args, times);
            builds[1 - first].us[times] = once(&builds[1 - first], &args, times);
            ratio[times] = builds[1].us[times] / builds[0].us[times];
        }
        qsort(ratio, (size_t)times, sizeof *ratio, by_size);
        double p10[2], median[2];
        for (int i = 0; i < 2; i++) {
            qsort(builds[i].us, (size_t)times, sizeof(double), by_size);
            p10[i] = builds[i].us[times / 10];
            median[i] = builds[i].us[times / 2];
            free(builds[i].scratch);
            free(builds[i].y);
        }
        printf("%s %s %s to %s, m %lld n %lld k %lld: p10 %.1f %.1f  %.3f, median %.1f %.1f  %.3f, "
               "neighbours %.3f, %s\n",
               argv[3], argv[4], argv[5], argv[6], (long long)m, (long long)n, (long long)k, p10[0],
               p10[1], p10[1] / p10[0], median[0], median[1], median[1] / median[0],
               ratio[times / 2], same ? "same bits" : "OTHER BITS");
        fflush(stdout);
        free(x);
    }
    return 0;
}
