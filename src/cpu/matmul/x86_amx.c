/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights on AMX tiles, from a dozen rows on. Contract and operand
 * layouts: kernel.h.
 *
 * Two units of a packed panel (64 positions, 16 outputs) are exactly one B tile: 16 rows of 4
 * positions x 16 outputs. Rows of activations are A tiles as they lie. A block of 32 rows x 32
 * outputs lives in four C tiles: four loads feed four products.
 *
 * Codes are unpacked to signed bytes for a pair of panels, once for all rows of the job. C stays in
 * tiles for the whole of a segment (or 8192 positions of it); then the four tiles are stored, and
 * added, scaled, to the f32 result while the tiles work on the next segment. Cutting k finer, so
 * that A stays in the first-level cache, was slower: loading and storing C costs more than it
 * saves.
 *
 * Exact because |sum| <= 128 * 128 * 32768 < 2^31 and the float steps are those of
 * docs/numerics.md. Bound: 2 m n k / (2 * 16 * 16 * 64 operations every 16 cycles); the short path
 * also stores 4 tiles of 1 KiB a segment. */
#include <immintrin.h>

#include "../../base/compiler.h"
#include "../simd/amx.h"
#include "../simd/avx512.h"
#include "kernel.h"

enum {
    CHUNK_UNITS = 256,               /* 8192 positions: longer segments are cut */
    PANEL_BYTES = CHUNK_UNITS * 512, /* a panel of a chunk, unpacked */
    B_BYTES = 2 * PANEL_BYTES,
    A_BYTES = 1280 * 1024, /* of activations that share the second-level cache with B */
    ROWS = 256,            /* rows of int32 scratch */
    C_BYTES = ROWS * 32 * 4,
    SUM_BYTES = 32 * 32 * 4
};
enum { NIBBLES = 0, NIBBLE_TABLE = 1, BYTES = 2 };

/* `steps` products of 64 (or 32) positions into the four C tiles. b1 == NULL: one panel only. */
struct block {
    const int8_t *a0, *a1; /* rows 0..15, 16..31; a1 NULL if there are none */
    size_t lda;
    const uint8_t *b0, *b1;
    int64_t b_step; /* bytes */
    int64_t steps;
    int32_t k_bytes;
};

QNI_TEMPLATE void multiply_as(const struct block b, const int second_rows, const int second_panel)
{
    const int8_t *a0 = b.a0, *a1 = b.a1;
    const uint8_t *b0 = b.b0, *b1 = b.b1;
    for (int64_t s = 0; s < b.steps; s++) {
        _tile_loadd(6, b0, 64);
        _tile_loadd(4, a0, b.lda);
        _tile_dpbssd(0, 4, 6);
        if (second_panel) {
            _tile_loadd(7, b1, 64);
            _tile_dpbssd(1, 4, 7);
            b1 += b.b_step;
        }
        if (second_rows) {
            _tile_loadd(5, a1, b.lda);
            _tile_dpbssd(2, 5, 6);
            if (second_panel)
                _tile_dpbssd(3, 5, 7);
            a1 += b.k_bytes;
        }
        a0 += b.k_bytes;
        b0 += b.b_step;
    }
}

static void multiply(const struct block b)
{
    if (b.a1 != NULL && b.b1 != NULL)
        multiply_as(b, 1, 1);
    else if (b.a1 != NULL)
        multiply_as(b, 1, 0);
    else if (b.b1 != NULL)
        multiply_as(b, 0, 1);
    else
        multiply_as(b, 0, 0);
}

/* Units [unit, unit + n) of a panel to signed bytes in tile order. */
QNI_TEMPLATE void unpack(const uint8_t *codes, int64_t n, const int kind, const int8_t *table8,
                         int8_t *out)
{
    if (kind == BYTES) {
        const __m512i flip = _mm512_set1_epi8((char)0x80);
        for (int64_t i = 0; i < n * 8; i++)
            _mm512_store_si512(out + 64 * i,
                               _mm512_xor_si512(_mm512_loadu_si512(codes + 64 * i), flip));
        return;
    }
    const __m512i nibble = _mm512_set1_epi8(0x0f), eight = _mm512_set1_epi8(8);
    const __m512i table = kind == NIBBLE_TABLE
                              ? _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)table8))
                              : _mm512_setzero_si512();
    for (int64_t u = 0; u < n; u++, codes += 256, out += 512) {
        QNI_UNROLL
        for (int r = 0; r < 4; r++) {
            const __m512i v = _mm512_loadu_si512(codes + 64 * r);
            const __m512i low = _mm512_and_si512(v, nibble);
            const __m512i high = _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
            if (kind == NIBBLE_TABLE) {
                _mm512_store_si512(out + 64 * r, _mm512_shuffle_epi8(table, low));
                _mm512_store_si512(out + 256 + 64 * r, _mm512_shuffle_epi8(table, high));
            } else {
                _mm512_store_si512(out + 64 * r, _mm512_sub_epi8(low, eight));
                _mm512_store_si512(out + 256 + 64 * r, _mm512_sub_epi8(high, eight));
            }
        }
    }
}

