/* SPDX-License-Identifier: Apache-2.0 */
/* Few rows of x: products of 16 to 64 tokens are so short that two warpgroups mostly wait, for what
 * they loaded, for sums, for each other. So there are four here, two teams with all 128 outputs of
 * the tile each, which take the stages of the ring by turns, without turns at the tensor cores. At
 * the end one team adds the other's sums to its own: always in this order. 104 registers a thread
 * leave no room for codes that are unpacked ahead; other warps work meanwhile. */
#ifndef QNI_CUDA_MATMUL_PREFILL_TEAMS_CUH
#define QNI_CUDA_MATMUL_PREFILL_TEAMS_CUH

#include "prefill_sum.cuh"

namespace
{

enum { TEAMS = 2, TEAMS_TOGETHER = 3, TEAMS_APART = 4 };

template <bool BF16, int BITS, int TOKENS>
struct form_of_teams : form<BF16, BITS, TOKENS, PAIRS, false> {
    typedef form<BF16, BITS, TOKENS, PAIRS, false> base;
    static constexpr int teams = TEAMS, threads = TEAMS * CONSUMERS + 128;
    /* Of 96 at the start: four warps that multiply and one that copies share 480 for a lane. */
    static constexpr int consumer_registers = 104, feeder_registers = 64;
    /* A stage is one team's: a team that is a round ahead must not meet the other's. */
    static constexpr int stages = base::stages / TEAMS * TEAMS;
    static constexpr int bytes = base::fixed + stages * (base::stage_bytes + base::facts_bytes);
    static_assert(stages >= 2 * TEAMS, "each team has a stage that comes while it works on one");
};

/* Stages q, q + TEAMS, ... of all `stages`; then the ring stands behind the last of them. */
template <class F>
__device__ __forceinline__ void sum_stages(consumer<F> &c, int team, int stages,
                                           float (&acc)[F::tokens / 2])
{
    const int first = c.r.stage;
    const uint32_t phase = c.r.phase;
    float p[F::tokens / 2];
    uint32_t w0[F::half_words], w1[F::half_words];
    if (team > 0)
        advance<F::stages>(c.r);
#pragma unroll 1
    for (int q = team; q < stages; q += TEAMS) {
        const int stage = c.r.stage;
        barrier_wait(c.r.full + stage * 8, c.r.phase);
        c.take(stage);
        c.set_zero();
        c.template unpack_part<0>(w0);
        qni_wgmma::fence();
        c.multiply(p, w0, c.tile(stage, 0), 0);
        qni_wgmma::commit();
        c.template unpack_part<1>(w1);
        qni_wgmma::fence();
        c.multiply(p, w1, c.tile(stage, 1), 1);
        qni_wgmma::commit();
        const float2 s = c.scale_taken();
        advance<F::stages>(c.r);
        advance<F::stages>(c.r);
        qni_wgmma::wait<0>();
        qni_wgmma::hold(p);
        c.release(stage, c.is_first);
        c.scale(acc, p, s);
    }
    const int last = first + stages;
    c.r.stage = last % F::stages;
    c.r.phase = phase ^ (uint32_t)(last / F::stages % 2);
}

/* The second team's sums to the first's, 16 of a thread at a time, through the places for what
 * leaves; which another tile may leave by, or others be read from, until all have come here. */
template <class F>
__device__ __forceinline__ void add_teams(uint32_t chunk, int team, float (&acc)[F::tokens / 2])
{
    constexpr int EACH = 16;
    static_assert(EACH * 128 * 4 <= F::chunk_bytes, "room for the numbers of a warpgroup");
    const uint32_t at = chunk + threadIdx.x % 128 * 16;
#pragma unroll
    for (int first = 0; first < F::tokens / 2; first += EACH) {
        named_sync(TEAMS_APART, TEAMS * CONSUMERS);
        if (team > 0)
#pragma unroll
            for (int i = 0; i < EACH; i += 4) {
                const float *const v = acc + first + i;
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(at + i * 512),
                             "f"(v[0]), "f"(v[1]), "f"(v[2]), "f"(v[3])
                             : "memory");
            }
        named_sync(TEAMS_TOGETHER, TEAMS * CONSUMERS);
        if (team == 0)
#pragma unroll
            for (int i = 0; i < EACH; i += 4) {
                uint32_t v[4];
                load16(at + i * 512, v);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    acc[first + i + j] += __uint_as_float(v[j]);
            }
    }
}

} /* namespace */

#endif
