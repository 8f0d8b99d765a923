/* SPDX-License-Identifier: Apache-2.0 */
/* Planes of bf16 x 4- and 8-bit weights on AMX tiles. Contract and operand layouts: kernel.h.
 *
 * A code of at most 8 bits is exact in bf16, and so is every product of two bf16 in f32.
 * Activations come as planes that add up to x, in long sums of f32 within 2^-17 |x|: one for bf16,
 * two for f16, two or three for f32. So
 *
 *     sum over p of x[p] * code[p]  =  sum over planes of sum over p of plane[p] * code[p]
 *
 * loses nothing else but the f32 accumulation, as a loop of multiply-adds does. The scale of a
 * group enters once a group. The tiles take subnormal inputs for zero: an absolute error below
 * 2^-126 a term.
 *
 * A unit of a panel is one B tile: 16 rows of 2 positions x 16 outputs. A block of up to 32 rows
 * meets two panels at a time:
 *
 *     up to 16 rows, planes counted   planes are rows of one tile, and their sums are added before
 *                                     they are scaled: a product takes 16 cycles for its B, however
 *                                     few rows A has, so three planes of five rows cost what one
 *                                     costs
 *     more                            planes of a row go to the same sums, product after product
 *     two or more blocks of 32        codes are unpacked once for all blocks: 8 units, which stay
 *                                     in the first cache while A of the blocks comes from the
 *                                     second one (simd/amx_bf16.h). The last block leaves each tile
 *                                     to the codes that come next. Offsets are products, too.
 *
 * Otherwise codes are unpacked for every block of rows, into a ring of units that stays in the
 * first cache: the slot whose tile has just been loaded takes the unit that is RING further on.
 * vpermw looks at the lower five bits of each word, a nibble and one bit that a doubled table has
 * no regard for. A word makes one position, which is why x comes with positions 1 and 2 of every
 * four exchanged.
 *
 * Lines that enter the first cache are what tiles wait for (0.5 ns each), so for one block k is cut
 * in spans in which the rows of A, which lie together, can stay there; all panels pass by a span.
 * Sums leave the tiles at the end of a segment, a group or what a span has of it, and are scaled
 * and added while the next one is multiplied (of many blocks: the one after it), a few rows with
 * each unit.
 *
 * Bound: 2 m n k planes / (2 * 16 * 16 * 32 operations every 16 cycles); for few rows the bytes of
 * the codes / bandwidth. */
#if defined(__GNUC__) && !defined(__clang__)
/* Pointers that advance side by side would be kept in vectors, between the tiles' instructions:
 * 10 to 20 % slower. */
#pragma GCC optimize("no-tree-slp-vectorize")
#endif

#include <immintrin.h>

#include "../../base/compiler.h"
#include "../simd/amx_bf16.h"
#include "../simd/avx512.h"
#include "../simd/bf16.h"
#include "kernel.h"

enum { NIBBLES = QNI_AMX_NIBBLES, BYTES = QNI_AMX_BYTES };
enum {
    HALF = 16,               /* rows of a tile */
    ROWS = QNI_BF16_ROWS,    /* of a block */
    TILE = 1024,             /* bytes of B */
    SLOT = 2 * TILE,         /* a unit of two panels */
    RING = 4,                /* units */
    WIDTH = 32,              /* outputs of two panels */
    PAIRS = 32,              /* of panels that pass by a span */
    SPAN = 128,              /* units of a span at most, */
    SPAN_BYTES = 16 * 1024,  /* of A, */
    GROUP_BYTES = 24 * 1024, /* or a whole group that takes no more */
    LINE = 64
};

struct scratch {
    uint8_t b[RING][2][TILE];
    float sums[ROWS][WIDTH];        /* of a segment, as tiles leave them */
    float facts[2 * SPAN][ROWS];    /* of the groups of two spans: sums of x */
    float part[PAIRS][ROWS][WIDTH]; /* of the results, while spans pass by */
};
_Static_assert(sizeof(struct scratch) == 176128, "kernels.inc says so");

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- codes to tiles -------------------------------------------------------------------------- */

/* ---- the order of work ----------------------------------------------------------------------- */

/* A block of rows and some panels. */
struct job {
    const struct qni_matmul_tile *t;
    struct scratch *s;
    struct qni_amx_table table;
    const char *a;                  /* of the block */
    size_t a_unit;                  /* bytes */
    int64_t row, m;                 /* rows of x */
    int64_t first_panel, end_panel; /* of t */
    int64_t unit_bytes;             /* of codes */
    int32_t tile_planes;            /* that go to the same sums, */
    int32_t sum_planes;             /* or whose sums are added */
    int64_t most;                   /* units of a segment */
    int64_t span;                   /* units that all panels pass by */
};

