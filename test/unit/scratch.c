/* SPDX-License-Identifier: Apache-2.0 */
/* Scratch follows the shape: a product of 1 to 8 rows, plain or of experts, asks for at most 64 KiB
 * a thread beyond its prepared rows and its tile of results, on every machine, and does with it.
 * Prepared rows are rows as the kernel reads them, a kernel's own copy of them, and, where k is so
 * long that they are more than these 64 KiB, the floats of the row that is being prepared. */
#include "unit.h"

#include <stdlib.h>
#include <string.h>

#include <quern/quern.h>

#include "api/plan.h"
#include "cpu/matmul/product.h"
#include "random_weight.h"

enum { SMALL = 8, BEYOND = 64 << 10, EXPERTS = 3, GUARD = 4096 };

struct scene {
    const char *isa, *spec;
    int64_t n, k;
    int32_t n_threads;
    bool with_columns;
    qn_strategy strategy;
    qn_dtype dtype;
    int64_t m;
};

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* What a thread may ask for. */
static size_t allowed(const qn_plan *plan, int64_t m)
{
    const struct qni_cpu_choice *const c = &plan->choice.cpu;
    const struct qni_op *const op = &plan->op;
    const size_t row = (size_t)op->w[0]->head->units * QNI_UNIT * sizeof(float);
    const int64_t columns = qni_min(op->w[0]->head->panels, 64) * QNI_PANEL;
    size_t prepared = 0, copies = 0, expanded = 0; /* each of another kernel of the choice */
    for (int32_t i = 0; i < c->n_choices; i++) {
        const struct qni_row_layout l = qni_row_layout_of(op, op->w[0]->head, c->kernel[i]);
        const struct qni_expansion e = qni_expansion_of(op, op->w[0], c->kernel[i]);
        copies = larger(copies, qni_copied_rows(c->kernel[i], m) * (l.lda + 64));
        prepared = larger(prepared, qni_prepared_bytes(&l, m));
        expanded = larger(expanded, qni_expansion_bytes(&e)); /* stays in the second cache */
        assert_true(e.panels == 1 || qni_expansion_bytes(&e) <= 320 << 10);
    }
    return prepared + copies + expanded +
           (size_t)(m * (columns + QNI_TILE_PAD)) * sizeof(float) +
           larger(BEYOND, 2 * row);
}

static void check_plan(const qn_plan *plan, const struct scene *s, const char *what)
{
    const struct qni_cpu_choice *const c = &plan->choice.cpu;
    const size_t most = allowed(plan, s->m);
    const size_t shared = (size_t)s->m * c->cut.product.shared_row_bytes;
    if (c->thread_bytes > most || c->shared_bytes > shared)
        fail_msg(
            "%s, isa %s, %s, %lld x %lld x %lld, %s, x %s, %d threads: %s asks for %zu bytes a "
            "thread, %zu are allowed; %zu shared, of %zu",
            what, s->isa, s->spec, (long long)s->m, (long long)s->n, (long long)s->k,
            qn_strategy_name(s->strategy), qn_dtype_name(s->dtype), s->n_threads, c->main->name,
            c->thread_bytes, most, c->shared_bytes, shared);
}

/* Plans, and calls in exactly so much memory, with the same bits in any. */
static void check(const qn_ctx *ctx, const qn_packed *w, const struct scene *s, bool runs)
{
    const qn_packed *experts[EXPERTS] = {w, w, w};
    static int32_t ids[SMALL] = {2, 0, 1, 1, 2, 0, 2, 2};
    const size_t x_bytes = (size_t)(s->m * s->k) * 4, y_bytes = (size_t)(s->m * s->n) * 4;
    uint8_t *const x = malloc(x_bytes), *const y = malloc(2 * y_bytes);
    assert_true(x != NULL && y != NULL);
    memset(x, 0x3c, x_bytes); /* a small number of any type */
    qn_matmul_args a;
    qn_matmul_args_init(&a);
    a.w = w;
    a.strategy = s->strategy;
    a.x = qn_tensor_2d(x, s->dtype, s->m, s->k);
    a.y = qn_tensor_2d(y, QN_F32, s->m, s->n);
    qn_plan *plan = NULL;
    const qn_status status = qn_matmul_plan(ctx, &a, &plan, NULL);
    if (status == QN_OK) {
        check_plan(plan, s, "matmul");
        const size_t bytes = qn_plan_scratch_bytes(plan), room = (bytes + GUARD + 63) / 64 * 64;
        uint8_t *const scratch = aligned_alloc(64, room);
        assert_non_null(scratch);
        for (int turn = 0; turn < 2 && runs; turn++) {
            memset(scratch, turn == 0 ? 0xff : 0x5a, room);
            a.y.data = y + (size_t)turn * y_bytes;
            assert_int_equal(qn_matmul_run(plan, &a, scratch, bytes), QN_OK);
            for (size_t i = bytes; i < room; i++)
                assert_int_equal(scratch[i], turn == 0 ? 0xff : 0x5a);
        }
        if (runs)
            assert_memory_equal(y, y + y_bytes, y_bytes);
        free(scratch);
        qn_plan_destroy(plan);
    }
    qn_grouped_args g;
    qn_grouped_args_init(&g);
    g.w = experts;
    g.n_experts = EXPERTS;
    g.strategy = s->strategy;
    g.x = a.x;
    g.y = a.y;
    g.ids = qn_tensor_1d(ids, QN_I32, s->m);
    if (s->dtype != QN_I8 && qn_grouped_plan(ctx, &g, &plan, NULL) == QN_OK) {
        check_plan(plan, s, "grouped");
        qn_plan_destroy(plan);
    }
    free(x);
    free(y);
}

