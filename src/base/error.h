/* SPDX-License-Identifier: Apache-2.0 */
/* Failing with words. */
#ifndef QNI_BASE_ERROR_H
#define QNI_BASE_ERROR_H

#include <quern/base.h>

#include "compiler.h"

/* Fill err (may be NULL) and return status, so that `return qni_fail(...)` reads well. */
qn_status qni_fail(qn_error *err, qn_status status, const char *format, ...)
    QNI_PRINTF(3, 4);
/* Does what qni_fail() does, about the byte of a file at `offset`. */
qn_status qni_fail_at(qn_error *err, qn_status status, int64_t offset, const char *format, ...)
    QNI_PRINTF(4, 5);

#endif
