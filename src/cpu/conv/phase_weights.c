/* SPDX-License-Identifier: Apache-2.0 */
/* Copying the weights of some taps: phase_weights.h. Along k, packed weights are blocks of taps
 * of units,
 *
 *     along taps x channels      1 block         all taps     ci / 32 units each
 *     blocks of channels         ci / group      all taps     group / 32 units each
 *
 * and the units of the live taps are brought together. Groups are whole taps' worth of units
 * (they are dropped with them) or hold all taps (they shrink). Of one group whose channels are no
 * whole units, vectors of four positions are brought together where codes are bytes. */
#include "phase_weights.h"

#include <string.h>

#include "../layouts.h"

enum { VECTOR = 4 }; /* positions */

/* How a row of packed weights divides. */
struct division {
    int64_t blocks, vectors; /* vectors: of a tap in a block */
    bool drops_groups;       /* else every group keeps its live taps */
};

static struct division divide(const struct qni_packed_head *h)
{
    const bool by_channel = h->format.blocks == QN_BLOCKS_CHANNELS && h->n_groups > 1;
    const int64_t stretch = by_channel ? h->format.group : h->ci;
    const struct division d = {h->ci / stretch, stretch / VECTOR, !by_channel && h->n_groups > 1};
    return d;
}

/* One group along taps and channels, in a layout of bytes: a vector is four positions. */
static bool has_vectors(const struct qni_packed_head *h)
{
    return h->n_groups == 1 && h->n_runs <= 1 && h->ci % VECTOR == 0 &&
           qni_layout_find(h->layout)->layout == QNI_LAYOUT_Q8N16;
}

bool qni_has_phase_weights(const struct qni_op *op)
{
    const struct qni_packed_head *h = op->w[0]->head;
    const bool is_block = op->strategy == QN_STRATEGY_INT8_BLOCK;
    const bool is_exact =
        is_block || op->strategy == QN_STRATEGY_INT8_ROW || op->strategy == QN_STRATEGY_INT8_STATIC;
    if (op->kind != QNI_CONV_TRANSPOSE || op->conv.stride[0] * (int64_t)op->conv.stride[1] == 1)
        return false;
    if (h->section[QNI_SECTION_PERM].bytes != 0 || (is_block && !op->quant.symmetric) ||
        qni_is_compact(h))
        return false;
    if (h->n_groups > 1) {
        if (h->format.group % QNI_UNIT != 0 || h->ci % h->format.group != 0)
            return false;
    } else if (h->ci % QNI_UNIT != 0 && (is_block || !has_vectors(h))) {
        return false;
    }
    const struct division d = divide(h);
    if (d.drops_groups || !is_exact)
        return true;
    const int64_t units = d.vectors / (QNI_UNIT / VECTOR);
    return is_block ? units % h->segment_units == 0 : h->group_units <= QNI_ROW_SEGMENT_UNITS;
}

/* What the copy of a panel reads and writes. */
struct copy {
    const qn_packed *from;
    struct qni_phase_weights *to;
    uint8_t *blob;
    struct division division;
    struct qni_taps taps[2];
    int32_t layout;
};

enum { PANELS_PER_TASK = 4 };

static int64_t live_count(const struct qni_taps taps[2])
{
    return (int64_t)taps[0].count * taps[1].count;
}

/* The i-th live tap, as a tap of the weights. */
static int64_t live_tap(const struct copy *c, int64_t i)
{
    const int64_t y = i / c->taps[1].count, x = i % c->taps[1].count;
    return (c->taps[0].first + y * c->taps[0].step) * c->from->head->kw + c->taps[1].first +
           x * c->taps[1].step;
}

static void add_section(struct qni_packed_head *h, int32_t section, int64_t count, size_t element)
{
    h->section[section].offset = h->bytes;
    h->section[section].bytes = (uint64_t)count * element;
    h->bytes += qni_round_up((size_t)count * element, 64);
}

/* Sums are read for the sake of a zero point, in the scale of int8 codes. */
static bool has_zero_point(const struct qni_op *op)
{
    return qni_op_x_zero(op) != 0;
}

