/* SPDX-License-Identifier: Apache-2.0 */
/* int8 prefill where rows of x have a scale for every segment of 32, 64 or 128 positions: what is
 * done when one ends takes far longer than its products, so that is all that counts. A warpgroup
 * has the sums of half of its tokens multiplied while it scales those of the other, and never waits
 * for products.
 *
 * Instructions for each sum (with offsets of x): a conversion, a product, two fma; a load of facts
 * of rows for each four; and, for all sums of a lane together, some 40 for codes, facts of weights,
 * barriers. Four instructions are 290 us of an H100 at 4096^3 for segments of 32. Reached: 724 us,
 * of 64: 376; 16 tokens of a tile: 35 and 22 us where there are 64 (lab/cuda/NOTES.md). */
#ifndef QNI_CUDA_MATMUL_PREFILL_SHORT_CUH
#define QNI_CUDA_MATMUL_PREFILL_SHORT_CUH

#include "prefill_int8.cuh"

namespace
{

/* ---- facts of rows --------------------------------------------------------------------------- */

/* Of a stage: [segments][tokens] pairs of scale and offset, then [segments][tokens] totals. What
 * lies behind the last segment is such that it changes no sum, not even a zero's sign. */
template <class F> struct row_facts {
    static constexpr int S = F::segments, EACH = (F::tokens + 63) / 64;
    float scale[EACH][S], offset[EACH][S], total[EACH][S];

    static __device__ __forceinline__ void load(float (&to)[S], const float *from, int64_t at,
                                                bool really)
    {
#pragma unroll
        for (int s = 0; s < S; s++)
            to[s] = 0.0f;
        if (!really)
            return;
        if constexpr (S == 4) {
            const float4 v = *(const float4 *)(from + at);
            to[0] = v.x, to[1] = v.y, to[2] = v.z, to[3] = v.w;
        } else if constexpr (S == 2) {
            const float2 v = *(const float2 *)(from + at);
            to[0] = v.x, to[1] = v.y;
        } else {
            to[0] = from[at];
        }
    }
    __device__ __forceinline__ void take(const struct qni_cuda_rows &x, bool has_offset,
                                         int64_t first, int rows, int segment)
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int row = (int)threadIdx.x % 64 + 64 * i;
            const int64_t at = (first + row) * x.ld_segment + segment;
            load(scale[i], x.scale, at, row < rows);
            load(offset[i], x.offset, at, row < rows && x.offset != NULL);
            load(total[i], x.total, at, row < rows && has_offset);
        }
    }
    /* left: segments from here to the last. */
    __device__ __forceinline__ void lay(uint32_t to, bool has_offset, int left) const
    {
#pragma unroll
        for (int i = 0; i < EACH; i++) {
            const int row = (int)threadIdx.x % 64 + 64 * i;
            if (F::tokens < 64 && row >= F::tokens)
                return;
#pragma unroll
            for (int s = 0; s < S; s++) {
                const uint32_t at = s * F::tokens + row;
                asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(to + at * 8),
                             "f"(s < left ? scale[i][s] : -0.0f),
                             "f"(s < left ? offset[i][s] : -0.0f)
                             : "memory");
                if (has_offset)
                    asm volatile("st.shared.f32 [%0], %1;" ::"r"(to + (S * F::tokens * 2 + at) * 4),
                                 "f"(s < left ? total[i][s] : -0.0f)
                                 : "memory");
            }
        }
    }
};

/* ---- facts of weights ------------------------------------------------------------------------ */

/* Of outputs g and g + 8 of a panel in each segment of a stage: [segments][panels][g] of scale,
 * scale8, sum, sum8, then as many offset, offset8. One of 64 threads; from what the copy engine
 * brought. */
template <class F>
__device__ __forceinline__ void make_ready(const struct qni_cuda_product &p, uint32_t stage0,
                                           int left)
{
    const struct qni_cuda_weights &w = p.w;
    const uint32_t panel = threadIdx.x % 64 / 8, g = threadIdx.x % 8, size = w.scale_is_f16 ? 4 : 8;
    const uint32_t next = w.n_groups > 1 ? 1 : 0;
    const bool sums = has_sums<F::reads>(&p);
#pragma unroll
    for (int s = 0; s < F::segments; s++) {
        const uint32_t pair = (panel * F::segments + s * next) * 8 + g;
        const uint32_t scale = stage0 + F::scale_at + pair * size;
        const uint32_t sum = stage0 + F::sums_at + ((panel * F::segments + s) * 8 + g) * 8;
        const uint32_t other = w.scale_is_f16 ? 0 : 4;
        struct loaded l;
        l.scale = make_uint2(load4(scale), load4(scale + other));
        l.offset = make_uint2(load4(scale + F::scale_bytes), load4(scale + F::scale_bytes + other));
        asm volatile("ld.shared.u16 %0, [%1];"
                     : "=r"(l.zero)
                     : "r"(stage0 + F::zero_at + pair * 2));
        l.sum = sums ? make_int2((int)load4(sum), (int)load4(sum + 4)) : make_int2(0, 0);
        struct facts f = facts_in_f32<F::kind>(l, w);
        if (s >= left) /* +0 times -0 takes no sign away */
            f.scale.x = f.scale.y = f.offset.x = f.offset.y = 0.0f;
        const uint32_t to = s * PANELS * 8 + panel * 8 + g, ready = stage0 + F::ready_at;
        asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(ready + to * 16),
                     "f"(f.scale.x), "f"(f.scale.y), "f"(__int2float_rn(f.sum.x)),
                     "f"(__int2float_rn(f.sum.y))
                     : "memory");
        asm volatile(
            "st.shared.v2.f32 [%0], {%1, %2};" ::"r"(ready + F::segments * PANELS * 128 + to * 8),
            "f"(f.offset.x), "f"(f.offset.y)
            : "memory");
    }
}

