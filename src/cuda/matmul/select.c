/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels, reasons to refuse, and the choice of the cheapest row (cost.c) for every
 * range of m. Nothing here touches the device. */
#include "select.h"

#include <string.h>

#include "../../base/compiler.h"
#include "../../quant/reasons.h"
#include "../weights.h"
#include "cost.h"
#include "decode_quads.h"
#include "dense.h"
#include "pixels.h"
#include "prepared.h"

#define QNI_CUDA_KERNEL(fn, sm, exact, reads, layout, m_max, mr, family, takes_total)              \
    {#fn,                                                                                          \
     fn,                                                                                           \
     sm,                                                                                           \
     exact,                                                                                        \
     QNI_CUDA_READS_##reads,                                                                       \
     QNI_CUDA_##layout,                                                                            \
     m_max,                                                                                        \
     mr,                                                                                           \
     QNI_CUDA_FAMILY_##family,                                                                     \
     takes_total},
static const struct qni_cuda_kernel kernels[] = {
#include "kernels.inc"
    {.name = NULL}, /* a build may have left all of them out */
};
#undef QNI_CUDA_KERNEL

enum { N_KERNELS = (int)(sizeof kernels / sizeof *kernels) - 1 };

const struct qni_cuda_kernel *qni_cuda_kernel_at(int32_t i)
{
    return i >= 0 && i < N_KERNELS ? &kernels[i] : NULL;
}

struct qni_cuda_offer qni_cuda_offer_of(const struct qni_cuda_facts *facts)
{
    return (struct qni_cuda_offer){kernels, N_KERNELS, facts};
}

/* ---- reasons --------------------------------------------------------------------------------- */

static bool has_section(const struct qni_op *op, int32_t section)
{
    return op->w[0]->head->section[section].bytes != 0;
}

static bool has_integers(const struct qni_op *op)
{
    int8_t table8[16];
    const struct qn_packed *w = op->w[0];
    const int32_t n = 1 << w->head->format.bits;
    return !has_section(op, QNI_SECTION_TABLE) ||
           (w->table != NULL && qni_table_integers(w->head->format.code, w->table, n, table8) != 0);
}

/* The layout by its number; -1: none of the GPU's. */
static int32_t layout_of(const struct qni_op *op)
{
    static const char *const names[QNI_CUDA_N_LAYOUTS] = {"q4frag", "t4frag", "q8frag", "t8frag"};
    for (int32_t i = 0; i < QNI_CUDA_N_LAYOUTS; i++)
        if (strncmp(op->w[0]->head->layout, names[i], sizeof op->w[0]->head->layout) == 0)
            return i;
    return -1;
}

/* Why no kernel at all may serve the operation, or NULL. */
static const char *operation_refusal(const struct qni_op *op)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const bool is_static = op->strategy == QN_STRATEGY_INT8_STATIC;
    const bool is_int8 =
        is_static || op->strategy == QN_STRATEGY_INT8_ROW || op->strategy == QN_STRATEGY_INT8_BLOCK;
    const bool sums = has_section(op, QNI_SECTION_SUMS) || op->k == 0 || op->n == 0;
    const int32_t x_zero = qni_op_x_zero(op);
    if (layout_of(op) < 0)
        return "the weights' layout is none of the GPU's";
    if (op->m > INT32_MAX || head->n > INT32_MAX || head->units > INT32_MAX / QNI_CUDA_UNIT)
        return "more than 2^31 rows, outputs or positions";
    if (is_static && has_section(op, QNI_SECTION_PRESCALE))
        return "the weights have a prescale, which cannot be multiplied into given int8 codes";
    if (is_int8 && !has_integers(op))
        return "int8 strategies multiply integers, which the values of the codebook are not";
    if (is_static && x_zero != 0 && !sums)
        return "a zero point of x needs the column sums that the packing left out";
    if (op->strategy == QN_STRATEGY_INT8_BLOCK && !op->quant.symmetric && !sums)
        return "asymmetric activations need the column sums that the packing left out";
    if (qni_op_is_raw(op) && (head->n_groups > 1 || head->format.shift == QN_SHIFT_OFFSET ||
                              qni_packed_has_offsets(head)))
        return "int32 sums and int32 biases are for weights without groups and offsets";
    return NULL;
}

