/* SPDX-License-Identifier: Apache-2.0 */
/* Several groups of a convolution as one. A tile sums 64 channels of a tap; of groups that have
 * fewer, as many as fit lie side by side in it. Such a slab is convolved as if it were a single
 * group, with weights of 0 where a channel and an output are of different groups:
 *
 *                 channels    group 0 | group 1 | group 2 | none
 *     outputs of group 0   [    w0    |    0    |    0    |  0  ]
 *                group 1   [    0     |    w1   |    0    |  0  ]
 *                group 2   [    0     |    0    |    w2   |  0  ]
 *
 * A product with 0 is 0 and sums are integers, so they are those of the groups on their own. An
 * output costs as many tile products a tap as its slab has 64 channels: the same for any group of
 * up to 64, where a group on its own would have a patch and a tile for each few of its outputs.
 *
 * Groups of 32 outputs have a block of outputs each. If neighbouring taps of one of them are a run
 * of bytes that divides into even steps (three taps of 32 channels: two steps of 48) and that makes
 * fewer products, they lie apart instead: each has lines of its own (direct_shape.h), weights stay
 * in their order, and no product is with a 0. Nothing here multiplies. */
#ifndef QNI_CPU_CONV_DIRECT_SLABS_H
#define QNI_CPU_CONV_DIRECT_SLABS_H

#include "../../base/size.h"
#include "../../quant/op.h"
#include "cut.h"
#include "direct_kernel.h"

/* Weights of groups that lie apart, of few rows: a call more costs more than that they leave the
 * first cache (32 groups by 20, 40 and 80 KiB: 0.80, 0.73 and 0.66 of the time of slabs). */
enum { QNI_APART_BYTES = 80 * 1024 };
struct qni_slabs qni_slabs_of(const struct qni_op *op);
/* Steps of a run of so many bytes, all alike and of whole dwords; 0 if there is no such number. */
int64_t qni_even_steps(int64_t run);
/* Do weights of a slab that is not apart have to be moved? Not those of one group that ends with a
 * step; and rows of a single group that does not may be patches, in the order of weights. */
bool qni_slabs_move(const struct qni_op *op);

struct qni_slab {
    int64_t group, groups, channel, channels, output, outputs;
};
struct qni_slab qni_slab_at(const struct qni_op *op, const struct qni_slabs *slabs, int64_t index);

/* The lane of the packed panels that holds output `output` of the slab. */
static inline int64_t qni_slab_lane(const struct qni_op *op, const struct qni_slab *slab,
                                    int64_t output)
{
    const int64_t co = op->conv.co, panels = op->w[0]->head->panels / op->conv.groups;
    return (slab->group + output / co) * panels * QNI_PANEL + output % co;
}

/* Panel `panel` of the slab's weights as values (direct_kernel.h), taps * pixel positions. */
struct qni_slab_weights {
    qni_direct_unpack_fn *unpack;
    int32_t layout;
    uint8_t *panel; /* qni_slab_panel_bytes() */
};
size_t qni_slab_panel_bytes(const struct qni_op *op);
void qni_slab_panel(const struct qni_op *op, const struct qni_slabs *slabs,
                    const struct qni_slab *slab, int64_t panel,
                    const struct qni_slab_weights *weights, uint8_t *to);

#endif
