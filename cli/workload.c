/* SPDX-License-Identifier: Apache-2.0 */
/* Problems made real: weights quantized and packed, activations, output, plan; runs and timing. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>

#include "problem.h"
#include "term.h"

enum { MAX_COPIES = 2048, MAX_RUNS = 20000 };

/* -------------------------------------------------------------------------- the library's args */

static qn_tensor tensor(const struct workload *w, void *data, qn_dtype dtype, int32_t rank,
                        const int64_t *shape)
{
    qn_tensor t = qn_tensor_make(data, dtype, rank, shape);
    t.device = w->device;
    return t;
}
static qn_tensor tensor_2d(const struct workload *w, void *data, qn_dtype dtype, int64_t rows,
                           int64_t columns)
{
    const int64_t shape[2] = {rows, columns};
    return tensor(w, data, dtype, 2, shape);
}

static qn_matmul_args matmul_args(const struct workload *w)
{
    qn_matmul_args a;
    qn_matmul_args_init(&a);
    a.w = w->packed[w->next];
    a.x = tensor_2d(w, w->at.x, w->p.x, w->p.m, w->p.k);
    a.y = tensor_2d(w, w->at.y, w->p.y, w->p.m, w->p.n);
    a.strategy = w->p.strategy;
    a.strict = w->p.strict;
    a.kernel = w->p.kernel;
    a.quant = w->quant;
    a.epilogue.y_scale = w->y_scale;
    return a;
}

static qn_grouped_args grouped_args(const struct workload *w)
{
    qn_grouped_args a;
    qn_grouped_args_init(&a);
    a.w = (const qn_packed *const *)&w->packed[w->next * w->p.experts];
    a.n_experts = w->p.experts;
    a.x = tensor_2d(w, w->at.x, w->p.x, w->p.m, w->p.k);
    a.y = tensor_2d(w, w->at.y, w->p.y, w->y_rows, w->p.n);
    a.ids = tensor(w, w->at.ids, QN_I32, 1, &w->y_rows);
    a.x_rows = tensor(w, w->at.x_rows, QN_I32, 1, &w->y_rows);
    a.strategy = w->p.strategy;
    a.strict = w->p.strict;
    a.kernel = w->p.kernel;
    a.quant = w->quant;
    a.epilogue.y_scale = w->y_scale;
    return a;
}

static qn_conv_args conv_args(const struct workload *w)
{
    const struct conv_shape *c = &w->p.conv;
    qn_conv_args a;
    qn_conv_args_init(&a);
    a.w = w->packed[w->next];
    const int64_t x_nchw[4] = {c->batch, c->ci, c->h, c->w};
    const int64_t x_nhwc[4] = {c->batch, c->h, c->w, c->ci};
    const int64_t y_nchw[4] = {c->batch, w->p.n, c->oh, c->ow};
    const int64_t y_nhwc[4] = {c->batch, c->oh, c->ow, w->p.n};
    a.x = tensor(w, w->at.x, w->p.x, 4, c->image == QN_NHWC ? x_nhwc : x_nchw);
    a.y = tensor(w, w->at.y, w->p.y, 4, c->image == QN_NHWC ? y_nhwc : y_nchw);
    a.image = c->image;
    memcpy(a.stride, c->stride, sizeof a.stride);
    memcpy(a.dilation, c->dilation, sizeof a.dilation);
    memcpy(a.pad, c->pad, sizeof a.pad);
    memcpy(a.out_pad, c->out_pad, sizeof a.out_pad);
    a.strategy = w->p.strategy;
    a.strict = w->p.strict;
    a.kernel = w->p.kernel;
    a.quant = w->quant;
    a.epilogue.y_scale = w->y_scale;
    return a;
}

static qn_status make_plan(struct workload *w, qn_error *err)
{
    if (w->p.op == OP_GROUPED) {
        const qn_grouped_args a = grouped_args(w);
        return qn_grouped_plan(w->ctx, &a, &w->plan, err);
    }
    if (w->p.op == OP_CONV2D) {
        const qn_conv_args a = conv_args(w);
        return w->p.conv.is_transposed ? qn_conv_transpose2d_plan(w->ctx, &a, &w->plan, err)
                                       : qn_conv2d_plan(w->ctx, &a, &w->plan, err);
    }
    const qn_matmul_args a = matmul_args(w);
    return qn_matmul_plan(w->ctx, &a, &w->plan, err);
}

