/* SPDX-License-Identifier: Apache-2.0 */
/* Two builds of the library in one process, as in two_builds.c, for the convolutions of a model:
 * the same int8 weights (one scale an output), int8 x and y, both in NHWC, calls in turn. Linux.
 *
 *   cc -O2 -std=gnu11 -Iinclude lab/two_builds_conv.c -LBUILD -lquern -ldl -o /tmp/two_builds_conv
 *   /tmp/two_builds_conv OLD.so NEW.so MODEL THREADS SECONDS [BATCH]
 *
 * MODEL is a model of bench/shapes.inc, or the beginning of model/layer, or a layer of its own as
 * ci,side,co,kernel,stride,groups. A line for each layer:
 * medians of both in us, their ratio, the median of the ratios of neighbouring calls, and whether
 * all bytes of y are equal; then the ratio of the sums. FORMAT=int4:g32 and the like: weights of
 * another format; BELL=1: weights are sums of three random numbers, and x of four; UNSIGNED=1: x
 * are u8 with a zero point of 128, y too. FLOAT=1: x and y are f32, the strategy is float.
 * TRANSPOSED=1: so is the convolution, padded to stride times the side. */
#include "bench.h"

#include <dlfcn.h>
#include <inttypes.h>
#include <quern/quern.h>
#include <stdio.h>

#define CALLS(X)                                                                                   \
    X(qn_ctx_create)                                                                               \
    X(qn_format_parse)                                                                             \
    X(qn_quantize)                                                                                 \
    X(qn_pack)                                                                                     \
    X(qn_weight_destroy)                                                                           \
    X(qn_packed_destroy)                                                                           \
    X(qn_conv2d_scratch)                                                                           \
    X(qn_conv2d)                                                                                   \
    X(qn_conv_transpose2d_scratch)                                                                 \
    X(qn_conv_transpose2d)

struct build {
#define X(name) __typeof__(&(name)) name;
    CALLS(X)
#undef X
    qn_ctx *ctx;
    qn_packed *w;
    void *scratch;
    size_t scratch_bytes;
    int8_t *y;
    double us[TIMES];
};

struct layer {
    const char *model, *name;
    int64_t ci, side, co, kernel, stride, groups;
};
#define QN_MATMUL(model, name, n, k)
#define QN_GROUPED(model, name, n, k, experts, top_k)
#define QN_CONV(model, name, ci, side, co, kernel, stride, groups)                                 \
    {model, name, ci, side, co, kernel, stride, groups},
static const struct layer layers[] = {
#include "../bench/shapes.inc"
};

static struct build builds[2];
static int is_float, is_transposed;
static double ratio[TIMES], sum_us[2];

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

static void open_build(struct build *b, const char *path, int threads)
{
    void *lib = dlmopen(LM_ID_NEWLM, path, RTLD_NOW);
    qn_ctx_options options;
    qn_error err;
    if (lib == NULL)
        fail(path, dlerror());
#define X(name) *(void **)&b->name = dlsym(lib, #name);
    CALLS(X)
#undef X
    qn_ctx_options_init(&options);
    options.n_threads = threads;
    if (getenv("ISA") != NULL)
        options.isa_mask = strtoull(getenv("ISA"), NULL, 0);
    if (b->qn_ctx_create(&options, &b->ctx, &err))
        fail(path, err.text);
}

static double bell(int n)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)rnd() / (1 << 24) - 0.5;
    return sum;
}

static void pack(struct build *b, const struct layer *l, float *dense)
{
    const char *const format = getenv("FORMAT") != NULL ? getenv("FORMAT") : "int8:pc";
    const int64_t k = l->ci / l->groups * l->kernel * l->kernel;
    const qn_tensor w = qn_tensor_2d(dense, QN_F32, l->co, k);
    qn_quantize_options how;
    qn_weight *weight = NULL;
    qn_error err;
    qn_quantize_options_init(&how);
    how.kh = how.kw = (int32_t)l->kernel;
    how.conv_groups = (int32_t)l->groups;
    if (b->qn_format_parse(format, &how.format, &err) ||
        b->qn_quantize(b->ctx, &w, &how, &weight, &err) ||
        b->qn_pack(b->ctx, weight, NULL, &b->w, &err))
        fail(l->name, err.text);
    b->qn_weight_destroy(weight);
}

/* [batch, channels, side, side] as it lies in NHWC. */
static qn_tensor image(void *data, qn_dtype type, int64_t batch, int64_t channels, int64_t side)
{
    qn_tensor t = qn_tensor_2d(data, type, batch, channels);
    t.rank = 4;
    t.shape[1] = t.shape[2] = side;
    t.shape[3] = channels;
    t.stride[3] = 1;
    t.stride[2] = channels;
    t.stride[1] = channels * side;
    t.stride[0] = channels * side * side;
    return t;
}

static double once(struct build *b, qn_conv_args *args)
{
    args->w = b->w;
    args->y.data = b->y;
    __typeof__(b->qn_conv2d) run = is_transposed ? b->qn_conv_transpose2d : b->qn_conv2d;
    const double begin = now();
    if (run(b->ctx, args, b->scratch, b->scratch_bytes))
        fail("qn_conv2d", "failed");
    return now() - begin;
}

