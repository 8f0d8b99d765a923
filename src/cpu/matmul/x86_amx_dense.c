/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 x weights rounded to bf16, on AMX tiles: a dense product whose weights are made on the way.
 * Contract and operand layouts: kernel.h.
 *
 *     w' = bf16(fl(scale * value + offset)),  or  bf16(fl(scale * (value - zero)))
 *
 * to nearest even, as docs/numerics.md has it of the dense strategy: each weight is the number that
 * qn_weight_dequantize() gives, rounded once more. What is left is a product of one plane each,
 * whatever the groups and the codebook are; nothing is scaled, and sums stay in f32.
 *
 *     for some pairs of panels      whose sums stay in the second cache,
 *       for spans of k              so do rows of A in a span
 *         for pairs of panels       a stage: B of the next one is made beside its products
 *           for blocks of 32 rows
 *
 * B of a stage, 32 KiB, stays in the first cache while all blocks pass; A comes from the second by
 * loads that leave the first one alone. Each tile of a step is loaded right after the last product
 * that reads it, a step ahead.
 *
 * Groups of at most 16 positions, half of whose units of codes is padding, are made two to a unit:
 * the first halves of two tiles.
 *
 * Bound: 2 m n k / (2 * 16 * 16 * 32 operations every 16 cycles); making 512 weights takes some 80
 * cycles, once for all rows of the job. */
#include <immintrin.h>

#include "../../base/compiler.h"
#include "../simd/amx_bf16.h"
#include "kernel.h"

enum { NIBBLES = 0, BYTES = 1, BYTE_TABLE = 2 };
enum {
    HALF = 16,            /* rows of a tile */
    ROWS = QNI_BF16_ROWS, /* of a block */
    LINE = 64,
    TILE = 1024,           /* bytes */
    UNIT_BYTES = 2 * TILE, /* of B: two panels */
    SPAN = 16,             /* units at most, */
    FEW = 4,               /* or of one block of rows */
    SUMS = 128,            /* blocks of rows times pairs, at most */
    WIDTH = 32,            /* outputs of a pair */
    QUARTERS = 8           /* of the two tiles of a unit */
};

struct scratch {
    uint8_t b[2][SPAN * UNIT_BYTES];
    float sums[SUMS][ROWS][WIDTH];
};
_Static_assert(sizeof(struct scratch) == 589824, "kernels.inc says so");

#define TILES_SEE_MEMORY() QNI_AMX_TILES_SEE_MEMORY()

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
    __m512 offset[2][2], zero[2][2];
    bool is_bf16; /* a table of 256 values that bf16 holds */
    struct qni_amx_bytes bytes;
};

static __m512 zeros_at(const struct qni_matmul_tile *t, int64_t at)
{
    __m512i v;
    if (t->zero_is_i8)
        v = _mm512_cvtepi8_epi32(
            _mm_loadu_si128((const __m128i *)(const void *)((const int8_t *)t->zero + 16 * at)));
    else
        v = _mm512_loadu_si512((const int32_t *)t->zero + 16 * at);
    return _mm512_cvtepi32_ps(v);
}

