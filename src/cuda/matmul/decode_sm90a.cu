/* SPDX-License-Identifier: Apache-2.0 */
/* 9 to 16 rows of f16 x times weights of 4 or 8 bits on Hopper: decode_sm80.cu with wgmma
 * instead of mma, which takes 16 rows in the time of 8 and leaves the schedulers to those who make
 * integers of codes (lab/cuda/NOTES.md: alone 92 to 104 cycles of a scheduler for a block of 64
 * positions instead of 145).
 *
 * Two CTAs of a cluster have a range of panels, each half of k; the two warpgroups of a CTA halve
 * that again, so that each needs a quarter of every row of x. A warp has one panel of four that its
 * warpgroup multiplies at a time. x is in shared memory as tensor copies leave it: blocks of 64
 * positions, 16 rows of 128 bytes with the swizzle that wgmma reads; rows past m are zeros.
 *
 *     y = sum of four quarters of k, always in their order; each group's sum is scaled in f32
 *
 * Left to decode_sm80.cu, whose launchers ask here first: bf16, offsets, routes, parts, and outputs
 * so few beside fours of panels that a good part of the products would be of nothing. */
#include "../decode.cuh"
#include "../decode_float.cuh"
#include "../epilogue.cuh"
#include "../wgmma.cuh"
#include "decode_sm90a.cuh"

#include <cuda.h>

#define INLINE static __device__ __forceinline__

enum { QUAD = 4, QUARTERS = 4, CLUSTER = 2, ROWS = 16 };

/* What a launch works out, beside struct decode: share, more are those of a pair of CTAs. */
struct pair_plan {
    int32_t pieces; /* that a quarter of k is cut in, where x of all of it does not fit */
    int32_t x_area; /* bytes of a warpgroup's x */
};

/* A warp's chunks in the order in which it wants them, and which panels it has: `panel` and every
 * fourth behind it, in `quads` fours. */
struct pair_walk {
    int32_t piece, quad, c, end;
    int32_t panel, quads;
};

INLINE int32_t piece_begin(const struct decode &d, const struct pair_plan &e, int32_t quarter,
                           int32_t piece)
{
    const int32_t begin = d.chunks * quarter / QUARTERS, end = d.chunks * (quarter + 1) / QUARTERS;
    return begin + (end - begin) * piece / e.pieces;
}
/* To the first chunk of the next piece that has any. */
INLINE void enter_piece(const struct decode &d, const struct pair_plan &e, int32_t quarter,
                        struct pair_walk &f)
{
    f.quad = 0;
#pragma unroll 1
    for (; f.piece < e.pieces; f.piece++) {
        f.c = piece_begin(d, e, quarter, f.piece);
        f.end = piece_begin(d, e, quarter, f.piece + 1);
        if (f.c < f.end)
            break;
    }
}
/* Asks for the chunk at f, if there is one, and goes on. */
template <int UNITS>
INLINE void ask_next(const struct decode &d, const struct pair_plan &e, int32_t quarter,
                     struct pair_walk &f, uint32_t slot, uint32_t bar, int32_t lane)
{
    if (f.piece >= e.pieces || f.quads == 0)
        return;
    if (lane == 0) {
        struct decode_walk at;
        const bool last = f.c == d.chunks - 1;
        at.s = 0;
        at.c = f.c;
        at.panel = f.panel + f.quad * QUAD;
        decode_walk_point<UNITS>(d, d.blob, at);
        if (d.in_line == 0 || (last && d.ragged))
            decode_ask_any<UNITS>(d, at, d.blob, slot, bar, lane);
        else
            decode_ask(d, at, slot, bar, last ? d.last_bytes : DECODE_CHUNK);
    }
    if (++f.c < f.end)
        return;
    f.c = piece_begin(d, e, quarter, f.piece);
    if (++f.quad == f.quads) {
        f.piece++;
        enter_piece(d, e, quarter, f);
    }
}

/* ---- x --------------------------------------------------------------------------------------- */

INLINE void copy_rows(uint32_t to, const CUtensorMap *map, int32_t column, uint32_t bar)
{
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes "
                 "[%0], [%1, {%2, %3}], [%4];" ::"r"(to),
                 "l"(map), "r"(column), "r"(0), "r"(bar)
                 : "memory");
}
/* Chunks [c, end) of x, by the four warps of the warpgroup; bar has an arrival of each. */
template <int UNITS>
INLINE void ask_x(const CUtensorMap *map, int32_t c, int32_t end, uint32_t to, uint32_t bar,
                  int32_t warp, int32_t lane)
{
    enum { BYTES = ROWS * 128 };
    const int32_t blocks = (end - c) * (UNITS / 2);
    if (lane != 0)
        return;
    decode_bar_expect(bar, (blocks + 3 - warp) / 4 * BYTES);
#pragma unroll 1
    for (int32_t b = warp; b < blocks; b += 4)
        copy_rows(to + (uint32_t)(b * BYTES), map, (c * (UNITS / 2) + b) * 64, bar);
}

