/* SPDX-License-Identifier: Apache-2.0 */
/* One segment for all of k (WHOLE), as weights with one scale an output have it: dots are integers
 * to the end, so that warps add theirs in any order, once a panel, and the scales, which are needed
 * once, come beside the codes. Raw int32 sums are these dots. */
#ifndef QNI_CUDA_MATMUL_DECODE_INT8_WHOLE_CUH
#define QNI_CUDA_MATMUL_DECODE_INT8_WHOLE_CUH

#include "decode_int8_chunks.cuh"

namespace chunks
{

/* Scales of the panels, and zero points or offsets. */
INLINE void tables_ask(const struct job &d, const struct whose &w, uint8_t *shared)
{
    const size_t panel = (size_t)(w.part * d.panels + w.first);
    const uint8_t *const scale = w.blob + d.scale + panel * (size_t)d.row_bytes;
    const uint8_t *const extra = w.blob + d.extra + panel * (size_t)d.extra_bytes;
    const int32_t at = (int32_t)threadIdx.x * 16;
    if (at < w.count * d.row_bytes)
        ptx_copy16(ptx_shared(shared + d.at_table + at), scale + at, true);
    if (at < w.count * d.extra_bytes)
        ptx_copy16(ptx_shared(shared + d.at_extra + at), extra + at, true);
}

/* Zeros where the warps add. */
template <int ROWS> INLINE void clear(const struct job &d, uint8_t *shared, int32_t panels)
{
    int4 *const dots = (int4 *)(shared + d.at_dots);
    for (int32_t i = (int32_t)threadIdx.x; i < panels * (ROWS * LINE / 4); i += THREADS)
        dots[i] = make_int4(0, 0, 0, 0);
    int32_t *const totals = (int32_t *)(shared + d.at_totals);
    if (d.has_sums)
        for (int32_t i = (int32_t)threadIdx.x; i < panels * 16; i += THREADS)
            totals[i] = 0;
}

/* A lane's dots and sums of codes of a run of chunks of one panel. */
template <int BITS, int MT>
INLINE void chunk_of_whole(const struct job &d, const struct lane &l, const uint8_t *slot,
                           const uint8_t *x, int32_t chunk, int32_t (&dot)[MT][4],
                           int32_t (&sum)[4], int32_t lane)
{
    enum { BLOCK = BITS * 128, BLOCKS = CHUNK / BLOCK, TOGETHER = 4 };
    const int32_t valid = d.units / 2 - chunk * BLOCKS; /* behind them there may be anything */
#pragma unroll
    for (int b0 = 0; b0 < BLOCKS; b0 += TOGETHER) {
        uint32_t words[TOGETHER][BITS];
        uint4 rows[TOGETHER][MT];
#pragma unroll
        for (int b = 0; b < TOGETHER; b++) {
            words_of<BITS>(words[b], slot + (b0 + b) * BLOCK + lane * 16);
#pragma unroll
            for (int i = 0; i < MT; i++)
                rows[b][i] = *(const uint4 *)(x + (b0 + b) * 64 + i * l.x_tile);
        }
#pragma unroll
        for (int u = 0; u < 2 * TOGETHER; u++) {
            const uint4 *const row = rows[u / 2];
            const uint32_t one = b0 + u / 2 < valid ? 0x01010101 : 0;
            uint32_t a[4];
            bytes_of<BITS>(a, words[u / 2], u % 2);
#pragma unroll
            for (int i = 0; i < MT; i++)
                mma_s8(dot[i], a, u % 2 == 0 ? row[i].x : row[i].z,
                       u % 2 == 0 ? row[i].y : row[i].w);
            if (d.has_sums)
                mma_s8(sum, a, one, one);
        }
    }
}

/* To those of the other warps: integers in any order. dots: from row 2 t, output g. */
template <int BITS, int MT>
INLINE void add_whole(const struct job &d, int32_t (&dot)[MT][4], int32_t (&sum)[4], int32_t *dots,
                      int32_t *totals, int32_t lane)
{
    enum { SHIFT = BITS == 4 ? 4 : 0 };
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            atomicAdd(dots + (i * 8 + (j & 1)) * LINE + (j >> 1) * 8, dot[i][j] >> SHIFT);
            dot[i][j] = 0;
        }
    if (d.has_sums && (lane & 3) == 0) {
        atomicAdd(totals + (lane >> 2), sum[0] >> SHIFT);
        atomicAdd(totals + (lane >> 2) + 8, sum[2] >> SHIFT);
    }
    sum[0] = sum[2] = 0;
}

/* What the zero point of output o of panel p adds to a raw sum of row `row` as it was prepared. */
INLINE int32_t raw_zero(const struct job &d, const uint8_t *shared, const uint8_t *blob, int32_t p,
                        int32_t o, int64_t row)
{
    const int8_t *const zeros = (const int8_t *)(shared + d.at_extra + p * d.extra_bytes);
    int32_t sum = 0;
    for (int32_t s = 0; s < d.n_segments; s++) {
        sum += d.x.sum[row * d.x.ld_segment + s];
        if (d.x.x_zero != 0)
            sum -= d.x.x_zero * ((const int32_t *)(blob + d.counts))[s];
    }
    return zeros[2 * (o & 7) + (o >> 3)] * sum;
}

/* The steps of the one segment: output o of panel p, row r. dot: less x_zero sum_w where it is raw,
 * and less what zero points add. */
INLINE float steps_of_one(const struct job &d, const uint8_t *shared, int32_t p, int32_t o,
                          int32_t r, int32_t dot, int32_t sum)
{
    const int32_t i0 = 2 * (o & 7) + (o >> 3), at = r * d.facts_stride;
    const float scale = one_at(shared + d.at_table + p * d.row_bytes, i0, d.scale_is_f16);
    const uint8_t *const extra = shared + d.at_extra + p * d.extra_bytes;
    const float *const fact = (const float *)(shared + d.at_scale) + at;
    float t = (float)dot;
    if (d.is_q8b && d.has_sums)
        t = __fmaf_rn(*fact, t, __fmul_rn(((const float *)(shared + d.at_offset))[at], (float)sum));
    else if (d.is_q8b)
        t = __fmul_rn(*fact, t);
    t = __fmaf_rn(scale, t, 0.0f);
    if (d.extra_bytes == 0 || d.is_raw)
        return t;
    return __fmaf_rn(d.extra_bytes == 16 ? shifted((const int8_t *)extra + i0, scale)
                                         : one_at(extra, i0, d.scale_is_f16),
                     ((const float *)(shared + d.at_total))[at], t);
}

} // namespace chunks

#endif
