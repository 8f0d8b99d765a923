/* SPDX-License-Identifier: Apache-2.0 */
/* How a grouped convolution is cut, and its weights in the order of its kernels. */
#ifndef QNI_CPU_CONV_GROUPS_SHAPE_H
#define QNI_CPU_CONV_GROUPS_SHAPE_H

#include "values.h"
#include "../../quant/op.h"
#include "cut.h"
#include "kernel.h"

struct qni_groups_shape qni_groups_shape_of(const struct qni_op *op,
                                            const struct qni_conv_kernel *kernel);

/* Inputs that so many outputs of an axis meet. */
int64_t qni_groups_reach(const struct qni_op *op, const struct qni_groups_shape *s, int axis,
                         int64_t outputs);

/* Groups of the block that exist: [first, first + n). */
static inline int64_t qni_groups_of_block(const struct qni_op *op, const struct qni_groups_shape *s,
                                          int64_t block, int64_t *first)
{
    *first = block * s->block * s->groups_of_set;
    return qni_min(op->conv.groups - *first, s->block * s->groups_of_set);
}

/* Real positions in packed order -> places[k]; segments[n_segments + 1] of whole taps. False: a
 * segment cuts a tap, or is too long for exact sums of floats. places, segments may be NULL. */
bool qni_groups_order(const struct qni_op *op, qn_strategy strategy,
                      struct qni_groups_place *places, int32_t *segments);

struct qni_groups_weights {
    float *w, *scale, *offset, *sums; /* as the tile has them; NULL: none */
    float *rows;                      /* float: room for the scales and offsets of a panel */
};
void qni_groups_weights_make(const struct qni_op *op, const struct qni_groups_shape *s,
                             const struct qni_conv_kernel *kernel,
                             const struct qni_groups_place *places, int64_t block,
                             const struct qni_groups_weights *to);

#endif
