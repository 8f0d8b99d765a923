/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of x to e4m3 (docs/numerics.md, "fp8"), or from e4m3, in one of the forms that products
 * read: codes as they lie, codes in the order of wgmma, f16 with the same values, or f32 times the
 * scale.
 *
 * A lane has 4 neighbouring columns at a time. A block of 128 columns is a warp's; a row with one
 * scale is a CTA's, which reads it twice, the second time mostly from the caches. The time is that
 * of the bytes. */
#include "../rows.cuh"

namespace
{

enum { THREADS = 256, QUAD = 4, BLOCK = 32 * QUAD };
enum { CODES = QNI_CUDA_FP8_CODES, STEPS = QNI_CUDA_FP8_STEPS, HALVES = QNI_CUDA_FP8_F16 };

struct job {
    struct qni_cuda_fp8 a;
    int32_t is_vector; /* 4 elements of x at a time */
    int64_t quads;     /* of a row as it is written */
};

/* ---- codes ----------------------------------------------------------------------------------- */

/* Nearest, ties to even, at most 448; 0x7f for NaN. */
__device__ __forceinline__ uint32_t code_of(float v)
{
#if __CUDA_ARCH__ >= 890
    uint16_t two;
    asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(two) : "f"(0.0f), "f"(v));
    return v == v ? two & 0xffu : 0x7fu;
#else
    return v == v ? qni_e4m3_from_f32(v) : 0x7fu;
#endif
}

/* ---- x --------------------------------------------------------------------------------------- */

struct row {
    int64_t from; /* of x; negative: a row of zeros */
    bool is_there;
};
__device__ __forceinline__ struct row row_of(const struct job &j, int64_t i)
{
    int64_t number = i + j.a.row;
    if (j.a.order != NULL) {
        const int32_t from = j.a.order[i];
        if (from < 0)
            return {-1, false};
        number = from + j.a.row;
    }
    if (j.a.index != NULL) {
        const int32_t from = j.a.index[number];
        number = from >= 0 && from < j.a.x_rows ? from : -1;
    }
    return {number, true};
}

/* Columns [c, c + 4) of a row as bits: floats, or codes; zeros behind its end. */
__device__ __forceinline__ void load_quad(const struct job &j, int64_t row, int64_t c,
                                          float (&v)[QUAD])
{
    const bool is_code = j.a.dtype == QN_E4M3;
    const int64_t at = row * j.a.ldx + c;
    if (row < 0 || c >= j.a.k) {
#pragma unroll
        for (int i = 0; i < QUAD; i++)
            v[i] = 0.0f;
        return;
    }
    if (j.is_vector && c + QUAD <= j.a.k) {
        if (j.a.dtype == QN_F32) {
            const float4 f = __ldg((const float4 *)((const float *)j.a.x + at));
            v[0] = f.x;
            v[1] = f.y;
            v[2] = f.z;
            v[3] = f.w;
            return;
        }
        if (is_code) {
            const uint32_t word = __ldg((const uint32_t *)((const uint8_t *)j.a.x + at));
#pragma unroll
            for (int i = 0; i < QUAD; i++)
                v[i] = __uint_as_float(word >> (8 * i) & 0xffu);
            return;
        }
        const uint2 two = __ldg((const uint2 *)((const uint16_t *)j.a.x + at));
        const uint32_t words[2] = {two.x, two.y};
#pragma unroll
        for (int i = 0; i < QUAD; i++) {
            const uint16_t bits = (uint16_t)(words[i / 2] >> (16 * (i & 1)));
            v[i] = j.a.dtype == QN_F16 ? __half2float(__ushort_as_half(bits))
                                       : __uint_as_float((uint32_t)bits << 16);
        }
        return;
    }
#pragma unroll
    for (int i = 0; i < QUAD; i++) {
        if (c + i >= j.a.k)
            v[i] = 0.0f;
        else if (is_code)
            v[i] = __uint_as_float(((const uint8_t *)j.a.x)[at + i]);
        else
            v[i] = rows_element(j.a.x, j.a.dtype, at + i);
    }
}

/* ---- scales ---------------------------------------------------------------------------------- */

struct scaling {
    float scale, inv;
};
/* Of the bits of the largest magnitude. */
__device__ __forceinline__ struct scaling scaling_of(const struct job &j, int32_t amax_bits)
{
    const float amax = __int_as_float(amax_bits);
    if (j.a.x_scale != 0.0f)
        return {j.a.x_scale, __fdiv_rn(1.0f, j.a.x_scale)};
    if (amax_bits >= 0x7f800000)
        return {__int_as_float(0x7fc00000), 0.0f};
    if (amax < 0x1p-120f)
        return {0.0f, 0.0f};
    return {__fdiv_rn(amax, 448.0f), __fdiv_rn(448.0f, amax)};
}
__device__ __forceinline__ int32_t most_of(const float (&v)[QUAD])
{
    int32_t most = 0;
#pragma unroll
    for (int i = 0; i < QUAD; i++)
        most = max(most, __float_as_int(v[i]) & 0x7fffffff);
    return most;
}

