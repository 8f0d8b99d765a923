/* SPDX-License-Identifier: Apache-2.0 */
/* What the unit tests of base and quant share: a context made by hand (the public one belongs to a
 * layer above), an allocator that counts and fails on demand, and random numbers. */
#ifndef TEST_UNIT_UNIT_H
#define TEST_UNIT_UNIT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/context.h"
#include "random.h"

/* ---- memory that counts ---- */

struct unit_memory {
    int64_t calls, live, live_bytes;
    int64_t fail_at; /* this call fails (1 is the first); 0: none does */
};

static inline void *unit_alloc(void *arg, size_t bytes, size_t alignment)
{
    struct unit_memory *m = arg;
    if (++m->calls == m->fail_at)
        return NULL;
    m->live++;
    m->live_bytes += (int64_t)bytes;
    /* Filled with what is no sensible number: nobody may count on zeros. */
    void *memory = aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
    assert_non_null(memory);
    memset(memory, 0xa5, bytes);
    return memory;
}

static inline void unit_free(void *arg, void *memory, size_t bytes)
{
    struct unit_memory *m = arg;
    m->live--;
    m->live_bytes -= (int64_t)bytes;
    free(memory);
}

/* ---- a context ---- */

struct unit_ctx {
    struct qn_ctx ctx;
    struct unit_memory memory;
};

static inline void unit_ctx_start(struct unit_ctx *u, int32_t n_threads)
{
    const struct qni_allocator library = qni_allocator_default();
    memset(u, 0, sizeof *u);
    u->ctx.allocator = (struct qni_allocator){unit_alloc, unit_free, &u->memory};
    u->ctx.device.kind = QN_CPU;
    u->ctx.threads.n_threads = n_threads;
    if (n_threads > 1)
        assert_int_equal(qni_pool_create(&library, n_threads, &u->ctx.threads.pool, NULL), QN_OK);
}

/* Also the test for leaks. */
static inline void unit_ctx_stop(struct unit_ctx *u)
{
    qni_pool_destroy(u->ctx.threads.pool);
    assert_int_equal(u->memory.live, 0);
    assert_int_equal(u->memory.live_bytes, 0);
}

#endif