static size_t zero_bytes(const struct qni_packed_head *head)
{
    return head->zero_dtype == QN_I8 ? 1 : 4;
}

/* The head of the weights of n live taps, sections laid out from offset 0 on. */
static struct qni_packed_head live_head(const struct qni_op *op, int64_t n)
{
    const struct qni_packed_head *from = op->w[0]->head;
    const struct division d = divide(from);
    const int64_t taps = (int64_t)from->kh * from->kw, lanes = from->panels * QNI_PANEL;
    const size_t scale = from->scale_dtype == QN_F16 ? 2 : 4;
    struct qni_packed_head h = *from;
    memset(h.section, 0, sizeof h.section);
    h.bytes = 0;
    h.kh = 1;
    h.kw = (int32_t)n;
    h.k = n * from->ci;
    h.n_groups = n == 0 ? 0 : d.drops_groups ? from->n_groups / taps * n : from->n_groups;
    const struct qni_cut cut = qni_cut_make(&h.format, h.k, h.ci, h.n_groups, from->segment_units);
    h.units = cut.units;
    h.group_units = cut.group_units;
    h.segment_units = cut.segment_units;
    h.n_segments = cut.n_segments;
    h.n_runs = (int32_t)qni_runs_make(&h.format, &cut, h.ci, n, NULL);
    const struct qni_cut row_cut = qni_cut_of(&h, QNI_READS_Q8);
    const struct qni_layout *layout = qni_layout_find(from->layout);
    add_section(&h, QNI_SECTION_CODES, h.panels * h.units, qni_layout_unit_bytes(layout->layout));
    add_section(&h, QNI_SECTION_SCALE, lanes * h.n_groups, scale);
    if (from->section[QNI_SECTION_OFFSET].bytes != 0)
        add_section(&h, QNI_SECTION_OFFSET, lanes * h.n_groups, scale);
    if (qni_op_has_raw_zeros(op))
        add_section(&h, QNI_SECTION_ZERO, lanes * h.n_groups, zero_bytes(from));
    if (from->section[QNI_SECTION_SUMS].bytes != 0 && has_zero_point(op))
        add_section(&h, QNI_SECTION_SUMS, lanes * row_cut.n_segments, sizeof(int32_t));
    if (from->section[QNI_SECTION_COUNTS].bytes != 0)
        add_section(&h, QNI_SECTION_COUNTS, row_cut.n_segments, sizeof(int32_t));
    if (from->section[QNI_SECTION_TABLE].bytes != 0)
        add_section(&h, QNI_SECTION_TABLE, (int64_t)from->section[QNI_SECTION_TABLE].bytes, 1);
    add_section(&h, QNI_SECTION_RUNS, h.n_runs, sizeof(struct qni_run));
    if (from->section[QNI_SECTION_PRESCALE].bytes != 0)
        add_section(&h, QNI_SECTION_PRESCALE, h.k, sizeof(float));
    return h;
}

size_t qni_phase_weights_bytes(const struct qni_op *op)
{
    const struct qni_axis y = qni_conv_axis(op, 0), x = qni_conv_axis(op, 1);
    const int64_t n = (int64_t)qni_axis_most_live(&y) * qni_axis_most_live(&x);
    return (size_t)live_head(op, n).bytes;
}

/* ---- panels ---------------------------------------------------------------------------------- */

/* A section of the copy, at a panel; NULL if there is none. */
static uint8_t *to_panel(const struct copy *c, int32_t section, int64_t panel, size_t bytes)
{
    const struct qni_packed_head *h = &c->to->head;
    return h->section[section].bytes == 0
               ? NULL
               : c->blob + h->section[section].offset + (size_t)panel * bytes;
}

