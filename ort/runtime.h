/* SPDX-License-Identifier: Apache-2.0 */
/* The runtime that loaded this provider: its functions, and failures in its own form. */
#ifndef ORT_RUNTIME_H
#define ORT_RUNTIME_H

#include "abi.h"

#include <quern/base.h>

/* Fill api. A runtime that is too old gets a status with a sentence; NULL is success. */
struct ort_status *runtime_load(const struct ort_api_base *base, struct ort_api *api);

/* A failure: "quern: " and the sentence. */
struct ort_status *runtime_fail(const struct ort_api *api, int code, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
struct ort_status *runtime_no_memory(const struct ort_api *api);
/* A failure of the library, or NULL if it succeeded. */
struct ort_status *runtime_check(const struct ort_api *api, const char *what, qn_status status,
                                 const qn_error *error);
/* For questions that may fail without harm: false if they do. */
bool runtime_ok(const struct ort_api *api, struct ort_status *status);

#define ORT_TRY(call)                                                                              \
    do {                                                                                           \
        struct ort_status *failed_ = (call);                                                       \
        if (failed_ != NULL)                                                                       \
            return failed_;                                                                        \
    } while (0)

#endif
