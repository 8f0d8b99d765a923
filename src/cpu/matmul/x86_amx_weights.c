/* SPDX-License-Identifier: Apache-2.0 */
/* Planes of bf16 x weights of any kind on AMX tiles, for many rows. Contract and operand layouts:
 * kernel.h.
 *
 * A weight is made as f32 and split in two planes, the bf16 next to it and the bf16 next to what
 * that leaves, which are within 2^-17 |w|. So there is nothing left to scale: sums stay in the
 * tiles whatever the groups are, and codebooks need not be integers. With planes of x as they are
 *
 *     x w  =  high high + high low (+ low high)
 *
 * where low low, below 2^-16 |x w|, is left out: select.c asks for sums long enough that
 * docs/numerics.md's bound does not notice. Where all second planes of a span are zero, as those of
 * MXFP4 are, they are not multiplied.
 *
 * Groups of at most 16 positions, half of whose units of codes is padding, are made two to a unit:
 * the first halves of two tiles.
 *
 * Up to twice the products of x86_amx_float.c, which scales sums once a group; but tiles are
 * stored once in 256 or 512 positions instead of once in 32 or 128, and a weight is made once for
 * all rows of the job. Making 512 of them takes 150 cycles, multiplying them with 32 rows 64 or 96.
 *
 *     for some pairs of panels      whose sums stay in the second cache,
 *       for spans of k              so do rows of A in a span
 *         for pairs of panels       B of the next one is made while this one is multiplied
 *           for blocks of 32 rows
 *
 * A and B come from the second cache, by loads that leave the first one alone: it has the codes
 * and what is made of them.
 *
 * Bound: 2 m n k (planes + 1) / (2 * 16 * 16 * 32 operations every 16 cycles). */
#include <immintrin.h>

#include "../simd/amx_weights.h"
#include "kernel.h"

enum {
    HALF = 16,            /* rows of a tile */
    ROWS = QNI_BF16_ROWS, /* of a block */
    LINE = 64,
    TILE = 1024,            /* bytes */
    PLANE = 2 * TILE,       /* of B: two panels */
    UNIT_BYTES = 2 * PLANE, /* of B: low plane, high plane */
    SPAN = 16,              /* units at most, */
    FEW = 4,                /* or of one block of rows: B in the first cache */
    BLOCKS = 64,            /* whose sums stay: of rows, times pairs */
    WIDTH = 32,             /* outputs of a pair */
};

struct weights_scratch {
    uint8_t b[2 * SPAN * UNIT_BYTES]; /* of two places, one after the other */
    float sums[BLOCKS][ROWS][WIDTH];
};
_Static_assert(sizeof(struct weights_scratch) == 393216, "kernels.inc says so");
_Static_assert(2 * FEW * UNIT_BYTES == 32768, "kernels.inc says so of one block of rows");

#define TILES_SEE_MEMORY() QNI_AMX_TILES_SEE_MEMORY()

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- the order of work ----------------------------------------------------------------------- */

struct job {
    const struct qni_matmul_tile *t;
    struct weights_scratch *s;
    struct qni_amx_feed feed;
    int64_t units;         /* of A and B */
    int64_t span, n_spans; /* of units */
    int64_t panel, pairs;  /* of the pass */
    int64_t n_blocks;
    int64_t tile_rows; /* that tiles are configured for */
    bool keeps;        /* one block and one pair: sums stay in the tiles from span to span */
    int64_t rate[2];   /* quarters after the first and the second four products of a unit */
    int64_t lines;     /* of rows to come, asked for with a unit */
};

/* B of the i-th span and pair. The two lie one behind the other, so that short spans need no more
 * memory than kernels.inc says of few rows. */
static uint8_t *b_of(const struct job *j, int64_t i)
{
    return j->s->b + (size_t)(i % 2 * j->span * UNIT_BYTES);
}

/* The i-th span and pair of a pass. */
struct codes_place {
    int64_t panel, unit, units, pair;
    const uint8_t *b;
    bool second; /* panel */
    bool low;    /* plane: something is in it */
};

static struct codes_place place_of(const struct job *j, int64_t i)
{
    const int64_t last = j->n_spans * j->pairs - 1;
    struct codes_place p;
    i = at_most(i, last);
    p.pair = i % j->pairs;
    p.panel = j->panel + 2 * p.pair;
    p.unit = i / j->pairs * j->span;
    p.units = at_most(j->span, j->units - p.unit);
    p.second = p.panel + 1 < j->t->n_panels;
    p.b = b_of(j, i);
    p.low = true;
    return p;
}

