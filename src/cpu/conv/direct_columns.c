/* SPDX-License-Identifier: Apache-2.0 */
/* Images of few channels as columns: direct_columns.h. */
#include "direct_columns.h"

#include <string.h>

enum { LINES = 8, PAD_LINE = LINES, ZERO_LINE, N_LINES, SLACK = 32 };

struct qni_columns qni_columns_of(const struct qni_op *op)
{
    const struct qni_conv *c = &op->conv;
    struct qni_columns s;
    memset(&s, 0, sizeof s);
    const int32_t depth = c->kh <= 4 ? 4 : 8, per_unit = 16 / depth, stride = c->stride[1];
    const bool is_near = (c->xs[1] == 1 || c->ci == 1) && c->xs[3] == c->ci;
    if (op->kind != QNI_CONV || c->groups != 1 || qn_dtype_bytes(op->x.dtype) != 1 || c->ci > 4 ||
        c->kh > LINES || c->kw > LINES || c->dilation[0] != 1 || c->dilation[1] != 1 ||
        per_unit % stride != 0 || !(is_near || c->xs[3] == 1))
        return s;
    s.depth = depth;
    s.per_unit = per_unit;
    s.n_taps = (c->kw + per_unit - 1) / per_unit;
    s.units = c->ow + (int64_t)(s.n_taps - 1) * (per_unit / stride);
    s.line_bytes = qni_round_up((size_t)(stride * s.units + SLACK) * 4, 64);
    return s;
}

size_t qni_columns_bytes(const struct qni_columns *columns)
{
    return N_LINES * columns->line_bytes + QNI_COLUMNS_PANEL;
}

/* Row y of an image as a line. */
static void make_line(const struct qni_op *op, const struct qni_columns *s, uint8_t flip,
                      const uint8_t *row, qni_direct_pixels_fn *pixels, uint8_t *to)
{
    const struct qni_conv *c = &op->conv;
    const int64_t columns = (s->units - 1) * c->stride[1] + s->per_unit, pad = c->pad[1];
    const int64_t from = qni_min(columns, pad), end = qni_max(from, qni_min(columns, pad + c->w));
    const struct qni_direct_pixels p = {.from = row + (from - pad) * c->xs[3],
                                        .plane = c->xs[3] == c->ci ? 0 : c->xs[1],
                                        .n = end - from,
                                        .channels = (int32_t)c->ci,
                                        .flip = flip,
                                        .to = to + 4 * from};
    const int outside = (uint8_t)((uint8_t)op->quant.x_zero ^ flip);
    memset(to, outside, (size_t)from * 4);
    if (end > from)
        pixels(&p);
    memset(to + 4 * end, outside, s->line_bytes - (size_t)end * 4);
}

void qni_columns_gather(const struct qni_op *op, uint8_t flip, int64_t image, int64_t y,
                        int64_t lines, const struct qni_columns_to *to)
{
    const struct qni_conv *c = &op->conv;
    const struct qni_columns *const s = to->columns;
    int64_t row_of[LINES]; /* of the image: lines are kept while outputs need them */
    uint8_t *line[N_LINES];
    for (int i = 0; i < N_LINES; i++)
        line[i] = to->scratch + (size_t)i * s->line_bytes;
    for (int i = 0; i < LINES; i++)
        row_of[i] = -1;
    memset(line[PAD_LINE], (uint8_t)op->quant.x_zero ^ flip, s->line_bytes);
    memset(line[ZERO_LINE], 0, s->line_bytes);
    struct qni_direct_columns columns = {
        .depth = s->depth, .stride = c->stride[1], .units = s->units, .dst = to->dst};
    const uint8_t *const x = (const uint8_t *)op->x.data + image * c->xs[0];
    for (; lines > 0; lines--, y++, columns.dst += s->units * QNI_DIRECT_STEP) {
        for (int32_t ky = 0; ky < LINES; ky++) {
            const int64_t iy = y * c->stride[0] + ky - c->pad[0];
            const bool outside = iy < 0 || iy >= c->h;
            if (ky >= c->kh || outside) {
                columns.line[ky] = line[ky >= c->kh ? ZERO_LINE : PAD_LINE];
                continue;
            }
            if (row_of[iy % LINES] != iy)
                make_line(op, s, flip, x + iy * c->xs[2], to->images->pixels, line[iy % LINES]);
            row_of[iy % LINES] = iy;
            columns.line[ky] = line[iy % LINES];
        }
        to->images->columns(&columns);
    }
}

/* A dword of a unit is a pixel: at most four positions of the patch, one after the other, which two
 * dwords of it hold. */
void qni_columns_order(const struct qni_op *op, const struct qni_columns *s, const uint8_t *patches,
                       uint8_t *units)
{
    const struct qni_conv *c = &op->conv;
    const uint32_t real = c->ci == 4 ? ~0u : (1u << (8 * c->ci)) - 1u;
    for (int32_t kx = 0; kx < s->n_taps * s->per_unit; kx++)
        for (int32_t ky = 0; ky < s->depth; ky++, units += 64) {
            uint32_t low[16], high[16] = {0};
            if (kx >= c->kw || ky >= c->kh) {
                memset(units, 0, 64);
                continue;
            }
            const int64_t first = ((int64_t)ky * c->kw + kx) * c->ci, shift = first % 4;
            memcpy(low, patches + first / 4 * 64, sizeof low);
            if (shift + c->ci > 4)
                memcpy(high, patches + (first / 4 + 1) * 64, sizeof high);
            for (int j = 0; j < 16; j++)
                low[j] =
                    ((low[j] >> 8 * shift) | (uint32_t)((uint64_t)high[j] << (32 - 8 * shift))) &
                    real;
            memcpy(units, low, sizeof low);
        }
}
