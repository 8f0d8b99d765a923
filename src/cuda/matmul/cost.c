/* SPDX-License-Identifier: Apache-2.0 */
/* The cost model of tuning.inc: bytes against the memory, tiles against the multiprocessors. It
 * knows rows of the table by family, rows of a tile and arithmetic alone, and touches no device. */
#include "cost.h"

#include <stdio.h>
#include <string.h>

#include "../../base/compiler.h"
#include "../../base/error.h"
#include "dense.h"
#include "pixels.h"
#include "prepared.h"

#define QNI_CUDA_COSTS(sm, family, mr, is_int8, bits, outputs, splits, t0, bandwidth, block_ns)    \
    {sm, QNI_CUDA_FAMILY_##family, mr, is_int8, bits, outputs, splits, t0, bandwidth, block_ns},
static const struct qni_cuda_costs shipped[] = {
#include "tuning.inc"
};
#undef QNI_CUDA_COSTS

enum { N_SHIPPED = (int)(sizeof shipped / sizeof *shipped) };

/* ---- lines ----------------------------------------------------------------------------------- */

static int32_t is_int8(const struct qni_cuda_kernel *k)
{
    return k->reads == QNI_CUDA_READS_Q8 || k->reads == QNI_CUDA_READS_Q8B ||
           qni_cuda_reads_e4m3(k->reads);
}

int32_t qni_cuda_bits_of(const struct qni_cuda_kernel *k)
{
    return k->layout == QNI_CUDA_Q4FRAG || k->layout == QNI_CUDA_T4FRAG ? 4 : 8;
}

/* Is it the line of kernels like this one? */
static bool is_of(const struct qni_cuda_costs *c, const struct qni_cuda_kernel *k)
{
    return c->family == qni_cuda_cost_family(k->family) && c->mr == k->mr &&
           c->is_int8 == is_int8(k) && c->bits == qni_cuda_bits_of(k);
}

/* How well a shipped line fits: of this GPU before any; then its mr, then its bits. -1: it does
 * not. */
static int32_t fits(const struct qni_cuda_costs *c, const struct qni_cuda_facts *facts,
                    const struct qni_cuda_kernel *k)
{
    if (c->family != qni_cuda_cost_family(k->family) || c->is_int8 != is_int8(k) ||
        (c->sm != facts->sm && c->sm != 0) || (c->bits != qni_cuda_bits_of(k) && c->bits != 0))
        return -1;
    return 4 * (c->sm != 0) + 2 * (c->mr == k->mr) + (c->bits != 0);
}

/* GB/s of the card that the lines of sm 90 are of. */
static const double H100_RATED = 3352.0;

static struct qni_cuda_costs shipped_for(const struct qni_cuda_facts *facts,
                                         const struct qni_cuda_kernel *k)
{
    struct qni_cuda_costs found = shipped[0];
    int32_t best = -1;
    for (int32_t i = 0; i < N_SHIPPED; i++) {
        const int32_t fit = fits(&shipped[i], facts, k);
        if (fit > best) {
            best = fit;
            found = shipped[i];
        }
    }
    const double rated = facts->bandwidth > 0.0 ? facts->bandwidth * 1e-9 : 500.0;
    if (found.sm == 0) {
        const double each = facts->f16_ops / (double)qni_max(1, facts->multiprocessors) * 1e-12;
        found.bandwidth *= rated / 1000.0;
        found.block_ns /= each > 0.1 ? each : 1.0;
    } else {
        /* Of the same architecture with another memory, as an H200: 9.1 us for the 30.3 MB of
         * 14336 x 4096 in 4 bits, where the line of an H100 says 13.7. */
        if (found.family == QNI_CUDA_FAMILY_DECODE)
            found.bandwidth *= rated / H100_RATED;
        if (found.bandwidth > rated)
            found.bandwidth = rated;
    }
    found.family = qni_cuda_cost_family(k->family);
    found.mr = k->mr;
    found.is_int8 = is_int8(k);
    found.bits = qni_cuda_bits_of(k);
    return found;
}

struct qni_cuda_costs qni_cuda_costs_of(const struct qni_cuda_facts *facts,
                                        const struct qni_cuda_kernel *k)
{
    for (int32_t i = 0; i < facts->n_tuned; i++)
        if (is_of(&facts->tuned[i], k))
            return facts->tuned[i];
    return shipped_for(facts, k);
}

/* ---- terms ----------------------------------------------------------------------------------- */

/* What kernels stream of a weight. */
static double weight_bytes(const struct qni_packed_head *head)
{
    double bytes = 0.0;
    static const int32_t hot[] = {QNI_SECTION_CODES, QNI_SECTION_SCALE, QNI_SECTION_ZERO,
                                  QNI_SECTION_OFFSET};
    for (size_t i = 0; i < sizeof hot / sizeof *hot; i++)
        bytes += (double)head->section[hot[i]].bytes;
    return bytes;
}

/* Weights that m rows meet. */
static double n_weights(const struct qni_op *op, int64_t m)
{
    return op->kind == QNI_GROUPED ? (double)qni_min(op->n_w, m) : 1.0;
}

static double x_bytes(const struct qni_op *op, int64_t m)
{
    double all = (double)qn_dtype_bytes(op->x.dtype);
    for (int32_t d = 0; d < op->x.rank; d++)
        all *= (double)op->x.shape[d];
    return op->m > 0 ? all * (double)m / (double)op->m : 0.0;
}

/* Tiles of rows: of each weight the last is half full, when there are several. */
static double row_tiles(const struct qni_op *op, const struct qni_cuda_kernel *kernel, int64_t m)
{
    const int64_t mr = qni_max(1, kernel->mr);
    const double weights = n_weights(op, m);
    return weights > 1.0 ? (double)m / (double)mr + weights / 2.0 : (double)qni_ceil_div(m, mr);
}

/* How often weights are read: by decode kernels for each tile of rows, which no other works beside;
 * else once, and out of L2 for the tiles behind the first. */
static double passes_of(const struct qni_op *op, const struct qni_cuda_kernel *kernel, int64_t m)
{
    const double weights = n_weights(op, m), tiles = row_tiles(op, kernel, m);
    return kernel->family == QNI_CUDA_FAMILY_DECODE && tiles > weights ? tiles : weights;
}

/* Turns of all multiprocessors that the tiles of m rows take. */
static double turns_of(const struct qni_cuda_facts *facts, const struct qni_op *op,
                       const struct qni_cuda_kernel *kernel, const struct qni_cuda_costs *c,
                       int64_t m)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const double machines = (double)qni_max(1, facts->multiprocessors);
    const double rows = row_tiles(op, kernel, m);
    const double parts = op->kind == QNI_GROUPED ? 1.0 : (double)head->conv_groups;
    const double outputs = (double)qni_ceil_div(head->n / head->conv_groups, c->outputs);
    const double turns = rows * outputs * parts / machines;
    /* The last turn is not full, but those that work in it have the memory to themselves, and some
     * multiprocessors work on two tiles at once: measured, it costs about half of what is
     * missing. */
    if (turns > 1.0)
        return 0.5 * (turns + (double)(int64_t)(turns + 0.999));
    int32_t pieces = 1; /* along k */
    while (2 * pieces <= c->splits && 2 * pieces * turns <= 1.0)
        pieces *= 2;
    const double least = 1.0 / (c->splits > 1 ? c->splits : 1);
    return 0.5 * (1.0 / pieces + (turns > least ? turns : least));
}

