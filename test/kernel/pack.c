/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical weights through create, view, dequantize, pack and unpack: unpack(pack(w)) == w bit for
 * bit, for every format and every layout that takes it, with act-order, prescale and convolution
 * geometry. */
#include <math.h>
#include <string.h>

#include "suites.h"

struct pack_case {
    const struct check_format *format;
    int32_t data, shape;
};

/* Equal bits; any NaN equals any other (unused codes of a table). */
static bool same_floats(const float *a, const float *b, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (memcmp(&a[i], &b[i], sizeof a[i]) != 0 && !(isnan(a[i]) && isnan(b[i])))
            return false;
    return true;
}

static void compare_array(struct check *c, const char *who, const char *what, bool there,
                          bool wanted, bool same)
{
    if (there != wanted)
        check_fail(c, "%s: %s is %s", who, what, there ? "there, but was not given" : "missing");
    else if (there && !same)
        check_fail(c, "%s: %s differs", who, what);
}

static void compare_parts(struct check *c, const char *who, const qn_weight *weight,
                          const struct check_weight *made)
{
    const struct qn_weight *w = &made->w;
    qn_weight_parts p;
    qn_weight_parts_init(&p);
    if (!check_status(c, "qn_weight_view", qn_weight_view(weight, &p), QN_OK, NULL))
        return;
    if (p.n != w->n || p.k != w->k || p.kh != w->kh || p.kw != w->kw ||
        p.conv_groups != w->conv_groups || p.n_groups != w->n_groups)
        check_fail(c, "%s: another shape", who);
    else if (memcmp(&p.format, &w->format, sizeof p.format) != 0)
        check_fail(c, "%s: another format", who);
    if (c->failed)
        return;
    const int64_t groups = w->n * w->n_groups;
    const size_t k = (size_t)w->k;
    compare_array(c, who, "codes", p.codes != NULL, true,
                  p.codes != NULL && memcmp(p.codes, w->codes,
                                            (size_t)w->n * k * qni_code_bytes(&w->format)) == 0);
    compare_array(c, who, "scale", p.scale != NULL, true, same_floats(p.scale, w->scale, groups));
    compare_array(c, who, "zero", p.zero != NULL, w->zero != NULL,
                  p.zero != NULL && w->zero != NULL &&
                      memcmp(p.zero, w->zero, (size_t)groups * sizeof *w->zero) == 0);
    compare_array(c, who, "offset", p.offset != NULL, w->offset != NULL,
                  p.offset != NULL && w->offset != NULL &&
                      same_floats(p.offset, w->offset, groups));
    const int64_t supers = w->n * w->n_supers;
    const bool has_supers = w->super_scale != NULL, has_min = w->sub_min != NULL;
    compare_array(c, who, "super_scale", p.super_scale != NULL, has_supers,
                  p.super_scale != NULL && has_supers &&
                      same_floats(p.super_scale, w->super_scale, supers) &&
                      memcmp(p.sub_scale, w->sub_scale, (size_t)groups * 2) == 0);
    compare_array(c, who, "super_min", p.super_min != NULL, has_min,
                  p.super_min != NULL && has_min &&
                      same_floats(p.super_min, w->super_min, supers) &&
                      memcmp(p.sub_min, w->sub_min, (size_t)groups * 2) == 0);
    compare_array(c, who, "perm", p.perm != NULL, w->perm != NULL,
                  p.perm != NULL && w->perm != NULL &&
                      memcmp(p.perm, w->perm, k * sizeof *w->perm) == 0);
    compare_array(c, who, "prescale", p.prescale != NULL, w->prescale != NULL,
                  p.prescale != NULL && w->prescale != NULL &&
                      same_floats(p.prescale, w->prescale, w->k));
    compare_array(c, who, "table", p.table != NULL, w->table != NULL,
                  p.table != NULL && w->table != NULL &&
                      same_floats(p.table, w->table, (int64_t)1 << w->format.bits));
}

/* fl(scale * (value - zero)) or fl(scale * value + offset), times the prescale. */
static float dequantized(const struct qn_weight *w, int64_t row, int64_t p, bool prescale)
{
    const int64_t g = qni_ref_group(w, row, p), column = w->perm != NULL ? w->perm[p] : p;
    const double value = qni_ref_value(w, row, p);
    const double from_zero = w->format.shift == QN_SHIFT_MIN ? 1 << (w->format.bits - 1) : 0;
    const float v = w->zero != NULL ? (float)((double)w->scale[g] * (value - w->zero[g]))
                    : w->offset != NULL
                        ? fmaf(w->scale[g], (float)(value + from_zero), w->offset[g])
                        : w->scale[g] * (float)value;
    return prescale && w->prescale != NULL ? v * w->prescale[column] : v;
}

static void compare_dequantized(struct check *c, const qn_ctx *ctx, const qn_weight *weight,
                                const struct check_weight *made)
{
    const struct qn_weight *w = &made->w;
    const bool prescale = check_random_chance(&c->random, 50);
    const qn_tensor out = check_tensor(c, "dense", QN_F32, 2, (const int64_t[]){w->n, w->k}, true);
    if (!check_status(c, "qn_weight_dequantize", qn_weight_dequantize(ctx, weight, prescale, &out),
                      QN_OK, NULL))
        return;
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t p = 0; p < w->k; p++) {
            const int64_t column = w->perm != NULL ? w->perm[p] : p;
            const float got = ((const float *)out.data)[row * out.stride[0] + column];
            const float expected = dequantized(w, row, p, prescale);
            if (got == expected || (isnan(got) && isnan(expected)))
                continue;
            check_fail(c, "dense[%lld, %lld] is %.9g, must be %.9g", (long long)row,
                       (long long)column, (double)got, (double)expected);
            return;
        }
}

