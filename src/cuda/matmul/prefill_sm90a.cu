/* SPDX-License-Identifier: Apache-2.0 */
/* Prefill on Hopper: y = x . W^T for many rows of x, weights of 4 or 8 bits, x in f16 or bf16.
 *
 *     y[m, n] = sum over groups g of scale[n, g] * (sum over p in g of x[m, p] * (value - zero))
 *               + offset[n, g] * total[m, g]
 *
 * Codes become small integers in 16 bits, which is exact, and are the A operand of wgmma, from
 * registers: the fragment order of kernel.h is that operand's. x is the B operand, tile by tile in
 * shared memory as the copy engine writes it. A group's sum lives in accumulators of its own and is
 * scaled once, in f32, when the group ends; so weights are never rounded.
 *
 * A CTA works on 128 outputs: two warpgroups of 64 share the tile of x and take turns at the tensor
 * cores, two blocks of 64 positions a turn: one multiplies while the other scales its sums and
 * unpacks codes. A third warpgroup copies ahead of them.
 *
 * Bounds: the tensor cores need `tokens` clocks for 16 positions of 128 outputs; beside them a warp
 * issues some 225 instructions a turn, and its registers are read by the tensor cores meanwhile
 * (lab/cuda/NOTES.md). x costs 32 bytes a clock from L2, codes 1024 / tokens.
 *
 * Few tiles: the CTAs of a cluster cut the positions between them and add up their sums through
 * distributed shared memory, in the order of positions. It never synchronises with other clusters,
 * allocates, or adds in an order that depends on time. */
#include "../epilogue.cuh"
#include "prefill.cuh"
#include "prefill_feed.cuh"
#include "prefill_sum.cuh"

#include <math.h>

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
__device__ __forceinline__ uint32_t pack16(float v0, float v1, bool bf16)
{
    if (bf16) {
        const __nv_bfloat162 h = __floats2bfloat162_rn(v0, v1);
        return *(const uint32_t *)&h;
    }
    const __half2 h = __floats2half2_rn(v0, v1);
    return *(const uint32_t *)&h;
}

/* Row i of the tile, for the sink. */
template <class F>
__device__ __forceinline__ int64_t sink_row(const arguments &a, const place &at, int i)
{
    const int row = at.first + i;
    return a.p.row + (F::general && a.p.routes.rows != NULL ? a.p.routes.rows[row] : row);
}

/* f16 or bf16 rows that 16-byte stores fit: a warpgroup turns 32 tokens x 64 outputs at a time
 * around in shared memory, rows of 128 bytes whose 16-byte pieces are swizzled by the token. */
