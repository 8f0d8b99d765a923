/* SPDX-License-Identifier: Apache-2.0 */
/* JSON to a tree of settings. The pull reader checks the text; what is kept here is bounded by the
 * text's size and QNI_MOST_SETTINGS. Recursion is bounded by QNI_JSON_DEPTH. */
#include "settings.h"

#include <string.h>

#include "../base/error.h"
#include "file.h"
#include "json.h"

struct builder {
    struct qni_settings *s;
    struct qni_json json;
    bool no_memory;
};

void qni_settings_start(const struct qni_allocator *a, struct qni_settings *s)
{
    memset(s, 0, sizeof *s);
    s->allocator = *a;
}

void qni_settings_free(struct qni_settings *s)
{
    qni_free(&s->allocator, s->list, s->capacity * sizeof *s->list);
    qni_free(&s->allocator, s->strings, s->string_bytes);
    const struct qni_allocator a = s->allocator;
    qni_settings_start(&a, s);
}

static bool refuse(struct builder *b, const char *why)
{
    return qni_json_refuse(&b->json, why);
}

/* A new node, the last child of its parent. */
static int32_t add(struct builder *b, int32_t parent, int32_t before, const char *key)
{
    struct qni_settings *s = b->s;
    void *list = s->list;
    if (s->count == QNI_MOST_SETTINGS) {
        refuse(b, "more values than a configuration has");
        return -1;
    }
    b->no_memory = !qni_grow(&s->allocator, &list, &s->capacity, s->count, sizeof *s->list);
    s->list = list;
    if (b->no_memory)
        return -1;
    const int32_t node = (int32_t)s->count++;
    s->list[node] = (struct qni_setting){key, "", -1, -1, 0};
    if (before >= 0)
        s->list[before].next = node;
    else if (parent >= 0)
        s->list[parent].child = node;
    return node;
}

static bool read_value(struct builder *b, int32_t node, const char *const *wanted);

static bool is_listed(const char *const *list, const char *key)
{
    for (; *list != NULL; list++)
        if (strcmp(*list, key) == 0)
            return true;
    return false;
}

static bool read_object(struct builder *b, int32_t node, const char *const *wanted)
{
    const char *key = NULL;
    int32_t last = -1;
    if (!qni_json_object(&b->json))
        return false;
    while (qni_json_key(&b->json, &key)) {
        if (qni_setting_at(b->s, node, key) >= 0)
            return refuse(b, "a key occurs twice");
        if (wanted != NULL && !is_listed(wanted, key)) {
            if (!qni_json_skip(&b->json))
                return false;
            continue;
        }
        const int32_t child = add(b, node, last, key);
        if (child < 0 || !read_value(b, child, NULL))
            return false;
        last = child;
    }
    return b->json.why == NULL;
}

static bool read_array(struct builder *b, int32_t node)
{
    int32_t last = -1;
    if (!qni_json_array(&b->json))
        return false;
    while (qni_json_item(&b->json)) {
        const int32_t child = add(b, node, last, "");
        if (child < 0 || !read_value(b, child, NULL))
            return false;
        last = child;
    }
    return b->json.why == NULL;
}

/* What stands in the text as it is: a number needs one byte more than it has, and behind every
 * number but a lone one stands a comma or a bracket. */
static bool read_raw(struct builder *b, int32_t node)
{
    struct qni_json *j = &b->json;
    const size_t start = j->at;
    if (!qni_json_skip(j))
        return false;
    char *to = j->strings + j->strings_used;
    memcpy(to, j->text + start, j->at - start);
    to[j->at - start] = 0;
    j->strings_used += j->at - start + 1;
    b->s->list[node].text = to;
    return true;
}