/* As feed_facts, through registers of 64 threads, which ask for a stage while they wait for the one
 * before it. */
template <class F> __device__ __forceinline__ void feed_rows(const arguments &a, ring r, int thread)
{
    const struct qni_cuda_weights &w = a.p.w;
    const struct qni_cuda_rows &x = a.p.x;
    const bool has_offset = w.shift != QNI_CUDA_SHIFT_NONE;
    row_facts<F> facts;
    place at;
    for (int round = 0; find_place<F>(a, round, at); round++) {
        if (F::general && at.rows <= 0)
            continue;
        const int64_t first = at.part * x.part_rows + at.first;
        int segment = 2 * at.begin / F::segment_units;
        facts.take(x, has_offset, first, at.rows, segment);
#pragma unroll 1
        for (int b = at.begin; b < at.end; b += F::blocks) {
            const uint32_t full = r.full + r.stage * 8;
            const int left = w.n_segments - segment;
            barrier_wait(r.empty + r.stage * 8, r.phase ^ 1);
            facts.lay(r.facts + r.stage * F::facts_bytes, has_offset, left);
            barrier_wait(r.raw + r.stage * 8, r.phase);
            make_ready<F>(a.p, r.facts + r.stage * F::facts_bytes, left);
            barrier_arrive_if(full, 1);
            segment += F::segments;
            if (b + F::blocks < at.end)
                facts.take(x, has_offset, first, at.rows, segment);
            advance<F::stages>(r);
        }
    }
}

/* ---- the end of a segment -------------------------------------------------------------------- */

/* Of a lane in a segment: facts of its outputs, and who asks for what. */
struct short_ending {
    float scale, scale8, sum, sum8, offset, offset8;
    bool has_offset, has_x_offset;
};

template <bool HAS_OFFSET, int COLUMNS>
__device__ __forceinline__ void end_pairs(float (&acc)[4 * COLUMNS], int32_t (&dot)[4 * COLUMNS],
                                          const struct short_ending &e, uint32_t pairs)
{
#pragma unroll
    for (int j = 0; j < COLUMNS; j++) {
        uint32_t v[4]; /* scale, offset of a row; of the next */
        load16(pairs + j * 64, v);
#pragma unroll
        for (int c = 0; c < 4; c++) {
            const float scale = __uint_as_float(v[c % 2 * 2]), d = __int2float_rn(dot[4 * j + c]);
            const float offset = __uint_as_float(v[c % 2 * 2 + 1]);
            const float t =
                HAS_OFFSET ? fmaf(scale, d, offset * (c < 2 ? e.sum : e.sum8)) : scale * d;
            acc[4 * j + c] = fmaf(c < 2 ? e.scale : e.scale8, t, acc[4 * j + c]);
        }
    }
}

/* Of half of the tokens; pairs, totals: of this lane's first rows there, in shared memory. Each
 * choice once for all: on the way ptxas would take both steps of it. */
template <class F>
__device__ __forceinline__ void end_half(float (&acc)[F::tokens / 4], int32_t (&dot)[F::tokens / 4],
                                         const struct short_ending &e, uint32_t pairs,
                                         uint32_t totals)
{
    constexpr int COLUMNS = F::tokens / 16;
    if (e.has_x_offset)
        end_pairs<true, COLUMNS>(acc, dot, e, pairs);
    else
        end_pairs<false, COLUMNS>(acc, dot, e, pairs);
    if (e.has_offset) {
#pragma unroll
        for (int j = 0; j < COLUMNS; j++) {
            float v[2];
            asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                         : "=f"(v[0]), "=f"(v[1])
                         : "r"(totals + j * 32));
#pragma unroll
            for (int c = 0; c < 4; c++)
                acc[4 * j + c] = fmaf(c < 2 ? e.offset : e.offset8, v[c % 2], acc[4 * j + c]);
        }
    }
}

/* ---- segments -------------------------------------------------------------------------------- */

