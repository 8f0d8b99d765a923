/* SPDX-License-Identifier: Apache-2.0 */
/* Threads: one context, one plan and one weight in many threads at once; the caller's own
 * parallel-for in any order; the same bits whatever the number of threads. Under ThreadSanitizer
 * this is the test of what is shared. */
#include <pthread.h>

#include "api.h"

enum { M = 33, N = 80, K = 192, CALLERS = 4, ROUNDS = 12 };
static const struct shape shape = {.n = N, .k = K};

struct shared {
    qn_ctx *ctx;
    qn_packed *w;
    qn_plan *plan;
    float x[M * K], expected[M * N];
    qn_strategy strategy;
    size_t scratch_bytes;
};

static void args_of(const struct shared *s, float *y, qn_matmul_args *args)
{
    qn_matmul_args_init(args);
    args->w = s->w;
    args->strategy = s->strategy;
    args->x = qn_tensor_2d((void *)(uintptr_t)s->x, QN_F32, M, K);
    args->y = qn_tensor_2d(y, QN_F32, M, N);
}

static void shared_make(struct shared *s, qn_ctx *ctx, qn_strategy strategy)
{
    qn_matmul_args args;
    s->ctx = ctx;
    s->strategy = strategy;
    s->w = packed_make(ctx, "int4:g64:zp", shape, 4, NULL);
    fill_reals(s->x, M * K, 5);
    args_of(s, s->expected, &args);
    assert_ok(qn_matmul_plan(ctx, &args, &s->plan, NULL));
    s->scratch_bytes = qn_plan_scratch_bytes(s->plan);
    assert_ok(qn_ctx_reserve(ctx, s->scratch_bytes));
    assert_ok(qn_matmul(ctx, &args, NULL, 0));
}

static void shared_end(struct shared *s)
{
    qn_plan_destroy(s->plan);
    qn_packed_destroy(s->w);
    qn_ctx_destroy(s->ctx);
}

struct caller {
    const struct shared *shared;
    int number;
    int failed;
};

/* Caller 0 and 1 share the arena, the others bring scratch; odd ones plan anew, even ones share
 * the plan. */
static void *call(void *arg)
{
    struct caller *c = arg;
    const struct shared *s = c->shared;
    float *y = aligned_alloc(64, M * N * sizeof *y);
    void *scratch = c->number < 2 ? NULL : aligned_alloc(64, (s->scratch_bytes + 64) / 64 * 64);
    const size_t bytes = scratch == NULL ? 0 : s->scratch_bytes;
    for (int i = 0; i < ROUNDS; i++) {
        qn_matmul_args args;
        qn_plan *plan = NULL;
        args_of(s, y, &args);
        memset(y, 0, M * N * sizeof *y);
        qn_status status;
        if (c->number % 2 == 0) {
            status = qn_matmul_run(s->plan, &args, scratch, bytes);
        } else if (i % 2 == 0) {
            status = qn_matmul(s->ctx, &args, scratch, bytes);
        } else {
            status = qn_matmul_plan(s->ctx, &args, &plan, NULL);
            if (status == QN_OK)
                status = qn_matmul_run(plan, &args, scratch, bytes);
            qn_plan_destroy(plan);
        }
        c->failed |= status != QN_OK || memcmp(y, s->expected, M * N * sizeof *y) != 0;
    }
    free(y);
    free(scratch);
    return NULL;
}

static void check_callers(const struct shared *s)
{
    pthread_t threads[CALLERS];
    struct caller callers[CALLERS];
    for (int i = 0; i < CALLERS; i++) {
        callers[i] = (struct caller){.shared = s, .number = i};
        assert_int_equal(pthread_create(&threads[i], NULL, call, &callers[i]), 0);
    }
    for (int i = 0; i < CALLERS; i++)
        pthread_join(threads[i], NULL);
    for (int i = 0; i < CALLERS; i++)
        assert_int_equal(callers[i].failed, 0);
}

static const qn_strategy strategies[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                         QN_STRATEGY_INT8_BLOCK, QN_STRATEGY_DENSE};

