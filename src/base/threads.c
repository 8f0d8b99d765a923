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
 * small products follows itself within microseconds, everything else does not), as long as the
 * pause before promises, and only if every thread of the pool can have a CPU of its own. Nothing
 * here decides a result: items are cut by the caller, whatever the number of threads.
 */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "cpus.h"
#include "error.h"
#include "origin.h"
#include "size.h"
#include "threads.h"

/* ---- the pool ---- */

/* SPIN_NS bridges the gap between two products of one layer and is short enough not to be seen in a
 * profile. The others are a few wake-ups long (5 us on an idle core, 30 in a virtual machine, 50 on
 * a core that went to deep sleep): STREAM_SPIN_NS waits where the pause before was no longer,
 * the rest for a job that runs. */
enum {
    SPIN_NS = 10000,
    STREAM_SPIN_NS = 100000,
    BUSY_SPIN_NS = 200000,
    JOIN_SPIN_NS = 50000,
    PATIENCE = 8
};

/* A move to another CPU costs two system calls and what the thread's caches held. */
enum { MOVE_NS = 1000000, MOST_NAMED = 256 };

struct helper {
    pthread_t thread;
    struct qni_pool *pool;
    _Atomic int32_t cpu; /* that it last woke on; written only when it is another one */
};

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
    _Alignas(64) _Atomic int32_t caller_cpu; /* of the last job; as a helper's */
    struct qni_origin origin; /* of the helpers and the locks */
    pthread_mutex_t mutex;
    pthread_cond_t work, finished;
    struct helper helper[];
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
static bool spin_for_work(struct qni_pool *p, int64_t budget)
{
    const int64_t begin = now_ns();
    int64_t since = begin, now = begin;
    while (now - since < budget && now - begin < BUSY_SPIN_NS) {
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

/* ---- whose CPU ---- */

static void show_cpu(_Atomic int32_t *shown, int32_t cpu)
{
    if (atomic_load_explicit(shown, memory_order_relaxed) != cpu)
        atomic_store_explicit(shown, cpu, memory_order_relaxed);
}

/*
 * The kernel wakes a helper where it thinks best; after a pause in which others had the CPUs that
 * is often the caller's own, and there both take turns for as long as the jobs are short: they run
 * no faster than one thread. So a helper that wakes on a CPU of the caller, or of a helper before
 * it, goes to one that is nobody's, if its mask has one.
 */
static void step_aside(const struct qni_pool *p, struct helper *h, int64_t *not_before)
{
    int32_t taken[MOST_NAMED], n = 0;
    const int32_t cpu = qni_this_cpu();
    show_cpu(&h->cpu, cpu);
    bool shared = false;
    taken[n++] = atomic_load_explicit(&p->caller_cpu, memory_order_relaxed);
    for (const struct helper *o = p->helper; o < h && n < MOST_NAMED; o++)
        taken[n++] = atomic_load_explicit(&o->cpu, memory_order_relaxed);
    for (int32_t i = 0; i < n; i++)
        shared = shared || taken[i] == cpu;
    if (!shared || cpu < 0 || now_ns() < *not_before)
        return;
    for (int32_t i = (int32_t)(h - p->helper) + 1; i < p->n_helpers && n < MOST_NAMED; i++)
        taken[n++] = atomic_load_explicit(&p->helper[i].cpu, memory_order_relaxed);
    qni_leave_cpus(taken, n);
    show_cpu(&h->cpu, qni_this_cpu());
    *not_before = now_ns() + MOVE_NS;
}

/* After PATIENCE spins in vain only one wait in PATIENCE begins with a spin, until one succeeds or
 * a pause was short enough for one. */
static void *help(void *arg)
{
    struct helper *self = arg;
    struct qni_pool *p = self->pool;
    int64_t not_before = 0, paused = STREAM_SPIN_NS, since = now_ns();
    uint32_t vain = 0;
    while (!atomic_load(&p->stop)) {
        const int64_t budget = paused < STREAM_SPIN_NS ? STREAM_SPIN_NS : SPIN_NS;
        const bool spins = p->may_spin && (vain < PATIENCE || vain % PATIENCE == 0);
        if (spins && spin_for_work(p, budget)) {
            vain = 0;
        } else {
            vain++;
            sleep_for_work(p);
        }
        if (p->may_spin)
            step_aside(p, self, &not_before);
        const int64_t woken = now_ns();
        paused = woken - since;
        if (paused < STREAM_SPIN_NS)
            vain = 0;
        take_items(p, 0);
        since = now_ns();
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
        pthread_join(p->helper[i].thread, NULL);
}

static size_t pool_bytes(int32_t n_helpers)
{
    return sizeof(struct qni_pool) + (size_t)n_helpers * sizeof(struct helper);
}

static void free_pool(struct qni_pool *p)
{
    const struct qni_allocator a = p->allocator;
    qni_origin_end(&p->origin, &a);
    qni_free(&a, p, pool_bytes(p->n_helpers));
}

/* The process's signals stay with the process's threads: a helper has them blocked from its first
 * instruction. Not so those that a thread raises by what it does itself, a read behind the end of a
 * mapped file above all: the kernel cannot keep these until later, and ends a process that blocks
 * them without asking its handler. */
static int start_helpers(struct qni_pool *p)
{
    static const int own[] = {SIGBUS, SIGSEGV, SIGFPE, SIGILL, SIGTRAP, SIGSYS};
    sigset_t all, before;
    sigfillset(&all);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        sigdelset(&all, own[i]);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    int32_t started = 0;
    while (started < p->n_helpers && !failed) {
        struct helper *h = &p->helper[started];
        h->pool = p;
        atomic_init(&h->cpu, -1);
        failed = pthread_create(&h->thread, NULL, help, h);
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
    atomic_init(&p->caller_cpu, -1);
    if (!qni_origin_make(&p->origin, a) || pthread_mutex_init(&p->mutex, NULL) != 0 ||
        pthread_cond_init(&p->work, NULL) != 0 || pthread_cond_init(&p->finished, NULL) != 0 ||
        start_helpers(p) != 0) {
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
    if (!qni_origin_is_past(&pool->origin)) {
        stop_helpers(pool, pool->n_helpers);
        pthread_cond_destroy(&pool->finished);
        pthread_cond_destroy(&pool->work);
        pthread_mutex_destroy(&pool->mutex);
    }
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
    show_cpu(&p->caller_cpu, qni_this_cpu());
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
    if (n <= 1 || pool->n_helpers == 0 || qni_origin_is_past(&pool->origin) ||
        atomic_exchange(&pool->busy, true)) {
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
