/* SPDX-License-Identifier: Apache-2.0 */
/* The blob back to canonical weights, and the question whether a blob from a file may be run. A
 * head that passed qni_packed_head_check() is consistent in itself; here its sections are compared
 * with what the layout makes of that geometry, and everything that is used as an index is looked
 * at. */
#include "pack.h"

#include <math.h>
#include <string.h>

#include "../base/compiler.h"
#include "../base/error.h"
#include "../base/half.h"
#include "levels.h"

static qn_status check_section(const struct qni_packed_head *h, int32_t section, const char *name,
                               int64_t count, size_t element, qn_error *err)
{
    size_t bytes;
    if (!qni_size_mul((size_t)count, element, &bytes) || h->section[section].bytes != bytes)
        return qni_fail(err, QN_E_CORRUPT,
                        "the packed weights' %s take %llu bytes, layout %.23s needs %llu", name,
                        (unsigned long long)h->section[section].bytes, h->layout,
                        (unsigned long long)bytes);
    return QN_OK;
}

static qn_status check_sections(const struct qni_packed_head *h, const struct qni_layout *layout,
                                const struct qni_cut *row_cut, qn_error *err)
{
    const int64_t lanes = h->panels * QNI_PANEL;
    const bool compact = qni_is_compact(h), two = qni_levels_are_two(h);
    const size_t scale = qni_packed_scale_bytes(h);
    const bool is_table = layout->is_table != 0;
    const bool has_sums = h->section[QNI_SECTION_SUMS].bytes != 0 && !compact;
    const bool has_counts = h->section[QNI_SECTION_COUNTS].bytes != 0;
    const bool same_segments = row_cut->segment_units == h->segment_units;
    QNI_TRY(check_section(h, QNI_SECTION_CODES, "codes",
                          h->panels * (compact ? qni_compact_units(h) : h->units),
                          qni_packed_unit_bytes(compact ? h->format.bits : layout->code_bits),
                          err));
    QNI_TRY(check_section(h, QNI_SECTION_SCALE, "scales",
                          qni_compact_has_scale(h, two)
                              ? lanes * h->n_groups + (int64_t)qni_packed_unit_scale_bytes(h)
                              : 0,
                          scale, err));
    QNI_TRY(check_section(h, QNI_SECTION_OFFSET, "offsets",
                          qni_packed_stores_offsets(h) ? lanes * h->n_groups : 0, scale, err));
    QNI_TRY(check_section(h, QNI_SECTION_SUMS, "column sums", has_sums ? lanes * h->n_segments : 0,
                          4, err));
    QNI_TRY(check_section(h, QNI_SECTION_GROUP_SUMS, "group sums",
                          has_sums && !same_segments ? lanes * row_cut->n_segments : 0, 4, err));
    const bool has_integers = !is_table && layout->floats == 0;
    QNI_TRY(check_section(h, QNI_SECTION_COUNTS, "counts",
                          has_counts || has_integers ? row_cut->n_segments : 0, 4, err));
    QNI_TRY(check_section(h, QNI_SECTION_TABLE, "codebook",
                          !is_table                ? 0
                          : layout->code_bits == 4 ? 16
                                                   : 256,
                          4, err));
    QNI_TRY(check_section(h, QNI_SECTION_RUNS, "runs", h->n_runs, sizeof(struct qni_run), err));
    QNI_TRY(check_section(h, QNI_SECTION_PERM, "permutation",
                          h->section[QNI_SECTION_PERM].bytes != 0 ? h->k : 0, 4, err));
    QNI_TRY(check_section(h, QNI_SECTION_PRESCALE, "prescale",
                          h->section[QNI_SECTION_PRESCALE].bytes != 0 ? h->k : 0, 4, err));
    QNI_TRY(check_section(h, QNI_SECTION_ZERO, "zero points",
                          h->format.shift == QN_SHIFT_ZERO ? lanes * h->n_groups : 0,
                          h->zero_dtype == QN_I8 ? 1 : 4, err));
    const bool has_levels = h->section[QNI_SECTION_LEVELS].bytes != 0 ||
                            (h->format.shift == QN_SHIFT_MIN && lanes * h->n_groups > 0);
    if (has_levels && !two &&
        (h->zero_dtype == QN_I8 || h->zero_dtype == QN_I32 || h->format.shift != QN_SHIFT_MIN))
        return qni_fail(err, QN_E_CORRUPT,
                        "the packed weights' format has no scales of two levels");
    return check_section(h, QNI_SECTION_LEVELS, "levels of scales", has_levels ? h->panels : 0,
                         has_levels ? qni_levels_panel_bytes(h, two) : 0, err);
}

