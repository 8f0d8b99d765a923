/* SPDX-License-Identifier: Apache-2.0 */
/* Which form of the prefill kernel rows of int8 take, and the rows of kernels.inc that have it. */
#ifndef QNI_CUDA_MATMUL_PREFILL_INT8_LAUNCH_CUH
#define QNI_CUDA_MATMUL_PREFILL_INT8_LAUNCH_CUH

#include "prefill_kernel.cuh"

namespace
{

/* Tiles of few tokens for few rows: what comes one after the other is what counts then. */
template <int READS, int BITS, int MODE, bool GENERAL>
void consider_short(struct choice &best, const struct qni_cuda_product *p,
                    const struct qni_cuda_launch *l, const int (&ns)[4])
{
    consider<form8<READS, BITS, 128, MODE, GENERAL>>(best, p, l, ns[3]);
    if (p->routes.tiles != NULL)
        return;
    consider<form8<READS, BITS, 64, MODE, GENERAL>>(best, p, l, ns[2]);
    consider<form8<READS, BITS, 32, MODE, GENERAL>>(best, p, l, ns[1]);
    consider<form8<READS, BITS, 16, MODE, GENERAL>>(best, p, l, ns[0]);
}

/* Nanoseconds of a turn of 128 positions, as in launch(). Routes are cut to 128 tokens. */
template <int READS, int BITS, bool GENERAL>
int32_t launch_int8(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                    const struct qni_cuda_launch *l)
{
    struct choice best = {};
    const bool any = p->routes.tiles == NULL;
    if (p->m == 0 || p->w.panels == 0)
        return 0;
    if (READS == Q8 && p->w.n_segments <= 1) {
        if constexpr (READS == Q8) {
            consider<form8<READS, BITS, 128, WHOLE, GENERAL>>(best, p, l, 370);
            if (any) {
                consider<form8<READS, BITS, 64, WHOLE, GENERAL>>(best, p, l, 260);
                consider<form8<READS, BITS, 256, WHOLE, GENERAL>>(best, p, l, 700);
            }
        }
    } else if (READS == Q8B && p->w.n_segments > 1 && p->w.segment_units == 1) {
        const int ns[4] = {800, 1000, 1560, 2650};
        if constexpr (READS == Q8B)
            consider_short<READS, BITS, UNITS, GENERAL>(best, p, l, ns);
    } else if (READS == Q8B && p->w.n_segments > 1 && p->w.segment_units == 2) {
        const int ns[4] = {500, 640, 950, 1400};
        if constexpr (READS == Q8B)
            consider_short<READS, BITS, BLOCKS, GENERAL>(best, p, l, ns);
    } else if (READS == Q8B && p->w.n_segments > 1 && p->w.segment_units == 4 &&
               (p->w.n_groups <= 1 || p->w.group_units == 4)) {
        const int ns[4] = {370, 450, 620, 950};
        if constexpr (READS == Q8B)
            consider_short<READS, BITS, PAIR, GENERAL>(best, p, l, ns);
    } else {
        consider<form8<READS, BITS, 128, PAIRS, GENERAL>>(best, p, l, 450);
        if (any)
            consider<form8<READS, BITS, 64, PAIRS, GENERAL>>(best, p, l, 330);
    }
    return best.start(p, experts, l, best.splits);
}

template <int BITS>
int32_t launch_narrow(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                      const struct qni_cuda_launch *l)
{
    struct choice best = {};
    if (p->m == 0 || p->w.panels == 0)
        return 0;
    if (p->w.n_segments <= 1) {
        consider<form8<Q8, BITS, 128, WHOLE, true, true>>(best, p, l, 370);
        consider<form8<Q8, BITS, 64, WHOLE, true, true>>(best, p, l, 260);
    } else {
        consider<form8<Q8, BITS, 128, PAIRS, true, true>>(best, p, l, 450);
        consider<form8<Q8, BITS, 64, PAIRS, true, true>>(best, p, l, 330);
    }
    return best.start(p, experts, l, best.splits);
}

} /* namespace */

#define QNI_PREFILL_INT8(reads, layout, READS, bits)                                               \
    extern "C" int32_t qni_matmul_##reads##_##layout##_mr128_sm90a(                                \
        const struct qni_cuda_product *product, const struct qni_cuda_experts *experts,            \
        const struct qni_cuda_launch *l)                                                           \
    {                                                                                              \
        return is_general(product) ? launch_int8<READS, bits, true>(product, experts, l)           \
                                   : launch_int8<READS, bits, false>(product, experts, l);         \
    }

/* Rows that are fetched from an image: 128 channels at a time, or 64. */
#define QNI_PREFILL_INT8_IMAGE(layout, bits)                                                       \
    extern "C" int32_t qni_conv_q8_##layout##_mr128_image_sm90a(                                   \
        const struct qni_cuda_product *product, const struct qni_cuda_experts *experts,            \
        const struct qni_cuda_launch *l)                                                           \
    {                                                                                              \
        return product->x.pixels.ci % 128 == 0 && product->x.pixels.run % 128 == 0                 \
                   ? launch_int8<Q8, bits, true>(product, experts, l)                              \
                   : launch_narrow<bits>(product, experts, l);                                     \
    }

#endif
