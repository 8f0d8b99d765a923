/* SPDX-License-Identifier: Apache-2.0 */
/* The LEVELS section of packed weights: what scales and minima were in the canonical form, where
 * SCALE and OFFSET hold only what products need of it. Panels one after the other; in a panel
 *     two levels   each super-block: super_scale [16], super_min [16] in the format's type of
 *                  scales; then each of its groups: sub_scale [16], sub_min [16], a byte each; of
 *                  at most 4 bits both in one byte, the scale in its low half
 *     minima       each group: the minimum [16] in f16 or f32 (head.zero_dtype)
 * super_min and sub_min only where there are minima. The 16 are lanes, as in SCALE. */
#ifndef QNI_QUANT_LEVELS_H
#define QNI_QUANT_LEVELS_H

#include "canonical.h"
#include "packed.h"

/* The numbers of both levels that one group of an output has. */
struct qni_levels {
    float super_scale, super_min;
    int16_t sub_scale, sub_min;
    float min; /* the minimum that products of these or the section itself give */
};

/* Does the section have two levels, or minima? */
bool qni_levels_are_two(const struct qni_packed_head *head);
/* Bytes of a panel. */
size_t qni_levels_panel_bytes(const struct qni_packed_head *head, bool two);

/* All groups of lane `lane` of a panel; row -1: an output that is not there. */
void qni_levels_store(const struct qni_packed_head *head, const struct qn_weight *w, int64_t row,
                      uint8_t *panel, int64_t lane);
struct qni_levels qni_levels_load(const struct qni_packed_head *head, const uint8_t *panel,
                                  int64_t group, int64_t lane);

#endif
