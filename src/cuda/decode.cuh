/* SPDX-License-Identifier: Apache-2.0 */
/* How weights reach the warps of the decode kernels (at most 16 rows of x), which do little but
 * wait for them. Each of the 8 warps of a CTA has a ring of its own in shared memory, filled
 * `depth` chunks ahead, so that 64 to 96 KB are on their way to a multiprocessor whatever its warps
 * are doing:
 *
 *     chunk   4 KB of codes (512 positions of 4 bits, 256 of 8, of one panel), then the scales of
 *             the groups it touches, then their zero points or offsets
 *
 * On sm_90 the copy engine brings a chunk in two or three bulk copies and an mbarrier tells when it
 * is there: no register, no scoreboard and no place in the queue of L1 is held meanwhile, where
 * loads of x would wait behind it. Before sm_90, cp.async. (lab/cuda/NOTES.md has what other ways
 * cost.)
 *
 * A CTA has panels [first, first + count) of 16 outputs; each warp has a run of chunks of them, of
 * equal length within one chunk. A run may cut a panel: partial sums meet in shared memory, in the
 * order of the warps, always the same. Where x of all positions does not fit beside the ring, k is
 * cut in stretches and the warps make their way through all panels once for each of them. */
#ifndef QNI_CUDA_DECODE_CUH
#define QNI_CUDA_DECODE_CUH

#include <cuda_runtime.h>

#include <string.h>

#include "kernel.h"
#include "ptx.cuh"

#define DECODE static __device__ __forceinline__

enum { DECODE_WARPS = 8, DECODE_THREADS = 256, DECODE_CHUNK = 4096 };
enum { DECODE_MIN_DEPTH = 2, DECODE_MAX_DEPTH = 3 };
/* In shared memory, behind the barriers: a table, if codes are looked up in one, then the rings. */
enum { DECODE_AT_TABLE = 1152 };

/* What is worked out once for a launch (decode_plan), what is asked for first in front. */
struct decode {
    const uint8_t *blob; /* NULL: of the tile's expert */
    size_t codes, scale, extra, table;
    int32_t share, more;     /* panels of a CTA: the first `more` have share + 1 */
    int32_t chunks, stretch; /* of a panel, of a stretch of it */
    int32_t last_bytes;      /* of the last chunk of a panel */
    uint32_t panel_bytes;
    int32_t n_groups, group_units, group_magic;
    int32_t rows;           /* of tables of 16 in a chunk: one for each of its units, or fewer */
    int32_t in_line;        /* they lie side by side in the blob */
    int32_t scales, extras; /* bytes of a chunk's */
    int32_t period;         /* chunks with the same rows */
    int32_t ragged;         /* a panel's last chunk has fewer */
    int32_t x_short;        /* x has fewer columns than the chunks have positions */
    int32_t row_bytes;      /* of scales: 32 or 64 */
    int32_t extra_bytes;    /* of zero points 16, offsets 32 or 64; else 0 */
    int32_t table_step;     /* scales of unit u: at u * table_step rounded down to row_bytes */
    size_t sums;            /* of codes, by segment: at_totals in a slot; 0: not wanted */
    size_t counts;          /* [segment] i32: real positions */
    int32_t scales_rows, at_facts;
    int32_t at_totals;
    int32_t segment_units, segment_magic, per_group, n_segments;
    int32_t slot_bytes, depth, rings;
    int32_t at_ring, at_sums, at_x, x_stride;
    int32_t pdl, cluster, m, m_magic;
    int32_t stacked; /* planes of x, where each has sums of its own beside the others'; else 1 */
    int32_t share_magic, more_magic;
    int32_t panels, n; /* of a part */
    int32_t scale_is_f16, units;
    int32_t bytes, ctas; /* of shared memory; that share a part's or a tile's panels */
    int64_t row;
    struct qni_cuda_rows x;
    struct qni_cuda_routes routes;
};

/* u / d; magic = floor(2^32 / d) (2^32 - 1 for d = 1) is never more than one below. */
DECODE int32_t decode_divide(uint32_t u, uint32_t d, int32_t magic)
{
    const uint32_t q = __umulhi(u, (uint32_t)magic);
    return (int32_t)(q + (u - q * d >= d));
}

/* ---- bulk copies ----------------------------------------------------------------------------- */

#ifdef __CUDA_ARCH_FEAT_SM90_ALL
enum { DECODE_MULTICAST = 1 };
#else
enum { DECODE_MULTICAST = 0 };
#endif

