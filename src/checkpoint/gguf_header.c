/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a GGUF file that is being written: version 3, keys and values as they were given,
 * tensors in the order of their declaration, data at multiples of 32. gguf.c has the format. */
#include <string.h>

#include "../base/error.h"
#include "../base/size.h"
#include "gguf.h"
#include "writer.h"

enum { ALIGNMENT = 32, MOST_NAME = 63, VERSION = 3 };

/* ---- declaring ------------------------------------------------------------------------------- */

qn_status qn_writer_set_kind(qn_writer *writer, qn_file_kind kind, qn_error *err)
{
    QNI_TRY(qni_writer_expect(writer, false, "qn_writer_set_kind", err));
    if (kind != QN_FILE_SAFETENSORS && kind != QN_FILE_GGUF)
        return qni_fail(err, QN_E_ARGUMENT, "qn_writer_set_kind: only safetensors and GGUF files");
    if (writer->n_slots > 0 || writer->n_pairs > 0 || writer->n_values > 0)
        return qni_fail(err, QN_E_ARGUMENT, "qn_writer_set_kind: something is declared already");
    writer->kind = kind;
    return QN_OK;
}

qn_status qn_writer_add_blocks(qn_writer *writer, const char *name, const char *type, int32_t rank,
                               const int64_t *shape, int64_t *index, qn_error *err)
{
    int64_t elements = 1, bytes = 0;
    QNI_TRY(qni_writer_expect(writer, false, "qn_writer_add_blocks", err));
    const struct qni_ggml_type *block = type == NULL ? NULL : qni_ggml_type_named(type);
    if (writer->kind != QN_FILE_GGUF || rank < 1 || rank > 4 || shape == NULL)
        return qni_fail(err, QN_E_ARGUMENT,
                        "qn_writer_add_blocks: no GGUF file, or not 1 to 4 dimensions");
    if (block == NULL || block->elements == 1)
        return qni_fail(err, QN_E_DTYPE, "qn_writer_add_blocks: no such type of blocks");
    for (int32_t i = 0; i < rank; i++)
        if (shape[i] < 1 || !qni_i64_mul(elements, shape[i], &elements))
            return qni_fail(err, QN_E_SHAPE, "dimension %d is %lld: not positive, or too large",
                            (int)i, (long long)shape[i]);
    if (shape[rank - 1] % block->elements != 0)
        return qni_fail(err, QN_E_SHAPE, "%lld columns are no whole blocks of %s",
                        (long long)shape[rank - 1], block->name);
    if (!qni_i64_mul(elements / block->elements, block->bytes, &bytes))
        return qni_fail(err, QN_E_SHAPE, "the size of a tensor overflows");
    QNI_TRY(qn_writer_add(writer, name, QN_U8, 1, &bytes, index, err));
    struct qni_slot *slot = &writer->slots[writer->n_slots - 1];
    slot->block = block;
    slot->block_rank = rank;
    memcpy(slot->block_shape, shape, (size_t)rank * sizeof *shape);
    return QN_OK;
}

static size_t size_of(qn_value_type type)
{
    static const uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    return sizes[type];
}

qn_status qn_writer_value(qn_writer *writer, const char *key, qn_value_type type, const void *bytes,
                          size_t count, qn_error *err)
{
    char shown[QNI_SHOWN];
    QNI_TRY(qni_writer_expect(writer, false, "qn_writer_value", err));
    if (writer->kind != QN_FILE_GGUF || key == NULL || key[0] == 0 || type < QN_VALUE_U8 ||
        type > QN_VALUE_F64 || (bytes == NULL && count > 0) ||
        (size_of(type) != 0 && size_of(type) != count))
        return qni_fail(err, QN_E_ARGUMENT,
                        "qn_writer_value: no GGUF file, no key, or no value of "
                        "that type");
    if (qni_writer_has_key(writer, key))
        return qni_fail(err, QN_E_EXISTS, "the metadata key '%s' is taken", qni_shown(shown, key));
    void *values = writer->values;
    bool good = qni_grow(&writer->allocator, &values, &writer->value_capacity, writer->n_values,
                         sizeof *writer->values);
    writer->values = values;
    size_t capacity = writer->values_capacity > 0 ? writer->values_capacity : 4096;
    while (capacity < writer->values_bytes + count)
        capacity *= 2;
    if (good && capacity != writer->values_capacity) {
        uint8_t *larger = qni_alloc(&writer->allocator, capacity);
        good = larger != NULL;
        if (good && writer->values_bytes > 0)
            memcpy(larger, writer->values_data, writer->values_bytes);
        if (good) {
            qni_free(&writer->allocator, writer->values_data, writer->values_capacity);
            writer->values_data = larger;
            writer->values_capacity = capacity;
        }
    }
    const size_t place = good ? qni_writer_keep_key(writer, key) : 0;
    if (place == 0)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    writer->values[writer->n_values++] =
        (struct qni_value){place, type, writer->values_bytes, count};
    if (count > 0)
        memcpy(writer->values_data + writer->values_bytes, bytes, count);
    writer->values_bytes += count;
    return QN_OK;
}

