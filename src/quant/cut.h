/* SPDX-License-Identifier: Apache-2.0 */
/* How a row of weights, and a row of activations with it, lies in packed order. Plain facts that
 * kernels may see, too; geometry.h works them out.
 *
 *   group 0                       group 1                 last group, may be short
 *   |unit|unit|unit|unit| ...     |unit|unit| ...         |unit|
 *   <-- segment --><-- segment -->                            a segment never leaves its group
 */
#ifndef QNI_QUANT_CUT_H
#define QNI_QUANT_CUT_H

#include <stddef.h>
#include <stdint.h>

/* Positions of a unit; outputs of a panel. */
enum { QNI_UNIT = 32, QNI_PANEL = 16 };

/* Units of a segment of int8-row and int8-static: 255 * 128 * 32768 < 2^31. */
enum { QNI_ROW_SEGMENT_UNITS = 32768 / QNI_UNIT };

/* How a row in packed order is cut: groups, padded to units of 32, and segments, which never leave
 * their group. */
struct qni_cut {
    int64_t k; /* real positions */
    int64_t units;
    int64_t n_groups, group_units;
    int64_t group_len, last_len; /* real positions of every group but the last, and of the last */
    int64_t n_segments, segment_units;
};

/* How the codes of compact weights lie, and what they become. */
struct qni_compact {
    int32_t bits;      /* of a code */
    int32_t wide_bits; /* of a code that kernels read: 4 or 8 */
    int32_t is_table;
    int32_t halves;  /* groups of 16: two lie in a unit */
    int32_t shift;   /* wide code = code + shift */
    uint8_t padding; /* wide code of what a group of 16 lacks of its unit */
    int64_t units;   /* of a panel, as they lie */
    size_t unit_bytes;
};

/* Real positions of a segment that begins `unit` units into group g and has `n` units. */
static inline int64_t qni_cut_count(const struct qni_cut *c, int64_t g, int64_t unit, int64_t n)
{
    const int64_t real = (g + 1 == c->n_groups ? c->last_len : c->group_len) - unit * QNI_UNIT;
    return real < n * QNI_UNIT ? real : n * QNI_UNIT;
}

/* Segments of a group; those of the last group may be fewer. */
static inline int64_t qni_cut_per_group(const struct qni_cut *c)
{
    return (c->group_units + c->segment_units - 1) / c->segment_units;
}

#endif
