/* SPDX-License-Identifier: Apache-2.0 */
/* How the int8 AMX kernels keep tiles and vectors busy at once. Only files compiled for AMX include
 * this.
 *
 * A block is up to three tiles of rows x 2 panels x one stretch of k. Tiles:
 *
 *     0 1    sums of the first tile of rows, by panel
 *     2 3    of the last
 *     4 5    of the one between them; with two tiles of rows, 4 holds the last of A
 *     6      A
 *     7      B
 *
 * Where no block of a job has three tiles of rows, 5 is free for the second panel of B, and long
 * stretches load what they need one step ahead, each tile right after the last product that reads
 * it (qni_amx_rest_ahead).
 *
 * Products of the same B follow each other: 16 cycles for the first, and no more than rows of A,
 * but at least 10, for the others. The tile of rows in the middle of three is loaded once for each
 * panel, as is the first: from the first cache the second time. Five tiles that come from the
 * second cache feed six products, where 2 x 2 has four for four.
 *
 * Blocks go through a stream of three stages:
 *
 *     block i         multiplied in the tiles
 *     block i - 1     its tiles are stored, each just before block i takes that tile over
 *     block i - 2     its sums, in memory by now, are scaled and added to the results
 *
 * and one product of the first alternates with a few rows of the last. That is what makes it fast:
 * a tile has no spare copy, so storing four tiles after the last product holds the multiplier up
 * for 64 cycles, and a long run of vector instructions fills the reorder buffer before the next
 * product is reached. Cycles of a product with 128 positions a segment: 28 stored at the end, 16.4
 * stored so (16 is what the multiplier needs). */
#ifndef QNI_CPU_SIMD_AMX_STREAM_H
#define QNI_CPU_SIMD_AMX_STREAM_H

#include "../../base/compiler.h"
#include "amx.h"
#include "avx512.h"

/* ---- rows of a job --------------------------------------------------------------------------- */

enum { QNI_AMX_ROWS = 48 }; /* of a block at most */

/* m rows in tiles of the same number of rows, the last of which reaches back where they do not
 * come out even, and tiles in blocks that differ by one at most. */
struct qni_amx_cut {
    int64_t m, tiles, tile_rows, blocks;
};

/* Rows [base, base + rows) of the job. */
struct qni_amx_rows {
    int64_t base, rows;
    int32_t tiles;
    int64_t middle, last; /* rows from base to the second of three tiles, and to the last one */
};

/* most: tiles of a block, 2 or 3; evenly: of an even number of tiles, one more than m needs if need
 * be. No tile begins before the one in front of it ends but the last one, which is not before it:
 * (tiles - 1) * tile_rows <= m. */
static inline struct qni_amx_cut qni_amx_cut_of(int64_t m, int64_t most, bool evenly)
{
    struct qni_amx_cut c;
    c.m = m;
    c.tiles = (m + 15) / 16;
    const int64_t even = c.tiles + c.tiles % 2;
    if (evenly && (even - 1) * ((m + even - 1) / even) <= m)
        c.tiles = even;
    c.tile_rows = (m + c.tiles - 1) / c.tiles;
    c.blocks = (c.tiles + most - 1) / most;
    return c;
}

static inline struct qni_amx_rows qni_amx_rows_at(const struct qni_amx_cut *c, int64_t i)
{
    const int64_t first = i * c->tiles / c->blocks, end = (i + 1) * c->tiles / c->blocks;
    struct qni_amx_rows r;
    r.base = first * c->tile_rows;
    r.rows = (end == c->tiles ? c->m : end * c->tile_rows) - r.base;
    r.tiles = (int32_t)(end - first);
    r.middle = c->tile_rows;
    r.last = r.rows - c->tile_rows;
    return r;
}

/* Where the facts of piece i begin. Those of a piece have a place of so many floats, of which at
 * most QNI_AMX_FEW rows leave room for the facts of 1 << share pieces. */
enum { QNI_AMX_FEW = 8 };
static inline int64_t qni_amx_shared_place(int64_t i, int32_t share, int64_t place)
{
    return (i >> share) * place + (i & ((1 << share) - 1)) * QNI_AMX_FEW;
}

/* k_bytes: of a row of A in one product, 64, or 32 where there are no blocks of three tiles. Tiles
 * 4 and a hold A, 7 and b hold B. */
