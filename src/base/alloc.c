/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator of handles. Everything is aligned to a cache line, so that neither vectors nor
 * threads share one. */
#include <stdlib.h>
#include <string.h>

#include "alloc.h"
#include "size.h"

enum { ALIGNMENT = 64 };

static void *default_alloc(void *arg, size_t bytes, size_t alignment)
{
    (void)arg;
    size_t padded;
    if (!qni_size_add(bytes, alignment - 1, &padded))
        return NULL;
    return aligned_alloc(alignment, padded & ~(alignment - 1)); /* C11 wants a multiple */
}

static void default_free(void *arg, void *memory, size_t bytes)
{
    (void)arg;
    (void)bytes;
    free(memory);
}

struct qni_allocator qni_allocator_default(void)
{
    return (struct qni_allocator){default_alloc, default_free, NULL};
}

/* A size of 0 is passed on as 1 on both ways: the caller's allocator sees pairs that agree. */
void *qni_alloc(const struct qni_allocator *a, size_t bytes)
{
    if (bytes > PTRDIFF_MAX)
        return NULL;
    return a->alloc(a->arg, bytes > 0 ? bytes : 1, ALIGNMENT);
}

void *qni_alloc_zero(const struct qni_allocator *a, size_t bytes)
{
    void *memory = qni_alloc(a, bytes);
    if (memory != NULL)
        memset(memory, 0, bytes);
    return memory;
}

void qni_free(const struct qni_allocator *a, void *memory, size_t bytes)
{
    if (memory != NULL)
        a->free(a->arg, memory, bytes > 0 ? bytes : 1);
}
