/* SPDX-License-Identifier: Apache-2.0 */
/* What both halves of the prefill kernel (prefill_sm90a.cu) stand on: its forms and their shared
 * memory, barriers and copies, which tile a CTA works on, and the ring of stages between those who
 * copy and those who multiply. */
#ifndef QNI_CUDA_MATMUL_PREFILL_CUH
#define QNI_CUDA_MATMUL_PREFILL_CUH

#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <limits.h>

#include "../kernel.h"

namespace
{

enum {
    GROUPS = 2, /* warpgroups that multiply, each 64 outputs */
    PANELS = 4 * GROUPS,
    OUTPUTS = 64 * GROUPS,
    CONSUMERS = 128 * GROUPS, /* threads */
    THREADS = CONSUMERS + 128,
    CHUNK = 32,        /* tokens that leave at a time, of a warpgroup */
    LD_CHUNK = 64 + 4, /* f32: writes of a warp fall into 32 banks */
    MAX_SHARED = 227 * 1024,
    /* of 65536: as many for each thread at the start, then what accumulators leave */
    CONSUMER_REGISTERS = 216,
    FEEDER_REGISTERS = 72,
    /* Blobs lie at multiples of this, and fewer than 2^31 of them apart. */
    BLOB_STEP = 64
};
/* Groups are: one for all positions, whole pairs of blocks, whole blocks, anything; of int8 also:
 * one pair of blocks each. */
enum { WHOLE = 0, PAIRS = 1, BLOCKS = 2, UNITS = 3, PAIR = 4 };
/* Weights: codes are multiplied as they are, and sums scaled; or each is rounded to the type of x
 * (prefill_round.cuh), by one product of f16 or in f32. */
enum { EXACT = 0, BY_F16 = 1, BY_F32 = 2 };

struct schedule {
    int32_t token_tiles, output_tiles; /* of a part */
    int32_t band;                      /* token tiles that are worked on together */
    int32_t splits;                    /* 2: clusters of two CTAs... */
    int32_t whole;                     /* ... cut the positions of tiles from this one on */
    int32_t pdl;
};

/* What the copy engine brings: x; of weights that lie in one blob, codes, scales, zeros; where
 * weights are rounded in f32 or x is int8, offsets; for int8 sums of codes. */
struct maps {
    CUtensorMap x, codes, scale, zero, offset, sums;
};

struct arguments {
    struct qni_cuda_product p;
    struct qni_cuda_experts experts; /* n 0: none */
    struct schedule s;
    int32_t tiles;
    const uint8_t *lowest; /* of all blobs of experts */
};

/* A form of the kernel: a tile has 128 outputs and so many tokens. A stage holds `blocks` blocks
 * of 64 positions: tiles of x one behind the other, then the codes of the panels, each panel's
 * together; beside it scales and zeros of the one or two groups that it touches. General: tiles as
 * routes say, images, activations. Such things, or rather the calls of a division that they bring,
 * make ptxas hold what the lanes of a warp have in common in registers of each lane, also where it
 * multiplies, which costs 6 percent: so not where they are not wanted. */
template <bool BF16, int BITS, int TOKENS, int MODE, bool GENERAL, bool TABLE = false,
          int ROUNDING = EXACT>
struct form {
    static constexpr bool bf16 = BF16, general = GENERAL, table = TABLE, integers = false;
    static constexpr int reads = BF16 ? QNI_CUDA_READS_BF16 : QNI_CUDA_READS_F16;
    static constexpr int bits = BITS, tokens = TOKENS, mode = MODE, rounding = ROUNDING;
    static constexpr bool codes_bf16 = BF16 && ROUNDING == EXACT; /* the type of unpacked codes */
    static constexpr bool one_sum = MODE == WHOLE || ROUNDING != EXACT;
    static constexpr int blocks = (one_sum ? TOKENS <= 128 : MODE == PAIRS) ? 2 : 1;
    /* whose facts are in a stage */
    static constexpr int groups = MODE != UNITS ? 1 : ROUNDING == EXACT ? 2 : 2 * blocks;
    static constexpr int tile_bytes = TOKENS * QNI_CUDA_BLOCK * 2, x_bytes = blocks * tile_bytes;
    static constexpr int block_bytes = QNI_CUDA_BLOCK * QNI_CUDA_PANEL * BITS / 8;
    static constexpr int panel_bytes = blocks * block_bytes;
    static constexpr int x_tiles = blocks;
    /* Half of a stage: registers of codes, and where its x begins, in 16 bytes. */
    static constexpr int half_words = blocks * 8, half_step = blocks == 2 ? tile_bytes / 16 : 4;
    static constexpr int writers = 2; /* arrivals that fill a stage */
    static constexpr int teams = 1, threads = THREADS;
    static constexpr int consumer_registers = CONSUMER_REGISTERS;
    static constexpr int feeder_registers = FEEDER_REGISTERS;
    static constexpr int stage_bytes = x_bytes + PANELS * panel_bytes;
    static constexpr int scale_bytes = PANELS * groups * 64; /* at most */
    static constexpr int zero_at = ROUNDING == BY_F32 ? 2 * scale_bytes : scale_bytes;
    static constexpr int facts_bytes = MODE == WHOLE ? 0 : zero_at + PANELS * groups * 16;
    static constexpr int chunk_bytes = CHUNK * LD_CHUNK * 4;
    static constexpr int table_bytes = TABLE ? 2048 : 0;
    static constexpr int fixed = 1024 + GROUPS * chunk_bytes + 512 + table_bytes;
    static constexpr int fit = (MAX_SHARED - fixed) / (stage_bytes + facts_bytes);
    static constexpr int stages = fit < 12 ? fit : 12;
    static constexpr int bytes = fixed + stages * (stage_bytes + facts_bytes);
    static_assert((TOKENS / CHUNK + 1) / 2 * (CHUNK / 2) * CONSUMERS * 4 <= stages * stage_bytes,
                  "what CTAs exchange lies in the ring");
};

/* ---- barriers -------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t shared_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}
__device__ __forceinline__ void barrier_init(uint32_t bar, int count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void barrier_expect_if(uint32_t bar, uint32_t bytes, uint32_t really)
{
    asm volatile("{.reg .pred really; setp.ne.u32 really, %2, 0;\n"
                 "@really mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;}" ::"r"(bar),
                 "r"(bytes), "r"(really)
                 : "memory");
}
/* An arrival if `really`: no branch, which would cost more than all the rest. */
__device__ __forceinline__ void barrier_arrive_if(uint32_t bar, uint32_t really)
{
    asm volatile("{.reg .pred really; setp.ne.u32 really, %1, 0;\n"
                 "@really mbarrier.arrive.shared::cta.b64 _, [%0];}" ::"r"(bar),
                 "r"(really)
                 : "memory");
}
__device__ __forceinline__ void barrier_wait(uint32_t bar, uint32_t parity)
{
    uint32_t done;
    do {
        asm volatile("{.reg .pred done;\n"
                     "mbarrier.try_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                     "selp.u32 %0, 1, 0, done;}"
                     : "=r"(done)
                     : "r"(bar), "r"(parity)
                     : "memory");
    } while (!done);
}
__device__ __forceinline__ void named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ __forceinline__ void cluster_sync()
{
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
}

