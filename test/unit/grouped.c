/* SPDX-License-Identifier: Apache-2.0 */
/* The grouped product against one qn_matmul() for each row of y, bit for bit: experts by ids in
 * any order and by offsets, rows without an expert, experts without rows, rows of x that several
 * experts read, biases of each expert; on 1, 2 and 3 threads, and nothing written but the rows
 * that have an expert. */
#include <stdlib.h>
#include <string.h>

#include "contexts.h"

enum { MAX_EXPERTS = 70 };

struct problem {
    int32_t n_experts, m, x_rows, n, k;
    const char *format;
    qn_strategy strategy;
    bool by_offsets, routed;
    qn_packed *w[MAX_EXPERTS];
    float *x, *y, *bias, *col_scale, *row_scale;
    int32_t *ids, *rows;
    int32_t offsets[MAX_EXPERTS + 1];
};

static float *reals(int64_t n)
{
    float *v = malloc((size_t)(n + 1) * sizeof *v);
    for (int64_t i = 0; i < n; i++)
        v[i] = real();
    return v;
}

static void make_experts(struct problem *p)
{
    for (int32_t e = 0; e < p->n_experts; e++) {
        float *dense = reals((int64_t)p->n * p->k);
        const qn_tensor t = qn_tensor_2d(dense, QN_F32, p->n, p->k);
        qn_quantize_options options;
        qn_quantize_options_init(&options);
        qn_weight *weight;
        assert_int_equal(qn_format_parse(p->format, &options.format, NULL), QN_OK);
        assert_int_equal(qn_quantize(contexts[0], &t, &options, &weight, NULL), QN_OK);
        assert_int_equal(qn_pack(contexts[0], weight, NULL, &p->w[e], NULL), QN_OK);
        qn_weight_destroy(weight);
        free(dense);
    }
}

/* Ids of all rows; with offsets they are sorted, and rows at both ends have none. */
static void route(struct problem *p)
{
    p->ids = malloc((size_t)(p->m + 1) * sizeof *p->ids);
    p->rows = malloc((size_t)(p->m + 1) * sizeof *p->rows);
    for (int32_t r = 0; r < p->m; r++) {
        p->ids[r] = pick(0, 9) == 0 ? -1 - pick(0, 3) : pick(0, p->n_experts - 1);
        p->rows[r] = p->routed ? pick(0, p->x_rows - 1) : r;
    }
    if (!p->by_offsets)
        return;
    int32_t row = pick(0, p->m / 4);
    for (int32_t e = 0; e <= p->n_experts; e++) {
        p->offsets[e] = row;
        const int32_t left = p->m - row, share = left * 2 / p->n_experts;
        row += pick(0, 2) == 0 ? 0 : pick(0, share < left ? share : left);
    }
    for (int32_t r = 0; r < p->m; r++) {
        p->ids[r] = -1;
        for (int32_t e = 0; e < p->n_experts; e++)
            if (r >= p->offsets[e] && r < p->offsets[e + 1])
                p->ids[r] = e;
    }
}

static void make_problem(struct problem *p)
{
    make_experts(p);
    route(p);
    p->x = reals((int64_t)p->x_rows * p->k);
    p->y = reals((int64_t)p->m * p->n);
    p->bias = reals((int64_t)p->n_experts * p->n);
    p->col_scale = reals(p->n);
    p->row_scale = reals(p->m);
}

static void free_problem(struct problem *p)
{
    for (int32_t e = 0; e < p->n_experts; e++)
        qn_packed_destroy(p->w[e]);
    free(p->x);
    free(p->y);
    free(p->bias);
    free(p->col_scale);
    free(p->row_scale);
    free(p->ids);
    free(p->rows);
}

static void *scratch_of(size_t bytes)
{
    const size_t all = bytes / 64 * 64 + 64;
    void *scratch = aligned_alloc(64, all);
    memset(scratch, 0xff, all); /* NaN and -1: nothing is left over */
    return scratch;
}

/* y as the definition says: a product of one row for each row that has an expert. */
static void expect(const struct problem *p, float *y)
{
    for (int32_t r = 0; r < p->m; r++) {
        if (p->ids[r] < 0)
            continue;
        const int64_t e = p->ids[r];
        qn_matmul_args args;
        qn_matmul_args_init(&args);
        args.w = p->w[e];
        args.x = qn_tensor_2d(p->x + (int64_t)p->rows[r] * p->k, QN_F32, 1, p->k);
        args.y = qn_tensor_2d(y + (int64_t)r * p->n, QN_F32, 1, p->n);
        args.strategy = p->strategy;
        args.epilogue.bias = qn_tensor_1d(p->bias + e * p->n, QN_F32, p->n);
        args.epilogue.col_scale = qn_tensor_1d(p->col_scale, QN_F32, p->n);
        args.epilogue.row_scale = qn_tensor_1d(p->row_scale + r, QN_F32, 1);
        size_t bytes;
        assert_int_equal(qn_matmul_scratch(contexts[0], &args, &bytes), QN_OK);
        void *scratch = scratch_of(bytes);
        assert_int_equal(qn_matmul(contexts[0], &args, scratch, bytes), QN_OK);
        free(scratch);
    }
}

