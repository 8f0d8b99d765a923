/* SPDX-License-Identifier: Apache-2.0 */
/* Sums that another library left in f32 through the epilogue to y, the steps and bits of
 * epilogue.cuh. Where outputs lie side by side in y a warp has 256 of a row, lane after lane; else
 * (images with planes of channels) tiles go through shared memory and are written along the rows.
 * And gates: two such values make one.
 * Bound by memory: 4 bytes read and those of y written for each output, and what the epilogue
 * reads. */
#include "../epilogue.cuh"
#include "../rows.cuh"

namespace
{

enum { WARPS = 8, OUTPUTS = 256, TILE = 64, LD = TILE + 4 };

__global__ void __launch_bounds__(WARPS * 32)
    finish_rows(const __grid_constant__ struct qni_cuda_finish a)
{
    rows_begin();
    const int32_t per_row = (a.n + OUTPUTS - 1) / OUTPUTS;
    const int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int64_t i = item / per_row;
    if (i >= a.m)
        return;
    const int32_t first = (int32_t)(item - i * per_row) * OUTPUTS + ((int32_t)threadIdx.x & 31);
    const float *const from = a.sums + i * a.ld;
    float v[OUTPUTS / 32];
#pragma unroll
    for (int q = 0; q < OUTPUTS / 32; q++)
        v[q] = first + 32 * q < a.n ? from[first + 32 * q] : 0.0f;
    const struct epilogue_row row = epilogue_row_of(a.out, a.row + i);
#pragma unroll
    for (int q = 0; q < OUTPUTS / 32; q++)
        if (first + 32 * q < a.n)
            epilogue_store(a.out, row, a.output + first + 32 * q, 0, v[q]);
}

__global__ void __launch_bounds__(WARPS * 32)
    finish_tiles(const __grid_constant__ struct qni_cuda_finish a)
{
    __shared__ __align__(16) float memory[TILE][LD];
    rows_begin();
    const int32_t per_row = (a.n + TILE - 1) / TILE;
    const int64_t at = blockIdx.x / per_row;
    const int64_t row = at * TILE;
    const int32_t output = (int32_t)(blockIdx.x - at * per_row) * TILE;
    const int32_t rows = (int32_t)min((int64_t)TILE, a.m - row), outputs = min(TILE, a.n - output);
    for (int32_t e = (int32_t)threadIdx.x; e < TILE * TILE / 4; e += WARPS * 32) {
        const int32_t i = e / (TILE / 4), j = 4 * (e % (TILE / 4));
        /* ld is a multiple of 4: the last four of a row may be read whole. */
        if (i < rows && j < outputs)
            *(float4 *)&memory[i][j] = *(const float4 *)(a.sums + (row + i) * a.ld + output + j);
    }
    __syncthreads();
    struct epilogue_tile tile;
    tile.v = memory[0];
    tile.ld = LD;
    tile.rows = rows;
    tile.outputs = outputs;
    tile.output = a.output + output;
    tile.expert = 0;
    tile.row = a.row + row;
    tile.index = NULL;
    epilogue_tile_run(a.out, tile, (int32_t)threadIdx.x, WARPS * 32);
}

/* A thread an output, neighbours side by side. */
__global__ void __launch_bounds__(WARPS * 32)
    gate_rows(const __grid_constant__ struct qni_cuda_gate a)
{
    rows_begin();
    const int64_t item = (int64_t)blockIdx.x * (WARPS * 32) + threadIdx.x, i = item / a.n;
    if (i >= a.m)
        return;
    const int32_t j = (int32_t)(item - i * a.n);
    const float *const from = a.v + i * 2 * a.n;
    const float g = from[a.by_pairs ? 2 * j : j], u = from[a.by_pairs ? 2 * j + 1 : a.n + j];
    epilogue_store(a.out, epilogue_row_of(a.out, i), j, 0,
                   epilogue_activate_any(a.out, g, a.act) * u);
}

} // namespace

int32_t qni_cuda_gate_sm75(const struct qni_cuda_gate *args, const struct qni_cuda_launch *launch)
{
    enum { THREADS = WARPS * 32 };
    if (args->m == 0 || args->n == 0)
        return 0;
    return rows_launch((const void *)gate_rows, (args->m * args->n + THREADS - 1) / THREADS,
                       dim3(THREADS), args, launch);
}

int32_t qni_cuda_finish_sm75(const struct qni_cuda_finish *args,
                             const struct qni_cuda_launch *launch)
{
    if (args->m == 0 || args->n == 0)
        return 0;
    if (args->out.stride[3] != 1) {
        const int64_t tiles = (args->m + TILE - 1) / TILE * ((args->n + TILE - 1) / TILE);
        return rows_launch((const void *)finish_tiles, tiles, dim3(32 * WARPS), args, launch);
    }
    const int64_t items = args->m * ((args->n + OUTPUTS - 1) / OUTPUTS);
    return rows_launch((const void *)finish_rows, (items + WARPS - 1) / WARPS, dim3(32 * WARPS),
                       args, launch);
}
