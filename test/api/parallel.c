/* SPDX-License-Identifier: Apache-2.0 */
/* Products over several processes: the bits of one, whatever is cut; failures end on all ranks. */
#define _DEFAULT_SOURCE
#ifdef QN_TEST_MPI
#include "ranks_mpi.h"
#else
#include "ranks.h"
#endif

/* The tests of experts and of failures multiply M rows by an N x K weight. */
enum { M = 4, N = 48, K = 256 };

/* ---- one case on all ranks ------------------------------------------------------------------- */

struct parallel_case {
    const char *format;
    qn_strategy strategy;
    qn_split split;
    qn_sum_order order;
    int64_t m, n, k;
    qn_dtype x, y;
    int32_t gather_y, is_trusted, act_order, epilogue, all_to_all;
    int32_t same_bits; /* those of one process */
};

static char complaint[600];
#define COMPLAIN(...) (snprintf(complaint, sizeof complaint, __VA_ARGS__), (const char *)complaint)
#define TRY_OK(call)                                                                               \
    do {                                                                                           \
        memset(&err, 0, sizeof err);                                                               \
        const qn_status status_ = (call);                                                          \
        if (status_ != QN_OK)                                                                      \
            return COMPLAIN("%s %s: %s: %s: %s", c->format, qn_strategy_name(c->strategy), #call,  \
                            qn_status_name(status_), err.text);                                    \
    } while (0)

static uint16_t bf16_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return (uint16_t)((u + 0x7fffu + ((u >> 16) & 1u)) >> 16);
}

/* Values of any type, from a seed. */
static void *make_values(qn_dtype dtype, int64_t count, uint64_t seed)
{
    uint8_t *const data = take((size_t)count * qn_dtype_bytes(dtype) + 64);
    for (int64_t i = 0; i < count; i++) {
        const float f = draw_real(&seed);
        const uint16_t h = bf16_of(f);
        if (dtype == QN_F32)
            memcpy(data + i * 4, &f, 4);
        else if (dtype == QN_BF16)
            memcpy(data + i * 2, &h, 2);
        else
            data[i] = (uint8_t)(int8_t)(f * 100.0f);
    }
    return data;
}

/* Columns columns[0 ... k) of x [m, all]. */
static void *take_columns(const void *x, qn_dtype dtype, int64_t m, int64_t all,
                          const int32_t *columns, int64_t k)
{
    const size_t bytes = qn_dtype_bytes(dtype);
    uint8_t *const part = take((size_t)(m * k) * bytes + 64);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < k; j++)
            memcpy(part + (size_t)(i * k + j) * bytes,
                   (const uint8_t *)x + (size_t)(i * all + columns[j]) * bytes, bytes);
    return part;
}

/* The whole weight, with an order of columns that mixes all groups if asked. */
static qn_weight *whole_weight(const qn_ctx *ctx, const struct parallel_case *c)
{
    qn_weight *plain = weight_make(ctx, c->format, (struct shape){.n = c->n, .k = c->k}, 11);
    if (!c->act_order)
        return plain;
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    assert_ok(qn_weight_view(plain, &parts));
    int32_t *perm = take((size_t)c->k * sizeof *perm);
    uint64_t seed = 5;
    for (int64_t i = 0; i < c->k; i++)
        perm[i] = (int32_t)i;
    for (int64_t i = c->k - 1; i > 0; i--) {
        const int64_t j = draw(&seed) % (i + 1);
        const int32_t other = perm[j];
        perm[j] = perm[i];
        perm[i] = other;
    }
    parts.perm = perm;
    qn_weight *mixed = NULL;
    assert_ok(qn_weight_create(ctx, &parts, &mixed, NULL));
    qn_weight_destroy(plain);
    free(perm);
    return mixed;
}

static const char *compare_bits(const struct parallel_case *c, const uint8_t *got,
                                const uint8_t *expected, size_t bytes, const char *what)
{
    for (size_t i = 0; i < bytes; i++)
        if (got[i] != expected[i])
            return COMPLAIN("%s %s %s m %lld n %lld k %lld order %d: byte %zu of %zu differs from "
                            "%s",
                            c->format, qn_strategy_name(c->strategy), qn_split_name(c->split),
                            (long long)c->m, (long long)c->n, (long long)c->k, c->order, i, bytes,
                            what);
    return NULL;
}

static float y_value(const struct parallel_case *c, const uint8_t *y, int64_t i)
{
    float f;
    uint16_t h;
    uint32_t u;
    if (c->y == QN_F32) {
        memcpy(&f, y + i * 4, 4);
        return f;
    }
    memcpy(&h, y + i * 2, 2);
    u = (uint32_t)h << 16;
    memcpy(&f, &u, 4);
    return f;
}

struct values {
    void *x;
    float *bias, *row_scale;
    uint16_t *residual;
};

static struct values values_make(const struct parallel_case *c)
{
    return (struct values){.x = make_values(c->x, c->m * c->k, 21),
                           .bias = make_values(QN_F32, c->n, 22),
                           .residual = make_values(QN_BF16, c->m * c->n, 23),
                           .row_scale = make_values(QN_F32, c->m, 24)};
}

static void values_free(const struct values *v)
{
    free(v->x);
    free(v->bias);
    free(v->residual);
    free(v->row_scale);
}

