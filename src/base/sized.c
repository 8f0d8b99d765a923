/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing structs whose length depends on the version the caller was compiled with
 * (sized.h). */
#include "sized.h"

#include <string.h>

#include "error.h"

/* Every version of every struct holds whole words, so another size is a struct that was never
 * initialised. */
static bool is_plausible(size_t size)
{
    return size >= 2 * sizeof(size_t) && size % sizeof(size_t) == 0 && size <= 65536;
}

qn_status qni_sized_read(void *own, size_t own_bytes, const void *given, qn_error *err)
{
    size_t size = 0;
    if (given == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "the argument struct is NULL");
    memcpy(&size, given, sizeof size);
    if (!is_plausible(size))
        return qni_fail(err, QN_E_ARGUMENT,
                        "the argument struct's size is %zu: begin with its _init() function", size);
    const unsigned char *bytes = given;
    for (size_t i = own_bytes; i < size; i++) {
        if (bytes[i] != 0)
            return qni_fail(err, QN_E_VERSION,
                            "the argument struct uses a field that quern %s does not have",
                            qn_version());
    }
    memcpy(own, given, size < own_bytes ? size : own_bytes);
    memcpy(own, &own_bytes, sizeof own_bytes);
    return QN_OK;
}

qn_status qni_sized_init(void *given, size_t size, const void *own, size_t own_bytes)
{
    if (given == NULL || !is_plausible(size))
        return QN_E_ARGUMENT;
    memset(given, 0, size);
    memcpy(given, own, size < own_bytes ? size : own_bytes);
    memcpy(given, &size, sizeof size);
    return QN_OK;
}

qn_status qni_sized_write(void *given, const void *own, size_t own_bytes)
{
    size_t size = 0;
    if (given == NULL)
        return QN_E_ARGUMENT;
    memcpy(&size, given, sizeof size);
    return qni_sized_init(given, size, own, own_bytes);
}

qn_error *qni_sized_error(const void *given, size_t at)
{
    size_t size = 0;
    qn_error *error = NULL;
    if (given == NULL)
        return NULL;
    memcpy(&size, given, sizeof size);
    if (is_plausible(size) && size >= at + sizeof error)
        memcpy(&error, (const unsigned char *)given + at, sizeof error);
    return error;
}
