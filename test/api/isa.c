/* SPDX-License-Identifier: Apache-2.0 */
/* Instruction-set names and masks, and a kernel that refuses what the CPU has. */
#include "api.h"

#include <errno.h>
#include <sys/wait.h>
#include <unistd.h>
#if defined(__linux__)
#include <sys/syscall.h>
#endif

#include "../harness/refused.h"

static uint64_t parsed(const char *text)
{
    uint64_t mask = 0;
    assert_ok(qn_isa_parse(text, &mask, NULL));
    return mask;
}

static void test_words(void **state)
{
    (void)state;
    assert_true(parsed("all") == QN_ISA_ALL);
    assert_true(parsed("portable") == QN_ISA_PORTABLE);
    assert_true(parsed("avx2") == QN_ISA_AVX2);
    assert_true(parsed("avx512") == (QN_ISA_AVX2 | QN_ISA_AVX512));
    assert_true(parsed("amx_int8") ==
                (QN_ISA_AVX2 | QN_ISA_AVX512 | QN_ISA_VNNI512 | QN_ISA_BF16_512 | QN_ISA_AMX_INT8));
    assert_true(parsed("avx2,neon") == (QN_ISA_AVX2 | QN_ISA_NEON));
    assert_true(parsed("i8mm") == (QN_ISA_NEON | QN_ISA_DOTPROD | QN_ISA_I8MM));
}

static void test_minus(void **state)
{
    (void)state;
    assert_true(parsed("-amx_int8,-amx_bf16") ==
                (QN_ISA_ALL & ~(uint64_t)(QN_ISA_AMX_INT8 | QN_ISA_AMX_BF16)));
    /* What stands on a removed feature goes with it. */
    assert_true((parsed("-avx512") & (QN_ISA_AMX_INT8 | QN_ISA_VNNI512 | QN_ISA_AVX512)) == 0);
    assert_true((parsed("-avx512") & (QN_ISA_AVX2 | QN_ISA_AVX_VNNI)) ==
                (QN_ISA_AVX2 | QN_ISA_AVX_VNNI));
    assert_true(parsed("amx_int8,-vnni512") == (QN_ISA_AVX2 | QN_ISA_AVX512));
    assert_true(parsed("all,-neon") ==
                (QN_ISA_ALL & ~(uint64_t)(QN_ISA_NEON | QN_ISA_DOTPROD | QN_ISA_I8MM)));
}

static void test_bad_words(void **state)
{
    (void)state;
    static const char *const bad[] = {"",       "avx1024",   "AVX2",  "avx2,",
                                      ",avx2",  "avx2;neon", "-all",  "-",
                                      "--avx2", "-portable", " avx2", "avx"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        uint64_t mask = 42;
        assert_error(qn_isa_parse(bad[i], &mask, &err), QN_E_ARGUMENT, "amx_int8");
        assert_true(mask == 42);
    }
    uint64_t mask;
    assert_error(qn_isa_parse("avx2,sse9", &mask, &err), QN_E_ARGUMENT, "'sse9'");
    assert_error(qn_isa_parse(NULL, &mask, &err), QN_E_ARGUMENT, "NULL");
    assert_error(qn_isa_parse("all", NULL, &err), QN_E_ARGUMENT, "NULL");
    assert_status(qn_isa_parse("nothing", &mask, NULL), QN_E_ARGUMENT);
}

/* Every bit that has a name is found by that name, and comes with all below it. */
static void test_names(void **state)
{
    (void)state;
    int named = 0;
    for (int i = 0; i < 64; i++) {
        const uint64_t bit = (uint64_t)1 << i;
        const char *name = qn_isa_name(bit);
        if (name == NULL)
            continue;
        named++;
        assert_true((parsed(name) & bit) != 0);
    }
    assert_int_equal(named, 11);
    assert_null(qn_isa_name(0));
    assert_null(qn_isa_name(QN_ISA_AVX2 | QN_ISA_AVX512));
    assert_null(qn_isa_name((uint64_t)1 << 63));
}

/* A machine's features are complete downwards, and a context has those that its mask leaves. */
static void test_contexts(void **state)
{
    (void)state;
    const uint64_t here = qn_isa_detect();
    for (int i = 0; i < 64; i++) {
        const uint64_t bit = (uint64_t)1 << i;
        if ((here & bit) != 0)
            assert_true((parsed(qn_isa_name(bit)) & ~here) == 0);
    }
    const uint64_t masks[] = {QN_ISA_ALL, QN_ISA_PORTABLE, parsed("avx2"), parsed("-vnni512"),
                              ~(uint64_t)QN_ISA_AVX2};
    for (size_t i = 0; i < sizeof masks / sizeof *masks; i++) {
        qn_ctx_options options;
        qn_ctx_info info;
        qn_ctx *ctx;
        qn_ctx_options_init(&options);
        qn_ctx_info_init(&info);
        options.isa_mask = masks[i];
        options.n_threads = 1;
        assert_ok(qn_ctx_create(&options, &ctx, NULL));
        assert_ok(qn_ctx_query(ctx, &info));
        /* Without AVX2 nothing of AVX-512 is left either. */
        const uint64_t usable =
            (masks[i] & QN_ISA_AVX2) == 0 ? masks[i] & ~(uint64_t)0xffff : masks[i];
        assert_true(info.isa == (here & usable));
        qn_ctx_destroy(ctx);
    }
}

#if defined(__linux__) && defined(SYS_arch_prctl)
enum { M = 40, N = 48, K = 256 };

static void multiply(float *y)
{
    static float x[M * K];
    qn_ctx *ctx = ctx_make(1);
    qn_packed *w = packed_make(ctx, "int4:g128", (struct shape){.n = N, .k = K}, 3, NULL);
    qn_matmul_args args;
    size_t bytes = 0;
    qn_matmul_args_init(&args);
    fill_reals(x, M * K, 4);
    args.w = w;
    args.strategy = QN_STRATEGY_INT8_BLOCK;
    args.x = qn_tensor_2d(x, QN_F32, M, K);
    args.y = qn_tensor_2d(y, QN_F32, M, N);
    assert_ok(qn_matmul_scratch(ctx, &args, &bytes));
    assert_ok(qn_ctx_reserve(ctx, bytes));
    assert_ok(qn_matmul(ctx, &args, NULL, 0));
    qn_packed_destroy(w);
    qn_ctx_destroy(ctx);
}

/* AMX that the kernel does not permit is no AMX: another kernel serves, with the same bits. Where
 * the CPU has none nothing changes. */
static void test_refused_tiles(void **state)
{
    enum { NO_FILTER = 77, OK = 78 };
    static float expected[M * N], y[M * N];
    const uint64_t tiles = QN_ISA_AMX_INT8 | QN_ISA_AMX_BF16, here = qn_isa_detect();
    (void)state;
    multiply(expected);
    const pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        if (!test_refuse(SYS_arch_prctl, EPERM))
            _exit(NO_FILTER);
        if (qn_isa_detect() != (here & ~tiles))
            _exit(1);
        multiply(y);
        _exit(memcmp(y, expected, sizeof y) == 0 ? OK : 2);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    if (WEXITSTATUS(status) != NO_FILTER)
        assert_int_equal(WEXITSTATUS(status), OK);
}
#endif

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_words),
        cmocka_unit_test(test_minus),
        cmocka_unit_test(test_bad_words),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_contexts),
#if defined(__linux__) && defined(SYS_arch_prctl)
        cmocka_unit_test(test_refused_tiles),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
