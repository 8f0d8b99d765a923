/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 32 rows of bf16 meet pairs of panels on tiles: the steps that x86_amx_float.c puts in
 * order. Only files compiled for AMX include this.
 *
 * Tiles 0 to 3 are sums as [row half][panel], 4 and 5 the halves of A, 6 and 7 the panels of B. A
 * quad is the four products of 32 positions. What products need is loaded one quad ahead, each tile
 * right after the last product that reads it: then A may come from the second cache (1.00 of the
 * time of products alone; 1.05 if a quad begins with its loads). A is loaded past the first cache,
 * where B, sums and results stay: without the hint a quad takes 1.2 times as long.
 *
 * All else is done a little beside every quad, inline: codes of the next chunk are unpacked, a line
 * at a time, and sums that have left the tiles are scaled and added, some rows after every product
 * but those of the quad in which they leave, whose stores fill it (lab/cpu/NOTES.md). */
#ifndef QNI_CPU_SIMD_AMX_BF16_CHUNKS_H
#define QNI_CPU_SIMD_AMX_BF16_CHUNKS_H

#include "amx_bf16.h"

/* ---- codes of a chunk ------------------------------------------------------------------------ */

/* qni_amx_unpack_shifted() of any zero point of 8 bits. Out of line: rare. */
QNI_NOINLINE static void qni_amx_unpack_far(__m512i v, uint8_t *out, __m512i zero)
{
    const __m512i less = _mm512_add_epi32(zero, _mm512_set1_epi32(8));
    for (unsigned i = 0; i < 4; i++) { /* two bytes of a lane, of low or high nibbles */
        __m512i pair[2];
        for (unsigned k = 0; k < 2; k++) {
            const __m512i u = _mm512_srli_epi32(v, i % 2 * 8 + i / 2 * 4 + 16 * k);
            const __m512i code = _mm512_and_si512(u, _mm512_set1_epi32(15));
            pair[k] = _mm512_castps_si512(_mm512_cvtepi32_ps(_mm512_sub_epi32(code, less)));
        }
        _mm512_store_si512(
            out + i % 2 * 64 + i / 2 * 512,
            _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(pair[0], 16), pair[1]));
    }
}

/* Codes on their way to tiles of B, 64 bytes at a time, of the first panel, then of the second. No
 * end is looked for but that of whole turns: a branch that is not foreseen costs a quad or two. */
struct qni_amx_refill {
    const uint8_t *codes;
    ptrdiff_t second; /* from the end of the first panel's to those of the second */
    uint8_t *out;
    int64_t line, lines;  /* of a panel */
    int64_t turns, rate;  /* quads, and lines in each */
    const uint8_t *shift; /* of the unit: zero points as qni_amx_shifts_of() has them, */
    bool is_far;          /* or nibbles' as integers of 32 bits */
    struct qni_amx_table table;
};

QNI_TEMPLATE void qni_amx_refill_second(struct qni_amx_refill *f, const int64_t of_tile)
{
    const int64_t units = f->lines / of_tile;
    f->codes += f->second;
    f->out += QNI_AMX_BF16_TILE - units * QNI_AMX_BF16_UNIT;
    f->shift += (QNI_AMX_BF16_UNITS - units) * 64;
}

