/* SPDX-License-Identifier: Apache-2.0 */
/* At most 16 rows of f16 or bf16 x times weights of 4 or 8 bits: what decides is how fast weights
 * arrive. y = sum over groups of scale * (sum of x (code - zero)) [+ offset * sum of x].
 *
 * Weights are the A operand of m16n8k16, rows of x the B operand. A code becomes its integer,
 * exactly, in 16 bits (dequant.cuh); products are exact and summed in f32 by the tensor cores; the
 * scale of a group acts on its sum. Sums of x, for offsets, are products with ones. x lies in
 * shared memory row by row and goes to registers by ldmatrix, the same for all 16 outputs of a
 * panel; rows past m repeat the last one, and nobody looks at their sums. Planes of x are rows of
 * their own as long as there is room for them, and are added at the end; else products follow each
 * other (PLANES). decode.cuh: how chunks of weights arrive, and which warp has which.
 *
 * Codes of a table of 16 values (T4) are looked up two at a time: shared memory has the 256 pairs
 * of values, each as many times as there are banks for, so that no lanes meet in one. Values that
 * 16 bits do not hold are two pieces of f16 or three of bf16 (dequant.cuh), which lie side by side,
 * and a product for each piece (MANY). Look-ups take 16, 32 or 64 cycles of the shared memory for a
 * block, and everything else 12.
 *
 * Roofline: bytes of the weights / bandwidth. At 3.35 TB/s and 1.6 GHz a multiprocessor of an H100
 * gets 512 bytes of codes in 34 cycles; its four schedulers have 136 for a block of 64 positions of
 * 4 bits. They need 115 with up to 8 rows of x (62 instructions, 36 of which make integers, 4
 * products that keep the scheduler for some 8 cycles each), 145 with 16: there, and for one row of
 * f16, other kernels are faster (decode_sm90a.cu, decode_one_sm80.cu). lab/cuda/NOTES.md has the
 * times and says where they go.
 */
#ifndef QNI_CUDA_MATMUL_DECODE_FLOAT_ROWS_CUH
#define QNI_CUDA_MATMUL_DECODE_FLOAT_ROWS_CUH

#include "../decode.cuh"
#include "../decode_float.cuh"
#include "../epilogue.cuh"
#include "../mma.cuh"

#define INLINE static __device__ __forceinline__

template <int FORMAT>
INLINE void product(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    if (IS_BF16(FORMAT))
        mma_bf16(c, a, b0, b1);
    else
        mma_f16(c, a, b0, b1);
}
/* Sums of a warp, rows 0 to 7 and 8 to 15: of x times integers, and of x, in what is scaled next.
 * */
struct decode_sums {
    float products[2][4], x[2][4];
};

/* One unit: 32 positions. */
template <int FORMAT, int MT, int SHIFT>
INLINE void unit(const struct decode &d, struct decode_sums &s, const uint32_t *words,
                 const struct dequant_bias &bias, uint32_t pairs, const uint32_t (&x_at)[MT],
                 uint32_t x_plane)
{
    enum { STEP_WORDS = IS_Q8(FORMAT) ? 2 : 1, PIECES = PIECES_OF(FORMAT) };
    const uint32_t one = IS_BF16(FORMAT) ? 0x3f803f80 : 0x3c003c00;
    const uint32_t ones[4] = {one, one, one, one};
    uint32_t a[2][PIECES][4];
#pragma unroll
    for (int step = 0; step < 2; step++)
        if constexpr (IS_T4(FORMAT))
            dequant_t4_pairs<PIECES>(a[step], words[step], pairs);
        else
            integers<FORMAT>(a[step][0], words + step * STEP_WORDS, bias,
                             SHIFT == QNI_CUDA_SHIFT_ZERO);
#pragma unroll
    for (int i = 0; i < MT; i++) {
        int32_t p = 0;
        do {
            uint32_t x[4];
            ptx_ldmatrix4(x, x_at[i] + (uint32_t)p * x_plane);
#pragma unroll
            for (int step = 0; step < 2; step++) {
#pragma unroll
                for (int piece = 0; piece < PIECES; piece++)
                    product<FORMAT>(s.products[i], a[step][piece], x[2 * step], x[2 * step + 1]);
                if (SHIFT == QNI_CUDA_SHIFT_OFFSET)
                    product<FORMAT>(s.x[i], ones, x[2 * step], x[2 * step + 1]);
            }
        } while ((FORMAT & PLANES) != 0 && ++p < d.x.planes);
    }
}

