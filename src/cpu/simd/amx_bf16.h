/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 32 rows of bf16 meet pairs of panels on tiles: the steps that x86_amx_float.c puts in
 * order. Only files compiled for AMX include this.
 *
 * Tiles 0 to 3 are sums as [row half][panel], 4 and 5 the halves of A, 6 and 7 the panels of B. A
 * quad is the four products of 32 positions. What products need is loaded one quad ahead, each tile
 * right after the last product that reads it: then A may come from the second cache (1.00 of the
 * time of products alone; 1.05 if a quad begins with its loads). A is loaded past the first cache,
 * where B, sums and results stay: without the hint a quad takes 1.2 times as long. */
#ifndef QNI_CPU_SIMD_AMX_BF16_H
#define QNI_CPU_SIMD_AMX_BF16_H

#include "../../base/compiler.h"
#include "amx.h"
#include "avx512.h"

enum { QNI_AMX_NIBBLES = 0, QNI_AMX_BYTES = 1 };
enum {
    QNI_AMX_BF16_TILE = 1024,  /* bytes */
    QNI_AMX_BF16_WIDTH = 32,   /* outputs of two panels */
    QNI_AMX_BF16_BLOCK = 2048, /* bytes of A: 32 rows of 32 positions */
    QNI_AMX_BF16_UNITS = 8     /* of B that lie in the first cache */
};

/* The compiler does not know that tiles are loaded from memory and stored there. */
#define QNI_AMX_TILES_SEE_MEMORY() __asm__ volatile("" ::: "memory")

/* ---- codes to tiles -------------------------------------------------------------------------- */

/* A byte in the low bits of 2^23 makes 2^23 + byte; less 2^23 + 128 it is the code. */
QNI_TEMPLATE __m512i qni_amx_float_of_byte(__m512i v)
{
    const __m512i one = _mm512_set1_epi32(0x4b000000), byte = _mm512_set1_epi32(0xff);
    const __m512i bits = _mm512_ternarylogic_epi32(v, byte, one, 0xea); /* (v & byte) | one */
    return _mm512_castps_si512(
        _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p23f + 128.0f)));
}

/* Bytes h and h + 2 of every lane. An integer of 8 bits as f32 has zeros below its upper half. */
QNI_TEMPLATE __m512i qni_amx_pair_of_bytes(__m512i v, const int h)
{
    const __m512i low = qni_amx_float_of_byte(h == 0 ? v : _mm512_srli_epi32(v, 8));
    const __m512i high = qni_amx_float_of_byte(_mm512_srli_epi32(v, h == 0 ? 16 : 24));
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(low, 16), high);
}

/* A codebook of 256 values of bf16, byte by byte. */
struct qni_amx_bytes {
    __m512i lower[4], upper[4];
};

/* What codes mean, other than integers. */
struct qni_amx_table {
    __m512i nibbles;                   /* bf16, twice */
    const struct qni_amx_bytes *bytes; /* NULL: integers */
};

static inline void qni_amx_bytes_of(const float *table, struct qni_amx_bytes *b)
{
    uint8_t *const lower = (uint8_t *)b->lower, *const upper = (uint8_t *)b->upper;
    for (int i = 0; i < 256; i++) {
        uint32_t bits;
        memcpy(&bits, table + i, sizeof bits);
        lower[i] = (uint8_t)(bits >> 16);
        upper[i] = (uint8_t)(bits >> 24);
    }
}

/* vpermi2b looks at seven bits of a byte. */
QNI_TEMPLATE __m512i qni_amx_look_up(const __m512i table[4], __m512i v)
{
    const __m512i low = _mm512_permutex2var_epi8(table[0], v, table[1]);
    const __m512i high = _mm512_permutex2var_epi8(table[2], v, table[3]);
    return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(v), high);
}

/* Out of line: rare, and the callers are many. */
QNI_NOINLINE static void qni_amx_unpack_values(const uint8_t *codes, uint8_t *out,
                                               const struct qni_amx_bytes *table)
{
    for (int r = 0; r < 8; r++) {
        const __m512i v = _mm512_loadu_si512(codes + 64 * r);
        const __m512i lower = qni_amx_look_up(table->lower, v);
        const __m512i upper = qni_amx_look_up(table->upper, v);
        /* Bytes 0 and 2 of every lane, and 1 and 3. */
        _mm512_store_si512(out + 128 * r, _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaau, lower,
                                                                 _mm512_slli_epi16(upper, 8)));
        _mm512_store_si512(
            out + 128 * r + 64,
            _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaau, _mm512_srli_epi16(lower, 8), upper));
    }
}

