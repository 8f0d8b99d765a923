/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs of this folder share: one small problem of every operation with all its
 * operands on a GPU, and expectations that look at more than the status: a failure says why (in
 * err, or to the context's log), CUDA's per-thread state has no error afterwards, and the caller's
 * device is current as before. Public headers and CUDA's; weights are made as in the unit tests. */
#ifndef TEST_GPU_SCENE_H
#define TEST_GPU_SCENE_H

#include <cuda_runtime_api.h>
#include <quern/cuda.h>
#include <quern/quern.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "unit/random_weight.h"

/* ---- expectations ---------------------------------------------------------------------------- */

static int failures;
static _Thread_local char heard[256]; /* what the log was told last */
static int home;                      /* the device that has to stay current */

static void hear(void *arg, int32_t severity, const char *text)
{
    (void)arg;
    if (severity >= 2)
        snprintf(heard, sizeof heard, "%s", text);
}

static inline void fail_here(const char *what, const char *why)
{
    __atomic_add_fetch(&failures, 1, __ATOMIC_RELAXED);
    printf("FAILED %s: %s\n", what, why);
    fflush(stdout);
}

static inline void expect(bool is_true, const char *what, const char *why)
{
    if (!is_true)
        fail_here(what, why);
}

static inline void expect_clean(const char *what)
{
    int device = -1;
    const cudaError_t code = cudaPeekAtLastError();
    if (code != cudaSuccess) {
        fail_here(what, cudaGetErrorName(code));
        (void)cudaGetLastError();
    }
    expect(cudaGetDevice(&device) == cudaSuccess && device == home, what,
           "another device is current");
}

/* err NULL: the sentence goes to the log. A failure's sentence has `word` in it. */
static inline void expect_status(const char *what, qn_status got, qn_status expected,
                                 const qn_error *err, const char *word)
{
    const char *text = err != NULL ? err->text : heard;
    char why[640];
    if (got != expected)
        snprintf(why, sizeof why, "%s, expected %s: %s", qn_status_name(got),
                 qn_status_name(expected), got != QN_OK ? text : "");
    else if (got != QN_OK && (text[0] == 0 || strstr(text, word) == NULL))
        snprintf(why, sizeof why, "'%s' does not say '%s'", text, word);
    else
        why[0] = 0;
    if (why[0] != 0)
        fail_here(what, why);
    heard[0] = 0;
    expect_clean(what);
}

/* ---- contexts and memory --------------------------------------------------------------------- */

static inline qn_status open_context(qn_device device, qn_ctx **ctx, qn_error *err)
{
    qn_ctx_options o;
    qn_ctx_options_init(&o);
    o.device = device;
    o.n_threads = 1;
    o.log = hear;
    *ctx = NULL;
    return qn_ctx_create(&o, ctx, err);
}

/* A context, or the end of the program: with 77 where there is no GPU for it. */
static inline qn_ctx *context_on(int32_t kind, int32_t index)
{
    qn_error err = {QN_OK, -1, ""};
    qn_ctx *ctx;
    if (open_context((qn_device){kind, index}, &ctx, &err) == QN_OK)
        return ctx;
    printf("skipped: %s\n", err.text);
    exit(77);
}

static inline size_t free_bytes(int device)
{
    size_t left = 0, all = 0;
    (void)cudaSetDevice(device);
    (void)cudaDeviceSynchronize();
    (void)cudaMemGetInfo(&left, &all);
    (void)cudaSetDevice(home);
    return left;
}

/* ---- scenes ---------------------------------------------------------------------------------- */

enum { SCENE_OPERANDS = 12, SCENE_EXPERTS = 3 };
struct operand {
    const char *name;
    qn_tensor *tensor; /* of the arguments; its data lies on the GPU */
    void *host;        /* what that memory was filled with */
    size_t bytes;
};

struct scene {
    const char *name;
    int32_t kind; /* see enum below */
    qn_ctx *ctx;
    const qn_packed *w[SCENE_EXPERTS];
    int32_t n_w;
    union {
        qn_matmul_args matmul;
        qn_grouped_args grouped;
        qn_conv_args conv;
        qn_quantize_rows_args rows;
    } args;
    struct operand operand[SCENE_OPERANDS]; /* the first is written */
    int32_t n;
    void *scratch; /* on the GPU */
    size_t scratch_bytes;
};

enum {
    SCENE_MATMUL = 0, /* int8-row, every part of an epilogue */
    SCENE_DECODE,     /* float, f16, one row */
    SCENE_DENSE,      /* dense, f16, 50 rows */
    SCENE_PREFILL,    /* float, f16, 200 rows */
    SCENE_GROUPED_IDS,
    SCENE_GROUPED_OFFSETS,
    SCENE_CONV,
    SCENE_DEPTHWISE,
    SCENE_TRANSPOSE,
    SCENE_QUANTIZE,
    N_SCENES
};

static inline qn_packed *pack_some(const qn_ctx *ctx, const char *spec, struct random_shape shape,
                                   uint64_t seed)
{
    qn_error err = {QN_OK, -1, ""};
    qn_packed *packed = NULL;
    qn_weight *w = random_weight(ctx, spec, shape, seed, false, true);
    if (w == NULL || qn_pack(ctx, w, NULL, &packed, &err) != QN_OK) {
        printf("FAILED packing %s: %s\n", spec, err.text);
        exit(1);
    }
    qn_weight_destroy(w);
    return packed;
}

/* An operand of the given shape: reals in [-1, 1), or small integers from 0 on. */
static inline void use(struct scene *s, qn_tensor *t, const char *name, qn_dtype dtype,
                       int32_t rank, const int64_t *shape)
{
    uint64_t seed = (uint64_t)s->kind * 100 + (uint64_t)s->n;
    qn_error err = {QN_OK, -1, ""};
    qn_ctx_info info;
    int64_t n;
    struct operand *o = &s->operand[s->n++];
    qn_ctx_info_init(&info);
    (void)qn_ctx_query(s->ctx, &info);
    *t = qn_tensor_make(NULL, dtype, rank, shape);
    t->device = info.device;
    *o = (struct operand){.name = name, .tensor = t};
    (void)qn_tensor_extent(t, &n, &o->bytes);
    o->host = calloc(1, o->bytes);
    for (int64_t i = 0; i < n; i++)
        if (dtype == QN_F32)
            ((float *)o->host)[i] = (float)unit_in(&seed, -1000, 999) * 0x1p-10f;
        else if (dtype == QN_I32)
            ((int32_t *)o->host)[i] = (int32_t)(i % SCENE_EXPERTS);
        else if (dtype == QN_F16) /* +-[0.5, 1) */
            ((uint16_t *)o->host)[i] =
                (uint16_t)(0x3800 + unit_in(&seed, 0, 0x3ff) + 0x8000 * unit_in(&seed, 0, 1));
    if (qn_cuda_alloc(s->ctx, o->bytes, &t->data, &err) != QN_OK ||
        qn_cuda_upload(s->ctx, t->data, o->host, o->bytes, &err) != QN_OK) {
        printf("FAILED memory of %s: %s\n", name, err.text);
        exit(1);
    }
}

#define SHAPE(...)                                                                                 \
    (const int64_t[])                                                                              \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

static inline void make_matmul(struct scene *s, int64_t m, qn_dtype x_type)
{
    enum { N = 80, K = 200 };
    qn_matmul_args *a = &s->args.matmul;
    qn_epilogue *e = &a->epilogue;
    qn_matmul_args_init(a);
    a->w = s->w[0] = pack_some(s->ctx, "int4:g64", (struct random_shape){N, K, 1, 1, 1}, 1);
    s->n_w = 1;
    use(s, &a->y, "y", QN_F32, 2, SHAPE(m, N));
    use(s, &a->x, "x", x_type, 2, SHAPE(m, K));
    if (s->kind == SCENE_DENSE)
        a->strategy = QN_STRATEGY_DENSE;
    if (s->kind != SCENE_MATMUL)
        return;
    a->strategy = QN_STRATEGY_INT8_ROW;
    use(s, &e->bias, "bias", QN_F32, 1, SHAPE(N));
    use(s, &e->residual, "residual", QN_F32, 2, SHAPE(m, N));
    use(s, &e->row_scale, "row_scale", QN_F32, 1, SHAPE(m));
    use(s, &e->col_scale, "col_scale", QN_F32, 1, SHAPE(N));
}

static inline void make_grouped(struct scene *s)
{
    enum { N = 48, K = 128, M = 21, TOKENS = 10 };
    qn_grouped_args *a = &s->args.grouped;
    qn_grouped_args_init(a);
    for (; s->n_w < SCENE_EXPERTS; s->n_w++)
        s->w[s->n_w] =
            pack_some(s->ctx, "int4:g32", (struct random_shape){N, K, 1, 1, 1}, (uint64_t)s->n_w);
    a->w = s->w;
    a->n_experts = SCENE_EXPERTS;
    a->strategy = QN_STRATEGY_INT8_ROW;
    use(s, &a->y, "y", QN_F32, 2, SHAPE(M, N));
    if (s->kind == SCENE_GROUPED_IDS) {
        use(s, &a->x, "x", QN_F32, 2, SHAPE(TOKENS, K));
        use(s, &a->ids, "ids", QN_I32, 1, SHAPE(M));
        use(s, &a->x_rows, "x_rows", QN_I32, 1, SHAPE(M));
        return;
    }
    use(s, &a->x, "x", QN_F32, 2, SHAPE(M, K));
    use(s, &a->offsets, "offsets", QN_I32, 1, SHAPE(SCENE_EXPERTS + 1));
    int32_t *const offsets = s->operand[s->n - 1].host;
    for (int32_t e = 0; e <= SCENE_EXPERTS; e++)
        offsets[e] = e * M / SCENE_EXPERTS;
    (void)qn_cuda_upload(s->ctx, a->offsets.data, offsets, s->operand[s->n - 1].bytes, NULL);
}

static inline void make_conv(struct scene *s)
{
    const bool by_channel = s->kind == SCENE_DEPTHWISE;
    const int32_t ci = 24, co = by_channel ? ci : 40, groups = by_channel ? ci : 1;
    const struct random_shape shape = {co, ci / groups, 3, 3, groups};
    qn_conv_args *a = &s->args.conv;
    qn_conv_args_init(a);
    a->w = s->w[0] = pack_some(s->ctx, "int8:pc", shape, 3);
    s->n_w = 1;
    a->strategy = QN_STRATEGY_INT8_ROW;
    for (int i = 0; i < 4; i++)
        a->pad[i] = 1;
    a->x = qn_tensor_make(NULL, QN_F32, 4, SHAPE(2, ci, 9, 7));
    a->y.dtype = QN_F32;
    if ((s->kind == SCENE_TRANSPOSE ? qn_conv_transpose2d_shape(a) : qn_conv2d_shape(a)) != QN_OK)
        exit(1);
    const qn_tensor y = a->y;
    use(s, &a->y, "y", QN_F32, 4, y.shape);
    use(s, &a->x, "x", QN_F32, 4, SHAPE(2, ci, 9, 7));
    use(s, &a->epilogue.bias, "bias", QN_F32, 1, SHAPE(co));
}

static inline void make_rows(struct scene *s)
{
    enum { M = 9, K = 100, BLOCKS = 4 };
    qn_quantize_rows_args *a = &s->args.rows;
    qn_quantize_rows_args_init(a);
    a->block = 32;
    use(s, &a->codes, "codes", QN_I8, 2, SHAPE(M, K));
    use(s, &a->x, "x", QN_F32, 2, SHAPE(M, K));
    use(s, &a->scale, "scale", QN_F32, 2, SHAPE(M, BLOCKS));
    use(s, &a->offset, "offset", QN_F32, 2, SHAPE(M, BLOCKS));
    use(s, &a->sum, "sum", QN_I32, 2, SHAPE(M, BLOCKS));
}

static inline qn_status scene_scratch(struct scene *s, size_t *bytes)
{
    *bytes = 0;
    switch (s->kind) {
    case SCENE_MATMUL:
    case SCENE_DECODE:
    case SCENE_DENSE:
    case SCENE_PREFILL:
        return qn_matmul_scratch(s->ctx, &s->args.matmul, bytes);
    case SCENE_GROUPED_IDS:
    case SCENE_GROUPED_OFFSETS:
        return qn_grouped_scratch(s->ctx, &s->args.grouped, bytes);
    case SCENE_CONV:
    case SCENE_DEPTHWISE:
        return qn_conv2d_scratch(s->ctx, &s->args.conv, bytes);
    case SCENE_TRANSPOSE:
        return qn_conv_transpose2d_scratch(s->ctx, &s->args.conv, bytes);
    default:
        return QN_OK;
    }
}

static inline qn_status scene_run_with(struct scene *s, void *scratch, size_t bytes)
{
    switch (s->kind) {
    case SCENE_MATMUL:
    case SCENE_DECODE:
    case SCENE_DENSE:
    case SCENE_PREFILL:
        return qn_matmul(s->ctx, &s->args.matmul, scratch, bytes);
    case SCENE_GROUPED_IDS:
    case SCENE_GROUPED_OFFSETS:
        return qn_grouped(s->ctx, &s->args.grouped, scratch, bytes);
    case SCENE_CONV:
    case SCENE_DEPTHWISE:
        return qn_conv2d(s->ctx, &s->args.conv, scratch, bytes);
    case SCENE_TRANSPOSE:
        return qn_conv_transpose2d(s->ctx, &s->args.conv, scratch, bytes);
    default:
        return qn_quantize_rows(s->ctx, &s->args.rows);
    }
}

static inline qn_status scene_run(struct scene *s)
{
    return scene_run_with(s, s->scratch, s->scratch_bytes);
}

static inline void scene_start(struct scene *s, qn_ctx *ctx, int32_t kind)
{
    static const char *const names[N_SCENES] = {
        "matmul",           "decode", "dense",     "prefill",          "grouped, ids",
        "grouped, offsets", "conv2d", "depthwise", "conv_transpose2d", "quantize_rows"};
    static const int64_t rows[] = {13, 1, 50, 200};
    memset(s, 0, sizeof *s);
    s->name = names[kind];
    s->kind = kind;
    s->ctx = ctx;
    if (kind <= SCENE_PREFILL)
        make_matmul(s, rows[kind], kind == SCENE_MATMUL ? QN_F32 : QN_F16);
    else if (kind <= SCENE_GROUPED_OFFSETS)
        make_grouped(s);
    else if (kind <= SCENE_TRANSPOSE)
        make_conv(s);
    else
        make_rows(s);
    expect_status(s->name, scene_scratch(s, &s->scratch_bytes), QN_OK, NULL, "");
    expect_status(s->name, qn_cuda_alloc(ctx, s->scratch_bytes, &s->scratch, NULL), QN_OK, NULL,
                  "");
}

static inline void scene_stop(struct scene *s)
{
    for (int32_t i = 0; i < s->n_w; i++)
        qn_packed_destroy((qn_packed *)(uintptr_t)s->w[i]);
    for (int32_t i = 0; i < s->n; i++) {
        expect(qn_cuda_free(s->ctx, s->operand[i].tensor->data) == QN_OK, s->name, "free");
        free(s->operand[i].host);
    }
    expect(qn_cuda_free(s->ctx, s->scratch) == QN_OK, s->name, "free");
}

/* Overwrite what is written; and what is there now (to be freed). */
static inline void scene_clear(struct scene *s)
{
    const struct operand *o = &s->operand[0];
    memset(o->host, 0x11, o->bytes);
    expect(qn_cuda_upload(s->ctx, o->tensor->data, o->host, o->bytes, NULL) == QN_OK, s->name,
           "upload");
}

static inline uint8_t *scene_result(struct scene *s, size_t *bytes)
{
    const struct operand *o = &s->operand[0];
    uint8_t *const now = calloc(1, o->bytes + 1);
    qn_error err = {QN_OK, -1, ""};
    expect_status(s->name, qn_cuda_download(s->ctx, now, o->tensor->data, o->bytes, &err), QN_OK,
                  &err, "");
    *bytes = o->bytes;
    return now;
}

/* Is the result the same as this one? */
static inline void scene_compare(struct scene *s, const uint8_t *wanted, const char *what)
{
    size_t bytes = 0;
    uint8_t *const now = scene_result(s, &bytes);
    if (memcmp(now, wanted, bytes) != 0)
        fail_here(s->name, what);
    free(now);
}

static inline int report(const char *what)
{
    printf("%s: %d failures\n", what, failures);
    return failures != 0;
}

#endif
