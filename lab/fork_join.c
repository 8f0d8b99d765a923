/* SPDX-License-Identifier: Apache-2.0 */
/* What a fork and a join cost: the context's pool beside OpenMP's (libgomp), two threads, one item
 * of 20 us each; with pauses between jobs in which the caller works or sleeps. What is printed is
 * the time beyond those 20 us, medians and 90 % quantiles, in turn: 20 us mean that one thread has
 * done both items, because the other one was not there in time.
 *
 *     gcc -O2 -std=gnu11 -fopenmp -Iinclude -Isrc lab/fork_join.c src/base/threads.c \
 *         src/base/cpus.c src/base/error.c src/base/alloc.c src/base/file.c -o /tmp/fork_join -lpthread
 *     /tmp/fork_join; OMP_WAIT_POLICY=passive /tmp/fork_join */
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "base/threads.h"

enum { THREADS = 2, JOBS = 300, WORK_NS = 20000 };

static int64_t now_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

struct slot {
    _Alignas(64) int64_t count;
};
static struct slot slots[THREADS];

static void item(void *arg, int32_t i)
{
    struct slot *s = arg;
    const int64_t end = now_ns() + WORK_NS;
    while (now_ns() < end)
        s[i].count++;
}

static void ours(struct qni_pool *pool)
{
    qni_pool_run(pool, THREADS, item, slots);
}

static void theirs(void)
{
#pragma omp parallel num_threads(THREADS)
    item(slots, omp_get_thread_num());
}

static void pause_for(int64_t ns, int sleeps)
{
    const struct timespec t = {0, (long)ns};
    const int64_t end = now_ns() + ns;
    if (sleeps)
        nanosleep(&t, NULL);
    else
        while (now_ns() < end)
            ;
}

static int by_size(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

int main(void)
{
    static const int64_t pauses[] = {0, 5000, 50000, 500000};
    struct qni_pool *pool = NULL;
    const struct qni_allocator allocator = qni_allocator_default();
    static int64_t took[2][JOBS];
    if (qni_pool_create(&allocator, THREADS, &pool, NULL) != QN_OK)
        return 1;
    printf("%-22s %18s %18s\n", "us, median (90 %)", "the pool", "libgomp");
    for (int sleeps = 0; sleeps < 2; sleeps++)
        for (int p = sleeps; p < 4; p++) {
            for (int who = 0; who < 2; who++) {
                for (int i = -50; i < JOBS; i++) {
                    pause_for(pauses[p], sleeps);
                    const int64_t begin = now_ns();
                    if (who == 0)
                        ours(pool);
                    else
                        theirs();
                    if (i >= 0)
                        took[who][i] = now_ns() - begin - WORK_NS;
                }
                qsort(took[who], JOBS, sizeof **took, by_size);
            }
            printf("%-7s %5lld us between", sleeps ? "asleep" : "busy",
                   (long long)(pauses[p] / 1000));
            for (int who = 0; who < 2; who++)
                printf("    %6.2f (%6.2f)", 1e-3 * (double)took[who][JOBS / 2],
                       1e-3 * (double)took[who][JOBS * 9 / 10]);
            printf("\n");
        }
    qni_pool_destroy(pool);
    return 0;
}
