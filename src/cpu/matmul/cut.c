/* SPDX-License-Identifier: Apache-2.0 */
/* Cutting a product: how many rows a unit has, and where the scratch of a thread lies (cut.h). All
 * of it follows from the operation, the shape and the context. */
#include <string.h>

#include "product.h"

/* ---- units ----------------------------------------------------------------------------------- */

int32_t qni_choice_index(const struct qni_cpu_choice *choice, int64_t m)
{
    int32_t i = choice->n_choices - 1;
    while (i > 0 && choice->m_from[i] > m)
        i--;
    return i;
}

/* Rows that a unit of a kernel has at most which makes weights: once for all of them. */
int64_t qni_rows_of_made(const struct qni_matmul_kernel *k, const struct qni_row_layout *l)
{
    enum { BYTES = 4 << 20, STEP = 64 };
    const int64_t times = (k->traits & QNI_ROUNDS_WEIGHTS) != 0 ? 2 : 1;
    const int64_t rows = times * BYTES / qni_max((int64_t)l->lda, 1) / STEP * STEP;
    return qni_min(qni_max(rows, STEP), times * QNI_EPILOGUE_ROWS);
}

/* Rows of a unit, or a few more: tiles of int8 unpack all codes for a unit, which for a rest of few
 * rows takes longer than those rows do in the units before it. */
static int64_t with_rest(int64_t rows, int64_t mr, const struct qni_row_layout *l,
                         const struct qni_product_shape *shape, int64_t least_units)
{
    enum { TILES = 32 };
    const bool is_int8 = l->reads == QNI_READS_Q8 || l->reads == QNI_READS_Q8B;
    const int64_t units = shape->part_m / rows;
    if (!is_int8 || mr < TILES || units < qni_max(least_units, 1))
        return rows;
    const int64_t all = qni_ceil_div(qni_ceil_div(shape->part_m, units), mr) * mr;
    const bool is_few = all - rows <= qni_min(2 * mr, rows / 4);
    return is_few && qni_ceil_div(shape->part_m, all) == units ? all : rows;
}

/* Would units of so many rows take the form of QNI_SPLITS? */
static bool splits(const struct qni_matmul_kernel *kernel, const struct qni_row_layout *l,
                   int64_t rows)
{
    const struct qni_matmul_tile t = {
        .m = rows,
        .units = l->cut.units,
        .group_units = l->cut.group_units,
        .segment_units = l->cut.segment_units,
        .n_segments = l->cut.n_segments,
    };
    return (kernel->traits & QNI_SPLITS) != 0 && qni_splits(&t);
}

int64_t qni_even_rows(int64_t m, int64_t rows, int64_t mr)
{
    return qni_ceil_div(qni_ceil_div(m, qni_ceil_div(m, rows)), mr) * mr;
}

int64_t qni_unit_rows(const qn_ctx *ctx, const struct qni_product_shape *shape,
                      const struct qni_cpu_choice *choice)
{
    enum { LEAST = 32, PANELS = 8, ITEMS = 16 };
    const bool spans = (choice->main->traits & QNI_TAKES_SPANS) != 0;
    const int64_t mr = spans ? LEAST / 2 : qni_max(1, choice->main->mr);
    const struct qni_row_layout *const l = &choice->cut.product.layout[choice->n_choices - 1];
    /* Over half of the second cache for the rows; the rest for codes, tile and the kernel's
     * scratch. */
    const int64_t cache =
        qni_min(qni_max((int64_t)ctx->cache_bytes[1] / 8 * 5, 128 << 10), 5 << 18);
    int64_t rows = qni_min(cache / qni_max((int64_t)l->lda, 64), QNI_EPILOGUE_ROWS);
    if (choice->main->traits & QNI_MAKES_WEIGHTS)
        rows = qni_rows_of_made(choice->main, l);
    if (spans || (choice->main->traits & QNI_SPLITS_ROW_OUTLIERS))
        rows = QNI_EPILOGUE_ROWS;
    rows = qni_max(rows / mr * mr, mr);
    /* A rest of few rows takes as long as its codes take to come: better with those before it. */
    if (l->reads == QNI_READS_BF16 && shape->part_m > mr && shape->part_m < 2 * mr)
        rows = qni_max(rows, 2 * mr);
    /* Tiles of floats unpack codes once for all rows of a unit: no unit of few. */
    const bool even = spans || l->reads == QNI_READS_BF16 || qni_cuts_bytes(choice->main);
    if (even && shape->part_m > rows)
        rows = qni_even_rows(shape->part_m, rows, mr);
    /* Enough pieces of work for many threads, whatever their number is here: the bits of a float
     * kernel may depend on where units begin. */
    while (rows / 2 >= LEAST && rows / 2 % mr == 0 &&
           qni_ceil_div(shape->part_m, rows) * qni_max(1, shape->n_parts) *
                   qni_ceil_div(shape->n_panels, PANELS) <
               ITEMS)
        rows /= 2;
    const int64_t items = qni_max(1, shape->n_parts) * qni_ceil_div(shape->n_panels, PANELS);
    const int64_t all = with_rest(rows, mr, l, shape, qni_ceil_div(ITEMS, qni_max(items, 1)));
    /* A rest of few rows is slower than a form that is for many. */
    const bool evens = all == rows && shape->part_m > rows && splits(choice->main, l, rows);
    rows = evens ? qni_even_rows(shape->part_m, rows, mr) : all;
    return qni_max(1, qni_min(rows, shape->part_m));
}