static inline void qni_amx_configure_rows(int64_t tile_rows, int32_t k_bytes, int a, int b)
{
    struct qni_tile_config c;
    memset(&c, 0, sizeof c);
    c.palette = 1;
    for (int i = 0; i < 8; i++) {
        c.bytes_per_row[i] = 64;
        c.rows[i] = (uint8_t)tile_rows;
    }
    c.bytes_per_row[4] = c.bytes_per_row[a] = (uint16_t)k_bytes;
    c.rows[7] = c.rows[b] = (uint8_t)(k_bytes / 4);
    /* gcc 12 declares only 8 of the 64 bytes as read, so that the stores above could vanish. */
    __asm__ volatile("" : : "r"(&c) : "memory");
    _tile_loadconfig(&c);
}

/* Where the sums of a block go, [rows][32] of four bytes: how far it is to those of the tiles. */
struct qni_amx_sink {
    char *c;
    int64_t middle, last; /* bytes */
    int32_t tiles;
};

static inline struct qni_amx_sink qni_amx_sink_of(void *c, const struct qni_amx_rows *r)
{
    const struct qni_amx_sink s = {c, r->middle * 128, r->last * 128, r->tiles};
    return s;
}

static inline void qni_amx_store_middle(const struct qni_amx_sink *to)
{
    _tile_stored(4, to->c + to->middle, 128);
    _tile_stored(5, to->c + to->middle + 64, 128);
}

/* All but the first. */
static inline void qni_amx_store_others(const struct qni_amx_sink *to)
{
    if (to->tiles > 1) {
        _tile_stored(2, to->c + to->last, 128);
        _tile_stored(3, to->c + to->last + 64, 128);
    }
    if (to->tiles > 2)
        qni_amx_store_middle(to);
}

static inline void qni_amx_store_all(const struct qni_amx_sink *to)
{
    _tile_stored(0, to->c, 128);
    _tile_stored(1, to->c + 64, 128);
    qni_amx_store_others(to);
}

/* ---- the float steps ------------------------------------------------------------------------- */

/* What becomes of the sums of a block; docs/numerics.md has the formulas. */
enum {
    QNI_AMX_RAW = 0,     /* int32 sums are the result */
    QNI_AMX_ROW = 1,     /* int8-row */
    QNI_AMX_BLOCK = 2,   /* int8-block, symmetric */
    QNI_AMX_SHIFTED = 3, /* int8-block with offsets */
    QNI_AMX_BASE = 7,
    QNI_AMX_OFFSET = 8, /* the weights have offsets */
    QNI_AMX_ZERO = 16,  /* int8-static with a zero point */
    QNI_AMX_SCALED = 32 /* ROW without offsets: results are multiplied by a scale of their row */
};

/* What the columns of a pair of panels bring to a segment: 16 each. */
struct qni_amx_columns {
    const void *scale[2], *offset[2];
    const int32_t *sums[2];
};

/* What is added to c once the sums of a block are in memory. */
struct qni_amx_add {
    const int32_t *dot; /* [rows][32] */
    const struct qni_amx_columns *columns;
    const float *facts; /* [][QNI_AMX_ROWS]: what each row brings, in order of use */
    float *c;           /* of row 0 of the block */
    size_t ldc;
    int64_t rows;   /* 0: nothing to add */
    __mmask16 keep; /* 0: c has nothing yet; else all ones */
    bool second_panel;
};

struct qni_amx_block {
    const char *a;
    size_t middle, last; /* bytes from the first tile of rows to the others */
    size_t b_second;     /* from the first panel of B to the second */
    int64_t units;       /* tiles of B along k */
    struct qni_amx_sink out;
};

enum { QNI_AMX_SLOT = 1024 }; /* bytes of a tile of B */

struct qni_amx_stream {
    size_t lda;
    int32_t a_step; /* bytes from tile to tile: 64 or 32 */
    int32_t scale_is_f16;
    float scale_times;
    int32_t x_zero;
    /* Codes that will be unpacked next: two runs of `lines` cache lines, `rate` of each asked for
     * with every tile of B. */
    const char *ahead[2];
    int64_t lines, rate;
    /* B: tiles in a ring of `slots`. While feeding, each is written over as soon as it is in a tile
     * register, by feed: two quarters are halves of the first panel's tile, two of the second's. */
    char *ring;
    int64_t slot, slots;
    bool feeding;
    void (*feed)(void *arg, int32_t quarter, int32_t end);
    void *feed_arg;
    bool spare; /* tile 5 may hold B */
    bool far;   /* B is in the second cache, and is read again before it is written over */
    struct qni_amx_sink held; /* where the tiles belong that are full */
    /* Of the block to come (adds[turn], written by who pushes it), and of the two before it. */
    struct qni_amx_add adds[3];
    int32_t turn;
};