/* Codes on their way to tiles: units of a span change fastest, then pairs of panels, then spans. */
struct feed {
    const uint8_t *codes;
    size_t second;       /* from the first panel to the second */
    ptrdiff_t ahead;     /* to the same unit of the next pair */
    int64_t left;        /* units of this pair */
    int64_t panel, unit; /* where it began */
};

static const uint8_t *codes_at(const struct job *j, int64_t panel, int64_t unit)
{
    return j->t->codes + (size_t)panel * j->t->codes_stride + (size_t)(unit * j->unit_bytes);
}

/* After the last span comes the last pair again. */
static void move_on(const struct job *j, int64_t *panel, int64_t *unit)
{
    if (*panel + 2 < j->end_panel) {
        *panel += 2;
    } else if (*unit + j->span < j->t->units) {
        *panel = j->first_panel;
        *unit += j->span;
    }
}

static void next_pair(const struct job *j, struct feed *f)
{
    move_on(j, &f->panel, &f->unit);
    int64_t panel = f->panel, unit = f->unit;
    move_on(j, &panel, &unit);
    f->codes = codes_at(j, f->panel, f->unit);
    f->second = f->panel + 1 < j->end_panel ? j->t->codes_stride : 0;
    f->ahead = codes_at(j, panel, unit) - f->codes;
    f->left = at_most(j->span, j->t->units - f->unit);
}

/* Units [unit, unit + n) of a pair of panels. */
struct segment {
    int64_t panel, group, unit, n;
    bool begins_group;
};

/* The segment after s: of the same panels, or of the next pair, or of the next span. */
static bool next_segment(const struct job *j, struct segment *s)
{
    const struct qni_matmul_tile *t = j->t;
    const int64_t first = s->unit / j->span * j->span;
    int64_t unit = s->unit + s->n;
    if (unit >= at_most(first + j->span, t->units)) {
        s->panel += 2;
        if (s->panel < j->end_panel)
            unit = first;
        else
            s->panel = j->first_panel;
    }
    if (unit >= t->units)
        return false;
    s->unit = unit;
    s->group = unit / t->group_units;
    const int64_t group = s->group * t->group_units;
    const int64_t end = at_most(unit / j->span * j->span + j->span, t->units);
    s->begins_group = unit == group;
    s->n = at_most(at_most(j->most, group + t->group_units - unit), end - unit);
    return true;
}

/* ---- sums to results ------------------------------------------------------------------------- */

/* The sums of a segment that are still to be added. */
struct adding {
    const float *sum, *fact;
    float *part;
    int64_t left;  /* rows */
    size_t planes; /* sums of a row, and how far it is from one to the next */
    size_t plane;
    __m512 scale[2], offset[2];
};

QNI_TEMPLATE void add_rows(struct adding *d, int64_t n, const bool offsets)
{
    const __m512 scale0 = d->scale[0], scale1 = d->scale[1];
    const __m512 offset0 = d->offset[0], offset1 = d->offset[1];
    const float *sum = d->sum, *fact = d->fact;
    float *part = d->part;
    for (int64_t i = 0; i < n; i++, sum += WIDTH, part += WIDTH, fact++) {
        __m512 s0 = _mm512_load_ps(sum), s1 = _mm512_load_ps(sum + 16);
        for (size_t p = 1; p < d->planes; p++) {
            s0 = _mm512_add_ps(s0, _mm512_load_ps(sum + p * d->plane));
            s1 = _mm512_add_ps(s1, _mm512_load_ps(sum + p * d->plane + 16));
        }
        __m512 c0 = _mm512_fmadd_ps(scale0, s0, _mm512_load_ps(part));
        __m512 c1 = _mm512_fmadd_ps(scale1, s1, _mm512_load_ps(part + 16));
        if (offsets) {
            const __m512 total = _mm512_set1_ps(*fact);
            c0 = _mm512_fmadd_ps(offset0, total, c0);
            c1 = _mm512_fmadd_ps(offset1, total, c1);
        }
        _mm512_store_ps(part, c0);
        _mm512_store_ps(part + 16, c1);
    }
    d->left -= n;
    d->sum = sum;
    d->fact = fact;
    d->part = part;
}

