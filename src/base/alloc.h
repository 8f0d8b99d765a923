/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator that handles carry. Only create, plan and pack functions use it; runs never do. */
#ifndef QNI_BASE_ALLOC_H
#define QNI_BASE_ALLOC_H

#include <quern/context.h>

struct qni_allocator {
    qn_alloc_fn alloc; /* never NULL once initialised */
    qn_free_fn free;
    void *arg;
};

/* The C library's memory (the only place that names posix_memalign and free). */
struct qni_allocator qni_allocator_default(void);
/* 64-byte aligned; NULL when out of memory; bytes 0 gives a unique pointer. */
void *qni_alloc(const struct qni_allocator *a, size_t bytes);
void *qni_alloc_zero(const struct qni_allocator *a, size_t bytes);
/* NULL is legal. */
void qni_free(const struct qni_allocator *a, void *memory, size_t bytes);

#endif