static void copy_codes(const struct copy *c, int64_t panel)
{
    const struct qni_packed_head *from = c->from->head, *to = &c->to->head;
    const size_t unit = qni_layout_unit_bytes(c->layout);
    const size_t stretch = (size_t)c->division.vectors * (unit / (QNI_UNIT / VECTOR));
    const int64_t taps = (int64_t)from->kh * from->kw, n = live_count(c->taps);
    const uint8_t *src = (const uint8_t *)qni_section(c->from, QNI_SECTION_CODES) +
                         (size_t)(panel * from->units) * unit;
    uint8_t *dst = to_panel(c, QNI_SECTION_CODES, panel, (size_t)to->units * unit);
    for (int64_t b = 0; b < c->division.blocks; b++)
        for (int64_t i = 0; i < n; i++, dst += stretch)
            memcpy(dst, src + (size_t)(b * taps + live_tap(c, i)) * stretch, stretch);
    uint8_t *const end = to_panel(c, QNI_SECTION_CODES, panel + 1, (size_t)to->units * unit);
    memset(dst, 0x80, (size_t)(end - dst)); /* only bytes have padding here: zeros */
}

/* Rows of `row` bytes, `per_group` for each group. */
static void copy_groups(const struct copy *c, int32_t section, const uint8_t *src, int64_t panel,
                        size_t row, int64_t per_group)
{
    const struct qni_packed_head *from = c->from->head, *to = &c->to->head;
    const size_t group = row * (size_t)per_group;
    uint8_t *dst = to_panel(c, section, panel, (size_t)to->n_groups * group);
    if (dst == NULL)
        return;
    src += (size_t)(panel * from->n_groups) * group;
    if (!c->division.drops_groups) {
        memcpy(dst, src, (size_t)to->n_groups * group);
        return;
    }
    const int64_t n = live_count(c->taps), of_tap = from->n_groups / ((int64_t)from->kh * from->kw);
    const size_t stretch = (size_t)of_tap * group;
    for (int64_t i = 0; i < n; i++, dst += stretch)
        memcpy(dst, src + (size_t)live_tap(c, i) * stretch, stretch);
}

/* sums += values of the codes of a unit; table: of T4N16, or NULL. Plain codes are added as
 * bytes, then as halves of a word: 8 vectors * 2 * 255 < 2^16. */
static void add_values(int32_t layout, const uint8_t *codes, const int8_t *table,
                       int32_t sums[QNI_PANEL])
{
    const bool nibbles = qni_layout_unit_bytes(layout) == 256;
    uint32_t halves[QNI_PANEL] = {0}, word[QNI_PANEL];
    for (int32_t r = 0; r < (nibbles ? 4 : 8); r++, codes += sizeof word) {
        memcpy(word, codes, sizeof word);
        for (int32_t i = 0; table != NULL && i < 64; i++)
            sums[i / 4] += table[codes[i] & 15] + table[codes[i] >> 4];
        for (int32_t j = 0; j < QNI_PANEL; j++) {
            if (nibbles)
                word[j] = (word[j] & 0x0f0f0f0fu) + (word[j] >> 4 & 0x0f0f0f0fu);
            halves[j] += (word[j] & 0x00ff00ffu) + (word[j] >> 8 & 0x00ff00ffu);
        }
    }
    for (int32_t j = 0; table == NULL && j < QNI_PANEL; j++)
        sums[j] +=
            (int32_t)((halves[j] & 0xffffu) + (halves[j] >> 16)) - QNI_UNIT * (nibbles ? 8 : 128);
}

/* Sums of the segments of int8-row and int8-static, where these are the groups. */
static void count_sums(const struct copy *c, int64_t panel)
{
    const struct qni_packed_head *to = &c->to->head;
    const size_t unit = qni_layout_unit_bytes(c->layout), row = QNI_PANEL * sizeof(int32_t);
    const float *table = qni_section(c->from, QNI_SECTION_TABLE);
    int8_t table8[16];
    if (table != NULL)
        qni_table_integers(to->format.code, table, 1 << to->format.bits, table8);
    const uint8_t *codes = to_panel(c, QNI_SECTION_CODES, panel, (size_t)to->units * unit);
    uint8_t *dst = to_panel(c, QNI_SECTION_SUMS, panel, (size_t)to->n_groups * row);
    for (int64_t g = 0; g < to->n_groups; g++, dst += row) {
        int32_t sums[QNI_PANEL] = {0};
        for (int64_t i = 0; i < to->group_units; i++, codes += unit)
            add_values(c->layout, codes, table != NULL ? table8 : NULL, sums);
        memcpy(dst, sums, sizeof sums);
    }
}

