/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a weight by index, from the canonical form or from packed codes: the values of
 * qn_weight_dequantize(), rounded once more where the result has 16 bits. A row of packed weights
 * costs the unpacking of its panel of 16 rows, which for a lookup of a few hundred rows is far less
 * than the product that follows. */
#include "rows.h"

#include "../base/exact.h"
#include "../base/half.h"
#include "../base/size.h"
#include "levels.h"

/* Positions that are decoded before they are stored in their columns. */
enum { SPAN = QNI_UNIT };

/* Where the values of one row go. */
struct target {
    uint8_t *row;
    qn_dtype dtype;
    const int32_t *perm;   /* NULL: position p is column p */
    const float *prescale; /* NULL: none is applied */
};

static void store(const struct target *t, int64_t first, int64_t n, const float *values)
{
    for (int64_t i = 0; i < n; i++) {
        const int64_t column = t->perm != NULL ? t->perm[first + i] : first + i;
        const float v = t->prescale != NULL ? values[i] * t->prescale[column] : values[i];
        if (t->dtype == QN_F32)
            ((float *)t->row)[column] = v;
        else if (t->dtype == QN_F16)
            ((uint16_t *)t->row)[column] = qni_f16_from_f32(v);
        else
            ((uint16_t *)t->row)[column] = qni_bf16_from_f32(v);
    }
}

static struct target target_of(const struct qni_row_lookup *rows, int64_t i, const int32_t *perm,
                               const float *prescale)
{
    const size_t row_bytes = (size_t)rows->out.stride[0] * qn_dtype_bytes(rows->out.dtype);
    return (struct target){(uint8_t *)rows->out.data + (size_t)i * row_bytes, rows->out.dtype, perm,
                           rows->apply_prescale ? prescale : NULL};
}

/* ---- canonical ---- */

struct canonical_job {
    const struct qn_weight *w;
    const struct qni_row_lookup *rows;
};

static void canonical_row(void *arg, int32_t i)
{
    const struct canonical_job *job = arg;
    const struct qn_weight *w = job->w;
    const struct target t = target_of(job->rows, i, w->perm, w->prescale);
    const int64_t id = qni_row_id(job->rows, i);
    float values[SPAN];
    for (int64_t first = 0; first < w->k; first += SPAN) {
        const int64_t n = qni_min(SPAN, w->k - first);
        qni_decode_span(w, id, first, n, values);
        store(&t, first, n, values);
    }
}

void qni_weight_rows(const qn_ctx *ctx, const struct qn_weight *w,
                     const struct qni_row_lookup *rows)
{
    struct canonical_job job = {w, rows};
    qni_parallel(&ctx->threads, (int32_t)rows->count, canonical_row, &job);
}

/* ---- packed ---- */

struct packed_job {
    const struct qni_packing *packing;
    const struct qn_packed *packed;
    const struct qni_layout *layout;
    const struct qni_row_lookup *rows;
    int32_t lane_of[QNI_PANEL]; /* the lane in tables of 16 of a row of codes */
};

/* What a group's codes are decoded with. */
struct group {
    float scale, offset;
    float origin; /* added to signed values; a minimum is the offset of codes from 0 */
    int32_t zero;
};

static struct group load_group(const struct packed_job *job, int64_t panel, int64_t row, int64_t g)
{
    const struct qni_packed_head *h = job->packed->head;
    const int64_t at = (panel * h->n_groups + g) * QNI_PANEL + job->lane_of[row];
    const void *zero = qni_section(job->packed, QNI_SECTION_ZERO);
    struct group group = {.scale = 0.0f};
    group.scale = qni_packed_affine(job->packed, panel, g, job->lane_of[row]).scale;
    if (h->format.shift == QN_SHIFT_MIN) {
        const size_t bytes = qni_levels_panel_bytes(h, qni_levels_are_two(h));
        const uint8_t *levels = qni_section(job->packed, QNI_SECTION_LEVELS);
        group.offset = qni_levels_load(h, levels + (size_t)panel * bytes, g, job->lane_of[row]).min;
        group.origin = (float)(1 << (h->format.bits - 1));
    }
    if (h->format.shift == QN_SHIFT_OFFSET)
        group.offset =
            qni_load_scale(qni_section(job->packed, QNI_SECTION_OFFSET), h->scale_dtype, at);
    if (h->format.shift == QN_SHIFT_ZERO)
        group.zero =
            h->zero_dtype == QN_I8 ? ((const int8_t *)zero)[at] : ((const int32_t *)zero)[at];
    return group;
}

