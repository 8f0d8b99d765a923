/* SPDX-License-Identifier: Apache-2.0 */
/* quern/nccl.h without a GPU: its logic over threads, a NCCL and a CUDA of this file's own. What
 * real ones do with it, only GPUs can tell. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <unistd.h>

#include <quern/nccl.h>

#include "api.h"

enum { MOST = 4, M = 5, N = 43, K = 192 };

/* ---- a stream that moves on when it is asked ------------------------------------------------- */

struct op {
    int kind; /* 0: copy of rows, 1: all-gather, 2: all-reduce, 3: reduce-scatter */
    const void *from;
    void *to;
    size_t to_pitch, from_pitch, width, height; /* of a collective: width is its count */
    ncclDataType_t type;
    ncclRedOp_t op;
    ncclComm_t comm;
    int64_t turn;
};
struct CUstream_st {
    struct op queue[512];
    int head, tail;
    bool is_captured;
    int violations; /* waits and allocations while it is captured */
};

/* Collective number i of a communicator, which all ranks come to. */
struct turn {
    struct op of[MOST];
    int arrived;
    bool is_done;
};
struct world {
    pthread_mutex_t lock;
    int n;
    struct turn turns[4096];
};
struct ncclComm {
    struct world *world;
    int rank;
    int64_t next; /* turn */
    bool is_aborted;
};

static __thread cudaStream_t own_stream; /* whose allocations this thread makes */

cudaError_t cudaMalloc(void **memory, size_t bytes)
{
    if (own_stream != NULL && own_stream->is_captured)
        own_stream->violations++;
    *memory = malloc(bytes);
    return *memory != NULL ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void *memory)
{
    free(memory);
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void)
{
    return cudaSuccess;
}
const char *cudaGetErrorString(cudaError_t error)
{
    return error == cudaSuccess ? "no error" : "an error of the fake";
}
const char *ncclGetErrorString(ncclResult_t result)
{
    return result == ncclSuccess ? "no error" : "an error of the fake";
}

static void push(cudaStream_t stream, const struct op *op)
{
    stream->queue[stream->tail++ % 512] = *op;
}
cudaError_t cudaMemcpy2DAsync(void *to, size_t to_pitch, const void *from, size_t from_pitch,
                              size_t width, size_t height, enum cudaMemcpyKind kind,
                              cudaStream_t stream)
{
    const struct op op = {.from = from,
                          .to = to,
                          .to_pitch = to_pitch,
                          .from_pitch = from_pitch,
                          .width = width,
                          .height = height};
    (void)kind;
    push(stream, &op);
    return cudaSuccess;
}
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t stream)
{
    return cudaMemcpy2DAsync(to, bytes, from, bytes, bytes, 1, kind, stream);
}

static ncclResult_t join(int kind, const void *send, void *recv, size_t count, ncclDataType_t type,
                         ncclRedOp_t reduce, ncclComm_t comm, cudaStream_t stream)
{
    const struct op op = {.kind = kind,
                          .from = send,
                          .to = recv,
                          .width = count,
                          .type = type,
                          .op = reduce,
                          .comm = comm,
                          .turn = -1};
    if (comm->is_aborted)
        return ncclInvalidUsage;
    push(stream, &op);
    return ncclSuccess;
}
ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclComm_t comm, cudaStream_t stream)
{
    return join(1, send, recv, count, type, ncclSum, comm, stream);
}
ncclResult_t ncclAllReduce(const void *send, void *recv, size_t count, ncclDataType_t type,
                           ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return join(2, send, recv, count, type, op, comm, stream);
}
ncclResult_t ncclReduceScatter(const void *send, void *recv, size_t count, ncclDataType_t type,
                               ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream)
{
    return join(3, send, recv, count, type, op, comm, stream);
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *state)
{
    *state = comm->is_aborted ? ncclInvalidUsage : ncclSuccess;
    return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t comm)
{
    comm->is_aborted = true;
    return ncclSuccess;
}

