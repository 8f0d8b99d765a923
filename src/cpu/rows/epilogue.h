/* SPDX-License-Identifier: Apache-2.0 */
/* From a tile of a product to y: every step of qn_epilogue in the order and with the roundings of
 * docs/numerics.md. First whole rows of the tile are scaled and biased; then lines are finished and
 * stored. A line is a row of the tile, or a column of it where y has its rows next to each other
 * (NCHW images), so that y is always written in the direction of its memory. */
#ifndef QNI_CPU_ROWS_EPILOGUE_H
#define QNI_CPU_ROWS_EPILOGUE_H

#include "../../base/size.h"
#include "../../quant/op.h"
#include "../matmul/kernel.h"
#include "kernel.h"
#include "sink.h"

/* The epilogue of an operation, made once a run. */
struct qni_epilogue {
    const struct qni_op *op;
    const struct qni_rows *rows;
    struct qni_row_sink sink;      /* with rows that follow each other in memory told so */
    int32_t raw;                   /* the kernel gives int32 sums */
    int32_t has_zeros;             /* from which zero points of the weights are to be taken */
    int32_t by_column;             /* lines are columns */
    int32_t is_store;              /* nothing happens but the scale of a row of x */
    int32_t is_floats;             /* steps are those of float_rows() */
    float x_scale;                 /* of int8-static; 1 */
    struct qni_finish_step finish; /* all but residual and y */
};

/* Scratch of one call. */
enum {
    QNI_EPILOGUE_COLUMNS = 1024, /* of a tile at most */
    QNI_EPILOGUE_ROWS = 256
};
struct qni_epilogue_scratch {
    float col_scale[QNI_EPILOGUE_COLUMNS];
    float bias[QNI_EPILOGUE_COLUMNS]; /* or int32 */
    float w_scale[QNI_EPILOGUE_COLUMNS];
    int32_t w_zero[QNI_EPILOGUE_COLUMNS];
    float lines[QNI_PANEL * QNI_EPILOGUE_ROWS]; /* last: of tiles of few rows less is used */
};
/* For tiles of at most so many rows. */
static inline size_t qni_epilogue_bytes(int64_t rows)
{
    const size_t line = qni_round_up((size_t)qni_min(rows, QNI_EPILOGUE_ROWS), QNI_PANEL);
    return offsetof(struct qni_epilogue_scratch, lines) + QNI_PANEL * line * sizeof(float);
}

struct qni_epilogue qni_epilogue_make(const struct qni_op *op, const struct qni_rows *rows,
                                      const struct qni_row_sink *sink);

/* A tile: rows [row, row + rows) of the product and outputs [output, output + n) of the part. */
struct qni_epilogue_tile {
    const struct qni_part *part;
    int64_t row, rows;
    int64_t output, n;
    float *c; /* rows, ldc apart; changed */
    size_t ldc;
    const float *x_scale; /* of each row, or NULL */
    float *other;         /* QN_GATE_HALVES: outputs part->n on, laid out as c; else NULL */
    bool is_scaled;       /* rows have been multiplied by the scale of x; only if is_store */
    bool is_far;          /* y is more than the second cache holds: stores may pass the caches by */
    /* Of has_zeros: sums of the codes of x by segments, rows ld_sum apart, of k positions. */
    const int32_t *x_sum;
    size_t ld_sum;
    int64_t n_sums, k;
};

/* Where the part's first output of this row is in y, if the rows [row, row + rows) are evenly
 * spaced and their f32 outputs next to each other, so that a kernel may write into y; else NULL.
 * *ldc: elements from row to row. */
float *qni_epilogue_direct(const struct qni_epilogue *e, const struct qni_part *part, int64_t row,
                           int64_t rows, size_t *ldc);

void qni_epilogue_run(const struct qni_epilogue *e, const struct qni_epilogue_tile *tile,
                      struct qni_epilogue_scratch *scratch);

#endif
