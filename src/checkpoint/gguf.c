/* SPDX-License-Identifier: Apache-2.0 */
/* Reading GGUF 2 and 3: "GGUF", u32 version, u64 number of tensors, u64 number of keys; then keys
 * (string key, u32 type, value), then tensors (string name, u32 dimensions, u64 each, the fastest
 * first, u32 type, u64 offset), then data from the next multiple of general.alignment on. A string
 * is u64 bytes and its bytes.
 *
 * What opens is what ggml's loader (src/gguf.cpp) opens: keys and names unique, keys not empty,
 * names below 64 bytes, arrays not nested, strings and arrays at most 2^26, alignment a power of
 * two of at most 1 MiB, at most four dimensions, rows of whole blocks, and every offset the sum of
 * the padded sizes before it. Beyond that every tensor must lie inside the file (llama.cpp asks for
 * that too) and no text may hold a NUL. Nothing is allocated for a count that the bytes there are
 * cannot hold.
 *
 * Metadata become texts: strings as they are, numbers in decimal, of arrays only how long they are.
 */
#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "../base/sized.h"
#include "../base/half.h"
#include "../base/size.h"
#include "file.h"
#include "gguf.h"

enum {
    MOST_ELEMENTS = 1 << 26, /* of an array, and bytes of a string */
    MOST_ALIGNMENT = 1 << 20,
    MOST_NAME = 63,
    MOST_DIMENSIONS = 4,
    NUMBER_TEXT = 40, /* a number or "array of ..." */
    LEAST_TENSOR = 8 + 4 + 4 + 8,
    LEAST_KEY = 8 + 1 + 4 + 1
};

static const struct qni_ggml_type ggml_types[] = {
#define QNI_GGML(id, name, elements, bytes, dtype) {id, #name, elements, bytes, dtype},
#include "ggml_types.inc"
#undef QNI_GGML
};

const struct qni_ggml_type *qni_ggml_type(int64_t id)
{
    for (size_t i = 0; i < sizeof ggml_types / sizeof *ggml_types; i++)
        if (ggml_types[i].id == id)
            return &ggml_types[i];
    return NULL;
}

const struct qni_ggml_type *qni_ggml_type_named(const char *name)
{
    for (size_t i = 0; i < sizeof ggml_types / sizeof *ggml_types; i++)
        if (strcmp(ggml_types[i].name, name) == 0)
            return &ggml_types[i];
    return NULL;
}

/* ---- a cursor -------------------------------------------------------------------------------- */

struct cursor {
    const uint8_t *bytes;
    size_t size, at;
    char *text; /* where texts go, or NULL: only how much they need is counted */
    size_t used, room;
    qn_error *err;
};

static qn_status bad(const struct cursor *c, size_t at, const char *why)
{
    return qni_fail_at(c->err, QN_E_CORRUPT, (int64_t)at, "GGUF header, byte %llu: %s",
                       (unsigned long long)at, why);
}

static qn_status take(struct cursor *c, size_t bytes, void *out)
{
    if (bytes > c->size - c->at)
        return bad(c, c->at, "the header ends too early (truncated?)");
    memcpy(out, c->bytes + c->at, bytes);
    c->at += bytes;
    return QN_OK;
}

/* A string's place; its length is checked against the remaining bytes. */
static qn_status take_string(struct cursor *c, const uint8_t **from, size_t *length)
{
    uint64_t n = 0;
    const size_t at = c->at;
    QNI_TRY(take(c, sizeof n, &n));
    if (n > MOST_ELEMENTS)
        return bad(c, at, "a string of more than 2^26 bytes");
    if (n > c->size - c->at)
        return bad(c, at, "a string is longer than the file (truncated?)");
    *from = c->bytes + c->at;
    *length = (size_t)n;
    c->at += (size_t)n;
    return memchr(*from, 0, *length) == NULL ? QN_OK : bad(c, at, "a text holds a NUL character");
}

