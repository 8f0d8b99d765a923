/* SPDX-License-Identifier: Apache-2.0 */
/* Reading and writing the LEVELS section: levels.h. */
#include "levels.h"

#include "../base/half.h"
#include "../base/size.h"
#include "cut.h"

bool qni_levels_are_two(const struct qni_packed_head *head)
{
    return head->format.superblock > 0 && head->section[QNI_SECTION_LEVELS].bytes != 0 &&
           (head->format.shift != QN_SHIFT_MIN || head->zero_dtype == QN_I8);
}

/* Where things lie in a panel of two levels. */
struct places {
    bool has_min, shares; /* two integers in a byte */
    size_t element;       /* of a common scale */
    size_t common, group; /* bytes of the common scales of a super-block; of a group */
};

static struct places places_of(const qn_format *f)
{
    struct places p = {.has_min = qni_has_sub_min(f), .element = qn_dtype_bytes(f->scale_dtype)};
    p.shares = p.has_min && f->superbits <= 4;
    p.common = QNI_PANEL * p.element * (p.has_min ? 2 : 1);
    p.group = QNI_PANEL * (p.has_min && !p.shares ? 2u : 1u);
    return p;
}

size_t qni_levels_panel_bytes(const struct qni_packed_head *head, bool two)
{
    const struct places p = places_of(&head->format);
    const size_t groups = (size_t)head->n_groups;
    if (!two)
        return groups * QNI_PANEL * qn_dtype_bytes(head->zero_dtype);
    return groups * p.group +
           (size_t)qni_ceil_div(head->n_groups, head->format.superblock) * p.common;
}

static void store_float(uint8_t *to, qn_dtype dtype, float v)
{
    const uint16_t half = dtype == QN_F16 ? qni_f16_from_f32(v) : qni_bf16_from_f32(v);
    if (dtype == QN_F32)
        memcpy(to, &v, sizeof v);
    else
        memcpy(to, &half, sizeof half);
}

static float load_float(const uint8_t *from, qn_dtype dtype)
{
    uint16_t half;
    float v;
    if (dtype == QN_F32) {
        memcpy(&v, from, sizeof v);
        return v;
    }
    memcpy(&half, from, sizeof half);
    return dtype == QN_F16 ? qni_f32_from_f16(half) : qni_f32_from_bf16(half);
}

/* The super-block and the group of it. */
static size_t place_of_super(const qn_format *f, const struct places *p, int64_t super)
{
    return (size_t)super * (p->common + (size_t)f->superblock * p->group);
}

static size_t place_of_group(const qn_format *f, const struct places *p, int64_t g)
{
    return place_of_super(f, p, g / f->superblock) + p->common +
           (size_t)(g % f->superblock) * p->group;
}

static void store_two(const qn_format *f, const struct qn_weight *w, int64_t row, uint8_t *panel,
                      size_t lane)
{
    const struct places p = places_of(f);
    const size_t second = QNI_PANEL * p.element;
    const int64_t per_super = f->superblock;
    for (int64_t s = 0; s < w->n_supers; s++) {
        const int64_t from = row * w->n_supers + s;
        uint8_t *const to = panel + place_of_super(f, &p, s) + lane * p.element;
        store_float(to, f->scale_dtype, row < 0 ? 0.0f : w->super_scale[from]);
        if (p.has_min)
            store_float(to + second, f->scale_dtype, row < 0 ? 0.0f : w->super_min[from]);
    }
    for (int64_t s = 0; s < w->n_supers; s++) {
        uint8_t *to = panel + place_of_super(f, &p, s) + p.common + lane;
        const int64_t end = qni_min((s + 1) * per_super, w->n_groups);
        for (int64_t g = s * per_super; g < end; g++, to += p.group) {
            const int64_t from = row * w->n_groups + g;
            const uint8_t sc = (uint8_t)(row < 0 ? 0 : w->sub_scale[from]);
            const uint8_t mn = (uint8_t)(row < 0 || !p.has_min ? 0 : w->sub_min[from]);
            to[0] = p.shares ? (uint8_t)(sc | mn << 4) : sc;
            if (p.has_min && !p.shares)
                to[QNI_PANEL] = mn;
        }
    }
}

void qni_levels_store(const struct qni_packed_head *head, const struct qn_weight *w, int64_t row,
                      uint8_t *panel, int64_t lane)
{
    const size_t bytes = qn_dtype_bytes(head->zero_dtype);
    if (qni_levels_are_two(head)) {
        store_two(&head->format, w, row, panel, (size_t)lane);
        return;
    }
    for (int64_t g = 0; g < w->n_groups; g++)
        store_float(panel + (size_t)(g * QNI_PANEL + lane) * bytes, head->zero_dtype,
                    row < 0 ? 0.0f : w->offset[row * w->n_groups + g]);
}

struct qni_levels qni_levels_load(const struct qni_packed_head *head, const uint8_t *panel,
                                  int64_t group, int64_t lane)
{
    const qn_format *f = &head->format;
    const struct places p = places_of(f);
    struct qni_levels l = {.min = 0.0f};
    if (!qni_levels_are_two(head)) {
        const size_t bytes = qn_dtype_bytes(head->zero_dtype);
        l.min = load_float(panel + (size_t)(group * QNI_PANEL + lane) * bytes, head->zero_dtype);
        return l;
    }
    const uint8_t *const super =
        panel + place_of_super(f, &p, group / f->superblock) + (size_t)lane * p.element;
    const uint8_t *const sub = panel + place_of_group(f, &p, group) + lane;
    l.super_scale = load_float(super, f->scale_dtype);
    l.sub_scale = f->shift == QN_SHIFT_NONE ? (int8_t)sub[0] : (int16_t)sub[0];
    if (!p.has_min)
        return l;
    l.super_min = load_float(super + QNI_PANEL * p.element, f->scale_dtype);
    l.sub_min = p.shares ? sub[0] >> 4 : sub[QNI_PANEL];
    l.sub_scale = p.shares ? sub[0] & 15 : l.sub_scale;
    l.min = -(l.super_min * (float)l.sub_min);
    return l;
}
