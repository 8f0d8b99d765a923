/* SPDX-License-Identifier: Apache-2.0 */
/* The rows of a grouped product by expert, and the tiles that its kernels work on:
 *
 *     ids      2 0 2 - 0 1        rows    1 4 | 5 | 0 2 | -1        tiles   (0, 0, 2) (1, 2, 1) ...
 *
 * A counting sort: a warp counts the experts of its chunk of rows, a prefix sum turns counts into
 * places, and the warp walks its chunk again. Within 32 rows the place of a row is that of its
 * expert plus how many lanes before it have the same one; chunks and lanes ascend, so the sort is
 * stable and the result is the only one there is. Few rows: one CTA does it all. Many: count, scan,
 * place. With offsets the rows lie in order, and only tiles are made. Costs nothing beside a
 * product: 12 bytes a row. */
#include "../rows.cuh"

enum {
    THREADS = 1024,
    SHARED_INTS = 15 << 10, /* 60 KiB, which every GPU has */
    STEPS = 16,             /* of a chunk in one CTA */
    SMALL_ROWS = 4096,      /* that one CTA sorts, */
    LEAST_ROWS = 512,       /* or as many as this if experts leave little room */
    COUNTERS = 1 << 18,     /* of all chunks of a large sort: 1 MiB */
    STRIPS = 16,            /* of 32 chunks at most */
    MIN_CHUNK = 256,
    COUNT_WARPS = 4,
    SCAN_WARPS = 8
};

struct route_job {
    const int32_t *offsets, *ids;
    int32_t *tiles, *rows;
    int32_t *counts; /* [n_chunks][n_experts]; after the scan places in an expert */
    int32_t *totals; /* [n_experts] */
    int64_t row, m;
    int32_t n_experts, mr, n_tiles;
    int32_t chunk, n_chunks; /* rows of a chunk: a multiple of 32 */
    int32_t bits;            /* of an expert's number */
};

/* ---- a chunk and its warp -------------------------------------------------------------------- */

/* The expert of row i, or -1. */
ROWS_DEVICE int32_t expert_of(const struct route_job &j, int64_t i, int64_t end)
{
    const int32_t id = i < end ? __ldg(j.ids + i) : -1;
    return id >= 0 && id < j.n_experts ? id : -1;
}

/* For all lanes of a warp: those that have the same expert. One vote a bit; __match_any_sync()
 * takes a turn for every different value. */
ROWS_DEVICE uint32_t peers_of(const struct route_job &j, int32_t expert)
{
    uint32_t peers = __ballot_sync(0xffffffffu, expert >= 0);
    for (int32_t bit = 0; bit < j.bits; bit++) {
        const uint32_t votes = __ballot_sync(0xffffffffu, expert >> bit & 1);
        peers &= expert >> bit & 1 ? votes : ~votes;
    }
    return peers;
}
ROWS_DEVICE uint32_t lanes_before(void)
{
    return (1u << (threadIdx.x & 31)) - 1u;
}

/* The chunk of a warp of the small sort, in registers: expert, and how many lanes before have the
 * same one (lower half) of how many (upper). */
struct kept {
    int32_t expert[STEPS];
    uint32_t rank[STEPS];
};
ROWS_DEVICE void count_kept(const struct route_job &j, int32_t chunk, int32_t *counts,
                            struct kept *kept)
{
    const int64_t first = (int64_t)chunk * j.chunk, end = min(first + j.chunk, j.m);
#pragma unroll
    for (int s = 0; s < STEPS; s++)
        kept->expert[s] = expert_of(j, first + 32 * s + (threadIdx.x & 31), end);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (first + 32 * s >= end)
            break;
        const int32_t expert = kept->expert[s];
        const uint32_t peers = peers_of(j, expert), rank = (uint32_t)__popc(peers & lanes_before());
        kept->rank[s] = rank | (uint32_t)__popc(peers) << 16;
        if (expert >= 0 && rank == 0)
            counts[expert] += __popc(peers);
        __syncwarp();
    }
}
ROWS_DEVICE void place_kept(const struct route_job &j, int32_t chunk, const int32_t *base,
                            int32_t *places, const struct kept *kept)
{
    const int64_t first = (int64_t)chunk * j.chunk, end = min(first + j.chunk, j.m);
#pragma unroll
    for (int s = 0; s < STEPS; s++) {
        if (first + 32 * s >= end)
            break;
        const int32_t expert = kept->expert[s], rank = (int32_t)(kept->rank[s] & 0xffffu);
        const int32_t at = expert >= 0 ? places[expert] : 0;
        __syncwarp();
        if (expert >= 0) {
            j.rows[base[expert] + at + rank] = (int32_t)(first + 32 * s + (threadIdx.x & 31));
            if (rank == 0)
                places[expert] = at + (int32_t)(kept->rank[s] >> 16);
        }
        __syncwarp();
    }
}