static inline struct qni_amx_add *qni_amx_add_of(struct qni_amx_stream *st, int32_t blocks_ago)
{
    return &st->adds[(st->turn + 3 - blocks_ago) % 3];
}

/* The vectors of one panel while its rows are added. */
struct qni_amx_vectors {
    __m512 scale, offset, sums;
    __m512i zero;
};

QNI_TEMPLATE struct qni_amx_vectors qni_amx_vectors_of(const struct qni_amx_stream *st,
                                                       const struct qni_amx_columns *r, const int i,
                                                       const int kind)
{
    const int base = kind & QNI_AMX_BASE;
    struct qni_amx_vectors v = {_mm512_setzero_ps(), _mm512_setzero_ps(), _mm512_setzero_ps(),
                                _mm512_setzero_si512()};
    if (base != QNI_AMX_RAW)
        v.scale = _mm512_mul_ps(qni_load16(r->scale[i], 0, st->scale_is_f16),
                                _mm512_set1_ps(st->scale_times));
    if (kind & QNI_AMX_OFFSET)
        v.offset = qni_load16(r->offset[i], 0, st->scale_is_f16);
    if (base == QNI_AMX_SHIFTED)
        v.sums = _mm512_cvtepi32_ps(_mm512_loadu_si512(r->sums[i]));
    if (kind & QNI_AMX_ZERO)
        v.zero = _mm512_mullo_epi32(_mm512_loadu_si512(r->sums[i]), _mm512_set1_epi32(st->x_zero));
    return v;
}

/* The sums of one row of one panel, scaled and added to acc. facts are those of the row:
 * QNI_AMX_ROWS apart. */
QNI_TEMPLATE __m512 qni_amx_add_sums(const struct qni_amx_vectors *v, const int32_t *dot,
                                     __m512 acc, const float *facts, const int kind)
{
    enum { NEXT = QNI_AMX_ROWS };
    const int base = kind & QNI_AMX_BASE;
    __m512i d = _mm512_load_si512(dot);
    if (kind & QNI_AMX_ZERO)
        d = _mm512_sub_epi32(d, v->zero);
    if (base == QNI_AMX_RAW) {
        acc = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(acc), d));
    } else if (base == QNI_AMX_ROW) {
        acc = _mm512_fmadd_ps(v->scale, _mm512_cvtepi32_ps(d), acc);
        if (kind & QNI_AMX_OFFSET)
            acc = _mm512_fmadd_ps(v->offset, _mm512_set1_ps(facts[0]), acc);
        if (kind & QNI_AMX_SCALED)
            acc = _mm512_mul_ps(acc, _mm512_set1_ps(facts[0]));
    } else {
        const __m512 sx = _mm512_set1_ps(facts[0]), real = _mm512_cvtepi32_ps(d);
        const __m512 term =
            base == QNI_AMX_BLOCK
                ? _mm512_mul_ps(sx, real)
                : _mm512_fmadd_ps(sx, real, _mm512_mul_ps(_mm512_set1_ps(facts[NEXT]), v->sums));
        acc = _mm512_fmadd_ps(v->scale, term, acc);
        if (kind & QNI_AMX_OFFSET)
            acc = _mm512_fmadd_ps(
                v->offset, _mm512_set1_ps(facts[base == QNI_AMX_BLOCK ? NEXT : 2 * NEXT]), acc);
    }
    return acc;
}

QNI_TEMPLATE void qni_amx_add_vector(const struct qni_amx_vectors *v, const int32_t *dot, float *c,
                                     const float *facts, __mmask16 keep, const int kind)
{
    const __m512 acc = _mm512_maskz_loadu_ps(keep, c);
    _mm512_storeu_ps(c, qni_amx_add_sums(v, dot, acc, facts, kind));
}

/* Rows on their way to the results. */
struct qni_amx_adding {
    struct qni_amx_vectors v0, v1;
    const int32_t *dot;
    const float *facts;
    float *c;
    size_t ldc;
    int64_t left; /* rows */
    int64_t each; /* of them after a product at most */
    __mmask16 keep;
};

QNI_TEMPLATE void qni_amx_add_row(struct qni_amx_adding *a, const bool second, const int kind)
{
    qni_amx_add_vector(&a->v0, a->dot, a->c, a->facts, a->keep, kind);
    if (second)
        qni_amx_add_vector(&a->v1, a->dot + 16, a->c + 16, a->facts, a->keep, kind);
    a->dot += 32;
    a->facts++;
    a->c += a->ldc;
}

