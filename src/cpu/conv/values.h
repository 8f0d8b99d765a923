/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of packed weights one position at a time, as the values of the 16 outputs of a panel: for
 * convolutions whose kernels want floats in an order of their own. */
#ifndef QNI_CPU_CONV_VALUES_H
#define QNI_CPU_CONV_VALUES_H

#include <string.h>

#include "../../base/compiler.h"
#include "../../base/half.h"
#include "../layouts.h"

/* Where the codes of a packed position are: */
struct qni_code_place {
    int64_t bytes; /* from the codes of a panel to the 16 words that hold its codes */
    int32_t shift; /* ... and where in them */
};
static inline struct qni_code_place qni_code_place(int64_t position,
                                                   const struct qni_layout *layout)
{
    const int32_t code_bits = layout->code_bits;
    const int64_t unit = position / QNI_UNIT, at = position % QNI_UNIT;
    const int64_t vectors = code_bits == 4 ? 4 : 8, vector = at / 4 % vectors;
    if (layout->floats != 0)
        return (struct qni_code_place){unit * (int64_t)qni_layout_unit_bytes(layout->layout) +
                                           (int64_t)qni_layout_float_place(layout->floats, at),
                                       0};
    const struct qni_code_place place = {
        (unit * vectors + vector) * QNI_PANEL * 4,
        (int32_t)(8 * (at % 4) + (at / 4 == vector ? 0 : 4)),
    };
    return place;
}

/* The segment of a packed position. */
static inline int64_t qni_segment_of(const struct qni_cut *cut, int64_t position)
{
    const int64_t unit = position / QNI_UNIT;
    return unit / cut->group_units * qni_cut_per_group(cut) +
           unit % cut->group_units / cut->segment_units;
}

static inline void qni_read_scales(const void *section, qn_dtype dtype, int64_t at,
                                   float out[QNI_PANEL])
{
    for (int32_t j = 0; j < QNI_PANEL; j++)
        out[j] = dtype == QN_F16 ? qni_f32_from_f16(((const uint16_t *)section)[at + j])
                                 : ((const float *)section)[at + j];
}

/* What a stored code stands for: value = table[code], or code - bias. */
struct qni_values {
    const float *table;
    qn_dtype floats; /* or it is a number of this type */
    float bias;
    float times; /* 2: E2M1 where integers are wanted; the scales are halved then */
};

static inline struct qni_values qni_values_of(const qn_packed *w, const struct qni_layout *layout,
                                              bool is_float)
{
    struct qni_values v = {qni_section(w, QNI_SECTION_TABLE), layout->floats,
                           layout->code_bits == 4 ? 8.0f : 128.0f, 1.0f};
    int8_t table8[16];
    if (v.table != NULL && !is_float)
        v.times = (float)qni_table_integers(w->head->format.code, v.table,
                                            1 << w->head->format.bits, table8);
    return v;
}

/* Lanes of a panel. */
typedef int32_t qni_codes16 QNI_VECTOR(4 * QNI_PANEL);
typedef float qni_floats16 QNI_VECTOR(4 * QNI_PANEL);

/* The values of a position. kernel.h of matmul draws the units of codes: byte b of a lane is
 * position b of four, little endian. */
QNI_TEMPLATE void qni_code_values(const uint8_t *codes, int32_t code_bits,
                                  const struct qni_code_place *place, const struct qni_values *v,
                                  qni_floats16 *out)
{
    qni_codes16 lanes;
    if (v->floats != 0) {
        const size_t step = qni_float_step(v->floats);
        float value[QNI_PANEL];
        for (int32_t j = 0; j < QNI_PANEL; j++)
            value[j] = qni_load_float(codes + place->bytes + (size_t)j * step, v->floats, 0);
        memcpy(out, value, sizeof *out);
        return;
    }
    memcpy(&lanes, codes + place->bytes, sizeof lanes);
    lanes = lanes >> place->shift & (code_bits == 4 ? 15 : 255);
    if (v->table == NULL) {
        *out = __builtin_convertvector(lanes, qni_floats16) - v->bias;
        return;
    }
    int32_t code[QNI_PANEL];
    float value[QNI_PANEL];
    memcpy(code, &lanes, sizeof code);
    for (int32_t j = 0; j < QNI_PANEL; j++)
        value[j] = v->table[code[j]] * v->times;
    memcpy(out, value, sizeof *out);
}

static inline void qni_read_lanes(const void *section, qn_dtype dtype, int64_t at,
                                  qni_floats16 *out)
{
    float lanes[QNI_PANEL];
    qni_read_scales(section, dtype, at, lanes);
    memcpy(out, lanes, sizeof lanes);
}

#endif