static const uint8_t *codes_at(const struct job *j, const struct codes_place *p)
{
    return j->t->codes + (size_t)p->panel * j->t->codes_stride +
           (size_t)(p->unit * j->feed.unit_bytes);
}

/* Make B of the i-th place from now on. */
static void begin_feed(struct job *j, int64_t i)
{
    struct qni_amx_feed *const f = &j->feed;
    const struct codes_place p = place_of(j, i), after = place_of(j, i + 1);
    if (i >= j->n_spans * j->pairs)
        return;
    f->codes[0] = codes_at(j, &p);
    f->codes[1] = f->codes[0] + (p.second ? j->t->codes_stride : 0);
    f->ahead = codes_at(j, &after) - f->codes[0];
    f->panel[0] = p.panel;
    f->panel[1] = p.panel + p.second;
    f->unit = p.unit;
    f->left = QNI_AMX_QUARTERS * p.units;
    f->turn = 0;
    f->group = -1;
    f->low = _mm512_setzero_si512();
    f->out = b_of(j, i);
}

/* ---- products -------------------------------------------------------------------------------- */

/* A unit: four products for each pair of planes, in which no sum follows itself. */
QNI_VARIANTS void step(struct job *j, const char *a, size_t plane, const uint8_t *b, bool low,
                       const int halves, const int planes, const int kind)
{
    _tile_stream_loadd(4, a, LINE);
    if (halves == 2)
        _tile_stream_loadd(5, a + HALF * LINE, LINE);
    if (low) {
        _tile_stream_loadd(6, b, LINE);
        _tile_dpbf16ps(0, 4, 6);
        if (halves == 2)
            _tile_dpbf16ps(2, 5, 6);
        _tile_stream_loadd(7, b + TILE, LINE);
        _tile_dpbf16ps(1, 4, 7);
        if (halves == 2)
            _tile_dpbf16ps(3, 5, 7);
    }
    qni_amx_make_some(&j->feed, j->rate[0], 2, kind);
    _tile_stream_loadd(6, b + PLANE, LINE);
    _tile_dpbf16ps(0, 4, 6);
    if (halves == 2)
        _tile_dpbf16ps(2, 5, 6);
    _tile_stream_loadd(7, b + PLANE + TILE, LINE);
    _tile_dpbf16ps(1, 4, 7);
    if (halves == 2)
        _tile_dpbf16ps(3, 5, 7);
    qni_amx_make_some(&j->feed, j->rate[1], 2, kind);
    if (planes == 1)
        return;
    _tile_stream_loadd(4, a + plane, LINE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (halves == 2) {
        _tile_stream_loadd(5, a + plane + HALF * LINE, LINE);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

/* Rows of the next span come from the third cache, a part of them while each pair is multiplied;
 * after the last span come those of the first. */
QNI_TEMPLATE const char *rows_ahead(const struct job *j, const struct codes_place *p, const char *a,
                                    int64_t row, size_t plane, const int planes)
{
    const int64_t units = j->units, next = p->unit + p->units;
    const char *const first = (const char *)j->t->a + (size_t)row * j->t->lda;
    const char *const span = next < units ? a + (size_t)(p->units * planes) * plane : first;
    return span + (size_t)(p->pair * p->units * j->lines) * LINE;
}

/* Rows [row, row + rows) and a place. The first span begins at zero, the last one goes to c. */
QNI_TEMPLATE void block(struct job *j, const struct codes_place *p, int64_t row, int64_t rows,
                        const int halves, const int planes, const int kind)
{
    const struct qni_matmul_tile *t = j->t;
    const size_t plane = (size_t)rows * LINE;
    const char *a = (const char *)t->a + (size_t)row * t->lda + (size_t)(p->unit * planes) * plane;
    float *const sums = (float *)j->s->sums + (p->pair * j->n_blocks + row / ROWS) * ROWS * WIDTH;
    TILES_SEE_MEMORY();
    if (j->tile_rows != rows)
        qni_amx_configure(rows, LINE);
    j->tile_rows = rows;
    if (p->unit == 0) {
        qni_amx_zero();
    } else if (!j->keeps) {
        _tile_loadd(0, sums, WIDTH * 4);
        _tile_loadd(1, sums + HALF, WIDTH * 4);
        if (halves == 2) {
            _tile_loadd(2, sums + HALF * WIDTH, WIDTH * 4);
            _tile_loadd(3, sums + HALF * WIDTH + HALF, WIDTH * 4);
        }
    }
    const char *ahead = rows_ahead(j, p, a, row, plane, planes);
    const uint8_t *b = p->b;
    for (int64_t u = 0; u < p->units; u++, a += (size_t)planes * plane, b += UNIT_BYTES) {
        for (int64_t i = 0; i < j->lines; i++, ahead += LINE)
            _mm_prefetch(ahead, _MM_HINT_T1);
        step(j, a, plane, b, p->low, halves, planes, kind);
    }
    TILES_SEE_MEMORY();
    const bool ends = p->unit + p->units == j->units;
    if (j->keeps && !ends)
        return;
    float *const c = ends ? t->c + (size_t)row * t->ldc + p->panel * QNI_PANEL : sums;
    const size_t ld = ends ? t->ldc : WIDTH;
    _tile_stored(0, c, ld * 4);
    if (halves == 2)
        _tile_stored(2, c + HALF * ld, ld * 4);
    if (p->second || !ends) {
        _tile_stored(1, c + HALF, ld * 4);
        if (halves == 2)
            _tile_stored(3, c + HALF * ld + HALF, ld * 4);
    }
    TILES_SEE_MEMORY();
}

/* Some pairs of panels, all of k and all rows. */
QNI_TEMPLATE void pass(struct job *j, const int planes, const int kind)
{
    const int64_t m = j->t->m, whole = m / ROWS * ROWS, rest = m - whole;
    begin_feed(j, 0);
    qni_amx_make_some(&j->feed, INT64_MAX, 2, kind);
    for (int64_t i = 0; i < j->n_spans * j->pairs; i++) {
        struct codes_place p = place_of(j, i);
        p.low = _mm512_test_epi32_mask(j->feed.low, j->feed.low) != 0;
        begin_feed(j, i + 1);
        for (int64_t row = 0; row < whole; row += ROWS)
            block(j, &p, row, ROWS, 2, planes, kind);
        if (rest > HALF)
            block(j, &p, whole, rest, 2, planes, kind);
        else if (rest > 0)
            block(j, &p, whole, rest, 1, planes, kind);
        qni_amx_make_some(&j->feed, INT64_MAX, 2, kind);
    }
}

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind)
{
    struct job j;
    memset(&j, 0, sizeof j);
    j.t = t;
    j.s = t->scratch;
    qni_amx_feed_begin(&j.feed, t, kind);
    j.units = (t->units + t->halves) >> t->halves;
    j.n_blocks = (t->m + ROWS - 1) / ROWS;
    j.keeps = j.n_blocks == 1;
    j.span = j.keeps ? FEW : SPAN / t->planes;
    j.n_spans = (j.units + j.span - 1) / j.span;
    const int64_t rate = (QNI_AMX_QUARTERS + j.n_blocks - 1) / j.n_blocks;
    j.rate[0] = (rate + 1) / 2;
    j.rate[1] = rate / 2;
    const int64_t pairs = (t->n_panels + 1) / 2, most = j.keeps ? 1 : BLOCKS / j.n_blocks;
    for (int64_t done = 0; done < pairs; done += j.pairs) {
        j.panel = 2 * done;
        j.pairs = at_most(most, pairs - done);
        j.lines = j.keeps ? 0 : (ROWS * t->planes + j.pairs - 1) / j.pairs;
        if (t->planes == 1)
            pass(&j, 1, kind);
        else
            pass(&j, 2, kind);
    }
    _tile_release();
}

/* Integers and codebooks of 16 differ in their table alone. */
void qni_matmul_bf16_q4n16_mr64_amx(const struct qni_matmul_tile *t)
{
    tile(t, QNI_AMX_NIBBLES);
}
void qni_matmul_bf16_t4n16_mr64_amx(const struct qni_matmul_tile *t)
{
    qni_matmul_bf16_q4n16_mr64_amx(t);
}
void qni_matmul_bf16_q8n16_mr64_amx(const struct qni_matmul_tile *t)
{
    tile(t, QNI_AMX_BYTES);
}
void qni_matmul_bf16_t8n16_mr64_amx(const struct qni_matmul_tile *t)
{
    tile(t, QNI_AMX_BYTE_TABLE);
}
