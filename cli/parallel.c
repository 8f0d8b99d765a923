/* SPDX-License-Identifier: Apache-2.0 */
/* quern bench --parallel: a product, or the two of a feed-forward block, over the processes of
 * mpirun. Strong scaling: the same problem on all of them; weak: a problem as many times as large
 * as there are processes. The time is that of the slowest; what is not the process's own products
 * is communication, and waiting for the slowest. */
#include <stdlib.h>
#include <string.h>

#include "measure.h"
#include "problem.h"
#include "ranks.h"
#include "term.h"

enum { MOST_LAYERS = 2 };

/* One product over all ranks, and the rank's own part of it alone. */
struct layer_run {
    qn_packed *shard;
    qn_matmul_args args;
    qn_parallel_args parallel;
    qn_parallel *plan;
    qn_matmul_args own_args;
    qn_plan *own;
    float *partial;
};

struct bench {
    qn_ctx *ctx;
    const qn_comm *comm;
    const char *way;
    double min_time;
    int is_json;
    struct table *table;
    char *command;
    char machine[192];
};

struct job {
    struct layer_run layers[MOST_LAYERS];
    int n_layers;
    int64_t m, n, k; /* of a block: k, n, and k again */
    float *x, *hidden, *y;
    void *scratch;
    size_t scratch_bytes;
};

struct figures {
    double all, product; /* seconds of the slowest process */
    double predicted;    /* of communication; 0: unknown */
};

/* ---- making ---------------------------------------------------------------------------------- */

static qn_status make_plans(const struct bench *b, const struct problem *p, struct layer_run *l,
                            int64_t own_n, qn_error *err)
{
    l->args.strategy = p->strategy;
    l->parallel.comm = b->comm;
    l->parallel.matmul = &l->args;
    qn_status status = qn_parallel_plan(b->ctx, &l->parallel, &l->plan, err);
    if (status != QN_OK)
        return status;
    l->own_args = l->args;
    l->own_args.w = l->shard;
    l->own_args.y = qn_tensor_2d(l->partial, QN_F32, l->args.x.shape[0], own_n);
    qn_epilogue_init(&l->own_args.epilogue);
    return qn_matmul_plan(b->ctx, &l->own_args, &l->own, err);
}

/* Weights of n outputs and k columns, of which this rank keeps its shard. */
static int make_shard(const struct bench *b, const struct problem *p, int64_t n, int64_t k,
                      qn_split split, struct layer_run *l, qn_weight_parts *own)
{
    struct problem whole = *p;
    struct workload w;
    qn_weight *shard = NULL;
    qn_error err = {0};
    whole.n = n;
    whole.k = k;
    int status = workload_weights(&w, b->ctx, &whole);
    if (status != 0)
        return status;
    qn_weight_parts_init(own);
    qn_status made =
        qn_weight_shard(b->ctx, w.weights[0], split, b->comm->rank, b->comm->n_ranks, &shard, &err);
    if (made == QN_OK)
        made = qn_weight_view(shard, own);
    if (made == QN_OK)
        made = qn_pack(b->ctx, shard, NULL, &l->shard, &err);
    qn_weight_destroy(shard);
    workload_free(&w);
    return made == QN_OK ? 0 : complain_status("the shard", made, &err);
}

/* The columns of x, [m, k], that a row shard multiplies: a range, since these weights have no
 * act-order. */
static qn_tensor columns_of(const struct bench *b, float *x, int64_t m, int64_t k, int64_t own_k,
                            int64_t unit)
{
    int64_t first = 0, count = 0;
    (void)qn_shard_range(k, unit, b->comm->rank, b->comm->n_ranks, &first, &count);
    qn_tensor t = qn_tensor_2d(x + first, QN_F32, m, own_k);
    t.stride[0] = k;
    return t;
}

static int64_t unit_of(const qn_format *f)
{
    const int64_t group = f->group > 0 ? f->group : 1;
    return f->group > 0 && f->superblock > 0 ? group * f->superblock : group;
}

