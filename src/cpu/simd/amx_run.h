/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of many short segments on AMX tiles: up to 32 rows x 2 panels, all segments of a stretch
 * of k in one loop. Only files compiled for AMX include this.
 *
 *     segment s        multiplied in the tiles
 *     segment s - 1    each of its tiles is stored just before segment s takes it over
 *     two before       scaled and added to results, together, beside the products of the next two
 *
 * What limits short segments are two ports. Conversions and multiplications share one while tiles
 * multiply: three instructions for 16 sums with int8-block, four with offsets. Additions have
 * another. So sums are not converted: they begin at the bits of 1.5 * 2^23, and as long as |sum| <=
 * 2^22, an integer added to these bits is added to the number, too: every sum read as f32 is
 * 1.5 * 2^23 + sum, exactly. Neither are the tiles set back where a segment ends: what the segment
 * brought is the difference to what was there before, also exact, in one subtraction. After `fresh`
 * segments, when sums might leave that range, the tiles begin again.
 *
 * The other limit is what the first cache yields, hence two segments at a time: results are read
 * and written, and the sums between the two read, once for both. Results of the block stay in
 * memory of their own, 4 KiB, until all segments are added. With 48 rows, 36 KiB of sums and
 * results would lie beside A and B: no faster. Products keep one order, in which a tile is stored
 * three products after its last one: for few rows others take less, but their stores wait. */
#ifndef QNI_CPU_SIMD_AMX_RUN_H
#define QNI_CPU_SIMD_AMX_RUN_H

#include "amx_stream.h"

#define QNI_AMX_BEGIN 0x1.8p23f
enum {
    QNI_AMX_RUN = 1 << 22, /* |sum| at most */
    QNI_AMX_RUN_ROWS = 32  /* of a block at most */
};

/* [32][32] */
struct qni_amx_run_memory {
    float dots[4][1024]; /* of the last segments */
    float begin[1024];   /* QNI_AMX_BEGIN */
    float acc[1024];     /* results */
};

struct qni_amx_run {
    const char *a;
    struct qni_amx_stream *st; /* whose ring holds B */
    size_t b_second;           /* from the first panel of B to the second */
    bool two;                  /* tiles of rows */
    size_t a_second, c_second; /* bytes from the first to the second, of A and of sums */
    int64_t rows;
    int64_t n;                 /* segments */
    int64_t length;            /* positions of each but the last */
    int64_t steps, last_steps; /* tiles of B in each, the last of which may be short */
    int64_t fresh;             /* even */
    const float *facts;        /* [n][n_facts][QNI_AMX_RUN_ROWS], */
    int32_t share;             /* or as qni_amx_shared_place() has it */
    int64_t n_facts;
    const char *scale[2], *offset[2]; /* [n][16] of each panel */
    const int32_t *sums[2];           /* [n][16] */
    struct qni_amx_run_memory *m;
};

/* ---- the float steps ------------------------------------------------------------------------- */

/* A segment whose sums are being added: vectors of its columns, facts of its rows. */
struct qni_amx_segment {
    __m512 scale[2], offset[2], sums[2];
    const float *facts;
};

/* One or two of them. before: what the tiles held when the first began. */
struct qni_amx_sums {
    struct qni_amx_segment segment[2];
    const float *before, *dot[2];
    float *acc;
    int64_t rows;
};

QNI_TEMPLATE struct qni_amx_segment qni_amx_segment_of(const struct qni_amx_run *r, int64_t i,
                                                       const int kind)
{
    const int32_t is_f16 = r->st->scale_is_f16;
    const __m512 times = _mm512_set1_ps(r->st->scale_times);
    const int64_t at = i * (is_f16 ? 32 : 64);
    struct qni_amx_segment s;
    for (int p = 0; p < 2; p++) {
        s.scale[p] = _mm512_mul_ps(qni_load16(r->scale[p] + at, 0, is_f16), times);
        s.offset[p] = s.sums[p] = _mm512_setzero_ps();
        if (kind & QNI_AMX_OFFSET)
            s.offset[p] = qni_load16(r->offset[p] + at, 0, is_f16);
        if ((kind & QNI_AMX_BASE) == QNI_AMX_SHIFTED)
            s.sums[p] = _mm512_cvtepi32_ps(_mm512_loadu_si512(r->sums[p] + i * 16));
    }
    s.facts = r->facts + qni_amx_shared_place(i, r->share, r->n_facts * QNI_AMX_RUN_ROWS);
    return s;
}

