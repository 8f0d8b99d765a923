/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights with AVX-512 VNNI. Contract and operand layouts:
 * kernel.h.
 *
 * vpdpbusd multiplies unsigned by signed bytes and adds four products to an int32 lane. The packed
 * codes are unsigned, u = w + bias (8 for nibbles, 128 for bytes and for tables of integers), so
 * they are the unsigned operand as stored: sum(w a) = sum(u a) - bias * sum(a), and sums begin at
 * the last term. 255 * 128 * 32768 < 2^31: no segment overflows, and integer sums are exact in any
 * order.
 *
 * Two panels (16 outputs each) by eight or ten rows are in registers: 16 sums hide the 5 cycles of
 * vpdpbusd, and each broadcast of four bytes of a row feeds two products. Two walks:
 *
 *     few rows     codes are unpacked in registers, all of k for one pair of panels after another.
 *                  Bound: bytes. So sums of codes (int8-block with offsets) are counted from the
 *                  codes that pass by, as if a row of ones were multiplied, and not read: of
 *                  groups of 32 they would be a sixth of the bytes.
 *     many rows    codes are unpacked to bytes once for all rows, a chunk of at most 1024
 *                  positions at a time, so that it stays in the first cache while blocks of rows
 *                  pass over it; results wait in c between chunks. Bound: 2 m n k / (128 operations
 *                  x 2 a cycle), at 32 / (32 + 4) of it for groups of 128, whose float steps share
 *                  the ports. */
#include <immintrin.h>

#include "../../base/compiler.h"
#include "../simd/avx512.h"
#include "../simd/vnni512_compact.h"
#include "kernel.h"

/* How codes become unsigned bytes. Compact weights: sums of a codebook's values are counted, as its
 * padding is known; planes of bits. */
enum { NIBBLES = 0, NIBBLE_TABLE = 1, BYTES = 2, COUNTED_TABLE = 3, PLANES = 4 };
enum { ROW = 0, BLOCK = 1, SHIFTED = 2 };          /* float steps: Q8; Q8B; Q8B with offsets */
enum {
    MR = 8,
    FEW = 10, /* rows: 20 sums, the counts and what is unpacked are 29 of 32 registers */
    NR = 2,
    /* Bytes of a panel ahead of what is multiplied. A core waits for few lines on their way into
     * its first cache, for more into its second: codes come to the second far ahead, to the first
     * when they are near. Planes of bits take longer than their bytes: to the first at once. */
    FAR = 8192,
    NEAR = 1024,
    AHEAD = 2048,
    CHUNK = 32,    /* units of a chunk at most */
    SEGMENTS = 16, /* and its segments */
    CHUNKS = 8,    /* whose sums of rows are made once for all panels */
    PASS = 256     /* rows of a pass: the driver's units are no larger */
};

/* Private memory of a job: what columns bring to a chunk, and what m rows take, as few as there
 * are. */
struct chunk_scratch {
    float scale[NR][SEGMENTS][16], offset[NR][SEGMENTS][16], sums[NR][SEGMENTS][16];
    int32_t zero[NR][SEGMENTS][16], counted[NR][16];
    int32_t rest[];
    /* odd      [m][WIDTH]             floats: results of a panel that has no neighbour
     * begin    [m][n_segments]        few rows: -bias * sum(a)
     * total    [m][n_segments]        ROW with offsets: sums of codes, floats
     *
     * waiting  [m][WIDTH]             many: sums of a segment that is longer than its chunk
     * total    [m][SEGMENTS]
     * begin    [CHUNKS][m][SEGMENTS]  of the first chunks, and of all others in turn
     * b        [units][NR][512]       codes of a chunk, position after position */
};
enum {
    WIDTH = NR * 16,
    MANY = 2 * WIDTH + SEGMENTS + CHUNKS * SEGMENTS, /* words a row */
    UNIT_WORDS = NR * 512 / 4
};
_Static_assert(sizeof(struct chunk_scratch) + 4 * (PASS * MANY + CHUNK * UNIT_WORDS) == 254080,
               "kernels.inc says so");
_Static_assert(sizeof(struct chunk_scratch) + 4 * (QNI_SMALL_ROWS * WIDTH + 2 * PASS * SEGMENTS) ==
                   42112,
               "and so for few rows");
_Static_assert(sizeof(struct chunk_scratch) +
                       4 * (QNI_SMALL_ROWS * MANY + CHUNK / 4 * UNIT_WORDS) <=
                   42112,
               "and so, where many rows' ways serve");

/* `before` words of each row lie before it. */
static inline int32_t *rows_at(const struct qni_matmul_tile *t, int64_t before)
{
    struct chunk_scratch *const s = t->scratch;
    return s->rest + before * t->m;
}
static inline float *odd_of(const struct qni_matmul_tile *t)
{
    return (float *)rows_at(t, 0);
}
static inline int32_t *few_begin(const struct qni_matmul_tile *t)
{
    return rows_at(t, WIDTH);
}
static inline float *few_total(const struct qni_matmul_tile *t)
{
    return (float *)rows_at(t, WIDTH + t->n_segments);
}
static inline int32_t *waiting_of(const struct qni_matmul_tile *t)
{
    return rows_at(t, WIDTH);
}
static inline float *many_total(const struct qni_matmul_tile *t)
{
    return (float *)rows_at(t, 2 * WIDTH);
}
static inline int32_t *many_begin(const struct qni_matmul_tile *t, int64_t chunk)
{
    return rows_at(t, 2 * WIDTH + SEGMENTS + (chunk < CHUNKS ? chunk : CHUNKS - 1) * SEGMENTS);
}
static inline uint8_t *bytes_of(const struct qni_matmul_tile *t)
{
    return (uint8_t *)rows_at(t, MANY);
}

