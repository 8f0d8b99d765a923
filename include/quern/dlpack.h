/* SPDX-License-Identifier: Apache-2.0 */
/* qn_tensor to DLPack and back: how frameworks pass tensors to each other without copying them.
 *
 * Inline conversions, no function of the library is needed. Works with DLPack from 0.6 on; with
 * 1.0 and later the versioned struct as well. Elements are never touched. Part of no other
 * header: it needs DLPack's own. */
#ifndef QUERN_DLPACK_H
#define QUERN_DLPACK_H

#include <dlpack/dlpack.h>

#include "base.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Codes of DLDataType that older headers do not name. */
enum {
    QN_DL_BFLOAT_ = 4,
    QN_DL_BOOL_ = 6,
    QN_DL_E4M3FN_ = 10,
    QN_DL_E5M2_ = 12,
    QN_DL_E8M0FNU_ = 14
};

/** @return QN_OK; QN_E_ARGUMENT: NULL; QN_E_DTYPE: DLPack has no such type. */
static inline qn_status qn_dtype_to_dlpack(qn_dtype dtype, DLDataType *type)
{
    /* By qn_dtype, from QN_F32 on. */
    static const struct {
        uint8_t code, bits;
    } known[] = {{kDLFloat, 32},     {kDLFloat, 16},      {QN_DL_BFLOAT_, 16}, {kDLInt, 8},
                 {kDLUInt, 8},       {kDLInt, 32},        {kDLInt, 64},        {kDLFloat, 64},
                 {QN_DL_E4M3FN_, 8}, {QN_DL_E8M0FNU_, 8}, {QN_DL_BOOL_, 8},    {kDLInt, 16},
                 {kDLUInt, 16},      {kDLUInt, 32},       {kDLUInt, 64},       {QN_DL_E5M2_, 8}};
    if (type == NULL)
        return QN_E_ARGUMENT;
    if (dtype < QN_F32 || dtype > QN_E5M2)
        return QN_E_DTYPE;
    type->code = known[dtype - QN_F32].code;
    type->bits = known[dtype - QN_F32].bits;
    type->lanes = 1;
    return QN_OK;
}

/** @return QN_OK; QN_E_ARGUMENT: NULL; QN_E_DTYPE: several lanes, or a type quern does not have. */
static inline qn_status qn_dtype_from_dlpack(DLDataType type, qn_dtype *dtype)
{
    qn_dtype d;
    if (dtype == NULL)
        return QN_E_ARGUMENT;
    for (d = QN_F32; d <= QN_E5M2; d++) {
        DLDataType known;
        if (qn_dtype_to_dlpack(d, &known) == QN_OK && known.code == type.code &&
            known.bits == type.bits && type.lanes == 1) {
            *dtype = d;
            return QN_OK;
        }
    }
    return QN_E_DTYPE;
}

/**
 * Pinned host memory is CPU memory; managed memory belongs to its GPU.
 * @return QN_OK; QN_E_ARGUMENT: NULL; QN_E_DEVICE: neither CPU nor CUDA.
 */
static inline qn_status qn_device_from_dlpack(DLDevice from, qn_device *device)
{
    const int kind = (int)from.device_type;
    if (device == NULL)
        return QN_E_ARGUMENT;
    if (kind != (int)kDLCPU && kind != (int)kDLCUDAHost && kind != (int)kDLCUDA &&
        kind != (int)kDLCUDAManaged)
        return QN_E_DEVICE;
    device->kind = kind == (int)kDLCPU || kind == (int)kDLCUDAHost ? QN_CPU : QN_CUDA;
    device->index = device->kind == QN_CPU ? 0 : (int32_t)from.device_id;
    return QN_OK;
}

/**
 * A view of somebody's tensor; its owner must outlive it. byte_offset goes into the data pointer;
 * strides NULL means row-major. The same for DLManagedTensor: pass its dl_tensor, and call its
 * deleter when the view is not used any more.
 * @return QN_OK; QN_E_ARGUMENT: NULL; QN_E_SHAPE: rank above QN_MAX_RANK or a negative dimension;
 *         QN_E_DTYPE; QN_E_DEVICE; QN_E_STRIDE: a negative stride, or row-major strides overflow.
 */
static inline qn_status qn_tensor_from_dlpack(const DLTensor *from, qn_tensor *tensor)
{
    qn_tensor t;
    qn_status status;
    int64_t natural = 1;
    int32_t d;
    if (from == NULL || tensor == NULL || (from->ndim > 0 && from->shape == NULL))
        return QN_E_ARGUMENT;
    if (from->ndim < 0 || from->ndim > QN_MAX_RANK)
        return QN_E_SHAPE;
    qn_zero_(&t, sizeof t);
    status = qn_dtype_from_dlpack(from->dtype, &t.dtype);
    if (status == QN_OK)
        status = qn_device_from_dlpack(from->device, &t.device);
    if (status != QN_OK)
        return status;
    t.rank = (int32_t)from->ndim;
    for (d = t.rank - 1; d >= 0; d--) {
        t.shape[d] = from->shape[d];
        t.stride[d] = from->strides != NULL ? from->strides[d] : natural;
        if (t.shape[d] < 0)
            return QN_E_SHAPE;
        if (t.stride[d] < 0)
            return QN_E_STRIDE;
        if (from->strides == NULL && t.shape[d] > 1) {
            if (natural > INT64_MAX / t.shape[d])
                return QN_E_STRIDE;
            natural *= t.shape[d];
        }
    }
    t.data = from->data == NULL ? NULL : (void *)((unsigned char *)from->data + from->byte_offset);
    *tensor = t;
    return QN_OK;
}

