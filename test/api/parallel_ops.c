/* SPDX-License-Identifier: Apache-2.0 */
/* Experts and convolutions over several processes: the bits of one; failures end on all. */
#define _DEFAULT_SOURCE
#ifdef QN_TEST_MPI
#include "ranks_mpi.h"
#else
#include "ranks.h"
#endif

enum { EXPERTS = 5, TOKENS = 29, TOP = 2, ROWS = TOKENS * TOP, N = 48, K = 192 };

static char complaint[1200];
#define COMPLAIN(...) (snprintf(complaint, sizeof complaint, __VA_ARGS__), (const char *)complaint)
#define TRY_OK(call)                                                                               \
    do {                                                                                           \
        memset(&err, 0, sizeof err);                                                               \
        const qn_status status_ = (call);                                                          \
        if (status_ != QN_OK)                                                                      \
            return COMPLAIN("%s: %s: %s: %s", c->format, #call, qn_status_name(status_),           \
                            err.text);                                                             \
    } while (0)

/* ---- a rank that is lost --------------------------------------------------------------------- */

/* What an MPI does about a process that is lost is its own matter. */
#ifdef QN_TEST_MPI
static void lose(struct ranks *ranks, int32_t at)
{
    (void)ranks, (void)at;
}

static const char *after_loss(const struct ranks *ranks, qn_status status, const qn_error *err)
{
    return status == QN_OK ? NULL : COMPLAIN("rank %d: %s", ranks->rank, err->text);
}
#else
/* Of the exchanges that follow a rank dies in the at-th one. */
static void lose(struct ranks *ranks, int32_t at)
{
    ranks->limit_ms = 30000; /* a rank that was killed is seen at once, not after that */
    ranks->n_swaps = 0;
    ranks->lost_at = at;
    ranks->is_lost = ranks->rank == at % ranks->n;
}

/* The call that a rank was lost in, on the others: a status and a sentence, and no exchange after
 * the one that failed; or success with fewer exchanges than that. */
static const char *after_loss(const struct ranks *ranks, qn_status status, const qn_error *err)
{
    const bool is_right = status == QN_OK
                              ? ranks->n_swaps < ranks->lost_at
                              : ranks->n_swaps == ranks->lost_at && status == QN_E_PEER &&
                                    err->status == status && strstr(err->text, "is gone") != NULL;
    return is_right ? NULL
                    : COMPLAIN("rank lost in exchange %d of %d: %s, '%s'", ranks->lost_at,
                               ranks->n_swaps, qn_status_name(status), err->text);
}

/* Ranks are lost one exchange later each time, until the call is over before that. */
static void lose_in_every_exchange(rank_fn work, void *arg, int32_t *lost_at)
{
    for (int32_t n = 2; n <= 3; n++) {
        bool is_lost = true;
        for (*lost_at = 1; is_lost; ++*lost_at) {
            pid_t children[MOST_RANKS];
            const int32_t victim = *lost_at % n;
            ranks_start(n, work, arg, children);
            for (int32_t r = 0; r < n; r++) {
                const bool died = ranks_expect(children[r], r, r == victim);
                is_lost = r == victim ? died : is_lost;
            }
        }
        assert_true(*lost_at > 3); /* to agree, and at least one of data */
    }
    *lost_at = 0;
}
#endif

/* ---- experts --------------------------------------------------------------------------------- */

struct expert_case {
    const char *format;
    qn_strategy strategy;
    qn_split split;
    qn_sum_order order;
    int32_t gather_y, is_taken, bias, all_to_all, gate; /* bias: 1: for all, 2: of each expert */
    int32_t is_close;                                   /* not the bits of one process */
    int32_t lost_at; /* a rank is lost in this exchange of one more call; 0: none */
};

static struct routing {
    float x[ROWS * K], bias[EXPERTS * N], residual[ROWS * N];
    int8_t codes[ROWS * K];
    int32_t ids[ROWS], x_rows[ROWS];
} given;

static void make_routing(void)
{
    uint64_t seed = 8;
    fill_reals(given.x, ROWS * K, 6);
    fill_reals(given.bias, EXPERTS * N, 7);
    fill_reals(given.residual, ROWS * N, 9);
    for (int32_t i = 0; i < ROWS * K; i++)
        given.codes[i] = (int8_t)(given.x[i] * 50.0f);
    for (int32_t i = 0; i < ROWS; i++) {
        given.ids[i] = (int32_t)(draw(&seed) % (EXPERTS + 1)) - 1; /* some rows have none */
        given.x_rows[i] = (int32_t)(draw(&seed) % TOKENS);
    }
}