/* A segment, or the part of it that is in a chunk. */
struct segment_part {
    int64_t group, segment, unit, units;
    bool begins, ends;
};

static inline struct segment_part next_segment(const struct qni_matmul_tile *t,
                                               const struct segment_part *p)
{
    struct segment_part n = {p->group, p->segment + 1, p->unit + p->units, 0, true, true};
    n.group += n.unit >= (p->group + 1) * t->group_units;
    int64_t end = (n.group + 1) * t->group_units;
    end = end < t->units ? end : t->units;
    n.units = end - n.unit < t->segment_units ? end - n.unit : t->segment_units;
    return n;
}

static inline struct segment_part first_segment(const struct qni_matmul_tile *t)
{
    const struct segment_part before = {0, -1, 0, 0, true, true};
    return next_segment(t, &before);
}

/* Two panels, and where their results go: c of row 0. The last of an odd number of panels is both
 * of its pair, whose results are not yet c's. begin: what sums of a chunk begin at. */
struct pair {
    int64_t panel[NR];
    const uint8_t *codes[NR];
    int32_t *begin;
    float *c;
    size_t ldc;
};

static struct pair begin_pair(const struct qni_matmul_tile *t, int64_t panel)
{
    const bool both = panel + 1 < t->n_panels;
    struct pair p = {{panel, both ? panel + 1 : panel}, {NULL, NULL}, NULL, odd_of(t), WIDTH};
    for (int j = 0; j < NR; j++)
        p.codes[j] = t->codes + (size_t)p.panel[j] * t->codes_stride;
    if (both) {
        p.c = t->c + panel * QNI_PANEL;
        p.ldc = t->ldc;
    }
    for (int64_t i = 0; i < t->m; i++)
        memset(p.c + (size_t)i * p.ldc, 0, NR * 16 * sizeof *p.c);
    return p;
}

static void end_pair(const struct qni_matmul_tile *t, const struct pair *p)
{
    if (p->panel[0] != p->panel[1])
        return;
    for (int64_t i = 0; i < t->m; i++)
        memcpy(t->c + (size_t)i * t->ldc + (size_t)p->panel[0] * QNI_PANEL,
               p->c + (size_t)i * p->ldc, 16 * sizeof *p->c);
}

/* ---- codes and products ---------------------------------------------------------------------- */

QNI_TEMPLATE bool is_table(const int kind)
{
    return kind == NIBBLE_TABLE || kind == COUNTED_TABLE;
}

/* What bytes are more than the values of their codes. */
QNI_TEMPLATE int32_t bias_of(const struct qni_matmul_tile *t, const int kind)
{
    return kind == PLANES ? t->compact->bias : kind == NIBBLES ? 8 : 128;
}

QNI_TEMPLATE __m512i table_of(const struct qni_matmul_tile *t, const int kind)
{
    if (!is_table(kind) && (kind != PLANES || t->table8 == NULL))
        return _mm512_setzero_si512();
    return _mm512_xor_si512(_mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)t->table8)),
                            _mm512_set1_epi8((char)0x80)); /* + 128 */
}

/* Four unsigned codes a lane, positions 4 r .. 4 r + 3 (low) and 16 + 4 r .. (high) of a unit. */
QNI_TEMPLATE void unpack_nibbles(const uint8_t *codes, const int kind, __m512i table, __m512i *low,
                                 __m512i *high)
{
    qni_nibbles16(_mm512_loadu_si512(codes), low, high);
    if (is_table(kind)) {
        *low = _mm512_shuffle_epi8(table, *low);
        *high = _mm512_shuffle_epi8(table, *high);
    }
}

struct rows {
    const int8_t *a[FEW];
};

/* dot[i][j] += u of panel j * four positions of row i; count[j] += the same of ones. */
QNI_TEMPLATE void add_quad(const struct rows *rows, int64_t at, const __m512i *u, const int mr,
                           const bool counts, __m512i (*dot)[NR], __m512i *count)
{
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        int32_t four;
        memcpy(&four, rows->a[i] + at, sizeof four);
        const __m512i x = _mm512_set1_epi32(four);
        QNI_UNROLL
        for (int j = 0; j < NR; j++)
            dot[i][j] = _mm512_dpbusd_epi32(dot[i][j], u[j], x);
    }
    if (!counts)
        return;
    QNI_UNROLL
    for (int j = 0; j < NR; j++)
        count[j] = _mm512_dpbusd_epi32(count[j], u[j], _mm512_set1_epi8(1));
}

/* ---- the float steps of docs/numerics.md ----------------------------------------------------- */

/* What the columns of a pair bring to a segment. */
struct columns {
    __m512 scale[NR], offset[NR], sums[NR];
    __m512i zero[NR]; /* x_zero * sum of code values */
};

