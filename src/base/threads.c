/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fork and join.
 *
 * One word, the ticket, holds the number of the current job and the next item of it. A thread takes
 * an item by adding one to the ticket with compare-and-swap, which fails if the job has changed
 * since the thread read it; so a helper that wakes late can neither take an item of a finished job
 * nor run it with another job's task, and the caller waits only for items that somebody has really
 * taken. If the helpers sleep soundly, the caller does all the work.
 *
 * Waiting is a short spin and then sleep. Helpers spin only while that proves useful (a stream of
 * small products follows itself within microseconds, everything else does not) and only if every
 * thread of the pool can have a CPU of its own. Nothing here decides a result: items are cut by the
 * caller, whatever the number of threads.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "error.h"
#include "file.h"
#include "size.h"
#include "threads.h"

/* ---- how many threads, which caches ---- */

static int64_t ceil_ratio(long long quota, long long period)
{
    return quota > 0 && period > 0 ? qni_ceil_div(quota, period) : 0;
}

int64_t qni_cpus_from_cpu_max(const char *cpu_max)
{
    char *end;
    const long long quota = strtoll(cpu_max, &end, 10); /* "max" reads as 0: no limit */
    if (end == cpu_max || *end != ' ')
        return 0;
    return ceil_ratio(quota, strtoll(end, NULL, 10));
}

int64_t qni_cpus_from_quota(const char *quota_us, const char *period_us)
{
    return ceil_ratio(strtoll(quota_us, NULL, 10), strtoll(period_us, NULL, 10)); /* -1: no limit */
}

/* Does a comma-separated list hold the word? */
static bool list_has(const char *list, size_t length, const char *word)
{
    const size_t n = strlen(word);
    for (size_t at = 0; at < length;) {
        const char *comma = memchr(list + at, ',', length - at);
        const size_t stop = comma != NULL ? (size_t)(comma - list) : length;
        if (stop - at == n && memcmp(list + at, word, n) == 0)
            return true;
        at = stop + 1;
    }
    return false;
}

/* Lines read "id:controllers:path"; version 2 has the id 0 and no controllers. */
bool qni_cgroup_path(const char *text, bool v2, char *path, size_t capacity)
{
    while (*text != 0) {
        const size_t length = strcspn(text, "\n");
        const char *first = memchr(text, ':', length);
        const char *second =
            first != NULL ? memchr(first + 1, ':', length - (size_t)(first + 1 - text)) : NULL;
        if (second != NULL) {
            const size_t controllers = (size_t)(second - first - 1);
            const size_t rest = length - (size_t)(second + 1 - text);
            const bool found = v2 ? controllers == 0 && first == text + 1 && *text == '0'
                                  : list_has(first + 1, controllers, "cpu");
            if (found && rest < capacity) {
                memcpy(path, second + 1, rest);
                path[rest] = 0;
                return true;
            }
        }
        text += length + (text[length] != 0);
    }
    return false;
}

static int64_t smaller_limit(int64_t a, int64_t b)
{
    return a == 0 ? b : b == 0 ? a : qni_min(a, b);
}

/* The quota of one folder, 0 if it has none. */
static int64_t folder_quota(const char *folder, bool v2)
{
    char name[1200], text[64], period[64];
    if (v2) {
        snprintf(name, sizeof name, "%s/cpu.max", folder);
        return qni_file_text(name, text, sizeof text) > 0 ? qni_cpus_from_cpu_max(text) : 0;
    }
    snprintf(name, sizeof name, "%s/cpu.cfs_quota_us", folder);
    const bool has_quota = qni_file_text(name, text, sizeof text) > 0;
    snprintf(name, sizeof name, "%s/cpu.cfs_period_us", folder);
    const bool has_period = qni_file_text(name, period, sizeof period) > 0;
    return has_quota && has_period ? qni_cpus_from_quota(text, period) : 0;
}

/* Limits of all folders from the process up to the mount apply. Inside a container the path may be
 * one of the host's that is not mounted here; then only its ends that exist are read, the mount
 * itself at least. */
