/* SPDX-License-Identifier: Apache-2.0 */
/* ONNX files: a ModelProto, whose graph has the nodes and the constant tensors (initializers, and
 * the values of Constant nodes, which are called as their output is). Bodies of If and Loop, and
 * functions, are not looked into.
 *
 * The bytes of a tensor are raw_data, or repeated numbers of the field that belongs to its type, or
 * they lie in another file (external data): that file is opened beside this one and has those
 * tensors. Floats that lie in one run are used where they are. Other repeated numbers are variable
 * in length and are decoded when the file is opened: never more than eight bytes for one of the
 * file's. Elements of 4 and 2 bits are packed from the lowest bit of each byte on; in the int32
 * field every number is one byte of them.
 *
 *     42 01 77 within a TensorProto: field 8 (0x42 >> 3), one byte, "w": its name. */
#include "onnx.h"

#include "../base/context.h"
#include "../base/error.h"
#include "../base/size.h"

enum { FLOATS = 4, INT32S = 5, STRINGS = 6, INT64S = 7, RAW = 9, DOUBLES = 10, UINT64S = 11 };

/* By TensorProto.DataType. */
static const struct qni_onnx_type types[] = {
    {NULL, 0, QN_DTYPE_NONE, 0},
    {"FLOAT", 32, QN_F32, FLOATS},
    {"UINT8", 8, QN_U8, INT32S},
    {"INT8", 8, QN_I8, INT32S},
    {"UINT16", 16, QN_U16, INT32S},
    {"INT16", 16, QN_I16, INT32S},
    {"INT32", 32, QN_I32, INT32S},
    {"INT64", 64, QN_I64, INT64S},
    {"STRING", 0, QN_DTYPE_NONE, STRINGS},
    {"BOOL", 8, QN_BOOL, INT32S},
    {"FLOAT16", 16, QN_F16, INT32S},
    {"DOUBLE", 64, QN_F64, DOUBLES},
    {"UINT32", 32, QN_U32, UINT64S},
    {"UINT64", 64, QN_U64, UINT64S},
    {"COMPLEX64", 64, QN_DTYPE_NONE, 0},
    {"COMPLEX128", 128, QN_DTYPE_NONE, 0},
    {"BFLOAT16", 16, QN_BF16, INT32S},
    {"FLOAT8E4M3FN", 8, QN_E4M3, INT32S},
    {"FLOAT8E4M3FNUZ", 8, QN_DTYPE_NONE, INT32S},
    {"FLOAT8E5M2", 8, QN_E5M2, INT32S},
    {"FLOAT8E5M2FNUZ", 8, QN_DTYPE_NONE, INT32S},
    {"UINT4", 4, QN_DTYPE_NONE, INT32S},
    {"INT4", 4, QN_DTYPE_NONE, INT32S},
    {"FLOAT4E2M1", 4, QN_DTYPE_NONE, INT32S},
    {"FLOAT8E8M0", 8, QN_E8M0, INT32S},
    {"UINT2", 2, QN_DTYPE_NONE, INT32S},
    {"INT2", 2, QN_DTYPE_NONE, INT32S},
};

const struct qni_onnx_type *qni_onnx_type(uint64_t data_type)
{
    return data_type == 0 || data_type >= sizeof types / sizeof *types ? NULL : &types[data_type];
}

bool qni_onnx_is(const uint8_t *bytes, size_t size)
{
    /* ir_version, then the producer's name (or version, domain, model version, documentation,
     * graph, opsets). The same bytes begin no safetensors file: one of that length begins "{". */
    static const uint8_t next[] = {0x12, 0x1a, 0x22, 0x28, 0x32, 0x3a, 0x42};
    if (size < 3 || bytes[0] != 0x08 || bytes[1] == 0 || bytes[1] > 32)
        return false;
    if (size >= 9 && bytes[8] == '{' && memcmp(bytes + 4, "\0\0\0\0", 4) == 0)
        return false;
    return memchr(next, bytes[2], sizeof next) != NULL;
}

/* ---- messages -------------------------------------------------------------------------------- */

static qn_status refuse(uint32_t at, const char *why, qn_error *err)
{
    return qni_fail_at(err, QN_E_CORRUPT, at, "byte %lu: %s", (unsigned long)at, why);
}

static qn_status wrong(const struct qni_proto *p, qn_error *err)
{
    return p->why == NULL ? QN_OK : refuse(p->at, p->why, err);
}

static bool is_zero(struct qni_span s)
{
    return s.at == 0; /* the file's first byte is no field's content */
}