QNI_TEMPLATE struct qni_amx_adding qni_amx_adding_of(const struct qni_amx_stream *st,
                                                     const struct qni_amx_add *r, const int kind)
{
    struct qni_amx_adding a;
    a.v0 = qni_amx_vectors_of(st, r->columns, 0, kind);
    a.v1 = qni_amx_vectors_of(st, r->columns, 1, kind);
    a.ldc = r->ldc;
    a.keep = r->keep;
    a.dot = r->dot;
    a.facts = r->facts;
    a.c = r->c;
    a.left = r->rows;
    return a;
}

QNI_VARIANTS void qni_amx_add_all(const struct qni_amx_stream *st, const struct qni_amx_add *r,
                                  const int kind)
{
    if (r->rows == 0)
        return;
    struct qni_amx_adding a = qni_amx_adding_of(st, r, kind);
    if (r->second_panel)
        for (int64_t i = 0; i < r->rows; i++)
            qni_amx_add_row(&a, true, kind);
    else
        for (int64_t i = 0; i < r->rows; i++)
            qni_amx_add_row(&a, false, kind);
}

/* ---- the stream ------------------------------------------------------------------------------ */

/* Where the tiles of the next products are. */
struct qni_amx_operands {
    const char *a, *b0, *b1;
    size_t middle, last, lda;
    const struct qni_amx_sink *held;
    bool far;
};

/* The tile goes where its block belongs, and begins the next one at zero: loading it with sums to
 * go on with would hold the products up for as long as a block of 500 positions takes. */
#define QNI_AMX_TAKE_OVER(tile, at, tiles_of_rows)                                                 \
    do {                                                                                           \
        if (o->held->tiles >= (tiles_of_rows))                                                     \
            _tile_stored(tile, o->held->c + (at), 128);                                            \
        _tile_zero(tile);                                                                          \
    } while (0)

/* Tiles of B that lie in the second cache do not pass through the first, which they would only
 * wash out: its lines are what tiles wait for. */
#define QNI_AMX_LOAD(tile, at, ld, far)                                                            \
    do {                                                                                           \
        if (far)                                                                                   \
            _tile_stream_loadd(tile, at, ld);                                                      \
        else                                                                                       \
            _tile_loadd(tile, at, ld);                                                             \
    } while (0)

QNI_TEMPLATE void qni_amx_add_some(struct qni_amx_adding *adding, const int rate, const int kind)
{
    if (rate == 0)
        return;
    const int64_t n = adding->each < adding->left ? adding->each : adding->left;
    QNI_UNROLL
    for (int i = 0; i < rate; i++) {
        if (i >= n)
            break;
        qni_amx_add_row(adding, true, kind);
    }
    adding->left -= n;
}

/* In pieces between the products: a tile of B unpacked at once would fill the reorder buffer. */
static inline void qni_amx_feed(const struct qni_amx_stream *st, int32_t quarter, int32_t end)
{
    if (st->feeding)
        st->feed(st->feed_arg, quarter, end);
}

