/* SPDX-License-Identifier: Apache-2.0 */
/* Parts of a weight, and weights joined to one: what tensor parallelism and fused projections (q,
 * k, v; gate, up) need. Codes, scales and shifts are copied, never computed again, so nothing is
 * rounded; what cannot be copied is refused. */
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "canonical.h"

/* The parts of a weight without its arrays, for a weight like it. */
static qn_weight_parts geometry_of(const struct qn_weight *w)
{
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    parts.format = w->format;
    parts.n = w->n;
    parts.k = w->k;
    parts.kh = w->kh;
    parts.kw = w->kw;
    parts.conv_groups = w->conv_groups;
    parts.table = w->table;
    return parts;
}

static void copy_columns(struct qn_weight *to, const struct qn_weight *from)
{
    const size_t bytes = (size_t)from->k * sizeof(float);
    if (from->perm != NULL)
        memcpy(to->perm, from->perm, bytes);
    if (from->prescale != NULL)
        memcpy(to->prescale, from->prescale, bytes);
}

/* Rows [first, first + n) of `from`, all of their k, to row `at` of a weight of the same k. */
static void copy_rows(struct qn_weight *to, int64_t at, const struct qn_weight *from, int64_t first,
                      int64_t n)
{
    const size_t groups = (size_t)(n * from->n_groups);
    const int64_t in = at * to->n_groups, out = first * from->n_groups;
    if (n == 0)
        return;
    if (from->k > 0)
        memcpy(to->codes + (size_t)at * qni_code_row_bytes(to),
               from->codes + (size_t)first * qni_code_row_bytes(from),
               (size_t)n * qni_code_row_bytes(from));
    memcpy(to->scale + in, from->scale + out, groups * sizeof(float));
    if (from->zero != NULL)
        memcpy(to->zero + in, from->zero + out, groups * sizeof(int32_t));
    if (from->offset != NULL)
        memcpy(to->offset + in, from->offset + out, groups * sizeof(float));
}

static void copy_supers(struct qn_weight *to, int64_t at, const struct qn_weight *from,
                        int64_t first, int64_t n)
{
    const size_t supers = (size_t)(n * from->n_supers) * sizeof(float);
    const size_t subs = (size_t)(n * from->n_groups) * sizeof(int16_t);
    if (n == 0 || to->super_scale == NULL)
        return;
    memcpy(to->super_scale + at * to->n_supers, from->super_scale + first * from->n_supers, supers);
    memcpy(to->sub_scale + at * to->n_groups, from->sub_scale + first * from->n_groups, subs);
    if (from->sub_min == NULL)
        return;
    memcpy(to->super_min + at * to->n_supers, from->super_min + first * from->n_supers, supers);
    memcpy(to->sub_min + at * to->n_groups, from->sub_min + first * from->n_groups, subs);
}

/* What a weight has by column. */
struct columns {
    bool has_perm, has_prescale;
};

static struct columns columns_of(const struct qn_weight *w)
{
    return (struct columns){w->perm != NULL, w->prescale != NULL};
}

/* qni_weight_alloc(), with room for super_scale and its kin if with_supers. */
static qn_status make_weight(const qn_ctx *ctx, const qn_weight_parts *parts,
                             const struct columns *columns, bool with_supers, struct qn_weight **w,
                             qn_error *err)
{
    QNI_TRY(
        qni_weight_alloc(&ctx->allocator, parts, columns->has_perm, columns->has_prescale, w, err));
    if (!with_supers || !qni_may_have_supers(&(*w)->format, (*w)->n, (*w)->n_groups))
        return QN_OK;
    const qn_status status = qni_weight_alloc_supers(*w, err);
    if (status != QN_OK) {
        qn_weight_destroy(*w);
        *w = NULL;
    }
    return status;
}

/* ---- slices ---------------------------------------------------------------------------------- */

/* The positions that a slice of k takes, in the order of codes, and the groups in which these lie.
 */
struct positions {
    int32_t *of;    /* [k] positions of the whole weight, rising */
    int64_t *group; /* [n_groups] groups of the whole weight, rising */
    int64_t k, n_groups;
    qn_format format;
};

/* Positions [first, first + k), which begin at the border of a group. */
static void take_positions(const struct qn_weight *w, int64_t first, struct positions *p)
{
    p->n_groups = 0;
    for (int64_t i = 0; i < p->k; i++) {
        const int64_t group = qni_group_of(&w->format, first + i, w->ci);
        p->of[i] = (int32_t)(first + i);
        if (p->n_groups == 0 || p->group[p->n_groups - 1] != group)
            p->group[p->n_groups++] = group;
    }
}

/* The positions of columns [first, first + k). Every group of the slice but its last must be whole,
 * so that its groups have one length. */
