/* SPDX-License-Identifier: Apache-2.0 */
/* How the work of a product is cut: what its loops decide, and where the scratch of a thread lies.
 * A plan makes it once and carries it (struct qni_cpu_choice); a run follows it. Plain data. */
#ifndef QNI_CPU_MATMUL_CUT_H
#define QNI_CPU_MATMUL_CUT_H

#include <stddef.h>
#include <stdint.h>

#include "../../quant/cut.h"
#include "../../quant/op.h"

/* How the rows of a product are prepared for a kernel. */
struct qni_row_layout {
    int32_t reads, planes;
    int32_t halves; /* groups have at most 16 positions */
    struct qni_cut cut;
    int64_t units;       /* of a row: those of the cut, or half as many, of two groups each */
    size_t lda;          /* bytes of a row */
    size_t ld_segment;   /* elements; 0: no facts */
    int32_t n_facts;     /* arrays of [rows, ld_segment] */
    int32_t is_identity; /* what is prepared has the order of columns, without padding */
    int32_t is_short;    /* padding is behind all columns, and the kernel takes rows without it */
};

/* What a product will look like at most: enough to choose kernels and to size scratch. */
struct qni_product_shape {
    int64_t m;      /* rows of all parts together (a convolution: rows times groups) */
    int64_t part_m; /* rows of the largest part */
    int64_t n_parts;
    int64_t n_panels;    /* of a part */
    int32_t is_made;     /* the source has a fill */
    size_t source_bytes; /* its scratch_bytes */
};

struct qni_product_cut {
    struct qni_product_shape shape;                /* that it was made for */
    struct qni_row_layout layout[QNI_MAX_CHOICES]; /* of the rows of each kernel of the choice */
    size_t shared_row_bytes; /* of a prepared row in shared scratch, facts and alignment included:
                              * the largest of the layouts */
    /* Where the scratch of a thread has what (struct qni_thread_scratch). */
    size_t made, prepared, weights, floats, tile, after_tile, epilogue, kernel, end;
};

#endif
