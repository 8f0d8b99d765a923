/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical weights: made, checked, looked at, freed. What has passed qn_weight_create() is
 * consistent and finite; everything below trusts it. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/half.h"
#include "../base/size.h"
#include "../base/sized.h"
#include "canonical.h"

/* f32 must hold value - zero exactly. No format needs more than a few bits beyond its codes. */
enum { MAX_ZERO = 1 << 22 };

/* ---- memory ---- */

static size_t table_bytes(const qn_format *f)
{
    return qni_has_table(f) ? sizeof(float) << f->bits : 0;
}

static size_t code_bytes(const struct qn_weight *w)
{
    return (size_t)w->n * qni_code_row_bytes(w);
}

static size_t group_bytes(const struct qn_weight *w)
{
    return (size_t)w->n * (size_t)w->n_groups * sizeof(float);
}

static size_t super_bytes(const struct qn_weight *w)
{
    return (size_t)w->n * (size_t)w->n_supers * sizeof(float);
}

static size_t sub_bytes(const struct qn_weight *w)
{
    return (size_t)w->n * (size_t)w->n_groups * sizeof(int16_t);
}

static size_t column_bytes(const struct qn_weight *w)
{
    return (size_t)w->k * sizeof(float);
}

void qni_weight_drop_supers(struct qn_weight *w)
{
    const struct qni_allocator *a = &w->allocator;
    qni_free(a, w->super_scale, super_bytes(w));
    qni_free(a, w->super_min, super_bytes(w));
    qni_free(a, w->sub_scale, sub_bytes(w));
    qni_free(a, w->sub_min, sub_bytes(w));
    w->super_scale = w->super_min = NULL;
    w->sub_scale = w->sub_min = NULL;
}

void qn_weight_destroy(qn_weight *weight)
{
    if (weight == NULL)
        return;
    const struct qni_allocator a = weight->allocator;
    qni_weight_drop_supers(weight);
    qni_free(&a, weight->codes, code_bytes(weight));
    qni_free(&a, weight->scale, group_bytes(weight));
    qni_free(&a, weight->zero, group_bytes(weight));
    qni_free(&a, weight->offset, group_bytes(weight));
    qni_free(&a, weight->perm, column_bytes(weight));
    qni_free(&a, weight->prescale, column_bytes(weight));
    qni_free(&a, weight->table, table_bytes(&weight->format));
    qni_free(&a, weight, sizeof *weight);
}

/* Everything that is a number of the shape: so far nothing is multiplied without a check. */
static qn_status check_geometry(const qn_weight_parts *g, int64_t *ci, qn_error *err)
{
    int64_t taps;
    QNI_TRY(qn_format_check(&g->format, err));
    if (g->n < 0 || g->k < 0 || g->kh < 1 || g->kw < 1 || g->conv_groups < 1)
        return qni_fail(
            err, QN_E_SHAPE,
            "a weight of n %lld, k %lld, kernel %d x %d, %d groups is impossible: n and k are not "
            "negative, the others at least 1, as the struct's _init() sets them",
            (long long)g->n, (long long)g->k, (int)g->kh, (int)g->kw, (int)g->conv_groups);
    if (!qni_is_weight_shape(g->n, g->k))
        return qni_fail(err, QN_E_SHAPE,
                        "n is %lld and k %lld; n and k are at most 2^31 - 1, and n at most 2^24 "
                        "where k is 0",
                        (long long)g->n, (long long)g->k);
    if (!qni_i64_mul(g->kh, g->kw, &taps) || g->k % taps != 0)
        return qni_fail(err, QN_E_SHAPE, "k = %lld is no multiple of the kernel's %d x %d taps",
                        (long long)g->k, (int)g->kh, (int)g->kw);
    if (g->n % g->conv_groups != 0)
        return qni_fail(err, QN_E_SHAPE, "n = %lld outputs do not divide into %d groups",
                        (long long)g->n, (int)g->conv_groups);
    *ci = g->k / taps;
    const int64_t n_groups = qn_format_groups(&g->format, g->k, *ci);
    size_t bytes;
    if (!qni_size_mul((size_t)g->n, (size_t)qni_max(g->k, n_groups), &bytes) ||
        !qni_size_mul(bytes, sizeof(float), &bytes) || bytes > PTRDIFF_MAX)
        return qni_fail(err, QN_E_SHAPE, "a weight of [%lld, %lld] exceeds the address space",
                        (long long)g->n, (long long)g->k);
    return QN_OK;
}

