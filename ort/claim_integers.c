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

bool claim_integers(const struct graph *g, struct claim *c)
{
    const struct graph_node *node = &g->nodes[c->anchor];
    c->x = node_input(node, 0);
    c->w = node_input(node, 1);
    c->x_zero = node_input(node, 2);
    c->w_zero = node_input(node, 3);
    c->y = node_output(node, 0);
    c->y_type = ORT_I32;
    c->x_is_codes = true;
    c->strategy = QN_STRATEGY_INT8_STATIC;
    if (!is_byte(g, c->x) || !is_byte(g, c->w))
        return claim_refuse(c, "x and the weights must be int8 or uint8");
    if (!g->values[c->w].is_constant)
        return claim_refuse(c, "the weights are not constant");
    if (node_is(node, "", "MatMulInteger") ? !matmul_weight(g, c) : !claim_geometry(g, c))
        return false;
    if (c->k > 33025)
        return claim_refuse(c, "sums of %lld products may leave int32", (long long)c->k);
    return zero_points(g, c);
}
