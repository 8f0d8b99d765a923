/* SPDX-License-Identifier: Apache-2.0 */
/* Taps and weights of a depthwise convolution for its kernels: the order of the packed weights
 * kept, codes expanded to 16 lanes of floats. A panel of a 3 x 3 convolution has 144 codes, so
 * this is done anew for each item. */
#include <string.h>

#include "../../base/compiler.h"
#include "conv.h"
#include "depthwise.h"

/* ---- taps ------------------------------------------------------------------------------------ */

size_t qni_tap_list_bytes(const struct qni_packed_head *head)
{
    return qni_round_up((size_t)head->k * sizeof(struct qni_tap), 64) +
           qni_round_up((size_t)(head->units + 1) * sizeof(int32_t), 64);
}

static struct qni_tap tap_of(const struct qni_op *op, const struct qni_axis axis[2],
                             const struct qni_phase phase[2], int64_t position, int64_t canonical)
{
    const struct qni_layout *layout = qni_layout_find(op->w[0]->head->layout);
    const int32_t *perm = qni_section(op->w[0], QNI_SECTION_PERM);
    const float *prescale = qni_section(op->w[0], QNI_SECTION_PRESCALE);
    const int64_t column = perm != NULL ? perm[canonical] : canonical;
    struct qni_tap tap = {.position = position,
                          .code = qni_code_place(position, layout),
                          .prescale = prescale != NULL ? prescale[column] : 1.0f};
    tap.at[0] = (int32_t)(column / op->conv.kw);
    tap.at[1] = (int32_t)(column % op->conv.kw);
    const bool y = qni_axis_base(&axis[0], &phase[0], tap.at[0], &tap.base[0]);
    const bool x = qni_axis_base(&axis[1], &phase[1], tap.at[1], &tap.base[1]);
    tap.is_live = y && x;
    return tap;
}

static void extend(struct qni_tap_list *list, const struct qni_tap *tap)
{
    for (int32_t i = 0; i < 2; i++) {
        list->lo[i] = qni_min(list->lo[i], tap->base[i]);
        list->hi[i] = qni_max(list->hi[i], tap->base[i]);
    }
}

struct qni_tap_list qni_tap_list_make(const struct qni_op *op, const struct qni_axis axis[2],
                                      const struct qni_phase phase[2], qn_strategy strategy,
                                      bool keep_dead, void *memory)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const struct qni_run *runs = qni_section(op->w[0], QNI_SECTION_RUNS);
    const struct qni_cut cut = qni_cut_of(head, qni_conv_reads(strategy));
    const size_t taps_bytes = qni_round_up((size_t)head->k * sizeof(struct qni_tap), 64);
    struct qni_tap_list list = {
        .taps = memory,
        .segments = (int32_t *)((uint8_t *)memory + taps_bytes),
        .lo = {INT64_MAX, INT64_MAX},
        .hi = {INT64_MIN, INT64_MIN},
    };
    for (int32_t r = 0; r < head->n_runs; r++)
        for (int64_t i = 0; i < runs[r].len; i++) {
            const struct qni_tap tap = tap_of(op, axis, phase, runs[r].dst + i, runs[r].src + i);
            while (list.n_segments <= qni_segment_of(&cut, tap.position))
                list.segments[list.n_segments++] = list.n_taps;
            if (!tap.is_live && !keep_dead)
                continue;
            if (tap.is_live)
                extend(&list, &tap);
            list.taps[list.n_taps++] = tap;
        }
    list.segments[list.n_segments] = list.n_taps;
    return list;
}

/* ---- weights --------------------------------------------------------------------------------- */

size_t qni_lane_weights_bytes(const struct qni_packed_head *head)
{
    return (size_t)(head->k + 3 * head->units) * QNI_PANEL * sizeof(float);
}

struct qni_lane_weights qni_lane_weights_at(const struct qni_packed_head *head, bool has_offset,
                                            void *memory)
{
    struct qni_lane_weights w;
    w.w = memory;
    w.scale = w.w + head->k * QNI_PANEL;
    w.sums = w.scale + head->units * QNI_PANEL;
    w.offset = has_offset && head->section[QNI_SECTION_OFFSET].bytes != 0
                   ? w.sums + head->units * QNI_PANEL
                   : NULL;
    return w;
}

static void expand_segment(const qn_packed *w, int64_t panel, int64_t segment, int64_t group,
                           const struct qni_values *v, qn_strategy strategy,
                           struct qni_lane_weights *out)
{
    const struct qni_packed_head *head = w->head;
    const int64_t at = (panel * head->n_groups + group) * QNI_PANEL;
    float *scale = out->scale + segment * QNI_PANEL;
    qni_read_scales(qni_section(w, QNI_SECTION_SCALE), head->scale_dtype, at, scale);
    for (int32_t j = 0; j < QNI_PANEL; j++)
        scale[j] /= v->times; /* exact: by 1 or 2 */
    if (out->offset != NULL)
        qni_read_scales(qni_section(w, QNI_SECTION_OFFSET), head->scale_dtype, at,
                        out->offset + segment * QNI_PANEL);
    const int32_t *sums = qni_section(w, QNI_SECTION_SUMS);
    if (strategy == QN_STRATEGY_INT8_BLOCK && sums != NULL)
        for (int32_t j = 0; j < QNI_PANEL; j++)
            out->sums[segment * QNI_PANEL + j] =
                (float)sums[(panel * head->n_segments + segment) * QNI_PANEL + j];
}

