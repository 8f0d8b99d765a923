/* SPDX-License-Identifier: Apache-2.0 */
/* Facts of the CPU layouts, and the geometry of a packed weight: which position, segment and output
 * lies where. Everything follows from the head alone. */
#ifndef QNI_CPU_LAYOUTS_H
#define QNI_CPU_LAYOUTS_H

#include "../base/size.h"
#include "../quant/packed.h"
#include "matmul/kernel.h"
#include "rows/kernel.h"

struct qni_layout {
    const char *name;
    int32_t layout;    /* QNI_LAYOUT_ */
    int32_t code_bits; /* as stored: 4 or 8 */
    const char *codes;
};

/* NULL past the end, or for an unknown name. */
const struct qni_layout *qni_layout_at(int32_t i);
const struct qni_layout *qni_layout_find(const char *name);

static inline bool qni_layout_is_table(int32_t layout)
{
    return layout == QNI_LAYOUT_T4N16 || layout == QNI_LAYOUT_T8N16;
}
/* Bytes of the codes of a unit of 32 positions x 16 outputs. */
static inline size_t qni_layout_unit_bytes(int32_t layout)
{
    return layout == QNI_LAYOUT_Q4N16 || layout == QNI_LAYOUT_T4N16 ? 256 : 512;
}

/* Positions of a segment of int8-row and int8-static: 255 * 128 * 32768 < 2^31. */
enum { QNI_ROW_SEGMENT_UNITS = 32768 / QNI_UNIT };

/* Groups, units and segments along k, the segments having segment_units. With blocks of channels
 * the packed order is (block, tap, channel), so that a group is a stretch there, too. */
struct qni_cut qni_cut_make(const qn_format *format, int64_t k, int64_t ci, int64_t n_groups,
                            int64_t segment_units);
/* The cut of packed weights for kernels that read Q8B (x_block) or anything else (groups). */
struct qni_cut qni_cut_of(const struct qni_packed_head *head, int32_t reads);

/* The output in a lane of a panel, or -1: every convolution group begins a new panel, but where the
 * groups have one input channel. */
static inline int64_t qni_output_of(const struct qni_packed_head *head, int64_t panel, int64_t lane)
{
    if (head->ci == 1 || head->conv_groups == 1) {
        const int64_t j = panel * QNI_PANEL + lane;
        return j < head->n ? j : -1;
    }
    const int64_t co = head->n / head->conv_groups, panels = qni_ceil_div(co, QNI_PANEL);
    const int64_t j = panel % panels * QNI_PANEL + lane;
    return j < co ? panel / panels * co + j : -1;
}

/* The runs of a weight: runs may be NULL to count them. The last group of a row is visited last. */
int64_t qni_runs_make(const qn_format *format, const struct qni_cut *cut, int64_t ci, int64_t taps,
                      struct qni_run *runs);

/* A codebook whose values, or those of E2M1 doubled, are integers that fit int8: fills table8 (n
 * values, the rest 0) and returns 1, or 2 if doubled; 0 if it is no such codebook. */
int32_t qni_table_integers(qn_code code, const float *table, int32_t n, int8_t table8[16]);

#endif
