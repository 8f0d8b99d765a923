/* SPDX-License-Identifier: Apache-2.0 */
/* bf16 x weights rounded to bf16, on AMX tiles: a dense product whose weights are made on the way.
 * Contract and operand layouts: kernel.h.
 *
 *     w' = bf16(fl(scale * value + offset)),  or  bf16(fl(scale * (value - zero)))
 *
 * to nearest even, as docs/numerics.md has it of the dense strategy: each weight is the number that
 * qn_weight_dequantize() gives, rounded once more. The rest is a product of one plane each,
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
#if defined(__GNUC__) && !defined(__clang__)
/* Counters that advance side by side would be kept in vectors, between the tiles' instructions. */
#pragma GCC optimize("no-tree-slp-vectorize")
#endif

#include <immintrin.h>

#include "../simd/amx_float.h"
#include "../simd/amx_weights.h"
#include "kernel.h"

/* ---- a chunk --------------------------------------------------------------------------------- */

/* Blocks of 32 rows of bf16 meet weights that are made on the way, a chunk of k and two panels at a
 * time.
 *
 * Tiles 0 to 3 are sums as [row half][panel], 4 and 5 the halves of A, 6 and 7 the panels of B. A
 * quad is the four products of 32 positions, and each tile that it reads was loaded right after the
 * last product of the quad before that read it. Sums of a block stay in the tiles for a chunk; they
 * are stored, and those of the next block loaded, between the first products of that.
 *
 * All else is done a little beside every quad, inline: weights of the next chunk are made, 128 of
 * them at a time, rows of the chunk of k after this one are asked for, and finished sums leave. */
enum {
    LEFT_TO_CALLS = 4, /* a kind of codes: weights are made by qni_amx_made.call */
    FACTS = 4 * 16     /* floats of a group and a panel: scale, and offset or zero, twice */
};

/* Weights of a chunk that are still codes: all lines of 64 bytes of the first panel, then of the
 * second. */
struct made_weights {
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
static inline void store_twice(float *to, __m512 v)
{
    const __m512i first = _mm512_setr_epi32(0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5, 6, 6, 7, 7);
    const __m512i last = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    _mm512_store_ps(to, _mm512_permutexvar_ps(first, v));
    _mm512_store_ps(to + 16, _mm512_permutexvar_ps(last, v));
}

/* Places of bytes 0 and 2, or 1 and 3, of the first or the last eight outputs of a line, in the
 * order of a tile's row. */
QNI_TEMPLATE __m512i made_row_bytes(const int row, const int half)
{
    const __m512i first =
        _mm512_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30);
    return _mm512_add_epi32(first, _mm512_set1_epi32(row + 32 * half));
}

/* Half of a line: a row of low nibbles, and one of high ones. */
QNI_TEMPLATE void make_half(const struct made_weights *f, const int row, const int kind)
{
    const __m512i line = _mm512_loadu_si512(f->codes);
    uint8_t *const out = f->out + QNI_AMX_LINE * row;
    __m512 w[2][2]; /* nibbles, outputs */
    QNI_UNROLL
    for (int k = 0; k < 2; k++) {
        const __m512 scale = _mm512_load_ps(f->facts + 16 * k);
        const __m512 shift = _mm512_load_ps(f->facts + 32 + 16 * k);
        const __m512i at = _mm512_permutexvar_epi8(made_row_bytes(row, k), line);
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

QNI_TEMPLATE void past_line(struct made_weights *f)
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
        f->facts += FACTS;
    }
    if (f->of_panel == 0) {
        f->of_panel = f->panel_lines;
        f->of_group = f->first_lines;
        f->codes += f->second;
        f->out += f->out_second;
        f->facts = f->facts_second;
    }
}

QNI_TEMPLATE void make_line(struct made_weights *f, const int kind)
{
    if (kind == LEFT_TO_CALLS) {
        f->left--;
        f->call(f->feed);
        return;
    }
    make_half(f, 0, kind);
    make_half(f, 1, kind);
    past_line(f);
}