static bool reads_for(const struct qni_op *op, int32_t reads)
{
    if (op->fp8 != NULL && qni_cuda_reads_e4m3(reads)) {
        const bool by_block = op->fp8->strategy == QN_STRATEGY_FP8_BLOCK;
        return reads == (by_block ? QNI_CUDA_READS_E4M3B : QNI_CUDA_READS_E4M3);
    }
    switch (op->strategy) {
    case QN_STRATEGY_FLOAT:
    case QN_STRATEGY_DENSE:
        return reads == QNI_CUDA_READS_F16 || reads == QNI_CUDA_READS_BF16;
    case QN_STRATEGY_INT8_ROW:
    case QN_STRATEGY_INT8_STATIC:
        return reads == QNI_CUDA_READS_Q8;
    default:
        return reads == QNI_CUDA_READS_Q8B;
    }
}

/* A decode kernel of floats holds its rows of x, of every plane, beside its weights: 16 rows of 3
 * planes and the sums of a panel take 117 KB with groups of 32; 12 rows fit. */
enum { TIGHT_ROWS = 12 };
static bool is_tight(const struct qni_cuda_kernel *k, const struct qni_op *op,
                     const struct qni_cuda_facts *facts)
{
    return k->family == QNI_CUDA_FAMILY_DECODE && k->reads == QNI_CUDA_READS_BF16 &&
           k->mr > TIGHT_ROWS && qni_cuda_planes(op) > 2 && qni_cuda_shared_kb(facts->sm) < 160;
}

/* The decode kernel of 17 to 32 rows keeps x in shared memory, and has no other way. */
static bool is_quads(const struct qni_cuda_kernel *k)
{
    return k->family == QNI_CUDA_FAMILY_DECODE && k->mr == QUADS_MAX_ROWS;
}
static bool fits_quads(const struct qni_cuda_kernel *k, const struct qni_op *op,
                       const struct qni_cuda_facts *facts, int64_t m)
{
    struct qni_cuda_product p;
    struct quad_plan unused;
    memset(&p, 0, sizeof p);
    p.w = qni_cuda_weights_of(op->w[0], k->reads);
    p.x.planes = k->reads == QNI_CUDA_READS_BF16 ? qni_cuda_planes(op) : 1;
    p.x.columns = p.w.units * QNI_CUDA_UNIT;
    p.m = qni_max(m, 1);
    return op->kind != QNI_GROUPED &&
           quads_plan(&unused, &p, qni_cuda_bits_of(k), facts->multiprocessors,
                      (qni_cuda_shared_kb(facts->sm) - 1) * 1024);
}

/* Tells whether the sums of an operation end where the int8 wgmma kernels end segments, in f32:
 * with turns of 128 positions. Where rows of x have a scale for each, they may be of 32 or 64. */
static bool ends_with_turns(const struct qni_op *op)
{
    const bool by_block = op->strategy == QN_STRATEGY_INT8_BLOCK;
    const struct qni_cut cut = qni_packed_cut(op->w[0]->head, by_block);
    const int64_t units = cut.segment_units;
    if (by_block && cut.n_segments > 1 && (units == 1 || units == 2))
        return cut.n_groups <= 1 || cut.group_units == units;
    return (cut.n_groups <= 1 || cut.group_units % 4 == 0) &&
           (cut.n_segments <= 1 || (units % 4 == 0 && !qni_op_is_raw(op)));
}

static bool is_prefill(const struct qni_cuda_kernel *k)
{
    return qni_cuda_cost_family(k->family) == QNI_CUDA_FAMILY_PREFILL;
}

