/* SPDX-License-Identifier: Apache-2.0 */
/* qn_weight_rows(), qn_packed_rows(): arguments are checked here; src/quant/rows.c decodes. */
#include "../quant/rows.h"

#include "../base/error.h"
#include "backend.h"
#include "check.h"

/* All of ids is looked at before a row is written. */
static qn_status check_ids(const qn_tensor *ids, int64_t n, struct qni_row_lookup *rows,
                           qn_error *err)
{
    rows->ids = ids->data;
    rows->ids_are_i64 = ids->dtype == QN_I64;
    rows->count = ids->shape[0];
    if (rows->count > INT32_MAX)
        return qni_fail(err, QN_E_SHAPE, "ids has %lld entries; at most 2^31 - 1 are possible",
                        (long long)rows->count);
    for (int64_t i = 0; i < rows->count; i++) {
        const int64_t id = qni_row_id(rows, i);
        if (id < 0 || id >= n)
            return qni_fail(err, QN_E_VALUE, "ids[%lld] is %lld; the weight has rows 0 to %lld",
                            (long long)i, (long long)id, (long long)n - 1);
    }
    return QN_OK;
}

/* host: a context on the CPU, where ids and out must lie. */
static qn_status read_arguments(const qn_ctx *host, int64_t n, int64_t k, const qn_tensor *ids,
                                const qn_tensor *out, struct qni_row_lookup *rows, qn_error *err)
{
    enum { IDS = QNI_TYPE(QN_I32) | QNI_TYPE(QN_I64) };
    QNI_TRY(qni_check_tensor(host, ids, "ids", 1, IDS, err));
    QNI_TRY(qni_check_tensor(host, out, "out", 2, QNI_FLOATS, err));
    const int64_t shape[2] = {ids->shape[0], k};
    QNI_TRY(qni_check_shape(out, "out", shape, err));
    QNI_TRY(qni_check_output(out, "out", err));
    QNI_TRY(qni_check_data(host, ids, "ids", err));
    QNI_TRY(qni_check_data(host, out, "out", err));
    QNI_TRY(qni_check_apart(out, "out", ids, "ids", err));
    rows->out = *out;
    return check_ids(ids, n, rows, err);
}

static bool is_cpu(const qn_ctx *ctx)
{
    return ctx->device.kind == QN_CPU;
}

qn_status qn_weight_rows(const qn_ctx *ctx, const qn_weight *weight, const qn_tensor *ids,
                         bool apply_prescale, const qn_tensor *out, qn_error *err)
{
    if (ctx == NULL || weight == NULL || ids == NULL || out == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL",
                        ctx == NULL      ? "ctx"
                        : weight == NULL ? "weight"
                        : ids == NULL    ? "ids"
                                         : "out");
    /* Canonical weights lie in host memory, whatever the context's device is. */
    qn_ctx host = *ctx;
    host.device = (qn_device){QN_CPU, 0};
    struct qni_row_lookup rows = {.apply_prescale = apply_prescale};
    QNI_TRY(read_arguments(&host, weight->n, weight->k, ids, out, &rows, err));
    if (rows.count > 0 && weight->k > 0)
        qni_weight_rows(ctx, weight, &rows);
    return QN_OK;
}

qn_status qn_packed_rows(const qn_ctx *ctx, const qn_packed *packed, const qn_tensor *ids,
                         bool apply_prescale, const qn_tensor *out, qn_error *err)
{
    if (ctx == NULL || packed == NULL || ids == NULL || out == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL",
                        ctx == NULL      ? "ctx"
                        : packed == NULL ? "packed"
                        : ids == NULL    ? "ids"
                                         : "out");
    QNI_TRY(qni_check_weights(ctx, packed, -1, err));
    if (!is_cpu(ctx))
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "rows of weights on a GPU are not looked up; keep the canonical weight, or "
                        "pack the table for the CPU");
    struct qni_row_lookup rows = {.apply_prescale = apply_prescale};
    QNI_TRY(read_arguments(ctx, packed->head->n, packed->head->k, ids, out, &rows, err));
    if (rows.count > 0 && packed->head->k > 0)
        qni_cpu_packed_rows(ctx, packed, &rows);
    return QN_OK;
}