/* Four callers on one context, whether it has a pool or not. */
static void test_one_context(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        for (int32_t threads = 1; threads <= 3; threads += 2) {
            struct shared s;
            shared_make(&s, ctx_make(threads), strategies[i]);
            check_callers(&s);
            shared_end(&s);
        }
    }
}

/* The arena grows while callers use it. */
static void *grow(void *arg)
{
    const struct shared *s = arg;
    for (size_t i = 1; i <= 8; i++)
        qn_ctx_reserve(s->ctx, s->scratch_bytes + i * 4096);
    return NULL;
}

static void test_growing_arena(void **state)
{
    (void)state;
    struct shared s;
    pthread_t grower;
    shared_make(&s, ctx_make(2), QN_STRATEGY_INT8_BLOCK);
    assert_int_equal(pthread_create(&grower, NULL, grow, &s), 0);
    check_callers(&s);
    pthread_join(grower, NULL);
    shared_end(&s);
}

/* -------------------------------------------------------------------- the caller's parallel-for */

struct foreign {
    int32_t forks, items;
};

static void serially(void *arg, int32_t n, qn_task_fn task, void *task_arg)
{
    struct foreign *f = arg;
    f->forks++;
    f->items += n;
    for (int32_t i = 0; i < n; i++)
        task(task_arg, i);
}

static void backwards(void *arg, int32_t n, qn_task_fn task, void *task_arg)
{
    struct foreign *f = arg;
    f->forks++;
    f->items += n;
    for (int32_t i = n - 1; i >= 0; i--)
        task(task_arg, i);
}

struct item {
    qn_task_fn task;
    void *task_arg;
    int32_t i;
};
static void *run_item(void *arg)
{
    const struct item *item = arg;
    item->task(item->task_arg, item->i);
    return NULL;
}
/* A thread for every item, all at once. */
static void all_at_once(void *arg, int32_t n, qn_task_fn task, void *task_arg)
{
    struct foreign *f = arg;
    f->forks++;
    f->items += n;
    pthread_t *threads = calloc((size_t)n, sizeof *threads);
    struct item *items = calloc((size_t)n, sizeof *items);
    for (int32_t i = 0; i < n; i++) {
        items[i] = (struct item){task, task_arg, i};
        if (pthread_create(&threads[i], NULL, run_item, &items[i]) != 0)
            abort();
    }
    for (int32_t i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
    free(threads);
    free(items);
}

static void test_parallel_for(void **state)
{
    (void)state;
    static const qn_parallel_for_fn fors[] = {serially, backwards, all_at_once};
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        struct shared single;
        shared_make(&single, ctx_make(1), strategies[i]);
        for (size_t f = 0; f < sizeof fors / sizeof *fors; f++) {
            struct foreign foreign = {0};
            qn_ctx_options o;
            qn_ctx *ctx;
            struct shared s;
            qn_ctx_options_init(&o);
            o.n_threads = 3;
            o.parallel_for = fors[f];
            o.parallel_arg = &foreign;
            assert_ok(qn_ctx_create(&o, &ctx, NULL));
            shared_make(&s, ctx, strategies[i]);
            assert_true(foreign.forks > 0 && foreign.items > foreign.forks);
            assert_memory_equal(s.expected, single.expected, sizeof s.expected);
            shared_end(&s);
        }
        shared_end(&single);
    }
}

/* Any number of threads, also more than there is work for: the same bits. */
static void test_same_bits(void **state)
{
    (void)state;
    static const int32_t counts[] = {2, 3, 7, 64};
    for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
        struct shared single;
        shared_make(&single, ctx_make(1), strategies[i]);
        for (size_t t = 0; t < sizeof counts / sizeof *counts; t++) {
            struct shared s;
            shared_make(&s, ctx_make(counts[t]), strategies[i]);
            assert_memory_equal(s.expected, single.expected, sizeof s.expected);
            shared_end(&s);
        }
        shared_end(&single);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_context),
        cmocka_unit_test(test_growing_arena),
        cmocka_unit_test(test_parallel_for),
        cmocka_unit_test(test_same_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
