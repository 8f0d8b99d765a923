/* SPDX-License-Identifier: Apache-2.0 */
/* The part of the indirection that is a search rather than a formula: geometry.h. */
#include "geometry.h"

static int32_t gcd(int32_t a, int32_t b)
{
    while (b != 0) {
        const int32_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

struct qni_taps qni_axis_live_taps(const struct qni_axis *a, const struct qni_phase *phase)
{
    if (!a->transposed)
        return qni_axis_all_taps(a);
    struct qni_taps live = {0, a->stride / gcd(a->stride, a->dilation), 0};
    int64_t base;
    for (int32_t tap = 0; tap < qni_min(live.step, a->taps); tap++)
        if (qni_axis_base(a, phase, tap, &base)) {
            live.first = tap;
            live.count = (a->taps - tap - 1) / live.step + 1;
            break;
        }
    return live;
}

int32_t qni_axis_most_live(const struct qni_axis *a)
{
    if (!a->transposed)
        return a->taps;
    const int32_t period = a->stride / gcd(a->stride, a->dilation);
    return (int32_t)qni_ceil_div(a->taps, period);
}
