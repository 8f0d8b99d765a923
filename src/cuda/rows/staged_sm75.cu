/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a matrix to what the matmul kernels read, where x cannot be loaded 16 neighbours at a
 * time: act-order, rows at odd addresses, groups that begin anywhere. A CTA brings a row into
 * shared memory in the order of its memory (times the prescale, if there is one), and takes its
 * pieces out of there in packed order. x is read once; bound: a load from shared memory for each
 * element, some four at a time in the way of each other. Exact: rows.cuh. */
#include "pieces.cuh"

/* What a row becomes. */
enum { FLOATS = 0, ROW = 1, BLOCK = 2, GIVEN = 3 };
enum { SHARED_BYTES = 60 << 10 };

/* DTYPE is that of the staged row: f32 wherever a prescale is multiplied. */
template <int DTYPE>
ROWS_DEVICE void stage(const struct rows_job &j, const struct rows_row &row, uint32_t *staged)
{
    const int32_t k = (int32_t)j.s.k, thread = (int32_t)threadIdx.x, threads = (int32_t)blockDim.x;
    if (DTYPE == QN_F32) {
#pragma unroll 4
        for (int32_t i = thread; i < k; i += threads) {
            float v = row.is_valid ? rows_element(j.s.x, j.s.dtype, row.base + i) : 0.0f;
            if (j.s.prescale != NULL)
                v = __fmul_rn(v, __ldg(j.s.prescale + i));
            staged[i] = __float_as_uint(v);
        }
        return;
    }
    constexpr int32_t size = DTYPE == BYTES ? 1 : 2;
    const uint8_t *const from = (const uint8_t *)j.s.x + row.base * size;
    const uint32_t flip = DTYPE == BYTES && j.s.dtype == QN_U8 ? 0x80808080u : 0u;
    if (row.is_valid && ((uintptr_t)from & 15) == 0) {
        const int32_t whole = k * size / 16;
#pragma unroll 2
        for (int32_t i = thread; i < whole; i += threads) {
            const uint4 v = __ldg((const uint4 *)from + i);
            ((uint4 *)staged)[i] = make_uint4(v.x ^ flip, v.y ^ flip, v.z ^ flip, v.w ^ flip);
        }
        for (int32_t i = 16 * whole + thread; i < k * size; i += threads)
            ((uint8_t *)staged)[i] = (uint8_t)(from[i] ^ flip);
        return;
    }
#pragma unroll 8
    for (int32_t i = thread; i < k; i += threads) {
        if (DTYPE == BYTES)
            ((uint8_t *)staged)[i] = row.is_valid ? (uint8_t)(__ldg(from + i) ^ flip) : 0;
        else
            ((uint16_t *)staged)[i] = row.is_valid ? __ldg((const uint16_t *)from + i) : 0;
    }
}

/* The extremes of the whole row, in the order of its memory: act-order moves them, and padding adds
 * nothing to them. */
template <int DTYPE, int SYMMETRIC>
ROWS_DEVICE struct rows_extremes see_row(const struct rows_job &j, const uint32_t *staged)
{
    constexpr int32_t per_four = DTYPE == QN_F32 ? 4 : 8;
    const int32_t k = (int32_t)j.s.k, whole = k / per_four;
    struct rows_extremes seen = rows_no_extremes(SYMMETRIC);
    for (int32_t i = (int32_t)threadIdx.x; i < whole; i += j.team) {
        const uint4 four = ((const uint4 *)staged)[i];
        const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
        for (int w = 0; w < 4; w++) {
            if (DTYPE == QN_F32) {
                rows_see(&seen, __uint_as_float(words[w]), SYMMETRIC);
                continue;
            }
            rows_see(&seen, half_value<DTYPE>(words[w] & 0xffffu), SYMMETRIC);
            rows_see(&seen, half_value<DTYPE>(words[w] >> 16), SYMMETRIC);
        }
    }
    for (int32_t i = per_four * whole + (int32_t)threadIdx.x; i < k; i += j.team)
        rows_see(&seen,
                 DTYPE == QN_F32 ? __uint_as_float(staged[i])
                                 : half_value<DTYPE>(((const uint16_t *)staged)[i]),
                 SYMMETRIC);
    return seen;
}

/* Columns of piece q; returns how many of its positions are real. Every column lies in the row,
 * also those of padding: ptxas 13.0 for sm_90a loads them all before it looks at n. */
