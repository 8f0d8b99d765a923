/* SPDX-License-Identifier: Apache-2.0 */
/* Canonical codes to fragment order: what store_block() of layouts.c does, for all blocks of some
 * panels. A warp makes a block: it reads 16 rows of 64 packed positions, lanes along a row, so that
 * a run of codes is read in whole sectors; through shared memory every lane then picks the bytes
 * that kernel.h gives it and writes 16 or 2 x 16 neighbouring ones. Beside it lie the values of the
 * codes (0 where there is none), which a lane for each output and unit adds up with dp4a and sends
 * to the segments of the sums: |value| <= 128, so a unit's sum has 13 bits, and sums of integers
 * are the same in any order. Nothing else is computed but code + shift in a byte: the bits are
 * those of the host. Bound by memory: a byte read and 1/2 or 1 written for each code. Runs are
 * sorted by dst. */
#include <cuda_runtime.h>

#include "kernel.h"

namespace
{

enum { WARPS = 4, LANES = 32, ROW_BYTES = QNI_CUDA_BLOCK + 4 }; /* + 4: rows in other banks */

/* What a warp has of a block. */
struct tile {
    uint8_t stored[QNI_CUDA_PANEL][ROW_BYTES];
    int8_t value[QNI_CUDA_PANEL][ROW_BYTES];
};

/* The canonical position of a packed one; -1: padding. */
__device__ int64_t source_of(const struct qni_cuda_repack &args, int64_t position)
{
    int32_t lo = 0, hi = args.n_runs; /* the runs before lo begin at or before it */
    while (lo < hi) {
        const int32_t mid = lo + (hi - lo) / 2;
        if (args.runs[3 * (int64_t)mid] <= position)
            lo = mid + 1;
        else
            hi = mid;
    }
    if (lo == 0)
        return -1;
    const int64_t *run = args.runs + 3 * (int64_t)(lo - 1);
    const int64_t inside = position - run[0];
    return inside < run[2] ? run[1] + inside : -1;
}

__device__ void load_rows(const struct qni_cuda_repack &args, int64_t panel, int64_t block,
                          struct tile *tile)
{
    const int32_t lane = threadIdx.x % LANES;
    for (int32_t unit = 0; unit < QNI_CUDA_BLOCK / QNI_CUDA_UNIT; unit++) {
        const int32_t at = unit * QNI_CUDA_UNIT + lane;
        const int64_t source = source_of(args, block * QNI_CUDA_BLOCK + at);
#pragma unroll 4
        for (int32_t j = 0; j < QNI_CUDA_PANEL; j++) {
            const int64_t output = args.outputs[panel * QNI_CUDA_PANEL + j];
            const bool is_real = output >= 0 && source >= 0;
            const int32_t code = is_real ? args.codes[output * args.k + source] : 0;
            const int32_t value = args.is_table ? args.value[code & 15] : code - args.half;
            tile->stored[j][at] = (uint8_t)(is_real ? code + args.shift : args.padding);
            tile->value[j][at] = (int8_t)(is_real ? value : 0);
        }
    }
}

/* Bytes p(step, t, 0..3) of an output. */
__device__ uint32_t word_of(const uint8_t *row, int32_t step, int32_t t)
{
    const uint8_t *at = row + QNI_CUDA_STEP * step + 2 * t;
    return at[0] | (uint32_t)at[8] << 8 | (uint32_t)at[1] << 16 | (uint32_t)at[9] << 24;
}

/* Lane 2 j + u: output j of unit u of the block. Tables of 16 have outputs 0, 8, 1, 9, ... */
__device__ void add_sums(const struct qni_cuda_repack_sums &to, int64_t panel, int64_t block,
                         const struct tile *tile)
{
    const int32_t lane = threadIdx.x % LANES, j = lane / 2;
    const int32_t unit = (int32_t)block * (QNI_CUDA_BLOCK / QNI_CUDA_UNIT) + lane % 2;
    const int32_t *from = (const int32_t *)(tile->value[j] + lane % 2 * QNI_CUDA_UNIT);
    if (to.sums == nullptr || unit >= to.units)
        return;
    int32_t sum = 0;
    for (int32_t i = 0; i < QNI_CUDA_UNIT / 4; i++)
        sum = __dp4a(from[i], 0x01010101, sum);
    const int64_t segment = (int64_t)(unit / to.group_units) * to.segments_per_group +
                            unit % to.group_units / to.segment_units;
    atomicAdd(to.sums + (panel * to.n_segments + segment) * QNI_CUDA_PANEL + j % 8 * 2 + j / 8,
              sum);
}

__global__ void __launch_bounds__(WARPS *LANES) repack(const struct qni_cuda_repack args)
{
    __shared__ __align__(16) struct tile memory[WARPS];
    const int32_t lane = threadIdx.x % LANES, g = lane / 4, t = lane % 4;
    struct tile *tile = &memory[threadIdx.x / LANES];
    const bool nibbles = args.layout == QNI_CUDA_Q4FRAG || args.layout == QNI_CUDA_T4FRAG;
    const int64_t n = args.panels_total * args.blocks, stride = (int64_t)gridDim.x * WARPS;
    for (int64_t i = (int64_t)blockIdx.x * WARPS + threadIdx.x / LANES; i < n; i += stride) {
        load_rows(args, i / args.blocks, i % args.blocks, tile);
        __syncwarp();
        add_sums(args.sums[0], i / args.blocks, i % args.blocks, tile);
        add_sums(args.sums[1], i / args.blocks, i % args.blocks, tile);
        uint32_t low[4], high[4];
        for (int32_t s = 0; s < 4; s++) {
            low[s] = word_of(tile->stored[g], s, t);
            high[s] = word_of(tile->stored[g + 8], s, t);
        }
        __syncwarp(); /* all have read before the next block is loaded */
        uint4 *const out = (uint4 *)args.packed + i * (nibbles ? LANES : 2 * LANES) + lane;
        if (nibbles) {
            *out = make_uint4(low[0] | high[0] << 4, low[1] | high[1] << 4, low[2] | high[2] << 4,
                              low[3] | high[3] << 4);
        } else {
            out[0] = make_uint4(low[0], high[0], low[1], high[1]);
            out[LANES] = make_uint4(low[2], high[2], low[3], high[3]);
        }
    }
}

} // namespace

int32_t qni_cuda_repack_sm75(const struct qni_cuda_repack *args,
                             const struct qni_cuda_launch *launch)
{
    const int64_t n = args->panels_total * args->blocks, wanted = (n + WARPS - 1) / WARPS;
    const int64_t most = (int64_t)launch->multiprocessors * 64;
    if (n == 0)
        return 0;
    repack<<<(unsigned)(wanted < most ? wanted : most), WARPS * LANES, 0,
             (cudaStream_t)launch->stream>>>(*args);
    return (int32_t)cudaGetLastError();
}
