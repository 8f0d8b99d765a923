/* SPDX-License-Identifier: Apache-2.0 */
/* The packed weights of the taps that one phase of a transposed convolution reads. Every tap is
 * read in one phase of each axis, so a stride of 2 x 2 leaves a quarter of the taps to each
 * phase: weights are copied once in all and three quarters of the products, and of the patches,
 * are zeros that nobody makes.
 *
 * The bits are those of all taps: a tap that reads nothing contributes a zero to an integer sum,
 * fma(s, 0, acc) = acc, and zeros change no amax. Two things could change them and make
 * qni_has_phase_weights() say no: zeros with codes of their own (asymmetric int8-block), and
 * segments that would be cut elsewhere. */
#ifndef QNI_CPU_CONV_PHASE_WEIGHTS_H
#define QNI_CPU_CONV_PHASE_WEIGHTS_H

#include "../../base/context.h"
#include "geometry.h"

/* Can taps be left out? Taps must begin with a unit of 32 positions, or with a vector of four of
 * bytes in one group, and groups or segments with a tap. */
bool qni_has_phase_weights(const struct qni_op *op);

struct qni_phase_weights {
    struct qni_packed_head head;
    struct qn_packed packed;
};

/* The most that a phase takes. */
size_t qni_phase_weights_bytes(const struct qni_op *op);
/* The weights of the taps (y, x) of a phase, in memory of that many bytes, 64-byte aligned.
 * Valid while out stays. */
void qni_phase_weights_make(const qn_ctx *ctx, const struct qni_op *op,
                            const struct qni_taps taps[2], void *memory,
                            struct qni_phase_weights *out);

#endif