ROWS_DEVICE int32_t columns_of(const struct rows_job &j, int32_t q, int32_t (&columns)[16])
{
    const struct rows_row origin = {0, 0, 0, true};
    const int32_t first = 16 * q, last = (int32_t)j.s.k - 1;
    if (!j.is_plain) {
#pragma unroll
        for (int i = 0; i < 16; i++)
            columns[i] = rows_place_of(j, origin, first + i).column;
        return min(rows_place_of(j, origin, first).n, 16);
    }
    const bool is_aligned = ((uintptr_t)j.s.perm & 15) == 0;
    if (j.s.perm != NULL && is_aligned && first + 15 <= last) {
#pragma unroll
        for (int i = 0; i < 16; i += 4) {
            const int4 four = __ldg((const int4 *)(j.s.perm + first + i));
            columns[i] = four.x;
            columns[i + 1] = four.y;
            columns[i + 2] = four.z;
            columns[i + 3] = four.w;
        }
        return 16;
    }
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int32_t position = min(first + i, last);
        columns[i] = j.s.perm != NULL ? __ldg(j.s.perm + position) : position;
    }
    return min(max(last + 1 - first, 0), 16);
}

template <int DTYPE>
ROWS_DEVICE int32_t gather(const struct rows_job &j, const uint32_t *staged, int32_t q,
                           uint32_t (&raw)[WORDS<DTYPE>], int32_t *column)
{
    constexpr int per_word = 16 / WORDS<DTYPE>;
    int32_t columns[16];
    const int32_t n = columns_of(j, q, columns);
    *column = columns[0];
#pragma unroll
    for (int i = 0; i < WORDS<DTYPE>; i++) {
        raw[i] = 0;
#pragma unroll
        for (int e = 0; e < per_word; e++) {
            const int32_t at = columns[i * per_word + e];
            uint32_t bits;
            if (per_word == 1)
                bits = staged[at];
            else if (per_word == 2)
                bits = (uint32_t)((const uint16_t *)staged)[at] << (16 * e);
            else
                bits = (uint32_t)((const uint8_t *)staged)[at] << (8 * e);
            raw[i] |= i * per_word + e < n ? bits : 0u;
        }
    }
    return n;
}

/* A piece of floats, and its part of the total of its group. */
template <int DTYPE>
ROWS_DEVICE void finish_floats(const struct rows_job &j, int64_t row, int32_t q, bool is_active,
                               const uint32_t (&raw)[WORDS<DTYPE>])
{
    float v[16];
    widen_piece<DTYPE, 1>(j, raw, 16, 0, v);
    if (j.total != NULL) {
        float total = 0.0f;
#pragma unroll
        for (int i = 0; i < 16; i++)
            total = __fadd_rn(total, v[i]);
        total = rows_warp_total(total, j.width);
        const int32_t group = q / j.width;
        if (is_active && (q & (j.width - 1)) == 0 && group < j.s.n_groups)
            j.total[row * j.ld_sum + group] = total;
    }
    if (is_active)
        store_floats(j, j.a + row * j.s.to.lda + 32 * (int64_t)q, v);
}

/* A piece of a segment of its own warp: BLOCK with a width. */
template <int DTYPE, int SYMMETRIC>
ROWS_DEVICE struct rows_scaling scaling_of_segment(const struct rows_job &j,
                                                   const uint32_t (&raw)[WORDS<DTYPE>], int32_t n)
{
    struct rows_extremes seen = rows_no_extremes(SYMMETRIC);
    see_piece<DTYPE, SYMMETRIC, 1>(j, raw, n, 0, &seen);
    return rows_scaling_of(rows_warp_range(rows_range_of(seen), j.width), SYMMETRIC);
}

