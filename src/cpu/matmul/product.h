/* SPDX-License-Identifier: Apache-2.0 */
/* How a product is cut (cut.h): the numbers of a tile, a unit and a thread. All of it follows from
 * the operation, the shape and the context. */
#ifndef QNI_CPU_MATMUL_PRODUCT_H
#define QNI_CPU_MATMUL_PRODUCT_H

#include "../rows/epilogue.h"
#include "expand.h"
#include "prepare.h"

/* The table of kernels.inc. */
const struct qni_matmul_kernel *qni_matmul_kernel_at(int32_t i);
/* The number of the kernel of a choice that serves a part of m rows. */
int32_t qni_choice_index(const struct qni_cpu_choice *choice, int64_t m);

/* Is it for int8 without an instruction that adds products of bytes? Rows take so long there that a
 * unit more or less would show in a thread, as with floats of vectors. */
static inline bool qni_cuts_bytes(const struct qni_matmul_kernel *kernel)
{
    return kernel->needs == QN_ISA_AVX2 && kernel->reads != QNI_READS_F32;
}

/* A tile of 32-bit results stays in the second cache with what it is made from. Its rows are a line
 * longer than they need be: at powers of two, rows of a column would meet in few sets of the first
 * cache. */
enum { QNI_TILE_BYTES = 320 * 1024, QNI_TILE_PAD = 16 };

/* A tile is larger for weights or copies of rows to be made less often: where weights are rounded,
 * rows come from beyond the second cache once for all of its panels; where rows are copied, that is
 * once for all of them. */
enum { QNI_LARGE_TILE_BYTES = 512 * 1024, QNI_ROUNDED_PANELS = 16 };
static inline int64_t qni_tile_bytes(const struct qni_matmul_kernel *kernel)
{
    const bool large = (kernel->traits & (QNI_ROUNDS_WEIGHTS | QNI_TAKES_SPANS)) != 0;
    return large ? QNI_LARGE_TILE_BYTES : QNI_TILE_BYTES;
}

/* Panels of a tile of so many rows. */
static inline int64_t qni_kernel_panels(const struct qni_matmul_kernel *kernel, int64_t rows)
{
    const bool rounds = (kernel->traits & QNI_ROUNDS_WEIGHTS) != 0;
    const int64_t most = rounds ? QNI_ROUNDED_PANELS : QNI_EPILOGUE_COLUMNS / QNI_PANEL;
    const int64_t fit = qni_tile_bytes(kernel) / (QNI_PANEL * 4) / qni_max(rows, 1);
    return qni_max(1, qni_min(fit, most));
}

/* Rows of a unit. Depends on the shape of the product alone; a call takes no more than its plan,
 * which was made for the most rows. The layouts of choice->cut are made. */
int64_t qni_unit_rows(const qn_ctx *ctx, const struct qni_product_shape *shape,
                      const struct qni_cpu_choice *choice);

/* Rows that a unit of a kernel has at most which makes weights: once for all of them. */
int64_t qni_rows_of_made(const struct qni_matmul_kernel *kernel,
                         const struct qni_row_layout *layout);

/* As few pieces as those of so many rows, but even ones, multiples of mr. */
int64_t qni_even_rows(int64_t m, int64_t rows, int64_t mr);

/* Fill choice->cut.product for kernels that are chosen: layouts first, and the scratch of a thread
 * when block_m is known, too. */
void qni_product_cut_layouts(const struct qni_op *op, const struct qni_product_shape *shape,
                             struct qni_cpu_choice *choice);
void qni_product_cut_scratch(const struct qni_op *op, const struct qni_product_shape *shape,
                             struct qni_cpu_choice *choice);

/* The private scratch of a thread. Rows are prepared before they are multiplied, so `floats` lies
 * where tile, epilogue and kernel do, and after_tile where the last two. */
struct qni_thread_scratch {
    void *made;     /* of prepare.h, as are floats and after_tile */
    void *prepared; /* block_m rows */
    void *floats, *after_tile;
    float *tile;
    struct qni_epilogue_scratch *epilogue;
    uint8_t *weights; /* panels made of compact weights */
    void *kernel;
    int64_t unit; /* whose rows the kernel met last, by the rows before it, and what it keeps */
    int32_t kept;
};
/* In memory of cut->end bytes. */
struct qni_thread_scratch qni_thread_scratch_in(const struct qni_product_cut *cut, uint8_t *memory);

#endif