/* counts[expert] += rows of the chunk. */
ROWS_DEVICE void count_chunk(const struct route_job &j, int32_t chunk, int32_t *counts)
{
    const int64_t first = (int64_t)chunk * j.chunk, end = min(first + j.chunk, j.m);
    for (int64_t i = first; i < end; i += 32) {
        const int32_t expert = expert_of(j, i + (threadIdx.x & 31), end);
        const uint32_t peers = peers_of(j, expert);
        if (expert >= 0 && (peers & lanes_before()) == 0)
            counts[expert] += __popc(peers);
        __syncwarp();
    }
}

/* places[expert]: where the next row of it goes, from base[expert] on. */
ROWS_DEVICE void place_chunk(const struct route_job &j, int32_t chunk, const int32_t *base,
                             int32_t *places)
{
    const int64_t first = (int64_t)chunk * j.chunk, end = min(first + j.chunk, j.m);
    for (int64_t i = first; i < end; i += 32) {
        const int64_t row = i + (threadIdx.x & 31);
        const int32_t expert = expert_of(j, row, end);
        const uint32_t peers = peers_of(j, expert);
        const int32_t at = expert >= 0 ? places[expert] : 0;
        __syncwarp();
        if (expert >= 0) {
            j.rows[base[expert] + at + __popc(peers & lanes_before())] = (int32_t)row;
            if ((peers & lanes_before()) == 0)
                places[expert] = at + __popc(peers);
        }
        __syncwarp();
    }
}

/* ---- the whole CTA --------------------------------------------------------------------------- */

/* Sum of the values of all threads before this one; *sum: of all. Two meetings. */
ROWS_DEVICE int64_t scan_block(int64_t value, int64_t *warps, int64_t *sum)
{
    const int32_t lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    int64_t v = value;
    for (int32_t step = 1; step < 32; step *= 2) {
        const int64_t before = __shfl_up_sync(0xffffffffu, v, step);
        v += lane >= step ? before : 0;
    }
    if (lane == 31)
        warps[warp] = v;
    __syncthreads();
    int64_t all = lane < (int32_t)blockDim.x / 32 ? warps[lane] : 0;
    for (int32_t step = 1; step < 32; step *= 2) {
        const int64_t before = __shfl_up_sync(0xffffffffu, all, step);
        all += lane >= step ? before : 0;
    }
    *sum = __shfl_sync(0xffffffffu, all, 31);
    const int64_t before = __shfl_sync(0xffffffffu, all, max(warp - 1, 0));
    __syncthreads();
    return v - value + (warp > 0 ? before : 0);
}

/* Rows [*first, *end) of an expert by the offsets, which may be nonsense: of the m rows from `row`
 * on, numbered from there. */
ROWS_DEVICE void range_of(const struct route_job &j, int32_t expert, int64_t *first, int64_t *end)
{
    *first = max(j.offsets[expert] - j.row, (int64_t)0);
    *end = min(j.offsets[expert + 1] - j.row, j.m);
}

/* row_base, tile_base from the number of rows of every expert, which row_base holds before (ids) or
 * the offsets tell. Tiles are counted in the upper half, rows in the lower. */