/* ---- copies ---------------------------------------------------------------------------------- */

__device__ __forceinline__ void copy_tile_if(uint32_t to, const CUtensorMap *map, int column,
                                             int row, int part, int plane, uint32_t bar,
                                             uint32_t really)
{
    asm volatile("{.reg .pred really; setp.ne.u32 really, %7, 0;\n"
                 "@really cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::"
                 "bytes [%0], [%1, {%2, %3, %4, %5}], [%6];}" ::"r"(to),
                 "l"(map), "r"(column), "r"(row), "r"(part), "r"(plane), "r"(bar), "r"(really)
                 : "memory");
}
__device__ __forceinline__ void copy_box_if(uint32_t to, const CUtensorMap *map, int column,
                                            int panel, int box, uint32_t bar, uint32_t really)
{
    asm volatile("{.reg .pred really; setp.ne.u32 really, %6, 0;\n"
                 "@really cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::"
                 "bytes [%0], [%1, {%2, %3, %4}], [%5];}" ::"r"(to),
                 "l"(map), "r"(column), "r"(panel), "r"(box), "r"(bar), "r"(really)
                 : "memory");
}

/* ---- places ---------------------------------------------------------------------------------- */

/* Where a CTA stands: a tile of outputs and tokens, and blocks [begin, end) of positions. */
struct place {
    const uint8_t *blob;
    int part, expert;
    int box;         /* where its sections are, by the maps of weights: the part, or the blob */
    int panel;       /* the first of the part */
    int exponent;    /* of weights that are rounded */
    int first, rows; /* the first of routes.rows, or of the part; rows 0: nothing to do */
    int begin, end;  /* may be a block behind the last */
    bool split;
};

