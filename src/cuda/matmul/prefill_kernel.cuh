/* SPDX-License-Identifier: Apache-2.0 */
/* The prefill kernel itself, how it is launched and which of its forms is: prefill_sm90a.cu tells
 * what it does. */
#ifndef QNI_CUDA_MATMUL_PREFILL_KERNEL_CUH
#define QNI_CUDA_MATMUL_PREFILL_KERNEL_CUH

#include "../epilogue.cuh"
#include "prefill.cuh"
#include "prefill_feed.cuh"
#include "prefill_round.cuh"
#include "prefill_short.cuh"
#include "prefill_sum.cuh"
#include "prefill_teams.cuh"

#include <math.h>
#include <string.h>

namespace
{

/* ---- what leaves ----------------------------------------------------------------------------- */

__device__ __forceinline__ void store_transposed(uint32_t to, uint32_t v0, uint32_t v1, uint32_t v2,
                                                 uint32_t v3)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                 "r"(v0), "r"(v1), "r"(v2), "r"(v3)
                 : "memory");
}

/* Which CTA of a cluster finishes a chunk of tokens of a tile that both have worked on. */
__device__ __forceinline__ bool is_ours(const place &at, int chunk)
{
    return !at.split || chunk % 2 == (int)blockIdx.x % 2;
}

/* Row i of the tile, for the sink. */
template <class F>
__device__ __forceinline__ int64_t sink_row(const arguments &a, const place &at, int i)
{
    const int row = at.first + i;
    return a.p.row + (F::general && a.p.routes.rows != NULL ? a.p.routes.rows[row] : row);
}

/* Tokens that leave at a time. */
template <class F> __host__ __device__ constexpr int chunk_of()
{
    return F::tokens < CHUNK ? F::tokens : CHUNK;
}

/* f16 or bf16 rows that 16-byte stores fit: a warpgroup turns 32 tokens x 64 outputs at a time
 * around in shared memory, rows of 128 bytes whose 16-byte pieces are swizzled by the token. */
template <class F>
__device__ __forceinline__ void store_plain(const arguments &a, const place &at, int wg,
                                            uint32_t chunk, const float (&acc)[F::tokens / 2])
{
    constexpr int CHUNK = chunk_of<F>();
    const int thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const bool bf16 = a.p.out.y_dtype == QN_BF16;
    const int output = at.panel * QNI_CUDA_PANEL + wg * 64 + thread % 8 * 8;
#pragma unroll
    for (int c = 0; c < F::tokens / CHUNK; c++) {
        if (c * CHUNK >= at.rows)
            break;
        if (!is_ours(at, c))
            continue;
        named_sync(1 + wg, 128);
#pragma unroll
        for (int i = 0; i < CHUNK / 8; i += 2) {
            const float *v = acc + (c * (CHUNK / 8) + i) * 4;
            const int token = i * 8 + lane / 16 * 8 + lane % 8;
            const int piece = (warp * 2 + lane / 8 % 2) ^ (token & 7);
            store_transposed(chunk + token * 128 + piece * 16, epilogue_pair(v[0], v[1], bf16),
                             epilogue_pair(v[2], v[3], bf16), epilogue_pair(v[4], v[5], bf16),
                             epilogue_pair(v[6], v[7], bf16));
        }
        named_sync(1 + wg, 128);
#pragma unroll
        for (int i = 0; i < CHUNK * 8; i += 128) {
            const int token = (i + thread) / 8, piece = thread % 8;
            uint32_t v[4];
            load16(chunk + token * 128 + (piece ^ (token & 7)) * 16, v);
            if (c * CHUNK + token < at.rows && output < a.p.w.n) {
                const int64_t row = sink_row<F>(a, at, c * CHUNK + token);
                uint16_t *const y = (uint16_t *)a.p.out.y + row * a.p.out.stride[2] +
                                    (int64_t)at.part * a.p.w.n + output;
                *(uint4 *)y = make_uint4(v[0], v[1], v[2], v[3]);
            }
        }
    }
}

