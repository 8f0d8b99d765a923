/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of x as kernels read them: packed order, padded with zeros, in the kernel's type, with the
 * facts of their segments beside them. Prepared rows of a unit lie in one piece of memory:
 *
 *     a           [rows, lda]           f32, int8, or planes of bf16 in the order of kernel.h
 *     row_scale   [rows]                Q8
 *     sum         [rows, ld_segment]    Q8, Q8B
 *     scale, offset, total  the same    Q8B; total also BF16 where weights have offsets
 */
#ifndef QNI_CPU_MATMUL_PREPARE_H
#define QNI_CPU_MATMUL_PREPARE_H

#include "../layouts.h"
#include "driver.h"

/* For the weights of this head, which are those of op or a part of them. */
struct qni_row_layout qni_row_layout_of(const struct qni_op *op, const struct qni_packed_head *head,
                                        const struct qni_matmul_kernel *kernel);
/* Memory of so many rows, a multiple of 64. */
size_t qni_prepared_bytes(const struct qni_row_layout *layout, int64_t rows);

struct qni_prepared {
    int64_t rows;
    uint8_t *a;
    float *row_scale;
    struct qni_facts facts;
};
struct qni_prepared qni_prepared_in(const struct qni_row_layout *layout, void *memory,
                                    int64_t rows);

/* Private scratch of one thread: what a source makes, and floats of one row. */
struct qni_row_scratch {
    void *source;
    uint8_t *raw; /* strip rows as the source makes them */
    size_t raw_ld;
    int64_t strip;
    float *wide;   /* [k] */
    float *packed; /* [units * 32] */
};
/* Rows that a source makes at a time. */
int64_t qni_strip_rows(const struct qni_op *op);
/* Bytes of source and raw, of wide and packed, and of wide alone. */
size_t qni_made_bytes(const struct qni_op *op, const struct qni_product_shape *shape);
size_t qni_row_floats_bytes(const struct qni_op *op);
size_t qni_widened_bytes(const struct qni_op *op);
struct qni_row_scratch qni_row_scratch_in(const struct qni_op *op,
                                          const struct qni_product_shape *shape, void *made,
                                          void *floats);

/* Prepare rows [row, row + n) of the product as rows [to, to + n) of `out`. */
struct qni_row_range {
    int64_t row, n, to;
};
void qni_prepare_rows(const struct qni_op *op, const struct qni_rows *rows,
                      const struct qni_row_source *source, const struct qni_part *part,
                      const struct qni_row_layout *layout, const struct qni_row_range *range,
                      const struct qni_prepared *out, const struct qni_row_scratch *scratch);

#endif