static bool alloc_arrays(struct qn_weight *w, bool with_perm, bool with_prescale)
{
    const struct qni_allocator *a = &w->allocator;
    const qn_format *f = &w->format;
    w->codes = qni_alloc(a, code_bytes(w));
    w->scale = qni_alloc(a, group_bytes(w));
    if (f->shift == QN_SHIFT_ZERO)
        w->zero = qni_alloc(a, group_bytes(w));
    const bool has_offset = f->shift == QN_SHIFT_OFFSET || f->shift == QN_SHIFT_MIN;
    if (has_offset)
        w->offset = qni_alloc(a, group_bytes(w));
    if (with_perm)
        w->perm = qni_alloc(a, column_bytes(w));
    if (with_prescale)
        w->prescale = qni_alloc(a, column_bytes(w));
    if (qni_has_table(f))
        w->table = qni_alloc(a, table_bytes(f));
    return w->codes != NULL && w->scale != NULL &&
           (w->zero != NULL) == (f->shift == QN_SHIFT_ZERO) && (w->offset != NULL) == has_offset &&
           (w->perm != NULL) == with_perm && (w->prescale != NULL) == with_prescale &&
           (w->table != NULL) == qni_has_table(f);
}

qn_status qni_weight_alloc(const struct qni_allocator *a, const qn_weight_parts *geometry,
                           bool with_perm, bool with_prescale, struct qn_weight **weight,
                           qn_error *err)
{
    const qn_format *f = &geometry->format;
    int64_t ci;
    *weight = NULL;
    QNI_TRY(check_geometry(geometry, &ci, err));
    if (f->code == QN_CODE_TABLE && geometry->table == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "codes of a table need the table");
    struct qn_weight *w = qni_alloc_zero(a, sizeof *w);
    if (w == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for a weight");
    w->allocator = *a;
    w->format = *f;
    w->n = geometry->n;
    w->k = geometry->k;
    w->ci = ci;
    w->kh = geometry->kh;
    w->kw = geometry->kw;
    w->conv_groups = geometry->conv_groups;
    w->n_groups = qn_format_groups(f, w->k, ci);
    w->n_supers = f->superblock > 0 ? qni_ceil_div(w->n_groups, f->superblock) : 0;
    if (!alloc_arrays(w, with_perm, with_prescale)) {
        qn_weight_destroy(w);
        return qni_fail(err, QN_E_MEMORY, "no memory for a weight of [%lld, %lld]",
                        (long long)geometry->n, (long long)geometry->k);
    }
    if (w->table != NULL)
        memcpy(w->table, f->code == QN_CODE_TABLE ? geometry->table : qni_code_table(f->code),
               table_bytes(f));
    for (int64_t i = 0; qni_is_float_format(f) && i < w->n; i++)
        w->scale[i] = 1.0f;
    *weight = w;
    return QN_OK;
}

qn_status qni_weight_alloc_supers(struct qn_weight *w, qn_error *err)
{
    const struct qni_allocator *a = &w->allocator;
    const bool has_min = qni_has_sub_min(&w->format);
    w->super_scale = qni_alloc(a, super_bytes(w));
    w->sub_scale = qni_alloc(a, sub_bytes(w));
    if (has_min) {
        w->super_min = qni_alloc(a, super_bytes(w));
        w->sub_min = qni_alloc(a, sub_bytes(w));
    }
    if (w->super_scale != NULL && w->sub_scale != NULL && (w->super_min != NULL) == has_min &&
        (w->sub_min != NULL) == has_min)
        return QN_OK;
    qni_weight_drop_supers(w);
    return qni_fail(err, QN_E_MEMORY, "no memory for the two-level scales of [%lld, %lld]",
                    (long long)w->n, (long long)w->k);
}

void qni_weight_fill_row(struct qn_weight *w, int64_t row)
{
    const int64_t per_super = w->format.superblock;
    for (int64_t s = 0; s < w->n_supers; s++) {
        const int64_t super = row * w->n_supers + s;
        const int64_t first = row * w->n_groups + s * per_super;
        const int64_t end = qni_min(first + per_super, (row + 1) * w->n_groups);
        for (int64_t at = first; at < end; at++)
            w->scale[at] = w->super_scale[super] * (float)w->sub_scale[at];
        for (int64_t at = first; at < end && w->sub_min != NULL; at++)
            w->offset[at] = -(w->super_min[super] * (float)w->sub_min[at]);
    }
}

void qni_weight_fill_products(struct qn_weight *w)
{
    for (int64_t row = 0; w->super_scale != NULL && row < w->n; row++)
        qni_weight_fill_row(w, row);
}

/* ---- what the parts must be ---- */

static qn_status check_supers_given(const qn_weight_parts *p, qn_error *err)
{
    const bool has = p->super_scale != NULL;
    const bool has_min = has && qni_has_sub_min(&p->format);
    if (has && p->format.superblock == 0)
        return qni_fail(err, QN_E_ARGUMENT,
                        "super_scale is given, but the format has no super-blocks");
    if ((p->sub_scale != NULL) != has || (p->super_min != NULL) != has_min ||
        (p->sub_min != NULL) != has_min)
        return qni_fail(err, QN_E_ARGUMENT,
                        "of super_scale, sub_scale%s some are given and some are not",
                        qni_has_sub_min(&p->format) ? ", super_min and sub_min"
                                                    : " (super_min and sub_min are not needed)");
    return QN_OK;
}

static qn_status check_arrays(const qn_weight_parts *p, qn_error *err)
{
    const bool wants_zero = p->format.shift == QN_SHIFT_ZERO;
    const bool has_supers = p->super_scale != NULL;
    const bool makes_min = has_supers && p->offset == NULL && qni_has_sub_min(&p->format);
    const bool wants_offset =
        p->format.shift == QN_SHIFT_OFFSET || (p->format.shift == QN_SHIFT_MIN && !makes_min);
    const bool has_codes = p->n > 0 && p->k > 0, is_float = qni_is_float_format(&p->format);
    QNI_TRY(check_supers_given(p, err));
    if ((p->codes == NULL && has_codes) ||
        (p->scale == NULL && p->n > 0 && !has_supers && !is_float))
        return qni_fail(err, QN_E_ARGUMENT, "codes or scales are missing");
    if ((p->zero != NULL) != wants_zero && (p->n > 0 || !wants_zero))
        return qni_fail(err, QN_E_ARGUMENT, "zero points are %s",
                        wants_zero ? "missing" : "given, but the format has none");
    if ((p->offset != NULL) != wants_offset && (p->n > 0 || !wants_offset))
        return qni_fail(err, QN_E_ARGUMENT, "offsets are %s",
                        wants_offset ? "missing" : "given, but the format has none");
    return QN_OK;
}

/* Is there one among them that is not finite? */
static bool any_infinite(const float *v, int64_t n)
{
    uint32_t bad = 0;
    for (int64_t i = 0; i < n; i++)
        bad |= (uint32_t)((qni_bits_of(v[i]) & 0x7f800000u) == 0x7f800000u);
    return bad != 0;
}

/* Without a word about the first one that is bad; weights of floats are not looked at. */
static bool groups_are_fine(const qn_weight_parts *p, int64_t n)
{
    bool bad = qni_is_float_format(&p->format) || any_infinite(p->scale, n) ||
               (p->offset != NULL && any_infinite(p->offset, n));
    for (int64_t i = 0; i < n && p->zero != NULL; i++)
        bad |= (p->zero[i] > MAX_ZERO) | (p->zero[i] < -MAX_ZERO);
    return !bad;
}

static qn_status check_groups(const qn_weight_parts *p, const struct qn_weight *w, qn_error *err)
{
    const int64_t n_groups = w->n_groups;
    if (groups_are_fine(p, p->n * n_groups))
        return QN_OK;
    for (int64_t i = 0; i < p->n * n_groups; i++) {
        const long long row = (long long)(w->first_row + i / n_groups);
        const long long group = (long long)(i % n_groups);
        if (!isfinite(p->scale[i]))
            return qni_fail(err, QN_E_VALUE, "the scale of row %lld, group %lld is not finite", row,
                            group);
        if (qni_is_float_format(&p->format) && qni_bits_of(p->scale[i]) != 0x3f800000)
            return qni_fail(err, QN_E_VALUE,
                            "the scale of row %lld is %g; weights that are not quantized have "
                            "none, or 1",
                            row, (double)p->scale[i]);
        if (p->offset != NULL && !isfinite(p->offset[i]))
            return qni_fail(err, QN_E_VALUE, "the offset of row %lld, group %lld is not finite",
                            row, group);
        if (p->zero != NULL && (p->zero[i] > MAX_ZERO || p->zero[i] < -MAX_ZERO))
            return qni_fail(err, QN_E_VALUE,
                            "the zero point %d of row %lld, group %lld is beyond +-2^22",
                            (int)p->zero[i], row, group);
    }
    return QN_OK;
}

/* Is it a number of the type? */
static bool is_of_type(qn_dtype dtype, float v)
{
    const uint32_t bits = qni_bits_of(v);
    if (dtype == QN_F16 && (bits & 0x1fffu) == 0 && (bits >> 23 & 255) - 113 < 30)
        return true; /* normal in f16 */
    return dtype == QN_F16    ? qni_bits_of(qni_f32_from_f16(qni_f16_from_f32(v))) == bits
           : dtype == QN_BF16 ? (bits & 0xffffu) == 0
                              : true;
}

/* The two levels of a group, each in its range, and scales their products. Zeros are told by their
 * sign, too. */
static qn_status check_sub(const struct qn_weight *w, int64_t row, int64_t g, qn_error *err)
{
    const int64_t at = row * w->n_groups + g;
    const int32_t least = qni_sub_least(&w->format), most = qni_sub_most(&w->format);
    const int32_t sc = w->sub_scale[at], mn = w->sub_min != NULL ? w->sub_min[at] : 0;
    if (sc < least || sc > most || mn < 0 || mn > most)
        return qni_fail(err, QN_E_VALUE,
                        "the integer scale %d or minimum %d of row %lld, group %lld is out of "
                        "range for %d bits",
                        (int)sc, (int)mn, (long long)(w->first_row + row), (long long)g,
                        (int)w->format.superbits);
    if (qni_bits_of(w->scale[at]) != qni_bits_of(qni_product_scale(w, row, g)) ||
        (w->sub_min != NULL &&
         qni_bits_of(w->offset[at]) != qni_bits_of(qni_product_min(w, row, g))))
        return qni_fail(err, QN_E_VALUE,
                        "the scale or minimum of row %lld, group %lld is not the product of its "
                        "two levels",
                        (long long)(w->first_row + row), (long long)g);
    return QN_OK;
}

/* Tells whether both levels of a whole row pass check_sub(), and not which group does not. */
static bool subs_are_fine(const struct qn_weight *w, int64_t row)
{
    const int32_t least = qni_sub_least(&w->format), most = qni_sub_most(&w->format);
    const int64_t per_super = w->format.superblock;
    uint32_t bad = 0;
    for (int64_t s = 0; s < w->n_supers; s++) {
        const int64_t super = row * w->n_supers + s;
        const int64_t first = row * w->n_groups + s * per_super;
        const int64_t end = qni_min(first + per_super, (row + 1) * w->n_groups);
        for (int64_t at = first; at < end; at++) {
            const int32_t sc = w->sub_scale[at];
            const float product = w->super_scale[super] * (float)sc;
            bad |= (uint32_t)(sc < least) | (uint32_t)(sc > most);
            bad |= qni_bits_of(w->scale[at]) ^ qni_bits_of(product);
        }
        for (int64_t at = first; at < end && w->sub_min != NULL; at++) {
            const int32_t mn = w->sub_min[at];
            const float product = -(w->super_min[super] * (float)mn);
            bad |= (uint32_t)(mn < 0) | (uint32_t)(mn > most);
            bad |= qni_bits_of(w->offset[at]) ^ qni_bits_of(product);
        }
    }
    return bad == 0;
}

static qn_status check_supers(const struct qn_weight *w, qn_error *err)
{
    const qn_dtype type = w->format.scale_dtype;
    if (w->super_scale == NULL)
        return QN_OK;
    for (int64_t i = 0; i < w->n * w->n_supers; i++)
        for (int m = 0; m < 2; m++) {
            const float *from = m == 0 ? w->super_scale : w->super_min;
            if (from != NULL && (!isfinite(from[i]) || !is_of_type(type, from[i])))
                return qni_fail(err, QN_E_VALUE,
                                "the common %s of row %lld, super-block %lld is no finite %s",
                                m == 0 ? "scale" : "minimum",
                                (long long)(w->first_row + i / w->n_supers),
                                (long long)(i % w->n_supers), qn_dtype_name(type));
        }
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t g = 0; g < w->n_groups && !subs_are_fine(w, row); g++)
            QNI_TRY(check_sub(w, row, g, err));
    return QN_OK;
}