/* Runs are what shape and format make, so that their sources are a partition of the row; perm names
 * columns. */
static qn_status check_indices(const struct qn_packed *packed, qn_error *err)
{
    const struct qni_packed_head *h = packed->head;
    const struct qni_run *runs = qni_section(packed, QNI_SECTION_RUNS);
    const int32_t *perm = qni_section(packed, QNI_SECTION_PERM);
    struct qni_run wanted;
    const int64_t i = qni_runs_differ(h, runs, &wanted);
    if (i >= h->n_runs)
        return qni_fail(err, QN_E_CORRUPT, "the packed weights lack run %lld, to position %lld",
                        (long long)i, (long long)wanted.dst);
    if (i >= 0)
        return qni_fail(err, QN_E_CORRUPT,
                        "run %lld of the packed weights moves %lld positions from %lld to %lld; "
                        "their format moves %lld from %lld to %lld",
                        (long long)i, (long long)runs[i].len, (long long)runs[i].src,
                        (long long)runs[i].dst, (long long)wanted.len, (long long)wanted.src,
                        (long long)wanted.dst);
    for (int64_t p = 0; perm != NULL && p < h->k; p++)
        if (perm[p] < 0 || perm[p] >= h->k)
            return qni_fail(err, QN_E_CORRUPT, "position %lld reads column %d of k = %lld",
                            (long long)p, perm[p], (long long)h->k);
    return QN_OK;
}

static qn_status check_counts(const struct qn_packed *packed, const struct qni_cut *row_cut,
                              qn_error *err)
{
    const int32_t *counts = qni_section(packed, QNI_SECTION_COUNTS);
    for (int64_t s = 0; counts != NULL && s < row_cut->n_segments; s++)
        if (counts[s] != qni_count_of(row_cut, s))
            return qni_fail(err, QN_E_CORRUPT,
                            "the packed weights' count of segment %lld is %d, by its shape %d",
                            (long long)s, (int)counts[s], (int)qni_count_of(row_cut, s));
    return QN_OK;
}

/* A known codebook is what its name says (a NaN of any bits where it has one); one of the file's
 * own is finite; behind the entries are zeros. */
static qn_status check_codebook(const struct qn_packed *packed, qn_error *err)
{
    const struct qni_packed_head *h = packed->head;
    const float *table = qni_section(packed, QNI_SECTION_TABLE);
    const float *known = qni_code_table(h->format.code);
    const int64_t entries = (int64_t)(h->section[QNI_SECTION_TABLE].bytes / sizeof *table);
    for (int64_t i = 0; table != NULL && i < entries; i++) {
        const bool is_inside = i < (int64_t)1 << h->format.bits;
        const bool is_good = !is_inside ? qni_bits_of(table[i]) == 0
                             : known == NULL || isnan(known[i])
                                 ? isfinite(table[i]) == (known == NULL)
                                 : qni_bits_of(table[i]) == qni_bits_of(known[i]);
        if (!is_good)
            return qni_fail(err, QN_E_CORRUPT,
                            "entry %lld of the codebook is %g, which is not what the packed "
                            "weights' format has there",
                            (long long)i, (double)table[i]);
    }
    return QN_OK;
}