template <class F>
__device__ __forceinline__ void store_plain(const arguments &a, const place &at, int wg,
                                            uint32_t chunk, const float (&acc)[F::tokens / 2])
{
    const int thread = (int)threadIdx.x % 128, warp = thread / 32, lane = thread % 32;
    const bool bf16 = a.p.out.y_dtype == QN_BF16;
    const int output = at.panel * QNI_CUDA_PANEL + wg * 64 + thread % 8 * 8;
#pragma unroll
    for (int c = 0; c < F::tokens / CHUNK; c++) {
        if (c * CHUNK >= at.rows)
            break;
        named_sync(1 + wg, 128);
#pragma unroll
        for (int i = 0; i < CHUNK / 8; i += 2) {
            const float *v = acc + (c * (CHUNK / 8) + i) * 4;
            const int token = i * 8 + lane / 16 * 8 + lane % 8;
            const int piece = (warp * 2 + lane / 8 % 2) ^ (token & 7);
            store_transposed(chunk + token * 128 + piece * 16, pack16(v[0], v[1], bf16),
                             pack16(v[2], v[3], bf16), pack16(v[4], v[5], bf16),
                             pack16(v[6], v[7], bf16));
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
    struct qni_cuda_sink out = a.p.out;
    if (!F::general) {
        out.act = QN_ACT_NONE;
        out.is_image = 0;
    }
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
        if (!out.is_plain)
#pragma unroll
            for (int c = 0; c < 4; c++)
                e[c] = epilogue_steps(out, place_of_row, first + min(c, many - 1), at.expert, e[c]);
        const int64_t to = place_of_row.y + (int64_t)first * out.stride[3];
        if (wide && many == 4 && epilogue_store4(out, to, e))
            continue;
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
    const int output = at.panel * QNI_CUDA_PANEL + wg * 64;
#pragma unroll 1
    for (int c = 0; c < F::tokens / CHUNK; c++) {
        if (c * CHUNK >= at.rows)
            break;
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

__device__ __forceinline__ float4 load_there(uint32_t from, int rank)
{
    float4 u;
    asm volatile("{.reg .b32 there;\n"
                 "mapa.shared::cluster.u32 there, %4, %5;\n"
                 "ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [there];}"
                 : "=f"(u.x), "=f"(u.y), "=f"(u.z), "=f"(u.w)
                 : "r"(from), "r"(rank)
                 : "memory");
    return u;
}

/* The CTAs of a cluster have sums over parts of the positions: each puts its own into its ring,
 * which is at rest, and finishes a share of the tokens from all of them, in order. */
template <class F>
__device__ __forceinline__ void store_split(const arguments &a, const place &at, int wg,
                                            uint32_t sums, float *sums_at, uint32_t rank,
                                            const float (&acc)[F::tokens / 2])
{
    constexpr int QUADS = OUTPUTS / 4, AHEAD = 4;
    named_sync(3, CONSUMERS);
    spread<F::tokens>(sums + wg * 64 * 4, LD_SUMS, acc);
    cluster_sync();
    const int begin = at.rows * (int)rank / a.s.splits;
    const int count = at.rows * ((int)rank + 1) / a.s.splits - begin;
    const int last = count * QUADS - 1;
#pragma unroll 1
    for (int all = 0; all <= last; all += AHEAD * CONSUMERS) {
        const int i = all + (int)threadIdx.x;
        float4 v[AHEAD];
        uint32_t from[AHEAD];
#pragma unroll
        for (int j = 0; j < AHEAD; j++) {
            const int k = min(i + j * CONSUMERS, last);
            from[j] = sums + (uint32_t)((begin + k / QUADS) * LD_SUMS + k % QUADS * 4) * 4;
            v[j] = load_there(from[j], 0);
        }
#pragma unroll 1
        for (int r = 1; r < a.s.splits; r++) {
            float4 u[AHEAD];
#pragma unroll
            for (int j = 0; j < AHEAD; j++)
                u[j] = load_there(from[j], r);
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                v[j].x += u[j].x;
                v[j].y += u[j].y;
                v[j].z += u[j].z;
                v[j].w += u[j].w;
            }
        }
        /* in place: nobody else reads this share */
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (i + j * CONSUMERS <= last)
                asm volatile("st.shared.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(from[j]), "f"(v[j].x),
                             "f"(v[j].y), "f"(v[j].z), "f"(v[j].w)
                             : "memory");
    }
    named_sync(3, CONSUMERS);
    leave<F>(a, at, sums_at + begin * LD_SUMS, LD_SUMS, begin, count, at.panel * QNI_CUDA_PANEL,
             OUTPUTS, (int)threadIdx.x, CONSUMERS);
    cluster_sync();
}

/* ---- the kernel ------------------------------------------------------------------------------ */

template <class F>
__device__ __forceinline__ void prepare_lane(consumer<F> &c, const arguments &a, const ring &r,
                                             int wg, uint32_t rank)
{
    const int lane = (int)threadIdx.x % 32, panel = (int)threadIdx.x / 32;
    c.r = r;
    c.codes_at = keep(r.data + F::x_bytes + (uint32_t)panel * F::panel_bytes + lane * 16);
    c.scale_at = keep(r.facts + (uint32_t)panel * 128 + lane / 4 * (a.p.w.scale_is_f16 ? 4 : 8));
    c.scale_other = keep(a.p.w.scale_is_f16 ? 0 : 4);
    c.scale_next = a.p.w.scale_is_f16 ? 32 : 64;
    c.zero_at = keep(r.facts + F::scale_bytes + (uint32_t)panel * 32 + lane / 4 * 2);
    c.has_zero = keep(a.p.w.shift == QNI_CUDA_SHIFT_ZERO);
    c.signal_at = keep(barrier_of(r.empty, a.s.share > 1 ? lane % 2 : rank));
    c.signals = keep(lane < a.s.share);
    c.take_at = keep(r.empty + (F::stages + wg) * 8);
    c.give_at = keep(r.empty + (F::stages + 1 - wg) * 8);
    c.turn_phase = keep(wg == 0);
    c.is_first = keep(lane == 0);
    c.z.set(0, 0);
}

template <class F>
__device__ __forceinline__ void consume(const arguments &a, const ring &r, uint8_t *chunks,
                                        float *sums, int cluster, int n_clusters, uint32_t rank)
{
    const int wg = (int)threadIdx.x / 128;
    consumer<F> c;
    prepare_lane<F>(c, a, r, wg, rank);
    uint8_t *const chunk = chunks + wg * F::chunk_bytes;
    const struct qni_cuda_sink &out = a.p.out;
    const bool wide = out.is_plain && out.y_dtype != QN_F32 && a.p.w.n % 8 == 0 &&
                      out.stride[2] % 8 == 0 && (uintptr_t)out.y % 16 == 0;
    for (int tile = cluster; tile < a.tiles; tile += n_clusters) {
        const place at = find_place<F>(a, tile, rank);
        if (F::general && at.rows <= 0)
            continue;
        float acc[F::tokens / 2];
#pragma unroll
        for (int i = 0; i < F::tokens / 2; i++)
            acc[i] = 0;
        if (at.begin < at.end) {
            if constexpr (F::mode == UNITS)
                sum_units<F>(c, a, at, acc);
            else
                sum_groups<F>(c, a, at, acc);
            if (a.p.w.shift == QNI_CUDA_SHIFT_OFFSET)
                add_offsets<F>(a, at, acc);
        }
        if (a.s.splits > 1)
            store_split<F>(a, at, wg, r.data, sums, rank, acc);
        else if (wide)
            store_plain<F>(a, at, wg, shared_address(chunk), acc);
        else
            store_any<F>(a, at, wg, shared_address(chunk), (const float *)chunk, acc);
    }
}

template <class F>
__global__ void __launch_bounds__(THREADS, 1)
    prefill(const __grid_constant__ CUtensorMap map, const __grid_constant__ arguments a)
{
    extern __shared__ uint8_t raw[];
    uint8_t *const begin = raw + (1024 - shared_address(raw) % 1024) % 1024;
    uint8_t *const chunks = begin + F::stages * F::stage_bytes;
    ring r;
    r.data = shared_address(begin);
    r.facts = shared_address(chunks) + GROUPS * F::chunk_bytes;
    r.full = r.facts + F::stages * F::facts_bytes;
    r.empty = r.full + F::stages * 8;
    r.stage = 0;
    r.phase = 0;
    const int size = a.s.splits * a.s.share;
    const int cluster = (int)blockIdx.x / size, n_clusters = (int)gridDim.x / size;
    const uint32_t rank = size > 1 ? __clusterRelativeBlockRank() : 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < F::stages; i++) {
            barrier_init(r.full + i * 8, 4);
            barrier_init(r.empty + i * 8, GROUPS * 4 * a.s.share);
        }
        for (int i = 0; i < GROUPS; i++)
            barrier_init(r.empty + (F::stages + i) * 8, 4);
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    if (size > 1)
        cluster_sync();
    else
        __syncthreads();
    if (a.s.pdl) {
        asm volatile("griddepcontrol.launch_dependents;");
        if (a.p.routes.tiles != NULL) /* made by the launch before */
            asm volatile("griddepcontrol.wait;" ::: "memory");
    }
    if (threadIdx.x >= CONSUMERS) {
        asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"((int)FEEDER_REGISTERS));
        feed<F>(&map, a, r, cluster, n_clusters, rank);
        if (a.s.splits > 1) {
            __syncwarp();
            cluster_sync();
            cluster_sync();
        }
    } else {
        asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"((int)CONSUMER_REGISTERS));
        if (a.s.pdl)
            asm volatile("griddepcontrol.wait;" ::: "memory");
        consume<F>(a, r, chunks, (float *)begin, cluster, n_clusters, rank);
    }
}

/* ---- launching ------------------------------------------------------------------------------- */

/* x as the copy engine sees it: columns, rows, parts, planes. Zeros lie around it. */
int32_t describe_rows(const struct qni_cuda_product *p, bool bf16, int rows, CUtensorMap *map)
{
    void *encode = NULL;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t e = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &encode, 12000,
                                                           cudaEnableDefault, &found);
    if (e != cudaSuccess || found != cudaDriverEntryPointSuccess)
        return (int32_t)(e != cudaSuccess ? cudaGetLastError() : cudaErrorNotSupported);
    const struct qni_cuda_rows &x = p->x;
    const int64_t columns = x.columns > 0 ? x.columns : 1;
    const cuuint64_t size[4] = {(cuuint64_t)columns, (cuuint64_t)p->m, (cuuint64_t)p->w.parts,
                                (cuuint64_t)x.planes};
    const int64_t part = p->w.parts > 1 ? x.part_rows * x.lda : x.lda;
    const cuuint64_t stride[3] = {(cuuint64_t)x.lda, (cuuint64_t)part,
                                  (cuuint64_t)(x.planes > 1 ? x.plane_stride : x.lda)};
    const cuuint32_t box[4] = {QNI_CUDA_BLOCK, (cuuint32_t)rows, 1, 1}, step[4] = {1, 1, 1, 1};
    const CUresult r = ((decltype(&cuTensorMapEncodeTiled))encode)(
        map, bf16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 4,
        (void *)(uintptr_t)x.a, size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    return r == CUDA_SUCCESS ? 0 : (int32_t)cudaErrorInvalidValue;
}

/* band: 8 tiles of 128 rows of 4096 halves are 8 MB, which L2 keeps while all weights pass. */
template <class F> struct schedule cut(const struct qni_cuda_product *p, int splits, int share)
{
    struct schedule s = {};
    s.token_tiles =
        p->routes.tiles != NULL ? p->routes.n_tiles : (int32_t)((p->m + F::tokens - 1) / F::tokens);
    s.output_tiles = (p->w.panels + PANELS * share - 1) / (PANELS * share);
    s.band = 8;
    s.splits = splits;
    s.share = share;
    return s;
}

template <class F>
int32_t start(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
              const struct qni_cuda_launch *l, int splits, int share)
{
    arguments a = {};
    a.p = *p;
    if (experts != NULL)
        a.experts = *experts;
    a.s = cut<F>(p, splits, share);
    a.s.pdl = l->pdl;
    a.tiles = p->w.parts * a.s.token_tiles * a.s.output_tiles;
    if (a.tiles == 0)
        return 0;
    CUtensorMap map;
    const int32_t described =
        describe_rows(p, F::bf16, p->routes.rows != NULL ? 1 : F::tokens / share, &map);
    if (described != 0)
        return described;
    const auto kernel = prefill<F>;
    cudaError_t e =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, F::bytes);
    if (e != cudaSuccess)
        return (int32_t)cudaGetLastError();
    const int size = splits * share, room = l->multiprocessors / size;
    cudaLaunchConfig_t c = {};
    c.gridDim = dim3((unsigned)((splits > 1 || a.tiles < room ? a.tiles : room) * size));
    c.blockDim = dim3(THREADS);
    c.dynamicSmemBytes = F::bytes;
    c.stream = (cudaStream_t)l->stream;
    cudaLaunchAttribute at[2] = {};
    at[0].id = cudaLaunchAttributeClusterDimension;
    at[0].val.clusterDim.x = (unsigned)size;
    at[0].val.clusterDim.y = at[0].val.clusterDim.z = 1;
    at[1].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    at[1].val.programmaticStreamSerializationAllowed = 1;
    c.attrs = at;
    c.numAttrs = l->pdl ? 2 : 1;
    void *list[2] = {&map, &a};
    (void)cudaLaunchKernelExC(&c, (const void *)kernel, list);
    return (int32_t)cudaGetLastError();
}

/* The form that is expected to be done first, and how it is cut. Nanoseconds on an H100: a turn of
 * 128 positions of a tile; beside it a tile's begin and end; sums of a split on their way. From the
 * tables of lab/cuda/NOTES.md. (Clusters of four do not fill the GPU: not all find room at once.)
 * */
struct choice {
    int32_t (*start)(const struct qni_cuda_product *, const struct qni_cuda_experts *,
                     const struct qni_cuda_launch *, int splits, int share);
    int splits;
    double ns;
};
enum { TILE_NS = 2000, SPLIT_NS = 3000, MAX_SPLITS = 2 };

template <class F>
void consider(struct choice &best, const struct qni_cuda_product *p,
              const struct qni_cuda_launch *l, int turn_ns)
{
    const struct schedule s = cut<F>(p, 1, 1);
    const double tiles = (double)p->w.parts * s.token_tiles * s.output_tiles;
    const int turns = (p->w.units + 3) / 4;
    for (int splits = 1; splits <= MAX_SPLITS; splits *= 2) {
        if (splits > 1 &&
            (p->routes.tiles != NULL || tiles * splits > l->multiprocessors || turns < 4 * splits))
            break;
        const double waves = ceil(tiles * splits / l->multiprocessors);
        const double ns =
            waves * ((double)turns / splits * turn_ns + TILE_NS) + (splits > 1 ? SPLIT_NS : 0);
        if (best.start == NULL || ns < best.ns)
            best = {start<F>, splits, ns};
    }
}

/* Tiles of ROWS tokens; of 64, too, unless routes are cut to ROWS. */
template <int MODE, bool BF16, int BITS, int ROWS, bool GENERAL>
void both(struct choice &best, const struct qni_cuda_product *p, const struct qni_cuda_launch *l,
          int ns64, int ns128)
{
    consider<form<BF16, BITS, ROWS, MODE, GENERAL>>(best, p, l, ROWS == 64 ? ns64 : ns128);
    if (ROWS != 64 && p->routes.tiles == NULL)
        consider<form<BF16, BITS, 64, MODE, GENERAL>>(best, p, l, ns64);
}

bool is_general(const struct qni_cuda_product *p)
{
    return p->routes.tiles != NULL || p->out.act != QN_ACT_NONE || p->out.is_image;
}

template <bool BF16, int BITS, int ROWS, bool GENERAL>
int32_t launch(const struct qni_cuda_product *p, const struct qni_cuda_experts *experts,
               const struct qni_cuda_launch *l)
{
    struct choice best = {};
    const bool alone = p->w.n_groups <= 1;
    if (p->m == 0 || p->w.panels == 0)
        return 0;
    if (alone || p->w.group_units % 4 == 0) {
        both<PAIRS, BF16, BITS, ROWS, GENERAL>(best, p, l, 470, 700);
        if constexpr (ROWS == 128 && !GENERAL)
            consider<form<BF16, BITS, 96, PAIRS, false>>(best, p, l, 560);
    } else if (p->w.group_units % 2 == 0) {
        both<BLOCKS, BF16, BITS, ROWS, GENERAL>(best, p, l, 650, 980);
    } else {
        both<UNITS, BF16, BITS, ROWS, GENERAL>(best, p, l, 850, 1300);
    }
    return best.start(p, experts, l, best.splits, 1);
}

} /* namespace */

#define QNI_PREFILL(reads, layout, rows, is_bf16, bits)                                            \
    extern "C" int32_t qni_matmul_##reads##_##layout##_mr##rows##_sm90a(                           \
        const struct qni_cuda_product *product, const struct qni_cuda_experts *experts,            \
        const struct qni_cuda_launch *l)                                                           \
    {                                                                                              \
        return is_general(product) ? launch<is_bf16, bits, rows, true>(product, experts, l)        \
                                   : launch<is_bf16, bits, rows, false>(product, experts, l);      \
    }
QNI_PREFILL(f16, q4frag, 64, false, 4)
QNI_PREFILL(f16, q4frag, 128, false, 4)
QNI_PREFILL(f16, q8frag, 64, false, 8)
QNI_PREFILL(f16, q8frag, 128, false, 8)
QNI_PREFILL(bf16, q4frag, 64, true, 4)
QNI_PREFILL(bf16, q4frag, 128, true, 4)
QNI_PREFILL(bf16, q8frag, 64, true, 8)
QNI_PREFILL(bf16, q8frag, 128, true, 8)
#undef QNI_PREFILL
