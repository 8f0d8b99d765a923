/* SPDX-License-Identifier: Apache-2.0 */
/* Sums that left f32 on the way. Float kernels add up a group before they scale it, and products
 * before others take away from them, so a row of large x (or weights near the end of f32) may pass
 * through an infinity although its result is a number. An infinity never leaves an f32 sum again:
 * it stays one or becomes a NaN. So nothing is asked of x or of the weights beforehand; results
 * that are no numbers are computed again, in double, where
 *
 *     |x| |prescale| (|scale| |value| + |offset|) k  <  2^128 2^128 2^137 2^63  <  2^1023
 *
 * cannot overflow. Where kernels round weights to bf16, weights are rounded here too, to as many
 * digits but beyond its largest number. Results that are numbers are left as they are, so what a
 * result is depends on nothing but its row and its weights. A row that holds an infinity or a NaN
 * keeps what it has. */
#ifndef QNI_CPU_MATMUL_OVERFLOW_H
#define QNI_CPU_MATMUL_OVERFLOW_H

#include "../rows/kernel.h"
#include "prepare.h"

/* Results of rows [row, row + rows) of a part and of panels [panel, panel + n_panels) of its
 * weights. */
struct qni_overflow_tile {
    const struct qni_part *part;
    int64_t row, rows;
    int64_t panel, n_panels;
    float *c;
    size_t ldc;
    bool rounds; /* weights, to bf16 */
};

/* For a tile in which something is not finite. scratch, of which packed is not used, is private to
 * the thread. */
void qni_overflow_recompute(const struct qni_op *op, const struct qni_rows *rows,
                            const struct qni_row_source *source,
                            const struct qni_overflow_tile *tile,
                            const struct qni_row_scratch *scratch);

#endif