qn_status qni_packed_check(const struct qni_packing *packing, const struct qn_packed *packed,
                           qn_error *err)
{
    const struct qni_packed_head *h = packed->head;
    const struct qni_layout *layout = NULL;
    if (memchr(h->layout, 0, sizeof h->layout) != NULL)
        layout = qni_packing_find(packing, h->layout);
    if (layout == NULL)
        return qni_fail(err, QN_E_LAYOUT,
                        "the weights are packed in layout \"%.23s\", which is none of the %s's",
                        h->layout, packing->device);
    const int64_t groups = qn_format_groups(&h->format, h->k, h->ci);
    bool pays;
    const bool fits = layout->is_compact == qni_is_compact(h) &&
                      (!layout->is_compact ||
                       (qni_compact_holds(&h->format, h->n, h->k, h->ci, h->conv_groups, &pays) &&
                        h->kh == 1 && h->kw == 1));
    if (!qni_layout_holds(layout, &h->format) || !fits)
        return qni_fail(err, QN_E_CORRUPT,
                        "layout %s cannot hold the format that the packed "
                        "weights name",
                        layout->name);
    const struct qni_cut cut = qni_packed_cut(h, true), rows = qni_packed_cut(h, false);
    if (groups != h->n_groups || qni_packed_units(h->device_kind, cut.units) != h->units ||
        cut.group_units != h->group_units || cut.segment_units != h->segment_units ||
        cut.n_segments != h->n_segments ||
        h->panels != qni_packed_panels(h->n, h->ci, h->conv_groups) ||
        h->segment_units != qni_min(h->group_units, qni_max(1, qni_ceil_div(h->x_block, QNI_UNIT))))
        return qni_fail(err, QN_E_CORRUPT,
                        "the packed weights' units, groups and segments do not follow from k");
    QNI_TRY(check_sections(h, layout, &rows, err));
    QNI_TRY(check_counts(packed, &rows, err));
    QNI_TRY(check_codebook(packed, err));
    return check_indices(packed, err);
}

void qni_packed_load(const struct qni_packing *packing, const struct qni_layout *layout,
                     const struct qn_packed *packed, int64_t panel, int64_t unit,
                     struct qni_unit_codes *block)
{
    enum { HALF = QNI_UNIT / 2 };
    const struct qni_packed_head *const h = packed->head;
    const uint8_t *const codes = qni_section(packed, QNI_SECTION_CODES);
    if (!qni_is_compact(h)) {
        const size_t unit_bytes = qni_packed_unit_bytes(layout->code_bits);
        packing->load(codes + (size_t)(panel * h->units + unit) * unit_bytes, layout->code_bits,
                      block);
        return;
    }
    const struct qni_compact c = qni_compact_of(h, layout, 0);
    const int64_t at = panel * c.units + (c.halves ? unit / 2 : unit);
    qni_compact_load(&c, codes + (size_t)at * c.unit_bytes, block);
    for (int32_t j = 0; c.halves && j < QNI_PANEL; j++) {
        if (unit % 2 != 0)
            memcpy(block->code[j], &block->code[j][HALF], HALF);
        memset(&block->code[j][HALF], c.padding, HALF);
    }
}

/* What all threads of an unpacking read; bad: any of them saw a code out of range. */
struct unpack {
    const struct qni_packing *packing;
    const struct qn_packed *packed;
    const struct qni_layout *layout;
    struct qn_weight *w;
    int32_t *bad; /* [tasks] */
};

enum { PANELS_PER_TASK = 4 };

