/* SPDX-License-Identifier: Apache-2.0 */
/* Float activations x 4- and 8-bit integer weights on AMX bf16 tiles, with the accuracy of f32.
 * Contract: kernel.h.
 *
 * A code of at most 8 bits is exact in bf16, and so is every product of two bf16 in f32.
 * Activations come as planes that add up to x exactly (docs/numerics.md): one for bf16, two for
 * f16, three for f32, 8 bits of the significand each. So
 *     sum over p of x[p] * code[p]  =  sum over planes of sum over p of plane[p] * code[p]
 * loses nothing but the f32 accumulation, as a loop of multiply-adds does. The scale of a group
 * enters once a group:
 *     c += scale * sum,   c += offset * (sum of x over the group).
 * The tiles take subnormal inputs for zero: an absolute error below 2^-126 a term.
 *
 * A unit of a panel (32 positions, 16 outputs) is one B tile: 16 rows of 2 positions x 16 outputs.
 * Codes are unpacked for a chunk of k and eight panels at a time, once for all rows of the job.
 * While the tiles work on one piece of k, the sums of the piece before are scaled and added.
 *
 * Bound: 2 m n k * planes / (2 * 16 * 16 * 32 operations every 16 cycles). */
#include "../../base/compiler.h"
#include "../simd/amx.h"
#include "../simd/avx512.h"
#include "kernel.h"

enum {
    CHUNK_UNITS =
        32,     /* 1024 positions: three planes of 32 rows take 192 KiB, used for four pairs */
    PANELS = 8, /* B of a chunk takes 256 KiB: both stay in the second-level cache */
    PANEL_BYTES = CHUNK_UNITS * 1024, /* a panel of a chunk as bf16 */
    B_BYTES = PANELS * PANEL_BYTES
};
enum { NIBBLES = 0, BYTES = 1 };

/* A run of units inside one group and one chunk. */
struct piece {
    int64_t group, unit, units;
    bool begins_group;
};

/* The panels that are worked on together, and a pair of them (or a single last one). */
struct set {
    int64_t panel, n;
};

/* 2 positions x 16 outputs as bf16, from bytes 2 h and 2 h + 1 of every lane. */
QNI_TEMPLATE __m512i pair_of_nibbles(__m512i v, const int h, const int high, __m512i table)
{
    /* byte 2h to the low half, byte 2h + 1 to the high half of the lane; vpermw looks at the low
     * five bits of each */
    const __m512i low = h == 0 ? v : _mm512_srli_epi32(v, 16);
    const __m512i both =
        _mm512_or_si512(_mm512_and_si512(low, _mm512_set1_epi32(0xff)),
                        _mm512_and_si512(_mm512_slli_epi32(low, 8), _mm512_set1_epi32(0xff0000)));
    const __m512i nibble =
        high ? _mm512_srli_epi16(both, 4) : _mm512_and_si512(both, _mm512_set1_epi16(15));
    return _mm512_permutexvar_epi16(nibble, table);
}

/* The same from signed bytes: an integer of 8 bits as f32 has zeros below its upper half. */
QNI_TEMPLATE __m512i pair_of_bytes(__m512i v, const int h)
{
    const __m512i first = _mm512_srai_epi32(_mm512_slli_epi32(v, h == 0 ? 24 : 8), 24);
    const __m512i second = _mm512_srai_epi32(h == 0 ? _mm512_slli_epi32(v, 16) : v, 24);
    const __m512i f = _mm512_castps_si512(_mm512_cvtepi32_ps(first));
    const __m512i s = _mm512_castps_si512(_mm512_cvtepi32_ps(second));
    return _mm512_or_si512(_mm512_srli_epi32(f, 16),
                           _mm512_and_si512(s, _mm512_set1_epi32((int)0xffff0000u)));
}

