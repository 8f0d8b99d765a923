/* SPDX-License-Identifier: Apache-2.0 */
/* Many rows by segments of two tiles of k on AMX tiles, int8-block. Only files compiled for AMX
 * include this.
 *
 * Sums leave the tiles every 128 positions, and what limits that is what the first cache is asked
 * for: lines of tiles, sums stored and loaded, results, facts (lab/cpu/NOTES.md). So
 *
 *     for each chunk of k       8 tiles of B of each of two panels, 16 KiB, in the first cache
 *         for each block        32 rows, two tiles of A from the second cache, past the first
 *             for each segment  its products; beside them the sums of two segments before it
 *                               become floats, and codes of the next chunk are unpacked
 *
 * all of it inline, evenly and without a branch that is hard to foresee. What a chunk may not do is
 * push results, sums and B out of the first cache: larger ones, or A that stays there, are slower.
 *
 * No read follows soon after a store whose address has the same lower 12 bits, for which it would
 * wait: the second buffer of sums begins half a page further than the first, and rows do not go in
 * order.
 *
 * Tiles: 0 1 sums of the first tile of rows by panel, 2 3 of the second; 4 5 A, 6 7 B. */
#ifndef QNI_CPU_SIMD_AMX_SPLIT_H
#define QNI_CPU_SIMD_AMX_SPLIT_H

#include "amx_stream.h"

enum {
    QNI_AMX_SPLIT_SEGMENTS = 4, /* of a chunk at most */
    QNI_AMX_SPLIT_TILES = 2 * QNI_AMX_SPLIT_SEGMENTS,
    QNI_AMX_SPLIT_BLOCKS = 10,
    QNI_AMX_SPLIT_PANEL = QNI_AMX_SPLIT_TILES * QNI_AMX_SLOT, /* bytes of B */
    QNI_AMX_SPLIT_UNIT = 512
};

/* What the columns of a panel bring to a segment; docs/numerics.md has the formulas. */
struct qni_amx_split_columns {
    float scale[16], offset[16], sums[16];
};

struct qni_amx_split_memory {
    uint8_t b[2][2][QNI_AMX_SPLIT_TILES][QNI_AMX_SLOT];
    int32_t sums[2][6][256];                        /* four tiles, by their rows of 64 bytes */
    float results[2][QNI_AMX_SPLIT_BLOCKS][32][32]; /* of this pair of panels and the last */
    float zeros[32][32], nowhere[32][32];
    struct qni_amx_split_columns columns[3][QNI_AMX_SPLIT_SEGMENTS][2];
    __m512i table; /* four copies of the values of nibbles */
};

/* All rows and an even number of panels. */
struct qni_amx_split {
    struct qni_amx_split_memory *memory;
    const char *a;
    size_t lda;
    int64_t m; /* at least 16, at most 32 QNI_AMX_SPLIT_BLOCKS */
    const uint8_t *codes;
    size_t codes_stride;
    bool bytes; /* else nibbles */
    int64_t panels, segments;
    int64_t groups, of_a_group; /* segments */
    const char *scale, *offset; /* [panels][groups][16] */
    const int32_t *sums;        /* [panels][segments][16] */
    int32_t scale_is_f16;
    float scale_times;
    const float *facts; /* [blocks][segments][n_facts][32] */
    int64_t n_facts;
    float *c;
    size_t ldc;
    bool streams; /* to c, past the caches */
};

/* ---- rows ------------------------------------------------------------------------------------ */

/* First row of a tile: the last one, or two, reach back. */
static inline int64_t qni_amx_split_row(int64_t m, int64_t tile)
{
    return tile * 16 + 16 <= m ? tile * 16 : m - 16;
}

/* A segment whose sums become floats, and where its results are. */
struct qni_amx_split_work {
    const int32_t *dot;
    const struct qni_amx_split_columns *columns; /* of two panels */
    const float *facts;
    const float *from; /* [32][32] */
    float *to;
};

struct qni_amx_split_vectors {
    __m512 scale[2], offset[2], sums[2];
};

QNI_TEMPLATE struct qni_amx_split_vectors
qni_amx_split_vectors_of(const struct qni_amx_split_columns *c, const int kind)
{
    struct qni_amx_split_vectors v;
    for (int p = 0; p < 2; p++) {
        v.scale[p] = _mm512_load_ps(c[p].scale);
        QNI_KEEP(v.scale[p]);
        v.offset[p] = v.sums[p] = v.scale[p];
        if (kind & QNI_AMX_OFFSET) {
            v.offset[p] = _mm512_load_ps(c[p].offset);
            QNI_KEEP(v.offset[p]);
        }
        if ((kind & QNI_AMX_BASE) == QNI_AMX_SHIFTED) {
            v.sums[p] = _mm512_load_ps(c[p].sums);
            QNI_KEEP(v.sums[p]);
        }
    }
    return v;
}

