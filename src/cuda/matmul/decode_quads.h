/* SPDX-License-Identifier: Apache-2.0 */
/* What the decode kernel of decode_sm90a.cu is launched with, worked out by counting, in plain C so
 * that select.c and a test without a GPU can ask, too.
 *
 * Panels are taken in quads of 64 outputs, positions in stages of 256. k is cut in 1, 2, 4 or 8
 * slices, one for each CTA of a cluster: a CTA keeps x of its slice, and all of a cluster's CTAs
 * work on the same quads. More slices: less of x for each, but every quad's sums go through the
 * cluster. */
#ifndef QNI_CUDA_MATMUL_DECODE_QUADS_H
#define QNI_CUDA_MATMUL_DECODE_QUADS_H

#include <stdbool.h>
#include <string.h>

#include "../kernel.h"

enum {
    QUADS_PANELS = 4,
    QUADS_BLOCKS = 4, /* of 64 positions, in a stage */
    QUADS_UNITS = 2 * QUADS_BLOCKS,
    QUADS_GROUPS = 2, /* warpgroups that multiply */
    QUADS_X_BOX = 8,  /* blocks of x that one copy brings */
    QUADS_MAX_PIECES = 32,
    QUADS_MAX_STAGES = 24,
    QUADS_MIN_RING = 64 * 1024, /* what a multiprocessor should have under way */
    QUADS_MAX_RING = 72 * 1024, /* with more, x comes too late */
    QUADS_FIXED = 1024,         /* barriers */
    QUADS_TABLE = 32 * 1024,    /* pairs of values (dequant.cuh) */
    QUADS_MAX_ROWS = 32
};

/* How the kernel cuts its work: the first `more` clusters take share + 1 quads each, the others
 * share. */
struct quad_plan {
    int32_t clusters, share, more;
    int32_t slices, slices_bits,
        each_bits; /* log2 of slices; of a quad's outputs that a CTA adds */
    int32_t stages, depth, slot_bytes;
    int32_t at_x, at_ring, at_stage, at_sums, bytes;
    int32_t sums, n_stage, n_sums; /* bytes of a slot of sums; slots of this CTA's, of all CTAs' */
    int32_t rows, period, period_magic; /* of tables: rows in a stage; stages with the same */
    int32_t scale_words, row_bytes, table_step, tables, zeros; /* as struct decode has them */
    int32_t expect;                                            /* bytes of a stage */
    int32_t whole; /* blocks of x that have 64 columns */
    int32_t m, n, pdl, scale_is_f16;
    int32_t table;       /* bytes of pairs of values, behind the barriers */
    const float *values; /* of the table */
    int64_t row;
};

static inline int32_t quads_ceil(int32_t a, int32_t b)
{
    return (a + b - 1) / b;
}
/* Rows of x as products have them. */
static inline int32_t quads_rows(int64_t m)
{
    return m <= 8 ? 8 : m <= 16 ? 16 : m <= 24 ? 24 : 32;
}
/* Bytes of the sums of a quad, all warpgroups': rows 16 bytes apart more than they are long. */
static inline int32_t quads_sum_bytes(int32_t rows)
{
    return QUADS_GROUPS * QUADS_PANELS * 16 * (rows + 4) * 4;
}

/* Clusters of 4 and 8 do not fit in everywhere: of 132 multiprocessors in parts of 14 to 18, 30 and
 * 15 were seen to. A cluster too many would be a second round. */
static inline int32_t quads_clusters(int32_t multiprocessors, int32_t slices)
{
    const int32_t some = slices < 4 ? multiprocessors : multiprocessors - multiprocessors / 8;
    return some / slices < 1 ? 1 : some / slices;
}

/* Shared memory for this many slices; false: x and a ring do not fit. limit: bytes of a CTA. */
static inline bool quads_place(struct quad_plan *e, int32_t rows, int32_t limit)
{
    const int32_t most = e->share + (e->more > 0);
    const int32_t length = quads_ceil(e->stages, e->slices);
    const int32_t pieces = quads_ceil(length * QUADS_BLOCKS, QUADS_X_BOX);
    const int64_t ring = QUADS_FIXED + e->table + (int64_t)pieces * QUADS_X_BOX * rows * 128;
    if (pieces > QUADS_MAX_PIECES || ring > limit)
        return false;
    e->at_x = QUADS_FIXED + e->table;
    e->at_ring = (int32_t)ring;
    e->sums = quads_sum_bytes(rows);
    for (int32_t way = 0; way < 3; way++) {
        e->n_stage = way < 2 && most > 1 ? 2 : 1;
        e->n_sums = e->slices == 1 ? 0 : way < 1 && most > 1 ? 2 : 1;
        e->depth = (limit - e->at_ring - (e->n_stage + e->n_sums) * e->sums) / e->slot_bytes;
        if (e->depth * e->slot_bytes >= QUADS_MIN_RING)
            break;
    }
    /* A slot is always the same warpgroup's: another's phases of its barrier would pass unseen. */
    const int64_t all = ((int64_t)most * length + QUADS_GROUPS - 1) / QUADS_GROUPS * QUADS_GROUPS;
    const int32_t most_slots = QUADS_MAX_RING / e->slot_bytes;
    e->depth = e->depth < most_slots ? e->depth : most_slots;
    e->depth = e->depth < QUADS_MAX_STAGES ? e->depth : QUADS_MAX_STAGES;
    e->depth = e->depth / QUADS_GROUPS * QUADS_GROUPS;
    if (e->depth < all && e->depth * e->slot_bytes < QUADS_MIN_RING / 2)
        return false;
    e->depth = e->depth < all ? e->depth : (int32_t)all;
    e->at_stage = e->at_ring + e->depth * e->slot_bytes;
    e->at_sums = e->at_stage + e->n_stage * e->sums;
    e->bytes = e->at_sums + e->n_sums * e->sums;
    return e->depth >= QUADS_GROUPS && e->bytes <= limit;
}