static qn_grouped_args grouped_of(const struct expert_case *c, const qn_packed *const *w, int64_t n,
                                  float *y)
{
    const bool is_static = c->strategy == QN_STRATEGY_INT8_STATIC;
    qn_grouped_args g;
    qn_grouped_args_init(&g);
    g.w = w;
    g.n_experts = EXPERTS;
    g.strategy = c->strategy;
    g.quant.x_scale = 0.02f;
    g.quant.x_zero = is_static ? 3 : 0;
    g.x = qn_tensor_2d(is_static ? (void *)given.codes : given.x, is_static ? QN_I8 : QN_F32,
                       c->is_taken ? TOKENS : ROWS, K);
    g.y = qn_tensor_2d(y, QN_F32, ROWS, n);
    g.ids = qn_tensor_1d(given.ids, QN_I32, ROWS);
    if (c->is_taken)
        g.x_rows = qn_tensor_1d(given.x_rows, QN_I32, ROWS);
    if (c->bias == 1)
        g.epilogue.bias = qn_tensor_1d(given.bias, QN_F32, n);
    if (c->bias == 2)
        g.epilogue.bias = qn_tensor_2d(given.bias, QN_F32, EXPERTS, n);
    if (c->bias > 0)
        g.epilogue.act = QN_ACT_SILU;
    return g;
}

static const char *same_rows(const struct expert_case *c, const float *y, const float *expected,
                             int64_t n, const char *what)
{
    for (int64_t i = 0; i < ROWS * n; i++) {
        const bool is_close = fabsf(y[i] - expected[i]) <= 0.6f + 0.02f * fabsf(expected[i]);
        if (c->is_close ? !is_close : memcmp(&y[i], &expected[i], sizeof *y) != 0)
            return COMPLAIN("%s %s %s: row %d column %d of expert %d is %g, %s has %g", c->format,
                            qn_strategy_name(c->strategy), qn_split_name(c->split), (int)(i / n),
                            (int)(i % n), given.ids[i / n], (double)y[i], what,
                            (double)expected[i]);
    }
    return NULL;
}

/* Every rank has a part of every expert. */
static const char *inside_experts(struct ranks *ranks, void *arg)
{
    const struct expert_case *const c = arg;
    static float expected[ROWS * N], y[ROWS * N];
    qn_ctx *ctx = ctx_make(1);
    qn_comm comm = ranks_comm(ranks, c->all_to_all);
    qn_packed *whole[EXPERTS], *own[EXPERTS];
    int64_t first = 0, n = 0, k_first = 0, k = K;
    int32_t columns[K];
    qn_error err;
    make_routing();
    for (int32_t e = 0; e < EXPERTS; e++) {
        qn_weight *w =
            weight_make(ctx, c->format, (struct shape){.n = N, .k = K}, 40 + (uint64_t)e);
        qn_weight *shard = NULL;
        TRY_OK(qn_weight_shard(ctx, w, c->split, ranks->rank, ranks->n, &shard, &err));
        if (c->split == QN_SPLIT_ROW) {
            TRY_OK(qn_weight_shard_columns(w, ranks->rank, ranks->n, columns, K, &k, &err));
            k_first = k > 0 ? columns[0] : 0;
        }
        TRY_OK(qn_pack(ctx, w, NULL, &whole[e], &err));
        TRY_OK(qn_pack(ctx, shard, NULL, &own[e], &err));
        qn_weight_destroy(shard);
        qn_weight_destroy(w);
    }
    memset(expected, 0x5a, sizeof expected);
    memset(y, 0x5a, sizeof y);
    qn_grouped_args one = grouped_of(c, (const qn_packed *const *)whole, N, expected);
    one.epilogue.residual =
        c->bias == 2 ? qn_tensor_2d(given.residual, QN_F32, ROWS, N) : qn_tensor_none();
    one.error = &err;
    TRY_OK(grouped_in_arena(ctx, &one));
    qn_grouped_args g = one;
    (void)qn_shard_range(N, 1, ranks->rank, ranks->n, &first, &n);
    g.w = (const qn_packed *const *)own;
    g.y.data = y;
    if (c->split == QN_SPLIT_ROW) {
        g.x.data = (uint8_t *)g.x.data + (size_t)k_first * qn_dtype_bytes(g.x.dtype);
        g.x.shape[1] = k;
    } else {
        if (c->bias > 0) {
            g.epilogue.bias.data = given.bias + first;
            g.epilogue.bias.shape[c->bias - 1] = n;
        }
        if (!c->gather_y) { /* into the columns of y that are the rank's */
            g.y.data = y + first;
            g.y.shape[1] = n;
            g.epilogue.residual.shape[1] = n;
            g.epilogue.residual.data = given.residual + first;
        }
    }
    qn_parallel_args args;
    qn_parallel_args_init(&args);
    args.comm = &comm;
    args.grouped = &g;
    args.split = c->split;
    args.gather_y = c->gather_y;
    args.sum_order = c->order;
    qn_parallel *plan = NULL;
    TRY_OK(qn_parallel_plan(ctx, &args, &plan, &err));
    const size_t bytes = qn_parallel_scratch_bytes(plan);
    void *const scratch = take(bytes + 64);
    TRY_OK(qn_parallel_run(plan, &args, scratch, bytes, &err));
    if (c->split == QN_SPLIT_COLUMN && !c->gather_y) /* what others have is not looked at */
        for (int32_t i = 0; i < ROWS; i++)
            for (int32_t j = 0; j < N; j++)
                if (j < first || j >= first + n)
                    y[i * N + j] = expected[i * N + j];
    const char *wrong = same_rows(c, y, expected, N, "one process");
    if (wrong == NULL && c->lost_at > 0) {
        lose(ranks, c->lost_at);
        wrong = after_loss(ranks, qn_parallel_run(plan, &args, scratch, bytes, &err), &err);
    }
    /* An id that is none, on one rank: all end, y is as it was. */
    if (wrong == NULL && ranks->n > 1 && c->lost_at == 0) {
        static int32_t bad[ROWS];
        memcpy(bad, given.ids, sizeof bad);
        bad[3] = ranks->rank == 1 ? EXPERTS : bad[3];
        g.ids.data = bad;
        const qn_status status = qn_parallel_run(plan, &args, scratch, bytes, &err);
        const bool asks = c->split == QN_SPLIT_ROW || c->gather_y;
        if (status != (ranks->rank == 1 ? QN_E_VALUE : asks ? QN_E_PEER : QN_OK))
            wrong = COMPLAIN("a bad id: %s", qn_status_name(status));
    }
    qn_parallel_destroy(plan);
    for (int32_t e = 0; e < EXPERTS; e++) {
        qn_packed_destroy(own[e]);
        qn_packed_destroy(whole[e]);
    }
    qn_ctx_destroy(ctx);
    free(scratch);
    return wrong;
}

