/* SPDX-License-Identifier: Apache-2.0 */
/* Fork and join. A pool of sleeping threads that the context owns, or the caller's
 * parallel-for. Only threads.c names pthread functions. */
#ifndef QNI_BASE_THREADS_H
#define QNI_BASE_THREADS_H

#include <quern/context.h>

#include "alloc.h"

struct qni_pool;

/* n_threads - 1 helpers are started; the caller is the other one. */
qn_status qni_pool_create(const struct qni_allocator *a, int32_t n_threads, struct qni_pool **pool,
                          qn_error *err);
void qni_pool_destroy(struct qni_pool *pool);

/*
 * Run task(arg, i) for i in [0, n); each i once; returns when all are done and their writes are
 * visible. Waiting threads spin for at most two tenths of a millisecond, and only if the machine is
 * not oversubscribed, then sleep. A pool that is busy with another caller's work runs the items on
 * the calling thread: results never depend on it, nothing blocks. So does a pool in a child of
 * fork(), where its helpers are not.
 */
void qni_pool_run(struct qni_pool *pool, int32_t n, qn_task_fn task, void *arg);

/* What a context hands down: the caller's threads, or a pool, or nothing (n_threads == 1). */
struct qni_threads {
    int32_t n_threads;
    struct qni_pool *pool;
    qn_parallel_for_fn parallel_for;
    void *parallel_arg;
};
void qni_parallel(const struct qni_threads *threads, int32_t n, qn_task_fn task, void *arg);

/* Rows [0, n), dealt out in pieces, each up to its first row for which take() is false. The first
 * of those rows, or -1: none. */
typedef bool qni_row_fn(const void *arg, int64_t row);
int64_t qni_parallel_rows(const struct qni_threads *threads, int64_t n, qni_row_fn *take,
                          const void *arg);

#endif