/* The next quad's operands, and sums: of the block before, and of this one. */
struct dense_walk {
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

QNI_TEMPLATE void multiply_quad(struct dense_walk *w, struct made_weights *f,
                                struct qni_amx_way_out *o, const bool begins, const int kind)
{
    f->due += f->rate;
    int64_t n = f->due >> 16;
    f->due &= 65535;
    n = n < f->left ? n : f->left;
    if (begins)
        QNI_AMX_TURN_OVER(0, 0);
    _tile_dpbf16ps(0, 4, 6);
    if (n > 0 && kind != LEFT_TO_CALLS)
        make_half(f, 0, kind);
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
    if (n > 0 && kind != LEFT_TO_CALLS) {
        make_half(f, 1, kind);
        past_line(f);
        n--;
    }
    for (; n > 0; n--)
        make_line(f, kind);
    QNI_AMX_TILES_SEE_MEMORY();
    if (begins)
        QNI_AMX_TURN_OVER(2, 16 * QNI_AMX_BF16_WIDTH);
    _tile_dpbf16ps(2, 5, 6);
    _tile_stream_loadd(5, w->a + QNI_AMX_BF16_TILE, 64);
    _tile_loadd(6, w->b, 64);
}

/* A chunk of `units` quads; after it come next_a and next_b. */
QNI_TEMPLATE void multiply_block(struct dense_walk *w, struct made_weights *f,
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
            multiply_quad(w, f, o, true, kind);
        else
            multiply_quad(w, f, o, false, kind);
    }
}

/* ---- a product ------------------------------------------------------------------------------- */

enum {
    HALF = 16,            /* rows of a tile */
    ROWS = QNI_BF16_ROWS, /* of a block */
    LINE = 64,
    QUARTER = 4,           /* lines of a panel and a unit */
    TILE = 1024,           /* bytes */
    UNIT_BYTES = 2 * TILE, /* of B: two panels */
    SPAN = 16,             /* units at most, */
    FEW = 4,               /* or of one block of rows */
    SUMS = 128,            /* blocks of rows times pairs, at most */
    MANY = 4,              /* blocks */
    SCRATCH = 2 * SPAN * UNIT_BYTES + (SUMS + 1) * 4096 + SPAN * (512 + 2048),
    WIDTH = 32, /* outputs of a pair */
};

struct dense_scratch {
    uint8_t b[2 * SPAN * UNIT_BYTES]; /* of two places, one after the other */
    float sums[SUMS][ROWS][WIDTH];
    float nowhere[ROWS][WIDTH];
    float facts[2][SPAN][FACTS];
    uint8_t tail[SPAN][QNI_AMX_BF16_BLOCK]; /* rows of A of a block that is not full */
};
_Static_assert(sizeof(struct dense_scratch) == SCRATCH, "kernels.inc says so");
_Static_assert(2 * FEW * UNIT_BYTES == 16384, "kernels.inc says so of one block of rows");

#define TILES_SEE_MEMORY() QNI_AMX_TILES_SEE_MEMORY()

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- the order of work ----------------------------------------------------------------------- */

