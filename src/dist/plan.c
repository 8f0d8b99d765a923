/* SPDX-License-Identifier: Apache-2.0 */
/* Planning a product over several ranks: every rank states what it was given, all compare, each
 * plans its own product, and all agree that it worked. Both exchanges happen on every path, so that
 * no rank waits for one that failed. */
#include <stdio.h>
#include <string.h>

#include "../api/check.h"
#include "../api/validate.h"
#include "../base/error.h"
#include "../base/half.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "product.h"

/* ---- what a rank states ---------------------------------------------------------------------- */

/* Facts that must be the same on all ranks: always, or of a row product alone. */
#define FACTS(always, row)                                                                         \
    always(split) always(gather_y) always(sum_order) always(is_trusted) always(strategy) always(m) \
        always(x_type) always(y_type) always(symmetric) always(x_zero) always(x_scale) always(act) \
            always(clamp_lo) always(clamp_hi) always(y_scale) always(y_zero)                       \
                always(residual_after) always(bias_type) always(residual_type)                     \
                    always(has_row_scale) always(has_col_scale) always(n_experts) row(n)
#define NAME(fact) FACT_##fact,
enum { FACTS(NAME, NAME) FACT_k, FACT_is_exact, FACT_scales, N_FACTS };
#undef NAME
struct statement {
    int64_t of[N_FACTS];
};
struct fact_name {
    const char *name;
    int32_t row_only;
};
#define ALWAYS(fact) {#fact, 0},
#define ROW(fact)    {#fact, 1},
static const struct fact_name fact_names[] = {FACTS(ALWAYS, ROW)};
enum { N_COMPARED = (int)(sizeof fact_names / sizeof *fact_names) };

/* A digest of the weights' scales (FNV-1a): int32 sums of ranks belong together only if all ranks
 * have the same. */
static int64_t digest(int64_t before, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    uint64_t hash = (uint64_t)before ^ 0xcbf29ce484222325u;
    for (size_t i = 0; i < bytes; i++)
        hash = (hash ^ at[i]) * 0x100000001b3u;
    return (int64_t)hash;
}

/* Can the rank's int32 sums be added to those of others, so that what one process computes comes
 * out? docs/numerics.md: weights of one group, in one segment, and shifts that are integers. */
static bool is_exact_weight(const qn_packed *w, const qn_matmul_args *a,
                            const struct qn_parallel_args *args)
{
    const struct qni_packed_head *const head = w->head;
    const bool is_raw = a->y.dtype == QN_I32 || a->epilogue.bias.dtype == QN_I32;
    if (head->n_groups > 1 || head->format.code != QN_CODE_INT ||
        head->section[QNI_SECTION_PRESCALE].bytes != 0)
        return false;
    if (a->strategy == QN_STRATEGY_INT8_STATIC && is_raw)
        return head->format.shift != QN_SHIFT_OFFSET; /* there is no other way */
    return args->sum_order == QN_SUM_EXACT && head->format.shift == QN_SHIFT_NONE &&
           (a->strategy == QN_STRATEGY_INT8_ROW || a->strategy == QN_STRATEGY_INT8_STATIC);
}

/* The weights of all experts, or the one there is. */
static const qn_packed *weight_of(const struct qni_parallel_job *job, int32_t i)
{
    return job->is_grouped ? job->grouped.w[i] : job->all.w;
}

static int32_t count_weights(const struct qni_parallel_job *job)
{
    return job->is_grouped ? job->grouped.n_experts : 1;
}

static bool is_exact_here(const struct qni_parallel_job *job, const struct qn_parallel_args *args)
{
    bool is_exact = true;
    for (int32_t i = 0; i < count_weights(job); i++)
        is_exact = is_exact && is_exact_weight(weight_of(job, i), &job->all, args);
    return is_exact;
}

static int64_t digest_scales(const struct qni_parallel_job *job)
{
    int64_t hash = 0;
    for (int32_t i = 0; i < count_weights(job); i++) {
        const qn_packed *const w = weight_of(job, i);
        hash = digest(hash, qni_section(w, QNI_SECTION_SCALE),
                      w->head->section[QNI_SECTION_SCALE].bytes);
    }
    return hash;
}

static int64_t bits_of(float f)
{
    return (int64_t)qni_bits_of(f);
}

