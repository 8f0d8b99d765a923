/* SPDX-License-Identifier: Apache-2.0 */
/* Patches of images with few channels: runs.h. */
#include "runs.h"

#include <string.h>

#include "../../base/compiler.h"

static int64_t run_bytes(const struct qni_conv *c)
{
    return (int64_t)c->kw * c->ci;
}

static int64_t copy_width(int64_t run)
{
    return run <= 16 ? 16 : run <= 32 ? 32 : 64;
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
           c->xs[3] == c->ci && c->dilation[1] == 1 && run <= 64 &&
           (c->kh - 1) * run + copy_width(run) <= pixel;
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

QNI_TEMPLATE void copy_runs(const struct qni_conv *c, const uint8_t *lines, int64_t n,
                            int64_t pixel, uint8_t *dst, const size_t width)
{
    const size_t line = line_bytes(c), run = (size_t)run_bytes(c);
    const int64_t step = c->stride[1] * c->ci;
    for (int64_t i = 0; i < n; i++, dst += pixel, lines += step)
        for (int64_t ky = 0; ky < c->kh; ky++)
            memcpy(dst + (size_t)ky * run, lines + (size_t)ky * line, width);
}

void qni_runs_gather(const struct qni_op *op, uint8_t flip, int64_t row, int64_t rows,
                     int64_t pixel, uint8_t *dst, uint8_t *scratch)
{
    const struct qni_conv *c = &op->conv;
    const int64_t width = copy_width(run_bytes(c));
    while (rows > 0) {
        const int64_t x = row % c->ow, y = row / c->ow % c->oh, image = row / c->ow / c->oh;
        const int64_t n = qni_min(rows, c->ow - x), columns = (n - 1) * c->stride[1] + c->kw;
        for (int64_t ky = 0; ky < c->kh; ky++) {
            const int64_t iy = y * c->stride[0] + ky * c->dilation[0] - c->pad[0];
            const uint8_t *from = NULL;
            if (iy >= 0 && iy < c->h)
                from = (const uint8_t *)op->x.data + image * c->xs[0] + iy * c->xs[2];
            make_line(c, from, x * c->stride[1] - c->pad[1], columns, (uint8_t)op->quant.x_zero,
                      flip, scratch + (size_t)ky * line_bytes(c));
        }
        if (width == 16)
            copy_runs(c, scratch, n, pixel, dst, 16);
        else if (width == 32)
            copy_runs(c, scratch, n, pixel, dst, 32);
        else
            copy_runs(c, scratch, n, pixel, dst, 64);
        dst += n * pixel;
        row += n;
        rows -= n;
    }
}
