/* SPDX-License-Identifier: Apache-2.0 */
/* Which rows and outputs a tile of results belongs to, and where y has them: what drivers tell the
 * epilogue. */
#ifndef QNI_CPU_ROWS_SINK_H
#define QNI_CPU_ROWS_SINK_H

#include "../../quant/packed.h"

/* A range of rows and the panels they meet. */
struct qni_part {
    const qn_packed *w;
    int64_t panel, n_panels; /* of w; with QN_GATE_HALVES the gates, and as many follow them */
    int64_t n;               /* outputs in these panels */
    int64_t column;          /* the first of them, as a column of y, residual, bias, col_scale */
    int64_t expert;          /* the row of bias and col_scale where these have two dimensions */
    int64_t row, n_rows;     /* of source and sink */
    int64_t tag;             /* for the source: e.g. which convolution group */
};

/* Where y (and the residual, of the same shape) has its rows. Row r is i = index[r * index_stride],
 * or i = r; i = (a * size[0] + b) * size[1] + c; its element j is at
 * a * stride[0] + b * stride[1] + c * stride[2] + j * stride[3]. row_scale is indexed by i. */
struct qni_row_sink {
    void *y;
    qn_dtype dtype;
    const int32_t *index;
    int64_t index_stride;
    int64_t size[2];
    int64_t stride[4];    /* elements */
    const void *residual; /* of the type of the epilogue's tensor; NULL: none */
    int64_t residual_stride[4];
};

/* A plain matrix. residual: rank 0 for none. */
struct qni_row_sink qni_sink_of_matrix(const qn_tensor *y, const qn_tensor *residual);

#endif