static int job_make(const struct bench *b, const struct problem *p, int64_t n, int64_t k,
                    struct job *j)
{
    const int is_block = strcmp(b->way, "block") == 0, is_row = strcmp(b->way, "row") == 0;
    const int64_t m = p->m, out = is_block ? k : n;
    qn_weight_parts own;
    qn_error err = {0};
    memset(j, 0, sizeof *j);
    j->m = m;
    j->n = n;
    j->k = k;
    j->n_layers = is_block ? 2 : 1;
    j->x = must_alloc(sizeof(float) * (size_t)(m * k + 1));
    j->y = must_alloc(sizeof(float) * (size_t)(m * out + 1));
    random_activations(7, m * k, k, j->x);
    for (int i = 0; i < j->n_layers; i++) {
        struct layer_run *const l = &j->layers[i];
        const int is_second = i == 1;
        const qn_split split = is_second || is_row ? QN_SPLIT_ROW : QN_SPLIT_COLUMN;
        int status = make_shard(b, p, is_second ? k : n, is_second ? n : k, split, l, &own);
        if (status != 0)
            return status;
        qn_matmul_args_init(&l->args);
        qn_parallel_args_init(&l->parallel);
        l->args.w = l->shard;
        l->parallel.split = split;
        l->parallel.gather_y = split == QN_SPLIT_COLUMN && !is_block;
        l->partial = must_alloc(sizeof(float) * (size_t)(m * own.n + 1));
        l->args.x = is_second               ? qn_tensor_2d(j->hidden, QN_F32, m, own.k)
                    : split == QN_SPLIT_ROW ? columns_of(b, j->x, m, k, own.k, unit_of(&own.format))
                                            : qn_tensor_2d(j->x, QN_F32, m, k);
        l->args.y = qn_tensor_2d(j->y, QN_F32, m, is_second ? k : n);
        if (is_block && !is_second) {
            /* The hidden values of this rank are what the row shard behind it reads. */
            j->hidden = must_alloc(sizeof(float) * (size_t)(m * own.n + 1));
            l->args.y = qn_tensor_2d(j->hidden, QN_F32, m, own.n);
            l->args.epilogue.act = QN_ACT_SILU;
        }
        const qn_status planned = make_plans(b, p, l, own.n, &err);
        if (planned != QN_OK)
            return complain_status("--parallel", planned, &err);
        const size_t here = qn_parallel_scratch_bytes(l->plan),
                     alone = qn_plan_scratch_bytes(l->own);
        const size_t most = here > alone ? here : alone;
        j->scratch_bytes = most > j->scratch_bytes ? most : j->scratch_bytes;
    }
    j->scratch = must_align(j->scratch_bytes + 64);
    return 0;
}

static void job_free(struct job *j)
{
    for (int i = 0; i < MOST_LAYERS; i++) {
        qn_parallel_destroy(j->layers[i].plan);
        qn_plan_destroy(j->layers[i].own);
        qn_packed_destroy(j->layers[i].shard);
        free(j->layers[i].partial);
    }
    free(j->x);
    free(j->hidden);
    free(j->y);
    free(j->scratch);
}

/* ---- measuring ------------------------------------------------------------------------------- */

static qn_status run_all(const struct job *j, qn_error *err)
{
    qn_status status = QN_OK;
    for (int i = 0; i < j->n_layers && status == QN_OK; i++)
        status = qn_parallel_run(j->layers[i].plan, &j->layers[i].parallel, j->scratch,
                                 j->scratch_bytes, err);
    return status;
}

static qn_status run_own(const struct job *j, qn_error *err)
{
    qn_status status = QN_OK;
    for (int i = 0; i < j->n_layers && status == QN_OK; i++) {
        qn_matmul_args args = j->layers[i].own_args;
        args.error = err;
        status = qn_matmul_run(j->layers[i].own, &args, j->scratch, j->scratch_bytes);
    }
    return status;
}