static void state(struct statement *s, const struct qn_parallel_args *args,
                  const struct qni_parallel_job *job)
{
    const qn_matmul_args *const a = &job->all;
    const qn_epilogue *const e = &a->epilogue;
    const struct qni_packed_head *const head = a->w->head;
    int64_t *const of = s->of;
    of[FACT_split] = args->split;
    of[FACT_gather_y] = args->gather_y;
    of[FACT_sum_order] = args->sum_order;
    of[FACT_is_trusted] = args->is_trusted;
    of[FACT_strategy] = a->strategy;
    of[FACT_m] = a->y.shape[0];
    of[FACT_n_experts] = job->is_grouped ? job->grouped.n_experts : 0;
    of[FACT_n] = head->n;
    of[FACT_k] = head->k;
    of[FACT_x_type] = a->x.dtype;
    of[FACT_y_type] = a->y.dtype;
    of[FACT_symmetric] = a->quant.symmetric;
    of[FACT_x_zero] = a->quant.x_zero;
    of[FACT_x_scale] = bits_of(a->quant.x_scale);
    of[FACT_act] = e->act;
    of[FACT_clamp_lo] = bits_of(e->clamp_lo);
    of[FACT_clamp_hi] = bits_of(e->clamp_hi);
    of[FACT_y_scale] = bits_of(e->y_scale);
    of[FACT_y_zero] = e->y_zero;
    of[FACT_residual_after] = e->residual_after;
    of[FACT_bias_type] = qni_is_none(&e->bias) ? 0 : e->bias.dtype;
    of[FACT_residual_type] = qni_is_none(&e->residual) ? 0 : e->residual.dtype;
    of[FACT_has_row_scale] = !qni_is_none(&e->row_scale);
    of[FACT_has_col_scale] = !qni_is_none(&e->col_scale);
    of[FACT_is_exact] = args->split == QN_SPLIT_ROW && is_exact_here(job, args);
    of[FACT_scales] = of[FACT_is_exact] ? digest_scales(job) : 0;
}

/* ---- what all stated ------------------------------------------------------------------------- */

static qn_status compare(const struct statement *all, int32_t n_ranks, qn_error *err)
{
    const int64_t split = all[0].of[FACT_split];
    for (int32_t r = 1; r < n_ranks; r++) {
        for (int32_t f = 0; f < N_COMPARED; f++) {
            const int64_t a = all[0].of[f], b = all[r].of[f];
            if (a != b && (!fact_names[f].row_only || split == QN_SPLIT_ROW))
                return qni_fail(err, QN_E_PEER, "rank %d has %s %lld and rank 0 has %lld", r,
                                fact_names[f].name, (long long)b, (long long)a);
        }
        if (split == QN_SPLIT_COLUMN && all[r].of[FACT_k] != all[0].of[FACT_k])
            return qni_fail(err, QN_E_PEER, "rank %d has weights of k = %lld and rank 0 of %lld", r,
                            (long long)all[r].of[FACT_k], (long long)all[0].of[FACT_k]);
    }
    return QN_OK;
}

/* Sums over all of k stay within int32 and, unless they are what is asked for, in one segment. */
static bool fits_int32(const struct qn_parallel *p, const qn_matmul_args *a, bool is_raw)
{
    enum { SEGMENT = 32768 };
    const struct qni_packed_head *const head = a->w->head;
    const bool is_static = a->strategy == QN_STRATEGY_INT8_STATIC;
    const int64_t zero = is_static ? a->quant.x_zero - (a->x.dtype == QN_U8 ? 128 : 0) : 0;
    const int64_t x = qni_max(127 - zero, zero + 128);
    const int64_t w =
        ((int64_t)1 << (head->format.bits - 1)) + (head->format.shift == QN_SHIFT_ZERO ? 127 : 0);
    return p->k <= INT32_MAX / (x * w) && (is_raw || p->k <= SEGMENT);
}

static qn_status choose_exchange(struct qn_parallel *p, const struct statement *all,
                                 const struct qn_parallel_args *args, const qn_matmul_args *a,
                                 qn_error *err)
{
    const bool is_raw = a->y.dtype == QN_I32 || a->epilogue.bias.dtype == QN_I32;
    bool is_exact = true;
    p->exchange = args->gather_y ? QNI_EXCHANGE_Y : QNI_EXCHANGE_NOTHING;
    if (p->split == QN_SPLIT_COLUMN)
        return QN_OK;
    for (int32_t r = 0; r < p->comm.n_ranks; r++)
        is_exact = is_exact && all[r].of[FACT_is_exact] &&
                   all[r].of[FACT_scales] == all[0].of[FACT_scales];
    is_exact = is_exact && fits_int32(p, a, is_raw);
    if (is_raw && !is_exact)
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "int32 sums or biases of a row product need the same integer weights of "
                        "one group an output on all ranks, and a k (%lld) whose sums int32 holds",
                        (long long)p->k);
    p->exchange = is_exact                         ? QNI_EXCHANGE_INT32
                  : args->sum_order == QN_SUM_FAST ? QNI_EXCHANGE_FAST
                                                   : QNI_EXCHANGE_ORDERED;
    p->is_quantized = is_exact && a->strategy == QN_STRATEGY_INT8_ROW;
    p->by_columns =
        p->exchange == QNI_EXCHANGE_ORDERED && p->comm.n_ranks > 2 && p->comm.all_to_all != NULL;
    return QN_OK;
}