/* ---- the header ------------------------------------------------------------------------------ */

struct out {
    uint8_t *to; /* NULL: only count */
    size_t used;
};

static void put(struct out *o, const void *from, size_t bytes)
{
    if (o->to != NULL && bytes > 0)
        memcpy(o->to + o->used, from, bytes);
    o->used += bytes;
}

static void put_u32(struct out *o, uint32_t value)
{
    put(o, &value, sizeof value);
}

static void put_u64(struct out *o, uint64_t value)
{
    put(o, &value, sizeof value);
}

static void put_text(struct out *o, const void *from, size_t bytes)
{
    put_u64(o, bytes);
    put(o, from, bytes);
}

static const struct qni_ggml_type *type_of(const struct qni_slot *slot)
{
    for (int32_t id = 0; slot->block == NULL && id < 64; id++) {
        const struct qni_ggml_type *type = qni_ggml_type(id);
        if (type != NULL && type->elements == 1 && type->dtype == slot->dtype)
            return type;
    }
    return slot->block;
}

static void put_tensor(struct out *o, const qn_writer *writer, const struct qni_slot *slot)
{
    const char *name = writer->texts + slot->name;
    const int64_t *shape = slot->block != NULL ? slot->block_shape : slot->shape;
    const int32_t rank = slot->block != NULL ? slot->block_rank : slot->rank;
    put_text(o, name, strlen(name));
    put_u32(o, (uint32_t)rank);
    for (int32_t i = rank - 1; i >= 0; i--)
        put_u64(o, (uint64_t)shape[i]);
    put_u32(o, (uint32_t)type_of(slot)->id);
    put_u64(o, slot->offset);
}

static void put_header(struct out *o, const qn_writer *writer)
{
    put(o, "GGUF", 4);
    put_u32(o, VERSION);
    put_u64(o, writer->n_slots);
    put_u64(o, writer->n_values);
    for (size_t i = 0; i < writer->n_values; i++) {
        const struct qni_value *v = &writer->values[i];
        const char *key = writer->texts + v->key;
        put_text(o, key, strlen(key));
        put_u32(o, (uint32_t)v->type);
        if (v->type == QN_VALUE_TEXT)
            put_u64(o, v->bytes);
        put(o, writer->values_data + v->at, v->bytes);
    }
    for (size_t i = 0; i < writer->n_slots; i++)
        put_tensor(o, writer, &writer->slots[i]);
}

static qn_status place_tensors(qn_writer *writer, uint64_t *data_bytes, qn_error *err)
{
    char shown[QNI_SHOWN];
    *data_bytes = 0;
    for (size_t i = 0; i < writer->n_slots; i++) {
        struct qni_slot *slot = &writer->slots[i];
        const char *name = writer->texts + slot->name;
        if (strlen(name) > MOST_NAME)
            return qni_fail(err, QN_E_ARGUMENT, "tensor '%s': GGUF has names of at most 63 bytes",
                            qni_shown(shown, name));
        if (type_of(slot) == NULL || slot->rank > 4)
            return qni_fail(err, QN_E_DTYPE, "tensor '%s': GGUF has no %s of %d dimensions",
                            qni_shown(shown, name), qn_dtype_name(slot->dtype), (int)slot->rank);
        slot->offset = *data_bytes;
        *data_bytes = qni_round_up(*data_bytes + slot->bytes, ALIGNMENT);
        if (*data_bytes < slot->offset || *data_bytes > INT64_MAX / 2)
            return qni_fail(err, QN_E_ARGUMENT, "the tensors together are larger than 2^62");
    }
    return QN_OK;
}

qn_status qni_gguf_layout(qn_writer *writer, qn_error *err)
{
    uint64_t data_bytes = 0;
    struct out o = {NULL, 0};
    QNI_TRY(place_tensors(writer, &data_bytes, err));
    put_header(&o, writer);
    qni_free(&writer->allocator, writer->header, writer->header_bytes);
    const size_t start = qni_round_up(o.used, ALIGNMENT);
    writer->header_bytes = start;
    writer->header = qni_alloc_zero(&writer->allocator, start);
    if (writer->header == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    o = (struct out){(uint8_t *)writer->header, 0};
    put_header(&o, writer);
    writer->file_bytes = start + data_bytes;
    writer->journal_start = qni_round_up(writer->file_bytes, QNI_DATA_ALIGNMENT);
    return QN_OK;
}