static bool read_value(struct builder *b, int32_t node, const char *const *wanted)
{
    const char kind = qni_json_peek(&b->json);
    b->s->list[node].kind = kind;
    switch (kind) {
    case '{':
        return read_object(b, node, wanted);
    case '[':
        return read_array(b, node);
    case '"':
        return qni_json_string(&b->json, &b->s->list[node].text);
    case '0':
        return read_raw(b, node);
    default:
        return qni_json_skip(&b->json);
    }
}

qn_status qni_settings_read(const char *text, size_t size, const char *const *wanted,
                            struct qni_settings *s, qn_error *err)
{
    struct builder b = {.s = s};
    if (size > QNI_MOST_SETTINGS_BYTES)
        return qni_fail(err, QN_E_CORRUPT, "%llu bytes are too many for a configuration",
                        (unsigned long long)size);
    s->string_bytes = size + 1;
    s->strings = qni_alloc(&s->allocator, s->string_bytes);
    if (s->strings == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    qni_json_start(&b.json, text, size, s->strings);
    const int32_t root = add(&b, -1, -1, "");
    const bool fine = root >= 0 && read_value(&b, root, wanted) && qni_json_end(&b.json);
    if (b.no_memory)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    return fine ? QN_OK
                : qni_fail_at(err, QN_E_CORRUPT, (int64_t)b.json.why_at, "byte %llu: %s",
                              (unsigned long long)b.json.why_at, b.json.why);
}

int32_t qni_setting_at(const struct qni_settings *s, int32_t node, const char *key)
{
    if (node < 0 || (size_t)node >= s->count)
        return -1;
    for (int32_t i = s->list[node].child; i >= 0; i = s->list[i].next)
        if (strcmp(s->list[i].key, key) == 0)
            return i;
    return -1;
}

const char *qni_setting_text(const struct qni_settings *s, int32_t node)
{
    return node >= 0 && s->list[node].kind == '"' ? s->list[node].text : NULL;
}

bool qni_setting_integer(const struct qni_settings *s, int32_t node, int64_t *value)
{
    if (node < 0 || s->list[node].kind != '0')
        return false;
    const char *text = s->list[node].text;
    const bool is_negative = text[0] == '-';
    int64_t sum = 0;
    int32_t digits = 0;
    for (text += is_negative; *text >= '0' && *text <= '9' && digits <= 15; text++, digits++)
        sum = sum * 10 + (*text - '0');
    if (*text != 0 || digits == 0 || digits > 15)
        return false;
    *value = is_negative ? -sum : sum;
    return true;
}

/* Digits, point and exponent by hand: strtod() reads what the locale says. Exact up to 15 digits
 * and powers of ten up to 22, which is more than a configuration's f32 needs. */
bool qni_setting_real(const struct qni_settings *s, int32_t node, double *value)
{
    if (node < 0 || s->list[node].kind != '0')
        return false;
    const char *text = s->list[node].text;
    const bool is_negative = *text == '-';
    double digits = 0;
    int32_t power = 0, exponent = 0, sign = 1;
    for (text += is_negative; *text >= '0' && *text <= '9'; text++)
        digits = digits * 10 + (double)(*text - '0');
    for (text += *text == '.'; *text >= '0' && *text <= '9'; text++, power--)
        digits = digits * 10 + (double)(*text - '0');
    if (*text == 'e' || *text == 'E') {
        text++;
        sign = *text == '-' ? -1 : 1;
        for (text += *text == '-' || *text == '+'; *text >= '0' && *text <= '9'; text++)
            exponent = exponent < 1000 ? exponent * 10 + (*text - '0') : exponent;
    }
    power += sign * exponent;
    double scale = 1;
    for (int32_t i = 0; i < (power < 0 ? -power : power) && i < 400; i++)
        scale *= 10;
    *value = power < 0 ? digits / scale : digits * scale;
    *value = is_negative ? -*value : *value;
    return true;
}

int32_t qni_setting_flag(const struct qni_settings *s, int32_t node)
{
    if (node < 0)
        return -1;
    return s->list[node].kind == 't' ? 1 : s->list[node].kind == 'f' ? 0 : -1;
}