#if !defined __CUDA_ARCH__ || __CUDA_ARCH__ >= 900
DECODE void decode_bar_init(uint32_t bar, int32_t count)
{
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bar), "r"(count) : "memory");
}
DECODE void decode_bar_fence(void)
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
DECODE void decode_bar_expect(uint32_t bar, int32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes)
                 : "memory");
}
DECODE void decode_bar_arrive(uint32_t bar)
{
    asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(bar) : "memory");
}
DECODE void decode_bar_wait(uint32_t bar, int32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "AGAIN:\n"
                 "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
                 "@done bra DONE;\n"
                 "bra AGAIN;\n"
                 "DONE:\n"
                 "}" ::"r"(bar),
                 "r"(parity)
                 : "memory");
}
/* To the same place in every CTA of the cluster; each one's barrier hears of it. Fast on sm_90a
 * alone: in PTX for later GPUs each CTA asks for itself. */
DECODE void decode_bulk_to_all(uint32_t to, const void *from, int32_t bytes, uint32_t bar,
                               int32_t cluster)
{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes"
                 ".multicast::cluster [%0], [%1], %2, [%3], %4;" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar), "h"((uint16_t)((1 << cluster) - 1))
                 : "memory");
#endif
}
DECODE int32_t decode_cluster_rank(void)
{
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return (int32_t)rank;
}
/* All threads of the cluster have come this far; what they wrote is another matter. */
DECODE void decode_cluster_arrive(void)
{
    asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
}
DECODE void decode_cluster_wait(void)
{
    asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}
/* 16-byte aligned, a multiple of 16 bytes. */
DECODE void decode_bulk(uint32_t to, const void *from, int32_t bytes, uint32_t bar)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(to),
                 "l"(from), "r"(bytes), "r"(bar)
                 : "memory");
}
#endif

/* ---- a warp's run ---------------------------------------------------------------------------- */

/* Chunks [cut, ...) of panel p_begin to [..., cut_end) of panel p_end are the warp's; cuts in 8ths
 * of a panel, the same in every stretch. */
struct decode_run {
    uint32_t p_begin, p_end, cut, cut_end;
};
DECODE struct decode_run decode_run_of(int32_t count, int32_t warp)
{
    const uint32_t a = (uint32_t)(count * warp), b = a + (uint32_t)count;
    const struct decode_run r = {a / DECODE_WARPS, b / DECODE_WARPS, a % DECODE_WARPS,
                                 b % DECODE_WARPS};
    return r;
}
DECODE int32_t decode_run_first(const struct decode_run &r, int32_t len)
{
    return (int32_t)(r.cut * (uint32_t)len / DECODE_WARPS);
}
DECODE int32_t decode_run_chunks(const struct decode_run &r, int32_t len)
{
    return (int32_t)((r.p_end - r.p_begin) * (uint32_t)len +
                     r.cut_end * (uint32_t)len / DECODE_WARPS) -
           decode_run_first(r, len);
}

/* The next chunk to ask for: chunk c of the `len` of the stretch at s, of panel `panel`; `left`
 * more of this stretch. Where it lies, and its tables, which change after `until` chunks. */
struct decode_walk {
    int32_t s, len, c, left, panel, until;
    const uint8_t *codes, *scale, *extra;
};
template <int UNITS>
DECODE void decode_walk_point(const struct decode &d, const uint8_t *blob, struct decode_walk &f)
{
    const int32_t chunk = f.s + f.c;
    const int32_t q =
        decode_divide((uint32_t)(chunk * UNITS), (uint32_t)d.group_units, d.group_magic);
    const size_t table = (size_t)f.panel * (size_t)d.n_groups + (size_t)q;
    f.codes = blob + d.codes + (size_t)f.panel * d.panel_bytes + (size_t)chunk * DECODE_CHUNK;
    f.scale = blob + d.scale + table * (size_t)d.row_bytes;
    f.extra = blob + d.extra + table * (size_t)d.extra_bytes;
    f.until = d.period == 1 ? 1 : (q + 1) * d.period - chunk;
}
template <int UNITS>
DECODE void decode_walk_begin(const struct decode &d, const uint8_t *blob,
                              const struct decode_run &r, int32_t first, int32_t s,
                              struct decode_walk &f)
{
    f.s = s;
    f.len = min(d.stretch, d.chunks - s);
    f.c = decode_run_first(r, f.len);
    f.left = decode_run_chunks(r, f.len);
    f.panel = first + (int32_t)r.p_begin;
    decode_walk_point<UNITS>(d, blob, f);
}

