/* SPDX-License-Identifier: Apache-2.0 */
/* MNN files: a flatbuffer without identifier, whose root is a Net with a list of operators. A table
 * is a place in the file: four bytes back lead to its list of fields, each with two bytes that say
 * how far behind the table's beginning the field is, 0 for none.
 *
 * Convolution, ConvolutionDepthwise and InnerProduct have their weights inside: plain floats, or an
 * IDSTQuan with a buffer and scales. They become the tensors "NAME.weight" (the whole buffer),
 * "NAME.alpha" and "NAME.bias", and a link each. Where an operator has `external` - a place, and
 * the bytes of weights (or of buffer and alpha) and bias that lie one behind the other from there
 * on - they are in the file MODEL.weight, which is opened beside the model. Other operators have no
 * weights that are read. */
#include <stdio.h>
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"
#include "file.h"

/* Fields, by their number in MNN's schema. */
enum { NET_OPS = 3 };
enum { OP_PARAMETER_TYPE = 1, OP_PARAMETER = 2, OP_NAME = 3, OP_TYPE = 5 };
enum { CONV_COMMON = 0, CONV_WEIGHT = 1, CONV_BIAS = 2, CONV_QUAN = 3, CONV_EXTERNAL = 6 };
enum { COMMON_KX = 2, COMMON_KY = 3, COMMON_GROUP = 9, COMMON_OUTPUTS = 10 };
enum { INNER_OUTPUTS = 0, INNER_WEIGHT = 3, INNER_BIAS = 4, INNER_QUAN = 7 };
enum {
    QUAN_BUFFER = 0,
    QUAN_ALPHA = 1,
    QUAN_TYPE = 2,
    QUAN_SCALE = 4,
    QUAN_BITS = 7,
    QUAN_LEAST = 8,
    QUAN_READ_TYPE = 9,
    QUAN_WIDE = 11
};
enum { PARAMETER_CONVOLUTION = 9, PARAMETER_INNER = 20 };
enum { CONVOLUTION = 12, DEPTHWISE = 13, DECONVOLUTION = 17, DECONVOLUTION_DEPTHWISE = 18 };
enum { STORED_F16 = 3 };
/* No operator with weights is smaller: its tables have more fields. */
enum { LEAST_OPERATOR = 64, LONGEST_ENDING = 32 };

/* ---- flatbuffers ----------------------------------------------------------------------------- */

struct buffer {
    const uint8_t *bytes;
    size_t size;
};

struct vector {
    size_t at, count; /* at 0: there is none */
};

static bool read_at(const struct buffer *b, size_t at, void *value, size_t bytes)
{
    if (at > b->size || bytes > b->size - at)
        return false;
    memcpy(value, b->bytes + at, bytes);
    return true;
}

/* Where a field of the table is; 0: it has none, or the table is broken. */
static size_t field(const struct buffer *b, size_t table, uint32_t number)
{
    int32_t back = 0;
    uint16_t bytes = 0, offset = 0;
    if (table == 0 || !read_at(b, table, &back, 4))
        return 0;
    const int64_t list = (int64_t)table - back;
    if (list < 0 || !read_at(b, (size_t)list, &bytes, 2) || bytes < 4 + 2 * (number + 1) ||
        !read_at(b, (size_t)list + 4 + 2 * (size_t)number, &offset, 2) || offset < 4)
        return 0;
    return table + offset < b->size ? table + offset : 0;
}

/* What a place leads to: a table or a vector further on. */
static size_t follow(const struct buffer *b, size_t at)
{
    uint32_t ahead = 0;
    if (at == 0 || !read_at(b, at, &ahead, 4) || ahead == 0 || ahead >= b->size - at)
        return 0;
    return at + ahead;
}

static size_t table_of(const struct buffer *b, size_t table, uint32_t number)
{
    return follow(b, field(b, table, number));
}

static struct vector vector_of(const struct buffer *b, size_t table, uint32_t number,
                               size_t element)
{
    const size_t at = table_of(b, table, number);
    uint32_t count = 0;
    if (at == 0 || !read_at(b, at, &count, 4) || count > (b->size - at - 4) / element)
        return (struct vector){0, 0};
    return (struct vector){at + 4, count};
}

static int32_t integer(const struct buffer *b, size_t table, uint32_t number, int32_t usual)
{
    int32_t value = 0;
    const size_t at = field(b, table, number);
    return at != 0 && read_at(b, at, &value, 4) ? value : usual;
}

