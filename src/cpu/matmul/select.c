/* SPDX-License-Identifier: Apache-2.0 */
/* Which kernels serve a product, and how much scratch that takes. Pure: a table, a search, and a
 * reason for every row that is passed over. */
#include <string.h>

#include "../../base/compiler.h"
#include "../../quant/reasons.h"
#include "cost.h"
#include "product.h"

#define QNI_MATMUL_KERNEL(fn, needs, reads, layout, m_min, mr, numerics, traits, scratch)          \
    {#fn,                                                                                          \
     fn,                                                                                           \
     needs,                                                                                        \
     QNI_READS_##reads,                                                                            \
     QNI_LAYOUT_##layout,                                                                          \
     m_min,                                                                                        \
     mr,                                                                                           \
     QNI_NUMERICS_##numerics,                                                                      \
     traits,                                                                                       \
     {scratch}},
static const struct qni_matmul_kernel kernels[] = {
#include "kernels.inc"
};
#undef QNI_MATMUL_KERNEL

enum { N_KERNELS = (int)(sizeof kernels / sizeof *kernels) };

const struct qni_matmul_kernel *qni_matmul_kernel_at(int32_t i)
{
    return i >= 0 && i < N_KERNELS ? &kernels[i] : NULL;
}

/* ---- reasons --------------------------------------------------------------------------------- */

static bool reads_for(qn_strategy strategy, int32_t reads)
{
    switch (strategy) {
    case QN_STRATEGY_FLOAT:
    case QN_STRATEGY_DENSE:
        return reads == QNI_READS_F32 || reads == QNI_READS_BF16;
    case QN_STRATEGY_INT8_ROW:
    case QN_STRATEGY_INT8_STATIC:
        return reads == QNI_READS_Q8;
    default:
        return reads == QNI_READS_Q8B;
    }
}

static bool has_integer_table(const struct qn_packed *w)
{
    int8_t table8[16];
    const float *table = qni_section(w, QNI_SECTION_TABLE);
    return table == NULL || qni_table_integers(w->head->format.code, table, 16, table8) != 0;
}

/* Have the values of the codebook, integers or not, no more digits than bf16? */
static bool has_bf16_table(const struct qn_packed *w)
{
    const float *const table = qni_section(w, QNI_SECTION_TABLE);
    const int32_t n = table == NULL ? 0 : 1 << w->head->format.bits;
    uint32_t all = 0;
    for (int32_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, table + i, sizeof bits);
        all |= bits;
    }
    return (all & 0xffff) == 0;
}

/* Can the weights be multiplied as integers at all? */
static bool multiplies_integers(const struct qn_packed *w)
{
    const struct qni_layout *layout = qni_layout_find(w->head->layout);
    return layout != NULL && layout->floats == 0 && layout->layout != QNI_LAYOUT_T8N16 &&
           has_integer_table(w);
}

static bool has_section(const struct qni_op *op, int32_t section)
{
    return op->w[0]->head->section[section].bytes != 0;
}