static const char *keep(struct cursor *c, const void *from, size_t length)
{
    const size_t at = c->used;
    c->used += length + 1;
    /* Somebody may write to the file between the two walks: its texts may then be wrong, but they
     * stay in their place. */
    if (c->text == NULL || c->used > c->room)
        return "";
    char *to = c->text + at;
    memcpy(to, from, length);
    to[length] = 0;
    return to;
}

/* ---- keys and values ------------------------------------------------------------------------- */

enum { T_U32 = 4, T_F32 = 6, T_BOOL = 7, T_STRING = 8, T_ARRAY = 9, T_F64 = 12 };

static const struct {
    const char *name;
    uint32_t bytes; /* 0: no fixed size */
} value_types[] = {
    {"u8", 1},   {"i8", 1},     {"u16", 2},   {"i16", 2}, {"u32", 4}, {"i32", 4}, {"f32", 4},
    {"bool", 1}, {"string", 0}, {"array", 0}, {"u64", 8}, {"i64", 8}, {"f64", 8},
};
enum { N_VALUE_TYPES = sizeof value_types / sizeof *value_types };

static int print_number(uint32_t type, const uint8_t *from, char text[NUMBER_TEXT])
{
    uint64_t u = 0;
    float f = 0;
    double d = 0;
    const uint32_t bytes = value_types[type].bytes;
    memcpy(&u, from, bytes);
    if (type == T_BOOL)
        return snprintf(text, NUMBER_TEXT, "%s", u != 0 ? "true" : "false");
    if (type == T_F32) {
        memcpy(&f, from, sizeof f);
        return snprintf(text, NUMBER_TEXT, "%.9g", (double)f);
    }
    if (type == T_F64) {
        memcpy(&d, from, sizeof d);
        return snprintf(text, NUMBER_TEXT, "%.17g", d);
    }
    const bool is_signed = value_types[type].name[0] == 'i';
    const uint32_t unused = 64 - 8 * bytes;
    if (is_signed) /* the sign of the small type */
        return snprintf(text, NUMBER_TEXT, "%lld", (long long)((int64_t)(u << unused) >> unused));
    return snprintf(text, NUMBER_TEXT, "%llu", (unsigned long long)u);
}

static qn_status skip_array(struct cursor *c, uint32_t *type, uint64_t *count)
{
    const size_t at = c->at;
    QNI_TRY(take(c, sizeof *type, type));
    QNI_TRY(take(c, sizeof *count, count));
    if (*type >= N_VALUE_TYPES || *type == T_ARRAY)
        return bad(c, at, *type == T_ARRAY ? "an array of arrays" : "an unknown type of values");
    if (*count > MOST_ELEMENTS)
        return bad(c, at, "an array of more than 2^26 elements");
    const size_t each = *type == T_STRING ? 8 : value_types[*type].bytes;
    if (*count > (c->size - c->at) / each)
        return bad(c, at, "an array is longer than the file (truncated?)");
    if (*type != T_STRING) {
        c->at += (size_t)*count * each;
        return QN_OK;
    }
    for (uint64_t i = 0; i < *count; i++) {
        uint64_t n = 0;
        QNI_TRY(take(c, sizeof n, &n));
        if (n > MOST_ELEMENTS || n > c->size - c->at)
            return bad(c, c->at - 8, "a string is longer than the file (truncated?)");
        c->at += (size_t)n;
    }
    return QN_OK;
}

static qn_status take_value(struct cursor *c, uint32_t type, struct qni_text *to)
{
    char text[NUMBER_TEXT];
    const uint8_t *from = NULL;
    size_t length = 0;
    if (type == T_STRING) {
        QNI_TRY(take_string(c, &from, &length));
        to->value = keep(c, from, length);
        return QN_OK;
    }
    int printed = 0;
    if (type == T_ARRAY) {
        uint32_t inner = 0;
        uint64_t count = 0;
        to->array = c->at;
        QNI_TRY(skip_array(c, &inner, &count));
        printed = snprintf(text, sizeof text, "[%llu x %s]", (unsigned long long)count,
                           value_types[inner].name);
    } else {
        const uint32_t bytes = value_types[type].bytes;
        if (bytes > c->size - c->at)
            return bad(c, c->at, "the header ends too early (truncated?)");
        printed = print_number(type, c->bytes + c->at, text);
        c->at += bytes;
    }
    to->value = keep(c, text, (size_t)printed);
    return QN_OK;
}

