/* SPDX-License-Identifier: Apache-2.0 */
/* The indirection of convolutions against the formula of quern/ops.h, written out: every element
 * of every patch, for random geometries, both images, both directions, all phases, with and
 * without dead taps, in blocks of any size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cpu/conv/patches.h"
#include "cpu/cpuid.h"
#include "cpu/rows/rows.h"

static uint32_t seed_state;
static int32_t pick(int32_t lo, int32_t hi)
{
    seed_state = seed_state * 1664525u + 1013904223u;
    return lo + (int32_t)((seed_state >> 8) % (uint32_t)(hi - lo + 1));
}

/* Input that output o reads through tap t, or -1. */
static int64_t naive_input(bool transposed, int64_t o, int64_t t, const struct qni_axis *a)
{
    int64_t i = o * a->stride + t * a->dilation - a->pad;
    if (transposed) {
        i = o + a->pad - t * a->dilation;
        if (i < 0 || i % a->stride != 0)
            return -1;
        i /= a->stride;
    }
    return i >= 0 && i < a->in ? i : -1;
}

static void random_geometry(struct qni_op *op, bool nhwc)
{
    struct qni_conv *c = &op->conv;
    c->groups = pick(1, 3);
    c->ci = pick(1, 3) == 1 ? pick(1, 4) : pick(1, 40);
    const bool is_flat = pick(1, 5) == 1; /* 1 x 1: an image may be one long row */
    c->batch = pick(1, 2);
    do {
        c->h = pick(1, 9);
        c->w = pick(1, 5) == 1 ? pick(60, 200) : pick(1, 40);
        c->kh = pick(1, 4);
        c->kw = pick(1, 5);
        for (int32_t i = 0; i < 2; i++) {
            c->stride[i] = pick(1, 3);
            c->dilation[i] = pick(1, 3);
        }
        for (int32_t i = 0; i < 4; i++)
            c->pad[i] = is_flat ? 0 : pick(0, 3);
        for (int32_t i = 0; is_flat && i < 2; i++)
            c->kh = c->kw = c->stride[i] = c->dilation[i] = 1;
        const int64_t rh = c->dilation[0] * (c->kh - 1), rw = c->dilation[1] * (c->kw - 1);
        if (op->kind == QNI_CONV) {
            c->oh = c->h + c->pad[0] + c->pad[2] - rh - 1;
            c->ow = c->w + c->pad[1] + c->pad[3] - rw - 1;
            c->oh = c->oh < 0 ? 0 : c->oh / c->stride[0] + 1;
            c->ow = c->ow < 0 ? 0 : c->ow / c->stride[1] + 1;
        } else {
            c->oh = (c->h - 1) * c->stride[0] - c->pad[0] - c->pad[2] + rh + 1 +
                    pick(0, c->stride[0] - 1);
            c->ow = (c->w - 1) * c->stride[1] - c->pad[1] - c->pad[3] + rw + 1 +
                    pick(0, c->stride[1] - 1);
        }
    } while (c->oh <= 0 || c->ow <= 0);
    const int64_t channels = c->ci * c->groups, slack = pick(0, 3);
    if (nhwc) {
        c->xs[1] = 1;
        c->xs[3] = channels + slack;
        c->xs[2] = c->w * c->xs[3] + pick(0, 5);
        c->xs[0] = c->h * c->xs[2] + pick(0, 5);
    } else {
        c->xs[3] = 1;
        c->xs[2] = c->w + slack;
        c->xs[1] = c->h * c->xs[2] + pick(0, 5);
        c->xs[0] = channels * c->xs[1] + pick(0, 5);
    }
}

/* The element expected at (output of the phase, tap, channel), as bytes. */
static void expect_element(const struct qni_op *op, const struct qni_patches *p, const int64_t o[3],
                           const int32_t tap[2], int64_t channel, uint8_t *out)
{
    const struct qni_conv *c = &op->conv;
    const bool transposed = op->kind == QNI_CONV_TRANSPOSE;
    const int64_t iy = naive_input(transposed, o[1], tap[0], &p->axis[0]);
    const int64_t ix = naive_input(transposed, o[2], tap[1], &p->axis[1]);
    memset(out, p->pad, p->element);
    if (iy >= 0 && ix >= 0)
        memcpy(out,
               p->x +
                   (size_t)(o[0] * c->xs[0] + channel * c->xs[1] + iy * c->xs[2] + ix * c->xs[3]) *
                       p->element,
               p->element);
}