static void time_layer(const struct layer *l, int64_t batch, double seconds)
{
    const int is_bell = getenv("BELL") != NULL, is_unsigned = getenv("UNSIGNED") != NULL;
    const qn_dtype type = is_float ? QN_F32 : is_unsigned ? QN_U8 : QN_I8;
    const size_t element = is_float ? sizeof(float) : 1;
    const int64_t k = l->ci / l->groups * l->kernel * l->kernel;
    const int64_t n_x = batch * l->side * l->side * l->ci;
    float *const dense = room((size_t)(l->co * k) * sizeof *dense);
    int8_t *const x = room((size_t)n_x * element);
    qn_conv_args args;
    int times = 0;
    for (int64_t i = 0; i < l->co * k; i++)
        dense[i] = (float)bell(is_bell ? 3 : 1);
    for (int64_t i = 0; i < n_x; i++) {
        const double value = is_bell ? bell(4) * 127 : bell(1) * 254;
        if (is_float)
            ((float *)(void *)x)[i] = (float)value;
        else
            x[i] = (int8_t)value;
    }
    qn_conv_args_init(&args);
    args.image = QN_NHWC;
    args.strategy = is_float ? QN_STRATEGY_FLOAT : QN_STRATEGY_INT8_STATIC;
    args.quant.x_scale = 0.02f;
    args.quant.x_zero = is_unsigned ? 128 : 0;
    args.epilogue.act = QN_ACT_RELU;
    args.epilogue.y_scale = 0.02f * (float)k / 16;
    args.epilogue.y_zero = is_unsigned ? 128 : 0;
    if (is_float)
        args.quant.x_scale = args.epilogue.y_scale = 0;
    args.stride[0] = args.stride[1] = (int32_t)l->stride;
    for (int i = 0; i < 4; i++)
        args.pad[i] = (int32_t)(l->kernel - 1) / 2;
    args.x = image(x, type, batch, l->ci, l->side);
    if (is_transposed)
        for (int i = 0; i < 4; i++)
            args.pad[i] = i < 2 ? (int32_t)(l->kernel - l->stride) / 2
                                : (int32_t)(l->kernel - l->stride + 1) / 2;
    const int64_t out = is_transposed ? l->side * l->stride
                                      : (l->side + 2 * args.pad[0] - l->kernel) / l->stride + 1;
    const size_t y_bytes = (size_t)(batch * out * out * l->co) * element;
    for (int i = 0; i < 2; i++) {
        struct build *const b = &builds[i];
        pack(b, l, dense);
        args.w = b->w;
        b->y = room(y_bytes);
        args.y = image(b->y, type, batch, l->co, out);
        if ((is_transposed ? b->qn_conv_transpose2d_scratch
                           : b->qn_conv2d_scratch)(b->ctx, &args, &b->scratch_bytes))
            fail(l->name, "qn_conv2d_scratch failed");
        b->scratch = room(b->scratch_bytes + 64);
        once(b, &args);
    }
    const int same = memcmp(builds[0].y, builds[1].y, y_bytes) == 0;
    for (const double begin = now(); times < TIMES && (times < 9 || now() - begin < seconds * 1e6);
         times++) {
        const int first = times % 2;
        builds[first].us[times] = once(&builds[first], &args);
        builds[1 - first].us[times] = once(&builds[1 - first], &args);
        ratio[times] = builds[1].us[times] / builds[0].us[times];
    }
    qsort(ratio, (size_t)times, sizeof *ratio, by_size);
    double middle[2];
    for (int i = 0; i < 2; i++) {
        struct build *const b = &builds[i];
        qsort(b->us, (size_t)times, sizeof(double), by_size);
        middle[i] = b->us[times / 2];
        sum_us[i] += middle[i];
        free(b->scratch);
        free(b->y);
        b->qn_packed_destroy(b->w);
    }
    printf("%-14s %-24s %9.1f %9.1f  %.3f, neighbours %.3f, %s\n", l->model, l->name, middle[0],
           middle[1], middle[1] / middle[0], ratio[times / 2], same ? "same bits" : "OTHER BITS");
    fflush(stdout);
    free(dense);
    free(x);
}

int main(int argc, char **argv)
{
    if (argc < 6)
        fail(argv[0], "OLD.so NEW.so MODEL THREADS SECONDS [BATCH]");
    struct layer own = {"", argv[3], 0, 0, 0, 0, 0, 0};
    is_float = getenv("FLOAT") != NULL;
    is_transposed = getenv("TRANSPOSED") != NULL;
    for (int i = 0; i < 2; i++)
        open_build(&builds[i], argv[1 + i], atoi(argv[4]));
    if (sscanf(argv[3], "%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64,
               &own.ci, &own.side, &own.co, &own.kernel, &own.stride, &own.groups) == 6) {
        time_layer(&own, argc > 6 ? atoll(argv[6]) : 1, atof(argv[5]));
        return 0;
    }
    for (size_t i = 0; i < sizeof layers / sizeof *layers; i++) {
        char name[128];
        snprintf(name, sizeof name, "%s/%s", layers[i].model, layers[i].name);
        if (strncmp(name, argv[3], strlen(argv[3])) == 0)
            time_layer(&layers[i], argc > 6 ? atoll(argv[6]) : 1, atof(argv[5]));
    }
    printf("sum %.1f %.1f  %.3f\n", sum_us[0], sum_us[1], sum_us[1] / sum_us[0]);
    return 0;
}