/* ---- scratch --------------------------------------------------------------------------------- */

static size_t larger(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Results of a call of the kernel of at most m rows, each a pad longer; of n_tiles calls. */
static size_t tile_of(const struct qni_matmul_kernel *kernel, int64_t m, int64_t n_panels,
                      int64_t n_tiles)
{
    const int64_t panels = qni_min(QNI_EPILOGUE_COLUMNS / QNI_PANEL, qni_max(n_panels, 1));
    const int64_t whole = n_tiles * m * panels * QNI_PANEL * (int64_t)sizeof(float);
    const int64_t least = n_tiles * m * QNI_PANEL * (int64_t)sizeof(float);
    const int64_t bytes = qni_min(qni_max(qni_tile_bytes(kernel), least), whole);
    return (size_t)(bytes + n_tiles * m * QNI_TILE_PAD * (int64_t)sizeof(float));
}

/* Takes so many bytes, rounded up to whole lines, from `at` on. */
static size_t take(size_t *at, size_t bytes)
{
    const size_t here = *at;
    *at += qni_round_up(bytes, 64);
    return here;
}

void qni_product_cut_layouts(const struct qni_op *op, const struct qni_product_shape *shape,
                             struct qni_cpu_choice *choice)
{
    struct qni_product_cut *const cut = &choice->cut.product;
    cut->shape = *shape;
    cut->shared_row_bytes = 0;
    for (int32_t i = 0; i < choice->n_choices; i++) {
        cut->layout[i] = qni_row_layout_of(op, op->w[0]->head, choice->kernel[i]);
        /* One row alone has all the alignment there can be. */
        cut->shared_row_bytes =
            larger(cut->shared_row_bytes, qni_prepared_bytes(&cut->layout[i], 1));
    }
}

void qni_product_cut_scratch(const struct qni_op *op, const struct qni_product_shape *shape,
                             struct qni_cpu_choice *choice)
{
    struct qni_product_cut *const cut = &choice->cut.product;
    size_t prepared = 0, tile = 0, kernel = 0, weights = 0, at = 0;
    const int64_t m = choice->block_m, n_tiles = op->more.gate == QN_GATE_HALVES ? 2 : 1;
    bool sums_floats = false;
    for (int32_t i = 0; i < choice->n_choices; i++) {
        const struct qni_matmul_kernel *const k = choice->kernel[i];
        prepared = larger(prepared, qni_prepared_bytes(&cut->layout[i], m));
        tile = larger(tile, tile_of(k, m, shape->n_panels, n_tiles));
        kernel = larger(kernel, qni_kernel_bytes(k, m, cut->layout[i].lda));
        if (choice->stand_in[i] != NULL) /* runs in the same memory, with the same rows */
            kernel = larger(kernel, qni_kernel_bytes(choice->stand_in[i], m, cut->layout[i].lda));
        const struct qni_expansion e = qni_expansion_of(op, op->w[0], k);
        weights = larger(weights, qni_expansion_bytes(&e));
        sums_floats = sums_floats || k->numerics == QNI_NUMERICS_BOUND;
    }
    cut->made = take(&at, qni_made_bytes(op, shape));
    cut->prepared = take(&at, prepared);
    cut->weights = take(&at, weights);
    /* Floats of rows are of use while rows are prepared, and lie where the tile and what the
     * kernel and the epilogue need will be. Those of a row whose sums overflowed leave the tile
     * alone. */
    const size_t floats = qni_row_floats_bytes(op);
    cut->floats = cut->tile = take(&at, tile);
    cut->after_tile = cut->epilogue = take(&at, qni_epilogue_bytes(m));
    cut->kernel = take(&at, kernel);
    at = larger(at, cut->floats + qni_round_up(floats, 64));
    if (sums_floats)
        at = larger(at, cut->after_tile + qni_round_up(qni_widened_bytes(op), 64));
    /* A line apart: threads do not share what the prefetcher takes in pairs. */
    cut->end = at + 64;
}

struct qni_thread_scratch qni_thread_scratch_in(const struct qni_product_cut *cut, uint8_t *memory)
{
    return (struct qni_thread_scratch){
        .made = memory + cut->made,
        .prepared = memory + cut->prepared,
        .weights = memory + cut->weights,
        .floats = memory + cut->floats,
        .after_tile = memory + cut->after_tile,
        .tile = (float *)(void *)(memory + cut->tile),
        .epilogue = (struct qni_epilogue_scratch *)(void *)(memory + cut->epilogue),
        .kernel = memory + cut->kernel,
        .unit = -1,
    };
}
