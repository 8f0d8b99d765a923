/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model of tuning.inc: bytes against the memory, units of codes against the cores. */
#include "cost.h"

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

double qni_matmul_predict(int32_t i, const struct qni_row_layout *layout, const struct qni_op *op,
                          int64_t m, int32_t n_threads)
{
    /* A call; and what one core, and all of them, read of weights beyond the caches. */
    static const double t0_us = 1.0, core_bytes_per_us = 20e3, all_bytes_per_us = 80e3;
    const struct qni_packed_head *const head = op->w[0]->head;
    const double threads = (double)qni_max(1, n_threads);
    const double weights = op->kind == QNI_GROUPED ? (double)qni_min(op->n_w, m) : 1.0;
    const double rows = op->kind == QNI_GROUPED ? (double)m / weights : (double)m;
    const double panels = (double)qni_ceil_div(head->n, QNI_PANEL);
    const double rate = core_bytes_per_us * threads < all_bytes_per_us ? core_bytes_per_us * threads
                                                                       : all_bytes_per_us;
    const double bytes = weights * (double)head->section[QNI_SECTION_CODES].bytes;
    const double each = qni_matmul_cost(i, layout, (int64_t)rows > 0 ? (int64_t)rows : 1);
    const double compute = weights * panels * each * 1e-6 / threads;
    return t0_us + (bytes / rate > compute ? bytes / rate : compute);
}
