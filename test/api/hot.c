/* SPDX-License-Identifier: Apache-2.0 */
/* Runs and direct calls allocate nothing: neither through the context's allocator nor behind its
 * back from the C library. The program's own malloc family is replaced and counts; under a
 * sanitizer, which has replaced it already, the sanitizer's hooks count. */
#include <errno.h>
#include <stdatomic.h>

#include "api.h"

static atomic_llong n_hidden;

/* Which of three ways to see allocations there is; the third is for ThreadSanitizer, which does not
 * hook all of them: there only the context's allocator counts. */
#define REPLACED 1
#define HOOKED   2
#define UNSEEN   3
#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define SEEN HOOKED
#elif __has_feature(thread_sanitizer)
#define SEEN UNSEEN
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define SEEN HOOKED
#elif defined(__SANITIZE_THREAD__)
#define SEEN UNSEEN
#endif
#if !defined(SEEN) && defined(__GLIBC__)
#define SEEN REPLACED
#elif !defined(SEEN)
#define SEEN UNSEEN
#endif

#if SEEN == HOOKED
int __sanitizer_install_malloc_and_free_hooks(void (*malloc_hook)(const volatile void *, size_t),
                                              void (*free_hook)(const volatile void *));
static void on_malloc(const volatile void *memory, size_t bytes)
{
    (void)memory;
    (void)bytes;
    atomic_fetch_add(&n_hidden, 1);
}
static void on_free(const volatile void *memory)
{
    (void)memory;
}
static void count_hidden(void)
{
    assert_true(__sanitizer_install_malloc_and_free_hooks(on_malloc, on_free) > 0);
}
#elif SEEN == REPLACED
void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t bytes);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t alignment, size_t bytes);

void *malloc(size_t bytes)
{
    atomic_fetch_add(&n_hidden, 1);
    return __libc_malloc(bytes);
}
void *calloc(size_t n, size_t bytes)
{
    atomic_fetch_add(&n_hidden, 1);
    return __libc_calloc(n, bytes);
}
void *realloc(void *memory, size_t bytes)
{
    atomic_fetch_add(&n_hidden, 1);
    return __libc_realloc(memory, bytes);
}
void *aligned_alloc(size_t alignment, size_t bytes)
{
    atomic_fetch_add(&n_hidden, 1);
    return __libc_memalign(alignment, bytes);
}
int posix_memalign(void **memory, size_t alignment, size_t bytes)
{
    atomic_fetch_add(&n_hidden, 1);
    *memory = __libc_memalign(alignment, bytes);
    return *memory == NULL ? ENOMEM : 0;
}
static void count_hidden(void) {}
#else
static void count_hidden(void)
{
    skip();
}
#endif

/* The counting itself works, or the rest proves nothing. */
static void test_counter(void **state)
{
    (void)state;
    count_hidden();
    const long long before = atomic_load(&n_hidden);
    void *volatile memory = malloc(100);
    free(memory);
    memory = aligned_alloc(64, 128);
    free(memory);
    assert_true(atomic_load(&n_hidden) >= before + 2);
}

enum { M = 40, N = 48, K = 128, EXPERTS = 2, CO = 8, CI = 16, SIDE = 9 };

struct bench {
    struct counter counter;
    qn_ctx *ctx;
    qn_packed *w[EXPERTS], *image, *deep;
    float x[M * K], y[M * N];
    int8_t codes[M * K];
    float scale[M];
    int32_t ids[M];
    qn_matmul_args matmul;
    qn_grouped_args grouped;
    qn_conv_args conv, depthwise, transposed;
    qn_quantize_rows_args rows;
    qn_plan *plans[5];
};

static void conv_init(qn_conv_args *args, struct bench *b, const qn_packed *w, int64_t channels)
{
    const int64_t x[4] = {2, channels, SIDE, SIDE};
    qn_conv_args_init(args);
    args->w = w;
    args->x = qn_tensor_make(b->x, QN_F32, 4, x);
    args->y.data = b->y;
    args->y.dtype = QN_F32;
    args->stride[0] = args->stride[1] = 2;
}

