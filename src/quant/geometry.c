/* SPDX-License-Identifier: Apache-2.0 */
/* The geometry of packed weights: geometry.h. */
#include "geometry.h"

#include <string.h>

struct qni_cut qni_cut_make(const qn_format *format, int64_t k, int64_t ci, int64_t n_groups,
                            int64_t segment_units)
{
    struct qni_cut c;
    c.k = k;
    c.n_groups = n_groups;
    c.group_len = c.last_len = k;
    if (format->group > 0 && n_groups > 1) {
        const bool by_channel = format->blocks == QN_BLOCKS_CHANNELS;
        const int64_t taps = by_channel ? k / ci : 1;
        c.group_len = format->group * taps;
        c.last_len = k - (n_groups - 1) * c.group_len;
    }
    c.group_units = qni_max(1, qni_ceil_div(c.group_len, QNI_UNIT));
    const int64_t last_units = qni_ceil_div(c.last_len, QNI_UNIT);
    c.units = n_groups == 0 ? 0 : (n_groups - 1) * c.group_units + last_units;
    c.segment_units = qni_max(1, qni_min(segment_units, c.group_units));
    c.n_segments = n_groups == 0 ? 0
                                 : (n_groups - 1) * qni_ceil_div(c.group_units, c.segment_units) +
                                       qni_ceil_div(last_units, c.segment_units);
    return c;
}

struct qni_cut qni_packed_cut(const struct qni_packed_head *head, bool by_block)
{
    const int64_t segment = by_block ? head->segment_units : (int64_t)QNI_ROW_SEGMENT_UNITS;
    return qni_cut_make(&head->format, head->k, head->ci, head->n_groups, segment);
}

/* The pieces of a row in packed order: a group, or a tap of a block of channels. */
struct walk {
    const qn_format *format;
    const struct qni_cut *cut;
    int64_t ci, pieces; /* of a group */
    int64_t g, t;       /* the next piece */
};

static struct walk walk_make(const qn_format *format, const struct qni_cut *cut, int64_t ci,
                             int64_t taps)
{
    const bool by_channel = format->blocks == QN_BLOCKS_CHANNELS && cut->n_groups > 1;
    return (struct walk){format, cut, ci, by_channel ? taps : 1, 0, 0};
}

/* Nothing is at the end. */
static struct qni_run next_piece(struct walk *w)
{
    const struct qni_cut *const cut = w->cut;
    if (w->g >= cut->n_groups)
        return (struct qni_run){0, 0, 0};
    const int64_t len = (w->g + 1 == cut->n_groups ? cut->last_len : cut->group_len) / w->pieces;
    struct qni_run piece = {w->g * cut->group_units * QNI_UNIT + w->t * len, w->g * cut->group_len,
                            len};
    if (w->pieces > 1)
        piece.src = w->t * w->ci + w->g * w->format->group;
    w->t++;
    /* Groups of whole units are one run. */
    if (w->pieces == 1 && cut->group_len % QNI_UNIT == 0) {
        piece.len = cut->k;
        w->g = cut->n_groups;
    } else if (w->t == w->pieces) {
        w->t = 0;
        w->g++;
    }
    return piece;
}

/* The next run: a piece that goes on where the last one ended is part of it. */
static bool next_run(struct walk *w, struct qni_run *run)
{
    *run = next_piece(w);
    for (;;) {
        struct walk ahead = *w;
        const struct qni_run piece = next_piece(&ahead);
        if (piece.len == 0 || run->dst + run->len != piece.dst || run->src + run->len != piece.src)
            break;
        run->len += piece.len;
        *w = ahead;
    }
    return run->len > 0;
}

int64_t qni_runs_make(const qn_format *format, const struct qni_cut *cut, int64_t ci, int64_t taps,
                      struct qni_run *runs)
{
    struct walk walk = walk_make(format, cut, ci, taps);
    struct qni_run run;
    int64_t n = 0;
    while (next_run(&walk, &run)) {
        if (runs != NULL)
            runs[n] = run;
        n++;
    }
    return n;
}

int64_t qni_runs_differ(const struct qni_packed_head *head, const struct qni_run *runs,
                        struct qni_run *wanted)
{
    const struct qni_cut cut = qni_packed_cut(head, true);
    struct walk walk = walk_make(&head->format, &cut, head->ci, (int64_t)head->kh * head->kw);
    for (int64_t i = 0; i < head->n_runs; i++)
        if (!next_run(&walk, wanted) || runs[i].dst != wanted->dst || runs[i].src != wanted->src ||
            runs[i].len != wanted->len)
            return i;
    return next_run(&walk, wanted) ? head->n_runs : -1;
}

int32_t qni_count_of(const struct qni_cut *cut, int64_t segment)
{
    const int64_t per_group = qni_cut_per_group(cut);
    return (int32_t)qni_cut_count(cut, segment / per_group,
                                  segment % per_group * cut->segment_units, cut->segment_units);
}

void qni_counts_make(const struct qni_cut *cut, int32_t *counts)
{
    for (int64_t s = 0; s < cut->n_segments; s++)
        counts[s] = qni_count_of(cut, s);
}

int32_t qni_table_integers(qn_code code, const float *table, int32_t n, int8_t table8[16])
{
    const int32_t times = code == QN_CODE_E2M1 ? 2 : 1;
    if (n > 16)
        return 0;
    memset(table8, 0, 16);
    for (int32_t i = 0; i < n; i++) {
        const float v = table[i] * (float)times;
        if (!(v >= -128.0f && v <= 127.0f) || v != (float)(int32_t)v)
            return 0;
        table8[i] = (int8_t)v;
    }
    return times;
}
