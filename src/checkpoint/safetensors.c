/* SPDX-License-Identifier: Apache-2.0 */
/* Reading safetensors: u64 N (little endian), N bytes of JSON, data. Each value of the JSON object
 * is {dtype, shape, data_offsets: [begin, end)}, offsets counted from the end of the header; the
 * optional key __metadata__ maps strings to strings.
 *
 * What is checked, and must hold for every file that opens: N <= 100,000,000 and inside the file;
 * the header begins with '{', is strict JSON in UTF-8, and only blanks follow it; every tensor has
 * its three fields, once; no name occurs twice; begin <= end; shape and type need exactly end -
 * begin bytes, by checked arithmetic; the tensors in the order of their data begin at 0, leave no
 * hole, do not overlap, and end where the file ends. NaN and infinity are not looked for. */
#include <string.h>

#include "../base/error.h"
#include "../base/size.h"
#include "file.h"
#include "json.h"

enum { HEADER_LIMIT = 100000000 };

static const struct spelling {
    const char *text;
    qn_dtype dtype;
    int32_t bits;
} spellings[] = {
    {"F32", QN_F32, 32},
    {"F16", QN_F16, 16},
    {"BF16", QN_BF16, 16},
    {"U8", QN_U8, 8},
    {"I8", QN_I8, 8},
    {"I32", QN_I32, 32},
    {"I64", QN_I64, 64},
    {"F64", QN_F64, 64},
    {"BOOL", QN_BOOL, 8},
    {"I16", QN_I16, 16},
    {"U16", QN_U16, 16},
    {"U32", QN_U32, 32},
    {"U64", QN_U64, 64},
    {"F8_E4M3", QN_E4M3, 8},
    {"F8_E5M2", QN_E5M2, 8},
    {"F8_E8M0", QN_E8M0, 8},
    /* Sizes are known and checked, but the library does not compute with these. */
    {"F8_E4M3FNUZ", QN_DTYPE_NONE, 8},
    {"F8_E5M2FNUZ", QN_DTYPE_NONE, 8},
    {"F4", QN_DTYPE_NONE, 4},
    {"F6_E2M3", QN_DTYPE_NONE, 6},
    {"F6_E3M2", QN_DTYPE_NONE, 6},
    {"C64", QN_DTYPE_NONE, 64},
};

const char *qni_dtype_spelling(qn_dtype dtype)
{
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        if (spellings[i].dtype == dtype && dtype != QN_DTYPE_NONE)
            return spellings[i].text;
    return NULL;
}

qn_dtype qni_dtype_parse(const char *spelling, int32_t *bits)
{
    for (size_t i = 0; i < sizeof spellings / sizeof *spellings; i++)
        if (strcmp(spellings[i].text, spelling) == 0) {
            if (bits != NULL)
                *bits = spellings[i].bits;
            return spellings[i].dtype;
        }
    if (bits != NULL)
        *bits = 0;
    return QN_DTYPE_NONE;
}

/* Positions in the header are told as bytes of the file. */
static qn_status json_failure(const struct qni_json *j, qn_error *err)
{
    return qni_fail_at(err, QN_E_CORRUPT, 8 + (int64_t)j->why_at, "header, byte %llu: %s",
                       8 + (unsigned long long)j->why_at, j->why);
}

static bool read_shape(struct qni_json *j, struct qni_entry *entry, int64_t *product)
{
    int64_t nonzero = 1, value = 0;
    *product = 1;
    entry->rank = 0;
    if (!qni_json_array(j))
        return false;
    while (qni_json_item(j)) {
        if (!qni_json_integer(j, &value))
            return false;
        /* Strides are made of the dimensions that are not 0, so their product must fit as well. */
        if (value != 0 && !qni_i64_mul(nonzero, value, &nonzero))
            return qni_json_refuse(j, "the number of elements overflows");
        *product = *product == 0 || value == 0 ? 0 : nonzero;
        if (entry->rank < QN_MAX_RANK)
            entry->shape[entry->rank] = value;
        if (entry->rank++ == INT32_MAX)
            return qni_json_refuse(j, "a shape has too many dimensions");
    }
    return j->why == NULL;
}

