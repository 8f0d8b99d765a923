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
 *                                     to the codes that come next. Zero points of 8 bits leave
 *                                     codes before they are bf16; other offsets are products, too.
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
 * and added while the next one is multiplied, a few rows with each unit.
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
#include "../simd/amx_float.h"
#include "../simd/amx_bf16_chunks.h"
#include "../simd/avx512.h"
#include "../simd/bf16.h"
#include "kernel.h"

enum { NIBBLES = QNI_AMX_NIBBLES, BYTES = QNI_AMX_BYTES, SHIFTED = QNI_AMX_SHIFTED };
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

/* Scratch of m rows: fewer rows take less memory. */
struct float_scratch {
    uint8_t b[RING][2][TILE];
    float rest[];
    /* sums  [HALF or ROWS][WIDTH]   of a segment, as tiles leave them
     * facts [2 * SPAN][m]           of the groups of two spans: sums of x
     * part  [PAIRS][m][WIDTH]       of the results, while spans pass by */
};
enum { SUMS = ROWS * WIDTH, FEW_SUMS = HALF * WIDTH, FACTS = 2 * SPAN, PART = PAIRS * WIDTH };
enum { FEW_PAIRS = 24, FEW_PART = FEW_PAIRS * WIDTH }; /* of at most QNI_SMALL_ROWS rows */
_Static_assert(sizeof(struct float_scratch) + 4 * (SUMS + ROWS * (FACTS + PART)) <= 328704,
               "kernels.inc says so");
_Static_assert(sizeof(struct float_scratch) +
                       4 * (FEW_SUMS + QNI_SMALL_ROWS * (FACTS + FEW_PART)) ==
                   43008,
               "and so for few rows");

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- the order of work ----------------------------------------------------------------------- */

/* A block of rows and some panels. */
struct job {
    const struct qni_matmul_tile *t;
    struct float_scratch *s;
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
    float *facts, *part;            /* of scratch */
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
    d->sum = j->s->rest;
    d->fact = j->facts + s->group % FACTS * j->m;
    d->part = j->part + (s->panel - j->first_panel) / 2 * j->m * WIDTH;
    d->left = j->m;
}

/* Sums of x of the groups of the span at `unit`. */
static void turn_facts(const struct job *j, int64_t unit)
{
    const struct qni_matmul_tile *t = j->t;
    const int64_t end = at_most(unit + j->span, t->units);
    for (int64_t g = unit / t->group_units; g * t->group_units < end; g++)
        for (int64_t i = 0; i < j->m; i++)
            j->facts[g % FACTS * j->m + i] =
                t->a_total[(size_t)(j->row + i) * t->ld_segment + (size_t)g];
}

/* ---- products -------------------------------------------------------------------------------- */

/* What a unit multiplies, and what is brought meanwhile. */
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
    operands.sums = j->s->rest;
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
    j->facts = j->s->rest + (j->m <= HALF ? FEW_SUMS : SUMS);
    j->part = j->facts + FACTS * j->m;
    const int64_t pairs = (j->end_panel - j->first_panel + 1) / 2;
    memset(j->part, 0, (size_t)(pairs * j->m * WIDTH) * sizeof *j->part);
    if (rows > HALF && t->offset != NULL)
        all_segments(j, 2, true, kind);
    else if (rows > HALF)
        all_segments(j, 2, false, kind);
    else if (t->offset != NULL)
        all_segments(j, 1, true, kind);
    else
        all_segments(j, 1, false, kind);
    __mmask16 odd = 0;
    for (int64_t i = 0; i < j->m; i++) {
        float *c = t->c + (size_t)(j->row + i) * t->ldc + j->first_panel * QNI_PANEL;
        for (int64_t p = 0; p < j->end_panel - j->first_panel; p++, c += QNI_PANEL) {
            const __m512 v = _mm512_load_ps(j->part + ((p / 2 * j->m + i) * 2 + p % 2) * QNI_PANEL);
            odd |= qni_amx_no_numbers(v);
            _mm512_storeu_ps(c, v);
        }
    }
    if (odd != 0)
        *t->is_finite = false;
}

