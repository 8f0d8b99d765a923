/* SPDX-License-Identifier: Apache-2.0 */
/* How weights and x reach the warps of the int8 decode kernels.
 *
 *     item    chunk c of panel p: 4 KB of codes (512 positions of 4 bits, 256 of 8), then the
 *             scales of the groups it touches, then their zero points or offsets
 *
 * Segments: the f32 steps of an output have an order, so a panel's chunks are needed one after
 * another. The items of a CTA are dealt to its 8 warps like cards, chunk by chunk and all panels of
 * a chunk before the next chunk: item i = c * panels + p goes to warp i % 8. So whatever must be
 * done before an item (chunk c - 1 of its panel) was asked for `panels` items earlier, and is done
 * when a warp comes to it; where a CTA has few panels it waits.
 *
 * WHOLE, one segment for all of k: sums of integers need no order. Each warp has a run of items,
 * panel by panel, as long as the others' within one item, and keeps its sums in registers until
 * the panel ends; scales are needed once a panel and come apart from the codes.
 *
 * Each warp has a ring of `depth` items of its own in shared memory, filled by the copy engine on
 * sm_90 (an mbarrier tells when an item is there) and by cp.async before.
 *
 * x of all positions lies in shared memory, row by row, and so do the facts of its segments; where
 * they do not fit, k is cut in stretches. */
#ifndef QNI_CUDA_MATMUL_DECODE_INT8_CUH
#define QNI_CUDA_MATMUL_DECODE_INT8_CUH

#include "../decode.cuh"

#define INLINE static __device__ __forceinline__