/* The product of one process. */
static qn_matmul_args alone(const struct parallel_case *c, const qn_packed *w,
                            const struct values *v, void *y)
{
    qn_matmul_args one;
    qn_matmul_args_init(&one);
    one.w = w;
    one.strategy = c->strategy;
    one.x = qn_tensor_2d(v->x, c->x, c->m, c->k);
    one.y = qn_tensor_2d(y, c->y, c->m, c->n);
    one.quant.x_scale = 0.01f;
    one.quant.x_zero = c->x == QN_I8 ? 3 : 0;
    if (c->epilogue) {
        one.epilogue.bias = qn_tensor_1d(v->bias, QN_F32, c->n);
        one.epilogue.residual = qn_tensor_2d(v->residual, QN_BF16, c->m, c->n);
        one.epilogue.row_scale = qn_tensor_1d(v->row_scale, QN_F32, c->m);
        one.epilogue.act = QN_ACT_SILU;
    }
    return one;
}

static const char *one_case(struct ranks *ranks, void *arg)
{
    const struct parallel_case *const c = arg;
    qn_error err;
    qn_ctx *ctx = ctx_make(2);
    qn_comm comm = ranks_comm(ranks, c->all_to_all);
    qn_weight *whole = whole_weight(ctx, c), *shard = NULL;
    qn_packed *whole_packed = NULL, *packed = NULL;
    TRY_OK(qn_weight_shard(ctx, whole, c->split, ranks->rank, ranks->n, &shard, &err));
    TRY_OK(qn_pack(ctx, whole, NULL, &whole_packed, &err));
    TRY_OK(qn_pack(ctx, shard, NULL, &packed, &err));

    const struct values v = values_make(c);
    const size_t y_bytes = (size_t)(c->m * c->n) * qn_dtype_bytes(c->y);
    uint8_t *const expected = take(y_bytes), *const y = take(y_bytes);

    qn_matmul_args one = alone(c, whole_packed, &v, expected);
    one.error = &err;
    TRY_OK(matmul_in_arena(ctx, &one));

    /* All ranks. */
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    assert_ok(qn_weight_view(shard, &parts));
    int64_t first = 0, count = 0;
    assert_ok(qn_shard_range(c->n, 1, ranks->rank, ranks->n, &first, &count));
    int32_t *const columns = take((size_t)c->k * sizeof *columns + 4);
    qn_matmul_args matmul = one;
    matmul.w = packed;
    matmul.y.data = y;
    void *part = NULL;
    if (c->split == QN_SPLIT_ROW) {
        int64_t n_columns = 0;
        TRY_OK(
            qn_weight_shard_columns(whole, ranks->rank, ranks->n, columns, c->k, &n_columns, &err));
        if (n_columns != parts.k)
            return COMPLAIN("the shard has k %lld and %lld columns", (long long)parts.k,
                            (long long)n_columns);
        part = take_columns(v.x, c->x, c->m, c->k, columns, n_columns);
        matmul.x = qn_tensor_2d(part, c->x, c->m, n_columns);
    } else if (c->epilogue) {
        matmul.epilogue.bias = qn_tensor_1d(v.bias + first, QN_F32, count);
    }
    if (c->split == QN_SPLIT_COLUMN && !c->gather_y) {
        matmul.y = qn_tensor_2d(y, c->y, c->m, count);
        if (c->epilogue) {
            matmul.epilogue.residual.data = v.residual + first;
            matmul.epilogue.residual.shape[1] = count;
        }
    }
    qn_parallel_args args;
    qn_parallel_args_init(&args);
    args.comm = &comm;
    args.matmul = &matmul;
    args.split = c->split;
    args.gather_y = c->gather_y;
    args.sum_order = c->order;
    args.is_trusted = c->is_trusted;
    qn_parallel *plan = NULL;
    TRY_OK(qn_parallel_plan(ctx, &args, &plan, &err));
    const size_t scratch_bytes = qn_parallel_scratch_bytes(plan);
    void *const scratch = take(scratch_bytes + 64);
    TRY_OK(qn_parallel_run(plan, &args, scratch, scratch_bytes, &err));

    const char *wrong = NULL;
    if (c->split == QN_SPLIT_COLUMN && !c->gather_y) {
        const size_t bytes = qn_dtype_bytes(c->y);
        for (int64_t i = 0; wrong == NULL && i < c->m; i++)
            wrong = compare_bits(c, y + (size_t)(i * count) * bytes,
                                 expected + (size_t)(i * c->n + first) * bytes,
                                 (size_t)count * bytes, "one process");
    } else if (c->same_bits || ranks->n == 1) {
        wrong = compare_bits(c, y, expected, y_bytes, "one process");
    } else {
        /* Close to one process, and the same on all ranks. Blocks of x begin elsewhere in a shard,
         * and its rows have other extremes: int8 codes are others. */
        const float slack = c->strategy == QN_STRATEGY_FLOAT ? 0.05f : 0.6f;
        for (int64_t i = 0; wrong == NULL && i < c->m * c->n; i++) {
            const float a = y_value(c, y, i), b = y_value(c, expected, i);
            if (!(fabsf(a - b) <= slack + 0.02f * fabsf(b)))
                wrong = COMPLAIN("%s %s: y[%lld] is %g, one process has %g", c->format,
                                 qn_strategy_name(c->strategy), (long long)i, (double)a, (double)b);
        }
        uint8_t *const all = take(y_bytes * (size_t)ranks->n);
        TRY_OK(ranks_all_gather(ranks, y, y_bytes, all, &err));
        for (int32_t r = 0; wrong == NULL && r < ranks->n; r++)
            wrong = compare_bits(c, all + (size_t)r * y_bytes, y, y_bytes, "another rank");
        free(all);
    }
    qn_parallel_destroy(plan);
    qn_packed_destroy(packed);
    qn_packed_destroy(whole_packed);
    qn_weight_destroy(shard);
    qn_weight_destroy(whole);
    qn_ctx_destroy(ctx);
    free(scratch);
    free(columns);
    free(part);
    values_free(&v);
    free(expected);
    free(y);
    return wrong;
}