static bool is_bad_code(uint8_t code, uint8_t mask, bool is_e4m3)
{
    return is_e4m3 ? (code & mask) == 0x7f : (code & mask) != 0;
}

/* Rows of codes: looked at, and copied where there is a place for them. */
struct code_rows {
    const uint8_t *from;
    uint8_t *to; /* or NULL */
    int64_t k;
    uint8_t mask; /* of bits that are zero, or 0: every byte is a code */
    bool is_e4m3;
};

/* Eight codes at a time: those whose bits under the mask are not zero, or (E4M3) are 0x7f, which
 * are those that carry into the sign when 1 is added. */
static uint64_t any_bad_code(const uint8_t *codes, int64_t n, uint8_t mask, bool is_e4m3)
{
    const uint64_t ones = 0x0101010101010101, masks = ones * mask, one = is_e4m3 ? ones : 0;
    uint64_t bad = 0, last = 0, x;
    int64_t i = 0;
    for (; i + 8 <= n; i += 8) {
        memcpy(&x, codes + i, sizeof x);
        bad |= (x & masks) + one;
    }
    memcpy(&last, codes + i, (size_t)(n - i));
    bad |= (last & masks) + one;
    return bad & (is_e4m3 ? ones << 7 : UINT64_MAX);
}

static bool take_row(const void *arg, int64_t row)
{
    const struct code_rows *const c = arg;
    const uint8_t *codes = c->from + row * c->k;
    if (c->mask != 0 && any_bad_code(codes, c->k, c->mask, c->is_e4m3) != 0)
        return false;
    if (c->to != NULL)
        memcpy(c->to + row * c->k, codes, (size_t)c->k);
    return true;
}

