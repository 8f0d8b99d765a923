/* SPDX-License-Identifier: Apache-2.0 */
/* Scales beside plain codes: which of them belongs to a row and a group follows from their
 * shape. */
#include "../../base/error.h"
#include "../../base/size.h"
#include "import.h"

static int64_t count_of(const struct qni_tensor *t)
{
    int64_t product = 1; /* fits: the file's reader has checked it */
    for (int32_t i = 0; i < t->rank; i++)
        product *= t->shape[i];
    return product;
}

qn_status qni_import_group_of_scale(const struct qni_tensor *scale, int64_t group,
                                    struct qni_found *found, qn_error *err)
{
    const int64_t n = found->parts.n, k = found->parts.k;
    if (scale->data == NULL)
        return qni_fail(err, QN_E_NOT_FOUND, "its tensor %s is missing", ".weight_scale");
    if (!qni_import_is_float(scale->dtype) || scale->rank > 2)
        return qni_fail(err, QN_E_DTYPE, "its scale is no matrix of f16, bf16 or f32");
    found->parts.format.scale_dtype = scale->dtype;
    const int64_t count = count_of(scale), width = scale->rank == 2 ? scale->shape[1] : 1;
    if (count == 1 && (n != 1 || scale->rank == 0)) {
        found->parts.format.group = QN_GROUP_PER_TENSOR;
        qni_note(&found->notes, "group: one scale for the tensor, from its shape");
        return QN_OK;
    }
    if (scale->shape[0] != n || width < 1)
        return qni_fail(err, QN_E_SHAPE, "its scale has %lld rows for %lld outputs",
                        (long long)scale->shape[0], (long long)n);
    if (width == 1) {
        found->parts.format.group = QN_GROUP_PER_CHANNEL;
        qni_note(&found->notes, "group: one scale an output, from its shape");
        return QN_OK;
    }
    if (group < 1 ? k % width != 0 : qni_ceil_div(k, group) != width)
        return qni_fail(err, QN_E_SHAPE,
                        "its scale has %lld columns for k = %lld, which is not what the "
                        "configuration's group_size %lld makes",
                        (long long)width, (long long)k, (long long)group);
    found->parts.format.group = group < 1 ? k / width : group;
    qni_note(&found->notes, "group: %lld, %s", (long long)found->parts.format.group,
             group < 1 ? "k over the columns of the scale" : "group_size of the configuration");
    return QN_OK;
}

int64_t qni_import_scale_at(const struct qn_weight *w, int64_t n, int64_t g)
{
    if (w->format.group == QN_GROUP_PER_TENSOR)
        return 0;
    return n * w->n_groups + g;
}
