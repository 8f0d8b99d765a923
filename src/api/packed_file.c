/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights from a file: the file is looked at in src/checkpoint, here the device that shall
 * run them is asked. On the CPU nothing is copied; to another device the blob goes as it is.
 * Nothing that a kernel uses as an index stays unchecked. */
#include "../base/compiler.h"
#include "../base/error.h"
#include "../checkpoint/file.h"
#include "../checkpoint/packed.h"
#include "backend.h"

static qn_status check_device(const qn_ctx *ctx, const qn_packed *packed, qn_error *err)
{
    const struct qni_packed_head *head = packed->head;
    const struct qni_backend *backend = qni_backend_of(ctx->device.kind);
    const uint64_t missing = head->isa & ~ctx->isa;
    if (head->device_kind != ctx->device.kind || backend == NULL)
        return qni_fail(err, QN_E_LAYOUT, "are packed for %s, the context is on %s",
                        head->device_kind == QN_CPU ? "a CPU" : "a GPU",
                        ctx->device.kind == QN_CPU ? "a CPU" : "a GPU");
    if (missing != 0) {
        const char *name = qn_isa_name(missing & (~missing + 1));
        return qni_fail(err, QN_E_LAYOUT,
                        "are packed for a CPU with %s, which this one lacks or the context masks",
                        name == NULL ? "a feature that this version does not know" : name);
    }
    return backend->packed_check(packed, err);
}

/* Weights in host memory where the device can run them. */
static qn_status place(const qn_ctx *ctx, qn_packed **packed, qn_error *err)
{
    const struct qni_backend *backend = qni_backend_of(ctx->device.kind);
    qn_packed *mapped = *packed, *there;
    if (backend->packed_upload == NULL)
        return QN_OK;
    QNI_TRY(backend->packed_upload(ctx, mapped, &there, err));
    qn_packed_destroy(mapped);
    *packed = there;
    return QN_OK;
}

qn_status qn_packed_load(const qn_ctx *ctx, const qn_file *file, const char *name,
                         qn_packed **packed, qn_error *err)
{
    qn_packed *found = NULL;
    qn_error inner = {QN_OK, -1, ""};
    if (packed != NULL)
        *packed = NULL;
    if (ctx == NULL || file == NULL || name == NULL || packed == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_packed_load: an argument is NULL");
    qn_status status = qni_packed_map(&ctx->allocator, file, name, &found, &inner);
    if (status == QN_OK)
        status = check_device(ctx, found, &inner);
    if (status == QN_OK)
        status = place(ctx, &found, &inner);
    if (status != QN_OK) {
        qn_packed_destroy(found);
        return qni_fail_at(err, status, inner.offset, "packed weights '%.80s': %s", name,
                           inner.text);
    }
    *packed = found;
    return QN_OK;
}

qn_status qn_file_packed_info(const qn_file *file, const char *name, qn_packed_info *info,
                              qn_error *err)
{
    qn_packed *found = NULL;
    qn_error inner = {QN_OK, -1, ""};
    if (file == NULL || name == NULL || info == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_file_packed_info: an argument is NULL");
    qn_status status = qni_packed_map(&file->allocator, file, name, &found, &inner);
    if (status == QN_OK)
        status = qn_packed_query(found, info);
    qn_packed_destroy(found);
    return status == QN_OK ? QN_OK
                           : qni_fail_at(err, status, inner.offset, "packed weights '%.80s': %s",
                                         name, inner.text);
}