/* Rows of tables of the chunk whose first unit is u: row i is that of unit u + i * UNITS / rows. */
template <int UNITS> DECODE int32_t decode_group(const struct decode &d, int32_t u, int32_t i)
{
    const uint32_t unit = (uint32_t)(u + i * (UNITS / d.rows));
    return min(decode_divide(unit, (uint32_t)d.group_units, d.group_magic), d.n_groups - 1);
}

/* The segment that unit u belongs to. D: struct decode, or another with the same numbers of the
 * weights (decode_plan_weights). */
template <class D> DECODE int32_t decode_segment(const D &d, int32_t u)
{
    const int32_t q =
        min(decode_divide((uint32_t)u, (uint32_t)d.group_units, d.group_magic), d.n_groups - 1);
    const int32_t i = decode_divide((uint32_t)(u - q * d.group_units), (uint32_t)d.segment_units,
                                    d.segment_magic);
    return q * d.per_group + min(i, d.per_group - 1);
}

/* Where a warp is in k. */
struct decode_place {
    int32_t unit, segment, group_left, left; /* units of the group and of the segment to come */
};
template <class D> DECODE struct decode_place decode_place_at(const D &d, int32_t unit)
{
    struct decode_place at;
    const int32_t q =
        min(decode_divide((uint32_t)unit, (uint32_t)d.group_units, d.group_magic), d.n_groups - 1);
    const int32_t end = q == d.n_groups - 1 ? d.units : (q + 1) * d.group_units;
    at.unit = unit;
    at.segment = decode_segment(d, unit);
    at.group_left = end - unit;
    const int32_t into =
        unit - q * d.group_units - (at.segment - q * d.per_group) * d.segment_units;
    at.left = at.segment + 1 == (q + 1) * d.per_group ? at.group_left : d.segment_units - into;
    at.left = min(at.left, at.group_left);
    return at;
}
/* Over the unit; true: it was the last of its segment, which at.segment still names. */
DECODE bool decode_ends_segment(struct decode_place &at)
{
    at.unit++;
    at.group_left--;
    return --at.left == 0;
}
template <class D> DECODE void decode_next_segment(const D &d, struct decode_place &at)
{
    at.segment++;
    if (at.group_left == 0)
        at.group_left =
            at.segment / d.per_group == d.n_groups - 1 ? d.units - at.unit : d.group_units;
    at.left = min(d.segment_units, at.group_left);
}

