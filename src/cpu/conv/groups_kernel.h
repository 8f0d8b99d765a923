/* SPDX-License-Identifier: Apache-2.0 */
/* The contract between the driver of grouped convolutions and its kernels.
 *
 * A vector has `lanes` sums. A set is one group, in as many vectors as its outputs need, or 2 or 4
 * groups whose outputs share one vector, taking turns. So do their inputs: a load that repeats 2 or
 * 4 floats brings each lane the input of its group.
 *
 *     2 groups of 4 channels and outputs, 8 lanes
 *     inputs    a0 b0 a1 b1 a2 b2 a3 b3
 *     repeated  a1 b1 a1 b1 a1 b1 a1 b1     meets the weights of channel 1 of either group
 *     sums      A0 B0 A1 B1 A2 B2 A3 B3
 *     results   A0 A1 A2 A3 B0 B1 B2 B3
 *
 *     c[row, column, output] = sum over taps t, channels i of
 *                                  x[row, column, taps[t], i of the group] * w[t, i, output]
 *
 * The driver has converted the inputs to f32, put a zero wherever a tap lies outside, and
 * subtracted the zero point of int8-static. The int8 strategies use the same arithmetic on
 * integers, as depthwise kernels do (depthwise_kernel.h): a segment is whole taps and has at most
 * QNI_GROUPS_EXACT positions (half as many where codes less a zero point are meant), so that f32
 * sums of its products are exact. The steps after the dot product are those of docs/numerics.md;
 * a row of the dynamic strategies is a patch of one group.
 *
 * Rows of words have int16 where the others have floats, pairs of channels beside each other, and
 * groups take turns by pairs: inputs a0 a1 b0 b1 a2 a3 b2 b3. A product of two pairs and its sum
 * are one instruction, all sums are int32, and any k serves. Where a tile is in squares, w has been
 * transformed (groups_x86_avx2_words.c), 16 taps instead of 9, and x can be read up to an even
 * number of rows and columns. */
#ifndef QNI_CPU_CONV_GROUPS_KERNEL_H
#define QNI_CPU_CONV_GROUPS_KERNEL_H

#include <quern/base.h>
#include <stdbool.h>

#include "../matmul/kernel.h"

/* 128 * 128 * 1024 = 2^24, 255 * 128 * 512 < 2^24. Most lanes of a vector, and most vectors of
 * codes that a kernel makes at once. */
enum { QNI_GROUPS_EXACT = 1024, QNI_GROUPS_LANES = 16, QNI_GROUPS_CODED = 8 };

struct qni_groups_tile {
    const float *x;          /* tap 0 of output (0, 0), the first input of the first set */
    int64_t x_row, x_column; /* elements from output to output */
    int64_t x_set;           /* and from set to set */
    const int64_t *taps;     /* [n_taps] elements from tap 0 */
    int64_t n_taps, ci;
    int64_t rows, columns;   /* outputs */
    int64_t sets, vectors;   /* sets; vectors of each */
    int64_t groups;          /* of a set: 1, 2 or 4. A set has ci * groups inputs; a vector of
                              whatever lies behind them may be read */
    const int32_t *results;  /* [lanes] which sum is result j, where a set has several groups */
    const int32_t *segments; /* [n_segments + 1] first tap of each */
    int64_t n_segments;
    const float *w;     /* [sets, vectors, n_taps, ci, lanes] weights (float), or values of codes */
    const float *scale; /* int8: [sets, vectors, n_segments, lanes]; float: NULL */
    const float *offset; /* the same, or NULL */
    const float *sums;   /* int8-block with x not symmetric: sums of values, the same */
    bool symmetric;      /* int8-block */
    bool raw_i32;        /* int8-static: c receives the int32 sums */
    float *c;            /* whole vectors are written */
    int64_t c_row, c_column, c_set;
    void *scratch; /* int8-row, int8-block: qni_groups_scratch_bytes(), 64-byte aligned; words */
    bool in_squares;
    /* Words: y is not NULL where the kernel writes bytes, and nothing to c. Strides as c's. */
    uint8_t *y;
    const float *bias; /* of results, or NULL */
    float x_scale, y_inv;
    int32_t y_zero;
    bool relu, is_u8;
    bool is_bounded; /* no result times y_inv is a NaN or beyond +-2^21 */
};