/* n units of a panel to bf16 tiles: row i of a tile holds positions 2 i and 2 i + 1. */
QNI_TEMPLATE void unpack(const uint8_t *codes, int64_t n, const int kind, __m512i table, char *out)
{
    for (int64_t i = 0; kind == BYTES && i < n * 8; i++) {
        const __m512i v = _mm512_loadu_si512(codes + 64 * i);
        const __m512i w = _mm512_xor_si512(v, _mm512_set1_epi8((char)0x80));
        _mm512_store_si512(out + 128 * i, pair_of_bytes(w, 0));
        _mm512_store_si512(out + 128 * i + 64, pair_of_bytes(w, 1));
    }
    for (int64_t i = 0; kind == NIBBLES && i < n * 4; i++) {
        const __m512i v = _mm512_loadu_si512(codes + 64 * i);
        char *const at = out + i / 4 * 1024 + i % 4 * 128;
        _mm512_store_si512(at, pair_of_nibbles(v, 0, 0, table));
        _mm512_store_si512(at + 64, pair_of_nibbles(v, 1, 0, table));
        _mm512_store_si512(at + 512, pair_of_nibbles(v, 0, 1, table));
        _mm512_store_si512(at + 576, pair_of_nibbles(v, 1, 1, table));
    }
}

/* bf16 of the integers a nibble stands for, twice: vpermw has 32 entries. */
static __m512i nibble_table(const struct qni_matmul_tile *t, const int kind)
{
    if (kind == BYTES)
        return _mm512_setzero_si512();
    const __m512 values =
        t->table8 == NULL
            ? _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7)
            : _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)t->table8)));
    const __m256i half = _mm512_cvtepi32_epi16(_mm512_srli_epi32(_mm512_castps_si512(values), 16));
    return _mm512_inserti64x4(_mm512_castsi256_si512(half), half, 1);
}

/* All planes of up to 32 rows against `units` unpacked units of one or two panels, into the C
 * tiles. */
struct operands {
    const char *a;
    size_t lda, plane_stride;
    const char *b;
    int64_t units;
    int32_t planes;
    bool second_rows, second_panel;
};

static void multiply(const struct operands o)
{
    for (int64_t u = 0; u < o.units; u++) {
        const char *a = o.a + u * 64;
        _tile_loadd(6, o.b + u * 1024, 64);
        if (o.second_panel)
            _tile_loadd(7, o.b + PANEL_BYTES + u * 1024, 64);
        for (int32_t plane = 0; plane < o.planes; plane++, a += o.plane_stride) {
            _tile_loadd(4, a, o.lda);
            _tile_dpbf16ps(0, 4, 6);
            if (o.second_panel)
                _tile_dpbf16ps(1, 4, 7);
            if (!o.second_rows)
                continue;
            _tile_loadd(5, a + 16 * o.lda, o.lda);
            _tile_dpbf16ps(2, 5, 6);
            if (o.second_panel)
                _tile_dpbf16ps(3, 5, 7);
        }
    }
}

/* sums: f32 [32][32] of one piece for rows [row, row + rows). */
struct target {
    int64_t panel, panels, row, rows;
};

static void add(const struct qni_matmul_tile *t, struct target at, struct piece p,
                const float *sums)
{
    const bool first = p.unit == 0, shifted = t->offset != NULL && p.begins_group;
    for (int64_t j = 0; j < at.panels; j++) {
        const int64_t s = (at.panel + j) * t->n_groups + p.group;
        __m512 scale = qni_load16(t->scale, s, t->scale_is_f16);
        if (t->table8 != NULL && t->table8_doubled)
            scale = _mm512_mul_ps(scale, _mm512_set1_ps(0.5f));
        const __m512 offset =
            shifted ? qni_load16(t->offset, s, t->scale_is_f16) : _mm512_setzero_ps();
        float *c = t->c + (size_t)at.row * t->ldc + (size_t)(at.panel + j) * QNI_PANEL;
        for (int64_t i = 0; i < at.rows; i++, c += t->ldc) {
            __m512 acc = first ? _mm512_setzero_ps() : _mm512_loadu_ps(c);
            acc = _mm512_fmadd_ps(scale, _mm512_load_ps(sums + i * 32 + j * 16), acc);
            if (shifted)
                acc = _mm512_fmadd_ps(
                    offset,
                    _mm512_set1_ps(
                        t->a_total[(size_t)(at.row + i) * t->ld_segment + (size_t)p.group]),
                    acc);
            _mm512_storeu_ps(c, acc);
        }
    }
}