/* Scales what has been summed. table: the lane's pair of scales. */
template <int MT, int SHIFT>
INLINE void scale_sums(const struct decode &d, float (&all)[MT][4], struct decode_sums &s,
                       const uint8_t *table)
{
    const float2 scale = pair_at(table, d.scale_is_f16);
    float2 offset = make_float2(0.0f, 0.0f);
    if (SHIFT == QNI_CUDA_SHIFT_OFFSET)
        offset = pair_at(table + d.rows * d.row_bytes, d.scale_is_f16);
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            all[i][j] = fmaf(s.products[i][j], j < 2 ? scale.x : scale.y, all[i][j]);
            if (SHIFT == QNI_CUDA_SHIFT_OFFSET)
                all[i][j] = fmaf(s.x[i][j], j < 2 ? offset.x : offset.y, all[i][j]);
        }
    s = {};
}

/* Where a lane finds its part of a chunk. */
struct decode_lane {
    const uint8_t *codes, *table, *zero;
    uint32_t pairs; /* T4 */
};

/* A chunk: 512 positions of 4 bits or 256 of 8, two blocks side by side so that their chains of
 * products overlap. FINE: a row of tables for each unit; else for two or more. */
template <int FORMAT, int MT, int SHIFT, int FINE>
INLINE void chunk(const struct decode &d, float (&all)[MT][4], const struct decode_lane &in,
                  const uint32_t (&x_at)[MT], uint32_t x_plane, const struct dequant_bias &none)
{
    enum { BLOCK = IS_Q8(FORMAT) ? 1024 : 512, BLOCKS = DECODE_CHUNK / BLOCK };
#pragma unroll 2
    for (int b = 0; b < BLOCKS; b += 2) {
        uint32_t words[2][BLOCK / 128];
        struct decode_sums s[2] = {};
        struct dequant_bias bias[2] = {none, none};
#pragma unroll
        for (int i = 0; i < BLOCK / 256; i++)
            *(uint4 *)(words[0] + 4 * i) = *(const uint4 *)(in.codes + b * BLOCK + i * 512);
#pragma unroll
        for (int h = 0; h < 2; h++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const int32_t at = ((2 * (b + e) + (FINE ? h : 0)) * d.table_step) & -d.row_bytes;
                if (SHIFT == QNI_CUDA_SHIFT_ZERO && (FINE || h == 0)) {
                    const char2 z = *(const char2 *)(in.zero + (d.scale_is_f16 ? at / 2 : at / 4));
                    bias[e] = bias_of<FORMAT>(z.x, z.y);
                }
                uint32_t x[MT];
#pragma unroll
                for (int i = 0; i < MT; i++)
                    x[i] = x_at[i] + (uint32_t)((b + e) * 128 + h * 64);
                unit<FORMAT, MT, SHIFT>(d, s[e], words[e] + h * (BLOCK / 256), bias[e], in.pairs, x,
                                        x_plane);
                if (FINE || h == 1)
                    scale_sums<MT, SHIFT>(d, all, s[e], in.table + at);
            }
    }
}

/* What a warp has of one panel, to its place in shared memory: [row of x][16 outputs], rows 20
 * apart so that lanes meet in no bank. */
