/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scale search: the parameters that minimise sum weights[i] * (x[i] - decoded[i])^2 of a group.
 *
 * The range that round-to-nearest uses is stretched and shrunk in steps; from the best of these the
 * parameters are fitted to their own codes by weighted least squares, for as long as that helps:
 *     scale = S(w x v) / S(w v v)                       v = value - zero
 *     scale = (S(w) S(w x v) - S(w x) S(w v)) / (S(w) S(w v v) - S(w v)^2), offset likewise.
 * Every candidate is rounded as the format stores it before its error is taken, and the first
 * candidate is that of round-to-nearest: the result is never worse.
 */
#include <math.h>

#include "../base/size.h"
#include "coder.h"
#include "dense.h"

/* Few bits want a narrow range (for 2 bits and normal weights about half of it), many a full one.
 */
enum { STEPS = 24, REFINEMENTS = 6 };
static const float first_stretch = 1.09f, step_down = 0.03f;

struct search {
    const struct qni_coder *coder;
    const float *x, *weights;
    int64_t n;
    struct qni_params best;
    double error;
};

static void consider(struct search *s, struct qni_params p)
{
    if (!isfinite(p.scale) || !isfinite(p.offset))
        return;
    const double error = qni_params_error(s->coder, &p, s->x, s->weights, s->n);
    if (error < s->error) {
        s->error = error;
        s->best = p;
    }
}

/* ---- candidates by range ---- */

static struct qni_params scaled(const struct search *s, struct qni_params p, float factor)
{
    p.scale = qni_round_scale(s->coder, p.scale * factor);
    return p;
}

static void stretch_symmetric(struct search *s, struct qni_params first)
{
    const struct qni_coder *c = s->coder;
    if (c->format.scale_dtype == QN_E8M0) {
        for (float factor = 0.25f; factor <= 2.0f; factor *= 2.0f)
            consider(s, scaled(s, first, factor));
        return;
    }
    /* The side with one more code may take either sign where the scale may: the full range. */
    const bool both = c->is_signed && c->range == QN_RANGE_FULL && c->table == NULL;
    for (int i = 0; i < STEPS; i++) {
        const float factor = first_stretch - step_down * (float)i;
        consider(s, scaled(s, first, factor));
        if (both)
            consider(s, scaled(s, first, -factor));
    }
}

static void stretch_range(struct search *s, float lo, float hi)
{
    const float middle = 0.5f * lo + 0.5f * hi, half = 0.5f * hi - 0.5f * lo;
    const bool keeps_zero = s->coder->format.shift == QN_SHIFT_ZERO;
    for (int i = 0; i < STEPS; i++) {
        const float factor = first_stretch - step_down * (float)i;
        consider(s, keeps_zero
                        ? qni_fit_range(s->coder, lo * factor, hi * factor)
                        : qni_fit_range(s->coder, middle - half * factor, middle + half * factor));
    }
}

/* ---- least squares for given codes ---- */

struct sums {
    double w, x, v, xv, vv;
};

static struct sums sum_codes(const struct search *s)
{
    enum { PIECE = 256 };
    const struct qni_coder *c = s->coder;
    uint8_t codes[PIECE];
    struct sums t = {0.0, 0.0, 0.0, 0.0, 0.0};
    for (int64_t first = 0; first < s->n; first += PIECE) {
        const int64_t count = qni_min(PIECE, s->n - first);
        qni_encode(c, &s->best, s->x + first, count, codes);
        for (int64_t i = 0; i < count; i++) {
            const double w = s->weights != NULL ? (double)s->weights[first + i] : 1.0;
            const double x = (double)s->x[first + i];
            const double v = (c->table != NULL ? (double)c->table[codes[i]]
                                               : (double)((int32_t)codes[i] - c->bias)) -
                             (double)s->best.zero;
            t.w += w;
            t.x += w * x;
            t.v += w * v;
            t.xv += w * x * v;
            t.vv += w * v * v;
        }
    }
    return t;
}

static void refine(struct search *s)
{
    for (int i = 0; i < REFINEMENTS; i++) {
        const double before = s->error;
        const struct sums t = sum_codes(s);
        struct qni_params p = s->best;
        if (qni_coder_has_offset(s->coder)) {
            const double determinant = t.w * t.vv - t.v * t.v;
            if (!(determinant > 0.0))
                return;
            p.scale = qni_round_scale(s->coder, (float)((t.w * t.xv - t.x * t.v) / determinant));
            p.offset = qni_round_scale(s->coder, (float)((t.x - (double)p.scale * t.v) / t.w));
        } else {
            if (!(t.vv > 0.0))
                return;
            p.scale = qni_round_scale(s->coder, (float)(t.xv / t.vv));
        }
        if (!s->coder->is_signed && !(p.scale > 0.0f))
            return;
        consider(s, p);
        if (!(s->error < before))
            return;
    }
}