static qn_status find_positions(const struct qn_weight *w, int64_t first, struct positions *p,
                                qn_error *err)
{
    int64_t found = 0, in_group = 0;
    p->n_groups = 0;
    for (int64_t at = 0; at < w->k; at++) {
        const int64_t column = w->perm != NULL ? w->perm[at] : at;
        if (column < first || column >= first + p->k)
            continue;
        const int64_t group = qni_group_of(&w->format, at, w->ci);
        if (p->n_groups == 0 || p->group[p->n_groups - 1] != group) {
            if (p->n_groups > 0 && in_group != w->format.group)
                return qni_fail(err, QN_E_UNSUPPORTED,
                                "columns [%lld, %lld) take %lld of the %lld positions of group "
                                "%lld%s: a slice of k begins and ends at borders of groups",
                                (long long)first, (long long)(first + p->k), (long long)in_group,
                                (long long)w->format.group, (long long)p->group[p->n_groups - 1],
                                w->perm != NULL ? " (act-order)" : "");
            p->group[p->n_groups++] = group;
            in_group = 0;
        }
        in_group++;
        p->of[found++] = (int32_t)at;
    }
    return QN_OK;
}

/* Copies what group g of a row and its super-block have. */
static void gather_supers(struct qn_weight *to, int64_t row, int64_t g, const struct qn_weight *w,
                          int64_t from_row, int64_t from)
{
    const int64_t super = row * to->n_supers + g / to->format.superblock;
    const int64_t from_super = from_row * w->n_supers + from / w->format.superblock;
    to->super_scale[super] = w->super_scale[from_super];
    to->sub_scale[row * to->n_groups + g] = w->sub_scale[from_row * w->n_groups + from];
    if (w->sub_min == NULL)
        return;
    to->super_min[super] = w->super_min[from_super];
    to->sub_min[row * to->n_groups + g] = w->sub_min[from_row * w->n_groups + from];
}

/* Do the groups of every super-block of the slice come from one of the weight? */
static bool keeps_supers(const struct qn_weight *w, const struct positions *p)
{
    const int64_t super = w->format.superblock;
    for (int64_t g = 0; w->super_scale != NULL && g < p->n_groups; g++)
        if (p->group[g] / super != p->group[g - g % super] / super)
            return false;
    return w->super_scale != NULL;
}

static void gather_groups(struct qn_weight *to, const struct qn_weight *w, int64_t first_n,
                          const struct positions *p)
{
    const size_t each = qni_code_bytes(&w->format);
    for (int64_t row = 0; row < to->n; row++) {
        const uint8_t *codes = w->codes + (size_t)(first_n + row) * qni_code_row_bytes(w);
        uint8_t *const in_row = to->codes + (size_t)row * qni_code_row_bytes(to);
        for (int64_t i = 0; i < p->k && each == 1; i++)
            in_row[i] = codes[p->of[i]];
        for (int64_t i = 0; i < p->k && each > 1; i++)
            memcpy(in_row + (size_t)i * each, codes + (size_t)p->of[i] * each, each);
        for (int64_t g = 0; g < p->n_groups; g++) {
            const int64_t in = row * to->n_groups + g;
            const int64_t out = (first_n + row) * w->n_groups + p->group[g];
            to->scale[in] = w->scale[out];
            if (w->zero != NULL)
                to->zero[in] = w->zero[out];
            if (w->offset != NULL)
                to->offset[in] = w->offset[out];
            if (to->super_scale != NULL)
                gather_supers(to, row, g, w, first_n + row, p->group[g]);
        }
    }
}

/* The slice's own order of columns: those of x from first_k on, or as codes are ordered. */
static void gather_columns(struct qn_weight *to, const struct qn_weight *w, int64_t first_k,
                           const struct positions *p)
{
    for (int64_t i = 0; i < p->k; i++) {
        const int32_t at = p->of[i];
        if (to->perm != NULL)
            to->perm[i] = (int32_t)(w->perm[at] - first_k);
        if (to->prescale == NULL)
            continue;
        if (to->perm != NULL || w->perm == NULL)
            to->prescale[i] = w->prescale[first_k + i];
        else
            to->prescale[i] = w->prescale[w->perm[at]];
    }
}

