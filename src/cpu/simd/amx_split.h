/* SPDX-License-Identifier: Apache-2.0 */
/* Many rows by segments of two tiles of k on AMX tiles, int8-block. Only files compiled for AMX
 * include this.
 *
 * Sums leave the tiles every 128 positions. Float steps beside products have one port, and what
 * they ask the first cache for holds up the products; on their own they have two. So both take
 * turns:
 *
 *     for each chunk of k       6 tiles of B of each of two panels, 12 KiB, in the first cache
 *         for each block        32 rows, two tiles of A from the second cache, past the first
 *             for each segment  its products, to sums of its own
 *             after the first   the segments of the block before become floats, all of them while
 *                               the results of a row are in registers; codes of the next chunk
 *                               are unpacked
 *
 * What a chunk may not do is push results, sums and B out of the first cache: larger ones, or A
 * that stays there, are slower (lab/cpu/NOTES.md).
 *
 * Tiles: 0 1 sums of the first tile of rows by panel, 2 3 of the second; 4 5 A, 6 7 B. */
#ifndef QNI_CPU_SIMD_AMX_SPLIT_H
#define QNI_CPU_SIMD_AMX_SPLIT_H

#include "amx_stream.h"

enum {
    QNI_AMX_SPLIT_SEGMENTS = 3, /* of a chunk at most */
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
    int32_t sums[QNI_AMX_SPLIT_SEGMENTS][4][256]; /* tiles, by their rows of 64 bytes */
    float results[QNI_AMX_SPLIT_BLOCKS][32][32];
    float zeros[32][32];
    struct qni_amx_split_columns columns[3][QNI_AMX_SPLIT_SEGMENTS][2];
    __m512i table; /* four copies of the values of nibbles */
};

struct qni_amx_split_work;
struct qni_amx_split_codes;

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
    void (*floats)(const struct qni_amx_split_work *w, struct qni_amx_split_codes *u);
};

/* ---- rows ------------------------------------------------------------------------------------ */