/* Asks for the chunk at f, whatever its tables are: by lane 0 on sm_90, by all before. */
template <int UNITS>
DECODE void decode_ask_any(const struct decode &d, const struct decode_walk &f, const uint8_t *blob,
                           uint32_t slot, uint32_t bar, int32_t lane)
{
    const int32_t chunk = f.s + f.c, bytes = chunk == d.chunks - 1 ? d.last_bytes : DECODE_CHUNK;
    const uint8_t *const codes =
        blob + d.codes + (size_t)f.panel * d.panel_bytes + (size_t)chunk * DECODE_CHUNK;
    const size_t table = (size_t)f.panel * (size_t)d.n_groups;
    const uint8_t *const scale = blob + d.scale + table * (size_t)d.row_bytes;
    const uint8_t *const extra = blob + d.extra + table * (size_t)d.extra_bytes;
    const int32_t scales = d.rows * d.row_bytes, extras = d.rows * d.extra_bytes;
    int32_t from = 0, totals = 0;
    if (d.sums != 0) {
        from = decode_segment(d, chunk * UNITS);
        totals =
            (min(decode_segment(d, chunk * UNITS + UNITS - 1), d.n_segments - 1) + 1 - from) * 64;
    }
    const uint8_t *const sums =
        blob + d.sums + ((size_t)f.panel * (size_t)d.n_segments + (size_t)from) * 64;
#if __CUDA_ARCH__ >= 900
    const int32_t q =
        decode_divide((uint32_t)(chunk * UNITS), (uint32_t)d.group_units, d.group_magic);
    decode_bulk(slot, codes, bytes, bar);
    if (totals != 0)
        decode_bulk(slot + (uint32_t)d.at_totals, sums, totals, bar);
    decode_bar_expect(bar, bytes + scales + extras + totals);
    slot += DECODE_CHUNK;
    if (d.in_line && q + d.rows <= d.n_groups) {
        decode_bulk(slot, scale + q * d.row_bytes, scales, bar);
        if (extras != 0)
            decode_bulk(slot + (uint32_t)scales, extra + q * d.extra_bytes, extras, bar);
        return;
    }
#pragma unroll 1
    for (int32_t i = 0; i < d.rows; i++) {
        const int32_t at = decode_group<UNITS>(d, chunk * UNITS, i);
        decode_bulk(slot + (uint32_t)(i * d.row_bytes), scale + at * d.row_bytes, d.row_bytes, bar);
        if (extras != 0)
            decode_bulk(slot + (uint32_t)(scales + i * d.extra_bytes), extra + at * d.extra_bytes,
                        d.extra_bytes, bar);
    }
    (void)lane;
#else
#pragma unroll
    for (int i = 0; i < DECODE_CHUNK; i += 512)
        if (i < bytes)
            ptx_copy16(slot + (uint32_t)(i + lane * 16), codes + i + lane * 16, true);
    for (int32_t i = lane * 16; i < totals; i += 512)
        ptx_copy16(slot + (uint32_t)(d.at_totals + i), sums + i, true);
    slot += DECODE_CHUNK;
    const int32_t pieces = d.row_bytes / 16, more = d.extra_bytes / 16;
    for (int32_t i = lane; i < d.rows * pieces; i += 32)
        ptx_copy16(slot + (uint32_t)(i * 16),
                   scale + decode_group<UNITS>(d, chunk * UNITS, i / pieces) * d.row_bytes +
                       i % pieces * 16,
                   true);
    slot += (uint32_t)scales;
    for (int32_t i = lane; i * 16 < extras; i += 32)
        ptx_copy16(slot + (uint32_t)(i * 16),
                   extra + decode_group<UNITS>(d, chunk * UNITS, i / more) * d.extra_bytes +
                       i % more * 16,
                   true);
    (void)bar;
#endif
}

#if !defined __CUDA_ARCH__ || __CUDA_ARCH__ >= 900
/* The same where its rows of tables lie side by side, and are as many as those of others. */
DECODE void decode_ask(const struct decode &d, const struct decode_walk &f, uint32_t slot,
                       uint32_t bar, int32_t bytes)
{
    decode_bulk(slot, f.codes, bytes, bar);
    decode_bulk(slot + DECODE_CHUNK, f.scale, d.scales, bar);
    if (d.extras != 0)
        decode_bulk(slot + DECODE_CHUNK + (uint32_t)d.scales, f.extra, d.extras, bar);
    decode_bar_expect(bar, bytes + d.scales + d.extras);
}
#endif

/* Asks for the next chunk, if there is one, into a slot that all lanes have read. first: panel of
 * the CTA, of all in the blob. */
template <int UNITS>
DECODE void decode_fetch(const struct decode &d, const uint8_t *blob, const struct decode_run &r,
                         int32_t first, struct decode_walk &f, uint32_t slot, uint32_t bar,
                         int32_t lane)
{
    if (f.left == 0 && f.s + d.stretch < d.chunks)
#pragma unroll 1
        do
            decode_walk_begin<UNITS>(d, blob, r, first, f.s + d.stretch, f);
        while (f.left == 0 && f.s + d.stretch < d.chunks);
    if (f.left > 0) {
#if __CUDA_ARCH__ >= 900
        if (lane == 0) {
            const bool last = f.s + f.c == d.chunks - 1;
            if (d.in_line == 0 || (last && d.ragged))
                decode_ask_any<UNITS>(d, f, blob, slot, bar, lane);
            else
                decode_ask(d, f, slot, bar, last ? d.last_bytes : DECODE_CHUNK);
        }
#else
        decode_ask_any<UNITS>(d, f, blob, slot, bar, lane);
#endif
        f.left--;
        f.codes += DECODE_CHUNK;
        if (--f.until == 0) {
            f.until = d.period;
            f.scale += d.scales;
            f.extra += d.extras;
        }
        if (++f.c == f.len && f.left > 0) {
            f.c = 0;
            f.panel++;
            decode_walk_point<UNITS>(d, blob, f);
        }
    }
#if __CUDA_ARCH__ < 900
    ptx_copies_commit();
#endif
}