/* Sums to rows of f32 [token][output], ld elements apart. */
template <int COUNT> __device__ __forceinline__ void spread(uint32_t to, int ld, const float *acc)
{
    const int lane = (int)threadIdx.x % 32, warp = (int)threadIdx.x % 128 / 32;
    const uint32_t at = to + (uint32_t)(lane % 4 * 2 * ld + warp * 16 + lane / 4) * 4;
#pragma unroll
    for (int i = 0; i < COUNT / 8; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
            asm volatile(
                "st.shared.f32 [%0], %1;" ::"r"(at + ((i * 8 + j % 2) * ld + j / 2 * 8) * 4),
                "f"(acc[i * 4 + j])
                : "memory");
}

/* Rows [row, row + rows) of the tile, `outputs` outputs from `output` on, from v[row][output]. All
 * threads go round equally often. */
template <class F>
__device__ __forceinline__ void leave(const arguments &a, const place &at, const float *v, int ld,
                                      int row, int rows, int output, int outputs, int thread,
                                      int threads)
{
    struct qni_cuda_sink less = a.p.out;
    less.act = QN_ACT_NONE;
    less.is_image = 0;
    less.has_more = 0;
    const struct qni_cuda_sink &out = F::general ? a.p.out : less;
    const bool by_row = out.stride[3] == 1; /* neighbours write along the memory of y */
    const bool wide = by_row && out.y_dtype != QN_I8 && out.y_dtype != QN_U8;
    const int quads = outputs / 4;
#pragma unroll 1
    for (int i = 0; i < rows * quads; i += threads) {
        const int k = i + thread;
        const int r = by_row ? k / quads : k % rows, j = by_row ? k % quads : k / rows;
        const int n = output + 4 * j, first = at.part * a.p.w.n + n;
        if (k >= rows * quads || n >= a.p.w.n)
            continue;
        const struct epilogue_row place_of_row = epilogue_row_of(out, sink_row<F>(a, at, row + r));
        float4 u = *(const float4 *)(v + r * ld + 4 * j);
        float *const e = &u.x;
        const int many = min(4, a.p.w.n - n);
        const int64_t to = place_of_row.y + (int64_t)first * out.stride[3];
        if (F::integers && out.y_dtype == QN_I32) {
#pragma unroll
            for (int c = 0; c < 4; c++)
                if (c < many)
                    ((int32_t *)out.y)[to + c * out.stride[3]] = __float_as_int(e[c]);
            continue;
        }
        if (!out.is_plain)
#pragma unroll
            for (int c = 0; c < 4; c++)
                e[c] = epilogue_steps(out, place_of_row, first + min(c, many - 1), at.expert, e[c]);
        if (wide && many == 4 && epilogue_store4(out, to, e))
            continue;
        if (F::integers && by_row && !wide && many == 4 && ((uintptr_t)out.y + to) % 4 == 0) {
            const int lo = out.y_dtype == QN_U8 ? 0 : -128, hi = lo + 255;
            uint32_t word = 0;
#pragma unroll
            for (int c = 0; c < 4; c++)
                word |= (uint32_t)(epilogue_code(e[c], out.y_inv, out.y_zero, lo, hi) & 255)
                        << (8 * c);
            *(uint32_t *)((uint8_t *)out.y + to) = word;
            continue;
        }
#pragma unroll
        for (int c = 0; c < 4; c++)
            if (c < many)
                epilogue_round(out, to + c * out.stride[3], e[c]);
    }
}

/* Any y: through f32 in shared memory. */
template <class F>
__device__ __forceinline__ void store_any(const arguments &a, const place &at, int wg,
                                          uint32_t chunk, const float *v,
                                          const float (&acc)[F::tokens / 2])
{
    constexpr int CHUNK = chunk_of<F>();
    const int output = at.panel * QNI_CUDA_PANEL + wg * 64;
#pragma unroll 1
    for (int c = 0; c < F::tokens / CHUNK; c++) {
        if (c * CHUNK >= at.rows)
            break;
        if (!is_ours(at, c))
            continue;
        named_sync(1 + wg, 128);
#pragma unroll
        for (int k = 0; k < F::tokens / CHUNK; k++)
            if (k == c)
                spread<CHUNK>(chunk, LD_CHUNK, acc + k * CHUNK / 2);
        named_sync(1 + wg, 128);
        leave<F>(a, at, v, LD_CHUNK, c * CHUNK, min(at.rows - c * CHUNK, (int)CHUNK), output, 64,
                 (int)threadIdx.x % 128, 128);
    }
}

/* The CTAs of a cluster have sums over half of the positions each: a thread sends those of chunks
 * that the other finishes to the same thread there, whose ring is at rest by then, and adds what it
 * gets. Two numbers: their order is none. */
__device__ __forceinline__ uint32_t bits_of(float v)
{
    return __float_as_uint(v);
}
__device__ __forceinline__ uint32_t bits_of(int32_t v)
{
    return (uint32_t)v;
}
__device__ __forceinline__ void add_bits(float &v, uint32_t bits)
{
    v += __uint_as_float(bits);
}
__device__ __forceinline__ void add_bits(int32_t &v, uint32_t bits)
{
    v += (int32_t)bits;
}
template <class F, class Sum>
__device__ __forceinline__ void exchange(uint32_t sums, Sum (&acc)[F::tokens / 2])
{
    constexpr int EACH = CHUNK / 2; /* numbers of a thread */
    const uint32_t rank = blockIdx.x % 2, at = sums + threadIdx.x * 16;
    uint32_t there;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(at), "r"(rank ^ 1));
    cluster_sync();
#pragma unroll
    for (int c = 0; c < F::tokens / CHUNK; c++)
        if (c % 2 != (int)rank)
#pragma unroll
            for (int i = 0; i < EACH; i += 4)
                asm volatile("st.shared::cluster.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(
                                 there + (c / 2 * EACH + i) * CONSUMERS * 4),
                             "r"(bits_of(acc[c * EACH + i])), "r"(bits_of(acc[c * EACH + i + 1])),
                             "r"(bits_of(acc[c * EACH + i + 2])),
                             "r"(bits_of(acc[c * EACH + i + 3]))
                             : "memory");
    cluster_sync();
