/* SPDX-License-Identifier: Apache-2.0 */
/* What the prefill kernel does otherwise for rows of int8 (prefill_int8_sm90a.cu): codes become
 * signed bytes, sums are int32 and exact, and what is done when a segment ends is that of
 * segments.cuh, so that the bits are those of every other int8 kernel. */
#ifndef QNI_CUDA_MATMUL_PREFILL_INT8_CUH
#define QNI_CUDA_MATMUL_PREFILL_INT8_CUH

#include "../epilogue.cuh"
#include "../ptx.cuh"
#include "prefill.cuh"
#include "prefill_sum.cuh"
#include "segments.cuh"

namespace
{

/* Facts of rows: Q8 has sums; Q8B scales, offsets and totals. */
enum { ROW_FACTS = 3 };

/* Sums of a segment: of e4m3 floats. */
template <bool IS_FLOAT> struct sum_type {
    typedef int32_t type;
};
template <> struct sum_type<true> {
    typedef float type;
};

/* A stage is 128 positions: a tile of x of 128 bytes a row, and the codes of its two blocks. WHOLE:
 * one segment. PAIRS: segments of whole stages, with the facts of rows for the one that ends. PAIR,
 * BLOCKS, UNITS: Q8B of segments of 128, 64 or 32, with those of all that are in it. NARROW: x
 * in two tiles of 64 bytes a row, of images whose channels come by 64. */
template <int READS, int BITS, int TOKENS, int MODE, bool GENERAL, bool NARROW = false>
struct form8 {
    static constexpr bool bf16 = false, general = GENERAL, table = false, integers = true;
    static constexpr bool e4m3 = READS == E4M3 || READS == E4M3B;
    static constexpr bool by_block = READS == Q8B || READS == E4M3B; /* rows: a scale a segment */
    typedef typename sum_type<e4m3>::type sum;
    static constexpr int reads = READS, bits = BITS, tokens = TOKENS, mode = MODE;
    static constexpr int kind = BITS == 4 ? CODES4 : CODES8;
    static constexpr int rounding = EXACT, teams = 1, threads = THREADS;
    static constexpr int consumer_registers = CONSUMER_REGISTERS;
    static constexpr int feeder_registers = FEEDER_REGISTERS;
    static constexpr bool codes_bf16 = false;
    static constexpr int segment_units = MODE == UNITS ? 1 : MODE == BLOCKS ? 2 : 4;
    static constexpr int segments = 4 / segment_units, groups = segments; /* of a stage */
    /* prefill_short.cuh: no segment is longer than a stage */
    static constexpr bool is_short = MODE == BLOCKS || MODE == UNITS || MODE == PAIR;
    static constexpr bool narrow = NARROW;
    static constexpr int blocks = 2, x_tiles = NARROW ? 2 : 1, half_words = 8;
    static constexpr int tile_bytes = TOKENS * QNI_CUDA_BLOCK * 2 / x_tiles;
    static constexpr int x_bytes = x_tiles * tile_bytes;
    static constexpr int half_step = NARROW ? tile_bytes / 16 : 4;
    static constexpr int block_bytes = QNI_CUDA_BLOCK * QNI_CUDA_PANEL * BITS / 8;
    static constexpr int panel_bytes = blocks * block_bytes;
    static constexpr int stage_bytes = x_bytes + PANELS * panel_bytes;
    /* Of the segments: facts of rows; of weights scales, offsets, sums, zeros, which the copy
     * engine writes to multiples of 128. */
    static constexpr int scale_bytes = PANELS * segments * 64;
    static constexpr int scale_at = (ROW_FACTS * segments * TOKENS * 4 + 127) / 128 * 128;
    static constexpr int offset_at = scale_at + scale_bytes, sums_at = offset_at + scale_bytes;
    static constexpr int zero_at = sums_at + scale_bytes;
    /* Short segments: those of weights once more, as consumers want them (prefill_short.cuh). */
    static constexpr int ready_at = zero_at + PANELS * segments * 16;
    static constexpr int facts_bytes =
        MODE == WHOLE ? 0 : ready_at + (is_short ? PANELS * segments * 8 * (16 + 8) : 0);
    static constexpr int writers = MODE == WHOLE ? 2 : 2 + 64;
    static constexpr int chunk_bytes = CHUNK * LD_CHUNK * 4;
    static constexpr int fixed = 1024 + GROUPS * chunk_bytes + 512;
    static constexpr int fit = (MAX_SHARED - fixed) / (stage_bytes + facts_bytes);
    static constexpr int stages = fit < 12 ? fit : 12;
    static constexpr int bytes = fixed + stages * (stage_bytes + facts_bytes);
    static_assert((TOKENS / CHUNK + 1) / 2 * (CHUNK / 2) * CONSUMERS * 4 <= stages * stage_bytes,
                  "what CTAs exchange lies in the ring");
};

/* ---- facts ----------------------------------------------------------------------------------- */

/* Does anybody ask for sums of codes? */
template <int READS>
__host__ __device__ __forceinline__ bool has_sums(const struct qni_cuda_product *p)
{
    return READS == Q8B ? p->x.offset != NULL : READS == Q8 && p->x.x_zero != 0;
}

/* As feed_weights (prefill_feed.cuh): codes, and what is known of the segment that they are in. */
template <class F>
__device__ __forceinline__ void feed_segments(const maps &m, const arguments &a, ring r)
{
    const uint32_t first = threadIdx.x % 32 == 0;
    const struct qni_cuda_weights &w = a.p.w;
    const int scale_words = w.scale_is_f16 ? 8 : 16;
    const uint32_t zeros = w.shift == QNI_CUDA_SHIFT_ZERO;
    const uint32_t offsets = w.shift == QNI_CUDA_SHIFT_OFFSET, sums = has_sums<F::reads>(&a.p);
    const uint32_t bytes =
        PANELS * (F::panel_bytes + F::segments * (scale_words * (offsets ? 8 : 4) +
                                                  (zeros ? 16 : 0) + (sums ? 64 : 0)));
    place at;
    for (int round = 0; find_place<F>(a, round, at); round++) {
        if (F::general && at.rows <= 0)
            continue;
        struct cursor now = cursor_at_begin(w);
#pragma unroll 1
        for (int b = at.begin; b < at.end; b += F::blocks) {
            const uint32_t full = r.full + r.stage * 8;
            const uint32_t facts = r.facts + r.stage * F::facts_bytes;
            if (F::is_short) {
                now.segment = 2 * b / F::segment_units;
                now.group = w.n_groups > 1 ? now.segment : 0;
            }
            /* Those of short segments are made ready before they are used. */
            const uint32_t told = F::is_short ? r.raw + r.stage * 8 : full;
            barrier_wait(r.empty + r.stage * 8, r.phase ^ 1);
            barrier_expect_if(full, F::is_short ? PANELS * F::panel_bytes : bytes, first);
            if (F::is_short)
                barrier_expect_if(told, bytes - PANELS * F::panel_bytes, first);
            copy_box_if(r.data + r.stage * F::stage_bytes + F::x_bytes, &m.codes, b * 128, at.panel,
                        at.box, full, first);
            copy_box_if(facts + F::scale_at, &m.scale, now.group * scale_words, at.panel, at.box,
                        told, first);
            copy_box_if(facts + F::zero_at, &m.zero, now.group * 4, at.panel, at.box, told,
                        first & zeros);
            copy_box_if(facts + F::offset_at, &m.offset, now.group * scale_words, at.panel, at.box,
                        told, first & offsets);
            copy_box_if(facts + F::sums_at, &m.sums, now.segment * 16, at.panel, at.box, told,
                        first & sums);
            if (!F::is_short && now.end <= 2 * (b + F::blocks))
                cursor_next(now, w);
            advance<F::stages>(r);
        }
    }
}

/* Of the segment that ends in a stage, if one does: [facts][tokens], by 64 threads. */
template <class F>
__device__ __forceinline__ void feed_facts(const arguments &a, ring r, int thread)
{
    constexpr int EACH = (F::tokens + 63) / 64;
    const struct qni_cuda_weights &w = a.p.w;
    const struct qni_cuda_rows &x = a.p.x;
    const bool has_offset = w.shift != QNI_CUDA_SHIFT_NONE;
    const float *const fact[ROW_FACTS] = {F::by_block  ? x.scale
                                          : has_offset ? (const float *)x.sum
                                                       : NULL,
                                          F::reads == Q8B ? x.offset : NULL,
                                          F::reads == Q8B && has_offset ? x.total : NULL};
    place at;
    for (int round = 0; find_place<F>(a, round, at); round++) {
        if (F::general && at.rows <= 0)
            continue;
        struct cursor now = cursor_at_begin(w);
        const int64_t first = at.part * x.part_rows + at.first;
#pragma unroll 1
        for (int b = at.begin; b < at.end; b += F::blocks) {
            const uint32_t full = r.full + r.stage * 8;
            const uint32_t to = r.facts + r.stage * F::facts_bytes + thread * 4;
            barrier_wait(r.empty + r.stage * 8, r.phase ^ 1);
            if (now.end <= 2 * (b + F::blocks)) {
#pragma unroll
                for (int f = 0; f < ROW_FACTS; f++)
#pragma unroll
                    for (int i = 0; i < EACH; i++) {
                        const int row = thread + 64 * i;
                        if (fact[f] != NULL && row < F::tokens)
                            ptx_copy4(to + (uint32_t)(f * F::tokens + 64 * i) * 4,
                                      fact[f] + (row < at.rows
                                                     ? (first + row) * x.ld_segment + now.segment
                                                     : 0),
                                      row < at.rows);
                    }
                cursor_next(now, w);
            }
            asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full)
                         : "memory");
            advance<F::stages>(r);
        }
    }
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* Codes as A fragments, 4 registers for each unit. Of 4 bits, TIMES16: 16 times themselves. */
template <int BITS, bool TIMES16, int COUNT>
__device__ __forceinline__ void bytes_of(const uint32_t *word, uint32_t (&to)[COUNT])
{
    if constexpr (BITS == 8) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            to[i] = dequant_q8_bytes(word[i]);
    } else if constexpr (TIMES16) {
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++)
            dequant_q4_bytes16(to[2 * i], to[2 * i + 1], word[i]);
    } else {
        /* 0x78 + u has the upper bit if u >= 8; turned around, what is left is u - 8 */
#pragma unroll
        for (int i = 0; i < COUNT / 2; i++) {
            to[2 * i] = ((word[i] & 0x0f0f0f0fu) + 0x78787878u) ^ 0x80808080u;
            to[2 * i + 1] = ((word[i] >> 4 & 0x0f0f0f0fu) + 0x78787878u) ^ 0x80808080u;
        }
    }
}