/* Room for one more; false: no memory. */
#define GROW(x, list, count, capacity)                                                             \
    grow(&(x)->allocator, &(x)->list, &(x)->capacity, (x)->count, sizeof *(x)->list)

static bool grow(const struct qni_allocator *a, void *list, size_t *capacity, size_t count,
                 size_t element)
{
    void *array;
    memcpy(&array, list, sizeof array); /* a pointer of any type */
    const bool grown = qni_grow(a, &array, capacity, count, element);
    memcpy(list, &array, sizeof array);
    return grown;
}

/* Reads the field `dims`: repeated, packed or one by one. */
static qn_status read_dims(struct qni_proto *p, struct qni_onnx_tensor *t, qn_error *err)
{
    struct qni_proto list = qni_proto_of(p->bytes, p->span);
    uint64_t value = 0;
    if (p->wire != QNI_WIRE_BYTES && p->wire != QNI_WIRE_VARINT)
        return refuse(p->span.at, "a dimension is no number", err);
    while (list.at < list.end) {
        if (!qni_proto_varint(&list, &value))
            return wrong(&list, err);
        if (value > INT64_MAX || t->rank == 64)
            return refuse(list.at, "a tensor has an impossible shape", err);
        if (t->rank < QN_MAX_RANK)
            t->shape[t->rank] = (int64_t)value;
        t->rank++;
    }
    return QN_OK;
}

static bool read_decimal(const uint8_t *bytes, struct qni_span s, uint64_t *value)
{
    *value = 0;
    for (uint32_t i = 0; i < s.size; i++) {
        const uint8_t c = bytes[s.at + i];
        if (c < '0' || c > '9' || *value > (UINT64_MAX - 9) / 10)
            return false;
        *value = *value * 10 + (uint64_t)(c - '0');
    }
    return s.size > 0 && *value <= INT64_MAX;
}

/* location, offset, length: texts by name. Others (a checksum) are not needed. */
static qn_status read_external(const uint8_t *bytes, struct qni_span message,
                               struct qni_onnx_tensor *t, qn_error *err)
{
    struct qni_proto p = qni_proto_of(bytes, message);
    struct qni_span key = {0, 0}, value = {0, 0};
    while (qni_proto_next(&p)) {
        if (p.wire == QNI_WIRE_BYTES && p.field == 1)
            key = p.span;
        if (p.wire == QNI_WIRE_BYTES && p.field == 2)
            value = p.span;
    }
    QNI_TRY(wrong(&p, err));
    bool is_fine = true;
    if (qni_span_is(bytes, key, "location"))
        t->location = value;
    else if (qni_span_is(bytes, key, "offset"))
        is_fine = read_decimal(bytes, value, &t->offset);
    else if (qni_span_is(bytes, key, "length"))
        is_fine = t->has_length = read_decimal(bytes, value, &t->length);
    return is_fine ? QN_OK : refuse(message.at, "a place of external data is no number", err);
}

/* The bytes that shape and type make; false: they overflow. */
static bool size_of(struct qni_onnx_tensor *t, uint64_t *elements)
{
    int64_t count = 1, bits = 0;
    for (int32_t i = 0; i < t->rank && i < QN_MAX_RANK; i++)
        if (t->shape[i] == 0)
            count = 0;
    for (int32_t i = 0; count > 0 && i < t->rank && i < QN_MAX_RANK; i++)
        if (!qni_i64_mul(count, t->shape[i], &count))
            return false;
    if (!qni_i64_mul(count, t->type->bits, &bits) || bits > INT64_MAX - 8)
        return false;
    *elements = (uint64_t)count;
    t->bytes = ((uint64_t)bits + 7) / 8;
    return true;
}

/* How many numbers the fields of the type have, and whether floats of one run, which need not be
 * decoded: then raw is where they lie. */
static qn_status count_numbers(const uint8_t *bytes, struct qni_onnx_tensor *t, uint64_t *count,
                               qn_error *err)
{
    struct qni_proto p = qni_proto_of(bytes, t->message);
    const uint32_t field = t->type->field;
    const uint64_t each = field == FLOATS ? 4 : field == DOUBLES ? 8 : 0;
    uint64_t value = 0;
    uint32_t runs = 0;
    *count = 0;
    while (qni_proto_next(&p)) {
        if (p.field != field)
            continue;
        struct qni_proto list = qni_proto_of(bytes, p.span);
        runs++;
        t->raw = p.span;
        if (each != 0 ? p.wire == QNI_WIRE_VARINT || p.span.size % each != 0
                      : p.wire != QNI_WIRE_VARINT && p.wire != QNI_WIRE_BYTES)
            return refuse(p.span.at, "numbers of a tensor have another type", err);
        for (; each == 0 && list.at < list.end; ++*count)
            if (!qni_proto_varint(&list, &value))
                return wrong(&list, err);
        *count += each != 0 ? p.span.size / each : 0;
    }
    t->is_decoded = !(each != 0 && runs == 1);
    return QN_OK;
}

