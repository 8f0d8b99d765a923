/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights from a file or from memory: the file is looked at in src/checkpoint, here the
 * device that shall run them is asked. On the CPU nothing is copied; to another device the blob
 * goes as it is. Nothing that a kernel uses as an index stays unchecked. */
#include <string.h>

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

/* ---- in memory ------------------------------------------------------------------------------- */

qn_status qn_packed_data(const qn_packed *packed, const void **data, size_t *bytes)
{
    if (packed == NULL || data == NULL || bytes == NULL)
        return QN_E_ARGUMENT;
    if (packed->read != NULL)
        return QN_E_DEVICE;
    *data = packed->blob;
    *bytes = (size_t)packed->head->bytes;
    return QN_OK;
}

qn_status qn_packed_copy(const qn_ctx *ctx, const qn_packed *packed, void *to, size_t capacity,
                         qn_error *err)
{
    if (ctx == NULL || packed == NULL || to == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_packed_copy: an argument is NULL");
    const size_t bytes = (size_t)packed->head->bytes;
    const qn_device d = packed->device;
    if (capacity < bytes)
        return qni_fail(err, QN_E_SCRATCH,
                        "qn_packed_copy: there is room for %zu bytes, the packed weights have %zu",
                        capacity, bytes);
    if (d.kind != ctx->device.kind || d.index != ctx->device.index)
        return qni_fail(err, QN_E_DEVICE,
                        "qn_packed_copy: the context is not of the weights' device");
    if (packed->read != NULL)
        return packed->read(ctx, packed, 0, bytes, to, err);
    memcpy(to, packed->blob, bytes);
    return QN_OK;
}

/* A blob of the caller's. The head is a copy: what was checked stays as it was. */
struct borrowed {
    qn_packed packed; /* first: release() gets its address */
    struct qni_packed_head head;
    qn_release_fn release;
    void *release_arg;
};

static void release_borrowed(qn_packed *packed)
{
    struct borrowed *b = (struct borrowed *)packed;
    const struct qni_allocator a = packed->allocator;
    if (b->release != NULL)
        b->release(b->release_arg);
    qni_free(&a, b, sizeof *b);
}

static qn_status borrow(const qn_ctx *ctx, const void *data, size_t bytes, struct borrowed **made,
                        qn_error *err)
{
    struct borrowed *b = qni_alloc_zero(&ctx->allocator, sizeof *b);
    if (b == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    memcpy(&b->head, data, bytes < sizeof b->head ? bytes : sizeof b->head);
    const qn_status status = qni_packed_head_check(&b->head, bytes, err);
    if (status != QN_OK) {
        qni_free(&ctx->allocator, b, sizeof *b);
        return status;
    }
    b->packed.allocator = ctx->allocator;
    b->packed.device.kind = b->head.device_kind;
    b->packed.head = &b->head;
    b->packed.blob = data;
    b->packed.table = qni_section(&b->packed, QNI_SECTION_TABLE);
    b->packed.release = release_borrowed;
    *made = b;
    return QN_OK;
}

qn_status qn_packed_from_memory(const qn_ctx *ctx, const void *data, size_t bytes,
                                qn_release_fn release, void *release_arg, qn_packed **packed,
                                qn_error *err)
{
    struct borrowed *found = NULL;
    qn_error inner = {QN_OK, -1, ""};
    if (packed != NULL)
        *packed = NULL;
    if (ctx == NULL || data == NULL || packed == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_packed_from_memory: an argument is NULL");
    if ((uintptr_t)data % QNI_BLOB_ALIGNMENT != 0)
        return qni_fail(err, QN_E_ALIGN,
                        "qn_packed_from_memory: data is not at a multiple of 64 bytes");
    qn_status status = borrow(ctx, data, bytes, &found, &inner);
    qn_packed *there = status == QN_OK ? &found->packed : NULL;
    if (status == QN_OK)
        status = check_device(ctx, there, &inner);
    const bool is_copied = qni_backend_of(ctx->device.kind)->packed_upload != NULL;
    if (status == QN_OK)
        status = place(ctx, &there, &inner);
    if (status != QN_OK) {
        qn_packed_destroy(there);
        return qni_fail(err, status, "packed weights in memory: %s", inner.text);
    }
    if (is_copied && release != NULL)
        release(release_arg);
    if (!is_copied) {
        found->release = release;
        found->release_arg = release_arg;
    }
    *packed = there;
    return QN_OK;
}