static bool read_span(struct qni_json *j, int64_t span[2])
{
    if (!qni_json_array(j))
        return false;
    for (int i = 0; i < 2; i++) {
        if (!qni_json_item(j))
            return j->why == NULL && qni_json_refuse(j, "data_offsets must be two integers");
        if (!qni_json_integer(j, &span[i]))
            return false;
    }
    if (qni_json_item(j))
        return qni_json_refuse(j, "data_offsets must be two integers");
    return j->why == NULL;
}

/* The three fields of a tensor. Others are allowed, as in the reference reader, and skipped. */
static bool read_tensor(struct qni_json *j, struct qni_entry *entry, int64_t span[2],
                        int64_t *elements)
{
    enum { DTYPE = 1, SHAPE = 2, SPAN = 4 };
    const char *key = NULL;
    int seen = 0;
    if (!qni_json_object(j))
        return false;
    while (qni_json_key(j, &key)) {
        const int field = strcmp(key, "dtype") == 0          ? DTYPE
                          : strcmp(key, "shape") == 0        ? SHAPE
                          : strcmp(key, "data_offsets") == 0 ? SPAN
                                                             : 0;
        if ((seen & field) != 0)
            return qni_json_refuse(j, "a field of a tensor occurs twice");
        seen |= field;
        const bool fine = field == DTYPE   ? qni_json_string(j, &entry->spelling)
                          : field == SHAPE ? read_shape(j, entry, elements)
                          : field == SPAN  ? read_span(j, span)
                                           : qni_json_skip(j);
        if (!fine)
            return false;
    }
    if (j->why != NULL)
        return false;
    return seen == (DTYPE | SHAPE | SPAN) ||
           qni_json_refuse(j, "a tensor lacks its dtype, shape or data_offsets");
}

/* Does the span fit the file and the shape? data_bytes: what follows the header. */
static qn_status check_tensor(struct qni_entry *entry, const int64_t span[2], int64_t elements,
                              size_t data_bytes, int64_t at, qn_error *err)
{
    char shown[QNI_SHOWN], type[QNI_SHOWN];
    qni_shown(shown, entry->name);
    if (span[0] > span[1])
        return qni_fail_at(err, QN_E_CORRUPT, at, "tensor '%s': its data ends before it begins",
                           shown);
    if ((uint64_t)span[1] > data_bytes)
        return qni_fail_at(err, QN_E_CORRUPT, at,
                           "tensor '%s': its data ends at %lld, but the file has only %llu bytes "
                           "of data (truncated?)",
                           shown, (long long)span[1], (unsigned long long)data_bytes);
    const int64_t bytes = span[1] - span[0];
    int32_t bits = 0;
    entry->dtype = qni_dtype_parse(entry->spelling, &bits);
    int64_t total_bits = 0;
    if (bits > 0 && !qni_i64_mul(elements, bits, &total_bits))
        return qni_fail_at(err, QN_E_CORRUPT, at, "tensor '%s': its size overflows", shown);
    if (bits > 0 && (total_bits % 8 != 0 || total_bits / 8 != bytes))
        return qni_fail_at(err, QN_E_CORRUPT, at,
                           "tensor '%s': %lld elements of %s do not make %lld bytes", shown,
                           (long long)elements, qni_shown(type, entry->spelling), (long long)bytes);
    if (entry->rank > QN_MAX_RANK)
        entry->dtype = QN_DTYPE_NONE;
    entry->bytes = (size_t)bytes;
    return QN_OK;
}

static bool read_metadata(qn_file *file, struct qni_json *j, bool *no_memory)
{
    const char *key = NULL, *value = NULL;
    if (!qni_json_object(j))
        return false;
    while (qni_json_key(j, &key)) {
        if (!qni_json_string(j, &value))
            return false;
        void *texts = file->texts;
        *no_memory = !qni_grow(&file->allocator, &texts, &file->text_capacity, file->n_texts,
                               sizeof *file->texts);
        file->texts = texts;
        if (*no_memory)
            return false;
        file->texts[file->n_texts++] = (struct qni_text){.key = key, .value = value};
    }
    return j->why == NULL;
}

