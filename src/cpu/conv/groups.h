/* SPDX-License-Identifier: Apache-2.0 */
/* Convolutions of several groups that have more than one channel each, and not many (ResNeXt,
 * RegNet, ShuffleNet). A group on its own would be a product with few columns and a short sum, and
 * its patches would cost more than that product. Here
 *
 *     a band of x, a block of channels --> f32 [row][column][channels], borders real
 *                                      --> kernel: all taps, vectors across the groups (kernel.h)
 *                                      --> y, or a tile --> epilogue --> y
 *
 * and the weights of a block are made floats once for all its bands. Nothing here allocates. */
#ifndef QNI_CPU_CONV_GROUPS_H
#define QNI_CPU_CONV_GROUPS_H

#include "../backend.h"

/* False: no row of this list serves; choice is untouched. Pure. */
bool qni_groups_select(const qn_ctx *ctx, const struct qni_op *op, struct qni_cpu_choice *choice,
                       qni_refusal_fn tell, void *arg);
bool qni_is_groups(const struct qni_cpu_choice *choice);
void qni_groups_run(const qn_ctx *ctx, const struct qni_op *op, const struct qni_cpu_choice *choice,
                    void *scratch);

#endif