ROWS_DEVICE void scan_experts(const struct route_job &j, int32_t *row_base, int32_t *tile_base,
                              int64_t *warps)
{
    int64_t before = 0;
    for (int32_t e = 0; e < j.n_experts; e += (int32_t)blockDim.x) {
        const int32_t expert = e + (int32_t)threadIdx.x;
        int64_t first = 0, end = 0, sum;
        if (expert < j.n_experts && j.offsets != NULL)
            range_of(j, expert, &first, &end);
        else if (expert < j.n_experts)
            end = row_base[expert];
        const int64_t n = max(end - first, (int64_t)0);
        const int64_t tiles = (n + j.mr - 1) / j.mr;
        const int64_t at =
            before + scan_block((tiles << 32) + (j.offsets != NULL ? 0 : n), warps, &sum);
        if (expert < j.n_experts) {
            row_base[expert] = (int32_t)at;
            tile_base[expert] = (int32_t)(at >> 32);
        }
        before += sum;
    }
    if (threadIdx.x == 0) {
        row_base[j.n_experts] = (int32_t)before;
        tile_base[j.n_experts] = (int32_t)(before >> 32);
    }
    __syncthreads();
}

/* Tiles and what no expert has of rows, by threads `from`, from + apart, ... */
ROWS_DEVICE void write_lists(const struct route_job &j, const int32_t *row_base,
                             const int32_t *tile_base, int64_t from, int64_t apart)
{
    for (int64_t t = from; t < j.n_tiles; t += apart) {
        int32_t expert = 0, above = j.n_experts;
        while (above - expert > 1) { /* the last whose tiles begin at t or before */
            const int32_t middle = (expert + above) / 2;
            if (tile_base[middle] <= t)
                expert = middle;
            else
                above = middle;
        }
        int64_t first = 0, end = 0;
        if (t < tile_base[j.n_experts]) {
            if (j.offsets != NULL) {
                range_of(j, expert, &first, &end);
            } else {
                first = row_base[expert];
                end = row_base[expert + 1];
            }
            first += (t - tile_base[expert]) * j.mr;
        }
        const int64_t n = max(min((int64_t)j.mr, end - first), (int64_t)0);
        j.tiles[3 * t] = n > 0 ? expert : 0;
        j.tiles[3 * t + 1] = n > 0 ? (int32_t)first : 0;
        j.tiles[3 * t + 2] = (int32_t)n;
    }
    const int64_t placed = j.offsets != NULL ? 0 : row_base[j.n_experts];
    for (int64_t i = placed + from; i < j.m; i += apart)
        j.rows[i] = j.offsets != NULL ? (int32_t)i : -1;
}

/* ---- kernels --------------------------------------------------------------------------------- */

/* Offsets: every CTA finds out where tiles begin and writes its share. */
static __global__ void __launch_bounds__(THREADS)
    offsets_kernel(const __grid_constant__ struct route_job j)
{
    extern __shared__ int32_t shared[];
    __shared__ int64_t warps[32];
    rows_begin();
    int32_t *const row_base = shared, *const tile_base = shared + j.n_experts + 1;
    scan_experts(j, row_base, tile_base, warps);
    write_lists(j, row_base, tile_base, (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
                (int64_t)gridDim.x * blockDim.x);
}

/* Ids, one CTA: a chunk a warp. */
static __global__ void __launch_bounds__(THREADS)
    small_kernel(const __grid_constant__ struct route_job j)
{
    extern __shared__ int32_t shared[];
    __shared__ int64_t warps[32];
    rows_begin();
    int32_t *const row_base = shared, *const tile_base = shared + j.n_experts + 1;
    int32_t *const counts = tile_base + j.n_experts + 1;
    const int32_t warp = threadIdx.x >> 5;
    for (int32_t i = (int32_t)threadIdx.x; i < j.n_chunks * j.n_experts; i += (int32_t)blockDim.x)
        counts[i] = 0;
    __syncthreads();
    struct kept kept;
    if (warp < j.n_chunks)
        count_kept(j, warp, counts + warp * j.n_experts, &kept);
    __syncthreads();
    for (int32_t e = (int32_t)threadIdx.x; e < j.n_experts; e += (int32_t)blockDim.x) {
        int32_t sum = 0;
        for (int32_t c = 0; c < j.n_chunks; c++) {
            const int32_t here = counts[c * j.n_experts + e];
            counts[c * j.n_experts + e] = sum;
            sum += here;
        }
        row_base[e] = sum;
    }
    __syncthreads();
    scan_experts(j, row_base, tile_base, warps);
    if (warp < j.n_chunks)
        place_kept(j, warp, row_base, counts + warp * j.n_experts, &kept);
    write_lists(j, row_base, tile_base, threadIdx.x, blockDim.x);
}

/* Ids, many rows: counts of the chunks, */
static __global__ void count_kernel(const __grid_constant__ struct route_job j)
{
    extern __shared__ int32_t shared[];
    rows_begin();
    const int32_t chunk = (int32_t)(blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5));
    if (chunk >= j.n_chunks)
        return; /* warps do not meet */
    int32_t *const counts = shared + (threadIdx.x >> 5) * j.n_experts;
    for (int32_t e = threadIdx.x & 31; e < j.n_experts; e += 32)
        counts[e] = 0;
    __syncwarp();
    count_chunk(j, chunk, counts);
    for (int32_t e = threadIdx.x & 31; e < j.n_experts; e += 32)
        j.counts[(int64_t)chunk * j.n_experts + e] = counts[e];
}