/* Several cases in one set of processes: a fork costs more than a product. */
struct cases {
    struct parallel_case c[64];
    int32_t n;
};

static const char *all_cases(struct ranks *ranks, void *arg)
{
    struct cases *const all = arg;
    const char *wrong = NULL;
    for (int32_t i = 0; wrong == NULL && i < all->n; i++)
        wrong = one_case(ranks, &all->c[i]);
    return wrong;
}

static void on_all_counts(struct cases *all)
{
    assert_true(all->n > 0 && all->n <= 64);
    for (int32_t n = 1; n <= MOST_RANKS; n++)
        ranks_run(n, all_cases, all);
}

static const char *const formats[] = {"int8:pc",  "int4:g32", "int4:g128:zp", "nf4:g64",
                                      "int8:g64", "fp8:pc",   "int3:g32:off", "q4_k"};
enum { N_FORMATS = (int)(sizeof formats / sizeof *formats) };

/* Codebooks that hold no integers have no int8 products. */
static qn_strategy strategy_for(const char *format, int32_t i)
{
    static const qn_strategy all[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_BLOCK,
                                      QN_STRATEGY_INT8_ROW};
    const bool has_integers = strstr(format, "nf4") == NULL && strstr(format, "fp8") == NULL;
    return has_integers ? all[i] : QN_STRATEGY_FLOAT;
}

static void test_column_has_the_bits_of_one_process(void **state)
{
    (void)state;
    struct cases all = {.n = 0};
    for (int32_t f = 0; f < N_FORMATS; f++)
        for (int32_t s = 0; s < 3; s++)
            all.c[all.n++] = (struct parallel_case){.format = formats[f],
                                                    .strategy = strategy_for(formats[f], s),
                                                    .split = QN_SPLIT_COLUMN,
                                                    .m = 1 + 2 * s + f % 3,
                                                    .n = 35 + f,
                                                    .k = 512,
                                                    .x = s == 1 ? QN_BF16 : QN_F32,
                                                    .y = f % 2 ? QN_BF16 : QN_F32,
                                                    .gather_y = (f + s) % 2,
                                                    .is_trusted = f % 2,
                                                    .epilogue = s != 1};
    all.c[all.n++] = (struct parallel_case){.format = "int4:g32",
                                            .strategy = QN_STRATEGY_INT8_BLOCK,
                                            .split = QN_SPLIT_COLUMN,
                                            .m = 3,
                                            .n = 2, /* fewer than ranks */
                                            .k = 64,
                                            .x = QN_F32,
                                            .y = QN_F32,
                                            .gather_y = 1,
                                            .epilogue = 1};
    on_all_counts(&all);
}

static void test_row_of_int8_has_the_bits_of_one_process(void **state)
{
    (void)state;
    struct cases all = {.n = 0};
    static const char *const exact[] = {"int8:pc", "int4:pc", "int8:pt", "int6:pc"};
    for (int32_t f = 0; f < 4; f++)
        for (int32_t e = 0; e < 4; e++)
            all.c[all.n++] = (struct parallel_case){.format = exact[f],
                                                    .strategy = e == 3 ? QN_STRATEGY_INT8_STATIC
                                                                       : QN_STRATEGY_INT8_ROW,
                                                    .split = QN_SPLIT_ROW,
                                                    .m = 1 + 4 * e,
                                                    .n = 35,
                                                    .k = 231 + 64 * f,
                                                    .x = e == 3   ? QN_I8
                                                         : e == 1 ? QN_BF16
                                                                  : QN_F32,
                                                    .y = e == 2 ? QN_BF16 : QN_F32,
                                                    .act_order = f == 1,
                                                    .is_trusted = e == 1,
                                                    .epilogue = e > 0,
                                                    .same_bits = 1};
    all.c[all.n++] = (struct parallel_case){.format = "int8:pc:zp",
                                            .strategy = QN_STRATEGY_INT8_STATIC,
                                            .split = QN_SPLIT_ROW,
                                            .m = 5,
                                            .n = 20,
                                            .k = 100,
                                            .x = QN_I8,
                                            .y = QN_I32, /* raw sums, zero points and all */
                                            .same_bits = 1};
    all.c[all.n++] = (struct parallel_case){.format = "int8:pc",
                                            .strategy = QN_STRATEGY_INT8_ROW,
                                            .split = QN_SPLIT_ROW,
                                            .m = 70, /* several chunks of rows */
                                            .n = 5000,
                                            .k = 96,
                                            .x = QN_F32,
                                            .y = QN_F32,
                                            .same_bits = 1};
    on_all_counts(&all);
}

static void test_row_in_order_is_the_same_on_all_ranks(void **state)
{
    (void)state;
    struct cases all = {.n = 0};
    for (int32_t f = 0; f < N_FORMATS; f++)
        for (int32_t s = 0; s < 3; s++)
            all.c[all.n++] =
                (struct parallel_case){.format = formats[f],
                                       .strategy = strategy_for(formats[f], s),
                                       .split = QN_SPLIT_ROW,
                                       .order = f % 4 == 3 ? QN_SUM_FAST : QN_SUM_ORDERED,
                                       .m = 1 + 3 * s,
                                       .n = 33 + f,
                                       .k = f == 7 ? 1024 : 7 * 128, /* 7 groups over 4 ranks */
                                       .x = s == 2 ? QN_BF16 : QN_F32,
                                       .y = f % 2 ? QN_BF16 : QN_F32,
                                       .act_order = f == 1 || f == 4,
                                       .all_to_all = (f + s) % 2,
                                       .epilogue = s > 0};
    on_all_counts(&all);
}

/* ---- experts --------------------------------------------------------------------------------- */

enum { EXPERTS = 5, TOKENS = 13 };

/* Rank r has experts r, r + n, ...: rows of the others are zeros, and the sum has one process's
 * bits. */