static int32_t element_of(const struct turn *t, int n, size_t i, bool is_float)
{
    int32_t sum = 0, most = INT32_MIN;
    float f_sum = 0.0f, f;
    for (int r = 0; r < n; r++) {
        int32_t v;
        memcpy(&v, (const char *)t->of[r].from + 4 * i, 4);
        memcpy(&f, &v, 4);
        sum = (int32_t)((uint32_t)sum + (uint32_t)v);
        most = v > most ? v : most;
        f_sum = r == 0 ? f : f_sum + f;
    }
    if (is_float)
        memcpy(&sum, &f_sum, 4);
    return t->of[0].op == ncclMax ? most : sum;
}

/* Everybody is here. */
static void do_turn(struct turn *t, int n)
{
    const size_t count = t->of[0].width;
    const size_t all = t->of[0].kind == 3 ? count * (size_t)n : count;
    for (int r = 0; r < n && t->of[0].kind == 1; r++)
        for (int s = 0; s < n; s++)
            memmove((char *)t->of[r].to + (size_t)s * count, t->of[s].from, count);
    if (t->of[0].kind != 1) {
        int32_t *const sums = malloc(all * 4 + 4);
        for (size_t i = 0; i < all; i++)
            sums[i] = element_of(t, n, i, t->of[0].type == ncclFloat32);
        for (int r = 0; r < n; r++)
            memcpy(t->of[r].to, sums + (t->of[0].kind == 3 ? (size_t)r * count : 0), count * 4);
        free(sums);
    }
    t->is_done = true;
}

/* true: it is done. */
static bool advance(struct op *op)
{
    if (op->kind == 0) {
        for (size_t i = 0; i < op->height; i++)
            memmove((char *)op->to + i * op->to_pitch, (const char *)op->from + i * op->from_pitch,
                    op->width);
        return true;
    }
    struct world *const world = op->comm->world;
    if (op->comm->is_aborted)
        return true;
    pthread_mutex_lock(&world->lock);
    const bool is_new = op->turn < 0;
    if (is_new)
        op->turn = op->comm->next++;
    struct turn *const t = &world->turns[op->turn % 4096];
    if (is_new) {
        t->of[op->comm->rank] = *op;
        if (++t->arrived == world->n)
            do_turn(t, world->n);
    }
    const bool is_done = t->is_done;
    pthread_mutex_unlock(&world->lock);
    return is_done;
}

cudaError_t cudaStreamQuery(cudaStream_t stream)
{
    if (stream->is_captured) {
        stream->violations++;
        return cudaErrorStreamCaptureUnsupported;
    }
    while (stream->head < stream->tail) {
        if (!advance(&stream->queue[stream->head % 512])) {
            usleep(50);
            return cudaErrorNotReady;
        }
        stream->head++;
    }
    return cudaSuccess;
}

/* ---- ranks that are threads ------------------------------------------------------------------ */

struct rank {
    struct ncclComm communicator;
    struct CUstream_st stream;
    struct qn_nccl nccl;
    qn_comm comm;
    qn_ctx *ctx;
    qn_error err;
    double limit_s;
    const char *(*work)(struct rank *rank);
    const char *wrong;
    char text[600];
};

