/* SPDX-License-Identifier: Apache-2.0 */
/* Workers are made when more runs are under way than ever before, and kept. */
#include "workers.h"

#include <stdlib.h>
#include <string.h>

struct loop {
    qn_task_fn task;
    void *arg;
};

static void one_item(void *arg, size_t i)
{
    const struct loop *loop = arg;
    loop->task(loop->arg, (int32_t)i);
}

/* Runs quern's parallel loop on the runtime's own threads. */
static void on_session_threads(void *arg, int32_t n, qn_task_fn task, void *task_arg)
{
    const struct worker *worker = arg;
    const struct ort_api *api = worker->all->api;
    struct loop loop = {task, task_arg};
    if (n > 1 && worker->run != NULL &&
        runtime_ok(api, api->parallel_for(worker->run, one_item, (size_t)n, 0, &loop)))
        return;
    for (int32_t i = 0; i < n; i++)
        task(task_arg, i);
}

struct ort_status *workers_init(struct workers *w, const struct ort_api *api,
                                const struct settings *settings)
{
    memset(w, 0, sizeof *w);
    w->api = api;
    w->settings = *settings;
    if (settings->threads > 0) {
        qn_error error = {0};
        qn_ctx_options options;
        qn_ctx_options_init(&options);
        options.n_threads = settings->threads;
        ORT_TRY(runtime_check(api, "option threads", qn_ctx_create(&options, &w->pool, &error),
                              &error));
    }
    if (pthread_mutex_init(&w->lock, NULL) != 0) {
        qn_ctx_destroy(w->pool);
        return runtime_no_memory(api);
    }
    return NULL;
}

void workers_free(struct workers *w)
{
    while (w->waiting != NULL) {
        struct worker *worker = w->waiting;
        w->waiting = worker->next;
        if (worker->ctx != w->pool)
            qn_ctx_destroy(worker->ctx);
        free(worker->scratch);
        free(worker->codes);
        free(worker);
    }
    qn_ctx_destroy(w->pool);
    pthread_mutex_destroy(&w->lock);
}

static struct ort_status *worker_make(struct workers *w, struct worker **made)
{
    qn_error error = {0};
    struct worker *worker = calloc(1, sizeof *worker);
    if (worker == NULL)
        return runtime_no_memory(w->api);
    worker->all = w;
    worker->ctx = w->pool;
    if (w->pool == NULL) {
        qn_ctx_options options;
        qn_ctx_options_init(&options);
        options.n_threads = w->settings.cut;
        options.parallel_for = on_session_threads;
        options.parallel_arg = worker;
        qn_status status = qn_ctx_create(&options, &worker->ctx, &error);
        if (status != QN_OK) {
            free(worker);
            return runtime_check(w->api, "a context", status, &error);
        }
    }
    *made = worker;
    return NULL;
}

struct ort_status *worker_take(struct workers *w, const struct ort_run *run, struct worker **taken)
{
    pthread_mutex_lock(&w->lock);
    struct worker *worker = w->waiting;
    if (worker != NULL)
        w->waiting = worker->next;
    pthread_mutex_unlock(&w->lock);
    if (worker == NULL)
        ORT_TRY(worker_make(w, &worker));
    worker->run = run;
    *taken = worker;
    return NULL;
}

void worker_return(struct worker *worker)
{
    struct workers *w = worker->all;
    worker->run = NULL;
    pthread_mutex_lock(&w->lock);
    worker->next = w->waiting;
    w->waiting = worker;
    pthread_mutex_unlock(&w->lock);
}

static void *at_least(void **memory, size_t *have, size_t bytes)
{
    if (bytes > *have) {
        size_t rounded = (bytes + 4095) & ~(size_t)4095;
        free(*memory);
        *memory = aligned_alloc(64, rounded);
        *have = *memory != NULL ? rounded : 0;
    }
    return *memory;
}

void *worker_scratch(struct worker *worker, size_t bytes)
{
    return at_least(&worker->scratch, &worker->scratch_bytes, bytes);
}

void *worker_codes(struct worker *worker, size_t bytes)
{
    return at_least(&worker->codes, &worker->codes_bytes, bytes);
}
