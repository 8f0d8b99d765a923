/* SPDX-License-Identifier: Apache-2.0 */
/* What the metadata of a file says of packed weights: their head in words. One list of facts writes
 * the text and compares it, so that what people read is what kernels read. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "../base/error.h"
#include "file.h"
#include "json.h"
#include "packed.h"

enum { FACT_TEXT = 96, N_FACTS = 15 };

struct fact {
    const char *name;
    bool is_number;
    int64_t number;
    char text[FACT_TEXT];
};

static struct fact number(const char *name, int64_t value)
{
    struct fact fact = {name, true, value, ""};
    snprintf(fact.text, sizeof fact.text, "%" PRId64, value);
    return fact;
}

static struct fact text(const char *name, const char *value)
{
    struct fact fact = {name, false, 0, ""};
    snprintf(fact.text, sizeof fact.text, "%s", value);
    return fact;
}

static struct fact has(const struct qni_packed_head *head, const char *name, int32_t section)
{
    return number(name, head->section[section].bytes != 0);
}

static void facts_of(const struct qni_packed_head *head, struct fact facts[N_FACTS])
{
    char layout[sizeof head->layout + 1] = "", format[FACT_TEXT], isa[24];
    int32_t i = 0;
    memcpy(layout, head->layout, sizeof head->layout);
    qn_format_print(&head->format, format, sizeof format);
    snprintf(isa, sizeof isa, "0x%" PRIx64, head->isa);
    facts[i++] = number("version", head->version);
    facts[i++] = text("layout", layout);
    facts[i++] = text("device", head->device_kind == QN_CPU ? "cpu" : "cuda");
    facts[i++] = text("isa", isa);
    facts[i++] = text("format", format);
    facts[i++] = number("n", head->n);
    facts[i++] = number("k", head->k);
    facts[i++] = number("kh", head->kh);
    facts[i++] = number("kw", head->kw);
    facts[i++] = number("conv_groups", head->conv_groups);
    facts[i++] = number("x_block", head->x_block);
    facts[i++] = has(head, "sums", QNI_SECTION_SUMS);
    facts[i++] = has(head, "counts", QNI_SECTION_COUNTS);
    facts[i++] = has(head, "perm", QNI_SECTION_PERM);
    facts[i++] = has(head, "prescale", QNI_SECTION_PRESCALE);
}

void qni_packed_words(const struct qni_packed_head *head, char out[QNI_PACKED_WORDS])
{
    struct fact facts[N_FACTS];
    size_t used = 0;
    facts_of(head, facts);
    for (int32_t i = 0; i < N_FACTS; i++) {
        const char *const quote = facts[i].is_number ? "" : "\"";
        used += (size_t)snprintf(out + used, QNI_PACKED_WORDS - used, "%s\"%s\":%s%s%s",
                                 i == 0 ? "{" : ",", facts[i].name, quote, facts[i].text, quote);
    }
    snprintf(out + used, QNI_PACKED_WORDS - used, "}");
}

/* One field, whose name was read. False: j has failed, or `said` got another value. */
static bool compare(struct qni_json *j, const struct fact *fact, char said[FACT_TEXT])
{
    const char *value = NULL;
    int64_t found = 0;
    if (fact->is_number ? !qni_json_integer(j, &found) : !qni_json_string(j, &value))
        return false;
    if (fact->is_number ? found == fact->number : strcmp(value, fact->text) == 0)
        return true;
    if (fact->is_number)
        snprintf(said, FACT_TEXT, "%" PRId64, found);
    else
        qni_shown(said, value);
    return false;
}

static qn_status agree(struct qni_json *j, const struct fact facts[N_FACTS], qn_error *err)
{
    char said[FACT_TEXT] = "";
    const char *key = NULL;
    bool fine = qni_json_object(j);
    while (fine && qni_json_key(j, &key)) {
        int32_t i = 0;
        while (i < N_FACTS && strcmp(key, facts[i].name) != 0)
            i++;
        fine = i == N_FACTS ? qni_json_skip(j) : compare(j, &facts[i], said);
        if (!fine && j->why == NULL)
            return qni_fail(err, QN_E_CORRUPT, "%s is %s in the metadata and %s in the head",
                            facts[i].name, said, facts[i].text);
    }
    if (!fine || !qni_json_end(j))
        return qni_fail(err, QN_E_CORRUPT, "their metadata, letter %llu: %s",
                        (unsigned long long)j->why_at, j->why);
    return QN_OK;
}

qn_status qni_packed_words_agree(const struct qni_allocator *a, const char *words,
                                 const struct qni_packed_head *head, qn_error *err)
{
    struct fact facts[N_FACTS];
    struct qni_json j;
    const size_t size = strlen(words);
    char *strings = qni_alloc(a, size);
    if (strings == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    facts_of(head, facts);
    qni_json_start(&j, words, size, strings);
    const qn_status status = agree(&j, facts, err);
    qni_free(a, strings, size);
    return status;
}