/* ---- many rows ------------------------------------------------------------------------------- */

enum {
    BLOCKS = 8,                          /* of rows at a time */
    MOST_GROUPS = 128,                   /* of k, */
    LEAST_UNITS = 32,                    /* and units, see qni_amx_split_totals() */
    OFFSET_UNITS = 3 * MOST_GROUPS / 32, /* of B, */
    TOTALS_BYTES = OFFSET_UNITS * QNI_AMX_BF16_BLOCK,
    CHUNK = 4 /* units: if groups are shorter, so many in all */
};

struct many {
    uint8_t b[2][QNI_AMX_BF16_UNITS][2][TILE];
    float sums[ROWS][WIDTH];            /* that have left the tiles */
    float part[2][BLOCKS][ROWS][WIDTH]; /* results of a pair of panels, and of that before it */
    float zeros[ROWS][WIDTH];
    uint16_t totals[BLOCKS][OFFSET_UNITS][ROWS][32];
    uint8_t offsets[OFFSET_UNITS][2][TILE];
    uint8_t shifts[2][QNI_AMX_BF16_UNITS][LINE]; /* of both panels */
};
_Static_assert(sizeof(struct many) == 328704, "kernels.inc says so");

/* Units [unit, unit + n) of a pair of panels, which begin in a group, or, before the first of them,
 * all units of their offsets: what of B lies in the first cache while all blocks of rows pass by.
 * n = 0: behind the last. */
struct chunk {
    int64_t panel, unit, n;
    int64_t group, in_group; /* units before these */
    bool of_offsets;
};

/* Sums on their way to the results of a block of rows. */
struct leaving {
    float *to;   /* from the tiles, */
    bool scales; /* and from there to part */
    const float *from;
    float *part;
    int64_t at, second; /* of scales, of both panels */
};

/* Rows and panels of a call. */
struct pass {
    const struct qni_matmul_tile *t;
    struct many *s;
    int64_t blocks;       /* of rows */
    int64_t unit_bytes;   /* of codes */
    int64_t most, groups; /* units of a chunk, and groups if it has whole ones */
    int64_t offset_units; /* 0: no offsets */
    int64_t rate;         /* rows that go to c with a segment */
    int64_t refill_rate;  /* lines with a quad, if this chunk and the next one have `most` units */
    float times;          /* each scale */
    bool has_zeros;       /* of 8 bits, in place of offsets; */
    bool is_far;          /* beyond nibbles */
    int plain;            /* segments of such chunks */
};

/* What is under way. All of it is in registers or close to them: a struct that is copied would wait
 * for stores to leave the core. */
struct under_way {
    struct qni_amx_walk walk;
    struct qni_amx_refill refill;
    struct leaving last; /* segment */
    struct qni_amx_way_out out;
    int64_t b, part; /* which of two */
};

/* Without a division: whole groups, or a piece of one. */
QNI_TEMPLATE struct chunk after(const struct pass *p, struct chunk c)
{
    const struct qni_matmul_tile *t = p->t;
    const int64_t in_group = c.in_group + c.n;
    c.unit += c.n;
    c.group += t->group_units <= p->most ? p->groups : in_group == t->group_units;
    c.in_group = t->group_units <= p->most || in_group == t->group_units ? 0 : in_group;
    if (c.unit >= (c.of_offsets ? p->offset_units : t->units)) {
        c.panel += c.of_offsets ? 0 : 2;
        c.of_offsets = !c.of_offsets && p->offset_units > 0;
        c.unit = c.group = c.in_group = 0;
    }
    c.n = c.of_offsets ? p->offset_units : at_most(p->most, t->units - c.unit);
    if (!c.of_offsets && t->group_units > p->most)
        c.n = at_most(c.n, t->group_units - c.in_group);
    if (c.panel >= t->n_panels)
        c.n = 0;
    return c;
}

