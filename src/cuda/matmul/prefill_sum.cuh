/* SPDX-License-Identifier: Apache-2.0 */
/* The warpgroups of the prefill kernel that multiply: codes to exact integers in 16 bits, products
 * on the tensor cores, a group's sum scaled into the total in f32. */
#ifndef QNI_CUDA_MATMUL_PREFILL_SUM_CUH
#define QNI_CUDA_MATMUL_PREFILL_SUM_CUH

#include "../dequant.cuh"
#include "../wgmma.cuh"
#include "prefill.cuh"

namespace
{

/* ---- codes ----------------------------------------------------------------------------------- */

__device__ __forceinline__ uint32_t and_or(uint32_t v, uint32_t mask, uint32_t bits)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(v), "r"(mask), "r"(bits));
    return d;
}
__device__ __forceinline__ uint32_t and_xor(uint32_t v, uint32_t mask, uint32_t bits)
{
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0x6a;" : "=r"(d) : "r"(v), "r"(mask), "r"(bits));
    return d;
}
__device__ __forceinline__ uint32_t sub_f16(uint32_t v, uint32_t w)
{
    uint32_t d;
    asm("sub.rn.f16x2 %0, %1, %2;" : "=r"(d) : "r"(v), "r"(w));
    return d;
}
__device__ __forceinline__ uint32_t fma_f16(uint32_t v, uint32_t w, uint32_t z)
{
    uint32_t d;
    asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(v), "r"(w), "r"(z));
    return d;
}
__device__ __forceinline__ uint32_t sub_bf16(uint32_t v, uint32_t w)
{
    uint32_t d;
    asm("sub.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(v), "r"(w));
    return d;
}
__device__ __forceinline__ uint32_t twice_f16(float v)
{
    const __half2 h = __float2half2_rn(v);
    return *(const uint32_t *)&h;
}
__device__ __forceinline__ uint32_t twice_bf16(float v)
{
    const __nv_bfloat162 h = __float2bfloat162_rn(v);
    return *(const uint32_t *)&h;
}

/* What is subtracted from outputs g and g + 8 (kernel.h) of a lane. f16: the bias of the codes and
 * the zero together: all these numbers are integers below 2048, or sixteenths of them below 128.
 * bf16 has 8 bits: the zero goes in a step of its own. */
template <bool BF16, int BITS> struct shifts {
    uint32_t lo, hi;
    __device__ __forceinline__ void set(int z0, int z1)
    {
        if (BF16) {
            lo = twice_bf16((float)z0);
            hi = twice_bf16((float)z1);
        } else if (BITS == 4) {
            lo = twice_f16((float)(1024 + 8 + z0));
            hi = twice_f16((float)(-64 - 8 - z1));
        } else {
            lo = twice_f16((float)(1024 + 128 + z0));
            hi = twice_f16((float)(1024 + 128 + z1));
        }
    }
};

/* The words of a unit: 4 bits: two, one for each step; 8 bits: four. to: registers of two steps. */
template <bool BF16>
__device__ __forceinline__ void unpack4(uint32_t w, const shifts<BF16, 4> &z, bool has_zero,
                                        uint32_t *to)
{
    if (BF16) {
        const uint32_t ones = 0x43004300u, eight = twice_bf16(136.0f); /* 128 + code */
        to[0] = sub_bf16(and_or(w, 0x000f000fu, ones), eight);
        to[1] = sub_bf16(and_or(w >> 4, 0x000f000fu, ones), eight);
        to[2] = sub_bf16(and_or(w >> 8, 0x000f000fu, ones), eight);
        to[3] = sub_bf16(and_or(w >> 12, 0x000f000fu, ones), eight);
        if (has_zero) {
            to[0] = sub_bf16(to[0], z.lo);
            to[1] = sub_bf16(to[1], z.hi);
            to[2] = sub_bf16(to[2], z.lo);
            to[3] = sub_bf16(to[3], z.hi);
        }
    } else {
        /* 0x6400 is 1024: a nibble in its last bits counts ones, four bits higher sixteens */
        const uint32_t ones = 0x64006400u, sixteenth = 0x2c002c00u, h = w >> 8;
        to[0] = sub_f16(and_or(w, 0x000f000fu, ones), z.lo);
        to[1] = fma_f16(and_or(w, 0x00f000f0u, ones), sixteenth, z.hi);
        to[2] = sub_f16(and_or(h, 0x000f000fu, ones), z.lo);
        to[3] = fma_f16(and_or(h, 0x00f000f0u, ones), sixteenth, z.hi);
    }
}
template <bool BF16>
__device__ __forceinline__ void unpack8(uint32_t w, uint32_t z, bool has_zero, uint32_t *to)
{
    const uint32_t h = w >> 8; /* bytes 0, 2 are positions 2t, 2t + 1; 1, 3 are those + 8 */
    if (BF16) {
        /* 128 + low 7 bits, less 128 if the upper bit is set, else 256: code - 128 */
        to[0] = sub_bf16(and_or(w, 0x007f007fu, 0x43004300u), and_xor(w, 0x00800080u, 0x43804380u));
        to[2] = sub_bf16(and_or(h, 0x007f007fu, 0x43004300u), and_xor(h, 0x00800080u, 0x43804380u));
        if (has_zero) {
            to[0] = sub_bf16(to[0], z);
            to[2] = sub_bf16(to[2], z);
        }
    } else {
        to[0] = sub_f16(and_or(w, 0x00ff00ffu, 0x64006400u), z);
        to[2] = sub_f16(and_or(h, 0x00ff00ffu, 0x64006400u), z);
    }
}
template <bool BF16, int BITS>
__device__ __forceinline__ void unpack(const uint32_t *w, const shifts<BF16, BITS> &z,
                                       bool has_zero, uint32_t *to)
{
    if constexpr (BITS == 4) {
        unpack4<BF16>(w[0], z, has_zero, to);
        unpack4<BF16>(w[1], z, has_zero, to + 4);
    } else {
        unpack8<BF16>(w[0], z.lo, has_zero, to);
        unpack8<BF16>(w[1], z.hi, has_zero, to + 1);
        unpack8<BF16>(w[2], z.lo, has_zero, to + 4);
        unpack8<BF16>(w[3], z.hi, has_zero, to + 5);
    }
}

/* ---- a lane ---------------------------------------------------------------------------------- */

__device__ __forceinline__ void load16(uint32_t from, uint32_t *to)
{
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(from));
}

