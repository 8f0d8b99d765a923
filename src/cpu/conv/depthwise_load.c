/* SPDX-License-Identifier: Apache-2.0 */
/* Inputs of a depthwise convolution as floats: converted, less the zero point of int8-static,
 * and with zeros for what lies outside, so that the kernels know nothing of types and borders.
 * Each input is loaded once for all the taps that read it. */
#include <string.h>

#include "depthwise.h"

enum { CHUNK = 64 };

/* dst = n elements from src as floats. */
static void convert(const struct qni_input_row *row, const void *src, int64_t n, float *dst)
{
    if (row->dtype == QN_I8 || row->dtype == QN_U8)
        row->rows->widen_codes(dst, src, row->dtype, row->zero, n);
    else
        row->rows->widen(dst, src, row->dtype, NULL, n);
}

/* n <= CHUNK elements, `step` apart, next to each other. */
static void collect(const uint8_t *src, int64_t step, int64_t n, size_t element, uint8_t *dst)
{
    const size_t move = (size_t)step * element;
    if (element == 4)
        for (int64_t i = 0; i < n; i++)
            memcpy(dst + 4 * i, src + (size_t)i * move, 4);
    else if (element == 2)
        for (int64_t i = 0; i < n; i++)
            memcpy(dst + 2 * i, src + (size_t)i * move, 2);
    else
        for (int64_t i = 0; i < n; i++)
            dst[i] = src[(size_t)i * move];
}

static void zero(float *dst, int64_t n)
{
    if (n > 0)
        memset(dst, 0, (size_t)n * sizeof *dst);
}

/* The i in [0, n) for which first + step * i lies in [0, columns). */
static void inside(const struct qni_input_row *row, int64_t first, int64_t step, int64_t n,
                   int64_t *from, int64_t *to)
{
    const int64_t before = qni_max(0, -first), until = qni_max(0, row->columns - first);
    *to = qni_min(n, step == 1 ? until : qni_ceil_div(until, step));
    *from = qni_min(*to, step == 1 ? before : qni_ceil_div(before, step));
}

void qni_load_pixels(const struct qni_input_row *row, int64_t channel, int64_t first, int64_t step,
                     int64_t n, float *dst)
{
    const size_t element = qn_dtype_bytes(row->dtype);
    uint8_t raw[CHUNK * 4];
    int64_t from, to;
    inside(row, first, step, n, &from, &to);
    zero(dst, from);
    zero(dst + to, n - to);
    if (to == from)
        return;
    const int64_t at = channel * row->channel + (first + step * from) * row->column;
    const uint8_t *src = row->at + (size_t)at * element;
    const int64_t move = step * row->column;
    if (move == 1) {
        convert(row, src, to - from, dst + from);
        return;
    }
    for (int64_t i = from; i < to; i += CHUNK, src += (size_t)(CHUNK * move) * element) {
        const int64_t count = qni_min(CHUNK, to - i);
        collect(src, move, count, element, raw);
        convert(row, raw, count, dst + i);
    }
}

/* dst[i * ld] = n columns of a channel, move elements apart. */
static void scatter(const struct qni_input_row *row, const uint8_t *src, int64_t move, int64_t n,
                    float *dst, int64_t ld)
{
    const size_t element = qn_dtype_bytes(row->dtype);
    uint8_t raw[CHUNK * 4];
    float v[CHUNK];
    for (int64_t i = 0; i < n; i += CHUNK, src += (size_t)(CHUNK * move) * element) {
        const int64_t count = qni_min(CHUNK, n - i);
        if (move != 1)
            collect(src, move, count, element, raw);
        convert(row, move != 1 ? raw : src, count, v);
        for (int64_t j = 0; j < count; j++)
            dst[(i + j) * ld] = v[j];
    }
}

void qni_load_lanes(const struct qni_input_row *row, const struct qni_lane_block *block,
                    int64_t first, int64_t step, int64_t n, float *dst)
{
    const size_t element = qn_dtype_bytes(row->dtype);
    const int64_t ld = block->ld;
    int64_t from, to;
    inside(row, first, step, n, &from, &to);
    zero(dst, from * ld);
    zero(dst + to * ld, (n - to) * ld);
    if (to == from)
        return;
    const uint8_t *src = row->at + (size_t)((first + step * from) * row->column) * element;
    const int64_t move = step * row->column;
    const bool together = block->per_channel == 1 && row->channel == 1;
    dst += from * ld;
    if (together)
        src += (size_t)block->output * element;
    for (int64_t i = 0; i < to - from; i++) {
        if (together)
            convert(row, src + (size_t)(i * move) * element, block->lanes, dst + i * ld);
        zero(dst + i * ld + block->lanes, ld - block->lanes);
    }
    for (int64_t lane = 0; !together && lane < block->lanes; lane++) {
        const int64_t channel = (block->output + lane) / block->per_channel;
        const uint8_t *plane = src + (size_t)(channel * row->channel) * element;
        scatter(row, plane, move, to - from, dst + lane, ld);
    }
}