/* where each chunk begins in its experts: a warp an expert, */
static __global__ void __launch_bounds__(SCAN_WARPS * 32)
    scan_kernel(const __grid_constant__ struct route_job j)
{
    rows_begin();
    const int32_t expert = (int32_t)(blockIdx.x * SCAN_WARPS + (threadIdx.x >> 5));
    const int32_t lane = threadIdx.x & 31;
    if (expert >= j.n_experts)
        return; /* warps do not meet */
    int32_t here[STRIPS], before = 0;
#pragma unroll
    for (int s = 0; s < STRIPS; s++)
        here[s] = 32 * s + lane < j.n_chunks
                      ? j.counts[(int64_t)(32 * s + lane) * j.n_experts + expert]
                      : 0;
#pragma unroll
    for (int s = 0; s < STRIPS; s++) {
        if (32 * s >= j.n_chunks)
            break;
        int32_t v = here[s];
        for (int32_t step = 1; step < 32; step *= 2) {
            const int32_t less = __shfl_up_sync(0xffffffffu, v, step);
            v += lane >= step ? less : 0;
        }
        if (32 * s + lane < j.n_chunks)
            j.counts[(int64_t)(32 * s + lane) * j.n_experts + expert] = before + v - here[s];
        before += __shfl_sync(0xffffffffu, v, 31);
    }
    if (lane == 0)
        j.totals[expert] = before;
}

/* and the rows to their places. Every CTA adds up the experts for itself. */
static __global__ void place_kernel(const __grid_constant__ struct route_job j)
{
    extern __shared__ int32_t shared[];
    __shared__ int64_t warps[32];
    rows_begin();
    int32_t *const row_base = shared, *const tile_base = shared + j.n_experts + 1;
    const int32_t chunk = (int32_t)(blockIdx.x * (blockDim.x >> 5) + (threadIdx.x >> 5));
    int32_t *const places = tile_base + j.n_experts + 1 + (threadIdx.x >> 5) * j.n_experts;
    for (int32_t e = (int32_t)threadIdx.x; e < j.n_experts; e += (int32_t)blockDim.x)
        row_base[e] = j.totals[e];
    __syncthreads();
    scan_experts(j, row_base, tile_base, warps);
    if (chunk < j.n_chunks) {
        for (int32_t e = threadIdx.x & 31; e < j.n_experts; e += 32)
            places[e] = j.counts[(int64_t)chunk * j.n_experts + e];
        __syncwarp();
        place_chunk(j, chunk, row_base, places);
    }
    write_lists(j, row_base, tile_base, (int64_t)blockIdx.x * blockDim.x + threadIdx.x,
                (int64_t)gridDim.x * blockDim.x);
}

/* ---- how it is cut --------------------------------------------------------------------------- */

static size_t bases(int32_t n_experts)
{
    return 2 * ((size_t)n_experts + 1);
}

/* Chunks that one CTA counts side by side, or 0: too many rows for one. */
static int32_t small_chunks(int64_t m, int32_t n_experts)
{
    const int64_t room = SHARED_INTS - (int64_t)bases(n_experts);
    const int64_t fit = room / (n_experts > 0 ? n_experts : 1), chunks = fit < 32 ? fit : 32;
    const int64_t all = chunks * STEPS * 32, most = all < SMALL_ROWS ? all : (int64_t)SMALL_ROWS;
    return chunks > 0 && m <= most && (chunks == 32 || m <= LEAST_ROWS) ? (int32_t)chunks : 0;
}