QNI_TEMPLATE void columns_of(const struct qni_matmul_tile *t, const struct segment_part *p,
                             const struct pair *pair, const int kind, const int steps,
                             struct columns *w)
{
    QNI_UNROLL
    for (int j = 0; j < NR; j++) {
        const int64_t panel = pair->panel[j], group = panel * t->n_groups + p->group;
        w->offset[j] = w->sums[j] = _mm512_setzero_ps();
        if (t->compact != NULL) {
            qni_affine16(t->compact, t->compact_panel + panel, p->group, &w->scale[j],
                         &w->offset[j]);
        } else {
            w->scale[j] = qni_load16(t->scale, group, t->scale_is_f16);
            if (t->offset != NULL)
                w->offset[j] = qni_load16(t->offset, group, t->scale_is_f16);
        }
        if ((is_table(kind) || kind == PLANES) && t->table8_doubled)
            w->scale[j] = _mm512_mul_ps(w->scale[j], _mm512_set1_ps(0.5f));
        if (steps == SHIFTED && kind == NIBBLE_TABLE) /* padding may stand for any value */
            w->sums[j] = _mm512_cvtepi32_ps(
                _mm512_loadu_si512(t->sums + (panel * t->n_segments + p->segment) * 16));
        w->zero[j] = _mm512_setzero_si512();
        if (t->x_zero != 0)
            w->zero[j] = _mm512_mullo_epi32(
                _mm512_loadu_si512(t->sums + (panel * t->n_segments + p->segment) * 16),
                _mm512_set1_epi32(t->x_zero));
    }
}

/* What rows bring to it, each `ld` elements after the one before, and where their results are.
 * total: with offsets; ROW: of codes, at real positions. */
struct facts {
    const float *scale, *offset, *total;
    size_t ld, ld_total;
    float *c;
    size_t ldc;
};

QNI_TEMPLATE struct facts facts_of(const struct qni_matmul_tile *t, const struct pair *pair,
                                   int64_t row, int64_t segment, const int steps)
{
    const size_t at = (size_t)row * t->ld_segment + (size_t)segment;
    struct facts f = {NULL, NULL, NULL, t->ld_segment, t->ld_segment, NULL, pair->ldc};
    if (steps != ROW)
        f.scale = t->a_scale + at;
    if (steps == SHIFTED)
        f.offset = t->a_offset + at;
    if (steps != ROW && t->offset != NULL)
        f.total = t->a_total + at;
    f.c = pair->c + (size_t)row * pair->ldc;
    return f;
}

/* Q8 with offsets: the sum of a row's codes over the real positions of a segment. */
static inline float sum_of_codes(const struct qni_matmul_tile *t, size_t at, int64_t segment)
{
    const int32_t zero = t->x_zero == 0 ? 0 : t->x_zero * t->counts[segment];
    return (float)(t->a_sum[at] - zero);
}

QNI_TEMPLATE void add_rows(const struct columns *w, struct facts f, __m512i (*dot)[NR],
                           const int mr, const int steps, const bool has_offset)
{
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        const float total = has_offset ? *f.total : 0;
        /* Kept in registers: as operands of both panels' steps they would be twice the loads. */
        __m512 x_scale = _mm512_setzero_ps(), x_offset = x_scale;
        if (steps != ROW) {
            x_scale = _mm512_set1_ps(*f.scale);
            QNI_KEEP(x_scale);
        }
        if (steps == SHIFTED) {
            x_offset = _mm512_set1_ps(*f.offset);
            QNI_KEEP(x_offset);
        }
        QNI_UNROLL
        for (int j = 0; j < NR; j++) {
            __m512 acc = _mm512_loadu_ps(f.c + 16 * j), term = _mm512_cvtepi32_ps(dot[i][j]);
            if (steps == BLOCK)
                term = _mm512_mul_ps(x_scale, term);
            if (steps == SHIFTED)
                term = _mm512_fmadd_ps(x_scale, term, _mm512_mul_ps(x_offset, w->sums[j]));
            acc = _mm512_fmadd_ps(w->scale[j], term, acc);
            if (has_offset)
                acc = _mm512_fmadd_ps(w->offset[j], _mm512_set1_ps(total), acc);
            _mm512_storeu_ps(f.c + 16 * j, acc);
        }
        if (steps != ROW) /* NULL else, to which nothing may be added */
            f.scale += f.ld;
        if (steps == SHIFTED)
            f.offset += f.ld;
        if (has_offset)
            f.total += f.ld_total;
        f.c += f.ldc;
    }
}

/* Q8: int32 results. */
QNI_TEMPLATE void add_raw(struct facts f, __m512i (*dot)[NR], const int mr)
{
    QNI_UNROLL
    for (int i = 0; i < mr; i++, f.c += f.ldc)
        for (int j = 0; j < NR; j++)
            _mm512_storeu_si512(f.c + 16 * j,
                                _mm512_add_epi32(_mm512_loadu_si512(f.c + 16 * j), dot[i][j]));
}

QNI_TEMPLATE void sub_zero(const struct columns *w, __m512i (*dot)[NR], const int mr)
{
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        for (int j = 0; j < NR; j++)
            dot[i][j] = _mm512_sub_epi32(dot[i][j], w->zero[j]);
}

/* The sums of a segment are complete. */
QNI_TEMPLATE void end_segment(const struct qni_matmul_tile *t, const struct columns *w,
                              struct facts f, __m512i (*dot)[NR], const int mr, const int steps)
{
    if (steps == ROW && t->x_zero != 0)
        sub_zero(w, dot, mr);
    if (steps == ROW && t->raw_i32)
        add_raw(f, dot, mr);
    else if (t->offset != NULL)
        add_rows(w, f, dot, mr, steps, true);
    else
        add_rows(w, f, dot, mr, steps, false);
}

/* ---- few rows -------------------------------------------------------------------------------- */

struct operands {
    const struct pair *pair;
    const struct qni_compact_panels *compact;
    __m512i table;
    bool is_table;
    int64_t units; /* of all k; planes: bytes */
    size_t skip; /* bytes; what is asked for ahead of a panel's end is of one after the neighbour */
    size_t far;  /* bytes to the same place of a later pair, where panels are shorter than FAR; 0 */
    struct rows rows;
};