static int64_t cgroup_quota(const char *memberships, bool v2)
{
    char folder[1100], path[1024];
    const char *mount = v2 ? "/sys/fs/cgroup" : "/sys/fs/cgroup/cpu";
    if (!qni_cgroup_path(memberships, v2, path, sizeof path))
        return 0;
    int64_t limit = 0;
    for (;;) {
        const size_t length = strlen(path);
        if (length > 0 && path[length - 1] == '/')
            path[length - 1] = 0;
        snprintf(folder, sizeof folder, "%s%s", mount, path);
        limit = smaller_limit(limit, folder_quota(folder, v2));
        char *slash = strrchr(path, '/');
        if (slash == NULL)
            return limit;
        *slash = 0;
    }
}

static int64_t affinity_count(void)
{
#if defined(__linux__)
    for (int cpus = 1024; cpus <= 1 << 16;
         cpus *= 4) { /* EINVAL: the kernel knows more CPUs than that */
        cpu_set_t *set = CPU_ALLOC((size_t)cpus);
        if (set == NULL)
            break;
        const size_t bytes = CPU_ALLOC_SIZE((size_t)cpus);
        const int failed = sched_getaffinity(0, bytes, set);
        const int count = failed ? 0 : CPU_COUNT_S(bytes, set);
        CPU_FREE(set);
        if (!failed)
            return count;
    }
#endif
    return sysconf(_SC_NPROCESSORS_ONLN);
}

int32_t qni_threads_available(void)
{
    char memberships[8192];
    int64_t limit = affinity_count();
    if (qni_file_text("/proc/self/cgroup", memberships, sizeof memberships) > 0) {
        limit = smaller_limit(limit, cgroup_quota(memberships, true));
        limit = smaller_limit(limit, cgroup_quota(memberships, false));
    }
    return (int32_t)qni_min(qni_max(limit, 1), 4096);
}

/* The whole text is one decimal number, perhaps with one letter of `units` behind it. */
static bool number_of(const char *text, const char *units, unsigned long long *value, char *unit)
{
    char *end;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    *value = strtoull(text, &end, 10);
    *unit = *end != 0 && strchr(units, *end) != NULL ? *end++ : 0;
    return errno == 0 && (*end == 0 || *end == '\n');
}

size_t qni_cache_from_texts(int32_t level, const char *level_text, const char *type,
                            const char *size)
{
    const unsigned long long most = UINT32_MAX; /* no cache has 4 GiB; and it fits a size_t */
    unsigned long long number;
    char unit;
    const bool holds_data = strncmp(type, "Data", 4) == 0 || strncmp(type, "Unified", 7) == 0;
    if (!number_of(level_text, "", &number, &unit) || number != (unsigned long long)level ||
        !holds_data || !number_of(size, "KMG", &number, &unit))
        return 0;
    const int shift = unit == 'K' ? 10 : unit == 'M' ? 20 : unit == 'G' ? 30 : 0;
    return number <= most >> shift ? (size_t)(number << shift) : 0;
}

/* What one core can fill. sysconf() gives the third cache of a whole socket where each of its
 * groups of cores has one (AMD: glibc multiplies), and nothing on Arm. */
static size_t cache_from_kernel(int32_t level)
{
    static const char *const facts[] = {"level", "type", "size"};
    for (int i = 0; i < 8; i++) {
        char name[128], text[3][64];
        for (int f = 0; f < 3; f++) {
            snprintf(name, sizeof name, "/sys/devices/system/cpu/cpu0/cache/index%d/%s", i,
                     facts[f]);
            qni_file_text(name, text[f], sizeof text[f]);
        }
        const size_t bytes = qni_cache_from_texts(level, text[0], text[1], text[2]);
        if (bytes > 0)
            return bytes;
    }
    return 0;
}

