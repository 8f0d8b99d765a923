/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: every item once, whatever the number of threads, how long items take, who else is
 * using it, and where the kernel puts its threads. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "base/cpus.h"
#include "unit.h"

enum { MOST = 5000 };

struct counts {
    atomic_int item[MOST];
    struct qni_pool *pool;
    int32_t nap_us;
    int32_t plain[MOST]; /* not atomic: writes must be visible after the join */
};

static void pause_us(int32_t us)
{
    const struct timespec t = {0, us * 1000L};
    nanosleep(&t, NULL);
}

static void count(void *arg, int32_t i)
{
    struct counts *c = arg;
    if (c->nap_us > 0)
        pause_us(c->nap_us);
    atomic_fetch_add(&c->item[i], 1);
    c->plain[i] = i + 1;
}

static void assert_each_once(struct counts *c, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        assert_int_equal(atomic_load(&c->item[i]), 1);
        assert_int_equal(c->plain[i], i + 1);
    }
    assert_true(n == MOST || atomic_load(&c->item[n]) == 0);
    memset(c->plain, 0, sizeof c->plain);
    for (int32_t i = 0; i < n; i++)
        atomic_store(&c->item[i], 0);
}

static struct qni_pool *make_pool(int32_t n_threads)
{
    const struct qni_allocator a = qni_allocator_default();
    struct qni_pool *pool;
    assert_int_equal(qni_pool_create(&a, n_threads, &pool, NULL), QN_OK);
    return pool;
}

static void every_item_runs_once(void **state)
{
    (void)state;
    static const int32_t threads[] = {1, 2, 3, 7, 19};
    static const int32_t items[] = {0, 1, 2, 3, 64, MOST};
    struct counts *c = calloc(1, sizeof *c);
    for (size_t t = 0; t < sizeof threads / sizeof threads[0]; t++) {
        struct qni_pool *pool = make_pool(threads[t]);
        for (int round = 0; round < 200; round++)
            for (size_t i = 0; i < sizeof items / sizeof items[0]; i++) {
                qni_pool_run(pool, items[i], count, c);
                assert_each_once(c, items[i]);
            }
        qni_pool_destroy(pool);
    }
    free(c);
}

/* Gaps long enough for helpers to fall asleep, and items long enough for the caller to. */
static void sleepers_are_woken(void **state)
{
    (void)state;
    struct counts *c = calloc(1, sizeof *c);
    struct qni_pool *pool = make_pool(2);
    for (int round = 0; round < 60; round++) {
        c->nap_us = round % 3 * 100;
        pause_us(round % 4 * 100);
        qni_pool_run(pool, 4, count, c);
        assert_each_once(c, 4);
    }
    qni_pool_destroy(pool);
    free(c);
}

static void pools_come_and_go(void **state)
{
    (void)state;
    struct counts *c = calloc(1, sizeof *c);
    for (int round = 0; round < 100; round++) {
        struct qni_pool *pool = make_pool(1 + round % 5);
        if (round % 2)
            qni_pool_run(pool, 9, count, c);
        else
            qni_pool_run(pool, 0, count, c);
        qni_pool_destroy(pool);
        assert_each_once(c, round % 2 ? 9 : 0);
    }
    qni_pool_destroy(NULL);
    free(c);
}

/* Two items wait for each other: this ends only if two threads really run them. */
struct meeting {
    atomic_int arrived;
};

static void meet(void *arg, int32_t i)
{
    (void)i;
    struct meeting *m = arg;
    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->arrived) < 2)
        pause_us(10);
}

static void two_threads_run_at_once(void **state)
{
    (void)state;
    struct qni_pool *pool = make_pool(2);
    struct meeting m = {0};
    qni_pool_run(pool, 2, meet, &m);
    assert_int_equal(atomic_load(&m.arrived), 2);
    qni_pool_destroy(pool);
}

