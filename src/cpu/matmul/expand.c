/* SPDX-License-Identifier: Apache-2.0 */
/* Which parts of compact weights are made for a kernel, and where: expand.h. Memory has, one after
 * the other, codes, scales, offsets and sums of some panels. */
#include "expand.h"

#include "../../base/size.h"
#include "../../quant/levels.h"

#define QNI_EXPAND(isa, needs) &qni_expand_##isa,
static const struct qni_expand *const instances[] = {
#include "expand.inc"
};
#undef QNI_EXPAND

const struct qni_expand *qni_expand_for(uint64_t isa)
{
    int32_t i = 0;
    while ((instances[i]->needs & ~isa) != 0) /* the last one needs nothing */
        i++;
    return instances[i];
}

/* Does the kernel read sums of code values? */
static bool reads_sums(const struct qni_op *op, const struct qni_matmul_kernel *kernel)
{
    if (kernel->reads == QNI_READS_Q8B)
        return !op->quant.symmetric;
    return kernel->reads == QNI_READS_Q8 && qni_op_x_zero(op) != 0;
}

/* The first code of a codebook that is zero, or the first. */
static uint8_t padding_of(const qn_packed *w)
{
    const float *const table = qni_section(w, QNI_SECTION_TABLE);
    for (int32_t i = 0; table != NULL && i < 1 << w->head->format.bits; i++)
        if (table[i] == 0.0f)
            return (uint8_t)i;
    return 0;
}

/* Does the kernel read them as they are? */
static bool is_read(const struct qni_op *op, const struct qni_expansion *e,
                    const struct qni_matmul_kernel *kernel)
{
    const struct qni_packed_head *const h = e->w->head;
    const qn_dtype common = h->format.scale_dtype;
    const int32_t groups = h->format.superblock;
    const bool has_two = qni_levels_are_two(h);
    const bool is_known =
        !has_two || ((common == QN_F16 || common == QN_F32) && (groups & (groups - 1)) == 0);
    return (kernel->traits & QNI_READS_COMPACT) != 0 && is_known &&
           qni_op_x_zero(op) == 0 && !qni_op_is_raw(op) && !qni_packed_stores_offsets(h);
}

struct qni_expansion qni_expansion_of(const struct qni_op *op, const qn_packed *w,
                                      const struct qni_matmul_kernel *kernel)
{
    /* Beside rows of x in the second cache. Kernels like pairs of panels. */
    enum { BYTES = 320 << 10, MOST = 32 };
    const struct qni_packed_head *const h = w->head;
    struct qni_expansion e = {.w = w, .panels = INT64_MAX};
    if (!qni_is_compact(h))
        return e;
    e.compact = qni_compact_of(h, qni_layout_find(h->layout), padding_of(w));
    e.cut = qni_cut_of(h, kernel->reads);
    const bool has_two = qni_levels_are_two(h);
    const bool is_float = h->scale_dtype == QN_F32 || h->scale_dtype == QN_F16;
    e.makes_codes = e.compact.bits != e.compact.wide_bits || e.compact.halves;
    e.makes_offsets = qni_packed_has_offsets(h) && !qni_packed_stores_offsets(h);
    e.makes_scales = has_two || !is_float || e.makes_offsets;
    e.makes_sums = reads_sums(op, kernel);
    e.is_read = is_read(op, &e, kernel);
    if (e.is_read)
        return e;
    /* What one expert's scales fit, another's may not. */
    const bool may_make_scales = e.makes_scales || h->format.scale_dtype == QN_E8M0 ||
                                 h->format.scale_dtype == QN_E4M3;
    if (!e.makes_codes && !e.makes_sums && !may_make_scales)
        return e;
    const size_t unit_bytes = qni_packed_unit_bytes(e.compact.wide_bits);
    e.codes_bytes = e.makes_codes ? (size_t)h->units * unit_bytes : 0;
    if (may_make_scales)
        e.scale_bytes = (size_t)h->n_groups * QNI_PANEL * sizeof(float);
    e.sums_bytes = e.makes_sums ? (size_t)e.cut.n_segments * QNI_PANEL * sizeof(int32_t) : 0;
    const size_t bytes = e.codes_bytes + 2 * e.scale_bytes + e.sums_bytes;
    const int64_t fit = (int64_t)(BYTES / qni_max((int64_t)bytes, 1));
    e.panels = fit < 2 ? 1 : qni_min(qni_min(fit, MOST) / 2 * 2, qni_max(h->panels, 1));
    return e;
}