static void load_group(struct feed *f, const int half, int64_t group)
{
    const struct qni_matmul_tile *t = f->t;
    for (int i = 0; i < 2; i++) {
        const int64_t at = f->panel[i] * t->n_groups + group;
        f->scale[half][i] = qni_load16(t->scale, at, t->scale_is_f16);
        f->offset[half][i] = f->zero[half][i] = _mm512_setzero_ps();
        if (t->zero != NULL)
            f->zero[half][i] = zeros_at(t, at);
        else if (t->offset != NULL)
            f->offset[half][i] = qni_load16(t->offset, at, t->scale_is_f16);
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

/* A row of a tile: a in the lower half of each lane. */
QNI_TEMPLATE void store_row(__m512 a, __m512 b, uint8_t *out)
{
    const __m512i in_turn =
        _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22, 6,
                         21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    const __m512i both = (__m512i)_mm512_cvtne2ps_pbh(b, a);
    _mm512_store_si512(out, _mm512_permutexvar_epi16(in_turn, both));
}

/* Index of vpshufb: byte b of each lane, wherever a mask says. */
QNI_TEMPLATE __m512i to_byte(const int b)
{
    const __m128i lanes = _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    return _mm512_add_epi8(_mm512_set1_epi8((char)b), _mm512_broadcast_i32x4(lanes));
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
        const __m512i lower = qni_amx_look_up(f->bytes.lower, v);
        const __m512i upper = qni_amx_look_up(f->bytes.upper, v);
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

/* Four positions of 16 outputs: two rows. x has positions 0 2, 1 3 in pairs. -zero * scale may have
 * more digits than f32, so zeros are taken away first. */
QNI_TEMPLATE void two_rows(const struct feed *f, __m512i v, int half, int i, uint8_t *out,
                           const int kind)
{
    const __m512 scale = f->scale[half][i], offset = f->offset[half][i], zero = f->zero[half][i];
    const bool has_zero = f->t->zero != NULL;
    __m512 w[4];
    values_of(f, v, kind, w);
    if (has_zero) {
        QNI_UNROLL
        for (int b = 0; b < 4; b++)
            w[b] = _mm512_mul_ps(scale, _mm512_sub_ps(w[b], zero));
    } else {
        QNI_UNROLL
        for (int b = 0; b < 4; b++)
            w[b] = _mm512_fmadd_ps(scale, w[b], offset);
    }
    store_row(w[0], w[2], out);
    store_row(w[1], w[3], out + LINE);
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
    uint32_t all = 0;
    for (int i = 0; i < 256; i++) {
        uint32_t bits;
        memcpy(&bits, f->t->table + i, sizeof bits);
        all |= bits;
    }
    qni_amx_bytes_of(f->t->table, &f->bytes);
    f->is_bf16 = (all & 0xffff) == 0;
}

/* ---- the order of work ----------------------------------------------------------------------- */

struct job {
    const struct qni_matmul_tile *t;
    struct scratch *s;
    struct feed feed;
    int64_t units;         /* of A and B */
    int64_t span, n_spans; /* of units */
    int64_t pairs, most;   /* of panels: all, and of a pass */
    int64_t n_stages;
    int64_t n_blocks;
    int64_t tile_rows; /* that tiles are configured for */
    bool is_loaded;    /* what the next step reads */
    bool keeps;        /* one block: sums stay in the tiles from span to span */
    int64_t rate[2];   /* quarters after the first and the second two products of a unit */
    int64_t lines;     /* of rows to come, asked for with a unit */
};

/* A span and a pair. */
struct stage {
    int64_t panel, unit, units;
    int64_t pair, pairs; /* of the pass */
    const uint8_t *b;
    bool second; /* panel */
};

/* The i-th, or the last. */
static struct stage stage_of(const struct job *j, int64_t i)
{
    i = at_most(i, j->n_stages - 1);
    const int64_t full = j->most * j->n_spans, pass = i / full, in_pass = i % full;
    struct stage s;
    s.pairs = at_most(j->most, j->pairs - pass * j->most);
    s.pair = in_pass % s.pairs;
    s.panel = 2 * (pass * j->most + s.pair);
    s.unit = in_pass / s.pairs * j->span;
    s.units = at_most(j->span, j->units - s.unit);
    s.second = s.panel + 1 < j->t->n_panels;
    s.b = j->s->b[i % 2];
    return s;
}

static const uint8_t *codes_at(const struct job *j, const struct stage *s)
{
    return j->t->codes + (size_t)s->panel * j->t->codes_stride +
           (size_t)(s->unit * j->feed.unit_bytes);
}

/* Make B of the i-th stage from now on. */
static void begin_feed(struct job *j, int64_t i, const struct stage *s, const struct stage *after)
{
    struct feed *const f = &j->feed;
    if (i >= j->n_stages)
        return;
    f->codes[0] = codes_at(j, s);
    f->codes[1] = f->codes[0] + (s->second ? j->t->codes_stride : 0);
    f->ahead = codes_at(j, after) - f->codes[0];
    f->panel[0] = s->panel;
    f->panel[1] = s->panel + s->second;
    f->unit = s->unit;
    f->left = QUARTERS * s->units;
    f->turn = 0;
    f->group = -1;
    f->out = j->s->b[i % 2];
}

/* ---- products -------------------------------------------------------------------------------- */

/* Where sums or results of a block are. */
struct sink {
    char *at;
    size_t ld;
};

QNI_TEMPLATE void load_operands(const char *a, const uint8_t *b, const int halves)
{
    _tile_stream_loadd(4, a, LINE);
    if (halves == 2)
        _tile_stream_loadd(5, a + HALF * LINE, LINE);
    _tile_loadd(6, b, LINE);
    _tile_loadd(7, b + TILE, LINE);
}

/* A unit, whose tiles are loaded; those of the next one are loaded, from a and b. */
QNI_VARIANTS void step(struct job *j, const char *a, const uint8_t *b, const int halves,
                       const int kind)
{
    _tile_dpbf16ps(0, 4, 6);
    if (halves == 1)
        _tile_loadd(6, b, LINE);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(4, a, LINE);
    make_some(&j->feed, j->rate[0], kind);
    if (halves == 2)
        _tile_dpbf16ps(3, 5, 7);
    _tile_loadd(7, b + TILE, LINE);
    if (halves == 2) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_stream_loadd(5, a + HALF * LINE, LINE);
        _tile_loadd(6, b, LINE);
    }
    make_some(&j->feed, j->rate[1], kind);
}

/* Rows of the next span come from the third cache, a part of them while each pair is multiplied;
 * after the last span come those of the first. */
QNI_TEMPLATE const char *rows_ahead(const struct job *j, const struct stage *s, const char *a,
                                    int64_t row, size_t step_bytes)
{
    const int64_t next = s->unit + s->units;
    const char *const first = (const char *)j->t->a + (size_t)row * j->t->lda;
    const char *const span = next < j->units ? a + (size_t)s->units * step_bytes : first;
    return span + (size_t)(s->pair * s->units * j->lines) * LINE;
}

/* Rows of a block and a stage. */
struct place {
    const struct stage *s;
    int64_t row, rows;
};

static const char *a_of(const struct job *j, const struct place *p)
{
    return (const char *)j->t->a + (size_t)p->row * j->t->lda +
           (size_t)(p->s->unit * p->rows) * LINE;
}

static struct sink sums_of(const struct job *j, const struct place *p)
{
    const int64_t at = p->s->pair * j->n_blocks + p->row / ROWS;
    return (struct sink){(char *)j->s->sums[at], 4 * (size_t)WIDTH};
}

static struct sink results_of(const struct job *j, const struct place *p)
{
    float *const c = j->t->c + (size_t)p->row * j->t->ldc + p->s->panel * QNI_PANEL;
    return (struct sink){(char *)c, 4 * j->t->ldc};
}

static bool ends(const struct job *j, const struct stage *s)
{
    return s->unit + s->units == j->units;
}

/* Past the first cache: that is B's. */
QNI_TEMPLATE void load_sums(const struct sink *s, const int halves)
{
    _tile_stream_loadd(0, s->at, s->ld);
    _tile_stream_loadd(1, s->at + LINE, s->ld);
    if (halves == 2) {
        _tile_stream_loadd(3, s->at + HALF * s->ld + LINE, s->ld);
        _tile_stream_loadd(2, s->at + HALF * s->ld, s->ld);
    }
}

QNI_TEMPLATE void store_sums(const struct sink *s, bool second, const int halves)
{
    _tile_stored(0, s->at, s->ld);
    if (second)
        _tile_stored(1, s->at + LINE, s->ld);
    if (halves == 2) {
        if (second)
            _tile_stored(3, s->at + HALF * s->ld + LINE, s->ld);
        _tile_stored(2, s->at + HALF * s->ld, s->ld);
    }
}

/* Lines of two rows of results. */
QNI_TEMPLATE void ask_for(struct sink *s)
{
    for (int i = 0; i < 2; i++, s->at += s->ld) {
        QNI_WILL_WRITE(s->at);
        QNI_WILL_WRITE(s->at + LINE);
    }
}

/* The first span begins at zero, the last one goes to c. */
QNI_TEMPLATE void block(struct job *j, const struct place *p, const struct place *next,
                        const int halves, const int kind)
{
    const struct stage *const s = p->s;
    const size_t step_bytes = (size_t)p->rows * LINE;
    const char *a = a_of(j, p);
    const uint8_t *b = s->b;
    /* Of a span of one unit, what comes next may not be made yet. */
    const bool last = ends(j, s), joins = next->rows == p->rows && s->units > 1;
    const struct sink sums = sums_of(j, p), results = results_of(j, p);
    struct sink to = results;
    TILES_SEE_MEMORY();
    if (j->tile_rows != p->rows)
        qni_amx_configure(p->rows, LINE);
    if (!j->is_loaded)
        load_operands(a, b, halves);
    j->tile_rows = p->rows;
    j->is_loaded = joins;
    if (s->unit == 0)
        qni_amx_zero();
    else if (!j->keeps)
        load_sums(&sums, halves);
    const char *ahead = rows_ahead(j, s, a, p->row, step_bytes);
    for (int64_t u = 0; u < s->units; u++) {
        for (int64_t i = 0; i < j->lines; i++, ahead += LINE)
            _mm_prefetch(ahead, _MM_HINT_T1);
        if (last && s->second && 2 * u + 2 <= p->rows)
            ask_for(&to);
        a += step_bytes;
        b += UNIT_BYTES;
        if (u + 1 == s->units) {
            a = joins ? a_of(j, next) : a - step_bytes;
            b = joins ? next->s->b : s->b;
        }
        step(j, a, b, halves, kind);
    }
    TILES_SEE_MEMORY();
    if (last)
        store_sums(&results, s->second, halves);
    else if (!j->keeps)
        store_sums(&sums, true, halves);
    TILES_SEE_MEMORY();
}

QNI_TEMPLATE void blocks(struct job *j, const struct stage *s, const struct stage *after,
                         const int kind)
{
    const int64_t m = j->t->m;
    struct place p = {s, 0, at_most(ROWS, m)};
    for (int64_t row = 0; row < m; row += ROWS) {
        struct place next = {s, row + ROWS, at_most(ROWS, m - row - ROWS)};
        if (next.rows <= 0)
            next = (struct place){after, 0, at_most(ROWS, m)};
        if (p.rows > HALF)
            block(j, &p, &next, 2, kind);
        else
            block(j, &p, &next, 1, kind);
        p = next;
    }
}

QNI_TEMPLATE void run(struct job *j, const int kind)
{
    struct stage s = stage_of(j, 0), after = stage_of(j, 1);
    begin_feed(j, 0, &s, &after);
    make_some(&j->feed, INT64_MAX, kind);
    for (int64_t i = 0; i < j->n_stages; i++) {
        const struct stage then = stage_of(j, i + 2);
        begin_feed(j, i + 1, &after, &then);
        blocks(j, &s, &after, kind);
        make_some(&j->feed, INT64_MAX, kind);
        s = after;
        after = then;
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
                           ? _mm512_loadu_ps(t->table)
                           : _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
    if (kind == BYTE_TABLE)
        halve_table(&j.feed);
    j.feed.second = TILE / 4; /* of bytes */
    j.feed.unit_bytes = (kind == NIBBLES ? 256 : 512) << t->halves;
    j.units = (t->units + t->halves) >> t->halves;
    j.n_blocks = (t->m + ROWS - 1) / ROWS;
    j.keeps = j.n_blocks == 1;
    j.span = j.keeps ? FEW : SPAN;
    j.n_spans = (j.units + j.span - 1) / j.span;
    const int64_t rate = (QUARTERS + j.n_blocks - 1) / j.n_blocks;
    j.rate[0] = (rate + 1) / 2;
    j.rate[1] = rate / 2;
    j.pairs = (t->n_panels + 1) / 2;
    j.most = j.keeps ? 1 : at_most(SUMS / j.n_blocks, j.pairs);
    j.n_stages = j.pairs * j.n_spans;
    j.lines = j.keeps ? 0 : (ROWS + j.most - 1) / j.most;
    run(&j, kind);
    _tile_release();
}

/* Integers and codebooks of 16 differ in their table alone. */
void qni_matmul_bf16_q4n16_mr64_dense_amx(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES);
}
void qni_matmul_bf16_t4n16_mr64_dense_amx(const struct qni_matmul_tile *t)
{
    qni_matmul_bf16_q4n16_mr64_dense_amx(t);
}
void qni_matmul_bf16_q8n16_mr64_dense_amx(const struct qni_matmul_tile *t)
{
    tile(t, BYTES);
}
void qni_matmul_bf16_t8n16_mr64_dense_amx(const struct qni_matmul_tile *t)
{
    tile(t, BYTE_TABLE);
}