static qn_status add_tensor(qn_file *file, struct qni_json *j, const char *name, qn_error *err)
{
    struct qni_entry entry = {.name = name};
    int64_t span[2] = {0, 0}, elements = 0;
    const int64_t at = 8 + (int64_t)j->at;
    if (!read_tensor(j, &entry, span, &elements))
        return json_failure(j, err);
    QNI_TRY(check_tensor(&entry, span, elements, file->mapping->size - file->data_start, at, err));
    entry.offset = file->data_start + (size_t)span[0];
    void *entries = file->entries;
    const bool grown = qni_grow(&file->allocator, &entries, &file->entry_capacity, file->n_entries,
                                sizeof *file->entries);
    file->entries = entries;
    if (!grown)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    file->entries[file->n_entries++] = entry;
    return QN_OK;
}

static qn_status read_header(qn_file *file, struct qni_json *j, qn_error *err)
{
    const char *key = NULL;
    bool has_metadata = false, no_memory = false;
    if (!qni_json_object(j))
        return json_failure(j, err);
    while (qni_json_key(j, &key)) {
        if (strcmp(key, "__metadata__") != 0) {
            QNI_TRY(add_tensor(file, j, key, err));
            continue;
        }
        if (has_metadata)
            qni_json_refuse(j, "__metadata__ occurs twice");
        has_metadata = true;
        if (!read_metadata(file, j, &no_memory))
            return no_memory ? qni_fail(err, QN_E_MEMORY, "out of memory") : json_failure(j, err);
    }
    return j->why == NULL && qni_json_end(j) ? QN_OK : json_failure(j, err);
}

/* Every byte behind the header belongs to exactly one tensor. */
qn_status qni_safetensors_coverage(const qn_file *file, qn_error *err)
{
    char shown[QNI_SHOWN];
    size_t end = file->data_start;
    for (size_t i = 0; i < file->n_entries; i++) {
        const struct qni_entry *entry = &file->entries[file->by_offset[i]];
        if (entry->offset != end)
            return qni_fail_at(err, QN_E_CORRUPT, (int64_t)entry->offset,
                               entry->offset < end
                                   ? "tensor '%s': its data overlaps another tensor's"
                                   : "tensor '%s': bytes before its data belong to no tensor",
                               qni_shown(shown, entry->name));
        end += entry->bytes;
    }
    if (end != file->mapping->size)
        return qni_fail_at(err, QN_E_CORRUPT, (int64_t)end,
                           "%llu bytes at the end belong to no tensor",
                           (unsigned long long)(file->mapping->size - end));
    return QN_OK;
}

qn_status qni_safetensors_read(qn_file *file, qn_error *err)
{
    const uint8_t *bytes = file->mapping->bytes;
    const size_t size = file->mapping->size;
    if (size < 8)
        return qni_fail_at(err, QN_E_CORRUPT, 0, "%llu bytes are too few for a safetensors file",
                           (unsigned long long)size);
    uint64_t length;
    memcpy(&length, bytes, sizeof length);
    if (length > HEADER_LIMIT)
        return qni_fail_at(err, QN_E_CORRUPT, 0,
                           "not a safetensors file: it announces a header of %llu bytes, the "
                           "format allows 100000000",
                           (unsigned long long)length);
    if (length > size - 8)
        return qni_fail_at(err, QN_E_CORRUPT, 0,
                           "the header should have %llu bytes, but only %llu follow (truncated?)",
                           (unsigned long long)length, (unsigned long long)(size - 8));
    if (length == 0 || bytes[8] != '{')
        return qni_fail_at(err, QN_E_CORRUPT, 8, "the header does not begin with '{'");
    file->string_bytes = (size_t)length;
    file->strings = qni_alloc(&file->allocator, file->string_bytes);
    if (file->strings == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    struct qni_json j;
    qni_json_start(&j, bytes + 8, (size_t)length, file->strings);
    file->data_start = 8 + (size_t)length;
    return read_header(file, &j, err);
}
