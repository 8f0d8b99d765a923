/* SPDX-License-Identifier: Apache-2.0 */
/* int8 prefill on Hopper: the kernel of prefill_sm90a.cu for many rows of int8 codes with a scale
 * each (int8-row, int8-static). Codes of weights become signed bytes, which are the A operand of
 * wgmma m64nNk32 from registers; x, in the same order of positions (by step: kernel.h), is the B
 * operand as the copy engine writes it; sums are int32, and what is done with them is that of every
 * other int8 kernel, so that the bits are the same.
 *
 *     one segment   all of k is one exact sum, in tiles of 128 outputs x up to 256 tokens
 *     segments      of whole turns of 128 positions: a warpgroup takes the f32 steps of one
 *                   (segments.cuh) while the other's products run. Of 32 or 64, with a scale of x
 *                   each: prefill_short.cuh
 *
 * Bound: 4096 multiply-adds a clock; x and codes of 8 bits take 48 bytes a clock from L2, and a
 * segment's end 3 to 5 instructions a sum, of 128 positions almost the time of its products. Two
 * CTAs of a cluster cut the sums of one segment as prefill_sm90a.cu does, which is exact. */
#include "prefill_int8_launch.cuh"

QNI_PREFILL_INT8(q8, q4frag, Q8, 4)
QNI_PREFILL_INT8_IMAGE(q4frag, 4)
