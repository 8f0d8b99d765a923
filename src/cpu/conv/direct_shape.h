/* SPDX-License-Identifier: Apache-2.0 */
/* How a direct convolution is cut: where its rows come from, which bands there are, and what a
 * thread needs. Follows from operation and context alone; selecting and running agree on it. */
#ifndef QNI_CPU_CONV_DIRECT_SHAPE_H
#define QNI_CPU_CONV_DIRECT_SHAPE_H

#include "patches.h"
#include "kernel.h"
#include "direct_slabs.h"

enum { QNI_DIRECT_TAPS = 64, QNI_DIRECT_PLANES = 8 };
enum {
    QNI_ROWS_IN_PLACE = 0,
    QNI_ROWS_IN_PLANES = 1,
    QNI_ROWS_OF_PATCHES = 2,
    QNI_ROWS_OF_COLUMNS = 3
};

/* Rows in place whose last step reaches into the next one: fewer rows than this at the end of x are
 * copied, so that nothing is read behind it. */
enum { QNI_DIRECT_TAIL = 64 };

/* One axis of the planes. */
struct qni_plane_axis {
    int32_t n_planes;
    int64_t first[QNI_DIRECT_PLANES]; /* the input of element 0 */
    int32_t plane[QNI_DIRECT_PLANES]; /* of a tap */
    int64_t moved[QNI_DIRECT_PLANES]; /* of a tap */
    int64_t stride, extra;            /* inputs from element to element; the most moved */
};

struct qni_direct_shape {
    bool gathers;           /* the kernel reads planes or x itself (direct_kernel.h) */
    bool in_squares;        /* the same */
    int64_t side;           /* outputs of a square's side, else 1 */
    bool whole_lines;       /* rows of a line stay together: the kernel computes several at once */
    bool moves;             /* weights of slabs are (slabs.h) */
    struct qni_slabs slabs; /* everything below is of one of them */
    int64_t tap_bytes;      /* gathers */
    int32_t rows_are;       /* QNI_ROWS_... */
    int64_t pixel;          /* bytes from row to row */
    int64_t n_taps, tap_steps, steps;
    int32_t step_bytes; /* kernel.h */
    int32_t run;        /* planes of lines: neighbouring taps that are one to the kernel; else 0 */
    bool is_ragged;  /* channels end before the last step of a tap: the weights of what is read past
                     * them are zeros */
    bool is_padded;  /* planes: pixels are whole steps that end with zeros, so that weights of the
                     * next tap may lie there: none are moved */
    int64_t n_apart; /* groups of a slab that have planes of their own, and a block of outputs each;
                      * else 1 */
    struct qni_plane_axis axis[2];
    int64_t columns; /* from line to line of a plane; columns: units of a line */
    int64_t shared;  /* what a line reads past them: padding of the next line; behind the last one
                      * there is as much */
    /* bands: of planes, images x output rows; of columns, rows of one image; else rows of the
     * product */
    int64_t band_images, band_lines; /* planes, columns */
    int64_t bands_per_image;         /* where band_images is 1 */
    int64_t band_rows;               /* rows of a band at most, unused columns included */
    int64_t n_bands;
    size_t panel_bytes;                                /* of unpacked weights */
    int64_t n_blocks, blocks_per_item, items_per_band; /* of 32 outputs */
    int64_t n_items;                                   /* of all slabs */
    int32_t reads_codes; /* weights as they are packed: kernel.h, row_sums */
    int32_t is_tall;     /* 64 rows of a, all that their taps meet, stay in the first cache */
    int64_t blocks_per_call;
    int64_t unpacked_blocks; /* that scratch holds, whatever the batch: all or those of a call */
    size_t a_bytes;          /* of a band's copy */
    size_t most_a_bytes;     /* for this batch and every smaller one */
    int64_t most_rows;
};

/* Sums of the values of every output, of whole groups of positions where there are such. */
static inline const int32_t *qni_direct_column_sums(const qn_packed *w)
{
    const bool own = w->head->section[QNI_SECTION_GROUP_SUMS].bytes != 0;
    return qni_section(w, own ? QNI_SECTION_GROUP_SUMS : QNI_SECTION_SUMS);
}

