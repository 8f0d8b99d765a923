/* SPDX-License-Identifier: Apache-2.0 */
/* A small JSON text as a tree: the configuration files beside a model's tensors, and the JSON that
 * bitsandbytes keeps in a tensor. At most QNI_MOST_SETTINGS values; more is no configuration. A key
 * may not come twice. Numbers stay the text they are. */
#ifndef QNI_CHECKPOINT_SETTINGS_H
#define QNI_CHECKPOINT_SETTINGS_H

#include <quern/base.h>
#include <stdbool.h>

#include "../base/alloc.h"

enum { QNI_MOST_SETTINGS = 1 << 14, QNI_MOST_SETTINGS_BYTES = 1 << 24 };

struct qni_setting {
    const char *key;     /* "" in arrays and for the root */
    const char *text;    /* of strings, numbers and words; "" for objects and arrays */
    int32_t child, next; /* -1: none */
    char kind;           /* as qni_json_peek() tells it: { [ " 0 t f n */
};

struct qni_settings {
    struct qni_allocator allocator;
    struct qni_setting *list; /* [count]; the root is 0 */
    size_t count, capacity;
    char *strings;
    size_t string_bytes;
};

/* An empty tree, which any question finds nothing in, and which may be freed. */
void qni_settings_start(const struct qni_allocator *a, struct qni_settings *s);
/* wanted: a NULL-terminated list of the root's keys that matter, others are only checked to be
 * JSON; NULL: all. @return QN_OK; QN_E_CORRUPT; QN_E_MEMORY. */
qn_status qni_settings_read(const char *text, size_t size, const char *const *wanted,
                            struct qni_settings *s, qn_error *err);
void qni_settings_free(struct qni_settings *s);

/* The child of that key, or -1. A node of -1 has no children, so that questions can be nested. */
int32_t qni_setting_at(const struct qni_settings *s, int32_t node, const char *key);
/* The text of a string, else NULL. */
const char *qni_setting_text(const struct qni_settings *s, int32_t node);
/* A number without fraction, of at most 15 digits. False if it is none. */
bool qni_setting_integer(const struct qni_settings *s, int32_t node, int64_t *value);
bool qni_setting_real(const struct qni_settings *s, int32_t node, double *value);
/* 1: true, 0: false, -1: neither. */
int32_t qni_setting_flag(const struct qni_settings *s, int32_t node);

#endif
