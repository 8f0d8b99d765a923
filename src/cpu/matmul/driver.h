/* SPDX-License-Identifier: Apache-2.0 */
/* The loops around the matmul kernels: threads, row preparation, kernel, epilogue. A plain matmul,
 * a grouped matmul and a convolution differ only in where the rows of x come from, where the rows
 * of y go and which panels of which weights a range of rows meets; so each of them describes a
 * product and calls qni_product_run().
 *
 *     source rows --> prepared rows (packed order; f32, bf16 or int8 with its facts)
 *                 --> kernel --> tile --> epilogue --> sink
 *
 * A part is a range of rows that meets a range of panels: the whole product of a matmul, one expert
 * of a grouped matmul, one group of a convolution. Rows of a part are cut in units of at most
 * block_m rows. The cut depends on the product alone, never on threads, and so do the bits. Two
 * orders of work, chosen by size:
 *
 *     private   an item is a unit and some of its panels; a thread prepares the unit's rows in its
 *               own scratch (once, if its next item is of the same unit). One fork.
 *     shared    the rows of several units are prepared by all threads, joined, and then items
 *               (panels, unit) are dealt out: panels meet all these units while their codes are in
 *               the cache. Two forks.
 *
 * Nothing here allocates. */
#ifndef QNI_CPU_MATMUL_DRIVER_H
#define QNI_CPU_MATMUL_DRIVER_H

#include "../backend.h"
#include "../rows/sink.h"

/* Rows of x: k elements each (k of the packed weights), in the order of columns, of the type of x.
 * Reordering (groups, act-order), prescale, conversion and quantization are the driver's work. Rows
 * lie in memory, or are made. */
struct qni_row_source {
    qn_dtype dtype;       /* f32, f16, bf16; i8, u8 for int8-static */
    const void *x;        /* fill == NULL: row r is row index[r * index_stride] of this, or r */
    int64_t ldx;          /* elements */
    const int32_t *index; /* NULL: none */
    int64_t index_stride;
    /* Or: write rows [row, row + n_rows) to dst, ld bytes apart (a multiple of 64; dst is 64-byte
     * aligned). What lies between k elements and ld may be written or left alone. Called by many
     * threads at once; scratch is private to the thread, 64-byte aligned, scratch_bytes long. */
    void (*fill)(const void *arg, const struct qni_part *part, int64_t row, int64_t n_rows,
                 void *dst, size_t ld, void *scratch);
    const void *arg;
    size_t scratch_bytes;
};

struct qni_product {
    struct qni_row_source source;
    struct qni_row_sink sink;
    const struct qni_part *parts;
    int64_t n_parts;      /* empty parts are legal */
    bool has_own_weights; /* parts are of weights with fewer taps than those of the operation */
};

/* The source of a plain matrix. */
struct qni_row_source qni_source_of_matrix(const qn_tensor *x);

/* Fill choice for a product of this shape with the weights, types, strategy and epilogue of op.
 * Pure. A caller that needs scratch of its own adds it to scratch_bytes and hands the rest on.
 * QN_E_UNSUPPORTED if no row serves; tell (may be NULL) hears of every row that was not chosen. */
qn_status qni_product_select(const qn_ctx *ctx, const struct qni_op *op,
                             const struct qni_product_shape *shape, struct qni_cpu_choice *choice,
                             qni_refusal_fn tell, void *arg);

/* Compute a product that is nowhere larger than the shape selected for. scratch: shared_bytes +
 * n_threads * thread_bytes of the choice, 64-byte aligned. */
void qni_product_run(const qn_ctx *ctx, const struct qni_op *op,
                     const struct qni_cpu_choice *choice, const struct qni_product *product,
                     void *scratch);

/* A plain matmul as a product. */
qn_status qni_matmul_select(const qn_ctx *ctx, const struct qni_op *op,
                            struct qni_cpu_choice *choice, qni_refusal_fn tell, void *arg);
void qni_matmul_run(const qn_ctx *ctx, const struct qni_op *op, const struct qni_cpu_choice *choice,
                    void *scratch);

#endif
