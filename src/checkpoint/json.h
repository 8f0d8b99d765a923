/* SPDX-License-Identifier: Apache-2.0 */
/* A pull reader for small JSON texts that nobody vouches for: safetensors headers and the
 * descriptions of weights.
 *
 * The caller asks for what it expects next; nothing is built. Strings are decoded into memory of
 * the caller, which therefore is all that a text can make us use. A failure is sticky: `why` and
 * `why_at` say what and where, every later call returns false. */
#ifndef QNI_CHECKPOINT_JSON_H
#define QNI_CHECKPOINT_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { QNI_JSON_DEPTH = 16 };

struct qni_json {
    const uint8_t *text;
    size_t size, at;
    char
        *strings; /* size bytes: a decoded string and its end never need more than the quoted one */
    size_t strings_used;
    int32_t depth;
    uint32_t fresh;  /* bit d: nothing has been read yet from the container at depth d */
    const char *why; /* static text, NULL while all is well */
    size_t why_at;
};

void qni_json_start(struct qni_json *j, const void *text, size_t size, char *strings);
/* Only blanks may be left. */
bool qni_json_end(struct qni_json *j);

/* Enter an object, then ask for keys until false: it is left, or the text is wrong. Arrays
 * likewise. Between two calls the value must be read. Keys are not compared with each other: the
 * caller knows which ones it saw. */
bool qni_json_object(struct qni_json *j);
bool qni_json_key(struct qni_json *j, const char **key);
bool qni_json_array(struct qni_json *j);
bool qni_json_item(struct qni_json *j);

/* Terminated text without a NUL inside; UTF-8 is checked. */
bool qni_json_string(struct qni_json *j, const char **text);
/* A plain integer from 0 to 2^63 - 1: no sign, fraction or exponent. */
bool qni_json_integer(struct qni_json *j, int64_t *value);
/* What comes next: '{', '[', '"', '0' for a number, 't', 'f', 'n', or 0 for none of them. */
char qni_json_peek(struct qni_json *j);
/* Read any value and drop it. */
bool qni_json_skip(struct qni_json *j);
/* Fail by the caller's own rule at the place the reader has come to. Returns false. */
bool qni_json_refuse(struct qni_json *j, const char *why);

/* Length of the UTF-8 character at text, or 0 if there is none (truncated, overlong, a surrogate,
 * above 10ffff). */
size_t qni_utf8_length(const uint8_t *text, size_t size);

#endif
