/* SPDX-License-Identifier: Apache-2.0 */
/* Writing safetensors files tensor by tensor: everything is declared first, so the header, whose
 * offsets need all sizes, is written before any data; tensors then come in any order, and the file
 * gets its name when all are there. Writing into the part file is in journal.c, going on where an
 * earlier run ended in resume.c, the weights in save.c. No tensor is held in memory, no file is
 * ever seen half written. */
#include <stdio.h>
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "json.h"
#include "writer.h"

/* ---- names ----------------------------------------------------------------------------------- */

static uint64_t hash_text(const char *text)
{
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (; *text != 0; text++)
        hash = (hash ^ (uint8_t)*text) * 0x100000001b3u;
    return hash ^ hash >> 32;
}

static size_t *find_cell(const struct qni_names *names, const char *texts, const char *text)
{
    size_t at = (size_t)hash_text(text) & (names->capacity - 1);
    while (names->cells[at] != 0 && strcmp(texts + names->cells[at], text) != 0)
        at = (at + 1) & (names->capacity - 1);
    return &names->cells[at];
}

static bool has_name(const struct qni_names *names, const char *texts, const char *text)
{
    return names->capacity > 0 && *find_cell(names, texts, text) != 0;
}

/* At most half full. */
static bool insert_name(const struct qni_allocator *a, struct qni_names *names, const char *texts,
                        size_t place)
{
    if (2 * (names->count + 1) > names->capacity) {
        const struct qni_names old = *names;
        const size_t capacity = old.capacity == 0 ? 64 : 2 * old.capacity;
        size_t *cells = qni_alloc_zero(a, capacity * sizeof *cells);
        if (cells == NULL)
            return false;
        names->cells = cells;
        names->capacity = capacity;
        for (size_t i = 0; i < old.capacity; i++)
            if (old.cells[i] != 0)
                *find_cell(names, texts, texts + old.cells[i]) = old.cells[i];
        qni_free(a, old.cells, old.capacity * sizeof *old.cells);
    }
    *find_cell(names, texts, texts + place) = place;
    names->count++;
    return true;
}

/* Keep a copy of text; its place, or 0 when memory is out. */
static size_t keep_text(qn_writer *writer, const char *text)
{
    const size_t bytes = strlen(text) + 1;
    size_t wanted = writer->texts_capacity;
    while (writer->texts_used + bytes > wanted)
        wanted = wanted == 0 ? 4096 : 2 * wanted;
    if (wanted != writer->texts_capacity) {
        char *larger = qni_alloc(&writer->allocator, wanted);
        if (larger == NULL)
            return 0;
        if (writer->texts_used > 0)
            memcpy(larger, writer->texts, writer->texts_used);
        qni_free(&writer->allocator, writer->texts, writer->texts_capacity);
        writer->texts = larger;
        writer->texts_capacity = wanted;
        if (writer->texts_used == 0)
            writer->texts[writer->texts_used++] = 0; /* no text has place 0 */
        return keep_text(writer, text);
    }
    const size_t place = writer->texts_used;
    memcpy(writer->texts + place, text, bytes);
    writer->texts_used += bytes;
    return place;
}

static bool is_utf8(const char *text)
{
    const size_t size = strlen(text);
    for (size_t at = 0; at < size;) {
        const size_t length = qni_utf8_length((const uint8_t *)text + at, size - at);
        if (length == 0)
            return false;
        at += length;
    }
    return true;
}

/* ---- declaring ------------------------------------------------------------------------------- */

qn_status qni_writer_expect(const qn_writer *writer, bool begun, const char *call, qn_error *err)
{
    if (writer == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "%s: writer is NULL", call);
    if ((writer->output != NULL) != begun)
        return qni_fail(err, QN_E_ARGUMENT,
                        begun ? "%s: qn_writer_begin() comes first"
                              : "%s: too late, the header is written",
                        call);
    return QN_OK;
}