/* An item that uses the pool it runs in finds it busy and does the work itself. */
static void nest(void *arg, int32_t i)
{
    struct counts *outer = arg;
    struct counts *c = calloc(1, sizeof *c);
    qni_pool_run(outer->pool, 10, count, c);
    assert_each_once(c, 10);
    free(c);
    count(outer, i);
}

static void nested_work_is_done(void **state)
{
    (void)state;
    struct counts *c = calloc(1, sizeof *c);
    c->pool = make_pool(3);
    qni_pool_run(c->pool, 20, nest, c);
    assert_each_once(c, 20);
    qni_pool_destroy(c->pool);
    free(c);
}

static void *use_pool(void *arg)
{
    struct qni_pool *pool = arg;
    struct counts *c = calloc(1, sizeof *c);
    for (int round = 0; round < 500; round++) {
        qni_pool_run(pool, 7, count, c);
        assert_each_once(c, 7);
    }
    free(c);
    return NULL;
}

static void a_busy_pool_blocks_nobody(void **state)
{
    (void)state;
    pthread_t other[3];
    struct qni_pool *pool = make_pool(3);
    for (int i = 0; i < 3; i++)
        assert_int_equal(pthread_create(&other[i], NULL, use_pool, pool), 0);
    use_pool(pool);
    for (int i = 0; i < 3; i++)
        pthread_join(other[i], NULL);
    qni_pool_destroy(pool);
}

static void backwards(void *arg, int32_t n, qn_task_fn task, void *task_arg)
{
    ++*(int *)arg;
    for (int32_t i = n; i-- > 0;)
        task(task_arg, i);
}

static void the_callers_threads_are_used(void **state)
{
    (void)state;
    struct counts *c = calloc(1, sizeof *c);
    int calls = 0;
    const struct qni_threads own = {4, NULL, backwards, &calls};
    qni_parallel(&own, 33, count, c);
    assert_each_once(c, 33);
    assert_int_equal(calls, 1);
    const struct qni_threads none = {1, NULL, NULL, NULL};
    qni_parallel(&none, 5, count, c);
    assert_each_once(c, 5);
    const struct qni_threads pool = {2, make_pool(2), NULL, NULL};
    qni_parallel(&pool, 500, count, c);
    assert_each_once(c, 500);
    qni_pool_destroy(pool.pool);
    free(c);
}

static void impossible_pools_are_refused(void **state)
{
    (void)state;
    struct unit_memory m = {0, 0, 0, 1};
    const struct qni_allocator a = {unit_alloc, unit_free, &m};
    struct qni_pool *pool = NULL;
    qn_error err;
    assert_int_equal(qni_pool_create(&a, 0, &pool, &err), QN_E_ARGUMENT);
    assert_int_equal(qni_pool_create(&a, 1 << 20, &pool, &err), QN_E_ARGUMENT);
    assert_int_equal(qni_pool_create(&a, 2, &pool, &err), QN_E_MEMORY);
    assert_null(pool);
    assert_int_equal(m.live, 0);
}

/* Both items wait for each other, so each runs on a thread of its own. */
struct encounter {
    atomic_int begun;
    pthread_t caller;
    int32_t join_cpu, helper_cpu; /* join_cpu: where the helper shall stay when it is done, or -1 */
};

static void encounter(void *arg, int32_t i)
{
    struct encounter *m = arg;
    (void)i;
    atomic_fetch_add(&m->begun, 1);
    while (atomic_load(&m->begun) < 2)
        sched_yield();
    if (pthread_equal(pthread_self(), m->caller))
        return;
    m->helper_cpu = qni_this_cpu();
    if (m->join_cpu >= 0) {
        cpu_set_t mine, one;
        CPU_ZERO(&one);
        CPU_SET((size_t)m->join_cpu, &one);
        assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
        assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
        assert_int_equal(sched_setaffinity(0, sizeof mine, &mine), 0);
    }
}

