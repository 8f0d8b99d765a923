/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights on AMX tiles, from a dozen rows on. Contract and operand
 * layouts: kernel.h.
 *
 * Two units of a packed panel (64 positions, 16 outputs) are exactly one B tile: 16 rows of 4
 * positions x 16 outputs. Rows of activations are A tiles as they lie. A block of 32 rows x 32
 * outputs lives in four C tiles: four loads feed four products.
 *
 * Codes are unpacked to signed bytes for a chunk of k and eight panels, once for all rows of the
 * job.
 *   long segments (per channel, large groups): C stays in tiles over a chunk and in int32 scratch
 *   between chunks.
 *   short segments (groups): after each segment the four C tiles are stored and added, scaled, to
 *   the f32 result, while the tiles work on the next.
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
    CHUNK_UNITS = 16, /* 512 positions: 32 rows of A take 16 KiB of the first-level cache */
    PANELS = 8,       /* whose B of a chunk (64 KiB) stays in the second level */
    PANEL_BYTES = CHUNK_UNITS * 512, /* a panel of a chunk, unpacked */
    B_BYTES = PANELS * PANEL_BYTES,
    ROWS = 256, /* rows of int32 scratch */
    C_BYTES = ROWS * PANELS * QNI_PANEL * 4
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

static void multiply(const struct block b)
{
    const int8_t *a0 = b.a0, *a1 = b.a1;
    const uint8_t *b0 = b.b0, *b1 = b.b1;
    for (int64_t s = 0; s < b.steps; s++) {
        _tile_loadd(6, b0, 64);
        _tile_loadd(4, a0, b.lda);
        _tile_dpbssd(0, 4, 6);
        if (b1 != NULL) {
            _tile_loadd(7, b1, 64);
            _tile_dpbssd(1, 4, 7);
            b1 += b.b_step;
        }
        if (a1 != NULL) {
            _tile_loadd(5, a1, b.lda);
            _tile_dpbssd(2, 5, 6);
            if (b1 != NULL)
                _tile_dpbssd(3, 5, 7);
            a1 += b.k_bytes;
        }
        a0 += b.k_bytes;
        b0 += b.b_step;
    }
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

/* The panels that are worked on together. */
struct set {
    int64_t panel, n;
};

static struct pair pair_of(struct set set, int64_t i)
{
    const struct pair pair = {set.panel + 2 * i, set.n - 2 * i < 2 ? 1 : 2};
    return pair;
}

/* Everything add() needs to know about the segment whose sums it gets. */
struct facts {
    int64_t group, segment, row, rows;
    bool first; /* the result is not there yet: begin at zero */
};

/* dot: int32 [32][32] of rows [row, row + rows). One segment's float steps of docs/numerics.md, in
 * place in c. */
QNI_TEMPLATE void add(const struct qni_matmul_tile *t, struct pair pair, struct facts f,
                      const int32_t *dot, const int doubled, const int reads)
{
    for (int64_t j = 0; j < pair.n; j++) {
        const int64_t panel = pair.panel + j;
        __m512 scale = qni_load16(t->scale, panel * t->n_groups + f.group, t->scale_is_f16);
        if (doubled)
            scale = _mm512_mul_ps(scale, _mm512_set1_ps(0.5f));
        const bool shifted = reads == QNI_READS_Q8 ? t->x_zero != 0 : t->a_offset != NULL;
        const __m512i sums =
            shifted ? _mm512_loadu_si512(t->sums + (panel * t->n_segments + f.segment) * 16)
                    : _mm512_setzero_si512();
        const __m512i zero = _mm512_mullo_epi32(sums, _mm512_set1_epi32(t->x_zero));
        const __m512 offset =
            t->offset == NULL
                ? _mm512_setzero_ps()
                : qni_load16(t->offset, panel * t->n_groups + f.group, t->scale_is_f16);
        const int32_t zero_count = t->offset != NULL && reads == QNI_READS_Q8 && t->x_zero != 0
                                       ? t->x_zero * t->counts[f.segment]
                                       : 0;
        for (int64_t i = 0; i < f.rows; i++) {
            const size_t at = (size_t)(f.row + i) * t->ld_segment + (size_t)f.segment;
            float *const c = t->c + (size_t)(f.row + i) * t->ldc + (size_t)panel * QNI_PANEL;
            __m512i d = _mm512_load_si512(dot + i * 32 + j * 16);
            __m512 acc = f.first ? _mm512_setzero_ps() : _mm512_loadu_ps(c);
            if (reads == QNI_READS_Q8) {
                d = _mm512_sub_epi32(d, zero);
                if (t->raw_i32)
                    acc = _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(acc), d));
                else
                    acc = _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(d), acc);
                if (t->offset != NULL && !t->raw_i32)
                    acc = _mm512_fmadd_ps(offset,
                                          _mm512_set1_ps((float)(t->a_sum[at] - zero_count)), acc);
            } else {
                const __m512 sx = _mm512_set1_ps(t->a_scale[at]);
                const __m512 real = _mm512_cvtepi32_ps(d);
                const __m512 term =
                    shifted ? _mm512_fmadd_ps(sx, real,
                                              _mm512_mul_ps(_mm512_set1_ps(t->a_offset[at]),
                                                            _mm512_cvtepi32_ps(sums)))
                            : _mm512_mul_ps(sx, real);
                acc = _mm512_fmadd_ps(scale, term, acc);
                if (t->offset != NULL)
                    acc = _mm512_fmadd_ps(offset, _mm512_set1_ps(t->a_total[at]), acc);
            }
            _mm512_storeu_ps(c, acc);
        }
    }
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