/* ---- rows of x ------------------------------------------------------------------------------- */

/* Rows of this tile, and which: row i of x is index[i], or base + i. */
struct decode_rows {
    const int32_t *index;
    int64_t base;
    int32_t m;
};

DECODE int64_t decode_row_of(const struct decode_rows &rows, int32_t i)
{
    return rows.base + (rows.index != NULL ? rows.index[i] : i);
}

DECODE const uint8_t *decode_x_row(const struct decode &d, const struct decode_rows &rows,
                                   int32_t i)
{
    const int32_t plane = d.x.planes > 1 ? i / rows.m : 0;
    return (const uint8_t *)d.x.a + plane * d.x.plane_stride +
           decode_row_of(rows, i - plane * rows.m) * d.x.lda;
}

#if !defined __CUDA_ARCH__ || __CUDA_ARCH__ >= 900
/* An arrival for each warp; where there are bytes behind the columns, for each thread that clears
 * some of them. */
DECODE void decode_x_bar_init(const struct decode &d, uint32_t bar)
{
    decode_bar_init(bar, d.x_short ? DECODE_THREADS : DECODE_WARPS);
}
#endif

/* x of the stretch at position `from`, `positions` of SIZE bytes long, of m rows and all planes
 * (row i of plane p is row p * m + i), to shared memory; zeros behind the columns. By all threads
 * of the cluster: its CTAs need the same rows, and each asks for some of them for all. Nobody reads
 * before decode_x_wait(). */
template <int SIZE>
DECODE void decode_x_ask(const struct decode &d, const struct decode_rows &rows, int32_t from,
                         int32_t positions, uint8_t *shared, uint32_t bar, int32_t warp,
                         int32_t lane)
{
    const int32_t n = rows.m * d.x.planes;
    const int32_t valid = max(0, min(positions, d.x.columns - from)) * SIZE, whole = valid & ~15;
    const int32_t total = positions * SIZE;
    uint8_t *const to = shared + d.at_x;
#if __CUDA_ARCH__ >= 900
    if (lane == 0 && whole > 0) {
        const int32_t among = DECODE_MULTICAST ? d.cluster : 1;
        const int32_t rank = among > 1 ? decode_cluster_rank() : 0;
#pragma unroll 1
        for (int32_t i = warp * among + rank; i < n; i += DECODE_WARPS * among) {
            const uint32_t row = ptx_shared(to) + (uint32_t)(i * d.x_stride);
            const uint8_t *const x = decode_x_row(d, rows, i) + (size_t)from * SIZE;
            if (among > 1)
                decode_bulk_to_all(row, x, whole, bar, among);
            else
                decode_bulk(row, x, whole, bar);
        }
    }
#else
#pragma unroll 1
    for (int32_t i = warp; i < n; i += DECODE_WARPS)
        for (int32_t c = lane * 16; c < whole; c += 512)
            ptx_copy16(ptx_shared(to) + (uint32_t)(i * d.x_stride + c),
                       decode_x_row(d, rows, i) + (size_t)from * SIZE + c, true);
    ptx_copies_commit();
#endif
    if (whole < total)
#pragma unroll 1
        for (int32_t i = warp; i < n; i += DECODE_WARPS) {
            const uint8_t *const x = decode_x_row(d, rows, i) + (size_t)from * SIZE;
#pragma unroll 1
            for (int32_t c = whole + lane; c < total; c += 32)
                to[i * d.x_stride + c] = c < valid ? x[c] : (uint8_t)0;
        }
#if __CUDA_ARCH__ >= 900
    if (lane == 0)
        decode_bar_expect(bar, warp == 0 ? n * whole : 0);
    else if (d.x_short)
        decode_bar_arrive(bar);
#endif
}
/* All have read what there is of x, in all CTAs that the next will go to. */
DECODE void decode_x_free(const struct decode &d)
{
#if __CUDA_ARCH__ >= 900
    if (d.cluster > 1) {
        decode_cluster_arrive();
        decode_cluster_wait();
        return;
    }
#endif
    (void)d;
    __syncthreads();
}
DECODE void decode_x_wait(uint32_t bar, int32_t parity)
{
#if __CUDA_ARCH__ >= 900
    decode_bar_wait(bar, parity);
#else
    ptx_copies_wait<0>();
    __syncthreads();
#endif
}

/* ---- launches -------------------------------------------------------------------------------- */