template <int MT>
INLINE void put_sums(float (&all)[MT][4], float *to, int32_t m, bool add, int32_t lane)
{
    const int32_t g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < MT; i++)
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int32_t row = i * 8 + 2 * t + (j & 1);
            float *const at = to + row * 20 + g + (j >> 1) * 8;
            if (row < m)
                *at = add ? *at + all[i][j] : all[i][j];
            all[i][j] = 0.0f;
        }
}

/* Apart, so that its polynomials cost the fast path no register. */
static __device__ __noinline__ void store_any(const struct qni_cuda_sink *out, int64_t row,
                                              int32_t j, int32_t expert, float v)
{
    epilogue_store(*out, epilogue_row_of(*out, row), j, expert, v);
}

/* Adds what the warps have of each output, in their order, and stores it. */
INLINE void finish(const struct decode &d, const struct qni_cuda_sink &out, const float *sums,
                   const struct decode_rows &rows, int32_t first, int32_t count, int32_t part,
                   int32_t expert)
{
    const int32_t lines = rows.m * d.stacked;
    const int32_t magic = count == d.share ? d.share_magic : d.more_magic;
    const int32_t m_magic = rows.m == d.m ? d.m_magic : (int32_t)(0xffffffffu / (uint32_t)rows.m);
#pragma unroll 1
    for (int32_t i = (int32_t)threadIdx.x; i < count * rows.m * 16; i += DECODE_THREADS) {
        const int32_t pr = i >> 4, p = decode_divide((uint32_t)pr, (uint32_t)rows.m, m_magic);
        const int32_t r = pr - p * rows.m, o = (first + p) * 16 + (i & 15);
        const int32_t begin = decode_divide((uint32_t)(p * DECODE_WARPS), (uint32_t)count, magic);
        const int32_t end =
            decode_divide((uint32_t)((p + 1) * DECODE_WARPS + count - 1), (uint32_t)count, magic);
        const float *at = sums + ((begin + p) * lines + r) * 20 + (i & 15);
        float v = 0.0f;
#pragma unroll 4
        for (int32_t w = begin; w < end; w++, at += lines * 20)
            v += *at;
        for (int32_t q = 1; q < d.stacked; q++) { /* the lower planes */
            at -= (end - begin) * lines * 20 - rows.m * 20;
            for (int32_t w = begin; w < end; w++, at += lines * 20)
                v += *at;
        }
        const int64_t row = d.row + (rows.index != NULL ? rows.index[r] : r);
        if (o >= d.n)
            continue;
        if (out.is_plain)
            epilogue_round(out, row * out.stride[2] + part * d.n + o, v);
        else
            store_any(&out, row, part * d.n + o, expert, v);
    }
}

template <int FORMAT, int MT, int SHIFT, int FINE>
static __global__ void __launch_bounds__(DECODE_THREADS, MT == 1 ? 2 : 1)
    decode_float(const __grid_constant__ struct decode d,
                 const __grid_constant__ struct qni_cuda_sink out,
                 const __grid_constant__ struct qni_cuda_experts experts)
{
    enum { UNITS = DECODE_CHUNK / (IS_Q8(FORMAT) ? 512 : 256), POSITIONS = UNITS * 32 };
    extern __shared__ __align__(128) uint8_t shared[];
    const int32_t lane = (int32_t)threadIdx.x & 31;
    const int32_t warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x >> 5, 0);
    const int32_t cta = (int32_t)blockIdx.y, count = d.share + (cta < d.more);
    const int32_t first = cta * d.share + min(cta, d.more);
    const uint32_t x_bar = ptx_shared(shared), bars = x_bar + 16 + (uint32_t)(warp * 64);
    const uint8_t *const ring_from = shared + d.at_ring + warp * d.depth * d.slot_bytes;
    const uint32_t ring = ptx_shared(ring_from);
    const uint8_t *blob = d.blob;
    struct decode_rows rows = {NULL, 0, d.m};
    int32_t part = 0, expert = 0;
    const struct decode_run run = decode_run_of(count, warp);

