/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights to plain rows of f16 or bf16, the operand of a dense product:
 *
 *     w = fl(scale * (value - zero)), or fma(scale, value, offset); times the prescale
 *     out = round(w * 2^e)
 *
 * in f32 step by step, so that the bits are those of the reference. A warp takes a block of 64
 * packed positions of 16 outputs in two turns: lane 8 r + c makes positions 8 c to 8 c + 7 of
 * outputs g and g + 8, g = r and then r + 4. Their codes are a byte (or two, of 8-bit codes) of the
 * same word of the lanes 4 g ... 4 g + 3 of kernel.h. So a store writes 128 bytes of each of 4
 * rows, whole lines, which is what L2 takes fastest; words are read by several lanes, from L1.
 * Bound by memory: 1/2 or 1 byte read and 2 written for a weight; unpacking and rounding take some
 * 5 instructions a weight, a fifth of that time on an H100. */
#include "../dequant.cuh"
#include "../rows.cuh"

namespace
{

enum { WARPS = 8, BLOCKS = 4 }; /* of 64 positions that a warp takes after each other */

/* Words of 4 lanes: of outputs g and g + 8, the codes of positions 8 c ... 8 c + 7 (half of a step)
 * in the lowest bits of both halves. */
struct words {
    uint32_t g[4], g8[4];
};

template <int LAYOUT>
__device__ __forceinline__ struct words load_words(const uint8_t *block, int32_t g, int32_t c)
{
    const int32_t step = c >> 1, shift = 8 * (c & 1);
    struct words v;
#pragma unroll
    for (int t = 0; t < 4; t++) {
        const int32_t lane = 4 * g + t;
        if (LAYOUT == QNI_CUDA_Q4FRAG || LAYOUT == QNI_CUDA_T4FRAG) {
            v.g[t] = __ldg((const uint32_t *)(block + 16 * lane + 4 * step)) >> shift;
            v.g8[t] = v.g[t] >> 4;
        } else {
            const int32_t at = 512 * (step >> 1) + 16 * lane + 8 * (step & 1);
            const uint2 both = __ldg((const uint2 *)(block + at));
            v.g[t] = both.x >> shift;
            v.g8[t] = both.y >> shift;
        }
    }
    return v;
}

/* What a group says of one output. */
struct group {
    float scale, zero, offset;
};

__device__ __forceinline__ void load_groups(const struct qni_cuda_dequantize &a, int32_t panel,
                                            int32_t at, int32_t g, struct group (&to)[2])
{
    const size_t pair = ((size_t)panel * a.w.n_groups + at) * 8 + g;
    const float2 scale = dequant_scale_pair(a.w.blob + a.w.scale, a.w.scale_is_f16, pair);
    float2 offset = make_float2(0.0f, 0.0f), zero = offset;
    if (a.w.shift == QNI_CUDA_SHIFT_OFFSET) {
        offset = dequant_scale_pair(a.w.blob + a.w.offset, a.w.scale_is_f16, pair);
    } else if (a.w.shift == QNI_CUDA_SHIFT_ZERO) {
        const int2 z = a.zero_is_i32 ? __ldg((const int2 *)(a.w.blob + a.w.zero) + pair)
                                     : dequant_zero_pair(a.w.blob + a.w.zero, pair);
        zero = make_float2(__int2float_rn(z.x), __int2float_rn(z.y));
    }
    to[0].scale = scale.x;
    to[0].zero = zero.x;
    to[0].offset = offset.x;
    to[1].scale = scale.y;
    to[1].zero = zero.y;
    to[1].offset = offset.y;
}

/* value(code); 2^23 + code is a float whose last bits are the code. */
template <int LAYOUT> __device__ __forceinline__ float value_of(uint32_t code, const float *table)
{
    if (LAYOUT == QNI_CUDA_T4FRAG || LAYOUT == QNI_CUDA_T8FRAG)
        return table[code];
    const float half = LAYOUT == QNI_CUDA_Q4FRAG ? 8.0f : 128.0f;
    return __fsub_rn(__uint_as_float(0x4b000000u | code), 0x1p23f + half);
}

__device__ __forceinline__ float weight_of(const struct qni_cuda_dequantize &a,
                                           const struct group &g, float value)
{
    if (a.w.shift == QNI_CUDA_SHIFT_OFFSET)
        return __fmaf_rn(g.scale, value, g.offset);
    return __fmul_rn(g.scale, __fsub_rn(value, g.zero));
}

/* The prescale of position `at` of a group; padding has none. */
__device__ __forceinline__ float prescale_of(const struct qni_cuda_dequantize &a, int32_t group,
                                             int32_t at)
{
    if (at >= (group + 1 == a.w.n_groups ? a.last_len : a.group_len))
        return 1.0f;
    const int64_t canonical = group * a.group_len + at;
    return __ldg(a.prescale + (a.perm != NULL ? __ldg(a.perm + canonical) : canonical));
}

template <bool IS_BF16> __device__ __forceinline__ uint32_t round_pair(float a, float b)
{
    if (!IS_BF16)
        return dequant_f16x2(a, b);
    const __nv_bfloat162 h = __floats2bfloat162_rn(a, b);
    return *(const uint32_t *)&h;
}

/* 8 positions of an output, from position `at` of the group on. */
template <int LAYOUT, bool IS_BF16>
__device__ __forceinline__ uint4 make_row(const struct qni_cuda_dequantize &a,
                                          const uint32_t (&words)[4], const struct group &g,
                                          int32_t group, int32_t at, const float *table)
{
    const bool is4 = LAYOUT == QNI_CUDA_Q4FRAG || LAYOUT == QNI_CUDA_T4FRAG;
    const uint32_t mask = is4 ? 0xfu : 0xffu;
    uint32_t out[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float even = weight_of(a, g, value_of<LAYOUT>(words[i] & mask, table));
        float odd = weight_of(a, g, value_of<LAYOUT>(words[i] >> 16 & mask, table));
        if (a.prescale != NULL) {
            even = __fmul_rn(even, prescale_of(a, group, at + 2 * i));
            odd = __fmul_rn(odd, prescale_of(a, group, at + 2 * i + 1));
        }
        out[i] = round_pair<IS_BF16>(__fmul_rn(even, a.times), __fmul_rn(odd, a.times));
    }
    return make_uint4(out[0], out[1], out[2], out[3]);
}

template <int LAYOUT, bool IS_BF16>
__global__ void __launch_bounds__(WARPS * 32, 4)
    dequantize(const __grid_constant__ struct qni_cuda_dequantize a)
{
    __shared__ float table[256];
    const bool is4 = LAYOUT == QNI_CUDA_Q4FRAG || LAYOUT == QNI_CUDA_T4FRAG;
    const int32_t lane = (int32_t)threadIdx.x & 31, r = lane >> 3, c = lane & 7;
    const int32_t blocks = a.w.units / 2, per_panel = (blocks + BLOCKS - 1) / BLOCKS;
    const int64_t item = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    const int32_t in_out = (int32_t)(item / per_panel), panel = a.panel + in_out;
    const int32_t first = (int32_t)(item - (int64_t)in_out * per_panel) * BLOCKS;
    if (LAYOUT == QNI_CUDA_T4FRAG || LAYOUT == QNI_CUDA_T8FRAG) {
        if (threadIdx.x < (is4 ? 16 : 256))
            table[threadIdx.x] = __ldg((const float *)(a.w.blob + a.w.table) + threadIdx.x);
        __syncthreads();
    }
    rows_begin();
    if (in_out >= a.n_panels)
        return;
    const size_t block_bytes = is4 ? 512 : 1024;
    const uint8_t *const codes = a.w.blob + a.w.codes + (size_t)panel * blocks * block_bytes;
    const int64_t ld = (int64_t)a.w.units * QNI_CUDA_UNIT;
    uint16_t *const out = a.out + (16 * (int64_t)in_out + r) * ld + 8 * c;
#pragma unroll 2
    for (int32_t b = first; b < min(first + BLOCKS, blocks); b++) {
        const uint8_t *const block = codes + (size_t)b * block_bytes;
        const int32_t unit = 2 * b + (c >> 2);
        const int32_t group = min(unit / a.w.group_units, a.w.n_groups - 1);
        const int32_t at = 32 * (unit - group * a.w.group_units) + 8 * (c & 3);
        const struct words words[2] = {load_words<LAYOUT>(block, r, c),
                                       load_words<LAYOUT>(block, r + 4, c)};
#pragma unroll
        for (int turn = 0; turn < 2; turn++) {
            struct group groups[2];
            load_groups(a, panel, group, r + 4 * turn, groups);
            uint16_t *const to = out + 4 * turn * ld + QNI_CUDA_BLOCK * (int64_t)b;
            *(uint4 *)to = make_row<LAYOUT, IS_BF16>(a, words[turn].g, groups[0], group, at, table);
            *(uint4 *)(to + 8 * ld) =
                make_row<LAYOUT, IS_BF16>(a, words[turn].g8, groups[1], group, at, table);
        }
    }
}

} // namespace

int32_t qni_cuda_dequantize_sm75(const struct qni_cuda_dequantize *args,
                                 const struct qni_cuda_launch *launch)
{
    static const void *const kernels[QNI_CUDA_N_LAYOUTS][2] = {
        {(const void *)dequantize<QNI_CUDA_Q4FRAG, false>,
         (const void *)dequantize<QNI_CUDA_Q4FRAG, true>},
        {(const void *)dequantize<QNI_CUDA_T4FRAG, false>,
         (const void *)dequantize<QNI_CUDA_T4FRAG, true>},
        {(const void *)dequantize<QNI_CUDA_Q8FRAG, false>,
         (const void *)dequantize<QNI_CUDA_Q8FRAG, true>},
        {(const void *)dequantize<QNI_CUDA_T8FRAG, false>,
         (const void *)dequantize<QNI_CUDA_T8FRAG, true>},
    };
    const int64_t blocks = args->w.units / 2;
    const int64_t items = args->n_panels * ((blocks + BLOCKS - 1) / BLOCKS);
    if (items == 0)
        return 0;
    return rows_launch(kernels[args->w.layout][args->is_bf16 != 0], (items + WARPS - 1) / WARPS,
                       dim3(32 * WARPS), args, launch);
}