/* Of e4m3: as they are. */
template <class F, int COUNT>
__device__ __forceinline__ void codes_of(const uint32_t *word, uint32_t (&to)[COUNT])
{
    if constexpr (F::e4m3) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            to[i] = word[i];
    } else {
        bytes_of<F::bits, false>(word, to);
    }
}

template <class F> struct signed_codes {
    __device__ __forceinline__ void take(const consumer<F> &, int) {}
    template <int PART>
    __device__ __forceinline__ void make(consumer<F> &c, uint32_t (&to)[8]) const
    {
        bytes_of<F::bits, true>(c.word[PART], to);
    }
};

/* ---- one segment ----------------------------------------------------------------------------- */

template <class F>
__device__ __forceinline__ void sum_one_segment(consumer<F> &c, const place &at,
                                                int32_t (&dot)[F::tokens / 2])
{
    signed_codes<F> codes;
#pragma unroll
    for (int i = 0; i < F::tokens / 2; i++)
        dot[i] = 0;
    if (at.begin < at.end)
        sum_straight(c, (at.end - at.begin) / F::blocks, codes, dot);
}

/* Of each row of the tile, into the warpgroup's place for what leaves: its scale and, if somebody
 * asks, its sum less what x_zero takes away, as a float or as the bits of an integer. */