/* A pair of panels of a job, or a single last one. */
struct pair {
    int64_t panel;
    int64_t n; /* 1 or 2 */
};

/* The segment whose sums are there, and the rows they belong to. */
struct facts {
    int64_t group, segment, row, rows;
};

/* What the columns of one panel bring to a segment's float steps. */
struct columns {
    __m512 scale, offset, sums;
    __m512i zero; /* x_zero * sums */
    int32_t zero_count;
};

static struct columns columns_of(const struct qni_matmul_tile *t, int64_t panel, struct facts f,
                                 bool doubled)
{
    const int64_t g = panel * t->n_groups + f.group;
    struct columns c = {qni_load16(t->scale, g, t->scale_is_f16), _mm512_setzero_ps(),
                        _mm512_setzero_ps(), _mm512_setzero_si512(), 0};
    if (doubled)
        c.scale = _mm512_mul_ps(c.scale, _mm512_set1_ps(0.5f));
    if (t->offset != NULL)
        c.offset = qni_load16(t->offset, g, t->scale_is_f16);
    if (t->x_zero != 0 || t->a_offset != NULL) {
        const __m512i sums = _mm512_loadu_si512(t->sums + (panel * t->n_segments + f.segment) * 16);
        c.sums = _mm512_cvtepi32_ps(sums);
        c.zero = _mm512_mullo_epi32(sums, _mm512_set1_epi32(t->x_zero));
    }
    if (t->x_zero != 0 && t->offset != NULL)
        c.zero_count = t->x_zero * t->counts[f.segment];
    return c;
}

enum { RAW = 0, ROW = 1, BLOCK = 2, BLOCK_SHIFTED = 3 };

/* sum (f32 [32][32]) of one panel with the integer sums of one segment: docs/numerics.md. */
QNI_TEMPLATE void add_rows(const struct qni_matmul_tile *t, struct facts f, struct columns c,
                           const int32_t *dot, float *sum, const int kind, const int has_offset)
{
    size_t at = (size_t)f.row * t->ld_segment + (size_t)f.segment;
    for (int64_t i = 0; i < f.rows; i++, dot += 32, sum += 32, at += t->ld_segment) {
        const __m512i d = _mm512_sub_epi32(_mm512_load_si512(dot), c.zero);
        __m512 acc = _mm512_load_ps(sum);
        if (kind == RAW) {
            acc = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(acc), d));
        } else if (kind == ROW) {
            acc = _mm512_fmadd_ps(c.scale, _mm512_cvtepi32_ps(d), acc);
            if (has_offset)
                acc = _mm512_fmadd_ps(c.offset,
                                      _mm512_set1_ps((float)(t->a_sum[at] - c.zero_count)), acc);
        } else {
            const __m512 sx = _mm512_set1_ps(t->a_scale[at]), real = _mm512_cvtepi32_ps(d);
            const __m512 term =
                kind == BLOCK
                    ? _mm512_mul_ps(sx, real)
                    : _mm512_fmadd_ps(sx, real,
                                      _mm512_mul_ps(_mm512_set1_ps(t->a_offset[at]), c.sums));
            acc = _mm512_fmadd_ps(c.scale, term, acc);
            if (has_offset)
                acc = _mm512_fmadd_ps(c.offset, _mm512_set1_ps(t->a_total[at]), acc);
        }
        _mm512_store_ps(sum, acc);
    }
}