/* dot[i][j] += u * a[i] for codes in planes of bits, half a unit at a time. */
QNI_TEMPLATE void dot_planes(const struct operands *o, const struct segment_part *p, const int mr,
                             const bool counts, __m512i (*dot)[NR], __m512i *count)
{
    const int64_t bits = o->compact->bits, unit_bytes = 64 * bits;
    const bool halves = o->compact->halves != 0;
    const int64_t first = halves ? p->unit : 2 * p->unit, n = halves ? p->units : 2 * p->units;
    for (int64_t half = first; half < first + n; half++) {
        const int64_t unit = half >> 1, h = half & 1;
        const size_t ahead = AHEAD + ((unit + 1) * unit_bytes + AHEAD > o->units ? o->skip : 0);
        const uint8_t *codes[NR];
        __m512i v[NR][4];
        QNI_UNROLL
        for (int j = 0; j < NR; j++) {
            codes[j] = o->pair->codes[j] + unit * unit_bytes;
            for (int64_t r = 0; r < unit_bytes && h == 0; r += 64)
                _mm_prefetch((const char *)codes[j] + ahead + r, _MM_HINT_T0);
        }
        QNI_UNROLL
        for (int j = 0; j < NR; j++)
            qni_take_bits(codes[j], bits, h, v[j]);
        const int64_t at = halves ? half * QNI_UNIT : half * (QNI_UNIT / 2);
        QNI_UNROLL
        for (int r = 0; r < 4; r++) {
            __m512i u[NR];
            QNI_UNROLL
            for (int j = 0; j < NR; j++)
                u[j] = o->is_table ? _mm512_shuffle_epi8(o->table, v[j][r]) : v[j][r];
            add_quad(&o->rows, at + 4 * r, u, mr, counts, dot, count);
        }
    }
}

/* dot[i][j] += u * a[i] over units of panel j; count[j] += u. */
QNI_TEMPLATE void dot_codes(const struct operands *o, const struct segment_part *p, const int mr,
                            const int kind, const bool counts, __m512i (*dot)[NR], __m512i *count)
{
    const int64_t unit_bytes = kind == BYTES ? 512 : 256;
    const int vectors = kind == BYTES ? 8 : 4;
    if (kind == PLANES) {
        dot_planes(o, p, mr, counts, dot, count);
        return;
    }
    for (int64_t unit = p->unit; unit < p->unit + p->units; unit++) {
        const uint8_t *codes[NR];
        const size_t skip = unit + FAR / unit_bytes >= o->units ? o->skip : 0;
        const size_t ahead = o->far > 0 ? o->far : FAR + skip;
        QNI_UNROLL
        for (int j = 0; j < NR; j++) {
            codes[j] = o->pair->codes[j] + unit * unit_bytes;
            QNI_UNROLL
            for (int64_t r = 0; r < unit_bytes; r += 64) {
                _mm_prefetch((const char *)codes[j] + ahead + r, _MM_HINT_T1);
                _mm_prefetch((const char *)codes[j] + NEAR + r, _MM_HINT_T0);
            }
        }
        const int64_t at = unit * QNI_UNIT;
        QNI_UNROLL
        for (int r = 0; r < vectors; r++) {
            __m512i low[NR], high[NR];
            QNI_UNROLL
            for (int j = 0; j < NR; j++) {
                if (kind == BYTES)
                    low[j] = _mm512_loadu_si512(codes[j] + 64 * r);
                else
                    unpack_nibbles(codes[j] + 64 * r, kind, o->table, &low[j], &high[j]);
            }
            add_quad(&o->rows, at + 4 * r, low, mr, counts, dot, count);
            if (kind != BYTES)
                add_quad(&o->rows, at + 16 + 4 * r, high, mr, counts, dot, count);
        }
    }
}

/* What a codebook's padding adds to the sums of a segment. */
QNI_TEMPLATE int32_t padding_of(const struct qni_matmul_tile *t, const struct segment_part *p,
                                const int kind)
{
    const bool padded = kind == COUNTED_TABLE || kind == PLANES;
    return padded && p->segment + 1 == t->n_segments ? t->compact->padding_sum : 0;
}

/* All of k for mr rows and a pair. */
QNI_TEMPLATE void few_rows_of_pair(const struct qni_matmul_tile *t, const struct pair *pair,
                                   const int mr, const int kind, const int steps)
{
    const int32_t *const begin = few_begin(t);
    const bool counts = steps == SHIFTED && kind != NIBBLE_TABLE;
    const bool halves = kind == PLANES && t->compact->halves != 0;
    const int32_t full = -bias_of(t, kind) * (halves ? QNI_UNIT / 2 : QNI_UNIT);
    struct operands o;
    o.pair = pair;
    o.compact = t->compact;
    o.table = table_of(t, kind);
    o.is_table = t->table8 != NULL;
    o.units = kind == PLANES ? (int64_t)t->codes_stride : t->units;
    o.far = t->codes_stride >= FAR ? 0 : 2 * (FAR + t->codes_stride - FAR % t->codes_stride);
    o.skip = pair->panel[0] == pair->panel[1] ? 0 : t->codes_stride;
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        o.rows.a[i] = (const int8_t *)t->a + (size_t)i * t->lda;
    struct segment_part p = first_segment(t);
    for (; p.unit < t->units; p = next_segment(t, &p)) {
        struct columns w;
        __m512i dot[FEW][NR], count[NR];
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            dot[i][0] = dot[i][1] = _mm512_set1_epi32(begin[i * t->n_segments + p.segment]);
        count[0] = count[1] =
            _mm512_set1_epi32(full * (int32_t)p.units - padding_of(t, &p, kind));
        dot_codes(&o, &p, mr, kind, counts, dot, count);
        columns_of(t, &p, pair, kind, steps, &w);
        QNI_UNROLL
        for (int j = 0; j < NR && counts; j++)
            w.sums[j] = _mm512_cvtepi32_ps(count[j]);
        struct facts f = facts_of(t, pair, 0, p.segment, steps);
        if (steps == ROW) {
            f.total = few_total(t) + p.segment;
            f.ld_total = (size_t)t->n_segments;
        }
        end_segment(t, &w, f, dot, mr, steps);
    }
}

