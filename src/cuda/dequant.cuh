/* SPDX-License-Identifier: Apache-2.0 */
/* From words of the fragment layouts (kernel.h) to A fragments (mma.cuh). Codes become the integers
 * that they stand for, exactly; nothing is rounded, and scales act on sums later.
 *
 *     f16    0x6400 is 1024, so u | 0x6400 is 1024 + u, and 16 u | 0x6400 is 1024 + 16 u = 16 (64 +
 *            u): one subtraction, or one fma with 1/16, leaves u - 8 - zero
 *     bf16   0x4300 is 128, so u | 0x4300 is 128 + u for u < 128. Bit 7 of a byte, turned within
 *            0xc380 (-256), gives 0xc300 (-128): the sum of both is u - 128
 *     int8   the upper nibble with its first bit turned is 16 (u - 8) as a signed byte
 *
 * Values of tables are f32. They are cut into pieces of 16 bits that add up to the value (f16: 11
 * bits each, bf16: 8), each of which makes a product of its own: a weight is off by 2^-22 of itself
 * at most, and not at all where one piece holds it (E2M1, E4M3, integers up to 127). */
#ifndef QNI_CUDA_DEQUANT_CUH
#define QNI_CUDA_DEQUANT_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include "kernel.h"
#include "ptx.cuh"

#define DEQUANT static __device__ __forceinline__

/* ---- pairs of 16-bit floats in a word -------------------------------------------------------- */

DEQUANT uint32_t dequant_f16x2(float a, float b)
{
    const __half2 h = __floats2half2_rn(a, b);
    return *(const uint32_t *)&h;
}
DEQUANT uint32_t dequant_add_f16x2(uint32_t a, uint32_t b)
{
    const __half2 h = __hadd2_rn(*(const __half2 *)&a, *(const __half2 *)&b);
    return *(const uint32_t *)&h;
}
DEQUANT uint32_t dequant_fma_f16x2(uint32_t a, uint32_t b, uint32_t c)
{
    const __half2 h = __hfma2(*(const __half2 *)&a, *(const __half2 *)&b, *(const __half2 *)&c);
    return *(const uint32_t *)&h;
}
DEQUANT uint32_t dequant_bf16x2(float a, float b)
{
    return __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x7632); /* exact values only */
}
DEQUANT uint32_t dequant_add_bf16x2(uint32_t a, uint32_t b)
{
    const __nv_bfloat162 h = __hadd2_rn(*(const __nv_bfloat162 *)&a, *(const __nv_bfloat162 *)&b);
    return *(const uint32_t *)&h;
}

/* ---- integers of 4 bits ---------------------------------------------------------------------- */

/* What is taken off the codes of outputs g and g + 8, in the form that the functions below want. */
struct dequant_bias {
    uint32_t lower, upper;
};

DEQUANT struct dequant_bias dequant_q4_bias_f16(int32_t zero, int32_t zero8)
{
    const float lower = (float)(-1032 - zero), upper = (float)(-72 - zero8);
    const struct dequant_bias b = {dequant_f16x2(lower, lower), dequant_f16x2(upper, upper)};
    return b;
}
/* a = code - 8 - zero: 1 shift, 4 lop3, 4 steps for 8 weights. */
DEQUANT void dequant_q4_f16(uint32_t (&a)[4], uint32_t w, const struct dequant_bias &bias)
{
    const uint32_t low = 0x000f000f, high = 0x00f000f0, base = 0x64006400;
    const uint32_t sixteenth = 0x2c002c00;
    const uint32_t w8 = w >> 8;
    a[0] = dequant_add_f16x2(ptx_and_or(w, low, base), bias.lower);
    a[1] = dequant_fma_f16x2(ptx_and_or(w, high, base), sixteenth, bias.upper);
    a[2] = dequant_add_f16x2(ptx_and_or(w8, low, base), bias.lower);
    a[3] = dequant_fma_f16x2(ptx_and_or(w8, high, base), sixteenth, bias.upper);
}

