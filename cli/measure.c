/* SPDX-License-Identifier: Apache-2.0 */
/* Threads that all read, or all compute. Each times many short pieces of its work (a few hundred
 * microseconds) and reports the median rate; the rates are added. On an idle machine that is the
 * rate of the whole; on a busy one, pieces that were interrupted do not count for the limit. */
#define _POSIX_C_SOURCE 200809L
#include "measure.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_THREADS = 1024, MAX_PIECES = 256, PEAK_PIECES = 25 };
enum { PIECE_WORDS = 1 << 19 }; /* 4 MiB */

struct job {
    const uint64_t *from; /* bandwidth */
    size_t words;
    peak_loop *loop; /* or peak */
    double rate;     /* what came out, a second */
    uint64_t sum;
};

/* Sixteen sums keep as many loads under way as the core can; any compiler makes vectors of them. */
static uint64_t read_piece(const uint64_t *from, size_t words)
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

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double read_rate(struct job *job)
{
    double rates[MAX_PIECES];
    int n = 0;
    for (size_t at = 0; at < job->words && n < MAX_PIECES; at += PIECE_WORDS) {
        const size_t words = job->words - at < PIECE_WORDS ? job->words - at : PIECE_WORDS;
        const double begin = seconds_now();
        job->sum += read_piece(job->from + at, words);
        rates[n++] = (double)words * sizeof *job->from / (seconds_now() - begin);
    }
    qsort(rates, (size_t)n, sizeof *rates, by_size);
    return rates[n / 2];
}

static double peak_rate(const struct job *job)
{
    double rates[PEAK_PIECES];
    long rounds = 1000;
    for (int n = 0; n < PEAK_PIECES;) {
        const double begin = seconds_now();
        const double ops = job->loop(rounds);
        const double took = seconds_now() - begin;
        rates[n] = ops / took;
        if (took < 2e-4)
            rounds *= 2; /* too short to tell */
        else
            n++;
    }
    qsort(rates, PEAK_PIECES, sizeof *rates, by_size);
    return rates[PEAK_PIECES / 2];
}

static void *work(void *arg)
{
    struct job *job = arg;
    job->rate = job->loop != NULL ? peak_rate(job) : read_rate(job);
    return NULL;
}

/* Run all jobs at once, the first here; the sum of their rates. */
static double run_jobs(struct job *jobs, int n)
{
    pthread_t threads[MAX_THREADS];
    int made = 1;
    while (made < n && pthread_create(&threads[made], NULL, work, &jobs[made]) == 0)
        made++;
    work(&jobs[0]);
    double rate = jobs[0].rate;
    for (int i = 1; i < made; i++) { /* those that no thread could be had for do not count */
        pthread_join(threads[i], NULL);
        rate += jobs[i].rate;
    }
    return rate;
}

static int threads_of(const qn_ctx *ctx)
{
    qn_ctx_info info;
    qn_ctx_info_init(&info);
    qn_ctx_query(ctx, &info);
    return info.n_threads < 1 ? 1 : info.n_threads > MAX_THREADS ? MAX_THREADS : info.n_threads;
}

/* Two threads that share a CPU have no more of it than one, but pieces of the one that the other
 * interrupts do not count here: the sum of their rates would be twice the machine's. */
int measure_threads(const qn_ctx *ctx)
{
    static int cpus;
    qn_ctx *all;
    if (cpus == 0 && qn_ctx_create(NULL, &all, NULL) == QN_OK) {
        cpus = threads_of(all);
        qn_ctx_destroy(all);
    }
    const int wanted = threads_of(ctx);
    return cpus > 0 && cpus < wanted ? cpus : wanted;
}

/* Is the context on a GPU? Then what it is. */
static int gpu_of(const qn_ctx *ctx, qn_cuda_info *info)
{
    const qn_device device = device_of(ctx);
    qn_cuda_info_init(info);
    return device.kind == QN_CUDA && qn_cuda_query(device.index, info, NULL) == QN_OK;
}

size_t rotation_bytes(const qn_ctx *ctx)
{
    qn_cuda_info gpu;
    if (gpu_of(ctx, &gpu))
        return 8 * gpu.l2_bytes;
    const size_t most = (size_t)512 << 20, least = (size_t)32 << 20;
    qn_ctx_info info;
    qn_ctx_info_init(&info);
    qn_ctx_query(ctx, &info);
    size_t last = 0;
    for (int i = 0; i < 3; i++)
        last = info.cache_bytes[i] > last ? info.cache_bytes[i] : last;
    /* Each thread may have a last cache of its own: groups of cores of one socket do. */
    const size_t threads = (size_t)threads_of(ctx), all = last < most ? last * threads : most;
    const size_t bytes = all + all / 4;
    return bytes < least ? least : bytes > most ? most : bytes;
}

/* What is known so far; the buffer stays for the next time. */
static struct {
    double bandwidth;
    uint64_t *memory;
    size_t words; /* of each thread */
    int n_threads;
    struct known_peak {
        double rate;
        const struct peak_row *row;
    } peaks[PEAK_INT4 + 1];
} known;

static void read_memory(int tries)
{
    const int n = known.n_threads;
    struct job *jobs = must_alloc(sizeof *jobs * (size_t)n);
    for (int try = 0; try < tries; try++) {
        for (int i = 0; i < n; i++)
            jobs[i] =
                (struct job){.from = known.memory + (size_t)i * known.words, .words = known.words};
        const double rate = run_jobs(jobs, n);
        known.bandwidth = rate > known.bandwidth ? rate : known.bandwidth;
    }
    free(jobs);
}