static const char *share_experts(struct ranks *ranks, void *arg)
{
    static float x[TOKENS * K], v[TOKENS * N], whole[TOKENS * N], y[TOKENS * N], bias[N];
    static const struct parallel_case what = {.format = "int4:g32"}, *const c = &what;
    const bool with_all_to_all = *(int32_t *)arg != 0;
    qn_ctx *ctx = ctx_make(1);
    qn_comm comm = ranks_comm(ranks, with_all_to_all);
    qn_packed *all[EXPERTS], *mine[EXPERTS];
    int32_t ids[TOKENS], own_ids[TOKENS], n_mine = 0;
    qn_error err;
    for (int32_t e = 0; e < EXPERTS; e++) {
        all[e] =
            packed_make(ctx, c->format, (struct shape){.n = N, .k = K}, 40 + (uint64_t)e, NULL);
        if (e % ranks->n == ranks->rank)
            mine[n_mine++] = all[e];
    }
    fill_reals(x, TOKENS * K, 6);
    fill_reals(bias, N, 7);
    memset(v, 0, sizeof v);
    for (int32_t i = 0; i < TOKENS; i++) {
        ids[i] = i * 3 % EXPERTS;
        own_ids[i] = ids[i] % ranks->n == ranks->rank ? ids[i] / ranks->n : -1;
    }
    qn_grouped_args grouped;
    qn_grouped_args_init(&grouped);
    grouped.w = (const qn_packed *const *)all;
    grouped.n_experts = EXPERTS;
    grouped.strategy = QN_STRATEGY_INT8_BLOCK;
    grouped.x = qn_tensor_2d(x, QN_F32, TOKENS, K);
    grouped.y = qn_tensor_2d(whole, QN_F32, TOKENS, N);
    grouped.ids = qn_tensor_1d(ids, QN_I32, TOKENS);
    grouped.epilogue.bias = qn_tensor_1d(bias, QN_F32, N);
    TRY_OK(grouped_in_arena(ctx, &grouped));
    grouped.w = (const qn_packed *const *)mine;
    grouped.n_experts = n_mine;
    grouped.y.data = v;
    grouped.ids.data = own_ids;
    grouped.epilogue.bias = qn_tensor_none();
    if (n_mine > 0)
        TRY_OK(grouped_in_arena(ctx, &grouped));
    qn_parallel_sum_args sum;
    qn_parallel_sum_args_init(&sum);
    sum.comm = &comm;
    sum.v = qn_tensor_2d(v, QN_F32, TOKENS, N);
    sum.y = qn_tensor_2d(y, QN_F32, TOKENS, N);
    sum.epilogue.bias = qn_tensor_1d(bias, QN_F32, N);
    size_t bytes = 0;
    TRY_OK(qn_parallel_sum_scratch(&sum, &bytes, &err));
    void *const scratch = take(bytes + 64);
    TRY_OK(qn_parallel_sum(ctx, &sum, scratch, bytes, &err));
    if (memcmp(y, whole, sizeof y) != 0)
        return COMPLAIN("the experts of %d ranks have not the bits of one process", ranks->n);
    /* In place; then what one rank does wrong ends on all. */
    sum.y.data = v;
    TRY_OK(qn_parallel_sum(ctx, &sum, scratch, bytes, &err));
    if (memcmp(v, whole, sizeof v) != 0)
        return COMPLAIN("in place: not the bits of one process");
    if (ranks->n > 1) {
        if (ranks->rank == 1)
            sum.v.shape[1] = sum.y.shape[1] = N - 1;
        sum.epilogue.bias = qn_tensor_none();
        const qn_status status = qn_parallel_sum(ctx, &sum, scratch, bytes, &err);
        if (status != QN_E_PEER || strstr(err.text, "outputs") == NULL)
            return COMPLAIN("other n: %s, %s", qn_status_name(status), err.text);
        const size_t given = ranks->rank == 1 ? 0 : bytes;
        sum.v.shape[1] = sum.y.shape[1] = N;
        const qn_status refused = qn_parallel_sum(ctx, &sum, scratch, given, &err);
        if (refused != (ranks->rank == 1 ? QN_E_SCRATCH : QN_E_PEER))
            return COMPLAIN("no scratch: %s, %s", qn_status_name(refused), err.text);
    }
    free(scratch);
    for (int32_t e = 0; e < EXPERTS; e++)
        qn_packed_destroy(all[e]);
    qn_ctx_destroy(ctx);
    return NULL;
}

static void test_experts_over_ranks(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= MOST_RANKS; n++)
        for (int32_t with_all_to_all = 0; with_all_to_all < 2; with_all_to_all++)
            ranks_run(n, share_experts, &with_all_to_all);
}

/* ---- failures -------------------------------------------------------------------------------- */

struct scene {
    qn_ctx *ctx;
    qn_weight *shard;
    qn_packed *packed;
    float *x, *y;
    qn_comm comm;
    qn_matmul_args matmul;
    qn_parallel_args args;
};

static void scene_of(struct scene *s, struct ranks *ranks, qn_split split, int64_t m, int64_t n)
{
    memset(s, 0, sizeof *s);
    s->ctx = ctx_make(1);
    s->comm = ranks_comm(ranks, true);
    qn_weight *whole = weight_make(s->ctx, "int4:g32", (struct shape){.n = n, .k = K}, 3);
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    assert_ok(qn_weight_shard(s->ctx, whole, split, ranks->rank, ranks->n, &s->shard, NULL));
    assert_ok(qn_weight_view(s->shard, &parts));
    assert_ok(qn_pack(s->ctx, s->shard, NULL, &s->packed, NULL));
    qn_weight_destroy(whole);
    s->x = make_values(QN_F32, m * K, 4);
    s->y = take((size_t)(m * n) * sizeof *s->y);
    qn_matmul_args_init(&s->matmul);
    s->matmul.w = s->packed;
    s->matmul.strategy = QN_STRATEGY_INT8_BLOCK;
    s->matmul.x = qn_tensor_2d(s->x, QN_F32, m, parts.k);
    s->matmul.y = qn_tensor_2d(s->y, QN_F32, m, n);
    qn_parallel_args_init(&s->args);
    s->args.comm = &s->comm;
    s->args.matmul = &s->matmul;
    s->args.split = split;
    s->args.gather_y = split == QN_SPLIT_COLUMN;
}