/* Scales and offsets of the pair, those of the next one asked for. */
QNI_TEMPLATE void begin_adding(const struct job *j, const struct segment *s, const bool offsets,
                               struct adding *d)
{
    const struct qni_matmul_tile *t = j->t;
    const __m512 times = _mm512_set1_ps(t->table8 != NULL && t->table8_doubled ? 0.5f : 1.0f);
    const int64_t second = s->panel + 1 < j->end_panel ? t->n_groups : 0;
    const int64_t at = s->panel * t->n_groups + s->group;
    const int64_t bytes = t->scale_is_f16 ? 32 : 64;
    const int64_t ahead = s->panel + 3 < j->end_panel ? (at + 2 * t->n_groups) * bytes : at * bytes;
    d->scale[0] = _mm512_mul_ps(qni_load16(t->scale, at, t->scale_is_f16), times);
    d->scale[1] = _mm512_mul_ps(qni_load16(t->scale, at + second, t->scale_is_f16), times);
    _mm_prefetch((const char *)t->scale + ahead, _MM_HINT_T1);
    _mm_prefetch((const char *)t->scale + ahead + second * bytes, _MM_HINT_T1);
    if (offsets) {
        d->offset[0] = qni_load16(t->offset, at, t->scale_is_f16);
        d->offset[1] = qni_load16(t->offset, at + second, t->scale_is_f16);
        _mm_prefetch((const char *)t->offset + ahead, _MM_HINT_T1);
        _mm_prefetch((const char *)t->offset + ahead + second * bytes, _MM_HINT_T1);
        if (!s->begins_group) /* a later piece of it, whose offset has been added */
            d->offset[0] = d->offset[1] = _mm512_setzero_ps();
    }
    d->sum = j->s->sums[0];
    d->fact = j->s->facts[s->group % (2 * SPAN)];
    d->part = j->s->part[(s->panel - j->first_panel) / 2][0];
    d->left = j->m;
}

/* Sums of x of the groups of the span at `unit`. */
static void turn_facts(const struct job *j, int64_t unit)
{
    const struct qni_matmul_tile *t = j->t;
    const int64_t end = at_most(unit + j->span, t->units);
    for (int64_t g = unit / t->group_units; g * t->group_units < end; g++)
        for (int64_t i = 0; i < j->m; i++)
            j->s->facts[g % (2 * SPAN)][i] =
                t->a_total[(size_t)(j->row + i) * t->ld_segment + (size_t)g];
}

/* ---- products -------------------------------------------------------------------------------- */

/* Of a unit. */
struct operands {
    const char *a;
    size_t plane;         /* bytes from plane to plane of A */
    uint8_t *b;           /* the slot: both panels */
    const uint8_t *codes; /* what comes there next */
    size_t second;
    ptrdiff_t ahead;
    float *sums; /* where those of the segment before go */
};

QNI_TEMPLATE void refill(const struct operands *o, struct qni_amx_table table, const int panel,
                         const int kind)
{
    const uint8_t *const codes = o->codes + (panel == 0 ? 0 : o->second);
    const int lines = kind == BYTES ? 8 : 4;
    QNI_AMX_TILES_SEE_MEMORY();
    for (int r = 0; r < lines; r++)
        _mm_prefetch((const char *)codes + o->ahead + LINE * r, _MM_HINT_T1);
    qni_amx_unpack_bf16(codes, o->b + panel * TILE, table, kind);
    QNI_AMX_TILES_SEE_MEMORY();
}

/* Sums leave a tile when the first product of the next segment needs it. */
#define TAKE_OVER(tile, half, panel)                                                               \
    do {                                                                                           \
        _tile_stored(tile, o->sums + HALF * WIDTH * (half) + 16 * (panel), WIDTH * 4);             \
        _tile_zero(tile);                                                                          \
    } while (0)

/* A plane after the first, forth or back: a B that stays where it is lets few rows take 10 cycles
 * instead of 16. */
QNI_TEMPLATE void one_plane(const char *a, const bool back, const int halves)
{
    _tile_loadd(4, a, LINE);
    if (back)
        _tile_dpbf16ps(1, 4, 7);
    else
        _tile_dpbf16ps(0, 4, 6);
    if (halves == 2) {
        _tile_loadd(5, a + HALF * LINE, LINE);
        if (back)
            _tile_dpbf16ps(3, 5, 7);
        _tile_dpbf16ps(2, 5, 6);
        if (!back)
            _tile_dpbf16ps(3, 5, 7);
    }
    if (back)
        _tile_dpbf16ps(0, 4, 6);
    else
        _tile_dpbf16ps(1, 4, 7);
}

/* Tiles: 0 to 3 sums as [half][panel], 4 and 5 rows of A, 6 and 7 panels of B. */
QNI_VARIANTS void multiply(const struct operands *o, struct qni_amx_table table, int32_t planes,
                           const bool begins, const int halves, const int kind)
{
    _tile_loadd(4, o->a, LINE);
    _tile_loadd(6, o->b, LINE);
    if (begins)
        TAKE_OVER(0, 0, 0);
    _tile_dpbf16ps(0, 4, 6);
    if (halves == 2) {
        _tile_loadd(5, o->a + HALF * LINE, LINE);
        if (begins)
            TAKE_OVER(2, 1, 0);
        _tile_dpbf16ps(2, 5, 6);
    }
    refill(o, table, 0, kind);
    _tile_loadd(7, o->b + TILE, LINE);
    if (halves == 2) {
        if (begins)
            TAKE_OVER(3, 1, 1);
        _tile_dpbf16ps(3, 5, 7);
    }
    if (begins)
        TAKE_OVER(1, 0, 1);
    _tile_dpbf16ps(1, 4, 7);
    if (planes > 1)
        one_plane(o->a + o->plane, true, halves);
    refill(o, table, 1, kind);
    if (planes > 2)
        one_plane(o->a + 2 * o->plane, false, halves);
}