static uint8_t byte(const struct buffer *b, size_t table, uint32_t number)
{
    uint8_t value = 0;
    const size_t at = field(b, table, number);
    return at != 0 && read_at(b, at, &value, 1) ? value : 0;
}

static float real(const struct buffer *b, size_t table, uint32_t number)
{
    float value = 0;
    const size_t at = field(b, table, number);
    return at != 0 && read_at(b, at, &value, 4) ? value : 0;
}

/* ---- operators ------------------------------------------------------------------------------- */

struct operator
{
    struct vector name, weight, bias, buffer, alpha;
    int32_t type;
    int64_t n, kh, kw, groups;
    size_t quan;
    bool is_external;  /* the places of the vectors are those of another file */
    size_t refused_at; /* the list of external parts, where these cannot be; else 0 */
};

static size_t root_of(const struct buffer *b)
{
    uint32_t root = 0;
    return b->size >= 16 && read_at(b, 0, &root, 4) && root < b->size ? root : 0;
}

/* The next part of external data; false: it cannot be. */
static bool take_part(int64_t *at, int64_t bytes, size_t element, struct vector *v)
{
    if (bytes < 0 || bytes % (int64_t)element != 0 || *at > INT64_MAX / 2 - bytes)
        return false;
    *v = (struct vector){(size_t)*at, (size_t)bytes / element};
    *at += bytes;
    return true;
}

/* The parts of external data, if they can be; o is left alone where one of them cannot. */
static bool read_external(const struct buffer *b, const struct vector *list, struct operator* o)
{
    enum { PLACE, FIRST, SECOND, THIRD, MOST };
    struct vector part[MOST] = {{0}};
    int64_t of[MOST] = {0};
    if (list->count < MOST - 1)
        return false;
    for (size_t i = 0; i < list->count && i < MOST; i++)
        read_at(b, list->at + 8 * i, &of[i], 8);
    int64_t at = of[PLACE];
    if (at < 0 || at > INT64_MAX / 2 ||
        !take_part(&at, of[FIRST], o->quan == 0 ? 4 : 1, &part[FIRST]) ||
        !take_part(&at, of[SECOND], 4, &part[SECOND]) ||
        !take_part(&at, o->quan == 0 ? 0 : of[THIRD], 4, &part[THIRD]))
        return false;
    if (o->quan == 0) {
        o->weight = part[FIRST];
        o->bias = part[SECOND];
    } else {
        o->buffer = part[FIRST];
        o->alpha = part[SECOND];
        o->bias = part[THIRD];
    }
    return true;
}

/* false: no operator with weights. */
static bool read_operator(const struct buffer *b, size_t op, struct operator* o)
{
    const uint8_t parameter = byte(b, op, OP_PARAMETER_TYPE);
    const size_t main = table_of(b, op, OP_PARAMETER);
    const bool is_inner = parameter == PARAMETER_INNER;
    *o = (struct operator){.kh = 1, .kw = 1, .groups = 1};
    if (main == 0 || (parameter != PARAMETER_CONVOLUTION && !is_inner))
        return false;
    o->type = integer(b, op, OP_TYPE, 0);
    o->name = vector_of(b, op, OP_NAME, 1);
    o->weight = vector_of(b, main, is_inner ? INNER_WEIGHT : CONV_WEIGHT, 4);
    o->bias = vector_of(b, main, is_inner ? INNER_BIAS : CONV_BIAS, 4);
    o->quan = table_of(b, main, is_inner ? INNER_QUAN : CONV_QUAN);
    o->buffer = vector_of(b, o->quan, QUAN_BUFFER, 1);
    o->alpha = vector_of(b, o->quan, QUAN_ALPHA, 4);
    if (is_inner) {
        o->n = integer(b, main, INNER_OUTPUTS, 0);
    } else {
        const size_t common = table_of(b, main, CONV_COMMON);
        o->n = integer(b, common, COMMON_OUTPUTS, 0);
        o->kw = integer(b, common, COMMON_KX, 1);
        o->kh = integer(b, common, COMMON_KY, 1);
        o->groups = o->type == DEPTHWISE ? o->n : integer(b, common, COMMON_GROUP, 1);
        const struct vector list = vector_of(b, main, CONV_EXTERNAL, 8);
        o->is_external = list.count > 0 && o->weight.count == 0 && o->buffer.count == 0;
        if (o->is_external && !read_external(b, &list, o))
            o->refused_at = list.at;
    }
    return o->weight.count > 0 || o->buffer.count > 0 || o->refused_at > 0;
}

