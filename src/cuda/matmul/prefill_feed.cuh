/* SPDX-License-Identifier: Apache-2.0 */
/* The warps of the prefill kernel that copy, all by the copy engine: one asks for x, a tile at a
 * time, one for codes, scales and zeros, a box of all panels of the tile each. (Bulk copies of a
 * panel each would take the copy engine some 120 clocks, whatever their size. So would rows of x:
 * those of routes come sorted by expert.) */
#ifndef QNI_CUDA_MATMUL_PREFILL_FEED_CUH
#define QNI_CUDA_MATMUL_PREFILL_FEED_CUH

#include "prefill.cuh"
#include "prefill_pixels.cuh"
#include "prefill_short.cuh"

namespace
{

/* A copy is one thread's to ask for; but where the whole warp goes along, what it is told lies in
 * registers of the warp. In a branch of one lane ptxas moves all of it there for every copy, some
 * 25 instructions, and the copies come too late. */

/* Rows of x: a tile is one copy. What lies behind the last row is other rows' or zeros: no number
 * of another row comes out of it. A warp. */
template <class F>
__device__ __forceinline__ void feed_tiles(const CUtensorMap *map, const arguments &a, ring r)
{
    const uint32_t first = threadIdx.x % 32 == 0;
    place at;
    for (int round = 0; find_place<F>(a, round, at); round++) {
        if (F::general && at.rows <= 0)
            continue;
#pragma unroll 1
        for (int b = at.begin; b < at.end; b += F::blocks)
#pragma unroll 1
            for (int i = 0; i < a.p.x.planes * r.pieces; i++) {
                const uint32_t full = r.full + r.stage * 8, to = r.data + r.stage * F::stage_bytes;
                const int plane = F::table ? i / r.pieces : i;
                barrier_wait(r.empty + r.stage * 8, r.phase ^ 1);
                barrier_expect_if(full, F::x_bytes, first);
#pragma unroll
                for (int j = 0; j < F::x_tiles; j++)
                    copy_tile_if(to + j * F::tile_bytes, map, (b + j) * QNI_CUDA_BLOCK, at.first,
                                 at.part, plane, full, first);
                advance<F::stages>(r);
            }
    }
}

/* Codes, scales, zeros and offsets, all panels of a tile at once. A warp. */
template <class F>
__device__ __forceinline__ void feed_weights(const maps &m, const arguments &a, ring r)
{
    const uint32_t first = threadIdx.x % 32 == 0;
    const struct qni_cuda_weights &w = a.p.w;
    const int scale_words = w.scale_is_f16 ? 8 : 16;
    const bool facts = F::mode != WHOLE;
    const uint32_t zeros = facts && w.shift == QNI_CUDA_SHIFT_ZERO;
    const uint32_t offsets = F::rounding == BY_F32 && w.shift == QNI_CUDA_SHIFT_OFFSET;
    const uint32_t bytes = PANELS * F::panel_bytes +
                           (facts ? PANELS * F::groups * scale_words * (offsets ? 8 : 4) : 0) +
                           (zeros ? PANELS * F::groups * 16 : 0);
    place at;
    for (int round = 0; find_place<F>(a, round, at); round++) {
        if (F::general && at.rows <= 0)
            continue;
        walk k = walk_to(w, 2 * at.begin);
#pragma unroll 1
        for (int b = at.begin; b < at.end; b += F::blocks) {
#pragma unroll 1
            for (int i = 0; i < a.p.x.planes * r.pieces; i++) {
                const uint32_t full = r.full + r.stage * 8;
                const uint32_t to = r.data + r.stage * F::stage_bytes + F::x_bytes;
                const uint32_t facts_to = r.facts + r.stage * F::facts_bytes;
                barrier_wait(r.empty + r.stage * 8, r.phase ^ 1);
                barrier_expect_if(full, bytes, first);
                copy_box_if(to, &m.codes, b * 128, at.panel, at.box, full, first);
                if (facts) {
                    copy_box_if(facts_to, &m.scale, k.group * scale_words, at.panel, at.box, full,
                                first);
                    copy_box_if(facts_to + F::zero_at, &m.zero, k.group * 4, at.panel, at.box, full,
                                first & zeros);
                    if (F::rounding == BY_F32)
                        copy_box_if(facts_to + F::scale_bytes, &m.offset, k.group * scale_words,
                                    at.panel, at.box, full, first & offsets);
                }
                advance<F::stages>(r);
            }
            if (facts)
                walk_units<2 * F::blocks, F::mode == UNITS>(w, k);
        }
    }
}

/* The four warps: two have nothing to do where nothing is known of rows by segment. */
template <class F>
__device__ __forceinline__ void feed(const maps &m, const arguments &a, const ring &r)
{
    const int warp = __shfl_sync(~0u, (int)threadIdx.x % 128 / 32, 0);
    if (warp == 1) {
        if constexpr (F::integers && F::mode != WHOLE)
            feed_segments<F>(m, a, r);
        else
            feed_weights<F>(m, a, r);
    } else if (F::integers && F::mode != WHOLE && warp > 1) {
        if constexpr (F::integers) {
            if (a.s.pdl)
                asm volatile("griddepcontrol.wait;" ::: "memory");
            if constexpr (F::is_short)
                feed_rows<F>(a, r, (int)threadIdx.x % 64);
            else
                feed_facts<F>(a, r, (int)threadIdx.x % 64);
        }
    } else if (warp == 0) {
        if (a.s.pdl)
            asm volatile("griddepcontrol.wait;" ::: "memory");
        if (F::general && a.p.x.pixels.is_on)
            feed_pixels<F>(&m.x, a, r);
        else
            feed_tiles<F>(&m.x, a, r);
    }
}

} /* namespace */

#endif