static void scene_make(struct scene *s, struct ranks *ranks, qn_split split)
{
    scene_of(s, ranks, split, M, N);
}

static inline void scene_free(struct scene *s)
{
    qn_packed_destroy(s->packed);
    qn_weight_destroy(s->shard);
    qn_ctx_destroy(s->ctx);
    free(s->x);
    free(s->y);
}

/* What rank 1 does otherwise than the others, and a word of what rank 0 is told. */
static const struct {
    const char *what, *word;
} differences[] = {{"m", "has m"},           {"act", "has act"},
                   {"strategy", "strategy"}, {"split", "failed"},
                   {"order", "sum_order"},   {"residual", "residual_type"},
                   {"bad", "rank 1 failed"}, {"null", "rank 1 failed"}};
enum { N_DIFFERENCES = (int)(sizeof differences / sizeof *differences) };

static const char *differ(struct ranks *ranks, void *arg)
{
    const char *const what = differences[*(int32_t *)arg].what;
    const char *const word = differences[*(int32_t *)arg].word;
    struct scene s;
    qn_error err;
    qn_parallel *plan = NULL;
    memset(&err, 0, sizeof err);
    scene_make(&s, ranks, QN_SPLIT_ROW);
    if (ranks->rank == 1) {
        if (strcmp(what, "m") == 0)
            s.matmul.x.shape[0] = s.matmul.y.shape[0] = M - 1;
        if (strcmp(what, "act") == 0)
            s.matmul.epilogue.act = QN_ACT_RELU;
        if (strcmp(what, "strategy") == 0)
            s.matmul.strategy = QN_STRATEGY_FLOAT;
        if (strcmp(what, "split") == 0)
            s.args.split = QN_SPLIT_COLUMN; /* y is then too wide, or k differs */
        if (strcmp(what, "order") == 0)
            s.args.sum_order = QN_SUM_FAST;
        if (strcmp(what, "residual") == 0)
            s.matmul.epilogue.residual = s.matmul.y;
        if (strcmp(what, "bad") == 0)
            s.matmul.x.dtype = QN_I32;
        if (strcmp(what, "null") == 0)
            s.matmul.w = NULL;
    }
    if (strcmp(what, "split") == 0 && ranks->rank == 1)
        s.matmul.y.shape[1] = N - 1;
    const qn_status status = qn_parallel_plan(s.ctx, &s.args, &plan, &err);
    if (status == QN_OK || plan != NULL || err.status != status)
        return COMPLAIN("%s: a plan was made (%s)", what, qn_status_name(status));
    if (ranks->rank == 0 && (status != QN_E_PEER || strstr(err.text, word) == NULL))
        return COMPLAIN("%s: rank 0 was told '%s', which does not say '%s'", what, err.text, word);
    return NULL;
}

#ifndef QN_TEST_MPI
/* ---- overlap --------------------------------------------------------------------------------- */

/* Chunks are of 64 rows: 1 MiB of 4096 sums each. */
enum { WIDE_N = 4096, WIDE_M = 3 * 64 + 5 };

static const char *overlap(struct ranks *ranks, void *arg)
{
    const qn_split split = *(qn_split *)arg;
    const size_t bytes = (size_t)WIDE_M * WIDE_N * sizeof(float);
    struct scene s;
    float *const expected = take(bytes);
    scene_of(&s, ranks, split, WIDE_M, WIDE_N);
    s.comm.all_to_all = NULL;
    for (int32_t with = 0; with < 2; with++) {
        qn_parallel *plan = NULL;
        qn_error err = {QN_OK, -1, ""};
        s.comm.all_gather_begin = with ? ranks_begin : NULL;
        s.comm.wait = with ? ranks_wait : NULL;
        if (qn_parallel_plan(s.ctx, &s.args, &plan, &err) != QN_OK)
            return COMPLAIN("planning: %s", err.text);
        const size_t scratch_bytes = qn_parallel_scratch_bytes(plan);
        void *const scratch = take(scratch_bytes + 64);
        memset(s.y, 0x5a, bytes);
        if (qn_parallel_run(plan, &s.args, scratch, scratch_bytes, &err) != QN_OK)
            return COMPLAIN("overlap %d: %s", with, err.text);
        if (with && memcmp(s.y, expected, bytes) != 0)
            return COMPLAIN("overlap changes y");
        memcpy(expected, s.y, bytes);
        if (ranks->n_begun != (with ? 4 : 0) || ranks->begun.recv_to != NULL)
            return COMPLAIN("%d chunks were begun", ranks->n_begun);
        free(scratch);
        qn_parallel_destroy(plan);
    }
    scene_free(&s);
    free(expected);
    return NULL;
}