/* FP8 tensor cores multiply codes of weights as they are, by blocks of 128 columns. */
static const char *e4m3_refusal(const struct qni_op *op)
{
    const struct qni_packed_head *head = op->w[0]->head;
    if (head->format.code != QN_CODE_E4M3)
        return "multiplies e4m3, which the weights are not";
    if (has_section(op, QNI_SECTION_PERM) || has_section(op, QNI_SECTION_PRESCALE) ||
        head->n_runs > 1 || head->format.shift != QN_SHIFT_NONE)
        return "takes rows as they are quantized: no act-order, prescale, padding or offsets";
    if (head->n_groups > 1 && head->group_units % 4 != 0)
        return "takes groups of whole blocks of 128";
    return NULL;
}

/* Why a row cannot serve, or NULL if it can; whether another is better is not asked. m: rows of a
 * part; 0: any. */
static const char *refusal(const struct qni_cuda_kernel *k, const struct qni_op *op, int32_t layout,
                           const struct qni_cuda_facts *facts)
{
    if (op->kernel != NULL && strcmp(op->kernel, k->name) != 0)
        return QNI_WHY_NAME;
    if (!reads_for(op, k->reads))
        return QNI_WHY_STRATEGY;
    if (k->layout != layout)
        return QNI_WHY_LAYOUT;
    if (op->k == 0 && k->family != QNI_CUDA_FAMILY_TILE)
        return "is for products of something, and k is 0";
    if (facts->sm < k->sm)
        return QNI_WHY_NEWER;
    if (k->sm_exact && facts->sm != k->sm)
        return QNI_WHY_GENERATION;
    if (qni_cuda_reads_e4m3(k->reads))
        return e4m3_refusal(op);
    if (k->family == QNI_CUDA_FAMILY_DECODE && k->layout == QNI_CUDA_T8FRAG &&
        (op->w[0]->head->format.code != QN_CODE_E4M3 ||
         op->w[0]->head->format.shift != QN_SHIFT_NONE))
        return "of codebooks of 8 bits takes e4m3 alone, without offsets";
    if (k->family == QNI_CUDA_FAMILY_DECODE && k->layout == QNI_CUDA_T4FRAG) {
        if (op->w[0]->head->format.shift != QN_SHIFT_NONE)
            return "of codebooks of 4 bits takes weights without zero points and offsets";
        if (qni_cuda_shared_kb(facts->sm) < 160)
            return "keeps pairs of values in more shared memory than the GPU has";
    }
    if ((is_prefill(k) || k->family == QNI_CUDA_FAMILY_DECODE) && k->layout == QNI_CUDA_T4FRAG &&
        k->reads == QNI_CUDA_READS_F16 && op->w[0]->head->format.code == QN_CODE_TABLE)
        return "holds values as f16, and may not those of a table that was given";
    if (is_prefill(k) && (k->reads == QNI_CUDA_READS_Q8 || k->reads == QNI_CUDA_READS_Q8B) &&
        !ends_with_turns(op))
        return "takes segments of whole turns of 128 positions, or of 32 or 64 that each have a "
               "scale of x";
    if (k->reads == QNI_CUDA_READS_F16 &&
        (op->x.dtype != QN_F16 || has_section(op, QNI_SECTION_PRESCALE)))
        return "reads f16, which x (times the prescale) is not";
    if (op->kind == QNI_GROUPED && is_tight(k, op, facts))
        return "needs more shared memory for a tile of rows than the GPU has";
    if (is_quads(k) && !fits_quads(k, op, facts, 1))
        return "is for a single product without offsets, of one plane of x and not too long";
    if (k->family == QNI_CUDA_FAMILY_IMAGE)
        return qni_cuda_pixels_refusal(op, k);
    return k->family == QNI_CUDA_FAMILY_ROUNDED ? qni_cuda_rounded_refusal(k->reads, op) : NULL;
}

