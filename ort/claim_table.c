/* SPDX-License-Identifier: Apache-2.0 */
/* What lies between a DequantizeLinear and a QuantizeLinear and works on each number alone, with
 * constants of one number, is a function of codes of 8 bits: a table of 256. Activations that are
 * written as Mul, Add, Clip and Div are of that kind. */
#include "table.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const known[] = {"Mul",  "Add",       "Sub",         "Div",    "Clip",
                                    "Relu", "LeakyRelu", "HardSigmoid", "Sigmoid"};

static bool is_known(const struct graph_node *node)
{
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (node_is(node, "", known[i]))
            return node->n_outputs == 1;
    return false;
}

/* What DequantizeLinear and QuantizeLinear share: one constant scale, a zero point or none. */
static bool has_numbers(const struct graph *g, const struct graph_node *node, int32_t codes)
{
    int32_t scale = node_input(node, 1), zero = node_input(node, 2);
    int32_t type = codes < 0 ? 0 : g->values[codes].type;
    return (type == ORT_U8 || type == ORT_I8) && value_is_number(g, scale, ORT_F32) &&
           (zero < 0 || value_is_number(g, zero, type));
}

bool table_concerns(const struct graph *g, int32_t number)
{
    const struct graph_node *node = &g->nodes[number];
    int32_t codes = node_input(node, 0), y = node_output(node, 0);
    if (!node_is(node, "", "DequantizeLinear") || codes < 0 || y < 0 ||
        g->values[codes].is_constant || g->values[y].leaves || g->values[y].reader < 0)
        return false;
    const struct graph_node *reader = &g->nodes[g->values[y].reader];
    return is_known(reader) || node_is(reader, "", "QuantizeLinear");
}

static bool is_inside(const struct claim *c, int32_t node)
{
    for (int32_t i = 0; i < c->n_nodes; i++)
        if (c->nodes[i] == node)
            return true;
    return false;
}

static bool is_made_inside(const struct graph *g, const struct claim *c, int32_t value)
{
    return value >= 0 && g->values[value].producer >= 0 &&
           is_inside(c, g->values[value].producer);
}

/* Each operand is made inside, or absent, or a constant of one number that adds no axis. */
static bool is_next(const struct graph *g, const struct claim *c, const struct graph_node *node)
{
    bool reads = false;
    for (int32_t i = 0; i < node->n_inputs; i++) {
        int32_t value = node->inputs[i];
        if (is_made_inside(g, c, value))
            reads = true;
        else if (value >= 0 && (!value_is_number(g, value, ORT_F32) ||
                                g->values[value].rank > (c->rank > 0 ? c->rank : 0)))
            return false;
    }
    return reads;
}

/* Nobody outside reads what is made inside but the codes at the end. */
static bool is_closed(const struct graph *g, const struct claim *c)
{
    for (int32_t i = 0; i < c->n_nodes; i++) {
        int32_t y = node_output(&g->nodes[c->nodes[i]], 0), uses = 0;
        if (y < 0)
            return false;
        if (y == c->y)
            continue;
        for (int32_t j = 0; j < c->n_nodes; j++) {
            const struct graph_node *reader = &g->nodes[c->nodes[j]];
            for (int32_t k = 0; k < reader->n_inputs; k++)
                uses += reader->inputs[k] == y;
        }
        if (g->values[y].leaves || uses != g->values[y].n_uses)
            return false;
    }
    return true;
}

