/* SPDX-License-Identifier: Apache-2.0 */
/* FP8 on Hopper: the kernel of prefill_row_q4_sm90a.cu for weights of e4m3 and rows of x of e4m3,
 * with a scale a row or one for each 128 positions. Codes are multiplied as they lie, by wgmma
 * m64nNk32; its sums have fewer than the 24 bits of f32, so they leave the tensor cores every 128
 * positions and are added in f32, times the scale of the weights' group (and of the rows' block).
 *
 * Bound: 4096 multiply-adds a clock; an fma (and a product) a sum every 128 positions beside them.
 * Reached on an H100, rows quantized first: a scale a row 792 TFLOP/s (4096 x 14336 x 4096), one
 * for 128 columns 641; 64 rows of 14336 x 4096 in 31 us. */
#include "prefill_int8_launch.cuh"

namespace
{

template <int READS, bool GENERAL>
int32_t launch_e4m3(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                    const struct qni_cuda_launch *l)
{
    struct choice best = {};
    if (p->m == 0 || p->w.panels == 0)
        return 0;
    consider<form8<READS, 8, 128, PAIRS, GENERAL>>(best, p, l, READS == E4M3 ? 300 : 380);
    if (p->routes.tiles == NULL) {
        consider<form8<READS, 8, 64, PAIRS, GENERAL>>(best, p, l, READS == E4M3 ? 220 : 260);
        consider<form8<READS, 8, 32, PAIRS, GENERAL>>(best, p, l, 200);
    }
    return best.start(p, experts, l, best.splits);
}

} /* namespace */

#define QNI_PREFILL_E4M3(reads, READS)                                                             \
    extern "C" int32_t qni_matmul_##reads##_t8frag_mr128_sm90a(                                    \
        const struct qni_cuda_product *product, const struct qni_cuda_experts *experts,            \
        const struct qni_cuda_launch *l)                                                           \
    {                                                                                              \
        return is_general(product) ? launch_e4m3<READS, true>(product, experts, l)                 \
                                   : launch_e4m3<READS, false>(product, experts, l);               \
    }
QNI_PREFILL_E4M3(e4m3, E4M3)
QNI_PREFILL_E4M3(e4m3b, E4M3B)