/* May it have so many rows? Tiles of a grouped product are cut to its size. */
static bool takes(const struct qni_cuda_kernel *k, const struct qni_op *op,
                  const struct qni_cuda_facts *facts, int64_t m)
{
    const int64_t most = is_tight(k, op, facts) ? TIGHT_ROWS : k->m_max;
    if (is_quads(k))
        return m <= most && fits_quads(k, op, facts, m);
    return most == 0 || op->kind == QNI_GROUPED || m <= most;
}

/* ---- choices --------------------------------------------------------------------------------- */

/* Ranges of m end at 1, 2, 4, 8, 12, 16, 24, 32, 48, 64, 96, ... rows, which is where the tiles of
 * some kernel are full, and are judged by their upper end; the last by the m that was planned. */
enum { MAX_CANDIDATES = 32, MAX_RANGES = 64 };

struct candidates {
    const struct qni_cuda_kernel *row[MAX_CANDIDATES];
    struct qni_cuda_costs costs[MAX_CANDIDATES];
    int32_t n;
};

static int64_t next_end(int64_t end)
{
    if (end < 8)
        return 2 * end;
    return (end & (end - 1)) == 0 ? end + end / 2 : end / 3 * 4;
}

static struct qni_cuda_terms terms_of(const struct qni_cuda_offer *offer, const struct qni_op *op,
                                      const struct candidates *c, int32_t i, int64_t m)
{
    return qni_cuda_is_dense(c->row[i])
               ? qni_cuda_dense_terms(offer->facts, op, m)
               : qni_cuda_terms_of(offer->facts, op, c->row[i], &c->costs[i], m);
}

static double cost_of(const struct qni_cuda_offer *offer, const struct qni_op *op,
                      const struct candidates *c, int32_t i, int64_t m)
{
    const struct qni_cuda_terms terms = terms_of(offer, op, c, i, m);
    return qni_cuda_predict(&c->costs[i], &terms);
}

/* The cheapest that takes m rows; -1: none does. */
static int32_t cheapest(const struct qni_cuda_offer *offer, const struct qni_op *op,
                        const struct candidates *c, int64_t m)
{
    int32_t best = -1;
    double least = 0.0;
    for (int32_t i = 0; i < c->n; i++) {
        if (!takes(c->row[i], op, offer->facts, m))
            continue;
        const double us = c->n == 1 ? 0.0 : cost_of(offer, op, c, i, m);
        if (best < 0 || us < least) {
            best = i;
            least = us;
        }
    }
    return best;
}

/* A range of m with one kernel: rows from `from` to `end`. */
struct range {
    int64_t from, end;
    int32_t row; /* of the candidates */
};

/* Times what it would cost at its upper end with the kernel of the range after it. */
static double harm(const struct qni_cuda_offer *offer, const struct qni_op *op,
                   const struct candidates *c, const struct range *at)
{
    return cost_of(offer, op, c, at[1].row, at->end) / cost_of(offer, op, c, at->row, at->end);
}

/* While there are too many, the range that loses least goes to the one after it, whose kernel takes
 * more rows and so takes these. */
static int32_t join_ranges(const struct qni_cuda_offer *offer, const struct qni_op *op,
                           const struct candidates *c, struct range *ranges, int32_t n)
{
    while (n > QNI_MAX_CHOICES) {
        int32_t least = 0;
        for (int32_t i = 1; i + 1 < n; i++)
            if (harm(offer, op, c, &ranges[i]) < harm(offer, op, c, &ranges[least]))
                least = i;
        ranges[least + 1].from = ranges[least].from;
        memmove(&ranges[least], &ranges[least + 1], (size_t)(n - least - 1) * sizeof *ranges);
        n--;
        if (least > 0 && ranges[least - 1].row == ranges[least].row) {
            ranges[least].from = ranges[least - 1].from;
            memmove(&ranges[least - 1], &ranges[least], (size_t)(n - least) * sizeof *ranges);
            n--;
        }
    }
    return n;
}

