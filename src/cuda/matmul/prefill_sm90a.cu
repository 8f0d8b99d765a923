/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill on Hopper: y = x . W^T for many rows of x, weights of 4 or 8 bits, x in f16 or bf16.
 *
 *     y[m, n] = sum over groups g of scale[n, g] * (sum over p in g of x[m, p] * (value - zero))
 *               + offset[n, g] * total[m, g]
 *
 * Codes become small integers in 16 bits, which is exact, and are the A operand of wgmma, from
 * registers: the fragment order of kernel.h is that operand's. x is the B operand, tile by tile in
 * shared memory as the copy engine writes it. A group's sum lives in accumulators of its own and is
 * scaled once, in f32, when the group ends; so weights are never rounded.
 *
 * A CTA works on 128 outputs: two warpgroups of 64 share the tile of x and take turns at the
 * tensor cores, two blocks of 64 positions a turn: while one's products run, the other scales its
 * sums; what it multiplies next it has unpacked while its own ran. Two more warps ask the copy
 * engine for all that comes. Weights of one group need no sums of their own: tiles of up to 256
 * tokens then, and products without a pause. Few tokens: prefill_teams.cuh.
 *
 * Bounds (lab/cuda/NOTES.md): the tensor cores need `tokens` clocks for 16 positions of 128
 * outputs, and get 87 % of the clocks, 96 % without groups; and power, which holds the clock at 1.4
 * to 1.7 GHz in long runs. x costs 32 bytes a clock from L2, codes 1024 / tokens.
 *
 * Few tiles, or few in the last round: two CTAs of a cluster cut the positions of each and exchange
 * half of their sums through distributed shared memory. It never synchronises with other clusters,
 * allocates, or adds in an order that depends on time. */
#include "prefill_kernel.cuh"

QNI_PREFILL(f16, q4frag, 64, false, 4, false)
QNI_PREFILL(f16, q4frag, 128, false, 4, false)
QNI_PREFILL(bf16, q4frag, 64, true, 4, false)
QNI_PREFILL(bf16, q4frag, 128, true, 4, false)
QNI_PREFILL_IMAGE(f16, q4frag, 128, false, 4, false)
QNI_PREFILL_IMAGE(f16, q4frag, 64, false, 4, false)
QNI_PREFILL_IMAGE(bf16, q4frag, 128, true, 4, false)
QNI_PREFILL_IMAGE(bf16, q4frag, 64, true, 4, false)