/* What is multiplied by the scales of both panels. */
QNI_TEMPLATE void qni_amx_split_terms(const struct qni_amx_split_vectors *v, const int32_t *dot,
                                      const float *facts, __m512 *term, const int kind)
{
    const int base = kind & QNI_AMX_BASE;
    if (base == QNI_AMX_SHIFTED) {
        const __m512 shift = _mm512_set1_ps(facts[32]);
        term[0] = _mm512_mul_ps(shift, v->sums[0]);
        term[1] = _mm512_mul_ps(shift, v->sums[1]);
    }
    __m512 scale = _mm512_set1_ps(facts[0]);
    QNI_KEEP(scale);
    QNI_UNROLL
    for (int p = 0; p < 2; p++) {
        const __m512 real = _mm512_cvtepi32_ps(_mm512_load_si512(dot + 256 * p));
        term[p] = base == QNI_AMX_BLOCK ? _mm512_mul_ps(scale, real)
                                        : _mm512_fmadd_ps(scale, real, term[p]);
    }
}

/* Four rows. */
QNI_TEMPLATE void qni_amx_split_rows(const struct qni_amx_split_work *w,
                                     const struct qni_amx_split_vectors *v, const int row,
                                     const int kind)
{
    const int base = kind & QNI_AMX_BASE;
    const int other = base == QNI_AMX_SHIFTED ? 64 : 32;
    QNI_UNROLL
    for (int r = row; r < row + 4; r++) {
        __m512 term[2];
        qni_amx_split_terms(v, w->dot + r / 16 * 512 + r % 16 * 16, w->facts + r, term, kind);
        QNI_UNROLL
        for (int p = 0; p < 2; p++) {
            __m512 acc = _mm512_load_ps(w->from + r * 32 + p * 16);
            acc = _mm512_fmadd_ps(v->scale[p], term[p], acc);
            if (kind & QNI_AMX_OFFSET)
                acc = _mm512_fmadd_ps(v->offset[p], _mm512_set1_ps(w->facts[other + r]), acc);
            _mm512_store_ps(w->to + r * 32 + p * 16, acc);
        }
    }
}

/* ---- codes ----------------------------------------------------------------------------------- */

/* Units of the next chunk, of the first panel and then of the second. */
struct qni_amx_split_codes {
    const uint8_t *codes, *second;
    uint8_t *out, *out_second;
    int64_t left, of_second; /* units */
    bool bytes;
    const __m512i *table;
};

/* A quarter of a unit, if there is one. */
static inline void qni_amx_split_unpack(const struct qni_amx_split_codes *u, const int i)
{
    if (u->left == 0)
        return;
    if (u->bytes) {
        const __m512i flip = _mm512_set1_epi8((char)0x80);
        QNI_UNROLL
        for (int k = 128 * i; k < 128 * i + 128; k += 64)
            _mm512_store_si512(u->out + k,
                               _mm512_xor_si512(_mm512_loadu_si512(u->codes + k), flip));
        return;
    }
    const __m512i v = _mm512_loadu_si512(u->codes + 64 * i), table = _mm512_load_si512(u->table);
    const __m512i high = _mm512_srli_epi16(v, 4);
    _mm512_store_si512(u->out + 64 * i, _mm512_permutexvar_epi8(v, table));
    _mm512_store_si512(u->out + 64 * i + 256, _mm512_permutexvar_epi8(high, table));
}

/* On to the next unit. */
static inline void qni_amx_split_unpacked(struct qni_amx_split_codes *u)
{
    if (u->left == 0)
        return;
    u->codes += u->bytes ? 512 : 256;
    u->out += QNI_AMX_SPLIT_UNIT;
    if (--u->left > 0)
        return;
    u->codes = u->second;
    u->out = u->out_second;
    u->left = u->of_second;
    u->of_second = 0;
}

