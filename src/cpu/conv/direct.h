/* SPDX-License-Identifier: Apache-2.0 */
/* Direct convolutions: int8 images, given scales, weights with one scale an output. The rows of the
 * patch matrix are never made; a kernel (kernel.h) reads each tap where it lies, because every tap
 * is the same distance from the first for all outputs of a band. Five ways to have that:
 *
 *     in place   1 x 1, stride 1, no padding, NHWC: rows are the pixels of x
 *     planes     a band of x is copied once, apart by the phase of the stride, with its padding:
 *
 *                plane (py, px) [row j][image b][column i] = x[b, s j + py - pad, s i + px - pad]
 *                tap (ky, kx): plane (ky d mod s, kx d mod s), moved by ky d / s rows and
 *                              kx d / s columns
 *
 *                so output (j, b, i) finds its inputs at (j * images + b) * columns + i, plus what
 *                depends on the tap alone. Padding at the end of a line is that at the begin of the
 *                next one. Planes have some columns more than there are outputs all the same; those
 *                rows are computed in vain, unless that is more than a copy for every kx costs,
 *                which needs none
 *     lines      channels that are not whole steps of 64: one plane, its lines as they lie in x.
 *                Outputs are `stride` pixels apart, taps that are neighbours are one run of bytes,
 *                and its last step reaches into what follows, times weights that are zeros. So it
 *                is in place, too, where only the last rows of x are copied
 *     columns    few channels: the rows of x that a line of outputs reaches, interleaved pixel by
 *                pixel (columns.h)
 *     patches    rows gathered as in ../conv: whatever else there is
 *
 * A thread takes a band (outputs whose inputs stay in its second cache) and all channels, or all
 * outputs and a range of channels, whichever should take less time: few outputs make poor tiles,
 * and large weights should be read once. */
#ifndef QNI_CPU_CONV_DIRECT_H
#define QNI_CPU_CONV_DIRECT_H

#include "../backend.h"

/* True: a row of kernels.inc serves, and choice is filled. tell (may be NULL) hears why the others
 * do not. Pure. */
bool qni_direct_conv_select(const qn_ctx *ctx, const struct qni_op *op,
                            struct qni_cpu_choice *choice, qni_refusal_fn tell, void *arg);
/* Is this choice one of ours? */
bool qni_is_direct(const struct qni_cpu_choice *choice);
void qni_direct_conv_run(const qn_ctx *ctx, const struct qni_op *op,
                         const struct qni_cpu_choice *choice, void *scratch);

#endif