/* One layout; NULL: the context's choice, which may not refuse. Returns whether it took the weight.
 */
static bool round_trip(struct check *c, const qn_ctx *ctx, const qn_weight *weight,
                       const struct check_weight *made, const char *layout)
{
    qn_error err = {0};
    qn_pack_options options;
    qn_pack_options_init(&options);
    options.layout = layout;
    options.x_block = CHECK_OF(&c->random, 0, 32, 100);
    options.without_sums = check_random_chance(&c->random, 20);
    qn_packed *packed = NULL;
    qn_weight *back = NULL;
    size_t bytes = 0;
    const char *who = layout != NULL ? layout : "the default layout";
    const qn_status status = qn_pack(ctx, weight, &options, &packed, &err);
    const bool is_on_gpu = c->options->device->kind != QN_CPU;
    const bool may_refuse = layout != NULL || (is_on_gpu && made->w.format.code == QN_CODE_FLOAT);
    if (may_refuse && status == QN_E_LAYOUT) /* unit.cuda_pack has the words for floats */
        return false;
    if (!check_status(c, who, status, QN_OK, &err))
        return false;
    qn_packed_info info;
    qn_packed_info_init(&info);
    check_status(c, "qn_packed_query", qn_packed_query(packed, &info), QN_OK, NULL);
    check_status(c, "qn_pack_bytes", qn_pack_bytes(ctx, weight, &options, &bytes), QN_OK, NULL);
    if (bytes != info.bytes)
        check_fail(c, "%s: qn_pack_bytes says %zu, packed are %zu", who, bytes, info.bytes);
    if (layout != NULL && strcmp(layout, info.layout) != 0)
        check_fail(c, "asked for %s, packed as %s", layout, info.layout);
    if (info.has_perm != (made->w.perm != NULL) || info.has_prescale != (made->w.prescale != NULL))
        check_fail(c, "%s: qn_packed_query misses perm or prescale", who);
    if (check_status(c, "qn_unpack", qn_unpack(ctx, packed, &back, &err), QN_OK, &err))
        compare_parts(c, who, back, made);
    qn_weight_destroy(back);
    qn_packed_destroy(packed);
    return true;
}

static void pack_case(struct check *c, const void *arg)
{
    const struct pack_case *pc = arg;
    struct check_random *r = &c->random;
    struct check_weight_options o = {
        .format = pc->format->format, .kh = 1, .kw = 1, .conv_groups = 1};
    o.n = CHECK_OF(r, 1, 2, 15, 16, 17, 33, 48, 100);
    o.k = CHECK_OF(r, 1, 7, 31, 32, 33, 64, 100, 129, 200, 300);
    o.data = pc->data;
    o.perm = check_random_chance(r, 30);
    o.prescale = check_random_chance(r, 30);
    o.f16_scales = check_random_chance(r, 50);
    if (pc->shape % 3 == 1) {
        o.kh = (int32_t)CHECK_OF(r, 1, 3);
        o.kw = (int32_t)CHECK_OF(r, 1, 2, 3);
        o.conv_groups = (int32_t)CHECK_OF(r, 1, 2, 4, 20);
        o.n = o.conv_groups * CHECK_OF(r, 1, 2, 17);
        o.k = o.kh * o.kw * CHECK_OF(r, 1, 1, 3, 8, 33);
    } else if (pc->shape == 2) {
        *(check_random_chance(r, 50) ? &o.n : &o.k) = 0;
        if (o.k == 0) /* an empty array is no array */
            o.perm = o.prescale = false;
    }
    struct check_weight made;
    check_weight_make(c, &o, &made);
    check_about(c, "n=%lld k=%lld taps=%dx%d groups=%d%s%s%s", (long long)o.n, (long long)o.k, o.kh,
                o.kw, o.conv_groups, o.perm ? " perm" : "", o.prescale ? " prescale" : "",
                o.f16_scales ? " f16" : "");
    const uint64_t *masks;
    const int32_t n_masks = check_masks(c->options, &masks);
    const uint64_t mask = masks[check_random_in(r, 0, n_masks - 1)];
    const qn_ctx *ctx = check_context(c, mask, (int32_t)CHECK_OF(r, 1, 2, CHECK_SERIAL));
    qn_weight *weight = NULL;
    qn_error err = {0};
    if (check_status(c, "qn_weight_create", qn_weight_create(ctx, &made.parts, &weight, &err),
                     QN_OK, &err)) {
        compare_parts(c, "create and view", weight, &made);
        compare_dequantized(c, ctx, weight, &made);
        round_trip(c, ctx, weight, &made, NULL);
        int32_t taken = 0;
        for (int32_t i = 0; qn_layout_name(i) != NULL; i++)
            taken += round_trip(c, ctx, weight, &made, qn_layout_name(i));
        if (taken == 0 &&
            (c->options->device->kind == QN_CPU || made.w.format.code != QN_CODE_FLOAT))
            check_fail(c, "no layout takes these weights when asked for by name");
    }
    qn_weight_destroy(weight);
}

void check_pack(struct check_suite *suite, const struct check_options *options)
{
    const struct check_format *formats;
    const int32_t n_formats = check_formats(&formats), shapes = options->quick ? 2 : 12;
    for (int32_t f = 0; f < n_formats; f++)
        for (int32_t shape = 0; shape < shapes; shape++) {
            const struct pack_case pc = {&formats[f], (f + shape) % CHECK_N_DATA, shape};
            check_case(suite, pack_case, &pc, "%s/%s/%d", formats[f].name,
                       check_data_names[pc.data], shape);
        }
}