/* One tile of k: two products for each tile of rows; up to `rate` rows are added after each. */
QNI_TEMPLATE void qni_amx_step(const struct qni_amx_stream *st, const struct qni_amx_operands *o,
                               struct qni_amx_adding *adding, const bool begins, const int tiles,
                               const int rate, const int kind)
{
    const size_t lda = o->lda;
    QNI_AMX_LOAD(7, o->b0, 64, o->far);
    if (begins && tiles == 2 && o->held->tiles == 3)
        qni_amx_store_middle(o->held);
    if (begins && tiles == 1)
        qni_amx_store_others(o->held);
    QNI_AMX_LOAD(6, o->a, lda, o->far && tiles == 2);
    if (begins)
        QNI_AMX_TAKE_OVER(0, 0, 1);
    _tile_dpbssd(0, 6, 7);
    qni_amx_add_some(adding, rate, kind);
    qni_amx_feed(st, 0, 1);
    if (tiles == 3) {
        _tile_loadd(6, o->a + o->middle, lda);
        if (begins)
            QNI_AMX_TAKE_OVER(4, o->held->middle, 3);
        _tile_dpbssd(4, 6, 7);
        qni_amx_add_some(adding, rate, kind);
        _tile_loadd(6, o->a + o->last, lda);
        if (begins)
            QNI_AMX_TAKE_OVER(2, o->held->last, 2);
        _tile_dpbssd(2, 6, 7);
        qni_amx_add_some(adding, rate, kind);
    } else if (tiles == 2) {
        QNI_AMX_LOAD(4, o->a + o->last, lda, o->far);
        if (begins)
            QNI_AMX_TAKE_OVER(2, o->held->last, 2);
        _tile_dpbssd(2, 4, 7);
        qni_amx_add_some(adding, rate, kind);
    }
    QNI_AMX_LOAD(7, o->b1, 64, o->far);
    qni_amx_feed(st, 1, 2);
    if (tiles > 1) {
        if (begins)
            QNI_AMX_TAKE_OVER(3, o->held->last + 64, 2);
        if (tiles == 3)
            _tile_dpbssd(3, 6, 7);
        else
            _tile_dpbssd(3, 4, 7);
        qni_amx_add_some(adding, rate, kind);
    }
    qni_amx_feed(st, 2, 3);
    if (tiles == 3) {
        _tile_loadd(6, o->a + o->middle, lda);
        if (begins)
            QNI_AMX_TAKE_OVER(5, o->held->middle + 64, 3);
        _tile_dpbssd(5, 6, 7);
        qni_amx_add_some(adding, rate, kind);
        _tile_loadd(6, o->a, lda);
    }
    if (begins)
        QNI_AMX_TAKE_OVER(1, 64, 1);
    _tile_dpbssd(1, 6, 7);
    qni_amx_add_some(adding, rate, kind);
    qni_amx_feed(st, 3, 4);
}

static inline void qni_amx_look_ahead(struct qni_amx_stream *st)
{
    const int64_t n = st->rate < st->lines ? st->rate : st->lines;
    for (int64_t i = 0; i < n; i++) {
        _mm_prefetch(st->ahead[0] + 64 * i, _MM_HINT_T1);
        _mm_prefetch(st->ahead[1] + 64 * i, _MM_HINT_T1);
    }
    st->ahead[0] += 64 * n;
    st->ahead[1] += 64 * n;
    st->lines -= n;
}

static inline void qni_amx_next(struct qni_amx_stream *st)
{
    if (st->lines > 0)
        qni_amx_look_ahead(st);
    st->slot = st->slot + 1 == st->slots ? 0 : st->slot + 1;
}

/* The next tile of k, beside which rows are added if rate > 0. */
QNI_VARIANTS void qni_amx_multiply(struct qni_amx_stream *st, const struct qni_amx_block *b,
                                   int64_t unit, struct qni_amx_adding *adding, const int tiles,
                                   const int rate, const int kind)
{
    const char *const b0 = st->ring + st->slot * QNI_AMX_SLOT;
    const struct qni_amx_operands o = {
        b->a + unit * st->a_step,
        b0,
        b0 + b->b_second,
        b->middle,
        b->last,
        st->lda,
        &st->held,
        st->far,
    };
    /* Two copies where segments of few steps are common. */
    const bool apart = rate == 0 || tiles == 2;
    if (apart && unit > 0)
        qni_amx_step(st, &o, adding, false, tiles, rate, kind);
    else
        qni_amx_step(st, &o, adding, apart || unit == 0, tiles, rate, kind);
    qni_amx_next(st);
}

/* Products of one or two tiles of rows from `unit` on, of which there are some, with 5 for the
 * second panel of B. What the next step needs is loaded while this one multiplies; the last step
 * loads its own A again, and some B. */
QNI_TEMPLATE void qni_amx_rest_ahead(struct qni_amx_stream *st, const struct qni_amx_block *b,
                                     int64_t unit, const int tiles, const bool far)
{
    const size_t lda = st->lda;
    const char *a = b->a + unit * st->a_step;
    const char *b0 = st->ring + st->slot * QNI_AMX_SLOT;
    QNI_AMX_LOAD(6, a, lda, far);
    QNI_AMX_LOAD(7, b0, 64, far);
    QNI_AMX_LOAD(5, b0 + b->b_second, 64, far);
    if (tiles == 2)
        QNI_AMX_LOAD(4, a + b->last, lda, far);
    for (; unit < b->units; unit++) {
        const int64_t next = st->slot + 1 == st->slots ? 0 : st->slot + 1;
        a += unit + 1 < b->units ? st->a_step : 0;
        b0 = st->ring + next * QNI_AMX_SLOT;
        _tile_dpbssd(0, 6, 7);
        if (tiles == 1)
            QNI_AMX_LOAD(7, b0, 64, far);
        qni_amx_feed(st, 0, 1);
        _tile_dpbssd(1, 6, 5);
        QNI_AMX_LOAD(6, a, lda, far);
        if (tiles == 1)
            QNI_AMX_LOAD(5, b0 + b->b_second, 64, far);
        qni_amx_feed(st, 1, 2);
        if (tiles == 2) {
            _tile_dpbssd(3, 4, 5);
            QNI_AMX_LOAD(5, b0 + b->b_second, 64, far);
            qni_amx_feed(st, 2, 3);
            _tile_dpbssd(2, 4, 7);
            QNI_AMX_LOAD(7, b0, 64, far);
            QNI_AMX_LOAD(4, a + b->last, lda, far);
            qni_amx_feed(st, 3, 4);
        } else {
            qni_amx_feed(st, 2, 4);
        }
        qni_amx_next(st);
    }
}