/* The codes of one panel; false if one is out of range. */
static bool unpack_codes(const struct unpack *u, int64_t panel, const int64_t outputs[QNI_PANEL])
{
    const struct qni_packed_head *h = u->packed->head;
    const struct qni_run *runs = qni_section(u->packed, QNI_SECTION_RUNS);
    const int64_t per_block = qni_packed_block_units(h->device_kind);
    const int32_t n = 1 << h->format.bits;
    const int32_t shift = u->layout->is_table ? 0 : (1 << (u->layout->code_bits - 1)) - n / 2;
    struct qni_unit_codes block[QNI_MAX_BLOCK_UNITS];
    uint32_t seen = 0;
    int64_t run = 0;
    for (int64_t unit = 0; unit < h->units; unit++) {
        const int64_t first = unit * QNI_UNIT, end = first + QNI_UNIT;
        const struct qni_unit_codes *here = &block[unit % per_block];
        if (here == block)
            qni_packed_load(u->packing, u->layout, u->packed, panel, unit, block);
        while (run < h->n_runs && runs[run].dst + runs[run].len <= first)
            run++;
        for (int64_t i = run; i < h->n_runs && runs[i].dst < end; i++) {
            const int64_t from = qni_max(runs[i].dst, first);
            const int64_t to = qni_min(runs[i].dst + runs[i].len, end);
            for (int64_t j = 0; j < QNI_PANEL; j++) {
                uint8_t *out = u->w->codes + outputs[j] * h->k + runs[i].src - runs[i].dst;
                for (int64_t q = from; outputs[j] >= 0 && q < to; q++) {
                    const int32_t code = here->code[j][q - first] - shift;
                    seen |= (uint32_t)code;
                    out[q] = (uint8_t)code;
                }
            }
        }
    }
    return seen < (uint32_t)n; /* a negative code has high bits */
}

static void unpack_floats(const struct unpack *u, int64_t panel, const int64_t outputs[QNI_PANEL])
{
    const struct qni_packed_head *h = u->packed->head;
    const struct qni_run *runs = qni_section(u->packed, QNI_SECTION_RUNS);
    const qn_dtype floats = u->layout->floats;
    const size_t unit_bytes = qni_packed_unit_bytes(u->layout->code_bits);
    const size_t each = qn_dtype_bytes(floats), step = qni_float_step(floats);
    const uint8_t *const from = (const uint8_t *)qni_section(u->packed, QNI_SECTION_CODES) +
                                (size_t)(panel * h->units) * unit_bytes;
    for (int32_t r = 0; r < h->n_runs; r++)
        for (int64_t i = 0; i < runs[r].len; i++) {
            const int64_t at = runs[r].dst + i, to = runs[r].src + i;
            const uint8_t *const place = from + (size_t)(at / QNI_UNIT) * unit_bytes +
                                         u->packing->float_place(floats, at % QNI_UNIT);
            for (int64_t j = 0; j < QNI_PANEL; j++)
                if (outputs[j] >= 0)
                    memcpy(u->w->codes + (size_t)(outputs[j] * h->k + to) * each,
                           place + (size_t)j * step, each);
        }
}

static void unpack_levels(const struct unpack *u, const uint8_t *panel, int64_t j, int64_t g,
                          int64_t lane)
{
    struct qn_weight *const w = u->w;
    const int64_t at = j * w->n_groups + g;
    const struct qni_levels l = qni_levels_load(u->packed->head, panel, g, lane);
    if (w->format.shift == QN_SHIFT_MIN)
        w->offset[at] = l.min;
    if (w->super_scale == NULL)
        return;
    const int64_t super = j * w->n_supers + g / w->format.superblock;
    w->super_scale[super] = l.super_scale;
    w->sub_scale[at] = l.sub_scale;
    if (w->sub_min == NULL)
        return;
    w->super_min[super] = l.super_min;
    w->sub_min[at] = l.sub_min;
}

static void unpack_scales(const struct unpack *u, int64_t panel, const int64_t outputs[QNI_PANEL])
{
    const struct qni_packed_head *h = u->packed->head;
    const void *offset = qni_section(u->packed, QNI_SECTION_OFFSET);
    const void *zero = qni_section(u->packed, QNI_SECTION_ZERO);
    const uint8_t *levels = qni_section(u->packed, QNI_SECTION_LEVELS);
    const size_t level_bytes =
        levels == NULL ? 0 : qni_levels_panel_bytes(h, qni_levels_are_two(h));
    for (int64_t g = 0; g < h->n_groups; g++)
        for (int64_t lane = 0; lane < QNI_PANEL; lane++) {
            const int64_t at = (panel * h->n_groups + g) * QNI_PANEL + lane;
            const int64_t j = outputs[u->packing->lanes[lane]];
            if (j < 0)
                continue;
            const int64_t to = j * h->n_groups + g;
            u->w->scale[to] = qni_packed_affine(u->packed, panel, g, lane).scale;
            if (u->w->offset != NULL && offset != NULL)
                u->w->offset[to] = qni_load_scale(offset, h->scale_dtype, at);
            if (levels != NULL)
                unpack_levels(u, levels + (size_t)panel * level_bytes, j, g, lane);
            if (u->w->zero != NULL)
                u->w->zero[to] = h->zero_dtype == QN_I8 ? ((const int8_t *)zero)[at]
                                                        : ((const int32_t *)zero)[at];
        }
}

