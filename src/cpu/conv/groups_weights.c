/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of grouped convolutions in the order of their kernels, [set][vector][tap][channel][lane],
 * as floats: of a panel of packed codes, in which a group has its outputs alone, to the lanes that
 * these have beside the outputs of other groups. */
#include <string.h>

#include "../../base/size.h"
#include "conv.h"
#include "groups_shape.h"

/* ---- order ----------------------------------------------------------------------------------- */

bool qni_groups_order(const struct qni_op *op, qn_strategy strategy,
                      struct qni_groups_place *places, int32_t *segments)
{
    const qn_packed *w = op->w[0];
    const struct qni_packed_head *head = w->head;
    const struct qni_run all = {0, 0, head->k};
    const struct qni_run *runs = qni_section(w, QNI_SECTION_RUNS);
    const int32_t *perm = qni_section(w, QNI_SECTION_PERM);
    const float *prescale = qni_section(w, QNI_SECTION_PRESCALE);
    const struct qni_layout *const layout = qni_layout_find(head->layout);
    const struct qni_cut cut = qni_cut_of(head, qni_conv_reads(strategy));
    const bool is_float = strategy == QN_STRATEGY_FLOAT;
    const bool is_whole = is_float || cut.n_segments == 1;
    const int64_t most =
        strategy == QN_STRATEGY_INT8_STATIC ? QNI_GROUPS_EXACT / 2 : QNI_GROUPS_EXACT;
    int64_t n = 0, from = 0, segment = 0;
    if (segments != NULL)
        segments[0] = 0;
    for (int32_t r = 0; r < (runs != NULL ? head->n_runs : 1); r++) {
        const struct qni_run *const run = runs != NULL ? &runs[r] : &all;
        for (int64_t i = 0; i < run->len; i++, n++) {
            const int64_t position = run->dst + i, canonical = run->src + i;
            const int64_t column = perm != NULL ? perm[canonical] : canonical;
            const int64_t now = is_whole ? 0 : qni_segment_of(&cut, position);
            if (now != segment) { /* segments follow each other, and none is empty */
                if (now != segment + 1 || n % op->conv.ci != 0)
                    return false;
                segment = now;
                from = n;
                if (segments != NULL)
                    segments[now] = (int32_t)(n / op->conv.ci);
            }
            if ((!is_whole && column != n) || (!is_float && n - from >= most))
                return false;
            if (places != NULL) {
                const struct qni_code_place code = qni_code_place(position, layout);
                places[n].bytes = code.bytes;
                places[n].shift = code.shift;
                places[n].scale = (int32_t)(position / QNI_UNIT / cut.group_units);
                places[n].at = column;
                places[n].prescale = prescale != NULL ? prescale[column] : 1.0f;
            }
        }
    }
    if (segments != NULL)
        segments[segment + 1] = op->conv.kh * op->conv.kw;
    return is_whole || segment + 1 == cut.n_segments;
}

/* ---- one panel ------------------------------------------------------------------------------- */

/* Facts of the outputs of a panel to their lanes. */
static void put(const struct qni_op *op, const struct qni_groups_shape *s, int64_t group,
                int64_t first, const qni_floats16 *facts, float *to)
{
    const int64_t n = qni_min(QNI_PANEL, op->conv.co - first);
    float v[QNI_PANEL];
    memcpy(v, facts, sizeof v);
    for (int64_t j = 0; j < n; j++) {
        const int64_t lane = (first + j) * s->groups_of_set + group % s->groups_of_set;
        to[lane / s->lanes * s->n_segments * s->lanes + lane % s->lanes] = v[j];
    }
}

/* Scales, offsets and sums of panel i of a group of the block. */
static void make_facts(const struct qni_op *op, const struct qni_groups_shape *s,
                       qn_strategy strategy, int64_t group, int64_t i, int64_t panel,
                       const struct qni_values *values, const struct qni_groups_weights *to)
{
    const qn_packed *w = op->w[0];
    const struct qni_packed_head *head = w->head;
    const struct qni_cut cut = qni_cut_of(head, qni_conv_reads(strategy));
    const int64_t per_group = qni_cut_per_group(&cut), first = i * QNI_PANEL;
    const int64_t set = group / s->groups_of_set * s->vectors * s->n_segments * s->lanes;
    const int32_t *const sums = qni_section(w, QNI_SECTION_SUMS);
    for (int64_t q = 0; q < s->n_segments; q++) {
        const int64_t at = (panel * head->n_groups + q / per_group) * QNI_PANEL;
        const int64_t where = set + q * s->lanes;
        qni_floats16 fact;
        qni_read_lanes(qni_section(w, QNI_SECTION_SCALE), head->scale_dtype, at, &fact);
        fact /= values->times; /* exact: by 1 or 2 */
        put(op, s, group, first, &fact, to->scale + where);
        if (to->offset != NULL) {
            qni_read_lanes(qni_section(w, QNI_SECTION_OFFSET), head->scale_dtype, at, &fact);
            put(op, s, group, first, &fact, to->offset + where);
        }
        if (to->sums != NULL) {
            qni_codes16 sum;
            memcpy(&sum, sums + (panel * head->n_segments + q) * QNI_PANEL, sizeof sum);
            fact = __builtin_convertvector(sum, qni_floats16);
            put(op, s, group, first, &fact, to->sums + where);
        }
    }
}