/* Why no kernel at all may serve the operation, or NULL. */
static const char *operation_refusal(const struct qni_op *op)
{
    const struct qni_layout *layout = qni_layout_find(op->w[0]->head->layout);
    const bool is_static = op->strategy == QN_STRATEGY_INT8_STATIC;
    const bool is_float = op->strategy == QN_STRATEGY_FLOAT || op->strategy == QN_STRATEGY_DENSE;
    const bool sums = has_section(op, QNI_SECTION_SUMS) || op->k == 0 || op->n == 0 ||
                      qni_is_compact(op->w[0]->head);
    const int32_t x_zero = qni_op_x_zero(op);
    if (!is_float && layout != NULL && layout->floats != 0)
        return "int8 strategies multiply integers, and the weights are not quantized";
    if (!is_float && !multiplies_integers(op->w[0]))
        return "int8 strategies multiply integers, which the values of the codebook are not";
    if (layout != NULL && layout->layout == QNI_LAYOUT_T8N16 &&
        op->w[0]->head->section[QNI_SECTION_TABLE].bytes < 256 * sizeof(float))
        return "the codebook is shorter than kernels read it";
    if (is_static && has_section(op, QNI_SECTION_PRESCALE))
        return "the weights have a prescale, which cannot be multiplied into given int8 codes";
    if (is_static && x_zero != 0 && !sums)
        return "a zero point of x needs the column sums that the packing left out";
    if (op->strategy == QN_STRATEGY_INT8_BLOCK && !op->quant.symmetric && !sums)
        return "asymmetric activations need the column sums that the packing left out";
    if (qni_op_is_raw(op) &&
        (op->w[0]->head->n_groups > 1 || qni_has_float_shift(&op->w[0]->head->format)))
        return "int32 sums and int32 biases are for weights without groups and offsets";
    return NULL;
}

/* Planes of bf16 in vectors pay where bf16 multiplies faster than f32, and one plane is all. */
static const char *bf16_refusal(const struct qni_matmul_kernel *k, const struct qni_op *op,
                                const qn_ctx *ctx)
{
    if (k->needs != QN_ISA_BF16_512 || op->kernel != NULL)
        return NULL;
    if (!ctx->bf16_is_fast)
        return "this CPU multiplies f32 faster than bf16";
    if (op->x.dtype != QN_BF16 || has_section(op, QNI_SECTION_PRESCALE))
        return "x takes several planes of bf16, and f32 multiplies as fast";
    return NULL;
}

/* Weights in two planes are off by 2^-17 |w|, and with two planes of x by 2^-17 |x w| more, and as
 * much again, twice, for the product that is left out: half of the bound in docs/numerics.md, which
 * grows with k, from here on. */
static const char *plane_refusal(const struct qni_op *op)
{
    enum { ONE_PLANE = 128, TWO_PLANES = 512 };
    const int32_t planes = qni_op_planes(op, has_section(op, QNI_SECTION_PRESCALE));
    if (op->k < (planes == 1 ? ONE_PLANE : TWO_PLANES))
        return "splits weights in two planes of bf16, for which sums are too short";
    return NULL;
}

/* Weights are rounded for who asked for it, and to the type of x. */
static const char *rounding_refusal(const struct qni_op *op)
{
    if (op->strategy != QN_STRATEGY_DENSE)
        return "rounds weights to bf16, which only the dense strategy asks for";
    if (op->x.dtype != QN_BF16)
        return "rounds weights to bf16, which x is not";
    if (has_section(op, QNI_SECTION_PRESCALE))
        return "rounds weights to bf16, and x times the prescale is not bf16";
    return NULL;
}

/* Splitting the outliers of rows pays for long sums, of codes that are mostly near zero: given ones
 * may lie anywhere. */
static const char *outlier_refusal(const struct qni_matmul_kernel *k, const struct qni_op *op)
{
    enum { LONG = 8 };
    const struct qni_cut cut = qni_cut_of(op->w[0]->head, k->reads);
    if ((k->traits & QNI_SPLITS_ROW_OUTLIERS) == 0 || op->kernel != NULL)
        return NULL;
    if (cut.n_segments > 1 || cut.segment_units <= LONG)
        return "splits outliers from rows, which pays for long sums";
    if (op->strategy != QN_STRATEGY_INT8_ROW)
        return "splits outliers from rows, which given codes would have everywhere";
    return NULL;
}