__device__ __forceinline__ uint32_t load4(uint32_t from)
{
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from));
    return v;
}

/* A value the compiler keeps in a register instead of computing it again and again. */
__device__ __forceinline__ uint32_t keep(uint32_t v)
{
    uint32_t d;
    asm volatile("mov.u32 %0, %1;" : "=r"(d) : "r"(v));
    return d;
}
/* Values that are to be there from here on. */
template <int COUNT> __device__ __forceinline__ void pin(uint32_t (&v)[COUNT])
{
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        asm volatile("" : "+r"(v[i])::"memory");
}

/* What a lane of a consumer needs all along. */
template <class F> struct consumer {
    ring r;
    uint32_t codes_at, scale_at, zero_at; /* of this lane, in a stage */
    uint32_t scale_other, scale_next;     /* further: of output g + 8 (f16: 0), of the next group */
    uint32_t word[F::blocks]
                 [F::bits]; /* codes of a block: unit u has bits / 2 from u * bits / 2 on */
    shifts<F::codes_bf16, F::bits> z;
    uint32_t low[4], high[4]; /* of a table: bytes of the piece whose turn it is to be unpacked */
    uint32_t table_at;
    int piece;
    float times;
    uint32_t has_zero;
    uint32_t take_at, give_at, turn_phase; /* turns at the tensor cores */
    uint32_t is_first;                     /* lane: it tells others for its warp */

    __device__ __forceinline__ void take_codes(int stage)
    {
        const uint32_t at = codes_at + stage * F::stage_bytes;
#pragma unroll
        for (int i = 0; i < F::blocks; i++)
#pragma unroll
            for (int j = 0; j < F::bits / 4; j++)
                load16(at + i * F::block_bytes + j * 512, word[i] + 4 * j);
    }
    __device__ __forceinline__ void take_zero(int stage, int which)
    {
        uint32_t v;
        asm volatile("ld.shared.u16 %0, [%1];"
                     : "=r"(v)
                     : "r"(zero_at + stage * F::facts_bytes + which * 16));
        z.set((int8_t)(v & 255), (int8_t)(v >> 8));
    }
    __device__ __forceinline__ float2 timed(float2 s) const
    {
        return F::table ? make_float2(s.x * times, s.y * times) : s;
    }
    /* Two f16 in a word, or two words: without a branch. */
    __device__ __forceinline__ float2 take_scale(int stage, int which) const
    {
        const uint32_t at = scale_at + stage * F::facts_bytes + (which ? scale_next : 0);
        uint32_t v, w;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(at));
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(w) : "r"(at + scale_other));
        const float2 h = __half22float2(*(const __half2 *)&v);
        return timed(make_float2(scale_other == 0 ? h.x : __uint_as_float(v),
                                 scale_other == 0 ? h.y : __uint_as_float(w)));
    }
    /* Of the next piece, which the next stage is for. */
    __device__ __forceinline__ void take_table()
    {
        load16(table_at + piece * 32, low);
        load16(table_at + piece * 32 + 16, high);
        piece = piece + 1 == r.pieces ? 0 : piece + 1;
    }
    /* All of a stage for its turn, into registers that wait for it. */
    uint32_t zero_bits, scale_bits[2];
    __device__ __forceinline__ void take(int stage)
    {
        const uint32_t at = scale_at + stage * F::facts_bytes;
        take_codes(stage);
        if (F::table)
            take_table();
        asm volatile("ld.shared.u16 %0, [%1];"
                     : "=r"(zero_bits)
                     : "r"(zero_at + stage * F::facts_bytes));
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(scale_bits[0]) : "r"(at));
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(scale_bits[1]) : "r"(at + scale_other));
    }
    __device__ __forceinline__ void set_zero()
    {
        if (!F::table && has_zero)
            z.set((int8_t)(zero_bits & 255), (int8_t)(zero_bits >> 8));
    }
    __device__ __forceinline__ float2 scale_taken() const
    {
        const float2 h = __half22float2(*(const __half2 *)scale_bits);
        return timed(make_float2(scale_other == 0 ? h.x : __uint_as_float(scale_bits[0]),
                                 scale_other == 0 ? h.y : __uint_as_float(scale_bits[1])));
    }
    /* Half of a stage's codes: a block of two, or a unit of two. */
    template <int PART> __device__ __forceinline__ void unpack_part(uint32_t (&to)[F::blocks * 8])
    {
        if constexpr (F::table) {
#pragma unroll
            for (int i = 0; i < 2 * F::blocks; i++)
                unpack_table(word[F::blocks == 2 ? PART : 0][F::blocks == 2 ? i : 2 * PART + i],
                             to + 4 * i);
        } else if constexpr (F::blocks == 2) {
            unpack<F::bf16, F::bits>(word[PART], z, has_zero, to);
            unpack<F::bf16, F::bits>(word[PART] + F::bits / 2, z, has_zero, to + 8);
        } else {
            unpack<F::bf16, F::bits>(word[0] + PART * (F::bits / 2), z, has_zero, to);
        }
    }
    __device__ __forceinline__ void unpack_table(uint32_t w, uint32_t *to)
    {
        uint32_t a[4];
        dequant_t4(a, dequant_t4_order(w), low, high);
#pragma unroll
        for (int i = 0; i < 4; i++)
            to[i] = a[i];
    }
    template <int UNIT> __device__ __forceinline__ void unpack_unit(uint32_t (&to)[8])
    {
        constexpr int unit = UNIT;
        if constexpr (F::table) {
            unpack_table(word[0][2 * unit], to);
            unpack_table(word[0][2 * unit + 1], to + 4);
            return;
        }
        unpack<F::bf16, F::bits>(word[0] + unit * (F::bits / 2), z, has_zero, to);
    }
    /* A barrier in memory: behind a named one ptxas would unpack, in our turn, and hold the ring's
     * state in registers of each lane. */
    __device__ __forceinline__ void turn_take()
    {
        barrier_wait(take_at, turn_phase);
        turn_phase ^= 1;
    }
    __device__ __forceinline__ void turn_give()
    {
        barrier_arrive_if(give_at, is_first);
    }
    __device__ __forceinline__ uint32_t tile(int stage, int part) const
    {
        return qni_wgmma::tile(r.data + stage * F::stage_bytes) + part * F::half_step;
    }
    __device__ __forceinline__ void release(int stage, uint32_t really)
    {
        barrier_arrive_if(r.empty + stage * 8, really);
    }
    /* COUNT registers of codes: 4 a step */
    template <int COUNT>
    __device__ __forceinline__ void multiply(float (&p)[F::tokens / 2], const uint32_t (&w)[COUNT],
                                             uint32_t x, int32_t add)
    {
        if constexpr (F::integers) { /* e4m3, the one kind of bytes whose sums are floats */
            qni_wgmma::product_of_e4m3<F::tokens>::run(p, w, x, add);
#pragma unroll
            for (int i = 1; i < COUNT / 4; i++)
                qni_wgmma::product_of_e4m3<F::tokens>::run(p, w + 4 * i, x + 2 * i, 1);
        } else {
            qni_wgmma::product<F::tokens>::template run<F::bf16>(p, w, x, add);
#pragma unroll
            for (int i = 1; i < COUNT / 4; i++)
                qni_wgmma::product<F::tokens>::template run<F::bf16>(p, w + 4 * i, x + 2 * i, 1);
        }
    }
    template <int COUNT>
    __device__ __forceinline__ void multiply(int32_t (&p)[F::tokens / 2],
                                             const uint32_t (&w)[COUNT], uint32_t x, int32_t add)
    {
        qni_wgmma::product_of_bytes<F::tokens>::template run<F::narrow>(p, w, x, add);
#pragma unroll
        for (int i = 1; i < COUNT / 4; i++)
            qni_wgmma::product_of_bytes<F::tokens>::template run<F::narrow>(p, w + 4 * i, x + 2 * i,
                                                                            1);
    }
    __device__ __forceinline__ void scale(float (&acc)[F::tokens / 2],
                                          const float (&p)[F::tokens / 2], float2 s)
    {
#pragma unroll
        for (int i = 0; i < F::tokens / 2; i += 4) {
            acc[i] = fmaf(p[i], s.x, acc[i]);
            acc[i + 1] = fmaf(p[i + 1], s.x, acc[i + 1]);
            acc[i + 2] = fmaf(p[i + 2], s.y, acc[i + 2]);
            acc[i + 3] = fmaf(p[i + 3], s.y, acc[i + 3]);
        }
    }
};

