/* SPDX-License-Identifier: Apache-2.0 */
/* The geometry of packed weights: which position, segment and output lies where. Everything follows
 * from the head alone, and is the same for every backend. */
#ifndef QNI_QUANT_GEOMETRY_H
#define QNI_QUANT_GEOMETRY_H

#include "../base/size.h"
#include "cut.h"
#include "packed.h"

/* Groups, units and segments along k, the segments having segment_units. With blocks of channels
 * the packed order is (block, tap, channel), so that a group is a stretch there, too. */
struct qni_cut qni_cut_make(const qn_format *format, int64_t k, int64_t ci, int64_t n_groups,
                            int64_t segment_units);
/* The cut of packed weights in segments of int8-block (by_block), or of int8-row. Its units are
 * those that groups need: a layout may have padding behind them. */
struct qni_cut qni_packed_cut(const struct qni_packed_head *head, bool by_block);

/* The output in a row of codes of a panel, or -1: every convolution group begins a new panel, but
 * where the groups have one input channel. */
static inline int64_t qni_output_of(const struct qni_packed_head *head, int64_t panel, int64_t row)
{
    if (head->ci == 1 || head->conv_groups == 1) {
        const int64_t j = panel * QNI_PANEL + row;
        return j < head->n ? j : -1;
    }
    const int64_t co = head->n / head->conv_groups, panels = qni_ceil_div(co, QNI_PANEL);
    const int64_t j = panel % panels * QNI_PANEL + row;
    return j < co ? panel / panels * co + j : -1;
}

/* The panel that holds an output, and its row in the codes of that panel. */
static inline int64_t qni_panel_of(const struct qni_packed_head *head, int64_t output, int64_t *row)
{
    const int64_t one = head->ci == 1 || head->conv_groups == 1;
    const int64_t co = one ? head->n : head->n / head->conv_groups;
    const int64_t panels = qni_ceil_div(co, QNI_PANEL);
    *row = output % co % QNI_PANEL;
    return output / co * panels + output % co / QNI_PANEL;
}

/* The runs of a weight: runs may be NULL to count them. The last group of a row is visited last. */
int64_t qni_runs_make(const qn_format *format, const struct qni_cut *cut, int64_t ci, int64_t taps,
                      struct qni_run *runs);
/* The first of head->n_runs runs that is not what the head's shape and format make; `wanted` is
 * what they make there, of length 0 where there are too many. n_runs: there are too few. -1: all
 * are. Allocates nothing. */
int64_t qni_runs_differ(const struct qni_packed_head *head, const struct qni_run *runs,
                        struct qni_run *wanted);

/* Real positions of a segment; counts [n_segments]: of each. */
int32_t qni_count_of(const struct qni_cut *cut, int64_t segment);
void qni_counts_make(const struct qni_cut *cut, int32_t *counts);

/* A codebook whose values, or those of E2M1 doubled, are integers that fit int8: fills table8 (n
 * values, the rest 0) and returns 1, or 2 if doubled; 0 if it is no such codebook. */
int32_t qni_table_integers(qn_code code, const float *table, int32_t n, int8_t table8[16]);

#endif
