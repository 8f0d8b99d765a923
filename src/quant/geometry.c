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

int64_t qni_runs_make(const qn_format *format, const struct qni_cut *cut, int64_t ci, int64_t taps,
                      struct qni_run *runs)
{
    const bool by_channel = format->blocks == QN_BLOCKS_CHANNELS && cut->n_groups > 1;
    struct qni_run last = {0, 0, 0};
    int64_t n = 0;
    for (int64_t g = 0; g < cut->n_groups; g++) {
        const int64_t len = g + 1 == cut->n_groups ? cut->last_len : cut->group_len;
        const int64_t pieces = by_channel ? taps : 1;
        for (int64_t t = 0; t < pieces && len > 0; t++) {
            struct qni_run r = {g * cut->group_units * QNI_UNIT + t * (len / pieces),
                                g * cut->group_len, len / pieces};
            if (by_channel)
                r.src = t * ci + g * format->group;
            /* A run that goes on where the last one ended is part of it. */
            const bool joins =
                n > 0 && last.dst + last.len == r.dst && last.src + last.len == r.src;
            n += !joins;
            last = joins ? (struct qni_run){last.dst, last.src, last.len + r.len} : r;
            if (runs != NULL)
                runs[n - 1] = last;
        }
    }
    return n;
}

void qni_counts_make(const struct qni_cut *cut, int32_t *counts)
{
    const int64_t per_group = qni_cut_per_group(cut);
    for (int64_t s = 0; s < cut->n_segments; s++)
        counts[s] = (int32_t)qni_cut_count(cut, s / per_group, s % per_group * cut->segment_units,
                                           cut->segment_units);
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
