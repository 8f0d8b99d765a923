/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions: kernel, strides, dilations, padding and groups of a node. */
#include "claim.h"

#include <string.h>

/* One axis is a convolution of height 1. from: [n_axes] of the model; to: [h, w]. */
static void spread(int32_t n_axes, const int64_t *from, int64_t otherwise, int64_t *to)
{
    to[0] = n_axes == 2 ? from[0] : otherwise;
    to[1] = from[n_axes - 1];
}

static bool small(const int64_t *values, int32_t count, int64_t low)
{
    for (int32_t i = 0; i < count; i++)
        if (values[i] < low || values[i] > 1 << 20)
            return false;
    return true;
}

bool claim_padding(const struct graph *g, struct claim *c, const struct graph_node *node)
{
    char automatic[16];
    int64_t pads[4] = {0, 0, 0, 0};
    node_text(g, node, "auto_pad", automatic, sizeof automatic);
    if (strcmp(automatic, "SAME_UPPER") == 0 || strcmp(automatic, "SAME_LOWER") == 0) {
        c->pads_same = true;
        c->pads_upper = strcmp(automatic, "SAME_UPPER") == 0;
    } else if (automatic[0] == '\0' || strcmp(automatic, "NOTSET") == 0) {
        node_ints(g, node, "pads", pads, 4);
    } else if (strcmp(automatic, "VALID") != 0) {
        return claim_refuse(c, "auto_pad %s is not known", automatic);
    }
    if (!small(pads, 4, 0))
        return claim_refuse(c, "padding is negative or beyond 2^20");
    bool two = c->n_axes == 2;
    c->pad[0] = two ? pads[0] : 0;
    c->pad[1] = two ? pads[1] : pads[0];
    c->pad[2] = two ? pads[2] : 0;
    c->pad[3] = two ? pads[3] : pads[1];
    return true;
}

void claim_pad(const struct claim *c, int32_t axis, int64_t size, int64_t pad[2])
{
    pad[0] = c->pad[axis];
    pad[1] = c->pad[2 + axis];
    if (!c->pads_same)
        return;
    /* What is odd goes to one side. */
    const int64_t stride = c->stride[axis], outputs = (size + stride - 1) / stride;
    const int64_t reach = (c->kernel[axis] - 1) * (c->kind == CLAIM_POOL ? 1 : c->dilation[axis]);
    const int64_t all = (outputs - 1) * stride + reach + 1 - size, sum = all > 0 ? all : 0;
    pad[0] = c->pads_upper ? sum / 2 : sum - sum / 2;
    pad[1] = sum - pad[0];
}

bool claim_geometry(const struct graph *g, struct claim *c)
{
    const struct graph_node *node = &g->nodes[c->anchor];
    const struct graph_value *w = &g->values[c->w];
    bool transposed = strcmp(node->op, "ConvTranspose") == 0;
    c->channels_last = node->channels_last;
    int64_t strides[2] = {1, 1}, dilations[2] = {1, 1}, out_pad[2] = {0, 0};
    c->kind = transposed ? CLAIM_CONV_TRANSPOSE : CLAIM_CONV;
    c->order = transposed ? ORDER_IOHW : ORDER_OIHW;
    if (w->rank != 3 && w->rank != 4)
        return claim_refuse(c, "a convolution of %d axes; 1 and 2 can be computed",
                            (int)(w->rank < 0 ? 0 : w->rank - 2));
    c->n_axes = w->rank - 2;
    c->rank = w->rank;
    if (g->values[c->x].rank >= 0 && g->values[c->x].rank != w->rank)
        return claim_refuse(c, "x has rank %d, its weights have %d", g->values[c->x].rank, w->rank);
    c->groups = node_int(g, node, "group", 1);
    node_ints(g, node, "strides", strides, 2);
    node_ints(g, node, "dilations", dilations, 2);
    node_ints(g, node, "output_padding", out_pad, 2);
    if (!small(strides, 2, 1) || !small(dilations, 2, 1) || !small(out_pad, 2, 0))
        return claim_refuse(c, "strides, dilations or output_padding out of range");
    spread(c->n_axes, w->shape + 2, 1, c->kernel);
    spread(c->n_axes, strides, 1, c->stride);
    spread(c->n_axes, dilations, 1, c->dilation);
    spread(c->n_axes, out_pad, 0, c->out_pad);
    int64_t out_shape[2];
    if (transposed && node_ints(g, node, "output_shape", out_shape, 2) > 0)
        return claim_refuse(c, "output_shape is given instead of pads");
    if (c->groups < 1 || w->shape[0] % c->groups != 0 || w->shape[0] < 1 || w->shape[1] < 1 ||
        c->kernel[0] < 1 || c->kernel[1] < 1)
        return claim_refuse(c, "weights of a shape that is not possible");
    c->n = transposed ? w->shape[1] * c->groups : w->shape[0];
    c->k = (transposed ? w->shape[0] / c->groups : w->shape[1]) * c->kernel[0] * c->kernel[1];
    if (!claim_padding(g, c, node))
        return false;
    /* Phases of few outputs fill a sixteenth of a panel: slower than floats. */
    if (transposed && c->n / c->groups < 4)
        return claim_refuse(c, "a transposed convolution of %lld outputs a group",
                            (long long)(c->n / c->groups));
    if (transposed && c->pads_same)
        return claim_refuse(c, "auto_pad of a transposed convolution");
    return true;
}
