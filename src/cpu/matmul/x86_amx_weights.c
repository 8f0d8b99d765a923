/* SPDX-License-Identifier: Apache-2.0 */
/* Planes of bf16 x weights of any kind on AMX tiles, for many rows. Contract and operand layouts:
 * kernel.h.
 *
 * A weight is made as f32 and split in two planes, the bf16 next to it and the bf16 next to what
 * that leaves, which are within 2^-17 |w|. So there is nothing left to scale: sums stay in the
 * tiles whatever the groups are, and codebooks need not be integers. With planes of x as they are
 *
 *     x w  =  high high + high low (+ low high)
 *
 * where low low, below 2^-16 |x w|, is left out: select.c asks for sums long enough that
 * docs/numerics.md's bound does not notice. Where all second planes of a span are zero, as those of
 * MXFP4 are, they are not multiplied.
 *
 * Groups of at most 16 positions, half of whose units of codes is padding, are made two to a unit:
 * the first halves of two tiles.
 *
 * Up to twice the products of x86_amx_float.c, which scales sums once a group; but tiles are
 * stored once in 256 or 512 positions instead of once in 32 or 128, and a weight is made once for
 * all rows of the job. Making 512 of them takes 150 cycles, multiplying them with 32 rows 64 or 96.
 *
 *     for some pairs of panels      whose sums stay in the second cache,
 *       for spans of k              so do rows of A in a span
 *         for pairs of panels       B of the next one is made while this one is multiplied
 *           for blocks of 32 rows
 *
 * A and B come from the second cache, by loads that leave the first one alone: it has the codes
 * and what is made of them.
 *
 * Bound: 2 m n k (planes + 1) / (2 * 16 * 16 * 32 operations every 16 cycles). */
#include <immintrin.h>

#include "../../base/compiler.h"
#include "../simd/amx.h"
#include "../simd/avx512.h"
#include "kernel.h"

enum { NIBBLES = 0, BYTES = 1, BYTE_TABLE = 2 };
enum {
    HALF = 16,            /* rows of a tile */
    ROWS = QNI_BF16_ROWS, /* of a block */
    LINE = 64,
    TILE = 1024,            /* bytes */
    PLANE = 2 * TILE,       /* of B: two panels */
    UNIT_BYTES = 2 * PLANE, /* of B: low plane, high plane */
    SPAN = 16,              /* units at most, */
    FEW = 4,                /* or of one block of rows: B in the first cache */
    BLOCKS = 64,            /* whose sums stay: of rows, times pairs */
    WIDTH = 32,             /* outputs of a pair */
    QUARTERS = 8            /* of the two tiles of a unit */
};

struct scratch {
    uint8_t b[2][SPAN * UNIT_BYTES];
    float sums[BLOCKS][ROWS][WIDTH];
};
_Static_assert(sizeof(struct scratch) == 393216, "kernels.inc says so");

/* The compiler does not know that tiles are loaded from memory and stored there. */
#define TILES_SEE_MEMORY() __asm__ volatile("" ::: "memory")

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Weights that are being made: a unit of both panels at a time, a quarter of a tile at a time. */
struct feed {
    const struct qni_matmul_tile *t;
    const uint8_t *codes[2];
    ptrdiff_t ahead;     /* to codes that come after these */
    int64_t panel[2];    /* of t */
    int64_t unit, left;  /* quarters */
    int64_t turn, group; /* the quarter of the unit; the group of the scales */
    uint8_t *out;
    int64_t unit_bytes;        /* of codes of a panel */
    int64_t second;            /* bytes from them to those of the second half of a tile */
    __m512 scale[2][2], table; /* [half of a tile][panel] */
    __m512 offset[2][2];
    __m512i low;  /* bits of second planes */
    bool is_bf16; /* a table of 256 values whose upper halves, in two bytes, are all of them */
    __m512i lower[4], upper[4];
};

/* One NaN for all, whose lower half does not carry into the sign when it is rounded. */
static __m512 plain_nan(__m512 v)
{
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(v, v, _CMP_UNORD_Q),
                              _mm512_set1_ps(__builtin_nanf("")));
}

static void load_group(struct feed *f, const int half, int64_t group)
{
    const struct qni_matmul_tile *t = f->t;
    for (int i = 0; i < 2; i++) {
        const int64_t at = f->panel[i] * t->n_groups + group;
        f->scale[half][i] = plain_nan(qni_load16(t->scale, at, t->scale_is_f16));
        if (t->offset != NULL)
            f->offset[half][i] = plain_nan(qni_load16(t->offset, at, t->scale_is_f16));
    }
}