template <class F> struct halves_of {
    static constexpr int UNITS_EACH = F::segment_units;
    uint32_t word[UNITS_EACH * F::bits / 2], code[4 * UNITS_EACH];
    int32_t dot[2][F::tokens / 4];

    __device__ __forceinline__ void take_codes(const consumer<F> &c, int stage, int segment)
    {
        const uint32_t at = c.codes_at + stage * F::stage_bytes;
        if constexpr (UNITS_EACH == 4) {
#pragma unroll
            for (int j = 0; j < F::bits / 2; j++) /* pieces of both blocks, as they lie */
                load16(at + j * 512, word + 4 * j);
        } else if constexpr (UNITS_EACH == 2) {
#pragma unroll
            for (int j = 0; j < F::bits / 4; j++)
                load16(at + segment * F::block_bytes + j * 512, word + 4 * j);
        } else if constexpr (F::bits == 8) {
            load16(at + segment * 512, word);
        } else {
            asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];"
                         : "=r"(word[0]), "=r"(word[1])
                         : "r"(at + segment / 2 * F::block_bytes + segment % 2 * 8));
        }
    }
    template <int HALF>
    __device__ __forceinline__ void multiply(const consumer<F> &c, int stage, int segment)
    {
        const uint32_t tile = qni_wgmma::tile(c.r.data + stage * F::stage_bytes) +
                              segment * 2 * UNITS_EACH + HALF * (F::tokens / 2) * 8;
        qni_wgmma::fence();
#pragma unroll
        for (int u = 0; u < UNITS_EACH; u++)
            qni_wgmma::product_of_bytes<F::tokens / 2>::template run<false>(dot[HALF], code + 4 * u,
                                                                            tile + 2 * u, u > 0);
        qni_wgmma::commit();
    }
};

template <class F>
__device__ __forceinline__ void sum_short(consumer<F> &c, const arguments &a, const place &at,
                                          float (&sums)[F::tokens / 2])
{
    constexpr int S = F::segments, HALF = F::tokens / 2;
    float(&acc)[2][F::tokens / 4] = reinterpret_cast<float(&)[2][F::tokens / 4]>(sums);
    halves_of<F> h;
    struct short_ending e;
    e.has_offset = a.p.w.shift != QNI_CUDA_SHIFT_NONE;
    e.has_x_offset = a.p.x.offset != NULL;
    e.offset = e.offset8 = 0.0f;
    const uint32_t pairs = keep(c.r.facts + threadIdx.x % 4 * 16);
    const uint32_t totals = keep(c.r.facts + S * F::tokens * 8 + threadIdx.x % 4 * 8);
    const uint32_t ready = keep(c.r.facts + F::ready_at + threadIdx.x / 4 * 16);
    const uint32_t offsets = keep(c.r.facts + F::ready_at + S * PANELS * 128 + threadIdx.x / 4 * 8);
    int stage = c.r.stage;
#pragma unroll
    for (int i = 0; i < F::tokens / 2; i++)
        sums[i] = 0;
    barrier_wait(c.r.full + c.r.stage * 8, c.r.phase);
    h.take_codes(c, stage, 0);
    bytes_of<F::bits, false>(h.word, h.code);
    h.template multiply<0>(c, stage, 0);
#pragma unroll 1
    for (int q = (at.end - at.begin) / F::blocks; q > 0; q--) {
        const uint32_t facts = stage * F::facts_bytes;
        const int before = stage;
#pragma unroll
        for (int s = 0; s < S; s++) {
            qni_wgmma::wait<0>();
            qni_wgmma::hold(h.dot[0]);
            h.template multiply<1>(c, before, s);
            uint32_t v[4];
            load16(ready + facts + s * PANELS * 128, v);
            e.scale = __uint_as_float(v[0]);
            e.scale8 = __uint_as_float(v[1]);
            e.sum = __uint_as_float(v[2]);
            e.sum8 = __uint_as_float(v[3]);
            if (e.has_offset)
                asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
                             : "=f"(e.offset), "=f"(e.offset8)
                             : "r"(offsets + facts + s * PANELS * 64));
            if (s + 1 == S) {
                advance<F::stages>(c.r);
                if (q > 1)
                    barrier_wait(c.r.full + c.r.stage * 8, c.r.phase);
                stage = c.r.stage;
            }
            h.take_codes(c, stage, (s + 1) % S); /* whatever lies there if there is none */
            const uint32_t x = pairs + facts + s * F::tokens * 8;
            const uint32_t xt = totals + facts + s * F::tokens * 4;
            end_half<F>(acc[0], h.dot[0], e, x, xt);
            qni_wgmma::wait<0>();
            qni_wgmma::hold(h.dot[1]);
            bytes_of<F::bits, false>(h.word, h.code);
            h.template multiply<0>(c, stage, (s + 1) % S);
            end_half<F>(acc[1], h.dot[1], e, x + HALF * 8, xt + HALF * 4);
        }
        c.release(before, c.is_first);
    }
    qni_wgmma::wait<0>();
    qni_wgmma::hold(h.dot[0]);
}

} /* namespace */

#endif