qn_status workload_run(struct workload *w)
{
    qn_status status;
    if (w->p.op == OP_GROUPED) {
        const qn_grouped_args a = grouped_args(w);
        status = qn_grouped_run(w->plan, &a, w->at.scratch, w->scratch_bytes);
    } else if (w->p.op == OP_CONV2D) {
        const qn_conv_args a = conv_args(w);
        status = w->p.conv.is_transposed
                     ? qn_conv_transpose2d_run(w->plan, &a, w->at.scratch, w->scratch_bytes)
                     : qn_conv2d_run(w->plan, &a, w->at.scratch, w->scratch_bytes);
    } else {
        const qn_matmul_args a = matmul_args(w);
        status = qn_matmul_run(w->plan, &a, w->at.scratch, w->scratch_bytes);
    }
    w->next = (w->next + 1) % w->copies;
    return status;
}

/* ------------------------------------------------------------------------------------- weights */

static char *describe(const struct problem *p)
{
    return must_print("%s%s%s n=%lld k=%lld m=%lld %s %s", p->layer,
                      p->layer[0] != '\0' ? ": " : "", problem_op_name(p), (long long)p->n,
                      (long long)p->k, (long long)p->m, p->weights, qn_strategy_name(p->strategy));
}

static int failed(const struct workload *w, qn_status status, const qn_error *err)
{
    if (status == QN_E_UNSUPPORTED && w->p.kernel != NULL)
        return complain(EXIT_LIBRARY, "'quern explain' without --kernel lists all of them",
                        "--kernel %s: it does not serve this problem, or does not exist",
                        w->p.kernel);
    char *what = describe(&w->p);
    const int exit_status = complain_status(what, status, err);
    free(what);
    return exit_status;
}

static qn_status make_weight(struct workload *w, int i, qn_error *err)
{
    const struct problem *p = &w->p;
    const double start = seconds_now();
    uint16_t *dense = must_alloc(sizeof *dense * (size_t)p->n * (size_t)p->k);
    for (int64_t row = 0; row < p->n; row++)
        random_weight_row(w->seed + (uint64_t)i, row, p->k, dense + row * p->k);
    qn_quantize_options options;
    qn_quantize_options_init(&options);
    options.format = p->format;
    if (p->op == OP_CONV2D) {
        options.kh = p->conv.kh;
        options.kw = p->conv.kw;
        options.conv_groups = p->conv.groups;
    }
    const qn_tensor source = qn_tensor_2d(dense, QN_BF16, p->n, p->k);
    const double begin = seconds_now();
    const qn_status status = qn_quantize(w->host, &source, &options, &w->weights[i], err);
    w->make_seconds = begin - start;
    w->quantize_seconds = seconds_now() - begin;
    free(dense);
    return status;
}

/* One more copy of everything. */
static qn_status pack_copy(struct workload *w, qn_error *err)
{
    const int experts = w->p.op == OP_GROUPED ? w->p.experts : 1;
    const size_t total = (size_t)(w->copies + 1) * (size_t)experts;
    w->packed = must_grow(w->packed, sizeof *w->packed * total);
    memset(w->packed + (size_t)w->copies * (size_t)experts, 0, sizeof *w->packed * (size_t)experts);
    const double begin = seconds_now();
    size_t bytes = 0;
    w->copies++;
    for (int e = 0; e < experts; e++) {
        qn_packed **to = &w->packed[(w->copies - 1) * experts + e];
        const qn_status status = qn_pack(w->ctx, w->weights[e % w->n_weights], NULL, to, err);
        if (status != QN_OK)
            return status;
        qn_packed_info_init(&w->facts);
        qn_packed_query(*to, &w->facts);
        bytes += w->facts.bytes;
    }
    w->packed_bytes = bytes;
    w->pack_seconds = seconds_now() - begin;
    return QN_OK;
}

