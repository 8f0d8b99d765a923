/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and checking the options of a session. */
#include "settings.h"

#include <stdlib.h>
#include <string.h>

#include <quern/weights.h>

/* False where the session does not have the option; text is "" then. */
static bool option(const struct ort_api *api, const struct ort_session_options *options,
                   const char *name, char *text, size_t capacity)
{
    char key[96] = "ep.quernexecutionprovider.";
    strncat(key, name, sizeof key - strlen(key) - 1);
    size_t length = capacity;
    memset(text, 0, capacity);
    if (!runtime_ok(api, api->session_entry(options, key, text, &length))) {
        if (length > capacity) /* There, and longer than any value that means something. */
            memset(text, '?', capacity - 1);
        else
            memset(text, 0, capacity);
    }
    return text[0] != '\0';
}

static struct ort_status *number(const struct ort_api *api, const char *name, const char *text,
                                 int32_t *value)
{
    char *end = NULL;
    long read = strtol(text, &end, 10);
    if (*end != '\0' || read < 0 || read > 4096)
        return runtime_fail(api, ORT_INVALID_ARGUMENT,
                            "option %s is '%s': a number from 0 to 4096 is possible", name, text);
    *value = (int32_t)read;
    return NULL;
}

struct ort_status *settings_read(const struct ort_api *api,
                                 const struct ort_session_options *options, struct settings *s)
{
    char text[48];
    qn_error error = {0};
    qn_format format;
    memset(s, 0, sizeof *s);
    if (option(api, options, "threads", text, sizeof text))
        ORT_TRY(number(api, "threads", text, &s->threads));
    if (option(api, options, "cut", text, sizeof text))
        ORT_TRY(number(api, "cut", text, &s->cut));
    if (option(api, options, "log", text, sizeof text)) {
        if (strcmp(text, "0") != 0 && strcmp(text, "1") != 0)
            return runtime_fail(api, ORT_INVALID_ARGUMENT,
                                "option log is '%s': 0 or 1 is possible", text);
        s->log = text[0] == '1';
    }
    s->channels_last = true;
    if (option(api, options, "layout", text, sizeof text)) {
        if (strcmp(text, "nhwc") != 0 && strcmp(text, "nchw") != 0)
            return runtime_fail(api, ORT_INVALID_ARGUMENT,
                                "option layout is '%s': nhwc or nchw is possible", text);
        s->channels_last = strcmp(text, "nhwc") == 0;
    }
    if (option(api, options, "strategy", text, sizeof text)) {
        ORT_TRY(runtime_check(api, "option strategy",
                              qn_strategy_parse(text, &s->strategy, &error), &error));
        if (s->strategy == QN_STRATEGY_INT8_STATIC)
            return runtime_fail(api, ORT_INVALID_ARGUMENT,
                                "option strategy is int8-static: scales of x come from the model, "
                                "float, int8-row, int8-block and dense can be asked for");
        s->has_strategy = true;
    }
    if (option(api, options, "quantize", s->quantize, sizeof s->quantize))
        ORT_TRY(runtime_check(api, "option quantize",
                              qn_format_parse(s->quantize, &format, &error), &error));
    return NULL;
}
