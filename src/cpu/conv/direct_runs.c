/* SPDX-License-Identifier: Apache-2.0 */
/* Patches of images with few channels: direct_runs.h. */
#include "direct_runs.h"

#include <string.h>

#include "../../base/compiler.h"

static int64_t run_bytes(const struct qni_conv *c)
{
    return (int64_t)c->kw * c->ci;
}

static size_t line_bytes(const struct qni_conv *c)
{
    const int64_t columns = (c->ow - 1) * c->stride[1] + c->kw;
    return qni_round_up((size_t)(columns * c->ci) + 64, 64);
}

bool qni_has_runs(const struct qni_op *op, int64_t pixel)
{
    const struct qni_conv *c = &op->conv;
    const int64_t run = run_bytes(c);
    return c->groups == 1 && qn_dtype_bytes(op->x.dtype) == 1 && (c->xs[1] == 1 || c->ci == 1) &&
           c->xs[3] == c->ci && c->dilation[1] == 1 && run <= 64 && c->kh * run <= pixel;
}

size_t qni_runs_bytes(const struct qni_op *op)
{
    return (size_t)op->conv.kh * line_bytes(&op->conv);
}

/* `columns` columns of a row of x (NULL: outside) from `first` on, which may lie outside. */
static void make_line(const struct qni_conv *c, const uint8_t *row, int64_t first, int64_t columns,
                      uint8_t pad, uint8_t flip, uint8_t *to)
{
    const int64_t from = qni_min(columns, qni_max(0, -first));
    const int64_t end = row == NULL ? from : qni_max(from, qni_min(columns, c->w - first));
    memset(to, pad ^ flip, (size_t)(from * c->ci));
    if (end > from)
        memcpy(to + from * c->ci, row + (first + from) * c->ci, (size_t)((end - from) * c->ci));
    for (int64_t i = from * c->ci; flip != 0 && i < end * c->ci; i++)
        to[i] ^= flip;
    memset(to + end * c->ci, pad ^ flip, (size_t)((columns - end) * c->ci));
}

void qni_runs_gather(const struct qni_op *op, uint8_t flip, int64_t row, int64_t rows,
                     const struct qni_runs_to *to)
{
    const struct qni_conv *c = &op->conv;
    struct qni_direct_runs runs = {.lines = to->scratch,
                                   .line = line_bytes(c),
                                   .step = (size_t)c->stride[1] * (size_t)c->ci,
                                   .run = (size_t)run_bytes(c),
                                   .pixel = (size_t)to->pixel,
                                   .kh = c->kh,
                                   .dst = to->dst};
    while (rows > 0) {
        const int64_t x = row % c->ow, y = row / c->ow % c->oh, image = row / c->ow / c->oh;
        const int64_t n = qni_min(rows, c->ow - x), columns = (n - 1) * c->stride[1] + c->kw;
        for (int64_t ky = 0; ky < c->kh; ky++) {
            const int64_t iy = y * c->stride[0] + ky * c->dilation[0] - c->pad[0];
            const uint8_t *from = NULL;
            if (iy >= 0 && iy < c->h)
                from = (const uint8_t *)op->x.data + image * c->xs[0] + iy * c->xs[2];
            make_line(c, from, x * c->stride[1] - c->pad[1], columns, (uint8_t)op->quant.x_zero,
                      flip, to->scratch + (size_t)ky * runs.line);
        }
        runs.n = n;
        to->copy(&runs);
        runs.dst += n * to->pixel;
        row += n;
        rows -= n;
    }
}