/* ---- sums ------------------------------------------------------------------------------------ */

/* Groups of whole turns, of F::blocks blocks and in two parts each. A warpgroup that has asked for
 * its products unpacks the codes of its next turn, which it loaded before it asked, into a third
 * set of registers and then into the first, which is free when half of the products are done; asks
 * for the codes of the turn after that (an answer takes as long as products run: they read shared
 * memory, too); and when its products have ended, only scales them: meanwhile the other's run. No
 * product stands behind a condition: ptxas would wait for each one by itself. */
template <class F> struct turns_of {
    typedef uint32_t words[F::blocks * 8];
    float p[F::tokens / 2];
    float2 s;
    int now; /* the stage whose turn it is */

    __device__ __forceinline__ void turn(consumer<F> &c, float (&acc)[F::tokens / 2], words &u0,
                                         words &u1, words &u2, int q)
    {
        pin(u0);
        pin(u1); /* not in our turn */
        c.turn_take();
        qni_wgmma::fence();
        c.multiply(p, u0, c.tile(now, 0), 0);
        qni_wgmma::commit();
        c.multiply(p, u1, c.tile(now, 1), 1);
        qni_wgmma::commit();
        c.turn_give();
        const int next = c.r.stage;
        c.set_zero();
        c.template unpack_part<0>(u2);
        qni_wgmma::wait<1>();
        c.template unpack_part<1>(u0);
        const float2 s_next = c.scale_taken();
        if (q > 1)
            advance<F::stages>(c.r);
        if (q > 2)
            barrier_wait(c.r.full + c.r.stage * 8, c.r.phase);
        c.take(c.r.stage); /* whatever lies there if there is no such turn */
        qni_wgmma::wait<0>();
        qni_wgmma::hold(p);
        c.release(now, c.is_first);
        c.scale(acc, p, s);
        s = s_next;
        now = next;
    }
};

