/* SPDX-License-Identifier: Apache-2.0 */
/* What a warp of the int8 decode kernels does with a chunk of a panel. It has two parts: the dots
 * and the inner fma or product, which need nothing from anybody; then one fma a segment on the sums
 * that the warp with the chunk before left in shared memory. So the order of the steps costs the
 * fma's and one hand-over a chunk, not the products. One segment for all of k: dots alone.
 *
 * Codes are the A operand of mma.m16n8k32 as they lie (one lop3 for four; integers of 4 bits as 16
 * times themselves, and the sum is scaled back, exactly), rows of x the B operand. A sum begins as
 * 1.5 * 2^23 in the bits of a float: then it is one, with no conversion. Sums of codes, for offsets
 * of x, are products with ones: they cost no byte. One row alone would use one column of eight of
 * the B operand: there column j has the segments j, j + 4, ... and column 4 + j ones for them, so
 * that a few fragments hold the dots of all segments, and a lane an output takes the steps. */
#ifndef QNI_CUDA_MATMUL_DECODE_INT8_CHUNKS_CUH
#define QNI_CUDA_MATMUL_DECODE_INT8_CHUNKS_CUH

#include "../dequant.cuh"
#include "../epilogue.cuh"
#include "../mma.cuh"
#include "decode_int8.cuh"

namespace chunks
{

enum { MAGIC = 0x4b400000 }; /* 1.5 * 2^23 */
/* fma(+0, NOTHING, v) is v, whatever v is. */
#define NOTHING (-0.0f)

/* ---- products -------------------------------------------------------------------------------- */

/* c = begin + A . B */
INLINE void mma_begin(int32_t (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                      const int32_t (&begin)[4])
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%10,%11,%12,%13};"
        : "=r"(c[0]), "=r"(c[1]), "=r"(c[2]), "=r"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "r"(begin[0]),
          "r"(begin[1]), "r"(begin[2]), "r"(begin[3]));
}
/* A sum that began as MAGIC, |dot| < 2^22: 128 positions at most. */
template <int BITS> INLINE float float_of(int32_t dot)
{
    return BITS == 4 ? __fmaf_rn(__int_as_float(dot), 0.0625f, -786432.0f)
                     : __fadd_rn(__int_as_float(dot), -12582912.0f);
}

/* A of one unit: steps 2 h and 2 h + 1 of a block. words: of the block. */
template <int BITS> INLINE void bytes_of(uint32_t (&a)[4], const uint32_t *words, int h)
{
    if (BITS == 4) {
        dequant_q4_bytes16(a[0], a[1], words[2 * h]);
        dequant_q4_bytes16(a[2], a[3], words[2 * h + 1]);
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++)
            a[i] = dequant_q8_bytes(words[4 * h + i]);
    }
}
template <int BITS> INLINE void words_of(uint32_t (&words)[BITS], const uint8_t *block)
{
#pragma unroll
    for (int i = 0; i < BITS / 4; i++)
        *(uint4 *)(words + 4 * i) = *(const uint4 *)(block + i * 512);
}

/* ---- tables of weights ----------------------------------------------------------------------- */

INLINE float one_at(const uint8_t *table, int32_t i, int32_t is_f16)
{
    return is_f16 ? __half2float(((const __half *)table)[i]) : ((const float *)table)[i];
}
INLINE float2 pair_at(const uint8_t *table, int32_t i, int32_t is_f16)
{
    return is_f16 ? __half22float2(((const __half2 *)table)[i]) : ((const float2 *)table)[i];
}
/* Where the scales of unit u begin, in bytes; offsets of the same row of tables lie as they do. */
INLINE int32_t table_of(const struct job &d, int32_t u)
{
    return (u * d.table_step) & -d.row_bytes;
}
/* Bytes of zero points for a byte of scales: 1 << -shift. */
INLINE int32_t zero_shift(const struct job &d)
{
    return d.scale_is_f16 ? 1 : 2;
}

