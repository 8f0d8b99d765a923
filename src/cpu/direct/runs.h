/* SPDX-License-Identifier: Apache-2.0 */
/* Patches of an image with few channels (the first layer of a network): a row of taps is a run of
 * some bytes, so short that to find it costs more than to copy it. The lines of x that a line of
 * outputs reaches are copied once, with their padding; then a patch is kh copies of a fixed width,
 * each a little longer than its run, and the next one covers what was too much. */
#ifndef QNI_CPU_DIRECT_RUNS_H
#define QNI_CPU_DIRECT_RUNS_H

#include "../conv/patches.h"

/* Is it that kind of image, where rows of patches are `pixel` bytes apart? */
bool qni_has_runs(const struct qni_op *op, int64_t pixel);
/* Scratch of a call. */
size_t qni_runs_bytes(const struct qni_op *op);
/* Rows [row, row + rows) of the patch matrix to dst, every byte of x changed by flip; the bytes
 * after a patch are anything. */
void qni_runs_gather(const struct qni_op *op, uint8_t flip, int64_t row, int64_t rows,
                     int64_t pixel, uint8_t *dst, uint8_t *scratch);

#endif