/* ---- what is written ------------------------------------------------------------------------- */

/* All lanes of a warp come here, with quads side by side. */
template <int FORM>
__device__ __forceinline__ void store_quad(const struct job &j, int64_t i, int64_t q,
                                           bool is_active, const float (&v)[QUAD],
                                           const struct scaling &s)
{
    uint32_t code[QUAD];
#pragma unroll
    for (int e = 0; e < QUAD; e++) {
        /* A static scale does not know of infinities: they are no numbers. */
        const float x = v[e] - v[e] == 0.0f ? v[e] : __int_as_float(0x7fc00000);
        code[e] = j.a.dtype == QN_E4M3 ? __float_as_uint(v[e])
                  : s.inv == 0.0f      ? 0u
                                       : code_of(__fmul_rn(x, s.inv));
    }
    uint32_t word = code[0] | code[1] << 8 | code[2] << 16 | code[3] << 24;
    uint8_t *const to = (uint8_t *)j.a.to + i * j.a.ld_to;
    if constexpr (FORM == STEPS) {
        /* Byte 16 s + 4 t + j of a block is position 16 s + {2 t, 2 t + 8, 2 t + 1, 2 t + 9}[j]:
         * two lanes trade halves. */
        const uint32_t other = __shfl_xor_sync(0xffffffffu, word, 2);
        const bool is_high = (q & 2) != 0;
        word = is_high ? __byte_perm(other, word, 0x7362) : __byte_perm(word, other, 0x5140);
        if (is_active)
            *(uint32_t *)(to + q / 4 * 16 + 8 * (q & 1) + (is_high ? 4 : 0)) = word;
    } else if constexpr (FORM == CODES) {
        if (is_active && j.a.is_aligned && 4 * q + QUAD <= j.a.k)
            *(uint32_t *)(to + 4 * q) = word;
        else
            for (int e = 0; is_active && e < QUAD; e++)
                if (4 * q + e < j.a.k)
                    to[4 * q + e] = (uint8_t)code[e];
    } else {
        float value[QUAD];
#pragma unroll
        for (int e = 0; e < QUAD; e++)
            value[e] = qni_f32_from_e4m3((uint8_t)code[e]);
        if (FORM == HALVES && is_active) {
            uint2 two;
            const __half2 a = __floats2half2_rn(value[0], value[1]);
            const __half2 b = __floats2half2_rn(value[2], value[3]);
            two.x = *(const uint32_t *)&a;
            two.y = *(const uint32_t *)&b;
            *(uint2 *)(to + 8 * q) = two;
        } else if (is_active) {
            *(float4 *)(to + 16 * q) =
                make_float4(__fmul_rn(value[0], s.scale), __fmul_rn(value[1], s.scale),
                            __fmul_rn(value[2], s.scale), __fmul_rn(value[3], s.scale));
        }
    }
}