static const struct expert_case inside[] = {
    {"int4:g32", QN_STRATEGY_INT8_BLOCK, QN_SPLIT_COLUMN, 0, 1, 1, 2, 0, 0, 0, 0},
    {"int4:g32", QN_STRATEGY_INT8_BLOCK, QN_SPLIT_COLUMN, 0, 0, 0, 2, 0, 0, 0, 0},
    {"nf4:g64", QN_STRATEGY_FLOAT, QN_SPLIT_COLUMN, 0, 1, 0, 1, 0, 0, 0, 0},
    {"int8:pc", QN_STRATEGY_INT8_ROW, QN_SPLIT_COLUMN, 0, 1, 1, 0, 0, 0, 0, 0},
    {"int8:pc", QN_STRATEGY_INT8_ROW, QN_SPLIT_ROW, 0, 0, 1, 2, 0, 0, 0, 0},
    {"int4:pc", QN_STRATEGY_INT8_ROW, QN_SPLIT_ROW, 0, 0, 0, 1, 0, 0, 0, 0},
    {"int8:pc", QN_STRATEGY_INT8_STATIC, QN_SPLIT_ROW, 0, 0, 1, 2, 0, 0, 0, 0},
    {"int8:pc", QN_STRATEGY_INT8_STATIC, QN_SPLIT_ROW, 0, 0, 0, 0, 0, 0, 0, 0},
    {"int4:g32", QN_STRATEGY_INT8_BLOCK, QN_SPLIT_ROW, QN_SUM_ORDERED, 0, 1, 2, 1, 0, 1, 0},
    {"nf4:g64", QN_STRATEGY_FLOAT, QN_SPLIT_ROW, QN_SUM_ORDERED, 0, 0, 2, 0, 0, 1, 0},
    {"int4:g32", QN_STRATEGY_INT8_BLOCK, QN_SPLIT_ROW, QN_SUM_FAST, 0, 1, 1, 0, 0, 1, 0},
};

static void test_parts_of_every_expert(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof inside / sizeof *inside; i++)
        for (int32_t n = 1; n <= MOST_RANKS; n++) {
            struct expert_case c = inside[i];
            ranks_run(n, inside_experts, &c);
        }
}