#if __CUDA_ARCH__ >= 900
    if (lane < d.depth)
        decode_bar_init(bars + 8 * (uint32_t)lane, 1);
    if (threadIdx.x == 0)
        decode_x_bar_init(d, x_bar);
    decode_bar_fence();
    __syncwarp();
#endif
    if (d.routes.tiles != NULL) { /* which weights, the launch before this one may have decided */
        ptx_dependency_wait();
        const int32_t *const tile = d.routes.tiles + 3 * blockIdx.x;
        expert = tile[0];
        rows.m = tile[2];
        if (rows.m == 0 || expert < experts.first || expert >= experts.first + experts.n)
            return;
        blob = experts.blob[expert - experts.first];
        rows.index = d.routes.rows + tile[1];
    } else {
        part = (int32_t)blockIdx.x;
        rows.base = part * d.x.part_rows;
    }
#if __CUDA_ARCH__ >= 900
    if (d.cluster > 1)
        decode_cluster_arrive();
#endif
    const int32_t panel = part * d.panels + first, lines = rows.m * d.stacked;
    struct decode_pair pair = {};
    if constexpr (IS_T4(FORMAT)) {
        /* nvcc 13.0 may take a pointer chosen between two parameters for always the second. */
        asm volatile("" : "+l"(blob));
        pair = pair_of((const float *)(blob + d.table));
    }
    struct decode_walk f;
    decode_walk_begin<UNITS>(d, blob, run, panel, 0, f);
    float *const sums = (float *)(shared + d.at_sums);
    /* Warps and panels share places where runs meet: one less than both. x lies right behind, and
     * the other CTA of a cluster may be sending it already. */
    if (d.stretch < d.chunks || d.chunks < DECODE_WARPS)
        for (int32_t i = (int32_t)threadIdx.x; i < (DECODE_WARPS + count - 1) * lines * 20;
             i += DECODE_THREADS)
            sums[i] = 0.0f;
    __syncthreads();
    /* x first, in whose place in the queue weights would make it wait; but weights first where x is
     * not there yet. */
    const bool x_first = !d.pdl || d.routes.tiles != NULL;
#pragma unroll 1
    for (int32_t turn = 0; turn < 2; turn++)
        if ((turn == 0) == x_first) {
#if __CUDA_ARCH__ >= 900
            if (d.cluster > 1)
                decode_cluster_wait();
#endif
            decode_x_ask<2>(d, rows, 0, min(d.stretch, d.chunks) * POSITIONS, shared, x_bar, warp,
                            lane);
        } else {
#pragma unroll 1
            for (int32_t i = 0; i < d.depth; i++)
                decode_fetch<UNITS>(d, blob, run, panel, f, ring + (uint32_t)(i * d.slot_bytes),
                                    bars + 8 * (uint32_t)i, lane);
            ptx_dependents_launch();
            ptx_dependency_wait();
        }
    const struct dequant_bias bias = bias_of<FORMAT>(0, 0);
    float times = 1.0f;
    if constexpr (IS_T4(FORMAT)) {
        times = put_pair<FORMAT>(pair, shared + DECODE_AT_TABLE);
        __syncthreads();
    }
    const uint32_t pairs = ptx_shared(shared) + DECODE_AT_TABLE +
                           (uint32_t)(lane * DEQUANT_PAIR_BYTES(PIECES_OF(FORMAT)) % 128);
    float all[MT][4] = {};
    uint32_t row_at[MT];
#pragma unroll
    for (int i = 0; i < MT; i++)
        row_at[i] = ptx_shared(shared) + d.at_x + min(i * 8 + (lane & 7), lines - 1) * d.x_stride +
                    (lane >> 3) * 16;
    const int32_t g = lane >> 2;
    const uint8_t *const codes = ring_from + lane * 16;
    const uint8_t *const table = ring_from + DECODE_CHUNK + g * (d.scale_is_f16 ? 4 : 8);
    const uint8_t *const zero = ring_from + DECODE_CHUNK + d.rows * d.row_bytes + g * 2;
    int32_t stage = 0, parity = 0, x_parity = 0;
