/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as JSON: skipping a value and walking through it by hand must agree on whether it is
 * legal, and no string may need more memory than its text. */
#include "fuzz.h"

#include "checkpoint/json.h"

static bool walk(struct qni_json *j)
{
    const char *text = NULL;
    int64_t number = 0;
    switch (qni_json_peek(j)) {
    case '{':
        if (!qni_json_object(j))
            return false;
        while (qni_json_key(j, &text)) {
            FUZZ_EXPECT(strlen(text) < j->size);
            if (!walk(j))
                return false;
        }
        return j->why == NULL;
    case '[':
        if (!qni_json_array(j))
            return false;
        while (qni_json_item(j))
            if (!walk(j))
                return false;
        return j->why == NULL;
    case '"':
        return qni_json_string(j, &text) && strlen(text) < j->size;
    case '0': {
        struct qni_json ahead = *j; /* integers are also numbers */
        const bool is_integer = qni_json_integer(&ahead, &number);
        const bool is_number = qni_json_skip(j);
        FUZZ_EXPECT(!is_integer || (is_number && ahead.at == j->at && number >= 0));
        return is_number;
    }
    default:
        return qni_json_skip(j);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    uint8_t *copy = fuzz_copy(data, size), *strings = malloc(size + 1);
    struct qni_json j;
    FUZZ_EXPECT(strings != NULL);
    uint8_t *exact = realloc(strings, size > 0 ? size : 1);
    FUZZ_EXPECT(exact != NULL);
    qni_json_start(&j, copy, size, (char *)exact);
    const bool skipped = qni_json_skip(&j) && qni_json_end(&j);
    FUZZ_EXPECT(skipped == (j.why == NULL) && j.at <= size && j.why_at <= size);
    qni_json_start(&j, copy, size, (char *)exact);
    const bool walked = walk(&j) && qni_json_end(&j);
    FUZZ_EXPECT(walked == skipped && j.strings_used <= size);
    free(exact);
    free(copy);
    return 0;
}
