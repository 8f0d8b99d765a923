/* SPDX-License-Identifier: Apache-2.0 */
/* Act-order: g_idx names the group of each column of x. The positions of a weight are its columns
 * in the stable order of their groups, so that every group is a run. */
#include <string.h>

#include "../../base/context.h"
#include "../../base/error.h"
#include "../../base/size.h"
#include "import.h"

/* counts: [groups] of scratch. */
static qn_status sort_columns(const struct qni_tensor *g, const struct qni_order *o, int32_t *perm,
                              int64_t *counts, qn_error *err)
{
    memset(counts, 0, (size_t)o->groups * sizeof *counts);
    for (int64_t i = 0; i < o->k; i++) {
        const int64_t at = qni_import_int(g, i);
        if (at < 0 || at >= o->groups)
            return qni_fail(err, QN_E_VALUE, "g_idx[%lld] is %lld, and there are %lld groups",
                            (long long)i, (long long)at, (long long)o->groups);
        counts[at]++;
    }
    for (int64_t at = 0; at < o->groups; at++) {
        if (counts[at] != qni_min(o->group, o->k - at * o->group))
            return qni_fail(err, QN_E_FORMAT,
                            "g_idx gives group %lld %lld columns instead of %lld, which the "
                            "canonical form does not hold",
                            (long long)at, (long long)counts[at], (long long)o->group);
        counts[at] = at * o->group;
    }
    for (int64_t i = 0; i < o->k; i++)
        perm[counts[qni_import_int(g, i)]++] = (int32_t)i;
    return QN_OK;
}

qn_status qni_import_sort_columns(const qn_ctx *ctx, const struct qni_tensor *g,
                                  const struct qni_order *order, int32_t *perm, qn_error *err)
{
    const size_t bytes = (size_t)order->groups * sizeof(int64_t);
    int64_t *counts = qni_alloc(&ctx->allocator, bytes);
    if (counts == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    const qn_status status = sort_columns(g, order, perm, counts, err);
    qni_free(&ctx->allocator, counts, bytes);
    return status;
}

qni_order_kind qni_import_order_of(const struct qni_tensor *g, const struct qni_order *order)
{
    bool is_trivial = true, is_zero = true;
    if (g->data == NULL)
        return QNI_ORDER_NONE;
    for (int64_t i = 0; i < order->k && (is_trivial || is_zero); i++) {
        const int64_t at = qni_import_int(g, i);
        is_trivial = is_trivial && at == i / order->group;
        is_zero = is_zero && at == 0;
    }
    return is_trivial ? QNI_ORDER_TRIVIAL : is_zero ? QNI_ORDER_ZERO : QNI_ORDER_GROUPS;
}
