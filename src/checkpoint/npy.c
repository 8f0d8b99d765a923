/* SPDX-License-Identifier: Apache-2.0 */
/* npy files: "\x93NUMPY", version (major, minor), the length of the header (u16 in version 1, u32
 * in 2 and 3, little endian), the header - a Python dict display with the keys descr, fortran_order
 * and shape - and the elements.
 *
 * The header is read by a grammar of its own, never evaluated. Refused: big-endian elements,
 * objects (they are pickles), structured types, anything but the three keys, and a file that is not
 * exactly as long as header and elements. Element types that are plain but unknown here (complex,
 * text, dates) are listed by their spelling. Fortran order becomes strides. */
#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "../base/half.h"
#include "../base/size.h"
#include "disk.h"
#include "file.h"

enum { HEADER_LIMIT = 65535, PREFIX_BYTES = 10, WIDE_PREFIX_BYTES = 12 };

static const struct {
    char kind;
    int32_t bytes;
    qn_dtype dtype;
} types[] = {
    {'f', 4, QN_F32}, {'f', 2, QN_F16}, {'f', 8, QN_F64}, {'i', 1, QN_I8},
    {'i', 2, QN_I16}, {'i', 4, QN_I32}, {'i', 8, QN_I64}, {'u', 1, QN_U8},
    {'u', 2, QN_U16}, {'u', 4, QN_U32}, {'u', 8, QN_U64}, {'b', 1, QN_BOOL},
};

/* ---- reading --------------------------------------------------------------------------------- */

struct cursor {
    const char *text;
    size_t size, at;
    size_t start; /* of the text in the file */
    qn_error *err;
};

static qn_status refuse(const struct cursor *c, const char *why)
{
    return qni_fail_at(c->err, QN_E_CORRUPT, (int64_t)(c->start + c->at), "header, byte %llu: %s",
                       (unsigned long long)(c->start + c->at), why);
}

static char peek(struct cursor *c)
{
    while (c->at < c->size && (c->text[c->at] == ' ' || c->text[c->at] == '\n' ||
                               c->text[c->at] == '\t' || c->text[c->at] == '\r'))
        c->at++;
    return c->at < c->size ? c->text[c->at] : 0;
}

static bool take(struct cursor *c, char wanted)
{
    if (peek(c) != wanted)
        return false;
    c->at++;
    return true;
}

/* A quoted text without escapes, copied with its end. */
static qn_status read_text(struct cursor *c, char *out, size_t capacity)
{
    const char quote = peek(c);
    if (quote != '\'' && quote != '"')
        return refuse(c, quote == '[' ? "structured element types cannot be read"
                                      : "a quoted text was expected");
    size_t used = 0;
    for (c->at++; c->at < c->size && c->text[c->at] != quote; c->at++) {
        const char letter = c->text[c->at];
        if (letter < 0x20 || letter > 0x7e || letter == '\\')
            return refuse(c, "a text holds more than plain letters");
        if (used + 1 == capacity)
            return refuse(c, "a text is too long");
        out[used++] = letter;
    }
    if (c->at == c->size)
        return refuse(c, "the header ends inside a text");
    c->at++;
    out[used] = 0;
    return QN_OK;
}

static qn_status read_bool(struct cursor *c, bool *value)
{
    peek(c);
    const size_t left = c->size - c->at;
    if (left >= 4 && memcmp(c->text + c->at, "True", 4) == 0) {
        *value = true;
        c->at += 4;
    } else if (left >= 5 && memcmp(c->text + c->at, "False", 5) == 0) {
        *value = false;
        c->at += 5;
    } else {
        return refuse(c, "fortran_order must be True or False");
    }
    return QN_OK;
}

/* "()", "(3,)", "(3, 4)", "(3, 4, )". A number alone in parentheses is no tuple in Python. Python 2
 * wrote "3L". */
