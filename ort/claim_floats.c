/* SPDX-License-Identifier: Apache-2.0 */
/* MatMul, Gemm, Conv and ConvTranspose of floats whose weights come out of a DequantizeLinear, or
 * are constant floats to be quantized on load; and MatMulNBits. Where x comes out of a
 * DequantizeLinear, too, the product is one of integers. */
#include "claim.h"

#include <string.h>

#include <quern/weights.h>

static const struct graph_node *producer(const struct graph *g, int32_t value)
{
    return value < 0 || g->values[value].producer < 0 ? NULL
                                                      : &g->nodes[g->values[value].producer];
}

static bool is_ours_alone(const struct graph *g, int32_t value)
{
    return g->values[value].n_uses == 1 && !g->values[value].leaves;
}

static bool is_dequantized(const struct graph *g, int32_t value)
{
    const struct graph_node *node = producer(g, value);
    return node != NULL && node_is(node, "", "DequantizeLinear");
}

/* The two axes of a matrix, swapped. */
static bool is_transposed(const struct graph *g, int32_t value)
{
    const struct graph_node *node = producer(g, value);
    int64_t perm[8] = {1, 0};
    if (node == NULL || !node_is(node, "", "Transpose"))
        return false;
    size_t count = node_ints(g, node, "perm", perm, 8);
    return (count == 0 || count == 2) && perm[0] == 1 && perm[1] == 0;
}

bool floats_concern(const struct graph *g, const struct settings *settings, int32_t number)
{
    const struct graph_node *node = &g->nodes[number];
    if (!node_is(node, "", "MatMul") && !node_is(node, "", "Gemm") && !node_is(node, "", "Conv") &&
        !node_is(node, "", "ConvTranspose"))
        return false;
    int32_t w = node_input(node, 1);
    if (w < 0)
        return false;
    if (is_transposed(g, w))
        w = node_input(producer(g, w), 0);
    return is_dequantized(g, w) || (settings->quantize[0] != '\0' && g->values[w].is_constant &&
                                    g->values[w].type == ORT_F32);
}

static bool is_code_type(int32_t type)
{
    return type == ORT_U8 || type == ORT_I8 || type == ORT_U4 || type == ORT_I4;
}

static bool same_dimensions(const struct graph_value *a, const struct graph_value *b, int32_t axis,
                            int64_t blocks)
{
    if (a->rank != b->rank)
        return false;
    for (int32_t i = 0; i < a->rank; i++)
        if (a->shape[i] != (i == axis ? blocks : b->shape[i]))
            return false;
    return true;
}

/* Scales (and zero points) of weights: one, one an output, or one for a block along the
 * reduction. Where the outputs and the reduction lie is told by the order. */
static bool scales_of(const struct graph *g, struct claim *c, const struct graph_node *node)
{
    const struct graph_value *w = &g->values[c->w], *scale = &g->values[c->w_scale];
    int64_t axis = node_int(g, node, "axis", 1), block = node_int(g, node, "block_size", 0);
    int32_t of_outputs = c->order == ORDER_KN || c->order == ORDER_IOHW ? 1 : 0;
    axis += axis < 0 ? w->rank : 0;
    if (!scale->is_constant || scale->type != ORT_F32 || scale->rank < 0)
        return claim_refuse(c, "the scales of the weights are no constants of f32");
    if (c->w_zero >= 0 && (!g->values[c->w_zero].is_constant ||
                           g->values[c->w_zero].type != w->type ||
                           value_count(g, c->w_zero) != value_count(g, c->w_scale)))
        return claim_refuse(c, "the zero points of the weights are no constants like the scales");
    if (block == 0) {
        if (value_count(g, c->w_scale) == 1)
            return true;
        if (axis != of_outputs || scale->rank != 1 || scale->shape[0] != w->shape[axis])
            return claim_refuse(c, "the scales are not one an output");
        return true;
    }
    if (axis != 1 - of_outputs || c->order == ORDER_IOHW ||
        !same_dimensions(scale, w, (int32_t)axis, (w->shape[axis] + block - 1) / block))
        return claim_refuse(c, "blocks of %lld along axis %lld", (long long)block,
                            (long long)axis);
    if (c->order == ORDER_OIHW && w->shape[1] % block != 0)
        return claim_refuse(c, "blocks of %lld do not divide %lld channels", (long long)block,
                            (long long)w->shape[1]);
    c->w_block = block;
    return true;
}