/* Zero points of 8 bits of a panel, of one group. */
static void read_zeros(const qn_packed *w, int64_t panel, qni_floats16 *out)
{
    const int8_t *const zero = (const int8_t *)qni_section(w, QNI_SECTION_ZERO) + panel * QNI_PANEL;
    float v[QNI_PANEL];
    for (int32_t j = 0; j < QNI_PANEL; j++)
        v[j] = (float)zero[j];
    memcpy(out, v, sizeof v);
}

void qni_lane_weights_expand(const qn_packed *w, int64_t panel, const struct qni_tap_list *list,
                             qn_strategy strategy, struct qni_lane_weights *out)
{
    const struct qni_packed_head *head = w->head;
    const struct qni_layout *layout = qni_layout_find(head->layout);
    const struct qni_values v = qni_values_of(w, layout, strategy == QN_STRATEGY_FLOAT);
    const struct qni_cut cut = qni_cut_of(head, qni_conv_reads(strategy));
    const int64_t per_group = qni_cut_per_group(&cut);
    const uint8_t *codes = (const uint8_t *)qni_section(w, QNI_SECTION_CODES) +
                           (size_t)(panel * head->units) * qni_layout_unit_bytes(layout->layout);
    const bool takes_zeros = strategy == QN_STRATEGY_INT8_STATIC && out->offset == NULL &&
                             head->section[QNI_SECTION_ZERO].bytes != 0;
    qni_floats16 zero = {0};
    if (takes_zeros)
        read_zeros(w, panel, &zero);
    for (int32_t s = 0; s < list->n_segments; s++) {
        expand_segment(w, panel, s, s / per_group, &v, strategy, out);
        qni_floats16 scale, offset = {0};
        memcpy(&scale, out->scale + s * QNI_PANEL, sizeof scale);
        if (out->offset != NULL)
            memcpy(&offset, out->offset + s * QNI_PANEL, sizeof offset);
        for (int32_t t = list->segments[s]; t < list->segments[s + 1]; t++) {
            qni_floats16 value;
            qni_code_values(codes, layout->code_bits, &list->taps[t].code, &v, &value);
            if (strategy == QN_STRATEGY_FLOAT)
                value = (value * scale + offset) * list->taps[t].prescale;
            value -= zero;
            memcpy(out->w + (int64_t)t * QNI_PANEL, &value, sizeof value);
        }
    }
}

void qni_image_weights_expand(const qn_packed *w, int64_t panel, int64_t n_panels,
                              const struct qni_tap_list *list, float *out, int64_t ld,
                              float *w_scale)
{
    const struct qni_packed_head *head = w->head;
    const struct qni_layout *layout = qni_layout_find(head->layout);
    const struct qni_values v = qni_values_of(w, layout, w_scale == NULL);
    const struct qni_cut cut = qni_cut_of(head, QNI_READS_F32);
    const int64_t per_group = qni_cut_per_group(&cut);
    const size_t move = (size_t)head->units * qni_layout_unit_bytes(layout->layout);
    const uint8_t *codes = (const uint8_t *)qni_section(w, QNI_SECTION_CODES);
    const void *scales = qni_section(w, QNI_SECTION_SCALE);
    const void *offsets =
        head->section[QNI_SECTION_OFFSET].bytes == 0 ? NULL : qni_section(w, QNI_SECTION_OFFSET);
    for (int64_t i = panel; i < panel + n_panels; i++, out += QNI_PANEL)
        for (int32_t s = 0; s < list->n_segments; s++) {
            const int64_t at = (i * head->n_groups + s / per_group) * QNI_PANEL;
            qni_floats16 scale, offset = {0};
            qni_read_lanes(scales, head->scale_dtype, at, &scale);
            if (offsets != NULL)
                qni_read_lanes(offsets, head->scale_dtype, at, &offset);
            if (w_scale != NULL) {
                const qni_floats16 halved = scale / v.times; /* exact: by 1 or 2 */
                memcpy(w_scale + (i - panel) * QNI_PANEL, &halved, sizeof halved);
            }
            for (int32_t t = list->segments[s]; t < list->segments[s + 1]; t++) {
                const struct qni_tap *const tap = &list->taps[t];
                qni_floats16 value;
                qni_code_values(codes + (size_t)i * move, layout->code_bits, &tap->code, &v,
                                &value);
                if (w_scale == NULL)
                    value = (value * scale + offset) * tap->prescale;
                memcpy(out + (tap->at[0] * (int64_t)head->kw + tap->at[1]) * ld, &value,
                       sizeof value);
            }
        }
}

static void repeat(const float *from, int64_t lane, int64_t n, float *to)
{
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < QNI_PANEL; j++)
            to[i * QNI_PANEL + j] = from[i * QNI_PANEL + lane];
}

void qni_lane_weights_repeat(const struct qni_lane_weights *from, int64_t lane,
                             const struct qni_tap_list *list, struct qni_lane_weights *to)
{
    repeat(from->w, lane, list->n_taps, to->w);
    repeat(from->scale, lane, list->n_segments, to->scale);
    repeat(from->sums, lane, list->n_segments, to->sums);
    if (from->offset != NULL)
        repeat(from->offset, lane, list->n_segments, to->offset);
}