/* Scales of the N segments of a chunk: of outputs g and g + 8, or (ONE) of output i0 of a row. */
template <int N, int SEG, class T, T (*AT)(const uint8_t *, int32_t, int32_t)>
INLINE void scales_of(T (&to)[N], const struct job &d, const uint8_t *table, int32_t i0)
{
    if (d.scale_is_f16 && d.rows == N) { /* a row for each: no address to work out */
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = AT(table + i * 32, i0, 1);
    } else if (d.scale_is_f16) {
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = AT(table + table_of(d, i * SEG), i0, 1);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = AT(table + table_of(d, i * SEG), i0, 0);
    }
}
INLINE float shifted(const int8_t *zero, float scale)
{
    return __fmul_rn(-(float)*zero, scale);
}
INLINE float2 shifted(const int8_t *zero, const float2 &scale)
{
    return make_float2(shifted(zero, scale.x), shifted(zero + 1, scale.y));
}
/* Their offsets: fl(-zero scale), or as they are. */
template <int N, int SEG, class T, T (*AT)(const uint8_t *, int32_t, int32_t)>
INLINE void offsets_of(T (&to)[N], const T (&scale)[N], const struct job &d, const uint8_t *extra,
                       int32_t i0)
{
    if (d.extra_bytes == 16) {
        const int32_t shift = zero_shift(d);
        const int8_t *const zero = (const int8_t *)extra + i0 * (int32_t)(sizeof(T) / 4);
#pragma unroll
        for (int i = 0; i < N; i++)
            to[i] = shifted(zero + (table_of(d, i * SEG) >> shift), scale[i]);
    } else
        scales_of<N, SEG, T, AT>(to, d, extra, i0);
}

/* ---- one row --------------------------------------------------------------------------------- */

/* What a lane needs to go through chunks. */
struct lane {
    const uint8_t *x; /* its row and quarter, of the stretch */
    int32_t x_tile;   /* bytes to row + 8 */
    const float
        *scale[4]; /* facts of rows 2t, 2t + 1, 2t + 8, 2t + 9, of the stretch; one row: [0] */
    int32_t to_offset, to_total; /* floats from a scale to the others */
    uint32_t on[4];              /* one row: is column j, or 4 + j, the lane's? */
    float *trade;                /* of the warp */
    int32_t begin[4];            /* MAGIC */
};

template <int N> INLINE void load_run(float *to, const float *from)
{
#pragma unroll
    for (int i = 0; i < N; i += N % 4 == 0 ? 4 : 2)
        if (N % 4 == 0)
            *(float4 *)(to + i) = *(const float4 *)(from + i);
        else
            *(float2 *)(to + i) = *(const float2 *)(from + i);
}

/* The sums of a chunk's segments to `trade`: [output][dots, from 16 on sums of codes]. */
template <int BITS, int SEG>
INLINE void dots_of_one(const struct lane &l, const uint8_t *slot, const uint8_t *x, int32_t lane)
{
    enum { BLOCK = BITS * 128, BLOCKS = CHUNK / BLOCK, UNITS = 2 * BLOCKS, SET = 4 * SEG };
    enum { SETS = UNITS < SET ? 1 : UNITS / SET };
    int32_t c[SETS][4];
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        uint32_t words[BITS];
        words_of<BITS>(words, slot + b * BLOCK + lane * 16);
        const uint4 v = *(const uint4 *)(x + b * 64);
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int u = 2 * b + h;
            const uint32_t on = l.on[u / SEG % 4];
            const uint32_t b0 = (h == 0 ? v.x : v.z) & on, b1 = (h == 0 ? v.y : v.w) & on;
            uint32_t a[4];
            bytes_of<BITS>(a, words, h);
            if (u % SET == 0)
                mma_begin(c[u / SET], a, b0, b1, l.begin);
            else
                mma_s8(c[u / SET], a, b0, b1);
        }
    }
    const int32_t g = lane >> 2, t = lane & 3;
    float *const to = l.trade + g * TRADE + (t >> 1) * 16 + (t & 1) * 2;