int workload_rotate(struct workload *w, size_t bytes, double seconds)
{
    qn_error err = {0};
    const double end = seconds_now() + seconds;
    while ((size_t)w->copies * w->packed_bytes < bytes && w->copies < MAX_COPIES &&
           seconds_now() < end && !is_stopped()) {
        const qn_status status = pack_copy(w, &err);
        if (status != QN_OK)
            return failed(w, status, &err);
    }
    return 0;
}

/* --------------------------------------------------------------------------------- activations */

/* The weights of the generator have deviation 0.02 or so: y then fills about a third of an int8. */
static float output_scale(const struct problem *p)
{
    float scale = 1;
    while (scale * scale > 1e-4f * (float)(p->k + 1) / 1024)
        scale *= 0.5f;
    return scale;
}

void floats_to(const float *from, qn_dtype dtype, int64_t n, void *to)
{
    const qn_tensor source = qn_tensor_1d((void *)(uintptr_t)from, QN_F32, n);
    const qn_tensor target = qn_tensor_1d(to, dtype, n);
    const qn_entry entry = {.name = "",
                            .tensor = source,
                            .dtype = "F32",
                            .bytes = sizeof *from * (size_t)n,
                            .is_aligned = 1};
    qn_entry_copy(&entry, &target);
}

void floats_from(const void *from, qn_dtype dtype, int64_t n, float *to)
{
    const qn_tensor source = qn_tensor_1d((void *)(uintptr_t)from, dtype, n);
    const qn_tensor target = qn_tensor_1d(to, QN_F32, n);
    const qn_entry entry = {.name = "",
                            .tensor = source,
                            .dtype = qn_dtype_name(dtype),
                            .bytes = qn_dtype_bytes(dtype) * (size_t)n,
                            .is_aligned = 1};
    qn_entry_copy(&entry, &target);
}

static void make_x(struct workload *w)
{
    const struct problem *p = &w->p;
    const int64_t n = w->x_elements;
    w->x = must_align((size_t)n * qn_dtype_bytes(p->x));
    w->x_exact = must_align((size_t)n * sizeof *w->x_exact);
    if (p->x == QN_I8 || p->x == QN_U8) {
        uint64_t state = w->seed + 77;
        const int32_t lowest = p->x == QN_U8 ? 0 : -128;
        for (int64_t i = 0; i < n; i++) {
            const int32_t code = (int32_t)(random_next(&state) & 0xff) + lowest;
            ((uint8_t *)w->x)[i] = (uint8_t)code;
            w->x_exact[i] = w->quant.x_scale * (float)(code - w->quant.x_zero);
        }
        return;
    }
    random_activations(w->seed + 77, n, p->op == OP_CONV2D ? 0 : p->k, w->x_exact);
    floats_to(w->x_exact, p->x, n, w->x);
    floats_from(w->x, p->x, n, w->x_exact);
}

/* Top-k experts of each token: different ones, all equally likely. */
static void make_routes(struct workload *w)
{
    const struct problem *p = &w->p;
    uint64_t state = w->seed + 5;
    w->ids = must_align(sizeof *w->ids * (size_t)w->y_rows);
    w->x_rows = must_align(sizeof *w->x_rows * (size_t)w->y_rows);
    for (int64_t r = 0; r < w->y_rows; r++) {
        const int64_t first = r - r % p->top_k;
        int is_new;
        do {
            w->ids[r] = (int32_t)(random_next(&state) % (uint64_t)p->experts);
            is_new = 1;
            for (int64_t i = first; i < r; i++)
                is_new &= w->ids[i] != w->ids[r];
        } while (!is_new);
        w->x_rows[r] = (int32_t)(r / p->top_k);
    }
}

/* Numbers of elements and rows; nothing is allocated. */
static void measure_shapes(struct workload *w)
{
    const struct problem *p = &w->p;
    const struct conv_shape *c = &p->conv;
    w->y_rows = p->op == OP_GROUPED ? p->m * p->top_k : p->m;
    w->y_elements = w->y_rows * p->n;
    w->x_elements = p->op == OP_CONV2D ? c->batch * c->ci * c->h * c->w : p->m * p->k;
    w->quant.x_scale = p->x == QN_I8 || p->x == QN_U8 ? 1.0f / 64 : 1.0f;
    w->quant.x_zero = p->x == QN_U8 ? 128 : 0;
    w->y_scale = p->y == QN_I8 || p->y == QN_U8 ? output_scale(p) : 1.0f;
}

