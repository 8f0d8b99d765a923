/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 32 rows of bf16 meet weights that are made on the way, a chunk of k and two panels at a
 * time: the steps that x86_amx_dense.c puts in order. Only files compiled for AMX include this.
 *
 * Tiles 0 to 3 are sums as [row half][panel], 4 and 5 the halves of A, 6 and 7 the panels of B. A
 * quad is the four products of 32 positions, and each tile that it reads was loaded right after the
 * last product of the quad before that read it. Sums of a block stay in the tiles for a chunk; they
 * are stored, and those of the next block loaded, between the first products of that.
 *
 * All else is done a little beside every quad, inline: weights of the next chunk are made, 128 of
 * them at a time, rows of the chunk of k after this one are asked for, and finished sums leave. */
#ifndef QNI_CPU_SIMD_AMX_DENSE_CHUNKS_H
#define QNI_CPU_SIMD_AMX_DENSE_CHUNKS_H

#include "amx_float.h"
#include "amx_weights.h"

enum {
    QNI_AMX_LEFT_TO_CALLS = 4, /* a kind of codes: weights are made by qni_amx_made.call */
    QNI_AMX_FACTS = 4 * 16     /* floats of a group and a panel: scale, and offset or zero, twice */
};

/* Weights of a chunk that are still codes: all lines of 64 bytes of the first panel, then of the
 * second. */
struct qni_amx_made {
    const uint8_t *codes;
    ptrdiff_t second;   /* from the end of the first panel's to those of the second */
    const float *facts; /* of the group, */
    const float *facts_second;
    uint8_t *out;
    ptrdiff_t out_second;
    int64_t left;                     /* lines */
    int64_t of_panel, of_group;       /* lines to the end of each */
    int64_t panel_lines;              /* lines to the end of each */
    int64_t group_lines, first_lines; /* of a group, and of the first one here */
    int64_t rate, due;                /* lines with a quad, in 65536ths */
    __m512 table;
    void (*call)(struct qni_amx_feed *f);
    struct qni_amx_feed *feed;
};

/* Each number twice. */
static inline void qni_amx_store_twice(float *to, __m512 v)
{
    const __m512i first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    _mm512_store_ps(to, _mm512_permutexvar_ps(first, v));
    _mm512_store_ps(to + 16, _mm512_permutexvar_ps(last, v));
}

/* Places of bytes 0 and 2, or 1 and 3, of the first or the last eight outputs of a line, in the
 * order of a tile's row. */
QNI_TEMPLATE __m512i qni_amx_row_bytes(const int row, const int half)
{
    const __m512i first =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_add_epi32(first, _mm512_set1_epi32(row + 32 * half));
}

/* Half of a line: a row of low nibbles, and one of high ones. */
QNI_TEMPLATE void qni_amx_make_half(const struct qni_amx_made *f, const int row, const int kind)
{
    const __m512i line = _mm512_loadu_si512(f->codes);
    uint8_t *const out = f->out + QNI_AMX_LINE * row;
    __m512 w[2][2]; /* nibbles, outputs */
    QNI_UNROLL
    for (int k = 0; k < 2; k++) {
        const __m512 scale = _mm512_load_ps(f->facts + 16 * k);
        const __m512 shift = _mm512_load_ps(f->facts + 32 + 16 * k);
        const __m512i at = _mm512_permutexvar_epi8(qni_amx_row_bytes(row, k), line);
        w[0][k] = _mm512_permutexvar_ps(at, f->table);
        w[1][k] = _mm512_permutexvar_ps(_mm512_srli_epi32(at, 4), f->table);
        QNI_UNROLL
        for (int h = 0; h < 2; h++)
            if (kind == QNI_AMX_SHIFTED)
                w[h][k] = _mm512_mul_ps(scale, _mm512_sub_ps(w[h][k], shift));
            else
                w[h][k] = _mm512_fmadd_ps(scale, w[h][k], shift);
    }
    _mm512_store_si512(out, (__m512i)_mm512_cvtne2ps_pbh(w[0][1], w[0][0]));
    _mm512_store_si512(out + QNI_AMX_BF16_TILE / 2, (__m512i)_mm512_cvtne2ps_pbh(w[1][1], w[1][0]));
}