/* Scales and offsets of a panel as floats. */
static void read_rows(const qn_packed *w, int64_t panel, float *scale, float *offset)
{
    const struct qni_packed_head *head = w->head;
    for (int64_t i = 0; i < head->n_groups; i++) {
        const int64_t at = (panel * head->n_groups + i) * QNI_PANEL;
        qni_read_scales(qni_section(w, QNI_SECTION_SCALE), head->scale_dtype, at,
                        scale + i * QNI_PANEL);
        if (offset != NULL)
            qni_read_scales(qni_section(w, QNI_SECTION_OFFSET), head->scale_dtype, at,
                            offset + i * QNI_PANEL);
    }
}

static void forget(const struct qni_groups_shape *s, const struct qni_groups_weights *to)
{
    const size_t lanes = (size_t)(s->block * s->vectors * s->lanes);
    const size_t facts = lanes * (size_t)s->n_segments * sizeof(float);
    memset(to->w, 0, lanes * (size_t)s->positions * s->element);
    if (to->scale != NULL)
        memset(to->scale, 0, facts);
    if (to->offset != NULL)
        memset(to->offset, 0, facts);
    if (to->sums != NULL)
        memset(to->sums, 0, facts);
}

/* What helpers make of codes, of weights that are floats. */
static void put_floats(const struct qni_groups_panel *p, qn_dtype floats, int64_t lanes)
{
    const size_t step = qni_float_step(floats);
    for (int64_t v = 0; v < p->vectors; v++)
        for (int64_t i = 0; i < p->k; i++) {
            const struct qni_groups_place *const place = &p->places[i];
            float *const to = p->to + (v * p->k + place->at) * lanes;
            for (int64_t j = 0; j < lanes; j++) {
                const size_t output = (size_t)(v * lanes + j / p->groups);
                if (j % p->groups == p->group)
                    to[j] = place->prescale *
                            qni_load_float(p->codes + place->bytes + output * step, floats, 0);
                else if (p->group == 0)
                    to[j] = 0.0f;
            }
        }
}

void qni_groups_weights_make(const struct qni_op *op, const struct qni_groups_shape *s,
                             const struct qni_conv_kernel *kernel,
                             const struct qni_groups_place *places, int64_t block,
                             const struct qni_groups_weights *to)
{
    const struct qni_conv *c = &op->conv;
    const qn_packed *w = op->w[0];
    const struct qni_packed_head *head = w->head;
    const bool is_float = kernel->strategy == QN_STRATEGY_FLOAT;
    const bool has_offset = head->section[QNI_SECTION_OFFSET].bytes != 0;
    const struct qni_layout *layout = qni_layout_find(head->layout);
    const struct qni_values values = qni_values_of(w, layout, is_float);
    const int64_t panels = head->panels / c->groups;
    const size_t panel_bytes = (size_t)head->units * qni_layout_unit_bytes(layout->layout);
    float *const offset = is_float && has_offset ? to->rows + head->n_groups * QNI_PANEL : NULL;
    int64_t first;
    const int64_t n = qni_groups_of_block(op, s, block, &first);
    if (!s->is_dense)
        forget(s, to); /* lanes of no output */
    for (int64_t g = 0; g < n; g++)
        for (int64_t i = 0; i < panels; i++) {
            const int64_t panel = (first + g) * panels + i, per_panel = QNI_PANEL / s->lanes;
            const int64_t left = qni_ceil_div(c->co - i * QNI_PANEL, s->lanes);
            const int64_t vector = g / s->groups_of_set * s->vectors + i * per_panel;
            const struct qni_groups_panel job = {
                .codes = (const uint8_t *)qni_section(w, QNI_SECTION_CODES) +
                         (size_t)panel * panel_bytes,
                .code_bits = layout->code_bits,
                .table = values.table,
                .bias = values.bias,
                .times = values.times,
                .places = places,
                .k = op->k,
                .has_prescale = head->section[QNI_SECTION_PRESCALE].bytes != 0,
                .scale = is_float ? to->rows : NULL,
                .offset = offset,
                .vectors = s->groups_of_set > 1 ? 1 : qni_min(per_panel, left),
                .groups = s->groups_of_set,
                .group = g % s->groups_of_set,
                .ci = c->ci,
                .in_squares = s->in_squares,
                .to = (float *)(void *)((uint8_t *)to->w +
                                        (size_t)(vector * s->positions * s->lanes) * s->element),
            };
            if (layout->floats != 0) {
                put_floats(&job, layout->floats, s->lanes);
                continue;
            }
            if (is_float)
                read_rows(w, panel, to->rows, offset);
            else
                make_facts(op, s, kernel->strategy, g, i, panel, &values, to);
            kernel->helpers.groups->panel(&job);
        }
}
