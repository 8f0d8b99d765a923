/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of qn_quantize_rows(). */
#include "../base/error.h"
#include "../base/size.h"
#include "check.h"
#include "validate.h"

/* One number per row and block. */
static qn_status check_facts(const qn_ctx *ctx, const qn_tensor *t, const char *name,
                             qn_dtype dtype, const int64_t *shape, qn_error *err)
{
    QNI_TRY(qni_check_tensor(ctx, t, name, 2, QNI_TYPE(dtype), err));
    QNI_TRY(qni_check_shape(t, name, shape, err));
    QNI_TRY(qni_check_output(t, name, err));
    return qni_check_data(ctx, t, name, err);
}

/* No output overlaps x or another output. */
static qn_status check_all_apart(const qn_quantize_rows_args *a, qn_error *err)
{
    const struct {
        const qn_tensor *tensor;
        const char *name;
    } all[] = {{&a->x, "x"},           {&a->codes, "codes"}, {&a->scale, "scale"},
               {&a->offset, "offset"}, {&a->sum, "sum"},     {&a->zero, "zero"}};
    for (size_t i = 1; i < sizeof all / sizeof *all; i++) {
        for (size_t j = 0; j < i && !qni_is_none(all[i].tensor); j++)
            QNI_TRY(qni_check_apart(all[i].tensor, all[i].name, all[j].tensor, all[j].name, err));
    }
    return QN_OK;
}

/* Integer zero points, or scales that are given. */
static bool is_linear(const qn_quantize_rows_args *a)
{
    return a->given || !qni_is_none(&a->zero);
}

static qn_status check_kind(const qn_ctx *ctx, const qn_quantize_rows_args *a, qn_error *err)
{
    QNI_TRY(qni_check_flag(a->given, "given", err));
    if (a->reserved != 0)
        return qni_fail(err, QN_E_ARGUMENT, "reserved is not 0");
    const bool is_shared = a->block == QN_GROUP_PER_TENSOR;
    if (a->block < 0 && !(is_shared && is_linear(a)))
        return qni_fail(err, QN_E_ARGUMENT,
                        "block is %lld: 0 (the whole row) or more; QN_GROUP_PER_TENSOR (-2) with "
                        "zero or given",
                        (long long)a->block);
    if (!is_linear(a))
        return QN_OK;
    if (!qni_is_none(&a->offset))
        return qni_fail(err, QN_E_ARGUMENT, "offset and %s exclude each other",
                        a->given ? "given" : "zero");
    if (ctx->device.kind != QN_CPU)
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "integer zero points and given scales are for the CPU alone");
    return QN_OK;
}

/* Inputs, each positive and finite. */
static qn_status check_scales(const qn_quantize_rows_args *a, qn_error *err)
{
    const float *const scale = a->scale.data;
    for (int64_t i = 0; i < a->scale.shape[0]; i++)
        for (int64_t b = 0; b < a->scale.shape[1]; b++) {
            const float s = scale[i * a->scale.stride[0] + b];
            if (!(s > 0.0f) || s - s != 0.0f)
                return qni_fail(err, QN_E_VALUE, "scale[%lld, %lld] is not positive and finite",
                                (long long)i, (long long)b);
        }
    return QN_OK;
}

/* Found numbers lie apart; given ones may repeat, one for all blocks or rows. */
static qn_status check_linear(const qn_ctx *ctx, const qn_quantize_rows_args *a,
                              const int64_t *shape, qn_error *err)
{
    const bool is_whole = a->block == QN_GROUP_PER_TENSOR;
    const int64_t one[2] = {1, 1}, *const numbers = is_whole ? one : shape;
    const qn_tensor *const both[] = {&a->scale, &a->zero};
    for (int32_t i = 0; i < 2; i++) {
        const char *const name = i == 0 ? "scale" : "zero";
        const unsigned type = QNI_TYPE(i == 0 ? QN_F32 : a->codes.dtype);
        if (i == 1 && qni_is_none(&a->zero))
            break;
        QNI_TRY(qni_check_tensor(ctx, both[i], name, 2, type, err));
        QNI_TRY(qni_check_shape(both[i], name, numbers, err));
        if (!a->given)
            QNI_TRY(qni_check_output(both[i], name, err));
        QNI_TRY(qni_check_data(ctx, both[i], name, err));
    }
    return a->given ? check_scales(a, err) : QN_OK;
}

qn_status qni_validate_quantize_rows(const qn_ctx *ctx, const qn_quantize_rows_args *args,
                                     qn_error *err)
{
    const qn_quantize_rows_args *a = args;
    const bool asymmetric = !qni_is_none(&a->offset);
    const unsigned codes = asymmetric || is_linear(a) ? QNI_BYTES
                                                      : QNI_TYPE(QN_I8) | QNI_TYPE(QN_E4M3);
    QNI_TRY(check_kind(ctx, a, err));
    QNI_TRY(qni_check_tensor(ctx, &a->x, "x", 2, QNI_FLOATS, err));
    QNI_TRY(qni_check_data(ctx, &a->x, "x", err));
    QNI_TRY(qni_check_tensor(ctx, &a->codes, "codes", 2, codes, err));
    QNI_TRY(qni_check_shape(&a->codes, "codes", a->x.shape, err));
    QNI_TRY(qni_check_output(&a->codes, "codes", err));
    QNI_TRY(qni_check_data(ctx, &a->codes, "codes", err));
    const int64_t k = a->x.shape[1];
    const int64_t shape[2] = {a->x.shape[0], a->block <= 0 ? 1 : qni_ceil_div(k, a->block)};
    if (is_linear(a))
        QNI_TRY(check_linear(ctx, a, shape, err));
    else
        QNI_TRY(check_facts(ctx, &a->scale, "scale", QN_F32, shape, err));
    if (asymmetric)
        QNI_TRY(check_facts(ctx, &a->offset, "offset", QN_F32, shape, err));
    if (!qni_is_none(&a->sum) && a->codes.dtype == QN_E4M3)
        return qni_fail(err, QN_E_DTYPE, "sums are of integer codes, and codes are e4m3");
    if (!qni_is_none(&a->sum)) {
        QNI_TRY(check_facts(ctx, &a->sum, "sum", QN_I32, shape, err));
        /* |code| <= 255 and 2^23 of them stay below 2^31. */
        if (k > (1 << 23) && (a->block <= 0 || a->block > (1 << 23)))
            return qni_fail(err, QN_E_ARGUMENT,
                            "the sum of %lld codes may not fit in i32: take blocks", (long long)k);
    }
    return check_all_apart(a, err);
}
