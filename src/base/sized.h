/* SPDX-License-Identifier: Apache-2.0 */
/* Structs that begin with their size. A caller compiled against an older header passes a shorter
 * struct: what it lacks keeps its default. A caller compiled against a newer one passes a longer
 * struct: fine as long as it uses nothing that this library does not know. */
#ifndef QNI_BASE_SIZED_H
#define QNI_BASE_SIZED_H

#include <quern/base.h>

/*
 * own: a struct fresh from its _init(); what the caller set is copied over it. given may be of any
 * alignment of size_t. QN_E_ARGUMENT: given is NULL or its size is not that of any version;
 * QN_E_VERSION: it uses fields from the future.
 */
qn_status qni_sized_read(void *own, size_t own_bytes, const void *given, qn_error *err);

/* The way out: fill the caller's struct as far as it reaches; its size stays. QN_E_ARGUMENT as
 * above. */
qn_status qni_sized_write(void *given, const void *own, size_t own_bytes);

/* For the exported _init_sized(): write the defaults `own` into a struct of `size` bytes, whose
 * content does not matter. QN_E_ARGUMENT: given is NULL or size is not that of any version. */
qn_status qni_sized_init(void *given, size_t size, const void *own, size_t own_bytes);

/* The caller's qn_error, which a struct of some versions holds at byte `at`; NULL: it has none,
 * ends before, or has no size. */
qn_error *qni_sized_error(const void *given, size_t at);

#endif