template <class F>
__device__ __forceinline__ void sum_turns(consumer<F> &c, const arguments &a, const place &at,
                                          float (&acc)[F::tokens / 2])
{
    turns_of<F> t;
    c.piece = 0;
    uint32_t w0[F::blocks * 8], w1[F::blocks * 8], w2[F::blocks * 8];
    int q = (at.end - at.begin) / F::blocks * a.p.x.planes * c.r.pieces;
    t.now = c.r.stage;
    barrier_wait(c.r.full + c.r.stage * 8, c.r.phase);
    c.take(c.r.stage);
    c.set_zero();
    c.template unpack_part<0>(w0);
    c.template unpack_part<1>(w1);
    t.s = c.scale_taken();
    advance<F::stages>(c.r);
    if (q > 1)
        barrier_wait(c.r.full + c.r.stage * 8, c.r.phase);
    c.take(c.r.stage);
#pragma unroll 1
    for (;;) {
        t.turn(c, acc, w0, w1, w2, q);
        if (--q == 0)
            break;
        t.turn(c, acc, w2, w0, w1, q);
        if (--q == 0)
            break;
        t.turn(c, acc, w1, w2, w0, q);
        if (--q == 0)
            break;
    }
}

/* All of k is one sum: products go to the total, and a warpgroup's follow each other without a
 * pause, each half of a stage's weights made while the other's run. weights: take(c, stage) reads
 * what it needs beside the codes, make<PART>(c, to) makes half PART of the stage that was taken.
 * (With three sets of registers, two of them multiplied, ptxas waits for every product by itself.)
 */