static inline int32_t decode_magic(int32_t d)
{
    return (int32_t)(0xffffffffu / (uint32_t)(d < 1 ? 1 : d));
}
/* Shared memory that a CTA may have, and that each of two on a multiprocessor may. */
static inline int32_t decode_shared_limit(const struct qni_cuda_launch *launch, int32_t ctas)
{
    return (qni_cuda_shared_kb(launch->sm) / ctas - 1) * 1024;
}

/* What is worked out of the product alone. units: of a chunk; mr: rows of a tile; gives the units
 * of a group. D as above. */
template <class D>
static inline int32_t decode_plan_weights(D *d, const struct qni_cuda_product *p,
                                          const struct qni_cuda_launch *launch, int32_t units,
                                          int32_t mr)
{
    const struct qni_cuda_weights *const w = &p->w;
    const int32_t unit_bytes = DECODE_CHUNK / units;
    memset(d, 0, sizeof *d);
    d->blob = w->blob;
    d->codes = w->codes;
    d->scale = w->scale;
    d->units = w->units;
    d->chunks = (w->units + units - 1) / units;
    d->last_bytes = (w->units - (d->chunks - 1) * units) * unit_bytes;
    d->panel_bytes = (uint32_t)(w->units * unit_bytes);
    d->panels = w->panels;
    d->n = w->n;
    d->scale_is_f16 = w->scale_is_f16;
    d->row_bytes = w->scale_is_f16 ? 32 : 64;
    if (w->shift == QNI_CUDA_SHIFT_ZERO) {
        d->extra = w->zero;
        d->extra_bytes = 16;
    } else if (w->shift == QNI_CUDA_SHIFT_OFFSET) {
        d->extra = w->offset;
        d->extra_bytes = d->row_bytes;
    }
    const int32_t gu = w->n_groups == 1 ? 1 << 30 : w->group_units;
    d->n_groups = w->n_groups;
    d->group_units = gu;
    d->group_magic = decode_magic(gu);
    d->in_line = gu % units == 0 || units % gu == 0;
    d->rows = gu % units == 0 ? 1 : d->in_line ? units / gu : units;
    d->table_step = d->rows * d->row_bytes / units;
    d->slot_bytes = DECODE_CHUNK + d->rows * (d->row_bytes + d->extra_bytes);
    d->x = p->x;
    d->row = p->row;
    d->m = (int32_t)(p->m < mr ? p->m : mr);
    d->pdl = launch->pdl;
    return gu;
}

/* What does not depend on the shared memory. */
static inline void decode_plan(struct decode *d, const struct qni_cuda_product *p,
                               const struct qni_cuda_launch *launch, int32_t units, int32_t mr)
{
    const int32_t gu = decode_plan_weights(d, p, launch, units, mr);
    d->scales = d->rows * d->row_bytes;
    d->extras = d->rows * d->extra_bytes;
    d->period = gu % units == 0 ? gu / units : 1;
    d->ragged = (int64_t)d->chunks * units > (int64_t)p->w.n_groups * gu;
    d->x_short = p->x.columns < (int64_t)d->chunks * units * 32;
    d->routes = p->routes;
    d->m_magic = decode_magic(d->m);
    d->stacked = 1;
    d->at_ring = DECODE_AT_TABLE;
}

/* Panels to CTAs, a multiple of `cluster` of them. */
static inline void decode_plan_share(struct decode *d, int32_t ctas, int32_t cluster)
{
    ctas = ctas > d->panels ? d->panels : ctas;
    ctas = ctas / cluster * cluster;
    ctas = ctas < cluster ? cluster : ctas;
    d->cluster = cluster;
    d->share = d->panels / ctas;
    d->more = d->panels % ctas;
    d->share_magic = decode_magic(d->share);
    d->more_magic = decode_magic(d->share + 1);
    d->ctas = ctas;
}

/* Where things lie. size: of an element of x; more: bytes of a row of x and its panels' sums. True:
 * they fit in `limit` bytes with this depth and all of k at once. */
