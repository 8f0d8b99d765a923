/* SPDX-License-Identifier: Apache-2.0 */
/* Compact layouts: weights in as many bits as their file has. Codes lie in planes of bits, groups
 * of 16 two to a unit, and of scales, offsets and sums there is only what the others are not made
 * of; a kernel's panels are made of them shortly before it runs. docs/layouts.md draws them.
 *
 * The geometry of a head (units, groups, segments, runs) is that of the wide layout which kernels
 * read: only the sections differ. Heads of compact weights have version 2.
 *
 * A unit of 32 positions x 16 outputs has, one after the other,
 *     a plane of 4 bits   256 bytes, as q4n16 has its codes: of codes of 4 to 7 bits
 *     a plane of 2 bits   128 bytes: byte i of vector s has at bit 2 q the one of vector 2 q + s
 *     a plane of 1 bit    64 bytes: byte i has at bit r the one of vector r
 * for those of 4, 2 and 1 that add up to the bits of a code, low bits first; vector r (of 8) being
 * the one of q8n16: lane j of 4 bytes, byte b = position 4 r + b of output j. Codes of 8 bits are
 * as q8n16 has them. Codes are from 0 on. */
#ifndef QNI_QUANT_COMPACT_H
#define QNI_QUANT_COMPACT_H

#include <string.h>

#include "geometry.h"

struct qni_unit_codes;
struct qni_layout;

enum { QNI_COMPACT_VERSION = 2 };

static inline bool qni_is_compact(const struct qni_packed_head *head)
{
    return head->version == QNI_COMPACT_VERSION;
}

/* Do groups share units? Of compact weights. */
static inline bool qni_compact_halves(const struct qni_packed_head *head)
{
    return head->n_groups > 1 && head->format.group == QNI_UNIT / 2;
}

/* Units of a panel in memory. */
static inline int64_t qni_compact_units(const struct qni_packed_head *head)
{
    return qni_compact_halves(head) ? qni_ceil_div(head->units, 2) : head->units;
}

/* Are there offsets in memory, or are they made of zero points and minima? */
static inline bool qni_packed_stores_offsets(const struct qni_packed_head *head)
{
    return qni_is_compact(head) ? head->format.shift == QN_SHIFT_OFFSET
                                : qni_packed_has_offsets(head);
}

/* Bytes of an element of SCALE and OFFSET. */
static inline size_t qni_packed_scale_bytes(const struct qni_packed_head *head)
{
    return qn_dtype_bytes(head->scale_dtype);
}

/* Scales of E4M3 are numbers of a unit of the whole tensor, an f32 behind them in SCALE. */
static inline size_t qni_packed_unit_scale_bytes(const struct qni_packed_head *head)
{
    return head->scale_dtype == QN_E4M3 ? sizeof(float) : 0;
}
static inline size_t qni_packed_scale_section(const struct qni_packed_head *head)
{
    const size_t scales = (size_t)(head->panels * QNI_PANEL * head->n_groups);
    return scales * qni_packed_scale_bytes(head) + qni_packed_unit_scale_bytes(head);
}
static inline float qni_packed_scale_unit(const struct qn_packed *packed)
{
    const struct qni_packed_head *const h = packed->head;
    const uint8_t *const scale = qni_section(packed, QNI_SECTION_SCALE);
    float unit = 1.0f;
    if (h->scale_dtype == QN_E4M3 && scale != NULL)
        memcpy(&unit, scale + h->section[QNI_SECTION_SCALE].bytes - sizeof unit, sizeof unit);
    return unit;
}

/* Is there a compact form of such weights? Of a matrix whose groups fill their units or are of 16.
 * pays: does it take at least a twentieth less than the wide one? */
bool qni_compact_holds(const qn_format *format, int64_t n, int64_t k, int64_t ci,
                       int32_t conv_groups, bool *pays);

struct qni_compact qni_compact_of(const struct qni_packed_head *head,
                                  const struct qni_layout *layout, uint8_t padding);

/* Wide codes of a unit as it lies, and back. Halves: positions 16 and on are the second group's. */
void qni_compact_store(const struct qni_compact *c, const struct qni_unit_codes *codes,
                       uint8_t *out);
void qni_compact_load(const struct qni_compact *c, const uint8_t *in, struct qni_unit_codes *codes);

/* Scales of two levels take the place of SCALE. */
bool qni_compact_has_scale(const struct qni_packed_head *head, bool two_levels);

/* Scale and offset of lane `lane` of a group, as kernels get them; of any packed weights that lie
 * in host memory. */
struct qni_affine {
    float scale, offset;
};
struct qni_affine qni_packed_affine(const struct qn_packed *packed, int64_t panel, int64_t group,
                                    int64_t lane);

#endif
