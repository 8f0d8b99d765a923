/* SPDX-License-Identifier: Apache-2.0 */
/* How the int8 AMX kernels multiply many rows by long segments. Only files compiled for AMX include
 * this.
 *
 * Products take what they take from registers as long as the first cache is not asked for too many
 * lines: a core waits for 16 at a time. So, for two panels,
 *
 *     for each chunk of k       16 tiles of B of each panel, 32 KiB: in the first cache
 *         for each block        two tiles of rows, from the second cache; their sums come from
 *                               there, too, and go back
 *
 * and all else is done a little at a time, evenly beside all products: codes of the next chunk are
 * unpacked, 64 bytes beside two products, and what is finished leaves. In lumps the same work costs
 * several times as much, for it fills the reorder buffer (lab/cpu/NOTES.md).
 *
 * Rows of y lie 16 KiB apart as often as not, and then all lines of a column meet in one set of the
 * first cache: finished sums leave in runs of QNI_AMX_BATCH pairs of panels a row there, unless
 * stores pass the caches by.
 *
 * Tiles: 0 1 sums of the first tile of rows by panel, 2 3 of the second; 4 5 A, 6 7 B. */
#ifndef QNI_CPU_SIMD_AMX_CHUNKS_H
#define QNI_CPU_SIMD_AMX_CHUNKS_H

#include "amx_stream.h"

enum {
    QNI_AMX_CHUNK = 16,       /* tiles of B of a panel */
    QNI_AMX_BATCH = 4,        /* pairs of panels */
    QNI_AMX_STEP = 2048,      /* bytes of B, both panels */
    QNI_AMX_BLOCK_SUMS = 4096 /* bytes of a block, tile after tile, each by its rows of 64 bytes */
};

/* How often something is done beside products: rate / 65536 times each time it is its turn. Inline,
 * all of it: a call between two products costs as much as what it does. */
struct qni_amx_turns {
    int64_t rate, due;
};

/* Spreads `pieces` over so many turns: all are done by the last one. */
static inline struct qni_amx_turns qni_amx_turns_of(int64_t pieces, int64_t turns)
{
    const struct qni_amx_turns t = {((pieces << 16) + turns - 1) / turns, 0};
    return t;
}

/* Codes of a chunk that are still packed: 64 bytes at a time, of the first panel, then of the
 * second. */
struct qni_amx_unpack {
    const uint8_t *codes, *second;
    uint8_t *out;
    int64_t line, lines; /* of a panel */
    int64_t left;        /* of both */
    bool bytes;          /* else nibbles */
    __m512i table;       /* four copies of the values of nibbles */
    struct qni_amx_turns turns;
};

QNI_TEMPLATE void qni_amx_unpack_line(struct qni_amx_unpack *u)
{
    const __m512i v = _mm512_loadu_si512(u->codes);
    const int64_t i = u->line;
    if (u->bytes) {
        uint8_t *const out = u->out + (i >> 4) * QNI_AMX_STEP + (i & 15) * 64;
        _mm512_store_si512(out, _mm512_xor_si512(v, _mm512_set1_epi8((char)0x80)));
    } else {
        uint8_t *const out = u->out + (i >> 3) * QNI_AMX_STEP + (i >> 2 & 1) * 512 + (i & 3) * 64;
        const __m512i high = _mm512_srli_epi16(v, 4);
        _mm512_store_si512(out, _mm512_permutexvar_epi8(v, u->table));
        _mm512_store_si512(out + 256, _mm512_permutexvar_epi8(high, u->table));
    }
    u->codes += 64;
    u->left--;
    if (++u->line == u->lines) {
        u->line = 0;
        u->codes = u->second;
        u->out += QNI_AMX_SLOT;
    }
}

QNI_TEMPLATE void qni_amx_unpack_turn(struct qni_amx_unpack *u)
{
    for (u->turns.due += u->turns.rate; u->turns.due >= 65536; u->turns.due -= 65536)
        if (u->left > 0)
            qni_amx_unpack_line(u);
}

static inline void qni_amx_unpack_rest(struct qni_amx_unpack *u)
{
    while (u->left > 0)
        qni_amx_unpack_line(u);
}

/* Finished sums of pairs of panels on their way to c: all pairs of a row, then the next row. */
struct qni_amx_leave {
    struct qni_amx_vectors vectors[QNI_AMX_BATCH][2];
    struct qni_amx_cut cut;
    int32_t kind; /* QNI_AMX_RAW or QNI_AMX_ROW, with QNI_AMX_OFFSET or QNI_AMX_SCALED */
    bool streams; /* stores pass the caches by */
    size_t ldc, pair_sums;
    const int32_t *dot;
    const float *facts;
    float *c; /* of this row */
    int64_t pair, pairs, panels;
    int64_t row, row_end, tile; /* of tiles of rows */
    int64_t left;               /* rows of pairs */
    struct qni_amx_turns turns;
};

QNI_TEMPLATE void qni_amx_leave_row(struct qni_amx_leave *l)
{
    l->pair = 0;
    l->c += l->ldc;
    l->facts++;
    l->dot += 16;
    if (++l->row < l->row_end || ++l->tile == l->cut.tiles)
        return;
    l->dot += (32 - l->cut.tile_rows) * 16;
    l->row_end += l->cut.tile_rows;
    if (l->tile + 1 == l->cut.tiles) { /* it reaches back */
        l->dot += (l->row_end - l->cut.m) * 16;
        l->row_end = l->cut.m;
    }
}