double measure_bandwidth(const qn_ctx *ctx)
{
    qn_cuda_info gpu;
    if (gpu_of(ctx, &gpu))
        return gpu.bandwidth;
    if (known.bandwidth > 0)
        return known.bandwidth;
    const long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    size_t bytes = rotation_bytes(ctx);
    if (pages > 0 && page > 0 && bytes > (size_t)pages / 4 * (size_t)page)
        bytes = (size_t)pages / 4 * (size_t)page;
    known.n_threads = measure_threads(ctx);
    known.words = bytes / sizeof(uint64_t) / (size_t)known.n_threads;
    bytes = known.words * (size_t)known.n_threads * sizeof(uint64_t);
    known.memory = must_grow(NULL, bytes);
    memset(known.memory, 0x3c, bytes); /* as floats 0.0115: their products are no denormals */
    read_memory(4);
    return known.bandwidth;
}

const float *measure_memory(const qn_ctx *ctx, size_t *floats)
{
    *floats = 0;
    if (device_of(ctx).kind != QN_CPU)
        return NULL;
    measure_bandwidth(ctx);
    *floats = known.words * (size_t)known.n_threads * (sizeof(uint64_t) / sizeof(float));
    return (const float *)(const void *)known.memory;
}

static double measure_row(const struct peak_row *row, int n, int tries)
{
    struct job *jobs = must_alloc(sizeof *jobs * (size_t)n);
    double best = 0;
    for (int try = 0; try < tries; try++) {
        for (int i = 0; i < n; i++)
            jobs[i] = (struct job){.loop = row->loop};
        const double rate = run_jobs(jobs, n);
        best = rate > best ? rate : best;
    }
    free(jobs);
    return best;
}

/* What serves codes of 8 bits serves those of 4. */
static int is_row_of(const struct peak_row *row, enum peak peak)
{
    return row->peak == peak || (peak == PEAK_INT4 && row->peak == PEAK_INT8);
}

/* All rows that the ISA allows are tried: which is fastest is not a matter of its age (a bf16 dot
 * product can be slower than the f32 multiply-add on the same core). */
static const struct known_peak *find_peak(const qn_ctx *ctx, enum peak peak)
{
    struct known_peak *best = &known.peaks[peak];
    qn_ctx_info info;
    qn_ctx_info_init(&info);
    qn_ctx_query(ctx, &info);
    if (best->rate > 0)
        return best;
    for (const struct peak_row *row = peak_rows; row->loop != NULL; row++) {
        if (!is_row_of(row, peak) || (row->needs & ~info.isa) != 0)
            continue;
        if (row->needs == 0 && best->rate > 0)
            continue; /* only where there is nothing else */
        const double rate = measure_row(row, measure_threads(ctx), 3);
        if (rate > best->rate)
            *best = (struct known_peak){rate, row};
    }
    return best;
}

void measure_again(const qn_ctx *ctx)
{
    static double last;
    if (device_of(ctx).kind != QN_CPU)
        return;
    measure_bandwidth(ctx);
    if (seconds_now() - last < 1)
        return; /* many short cases should not be mostly this */
    last = seconds_now();
    read_memory(1);
    for (enum peak p = PEAK_F32; p <= PEAK_INT4; p++) {
        struct known_peak *peak = &known.peaks[p];
        const double rate = peak->rate > 0 ? measure_row(peak->row, measure_threads(ctx), 1) : 0;
        peak->rate = rate > peak->rate ? rate : peak->rate;
    }
}

double measure_peak(const qn_ctx *ctx, enum peak peak)
{
    qn_cuda_info gpu;
    if (gpu_of(ctx, &gpu)) /* float strategies run on f16 products, too */
        return peak == PEAK_INT8 || peak == PEAK_INT4 ? gpu.int8_ops : gpu.f16_ops;
    return find_peak(ctx, peak)->rate;
}

const char *peak_instruction(const qn_ctx *ctx, enum peak peak)
{
    if (device_of(ctx).kind != QN_CPU)
        return "tensor cores, as rated";
    return find_peak(ctx, peak)->row->instruction;
}

const char *peak_name(enum peak peak)
{
    static const char *const names[] = {"f32", "bf16", "int8", "int4", "f16"};
    return names[peak];
}

int is_float_strategy(qn_strategy strategy)
{
    return strategy != QN_STRATEGY_INT8_ROW && strategy != QN_STRATEGY_INT8_BLOCK &&
           strategy != QN_STRATEGY_INT8_STATIC;
}

enum peak peak_of(const qn_ctx *ctx, qn_strategy strategy, int bits, const char *kernel)
{
    const int is_cpu = device_of(ctx).kind == QN_CPU;
    if (!is_float_strategy(strategy))
        return is_cpu && bits < 8 ? find_peak(ctx, PEAK_INT4)->row->peak : PEAK_INT8;
    if (!is_cpu) /* FP8 is as fast as int8 */
        return strstr(kernel, "_e4m3") != NULL ? PEAK_INT8 : PEAK_F16;
    return strstr(kernel, "bf16") != NULL ? PEAK_BF16 : PEAK_F32;
}