QNI_VARIANTS void few_rows(const struct qni_matmul_tile *t, const int mr, const int kind,
                           const int steps)
{
    /* A copy has no other name, so that stores to c leave its fields in registers. */
    const struct qni_matmul_tile own = *t;
    int32_t *const begin = few_begin(t);
    const int32_t bias = bias_of(t, kind);
    for (int64_t i = 0, n = 0; i < mr; i++)
        for (int64_t k = 0; k < t->n_segments; k++, n++) {
            const size_t at = (size_t)i * t->ld_segment + (size_t)k;
            begin[n] = -bias * t->a_sum[at];
            if (steps == ROW && t->offset != NULL)
                few_total(t)[n] = sum_of_codes(t, at, k);
        }
    for (int64_t panel = 0; panel < t->n_panels; panel += NR) {
        const struct pair pair = begin_pair(t, panel);
        few_rows_of_pair(&own, &pair, mr, kind, steps);
        end_pair(t, &pair);
    }
}

/* ---- many rows ------------------------------------------------------------------------------- */

/* Units of a chunk. Fewer than fit in the first cache while few rows pass over them: what comes
 * from memory arrives while they do. */
static int64_t chunk_units(int64_t rows)
{
    return rows <= 2 * MR ? CHUNK / 4 : rows < 8 * MR ? CHUNK / 2 : CHUNK;
}

/* The pieces of the next chunk; *next: where it begins, then where it ends. */
static int64_t cut_chunk(const struct qni_matmul_tile *t, struct segment_part *next,
                         struct segment_part *pieces)
{
    const int64_t most = chunk_units(t->m);
    int64_t count = 0, room = most;
    while (next->unit < t->units && count < SEGMENTS && (next->units <= room || room == most)) {
        struct segment_part *const p = &pieces[count++];
        *p = *next;
        if (p->units > most) { /* a part of a segment; the rest is the next chunk's */
            p->units = most;
            p->ends = false;
            next->unit += most;
            next->units -= most;
            next->begins = false;
            break;
        }
        room -= p->units;
        *next = next_segment(t, p);
        if (room == 0)
            break;
    }
    return count;
}

/* What the rows bring to a chunk. */
static void rows_of_chunk(const struct qni_matmul_tile *t, const struct segment_part *p,
                          int64_t count, int32_t bias, bool sums, int32_t *begin)
{
    float *const total = many_total(t);
    const __mmask16 there = (__mmask16)((1 << count) - 1);
    for (int64_t i = 0; i < t->m; i++) {
        const size_t at = (size_t)i * t->ld_segment + (size_t)p->segment;
        const __m512i sum = _mm512_maskz_loadu_epi32(there, t->a_sum + at);
        _mm512_store_si512(begin + i * SEGMENTS, _mm512_mullo_epi32(sum, _mm512_set1_epi32(-bias)));
        for (int64_t k = 0; k < count && sums; k++)
            total[i * SEGMENTS + k] = sum_of_codes(t, at + (size_t)k, p[k].segment);
    }
}

/* Bytes of a unit of codes. Of groups that share units, half of them. */
QNI_TEMPLATE int64_t unit_bytes_of(const struct qni_matmul_tile *t, const int kind)
{
    if (kind == PLANES)
        return t->compact->halves ? 32 * t->compact->bits : 64 * t->compact->bits;
    return kind == BYTES ? 512 : 256;
}

/* Codes of a chunk as unsigned bytes, and what the columns bring to it. */
QNI_TEMPLATE void unpack_chunk(const struct qni_matmul_tile *t, const struct pair *pair,
                               const struct segment_part *pieces, int64_t n, const int kind,
                               const int steps)
{
    struct chunk_scratch *const s = t->scratch;
    const int64_t unit_bytes = unit_bytes_of(t, kind);
    const bool halves = kind == PLANES && t->compact->halves != 0;
    const int32_t bias = bias_of(t, kind) * (halves ? QNI_UNIT / 2 : QNI_UNIT);
    const int vectors = kind == BYTES ? 8 : 4;
    const bool counts = steps == SHIFTED && kind != NIBBLE_TABLE;
    const __m512i table = table_of(t, kind), ones = _mm512_set1_epi8(1);
    int64_t at = 0;
    for (int64_t k = 0; k < n; k++) {
        const struct segment_part p = pieces[k];
        struct columns w;
        columns_of(t, &p, pair, kind, steps, &w);
        QNI_UNROLL
        for (int j = 0; j < NR; j++) {
            const uint8_t *codes = pair->codes[j] + p.unit * unit_bytes;
            uint8_t *out = bytes_of(t) + (at * NR + j) * 512;
            const int32_t padding = p.ends ? padding_of(t, &p, kind) : 0;
            __m512i count = _mm512_set1_epi32(-bias * (int32_t)p.units - padding);
            if (!p.begins)
                count = _mm512_add_epi32(count, _mm512_load_si512(s->counted[j]));
            for (int64_t u = 0; u < p.units && kind == PLANES; u++, out += NR * 512)
                qni_unpack_planes(t, pair->codes[j], p.unit + u, table, counts, out, &count);
            for (int64_t u = 0; u < p.units && kind != PLANES; u++, codes += unit_bytes) {
                QNI_UNROLL
                for (int r = 0; r < vectors; r++) {
                    __m512i low, high = _mm512_setzero_si512();
                    if (kind == BYTES)
                        low = _mm512_loadu_si512(codes + 64 * r);
                    else
                        unpack_nibbles(codes + 64 * r, kind, table, &low, &high);
                    _mm512_store_si512(out + 64 * r, low);
                    if (kind != BYTES)
                        _mm512_store_si512(out + 256 + 64 * r, high);
                    if (counts && kind == COUNTED_TABLE) /* two of these are more than a byte */
                        count = _mm512_dpbusd_epi32(_mm512_dpbusd_epi32(count, low, ones), high,
                                                    ones);
                    else if (counts)
                        count = _mm512_dpbusd_epi32(count, _mm512_add_epi8(low, high), ones);
                }
                out += NR * 512;
            }
            _mm512_store_ps(s->scale[j][k], w.scale[j]);
            _mm512_store_ps(s->offset[j][k], w.offset[j]);
            _mm512_store_ps(s->sums[j][k], counts ? _mm512_cvtepi32_ps(count) : w.sums[j]);
            _mm512_store_si512(s->zero[j][k], w.zero[j]);
            _mm512_store_si512(s->counted[j], count);
        }
        at += p.units;
    }
}