QNI_TEMPLATE void qni_amx_made_past(struct qni_amx_made *f)
{
    f->codes += QNI_AMX_LINE;
    f->out += 2 * QNI_AMX_LINE;
    f->left--;
    f->of_panel--;
    if (--f->of_group % 4 != 0)
        return;
    f->out += QNI_AMX_BF16_UNIT - 8 * QNI_AMX_LINE;
    if (f->of_group == 0) {
        f->of_group = f->group_lines;
        f->facts += QNI_AMX_FACTS;
    }
    if (f->of_panel == 0) {
        f->of_panel = f->panel_lines;
        f->of_group = f->first_lines;
        f->codes += f->second;
        f->out += f->out_second;
        f->facts = f->facts_second;
    }
}

QNI_TEMPLATE void qni_amx_make_line(struct qni_amx_made *f, const int kind)
{
    if (kind == QNI_AMX_LEFT_TO_CALLS) {
        f->left--;
        f->call(f->feed);
        return;
    }
    qni_amx_make_half(f, 0, kind);
    qni_amx_make_half(f, 1, kind);
    qni_amx_made_past(f);
}

/* The next quad's operands, and sums: of the block before, and of this one. */
struct qni_amx_dense_walk {
    const char *a;
    const uint8_t *b;
    const char *ahead; /* rows to ask for */
    int64_t lines;     /* with a quad, */
    int64_t rows;      /* and finished ones that leave with it */
    float *to;
    const float *from; /* NULL: zeros */
};

#define QNI_AMX_TURN_OVER(tile, at)                                                                \
    do {                                                                                           \
        _tile_stored(tile, w->to + (at), 4 * QNI_AMX_BF16_WIDTH);                                  \
        if (w->from == NULL)                                                                       \
            _tile_zero(tile);                                                                      \
        else                                                                                       \
            _tile_stream_loadd(tile, w->from + (at), 4 * QNI_AMX_BF16_WIDTH);                      \
    } while (0)

QNI_TEMPLATE void qni_amx_dense_quad(struct qni_amx_dense_walk *w, struct qni_amx_made *f,
                                     struct qni_amx_way_out *o, const bool begins, const int kind)
{
    f->due += f->rate;
    int64_t n = f->due >> 16;
    f->due &= 65535;
    n = n < f->left ? n : f->left;
    if (begins)
        QNI_AMX_TURN_OVER(0, 0);
    _tile_dpbf16ps(0, 4, 6);
    if (n > 0 && kind != QNI_AMX_LEFT_TO_CALLS)
        qni_amx_make_half(f, 0, kind);
    if (begins)
        QNI_AMX_TURN_OVER(1, 16);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(4, w->a, 64);
    for (int64_t i = 0; i < w->lines; i++, w->ahead += QNI_AMX_LINE)
        _mm_prefetch(w->ahead, _MM_HINT_T1);
    qni_amx_move_rows(o, w->rows);
    if (begins)
        QNI_AMX_TURN_OVER(3, 16 * QNI_AMX_BF16_WIDTH + 16);
    _tile_dpbf16ps(3, 5, 7);
    _tile_loadd(7, w->b + QNI_AMX_BF16_TILE, 64);
    if (n > 0 && kind != QNI_AMX_LEFT_TO_CALLS) {
        qni_amx_make_half(f, 1, kind);
        qni_amx_made_past(f);
        n--;
    }
    for (; n > 0; n--)
        qni_amx_make_line(f, kind);
    QNI_AMX_TILES_SEE_MEMORY();
    if (begins)
        QNI_AMX_TURN_OVER(2, 16 * QNI_AMX_BF16_WIDTH);
    _tile_dpbf16ps(2, 5, 6);
    _tile_stream_loadd(5, w->a + QNI_AMX_BF16_TILE, 64);
    _tile_loadd(6, w->b, 64);
}

/* A chunk of `units` quads; after it come next_a and next_b. */
QNI_TEMPLATE void qni_amx_dense_block(struct qni_amx_dense_walk *w, struct qni_amx_made *f,
                                      struct qni_amx_way_out *o, int64_t units, const char *next_a,
                                      const uint8_t *next_b, const int kind)
{
    const char *a = w->a;
    const uint8_t *b = w->b;
    for (int64_t left = units; left > 0; left--) {
        a += QNI_AMX_BF16_BLOCK;
        b += QNI_AMX_BF16_UNIT;
        w->a = left > 1 ? a : next_a;
        w->b = left > 1 ? b : next_b;
        if (left == units)
            qni_amx_dense_quad(w, f, o, true, kind);
        else
            qni_amx_dense_quad(w, f, o, false, kind);
    }
}

#endif
