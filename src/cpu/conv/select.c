/* SPDX-License-Identifier: Apache-2.0 */
/* Which row of the table serves a convolution: the first one that has no reason to refuse it. What
 * a row cannot compute it always refuses; what another row computes faster it refuses unless it is
 * asked for by name. Pure. */
#include <string.h>

#include "../../quant/reasons.h"
#include "../layouts.h"
#include "conv.h"
#include "depthwise.h"
#include "direct_shape.h"
#include "groups_shape.h"

#define QNI_CONV_KERNEL(fn_, needs, layout, strategy_, algorithm_, m_min, mr, helpers_)            \
    {                                                                                              \
        .row = {#fn_,                                                                              \
                NULL,                                                                              \
                needs,                                                                             \
                QNI_CONV_READS_##strategy_,                                                        \
                QNI_LAYOUT_##layout,                                                               \
                m_min,                                                                             \
                mr,                                                                                \
                QNI_CONV_NUMERICS_##strategy_,                                                     \
                0,                                                                                 \
                {0}},                                                                              \
        .strategy = QN_STRATEGY_##strategy_,                                                       \
        .algorithm = QNI_CONV_##algorithm_,                                                        \
        .fn.QNI_CONV_TAKES_##algorithm_ = fn_,                                                     \
        .helpers.QNI_CONV_TAKES_##algorithm_ = helpers_,                                           \
    },
static const struct qni_conv_kernel kernels[] = {
#include "kernels.inc"
};
#undef QNI_CONV_KERNEL
enum { N_KERNELS = sizeof kernels / sizeof *kernels };

const struct qni_conv_kernel *qni_conv_kernel_at(int32_t i)
{
    return i < N_KERNELS ? &kernels[i] : NULL;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Codes that are read as they are packed, in the order of the image, one scale an output. */
static const char *refusal_of_packed(const struct qni_op *op, const struct qni_conv_kernel *k)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const bool moved = head->n_runs > 1 || head->section[QNI_SECTION_PERM].bytes != 0;
    if (head->n_groups > 1 || qni_cut_of(head, k->row.reads).n_segments > 1)
        return "reads weights of one scale an output";
    if (head->section[QNI_SECTION_OFFSET].bytes != 0)
        return "reads weights without offsets";
    if (moved || head->section[QNI_SECTION_PRESCALE].bytes != 0)
        return "reads the image as it is, for weights neither permuted nor prescaled";
    if (qni_conv_is_direct(k->algorithm) && qni_op_x_zero(op) != 0 &&
        qni_direct_column_sums(op->w[0]) == NULL)
        return "the weights are packed without column sums";
    return NULL;
}

/* Weights that the driver expands for its kernels. */
static const char *refusal_of_expanded(const struct qni_op *op, const struct qni_conv_kernel *k)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const bool is_groups = k->algorithm == QNI_CONV_GROUPS;
    const bool has_prescale = head->section[QNI_SECTION_PRESCALE].bytes != 0;
    const bool has_shift = is_groups ? head->section[QNI_SECTION_OFFSET].bytes != 0
                                     : qni_has_float_shift(&head->format);
    if (k->strategy != QN_STRATEGY_FLOAT && head->section[QNI_SECTION_COUNTS].bytes == 0)
        return "the weights are a codebook of other than small integers";
    if (k->strategy == QN_STRATEGY_INT8_BLOCK && !op->quant.symmetric &&
        head->section[QNI_SECTION_SUMS].bytes == 0)
        return "the weights are packed without column sums";
    if (k->strategy == QN_STRATEGY_INT8_STATIC && has_prescale)
        return "the weights have a prescale, which cannot be multiplied into given int8 codes";
    if (qni_op_is_raw(op) && (head->n_groups > 1 || has_shift))
        return "int32 sums and int32 biases are for weights without groups and offsets";
    if (!is_groups || k->strategy == QN_STRATEGY_FLOAT)
        return NULL;
    if (has_prescale)
        return "the weights have a prescale, and x is read as it is";
    if (!qni_groups_order(op, k->strategy, NULL, NULL))
        return "segments are not whole taps, or too long for exact sums of floats";
    return NULL;
}

/* ---- images of bytes ------------------------------------------------------------------------- */

/* ISAs with an int8 dot product. */
static const uint64_t dot_product_isas =
    QN_ISA_AVX_VNNI | QN_ISA_VNNI512 | QN_ISA_NEON | QN_ISA_DOTPROD | QN_ISA_I8MM;

