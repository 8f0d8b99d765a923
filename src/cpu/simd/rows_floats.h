/* SPDX-License-Identifier: Apache-2.0 */
/* The part of rows_body.h that takes tiles of floats to y in one pass: what scale() and finish() do
 * to each row, with their bits, for the steps that convolutions of floats have. Rows of 16 to 64
 * outputs are so short that these calls, and a loop for each step, take longer than the arithmetic.
 * Sixteen outputs go from row to row with their scales and biases in registers; of fewer, what is
 * beyond them is worked on and not stored. A scale that is not asked for is 1, a bias -0, a clamp
 * infinite: none changes a number. */

enum { VECTORS = QNI_PANEL / LANES };
typedef float floats QNI_VECTOR(4 * LANES);

/* Vectors of a panel. */
struct panel {
    floats v[VECTORS];
};

/* Bits of a where the mask is all ones, else of b. */
QNI_TEMPLATE floats choose(lanes mask, floats a, floats b)
{
    return (floats)(((lanes)a & mask) | ((lanes)b & ~mask));
}

QNI_TEMPLATE floats all_of(float value)
{
    return (floats){0} + value;
}

/* n floats of sixteen; the others are zero. */
QNI_TEMPLATE struct panel load_panel(const float *from, const int64_t n)
{
    struct panel p;
    if (n < QNI_PANEL)
        memset(&p, 0, sizeof p);
    if (n == QNI_PANEL || n == QNI_PANEL / 2)
        memcpy(&p, from, (size_t)n * sizeof *from);
    else
        for (int64_t j = 0; j < n; j++)
            memcpy((char *)&p + j * 4, from + j, sizeof *from);
    return p;
}

QNI_TEMPLATE floats finish_floats(floats a, const int act, floats lo, floats hi)
{
    const floats zero = {0}, one = all_of(1.0f);
    if (act == QN_ACT_RELU)
        a = choose((lanes)(a <= zero), zero, a);
    if (act == QN_ACT_HARDSWISH) {
        floats h = a * 0x1.555556p-3f + 0.5f;
        h = choose((lanes)(h > one), one, h);
        a *= choose((lanes)(h < zero), zero, h);
    }
    const floats above = choose((lanes)(a > hi), hi, a);
    return choose((lanes)(a < lo), lo, above);
}

/* n outputs from `at` on, at most 16. */
QNI_TEMPLATE void float_columns(const struct qni_float_rows *s, int64_t at, const int64_t n,
                                const int act)
{
    const floats nan = (floats)((lanes){0} + QNI_NAN_F32), lo = all_of(s->clamp_lo),
                 hi = all_of(s->clamp_hi);
    struct panel scale, bias, r = {{{0}}};
    const float *v = s->v + at, *from = s->residual != NULL ? s->residual + at : NULL;
    float *y = s->y + at;
    for (int j = 0; j < VECTORS; j++) {
        scale.v[j] = all_of(1.0f);
        bias.v[j] = (floats)((lanes){0} + 0x80000000u); /* -0 */
    }
    if (s->col_scale != NULL)
        scale = load_panel(s->col_scale + at, n);
    if (s->bias != NULL)
        bias = load_panel(s->bias + at, n);
    for (int64_t i = 0; i < s->rows; i++, v += s->ldv, y += s->ldy) {
        const float times = s->x_scale != NULL ? s->x_scale[i] : 1.0f;
        struct panel p = load_panel(v, n);
        if (from != NULL) {
            r = load_panel(from, n);
            from += s->ldr;
        }
        QNI_UNROLL
        for (int j = 0; j < VECTORS; j++) {
            floats a = p.v[j] * times * scale.v[j] + bias.v[j];
            if (from != NULL && !s->residual_after)
                a += r.v[j];
            a = finish_floats(a, act, lo, hi);
            if (from != NULL && s->residual_after)
                a += r.v[j];
            p.v[j] = choose((lanes)(a == a), a, nan);
        }
        if (n == QNI_PANEL || n == QNI_PANEL / 2)
            memcpy(y, &p, (size_t)n * sizeof *y);
        else
            for (int64_t j = 0; j < n; j++)
                memcpy(y + j, (char *)&p + j * 4, sizeof *y);
    }
}

QNI_TEMPLATE void float_rows_of(const struct qni_float_rows *s, const int act)
{
    int64_t at = 0;
    for (; at + QNI_PANEL <= s->n; at += QNI_PANEL)
        float_columns(s, at, QNI_PANEL, act);
    if (s->n - at == QNI_PANEL / 2)
        float_columns(s, at, QNI_PANEL / 2, act);
    else if (at < s->n)
        float_columns(s, at, s->n - at, act);
}

static void float_rows(const struct qni_float_rows *s)
{
    if (s->act == QN_ACT_RELU)
        float_rows_of(s, QN_ACT_RELU);
    else if (s->act == QN_ACT_HARDSWISH)
        float_rows_of(s, QN_ACT_HARDSWISH);
    else
        float_rows_of(s, QN_ACT_NONE);
}
