/* SPDX-License-Identifier: Apache-2.0 */
/* Loading the runtime's tables, and making its statuses. */
#include "runtime.h"

#include <stdarg.h>
#include <stdio.h>

/* Casts a place of a table to the type of a member, whatever that is. */
#define TAKE(member, table, place) ((member) = (__typeof__(member))(table)[place])

/* A status of a runtime whose interface is not ours: the first function of every interface. */
static struct ort_status *refuse(const struct ort_api_base *base, const char *version)
{
    const ort_function *oldest = base->get_api(1);
    char text[192];
    snprintf(text, sizeof text,
             "quern: ONNX Runtime %s has no interface %d for plugin execution providers: "
             "version 1.%d or newer is needed",
             version, ORT_INTERFACE, ORT_INTERFACE);
    if (oldest == NULL)
        return NULL;
    return ((struct ort_status * (*)(int, const char *))(oldest[0]))(ORT_NOT_IMPLEMENTED, text);
}

struct ort_status *runtime_load(const struct ort_api_base *base, struct ort_api *api)
{
    const char *version = base->get_version();
    const ort_function *main_table = base->get_api(ORT_INTERFACE);
    if (main_table == NULL)
        return refuse(base, version != NULL ? version : "of unknown version");
    const ort_function *shapes_table = base->get_api(ORT_INTERFACE_SHAPES);
    TAKE(api->provider_table, main_table, 317);
    const ort_function *provider_table = api->provider_table();
    if (provider_table == NULL)
        return refuse(base, version != NULL ? version : "of unknown version");
#define ORT_CALL(table, place, result, name, ...)                                                  \
    if (table##_table != NULL)                                                                     \
        TAKE(api->name, table##_table, place);
#include "calls.inc"
#undef ORT_CALL
    api->has_shapes = shapes_table != NULL;
    return NULL;
}

struct ort_status *runtime_fail(const struct ort_api *api, int code, const char *format, ...)
{
    char text[640] = "quern: ";
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(text + 7, sizeof text - 7, format, arguments);
    va_end(arguments);
    return api->create_status(code, text);
}

struct ort_status *runtime_no_memory(const struct ort_api *api)
{
    return runtime_fail(api, ORT_FAIL, "there is no memory");
}

struct ort_status *runtime_check(const struct ort_api *api, const char *what, qn_status status,
                                 const qn_error *error)
{
    if (status == QN_OK)
        return NULL;
    int code = status == QN_E_MEMORY ? ORT_FAIL : ORT_INVALID_ARGUMENT;
    if (error != NULL && error->text[0] != '\0')
        return runtime_fail(api, code, "%s: %s", what, error->text);
    return runtime_fail(api, code, "%s: %s", what, qn_status_text(status));
}

bool runtime_ok(const struct ort_api *api, struct ort_status *status)
{
    if (status == NULL)
        return true;
    api->release_status(status);
    return false;
}