/* For the bf16 functions, 4 and 8 bits alike: -zero. Beyond 136 + zero = 256 bf16 has no odd
 * integers, so that the two come off one after the other. */
DEQUANT struct dequant_bias dequant_bias_bf16(int32_t zero, int32_t zero8)
{
    const float lower = (float)-zero, upper = (float)-zero8;
    const struct dequant_bias b = {dequant_bf16x2(lower, lower), dequant_bf16x2(upper, upper)};
    return b;
}
DEQUANT void dequant_zero_bf16(uint32_t (&a)[4], const struct dequant_bias &bias)
{
    a[0] = dequant_add_bf16x2(a[0], bias.lower);
    a[1] = dequant_add_bf16x2(a[1], bias.upper);
    a[2] = dequant_add_bf16x2(a[2], bias.lower);
    a[3] = dequant_add_bf16x2(a[3], bias.upper);
}
/* a = code - 8. */
DEQUANT void dequant_q4_bf16(uint32_t (&a)[4], uint32_t w)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = dequant_add_bf16x2(ptx_and_or(w >> (4 * i), 0x000f000f, 0x43004300), 0xc308c308);
}

/* 16 (code - 8) as signed bytes, of outputs g and g + 8: registers 0 and 1, or 2 and 3, of the A
 * fragment of bytes. A sum of products is 16 times what it should be, exactly; it stays below 16 *
 * 8 * 128 * 32768 = 2^29. */
DEQUANT void dequant_q4_bytes16(uint32_t &a, uint32_t &a8, uint32_t w)
{
    a = ptx_and_xor(w << 4, 0xf0f0f0f0, 0x80808080);
    a8 = ptx_and_xor(w, 0xf0f0f0f0, 0x80808080);
}

/* ---- integers of 8 bits ---------------------------------------------------------------------- */

DEQUANT struct dequant_bias dequant_q8_bias_f16(int32_t zero, int32_t zero8)
{
    const float lower = (float)(-1152 - zero), upper = (float)(-1152 - zero8);
    const struct dequant_bias b = {dequant_f16x2(lower, lower), dequant_f16x2(upper, upper)};
    return b;
}
/* a = code - 128 - zero; w, w8: the words of outputs g and g + 8. */
DEQUANT void dequant_q8_f16(uint32_t (&a)[4], uint32_t w, uint32_t w8,
                            const struct dequant_bias &bias)
{
    const uint32_t base = 0x64646464;
    a[0] = dequant_add_f16x2(ptx_bytes(w, base, 0x4240), bias.lower);
    a[1] = dequant_add_f16x2(ptx_bytes(w8, base, 0x4240), bias.upper);
    a[2] = dequant_add_f16x2(ptx_bytes(w, base, 0x4341), bias.lower);
    a[3] = dequant_add_f16x2(ptx_bytes(w8, base, 0x4341), bias.upper);
}
/* a = code - 128. */
DEQUANT void dequant_q8_bf16(uint32_t (&a)[4], uint32_t w, uint32_t w8)
{
    const uint32_t words[4] = {w, w8, w >> 8, w8 >> 8};
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = dequant_add_bf16x2(ptx_and_or(words[i], 0x007f007f, 0x43004300),
                                  ptx_and_xor(words[i], 0x00800080, 0xc380c380));
}
/* code - 128 as signed bytes, in the order in which they lie. */
DEQUANT uint32_t dequant_q8_bytes(uint32_t w)
{
    return w ^ 0x80808080;
}

/* ---- e4m3 ------------------------------------------------------------------------------------ */

/* The bits of a code are those of an f16 of 2^-8 times its value, whose exponent has a bit more, or
 * of a bf16 of 2^-120 times: a product with a power of two, exact, makes it the value. Subnormal
 * codes are subnormal numbers. w, w8: the words of outputs g and g + 8. */