static void bench_init(struct bench *b, qn_strategy strategy)
{
    const struct shape s = {.n = N, .k = K}, image = {.n = CO, .k = 9 * CI, .kh = 3, .kw = 3};
    const struct shape deep = {.n = CI, .k = 9, .kh = 3, .kw = 3, .groups = CI};
    qn_ctx_options o;
    options_counted(&o, &b->counter);
    o.n_threads = 3;
    assert_ok(qn_ctx_create(&o, &b->ctx, NULL));
    for (int e = 0; e < EXPERTS; e++)
        b->w[e] = packed_make(b->ctx, "int4:g32:zp", s, (uint64_t)e, NULL);
    b->image = packed_make(b->ctx, "int4:g16", image, 3, NULL);
    b->deep = packed_make(b->ctx, "int8:pc", deep, 4, NULL);
    fill_reals(b->x, M * K, 1);
    for (int i = 0; i < M; i++)
        b->ids[i] = i % EXPERTS;
    qn_matmul_args_init(&b->matmul);
    b->matmul.w = b->w[0];
    b->matmul.x = qn_tensor_2d(b->x, QN_F32, M, K);
    b->matmul.y = qn_tensor_2d(b->y, QN_F32, M, N);
    qn_grouped_args_init(&b->grouped);
    b->grouped.w = (const qn_packed *const *)b->w;
    b->grouped.n_experts = EXPERTS;
    b->grouped.x = b->matmul.x;
    b->grouped.y = b->matmul.y;
    b->grouped.ids = qn_tensor_1d(b->ids, QN_I32, M);
    conv_init(&b->conv, b, b->image, CI);
    conv_init(&b->depthwise, b, b->deep, CI);
    conv_init(&b->transposed, b, b->image, CI);
    assert_ok(qn_conv2d_shape(&b->conv));
    assert_ok(qn_conv2d_shape(&b->depthwise));
    b->transposed.x.shape[0] = 1;
    b->transposed.x.shape[2] = b->transposed.x.shape[3] = 6;
    assert_ok(qn_conv_transpose2d_shape(&b->transposed));
    b->matmul.strategy = b->grouped.strategy = strategy;
    b->conv.strategy = b->depthwise.strategy = b->transposed.strategy = strategy;
    qn_quantize_rows_args_init(&b->rows);
    b->rows.x = b->matmul.x;
    b->rows.codes = qn_tensor_2d(b->codes, QN_I8, M, K);
    b->rows.scale = qn_tensor_2d(b->scale, QN_F32, M, 1);
    assert_ok(qn_matmul_plan(b->ctx, &b->matmul, &b->plans[0], NULL));
    assert_ok(qn_grouped_plan(b->ctx, &b->grouped, &b->plans[1], NULL));
    assert_ok(qn_conv2d_plan(b->ctx, &b->conv, &b->plans[2], NULL));
    assert_ok(qn_conv2d_plan(b->ctx, &b->depthwise, &b->plans[3], NULL));
    assert_ok(qn_conv_transpose2d_plan(b->ctx, &b->transposed, &b->plans[4], NULL));
    for (int i = 0; i < 5; i++)
        assert_ok(qn_ctx_reserve(b->ctx, qn_plan_scratch_bytes(b->plans[i])));
}

static void bench_end(struct bench *b)
{
    for (int i = 0; i < 5; i++)
        qn_plan_destroy(b->plans[i]);
    for (int e = 0; e < EXPERTS; e++)
        qn_packed_destroy(b->w[e]);
    qn_packed_destroy(b->image);
    qn_packed_destroy(b->deep);
    qn_ctx_destroy(b->ctx);
    assert_int_equal(b->counter.live, 0);
}

/* Statuses are collected: an assertion of cmocka would allocate. */
static int run_all(struct bench *b)
{
    size_t bytes;
    char text[4096];
    qn_plan_info info;
    int failed = 0;
    qn_plan_info_init(&info);
    failed |= qn_matmul_run(b->plans[0], &b->matmul, NULL, 0) != QN_OK;
    failed |= qn_matmul(b->ctx, &b->matmul, NULL, 0) != QN_OK;
    failed |= qn_matmul_scratch(b->ctx, &b->matmul, &bytes) != QN_OK;
    failed |= qn_grouped_run(b->plans[1], &b->grouped, NULL, 0) != QN_OK;
    failed |= qn_grouped(b->ctx, &b->grouped, NULL, 0) != QN_OK;
    failed |= qn_conv2d_run(b->plans[2], &b->conv, NULL, 0) != QN_OK;
    failed |= qn_conv2d(b->ctx, &b->conv, NULL, 0) != QN_OK;
    failed |= qn_conv2d_run(b->plans[3], &b->depthwise, NULL, 0) != QN_OK;
    failed |= qn_conv2d(b->ctx, &b->depthwise, NULL, 0) != QN_OK;
    failed |= qn_conv_transpose2d_run(b->plans[4], &b->transposed, NULL, 0) != QN_OK;
    failed |= qn_conv_transpose2d(b->ctx, &b->transposed, NULL, 0) != QN_OK;
    failed |= qn_quantize_rows(b->ctx, &b->rows) != QN_OK;
    failed |= qn_plan_query(b->plans[0], &info) != QN_OK;
    failed |= qn_plan_explain(b->plans[0], text, sizeof text) == 0;
    return failed;
}

/* Sanitizers allocate when a thread of the pool really begins to run, which may be late: there one
 * clean try of several is asked for. What a call allocates, it allocates every time. */
#if SEEN == HOOKED
enum { TRIES = 50 };
#else
enum { TRIES = 1 };
#endif

static void test_nothing_is_allocated(void **state)
{
    static const qn_strategy all[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                      QN_STRATEGY_INT8_BLOCK, QN_STRATEGY_DENSE};
    (void)state;
    for (size_t s = 0; s < sizeof all / sizeof *all; s++) {
        struct bench *b = calloc(1, sizeof *b);
        bench_init(b, all[s]);
        const int64_t calls = b->counter.calls;
        long long hidden = 1;
        int failed = 0;
        for (int i = 0; i < TRIES && hidden != 0; i++) {
            const long long before = atomic_load(&n_hidden);
            failed |= run_all(b);
            hidden = atomic_load(&n_hidden) - before;
        }
        assert_int_equal(failed, 0);
        assert_int_equal(b->counter.calls - calls, 0);
        assert_int_equal(hidden, 0);
        bench_end(b);
        free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counter),
        cmocka_unit_test(test_nothing_is_allocated),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
