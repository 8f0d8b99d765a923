/* SPDX-License-Identifier: Apache-2.0 */
/* fork() at any moment: the child's calls come back, with the right results, whatever other threads
 * of the parent held; the parent goes on. */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api.h"

enum { M = 9, N = 64, K = 128, HAMMERS = 3, FORKS = 300, PATIENCE = 60 };
static const struct shape shape = {.n = N, .k = K};

struct scene {
    qn_ctx *ctx;
    qn_packed *w;
    float x[M * K], expected[M * N];
    atomic_bool stop, holds, go_on;
    atomic_int failed, calls;
};

static qn_matmul_args product_of(struct scene *s, float *y)
{
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.w = s->w;
    args.strategy = QN_STRATEGY_INT8_BLOCK;
    args.x = qn_tensor_2d(s->x, QN_F32, M, K);
    args.y = qn_tensor_2d(y, QN_F32, M, N);
    return args;
}

static bool is_right(struct scene *s)
{
    float y[M * N];
    memset(y, 0, sizeof y);
    const qn_matmul_args args = product_of(s, y);
    return qn_matmul(s->ctx, &args, NULL, 0) == QN_OK && memcmp(y, s->expected, sizeof y) == 0;
}

static void scene_make(struct scene *s, qn_ctx *ctx)
{
    memset(s, 0, sizeof *s);
    s->ctx = ctx;
    s->w = packed_make(ctx, "int4:g32", shape, 4, NULL);
    fill_reals(s->x, M * K, 5);
    const qn_matmul_args args = product_of(s, s->expected);
    assert_ok(matmul_in_arena(ctx, &args));
}

/* Everything that takes a lock of the context; then its end. No cmocka in a child. */
static void live_as_child(struct scene *s)
{
    qn_ctx_info info;
    qn_ctx_info_init(&info);
    alarm(PATIENCE); /* SIGALRM ends a child that hangs */
    int bad = !is_right(s);
    bad |= qn_ctx_query(s->ctx, &info) != QN_OK;
    bad |= qn_ctx_reserve(s->ctx, info.arena_bytes + 4096) != QN_OK;
    bad |= !is_right(s);
    qn_packed_destroy(s->w);
    qn_ctx_destroy(s->ctx);
    _exit(bad ? 1 : 0);
}

static void expect_good(pid_t child)
{
    int status = 0;
    assert_true(child > 0);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (WIFSIGNALED(status))
        fail_msg("the child hung or died: signal %d", WTERMSIG(status));
    assert_int_equal(WEXITSTATUS(status), 0);
}

/* --------------------------------------------------------------------- the arena is surely held */

/* A parallel-for that stops in the middle of a call of another thread, until it may go on. */
static void stop_there(void *arg, int32_t n, qn_task_fn task, void *task_arg)
{
    struct scene *s = arg;
    const struct timespec nap = {0, 1000000};
    if (atomic_load(&s->stop)) {
        atomic_store(&s->holds, true);
        while (!atomic_load(&s->go_on))
            nanosleep(&nap, NULL);
    }
    for (int32_t i = 0; i < n; i++)
        task(task_arg, i);
}

static void *call_once(void *arg)
{
    struct scene *s = arg;
    if (!is_right(s))
        atomic_fetch_add(&s->failed, 1);
    return NULL;
}

static void *call_in_child(void *arg)
{
    struct scene *s = arg;
    for (int i = 0; i < 20; i++)
        if (!is_right(s))
            atomic_fetch_add(&s->failed, 1);
    return NULL;
}

/* A child has threads of its own, too, and children of its own. */
static void live_as_parent(struct scene *s)
{
    pthread_t threads[HAMMERS];
    int status = 0;
    alarm(PATIENCE);
    for (int i = 0; i < HAMMERS; i++)
        if (pthread_create(&threads[i], NULL, call_in_child, s) != 0)
            _exit(2);
    const pid_t child = fork();
    if (child == 0)
        live_as_child(s);
    for (int i = 0; i < HAMMERS; i++)
        pthread_join(threads[i], NULL);
    if (child < 0 || waitpid(child, &status, 0) != child || status != 0)
        _exit(3);
    _exit(atomic_load(&s->failed) == 0 ? 0 : 4);
}

static void test_held_arena(void **state)
{
    (void)state;
    static struct scene s;
    qn_ctx_options o;
    qn_ctx *ctx = NULL;
    pthread_t holder;
    qn_ctx_options_init(&o);
    o.n_threads = 2;
    o.parallel_for = stop_there;
    o.parallel_arg = &s;
    assert_ok(qn_ctx_create(&o, &ctx, NULL));
    scene_make(&s, ctx);
    atomic_store(&s.stop, true);
    assert_int_equal(pthread_create(&holder, NULL, call_once, &s), 0);
    const struct timespec nap = {0, 1000000};
    while (!atomic_load(&s.holds))
        nanosleep(&nap, NULL);
    for (int with_threads = 0; with_threads < 2; with_threads++) {
        const pid_t child = fork();
        if (child == 0) {
            atomic_store(&s.stop, false);
            if (with_threads)
                live_as_parent(&s);
            live_as_child(&s);
        }
        expect_good(child);
    }
    atomic_store(&s.go_on, true);
    pthread_join(holder, NULL);
    assert_int_equal(atomic_load(&s.failed), 0);
    atomic_store(&s.stop, false);
    assert_true(is_right(&s));
    qn_packed_destroy(s.w);
    qn_ctx_destroy(s.ctx);
}

/* --------------------------------------------------------------------------------- many moments */

static void *hammer(void *arg)
{
    struct scene *s = arg;
    while (!atomic_load(&s->stop)) {
        if (!is_right(s))
            atomic_fetch_add(&s->failed, 1);
        atomic_fetch_add(&s->calls, 1);
    }
    return NULL;
}

static void test_many_forks(void **state)
{
    (void)state;
    for (int32_t n_threads = 1; n_threads <= 3; n_threads += 2) {
        static struct scene s;
        pthread_t threads[HAMMERS];
        scene_make(&s, ctx_make(n_threads));
        for (int i = 0; i < HAMMERS; i++)
            assert_int_equal(pthread_create(&threads[i], NULL, hammer, &s), 0);
        while (atomic_load(&s.calls) < HAMMERS)
            usleep(1000);
        for (int f = 0; f < FORKS; f++) {
            const pid_t child = fork();
            if (child == 0)
                live_as_child(&s);
            expect_good(child);
        }
        atomic_store(&s.stop, true);
        for (int i = 0; i < HAMMERS; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(atomic_load(&s.failed), 0);
        qn_packed_destroy(s.w);
        qn_ctx_destroy(s.ctx);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_held_arena),
        cmocka_unit_test(test_many_forks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