/* The same for the panels of a pair, with what a job does not change made constant. */
QNI_TEMPLATE void add(const struct qni_matmul_tile *t, struct pair pair, struct facts f,
                      const int32_t *dot, float *sum, const int doubled, const int reads)
{
    for (int64_t j = 0; j < pair.n; j++, dot += 16, sum += 16) {
        const struct columns c = columns_of(t, pair.panel + j, f, doubled);
        const bool offset = t->offset != NULL;
        if (reads == QNI_READS_Q8 && t->raw_i32)
            add_rows(t, f, c, dot, sum, RAW, 0);
        else if (reads == QNI_READS_Q8 && offset)
            add_rows(t, f, c, dot, sum, ROW, 1);
        else if (reads == QNI_READS_Q8)
            add_rows(t, f, c, dot, sum, ROW, 0);
        else if (t->a_offset != NULL && offset)
            add_rows(t, f, c, dot, sum, BLOCK_SHIFTED, 1);
        else if (t->a_offset != NULL)
            add_rows(t, f, c, dot, sum, BLOCK_SHIFTED, 0);
        else if (offset)
            add_rows(t, f, c, dot, sum, BLOCK, 1);
        else
            add_rows(t, f, c, dot, sum, BLOCK, 0);
    }
}

/* The results of a pair and up to 32 rows, between c and the sums that a chunk of k works on. */
static void take_sums(const struct qni_matmul_tile *t, struct pair pair, struct facts f, float *sum)
{
    for (int64_t i = 0; i < f.rows; i++)
        for (int64_t j = 0; j < pair.n; j++) {
            const float *const c =
                t->c + (size_t)(f.row + i) * t->ldc + (size_t)(pair.panel + j) * QNI_PANEL;
            _mm512_store_ps(sum + i * 32 + j * 16,
                            f.segment == 0 ? _mm512_setzero_ps() : _mm512_loadu_ps(c));
        }
}

static void give_sums(const struct qni_matmul_tile *t, struct pair pair, struct facts f,
                      const float *sum)
{
    for (int64_t i = 0; i < f.rows; i++)
        for (int64_t j = 0; j < pair.n; j++)
            _mm512_storeu_ps(t->c + (size_t)(f.row + i) * t->ldc +
                                 (size_t)(pair.panel + j) * QNI_PANEL,
                             _mm512_load_ps(sum + i * 32 + j * 16));
}

/* Unpacked codes and the packed position they begin at. An odd last unit is multiplied on its own,
 * in tiles of 32 positions. */
struct operands {
    const uint8_t *b0, *b1; /* tile order; b1 NULL for a single panel */
    int64_t at, units;
};

static void multiply_units(const struct qni_matmul_tile *t, struct operands o, int64_t row,
                           int64_t rows)
{
    const int8_t *const a = (const int8_t *)t->a + (size_t)row * t->lda + o.at;
    struct block b = {a, rows > 16 ? a + 16 * t->lda : NULL, t->lda, o.b0, o.b1, 1024, o.units / 2,
                      64};
    multiply(b);
}

static void multiply_odd(const struct qni_matmul_tile *t, struct operands o, int64_t row,
                         int64_t rows)
{
    const int64_t done = o.units - 1;
    const int8_t *const a = (const int8_t *)t->a + (size_t)row * t->lda + o.at + done * QNI_UNIT;
    const struct block b = {a,
                            rows > 16 ? a + 16 * t->lda : NULL,
                            t->lda,
                            o.b0 + done * 512,
                            o.b1 == NULL ? NULL : o.b1 + done * 512,
                            512,
                            1,
                            32};
    multiply(b);
}

/* Sums of one stretch of k for rows [row, row + rows), into c (int32 [32][32]), added to what is
 * there unless first. Tiles are configured for 64 positions, or for 32 where no segment has two
 * units. */
static void stretch(const struct qni_matmul_tile *t, struct operands o, int64_t row, int64_t rows,
                    bool first, int32_t *c)
{
    const bool second = rows > 16;
    if (o.units >= 2) {
        if (first)
            qni_amx_zero();
        else
            qni_amx_load(c, second);
        multiply_units(t, o, row, rows);
        qni_amx_store(c, second);
        if (o.units % 2 == 0)
            return;
        qni_amx_configure(rows, 32);
        first = false;
    }
    if (first)
        qni_amx_zero();
    else
        qni_amx_load(c, second);
    multiply_odd(t, o, row, rows);
    qni_amx_store(c, second);
    if (o.units > 1)
        qni_amx_configure(rows, 64);
}

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* Where a segment begins. */
struct place {
    int64_t group, segment, unit, units;
};

/* B of some units of a pair, unpacked to scratch. The same units of the next pair are asked for on
 * the way, since nothing else would: the codes are read once. */
