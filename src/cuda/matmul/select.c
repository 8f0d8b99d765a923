/* SPDX-License-Identifier: Apache-2.0 */
/* The table of kernels, reasons to refuse, and a model of what each would cost: select.h. For every
 * range of m the cheapest row wins; ranges are cut at 1, 2, 4, 8, ... rows, and a range is judged
 * by its upper end, which is where tiles are full. Nothing here touches the device. */
#include "select.h"

#include <string.h>

#include "../../base/compiler.h"
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
    if (qni_op_is_raw(op) && (head->n_groups > 1 || head->format.shift != QN_SHIFT_NONE))
        return "int32 sums and int32 biases are for weights without groups and offsets";
    return NULL;
}

static bool reads_for(const struct qni_op *op, int32_t reads)
{
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

/* Why a row cannot serve, or NULL if it can; whether another is better is not asked. m: rows of a
 * part; 0: any. */
static const char *refusal(const struct qni_cuda_kernel *k, const struct qni_op *op, int32_t layout,
                           const struct qni_cuda_facts *facts)
{
    if (op->kernel != NULL && strcmp(op->kernel, k->name) != 0)
        return "another kernel was asked for by name";
    if (!reads_for(op, k->reads))
        return "reads another type of activations than the strategy gives";
    if (k->layout != layout)
        return "reads another layout than the weights have";
    if (op->k == 0 && k->family != QNI_CUDA_FAMILY_TILE)
        return "is for products of something, and k is 0";
    if (facts->sm < k->sm)
        return "needs a newer GPU";
    if (k->sm_exact && facts->sm != k->sm)
        return "is for one generation of GPUs, and this is another";
    if (k->family == QNI_CUDA_FAMILY_PREFILL && op->w[0]->head->conv_groups > 1)
        return "multiplies one convolution group";
    if (k->family == QNI_CUDA_FAMILY_PREFILL && k->reads == QNI_CUDA_READS_BF16 &&
        qni_cuda_planes(op) > 1)
        return "reads one plane of x";
    if (k->reads == QNI_CUDA_READS_F16 &&
        (op->x.dtype != QN_F16 || has_section(op, QNI_SECTION_PRESCALE)))
        return "reads f16, which x (times the prescale) is not";
    return NULL;
}

/* May it have so many rows? Tiles of a grouped product are cut to its size. */
static bool takes(const struct qni_cuda_kernel *k, const struct qni_op *op, int64_t m)
{
    return k->m_max == 0 || op->kind == QNI_GROUPED || m <= k->m_max;
}

/* ---- the model ------------------------------------------------------------------------------- */

struct costs {
    int32_t sm, family, mr, is_int8, outputs, splits;
    double t0_us, bandwidth, block_ns;
};
#define QNI_CUDA_COSTS(sm, family, mr, is_int8, outputs, splits, t0, bandwidth, block_ns)          \
    {sm, QNI_CUDA_FAMILY_##family, mr, is_int8, outputs, splits, t0, bandwidth, block_ns},
static const struct costs costs[] = {
#include "tuning.inc"
};
#undef QNI_CUDA_COSTS

enum { N_COSTS = (int)(sizeof costs / sizeof *costs) };

/* The line for a row: of this GPU, then of any; of its mr, then of its family. */
static struct costs costs_of(const struct qni_cuda_facts *facts, const struct qni_cuda_kernel *k)
{
    const int32_t is_int8 = k->reads == QNI_CUDA_READS_Q8 || k->reads == QNI_CUDA_READS_Q8B;
    const struct costs *found = &costs[0];
    int32_t best = -1;
    for (int32_t i = 0; i < N_COSTS; i++) {
        const struct costs *at = &costs[i];
        if (at->family != k->family || at->is_int8 != is_int8 ||
            (at->sm != facts->sm && at->sm != 0))
            continue;
        const int32_t fits = 2 * (at->sm != 0) + (at->mr == k->mr);
        if (fits > best) {
            best = fits;
            found = at;
        }
    }
    struct costs c = *found;
    const double rated = facts->bandwidth > 0.0 ? facts->bandwidth * 1e-9 : 500.0;
    if (c.sm == 0) {
        const double each = facts->f16_ops / (double)qni_max(1, facts->multiprocessors) * 1e-12;
        c.bandwidth *= rated / 1000.0;
        c.block_ns /= each > 0.1 ? each : 1.0;
    } else if (c.bandwidth > rated) {
        c.bandwidth = rated;
    }
    return c;
}

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

/* Turns of all multiprocessors that the tiles of m rows take. */
static double turns_of(const struct qni_cuda_facts *facts, const struct qni_op *op,
                       const struct qni_cuda_kernel *kernel, const struct costs *c, int64_t m)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const double weights = n_weights(op, m);
    const int64_t mr = kernel->mr > 0 ? kernel->mr : 1,
                  machines = qni_max(1, facts->multiprocessors);
    /* Of each weight the last tile is half full, when there are several. */
    const double rows =
        weights > 1.0 ? (double)m / (double)mr + weights / 2.0 : (double)qni_ceil_div(m, mr);
    const double parts = op->kind == QNI_GROUPED ? 1.0 : (double)head->conv_groups;
    const double outputs = (double)qni_ceil_div(head->n / head->conv_groups, c->outputs);
    const double turns = rows * outputs * parts / (double)machines;
    if (turns > 1.0) /* over many turns, tiles fill each other's gaps */
        return turns > 8.0 ? turns + 0.5 : (double)(int64_t)(turns + 0.999);
    int32_t pieces = 1; /* along k */
    while (2 * pieces <= c->splits && 2 * pieces * turns <= 1.0)
        pieces *= 2;
    return 1.0 / pieces;
}

double qni_cuda_cost(const struct qni_cuda_facts *facts, const struct qni_op *op,
                     const struct qni_cuda_kernel *kernel, int64_t m)
{
    const struct costs c = costs_of(facts, kernel);
    const struct qni_packed_head *head = op->w[0]->head;
    const double planes = kernel->reads == QNI_CUDA_READS_BF16 ? qni_cuda_planes(op) : 1;
    const double blocks = (double)qni_ceil_div(head->units, 2) * planes;
    const double y = (double)m * (double)op->n * (double)qn_dtype_bytes(op->y.dtype);
    const double x = x_bytes(op, m);
    const double bytes = n_weights(op, m) * weight_bytes(head) + x + y;
    const double by_bytes = bytes / c.bandwidth * 1e-3;
    /* wgmma's sums are scaled after every group: 1.4 times the time at 64 positions, 1.8 at 32. */
    const bool is_prefill = kernel->family == QNI_CUDA_FAMILY_PREFILL && head->n_groups > 1;
    const double ends = !is_prefill || head->group_units % 4 == 0 ? 1.0
                        : head->group_units % 2 == 0              ? 1.4
                                                                  : 1.8;
    const double by_blocks = ends * turns_of(facts, op, kernel, &c, m) * blocks * c.block_ns * 1e-3;
    double us = c.t0_us + (by_bytes > by_blocks ? by_bytes : by_blocks);
    if (!qni_cuda_reads_x(op, kernel)) /* prepared first: read, written, read */
        us += 2.0 + 2.0 * x / c.bandwidth * 1e-3;
    return us;
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

/* ---- choices --------------------------------------------------------------------------------- */

enum { MAX_CANDIDATES = 32 };

struct candidates {
    const struct qni_cuda_kernel *row[MAX_CANDIDATES];
    int32_t n;
};

static const struct qni_cuda_kernel *cheapest(const struct qni_cuda_offer *offer,
                                              const struct qni_op *op, const struct candidates *c,
                                              int64_t m)
{
    const struct qni_cuda_kernel *best = NULL;
    double least = 0.0;
    for (int32_t i = 0; i < c->n; i++) {
        if (!takes(c->row[i], op, m))
            continue;
        const double us = c->n == 1 ? 0.0 : qni_cuda_cost(offer->facts, op, c->row[i], m);
        if (best == NULL || us < least) {
            best = c->row[i];
            least = us;
        }
    }
    return best;
}

static qn_status cut_ranges(const struct qni_cuda_offer *offer, const struct qni_op *op,
                            const struct candidates *candidates, struct qni_cuda_choice *c)
{
    for (int64_t from = 1; from <= qni_max(op->m, 1); from = from == 1 ? 2 : from * 2 - 1) {
        /* Ranges 1, 2, 3 to 4, 5 to 8, 9 to 16, ... */
        const int64_t end = from == 1 ? 1 : (from - 1) * 2;
        const struct qni_cuda_kernel *best =
            cheapest(offer, op, candidates, qni_min(end, qni_max(op->m, 1)));
        if (best == NULL)
            return QN_E_UNSUPPORTED; /* a row that was asked for takes fewer rows of x */
        if (c->n_choices > 0 && c->kernel[c->n_choices - 1] == best)
            continue;
        if (c->n_choices == QNI_MAX_CHOICES) { /* the third gives its range to the fourth */
            for (int32_t i = 2; i + 1 < QNI_MAX_CHOICES; i++)
                c->kernel[i] = c->kernel[i + 1];
            for (int32_t i = 3; i + 1 < QNI_MAX_CHOICES; i++)
                c->m_from[i] = c->m_from[i + 1];
            c->n_choices--;
        }
        c->kernel[c->n_choices] = best;
        c->m_from[c->n_choices] = c->n_choices == 0 ? 0 : from;
        c->n_choices++;
    }
    c->main = c->kernel[c->n_choices - 1];
    return QN_OK;
}

static void tell_refusals(const struct qni_cuda_offer *offer, const struct qni_op *op,
                          const char *general, const struct qni_cuda_choice *c, qni_refusal_fn tell,
                          void *arg)
{
    const int32_t layout = layout_of(op);
    for (int32_t i = 0; i < offer->n_rows; i++) {
        const struct qni_cuda_kernel *row = &offer->rows[i];
        bool chosen = false;
        for (int32_t j = 0; j < c->n_choices; j++)
            chosen = chosen || c->kernel[j] == row;
        if (chosen)
            continue;
        const char *why = general != NULL ? general : refusal(row, op, layout, offer->facts);
        if (why == NULL)
            why = takes(row, op, op->m) ? "would take longer by the cost model"
                                        : "takes fewer rows of x";
        tell(arg, row->name, why);
    }
}

/* A kernel of an older generation where nothing of the GPU's own serves. */
static bool is_fallback(const struct qni_cuda_offer *offer, const struct qni_op *op,
                        const struct candidates *candidates)
{
    bool older = op->kernel == NULL && offer->facts->sm >= 80;
    for (int32_t i = 0; i < candidates->n; i++)
        older = older && candidates->row[i]->sm < 80;
    return older;
}

qn_status qni_cuda_choose(const struct qni_cuda_offer *offer, const struct qni_op *op,
                          struct qni_cuda_choice *c, qni_refusal_fn tell, void *arg)
{
    const char *const general = operation_refusal(op);
    const int32_t layout = layout_of(op);
    struct candidates candidates = {.n = 0};
    for (int32_t i = 0; i < offer->n_rows && general == NULL; i++)
        if (candidates.n < MAX_CANDIDATES &&
            refusal(&offer->rows[i], op, layout, offer->facts) == NULL)
            candidates.row[candidates.n++] = &offer->rows[i];
    qn_status status = candidates.n == 0 ? QN_E_UNSUPPORTED : cut_ranges(offer, op, &candidates, c);
    if (status != QN_OK)
        c->n_choices = 0;
    if (tell != NULL)
        tell_refusals(offer, op, general, c, tell, arg);
    QNI_TRY(status);
    c->n = op->n / op->w[0]->head->conv_groups;
    c->is_fallback = is_fallback(offer, op, &candidates);
    c->predicted_us = qni_cuda_cost(offer->facts, op, c->main, op->m);
    c->roofline_us = qni_cuda_roofline(offer->facts, op);
    if (op->strategy == QN_STRATEGY_DENSE)
        c->note = "weights are dequantized in registers, as by the float strategy";
    else if (c->is_fallback)
        c->note = "tensor cores by instructions of older GPUs: none of this one's serves";
    return QN_OK;
}

qn_status qni_cuda_choose_depthwise(const struct qni_cuda_offer *offer, const struct qni_op *op,
                                    struct qni_cuda_choice *c, qni_refusal_fn tell, void *arg)
{
    const char *why = operation_refusal(op);
    c->is_depthwise = 1;
    if (why == NULL && op->kernel != NULL && strcmp(op->kernel, qni_cuda_kernel_name(c, NULL)) != 0)
        why = "groups of one channel have a kernel of their own, which was not asked for";
    for (int32_t i = 0; i < offer->n_rows && tell != NULL; i++)
        tell(arg, offer->rows[i].name,
             why != NULL ? why : "groups of one channel have a kernel of their own");
    if (why != NULL)
        return QN_E_UNSUPPORTED;
    c->n_choices = 1;
    c->n = op->n;
    c->roofline_us = qni_cuda_roofline(offer->facts, op);
    return QN_OK;
}

const char *qni_cuda_kernel_name(const struct qni_cuda_choice *choice,
                                 const struct qni_cuda_kernel *kernel)
{
    return kernel == NULL || choice->is_depthwise ? "qni_cuda_depthwise_sm75" : kernel->name;
}

const char *qni_cuda_kernel_machine(const struct qni_cuda_kernel *kernel)
{
    const int32_t sm = kernel == NULL ? 75 : kernel->sm;
    return kernel != NULL && kernel->sm_exact ? "Hopper GPUs, sm_90a"
           : sm >= 90                         ? "GPUs from sm_90 on"
           : sm >= 80                         ? "GPUs from sm_80 on"
                                              : "GPUs from sm_75 on";
}
