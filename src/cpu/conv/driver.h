/* SPDX-License-Identifier: Apache-2.0 */
/* The driver of all convolutions (conv.c): what the algorithms share of a run, how its items go to
 * threads, and which results a kernel may store as bytes itself. An algorithm cuts the work
 * (cut.h), brings the rows of x that its kernel reads, and calls it. */
#ifndef QNI_CPU_CONV_DRIVER_H
#define QNI_CPU_CONV_DRIVER_H

#include <stdatomic.h>

#include "../rows/epilogue.h"
#include "conv.h"
#include "patches.h"

struct qni_conv_worker;
/* The work of a thread: takes items until there are none. arg: the algorithm's own. */
typedef void qni_conv_thread_fn(void *arg, struct qni_conv_worker *worker);

/* What all threads of a run read. */
struct qni_conv_run {
    const qn_ctx *ctx;
    const struct qni_op *op;
    const struct qni_conv_kernel *kernel, *stand_in; /* stand_in: cut.h */
    const struct qni_conv_cut *cut;
    const struct qni_rows *rows;
    struct qni_patches patches; /* of all taps and outputs of the first phase */
    struct qni_epilogue epilogue;
    uint8_t *shared; /* scratch of all threads; that of each lies behind it */
    size_t shared_bytes, thread_bytes;
    int32_t n_threads;
    /* Of qni_conv_share(). */
    int64_t n_items, owned; /* owned: items of each worker that nobody else takes */
    atomic_llong next;      /* of the others */
    qni_conv_thread_fn *thread;
    void *arg;
};

struct qni_conv_worker {
    struct qni_conv_run *run;
    uint8_t *memory; /* scratch of this thread */
    int64_t at, end; /* items of its own that are to do */
};

/* Items [0, n_items) by all threads, each by whoever is free. Or, has_owners: most of them by an
 * owner, the same in every call, whose caches may hold their part of x, y and weights. */
void qni_conv_share(struct qni_conv_run *run, int64_t n_items, bool has_owners,
                    qni_conv_thread_fn *thread, void *arg);

/* The next item of a worker, of rising number; false: there are no more. */
static inline bool qni_conv_next(struct qni_conv_worker *worker, int64_t *item)
{
    if (worker->at < worker->end) {
        *item = worker->at++;
        return true;
    }
    *item = (int64_t)atomic_fetch_add(&worker->run->next, 1);
    return *item < worker->run->n_items;
}

/* May a kernel store bytes itself: scale, bias of f32 and relu at most, to channels that lie
 * together or that are turned afterwards? is_raw: sums leave the kernel as they are. */
bool qni_conv_stores_bytes(const struct qni_conv_run *run, bool is_raw);

/* Is every code of n outputs bounded: no result times y_inv is a NaN or beyond +-2^21? Sums are no
 * more than 255 * 128 * k; sum_bias is added to them, bias and what is no more than most_bias to
 * the scaled sums. bias and sum_bias may be NULL. */
bool qni_conv_is_bounded(const struct qni_conv_run *run, const float *scale, const float *bias,
                         const int32_t *sum_bias, float most_bias, int64_t n);

#endif
