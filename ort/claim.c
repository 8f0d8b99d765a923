/* SPDX-License-Identifier: Apache-2.0 */
/* The search for what is claimed, around one operator. */
#include "claim.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

bool claim_refuse(struct claim *c, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->reason, sizeof c->reason, format, arguments);
    va_end(arguments);
    return false;
}

bool claim_add(struct claim *c, int32_t node)
{
    if (c->n_nodes == CLAIM_MAX_NODES)
        return false;
    c->nodes[c->n_nodes++] = node;
    return true;
}

int64_t value_count(const struct graph *g, int32_t value)
{
    if (value < 0 || g->values[value].rank < 0)
        return -1;
    int64_t count = 1;
    for (int32_t i = 0; i < g->values[value].rank; i++) {
        if (g->values[value].shape[i] < 0)
            return -1;
        count *= g->values[value].shape[i];
    }
    return count;
}

static void claim_init(struct claim *c, int32_t node)
{
    memset(c, 0, sizeof *c);
    c->anchor = node;
    c->x = c->x_scale = c->x_zero = c->w = c->w_scale = c->w_zero = -1;
    c->sum_bias = c->bias = c->residual = c->y_scale = c->y_zero = c->y = -1;
    c->rank = -1;
    c->groups = 1;
}

bool value_is_number(const struct graph *g, int32_t value, int32_t type)
{
    return value >= 0 && g->values[value].is_constant && g->values[value].type == type &&
           value_count(g, value) == 1;
}

static bool is_integers(const struct graph_node *node)
{
    return node_is(node, "", "MatMulInteger") || node_is(node, "", "ConvInteger") ||
           node_is(node, "", "QLinearMatMul") || node_is(node, "", "QLinearConv") ||
           node_is(node, "com.microsoft", "MatMulIntegerToFloat") ||
           node_is(node, "com.microsoft", "DynamicQuantizeMatMul");
}

bool claim_concerns(const struct graph *g, const struct settings *settings, int32_t number)
{
    const struct graph_node *node = &g->nodes[number];
    return is_integers(node) || node_is(node, "", "DynamicQuantizeLinear") ||
           node_is(node, "com.microsoft", "MatMulNBits") || floats_concern(g, settings, number) ||
           (settings->channels_last && node_is(node, "", "MaxPool")) || table_concerns(g, number);
}

bool claim_find(const struct graph *g, const struct settings *settings, int32_t node,
                struct claim *c)
{
    const struct graph_node *anchor = &g->nodes[node];
    bool found;
    claim_init(c, node);
    claim_add(c, node);
    if (node_is(anchor, "", "DynamicQuantizeLinear")) {
        c->kind = CLAIM_QUANTIZE;
        c->x = node_input(anchor, 0);
        c->y = node_output(anchor, 0);
        c->y_type = ORT_U8;
        return true;
    }
    if (node_is(anchor, "", "MaxPool"))
        return claim_pool(g, c);
    if (node_is(anchor, "", "DequantizeLinear"))
        return claim_table(g, c);
    if (is_integers(anchor))
        found = claim_integers(g, c);
    else if (node_is(anchor, "com.microsoft", "MatMulNBits"))
        found = claim_nbits(g, settings, c);
    else
        found = claim_floats(g, settings, c);
    if (found)
        claim_epilogue(g, c);
    return found;
}