#pragma unroll
    for (int s = 0; s < SETS; s++) {
        *(float2 *)(to + 4 * s) = make_float2(float_of<BITS>(c[s][0]), float_of<BITS>(c[s][1]));
        *(float2 *)(to + 8 * TRADE + 4 * s) =
            make_float2(float_of<BITS>(c[s][2]), float_of<BITS>(c[s][3]));
    }
    __syncwarp();
}

/* What the chunk before left of an output. */
INLINE float meet_one(const float *sum, uint32_t at, int32_t chunk)
{
    if (chunk == 0)
        return 0.0f;
    done_wait(at, chunk);
    return *sum;
}

/* Both lanes of an output have read it. */
INLINE void leave_one(float *sum, float acc, int32_t lane)
{
    __syncwarp();
    if (lane < 16)
        *sum = acc;
}

/* A chunk: a lane has output lane % 16. segment: the first, of the stretch; n: how many are real.
 * sum: where the output's sum is; at: its panel's count of chunks. */
template <int BITS, int SEG>
INLINE void chunk_of_one(const struct job &d, const struct lane &l, const uint8_t *slot,
                         const uint8_t *x, int32_t segment, int32_t n, float *sum, uint32_t at,
                         int32_t chunk, int32_t lane)
{
    enum { UNITS = CHUNK / (BITS * 64), N = UNITS / SEG };
    dots_of_one<BITS, SEG>(l, slot, x, lane);
    const int32_t o = lane & 15, i0 = 2 * (o & 7) + (o >> 3);
    const float *const facts = l.scale[0] + segment;
    const uint8_t *const table = slot + CHUNK;
    float t[N], s[N], f[N];
    load_run<N>(t, l.trade + o * TRADE);
    load_run<N>(f, facts);
    if (d.has_sums) {
        float offset[N];
        load_run<N>(s, l.trade + o * TRADE + 16);
        load_run<N>(offset, facts + l.to_offset);
#pragma unroll
        for (int i = 0; i < N; i++)
            t[i] = __fmaf_rn(f[i], t[i], __fmul_rn(offset[i], s[i]));
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            t[i] = __fmul_rn(f[i], t[i]);
    }
    scales_of<N, SEG, float, one_at>(s, d, table, i0);
    if (n < N) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            s[i] = i < n ? s[i] : 0.0f;
            t[i] = i < n ? t[i] : NOTHING;
        }
    }
    if (d.extra_bytes == 0) {
        float acc = meet_one(sum, at, chunk);
#pragma unroll
        for (int i = 0; i < N; i++)
            acc = __fmaf_rn(s[i], t[i], acc);
        leave_one(sum, acc, lane);
        return;
    }
    float offset[N];
    offsets_of<N, SEG, float, one_at>(offset, s, d, table + d.rows * d.row_bytes, i0);
    load_run<N>(f, facts + l.to_total);
    if (n < N) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            offset[i] = i < n ? offset[i] : 0.0f;
            f[i] = i < n ? f[i] : NOTHING;
        }
    }
    float acc = meet_one(sum, at, chunk);
#pragma unroll
    for (int i = 0; i < N; i++)
        acc = __fmaf_rn(offset[i], f[i], __fmaf_rn(s[i], t[i], acc));
    leave_one(sum, acc, lane);
}

/* ---- more rows ------------------------------------------------------------------------------- */