int workload_choose(struct workload *w)
{
    qn_error err = {0};
    measure_shapes(w);
    const qn_status status = make_plan(w, &err);
    if (status != QN_OK)
        return failed(w, status, &err);
    qn_plan_info_init(&w->info);
    qn_plan_query(w->plan, &w->info);
    return 0;
}

/* Most bytes that making the weights takes: numbers of two bytes for one of them beside codes of
 * one byte, or all codes beside what is packed. Told before minutes are spent on the first. */
static int check_memory(const struct workload *w)
{
    const struct problem *p = &w->p;
    const double one = (double)p->n * (double)p->k, codes = one * w->n_weights;
    const double packed = one * (p->op == OP_GROUPED ? p->experts : 1) * p->format.bits / 8;
    const double bytes = codes + (packed > 2 * one ? packed : 2 * one), left = memory_left();
    char wanted[HUMAN], there[HUMAN];
    if (bytes < left || !memory_is_large((size_t)bytes))
        return 0;
    char *what = describe(p);
    const int status = complain(EXIT_LIBRARY, "free some or take a smaller problem",
                                "%s: its weights take %s of memory, %s are left", what,
                                human_bytes(bytes, wanted), human_bytes(left, there));
    free(what);
    return status;
}

int workload_weights(struct workload *w, qn_ctx *ctx, const struct problem *p)
{
    qn_error err = {0};
    *w = (struct workload){.p = *p, .ctx = ctx, .host = ctx, .seed = 20240607};
    w->device = device_of(ctx);
    if (w->device.kind != QN_CPU) {
        const qn_status made = qn_ctx_create(NULL, &w->host, &err);
        if (made != QN_OK)
            return failed(w, made, &err);
    }
    w->n_weights = p->op != OP_GROUPED ? 1 : p->experts < MAX_WEIGHTS ? p->experts : MAX_WEIGHTS;
    const int too_large = check_memory(w);
    if (too_large != 0)
        return too_large;
    qn_status status = QN_OK;
    for (int i = 0; i < w->n_weights && status == QN_OK; i++)
        status = make_weight(w, i, &err);
    if (status == QN_OK)
        status = pack_copy(w, &err);
    measure_shapes(w);
    return status == QN_OK ? 0 : failed(w, status, &err);
}

int workload_plan(struct workload *w, qn_ctx *ctx, const struct problem *p)
{
    const int status = workload_weights(w, ctx, p);
    return status == 0 ? workload_choose(w) : status;
}

size_t workload_explain(const struct workload *w, char *text, size_t capacity)
{
    const qn_matmul_args matmul = matmul_args(w);
    const qn_grouped_args grouped = grouped_args(w);
    const qn_conv_args conv = conv_args(w);
    switch (w->p.op) {
    case OP_MATMUL:
        return qn_matmul_explain(w->ctx, &matmul, text, capacity);
    case OP_GROUPED:
        return qn_grouped_explain(w->ctx, &grouped, text, capacity);
    default:
        return w->p.conv.is_transposed ? qn_conv_transpose2d_explain(w->ctx, &conv, text, capacity)
                                       : qn_conv2d_explain(w->ctx, &conv, text, capacity);
    }
}

/* Everything that a run reads or writes, and its counterpart where the run happens. */
enum { N_BUFFERS = 5 };
static void list_buffers(struct workload *w, void *here[N_BUFFERS], void **there[N_BUFFERS],
                         size_t bytes[N_BUFFERS])
{
    const size_t routes = w->ids != NULL ? sizeof *w->ids * (size_t)w->y_rows : 0;
    void *const memory[N_BUFFERS] = {w->x, w->y, w->ids, w->x_rows, w->scratch};
    void **const at[N_BUFFERS] = {&w->at.x, &w->at.y, &w->at.ids, &w->at.x_rows, &w->at.scratch};
    const size_t sizes[N_BUFFERS] = {(size_t)w->x_elements * qn_dtype_bytes(w->p.x),
                                     (size_t)w->y_elements * qn_dtype_bytes(w->p.y), routes, routes,
                                     w->scratch_bytes};
    memcpy(here, memory, sizeof memory);
    memcpy(there, at, sizeof at);
    memcpy(bytes, sizes, sizeof sizes);
}