static void measure_ranks(struct qn_parallel *p, const struct statement *all)
{
    p->n = p->k = 0;
    for (int32_t r = 0; r < p->comm.n_ranks; r++) {
        p->first_n = r == p->comm.rank ? p->n : p->first_n;
        p->n += all[r].of[FACT_n];
        p->k += all[r].of[FACT_k];
        p->widest = qni_max(p->widest, all[r].of[FACT_n]);
    }
    if (p->split == QN_SPLIT_COLUMN) {
        p->k = p->own_k;
        return;
    }
    p->n = p->own_n;
    p->first_n = 0;
    p->widest = qni_ceil_div(p->n, p->comm.n_ranks);
}

/* ---- the rank's own product ------------------------------------------------------------------ */

/* One block of exchange is about this long: long enough for bandwidth, short enough to stay in the
 * cache between summing and finishing. */
enum { EXCHANGE_BYTES = 1 << 20 };

int64_t qni_parallel_chunk(const struct qn_parallel *p)
{
    const int64_t row_bytes = (int64_t)sizeof(float) * qni_max(1, p->n);
    const int64_t most = qni_max(p->m, 1);
    if (p->exchange == QNI_EXCHANGE_NOTHING)
        return most;
    return qni_min(most, qni_max(1, EXCHANGE_BYTES / row_bytes));
}

qn_status qni_parallel_lay_out(struct qn_parallel *p, qn_dtype y, qn_error *err)
{
    struct qni_parallel_scratch *const s = &p->scratch;
    const size_t ranks = (size_t)p->comm.n_ranks, rows = (size_t)p->chunk;
    const size_t element = p->exchange == QNI_EXCHANGE_Y ? qn_dtype_bytes(y) : sizeof(float);
    const bool sums = p->split == QN_SPLIT_ROW;
    const bool blocks = p->exchange == QNI_EXCHANGE_Y || p->exchange == QNI_EXCHANGE_ORDERED;
    const size_t columns =
        (size_t)(p->exchange == QNI_EXCHANGE_Y || p->by_columns ? p->widest : p->n);
    size_t at = 0;
    bool fits = qni_size_mul(rows, columns * element, &p->block_bytes);
    p->block_bytes = blocks && fits ? QNI_BLOCK_HEAD + qni_round_up(p->block_bytes, 64) : 0;
    fits = fits && qni_size_part(&at, sums ? rows * (size_t)p->n + 1 : 0, sizeof(float), &s->sums);
    p->overlaps = blocks && !p->by_columns && p->comm.n_ranks > 1 && p->chunk < p->m &&
                  p->comm.all_gather_begin != NULL;
    const size_t turns = p->overlaps ? 2 : 1; /* a chunk's blocks, and the next one's */
    fits = fits &&
           qni_size_part(&at, p->by_columns ? ranks : turns * blocks, p->block_bytes, &s->send);
    fits = fits && qni_size_part(&at, turns * ranks, p->block_bytes, &s->recv);
    fits = fits &&
           qni_size_part(&at, p->is_quantized ? (size_t)p->m + 1 : 0, sizeof(int32_t), &s->amax);
    fits = fits && qni_size_part(&at, p->is_quantized ? rows : 0, (size_t)p->own_k, &s->codes);
    fits = fits && qni_size_part(&at, 1, qn_plan_scratch_bytes(p->product), &s->product);
    s->bytes = at;
    return fits ? QN_OK : qni_fail(err, QN_E_SHAPE, "the exchange leaves the address space");
}

static void keep_scales(struct qn_parallel *p, const qn_packed *w, float *to)
{
    const void *const scale = qni_section(w, QNI_SECTION_SCALE);
    for (int64_t j = 0; scale != NULL && j < p->n; j++)
        to[j] = w->head->scale_dtype == QN_F16 ? qni_f32_from_f16(((const uint16_t *)scale)[j])
                                               : ((const float *)scale)[j];
}

