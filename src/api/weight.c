/* SPDX-License-Identifier: Apache-2.0 */
/* Packing, unpacking and asking packed weights: arguments are checked here, the device's backend
 * does the work. */
#include <string.h>

#include "../base/error.h"
#include "../base/sized.h"
#include "backend.h"

qn_status qni_read_pack_options(const qn_pack_options *options, qn_pack_options *own, qn_error *err)
{
    qn_pack_options_init(own);
    if (options != NULL)
        QNI_TRY(qni_sized_read(own, sizeof *own, options, err));
    if (own->x_block < 0)
        return qni_fail(err, QN_E_ARGUMENT,
                        "x_block is %lld: 0 (the weight's group) or more is possible",
                        (long long)own->x_block);
    if ((own->without_sums != 0 && own->without_sums != 1) || own->reserved != 0)
        return qni_fail(err, QN_E_ARGUMENT, "without_sums is 0 or 1, and reserved is 0");
    return QN_OK;
}

static qn_status read_options(const qn_ctx *ctx, const qn_weight *weight,
                              const qn_pack_options *options, qn_pack_options *own, qn_error *err)
{
    if (ctx == NULL || weight == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL", ctx == NULL ? "ctx" : "weight");
    return qni_read_pack_options(options, own, err);
}

qn_status qn_pack_bytes(const qn_ctx *ctx, const qn_weight *weight, const qn_pack_options *options,
                        size_t *bytes)
{
    qn_pack_options own;
    QNI_TRY(read_options(ctx, weight, options, &own, NULL));
    if (bytes == NULL)
        return QN_E_ARGUMENT;
    return qni_backend_of(ctx->device.kind)->pack_bytes(ctx, weight, &own, bytes, NULL);
}

qn_status qn_pack(const qn_ctx *ctx, const qn_weight *weight, const qn_pack_options *options,
                  qn_packed **packed, qn_error *err)
{
    qn_pack_options own;
    QNI_TRY(read_options(ctx, weight, options, &own, err));
    if (packed == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "packed is NULL: there is no place for the result");
    return qni_backend_of(ctx->device.kind)->pack(ctx, weight, &own, packed, err);
}

qn_status qn_pack_into(const qn_ctx *ctx, const qn_weight *weight, const qn_pack_options *options,
                       void *buffer, size_t buffer_bytes, qn_packed **packed, qn_error *err)
{
    qn_pack_options own;
    if (packed != NULL)
        *packed = NULL;
    QNI_TRY(read_options(ctx, weight, options, &own, err));
    if (packed == NULL || buffer == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL: there is no place for the result",
                        packed == NULL ? "packed" : "buffer");
    if ((uintptr_t)buffer % QNI_BLOB_ALIGNMENT != 0)
        return qni_fail(err, QN_E_ALIGN, "buffer is not at a multiple of 64 bytes");
    const struct qni_backend *backend = qni_backend_of(ctx->device.kind);
    if (backend->pack_into == NULL)
        return qni_fail(err, QN_E_UNSUPPORTED,
                        "weights for a GPU are packed into its own memory: use qn_pack()");
    return backend->pack_into(ctx, weight, &own, buffer, buffer_bytes, packed, err);
}

void qn_packed_destroy(qn_packed *packed)
{
    if (packed != NULL)
        packed->release(packed);
}

qn_status qn_unpack(const qn_ctx *ctx, const qn_packed *packed, qn_weight **weight, qn_error *err)
{
    if (ctx == NULL || packed == NULL || weight == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s is NULL",
                        ctx == NULL      ? "ctx"
                        : packed == NULL ? "packed"
                                         : "weight");
    if (packed->device.kind != ctx->device.kind || packed->device.index != ctx->device.index)
        return qni_fail(err, QN_E_DEVICE, "the weights are on device %d:%d, the context on %d:%d",
                        packed->device.kind, packed->device.index, ctx->device.kind,
                        ctx->device.index);
    return qni_backend_of(ctx->device.kind)->unpack(ctx, packed, weight, err);
}

/* The library's own text for the name in a head, which lives as long as the weights only. */
static const char *static_layout(const char *name)
{
    const char *known;
    for (int32_t i = 0; (known = qn_layout_name(i)) != NULL; i++) {
        if (strcmp(known, name) == 0)
            return known;
    }
    return "?";
}

qn_status qn_packed_query(const qn_packed *packed, qn_packed_info *info)
{
    if (packed == NULL)
        return QN_E_ARGUMENT;
    const struct qni_packed_head *head = packed->head;
    qn_packed_info own;
    qn_packed_info_init(&own);
    own.format = head->format;
    own.n = head->n;
    own.k = head->k;
    own.kh = head->kh;
    own.kw = head->kw;
    own.conv_groups = head->conv_groups;
    own.device = packed->device;
    own.layout = static_layout(head->layout);
    own.bytes = (size_t)head->bytes;
    own.x_block = head->x_block;
    own.has_sums = head->section[QNI_SECTION_SUMS].bytes != 0 || qni_is_compact(head);
    own.has_perm = head->section[QNI_SECTION_PERM].bytes != 0;
    own.has_prescale = head->section[QNI_SECTION_PRESCALE].bytes != 0;
    return qni_sized_write(info, &own, sizeof own);
}

const char *qn_layout_name(int32_t i)
{
    const struct qni_backend *backend;
    for (int32_t b = 0; (backend = qni_backend_at(b)) != NULL; b++) {
        for (int32_t of_backend = 0; backend->layout_name(of_backend) != NULL; of_backend++) {
            if (i-- == 0)
                return backend->layout_name(of_backend);
        }
    }
    return NULL;
}