QNI_TEMPLATE void qni_amx_refill_line(struct qni_amx_refill *f, const int kind)
{
    const int64_t of_tile = kind == QNI_AMX_BYTES ? 8 : 4;
    uint8_t *const out = f->out;
    const __m512i v = _mm512_loadu_si512(f->codes);
    if (kind == QNI_AMX_NIBBLES) {
        qni_amx_unpack_nibbles(v, out, f->table.nibbles);
    } else if (kind == QNI_AMX_SHIFTED && f->is_far) {
        qni_amx_unpack_far(v, out, _mm512_load_si512(f->shift));
    } else if (kind == QNI_AMX_SHIFTED) {
        qni_amx_unpack_shifted(v, out, f->table.nibbles, _mm512_load_si512(f->shift));
    } else if (f->table.bytes != NULL) {
        qni_amx_unpack_values(f->codes, out, 1, f->table.bytes);
    } else {
        const __m512 less = _mm512_load_ps(f->shift);
        _mm512_store_si512(out, qni_amx_pair_of_bytes(v, less, 0));
        _mm512_store_si512(out + 64, qni_amx_pair_of_bytes(v, less, 1));
    }
    QNI_AMX_TILES_SEE_MEMORY();
    f->codes += 64;
    f->out += 128;
    if (++f->line % of_tile == 0) {
        f->out += QNI_AMX_BF16_UNIT - of_tile * 128;
        f->shift += 64;
    }
    if (f->line == f->lines)
        qni_amx_refill_second(f, of_tile);
}

QNI_TEMPLATE void qni_amx_refill_turn(struct qni_amx_refill *f, const int kind)
{
    if (f->turns == 0)
        return;
    f->turns--;
    for (int64_t n = f->rate; n > 0; n--)
        qni_amx_refill_line(f, kind);
}

/* ---- products -------------------------------------------------------------------------------- */

/* The quad whose tiles are loaded, and what comes after those that are left. */
struct qni_amx_walk {
    const char *a, *after_a;
    const uint8_t *b, *after_b;
    int64_t left; /* quads */
    int32_t plane, planes;
};

QNI_TEMPLATE void qni_amx_walk_begin(struct qni_amx_walk *w)
{
    QNI_AMX_TILES_SEE_MEMORY();
    _tile_loadd(4, w->a, 64);
    _tile_loadd(5, w->a + QNI_AMX_BF16_TILE, 64);
    _tile_loadd(6, w->b, 64);
    _tile_loadd(7, w->b + QNI_AMX_BF16_TILE, 64);
}

/* Does the next quad need another B? */
QNI_TEMPLATE bool qni_amx_walk_on(struct qni_amx_walk *w)
{
    bool moves = false;
    w->a += QNI_AMX_BF16_BLOCK;
    if (++w->plane == w->planes) {
        w->plane = 0;
        w->b += QNI_AMX_BF16_UNIT;
        moves = true;
    }
    if (--w->left == 0) {
        w->a = w->after_a;
        w->b = w->after_b;
    }
    return moves;
}

/* Sums of 32 rows that are scaled and added to results, [32][32] all. */
struct qni_amx_scaling {
    __m512 scale[2];
    const float *sum, *from; /* results so far */
    float *part;
};

QNI_TEMPLATE void qni_amx_scale_rows(struct qni_amx_scaling *s, const int n)
{
    if (n == 0)
        return; /* there may be no sums yet: pointers are NULL */
    QNI_UNROLL
    for (int i = 0; i < 2 * n; i++) {
        const __m512 sum = _mm512_load_ps(s->sum + 16 * i);
        const __m512 from = _mm512_load_ps(s->from + 16 * i);
        _mm512_store_ps(s->part + 16 * i, _mm512_fmadd_ps(s->scale[i % 2], sum, from));
    }
    s->sum += n * QNI_AMX_BF16_WIDTH;
    s->from += n * QNI_AMX_BF16_WIDTH;
    s->part += n * QNI_AMX_BF16_WIDTH;
}

