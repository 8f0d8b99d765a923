/* SPDX-License-Identifier: Apache-2.0 */
/* Tensors in guarded memory, and what stands in them. */
#include <math.h>
#include <string.h>

#include "../../src/base/half.h"
#include "harness.h"

static size_t bytes_of(qn_dtype dtype)
{
    return dtype == QN_F32 || dtype == QN_I32 ? 4 : dtype == QN_F16 || dtype == QN_BF16 ? 2 : 1;
}

qn_tensor check_tensor(struct check *c, const char *name, qn_dtype dtype, int32_t rank,
                       const int64_t *shape, bool padded)
{
    qn_tensor t = {.dtype = dtype, .rank = rank, .device = {QN_CPU, 0}};
    int64_t stride = 1, last = 0;
    bool empty = false;
    for (int32_t d = rank - 1; d >= 0; d--) {
        t.shape[d] = shape[d];
        t.stride[d] = stride;
        stride *= shape[d] > 0 ? shape[d] : 1;
        if (d > 0 && padded && check_random_chance(&c->random, 60))
            stride += check_random_in(&c->random, 1, 9);
        last += (shape[d] - 1) * t.stride[d];
        empty = empty || shape[d] == 0;
    }
    const size_t bytes = empty ? 0 : (size_t)(last + 1) * bytes_of(dtype);
    t.data = check_memory(c, name, bytes, bytes_of(dtype));
    for (size_t i = 0; i < bytes; i++)
        ((uint8_t *)t.data)[i] = (uint8_t)check_random_next(&c->random);
    return t;
}

void check_put(const qn_tensor *t, int64_t at, double value)
{
    switch (t->dtype) {
    case QN_F32:
        ((float *)t->data)[at] = (float)value;
        break;
    case QN_F16:
        ((uint16_t *)t->data)[at] = qni_f16_from_f32((float)value);
        break;
    case QN_BF16:
        ((uint16_t *)t->data)[at] = qni_bf16_from_f32((float)value);
        break;
    case QN_E4M3:
        ((uint8_t *)t->data)[at] = qni_e4m3_from_f32((float)value);
        break;
    case QN_I32:
        ((int32_t *)t->data)[at] = (int32_t)value;
        break;
    case QN_I8:
        ((int8_t *)t->data)[at] = (int8_t)value;
        break;
    default:
        ((uint8_t *)t->data)[at] = (uint8_t)value;
        break;
    }
}

/* One activation. Extremes stay so small that f32 sums of a thousand of them times any weight of
 * weights.c cannot overflow: 2^10 * 2^60 * 2^8 * 2^40 < 2^127. check_enlarge_x() has the others. */
static double draw(struct check *c, qn_dtype dtype, int32_t data, double level)
{
    static const double extreme[] = {0.0,       -0.0,   1.0,       0x1p-149,
                                     -0x1p-126, 0x1p60, -0x1.8p59, 0x1p-40};
    static const double extreme_f16[] = {0.0, -0.0, 1.0, 0x1p-24, -0x1p-14, 65504.0, -65504.0, 0.5};
    const size_t n = sizeof extreme / sizeof *extreme;
    const bool is_code = dtype == QN_I8 || dtype == QN_U8;
    const int64_t lo = dtype == QN_U8 ? 0 : -128, hi = lo + 255;
    if (is_code && data == CHECK_EXACT)
        return (double)check_random_in(&c->random, (lo + hi) / 2 - 4, (lo + hi) / 2 + 4);
    if (is_code && data == CHECK_EXTREME && check_random_chance(&c->random, 70))
        return (double)(check_random_chance(&c->random, 50) ? lo : hi);
    if (is_code)
        return (double)check_random_in(&c->random, lo, hi);
    if (data == CHECK_EXACT)
        return (double)check_random_in(&c->random, -4, 4);
    if (data == CHECK_EXTREME)
        return (dtype == QN_F16 ? extreme_f16 : extreme)[check_random_next(&c->random) % n];
    const double x = level * check_random_normal(&c->random);
    return check_random_chance(&c->random, 1) ? 30.0 * x : x;
}

void check_fill_x(struct check *c, const qn_tensor *x, int32_t data, bool bad_rows)
{
    int64_t index[QN_MAX_RANK] = {0};
    int64_t elements = 1;
    double level = 1.0, bad = 0.0;
    for (int32_t d = 0; d < x->rank; d++)
        elements *= x->shape[d];
    const int64_t row = x->rank > 0 && x->shape[0] > 0 ? elements / x->shape[0] : 0;
    int64_t bad_at = -1;
    bad_rows = bad_rows && x->dtype != QN_I8 && x->dtype != QN_U8; /* codes are all good */
    for (int64_t i = 0; i < elements; i++) {
        int64_t at = 0;
        for (int32_t d = 0; d < x->rank; d++)
            at += index[d] * x->stride[d];
        if (i % row == 0) {
            static const double bads[] = {(double)NAN, (double)INFINITY, -(double)INFINITY};
            level = exp(check_random_normal(&c->random));
            bad_at = bad_rows && check_random_chance(&c->random, 40)
                         ? i + check_random_in(&c->random, 0, row - 1)
                         : -1;
            bad = bads[check_random_next(&c->random) % 3];
        }
        const double v = draw(c, x->dtype, data, level);
        check_put(x, at, i == bad_at ? bad : v);
        for (int32_t d = x->rank - 1; d >= 0 && ++index[d] == x->shape[d]; d--)
            index[d] = 0;
    }
}

void check_enlarge_x(struct check *c, const qn_tensor *x)
{
    static const double large[] = {0x1.fep127, -0x1.fep127, 0x1p127, -0x1.8p126, 0x1p100, 0x1p-100};
    int64_t index[QN_MAX_RANK] = {0};
    int64_t elements = 1;
    int32_t percent = 0;
    for (int32_t d = 0; d < x->rank; d++)
        elements *= x->shape[d];
    const int64_t row = x->rank > 0 && x->shape[0] > 0 ? elements / x->shape[0] : 0;
    for (int64_t i = 0; i < elements; i++) {
        int64_t at = 0;
        for (int32_t d = 0; d < x->rank; d++)
            at += index[d] * x->stride[d];
        if (i % row == 0) /* some rows stay, some nearly all take the largest */
            percent = (int32_t)check_random_in(&c->random, 0, 3) * 33;
        if (isfinite(qni_ref_get(x->data, x->dtype, at)) &&
            check_random_chance(&c->random, percent))
            check_put(x, at, large[percent == 99 ? 0 : check_random_in(&c->random, 0, 5)]);
        for (int32_t d = x->rank - 1; d >= 0 && ++index[d] == x->shape[d]; d--)
            index[d] = 0;
    }
}
