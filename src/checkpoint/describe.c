/* SPDX-License-Identifier: Apache-2.0 */
/* Weights' descriptions to text and back. A description has exactly its seven
 * fields; one of a later version is refused as such before the other fields are judged. */
#include "describe.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "../base/size.h"
#include "../quant/canonical.h"
#include "file.h"
#include "json.h"

/* Version 2 has minima and scales of two levels; what needs neither is written as version 1. */
static bool is_of_two(const qn_format *f)
{
    return f->shift == QN_SHIFT_MIN || f->superblock > 0;
}

void qni_describe(const qn_weight_parts *parts, char text[QNI_DESCRIPTION_BYTES])
{
    char format[96];
    qn_format_print(&parts->format, format, sizeof format);
    snprintf(text, QNI_DESCRIPTION_BYTES,
             "{\"version\":%d,\"format\":\"%s\",\"n\":%" PRId64 ",\"k\":%" PRId64 ",\"kh\":%" PRId32
             ",\"kw\":%" PRId32 ",\"conv_groups\":%" PRId32 "}",
             is_of_two(&parts->format) ? QNI_DESCRIPTION_VERSION : 1, format, parts->n, parts->k,
             parts->kh, parts->kw, parts->conv_groups);
}

enum field { VERSION, N, K, KH, KW, CONV_GROUPS, FORMAT, N_FIELDS };
static const char *const field_names[N_FIELDS] = {"version", "n",           "k",     "kh",
                                                  "kw",      "conv_groups", "format"};

/* The fields as they stand, before anybody asks whether they make sense. */
struct raw {
    int64_t number[FORMAT]; /* -1: not seen */
    const char *format;     /* NULL: not seen */
    bool has_unknown;
};

static bool read_raw(struct qni_json *j, struct raw *raw)
{
    const char *key = NULL;
    if (!qni_json_object(j))
        return false;
    while (qni_json_key(j, &key)) {
        int32_t i = 0;
        while (i < N_FIELDS && strcmp(key, field_names[i]) != 0)
            i++;
        if (i < FORMAT ? raw->number[i] >= 0 : i == FORMAT && raw->format != NULL)
            return qni_json_refuse(j, "a field occurs twice");
        /* A later version may give a known field another kind of value. */
        const char kind = qni_json_peek(j);
        const bool is_known = i < FORMAT ? kind == '0' : i == FORMAT && kind == '"';
        raw->has_unknown |= !is_known;
        if (!(!is_known     ? qni_json_skip(j)
              : i == FORMAT ? qni_json_string(j, &raw->format)
                            : qni_json_integer(j, &raw->number[i])))
            return false;
    }
    return qni_json_end(j);
}

static qn_status judge(const struct raw *raw, qn_weight_parts *parts, qn_error *err)
{
    qn_error why = {QN_OK, -1, ""};
    if (raw->number[VERSION] > QNI_DESCRIPTION_VERSION)
        return qni_fail(err, QN_E_VERSION,
                        "its description has version %lld; this library reads version %d",
                        (long long)raw->number[VERSION], QNI_DESCRIPTION_VERSION);
    if (raw->number[VERSION] < 1)
        return qni_fail(err, QN_E_CORRUPT, "its description has no version");
    if (raw->has_unknown || raw->format == NULL)
        return qni_fail(err, QN_E_CORRUPT, "its description has an unknown field, or no format");
    for (int32_t i = N; i < FORMAT; i++)
        if (raw->number[i] < 0 || (i >= KH && raw->number[i] > INT32_MAX))
            return qni_fail(err, QN_E_CORRUPT, "its description has no good %s", field_names[i]);
    qn_weight_parts_init(parts);
    if (qn_format_parse(raw->format, &parts->format, &why) != QN_OK)
        return qni_fail(err, QN_E_CORRUPT, "its description is of no known format: %s", why.text);
    /* In version 1 the names q4_1, q5_1, q4_k and q5_k meant offsets of signed codes. */
    if (raw->number[VERSION] == 1 && parts->format.shift == QN_SHIFT_MIN)
        parts->format.shift = QN_SHIFT_OFFSET;
    parts->n = raw->number[N];
    parts->k = raw->number[K];
    parts->kh = (int32_t)raw->number[KH];
    parts->kw = (int32_t)raw->number[KW];
    parts->conv_groups = (int32_t)raw->number[CONV_GROUPS];
    return QN_OK;
}

qn_status qni_describe_parse(const struct qni_allocator *a, const char *text,
                             qn_weight_parts *parts, qn_error *err)
{
    struct qni_json j;
    struct raw raw = {{-1, -1, -1, -1, -1, -1}, NULL, false};
    const size_t size = strlen(text);
    char *strings = qni_alloc(a, size);
    if (strings == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    qni_json_start(&j, text, size, strings);
    const qn_status status = read_raw(&j, &raw)
                                 ? judge(&raw, parts, err)
                                 : qni_fail(err, QN_E_CORRUPT, "its description, letter %llu: %s",
                                            (unsigned long long)j.why_at, j.why);
    qni_free(a, strings, size);
    return status;
}

qn_status qni_describe_check(const qn_weight_parts *parts, int64_t *n_groups, qn_error *err)
{
    int64_t taps = 0;
    QNI_TRY(qn_format_check(&parts->format, err));
    /* The upper limits keep loops over rows without content short. */
    if (!qni_is_weight_shape(parts->n, parts->k) || parts->kh < 1 || parts->kw < 1 ||
        parts->conv_groups < 1 || !qni_i64_mul(parts->kh, parts->kw, &taps))
        return qni_fail(err, QN_E_SHAPE, "n, k, kh, kw or conv_groups is out of range");
    if (parts->k % taps != 0 || parts->n % parts->conv_groups != 0)
        return qni_fail(err, QN_E_SHAPE,
                        "k %lld is not a multiple of the %lld taps, or n %lld of the %d groups",
                        (long long)parts->k, (long long)taps, (long long)parts->n,
                        (int)parts->conv_groups);
    *n_groups = qn_format_groups(&parts->format, parts->k, parts->k / taps);
    if (*n_groups < 0 || (*n_groups == 0 && parts->k > 0))
        return qni_fail(err, QN_E_SHAPE, "the groups of the format do not fit k %lld",
                        (long long)parts->k);
    return QN_OK;
}
