/* SPDX-License-Identifier: Apache-2.0 */
/* Copying a tensor out of a file: any alignment, any order of the source, and conversion between
 * float types with one rounding: out = round(value), to nearest, ties to even; f16 and bf16
 * overflow to infinity, E4M3 to its largest value. It never writes more than the tensor. */
#include <quern/checkpoint.h>

#include <string.h>

#include "../base/half.h"
#include "../base/size.h"

enum { BLOCK = 512 };

static bool is_float(qn_dtype dtype)
{
    return dtype == QN_F32 || dtype == QN_F16 || dtype == QN_BF16 || dtype == QN_F64 ||
           dtype == QN_E4M3 || dtype == QN_E8M0 || dtype == QN_E5M2;
}

/* A float type that can be rounded to. */
static bool is_target(qn_dtype dtype)
{
    return dtype == QN_F32 || dtype == QN_F16 || dtype == QN_BF16 || dtype == QN_F64 ||
           dtype == QN_E4M3;
}

/*
 * The nearest float in the sense of "round to odd": if d is no float, the neighbour whose last bit
 * is set. Rounding that to a type of at most 22 bits gives what rounding d itself gives.
 */
static float odd_from_f64(double d)
{
    const float f = (float)d;
    const uint32_t bits = qni_bits_of(f);
    if ((double)f == d || d != d || (bits & 1u) != 0)
        return f;
    if ((bits & 0x7fffffffu) == 0x7f800000u) /* overflow: the largest float stands for it */
        return qni_float_of(bits - 1);
    /* An even neighbour: the other one, across d, is odd. is_short: |f| < |d|. */
    const bool is_short = d > 0 ? (double)f < d : (double)f > d;
    if ((bits & 0x7fffffffu) == 0)
        return qni_float_of((d < 0 ? 0x80000000u : 0u) | 1u);
    return qni_float_of(is_short ? bits + 1 : bits - 1);
}

/* Every source is a float or, f64, is made one by rounding to odd, which later rounding cannot tell
 * from the value itself. */
static void load(qn_dtype dtype, const uint8_t *from, float *out, size_t count)
{
    uint16_t half;
    double wide;
    switch (dtype) {
    case QN_F32:
        memcpy(out, from, count * sizeof *out);
        break;
    case QN_F16:
        for (size_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            out[i] = qni_f32_from_f16(half);
        }
        break;
    case QN_BF16:
        for (size_t i = 0; i < count; i++) {
            memcpy(&half, from + 2 * i, sizeof half);
            out[i] = qni_f32_from_bf16(half);
        }
        break;
    case QN_F64:
        for (size_t i = 0; i < count; i++) {
            memcpy(&wide, from + 8 * i, sizeof wide);
            out[i] = odd_from_f64(wide);
        }
        break;
    case QN_E4M3:
        for (size_t i = 0; i < count; i++)
            out[i] = qni_f32_from_e4m3(from[i]);
        break;
    case QN_E5M2: /* the upper half of an f16 */
        for (size_t i = 0; i < count; i++)
            out[i] = qni_f32_from_f16((uint16_t)(from[i] << 8));
        break;
    default:
        for (size_t i = 0; i < count; i++)
            out[i] = qni_f32_from_e8m0(from[i]);
    }
}

static void store(qn_dtype dtype, const float *from, uint8_t *out, size_t count)
{
    uint16_t half;
    double wide;
    switch (dtype) {
    case QN_F32:
        memcpy(out, from, count * sizeof *from);
        break;
    case QN_F16:
        for (size_t i = 0; i < count; i++) {
            half = qni_f16_from_f32(from[i]);
            memcpy(out + 2 * i, &half, sizeof half);
        }
        break;
    case QN_BF16:
        for (size_t i = 0; i < count; i++) {
            half = qni_bf16_from_f32(from[i]);
            memcpy(out + 2 * i, &half, sizeof half);
        }
        break;
    case QN_F64:
        for (size_t i = 0; i < count; i++) {
            wide = (double)from[i];
            memcpy(out + 8 * i, &wide, sizeof wide);
        }
        break;
    default:
        for (size_t i = 0; i < count; i++)
            out[i] = qni_e4m3_from_f32(from[i]);
    }
}

