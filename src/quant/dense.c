/* SPDX-License-Identifier: Apache-2.0 */
/* Reading dense rows. The loops here see every byte that is quantized: they are written so that a
 * compiler vectorises them with the baseline of any machine. */
#include <string.h>

#include "../base/error.h"
#include "../base/half.h"
#include "dense.h"

qn_status qni_dense_open(const qn_tensor *tensor, const char *name, struct qni_dense *dense,
                         qn_error *err)
{
    if (tensor == NULL || tensor->device.kind != QN_CPU)
        return qni_fail(err, QN_E_ARGUMENT, "%s is missing or not in the CPU's memory", name);
    if (tensor->dtype != QN_F32 && tensor->dtype != QN_F16 && tensor->dtype != QN_BF16)
        return qni_fail(err, QN_E_DTYPE, "%s is of type %s; f32, f16 and bf16 can be read", name,
                        qn_dtype_name(tensor->dtype));
    if (tensor->rank != 2)
        return qni_fail(err, QN_E_SHAPE, "%s has rank %d instead of 2", name, (int)tensor->rank);
    int64_t elements;
    const qn_status status = qn_tensor_extent(tensor, &elements, NULL);
    if (status != QN_OK)
        return qni_fail(err, status, "%s has an impossible shape or stride", name);
    if (elements > 0 && tensor->data == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s has no data", name);
    if (elements > 0 && tensor->stride[1] != 1 && tensor->shape[1] > 1)
        return qni_fail(err, QN_E_STRIDE, "the rows of %s are not contiguous", name);
    const size_t size = qn_dtype_bytes(tensor->dtype);
    if (elements > 0 && (uintptr_t)tensor->data % size != 0)
        return qni_fail(err, QN_E_STRIDE, "%s does not begin at a whole element", name);
    *dense = (struct qni_dense){tensor->data, tensor->dtype, tensor->shape[0], tensor->shape[1], 0};
    if (tensor->shape[0] > 1 && elements > 0)
        dense->row_bytes = tensor->stride[0] * (int64_t)size;
    return QN_OK;
}

/* qni_f32_from_f16() with integers where that multiplies: a subnormal operand would cost a
 * hundred cycles, and weights near zero are subnormal. 2^-14 (1 + m/1024) - 2^-14 = m 2^-24. */
static void from_f16(const uint16_t *restrict in, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++) {
        const uint32_t sign = (uint32_t)(in[i] & 0x8000u) << 16;
        const uint32_t m = (uint32_t)(in[i] & 0x7fffu) << 13;
        const uint32_t normal = m + (m >= 0x0f800000u ? 0x70000000u : 0x38000000u);
        const uint32_t small = qni_bits_of(qni_float_of(m + 0x38800000u) - 0x1p-14f);
        out[i] = qni_float_of(sign | (m < 0x00800000u ? small : normal));
    }
}

static void from_bf16(const uint16_t *restrict in, int64_t n, float *restrict out)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = qni_f32_from_bf16(in[i]);
}

void qni_dense_read(const struct qni_dense *dense, int64_t row, float *out)
{
    const void *in = dense->data + row * dense->row_bytes;
    if (dense->dtype == QN_F16)
        from_f16(in, dense->k, out);
    else if (dense->dtype == QN_BF16)
        from_bf16(in, dense->k, out);
    else
        memcpy(out, in, (size_t)dense->k * sizeof *out);
}

static inline int32_t flip(int32_t bits)
{
    return bits ^ ((bits >> 31) & 0x7fffffff);
}

bool qni_range_find(const float *x, int64_t n, float *lo, float *hi)
{
    int32_t least = INT32_MAX, most = INT32_MIN;
    for (int64_t i = 0; i < n; i++) {
        const int32_t order = flip((int32_t)qni_bits_of(x[i]));
        least = order < least ? order : least;
        most = order > most ? order : most;
    }
    *lo = qni_float_of((uint32_t)flip(least));
    *hi = qni_float_of((uint32_t)flip(most));
    return most < 0x7f800000 && least > flip((int32_t)0xff800000u);
}

int64_t qni_find_bad(const float *x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if ((qni_bits_of(x[i]) & 0x7f800000u) == 0x7f800000u)
            return i;
    return -1;
}
