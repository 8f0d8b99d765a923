/* SPDX-License-Identifier: Apache-2.0 */
/* MaxPool of images, so that channels may stay last from one convolution to the next. */
#include "claim.h"

#include <string.h>

static bool same_number(const struct graph *g, int32_t a, int32_t b)
{
    struct tensor x, y;
    if (a < 0 && b < 0)
        return true;
    if (!graph_constant(g, a, &x) || !graph_constant(g, b, &y) || x.type != y.type ||
        x.count != 1 || y.count != 1)
        return false;
    return memcmp(x.data, y.data, x.type == ORT_F32 ? 4 : 1) == 0;
}

/* Between a DequantizeLinear and a QuantizeLinear of the same scale and zero point, the largest
 * code is the code of the largest number. */
static void take_codes(const struct graph *g, struct claim *c)
{
    const struct graph_value *x = &g->values[c->x], *y = &g->values[c->y];
    if (x->producer < 0 || x->n_uses != 1 || x->leaves || y->n_uses != 1 || y->leaves)
        return;
    const struct graph_node *from = &g->nodes[x->producer], *to = &g->nodes[y->reader];
    if (!node_is(from, "", "DequantizeLinear") || !node_is(to, "", "QuantizeLinear") ||
        node_input(to, 0) != c->y)
        return;
    int32_t codes = node_input(from, 0), out = node_output(to, 0);
    int32_t scale = node_input(from, 1), zero = node_input(from, 2);
    if (codes < 0 || out < 0 || !value_is_number(g, scale, ORT_F32) ||
        (g->values[codes].type != ORT_U8 && g->values[codes].type != ORT_I8) ||
        g->values[out].type != g->values[codes].type ||
        !same_number(g, scale, node_input(to, 1)) || !same_number(g, zero, node_input(to, 2)))
        return;
    struct tensor step;
    if (!graph_constant(g, scale, &step) || !(*(const float *)step.data > 0.0f) ||
        !claim_add(c, x->producer) || !claim_add(c, y->reader))
        return;
    c->x = codes;
    c->y = out;
}

bool claim_pool(const struct graph *g, struct claim *c)
{
    const struct graph_node *node = &g->nodes[c->anchor];
    int64_t dilations[2] = {1, 1};
    c->kind = CLAIM_POOL;
    c->x = node_input(node, 0);
    c->y = node_output(node, 0);
    if (c->x < 0 || c->y < 0 || node->n_outputs != 1 || g->values[c->x].rank != 4)
        return claim_refuse(c, "its image is not known to have two axes");
    c->rank = 4;
    c->n_axes = 2;
    c->channels_last = node->channels_last;
    c->stride[0] = c->stride[1] = 1;
    node_ints(g, node, "dilations", dilations, 2);
    node_ints(g, node, "strides", c->stride, 2);
    if (node_ints(g, node, "kernel_shape", c->kernel, 2) != 2 || c->kernel[0] < 1 ||
        c->kernel[1] < 1 || c->stride[0] < 1 || c->stride[1] < 1 || dilations[0] != 1 ||
        dilations[1] != 1 || node_int(g, node, "ceil_mode", 0) != 0 ||
        node_int(g, node, "storage_order", 0) != 0)
        return claim_refuse(c, "a pool with dilations or a rounded-up size");
    if (!claim_padding(g, c, node))
        return false;
    for (int32_t i = 0; i < 4; i++)
        if (c->pad[i] >= c->kernel[i % 2])
            return claim_refuse(c, "padding as wide as the pool");
    take_codes(g, c);
    c->y_type = g->values[c->x].type;
    if (c->y_type != ORT_F32 && c->y_type != ORT_U8 && c->y_type != ORT_I8)
        return claim_refuse(c, "x is not of f32, int8 or uint8");
    return true;
}