template <class F, class Weights, class Sum>
__device__ __forceinline__ void sum_straight(consumer<F> &c, int turns, Weights &weights,
                                             Sum (&acc)[F::tokens / 2])
{
    uint32_t w0[F::half_words], w1[F::half_words];
    barrier_wait(c.r.full + c.r.stage * 8, c.r.phase);
    c.take_codes(c.r.stage);
    weights.take(c, c.r.stage);
    weights.template make<0>(c, w0);
    uint32_t signals = 0;
    int before = 0;
#pragma unroll 1
    for (int q = turns; q > 0; q--) {
        const int stage = c.r.stage;
        qni_wgmma::fence();
        c.multiply(acc, w0, c.tile(stage, 0), 1);
        qni_wgmma::commit();
        qni_wgmma::wait<1>();
        c.release(before, signals);
        weights.template make<1>(c, w1);
        qni_wgmma::fence();
        c.multiply(acc, w1, c.tile(stage, 1), 1);
        qni_wgmma::commit();
        before = stage;
        signals = c.is_first;
        advance<F::stages>(c.r);
        if (q > 1)
            barrier_wait(c.r.full + c.r.stage * 8, c.r.phase);
        c.take_codes(c.r.stage); /* whatever lies there if there is no next turn */
        weights.take(c, c.r.stage);
        qni_wgmma::wait<1>();
        weights.template make<0>(c, w0);
    }
    qni_wgmma::wait<0>();
    qni_wgmma::hold(acc);
    c.release(before, signals);
}

/* Codes less zero points, as they are. */
template <class F> struct plain_codes {
    __device__ __forceinline__ void take(const consumer<F> &, int) {}
    template <int PART>
    __device__ __forceinline__ void make(consumer<F> &c, uint32_t (&to)[F::blocks * 8]) const
    {
        c.template unpack_part<PART>(to);
    }
};

/* One group: the total is scaled at the end. */
template <class F>
__device__ __forceinline__ void sum_whole(consumer<F> &c, const arguments &a, const place &at,
                                          float (&acc)[F::tokens / 2])
{
    const struct qni_cuda_weights &w = a.p.w;
    const size_t panel =
        (size_t)at.part * w.panels + min(at.panel + (int)threadIdx.x / 32, w.panels - 1);
    const size_t pair = panel * 8 + threadIdx.x % 32 / 4; /* outputs g and g + 8 */
    if (c.has_zero) {
        const char2 z = ((const char2 *)(at.blob + w.zero))[pair];
        c.z.set(z.x, z.y);
    }
    plain_codes<F> codes;
    sum_straight(c, (at.end - at.begin) / F::blocks * a.p.x.planes * c.r.pieces, codes, acc);
    const float2 s = w.scale_is_f16 ? __half22float2(((const __half2 *)(at.blob + w.scale))[pair])
                                    : ((const float2 *)(at.blob + w.scale))[pair];
#pragma unroll
    for (int i = 0; i < F::tokens / 2; i += 4) {
        acc[i] *= s.x;
        acc[i + 1] *= s.x;
        acc[i + 2] *= s.y;
        acc[i + 3] *= s.y;
    }
}

