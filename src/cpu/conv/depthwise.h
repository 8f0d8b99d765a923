/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of the depthwise loops: which taps there are, their weights as 16 lanes of floats,
 * and inputs as floats with the padding made real. depthwise.c puts them together. */
#ifndef QNI_CPU_CONV_DEPTHWISE_H
#define QNI_CPU_CONV_DEPTHWISE_H

#include "../backend.h"
#include "../layouts.h"
#include "../rows/kernel.h"
#include "cut.h"
#include "geometry.h"
#include "kernel.h"
#include "values.h"

/* ---- taps ------------------------------------------------------------------------------------ */

struct qni_tap {
    int64_t position; /* packed */
    int64_t base[2];  /* inputs of output (0, 0) of the phase: y, x */
    int32_t is_live;  /* 0: reads nothing in this phase (kept where a zero has a code) */
    int64_t offset;   /* of its inputs in a ring row: the driver's */
    int32_t at[2];    /* y, x */
    struct qni_code_place code;
    float prescale;
};

/* The taps of a phase in packed order, cut in segments. Arrays have room for k taps. */
struct qni_tap_list {
    struct qni_tap *taps;
    int32_t *segments; /* [n_segments + 1] first tap */
    int32_t n_taps, n_segments;
    int64_t lo[2], hi[2]; /* the smallest and largest base of a live tap; lo > hi: there is none */
};

size_t qni_tap_list_bytes(const struct qni_packed_head *head);
/* keep_dead: taps that read nothing stay in the list. */
struct qni_tap_list qni_tap_list_make(const struct qni_op *op, const struct qni_axis axis[2],
                                      const struct qni_phase phase[2], qn_strategy strategy,
                                      bool keep_dead, void *memory);

/* ---- weights --------------------------------------------------------------------------------- */

/* What a kernel wants to know about 16 outputs. Room for k taps and all segments. */
struct qni_lane_weights {
    float *w;      /* [n_taps, 16] */
    float *scale;  /* [n_segments, 16] */
    float *offset; /* the same, or NULL */
    float *sums;   /* int8-block with offsets: [n_segments, 16] */
};

size_t qni_lane_weights_bytes(const struct qni_packed_head *head);
/* The arrays in memory of that many bytes. has_offset: if the weights have any. */
struct qni_lane_weights qni_lane_weights_at(const struct qni_packed_head *head, bool has_offset,
                                            void *memory);
/* Expands the weights of a panel. Where codes are given and there is no room for offsets, zero
 * points are taken away from w. */
void qni_lane_weights_expand(const qn_packed *w, int64_t panel, const struct qni_tap_list *list,
                             qn_strategy strategy, struct qni_lane_weights *out);
/* Weights of a convolution [kh * kw, n_panels * 16], ld elements from tap to tap; with w_scale
 * ([n_panels * 16], of one group) values of codes, and these their scales. */
void qni_image_weights_expand(const qn_packed *w, int64_t panel, int64_t n_panels,
                              const struct qni_tap_list *list, float *out, int64_t ld,
                              float *w_scale);
/* One lane of them in all 16 lanes. */
void qni_lane_weights_repeat(const struct qni_lane_weights *from, int64_t lane,
                             const struct qni_tap_list *list, struct qni_lane_weights *to);

/* ---- inputs ---------------------------------------------------------------------------------- */

/* A row of x, one image. */
struct qni_input_row {
    const uint8_t *at; /* channel 0, column 0 */
    qn_dtype dtype;
    int32_t zero;            /* int8-static: subtracted */
    int64_t channel, column; /* strides in elements */
    int64_t columns;
    const struct qni_rows *rows;
};

/* dst[i] = column first + step * i of a channel; 0 outside. */
void qni_load_pixels(const struct qni_input_row *row, int64_t channel, int64_t first, int64_t step,
                     int64_t n, float *dst);

/* Neighbouring outputs, ld lanes of them to a vector: the first, how many channel multipliers share
 * an input channel, and how many there are (the other lanes become 0). */
enum { QNI_LANE_BLOCK = 64 };
struct qni_lane_block {
    int64_t output, per_channel, lanes, ld; /* lanes <= ld <= QNI_LANE_BLOCK */
};
/* dst[i * ld + lane] = column first + step * i of the input channel of a lane; 0 outside. */
void qni_load_lanes(const struct qni_input_row *row, const struct qni_lane_block *block,
                    int64_t first, int64_t step, int64_t n, float *dst);

/* ---- the epilogue ---------------------------------------------------------------------------- */

/* line[i] = element first + step * i of a vector of the epilogue: its value as f32, or an i32 as it
 * is. */
void qni_read_vector(const qn_tensor *t, int64_t first, int64_t step, int64_t n, float *line);
/* Does the last step no more than to store f32? */
bool qni_finish_is_store(const struct qni_finish_step *finish);

/* ---- images ---------------------------------------------------------------------------------- */

/* is_codes: for an algorithm that reads codes. */
struct qni_image_cut qni_image_cut_of(const struct qni_op *op, bool is_codes, int32_t n_threads);
/* What the kernel leaves to do is bounding at most, as it can. */
bool qni_image_is_store(const struct qni_op *op);

/* ---- scratch --------------------------------------------------------------------------------- */

struct qni_ring_cut qni_ring_cut_of(const struct qni_op *op, int32_t n_threads);
/* Floats of a row. */
static inline int64_t qni_ring_slot(const struct qni_ring *r)
{
    return (int64_t)qni_round_up((size_t)(r->strip * r->n_strips), 16);
}

#endif