/* t of all segments of a chunk. valid: its blocks; what lies behind them is anything. */
template <int BITS, int MT, int SEG, int SUMS>
INLINE void inner(float (&to)[CHUNK / (BITS * 64) / SEG][MT][4], const struct lane &l,
                  const uint8_t *slot, const uint8_t *x, int32_t segment, int32_t valid,
                  int32_t lane)
{
    enum { BLOCK = BITS * 128, BLOCKS = CHUNK / BLOCK, N = 2 * BLOCKS / SEG };
    enum { RUN = N % 4 == 0 ? 4 : 2 };
    int32_t c[MT][4], e[4];
    float f[2 * MT][RUN], o[2 * MT][RUN];
#pragma unroll
    for (int b = 0; b < BLOCKS; b++) {
        uint32_t words[BITS];
        uint4 rows[MT];
        words_of<BITS>(words, slot + b * BLOCK + lane * 16);
#pragma unroll
        for (int i = 0; i < MT; i++)
            rows[i] = *(const uint4 *)(x + b * 64 + i * l.x_tile);
        const uint32_t one = SUMS && b < valid ? 0x01010101 : 0;
#pragma unroll
        for (int h = 0; h < 2; h++) {
            const int u = 2 * b + h, s = u / SEG;
            uint32_t a[4];
            bytes_of<BITS>(a, words, h);
#pragma unroll
            for (int i = 0; i < MT; i++) {
                const uint32_t b0 = h == 0 ? rows[i].x : rows[i].z;
                const uint32_t b1 = h == 0 ? rows[i].y : rows[i].w;
                if (u % SEG == 0)
                    mma_begin(c[i], a, b0, b1, l.begin);
                else
                    mma_s8(c[i], a, b0, b1);
            }
            if (SUMS && u % SEG == 0)
                mma_begin(e, a, one, one, l.begin);
            else if (SUMS)
                mma_s8(e, a, one, one);
            if (u % SEG != SEG - 1)
                continue;
#pragma unroll
            for (int r = 0; r < 2 * MT && s % RUN == 0; r++) {
                load_run<RUN>(f[r], l.scale[r] + segment + s);
                if (SUMS)
                    load_run<RUN>(o[r], l.scale[r] + l.to_offset + segment + s);
            }
#pragma unroll
            for (int i = 0; i < MT; i++)
#pragma unroll
                for (int j = 0; j < 4; j++) {
                    const float scale = f[2 * i + (j & 1)][s % RUN];
                    const float dot = float_of<BITS>(c[i][j]);
                    if (SUMS)
                        to[s][i][j] = __fmaf_rn(
                            scale, dot,
                            __fmul_rn(o[2 * i + (j & 1)][s % RUN], float_of<BITS>(e[j & 2])));
                    else
                        to[s][i][j] = __fmul_rn(scale, dot);
                }
        }
    }
}

/* A lane's sums of a panel, to shared memory or back: [row][16 outputs], from row 2 t, output g.
 * There is room for all rows that there may be. */
template <int MT, class T> INLINE void put(const T (&from)[MT][4], T *panel)
{
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            panel[(i * 8 + (j & 1)) * LINE + (j >> 1) * 8] = from[i][j];
}
template <int MT, class T> INLINE void get(T (&to)[MT][4], const T *panel)
{
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            to[i][j] = panel[(i * 8 + (j & 1)) * LINE + (j >> 1) * 8];
}

template <int MT>
INLINE void fma_all(float (&acc)[MT][4], const float2 &scale, const float (&t)[MT][4])
{
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            acc[i][j] = __fmaf_rn(j < 2 ? scale.x : scale.y, t[i][j], acc[i][j]);
}
/* Offsets of outputs g, g + 8 times totals of the rows. */
template <int MT>
INLINE void fma_totals(float (&acc)[MT][4], const float2 &offset, const float (&total)[2 * MT])
{
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            acc[i][j] = __fmaf_rn(j < 2 ? offset.x : offset.y, total[2 * i + (j & 1)], acc[i][j]);
}