static qn_status cut_ranges(const struct qni_cuda_offer *offer, const struct qni_op *op,
                            const struct candidates *candidates, struct qni_cuda_choice *c)
{
    struct range ranges[MAX_RANGES];
    const int64_t most = qni_max(op->m, 1);
    int32_t n = 0;
    for (int64_t from = 0, end = 1; from <= most; from = end + 1, end = next_end(end)) {
        const int64_t last = qni_min(end, most);
        const int32_t best = cheapest(offer, op, candidates, last);
        if (best < 0)
            return QN_E_UNSUPPORTED; /* a row that was asked for takes fewer rows of x */
        if (n > 0 && ranges[n - 1].row == best)
            ranges[n - 1].end = last;
        else
            ranges[n++] = (struct range){from, last, best};
    }
    n = join_ranges(offer, op, candidates, ranges, n);
    for (int32_t i = 0; i < n; i++) {
        c->kernel[i] = candidates->row[ranges[i].row];
        c->m_from[i] = ranges[i].from;
    }
    c->m_from[0] = 0;
    c->n_choices = n;
    c->main = c->kernel[n - 1];
    const int32_t main = ranges[n - 1].row;
    c->terms = terms_of(offer, op, candidates, main, op->m);
    c->predicted_us = qni_cuda_predict(&candidates->costs[main], &c->terms);
    return QN_OK;
}

static bool is_chosen(const struct qni_cuda_choice *c, const struct qni_cuda_kernel *row)
{
    bool chosen = false;
    for (int32_t i = 0; i < c->n_choices; i++)
        chosen = chosen || c->kernel[i] == row;
    return chosen;
}

/* What the dense tier would take, by the model. For m > 0. */
static double dense_us(const struct qni_cuda_offer *offer, const struct qni_op *op)
{
    const struct qni_cuda_costs costs = qni_cuda_dense_costs(offer->facts);
    const struct qni_cuda_terms terms = qni_cuda_dense_terms(offer->facts, op, op->m);
    return qni_cuda_predict(&costs, &terms);
}

/* The reason why a row that only the dense strategy has is not chosen though it takes `us`. */
static const char *unasked(const struct qni_cuda_choice *c, double us)
{
    return c->n_choices > 0 && us < c->predicted_us
               ? "would be faster by the cost model: ask for the dense strategy, which rounds "
                 "weights to the type of x"
               : qni_cuda_dense_unasked;
}

static void tell_of_dense(const struct qni_cuda_offer *offer, const struct qni_op *op,
                          const char *general, const struct qni_cuda_choice *c, qni_refusal_fn tell,
                          void *arg)
{
    const struct qni_cuda_kernel *row;
    for (int32_t i = 0; (row = qni_cuda_dense_at(i)) != NULL; i++) {
        if (is_chosen(c, row))
            continue;
        const char *why = general != NULL ? general : qni_cuda_dense_refusal(row, op, offer->facts);
        if (why == qni_cuda_dense_unasked)
            why = unasked(c, dense_us(offer, op));
        tell(arg, row->name, why != NULL ? why : "would take longer by the cost model");
    }
}

static void tell_refusals(const struct qni_cuda_offer *offer, const struct qni_op *op,
                          const char *general, const struct qni_cuda_choice *c, qni_refusal_fn tell,
                          void *arg)
{
    const int32_t layout = layout_of(op);
    for (int32_t i = 0; i < offer->n_rows; i++) {
        const struct qni_cuda_kernel *row = &offer->rows[i];
        if (is_chosen(c, row))
            continue;
        const char *why = general != NULL ? general : refusal(row, op, layout, offer->facts);
        if (why == NULL)
            why = takes(row, op, offer->facts, op->m) ? "would take longer by the cost model"
                                                      : "takes fewer rows of x";
        else if (why == qni_cuda_dense_unasked)
            why = unasked(c, qni_cuda_cost(offer->facts, op, row, op->m));
        tell(arg, row->name, why);
    }
    tell_of_dense(offer, op, general, c, tell, arg);
}

