/* SPDX-License-Identifier: Apache-2.0 */
/* Running cases: enumeration, worker processes, crashes, progress, summary.
 *
 * The parent forks `jobs` workers before any thread exists. Each enumerates all cases and runs
 * those that fall to it; what it is at stands in shared memory. When a worker dies, or stays silent
 * for too long, the parent reports that case as failed, with the signal, the operand it ran out of
 * and a command line, and forks another one that begins behind it. */
#define _GNU_SOURCE
#include <errno.h>
#include <fnmatch.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "harness.h"

enum { MAX_JOBS = 64, SILENCE_SECONDS = 240 };

/* One worker, as its parent sees it. */
struct worker {
    _Atomic int64_t done, failed;
    _Atomic int64_t current; /* number of the case being run, or -1 */
    _Atomic int64_t since;   /* when it began, in milliseconds */
    char name[256];
    char about[CHECK_ABOUT_BYTES];
    struct check_crash crash;
};

struct shared {
    struct worker worker[MAX_JOBS];
};

/* Why the cases are enumerated. */
enum purpose { COUNT, LIST, RUN };

struct check_suite {
    enum purpose purpose;
    const struct check_options *options;
    const char *suite;
    int64_t n; /* cases that passed the filter so far */
    int64_t worker, n_workers, resume;
    struct worker *state;
};