/* Groups whose words (groups_x86_avx2_words.c) take less time than rows that gather (measured,
 * without AVX-512: 0.4 to 0.9 of it): 3 x 3 taps in squares, or few channels. */
static bool has_words(const qn_ctx *ctx, const struct qni_op *op)
{
    enum { FEW = 32, MOST = 64 * 1024 };
    const struct qni_conv *c = &op->conv;
    bool squares = c->kh == 3 && c->kw == 3;
    for (int axis = 0; axis < 2; axis++)
        squares = squares && c->stride[axis] == 1 && c->dilation[axis] == 1;
    return c->groups > 1 && (ctx->isa & QN_ISA_AVX512) == 0 && c->ci % 4 == 0 &&
           (squares ? (int64_t)qni_round_up((size_t)c->co, QNI_PANEL) * op->k <= MOST
                    : c->ci <= FEW && c->co <= FEW);
}

/* Groups whose outputs fill a vector of words, which take 0.60 to 0.98 of the time of rows that
 * gather with AVX-512 VNNI (32 groups of 8 channels, 1 x 1 to 5 x 5 taps). */
static bool is_lane_of_words(const struct qni_op *op, const struct qni_conv_kernel *k)
{
    enum { LANES = 8 };
    return k->row.needs == QN_ISA_VNNI512 && op->conv.groups > 1 && op->conv.ci == LANES &&
           op->conv.co == LANES;
}

/* Where other rows are faster than those that gather (measured: a group of 4 channels takes 2 to 3
 * times as long as floats of groups, of 8 0.6 to 0.8 of it; 49 rows of a 1 x 1 0.9 to 1.0 of words'
 * time; nibbles 1.1 to 1.3 of their patches, when AVX2 made int16 of them). */
static const char *refusal_to_gather(const qn_ctx *ctx, const struct qni_op *op,
                                     const struct qni_conv_kernel *k)
{
    enum { FEW = 8, FEW_ROWS = 48 };
    const bool has_dot_product = (k->row.needs & dot_product_isas) != 0;
    if ((ctx->isa & QN_ISA_AMX_INT8) != 0)
        return "this CPU multiplies tiles, which other rows do";
    if (!has_dot_product && (ctx->isa & dot_product_isas) != 0)
        return "this CPU multiplies bytes, which other rows do";
    if (op->conv.groups > 1 && (op->conv.ci < FEW || op->conv.co < FEW))
        return "groups have too few channels";
    if (has_dot_product ? is_lane_of_words(op, k) : has_words(ctx, op))
        return "groups are faster as words of their own";
    if (!has_dot_product && k->algorithm == QNI_CONV_GATHERS && op->conv.kh * op->conv.kw == 1 &&
        op->m < FEW_ROWS)
        return "rows are too few to prepare the weights for them";
    return NULL;
}

/* Lines of four outputs and more, whose taps are runs of pixels that overlap. */
static const char *refusal_of_toom(const struct qni_op *op)
{
    const struct qni_conv *c = &op->conv;
    const int64_t run = c->dilation[1] == 1 ? c->kw : 1;
    if (c->ow < 4 || !qni_direct_has_planes(op) || c->groups != 1 ||
        !qni_direct_fits_toom((int64_t)c->stride[1] * c->ci, run * c->ci, op->k))
        return "taps are not 3 to 4 times as long as the 6 or 8 bytes between outputs";
    return NULL;
}

/* Sums are right up to 2^29 / 128 / 128 positions. */
static const char *refusal_of_squares(const struct qni_op *op, bool are_fours)
{
    const struct qni_conv *c = &op->conv;
    if (c->kh != 3 || c->kw != 3 || c->ci % QNI_UNIT != 0)
        return "squares are of 3 x 3 taps, and whole units of channels";
    for (int axis = 0; axis < 2; axis++)
        if (c->stride[axis] != 1 || c->dilation[axis] != 1)
            return "squares are of taps and outputs that are neighbours";
    if (are_fours && c->ci > QNI_DIRECT_SQUARES_FEW)
        return "sums of so many channels are more than squares of 4 x 4 hold";
    if (c->ci > QNI_DIRECT_SQUARES_CHANNELS || !qni_direct_has_planes(op))
        return "squares are of planes and not too many channels";
    return NULL;
}

/* Products of squares and the weights that are made for them: nanoseconds of a channel and an
 * output, 100 times (measured). */
