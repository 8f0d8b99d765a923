/* SPDX-License-Identifier: Apache-2.0 */
/* quern/cuda.h: arguments are checked here, the backend does the work. A library without a CUDA
 * backend answers with a sentence. */
#include <quern/cuda.h>

#include "../base/error.h"
#include "../base/sized.h"
#include "backend.h"

static qn_status find(const struct qni_device_calls **device, qn_error *err)
{
    const struct qni_backend *backend = qni_backend_of(QN_CUDA);
    if (backend == NULL)
        return qni_fail(err, QN_E_DEVICE, "this quern was built without CUDA");
    *device = backend->device;
    return QN_OK;
}

/* The calls for a context, which is on a GPU. */
static qn_status find_of(const qn_ctx *ctx, const struct qni_device_calls **device, qn_error *err)
{
    QNI_TRY(find(device, err));
    if (ctx == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "ctx is NULL");
    if (ctx->device.kind != QN_CUDA)
        return qni_fail(err, QN_E_ARGUMENT, "the context is on the CPU, not on a GPU");
    return QN_OK;
}

qn_status qn_cuda_device_count(int32_t *count, qn_error *err)
{
    const struct qni_device_calls *device = NULL;
    if (count == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "count is NULL: there is no place for the result");
    *count = 0;
    QNI_TRY(find(&device, err));
    return device->count(count, err);
}

qn_status qn_cuda_query(int32_t index, qn_cuda_info *info, qn_error *err)
{
    const struct qni_device_calls *device = NULL;
    qn_cuda_info own;
    qn_cuda_info_init(&own);
    if (info == NULL || info->size < sizeof info->size)
        return qni_fail(err, QN_E_ARGUMENT, "info is NULL or its size unset");
    QNI_TRY(find(&device, err));
    QNI_TRY(device->query(index, &own, err));
    return qni_sized_write(info, &own, sizeof own);
}

qn_status qn_cuda_set_stream(qn_ctx *ctx, struct CUstream_st *stream)
{
    const struct qni_device_calls *device = NULL;
    QNI_TRY(find_of(ctx, &device, NULL));
    return device->set_stream(ctx, stream);
}

qn_status qn_cuda_set_pdl(qn_ctx *ctx, int32_t pdl)
{
    const struct qni_device_calls *device = NULL;
    QNI_TRY(find_of(ctx, &device, NULL));
    if (pdl != 0 && pdl != 1)
        return QN_E_ARGUMENT;
    return device->set_pdl(ctx, pdl);
}

qn_status qn_cuda_alloc(const qn_ctx *ctx, size_t bytes, void **memory, qn_error *err)
{
    const struct qni_device_calls *device = NULL;
    if (memory == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "memory is NULL: there is no place for the result");
    *memory = NULL;
    QNI_TRY(find_of(ctx, &device, err));
    return bytes == 0 ? QN_OK : device->alloc(ctx, bytes, memory, err);
}

qn_status qn_cuda_free(const qn_ctx *ctx, void *memory)
{
    const struct qni_device_calls *device = NULL;
    QNI_TRY(find_of(ctx, &device, NULL));
    return device->free(ctx->device.index, memory);
}

static qn_status check_copy(const void *device, const void *host, qn_error *err)
{
    if (device == NULL || host == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL", device == NULL ? "device" : "host");
    return QN_OK;
}

qn_status qn_cuda_upload(const qn_ctx *ctx, void *device, const void *host, size_t bytes,
                         qn_error *err)
{
    const struct qni_device_calls *calls = NULL;
    QNI_TRY(find_of(ctx, &calls, err));
    if (bytes == 0)
        return QN_OK;
    QNI_TRY(check_copy(device, host, err));
    return calls->upload(ctx, device, host, bytes, err);
}

qn_status qn_cuda_download(const qn_ctx *ctx, void *host, const void *device, size_t bytes,
                           qn_error *err)
{
    const struct qni_device_calls *calls = NULL;
    QNI_TRY(find_of(ctx, &calls, err));
    if (bytes == 0)
        return QN_OK;
    QNI_TRY(check_copy(device, host, err));
    return calls->download(ctx, host, device, bytes, err);
}

qn_status qn_cuda_synchronize(const qn_ctx *ctx, qn_error *err)
{
    const struct qni_device_calls *device = NULL;
    QNI_TRY(find_of(ctx, &device, err));
    return device->wait(ctx, err);
}

qn_status qn_cuda_measure(qn_ctx *ctx, qn_cuda_call_fn call, void *arg, int32_t n_calls,
                          int32_t replays, double *us, qn_error *err)
{
    const struct qni_device_calls *device = NULL;
    QNI_TRY(find_of(ctx, &device, err));
    if (call == NULL || us == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL", call == NULL ? "call" : "us");
    if (n_calls < 1 || replays < 1)
        return qni_fail(err, QN_E_ARGUMENT, "n_calls is %d and replays %d: both are at least 1",
                        n_calls, replays);
    return device->measure(ctx, call, arg, n_calls, replays, us, err);
}

qn_status qn_cuda_get_cost(const qn_ctx *ctx, int32_t i, qn_cuda_cost *cost, qn_error *err)
{
    const struct qni_device_calls *device = NULL;
    qn_cuda_cost own;
    qn_cuda_cost_init(&own);
    if (cost == NULL || cost->size < sizeof cost->size)
        return qni_fail(err, QN_E_ARGUMENT, "cost is NULL or its size unset");
    QNI_TRY(find_of(ctx, &device, err));
    QNI_TRY(device->get_cost(ctx, i, &own, err));
    return qni_sized_write(cost, &own, sizeof own);
}

qn_status qn_cuda_set_cost(qn_ctx *ctx, const qn_cuda_cost *cost, qn_error *err)
{
    const struct qni_device_calls *device = NULL;
    qn_cuda_cost own;
    qn_cuda_cost_init(&own);
    QNI_TRY(find_of(ctx, &device, err));
    QNI_TRY(qni_sized_read(&own, sizeof own, cost, err));
    return device->set_cost(ctx, &own, err);
}