static qn_status read_shape(struct cursor *c, struct qni_entry *entry, int64_t *product)
{
    int64_t nonzero = 1;
    bool has_comma = true;
    *product = 1;
    if (!take(c, '('))
        return refuse(c, "shape must be a tuple");
    while (!take(c, ')')) {
        const char first = peek(c);
        if (!has_comma)
            return refuse(c, "a comma or ')' was expected in the shape");
        if (first < '0' || first > '9')
            return refuse(c, "shape must hold integers of at least 0");
        int64_t value = 0;
        for (; c->at < c->size && c->text[c->at] >= '0' && c->text[c->at] <= '9'; c->at++)
            if (!qni_i64_mul(value, 10, &value) ||
                !qni_i64_add(value, c->text[c->at] - '0', &value))
                return refuse(c, "a dimension is larger than 2^63 - 1");
        if (c->at < c->size && c->text[c->at] == 'L')
            c->at++;
        if (value != 0 && !qni_i64_mul(nonzero, value, &nonzero))
            return refuse(c, "the number of elements overflows");
        *product = *product == 0 || value == 0 ? 0 : nonzero;
        if (entry->rank < QN_MAX_RANK)
            entry->shape[entry->rank] = value;
        entry->rank++;
        has_comma = take(c, ',');
    }
    if (entry->rank == 1 && !has_comma)
        return refuse(c, "shape must be a tuple: a comma is missing");
    return QN_OK;
}

/* "<f4": byte order, kind, bytes. bytes: of an element. */
static qn_status read_type(const struct cursor *c, struct qni_entry *entry, int64_t *bytes)
{
    const char *text = entry->spelling;
    const char order = text[0], kind = order == 0 ? 0 : text[1];
    int64_t number = 0;
    size_t digits = 0;
    if (order != '<' && order != '|' && order != '=' && order != '>')
        return refuse(c, "descr does not begin with a byte order");
    if (kind == 'O')
        return qni_fail_at(c->err, QN_E_DTYPE, (int64_t)c->start,
                           "the elements are Python objects (pickles), which are not read");
    /* Dates carry a unit in brackets: "<M8[ns]". */
    const char *at = kind == 0 ? text : text + 2;
    for (; at[digits] >= '0' && at[digits] <= '9'; digits++)
        if (digits == 9)
            return refuse(c, "the size of an element is absurd");
        else
            number = number * 10 + (at[digits] - '0');
    const bool has_unit = (kind == 'M' || kind == 'm') && at[digits] == '[';
    if (strchr("biufcSUVMm", kind) == NULL || kind == 0 || digits == 0 ||
        (at[digits] != 0 && !has_unit))
        return refuse(c, "descr is no plain element type");
    if (order == '>' && number > 1)
        return qni_fail_at(c->err, QN_E_DTYPE, (int64_t)c->start,
                           "the elements are big-endian ('%s'); save them little-endian", text);
    *bytes = kind == 'U' ? number * 4 : number; /* UCS-4 */
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].kind == kind && types[i].bytes == number)
            entry->dtype = types[i].dtype;
    return QN_OK;
}

static qn_status read_dict(struct cursor *c, struct qni_entry *entry, char *spelling,
                           size_t capacity, int64_t *elements)
{
    enum { DESCR = 1, ORDER = 2, SHAPE = 4 };
    char key[16];
    int seen = 0;
    bool has_comma = true;
    if (!take(c, '{'))
        return refuse(c, "the header is no dict");
    while (!take(c, '}')) {
        if (!has_comma)
            return refuse(c, "a comma or '}' was expected");
        QNI_TRY(read_text(c, key, sizeof key));
        const int field = strcmp(key, "descr") == 0           ? DESCR
                          : strcmp(key, "fortran_order") == 0 ? ORDER
                          : strcmp(key, "shape") == 0         ? SHAPE
                                                              : 0;
        if (field == 0 || (seen & field) != 0)
            return refuse(c, field == 0 ? "an unknown key" : "a key occurs twice");
        seen |= field;
        if (!take(c, ':'))
            return refuse(c, "a colon was expected");
        QNI_TRY(field == DESCR   ? read_text(c, spelling, capacity)
                : field == ORDER ? read_bool(c, &entry->is_fortran)
                                 : read_shape(c, entry, elements));
        has_comma = take(c, ',');
    }
    if (seen != (DESCR | ORDER | SHAPE))
        return refuse(c, "descr, fortran_order or shape is missing");
    if (peek(c) != 0 || c->at != c->size)
        return refuse(c, "something follows the dict");
    return QN_OK;
}