/* Lines of memory that the next chunk needs, asked for while this one is multiplied: `rate` of each
 * panel with every unit. */
struct ahead {
    const char *codes[NR];
    int64_t lines, rate;
};

/* halves: units have first halves alone. */
QNI_TEMPLATE void dot_bytes(const uint8_t *b, const struct rows *rows, int64_t position,
                            int64_t units, const int mr, bool halves, struct ahead *ahead,
                            __m512i (*dot)[NR])
{
    for (int64_t u = 0; u < units; u++, b += NR * 512, position += QNI_UNIT) {
        if (ahead->lines > 0) {
            for (int64_t i = 0; i < ahead->rate; i++) {
                _mm_prefetch(ahead->codes[0] + 64 * i, _MM_HINT_T0);
                _mm_prefetch(ahead->codes[1] + 64 * i, _MM_HINT_T0);
            }
            ahead->codes[0] += 64 * ahead->rate;
            ahead->codes[1] += 64 * ahead->rate;
            ahead->lines -= ahead->rate;
        }
        QNI_UNROLL
        for (int r = 0; r < 8; r++) {
            if (r == 4 && halves)
                break;
            const __m512i codes[NR] = {_mm512_load_si512(b + 64 * r),
                                       _mm512_load_si512(b + 512 + 64 * r)};
            add_quad(rows, position + 4 * r, codes, mr, false, dot, NULL);
        }
    }
}

/* mr rows pass over a chunk. */
QNI_TEMPLATE void block(const struct qni_matmul_tile *job, const struct pair *of,
                        const struct segment_part *pieces, int64_t n, int64_t row,
                        struct ahead *ahead, const int mr, const int steps)
{
    /* Copies have no other name, so that stores to c leave their fields in registers. */
    const struct qni_matmul_tile own = *job, *const t = &own;
    const struct pair own_pair = *of, *const pair = &own_pair;
    struct chunk_scratch *const s = t->scratch;
    const bool halves = t->compact != NULL && t->compact->halves != 0;
    struct rows rows;
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        rows.a[i] = (const int8_t *)t->a + (size_t)(row + i) * t->lda;
    const uint8_t *b = bytes_of(t);
    int32_t *const waiting = waiting_of(t) + row * WIDTH;
    for (int64_t k = 0; k < n; k++) {
        const struct segment_part p = pieces[k];
        __m512i dot[MR][NR];
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            QNI_UNROLL
        for (int j = 0; j < NR; j++)
            dot[i][j] = p.begins ? _mm512_set1_epi32(pair->begin[(row + i) * SEGMENTS + k])
                                 : _mm512_load_si512(waiting + i * WIDTH + 16 * j);
        dot_bytes(b, &rows, p.unit * QNI_UNIT, p.units, mr, halves, ahead, dot);
        b += p.units * NR * 512;
        if (!p.ends) {
            QNI_UNROLL
            for (int i = 0; i < mr; i++)
                QNI_UNROLL
            for (int j = 0; j < NR; j++)
                _mm512_store_si512(waiting + i * WIDTH + 16 * j, dot[i][j]);
            continue;
        }
        struct columns w;
        QNI_UNROLL
        for (int j = 0; j < NR; j++) {
            w.scale[j] = _mm512_load_ps(s->scale[j][k]);
            w.offset[j] = _mm512_load_ps(s->offset[j][k]);
            w.sums[j] = _mm512_load_ps(s->sums[j][k]);
            w.zero[j] = _mm512_load_si512(s->zero[j][k]);
        }
        struct facts f = facts_of(t, pair, row, p.segment, steps);
        if (steps == ROW) {
            f.total = many_total(t) + row * SEGMENTS + k;
            f.ld_total = SEGMENTS;
        }
        end_segment(t, &w, f, dot, mr, steps);
    }
}