bool qni_mnn_is(const uint8_t *bytes, size_t size)
{
    const struct buffer b = {bytes, size};
    if (size < 16 || memcmp(bytes + 4, "TFL3", 4) == 0 || bytes[8] == '{')
        return false;
    const struct vector ops = vector_of(&b, root_of(&b), NET_OPS, 4);
    const size_t first = ops.count == 0 ? 0 : follow(&b, ops.at);
    return first != 0 && field(&b, first, OP_TYPE) + field(&b, first, OP_NAME) != 0;
}

/* ---- the file's tables ----------------------------------------------------------------------- */

struct texts {
    const uint8_t *bytes;
    char *at;
    const struct operator* op;
    size_t index; /* of the operator, which is called so where it has no name */
};

static size_t name_bytes(const struct operator* o)
{
    return o->name.count + LONGEST_ENDING;
}

/* The operator's name and an ending. */
static const char *keep_name(struct texts *t, const char *ending)
{
    char *text = t->at;
    const size_t length = t->op->name.count;
    if (length > 0) {
        memcpy(text, t->bytes + t->op->name.at, length);
        memcpy(text + length, ending, strlen(ending) + 1);
    } else {
        snprintf(text, LONGEST_ENDING, "op%lu%s", (unsigned long)t->index, ending);
    }
    t->at += strlen(text) + 1;
    return text;
}

/* Plain weights [n, channels, kh, kw] where the dimensions are right; else a vector. */
static void shape_weight(struct qni_entry *e, const struct operator* o)
{
    int64_t row = 0;
    if (o->n < 1 || o->kh < 1 || o->kw < 1 || !qni_i64_mul(o->kh, o->kw, &row) ||
        !qni_i64_mul(row, o->n, &row) || e->shape[0] % row != 0)
        return;
    e->rank = o->kh * o->kw > 1 ? 4 : 2;
    e->shape[1] = e->shape[0] / row;
    e->shape[0] = o->n;
    e->shape[2] = e->rank == 4 ? o->kh : 0;
    e->shape[3] = e->rank == 4 ? o->kw : 0;
}

static struct qni_entry entry_of(const char *name, const char *spelling, qn_dtype dtype,
                                 const struct vector *v)
{
    struct qni_entry e = {.name = name, .spelling = spelling, .dtype = dtype, .rank = 1};
    e.offset = v->at;
    e.bytes = v->count * qn_dtype_bytes(dtype);
    e.shape[0] = (int64_t)v->count;
    return e;
}

/* A tensor of the model, or of the file beside it: where the operator says. */
static qn_status add_entry(qn_file *file, const struct operator* o, struct qni_entry e,
                           qn_error *err)
{
    void *list = o->is_external ? (void *)file->externals : (void *)file->entries;
    const bool grown = o->is_external ? qni_grow(&file->allocator, &list, &file->external_capacity,
                                                 file->n_externals, sizeof *file->externals)
                                      : qni_grow(&file->allocator, &list, &file->entry_capacity,
                                                 file->n_entries, sizeof *file->entries);
    if (o->is_external)
        file->externals = list;
    else
        file->entries = list;
    if (!grown)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    if (o->is_external)
        file->externals[file->n_externals++] = (struct qni_external){.entry = e, .location = ""};
    else
        file->entries[file->n_entries++] = e;
    return QN_OK;
}

