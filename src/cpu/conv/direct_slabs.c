/* SPDX-License-Identifier: Apache-2.0 */
/* Groups side by side: direct_slabs.h. */
#include "direct_slabs.h"

#include <string.h>

#include "../../base/compiler.h"
#include "../layouts.h"

int64_t qni_even_steps(int64_t run)
{
    const int64_t steps = qni_ceil_div(run, QNI_DIRECT_STEP);
    return run % (4 * steps) == 0 ? steps : 0;
}

/* Groups apart instead, if these slabs have more products. */
static void part_groups(const struct qni_op *op, struct qni_slabs *s)
{
    enum { OUTPUTS = 32 };
    const struct qni_conv *c = &op->conv;
    const int64_t taps = (int64_t)c->kh * c->kw, run = c->dilation[1] == 1 ? c->kw : 1;
    const int64_t steps = taps / run * qni_even_steps(run * c->ci);
    const int64_t now = taps * (s->pixel / QNI_DIRECT_STEP) * qni_ceil_div(s->outputs, OUTPUTS);
    if (c->groups == 1 || c->co != OUTPUTS || steps == 0 || steps * s->groups >= now)
        return;
    const int64_t block = 2 * (int64_t)qni_slab_panel_bytes(op);
    s->is_apart = true;
    s->groups = qni_max(1, qni_min(c->groups, QNI_APART_BYTES / block));
    s->count = qni_ceil_div(c->groups, s->groups);
    s->channels = s->groups * c->ci;
    s->outputs = s->groups * c->co;
    s->pixel = c->ci;
}

struct qni_slabs qni_slabs_of(const struct qni_op *op)
{
    const struct qni_conv *c = &op->conv;
    const int64_t most = qni_max(1, qni_min(c->groups, QNI_DIRECT_STEP / qni_max(c->ci, 1)));
    struct qni_slabs s = {.count = qni_ceil_div(c->groups, most)};
    s.groups = qni_ceil_div(c->groups, s.count);
    s.count = qni_ceil_div(c->groups, s.groups);
    s.channels = s.groups * c->ci;
    s.outputs = s.groups * c->co;
    s.pixel = (int64_t)qni_round_up((size_t)s.channels, QNI_DIRECT_STEP);
    part_groups(op, &s);
    return s;
}

bool qni_slabs_move(const struct qni_op *op)
{
    return op->conv.groups > 1 && op->conv.ci % QNI_DIRECT_STEP != 0;
}

struct qni_slab qni_slab_at(const struct qni_op *op, const struct qni_slabs *slabs, int64_t index)
{
    const struct qni_conv *c = &op->conv;
    struct qni_slab s = {.group = index * slabs->groups};
    s.groups = qni_min(slabs->groups, c->groups - s.group);
    s.channel = s.group * c->ci;
    s.channels = s.groups * c->ci;
    s.output = s.group * c->co;
    s.outputs = s.groups * c->co;
    return s;
}

size_t qni_slab_panel_bytes(const struct qni_op *op)
{
    return qni_round_up((size_t)op->w[0]->head->units, 2) * 512;
}

/* Outputs of one group, neighbours in both panels: `lanes` of them. */
struct move {
    const uint8_t *from;                         /* lane of the first one */
    uint8_t *to;                                 /* the same, at the group's first channel */
    int64_t taps, channels, pixel, lanes, shift; /* shift: of that channel in its dword */
};

/* Four positions at a time: a group begins at a whole dword, and so does every tap of it. */
QNI_TEMPLATE void move_dwords(const struct move *m, const size_t bytes)
{
    const uint8_t *from = m->from;
    uint8_t *to = m->to;
    for (int64_t t = 0; t < m->taps; t++, to += 16 * m->pixel)
        for (int64_t i = 0; i < m->channels; i += 4, from += 64)
            memcpy(to + 16 * i, from, bytes);
}

static void move_bytes(const struct move *m)
{
    int64_t p = 0;
    for (int64_t t = 0; t < m->taps; t++)
        for (int64_t i = 0; i < m->channels; i++, p++) {
            const int64_t q = m->shift + i;
            uint8_t *const to = m->to + 16 * t * m->pixel + q / 4 * 64 + q % 4;
            for (int64_t lane = 0; lane < m->lanes; lane++)
                to[4 * lane] = m->from[p / 4 * 64 + p % 4 + 4 * lane];
        }
}

void qni_slab_panel(const struct qni_op *op, const struct qni_slabs *slabs,
                    const struct qni_slab *slab, int64_t panel,
                    const struct qni_slab_weights *weights, uint8_t *to)
{
    const struct qni_conv *c = &op->conv;
    const qn_packed *w = op->w[0];
    const uint8_t *const codes = qni_section(w, QNI_SECTION_CODES);
    const size_t panel_bytes = (size_t)w->head->units * qni_layout_unit_bytes(weights->layout);
    const int64_t taps = (int64_t)c->kh * c->kw;
    const int64_t end = qni_min(QNI_PANEL * (panel + 1), slab->outputs);
    memset(to, 0, (size_t)(16 * taps * slabs->pixel));
    for (int64_t output = QNI_PANEL * panel, n; output < end; output += n) {
        const int64_t lane = qni_slab_lane(op, slab, output), of_group = output % c->co;
        const int64_t channel = output / c->co * c->ci;
        n = qni_min(end - output, qni_min(c->co - of_group, QNI_PANEL - lane % QNI_PANEL));
        weights->unpack(codes + (size_t)(lane / QNI_PANEL) * panel_bytes, w->head->units,
                        weights->panel);
        const struct move m = {
            .from = weights->panel + 4 * (lane % QNI_PANEL),
            .to = to + channel / 4 * 64 + 4 * (output % QNI_PANEL),
            .taps = taps,
            .channels = c->ci,
            .pixel = slabs->pixel,
            .lanes = n,
            .shift = channel % 4,
        };
        if (c->ci % 4 != 0)
            move_bytes(&m);
        else if (n == 16)
            move_dwords(&m, 64);
        else if (n == 8)
            move_dwords(&m, 32);
        else if (n == 4)
            move_dwords(&m, 16);
        else
            move_dwords(&m, 4 * (size_t)n);
    }
}
