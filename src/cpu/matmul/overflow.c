/* SPDX-License-Identifier: Apache-2.0 */
/* Results that overflowed on the way, once more in double: overflow.h. Plain loops over the packed
 * codes, 16 outputs at a time, positions in ascending order. */
#include "overflow.h"

#include <math.h>
#include <string.h>

#include "../../base/exact.h"
#include "../../base/half.h"

/* A row of x. */
struct row {
    const float *x, *prescale; /* in the order of columns */
    const int32_t *perm;
    const struct qni_run *runs;
    int32_t n_runs;
    int32_t run; /* runs before it end before the unit that was asked for last */
    struct qni_run all;
};

/* False if it holds an infinity or a NaN. */
static bool bring_row(const struct qni_op *op, const struct qni_rows *rows,
                      const struct qni_row_source *source, const struct qni_overflow_tile *t,
                      int64_t row, const struct qni_row_scratch *scratch)
{
    const void *raw = scratch->raw;
    if (source->fill != NULL) {
        source->fill(source->arg, t->part, row, 1, scratch->raw, scratch->raw_ld, scratch->source);
    } else {
        const int64_t at = source->index == NULL ? row : source->index[row * source->index_stride];
        raw =
            (const uint8_t *)source->x + (size_t)(at * source->ldx) * qn_dtype_bytes(source->dtype);
    }
    const int64_t k = t->part->w->head->k;
    rows->widen(scratch->wide, raw, op->x.dtype, NULL, k);
    return rows->is_finite(scratch->wide, 1, k, 0);
}

static void describe_row(const qn_packed *w, const float *x, struct row *r)
{
    r->x = x;
    r->prescale = qni_section(w, QNI_SECTION_PRESCALE);
    r->perm = qni_section(w, QNI_SECTION_PERM);
    r->runs = qni_section(w, QNI_SECTION_RUNS);
    r->n_runs = w->head->n_runs;
    r->run = 0;
    r->all = (struct qni_run){0, 0, w->head->k};
    if (r->runs == NULL) {
        r->runs = &r->all;
        r->n_runs = 1;
    }
}

/* A unit of it in packed order, times the prescale. Units are asked for in rising order. */
static void bring_unit(struct row *r, int64_t unit, double x[QNI_UNIT])
{
    const int64_t begin = unit * QNI_UNIT, end = begin + QNI_UNIT;
    memset(x, 0, QNI_UNIT * sizeof *x);
    while (r->run < r->n_runs && r->runs[r->run].dst + r->runs[r->run].len <= begin)
        r->run++;
    for (int32_t i = r->run; i < r->n_runs && r->runs[i].dst < end; i++) {
        const struct qni_run *const run = &r->runs[i];
        const int64_t last = qni_min(run->dst + run->len, end);
        for (int64_t p = qni_max(run->dst, begin); p < last; p++) {
            const int64_t at = run->src + p - run->dst;
            const int64_t column = r->perm != NULL ? r->perm[at] : at;
            x[p - begin] =
                (double)r->x[column] * (r->prescale != NULL ? (double)r->prescale[column] : 1.0);
        }
    }
}

/* What the codes of a panel stand for. */
struct codes {
    const qn_packed *w;
    const struct qni_layout *layout;
    int64_t panel;
    const float *table;
    int32_t zero;
    const uint8_t *floats_at; /* of the panel */
    qn_dtype floats;          /* or 0 */
};

/* The float of position p of a unit and output j. */
static double float_at(const struct codes *c, int64_t unit, int32_t p, int32_t j)
{
    const size_t unit_bytes = (size_t)QNI_UNIT * QNI_PANEL * qn_dtype_bytes(c->floats);
    const uint8_t *const at = c->floats_at + (size_t)unit * unit_bytes +
                              qni_layout_float_place(c->floats, p) +
                              (size_t)j * qni_float_step(c->floats);
    return (double)qni_load_float(at, c->floats, 0);
}

static float value_of(const struct codes *c, uint8_t code)
{
    return c->table != NULL ? c->table[code] : (float)(code - c->zero);
}

/* dot[j] += sum over a unit of x * value. */
static void add_unit(const struct codes *c, int64_t unit, const double x[QNI_UNIT],
                     double dot[QNI_PANEL])
{
    for (int32_t i = 0; i < QNI_UNIT * QNI_PANEL && c->floats != 0; i++)
        dot[i % QNI_PANEL] += x[i / QNI_PANEL] * float_at(c, unit, i / QNI_PANEL, i % QNI_PANEL);
    if (c->floats != 0)
        return;
    struct qni_unit_codes u;
    qni_packed_load(&qni_cpu_packing, c->layout, c->w, c->panel, unit, &u);
    for (int32_t p = 0; p < QNI_UNIT; p++)
        for (int32_t j = 0; j < QNI_PANEL; j++)
            dot[j] += x[p] * (double)value_of(c, u.code[j][p]);
}