static void copy_sums(const struct copy *c, int64_t panel)
{
    if (to_panel(c, QNI_SECTION_SUMS, 0, 0) == NULL)
        return;
    if (!c->division.drops_groups) {
        count_sums(c, panel);
        return;
    }
    const uint8_t *src = qni_section(c->from, QNI_SECTION_GROUP_SUMS);
    src = src != NULL ? src : qni_section(c->from, QNI_SECTION_SUMS);
    const struct qni_cut cut = qni_cut_of(c->from->head, QNI_READS_Q8);
    copy_groups(c, QNI_SECTION_SUMS, src, panel, QNI_PANEL * sizeof(int32_t),
                qni_cut_per_group(&cut));
}

static void copy_panels(void *arg, int32_t task)
{
    const struct copy *c = arg;
    const struct qni_packed_head *h = &c->to->head;
    const size_t row = QNI_PANEL * (size_t)(h->scale_dtype == QN_F16 ? 2 : 4);
    const int64_t first = (int64_t)task * PANELS_PER_TASK;
    const int64_t end = qni_min(first + PANELS_PER_TASK, h->panels);
    for (int64_t panel = first; panel < end; panel++) {
        copy_codes(c, panel);
        copy_groups(c, QNI_SECTION_SCALE, qni_section(c->from, QNI_SECTION_SCALE), panel, row, 1);
        copy_groups(c, QNI_SECTION_OFFSET, qni_section(c->from, QNI_SECTION_OFFSET), panel, row, 1);
        copy_groups(c, QNI_SECTION_ZERO, qni_section(c->from, QNI_SECTION_ZERO), panel,
                    QNI_PANEL * zero_bytes(h), 1);
        copy_sums(c, panel);
    }
}

/* ---- what all panels share ------------------------------------------------------------------- */

static void make_shared(const struct copy *c)
{
    const struct qni_packed_head *h = &c->to->head;
    const struct qni_cut cut = qni_cut_make(&h->format, h->k, h->ci, h->n_groups, h->segment_units);
    const struct qni_cut rows = qni_cut_of(h, QNI_READS_Q8);
    const int64_t n = live_count(c->taps);
    qni_runs_make(&h->format, &cut, h->ci, n,
                  (struct qni_run *)(void *)to_panel(c, QNI_SECTION_RUNS, 0, 0));
    int32_t *counts = (int32_t *)(void *)to_panel(c, QNI_SECTION_COUNTS, 0, 0);
    if (counts != NULL)
        qni_counts_make(&rows, counts);
    if (h->section[QNI_SECTION_TABLE].bytes != 0)
        memcpy(to_panel(c, QNI_SECTION_TABLE, 0, 0), qni_section(c->from, QNI_SECTION_TABLE),
               (size_t)h->section[QNI_SECTION_TABLE].bytes);
    const float *prescale = qni_section(c->from, QNI_SECTION_PRESCALE);
    uint8_t *to = to_panel(c, QNI_SECTION_PRESCALE, 0, 0);
    const size_t stretch = (size_t)h->ci * sizeof(float);
    for (int64_t i = 0; to != NULL && i < n; i++, to += stretch)
        memcpy(to, prescale + live_tap(c, i) * h->ci, stretch);
}

void qni_phase_weights_make(const qn_ctx *ctx, const struct qni_op *op,
                            const struct qni_taps taps[2], void *memory,
                            struct qni_phase_weights *out)
{
    const qn_packed *from = op->w[0];
    out->head = live_head(op, live_count(taps));
    out->packed = *from;
    out->packed.head = &out->head;
    out->packed.blob = memory;
    struct copy c = {
        .from = from,
        .to = out,
        .blob = memory,
        .division = divide(from->head),
        .taps = {taps[0], taps[1]},
        .layout = qni_layout_find(from->head->layout)->layout,
    };
    if (live_count(taps) == 0)
        return;
    make_shared(&c);
    qni_parallel(&ctx->threads, (int32_t)qni_ceil_div(out->head.panels, PANELS_PER_TASK),
                 copy_panels, &c);
}