/* Products from `unit` on, nothing beside them: the same whatever becomes of sums. */
static void qni_amx_rest(struct qni_amx_stream *st, const struct qni_amx_block *b, int64_t unit)
{
    enum { FEW = 2 }; /* units, for which loading ahead does not pay */
    const bool ahead = st->spare && b->units - unit > FEW;
    const int64_t end = !ahead ? b->units : unit == 0 ? 1 : unit; /* where it begins */
    if (b->out.tiles == 3) {
        for (; unit < b->units; unit++)
            qni_amx_multiply(st, b, unit, NULL, 3, 0, 0);
    } else if (b->out.tiles == 2) {
        for (; unit < end; unit++)
            qni_amx_multiply(st, b, unit, NULL, 2, 0, 0);
        if (ahead && st->far)
            qni_amx_rest_ahead(st, b, unit, 2, true);
        else if (ahead)
            qni_amx_rest_ahead(st, b, unit, 2, false);
    } else {
        for (; unit < end; unit++)
            qni_amx_multiply(st, b, unit, NULL, 1, 0, 0);
        if (ahead)
            qni_amx_rest_ahead(st, b, unit, 1, false);
    }
}

/* All products of a block. Rows are added beside the first of them. */
QNI_VARIANTS void qni_amx_steps(struct qni_amx_stream *st, const struct qni_amx_block *b,
                                const int tiles, const int rate, const int kind)
{
    struct qni_amx_adding adding = qni_amx_adding_of(st, qni_amx_add_of(st, 2), kind);
    const int64_t products = 2 * tiles * b->units;
    adding.each = 1;
    for (int i = 1; i < rate; i++) /* rows are spread over all products */
        adding.each += adding.left > i * products;
    int64_t unit = 0;
    for (; unit < b->units && adding.left > 0; unit++)
        qni_amx_multiply(st, b, unit, &adding, tiles, rate, kind);
    for (; adding.left > 0; adding.left--)
        qni_amx_add_row(&adding, true, kind);
    qni_amx_rest(st, b, unit);
}

/* Rows are added within the first eight steps, if there are so many. */
QNI_TEMPLATE void qni_amx_push_tiles(struct qni_amx_stream *st, const struct qni_amx_block *b,
                                     const int tiles, const int kind)
{
    if (b->units >= 8 && tiles > 1)
        qni_amx_steps(st, b, tiles, 1, kind);
    else
        qni_amx_steps(st, b, tiles, 4, kind);
}

/* Multiply a block, whose adds[turn] is written; finish the one before the one before. */
QNI_TEMPLATE void qni_amx_push(struct qni_amx_stream *st, const struct qni_amx_block *b,
                               const int kind)
{
    const struct qni_amx_add *const ready = qni_amx_add_of(st, 2);
    if (ready->rows == 0 || !ready->second_panel) {
        qni_amx_rest(st, b, 0);
        qni_amx_add_all(st, ready, kind);
    } else if (b->out.tiles == 3) {
        qni_amx_push_tiles(st, b, 3, kind);
    } else if (b->out.tiles == 2) {
        qni_amx_push_tiles(st, b, 2, kind);
    } else {
        qni_amx_push_tiles(st, b, 1, kind);
    }
    st->held = b->out;
    st->turn = (st->turn + 1) % 3;
}

/* Finish what is on its way. */
QNI_TEMPLATE void qni_amx_flush(struct qni_amx_stream *st, const int kind)
{
    qni_amx_store_all(&st->held);
    qni_amx_add_all(st, qni_amx_add_of(st, 2), kind);
    qni_amx_add_all(st, qni_amx_add_of(st, 1), kind);
    for (int i = 0; i < 3; i++)
        st->adds[i].rows = 0;
}

#endif
