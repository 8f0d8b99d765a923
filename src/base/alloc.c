/* SPDX-License-Identifier: Apache-2.0 */
/* The allocator of handles. Everything is aligned to a cache line, so that neither vectors nor
 * threads share one. Large blocks, which are weights and scratch, lie on large pages where the
 * system has some left: the first touch of 4 KiB takes as long as copying 10 to 20 KiB, and reading
 * weights crosses a page every 300 ns. */
#define _DEFAULT_SOURCE /* madvise() */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "alloc.h"

enum { ALIGNMENT = 64, LARGE_PAGE = 2 << 20, LARGE = 2 * LARGE_PAGE };

/* Not its last page if that is not full: it would take what nobody asked for. */
static void ask_for_large_pages(void *memory, size_t bytes)
{
#ifdef MADV_HUGEPAGE
    (void)madvise(memory, bytes - bytes % LARGE_PAGE, MADV_HUGEPAGE); /* a wish */
#else
    (void)memory;
    (void)bytes;
#endif
}

void *qn_memory_alloc(void *arg, size_t bytes, size_t alignment)
{
    (void)arg;
    void *memory = NULL;
    if ((alignment & (alignment - 1)) != 0)
        return NULL;
    if (alignment < sizeof(void *))
        alignment = sizeof(void *); /* posix_memalign() wants no less */
    if (bytes >= LARGE && alignment < LARGE_PAGE)
        alignment = LARGE_PAGE;
    if (posix_memalign(&memory, alignment, bytes) != 0)
        return NULL;
    if (bytes >= LARGE)
        ask_for_large_pages(memory, bytes);
    return memory;
}

void qn_memory_free(void *arg, void *memory, size_t bytes)
{
    (void)arg;
    (void)bytes;
    free(memory);
}

struct qni_allocator qni_allocator_default(void)
{
    return (struct qni_allocator){qn_memory_alloc, qn_memory_free, NULL};
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