/* Why a row cannot serve, or NULL if it can; whether another is better is not asked. */
static const char *refusal(const struct qni_matmul_kernel *k, const struct qni_op *op,
                           const qn_ctx *ctx, int32_t layout)
{
    if (op->kernel != NULL && strcmp(op->kernel, k->name) != 0)
        return QNI_WHY_NAME;
    if (!reads_for(op->strategy, k->reads))
        return QNI_WHY_STRATEGY;
    if (k->layout != layout)
        return QNI_WHY_LAYOUT;
    if ((k->needs & ~ctx->isa) != 0)
        return QNI_WHY_FEATURE;
    if (k->traits & QNI_ROUNDS_WEIGHTS)
        return rounding_refusal(op);
    if (k->traits & QNI_MAKES_WEIGHTS)
        return plane_refusal(op);
    if (layout == QNI_LAYOUT_T8N16 && k->reads == QNI_READS_BF16)
        return has_bf16_table(op->w[0]) ? NULL : "multiplies bf16, which the codebook is not";
    const bool needs_integers = k->reads != QNI_READS_F32;
    if (needs_integers && layout == QNI_LAYOUT_T8N16)
        return "multiplies integers, and the codebook is looked up as floats";
    if (needs_integers && !has_integer_table(op->w[0]))
        return "multiplies integers, which the values of the codebook are not";
    const char *const outliers = outlier_refusal(k, op);
    return outliers != NULL ? outliers : bf16_refusal(k, op, ctx);
}

/* ---- choices --------------------------------------------------------------------------------- */

/* Making weights pays where the others would leave the tiles for each unit, or where nothing but
 * vectors could serve. */
static int64_t making_pays_from(const struct qni_matmul_kernel *k, const struct qni_op *op,
                                const struct qni_row_layout *l)
{
    enum { ONE_PLANE = 192, TWO_PLANES = 192, ROUNDED = 192, ROUNDED_SHORT = 32 };
    enum { FEW = 9, PADDED = 6, ROUNDED_FEW = 7, ROUNDED_PADDED = 3 };
    /* Groups of halves of units: the others multiply padding. */
    const bool fits =
        k->layout == QNI_LAYOUT_T8N16 ? has_bf16_table(op->w[0]) : has_integer_table(op->w[0]);
    const bool others = fits && !l->halves;
    const bool rounds = (k->traits & QNI_ROUNDS_WEIGHTS) != 0;
    int64_t from = k->m_min;
    const bool pads_bytes = l->halves && k->layout == QNI_LAYOUT_Q8N16;
    if (rounds)
        from = pads_bytes ? ROUNDED_PADDED : ROUNDED_FEW;
    else if (l->planes == 1)
        from = pads_bytes ? PADDED : FEW;
    if (others && l->cut.group_units == 1)
        from = rounds ? ROUNDED_SHORT : l->planes == 1 ? ONE_PLANE : TWO_PLANES;
    else if (others)
        from = rounds ? ROUNDED : INT64_MAX;
    return from <= qni_rows_of_made(k, l) ? from : INT64_MAX;
}

/* Tiles of int8 are stored and their sums scaled once a segment, which costs as much as 128
 * positions of products: of at most four units that are groups, too, two segments are added at a
 * time, others of one or two units pay where both halves of a block have rows. Codebooks pay from 3
 * rows on (blocks of one unit from 4 where x has blocks, too), long nibbles from 6, in groups of
 * 128 from 7, in groups of 64 from 8, blocks of bytes from 5, and long bytes, or blocks of one
 * unit, from 8. */
static int64_t tiles_pay_from(const struct qni_matmul_kernel *k, const struct qni_op *op,
                              const struct qni_row_layout *l)
{
    enum { LONG = 4, ROWS = 17, NIBBLES = 14, RUNS = 9, RUNS_OF_BYTES = 8, RUNS_OF_128 = 7 };
    const int64_t units = l->cut.segment_units;
    const bool is_row = k->reads == QNI_READS_Q8;
    const bool nibbles = k->layout == QNI_LAYOUT_Q4N16; /* vectors do more of these at a time */
    const bool in_runs = l->cut.n_segments == l->cut.n_groups && qni_op_x_zero(op) == 0;
    if (units > LONG || (!in_runs && units > 2 && !nibbles))
        return k->m_min;
    if (!in_runs)
        return units <= 2 ? ROWS : NIBBLES;
    if (nibbles && units == LONG)
        return RUNS_OF_128;
    if (nibbles)
        return RUNS + (units == 1 ? 1 + !is_row : units == 2 ? -1 : 0);
    if (k->layout == QNI_LAYOUT_Q8N16 && (is_row || units == 1))
        return is_row ? RUNS : RUNS_OF_BYTES;
    return k->m_min + (k->layout == QNI_LAYOUT_T4N16 && units == 1 && !is_row);
}