/* B of the units of a chunk, for the panels of a set, unpacked to scratch. The next chunk is asked
 * for on the way, since nothing else would: the codes are read once. */
QNI_TEMPLATE void bring(const struct qni_matmul_tile *t, struct set set, int64_t unit,
                        int64_t units, const int kind)
{
    const int64_t unit_bytes = kind == BYTES ? 512 : 256;
    int8_t *const b = t->scratch;
    for (int64_t j = 0; j < set.n; j++) {
        const uint8_t *const codes =
            t->codes + (size_t)(set.panel + j) * t->codes_stride + unit * unit_bytes;
        for (int64_t i = 0; i < units * unit_bytes; i += 64)
            _mm_prefetch((const char *)codes + units * unit_bytes + i, _MM_HINT_T1);
        unpack(codes, units, kind, t->table8, b + j * PANEL_BYTES);
    }
}

static struct operands unpacked(const struct qni_matmul_tile *t, struct pair pair, struct set set,
                                int64_t from, struct place s)
{
    const uint8_t *const b = (const uint8_t *)t->scratch + (pair.panel - set.panel) * PANEL_BYTES +
                             (s.unit - from) * 512;
    const struct operands o = {b, pair.n == 2 ? b + PANEL_BYTES : NULL, s.unit * QNI_UNIT, s.units};
    return o;
}

/* One segment of any length for rows [row, row + rows) of at most ROWS, chunk by chunk. */
QNI_TEMPLATE void long_segment(const struct qni_matmul_tile *t, struct set set, struct place s,
                               int64_t row, int64_t rows, const int kind, const int reads)
{
    int32_t *const c = (int32_t *)((char *)t->scratch + B_BYTES);
    const int64_t pairs = (set.n + 1) / 2;
    int64_t rows_now = 0;
    for (int64_t u = 0; u < s.units; u += CHUNK_UNITS) {
        const struct place part = {s.group, s.segment, s.unit + u,
                                   at_most(CHUNK_UNITS, s.units - u)};
        bring(t, set, part.unit, part.units, kind);
        for (int64_t i = 0; i < rows; i += 32) {
            const int64_t some = at_most(32, rows - i);
            if (some != rows_now)
                qni_amx_configure(some, part.units == 1 ? 32 : 64);
            rows_now = some;
            for (int64_t j = 0; j < pairs; j++)
                stretch(t, unpacked(t, pair_of(set, j), set, part.unit, part), row + i, some,
                        u == 0, c + (i * pairs + 32 * j) * 32);
        }
        if (s.units - u == CHUNK_UNITS + 1)
            rows_now = 0; /* the last chunk is a single unit: other tiles */
    }
    for (int64_t i = 0; i < rows; i += 32)
        for (int64_t j = 0; j < pairs; j++) {
            const struct facts f = {s.group, s.segment, row + i, at_most(32, rows - i),
                                    s.segment == 0};
            add(t, pair_of(set, j), f, c + (i * pairs + 32 * j) * 32,
                kind == NIBBLE_TABLE && t->table8_doubled, reads);
        }
}

