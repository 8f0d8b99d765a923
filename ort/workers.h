/* SPDX-License-Identifier: Apache-2.0 */
/* Whose threads and scratch a run uses. The runtime's parallel loop wants the run that asks for it,
 * so every run that is under way at the same time has a worker of its own: a context whose threads
 * are those of that run, and scratch that is kept for the next. */
#ifndef ORT_WORKERS_H
#define ORT_WORKERS_H

#include "settings.h"

#include <pthread.h>

struct worker {
    struct workers *all;
    struct worker *next;         /* Of those that wait. */
    const struct ort_run *run;   /* NULL: loops run on the calling thread. */
    qn_ctx *ctx;                 /* Its own, or the session's with a pool. */
    void *scratch;
    size_t scratch_bytes;
    void *codes;                 /* Of x, where floats are quantized in the run. */
    size_t codes_bytes;
};

struct workers {
    const struct ort_api *api;
    struct settings settings;
    pthread_mutex_t lock;
    struct worker *waiting;
    qn_ctx *pool;                /* threads > 0: of this provider, shared by its runs. */
};

struct ort_status *workers_init(struct workers *workers, const struct ort_api *api,
                                const struct settings *settings);
void workers_free(struct workers *workers);

struct ort_status *worker_take(struct workers *workers, const struct ort_run *run,
                               struct worker **worker);
void worker_return(struct worker *worker);
/* At least so many bytes at 64; what was in them is lost. NULL: there is no memory. */
void *worker_scratch(struct worker *worker, size_t bytes);
void *worker_codes(struct worker *worker, size_t bytes);

#endif
