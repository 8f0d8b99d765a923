/* SPDX-License-Identifier: Apache-2.0 */
/* Has the process been forked since? A lock that another thread held then is held for ever in the
 * child, and threads that were started before are not there: what has either asks, and makes its
 * lock anew. Costs a load where the kernel clears a page for children, else a system call. */
#ifndef QNI_BASE_ORIGIN_H
#define QNI_BASE_ORIGIN_H

#include <stdatomic.h>
#include <stdbool.h>

#include "alloc.h"

struct qni_origin {
    _Atomic int32_t *mark; /* in a page of its own */
    void *memory;
    size_t bytes;
    bool is_cleared; /* by the kernel, in a child */
};

/* False: no memory. */
bool qni_origin_make(struct qni_origin *origin, const struct qni_allocator *a);
/* One that was never made is legal (all zeros). */
void qni_origin_end(struct qni_origin *origin, const struct qni_allocator *a);

/* Is this a child of the process that made the origin, or renewed it last? */
bool qni_origin_is_past(const struct qni_origin *origin);
/* Make this process the origin: one thread calls renew(arg), the others wait for it. */
void qni_origin_renew(struct qni_origin *origin, void (*renew)(void *arg), void *arg);

#endif
