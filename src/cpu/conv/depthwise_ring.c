/* SPDX-License-Identifier: Apache-2.0 */
/* How the work of a ring is cut: how long it is, what an item is, and where a thread's scratch has
 * what (cut.h). */
#include "depthwise.h"

/* Outputs along a row: some 3 to 70 KiB of ring for 3 x 3 taps. */
enum { LANE_TILE = 32, PIXEL_TILE = 256 };

/* ---- the shape of the work ------------------------------------------------------------------- */

/* The most that the bases of two taps of a phase differ. */
static int64_t reach(const struct qni_axis *a)
{
    const int64_t far = (int64_t)(a->taps - 1) * a->dilation;
    return a->transposed ? qni_ceil_div(far, a->stride) : far;
}

static struct qni_ring ring_of(const struct qni_op *op, bool by_pixel)
{
    const struct qni_axis y = qni_conv_axis(op, 0), x = qni_conv_axis(op, 1);
    const int64_t outputs = qni_axis_phase(&x, 0).count, advance = qni_axis_advance(&x);
    struct qni_ring r = {.by_pixel = by_pixel};
    r.tile = qni_min(outputs, by_pixel ? PIXEL_TILE : LANE_TILE);
    r.tile = by_pixel ? (int64_t)qni_round_up((size_t)r.tile, QNI_DEPTHWISE_LANES) : r.tile;
    const int64_t columns = reach(&x) + advance * (r.tile - 1) + 1;
    r.is_apart = columns > x.taps * r.tile;
    r.vector = by_pixel ? 1 : QNI_LANE_BLOCK;
    r.strip_columns = r.is_apart ? r.tile : by_pixel ? qni_ceil_div(columns, advance) : columns;
    r.n_strips = r.is_apart ? x.taps : by_pixel ? advance : 1;
    r.strip = r.strip_columns * r.vector;
    r.is_cyclic = reach(&y) + 1 <= 2 * (int64_t)y.taps;
    r.n_slots = r.is_cyclic ? reach(&y) + 1 : y.taps;
    return r;
}

static struct qni_ring_places places_of(const struct qni_op *op, const struct qni_ring *r)
{
    const struct qni_packed_head *head = op->w[0]->head;
    const size_t panels = QNI_LANE_BLOCK / QNI_PANEL;
    const size_t line = (size_t)qni_max(r->tile, QNI_LANE_BLOCK) * sizeof(float);
    const size_t vectors = r->by_pixel ? 1 : QNI_LANE_BLOCK;
    struct qni_ring_places p;
    size_t at = 0;
    p.in = at;
    at += qni_round_up((size_t)head->k * sizeof(float *), 64);
    p.rows = at;
    at += qni_round_up((size_t)head->kh * sizeof(float *), 64);
    p.prescale = at;
    at += qni_round_up((size_t)head->k * sizeof(float), 64);
    p.tags = at;
    at += qni_round_up((size_t)r->n_slots * sizeof(int64_t), 64);
    p.panels = at;
    at += panels * qni_lane_weights_bytes(head);
    p.one = at;
    at += qni_lane_weights_bytes(head);
    p.ring = at;
    at += (size_t)((r->n_slots + 1) * qni_ring_slot(r)) * sizeof(float);
    p.c = at;
    at += qni_round_up((size_t)r->tile * vectors * sizeof(float), 64);
    for (int32_t i = 0; i < 4; i++, at += qni_round_up(line, 64))
        p.line[i] = at;
    p.end = at;
    return p;
}

/* Are there enough pixels next to each other to fill the lanes? */
static bool is_by_pixel(const struct qni_op *op)
{
    const struct qni_axis x = qni_conv_axis(op, 1);
    return op->conv.xs[1] != 1 && qni_axis_phase(&x, 0).count >= 2 * QNI_DEPTHWISE_LANES;
}

/* Bands are high enough that reading the rows between them twice does not matter, and there are
 * a few items for every thread where the work allows it. The first phase has the most rows. */
struct qni_ring_cut qni_ring_cut_of(const struct qni_op *op, int32_t n_threads)
{
    const struct qni_axis y = qni_conv_axis(op, 0);
    const int64_t rows = qni_axis_phase(&y, 0).count;
    struct qni_ring_cut c = {.ring = ring_of(op, is_by_pixel(op))};
    c.places = places_of(op, &c.ring);
    c.block = c.ring.by_pixel ? QNI_PANEL : QNI_LANE_BLOCK;
    c.n_blocks = qni_ceil_div(op->n, c.block);
    const int64_t blocks = qni_max(1, op->conv.batch * c.n_blocks);
    const int64_t least = qni_min(rows, 4 * (int64_t)y.taps);
    c.band = qni_max(qni_ceil_div(rows, qni_ceil_div(4 * (int64_t)n_threads, blocks)),
                     qni_max(least, 1));
    return c;
}