QNI_TEMPLATE void bring(const struct qni_matmul_tile *t, struct pair pair, int64_t unit,
                        int64_t units, const int kind)
{
    const int64_t unit_bytes = kind == BYTES ? 512 : 256;
    for (int64_t j = 0; j < pair.n; j++) {
        const uint8_t *const codes =
            t->codes + (size_t)(pair.panel + j) * t->codes_stride + unit * unit_bytes;
        if (pair.panel + j + 2 < t->n_panels)
            for (int64_t i = 0; i < units * unit_bytes; i += 64)
                _mm_prefetch((const char *)codes + 2 * t->codes_stride + i, _MM_HINT_T1);
        unpack(codes, units, kind, t->table8, (int8_t *)t->scratch + j * PANEL_BYTES);
    }
}

static struct operands unpacked(const struct qni_matmul_tile *t, struct pair pair, int64_t from,
                                struct place s)
{
    const uint8_t *const b = (const uint8_t *)t->scratch + (s.unit - from) * 512;
    const struct operands o = {b, pair.n == 2 ? b + PANEL_BYTES : NULL, s.unit * QNI_UNIT, s.units};
    return o;
}

static float *sums_of(const struct qni_matmul_tile *t)
{
    return (float *)(void *)((char *)t->scratch + B_BYTES + C_BYTES);
}

/* A segment longer than a chunk, for rows [row, row + rows) of at most ROWS: C waits in scratch
 * between chunks. */
QNI_TEMPLATE void long_segment(const struct qni_matmul_tile *t, struct pair pair, struct place s,
                               int64_t row, int64_t rows, const int kind, const int reads)
{
    int32_t *const c = (int32_t *)((char *)t->scratch + B_BYTES);
    for (int64_t u = 0; u < s.units; u += CHUNK_UNITS) {
        const struct place part = {s.group, s.segment, s.unit + u,
                                   at_most(CHUNK_UNITS, s.units - u)};
        bring(t, pair, part.unit, part.units, kind);
        for (int64_t i = 0; i < rows; i += 32) {
            const int64_t some = at_most(32, rows - i);
            qni_amx_configure(some, part.units == 1 ? 32 : 64);
            stretch(t, unpacked(t, pair, part.unit, part), row + i, some, u == 0, c + i * 32);
        }
    }
    for (int64_t i = 0; i < rows; i += 32) {
        const struct facts f = {s.group, s.segment, row + i, at_most(32, rows - i)};
        take_sums(t, pair, f, sums_of(t));
        add(t, pair, f, c + i * 32, sums_of(t), kind == NIBBLE_TABLE && t->table8_doubled, reads);
        give_sums(t, pair, f, sums_of(t));
    }
}

/* The segments of a chunk, for 32 rows. The sums of a segment are added while the tiles work on the
 * next: its products are issued first, then the additions of the one before, then its tiles are
 * stored. */
QNI_TEMPLATE void segments_of_rows(const struct qni_matmul_tile *t, struct pair pair,
                                   const struct place *s, int64_t count, int64_t row,
                                   const int kind, const int reads)
{
    int32_t *const c = (int32_t *)((char *)t->scratch + B_BYTES);
    const int64_t rows = at_most(32, t->m - row);
    const bool second = rows > 16;
    const int doubled = kind == NIBBLE_TABLE && t->table8_doubled;
    struct facts f = {s[0].group, s[0].segment, row, rows};
    take_sums(t, pair, f, sums_of(t));
    for (int64_t k = 0; k <= count; k++) {
        int32_t *const now = c + k % 2 * 1024;
        const bool simple = k < count && (s[k].units == 1 || s[k].units % 2 == 0);
        if (simple) {
            const struct operands o = unpacked(t, pair, s[0].unit, s[k]);
            qni_amx_zero();
            if (s[k].units == 1)
                multiply_odd(t, o, row, rows);
            else
                multiply_units(t, o, row, rows);
        }
        if (k > 0) {
            f.group = s[k - 1].group;
            f.segment = s[k - 1].segment;
            add(t, pair, f, c + (k - 1) % 2 * 1024, sums_of(t), doubled, reads);
        }
        if (simple)
            qni_amx_store(now, second);
        else if (k < count)
            stretch(t, unpacked(t, pair, s[0].unit, s[k]), row, rows, true, now);
    }
    give_sums(t, pair, f, sums_of(t));
}