/* A kernel of an older generation where nothing of the GPU's own serves. */
static bool is_fallback(const struct qni_cuda_offer *offer, const struct qni_op *op,
                        const struct candidates *candidates)
{
    bool older = op->kernel == NULL && offer->facts->sm >= 80;
    for (int32_t i = 0; i < candidates->n; i++)
        older = older && candidates->row[i]->sm < 80 && !qni_cuda_is_dense(candidates->row[i]);
    return older;
}

/* Is cuBLASLt all that keeps the dense tier, which would be faster, from serving? */
static bool lacks_library(const struct qni_cuda_offer *offer, const struct qni_op *op,
                          const struct qni_cuda_choice *c)
{
    const struct qni_cuda_kernel *row;
    bool lacks = false;
    if (op->kernel != NULL || offer->facts->no_blas == NULL)
        return false;
    for (int32_t i = 0; (row = qni_cuda_dense_at(i)) != NULL; i++)
        lacks = lacks || qni_cuda_dense_refusal(row, op, offer->facts) == offer->facts->no_blas;
    return lacks && c->n_choices > 0 && dense_us(offer, op) < c->predicted_us;
}

/* How it is done, where that is not plain from the kernel's name. */
static const char *note_of(const struct qni_cuda_offer *offer, const struct qni_op *op,
                           const struct qni_cuda_choice *c, bool without_library)
{
    if (op->fp8 != NULL)
        return qni_cuda_reads_e4m3(c->main->reads)
                   ? "x is rounded to e4m3 and multiplied on FP8 tensor cores, whose sums go to "
                     "f32 every 128 positions"
               : op->x.dtype == QN_F16
                   ? "x is rounded to e4m3, and its codes are multiplied as f16"
                   : "x is rounded to e4m3, and codes times scales are multiplied as floats";
    if (op->strategy == QN_STRATEGY_FLOAT && c->main->family == QNI_CUDA_FAMILY_ROUNDED)
        return "scales are so short that weights are exact in the type of x, and are scaled in "
               "registers";
    if (c->main->family == QNI_CUDA_FAMILY_IMAGE)
        return qni_cuda_pixels_lie(op, c->main)
                   ? "rows are fetched from x where it lies, not written out as patches"
                   : "rows are fetched from a copy of x, pixel for pixel, not written out as "
                     "patches";
    if (op->strategy != QN_STRATEGY_DENSE)
        return c->is_fallback
                   ? "tensor cores by instructions of older GPUs: none of this one's serves"
                   : NULL;
    if (qni_cuda_is_dense(c->main))
        return "weights are written out in the type of x and multiplied by cuBLASLt";
    if (c->main->family == QNI_CUDA_FAMILY_ROUNDED)
        return "weights are rounded to the type of x in registers, as the dense tier would write "
               "them out";
    return without_library ? offer->facts->no_blas
                           : "weights are dequantized in registers, as by the float strategy";
}

/* The row that does what this one does without rounding weights; NULL: it was left out. */
static const struct qni_cuda_kernel *unrounded(const struct qni_cuda_offer *offer,
                                               const struct qni_cuda_kernel *k)
{
    for (int32_t i = 0; i < offer->n_rows; i++) {
        const struct qni_cuda_kernel *row = &offer->rows[i];
        if (row->family == QNI_CUDA_FAMILY_PREFILL && row->reads == k->reads &&
            row->layout == k->layout && row->mr == k->mr)
            return row;
    }
    return NULL;
}