/* ---- a block of rows ------------------------------------------------------------------------- */

/* Fill the ring. */
QNI_TEMPLATE void begin_feed(const struct job *j, struct feed *f, const int kind)
{
    const struct feed before = {NULL, 0, 0, 0, j->first_panel - 2, 0};
    *f = before;
    next_pair(j, f);
    for (int64_t i = 0; i < RING; i++) {
        qni_amx_unpack_bf16(f->codes, j->s->b[i][0], j->table, kind);
        qni_amx_unpack_bf16(f->codes + f->second, j->s->b[i][1], j->table, kind);
        f->codes += j->unit_bytes;
        if (--f->left == 0)
            next_pair(j, f);
    }
}

QNI_TEMPLATE void all_segments(const struct job *j, const int halves, const bool offsets,
                               const int kind)
{
    const struct qni_amx_table table = j->table;
    const int32_t planes = j->tile_planes;
    struct segment s = {j->first_panel, 0, 0, 0, false}, before = s;
    struct feed f;
    struct adding d;
    begin_feed(j, &f, kind);
    memset(&d, 0, sizeof d);
    d.planes = (size_t)j->sum_planes;
    d.plane = (size_t)j->m * WIDTH;
    int64_t left = f.left;
    bool waits = false; /* sums of the segment before are in the tiles */
    size_t slot = 0;
    struct operands operands, *const o = &operands;
    operands.plane = (size_t)j->m * LINE;
    operands.codes = f.codes;
    operands.second = f.second;
    operands.ahead = f.ahead;
    operands.sums = j->s->sums[0];
    for (; next_segment(j, &s); before = s, waits = true) {
        const int64_t rate = s.n > 1 ? (j->m + s.n - 2) / (s.n - 1) : 0; /* rows with a unit */
        if (offsets && s.panel == j->first_panel && s.unit % j->span == 0)
            turn_facts(j, s.unit);
        operands.a = j->a + (size_t)s.unit * j->a_unit;
        for (int64_t i = 0; i < s.n; i++) {
            operands.b = (uint8_t *)j->s->b + slot;
            if (i == 0) {
                multiply(o, table, planes, true, halves, kind);
                if (waits)
                    begin_adding(j, &before, offsets, &d);
            } else {
                add_rows(&d, at_most(rate, d.left), offsets);
                multiply(o, table, planes, false, halves, kind);
            }
            operands.a += j->a_unit;
            operands.codes += kind == BYTES ? 512 : 256;
            slot = (slot + SLOT) % (RING * SLOT);
            if (--left == 0) {
                next_pair(j, &f);
                operands.codes = f.codes;
                operands.second = f.second;
                operands.ahead = f.ahead;
                left = f.left;
            }
        }
        add_rows(&d, d.left, offsets);
    }
    TAKE_OVER(0, 0, 0);
    TAKE_OVER(1, 0, 1);
    if (halves == 2) {
        TAKE_OVER(2, 1, 0);
        TAKE_OVER(3, 1, 1);
    }
    QNI_AMX_TILES_SEE_MEMORY();
    begin_adding(j, &before, offsets, &d);
    add_rows(&d, d.left, offsets);
}

/* Spans and segments: as many units as leave the block's rows of A in the first cache. */
static void cut_k(struct job *j)
{
    const int64_t group = j->t->group_units, unit = (int64_t)j->a_unit;
    const int64_t fit = at_most(SPAN_BYTES / unit, SPAN);
    if (group <= fit) {
        j->most = group;
        j->span = fit / group * group;
    } else if (group <= SPAN && group * unit <= GROUP_BYTES) {
        j->most = j->span = group;
    } else {
        const int64_t pieces = (group + fit - 1) / fit;
        j->most = j->span = (group + pieces - 1) / pieces;
    }
}

