/* SPDX-License-Identifier: Apache-2.0 */
/* Operators whose x and w are codes of 8 bits. */
#include "claim.h"

#include <string.h>

static bool is_byte(const struct graph *g, int32_t value)
{
    int32_t type = value < 0 ? 0 : g->values[value].type;
    return type == ORT_U8 || type == ORT_I8;
}

/* Zero points: none or one of x, from wherever; constants of w, one or one an output. */
static bool zero_points(const struct graph *g, struct claim *c)
{
    if (c->x_zero >= 0 && value_count(g, c->x_zero) != 1)
        return claim_refuse(c, "the zero point of x is not known to be one number");
    if (c->w_zero < 0)
        return true;
    int64_t count = value_count(g, c->w_zero);
    if (!g->values[c->w_zero].is_constant)
        return claim_refuse(c, "the zero points of the weights are not constant");
    if (count != 1 && (count != c->n || g->values[c->w_zero].rank > 1))
        return claim_refuse(c, "%lld zero points for %lld outputs", (long long)count,
                            (long long)c->n);
    return true;
}

static bool matmul_weight(const struct graph *g, struct claim *c)
{
    const struct graph_value *w = &g->values[c->w];
    c->kind = CLAIM_MATMUL;
    c->order = ORDER_KN;
    if (w->rank != 2)
        return claim_refuse(c, "the weights have rank %d, 2 can be packed", w->rank);
    c->k = w->shape[0];
    c->n = w->shape[1];
    c->rank = g->values[c->x].rank;
    if (c->rank == 0)
        return claim_refuse(c, "x is a scalar");
    return true;
}

/* Where each operand lies among the inputs; -1: the operator has none. */
struct inputs {
    const char *op;
    int32_t x, x_scale, x_zero, w, w_scale, w_zero, y_scale, y_zero, bias;
};
static const struct inputs all[] = {
    {"MatMulInteger", 0, -1, 2, 1, -1, 3, -1, -1, -1},
    {"ConvInteger", 0, -1, 2, 1, -1, 3, -1, -1, -1},
    {"QLinearMatMul", 0, 1, 2, 3, 4, 5, 6, 7, -1},
    {"QLinearConv", 0, 1, 2, 3, 4, 5, 6, 7, 8},
    {"MatMulIntegerToFloat", 0, 2, 4, 1, 3, 5, -1, -1, 6},
    {"DynamicQuantizeMatMul", 0, -1, -1, 1, 2, 3, -1, -1, 4},
};

static int32_t input_at(const struct graph_node *node, int32_t place)
{
    return place < 0 ? -1 : node_input(node, place);
}

static bool scales(const struct graph *g, struct claim *c)
{
    int64_t count = value_count(g, c->w_scale);
    if (c->w_scale >= 0 && (!g->values[c->w_scale].is_constant ||
                            g->values[c->w_scale].type != ORT_F32 ||
                            (count != 1 && (count != c->n || g->values[c->w_scale].rank > 1))))
        return claim_refuse(c, "the scales of the weights are no constants, one or one an output");
    if (c->x_scale >= 0 && (value_count(g, c->x_scale) != 1 ||
                            g->values[c->x_scale].type != ORT_F32))
        return claim_refuse(c, "the scale of x is not known to be one number");
    if (c->y_scale >= 0 && !value_is_number(g, c->y_scale, ORT_F32))
        return claim_refuse(c, "the scale of y is not one constant");
    if (c->y_zero >= 0 && !value_is_number(g, c->y_zero, c->y_type))
        return claim_refuse(c, "the zero point of y is not one constant");
    return true;
}

static bool bias(const struct graph *g, struct claim *c, int32_t value)
{
    if (value < 0)
        return true;
    if (!value_by_channel(g, c, value) && value_count(g, value) != c->n)
        return claim_refuse(c, "the bias is not known to have one number an output");
    *(g->values[value].type == ORT_I32 ? &c->sum_bias : &c->bias) = value;
    return true;
}

bool claim_integers(const struct graph *g, struct claim *c)
{
    const struct graph_node *node = &g->nodes[c->anchor];
    const struct inputs *in = all;
    while (strcmp(in->op, node->op) != 0)
        in++;
    c->x = input_at(node, in->x);
    c->x_scale = input_at(node, in->x_scale);
    c->x_zero = input_at(node, in->x_zero);
    c->w = input_at(node, in->w);
    c->w_scale = input_at(node, in->w_scale);
    c->w_zero = input_at(node, in->w_zero);
    c->y_scale = input_at(node, in->y_scale);
    c->y_zero = input_at(node, in->y_zero);
    c->y = node_output(node, 0);
    if (c->x < 0 || c->w < 0 || c->y < 0)
        return claim_refuse(c, "an operand is missing");
    c->x_is_quantized_here = strcmp(node->op, "DynamicQuantizeMatMul") == 0;
    c->x_is_codes = true;
    c->strategy = QN_STRATEGY_INT8_STATIC;
    c->y_type = in->w_scale < 0 ? ORT_I32 : in->y_scale < 0 ? ORT_F32 : g->values[c->y].type;
    if (!is_byte(g, c->w) || (c->x_is_quantized_here ? g->values[c->x].type != ORT_F32
                                                     : !is_byte(g, c->x)))
        return claim_refuse(c, "x and the weights must be int8 or uint8");
    if (!g->values[c->w].is_constant)
        return claim_refuse(c, "the weights are not constant");
    if (strstr(node->op, "Conv") == NULL ? !matmul_weight(g, c) : !claim_geometry(g, c))
        return false;
    if (c->k > 33025)
        return claim_refuse(c, "sums of %lld products may leave int32", (long long)c->k);
    return zero_points(g, c) && scales(g, c) && bias(g, c, input_at(node, in->bias));
}