/* A helper that was put on the caller's CPU is on another one in the next job, in three of four
 * cases, unless the system moved it back: on a busy machine that happens often, so that the cases
 * are counted anew up to fifty times. */
static void helpers_leave_the_callers_cpu(void **state)
{
    (void)state;
    const int32_t cpu = qni_this_cpu();
    if (cpu < 0 || qni_threads_available() < 2)
        skip();
    cpu_set_t mine, one;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    struct qni_pool *pool = make_pool(2);
    assert_int_equal(sched_getaffinity(0, sizeof mine, &mine), 0);
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0); /* the caller stays */
    int32_t apart = 0;
    for (int32_t turn = 0; turn < 50 && apart < 15; turn++) {
        apart = 0;
        for (int32_t i = 0; i < 20; i++) {
            struct encounter m = {0, pthread_self(), cpu, -1};
            qni_pool_run(pool, 2, encounter, &m);
            pause_us(2000);
            m = (struct encounter){0, pthread_self(), -1, -1};
            qni_pool_run(pool, 2, encounter, &m);
            apart += m.helper_cpu != cpu;
        }
    }
    assert_int_equal(sched_setaffinity(0, sizeof mine, &mine), 0);
    qni_pool_destroy(pool);
    assert_true(apart >= 15);
}

/* Helpers leave the process's signals to the process's threads, but not those that a thread raises
 * by what it does itself: blocked, they end the process without a word, whatever handler there is.
 */
struct masks {
    pthread_t caller;
    atomic_int n_helpers, n_wrong;
};
static void look_at_mask(void *arg, int32_t i)
{
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL};
    struct masks *m = arg;
    sigset_t blocked;
    (void)i;
    pause_us(200);
    if (pthread_equal(pthread_self(), m->caller))
        return;
    pthread_sigmask(SIG_SETMASK, NULL, &blocked);
    int wrong = !sigismember(&blocked, SIGINT) || !sigismember(&blocked, SIGUSR1);
    for (size_t s = 0; s < sizeof own / sizeof *own; s++)
        wrong |= sigismember(&blocked, own[s]);
    atomic_fetch_add(&m->n_helpers, 1);
    atomic_fetch_add(&m->n_wrong, wrong);
}

static void faults_of_helpers_are_not_blocked(void **state)
{
    (void)state;
    sigset_t all, before, after;
    sigfillset(&all);
    for (int is_blocked = 0; is_blocked < 2; is_blocked++) {
        struct masks m = {.caller = pthread_self()};
        if (is_blocked)
            pthread_sigmask(SIG_SETMASK, &all, NULL);
        pthread_sigmask(SIG_SETMASK, NULL, &before);
        struct qni_pool *pool = make_pool(4);
        pthread_sigmask(SIG_SETMASK, NULL, &after);
        assert_int_equal(sigismember(&before, SIGBUS), sigismember(&after, SIGBUS));
        for (int turn = 0; turn < 1000 && atomic_load(&m.n_helpers) < 10; turn++)
            qni_pool_run(pool, 16, look_at_mask, &m);
        qni_pool_destroy(pool);
        sigemptyset(&after);
        pthread_sigmask(SIG_SETMASK, &after, NULL);
        assert_true(atomic_load(&m.n_helpers) > 0);
        assert_int_equal(atomic_load(&m.n_wrong), 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_runs_once),
        cmocka_unit_test(sleepers_are_woken),
        cmocka_unit_test(pools_come_and_go),
        cmocka_unit_test(two_threads_run_at_once),
        cmocka_unit_test(nested_work_is_done),
        cmocka_unit_test(a_busy_pool_blocks_nobody),
        cmocka_unit_test(the_callers_threads_are_used),
        cmocka_unit_test(impossible_pools_are_refused),
        cmocka_unit_test(helpers_leave_the_callers_cpu),
        cmocka_unit_test(faults_of_helpers_are_not_blocked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