/* Is it a kernel of tiles (AMX)? The cost model has no line of those: they serve from so many rows
 * on. */
static bool has_tiles(const struct qni_matmul_kernel *k)
{
    return !qni_matmul_has_cost((int32_t)(k - kernels));
}

/* Fewest rows that tiles pay for, by measurements (quern-rows tells where another would be faster).
 * f32 rows need no preparing for vectors, others do either way: for those tiles of bf16 pay a row
 * earlier; and short groups of bytes, half of which would be padding, hold vectors up less. */
static int64_t pays_from(const struct qni_matmul_kernel *k, const struct qni_op *op,
                         const struct qni_row_layout *l)
{
    enum { PLANES = 3, PADDED = 4, PADDED_PLANES = 5 };
    if (k->traits & QNI_MAKES_WEIGHTS)
        return making_pays_from(k, op, l);
    if (k->reads == QNI_READS_BF16 && l->halves && k->layout == QNI_LAYOUT_Q8N16)
        return l->planes == 1 ? PADDED : PADDED_PLANES;
    if (k->reads == QNI_READS_BF16 && k->layout == QNI_LAYOUT_Q4N16 && l->cut.group_units > 1)
        return 1;
    if (k->reads == QNI_READS_BF16 && k->layout == QNI_LAYOUT_Q8N16)
        return k->m_min - (l->planes == 1 && l->cut.group_units > 1);
    if (k->reads == QNI_READS_BF16)
        return k->m_min - (l->planes < PLANES);
    return tiles_pay_from(k, op, l);
}

/* The rows that can serve an operation, in the order of the table. */
struct candidates {
    int32_t n, index[N_KERNELS];
    struct qni_row_layout layout[N_KERNELS];
    int64_t tiles_from[N_KERNELS]; /* 0: the cost model has a line */
    float times[N_KERNELS];        /* what the cost is multiplied with on this processor */
};

/* The constants are of a processor that works on 512 bits in two halves. One with AMX does so at
 * once: rows of floats by codes in bytes then took 0.53 to 0.79 of the time that AVX2 needs (2 to 8
 * rows, 2048 x 2048), where the constants say about as long. With groups of at most 16 positions,
 * half of whose codes is padding, AVX2 was the faster one up to 5 rows there, too. What a program
 * has measured (qn_cpu_set_cost()) takes the place of all that. */
static float times_of(const qn_ctx *ctx, const struct qni_matmul_kernel *k,
                      const struct qni_row_layout *l)
{
    const float given = qni_matmul_given_times(ctx, (int32_t)(k - kernels));
    if (given > 0.0f)
        return given;
    const bool is_of_bytes =
        k->reads == QNI_READS_F32 && k->layout == QNI_LAYOUT_Q8N16 && !l->halves;
    return (ctx->isa & QN_ISA_AMX_INT8) != 0 && k->needs == QN_ISA_AVX512 && is_of_bytes ? 0.65f
                                                                                         : 1.0f;
}