static qn_status check_data(const uint8_t *bytes, struct qni_onnx_tensor *t, qn_error *err)
{
    uint64_t elements = 0, count = 0;
    if (!size_of(t, &elements))
        return refuse(t->message.at, "the size of a tensor overflows", err);
    if (t->rank > QN_MAX_RANK || t->type->bits == 0 || t->type->field == 0) {
        t->raw = (struct qni_span){t->message.at, 0}; /* listed, of no use */
        t->bytes = 0;
        t->is_external = false;
        return QN_OK;
    }
    if (t->is_external) {
        if (is_zero(t->location) || t->location.size == 0)
            return refuse(t->message.at, "external data have no location", err);
        if (t->has_length && t->length != t->bytes)
            return refuse(t->message.at, "external data have not the size of their shape", err);
        return QN_OK;
    }
    if (t->has_raw) {
        if (t->raw.size != t->bytes)
            return refuse(t->raw.at, "raw_data has not the size of the tensor's shape", err);
        return QN_OK;
    }
    QNI_TRY(count_numbers(bytes, t, &count, err));
    if (count != (t->type->bits < 8 ? t->bytes : elements))
        return refuse(t->message.at, "a tensor has not as many numbers as its shape says", err);
    if (count == 0)
        t->is_decoded = false;
    if (count == 0)
        t->raw = (struct qni_span){t->message.at, 0};
    return QN_OK;
}

/* name: of a Constant's output; of an initializer NULL, which has its own. */
static qn_status read_tensor(struct qni_onnx *x, struct qni_span message,
                             const struct qni_span *name, qn_error *err)
{
    struct qni_proto p = qni_proto_of(x->bytes, message);
    struct qni_onnx_tensor t = {.message = message};
    uint64_t type = 0;
    while (qni_proto_next(&p)) {
        const bool is_bytes = p.wire == QNI_WIRE_BYTES;
        if (p.field == 1)
            QNI_TRY(read_dims(&p, &t, err));
        else if (p.field == 2 && p.wire == QNI_WIRE_VARINT)
            type = p.number;
        else if (p.field == 3)
            return refuse(p.span.at, "a tensor in segments, which no program writes", err);
        else if (p.field == 8 && is_bytes)
            t.name = p.span;
        else if (p.field == RAW && is_bytes && t.has_raw)
            return refuse(p.span.at, "a tensor has raw_data twice", err);
        else if (p.field == RAW && is_bytes) {
            t.raw = p.span;
            t.has_raw = true;
        } else if (p.field == 13 && is_bytes)
            QNI_TRY(read_external(x->bytes, p.span, &t, err));
        else if (p.field == 14 && p.wire == QNI_WIRE_VARINT)
            t.is_external = p.number == 1;
    }
    QNI_TRY(wrong(&p, err));
    t.type = qni_onnx_type(type);
    if (name != NULL)
        t.name = *name;
    if (t.type == NULL)
        return refuse(message.at, "a tensor has an unknown data type", err);
    if (t.name.size == 0)
        return refuse(message.at, "a tensor has no name", err);
    if (memchr(x->bytes + t.name.at, 0, t.name.size) != NULL)
        return refuse(t.name.at, "a tensor's name has a zero byte", err);
    QNI_TRY(check_data(x->bytes, &t, err));
    if (!GROW(x, tensors, n_tensors, tensor_capacity))
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    x->tensors[x->n_tensors++] = t;
    return QN_OK;
}

/* The tensor of a Constant node's attribute "value". */
static qn_status read_constant(struct qni_onnx *x, struct qni_span attribute,
                               const struct qni_span *name, qn_error *err)
{
    struct qni_proto p = qni_proto_of(x->bytes, attribute);
    struct qni_span own = {0, 0}, tensor = {0, 0};
    while (qni_proto_next(&p)) {
        if (p.field == 1 && p.wire == QNI_WIRE_BYTES)
            own = p.span;
        if (p.field == 5 && p.wire == QNI_WIRE_BYTES)
            tensor = p.span;
    }
    QNI_TRY(wrong(&p, err));
    if (!qni_span_is(x->bytes, own, "value") || is_zero(tensor))
        return QN_OK;
    return read_tensor(x, tensor, name, err);
}

