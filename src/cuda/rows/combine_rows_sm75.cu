/* SPDX-License-Identifier: Apache-2.0 */
/* What belongs to experts beside their products: weighted sums of a token's rows, and where the
 * rows of each begin if all have as many. Bound by memory: each row read once, y written once. */
#include "../epilogue.cuh"
#include "../rows.cuh"

namespace
{

enum { THREADS = 256 };

/* A thread an output, neighbours side by side. */
__global__ void __launch_bounds__(THREADS)
    combine(const __grid_constant__ struct qni_cuda_combine_rows a)
{
    rows_begin();
    const int64_t per_row = (a.n + THREADS - 1) / THREADS;
    const int64_t t = blockIdx.x / per_row;
    const int64_t column = (blockIdx.x - t * per_row) * THREADS + threadIdx.x;
    if (column >= a.n)
        return;
    float sum = a.add == NULL ? 0.0f : epilogue_load(a.add, a.add_dtype, t * a.ld_add + column);
    for (int64_t j = 0; j < a.top_k; j++) {
        const int64_t row = a.rows == NULL ? t * a.top_k + j : __ldg(a.rows + t * a.ld_rows + j);
        if (row >= 0 && row < a.x_rows)
            sum += __ldg(a.weights + t * a.ld_weights + j) *
                   epilogue_load(a.x, a.x_dtype, row * a.ldx + column);
    }
    epilogue_round(a.out, t * a.out.stride[2] + column, sum);
}

__global__ void __launch_bounds__(THREADS) even(const __grid_constant__ struct qni_cuda_even a)
{
    rows_begin();
    const int32_t e = (int32_t)(blockIdx.x * THREADS + threadIdx.x);
    if (e <= a.n)
        a.offsets[e] = (int32_t)(e * a.rows);
}

} // namespace

int32_t qni_cuda_combine_rows_sm75(const struct qni_cuda_combine_rows *args,
                                   const struct qni_cuda_launch *launch)
{
    if (args->tokens == 0 || args->n == 0)
        return 0;
    return rows_launch((const void *)combine,
                       args->tokens * ((args->n + THREADS - 1) / THREADS), dim3(THREADS), args,
                       launch);
}

int32_t qni_cuda_even_sm75(const struct qni_cuda_even *args, const struct qni_cuda_launch *launch)
{
    return rows_launch((const void *)even, args->n / THREADS + 1, dim3(THREADS), args, launch);
}