/* Rows of floats: the same. */
struct float_rows {
    const uint8_t *from;
    uint8_t *to; /* or NULL */
    int64_t k;
    qn_dtype dtype;
};

static bool is_finite_at(const struct float_rows *f, int64_t at)
{
    return isfinite(qni_load_float(f->from, f->dtype, at));
}

static bool take_float_row(const void *arg, int64_t row)
{
    const struct float_rows *const f = arg;
    const size_t bytes = (size_t)f->k * qn_dtype_bytes(f->dtype);
    bool is_good = true;
    for (int64_t p = row * f->k; p < (row + 1) * f->k; p++)
        is_good &= is_finite_at(f, p);
    if (is_good && f->to != NULL)
        memcpy(f->to + (size_t)row * bytes, f->from + (size_t)row * bytes, bytes);
    return is_good;
}

static qn_status take_floats(const qn_ctx *ctx, const qn_weight_parts *p, uint8_t *to,
                             qn_error *err)
{
    const struct float_rows f = {p->codes, to, p->k, p->format.scale_dtype};
    const int64_t bad = p->k == 0 ? -1 : qni_parallel_rows(&ctx->threads, p->n, take_float_row, &f);
    for (int64_t at = 0; bad >= 0 && at < p->k; at++)
        if (!is_finite_at(&f, bad * p->k + at))
            return qni_fail(err, QN_E_VALUE, "the weight at row %lld, position %lld is %s",
                            (long long)bad, (long long)at,
                            isnan(qni_load_float(f.from, f.dtype, bad * p->k + at)) ? "NaN"
                                                                                    : "infinite");
    return QN_OK;
}