/* Shapes of a matrix of weights; swapped: it is [n, k]. */
static bool matrix(const struct graph *g, struct claim *c, bool swapped)
{
    const struct graph_value *w = &g->values[c->w];
    c->kind = CLAIM_MATMUL;
    c->order = swapped ? ORDER_NK : ORDER_KN;
    if (w->rank != 2)
        return claim_refuse(c, "the weights have rank %d, 2 can be packed", w->rank);
    c->k = w->shape[swapped ? 1 : 0];
    c->n = w->shape[swapped ? 0 : 1];
    c->rank = g->values[c->x].rank;
    if (c->rank == 0 || c->n < 1 || c->k < 1)
        return claim_refuse(c, "a product of empty operands");
    return true;
}

static bool weights(const struct graph *g, const struct settings *settings, struct claim *c)
{
    const struct graph_node *node = &g->nodes[c->anchor];
    bool convolution = strncmp(node->op, "Conv", 4) == 0;
    bool swapped = !convolution && node_int(g, node, "transB", 0) != 0;
    int32_t value = node_input(node, 1);
    const struct graph_node *dequantize = NULL;
    if (!convolution && is_transposed(g, value)) {
        if (!is_ours_alone(g, value) || !claim_add(c, g->values[value].producer))
            return claim_refuse(c, "the transposed weights are read elsewhere, too");
        value = node_input(producer(g, value), 0);
        swapped = !swapped;
    }
    if (is_dequantized(g, value)) {
        if (!is_ours_alone(g, value) || !claim_add(c, g->values[value].producer))
            return claim_refuse(c, "the dequantized weights are read elsewhere, too");
        dequantize = producer(g, value);
        c->w = node_input(dequantize, 0);
        c->w_scale = node_input(dequantize, 1);
        c->w_zero = node_input(dequantize, 2);
        if (c->w < 0 || c->w_scale < 0 || !is_code_type(g->values[c->w].type))
            return claim_refuse(c, "the weights are no codes of 4 or 8 bits");
    } else {
        c->w = value;
        c->w_is_floats = true;
    }
    if (!g->values[c->w].is_constant)
        return claim_refuse(c, "the weights are not constant");
    if (convolution ? !claim_geometry(g, c) : !matrix(g, c, swapped))
        return false;
    if (dequantize != NULL)
        return scales_of(g, c, dequantize);
    if (qn_format_parse(settings->quantize, &c->format, NULL) != QN_OK ||
        qn_format_groups(&c->format, c->k, c->k / (convolution ? c->kernel[0] * c->kernel[1] : 1)) <
            1)
        return claim_refuse(c, "%s is no format for %lld inputs", settings->quantize,
                            (long long)c->k);
    return true;
}

/* x as codes, where one constant scale and zero point make floats of them. */
static void take_codes(const struct graph *g, struct claim *c)
{
    const struct graph_node *node = producer(g, c->x);
    if (c->w_is_floats || !is_dequantized(g, c->x) || !is_ours_alone(g, c->x) || c->k > 33025)
        return;
    int32_t codes = node_input(node, 0), scale = node_input(node, 1), zero = node_input(node, 2);
    int32_t type = codes < 0 ? 0 : g->values[codes].type;
    if ((type != ORT_U8 && type != ORT_I8) || !value_is_number(g, scale, ORT_F32) ||
        (zero >= 0 && !value_is_number(g, zero, type)) ||
        !claim_add(c, g->values[c->x].producer))
        return;
    c->x = codes;
    c->x_scale = scale;
    c->x_zero = zero;
    c->x_is_codes = true;
    c->strategy = QN_STRATEGY_INT8_STATIC;
}

/* A zero point that changes nothing: none, or a constant of zeros of i32. */
static bool is_absent_or_zeros(const struct graph *g, int32_t value)
{
    struct tensor t;
    if (value < 0)
        return true;
    if (!graph_constant(g, value, &t) || t.type != ORT_I32)
        return false;
    for (int64_t i = 0; i < t.count; i++)
        if (((const int32_t *)t.data)[i] != 0)
            return false;
    return true;
}

/* The bias operand: floats, or codes of 32 bits, which are in units of x's and the weights'
 * scales. */