static void find_candidates(const qn_ctx *ctx, const struct qni_op *op, struct candidates *c)
{
    const struct qni_layout *const layout = qni_layout_find(op->w[0]->head->layout);
    bool has_vectors = false;
    c->n = 0;
    if (operation_refusal(op) != NULL || layout == NULL)
        return;
    for (int32_t i = 0; i < N_KERNELS; i++) {
        const struct qni_matmul_kernel *const k = &kernels[i];
        /* Portable C costs more than any vectors. */
        if ((has_vectors && k->needs == QN_ISA_PORTABLE) ||
            refusal(k, op, ctx, layout->layout) != NULL)
            continue;
        struct qni_row_layout *const l = &c->layout[c->n];
        *l = qni_row_layout_of(op, op->w[0]->head, k);
        c->tiles_from[c->n] = has_tiles(k) ? pays_from(k, op, l) : 0;
        c->times[c->n] = times_of(ctx, k, l);
        has_vectors = has_vectors || !has_tiles(k);
        c->index[c->n++] = i;
    }
}

/* The candidate for m rows: the first one of tiles that m rows pay for, else that of the least
 * cost. Without: traits of rows that are passed over. -1: none. */
static int32_t best_of(const struct candidates *c, int64_t m, int32_t without)
{
    int32_t best = c->n == 1 ? 0 : -1;
    double least = 0.0;
    for (int32_t i = 0; i < c->n && c->n > 1; i++) {
        if ((kernels[c->index[i]].traits & without) != 0)
            continue;
        if (c->tiles_from[i] != 0) {
            if (c->tiles_from[i] <= m)
                return i;
            continue;
        }
        const double cost = (double)c->times[i] * qni_matmul_cost(c->index[i], &c->layout[i], m);
        if (best < 0 || cost < least) {
            best = i;
            least = cost;
        }
    }
    return best;
}

/* The row that runs where data rule row k of the choice out, or NULL if they cannot. It is needed
 * even if the caller names k. */
static const struct qni_matmul_kernel *stand_in_for(const struct qni_matmul_kernel *k,
                                                    const struct qni_op *op, const qn_ctx *ctx,
                                                    int64_t m)
{
    struct candidates all;
    struct qni_op any = *op;
    any.kernel = NULL;
    if ((k->traits & QNI_SPLITS_ROW_OUTLIERS) == 0)
        return NULL;
    find_candidates(ctx, &any, &all);
    const int32_t best = best_of(&all, m, QNI_SPLITS_ROW_OUTLIERS);
    return best < 0 ? NULL : &kernels[all.index[best]];
}

/* Numbers of rows at which the answer may change: a few that are far enough apart, those from which
 * tiles pay, and the most there will be. Returns the next one after m. */