/* Every element of a block of rows, and the bytes after each row. */
static void check_block(const struct qni_op *op, const struct qni_patches *p, int64_t row,
                        int64_t rows, int64_t channel)
{
    const size_t columns = (size_t)qni_patches_columns(p), ld = columns * p->element + 7;
    uint8_t *dst = malloc((size_t)rows * ld + 1);
    const struct qni_patches first = qni_patches_of(op, NULL, 0, 0, false);
    const size_t line_bytes = qni_patches_line_bytes(&first);
    uint8_t *line = malloc(line_bytes + 1);
    memset(dst, 0xa5, (size_t)rows * ld);
    line[line_bytes] = 0x5a;
    qni_patches_gather(p, row, rows, channel, dst, ld, line);
    assert_int_equal(line[line_bytes], 0x5a);
    for (int64_t r = 0; r < rows; r++) {
        const int64_t in_image = (row + r) % qni_patches_per_image(p);
        const int64_t o[3] = {(row + r) / qni_patches_per_image(p),
                              p->phase[0].first + p->phase[0].step * (in_image / p->phase[1].count),
                              p->phase[1].first +
                                  p->phase[1].step * (in_image % p->phase[1].count)};
        const uint8_t *at = dst + (size_t)r * ld;
        for (int32_t ty = 0; ty < p->taps[0].count; ty++)
            for (int32_t tx = 0; tx < p->taps[1].count; tx++)
                for (int64_t ch = 0; ch < p->channels; ch++, at += p->element) {
                    const int32_t tap[2] = {p->taps[0].first + ty * p->taps[0].step,
                                            p->taps[1].first + tx * p->taps[1].step};
                    uint8_t want[4];
                    expect_element(op, p, o, tap, channel + ch, want);
                    assert_memory_equal(at, want, p->element);
                }
        for (size_t i = 0; i < 7; i++)
            assert_int_equal(at[i], 0xa5);
    }
    free(line);
    free(dst);
}

static void patches_are_the_formula(void **state)
{
    (void)state;
    static const qn_dtype types[4] = {QN_F32, QN_BF16, QN_I8, QN_U8};
    seed_state = 20240601u;
    for (int32_t round = 0; round < 600; round++) {
        const struct qni_rows *functions =
            qni_rows_for(round % 3 == 0 ? QN_ISA_PORTABLE : qni_cpuid_detect());
        struct qni_op op;
        memset(&op, 0, sizeof op);
        op.kind = round % 2 == 0 ? QNI_CONV : QNI_CONV_TRANSPOSE;
        op.x.dtype = types[round / 2 % 4];
        const bool is_int8 = op.x.dtype == QN_I8 || op.x.dtype == QN_U8;
        op.strategy = is_int8 ? QN_STRATEGY_INT8_STATIC : QN_STRATEGY_FLOAT;
        op.quant.x_zero = 77;
        random_geometry(&op, pick(0, 1) == 1);
        const size_t bytes = (size_t)(op.conv.xs[0] * op.conv.batch) * qn_dtype_bytes(op.x.dtype);
        uint8_t *x = malloc(bytes);
        for (size_t i = 0; i < bytes; i++)
            x[i] = (uint8_t)pick(0, 255);
        op.x.data = x;
        int64_t outputs = 0;
        for (int64_t py = 0; py < (op.kind == QNI_CONV ? 1 : op.conv.stride[0]); py++)
            for (int64_t px = 0; px < (op.kind == QNI_CONV ? 1 : op.conv.stride[1]); px++) {
                const struct qni_patches p =
                    qni_patches_of(&op, functions, py, px, pick(0, 1) == 1);
                const int64_t rows = qni_patches_per_image(&p) * op.conv.batch;
                const int64_t group = pick(0, op.conv.groups - 1);
                outputs += rows;
                for (int64_t row = 0; row < rows;) {
                    const int64_t block = qni_min(rows - row, pick(1, 150));
                    check_block(&op, &p, row, block, group * op.conv.ci);
                    row += block;
                }
            }
        assert_int_equal(outputs, op.conv.batch * op.conv.oh * op.conv.ow);
        free(x);
    }
}

/* A tap is left out exactly when no output of the phase can read through it, whatever the size
 * of the input. */
static void live_taps_are_those_that_divide(void **state)
{
    (void)state;
    seed_state = 7u;
    for (int32_t round = 0; round < 2000; round++) {
        const struct qni_axis a = {1000,       3000,        pick(1, 12), pick(1, 9),
                                   pick(1, 9), pick(0, 20), true};
        for (int64_t which = 0; which < qni_axis_phases(&a); which++) {
            const struct qni_phase phase = qni_axis_phase(&a, which);
            const struct qni_taps live = qni_axis_live_taps(&a, &phase);
            int32_t next = 0;
            for (int32_t t = 0; t < a.taps; t++) {
                const int64_t moved = which + a.pad - (int64_t)t * a.dilation;
                const bool listed = next < live.count && t == live.first + next * live.step;
                assert_int_equal(listed, moved % a.stride == 0);
                next += listed;
            }
            assert_int_equal(next, live.count);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(patches_are_the_formula),
        cmocka_unit_test(live_taps_are_those_that_divide),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