/* ---- products -------------------------------------------------------------------------------- */

struct pair_lane {
    const uint8_t *codes, *table, *zero;
};

/* Two blocks of a chunk as A fragments. */
template <int FORMAT, int SHIFT, int SPAN>
INLINE void fragments(uint32_t (&a)[32], const struct decode &d, const struct pair_lane &in, int b)
{
    enum { BLOCK = IS_Q8(FORMAT) ? 1024 : 512, STEP_WORDS = IS_Q8(FORMAT) ? 2 : 1 };
    struct dequant_bias bias = bias_of<FORMAT>(0, 0);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        uint32_t words[BLOCK / 128];
#pragma unroll
        for (int i = 0; i < BLOCK / 512; i++)
            *(uint4 *)(words + 4 * i) = *(const uint4 *)(in.codes + (b + e) * BLOCK + i * 512);
#pragma unroll
        for (int s = 0; s < 4; s++) {
            if (SHIFT == QNI_CUDA_SHIFT_ZERO && (4 * e + s) % (2 * SPAN) == 0) {
                const int32_t at = ((2 * (b + e) + s / 2) * d.table_step) & -d.row_bytes;
                const char2 z = *(const char2 *)(in.zero + (d.scale_is_f16 ? at / 2 : at / 4));
                bias = bias_of<FORMAT>(z.x, z.y);
            }
            uint32_t four[4];
            integers<FORMAT>(four, words + s * STEP_WORDS, bias, SHIFT == QNI_CUDA_SHIFT_ZERO);
#pragma unroll
            for (int i = 0; i < 4; i++)
                a[(4 * e + s) * 4 + i] = four[i];
        }
    }
}

/* A chunk, two blocks at a time: their products run while the next two become fragments. SPAN:
 * units to a row of tables, 1 or 2, or 4 where there are more. */
template <int FORMAT, int SHIFT, int SPAN>
INLINE void chunk(const struct decode &d, float (&all)[ROWS / 2], const struct pair_lane &in,
                  uint32_t tile)
{
    enum { BLOCKS = DECODE_CHUNK / (IS_Q8(FORMAT) ? 1024 : 512), SETS = 4 / SPAN };
    uint32_t a[2][32];
    float sums[SETS][ROWS / 2];
    fragments<FORMAT, SHIFT, SPAN>(a[0], d, in, 0);
#pragma unroll
    for (int b = 0; b < BLOCKS; b += 2) {
        uint32_t(&now)[32] = a[b / 2 % 2];
        uint32_t(&next)[32] = a[(b / 2 + 1) % 2];
#pragma unroll
        for (int i = 0; i < 32; i++)
            asm volatile("" : "+r"(now[i])::"memory");
#pragma unroll
        for (int s = 0; s < SETS; s++)
            qni_wgmma::hold(sums[s]);
        qni_wgmma::fence();
#pragma unroll
        for (int s = 0; s < 8; s++)
            qni_wgmma::product<ROWS>::run<false>(
                sums[s / (2 * SPAN)], now + 4 * s,
                tile + (uint32_t)((b + s / 4) * (ROWS * 8) + s % 4 * 2), s % (2 * SPAN) != 0);
        qni_wgmma::commit();
        if (b + 2 < BLOCKS) {
            fragments<FORMAT, SHIFT, SPAN>(next, d, in, b + 2);
#pragma unroll
            for (int i = 0; i < 32; i++)
                asm volatile("" : "+r"(next[i])::"memory");
        }
        float2 scale[SETS];
#pragma unroll
        for (int s = 0; s < SETS; s++)
            scale[s] = pair_at(in.table + (((2 * b + s * SPAN) * d.table_step) & -d.row_bytes),
                               d.scale_is_f16);
        qni_wgmma::wait<0>();
#pragma unroll
        for (int s = 0; s < SETS; s++) {
            qni_wgmma::hold(sums[s]);
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++)
                all[i] = fmaf(sums[s][i], (i & 2) == 0 ? scale[s].x : scale[s].y, all[i]);
        }
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* What a warp has of a panel: [row][16 outputs] of its quarter. */
INLINE void put_sums(float (&all)[ROWS / 2], float *to, int32_t m, bool add, int32_t lane)
{
    const int32_t g = lane >> 2, t = lane & 3;
#pragma unroll
    for (int i = 0; i < ROWS / 2; i++) {
        const int32_t row = i / 4 * 8 + 2 * t + (i & 1);
        float *const at = to + row * 16 + g + (i & 2) * 4;
        if (row < m)
            *at = add ? *at + all[i] : all[i];
        all[i] = 0.0f;
    }
}

INLINE uint32_t in_cta(uint32_t address, int32_t rank)
{
    uint32_t there;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(address), "r"(rank));
    return there;
}
INLINE float load_there(uint32_t address)
{
    float v;
    asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(address) : "memory");
    return v;
}