/* The lane's part of a panel in `panel`; n segments of the chunk are real. */
template <int BITS, int MT, int SEG>
INLINE void chunk_of_rows(const struct job &d, const struct lane &l, const uint8_t *slot,
                          const uint8_t *x, int32_t segment, int32_t n, float *panel, uint32_t at,
                          int32_t chunk, int32_t lane)
{
    enum { UNITS = CHUNK / (BITS * 64), N = UNITS / SEG };
    const uint8_t *const table = slot + CHUNK;
    float t[N][MT][4], acc[MT][4] = {};
    float2 s[N];
    const int32_t valid = (d.units - chunk * UNITS) / 2;
    if (d.has_sums)
        inner<BITS, MT, SEG, 1>(t, l, slot, x, segment, valid, lane);
    else
        inner<BITS, MT, SEG, 0>(t, l, slot, x, segment, valid, lane);
    scales_of<N, SEG, float2, pair_at>(s, d, table, lane >> 2);
    if (n < N) {
#pragma unroll
        for (int i = 0; i < N; i++) {
            s[i].x = i < n ? s[i].x : 0.0f;
            s[i].y = i < n ? s[i].y : 0.0f;
#pragma unroll
            for (int j = 0; j < 4 * MT; j++)
                t[i][j / 4][j % 4] = i < n ? t[i][j / 4][j % 4] : NOTHING;
        }
    }
    if (d.extra_bytes == 0) {
        if (chunk > 0) {
            done_wait(at, chunk);
            get<MT>(acc, panel);
        }
#pragma unroll
        for (int i = 0; i < N; i++)
            fma_all<MT>(acc, s[i], t[i]);
    } else {
        float2 o[N];
        offsets_of<N, SEG, float2, pair_at>(o, s, d, table + d.rows * d.row_bytes, lane >> 2);
        if (chunk > 0) {
            done_wait(at, chunk);
            get<MT>(acc, panel);
        }
#pragma unroll
        for (int i = 0; i < N; i++) {
            float total[2 * MT];
            o[i].x = i < n ? o[i].x : 0.0f;
            o[i].y = i < n ? o[i].y : 0.0f;
#pragma unroll
            for (int r = 0; r < 2 * MT; r++)
                total[r] = i < n ? l.scale[r][l.to_total + segment + i] : NOTHING;
            fma_all<MT>(acc, s[i], t[i]);
            fma_totals<MT>(acc, o[i], total);
        }
    }
    put<MT>(acc, panel);
}

/* ---- segments of any length ------------------------------------------------------------------ */

/* What goes from a chunk to the next: sums, the dots of the segment that has begun, and its sums of
 * codes (of output g and, at 2, g + 8). */
template <int MT> struct carried {
    float acc[MT][4];
    int32_t dot[MT][4], sum[4];
};
struct carried_at {
    float *acc;
    int32_t *dot, *sum;
    uint32_t done;
    int32_t chunk;
};

/* Adds what the chunk before left. */
template <int MT>
INLINE void meet(const struct job &d, struct carried<MT> &c, const struct carried_at &at, int32_t g)
{
    int32_t dot[MT][4];
    if (at.chunk == 0)
        return;
    done_wait(at.done, at.chunk);
    get<MT>(c.acc, at.acc);
    get<MT>(dot, at.dot);
#pragma unroll
    for (int i = 0; i < 4 * MT; i++)
        c.dot[i / 4][i % 4] += dot[i / 4][i % 4];
    if (d.has_sums) {
        c.sum[0] += at.sum[g];
        c.sum[2] += at.sum[g + 8];
    }
}