static int before(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Medians of as many rounds on every rank, each of both in turn; begun together. */
static qn_status measure(const struct bench *b, const struct job *j, struct figures *f,
                         qn_error *err)
{
    enum { LEAST = 5, MOST = 2001 };
    double *const all = must_alloc(2 * MOST * sizeof *all), *const own = all + MOST;
    double rounds = 0, first = seconds_now();
    qn_status status = run_all(j, err);
    if (status == QN_OK)
        status = run_own(j, err);
    first = seconds_now() - first;
    if (status == QN_OK)
        status = ranks_slowest(b->comm, &first, err);
    rounds = b->min_time / (first > 1e-7 ? first : 1e-7);
    const int n = rounds < LEAST ? LEAST : rounds > MOST ? MOST : (int)rounds;
    for (int i = 0; i < n && status == QN_OK; i++) {
        double begin = seconds_now(), together = 0;
        status = ranks_slowest(b->comm, &together, err); /* all begin when all are here */
        if (status == QN_OK) {
            begin = seconds_now();
            status = run_all(j, err);
            all[i] = seconds_now() - begin;
        }
        begin = seconds_now();
        if (status == QN_OK)
            status = run_own(j, err);
        own[i] = seconds_now() - begin;
    }
    qsort(all, (size_t)n, sizeof *all, before);
    qsort(own, (size_t)n, sizeof *own, before);
    f->all = all[n / 2];
    f->product = own[n / 2];
    free(all);
    if (status == QN_OK)
        status = ranks_slowest(b->comm, &f->all, err);
    if (status == QN_OK)
        status = ranks_slowest(b->comm, &f->product, err);
    f->predicted = 0;
    for (int i = 0; i < j->n_layers; i++)
        f->predicted += qn_parallel_predict(j->layers[i].plan);
    return status;
}

/* ---- telling --------------------------------------------------------------------------------- */

static const struct column columns[] = {
    {"scaling", '<', 0, 0},   {"ranks", '>', 0, 0},      {"m", '>', 0, 0},
    {"n", '>', 0, 0},         {"k", '>', 0, 0},          {"one rank", '>', 0, 0},
    {"all", '>', 0, 0},       {"product", '>', 0, 0},    {"exchange", '>', 0, 0},
    {"predicted", '>', 0, 0}, {"efficiency", '>', 0, 0}, {"same y", '<', 0, 0},
    {NULL, 0, 0, 0}};

static void tell(const struct bench *b, const struct problem *p, const struct job *j,
                 const char *scaling, double one, const struct figures *f, const char *same)
{
    const int ranks = b->comm->n_ranks;
    const double exchange = f->all > f->product ? f->all - f->product : 0;
    const double efficiency = one / f->all / (strcmp(scaling, "strong") == 0 ? ranks : 1);
    char a[HUMAN];
    if (!b->is_json) {
        table_cell(b->table, PLAIN, "%s", scaling);
        table_cell(b->table, PLAIN, "%d", ranks);
        table_cell(b->table, PLAIN, "%lld", (long long)j->m);
        table_cell(b->table, PLAIN, "%lld", (long long)j->n);
        table_cell(b->table, PLAIN, "%lld", (long long)j->k);
        table_cell(b->table, PLAIN, "%s", human_time(one, a));
        table_cell(b->table, BOLD, "%s", human_time(f->all, a));
        table_cell(b->table, PLAIN, "%s", human_time(f->product, a));
        table_cell(b->table, PLAIN, "%s", human_time(exchange, a));
        table_cell(b->table, DIM, "%s", f->predicted > 0 ? human_time(f->predicted, a) : "-");
        table_cell(b->table, PLAIN, "%.0f %%", 100 * efficiency);
        table_cell(b->table, PLAIN, "%s", same);
        return;
    }
    cJSON *o = cJSON_CreateObject();
    cJSON_AddStringToObject(o, "op", "parallel");
    cJSON_AddStringToObject(o, "way", b->way);
    cJSON_AddStringToObject(o, "scaling", scaling);
    cJSON_AddNumberToObject(o, "ranks", ranks);
    cJSON_AddNumberToObject(o, "m", (double)j->m);
    cJSON_AddNumberToObject(o, "n", (double)j->n);
    cJSON_AddNumberToObject(o, "k", (double)j->k);
    cJSON_AddStringToObject(o, "weights", p->weights);
    cJSON_AddStringToObject(o, "strategy", qn_strategy_name(p->strategy));
    cJSON_AddNumberToObject(o, "us_one_rank", one * 1e6);
    cJSON_AddNumberToObject(o, "us_median", f->all * 1e6);
    cJSON_AddNumberToObject(o, "us_product", f->product * 1e6);
    cJSON_AddNumberToObject(o, "us_exchange", exchange * 1e6);
    cJSON_AddNumberToObject(o, "us_predicted_exchange", f->predicted * 1e6);
    cJSON_AddNumberToObject(o, "efficiency", efficiency);
    cJSON_AddStringToObject(o, "same_y", same);
    cJSON_AddNumberToObject(o, "latency_us", b->comm->latency_s * 1e6);
    cJSON_AddNumberToObject(o, "bytes_per_s", b->comm->bytes_per_s);
    cJSON_AddStringToObject(o, "version", qn_version());
    cJSON_AddStringToObject(o, "commit", qn_commit());
    cJSON_AddStringToObject(o, "machine", b->machine);
    cJSON_AddStringToObject(o, "command", b->command);
    json_print(o, 1);
}

/* "yes": bit for bit; else by how much it is away, of the largest. */
static void compare(const float *a, const float *b, int64_t count, char *text, size_t capacity)
{
    double most = 0, largest = 0;
    if (memcmp(a, b, (size_t)count * sizeof *a) == 0) {
        snprintf(text, capacity, "yes");
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const double d = (double)a[i] - (double)b[i], v = b[i] < 0 ? -(double)b[i] : (double)b[i];
        most = d > most ? d : -d > most ? -d : most;
        largest = v > largest ? v : largest;
    }
    snprintf(text, capacity, "within %.1e", largest > 0 ? most / largest : most);
}

static int bench_problem(struct bench *b, const struct problem *p)
{
    struct bench alone = *b;
    struct job whole, shared;
    struct figures one, f;
    qn_comm self;
    qn_error err = {0};
    char same[32] = "-";
    qn_comm_init(&self);
    alone.comm = &self;
    /* Every rank measures the whole problem alone, one after another: the others wait. */
    int status = job_make(&alone, p, p->n, p->k, &whole);
    qn_status ran = status == 0 ? QN_OK : QN_E_MEMORY;
    for (int32_t r = 0; r < b->comm->n_ranks && status == 0 && ran == QN_OK; r++) {
        double wait = 0;
        if (r == b->comm->rank)
            ran = measure(&alone, &whole, &one, &err);
        if (ran == QN_OK)
            ran = ranks_slowest(b->comm, &wait, &err);
    }
    for (int weak = 0; weak < 2 && status == 0 && ran == QN_OK; weak++) {
        const int64_t times = weak ? b->comm->n_ranks : 1;
        const int is_row = strcmp(b->way, "row") == 0;
        status = job_make(b, p, p->n * (is_row ? 1 : times), p->k * (is_row ? times : 1), &shared);
        if (status == 0)
            ran = measure(b, &shared, &f, &err);
        if (status == 0 && ran == QN_OK && b->comm->rank == 0) {
            if (!weak)
                compare(shared.y, whole.y, p->m * (strcmp(b->way, "block") == 0 ? p->k : p->n),
                        same, sizeof same);
            tell(b, p, &shared, weak ? "weak" : "strong", one.all, &f, weak ? "-" : same);
        }
        job_free(&shared);
    }
    job_free(&whole);
    return status != 0 ? status : ran == QN_OK ? 0 : complain_status("--parallel", ran, &err);
}

static int bench_all(struct bench *b, const struct args *args)
{
    struct problem_list list;
    int status = problems_from_args(args, &list);
    for (int i = 0; status == 0 && i < list.n; i++)
        status = list.items[i].op == OP_MATMUL
                     ? bench_problem(b, &list.items[i])
                     : complain(EXIT_USAGE, "--op matmul is possible",
                                "--parallel measures products of matrices");
    problems_free(&list);
    return status;
}

int bench_parallel(const struct args *args, const char *way)
{
    struct bench b = {.way = way, .min_time = 0.5, .is_json = args_has(args, "json")};
    struct ranks ranks;
    qn_error err = {0};
    int status = args_real(args, "min-time", 0, 3600, &b.min_time);
    if (status != 0)
        return status;
    status = ranks_open(args, &ranks);
    b.comm = &ranks.comm;
    if (status == 0)
        status = context_make(args, &b.ctx);
    if (status == 0 && device_of(b.ctx).kind != QN_CPU)
        status = complain(EXIT_USAGE, "--device cpu is possible", "--parallel measures on the CPU");
    if (status == 0) {
        const qn_status measured = ranks_measure(&ranks.comm, &err);
        status = measured == QN_OK ? 0 : complain_status("--parallel", measured, &err);
    }
    if (status == 0) {
        machine_words(b.ctx, b.machine, sizeof b.machine);
        b.command = args_words(args);
        b.table = table_create(columns);
        status = bench_all(&b, args);
        if (status == 0 && ranks.comm.rank == 0 && !b.is_json) {
            table_print(b.table);
            if (ranks.comm.n_ranks > 1)
                printf("an exchange of few bytes: %.1f us; of many: %.2f GB/s a process\n",
                       ranks.comm.latency_s * 1e6, ranks.comm.bytes_per_s / 1e9);
        }
        table_destroy(b.table);
        free(b.command);
    }
    qn_ctx_destroy(b.ctx);
    return ranks_close(&ranks, status);
}
