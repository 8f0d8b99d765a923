/* SPDX-License-Identifier: Apache-2.0 */
/* Patches of an image with few channels that direct_columns.h does not take: a row of taps is a run
 * of some bytes, so short that to find it costs more than to copy it. The lines of x that a line of
 * outputs reaches are copied once, with their padding; then a kernel (direct_kernel.h) puts the
 * runs of a patch together, 64 bytes at a time. */
#ifndef QNI_CPU_CONV_DIRECT_RUNS_H
#define QNI_CPU_CONV_DIRECT_RUNS_H

#include "patches.h"
#include "direct_kernel.h"

/* Is it that kind of image, where rows of patches are `pixel` bytes apart? */
bool qni_has_runs(const struct qni_op *op, int64_t pixel);
/* Scratch of a call. */
size_t qni_runs_bytes(const struct qni_op *op);
struct qni_runs_to {
    uint8_t *dst;
    int64_t pixel;
    uint8_t *scratch;
    qni_direct_runs_fn *copy;
};
/* Rows [row, row + rows) of the patch matrix, every byte of x changed by flip. */
void qni_runs_gather(const struct qni_op *op, uint8_t flip, int64_t row, int64_t rows,
                     const struct qni_runs_to *to);

#endif