QNI_TEMPLATE void block(struct job *j, const int kind)
{
    const struct qni_matmul_tile *t = j->t;
    const bool planes_are_rows = j->m * t->planes <= HALF;
    const int64_t rows = planes_are_rows ? j->m * t->planes : j->m;
    j->tile_planes = planes_are_rows ? 1 : t->planes;
    j->sum_planes = planes_are_rows ? t->planes : 1;
    cut_k(j);
    qni_amx_configure(rows, LINE);
    memset(j->s->part, 0, (size_t)(j->end_panel - j->first_panel + 1) / 2 * sizeof *j->s->part);
    if (rows > HALF && t->offset != NULL)
        all_segments(j, 2, true, kind);
    else if (rows > HALF)
        all_segments(j, 2, false, kind);
    else if (t->offset != NULL)
        all_segments(j, 1, true, kind);
    else
        all_segments(j, 1, false, kind);
    for (int64_t i = 0; i < j->m; i++) {
        float *c = t->c + (size_t)(j->row + i) * t->ldc + j->first_panel * QNI_PANEL;
        for (int64_t p = 0; p < j->end_panel - j->first_panel; p++, c += QNI_PANEL)
            _mm512_storeu_ps(c, _mm512_load_ps(&j->s->part[p / 2][i][p % 2 * QNI_PANEL]));
    }
}

/* ---- many rows ------------------------------------------------------------------------------- */

enum {
    BLOCKS = 8,                          /* of rows at a time */
    MOST_GROUPS = 128,                   /* of k, */
    LEAST_UNITS = 32,                    /* and units, see split_totals() */
    OFFSET_UNITS = 3 * MOST_GROUPS / 32, /* of B, */
    TOTALS_BYTES = OFFSET_UNITS * QNI_AMX_BF16_BLOCK
};

struct many {
    uint8_t b[QNI_AMX_BF16_UNITS][2][TILE];
    float sums[2][ROWS][WIDTH]; /* of the two segments before the one that is multiplied */
    float part[BLOCKS][ROWS][WIDTH];
    uint16_t totals[BLOCKS][OFFSET_UNITS][ROWS][32];
    uint8_t offsets[OFFSET_UNITS][2][TILE];
};
_Static_assert(sizeof(struct many) == 278528, "kernels.inc says so");

struct pass {
    const struct qni_matmul_tile *t;
    struct many *s;
    struct qni_amx_table table;
    int64_t blocks;       /* of rows */
    int64_t unit_bytes;   /* of codes */
    int64_t most;         /* units of a stretch */
    int64_t offset_units; /* 0: no offsets */
};

/* Units [unit, unit + n) of a pair of panels, or, before the first of them, all units of their
 * offsets: what of B lies in the first cache while all blocks of rows pass by. n = 0: behind the
 * last. */
struct stretch {
    int64_t panel, unit, n;
    bool of_offsets;
};

static struct stretch after(const struct pass *p, struct stretch s)
{
    s.unit += s.n;
    if (s.unit >= (s.of_offsets ? p->offset_units : p->t->units)) {
        s.panel += s.of_offsets ? 0 : 2;
        s.of_offsets = !s.of_offsets && p->offset_units > 0;
        s.unit = 0;
    }
    s.n = s.of_offsets ? p->offset_units : at_most(p->most, p->t->units - s.unit);
    if (s.panel >= p->t->n_panels)
        s.n = 0;
    return s;
}

/* The same, of codes. */
static struct stretch after_of_codes(const struct pass *p, const struct stretch *s)
{
    const struct stretch next = after(p, *s);
    return next.of_offsets ? after(p, next) : next;
}

/* The nearest bf16 as the upper half, or, where that is infinite, the one towards zero. */
QNI_TEMPLATE __m512i near_bf16(__m512 v, __m512 *rest)
{
    const __m512i bits = _mm512_castps_si512(v);
    const __m512i up = _mm512_add_epi32(bits, _mm512_set1_epi32(0x8000));
    const __m512i size = _mm512_and_si512(up, _mm512_set1_epi32(0x7fffffff));
    const __mmask16 fits = _mm512_cmplt_epu32_mask(size, _mm512_set1_epi32(0x7f800000));
    const __m512i half = _mm512_and_si512(_mm512_mask_mov_epi32(bits, fits, up),
                                          _mm512_set1_epi32((int32_t)0xffff0000));
    *rest = _mm512_sub_ps(v, _mm512_castsi512_ps(half));
    return half;
}

/* Offsets of a panel's groups to tiles of B: of 32 groups the upper plane, once more, the lower. */
static void unpack_offsets(const struct qni_matmul_tile *t, int64_t panel, uint8_t *out)
{
    for (int64_t g = 0; g < (t->n_groups + 31) / 32 * 32; g += 2, out += LINE) {
        __m512i upper[2], lower[2];
        for (int64_t k = 0; k < 2; k++) {
            __m512 rest, v = _mm512_setzero_ps();
            if (g + k < t->n_groups)
                v = qni_load16(t->offset, panel * t->n_groups + g + k, t->scale_is_f16);
            upper[k] = near_bf16(v, &rest);
            lower[k] = near_bf16(rest, &rest);
        }
        const __mmask32 odd = 0xaaaaaaaau;
        const __m512i up = _mm512_mask_blend_epi16(odd, _mm512_srli_epi32(upper[0], 16), upper[1]);
        _mm512_store_si512(out, up);
        _mm512_store_si512(out + 2 * TILE, up);
        _mm512_store_si512(out + 4 * TILE,
                           _mm512_mask_blend_epi16(odd, _mm512_srli_epi32(lower[0], 16), lower[1]));
        if (g % 32 == 30)
            out += 5 * TILE;
    }
}