static void add_rows(const struct qni_cuda_offer *offer, const struct qni_op *op,
                     struct candidates *candidates, struct qni_cuda_choice *c)
{
    const int32_t layout = layout_of(op);
    for (int32_t i = 0; i < offer->n_rows && candidates->n < MAX_CANDIDATES; i++) {
        const struct qni_cuda_kernel *row = &offer->rows[i];
        if (refusal(row, op, layout, offer->facts) != NULL)
            continue;
        if (row->family == QNI_CUDA_FAMILY_ROUNDED && op->strategy == QN_STRATEGY_FLOAT) {
            c->unrounded = unrounded(offer, row);
            if (c->unrounded == NULL)
                continue;
        }
        candidates->costs[candidates->n] = qni_cuda_costs_of(offer->facts, row);
        candidates->row[candidates->n++] = row;
    }
}

static void add_dense(const struct qni_cuda_offer *offer, const struct qni_op *op,
                      struct candidates *candidates)
{
    const struct qni_cuda_kernel *row;
    for (int32_t i = 0; (row = qni_cuda_dense_at(i)) != NULL; i++)
        if (candidates->n < MAX_CANDIDATES &&
            qni_cuda_dense_refusal(row, op, offer->facts) == NULL) {
            candidates->costs[candidates->n] = qni_cuda_dense_costs(offer->facts);
            candidates->row[candidates->n++] = row;
        }
}

qn_status qni_cuda_choose(const struct qni_cuda_offer *offer, const struct qni_op *op,
                          struct qni_cuda_choice *c, qni_refusal_fn tell, void *arg)
{
    const char *const general = operation_refusal(op);
    struct candidates candidates = {.n = 0};
    if (general == NULL) {
        add_rows(offer, op, &candidates, c);
        add_dense(offer, op, &candidates);
    }
    qn_status status = candidates.n == 0 ? QN_E_UNSUPPORTED : cut_ranges(offer, op, &candidates, c);
    if (status != QN_OK)
        c->n_choices = 0;
    if (tell != NULL)
        tell_refusals(offer, op, general, c, tell, arg);
    QNI_TRY(status);
    c->n = op->n / op->w[0]->head->conv_groups;
    const bool without_library = lacks_library(offer, op, c);
    c->is_fallback = is_fallback(offer, op, &candidates) || without_library;
    c->roofline_us = qni_cuda_roofline(offer->facts, op);
    c->note = note_of(offer, op, c, without_library);
    return QN_OK;
}

qn_status qni_cuda_choose_depthwise(const struct qni_cuda_offer *offer, const struct qni_op *op,
                                    struct qni_cuda_choice *c, qni_refusal_fn tell, void *arg)
{
    const char *why = operation_refusal(op);
    c->is_depthwise = 1;
    if (why == NULL && op->kernel != NULL && strcmp(op->kernel, qni_cuda_kernel_name(c, NULL)) != 0)
        why = QNI_WHY_NAME;
    for (int32_t i = 0; i < offer->n_rows && tell != NULL; i++)
        tell(arg, offer->rows[i].name, why != NULL ? why : QNI_WHY_LONE);
    if (why != NULL)
        return QN_E_UNSUPPORTED;
    c->n_choices = 1;
    c->n = op->n;
    c->roofline_us = qni_cuda_roofline(offer->facts, op);
    return QN_OK;
}

#define QNI_CUDA_DEPTHWISE(fn, sm, reads) #fn
static const char depthwise_name[] =
#include "others.inc"
    ;
#undef QNI_CUDA_DEPTHWISE

const char *qni_cuda_kernel_name(const struct qni_cuda_choice *choice,
                                 const struct qni_cuda_kernel *kernel)
{
    return kernel == NULL || choice->is_depthwise ? depthwise_name : kernel->name;
}

const char *qni_cuda_kernel_machine(const struct qni_cuda_kernel *kernel)
{
    const int32_t sm = kernel == NULL ? 75 : kernel->sm;
    return kernel != NULL && kernel->sm_exact ? "Hopper GPUs, sm_90a"
           : sm >= 90                         ? "GPUs from sm_90 on"
           : sm >= 80                         ? "GPUs from sm_80 on"
                                              : "GPUs from sm_75 on";
}