static struct qni_params search_group(const struct qni_coder *c, const float *x,
                                      const float *weights, int64_t n, struct qni_params first)
{
    struct search s = {c, x, weights, n, first, 0.0};
    s.error = qni_params_error(c, &first, x, weights, n);
    if (s.error > 0.0) {
        float lo, hi;
        qni_range_find(x, n, &lo, &hi);
        if (c->format.shift == QN_SHIFT_NONE)
            stretch_symmetric(&s, first);
        else
            stretch_range(&s, lo, hi);
        refine(&s);
    }
    return s.best;
}

/* ---- super-blocks ---- */

struct group {
    const float *x, *weights;
    int64_t n;
};

static struct group group_at(const float *x, const float *weights, int64_t n, int64_t group,
                             int64_t g)
{
    const int64_t first = g * group;
    return (struct group){x + first, weights != NULL ? weights + first : NULL,
                          qni_min(group, n - first)};
}

/* The integer nearest to the minimum of given codes' least squares: the mean of scale u - x. */
static int16_t fit_sub_min(const struct search *s, const struct qni_params *p)
{
    const double most = (double)((1 << s->coder->format.superbits) - 1);
    struct search codes = *s;
    codes.best = *p;
    const struct sums t = sum_codes(&codes);
    const double from_zero = (double)p->scale * (double)s->coder->least * t.w;
    const double depth = ((double)p->scale * t.v - from_zero - t.x) / (t.w * (double)p->super_min);
    return (int16_t)rint(fmin(fmax(depth, 0.0), most));
}

/* A group's scale and minimum among the integers near those that its wanted ones were rounded to,
 * which were chosen one by one: another pair often fits better. */
static struct qni_params search_integers(const struct qni_coder *c, const struct group *at,
                                         struct qni_params first)
{
    enum { NEAR = 2 };
    const bool has_min = qni_coder_has_offset(c), is_signed = !has_min;
    const int32_t top = 1 << (c->format.superbits - (is_signed ? 1 : 0));
    struct search s = {c, at->x, at->weights, at->n, first, 0.0};
    s.error = qni_params_error(c, &first, at->x, at->weights, at->n);
    for (int32_t step = -NEAR; step <= NEAR; step++) {
        struct qni_params p = first;
        const int32_t sc = first.sub_scale + step;
        if (sc < (is_signed ? -top : 0) || sc >= top)
            continue;
        p.sub_scale = (int16_t)sc;
        for (int32_t round = 0; round < (has_min ? NEAR : 1); round++) {
            qni_super_products(c, &p);
            if (has_min && p.super_min > 0.0f) {
                p.sub_min = fit_sub_min(&s, &p);
                qni_super_products(c, &p);
            }
            consider(&s, p);
        }
    }
    return s.best;
}

/* What each group would like if its scale were a plain f32; then the common scale, and the same
 * comparison as everywhere: the super-block of round-to-nearest wins ties. */
static void search_super(const struct qni_coder *c, const float *x, const float *weights, int64_t n,
                         int64_t group, struct qni_params *params)
{
    enum { MOST = 1024 };
    struct qni_params wanted[MOST];
    struct qni_coder plain = *c;
    plain.format.superblock = plain.format.superbits = 0;
    plain.format.scale_dtype = QN_F32;
    const int64_t n_groups = qni_ceil_div(n, group);
    double before = 0.0, after = 0.0;
    for (int64_t g = 0; g < n_groups; g++) {
        const struct group at = group_at(x, weights, n, group, g);
        float lo, hi;
        qni_range_find(at.x, at.n, &lo, &hi);
        if (qni_coder_has_offset(c)) /* offsets only reach downwards */
            lo = lo < 0.0f ? lo : 0.0f, hi = hi > lo ? hi : lo;
        wanted[g] = search_group(&plain, at.x, at.weights, at.n, qni_fit_range(&plain, lo, hi));
        before += qni_params_error(c, &params[g], at.x, at.weights, at.n);
    }
    qni_fit_super(c, n_groups, wanted);
    for (int64_t g = 0; g < n_groups; g++) {
        const struct group at = group_at(x, weights, n, group, g);
        wanted[g] = search_integers(c, &at, wanted[g]);
        after += qni_params_error(c, &wanted[g], at.x, at.weights, at.n);
    }
    for (int64_t g = 0; after < before && g < n_groups; g++)
        params[g] = wanted[g];
}

bool qni_fit_search(const struct qni_coder *c, const float *x, const float *weights, int64_t n,
                    int64_t group, struct qni_params *params)
{
    if (!qni_fit_rtn(c, x, n, group, params))
        return false;
    if (c->format.superblock > 0) {
        search_super(c, x, weights, n, group, params);
        return true;
    }
    for (int64_t g = 0; g * group < n; g++) {
        const struct group at = group_at(x, weights, n, group, g);
        params[g] = search_group(c, at.x, at.weights, at.n, params[g]);
    }
    return true;
}
