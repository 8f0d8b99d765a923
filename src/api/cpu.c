/* SPDX-License-Identifier: Apache-2.0 */
/* The constants of the CPU's cost model on a context: arguments are checked here, the backend keeps
 * them. */
#include <quern/ops.h>

#include "../base/error.h"
#include "../base/sized.h"
#include "../cpu/backend.h"

static qn_status check(const qn_ctx *ctx, qn_error *err)
{
    if (ctx == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "ctx is NULL");
    if (ctx->device.kind != QN_CPU)
        return qni_fail(err, QN_E_ARGUMENT, "the context is on a GPU, not on the CPU");
    return QN_OK;
}

qn_status qn_cpu_get_cost(const qn_ctx *ctx, int32_t i, qn_cpu_cost *cost, qn_error *err)
{
    qn_cpu_cost own;
    qn_cpu_cost_init(&own);
    if (cost == NULL || cost->size < sizeof cost->size)
        return qni_fail(err, QN_E_ARGUMENT, "cost is NULL or its size unset");
    QNI_TRY(check(ctx, err));
    QNI_TRY(qni_cpu_cost_get(ctx, i, &own, err));
    return qni_sized_write(cost, &own, sizeof own);
}

qn_status qn_cpu_set_cost(qn_ctx *ctx, const qn_cpu_cost *cost, qn_error *err)
{
    qn_cpu_cost own;
    qn_cpu_cost_init(&own);
    QNI_TRY(check(ctx, err));
    QNI_TRY(qni_sized_read(&own, sizeof own, cost, err));
    return qni_cpu_cost_set(ctx, &own, err);
}
