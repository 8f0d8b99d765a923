/* SPDX-License-Identifier: Apache-2.0 */
/* The CPU's cost model: every row but tiles of AMX has its constants, a plan takes the row of the
 * least predicted time, and a share of the columns takes the rows that all of them take. */
#include "contexts.h"

#include <stdio.h>
#include <string.h>

#include "api/plan.h"
#include "cpu/matmul/cost.h"
#include "cpu/matmul/product.h"

static const char *const formats[] = {"int4:g16", "int4:g32", "int4:g64", "int4:g128",
                                      "int4:pc",  "int8:g32", "int8:pc",  "iq4_nl",
                                      "nvfp4",    "nf4:g64",  "fp8:pc",   NULL};
static const qn_strategy strategies[] = {QN_STRATEGY_FLOAT, QN_STRATEGY_INT8_ROW,
                                         QN_STRATEGY_INT8_BLOCK};
static const int64_t rows[] = {1, 2, 3, 5, 8, 13, 24, 40, 100, 300};
enum { N = 512, SHARE = 64, K = 1024, MOST = 300 };

static qn_packed *packed_of(const char *spec, int64_t n)
{
    qn_weight_parts parts;
    qn_weight *weight = NULL;
    qn_packed *packed = NULL;
    static uint8_t codes[N * K];
    static float scale[N * K / 16];
    qn_weight_parts_init(&parts);
    assert_int_equal(qn_format_parse(spec, &parts.format, NULL), QN_OK);
    for (size_t i = 0; i < sizeof scale / sizeof *scale; i++)
        scale[i] = 0.5f;
    parts.n = n;
    parts.k = K;
    parts.codes = codes;
    parts.scale = scale;
    assert_int_equal(qn_weight_create(contexts[0], &parts, &weight, NULL), QN_OK);
    assert_int_equal(qn_pack(contexts[0], weight, NULL, &packed, NULL), QN_OK);
    qn_weight_destroy(weight);
    return packed;
}

static qn_plan *plan_of(const qn_packed *w, int64_t n, int64_t m, qn_strategy strategy,
                        const char *kernel)
{
    static float x[MOST * K], y[MOST * N];
    qn_matmul_args args;
    qn_plan *plan = NULL;
    qn_matmul_args_init(&args);
    args.w = w;
    args.x = qn_tensor_2d(x, QN_F32, m, K);
    args.y = qn_tensor_2d(y, QN_F32, m, n);
    args.strategy = strategy;
    args.kernel = kernel;
    return qn_matmul_plan(contexts[0], &args, &plan, NULL) == QN_OK ? plan : NULL;
}

static void test_lines(void **state)
{
    (void)state;
    struct qni_row_layout l;
    memset(&l, 0, sizeof l);
    l.cut.units = 1;
    for (int32_t i = 0; qni_matmul_kernel_at(i) != NULL; i++) {
        const struct qni_matmul_kernel *const k = qni_matmul_kernel_at(i);
        const bool is_tiles = k->needs == QN_ISA_AMX_INT8 || k->needs == QN_ISA_AMX_BF16;
        if (qni_matmul_has_cost(i) == is_tiles)
            fail_msg("%s %s", k->name, is_tiles ? "has a line" : "has no line");
        static const int64_t units[] = {1, 2, 4, 8};
        for (int32_t u = 0; u < 5 && !is_tiles; u++) {
            l.halves = u == 4;
            l.cut.segment_units = u == 4 ? 1 : units[u];
            const double one = qni_matmul_cost(i, &l, 1), many = qni_matmul_cost(i, &l, 64);
            if (!(one > 0.0 && many > one))
                fail_msg("%s: %g ps for a row, %g for 64", k->name, one, many);
        }
    }
    assert_false(qni_matmul_has_cost(-1));
}

/* Rows that a plan may pass over though a caller may name them. */
static bool may_be_named(const struct qni_matmul_kernel *k)
{
    return k->needs != QN_ISA_BF16_512 && (k->traits & QNI_SPLITS_ROW_OUTLIERS) == 0;
}

static void test_least(void **state)
{
    (void)state;
    int32_t compared = 0;
    for (int32_t f = 0; formats[f] != NULL; f++) {
        qn_packed *const w = packed_of(formats[f], N);
        for (size_t c = 0; c < 3 * sizeof rows / sizeof *rows; c++) {
            const int64_t m = rows[c / 3];
            qn_plan *const plan = plan_of(w, N, m, strategies[c % 3], NULL);
            const double us = plan == NULL ? 0.0 : plan->choice.cpu.predicted_us;
            for (int32_t i = 0; us > 0.0 && qni_matmul_kernel_at(i) != NULL; i++) {
                const struct qni_matmul_kernel *const k = qni_matmul_kernel_at(i);
                qn_plan *const other =
                    may_be_named(k) ? plan_of(w, N, m, strategies[c % 3], k->name) : NULL;
                if (other != NULL && other->choice.cpu.predicted_us < us &&
                    !other->choice.cpu.stand_in[0])
                    fail_msg("%s, m %lld: %s takes %g us, %s %g", formats[f], (long long)m,
                             plan->choice.cpu.main->name, us, k->name,
                             other->choice.cpu.predicted_us);
                compared += other != NULL;
                qn_plan_destroy(other);
            }
            qn_plan_destroy(plan);
        }
        qn_packed_destroy(w);
    }
    assert_true(compared > 0);
}

static void test_shares(void **state)
{
    (void)state;
    for (int32_t f = 0; formats[f] != NULL; f++) {
        qn_packed *const all = packed_of(formats[f], N), *const share =
                                                             packed_of(formats[f], SHARE);
        for (size_t c = 0; c < 3 * sizeof rows / sizeof *rows; c++) {
            qn_plan *const a = plan_of(all, N, rows[c / 3], strategies[c % 3], NULL);
            qn_plan *const b = plan_of(share, SHARE, rows[c / 3], strategies[c % 3], NULL);
            assert_true((a == NULL) == (b == NULL));
            for (int32_t i = 0; a != NULL && i < a->choice.cpu.n_choices; i++) {
                assert_int_equal(a->choice.cpu.n_choices, b->choice.cpu.n_choices);
                assert_ptr_equal(a->choice.cpu.kernel[i], b->choice.cpu.kernel[i]);
                assert_int_equal(a->choice.cpu.m_from[i], b->choice.cpu.m_from[i]);
            }
            qn_plan_destroy(a);
            qn_plan_destroy(b);
        }
        qn_packed_destroy(all);
        qn_packed_destroy(share);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_least),
        cmocka_unit_test(test_shares),
    };
    return cmocka_run_group_tests(tests, make_contexts, destroy_contexts);
}
