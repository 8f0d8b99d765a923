/* SPDX-License-Identifier: Apache-2.0 */
/* The contract between the depthwise driver and its kernels.
 *
 * A depthwise convolution has one input channel a group, so that an output is a dot product of a
 * handful of taps and there is nothing to share between outputs but the weights. Kernels work on
 * vectors of 16 lanes. What a lane is, they do not know: 16 neighbouring channels of one pixel
 * (NHWC), or 16 neighbouring pixels of one channel (NCHW; the weights then repeat in all lanes).
 * The driver has converted the inputs to f32, put a zero wherever a tap lies outside, and
 * subtracted the zero point of int8-static:
 *
 *     c[v, lane] = sum over taps t of  in[t][v * advance + lane] * w[t, lane]          float
 *
 * The int8 strategies use the same arithmetic on integers: a product of two codes, both less their
 * zero points, is at most 255 * 255, so an f32 sum of QNI_EXACT_TAPS of them is exact in any order
 * (255 * 255 * 256 < 2^24), and longer segments are added up in int32. The steps after the dot
 * product are those of docs/numerics.md.
 *
 * Taps of the int8 strategies are in packed order, so that a segment is a stretch of them.
 *
 * A kernel writes all 16 lanes of c; it reads in[t][0 .. (vectors - 1) * advance + 16) and
 * nothing beyond. */
#ifndef QNI_CPU_CONV_DEPTHWISE_KERNEL_H
#define QNI_CPU_CONV_DEPTHWISE_KERNEL_H

#include <quern/base.h>
#include <stdbool.h>

#include "../matmul/kernel.h"

enum { QNI_DEPTHWISE_LANES = 16, QNI_EXACT_TAPS = 256 };

struct qni_depthwise_tile {
    const float *const *in; /* [n_taps]; NULL (int8-block only): this tap is zero everywhere */
    int64_t advance;        /* elements from vector to vector */
    int64_t vectors;
    int64_t n_taps;
    const float *w;          /* [n_taps, 16] weights (float), or values of codes (int8) */
    const int32_t *segments; /* int8: [n_segments + 1] first tap of each */
    int64_t n_segments;
    const float *scale;  /* int8: [n_segments, 16] */
    const float *offset; /* int8: the same, or NULL */
    const float *sums;   /* int8-block: [n_segments, 16] sum of the values of a segment */
    int32_t symmetric;   /* int8-block */
    int32_t raw_i32;     /* int8-static: c receives the int32 sums; no offset */
    const float
        *prescale; /* int8-row, int8-block: [n_taps], or NULL: inputs are multiplied first */
    float *c;      /* [vectors, 16] */
    int64_t ldc;   /* elements from vector to vector */
};

typedef void qni_depthwise_kernel_fn(const struct qni_depthwise_tile *tile);

/* Channels that lie together in x and y, read where they lie: no tap list, no ring. A tap outside
 * of x adds nothing. The bits of an output depend on its inputs and weights alone. */
struct qni_depthwise_image {
    const float *x;          /* row 0, column 0, first channel */
    int64_t x_row, x_column; /* elements from one to the next */
    int64_t in[2];           /* rows, columns of x */
    int64_t first[2];        /* where tap (0, 0) of output (0, 0) lies; perhaps outside */
    int64_t taps[2], stride[2], dilation[2];
    const float *w; /* [taps, n], w_tap elements from tap to tap */
    int64_t w_tap;
    /* int8-static: x and w are integers, sums exact; they are multiplied by w_scale ([n]), and
     * what is -0 becomes +0, then by x_scale. NULL: float. sum_bias ([n], or NULL) is added to the
     * sums before, in int32. */
    const float *w_scale;
    float x_scale;
    const int32_t *sum_bias;
    const float *scale, *bias; /* [n] sums are multiplied, then added to; NULL: not */
    bool is_relu;              /* then: v > 0 ? v : +0, and most where that is less */
    float most;
    void *y;         /* output (0, 0), first channel */
    qn_dtype y_type; /* f32, f16, bf16; int8-static: i8 and u8, too */
    float y_inv;     /* of these: as in rows/kernel.h */
    int32_t y_zero;
    int64_t y_row, y_column;
    int64_t out[2]; /* rows, columns of y */
    int64_t n;      /* channels, at least 16 */
    /* QNI_CONV_CODES reads these instead of x, its strides the same: */
    const uint8_t *codes;
    qn_dtype x_type; /* i8, u8 */
    int32_t x_zero;
    void *words; /* private: QNI_DEPTHWISE_WORDS bytes for each 16 channels, aligned to 64 */
};
enum { QNI_DEPTHWISE_WORDS = 2304, QNI_DEPTHWISE_CODES_COLUMNS = 64 };

/* True: all that it wrote was finite before is_relu. False: perhaps not (sums of neighbours were
 * not); a NaN may have become any bf16. Of codes always true, but for QNI_CONV_CODES: false is
 * that scales or biases are so large that it did nothing. */
typedef bool qni_depthwise_image_fn(const struct qni_depthwise_image *image);

#endif