/* Bad is every byte of more than its bits, and those E4M3 codes that are no number. */
static qn_status take_codes(const qn_ctx *ctx, const qn_weight_parts *p, int64_t first_row,
                            uint8_t *to, qn_error *err)
{
    const bool is_e4m3 = p->format.code == QN_CODE_E4M3;
    if (qni_is_float_format(&p->format))
        return take_floats(ctx, p, to, err);
    const uint8_t mask = (uint8_t)(is_e4m3 ? 0x7fu : 0xffu << p->format.bits);
    const struct code_rows c = {p->codes, to, p->k, mask, is_e4m3};
    if (p->k == 0 || (mask == 0 && to == NULL))
        return QN_OK;
    const int64_t bad = qni_parallel_rows(&ctx->threads, p->n, take_row, &c);
    for (int64_t at = 0; bad >= 0 && at < p->k; at++) {
        const uint8_t code = p->codes[bad * p->k + at];
        if (is_bad_code(code, mask, is_e4m3))
            return qni_fail(err, QN_E_VALUE, "the code %d at row %lld, position %lld is %s",
                            (int)code, (long long)(first_row + bad), (long long)at,
                            is_e4m3 ? "NaN" : "out of range");
    }
    return QN_OK;
}

static qn_status check_columns(const qn_weight_parts *p, qn_error *err)
{
    for (int64_t i = 0; p->prescale != NULL && i < p->k; i++)
        if (!isfinite(p->prescale[i]) || p->prescale[i] == 0.0f)
            return qni_fail(err, QN_E_VALUE, "the prescale of column %lld is 0 or not finite",
                            (long long)i);
    const int64_t entries = p->format.code == QN_CODE_TABLE ? (int64_t)1 << p->format.bits : 0;
    for (int64_t i = 0; i < entries; i++)
        if (!isfinite(p->table[i]))
            return qni_fail(err, QN_E_VALUE, "entry %lld of the table is not finite", (long long)i);
    return QN_OK;
}