/* All segments of a chunk have one unit, or all have more: the tiles stay configured. */
QNI_TEMPLATE void segments(const struct qni_matmul_tile *t, struct pair pair, const struct place *s,
                           int64_t count, const int kind, const int reads)
{
    if (count == 0)
        return;
    bring(t, pair, s[0].unit, s[count - 1].unit + s[count - 1].units - s[0].unit, kind);
    int64_t rows_now = 0;
    for (int64_t row = 0; row < t->m; row += 32) {
        const int64_t rows = at_most(32, t->m - row);
        if (rows != rows_now)
            qni_amx_configure(rows, s[0].units == 1 ? 32 : 64);
        rows_now = rows;
        segments_of_rows(t, pair, s, count, row, kind, reads);
    }
}

/* Cut k in segments, and gather those of one kind (a single unit or more) in chunks. */
QNI_TEMPLATE void pair_of_panels(const struct qni_matmul_tile *t, struct pair pair, const int kind,
                                 const int reads)
{
    struct place chunk[CHUNK_UNITS];
    int64_t count = 0, in_chunk = 0, segment = 0, unit = 0;
    for (int64_t g = 0; g < t->n_groups; g++) {
        const int64_t end = unit + at_most(t->group_units, t->units - unit);
        for (; unit < end; segment++) {
            const struct place s = {g, segment, unit, at_most(t->segment_units, end - unit)};
            unit += s.units;
            if (in_chunk + s.units > CHUNK_UNITS ||
                (count > 0 && (s.units == 1) != (chunk[0].units == 1))) {
                segments(t, pair, chunk, count, kind, reads);
                count = in_chunk = 0;
            }
            if (s.units > CHUNK_UNITS) {
                for (int64_t row = 0; row < t->m; row += ROWS)
                    long_segment(t, pair, s, row, at_most(ROWS, t->m - row), kind, reads);
                continue;
            }
            chunk[count++] = s;
            in_chunk += s.units;
        }
    }
    segments(t, pair, chunk, count, kind, reads);
}

/* The job for some of its rows. */
static struct qni_matmul_tile rows_of(const struct qni_matmul_tile *t, int64_t row, int64_t rows)
{
    struct qni_matmul_tile part = *t;
    const size_t facts = (size_t)row * t->ld_segment;
    part.m = rows;
    part.a = (const int8_t *)t->a + (size_t)row * t->lda;
    part.a_sum = t->a_sum == NULL ? NULL : t->a_sum + facts;
    part.a_scale = t->a_scale == NULL ? NULL : t->a_scale + facts;
    part.a_offset = t->a_offset == NULL ? NULL : t->a_offset + facts;
    part.a_total = t->a_total == NULL ? NULL : t->a_total + facts;
    part.c = t->c + (size_t)row * t->ldc;
    return part;
}

/* Blocks of rows that stay in the second-level cache while all panels pass by. Beyond that, tiles
 * wait for the third level: 2.0 instead of 3.5 TOP/s a core (lab/tile_bench.c at m = 512 and
 * k = 4096). */
QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind, const int reads)
{
    const int64_t fit = A_BYTES / (int64_t)(t->lda > 0 ? t->lda : 1) / 32 * 32;
    const int64_t blocks = fit < 32 ? (t->m + 31) / 32 : (t->m + fit - 1) / fit;
    const int64_t block = blocks == 0 ? 32 : ((t->m + blocks - 1) / blocks + 31) / 32 * 32;
    for (int64_t row = 0; row < t->m; row += block) {
        const struct qni_matmul_tile part = rows_of(t, row, at_most(block, t->m - row));
        for (int64_t panel = 0; panel < t->n_panels; panel += 2) {
            const struct pair pair = {panel, at_most(2, t->n_panels - panel)};
            pair_of_panels(&part, pair, kind, reads);
        }
    }
    _tile_release();
}

void qni_matmul_q8_q4n16_mr32_amx(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES, QNI_READS_Q8);
}
void qni_matmul_q8_t4n16_mr32_amx(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLE_TABLE, QNI_READS_Q8);
}
void qni_matmul_q8_q8n16_mr32_amx(const struct qni_matmul_tile *t)
{
    tile(t, BYTES, QNI_READS_Q8);
}
void qni_matmul_q8b_q4n16_mr32_amx(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES, QNI_READS_Q8B);
}
void qni_matmul_q8b_t4n16_mr32_amx(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLE_TABLE, QNI_READS_Q8B);
}
void qni_matmul_q8b_q8n16_mr32_amx(const struct qni_matmul_tile *t)
{
    tile(t, BYTES, QNI_READS_Q8B);
}