template <int DTYPE, int KIND, int SYMMETRIC>
static __global__ void __launch_bounds__(512)
    staged_kernel(const __grid_constant__ struct rows_job j)
{
    extern __shared__ uint4 shared[];
    __shared__ struct rows_range ranges[32];
    __shared__ int32_t sums[32];
    rows_begin();
    uint32_t *const staged = (uint32_t *)shared;
    const int64_t row = blockIdx.x;
    const int32_t thread = (int32_t)threadIdx.x, pieces = 2 * j.s.units;
    const bool is_whole = KIND != FLOATS && j.s.n_segments == 1; /* one segment: of the team */
    if (!rows_is_wanted(j, row))
        return;
    stage<DTYPE>(j, rows_row_of(j, row), staged);
    if ((KIND == ROW || KIND == GIVEN) && !is_whole && j.width == 0)
        for (int32_t i = thread; i < j.s.n_segments; i += j.team)
            j.sum[row * j.ld_sum + i] = 0;
    __syncthreads();
    uint32_t raw[WORDS<DTYPE>];
    int32_t column, sum = 0;
    struct rows_scaling s = {0.0f, 0.0f, 0.0f, 0.0f, 0.0f};
    if constexpr (KIND == ROW || KIND == BLOCK) {
        if (KIND == ROW || is_whole) {
            const struct rows_extremes seen = see_row<DTYPE, SYMMETRIC>(j, staged);
            s = rows_scaling_of(team_range(j, rows_range_of(seen), ranges), SYMMETRIC);
        }
    }
    for (int32_t q = thread; q - thread < pieces; q += j.team) { /* whole warps */
        const bool is_active = q < pieces;
        int32_t n = 0;
        column = 0;
#pragma unroll
        for (int i = 0; i < WORDS<DTYPE>; i++)
            raw[i] = 0; /* lanes without a piece add nothing to those beside them */
        if (is_active)
            n = gather<DTYPE>(j, staged, q, raw, &column);
        if constexpr (KIND == FLOATS) {
            finish_floats<DTYPE>(j, row, q, is_active, raw);
        } else {
            uint32_t codes[4];
            if constexpr (KIND == BLOCK)
                if (!is_whole)
                    s = scaling_of_segment<DTYPE, SYMMETRIC>(j, raw, n);
            if constexpr (KIND == GIVEN) {
#pragma unroll
                for (int w = 0; w < 4; w++)
                    codes[w] = raw[w];
            } else {
                encode_piece<DTYPE, SYMMETRIC, 1>(j, raw, n, 0, s, codes);
            }
            store_codes(j, row, q, is_active, n, column, codes);
            const int32_t here = sum_piece(codes);
            sum += here;
            if (KIND == BLOCK && !is_whole) {
                const int32_t all = rows_warp_sum(here, j.width), segment = q / j.width;
                if (is_active && (q & (j.width - 1)) == 0 && segment < j.s.n_segments)
                    rows_store_facts(j, s, row, segment, all,
                                     rows_count(j, rows_row_of(j, row), q / 2, j.width / 2));
            } else if (KIND != BLOCK && !is_whole) {
                add_to_segment(j, row, q, is_active, here);
            }
        }
    }
    if (is_whole)
        sum = team_sum(j, sum, sums);
    if (thread != 0 || KIND == FLOATS)
        return;
    if (KIND == BLOCK && is_whole)
        rows_store_facts(j, s, row, 0, sum, (int32_t)j.s.k);
    else if (is_whole)
        j.sum[row * j.ld_sum] = sum;
    if (KIND == ROW)
        j.row_scale[row] = s.scale;
}

#define KERNELS(kind, symmetric)                                                                   \
    {                                                                                              \
        (const void *)staged_kernel<QN_F32, kind, symmetric>,                                      \
            (const void *)staged_kernel<QN_F16, kind, symmetric>,                                  \
            (const void *)staged_kernel<QN_BF16, kind, symmetric>                                  \
    }

int32_t qni_cuda_rows_staged(struct rows_job *j, const struct qni_cuda_launch *launch)
{
    static const void *const kernels[5][3] = {
        KERNELS(FLOATS, 1), KERNELS(ROW, 1),
        KERNELS(BLOCK, 0),  {(const void *)staged_kernel<BYTES, GIVEN, 1>},
        KERNELS(BLOCK, 1),
    };
    const struct qni_cuda_source *s = &j->s;
    const int32_t kind = rows_is_given(s)                 ? GIVEN
                         : s->reads == QNI_CUDA_READS_Q8  ? ROW
                         : s->reads == QNI_CUDA_READS_Q8B ? BLOCK
                                                          : FLOATS;
    const int32_t dtype = rows_is_given(s) || s->prescale == NULL ? s->dtype : QN_F32;
    const int64_t size = dtype == QN_F32 ? 4 : kind == GIVEN ? 1 : 2;
    const bool is_even = kind == FLOATS  ? j->total == NULL || j->width != 0
                         : kind == BLOCK ? s->n_segments == 1 || j->width != 0
                                         : true;
    if (s->is_image || s->units == 0 || s->k * size > SHARED_BYTES || !is_even)
        return qni_cuda_rows_general(j, launch);
    const int64_t pieces = 2 * (int64_t)s->units;
    j->team = (int32_t)(pieces < 64 ? 64 : pieces > 512 ? 512 : (pieces + 31) / 32 * 32);
    const void *kernel =
        kernels[kind == BLOCK && s->symmetric ? 4 : kind][kind == GIVEN ? 0 : dtype - QN_F32];
    return rows_launch_shared(kernel, j->n_rows, dim3((unsigned)j->team),
                              (size_t)(s->k * size + 15) / 16 * 16, j, launch);
}