/* The alignment of the data is one of the keys. */
static qn_status take_alignment(struct cursor *c, uint32_t type, size_t at, size_t *alignment)
{
    uint32_t value = 0;
    if (type != T_U32)
        return bad(c, at, "general.alignment is no u32");
    if (c->size - at < sizeof value)
        return bad(c, at, "the header ends too early (truncated?)");
    memcpy(&value, c->bytes + at, sizeof value);
    if (value == 0 || (value & (value - 1)) != 0 || value > MOST_ALIGNMENT)
        return bad(c, at, "general.alignment is no power of two of at most 2^20");
    *alignment = value;
    return QN_OK;
}

static qn_status take_key(struct cursor *c, struct qni_text *text, size_t *alignment)
{
    static const char named[] = "general.alignment";
    const uint8_t *key = NULL;
    size_t length = 0, at = c->at;
    uint32_t type = 0;
    QNI_TRY(take_string(c, &key, &length));
    if (length == 0)
        return bad(c, at, "a key without a name");
    text->key = keep(c, key, length);
    at = c->at;
    QNI_TRY(take(c, sizeof type, &type));
    if (type >= N_VALUE_TYPES)
        return bad(c, at, "an unknown type of values");
    if (length == sizeof named - 1 && memcmp(key, named, length) == 0)
        QNI_TRY(take_alignment(c, type, c->at, alignment));
    text->at = c->at;
    text->type = type;
    return take_value(c, type, text);
}

/* ---- tensors --------------------------------------------------------------------------------- */

static qn_status take_shape(struct cursor *c, struct qni_entry *entry, int64_t *elements)
{
    uint32_t rank = 0;
    uint64_t dims[MOST_DIMENSIONS] = {1, 1, 1, 1};
    const size_t at = c->at;
    QNI_TRY(take(c, sizeof rank, &rank));
    if (rank > MOST_DIMENSIONS)
        return bad(c, at, "a tensor of more than four dimensions");
    int64_t product = 1;
    for (uint32_t i = 0; i < rank; i++) {
        QNI_TRY(take(c, sizeof dims[i], &dims[i]));
        if (dims[i] > INT64_MAX || (dims[i] == 0 && i > 0))
            return bad(c, c->at - 8, "an impossible dimension");
        entry->shape[rank - 1 - i] = (int64_t)dims[i];
    }
    *elements = 1;
    for (uint32_t i = 0; i < rank; i++) {
        /* Strides are made of the dimensions that are not 0, so their product must fit, too. */
        if (dims[i] != 0 && !qni_i64_mul(product, (int64_t)dims[i], &product))
            return bad(c, at, "the number of elements overflows");
        *elements = dims[i] == 0 ? 0 : *elements == 0 ? 0 : product;
    }
    entry->rank = (int32_t)rank;
    return QN_OK;
}