/* f64 to f32 is one rounding of its own; through round-to-odd it would stop too early. */
static void narrow(const uint8_t *from, uint8_t *out, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double wide;
        memcpy(&wide, from + 8 * i, sizeof wide);
        const float f = (float)wide;
        memcpy(out + 4 * i, &f, sizeof f);
    }
}

static void convert(qn_dtype from_type, const uint8_t *from, qn_dtype to_type, uint8_t *to,
                    size_t count)
{
    float block[BLOCK];
    const size_t from_bytes = qn_dtype_bytes(from_type), to_bytes = qn_dtype_bytes(to_type);
    if (from_type == to_type) {
        memcpy(to, from, count * from_bytes);
        return;
    }
    if (from_type == QN_F64 && to_type == QN_F32) {
        narrow(from, to, count);
        return;
    }
    for (size_t done = 0; done < count; done += BLOCK) {
        const size_t step = count - done < BLOCK ? count - done : BLOCK;
        load(from_type, from + done * from_bytes, block, step);
        store(to_type, block, to + done * to_bytes, step);
    }
}

static bool is_row_major(const qn_tensor *tensor)
{
    int64_t step = 1;
    for (int32_t i = tensor->rank - 1; i >= 0; i--) {
        if (tensor->shape[i] > 1 && tensor->stride[i] != step)
            return false;
        step *= tensor->shape[i];
    }
    return true;
}

/* Fortran order: gather a block, then convert it. */
static void copy_strided(const qn_tensor *from, const qn_tensor *out, int64_t count)
{
    uint8_t block[BLOCK * 8];
    const size_t element = qn_dtype_bytes(from->dtype), wide = qn_dtype_bytes(out->dtype);
    int64_t index[QN_MAX_RANK] = {0}, at = 0;
    size_t used = 0;
    uint8_t *to = out->data;
    for (int64_t done = 0; done < count; done++) {
        memcpy(block + used * element, (const uint8_t *)from->data + (size_t)at * element, element);
        if (++used == BLOCK || done + 1 == count) {
            convert(from->dtype, block, out->dtype, to, used);
            to += used * wide;
            used = 0;
        }
        for (int32_t d = from->rank - 1; d >= 0; d--) {
            at += from->stride[d];
            if (++index[d] < from->shape[d])
                break;
            at -= from->stride[d] * from->shape[d];
            index[d] = 0;
        }
    }
}

qn_status qn_entry_copy(const qn_entry *entry, const qn_tensor *out)
{
    if (entry == NULL || out == NULL || out->device.kind != QN_CPU)
        return QN_E_ARGUMENT;
    const qn_tensor *from = &entry->tensor;
    int64_t elements = 0;
    if (from->dtype == QN_DTYPE_NONE)
        return QN_E_DTYPE;
    const qn_status fits = qn_tensor_extent(out, &elements, NULL);
    if (fits != QN_OK)
        return fits;
    if (out->rank != from->rank ||
        memcmp(out->shape, from->shape, (size_t)out->rank * sizeof *out->shape) != 0)
        return QN_E_SHAPE;
    if (out->dtype != from->dtype && !(is_float(from->dtype) && is_target(out->dtype)))
        return QN_E_DTYPE;
    if (elements == 0)
        return QN_OK;
    if (out->data == NULL || !is_row_major(out))
        return out->data == NULL ? QN_E_ARGUMENT : QN_E_STRIDE;
    if (is_row_major(from))
        convert(from->dtype, from->data, out->dtype, out->data, (size_t)elements);
    else
        copy_strided(from, out, elements);
    return QN_OK;
}
