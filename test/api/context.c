/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts: options, memory, threads, and what a context says about itself. */
#define _POSIX_C_SOURCE 200809L

#include <dirent.h>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include <quern/cuda.h>

#include "api.h"

/* Sanitizers end the program over a size that no machine has, unless they are told not to. */
const char *__asan_default_options(void);
const char *__tsan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}
const char *__tsan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void test_defaults(void **state)
{
    (void)state;
    qn_ctx *ctx = NULL;
    qn_ctx_info info;
    assert_ok(qn_ctx_create(NULL, &ctx, NULL));
    qn_ctx_info_init(&info);
    assert_ok(qn_ctx_query(ctx, &info));
    assert_int_equal(info.size, sizeof info);
    assert_int_equal(info.device.kind, QN_CPU);
    assert_int_equal(info.device.index, 0);
    assert_true(info.isa == qn_isa_detect());
    assert_true(info.n_threads >= 1 && info.n_threads <= sysconf(_SC_NPROCESSORS_CONF));
    assert_int_equal(info.arena_bytes, 0);
    qn_ctx_destroy(ctx);
    qn_ctx_destroy(NULL);
}

static void test_bad_options(void **state)
{
    (void)state;
    qn_ctx *const nothing = NULL;
    qn_ctx *ctx = nothing;
    qn_ctx_options o;
    qn_ctx_options_init(&o);
    assert_error(qn_ctx_create(&o, NULL, &err), QN_E_ARGUMENT, "ctx is NULL");
    o.n_threads = -1;
    assert_error(qn_ctx_create(&o, &ctx, &err), QN_E_ARGUMENT, "n_threads is -1");
    o.n_threads = 1000000;
    assert_error(qn_ctx_create(&o, &ctx, &err), QN_E_ARGUMENT, "n_threads");
    qn_ctx_options_init(&o);
    o.alloc = counted_alloc;
    assert_error(qn_ctx_create(&o, &ctx, &err), QN_E_ARGUMENT, "alloc and free");
    qn_ctx_options_init(&o);
    o.free = counted_free;
    assert_error(qn_ctx_create(&o, &ctx, &err), QN_E_ARGUMENT, "alloc and free");
    qn_ctx_options_init(&o);
    o.device.kind = 77;
    assert_error(qn_ctx_create(&o, &ctx, &err), QN_E_DEVICE, "77");
    qn_ctx_options_init(&o);
    o.device.index = 1;
    assert_error(qn_ctx_create(&o, &ctx, &err), QN_E_DEVICE, "one CPU");
    qn_ctx_options_init(&o);
    o.arena_bytes = SIZE_MAX;
    assert_error(qn_ctx_create(&o, &ctx, &err), QN_E_MEMORY, "arena");
    o.arena_bytes = SIZE_MAX / 2 - 4096;
    assert_error(qn_ctx_create(&o, &ctx, &err), QN_E_MEMORY, "arena");
    assert_ptr_equal(ctx, nothing);
}

/* CUDA that is not there says so; it neither crashes nor turns into the CPU. */
static void test_absent_cuda(void **state)
{
    (void)state;
    qn_ctx *ctx = NULL;
    qn_ctx_options o;
    qn_ctx_options_init(&o);
    o.device.kind = QN_CUDA;
    o.device.index = 63;
    assert_error(qn_ctx_create(&o, &ctx, &err), QN_E_DEVICE, "CUDA");
    assert_null(ctx);
}