/* Every unit is scaled by itself: groups of 32, or that end in the middle of a block. */
template <class F>
__device__ __forceinline__ void sum_units(consumer<F> &c, const arguments &a, const place &at,
                                          float (&acc)[F::tokens / 2])
{
    const int planes = a.p.x.planes * c.r.pieces;
    float p[F::tokens / 2];
    uint32_t w0[8], w1[8];
    c.piece = 0;
    walk k = walk_to(a.p.w, 2 * at.begin);
    int second = 0, plane = 0; /* of a block: is its second unit of another group than the first */
    barrier_wait(c.r.full + c.r.stage * 8, c.r.phase);
    c.take_codes(c.r.stage);
    if (F::table)
        c.take_table();
    if (c.has_zero)
        c.take_zero(c.r.stage, 0);
    c.template unpack_unit<0>(w0);
#pragma unroll 1
    for (int q = (at.end - at.begin) * planes; q > 0; q--) {
        const int stage = c.r.stage;
        if (plane == 0) {
            const int group = k.group;
            walk_unit(a.p.w, k);
            second = k.group != group;
            walk_unit(a.p.w, k);
        }
        plane = plane + 1 == planes ? 0 : plane + 1;
        c.turn_take();
        qni_wgmma::fence();
        c.multiply(p, w0, c.tile(stage, 0), 0);
        qni_wgmma::commit();
        c.turn_give();
        const float2 s0 = c.take_scale(stage, 0), s1 = c.take_scale(stage, second);
        if (c.has_zero)
            c.take_zero(stage, second);
        c.template unpack_unit<1>(w1);
        qni_wgmma::wait<0>();
        qni_wgmma::hold(p);
        c.scale(acc, p, s0);
        c.turn_take();
        qni_wgmma::fence();
        c.multiply(p, w1, c.tile(stage, 1), 0);
        qni_wgmma::commit();
        c.turn_give();
        advance<F::stages>(c.r);
        if (q > 1)
            barrier_wait(c.r.full + c.r.stage * 8, c.r.phase);
        c.take_codes(c.r.stage); /* whatever lies there if there is none */
        if (F::table)
            c.take_table();
        if (c.has_zero)
            c.take_zero(c.r.stage, 0);
        c.template unpack_unit<0>(w0);
        qni_wgmma::wait<0>();
        qni_wgmma::hold(p);
        c.scale(acc, p, s1);
        c.release(stage, c.is_first);
    }
}

/* acc += offset[output, group] * total[row, group] for groups that begin in these blocks, in their
 * order. totals: the warpgroup's place for what leaves, which holds those of some groups at a time,
 * [group][row]: from memory every number would be fetched by as many lanes as have outputs. */
template <class F>
__device__ __forceinline__ void add_offsets(const arguments &a, const place &at, float *totals,
                                            float (&acc)[F::tokens / 2])
{
    constexpr int LD = F::tokens + 2, FIT = F::chunk_bytes / 4 / LD, EACH = FIT < 16 ? 8 : 16;
    static_assert(FIT >= 8, "room for some groups");
    const struct qni_cuda_weights &w = a.p.w;
    const int warp = (int)threadIdx.x / 32, lane = (int)threadIdx.x % 32, wg = warp / 4;
    const int panel = min(at.panel + warp, w.panels - 1);
    const int begin = at.begin == 0 ? 0 : (2 * at.begin + w.group_units - 1) / w.group_units;
    const int end = 2 * at.end >= w.units
                        ? w.n_groups
                        : min((2 * at.end + w.group_units - 1) / w.group_units, w.n_groups);
    const size_t from = ((size_t)at.part * w.panels + panel) * w.n_groups * 16 + lane / 4 * 2;
    const uint8_t *const offset = at.blob + w.offset;
    const float *const total =
        a.p.x.total + (at.part * a.p.x.part_rows + at.first) * a.p.x.ld_segment;
#pragma unroll 1
    for (int first = begin; first < end; first += EACH) {
        const int count = min(end - first, EACH);
        named_sync(1 + wg, 128);
#pragma unroll 4
        for (int i = (int)threadIdx.x % 128; i < F::tokens * EACH; i += 128) {
            const int row = i / EACH, g = i % EACH;
            if (row < at.rows && g < count)
                totals[g * LD + row] = total[(int64_t)row * a.p.x.ld_segment + first + g];
        }
        named_sync(1 + wg, 128);
#pragma unroll 1
        for (int g = 0; g < count; g++) {
            const size_t k = from + (size_t)(first + g) * 16;
            const float2 o = w.scale_is_f16 ? __half22float2(((const __half2 *)offset)[k / 2])
                                            : ((const float2 *)offset)[k / 2];
            const float2 *const t = (const float2 *)(totals + g * LD + lane % 4 * 2);
#pragma unroll
            for (int i = 0; i < F::tokens / 8; i++) {
                const float2 v = t[4 * i];
                acc[4 * i] = fmaf(o.x, v.x, acc[4 * i]);
                acc[4 * i + 1] = fmaf(o.x, v.y, acc[4 * i + 1]);
                acc[4 * i + 2] = fmaf(o.y, v.x, acc[4 * i + 2]);
                acc[4 * i + 3] = fmaf(o.y, v.y, acc[4 * i + 3]);
            }
        }
    }
    named_sync(1 + wg, 128);
}

} /* namespace */

#endif
