/* SPDX-License-Identifier: Apache-2.0 */
/* Which depthwise kernel serves, how long its rings are and where a thread's scratch has what.
 * Pure: the same answers when scratch is asked for and when it is used. */
#include <string.h>

#include "../../quant/reasons.h"
#include "../matmul/product.h"
#include "conv.h"
#include "depthwise.h"

/* Outputs along a row: some 3 to 70 KiB of ring for 3 x 3 taps. */
enum { LANE_TILE = 32, PIXEL_TILE = 256 };

/* ---- selection ------------------------------------------------------------------------------- */

#define QNI_DEPTHWISE_KERNEL(fn, needs, reads, layout, kind, mr, numerics)                         \
    {{#fn, NULL, needs, QNI_READS_##reads, -1, 1, mr, QNI_NUMERICS_##numerics, 0, {0}},            \
     fn,                                                                                           \
     NULL,                                                                                         \
     QNI_DEPTHWISE_##kind},
#define QNI_IMAGE_KERNEL(fn, needs, reads, layout, kind, mr, numerics)                             \
    {{#fn, NULL, needs, QNI_READS_##reads, -1, 1, mr, QNI_NUMERICS_##numerics, 0, {0}},            \
     NULL,                                                                                         \
     fn,                                                                                           \
     QNI_DEPTHWISE_##kind},
static const struct qni_depthwise_kernel kernels[] = {
#include "depthwise_kernels.inc"
};
#undef QNI_DEPTHWISE_KERNEL
#undef QNI_IMAGE_KERNEL

static int32_t kind_of(qn_strategy strategy)
{
    switch (strategy) {
    case QN_STRATEGY_INT8_ROW:
        return QNI_DEPTHWISE_ROW;
    case QN_STRATEGY_INT8_BLOCK:
        return QNI_DEPTHWISE_BLOCK;
    case QN_STRATEGY_INT8_STATIC:
        return QNI_DEPTHWISE_GIVEN;
    default:
        return QNI_DEPTHWISE_FLOAT;
    }
}

/* Why weights, x and y are not what an image kernel reads and writes. */
static const char *image_refusal(const struct qni_op *op, int32_t kind)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const bool is_static = op->strategy == QN_STRATEGY_INT8_STATIC;
    if (is_static && (head->k > QNI_EXACT_TAPS || head->n_groups > 1 ||
                      head->section[QNI_SECTION_OFFSET].bytes != 0))
        return "given codes: weights of one group without offsets";
    if (qni_op_is_raw(op))
        return "adds no int32";
    if (op->kind != QNI_CONV)
        return "serves no transposed convolutions";
    if (op->conv.xs[1] != 1 || op->conv.ys[1] != 1 || op->conv.co != 1)
        return "channels do not lie together";
    if (op->n < QNI_DEPTHWISE_LANES)
        return "fewer than 16 channels";
    if (op->x.dtype != QN_F32 && qni_image_cut_of(op, kind).wide_rows == 0)
        return "taps lie too far apart to widen what they read";
    return NULL;
}

/* The same of x, y and taps of codes. */
static const char *codes_refusal(const struct qni_op *op)
{
    const struct qni_conv *g = &op->conv;
    if (qn_dtype_bytes(op->x.dtype) != 1 || qn_dtype_bytes(op->y.dtype) != 1)
        return "x and y: i8 or u8";
    if (g->kh != 3 || g->kw != 3 || g->dilation[0] != 1 || g->dilation[1] != 1 || g->stride[1] > 2)
        return "3 x 3 taps side by side, stride 1 or 2";
    if (g->pad[1] > 2 || (g->ow - 1) * g->stride[1] - g->pad[1] + 2 > g->w + 1)
        return "pads more than two columns";
    return qni_image_is_store(op) ? NULL
                                  : "no residual, no activation but relu and relu6, no clamp";
}

/* Words of 256 bits serve before floats of 512, but not short rows: 28 columns took 79 us where
 * floats took 91, with stride 2 28 and 50, but 14 columns 78 and 60 to 68, 7 columns 49 and 30. */
static bool is_short_of(const qn_ctx *ctx, const struct qni_op *op,
                        const struct qni_depthwise_kernel *k)
{
    enum { SHORT = 28 };
    return k->row.needs == QN_ISA_AVX2 && k->kind == QNI_DEPTHWISE_CODES &&
           (ctx->isa & QN_ISA_AVX512) == QN_ISA_AVX512 && op->kernel == NULL && op->conv.w < SHORT;
}

static const char *refusal(const qn_ctx *ctx, const struct qni_op *op,
                           const struct qni_depthwise_kernel *k)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const bool is_codes = k->kind == QNI_DEPTHWISE_CODES;
    if (op->kernel != NULL && strcmp(op->kernel, k->row.name) != 0)
        return QNI_WHY_NAME;
    if ((is_codes ? QNI_DEPTHWISE_GIVEN : k->kind) != kind_of(op->strategy))
        return QNI_WHY_STRATEGY;
    if ((k->row.needs & ~ctx->isa) != 0)
        return QNI_WHY_FEATURE;
    if (k->kind != QNI_DEPTHWISE_FLOAT && head->section[QNI_SECTION_COUNTS].bytes == 0)
        return "the weights are a codebook of other than small integers";
    if (k->kind == QNI_DEPTHWISE_BLOCK && !op->quant.symmetric &&
        head->section[QNI_SECTION_SUMS].bytes == 0)
        return "the weights are packed without column sums";
    if (op->strategy == QN_STRATEGY_INT8_STATIC && head->section[QNI_SECTION_PRESCALE].bytes != 0)
        return "the weights have a prescale, which cannot be multiplied into given int8 codes";
    if (qni_op_is_raw(op) && (head->n_groups > 1 || qni_has_float_shift(&head->format)))
        return "int32 sums and int32 biases are for weights without groups and offsets";
    const char *why = k->image != NULL ? image_refusal(op, k->kind) : NULL;
    if (why == NULL && is_short_of(ctx, op, k))
        return "rows so short that wider vectors of floats are faster";
    return why == NULL && is_codes ? codes_refusal(op) : why;
}

/* ---- the shape of the work ------------------------------------------------------------------- */

/* The most that the bases of two taps of a phase differ. */
static int64_t reach(const struct qni_axis *a)
{
    const int64_t far = (int64_t)(a->taps - 1) * a->dilation;
    return a->transposed ? qni_ceil_div(far, a->stride) : far;
}

struct qni_ring qni_ring_of(const struct qni_op *op, bool by_pixel)
{
    const struct qni_axis y = qni_conv_axis(op, 0), x = qni_conv_axis(op, 1);
    const int64_t outputs = qni_axis_phase(&x, 0).count, advance = qni_axis_advance(&x);
    struct qni_ring r = {.by_pixel = by_pixel};
    r.tile = qni_min(outputs, by_pixel ? PIXEL_TILE : LANE_TILE);
    r.tile = by_pixel ? (int64_t)qni_round_up((size_t)r.tile, QNI_DEPTHWISE_LANES) : r.tile;
    const int64_t columns = reach(&x) + advance * (r.tile - 1) + 1;
    r.is_apart = columns > x.taps * r.tile;
    r.vector = by_pixel ? 1 : QNI_LANE_BLOCK;
    r.strip_columns = r.is_apart ? r.tile : by_pixel ? qni_ceil_div(columns, advance) : columns;
    r.n_strips = r.is_apart ? x.taps : by_pixel ? advance : 1;
    r.strip = r.strip_columns * r.vector;
    r.is_cyclic = reach(&y) + 1 <= 2 * (int64_t)y.taps;
    r.n_slots = r.is_cyclic ? reach(&y) + 1 : y.taps;
    return r;
}

struct qni_places qni_places_of(const struct qni_op *op, const struct qni_ring *r)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const size_t panels = QNI_LANE_BLOCK / QNI_PANEL;
    const size_t line = (size_t)qni_max(r->tile, QNI_LANE_BLOCK) * sizeof(float);
    const size_t vectors = r->by_pixel ? 1 : QNI_LANE_BLOCK;
    struct qni_places p;
    size_t at = 0;
    p.in = at;
    at += qni_round_up((size_t)head->k * sizeof(float *), 64);
    p.rows = at;
    at += qni_round_up((size_t)head->kh * sizeof(float *), 64);
    p.prescale = at;
    at += qni_round_up((size_t)head->k * sizeof(float), 64);
    p.tags = at;
    at += qni_round_up((size_t)r->n_slots * sizeof(int64_t), 64);
    p.panels = at;
    at += panels * qni_lane_weights_bytes(head);
    p.one = at;
    at += qni_lane_weights_bytes(head);
    p.ring = at;
    at += (size_t)((r->n_slots + 1) * qni_ring_slot(r)) * sizeof(float);
    p.c = at;
    at += qni_round_up((size_t)r->tile * vectors * sizeof(float), 64);
    for (int32_t i = 0; i < 4; i++, at += qni_round_up(line, 64))
        p.line[i] = at;
    p.end = at;
    return p;
}

static size_t thread_bytes(const struct qni_op *op)
{
    const struct qni_ring lanes = qni_ring_of(op, false), pixels = qni_ring_of(op, true);
    const size_t a = qni_places_of(op, &lanes).end, b = qni_places_of(op, &pixels).end;
    return qni_round_up(a > b ? a : b, 64);
}

qn_status qni_depthwise_select(const qn_ctx *ctx, const struct qni_op *op,
                               struct qni_cpu_choice *choice, qni_refusal_fn tell, void *arg)
{
    const struct qni_depthwise_kernel *chosen = NULL;
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++) {
        const char *why = refusal(ctx, op, &kernels[i]);
        if (why == NULL && chosen == NULL)
            chosen = &kernels[i];
        else if (tell != NULL)
            tell(arg, kernels[i].row.name, why != NULL ? why : "a better row serves");
    }
    for (int32_t i = 0; tell != NULL && qni_matmul_kernel_at(i) != NULL; i++)
        tell(arg, qni_matmul_kernel_at(i)->name, QNI_WHY_LONE);
    if (chosen == NULL)
        return QN_E_UNSUPPORTED;
    memset(choice, 0, sizeof *choice);
    choice->n_choices = 1;
    choice->m_from[0] = 1;
    choice->kernel[0] = choice->main = &chosen->row;
    choice->block_m = qni_ring_of(op, false).tile;
    choice->panels_per_task = QNI_LANE_BLOCK / QNI_PANEL;
    choice->thread_bytes = thread_bytes(op);
    if (chosen->image != NULL) {
        const struct qni_image_cut cut = qni_image_cut_of(op, chosen->kind);
        choice->block_m = cut.columns;
        choice->panels_per_task = (int32_t)(cut.block / QNI_PANEL);
        choice->thread_bytes = qni_round_up(cut.end, 64);
    }
    choice->n_threads = ctx->threads.n_threads;
    choice->shared_bytes = qni_tap_list_bytes(op->w[0]->head);
    choice->scratch_bytes = choice->shared_bytes + (size_t)choice->n_threads * choice->thread_bytes;
    return QN_OK;
}