/* Products that a value of a table takes: one where 16 bits hold it, else two pieces of f16 or
 * three of bf16 (dequant.cuh). Looking values up is half of wgmma's time again:
 * prefill_t4_sm90a.cu. */
static double table_products(const struct qni_op *op, const struct qni_cuda_kernel *kernel)
{
    if (kernel->family == QNI_CUDA_FAMILY_TILE && kernel->layout == QNI_CUDA_T8FRAG)
        return 3.2;
    const int32_t code = op->w[0]->head->format.code;
    const bool is_f16 = kernel->reads == QNI_CUDA_READS_F16;
    if (kernel->layout != QNI_CUDA_T4FRAG || (!is_f16 && kernel->reads != QNI_CUDA_READS_BF16))
        return 1.0;
    const double pieces = code == QN_CODE_IQ4_NL || code == QN_CODE_E2M1 ? 1.0 : is_f16 ? 2.0 : 3.0;
    if (kernel->family == QNI_CUDA_FAMILY_DECODE && kernel->sm_exact)
        return pieces > 1.0 ? 2.8 : 2.2;
    if (kernel->family == QNI_CUDA_FAMILY_DECODE) /* 14336 x 4096, 8 rows and 16 */
        return kernel->mr <= 8 ? (pieces > 2.0   ? 5.5
                                  : pieces > 1.0 ? 3.5
                                                 : 2.9)
               : pieces > 2.0  ? 6.6
               : pieces > 1.0  ? 5.2
                               : 4.0;
    if (kernel->family == QNI_CUDA_FAMILY_TILE) /* 36, 46 and 55 us, 4096 x 4096, 64 rows */
        return pieces > 2.0 ? 5.0 : pieces > 1.0 ? 4.0 : 2.7;
    return 1.5 * pieces;
}