/* offset: what the file must say, counted from the data. */
static qn_status take_tensor(struct cursor *c, struct qni_entry *entry, size_t *data_bytes,
                             size_t alignment)
{
    const uint8_t *name = NULL;
    size_t length = 0, at = c->at;
    int64_t elements = 0;
    int32_t type = 0;
    uint64_t offset = 0;
    QNI_TRY(take_string(c, &name, &length));
    if (length > MOST_NAME)
        return bad(c, at, "a tensor's name of more than 63 bytes");
    entry->name = keep(c, name, length);
    QNI_TRY(take_shape(c, entry, &elements));
    at = c->at;
    QNI_TRY(take(c, sizeof type, &type));
    const struct qni_ggml_type *t = qni_ggml_type(type);
    if (t == NULL)
        return bad(c, at, "an unknown type of tensor, or one that ggml has removed");
    const int64_t row = entry->rank > 0 ? entry->shape[entry->rank - 1] : 1;
    if (row % t->elements != 0)
        return bad(c, at, "a row of a tensor is no whole number of blocks");
    if (!qni_size_mul((size_t)(elements / t->elements), (size_t)t->bytes, &entry->bytes))
        return bad(c, at, "the size of a tensor overflows");
    entry->spelling = t->name;
    entry->dtype = t->dtype;
    at = c->at;
    QNI_TRY(take(c, sizeof offset, &offset));
    if (offset != *data_bytes)
        return bad(c, at, "a tensor does not begin where the one before ends");
    entry->offset = *data_bytes; /* from the data; the caller adds its place */
    size_t end = 0;
    if (!qni_size_add(*data_bytes, entry->bytes, &end) || end > SIZE_MAX / 2)
        return bad(c, at, "the size of all tensors overflows");
    *data_bytes = qni_round_up(end, alignment);
    return QN_OK;
}

/* ---- the file -------------------------------------------------------------------------------- */

static qn_status take_head(struct cursor *c, size_t *n_tensors, size_t *n_keys)
{
    uint32_t version = 0;
    uint64_t tensors = 0, keys = 0;
    c->at = 4; /* behind "GGUF" */
    QNI_TRY(take(c, sizeof version, &version));
    if (version != 0 && (version & 0xffff) == 0)
        return bad(c, 4, "a GGUF file of a big-endian machine");
    if (version != 2 && version != 3)
        return bad(c, 4,
                   version == 1 ? "GGUF version 1, which ggml gave up; convert the model anew"
                                : "an unknown version of GGUF");
    QNI_TRY(take(c, sizeof tensors, &tensors));
    QNI_TRY(take(c, sizeof keys, &keys));
    const size_t left = c->size - c->at;
    if (keys > left / LEAST_KEY || tensors > left / LEAST_TENSOR)
        return bad(c, 8, "more tensors or keys than the file has room for (truncated?)");
    *n_tensors = (size_t)tensors;
    *n_keys = (size_t)keys;
    return QN_OK;
}

/* Once to check and to count, once to fill. */
static qn_status walk(qn_file *file, struct cursor *c, size_t *n_tensors, size_t *n_keys)
{
    const bool fills = c->text != NULL;
    size_t alignment = 32, data_bytes = 0;
    c->used = 0;
    QNI_TRY(take_head(c, n_tensors, n_keys));
    for (size_t i = 0; i < *n_keys; i++) {
        struct qni_text text = {.key = NULL};
        QNI_TRY(take_key(c, &text, &alignment));
        if (fills && file->n_texts < file->text_capacity)
            file->texts[file->n_texts++] = text;
    }
    for (size_t i = 0; i < *n_tensors; i++) {
        struct qni_entry entry = {.name = NULL};
        QNI_TRY(take_tensor(c, &entry, &data_bytes, alignment));
        if (fills && file->n_entries < file->entry_capacity)
            file->entries[file->n_entries++] = entry;
    }
    file->data_start = qni_round_up(c->at, alignment);
    return QN_OK;
}

static qn_status place_tensors(qn_file *file, qn_error *err)
{
    char shown[QNI_SHOWN];
    const size_t size = file->mapping->size;
    if (file->n_entries == 0)
        return QN_OK;
    if (file->data_start > size)
        return qni_fail_at(err, QN_E_CORRUPT, (int64_t)size,
                           "the file ends before its data begins (truncated?)");
    for (size_t i = 0; i < file->n_entries; i++) {
        struct qni_entry *entry = &file->entries[i];
        const size_t left = size - file->data_start;
        if (entry->offset > left || entry->bytes > left - entry->offset)
            return qni_fail_at(err, QN_E_CORRUPT, (int64_t)size,
                               "tensor '%s': its %llu bytes do not fit into the file (truncated?)",
                               qni_shown(shown, entry->name), (unsigned long long)entry->bytes);
        entry->offset += file->data_start;
    }
    return QN_OK;
}

