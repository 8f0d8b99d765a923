/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: made from options, destroyed, asked; and the scratch arena that serves calls without
 * scratch of their own. One arena serves one call at a time: a second one waits for it. Nothing
 * else in a context changes after creation.
 *
 * A child of fork() has the arena, but not the thread that may have held it: it makes the lock
 * anew, before its first use of it. What the arena held then is scratch of a call that this process
 * does not make. */
#include <pthread.h>
#include <string.h>

#include "../base/cpus.h"
#include "../base/error.h"
#include "../base/origin.h"
#include "../base/sized.h"
#include "../cpu/cpuid.h"
#include "arena.h"
#include "backend.h"
#include "isa.h"

/* Everything below src/api sees the first member. */
struct context {
    struct qn_ctx base;
    pthread_mutex_t arena_lock;
    struct qni_origin origin; /* of arena_lock */
};

/* More is a mistake of the caller: scratch grows with every thread. */
enum { MAX_THREADS = 4096 };

static void renew_lock(void *arg)
{
    (void)pthread_mutex_init(arg, NULL);
}

static void lock_arena(struct context *c)
{
    if (qni_origin_is_past(&c->origin))
        qni_origin_renew(&c->origin, renew_lock, &c->arena_lock);
    pthread_mutex_lock(&c->arena_lock);
}

static qn_status check_options(const qn_ctx_options *o, qn_error *err)
{
    if (o->n_threads < 0 || o->n_threads > MAX_THREADS)
        return qni_fail(err, QN_E_ARGUMENT, "n_threads is %d: 0 (all) to %d is possible",
                        o->n_threads, MAX_THREADS);
    if ((o->alloc == NULL) != (o->free == NULL))
        return qni_fail(err, QN_E_ARGUMENT, "alloc and free go together: one of them is NULL");
    if (qni_backend_of(o->device.kind) == NULL && o->device.kind == QN_CUDA)
        return qni_fail(err, QN_E_DEVICE,
                        "this quern was built without CUDA: only the CPU is there");
    if (qni_backend_of(o->device.kind) == NULL)
        return qni_fail(err, QN_E_DEVICE, "device kind %d is neither QN_CPU nor QN_CUDA",
                        o->device.kind);
    return QN_OK;
}

/* Scratch is where the context's work is done. */
static void *get_memory(const qn_ctx *ctx, size_t bytes)
{
    const struct qni_backend *backend = qni_backend_of(ctx->device.kind);
    void *memory = NULL;
    if (backend->device == NULL)
        return qni_alloc(&ctx->allocator, bytes);
    return backend->device->alloc(ctx, bytes, &memory, NULL) == QN_OK ? memory : NULL;
}

static void free_memory(const qn_ctx *ctx, void *memory, size_t bytes)
{
    const struct qni_backend *backend = qni_backend_of(ctx->device.kind);
    if (backend->device == NULL)
        qni_free(&ctx->allocator, memory, bytes);
    else
        (void)backend->device->free(ctx->device.index, memory);
}

static qn_status start_threads(const qn_ctx_options *o, struct qn_ctx *ctx, qn_error *err)
{
    struct qni_threads *threads = &ctx->threads;
    threads->n_threads = o->n_threads > 0 ? o->n_threads : qni_threads_available();
    threads->parallel_for = o->parallel_for;
    threads->parallel_arg = o->parallel_arg;
    if (threads->parallel_for != NULL || threads->n_threads == 1)
        return QN_OK;
    return qni_pool_create(&ctx->allocator, threads->n_threads, &threads->pool, err);
}

