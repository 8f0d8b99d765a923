/* SPDX-License-Identifier: Apache-2.0 */
/* What follows an operator and can be fused behind it: sums become floats, are scaled, get a bias,
 * an activation, another tensor, and codes again. A value is followed only where one node reads it
 * and no one else, so that no path leaves the claim and comes back. */
#include "claim.h"

#include <math.h>
#include <string.h>

bool value_by_channel(const struct graph *g, const struct claim *c, int32_t value)
{
    if (value < 0 || g->values[value].rank < 0)
        return false;
    const struct graph_value *v = &g->values[value];
    int32_t rank = c->rank;
    if (rank < 0) { /* A product whose x has a rank known later, which is 1 at least. */
        rank = 1;
        if (c->kind != CLAIM_MATMUL)
            return false;
    }
    if (v->rank > rank)
        return false;
    int32_t channel = c->kind == CLAIM_MATMUL || c->channels_last ? rank - 1 : 1;
    for (int32_t i = 0; i < v->rank; i++)
        if (v->shape[i] != 1 && (i + rank - v->rank != channel || v->shape[i] != c->n))
            return false;
    return true;
}

static bool same_shape(const struct graph *g, int32_t a, int32_t b)
{
    const struct graph_value *x = &g->values[a], *y = &g->values[b];
    return value_count(g, a) >= 0 && x->rank == y->rank &&
           memcmp(x->shape, y->shape, (size_t)x->rank * sizeof *x->shape) == 0;
}

/* The other operand of a node of two; -1 where the value is both. */
static int32_t other(const struct graph_node *node, int32_t value)
{
    int32_t a = node_input(node, 0), b = node_input(node, 1);
    return a == value ? (b == value ? -1 : b) : a;
}

static bool take_add(const struct graph *g, struct claim *c, int32_t operand)
{
    if (c->y_type == ORT_I32) {
        if (c->sum_bias >= 0 || operand < 0 || g->values[operand].type != ORT_I32 ||
            !value_by_channel(g, c, operand))
            return false;
        c->sum_bias = operand;
        return true;
    }
    if (operand < 0 || c->y_type != ORT_F32 || g->values[operand].type != ORT_F32)
        return false;
    /* The epilogue has one bias, of i32 or of floats. */
    if (c->bias < 0 && c->sum_bias < 0 && c->act == QN_ACT_NONE && !c->has_clamp &&
        c->residual < 0 && value_by_channel(g, c, operand)) {
        c->bias = operand;
        return true;
    }
    if (c->residual < 0 && same_shape(g, c->y, operand)) {
        c->residual = operand;
        c->residual_after = c->act != QN_ACT_NONE || c->has_clamp;
        return true;
    }
    return false;
}

static bool take_factor(const struct graph *g, struct claim *c, int32_t operand)
{
    if (c->y_type != ORT_F32 || c->n_factors == CLAIM_MAX_FACTORS || c->bias >= 0 ||
        c->residual >= 0 || c->act != QN_ACT_NONE || c->has_clamp ||
        !value_by_channel(g, c, operand) || g->values[operand].type != ORT_F32)
        return false;
    c->factors[c->n_factors++] = operand;
    return true;
}

static bool take_act(struct claim *c, qn_act act)
{
    if (c->y_type != ORT_F32 || c->act != QN_ACT_NONE || c->has_clamp || c->residual_after)
        return false;
    c->act = act;
    return true;
}

/* Clip by constants. */
static bool take_clip(const struct graph *g, struct claim *c, const struct graph_node *node)
{
    struct tensor bound;
    float limits[2] = {-INFINITY, INFINITY};
    if (c->y_type != ORT_F32 || c->has_clamp || c->residual_after)
        return false;
    for (int32_t i = 0; i < 2; i++) {
        int32_t value = node_input(node, 1 + i);
        if (value < 0)
            continue;
        if (!graph_constant(g, value, &bound) || bound.count != 1 || bound.type != ORT_F32)
            return false;
        limits[i] = *(const float *)bound.data;
    }
    limits[0] = node_float(g, node, "min", limits[0]); /* Attributes before opset 11. */
    limits[1] = node_float(g, node, "max", limits[1]);
    if (!(limits[0] <= limits[1]) || (limits[0] == 0.0f && limits[1] == 0.0f))
        return false;
    c->clamp_lo = limits[0];
    c->clamp_hi = limits[1];
    c->has_clamp = true;
    return true;
}

/* Codes again, by one constant scale and zero point: of integer products whose scales are in the
 * model. */
static bool take_quantize(const struct graph *g, struct claim *c, const struct graph_node *node)
{
    int32_t scale = node_input(node, 1), zero = node_input(node, 2);
    int32_t y = node_output(node, 0);
    if (!c->x_is_codes || !value_is_number(g, c->x_scale, ORT_F32) || c->y_type != ORT_F32 ||
        c->residual >= 0 || y < 0 || node_input(node, 0) != c->y ||
        !value_is_number(g, scale, ORT_F32))
        return false;
    int32_t type = zero >= 0 ? g->values[zero].type : ORT_U8;
    if ((type != ORT_U8 && type != ORT_I8) || g->values[y].type != type ||
        (zero >= 0 && !value_is_number(g, zero, type)))
        return false;
    c->y_scale = scale;
    c->y_zero = zero;
    c->y_type = type;
    return true;
}

/* One node more, which reads y. */
static bool take(const struct graph *g, struct claim *c, const struct graph_node *node)
{
    if (node->n_outputs != 1)
        return false;
    if (node_is(node, "", "Cast")) {
        if (c->y_type != ORT_I32 || node_int(g, node, "to", 0) != ORT_F32)
            return false;
        c->y_type = ORT_F32;
        return true;
    }
    if (node_is(node, "", "Add"))
        return take_add(g, c, other(node, c->y));
    if (node_is(node, "", "Mul"))
        return take_factor(g, c, other(node, c->y));
    if (node_is(node, "", "Relu"))
        return take_act(c, QN_ACT_RELU);
    if (node_is(node, "", "Gelu")) {
        char approximate[8];
        node_text(g, node, "approximate", approximate, sizeof approximate);
        return take_act(c, strcmp(approximate, "tanh") == 0 ? QN_ACT_GELU_TANH : QN_ACT_GELU);
    }
    if (node_is(node, "", "QuantizeLinear"))
        return take_quantize(g, c, node);
    if (node_is(node, "", "Clip") && node_input(node, 0) == c->y)
        return take_clip(g, c, node);
    return false;
}

void claim_epilogue(const struct graph *g, struct claim *c)
{
    struct claim best = *c;
    while (!g->values[c->y].leaves && g->values[c->y].n_uses == 1) {
        int32_t reader = g->values[c->y].reader;
        if (!take(g, c, &g->nodes[reader]) || !claim_add(c, reader))
            break;
        c->y = node_output(&g->nodes[reader], 0);
        if (c->y < 0)
            break;
        /* Sums as they are have no bias: an Add of integers counts once they are floats. */
        if (c->y_type != ORT_I32)
            best = *c;
    }
    *c = best;
}