/* Apart, so that its polynomials cost the fast path no register. */
static __device__ __noinline__ void store_any(const struct qni_cuda_sink *out, int64_t row,
                                              int32_t j, float v)
{
    epilogue_store(*out, epilogue_row_of(*out, row), j, 0, v);
}

/* Adds the quarters of every other panel and stores them: the CTAs take turns. */
INLINE void finish(const struct decode &d, const struct qni_cuda_sink &out, uint32_t sums,
                   int32_t first, int32_t count, int32_t rank)
{
    const int32_t each = d.m * 16, quarter = count * each * 4;
    const uint32_t from[2] = {in_cta(sums, 0), in_cta(sums, 1)};
#pragma unroll 2
    for (int32_t i = (int32_t)threadIdx.x; i < (count + 1 - rank) / 2 * each; i += DECODE_THREADS) {
        const int32_t half = decode_divide((uint32_t)i >> 4, (uint32_t)d.m, d.m_magic);
        const int32_t p = half * 2 + rank, r = (i >> 4) - half * d.m,
                      o = (first + p) * 16 + (i & 15);
        const uint32_t at = (uint32_t)((p * each + r * 16 + (i & 15)) * 4);
        float v[QUARTERS];
#pragma unroll
        for (int j = 0; j < QUARTERS; j++)
            v[j] = load_there(from[j / 2] + (uint32_t)(j % 2 * quarter) + at);
        const float sum = ((v[0] + v[1]) + v[2]) + v[3];
        if (o >= d.n)
            continue;
        if (out.is_plain)
            epilogue_round(out, (d.row + r) * out.stride[2] + o, sum);
        else
            store_any(&out, d.row + r, o, sum);
    }
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <int FORMAT, int SHIFT, int SPAN>
static __global__ void __launch_bounds__(DECODE_THREADS, 1)
    decode_pair(const __grid_constant__ CUtensorMap map, const __grid_constant__ struct decode d,
                const __grid_constant__ struct pair_plan e,
                const __grid_constant__ struct qni_cuda_sink out)
{
    enum { UNITS = DECODE_CHUNK / (IS_Q8(FORMAT) ? 512 : 256), CHUNK_TILE = UNITS / 2 * ROWS * 8 };
    extern __shared__ __align__(1024) uint8_t shared[];
    const int32_t lane = (int32_t)threadIdx.x & 31;
    const int32_t warp = __shfl_sync(0xffffffffu, (int32_t)threadIdx.x >> 5, 0);
    const int32_t group = warp >> 2, pair = (int32_t)blockIdx.x >> 1,
                  rank = (int32_t)blockIdx.x & 1;
    const int32_t count = d.share + (pair < d.more), first = pair * d.share + min(pair, d.more);
    const int32_t quarter = rank * 2 + group, panel = first + (warp & 3);
    const int32_t quads = (count + QUAD - 1) / QUAD, mine = (count - (warp & 3) + QUAD - 1) / QUAD;
    const uint32_t base = ptx_shared(shared), x_bar = base + (uint32_t)(512 + group * 8);
    const uint32_t bars = base + (uint32_t)(warp * 64);
    const uint8_t *const ring_from = shared + d.at_ring + warp * d.depth * d.slot_bytes;
    const uint32_t ring = ptx_shared(ring_from);
    const uint32_t x_at = base + (uint32_t)(d.at_x + group * e.x_area);

    if (lane < d.depth)
        decode_bar_init(bars + 8 * (uint32_t)lane, 1);
    if ((warp & 3) == 0 && lane == 0)
        decode_bar_init(x_bar, 4);
    decode_bar_fence();
    __syncthreads();
    struct pair_walk f = {0, 0, 0, 0, panel, mine}, r = f;
    enter_piece(d, e, quarter, f);
    enter_piece(d, e, quarter, r);
    const bool some = r.piece < e.pieces;
    if (!d.pdl && some)
        ask_x<UNITS>(&map, r.c, r.end, x_at, x_bar, warp & 3, lane);
#pragma unroll 1
    for (int32_t i = 0; i < d.depth; i++)
        ask_next<UNITS>(d, e, quarter, f, ring + (uint32_t)(i * d.slot_bytes),
                        bars + 8 * (uint32_t)i, lane);
    ptx_dependents_launch();
    float *const sums = (float *)(shared + d.at_sums) + group * count * d.m * 16;
    ptx_dependency_wait();
    if (d.pdl && some)
        ask_x<UNITS>(&map, r.c, r.end, x_at, x_bar, warp & 3, lane);
    if (!some) /* fewer chunks than quarters */
        for (int32_t i = (int32_t)threadIdx.x & 127; i < count * d.m * 16; i += 128)
            sums[i] = 0.0f;

    float all[ROWS / 2] = {};
    const uint8_t *const codes = ring_from + lane * 16;
    const uint8_t *const table = ring_from + DECODE_CHUNK + (lane >> 2) * (d.scale_is_f16 ? 4 : 8);
    const uint8_t *const zero = ring_from + DECODE_CHUNK + d.rows * d.row_bytes + (lane >> 2) * 2;
    int32_t stage = 0, parity = 0, x_parity = 0;
#pragma unroll 1
    for (bool is_first = true; r.piece < e.pieces; is_first = false) {
        if (!is_first) {
            asm volatile("bar.sync %0, 128;" ::"r"(group + 1) : "memory");
            ask_x<UNITS>(&map, r.c, r.end, x_at, x_bar, warp & 3, lane);
        }
        decode_bar_wait(x_bar, x_parity);
        x_parity ^= 1;
#pragma unroll 1
        for (int32_t q = 0; q < quads; q++) {
            uint32_t tile = qni_wgmma::tile(x_at);
#pragma unroll 1
            for (int32_t c = r.c; c < r.end; c++) {
                if (q < mine)
                    decode_bar_wait(bars + 8 * (uint32_t)stage, parity);
                __syncwarp();
                const int32_t slot = stage * d.slot_bytes;
                const struct pair_lane in = {codes + slot, table + slot, zero + slot};
                chunk<FORMAT, SHIFT, SPAN>(d, all, in, tile);
                tile += CHUNK_TILE;
                if (q < mine) {
                    __syncwarp();
                    ask_next<UNITS>(d, e, quarter, f, ring + (uint32_t)slot,
                                    bars + 8 * (uint32_t)stage, lane);
                    if (++stage == d.depth) {
                        stage = 0;
                        parity ^= 1;
                    }
                }
            }
            if (q < mine)
                put_sums(all, sums + (q * QUAD + (warp & 3)) * d.m * 16, d.m, !is_first, lane);
#pragma unroll
            for (int i = 0; i < ROWS / 2; i++)
                all[i] = 0.0f;
        }
        r.piece++;
        enter_piece(d, e, quarter, r);
    }
    asm volatile("barrier.cluster.arrive.release.aligned;\n"
                 "barrier.cluster.wait.acquire.aligned;" ::
                     : "memory");
    finish(d, out, ptx_shared(shared + d.at_sums), first, count, rank);
    /* Nobody leaves while the other reads its sums. */
    asm volatile("barrier.cluster.arrive.aligned;\n"
                 "barrier.cluster.wait.aligned;" ::
                     : "memory");
}

/* ---- launches -------------------------------------------------------------------------------- */

static int32_t describe_rows(const struct qni_cuda_product *p, CUtensorMap *map)
{
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                                           cudaEnableDefault, &found);
    if (e != cudaSuccess || found != cudaDriverEntryPointSuccess)
        return (int32_t)(e != cudaSuccess ? cudaGetLastError() : cudaErrorNotSupported);
    const cuuint64_t size[2] = {(cuuint64_t)p->x.columns, (cuuint64_t)p->m};
    const cuuint64_t stride[1] = {(cuuint64_t)p->x.lda};
    const cuuint32_t box[2] = {64, ROWS}, step[2] = {1, 1};
    const CUresult r = ((decltype(&cuTensorMapEncodeTiled))encode)(
        map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, (void *)(uintptr_t)p->x.a, size, stride, box, step,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? 0 : (int32_t)cudaErrorInvalidValue;
}

/* Three slots a warp if x fits beside them in one piece, else two and as few pieces as fit. False:
 * too many panels for their sums. */
static bool plan_pair(struct decode *d, struct pair_plan *e, const struct qni_cuda_launch *launch,
                      int32_t units)
{
    const int32_t limit = decode_shared_limit(launch, 1);
    const int32_t sums = 2 * (d->share + 1) * d->m * 64;
    const int32_t quarter = (d->chunks + QUARTERS - 1) / QUARTERS;
    for (e->pieces = 1; e->pieces <= quarter; e->pieces++)
        for (d->depth = 3; d->depth >= 2; d->depth--) {
            const int64_t area =
                (int64_t)((quarter + e->pieces - 1) / e->pieces) * (units / 2) * ROWS * 128;
            d->at_x = 1024;
            const int64_t ring = d->at_x + 2 * area;
            const int64_t at_sums = ring + DECODE_WARPS * d->depth * d->slot_bytes;
            if (at_sums + sums <= limit) {
                e->x_area = (int32_t)area;
                d->at_ring = (int32_t)ring;
                d->at_sums = (int32_t)at_sums;
                d->bytes = (int32_t)at_sums + sums;
                return true;
            }
        }
    return false;
}

template <int FORMAT, int SHIFT>
static const void *kernel_for(const struct decode *d, int32_t units)
{
    enum { SPAN = SHIFT == QNI_CUDA_SHIFT_NONE ? 4 : 2 };
    return d->rows == units       ? (const void *)decode_pair<FORMAT, SHIFT, 1>
           : 2 * d->rows == units ? (const void *)decode_pair<FORMAT, SHIFT, 2>
                                  : (const void *)decode_pair<FORMAT, SHIFT, SPAN>;
}

template <int FORMAT>
static bool launch(const struct qni_cuda_product *p, const struct qni_cuda_launch *launch,
                   int32_t *status)
{
    enum { UNITS = DECODE_CHUNK / (IS_Q8(FORMAT) ? 512 : 256) };
    struct decode d;
    struct pair_plan e = {};
    CUtensorMap map;
    if (p->w.shift == QNI_CUDA_SHIFT_OFFSET || p->x.planes != 1 || p->routes.tiles != NULL ||
        p->w.parts != 1 || p->m <= 8 || p->m > 16 || p->x.columns < 1 ||
        launch->multiprocessors < CLUSTER)
        return false;
    decode_plan(&d, p, launch, UNITS, 16);
    decode_plan_share(&d, launch->multiprocessors / CLUSTER, 1);
    const int32_t most = d.share + (d.more > 0), quads = (most + QUAD - 1) / QUAD;
    if (most * 10 < quads * QUAD * 9 || !plan_pair(&d, &e, launch, UNITS))
        return false;
    const void *const kernel = p->w.shift == QNI_CUDA_SHIFT_ZERO
                                   ? kernel_for<FORMAT, QNI_CUDA_SHIFT_ZERO>(&d, UNITS)
                                   : kernel_for<FORMAT, QNI_CUDA_SHIFT_NONE>(&d, UNITS);
    *status = describe_rows(p, &map);
    if (*status != 0)
        return true;
    struct qni_cuda_sink out = p->out;
    void *arguments[] = {&map, &d, &e, &out};
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};
    attributes[0].id = cudaLaunchAttributeClusterDimension;
    attributes[0].val.clusterDim.x = CLUSTER;
    attributes[0].val.clusterDim.y = attributes[0].val.clusterDim.z = 1;
    attributes[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[1].val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = dim3((unsigned)(d.ctas * CLUSTER));
    config.blockDim = dim3(DECODE_THREADS);
    config.dynamicSmemBytes = (size_t)d.bytes;
    config.stream = (cudaStream_t)launch->stream;
    config.attrs = attributes;
    config.numAttrs = launch->pdl ? 2 : 1;
    cudaError_t made =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, d.bytes);
    if (made == cudaSuccess)
        made = cudaLaunchKernelExC(&config, kernel, arguments);
    (void)cudaGetLastError();
    *status = (int32_t)made;
    return true;
}

extern "C" int32_t qni_decode_sm90a(const struct qni_cuda_product *p, int32_t is_q8,
                                    const struct qni_cuda_launch *how, int32_t *status)
{
    if (how->sm != 90)
        return 0;
    return is_q8 ? launch<F16_Q8>(p, how, status) : launch<F16_Q4>(p, how, status);
}