static qn_status add_value(struct qni_onnx *x, bool is_input, struct qni_span name, uint32_t place,
                           qn_error *err)
{
    const struct qni_onnx_value value = {name, (uint32_t)x->n_nodes, place};
    if (is_input ? !GROW(x, inputs, n_inputs, input_capacity)
                 : !GROW(x, outputs, n_outputs, output_capacity))
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    if (is_input)
        x->inputs[x->n_inputs++] = value;
    else
        x->outputs[x->n_outputs++] = value;
    return QN_OK;
}

static qn_status read_node(struct qni_onnx *x, struct qni_span message, qn_error *err)
{
    struct qni_proto p = qni_proto_of(x->bytes, message);
    struct qni_onnx_node n = {
        .message = message, .input = (uint32_t)x->n_inputs, .output = (uint32_t)x->n_outputs};
    while (qni_proto_next(&p)) {
        if (p.wire != QNI_WIRE_BYTES)
            continue;
        if (p.field == 1)
            QNI_TRY(add_value(x, true, p.span, n.n_inputs++, err));
        else if (p.field == 2)
            QNI_TRY(add_value(x, false, p.span, n.n_outputs++, err));
        else if (p.field == 3)
            n.name = p.span;
        else if (p.field == 4)
            n.op = p.span;
        else if (p.field == 7)
            n.domain = p.span;
    }
    QNI_TRY(wrong(&p, err));
    if (n.op.size == 0)
        return refuse(message.at, "a node has no operator", err);
    if (!GROW(x, nodes, n_nodes, node_capacity))
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    x->nodes[x->n_nodes++] = n;
    if (!qni_span_is(x->bytes, n.op, "Constant") || n.n_outputs != 1)
        return QN_OK;
    for (p = qni_proto_of(x->bytes, message); qni_proto_next(&p);)
        if (p.field == 5 && p.wire == QNI_WIRE_BYTES)
            QNI_TRY(read_constant(x, p.span, &x->outputs[n.output].name, err));
    return QN_OK;
}

static qn_status read_graph(struct qni_onnx *x, struct qni_span message, qn_error *err)
{
    struct qni_proto p = qni_proto_of(x->bytes, message);
    while (qni_proto_next(&p)) {
        if (p.wire != QNI_WIRE_BYTES)
            continue;
        if (p.field == 1)
            QNI_TRY(read_node(x, p.span, err));
        else if (p.field == 5)
            QNI_TRY(read_tensor(x, p.span, NULL, err));
    }
    return wrong(&p, err);
}

static qn_status read_model(struct qni_onnx *x, size_t size, qn_error *err)
{
    struct qni_proto p = qni_proto_of(x->bytes, (struct qni_span){0, (uint32_t)size});
    struct qni_span graph = {0, 0};
    while (qni_proto_next(&p)) {
        if (p.field != 7 || p.wire != QNI_WIRE_BYTES)
            continue;
        if (!is_zero(graph))
            return refuse(p.span.at, "the model has two graphs", err);
        graph = p.span;
    }
    QNI_TRY(wrong(&p, err));
    if (is_zero(graph))
        return refuse((uint32_t)size, "an ONNX model without a graph (truncated?)", err);
    return read_graph(x, graph, err);
}

/* ---- the file's tables ----------------------------------------------------------------------- */

struct texts { /* memory that was counted before */
    char *at;
    uint8_t *decoded;
};

static const char *keep_text(struct texts *t, const uint8_t *bytes, struct qni_span s)
{
    char *text = t->at;
    memcpy(text, bytes + s.at, s.size);
    text[s.size] = 0;
    t->at += s.size + 1;
    return text;
}

/* Number i of the field as an element of the type: the lowest bytes of it. */
static void decode(const uint8_t *bytes, const struct qni_onnx_tensor *t, uint8_t *out)
{
    struct qni_proto p = qni_proto_of(bytes, t->message);
    const uint32_t field = t->type->field;
    const size_t element = t->type->bits < 8 ? 1 : (size_t)t->type->bits / 8;
    while (qni_proto_next(&p)) {
        if (p.field != field)
            continue;
        if (field == FLOATS || field == DOUBLES) {
            memcpy(out, bytes + p.span.at, p.span.size);
            out += p.span.size;
            continue;
        }
        struct qni_proto list = qni_proto_of(bytes, p.span);
        for (uint64_t value; list.at < list.end && qni_proto_varint(&list, &value);) {
            memcpy(out, &value, element);
            out += element;
        }
    }
}