/* Rows of a chunk: a multiple of 32. */
static int64_t chunk_of(int64_t m, int64_t chunks)
{
    const int64_t least = (m + chunks - 1) / chunks;
    return (least + 31) / 32 * 32;
}

static int64_t large_chunks(int64_t m, int32_t n_experts)
{
    const int64_t room = COUNTERS / (n_experts > 0 ? n_experts : 1), most = STRIPS * 32;
    const int64_t fit = room > most ? most : room > 0 ? room : 1;
    const int64_t wanted = (m + MIN_CHUNK - 1) / MIN_CHUNK;
    return wanted < fit ? wanted : fit;
}

size_t qni_cuda_route_bytes(int64_t m, int32_t n_experts)
{
    if (small_chunks(m, n_experts) > 0)
        return 16;
    return ((size_t)large_chunks(m, n_experts) + 1) * (size_t)n_experts * sizeof(int32_t) + 16;
}

static int32_t launch_one(const void *kernel, int64_t grid, int64_t threads, size_t ints,
                          const struct route_job *j, const struct qni_cuda_launch *launch)
{
    return rows_launch_shared(kernel, grid, dim3((unsigned)threads), ints * sizeof(int32_t), j,
                              launch);
}

static int32_t sort_large(struct route_job *j, void *scratch, const struct qni_cuda_launch *launch)
{
    const size_t e = (size_t)j->n_experts;
    j->totals = (int32_t *)scratch;
    j->counts = j->totals + e;
    j->chunk = (int32_t)chunk_of(j->m, large_chunks(j->m, j->n_experts));
    j->n_chunks = (int32_t)((j->m + j->chunk - 1) / j->chunk);
    const int64_t fit = (SHARED_INTS - (int64_t)bases(j->n_experts)) / (int64_t)(e > 0 ? e : 1);
    const int64_t warps = fit < COUNT_WARPS ? fit : (int64_t)COUNT_WARPS;
    const int64_t grid = (j->n_chunks + warps - 1) / warps;
    const size_t own = (size_t)warps * e;
    int32_t failed = launch_one((const void *)count_kernel, grid, 32 * warps, own, j, launch);
    if (failed == 0)
        failed = launch_one((const void *)scan_kernel, (j->n_experts + SCAN_WARPS - 1) / SCAN_WARPS,
                            SCAN_WARPS * 32, 0, j, launch);
    if (failed == 0)
        failed = launch_one((const void *)place_kernel, grid, 32 * warps, bases(j->n_experts) + own,
                            j, launch);
    return failed;
}

int32_t qni_cuda_route_sm75(const struct qni_cuda_route *args, const struct qni_cuda_launch *launch)
{
    struct route_job j = {};
    j.offsets = args->offsets;
    j.ids = args->ids != NULL ? args->ids + args->row : NULL;
    j.tiles = args->tiles;
    j.rows = args->rows;
    j.row = args->row;
    j.m = args->m;
    j.n_experts = args->n_experts;
    j.mr = args->mr;
    j.n_tiles = (int32_t)((j.m + j.mr - 1) / j.mr + j.n_experts);
    while ((1 << j.bits) < j.n_experts)
        j.bits++;
    if (j.n_tiles == 0)
        return 0;
    if (j.offsets != NULL) {
        const int64_t work = (j.m + j.n_tiles + 4 * THREADS - 1) / (4 * THREADS);
        return launch_one((const void *)offsets_kernel, work < 128 ? work : 128, THREADS,
                          bases(j.n_experts), &j, launch);
    }
    const int32_t chunks = small_chunks(j.m, j.n_experts);
    if (chunks == 0)
        return sort_large(&j, args->scratch, launch);
    j.chunk = (int32_t)chunk_of(j.m > 0 ? j.m : 1, chunks);
    j.n_chunks = (int32_t)((j.m + j.chunk - 1) / j.chunk);
    const int64_t threads = j.n_chunks <= 8 && j.n_experts <= 256 ? 256 : THREADS;
    return launch_one((const void *)small_kernel, 1, threads,
                      bases(j.n_experts) + (size_t)j.n_chunks * (size_t)j.n_experts, &j, launch);
}