/* Constants of the GPU's cost model are none of the CPU's, and NULL is none of anybody's. */
static void test_costs(void **state)
{
    (void)state;
    qn_ctx *ctx = NULL;
    qn_cuda_cost cost;
    qn_cuda_prediction prediction;
    int32_t gpus = 0;
    qn_error first = {0};
    const bool built =
        qn_cuda_device_count(&gpus, &first) == QN_OK || strstr(first.text, "without CUDA") == NULL;
    const qn_status status = built ? QN_E_ARGUMENT : QN_E_DEVICE;
    const char *why = built ? "CPU" : "without CUDA";
    qn_cuda_cost_init(&cost);
    qn_cuda_prediction_init(&prediction);
    assert_ok(qn_ctx_create(NULL, &ctx, NULL));
    assert_error(qn_cuda_get_cost(ctx, 0, &cost, &err), status, why);
    assert_error(qn_cuda_set_cost(ctx, &cost, &err), status, why);
    assert_error(qn_cuda_get_cost(ctx, 0, NULL, &err), QN_E_ARGUMENT, "cost is NULL");
    assert_status(qn_cuda_get_cost(NULL, 0, &cost, NULL), status);
    assert_status(qn_cuda_set_cost(NULL, &cost, NULL), status);
    cost.size = 0;
    assert_error(qn_cuda_get_cost(ctx, 0, &cost, &err), QN_E_ARGUMENT, "size unset");
    assert_status(qn_cuda_predict(NULL, &prediction), QN_E_ARGUMENT);
    qn_ctx_destroy(ctx);
}

/* Constants of the CPU's model: a line that is set counts in predictions, in the choice and in the
 * explanation of a plan; what does not fit is refused by name. Portable C has the same lines
 * everywhere. */
static void test_cpu_costs(void **state)
{
    (void)state;
    enum { ROWS = 4, OUTPUTS = 64, COLUMNS = 128 };
    const char *const row = "qni_matmul_f32_q4n16_mr3_scalar";
    const struct shape shape = {.n = OUTPUTS, .k = COLUMNS, .kh = 1, .kw = 1, .groups = 1};
    qn_ctx_options o;
    qn_ctx *ctx = NULL;
    qn_cpu_cost cost;
    static float x[ROWS * COLUMNS], y[ROWS * OUTPUTS];
    char text[8192];
    double us[2] = {0, 0};
    qn_ctx_options_init(&o);
    o.n_threads = 1;
    o.isa_mask = QN_ISA_PORTABLE;
    assert_ok(qn_ctx_create(&o, &ctx, NULL));
    qn_cpu_cost_init(&cost);
    assert_ok(qn_cpu_get_cost(ctx, 0, &cost, NULL));
    assert_string_equal(cost.kernel, "memory");
    assert_true(cost.times == 1.0 && !cost.is_given);
    int32_t n = 0, found = 0;
    for (; qn_cpu_get_cost(ctx, n, &cost, NULL) == QN_OK; n++)
        found += strcmp(cost.kernel, row) == 0;
    assert_true(n > 1 && found == 1);
    assert_error(qn_cpu_get_cost(ctx, n, &cost, &err), QN_E_NOT_FOUND, "no line");
    assert_error(qn_cpu_get_cost(ctx, -1, &cost, &err), QN_E_NOT_FOUND, "no line");

    qn_packed *w = packed_make(ctx, "int4:g32", shape, 4, NULL);
    qn_matmul_args args;
    qn_matmul_args_init(&args);
    args.w = w;
    args.x = qn_tensor_2d(x, QN_F32, ROWS, COLUMNS);
    args.y = qn_tensor_2d(y, QN_F32, ROWS, OUTPUTS);
    args.strategy = QN_STRATEGY_FLOAT;
    for (int32_t i = 0; i < 2; i++) {
        qn_plan *plan = NULL;
        assert_ok(qn_matmul_plan(ctx, &args, &plan, NULL));
        assert_ok(qn_cpu_predict(plan, &us[i]));
        assert_status(qn_cpu_predict(plan, NULL), QN_E_ARGUMENT);
        qn_plan_explain(plan, text, sizeof text);
        assert_true((strstr(text, "50.00 times the library's") != NULL) == (i == 1));
        qn_plan_destroy(plan);
        snprintf(cost.kernel, sizeof cost.kernel, "%s", row);
        cost.times = 50;
        assert_ok(qn_cpu_set_cost(ctx, &cost, NULL));
    }
    assert_true(us[0] > 1 && us[1] - 1 > 40 * (us[0] - 1) && us[1] - 1 < 60 * (us[0] - 1));

    const double bad[] = {0, 0.001, -1, 101, (double)NAN, (double)INFINITY};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        cost.times = bad[i];
        assert_error(qn_cpu_set_cost(ctx, &cost, &err), QN_E_VALUE, "times");
    }
    cost.times = 1;
    snprintf(cost.kernel, sizeof cost.kernel, "%s", "qni_matmul_gone");
    assert_error(qn_cpu_set_cost(ctx, &cost, &err), QN_E_NOT_FOUND, "qni_matmul_gone");
    memset(cost.kernel, 'x', sizeof cost.kernel);
    assert_error(qn_cpu_set_cost(ctx, &cost, &err), QN_E_NOT_FOUND, "does not end");
    assert_error(qn_cpu_set_cost(NULL, &cost, &err), QN_E_ARGUMENT, "ctx");
    assert_error(qn_cpu_set_cost(ctx, NULL, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_cpu_get_cost(ctx, 0, NULL, &err), QN_E_ARGUMENT, "cost is NULL");
    assert_error(qn_cpu_get_cost(NULL, 0, &cost, &err), QN_E_ARGUMENT, "ctx");
    assert_status(qn_cpu_predict(NULL, us), QN_E_ARGUMENT);
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
}

