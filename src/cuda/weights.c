/* SPDX-License-Identifier: Apache-2.0 */
/* A head as the plain struct that crosses to the kernels: weights.h. Packing has seen to it that
 * every number fits (qni_cuda_head_fits). */
#include "weights.h"

#include <string.h>

#include "layouts.h"

static size_t place_of(const struct qni_packed_head *head, int32_t section)
{
    return head->section[section].bytes == 0 ? 0 : (size_t)head->section[section].offset;
}

static void describe_shift(const struct qni_packed_head *h, struct qni_cuda_weights *w)
{
    w->shift = QNI_CUDA_SHIFT_NONE;
    if (qni_packed_has_offsets(h)) {
        w->shift = QNI_CUDA_SHIFT_OFFSET;
        w->offset = place_of(h, QNI_SECTION_OFFSET);
    } else if (h->format.shift == QN_SHIFT_ZERO) {
        w->shift = QNI_CUDA_SHIFT_ZERO;
        w->zero = place_of(h, QNI_SECTION_ZERO);
    }
}

static void describe_cut(const struct qni_packed_head *h, int32_t reads, struct qni_cuda_weights *w)
{
    const bool by_block = reads == QNI_CUDA_READS_Q8B;
    const bool own_sums = !by_block && h->section[QNI_SECTION_GROUP_SUMS].bytes != 0;
    const struct qni_cut cut = qni_packed_cut(h, by_block);
    w->sums = place_of(h, own_sums ? QNI_SECTION_GROUP_SUMS : QNI_SECTION_SUMS);
    w->counts = place_of(h, QNI_SECTION_COUNTS);
    w->units = (int32_t)h->units;
    w->n_groups = (int32_t)cut.n_groups;
    w->group_units = (int32_t)cut.group_units;
    w->n_segments = (int32_t)cut.n_segments;
    w->segment_units = (int32_t)cut.segment_units;
    w->segments_per_group = (int32_t)qni_cut_per_group(&cut);
    if (qni_cuda_reads_e4m3(reads)) { /* sums leave the tensor cores every 128 positions */
        w->segment_units = 4;
        w->n_segments = (w->units + 3) / 4;
        w->segments_per_group = (w->n_groups > 1 ? w->group_units + 3 : w->units + 3) / 4;
    }
}

struct qni_cuda_weights qni_cuda_weights_of(const struct qn_packed *packed, int32_t reads)
{
    const struct qni_packed_head *h = packed->head;
    const struct qni_layout *layout = qni_packing_find(&qni_cuda_packing, h->layout);
    const bool is_one = h->ci == 1 || h->conv_groups == 1;
    struct qni_cuda_weights w;
    memset(&w, 0, sizeof w);
    w.blob = packed->blob;
    w.codes = place_of(h, QNI_SECTION_CODES);
    w.scale = place_of(h, QNI_SECTION_SCALE);
    w.table = place_of(h, QNI_SECTION_TABLE);
    w.layout = layout->layout;
    w.scale_is_f16 = h->scale_dtype == QN_F16;
    describe_shift(h, &w);
    describe_cut(h, reads, &w);
    if (layout->is_table && layout->code_bits == 4 && packed->table != NULL) {
        int8_t table8[16];
        const int32_t times =
            qni_table_integers(h->format.code, packed->table, 1 << h->format.bits, table8);
        if (times != 0)
            memcpy(w.table8, table8, sizeof table8);
        w.has_table8 = times != 0;
        w.table8_doubled = times == 2;
        w.table_is_short = h->format.code == QN_CODE_E2M1 || h->format.code == QN_CODE_IQ4_NL;
    }
    w.parts = is_one ? 1 : h->conv_groups;
    w.panels = (int32_t)(h->panels / w.parts);
    w.n = (int32_t)(h->n / w.parts);
    return w;
}