size_t qni_cache_bytes(int32_t level)
{
    const size_t bytes = level >= 1 && level <= 3 ? cache_from_kernel(level) : 0;
    if (bytes > 0)
        return bytes;
#if defined(_SC_LEVEL1_DCACHE_SIZE)
    static const int names[] = {_SC_LEVEL1_DCACHE_SIZE, _SC_LEVEL2_CACHE_SIZE,
                                _SC_LEVEL3_CACHE_SIZE};
    const long known = level >= 1 && level <= 3 ? sysconf(names[level - 1]) : 0;
    return known > 0 ? (size_t)known : 0;
#else
    return 0;
#endif
}

/* ---- the pool ---- */

/* SPIN_NS bridges the gap between two products of one layer and is short enough not to be seen in a
 * profile. The others are a few wake-ups long (5 us on an idle core, 50 us on one that went to deep
 * sleep): waiting for a job that runs. */
enum { SPIN_NS = 10000, BUSY_SPIN_NS = 100000, JOIN_SPIN_NS = 50000, PATIENCE = 8 };

struct qni_pool {
    struct qni_allocator allocator;
    /* Written by every thread while a job runs: on lines of their own. */
    _Alignas(64) _Atomic uint64_t
        ticket; /* job << 32 | next item; CLOSED while a job is being written */
    _Alignas(64) _Atomic int32_t done; /* items finished */
    _Alignas(64) _Atomic int32_t n;
    _Atomic(qn_task_fn) task;
    _Atomic(void *) arg;
    uint32_t job; /* of the thread that holds busy */
    _Alignas(64) atomic_bool busy;
    _Atomic int32_t sleepers; /* helpers in cond_wait or about to be */
    atomic_bool caller_sleeps;
    atomic_bool stop;
    bool may_spin;
    int32_t n_helpers;
    pthread_mutex_t mutex;
    pthread_cond_t work, finished;
    pthread_t helper[];
};

#define CLOSED 0xffffffffu

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

static uint64_t ticket_of(uint32_t job, uint32_t item)
{
    return (uint64_t)job << 32 | item;
}

/* Is there an item to take? An item index is below n only if n belongs to the ticket's job: see
 * take_items(). */
static bool has_work(const struct qni_pool *p, uint64_t ticket)
{
    return (uint32_t)ticket < (uint32_t)atomic_load_explicit(&p->n, memory_order_relaxed);
}

/* Items that a thread has run count all at once; until then their job cannot end. */
static void report(struct qni_pool *p, int32_t mine)
{
    const int32_t n = atomic_load_explicit(&p->n, memory_order_relaxed);
    if (atomic_fetch_add(&p->done, mine) + mine == n && atomic_load(&p->caller_sleeps)) {
        pthread_mutex_lock(&p->mutex);
        pthread_cond_signal(&p->finished);
        pthread_mutex_unlock(&p->mutex);
    }
}

/*
 * Take and run items until there are none; `mine` have been run already. The job is read after its
 * ticket and before the swap; the writer closes the ticket before it changes the job, so a swap
 * that succeeds proves that what was read belongs together. (A job number returns after 2^32 jobs;
 * a thread would have to be stopped between two lines for that long.)
 */
static void take_items(struct qni_pool *p, int32_t mine)
{
    uint64_t ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
    for (;;) {
        if (!has_work(p, ticket)) {
            if (mine == 0)
                return;
            report(p, mine);
            mine = 0;
            ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
            continue;
        }
        const qn_task_fn task = atomic_load_explicit(&p->task, memory_order_relaxed);
        void *arg = atomic_load_explicit(&p->arg, memory_order_relaxed);
        if (atomic_compare_exchange_weak_explicit(&p->ticket, &ticket, ticket + 1,
                                                  memory_order_acq_rel, memory_order_acquire)) {
            task(arg, (int32_t)(uint32_t)ticket);
            mine++;
            ticket = atomic_load_explicit(&p->ticket, memory_order_acquire);
        }
    }
}

/*
 * Spin until there is work. Time in which a job runs does not count against the budget (up to a
 * bound): a helper that woke too late for a short job should be awake for the next one, or it would
 * be late for every one of a stream.
 */