/* To eight digits, ties to even: a bf16, or 2^128 next to its largest number. */
static double round_weight(float w)
{
    uint32_t bits;
    memcpy(&bits, &w, sizeof bits);
    if ((bits & 0x7f800000) == 0x7f800000)
        return (double)w;
    const uint32_t low = bits & 0xffff, kept = bits & 0xffff0000;
    const bool up = low > 0x8000 || (low == 0x8000 && (bits & 0x10000) != 0);
    float down, ulp;
    const uint32_t exponent = bits & 0x7f800000;
    memcpy(&down, &kept, sizeof down);
    memcpy(&ulp, &exponent, sizeof ulp);
    /* An ulp is 2^-7 of the power of two below; of subnormal numbers, which a product takes for
     * zero, it is none. */
    return (double)down + (up ? copysign((double)ulp * 0x1p-7, (double)w) : 0.0);
}

/* sum[j] += sum over a unit of x * weight, each rounded. */
static void add_rounded(const struct codes *c, int64_t unit, const double x[QNI_UNIT],
                        const float scale[], const float offset[], const int32_t zero[],
                        double sum[QNI_PANEL])
{
    struct qni_unit_codes u;
    qni_packed_load(&qni_cpu_packing, c->layout, c->w, c->panel, unit, &u);
    for (int32_t p = 0; p < QNI_UNIT; p++)
        for (int32_t j = 0; j < QNI_PANEL; j++) {
            const float value = value_of(c, u.code[j][p]);
            const float w = zero != NULL ? scale[j] * (value - (float)zero[j])
                                         : qni_fmaf(scale[j], value, offset[j]);
            sum[j] += x[p] * round_weight(w);
        }
}

/* A group of a panel, weights rounded. */
static void sum_rounded(const struct codes *c, int64_t group, int64_t unit, int64_t end,
                        struct row *row, double sum[QNI_PANEL])
{
    const qn_packed *const w = c->w;
    const void *const zeros = qni_section(w, QNI_SECTION_ZERO);
    float scale[QNI_PANEL], offset[QNI_PANEL];
    int32_t zero[QNI_PANEL] = {0};
    for (int32_t j = 0; j < QNI_PANEL; j++) {
        const int64_t at = (c->panel * w->head->n_groups + group) * QNI_PANEL + j;
        const struct qni_affine a = qni_packed_affine(w, c->panel, group, j);
        scale[j] = a.scale;
        offset[j] = a.offset;
        if (zeros != NULL)
            zero[j] = w->head->zero_dtype == QN_I8 ? ((const int8_t *)zeros)[at]
                                                   : ((const int32_t *)zeros)[at];
    }
    for (; unit < end; unit++) {
        double x[QNI_UNIT];
        bring_unit(row, unit, x);
        add_rounded(c, unit, x, scale, offset, zeros != NULL ? zero : NULL, sum);
    }
}

static void sum_panel(const qn_packed *w, int64_t panel, const float *x, bool rounds,
                      double sum[QNI_PANEL])
{
    const struct qni_layout *const layout = qni_layout_find(w->head->layout);
    const struct qni_cut cut = qni_cut_of(w->head, QNI_READS_F32);
    const size_t units = (size_t)(panel * cut.units);
    const struct codes c = {.w = w,
                            .layout = layout,
                            .panel = panel,
                            .table = qni_section(w, QNI_SECTION_TABLE),
                            .zero = layout->floats != 0 ? 0 : 1 << (layout->code_bits - 1),
                            .floats_at = (const uint8_t *)qni_section(w, QNI_SECTION_CODES) +
                                         units * qni_layout_unit_bytes(layout->layout),
                            .floats = layout->floats};
    struct row row;
    describe_row(w, x, &row);
    memset(sum, 0, QNI_PANEL * sizeof *sum);
    for (int64_t g = 0, unit = 0; g < cut.n_groups; g++) {
        const int64_t end = qni_min(unit + cut.group_units, cut.units);
        double dot[QNI_PANEL] = {0.0}, total = 0.0;
        if (rounds) {
            sum_rounded(&c, g, unit, end, &row, sum);
            unit = end;
            continue;
        }
        for (; unit < end; unit++) {
            double values[QNI_UNIT];
            bring_unit(&row, unit, values);
            add_unit(&c, unit, values, dot);
            for (int32_t p = 0; p < QNI_UNIT; p++)
                total += values[p];
        }
        for (int32_t j = 0; j < QNI_PANEL; j++) {
            const struct qni_affine a = qni_packed_affine(w, panel, g, j);
            sum[j] += (double)a.scale * dot[j];
            if (qni_packed_has_offsets(w->head))
                sum[j] += (double)a.offset * total;
        }
    }
}

void qni_overflow_recompute(const struct qni_op *op, const struct qni_rows *rows,
                            const struct qni_row_source *source,
                            const struct qni_overflow_tile *tile,
                            const struct qni_row_scratch *scratch)
{
    const int64_t n = tile->n_panels * QNI_PANEL;
    for (int64_t i = 0; i < tile->rows; i++) {
        float *const line = tile->c + (size_t)i * tile->ldc;
        if (rows->is_finite(line, 1, n, 0) ||
            !bring_row(op, rows, source, tile, tile->row + i, scratch))
            continue;
        for (int64_t p = 0; p < tile->n_panels; p++) {
            float *const c = line + p * QNI_PANEL;
            double sum[QNI_PANEL];
            if (rows->is_finite(c, 1, QNI_PANEL, 0))
                continue;
            sum_panel(tile->part->w, tile->panel + p, scratch->wide, tile->rounds, sum);
            for (int32_t j = 0; j < QNI_PANEL; j++)
                c[j] = isfinite(c[j]) ? c[j] : (float)sum[j];
        }
    }
}