DEQUANT uint32_t dequant_e4m3_f16(uint32_t upper)
{
    const uint32_t v = ptx_and_or(upper, 0x80008000, upper >> 1 & 0x3f803f80), times = 0x5c005c00;
    const __half2 h = __hmul2_rn(*(const __half2 *)&v, *(const __half2 *)&times);
    return *(const uint32_t *)&h;
}
DEQUANT uint32_t dequant_e4m3_bf16(uint32_t upper)
{
    const uint32_t v = ptx_and_or(upper, 0x80008000, upper >> 4 & 0x07f007f0), times = 0x7b807b80;
    const __nv_bfloat162 h =
        __hmul2_rn(*(const __nv_bfloat162 *)&v, *(const __nv_bfloat162 *)&times);
    return *(const uint32_t *)&h;
}
template <bool IS_BF16>
DEQUANT void dequant_e4m3(uint32_t (&a)[4], uint32_t w, uint32_t w8)
{
    const uint32_t words[4] = {w << 8, w8 << 8, w, w8}; /* bytes 1 and 3 are what counts */
#pragma unroll
    for (int i = 0; i < 4; i++)
        a[i] = IS_BF16 ? dequant_e4m3_bf16(words[i]) : dequant_e4m3_f16(words[i]);
}

/* ---- tables of 16 values --------------------------------------------------------------------- */

/* Bytes that the four lower nibbles of `order` choose of the 16 in t. A byte permutation chooses of
 * eight by three bits; `which`, made of the fourth, chooses between the results of two. */
DEQUANT uint32_t dequant_choose(const uint32_t (&t)[4], uint32_t order, uint32_t which)
{
    return ptx_bytes(ptx_bytes(t[0], t[1], order), ptx_bytes(t[2], t[3], order), which);
}
DEQUANT uint32_t dequant_which(uint32_t w)
{
    return ((w & 0x88888888) >> 1) | 0x32103210;
}

/* Values of int8 tables as bytes, outputs g and g + 8. t: the 16 bytes of table8. */
DEQUANT void dequant_t4_bytes(uint32_t &a, uint32_t &a8, uint32_t w, const uint32_t (&t)[4])
{
    const uint32_t order = w & 0x77777777, which = dequant_which(w);
    const uint32_t low = dequant_choose(t, order, which);
    const uint32_t high = dequant_choose(t, order >> 16, which >> 16);
    a = ptx_bytes(low, high, 0x6420);
    a8 = ptx_bytes(low, high, 0x7531);
}

/* Nibbles 0, 4, 1, 5, 2, 6, 3, 7 of a word: what makes a pair of 16 bits lies side by side. */
DEQUANT uint32_t dequant_t4_order(uint32_t w)
{
    const uint32_t u = ptx_bytes(w, 0, 0x3120);
    const uint32_t m = (u ^ (u >> 4)) & 0x00f000f0;
    return u ^ m ^ (m << 4);
}
/* One piece of 16 bits of every value. order: dequant_t4_order(); low, high: bytes of the piece. */
DEQUANT void dequant_t4(uint32_t (&a)[4], uint32_t order, const uint32_t (&low)[4],
                        const uint32_t (&high)[4])
{
    const uint32_t in_eight = order & 0x77777777, which = dequant_which(order);
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t l = dequant_choose(low, in_eight >> (16 * i), which >> (16 * i));
        const uint32_t h = dequant_choose(high, in_eight >> (16 * i), which >> (16 * i));
        a[2 * i] = ptx_bytes(l, h, 0x5140);
        a[2 * i + 1] = ptx_bytes(l, h, 0x7362);
    }
}

/* Pairs of values by the 8 bits of their codes, 128 bytes each in shared memory, in which they
 * stand 32, 16 or 8 times: pieces side by side, a word with nothing behind three. A lane has places
 * of its own. */
enum { DEQUANT_PAIRS_BYTES = 256 * 128 };
#define DEQUANT_PAIR_BYTES(pieces) ((pieces) == 1 ? 4 : (pieces) == 2 ? 8 : 16)