static qn_status add_link(qn_file *file, const struct buffer *b, struct texts *t,
                          const char *weight, const char *alpha, qn_error *err)
{
    const struct operator* o = t->op;
    void *links = file->links;
    const bool grown = qni_grow(&file->allocator, &links, &file->link_capacity, file->n_links,
                                sizeof *file->links);
    file->links = links;
    if (!grown)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    const bool is_turned = o->type == DECONVOLUTION || o->type == DECONVOLUTION_DEPTHWISE;
    struct qni_link link = {.importer = "mnn", .name = weight, .alpha = 1};
    link.part[QNI_LINK_CODES] = weight;
    link.part[QNI_LINK_SCALE] = alpha;
    link.bias = o->bias.count > 0 ? keep_name(t, ".bias") : NULL;
    link.node = o->type == DEPTHWISE || o->type == CONVOLUTION ? "Convolution"
                : is_turned                                    ? "Deconvolution"
                                                               : "InnerProduct";
    link.kind = is_turned ? QNI_LINK_TRANSPOSED : QNI_LINK_CONV;
    link.n = o->n;
    link.kh = o->kh > 0 && o->kh < INT16_MAX ? (int32_t)o->kh : 0;
    link.kw = o->kw > 0 && o->kw < INT16_MAX ? (int32_t)o->kw : 0;
    link.conv_groups = o->groups > 0 && o->groups <= INT32_MAX ? (int32_t)o->groups : 0;
    link.bits = integer(b, o->quan, QUAN_BITS, 0);
    link.storage = integer(b, o->quan, QUAN_TYPE, 0);
    link.least = integer(b, o->quan, QUAN_LEAST, 0);
    link.is_asymmetric = integer(b, o->quan, QUAN_READ_TYPE, 0) != 0;
    link.is_wide = byte(b, o->quan, QUAN_WIDE) != 0;
    if (real(b, o->quan, QUAN_SCALE) != 0)
        link.alpha = real(b, o->quan, QUAN_SCALE);
    file->links[file->n_links++] = link;
    return QN_OK;
}

static qn_status keep_operator(qn_file *file, const struct buffer *b, struct texts *t,
                               qn_error *err)
{
    const struct operator* o = t->op;
    const char *name = keep_name(t, ".weight");
    const bool is_half =
        o->quan != 0 && integer(b, o->quan, QUAN_TYPE, 0) == STORED_F16 && o->buffer.count % 2 == 0;
    if (o->bias.count > 0)
        QNI_TRY(add_entry(file, o, entry_of(keep_name(t, ".bias"), "F32", QN_F32, &o->bias), err));
    if ((o->buffer.count == 0 && o->weight.count > 0) || (is_half && o->buffer.count > 0)) {
        const struct vector halves = {o->buffer.at, o->buffer.count / 2};
        struct qni_entry e = o->buffer.count == 0 ? entry_of(name, "F32", QN_F32, &o->weight)
                                                  : entry_of(name, "F16", QN_F16, &halves);
        shape_weight(&e, o);
        return add_entry(file, o, e, err);
    }
    QNI_TRY(add_entry(file, o, entry_of(name, "IDSTQuan", QN_U8, &o->buffer), err));
    const char *alpha = o->alpha.count > 0 ? keep_name(t, ".alpha") : NULL;
    if (alpha != NULL)
        QNI_TRY(add_entry(file, o, entry_of(alpha, "F32", QN_F32, &o->alpha), err));
    return add_link(file, b, t, name, alpha, err);
}

qn_status qni_mnn_read(qn_file *file, qn_error *err)
{
    const struct buffer b = {file->mapping->bytes, file->mapping->size};
    const struct vector ops = vector_of(&b, root_of(&b), NET_OPS, 4);
    struct operator o;
    size_t text = 1, count = 0;
    for (size_t i = 0; i < ops.count; i++) {
        if (!read_operator(&b, follow(&b, ops.at + 4 * i), &o))
            continue;
        if (o.refused_at > 0)
            return qni_fail_at(err, QN_E_CORRUPT, (int64_t)o.refused_at,
                               "an operator's external data have no place, or lengths that are no "
                               "whole numbers of elements");
        if (o.name.count > 0 && memchr(b.bytes + o.name.at, 0, o.name.count) != NULL)
            return qni_fail_at(err, QN_E_CORRUPT, (int64_t)o.name.at,
                               "an operator's name has a zero byte");
        count++;
        text += 4 * name_bytes(&o);
        if (count > b.size / LEAST_OPERATOR || text > 16 * b.size)
            return qni_fail_at(err, QN_E_CORRUPT, (int64_t)ops.at,
                               "operators lie in each other's bytes");
    }
    file->strings = qni_alloc(&file->allocator, text);
    if (file->strings == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    file->string_bytes = text;
    struct texts t = {b.bytes, file->strings, &o, 0};
    for (size_t i = 0; i < ops.count; i++) {
        t.index = i;
        if (read_operator(&b, follow(&b, ops.at + 4 * i), &o))
            QNI_TRY(keep_operator(file, &b, &t, err));
    }
    return QN_OK;
}