static bool take_bias(const struct graph *g, struct claim *c, int32_t value)
{
    if (value < 0)
        return true;
    if (is_dequantized(g, value)) {
        const struct graph_node *node = producer(g, value);
        int32_t codes = node_input(node, 0);
        if (!c->x_is_codes || c->w_block != 0 || codes < 0 || !g->values[codes].is_constant ||
            g->values[codes].type != ORT_I32 || value_count(g, codes) != c->n ||
            !is_absent_or_zeros(g, node_input(node, 2)) ||
            !is_ours_alone(g, value) || !claim_add(c, g->values[value].producer))
            return claim_refuse(c, "its bias is dequantized in another way than x and the weights");
        c->sum_bias = codes;
        return true;
    }
    if (g->values[value].type != ORT_F32)
        return claim_refuse(c, "its bias is not of f32");
    bool flat = g->values[value].rank == 1 && value_count(g, value) == c->n;
    if (!flat && (c->kind != CLAIM_MATMUL || !value_by_channel(g, c, value)))
        return claim_refuse(c, "the bias is not known to have one number an output");
    c->bias = value;
    return true;
}

bool claim_floats(const struct graph *g, const struct settings *settings, struct claim *c)
{
    const struct graph_node *node = &g->nodes[c->anchor];
    c->x = node_input(node, 0);
    c->y = node_output(node, 0);
    c->y_type = ORT_F32;
    c->strategy = settings->strategy;
    if (c->x < 0 || c->y < 0 || g->values[c->x].type != ORT_F32 ||
        g->values[c->y].type != ORT_F32)
        return claim_refuse(c, "x is not of f32");
    if (node_is(node, "", "Gemm") &&
        (node_int(g, node, "transA", 0) != 0 || node_float(g, node, "alpha", 1.0f) != 1.0f ||
         (node_input(node, 2) >= 0 && node_float(g, node, "beta", 1.0f) != 1.0f)))
        return claim_refuse(c, "Gemm with transA, or alpha or beta other than 1");
    if (!weights(g, settings, c))
        return false;
    take_codes(g, c);
    return take_bias(g, c, node_input(node, 2));
}

bool claim_nbits(const struct graph *g, const struct settings *settings, struct claim *c)
{
    const struct graph_node *node = &g->nodes[c->anchor];
    int64_t bits = node_int(g, node, "bits", 4), level = node_int(g, node, "accuracy_level", 0);
    c->kind = CLAIM_MATMUL;
    c->order = ORDER_NK;
    c->x = node_input(node, 0);
    c->w = node_input(node, 1);
    c->w_scale = node_input(node, 2);
    c->w_zero = node_input(node, 3);
    c->y = node_output(node, 0);
    c->y_type = ORT_F32;
    c->n = node_int(g, node, "N", 0);
    c->k = node_int(g, node, "K", 0);
    c->w_block = node_int(g, node, "block_size", 0);
    c->strategy = settings->has_strategy ? settings->strategy
                  : level == 4           ? QN_STRATEGY_INT8_BLOCK
                                         : QN_STRATEGY_FLOAT;
    if (c->x < 0 || c->w < 0 || c->w_scale < 0 || c->y < 0 || g->values[c->x].type != ORT_F32)
        return claim_refuse(c, "x is not of f32");
    if (node_input(node, 4) >= 0)
        return claim_refuse(c, "its columns are in another order (g_idx)");
    if ((bits != 2 && bits != 4 && bits != 8) || c->n < 1 || c->k < 1 || c->w_block < 16)
        return claim_refuse(c, "%lld bits in blocks of %lld", (long long)bits,
                            (long long)c->w_block);
    c->nbits = (int32_t)bits;
    int64_t blocks = (c->k + c->w_block - 1) / c->w_block;
    const struct graph_value *w = &g->values[c->w], *scale = &g->values[c->w_scale];
    if (!w->is_constant || w->type != ORT_U8 ||
        value_count(g, c->w) != c->n * blocks * (c->w_block * bits / 8) || !scale->is_constant ||
        scale->type != ORT_F32 || value_count(g, c->w_scale) != c->n * blocks)
        return claim_refuse(c, "codes or scales that are not constant, of f32 or of that size");
    if (c->w_zero >= 0) {
        const struct graph_value *zero = &g->values[c->w_zero];
        bool packed = zero->type == ORT_U8 &&
                      value_count(g, c->w_zero) == c->n * ((blocks * bits + 7) / 8);
        bool floats = zero->type == ORT_F32 && value_count(g, c->w_zero) == c->n * blocks;
        if (!zero->is_constant || (!packed && !floats))
            return claim_refuse(c, "zero points that are not constant or not of that size");
    }
    c->rank = g->values[c->x].rank;
    return take_bias(g, c, node_input(node, 5));
}