static const char *overlap_until_lost(struct ranks *ranks, void *arg)
{
    struct scene s;
    qn_parallel *plan = NULL;
    qn_error err = {QN_OK, -1, ""};
    ranks->limit_ms = 30000;
    scene_of(&s, ranks, *(qn_split *)arg, WIDE_M, WIDE_N);
    s.comm.all_to_all = NULL;
    s.comm.all_gather_begin = ranks_begin;
    s.comm.wait = ranks_wait;
    qn_status status = qn_parallel_plan(s.ctx, &s.args, &plan, &err);
    const size_t bytes = qn_parallel_scratch_bytes(plan);
    void *const scratch = take(bytes + 64);
    while (status == QN_OK)
        status = qn_parallel_run(plan, &s.args, scratch, bytes, &err);
    return status == QN_E_PEER && err.status == QN_E_PEER
               ? NULL
               : COMPLAIN("%s: %s", qn_status_name(status), err.text);
}

static void test_overlap_has_the_same_bits(void **state)
{
    (void)state;
    uint64_t seed = 78;
    for (qn_split split = QN_SPLIT_COLUMN; split <= QN_SPLIT_ROW; split++) {
        for (int32_t n = 2; n <= 3; n++)
            ranks_run(n, overlap, &split);
        for (int32_t i = 0; i < 5; i++) {
            pid_t children[MOST_RANKS];
            ranks_start(2, overlap_until_lost, &split, children);
            usleep(20000 + draw(&seed) % 60000);
            kill(children[i % 2], SIGKILL);
            for (int32_t r = 0; r < 2; r++)
                ranks_expect(children[r], r, r == i % 2);
        }
    }
}

#endif

/* An exchange of few bytes takes 1 ms here, and 1000 bytes a second come in. Two exchanges: of
 * whether all are there, and of a block, or of sums, twice half of them. */
static const char *predict(struct ranks *ranks, void *arg)
{
    const qn_sum_order order = *(qn_sum_order *)arg;
    struct scene s;
    qn_parallel *plan = NULL;
    static char text[32768];
    scene_make(&s, ranks, QN_SPLIT_ROW);
    s.args.sum_order = order;
    s.comm.latency_s = 1e-3;
    s.comm.bytes_per_s = 1000.0;
    if (qn_parallel_plan(s.ctx, &s.args, &plan, NULL) != QN_OK)
        return COMPLAIN("planning %d", order);
    const double sums = 4.0 * M * N, block = 64.0 + (double)((M * N * 4 + 63) / 64 * 64);
    const double bytes = order == QN_SUM_FAST ? sums : block;
    const double expected = 2e-3 + bytes / 1000.0, got = qn_parallel_predict(plan);
    (void)qn_parallel_explain(plan, text, sizeof text);
    if (got < expected * 0.999 || got > expected * 1.001 || strstr(text, "us of exchanges") == NULL)
        return COMPLAIN("%g s instead of %g", got, expected);
    return NULL;
}

static void test_the_time_of_exchanges_is_predicted(void **state)
{
    (void)state;
    for (qn_sum_order order = QN_SUM_ORDERED; order <= QN_SUM_FAST; order++)
        ranks_run(2, predict, &order);
}

static void test_ranks_that_differ_are_named(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_DIFFERENCES; i++)
        for (int32_t n = 2; n <= 3; n++)
            ranks_run(n, differ, &i);
}

/* Rank 1's run is refused; no rank's y is touched, and the next run works. */
static const char *refuse_a_run(struct ranks *ranks, void *arg)
{
    const qn_split split = *(qn_split *)arg;
    struct scene s;
    qn_error err;
    qn_parallel *plan = NULL;
    memset(&err, 0, sizeof err);
    scene_make(&s, ranks, split);
    if (qn_parallel_plan(s.ctx, &s.args, &plan, &err) != QN_OK)
        return COMPLAIN("planning: %s", err.text);
    const size_t bytes = qn_parallel_scratch_bytes(plan);
    void *const scratch = take(bytes + 64);
    memset(s.y, 0x5a, M * N * sizeof *s.y);
    qn_epilogue_more more;
    qn_epilogue_more_init(&more);
    for (int32_t way = 0; way < 7; way++) {
        qn_matmul_args bad = s.matmul;
        qn_parallel_args args = s.args;
        size_t given = bytes;
        args.matmul = &bad;
        if (ranks->rank == 1 && way == 0)
            given = bytes - 1;
        if (ranks->rank == 1 && way == 1)
            bad.y.data = NULL;
        if (ranks->rank == 1 && way == 2)
            bad.x.shape[0] = bad.y.shape[0] = M - 1;
        if (ranks->rank == 1 && way == 3)
            bad.y.data = s.x; /* y on x */
        if (ranks->rank == 1 && way == 4)
            args.matmul = NULL;
        if (ranks->rank == 1 && way == 5)
            bad.more = &more;
        if (ranks->rank == 1 && way == 6)
            bad.prepared = scratch;
        const qn_status status = qn_parallel_run(plan, &args, scratch, given, &err);
        const bool is_right = way == 2           ? status == QN_E_PEER
                              : ranks->rank == 1 ? status != QN_OK && status != QN_E_PEER
                                                 : status == QN_E_PEER;
        if (!is_right || err.status != status)
            return COMPLAIN("way %d: %s, '%s'", way, qn_status_name(status), err.text);
        for (size_t i = 0; i < M * N * sizeof *s.y; i++)
            if (((const uint8_t *)s.y)[i] != 0x5a)
                return COMPLAIN("way %d: y was touched", way);
    }
    if (qn_parallel_run(plan, &s.args, scratch, bytes, &err) != QN_OK)
        return COMPLAIN("the run after refused ones: %s", err.text);
    return NULL;
}

static void test_a_refused_run_ends_on_all_ranks(void **state)
{
    (void)state;
    for (qn_split split = QN_SPLIT_COLUMN; split <= QN_SPLIT_ROW; split++)
        for (int32_t n = 2; n <= 3; n++)
            ranks_run(n, refuse_a_run, &split);
}