/* Are bytes of y in planes, one of each output, so that rows have to be turned? */
bool qni_direct_turns(const struct qni_op *op);
/* May rows be in planes, or in place? More than one group has no other way. */
bool qni_direct_has_planes(const struct qni_op *op);
/* May rows be gathered from lines or x? Again more than one group has no other way. */
bool qni_direct_has_lines(const struct qni_op *op);
/* algorithm: of the row (direct_kernel.h). */
struct qni_direct_shape qni_direct_shape_of(const qn_ctx *ctx, const struct qni_op *op,
                                            int32_t algorithm);

/* Do taps end inside a step, so that unpacked weights have to be moved apart? */
static inline bool qni_direct_parts_taps(const struct qni_op *op, const struct qni_direct_shape *s)
{
    return !s->gathers && s->run != 0 && s->n_taps > 1 && !s->slabs.is_apart &&
           s->run * op->conv.ci % QNI_DIRECT_STEP != 0;
}

/* Bands are lines of images, with rows behind each that are no output. */
static inline bool qni_has_lines(const struct qni_direct_shape *s)
{
    return s->rows_are == QNI_ROWS_IN_PLANES || s->rows_are == QNI_ROWS_OF_COLUMNS;
}

/* Rows behind each line that are no output. Rows that gather leave them out. */
static inline int64_t qni_unused_rows(const struct qni_op *op, const struct qni_direct_shape *s)
{
    return qni_has_lines(s) && !s->gathers ? s->columns - op->conv.ow : 0;
}

/* Bytes of a plane of a band of so many images and lines. */
static inline size_t qni_plane_bytes(const struct qni_direct_shape *s, int64_t images,
                                     int64_t lines)
{
    return (size_t)(((lines + s->axis[0].extra) * images * s->columns + s->shared) * s->pixel);
}
static inline int64_t qni_band_planes(const struct qni_direct_shape *s)
{
    return (int64_t)s->axis[0].n_planes * s->axis[1].n_planes;
}

/* Bytes of the planes of a band, of one group and of all that lie apart. */
static inline size_t qni_group_bytes(const struct qni_direct_shape *s, int64_t images,
                                     int64_t lines)
{
    return (size_t)qni_band_planes(s) * qni_plane_bytes(s, images, lines);
}
static inline size_t qni_band_bytes(const struct qni_direct_shape *s, int64_t images, int64_t lines)
{
    return (size_t)s->n_apart * qni_group_bytes(s, images, lines);
}

/* Private scratch of a thread. */
struct qni_direct_scratch {
    int8_t *a;
    uint8_t *b; /* unpacked: the panels of a call */
    float *scale, *bias;
    int32_t *zero;    /* [n_blocks * 32], as scale and bias */
    int32_t *sums;    /* [most_rows] */
    int32_t *pixels;  /* 128 * sum of every pixel of the planes */
    int64_t *real;    /* [band_rows] the row of the product, or -1 */
    int64_t *at;      /* [band_rows] gathers: kernel.h */
    uint8_t **y;      /* [band_rows] */
    uint8_t *nowhere; /* n bytes that nobody reads */
    uint8_t *turned;  /* [most_rows, blocks_per_call * 32] bytes before they go to planes */
    float *c;         /* [QNI_DIRECT_WORDS, or most_rows of whole lines, 32] */
    void *line, *kernel;
    struct qni_epilogue_scratch *epilogue;
};
enum { QNI_DIRECT_WORDS = 256 };
/* Bytes, for this batch and every smaller one; places it in memory if that is not NULL. */
size_t qni_direct_scratch_in(const struct qni_op *op, const struct qni_direct_shape *shape,
                             uint8_t *memory, struct qni_direct_scratch *scratch);
/* Bytes, for this batch and every smaller one, whatever the strides of x: from run to run they may
 * change. */
size_t qni_direct_scratch_bytes(const qn_ctx *ctx, const struct qni_op *op, int32_t algorithm);

#endif
