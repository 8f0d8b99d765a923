/* SPDX-License-Identifier: Apache-2.0 */
/* Names and sentences of statuses, made from status.inc. */
#include <quern/base.h>

struct words {
    qn_status value;
    const char *name, *sentence;
};

static const struct words list[] = {
#define QN_STATUS(name, value, sentence) {(value), #name, (sentence)},
#include <quern/status.inc>
#undef QN_STATUS
};

static const struct words *find(qn_status status)
{
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (list[i].value == status)
            return &list[i];
    return NULL;
}

const char *qn_status_name(qn_status status)
{
    const struct words *w = find(status);
    return w != NULL ? w->name : "E_UNKNOWN";
}

const char *qn_status_text(qn_status status)
{
    const struct words *w = find(status);
    return w != NULL ? w->sentence : "a status that this version of the library does not know";
}