/* The segments of a chunk, for 32 rows and a pair of panels. The sums of a segment are added while
 * the tiles work on the next: its products are issued first, then the additions of the one before,
 * then its tiles are stored. */
QNI_TEMPLATE void segments_of_pair(const struct qni_matmul_tile *t, struct set set,
                                   struct pair pair, const struct place *s, int64_t count,
                                   int64_t row, const int kind, const int reads)
{
    int32_t *const c = (int32_t *)((char *)t->scratch + B_BYTES);
    const int64_t rows = at_most(32, t->m - row);
    const bool second = rows > 16;
    const int doubled = kind == NIBBLE_TABLE && t->table8_doubled;
    for (int64_t k = 0; k <= count; k++) {
        int32_t *const now = c + k % 2 * 1024;
        const bool simple = k < count && (s[k].units == 1 || s[k].units % 2 == 0);
        if (simple) {
            const struct operands o = unpacked(t, pair, set, s[0].unit, s[k]);
            qni_amx_zero();
            if (s[k].units == 1)
                multiply_odd(t, o, row, rows);
            else
                multiply_units(t, o, row, rows);
        }
        if (k > 0) {
            const struct facts f = {s[k - 1].group, s[k - 1].segment, row, rows,
                                    s[k - 1].segment == 0};
            add(t, pair, f, c + (k - 1) % 2 * 1024, doubled, reads);
        }
        if (simple)
            qni_amx_store(now, second);
        else if (k < count)
            stretch(t, unpacked(t, pair, set, s[0].unit, s[k]), row, rows, true, now);
    }
}

/* All segments of a chunk have the same number of units, but for the last of a group. */
QNI_TEMPLATE void short_segments(const struct qni_matmul_tile *t, struct set set,
                                 const struct place *s, int64_t count, const int kind,
                                 const int reads)
{
    bring(t, set, s[0].unit, s[count - 1].unit + s[count - 1].units - s[0].unit, kind);
    int64_t rows_now = 0;
    for (int64_t row = 0; row < t->m; row += 32) {
        const int64_t rows = at_most(32, t->m - row);
        if (rows != rows_now)
            qni_amx_configure(rows, s[0].units == 1 ? 32 : 64);
        rows_now = rows;
        for (int64_t j = 0; j < (set.n + 1) / 2; j++)
            segments_of_pair(t, set, pair_of(set, j), s, count, row, kind, reads);
    }
}

/* Cut k in segments, and gather short ones of one kind (a single unit or more) in chunks. */
QNI_TEMPLATE void set_of_panels(const struct qni_matmul_tile *t, struct set set, const int kind,
                                const int reads)
{
    struct place chunk[CHUNK_UNITS];
    int64_t count = 0, in_chunk = 0, segment = 0, unit = 0;
    for (int64_t g = 0; g < t->n_groups; g++) {
        const int64_t end = unit + at_most(t->group_units, t->units - unit);
        for (; unit < end; segment++) {
            const struct place s = {g, segment, unit, at_most(t->segment_units, end - unit)};
            const bool is_long = s.units > CHUNK_UNITS / 2;
            if (count > 0 && (is_long || in_chunk + s.units > CHUNK_UNITS ||
                              (s.units == 1) != (chunk[0].units == 1))) {
                short_segments(t, set, chunk, count, kind, reads);
                count = in_chunk = 0;
            }
            if (is_long) {
                for (int64_t row = 0; row < t->m; row += ROWS)
                    long_segment(t, set, s, row, at_most(ROWS, t->m - row), kind, reads);
            } else {
                chunk[count++] = s;
                in_chunk += s.units;
            }
            unit += s.units;
        }
    }
    if (count > 0)
        short_segments(t, set, chunk, count, kind, reads);
}

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind, const int reads)
{
    for (int64_t panel = 0; panel < t->n_panels; panel += PANELS) {
        const struct set set = {panel, at_most(PANELS, t->n_panels - panel)};
        set_of_panels(t, set, kind, reads);
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