/* The next chunk that has codes, where some are of offsets. */
QNI_TEMPLATE struct chunk after_of_codes(const struct pass *p, const struct chunk *c)
{
    const struct chunk next = after(p, *c);
    return next.of_offsets ? after(p, next) : next;
}

/* Rows of A of the chunk. */
QNI_TEMPLATE const char *rows_of(const struct pass *p, int64_t block, const struct chunk *c)
{
    const struct qni_matmul_tile *t = p->t;
    if (c->of_offsets)
        return (const char *)p->s->totals[block][c->unit];
    return (const char *)t->a + (size_t)block * ROWS * t->lda +
           (size_t)(c->unit * t->planes) * QNI_AMX_BF16_BLOCK;
}

/* B of the chunk. */
QNI_TEMPLATE const uint8_t *b_of(const struct pass *p, const struct chunk *c, int64_t b)
{
    return c->of_offsets ? p->s->offsets[0][0] : p->s->b[b][0][0];
}

static void fill_offsets(const struct pass *p, int64_t panel)
{
    for (int64_t i = 0; i < 2; i++)
        qni_amx_unpack_offsets(p->t, panel + (panel + i < p->t->n_panels ? i : 0),
                               p->s->offsets[0][i]);
    QNI_AMX_TILES_SEE_MEMORY();
}

/* Lines of codes with a quad, of so many quads: a part of the 8 or 16 of a unit, or all. The last
 * ones are unpacked before the quad loads what they make. */
static int64_t rate_of(int64_t lines, int64_t quads)
{
    for (int64_t rate = 1; rate <= 8; rate *= 2)
        if (rate * quads >= lines)
            return rate;
    return lines;
}

/* What codes of the chunk are shifted by. */
QNI_TEMPLATE void fill_shifts(const struct pass *p, const struct chunk *c, const int kind)
{
    const struct qni_matmul_tile *t = p->t;
    for (int64_t i = 0; i < 2; i++) {
        int64_t at = (c->panel + (c->panel + i < t->n_panels ? i : 0)) * t->n_groups + c->group;
        int64_t left = t->group_units - c->in_group;
        for (int64_t unit = 0; unit < c->n; at++, left = t->group_units) {
            const __m512i shift = qni_amx_shift_of(p->has_zeros ? t : NULL, at, kind, p->is_far);
            for (; left > 0 && unit < c->n; left--, unit++)
                _mm512_store_si512(p->s->shifts[i][unit], shift);
        }
    }
}

/* Unpack codes of the chunk c to `out`. */
QNI_TEMPLATE void refill_with(const struct pass *p, const struct chunk *c, uint8_t *out,
                              int64_t rate, struct qni_amx_refill *f, const int kind)
{
    const struct qni_matmul_tile *t = p->t;
    const ptrdiff_t stride = c->panel + 1 < t->n_panels ? (ptrdiff_t)t->codes_stride : 0;
    const int64_t bytes = c->n * p->unit_bytes;
    f->codes = t->codes + (size_t)c->panel * t->codes_stride + (size_t)(c->unit * p->unit_bytes);
    f->second = stride - bytes;
    f->out = out;
    f->line = 0;
    f->lines = bytes / LINE;
    f->rate = rate;
    f->shift = p->s->shifts[0][0];
    f->is_far = p->is_far;
    if (kind != NIBBLES)
        fill_shifts(p, c, kind);
    f->turns = rate > 8 ? 1 : 2 * f->lines >> __builtin_ctzll((unsigned long long)rate);
}

QNI_TEMPLATE struct qni_amx_scaling scaling_of(const struct pass *p, const struct leaving *l)
{
    const struct qni_matmul_tile *t = p->t;
    struct qni_amx_scaling s = {.sum = l->to, .from = l->from, .part = l->part};
    const __m512 times = _mm512_set1_ps(p->times);
    s.scale[0] = _mm512_mul_ps(qni_load16(t->scale, l->at, t->scale_is_f16), times);
    s.scale[1] = _mm512_mul_ps(qni_load16(t->scale, l->at + l->second, t->scale_is_f16), times);
    return s;
}

