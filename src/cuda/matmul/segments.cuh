/* SPDX-License-Identifier: Apache-2.0 */
/* What the int8 kernels that see all of k do when a segment ends: the f32 steps of
 * docs/numerics.md for the sums of a panel in a lane of a tensor core, d[j][c]: output g + 8 (c /
 * 2), row 8 j + 2 t + c % 2 of lane 4 g + t. They read no memory but the facts of weights and those
 * of rows that somebody has laid into shared memory. */
#ifndef QNI_CUDA_MATMUL_SEGMENTS_CUH
#define QNI_CUDA_MATMUL_SEGMENTS_CUH

#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "../kernel.h"

#define DEVICE static __device__ __forceinline__

namespace
{

enum { CODES4 = 0, TABLE4 = 1, CODES8 = 2 };
enum { Q8 = QNI_CUDA_READS_Q8, Q8B = QNI_CUDA_READS_Q8B };
enum { E4M3 = QNI_CUDA_READS_E4M3, E4M3B = QNI_CUDA_READS_E4M3B };

/* ---- segments -------------------------------------------------------------------------------- */

/* Walks over the segments. Padding behind the last one belongs to it: it adds zeros. */
struct cursor {
    int32_t segment, end; /* unit */
    int32_t group, group_end;
};

DEVICE struct cursor cursor_at_begin(const struct qni_cuda_weights &w)
{
    struct cursor c;
    c.segment = 0;
    c.group = 0;
    c.group_end = w.n_groups == 1 ? w.units : w.group_units;
    c.end = w.n_segments == 1 ? w.units : min(w.segment_units, c.group_end);
    return c;
}
DEVICE void cursor_next(struct cursor &c, const struct qni_cuda_weights &w)
{
    if (c.end == c.group_end) {
        c.group++;
        c.group_end = c.group + 1 >= w.n_groups ? w.units : c.group_end + w.group_units;
    }
    c.segment++;
    c.end = c.segment + 1 >= w.n_segments ? w.units : min(c.end + w.segment_units, c.group_end);
}

/* ---- the facts of weights -------------------------------------------------------------------- */

/* What outputs g and g + 8 of a panel have in the segment that is being summed, as it lies in
 * memory: a conversion would wait for the load, and none is wanted before the segment ends. */
struct loaded {
    uint2 scale, offset;
    uint32_t zero;
    int2 sum;
};
struct facts {
    float2 scale, offset;
    int2 sum;
};

DEVICE uint2 load_pair(const uint8_t *section, int32_t is_f16, uint32_t pair)
{
    if (is_f16)
        return make_uint2(__ldg((const uint32_t *)section + pair), 0);
    return __ldg((const uint2 *)section + pair);
}
DEVICE float2 pair_of(uint2 bits, int32_t is_f16)
{
    return is_f16 ? __half22float2(*(const __half2 *)&bits.x)
                  : make_float2(__uint_as_float(bits.x), __uint_as_float(bits.y));
}

/* panel: of all parts. 32 bits are enough for its pairs: codes take 32 times as many. */
DEVICE void load_facts(struct loaded &f, const struct qni_cuda_weights &w, const uint8_t *blob,
                       uint32_t panel, uint32_t g, const struct cursor &at, bool has_sums)
{
    const uint32_t pair = (panel * (uint32_t)w.n_groups + (uint32_t)at.group) * 8 + g;
    f.scale = load_pair(blob + w.scale, w.scale_is_f16, pair);
    if (w.shift == QNI_CUDA_SHIFT_OFFSET)
        f.offset = load_pair(blob + w.offset, w.scale_is_f16, pair);
    if (w.shift == QNI_CUDA_SHIFT_ZERO)
        f.zero = __ldg((const uint16_t *)(blob + w.zero) + pair);
    if (has_sums)
        f.sum = __ldg((const int2 *)(blob + w.sums) +
                      ((panel * (uint32_t)w.n_segments + (uint32_t)at.segment) * 8 + g));
}

template <int KIND>
DEVICE struct facts facts_in_f32(const struct loaded &l, const struct qni_cuda_weights &w)
{
    struct facts f;
    f.scale = pair_of(l.scale, w.scale_is_f16);
    f.offset = pair_of(l.offset, w.scale_is_f16);
    if (w.shift == QNI_CUDA_SHIFT_ZERO)
        /* A zero point of 0 is an offset of -0. */
        f.offset = make_float2(-(float)(int8_t)l.zero * f.scale.x,
                               -(float)(int8_t)(l.zero >> 8) * f.scale.y);
    if (KIND == TABLE4 && w.table8_doubled)
        f.scale = make_float2(0.5f * f.scale.x, 0.5f * f.scale.y);
    f.sum = l.sum;
    return f;
}

/* ---- the end of a segment -------------------------------------------------------------------- */

/* What the f32 steps ask; x: facts of the warp's rows in shared memory. */
struct ending {
    const float *x;
    int32_t x_zero, count;
    float times; /* of sums as floats: 1/16, a power of two and exact, unless they were shifted */
    bool has_offset, has_x_offset, is_raw;
};

/* The f32 steps are taken one after the other for all sums of a panel, so that each choice is made
 * once. Rows 8 j + 2 t and the next have their facts side by side. */
#define FOR_SUMS                                                                                   \
    _Pragma("unroll") for (int j = 0; j < COLUMNS; j++)                                            \
        _Pragma("unroll") for (int c = 0; c < 4; c++)

DEVICE float of_output(float2 v, int c)
{
    return c < 2 ? v.x : v.y;
}
DEVICE float of_row(const float *facts, int j, int c)
{
    const float2 v = *(const float2 *)(facts + 8 * j); /* one load for both */
    return (c & 1) == 0 ? v.x : v.y;
}

template <int KIND, int COLUMNS>
DEVICE void end_q8(float (&acc)[COLUMNS][4], int32_t (&dot)[COLUMNS][4], const struct facts &w,
                   const struct ending &e)
{
    if (e.x_zero != 0)
        FOR_SUMS dot[j][c] -= e.x_zero * (c < 2 ? w.sum.x : w.sum.y);
    if (e.is_raw) {
        FOR_SUMS acc[j][c] = __int_as_float(__float_as_int(acc[j][c]) + dot[j][c]);
        return;
    }
    FOR_SUMS acc[j][c] =
        fmaf(of_output(w.scale, c), __int2float_rn(dot[j][c]) * e.times, acc[j][c]);
    if (e.has_offset)
        FOR_SUMS
        {
            const int32_t sum = __float_as_int(of_row(e.x, j, c)) - e.x_zero * e.count;
            acc[j][c] = fmaf(of_output(w.offset, c), __int2float_rn(sum), acc[j][c]);
        }
}

template <int ROWS, int COLUMNS>
DEVICE void end_q8b(float (&acc)[COLUMNS][4], int32_t (&dot)[COLUMNS][4], const struct facts &w,
                    const struct ending &e)
{
    if (e.has_x_offset) {
        const float sums[2] = {__int2float_rn(w.sum.x), __int2float_rn(w.sum.y)};
        FOR_SUMS
        {
            const float f = __int2float_rn(dot[j][c]) * e.times, sum = sums[c >> 1];
            const float t = fmaf(of_row(e.x, j, c), f, of_row(e.x + ROWS, j, c) * sum);
            acc[j][c] = fmaf(of_output(w.scale, c), t, acc[j][c]);
        }
    } else {
        FOR_SUMS
        {
            const float t = of_row(e.x, j, c) * (__int2float_rn(dot[j][c]) * e.times);
            acc[j][c] = fmaf(of_output(w.scale, c), t, acc[j][c]);
        }
    }
    if (e.has_offset)
        FOR_SUMS acc[j][c] = fmaf(of_output(w.offset, c), of_row(e.x + 2 * ROWS, j, c), acc[j][c]);
}

/* Of e4m3: sums are floats. */
template <bool BY_BLOCK, int COLUMNS>
DEVICE void end_e4m3(float (&acc)[COLUMNS][4], float (&dot)[COLUMNS][4], const struct facts &w,
                     const struct ending &e)
{
    FOR_SUMS
    {
        const float t = BY_BLOCK ? of_row(e.x, j, c) * dot[j][c] : dot[j][c];
        acc[j][c] = fmaf(of_output(w.scale, c), t, acc[j][c]);
    }
}

} // namespace

#endif
