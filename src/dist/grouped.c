/* SPDX-License-Identifier: Apache-2.0 */
/* Products of experts that are cut over ranks: what differs from one product. A job has the
 * arguments that both have as a qn_matmul_args, which the rest of this folder works on. */
#include "../api/check.h"
#include "../api/validate.h"
#include "../base/error.h"
#include "../base/sized.h"
#include "product.h"

static qn_matmul_args as_matmul(const qn_grouped_args *g)
{
    qn_matmul_args all;
    qn_matmul_args_init(&all);
    all.w = g->w != NULL && g->n_experts > 0 ? g->w[0] : NULL;
    all.x = g->x;
    all.y = g->y;
    all.epilogue = g->epilogue;
    all.strategy = g->strategy;
    all.strict = g->strict;
    all.quant = g->quant;
    all.kernel = g->kernel;
    all.error = g->error;
    all.prepared = g->prepared;
    all.more = g->more;
    all.x_scales = g->x_scales;
    return all;
}

qn_status qni_parallel_read(const qn_parallel_args *args, struct qni_parallel_job *job,
                            qn_error *err)
{
    qn_matmul_args_init(&job->all);
    qn_grouped_args_init(&job->grouped);
    job->is_grouped = args->grouped != NULL;
    if (args->grouped != NULL && args->matmul != NULL)
        return qni_fail(err, QN_E_ARGUMENT, "matmul and grouped are both given: one of them is");
    if (args->grouped == NULL)
        return qni_sized_read(&job->all, sizeof job->all, args->matmul, err);
    QNI_TRY(qni_sized_read(&job->grouped, sizeof job->grouped, args->grouped, err));
    job->all = as_matmul(&job->grouped);
    return QN_OK;
}

qn_status qni_parallel_check_experts(const struct qni_parallel_job *job, qn_error *err)
{
    const qn_grouped_args *const g = &job->grouped;
    if (!job->is_grouped)
        return QN_OK;
    if (qni_is_none(&g->ids) || !qni_is_none(&g->offsets))
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "experts over several ranks are told by ids, not by offsets or a batch");
    if (g->prepared != NULL)
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "experts over several ranks take no prepared rows of x");
    return QN_OK;
}

qn_grouped_args qni_parallel_experts_of(const struct qni_parallel_job *job,
                                        const qn_matmul_args *own, int64_t row, int64_t rows)
{
    qn_grouped_args g = job->grouped;
    const bool is_taken = !qni_is_none(&g.x_rows);
    g.ids = qni_parallel_rows_of(&g.ids, row, rows);
    if (is_taken && own->strategy == g.strategy)
        g.x_rows = qni_parallel_rows_of(&g.x_rows, row, rows); /* of all of x */
    else
        g.x = own->x; /* rows in order; codes are, too */
    if (is_taken && own->strategy != g.strategy)
        g.x_rows = qn_tensor_none();
    g.y = own->y;
    g.epilogue = own->epilogue;
    g.strategy = own->strategy;
    g.quant = own->quant;
    g.kernel = own->kernel;
    g.error = own->error;
    return g;
}

qn_status qni_parallel_validate(const qn_ctx *ctx, const struct qni_parallel_job *job,
                                const qn_matmul_args *own, int with_data, qn_error *err)
{
    struct qni_op op;
    if (!job->is_grouped)
        return qni_validate_matmul(ctx, own, with_data, &op, err);
    qn_grouped_args g = job->grouped;
    g.y = own->y;
    g.epilogue = own->epilogue;
    return qni_validate_grouped(ctx, &g, with_data, &op, err);
}