/* The pair at `panel` has all its sums, or nearly: its last rows are the last to leave. */
QNI_TEMPLATE void begin_way_out(const struct pass *p, struct under_way *u, int64_t panel)
{
    u->out.part = p->s->part[u->part][0][0];
    u->out.c = p->t->c + panel * QNI_PANEL;
    u->out.second = panel + 1 < p->t->n_panels ? QNI_PANEL : 0;
    u->out.left = p->blocks * ROWS;
}

/* Quads of a segment and lines with each, of those that qni_amx_plain_segment() is made for. */
enum { ANY = 0, FOUR_2, EIGHT_2, EIGHT_2_PLANES_2, FOUR_4 };

/* A segment a chunk, and lines that fill all quads. */
static int which_plain(const struct pass *p, int64_t lines)
{
    const int64_t planes = p->t->planes, quads = p->most * planes;
    if (p->most > p->t->group_units || p->refill_rate * p->blocks * quads != 2 * lines ||
        lines % (quads * p->refill_rate) != 0)
        return ANY;
    if (quads == 4 && planes == 1)
        return p->refill_rate == 2 ? FOUR_2 : p->refill_rate == 4 ? FOUR_4 : ANY;
    return quads != 8 || p->refill_rate != 2 ? ANY : planes == 2 ? EIGHT_2_PLANES_2 : EIGHT_2;
}

/* All blocks of a chunk that is one segment. */
QNI_TEMPLATE void plain_chunk(const struct pass *p, const struct chunk *c, struct under_way *u,
                              const int quads, const int planes, const int lines, const int kind)
{
    const struct qni_matmul_tile *const t = p->t;
    const char *const next_a = u->walk.after_a;
    const uint8_t *const next_b = u->walk.after_b, *const b = u->walk.b;
    const size_t stride = ROWS * t->lda;
    float *part = p->s->part[u->part][0][0];
    const bool begins = c->unit == 0 && p->offset_units == 0;
    const struct leaving first = u->last;
    u->last.to = p->s->sums[0];
    u->last.at = c->panel * t->n_groups + c->group;
    u->last.second = c->panel + 1 < t->n_panels ? t->n_groups : 0;
    u->last.from = begins ? p->s->zeros[0] : part;
    u->last.part = part;
    const struct qni_amx_scaling now = scaling_of(p, &u->last);
    struct qni_amx_scaling s = scaling_of(p, &first);
    const char *a = u->walk.a;
    for (int64_t left = p->blocks; left > 0; left--) {
        a += stride;
        u->walk.after_a = left == 1 ? next_a : a;
        u->walk.after_b = left == 1 ? next_b : b;
        qni_amx_plain_segment(&u->walk, s, &u->refill, u->last.to, quads, planes, lines, kind);
        s = now;
        s.part = part;
        s.from = begins ? now.from : part;
        part += ROWS * WIDTH;
        qni_amx_move_rows(&u->out, p->rate);
    }
    u->last.part = s.part;
    u->last.from = s.from;
}

/* A chunk and a block of rows. */
QNI_TEMPLATE void block_of_chunk(const struct pass *p, const struct chunk *c, float *part,
                                 struct under_way *u, const int kind)
{
    const struct qni_matmul_tile *t = p->t;
    const bool begins = c->unit == 0 && p->offset_units == 0;
    const int64_t end = c->unit + c->n;
    int64_t group = c->group;
    u->walk.left = c->n * u->walk.planes;
    for (int64_t n, unit = c->unit; unit < end; unit += n, group++) {
        n = c->of_offsets ? c->n : at_most(t->group_units, end - unit);
        const struct qni_amx_scaling s = scaling_of(p, &u->last);
        qni_amx_segment(&u->walk, s, &u->refill, u->last.to, n * u->walk.planes, u->last.scales,
                        kind);
        u->last.to = c->of_offsets ? part : p->s->sums[0];
        u->last.scales = !c->of_offsets;
        u->last.from = begins && unit == 0 ? p->s->zeros[0] : part;
        u->last.part = part;
        u->last.at = c->panel * t->n_groups + group;
        u->last.second = c->panel + 1 < t->n_panels ? t->n_groups : 0;
        qni_amx_move_rows(&u->out, p->rate);
    }
}

