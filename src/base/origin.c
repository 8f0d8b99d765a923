/* SPDX-License-Identifier: Apache-2.0 */
/* A mark that a fork changes: a page that the kernel clears in children (since Linux 4.14), else
 * the number of the process. pthread_atfork() would need a list of all contexts that no context
 * owns, and could not be taken back. */
#define _DEFAULT_SOURCE
#include "origin.h"

#include <sched.h>
#include <stdint.h>
#include <sys/mman.h>
#include <unistd.h>

enum { HERE = 1, IN_RENEWAL = -1 };

static int32_t mark_of_this_process(const struct qni_origin *origin)
{
    return origin->is_cleared ? HERE : (int32_t)getpid();
}

bool qni_origin_make(struct qni_origin *origin, const struct qni_allocator *a)
{
    const long asked = sysconf(_SC_PAGESIZE);
    const size_t page = asked > 0 ? (size_t)asked : 4096;
    *origin = (struct qni_origin){.bytes = 2 * page};
    origin->memory = qni_alloc(a, origin->bytes);
    if (origin->memory == NULL)
        return false;
    const uintptr_t first = ((uintptr_t)origin->memory + page - 1) / page * page;
    origin->mark = (_Atomic int32_t *)first;
#if defined(MADV_WIPEONFORK)
    origin->is_cleared = madvise((void *)first, page, MADV_WIPEONFORK) == 0;
#endif
    atomic_init(origin->mark, mark_of_this_process(origin));
    return true;
}

void qni_origin_end(struct qni_origin *origin, const struct qni_allocator *a)
{
#if defined(MADV_WIPEONFORK)
    /* The page goes back to an allocator, whose other users want it to be inherited. */
    if (origin->is_cleared)
        madvise((void *)(uintptr_t)origin->mark, origin->bytes / 2, MADV_KEEPONFORK);
#endif
    if (origin->memory != NULL)
        qni_free(a, origin->memory, origin->bytes);
    *origin = (struct qni_origin){0};
}

bool qni_origin_is_past(const struct qni_origin *origin)
{
    return atomic_load_explicit(origin->mark, memory_order_acquire) != mark_of_this_process(origin);
}

void qni_origin_renew(struct qni_origin *origin, void (*renew)(void *arg), void *arg)
{
    const int32_t here = mark_of_this_process(origin);
    int32_t seen = atomic_load_explicit(origin->mark, memory_order_acquire);
    while (seen != here) {
        if (seen != IN_RENEWAL &&
            atomic_compare_exchange_strong(origin->mark, &seen, (int32_t)IN_RENEWAL)) {
            renew(arg);
            atomic_store_explicit(origin->mark, here, memory_order_release);
            return;
        }
        sched_yield();
        seen = atomic_load_explicit(origin->mark, memory_order_acquire);
    }
}
