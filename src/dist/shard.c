/* SPDX-License-Identifier: Apache-2.0 */
/* Which part of a weight a rank has. Codes and scales are copied, never computed again. */
#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "../quant/canonical.h"
#include <quern/parallel.h>

const char *qn_split_name(qn_split split)
{
    return split == QN_SPLIT_COLUMN ? "column" : split == QN_SPLIT_ROW ? "row" : "?";
}

qn_status qn_shard_range(int64_t extent, int64_t unit, int32_t rank, int32_t n_ranks,
                         int64_t *first, int64_t *count)
{
    if (extent < 0 || unit < 1 || n_ranks < 1 || rank < 0 || rank >= n_ranks || first == NULL ||
        count == NULL)
        return QN_E_ARGUMENT;
    const int64_t units = qni_ceil_div(extent, unit);
    const int64_t each = units / n_ranks, more = units % n_ranks;
    const int64_t begin = rank * each + qni_min(rank, more);
    const int64_t end = begin + each + (rank < more ? 1 : 0);
    /* Only the last unit reaches beyond the extent. */
    *first = begin == units ? extent : begin * unit;
    *count = (end == units ? extent : end * unit) - *first;
    return QN_OK;
}

/* What k is dealt out in. */
static int64_t unit_of_k(const qn_format *f)
{
    const int64_t unit = f->group > 0 ? f->group : 1;
    return f->group > 0 && f->superblock > 0 ? unit * f->superblock : unit;
}

/* The positions along k that a rank has, in the order of codes. */
static qn_status range_of_k(const struct qn_weight *w, int32_t rank, int32_t n_ranks,
                            int64_t *first, int64_t *count, qn_error *err)
{
    if (w->k != w->ci || w->conv_groups > 1)
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "a convolution's weight is cut by column, along its outputs only");
    return qn_shard_range(w->k, unit_of_k(&w->format), rank, n_ranks, first, count);
}

/* from: a weight, or a checkpoint. */
static qn_status check(const void *ctx, const void *from, const void *to, int32_t rank,
                       int32_t n_ranks, qn_error *err)
{
    if (ctx == NULL || from == NULL || to == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL",
                        ctx == NULL    ? "ctx"
                        : from == NULL ? "the weight or checkpoint"
                                       : "the place for the result");
    if (n_ranks < 1 || rank < 0 || rank >= n_ranks)
        return qni_fail(err, QN_E_ARGUMENT, "rank %d of %d: ranks are 0 to n_ranks - 1", rank,
                        n_ranks);
    return QN_OK;
}

/* One group an output: any column can be cut off, and the order of codes stays what it is. */
static bool is_cut_by_position(const struct qn_weight *w)
{
    return w->perm != NULL && w->n_groups > 1;
}

qn_status qn_weight_shard(const qn_ctx *ctx, const qn_weight *weight, qn_split split, int32_t rank,
                          int32_t n_ranks, qn_weight **shard, qn_error *err)
{
    int64_t first, count;
    if (shard != NULL)
        *shard = NULL;
    QNI_TRY(check(ctx, weight, shard, rank, n_ranks, err));
    if (split == QN_SPLIT_COLUMN) {
        const int64_t unit = weight->conv_groups > 1 ? weight->n / weight->conv_groups : 1;
        QNI_TRY(qn_shard_range(weight->n, qni_max(unit, 1), rank, n_ranks, &first, &count));
        if (count == 0 && weight->conv_groups > 1)
            return qni_fail(err, QN_E_UNSUPPORTED,
                            "rank %d of %d would have none of the %d convolution groups", rank,
                            n_ranks, weight->conv_groups);
        return qn_weight_slice(ctx, weight, first, count, 0, weight->k, shard, err);
    }
    if (split != QN_SPLIT_ROW)
        return qni_fail(err, QN_E_ARGUMENT, "split is %d: see qn_split", split);
    QNI_TRY(range_of_k(weight, rank, n_ranks, &first, &count, err));
    if (is_cut_by_position(weight))
        return qni_weight_slice_positions(ctx, weight, first, count, shard, err);
    return qn_weight_slice(ctx, weight, 0, weight->n, first, count, shard, err);
}

