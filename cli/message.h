/* SPDX-License-Identifier: Apache-2.0 */
/* Protobuf's wire format, as far as writing ONNX models, and reading those whose graph is kept,
 * needs it. A message is a run of fields, each a key (field number and wire type) and a value. */
#ifndef CLI_MESSAGE_H
#define CLI_MESSAGE_H

#include <stddef.h>
#include <stdint.h>

/* ------------------------------------------------------------------------------------- writing */

struct message {
    uint8_t *data; /* to be freed */
    size_t size, capacity;
};

void message_put(struct message *m, const void *data, size_t size);
void message_number(struct message *m, uint32_t field, int64_t value);
/* The beginning of a field of so many bytes. */
void message_head(struct message *m, uint32_t field, size_t size);
void message_text(struct message *m, uint32_t field, const char *text);
/* A message as a field; it is freed. */
void message_part(struct message *m, uint32_t field, struct message *inner);

/* ------------------------------------------------------------------------------------- reading */

struct bytes {
    const uint8_t *data;
    size_t size;
};

struct field {
    uint32_t number;
    struct bytes whole;   /* with its key */
    struct bytes content; /* of bytes and messages; else those of the number */
    int is_bytes;         /* texts, messages, packed numbers */
    uint64_t value;       /* of a varint */
};

/* The next field of *rest, which moves on. 0: the end, or what follows is no field: then *rest is
 * not empty. */
int next_field(struct bytes *rest, struct field *field);
/* Is it this text? */
int bytes_are(struct bytes b, const char *text);
/* The last field of that number that is bytes; of size 0 where there is none. */
struct bytes message_field(struct bytes message, uint32_t number);
/* The last varint of that number, or `otherwise`. */
int64_t message_value(struct bytes message, uint32_t number, int64_t otherwise);

#endif