/* perm has been copied: `seen` marks a column by flipping all bits of its entry, which makes it
 * negative, so that no other memory is needed; the marks are taken off at the end. */
static qn_status check_perm(int32_t *perm, int64_t k, qn_error *err)
{
    for (int64_t p = 0; p < k; p++)
        if (perm[p] < 0 || perm[p] >= k)
            return qni_fail(err, QN_E_VALUE, "perm is no permutation: position %lld reads %d",
                            (long long)p, (int)perm[p]);
    for (int64_t p = 0; p < k; p++) {
        const int32_t column = perm[p] < 0 ? ~perm[p] : perm[p];
        if (perm[column] < 0)
            return qni_fail(err, QN_E_VALUE, "perm is no permutation: column %d comes twice",
                            (int)column);
        perm[column] = ~perm[column];
    }
    for (int64_t p = 0; p < k; p++)
        perm[p] = ~perm[p];
    return QN_OK;
}

/* The value of signed codes that stands for the offset, or for 0. */
static double origin(const struct qn_weight *w, int64_t i)
{
    return w->zero != NULL                   ? (double)w->zero[i]
           : w->format.shift == QN_SHIFT_MIN ? -(double)(1 << (w->format.bits - 1))
                                             : 0.0;
}

/* The largest magnitude of value - zero, and of what kernels make on the way: value, zero. */
static double largest_value(const struct qn_weight *w)
{
    double largest = ldexp(1.0, w->format.bits - 1); /* of integers */
    for (int32_t i = 0; w->table != NULL && i < 1 << w->format.bits; i++)
        largest = i == 0 ? fabs((double)w->table[0]) : fmax(largest, fabs((double)w->table[i]));
    return largest;
}