static bool spin_for_work(struct qni_pool *p)
{
    const int64_t begin = now_ns();
    int64_t since = begin, now = begin;
    while (now - since < SPIN_NS && now - begin < BUSY_SPIN_NS) {
        for (int i = 0; i < 8; i++) {
            if (has_work(p, atomic_load_explicit(&p->ticket, memory_order_acquire)))
                return true;
            QNI_PAUSE();
        }
        if (atomic_load_explicit(&p->stop, memory_order_relaxed))
            return false;
        now = now_ns();
        if (atomic_load_explicit(&p->busy, memory_order_relaxed))
            since = now;
    }
    return false;
}

/* A poster first shows its ticket, then looks for sleepers; a sleeper first counts itself, then
 * looks for a ticket. Both in one total order, so that one of them sees the other. */
static void sleep_for_work(struct qni_pool *p)
{
    pthread_mutex_lock(&p->mutex);
    atomic_fetch_add(&p->sleepers, 1);
    while (!has_work(p, atomic_load(&p->ticket)) && !atomic_load(&p->stop))
        pthread_cond_wait(&p->work, &p->mutex);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->mutex);
}

/* After PATIENCE spins in vain only one wait in PATIENCE begins with a spin, until one succeeds. */
static void *help(void *arg)
{
    struct qni_pool *p = arg;
    uint32_t vain = 0;
    while (!atomic_load(&p->stop)) {
        const bool spins = p->may_spin && (vain < PATIENCE || vain % PATIENCE == 0);
        if (spins && spin_for_work(p)) {
            vain = 0;
        } else {
            vain++;
            sleep_for_work(p);
        }
        take_items(p, 0);
    }
    return NULL;
}

static void stop_helpers(struct qni_pool *p, int32_t n_started)
{
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->stop, true);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->mutex);
    for (int32_t i = 0; i < n_started; i++)
        pthread_join(p->helper[i], NULL);
}

static size_t pool_bytes(int32_t n_helpers)
{
    return sizeof(struct qni_pool) + (size_t)n_helpers * sizeof(pthread_t);
}

static void free_pool(struct qni_pool *p)
{
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->mutex);
    const struct qni_allocator a = p->allocator;
    qni_free(&a, p, pool_bytes(p->n_helpers));
}

/* The process's signals stay with the process's threads: a helper has every signal blocked from its
 * first instruction. */
static int start_helpers(struct qni_pool *p)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    int32_t started = 0;
    while (started < p->n_helpers && !failed) {
        failed = pthread_create(&p->helper[started], NULL, help, p);
        started += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed)
        stop_helpers(p, started);
    return failed;
}