#ifndef QN_TEST_MPI
/* Runs until a rank is gone; then a status must come, in time. */
static const char *run_until_lost(struct ranks *ranks, void *arg)
{
    const qn_split split = *(qn_split *)arg;
    struct scene s;
    qn_error err;
    qn_parallel *plan = NULL;
    memset(&err, 0, sizeof err);
    ranks->limit_ms = 30000; /* a rank that was killed is seen at once, not after that */
    scene_make(&s, ranks, split);
    qn_status status = qn_parallel_plan(s.ctx, &s.args, &plan, &err);
    const size_t bytes = qn_parallel_scratch_bytes(plan);
    void *const scratch = take(bytes + 64);
    while (status == QN_OK)
        status = qn_parallel_run(plan, &s.args, scratch, bytes, &err);
    return status == QN_E_PEER && err.status == QN_E_PEER
               ? NULL
               : COMPLAIN("%s: %s", qn_status_name(status), err.text);
}

static void test_a_killed_rank_ends_the_others(void **state)
{
    (void)state;
    uint64_t seed = 77;
    for (int32_t i = 0; i < 50; i++) {
        pid_t children[MOST_RANKS];
        const int32_t n = 2 + i % 3, victim = (int32_t)(draw(&seed) % (uint32_t)n);
        qn_split split = i % 2 ? QN_SPLIT_ROW : QN_SPLIT_COLUMN;
        ranks_start(n, run_until_lost, &split, children);
        usleep(draw(&seed) % 20000);
        kill(children[victim], SIGKILL);
        for (int32_t r = 0; r < n; r++)
            ranks_expect(children[r], r, r == victim);
    }
}

#endif

/* ---- arguments ------------------------------------------------------------------------------- */

static void test_shard_ranges(void **state)
{
    (void)state;
    int64_t first, count;
    assert_ok(qn_shard_range(231 * 128, 128, 0, 2, &first, &count));
    assert_true(first == 0 && count == 116 * 128);
    assert_ok(qn_shard_range(231 * 128, 128, 1, 2, &first, &count));
    assert_true(first == 116 * 128 && count == 115 * 128);
    for (int64_t extent = 0; extent < 40; extent++) {
        for (int64_t unit = 1; unit < 9; unit++) {
            for (int32_t n = 1; n < 9; n++) {
                int64_t next = 0;
                for (int32_t r = 0; r < n; r++) {
                    assert_ok(qn_shard_range(extent, unit, r, n, &first, &count));
                    assert_true(first == next && count >= 0);
                    assert_true(first % unit == 0 || first == extent);
                    next += count;
                }
                assert_true(next == extent);
            }
        }
    }
    assert_status(qn_shard_range(1, 0, 0, 1, &first, &count), QN_E_ARGUMENT);
    assert_status(qn_shard_range(1, 1, 1, 1, &first, &count), QN_E_ARGUMENT);
    assert_status(qn_shard_range(-1, 1, 0, 1, &first, &count), QN_E_ARGUMENT);
    assert_status(qn_shard_range(1, 1, 0, 1, NULL, &count), QN_E_ARGUMENT);
}

static void test_bad_shards(void **state)
{
    (void)state;
    qn_ctx *ctx = ctx_make(1);
    qn_weight *matrix = weight_make(ctx, "int4:g32", (struct shape){.n = 16, .k = 96}, 1);
    qn_weight *conv =
        weight_make(ctx, "int4:c32", (struct shape){.n = 8, .k = 288, .kh = 3, .kw = 3}, 1);
    qn_weight *shard = NULL, *taken = NULL;
    int64_t count = 0;
    int32_t columns[4];
    const int32_t ids[3] = {15, 0, 15}, bad[1] = {16};
    assert_error(qn_weight_shard(ctx, matrix, 2, 0, 2, &shard, &err), QN_E_ARGUMENT, "split is 2");
    assert_error(qn_weight_shard(ctx, matrix, QN_SPLIT_ROW, 2, 2, &shard, &err), QN_E_ARGUMENT,
                 "rank 2 of 2");
    assert_error(qn_weight_shard(NULL, matrix, QN_SPLIT_ROW, 0, 2, &shard, &err), QN_E_ARGUMENT,
                 "ctx is NULL");
    assert_error(qn_weight_shard(ctx, conv, QN_SPLIT_ROW, 0, 2, &shard, &err), QN_E_UNSUPPORTED,
                 "convolution");
    assert_null(shard);
    assert_error(qn_weight_shard_columns(matrix, 0, 2, columns, 4, &count, &err), QN_E_ARGUMENT,
                 "4 of 64");
    assert_ok(qn_weight_shard(ctx, conv, QN_SPLIT_COLUMN, 1, 2, &shard, NULL));
    qn_weight_destroy(shard);
    assert_error(qn_weight_take(ctx, matrix, bad, 1, &taken, &err), QN_E_VALUE, "ids[0] is 16");
    assert_error(qn_weight_take(ctx, matrix, ids, -1, &taken, &err), QN_E_ARGUMENT, "count is -1");
    assert_ok(qn_weight_take(ctx, matrix, ids, 3, &taken, NULL));
    float whole[16 * 96], part[3 * 96];
    const qn_tensor out = qn_tensor_2d(whole, QN_F32, 16, 96);
    const qn_tensor few = qn_tensor_2d(part, QN_F32, 3, 96);
    assert_ok(qn_weight_dequantize(ctx, matrix, false, &out));
    assert_ok(qn_weight_dequantize(ctx, taken, false, &few));
    for (int32_t i = 0; i < 3; i++)
        assert_memory_equal(part + 96 * i, whole + 96 * ids[i], 96 * sizeof *part);
    qn_weight_destroy(taken);
    qn_weight_destroy(matrix);
    qn_weight_destroy(conv);
    qn_ctx_destroy(ctx);
}