/* A unit of a panel to a tile: row i has the i-th pair of positions, as x has them. */
QNI_TEMPLATE void qni_amx_unpack_bf16(const uint8_t *codes, uint8_t *out,
                                      struct qni_amx_table table, const int kind)
{
    if (kind == QNI_AMX_BYTES && table.bytes != NULL) {
        qni_amx_unpack_values(codes, out, table.bytes);
        return;
    }
    if (kind == QNI_AMX_BYTES) {
        QNI_UNROLL
        for (int r = 0; r < 8; r++) {
            const __m512i v = _mm512_loadu_si512(codes + 64 * r);
            _mm512_store_si512(out + 128 * r, qni_amx_pair_of_bytes(v, 0));
            _mm512_store_si512(out + 128 * r + 64, qni_amx_pair_of_bytes(v, 1));
        }
        return;
    }
    /* Moves bytes on port 5: shifts have port 0 alone, which scales sums, too. */
    const __m512i next_byte = _mm512_broadcast_i32x4(
        _mm_setr_epi8(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, -1));
    QNI_UNROLL
    for (int r = 0; r < 4; r++, out += 128) {
        const __m512i v = _mm512_loadu_si512(codes + 64 * r);
        const __m512i v8 = _mm512_shuffle_epi8(v, next_byte);
        const __m512i v4 = _mm512_srli_epi16(v, 4), v12 = _mm512_srli_epi16(v8, 4);
        _mm512_store_si512(out, _mm512_permutexvar_epi16(v, table.nibbles));
        _mm512_store_si512(out + 64, _mm512_permutexvar_epi16(v8, table.nibbles));
        _mm512_store_si512(out + 512, _mm512_permutexvar_epi16(v4, table.nibbles));
        _mm512_store_si512(out + 576, _mm512_permutexvar_epi16(v12, table.nibbles));
    }
}

/* ---- a stretch of a block -------------------------------------------------------------------- */

/* Codes of both panels on their way to the tiles of B. */
struct qni_amx_fill {
    const uint8_t *codes[2];
    ptrdiff_t ahead[2]; /* to what will be unpacked in their place */
    int64_t units;      /* to fill */
    int64_t unit_bytes; /* of codes */
    struct qni_amx_table table;
};

QNI_TEMPLATE void qni_amx_fill_one(struct qni_amx_fill *f, const int panel, uint8_t *b,
                                   const int kind)
{
    const uint8_t *const codes = f->codes[panel];
    const int lines = kind == QNI_AMX_BYTES ? 8 : 4;
    for (int r = 0; r < lines; r++)
        _mm_prefetch((const char *)codes + f->ahead[panel] + 64 * r, _MM_HINT_T1);
    QNI_AMX_TILES_SEE_MEMORY();
    qni_amx_unpack_bf16(codes, b + panel * QNI_AMX_BF16_TILE, f->table, kind);
    QNI_AMX_TILES_SEE_MEMORY();
    f->codes[panel] += f->unit_bytes;
}

/* Where the next quad is. Its tiles are loaded. */
struct qni_amx_walk {
    const char *next_a;  /* A of the quad after it */
    const char *after_a; /* and of what comes after the units below, */
    uint8_t *after_b;    /* whose B */
    uint8_t *b;          /* [units][2] tiles */
    int64_t unit, units;
    int32_t plane, planes;
};

QNI_TEMPLATE void qni_amx_walk_begin(struct qni_amx_walk *w, const char *a)
{
    QNI_AMX_TILES_SEE_MEMORY();
    _tile_loadd(4, a, 64);
    _tile_loadd(5, a + QNI_AMX_BF16_TILE, 64);
    _tile_loadd(6, w->b, 64);
    _tile_loadd(7, w->b + QNI_AMX_BF16_TILE, 64);
    w->next_a = a + QNI_AMX_BF16_BLOCK;
    w->unit = 0;
    w->plane = 0;
}

/* Sums of 32 rows that are scaled and added to results, [32][32] both. */
struct qni_amx_scaling {
    __m512 scale[2];
    const float *sum;
    float *part;
};

QNI_TEMPLATE void qni_amx_scale_rows(struct qni_amx_scaling *s, const int n)
{
    QNI_UNROLL
    for (int i = 0; i < 2 * n; i++) {
        const __m512 sum = _mm512_load_ps(s->sum + 16 * i);
        const __m512 part = _mm512_load_ps(s->part + 16 * i);
        _mm512_store_ps(s->part + 16 * i, _mm512_fmadd_ps(s->scale[i % 2], sum, part));
    }
    s->sum += n * QNI_AMX_BF16_WIDTH;
    s->part += n * QNI_AMX_BF16_WIDTH;
}

