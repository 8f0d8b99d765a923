/* SPDX-License-Identifier: Apache-2.0 */
/* Failing with words: one sentence into the caller's struct, cut at its end if it is too long. */
#include <stdarg.h>
#include <stdio.h>

#include "error.h"

static void fill(qn_error *err, qn_status status, int64_t offset, const char *format, va_list list)
    QNI_PRINTF(4, 0);

static void fill(qn_error *err, qn_status status, int64_t offset, const char *format, va_list list)
{
    if (err == NULL)
        return;
    err->status = status;
    err->offset = offset;
    if (vsnprintf(err->text, sizeof err->text, format, list) < 0)
        err->text[0] = 0;
}

qn_status qni_fail(qn_error *err, qn_status status, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fill(err, status, -1, format, list);
    va_end(list);
    return status;
}

qn_status qni_fail_at(qn_error *err, qn_status status, int64_t offset, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    fill(err, status, offset, format, list);
    va_end(list);
    return status;
}