#pragma unroll
    for (int c = 0; c < F::tokens / CHUNK; c++)
        if (c % 2 == (int)rank)
#pragma unroll
            for (int i = 0; i < EACH; i += 4) {
                uint32_t v[4];
                load16(at + (c / 2 * EACH + i) * CONSUMERS * 4, v);
#pragma unroll
                for (int j = 0; j < 4; j++)
                    add_bits(acc[c * EACH + i + j], v[j]);
            }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <class F>
__device__ __forceinline__ void prepare_lane(consumer<F> &c, const arguments &a, const ring &r,
                                             int wg)
{
    const int lane = (int)threadIdx.x % 32, panel = (int)threadIdx.x / 32 % PANELS;
    c.r = r;
    c.codes_at = keep(r.data + F::x_bytes + (uint32_t)panel * F::panel_bytes + lane * 16);
    const uint32_t scale_size = a.p.w.scale_is_f16 ? 32 : 64;
    c.scale_at =
        keep(r.facts + (uint32_t)panel * F::groups * scale_size + lane / 4 * scale_size / 8);
    c.scale_other = keep(a.p.w.scale_is_f16 ? 0 : 4);
    c.scale_next = scale_size;
    c.zero_at = keep(r.facts + F::zero_at + (uint32_t)panel * F::groups * 16 + lane / 4 * 2);
    c.has_zero = keep(a.p.w.shift == QNI_CUDA_SHIFT_ZERO);
    c.take_at = keep(r.empty + (F::stages + wg) * 8);
    c.give_at = keep(r.empty + (F::stages + 1 - wg) * 8);
    c.turn_phase = keep(wg == 0);
    c.is_first = keep(lane == 0);
    c.z.set(0, 0);
}

