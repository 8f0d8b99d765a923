/* SPDX-License-Identifier: Apache-2.0 */
/* What the programs here that time one kernel share: a clock, numbers, memory, and times of which
 * the median and the least are told. Linux; include it first. */
#ifndef LAB_BENCH_H
#define LAB_BENCH_H

#define _GNU_SOURCE
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* Microseconds. */
static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec * 1e6 + (double)t.tv_nsec * 1e-3;
}

/* 24 bits, the same in every run. */
static inline uint32_t rnd(void)
{
    static uint32_t seed = 1;
    seed = seed * 1664525u + 1013904223u;
    return seed >> 8;
}

/* Zeros in pages that were written, and some bytes more. */
static inline void *room(size_t bytes)
{
    void *p = aligned_alloc(4096, (bytes + 8191) / 4096 * 4096);
    memset(p, 0, bytes);
    return p;
}

/* May this process use tiles? */
static inline int may_use_tiles(void)
{
    return syscall(SYS_arch_prctl, 0x1023, 18) == 0;
}

enum { TIMES = 20000 };
struct times {
    double us[TIMES];
    int n;
};

/* Once more? At least 5 times, then for `us` microseconds since begin. */
static inline int once_more(const struct times *t, double begin, double us)
{
    return t->n < TIMES && (t->n < 5 || now() - begin < us);
}

static inline void add_time(struct times *t, double since)
{
    t->us[t->n++] = now() - since;
}

static inline int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The least is us[0] afterwards. */
static inline double median(struct times *t)
{
    qsort(t->us, (size_t)t->n, sizeof *t->us, by_size);
    return t->us[t->n / 2];
}

#endif