/* by_position: k positions from first on, without a perm; else k columns. */
static qn_status slice_columns(const qn_ctx *ctx, const struct qn_weight *w, qn_weight_parts *parts,
                               int64_t first_n, int64_t first, bool by_position,
                               struct qn_weight **slice, qn_error *err)
{
    const size_t of_bytes = (size_t)parts->k * sizeof(int32_t);
    const size_t group_bytes = (size_t)w->n_groups * sizeof(int64_t);
    struct positions p = {.k = parts->k};
    p.of = qni_alloc(&ctx->allocator, of_bytes);
    p.group = qni_alloc(&ctx->allocator, group_bytes);
    qn_status status = QN_OK;
    if (p.of == NULL || p.group == NULL)
        status = qni_fail(err, QN_E_MEMORY, "no memory to cut a weight with");
    else if (by_position)
        take_positions(w, first, &p);
    else
        status = find_positions(w, first, &p, err);
    if (status == QN_OK)
        status = make_weight(
            ctx, parts, &(struct columns){!by_position && w->perm != NULL, w->prescale != NULL},
            keeps_supers(w, &p), slice, err);
    if (status == QN_OK) {
        gather_groups(*slice, w, first_n, &p);
        gather_columns(*slice, w, first, &p);
    }
    qni_free(&ctx->allocator, p.of, of_bytes);
    qni_free(&ctx->allocator, p.group, group_bytes);
    return status;
}

static qn_status check_range(const char *name, int64_t first, int64_t count, int64_t all,
                             qn_error *err)
{
    if (first < 0 || count < 0 || first > all || count > all - first)
        return qni_fail(err, QN_E_SHAPE, "%lld %s from %lld on leave the weight, which has %lld",
                        (long long)count, name, (long long)first, (long long)all);
    return QN_OK;
}

qn_status qn_weight_slice(const qn_ctx *ctx, const qn_weight *weight, int64_t first_n, int64_t n,
                          int64_t first_k, int64_t k, qn_weight **slice, qn_error *err)
{
    if (slice != NULL)
        *slice = NULL;
    if (ctx == NULL || weight == NULL || slice == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL",
                        ctx == NULL      ? "ctx"
                        : weight == NULL ? "weight"
                                         : "slice");
    QNI_TRY(check_range("outputs", first_n, n, weight->n, err));
    QNI_TRY(check_range("columns", first_k, k, weight->k, err));
    qn_weight_parts parts = geometry_of(weight);
    const int64_t co = weight->n / weight->conv_groups;
    const bool is_convolution = weight->k != weight->ci || weight->conv_groups > 1;
    parts.n = n;
    parts.k = k;
    if (is_convolution && k != weight->k)
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "a convolution's weight can be cut along its outputs only");
    if (weight->conv_groups > 1) {
        if (n == 0 || first_n % co != 0 || n % co != 0)
            return qni_fail(err, QN_E_UNSUPPORTED,
                            "outputs [%lld, %lld) cut a convolution group of %lld outputs",
                            (long long)first_n, (long long)(first_n + n), (long long)co);
        parts.conv_groups = (int32_t)(n / co);
    }
    if (k != weight->k)
        return slice_columns(ctx, weight, &parts, first_n, first_k, false, slice, err);
    const struct columns columns = columns_of(weight);
    QNI_TRY(make_weight(ctx, &parts, &columns, weight->super_scale != NULL, slice, err));
    copy_rows(*slice, 0, weight, first_n, n);
    copy_supers(*slice, 0, weight, first_n, n);
    copy_columns(*slice, weight);
    return QN_OK;
}

qn_status qni_weight_slice_positions(const qn_ctx *ctx, const struct qn_weight *weight,
                                     int64_t first, int64_t count, struct qn_weight **slice,
                                     qn_error *err)
{
    qn_weight_parts parts = geometry_of(weight);
    parts.k = count;
    return slice_columns(ctx, weight, &parts, 0, first, true, slice, err);
}

qn_status qn_weight_take(const qn_ctx *ctx, const qn_weight *weight, const int32_t *ids,
                         int64_t count, qn_weight **taken, qn_error *err)
{
    if (taken != NULL)
        *taken = NULL;
    if (ctx == NULL || weight == NULL || taken == NULL || (ids == NULL && count != 0))
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL",
                        ctx == NULL      ? "ctx"
                        : weight == NULL ? "weight"
                        : taken == NULL  ? "taken"
                                         : "ids");
    if (count < 0)
        return qni_fail(err, QN_E_ARGUMENT, "count is %lld", (long long)count);
    if (weight->conv_groups > 1)
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "the outputs of a convolution of %d groups cannot be taken one by one",
                        weight->conv_groups);
    for (int64_t i = 0; i < count; i++)
        if (ids[i] < 0 || ids[i] >= weight->n)
            return qni_fail(err, QN_E_VALUE, "ids[%lld] is %d: the weight has outputs 0 to %lld",
                            (long long)i, ids[i], (long long)weight->n - 1);
    qn_weight_parts parts = geometry_of(weight);
    parts.n = count;
    const struct columns columns = columns_of(weight);
    QNI_TRY(make_weight(ctx, &parts, &columns, weight->super_scale != NULL, taken, err));
    for (int64_t i = 0; i < count; i++) {
        copy_rows(*taken, i, weight, ids[i], 1);
        copy_supers(*taken, i, weight, ids[i], 1);
    }
    copy_columns(*taken, weight);
    return QN_OK;
}

/* ---- joined along n -------------------------------------------------------------------------- */

