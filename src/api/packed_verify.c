/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights compared with what packing makes of their own content. Everything in a blob but
 * codes, scales, shifts, codebook, permutation and prescale follows from these; packing is
 * deterministic, so that one comparison of bytes covers sums, counts, runs, padding and gaps. */
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "backend.h"

static const char *const section_names[QNI_N_SECTIONS] = {
    [QNI_SECTION_CODES] = "codes",      [QNI_SECTION_SCALE] = "scales",
    [QNI_SECTION_OFFSET] = "offsets",   [QNI_SECTION_SUMS] = "column sums",
    [QNI_SECTION_TABLE] = "codebook",   [QNI_SECTION_RUNS] = "runs",
    [QNI_SECTION_PERM] = "permutation", [QNI_SECTION_PRESCALE] = "prescale",
    [QNI_SECTION_ZERO] = "zero points", [QNI_SECTION_GROUP_SUMS] = "group sums",
    [QNI_SECTION_COUNTS] = "counts",
};

static qn_status differs(const struct qni_packed_head *head, uint64_t at, qn_error *err)
{
    const char *name = at < sizeof *head ? "head" : "padding";
    uint64_t byte = at;
    for (int32_t i = 0; i < QNI_N_SECTIONS; i++) {
        const uint64_t from = head->section[i].offset;
        if (at >= from && at - from < head->section[i].bytes) {
            name = section_names[i] != NULL ? section_names[i] : name;
            byte = at - from;
        }
    }
    return qni_fail(err, QN_E_CORRUPT,
                    "byte %llu of the packed weights' %s is not what packing makes of their codes "
                    "and scales; pack them again",
                    (unsigned long long)byte, name);
}

/* Bytes [at, at + n) of a blob: where they lie, or a copy in room. */
static qn_status bytes_of(const qn_ctx *ctx, const qn_packed *packed, size_t at, size_t n,
                          uint8_t *room, const uint8_t **bytes, qn_error *err)
{
    *bytes = room;
    if (packed->read != NULL)
        return packed->read(ctx, packed, at, n, room, err);
    *bytes = packed->blob + at;
    return QN_OK;
}

enum { PIECE = 1 << 16 };

static qn_status compare(const qn_ctx *ctx, const qn_packed *a, const qn_packed *b, qn_error *err)
{
    const size_t bytes = (size_t)a->head->bytes;
    if (a->head->bytes != b->head->bytes)
        return differs(a->head, 0, err);
    uint8_t *room = qni_alloc(&ctx->allocator, 2 * (size_t)PIECE);
    if (room == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    qn_status status = QN_OK;
    for (size_t at = 0; at < bytes && status == QN_OK; at += PIECE) {
        const size_t n = bytes - at < PIECE ? bytes - at : PIECE;
        const uint8_t *one = NULL, *other = NULL;
        status = bytes_of(ctx, a, at, n, room, &one, err);
        if (status == QN_OK)
            status = bytes_of(ctx, b, at, n, room + PIECE, &other, err);
        if (status != QN_OK || memcmp(one, other, n) == 0)
            continue;
        size_t i = 0;
        while (one[i] == other[i])
            i++;
        status = differs(a->head, at + i, err);
    }
    qni_free(&ctx->allocator, room, 2 * (size_t)PIECE);
    return status;
}

qn_status qn_packed_verify(const qn_ctx *ctx, const qn_packed *packed, qn_error *err)
{
    qn_weight *weight = NULL;
    qn_packed *again = NULL;
    qn_pack_options options;
    qn_status status = qn_unpack(ctx, packed, &weight, err);
    if (status != QN_OK)
        return status;
    qn_pack_options_init(&options);
    options.layout = packed->head->layout;
    options.x_block = packed->head->x_block;
    options.without_sums = packed->head->section[QNI_SECTION_SUMS].bytes == 0;
    status = qn_pack(ctx, weight, &options, &again, err);
    qn_weight_destroy(weight);
    if (status == QN_OK)
        status = compare(ctx, packed, again, err);
    qn_packed_destroy(again);
    return status;
}