qn_status qn_writer_create(const qn_ctx *ctx, const char *path, qn_writer **writer, qn_error *err)
{
    if (ctx == NULL || path == NULL || writer == NULL || path[0] == 0)
        return qni_fail(err, QN_E_ARGUMENT, "qn_writer_create: ctx, path or writer is missing");
    *writer = NULL;
    const size_t path_bytes = strlen(path) + 1;
    qn_writer *w = qni_alloc_zero(&ctx->allocator, sizeof *w);
    char *copy = w == NULL ? NULL : qni_alloc(&ctx->allocator, path_bytes);
    if (copy == NULL) {
        qni_free(&ctx->allocator, w, sizeof *w);
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    }
    w->allocator = ctx->allocator;
    w->kind = QN_FILE_SAFETENSORS;
    w->path = memcpy(copy, path, path_bytes);
    w->path_bytes = path_bytes;
    *writer = w;
    return QN_OK;
}

qn_status qni_writer_check_name(const qn_writer *writer, const char *name, qn_error *err)
{
    char shown[QNI_SHOWN];
    if (name == NULL || !is_utf8(name))
        return qni_fail(err, QN_E_ARGUMENT, "a tensor's name must be UTF-8 text");
    if (strcmp(name, "__metadata__") == 0)
        return qni_fail(err, QN_E_ARGUMENT, "no tensor can be named __metadata__");
    if (has_name(&writer->tensor_names, writer->texts, name))
        return qni_fail(err, QN_E_EXISTS, "a tensor '%s' is declared already",
                        qni_shown(shown, name));
    return QN_OK;
}

static qn_status slot_bytes(const char *name, qn_dtype dtype, int32_t rank, const int64_t *shape,
                            size_t *bytes, qn_error *err)
{
    char shown[QNI_SHOWN];
    if (rank < 0 || rank > QN_MAX_RANK || (rank > 0 && shape == NULL))
        return qni_fail(err, QN_E_ARGUMENT, "tensor '%s': rank %d is not 0 to %d",
                        qni_shown(shown, name), rank, QN_MAX_RANK);
    if (qni_dtype_spelling(dtype) == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "tensor '%s': safetensors has no element type %s",
                        qni_shown(shown, name), qn_dtype_name(dtype));
    int64_t nonzero = (int64_t)qn_dtype_bytes(dtype);
    bool is_empty = false;
    for (int32_t i = 0; i < rank; i++) {
        is_empty = is_empty || shape[i] == 0;
        if (shape[i] < 0 || (shape[i] > 0 && !qni_i64_mul(nonzero, shape[i], &nonzero)))
            return qni_fail(err, QN_E_ARGUMENT,
                            "tensor '%s': dimension %d is %lld: negative, or too large together",
                            qni_shown(shown, name), i, (long long)shape[i]);
    }
    *bytes = is_empty ? 0 : (size_t)nonzero;
    return QN_OK;
}

qn_status qni_writer_declare(qn_writer *writer, const char *name, qn_dtype dtype, int32_t rank,
                             const int64_t *shape, qn_error *err)
{
    struct qni_slot slot = {.dtype = dtype, .rank = rank, .alignment = qn_dtype_bytes(dtype)};
    QNI_TRY(qni_writer_check_name(writer, name, err));
    QNI_TRY(slot_bytes(name, dtype, rank, shape, &slot.bytes, err));
    if (rank > 0)
        memcpy(slot.shape, shape, (size_t)rank * sizeof *shape);
    void *slots = writer->slots;
    const bool grown = qni_grow(&writer->allocator, &slots, &writer->slot_capacity, writer->n_slots,
                                sizeof *writer->slots);
    writer->slots = slots;
    slot.name = grown ? keep_text(writer, name) : 0;
    if (slot.name == 0 ||
        !insert_name(&writer->allocator, &writer->tensor_names, writer->texts, slot.name))
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    writer->slots[writer->n_slots++] = slot;
    return QN_OK;
}

qn_status qni_writer_add_item(qn_writer *writer, size_t n_slots, const struct qni_weight_plan *plan,
                              int64_t *index, qn_error *err)
{
    void *items = writer->items;
    const bool grown = qni_grow(&writer->allocator, &items, &writer->item_capacity, writer->n_items,
                                sizeof *writer->items);
    writer->items = items;
    if (!grown)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    struct qni_item *item = &writer->items[writer->n_items];
    memset(item, 0, sizeof *item);
    item->slot = (uint32_t)(writer->n_slots - n_slots);
    item->n_slots = (uint32_t)n_slots;
    item->is_weight = plan != NULL;
    if (plan != NULL)
        item->plan = *plan;
    if (index != NULL)
        *index = (int64_t)writer->n_items;
    writer->n_items++;
    return QN_OK;
}