template <class F>
__device__ __forceinline__ void lay_rows(const arguments &a, const place &at, float *to, bool sums,
                                         int32_t taken, bool as_integers)
{
    const struct qni_cuda_rows &x = a.p.x;
    const int wg = (int)threadIdx.x / 128;
    const int64_t first = at.part * x.part_rows + at.first;
    named_sync(1 + wg, 128);
#pragma unroll 1
    for (int row = (int)threadIdx.x % 128; row < F::tokens; row += 128) {
        const bool is_row = row < at.rows;
        to[row] = x.row_scale == NULL ? x.x_scale : is_row ? x.row_scale[first + row] : 0.0f;
        if (sums) {
            const int32_t sum = is_row ? x.sum[(first + row) * x.ld_segment] - taken : 0;
            to[F::tokens + row] = as_integers ? __int_as_float(sum) : __int2float_rn(sum);
        }
    }
    named_sync(1 + wg, 128);
}
/* v * scale of its row. */
template <class F>
__device__ __forceinline__ void scale_rows(const float *rows, float (&acc)[F::tokens / 2])
{
#pragma unroll
    for (int i = 0; i < F::tokens / 8; i++) {
        const float2 by = *(const float2 *)(rows + threadIdx.x % 4 * 2 + 8 * i);
        acc[4 * i] *= by.x;
        acc[4 * i + 1] *= by.y;
        acc[4 * i + 2] *= by.x;
        acc[4 * i + 3] *= by.y;
    }
}

