/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical weights to the blob that kernels stream. Everything a kernel reads of a panel lies in
 * the order of its loops; everything that can be known beforehand (column sums, offsets of zero
 * points, where a row's columns go) is a section. The bytes depend on the weight and the options
 * alone: not on threads, and no byte is left undefined. Unpacking is unpack.c. */
#include <string.h>

#include "../../base/compiler.h"
#include "../../base/context.h"
#include "../../base/error.h"
#include "../../base/half.h"
#include "../backend.h"
#include "../layouts.h"

static qn_status choose_layout(const struct qn_weight *w, const char *wish,
                               const struct qni_layout **layout, qn_error *err)
{
    const bool is_table = w->table != NULL;
    const char *const what = is_table ? "a codebook" : "integers";
    if (wish != NULL) {
        *layout = qni_layout_find(wish);
        if (*layout == NULL)
            return qni_fail(err, QN_E_LAYOUT,
                            "there is no CPU layout \"%.24s\"; qn_layout_name() lists them", wish);
        if (qni_layout_is_table((*layout)->layout) != is_table ||
            w->format.bits > (*layout)->code_bits)
            return qni_fail(err, QN_E_LAYOUT, "layout %s holds %s; these weights are %s of %d bits",
                            (*layout)->name, (*layout)->codes, what, (int)w->format.bits);
        return QN_OK;
    }
    for (int32_t i = 0; (*layout = qni_layout_at(i)) != NULL; i++)
        if (qni_layout_is_table((*layout)->layout) == is_table &&
            w->format.bits <= (*layout)->code_bits)
            return QN_OK;
    return qni_fail(err, QN_E_LAYOUT, "no CPU layout holds %s of %d bits", what,
                    (int)w->format.bits);
}

/* What all threads of a packing read. */
struct pack {
    const struct qn_weight *w;
    struct qni_packed_head head;
    const struct qni_layout *layout;
    struct qni_cut cut, row_cut; /* segments of Q8B; of Q8 */
    const struct qni_run *runs;
    uint8_t *blob;
    int32_t half, shift; /* integers: value = code - half, stored = code + shift */
    bool has_values;     /* a codebook of integers */
    int16_t value[256];  /* of its codes */
    uint8_t padding;     /* as stored */
};

/* Does f16 hold these exactly? */
static bool fits_f16(const float *v, int64_t n)
{
    uint32_t differ = 0;
    for (int64_t i = 0; i < n; i++)
        differ |= qni_bits_of(qni_f32_from_f16(qni_f16_from_f32(v[i]))) ^ qni_bits_of(v[i]);
    return differ == 0;
}

static bool shifts_fit_f16(const struct qn_weight *w)
{
    if (w->offset != NULL)
        return fits_f16(w->offset, w->n * w->n_groups);
    for (int64_t j = 0; w->zero != NULL && j < w->n; j++)
        for (int64_t g = 0; g < w->n_groups; g++) {
            const float offset = qni_group_offset(w, j, g);
            if (!fits_f16(&offset, 1))
                return false;
        }
    return true;
}

static bool zeros_fit_i8(const struct qn_weight *w)
{
    for (int64_t i = 0; w->zero != NULL && i < w->n * w->n_groups; i++)
        if (w->zero[i] < -128 || w->zero[i] > 127)
            return false;
    return true;
}

static void make_codes(struct pack *p)
{
    const struct qn_weight *w = p->w;
    const int32_t n = 1 << w->format.bits;
    int8_t table8[16];
    p->half = n / 2;
    p->padding = (uint8_t)(w->table != NULL ? 0 : 1 << (p->layout->code_bits - 1));
    p->shift = p->padding - p->half;
    if (w->table == NULL)
        return;
    p->has_values = qni_table_integers(w->format.code, w->table, n, table8) != 0;
    for (int32_t i = n; i-- > 0;) {
        p->value[i] = (int16_t)(p->has_values ? table8[i] : 0);
        if (w->table[i] == 0.0f)
            p->padding = (uint8_t)i; /* a codebook without a zero pads with code 0: x is 0 there */
    }
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
    head->bytes = qni_round_up(end, 64);
    return QN_OK;
}

static qn_status lay_out(struct pack *p, bool with_sums, qn_error *err)
{
    const struct qn_weight *w = p->w;
    struct qni_packed_head *h = &p->head;
    const int64_t lanes = h->panels * QNI_PANEL;
    const size_t scale = h->scale_dtype == QN_F16 ? 2 : 4;
    int8_t table8[16];
    const int32_t n_table = 1 << w->format.bits;
    const bool integers =
        w->table == NULL || qni_table_integers(w->format.code, w->table, n_table, table8) != 0;
    const bool same_segments = p->cut.segment_units == p->row_cut.segment_units;

    h->bytes = qni_round_up(sizeof *h, 64);
    QNI_TRY(add_section(h, QNI_SECTION_CODES, h->panels * h->units,
                        qni_layout_unit_bytes(p->layout->layout), err));
    QNI_TRY(add_section(h, QNI_SECTION_SCALE, lanes * h->n_groups, scale, err));
    if (w->format.shift != QN_SHIFT_NONE)
        QNI_TRY(add_section(h, QNI_SECTION_OFFSET, lanes * h->n_groups, scale, err));
    if (integers && with_sums) {
        QNI_TRY(add_section(h, QNI_SECTION_SUMS, lanes * h->n_segments, 4, err));
        if (!same_segments)
            QNI_TRY(add_section(h, QNI_SECTION_GROUP_SUMS, lanes * p->row_cut.n_segments, 4, err));
    }
    if (integers)
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
    return QN_OK;
}

/* Everything about the blob but its contents. */
static qn_status plan_pack(const struct qn_weight *w, const qn_pack_options *options,
                           struct pack *p, qn_error *err)
{
    memset(p, 0, sizeof *p);
    p->w = w;
    QNI_TRY(choose_layout(w, options->layout, &p->layout, err));
    make_codes(p);
    p->row_cut = qni_cut_make(&w->format, w->k, w->ci, w->n_groups, QNI_ROW_SEGMENT_UNITS);
    const int64_t group = qni_max(1, p->row_cut.group_len);
    const int64_t block = options->x_block > 0 ? options->x_block : 128;

    struct qni_packed_head *h = &p->head;
    memcpy(h->magic, "quernpk", 8);
    h->version = 1;
    h->device_kind = QN_CPU;
    memcpy(h->layout, p->layout->name, strlen(p->layout->name));
    h->isa = QN_ISA_PORTABLE;
    h->format = w->format;
    h->n = w->n;
    h->k = w->k;
    h->ci = w->ci;
    h->kh = w->kh;
    h->kw = w->kw;
    h->conv_groups = w->conv_groups;
    h->scale_dtype = fits_f16(w->scale, w->n * w->n_groups) && shifts_fit_f16(w) ? QN_F16 : QN_F32;
    h->zero_dtype = zeros_fit_i8(w) ? QN_I8 : QN_I32;
    h->n_groups = w->n_groups;
    h->x_block = qni_min(block, group);
    p->cut = qni_cut_make(&w->format, w->k, w->ci, w->n_groups, qni_ceil_div(h->x_block, QNI_UNIT));
    h->units = p->cut.units;
    h->group_units = p->cut.group_units;
    h->segment_units = p->cut.segment_units;
    h->n_segments = p->cut.n_segments;
    h->panels = qni_packed_panels(w->n, w->ci, w->conv_groups);
    const int64_t runs = qni_runs_make(&w->format, &p->cut, w->ci, (int64_t)w->kh * w->kw, NULL);
    if (runs > INT32_MAX)
        return qni_fail(err, QN_E_LAYOUT, "the groups cut a row into more than 2^31 pieces");
    h->n_runs = (int32_t)runs;
    return lay_out(p, options->without_sums == 0, err);
}

static void *section_of(const struct pack *p, int32_t i)
{
    return p->head.section[i].bytes == 0 ? NULL : p->blob + p->head.section[i].offset;
}

/* n codes as stored; returns the sum of their values. */
static inline int32_t store_codes(const struct pack *p, uint8_t *restrict to,
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

/* The 16 x 32 codes of a unit, one output after another, and the sums of their values. *run is the
 * first run that reaches into the unit or lies behind it. */
static void gather_unit(const struct pack *p, const int64_t outputs[QNI_PANEL], int64_t unit,
                        int64_t *run, uint8_t block[QNI_PANEL][QNI_UNIT], int32_t sums[QNI_PANEL])
{
    const int64_t first = unit * QNI_UNIT, end = first + QNI_UNIT;
    memset(block, p->padding, (size_t)QNI_PANEL * QNI_UNIT);
    memset(sums, 0, QNI_PANEL * sizeof *sums);
    while (*run < p->head.n_runs && p->runs[*run].dst + p->runs[*run].len <= first)
        ++*run;
    for (int64_t i = *run; i < p->head.n_runs && p->runs[i].dst < end; i++) {
        const struct qni_run *r = &p->runs[i];
        const int64_t from = qni_max(r->dst, first), n = qni_min(r->dst + r->len, end) - from;
        for (int64_t j = 0; j < QNI_PANEL; j++) {
            if (outputs[j] < 0)
                continue;
            const uint8_t *codes = p->w->codes + outputs[j] * p->w->k + r->src + from - r->dst;
            uint8_t *const to = block[j] + (from - first);
            /* A whole unit is the common case: a length that the compiler knows. */
            sums[j] +=
                n == QNI_UNIT ? store_codes(p, to, codes, QNI_UNIT) : store_codes(p, to, codes, n);
        }
    }
}

/* 32 codes of 16 outputs to the vectors that kernel.h draws: four positions of each output. */
static void store_unit(const uint8_t block[QNI_PANEL][QNI_UNIT], int32_t code_bits, uint8_t *out)
{
    for (int32_t r = 0; r < (code_bits == 4 ? 4 : 8); r++)
        for (int32_t j = 0; j < QNI_PANEL; j++, out += 4) {
            uint32_t word, high;
            memcpy(&word, &block[j][4 * r], sizeof word);
            if (code_bits == 4) {
                memcpy(&high, &block[j][16 + 4 * r], sizeof high);
                word |= high << 4; /* nibbles: nothing crosses a byte */
            }
            memcpy(out, &word, sizeof word);
        }
}

static void add_sums(int32_t *sums, const struct qni_cut *cut, int64_t panel, int64_t group,
                     int64_t unit_of_group, const int32_t *unit_sums)
{
    if (sums == NULL)
        return;
    const int64_t per_group = qni_ceil_div(cut->group_units, cut->segment_units);
    const int64_t segment = group * per_group + unit_of_group / cut->segment_units;
    int32_t *const at = sums + (panel * cut->n_segments + segment) * QNI_PANEL;
    for (int32_t j = 0; j < QNI_PANEL; j++)
        at[j] += unit_sums[j];
}

static void pack_codes(const struct pack *p, int64_t panel, const int64_t outputs[QNI_PANEL])
{
    const size_t unit_bytes = qni_layout_unit_bytes(p->layout->layout);
    uint8_t *out = section_of(p, QNI_SECTION_CODES);
    int32_t *const sums = section_of(p, QNI_SECTION_SUMS);
    int32_t *const row_sums = section_of(p, QNI_SECTION_GROUP_SUMS);
    int64_t run = 0;
    uint8_t block[QNI_PANEL][QNI_UNIT];
    int32_t unit_sums[QNI_PANEL];
    out = out == NULL ? NULL : out + (size_t)(panel * p->head.units) * unit_bytes;
    for (int64_t unit = 0; unit < p->head.units; unit++, out += unit_bytes) {
        gather_unit(p, outputs, unit, &run, block, unit_sums);
        store_unit((const uint8_t(*)[QNI_UNIT])block, p->layout->code_bits, out);
        const int64_t g = unit / p->head.group_units, inside = unit % p->head.group_units;
        add_sums(sums, &p->cut, panel, g, inside, unit_sums);
        add_sums(row_sums, &p->row_cut, panel, g, inside, unit_sums);
    }
}

static void store_scale(void *section, qn_dtype dtype, int64_t at, float v)
{
    if (dtype == QN_F16)
        ((uint16_t *)section)[at] = qni_f16_from_f32(v);
    else
        ((float *)section)[at] = v;
}

static void pack_scales(const struct pack *p, int64_t panel, const int64_t outputs[QNI_PANEL])
{
    const struct qn_weight *w = p->w;
    void *const scale = section_of(p, QNI_SECTION_SCALE);
    void *const offset = section_of(p, QNI_SECTION_OFFSET);
    void *const zero = section_of(p, QNI_SECTION_ZERO);
    for (int64_t g = 0; g < w->n_groups; g++)
        for (int64_t lane = 0; lane < QNI_PANEL; lane++) {
            const int64_t at = (panel * w->n_groups + g) * QNI_PANEL + lane, j = outputs[lane];
            if (j < 0)
                continue; /* the blob began as zeros */
            store_scale(scale, p->head.scale_dtype, at, w->scale[j * w->n_groups + g]);
            if (offset != NULL)
                store_scale(offset, p->head.scale_dtype, at, qni_group_offset(w, j, g));
            if (zero != NULL && p->head.zero_dtype == QN_I8)
                ((int8_t *)zero)[at] = (int8_t)w->zero[j * w->n_groups + g];
            else if (zero != NULL)
                ((int32_t *)zero)[at] = w->zero[j * w->n_groups + g];
        }
}

/* Panels are dealt out in pieces, so that there are enough for any number of threads. */
enum { PANELS_PER_TASK = 4 };

static void pack_panels(void *arg, int32_t task)
{
    const struct pack *p = arg;
    const int64_t first = (int64_t)task * PANELS_PER_TASK;
    const int64_t end = qni_min(first + PANELS_PER_TASK, p->head.panels);
    for (int64_t panel = first; panel < end; panel++) {
        int64_t outputs[QNI_PANEL];
        for (int64_t lane = 0; lane < QNI_PANEL; lane++)
            outputs[lane] = qni_output_of(&p->head, panel, lane);
        pack_codes(p, panel, outputs);
        pack_scales(p, panel, outputs);
    }
}

static void pack_small_sections(struct pack *p)
{
    const struct qn_weight *w = p->w;
    struct qni_run *const runs = section_of(p, QNI_SECTION_RUNS);
    int32_t *const counts = section_of(p, QNI_SECTION_COUNTS);
    if (runs != NULL)
        qni_runs_make(&w->format, &p->cut, w->ci, (int64_t)w->kh * w->kw, runs);
    p->runs = runs;
    if (counts != NULL) {
        const struct qni_cut *c = &p->row_cut;
        const int64_t per_group = qni_ceil_div(c->group_units, c->segment_units);
        for (int64_t s = 0; s < c->n_segments; s++)
            counts[s] = (int32_t)qni_cut_count(c, s / per_group, s % per_group * c->segment_units,
                                               c->segment_units);
    }
    if (w->table != NULL)
        memcpy(section_of(p, QNI_SECTION_TABLE), w->table, sizeof(float) << w->format.bits);
    if (section_of(p, QNI_SECTION_PERM) != NULL)
        memcpy(section_of(p, QNI_SECTION_PERM), w->perm, (size_t)w->k * sizeof *w->perm);
    if (section_of(p, QNI_SECTION_PRESCALE) != NULL)
        memcpy(section_of(p, QNI_SECTION_PRESCALE), w->prescale,
               (size_t)w->k * sizeof *w->prescale);
}

static void release(struct qn_packed *packed)
{
    const struct qni_allocator allocator = packed->allocator;
    const size_t bytes = (size_t)packed->head->bytes;
    qni_free(&allocator, packed->owner, bytes);
    qni_free(&allocator, packed, sizeof *packed);
}

qn_status qni_cpu_pack_bytes(const qn_ctx *ctx, const struct qn_weight *w,
                             const qn_pack_options *options, size_t *bytes, qn_error *err)
{
    (void)ctx;
    struct pack p;
    QNI_TRY(plan_pack(w, options, &p, err));
    *bytes = (size_t)p.head.bytes;
    return QN_OK;
}

qn_status qni_cpu_pack(const qn_ctx *ctx, const struct qn_weight *w, const qn_pack_options *options,
                       struct qn_packed **packed, qn_error *err)
{
    struct pack p;
    QNI_TRY(plan_pack(w, options, &p, err));
    if (p.head.panels / PANELS_PER_TASK >= INT32_MAX)
        return qni_fail(err, QN_E_LAYOUT, "more than 2^37 outputs");
    struct qn_packed *const out = qni_alloc_zero(&ctx->allocator, sizeof *out);
    p.blob = qni_alloc_zero(&ctx->allocator, (size_t)p.head.bytes);
    if (out == NULL || p.blob == NULL) {
        qni_free(&ctx->allocator, out, sizeof *out);
        qni_free(&ctx->allocator, p.blob, (size_t)p.head.bytes);
        return qni_fail(err, QN_E_MEMORY, "no memory for %llu bytes of packed weights",
                        (unsigned long long)p.head.bytes);
    }
    memcpy(p.blob, &p.head, sizeof p.head);
    pack_small_sections(&p);
    qni_parallel(&ctx->threads, (int32_t)qni_ceil_div(p.head.panels, PANELS_PER_TASK), pack_panels,
                 &p);
    out->allocator = ctx->allocator;
    out->device = (qn_device){QN_CPU, 0};
    out->head = (const struct qni_packed_head *)p.blob;
    out->blob = p.blob;
    out->release = release;
    out->owner = p.blob;
    *packed = out;
    return QN_OK;
}
