/* SPDX-License-Identifier: Apache-2.0 */
/* The product that the demo's times stand beside: plain C loops over f32 weights, which a compiler
 * makes vectors of, on as many threads. Each thread times short pieces of its own outputs and the
 * rates are added, as for the limits (measure.c); the weights are the buffer that bandwidth is
 * measured with, since their values cost no time. */
#define _POSIX_C_SOURCE 200809L
#include <pthread.h>
#include <stdlib.h>

#include "measure.h"
#include "problem.h"

enum { MAX_THREADS = 256, SUMS = 16 };

/* Sixteen sums, so that vectors of any width come of them. */
static inline __attribute__((always_inline)) float dot(const float *x, const float *w, int64_t k)
{
    float sums[SUMS] = {0}, sum = 0;
    int64_t i = 0;
    for (; i + SUMS <= k; i += SUMS)
        for (int j = 0; j < SUMS; j++)
            sums[j] += x[i + j] * w[i + j];
    for (; i < k; i++)
        sum += x[i] * w[i];
    for (int j = 0; j < SUMS; j++)
        sum += sums[j];
    return sum;
}

static inline __attribute__((always_inline)) float outputs(const float *x, const float *w,
                                                           int64_t m, int64_t k)
{
    float sum = 0;
    for (int64_t r = 0; r < m; r++)
        sum += dot(x + r * k, w, k);
    return sum;
}

static float outputs_plain(const float *x, const float *w, int64_t m, int64_t k)
{
    return outputs(x, w, m, k);
}

#if defined(__x86_64__) && defined(__GNUC__)
__attribute__((target("avx2"))) static float outputs_avx2(const float *x, const float *w, int64_t m,
                                                          int64_t k)
{
    return outputs(x, w, m, k);
}
#endif

struct part {
    float (*outputs)(const float *x, const float *w, int64_t m, int64_t k);
    const float *x, *weights;
    int64_t m, k, n; /* weights has n rows */
    double seconds;  /* to go on for */
    double rate;     /* outputs of all m rows, a second */
    volatile float sink;
};

static void *run_part(void *arg)
{
    struct part *part = arg;
    const double begin = seconds_now();
    double took = 0;
    int64_t done = 0;
    while (done < 3 || took < part->seconds) {
        part->sink =
            part->outputs(part->x, part->weights + done % part->n * part->k, part->m, part->k);
        done++;
        took = seconds_now() - begin;
    }
    part->rate = (double)done / took;
    return NULL;
}

double plain_seconds(const qn_ctx *ctx, int64_t m, int64_t n, int64_t k)
{
    static struct part parts[MAX_THREADS];
    pthread_t threads[MAX_THREADS];
    size_t floats;
    const float *memory = measure_memory(ctx, &floats);
    const int wanted = measure_threads(ctx), count = wanted < MAX_THREADS ? wanted : MAX_THREADS;
    const int64_t each = (int64_t)floats / count / (k > 0 ? k : 1);
    if (memory == NULL || each < 1 || m < 1)
        return 0;
    float *x = must_alloc(sizeof *x * (size_t)(m * k));
    random_activations(1, m * k, 0, x);
    struct part part = {outputs_plain, x, memory, m, k, each, 0.03, 0, 0};
#if defined(__x86_64__) && defined(__GNUC__)
    qn_ctx_info info;
    qn_ctx_info_init(&info);
    qn_ctx_query(ctx, &info);
    if ((info.isa & QN_ISA_AVX2) != 0)
        part.outputs = outputs_avx2;
#endif
    int made = 1;
    for (int i = 0; i < count; i++) {
        parts[i] = part;
        parts[i].weights = memory + (int64_t)i * each * k;
    }
    while (made < count && pthread_create(&threads[made], NULL, run_part, &parts[made]) == 0)
        made++;
    run_part(&parts[0]);
    double rate = parts[0].rate;
    for (int i = 1; i < made; i++) {
        pthread_join(threads[i], NULL);
        rate += parts[i].rate;
    }
    free(x);
    return (double)n / rate;
}
