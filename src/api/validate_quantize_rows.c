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
    } all[] = {{&a->x, "x"},
               {&a->codes, "codes"},
               {&a->scale, "scale"},
               {&a->offset, "offset"},
               {&a->sum, "sum"}};
    for (size_t i = 1; i < sizeof all / sizeof *all; i++) {
        for (size_t j = 0; j < i && !qni_is_none(all[i].tensor); j++)
            QNI_TRY(qni_check_apart(all[i].tensor, all[i].name, all[j].tensor, all[j].name, err));
    }
    return QN_OK;
}

qn_status qni_validate_quantize_rows(const qn_ctx *ctx, const qn_quantize_rows_args *args,
                                     qn_error *err)
{
    const qn_quantize_rows_args *a = args;
    const bool asymmetric = !qni_is_none(&a->offset);
    const unsigned codes = asymmetric ? QNI_BYTES : QNI_TYPE(QN_I8);
    if (a->block < 0)
        return qni_fail(err, QN_E_ARGUMENT, "block is %lld: 0 (the whole row) or more",
                        (long long)a->block);
    QNI_TRY(qni_check_tensor(ctx, &a->x, "x", 2, QNI_FLOATS, err));
    QNI_TRY(qni_check_data(ctx, &a->x, "x", err));
    QNI_TRY(qni_check_tensor(ctx, &a->codes, "codes", 2, codes, err));
    QNI_TRY(qni_check_shape(&a->codes, "codes", a->x.shape, err));
    QNI_TRY(qni_check_output(&a->codes, "codes", err));
    QNI_TRY(qni_check_data(ctx, &a->codes, "codes", err));
    const int64_t k = a->x.shape[1];
    const int64_t shape[2] = {a->x.shape[0], a->block == 0 ? 1 : qni_ceil_div(k, a->block)};
    QNI_TRY(check_facts(ctx, &a->scale, "scale", QN_F32, shape, err));
    if (asymmetric)
        QNI_TRY(check_facts(ctx, &a->offset, "offset", QN_F32, shape, err));
    if (!qni_is_none(&a->sum)) {
        QNI_TRY(check_facts(ctx, &a->sum, "sum", QN_I32, shape, err));
        /* |code| <= 255 and 2^23 of them stay below 2^31. */
        if (k > (1 << 23) && (a->block == 0 || a->block > (1 << 23)))
            return qni_fail(err, QN_E_ARGUMENT,
                            "the sum of %lld codes may not fit in i32: take blocks", (long long)k);
    }
    return check_all_apart(a, err);
}