/* Every rank has some experts, and some of the tokens: rank r has rows r, r + n, ... */
static const char *whole_experts(struct ranks *ranks, void *arg)
{
    const struct expert_case *const c = arg;
    static float expected[ROWS * N], y[ROWS * N], x[ROWS * K];
    const int64_t columns = c->gate ? N / 2 : N;
    qn_ctx *ctx = ctx_make(1);
    qn_comm comm = ranks_comm(ranks, c->all_to_all);
    qn_packed *all[EXPERTS];
    int32_t ids[ROWS], taken[ROWS], rows = 0;
    int64_t first = 0, count = 0;
    qn_epilogue_more more;
    qn_error err;
    make_routing();
    for (int32_t e = 0; e < EXPERTS; e++)
        all[e] =
            packed_make(ctx, c->format, (struct shape){.n = N, .k = K}, 40 + (uint64_t)e, NULL);
    memset(expected, 0x5a, sizeof expected);
    memset(y, 0x5a, sizeof y);
    qn_epilogue_more_init(&more);
    more.gate = QN_GATE_PAIRS;
    qn_grouped_args one = grouped_of(c, (const qn_packed *const *)all, N, expected);
    one.y.shape[1] = one.y.stride[0] = columns;
    one.more = c->gate ? &more : NULL;
    one.error = &err;
    TRY_OK(grouped_in_arena(ctx, &one));
    (void)qn_shard_range(EXPERTS, 1, ranks->rank, ranks->n, &first, &count);
    const bool has_none = ranks->n > 2 && ranks->rank == 1; /* of the tokens */
    for (int32_t i = ranks->rank; i < ROWS && !has_none; i += ranks->n, rows++) {
        const int32_t row = c->is_taken ? given.x_rows[i] : i;
        ids[rows] = given.ids[i];
        taken[rows] = rows;
        memcpy(x + rows * K, given.x + row * K, K * sizeof *x);
    }
    qn_grouped_args g = one;
    g.w = (const qn_packed *const *)(all + first);
    g.n_experts = (int32_t)count;
    g.x = qn_tensor_2d(x, QN_F32, rows, K);
    g.y = qn_tensor_2d(y, QN_F32, rows, columns);
    g.ids = qn_tensor_1d(ids, QN_I32, rows);
    g.x_rows = c->is_taken ? qn_tensor_1d(taken, QN_I32, rows) : qn_tensor_none();
    if (c->bias == 2)
        g.epilogue.bias = qn_tensor_2d(given.bias + first * N, QN_F32, count, N);
    qn_parallel_experts_args args;
    qn_parallel_experts_args_init(&args);
    args.comm = &comm;
    args.grouped = &g;
    args.n_experts = EXPERTS;
    args.n = N;
    args.k = K;
    args.piece = c->bias == 2 ? 3 : 64; /* several rounds, or one */
    size_t bytes = 0;
    TRY_OK(qn_parallel_experts_scratch(ctx, &args, &bytes, &err));
    void *const scratch = take(bytes + 64);
    TRY_OK(qn_parallel_experts(ctx, &args, scratch, bytes, &err));
    const char *wrong = NULL;
    for (int32_t i = 0; wrong == NULL && i < rows; i++)
        if (memcmp(y + i * columns, expected + (ranks->rank + i * ranks->n) * columns,
                   (size_t)columns * sizeof *y) != 0)
            wrong = COMPLAIN("%s: row %d of expert %d has not the bits of one process", c->format,
                             i, ids[i]);
    if (wrong == NULL && c->lost_at > 0) {
        lose(ranks, c->lost_at);
        wrong = after_loss(ranks, qn_parallel_experts(ctx, &args, scratch, bytes, &err), &err);
    }
    /* What one rank does wrong ends on all, and the next call works. */
    for (int32_t way = 0; way < 6 && wrong == NULL && ranks->n > 1 && c->lost_at == 0; way++) {
        static const char *const words[] = {"ids[0]", "weights",  "scratch",
                                            "piece",  "residual", "offsets"};
        qn_grouped_args bad = g;
        qn_parallel_experts_args bad_args = args;
        const bool is_odd = ranks->rank == ranks->n - 1; /* it has tokens */
        const int32_t was = ids[0];
        bad_args.grouped = &bad;
        if (way == 0 && is_odd)
            ids[0] = EXPERTS;
        if (way == 1 && is_odd)
            bad.n_experts = (int32_t)count + 1;
        if (way == 3 && is_odd)
            bad_args.piece = args.piece + 1;
        if (way == 4 && is_odd)
            bad.epilogue.residual = g.y;
        if (way == 5 && is_odd)
            bad.offsets = g.ids;
        qn_status status = QN_OK;
        if (way == 3) { /* scratch is larger for more rows at once */
            size_t more_bytes = 0;
            TRY_OK(qn_parallel_experts_scratch(ctx, &bad_args, &more_bytes, &err));
            void *const more_scratch = take(more_bytes + 64);
            status = qn_parallel_experts(ctx, &bad_args, more_scratch, more_bytes, &err);
            free(more_scratch);
        } else {
            status =
                qn_parallel_experts(ctx, &bad_args, scratch, way == 2 && is_odd ? 8 : bytes, &err);
        }
        ids[0] = was;
        const bool is_named = way == 3 || is_odd ? strstr(err.text, words[way]) != NULL : true;
        if (status == QN_OK || (!is_odd && status != QN_E_PEER) || !is_named)
            wrong = COMPLAIN("way %d: %s, '%s'", way, qn_status_name(status), err.text);
    }
    if (wrong == NULL && c->lost_at == 0)
        TRY_OK(qn_parallel_experts(ctx, &args, scratch, bytes, &err));
    for (int32_t e = 0; e < EXPERTS; e++)
        qn_packed_destroy(all[e]);
    qn_ctx_destroy(ctx);
    free(scratch);
    return wrong;
}