static int64_t squares_cost(const struct qni_conv *c, int64_t side)
{
    const int64_t squares = c->batch * qni_ceil_div(c->oh, side) * qni_ceil_div(c->ow, side);
    return side == 4 ? squares * 52 + 300 : squares * 21 + 80;
}

/* To products of taps, and to the other squares. */
static bool squares_pay(const struct qni_conv *c, bool are_fours)
{
    const int64_t cost = squares_cost(c, are_fours ? 4 : 2);
    return cost <= c->batch * c->oh * c->ow * 9 && (!are_fours || cost < squares_cost(c, 2));
}

static const char *refusal_of_direct(const qn_ctx *ctx, const struct qni_op *op,
                                     const struct qni_conv_kernel *k)
{
    const bool gathers = k->algorithm != QNI_CONV_TILES;
    const bool are_fours = k->algorithm == QNI_CONV_WINOGRAD4X4;
    const bool in_squares = qni_conv_in_squares(k->algorithm);
    const char *why = NULL;
    if (op->conv.groups != 1 && !(gathers ? qni_direct_has_lines(op) : qni_direct_has_planes(op)))
        return "direct rows of more than one group are copied to planes, which this image is not";
    if (gathers && op->kernel == NULL)
        why = refusal_to_gather(ctx, op, k);
    if (why == NULL && k->algorithm == QNI_CONV_TOOM)
        why = refusal_of_toom(op);
    if (why == NULL && in_squares)
        why = refusal_of_squares(op, are_fours);
    if (why == NULL && in_squares && op->kernel == NULL && !squares_pay(&op->conv, are_fours))
        why = "squares take longer where outputs are few";
    if (why == NULL && (op->m < k->row.m_min || op->k == 0))
        why = "fewer outputs than a tile has rows";
    return why;
}

/* ---- groups of few channels ------------------------------------------------------------------ */

/* Measured. Patches of many outputs are multiplied as bytes, four products to one of floats; and
 * for few pixels the weights of large groups are not worth making. */
static bool is_slower(const struct qni_op *op, const struct qni_conv_kernel *k)
{
    const bool is_dynamic =
        k->strategy != QN_STRATEGY_FLOAT && k->strategy != QN_STRATEGY_INT8_STATIC;
    const bool is_large = op->conv.co > QNI_PANEL && k->algorithm != QNI_CONV_WORDS;
    return is_large && (is_dynamic || (k->helpers.groups->lanes < QNI_GROUPS_LANES && op->m < 24));
}

/* Weights of one group, as floats, that pass by for every few outputs; of many outputs, matmul has
 * the better kernels. */
enum { SET_BYTES = 256 * 1024, BAND_BYTES = 4 << 20, OUTPUTS = 256 };

static const char *refusal_of_groups(const struct qni_op *op, const struct qni_conv_kernel *k)
{
    const struct qni_conv *c = &op->conv;
    if (op->m == 0 || op->k == 0 || op->n == 0)
        return "nothing to do";
    const int64_t outputs = (int64_t)qni_round_up((size_t)c->co, QNI_GROUPS_LANES);
    if (c->co > OUTPUTS || outputs * op->k > SET_BYTES / (int64_t)sizeof(float))
        return "a group has many weights";
    const struct qni_groups_shape s = qni_groups_shape_of(op, k);
    if (s.height * s.width * s.block * s.inputs > BAND_BYTES / (int64_t)sizeof(float))
        return "taps lie too far apart";
    if (op->kernel == NULL && is_slower(op, k))
        return "a product of patches is faster";
    if (k->algorithm == QNI_CONV_WORDS && (c->ci % 4 != 0 || k->helpers.groups->lanes / c->co > 2))
        return "channels are not in fours, or outputs too few";
    return NULL;
}

/* ---- groups of one channel ------------------------------------------------------------------- */

/* Why weights, x and y are not what an image kernel reads and writes. */
static const char *image_refusal(const struct qni_op *op, bool is_codes)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const bool is_static = op->strategy == QN_STRATEGY_INT8_STATIC;
    if (is_static && (head->k > QNI_EXACT_TAPS || head->n_groups > 1 ||
                      head->section[QNI_SECTION_OFFSET].bytes != 0))
        return "given codes: weights of one group without offsets";
    if (op->y.dtype == QN_I32 || qni_op_has_raw_zeros(op))
        return "gives no int32 sums";
    if (op->kind != QNI_CONV)
        return "serves no transposed convolutions";
    if (op->conv.xs[1] != 1 || op->conv.ys[1] != 1 || op->conv.co != 1)
        return "channels do not lie together";
    if (op->n < QNI_DEPTHWISE_LANES)
        return "fewer than 16 channels";
    if (op->x.dtype != QN_F32 && qni_image_cut_of(op, is_codes, 1).wide_rows == 0)
        return "taps lie too far apart to widen what they read";
    return NULL;
}