/* Offsets are products, too: of sums of x of a group and its offset, whose groups are positions.
 * Both are split in two planes; upper x upper, lower x upper and upper x lower count. What is left
 * out is below 2^-16 + 2 * 2^-17 of |total * offset|: with 1024 positions a quarter of the bound.
 * An infinite total leaves NaN for the lower plane. */
static void split_totals(const struct pass *p)
{
    const struct qni_matmul_tile *t = p->t;
    for (int64_t i = 0; i < p->blocks * ROWS; i++)
        for (int64_t g = 0; g < (t->n_groups + 31) / 32 * 32; g += 16) {
            uint16_t *const out = &p->s->totals[i / ROWS][g / 32 * 3][i % ROWS][g % 32];
            const float *const total = t->a_total + (size_t)i * t->ld_segment + g;
            const int64_t left = at_most(t->n_groups - g, 16);
            const __mmask16 there = (__mmask16)(left < 0 ? 0 : (1 << left) - 1);
            __m512 rest;
            const __m512i upper = near_bf16(_mm512_maskz_loadu_ps(there, total), &rest);
            const __m512i lower = near_bf16(rest, &rest);
            for (int k = 0; k < 3; k++)
                _mm256_store_si256(
                    (__m256i *)(void *)(out + k * ROWS * 32),
                    _mm512_cvtepi32_epi16(_mm512_srli_epi32(k == 1 ? lower : upper, 16)));
        }
}

/* Codes of the stretch, and where those are that come after it. */
QNI_TEMPLATE void fill_with(const struct pass *p, const struct stretch *s, struct qni_amx_fill *f)
{
    const struct qni_matmul_tile *t = p->t;
    f->units = s->n;
    if (s->n == 0)
        return;
    const struct stretch next = after_of_codes(p, s);
    for (int64_t i = 0; i < 2; i++) {
        const int64_t here = s->panel + (s->panel + i < t->n_panels ? i : 0);
        const int64_t there = next.panel + (next.panel + i < t->n_panels ? i : 0);
        f->codes[i] = t->codes + (size_t)here * t->codes_stride + s->unit * p->unit_bytes;
        f->ahead[i] = 0;
        if (next.n > 0)
            f->ahead[i] =
                (there - here) * (ptrdiff_t)t->codes_stride + (next.unit - s->unit) * p->unit_bytes;
    }
}

/* What has not been filled while the stretch before was multiplied. */
QNI_TEMPLATE void fill_rest(const struct pass *p, struct qni_amx_fill *f, int64_t done,
                            const int kind)
{
    for (int64_t i = done; i < f->units; i++)
        for (int panel = 0; panel < 2; panel++)
            qni_amx_fill_one(f, panel, p->s->b[i][0], kind);
    QNI_AMX_TILES_SEE_MEMORY();
}

static void fill_offsets(const struct pass *p, int64_t panel)
{
    for (int64_t i = 0; i < 2; i++)
        unpack_offsets(p->t, panel + (panel + i < p->t->n_panels ? i : 0), p->s->offsets[0][i]);
    QNI_AMX_TILES_SEE_MEMORY();
}

/* Sums on their way to the results of a block of rows. */
struct leaving {
    int64_t panel, group, block;
    bool scales, ends; /* not of offsets; the last of k */
};

/* of[turn]: of the segment before the last, whose turn it is to be added. */
struct queue {
    struct leaving of[2];
    int64_t turn;
};

QNI_TEMPLATE struct qni_amx_scaling scaling_of(const struct pass *p, const struct leaving *l,
                                               const float *sum)
{
    const struct qni_matmul_tile *t = p->t;
    struct qni_amx_scaling s = {.sum = sum, .part = p->s->part[l->block][0]};
    s.scale[0] = s.scale[1] = _mm512_set1_ps(1.0f);
    if (l->scales) {
        const __m512 times = _mm512_set1_ps(t->table8 != NULL && t->table8_doubled ? 0.5f : 1.0f);
        const int64_t second = l->panel + 1 < t->n_panels ? t->n_groups : 0;
        const int64_t at = l->panel * t->n_groups + l->group;
        s.scale[0] = _mm512_mul_ps(qni_load16(t->scale, at, t->scale_is_f16), times);
        s.scale[1] = _mm512_mul_ps(qni_load16(t->scale, at + second, t->scale_is_f16), times);
    }
    return s;
}