/* Sums in int32 that end before k does: 128 positions take so many times as long. Of wgmma; of
 * tiles, whose constants are those of longer segments, only where each is short. */
static double int8_ends(const struct qni_op *op, const struct qni_cuda_kernel *kernel)
{
    const bool by_block = kernel->reads == QNI_CUDA_READS_Q8B;
    const bool is_tile = kernel->family == QNI_CUDA_FAMILY_TILE;
    if (qni_cuda_reads_e4m3(kernel->reads))
        return kernel->reads == QNI_CUDA_READS_E4M3 ? 1.4 : 1.8;
    if (!is_tile && qni_cuda_cost_family(kernel->family) != QNI_CUDA_FAMILY_PREFILL)
        return 1.0;
    const struct qni_cut cut = qni_packed_cut(op->w[0]->head, by_block);
    if (by_block && cut.n_segments > 1 && cut.segment_units == 1)
        return is_tile ? 5.5 : 7.2;
    if (by_block && cut.n_segments > 1 && cut.segment_units < 4)
        return is_tile ? 3.0 : 3.8;
    if (is_tile)
        return 1.0;
    return by_block ? 2.5 : cut.n_segments > 1 ? 1.6 : 1.0;
}

static double rated_bandwidth(const struct qni_cuda_facts *facts)
{
    return facts->bandwidth > 0.0 ? facts->bandwidth : 500e9;
}

/* Hopper's decode kernel fills a table of pairs before it begins, and has more to do for an integer
 * of bf16: up to 8 rows are better left to those of sm_80 then. */
static double quads_us(const struct qni_cuda_kernel *kernel)
{
    const bool is_quads = kernel->family == QNI_CUDA_FAMILY_DECODE && kernel->sm_exact;
    const bool is_slow = kernel->layout == QNI_CUDA_T4FRAG || kernel->reads == QNI_CUDA_READS_BF16;
    return is_quads && is_slow ? 1.0 : 0.0;
}

/* Hopper's decode kernel takes longer with more rows, too: of the blocks of 14336 x 4096 one takes
 * 19 and 30 ns with 16 and 32 rows of f16, 34 and 71 of bf16. */
static double quads_steps(const struct qni_cuda_kernel *kernel, int64_t m)
{
    enum { FEW = 16 };
    if (kernel->family != QNI_CUDA_FAMILY_DECODE || !kernel->sm_exact)
        return 1.0;
    return kernel->reads == QNI_CUDA_READS_F16 ? (m <= FEW ? 1.3 : 2.5) : m <= FEW ? 2.8 : 3.9;
}

/* What patches of an image are beyond x itself: each tap is a copy of it that is written, and read
 * again. */
static double patch_bytes(const struct qni_op *op, const struct qni_cuda_kernel *kernel, int64_t m)
{
    if (op->kind != QNI_CONV || kernel->family == QNI_CUDA_FAMILY_IMAGE)
        return 0.0;
    const double all =
        (double)m * (double)op->k * (double)op->conv.groups * (is_int8(kernel) ? 1.0 : 2.0);
    const double x = x_bytes(op, m);
    return all > x ? 1.5 * (all - x) : 0.0;
}