/* Why x, y and taps are not what a kernel of codes reads and writes. */
static const char *codes_refusal(const struct qni_op *op)
{
    const struct qni_conv *g = &op->conv;
    if (qni_op_is_raw(op))
        return "adds no int32";
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
static bool is_short_of(const qn_ctx *ctx, const struct qni_op *op, const struct qni_conv_kernel *k)
{
    enum { SHORT = 28 };
    return k->row.needs == QN_ISA_AVX2 && k->algorithm == QNI_CONV_CODES &&
           (ctx->isa & QN_ISA_AVX512) == QN_ISA_AVX512 && op->kernel == NULL && op->conv.w < SHORT;
}

static const char *refusal_of_depthwise(const qn_ctx *ctx, const struct qni_op *op,
                                        const struct qni_conv_kernel *k)
{
    const bool is_codes = k->algorithm == QNI_CONV_CODES;
    const char *why = NULL;
    if (k->algorithm != QNI_CONV_RING)
        why = image_refusal(op, is_codes);
    if (why == NULL && is_short_of(ctx, op, k))
        why = "rows so short that wider vectors of floats are faster";
    return why == NULL && is_codes ? codes_refusal(op) : why;
}

/* ---- all ------------------------------------------------------------------------------------- */

static const char *refusal(const qn_ctx *ctx, const struct qni_op *op,
                           const struct qni_conv_kernel *k)
{
    const bool is_direct = qni_conv_is_direct(k->algorithm), is_lone = qni_is_depthwise(op);
    const bool is_depthwise = qni_conv_is_depthwise(k->algorithm);
    if (op->kernel != NULL && strcmp(op->kernel, k->row.name) != 0)
        return QNI_WHY_NAME;
    if (is_lone && !is_depthwise)
        return QNI_WHY_LONE;
    if (is_depthwise ? !is_lone : op->kind != QNI_CONV)
        return QNI_WHY_KIND;
    if (!is_depthwise && !is_direct && (op->conv.groups < 2 || op->conv.ci < 2))
        return QNI_WHY_KIND;
    if (k->strategy != qni_conv_strategy(op))
        return QNI_WHY_STRATEGY;
    if ((k->row.needs & ~ctx->isa) != 0)
        return QNI_WHY_FEATURE;
    const bool is_packed = k->row.layout != QNI_LAYOUT_ROWS;
    if (is_packed) {
        const struct qni_layout *layout = qni_layout_find(op->w[0]->head->layout);
        if (layout == NULL || layout->layout != k->row.layout || layout->is_compact)
            return QNI_WHY_LAYOUT;
    }
    const char *why = is_packed ? refusal_of_packed(op, k) : refusal_of_expanded(op, k);
    if (why == NULL)
        why = is_direct      ? refusal_of_direct(ctx, op, k)
              : is_depthwise ? refusal_of_depthwise(ctx, op, k)
                             : refusal_of_groups(op, k);
    return why;
}

const struct qni_conv_kernel *qni_conv_stand_in(const qn_ctx *ctx,
                                                const struct qni_conv_kernel *kernel)
{
    const struct qni_conv_kernel *k = kernels;
    if (kernel->algorithm != QNI_CONV_CODES)
        return NULL;
    while (k->algorithm != QNI_CONV_IMAGE || k->strategy != kernel->strategy ||
           (k->row.needs & ~ctx->isa) != 0)
        k++; /* the portable row serves everywhere */
    return k;
}

const struct qni_conv_kernel *qni_conv_choose(const qn_ctx *ctx, const struct qni_op *op,
                                              qni_refusal_fn tell, void *arg)
{
    const struct qni_conv_kernel *chosen = NULL;
    for (const struct qni_conv_kernel *k = kernels; k < kernels + N_KERNELS; k++) {
        if (chosen != NULL && tell == NULL)
            break;
        const char *why = refusal(ctx, op, k);
        if (why == NULL && chosen == NULL)
            chosen = k;
        else if (tell != NULL && (chosen == NULL || k != qni_conv_stand_in(ctx, chosen)))
            tell(arg, k->row.name, why != NULL ? why : "a better row serves");
    }
    return chosen;
}