/* The pieces of a chunk, for 32 rows and a pair of panels: products of one, additions of the one
 * before, then its store. */
static void pieces_of_pair(const struct qni_matmul_tile *t, struct set set, struct target at,
                           const struct piece *p, int64_t count)
{
    float *const sums = (float *)(void *)((char *)t->scratch + B_BYTES);
    struct operands o = {NULL, t->lda,    t->plane_stride, NULL,
                         0,    t->planes, at.rows > 16,    at.panels == 2};
    for (int64_t k = 0; k <= count; k++) {
        if (k < count) {
            o.a = (const char *)t->a + (size_t)at.row * t->lda + (size_t)p[k].unit * 64;
            o.b = (const char *)t->scratch + (at.panel - set.panel) * PANEL_BYTES +
                  (p[k].unit - p[0].unit) * 1024;
            o.units = p[k].units;
            qni_amx_zero();
            multiply(o);
        }
        if (k > 0)
            add(t, at, p[k - 1], sums + (k - 1) % 2 * 1024);
        if (k < count)
            qni_amx_store(sums + k % 2 * 1024, o.second_rows);
    }
}

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

QNI_TEMPLATE void chunk(const struct qni_matmul_tile *t, struct set set, const struct piece *p,
                        int64_t count, const int kind)
{
    const int64_t unit_bytes = kind == BYTES ? 512 : 256;
    const int64_t units = p[count - 1].unit + p[count - 1].units - p[0].unit;
    const __m512i table = nibble_table(t, kind);
    for (int64_t j = 0; j < set.n; j++) {
        const uint8_t *const codes =
            t->codes + (size_t)(set.panel + j) * t->codes_stride + p[0].unit * unit_bytes;
        for (int64_t i = 0; i < units * unit_bytes;
             i += 64) /* the next chunk: nothing else would ask for it */
            _mm_prefetch((const char *)codes + units * unit_bytes + i, _MM_HINT_T1);
        unpack(codes, units, kind, table, (char *)t->scratch + j * PANEL_BYTES);
    }
    int64_t rows_now = 0;
    for (int64_t row = 0; row < t->m; row += 32) {
        const int64_t rows = at_most(32, t->m - row);
        if (rows != rows_now)
            qni_amx_configure(rows, 64);
        rows_now = rows;
        for (int64_t j = 0; j < set.n; j += 2) {
            const struct target at = {set.panel + j, at_most(2, set.n - j), row, rows};
            pieces_of_pair(t, set, at, p, count);
        }
    }
}

/* Cut k in pieces that leave neither their group nor their chunk. */
QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind)
{
    for (int64_t panel = 0; panel < t->n_panels; panel += PANELS) {
        const struct set set = {panel, at_most(PANELS, t->n_panels - panel)};
        struct piece pieces[CHUNK_UNITS];
        int64_t count = 0, room = CHUNK_UNITS, unit = 0;
        for (int64_t g = 0; g < t->n_groups; g++) {
            const int64_t begin = unit, end = unit + at_most(t->group_units, t->units - unit);
            while (unit < end) {
                const int64_t n = at_most(room, end - unit);
                const struct piece p = {g, unit, n, unit == begin};
                pieces[count++] = p;
                unit += n;
                room -= n;
                if (room == 0 || unit == t->units) {
                    chunk(t, set, pieces, count, kind);
                    count = 0;
                    room = CHUNK_UNITS;
                }
            }
        }
    }
    _tile_release();
}

void qni_matmul_bf16_q4n16_mr32_amx(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES);
}
void qni_matmul_bf16_t4n16_mr32_amx(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES);
}
void qni_matmul_bf16_q8n16_mr32_amx(const struct qni_matmul_tile *t)
{
    tile(t, BYTES);
}