static inline bool decode_plan_fits(struct decode *d, int32_t depth, int32_t x_rows, int32_t x_row,
                                    int32_t limit)
{
    const int32_t sums = (DECODE_WARPS + d->share) * d->m * d->stacked * 80;
    d->depth = depth;
    d->at_sums = d->at_ring + DECODE_WARPS * depth * d->slot_bytes;
    d->at_x = (d->at_sums + sums + 127) / 128 * 128;
    d->x_stride = x_row + 16;
    const int64_t bytes = d->at_x + (int64_t)x_rows * d->x_stride;
    d->bytes = (int32_t)(bytes < INT32_MAX ? bytes : INT32_MAX);
    return bytes <= limit;
}
/* All of k at once, for two CTAs on a multiprocessor or one; or in stretches, and with one chunk a
 * warp under way if there is no room for two. chunk: bytes of a row of x in shared memory, of the
 * positions of a chunk. False: not even one chunk of x fits. */
static inline bool decode_plan_rows(struct decode *d, const struct qni_cuda_launch *launch,
                                    int32_t chunk)
{
    const int32_t x_rows = d->m * d->x.planes;
    const int32_t one = decode_shared_limit(launch, 1), two = decode_shared_limit(launch, 2);
    const int32_t most = launch->sm == 90 ? DECODE_MAX_DEPTH : DECODE_MIN_DEPTH;
    d->stretch = d->chunks;
    for (int32_t limit = two; limit == two || limit == one; limit = limit == two ? one : 0)
        for (int32_t depth = most; depth >= DECODE_MIN_DEPTH; depth--)
            if ((int64_t)d->chunks * chunk < INT32_MAX / 64 &&
                decode_plan_fits(d, depth, x_rows, d->chunks * chunk, limit))
                return true;
    for (int32_t depth = DECODE_MIN_DEPTH; depth >= 1; depth--) {
        (void)decode_plan_fits(d, depth, x_rows, 0, one);
        const int32_t most_chunks = ((one - d->at_x) / x_rows - 16) / chunk;
        if (most_chunks < 1)
            continue;
        const int32_t pieces = (d->chunks + most_chunks - 1) / most_chunks;
        d->stretch = (d->chunks + pieces - 1) / pieces;
        return decode_plan_fits(d, depth, x_rows, d->stretch * chunk, one);
    }
    return false;
}
/* The same for `ctas` or more: sums of a CTA's panels need room, too. size: bytes of an element of
 * x. False: not even with a panel a CTA; select.c's is_tight() sees to it that it fits. */
static inline bool decode_plan_shared(struct decode *d, const struct qni_cuda_launch *launch,
                                      int32_t ctas, int32_t cluster, int32_t units, int32_t size)
{
    enum { MOST_PANELS = 32 };
    const int64_t most = (int64_t)ctas * MOST_PANELS;
    for (ctas *= (int32_t)((d->panels + most - 1) / most);; ctas *= 2) {
        decode_plan_share(d, ctas, cluster);
        if (decode_plan_rows(d, launch, units * 32 * size))
            return true;
        if (ctas >= d->panels)
            return false;
    }
}

static inline int32_t decode_launch(const void *kernel, struct decode *d,
                                    const struct qni_cuda_product *p,
                                    const struct qni_cuda_experts *experts,
                                    const struct qni_cuda_launch *launch)
{
    static const struct qni_cuda_experts none = {0, 0, {NULL}, {0}};
    struct qni_cuda_sink out = p->out;
    void *arguments[] = {d, &out, (void *)(experts != NULL ? experts : &none)};
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attributes[2] = {};
    if (launch->pdl) {
        cudaLaunchAttribute *const a = &attributes[config.numAttrs++];
        a->id = cudaLaunchAttributeProgrammaticStreamSerialization;
        a->val.programmaticStreamSerializationAllowed = 1;
    }
    if (d->cluster > 1) {
        cudaLaunchAttribute *const a = &attributes[config.numAttrs++];
        a->id = cudaLaunchAttributeClusterDimension;
        a->val.clusterDim.x = 1;
        a->val.clusterDim.y = (unsigned)d->cluster;
        a->val.clusterDim.z = 1;
    }
    config.gridDim = dim3((unsigned)(p->routes.tiles != NULL ? p->routes.n_tiles : p->w.parts),
                          (unsigned)d->ctas);
    config.blockDim = dim3(DECODE_THREADS);
    config.dynamicSmemBytes = (size_t)d->bytes;
    config.stream = (cudaStream_t)launch->stream;
    config.attrs = attributes;
    cudaError_t status =
        cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, d->bytes);
    if (status == cudaSuccess)
        status = cudaLaunchKernelExC(&config, kernel, arguments);
    (void)cudaGetLastError();
    return (int32_t)status;
}

#undef DECODE
#endif