QNI_NOINLINE static void qni_amx_split_unpack_rest(struct qni_amx_split_codes *u)
{
    while (u->left > 0) {
        for (int i = 0; i < 4; i++)
            qni_amx_split_unpack(u, i);
        qni_amx_split_unpacked(u);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

struct qni_amx_split_products {
    const char *a, *a_second;
    size_t lda;
    const char *b;
    char *sums; /* of the segment before */
};

#define QNI_AMX_SPLIT_OVER(tile)                                                                   \
    do {                                                                                           \
        _tile_stored(tile, p->sums + 1024 * (tile), 64);                                           \
        _tile_zero(tile);                                                                          \
    } while (0)

/* The products of a segment, and the float steps of w. */
QNI_TEMPLATE void qni_amx_split_segment(const struct qni_amx_split_products *p,
                                        const struct qni_amx_split_work *w,
                                        struct qni_amx_split_codes *u, const int kind)
{
    const struct qni_amx_split_vectors v = qni_amx_split_vectors_of(w->columns, kind);
    _tile_loadd(6, p->b, 64);
    _tile_stream_loadd(4, p->a, p->lda);
    QNI_AMX_SPLIT_OVER(0);
    _tile_dpbssd(0, 4, 6);
    qni_amx_split_rows(w, &v, 0, kind);
    _tile_loadd(7, p->b + QNI_AMX_SPLIT_PANEL, 64);
    QNI_AMX_SPLIT_OVER(1);
    _tile_dpbssd(1, 4, 7);
    qni_amx_split_rows(w, &v, 4, kind);
    qni_amx_split_unpack(u, 0);
    _tile_stream_loadd(5, p->a_second, p->lda);
    QNI_AMX_SPLIT_OVER(3);
    _tile_dpbssd(3, 5, 7);
    qni_amx_split_rows(w, &v, 16, kind);
    QNI_AMX_SPLIT_OVER(2);
    _tile_dpbssd(2, 5, 6);
    qni_amx_split_rows(w, &v, 20, kind);
    qni_amx_split_unpack(u, 1);
    _tile_loadd(6, p->b + QNI_AMX_SLOT, 64);
    _tile_stream_loadd(4, p->a + 64, p->lda);
    _tile_dpbssd(0, 4, 6);
    qni_amx_split_rows(w, &v, 24, kind);
    _tile_stream_loadd(5, p->a_second + 64, p->lda);
    _tile_dpbssd(2, 5, 6);
    qni_amx_split_rows(w, &v, 28, kind);
    qni_amx_split_unpack(u, 2);
    _tile_loadd(7, p->b + QNI_AMX_SLOT + QNI_AMX_SPLIT_PANEL, 64);
    _tile_dpbssd(1, 4, 7);
    qni_amx_split_rows(w, &v, 8, kind);
    _tile_dpbssd(3, 5, 7);
    qni_amx_split_rows(w, &v, 12, kind);
    qni_amx_split_unpack(u, 3);
    qni_amx_split_unpacked(u);
}
#undef QNI_AMX_SPLIT_OVER

/* ---- a walk through panels, chunks and blocks ------------------------------------------------ */

/* Chunks differ by one segment at most. */
struct qni_amx_split_chunk {
    int64_t panel, number, first, end;
    int32_t turn, columns; /* which of the buffers */
};

static inline int64_t qni_amx_split_chunks(const struct qni_amx_split *s)
{
    return (s->segments + QNI_AMX_SPLIT_SEGMENTS - 1) / QNI_AMX_SPLIT_SEGMENTS;
}

static inline struct qni_amx_split_chunk qni_amx_split_next(const struct qni_amx_split *s,
                                                            struct qni_amx_split_chunk c)
{
    const int64_t chunks = qni_amx_split_chunks(s);
    if (++c.number == chunks) {
        c.number = 0;
        c.panel += 2;
    }
    c.first = c.number * s->segments / chunks;
    c.end = (c.number + 1) * s->segments / chunks;
    c.turn ^= 1;
    c.columns = c.columns == 2 ? 0 : c.columns + 1;
    return c;
}

/* Codes and columns of a chunk that comes next; there may be none. */
QNI_NOINLINE static void qni_amx_split_prepare(const struct qni_amx_split *s,
                                               const struct qni_amx_split_chunk *c,
                                               struct qni_amx_split_codes *u)
{
    u->left = 0;
    if (c->panel >= s->panels)
        return;
    const int64_t units = (c->end - c->first) * 4;
    u->codes = s->codes + (size_t)c->panel * s->codes_stride +
               (size_t)(c->first * 4) * (s->bytes ? 512 : 256);
    u->second = u->codes + s->codes_stride;
    u->out = s->memory->b[c->turn][0][0];
    u->out_second = s->memory->b[c->turn][1][0];
    u->left = u->of_second = units;
    for (int64_t i = c->first; i < c->end; i++)
        for (int64_t p = 0; p < 2; p++) {
            struct qni_amx_split_columns *const to =
                &s->memory->columns[c->columns][i - c->first][p];
            const int64_t row = (c->panel + p) * s->groups + i / s->of_a_group;
            _mm512_store_ps(to->scale, _mm512_mul_ps(qni_load16(s->scale, row, s->scale_is_f16),
                                                     _mm512_set1_ps(s->scale_times)));
            if (s->offset != NULL)
                _mm512_store_ps(to->offset, qni_load16(s->offset, row, s->scale_is_f16));
            if (s->sums != NULL)
                _mm512_store_ps(to->sums, _mm512_cvtepi32_ps(_mm512_loadu_si512(
                                              s->sums + ((c->panel + p) * s->segments + i) * 16)));
        }
}

/* What becomes of the sums of segment i of a block, but for where they are. */
QNI_TEMPLATE void qni_amx_split_work_of(const struct qni_amx_split *s,
                                        const struct qni_amx_split_chunk *c, int64_t block,
                                        int64_t i, struct qni_amx_split_work *w)
{
    w->columns = s->memory->columns[c->columns][i - c->first];
    w->facts = s->facts + (block * s->segments + i) * s->n_facts * 32;
    w->to = s->memory->results[c->panel / 2 % 2][block][0];
    w->from = i == 0 ? s->memory->zeros[0] : w->to;
}

/* Results of a pair of panels on their way to c, some rows beside every segment of the next pair:
 * rows of c far apart, written as they come, would push each other out of the first cache. */
struct qni_amx_split_leave {
    const float *from;
    float *c;  /* of the first row */
    float *to; /* of this one */
    int64_t row, left;
};

QNI_TEMPLATE void qni_amx_split_leave(const struct qni_amx_split *s, struct qni_amx_split_leave *l,
                                      int64_t n)
{
    for (n = n < l->left ? n : l->left; n > 0; n--, l->left--) {
        if (l->row % 16 == 0)
            l->to = l->c + (size_t)qni_amx_split_row(s->m, l->row / 16) * s->ldc;
        const __m512 v0 = _mm512_load_ps(l->from), v1 = _mm512_load_ps(l->from + 16);
        if (s->streams) {
            _mm512_stream_ps(l->to, v0);
            _mm512_stream_ps(l->to + 16, v1);
        } else {
            _mm512_storeu_ps(l->to, v0);
            _mm512_storeu_ps(l->to + 16, v1);
        }
        l->from += 32;
        l->to += s->ldc;
        l->row++;
    }
}

/* All of it. Tiles are configured by qni_amx_configure_rows(16, 64, 5, 6). Sums come two segments
 * late, and so there are two segments more at the end, of which nothing becomes anything. */
QNI_TEMPLATE void qni_amx_split_multiply(const struct qni_amx_split *s, const int kind)
{
    struct qni_amx_split_memory *const m = s->memory;
    const int64_t blocks = (s->m + 31) / 32;
    struct qni_amx_split_chunk c = {.panel = -2, .number = qni_amx_split_chunks(s) - 1}, next;
    struct qni_amx_split_codes u = {.bytes = s->bytes, .table = &m->table};
    struct qni_amx_split_products p = {.lda = s->lda};
    struct qni_amx_split_work works[2];
    for (int i = 0; i < 2; i++) {
        const struct qni_amx_split_work none = {m->sums[i][0], m->columns[0][0], s->facts,
                                                m->zeros[0], m->nowhere[0]};
        works[i] = none;
    }
    memset(m->zeros, 0, sizeof m->zeros);
    c = qni_amx_split_next(s, c);
    qni_amx_split_prepare(s, &c, &u);
    qni_amx_split_unpack_rest(&u);
    struct qni_amx_split_leave leave = {.left = 0};
    const int64_t rows = (blocks * 32 + blocks * s->segments - 1) / (blocks * s->segments);
    int32_t turn = 0;
    for (bool over = false; !over; c = next) {
        over = c.panel >= s->panels;
        if (c.number == 0 && c.panel > 0) {
            leave.from = m->results[(c.panel / 2 - 1) % 2][0][0];
            leave.c = s->c + (c.panel - 2) * 16;
            leave.left = blocks * 32;
            leave.row = 0;
        }
        next = qni_amx_split_next(s, c);
        qni_amx_split_prepare(s, &next, &u);
        const int64_t count = over ? 2 : blocks * (c.end - c.first);
        for (int64_t done = 0, block = 0, i = c.first; done < count; done++, turn ^= 1) {
            const int64_t first = qni_amx_split_row(s->m, 2 * block);
            const int64_t second = qni_amx_split_row(s->m, 2 * block + 1);
            p.a = s->a + (size_t)first * s->lda + (size_t)i * 128;
            p.a_second = p.a + (size_t)(second - first) * s->lda;
            p.b = (const char *)m->b[c.turn][0][(i - c.first) * 2];
            p.sums = (char *)m->sums[turn ^ 1];
            qni_amx_split_segment(&p, &works[turn], &u, kind);
            qni_amx_split_leave(s, &leave, rows);
            if (!over)
                qni_amx_split_work_of(s, &c, block, i, &works[turn]);
            if (++i == c.end) {
                i = c.first;
                block++;
            }
        }
        qni_amx_split_unpack_rest(&u);
    }
    qni_amx_split_leave(s, &leave, leave.left);
}

#endif