/* The sums that are still on their way. */
QNI_TEMPLATE void finish(const struct pass *p, struct under_way *u, int64_t panel)
{
    qni_amx_leave(u->last.to);
    qni_amx_move_rows(&u->out, u->out.left);
    struct qni_amx_scaling s = scaling_of(p, &u->last);
    for (int64_t row = 0; row < ROWS; row++)
        qni_amx_scale_rows(&s, 1);
    begin_way_out(p, u, panel);
    qni_amx_move_rows(&u->out, u->out.left);
    if (u->out.odd != 0)
        *p->t->is_finite = false;
    if (u->out.streams)
        _mm_sfence();
}

QNI_TEMPLATE void all_chunks(const struct pass *p, struct qni_amx_table table, const int kind)
{
    const struct qni_matmul_tile *const t = p->t;
    struct chunk now = after(p, (struct chunk){-2, t->units, 0, 0, 0, false});
    struct under_way u = {.last = {.to = p->s->sums[0]},
                          .out = {.ldc = t->ldc, .streams = t->c_is_far},
                          .refill = {.table = table}};
    if (now.of_offsets)
        fill_offsets(p, now.panel);
    const struct chunk first = now.of_offsets ? after(p, now) : now;
    refill_with(p, &first, p->s->b[0][0][0], 1, &u.refill, kind);
    while (u.refill.turns > 0)
        qni_amx_refill_turn(&u.refill, kind);
    u.walk.a = rows_of(p, 0, &now);
    u.walk.b = b_of(p, &now, 0);
    qni_amx_zero();
    qni_amx_walk_begin(&u.walk);
    for (int64_t panel = now.panel; now.n > 0;) {
        const struct chunk next = after(p, now), codes = after_of_codes(p, &now);
        u.walk.planes = now.of_offsets ? 1 : t->planes;
        if (!now.of_offsets && codes.n > 0) {
            int64_t rate = p->refill_rate;
            if (QNI_UNLIKELY(now.n != p->most || codes.n != p->most))
                rate = rate_of(2 * codes.n * p->unit_bytes / LINE, p->blocks * now.n * t->planes);
            refill_with(p, &codes, p->s->b[u.b ^ 1][0][0], rate, &u.refill, kind);
        }
        int plain = ANY;
        if (!now.of_offsets && u.last.scales && now.n == p->most && codes.n == p->most)
            plain = p->plain;
        if (next.of_offsets && next.n > 0)
            fill_offsets(p, next.panel);
        if (now.panel != panel) {
            qni_amx_move_rows(&u.out, u.out.left);
            begin_way_out(p, &u, panel);
            u.part ^= 1;
            panel = now.panel;
        }
        u.walk.after_a = rows_of(p, 0, next.n > 0 ? &next : &now);
        u.walk.after_b = b_of(p, &next, u.b ^ !now.of_offsets);
        if (plain == FOUR_2)
            plain_chunk(p, &now, &u, 4, 1, 2, kind);
        else if (plain == EIGHT_2)
            plain_chunk(p, &now, &u, 8, 1, 2, kind);
        else if (plain == EIGHT_2_PLANES_2)
            plain_chunk(p, &now, &u, 8, 2, 2, kind);
        else if (plain == FOUR_4)
            plain_chunk(p, &now, &u, 4, 1, 4, kind);
        for (int64_t i = 0; i < p->blocks && plain == ANY; i++) {
            const bool is_last = i + 1 == p->blocks;
            u.walk.after_a =
                is_last ? rows_of(p, 0, next.n > 0 ? &next : &now) : rows_of(p, i + 1, &now);
            u.walk.after_b = is_last ? b_of(p, &next, u.b ^ !now.of_offsets) : b_of(p, &now, u.b);
            block_of_chunk(p, &now, p->s->part[u.part][i][0], &u, kind);
        }
        u.b ^= !now.of_offsets;
        now = next;
        if (now.n == 0)
            finish(p, &u, panel);
    }
}