/* The segment's sums have been added: if they were the last, the results go to c. */
static void end_of(const struct pass *p, const struct leaving *l)
{
    if (!l->ends)
        return;
    const struct qni_matmul_tile *t = p->t;
    float *part = p->s->part[l->block][0];
    float *c = t->c + (size_t)(l->block * ROWS) * t->ldc + l->panel * QNI_PANEL;
    const bool two = l->panel + 1 < t->n_panels;
    for (int64_t i = 0; i < ROWS; i++, c += t->ldc, part += WIDTH) {
        _mm512_storeu_ps(c, _mm512_load_ps(part));
        if (two)
            _mm512_storeu_ps(c + 16, _mm512_load_ps(part + 16));
    }
    /* Zeros stored beside the results wait for those to leave the core: 1.1 times the time. */
    memset(p->s->part[l->block], 0, sizeof p->s->part[0]);
}

/* Lines of y are written all at once: a few are asked for with each stretch. */
static void ask_for_results(const struct pass *p, const struct stretch *s, int64_t block)
{
    const struct qni_matmul_tile *t = p->t;
    if (s->of_offsets)
        return;
    const float *const c = t->c + (size_t)(block * ROWS) * t->ldc + s->panel * QNI_PANEL;
    const size_t second = s->panel + 1 < t->n_panels ? QNI_PANEL : 0;
    const int64_t end = (s->unit + s->n) * ROWS / t->units;
    for (int64_t i = s->unit * ROWS / t->units; i < end; i++) {
        _mm_prefetch((const char *)(c + (size_t)i * t->ldc), _MM_HINT_T0);
        _mm_prefetch((const char *)(c + (size_t)i * t->ldc + second), _MM_HINT_T0);
    }
}

QNI_VARIANTS void block_of_stretch(const struct pass *p, const struct stretch *s, int64_t block,
                                   struct qni_amx_walk *w, struct qni_amx_fill *f, struct queue *q,
                                   const int kind)
{
    const struct qni_matmul_tile *t = p->t;
    w->planes = s->of_offsets ? 1 : t->planes;
    w->units = s->n;
    ask_for_results(p, s, block);
    for (int64_t n, unit = s->unit; unit < s->unit + s->n; unit += n) {
        const int64_t group = unit / t->group_units;
        n = s->unit + s->n - unit;
        if (!s->of_offsets)
            n = at_most((group + 1) * t->group_units - unit, n);
        struct leaving *const l = &q->of[q->turn];
        float *const to = p->s->sums[q->turn][0];
        q->turn ^= 1;
        qni_amx_segment(w, scaling_of(p, l, p->s->sums[q->turn][0]), f, to, n * w->planes, kind);
        end_of(p, l);
        l->panel = s->panel;
        l->group = group;
        l->block = block;
        l->scales = !s->of_offsets;
        l->ends = !s->of_offsets && unit + n == t->units;
    }
}

/* Rows of A of the stretch. */
static const char *rows_of(const struct pass *p, int64_t block, const struct stretch *s)
{
    const struct qni_matmul_tile *t = p->t;
    if (s->of_offsets)
        return (const char *)p->s->totals[block][s->unit];
    return (const char *)t->a + (size_t)block * ROWS * t->lda +
           (size_t)(s->unit * t->planes) * QNI_AMX_BF16_BLOCK;
}

static uint8_t *b_of(const struct pass *p, const struct stretch *s)
{
    return s->of_offsets ? p->s->offsets[0][0] : p->s->b[0][0];
}

/* The last two segments. */
static void finish(const struct pass *p, struct queue *q)
{
    qni_amx_leave(p->s->sums[q->turn][0]);
    for (int i = 0; i < 2; i++) {
        const struct leaving *const l = &q->of[q->turn];
        q->turn ^= 1;
        struct qni_amx_scaling s = scaling_of(p, l, p->s->sums[q->turn][0]);
        for (int64_t row = 0; row < ROWS; row++)
            qni_amx_scale_rows(&s, 1);
        end_of(p, l);
    }
}