/* Rows in blocks of almost equal size: one of a single row costs as much as one of four. */
QNI_TEMPLATE void blocks(const struct qni_matmul_tile *t, const struct pair *pair,
                         const struct segment_part *pieces, int64_t n, struct ahead *ahead,
                         const int steps)
{
    const int64_t n_blocks = (t->m + MR - 1) / MR;
    for (int64_t i = 0; i < n_blocks; i++) {
        const int64_t row = t->m * i / n_blocks;
        switch (t->m * (i + 1) / n_blocks - row) {
        case 8:
            block(t, pair, pieces, n, row, ahead, 8, steps);
            break;
        case 7:
            block(t, pair, pieces, n, row, ahead, 7, steps);
            break;
        case 6:
            block(t, pair, pieces, n, row, ahead, 6, steps);
            break;
        case 5:
            block(t, pair, pieces, n, row, ahead, 5, steps);
            break;
        case 4:
            block(t, pair, pieces, n, row, ahead, 4, steps);
            break;
        default: /* few rows, but more segments than there is room for */
            for (int64_t one = row; one < t->m * (i + 1) / n_blocks; one++)
                block(t, pair, pieces, n, one, ahead, 1, steps);
            break;
        }
    }
}

static void blocks_row(const struct qni_matmul_tile *t, const struct pair *pair,
                       const struct segment_part *pieces, int64_t n, struct ahead *ahead)
{
    blocks(t, pair, pieces, n, ahead, ROW);
}
static void blocks_block(const struct qni_matmul_tile *t, const struct pair *pair,
                         const struct segment_part *pieces, int64_t n, struct ahead *ahead)
{
    blocks(t, pair, pieces, n, ahead, BLOCK);
}
static void blocks_shifted(const struct qni_matmul_tile *t, const struct pair *pair,
                           const struct segment_part *pieces, int64_t n, struct ahead *ahead)
{
    blocks(t, pair, pieces, n, ahead, SHIFTED);
}

/* The codes of the chunk at `next`, or of the next pair's first. */
static struct ahead ahead_of(const struct qni_matmul_tile *t, const struct pair *pair,
                             const struct segment_part *next, int64_t units, int64_t unit_bytes)
{
    const bool same = next->unit < t->units;
    const size_t from = same ? (size_t)(next->unit * unit_bytes) : NR * t->codes_stride;
    struct ahead a = {{NULL, NULL}, 0, 0};
    if (!same && pair->panel[0] + 2 * NR > t->n_panels)
        return a;
    for (int j = 0; j < NR; j++)
        a.codes[j] = (const char *)pair->codes[j] + from;
    const int64_t steps = (t->m + MR - 1) / MR * units;
    a.lines = chunk_units(t->m) * unit_bytes / 64;
    a.rate = (a.lines + steps - 1) / steps;
    return a;
}

QNI_VARIANTS void many_rows(const struct qni_matmul_tile *t, const int kind, const int steps)
{
    const int32_t bias = bias_of(t, kind);
    for (int64_t panel = 0; panel < t->n_panels; panel += NR) {
        struct pair pair = begin_pair(t, panel);
        struct segment_part next = first_segment(t), pieces[SEGMENTS];
        for (int64_t chunk = 0; next.unit < t->units; chunk++) {
            const int64_t from = next.unit, n = cut_chunk(t, &next, pieces);
            const bool totals = steps == ROW && t->offset != NULL;
            pair.begin = many_begin(t, chunk);
            unpack_chunk(t, &pair, pieces, n, kind, steps);
            if (panel == 0 || totals || chunk >= CHUNKS - 1)
                rows_of_chunk(t, pieces, n, bias, totals, pair.begin);
            struct ahead ahead =
                ahead_of(t, &pair, &next, next.unit - from, unit_bytes_of(t, kind));
            (steps == ROW     ? blocks_row
             : steps == BLOCK ? blocks_block
                              : blocks_shifted)(t, &pair, pieces, n, &ahead);
        }
        end_pair(t, &pair);
    }
}

/* ---- jobs ------------------------------------------------------------------------------------ */

/* The job for some of its rows. */
static struct qni_matmul_tile some_rows(const struct qni_matmul_tile *t, int64_t row, int64_t rows)
{
    struct qni_matmul_tile part = *t;
    const size_t facts = (size_t)row * t->ld_segment;
    part.m = rows;
    part.a = (const int8_t *)t->a + (size_t)row * t->lda;
    part.a_sum = t->a_sum + facts;
    part.a_scale = t->a_scale == NULL ? NULL : t->a_scale + facts;
    part.a_offset = t->a_offset == NULL ? NULL : t->a_offset + facts;
    part.a_total = t->a_total == NULL ? NULL : t->a_total + facts;
    part.c = t->c + (size_t)row * t->ldc;
    return part;
}

/* The job for some of its panels. */
static struct qni_matmul_tile some_panels(const struct qni_matmul_tile *t, int64_t panel, int64_t n)
{
    struct qni_matmul_tile part = *t;
    const size_t bytes = (size_t)(panel * t->n_groups) * (t->scale_is_f16 ? 32 : 64);
    part.n_panels = t->n_panels - panel < n ? t->n_panels - panel : n;
    part.codes = t->codes + (size_t)panel * t->codes_stride;
    part.compact_panel += panel;
    part.c = t->c + panel * QNI_PANEL;
    if (t->compact != NULL)
        return part;
    part.scale = (const char *)t->scale + bytes;
    part.offset = t->offset == NULL ? NULL : (const char *)t->offset + bytes;
    part.sums = t->sums == NULL ? NULL : t->sums + panel * t->n_segments * QNI_PANEL;
    return part;
}