struct job {
    const struct qni_matmul_tile *t;
    struct dense_scratch *s;
    struct qni_amx_feed feed;
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

/* B of the i-th stage. The two lie one behind the other, so that short spans need no more memory
 * than kernels.inc says of few rows. */
static uint8_t *b_of(const struct job *j, int64_t i)
{
    return j->s->b + (size_t)(i % 2 * j->span * UNIT_BYTES);
}

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
    s.b = b_of(j, i);
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
    struct qni_amx_feed *const f = &j->feed;
    if (i >= j->n_stages)
        return;
    f->codes[0] = codes_at(j, s);
    f->codes[1] = f->codes[0] + (s->second ? j->t->codes_stride : 0);
    f->ahead = codes_at(j, after) - f->codes[0];
    f->panel[0] = s->panel;
    f->panel[1] = s->panel + s->second;
    f->unit = s->unit;
    f->left = QNI_AMX_QUARTERS * s->units;
    f->turn = 0;
    f->group = -1;
    f->out = b_of(j, i);
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
    qni_amx_make_some(&j->feed, j->rate[0], 1, kind);
    if (halves == 2)
        _tile_dpbf16ps(3, 5, 7);
    _tile_loadd(7, b + TILE, LINE);
    if (halves == 2) {
        _tile_dpbf16ps(2, 5, 6);
        _tile_stream_loadd(5, a + HALF * LINE, LINE);
        _tile_loadd(6, b, LINE);
    }
    qni_amx_make_some(&j->feed, j->rate[1], 1, kind);
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
struct codes_place {
    const struct stage *s;
    int64_t row, rows;
};

static const char *a_of(const struct job *j, const struct codes_place *p)
{
    return (const char *)j->t->a + (size_t)p->row * j->t->lda +
           (size_t)(p->s->unit * p->rows) * LINE;
}

static struct sink sums_of(const struct job *j, const struct codes_place *p)
{
    const int64_t at = p->s->pair * j->n_blocks + p->row / ROWS;
    return (struct sink){(char *)j->s->sums[at], 4 * (size_t)WIDTH};
}

static struct sink results_of(const struct job *j, const struct codes_place *p)
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
QNI_TEMPLATE void block(struct job *j, const struct codes_place *p, const struct codes_place *next,
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
    struct codes_place p = {s, 0, at_most(ROWS, m)};
    for (int64_t row = 0; row < m; row += ROWS) {
        struct codes_place next = {s, row + ROWS, at_most(ROWS, m - row - ROWS)};
        if (next.rows <= 0)
            next = (struct codes_place){after, 0, at_most(ROWS, m)};
        if (p.rows > HALF)
            block(j, &p, &next, 2, kind);
        else
            block(j, &p, &next, 1, kind);
        p = next;
    }
}

QNI_TEMPLATE void multiply_job(struct job *j, const int kind)
{
    struct stage s = stage_of(j, 0), after = stage_of(j, 1);
    begin_feed(j, 0, &s, &after);
    qni_amx_make_some(&j->feed, INT64_MAX, 1, kind);
    for (int64_t i = 0; i < j->n_stages; i++) {
        const struct stage then = stage_of(j, i + 2);
        begin_feed(j, i + 1, &after, &then);
        blocks(j, &s, &after, kind);
        qni_amx_make_some(&j->feed, INT64_MAX, 1, kind);
        s = after;
        after = then;
    }
}

/* ---- many blocks of rows --------------------------------------------------------------------- */

/* Make B of the i-th stage from now on, beside so many quads; the last one loads some of it. */
static void begin_made(struct job *j, int64_t i, const struct stage *s, struct made_weights *f,
                       int64_t quads)
{
    const struct qni_matmul_tile *const t = j->t;
    struct qni_amx_feed *const feed = &j->feed;
    if (i >= j->n_stages)
        return;
    begin_feed(j, i, s, s);
    f->left = 2 * QUARTER * s->units;
    f->rate = ((f->left << 16) + quads - 2) / (quads - 1);
    f->due = 0;
    if (t->halves)
        return;
    const int64_t first = s->unit / t->group_units;
    const int64_t last = (s->unit + s->units - 1) / t->group_units;
    for (int64_t g = first; g <= last; g++) {
        qni_amx_load_group(feed, 0, g, 1);
        for (int k = 0; k < 2; k++) {
            float *const facts = j->s->facts[k][g - first];
            const __m512 shift = t->zero != NULL ? feed->zero[0][k] : feed->offset[0][k];
            store_twice(facts, feed->scale[0][k]);
            store_twice(facts + 32, shift);
        }
    }
    f->codes = feed->codes[0];
    f->second = feed->codes[1] - feed->codes[0] - s->units * feed->unit_bytes;
    f->facts = j->s->facts[0][0];
    f->facts_second = j->s->facts[1][0];
    f->out = feed->out;
    f->out_second = TILE - s->units * UNIT_BYTES;
    f->of_panel = f->panel_lines = QUARTER * s->units;
    f->of_group = f->first_lines = QUARTER * ((first + 1) * t->group_units - s->unit);
    f->group_lines = QUARTER * t->group_units;
}

/* Rows of a block, or a copy of them if they are few. */
static const char *a_of_block(const struct job *j, const struct stage *s, int64_t block)
{
    const struct qni_matmul_tile *const t = j->t;
    if (block == t->m / ROWS)
        return (const char *)j->s->tail[0];
    return (const char *)t->a + (size_t)(block * ROWS) * t->lda +
           (size_t)s->unit * QNI_AMX_BF16_BLOCK;
}

static void copy_tail(const struct job *j, const struct stage *s)
{
    const size_t row = (size_t)(j->t->m / ROWS * ROWS);
    const size_t bytes = ((size_t)j->t->m - row) * LINE;
    const char *const a = (const char *)j->t->a + row * j->t->lda;
    for (int64_t u = 0; u < s->units && bytes > 0; u++)
        memcpy(j->s->tail[u], a + (size_t)(s->unit + u) * bytes, bytes);
    TILES_SEE_MEMORY();
}

/* Sums of a stage leave, the last of which are still in the tiles. */
static void begin_way_out(const struct job *j, const struct stage *s, struct qni_amx_way_out *o)
{
    o->part = j->s->sums[s->pair * j->n_blocks][0];
    o->c = j->t->c + s->panel * QNI_PANEL;
    o->second = s->second ? QNI_PANEL : 0;
    o->left = j->t->m;
}

QNI_TEMPLATE void all_blocks(struct job *j, const struct stage *s, const struct stage *after,
                             struct dense_walk *w, struct made_weights *f,
                             struct qni_amx_way_out *o, const int kind)
{
    float *sums = j->s->sums[s->pair * j->n_blocks][0];
    for (int64_t i = 0; i < j->n_blocks; i++, sums += ROWS * WIDTH) {
        const bool last = i + 1 == j->n_blocks;
        const char *const a = (const char *)j->t->a + (size_t)(i * ROWS) * j->t->lda +
                              (size_t)s->unit * QNI_AMX_BF16_BLOCK;
        w->from = s->unit == 0 ? NULL : sums;
        w->ahead = rows_ahead(j, s, a, i * ROWS, QNI_AMX_BF16_BLOCK);
        multiply_block(w, f, o, s->units, a_of_block(j, last ? after : s, last ? 0 : i + 1),
                       last ? after->b : s->b, kind);
        w->to = sums;
    }
}

QNI_TEMPLATE void run_many(struct job *j, const struct made_weights *made, const int kind)
{
    const struct qni_matmul_tile *const t = j->t;
    struct stage s = stage_of(j, 0), after = stage_of(j, 1);
    struct made_weights f = *made;
    struct qni_amx_way_out o = {.ldc = t->ldc, .streams = t->c_is_far != 0};
    struct dense_walk w = {.to = j->s->nowhere[0], .lines = j->lines};
    memset(j->s->tail, 0, sizeof j->s->tail);
    begin_made(j, 0, &s, &f, 2);
    while (f.left > 0)
        make_line(&f, kind);
    qni_amx_configure(ROWS, LINE);
    qni_amx_zero();
    w.a = a_of_block(j, &s, 0);
    w.b = s.b;
    TILES_SEE_MEMORY();
    load_operands(w.a, w.b, 2);
    for (int64_t i = 0; i < j->n_stages; i++) {
        const struct stage then = stage_of(j, i + 2);
        begin_made(j, i + 1, &after, &f, j->n_blocks * s.units);
        w.rows = (ROWS + s.units - 1) / s.units;
        if (s.pair == 0)
            copy_tail(j, &s);
        all_blocks(j, &s, &after, &w, &f, &o, kind);
        while (f.left > 0)
            make_line(&f, kind);
        qni_amx_move_rows(&o, o.left);
        if (ends(j, &s))
            begin_way_out(j, &s, &o);
        s = after;
        after = then;
    }
    qni_amx_leave(w.to);
    qni_amx_move_rows(&o, o.left);
    if (o.odd != 0)
        *t->is_finite = false;
    if (o.streams)
        _mm_sfence();
}

static void call_nibbles(struct qni_amx_feed *f)
{
    qni_amx_make_some(f, 1, 1, QNI_AMX_NIBBLES);
}
static void call_bytes(struct qni_amx_feed *f)
{
    qni_amx_make_some(f, 1, 1, QNI_AMX_BYTES);
}
static void call_byte_table(struct qni_amx_feed *f)
{
    qni_amx_make_some(f, 1, 1, QNI_AMX_BYTE_TABLE);
}

/* One for all of these kinds of codes. */
QNI_NOINLINE static void run_with_calls(struct job *j, const struct made_weights *made)
{
    run_many(j, made, LEFT_TO_CALLS);
}

QNI_TEMPLATE void many(struct job *j, const int kind)
{
    struct made_weights f;
    memset(&f, 0, sizeof f);
    f.table = j->feed.table;
    f.feed = &j->feed;
    f.call = kind == QNI_AMX_NIBBLES ? call_nibbles
             : kind == QNI_AMX_BYTES ? call_bytes
                                     : call_byte_table;
    if (kind == QNI_AMX_NIBBLES && !j->t->halves && j->t->zero != NULL)
        run_many(j, &f, QNI_AMX_SHIFTED);
    else if (kind == QNI_AMX_NIBBLES && !j->t->halves)
        run_many(j, &f, QNI_AMX_NIBBLES);
    else
        run_with_calls(j, &f);
}

/* ---- any rows -------------------------------------------------------------------------------- */

static void find_nonfinite(const struct qni_matmul_tile *t)
{
    __mmask16 odd = 0;
    for (int64_t i = 0; i < t->m; i++)
        for (int64_t p = 0; p < t->n_panels; p++)
            odd |= qni_amx_no_numbers(_mm512_loadu_ps(t->c + (size_t)i * t->ldc + p * QNI_PANEL));
    if (odd != 0)
        *t->is_finite = false;
}

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind)
{
    struct job j;
    memset(&j, 0, sizeof j);
    j.t = t;
    j.s = t->scratch;
    qni_amx_feed_begin(&j.feed, t, kind);
    j.units = (t->units + t->halves) >> t->halves;
    j.n_blocks = (t->m + ROWS - 1) / ROWS;
    j.keeps = j.n_blocks == 1;
    j.span = j.keeps ? FEW : SPAN;
    j.n_spans = (j.units + j.span - 1) / j.span;
    const int64_t rate = (QNI_AMX_QUARTERS + j.n_blocks - 1) / j.n_blocks;
    j.rate[0] = (rate + 1) / 2;
    j.rate[1] = rate / 2;
    j.pairs = (t->n_panels + 1) / 2;
    j.most = j.keeps ? 1 : at_most(SUMS / j.n_blocks, j.pairs);
    j.n_stages = j.pairs * j.n_spans;
    j.lines = j.keeps ? 0 : (ROWS + j.most - 1) / j.most;
    if (j.n_blocks >= MANY) {
        many(&j, kind);
    } else {
        multiply_job(&j, kind);
        find_nonfinite(t);
    }
    _tile_release();
}

/* Integers and codebooks of 16 differ in their table alone. */
void qni_matmul_bf16_q4n16_mr64_dense_amx(const struct qni_matmul_tile *t)
{
    tile(t, QNI_AMX_NIBBLES);
}
void qni_matmul_bf16_t4n16_mr64_dense_amx(const struct qni_matmul_tile *t)
{
    qni_matmul_bf16_q4n16_mr64_dense_amx(t);
}
void qni_matmul_bf16_q8n16_mr64_dense_amx(const struct qni_matmul_tile *t)
{
    tile(t, QNI_AMX_BYTES);
}
void qni_matmul_bf16_t8n16_mr64_dense_amx(const struct qni_matmul_tile *t)
{
    tile(t, QNI_AMX_BYTE_TABLE);
}
