/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that all read, or all compute, for a while; the best of a few tries counts, since what
 * else the machine does can only make it slower. */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 1024, TRIES = 4 };

struct job {
    const uint64_t *from; /* bandwidth */
    size_t words;
    peak_loop *loop; /* peak */
    long rounds;
    double result;
};

/* Sixteen sums keep as many loads under way as the core can; any compiler makes vectors of them. */
static uint64_t read_all(const uint64_t *from, size_t words)
{
    uint64_t sums[16] = {0};
    for (size_t i = 0; i + 16 <= words; i += 16) {
        for (size_t j = 0; j < 16; j++)
            sums[j] += from[i + j];
    }
    uint64_t sum = 0;
    for (size_t j = 0; j < 16; j++)
        sum += sums[j];
    return sum;
}

static void *work(void *arg)
{
    struct job *job = arg;
    if (job->loop != NULL)
        job->result = job->loop(job->rounds);
    else
        job->result = (double)(read_all(job->from, job->words) & 1);
    return NULL;
}

/* Run all jobs at once, the first here; seconds. */
static double run_jobs(struct job *jobs, int n)
{
    pthread_t threads[MAX_THREADS];
    int made = 1;
    const double begin = seconds_now();
    while (made < n && pthread_create(&threads[made], NULL, work, &jobs[made]) == 0)
        made++;
    work(&jobs[0]);
    for (int i = made; i < n; i++)
        work(&jobs[i]); /* no thread to be had: the rest one after another */
    for (int i = 1; i < made; i++)
        pthread_join(threads[i], NULL);
    return seconds_now() - begin;
}

static int threads_of(const qn_ctx *ctx)
{
    qn_ctx_info info;
    qn_ctx_info_init(&info);
    qn_ctx_query(ctx, &info);
    return info.n_threads < 1 ? 1 : info.n_threads > MAX_THREADS ? MAX_THREADS : info.n_threads;
}

size_t rotation_bytes(const qn_ctx *ctx)
{
    const size_t most = (size_t)512 << 20, least = (size_t)32 << 20;
    qn_ctx_info info;
    qn_ctx_info_init(&info);
    qn_ctx_query(ctx, &info);
    size_t last = 0;
    for (int i = 0; i < 3; i++)
        last = info.cache_bytes[i] > last ? info.cache_bytes[i] : last;
    const size_t bytes = last + last / 4;
    return bytes < least ? least : bytes > most ? most : bytes;
}

double measure_bandwidth(const qn_ctx *ctx)
{
    static double known;
    if (known > 0)
        return known;
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t bytes = rotation_bytes(ctx);
    if (pages > 0 && page > 0 && bytes > (size_t)pages / 4 * (size_t)page)
        bytes = (size_t)pages / 4 * (size_t)page;
    const int n = threads_of(ctx);
    const size_t words = bytes / sizeof(uint64_t) / (size_t)n;
    uint64_t *memory = must_grow(NULL, words * (size_t)n * sizeof *memory);
    memset(memory, 1, words * (size_t)n * sizeof *memory);
    struct job *jobs = must_alloc(sizeof *jobs * (size_t)n);
    for (int i = 0; i < n; i++)
        jobs[i] = (struct job){.from = memory + (size_t)i * words, .words = words};
    const double end = seconds_now() + 0.4;
    for (int try = 0; try < TRIES || seconds_now() < end; try++) {
        const double rate = (double)words * (double)n * sizeof *memory / run_jobs(jobs, n);
        known = rate > known ? rate : known;
    }
    free(jobs);
    free(memory);
    return known;
}

/* The best rate of a few tries on all threads. */
static double measure_row(const struct peak_row *row, struct job *jobs, int n)
{
    double best = 0;
    long rounds = 1000;
    const double end = seconds_now() + 0.1;
    for (int try = 0; try < TRIES || seconds_now() < end;) {
        double ops = 0;
        for (int i = 0; i < n; i++)
            jobs[i] = (struct job){.loop = row->loop, .rounds = rounds};
        const double took = run_jobs(jobs, n);
        for (int i = 0; i < n; i++)
            ops += jobs[i].result;
        if (took < 5e-3) { /* too short to tell; threads take a while to begin */
            rounds *= 4;
            continue;
        }
        best = ops / took > best ? ops / took : best;
        try++;
    }
    return best;
}

struct known_peak {
    double rate;
    const char *instruction;
};

/* All rows that the ISA allows are tried: which is fastest is not a matter of its age (a bf16 dot
 * product can be slower than the f32 multiply-add on the same core). */
static const struct known_peak *find_peak(const qn_ctx *ctx, enum peak peak)
{
    static struct known_peak known[3];
    if (known[peak].rate > 0)
        return &known[peak];
    qn_ctx_info info;
    qn_ctx_info_init(&info);
    qn_ctx_query(ctx, &info);
    const int n = threads_of(ctx);
    struct job *jobs = must_alloc(sizeof *jobs * (size_t)n);
    int measured = 0;
    for (const struct peak_row *row = peak_rows; row->loop != NULL; row++) {
        if (row->peak != peak || (row->needs & ~info.isa) != 0 || (measured > 0 && row->needs == 0))
            continue;
        const double rate = measure_row(row, jobs, n);
        measured++;
        if (rate > known[peak].rate)
            known[peak] = (struct known_peak){rate, row->instruction};
    }
    free(jobs);
    return &known[peak];
}

double measure_peak(const qn_ctx *ctx, enum peak peak)
{
    return find_peak(ctx, peak)->rate;
}

const char *peak_instruction(const qn_ctx *ctx, enum peak peak)
{
    return find_peak(ctx, peak)->instruction;
}

const char *peak_name(enum peak peak)
{
    static const char *const names[] = {"f32", "bf16", "int8"};
    return names[peak];
}

enum peak peak_of(qn_strategy strategy, const char *kernel)
{
    if (strategy != QN_STRATEGY_FLOAT && strategy != QN_STRATEGY_DENSE)
        return PEAK_INT8;
    return strstr(kernel, "bf16") != NULL ? PEAK_BF16 : PEAK_F32;
}
