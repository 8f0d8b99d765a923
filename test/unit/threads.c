/* SPDX-License-Identifier: Apache-2.0 */
/* The pool: every item once, whatever the number of threads, how long items take, and who else is
 * using it; and what the texts of the kernel say about CPUs. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdatomic.h>
#include <time.h>

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

static void quotas_are_read(void **state)
{
    (void)state;
    assert_int_equal(qni_cpus_from_cpu_max("max 100000\n"), 0);
    assert_int_equal(qni_cpus_from_cpu_max("200000 100000\n"), 2);
    assert_int_equal(qni_cpus_from_cpu_max("150000 100000\n"), 2);
    assert_int_equal(qni_cpus_from_cpu_max("50000 100000"), 1);
    assert_int_equal(qni_cpus_from_cpu_max(""), 0);
    assert_int_equal(qni_cpus_from_cpu_max("100000"), 0);
    assert_int_equal(qni_cpus_from_cpu_max("100000 0"), 0);
    assert_int_equal(qni_cpus_from_cpu_max("-5 100000"), 0);
    assert_int_equal(qni_cpus_from_cpu_max("99999999999999999999 1"), INT64_MAX);
    assert_int_equal(qni_cpus_from_quota("-1\n", "100000\n"), 0);
    assert_int_equal(qni_cpus_from_quota("250000\n", "100000\n"), 3);
    assert_int_equal(qni_cpus_from_quota("", ""), 0);
}

static void memberships_are_read(void **state)
{
    (void)state;
    static const char both[] = "12:cpuset:/a\n9:cpu,cpuacct:/docker/abc\n2:memory:/m\n0::/v2/x\n";
    char path[64];
    assert_true(qni_cgroup_path(both, true, path, sizeof path));
    assert_string_equal(path, "/v2/x");
    assert_true(qni_cgroup_path(both, false, path, sizeof path));
    assert_string_equal(path, "/docker/abc");
    assert_true(qni_cgroup_path("3:cpuacct,cpu:/b", false, path, sizeof path));
    assert_string_equal(path, "/b");
    assert_true(qni_cgroup_path("0::/\n", true, path, sizeof path));
    assert_string_equal(path, "/");
    assert_true(qni_cgroup_path("0::/odd:name\n", true, path, sizeof path));
    assert_string_equal(path, "/odd:name");
    assert_false(qni_cgroup_path("0::/\n", false, path, sizeof path));
    assert_false(qni_cgroup_path("5:cpuset:/a\n6:cpuacct:/b\n", false, path, sizeof path));
    assert_false(qni_cgroup_path("1:name=systemd:/\n", true, path, sizeof path));
    assert_false(qni_cgroup_path("", true, path, sizeof path));
    assert_false(qni_cgroup_path("garbage\n\n::\n", true, path, sizeof path));
    assert_false(qni_cgroup_path("0::/longer than the room for it", true, path, 8));
}

static void caches_are_read(void **state)
{
    (void)state;
    assert_int_equal(qni_cache_from_texts(1, "1\n", "Data\n", "32K\n"), 32 << 10);
    assert_int_equal(qni_cache_from_texts(3, "3\n", "Unified\n", "32768K\n"), 32 << 20);
    assert_int_equal(qni_cache_from_texts(3, "3", "Unified", "96M"), 96 << 20);
    assert_int_equal(qni_cache_from_texts(3, "3", "Unified", "1G"), 1 << 30);
    assert_int_equal(qni_cache_from_texts(2, "2", "Unified", "524288"), 512 << 10);
    assert_int_equal(qni_cache_from_texts(1, "1", "Instruction", "32K"), 0);
    assert_int_equal(qni_cache_from_texts(2, "3", "Unified", "32K"), 0);
    assert_int_equal(qni_cache_from_texts(1, "", "", ""), 0);
    assert_int_equal(qni_cache_from_texts(0, "", "Data", "32K"), 0);
    static const char *const sizes[] = {
        "",
        "K",
        "-32K",
        "0K",
        "0",
        " 32K",
        "+32K",
        "32KK",
        "32K K",
        "32X",
        "0x20",
        "4194304K",
        "4096M",
        "4G",
        "99999999999999999999K",
        "18014398509481985K",
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_int_equal(qni_cache_from_texts(1, "1", "Data", sizes[i]), 0);
    static const char *const levels[] = {"-1", "1x", "01x", "4294967297", "99999999999999999999"};
    for (size_t i = 0; i < sizeof levels / sizeof *levels; i++)
        assert_int_equal(qni_cache_from_texts(1, levels[i], "Data", "32K"), 0);
}

static void this_machine_has_threads(void **state)
{
    (void)state;
    assert_true(qni_threads_available() >= 1);
    assert_true(qni_threads_available() <= 4096);
    assert_int_equal(qni_cache_bytes(0), 0);
    assert_int_equal(qni_cache_bytes(9), 0);
    const size_t first = qni_cache_bytes(1), second = qni_cache_bytes(2);
    assert_true(first == 0 || second == 0 || first < second);
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
        cmocka_unit_test(quotas_are_read),
        cmocka_unit_test(memberships_are_read),
        cmocka_unit_test(caches_are_read),
        cmocka_unit_test(this_machine_has_threads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