qn_status qni_gguf_read(qn_file *file, qn_error *err)
{
    const struct qni_allocator *a = &file->allocator;
    struct cursor c = {.bytes = file->mapping->bytes, .size = file->mapping->size, .err = err};
    size_t n_tensors = 0, n_keys = 0;
    QNI_TRY(walk(file, &c, &n_tensors, &n_keys));
    file->string_bytes = c.used;
    file->strings = qni_alloc(a, c.used);
    file->entries = qni_alloc(a, n_tensors * sizeof *file->entries);
    file->entry_capacity = n_tensors;
    file->texts = qni_alloc(a, n_keys * sizeof *file->texts);
    file->text_capacity = n_keys;
    if (file->strings == NULL || file->entries == NULL || file->texts == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    c.text = file->strings;
    c.room = file->string_bytes;
    QNI_TRY(walk(file, &c, &n_tensors, &n_keys));
    return place_tensors(file, err);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

static qn_dtype element_dtype(uint32_t type)
{
    static const qn_dtype dtypes[] = {QN_U8,         QN_I8,         QN_U16, QN_I16, QN_U32,
                                      QN_I32,        QN_F32,        QN_BOOL, QN_DTYPE_NONE,
                                      QN_DTYPE_NONE, QN_U64,        QN_I64, QN_F64};
    return dtypes[type];
}

qn_status qn_file_array(const qn_file *file, const char *key, qn_array *array)
{
    if (file == NULL || key == NULL || array == NULL)
        return QN_E_ARGUMENT;
    const struct qni_text *text = qni_metadata_find(file, key);
    if (text == NULL)
        return QN_E_NOT_FOUND;
    if (text->array == 0)
        return QN_E_DTYPE;
    struct cursor c = {.bytes = file->mapping->bytes, .size = file->mapping->size};
    uint32_t type = 0;
    uint64_t count = 0;
    c.at = text->array;
    /* It was checked when the file was opened; somebody may have written to the file since. */
    QNI_TRY(skip_array(&c, &type, &count));
    const size_t head = sizeof type + sizeof count;
    qn_array own;
    qn_array_init(&own);
    own.dtype = element_dtype(type);
    own.count = (int64_t)count;
    own.data = c.bytes + text->array + head;
    own.bytes = c.at - text->array - head;
    return qni_sized_write(array, &own, sizeof own);
}

qn_status qn_file_value(const qn_file *file, const char *key, qn_value_type *type,
                        const void **bytes, size_t *count)
{
    if (file == NULL || key == NULL || type == NULL || bytes == NULL || count == NULL)
        return QN_E_ARGUMENT;
    const struct qni_text *text =
        file->kind != QN_FILE_GGUF ? NULL : qni_metadata_find(file, key);
    if (text == NULL)
        return QN_E_NOT_FOUND;
    struct cursor c = {.bytes = file->mapping->bytes, .size = file->mapping->size};
    uint32_t inner = 0;
    uint64_t length = 0;
    const uint8_t *from = c.bytes + text->at;
    c.at = text->at;
    *type = (qn_value_type)text->type;
    if (text->type == T_ARRAY) {
        QNI_TRY(skip_array(&c, &inner, &length));
    } else if (text->type == T_STRING) {
        QNI_TRY(take_string(&c, &from, count));
    } else {
        c.at += value_types[text->type].bytes;
    }
    *bytes = from;
    *count = (size_t)(c.bytes + c.at - from);
    return QN_OK;
}

const char *qn_array_next_text(qn_array *array, size_t *bytes)
{
    uint64_t n = 0;
    const size_t read = sizeof n;
    if (array == NULL || bytes == NULL || array->dtype != QN_DTYPE_NONE || array->count <= 0 ||
        array->bytes < read)
        return NULL;
    memcpy(&n, array->data, read);
    if (n > array->bytes - read)
        return NULL;
    const char *text = (const char *)array->data + read;
    array->data = text + n;
    array->bytes -= read + (size_t)n;
    array->count--;
    *bytes = (size_t)n;
    return text;
}