/* Where the header is. */
static qn_status find_header(const qn_file *file, struct cursor *c, qn_error *err)
{
    const uint8_t *bytes = file->mapping->bytes;
    const size_t size = file->mapping->size;
    if (size < PREFIX_BYTES)
        return qni_fail_at(err, QN_E_CORRUPT, (int64_t)size, "the file ends inside its prefix");
    const uint8_t major = bytes[6], minor = bytes[7];
    if (major < 1 || major > 3 || minor != 0)
        return qni_fail_at(err, QN_E_CORRUPT, 6, "npy version %u.%u is unknown (1.0 to 3.0 are)",
                           major, minor);
    uint32_t length = 0;
    const size_t prefix = major == 1 ? PREFIX_BYTES : WIDE_PREFIX_BYTES;
    if (size < prefix)
        return qni_fail_at(err, QN_E_CORRUPT, (int64_t)size, "the file ends inside its prefix");
    memcpy(&length, bytes + 8, prefix - 8);
    if (length > HEADER_LIMIT)
        return qni_fail_at(err, QN_E_CORRUPT, 8, "a header of %u bytes; the limit is %d", length,
                           HEADER_LIMIT);
    if (length > size - prefix)
        return qni_fail_at(err, QN_E_CORRUPT, 8,
                           "the header should have %u bytes, but only %llu follow (truncated?)",
                           length, (unsigned long long)(size - prefix));
    *c = (struct cursor){(const char *)bytes + prefix, length, 0, prefix, err};
    return QN_OK;
}