/* most: rows that are unpacked in registers at once. */
QNI_VARIANTS void few_job(const struct qni_matmul_tile *t, const int kind, const int steps,
                          const int most)
{
    switch (t->m) {
    case 1:
        few_rows(t, 1, kind, steps);
        break;
    case 2:
        few_rows(t, 2, kind, steps);
        break;
    case 3:
        if (most > 2)
            few_rows(t, 3, kind, steps);
        break;
    case 4:
        if (most > 2)
            few_rows(t, 4, kind, steps);
        break;
    case 5:
        if (most > 4)
            few_rows(t, 5, kind, steps);
        break;
    case 6:
        if (most > 4)
            few_rows(t, 6, kind, steps);
        break;
    case 7:
        if (most > 4)
            few_rows(t, 7, kind, steps);
        break;
    case 8:
        if (most > 4)
            few_rows(t, 8, kind, steps);
        break;
    case 9:
        if (most > 8)
            few_rows(t, 9, kind, steps);
        break;
    default:
        if (most > 8)
            few_rows(t, 10, kind, steps);
        break;
    }
}

QNI_TEMPLATE void job(const struct qni_matmul_tile *t, const int kind, const int steps)
{
    /* Up to 16 rows of nibbles, where memory is the bound for so many, are unpacked in registers,
     * and of bytes 8; more than `most` take turns at the codes of a pair, which the second turn
     * finds in the second cache. What is rare has few forms: each is 1 to 2 KB of code a row. */
    const int most = kind == NIBBLES  ? (steps == SHIFTED ? FEW : MR)
                     : is_table(kind) ? MR / 4
                     : steps == ROW   ? MR
                                      : MR / 2;
    const int64_t limit = kind == NIBBLES  ? (steps == BLOCK ? MR : 2 * MR)
                          : is_table(kind) ? MR / 2
                                           : MR;
    if (t->m <= limit && t->m * t->n_segments <= PASS * SEGMENTS) {
        const int64_t turns = (t->m + most - 1) / most, rows = (t->m + turns - 1) / turns;
        const int64_t panels = turns == 1 ? t->n_panels : NR;
        for (int64_t panel = 0; panel < t->n_panels; panel += panels)
            for (int64_t row = 0; row < t->m; row += rows) {
                const struct qni_matmul_tile of_rows =
                    some_rows(t, row, t->m - row < rows ? t->m - row : rows);
                const struct qni_matmul_tile part = some_panels(&of_rows, panel, panels);
                few_job(&part, kind, steps, most);
            }
        return;
    }
    for (int64_t row = 0; row < t->m; row += PASS) {
        const struct qni_matmul_tile part =
            some_rows(t, row, t->m - row < PASS ? t->m - row : PASS);
        many_rows(&part, kind, steps);
    }
}

/* Compact weights whose codes are not those of the layout: a few rows at a time, or chunks. */
QNI_VARIANTS void planes_job(const struct qni_matmul_tile *t, const int steps)
{
    enum { MOST = 4 };
    if (t->m > QNI_COMPACT_ROWS || t->n_segments > QNI_COMPACT_SEGMENTS) {
        for (int64_t row = 0; row < t->m; row += PASS) {
            const struct qni_matmul_tile part =
                some_rows(t, row, t->m - row < PASS ? t->m - row : PASS);
            many_rows(&part, PLANES, steps);
        }
        return;
    }
    const int64_t fit = QNI_COMPACT_SEGMENTS / t->n_segments;
    const int64_t most = fit < MOST ? fit : MOST, turns = (t->m + most - 1) / most;
    const int64_t rows = (t->m + turns - 1) / turns;
    const int64_t panels = turns == 1 ? t->n_panels : NR;
    for (int64_t panel = 0; panel < t->n_panels; panel += panels)
        for (int64_t row = 0; row < t->m; row += rows) {
            const struct qni_matmul_tile of_rows =
                some_rows(t, row, t->m - row < rows ? t->m - row : rows);
            const struct qni_matmul_tile part = some_panels(&of_rows, panel, panels);
            few_job(&part, PLANES, steps, MOST);
        }
}

static void planes_row(const struct qni_matmul_tile *t)
{
    planes_job(t, ROW);
}
static void planes_block(const struct qni_matmul_tile *t)
{
    if (t->a_offset != NULL)
        planes_job(t, SHIFTED);
    else
        planes_job(t, BLOCK);
}

QNI_TEMPLATE void job_q8(const struct qni_matmul_tile *t, const int kind)
{
    if (t->compact != NULL && t->compact->is_narrow)
        planes_row(t);
    else
        job(t, kind, ROW);
}
void qni_matmul_q8_q4n16_mr8_vnni512(const struct qni_matmul_tile *t)
{
    job_q8(t, NIBBLES);
}
void qni_matmul_q8_t4n16_mr8_vnni512(const struct qni_matmul_tile *t)
{
    job_q8(t, NIBBLE_TABLE);
}
void qni_matmul_q8_q8n16_mr8_vnni512(const struct qni_matmul_tile *t)
{
    job_q8(t, BYTES);
}

QNI_TEMPLATE void job_q8b(const struct qni_matmul_tile *t, const int kind)
{
    if (t->compact != NULL && t->compact->is_narrow)
        planes_block(t);
    else if (t->a_offset != NULL && kind == NIBBLE_TABLE && t->compact != NULL)
        job(t, COUNTED_TABLE, SHIFTED);
    else if (t->a_offset != NULL)
        job(t, kind, SHIFTED);
    else
        job(t, kind, BLOCK);
}
void qni_matmul_q8b_q4n16_mr8_vnni512(const struct qni_matmul_tile *t)
{
    job_q8b(t, NIBBLES);
}
void qni_matmul_q8b_t4n16_mr8_vnni512(const struct qni_matmul_tile *t)
{
    job_q8b(t, NIBBLE_TABLE);
}
void qni_matmul_q8b_q8n16_mr8_vnni512(const struct qni_matmul_tile *t)
{
    job_q8b(t, BYTES);
}