static bool same_bytes(const void *a, const void *b, size_t bytes)
{
    return (a == NULL) == (b == NULL) && (a == NULL || memcmp(a, b, bytes) == 0);
}

static qn_status refuse(const qn_weight *const *weights, int32_t i, qn_status status,
                        const char *what, qn_error *err)
{
    return qni_fail(err, status,
                    "weight %d of [%lld, %lld] cannot be joined to weight 0 of [%lld, %lld]: %s", i,
                    (long long)weights[i]->n, (long long)weights[i]->k, (long long)weights[0]->n,
                    (long long)weights[0]->k, what);
}

static bool same_format(const qn_format *a, const qn_format *b)
{
    return a->code == b->code && a->bits == b->bits && a->group == b->group &&
           a->blocks == b->blocks && a->shift == b->shift && a->scale_dtype == b->scale_dtype &&
           a->superblock == b->superblock && a->superbits == b->superbits;
}

static qn_status check_join(const qn_weight *const *weights, int32_t i, qn_error *err)
{
    const struct qn_weight *a = weights[0], *b = weights[i];
    const size_t columns = (size_t)a->k * sizeof(float);
    if (!same_format(&a->format, &b->format))
        return refuse(weights, i, QN_E_FORMAT, "the formats differ", err);
    if (a->k != b->k || a->kh != b->kh || a->kw != b->kw)
        return refuse(weights, i, QN_E_SHAPE, "they read other inputs", err);
    if ((a->conv_groups > 1 || b->conv_groups > 1) &&
        a->n / a->conv_groups != b->n / b->conv_groups)
        return refuse(weights, i, QN_E_SHAPE, "their convolution groups have other sizes", err);
    if (a->table != NULL && !same_bytes(a->table, b->table, sizeof(float) << a->format.bits))
        return refuse(weights, i, QN_E_VALUE, "the codebooks differ", err);
    if (!same_bytes(a->perm, b->perm, columns))
        return refuse(weights, i, QN_E_VALUE, "the orders of columns (act-order) differ", err);
    if (!same_bytes(a->prescale, b->prescale, columns))
        return refuse(weights, i, QN_E_VALUE, "the prescales differ", err);
    return QN_OK;
}

/* Weights of one scale a tensor each have a scale a row together, unless it is the same one. */
static void widen_per_tensor(const qn_weight *const *weights, int32_t count, qn_format *format)
{
    const struct qn_weight *first = NULL;
    for (int32_t i = 0; format->group == QN_GROUP_PER_TENSOR && i < count; i++) {
        const struct qn_weight *w = weights[i];
        if (w->n == 0)
            continue;
        first = first == NULL ? w : first;
        if (!same_bytes(w->scale, first->scale, sizeof(float)) ||
            !same_bytes(w->zero, first->zero, sizeof(int32_t)) ||
            !same_bytes(w->offset, first->offset, sizeof(float)))
            format->group = QN_GROUP_PER_CHANNEL;
    }
}

qn_status qn_weight_concat(const qn_ctx *ctx, int32_t count, const qn_weight *const *weights,
                           qn_weight **joined, qn_error *err)
{
    if (joined != NULL)
        *joined = NULL;
    if (ctx == NULL || weights == NULL || joined == NULL || count < 1)
        return qni_fail(err, QN_E_ARGUMENT, "ctx, weights or joined is NULL, or count is %d",
                        count);
    int64_t n = 0, conv_groups = 0;
    for (int32_t i = 0; i < count; i++) {
        if (weights[i] == NULL)
            return qni_fail(err, QN_E_ARGUMENT, "weight %d is NULL", i);
        QNI_TRY(check_join(weights, i, err));
        if (!qni_i64_add(n, weights[i]->n, &n))
            return qni_fail(err, QN_E_SHAPE, "the weights have more than 2^63 outputs together");
        conv_groups += weights[i]->conv_groups;
    }
    qn_weight_parts parts = geometry_of(weights[0]);
    parts.n = n;
    if (weights[0]->conv_groups > 1)
        parts.conv_groups = (int32_t)qni_min(conv_groups, INT32_MAX);
    widen_per_tensor(weights, count, &parts.format);
    bool with_supers = parts.format.superblock > 0;
    for (int32_t i = 0; i < count; i++)
        with_supers &= weights[i]->super_scale != NULL || weights[i]->n == 0;
    const struct columns columns = columns_of(weights[0]);
    QNI_TRY(make_weight(ctx, &parts, &columns, with_supers, joined, err));
    for (int64_t i = 0, at = 0; i < count; at += weights[i]->n, i++) {
        copy_rows(*joined, at, weights[i], 0, weights[i]->n);
        copy_supers(*joined, at, weights[i], 0, weights[i]->n);
    }
    copy_columns(*joined, weights[0]);
    return QN_OK;
}
