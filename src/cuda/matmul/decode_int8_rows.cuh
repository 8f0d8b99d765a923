/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of x as they lie, quantized by every CTA for itself: where they are few that takes less time
 * than a launch of its own, and the weights are on their way meanwhile. The quantizer is that of
 * rows.cuh, step for step (docs/numerics.md), so that codes and facts are those of prepared rows:
 *
 *     x --copies--> shared memory --16 positions a lane--> codes in the order of blocks, facts
 *
 * A row of 4096 takes each CTA some 0.5 us. The host sees to it that positions are columns, that
 * segments have 1, 2 or 4 units (or there is one, and none of its facts is wanted), that rows are
 * one or two and that all of x fits (prepared.c). */
#ifndef QNI_CUDA_MATMUL_DECODE_INT8_ROWS_CUH
#define QNI_CUDA_MATMUL_DECODE_INT8_ROWS_CUH

#include "../rows/pieces.cuh"
#include "decode_int8.cuh"

namespace chunks
{

INLINE void lying_ask(const struct job &d, const struct decode_rows &rows, uint8_t *shared)
{
    const int32_t bytes = d.x.columns * lying_size(d), stride = lying_stride(d);
#pragma unroll 1
    for (int32_t r = 0; r < rows.m; r++) {
        const uint8_t *const x = (const uint8_t *)d.x.a + decode_row_of(rows, r) * d.x.lda;
        const uint32_t to = ptx_shared(shared) + (uint32_t)(d.at_lying + r * stride);
#pragma unroll 1
        for (int32_t c = (int32_t)threadIdx.x * 16; c < stride; c += THREADS * 16) {
            const int32_t n = bytes - c;
            if (n >= 16 || n <= 0)
                ptx_copy16(to + (uint32_t)c, x + (n > 0 ? c : 0), n > 0);
            else
                ptx_copy16_bytes(to + (uint32_t)c, x + c, n);
        }
    }
    ptx_copies_commit();
}

/* 16 values from `at` on, in shared memory. */
INLINE void piece_of(const uint8_t *at, int32_t dtype, float (&v)[16])
{
    if (dtype == QN_F32) {
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            const float4 four = *(const float4 *)(at + i * 4);
            v[i] = four.x;
            v[i + 1] = four.y;
            v[i + 2] = four.z;
            v[i + 3] = four.w;
        }
        return;
    }
    const uint4 low = *(const uint4 *)at, high = *(const uint4 *)(at + 16);
    const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const uint32_t half = i & 1 ? words[i / 2] >> 16 : words[i / 2] & 0xffffu;
        v[i] = dtype == QN_F16 ? half_value<QN_F16>(half) : half_value<QN_BF16>(half);
    }
}

/* Of n real values; zeros behind them are no matter for magnitudes. */
template <int SYMMETRIC> INLINE struct rows_range range_of(const float (&v)[16], int32_t n)
{
    const float infinity = __int_as_float(0x7f800000);
    struct rows_extremes seen = rows_no_extremes(SYMMETRIC);
#pragma unroll
    for (int i = 0; i < 16; i++) {
        if (SYMMETRIC) {
            rows_see(&seen, v[i], true);
            continue;
        }
        seen.lo = rows_min(seen.lo, i < n ? v[i] : infinity);
        seen.hi = rows_max(seen.hi, i < n ? v[i] : -infinity);
    }
    return rows_range_of(seen);
}

template <int WIDTH> INLINE int32_t largest(int32_t v)
{
#pragma unroll
    for (int step = WIDTH / 2; step > 0; step /= 2)
        v = max(v, __shfl_xor_sync(0xffffffffu, v, step));
    return v;
}

/* How rows are quantized. */
enum { BY_ROW, BY_BLOCK, WITH_OFFSETS };

/* Codes and facts of all rows, by all threads, when x is there. positions: of all chunks. WIDTH:
 * lanes of a segment. */