qn_status qni_pool_create(const struct qni_allocator *a, int32_t n_threads, struct qni_pool **pool,
                          qn_error *err)
{
    *pool = NULL;
    if (n_threads < 1 || n_threads > 4096)
        return qni_fail(err, QN_E_ARGUMENT, "n_threads is %d; 1 to 4096 are possible",
                        (int)n_threads);
    struct qni_pool *p = qni_alloc_zero(a, pool_bytes(n_threads - 1));
    if (p == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for a pool of %d threads", (int)n_threads);
    p->allocator = *a;
    p->n_helpers = n_threads - 1;
    p->may_spin = n_threads <= qni_threads_available();
    atomic_init(&p->ticket, ticket_of(0, CLOSED));
    if (pthread_mutex_init(&p->mutex, NULL) != 0 || pthread_cond_init(&p->work, NULL) != 0 ||
        pthread_cond_init(&p->finished, NULL) != 0 || start_helpers(p) != 0) {
        free_pool(p);
        return qni_fail(err, QN_E_MEMORY, "the system refuses to start %d threads",
                        (int)(n_threads - 1));
    }
    *pool = p;
    return QN_OK;
}

void qni_pool_destroy(struct qni_pool *pool)
{
    if (pool == NULL)
        return;
    stop_helpers(pool, pool->n_helpers);
    free_pool(pool);
}

static void run_alone(int32_t n, qn_task_fn task, void *arg)
{
    for (int32_t i = 0; i < n; i++)
        task(arg, i);
}

static void post(struct qni_pool *p, int32_t n, qn_task_fn task, void *arg)
{
    const uint32_t job = ++p->job;
    atomic_store(&p->ticket, ticket_of(job, CLOSED));
    atomic_store_explicit(&p->done, 0, memory_order_release);
    atomic_store_explicit(&p->n, n, memory_order_release);
    atomic_store_explicit(&p->task, task, memory_order_release);
    atomic_store_explicit(&p->arg, arg, memory_order_release);
    atomic_store(&p->ticket, ticket_of(job, 1));
    const int32_t sleepers = atomic_load(&p->sleepers);
    if (sleepers == 0)
        return;
    pthread_mutex_lock(&p->mutex);
    pthread_mutex_unlock(
        &p->mutex); /* whoever counted itself is in cond_wait now, or has seen the ticket */
    if (sleepers > n - 1)
        for (int32_t i = 0; i < n - 1; i++)
            pthread_cond_signal(&p->work);
    else
        pthread_cond_broadcast(&p->work);
}

static void join(struct qni_pool *p, int32_t n)
{
    if (p->may_spin) {
        const int64_t since = now_ns();
        do
            for (int i = 0; i < 16; i++) {
                if (atomic_load_explicit(&p->done, memory_order_acquire) == n)
                    return;
                QNI_PAUSE();
            }
        while (now_ns() - since < JOIN_SPIN_NS);
    }
    pthread_mutex_lock(&p->mutex);
    atomic_store(&p->caller_sleeps, true);
    while (atomic_load(&p->done) != n)
        pthread_cond_wait(&p->finished, &p->mutex);
    atomic_store(&p->caller_sleeps, false);
    pthread_mutex_unlock(&p->mutex);
}

void qni_pool_run(struct qni_pool *pool, int32_t n, qn_task_fn task, void *arg)
{
    if (n <= 1 || pool->n_helpers == 0 || atomic_exchange(&pool->busy, true)) {
        run_alone(n, task, arg);
        return;
    }
    post(pool, n, task, arg);
    task(arg, 0); /* always the caller's: what its caches hold of the call before is of use */
    take_items(pool, 1);
    join(pool, n);
    atomic_store(&pool->busy, false);
}

void qni_parallel(const struct qni_threads *threads, int32_t n, qn_task_fn task, void *arg)
{
    if (n > 1 && threads->parallel_for != NULL)
        threads->parallel_for(threads->parallel_arg, n, task, arg);
    else if (n > 1 && threads->pool != NULL)
        qni_pool_run(threads->pool, n, task, arg);
    else
        run_alone(n, task, arg);
}

/* ---- rows ------------------------------------------------------------------------------------ */

enum { MAX_PIECES = 64 };
struct pieces {
    qni_row_fn *take;
    const void *arg;
    int64_t n, rows; /* of a piece */
    int64_t refused[MAX_PIECES];
};

static void take_rows(void *arg, int32_t piece)
{
    struct pieces *const p = arg;
    const int64_t first = piece * p->rows, end = qni_min(first + p->rows, p->n);
    p->refused[piece] = -1;
    for (int64_t row = first; row < end && p->refused[piece] < 0; row++)
        if (!p->take(p->arg, row))
            p->refused[piece] = row;
}

int64_t qni_parallel_rows(const struct qni_threads *threads, int64_t n, qni_row_fn *take,
                          const void *arg)
{
    if (n <= 0)
        return -1;
    struct pieces p = {take, arg, n, qni_ceil_div(n, MAX_PIECES), {0}};
    const int32_t pieces = (int32_t)qni_ceil_div(n, p.rows);
    qni_parallel(threads, pieces, take_rows, &p);
    for (int32_t i = 0; i < pieces; i++)
        if (p.refused[i] >= 0)
            return p.refused[i];
    return -1;
}
