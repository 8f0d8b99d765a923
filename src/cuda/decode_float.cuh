/* SPDX-License-Identifier: Apache-2.0 */
/* From codes to A fragments for the decode kernels of floats: which function of dequant.cuh serves
 * which product. */
#ifndef QNI_CUDA_DECODE_FLOAT_CUH
#define QNI_CUDA_DECODE_FLOAT_CUH

#include "dequant.cuh"

/* What is multiplied: bit 0: bf16; bit 1: codes of 8 bits; bit 2: x has several planes; bit 3:
 * codes are e4m3; bit 4: codes of 4 bits are looked up in a table; bit 5: whose values are two
 * pieces of f16 or three of bf16. */
enum { F16_Q4 = 0, BF16_Q4 = 1, F16_Q8 = 2, BF16_Q8 = 3, PLANES = 4, E4M3 = 8, T4 = 16, MANY = 32 };
enum { F16_E4M3 = F16_Q8 | E4M3, BF16_E4M3 = BF16_Q8 | E4M3 };
#define IS_BF16(format) (((format)&1) != 0)
#define IS_Q8(format)   (((format)&2) != 0)
#define IS_T4(format)   (((format)&T4) != 0)
#define PIECES_OF(format) (((format)&MANY) == 0 ? 1 : IS_BF16(format) ? 3 : 2)

#define DECODE_FLOAT static __device__ __forceinline__

/* A fragment of one step. words: of steps one after another. */
template <int FORMAT>
DECODE_FLOAT void integers(uint32_t (&a)[4], const uint32_t *words, const struct dequant_bias &bias,
                           int32_t has_zero)
{
    if ((FORMAT & E4M3) != 0)
        dequant_e4m3<IS_BF16(FORMAT)>(a, words[0], words[1]);
    else if (FORMAT == F16_Q4)
        dequant_q4_f16(a, words[0], bias);
    else if (FORMAT == F16_Q8)
        dequant_q8_f16(a, words[0], words[1], bias);
    else if (!IS_Q8(FORMAT))
        dequant_q4_bf16(a, words[0]);
    else
        dequant_q8_bf16(a, words[0], words[1]);
    if (IS_BF16(FORMAT) && has_zero)
        dequant_zero_bf16(a, bias);
}
template <int FORMAT> DECODE_FLOAT struct dequant_bias bias_of(int32_t zero, int32_t zero8)
{
    if (FORMAT == F16_Q4)
        return dequant_q4_bias_f16(zero, zero8);
    if (FORMAT == F16_Q8)
        return dequant_q8_bias_f16(zero, zero8);
    return dequant_bias_bf16(zero, zero8);
}

/* Scales or offsets of outputs g and g + 8. */
DECODE_FLOAT float2 pair_at(const uint8_t *at, int32_t is_f16)
{
    return is_f16 ? __half22float2(*(const __half2 *)at) : *(const float2 *)at;
}

/* ---- tables ---------------------------------------------------------------------------------- */

/* What the first 256 threads of a block make: a thread's pair of values is that of the codes in its
 * number, the lower four bits, then the upper. */
struct decode_pair {
    float value[2], most; /* the largest finite magnitude of the table */
};
DECODE_FLOAT struct decode_pair pair_of(const float *values)
{
    struct decode_pair p;
    p.value[0] = __ldg(values + (threadIdx.x & 15));
    p.value[1] = __ldg(values + (threadIdx.x >> 4 & 15));
    p.most = 0.0f;
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float v = fabsf(__ldg(values + i));
        p.most = v < __int_as_float(0x7f800000) ? fmaxf(p.most, v) : p.most;
    }
    return p;
}
/* The pair's pieces to all its places: 128 bytes, of which the threads of a warp write other 16 at
 * a time. Gives what a sum of products is to be multiplied by. */
template <int FORMAT> DECODE_FLOAT float put_pair(const struct decode_pair &p, uint8_t *table)
{
    enum { PIECES = PIECES_OF(FORMAT) };
    const int32_t e =
        PIECES == 1 ? 0 : dequant_exponent(__float_as_int(p.most), IS_BF16(FORMAT) ? 7 : 15);
    float a = p.value[0] * dequant_power(e), b = p.value[1] * dequant_power(e);
    uint32_t w[3] = {};
#pragma unroll
    for (int i = 0; i < PIECES; i++) {
        const uint32_t low = ptx_keep(dequant_piece(&a, !IS_BF16(FORMAT)));
        w[i] = low | (uint32_t)ptx_keep(dequant_piece(&b, !IS_BF16(FORMAT))) << 16;
    }
    const uint4 four = PIECES == 1   ? make_uint4(w[0], w[0], w[0], w[0])
                       : PIECES == 2 ? make_uint4(w[0], w[1], w[0], w[1])
                                     : make_uint4(w[0], w[1], w[2], 0);
#pragma unroll
    for (int i = 0; i < 8 && threadIdx.x < 256; i++)
        *(uint4 *)(table + threadIdx.x * 128 + (i + threadIdx.x) % 8 * 16) = four;
    return dequant_power(-e);
}

#undef DECODE_FLOAT
#endif