/* All pieces of a word's values. pairs: the lane's place in the first pair. */
template <int PIECES>
DEQUANT void dequant_t4_pairs(uint32_t (&a)[PIECES][4], uint32_t w, uint32_t pairs)
{
    const uint32_t order = dequant_t4_order(w);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t at = pairs + (order >> (8 * i) & 255) * 128;
        uint32_t v[4];
        if (PIECES == 1)
            asm volatile("ld.shared.b32 %0, [%1];" : "=r"(v[0]) : "r"(at));
        else if (PIECES == 2)
            asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];" : "=r"(v[0]), "=r"(v[1]) : "r"(at));
        else
            asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(v[0]), "=r"(v[1]), "=r"(v[2]), "=r"(v[3])
                         : "r"(at));
#pragma unroll
        for (int p = 0; p < PIECES; p++)
            a[p][i] = v[p];
    }
}

/* ---- tables in pieces ------------------------------------------------------------------------ */

enum { DEQUANT_PIECES = 3 };

/* In shared memory. The value of code u is times * (sum of its pieces). */
struct dequant_table {
    uint32_t bytes4[DEQUANT_PIECES][2][4]; /* 16 values: low bytes, then high bytes */
    uint16_t piece[DEQUANT_PIECES][256];
    float times;    /* a power of two */
    int32_t pieces; /* 1 to 3: the others are 0 throughout */
    int32_t is_f16; /* else pieces are bf16 */
    int32_t most;   /* (while it is made) largest finite magnitude, as bits */
    int32_t rest;   /* pieces beyond the first that some value needs */
    int32_t f16;    /* bits: 1 not all values are f16 as they are; 2 two pieces do not hold all */
};

/* Piece i of v as bits of f16 or bf16, and what it leaves. What is not finite is one piece. */
DEQUANT uint16_t dequant_piece(float *v, bool is_f16)
{
    const uint16_t bits = is_f16 ? __half_as_ushort(__float2half_rn(*v))
                                 : __bfloat16_as_ushort(__float2bfloat16_rn(*v));
    const float piece =
        is_f16 ? __half2float(__ushort_as_half(bits)) : __uint_as_float((uint32_t)bits << 16);
    *v = fabsf(*v) < __int_as_float(0x7f800000) ? *v - piece : 0.0f;
    return bits;
}
/* 2^e brings a magnitude with these bits below 2^top, if 2^e and 2^-e are normal numbers. */
DEQUANT int32_t dequant_exponent(int32_t most, int32_t top)
{
    return most == 0 ? 0 : min(max(top - ((most >> 23) - 126), -126), 126);
}
DEQUANT float dequant_power(int32_t e)
{
    return __int_as_float((e + 127) << 23);
}

/* By all threads of the block; n: 16 or 256 values. want_f16: the rows of x are f16. Then values
 * that f16 holds stay as they are; others are scaled to below 2^15, where two pieces hold all of 17
 * binades. Where that does not do either, the table becomes one of bf16 (is_f16 0), scaled to below
 * 2^100 so that no piece is subnormal, and x must be converted. For rows of bf16, values are scaled
 * to below 128, which docs/numerics.md promises. Ends with a barrier. */
