/* SPDX-License-Identifier: Apache-2.0 */
/* bench/shapes.inc as a table, and problems from its rows. */
#include <string.h>

#include "problem.h"

#define QN_MATMUL(model, name, n, k) {OP_MATMUL, model, name, n, k, 0, 0, 0, 0, 0, 0, 0},
#define QN_GROUPED(model, name, n, k, experts, top_k)                                              \
    {OP_GROUPED, model, name, n, k, experts, top_k, 0, 0, 0, 0, 0},
#define QN_CONV(model, name, ci, side, co, kernel, stride, groups)                                 \
    {OP_CONV2D, model, name, co, 0, 0, 0, ci, side, kernel, stride, groups},
static const struct layer layers[] = {
#include "../bench/shapes.inc"
};

const struct layer *layer_at(int i)
{
    return i >= 0 && (size_t)i < sizeof layers / sizeof *layers ? &layers[i] : NULL;
}

const char *op_name(enum op op)
{
    static const char *const names[] = {"matmul", "grouped", "conv2d"};
    return names[op];
}

const char *problem_op_name(const struct problem *p)
{
    return p->op == OP_CONV2D && p->conv.is_transposed ? "conv_transpose2d" : op_name(p->op);
}

void json_add_images(cJSON *object, const struct conv_shape *c)
{
    const struct {
        const char *key;
        double value;
    } numbers[] = {
        {"batch", (double)c->batch},
        {"ci", (double)c->ci},
        {"h", (double)c->h},
        {"w", (double)c->w},
        {"oh", (double)c->oh},
        {"ow", (double)c->ow},
        {"kh", c->kh},
        {"kw", c->kw},
        {"groups", c->groups},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        cJSON_AddNumberToObject(object, numbers[i].key, numbers[i].value);
    cJSON_AddStringToObject(object, "image", c->image == QN_NHWC ? "nhwc" : "nchw");
}

void problem_of_layer(struct problem *p, const struct layer *layer, int64_t m)
{
    p->op = layer->op;
    p->n = layer->n;
    p->k = layer->k;
    p->m = m;
    p->experts = layer->experts;
    p->top_k = layer->top_k;
    if (layer->op != OP_CONV2D)
        return;
    const int32_t pad = (layer->kernel - 1) / 2;
    struct conv_shape *c = &p->conv;
    c->batch = m;
    c->ci = layer->ci;
    c->h = c->w = layer->side;
    c->kh = c->kw = layer->kernel;
    c->groups = layer->groups;
    c->stride[0] = c->stride[1] = layer->stride;
    c->dilation[0] = c->dilation[1] = 1;
    for (int i = 0; i < 4; i++)
        c->pad[i] = pad;
}

static int64_t out_side(int64_t side, int32_t pads, int32_t dilation, int32_t kernel,
                        int32_t stride)
{
    const int64_t room = side + pads - (int64_t)dilation * (kernel - 1) - 1;
    return room < 0 ? 0 : room / stride + 1;
}

/* Products of the numbers given fit an int64_t, as elements and as bytes. */
static int check_size(const struct problem *p, double x, double y, double weights)
{
    const double limit = 1e15;
    if (x <= limit && y <= limit && weights <= limit)
        return 0;
    return complain(
        EXIT_USAGE, "take a smaller problem",
        "%s: %.3g elements of x, %.3g of y, %.3g weights: more than %.0e are not counted",
        problem_op_name(p), x, y, weights, limit);
}

int problem_complete(struct problem *p)
{
    const double n = (double)p->n, m = (double)p->m, k = (double)p->k;
    if (p->op != OP_CONV2D)
        return check_size(p, m * k, m * n * (p->op == OP_GROUPED ? p->top_k : 1), n * k);
    struct conv_shape *c = &p->conv;
    if (c->ci % c->groups != 0 || p->n % c->groups != 0)
        return complain(EXIT_USAGE, "both must be multiples of --groups",
                        "%lld input and %lld output channels: not divisible by %d groups",
                        (long long)c->ci, (long long)p->n, c->groups);
    const int32_t pads[2] = {c->pad[0] + c->pad[2], c->pad[1] + c->pad[3]};
    if (c->is_transposed) {
        c->oh = (c->h - 1) * c->stride[0] - pads[0] + (int64_t)c->dilation[0] * (c->kh - 1) + 1 +
                c->out_pad[0];
        c->ow = (c->w - 1) * c->stride[1] - pads[1] + (int64_t)c->dilation[1] * (c->kw - 1) + 1 +
                c->out_pad[1];
    } else {
        c->oh = out_side(c->h, pads[0], c->dilation[0], c->kh, c->stride[0]);
        c->ow = out_side(c->w, pads[1], c->dilation[1], c->kw, c->stride[1]);
    }
    if (c->oh <= 0 || c->ow <= 0)
        return complain(EXIT_USAGE,
                        c->is_transposed ? "make the padding smaller"
                                         : "make the image or the padding larger",
                        "a kernel of %dx%d: does not fit an image of %lldx%lld", c->kh, c->kw,
                        (long long)c->h, (long long)c->w);
    const double batch = (double)c->batch, ci = (double)(c->ci / c->groups);
    const int status = check_size(p, batch * (double)c->ci * (double)c->h * (double)c->w,
                                  batch * n * (double)c->oh * (double)c->ow,
                                  n * ci * (double)c->kh * (double)c->kw);
    if (status != 0)
        return status;
    p->m = c->batch * c->oh * c->ow;
    p->k = (int64_t)c->kh * c->kw * (c->ci / c->groups);
    return 0;
}