QNI_TEMPLATE void all_stretches(const struct pass *p, const int kind)
{
    struct stretch now = after(p, (struct stretch){-2, p->t->units, 0, false});
    struct qni_amx_fill fill = {.unit_bytes = p->unit_bytes, .table = p->table},
                        none = {.units = 0};
    struct qni_amx_walk w = {.b = b_of(p, &now)};
    struct queue q;
    memset(&q, 0, sizeof q);
    memset(p->s->sums, 0, sizeof p->s->sums);
    memset(p->s->part, 0, (size_t)p->blocks * sizeof p->s->part[0]);
    if (now.of_offsets && now.n > 0)
        fill_offsets(p, now.panel);
    const struct stretch first = now.of_offsets ? after(p, now) : now;
    fill_with(p, &first, &fill);
    fill_rest(p, &fill, 0, kind);
    qni_amx_zero();
    qni_amx_walk_begin(&w, rows_of(p, 0, &now));
    while (now.n > 0) {
        const struct stretch next = after(p, now);
        if (!now.of_offsets) {
            const struct stretch codes = after_of_codes(p, &now);
            fill_with(p, &codes, &fill);
        }
        if (next.of_offsets && next.n > 0)
            fill_offsets(p, next.panel);
        /* A lone unit's last quad would load what comes next before it is filled. */
        const bool fills = !now.of_offsets && now.n > 1;
        for (int64_t b = 0; b < p->blocks; b++) {
            const bool last = b + 1 == p->blocks;
            w.after_a = last ? rows_of(p, 0, next.n > 0 ? &next : &now) : rows_of(p, b + 1, &now);
            w.after_b = last ? b_of(p, &next) : b_of(p, &now);
            block_of_stretch(p, &now, b, &w, last && fills ? &fill : &none, &q, kind);
        }
        if (!now.of_offsets)
            fill_rest(p, &fill, fills ? now.n : 0, kind);
        if (!now.of_offsets && !next.of_offsets && !fills)
            qni_amx_walk_begin(&w, rows_of(p, 0, &next));
        now = next;
    }
    finish(p, &q);
}

/* Blocks of 32 rows, two or more: how many rows that were. */
static int64_t many_rows(const struct qni_matmul_tile *t, struct qni_amx_table table, int kind)
{
    int64_t row = 0;
    if (t->planes > 2 || t->n_groups > MOST_GROUPS || t->units < LEAST_UNITS)
        return row;
    while (t->m - row >= 2 * ROWS) {
        struct qni_matmul_tile some = *t;
        struct pass p = {&some,
                         t->scratch,
                         table,
                         at_most(BLOCKS, (t->m - row) / ROWS),
                         kind == BYTES ? 512 : 256,
                         QNI_AMX_BF16_UNITS,
                         0};
        some.a = (const char *)t->a + (size_t)row * t->lda;
        some.c = t->c + (size_t)row * t->ldc;
        if (t->group_units < p.most)
            p.most = p.most / t->group_units * t->group_units;
        if (t->offset != NULL) {
            some.a_total = t->a_total + (size_t)row * t->ld_segment;
            p.offset_units = (t->n_groups + 31) / 32 * 3;
            split_totals(&p);
        }
        qni_amx_configure(ROWS, LINE);
        if (kind == BYTES)
            all_stretches(&p, BYTES);
        else
            all_stretches(&p, NIBBLES);
        row += p.blocks * ROWS;
    }
    return row;
}

/* ---- any rows -------------------------------------------------------------------------------- */

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind)
{
    struct job j;
    memset(&j, 0, sizeof j);
    j.t = t;
    j.s = t->scratch;
    struct qni_amx_bytes bytes;
    if (kind == NIBBLES)
        j.table.nibbles = qni_bf16_of_nibbles(t->table8);
    if (kind == BYTES && t->table != NULL) {
        qni_amx_bytes_of(t->table, &bytes);
        j.table.bytes = &bytes;
    }
    j.unit_bytes = kind == BYTES ? 512 : 256;
    for (j.row = many_rows(t, j.table, kind); j.row < t->m; j.row += ROWS) {
        j.m = at_most(ROWS, t->m - j.row);
        j.a = (const char *)t->a + (size_t)j.row * t->lda;
        j.a_unit = (size_t)(j.m * t->planes) * LINE;
        for (j.first_panel = 0; j.first_panel < t->n_panels; j.first_panel = j.end_panel) {
            j.end_panel = at_most(j.first_panel + 2 * PAIRS, t->n_panels);
            block(&j, kind);
        }
    }
    _tile_release();
}

/* Integers and codebooks of integers differ in their table alone. */
void qni_matmul_bf16_q4n16_mr32_amx(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES);
}
void qni_matmul_bf16_t4n16_mr32_amx(const struct qni_matmul_tile *t)
{
    qni_matmul_bf16_q4n16_mr32_amx(t);
}
void qni_matmul_bf16_q8n16_mr32_amx(const struct qni_matmul_tile *t)
{
    tile(t, BYTES);
}
/* The values of the codebook are exact in bf16, as those of FP8 are. */
void qni_matmul_bf16_t8n16_mr32_amx(const struct qni_matmul_tile *t)
{
    qni_matmul_bf16_q8n16_mr32_amx(t);
}
