/* SPDX-License-Identifier: Apache-2.0 */
/* Compact layouts, as far as packing, unpacking and rows need them: compact.h. Kernels' panels are
 * made by src/cpu/matmul/expand.c. */
#include "compact.h"

#include <string.h>

#include "levels.h"
#include "pack.h"

bool qni_compact_holds(const qn_format *format, int64_t n, int64_t k, int64_t ci,
                       int32_t conv_groups, bool *pays)
{
    enum { SHORT = 64 }; /* groups whose sums would be a sixteenth of codes of 8 bits */
    const int64_t groups = qn_format_groups(format, k, ci);
    const bool is_half = groups > 1 && format->group == QNI_UNIT / 2;
    const bool is_table = format->code != QN_CODE_INT;
    const bool fits = groups == 1 || is_half || format->group % QNI_UNIT == 0;
    if (n == 0 || k == 0 || ci != k || ci == 1 || conv_groups != 1 || !fits)
        return false;
    if ((is_table && format->bits > 4) || (format->superblock > 0 && groups == 1))
        return false;
    const bool has_values =
        !is_table || format->code == QN_CODE_E2M1 || format->code == QN_CODE_IQ4_NL;
    *pays = (format->bits != 4 && format->bits != 8) || is_half || format->superblock > 0 ||
            (groups > 1 && format->group <= SHORT && has_values);
    return true;
}

struct qni_compact qni_compact_of(const struct qni_packed_head *head,
                                  const struct qni_layout *layout, uint8_t padding)
{
    const int32_t bits = head->format.bits;
    struct qni_compact c = {.bits = bits,
                            .wide_bits = layout->code_bits,
                            .is_table = layout->is_table,
                            .halves = qni_compact_halves(head),
                            .padding = padding,
                            .units = qni_compact_units(head),
                            .unit_bytes = qni_packed_unit_bytes(bits)};
    if (!layout->is_table) {
        c.padding = (uint8_t)(1 << (layout->code_bits - 1));
        c.shift = c.padding - (1 << (bits - 1));
    }
    return c;
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* Four codes of a word: of output j at vector r. */
static uint32_t word_of(const struct qni_unit_codes *u, int32_t r, int32_t j)
{
    uint32_t word;
    memcpy(&word, &u->code[j][4 * r], sizeof word);
    return word;
}

/* A word whose four bytes are the number. */
static uint32_t four(int32_t byte)
{
    return (uint32_t)byte * 0x01010101u;
}

void qni_compact_store(const struct qni_compact *c, const struct qni_unit_codes *codes,
                       uint8_t *out)
{
    enum { VECTORS = 8, VECTOR = 4 * QNI_PANEL };
    const int32_t low = c->bits >= 4 ? 4 : 0;
    memset(out, 0, c->unit_bytes);
    for (int32_t r = 0; r < VECTORS; r++)
        for (int32_t j = 0; j < QNI_PANEL; j++) {
            const uint32_t word = word_of(codes, r, j) - four(c->shift);
            uint8_t *at = out + 4 * j;
            uint32_t held;
            if (c->bits == 8) {
                memcpy(at + VECTOR * r, &word, sizeof word);
                continue;
            }
            if (low > 0) {
                memcpy(&held, at + VECTOR * (r % 4), sizeof held);
                held |= (word & four(15)) << (r < 4 ? 0 : 4);
                memcpy(at + VECTOR * (r % 4), &held, sizeof held);
                at += 4 * VECTOR;
            }
            if (c->bits & 2) {
                memcpy(&held, at + VECTOR * (r % 2), sizeof held);
                held |= (word >> low & four(3)) << r / 2 * 2;
                memcpy(at + VECTOR * (r % 2), &held, sizeof held);
                at += 2 * VECTOR;
            }
            if (c->bits & 1) {
                memcpy(&held, at, sizeof held);
                held |= (word >> (low + (c->bits & 2)) & four(1)) << r;
                memcpy(at, &held, sizeof held);
            }
        }
}

void qni_compact_load(const struct qni_compact *c, const uint8_t *in, struct qni_unit_codes *codes)
{
    enum { VECTORS = 8, VECTOR = 4 * QNI_PANEL };
    const int32_t low = c->bits >= 4 ? 4 : 0;
    for (int32_t r = 0; r < VECTORS; r++)
        for (int32_t j = 0; j < QNI_PANEL; j++) {
            const uint8_t *at = in + 4 * j;
            uint32_t word = 0, held;
            if (c->bits == 8) {
                memcpy(&word, at + VECTOR * r, sizeof word);
            } else if (low > 0) {
                memcpy(&held, at + VECTOR * (r % 4), sizeof held);
                word = held >> (r < 4 ? 0 : 4) & four(15);
                at += 4 * VECTOR;
            }
            if (c->bits != 8 && (c->bits & 2) != 0) {
                memcpy(&held, at + VECTOR * (r % 2), sizeof held);
                word |= (held >> r / 2 * 2 & four(3)) << low;
                at += 2 * VECTOR;
            }
            if (c->bits & 1) {
                memcpy(&held, at, sizeof held);
                word |= (held >> r & four(1)) << (low + (c->bits & 2));
            }
            word += four(c->shift);
            memcpy(&codes->code[j][4 * r], &word, sizeof word);
        }
}

/* ---- scales ---------------------------------------------------------------------------------- */

bool qni_compact_has_scale(const struct qni_packed_head *head, bool two_levels)
{
    return !qni_is_compact(head) || !two_levels;
}

static float scale_of(const struct qn_packed *packed, const struct qni_levels *levels, int64_t at)
{
    const void *const scale = qni_section(packed, QNI_SECTION_SCALE);
    if (scale == NULL) /* only where there are two levels */
        return levels->super_scale * (float)levels->sub_scale;
    return qni_load_scale(scale, packed->head->scale_dtype, at) * qni_packed_scale_unit(packed);
}

struct qni_affine qni_packed_affine(const struct qn_packed *packed, int64_t panel, int64_t group,
                                    int64_t lane)
{
    const struct qni_packed_head *const h = packed->head;
    const int64_t at = (panel * h->n_groups + group) * QNI_PANEL + lane;
    const uint8_t *const sections = qni_section(packed, QNI_SECTION_LEVELS);
    const void *const offset = qni_section(packed, QNI_SECTION_OFFSET);
    const void *const zero = qni_section(packed, QNI_SECTION_ZERO);
    struct qni_levels levels = {.min = 0.0f};
    struct qni_affine a = {0.0f, 0.0f};
    if (sections != NULL) {
        const size_t bytes = qni_levels_panel_bytes(h, qni_levels_are_two(h));
        levels = qni_levels_load(h, sections + (size_t)panel * bytes, group, lane);
    }
    a.scale = scale_of(packed, &levels, at);
    if (offset != NULL)
        a.offset = qni_load_scale(offset, h->scale_dtype, at);
    else if (h->format.shift == QN_SHIFT_MIN)
        a.offset = qni_fmaf((float)(1 << (h->format.bits - 1)), a.scale, levels.min);
    else if (h->format.shift == QN_SHIFT_ZERO && zero != NULL)
        a.offset = -(float)(h->zero_dtype == QN_I8 ? ((const int8_t *)zero)[at]
                                                   : ((const int32_t *)zero)[at]) *
                   a.scale;
    return a;
}