static int64_t now_ms(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* -------------------------------------------------------------------------------------- failing */

void check_fail(struct check *c, const char *format, ...)
{
    const size_t at = strlen(c->text);
    c->failed = true;
    if (at + 80 >= sizeof c->text)
        return;
    va_list list;
    va_start(list, format);
    memcpy(c->text + at, "    ", 5);
    vsnprintf(c->text + at + 4, sizeof c->text - at - 5, format, list);
    va_end(list);
    memcpy(c->text + strlen(c->text), "\n", 2);
}

void check_about(struct check *c, const char *format, ...)
{
    const size_t at = strlen(c->about);
    va_list list;
    va_start(list, format);
    vsnprintf(c->about + at, CHECK_ABOUT_BYTES - at, format, list);
    va_end(list);
}

bool check_status(struct check *c, const char *what, qn_status got, qn_status expected,
                  const qn_error *err)
{
    if (got == expected)
        return true;
    check_fail(c, "%s: %s, expected %s%s%s", what, qn_status_name(got), qn_status_name(expected),
               err != NULL && got != QN_OK ? ": " : "",
               err != NULL && got != QN_OK ? err->text : "");
    return false;
}

/* The command line that runs this case again. */
static void print_reproduction(const struct check_options *o, const char *name)
{
    printf("    again: quern-check --seed %llu%s", (unsigned long long)o->seed,
           o->quick ? " --quick" : "");
    if (o->isa_given) {
        printf(" --isa ");
        const char *comma = "";
        for (int bit = 0; bit < 64; bit++)
            if (((o->isa >> bit) & 1) != 0 && qn_isa_name((uint64_t)1 << bit) != NULL) {
                printf("%s%s", comma, qn_isa_name((uint64_t)1 << bit));
                comma = ",";
            }
        if (comma[0] == '\0')
            printf("portable");
    }
    if (o->threads != 0)
        printf(" --threads %d", o->threads);
    printf(" --jobs 0 --filter '%s'\n", name);
}

static void print_failure(const struct check_options *o, const char *name, const char *about,
                          const char *text)
{
    if (isatty(STDOUT_FILENO) || isatty(STDERR_FILENO))
        printf("\r\033[K");
    printf("FAIL %s%s%s\n%s", name, about[0] != '\0' ? "  " : "", about, text);
    print_reproduction(o, name);
    fflush(stdout);
}

/* ------------------------------------------------------------------------------------- one case */

/* FNV-1a of the name, so that a case has the same data whatever runs before it. */
static uint64_t seed_of(const char *name, uint64_t seed)
{
    uint64_t h = 0xcbf29ce484222325u ^ (seed * 0x9e3779b97f4a7c15u);
    for (; *name != '\0'; name++)
        h = (h ^ (uint8_t)*name) * 0x100000001b3u;
    return h;
}

static bool wanted(const struct check_options *o, const char *name)
{
    if (o->filter == NULL)
        return true;
    if (strpbrk(o->filter, "*?") != NULL)
        return fnmatch(o->filter, name, 0) == 0;
    return strstr(name, o->filter) != NULL;
}

static void run_case(struct check_suite *suite, check_case_fn *fn, const void *arg,
                     const char *name)
{
    struct worker *state = suite->state;
    struct check c = {.options = suite->options, .name = name, .about = state->about};
    c.seed = seed_of(name, suite->options->seed);
    c.random.state = c.seed;
    snprintf(state->name, sizeof state->name, "%s", name);
    state->about[0] = '\0';
    memset(&state->crash, 0, sizeof state->crash);
    atomic_store(&state->since, now_ms());
    atomic_store(&state->current, suite->n);
    fn(&c, arg);
    c.options->device->end(&c);
    check_memory_end(&c);
    if (c.failed) {
        atomic_fetch_add(&state->failed, 1);
        print_failure(suite->options, name, c.about, c.text);
    } else if (suite->options->verbose) {
        printf("ok   %s  %s (%lld ms)\n", name, c.about,
               (long long)(now_ms() - atomic_load(&state->since)));
    }
    atomic_fetch_add(&state->done, 1);
    atomic_store(&state->current, -1);
}

/* Not in turn: what makes a case long often comes with every second, fourth or eighth one. */
static int64_t falls_to(int64_t n, int64_t n_workers)
{
    return (int64_t)(((uint64_t)n * 0x9e3779b97f4a7c15u >> 32) % (uint64_t)n_workers);
}

void check_case(struct check_suite *suite, check_case_fn *fn, const void *arg, const char *format,
                ...)
{
    char name[256];
    const int begin = snprintf(name, sizeof name, "%s/", suite->suite);
    va_list list;
    va_start(list, format);
    vsnprintf(name + begin, sizeof name - (size_t)begin, format, list);
    va_end(list);
    if (!wanted(suite->options, name))
        return;
    if (suite->purpose == LIST)
        puts(name);
    else if (suite->purpose == RUN && suite->n >= suite->resume &&
             falls_to(suite->n, suite->n_workers) == suite->worker)
        run_case(suite, fn, arg, name);
    suite->n++;
}

static int64_t enumerate(struct check_suite *suite, check_suite_fn *const *suites,
                         const char *const *names, int32_t n_suites)
{
    suite->n = 0;
    for (int32_t i = 0; i < n_suites; i++) {
        suite->suite = names[i];
        suites[i](suite, suite->options);
    }
    return suite->n;
}

/* -------------------------------------------------------------------------------------- workers */

struct job {
    const struct check_options *options;
    check_suite_fn *const *suites;
    const char *const *names;
    int32_t n_suites;
    int32_t n_workers;
    struct shared *shared;
    pid_t pid[MAX_JOBS];
    int64_t total;
};

static void work(const struct job *job, int32_t worker, int64_t resume)
{
    struct check_suite suite = {
        .purpose = RUN,
        .options = job->options,
        .worker = worker,
        .n_workers = job->n_workers,
        .resume = resume,
        .state = &job->shared->worker[worker],
    };
    enumerate(&suite, job->suites, job->names, job->n_suites);
    check_contexts_end();
}

static bool start_worker(struct job *job, int32_t worker, int64_t resume)
{
    fflush(NULL);
    atomic_store(&job->shared->worker[worker].current, -1);
    const pid_t pid = fork();
    if (pid < 0) {
        fprintf(stderr, "quern-check: fork: %s\n", strerror(errno));
        return false;
    }
    if (pid == 0) {
        check_crash_handlers(&job->shared->worker[worker].crash);
        work(job, worker, resume);
        fflush(NULL);
        exit(0); /* not _exit: sanitizers look for leaks now */
    }
    job->pid[worker] = pid;
    return true;
}

/* What is known of a death, in words. */
static void describe_death(const struct worker *w, int status, bool silent, char *text, size_t n)
{
    int at = 0;
    if (silent)
        at = snprintf(text, n, "    no answer for %d s", SILENCE_SECONDS);
    else if (WIFSIGNALED(status))
        at = snprintf(text, n, "    %s", strsignal(WTERMSIG(status)));
    else
        at = snprintf(text, n, "    the process ended with status %d", WEXITSTATUS(status));
    const long long distance = w->crash.distance;
    if (w->crash.place == CHECK_BEFORE)
        at += snprintf(text + at, n - (size_t)at, ": %lld bytes before the operand '%s'", distance,
                       w->crash.operand);
    else if (w->crash.place == CHECK_BEHIND)
        at += snprintf(text + at, n - (size_t)at, ": %lld bytes past the end of the operand '%s'",
                       distance, w->crash.operand);
    else if (w->crash.place == CHECK_INSIDE)
        at += snprintf(text + at, n - (size_t)at, ": a write to byte %lld of the input '%s'",
                       distance, w->crash.operand);
    snprintf(text + at, n - (size_t)at, "\n");
}

/* A worker is gone. Returns true if another one took over. */
static bool bury(struct job *job, int32_t worker, int status, bool silent)
{
    struct worker *w = &job->shared->worker[worker];
    const int64_t current = atomic_load(&w->current);
    job->pid[worker] = 0;
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
        return false;
    atomic_fetch_add(&w->failed, 1);
    char text[400];
    describe_death(w, status, silent, text, sizeof text);
    if (current < 0) {
        printf("FAIL a worker died between cases\n%s", text);
        return false;
    }
    print_failure(job->options, w->name, w->about, text);
    atomic_fetch_add(&w->done, 1);
    return start_worker(job, worker, current + 1);
}

static void progress(const struct job *job, int64_t started, bool last)
{
    if (!isatty(STDERR_FILENO))
        return;
    int64_t done = 0, failed = 0;
    for (int32_t i = 0; i < job->n_workers; i++) {
        done += atomic_load(&job->shared->worker[i].done);
        failed += atomic_load(&job->shared->worker[i].failed);
    }
    if (last)
        fprintf(stderr, "\r\033[K");
    else
        fprintf(stderr, "\r\033[K%lld/%lld  %lld failed  %lld s  %.60s", (long long)done,
                (long long)job->total, (long long)failed, (long long)(now_ms() - started) / 1000,
                job->shared->worker[0].name);
    fflush(stderr);
}

static void run_workers(struct job *job, int64_t started)
{
    int32_t alive = 0;
    for (int32_t i = 0; i < job->n_workers; i++)
        alive += start_worker(job, i, 0);
    while (alive > 0) {
        int status;
        const pid_t pid = waitpid(-1, &status, WNOHANG);
        for (int32_t i = 0; i < job->n_workers && pid > 0; i++)
            if (job->pid[i] == pid)
                alive -= !bury(job, i, status, false);
        if (pid > 0)
            continue;
        for (int32_t i = 0; i < job->n_workers; i++) {
            const struct worker *w = &job->shared->worker[i];
            if (job->pid[i] > 0 && atomic_load(&w->current) >= 0 &&
                now_ms() - atomic_load(&w->since) > SILENCE_SECONDS * 1000) {
                kill(job->pid[i], SIGKILL);
                waitpid(job->pid[i], &status, 0);
                alive -= !bury(job, i, status, true);
            }
        }
        progress(job, started, false);
        nanosleep(&(struct timespec){.tv_nsec = 20000000}, NULL);
    }
    progress(job, started, true);
}

int check_run(const struct check_options *options, check_suite_fn *const *suites,
              const char *const *names, int32_t n_suites)
{
    struct check_suite count = {.purpose = options->list ? LIST : COUNT, .options = options};
    struct job job = {
        .options = options,
        .suites = suites,
        .names = names,
        .n_suites = n_suites,
        .n_workers = options->jobs > 0 ? (options->jobs < MAX_JOBS ? options->jobs : MAX_JOBS) : 1,
        .total = enumerate(&count, suites, names, n_suites),
    };
    if (options->list)
        return 0;
    if (job.total == 0) {
        fprintf(stderr, "quern-check: no case is called '%s'; --list shows them all\n",
                options->filter);
        return 2;
    }
    job.shared =
        mmap(NULL, sizeof *job.shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (job.shared == MAP_FAILED) {
        fprintf(stderr, "quern-check: no memory\n");
        return 2;
    }
    const int64_t started = now_ms();
    if (options->jobs == 0)
        work(&job, 0, 0);
    else
        run_workers(&job, started);
    int64_t done = 0, failed = 0;
    for (int32_t i = 0; i < job.n_workers; i++) {
        done += atomic_load(&job.shared->worker[i].done);
        failed += atomic_load(&job.shared->worker[i].failed);
    }
    printf("quern-check: %lld cases, %lld failed, seed %llu, isa %s%s, %.1f s\n", (long long)done,
           (long long)failed, (unsigned long long)options->seed, check_mask_name(options->isa),
           options->quick ? ", quick" : "", (double)(now_ms() - started) / 1000.0);
    const bool all = done == job.total;
    if (!all)
        printf("quern-check: %lld cases were not run\n", (long long)(job.total - done));
    munmap(job.shared, sizeof *job.shared);
    return failed == 0 && all ? 0 : 1;
}