bool claim_table(const struct graph *g, struct claim *c)
{
    const struct graph_node *first = &g->nodes[c->anchor];
    c->kind = CLAIM_TABLE;
    c->x = node_input(first, 0);
    if (!has_numbers(g, first, c->x))
        return claim_refuse(c, "its scale and zero point are no constants of one number");
    c->rank = g->values[c->x].rank;
    for (bool found = true; found;) {
        found = false;
        for (int32_t i = 0; i < g->n_nodes; i++) {
            const struct graph_node *node = &g->nodes[i];
            bool last = node_is(node, "", "QuantizeLinear") &&
                        is_made_inside(g, c, node_input(node, 0));
            if (is_inside(c, i) || (!last && (!is_known(node) || !is_next(g, c, node))))
                continue;
            if (last && (c->y >= 0 || !has_numbers(g, node, node_output(node, 0))))
                return claim_refuse(c, "its numbers are quantized in more than one way");
            if (last)
                c->y = node_output(node, 0);
            if (!claim_add(c, i))
                return claim_refuse(c, "more than %d operators in a row", CLAIM_MAX_NODES);
            found = true;
        }
    }
    if (c->y < 0 || !is_closed(g, c))
        return claim_refuse(c, "what reads it is no function of one number that ends in codes");
    c->y_type = g->values[c->y].type;
    return true;
}

/* ---- the 256 numbers ---- */

static float number(const struct graph *g, int32_t value, float otherwise)
{
    struct tensor t;
    return graph_constant(g, value, &t) ? *(const float *)t.data : otherwise;
}

/* The number that a byte of codes stands for. */
static int32_t code_of(uint8_t byte, int32_t type)
{
    return type == ORT_I8 ? (int8_t)byte : byte;
}

static int32_t zero_of(const struct graph *g, int32_t value)
{
    struct tensor t;
    return graph_constant(g, value, &t) ? code_of(*(const uint8_t *)t.data, t.type) : 0;
}

/* One step in f32, as ONNX Runtime takes it. */
static float step(const struct graph *g, const struct graph_node *node, float a, float b)
{
    switch (node->op[0]) {
    case 'M': return a * b;
    case 'A': return a + b;
    case 'D': return a / b;
    case 'R': return a > 0.0f ? a : 0.0f;
    case 'L': return a >= 0.0f ? a : a * node_float(g, node, "alpha", 0.01f);
    case 'H':
        a = a * node_float(g, node, "alpha", 0.2f) + node_float(g, node, "beta", 0.5f);
        return fmaxf(0.0f, fminf(a, 1.0f));
    case 'C':
        a = fmaxf(a, number(g, node_input(node, 1), node_float(g, node, "min", -INFINITY)));
        return fminf(a, number(g, node_input(node, 2), node_float(g, node, "max", INFINITY)));
    default: return node->op[1] == 'u' ? a - b : (float)(1.0 / (1.0 + exp(-(double)a)));
    }
}

struct ort_status *table_fill(const struct graph *g, const struct claim *c, uint8_t *table)
{
    const struct graph_node *first = &g->nodes[c->anchor];
    const float scale = number(g, node_input(first, 1), 1.0f);
    const int32_t zero = zero_of(g, node_input(first, 2)), type = g->values[c->x].type;
    float *made = calloc((size_t)g->n_values + 1, sizeof *made);
    if (made == NULL)
        return runtime_no_memory(g->api);
    for (int32_t i = 0; i < 256; i++) {
        made[node_output(first, 0)] = (float)(code_of((uint8_t)i, type) - zero) * scale;
        for (int32_t j = 1; j < c->n_nodes; j++) {
            const struct graph_node *node = &g->nodes[c->nodes[j]];
            int32_t a = node_input(node, 0), b = node_input(node, 1);
            const float x = number(g, a, a < 0 ? 0.0f : made[a]);
            if (!node_is(node, "", "QuantizeLinear")) {
                made[node_output(node, 0)] = step(g, node, x, number(g, b, b < 0 ? 0.0f : made[b]));
                continue;
            }
            const int32_t y_zero = zero_of(g, node_input(node, 2));
            const float low = c->y_type == ORT_I8 ? -128.0f : 0.0f;
            float code = nearbyintf(x / number(g, b, 1.0f)) + (float)y_zero;
            code = fminf(fmaxf(code, low), low + 255.0f);
            table[i] = (uint8_t)(int32_t)code;
        }
    }
    free(made);
    return NULL;
}
