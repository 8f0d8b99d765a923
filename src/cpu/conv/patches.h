/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the patch matrix of a convolution, a block at a time. The matrix never exists as a whole.
 *
 *   row r of a phase  =  output (image b, jy, jx)            r = (b * ny + jy) * nx + jx
 *   column            =  (tap y, tap x, input channel)       channel fastest
 *
 *      x (NHWC)                          one row of the block
 *      . . . . . . .                    | ky 0: kx 0 1 2 | ky 1: kx 0 1 2 | ky 2: kx 0 1 2 |
 *      . a b c . . .    3 x 3 taps a b c d e f g h i each letter ci elements
 *      . d e f . . .   ----------->      one copy          one copy         one copy
 *      . g h i . . .
 *
 * Neighbouring taps of a row of x are neighbours in memory (NHWC, no dilation, one group), so a row
 * of taps is one copy. For NCHW the columns of x that a run of outputs needs are transposed once a
 * row of taps into a line buffer, and then are NHWC. Elements keep their type; what is outside x is
 * `pad`. */
#ifndef QNI_CPU_CONV_PATCHES_H
#define QNI_CPU_CONV_PATCHES_H

#include "../matmul/driver.h"
#include "../rows/kernel.h"
#include "geometry.h"

/* Outputs that share a line buffer at most. */
enum { QNI_SEGMENT = 64 };

struct qni_patches {
    const uint8_t *x;
    size_t element;          /* bytes: 1, 2, 4 */
    uint8_t pad;             /* every byte of an element outside x: 0, or the zero point of
                                     int8-static */
    int64_t channels;        /* of one patch: ci of a group */
    int64_t xs[4];           /* elements: batch, channel, row, column */
    struct qni_axis axis[2]; /* y, x */
    struct qni_phase phase[2];
    struct qni_taps taps[2];
    const struct qni_rows *rows;
    bool is_flat; /* 1 x 1, an input pixel for each output, rows of x without a gap: an
                                     image is one long row */
};

/* Patches of phase (py, px); with live, only of the taps that read anything. */
struct qni_patches qni_patches_of(const struct qni_op *op, const struct qni_rows *rows, int64_t py,
                                  int64_t px, bool live);

/* Elements of a row. */
static inline int64_t qni_patches_columns(const struct qni_patches *p)
{
    return (int64_t)p->taps[0].count * p->taps[1].count * p->channels;
}
static inline int64_t qni_patches_per_image(const struct qni_patches *p)
{
    return p->phase[0].count * p->phase[1].count;
}

/* Bytes of the line buffer, whatever the strides of x and the live taps, for this phase and all
 * after the first of an axis; 0 is a real answer. */
size_t qni_patches_line_bytes(const struct qni_patches *p);

/* Rows [row, row + rows) of channels [channel, channel + p->channels) to dst, ld bytes apart; bytes
 * past a row's columns are left alone. */
void qni_patches_gather(const struct qni_patches *p, int64_t row, int64_t rows, int64_t channel,
                        uint8_t *dst, size_t ld, void *line);

/* Where y and the residual have the outputs of a phase. */
struct qni_row_sink qni_conv_sink(const struct qni_op *op, const struct qni_patches *p);

#endif
