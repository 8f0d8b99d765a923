/* SPDX-License-Identifier: Apache-2.0 */
/* Calls without a qn_error put their failures in words for the context's log: one sentence each,
 * none when all is well, and the same status with or without a log. And a machine without a GPU
 * says so, and computes on its CPU. */
#include "api.h"

#include <quern/cuda.h>

enum { M = 4, N = 32, K = 64 };
static const struct shape shape = {.n = N, .k = K};

static struct {
    int n;
    char text[256];
} heard;

static void hear(void *arg, int32_t severity, const char *text)
{
    assert_ptr_equal(arg, &heard);
    assert_int_equal(severity, 2);
    heard.n++;
    snprintf(heard.text, sizeof heard.text, "%s", text);
}

/* A failing call tells exactly one sentence, and `word` is in it. */
#define assert_words(call, expected, word)                                                         \
    do {                                                                                           \
        heard.n = 0;                                                                               \
        assert_status(call, expected);                                                             \
        assert_int_equal(heard.n, 1);                                                              \
        if (strstr(heard.text, word) == NULL)                                                      \
            fail_msg("'%s' does not say '%s'", heard.text, word);                                  \
    } while (0)

struct bench {
    qn_ctx *ctx;
    qn_packed *w;
    float x[M * K], y[M * N];
    qn_matmul_args args;
};

static void start(struct bench *b, qn_log_fn log)
{
    qn_ctx_options o;
    qn_ctx_options_init(&o);
    o.log = log;
    o.log_arg = &heard;
    o.n_threads = 2;
    assert_ok(qn_ctx_create(&o, &b->ctx, NULL));
    b->w = packed_make(b->ctx, "int4:g32", shape, 1, NULL);
    fill_reals(b->x, M * K, 1);
    qn_matmul_args_init(&b->args);
    b->args.w = b->w;
    b->args.strategy = QN_STRATEGY_INT8_ROW;
    b->args.x = qn_tensor_2d(b->x, QN_F32, M, K);
    b->args.y = qn_tensor_2d(b->y, QN_F32, M, N);
}

static void stop(struct bench *b)
{
    qn_packed_destroy(b->w);
    qn_ctx_destroy(b->ctx);
}

static void test_runs_tell_why(void **state)
{
    struct bench b;
    qn_plan *plan = NULL;
    size_t bytes = 0;
    (void)state;
    start(&b, hear);
    assert_ok(qn_matmul_plan(b.ctx, &b.args, &plan, NULL));
    assert_ok(qn_matmul_scratch(b.ctx, &b.args, &bytes));
    assert_true(bytes > 0);
    uint8_t *scratch = take(bytes + 64);
    heard.n = 0;
    assert_ok(qn_matmul_run(plan, &b.args, scratch, bytes));
    assert_ok(qn_matmul(b.ctx, &b.args, scratch, bytes));
    assert_int_equal(heard.n, 0);

    assert_words(qn_matmul(b.ctx, &b.args, NULL, 0), QN_E_SCRATCH, "arena");
    assert_words(qn_matmul(b.ctx, &b.args, scratch, bytes - 1), QN_E_SCRATCH, "scratch");
    assert_words(qn_matmul(b.ctx, &b.args, scratch + 8, bytes), QN_E_ALIGN, "64");
    assert_words(qn_matmul_run(plan, &b.args, NULL, 0), QN_E_SCRATCH, "arena");
    const qn_matmul_args good = b.args;
    b.args.x.data = NULL;
    assert_words(qn_matmul_run(plan, &b.args, scratch, bytes), QN_E_ARGUMENT, "x");
    assert_words(qn_matmul(b.ctx, &b.args, scratch, bytes), QN_E_ARGUMENT, "x");
    b.args = good;
    b.args.y.shape[1] = N + 1;
    assert_words(qn_matmul_scratch(b.ctx, &b.args, &bytes), QN_E_SHAPE, "y");
    b.args = good;
    b.args.strategy = QN_STRATEGY_FLOAT;
    assert_words(qn_matmul_run(plan, &b.args, scratch, bytes), QN_E_ARGUMENT, "strategy");
    b.args = good;
    b.args.x.device = (qn_device){QN_CUDA, 0};
    assert_words(qn_matmul(b.ctx, &b.args, scratch, bytes), QN_E_DEVICE, "x is on device");
    qn_quantize_rows_args q;
    qn_quantize_rows_args_init(&q);
    q.x = good.x;
    q.block = -1;
    assert_words(qn_quantize_rows(b.ctx, &q), QN_E_ARGUMENT, "block");
    qn_plan_destroy(plan);
    free(scratch);
    stop(&b);
}

static void test_silence(void **state)
{
    struct bench b;
    (void)state;
    start(&b, NULL);
    heard.n = 0;
    assert_status(qn_matmul(b.ctx, &b.args, NULL, 0), QN_E_SCRATCH);
    b.args.x.data = NULL;
    assert_status(qn_matmul(b.ctx, &b.args, NULL, 0), QN_E_ARGUMENT);
    assert_int_equal(heard.n, 0);
    stop(&b);
}

/* Where there is no GPU: by whatever is missing (CUDA in the library, a driver, a device) the
 * answer is a status and a sentence, and the CPU goes on working. */
static void test_without_gpu(void **state)
{
    qn_ctx_options o;
    qn_ctx *ctx = NULL;
    qn_error why = {0};
    qn_cuda_info info;
    int32_t count = -1;
    struct bench b;
    (void)state;
    if (qn_cuda_device_count(&count, &why) == QN_OK && count > 0)
        skip();
    assert_int_equal(count, 0);
    qn_ctx_options_init(&o);
    o.device = (qn_device){QN_CUDA, 0};
    assert_error(qn_ctx_create(&o, &ctx, &err), QN_E_DEVICE, " ");
    assert_null(ctx);
    qn_cuda_info_init(&info);
    assert_error(qn_cuda_query(0, &info, &err), QN_E_DEVICE, " ");
    start(&b, hear);
    assert_ok(matmul_in_arena(b.ctx, &b.args));
    assert_int_not_equal(qn_cuda_synchronize(b.ctx, &why), QN_OK);
    assert_true(why.text[0] != 0);
    stop(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_runs_tell_why),
        cmocka_unit_test(test_silence),
        cmocka_unit_test(test_without_gpu),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