static void test_sizes(void **state)
{
    (void)state;
    qn_ctx *ctx = NULL;
    struct {
        qn_ctx_options options;
        uint64_t future[2];
    } o = {.future = {0, 0}};
    qn_ctx_options_init(&o.options);
    o.options.n_threads = 1;
    o.options.size = 0;
    assert_error(qn_ctx_create(&o.options, &ctx, &err), QN_E_ARGUMENT, "_init()");
    o.options.size = 12;
    assert_error(qn_ctx_create(&o.options, &ctx, &err), QN_E_ARGUMENT, "size is 12");
    o.options.size = sizeof o;
    assert_ok(qn_ctx_create(&o.options, &ctx, NULL));
    qn_ctx_destroy(ctx);
    o.future[1] = 1;
    assert_error(qn_ctx_create(&o.options, &ctx, &err), QN_E_VERSION, "field");
    /* A caller from before the arena existed. */
    o.options.size = offsetof(qn_ctx_options, arena_bytes);
    o.options.arena_bytes = 12345;
    assert_ok(qn_ctx_create(&o.options, &ctx, NULL));
    struct {
        qn_ctx_info info;
        uint64_t future;
    } info = {.future = 99};
    qn_ctx_info_init(&info.info);
    assert_ok(qn_ctx_query(ctx, &info.info));
    assert_int_equal(info.info.arena_bytes, 0);
    assert_int_equal(info.future, 99);
    info.info.size = offsetof(qn_ctx_info, n_threads);
    info.info.n_threads = -5;
    info.info.isa = ~(uint64_t)0;
    assert_ok(qn_ctx_query(ctx, &info.info));
    assert_int_equal(info.info.n_threads, -5);
    assert_true(info.info.isa == qn_isa_detect());
    info.info.size = 0;
    assert_status(qn_ctx_query(ctx, &info.info), QN_E_ARGUMENT);
    assert_status(qn_ctx_query(ctx, NULL), QN_E_ARGUMENT);
    assert_status(qn_ctx_query(NULL, &info.info), QN_E_ARGUMENT);
    qn_ctx_destroy(ctx);
}