static float decode(const qn_format *f, const struct group *g, float value)
{
    if (f->shift == QN_SHIFT_ZERO)
        return g->scale * (value - (float)g->zero);
    if (qni_has_float_shift(f))
        return qni_fmaf(g->scale, value + g->origin, g->offset);
    return g->scale * value;
}

/* The values of stored codes at canonical positions [first, first + n). */
static void decode_codes(const struct packed_job *job, int64_t panel, int64_t row, int64_t first,
                         int64_t n, const uint8_t *codes, float *values)
{
    const struct qni_packed_head *h = job->packed->head;
    const int32_t half = 1 << (job->layout->code_bits - 1);
    struct group group = {.scale = 0.0f};
    int64_t loaded = -1;
    for (int64_t i = 0; i < n; i++) {
        const int64_t g = qni_group_of(&h->format, first + i, h->ci);
        if (g != loaded)
            group = load_group(job, panel, row, g);
        loaded = g;
        const float value =
            job->layout->is_table ? job->packed->table[codes[i]] : (float)(codes[i] - half);
        values[i] = decode(&h->format, &group, value);
    }
}

/* A row of floats, which lie each at a place of its own. */
static void float_row(void *arg, int32_t i)
{
    const struct packed_job *job = arg;
    const struct qni_packed_head *h = job->packed->head;
    const struct qni_run *runs = qni_section(job->packed, QNI_SECTION_RUNS);
    const qn_dtype floats = job->layout->floats;
    const struct target t = target_of(job->rows, i, qni_section(job->packed, QNI_SECTION_PERM),
                                      qni_section(job->packed, QNI_SECTION_PRESCALE));
    const size_t unit_bytes = qni_packed_unit_bytes(job->layout->code_bits);
    int64_t row;
    const int64_t panel = qni_panel_of(h, qni_row_id(job->rows, i), &row);
    const uint8_t *const from = (const uint8_t *)qni_section(job->packed, QNI_SECTION_CODES) +
                                (size_t)(panel * h->units) * unit_bytes +
                                (size_t)row * qni_float_step(floats);
    for (int32_t r = 0; r < h->n_runs; r++)
        for (int64_t p = 0; p < runs[r].len; p++) {
            const int64_t at = runs[r].dst + p;
            const float value = qni_load_float(from + (size_t)(at / QNI_UNIT) * unit_bytes +
                                                   job->packing->float_place(floats, at % QNI_UNIT),
                                               floats, 0);
            store(&t, runs[r].src + p, 1, &value);
        }
}

static void packed_row(void *arg, int32_t i)
{
    const struct packed_job *job = arg;
    const struct qni_packed_head *h = job->packed->head;
    const struct qni_run *runs = qni_section(job->packed, QNI_SECTION_RUNS);
    const struct target t = target_of(job->rows, i, qni_section(job->packed, QNI_SECTION_PERM),
                                      qni_section(job->packed, QNI_SECTION_PRESCALE));
    const int64_t per_block = qni_packed_block_units(h->device_kind);
    int64_t row;
    const int64_t panel = qni_panel_of(h, qni_row_id(job->rows, i), &row);
    struct qni_unit_codes block[QNI_MAX_BLOCK_UNITS];
    int64_t run = 0;
    for (int64_t unit = 0; unit < h->units; unit++) {
        const int64_t first = unit * QNI_UNIT, end = first + QNI_UNIT;
        const struct qni_unit_codes *here = &block[unit % per_block];
        if (here == block)
            qni_packed_load(job->packing, job->layout, job->packed, panel, unit, block);
        while (run < h->n_runs && runs[run].dst + runs[run].len <= first)
            run++;
        for (int64_t r = run; r < h->n_runs && runs[r].dst < end; r++) {
            const int64_t from = qni_max(runs[r].dst, first);
            const int64_t n = qni_min(runs[r].dst + runs[r].len, end) - from;
            const int64_t position = runs[r].src + (from - runs[r].dst);
            float values[SPAN];
            decode_codes(job, panel, row, position, n, &here->code[row][from - first], values);
            store(&t, position, n, values);
        }
    }
}

void qni_packed_rows(const qn_ctx *ctx, const struct qni_packing *packing,
                     const struct qn_packed *packed, const struct qni_row_lookup *rows)
{
    struct packed_job job = {.packing = packing,
                             .packed = packed,
                             .layout = qni_packing_find(packing, packed->head->layout),
                             .rows = rows};
    for (int32_t lane = 0; lane < QNI_PANEL; lane++)
        job.lane_of[packing->lanes[lane]] = lane;
    qni_parallel(&ctx->threads, (int32_t)rows->count,
                 job.layout->floats != 0 ? float_row : packed_row, &job);
}