/* The tile that this CTA works on in round i; -1: none any more. First whole tiles, as many for
 * every CTA; a last round of few tiles is one of clusters. */
__device__ __forceinline__ int find_tile(const arguments &a, int i, bool &split)
{
    const int grid = (int)gridDim.x, own = (int)blockIdx.x + i * grid;
    split = false;
    if (own < a.s.whole)
        return own;
    split = a.s.splits > 1;
    const int cut = a.s.whole + (int)blockIdx.x / 2;
    return split && i * grid == a.s.whole && cut < a.tiles ? cut : -1;
}

template <class F> __device__ __forceinline__ bool find_place(const arguments &a, int i, place &at)
{
    const schedule &s = a.s;
    const int tile = find_tile(a, i, at.split);
    if (tile < 0)
        return false;
    const int per_part = s.token_tiles * s.output_tiles, part = tile / per_part;
    const int inside = tile - part * per_part, band = inside / (s.band * s.output_tiles);
    const int left = s.token_tiles - band * s.band, high = left < s.band ? left : s.band;
    const int j = inside - band * s.band * s.output_tiles;
    const int t = band * s.band + j % high, o = j / high;
    const int turns = (a.p.w.units / 2 + F::blocks - 1) / F::blocks;
    const int middle = turns / 2, second = (int)blockIdx.x % 2;
    at.blob = a.p.w.blob;
    at.part = part;
    at.exponent = a.p.w.exponent;
    at.expert = 0;
    at.box = part;
    at.panel = o * PANELS;
    at.begin = at.split && second ? middle * F::blocks : 0;
    at.end = (at.split && !second ? middle : turns) * F::blocks;
    at.first = t * F::tokens;
    at.rows = (int)min((int64_t)F::tokens, a.p.m - at.first);
    if (!F::general || a.p.routes.tiles == NULL)
        return true;
    at.expert = a.p.routes.tiles[3 * t];
    at.first = a.p.routes.tiles[3 * t + 1];
    at.rows = a.p.routes.tiles[3 * t + 2];
    if (a.experts.n > 0) {
        const int e = at.expert - a.experts.first;
        if (e < 0 || e >= a.experts.n) {
            at.rows = 0;
        } else {
            at.blob = a.experts.blob[e];
            at.exponent = a.experts.exponent[e];
            at.box = (int)((at.blob - a.lowest) / BLOB_STEP);
        }
    }
    return true;
}

/* ---- the ring -------------------------------------------------------------------------------- */

struct ring {
    uint32_t data, facts, full, empty; /* addresses of stage 0 */
    uint32_t raw; /* barriers of facts that are made ready: prefill_short.cuh */
    int stage;
    uint32_t phase;
    int pieces; /* of a value of a table (dequant.cuh): stages that a block takes, for each plane of
                   x; else 1 */
};
template <int STAGES> __device__ __forceinline__ void advance(ring &r)
{
    r.phase ^= (uint32_t)(r.stage + 1 == STAGES);
    r.stage = r.stage + 1 == STAGES ? 0 : r.stage + 1;
}

/* Which group a unit belongs to, walking along: a division a block would cost more than the rest of
 * the producer's work. */
struct walk {
    int group, left; /* units of it that are still to come */
};
__device__ __forceinline__ walk walk_to(const struct qni_cuda_weights &w, int unit)
{
    walk k;
    k.group = min(unit / w.group_units, w.n_groups - 1);
    k.left = k.group == w.n_groups - 1 ? INT_MAX : (k.group + 1) * w.group_units - unit;
    return k;
}
/* UNITS further; any: a group may end at any of them, else only behind the last. */
template <int UNITS_FURTHER, bool ANY>
__device__ __forceinline__ void walk_units(const struct qni_cuda_weights &w, walk &k)
{
    constexpr int step = ANY ? 1 : UNITS_FURTHER;
#pragma unroll
    for (int i = 0; i < UNITS_FURTHER; i += step) {
        k.left -= step;
        if (k.left <= 0) {
            k.group++;
            k.left = k.group == w.n_groups - 1 ? INT_MAX : w.group_units;
        }
    }
}
__device__ __forceinline__ void walk_unit(const struct qni_cuda_weights &w, walk &k)
{
    if (--k.left == 0) {
        k.group++;
        k.left = k.group == w.n_groups - 1 ? INT_MAX : w.group_units;
    }
}

} /* namespace */

#endif