#define WRONG(...) (snprintf(rank->text, sizeof rank->text, __VA_ARGS__), (const char *)rank->text)
#define TRY_OK(call)                                                                               \
    do {                                                                                           \
        const qn_status status_ = (call);                                                          \
        if (status_ != QN_OK)                                                                      \
            return WRONG("%s: %s: %s", #call, qn_status_name(status_), rank->err.text);            \
    } while (0)

static void *thread_of(void *arg)
{
    struct rank *const rank = arg;
    own_stream = &rank->stream;
    const qn_status status = qn_nccl_open(
        &rank->nccl, &rank->communicator, &rank->stream, rank->communicator.rank,
        rank->communicator.world->n, rank->limit_s, &rank->comm, &rank->err);
    rank->wrong = status == QN_OK ? rank->work(rank) : "cannot open";
    qn_nccl_close(&rank->nccl);
    return NULL;
}

static void on_ranks(int n, double limit_s, const char *(*work)(struct rank *rank))
{
    struct world *const world = calloc(1, sizeof *world);
    struct rank *const ranks = calloc((size_t)n, sizeof *ranks);
    pthread_t threads[MOST];
    assert_non_null(world);
    assert_non_null(ranks);
    pthread_mutex_init(&world->lock, NULL);
    world->n = n;
    for (int r = 0; r < n; r++) {
        ranks[r].communicator = (struct ncclComm){.world = world, .rank = r};
        ranks[r].work = work;
        ranks[r].limit_s = limit_s;
        ranks[r].ctx = ctx_make(1);
        assert_int_equal(pthread_create(&threads[r], NULL, thread_of, &ranks[r]), 0);
    }
    for (int r = 0; r < n; r++)
        pthread_join(threads[r], NULL);
    for (int r = 0; r < n; r++) {
        if (ranks[r].wrong != NULL)
            fail_msg("rank %d of %d: %s", r, n, ranks[r].wrong);
        qn_ctx_destroy(ranks[r].ctx);
    }
    pthread_mutex_destroy(&world->lock);
    free(world);
    free(ranks);
}

/* A product, whole and of this rank. */
struct scene {
    qn_packed *whole, *shard;
    float x[M * K], bias[N], residual[M * N], expected[M * N], y[M * N];
    int8_t codes[M * K];
    int32_t expected_sums[M * N], sums[M * N];
    qn_matmul_args one, own;
    qn_nccl_product product;
    void *scratch;
};

static const char *scene_make(struct rank *rank, struct scene *s, const char *format,
                              qn_strategy strategy, qn_split split)
{
    const int32_t r = rank->nccl.rank, n = rank->nccl.n_ranks;
    const bool is_static = strategy == QN_STRATEGY_INT8_STATIC;
    qn_weight *weight = weight_make(rank->ctx, format, (struct shape){.n = N, .k = K}, 9);
    qn_weight *part = NULL;
    qn_weight_parts parts;
    int64_t first = 0, count = 0;
    memset(s, 0, sizeof *s);
    qn_weight_parts_init(&parts);
    TRY_OK(qn_weight_shard(rank->ctx, weight, split, r, n, &part, &rank->err));
    TRY_OK(qn_weight_view(part, &parts));
    TRY_OK(qn_pack(rank->ctx, weight, NULL, &s->whole, &rank->err));
    TRY_OK(qn_pack(rank->ctx, part, NULL, &s->shard, &rank->err));
    fill_reals(s->x, M * K, 3);
    fill_reals(s->bias, N, 4);
    fill_reals(s->residual, M * N, 5);
    for (int i = 0; i < M * K; i++)
        s->codes[i] = (int8_t)(s->x[i] * 40.0f);
    qn_matmul_args_init(&s->one);
    s->one.w = s->whole;
    s->one.strategy = strategy;
    s->one.x = qn_tensor_2d(is_static ? (void *)s->codes : s->x, is_static ? QN_I8 : QN_F32, M, K);
    s->one.y = qn_tensor_2d(is_static ? (void *)s->expected_sums : s->expected,
                            is_static ? QN_I32 : QN_F32, M, N);
    if (!is_static)
        s->one.epilogue.bias = qn_tensor_1d(s->bias, QN_F32, N);
    s->own = s->one;
    s->own.w = s->shard;
    s->own.y.data = is_static ? (void *)s->sums : s->y;
    if (split == QN_SPLIT_COLUMN) {
        TRY_OK(qn_shard_range(N, 1, r, n, &first, &count));
        s->one.epilogue.act = s->own.epilogue.act = QN_ACT_SILU;
        s->own.epilogue.bias = qn_tensor_1d(s->bias + first, QN_F32, count);
    } else {
        TRY_OK(qn_shard_range(K, parts.format.group > 0 ? parts.format.group : 1, r, n, &first,
                              &count));
        s->own.x.shape[1] = count;
        s->own.x.data = is_static ? (void *)(s->codes + first) : s->x + first;
    }
    if (split == QN_SPLIT_ROW && !is_static) {
        s->own.epilogue.residual = qn_tensor_2d(s->residual, QN_F32, M, N);
        s->one.epilogue.residual = s->own.epilogue.residual;
    }
    TRY_OK(matmul_in_arena(rank->ctx, &s->one));
    qn_weight_destroy(weight);
    qn_weight_destroy(part);
    return NULL;
}

static void scene_free(struct scene *s)
{
    qn_nccl_destroy(&s->product);
    qn_packed_destroy(s->whole);
    qn_packed_destroy(s->shard);
    free(s->scratch);
}

/* Planned, captured, replayed. */
static const char *run_scene(struct rank *rank, struct scene *s, qn_split split)
{
    TRY_OK(qn_nccl_plan(rank->ctx, &rank->nccl, split, &s->own, &s->product, &rank->err));
    s->scratch = aligned_alloc(256, s->product.scratch_bytes + 256);
    rank->stream.is_captured = true;
    TRY_OK(qn_nccl_run(&s->product, &s->own, s->scratch, s->product.scratch_bytes, &rank->err));
    rank->stream.is_captured = false;
    if (rank->stream.violations != 0)
        return "a run waits or allocates while the stream is captured";
    TRY_OK(qn_nccl_wait(&rank->nccl, &rank->err));
    return NULL;
}

static const char *column(struct rank *rank)
{
    static const struct {
        const char *format;
        qn_strategy strategy;
    } cases[] = {{"int4:g32", QN_STRATEGY_INT8_BLOCK},
                 {"int8:pc", QN_STRATEGY_INT8_ROW},
                 {"nf4:g64", QN_STRATEGY_FLOAT}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct scene s;
        const char *wrong =
            scene_make(rank, &s, cases[i].format, cases[i].strategy, QN_SPLIT_COLUMN);
        wrong = wrong == NULL ? run_scene(rank, &s, QN_SPLIT_COLUMN) : wrong;
        if (wrong == NULL && memcmp(s.y, s.expected, sizeof s.y) != 0)
            wrong = WRONG("%s: not the bits of one rank", cases[i].format);
        scene_free(&s);
        if (wrong != NULL)
            return wrong;
    }
    return NULL;
}

static const char *row(struct rank *rank)
{
    struct scene s;
    const char *wrong = scene_make(rank, &s, "int8:pc", QN_STRATEGY_INT8_STATIC, QN_SPLIT_ROW);
    wrong = wrong == NULL ? run_scene(rank, &s, QN_SPLIT_ROW) : wrong;
    if (wrong == NULL && memcmp(s.sums, s.expected_sums, sizeof s.sums) != 0)
        wrong = "int32 sums are not those of one rank";
    scene_free(&s);
    if (wrong != NULL)
        return wrong;
    wrong = scene_make(rank, &s, "int4:g32", QN_STRATEGY_FLOAT, QN_SPLIT_ROW);
    wrong = wrong == NULL ? run_scene(rank, &s, QN_SPLIT_ROW) : wrong;
    for (int i = 0; wrong == NULL && i < M * N; i++) /* bias and residual once */
        if (!(fabsf(s.y[i] - s.expected[i]) <= 1e-3f + 1e-5f * fabsf(s.expected[i])))
            wrong = WRONG("y[%d] is %g, not %g", i, (double)s.y[i], (double)s.expected[i]);
    scene_free(&s);
    return wrong;
}

static void test_columns_have_the_bits_of_one_rank(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++)
        on_ranks(n, 30, column);
}