template <class F>
__device__ __forceinline__ void consume(const arguments &a, const ring &r, uint8_t *chunks,
                                        const dequant_table *table)
{
    const int wg = (int)threadIdx.x / 128 % GROUPS;
    const int team = F::teams > 1 ? __shfl_sync(~0u, (int)threadIdx.x / CONSUMERS, 0) : 0;
    consumer<F> c;
    prepare_lane<F>(c, a, r, wg);
    if (F::table) {
        c.table_at = keep(shared_address(table));
        c.times = table->times;
    }
    uint8_t *const chunk = chunks + wg * F::chunk_bytes;
    const struct qni_cuda_sink &out = a.p.out;
    const bool wide = out.is_plain && out.y_dtype != QN_F32 && a.p.w.n % 8 == 0 &&
                      out.stride[2] % 8 == 0 && (uintptr_t)out.y % 16 == 0;
    place at;
    for (int round = 0; find_place<F>(a, round, at); round++) {
        if (F::general && at.rows <= 0)
            continue;
        float acc[F::tokens / 2];
        if constexpr (F::integers) {
            if constexpr (F::mode == WHOLE) {
                int32_t dot[F::tokens / 2];
                sum_one_segment<F>(c, at, dot);
                if (at.split)
                    exchange<F>(r.data, dot);
                end_one_segment<F>(a, at, (float *)chunk, dot, acc);
            } else if constexpr (F::is_short) {
                sum_short<F>(c, a, at, acc);
            } else {
                sum_segments<F>(c, a, at, (float *)chunk, acc);
            }
        }
#pragma unroll
        for (int i = 0; i < F::tokens / 2 && !F::integers; i++)
            acc[i] = 0;
        if constexpr (F::teams > 1) {
            sum_stages<F>(c, team, (at.end - at.begin) / F::blocks * a.p.x.planes, acc);
            add_teams<F>(shared_address(chunk), team, acc);
            if (team > 0) {
                if (at.split) { /* those of exchange() */
                    cluster_sync();
                    cluster_sync();
                }
                continue;
            }
        }
        if (!F::integers && at.begin < at.end) {
            if constexpr (F::integers || F::teams > 1)
                ;
            else if constexpr (F::rounding != EXACT)
                sum_rounded<F>(c, a, at, acc);
            else if constexpr (F::mode == UNITS)
                sum_units<F>(c, a, at, acc);
            else if constexpr (F::mode == WHOLE)
                sum_whole<F>(c, a, at, acc);
            else
                sum_turns<F>(c, a, at, acc);
            if constexpr (!F::integers && F::rounding == EXACT)
                if (a.p.w.shift == QNI_CUDA_SHIFT_OFFSET)
                    add_offsets<F>(a, at, (float *)chunk, acc);
        }
        if (!F::integers && at.split)
            exchange<F>(r.data, acc);
        if (wide)
            store_plain<F>(a, at, wg, shared_address(chunk), acc);
        else
            store_any<F>(a, at, wg, shared_address(chunk), (const float *)chunk, acc);
    }
}

template <class F>
__global__ void __launch_bounds__(F::threads, 1)
    prefill(const __grid_constant__ maps m, const __grid_constant__ arguments a)
{
    extern __shared__ uint8_t raw[];
    uint8_t *const begin = raw + (1024 - shared_address(raw) % 1024) % 1024;
    uint8_t *const chunks = begin + F::stages * F::stage_bytes;
    ring r;
    r.pieces = 1;
    /* from another lane: ptxas keeps what it cannot make again, and knows that all have the same */
    r.data = __shfl_sync(~0u, shared_address(begin), 0);
    r.facts = r.data + F::stages * F::stage_bytes + GROUPS * F::chunk_bytes;
    r.full = r.facts + F::stages * F::facts_bytes;
    r.empty = r.full + F::stages * 8;
    r.raw = r.empty + (F::stages + GROUPS) * 8;
    r.stage = 0;
    r.phase = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < F::stages; i++) {
            barrier_init(r.full + i * 8, F::writers);
            barrier_init(r.empty + i * 8, GROUPS * 4);
            if constexpr (F::integers && F::facts_bytes > 0)
                barrier_init(r.raw + i * 8, 1);
        }
        for (int i = 0; i < GROUPS; i++)
            barrier_init(r.empty + (F::stages + i) * 8, 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    __syncthreads();
    const dequant_table *const table =
        (const dequant_table *)(begin + (F::bytes - F::fixed) + GROUPS * F::chunk_bytes + 512);
    if constexpr (F::table) {
        const uint8_t *const blob =
            a.experts.n > 0 ? a.experts.blob[0] : a.p.w.blob; /* all alike */
        dequant_table_make((dequant_table *)table, (const float *)(blob + a.p.w.table), 16,
                           !F::bf16);
        r.pieces = __shfl_sync(~0u, table->pieces, 0);
    }
    if (a.s.pdl) {
        asm volatile("griddepcontrol.launch_dependents;");
        if (a.p.routes.tiles != NULL) /* made by the launch before */
            asm volatile("griddepcontrol.wait;" ::: "memory");
    }
    if (threadIdx.x >= F::teams * CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)F::feeder_registers));
        feed<F>(m, a, r);
        if (a.s.splits > 1 && a.s.whole + (int)blockIdx.x / 2 < a.tiles) {
            __syncwarp();
            cluster_sync(); /* those of exchange() */
            cluster_sync();
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)F::consumer_registers));
        if (a.s.pdl)
            asm volatile("griddepcontrol.wait;" ::: "memory");
        consume<F>(a, r, chunks, table);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

