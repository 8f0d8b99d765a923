/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical weights to the blob that kernels stream. Everything a kernel reads of a panel lies in
 * the order of its loops; everything that can be known beforehand (column sums, offsets of zero
 * points, where a row's columns go) is a section. The order of the codes themselves is the
 * backend's: pack.h. Unpacking is unpack.c. */
#include "pack.h"

#include <string.h>

#include "../base/compiler.h"
#include "../base/error.h"
#include "../base/half.h"
#include "levels.h"
#include "narrow.h"

/* Panels are dealt out in pieces, so that there are enough for any number of threads. */
enum { PANELS_PER_TASK = 4 };

/* ---- planning -------------------------------------------------------------------------------- */

const struct qni_layout *qni_packing_layout(const struct qni_packing *packing, int32_t i)
{
    return i >= 0 && i < packing->n_layouts ? &packing->layouts[i] : NULL;
}

const struct qni_layout *qni_packing_find(const struct qni_packing *packing, const char *name)
{
    for (int32_t i = 0; i < packing->n_layouts; i++)
        if (strcmp(packing->layouts[i].name, name) == 0)
            return &packing->layouts[i];
    return NULL;
}

bool qni_layout_holds(const struct qni_layout *layout, const qn_format *format)
{
    if (qni_is_float_format(format) || layout->floats != 0)
        return qni_is_float_format(format) && layout->floats == format->scale_dtype;
    return (layout->is_table != 0) == qni_has_table(format) && format->bits <= layout->code_bits;
}

/* Among those without a wish: compact layouts are for weights that they make smaller. */
static bool serves(const struct qni_packing *packing, const struct qni_layout *layout,
                   const struct qn_weight *w)
{
    bool pays = true;
    const bool fits = !layout->is_compact ||
                      (packing->prefers_compact &&
                       qni_compact_holds(&w->format, w->n, w->k, w->ci, w->conv_groups, &pays));
    return qni_layout_holds(layout, &w->format) && fits && pays;
}

static qn_status choose_layout(struct qni_pack *p, const char *wish, qn_error *err)
{
    const struct qni_packing *packing = p->packing;
    const char *const what = p->w->table != NULL                  ? "a codebook"
                             : qni_is_float_format(&p->w->format) ? "floats"
                                                                  : "integers";
    const int32_t bits = p->w->format.bits;
    if (wish != NULL) {
        p->layout = qni_packing_find(packing, wish);
        if (p->layout == NULL)
            return qni_fail(err, QN_E_LAYOUT,
                            "there is no %s layout \"%.24s\"; qn_layout_name() lists them",
                            packing->device, wish);
        if (!qni_layout_holds(p->layout, &p->w->format))
            return qni_fail(err, QN_E_LAYOUT, "layout %s holds %s; these weights are %s of %d bits",
                            p->layout->name, p->layout->codes, what, (int)bits);
        bool pays;
        if (p->layout->is_compact && !qni_compact_holds(&p->w->format, p->w->n, p->w->k, p->w->ci,
                                                        p->w->conv_groups, &pays))
            return qni_fail(err, QN_E_LAYOUT,
                            "layout %s holds matrices whose groups are of 16, of multiples of 32, "
                            "or whole rows; these weights are none",
                            p->layout->name);
        return QN_OK;
    }
    for (int32_t i = 0; (p->layout = qni_packing_layout(packing, i)) != NULL; i++)
        if (serves(packing, p->layout, p->w))
            return QN_OK;
    return qni_fail(err, QN_E_LAYOUT, "no %s layout holds %s of %d bits", packing->device, what,
                    (int)bits);
}

/* Does f16 hold these exactly? Most often they are zero or normal in f16, which bits tell: 13 zeros
 * at the end, and an exponent from -14 to 15. */
static bool fits_f16(const float *v, int64_t n)
{
    enum { PIECE = 1024 };
    for (int64_t from = 0; from < n; from += PIECE) {
        const int64_t end = qni_min(from + PIECE, n);
        uint32_t unclear = 0, differ = 0;
        for (int64_t i = from; i < end; i++) {
            const uint32_t bits = qni_bits_of(v[i]), exponent = (bits & 0x7fffffff) >> 23;
            const bool is_zero = (bits & 0x7fffffff) == 0;
            unclear |= (bits & 0x1fff) | (uint32_t)(!is_zero & (exponent - 113 > 29));
        }
        for (int64_t i = from; i < end && unclear != 0; i++)
            differ |= qni_bits_of(qni_f32_from_f16(qni_f16_from_f32(v[i]))) ^ qni_bits_of(v[i]);
        if (differ != 0)
            return false;
    }
    return true;
}

static bool shifts_fit_f16(const struct qn_weight *w)
{
    if (w->format.shift == QN_SHIFT_OFFSET)
        return fits_f16(w->offset, w->n * w->n_groups);
    for (int64_t j = 0; w->format.shift != QN_SHIFT_NONE && j < w->n; j++)
        for (int64_t g = 0; g < w->n_groups; g++) {
            const float offset = qni_group_offset(w, j, g);
            if (!fits_f16(&offset, 1))
                return false;
        }
    return true;
}

bool qni_pack_fits_bytes(const struct qn_weight *w, qn_dtype dtype, float unit)
{
    for (int64_t i = 0; i < w->n * w->n_groups; i++) {
        uint8_t byte[4];
        qni_narrow(dtype, w->scale[i] / unit, byte);
        const float back =
            dtype == QN_E4M3 ? qni_f32_from_e4m3(byte[0]) : qni_f32_from_e8m0(byte[0]);
        if (qni_bits_of(back * unit) != qni_bits_of(w->scale[i]))
            return false;
    }
    return true;
}

/* The unit of scales of E4M3: 1, a power of two such that the largest is in [128, 256) (what
 * quantizing makes), or one in which the largest is 448 (a file's scale of the tensor); 0: none. */
static float find_scale_unit(const struct qn_weight *w)
{
    float most = 0.0f;
    for (int64_t i = 0; i < w->n * w->n_groups; i++)
        most = w->scale[i] > most ? w->scale[i] : most;
    const float power = qni_float_of(qni_bits_of(most) & 0x7f800000u) * 0x1p-7f;
    const float units[] = {1.0f, power, most / 448.0f};
    for (size_t i = 0; i < sizeof units / sizeof *units; i++)
        if (units[i] > 0x1p-100f && units[i] < 0x1p100f &&
            qni_pack_fits_bytes(w, QN_E4M3, units[i]))
            return units[i];
    return 0.0f;
}

static bool zeros_fit_i8(const struct qn_weight *w)
{
    for (int64_t i = 0; w->zero != NULL && i < w->n * w->n_groups; i++)
        if (w->zero[i] < -128 || w->zero[i] > 127)
            return false;
    return true;
}

struct qni_pack_widths qni_pack_measure(const struct qn_weight *w)
{
    const int64_t groups = w->n * w->n_groups;
    struct qni_pack_widths fit = {.zeros = zeros_fit_i8(w), .scales = fits_f16(w->scale, groups)};
    fit.minima = w->format.shift != QN_SHIFT_MIN || fits_f16(w->offset, groups);
    fit.shifts = fit.scales && shifts_fit_f16(w); /* with scales of f32 nobody asks */
    fit.powers = w->format.scale_dtype == QN_E8M0 && qni_pack_fits_bytes(w, QN_E8M0, 1.0f);
    fit.unit = w->format.scale_dtype == QN_E4M3 ? find_scale_unit(w) : 0.0f;
    return fit;
}

static void plan_codes(struct qni_pack *p)
{
    const struct qn_weight *w = p->w;
    if (qni_is_float_format(&w->format))
        return; /* neither codes nor sums of them */
    const int32_t n = 1 << w->format.bits;
    int8_t table8[16];
    p->half = n / 2;
    p->padding = (uint8_t)(w->table != NULL ? 0 : 1 << (p->layout->code_bits - 1));
    p->shift = p->padding - p->half;
    p->has_values =
        w->table == NULL || qni_table_integers(w->format.code, w->table, n, table8) != 0;
    for (int32_t i = n; w->table != NULL && i-- > 0;) {
        p->value[i] = (int16_t)(p->has_values ? table8[i] : 0);
        if (w->table[i] == 0.0f)
            p->padding = (uint8_t)i; /* a codebook without a zero pads with code 0: x is 0 there */
    }
}

/* The alignment of sections. GPUs copy lines of 128 bytes: from 64 bytes beside them, decode takes
 * 4 to 8 % longer (lab/cuda/NOTES.md). */
static size_t alignment(const struct qni_packed_head *head)
{
    return head->device_kind == QN_CUDA ? 256 : 64;
}

static qn_status add_section(struct qni_packed_head *head, int32_t section, int64_t count,
                             size_t element, qn_error *err)
{
    size_t bytes, end;
    const bool fits = qni_size_mul((size_t)count, element, &bytes) &&
                      qni_size_add((size_t)head->bytes, bytes, &end) && end < SIZE_MAX / 2;
    if (!fits)
        return qni_fail(err, QN_E_MEMORY, "the packed weights exceed the address space");
    if (bytes == 0)
        return QN_OK;
    head->section[section].offset = head->bytes;
    head->section[section].bytes = bytes;
    head->bytes = qni_round_up(end, alignment(head));
    return QN_OK;
}

static qn_status plan_sections(struct qni_pack *p, bool with_sums, qn_error *err)
{
    const struct qn_weight *w = p->w;
    struct qni_packed_head *h = &p->head;
    const bool compact = qni_is_compact(h), two = w->super_scale != NULL;
    const int64_t lanes = h->panels * QNI_PANEL;
    const size_t scale = qni_packed_scale_bytes(h);
    const bool same_segments = p->cut.segment_units == p->row_cut.segment_units;

    h->bytes = qni_round_up(sizeof *h, alignment(h));
    QNI_TRY(add_section(h, QNI_SECTION_CODES, h->panels * (compact ? p->compact.units : h->units),
                        compact ? p->compact.unit_bytes
                                : qni_packed_unit_bytes(p->layout->code_bits),
                        err));
    if (qni_compact_has_scale(h, two))
        QNI_TRY(add_section(h, QNI_SECTION_SCALE,
                            lanes * h->n_groups + (int64_t)qni_packed_unit_scale_bytes(h), scale,
                            err));
    if (qni_packed_stores_offsets(h))
        QNI_TRY(add_section(h, QNI_SECTION_OFFSET, lanes * h->n_groups, scale, err));
    if (p->has_values && with_sums && !compact) {
        QNI_TRY(add_section(h, QNI_SECTION_SUMS, lanes * h->n_segments, 4, err));
        if (!same_segments)
            QNI_TRY(add_section(h, QNI_SECTION_GROUP_SUMS, lanes * p->row_cut.n_segments, 4, err));
    }
    if (p->has_values)
        QNI_TRY(add_section(h, QNI_SECTION_COUNTS, p->row_cut.n_segments, 4, err));
    if (w->table != NULL)
        QNI_TRY(add_section(h, QNI_SECTION_TABLE, p->layout->code_bits == 4 ? 16 : 256, 4, err));
    QNI_TRY(add_section(h, QNI_SECTION_RUNS, h->n_runs, sizeof(struct qni_run), err));
    if (w->perm != NULL)
        QNI_TRY(add_section(h, QNI_SECTION_PERM, w->k, 4, err));
    if (w->prescale != NULL)
        QNI_TRY(add_section(h, QNI_SECTION_PRESCALE, w->k, 4, err));
    if (w->zero != NULL)
        QNI_TRY(add_section(h, QNI_SECTION_ZERO, lanes * h->n_groups,
                            h->zero_dtype == QN_I8 ? 1 : 4, err));
    if (two || h->format.shift == QN_SHIFT_MIN)
        QNI_TRY(add_section(h, QNI_SECTION_LEVELS, h->panels, qni_levels_panel_bytes(h, two), err));
    return QN_OK;
}

static void plan_words(struct qni_pack *p, const struct qni_pack_widths *fit)
{
    const struct qn_weight *w = p->w;
    struct qni_packed_head *h = &p->head;
    memcpy(h->magic, "quernpk", 8);
    h->version = p->layout->is_compact ? QNI_COMPACT_VERSION : 1;
    h->device_kind = p->packing->device_kind;
    memcpy(h->layout, p->layout->name, strlen(p->layout->name));
    h->isa = QN_ISA_PORTABLE;
    h->format = w->format;
    h->n = w->n;
    h->k = w->k;
    h->ci = w->ci;
    h->kh = w->kh;
    h->kw = w->kw;
    h->conv_groups = w->conv_groups;
    h->zero_dtype = fit->zeros ? QN_I8 : QN_I32;
    if (w->format.shift == QN_SHIFT_MIN && w->super_scale == NULL)
        h->zero_dtype = fit->minima ? QN_F16 : QN_F32;
    const bool shifts_fit = !qni_packed_stores_offsets(h) || fit->shifts;
    h->scale_dtype = QN_F32;
    if (p->layout->is_compact && w->super_scale != NULL)
        return; /* what products of two levels are made in */
    const bool may_be_bytes = p->layout->is_compact && w->format.shift != QN_SHIFT_OFFSET;
    p->scale_unit = fit->unit;
    if (may_be_bytes && fit->powers)
        h->scale_dtype = QN_E8M0;
    else if (may_be_bytes && fit->unit != 0.0f)
        h->scale_dtype = QN_E4M3;
    else if (shifts_fit && fit->scales)
        h->scale_dtype = QN_F16;
}

qn_status qni_pack_plan(const struct qni_packing *packing, const struct qn_weight *w,
                        const qn_pack_options *options, struct qni_pack *p, qn_error *err)
{
    const struct qni_pack_widths fit = qni_pack_measure(w);
    return qni_pack_plan_widths(packing, w, &fit, options, p, err);
}

qn_status qni_pack_plan_widths(const struct qni_packing *packing, const struct qn_weight *w,
                               const struct qni_pack_widths *fit, const qn_pack_options *options,
                               struct qni_pack *p, qn_error *err)
{
    memset(p, 0, sizeof *p);
    p->packing = packing;
    p->w = w;
    QNI_TRY(choose_layout(p, options->layout, err));
    plan_codes(p);
    plan_words(p, fit);
    p->row_cut = qni_cut_make(&w->format, w->k, w->ci, w->n_groups, QNI_ROW_SEGMENT_UNITS);
    const int64_t group = qni_max(1, p->row_cut.group_len);
    const int64_t block = options->x_block > 0 ? options->x_block : 128;

    struct qni_packed_head *h = &p->head;
    h->n_groups = w->n_groups;
    h->x_block = qni_min(block, group);
    p->cut = qni_cut_make(&w->format, w->k, w->ci, w->n_groups, qni_ceil_div(h->x_block, QNI_UNIT));
    h->units = qni_packed_units(h->device_kind, p->cut.units);
    h->group_units = p->cut.group_units;
    h->segment_units = p->cut.segment_units;
    h->n_segments = p->cut.n_segments;
    h->panels = qni_packed_panels(w->n, w->ci, w->conv_groups);
    if (h->panels / PANELS_PER_TASK >= INT32_MAX)
        return qni_fail(err, QN_E_LAYOUT, "more than 2^37 outputs");
    const int64_t runs = qni_runs_make(&w->format, &p->cut, w->ci, (int64_t)w->kh * w->kw, NULL);
    if (runs > INT32_MAX)
        return qni_fail(err, QN_E_LAYOUT, "the groups cut a row into more than 2^31 pieces");
    h->n_runs = (int32_t)runs;
    if (p->layout->is_compact)
        p->compact = qni_compact_of(h, p->layout, p->padding);
    return plan_sections(p, options->without_sums == 0, err);
}

/* ---- writing --------------------------------------------------------------------------------- */

/* What all threads of a packing read. */
struct job {
    const struct qni_pack *p;
    bool with_codes;
    uint8_t *blob;
    const struct qni_run *runs;
    int64_t first; /* output that the weight's first row is */
};

size_t qni_pack_codes_bytes(const struct qni_packed_head *head)
{
    return qni_round_up((size_t)head->section[QNI_SECTION_CODES].bytes, alignment(head));
}

/* The codes are the first section. */
static void *section_of(const struct job *job, int32_t i)
{
    const struct qni_packed_head *h = &job->p->head;
    if (h->section[i].bytes == 0 || (i == QNI_SECTION_CODES && !job->with_codes))
        return NULL;
    return job->blob + h->section[i].offset - (job->with_codes ? 0 : qni_pack_codes_bytes(h));
}

/* n codes as stored; returns the sum of their values. */
static inline int32_t store_codes(const struct qni_pack *p, uint8_t *restrict to,
                                  const uint8_t *restrict codes, int64_t n)
{
    int32_t sum = 0;
    if (p->w->table != NULL) {
        for (int64_t i = 0; i < n && p->has_values; i++)
            sum += p->value[codes[i]];
        memcpy(to, codes, (size_t)n);
        return sum;
    }
    for (int64_t i = 0; i < n; i++)
        to[i] = (uint8_t)(codes[i] + p->shift);
    for (int64_t i = 0; i < n; i++)
        sum += codes[i];
    return sum - (int32_t)n * p->half;
}

/* The codes of a unit, and the sums of their values. run is the first one that reaches into the
 * unit or lies behind it. */
static void gather_unit(const struct job *job, const int64_t outputs[QNI_PANEL], int64_t unit,
                        int64_t run, struct qni_unit_codes *to, int32_t sums[QNI_PANEL])
{
    const struct qni_pack *p = job->p;
    const struct qni_run *runs = job->runs;
    const int64_t first = unit * QNI_UNIT, end = first + QNI_UNIT;
    memset(to, p->padding, sizeof *to);
    memset(sums, 0, QNI_PANEL * sizeof *sums);
    for (int64_t i = run; i < p->head.n_runs && runs[i].dst < end; i++) {
        const struct qni_run *r = &runs[i];
        const int64_t from = qni_max(r->dst, first), n = qni_min(r->dst + r->len, end) - from;
        for (int64_t j = 0; j < QNI_PANEL; j++) {
            if (outputs[j] < 0)
                continue;
            const uint8_t *codes = p->w->codes + outputs[j] * p->w->k + r->src + from - r->dst;
            uint8_t *const at = to->code[j] + (from - first);
            /* A whole unit is the common case: a length that the compiler knows. */
            sums[j] +=
                n == QNI_UNIT ? store_codes(p, at, codes, QNI_UNIT) : store_codes(p, at, codes, n);
        }
    }
}

/* Sums of a panel's segments, which units are added to one after another. */
struct totals {
    const struct qni_cut *cut;
    const uint8_t *lanes;
    int32_t *at;                  /* of the segment that the next unit belongs to; NULL: none */
    int64_t in_group, in_segment; /* units before the next one */
};

static void begin_totals(const struct job *job, int32_t section, const struct qni_cut *cut,
                         int64_t panel, struct totals *t)
{
    int32_t *const sums = section_of(job, section);
    const int64_t n = cut->n_segments * QNI_PANEL;
    *t = (struct totals){cut, job->p->packing->lanes, NULL, 0, 0};
    if (sums == NULL)
        return;
    t->at = sums + panel * n;
    memset(t->at, 0, (size_t)n * sizeof *t->at);
}

static void add_unit(struct totals *t, const int32_t sums[QNI_PANEL])
{
    if (t->at == NULL)
        return;
    for (int32_t lane = 0; lane < QNI_PANEL; lane++)
        t->at[lane] += sums[t->lanes[lane]];
    t->in_group++;
    t->in_segment++;
    if (t->in_group == t->cut->group_units || t->in_segment == t->cut->segment_units) {
        t->at += QNI_PANEL;
        t->in_segment = 0;
    }
    if (t->in_group == t->cut->group_units)
        t->in_group = 0;
}

/* From this unit on, units that are full and lie side by side in every row; `rows` are where they
 * begin. At most `most`. */
static int64_t whole_units(const struct job *job, const int64_t outputs[QNI_PANEL], int64_t unit,
                           const struct qni_run *run, int64_t most, const uint8_t *rows[QNI_PANEL])
{
    const struct qni_pack *p = job->p;
    const int64_t from = unit * QNI_UNIT - run->dst;
    if (p->packing->store_rows == NULL || from < 0)
        return 0;
    for (int64_t j = 0; j < QNI_PANEL; j++) {
        if (outputs[j] < 0)
            return 0;
        rows[j] = p->w->codes + outputs[j] * p->w->k + run->src + from;
    }
    return qni_min((run->len - from) / QNI_UNIT, most);
}

enum { UNITS_AT_ONCE = 32 };

/* n units of theirs, and the sums of their values. */
static void write_rows(const struct qni_pack *p, const uint8_t *const rows[QNI_PANEL], int64_t n,
                       uint8_t *to, int32_t (*sums)[QNI_PANEL])
{
    const bool is_table = p->w->table != NULL;
    const int32_t bias = QNI_UNIT << (p->layout->code_bits - 1);
    p->packing->store_rows(rows, n, p->layout->code_bits, (uint8_t)(is_table ? 0 : p->shift), to,
                           sums);
    for (int64_t u = 0; u < n; u++)
        for (int64_t j = 0; j < QNI_PANEL; j++) {
            const uint8_t *const codes = rows[j] + u * QNI_UNIT;
            int32_t sum = is_table ? 0 : sums[u][j] - bias;
            for (int64_t i = 0; i < QNI_UNIT && is_table && p->has_values; i++)
                sum += p->value[codes[i]];
            sums[u][j] = sum;
        }
}

/* Floats of a panel: bits as they are, padding 0. */
static void write_floats(const struct job *job, int64_t panel, const int64_t outputs[QNI_PANEL])
{
    const struct qni_pack *p = job->p;
    const qn_dtype floats = p->layout->floats;
    const size_t unit_bytes = qni_packed_unit_bytes(p->layout->code_bits);
    const size_t each = qn_dtype_bytes(floats), step = qni_float_step(floats);
    if (p->head.units == 0) /* k = 0: there is no section */
        return;
    uint8_t *const to = (uint8_t *)section_of(job, QNI_SECTION_CODES) +
                        (size_t)(panel * p->head.units) * unit_bytes;
    memset(to, 0, (size_t)p->head.units * unit_bytes);
    for (int32_t r = 0; r < p->head.n_runs; r++)
        for (int64_t i = 0; i < job->runs[r].len; i++) {
            const int64_t at = job->runs[r].dst + i, src = job->runs[r].src + i;
            uint8_t *const place = to + (size_t)(at / QNI_UNIT) * unit_bytes +
                                   p->packing->float_place(floats, at % QNI_UNIT);
            for (int64_t j = 0; j < QNI_PANEL; j++)
                if (outputs[j] >= 0)
                    memcpy(place + (size_t)j * step,
                           p->w->codes + (size_t)(outputs[j] * p->w->k + src) * each, each);
        }
}

/* The first run from `run` on that reaches into the unit or lies behind it. */
static int64_t run_of(const struct job *job, int64_t unit, int64_t run)
{
    while (run < job->p->head.n_runs &&
           job->runs[run].dst + job->runs[run].len <= unit * QNI_UNIT)
        run++;
    return run;
}

/* Compact codes of a panel, unit by unit. */
static void write_compact(const struct job *job, int64_t panel, const int64_t outputs[QNI_PANEL])
{
    enum { HALF = QNI_UNIT / 2 };
    const struct qni_pack *p = job->p;
    const struct qni_compact *const c = &p->compact;
    uint8_t *to = section_of(job, QNI_SECTION_CODES);
    to += (size_t)(panel * c->units) * c->unit_bytes;
    int32_t sums[QNI_PANEL];
    for (int64_t i = 0, run = 0; i < c->units; i++, to += c->unit_bytes) {
        struct qni_unit_codes codes, second;
        const int64_t unit = c->halves ? 2 * i : i;
        run = run_of(job, unit, run);
        gather_unit(job, outputs, unit, run, &codes, sums);
        if (c->halves) {
            run = run_of(job, unit + 1, run);
            gather_unit(job, outputs, unit + 1, run, &second, sums);
            for (int64_t j = 0; j < QNI_PANEL; j++)
                memcpy(&codes.code[j][HALF], second.code[j], HALF);
        }
        qni_compact_store(c, &codes, to);
    }
}

static void write_codes(const struct job *job, int64_t panel, const int64_t outputs[QNI_PANEL])
{
    const struct qni_pack *p = job->p;
    const int32_t code_bits = p->layout->code_bits;
    const int64_t per_block = qni_packed_block_units(p->head.device_kind);
    const size_t unit_bytes = qni_packed_unit_bytes(code_bits);
    uint8_t *const codes = section_of(job, QNI_SECTION_CODES);
    struct totals sums, row_sums;
    struct qni_unit_codes block[QNI_MAX_BLOCK_UNITS];
    int32_t unit_sums[UNITS_AT_ONCE][QNI_PANEL];
    const uint8_t *rows[QNI_PANEL];
    begin_totals(job, QNI_SECTION_SUMS, &p->cut, panel, &sums);
    begin_totals(job, QNI_SECTION_GROUP_SUMS, &p->row_cut, panel, &row_sums);
    for (int64_t unit = 0, run = 0, n; unit < p->head.units && codes != NULL; unit += n) {
        const int64_t inside = unit % per_block;
        uint8_t *const to = codes + (size_t)(panel * p->head.units + unit - inside) * unit_bytes;
        run = run_of(job, unit, run);
        n = run < p->head.n_runs
                ? whole_units(job, outputs, unit, &job->runs[run], UNITS_AT_ONCE, rows)
                : 0;
        if (n > 0) {
            write_rows(p, rows, n, to, unit_sums);
        } else {
            n = 1;
            gather_unit(job, outputs, unit, run, &block[inside], unit_sums[0]);
            if (inside == per_block - 1)
                p->packing->store(block, code_bits, to);
        }
        for (int64_t i = 0; i < n && unit + i < p->cut.units; i++) {
            add_unit(&sums, unit_sums[i]);
            add_unit(&row_sums, unit_sums[i]);
        }
    }
}

static void store_scale(void *section, qn_dtype dtype, int64_t at, float v)
{
    if (dtype == QN_F16)
        ((uint16_t *)section)[at] = qni_f16_from_f32(v);
    else if (dtype == QN_E8M0) /* of an output that is not there: 2^-127 */
        ((uint8_t *)section)[at] = (uint8_t)(qni_bits_of(v) >> 23);
    else if (dtype == QN_E4M3)
        ((uint8_t *)section)[at] = qni_e4m3_from_f32(v);
    else
        ((float *)section)[at] = v;
}

static size_t levels_bytes(const struct qni_packed_head *h)
{
    return qni_levels_panel_bytes(h, qni_levels_are_two(h));
}

static void write_scales(const struct job *job, int64_t panel, const int64_t outputs[QNI_PANEL])
{
    const struct qni_pack *p = job->p;
    const struct qn_weight *w = p->w;
    void *const scale = section_of(job, QNI_SECTION_SCALE);
    void *const offset = section_of(job, QNI_SECTION_OFFSET);
    void *const zero = section_of(job, QNI_SECTION_ZERO);
    uint8_t *const levels = section_of(job, QNI_SECTION_LEVELS);
    const size_t level_bytes = levels == NULL ? 0 : levels_bytes(&p->head);
    for (int64_t lane = 0; levels != NULL && lane < QNI_PANEL; lane++)
        qni_levels_store(&p->head, w, outputs[p->packing->lanes[lane]],
                         levels + (size_t)panel * level_bytes, lane);
    for (int64_t g = 0; g < w->n_groups; g++)
        for (int64_t lane = 0; lane < QNI_PANEL; lane++) {
            const int64_t at = (panel * w->n_groups + g) * QNI_PANEL + lane;
            const int64_t j = outputs[p->packing->lanes[lane]];
            const int64_t from = j * w->n_groups + g; /* j < 0: an output that is not there */
            if (scale != NULL)
                store_scale(scale, p->head.scale_dtype, at,
                            j < 0                                ? 0.0f
                            : p->head.scale_dtype == QN_E4M3 ? w->scale[from] / p->scale_unit
                                                             : w->scale[from]);
            if (offset != NULL)
                store_scale(offset, p->head.scale_dtype, at,
                            j < 0 ? 0.0f : qni_group_offset(w, j, g));
            if (zero != NULL && p->head.zero_dtype == QN_I8)
                ((int8_t *)zero)[at] = (int8_t)(j < 0 ? 0 : w->zero[from]);
            else if (zero != NULL)
                ((int32_t *)zero)[at] = j < 0 ? 0 : w->zero[from];
        }
}

/* Do compact codes differ from those that kernels read? */
static bool is_narrow(const struct qni_pack *p)
{
    return p->layout->is_compact &&
           (p->compact.bits != p->compact.wide_bits || p->compact.halves);
}

/* Panels [panel, end). */
static void write_panels(const struct job *job, int64_t panel, int64_t end)
{
    for (; panel < end; panel++) {
        int64_t outputs[QNI_PANEL];
        for (int64_t j = 0; j < QNI_PANEL; j++) {
            const int64_t output = qni_output_of(&job->p->head, panel, j);
            outputs[j] = output < 0 ? -1 : output - job->first;
        }
        if (job->p->layout->floats != 0)
            write_floats(job, panel, outputs);
        else if (is_narrow(job->p))
            write_compact(job, panel, outputs);
        else
            write_codes(job, panel, outputs);
        write_scales(job, panel, outputs);
    }
}

static void run_task(void *arg, int32_t task)
{
    const struct job *job = arg;
    const int64_t first = (int64_t)task * PANELS_PER_TASK;
    write_panels(job, first, qni_min(first + PANELS_PER_TASK, job->p->head.panels));
}

/* What lies between the sections; the codebook's section may be longer than the codebook. */
static void write_gaps(const struct job *job)
{
    const struct qni_packed_head *h = &job->p->head;
    const size_t first = qni_round_up(sizeof *h, alignment(h));
    memset(job->blob + sizeof *h, 0, first - sizeof *h);
    for (int32_t i = 0; i < QNI_N_SECTIONS; i++) {
        uint8_t *const at = section_of(job, i);
        const size_t bytes = (size_t)h->section[i].bytes;
        if (at != NULL)
            memset(at + bytes, 0, qni_round_up(bytes, alignment(h)) - bytes);
        if (at != NULL && i == QNI_SECTION_TABLE)
            memset(at, 0, bytes);
    }
}

static void write_small_sections(const struct job *job)
{
    const struct qn_weight *w = job->p->w;
    struct qni_run *const runs = section_of(job, QNI_SECTION_RUNS);
    int32_t *const counts = section_of(job, QNI_SECTION_COUNTS);
    if (runs != NULL)
        qni_runs_make(&w->format, &job->p->cut, w->ci, (int64_t)w->kh * w->kw, runs);
    if (counts != NULL)
        qni_counts_make(&job->p->row_cut, counts);
    if (w->table != NULL)
        memcpy(section_of(job, QNI_SECTION_TABLE), w->table, sizeof(float) << w->format.bits);
    if (job->p->head.scale_dtype == QN_E4M3)
        memcpy((uint8_t *)section_of(job, QNI_SECTION_SCALE) +
                   job->p->head.section[QNI_SECTION_SCALE].bytes - sizeof(float),
               &job->p->scale_unit, sizeof(float));
    if (section_of(job, QNI_SECTION_PERM) != NULL)
        memcpy(section_of(job, QNI_SECTION_PERM), w->perm, (size_t)w->k * sizeof *w->perm);
    if (section_of(job, QNI_SECTION_PRESCALE) != NULL)
        memcpy(section_of(job, QNI_SECTION_PRESCALE), w->prescale,
               (size_t)w->k * sizeof *w->prescale);
}

static struct job begin_job(const struct qni_pack *pack, bool with_codes, uint8_t *blob)
{
    struct job job = {pack, with_codes, blob, NULL, 0};
    job.runs = section_of(&job, QNI_SECTION_RUNS);
    return job;
}

static void write_head(const struct job *job)
{
    memcpy(job->blob, &job->p->head, sizeof job->p->head);
    write_gaps(job);
    write_small_sections(job);
}

void qni_pack_write(const struct qni_threads *threads, const struct qni_pack *pack, bool with_codes,
                    uint8_t *blob)
{
    struct job job = begin_job(pack, with_codes, blob);
    write_head(&job);
    qni_parallel(threads, (int32_t)qni_ceil_div(pack->head.panels, PANELS_PER_TASK), run_task,
                 &job);
}

void qni_pack_write_head(const struct qni_pack *pack, uint8_t *blob)
{
    const struct job job = begin_job(pack, true, blob);
    write_head(&job);
}

void qni_pack_write_rows(const struct qni_pack *pack, const struct qn_weight *rows, int64_t first,
                         uint8_t *blob)
{
    struct qni_pack own = *pack;
    own.w = rows;
    struct job job = begin_job(&own, true, blob);
    job.first = first;
    write_panels(&job, first / QNI_PANEL, qni_ceil_div(first + rows->n, QNI_PANEL));
}

/* ---- the whole of it ------------------------------------------------------------------------- */

static void release(struct qn_packed *packed)
{
    const struct qni_allocator allocator = packed->allocator;
    const size_t bytes = (size_t)packed->head->bytes;
    qni_free(&allocator, packed->owner, bytes); /* NULL: the blob is the caller's */
    qni_free(&allocator, packed, sizeof *packed);
}

qn_status qni_pack_adopt(const qn_ctx *ctx, uint8_t *blob, void *owner, struct qn_packed **packed,
                         qn_error *err)
{
    struct qn_packed *const out = qni_alloc_zero(&ctx->allocator, sizeof *out);
    if (out == NULL)
        return qni_fail(err, QN_E_MEMORY, "out of memory");
    out->allocator = ctx->allocator;
    out->device = (qn_device){QN_CPU, 0};
    out->head = (const struct qni_packed_head *)(const void *)blob;
    out->blob = blob;
    out->table = qni_section(out, QNI_SECTION_TABLE);
    out->release = release;
    out->owner = owner;
    *packed = out;
    return QN_OK;
}

static qn_status write_packed(const qn_ctx *ctx, const struct qni_pack *p, uint8_t *blob,
                              void *owner, struct qn_packed **packed, qn_error *err)
{
    qni_pack_write(&ctx->threads, p, true, blob);
    return qni_pack_adopt(ctx, blob, owner, packed, err);
}

qn_status qni_pack_host(const qn_ctx *ctx, const struct qni_packing *packing,
                        const struct qn_weight *w, const qn_pack_options *options,
                        struct qn_packed **packed, qn_error *err)
{
    struct qni_pack p;
    QNI_TRY(qni_pack_plan(packing, w, options, &p, err));
    const size_t bytes = (size_t)p.head.bytes;
    uint8_t *const blob = qni_alloc(&ctx->allocator, bytes);
    if (blob == NULL)
        return qni_fail(err, QN_E_MEMORY, "no memory for %zu bytes of packed weights", bytes);
    const qn_status status = write_packed(ctx, &p, blob, blob, packed, err);
    if (status != QN_OK)
        qni_free(&ctx->allocator, blob, bytes);
    return status;
}

qn_status qni_pack_host_into(const qn_ctx *ctx, const struct qni_packing *packing,
                             const struct qn_weight *w, const qn_pack_options *options,
                             void *buffer, size_t buffer_bytes, struct qn_packed **packed,
                             qn_error *err)
{
    struct qni_pack p;
    QNI_TRY(qni_pack_plan(packing, w, options, &p, err));
    if (buffer_bytes < p.head.bytes)
        return qni_fail(err, QN_E_SCRATCH, "the buffer has %zu bytes, the packed weights need %llu",
                        buffer_bytes, (unsigned long long)p.head.bytes);
    return write_packed(ctx, &p, buffer, NULL, packed, err);
}