/* The groups of a unit that begins. An odd last one is made twice: zeros meet its second half. */
static void load_groups(struct feed *f)
{
    const struct qni_matmul_tile *t = f->t;
    if (t->halves) {
        const bool two = 2 * f->unit + 1 < t->n_groups;
        f->second = two ? f->unit_bytes / 2 : 0;
        load_group(f, 0, 2 * f->unit);
        load_group(f, 1, 2 * f->unit + two);
    } else if (f->unit / t->group_units != f->group) {
        f->group = f->unit / t->group_units;
        load_group(f, 0, f->group);
        load_group(f, 1, f->group);
    }
}

/* The upper halves of both as bf16, a in the lower half of each lane. */
QNI_TEMPLATE __m512i pair_up(__m512i a, __m512i b)
{
    const __m512i down = _mm512_broadcast_i32x4(
        _mm_setr_epi8(2, 3, -1, -1, 6, 7, -1, -1, 10, 11, -1, -1, 14, 15, -1, -1));
    return _mm512_mask_shuffle_epi8(b, 0x3333333333333333u, a, down);
}

QNI_TEMPLATE __m512 below(__m512 v, __m512i rounded)
{
    const __m512i upper = _mm512_and_si512(rounded, _mm512_set1_epi32((int32_t)0xffff0000));
    return _mm512_sub_ps(v, _mm512_castsi512_ps(upper));
}

/* A row of the tiles of both planes; returns that of the second. Ties go away from zero. */
QNI_TEMPLATE __m512i split(__m512 a, __m512 b, uint8_t *out)
{
    const __m512i half = _mm512_set1_epi32(0x8000);
    const __m512i near_a = _mm512_add_epi32(_mm512_castps_si512(a), half);
    const __m512i near_b = _mm512_add_epi32(_mm512_castps_si512(b), half);
    _mm512_store_si512(out + PLANE, pair_up(near_a, near_b));
    const __m512i rest_a = _mm512_castps_si512(below(a, near_a));
    const __m512i rest_b = _mm512_castps_si512(below(b, near_b));
    const __m512i low = pair_up(_mm512_add_epi32(rest_a, half), _mm512_add_epi32(rest_b, half));
    _mm512_store_si512(out, low);
    return low;
}

/* Index of vpshufb: byte b of each lane, wherever a mask says. */
QNI_TEMPLATE __m512i to_byte(const int b)
{
    const __m128i lanes = _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    return _mm512_add_epi8(_mm512_set1_epi8((char)b), _mm512_broadcast_i32x4(lanes));
}

/* Entries of a table of 256 bytes. vpermi2b looks at seven bits of a byte. */
QNI_TEMPLATE __m512i look_up(const __m512i table[4], __m512i v)
{
    const __m512i low = _mm512_permutex2var_epi8(table[0], v, table[1]);
    const __m512i high = _mm512_permutex2var_epi8(table[2], v, table[3]);
    return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(v), high);
}

/* Nibble or byte b of every lane as a value. */
QNI_TEMPLATE __m512 value_of(const struct feed *f, __m512i v, const int b, const int kind)
{
    if (kind == BYTES) {
        /* In the low bits of 2^23 it makes 2^23 + byte; less 2^23 + 128 it is the code. */
        const __m512i one = _mm512_set1_epi32(0x4b000000);
        const __m512i bits = _mm512_mask_shuffle_epi8(one, 0x1111111111111111u, v, to_byte(b));
        return _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p23f + 128.0f));
    }
    const __m512i at = b == 0 ? v : _mm512_srli_epi32(v, (unsigned)(8 * b));
    if (kind == NIBBLES) /* vpermps looks at four bits */
        return _mm512_permutexvar_ps(at, f->table);
    return _mm512_i32gather_ps(_mm512_and_si512(at, _mm512_set1_epi32(0xff)), f->t->table, 4);
}

/* The values of all four of a lane. */
QNI_TEMPLATE void values_of(const struct feed *f, __m512i v, const int kind, __m512 value[4])
{
    if (kind == BYTE_TABLE && f->is_bf16) {
        const __m512i lower = look_up(f->lower, v), upper = look_up(f->upper, v);
        QNI_UNROLL
        for (int b = 0; b < 4; b++) {
            const __m512i at = to_byte(b);
            const __m512i part = _mm512_maskz_shuffle_epi8(0x4444444444444444u, lower, at);
            value[b] =
                _mm512_castsi512_ps(_mm512_mask_shuffle_epi8(part, 0x8888888888888888u, upper, at));
        }
        return;
    }
    QNI_UNROLL
    for (int b = 0; b < 4; b++)
        value[b] = value_of(f, v, b, kind);
}