/* Segments first and first + 1, the second only if n == 2. */
QNI_TEMPLATE struct qni_amx_sums qni_amx_sums_of(const struct qni_amx_run *r, int64_t first,
                                                 const int n, const int kind)
{
    struct qni_amx_sums s;
    for (int i = 0; i < 2; i++) {
        s.segment[i] = qni_amx_segment_of(r, first + (i < n ? i : 0), kind);
        s.dot[i] = r->m->dots[(first + i) & 3];
    }
    s.before = first % r->fresh == 0 ? r->m->begin : r->m->dots[(first + 3) & 3];
    s.acc = r->m->acc;
    s.rows = r->rows;
    return s;
}

QNI_TEMPLATE __m512 qni_amx_run_term(const struct qni_amx_segment *s, const int panel, int64_t row,
                                     __m512 real, __m512 acc, const int kind)
{
    const int base = kind & QNI_AMX_BASE;
    __m512 term = real;
    if (base != QNI_AMX_ROW) {
        const __m512 sx = _mm512_set1_ps(s->facts[row]);
        const __m512 ox = _mm512_set1_ps(s->facts[QNI_AMX_RUN_ROWS + row]);
        term = base == QNI_AMX_BLOCK ? _mm512_mul_ps(sx, real)
                                     : _mm512_fmadd_ps(sx, real, _mm512_mul_ps(ox, s->sums[panel]));
    }
    acc = _mm512_fmadd_ps(s->scale[panel], term, acc);
    if (kind & QNI_AMX_OFFSET) {
        const int fact = base == QNI_AMX_ROW ? 0 : base == QNI_AMX_BLOCK ? 1 : 2;
        acc = _mm512_fmadd_ps(s->offset[panel],
                              _mm512_set1_ps(s->facts[fact * QNI_AMX_RUN_ROWS + row]), acc);
    }
    return acc;
}

/* A row of both panels. */
QNI_TEMPLATE void qni_amx_run_add(const struct qni_amx_sums *s, int64_t row, const int n,
                                  const int kind)
{
    QNI_UNROLL
    for (int panel = 0; panel < 2; panel++) {
        const int64_t at = row * 32 + panel * 16;
        const __m512 before = _mm512_load_ps(s->before + at);
        __m512 first = _mm512_load_ps(s->dot[0] + at);
        __asm__("" : "+v"(first)); /* else it is loaded twice */
        __m512 acc = _mm512_load_ps(s->acc + at);
        acc = qni_amx_run_term(&s->segment[0], panel, row, _mm512_sub_ps(first, before), acc, kind);
        if (n == 2) {
            const __m512 second = _mm512_load_ps(s->dot[1] + at);
            acc = qni_amx_run_term(&s->segment[1], panel, row, _mm512_sub_ps(second, first), acc,
                                   kind);
        }
        _mm512_store_ps(s->acc + at, acc);
    }
}

QNI_VARIANTS void qni_amx_run_add_all(const struct qni_amx_run *r, int64_t first, const int n,
                                      const int kind)
{
    const struct qni_amx_sums s = qni_amx_sums_of(r, first, n, kind);
    for (int64_t row = 0; row < r->rows; row++)
        qni_amx_run_add(&s, row, n, kind);
}

/* Eight rows from `row` on of two segments, if they are there. */
QNI_TEMPLATE void qni_amx_run_add_some(const struct qni_amx_sums *s, int64_t row, const int kind)
{
    QNI_UNROLL
    for (int i = 0; i < 8; i++) {
        if (i % 4 == 0 && row + i >= s->rows)
            break;
        qni_amx_run_add(s, row + i, 2, kind);
    }
}