/* The steps that there are for every sum; Q8. Each choice is made once for all of them. */
template <class F>
__device__ __forceinline__ void end_one_segment(const arguments &a, const place &at, float *rows,
                                                int32_t (&dot)[F::tokens / 2],
                                                float (&acc)[F::tokens / 2])
{
    const struct qni_cuda_weights &w = a.p.w;
    const struct qni_cuda_sink &out = a.p.out;
    const int32_t x_zero = a.p.x.x_zero;
    const int g = (int)threadIdx.x % 32 / 4, warp = (int)threadIdx.x / 32;
    const int panel = min(at.panel + warp, w.panels - 1), output = panel * QNI_CUDA_PANEL + g;
    const bool is_raw = epilogue_is_raw(out);
    const bool has_offset = w.shift != QNI_CUDA_SHIFT_NONE && !is_raw;
    struct loaded l = {};
    load_facts(l, w, at.blob, (uint32_t)(at.part * w.panels + panel), (uint32_t)g,
               cursor_at_begin(w), x_zero != 0);
    const struct facts f = facts_in_f32<F::kind>(l, w);
    int32_t more = x_zero != 0 ? -x_zero * f.sum.x : 0, more8 = x_zero != 0 ? -x_zero * f.sum.y : 0;
    if (is_raw && output < w.n)
        more += epilogue_raw_bias(out, at.part * w.n + output, at.expert);
    if (is_raw && output + 8 < w.n)
        more8 += epilogue_raw_bias(out, at.part * w.n + output + 8, at.expert);
    const bool has_raw_zero = w.shift == QNI_CUDA_SHIFT_ZERO && is_raw;
    lay_rows<F>(a, at, rows, has_offset || has_raw_zero,
                (has_offset || has_raw_zero) && x_zero != 0
                    ? x_zero * ((const int32_t *)(at.blob + w.counts))[0]
                    : 0,
                has_raw_zero);
#pragma unroll
    for (int i = 0; i < F::tokens / 2; i++)
        dot[i] = (F::bits == 4 ? dot[i] >> 4 : dot[i]) + (i % 4 < 2 ? more : more8);
    if (has_raw_zero) {
        const int32_t zero = (int8_t)l.zero, zero8 = (int8_t)(l.zero >> 8);
#pragma unroll
        for (int i = 0; i < F::tokens / 8; i++) {
            const int2 sum =
                *(const int2 *)(rows + F::tokens + threadIdx.x % 4 * 2 + 8 * i); /* as integers */
            dot[4 * i] -= zero * sum.x;
            dot[4 * i + 1] -= zero * sum.y;
            dot[4 * i + 2] -= zero8 * sum.x;
            dot[4 * i + 3] -= zero8 * sum.y;
        }
    }
    if (out.y_dtype == QN_I32) {
#pragma unroll
        for (int i = 0; i < F::tokens / 2; i++)
            acc[i] = __int_as_float(dot[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < F::tokens / 2; i++)
        acc[i] = fmaf(i % 4 < 2 ? f.scale.x : f.scale.y, __int2float_rn(dot[i]), 0.0f);
    if (has_offset) {
#pragma unroll
        for (int i = 0; i < F::tokens / 8; i++) {
            const float2 sum = *(const float2 *)(rows + F::tokens + threadIdx.x % 4 * 2 + 8 * i);
            acc[4 * i] = fmaf(f.offset.x, sum.x, acc[4 * i]);
            acc[4 * i + 1] = fmaf(f.offset.x, sum.y, acc[4 * i + 1]);
            acc[4 * i + 2] = fmaf(f.offset.y, sum.x, acc[4 * i + 2]);
            acc[4 * i + 3] = fmaf(f.offset.y, sum.y, acc[4 * i + 3]);
        }
    }
    scale_rows<F>(rows, acc);
}

/* ---- segments -------------------------------------------------------------------------------- */

/* Where a warp stands in its segments. */
template <class F> struct segments_of {
    struct cursor now;
    struct ending e;
    struct loaded facts;
    const int32_t *counts;
    const float *rows; /* facts of this lane's rows in stage 0 */
    uint32_t scale_at, scale_other, sums_at, zero_at;

    __device__ __forceinline__ segments_of(const arguments &a, const place &at, uint32_t stage0,
                                           const float *of_rows)
    {
        const struct qni_cuda_weights &w = a.p.w;
        const uint32_t panel = threadIdx.x / 32, g = threadIdx.x % 32 / 4;
        const uint32_t scale_size = w.scale_is_f16 ? 4 : 8; /* of two outputs */
        now = cursor_at_begin(w);
        e.x_zero = F::reads == Q8 ? a.p.x.x_zero : 0;
        e.times = 1.0f;
        e.has_offset = w.shift != QNI_CUDA_SHIFT_NONE;
        e.has_x_offset = F::reads == Q8B && a.p.x.offset != NULL;
        e.is_raw = false;
        counts = e.x_zero != 0 && e.has_offset ? (const int32_t *)(at.blob + w.counts) : NULL;
        /* Behind what leaves. Of a pointer made of its shared address the compiler (cicc 13.0)
         * looks for the memory without end. */
        rows = of_rows + (GROUPS - threadIdx.x / 128) * (F::chunk_bytes / 4) + threadIdx.x % 4 * 2;
        scale_at = keep(stage0 + F::scale_at + (panel * 8 + g) * scale_size);
        scale_other = keep(w.scale_is_f16 ? 0 : 4);
        sums_at = keep(stage0 + F::sums_at + panel * 64 + g * 8);
        zero_at = keep(stage0 + F::zero_at + panel * 16 + g * 2);
    }
    /* As they lie, while products run. */
    __device__ __forceinline__ void take(int stage)
    {
        const uint32_t at = stage * F::facts_bytes;
        facts.scale.x = load4_of(scale_at + at);
        facts.scale.y = load4_of(scale_at + at + scale_other);
        facts.offset.x = load4_of(scale_at + at + F::scale_bytes);
        facts.offset.y = load4_of(scale_at + at + F::scale_bytes + scale_other);
        facts.sum.x = (int32_t)load4_of(sums_at + at);
        facts.sum.y = (int32_t)load4_of(sums_at + at + 4);
        asm volatile("ld.shared.u16 %0, [%1];" : "=r"(facts.zero) : "r"(zero_at + at));
    }
    static __device__ __forceinline__ uint32_t load4_of(uint32_t from)
    {
        uint32_t v;
        asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(from));
        return v;
    }
    __device__ __forceinline__ void end(const struct qni_cuda_weights &w, int stage,
                                        float (&acc)[F::tokens / 8][4],
                                        typename F::sum (&dot)[F::tokens / 8][4])
    {
        const struct facts f = facts_in_f32<F::kind>(facts, w);
        e.x = rows + stage * (F::facts_bytes / 4);
        e.count = counts != NULL ? counts[now.segment] : 0;
        if constexpr (F::e4m3)
            end_e4m3<F::by_block, F::tokens / 8>(acc, dot, f, e);
        else if constexpr (F::reads == Q8)
            end_q8<F::kind, F::tokens / 8>(acc, dot, f, e);
        else
            end_q8b<F::tokens, F::tokens / 8>(acc, dot, f, e);
        cursor_next(now, w);
    }
};

/* As turns_of (prefill_sum.cuh): one warpgroup's products run while the other takes its steps. */
template <class F> struct byte_turns {
    typedef uint32_t words[8];
    int stage, unit, more; /* whose turn it is; the unit behind it; 0: a segment begins */
    typename F::sum p[F::tokens / 2];

    __device__ __forceinline__ void turn(consumer<F> &c, segments_of<F> &t,
                                         const struct qni_cuda_weights &w,
                                         float (&acc)[F::tokens / 2], words &u0, words &u1,
                                         words &u2, int q)
    {
        pin(u0);
        pin(u1); /* not in our turn */
        c.turn_take();
        qni_wgmma::fence();
        c.multiply(p, u0, c.tile(stage, 0), more);
        qni_wgmma::commit();
        c.multiply(p, u1, c.tile(stage, 1), 1);
        qni_wgmma::commit();
        c.turn_give();
        const int next = c.r.stage;
        t.take(stage);
        codes_of<F>(c.word[0], u2);
        qni_wgmma::wait<1>();
        codes_of<F>(c.word[1], u0);
        if (q > 1)
            advance<F::stages>(c.r);
        if (q > 2)
            barrier_wait(c.r.full + c.r.stage * 8, c.r.phase);
        c.take_codes(c.r.stage); /* whatever lies there if there is no such turn */
        qni_wgmma::wait<0>();
        qni_wgmma::hold(p);
        more = 1;
        if (t.now.end <= unit) {
            t.end(w, stage, reinterpret_cast<float(&)[F::tokens / 8][4]>(acc),
                  reinterpret_cast<typename F::sum(&)[F::tokens / 8][4]>(p));
            more = 0;
        }
        c.release(stage, c.is_first);
        unit += 2 * F::blocks;
        stage = next;
    }
};

template <class F>
__device__ __forceinline__ void sum_segments(consumer<F> &c, const arguments &a, const place &at,
                                             float *of_rows, float (&acc)[F::tokens / 2])
{
    const struct qni_cuda_weights &w = a.p.w;
    segments_of<F> t(a, at, c.r.facts, of_rows);
    byte_turns<F> b;
    uint32_t w0[8], w1[8], w2[8];
    int q = (at.end - at.begin) / F::blocks;
#pragma unroll
    for (int i = 0; i < F::tokens / 2; i++)
        acc[i] = 0;
    b.unit = 2 * F::blocks;
    b.more = 0;
    b.stage = c.r.stage;
    barrier_wait(c.r.full + c.r.stage * 8, c.r.phase);
    c.take_codes(c.r.stage);
    codes_of<F>(c.word[0], w0);
    codes_of<F>(c.word[1], w1);
    advance<F::stages>(c.r);
    if (q > 1)
        barrier_wait(c.r.full + c.r.stage * 8, c.r.phase);
    c.take_codes(c.r.stage);
#pragma unroll 1
    for (;;) {
        b.turn(c, t, w, acc, w0, w1, w2, q);
        if (--q == 0)
            break;
        b.turn(c, t, w, acc, w2, w0, w1, q);
        if (--q == 0)
            break;
        b.turn(c, t, w, acc, w1, w2, w0, q);
        if (--q == 0)
            break;
    }
    if (F::by_block)
        return;
    lay_rows<F>(a, at, of_rows, false, 0, false);
    scale_rows<F>(of_rows, acc);
}

} /* namespace */

#endif