static struct qni_entry entry_of(const struct qni_onnx_tensor *t, const char *name)
{
    struct qni_entry e = {.name = name, .spelling = t->type->spelling, .rank = t->rank};
    e.dtype = t->rank <= QN_MAX_RANK ? t->type->dtype : QN_DTYPE_NONE;
    e.offset = t->is_external ? (size_t)t->offset : t->raw.at;
    e.bytes = (size_t)t->bytes;
    memcpy(e.shape, t->shape, sizeof e.shape);
    return e;
}

static qn_status keep_tensor(qn_file *file, const struct qni_onnx *x,
                             const struct qni_onnx_tensor *t, struct texts *texts, qn_error *err)
{
    struct qni_entry e = entry_of(t, keep_text(texts, x->bytes, t->name));
    if (t->is_external) {
        if (!GROW(file, externals, n_externals, external_capacity))
            return qni_fail(err, QN_E_MEMORY, "out of memory");
        if (memchr(x->bytes + t->location.at, 0, t->location.size) != NULL)
            return refuse(t->location.at, "the place of external data has a zero byte", err);
        file->externals[file->n_externals++] =
            (struct qni_external){e, keep_text(texts, x->bytes, t->location), !t->has_length};
        return QN_OK;
    }
    if (t->is_decoded) {
        e.decoded = texts->decoded;
        decode(x->bytes, t, texts->decoded);
        texts->decoded += qni_round_up((size_t)t->bytes, 8);
    }
    if (!GROW(file, entries, n_entries, entry_capacity))
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    file->entries[file->n_entries++] = e;
    return QN_OK;
}

static qn_status keep_link(qn_file *file, const struct qni_onnx *x, const struct qni_onnx_draft *d,
                           struct texts *texts, qn_error *err)
{
    struct qni_link link = d->link;
    for (int32_t i = 0; i < QNI_LINK_PARTS; i++)
        if (!is_zero(d->part[i]))
            link.part[i] = keep_text(texts, x->bytes, d->part[i]);
    if (!is_zero(d->bias))
        link.bias = keep_text(texts, x->bytes, d->bias);
    link.name = texts->at;
    texts->at += qni_onnx_name(x, d, texts->at);
    link.node = texts->at;
    texts->at += qni_onnx_describe(x, d, texts->at);
    if (!GROW(file, links, n_links, link_capacity))
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    file->links[file->n_links++] = link;
    return QN_OK;
}

static bool link_before(const void *arg, uint32_t a, uint32_t b)
{
    const qn_file *file = arg;
    const int order = strcmp(file->links[a].name, file->links[b].name);
    return order < 0 || (order == 0 && a < b);
}

/* Modules whose names two have, or another tensor has, are called as their tensors, whose names
 * nobody else can have any more then. */