/* Without a zero point v->zero is zero. */
QNI_TEMPLATE __m512 qni_amx_leave_sums(const struct qni_amx_vectors *v, const int32_t *dot,
                                       const float *facts, int32_t kind)
{
    const __m512 none = _mm512_setzero_ps();
    if (kind & QNI_AMX_SCALED)
        return qni_amx_add_sums(v, dot, none, facts, QNI_AMX_ROW | QNI_AMX_ZERO | QNI_AMX_SCALED);
    if (kind & QNI_AMX_OFFSET)
        return qni_amx_add_sums(v, dot, none, facts, QNI_AMX_ROW | QNI_AMX_ZERO | QNI_AMX_OFFSET);
    if (kind & QNI_AMX_ROW)
        return qni_amx_add_sums(v, dot, none, facts, QNI_AMX_ROW | QNI_AMX_ZERO);
    return qni_amx_add_sums(v, dot, none, facts, QNI_AMX_RAW | QNI_AMX_ZERO);
}

QNI_TEMPLATE void qni_amx_leave_pair(struct qni_amx_leave *l)
{
    const int32_t *const dot = l->dot + (size_t)l->pair * l->pair_sums;
    float *const c = l->c + l->pair * 32;
    QNI_UNROLL
    for (int i = 0; i < 2; i++) {
        if (l->pair * 2 + i >= l->panels)
            break;
        const __m512 sum =
            qni_amx_leave_sums(&l->vectors[l->pair][i], dot + i * 256, l->facts, l->kind);
        if (l->streams)
            _mm512_stream_ps(c + i * 16, sum);
        else
            _mm512_storeu_ps(c + i * 16, sum);
    }
    l->left--;
    if (++l->pair == l->pairs)
        qni_amx_leave_row(l);
}

QNI_TEMPLATE void qni_amx_leave_turn(struct qni_amx_leave *l)
{
    for (l->turns.due += l->turns.rate; l->turns.due >= 65536; l->turns.due -= 65536)
        if (l->left > 0)
            qni_amx_leave_pair(l);
}

static inline void qni_amx_leave_rest(struct qni_amx_leave *l)
{
    while (l->left > 0)
        qni_amx_leave_pair(l);
}

/* All rows and a chunk of a pair of panels. */
struct qni_amx_chunk {
    const char *a; /* of the first row */
    size_t lda;
    struct qni_amx_cut cut; /* an even number of tiles */
    const char *b;          /* [steps] of two tiles */
    size_t b_second;        /* 0 if there is one panel only: its sums come twice */
    int64_t steps;
    char *sums; /* [blocks] */
};

/* The tile goes to its sums, and comes again with those of the next block. */
#define QNI_AMX_TURN(tile)                                                                         \
    do {                                                                                           \
        _tile_stored(tile, sums + 1024 * (tile), 64);                                              \
        if (first)                                                                                 \
            _tile_zero(tile);                                                                      \
        else                                                                                       \
            _tile_stream_loadd(tile, next + 1024 * (tile), 64);                                    \
    } while (0)

/* Rows of a block, with the first tile of them in 4, and their sums. Loads the next block's: there
 * is one unless it is the last. */
QNI_TEMPLATE void qni_amx_chunk_block(const struct qni_amx_chunk *c, struct qni_amx_unpack *u,
                                      struct qni_amx_leave *l, const char *a, char *sums,
                                      const bool last, const bool first)
{
    const size_t lda = c->lda, b_second = c->b_second, tile = (size_t)c->cut.tile_rows * lda;
    const size_t second =
        last ? (size_t)(c->cut.m - (2 * c->cut.blocks - 1) * c->cut.tile_rows) * lda : tile;
    const char *const next_a = last ? a : a + 2 * tile;
    char *const next = last ? sums : sums + QNI_AMX_BLOCK_SUMS;
    const char *b = c->b;
    for (int64_t left = c->steps; left > 0; left--, a += 64, b += QNI_AMX_STEP) {
        _tile_loadd(6, b, 64);
        _tile_stream_loadd(5, a + second, lda);
        _tile_dpbssd(0, 4, 6);
        qni_amx_unpack_turn(u);
        _tile_loadd(7, b + b_second, 64);
        _tile_dpbssd(2, 5, 6);
        qni_amx_leave_turn(l);
        _tile_dpbssd(1, 4, 7);
        qni_amx_unpack_turn(u);
        if (left > 1) {
            _tile_stream_loadd(4, a + 64, lda);
        } else {
            _tile_stream_loadd(4, next_a, lda);
            QNI_AMX_TURN(0);
            QNI_AMX_TURN(2);
        }
        _tile_dpbssd(3, 5, 7);
    }
    QNI_AMX_TURN(1);
    QNI_AMX_TURN(3);
}

/* Tiles are configured by qni_amx_configure_rows(c->cut.tile_rows, 64, 5, 6). All that unpack has
 * is unpacked. */
QNI_VARIANTS void qni_amx_chunk_multiply(const struct qni_amx_chunk *c,
                                         const struct qni_amx_unpack *unpack,
                                         struct qni_amx_leave *leave, const bool first)
{
    struct qni_amx_unpack u = *unpack; /* in registers */
    const char *a = c->a;
    char *sums = c->sums;
    _tile_stream_loadd(4, a, c->lda);
    if (first) {
        qni_amx_zero();
    } else {
        _tile_stream_loadd(0, sums, 64);
        _tile_stream_loadd(1, sums + 1024, 64);
        _tile_stream_loadd(2, sums + 2048, 64);
        _tile_stream_loadd(3, sums + 3072, 64);
    }
    for (int64_t left = c->cut.blocks; left > 0; left--) {
        qni_amx_chunk_block(c, &u, leave, a, sums, left == 1, first);
        a += 2 * (size_t)c->cut.tile_rows * c->lda;
        sums += QNI_AMX_BLOCK_SUMS;
    }
}

#endif
