/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about element types and tensors. Every product is checked: shapes come from callers and
 * files. */
#include <quern/base.h>

#include "size.h"

struct type {
    const char *name;
    size_t bytes;
};

static const struct type types[] = {
    [QN_DTYPE_NONE] = {"none", 0}, [QN_F32] = {"f32", 4},   [QN_F16] = {"f16", 2},
    [QN_BF16] = {"bf16", 2},       [QN_I8] = {"i8", 1},     [QN_U8] = {"u8", 1},
    [QN_I32] = {"i32", 4},         [QN_I64] = {"i64", 8},   [QN_F64] = {"f64", 8},
    [QN_E4M3] = {"e4m3", 1},       [QN_E8M0] = {"e8m0", 1}, [QN_BOOL] = {"bool", 1},
    [QN_I16] = {"i16", 2},         [QN_U16] = {"u16", 2},   [QN_U32] = {"u32", 4},
    [QN_U64] = {"u64", 8},         [QN_E5M2] = {"e5m2", 1},
};
enum { N_TYPES = (int)(sizeof types / sizeof types[0]) };

size_t qn_dtype_bytes(qn_dtype dtype)
{
    return dtype >= 0 && dtype < N_TYPES ? types[dtype].bytes : 0;
}

const char *qn_dtype_name(qn_dtype dtype)
{
    return dtype >= 0 && dtype < N_TYPES ? types[dtype].name : "?";
}

/* Making a tensor cannot fail, so what is impossible (a rank too large, a stride beyond int64) is
 * kept recognisable and qn_tensor_extent() refuses it. */
qn_tensor qn_tensor_make(void *data, qn_dtype dtype, int32_t rank, const int64_t *shape)
{
    qn_tensor t;
    qn_zero_(&t, sizeof t);
    t.data = data;
    t.dtype = dtype;
    t.rank = rank;
    t.device.kind = QN_CPU;
    int64_t stride = 1;
    const int32_t last = (rank < QN_MAX_RANK ? rank : QN_MAX_RANK) - 1;
    for (int32_t i = last; i >= 0; i--) {
        t.shape[i] = shape[i];
        t.stride[i] = stride;
        if (!qni_i64_mul(stride, qni_max(shape[i], 1), &stride))
            stride = INT64_MAX;
    }
    return t;
}

qn_tensor qn_tensor_1d(void *data, qn_dtype dtype, int64_t n)
{
    return qn_tensor_make(data, dtype, 1, &n);
}

qn_tensor qn_tensor_2d(void *data, qn_dtype dtype, int64_t rows, int64_t columns)
{
    const int64_t shape[2] = {rows, columns};
    return qn_tensor_make(data, dtype, 2, shape);
}

qn_tensor qn_tensor_none(void)
{
    return qn_tensor_make(NULL, QN_DTYPE_NONE, 0, NULL);
}

qn_status qn_tensor_extent(const qn_tensor *tensor, int64_t *elements, size_t *bytes)
{
    if (tensor == NULL || tensor->rank < 0 || tensor->rank > QN_MAX_RANK)
        return QN_E_ARGUMENT;
    const size_t size = qn_dtype_bytes(tensor->dtype);
    if (size == 0)
        return QN_E_DTYPE;
    bool is_empty = false;
    for (int32_t i = 0; i < tensor->rank; i++) {
        if (tensor->shape[i] < 0)
            return QN_E_ARGUMENT;
        if (tensor->stride[i] < 0)
            return QN_E_STRIDE;
        is_empty = is_empty || tensor->shape[i] == 0;
    }
    int64_t count = is_empty ? 0 : 1, last = 0;
    for (int32_t i = 0; i < tensor->rank && !is_empty; i++) {
        int64_t reach;
        if (!qni_i64_mul(count, tensor->shape[i], &count) ||
            !qni_i64_mul(tensor->shape[i] - 1, tensor->stride[i], &reach) ||
            !qni_i64_add(last, reach, &last))
            return QN_E_STRIDE;
    }
    int64_t extent = 0;
    if (!is_empty &&
        (!qni_i64_add(last, 1, &extent) || !qni_i64_mul(extent, (int64_t)size, &extent)))
        return QN_E_STRIDE;
    if ((uint64_t)extent > PTRDIFF_MAX)
        return QN_E_STRIDE;
    if (elements != NULL)
        *elements = count;
    if (bytes != NULL)
        *bytes = (size_t)extent;
    return QN_OK;
}
