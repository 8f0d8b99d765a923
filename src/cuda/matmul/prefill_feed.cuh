/* SPDX-License-Identifier: Apache-2.0 */
/* The warpgroup of the prefill kernel that copies: x by the copy engine, one thread asking for
 * tiles (or a warp for single rows of them), codes, scales and zeros by 16 bytes a lane. (Bulk
 * copies of a panel each take the copy engine some 120 clocks, whatever their size.) */
#ifndef QNI_CUDA_MATMUL_PREFILL_FEED_CUH
#define QNI_CUDA_MATMUL_PREFILL_FEED_CUH

#include "prefill.cuh"

namespace
{

/* The end of a stage for a warp that copies: it arrives for stages LAG behind, whose copies have
 * come by then. (An arrival by each copy itself costs as many operations on the barrier as there
 * are lanes.) */
template <int STAGES, int LAG> struct follower {
    ring behind;
    int ahead;
    __device__ __forceinline__ void arrive(int lane)
    {
        __syncwarp();
        if (lane == 0)
            barrier_arrive(behind.full + behind.stage * 8);
        advance<STAGES>(behind);
    }
    __device__ __forceinline__ void stage(int lane)
    {
        copy_commit();
        if (ahead < LAG) {
            ahead++;
            return;
        }
        copy_wait<LAG>();
        arrive(lane);
    }
    __device__ __forceinline__ void finish(int lane)
    {
        copy_wait<0>();
#pragma unroll 1
        for (; ahead > 0; ahead--)
            arrive(lane);
    }
};

/* Rows of x that lie together: a tile is one copy, or two that CTAs of a cluster ask for and both
 * get. One thread. */
template <class F>
__device__ __forceinline__ void feed_tiles(const CUtensorMap *map, const arguments &a, ring r,
                                           int cluster, int n_clusters, uint32_t rank)
{
    constexpr int half = F::tokens / 2;
    for (int tile = cluster; tile < a.tiles; tile += n_clusters) {
        const place at = find_place<F>(a, tile, rank);
        if (F::general && at.rows <= 0)
            continue;
#pragma unroll 1
        for (int b = at.begin; b < at.end; b += F::blocks)
#pragma unroll 1
            for (int plane = 0; plane < a.p.x.planes; plane++) {
                const uint32_t full = r.full + r.stage * 8, to = r.data + r.stage * F::stage_bytes;
                barrier_wait(r.empty + r.stage * 8, r.phase ^ 1);
                barrier_expect(full, F::x_bytes);
#pragma unroll
                for (int i = 0; i < F::blocks; i++) {
                    const int column = (b + i) * QNI_CUDA_BLOCK;
                    if (a.s.share > 1)
                        copy_tile_shared(to + i * F::tile_bytes + rank * half * 128, map, column,
                                         at.first + (int)rank * half, at.part, plane, full);
                    else
                        copy_tile(to + i * F::tile_bytes, map, column, at.first, at.part, plane,
                                  full);
                }
                advance<F::stages>(r);
            }
    }
    if (a.s.share > 1) /* the other CTA still signals barriers of this one */
        for (int i = 0; i < F::stages; i++) {
            barrier_wait(r.empty + r.stage * 8, r.phase ^ 1);
            advance<F::stages>(r);
        }
}

/* Rows that routes name: each is a copy of its own, of 128 bytes; the swizzle goes by the address
 * in shared memory. What lies behind the last row is other rows' or nothing's: no number of another
 * row comes out of it. A warp. */
template <class F>
__device__ __forceinline__ void feed_rows(const CUtensorMap *map, const arguments &a, ring r,
                                          int cluster, int n_clusters, uint32_t rank)
{
    constexpr int EACH = F::tokens / 32;
    const int lane = (int)threadIdx.x % 32;
    for (int tile = cluster; tile < a.tiles; tile += n_clusters) {
        const place at = find_place<F>(a, tile, rank);
        if (F::general && at.rows <= 0)
            continue;
        int row[EACH];
#pragma unroll
        for (int i = 0; i < EACH; i++)
            row[i] = lane + 32 * i < at.rows ? a.p.routes.rows[at.first + lane + 32 * i] : 0;
#pragma unroll 1
        for (int b = at.begin; b < at.end; b += F::blocks)
#pragma unroll 1
            for (int plane = 0; plane < a.p.x.planes; plane++) {
                const uint32_t full = r.full + r.stage * 8;
                const uint32_t to = r.data + r.stage * F::stage_bytes + lane * 128;
                barrier_wait(r.empty + r.stage * 8, r.phase ^ 1);
                if (lane == 0)
                    barrier_expect(full, (uint32_t)(at.rows * F::blocks * 128));
                __syncwarp();
#pragma unroll
                for (int i = 0; i < EACH; i++)
                    if (lane + 32 * i < at.rows)
#pragma unroll
                        for (int j = 0; j < F::blocks; j++)
                            copy_tile(to + i * 32 * 128 + j * F::tile_bytes, map,
                                      (b + j) * QNI_CUDA_BLOCK, row[i], at.part, plane, full);
                advance<F::stages>(r);
            }
    }
}

/* A warp copies the codes of half of the panels. */
template <class F>
__device__ __forceinline__ void feed_codes(const arguments &a, ring r, int half, int cluster,
                                           int n_clusters, uint32_t rank)
{
    constexpr int EACH = PANELS / 2;
    const struct qni_cuda_weights &w = a.p.w;
    const int lane = (int)threadIdx.x % 32;
    const int blocks = w.units / 2; /* behind them x is 0 and codes are any */
    const size_t panel_step = (size_t)blocks * F::block_bytes;
    const uint32_t to0 = r.data + F::x_bytes + half * EACH * F::panel_bytes + lane * 16;
    follower<F::stages, F::stages / 2> f = {r, 0};
    for (int tile = cluster; tile < a.tiles; tile += n_clusters) {
        const place at = find_place<F>(a, tile, rank);
        if (F::general && at.rows <= 0)
            continue;
        const int panel = at.panel + half * EACH, mine = w.panels - panel;
        const uint8_t *from = at.blob + w.codes + lane * 16 +
                              ((size_t)at.part * w.panels + panel) * panel_step +
                              (size_t)at.begin * F::block_bytes;
#pragma unroll 1
        for (int b = at.begin; b < at.end; b += F::blocks, from += F::panel_bytes)
#pragma unroll 1
            for (int plane = 0; plane < a.p.x.planes; plane++) {
                const uint32_t to = to0 + r.stage * F::stage_bytes;
                barrier_wait(r.empty + r.stage * 8, r.phase ^ 1);
#pragma unroll
                for (int i = 0; i < EACH; i++)
#pragma unroll
                    for (int j = 0; j < F::panel_bytes; j += 512)
                        if (i < mine && b + j / F::block_bytes < blocks)
                            copy16(to + i * F::panel_bytes + j, from + i * panel_step + j);
                f.stage(lane);
                advance<F::stages>(r);
            }
    }
    f.finish(lane);
}

/* A warp copies scales and zeros: lane 4 p + i piece i of a group's scales of panel p. */
template <class F>
__device__ __forceinline__ void feed_facts(const arguments &a, ring r, int cluster, int n_clusters,
                                           uint32_t rank)
{
    const struct qni_cuda_weights &w = a.p.w;
    const int lane = (int)threadIdx.x % 32, p = lane / 4, i = lane % 4;
    const int scale_size = w.scale_is_f16 ? 32 : 64;
    follower<F::stages, F::stages / 2> f = {r, 0};
    for (int tile = cluster; tile < a.tiles; tile += n_clusters) {
        const place at = find_place<F>(a, tile, rank);
        if (F::general && at.rows <= 0)
            continue;
        const size_t n_panel = (size_t)at.part * w.panels + at.panel + p;
        const bool valid = at.panel + p < w.panels, scales = valid && i * 16 < scale_size;
        const bool zeros = valid && w.shift == QNI_CUDA_SHIFT_ZERO && i == 0;
        const uint8_t *const scale = at.blob + w.scale + n_panel * w.n_groups * scale_size + i * 16;
        const uint8_t *const zero = at.blob + w.zero + n_panel * w.n_groups * 16;
        walk k = walk_to(w, 2 * at.begin);
#pragma unroll 1
        for (int b = at.begin; b < at.end; b += F::blocks) {
            const int g0 = k.group;
            walk_unit(w, k);
            const int g1 = F::blocks > 1 ? g0 : k.group; /* two blocks: always of one group */
#pragma unroll
            for (int j = 1; j < 2 * F::blocks; j++)
                walk_unit(w, k);
#pragma unroll 1
            for (int plane = 0; plane < a.p.x.planes; plane++) {
                const uint32_t to = r.facts + r.stage * F::facts_bytes + p * 128 + i * 16;
                const uint32_t zero_to =
                    r.facts + r.stage * F::facts_bytes + F::scale_bytes + p * 32;
                barrier_wait(r.empty + r.stage * 8, r.phase ^ 1);
                if (scales)
                    copy16(to, scale + (size_t)g0 * scale_size);
                if (zeros)
                    copy16(zero_to, zero + (size_t)g0 * 16);
                if (scales && g1 > g0)
                    copy16(to + scale_size, scale + (size_t)g1 * scale_size);
                if (zeros && g1 > g0)
                    copy16(zero_to + 16, zero + (size_t)g1 * 16);
                f.stage(lane);
                advance<F::stages>(r);
            }
        }
    }
    f.finish(lane);
}

/* The four warps. */
template <class F>
__device__ __forceinline__ void feed(const CUtensorMap *map, const arguments &a, const ring &r,
                                     int cluster, int n_clusters, uint32_t rank)
{
    const int warp = (int)threadIdx.x % 128 / 32, lane = (int)threadIdx.x % 32;
    if (warp == 3) {
        feed_facts<F>(a, r, cluster, n_clusters, rank);
    } else if (warp != 0) {
        feed_codes<F>(a, r, warp - 1, cluster, n_clusters, rank);
    } else {
        if (a.s.pdl)
            asm volatile("griddepcontrol.wait;" ::: "memory");
        if (F::general && a.p.routes.rows != NULL)
            feed_rows<F>(map, a, r, cluster, n_clusters, rank);
        else if (lane == 0)
            feed_tiles<F>(map, a, r, cluster, n_clusters, rank);
    }
}

} /* namespace */

#endif