/* Four positions of 16 outputs: two rows. x has positions 0 2, 1 3 in pairs. */
QNI_TEMPLATE void two_rows(struct feed *f, __m512i v, int half, int i, uint8_t *out, const int kind)
{
    const __m512 scale = f->scale[half][i];
    const __m512 offset = f->t->offset != NULL ? f->offset[half][i] : _mm512_setzero_ps();
    __m512 w[4];
    values_of(f, v, kind, w);
    QNI_UNROLL
    for (int b = 0; b < 4; b++)
        w[b] = _mm512_fmadd_ps(scale, w[b], offset);
    const __m512i low0 = split(w[0], w[2], out), low1 = split(w[1], w[3], out + LINE);
    f->low = _mm512_ternarylogic_epi32(f->low, low0, low1, 0xfe); /* or of all three */
}

/* A quarter of a tile. */
QNI_VARIANTS void make(struct feed *f, const int kind)
{
    const int i = (int)(f->turn >> 2), r = (int)(f->turn & 3);
    if (f->turn == 0)
        load_groups(f);
    uint8_t *const out = f->out + TILE * i;
    const uint8_t *codes = f->codes[i];
    if (kind == NIBBLES) {
        codes += LINE * r;
        _mm_prefetch((const char *)codes + f->ahead, _MM_HINT_T1);
        const __m512i v0 = _mm512_loadu_si512(codes);
        __m512i v1 = _mm512_srli_epi32(v0, 4);
        if (f->t->halves) {
            _mm_prefetch((const char *)codes + f->second + f->ahead, _MM_HINT_T1);
            v1 = _mm512_loadu_si512(codes + f->second);
        }
        two_rows(f, v0, 0, i, out + 2 * LINE * r, kind);
        two_rows(f, v1, 1, i, out + TILE / 2 + 2 * LINE * r, kind);
    } else {
        const int half = r >> 1;
        codes += (half ? f->second : 0) + 2 * LINE * (r & 1);
        _mm_prefetch((const char *)codes + f->ahead, _MM_HINT_T1);
        _mm_prefetch((const char *)codes + LINE + f->ahead, _MM_HINT_T1);
        two_rows(f, _mm512_loadu_si512(codes), half, i, out + 4 * LINE * r, kind);
        two_rows(f, _mm512_loadu_si512(codes + LINE), half, i, out + 4 * LINE * r + 2 * LINE, kind);
    }
    f->left--;
    if (++f->turn == QUARTERS) {
        f->turn = 0;
        f->unit++;
        f->out += UNIT_BYTES;
        f->codes[0] += f->unit_bytes;
        f->codes[1] += f->unit_bytes;
    }
}

/* n quarters, or what is left. */
QNI_TEMPLATE void make_some(struct feed *f, int64_t n, const int kind)
{
    for (n = at_most(n, f->left); n > 0; n--)
        make(f, kind);
}

/* A gather takes three times as long as bytes from registers: those of FP8 are two. */
static void halve_table(struct feed *f)
{
    uint8_t *const lower = (uint8_t *)f->lower, *const upper = (uint8_t *)f->upper;
    uint32_t rest = 0;
    for (int i = 0; i < 256; i++) {
        uint32_t bits;
        memcpy(&bits, f->t->table + i, sizeof bits);
        lower[i] = (uint8_t)(bits >> 16);
        upper[i] = (uint8_t)(bits >> 24);
        rest |= bits & 0xffff;
    }
    f->is_bf16 = rest == 0;
}

/* ---- the order of work ----------------------------------------------------------------------- */

struct job {
    const struct qni_matmul_tile *t;
    struct scratch *s;
    struct feed feed;
    int64_t units;         /* of A and B */
    int64_t span, n_spans; /* of units */
    int64_t panel, pairs;  /* of the pass */
    int64_t n_blocks;
    int64_t tile_rows; /* that tiles are configured for */
    bool keeps;        /* one block and one pair: sums stay in the tiles from span to span */
    int64_t rate[2];   /* quarters after the first and the second four products of a unit */
    int64_t lines;     /* of rows to come, asked for with a unit */
};

/* The i-th span and pair of a pass. */
struct place {
    int64_t panel, unit, units, pair;
    const uint8_t *b;
    bool second; /* panel */
    bool low;    /* plane: something is in it */
};