/* After each product `rows` rows are scaled, after the first one codes are unpacked. */
QNI_TEMPLATE void qni_amx_quad(struct qni_amx_walk *w, struct qni_amx_scaling *s,
                               struct qni_amx_refill *f, float *to, const bool begins,
                               const int rows, const int kind)
{
    const bool moves = qni_amx_walk_on(w);
    if (begins)
        QNI_AMX_LEAVE(0, 0);
    _tile_dpbf16ps(0, 4, 6);
    qni_amx_scale_rows(s, rows);
    qni_amx_refill_turn(f, kind);
    if (begins)
        QNI_AMX_LEAVE(1, 16);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(4, w->a, 64);
    qni_amx_scale_rows(s, rows);
    if (begins)
        QNI_AMX_LEAVE(3, 16 * QNI_AMX_BF16_WIDTH + 16);
    _tile_dpbf16ps(3, 5, 7);
    if (moves)
        _tile_loadd(7, w->b + QNI_AMX_BF16_TILE, 64);
    qni_amx_scale_rows(s, rows);
    if (begins)
        QNI_AMX_LEAVE(2, 16 * QNI_AMX_BF16_WIDTH);
    _tile_dpbf16ps(2, 5, 6);
    _tile_stream_loadd(5, w->a + QNI_AMX_BF16_TILE, 64);
    if (moves)
        _tile_loadd(6, w->b, 64);
    qni_amx_scale_rows(s, rows);
}

/* All n quads of a segment. The sums before it go `to` memory, and are scaled in the quads after
 * that if there is anything to scale. */
QNI_TEMPLATE void qni_amx_segment(struct qni_amx_walk *w, struct qni_amx_scaling s,
                                  struct qni_amx_refill *f, float *to, int64_t n, bool scales,
                                  const int kind)
{
    qni_amx_quad(w, &s, f, to, true, 0, kind);
    n--;
    if (scales && n >= 7) {
        qni_amx_quad(w, &s, f, to, false, 2, kind);
        for (int i = 0; i < 6; i++)
            qni_amx_quad(w, &s, f, to, false, 1, kind);
        n -= 7;
    } else if (scales && n >= 3) {
        for (int i = 0; i < 2; i++)
            qni_amx_quad(w, &s, f, to, false, 3, kind);
        qni_amx_quad(w, &s, f, to, false, 2, kind);
        n -= 3;
    } else if (scales && n >= 1) {
        qni_amx_quad(w, &s, f, to, false, 8, kind);
        n--;
    } else if (scales) {
        for (int i = 0; i < 4; i++)
            qni_amx_scale_rows(&s, 8);
    }
    for (; n > 0; n--)
        qni_amx_quad(w, &s, f, to, false, 0, kind);
}

/* The i-th line of those that follow f, of one panel; the first of them is the first of a tile. */
QNI_TEMPLATE void qni_amx_refill_ith(const struct qni_amx_refill *f, __m512i shift, const int i,
                                     const int kind)
{
    const int of_tile = kind == QNI_AMX_BYTES ? 8 : 4;
    const __m512i v = _mm512_loadu_si512(f->codes + 64 * i);
    uint8_t *const out = f->out + i / of_tile * QNI_AMX_BF16_UNIT + i % of_tile * 128;
    if (kind == QNI_AMX_NIBBLES) {
        qni_amx_unpack_nibbles(v, out, f->table.nibbles);
    } else if (kind == QNI_AMX_SHIFTED) {
        qni_amx_unpack_shifted(v, out, f->table.nibbles, shift);
    } else {
        const __m512 less = _mm512_castsi512_ps(shift);
        _mm512_store_si512(out, qni_amx_pair_of_bytes(v, less, 0));
        _mm512_store_si512(out + 64, qni_amx_pair_of_bytes(v, less, 1));
    }
}

QNI_TEMPLATE void qni_amx_refill_past(struct qni_amx_refill *f, const int n, const int quads,
                                      const int kind)
{
    const int of_tile = kind == QNI_AMX_BYTES ? 8 : 4;
    f->codes += 64 * n;
    f->out += n / of_tile * QNI_AMX_BF16_UNIT;
    f->shift += n / of_tile * 64;
    f->line += n;
    f->turns -= quads;
    if (f->line == f->lines)
        qni_amx_refill_second(f, of_tile);
}

/* A segment on its way: the next quad's A and B, what is unpacked, where sums go. */
struct qni_amx_plain {
    __m512i shift;
    const char *a;
    const uint8_t *b;
    const struct qni_amx_walk *w;
    struct qni_amx_refill *f;
    float *to;
};

