/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model of tuning.inc: bytes against the memory, units of codes against the cores. */
#include <stdio.h>
#include <string.h>

#include "cost.h"

#include "../../base/error.h"
#include "../backend.h"
#include "product.h"

/* Kinds of segments that the constants tell apart. */
enum { HALVES = 0, ONE_UNIT, TWO_UNITS, FOUR_UNITS, LONG, N_KINDS };

struct matmul_cost {
    int32_t rows_per_pass; /* 0: the row has no line */
    float one[N_KINDS], pass[N_KINDS], row[N_KINDS];
};

/* Indexes of the rows of kernels.inc. */
enum {
#define QNI_MATMUL_KERNEL(fn, needs, reads, layout, m_min, mr, numerics, traits, scratch)          \
    INDEX_##fn,
#include "kernels.inc"
#undef QNI_MATMUL_KERNEL
    N_KERNELS
};

#define QNI_PS(halves, one, two, four, longer)                                                     \
    {                                                                                              \
        halves, one, two, four, longer                                                             \
    }
#define QNI_MATMUL_COST(kernel, rows_per_pass, one, pass, row)                                     \
    [INDEX_##kernel] = {rows_per_pass, one, pass, row},
static const struct matmul_cost costs[N_KERNELS] = {
#include "tuning.inc"
};
#undef QNI_MATMUL_COST
#undef QNI_PS

static int32_t kind_of(const struct qni_row_layout *layout)
{
    const int64_t units = layout->cut.segment_units;
    if (layout->halves)
        return HALVES;
    return units <= 1 ? ONE_UNIT : units == 2 ? TWO_UNITS : units < 8 ? FOUR_UNITS : LONG;
}

bool qni_matmul_has_cost(int32_t i)
{
    return i >= 0 && i < N_KERNELS && costs[i].rows_per_pass > 0;
}

double qni_matmul_cost(int32_t i, const struct qni_row_layout *layout, int64_t m)
{
    const struct matmul_cost *const c = &costs[i];
    const int32_t kind = kind_of(layout);
    const double units = (double)layout->cut.units;
    if (m <= 1)
        return units * (double)c->one[kind];
    const double passes = (double)qni_ceil_div(m, c->rows_per_pass);
    return units * (passes * (double)c->pass[kind] + (double)m * (double)c->row[kind]);
}

/* ---- as measured on this processor ----------------------------------------------------------- */

enum { MEMORY = N_KERNELS }; /* its place behind the rows */

float qni_matmul_given_times(const qn_ctx *ctx, int32_t i)
{
    return ctx->cost_times != NULL ? ctx->cost_times[i] : 0.0f;
}

static const char *line_name(int32_t i)
{
    return i == MEMORY ? "memory" : qni_matmul_kernel_at(i)->name;
}

qn_status qni_cpu_cost_get(const qn_ctx *ctx, int32_t i, qn_cpu_cost *cost, qn_error *err)
{
    int32_t line = MEMORY, seen = 0;
    for (int32_t k = 0; seen < i && k < N_KERNELS; k++) {
        if (!qni_matmul_has_cost(k) || (qni_matmul_kernel_at(k)->needs & ~ctx->isa) != 0)
            continue;
        line = k;
        seen++;
    }
    if (i < 0 || seen < i)
        return qni_fail(err, QN_E_NOT_FOUND, "the model has no line %d here", i);
    const float given = qni_matmul_given_times(ctx, line);
    snprintf(cost->kernel, sizeof cost->kernel, "%s", line_name(line));
    cost->is_given = given > 0.0f;
    cost->times = given > 0.0f ? (double)given : 1.0;
    return QN_OK;
}

qn_status qni_cpu_cost_set(qn_ctx *ctx, const qn_cpu_cost *cost, qn_error *err)
{
    int32_t line = 0;
    if (memchr(cost->kernel, '\0', sizeof cost->kernel) == NULL)
        return qni_fail(err, QN_E_NOT_FOUND, "kernel: the name does not end");
    while (line <= N_KERNELS && ((line < MEMORY && !qni_matmul_has_cost(line)) ||
                                 strcmp(line_name(line), cost->kernel) != 0))
        if (++line > MEMORY)
            return qni_fail(err, QN_E_NOT_FOUND, "kernel: the model has no line '%s'",
                            cost->kernel);
    if (!(cost->times >= 0.01 && cost->times <= 100.0))
        return qni_fail(err, QN_E_VALUE, "times is not from 0.01 to 100");
    if (ctx->cost_times == NULL) {
        const size_t bytes = (N_KERNELS + 1) * sizeof *ctx->cost_times;
        ctx->cost_times = qni_alloc_zero(&ctx->allocator, bytes);
        if (ctx->cost_times == NULL)
            return qni_fail(err, QN_E_MEMORY, "out of memory");
        ctx->cost_bytes = bytes;
    }
    ctx->cost_times[line] = (float)cost->times;
    return QN_OK;
}

double qni_matmul_predict(const qn_ctx *ctx, int32_t i, const struct qni_row_layout *layout,
                          const struct qni_op *op, int64_t m, double times)
{
    /* A call; and what one core, and all of them, read of weights beyond the caches. */
    static const double t0_us = 1.0, core_bytes_per_us = 20e3, all_bytes_per_us = 80e3;
    const struct qni_packed_head *const head = op->w[0]->head;
    const double threads = (double)qni_max(1, ctx->threads.n_threads);
    const double memory = (double)qni_matmul_given_times(ctx, MEMORY);
    const double weights = op->kind == QNI_GROUPED ? (double)qni_min(op->n_w, m) : 1.0;
    const double rows = op->kind == QNI_GROUPED ? (double)m / weights : (double)m;
    const double panels = (double)qni_ceil_div(head->n, QNI_PANEL);
    const double rate = core_bytes_per_us * threads < all_bytes_per_us ? core_bytes_per_us * threads
                                                                       : all_bytes_per_us;
    const double bytes = weights * (double)head->section[QNI_SECTION_CODES].bytes;
    const double each = qni_matmul_cost(i, layout, (int64_t)rows > 0 ? (int64_t)rows : 1);
    const double compute = times * weights * panels * each * 1e-6 / threads;
    const double reading = bytes / rate * (memory > 0.0 ? memory : 1.0);
    return t0_us + (reading > compute ? reading : compute);
}