static struct place place_of(const struct job *j, int64_t i)
{
    const int64_t last = j->n_spans * j->pairs - 1;
    struct place p;
    i = at_most(i, last);
    p.pair = i % j->pairs;
    p.panel = j->panel + 2 * p.pair;
    p.unit = i / j->pairs * j->span;
    p.units = at_most(j->span, j->units - p.unit);
    p.second = p.panel + 1 < j->t->n_panels;
    p.b = j->s->b[i % 2];
    p.low = true;
    return p;
}

static const uint8_t *codes_at(const struct job *j, const struct place *p)
{
    return j->t->codes + (size_t)p->panel * j->t->codes_stride +
           (size_t)(p->unit * j->feed.unit_bytes);
}

/* Make B of the i-th place from now on. */
static void begin_feed(struct job *j, int64_t i)
{
    struct feed *const f = &j->feed;
    const struct place p = place_of(j, i), after = place_of(j, i + 1);
    if (i >= j->n_spans * j->pairs)
        return;
    f->codes[0] = codes_at(j, &p);
    f->codes[1] = f->codes[0] + (p.second ? j->t->codes_stride : 0);
    f->ahead = codes_at(j, &after) - f->codes[0];
    f->panel[0] = p.panel;
    f->panel[1] = p.panel + p.second;
    f->unit = p.unit;
    f->left = QUARTERS * p.units;
    f->turn = 0;
    f->group = -1;
    f->low = _mm512_setzero_si512();
    f->out = j->s->b[i % 2];
}

/* ---- products -------------------------------------------------------------------------------- */

/* A unit: four products for each pair of planes, in which no sum follows itself. */
QNI_VARIANTS void step(struct job *j, const char *a, size_t plane, const uint8_t *b, bool low,
                       const int halves, const int planes, const int kind)
{
    _tile_stream_loadd(4, a, LINE);
    if (halves == 2)
        _tile_stream_loadd(5, a + HALF * LINE, LINE);
    if (low) {
        _tile_stream_loadd(6, b, LINE);
        _tile_dpbf16ps(0, 4, 6);
        if (halves == 2)
            _tile_dpbf16ps(2, 5, 6);
        _tile_stream_loadd(7, b + TILE, LINE);
        _tile_dpbf16ps(1, 4, 7);
        if (halves == 2)
            _tile_dpbf16ps(3, 5, 7);
    }
    make_some(&j->feed, j->rate[0], kind);
    _tile_stream_loadd(6, b + PLANE, LINE);
    _tile_dpbf16ps(0, 4, 6);
    if (halves == 2)
        _tile_dpbf16ps(2, 5, 6);
    _tile_stream_loadd(7, b + PLANE + TILE, LINE);
    _tile_dpbf16ps(1, 4, 7);
    if (halves == 2)
        _tile_dpbf16ps(3, 5, 7);
    make_some(&j->feed, j->rate[1], kind);
    if (planes == 1)
        return;
    _tile_stream_loadd(4, a + plane, LINE);
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    if (halves == 2) {
        _tile_stream_loadd(5, a + plane + HALF * LINE, LINE);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
    }
}

/* Rows of the next span come from the third cache, a part of them while each pair is multiplied;
 * after the last span come those of the first. */
QNI_TEMPLATE const char *rows_ahead(const struct job *j, const struct place *p, const char *a,
                                    int64_t row, size_t plane, const int planes)
{
    const int64_t units = j->units, next = p->unit + p->units;
    const char *const first = (const char *)j->t->a + (size_t)row * j->t->lda;
    const char *const span = next < units ? a + (size_t)(p->units * planes) * plane : first;
    return span + (size_t)(p->pair * p->units * j->lines) * LINE;
}

