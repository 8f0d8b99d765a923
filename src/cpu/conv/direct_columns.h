/* SPDX-License-Identifier: Apache-2.0 */
/* Images of at most four channels (the first layer of a network) as columns: the rows of the image
 * that a line of outputs reaches lie beside each other, pixel by pixel, four bytes each
 * (direct_kernel.h, struct qni_direct_columns). Then an output's inputs are one run of memory, and
 * the tile of a tap is 16 units of 64 bytes as they lie:
 *
 *     unit i     columns i * stride, i * stride + 1, ...     (per_unit of them)
 *     tap t      columns t * per_unit and on: unit i + t * per_unit / stride
 *
 * A pixel is written once for all outputs that it has a part in, but for units that overlap, where
 * a patch holds it once for each. For that, weights are zero for rows, columns and channels past
 * the kernel's, and a line of outputs ends with some units that are no output. */
#ifndef QNI_CPU_CONV_DIRECT_COLUMNS_H
#define QNI_CPU_CONV_DIRECT_COLUMNS_H

#include "cut.h"
#include "geometry.h"
#include "direct_kernel.h"

struct qni_columns qni_columns_of(const struct qni_op *op);
/* Scratch of a call. */
size_t qni_columns_bytes(const struct qni_columns *columns);
/* Units [y * units, (y + lines) * units) of an image: to dst, and up to 16 units behind it. */
struct qni_columns_to {
    uint8_t *dst, *scratch;
    const struct qni_direct_images *images;
    const struct qni_columns *columns;
};
void qni_columns_gather(const struct qni_op *op, uint8_t flip, int64_t image, int64_t y,
                        int64_t lines, const struct qni_columns_to *to);
/* A panel of values (direct_kernel.h) in the order of patches to that of units. */
void qni_columns_order(const struct qni_op *op, const struct qni_columns *columns,
                       const uint8_t *patches, uint8_t *units);
/* Bytes of such a panel in the order of patches at most. */
enum { QNI_COLUMNS_PANEL = 8 * 8 * 4 * 16 };

#endif
