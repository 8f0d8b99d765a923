/* SPDX-License-Identifier: Apache-2.0 */
/* How the AMX kernels keep tiles and vectors busy at once. Only files compiled for AMX include
 * this.
 *
 * A block is 32 rows x 2 panels x one stretch of k. Its results live in tiles 0..3, as [row half]
 * [panel]; tiles 4 and 5 take the row halves of A, 6 and 7 the panels of B: four loads feed four
 * products. Blocks go through a stream of three stages:
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

/* The i-th block of rows of a job of m. The last one reaches back so that its tiles are full: the
 * rows [skip, end) of it are new. A job of fewer than 32 rows is one block in shortened tiles. */
struct qni_amx_rows {
    int64_t base, skip, end;
    bool two; /* more than 16 rows */
};

static inline int64_t qni_amx_n_rows(int64_t m)
{
    return (m + 31) / 32;
}

static inline struct qni_amx_rows qni_amx_rows_at(int64_t m, int64_t i)
{
    struct qni_amx_rows r = {i * 32, 0, 32, true};
    const int64_t left = m - r.base;
    if (left >= 32)
        return r;
    r.two = left > 16;
    r.end = m < 16 ? m : r.two && m < 32 ? m : r.two ? 32 : 16;
    r.base = m - r.end;
    r.skip = i * 32 - r.base;
    return r;
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
    const int32_t *dot; /* [32][32], or f32 */
    const struct qni_amx_columns *columns;
    const float *facts; /* [][32]: what each row of the block brings, in order of use */
    float *c;           /* of row 0 of the block */
    size_t ldc;
    int64_t row, end; /* rows to add; end == 0: none */
    __mmask16 keep;   /* 0: c has nothing yet; else all ones */
    bool second_panel;
};

struct qni_amx_block {
    const char *a;
    size_t b_second; /* from the first panel of B to the second */
    int64_t units;   /* tiles of B along k */
    char *c_out;     /* where the tiles go, [32][32] of four bytes */
    bool two;
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
     * register, by a call of feed. */
    char *ring;
    int64_t slot, slots;
    bool feeding;
    void (*feed)(void *arg);
    void *feed_arg;
    char *held; /* where the tiles belong that are full */
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

/* One row of one panel. facts are those of the row: 32 apart. */
QNI_TEMPLATE void qni_amx_add_vector(const struct qni_amx_vectors *v, const int32_t *dot, float *c,
                                     const float *facts, __mmask16 keep, const int kind)
{
    const int base = kind & QNI_AMX_BASE;
    __m512 acc = _mm512_maskz_loadu_ps(keep, c);
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
                : _mm512_fmadd_ps(sx, real, _mm512_mul_ps(_mm512_set1_ps(facts[32]), v->sums));
        acc = _mm512_fmadd_ps(v->scale, term, acc);
        if (kind & QNI_AMX_OFFSET)
            acc = _mm512_fmadd_ps(v->offset, _mm512_set1_ps(facts[base == QNI_AMX_BLOCK ? 32 : 64]),
                                  acc);
    }
    _mm512_storeu_ps(c, acc);
}

/* Rows on their way to the results. */
struct qni_amx_adding {
    struct qni_amx_vectors v0, v1;
    const int32_t *dot;
    const float *facts;
    float *c;
    size_t ldc;
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
    a.dot = r->dot + r->row * 32;
    a.facts = r->facts + r->row;
    a.c = r->c + (size_t)r->row * a.ldc;
    return a;
}

QNI_TEMPLATE void qni_amx_add_all(const struct qni_amx_stream *st, const struct qni_amx_add *r,
                                  const int kind)
{
    if (r->end <= r->row)
        return;
    struct qni_amx_adding a = qni_amx_adding_of(st, r, kind);
    if (r->second_panel)
        for (int64_t i = r->row; i < r->end; i++)
            qni_amx_add_row(&a, true, kind);
    else
        for (int64_t i = r->row; i < r->end; i++)
            qni_amx_add_row(&a, false, kind);
}

/* ---- the stream ------------------------------------------------------------------------------ */

/* Where the tiles of the next products are. */
struct qni_amx_operands {
    const char *a, *b0, *b1;
    size_t lda;
    char *held;
    bool two;
};

/* The tile goes where its block belongs, and begins the next one at zero: loading it with sums to
 * go on with would hold the products up for as long as a block of 500 positions takes. */
#define QNI_AMX_TAKE_OVER(tile, at)                                                                \
    do {                                                                                           \
        _tile_stored(tile, o->held + (at), 128);                                                   \
        _tile_zero(tile);                                                                          \
    } while (0)