/* Rows [row, row + rows) and a place. The first span begins at zero, the last one goes to c. */
QNI_TEMPLATE void block(struct job *j, const struct place *p, int64_t row, int64_t rows,
                        const int halves, const int planes, const int kind)
{
    const struct qni_matmul_tile *t = j->t;
    const size_t plane = (size_t)rows * LINE;
    const char *a = (const char *)t->a + (size_t)row * t->lda + (size_t)(p->unit * planes) * plane;
    float *const sums = (float *)j->s->sums + (p->pair * j->n_blocks + row / ROWS) * ROWS * WIDTH;
    TILES_SEE_MEMORY();
    if (j->tile_rows != rows)
        qni_amx_configure(rows, LINE);
    j->tile_rows = rows;
    if (p->unit == 0) {
        qni_amx_zero();
    } else if (!j->keeps) {
        _tile_loadd(0, sums, WIDTH * 4);
        _tile_loadd(1, sums + HALF, WIDTH * 4);
        if (halves == 2) {
            _tile_loadd(2, sums + HALF * WIDTH, WIDTH * 4);
            _tile_loadd(3, sums + HALF * WIDTH + HALF, WIDTH * 4);
        }
    }
    const char *ahead = rows_ahead(j, p, a, row, plane, planes);
    const uint8_t *b = p->b;
    for (int64_t u = 0; u < p->units; u++, a += (size_t)planes * plane, b += UNIT_BYTES) {
        for (int64_t i = 0; i < j->lines; i++, ahead += LINE)
            _mm_prefetch(ahead, _MM_HINT_T1);
        step(j, a, plane, b, p->low, halves, planes, kind);
    }
    TILES_SEE_MEMORY();
    const bool ends = p->unit + p->units == j->units;
    if (j->keeps && !ends)
        return;
    float *const c = ends ? t->c + (size_t)row * t->ldc + p->panel * QNI_PANEL : sums;
    const size_t ld = ends ? t->ldc : WIDTH;
    _tile_stored(0, c, ld * 4);
    if (halves == 2)
        _tile_stored(2, c + HALF * ld, ld * 4);
    if (p->second || !ends) {
        _tile_stored(1, c + HALF, ld * 4);
        if (halves == 2)
            _tile_stored(3, c + HALF * ld + HALF, ld * 4);
    }
    TILES_SEE_MEMORY();
}

/* Some pairs of panels, all of k and all rows. */
QNI_TEMPLATE void pass(struct job *j, const int planes, const int kind)
{
    const int64_t m = j->t->m, whole = m / ROWS * ROWS, rest = m - whole;
    begin_feed(j, 0);
    make_some(&j->feed, INT64_MAX, kind);
    for (int64_t i = 0; i < j->n_spans * j->pairs; i++) {
        struct place p = place_of(j, i);
        p.low = _mm512_test_epi32_mask(j->feed.low, j->feed.low) != 0;
        begin_feed(j, i + 1);
        for (int64_t row = 0; row < whole; row += ROWS)
            block(j, &p, row, ROWS, 2, planes, kind);
        if (rest > HALF)
            block(j, &p, whole, rest, 2, planes, kind);
        else if (rest > 0)
            block(j, &p, whole, rest, 1, planes, kind);
        make_some(&j->feed, INT64_MAX, kind);
    }
}

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind)
{
    struct job j;
    memset(&j, 0, sizeof j);
    j.t = t;
    j.s = t->scratch;
    j.feed.t = t;
    if (kind == NIBBLES)
        j.feed.table = t->table != NULL
                           ? plain_nan(_mm512_loadu_ps(t->table))
                           : _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    if (kind == BYTE_TABLE)
        halve_table(&j.feed);
    j.feed.second = TILE / 4; /* of bytes */
    j.feed.unit_bytes = (kind == NIBBLES ? 256 : 512) << t->halves;
    j.units = (t->units + t->halves) >> t->halves;
    j.n_blocks = (t->m + ROWS - 1) / ROWS;
    j.keeps = j.n_blocks == 1;
    j.span = j.keeps ? FEW : SPAN / t->planes;
    j.n_spans = (j.units + j.span - 1) / j.span;
    const int64_t rate = (QUARTERS + j.n_blocks - 1) / j.n_blocks;
    j.rate[0] = (rate + 1) / 2;
    j.rate[1] = rate / 2;
    const int64_t pairs = (t->n_panels + 1) / 2, most = j.keeps ? 1 : BLOCKS / j.n_blocks;
    for (int64_t done = 0; done < pairs; done += j.pairs) {
        j.panel = 2 * done;
        j.pairs = at_most(most, pairs - done);
        j.lines = j.keeps ? 0 : (ROWS * t->planes + j.pairs - 1) / j.pairs;
        if (t->planes == 1)
            pass(&j, 1, kind);
        else
            pass(&j, 2, kind);
    }
    _tile_release();
}

/* Integers and codebooks of 16 differ in their table alone. */
void qni_matmul_bf16_q4n16_mr64_amx(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES);
}
void qni_matmul_bf16_t4n16_mr64_amx(const struct qni_matmul_tile *t)
{
    qni_matmul_bf16_q4n16_mr64_amx(t);
}
void qni_matmul_bf16_q8n16_mr64_amx(const struct qni_matmul_tile *t)
{
    tile(t, BYTES);
}
void qni_matmul_bf16_t8n16_mr64_amx(const struct qni_matmul_tile *t)
{
    tile(t, BYTE_TABLE);
}