static void unpack_panels(void *arg, int32_t task)
{
    const struct unpack *u = arg;
    const int64_t first = (int64_t)task * PANELS_PER_TASK;
    const int64_t end = qni_min(first + PANELS_PER_TASK, u->packed->head->panels);
    u->bad[task] = 0;
    for (int64_t panel = first; panel < end; panel++) {
        int64_t outputs[QNI_PANEL];
        for (int64_t j = 0; j < QNI_PANEL; j++)
            outputs[j] = qni_output_of(u->packed->head, panel, j);
        if (u->layout->floats != 0)
            unpack_floats(u, panel, outputs);
        else if (!unpack_codes(u, panel, outputs))
            u->bad[task] = 1;
        unpack_scales(u, panel, outputs);
    }
}

static qn_status alloc_weight(const qn_ctx *ctx, const struct qn_packed *packed,
                              struct qn_weight **w, qn_error *err)
{
    const struct qni_packed_head *h = packed->head;
    const int32_t *perm = qni_section(packed, QNI_SECTION_PERM);
    const float *prescale = qni_section(packed, QNI_SECTION_PRESCALE);
    qn_weight_parts parts;
    qn_weight_parts_init(&parts);
    parts.format = h->format;
    parts.n = h->n;
    parts.k = h->k;
    parts.kh = h->kh;
    parts.kw = h->kw;
    parts.conv_groups = h->conv_groups;
    parts.table = qni_section(packed, QNI_SECTION_TABLE);
    QNI_TRY(qni_weight_alloc(&ctx->allocator, &parts, perm != NULL, prescale != NULL, w, err));
    if (qni_levels_are_two(h)) {
        const qn_status status = qni_weight_alloc_supers(*w, err);
        if (status != QN_OK) {
            qn_weight_destroy(*w);
            return status;
        }
    }
    if (perm != NULL)
        memcpy((*w)->perm, perm, (size_t)h->k * sizeof *perm);
    if (prescale != NULL)
        memcpy((*w)->prescale, prescale, (size_t)h->k * sizeof *prescale);
    return QN_OK;
}

qn_status qni_unpack_host(const qn_ctx *ctx, const struct qni_packing *packing,
                          const struct qn_packed *packed, struct qn_weight **weight, qn_error *err)
{
    QNI_TRY(qni_packed_check(packing, packed, err));
    struct unpack u = {packing, packed, qni_packing_find(packing, packed->head->layout), NULL,
                       NULL};
    const int32_t tasks = (int32_t)qni_ceil_div(packed->head->panels, PANELS_PER_TASK);
    QNI_TRY(alloc_weight(ctx, packed, &u.w, err));
    u.bad = qni_alloc(&ctx->allocator, (size_t)tasks * sizeof *u.bad);
    if (u.bad == NULL) {
        qn_weight_destroy(u.w);
        return qni_fail(err, QN_E_MEMORY, "no memory to unpack with");
    }
    qni_parallel(&ctx->threads, tasks, unpack_panels, &u);
    int32_t bad = 0;
    for (int32_t i = 0; i < tasks; i++)
        bad |= u.bad[i];
    qni_free(&ctx->allocator, u.bad, (size_t)tasks * sizeof *u.bad);
    if (bad != 0) {
        qn_weight_destroy(u.w);
        return qni_fail(err, QN_E_CORRUPT, "a packed code is out of range for %d bits",
                        packed->head->format.bits);
    }
    const qn_status status = qni_weight_check(ctx, u.w, err);
    if (status != QN_OK) {
        qn_weight_destroy(u.w);
        return status;
    }
    *weight = u.w;
    return QN_OK;
}
