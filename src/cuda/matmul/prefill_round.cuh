/* SPDX-License-Identifier: Apache-2.0 */
/* The warpgroups of the prefill kernel that multiply, where weights are rounded to the type of x as
 * docs/numerics.md, "dense", defines it:
 *
 *     w' = T(2^e * fl(scale * (code - zero)))    or    T(2^e * fl(scale * code + offset))
 *
 * All of k is one sum then, as for weights of one group: no sums to scale, no second accumulators,
 * and the tensor cores never pause. 2^e and 2^-e are powers of two, so that e may go into the scale
 * before and comes out of the sum behind. Two ways to the same bits, for pairs of weights:
 *
 *   BY_F16  code - zero is an integer below 2^9, scale * 2^e an f16: their product has at most 20
 *           bits, so fl() is exact, and a product of f16, which is rounded once, is w'. One
 *           instruction a pair. For f16 x, scales that are f16 times 2^e, too, and no offsets.
 *   BY_F32  as it is written: four conversions and products more. For bf16 x (a scale of f16 would
 *           be rounded to 8 bits before it is multiplied), scales of f32, offsets. */
#ifndef QNI_CUDA_MATMUL_PREFILL_ROUND_CUH
#define QNI_CUDA_MATMUL_PREFILL_ROUND_CUH

#include "prefill_sum.cuh"

namespace
{

__device__ __forceinline__ uint32_t mul_f16(uint32_t v, uint32_t w)
{
    uint32_t d;
    asm("mul.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(v), "r"(w));
    return d;
}
__device__ __forceinline__ float power_of_two(int e)
{
    return __int_as_float((e + 127) << 23);
}

/* What the groups of a stage say, as it lies: of one for all, or of each unit's. */
template <class F> struct facts_of {
    static constexpr int count = F::mode == UNITS ? 2 * F::blocks : 1;
    uint32_t scale[count][2], offset[count][2], zero[count];
    uint32_t has_offset;
    float times; /* 2^e */
    /* Behind the last block there may be one of zeros: codes that the format need not have, whose
     * weights would be beyond f16 and with x = 0 no number. Their scale is 0. */
    float times_of_second;
    int block, blocks; /* the next stage's first, and all */
    const struct qni_cuda_weights &w;
    walk at; /* where the next stage's first unit is */

    __device__ __forceinline__ facts_of(const struct qni_cuda_weights &weights, const place &begin)
        : has_offset(weights.shift == QNI_CUDA_SHIFT_OFFSET), times(power_of_two(begin.exponent)),
          block(begin.begin), blocks(weights.units / 2), w(weights),
          at(walk_to(weights, 2 * begin.begin))
    {
    }
    __device__ __forceinline__ void take(const consumer<F> &c, int stage)
    {
        walk k = at; /* in the member itself: up to 16 instructions more a turn */
        const int first = k.group;
        const uint32_t facts = stage * F::facts_bytes;
        times_of_second = F::blocks == 1 || block + 1 < blocks ? times : 0.0f;
        block += F::blocks;
#pragma unroll
        for (int i = 0; i < count; i++) {
            const int which = F::mode == UNITS ? k.group - first : 0;
            const uint32_t from = c.scale_at + facts + which * c.scale_next;
            scale[i][0] = load4(from);
            if (F::rounding == BY_F32) {
                scale[i][1] = load4(from + c.scale_other);
                if (has_offset) {
                    offset[i][0] = load4(from + F::scale_bytes);
                    offset[i][1] = load4(from + F::scale_bytes + c.scale_other);
                }
            }
            asm volatile("ld.shared.u16 %0, [%1];"
                         : "=r"(zero[i])
                         : "r"(c.zero_at + facts + which * 16));
            if (F::mode == UNITS)
                walk_unit(w, k);
        }
        at = k;
    }
    __device__ __forceinline__ float2 pair(const consumer<F> &c, const uint32_t *v, float by) const
    {
        const float2 h = __half22float2(*(const __half2 *)v);
        const float x = F::rounding == BY_F16 || c.scale_other == 0 ? h.x : __uint_as_float(v[0]);
        const float y = F::rounding == BY_F16 || c.scale_other == 0 ? h.y : __uint_as_float(v[1]);
        return make_float2(x * by, y * by);
    }
    /* The 8 registers of a unit: those with odd numbers are of output g + 8. */
    __device__ __forceinline__ void unpack_unit(consumer<F> &c, int i, const uint32_t *word,
                                                float by, uint32_t *to) const
    {
        const float2 s = pair(c, scale[i], by);
        if (c.has_zero)
            c.z.set((int8_t)(zero[i] & 255), (int8_t)(zero[i] >> 8));
        unpack<false, F::bits>(word, c.z, c.has_zero, to);
        if (F::rounding == BY_F16) {
            const uint32_t even = twice_f16(s.x), odd = twice_f16(s.y);
#pragma unroll
            for (int j = 0; j < 8; j++)
                to[j] = mul_f16(to[j], j % 2 ? odd : even);
        } else {
            const float2 o = has_offset ? pair(c, offset[i], by) : make_float2(0.0f, 0.0f);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float2 v = __half22float2(*(const __half2 *)&to[j]);
                const float a = fmaf(v.x, j % 2 ? s.y : s.x, j % 2 ? o.y : o.x);
                const float b = fmaf(v.y, j % 2 ? s.y : s.x, j % 2 ? o.y : o.x);
                if (F::bf16) {
                    const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
                    to[j] = *(const uint32_t *)&h;
                } else {
                    const __half2 h = __floats2half2_rn(a, b);
                    to[j] = *(const uint32_t *)&h;
                }
            }
        }
    }
    /* Half of a stage: a block of two, or a unit of two. */
    template <int PART>
    __device__ __forceinline__ void make(consumer<F> &c, uint32_t (&to)[F::blocks * 8]) const
    {
#pragma unroll
        for (int u = 0; u < F::blocks; u++) {
            const int unit = PART * F::blocks + u;
            unpack_unit(c, count > 1 ? unit : 0, c.word[unit / 2] + unit % 2 * (F::bits / 2),
                        unit < 2 ? times : times_of_second, to + 8 * u);
        }
    }
};

/* The sum of rounded weights, 2^e times too large until it is complete. */
template <class F>
__device__ __forceinline__ void sum_rounded(consumer<F> &c, const arguments &a, const place &at,
                                            float (&acc)[F::tokens / 2])
{
    facts_of<F> weights(a.p.w, at);
    sum_straight(c, (at.end - at.begin) / F::blocks, weights, acc);
    const float back = power_of_two(-at.exponent);
#pragma unroll
    for (int i = 0; i < F::tokens / 2; i++)
        acc[i] *= back;
}

} /* namespace */

#endif