static void test_whole_experts_exchange_tokens(void **state)
{
    (void)state;
    static const struct expert_case cases[] = {
        {"int4:g32", QN_STRATEGY_INT8_BLOCK, 0, 0, 0, 1, 2, 1, 0, 0, 0},
        {"int4:g32", QN_STRATEGY_INT8_BLOCK, 0, 0, 0, 0, 1, 0, 0, 0, 0},
        {"int8:pc", QN_STRATEGY_INT8_ROW, 0, 0, 0, 0, 2, 0, 1, 0, 0},
        {"int8:g64", QN_STRATEGY_INT8_ROW, 0, 0, 0, 1, 0, 1, 0, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int32_t n = 1; n <= MOST_RANKS; n++) {
            struct expert_case c = cases[i];
            ranks_run(n, whole_experts, &c);
        }
}

/* ---- convolutions ---------------------------------------------------------------------------- */

struct conv_case {
    const char *format;
    qn_strategy strategy;
    int32_t kh, kw, ci, co, groups, h, w, images;
    qn_image image;
    int32_t is_transposed, gather_y, stride, residual;
    int32_t lost_at; /* as of struct expert_case */
};

static void set_image(qn_tensor *t, const struct conv_case *c, float *data, int64_t channels,
                      int64_t h, int64_t w)
{
    const int64_t nchw[4] = {c->images, channels, h, w}, nhwc[4] = {c->images, h, w, channels};
    *t = qn_tensor_make(data, QN_F32, 4, c->image == QN_NHWC ? nhwc : nchw);
}

/* Channels [first, first + n) of an image. */
static qn_tensor slice(const struct conv_case *c, const qn_tensor *t, int64_t first, int64_t n)
{
    qn_tensor part = *t;
    const int32_t channel = c->image == QN_NHWC ? 3 : 1;
    part.shape[channel] = n;
    part.data = (float *)t->data + first * t->stride[channel];
    return part;
}

/* A rank's channels of y, beside those of one process. */
static const char *same_channels(const struct conv_case *c, const qn_tensor *y,
                                 const qn_tensor *expected, int64_t first, int64_t n)
{
    const qn_tensor part = slice(c, expected, first, n);
    for (int64_t a = 0; a < part.shape[0]; a++)
        for (int64_t b = 0; b < part.shape[1]; b++)
            for (int64_t d = 0; d < part.shape[2]; d++) {
                const int64_t at = a * part.stride[0] + b * part.stride[1] + d * part.stride[2];
                if (memcmp((const float *)y->data + at, (const float *)part.data + at,
                           (size_t)part.shape[3] * sizeof(float)) != 0)
                    return COMPLAIN("%s: a rank's channels differ", c->format);
            }
    return NULL;
}

static const char *one_conv(struct ranks *ranks, void *arg)
{
    const struct conv_case *const c = arg;
    static float x[1 << 16], bias[256], residual[1 << 16], expected[1 << 16], y[1 << 16];
    qn_ctx *ctx = ctx_make(1);
    qn_comm comm = ranks_comm(ranks, true);
    qn_packed *whole = NULL, *own = NULL;
    qn_weight *shard = NULL;
    qn_error err;
    const struct shape shape = {.n = c->co,
                                .k = (int64_t)c->kh * c->kw * c->ci,
                                .kh = c->kh,
                                .kw = c->kw,
                                .groups = c->groups};
    qn_weight *weight = weight_make(ctx, c->format, shape, 5);
    TRY_OK(qn_weight_shard(ctx, weight, QN_SPLIT_COLUMN, ranks->rank, ranks->n, &shard, &err));
    TRY_OK(qn_pack(ctx, weight, NULL, &whole, &err));
    TRY_OK(qn_pack(ctx, shard, NULL, &own, &err));
    fill_reals(x, 1 << 16, 1);
    fill_reals(bias, 256, 2);
    fill_reals(residual, 1 << 16, 3);
    qn_conv_args one;
    qn_conv_args_init(&one);
    one.w = whole;
    one.strategy = c->strategy;
    one.image = c->image;
    one.stride[0] = one.stride[1] = c->stride;
    for (int32_t i = 0; i < 4; i++)
        one.pad[i] = c->kh / 2;
    one.error = &err;
    set_image(&one.x, c, x, (int64_t)c->ci * c->groups, c->h, c->w);
    TRY_OK(c->is_transposed ? qn_conv_transpose2d_shape(&one) : qn_conv2d_shape(&one));
    one.y.data = expected;
    one.y.dtype = QN_F32;
    one.y.device = one.x.device;
    one.epilogue.bias = qn_tensor_1d(bias, QN_F32, c->co);
    one.epilogue.act = QN_ACT_RELU;
    if (c->residual) {
        one.epilogue.residual = one.y;
        one.epilogue.residual.data = residual;
    }
    size_t bytes = 0;
    TRY_OK(c->is_transposed ? qn_conv_transpose2d_scratch(ctx, &one, &bytes)
                            : qn_conv2d_scratch(ctx, &one, &bytes));
    void *scratch = take(bytes + 64);
    TRY_OK(c->is_transposed ? qn_conv_transpose2d(ctx, &one, scratch, bytes)
                            : qn_conv2d(ctx, &one, scratch, bytes));
    free(scratch);
    const size_t y_bytes = (size_t)(one.y.shape[0] * one.y.stride[0]) * sizeof(float);
    int64_t first = 0, n = 0;
    (void)qn_shard_range(c->co, c->groups > 1 ? c->co / c->groups : 1, ranks->rank, ranks->n,
                         &first, &n);
    qn_conv_args conv = one;
    conv.w = own;
    conv.y.data = y;
    memcpy(y, expected, y_bytes);
    if (c->gather_y)
        memset(y, 0x5a, y_bytes);
    if (c->groups > 1) {
        const int64_t per_group = c->co / c->groups;
        conv.x = slice(c, &one.x, first / per_group * c->ci, n / per_group * c->ci);
    }
    conv.epilogue.bias = qn_tensor_1d(bias + first, QN_F32, n);
    if (!c->gather_y) {
        conv.y = slice(c, &conv.y, first, n);
        for (int64_t i = 0; i < one.y.shape[0] * one.y.stride[0]; i++)
            y[i] = -77.0f;
        if (c->residual)
            conv.epilogue.residual = slice(c, &one.epilogue.residual, first, n);
    }
    qn_parallel_conv_args args;
    qn_parallel_conv_args_init(&args);
    args.comm = &comm;
    args.conv = &conv;
    args.is_transposed = c->is_transposed;
    args.gather_y = c->gather_y;
    args.conv_groups = c->groups;
    TRY_OK(qn_parallel_conv_scratch(ctx, &args, &bytes, &err));
    scratch = take(bytes + 64);
    TRY_OK(qn_parallel_conv(ctx, &args, scratch, bytes, &err));
    const char *wrong = NULL;
    if (c->gather_y && memcmp(y, expected, y_bytes) != 0)
        wrong = COMPLAIN("%s: a gathered convolution has not the bits of one process", c->format);
    if (!c->gather_y)
        wrong = same_channels(c, &conv.y, &one.y, first, n);
    if (wrong == NULL && c->lost_at > 0) {
        lose(ranks, c->lost_at);
        const qn_status status = qn_parallel_conv(ctx, &args, scratch, bytes, &err);
        wrong = after_loss(ranks, status, &err);
    }
    const bool refuses = c->gather_y && ranks->n > 1 && c->lost_at == 0;
    for (int32_t way = 0; way < 3 && wrong == NULL && refuses; way++) {
        const bool is_odd = ranks->rank == 1;
        qn_conv_args bad = conv;
        args.conv = &bad;
        if (way == 0 && is_odd)
            bad.y.data = NULL;
        if (way == 1 && is_odd)
            bad.w = NULL;
        const qn_status status =
            qn_parallel_conv(ctx, &args, scratch, way == 2 && is_odd ? 0 : bytes, &err);
        if (status == QN_OK || (is_odd ? status == QN_E_PEER : status != QN_E_PEER))
            wrong = COMPLAIN("way %d: %s, '%s'", way, qn_status_name(status), err.text);
    }
    if (wrong == NULL && refuses) { /* not the shard of this rank */
        conv.w = whole;
        args.conv = &conv;
        if (qn_parallel_conv_scratch(ctx, &args, &bytes, &err) != QN_E_SHAPE ||
            strstr(err.text, "qn_weight_shard()") == NULL)
            wrong = COMPLAIN("whole weights: '%s'", err.text);
    }
    free(scratch);
    qn_packed_destroy(whole);
    qn_packed_destroy(own);
    qn_weight_destroy(shard);
    qn_weight_destroy(weight);
    qn_ctx_destroy(ctx);
    return wrong;
}

static void test_convolutions_have_the_bits_of_one_process(void **state)
{
    (void)state;
    static const struct conv_case cases[] = {
        {"int8:pc", QN_STRATEGY_INT8_ROW, 3, 3, 8, 22, 1, 9, 7, 2, QN_NCHW, 0, 1, 1, 1, 0},
        {"int8:pc", QN_STRATEGY_INT8_ROW, 3, 3, 8, 22, 1, 9, 7, 2, QN_NHWC, 0, 1, 2, 0, 0},
        {"int4:c32", QN_STRATEGY_FLOAT, 1, 1, 64, 19, 1, 6, 5, 3, QN_NCHW, 0, 0, 1, 1, 0},
        {"int4:c32", QN_STRATEGY_INT8_BLOCK, 3, 3, 32, 18, 1, 8, 8, 1, QN_NHWC, 0, 1, 1, 0, 0},
        {"int8:pc", QN_STRATEGY_FLOAT, 3, 3, 4, 24, 6, 8, 8, 2, QN_NCHW, 0, 1, 1, 0, 0},
        {"int8:pc", QN_STRATEGY_INT8_ROW, 3, 3, 4, 24, 6, 8, 8, 2, QN_NHWC, 0, 0, 1, 0, 0},
        {"int8:pc", QN_STRATEGY_FLOAT, 3, 3, 1, 12, 12, 9, 9, 2, QN_NCHW, 0, 1, 1, 1, 0},
        {"int8:pc", QN_STRATEGY_INT8_ROW, 2, 2, 16, 10, 1, 5, 4, 2, QN_NCHW, 1, 1, 2, 0, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int32_t n = 1; n <= MOST_RANKS; n++) {
            struct conv_case c = cases[i];
            ranks_run(n, one_conv, &c);
        }
}

#ifndef QN_TEST_MPI
static void test_a_rank_lost_in_any_exchange_ends_the_others(void **state)
{
    (void)state;
    struct expert_case experts = {"int4:g32", QN_STRATEGY_INT8_BLOCK, 0, 0, 0, 0, 2, 1, 0, 0, 0};
    struct expert_case parts = {"int8:pc", QN_STRATEGY_INT8_ROW, QN_SPLIT_ROW, 0, 0, 1, 2, 0, 0, 0,
                                0};
    struct conv_case conv = {
        "int8:pc", QN_STRATEGY_INT8_ROW, 3, 3, 8, 22, 1, 9, 7, 2, QN_NCHW, 0, 1, 1, 0, 0};
    for (int32_t i = 0; i < 2; i++) {
        experts.all_to_all = i == 0;
        lose_in_every_exchange(whole_experts, &experts, &experts.lost_at);
    }
    lose_in_every_exchange(inside_experts, &parts, &parts.lost_at);
    parts.split = QN_SPLIT_COLUMN;
    parts.gather_y = 1;
    lose_in_every_exchange(inside_experts, &parts, &parts.lost_at);
    lose_in_every_exchange(one_conv, &conv, &conv.lost_at);
}
#endif

static void test_bad_arguments(void **state)
{
    (void)state;
    struct ranks alone = {.rank = 0, .n = 1};
    qn_ctx *ctx = ctx_make(1);
    qn_comm comm = ranks_comm(&alone, true);
    const qn_packed *w = packed_make(ctx, "int8:pc", (struct shape){.n = 8, .k = 16}, 1, NULL);
    static float x[4 * 16], y[4 * 8];
    static int32_t ids[4];
    size_t bytes = 0;
    qn_grouped_args g;
    qn_matmul_args matmul;
    qn_grouped_args_init(&g);
    qn_matmul_args_init(&matmul);
    g.w = &w;
    g.n_experts = 1;
    g.x = qn_tensor_2d(x, QN_F32, 4, 16);
    g.y = qn_tensor_2d(y, QN_F32, 4, 8);
    g.ids = qn_tensor_1d(ids, QN_I32, 4);
    qn_parallel_experts_args e;
    qn_parallel_experts_args_init(&e);
    assert_error(qn_parallel_experts_scratch(NULL, &e, &bytes, &err), QN_E_ARGUMENT, "ctx");
    assert_error(qn_parallel_experts_scratch(ctx, &e, &bytes, &err), QN_E_ARGUMENT, "comm is NULL");
    e.comm = &comm;
    assert_error(qn_parallel_experts_scratch(ctx, &e, &bytes, &err), QN_E_ARGUMENT, "NULL");
    e.grouped = &g;
    assert_error(qn_parallel_experts_scratch(ctx, &e, &bytes, &err), QN_E_SHAPE, "n_experts is 0");
    e.n_experts = 1;
    e.n = 8;
    e.k = 15;
    assert_error(qn_parallel_experts_scratch(ctx, &e, &bytes, &err), QN_E_SHAPE, "x");
    e.k = 16;
    e.piece = 0;
    assert_error(qn_parallel_experts_scratch(ctx, &e, &bytes, &err), QN_E_ARGUMENT, "piece is 0");
    e.piece = 2;
    assert_error(qn_parallel_experts_scratch(ctx, &e, NULL, &err), QN_E_ARGUMENT, "bytes is NULL");
    assert_ok(qn_parallel_experts_scratch(ctx, &e, &bytes, NULL));
    assert_error(qn_parallel_experts(ctx, &e, NULL, 0, &err), QN_E_SCRATCH, "scratch has 0");
    qn_parallel_args p;
    qn_parallel *plan = NULL;
    qn_parallel_args_init(&p);
    p.comm = &comm;
    p.grouped = &g;
    p.matmul = &matmul;
    assert_error(qn_parallel_plan(ctx, &p, &plan, &err), QN_E_ARGUMENT, "both given");
    p.matmul = NULL;
    g.offsets = g.ids;
    assert_error(qn_parallel_plan(ctx, &p, &plan, &err), QN_E_UNSUPPORTED, "told by ids");
    g.offsets = qn_tensor_none();
    g.prepared = &g;
    assert_error(qn_parallel_plan(ctx, &p, &plan, &err), QN_E_UNSUPPORTED, "prepared");
    g.prepared = NULL;
    assert_ok(qn_parallel_plan(ctx, &p, &plan, NULL));
    static char text[32768];
    assert_true(qn_parallel_explain(plan, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "experts   1"));
    qn_parallel_destroy(plan);
    qn_parallel_conv_args c;
    qn_parallel_conv_args_init(&c);
    assert_error(qn_parallel_conv_scratch(ctx, &c, &bytes, &err), QN_E_ARGUMENT, "comm is NULL");
    c.comm = &comm;
    assert_error(qn_parallel_conv_scratch(ctx, &c, &bytes, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_parallel_conv(NULL, &c, NULL, 0, &err), QN_E_ARGUMENT, "ctx is NULL");
    qn_packed_destroy((qn_packed *)(uintptr_t)w);
    qn_ctx_destroy(ctx);
}

/* Nobody is asked, so that three ranks need no processes. An exchange takes 1 ms here, and 1000
 * bytes a second come in. */
static void test_what_is_exchanged_is_said(void **state)
{
    (void)state;
    struct ranks alone = {.rank = 0, .n = 1};
    qn_ctx *ctx = ctx_make(1);
    qn_comm comm = ranks_comm(&alone, true);
    static float data[256];
    static char text[2048];
    const qn_packed *w = packed_make(ctx, "int8:pc", (struct shape){.n = 8, .k = 16}, 1, NULL);
    comm.rank = 1;
    comm.n_ranks = 3;
    comm.latency_s = 1e-3;
    comm.bytes_per_s = 1000.0;
    comm.all_to_all = ranks_all_gather;
    qn_grouped_args g;
    qn_grouped_args_init(&g);
    g.w = &w;
    g.n_experts = 1;
    g.strategy = QN_STRATEGY_INT8_ROW;
    g.x = qn_tensor_2d(data, QN_F32, 4, 16);
    g.y = qn_tensor_2d(data + 128, QN_F32, 4, 8);
    g.ids = qn_tensor_1d(NULL, QN_I32, 4);
    qn_parallel_experts_args e;
    qn_parallel_experts_args_init(&e);
    assert_true(qn_parallel_experts_explain(ctx, &e, text, sizeof text) == strlen(text));
    assert_non_null(strstr(text, "comm is NULL"));
    e.comm = &comm;
    e.grouped = &g;
    e.n_experts = 3;
    e.n = 8;
    e.k = 16;
    e.piece = 2;
    /* Out: a head, two ids, two rows of 64 bytes; back: a head, two rows of 32. Of two others. */
    const size_t length = qn_parallel_experts_explain(ctx, &e, text, sizeof text);
    assert_true(length == strlen(text));
    assert_true(length == qn_parallel_experts_explain(ctx, &e, NULL, 0));
    assert_non_null(strstr(text, "experts 1 to 2 of 3"));
    assert_non_null(strstr(text, "by all_to_all"));
    assert_non_null(strstr(text, " 768 bytes to each rank"));
    assert_non_null(strstr(text, "770000.0 us of exchanges a round"));
    comm.all_to_all = NULL;
    (void)qn_parallel_experts_explain(ctx, &e, text, sizeof text);
    assert_non_null(strstr(text, " 2304 bytes to each rank"));
    const qn_packed *kernel = packed_make(
        ctx, "int8:pc", (struct shape){.n = 2, .k = 8, .kh = 1, .kw = 1, .groups = 1}, 1, NULL);
    const int64_t x[4] = {2, 4, 4, 8}, y[4] = {2, 4, 4, 6};
    static float image[2 * 4 * 4 * 8], out[2 * 4 * 4 * 6];
    qn_conv_args conv;
    qn_conv_args_init(&conv);
    conv.w = kernel;
    conv.strategy = QN_STRATEGY_INT8_ROW;
    conv.image = QN_NHWC;
    conv.x = qn_tensor_make(image, QN_F32, 4, x);
    conv.y = qn_tensor_make(out, QN_F32, 4, y);
    qn_parallel_conv_args c;
    qn_parallel_conv_args_init(&c);
    c.comm = &comm;
    c.conv = &conv;
    c.gather_y = 1;
    /* A head, two images of 16 pixels and 2 channels, of two others; one exchange more asks. */
    assert_true(qn_parallel_conv_explain(ctx, &c, text, sizeof text) == strlen(text));
    assert_non_null(strstr(text, "2 to 4 of 6"));
    assert_non_null(strstr(text, " 640 bytes to each rank"));
    assert_non_null(strstr(text, "642000.0 us of exchanges"));
    c.is_trusted = 1;
    (void)qn_parallel_conv_explain(ctx, &c, text, sizeof text);
    assert_non_null(strstr(text, "641000.0 us of exchanges"));
    c.gather_y = 0;
    conv.y = qn_tensor_make(out, QN_F32, 4, (const int64_t[4]){2, 4, 4, 2});
    (void)qn_parallel_conv_explain(ctx, &c, text, sizeof text);
    assert_non_null(strstr(text, "nothing: each rank keeps its channels"));
    assert_null(strstr(text, "us of exchanges"));
    c.conv = NULL;
    (void)qn_parallel_conv_explain(ctx, &c, text, sizeof text);
    assert_non_null(strstr(text, "NULL"));
    qn_packed_destroy((qn_packed *)(uintptr_t)kernel);
    qn_packed_destroy((qn_packed *)(uintptr_t)w);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_what_is_exchanged_is_said),
        cmocka_unit_test(test_parts_of_every_expert),
        cmocka_unit_test(test_whole_experts_exchange_tokens),
        cmocka_unit_test(test_convolutions_have_the_bits_of_one_process),
#ifndef QN_TEST_MPI
        cmocka_unit_test(test_a_rank_lost_in_any_exchange_ends_the_others),
#endif
    };
#ifdef QN_TEST_MPI
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
#else
    return cmocka_run_group_tests(tests, NULL, NULL);
#endif
}
