/* SPDX-License-Identifier: Apache-2.0 */
/* Protobuf's wire format, as far as reading messages needs it: a message is a run of fields, each a
 * key (field number and wire type) and a value. docs/adr/0014 says why there is no library for it.
 * A cursor never leaves its message; what is wrong ends the walk and stays in `why`. */
#ifndef QNI_CHECKPOINT_PROTO_H
#define QNI_CHECKPOINT_PROTO_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* A run of bytes of the file. */
struct qni_span {
    uint32_t at, size;
};

enum { QNI_WIRE_VARINT = 0, QNI_WIRE_64 = 1, QNI_WIRE_BYTES = 2, QNI_WIRE_32 = 5 };

struct qni_proto {
    const uint8_t *bytes; /* of the file */
    uint32_t at, end;
    uint32_t field; /* the one that qni_proto_next() found */
    int32_t wire;
    uint64_t number;      /* of QNI_WIRE_VARINT, _32 and _64, as it lies */
    struct qni_span span; /* of QNI_WIRE_BYTES; of the others the bytes of the number */
    const char *why;      /* NULL: all is well */
};

static inline struct qni_proto qni_proto_of(const uint8_t *bytes, struct qni_span span)
{
    return (struct qni_proto){.bytes = bytes, .at = span.at, .end = span.at + span.size};
}

static inline bool qni_proto_stop(struct qni_proto *p, const char *why)
{
    p->why = why;
    return false;
}

/* At most 10 bytes of 7 bits, the lowest first. */
static inline bool qni_proto_varint(struct qni_proto *p, uint64_t *value)
{
    *value = 0;
    for (int32_t shift = 0; shift < 70; shift += 7) {
        if (p->at == p->end)
            return qni_proto_stop(p, "the message ends inside a number");
        const uint8_t byte = p->bytes[p->at++];
        if (shift == 63 && byte > 1)
            return qni_proto_stop(p, "a number has more than 64 bits");
        *value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return true;
    }
    return qni_proto_stop(p, "a number has more than 64 bits");
}

/* The next field; false at the end, or if something is wrong (why). */
static inline bool qni_proto_next(struct qni_proto *p)
{
    uint64_t key = 0, size = 0;
    if (p->why != NULL || p->at == p->end || !qni_proto_varint(p, &key))
        return false;
    p->wire = (int32_t)(key & 7);
    if (key >> 3 == 0 || key >> 3 > 0x1fffffff)
        return qni_proto_stop(p, "a field has an impossible number");
    p->field = (uint32_t)(key >> 3);
    p->number = 0;
    p->span.at = p->at;
    switch (p->wire) {
    case QNI_WIRE_VARINT:
        if (!qni_proto_varint(p, &p->number))
            return false;
        p->span.size = p->at - p->span.at;
        return true;
    case QNI_WIRE_BYTES:
        if (!qni_proto_varint(p, &size))
            return false;
        p->span.at = p->at;
        break;
    case QNI_WIRE_32:
    case QNI_WIRE_64:
        size = p->wire == QNI_WIRE_32 ? 4 : 8;
        break;
    default:
        return qni_proto_stop(p, "a field has a wire type that messages do not use");
    }
    if (size > p->end - p->at)
        return qni_proto_stop(p, "a field is longer than the message (truncated?)");
    p->span.size = (uint32_t)size;
    if (p->wire != QNI_WIRE_BYTES)
        memcpy(&p->number, p->bytes + p->at, (size_t)size);
    p->at += (uint32_t)size;
    return true;
}

static inline bool qni_span_is(const uint8_t *bytes, struct qni_span s, const char *text)
{
    const size_t length = strlen(text);
    return s.size == length && memcmp(bytes + s.at, text, length) == 0;
}

static inline int qni_span_order(const uint8_t *bytes, struct qni_span a, struct qni_span b)
{
    const size_t less = a.size < b.size ? a.size : b.size;
    const int order = less == 0 ? 0 : memcmp(bytes + a.at, bytes + b.at, less);
    return order != 0 ? order : a.size < b.size ? -1 : a.size > b.size;
}

#endif