/* Clocks of the CTA that has most, but for the memory's, as measured (lab/cuda/NOTES.md): products,
 * the ends of quads, x, the way out; a seventh more with a ring that is short. */
static inline int64_t quads_clocks(const struct quad_plan *e, int32_t rows)
{
    const int64_t most = e->share + (e->more > 0), length = quads_ceil(e->stages, e->slices);
    const int64_t alone = e->slices == 1, ring = (int64_t)e->depth * e->slot_bytes;
    const int64_t clocks = most * length * QUADS_BLOCKS * 125 + most * (alone ? 600 : 2000) +
                           length * QUADS_BLOCKS * rows * 128 / 40 + (alone ? 2000 : 3000);
    return ring < QUADS_MIN_RING / 4 * 3 && most * length > e->depth ? clocks + clocks / 7 : clocks;
}

/* False: other kernels serve. bits: of codes; limit: of a CTA's shared memory. */
static inline bool quads_plan(struct quad_plan *e, const struct qni_cuda_product *p, int32_t bits,
                              int32_t multiprocessors, int32_t limit)
{
    const struct qni_cuda_weights *const w = &p->w;
    const int32_t gu = w->n_groups == 1 ? 1 << 30 : w->group_units, rows = quads_rows(p->m);
    const int32_t row = w->scale_is_f16 ? 32 : 64;
    struct quad_plan at, best;
    int64_t least = INT64_MAX;
    if (w->shift == QNI_CUDA_SHIFT_OFFSET || p->x.planes != 1 || p->routes.tiles != NULL ||
        w->parts != 1 || p->m < 1 || p->m > QUADS_MAX_ROWS || p->x.columns < 1 || w->panels < 1 ||
        (gu % QUADS_UNITS != 0 && QUADS_UNITS % gu != 0))
        return false;
    memset(&at, 0, sizeof at);
    memset(&best, 0, sizeof best);
    at.stages = quads_ceil(w->units, QUADS_UNITS);
    at.rows = gu % QUADS_UNITS == 0 ? 1 : QUADS_UNITS / gu;
    at.period = gu % QUADS_UNITS == 0 ? gu / QUADS_UNITS : 1;
    at.period_magic = (int32_t)(0xffffffffu / (uint32_t)at.period);
    at.row_bytes = row;
    at.scale_words = row / 4;
    at.table_step = at.rows * row / QUADS_UNITS;
    at.tables = QUADS_PANELS * at.rows * row;
    at.zeros = w->shift == QNI_CUDA_SHIFT_ZERO ? QUADS_PANELS * at.rows * 16 : 0;
    at.expect = QUADS_PANELS * QUADS_BLOCKS * 128 * bits + at.tables + at.zeros;
    at.slot_bytes = (at.expect + 127) / 128 * 128;
    at.whole = p->x.columns / 64;
    at.table = w->layout == QNI_CUDA_T4FRAG ? QUADS_TABLE : 0;
    at.m = (int32_t)p->m;
    at.n = w->n;
    at.scale_is_f16 = w->scale_is_f16;
    at.row = p->row;
    for (at.slices_bits = 0; at.slices_bits <= 3; at.slices_bits++) {
        at.slices = 1 << at.slices_bits;
        at.each_bits = 6 - at.slices_bits;
        const int32_t quads = quads_ceil(w->panels, QUADS_PANELS);
        const int32_t room = quads_clusters(multiprocessors, at.slices);
        /* As few clusters as are no slower: the memory serves fewer. */
        at.clusters = quads_ceil(quads, quads_ceil(quads, room));
        at.share = quads / at.clusters;
        at.more = quads % at.clusters;
        if (at.slices > multiprocessors || !quads_place(&at, rows, limit) ||
            quads_clocks(&at, rows) >= least)
            continue;
        least = quads_clocks(&at, rows);
        best = at;
    }
    *e = best;
    return least < INT64_MAX;
}

#endif