size_t qni_expansion_bytes(const struct qni_expansion *e)
{
    if (e->panels == INT64_MAX)
        return 0;
    return (size_t)e->panels * (e->codes_bytes + 2 * e->scale_bytes + e->sums_bytes);
}

/* A section from a panel on; NULL if it is not there. */
static const uint8_t *panel_of(const struct qni_expansion *e, int32_t section, int64_t panel,
                               size_t panel_bytes)
{
    const uint8_t *const at = qni_section(e->w, section);
    return at == NULL ? NULL : at + (size_t)panel * panel_bytes;
}

static struct qni_expand_scales scales_of(const struct qni_expansion *e)
{
    const struct qni_packed_head *const h = e->w->head;
    const bool has_two = qni_levels_are_two(h);
    return (struct qni_expand_scales){
        .n_groups = h->n_groups,
        .dtype = has_two ? h->format.scale_dtype : h->scale_dtype,
        .unit = qni_packed_scale_unit(e->w),
        .min_dtype = h->zero_dtype,
        .superblock = h->format.superblock,
        .is_signed = h->format.shift == QN_SHIFT_NONE,
        .has_min = qni_has_sub_min(&h->format),
        .shares = qni_has_sub_min(&h->format) && h->format.superbits <= 4,
        .half = (float)(1 << (h->format.bits - 1)),
        .zero_is_i8 = h->zero_dtype == QN_I8,
    };
}

static int32_t scale_type(qn_dtype dtype)
{
    return dtype == QN_F16    ? QNI_SCALE_F16
           : dtype == QN_E8M0 ? QNI_SCALE_E8M0
           : dtype == QN_E4M3 ? QNI_SCALE_E4M3
                              : QNI_SCALE_F32;
}

struct qni_compact_panels qni_compact_panels_of(const struct qni_expansion *e,
                                                const int8_t *table8)
{
    const struct qni_packed_head *const h = e->w->head;
    const qn_format *const f = &h->format;
    const struct qni_compact *const c = &e->compact;
    const struct qni_expand_scales s = scales_of(e);
    const size_t lanes = (size_t)h->n_groups * QNI_PANEL;
    const bool has_two = qni_levels_are_two(h);
    struct qni_compact_panels p = {.bits = c->bits,
                                   .halves = c->halves,
                                   .is_narrow = e->makes_codes,
                                   .bias = c->is_table ? 128 : 1 << (c->bits - 1),
                                   .scale_type = scale_type(s.dtype),
                                   .unit = s.unit,
                                   .scale = qni_section(e->w, QNI_SECTION_SCALE),
                                   .scale_stride = lanes * qni_packed_scale_bytes(h),
                                   .levels = qni_section(e->w, QNI_SECTION_LEVELS),
                                   .super_shift = -1,
                                   .has_min = s.has_min,
                                   .is_signed = s.is_signed,
                                   .shares = s.shares,
                                   .min_is_f16 = h->zero_dtype == QN_F16,
                                   .half = s.half,
                                   .zero = qni_section(e->w, QNI_SECTION_ZERO),
                                   .zero_is_i8 = s.zero_is_i8,
                                   .zero_stride = lanes * (s.zero_is_i8 ? 1 : 4)};
    if (p.levels != NULL)
        p.levels_stride = qni_levels_panel_bytes(h, has_two);
    if (has_two) {
        p.super_shift = 0;
        while (1 << p.super_shift < f->superblock)
            p.super_shift++;
        p.common_bytes = QNI_PANEL * qn_dtype_bytes(f->scale_dtype) * (p.has_min ? 2 : 1);
        p.group_bytes = QNI_PANEL * (p.has_min && !p.shares ? 2u : 1u);
        p.super_bytes = p.common_bytes + (size_t)f->superblock * p.group_bytes;
    }
    if (table8 != NULL) {
        const int64_t unit = c->halves ? QNI_UNIT / 2 : QNI_UNIT;
        const int64_t padding = (unit - e->cut.last_len % unit) % unit;
        p.padding_sum = (int32_t)padding * table8[c->padding];
    }
    return p;
}