qn_status qn_ctx_create(const qn_ctx_options *options, qn_ctx **ctx, qn_error *err)
{
    qn_ctx_options o;
    qn_ctx_options_init(&o);
    if (ctx == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "ctx is NULL: there is no place for the result");
    if (options != NULL)
        QNI_TRY(qni_sized_read(&o, sizeof o, options, err));
    QNI_TRY(check_options(&o, err));

    struct qni_allocator allocator = qni_allocator_default();
    if (o.alloc != NULL)
        allocator = (struct qni_allocator){.alloc = o.alloc, .free = o.free, .arg = o.alloc_arg};
    struct context *c = qni_alloc_zero(&allocator, sizeof *c);
    if (c == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for a context");
    if (!qni_origin_make(&c->origin, &allocator) ||
        pthread_mutex_init(&c->arena_lock, NULL) != 0) {
        qni_origin_end(&c->origin, &allocator);
        qni_free(&allocator, c, sizeof *c);
        return qni_fail(err, QN_E_MEMORY, "no memory for a context and its lock");
    }
    c->base.allocator = allocator;
    c->base.device = o.device;
    c->base.isa = qni_isa_usable(qn_isa_detect() & o.isa_mask);
    c->base.bf16_is_fast = qni_cpuid_bf16_is_fast();
    c->base.log = o.log;
    c->base.log_arg = o.log_arg;
    qn_status status = qni_backend_of(o.device.kind)->attach(&c->base, err);
    if (status == QN_OK)
        status = start_threads(&o, &c->base, err);
    if (status == QN_OK && qn_ctx_reserve(&c->base, o.arena_bytes) != QN_OK)
        status = qni_fail(err, QN_E_MEMORY, "no memory for an arena of %zu bytes", o.arena_bytes);
    if (status != QN_OK) {
        qn_ctx_destroy(&c->base);
        return status;
    }
    *ctx = &c->base;
    return QN_OK;
}

void qn_ctx_destroy(qn_ctx *ctx)
{
    if (ctx == NULL)
        return;
    struct context *c = (struct context *)ctx;
    const struct qni_allocator allocator = ctx->allocator;
    qni_pool_destroy(ctx->threads.pool);
    free_memory(ctx, ctx->arena, ctx->arena_bytes);
    qni_free(&allocator, ctx->cost_times, ctx->cost_bytes);
    if (qni_backend_of(ctx->device.kind)->detach != NULL)
        qni_backend_of(ctx->device.kind)->detach(ctx);
    if (!qni_origin_is_past(&c->origin)) /* else nobody knows what state it is in */
        pthread_mutex_destroy(&c->arena_lock);
    qni_origin_end(&c->origin, &allocator);
    qni_free(&allocator, c, sizeof *c);
}

qn_status qn_ctx_reserve(qn_ctx *ctx, size_t bytes)
{
    if (ctx == NULL)
        return QN_E_ARGUMENT;
    struct context *c = (struct context *)ctx;
    qn_status status = QN_OK;
    lock_arena(c);
    if (bytes > ctx->arena_bytes) {
        void *arena = bytes <= PTRDIFF_MAX ? get_memory(ctx, bytes) : NULL;
        if (arena != NULL) { /* at no moment one that is gone: a fork may come in between */
            void *const old = ctx->arena;
            const size_t old_bytes = ctx->arena_bytes;
            ctx->arena = arena;
            ctx->arena_bytes = bytes;
            free_memory(ctx, old, old_bytes);
        } else {
            status = QN_E_MEMORY;
        }
    }
    pthread_mutex_unlock(&c->arena_lock);
    return status;
}

void *qni_arena_take(const qn_ctx *ctx, size_t bytes)
{
    struct context *c = (struct context *)ctx; /* the lock is the one thing in it that changes */
    lock_arena(c);
    if (ctx->arena_bytes >= bytes && ctx->arena != NULL)
        return ctx->arena;
    pthread_mutex_unlock(&c->arena_lock);
    return NULL;
}

void qni_arena_give(const qn_ctx *ctx)
{
    pthread_mutex_unlock(&((struct context *)ctx)->arena_lock);
}

qn_status qn_parallel_for(const qn_ctx *ctx, int32_t n, qn_task_fn task, void *arg)
{
    if (ctx == NULL || task == NULL)
        return QN_E_ARGUMENT;
    if (n > 0)
        qni_parallel(&ctx->threads, n, task, arg);
    return QN_OK;
}

qn_status qn_ctx_query(const qn_ctx *ctx, qn_ctx_info *info)
{
    if (ctx == NULL)
        return QN_E_ARGUMENT;
    struct context *c = (struct context *)ctx;
    qn_ctx_info own;
    qn_ctx_info_init(&own);
    own.device = ctx->device;
    own.isa = ctx->isa;
    own.n_threads = ctx->threads.n_threads;
    lock_arena(c);
    own.arena_bytes = ctx->arena_bytes;
    pthread_mutex_unlock(&c->arena_lock);
    memcpy(own.cache_bytes, ctx->cache_bytes, sizeof own.cache_bytes);
    return qni_sized_write(info, &own, sizeof own);
}