static qn_status plan_own(struct qn_parallel *p, const struct qni_parallel_job *job, qn_error *err)
{
    const qn_matmul_args *const a = &job->all;
    p->chunk = qni_parallel_chunk(p);
    const qn_dtype sums = p->exchange == QNI_EXCHANGE_INT32 ? QN_I32 : QN_F32;
    qn_tensor y =
        qn_tensor_2d(NULL, p->split == QN_SPLIT_ROW ? sums : a->y.dtype, p->chunk, p->own_n);
    if (p->exchange == QNI_EXCHANGE_NOTHING)
        y = a->y;
    const int64_t rows = qni_min(p->chunk, p->m);
    const qn_matmul_args own = qni_parallel_product(p, a, 0, rows, &y);
    if (job->is_grouped) {
        const qn_grouped_args g = qni_parallel_experts_of(job, &own, 0, rows);
        QNI_TRY(qn_grouped_plan(p->ctx, &g, &p->product, err));
    } else {
        QNI_TRY(qn_matmul_plan(p->ctx, &own, &p->product, err));
    }
    for (int32_t i = 0; p->exchange == QNI_EXCHANGE_INT32 && i < count_weights(job); i++)
        keep_scales(p, weight_of(job, i), p->w_scale + i * p->n);
    return qni_parallel_lay_out(p, a->y.dtype, err);
}

/* ---- planning -------------------------------------------------------------------------------- */

qn_status qni_parallel_check_comm(const qn_comm *given, qn_comm *own, qn_error *err)
{
    qn_comm_init(own);
    if (given == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "comm is NULL");
    QNI_TRY(qni_sized_read(own, sizeof *own, given, err));
    if (own->n_ranks < 1 || own->rank < 0 || own->rank >= own->n_ranks)
        return qni_fail(err, QN_E_ARGUMENT, "comm: rank %d of %d ranks", own->rank, own->n_ranks);
    if (own->n_ranks > 1 && (own->all_gather == NULL || own->all_reduce == NULL))
        return qni_fail(err, QN_E_ARGUMENT, "comm: %s is NULL",
                        own->all_gather == NULL ? "all_gather" : "all_reduce");
    if ((own->all_gather_begin == NULL) != (own->wait == NULL))
        return qni_fail(err, QN_E_ARGUMENT, "comm: %s is NULL and %s is not",
                        own->wait == NULL ? "wait" : "all_gather_begin",
                        own->wait == NULL ? "all_gather_begin" : "wait");
    return QN_OK;
}

/* What can be said of the arguments without the other ranks. */
static qn_status check_own(const qn_ctx *ctx, const qn_parallel_args *args,
                           struct qni_parallel_job *job, qn_error *err)
{
    const qn_matmul_args *const a = &job->all;
    QNI_TRY(qni_parallel_read(args, job, err));
    QNI_TRY(qni_parallel_check_experts(job, err));
    if (ctx->device.kind != QN_CPU)
        return qni_fail(err, QN_E_UNSUPPORTED, "products over several ranks run on the CPU");
    QNI_TRY(qni_check_flag(args->gather_y, "gather_y", err));
    QNI_TRY(qni_check_flag(args->is_trusted, "is_trusted", err));
    if (args->split != QN_SPLIT_COLUMN && args->split != QN_SPLIT_ROW)
        return qni_fail(err, QN_E_ARGUMENT, "split is %d: see qn_split", args->split);
    if (args->sum_order < QN_SUM_EXACT || args->sum_order > QN_SUM_FAST)
        return qni_fail(err, QN_E_ARGUMENT, "sum_order is %d: see qn_sum_order", args->sum_order);
    if (a->more != NULL || a->prepared != NULL)
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "products over several ranks take neither prepared rows nor more of an "
                        "epilogue");
    if (args->split == QN_SPLIT_ROW && args->gather_y)
        return qni_fail(err, QN_E_ARGUMENT,
                        "gather_y is of column products: every rank of a row "
                        "product has all of y");
    QNI_TRY(qni_parallel_check_prepared(args, a, err));
    /* Gathered outputs are more than the rank's own: checked when those of others are known. */
    qn_matmul_args plain = *a;
    if (args->split == QN_SPLIT_COLUMN && args->gather_y && a->w != NULL) {
        QNI_TRY(qni_check_tensor(ctx, &a->y, "y", 2, ~0u, err));
        plain.y = qn_tensor_2d(NULL, a->y.dtype, a->y.shape[0], a->w->head->n);
        plain.epilogue.residual = qn_tensor_none();
    }
    return qni_parallel_validate(ctx, job, &plain, QNI_WITHOUT_DATA, err);
}