/* Is there an f32 for every code of the group, whatever it is? */
static bool is_safe(const struct qn_weight *w, int64_t at, double largest)
{
    const double zero = w->zero != NULL ? fabs((double)w->zero[at]) : 0.0;
    const double offset = w->offset != NULL ? fabs((double)w->offset[at]) : 0.0;
    const double from_zero = w->format.shift == QN_SHIFT_MIN ? largest : 0.0;
    return fabs((double)w->scale[at]) * (largest + zero + from_zero) + offset <= (double)FLT_MAX;
}

static bool is_beyond_f32(double x)
{
    return !isfinite((float)x);
}

static qn_status check_row_values(const struct qn_weight *w, int64_t row, qn_error *err)
{
    for (int64_t p = 0; p < w->k; p++) {
        const int64_t i = row * w->n_groups + qni_group_of(&w->format, p, w->ci);
        const double value = qni_code_value(w, w->codes[row * w->k + p]), scale = w->scale[i];
        const double zero = origin(w, i);
        const double offset = w->offset != NULL ? w->offset[i] : 0.0;
        if (is_beyond_f32(scale * value) || is_beyond_f32(scale * zero) ||
            is_beyond_f32(scale * (value - zero) + offset) || is_beyond_f32(offset - scale * zero))
            return qni_fail(err, QN_E_VALUE,
                            "the weight at row %lld, position %lld is beyond f32 (scale %g, value "
                            "%g, zero %g, offset %g); scale the layer down",
                            (long long)(w->first_row + row), (long long)p, scale, value, zero,
                            offset);
    }
    return QN_OK;
}

qn_status qni_weight_check_values(const struct qn_weight *w, qn_error *err)
{
    const double largest = largest_value(w);
    if (qni_is_float_format(&w->format))
        return QN_OK; /* they are finite */
    for (int64_t row = 0; row < w->n && w->k > 0; row++) {
        bool safe = true;
        for (int64_t g = 0; g < w->n_groups && safe; g++)
            safe = is_safe(w, row * w->n_groups + g, largest);
        if (!safe)
            QNI_TRY(check_row_values(w, row, err));
    }
    return QN_OK;
}

/* ---- public ---- */

static void copy(void *to, const void *from, size_t bytes)
{
    if (to != NULL && bytes > 0)
        memcpy(to, from, bytes);
}

/* Scales and shifts; what is made from two levels is made here. */
static qn_status copy_groups(struct qn_weight *w, const qn_weight_parts *p, qn_error *err)
{
    qn_weight_parts filled = *p;
    if (p->super_scale != NULL && qni_may_have_supers(&w->format, w->n, w->n_groups)) {
        QNI_TRY(qni_weight_alloc_supers(w, err));
        copy(w->super_scale, p->super_scale, super_bytes(w));
        copy(w->sub_scale, p->sub_scale, sub_bytes(w));
        copy(w->super_min, p->super_min, super_bytes(w));
        copy(w->sub_min, p->sub_min, sub_bytes(w));
        qni_weight_fill_products(w);
    }
    copy(w->zero, p->zero, group_bytes(w));
    if (p->scale != NULL)
        copy(w->scale, p->scale, group_bytes(w));
    if (p->offset != NULL)
        copy(w->offset, p->offset, group_bytes(w));
    filled.scale = w->scale;
    filled.offset = w->offset;
    QNI_TRY(check_groups(&filled, w, err));
    return check_supers(w, err);
}