/* First row of a tile: the last one, or two, reach back. */
static inline int64_t qni_amx_split_row(int64_t m, int64_t tile)
{
    return tile * 16 + 16 <= m ? tile * 16 : m - 16;
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

/* A unit, if there is one. */
static inline void qni_amx_split_unpack(struct qni_amx_split_codes *u)
{
    if (u->left == 0)
        return;
    if (u->bytes) {
        const __m512i flip = _mm512_set1_epi8((char)0x80);
        QNI_UNROLL
        for (int k = 0; k < 512; k += 64)
            _mm512_store_si512(u->out + k,
                               _mm512_xor_si512(_mm512_loadu_si512(u->codes + k), flip));
    } else {
        const __m512i table = _mm512_load_si512(u->table);
        QNI_UNROLL
        for (int k = 0; k < 256; k += 64) {
            const __m512i v = _mm512_loadu_si512(u->codes + k);
            const __m512i high = _mm512_srli_epi16(v, 4);
            _mm512_store_si512(u->out + k, _mm512_permutexvar_epi8(v, table));
            _mm512_store_si512(u->out + k + 256, _mm512_permutexvar_epi8(high, table));
        }
    }
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
    while (u->left > 0)
        qni_amx_split_unpack(u);
}

/* ---- floats -------------------------------------------------------------------------------- */

/* Segments of a block whose sums become floats, and where their results are. */
struct qni_amx_split_work {
    const int32_t *dot;                          /* [segments][4][256] */
    const struct qni_amx_split_columns *columns; /* [segments][2 panels] */
    const float *facts;
    const float *from; /* [32][32] */
    float *to[2];      /* of 16 rows each */
    size_t ld;
    int64_t n;
    bool streams;
};

/* What is multiplied by the scale of the weights. */
QNI_TEMPLATE __m512 qni_amx_split_term(__m512 scale, __m512 shift, __m512 sums, const int32_t *dot,
                                       const int base)
{
    const __m512 real = _mm512_cvtepi32_ps(_mm512_load_si512(dot));
    if (base == QNI_AMX_BLOCK)
        return _mm512_mul_ps(scale, real);
    return _mm512_fmadd_ps(scale, real, _mm512_mul_ps(shift, sums));
}

/* All rows of n segments, and n units of codes on the way: beside products they would hold up loads
 * of tiles. */
QNI_TEMPLATE void qni_amx_split_rows(const struct qni_amx_split_work *w,
                                     struct qni_amx_split_codes *u, const int n, const bool streams,
                                     const int kind)
{
    enum { MOST = QNI_AMX_SPLIT_SEGMENTS };
    const int base = kind & QNI_AMX_BASE;
    const int total = base == QNI_AMX_SHIFTED ? 64 : 32;
    const int facts = kind & QNI_AMX_OFFSET ? total + 32 : total;
    __m512 scales[MOST][2], sums[MOST][2], offsets[MOST][2];
    QNI_UNROLL
    for (int i = 0; i < 2 * n; i++) {
        scales[i / 2][i % 2] = _mm512_load_ps(w->columns[i].scale);
        QNI_KEEP(scales[i / 2][i % 2]);
        sums[i / 2][i % 2] = offsets[i / 2][i % 2] = scales[i / 2][i % 2];
        if (base == QNI_AMX_SHIFTED) {
            sums[i / 2][i % 2] = _mm512_load_ps(w->columns[i].sums);
            QNI_KEEP(sums[i / 2][i % 2]);
        }
        if (kind & QNI_AMX_OFFSET) {
            offsets[i / 2][i % 2] = _mm512_load_ps(w->columns[i].offset);
            QNI_KEEP(offsets[i / 2][i % 2]);
        }
    }
    const float *fact = w->facts, *from = w->from;
    const int32_t *dot = w->dot;
    for (int half = 0; half < 2; half++, dot += 256) {
        float *to = w->to[half];
        for (int r = 0; r < 16; r++, dot += 16, fact++, from += 32, to += w->ld) {
            __m512 acc[2] = {_mm512_load_ps(from), _mm512_load_ps(from + 16)};
            QNI_UNROLL
            for (int i = 0; i < n; i++) {
                __m512 scale = _mm512_set1_ps(fact[i * facts]), shift = scale;
                QNI_KEEP(scale);
                if (base == QNI_AMX_SHIFTED) {
                    shift = _mm512_set1_ps(fact[i * facts + 32]);
                    QNI_KEEP(shift);
                }
                QNI_UNROLL
                for (int p = 0; p < 2; p++) {
                    const __m512 term = qni_amx_split_term(scale, shift, sums[i][p],
                                                           dot + 1024 * i + 256 * p, base);
                    acc[p] = _mm512_fmadd_ps(scales[i][p], term, acc[p]);
                    if (kind & QNI_AMX_OFFSET)
                        acc[p] = _mm512_fmadd_ps(offsets[i][p],
                                                 _mm512_set1_ps(fact[i * facts + total]), acc[p]);
                }
            }
            if (streams) {
                _mm512_stream_ps(to, acc[0]);
                _mm512_stream_ps(to + 16, acc[1]);
            } else {
                _mm512_storeu_ps(to, acc[0]);
                _mm512_storeu_ps(to + 16, acc[1]);
            }
            if (r % 8 == 7 && half * 2 + r / 8 < n)
                qni_amx_split_unpack(u);
        }
    }
}

/* Chunks have two segments or three. */
QNI_TEMPLATE void qni_amx_split_floats(const struct qni_amx_split_work *w,
                                       struct qni_amx_split_codes *u, const int kind)
{
    if (w->n == 3 && w->streams)
        qni_amx_split_rows(w, u, 3, true, kind);
    else if (w->n == 3)
        qni_amx_split_rows(w, u, 3, false, kind);
    else if (w->streams)
        qni_amx_split_rows(w, u, 2, true, kind);
    else
        qni_amx_split_rows(w, u, 2, false, kind);
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

static inline void qni_amx_split_segment(const struct qni_amx_split_products *p)
{
    _tile_loadd(6, p->b, 64);
    _tile_stream_loadd(4, p->a, p->lda);
    QNI_AMX_SPLIT_OVER(0);
    _tile_dpbssd(0, 4, 6);
    _tile_loadd(7, p->b + QNI_AMX_SPLIT_PANEL, 64);
    QNI_AMX_SPLIT_OVER(1);
    _tile_dpbssd(1, 4, 7);
    _tile_stream_loadd(5, p->a_second, p->lda);
    QNI_AMX_SPLIT_OVER(3);
    _tile_dpbssd(3, 5, 7);
    QNI_AMX_SPLIT_OVER(2);
    _tile_dpbssd(2, 5, 6);
    _tile_loadd(6, p->b + QNI_AMX_SLOT, 64);
    _tile_stream_loadd(4, p->a + 64, p->lda);
    _tile_dpbssd(0, 4, 6);
    _tile_stream_loadd(5, p->a_second + 64, p->lda);
    _tile_dpbssd(2, 5, 6);
    _tile_loadd(7, p->b + QNI_AMX_SLOT + QNI_AMX_SPLIT_PANEL, 64);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(3, 5, 7);
}
#undef QNI_AMX_SPLIT_OVER

/* ---- a walk through panels, chunks and blocks ------------------------------------------------ */

/* Chunks differ by one segment at most, and there are two segments or more. */
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

/* What becomes of the sums of a block. */
static inline struct qni_amx_split_work qni_amx_split_work_of(const struct qni_amx_split *s,
                                                              const struct qni_amx_split_chunk *c,
                                                              int64_t block)
{
    float *const results = s->memory->results[block][0];
    struct qni_amx_split_work w = {
        .dot = s->memory->sums[0][0],
        .columns = s->memory->columns[c->columns][0],
        .facts = s->facts + (block * s->segments + c->first) * s->n_facts * 32,
        .from = c->first == 0 ? s->memory->zeros[0] : results,
        .to = {results, results + 512},
        .ld = 32,
        .n = c->end - c->first,
    };
    if (c->end < s->segments)
        return w;
    w.ld = s->ldc;
    w.streams = s->streams;
    for (int64_t i = 0; i < 2; i++)
        w.to[i] = s->c + (size_t)qni_amx_split_row(s->m, 2 * block + i) * s->ldc + c->panel * 16;
    return w;
}

/* A block of a chunk. Sums leave the tiles a segment late, so that the last ones of the block
 * before, whose work is w, do beside the first segment. */
static inline void qni_amx_split_block(const struct qni_amx_split *s,
                                       const struct qni_amx_split_chunk *c, int64_t block,
                                       struct qni_amx_split_products *p,
                                       struct qni_amx_split_codes *u, struct qni_amx_split_work *w)
{
    struct qni_amx_split_memory *const m = s->memory;
    const int64_t first = qni_amx_split_row(s->m, 2 * block);
    const int64_t second = qni_amx_split_row(s->m, 2 * block + 1);
    p->a = s->a + (size_t)first * s->lda + (size_t)c->first * 128;
    p->b = (const char *)m->b[c->turn][0][0];
    for (int64_t i = 0; i < c->end - c->first; i++) {
        p->a_second = p->a + (size_t)(second - first) * s->lda;
        qni_amx_split_segment(p);
        p->a += 128;
        p->b += 2 * (size_t)QNI_AMX_SLOT;
        p->sums = (char *)m->sums[i];
        if (i == 0 && w->n > 0)
            s->floats(w, u);
    }
    *w = qni_amx_split_work_of(s, c, block);
}

/* All of it. Tiles are configured by qni_amx_configure_rows(16, 64, 5, 6). */
QNI_NOINLINE static void qni_amx_split_multiply(const struct qni_amx_split *s)
{
    struct qni_amx_split_memory *const m = s->memory;
    const int64_t blocks = (s->m + 31) / 32;
    struct qni_amx_split_chunk c = {.panel = -2, .number = qni_amx_split_chunks(s) - 1}, next;
    struct qni_amx_split_codes u = {.bytes = s->bytes, .table = &m->table};
    struct qni_amx_split_work w = {.n = 0};
    /* What is in the tiles before the first segment goes where its own sums will be. */
    struct qni_amx_split_products p = {.lda = s->lda, .sums = (char *)m->sums[0]};
    memset(m->zeros, 0, sizeof m->zeros);
    c = qni_amx_split_next(s, c);
    qni_amx_split_prepare(s, &c, &u);
    qni_amx_split_unpack_rest(&u);
    for (; c.panel < s->panels; c = next) {
        next = qni_amx_split_next(s, c);
        qni_amx_split_prepare(s, &next, &u);
        for (int64_t block = 0; block < blocks; block++)
            qni_amx_split_block(s, &c, block, &p, &u, &w);
        qni_amx_split_unpack_rest(&u);
    }
    _tile_stored(0, p.sums, 64);
    _tile_stored(1, p.sums + 1024, 64);
    _tile_stored(2, p.sums + 2048, 64);
    _tile_stored(3, p.sums + 3072, 64);
    s->floats(&w, &u);
}

#endif