static void clear_names(struct qni_names *names)
{
    if (names->capacity > 0)
        memset(names->cells, 0, names->capacity * sizeof *names->cells);
    names->count = 0;
}

/* The tables are filled again instead of deleted from: this is rare, and they stay simple. */
void qni_writer_rewind(qn_writer *writer, size_t n_slots, size_t n_pairs)
{
    writer->n_slots = n_slots;
    writer->n_pairs = n_pairs;
    clear_names(&writer->tensor_names);
    clear_names(&writer->keys);
    for (size_t i = 0; i < n_slots; i++, writer->tensor_names.count++)
        *find_cell(&writer->tensor_names, writer->texts, writer->texts + writer->slots[i].name) =
            writer->slots[i].name;
    for (size_t i = 0; i < n_pairs; i++, writer->keys.count++)
        *find_cell(&writer->keys, writer->texts, writer->texts + writer->pairs[i].key) =
            writer->pairs[i].key;
}

qn_status qn_writer_add(qn_writer *writer, const char *name, qn_dtype dtype, int32_t rank,
                        const int64_t *shape, int64_t *index, qn_error *err)
{
    QNI_TRY(qni_writer_expect(writer, false, "qn_writer_add", err));
    const size_t n_slots = writer->n_slots;
    qn_status status = qni_writer_declare(writer, name, dtype, rank, shape, err);
    if (status == QN_OK)
        status = qni_writer_add_item(writer, 1, NULL, index, err);
    if (status != QN_OK)
        qni_writer_rewind(writer, n_slots, writer->n_pairs);
    return status;
}

qn_status qn_writer_metadata(qn_writer *writer, const char *key, const char *value, qn_error *err)
{
    char shown[QNI_SHOWN];
    QNI_TRY(qni_writer_expect(writer, false, "qn_writer_metadata", err));
    if (writer->kind == QN_FILE_GGUF)
        return qn_writer_value(writer, key, QN_VALUE_TEXT, value, value == NULL ? 0 : strlen(value),
                               err);
    if (key == NULL || value == NULL || !is_utf8(key) || !is_utf8(value))
        return qni_fail(err, QN_E_ARGUMENT, "metadata must be UTF-8 text");
    if (strncmp(key, QNI_SUM_KEY, strlen(QNI_SUM_KEY)) == 0)
        return qni_fail(err, QN_E_ARGUMENT,
                        "metadata keys that begin with " QNI_SUM_KEY " are for checksums, which "
                        "the writer computes");
    if (strcmp(key, QNI_HEADER_KEY) == 0 || strcmp(key, QNI_HEADER_SUM_KEY) == 0)
        return qni_fail(err, QN_E_ARGUMENT,
                        "the metadata key '%s' is for the header's checksum, which the writer "
                        "computes",
                        key);
    if (has_name(&writer->keys, writer->texts, key))
        return qni_fail(err, QN_E_EXISTS, "the metadata key '%s' is taken", qni_shown(shown, key));
    void *pairs = writer->pairs;
    const bool grown = qni_grow(&writer->allocator, &pairs, &writer->pair_capacity, writer->n_pairs,
                                sizeof *writer->pairs);
    writer->pairs = pairs;
    const size_t key_place = grown ? keep_text(writer, key) : 0;
    const size_t value_place = key_place != 0 ? keep_text(writer, value) : 0;
    if (value_place == 0 ||
        !insert_name(&writer->allocator, &writer->keys, writer->texts, key_place))
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    writer->pairs[writer->n_pairs++] = (struct qni_pair){key_place, value_place};
    return QN_OK;
}

size_t qni_writer_keep_key(qn_writer *writer, const char *key)
{
    const size_t place = keep_text(writer, key);
    return place != 0 && insert_name(&writer->allocator, &writer->keys, writer->texts, place)
               ? place
               : 0;
}

bool qni_writer_has_key(const qn_writer *writer, const char *key)
{
    return has_name(&writer->keys, writer->texts, key);
}

/* ---- begin, put, finish ---------------------------------------------------------------------- */

