/* SPDX-License-Identifier: Apache-2.0 */
#include "message.h"

#include <stdlib.h>
#include <string.h>

#include "cli.h"

enum { VARINT = 0, FIXED_64 = 1, BYTES = 2, FIXED_32 = 5 };

void message_put(struct message *m, const void *data, size_t size)
{
    if (m->size + size > m->capacity) {
        m->capacity = 2 * m->capacity + size + 64;
        m->data = must_grow(m->data, m->capacity);
    }
    if (size > 0)
        memcpy(m->data + m->size, data, size);
    m->size += size;
}

static void put_varint(struct message *m, uint64_t value)
{
    for (; value > 127; value >>= 7) {
        const uint8_t byte = (uint8_t)(value & 127) | 128;
        message_put(m, &byte, 1);
    }
    const uint8_t last = (uint8_t)value;
    message_put(m, &last, 1);
}

void message_number(struct message *m, uint32_t field, int64_t value)
{
    put_varint(m, field << 3 | VARINT);
    put_varint(m, (uint64_t)value);
}

void message_head(struct message *m, uint32_t field, size_t size)
{
    put_varint(m, field << 3 | BYTES);
    put_varint(m, size);
}

void message_text(struct message *m, uint32_t field, const char *text)
{
    message_head(m, field, strlen(text));
    message_put(m, text, strlen(text));
}

void message_part(struct message *m, uint32_t field, struct message *inner)
{
    message_head(m, field, inner->size);
    message_put(m, inner->data, inner->size);
    free(inner->data);
    *inner = (struct message){0};
}

static int take_varint(struct bytes *rest, uint64_t *value)
{
    *value = 0;
    for (int shift = 0; shift < 64 && rest->size > 0; shift += 7) {
        const uint8_t byte = *rest->data++;
        rest->size--;
        *value |= (uint64_t)(byte & 127) << shift;
        if (byte < 128)
            return 1;
    }
    return 0;
}

int next_field(struct bytes *rest, struct field *field)
{
    struct bytes at = *rest;
    uint64_t key, size = 0;
    if (at.size == 0 || !take_varint(&at, &key) || key >> 3 == 0 || key >> 3 > INT32_MAX)
        return 0;
    *field = (struct field){.number = (uint32_t)(key >> 3), .is_bytes = (key & 7) == BYTES};
    field->content.data = at.data;
    switch (key & 7) {
    case VARINT:
        if (!take_varint(&at, &field->value))
            return 0;
        size = 0;
        break;
    case BYTES:
        if (!take_varint(&at, &size))
            return 0;
        field->content.data = at.data;
        break;
    case FIXED_32:
    case FIXED_64:
        size = (key & 7) == FIXED_32 ? 4 : 8;
        break;
    default:
        return 0;
    }
    if (size > at.size)
        return 0;
    at.data += size;
    at.size -= size;
    field->content.size = (size_t)(at.data - field->content.data);
    field->whole = (struct bytes){rest->data, (size_t)(at.data - rest->data)};
    *rest = at;
    return 1;
}

int bytes_are(struct bytes b, const char *text)
{
    return b.size == strlen(text) && memcmp(b.data, text, b.size) == 0;
}

struct bytes message_field(struct bytes message, uint32_t number)
{
    struct bytes found = {message.data, 0};
    struct field f;
    while (next_field(&message, &f))
        if (f.number == number && f.is_bytes)
            found = f.content;
    return found;
}

int64_t message_value(struct bytes message, uint32_t number, int64_t otherwise)
{
    struct field f;
    while (next_field(&message, &f))
        if (f.number == number && !f.is_bytes)
            otherwise = (int64_t)f.value;
    return otherwise;
}