static qn_status check_gathered(const struct qn_parallel *p, const qn_matmul_args *a, qn_error *err)
{
    const int64_t shape[2] = {p->m, p->n};
    if (p->exchange != QNI_EXCHANGE_Y)
        return QN_OK;
    QNI_TRY(qni_check_shape(&a->y, "y", shape, err));
    QNI_TRY(qni_check_output(&a->y, "y", err));
    if (qni_is_none(&a->epilogue.residual))
        return QN_OK;
    QNI_TRY(qni_check_tensor(p->ctx, &a->epilogue.residual, "residual", 2, QNI_FLOATS, err));
    return qni_check_shape(&a->epilogue.residual, "residual", shape, err);
}

static qn_status make(const qn_ctx *ctx, const qn_comm *comm, const qn_parallel_args *args,
                      const struct qni_parallel_job *job, const struct statement *all,
                      qn_parallel **plan, qn_error *err)
{
    const qn_matmul_args *const a = &job->all;
    const struct qni_packed_head *const head = a->w->head;
    const size_t scales = (size_t)count_weights(job) * (size_t)head->n;
    const size_t bytes = sizeof(qn_parallel) + scales * sizeof(float);
    qn_parallel *p = qni_alloc_zero(&ctx->allocator, bytes);
    if (p == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for a plan of %zu bytes", bytes);
    *plan = p;
    p->ctx = ctx;
    p->bytes = bytes;
    p->comm = *comm;
    p->split = args->split;
    p->sum_order = args->sum_order;
    p->is_trusted = args->is_trusted;
    p->n_experts = job->is_grouped ? job->grouped.n_experts : 0;
    p->m = a->y.shape[0];
    p->own_n = head->n;
    p->own_k = head->k;
    measure_ranks(p, all);
    QNI_TRY(choose_exchange(p, all, args, a, err));
    QNI_TRY(check_gathered(p, a, err));
    return plan_own(p, job, err);
}

static qn_status plan_together(const qn_ctx *ctx, const qn_comm *comm, const qn_parallel_args *args,
                               struct statement *all, qn_parallel **plan, qn_error *err)
{
    struct qni_parallel_job job;
    struct statement own;
    memset(&own, 0, sizeof own);
    qn_status status = check_own(ctx, args, &job, err);
    if (status == QN_OK && all == NULL)
        status = qni_fail(err, QN_E_MEMORY, "no memory to plan with");
    QNI_TRY(qni_parallel_agree(comm, status, NULL, "planning", err));
    state(&own, args, &job);
    if (comm->n_ranks == 1)
        *all = own;
    else
        QNI_TRY(comm->all_gather(comm->arg, &own, sizeof own, all, err));
    QNI_TRY(compare(all, comm->n_ranks, err)); /* says the same on every rank */
    status = make(ctx, comm, args, &job, all, plan, err);
    return qni_parallel_agree(comm, status, NULL, "planning", err);
}

qn_status qn_parallel_plan(const qn_ctx *ctx, const qn_parallel_args *args, qn_parallel **plan,
                           qn_error *err)
{
    qn_parallel_args own;
    qn_comm comm;
    qn_parallel_args_init(&own);
    if (ctx == NULL || plan == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL", ctx == NULL ? "ctx" : "plan");
    *plan = NULL;
    QNI_TRY(qni_sized_read(&own, sizeof own, args, err));
    QNI_TRY(qni_parallel_check_comm(own.comm, &comm, err));
    const size_t bytes = (size_t)comm.n_ranks * sizeof(struct statement);
    struct statement *const all = qni_alloc(&ctx->allocator, bytes);
    const qn_status status = plan_together(ctx, &comm, &own, all, plan, err);
    qni_free(&ctx->allocator, all, bytes);
    if (status != QN_OK) {
        qn_parallel_destroy(*plan);
        *plan = NULL;
    }
    return status;
}

void qn_parallel_destroy(qn_parallel *plan)
{
    if (plan == NULL)
        return;
    qn_plan_destroy(plan->product);
    qni_free(&plan->ctx->allocator, plan, plan->bytes);
}

size_t qn_parallel_scratch_bytes(const qn_parallel *plan)
{
    return plan == NULL ? 0 : plan->scratch.bytes;
}