template <int HOW, int WIDTH>
INLINE void quantize(const struct job &d, const struct decode_rows &rows, uint8_t *shared,
                     int32_t positions)
{
    enum { SYMMETRIC = HOW != WITH_OFFSETS };
    const int32_t lane = (int32_t)threadIdx.x & 31, begin = (int32_t)threadIdx.x;
    const int32_t size = lying_size(d) * 16, pieces = positions / 16;
    int32_t *const most = (int32_t *)(shared + AT_MOST);
    if (HOW == BY_ROW) {
#pragma unroll 1
        for (int32_t r = 0; r < rows.m; r++)
#pragma unroll 1
            for (int32_t q = begin; q - lane < pieces; q += THREADS) {
                const uint8_t *const x = shared + d.at_lying + r * lying_stride(d);
                float v[16];
                piece_of(x + min(q, pieces - 1) * size, d.x.lies, v);
                const int32_t hi = __reduce_max_sync(0xffffffffu, range_of<1>(v, 16).hi);
                if (lane == 0)
                    atomicMax(most + r, hi);
            }
        __syncthreads();
    }
#pragma unroll 1
    for (int32_t r = 0; r < rows.m; r++)
#pragma unroll 1
        for (int32_t q = begin; q - lane < pieces; q += THREADS) {
            const uint8_t *const x = shared + d.at_lying + r * lying_stride(d);
            const int32_t n = d.x.columns - 16 * q;
            float v[16];
            piece_of(x + min(q, pieces - 1) * size, d.x.lies, v);
            struct rows_range range = {0, 0};
            if (HOW == BY_ROW)
                range.hi = most[r];
            else if (SYMMETRIC)
                range.hi = largest<WIDTH>(range_of<1>(v, n).hi);
            else
                range = rows_warp_range(range_of<0>(v, n), WIDTH);
            const struct rows_scaling s = rows_scaling_of(range, SYMMETRIC);
            uint32_t codes[4];
            encode_values<SYMMETRIC>(v, s, !SYMMETRIC && d.x.lies != QN_F32, codes);
            if (!SYMMETRIC)
                cut_codes(codes, n);
            const int32_t sum = rows_warp_sum(sum_piece(codes), WIDTH);
            const uint4 block = block_of_codes(codes, 0);
            const int32_t segment = q / WIDTH, at = r * d.facts_stride + segment;
            if (q < pieces)
                *(uint4 *)(shared + d.at_x + r * d.x_stride + 64 * (q >> 2) + 16 * (q & 3)) = block;
            if (HOW == BY_ROW && q == 0)
                ((float *)(shared + AT_ROWS))[r] = s.scale;
            if (WIDTH == 32 || (q & (WIDTH - 1)) != 0 || segment >= d.n_segments)
                continue;
            ((float *)(shared + d.at_scale))[at] = HOW == BY_ROW ? 1.0f : s.scale;
            if (!SYMMETRIC)
                ((float *)(shared + d.at_offset))[at] = s.offset;
            if (d.extra_bytes != 0)
                ((float *)(shared + d.at_total))[at] =
                    HOW == BY_ROW ? (float)sum
                                  : __fmaf_rn(s.scale, (float)sum,
                                              __fmul_rn(s.offset, (float)min(n, 16 * WIDTH)));
        }
}

/* SEG: of the kernel. */
template <int SEG>
INLINE void lying_quantize(const struct job &d, const struct decode_rows &rows, uint8_t *shared,
                           int32_t positions)
{
    if (threadIdx.x < 16)
        ((int32_t *)(shared + AT_MOST))[threadIdx.x] = 0;
    ptx_copies_wait<0>();
    __syncthreads();
    if constexpr (SEG == WHOLE) {
        quantize<BY_ROW, 32>(d, rows, shared, positions);
    } else {
        if (!d.is_q8b)
            quantize<BY_ROW, 2 * SEG>(d, rows, shared, positions);
        else if (!d.has_sums)
            quantize<BY_BLOCK, 2 * SEG>(d, rows, shared, positions);
        else
            quantize<WITH_OFFSETS, 2 * SEG>(d, rows, shared, positions);
    }
}

} // namespace chunks

#endif