__device__ __forceinline__ float given_scale(const struct job &j, int64_t row, int64_t block)
{
    if (j.a.x_scale != 0.0f)
        return j.a.x_scale;
    return row < 0 ? 0.0f : j.a.given[row * j.a.ld_given + block];
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* A warp a block of 128 columns. */
template <int FORM>
__global__ void __launch_bounds__(THREADS) by_block(const __grid_constant__ struct job j)
{
    rows_begin();
    const int64_t blocks = (j.quads + 31) / 32, lane = threadIdx.x & 31;
    const int64_t warp = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int64_t i = warp / blocks, b = warp - i * blocks, q = b * 32 + lane;
    if (i >= j.a.m)
        return;
    const struct row r = row_of(j, i);
    if (!r.is_there)
        return;
    float v[QUAD];
    load_quad(j, r.from, 4 * q, v);
    struct scaling s;
    if (j.a.dtype == QN_E4M3)
        s = {4 * 32 * b < j.a.k ? given_scale(j, r.from, b) : 0.0f, 1.0f};
    else
        s = scaling_of(j, rows_warp_range({0, most_of(v)}, 32).hi);
    store_quad<FORM>(j, i, q, q < j.quads, v, s);
    if (lane == 0 && j.a.scale != NULL && 4 * 32 * b < j.a.k)
        j.a.scale[i * j.a.ld_scale + b] = s.scale;
}

/* A CTA a row. */
template <int FORM>
__global__ void __launch_bounds__(THREADS) by_row(const __grid_constant__ struct job j)
{
    __shared__ int32_t most[THREADS / 32];
    rows_begin();
    const int64_t i = blockIdx.x, lane = threadIdx.x & 31;
    const struct row r = row_of(j, i);
    if (!r.is_there)
        return;
    float v[QUAD];
    struct scaling s = {given_scale(j, j.a.x_scale != 0.0f || j.a.given != NULL ? r.from : -1, 0),
                        1.0f};
    if (j.a.dtype != QN_E4M3) {
        int32_t mine = 0;
        for (int64_t q = threadIdx.x; q < j.quads && j.a.x_scale == 0.0f; q += THREADS) {
            load_quad(j, r.from, 4 * q, v);
            mine = max(mine, most_of(v));
        }
        mine = rows_warp_range({0, mine}, 32).hi;
        if (lane == 0)
            most[threadIdx.x / 32] = mine;
        __syncthreads();
        for (int w = 0; w < THREADS / 32; w++)
            mine = max(mine, most[w]);
        s = scaling_of(j, mine);
    }
    for (int64_t q0 = threadIdx.x - lane; q0 < j.quads; q0 += THREADS) {
        load_quad(j, r.from, 4 * (q0 + lane), v);
        store_quad<FORM>(j, i, q0 + lane, q0 + lane < j.quads, v, s);
    }
    if (threadIdx.x == 0 && j.a.scale != NULL)
        j.a.scale[i * j.a.ld_scale] = s.scale;
}

/* Blocks of any other length, for who asks for codes alone: a warp a block. */
__global__ void __launch_bounds__(THREADS) by_any(const __grid_constant__ struct job j)
{
    rows_begin();
    const int64_t blocks = (j.a.k + j.a.block - 1) / j.a.block, lane = threadIdx.x & 31;
    const int64_t warp = (int64_t)blockIdx.x * (THREADS / 32) + threadIdx.x / 32;
    const int64_t i = warp / blocks, b = warp - i * blocks;
    if (i >= j.a.m)
        return;
    const int64_t end = min(b * j.a.block + j.a.block, j.a.k), at = i * j.a.ldx;
    int32_t mine = 0;
    for (int64_t c = b * j.a.block + lane; c < end; c += 32)
        mine = max(mine, __float_as_int(rows_element(j.a.x, j.a.dtype, at + c)) & 0x7fffffff);
    const struct scaling s = scaling_of(j, rows_warp_range({0, mine}, 32).hi);
    for (int64_t c = b * j.a.block + lane; c < end; c += 32)
        ((uint8_t *)j.a.to)[i * j.a.ld_to + c] = (uint8_t)(
            s.inv == 0.0f ? 0u
                          : code_of(__fmul_rn(rows_element(j.a.x, j.a.dtype, at + c), s.inv)));
    if (lane == 0)
        j.a.scale[i * j.a.ld_scale + b] = s.scale;
}

} // namespace

int32_t qni_cuda_fp8_sm75(const struct qni_cuda_fp8 *args, const struct qni_cuda_launch *launch)
{
    static const void *const blocks[4] = {
        (const void *)by_block<CODES>, (const void *)by_block<STEPS>,
        (const void *)by_block<HALVES>, (const void *)by_block<QNI_CUDA_FP8_F32>};
    static const void *const whole[4] = {(const void *)by_row<CODES>, (const void *)by_row<STEPS>,
                                         (const void *)by_row<HALVES>,
                                         (const void *)by_row<QNI_CUDA_FP8_F32>};
    const int64_t size = args->dtype == QN_F32 ? 4 : args->dtype == QN_E4M3 ? 1 : 2;
    struct job j = {};
    j.a = *args;
    j.is_vector = args->ldx % QUAD == 0 && (uintptr_t)args->x % (uintptr_t)(QUAD * size) == 0;
    j.quads = (args->columns + QUAD - 1) / QUAD;
    if (args->m == 0)
        return 0;
    if (args->block == 0)
        return rows_launch(whole[args->form], args->m, dim3(THREADS), &j, launch);
    if (args->k == 0)
        return 0;
    const int64_t each = args->block == BLOCK ? (j.quads + 31) / 32
                                              : (args->k + args->block - 1) / args->block;
    const int64_t ctas = (args->m * each + THREADS / 32 - 1) / (THREADS / 32);
    return rows_launch(args->block == BLOCK ? blocks[args->form] : (const void *)by_any, ctas,
                       dim3(THREADS), &j, launch);
}