void qni_expand_panels(const struct qni_expand *functions, const struct qni_expansion *e,
                       int64_t panel, uint8_t *memory, struct qni_matmul_tile *t)
{
    const struct qni_packed_head *const h = e->w->head;
    const size_t lanes = (size_t)h->n_groups * QNI_PANEL, n = (size_t)t->n_panels;
    const size_t scale_bytes = lanes * qni_packed_scale_bytes(h);
    const size_t codes_bytes = (size_t)e->compact.units * e->compact.unit_bytes;
    const size_t zero_bytes = lanes * (h->zero_dtype == QN_I8 ? 1 : 4);
    const bool has_levels = h->section[QNI_SECTION_LEVELS].bytes != 0;
    const size_t level_bytes = has_levels ? qni_levels_panel_bytes(h, qni_levels_are_two(h)) : 0;
    if (e->is_read) {
        t->codes = panel_of(e, QNI_SECTION_CODES, panel, codes_bytes);
        t->codes_stride = codes_bytes;
        t->compact_panel = panel;
        t->scale = t->codes; /* there are some */
        t->offset = qni_packed_has_offsets(h) ? t->codes : NULL;
        t->sums = NULL;
        return;
    }
    uint8_t *const codes = memory, *const sums = memory + n * e->codes_bytes;
    float *const scale = (float *)(void *)(sums + n * e->sums_bytes);
    float *const offset = scale + n * lanes;
    struct qni_expand_codes c = {.compact = &e->compact, .cut = &e->cut, .table8 = t->table8};
    struct qni_expand_scales s = scales_of(e);
    for (size_t i = 0; i < n; i++) {
        const int64_t at = panel + (int64_t)i;
        c.from = panel_of(e, QNI_SECTION_CODES, at, codes_bytes);
        c.to = e->makes_codes ? codes + i * e->codes_bytes : NULL;
        c.sums = e->makes_sums ? (int32_t *)(void *)(sums + i * e->sums_bytes) : NULL;
        if (e->makes_codes || e->makes_sums)
            functions->codes(&c);
        s.scale = panel_of(e, QNI_SECTION_SCALE, at, scale_bytes);
        s.levels = panel_of(e, QNI_SECTION_LEVELS, at, level_bytes);
        s.zero = panel_of(e, QNI_SECTION_ZERO, at, zero_bytes);
        s.stored = panel_of(e, QNI_SECTION_OFFSET, at, scale_bytes);
        s.to = scale + i * lanes;
        s.offset = e->makes_offsets || s.stored != NULL ? offset + i * lanes : NULL;
        if (e->makes_scales)
            functions->scales(&s);
    }
    t->codes = e->makes_codes ? codes : panel_of(e, QNI_SECTION_CODES, panel, codes_bytes);
    t->codes_stride = e->makes_codes ? e->codes_bytes : codes_bytes;
    t->sums = e->makes_sums ? (const int32_t *)(const void *)sums : NULL;
    t->scale_is_f16 = !e->makes_scales && h->scale_dtype == QN_F16;
    t->scale = e->makes_scales ? (const void *)scale
                               : panel_of(e, QNI_SECTION_SCALE, panel, scale_bytes);
    const bool is_made = e->makes_offsets || (e->makes_scales && s.stored != NULL);
    t->offset = is_made ? (const void *)offset
                        : panel_of(e, QNI_SECTION_OFFSET, panel, scale_bytes);
    t->zero = panel_of(e, QNI_SECTION_ZERO, panel, zero_bytes);
    if (t->raw_i32) /* the epilogue takes zero points away from the sums */
        t->offset = t->zero = NULL;
}