typedef decltype(&cuTensorMapEncodeTiled) encode_fn;

/* x as the copy engine sees it: columns, rows, parts, planes. Zeros lie around it. */
template <class F>
bool describe_rows(encode_fn encode, const struct qni_cuda_product *p, CUtensorMap *map)
{
    const struct qni_cuda_rows &x = p->x;
    const int64_t columns = x.columns > 0 ? x.columns : 1;
    const cuuint64_t size[4] = {(cuuint64_t)columns, (cuuint64_t)p->m, (cuuint64_t)p->w.parts,
                                (cuuint64_t)x.planes};
    const int64_t part = p->w.parts > 1 ? x.part_rows * x.lda : x.lda;
    const cuuint64_t stride[3] = {(cuuint64_t)x.lda, (cuuint64_t)part,
                                  (cuuint64_t)(x.planes > 1 ? x.plane_stride : x.lda)};
    const cuuint32_t box[4] = {F::integers ? 2 * QNI_CUDA_BLOCK : QNI_CUDA_BLOCK, F::tokens, 1, 1};
    const cuuint32_t step[4] = {1, 1, 1, 1};
    const CUtensorMapDataType type = F::integers ? CU_TENSOR_MAP_DATA_TYPE_UINT8
                                     : F::bf16   ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                                 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    return encode(map, type, 4, (void *)(uintptr_t)x.a, size, stride, box, step,
                  CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* A section of the blob: `bytes` of each panel, panels, parts; boxes of so many words and the
 * panels of a tile. Blobs of experts are parts that begin every BLOB_STEP bytes, one upon the
 * other. */
bool describe_section(encode_fn encode, const struct qni_cuda_weights &w, const uint8_t *lowest,
                      size_t section, int64_t bytes, int word, int words, CUtensorMap *map)
{
    const cuuint64_t size[3] = {(cuuint64_t)(bytes / word), (cuuint64_t)w.panels,
                                lowest != NULL ? (cuuint64_t)INT_MAX : (cuuint64_t)w.parts};
    const cuuint64_t stride[2] = {
        (cuuint64_t)bytes, lowest != NULL ? (cuuint64_t)BLOB_STEP : (cuuint64_t)(bytes * w.panels)};
    const cuuint32_t box[3] = {(cuuint32_t)words, PANELS, 1}, step[3] = {1, 1, 1};
    return encode(map, word == 8 ? CU_TENSOR_MAP_DATA_TYPE_INT64 : CU_TENSOR_MAP_DATA_TYPE_INT32, 3,
                  (void *)(uintptr_t)((lowest != NULL ? lowest : w.blob) + section), size, stride,
                  box, step, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_NONE,
                  CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
}

/* A function of the driver, without linking it. */
int32_t find_entry(const char *name, void **entry)
{
    cudaDriverEntryPointQueryResult found;
    const cudaError_t e =
        cudaGetDriverEntryPointByVersion(name, entry, 12000, cudaEnableDefault, &found);
    if (e != cudaSuccess || found != cudaDriverEntryPointSuccess)
        return (int32_t)(e != cudaSuccess ? cudaGetLastError() : cudaErrorNotSupported);
    return 0;
}

template <class F>
int32_t describe(const struct qni_cuda_product *p, const uint8_t *lowest, maps *m)
{
    void *entry = NULL, *pixels = NULL;
    int32_t unknown = find_entry("cuTensorMapEncodeTiled", &entry);
    if (unknown == 0 && p->x.pixels.is_on)
        unknown = find_entry("cuTensorMapEncodeIm2col", &pixels);
    if (unknown != 0)
        return unknown;
    const encode_fn encode = (encode_fn)entry;
    const struct qni_cuda_weights &w = p->w;
    const int scale = w.scale_is_f16 ? 32 : 64;
    bool ok = p->x.pixels.is_on ? describe_pixels<F>((encode_pixels_fn)pixels, p->x, &m->x)
                                : describe_rows<F>(encode, p, &m->x);
    ok = ok && describe_section(encode, w, lowest, w.codes, (int64_t)w.units / 2 * F::block_bytes,
                                F::bits, F::blocks * 128, &m->codes);
    if (F::integers && F::mode != WHOLE && has_sums<F::reads>(p))
        ok = ok && describe_section(encode, w, lowest, w.sums, (int64_t)w.n_segments * 64, 4,
                                    F::groups * 16, &m->sums);
    if (F::mode != WHOLE)
        ok = ok && describe_section(encode, w, lowest, w.scale, (int64_t)w.n_groups * scale, 4,
                                    F::groups * scale / 4, &m->scale);
    if (F::mode != WHOLE && w.shift == QNI_CUDA_SHIFT_ZERO)
        ok = ok && describe_section(encode, w, lowest, w.zero, (int64_t)w.n_groups * 16, 4,
                                    F::groups * 4, &m->zero);
    if ((F::rounding == BY_F32 || (F::integers && F::mode != WHOLE)) &&
        w.shift == QNI_CUDA_SHIFT_OFFSET)
        ok = ok && describe_section(encode, w, lowest, w.offset, (int64_t)w.n_groups * scale, 4,
                                    F::groups * scale / 4, &m->offset);
    return ok ? 0 : (int32_t)cudaErrorInvalidValue;
}

/* band: 8 tiles of 128 rows of 4096 halves are 8 MB, which L2 keeps while all weights pass. */
template <class F> struct schedule cut(const struct qni_cuda_product *p, int machines, int splits)
{
    struct schedule s = {};
    s.token_tiles =
        p->routes.tiles != NULL ? p->routes.n_tiles : (int32_t)((p->m + F::tokens - 1) / F::tokens);
    s.output_tiles = (p->w.panels + PANELS - 1) / PANELS;
    s.band = F::tokens > 128 ? 4 : 8;
    s.splits = splits;
    const int32_t tiles = p->w.parts * s.token_tiles * s.output_tiles;
    s.whole = splits > 1 ? tiles / (machines / 2 * 2) * (machines / 2 * 2) : tiles;
    return s;
}

template <class F>
int32_t start(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
              const struct qni_cuda_launch *l, int splits)
{
    arguments a = {};
    a.p = *p;
    if (experts != NULL && experts->n > 0) {
        a.experts = *experts;
        a.lowest = experts->blob[0];
        for (int i = 1; i < experts->n; i++)
            a.lowest = experts->blob[i] < a.lowest ? experts->blob[i] : a.lowest;
    }
    a.s = cut<F>(p, l->multiprocessors, splits);
    a.s.pdl = l->pdl;
    a.tiles = p->w.parts * a.s.token_tiles * a.s.output_tiles;
    if (a.tiles == 0)
        return 0;
    maps m;
    memset(&m, 0, sizeof m);
    const int32_t described = describe<F>(p, a.lowest, &m);
    if (described != 0)
        return described;
    const auto kernel = prefill<F>;
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, F::bytes);
    if (e != cudaSuccess)
        return (int32_t)cudaGetLastError();
    const int room = l->multiprocessors / splits * splits;
    const int wanted = a.s.whole > 0 ? a.s.whole : (a.tiles - a.s.whole) * splits;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)(wanted < room ? wanted : room));
    c.blockDim = dim3(F::threads);
    c.dynamicSmemBytes = F::bytes;
    c.stream = (cudaStream_t)l->stream;
    cudaLaunchAttribute at[2] = {};
    at[0].id = cudaLaunchAttributeClusterDimension;
    at[0].val.clusterDim.x = (unsigned)splits;
    at[0].val.clusterDim.y = at[0].val.clusterDim.z = 1;
    at[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[1].val.programmaticStreamSerializationAllowed = 1;
    c.attrs = at;
    c.numAttrs = l->pdl ? 2 : 1;
    void *list[2] = {&m, &a};
    (void)cudaLaunchKernelExC(&c, (const void *)kernel, list);
    return (int32_t)cudaGetLastError();
}

/* The form that is expected to be done first, and how it is cut. Nanoseconds on an H100: a turn of
 * 128 positions of a tile; beside it a tile's begin and end; sums of a split on their way. From the
 * tables of lab/cuda/NOTES.md. */
struct choice {
    int32_t (*start)(const struct qni_cuda_product *, const struct qni_cuda_experts *,
                     const struct qni_cuda_launch *, int splits);
    int splits;
    double ns;
};
enum { TILE_NS = 3000, SPLIT_NS = 3000 };

template <class F>
void consider(struct choice &best, const struct qni_cuda_product *p,
              const struct qni_cuda_launch *l, int turn_ns)
{
    const struct schedule s = cut<F>(p, l->multiprocessors, 1);
    const double tiles = (double)p->w.parts * s.token_tiles * s.output_tiles;
    const int turns = (p->w.units + 3) / 4 * p->x.planes;
    const double each = (double)turns * turn_ns + TILE_NS;
    const double whole = ceil(tiles / l->multiprocessors) * each;
    if (best.start == NULL || whole < best.ns)
        best = {start<F>, 1, whole};
    /* A last round of so few tiles that two CTAs can work on each. */
    const double rounds = floor(tiles / l->multiprocessors);
    const double last = tiles - rounds * l->multiprocessors;
    const double cut = rounds * each + each / 2 + SPLIT_NS;
    /* Steps of f32 come in the order of segments. */
    const bool may_cut = !F::integers || F::mode == WHOLE;
    if (may_cut && p->routes.tiles == NULL && last > 0 && 2 * last <= l->multiprocessors &&
        turns >= 8 && l->multiprocessors % 2 == 0 && cut < best.ns)
        best = {start<F>, 2, cut};
}

/* Tiles of ROWS tokens; of 64, too, unless routes are cut to ROWS. */
template <int MODE, bool BF16, int BITS, int ROWS, bool GENERAL, bool TABLE>
void both(struct choice &best, const struct qni_cuda_product *p, const struct qni_cuda_launch *l,
          int ns64, int ns128)
{
    consider<form<BF16, BITS, ROWS, MODE, GENERAL, TABLE>>(best, p, l, ROWS == 64 ? ns64 : ns128);
    if (ROWS != 64 && p->routes.tiles == NULL)
        consider<form<BF16, BITS, 64, MODE, GENERAL, TABLE>>(best, p, l, ns64);
}

bool is_general(const struct qni_cuda_product *p)
{
    return p->routes.tiles != NULL || p->x.pixels.is_on || p->out.act != QN_ACT_NONE ||
           p->out.is_image || p->out.has_more;
}

template <bool BF16, int BITS, int ROWS, bool GENERAL, bool TABLE>
int32_t launch(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
               const struct qni_cuda_launch *l)
{
    struct choice best = {};
    if (p->m == 0 || p->w.panels == 0)
        return 0;
    constexpr bool special = !GENERAL && !TABLE; /* what does not come often has fewer forms */
    if (special && p->w.n_groups <= 1) {
        if constexpr (special) {
            both<WHOLE, BF16, BITS, ROWS, false, false>(best, p, l, 500, 690);
            if constexpr (ROWS == 128)
                consider<form<BF16, BITS, 256, WHOLE, false>>(best, p, l, 1360);
        }
    } else if (p->w.n_groups <= 1 || p->w.group_units % 4 == 0) {
        both<PAIRS, BF16, BITS, ROWS, GENERAL, TABLE>(best, p, l, 550, 700);
        if constexpr (ROWS == 128 && special)
            consider<form<BF16, BITS, 96, PAIRS, false>>(best, p, l, 630);
        if constexpr (special) {
            consider<form_of_teams<BF16, BITS, 64>>(best, p, l, 450);
            consider<form_of_teams<BF16, BITS, 32>>(best, p, l, 320);
        }
    } else if (p->w.group_units % 2 == 0) {
        both<BLOCKS, BF16, BITS, ROWS, GENERAL, TABLE>(best, p, l, 800, 1120);
    } else {
        both<UNITS, BF16, BITS, ROWS, GENERAL, TABLE>(best, p, l, 950, 1550);
    }
    return best.start(p, experts, l, best.splits);
}

/* Weights rounded on the way: nothing ends with a group, so tiles of 256 tokens, too. */
template <bool BF16, int BITS, int MODE, bool GENERAL, int ROUNDING>
int32_t launch_rounded(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                       const struct qni_cuda_launch *l)
{
    struct choice best = {};
    if (p->m == 0 || p->w.panels == 0)
        return 0;
    consider<form<BF16, BITS, 128, MODE, GENERAL, false, ROUNDING>>(best, p, l, 740);
    if (p->routes.tiles == NULL) { /* else tiles are cut */
        consider<form<BF16, BITS, 64, MODE, GENERAL, false, ROUNDING>>(best, p, l, 500);
        consider<form<BF16, BITS, 256, MODE, GENERAL, false, ROUNDING>>(best, p, l, 1330);
    }
    return best.start(p, experts, l, best.splits);
}

/* One product of f16 for a pair: see prefill_round.cuh. */
template <int BITS>
int32_t launch_rounded_f16(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
                           const struct qni_cuda_launch *l)
{
    const bool by_f16 =
        p->w.scale_is_f16 && p->w.exponent >= 0 && p->w.shift != QNI_CUDA_SHIFT_OFFSET;
    const bool pairs = p->w.n_groups <= 1 || p->w.group_units % 4 == 0;
    if (!by_f16)
        return launch_rounded<false, BITS, UNITS, true, BY_F32>(p, experts, l);
    if (is_general(p))
        return launch_rounded<false, BITS, UNITS, true, BY_F16>(p, experts, l);
    return pairs ? launch_rounded<false, BITS, PAIRS, false, BY_F16>(p, experts, l)
                 : launch_rounded<false, BITS, UNITS, false, BY_F16>(p, experts, l);
}

} /* namespace */