/* What comes before the product: rows are sorted by expert, and nothing is read meanwhile; they are
 * prepared (read, written, and read again, at four fifths of the rated speed); or the kernel
 * quantizes them itself. */
static double before_us(const struct qni_cuda_facts *facts, const struct qni_op *op,
                        const struct qni_cuda_kernel *kernel, int64_t m)
{
    const double convert = op->fp8 != NULL && !qni_cuda_reads_e4m3(kernel->reads) ? 4.5 : 0.0;
    const double routing = (op->kind == QNI_GROUPED ? 4.5 : 0.0) + convert;
    if (qni_cuda_reads_x(op, kernel) && op->fp8 == NULL)
        return routing;
    if (facts->sm == 90 && qni_cuda_quantizes_x(op, kernel, m))
        return 0.5;
    if (kernel->family == QNI_CUDA_FAMILY_IMAGE && qni_cuda_pixels_lie(op, kernel))
        return 0.0;
    return routing + 2.0 +
           (2.5 * x_bytes(op, m) + patch_bytes(op, kernel, m)) / rated_bandwidth(facts) * 1e6;
}

/* Tiles of floats scale sums after every group, and add offsets: with groups of 32, 64 rows of 4096
 * x 4096 take 25 and 50 us on an H200, where longer groups take 15. */
static double tile_ends(const struct qni_packed_head *head)
{
    if (head->n_groups <= 1 || head->group_units > 1 || head->format.code != QN_CODE_INT)
        return 1.0;
    return qni_packed_has_offsets(head) ? 3.9 : 1.8;
}

/* What decode kernels of floats, but those of Hopper, read of x out of the second level cache: all
 * of it for each multiprocessor, at three times the memory's speed. */
static double reread_bytes(const struct qni_cuda_facts *facts, const struct qni_cuda_kernel *kernel,
                           double x)
{
    const bool rereads =
        kernel->family == QNI_CUDA_FAMILY_DECODE && !is_int8(kernel) && !kernel->sm_exact;
    return rereads ? (double)facts->multiprocessors * x / 3.0 : 0.0;
}

/* Two teams of warpgroups (prefill_teams.cuh), of whose kernel the lines of 64 rows are not: of 64
 * rows 4096 x 4096 took 11.9 us without and 10.1 with them, 14336 x 4096 with 32 rows 18.8 and
 * 14.8. */
static bool has_teams(const struct qni_op *op, const struct qni_cuda_kernel *kernel)
{
    const struct qni_packed_head *head = op->w[0]->head;
    return kernel->family == QNI_CUDA_FAMILY_PREFILL && kernel->mr == 64 && !is_int8(kernel) &&
           op->kind == QNI_MATMUL && head->format.code == QN_CODE_INT && head->n_groups > 1 &&
           head->group_units % 4 == 0;
}