DEQUANT void dequant_table_make(struct dequant_table *t, const float *values, int n, bool want_f16)
{
    const int first = (int)threadIdx.x, step = (int)blockDim.x;
    const float infinity = __int_as_float(0x7f800000);
    if (first == 0) {
        t->most = 0;
        t->rest = 0;
        t->f16 = 0;
    }
    __syncthreads();
    for (int i = first; i < n; i += step) {
        const float v = values[i];
        if (fabsf(v) < infinity)
            atomicMax(&t->most, __float_as_int(fabsf(v)));
        float left = v;
        (void)dequant_piece(&left, true);
        if (want_f16 && (left != 0.0f || (fabsf(v) >= 65520.0f && fabsf(v) < infinity)))
            atomicOr(&t->f16, 1);
    }
    __syncthreads();
    const float up = dequant_power(dequant_exponent(t->most, 15));
    for (int i = first; want_f16 && t->f16 != 0 && i < n; i += step) {
        float left = values[i] * up;
        const float v = fabsf(left);
        (void)dequant_piece(&left, true);
        (void)dequant_piece(&left, true);
        if (fabsf(left) > v * 0x1p-22f)
            atomicOr(&t->f16, 2);
    }
    __syncthreads();
    const bool is_f16 = want_f16 && t->f16 < 2;
    const int32_t top = is_f16 ? 15 : want_f16 ? 100 : 7;
    const int32_t e = is_f16 && t->f16 == 0 ? 0 : dequant_exponent(t->most, top);
    for (int i = first; i < n; i += step) {
        float left = values[i] * dequant_power(e);
        const float enough = fabsf(left) * 0x1p-22f;
        for (int p = 0; p < DEQUANT_PIECES; p++) {
            if (p > 0 && fabsf(left) > enough)
                atomicMax(&t->rest, p);
            /* 32 bits wide: ptxas 13.0 stores the lower byte of what it knows as f16 by turning its
             * number into an integer (F2I.U8.F16). */
            const uint32_t bits = ptx_keep(dequant_piece(&left, is_f16));
            t->piece[p][i] = (uint16_t)bits;
            if (i < 16) {
                ((uint8_t *)t->bytes4[p][0])[i] = (uint8_t)bits;
                ((uint8_t *)t->bytes4[p][1])[i] = (uint8_t)(bits >> 8);
            }
        }
    }
    __syncthreads();
    if (first == 0) {
        t->pieces = t->rest + 1;
        t->is_f16 = is_f16;
        t->times = dequant_power(-e);
    }
    __syncthreads();
}

/* A piece of 8-bit codes: w, w8 the words of outputs g and g + 8. */
DEQUANT void dequant_t8(uint32_t (&a)[4], uint32_t w, uint32_t w8, const uint16_t *piece)
{
    a[0] = piece[w & 255] | (uint32_t)piece[w >> 16 & 255] << 16;
    a[1] = piece[w8 & 255] | (uint32_t)piece[w8 >> 16 & 255] << 16;
    a[2] = piece[w >> 8 & 255] | (uint32_t)piece[w >> 24] << 16;
    a[3] = piece[w8 >> 8 & 255] | (uint32_t)piece[w8 >> 24] << 16;
}

/* Two f16 as two planes of bf16 that add up to them exactly, 8 bits and 3. */
DEQUANT void dequant_split_f16x2(uint32_t v, uint32_t *upper, uint32_t *lower)
{
    const float2 f = __half22float2(*(const __half2 *)&v);
    const uint32_t a = __float_as_uint(f.x) & 0xffff0000u, b = __float_as_uint(f.y) & 0xffff0000u;
    const float ra = f.x - __uint_as_float(a), rb = f.y - __uint_as_float(b);
    *upper = __byte_perm(a, b, 0x7632);
    *lower = dequant_bf16x2(ra, rb); /* infinity less infinity is NaN: never a number */
}

/* ---- scales, offsets, zero points ------------------------------------------------------------ */

/* Those of outputs g and g + 8 lie side by side: `pair` counts pairs from the section's begin. */
DEQUANT float2 dequant_scale_pair(const uint8_t *section, int32_t is_f16, size_t pair)
{
    if (is_f16)
        return __half22float2(__ldg((const __half2 *)section + pair));
    return __ldg((const float2 *)section + pair);
}
DEQUANT int2 dequant_zero_pair(const uint8_t *section, size_t pair)
{
    const char2 z = __ldg((const char2 *)section + pair);
    return make_int2(z.x, z.y);
}

#undef DEQUANT
#endif