static void test_reserve(void **state)
{
    (void)state;
    struct counter counter = {0};
    qn_ctx_options o;
    qn_ctx *ctx = NULL;
    qn_ctx_info info;
    options_counted(&o, &counter);
    o.n_threads = 1;
    o.arena_bytes = 1000;
    assert_ok(qn_ctx_create(&o, &ctx, NULL));
    qn_ctx_info_init(&info);
    assert_ok(qn_ctx_reserve(ctx, 10));
    assert_ok(qn_ctx_query(ctx, &info));
    assert_int_equal(info.arena_bytes, 1000);
    assert_ok(qn_ctx_reserve(ctx, 5000));
    counter.refuse = counter.calls + 1;
    assert_status(qn_ctx_reserve(ctx, 6000), QN_E_MEMORY);
    assert_status(qn_ctx_reserve(ctx, SIZE_MAX), QN_E_MEMORY);
    assert_ok(qn_ctx_query(ctx, &info));
    assert_int_equal(info.arena_bytes, 5000);
    assert_status(qn_ctx_reserve(NULL, 1), QN_E_ARGUMENT);
    qn_ctx_destroy(ctx);
    assert_int_equal(counter.live, 0);
}

/* Each allocation of a creation refused in turn: a clear status, and nothing stays behind. */
static void test_memory(void **state)
{
    (void)state;
    for (int64_t refuse = 1;; refuse++) {
        struct counter counter = {.refuse = refuse};
        qn_ctx_options o;
        qn_ctx *ctx = NULL;
        qn_error err = {0};
        options_counted(&o, &counter);
        o.n_threads = 3;
        o.arena_bytes = 4096;
        const qn_status status = qn_ctx_create(&o, &ctx, &err);
        if (status == QN_OK) {
            assert_true(counter.calls < refuse && refuse > 2);
            assert_true(counter.live > 0);
            qn_ctx_destroy(ctx);
            assert_int_equal(counter.live, 0);
            return;
        }
        assert_int_equal(status, QN_E_MEMORY);
        assert_int_equal(err.status, QN_E_MEMORY);
        assert_true(strlen(err.text) > 0);
        assert_null(ctx);
        assert_int_equal(counter.live, 0);
    }
}

static int count_threads(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/task");
    assert_non_null(dir);
    for (struct dirent *entry = readdir(dir); entry != NULL; entry = readdir(dir))
        n += entry->d_name[0] != '.';
    closedir(dir);
    return n;
}

/* The number once it is the expected one: the system lists a thread for a moment after it was
 * joined. */
static int settled_threads(int expected)
{
    enum { TRIES = 2000 };
    const struct timespec millisecond = {0, 1000000};
    int n = count_threads();
    for (int i = 0; i < TRIES && n != expected; i++) {
        nanosleep(&millisecond, NULL);
        n = count_threads();
    }
    return n;
}

static void unused_parallel_for(void *arg, int32_t n, qn_task_fn task, void *task_arg)
{
    (void)arg;
    for (int32_t i = 0; i < n; i++)
        task(task_arg, i);
}

/* One thread, or the caller's: none is made. More: as many as were asked for, gone with the
 * context. */
static void test_threads(void **state)
{
    (void)state;
    const int before = settled_threads(1); /* sanitizers may have one of their own */
    qn_ctx *ctx = ctx_make(1);
    assert_int_equal(count_threads(), before);
    qn_ctx_destroy(ctx);
    ctx = ctx_make(4);
    assert_int_equal(settled_threads(before + 3), before + 3);
    qn_ctx_info info;
    qn_ctx_info_init(&info);
    assert_ok(qn_ctx_query(ctx, &info));
    assert_int_equal(info.n_threads, 4);
    qn_ctx_destroy(ctx);
    assert_int_equal(settled_threads(before), before);
    qn_ctx_options o;
    qn_ctx_options_init(&o);
    o.n_threads = 4;
    o.parallel_for = unused_parallel_for;
    assert_ok(qn_ctx_create(&o, &ctx, NULL));
    assert_int_equal(settled_threads(before), before);
    assert_ok(qn_ctx_query(ctx, &info));
    assert_int_equal(info.n_threads, 4);
    qn_ctx_destroy(ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults),    cmocka_unit_test(test_bad_options),
        cmocka_unit_test(test_absent_cuda), cmocka_unit_test(test_costs),
        cmocka_unit_test(test_sizes),       cmocka_unit_test(test_reserve),
        cmocka_unit_test(test_memory),      cmocka_unit_test(test_threads),
        cmocka_unit_test(test_cpu_costs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