/* The i-th quad of such a segment. */
QNI_TEMPLATE void qni_amx_plain_quad(struct qni_amx_plain *at, struct qni_amx_scaling *s,
                                     const int i, const int quads, const int planes,
                                     const int lines, const int kind)
{
    float *const to = at->to;
    const bool begins = i == 0, ends = i + 1 == quads, moves = planes == 1 || i % 2 == 1;
    const int rows = i == 0 ? 0 : quads == 4 ? (i < 3 ? 3 : 2) : (i < 2 ? 2 : 1);
    at->a = ends ? at->w->after_a : at->a + QNI_AMX_BF16_BLOCK;
    if (moves)
        at->b = ends ? at->w->after_b : at->b + QNI_AMX_BF16_UNIT;
    if (begins)
        QNI_AMX_LEAVE(0, 0);
    _tile_dpbf16ps(0, 4, 6);
    qni_amx_scale_rows(s, rows);
    QNI_UNROLL
    for (int k = 0; k < (lines + 1) / 2; k++)
        qni_amx_refill_ith(at->f, at->shift, i * lines + k, kind);
    if (begins)
        QNI_AMX_LEAVE(1, 16);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(4, at->a, 64);
    qni_amx_scale_rows(s, rows);
    if (begins)
        QNI_AMX_LEAVE(3, 16 * QNI_AMX_BF16_WIDTH + 16);
    _tile_dpbf16ps(3, 5, 7);
    if (moves)
        _tile_loadd(7, at->b + QNI_AMX_BF16_TILE, 64);
    qni_amx_scale_rows(s, rows);
    QNI_UNROLL
    for (int k = (lines + 1) / 2; k < lines; k++)
        qni_amx_refill_ith(at->f, at->shift, i * lines + k, kind);
    QNI_AMX_TILES_SEE_MEMORY();
    if (begins)
        QNI_AMX_LEAVE(2, 16 * QNI_AMX_BF16_WIDTH);
    _tile_dpbf16ps(2, 5, 6);
    _tile_stream_loadd(5, at->a + QNI_AMX_BF16_TILE, 64);
    if (moves)
        _tile_loadd(6, at->b, 64);
    qni_amx_scale_rows(s, rows);
}

/* What most segments are, without a branch: 4 or 8 quads with `lines` lines of codes each, all of
 * one group, whose sums before them are scaled. It is the reorder buffer that limits: nothing more
 * than what has to be done. (clang does not unroll a loop of this.) */
QNI_TEMPLATE void qni_amx_plain_segment(struct qni_amx_walk *w, struct qni_amx_scaling s,
                                        struct qni_amx_refill *f, float *to, const int quads,
                                        const int planes, const int lines, const int kind)
{
    const __m512i shift = kind == QNI_AMX_NIBBLES ? f->table.nibbles : _mm512_load_si512(f->shift);
    struct qni_amx_plain at = {shift, w->a, w->b, w, f, to};
    qni_amx_plain_quad(&at, &s, 0, quads, planes, lines, kind);
    qni_amx_plain_quad(&at, &s, 1, quads, planes, lines, kind);
    qni_amx_plain_quad(&at, &s, 2, quads, planes, lines, kind);
    qni_amx_plain_quad(&at, &s, 3, quads, planes, lines, kind);
    if (quads == 8) {
        qni_amx_plain_quad(&at, &s, 4, quads, planes, lines, kind);
        qni_amx_plain_quad(&at, &s, 5, quads, planes, lines, kind);
        qni_amx_plain_quad(&at, &s, 6, quads, planes, lines, kind);
        qni_amx_plain_quad(&at, &s, 7, quads, planes, lines, kind);
    }
    w->a = at.a;
    w->b = at.b;
    qni_amx_refill_past(f, lines * quads, quads, kind);
}

#endif