static void test_rows_are_summed_once(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++)
        on_ranks(n, 30, row);
}

/* Products of CPUs over NCCL's qn_comm; blocks longer than a piece; reduce-scatter. */
static const char *callbacks(struct rank *rank)
{
    enum { LONG = 3 * QN_NCCL_PIECE + 12 };
    const int32_t n = rank->nccl.n_ranks, r = rank->nccl.rank;
    char *const sent = malloc(LONG), *const got = malloc((size_t)n * LONG);
    int32_t *const sums = malloc(LONG);
    for (int i = 0; i < LONG; i++)
        sent[i] = (char)(i * 7 + r);
    for (int i = 0; i < LONG / 4; i++)
        sums[i] = i + r;
    TRY_OK(rank->comm.all_gather(rank->comm.arg, sent, LONG, got, &rank->err));
    TRY_OK(rank->comm.all_reduce(rank->comm.arg, sums, LONG / 4, QN_I32, QN_REDUCE_SUM,
                                 &rank->err));
    for (int s = 0; s < n; s++)
        for (int i = 0; i < LONG; i++)
            if (got[s * LONG + i] != (char)(i * 7 + s))
                return WRONG("byte %d of rank %d", i, s);
    for (int i = 0; i < LONG / 4; i++)
        if (sums[i] != n * i + n * (n - 1) / 2)
            return WRONG("sum %d is %d", i, sums[i]);
    int32_t parts[MOST], part = 0;
    for (int s = 0; s < n; s++)
        parts[s] = 10 * s + r;
    TRY_OK(qn_nccl_reduce_scatter(&rank->nccl, parts, &part, 1, QN_I32, &rank->err));
    TRY_OK(qn_nccl_wait(&rank->nccl, &rank->err));
    if (part != n * 10 * r + n * (n - 1) / 2)
        return WRONG("reduce-scatter gave %d", part);
    if (qn_nccl_all_reduce(&rank->nccl, parts, 1, QN_I8, QN_REDUCE_SUM, &rank->err) != QN_E_DTYPE)
        return "bytes were summed";
    struct scene s;
    const char *const wrong = scene_make(rank, &s, "int8:pc", QN_STRATEGY_INT8_ROW, QN_SPLIT_ROW);
    if (wrong != NULL)
        return wrong;
    qn_parallel_args args;
    qn_parallel *plan = NULL;
    qn_parallel_args_init(&args);
    args.comm = &rank->comm;
    args.matmul = &s.own;
    args.split = QN_SPLIT_ROW;
    TRY_OK(qn_parallel_plan(rank->ctx, &args, &plan, &rank->err));
    const size_t bytes = qn_parallel_scratch_bytes(plan);
    s.scratch = aligned_alloc(64, bytes + 64 - bytes % 64);
    TRY_OK(qn_parallel_run(plan, &args, s.scratch, bytes, &rank->err));
    const bool is_same = memcmp(s.y, s.expected, sizeof s.y) == 0;
    qn_parallel_destroy(plan);
    scene_free(&s);
    free(sent);
    free(got);
    free(sums);
    return is_same ? NULL : "a product of CPUs has not the bits of one rank";
}

