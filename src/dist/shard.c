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

/* The positions along k that a rank has, in the order of codes. */
static qn_status range_of_k(const struct qn_weight *w, int32_t rank, int32_t n_ranks,
                            int64_t *first, int64_t *count, qn_error *err)
{
    const qn_format *f = &w->format;
    if (w->k != w->ci || w->conv_groups > 1)
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "a convolution's weight is cut by column, along its outputs only");
    int64_t unit = f->group > 0 ? f->group : 1;
    if (f->group > 0 && f->superblock > 0)
        unit *= f->superblock;
    return qn_shard_range(w->k, unit, rank, n_ranks, first, count);
}

static qn_status check(const void *ctx, const qn_weight *weight, const void *to, int32_t rank,
                       int32_t n_ranks, qn_error *err)
{
    if (ctx == NULL || weight == NULL || to == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL",
                        ctx == NULL      ? "ctx"
                        : weight == NULL ? "weight"
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