static int64_t next_rows(const struct candidates *c, int64_t m, int64_t part_m)
{
    static const int64_t rows[] = {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 128, 256, 512};
    int64_t next = qni_max(part_m, 1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        next = rows[i] > m ? qni_min(next, rows[i]) : next;
    for (int32_t i = 0; i < c->n; i++)
        next = c->tiles_from[i] > m ? qni_min(next, c->tiles_from[i]) : next;
    return next;
}

/* Appends row k from m rows on; where the list is full, it takes the place of the last one. */
static void append_choice(struct qni_cpu_choice *c, const struct qni_matmul_kernel *k, int64_t m)
{
    if (c->n_choices > 0 && c->kernel[c->n_choices - 1] == k)
        return;
    if (c->n_choices < QNI_MAX_CHOICES)
        c->n_choices++;
    c->m_from[c->n_choices - 1] = c->n_choices == 1 ? 0 : m;
    c->kernel[c->n_choices - 1] = k;
}

/* For each number of rows the best candidate. */
static qn_status choose(const qn_ctx *ctx, const struct qni_op *op, int64_t part_m,
                        struct qni_cpu_choice *c)
{
    struct candidates all;
    find_candidates(ctx, op, &all);
    c->n_choices = 0;
    int32_t best = -1;
    for (int64_t m = 0; all.n > 0 && (m == 0 || m < part_m);) {
        m = next_rows(&all, m, part_m);
        best = best_of(&all, m, 0);
        if (best >= 0)
            append_choice(c, &kernels[all.index[best]], m);
    }
    if (c->n_choices == 0)
        return QN_E_UNSUPPORTED;
    for (int32_t i = 0; i < c->n_choices; i++)
        c->stand_in[i] = stand_in_for(c->kernel[i], op, ctx,
                                      i + 1 < c->n_choices ? c->m_from[i] : qni_max(part_m, 1));
    c->main = c->kernel[c->n_choices - 1];
    const bool is_plain = op->kind == QNI_MATMUL || op->kind == QNI_GROUPED;
    if (is_plain && !has_tiles(c->main))
        c->predicted_us = qni_matmul_predict(ctx, all.index[best], &all.layout[best], op,
                                             qni_max(op->m, 1), (double)all.times[best]);
    c->cost_times = (double)qni_matmul_given_times(ctx, (int32_t)(c->main - kernels));
    return QN_OK;
}

static void tell_refusals(const qn_ctx *ctx, const struct qni_op *op,
                          const struct qni_cpu_choice *c, qni_refusal_fn tell, void *arg)
{
    const struct qni_layout *layout = qni_layout_find(op->w[0]->head->layout);
    const char *general =
        layout == NULL ? "the weights' layout is none of the CPU's" : operation_refusal(op);
    for (int32_t i = 0; i < N_KERNELS; i++) {
        bool chosen = false;
        for (int32_t j = 0; j < c->n_choices; j++)
            chosen = chosen || c->kernel[j] == &kernels[i] || c->stand_in[j] == &kernels[i];
        if (chosen)
            continue;
        const char *why = general != NULL ? general : refusal(&kernels[i], op, ctx, layout->layout);
        if (why == NULL)
            why = "a kernel that costs less serves these rows";
        tell(arg, kernels[i].name, why);
    }
}

/* ---- a product ------------------------------------------------------------------------------- */

qn_status qni_product_select(const qn_ctx *ctx, const struct qni_op *op,
                             const struct qni_product_shape *shape, struct qni_cpu_choice *choice,
                             qni_refusal_fn tell, void *arg)
{
    enum { SHARED_BYTES = 8 << 20 }; /* prepared at once: stays in the last cache */
    memset(choice, 0, sizeof *choice);
    const qn_status status = choose(ctx, op, shape->part_m, choice);
    if (tell != NULL)
        tell_refusals(ctx, op, choice, tell, arg);
    QNI_TRY(status);

    choice->n_threads = (int32_t)qni_max(1, ctx->threads.n_threads);
    choice->is_fallback =
        choice->main->needs == 0 && ctx->isa != QN_ISA_PORTABLE && op->kernel == NULL;
    qni_product_cut_layouts(op, shape, choice);
    choice->block_m = qni_unit_rows(ctx, shape, choice);
    choice->panels_per_task =
        qni_min(qni_kernel_panels(choice->main, choice->block_m), qni_max(shape->n_panels, 1));
    qni_product_cut_scratch(op, shape, choice);
    choice->thread_bytes = choice->cut.product.end;
    if (choice->n_threads > 1) {
        const int64_t row_bytes = (int64_t)choice->cut.product.shared_row_bytes;
        const int64_t rows = qni_max(choice->block_m, SHARED_BYTES / row_bytes);
        choice->shared_bytes = (size_t)(qni_min(rows, shape->m) * row_bytes);
    }
    choice->scratch_bytes =
        qni_round_up(choice->shared_bytes, 64) + (size_t)choice->n_threads * choice->thread_bytes;
    return QN_OK;
}

qn_status qni_matmul_select(const qn_ctx *ctx, const struct qni_op *op,
                            struct qni_cpu_choice *choice, qni_refusal_fn tell, void *arg)
{
    const struct qni_product_shape shape = {
        .m = op->m, .part_m = op->m, .n_parts = 1, .n_panels = op->w[0]->head->panels};
    return qni_product_select(ctx, op, &shape, choice, tell, arg);
}