namespace chunks
{

enum { WARPS = DECODE_WARPS, THREADS = DECODE_THREADS, CHUNK = DECODE_CHUNK };
enum { MIN_DEPTH = 2, MAX_DEPTH = 4 };
/* Shared memory: MAX_DEPTH barriers for each warp, how many chunks of each panel are done, the
 * scales of rows and their magnitudes, a barrier for x, the rings. */
enum { MOST_PANELS = 64, AT_DONE = 256, AT_ROWS = 512, AT_MOST = 576, AT_BAR = 640, AT_RING = 768 };
/* Units of a segment, none of which crosses a chunk; or segments of any length; or one for all. */
enum { ANY = 0, WHOLE = -1 };
enum { LINE = 20 };  /* words from row to row of 16 outputs: lanes meet in no bank */
enum { TRADE = 36 }; /* words of an output: 16 dots, 16 sums of codes */

/* What is worked out once for a launch. */
struct job {
    const uint8_t *blob; /* NULL: of the tile's expert */
    size_t codes, scale, extra, counts;
    int32_t share, more, ctas; /* panels of a CTA: the first `more` have share + 1 */
    int32_t panels, n;         /* of a part */
    int32_t chunks, stretch;   /* of a panel, of a stretch of it */
    int32_t last_bytes;        /* of the last chunk of a panel */
    uint32_t panel_bytes;
    int32_t units, n_groups, group_units, group_magic;
    int32_t segment_units, segment_magic, per_group, n_segments;
    int32_t rows;        /* of tables of 16 in a chunk: one for each of its units, or fewer */
    int32_t in_line;     /* they lie side by side in the blob */
    int32_t row_bytes;   /* of scales: 32 or 64 */
    int32_t extra_bytes; /* of zero points 16, offsets 32 or 64; else 0 */
    int32_t table_step;  /* scales of unit u: at u * table_step rounded down to row_bytes */
    int32_t scale_is_f16;
    int32_t is_q8b, has_sums; /* facts of segments; sums of codes are wanted */
    int32_t is_raw;           /* WHOLE: a bias for the sums, or they are y */
    int32_t slot_bytes, depth;
    int32_t ahead; /* items of a warp that are asked for before x, where x is not there yet */
    int32_t at_sums, at_dots, at_totals, at_trade, at_scale, at_offset, at_total, at_x;
    int32_t at_lying;               /* x as it lies */
    int32_t at_table, at_extra;     /* WHOLE: scales and zero points or offsets of the panels */
    int32_t facts_stride, x_stride; /* floats, bytes */
    int32_t bytes;                  /* of shared memory */
    int32_t pdl, m;
    int64_t row;
    struct qni_cuda_rows x;
    struct qni_cuda_routes routes;
};

INLINE int32_t group_of(const struct job &d, int32_t unit)
{
    return min(decode_divide((uint32_t)unit, (uint32_t)d.group_units, d.group_magic),
               d.n_groups - 1);
}

/* How many chunks of a panel are done: a word, which tells of what was written before it. All lanes
 * of a warp come here. (A barrier at which every lane arrives, which racecheck could follow, costs
 * 7 % at m = 1: lab/cuda/NOTES.md.) */
INLINE void done_set(uint32_t at, int32_t chunks, int32_t lane)
{
    __syncwarp();
    if (lane == 0)
        asm volatile("st.release.cta.shared.u32 [%0], %1;" ::"r"(at), "r"(chunks) : "memory");
}
INLINE void done_wait(uint32_t at, int32_t chunks)
{
    int32_t n;
    do
        asm volatile("ld.acquire.cta.shared.u32 %0, [%1];" : "=r"(n) : "r"(at) : "memory");
    while (n < chunks);
}

/* ---- items ----------------------------------------------------------------------------------- */

/* Chunk c of the `len` of the stretch at s, panel p of the CTA's; WHOLE: the first of `left`. */
struct item {
    int32_t s, len, c, p, left;
};
template <int SEG> INLINE bool item_is(const struct item &i)
{
    return SEG == WHOLE ? i.left > 0 : i.c < i.len;
}
INLINE void item_settle(struct item &i, int32_t count)
{
#pragma unroll 1
    for (; i.p >= count; i.p -= count)
        i.c++;
}
template <int SEG> INLINE void item_next(struct item &i, int32_t count)
{
    if (SEG != WHOLE) {
        i.p += WARPS;
        item_settle(i, count);
        return;
    }
    i.left--;
    if (++i.c == i.len) {
        i.c = 0;
        i.p++;
    }
}
template <int SEG>
INLINE void item_begin(const struct job &d, struct item &i, int32_t s, int32_t warp, int32_t count)
{
    i.s = s;
    i.len = min(d.stretch, d.chunks - s);
    i.c = 0;
    i.p = warp;
    i.left = 0;
    if (SEG != WHOLE) {
        item_settle(i, count);
        return;
    }
    const uint32_t first = (uint32_t)(count * i.len) * (uint32_t)warp / WARPS;
    i.left = (int32_t)((uint32_t)(count * i.len) * (uint32_t)(warp + 1) / WARPS - first);
    i.p = (int32_t)(first / (uint32_t)i.len);
    i.c = (int32_t)first - i.p * i.len;
}

/* What a CTA has: panels [first, first + count) of a part's, or of an expert's. */
struct whose {
    int32_t first, count, part, expert;
    const uint8_t *blob;
};

/* Asks for an item: by lane 0 on sm_90, by all before. */
template <int UNITS, int SEG>
INLINE void ask(const struct job &d, const struct whose &w, const struct item &i, uint32_t slot,
                uint32_t bar, int32_t lane)
{
    const int32_t chunk = i.s + i.c, u = chunk * UNITS;
    const int32_t bytes = chunk == d.chunks - 1 ? d.last_bytes : CHUNK;
    const int32_t panel = w.part * d.panels + w.first + i.p;
    const uint8_t *const codes =
        w.blob + d.codes + (size_t)panel * d.panel_bytes + (size_t)chunk * CHUNK;
    const size_t table = (size_t)panel * (size_t)d.n_groups;
    const uint8_t *const scale = w.blob + d.scale + table * (size_t)d.row_bytes;
    const uint8_t *const extra = w.blob + d.extra + table * (size_t)d.extra_bytes;
    const int32_t rows = SEG == WHOLE ? 0 : d.rows;
    const int32_t scales = rows * d.row_bytes, extras = rows * d.extra_bytes;
#if __CUDA_ARCH__ >= 900
    if (lane != 0)
        return;
    decode_bar_expect(bar, bytes + scales + extras);
    decode_bulk(slot, codes, bytes, bar);
    if (SEG == WHOLE)
        return;
    slot += CHUNK;
    const int32_t q = decode_divide((uint32_t)u, (uint32_t)d.group_units, d.group_magic);
    if (d.in_line && q + d.rows <= d.n_groups) {
        decode_bulk(slot, scale + q * d.row_bytes, scales, bar);
        if (extras != 0)
            decode_bulk(slot + (uint32_t)scales, extra + q * d.extra_bytes, extras, bar);
        return;
    }
#pragma unroll 1
    for (int32_t r = 0; r < d.rows; r++) {
        const int32_t at = group_of(d, u + r * (UNITS / d.rows));
        decode_bulk(slot + (uint32_t)(r * d.row_bytes), scale + at * d.row_bytes, d.row_bytes, bar);
        if (extras != 0)
            decode_bulk(slot + (uint32_t)(scales + r * d.extra_bytes), extra + at * d.extra_bytes,
                        d.extra_bytes, bar);
    }
#else
#pragma unroll
    for (int at = 0; at < CHUNK; at += 512)
        if (at < bytes)
            ptx_copy16(slot + (uint32_t)(at + lane * 16), codes + at + lane * 16, true);
    if (SEG == WHOLE)
        return;
    slot += CHUNK;
    const int32_t pieces = d.row_bytes / 16, more = d.extra_bytes / 16;
    for (int32_t r = lane; r < d.rows * pieces; r += 32)
        ptx_copy16(slot + (uint32_t)(r * 16),
                   scale + group_of(d, u + r / pieces * (UNITS / d.rows)) * d.row_bytes +
                       r % pieces * 16,
                   true);
    slot += (uint32_t)scales;
    for (int32_t r = lane; r * 16 < extras; r += 32)
        ptx_copy16(slot + (uint32_t)(r * 16),
                   extra + group_of(d, u + r / more * (UNITS / d.rows)) * d.extra_bytes +
                       r % more * 16,
                   true);
    (void)bar;
#endif
}

/* Asks for the warp's next item, if there is one, into a slot that all lanes have read. */
template <int UNITS, int SEG>
INLINE void fetch(const struct job &d, const struct whose &w, struct item &i, uint32_t slot,
                  uint32_t bar, int32_t warp, int32_t lane)
{
#pragma unroll 1
    while (!item_is<SEG>(i) && i.s + d.stretch < d.chunks)
        item_begin<SEG>(d, i, i.s + d.stretch, warp, w.count);
    if (item_is<SEG>(i)) {
        ask<UNITS, SEG>(d, w, i, slot, bar, lane);
        item_next<SEG>(i, w.count);
    }
#if __CUDA_ARCH__ < 900
    ptx_copies_commit();
#endif
}

/* ---- x --------------------------------------------------------------------------------------- */

/* Bytes of an element of x as it lies, and of a row of it in shared memory. */
static inline __host__ __device__ int32_t lying_size(const struct job &d)
{
    return d.x.lies == QN_F32 ? 4 : 2;
}
static inline __host__ __device__ int32_t lying_stride(const struct job &d)
{
    return (d.x_stride - 64) * lying_size(d);
}

/* x at position `from`, `positions` long, to shared memory; zeros behind its columns. ONE: there is
 * one row, which comes by cp.async (behind weights in the queue of the copy engine it would wait
 * for them), and a second one of ones (of zeros where sums of codes are not wanted). More rows are
 * too many for that. Nobody reads before x_wait(). */
template <int ONE>
INLINE void x_ask(const struct job &d, const struct decode_rows &rows, int32_t from,
                  int32_t positions, uint8_t *shared, uint32_t bar, int32_t warp, int32_t lane)
{
    const int32_t valid = min(positions, d.x.columns - from);
    uint8_t *const to = shared + d.at_x;
    if constexpr (ONE) {
        const uint8_t *const x = (const uint8_t *)d.x.a + decode_row_of(rows, 0) * d.x.lda + from;
        for (int32_t c = (int32_t)threadIdx.x * 16; c < positions; c += THREADS * 16) {
            const uint32_t one = d.has_sums && from + c < d.units * 32 ? 0x01010101 : 0;
            if (d.x.lies == 0)
                ptx_copy16(ptx_shared(to + c), x + (c < valid ? c : 0), c < valid);
            *(uint4 *)(to + d.x_stride + c) = make_uint4(one, one, one, one);
        }
    } else {
#pragma unroll 1
        for (int32_t r = warp; r < rows.m; r += WARPS) {
            const uint8_t *const x =
                (const uint8_t *)d.x.a + decode_row_of(rows, r) * d.x.lda + from;
            const uint32_t row = ptx_shared(to) + (uint32_t)(r * d.x_stride);
#if __CUDA_ARCH__ >= 900
            if (lane == 0)
                decode_bulk(row, x, valid, bar);
#else
            for (int32_t c = lane * 16; c < valid; c += 512)
                ptx_copy16(row + (uint32_t)c, x + c, true);
#endif
            for (int32_t c = valid + lane * 16; c < positions; c += 512)
                *(uint4 *)(to + r * d.x_stride + c) = make_uint4(0, 0, 0, 0);
        }
#if __CUDA_ARCH__ >= 900
        if (threadIdx.x == 0)
            decode_bar_expect(bar, rows.m * valid);
#endif
    }
}

/* Scales of rows, or of all: at the end they would take as long as memory does. */
INLINE void row_scales_ask(const struct job &d, const struct decode_rows &rows, uint8_t *shared)
{
    const int32_t r = (int32_t)threadIdx.x;
    if (d.is_q8b || r >= rows.m)
        return;
    float *const to = (float *)(shared + AT_ROWS) + r;
    if (d.x.row_scale != NULL)
        ptx_copy4(ptx_shared(to), d.x.row_scale + decode_row_of(rows, r), true);
    else
        *to = d.x.x_scale;
}
/* What the steps need of x, segments [first, first + n), row by row. Rows with one scale have 1 and
 * -x_zero, for which the steps of the others are theirs, exactly. */
INLINE void facts_ask(const struct job &d, const struct whose &w, const struct decode_rows &rows,
                      int32_t first, int32_t n, uint8_t *shared, int32_t warp, int32_t lane)
{
    const int32_t *const counts = (const int32_t *)(w.blob + d.counts) + first;
    float *const scale = (float *)(shared + d.at_scale),
                 *const offset = (float *)(shared + d.at_offset),
                 *const total = (float *)(shared + d.at_total);
#pragma unroll 1
    for (int32_t r = warp; r < rows.m; r += WARPS) {
        const int64_t from = decode_row_of(rows, r) * d.x.ld_segment + first;
        const int32_t to = r * d.facts_stride;
#pragma unroll 4
        for (int32_t s = lane; s < n; s += 32) {
            if (d.is_q8b) {
                ptx_copy4(ptx_shared(scale + to + s), d.x.scale + from + s, true);
                if (d.has_sums)
                    ptx_copy4(ptx_shared(offset + to + s), d.x.offset + from + s, true);
                if (d.extra_bytes != 0)
                    ptx_copy4(ptx_shared(total + to + s), d.x.total + from + s, true);
                continue;
            }
            scale[to + s] = 1.0f;
            if (d.has_sums)
                offset[to + s] = (float)-d.x.x_zero;
            if (d.extra_bytes != 0)
                total[to + s] = (float)(d.x.sum[from + s] - d.x.x_zero * counts[s]);
        }
    }
    ptx_copies_commit();
}
/* All of it is there, and each thread sees what the others wrote. */
template <int ONE> INLINE void x_wait(const struct job &d, uint32_t bar, int32_t parity)
{
    ptx_copies_wait<0>();
#if __CUDA_ARCH__ >= 900
    if (!ONE && d.x.lies == 0)
        decode_bar_wait(bar, parity);
#endif
    __syncthreads();
}

/* ---- launches -------------------------------------------------------------------------------- */

/* What does not depend on the shared memory. units: of a chunk; mr: rows of a tile. */
static inline void plan(struct job *d, const struct qni_cuda_product *p,
                        const struct qni_cuda_launch *launch, int32_t units, int32_t mr)
{
    const struct qni_cuda_weights *const w = &p->w;
    (void)decode_plan_weights(d, p, launch, units, mr);
    d->counts = w->counts;
    d->segment_units = w->segment_units;
    d->segment_magic = decode_magic(w->segment_units);
    d->per_group = w->segments_per_group;
    d->n_segments = w->n_segments;
    d->routes = p->routes;
}

static inline void plan_share(struct job *d, int32_t ctas)
{
    const int32_t least = (d->panels + MOST_PANELS - 1) / MOST_PANELS;
    ctas = ctas < least ? least : ctas;
    d->ctas = ctas > d->panels ? d->panels : ctas;
    d->share = d->panels / d->ctas;
    d->more = d->panels % d->ctas;
}

/* CTAs for the panels of a part: as many as there are multiprocessors. Of a tile of an expert:
 * there is one tile for each expert that has rows, as far as one can tell here; a turn of all
 * multiprocessors takes as long as a CTA's panels, and some microseconds for the way in and out, in
 * which 48 KB would have come. */
static inline int32_t plan_ctas(const struct job *d, const struct qni_cuda_product *p,
                                const struct qni_cuda_launch *launch)
{
    const int64_t machines = launch->multiprocessors;
    const int64_t tiles = p->m < p->routes.n_tiles ? p->m : p->routes.n_tiles;
    int64_t best = 0, least = 0;
    if (p->routes.tiles == NULL)
        return (launch->multiprocessors + p->w.parts - 1) / p->w.parts;
    for (int64_t share = 1; share <= MOST_PANELS && share <= d->panels; share++) {
        const int64_t ctas = (d->panels + share - 1) / share;
        const int64_t turns = (tiles * ctas + machines - 1) / machines;
        const int64_t cost = turns * ((48 << 10) + share * d->panel_bytes);
        if (best == 0 || cost < least) {
            best = ctas;
            least = cost;
        }
    }
    return (int32_t)best;
}

/* Where things lie, with this depth and stretch. seg: as of the kernel. True: it fits in `limit`
 * bytes. */
static inline bool plan_fits(struct job *d, int32_t units, int32_t seg, int32_t rows, int32_t limit)
{
    const int64_t panels = d->share + (d->more > 0), lines = panels * rows * LINE * 4;
    const int64_t reach = (int64_t)d->stretch * units;
    const int32_t gu = d->group_units < d->units ? d->group_units : d->units;
    const int64_t segments = seg == WHOLE ? 1
                             : seg != ANY ? reach / seg
                                          : reach / d->segment_units + reach / gu + 2;
    const int64_t stride = (segments + 31) / 32 * 32 + 4, facts = stride * 4 * d->m;
    int64_t at = AT_RING + (int64_t)WARPS * d->depth * d->slot_bytes;
    const int64_t table = at;
    at += seg == WHOLE ? panels * d->row_bytes : 0;
    const int64_t extra = at;
    at += seg == WHOLE ? panels * d->extra_bytes : 0;
    const int64_t sums = at;
    at += seg == WHOLE ? 0 : lines;
    const int64_t dots = at;
    at += seg == ANY || seg == WHOLE ? lines : 0;
    const int64_t totals = at;
    at += (seg == ANY || seg == WHOLE) && d->has_sums ? panels * 64 : 0;
    const int64_t trade = at;
    at += rows == 1 ? WARPS * 16 * TRADE * 4 : 0;
    const int64_t scale = at;
    at += facts;
    const int64_t offset = at;
    at += d->has_sums ? facts : 0;
    const int64_t total = at;
    at += d->extra_bytes != 0 ? facts : 0;
    const int64_t x = (at + 127) / 128 * 128, x_stride = reach * 32 + 64;
    at = x + (d->m + (rows == 1)) * x_stride;
    const int64_t lying = at;
    if (d->x.lies != 0) /* at once, so that its rows have one scale */
        at += d->stretch < d->chunks ? limit : d->m * (x_stride - 64) * lying_size(*d);
    if (at > limit)
        return false;
    d->at_lying = (int32_t)lying;
    d->at_table = (int32_t)table;
    d->at_extra = (int32_t)extra;
    d->at_sums = (int32_t)sums;
    d->at_dots = (int32_t)dots;
    d->at_totals = (int32_t)totals;
    d->at_trade = (int32_t)trade;
    d->at_scale = (int32_t)scale;
    d->at_offset = (int32_t)offset;
    d->at_total = (int32_t)total;
    d->facts_stride = (int32_t)stride;
    d->at_x = (int32_t)x;
    d->x_stride = (int32_t)x_stride; /* lanes of two rows meet in no bank */
    d->bytes = (int32_t)at;
    return true;
}

/* All of k at once with a ring as deep as there is room for; else in stretches; else with fewer
 * panels a CTA. One panel, one chunk, 16 rows fit everywhere. */
static inline void plan_shared(struct job *d, const struct qni_cuda_launch *launch, int32_t units,
                               int32_t seg, int32_t rows, int32_t ctas)
{
    const int32_t limit = decode_shared_limit(launch, 1);
    const int32_t most = launch->sm == 90 ? MAX_DEPTH : MIN_DEPTH;
    for (;; ctas *= 2) {
        plan_share(d, ctas);
        for (d->stretch = d->chunks;; d->stretch = (d->stretch + 1) / 2) {
            for (d->depth = most; d->depth >= MIN_DEPTH; d->depth--)
                if (plan_fits(d, units, seg, rows, limit))
                    return;
            if (d->stretch <= 1)
                break;
        }
        if (d->share + (d->more > 0) <= 1)
            return; /* the launch says so */
    }
}

static inline int32_t launch_job(const void *kernel, struct job *d,
                                 const struct qni_cuda_product *p,
                                 const struct qni_cuda_experts *experts,
                                 const struct qni_cuda_launch *launch)
{
    static const struct qni_cuda_experts none = {0, 0, {NULL}, {0}};
    struct qni_cuda_sink out = p->out;
    void *arguments[] = {d, &out, (void *)(experts != NULL ? experts : &none)};
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    /* Tiles that have rows are the first ones, and no more than there are rows. */
    const int64_t tiles = p->m < p->routes.n_tiles ? p->m : p->routes.n_tiles;
    config.gridDim =
        dim3((unsigned)(p->routes.tiles != NULL ? tiles : p->w.parts), (unsigned)d->ctas);
    config.blockDim = dim3(THREADS);
    config.dynamicSmemBytes = (size_t)d->bytes;
    config.stream = (cudaStream_t)launch->stream;
    config.attrs = &attribute;
    config.numAttrs = launch->pdl ? 1 : 0;
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, d->bytes);
    if (status == cudaSuccess)
        status = cudaLaunchKernelExC(&config, kernel, arguments);
    (void)cudaGetLastError();
    return (int32_t)status;
}

} // namespace chunks

#endif