static void test_bad_arguments(void **state)
{
    (void)state;
    struct ranks alone = {.rank = 0, .n = 1};
    struct scene s;
    qn_parallel *plan = NULL;
    scene_make(&s, &alone, QN_SPLIT_ROW);
    qn_parallel_args args = s.args;
    assert_error(qn_parallel_plan(NULL, &args, &plan, &err), QN_E_ARGUMENT, "ctx is NULL");
    args.comm = NULL;
    assert_error(qn_parallel_plan(s.ctx, &args, &plan, &err), QN_E_ARGUMENT, "comm is NULL");
    args = s.args;
    qn_comm comm = s.comm;
    args.comm = &comm;
    comm.rank = 1;
    assert_error(qn_parallel_plan(s.ctx, &args, &plan, &err), QN_E_ARGUMENT, "rank 1 of 1");
    comm.n_ranks = 2;
    comm.wait = ranks_wait;
    assert_error(qn_parallel_plan(s.ctx, &args, &plan, &err), QN_E_ARGUMENT,
                 "all_gather_begin is NULL");
    comm.wait = NULL;
    comm.all_reduce = NULL;
    assert_error(qn_parallel_plan(s.ctx, &args, &plan, &err), QN_E_ARGUMENT, "all_reduce is NULL");
    args = s.args;
    args.gather_y = 1;
    assert_error(qn_parallel_plan(s.ctx, &args, &plan, &err), QN_E_ARGUMENT, "gather_y");
    args = s.args;
    args.sum_order = 3;
    assert_error(qn_parallel_plan(s.ctx, &args, &plan, &err), QN_E_ARGUMENT, "sum_order is 3");
    args = s.args;
    qn_matmul_args prepared = s.matmul;
    prepared.prepared = &s;
    args.matmul = &prepared;
    assert_error(qn_parallel_plan(s.ctx, &args, &plan, &err), QN_E_UNSUPPORTED, "prepared");
    args = s.args;
    args.matmul = NULL;
    assert_error(qn_parallel_plan(s.ctx, &args, &plan, &err), QN_E_ARGUMENT, "NULL");
    assert_null(plan);
    assert_ok(qn_parallel_plan(s.ctx, &s.args, &plan, NULL));
    static char text[32768];
    assert_true(qn_parallel_explain(plan, text, sizeof text) < sizeof text);
    assert_non_null(strstr(text, "split by row"));
    assert_non_null(strstr(text, "in order of rank"));
    assert_non_null(strstr(text, "own product"));
    assert_true(qn_parallel_explain(plan, text, 10) > 10 && strlen(text) == 9);
    assert_true(qn_parallel_predict(plan) == 0.0 && qn_parallel_predict(NULL) == 0.0);
    assert_error(qn_parallel_run(NULL, &s.args, NULL, 0, &err), QN_E_ARGUMENT, "plan is NULL");
    assert_error(qn_parallel_run(plan, &s.args, NULL, 0, &err), QN_E_SCRATCH, "scratch has 0");
    qn_parallel_destroy(plan);
    qn_parallel_destroy(NULL);
    qn_packed_destroy(s.packed);
    qn_weight_destroy(s.shard);
    qn_ctx_destroy(s.ctx);
    free(s.x);
    free(s.y);
}

/* No memory at any moment of planning: a status, and nothing is lost. */
static void test_no_memory(void **state)
{
    (void)state;
    struct ranks alone = {.rank = 0, .n = 1};
    struct scene s;
    scene_make(&s, &alone, QN_SPLIT_ROW);
    qn_status status = QN_E_MEMORY;
    for (int64_t refuse = 1; status == QN_E_MEMORY; refuse++) {
        struct counter counter = {.refuse = 0};
        qn_ctx_options options;
        qn_ctx *ctx = NULL;
        options_counted(&options, &counter);
        options.n_threads = 1;
        assert_ok(qn_ctx_create(&options, &ctx, NULL));
        const int64_t live = counter.live;
        counter.refuse = counter.calls + refuse;
        qn_parallel *plan = NULL;
        status = qn_parallel_plan(ctx, &s.args, &plan, NULL);
        assert_true((status == QN_OK) == (plan != NULL));
        assert_true(status == QN_OK || status == QN_E_MEMORY);
        qn_parallel_destroy(plan);
        assert_true(counter.live == live);
        assert_true(status != QN_OK || refuse > 2);
        qn_ctx_destroy(ctx);
    }
    qn_packed_destroy(s.packed);
    qn_weight_destroy(s.shard);
    qn_ctx_destroy(s.ctx);
    free(s.x);
    free(s.y);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_shard_ranges),
        cmocka_unit_test(test_bad_shards),
        cmocka_unit_test(test_bad_arguments),
        cmocka_unit_test(test_no_memory),
        cmocka_unit_test(test_column_has_the_bits_of_one_process),
        cmocka_unit_test(test_row_of_int8_has_the_bits_of_one_process),
        cmocka_unit_test(test_row_in_order_is_the_same_on_all_ranks),
        cmocka_unit_test(test_experts_over_ranks),
#ifndef QN_TEST_MPI
        cmocka_unit_test(test_overlap_has_the_same_bits),
        cmocka_unit_test(test_a_killed_rank_ends_the_others),
#endif
        cmocka_unit_test(test_the_time_of_exchanges_is_predicted),
        cmocka_unit_test(test_ranks_that_differ_are_named),
        cmocka_unit_test(test_a_refused_run_ends_on_all_ranks),
    };
#ifdef QN_TEST_MPI
    return ranks_end(cmocka_run_group_tests(tests, NULL, NULL));
#else
    return cmocka_run_group_tests(tests, NULL, NULL);
#endif
}