static int send_buffers(struct workload *w)
{
    void *here[N_BUFFERS], **there[N_BUFFERS];
    size_t bytes[N_BUFFERS];
    qn_error err = {0};
    qn_status status = QN_OK;
    list_buffers(w, here, there, bytes);
    for (int i = 0; i < N_BUFFERS && status == QN_OK; i++) {
        if (w->device.kind == QN_CPU) {
            *there[i] = here[i];
            continue;
        }
        status = qn_cuda_alloc(w->ctx, bytes[i], there[i], &err);
        if (status == QN_OK && here[i] != NULL)
            status = qn_cuda_upload(w->ctx, *there[i], here[i], bytes[i], &err);
    }
    return status == QN_OK ? 0 : failed(w, status, &err);
}

static int make_buffers(struct workload *w)
{
    make_x(w);
    if (w->p.op == OP_GROUPED)
        make_routes(w);
    w->y = must_align((size_t)w->y_elements * qn_dtype_bytes(w->p.y));
    memset(w->y, 0, (size_t)w->y_elements * qn_dtype_bytes(w->p.y));
    w->scratch_bytes = qn_plan_scratch_bytes(w->plan);
    if (w->device.kind == QN_CPU)
        w->scratch = must_align(w->scratch_bytes);
    return send_buffers(w);
}

static void free_buffers(struct workload *w)
{
    void *const there[N_BUFFERS] = {w->at.x, w->at.y, w->at.ids, w->at.x_rows, w->at.scratch};
    for (int i = 0; i < N_BUFFERS && w->device.kind == QN_CUDA; i++)
        qn_cuda_free(w->ctx, there[i]);
    qn_plan_destroy(w->plan);
    free(w->x_exact);
    free(w->x);
    free(w->y);
    free(w->scratch);
    free(w->ids);
    free(w->x_rows);
    w->plan = NULL;
    w->x = w->y = w->scratch = NULL;
    w->x_exact = NULL;
    w->ids = w->x_rows = NULL;
    memset(&w->at, 0, sizeof w->at);
}

qn_status workload_finish(struct workload *w, qn_error *err)
{
    if (w->device.kind == QN_CPU)
        return QN_OK;
    return qn_cuda_download(w->ctx, w->y, w->at.y, (size_t)w->y_elements * qn_dtype_bytes(w->p.y),
                            err);
}

int workload_make(struct workload *w, qn_ctx *ctx, const struct problem *p)
{
    const int status = workload_plan(w, ctx, p);
    return status == 0 ? make_buffers(w) : status;
}

int workload_again(struct workload *w, int64_t m, qn_strategy strategy)
{
    free_buffers(w);
    w->p.strategy = strategy;
    if (strategy == QN_STRATEGY_INT8_STATIC || w->p.x == QN_I8)
        w->p.x = strategy == QN_STRATEGY_INT8_STATIC ? QN_I8 : w->p.y;
    if (w->p.op == OP_CONV2D)
        w->p.conv.batch = m;
    else
        w->p.m = m;
    int status = problem_complete(&w->p);
    if (status == 0)
        status = workload_choose(w);
    return status == 0 ? make_buffers(w) : status;
}

void workload_free(struct workload *w)
{
    const int experts = w->p.op == OP_GROUPED ? w->p.experts : 1;
    free_buffers(w);
    for (int i = 0; w->packed != NULL && i < w->copies * experts; i++)
        qn_packed_destroy(w->packed[i]);
    for (int i = 0; i < w->n_weights; i++)
        qn_weight_destroy(w->weights[i]);
    free(w->packed);
    free(w->folded);
    free(w->spread);
    free(w->sign);
    if (w->host != w->ctx)
        qn_ctx_destroy(w->host);
    *w = (struct workload){0};
}