/* A tile's sums go to memory when the first product of the next segment needs it. */
#define QNI_AMX_LEAVE(tile, at)                                                                    \
    do {                                                                                           \
        _tile_stored(tile, to + (at), 4 * QNI_AMX_BF16_WIDTH);                                     \
        _tile_zero(tile);                                                                          \
    } while (0)

/* A quad. After each product some rows are scaled; a unit of B that has been multiplied is filled
 * with what comes next. */
QNI_TEMPLATE void qni_amx_quad(struct qni_amx_walk *w, struct qni_amx_scaling *s,
                               struct qni_amx_fill *f, float *to, const bool begins, const int rate,
                               const int kind)
{
    const bool ends_unit = ++w->plane == w->planes;
    const bool fills = ends_unit && w->unit < f->units;
    uint8_t *const here = w->b + w->unit * 2 * QNI_AMX_BF16_TILE, *b = here;
    const char *a = w->next_a;
    if (ends_unit) {
        w->plane = 0;
        b += 2 * QNI_AMX_BF16_TILE;
        if (++w->unit == w->units) {
            w->unit = 0;
            a = w->after_a;
            b = w->b = w->after_b;
        }
    }
    w->next_a = a + QNI_AMX_BF16_BLOCK;
    if (begins)
        QNI_AMX_LEAVE(0, 0);
    _tile_dpbf16ps(0, 4, 6);
    qni_amx_scale_rows(s, rate);
    if (begins)
        QNI_AMX_LEAVE(1, 16);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(4, a, 64);
    qni_amx_scale_rows(s, rate);
    if (fills)
        qni_amx_fill_one(f, 0, here, kind);
    if (begins)
        QNI_AMX_LEAVE(3, 16 * QNI_AMX_BF16_WIDTH + 16);
    _tile_dpbf16ps(3, 5, 7);
    if (ends_unit)
        _tile_loadd(7, b + QNI_AMX_BF16_TILE, 64);
    qni_amx_scale_rows(s, rate);
    if (begins)
        QNI_AMX_LEAVE(2, 16 * QNI_AMX_BF16_WIDTH);
    _tile_dpbf16ps(2, 5, 6);
    _tile_stream_loadd(5, a + QNI_AMX_BF16_TILE, 64);
    if (ends_unit)
        _tile_loadd(6, b, 64);
    qni_amx_scale_rows(s, rate);
    if (fills)
        qni_amx_fill_one(f, 1, here, kind);
}

/* The sums of the last segment, which has no next. */
QNI_TEMPLATE void qni_amx_leave(float *to)
{
    QNI_AMX_LEAVE(0, 0);
    QNI_AMX_LEAVE(1, 16);
    QNI_AMX_LEAVE(2, 16 * QNI_AMX_BF16_WIDTH);
    QNI_AMX_LEAVE(3, 16 * QNI_AMX_BF16_WIDTH + 16);
    QNI_AMX_TILES_SEE_MEMORY();
}
#undef QNI_AMX_LEAVE

/* All quads of a segment, at least 8 / rate; in so many of them the 32 rows are scaled. */
QNI_TEMPLATE void qni_amx_quads(struct qni_amx_walk *w, struct qni_amx_scaling *s,
                                struct qni_amx_fill *f, float *to, int64_t n, const int rate,
                                const int kind)
{
    qni_amx_quad(w, s, f, to, true, rate, kind);
    for (int64_t i = 1; i < 8 / rate; i++)
        qni_amx_quad(w, s, f, to, false, rate, kind);
    for (int64_t i = 8 / rate; i < n; i++)
        qni_amx_quad(w, s, f, to, false, 0, kind);
}

QNI_TEMPLATE void qni_amx_segment(struct qni_amx_walk *w, struct qni_amx_scaling s,
                                  struct qni_amx_fill *f, float *to, int64_t n, const int kind)
{
    if (n >= 8)
        qni_amx_quads(w, &s, f, to, n, 1, kind);
    else if (n >= 4)
        qni_amx_quads(w, &s, f, to, n, 2, kind);
    else if (n >= 2)
        qni_amx_quads(w, &s, f, to, n, 4, kind);
    else
        qni_amx_quads(w, &s, f, to, n, 8, kind);
}

#endif