static void test_the_callbacks(void **state)
{
    (void)state;
    for (int n = 1; n <= MOST; n++)
        on_ranks(n, 30, callbacks);
}

/* ---- what is refused, and who is told -------------------------------------------------------- */

static const char *refused(struct rank *rank)
{
    const bool is_odd = rank->nccl.rank == 1;
    struct scene s;
    for (int way = 0; way < 5; way++) {
        const qn_split split = way < 3 ? QN_SPLIT_ROW : QN_SPLIT_COLUMN;
        const char *wrong = scene_make(rank, &s, "int4:g32", QN_STRATEGY_FLOAT, split);
        if (wrong != NULL)
            return wrong;
        if (way == 0 && is_odd)
            s.own.epilogue.act = QN_ACT_RELU;
        if (way == 1 && is_odd)
            s.own.y.stride[0] = N + 1;
        if (way == 2 && is_odd)
            s.own.x.shape[0] = s.own.y.shape[0] = s.own.epilogue.residual.shape[0] = M - 1;
        if (way == 3 && is_odd)
            s.own.epilogue.residual = s.own.y;
        if (way == 4)
            s.own.y.shape[1] = N - 1;
        const qn_status status =
            qn_nccl_plan(rank->ctx, &rank->nccl, split, &s.own, &s.product, &rank->err);
        const qn_status expected = way == 0 ? (is_odd ? QN_E_UNSUPPORTED : QN_E_PEER)
                                   : way == 1 ? (is_odd ? QN_E_STRIDE : QN_E_PEER)
                                   : way == 2 ? (is_odd ? QN_E_PEER : status)
                                   : way == 3 ? (is_odd ? QN_E_UNSUPPORTED : QN_E_PEER)
                                              : QN_E_SHAPE;
        if (status == QN_OK || status != expected || s.product.plan != NULL)
            return WRONG("way %d: %s, '%s'", way, qn_status_name(status), rank->err.text);
        scene_free(&s);
    }
    /* The communicator still works. */
    return qn_nccl_agree(&rank->nccl, QN_OK, &rank->err) == QN_OK ? NULL : "it does not go on";
}