/* ---- the products ---------------------------------------------------------------------------- */

#define QNI_AMX_RUN_OVER(tile, at)                                                                 \
    do {                                                                                           \
        _tile_stored(tile, held + (at), 128);                                                      \
        if (begin != NULL)                                                                         \
            _tile_loadd(tile, begin, 0);                                                           \
    } while (0)

/* All tiles of a segment but the first. */
static inline void qni_amx_run_rest(const struct qni_amx_run *r, const char *a, int64_t steps)
{
    struct qni_amx_stream *const st = r->st;
    for (int64_t i = 1; i < steps; i++) {
        a += st->a_step;
        const char *const b = st->ring + st->slot * QNI_AMX_SLOT;
        _tile_loadd(6, b, 64);
        _tile_loadd(4, a, st->lda);
        _tile_dpbssd(0, 4, 6);
        _tile_loadd(7, b + r->b_second, 64);
        _tile_dpbssd(1, 4, 7);
        if (r->two) {
            _tile_loadd(5, a + r->a_second, st->lda);
            _tile_dpbssd(2, 5, 6);
            _tile_dpbssd(3, 5, 7);
        }
        qni_amx_feed(st, 0, 4);
        qni_amx_next(st);
    }
}

/* The products of segment i. Beside each two of the first four, or two, eight rows are added, from
 * `row` of their half on. */
QNI_VARIANTS void qni_amx_run_segment(const struct qni_amx_run *r, int64_t i,
                                      const struct qni_amx_sums *s, int64_t row, const int kind)
{
    struct qni_amx_stream *const st = r->st;
    const char *const a = r->a + i * r->length;
    const char *const b = st->ring + st->slot * QNI_AMX_SLOT;
    char *const held = (char *)r->m->dots[(i + 3) & 3]; /* of segment i - 1 */
    const float *const begin = i % r->fresh == 0 ? r->m->begin : NULL;
    _tile_loadd(6, b, 64);
    _tile_loadd(4, a, st->lda);
    QNI_AMX_RUN_OVER(0, 0);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, b + r->b_second, 64);
    QNI_AMX_RUN_OVER(1, 64);
    _tile_dpbssd(1, 4, 7);
    qni_amx_run_add_some(s, row, kind);
    if (r->two) {
        _tile_loadd(5, a + r->a_second, st->lda);
        QNI_AMX_RUN_OVER(2, r->c_second);
        _tile_dpbssd(2, 5, 6);
        QNI_AMX_RUN_OVER(3, r->c_second + 64);
        _tile_dpbssd(3, 5, 7);
        qni_amx_run_add_some(s, 16 + row, kind);
    }
    qni_amx_feed(st, 0, 4);
    qni_amx_next(st);
    qni_amx_run_rest(r, a, i + 1 < r->n ? r->steps : r->last_steps);
}
#undef QNI_AMX_RUN_OVER

/* All segments of a block; they are added to acc. */
QNI_TEMPLATE void qni_amx_run_block(const struct qni_amx_run *r, const int kind)
{
    const struct qni_amx_sums none = {.rows = 0};
    int64_t i = 0;
    for (; i + 2 <= r->n; i += 2) {
        struct qni_amx_sums s = qni_amx_sums_of(r, i < 2 ? 0 : i - 2, 2, kind);
        s.rows = i < 2 ? 0 : s.rows;
        qni_amx_run_segment(r, i, &s, 0, kind);
        qni_amx_run_segment(r, i + 1, &s, 8, kind);
    }
    if (i < r->n)
        qni_amx_run_segment(r, i, &none, 0, kind);
    if (i < r->n && i >= 2)
        qni_amx_run_add_all(r, i - 2, 2, kind);
    const struct qni_amx_sink last = {(char *)r->m->dots[(r->n - 1) & 3], 0, (int64_t)r->c_second,
                                      r->two ? 2 : 1};
    qni_amx_store_all(&last);
    if (i < r->n)
        qni_amx_run_add_all(r, i, 1, kind);
    else
        qni_amx_run_add_all(r, i - 2, 2, kind);
}

#endif