qn_status qni_npy_read(qn_file *file, qn_error *err)
{
    enum { SPELLING = 32 };
    struct cursor c = {0};
    QNI_TRY(find_header(file, &c, err));
    void *entries = NULL;
    file->string_bytes = SPELLING;
    file->strings = qni_alloc_zero(&file->allocator, SPELLING);
    const bool grown =
        qni_grow(&file->allocator, &entries, &file->entry_capacity, 0, sizeof *file->entries);
    file->entries = entries;
    if (file->strings == NULL || !grown)
        return qni_fail(err, QN_E_MEMORY, "out of memory");

    struct qni_entry entry = {.name = file->strings + SPELLING - 1, .spelling = file->strings};
    int64_t elements = 0, element_bytes = 0, bytes = 0;
    QNI_TRY(read_dict(&c, &entry, file->strings, SPELLING, &elements));
    QNI_TRY(read_type(&c, &entry, &element_bytes));
    if (!qni_i64_mul(elements, element_bytes, &bytes))
        return refuse(&c, "the size of the array overflows");
    entry.offset = c.start + c.size;
    entry.bytes = file->mapping->size - entry.offset;
    if ((uint64_t)bytes != entry.bytes)
        return qni_fail_at(err, QN_E_CORRUPT, (int64_t)file->mapping->size,
                           "the array needs %lld bytes, but %llu follow the header%s",
                           (long long)bytes, (unsigned long long)entry.bytes,
                           (uint64_t)bytes > entry.bytes ? " (truncated?)" : "");
    if (entry.rank > QN_MAX_RANK)
        entry.dtype = QN_DTYPE_NONE;
    file->entries[file->n_entries++] = entry;
    return QN_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

/* The whole header, padded so that the elements begin at a multiple of 64. Returns its size. */
static size_t make_header(char *out, size_t capacity, char kind, int32_t bytes,
                          const qn_tensor *tensor)
{
    size_t used = PREFIX_BYTES;
    used += (size_t)snprintf(out + used, capacity - used,
                             "{'descr': '%c%c%d', 'fortran_order': False, 'shape': (",
                             bytes == 1 ? '|' : '<', kind, bytes);
    for (int32_t i = 0; i < tensor->rank; i++)
        used += (size_t)snprintf(out + used, capacity - used, "%s%lld", i == 0 ? "" : ", ",
                                 (long long)tensor->shape[i]);
    used += (size_t)snprintf(out + used, capacity - used, "%s), }", tensor->rank == 1 ? "," : "");
    const size_t size = qni_round_up(used + 1, 64);
    memset(out + used, ' ', size - 1 - used);
    out[size - 1] = '\n';
    const uint16_t length = (uint16_t)(size - PREFIX_BYTES);
    memcpy(out, "\x93NUMPY\x01", 8); /* the literal's own end is the minor version, 0 */
    memcpy(out + 8, &length, sizeof length);
    return size;
}

/* The elements in row-major order, by blocks. */
static qn_status write_elements(struct qni_output *output, uint64_t offset, const qn_tensor *tensor,
                                size_t element, qn_error *err)
{
    uint8_t block[8192];
    int64_t index[QN_MAX_RANK] = {0}, count = 1, at = 0;
    size_t used = 0;
    for (int32_t i = 0; i < tensor->rank; i++)
        count *= tensor->shape[i];
    for (int64_t done = 0; done < count; done++) {
        memcpy(block + used, (const uint8_t *)tensor->data + (size_t)at * element, element);
        used += element;
        if (used + element > sizeof block || done + 1 == count) {
            QNI_TRY(qni_output_write(output, offset, block, used, err));
            offset += used;
            used = 0;
        }
        for (int32_t d = tensor->rank - 1; d >= 0; d--) {
            at += tensor->stride[d];
            if (++index[d] < tensor->shape[d])
                break;
            at -= tensor->stride[d] * tensor->shape[d];
            index[d] = 0;
        }
    }
    return QN_OK;
}

static bool is_contiguous(const qn_tensor *tensor)
{
    int64_t step = 1;
    for (int32_t i = tensor->rank - 1; i >= 0; i--) {
        if (tensor->shape[i] != 1 && tensor->stride[i] != step)
            return false;
        step *= tensor->shape[i] == 0 ? 1 : tensor->shape[i];
    }
    return true;
}

static qn_status write_file(struct qni_output *output, const qn_tensor *tensor, char kind,
                            int32_t element, qn_error *err)
{
    char header[512];
    int64_t elements = 1;
    for (int32_t i = 0; i < tensor->rank; i++)
        elements *= tensor->shape[i];
    const size_t start = make_header(header, sizeof header, kind, element, tensor);
    const size_t bytes = (size_t)elements * (size_t)element;
    QNI_TRY(qni_output_claim(output, start + bytes, err));
    QNI_TRY(qni_output_write(output, 0, header, start, err));
    QNI_TRY(is_contiguous(tensor) ? qni_output_write(output, start, tensor->data, bytes, err)
                                  : write_elements(output, start, tensor, (size_t)element, err));
    QNI_TRY(qni_output_sync(output, err));
    return qni_output_publish(output, err);
}

qn_status qn_npy_write(const char *path, const qn_tensor *tensor, int32_t overwrite, qn_error *err)
{
    int64_t elements = 0;
    size_t bytes = 0, i = 0;
    char shown[QNI_SHOWN_PATH];
    if (path == NULL || tensor == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "qn_npy_write: path or tensor is NULL");
    const qn_status fits = qn_tensor_extent(tensor, &elements, &bytes);
    if (fits != QN_OK)
        return qni_fail(err, fits, "qn_npy_write: %s", qn_status_text(fits));
    if (tensor->device.kind != QN_CPU || (tensor->data == NULL && elements > 0))
        return qni_fail(err, QN_E_ARGUMENT, "qn_npy_write: the elements are not in CPU memory");
    while (i < sizeof types / sizeof *types && types[i].dtype != tensor->dtype)
        i++;
    if (i == sizeof types / sizeof *types)
        return qni_fail(err, QN_E_DTYPE, "npy has no element type %s; convert to f32 first",
                        qn_dtype_name(tensor->dtype));
    /* Strides may repeat elements (stride 0), so the file may be larger than the memory. */
    int64_t file_bytes;
    if (!qni_i64_mul(elements, types[i].bytes, &file_bytes) || file_bytes > INT64_MAX - 512)
        return qni_fail(err, QN_E_STRIDE, "qn_npy_write: the array's size overflows");
    const struct qni_allocator a = qni_allocator_default();
    struct qni_output *output = NULL;
    qn_error inner = {QN_OK, -1, ""};
    qn_status status = qni_output_open(&a, path, overwrite, &output, &inner);
    if (status == QN_OK)
        status = qni_output_renew(output, &inner);
    if (status == QN_OK)
        status = write_file(output, tensor, types[i].kind, types[i].bytes, &inner);
    qni_output_close(output, 0);
    if (status != QN_OK)
        return qni_fail_at(err, status, inner.offset, "%s: %s", qni_shown_path(shown, path),
                           inner.text);
    return QN_OK;
}