static void run_grouped(const struct problem *p, const qn_ctx *ctx, float *y)
{
    qn_grouped_args args;
    qn_grouped_args_init(&args);
    args.w = (const qn_packed *const *)p->w;
    args.n_experts = p->n_experts;
    args.x = qn_tensor_2d(p->x, QN_F32, p->x_rows, p->k);
    args.y = qn_tensor_2d(y, QN_F32, p->m, p->n);
    if (p->by_offsets)
        args.offsets = qn_tensor_1d((void *)p->offsets, QN_I32, p->n_experts + 1);
    else
        args.ids = qn_tensor_1d(p->ids, QN_I32, p->m);
    if (p->routed)
        args.x_rows = qn_tensor_1d(p->rows, QN_I32, p->m);
    args.strategy = p->strategy;
    args.epilogue.bias = qn_tensor_2d(p->bias, QN_F32, p->n_experts, p->n);
    args.epilogue.col_scale = qn_tensor_1d(p->col_scale, QN_F32, p->n);
    args.epilogue.row_scale = qn_tensor_1d(p->row_scale, QN_F32, p->m);
    size_t bytes;
    assert_int_equal(qn_grouped_scratch(ctx, &args, &bytes), QN_OK);
    uint8_t *scratch = scratch_of(bytes);
    assert_int_equal(qn_grouped(ctx, &args, scratch, bytes), QN_OK);
    for (size_t i = bytes; i < bytes / 64 * 64 + 64; i++)
        assert_int_equal(scratch[i], 0xff);
    free(scratch);
}

static void check_problem(struct problem *p)
{
    make_problem(p);
    const size_t n = (size_t)p->m * (size_t)p->n;
    float *want = malloc((n + 1) * sizeof *want), *got = malloc((n + 1) * sizeof *got);
    memcpy(want, p->y, n * sizeof *want);
    expect(p, want);
    for (int32_t i = 0; i < N_CONTEXTS; i++) {
        memcpy(got, p->y, n * sizeof *got);
        run_grouped(p, contexts[i], got);
        if (memcmp(got, want, n * sizeof *got) != 0)
            fail_msg("%d threads: %d experts, m %d n %d k %d %s %s%s%s", i + 1, p->n_experts, p->m,
                     p->n, p->k, p->format, qn_strategy_name(p->strategy),
                     p->by_offsets ? " offsets" : " ids", p->routed ? " routed" : "");
    }
    free(want);
    free(got);
    free_problem(p);
}

/* The int8 strategies give the same bits whatever rows share a kernel call. */
static void rows_are_products_of_their_own(void **state)
{
    (void)state;
    static const char *const formats[] = {"int4:g32", "int4:g64:zp", "int8:pc", "int4:pc:off"};
    static const qn_strategy strategies[] = {QN_STRATEGY_INT8_ROW, QN_STRATEGY_INT8_BLOCK};
    random_state = 1;
    for (int32_t round = 0; round < 120; round++) {
        struct problem p = {.n_experts = pick(1, 9),
                            .m = pick(0, 60),
                            .n = pick(1, 70),
                            .k = pick(1, 200),
                            .format = formats[pick(0, 3)],
                            .strategy = strategies[pick(0, 1)],
                            .by_offsets = pick(0, 1) == 1,
                            .routed = pick(0, 1) == 1};
        p.x_rows = p.routed ? pick(1, 20) : p.m;
        check_problem(&p);
    }
}

/* A decode step: many experts, a row or a few for each. */
static void many_experts(void **state)
{
    (void)state;
    random_state = 2;
    for (int32_t round = 0; round < 4; round++) {
        struct problem p = {.n_experts = 64,
                            .m = 64 << round,
                            .n = 48,
                            .k = 256,
                            .format = "int4:g32",
                            .strategy = QN_STRATEGY_INT8_BLOCK,
                            .routed = true,
                            .x_rows = 32};
        check_problem(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_are_products_of_their_own),
        cmocka_unit_test(many_experts),
    };
    return cmocka_run_group_tests(tests, make_contexts, destroy_contexts);
}