QNI_TEMPLATE void qni_amx_add_some(struct qni_amx_adding *adding, const int rate, const int kind)
{
    QNI_UNROLL
    for (int i = 0; i < rate; i++)
        qni_amx_add_row(adding, true, kind);
}

/* One tile of k: up to four products; `rate` rows are added after each. */
QNI_TEMPLATE void qni_amx_step(const struct qni_amx_operands *o, struct qni_amx_adding *adding,
                               const bool begins, const bool loads_b, const int rate,
                               const int kind)
{
    if (loads_b)
        _tile_loadd(6, o->b0, 64);
    _tile_loadd(4, o->a, o->lda);
    if (begins)
        QNI_AMX_TAKE_OVER(0, 0);
    _tile_dpbssd(0, 4, 6);
    qni_amx_add_some(adding, rate, kind);
    if (loads_b)
        _tile_loadd(7, o->b1, 64);
    if (begins)
        QNI_AMX_TAKE_OVER(1, 64);
    _tile_dpbssd(1, 4, 7);
    qni_amx_add_some(adding, rate, kind);
    if (begins)
        QNI_AMX_TAKE_OVER(2, 2048);
    if (begins)
        QNI_AMX_TAKE_OVER(3, 2112);
    if (!o->two)
        return;
    _tile_loadd(5, o->a + 16 * o->lda, o->lda);
    _tile_dpbssd(2, 5, 6);
    qni_amx_add_some(adding, rate, kind);
    _tile_dpbssd(3, 5, 7);
    qni_amx_add_some(adding, rate, kind);
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

/* All products of a block. rate > 0: 32 rows (or 16) are added within the first 8 / rate steps. */
QNI_TEMPLATE void qni_amx_steps(struct qni_amx_stream *st, const struct qni_amx_block *b,
                                const int rate, const int kind)
{
    const int64_t adds = rate > 0 ? 8 / (rate > 0 ? rate : 1) : 0;
    struct qni_amx_operands o = {b->a, NULL, NULL, st->lda, st->held, b->two};
    struct qni_amx_adding adding;
    if (rate > 0)
        adding = qni_amx_adding_of(st, qni_amx_add_of(st, 2), kind);
    int64_t done = 0;
    for (int64_t u = 0; u < b->units; u++) {
        o.b0 = st->ring + st->slot * QNI_AMX_SLOT;
        o.b1 = o.b0 + b->b_second;
        if (done == 0)
            qni_amx_step(&o, &adding, true, true, rate, kind);
        else if (done < adds)
            qni_amx_step(&o, &adding, false, true, rate, kind);
        else
            qni_amx_step(&o, &adding, false, true, 0, kind);
        done++;
        if (st->lines > 0)
            qni_amx_look_ahead(st);
        if (st->feeding)
            st->feed(st->feed_arg);
        st->slot = st->slot + 1 == st->slots ? 0 : st->slot + 1;
        o.a += st->a_step;
    }
}

/* Multiply a block, whose adds[turn] is written; finish the one before the one before. */
QNI_TEMPLATE void qni_amx_push(struct qni_amx_stream *st, const struct qni_amx_block *b,
                               const int kind)
{
    const struct qni_amx_add *const ready = qni_amx_add_of(st, 2);
    const int64_t steps = b->units;
    if (ready->end - ready->row != (b->two ? 32 : 16) || !ready->second_panel) {
        qni_amx_steps(st, b, 0, kind);
        qni_amx_add_all(st, ready, kind);
    } else if (steps >= 8) {
        qni_amx_steps(st, b, 1, kind);
    } else if (steps >= 4) {
        qni_amx_steps(st, b, 2, kind);
    } else if (steps >= 2) {
        qni_amx_steps(st, b, 4, kind);
    } else {
        qni_amx_steps(st, b, 8, kind);
    }
    st->held = b->c_out;
    st->turn = (st->turn + 1) % 3;
}

/* Finish what is on its way. */
QNI_TEMPLATE void qni_amx_flush(struct qni_amx_stream *st, const int kind)
{
    _tile_stored(0, st->held, 128);
    _tile_stored(1, st->held + 64, 128);
    _tile_stored(2, st->held + 2048, 128);
    _tile_stored(3, st->held + 2112, 128);
    qni_amx_add_all(st, qni_amx_add_of(st, 2), kind);
    qni_amx_add_all(st, qni_amx_add_of(st, 1), kind);
    for (int i = 0; i < 3; i++)
        st->adds[i].row = st->adds[i].end = 0;
}

#endif
