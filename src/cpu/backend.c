/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU backend's door: each operation goes to its driver. */
#include "backend.h"

#include "conv/conv.h"
#include "fp8.h"
#include "layouts.h"
#include "matmul/driver.h"
#include "matmul/grouped.h"
#include "rows/combine_rows.h"
#include "rows/finish.h"
#include "rows/quantize_rows.h"

qn_status qni_cpu_select(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice,
                         qni_refusal_fn tell, void *arg)
{
    if (qni_is_fp8(op->strategy))
        return qni_fp8_select(ctx, op, choice, tell, arg);
    switch (op->kind) {
    case QNI_MATMUL:
        return qni_matmul_select(ctx, op, choice, tell, arg);
    case QNI_GROUPED:
        return qni_grouped_select(ctx, op, choice, tell, arg);
    default:
        return qni_conv_select(ctx, op, choice, tell, arg);
    }
}

qn_status qni_cpu_run(const qn_ctx *ctx, const struct qni_op *op,
                      const struct qni_cpu_choice *choice, void *scratch)
{
    if (qni_is_fp8(op->strategy))
        return qni_fp8_run(ctx, op, choice, scratch);
    switch (op->kind) {
    case QNI_MATMUL:
        qni_matmul_run(ctx, op, choice, scratch);
        return QN_OK;
    case QNI_GROUPED:
        qni_grouped_run(ctx, op, choice, scratch);
        return QN_OK;
    default:
        qni_conv_run(ctx, op, choice, scratch);
        return QN_OK;
    }
}

qn_status qni_cpu_combine_rows(const qn_ctx *ctx, const qn_combine_rows_args *args, qn_error *err)
{
    (void)err;
    qni_rows_combine(ctx, args);
    return QN_OK;
}

const char *qni_cpu_kernel_name(const struct qni_matmul_kernel *kernel)
{
    return kernel->name;
}

uint64_t qni_cpu_kernel_needs(const struct qni_matmul_kernel *kernel)
{
    return kernel->needs;
}

const char *qni_cpu_layout_name(int32_t i)
{
    const struct qni_layout *layout = qni_packing_layout(&qni_cpu_packing, i);
    return layout == NULL ? NULL : layout->name;
}

qn_status qni_cpu_quantize_rows(const qn_ctx *ctx, const qn_quantize_rows_args *args)
{
    if (args->given || args->zero.rank != 0)
        qni_rows_quantize_linear(ctx, args);
    else
        qni_rows_quantize(ctx, args);
    return QN_OK;
}

void qni_cpu_finish(const qn_ctx *ctx, const struct qni_op *op)
{
    qni_rows_finish(ctx, op);
}