qn_status qn_weight_create(const qn_ctx *ctx, const qn_weight_parts *parts, qn_weight **weight,
                           qn_error *err)
{
    qn_weight_parts p;
    if (weight != NULL)
        *weight = NULL;
    if (ctx == NULL || parts == NULL || weight == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "ctx, parts or weight is NULL");
    qn_weight_parts_init(&p);
    QNI_TRY(qni_sized_read(&p, sizeof p, parts, err));
    int64_t ci;
    QNI_TRY(check_geometry(&p, &ci, err));
    if (p.format.code == QN_CODE_TABLE && p.table == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "codes of a table need the table");
    QNI_TRY(check_arrays(&p, err));
    QNI_TRY(check_columns(&p, err));
    struct qn_weight *w;
    QNI_TRY(qni_weight_alloc(&ctx->allocator, &p, p.perm != NULL, p.prescale != NULL, &w, err));
    qn_status status = copy_groups(w, &p, err);
    copy(w->perm, p.perm, column_bytes(w));
    copy(w->prescale, p.prescale, column_bytes(w));
    if (status == QN_OK)
        status = take_codes(ctx, &p, 0, w->codes, err);
    if (status == QN_OK && w->perm != NULL)
        status = check_perm(w->perm, w->k, err);
    if (status == QN_OK)
        status = qni_weight_check_values(w, err);
    if (status != QN_OK) {
        qn_weight_destroy(w);
        return status;
    }
    *weight = w;
    return QN_OK;
}

qn_status qni_weight_check(const qn_ctx *ctx, struct qn_weight *w, qn_error *err)
{
    qn_weight_parts p;
    qn_weight_parts_init(&p);
    QNI_TRY(qn_weight_view(w, &p));
    QNI_TRY(check_groups(&p, w, err));
    QNI_TRY(check_supers(w, err));
    QNI_TRY(take_codes(ctx, &p, w->first_row, NULL, err));
    QNI_TRY(check_columns(&p, err));
    if (w->perm != NULL)
        QNI_TRY(check_perm(w->perm, w->k, err));
    return qni_weight_check_values(w, err);
}

qn_status qn_weight_view(const qn_weight *weight, qn_weight_parts *parts)
{
    if (weight == NULL)
        return QN_E_ARGUMENT;
    qn_weight_parts own;
    qn_weight_parts_init(&own);
    own.format = weight->format;
    own.n = weight->n;
    own.k = weight->k;
    own.kh = weight->kh;
    own.kw = weight->kw;
    own.conv_groups = weight->conv_groups;
    own.codes = weight->codes;
    own.scale = weight->scale;
    own.zero = weight->zero;
    own.offset = weight->offset;
    own.perm = weight->perm;
    own.prescale = weight->prescale;
    own.table = weight->table;
    own.n_groups = weight->n_groups;
    own.super_scale = weight->super_scale;
    own.super_min = weight->super_min;
    own.sub_scale = weight->sub_scale;
    own.sub_min = weight->sub_min;
    own.n_supers = weight->n_supers;
    return qni_sized_write(parts, &own, sizeof own);
}

/* The definition of every format. double holds each product of an f32 scale and a value exactly
 * (24 + 24 bits), and the sum with an f32 offset up to one rounding of double. */
void qni_weight_row(const struct qn_weight *w, int64_t row, double *out)
{
    for (int64_t p = 0; p < w->k; p++) {
        const int64_t i = row * w->n_groups + qni_group_of(&w->format, p, w->ci);
        const double value = qni_position_value(w, row, p);
        const double zero = origin(w, i);
        const double offset = w->offset != NULL ? w->offset[i] : 0.0;
        out[p] = (double)w->scale[i] * (value - zero) + offset;
    }
}