/* Codes of QNI_GROUPS_CODED patches, and three vectors of facts of each segment of them. */
static inline size_t qni_groups_scratch_bytes(int64_t n_taps, int64_t inputs, int64_t n_segments)
{
    const int64_t codes = n_taps * inputs + 3 * QNI_GROUPS_LANES;
    return (size_t)(QNI_GROUPS_CODED * (codes + 3 * n_segments * QNI_GROUPS_LANES)) * sizeof(float);
}

/* Scratch of a kernel of words: transformed inputs of QNI_GROUPS_SQUARES squares and a vector
 * behind those of each tap; lines of sums of QNI_GROUPS_RUN squares and two vectors. */
enum {
    QNI_GROUPS_SQUARES = 32,
    QNI_GROUPS_SQUARE_TAPS = 16,
    QNI_GROUPS_RUN = 24,
    QNI_GROUPS_LINES = 8 * QNI_GROUPS_RUN * 2 * 8
};
static inline size_t qni_groups_squares_bytes(int64_t inputs)
{
    const size_t x = QNI_GROUPS_SQUARES * (size_t)inputs * sizeof(int16_t) + 64;
    return QNI_GROUPS_SQUARE_TAPS * x + QNI_GROUPS_LINES * sizeof(int32_t);
}

/* Float: are all sums finite? (Or perhaps not: lanes past the last output count, too.) */
typedef bool qni_groups_kernel_fn(const struct qni_groups_tile *tile);

/* n pixels of neighbouring channels as floats, each set of them apart: pixels of a set follow each
 * other. */
struct qni_groups_pixels {
    const void *from;
    size_t step; /* bytes from pixel to pixel */
    qn_dtype dtype;
    int32_t zero; /* i8, u8: subtracted */
    int64_t n, channels, ci, groups;
    const int32_t *inputs; /* [lanes] which channel is input j, where ci * groups is `lanes` */
    float *buffer;         /* [channels + lanes] */
    float *to;
    int64_t set; /* elements from set to set */
};
typedef void qni_groups_pixels_fn(const struct qni_groups_pixels *pixels);

/* A packed position of the weights of a group. */
struct qni_groups_place {
    int64_t bytes; /* from the codes of a panel to the 16 words that hold its codes */
    int32_t shift; /* ... and where in them */
    int32_t scale; /* which row of scales */
    int64_t at;    /* tap * ci + channel */
    float prescale;
};

/* The outputs of a panel of packed weights, group `group` of a set, as the tile wants them. */
struct qni_groups_panel {
    const uint8_t *codes;
    int32_t code_bits;
    const float *table; /* value = table[code] * times, or (NULL) code - bias */
    float bias, times;
    const struct qni_groups_place *places;
    int64_t k;
    bool has_prescale;
    const float *scale, *offset; /* float: [.., 16] rows of them; offset may be NULL. Else NULL */
    int64_t vectors;             /* that hold the panel's outputs */
    int64_t groups, group;
    int64_t ci;      /* words */
    bool in_squares; /* words */
    float *to;
};
typedef void qni_groups_panel_fn(const struct qni_groups_panel *panel);

/* What an ISA file has besides. */
struct qni_groups_helpers {
    qni_groups_pixels_fn *pixels;
    qni_groups_panel_fn *panel;
    int32_t lanes;
    bool has_words; /* which x and w are made of, instead of floats; of groups of whole quads */
};

extern const struct qni_groups_helpers qni_groups_helpers_scalar, qni_groups_helpers_avx2,
    qni_groups_helpers_avx512, qni_groups_helpers_neon, qni_groups_words_avx2;

#endif