#pragma unroll 1
    for (int32_t at = 0; at < d.chunks; at += d.stretch) {
        const int32_t len = min(d.stretch, d.chunks - at);
        if (at > 0) {
            decode_x_free(d);
            decode_x_ask<2>(d, rows, at * POSITIONS, len * POSITIONS, shared, x_bar, warp, lane);
        }
        int32_t c = decode_run_first(run, len), left = decode_run_chunks(run, len);
        float *to = sums + (warp + (int32_t)run.p_begin) * lines * 20;
        decode_x_wait(x_bar, x_parity);
        x_parity ^= 1;
#pragma unroll 1
        while (left > 0) {
#if __CUDA_ARCH__ >= 900
            decode_bar_wait(bars + 8 * (uint32_t)stage, parity);
#else
            if (d.depth == 1)
                ptx_copies_wait<0>();
            else
                ptx_copies_wait<DECODE_MIN_DEPTH - 1>();
            __syncwarp();
#endif
            const int32_t slot = stage * d.slot_bytes;
            const struct decode_lane in = {codes + slot, table + slot, zero + slot, pairs};
            uint32_t x_at[MT];
#pragma unroll
            for (int i = 0; i < MT; i++)
                x_at[i] = row_at[i] + (uint32_t)(c * (POSITIONS * 2));
            chunk<FORMAT, MT, SHIFT, FINE>(d, all, in, x_at, (uint32_t)(rows.m * d.x_stride), bias);
            __syncwarp();
            decode_fetch<UNITS>(d, blob, run, panel, f, ring + (uint32_t)slot,
                                bars + 8 * (uint32_t)stage, lane);
            if (++stage == d.depth) {
                stage = 0;
                parity ^= 1;
            }
            left--;
            if (++c == len || left == 0) {
                if (IS_T4(FORMAT) && PIECES_OF(FORMAT) > 1)
#pragma unroll
                    for (int i = 0; i < MT; i++)
#pragma unroll
                        for (int j = 0; j < 4; j++)
                            all[i][j] *= times;
                put_sums<MT>(all, to, lines, at > 0, lane);
                to += lines * 20;
                c = 0;
            }
        }
    }
    __syncthreads();
    finish(d, out, sums, rows, first, count, part, expert);
}

/* ---- launches -------------------------------------------------------------------------------- */

/* CTAs that share the loads of x: what L2 delivers is not much more than what memory does, and with
 * m rows of f16 each CTA wants m / 4 bytes of x for each byte of a panel of 4 bits. */
static int32_t cluster_for(const struct decode *d, const struct qni_cuda_launch *launch)
{
    return launch->sm == 90 && d->m * d->x.planes > 4 ? 2 : 1;
}
/* CTAs for the panels of a part or of a tile. A tile of an expert: enough chunks for each warp to
 * be worth the way in and out; else as many as there are multiprocessors. */
static int32_t ctas_for(const struct decode *d, const struct qni_cuda_product *p,
                        const struct qni_cuda_launch *launch)
{
    if (p->routes.tiles != NULL) {
        const int32_t each = (4 * DECODE_WARPS + d->chunks - 1) / d->chunks;
        return (d->panels + each - 1) / each;
    }
    return (launch->multiprocessors + p->w.parts - 1) / p->w.parts;
}