struct qni_cuda_terms qni_cuda_terms_of(const struct qni_cuda_facts *facts, const struct qni_op *op,
                                        const struct qni_cuda_kernel *kernel,
                                        const struct qni_cuda_costs *costs, int64_t m)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const int64_t planes = kernel->reads == QNI_CUDA_READS_BF16 ? qni_cuda_planes(op) : 1;
    const bool is_stacked = kernel->family == QNI_CUDA_FAMILY_DECODE && m * planes <= 16;
    /* Where planes follow each other, a decode kernel's products wait for each other: 61 us for
     * 16 rows of f32 times 14336 x 4096, where two planes of sums would take 22. */
    const double apart = kernel->family == QNI_CUDA_FAMILY_DECODE && planes > 1 ? 3.0 : 1.0;
    const double blocks =
        (double)qni_ceil_div(head->units, 2) * (is_stacked ? 1.0 : apart * (double)planes);
    const double y = (double)m * (double)op->n * (double)qn_dtype_bytes(op->y.dtype);
    const double x = x_bytes(op, m);
    const double passes = passes_of(op, kernel, m);
    /* Decode kernels are launched again for more rows than they hold. */
    const bool again = kernel->family == QNI_CUDA_FAMILY_DECODE && op->kind != QNI_GROUPED;
    /* wgmma's sums are scaled after every group: 1.5 times the time at 64 positions, 2.1 at 32. */
    const bool is_prefill =
        qni_cuda_cost_family(kernel->family) == QNI_CUDA_FAMILY_PREFILL && head->n_groups > 1;
    const double shifted = is_prefill && qni_packed_has_offsets(head) ? 2.1 : 1.0;
    const double ends = is_int8(kernel)                             ? int8_ends(op, kernel)
                        : kernel->family == QNI_CUDA_FAMILY_TILE    ? tile_ends(head)
                        : !is_prefill || head->group_units % 4 == 0 ? 1.0
                        : head->group_units % 2 == 0                ? 1.5 * shifted
                                                                    : 2.1 * shifted;
    /* Weights that are rounded in f32: four instructions more for a pair (prefill_round.cuh). */
    const bool by_f32 = kernel->family == QNI_CUDA_FAMILY_ROUNDED && !qni_cuda_rounds_by_f16(op);
    const double shorter = has_teams(op, kernel) ? 0.83 : 1.0;
    return (struct qni_cuda_terms){
        .bytes = passes * weight_bytes(head) + x + y +
                 (op->kind == QNI_GROUPED ? 0.0 : reread_bytes(facts, kernel, x)),
        .steps = shorter * ends * (by_f32 ? 1.2 : 1.0) * table_products(op, kernel) *
                 quads_steps(kernel, m) * turns_of(facts, op, kernel, costs, m) * blocks,
        .before_us = before_us(facts, op, kernel, m) + quads_us(kernel) +
                     (again ? (passes - 1.0) * costs->t0_us : 0.0),
    };
}

double qni_cuda_predict(const struct qni_cuda_costs *costs, const struct qni_cuda_terms *terms)
{
    const double by_bytes = terms->bytes / costs->bandwidth * 1e-3;
    const double by_steps = terms->steps * costs->block_ns * 1e-3;
    return costs->t0_us + (by_bytes > by_steps ? by_bytes : by_steps) + terms->before_us;
}

double qni_cuda_cost(const struct qni_cuda_facts *facts, const struct qni_op *op,
                     const struct qni_cuda_kernel *kernel, int64_t m)
{
    const struct qni_cuda_costs costs = qni_cuda_costs_of(facts, kernel);
    const struct qni_cuda_terms terms = qni_cuda_terms_of(facts, op, kernel, &costs, m);
    return qni_cuda_predict(&costs, &terms);
}

double qni_cuda_roofline(const struct qni_cuda_facts *facts, const struct qni_op *op)
{
    const bool is_float = op->strategy == QN_STRATEGY_FLOAT || op->strategy == QN_STRATEGY_DENSE;
    const double rated = is_float ? facts->f16_ops : facts->int8_ops;
    const double ops = 2.0 * (double)op->m * (double)op->n * (double)op->k;
    const double y = (double)op->m * (double)op->n * (double)qn_dtype_bytes(op->y.dtype);
    const double bytes =
        n_weights(op, op->m) * weight_bytes(op->w[0]->head) + x_bytes(op, op->m) + y;
    const double by_bytes = facts->bandwidth > 0.0 ? bytes / facts->bandwidth * 1e6 : 0.0;
    const double by_ops = rated > 0.0 ? ops / rated * 1e6 : 0.0;
    return by_bytes > by_ops ? by_bytes : by_ops;
}

/* ---- constants given ------------------------------------------------------------------------- */

static const char *const families[QNI_CUDA_N_FAMILIES] = {"decode", "tile", "prefill", "rounded"};

static bool runs_on(const struct qni_cuda_facts *facts, const struct qni_cuda_kernel *k)
{
    return k->sm_exact ? facts->sm == k->sm : facts->sm >= k->sm;
}

