/* SPDX-License-Identifier: Apache-2.0 */
/* Which input each (output, tap) of a convolution reads: the indirection, one axis at a time.
 *
 *     convolution     input = output * stride + tap * dilation - pad
 *     transposed      input = (output + pad - tap * dilation) / stride where that divides, else a
 *                     zero
 *
 * Outputs are taken in phases, o = first + step * j. Within a phase every tap moves by the same
 * amount from j to j + 1, input = base(tap) + advance * j, and a tap of a transposed convolution
 * either divides for all j or for none:
 *
 *     convolution     one phase, step 1, advance = stride
 *     transposed      `stride` phases, step = stride, advance 1
 *
 * Nothing here touches memory. */
#ifndef QNI_CPU_CONV_GEOMETRY_H
#define QNI_CPU_CONV_GEOMETRY_H

#include <stdbool.h>

#include "../../base/size.h"
#include "../../quant/op.h"

struct qni_axis {
    int64_t in, out;
    int32_t taps, stride, dilation, pad;
    bool transposed;
};

/* Outputs first + step * j for j in [0, count). */
struct qni_phase {
    int64_t first, step, count;
};

/* Taps first + step * i for i in [0, count): those of a phase that read inputs, or all of them. */
struct qni_taps {
    int32_t first, step, count;
};

static inline struct qni_axis qni_conv_axis(const struct qni_op *op, int32_t which)
{
    const struct qni_conv *c = &op->conv;
    const struct qni_axis axis = {which == 0 ? c->h : c->w,
                                  which == 0 ? c->oh : c->ow,
                                  which == 0 ? c->kh : c->kw,
                                  c->stride[which],
                                  c->dilation[which],
                                  c->pad[which],
                                  op->kind == QNI_CONV_TRANSPOSE};
    return axis;
}

static inline int64_t qni_axis_phases(const struct qni_axis *a)
{
    return a->transposed ? a->stride : 1;
}

static inline struct qni_phase qni_axis_phase(const struct qni_axis *a, int64_t which)
{
    const int64_t step = qni_axis_phases(a);
    const struct qni_phase phase = {which, step,
                                    which < a->out ? (a->out - which - 1) / step + 1 : 0};
    return phase;
}

static inline int64_t qni_axis_advance(const struct qni_axis *a)
{
    return a->transposed ? 1 : a->stride;
}

/* The input of j = 0 (it may lie outside); false if the tap reads nothing in this phase. */
static inline bool qni_axis_base(const struct qni_axis *a, const struct qni_phase *phase,
                                 int32_t tap, int64_t *base)
{
    const int64_t reach = (int64_t)tap * a->dilation;
    if (!a->transposed) {
        *base = reach - a->pad;
        return true;
    }
    const int64_t moved = phase->first + a->pad - reach;
    *base = moved / a->stride;
    return moved % a->stride == 0;
}

static inline struct qni_taps qni_axis_all_taps(const struct qni_axis *a)
{
    const struct qni_taps taps = {0, 1, a->taps};
    return taps;
}

/* The taps of a phase that read anything. They are evenly spaced: moving the tap by p moves the
 * input by p * dilation, so the period is stride / gcd(stride, dilation). */
struct qni_taps qni_axis_live_taps(const struct qni_axis *a, const struct qni_phase *phase);

/* The most taps that any phase has alive. */
int32_t qni_axis_most_live(const struct qni_axis *a);

/* The j in [0, count) whose inputs base + advance * j lie in [0, in): [*from, *to), perhaps
 * empty. */
static inline void qni_axis_inside(const struct qni_axis *a, int64_t base, int64_t count,
                                   int64_t *from, int64_t *to)
{
    const int64_t advance = qni_axis_advance(a);
    const int64_t lo = base >= 0 ? 0 : qni_ceil_div(-base, advance);
    const int64_t hi = base >= a->in ? 0 : qni_ceil_div(a->in - base, advance);
    *to = qni_min(hi, count);
    *from = qni_min(lo, *to);
}

#endif