/* mr: rows of a tile. */
template <int FORMAT, int MT, int SHIFT>
static int32_t launch_fine(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                           const struct qni_cuda_launch *launch, int32_t mr)
{
    enum { UNITS = DECODE_CHUNK / (IS_Q8(FORMAT) ? 512 : 256) };
    struct decode d;
    decode_plan(&d, p, launch, UNITS, mr);
    if (IS_T4(FORMAT)) {
        d.table = p->w.table;
        d.at_ring = DECODE_AT_TABLE + DEQUANT_PAIRS_BYTES;
    }
    d.stacked = (FORMAT & PLANES) == 0 ? p->x.planes : 1;
    if (!decode_plan_shared(&d, launch, ctas_for(&d, p, launch), cluster_for(&d, launch), UNITS, 2))
        return cudaErrorInvalidConfiguration;
    /* One way of scaling is enough where speed is not decided by it. */
    enum { COARSE = (FORMAT & PLANES) == 0 && SHIFT != QNI_CUDA_SHIFT_OFFSET ? 0 : 1 };
    const void *const kernel = d.rows == UNITS
                                   ? (const void *)decode_float<FORMAT, MT, SHIFT, 1>
                                   : (const void *)decode_float<FORMAT, MT, SHIFT, COARSE>;
    return decode_launch(kernel, &d, p, experts, launch);
}
template <int FORMAT, int MT>
static int32_t launch_shift(const struct qni_cuda_product *p,
                            const struct qni_cuda_experts *experts,
                            const struct qni_cuda_launch *launch, int32_t mr)
{
    if constexpr ((FORMAT & (E4M3 | T4)) == 0) { /* those have none: select.c */
        if (p->w.shift == QNI_CUDA_SHIFT_OFFSET)
            return launch_fine<FORMAT, MT, QNI_CUDA_SHIFT_OFFSET>(p, experts, launch, mr);
        if (p->w.shift == QNI_CUDA_SHIFT_ZERO)
            return launch_fine<FORMAT, MT, QNI_CUDA_SHIFT_ZERO>(p, experts, launch, mr);
    }
    return launch_fine<FORMAT, MT, QNI_CUDA_SHIFT_NONE>(p, experts, launch, mr);
}
template <int FORMAT, int MT>
static int32_t launch_rows(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                           const struct qni_cuda_launch *launch)
{
    enum { MANY = IS_BF16(FORMAT) ? FORMAT | PLANES : FORMAT, MR = 8 * MT };
    if (p->x.planes == 1)
        return launch_shift<FORMAT, MT>(p, experts, launch, MR);
    const int64_t lines = (p->m < MR ? p->m : (int64_t)MR) * p->x.planes;
    return lines <= 8    ? launch_shift<FORMAT, 1>(p, experts, launch, MR)
           : lines <= 16 ? launch_shift<FORMAT, 2>(p, experts, launch, MR)
                         : launch_shift<MANY, MT>(p, experts, launch, MR);
}

/* More rows than the kernel holds: one launch after another, the later ones with weights that may
 * still be in the second level cache. */
template <int FORMAT, int MT>
static int32_t launch(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                      const struct qni_cuda_launch *launch)
{
    enum { ROWS = 8 * MT };
    if (p->routes.tiles != NULL || p->m <= ROWS)
        return launch_rows<FORMAT, MT>(p, experts, launch);
    int32_t status = 0;
    for (int64_t row = 0; row < p->m && status == 0; row += ROWS) {
        struct qni_cuda_product some = *p;
        some.m = p->m - row < ROWS ? p->m - row : (int32_t)ROWS;
        some.row += row;
        some.x.a = (const uint8_t *)p->x.a + row * p->x.lda;
        status = launch_rows<FORMAT, MT>(&some, experts, launch);
    }
    return status;
}

#define QNI_DECODE_ROWS(name, format, mt)                                                          \
    extern "C" int32_t name(const struct qni_cuda_product *p,                                      \
                            const struct qni_cuda_experts *experts,                                \
                            const struct qni_cuda_launch *how)                                     \
    {                                                                                              \
        return launch<format, mt>(p, experts, how);                                                \
    }

#undef INLINE
#endif
