/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights in files: the blob of quant/packed.h as it is, as U8 tensor <name>.packed that
 * begins at a multiple of 64 bytes and is padded to one with zeros, and a line of metadata for
 * people. Loading reads the head and compares it with that line, and nothing else. */
#include "packed.h"

#include <stdio.h>
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "file.h"
#include "writer.h"

/* ---- saving ---------------------------------------------------------------------------------- */

static qn_status declare(qn_writer *writer, const char *name, const qn_packed *packed,
                         int64_t *index, qn_error *err)
{
    const struct qni_packed_head *head = packed->head;
    char words[QNI_PACKED_WORDS];
    const size_t bytes = strlen(name) + 32;
    char *full = qni_alloc(&writer->allocator, bytes);
    if (full == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    const int64_t shape = (int64_t)qni_round_up((size_t)head->bytes, QNI_DATA_ALIGNMENT);
    snprintf(full, bytes, "%s.packed", name);
    int64_t added = 0;
    const size_t n_slots = writer->n_slots, n_items = writer->n_items;
    qn_status status = qn_writer_add(writer, full, QN_U8, 1, &shape, &added, err);
    if (status == QN_OK)
        writer->slots[writer->n_slots - 1].alignment = QNI_DATA_ALIGNMENT;
    qni_packed_words(head, words);
    snprintf(full, bytes, QNI_PACKED_KEY "%s", name);
    if (status == QN_OK) {
        status = qn_writer_metadata(writer, full, words, err);
        if (status != QN_OK) {
            writer->n_items = n_items;
            qni_writer_rewind(writer, n_slots, writer->n_pairs);
        }
    }
    if (status == QN_OK && index != NULL)
        *index = added;
    qni_free(&writer->allocator, full, bytes);
    return status;
}

/* The blob, a piece at a time where it has to come from a device. */
enum { PIECE_BYTES = 1 << 22 };
static qn_status put_blob(struct qni_sink *sink, const qn_ctx *ctx, const qn_packed *packed,
                          qn_error *err)
{
    const size_t bytes = (size_t)packed->head->bytes;
    if (packed->read == NULL)
        return qni_sink_put(sink, packed->blob, bytes, err);
    const size_t most = bytes < PIECE_BYTES ? bytes : (size_t)PIECE_BYTES;
    uint8_t *piece = qni_alloc(&ctx->allocator, most);
    qn_status status = piece != NULL ? QN_OK : qni_fail(err, QN_E_MEMORY, "out of memory");
    for (size_t at = 0; status == QN_OK && at < bytes; at += most) {
        const size_t n = bytes - at < most ? bytes - at : most;
        status = packed->read(ctx, packed, at, n, piece, err);
        if (status == QN_OK)
            status = qni_sink_put(sink, piece, n, err);
    }
    qni_free(&ctx->allocator, piece, most);
    return status;
}

static qn_status put(qn_writer *writer, int64_t index, const qn_ctx *ctx, const qn_packed *packed,
                     qn_error *err)
{
    static const uint8_t zeros[QNI_DATA_ALIGNMENT];
    struct qni_sink sink;
    struct qni_slot *slot = &writer->slots[writer->items[index].slot];
    const size_t bytes = (size_t)packed->head->bytes;
    QNI_TRY(qni_sink_open(&sink, writer, slot, err));
    QNI_TRY(put_blob(&sink, ctx, packed, err));
    QNI_TRY(qni_sink_put(&sink, zeros, slot->bytes - bytes, err));
    return qni_sink_close(&sink, err);
}

qn_status qn_writer_add_packed(qn_writer *writer, const char *name, const qn_packed *packed,
                               int64_t *index, qn_error *err)
{
    if (writer == NULL || name == NULL || packed == NULL || writer->kind == QN_FILE_GGUF)
        return qni_fail(err, QN_E_ARGUMENT,
                        "qn_writer_add_packed: an argument is NULL, or a GGUF file is written");
    return declare(writer, name, packed, index, err);
}

/* Does the device of ctx reach the weights? */
static bool is_there(const qn_ctx *ctx, const qn_packed *packed)
{
    const qn_device d = packed->device;
    return packed->read == NULL ||
           (ctx != NULL && d.kind == ctx->device.kind && d.index == ctx->device.index);
}

qn_status qn_writer_put_packed(qn_writer *writer, int64_t index, const qn_ctx *ctx,
                               const qn_packed *packed, qn_error *err)
{
    if (packed == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_writer_put_packed: packed is NULL");
    QNI_TRY(qni_writer_expect(writer, true, "qn_writer_put_packed", err));
    if (index < 0 || (size_t)index >= writer->n_items || writer->items[index].is_weight)
        return qni_fail(err, QN_E_ARGUMENT, "qn_writer_put_packed: item %lld is not declared",
                        (long long)index);
    const struct qni_slot *slot = &writer->slots[writer->items[index].slot];
    if (qni_round_up((size_t)packed->head->bytes, QNI_DATA_ALIGNMENT) != slot->bytes)
        return qni_fail(err, QN_E_SHAPE, "qn_writer_put_packed: %llu bytes, declared were %zu",
                        (unsigned long long)packed->head->bytes, slot->bytes);
    if (!is_there(ctx, packed))
        return qni_fail(err, QN_E_DEVICE,
                        "qn_writer_put_packed: the context is not of the weights' device");
    return put(writer, index, ctx, packed, err);
}

static qn_status check_save(const qn_ctx *ctx, int32_t count, const char *const *names,
                            const qn_packed *const *packed, qn_error *err)
{
    if (count < 0 || (count > 0 && (names == NULL || packed == NULL)))
        return qni_fail(err, QN_E_ARGUMENT, "qn_packed_save: names or packed is NULL");
    for (int32_t i = 0; i < count; i++) {
        if (names[i] == NULL || packed[i] == NULL)
            return qni_fail(err, QN_E_ARGUMENT, "qn_packed_save: name or weights %d is NULL", i);
        const qn_device d = packed[i]->device;
        if (packed[i]->read != NULL && ctx != NULL &&
            (d.kind != ctx->device.kind || d.index != ctx->device.index))
            return qni_fail(err, QN_E_DEVICE,
                            "qn_packed_save: weights %d are on device %d:%d, the context on %d:%d; "
                            "save them with a context of their device",
                            i, d.kind, d.index, ctx->device.kind, ctx->device.index);
    }
    return QN_OK;
}

qn_status qn_packed_save(const qn_ctx *ctx, const char *path, int32_t count,
                         const char *const *names, const qn_packed *const *packed,
                         int32_t overwrite, qn_error *err)
{
    qn_writer *writer = NULL;
    qn_error inner = {QN_OK, -1, ""};
    char shown[QNI_SHOWN_PATH];
    QNI_TRY(check_save(ctx, count, names, packed, err));
    QNI_TRY(qn_writer_create(ctx, path, &writer, err));
    qn_status status = QN_OK;
    for (int32_t i = 0; status == QN_OK && i < count; i++)
        status = declare(writer, names[i], packed[i], NULL, err);
    if (status == QN_OK)
        status = qn_writer_begin(writer, overwrite, 0, err);
    for (int32_t i = 0; status == QN_OK && i < count; i++) {
        status = put(writer, i, ctx, packed[i], &inner);
        if (status != QN_OK)
            qni_fail_at(err, status, inner.offset, "%s: %s", qni_shown_path(shown, path),
                        inner.text);
    }
    if (status != QN_OK) {
        qn_writer_abort(writer, 0);
        return status;
    }
    return qni_writer_finish(writer, 0, err);
}

/* ---- mapping --------------------------------------------------------------------------------- */

struct mapped {
    qn_packed packed; /* first: release() gets its address */
    struct qni_packed_head head;
};

static void release(qn_packed *packed)
{
    struct mapped *m = (struct mapped *)packed;
    const struct qni_allocator a = packed->allocator;
    qni_mapping_release(packed->owner);
    qni_free(&a, m, sizeof *m);
}

static qn_status find_blob(const qn_file *file, const char *name, qn_entry *entry, qn_error *err)
{
    const size_t bytes = strlen(name) + 32;
    char *full = qni_alloc(&file->allocator, bytes);
    if (full == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    snprintf(full, bytes, "%s.packed", name);
    const qn_status status = qn_file_find(file, full, entry);
    qni_free(&file->allocator, full, bytes);
    return status == QN_OK ? QN_OK : qni_fail(err, QN_E_NOT_FOUND, "are not in the file");
}

/* A file without words about the weights has nothing that could contradict them. */
static qn_status check_words(const qn_file *file, const char *name,
                             const struct qni_packed_head *head, qn_error *err)
{
    const size_t bytes = strlen(name) + sizeof QNI_PACKED_KEY;
    char *key = qni_alloc(&file->allocator, bytes);
    if (key == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    snprintf(key, bytes, QNI_PACKED_KEY "%s", name);
    const char *words = qn_file_get_metadata(file, key);
    qni_free(&file->allocator, key, bytes);
    return words == NULL ? QN_OK : qni_packed_words_agree(&file->allocator, words, head, err);
}

static qn_status check_blob(const qn_entry *entry, struct qni_packed_head *head, qn_error *err)
{
    if (entry->tensor.dtype != QN_U8 || entry->tensor.rank != 1 || entry->bytes < sizeof *head)
        return qni_fail_at(err, QN_E_CORRUPT, entry->offset,
                           "the tensor is not one of bytes, or too short for a head");
    if ((uintptr_t)entry->tensor.data % QNI_DATA_ALIGNMENT != 0)
        return qni_fail_at(err, QN_E_CORRUPT, entry->offset,
                           "do not begin at a multiple of 64 bytes; was the file rewritten by "
                           "another program?");
    memcpy(head, entry->tensor.data, sizeof *head);
    QNI_TRY(qni_packed_head_check(head, entry->bytes, err));
    /* Said again although the head's owner says it: everything below stands on it. */
    if (head->bytes > entry->bytes || entry->bytes - head->bytes >= QNI_DATA_ALIGNMENT)
        return qni_fail_at(err, QN_E_CORRUPT, entry->offset,
                           "are %llu bytes by their head and %llu in the file",
                           (unsigned long long)head->bytes, (unsigned long long)entry->bytes);
    return QN_OK;
}

qn_status qni_packed_map(const struct qni_allocator *a, const qn_file *file, const char *name,
                         qn_packed **packed, qn_error *err)
{
    qn_entry entry;
    QNI_TRY(find_blob(file, name, &entry, err));
    struct mapped *m = qni_alloc_zero(a, sizeof *m);
    if (m == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    qn_status status = check_blob(&entry, &m->head, err);
    if (status == QN_OK)
        status = check_words(file, name, &m->head, err);
    if (status == QN_OK)
        status = qni_file_check_loaded(file, &entry, err);
    if (status != QN_OK) {
        qni_free(a, m, sizeof *m);
        return status;
    }
    m->packed.allocator = *a;
    m->packed.device.kind = m->head.device_kind;
    m->packed.head = &m->head;
    m->packed.blob = entry.tensor.data;
    m->packed.table = qni_section(&m->packed, QNI_SECTION_TABLE);
    m->packed.release = release;
    m->packed.owner = qni_mapping_retain(file->mapping);
    *packed = &m->packed;
    return QN_OK;
}