/* Units of a chunk: as many groups as fit, or an even part of a long group. */
static int64_t chunk_units(int64_t group_units, int64_t planes)
{
    const int64_t most = QNI_AMX_BF16_UNITS / planes, pieces = (group_units + most - 1) / most;
    return group_units < CHUNK ? CHUNK / group_units * group_units
                               : (group_units + pieces - 1) / pieces;
}

/* Blocks of 32 rows, two or more: how many rows that were. */
static int64_t many_rows(const struct qni_matmul_tile *t, struct qni_amx_table table, int kind)
{
    int64_t row = 0;
    if (t->planes > 2 || t->n_groups > MOST_GROUPS || t->units < LEAST_UNITS)
        return row;
    if (at_most(chunk_units(t->group_units, t->planes), t->group_units) * t->planes < 4)
        return qni_amx_float_short(t, &table, kind);
    const bool has_zeros = t->zero != NULL && t->zero_is_i8 && t->table == NULL;
    const bool is_far = has_zeros && kind == NIBBLES && qni_amx_has_far_zeros(t);
    if (has_zeros && kind == NIBBLES)
        table.nibbles = qni_amx_signed_nibbles();
    while (t->m - row >= 2 * ROWS) {
        struct qni_matmul_tile pass_tile = *t;
        struct pass p;
        memset(&p, 0, sizeof p);
        p.t = &pass_tile;
        p.s = t->scratch;
        p.blocks = at_most(BLOCKS, (t->m - row) / ROWS);
        p.unit_bytes = kind == BYTES ? 512 : 256;
        p.most = chunk_units(t->group_units, t->planes);
        p.groups = p.most / t->group_units;
        const int64_t lines = p.most * p.unit_bytes / LINE; /* of a panel */
        p.refill_rate = rate_of(2 * lines, p.blocks * p.most * t->planes);
        p.has_zeros = has_zeros;
        p.is_far = is_far;
        if (!is_far && (kind == NIBBLES || table.bytes == NULL))
            p.plain = which_plain(&p, lines);
        p.times = t->table8 != NULL && t->table8_doubled ? 0.5f : 1.0f;
        const int64_t units = at_most(p.most, t->group_units); /* of a segment */
        const int64_t segments = p.blocks * ((t->units + units - 1) / units);
        p.rate = (p.blocks * ROWS + segments - 1) / segments;
        pass_tile.a = (const char *)t->a + (size_t)row * t->lda;
        pass_tile.c = t->c + (size_t)row * t->ldc;
        if (t->offset != NULL && !has_zeros) {
            pass_tile.a_total = t->a_total + (size_t)row * t->ld_segment;
            p.offset_units = (t->n_groups + 31) / 32 * 3;
            qni_amx_split_totals(p.t, p.blocks * ROWS, p.s->totals[0][0][0], OFFSET_UNITS);
        }
        memset(p.s->zeros, 0, sizeof p.s->zeros);
        qni_amx_configure(ROWS, LINE);
        if (kind == BYTES)
            all_chunks(&p, table, BYTES);
        else if (has_zeros)
            all_chunks(&p, table, SHIFTED);
        else
            all_chunks(&p, table, NIBBLES);
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
            const int64_t pairs = j.m <= QNI_SMALL_ROWS ? FEW_PAIRS : PAIRS;
            j.end_panel = at_most(j.first_panel + 2 * pairs, t->n_panels);
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