/**
 * An exported tensor: DLPack's struct and the memory its pointers lead to. The caller provides it
 * and must not move it. Borrowed (release NULL): &managed.dl_tensor is valid as long as this struct
 * and the tensor's memory; no deleter. Owned: hand &managed to the consumer; its deleter calls
 * release(arg), which may free this struct too.
 */
typedef struct qn_dlpack {
    DLManagedTensor managed;
    int64_t shape[QN_MAX_RANK];
    int64_t stride[QN_MAX_RANK];
    qn_release_fn release;
    void *arg;
} qn_dlpack;

/* Everything but who owns it. shape and stride: QN_MAX_RANK places that live as long as to. */
static inline qn_status qn_dl_fill_(const qn_tensor *tensor, DLTensor *to, int64_t *shape,
                                    int64_t *stride)
{
    qn_status status;
    int32_t d;
    qn_zero_(to, sizeof *to);
    if (tensor->rank < 0 || tensor->rank > QN_MAX_RANK)
        return QN_E_SHAPE;
    if (tensor->device.kind != QN_CPU && tensor->device.kind != QN_CUDA)
        return QN_E_DEVICE;
    status = qn_dtype_to_dlpack(tensor->dtype, &to->dtype);
    if (status != QN_OK)
        return status;
    for (d = 0; d < tensor->rank; d++) {
        shape[d] = tensor->shape[d];
        stride[d] = tensor->stride[d];
    }
    to->data = tensor->data;
    to->device.device_type = tensor->device.kind == QN_CPU ? kDLCPU : kDLCUDA;
    to->device.device_id = tensor->device.index;
    to->ndim = tensor->rank;
    to->shape = shape;
    to->strides = stride;
    return QN_OK;
}

static inline void qn_dl_delete_(DLManagedTensor *self)
{
    qn_dlpack *holder = (qn_dlpack *)self->manager_ctx;
    holder->release(holder->arg);
}

/**
 * Export a tensor into holder. release NULL: borrowed, else owned by the consumer. On failure
 * release is not called.
 * @return QN_OK; QN_E_ARGUMENT: NULL; QN_E_SHAPE: bad rank; QN_E_DTYPE; QN_E_DEVICE.
 */
static inline qn_status qn_tensor_to_dlpack(const qn_tensor *tensor, qn_release_fn release,
                                            void *arg, qn_dlpack *holder)
{
    if (tensor == NULL || holder == NULL)
        return QN_E_ARGUMENT;
    qn_zero_(holder, sizeof *holder);
    holder->release = release;
    holder->arg = arg;
    holder->managed.manager_ctx = holder;
    holder->managed.deleter = release != NULL ? qn_dl_delete_ : NULL;
    return qn_dl_fill_(tensor, &holder->managed.dl_tensor, holder->shape, holder->stride);
}

#if defined(DLPACK_MAJOR_VERSION) && DLPACK_MAJOR_VERSION >= 1

/** The same with DLPack 1's struct, which says what version it is and whether its memory may be
 * written. */
typedef struct qn_dlpack_versioned {
    DLManagedTensorVersioned managed;
    int64_t shape[QN_MAX_RANK];
    int64_t stride[QN_MAX_RANK];
    qn_release_fn release;
    void *arg;
} qn_dlpack_versioned;

static inline void qn_dl_delete_versioned_(DLManagedTensorVersioned *self)
{
    qn_dlpack_versioned *holder = (qn_dlpack_versioned *)self->manager_ctx;
    holder->release(holder->arg);
}

/** As qn_tensor_to_dlpack(). flags: DLPACK_FLAG_BITMASK_..., e.g. read-only; 0 for none. */
static inline qn_status qn_tensor_to_dlpack_versioned(const qn_tensor *tensor, uint64_t flags,
                                                      qn_release_fn release, void *arg,
                                                      qn_dlpack_versioned *holder)
{
    if (tensor == NULL || holder == NULL)
        return QN_E_ARGUMENT;
    qn_zero_(holder, sizeof *holder);
    holder->release = release;
    holder->arg = arg;
    holder->managed.version.major = DLPACK_MAJOR_VERSION;
    holder->managed.version.minor = DLPACK_MINOR_VERSION;
    holder->managed.flags = flags;
    holder->managed.manager_ctx = holder;
    holder->managed.deleter = release != NULL ? qn_dl_delete_versioned_ : NULL;
    return qn_dl_fill_(tensor, &holder->managed.dl_tensor, holder->shape, holder->stride);
}

/**
 * As qn_tensor_from_dlpack(). read_only (or NULL) is told whether the memory may not be written.
 * @return as there, and QN_E_VERSION: another major version, whose fields may lie elsewhere: call
 *         its deleter, nothing else.
 */
static inline qn_status qn_tensor_from_dlpack_versioned(const DLManagedTensorVersioned *from,
                                                        bool *read_only, qn_tensor *tensor)
{
    if (from == NULL || tensor == NULL)
        return QN_E_ARGUMENT;
    if (from->version.major != DLPACK_MAJOR_VERSION)
        return QN_E_VERSION;
    if (read_only != NULL)
        *read_only = (from->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
    return qn_tensor_from_dlpack(&from->dl_tensor, tensor);
}

#endif

#ifdef __cplusplus
}
#endif
#endif