static void check_all(const qn_ctx *ctx, const qn_packed *w, struct scene *s)
{
    static const struct {
        qn_strategy strategy;
        qn_dtype dtype;
    } of[] = {{QN_STRATEGY_FLOAT, QN_F32},      {QN_STRATEGY_FLOAT, QN_F16},
              {QN_STRATEGY_FLOAT, QN_BF16},     {QN_STRATEGY_DENSE, QN_F32},
              {QN_STRATEGY_INT8_ROW, QN_F32},   {QN_STRATEGY_INT8_ROW, QN_BF16},
              {QN_STRATEGY_INT8_BLOCK, QN_F32}, {QN_STRATEGY_INT8_BLOCK, QN_F16},
              {QN_STRATEGY_INT8_STATIC, QN_I8}};
    static const int64_t rows[] = {1, 2, 3, 4, 5, 8};
    for (size_t i = 0; i < sizeof of / sizeof *of; i++)
        for (size_t m = 0; m < sizeof rows / sizeof *rows; m++) {
            s->strategy = of[i].strategy;
            s->dtype = of[i].dtype;
            s->m = rows[m];
            check(ctx, w, s, s->n * s->k <= 64 * 640);
        }
}

static void test_few_rows(void **state)
{
    static const char *const isa[] = {"all",
                                      "amx_int8,amx_bf16",
                                      "bf16_512,avx_vnni",
                                      "vnni512",
                                      "avx512",
                                      "avx_vnni",
                                      "avx2",
                                      "portable",
                                      "i8mm",
                                      "neon"};
    static const char *const specs[] = {"int4:g32", "int4:g128:zp", "int4:g16", "int4:pc",
                                        "nf4:g64",  "mxfp4",        "int8:pc",  "int8:g32:off",
                                        "fp8:pc",   "int8:g16"};
    static const int64_t shapes[][2] = {
        {40, 64}, {64, 640}, {256, 1024}, {1040, 4096}, {16, 16384}};
    static const int32_t threads[] = {1, 3};
    uint64_t seed = 1;
    (void)state;
    for (size_t spec = 0; spec < sizeof specs / sizeof *specs; spec++)
        for (size_t shape = 0; shape < sizeof shapes / sizeof *shapes; shape++)
            for (int columns = 0; columns < 2; columns++) {
                struct scene s = {.spec = specs[spec],
                                  .n = shapes[shape][0],
                                  .k = shapes[shape][1],
                                  .with_columns = columns != 0};
                const struct random_shape of = {s.n, s.k, 1, 1, 1};
                qn_ctx_options o;
                qn_ctx *first;
                qn_packed *w;
                qn_ctx_options_init(&o);
                assert_int_equal(qn_ctx_create(&o, &first, NULL), QN_OK);
                struct qn_weight *const weight =
                    random_weight(first, s.spec, of, seed++, s.with_columns, true);
                assert_non_null(weight);
                assert_int_equal(qn_pack(first, weight, NULL, &w, NULL), QN_OK);
                for (size_t i = 0; i < sizeof isa / sizeof *isa; i++)
                    for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
                        qn_ctx *ctx;
                        s.isa = isa[i];
                        s.n_threads = o.n_threads = threads[t];
                        assert_int_equal(qn_isa_parse(s.isa, &o.isa_mask, NULL), QN_OK);
                        assert_int_equal(qn_ctx_create(&o, &ctx, NULL), QN_OK);
                        check_all(ctx, w, &s);
                        qn_ctx_destroy(ctx);
                    }
                qn_packed_destroy(w);
                qn_weight_destroy(weight);
                qn_ctx_destroy(first);
            }
}

/* The same of the table: what kernels declare for few rows, beside the epilogue's memory. */
static void test_table(void **state)
{
    (void)state;
    for (int32_t i = 0; qni_matmul_kernel_at(i) != NULL; i++) {
        const struct qni_matmul_kernel *const k = qni_matmul_kernel_at(i);
        const size_t bytes = k->scratch_bytes[1] != 0 ? k->scratch_bytes[1] : k->scratch_bytes[0];
        const bool serves_few = k->m_min <= SMALL || k->scratch_bytes[1] != 0;
        if (serves_few && bytes + qni_epilogue_bytes(SMALL) + 64 > BEYOND)
            fail_msg("%s declares %zu bytes for %d rows", k->name, bytes, SMALL);
        if (k->needs == QN_ISA_AMX_INT8)
            assert_true(serves_few);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_few_rows),
        cmocka_unit_test(test_table),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