/* The steps of a segment; its facts are at s of the stretch, its weights' at `table`. */
template <int BITS, int MT>
INLINE void steps(const struct job &d, const struct lane &l, const uint8_t *slot, int32_t table,
                  int32_t s, struct carried<MT> &c, int32_t g)
{
    enum { SHIFT = BITS == 4 ? 4 : 0 };
    const float2 scale = pair_at(slot + CHUNK + table, g, d.scale_is_f16);
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int32_t dot = c.dot[i][j] >> SHIFT, sum = c.sum[j & 2] >> SHIFT;
            const float *const fact = l.scale[2 * i + (j & 1)] + s;
            float t;
            if (!d.is_q8b)
                t = (float)(dot - (d.has_sums ? d.x.x_zero * sum : 0));
            else if (d.has_sums)
                t = __fmaf_rn(*fact, (float)dot, __fmul_rn(fact[l.to_offset], (float)sum));
            else
                t = __fmul_rn(*fact, (float)dot);
            c.acc[i][j] = __fmaf_rn(j < 2 ? scale.x : scale.y, t, c.acc[i][j]);
        }
    if (d.extra_bytes != 0) {
        const uint8_t *const extra = slot + CHUNK + d.rows * d.row_bytes;
        float total[2 * MT];
#pragma unroll
        for (int r = 0; r < 2 * MT; r++)
            total[r] = l.scale[r][l.to_total + s];
        fma_totals<MT>(
            c.acc,
            d.extra_bytes == 16
                ? shifted((const int8_t *)extra + (table >> zero_shift(d)) + 2 * g, scale)
                : pair_at(extra + table, g, d.scale_is_f16),
            total);
    }
}

/* Unit h of a block into the dots; sums of codes times `one`. */
template <int BITS, int MT>
INLINE void products(struct carried<MT> &c, const uint32_t (&words)[BITS], const uint4 (&rows)[MT],
                     int h, uint32_t one, bool has_sums)
{
    uint32_t a[4];
    bytes_of<BITS>(a, words, h);
#pragma unroll
    for (int i = 0; i < MT; i++)
        mma_s8(c.dot[i], a, h == 0 ? rows[i].x : rows[i].z, h == 0 ? rows[i].y : rows[i].w);
    if (has_sums)
        mma_s8(c.sum, a, one, one);
}

/* Facts of segment s of all are at s - first. */
template <int BITS, int MT>
INLINE void chunk_of_any(const struct job &d, const struct lane &l, const uint8_t *slot,
                         const uint8_t *x, int32_t first, const struct carried_at &at, int32_t lane)
{
    enum { BLOCK = BITS * 128, BLOCKS = CHUNK / BLOCK, UNITS = 2 * BLOCKS, TOGETHER = 4 };
    struct carried<MT> c = {
    };
    struct decode_place where = decode_place_at(d, at.chunk * UNITS);
    const bool is_inside = where.left > UNITS; /* no segment ends here */
    bool has_met = false;
#pragma unroll 1
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
        if (is_inside) {
#pragma unroll
            for (int u = 0; u < 2 * TOGETHER; u++)
                products<BITS, MT>(c, words[u / 2], rows[u / 2], u % 2, 0x01010101, d.has_sums);
            continue;
        }
#pragma unroll
        for (int u = 0; u < 2 * TOGETHER; u++) {
            products<BITS, MT>(c, words[u / 2], rows[u / 2], u % 2, 0x01010101, d.has_sums);
            /* behind the last segment there may be a unit of padding, and anything */
            if (where.segment >= d.n_segments || !decode_ends_segment(where))
                continue;
            if (!has_met)
                meet<MT>(d, c, at, lane >> 2);
            has_met = true;
            steps<BITS, MT>(d, l, slot, table_of(d, 2 * b0 + u), where.segment - first, c,
                            lane >> 2);
#pragma unroll
            for (int i = 0; i < 4 * MT; i++)
                c.dot[i / 4][i % 4] = 0;
            c.sum[0] = c.sum[2] = 0;
            decode_next_segment(d, where);
        }
    }
    if (!has_met)
        meet<MT>(d, c, at, lane >> 2);
    put<MT>(c.acc, at.acc);
    put<MT>(c.dot, at.dot);
    __syncwarp(); /* all lanes of an output have read its sum */
    if (d.has_sums && (lane & 3) == 0) {
        at.sum[lane >> 2] = c.sum[0];
        at.sum[(lane >> 2) + 8] = c.sum[2];
    }
}

} // namespace chunks

#endif