#define QNI_PREFILL_DENSE_F16(layout, bits)                                                        \
    extern "C" int32_t qni_matmul_f16_##layout##_mr128_dense_sm90a(                                \
        const struct qni_cuda_product *product, const struct qni_cuda_experts *experts,            \
        const struct qni_cuda_launch *l)                                                           \
    {                                                                                              \
        return launch_rounded_f16<bits>(product, experts, l);                                      \
    }
#define QNI_PREFILL_DENSE_BF16(layout, bits)                                                       \
    extern "C" int32_t qni_matmul_bf16_##layout##_mr128_dense_sm90a(                               \
        const struct qni_cuda_product *product, const struct qni_cuda_experts *experts,            \
        const struct qni_cuda_launch *l)                                                           \
    {                                                                                              \
        return launch_rounded<true, bits, UNITS, true, BY_F32>(product, experts, l);               \
    }

/* Rows that are fetched from an image. */
#define QNI_PREFILL_IMAGE(reads, layout, rows, is_bf16, bits, is_table)                            \
    extern "C" int32_t qni_conv_##reads##_##layout##_mr##rows##_image_sm90a(                       \
        const struct qni_cuda_product *product, const struct qni_cuda_experts *experts,            \
        const struct qni_cuda_launch *l)                                                           \
    {                                                                                              \
        return launch<is_bf16, bits, rows, true, is_table>(product, experts, l);                   \
    }

#define QNI_PREFILL(reads, layout, rows, is_bf16, bits, is_table)                                  \
    extern "C" int32_t qni_matmul_##reads##_##layout##_mr##rows##_sm90a(                           \
        const struct qni_cuda_product *product, const struct qni_cuda_experts *experts,            \
        const struct qni_cuda_launch *l)                                                           \
    {                                                                                              \
        return is_general(product)                                                                 \
                   ? launch<is_bf16, bits, rows, true, is_table>(product, experts, l)              \
                   : launch<is_bf16, bits, rows, false, is_table>(product, experts, l);            \
    }

#endif