/* The first row of each line stands for it. */
static bool is_first(const struct qni_cuda_kernel *rows, int32_t at)
{
    struct qni_cuda_costs line = {.family = qni_cuda_cost_family(rows[at].family),
                                  .mr = rows[at].mr,
                                  .is_int8 = is_int8(&rows[at]),
                                  .bits = qni_cuda_bits_of(&rows[at])};
    for (int32_t i = 0; i < at; i++)
        if (is_of(&line, &rows[i]))
            return false;
    return true;
}

qn_status qni_cuda_cost_get(const struct qni_cuda *cuda, const struct qni_cuda_kernel *rows,
                            int32_t n_rows, int32_t i, qn_cuda_cost *cost, qn_error *err)
{
    const struct qni_cuda_facts *facts = &cuda->facts;
    int32_t seen = 0;
    for (int32_t r = 0; r < n_rows; r++) {
        if (!runs_on(facts, &rows[r]) || !is_first(rows, r) || seen++ != i)
            continue;
        const struct qni_cuda_costs c = qni_cuda_costs_of(facts, &rows[r]);
        snprintf(cost->family, sizeof cost->family, "%s", families[c.family]);
        cost->rows = c.mr;
        cost->is_int8 = c.is_int8;
        cost->bits = c.bits;
        cost->is_given = 0;
        for (int32_t t = 0; t < facts->n_tuned; t++)
            cost->is_given = cost->is_given || is_of(&facts->tuned[t], &rows[r]);
        cost->kernel = rows[r].name;
        cost->t0_us = c.t0_us;
        cost->bandwidth = c.bandwidth * 1e9;
        cost->block_ns = c.block_ns;
        return QN_OK;
    }
    return qni_fail(err, QN_E_NOT_FOUND, "there is no line %d of costs: %d on this GPU", i, seen);
}

static qn_status check_constants(const qn_cuda_cost *cost, qn_error *err)
{
    if (!(cost->t0_us >= 0.0 && cost->t0_us <= 1e6))
        return qni_fail(err, QN_E_VALUE, "t0_us is not from 0 to 1e6");
    if (!(cost->bandwidth >= 1e6 && cost->bandwidth <= 1e18))
        return qni_fail(err, QN_E_VALUE, "bandwidth is not from 1e6 to 1e18 bytes a second");
    if (!(cost->block_ns >= 0.0 && cost->block_ns <= 1e9))
        return qni_fail(err, QN_E_VALUE, "block_ns is not from 0 to 1e9");
    return QN_OK;
}

qn_status qni_cuda_cost_set(struct qni_cuda *cuda, const struct qni_cuda_kernel *rows,
                            int32_t n_rows, const qn_cuda_cost *cost, qn_error *err)
{
    struct qni_cuda_facts *facts = &cuda->facts;
    QNI_TRY(check_constants(cost, err));
    for (int32_t r = 0; r < n_rows; r++) {
        const struct qni_cuda_kernel *row = &rows[r];
        if (!runs_on(facts, row) || row->mr != cost->rows || is_int8(row) != cost->is_int8 ||
            qni_cuda_bits_of(row) != cost->bits ||
            strncmp(families[qni_cuda_cost_family(row->family)], cost->family,
                    sizeof cost->family) != 0)
            continue;
        int32_t at = 0;
        while (at < facts->n_tuned && !is_of(&cuda->tuned[at], row))
            at++;
        if (at == QNI_CUDA_MAX_TUNED)
            return qni_fail(err, QN_E_MEMORY, "a context keeps %d lines", QNI_CUDA_MAX_TUNED);
        cuda->tuned[at] = shipped_for(facts, row);
        cuda->tuned[at].t0_us = cost->t0_us;
        cuda->tuned[at].bandwidth = cost->bandwidth * 1e-9;
        cuda->tuned[at].block_ns = cost->block_ns;
        facts->n_tuned = at < facts->n_tuned ? facts->n_tuned : at + 1;
        return QN_OK;
    }
    return qni_fail(err, QN_E_NOT_FOUND,
                    "no kernel of this GPU is of family '%.15s' with %d rows, int8 %d and %d bits",
                    cost->family, cost->rows, cost->is_int8, cost->bits);
}
