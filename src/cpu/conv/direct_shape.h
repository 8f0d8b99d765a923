/* SPDX-License-Identifier: Apache-2.0 */
/* How a direct convolution is cut: where its rows come from, which bands there are, and what a
 * thread needs (cut.h). Follows from operation and context alone. */
#ifndef QNI_CPU_CONV_DIRECT_SHAPE_H
#define QNI_CPU_CONV_DIRECT_SHAPE_H

#include "patches.h"
#include "kernel.h"
#include "direct_slabs.h"

/* Rows in place whose last step reaches into the next one: fewer rows than this at the end of x are
 * copied, so that nothing is read behind it. */
enum { QNI_DIRECT_TAIL = 64 };

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
    int64_t *at;      /* [band_rows] gathers: direct_kernel.h */
    uint8_t **y;      /* [band_rows] */
    uint8_t *nowhere; /* n bytes that nobody reads */
    uint8_t *turned;  /* [most_rows, blocks_per_call * 32] bytes before they go to planes */
    float *c;         /* [QNI_DIRECT_WORDS, or most_rows of whole lines, 32] */
    void *line, *kernel;
    struct qni_epilogue_scratch *epilogue;
};
enum { QNI_DIRECT_WORDS = 256 };
/* The scratch of a thread in memory of scratch_at[QNI_DIRECT_PARTS] bytes. */
struct qni_direct_scratch qni_direct_scratch_in(const struct qni_direct_shape *shape,
                                                uint8_t *memory);
/* Bytes, for this batch and every smaller one, whatever the strides of x: from run to run they may
 * change. shape: of op as it is. */
size_t qni_direct_scratch_bytes(const qn_ctx *ctx, const struct qni_op *op, int32_t algorithm,
                                const struct qni_direct_shape *shape);

#endif