qn_status qn_weight_shard_columns(const qn_weight *weight, int32_t rank, int32_t n_ranks,
                                  int32_t *columns, int64_t capacity, int64_t *count, qn_error *err)
{
    int64_t first, n;
    QNI_TRY(check(weight, weight, count, rank, n_ranks, err));
    QNI_TRY(range_of_k(weight, rank, n_ranks, &first, &n, err));
    *count = n;
    if (columns == NULL && capacity == 0)
        return QN_OK;
    if (columns == NULL || capacity < n)
        return qni_fail(err, QN_E_ARGUMENT, "columns has room for %lld of %lld columns",
                        columns == NULL ? 0LL : (long long)capacity, (long long)n);
    for (int64_t i = 0; i < n; i++)
        columns[i] = is_cut_by_position(weight) ? weight->perm[first + i] : (int32_t)(first + i);
    return QN_OK;
}

/* ---- from a checkpoint ----------------------------------------------------------------------- */

struct source {
    const qn_ctx *ctx;
    const qn_checkpoint *checkpoint;
    int64_t i;
};

static qn_status load(const struct source *s, int64_t first_n, int64_t n, int64_t first_k,
                      int64_t k, qn_weight **weight, qn_error *err)
{
    const qn_rectangle range = {first_n, n, first_k, k};
    return qn_checkpoint_load_part(s->ctx, s->checkpoint, s->i, &range, weight, NULL, err);
}

/* Loads the same outputs of every expert, one expert below the other. */
static qn_status load_experts(const struct source *s, const qn_module *m, int64_t first,
                              int64_t count, qn_weight **shard, qn_error *err)
{
    const size_t bytes = (size_t)m->experts * sizeof(qn_weight *);
    qn_weight **const each = qni_alloc_zero(&s->ctx->allocator, bytes);
    qn_status status = QN_OK;
    if (each == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for a list of %lld experts",
                        (long long)m->experts);
    for (int64_t e = 0; status == QN_OK && e < m->experts; e++)
        status = load(s, e * (m->n / m->experts) + first, count, 0, -1, &each[e], err);
    if (status == QN_OK)
        status = qn_weight_concat(s->ctx, (int32_t)m->experts, (const qn_weight *const *)each,
                                  shard, err);
    for (int64_t e = 0; e < m->experts; e++)
        qn_weight_destroy(each[e]);
    qni_free(&s->ctx->allocator, each, bytes);
    return status;
}

static qn_status load_whole(const struct source *s, qn_split split, int32_t rank, int32_t n_ranks,
                            qn_weight **shard, qn_error *err)
{
    qn_weight *whole = NULL;
    qn_status status = load(s, 0, -1, 0, -1, &whole, err);
    if (status == QN_OK)
        status = qn_weight_shard(s->ctx, whole, split, rank, n_ranks, shard, err);
    qn_weight_destroy(whole);
    return status;
}

static qn_status load_shard(const struct source *s, const qn_module *m, qn_split split,
                            int32_t rank, int32_t n_ranks, qn_weight **shard, qn_error *err)
{
    int64_t first, count;
    /* What qn_weight_shard() cuts otherwise, or refuses, it sees as a whole. */
    if (m->conv_groups > 1 || (split == QN_SPLIT_ROW && (m->has_perm || m->kh * m->kw > 1)))
        return load_whole(s, split, rank, n_ranks, shard, err);
    if (split == QN_SPLIT_ROW) {
        QNI_TRY(qn_shard_range(m->k, unit_of_k(&m->format), rank, n_ranks, &first, &count));
        return load(s, 0, -1, first, count, shard, err);
    }
    const int64_t experts = qni_max(1, m->experts);
    QNI_TRY(qn_shard_range(m->n / experts, 1, rank, n_ranks, &first, &count));
    return experts > 1 ? load_experts(s, m, first, count, shard, err)
                       : load(s, first, count, 0, -1, shard, err);
}

qn_status qn_checkpoint_load_shard(const qn_ctx *ctx, const qn_checkpoint *checkpoint, int64_t i,
                                   qn_split split, int32_t rank, int32_t n_ranks, qn_weight **shard,
                                   qn_error *err)
{
    const struct source s = {.ctx = ctx, .checkpoint = checkpoint, .i = i};
    qn_module m;
    if (shard != NULL)
        *shard = NULL;
    QNI_TRY(check(ctx, checkpoint, shard, rank, n_ranks, err));
    if (split != QN_SPLIT_COLUMN && split != QN_SPLIT_ROW)
        return qni_fail(err, QN_E_ARGUMENT, "split is %d: see qn_split", split);
    qn_module_init(&m);
    QNI_TRY(qn_checkpoint_module(checkpoint, i, &m, err));
    return load_shard(&s, &m, split, rank, n_ranks, shard, err);
}