static qn_status name_apart(qn_file *file, const struct qni_onnx *x, qn_error *err)
{
    uint32_t *order = qni_alloc(&file->allocator, file->n_links * sizeof *order);
    if (order == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    for (size_t i = 0; i < file->n_links; i++)
        order[i] = (uint32_t)i;
    qni_sort(order, file->n_links, link_before, file);
    for (size_t i = 0; i < file->n_links;) {
        size_t same = i + 1;
        const char *name = file->links[order[i]].name;
        while (same < file->n_links && strcmp(file->links[order[same]].name, name) == 0)
            same++;
        for (size_t j = i; j < same; j++) {
            struct qni_link *link = &file->links[order[j]];
            if (same > i + 1 ||
                (strcmp(name, link->part[0]) != 0 && qni_onnx_find_text(x, name) >= 0))
                link->name = link->part[0];
        }
        i = same;
    }
    qni_free(&file->allocator, order, file->n_links * sizeof *order);
    return QN_OK;
}

static qn_status keep_all(qn_file *file, const struct qni_onnx *x, qn_error *err)
{
    size_t text = 1, decoded = 0;
    for (size_t i = 0; i < x->n_tensors; i++) {
        const struct qni_onnx_tensor *t = &x->tensors[i];
        text += t->name.size + 1 + (t->is_external ? t->location.size + 1 : 0);
        decoded += t->is_decoded ? qni_round_up((size_t)t->bytes, 8) : 0;
    }
    for (size_t i = 0; i < x->n_drafts; i++)
        text += qni_onnx_text_bytes(x, &x->drafts[i]);
    file->string_bytes = text;
    file->strings = qni_alloc(&file->allocator, text);
    file->decoded_bytes = decoded;
    file->decoded = decoded == 0 ? NULL : qni_alloc(&file->allocator, decoded);
    if (file->strings == NULL || (decoded > 0 && file->decoded == NULL))
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    struct texts texts = {file->strings, file->decoded};
    for (size_t i = 0; i < x->n_tensors; i++)
        QNI_TRY(keep_tensor(file, x, &x->tensors[i], &texts, err));
    for (size_t i = 0; i < x->n_drafts; i++)
        QNI_TRY(keep_link(file, x, &x->drafts[i], &texts, err));
    return name_apart(file, x, err);
}

qn_status qni_onnx_read(qn_file *file, qn_error *err)
{
    struct qni_onnx x = {.allocator = file->allocator, .bytes = file->mapping->bytes};
    if (file->mapping->size > INT32_MAX)
        return qni_fail_at(err, QN_E_CORRUPT, 0,
                           "an ONNX model of more than 2^31 bytes, which protobuf does not have");
    qn_status status = read_model(&x, file->mapping->size, err);
    if (status == QN_OK)
        status = qni_onnx_link(&x, err);
    if (status == QN_OK)
        status = keep_all(file, &x, err);
    const struct qni_allocator *a = &x.allocator;
    qni_free(a, x.tensors, x.tensor_capacity * sizeof *x.tensors);
    qni_free(a, x.nodes, x.node_capacity * sizeof *x.nodes);
    qni_free(a, x.inputs, x.input_capacity * sizeof *x.inputs);
    qni_free(a, x.outputs, x.output_capacity * sizeof *x.outputs);
    qni_free(a, x.drafts, x.draft_capacity * sizeof *x.drafts);
    qni_free(a, x.tensors_by_name, x.n_tensors * sizeof(uint32_t));
    qni_free(a, x.inputs_by_name, x.n_inputs * sizeof(uint32_t));
    qni_free(a, x.outputs_by_name, x.n_outputs * sizeof(uint32_t));
    return status;
}

/* ---- external data --------------------------------------------------------------------------- */

static qn_status add_external(qn_file *file, const struct qni_external *e, qn_error *err)
{
    const size_t size = file->mapping->size;
    char shown[QNI_SHOWN];
    if (e->entry.offset > size || e->entry.bytes > size - e->entry.offset)
        return qni_fail_at(err, QN_E_CORRUPT, (int64_t)size,
                           "tensor '%s' should have %llu bytes from %llu on, but the file has %llu "
                           "(truncated?)",
                           qni_shown(shown, e->entry.name), (unsigned long long)e->entry.bytes,
                           (unsigned long long)e->entry.offset, (unsigned long long)size);
    if (e->is_to_end && e->entry.bytes != size - e->entry.offset)
        return qni_fail_at(err, QN_E_CORRUPT, (int64_t)e->entry.offset,
                           "tensor '%s' goes to the end of the file, which its shape does not",
                           qni_shown(shown, e->entry.name));
    if (!GROW(file, entries, n_entries, entry_capacity))
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    const size_t bytes = strlen(e->entry.name) + 1;
    struct qni_entry *entry = &file->entries[file->n_entries++];
    *entry = e->entry;
    entry->name = memcpy(file->strings + file->string_bytes, e->entry.name, bytes);
    file->string_bytes += bytes;
    return QN_OK;
}

qn_status qni_onnx_fill_data(const qn_file *graph, size_t first, qn_file *file, qn_error *err)
{
    const char *location = graph->externals[first].location;
    size_t bytes = 0;
    for (size_t i = first; i < graph->n_externals; i++)
        if (strcmp(graph->externals[i].location, location) == 0)
            bytes += strlen(graph->externals[i].entry.name) + 1;
    file->kind = graph->kind == QN_FILE_MNN ? QN_FILE_MNN_DATA : QN_FILE_ONNX_DATA;
    file->strings = qni_alloc(&file->allocator, bytes);
    if (file->strings == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    qn_status status = QN_OK;
    for (size_t i = first; i < graph->n_externals && status == QN_OK; i++)
        if (strcmp(graph->externals[i].location, location) == 0)
            status = add_external(file, &graph->externals[i], err);
    file->string_bytes = bytes; /* what was allocated, also where not all was used */
    return status;
}