static void test_what_one_rank_cannot_all_refuse(void **state)
{
    (void)state;
    for (int n = 2; n <= 3; n++)
        on_ranks(n, 30, refused);
}

/* Rank 1 goes away: before a plan, before a run, before an agreement. */
static __thread int lost_way;
static int lost_case;

static const char *lost(struct rank *rank)
{
    struct scene s;
    lost_way = lost_case;
    const char *wrong = scene_make(rank, &s, "int8:pc", QN_STRATEGY_INT8_ROW, QN_SPLIT_COLUMN);
    if (wrong != NULL)
        return wrong;
    const bool leaves = rank->nccl.rank == 1;
    qn_status status = QN_OK;
    if (leaves && lost_way == 0)
        return scene_free(&s), NULL;
    const double begin = qn_nccl_now_();
    status = qn_nccl_plan(rank->ctx, &rank->nccl, QN_SPLIT_COLUMN, &s.own, &s.product, &rank->err);
    if (leaves && lost_way == 1)
        return scene_free(&s), NULL;
    if (status == QN_OK) {
        s.scratch = aligned_alloc(256, s.product.scratch_bytes + 256);
        status = qn_nccl_run(&s.product, &s.own, s.scratch, s.product.scratch_bytes, &rank->err);
        status = status == QN_OK ? qn_nccl_wait(&rank->nccl, &rank->err) : status;
    }
    if (leaves)
        return scene_free(&s), NULL;
    status = status == QN_OK ? qn_nccl_agree(&rank->nccl, QN_OK, &rank->err) : status;
    const double took = qn_nccl_now_() - begin;
    if (status != QN_E_PEER || took > 20 || rank->nccl.comm != NULL)
        wrong = WRONG("way %d: %s after %g s, '%s'", lost_way, qn_status_name(status), took,
                      rank->err.text);
    if (wrong == NULL && qn_nccl_agree(&rank->nccl, QN_OK, &rank->err) != QN_E_PEER)
        wrong = "an aborted communicator is used";
    scene_free(&s);
    return wrong;
}

static void test_a_lost_rank_ends_the_others(void **state)
{
    (void)state;
    for (lost_case = 0; lost_case < 3; lost_case++)
        for (int n = 2; n <= 3; n++)
            on_ranks(n, 1.0, lost);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_columns_have_the_bits_of_one_rank),
        cmocka_unit_test(test_rows_are_summed_once),
        cmocka_unit_test(test_the_callbacks),
        cmocka_unit_test(test_what_one_rank_cannot_all_refuse),
        cmocka_unit_test(test_a_lost_rank_ends_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