/* ------------------------------------------------------------------------------ bytes and time */

/* The bytes that the plan says it reads; of experts, only those are counted that some row goes to.
 */
double workload_bytes(const struct workload *w)
{
    if (w->p.op != OP_GROUPED || w->ids == NULL)
        return w->info.bytes;
    int active = 0;
    for (int32_t e = 0; e < w->p.experts; e++) {
        int64_t r = 0;
        while (r < w->y_rows && w->ids[r] != e)
            r++;
        active += r < w->y_rows;
    }
    const double x = (double)w->x_elements * (double)qn_dtype_bytes(w->p.x);
    const double y = (double)w->y_elements * (double)qn_dtype_bytes(w->p.y);
    return (double)w->packed_bytes / w->p.experts * active + x + y;
}

double workload_ops(const struct workload *w)
{
    const struct conv_shape *c = &w->p.conv;
    const int is_transposed = w->p.op == OP_CONV2D && c->is_transposed;
    /* Each input of a transposed convolution meets each tap; an output meets some of them. */
    const int64_t rows = is_transposed ? c->batch * c->h * c->w : w->y_rows;
    return 2.0 * (double)rows * (double)w->p.n * (double)w->p.k;
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

void samples_add(struct samples *samples, double seconds)
{
    if (samples->at == NULL)
        samples->at = must_alloc(sizeof *samples->at * MAX_RUNS);
    samples->at[samples->runs++ % MAX_RUNS] = seconds;
}

void samples_free(struct samples *samples)
{
    free(samples->at);
    *samples = (struct samples){NULL, 0};
}

struct timing timing_of(const struct samples *samples)
{
    struct timing t = {0, 0, 0, samples->runs};
    const int kept = samples->runs < MAX_RUNS ? samples->runs : MAX_RUNS;
    if (kept == 0)
        return t;
    double *sorted = must_alloc(sizeof *sorted * (size_t)kept);
    memcpy(sorted, samples->at, sizeof *sorted * (size_t)kept);
    qsort(sorted, (size_t)kept, sizeof *sorted, by_size);
    t.median = sorted[kept / 2];
    t.p10 = sorted[kept / 10];
    t.p90 = sorted[kept - 1 - kept / 10];
    free(sorted);
    return t;
}

static qn_status run_again(void *arg, int32_t i)
{
    (void)i;
    return workload_run(arg);
}

/* Replays of a graph of runs, in which every copy has its turn. */
static qn_status sample_graph(struct workload *w, double seconds, int least,
                              struct samples *samples)
{
    enum { REPLAYS = 15, CALLS = 24 };
    const int32_t calls = w->copies * (w->copies < CALLS ? (CALLS + w->copies - 1) / w->copies : 1);
    const double begin = seconds_now();
    double us[REPLAYS];
    qn_status status = QN_OK;
    for (int done = 0;
         status == QN_OK && !is_stopped() && (done < least || seconds_now() - begin < seconds);
         done += REPLAYS) {
        status = qn_cuda_measure(w->ctx, run_again, w, calls, REPLAYS, us, NULL);
        for (int i = 0; i < REPLAYS && status == QN_OK; i++)
            samples_add(samples, us[i] * 1e-6);
    }
    return status;
}

qn_status workload_sample(struct workload *w, double seconds, int least, struct samples *samples)
{
    if (w->device.kind == QN_CUDA)
        return sample_graph(w, seconds, least, samples);
    const double begin = seconds_now();
    double now = begin;
    qn_status status = QN_OK;
    for (int i = 0; status == QN_OK && !is_stopped() && (i < least || now - begin < seconds); i++) {
        status = workload_run(w);
        const double after = seconds_now();
        samples_add(samples, after - now);
        now = after;
    }
    return status;
}

qn_status workload_time(struct workload *w, double min_seconds, struct timing *timing)
{
    struct samples samples = {NULL, 0};
    /* Three runs make a median; after that, time decides. */
    const qn_status status = workload_sample(w, min_seconds, 3, &samples);
    *timing = timing_of(&samples);
    samples_free(&samples);
    return status;
}
