/* SPDX-License-Identifier: Apache-2.0 */
/* Planes of bf16 x weights of short groups, of which a segment has less than four quads, for many
 * rows: called by x86_amx_float.c. What sums cost is most of the time here, and chunks of k gain
 * nothing (lab/cpu/NOTES.md): eight units of B lie in the first cache while all blocks of 32 rows
 * pass by, and the last block leaves each tile to the codes that come next. A segment's sums are
 * scaled while the one after the next is multiplied. */
#if defined(__GNUC__) && !defined(__clang__)
/* Pointers that advance side by side would be kept in vectors, between the tiles' instructions:
 * 10 to 20 % slower. */
#pragma GCC optimize("no-tree-slp-vectorize")
#endif

#include <immintrin.h>

#include "../../base/compiler.h"
#include "../simd/amx_bf16.h"
#include "../simd/amx_float.h"
#include "../simd/avx512.h"
#include "kernel.h"

enum { NIBBLES = QNI_AMX_NIBBLES, BYTES = QNI_AMX_BYTES };
enum { ROWS = QNI_BF16_ROWS, TILE = 1024, WIDTH = 32, LINE = 64 };

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
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

QNI_TEMPLATE void fill_one(struct qni_amx_fill *f, const int panel, uint8_t *b, const int kind)
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

QNI_TEMPLATE void walk_begin(struct qni_amx_walk *w, const char *a)
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

QNI_TEMPLATE void scale_rows(struct qni_amx_scaling *s, const int n)
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

/* A quad. After each product some rows are scaled; a unit of B that has been multiplied is filled
 * with what comes next. */
QNI_TEMPLATE void quad(struct qni_amx_walk *w, struct qni_amx_scaling *s, struct qni_amx_fill *f,
                       float *to, const bool begins, const int rate, const int kind)
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
    scale_rows(s, rate);
    if (begins)
        QNI_AMX_LEAVE(1, 16);
    _tile_dpbf16ps(1, 4, 7);
    _tile_stream_loadd(4, a, 64);
    scale_rows(s, rate);
    if (fills)
        fill_one(f, 0, here, kind);
    if (begins)
        QNI_AMX_LEAVE(3, 16 * QNI_AMX_BF16_WIDTH + 16);
    _tile_dpbf16ps(3, 5, 7);
    if (ends_unit)
        _tile_loadd(7, b + QNI_AMX_BF16_TILE, 64);
    scale_rows(s, rate);
    if (begins)
        QNI_AMX_LEAVE(2, 16 * QNI_AMX_BF16_WIDTH);
    _tile_dpbf16ps(2, 5, 6);
    _tile_stream_loadd(5, a + QNI_AMX_BF16_TILE, 64);
    if (ends_unit)
        _tile_loadd(6, b, 64);
    scale_rows(s, rate);
    if (fills)
        fill_one(f, 1, here, kind);
}

/* All quads of a segment, at least 8 / rate; in so many of them the 32 rows are scaled. */
QNI_TEMPLATE void quads(struct qni_amx_walk *w, struct qni_amx_scaling *s, struct qni_amx_fill *f,
                        float *to, int64_t n, const int rate, const int kind)
{
    quad(w, s, f, to, true, rate, kind);
    for (int64_t i = 1; i < 8 / rate; i++)
        quad(w, s, f, to, false, rate, kind);
    for (int64_t i = 8 / rate; i < n; i++)
        quad(w, s, f, to, false, 0, kind);
}

QNI_TEMPLATE void segment(struct qni_amx_walk *w, struct qni_amx_scaling s, struct qni_amx_fill *f,
                          float *to, int64_t n, const int kind)
{
    if (n >= 8)
        quads(w, &s, f, to, n, 1, kind);
    else if (n >= 4)
        quads(w, &s, f, to, n, 2, kind);
    else if (n >= 2)
        quads(w, &s, f, to, n, 4, kind);
    else
        quads(w, &s, f, to, n, 8, kind);
}

enum {
    BLOCKS = 8,                          /* of rows at a time */
    MOST_GROUPS = 128,                   /* of k, */
    LEAST_UNITS = 32,                    /* and units, see qni_amx_split_totals() */
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
_Static_assert(sizeof(struct many) <= 327680, "kernels.inc says so");

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

/* The next stretch that has codes, where some are of offsets. */
static struct stretch after_of_codes(const struct pass *p, const struct stretch *s)
{
    const struct stretch next = after(p, *s);
    return next.of_offsets ? after(p, next) : next;
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
            fill_one(f, panel, p->s->b[i][0], kind);
    QNI_AMX_TILES_SEE_MEMORY();
}

static void fill_offsets(const struct pass *p, int64_t panel)
{
    for (int64_t i = 0; i < 2; i++)
        qni_amx_unpack_offsets(p->t, panel + (panel + i < p->t->n_panels ? i : 0),
                               p->s->offsets[0][i]);
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
    __mmask16 odd = 0;
    for (int64_t i = 0; i < ROWS; i++, c += t->ldc, part += WIDTH) {
        const __m512 v0 = _mm512_load_ps(part), v1 = _mm512_load_ps(part + 16);
        odd |= _mm512_fpclass_ps_mask(v0, 0x99) | _mm512_fpclass_ps_mask(v1, 0x99);
        _mm512_storeu_ps(c, v0);
        if (two)
            _mm512_storeu_ps(c + 16, v1);
    }
    if (odd != 0)
        *t->is_finite = false;
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
        segment(w, scaling_of(p, l, p->s->sums[q->turn][0]), f, to, n * w->planes, kind);
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
            scale_rows(&s, 1);
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
    walk_begin(&w, rows_of(p, 0, &now));
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
            walk_begin(&w, rows_of(p, 0, &next));
        now = next;
    }
    finish(p, &q);
}

int64_t qni_amx_float_short(const struct qni_matmul_tile *t, const struct qni_amx_table *table,
                            int32_t kind)
{
    int64_t row = 0;
    while (t->m - row >= 2 * ROWS) {
        struct qni_matmul_tile pass_tile = *t;
        struct pass p = {&pass_tile,
                         t->scratch,
                         *table,
                         at_most(BLOCKS, (t->m - row) / ROWS),
                         kind == BYTES ? 512 : 256,
                         QNI_AMX_BF16_UNITS,
                         0};
        pass_tile.a = (const char *)t->a + (size_t)row * t->lda;
        pass_tile.c = t->c + (size_t)row * t->ldc;
        if (t->group_units < p.most)
            p.most = p.most / t->group_units * t->group_units;
        if (t->offset != NULL) {
            pass_tile.a_total = t->a_total + (size_t)row * t->ld_segment;
            p.offset_units = (t->n_groups + 31) / 32 * 3;
            qni_amx_split_totals(p.t, p.blocks * ROWS, p.s->totals[0][0][0], OFFSET_UNITS);
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