/* Put the file's name in front of a sentence that lacks it. */
static qn_status name_file(const qn_writer *writer, qn_status status, const qn_error *inner,
                           qn_error *err)
{
    char shown[QNI_SHOWN_PATH];
    return qni_fail_at(err, status, inner->offset, "%s: %s", qni_shown_path(shown, writer->path),
                       inner->text);
}

qn_status qn_output_check(const char *path, int32_t overwrite, qn_error *err)
{
    const struct qni_allocator a = qni_allocator_default();
    qn_error inner = {QN_OK, -1, ""};
    char shown[QNI_SHOWN_PATH];
    if (path == NULL || path[0] == 0)
        return qni_fail(err, QN_E_ARGUMENT, "qn_output_check: path is NULL or empty");
    const qn_status status = qni_output_check(&a, path, overwrite, &inner);
    if (status == QN_OK)
        return QN_OK;
    return qni_fail(err, status, "%s: %s", qni_shown_path(shown, path), inner.text);
}

static qn_status begin(qn_writer *writer, int32_t overwrite, int32_t resume, qn_error *err)
{
    QNI_TRY(writer->kind == QN_FILE_GGUF ? qni_gguf_layout(writer, err)
                                         : qni_writer_layout(writer, err));
    if (writer->buffer == NULL)
        writer->buffer = qni_alloc(&writer->allocator, QNI_WRITER_BUFFER);
    if (writer->buffer == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    QNI_TRY(qni_output_open(&writer->allocator, writer->path, overwrite, &writer->output, err));
    bool is_same = false;
    qn_status status = qni_journal_look(writer, resume, &is_same, err);
    /* What an earlier run left stays if it cannot be read now; what this one could not begin goes.
     */
    const bool keep_part = status != QN_OK;
    if (status == QN_OK && !is_same)
        status = qni_journal_start(writer, err);
    if (status != QN_OK) {
        qni_output_close(writer->output, keep_part);
        writer->output = NULL;
    }
    return status;
}

qn_status qn_writer_begin(qn_writer *writer, int32_t overwrite, int32_t resume, qn_error *err)
{
    qn_error inner = {QN_OK, -1, ""};
    QNI_TRY(qni_writer_expect(writer, false, "qn_writer_begin", err));
    const qn_status status = begin(writer, overwrite, resume, &inner);
    return status == QN_OK ? QN_OK : name_file(writer, status, &inner, err);
}

static const struct qni_item *find_item(const qn_writer *writer, int64_t index)
{
    return index >= 0 && index < (int64_t)writer->n_items ? &writer->items[index] : NULL;
}

int32_t qn_writer_is_done(const qn_writer *writer, int64_t index)
{
    const struct qni_item *item = writer == NULL ? NULL : find_item(writer, index);
    if (item == NULL || writer->output == NULL)
        return 0;
    for (uint32_t i = 0; i < item->n_slots; i++)
        if (writer->slots[item->slot + i].done == 0)
            return 0;
    return 1;
}

static qn_status check_put(const qn_writer *writer, int64_t index, const qn_tensor *tensor,
                           qn_error *err)
{
    char shown[QNI_SHOWN];
    const struct qni_item *item = find_item(writer, index);
    if (item == NULL || item->is_weight || tensor == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_writer_put: index %lld is no tensor of this file%s",
                        (long long)index, tensor == NULL ? ", or tensor is NULL" : "");
    const struct qni_slot *slot = &writer->slots[item->slot];
    qni_shown(shown, writer->texts + slot->name);
    if (tensor->dtype != slot->dtype)
        return qni_fail(err, QN_E_DTYPE, "tensor '%s' was declared as %s and is given as %s", shown,
                        qn_dtype_name(slot->dtype), qn_dtype_name(tensor->dtype));
    bool is_same = tensor->rank == slot->rank, is_contiguous = true;
    int64_t step = 1;
    for (int32_t i = slot->rank - 1; is_same && i >= 0; i--) {
        is_same = tensor->shape[i] == slot->shape[i];
        is_contiguous = is_contiguous && (slot->shape[i] <= 1 || tensor->stride[i] == step);
        step *= slot->shape[i] == 0 ? 1 : slot->shape[i];
    }
    if (!is_same)
        return qni_fail(err, QN_E_SHAPE, "tensor '%s' has another shape than declared", shown);
    if (!is_contiguous && slot->bytes > 0)
        return qni_fail(err, QN_E_STRIDE, "tensor '%s' is not contiguous", shown);
    if (slot->bytes > 0 && (tensor->data == NULL || tensor->device.kind != QN_CPU))
        return qni_fail(err, QN_E_ARGUMENT, "tensor '%s' is not in CPU memory", shown);
    return QN_OK;
}

qn_status qn_writer_put(qn_writer *writer, int64_t index, const qn_tensor *tensor, qn_error *err)
{
    qn_error inner = {QN_OK, -1, ""};
    struct qni_sink sink;
    QNI_TRY(qni_writer_expect(writer, true, "qn_writer_put", err));
    QNI_TRY(check_put(writer, index, tensor, err));
    struct qni_slot *slot = &writer->slots[writer->items[index].slot];
    qn_status status = qni_sink_open(&sink, writer, slot, &inner);
    if (status == QN_OK)
        status = qni_sink_put(&sink, tensor->data, slot->bytes, &inner);
    if (status == QN_OK)
        status = qni_sink_close(&sink, &inner);
    return status == QN_OK ? QN_OK : name_file(writer, status, &inner, err);
}

static void free_writer(qn_writer *writer)
{
    const struct qni_allocator a = writer->allocator;
    qni_free(&a, writer->texts, writer->texts_capacity);
    qni_free(&a, writer->slots, writer->slot_capacity * sizeof *writer->slots);
    qni_free(&a, writer->items, writer->item_capacity * sizeof *writer->items);
    qni_free(&a, writer->pairs, writer->pair_capacity * sizeof *writer->pairs);
    qni_free(&a, writer->tensor_names.cells, writer->tensor_names.capacity * sizeof(size_t));
    qni_free(&a, writer->keys.cells, writer->keys.capacity * sizeof(size_t));
    qni_free(&a, writer->facts, writer->facts_capacity);
    qni_free(&a, writer->values, writer->value_capacity * sizeof *writer->values);
    qni_free(&a, writer->values_data, writer->values_capacity);
    qni_free(&a, writer->header, writer->header_bytes);
    qni_free(&a, writer->buffer, QNI_WRITER_BUFFER);
    qni_free(&a, writer->path, writer->path_bytes);
    qni_free(&a, writer, sizeof *writer);
}

/* The data reaches the disk before the journal is cut off, and the length before the name. */
static qn_status finish(qn_writer *writer, qn_error *err)
{
    char shown[QNI_SHOWN];
    for (size_t i = 0; i < writer->n_slots; i++)
        if (writer->slots[i].done == 0)
            return qni_fail(err, QN_E_ARGUMENT, "tensor '%s' was not written",
                            qni_shown(shown, writer->texts + writer->slots[i].name));
    QNI_TRY(qni_output_sync(writer->output, err));
    QNI_TRY(qni_output_cut(writer->output, writer->file_bytes, err));
    qn_status status = qni_writer_put_sums(writer, err);
    if (status == QN_OK)
        status = qni_output_sync(writer->output, err);
    if (status == QN_OK)
        status = qni_output_publish(writer->output, err);
    if (status != QN_OK) /* the name was taken meanwhile, say: the work is not lost */
        qni_journal_restore(writer);
    return status;
}

qn_status qni_writer_finish(qn_writer *writer, int32_t keep_part, qn_error *err)
{
    qn_error inner = {QN_OK, -1, ""};
    if (writer == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_writer_finish: writer is NULL");
    qn_status status = qni_writer_expect(writer, true, "qn_writer_finish", &inner);
    if (status == QN_OK)
        status = finish(writer, &inner);
    if (status != QN_OK)
        name_file(writer, status, &inner, err);
    qni_output_close(writer->output, keep_part);
    free_writer(writer);
    return status;
}

qn_status qn_writer_finish(qn_writer *writer, qn_error *err)
{
    return qni_writer_finish(writer, 1, err);
}

void qn_writer_abort(qn_writer *writer, int32_t keep_part)
{
    if (writer == NULL)
        return;
    qni_output_close(writer->output, keep_part);
    free_writer(writer);
}
