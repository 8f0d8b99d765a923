/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights on AMX tiles. Contract and operand layouts: kernel.h; how
 * blocks of up to 48 rows x 2 panels pass through the tiles: simd/amx_stream.h, where segments are
 * short simd/amx_run.h, and where many rows have but one simd/amx_chunks.h, or some of two tiles
 * simd/amx_split.h.
 *
 * Two units of a packed panel (64 positions, 16 outputs) are exactly one B tile: 16 rows of 4
 * positions x 16 outputs. Rows of activations are A tiles as they lie. Exact because |sum| <=
 * 128 * 128 * 32768 < 2^31 and the float steps are those of docs/numerics.md.
 *
 * A block keeps its sums in the tiles for all of a segment: storing and loading them once every 512
 * positions takes 8 to 10 ns for each 64 of the 20 that products take, because lines that leave and
 * enter the first-level cache are what these loops are bound by (about 0.5 ns each; 32 of A in 64
 * positions are free). So rows are the outer loop and k the inner one.
 *
 *     few rows     codes are unpacked for every block, each tile four tiles ahead of its products:
 *                  B stays in the first-level cache.
 *     many rows    codes of a pair of panels are unpacked once, 128 KiB, while the last block of
 *                  rows of the pair before is multiplied, each tile in the place of one that has
 *                  been multiplied for the last time. A and B come from the second-level cache.
 *     whole rows,  one segment each: k in chunks, simd/amx_chunks.h has why. Segments of 128
 *     even more    positions, int8-block: smaller chunks, simd/amx_split.h.
 *
 * Facts of the rows are turned round at the start, so that rows of a block lie side by side.
 *
 * Bound: 2 m n k / (2 * 16 * 16 * 64 operations every 16 cycles); and for short segments 32 * 2
 * vectors a block of 3 to 6 instructions on one port: while tiles are multiplied, 512-bit float
 * instructions go to port 0 alone. */
#include <immintrin.h>

#include "../simd/amx_chunks.h"
#include "../simd/amx_run.h"
#include "../simd/amx_split.h"
#include "kernel.h"

enum {
    ROWS = 320,               /* of a pass: the driver's units are no larger */
    BLOCKS = ROWS / 32,       /* at most */
    PIECES = 128,             /* of k that are cut, and have their facts turned, at once, */
    FEW_PIECES = 64,          /* or so many of few rows, where segments are not short */
    FACTS = 3 * QNI_AMX_ROWS, /* floats of a block and piece at most */
    AHEAD = 2048,             /* bytes of a panel */
    RING = 4,                 /* tiles of B for few rows, */
    SPAN = 128,               /* units of k at a time */
    UNIT_BYTES = 512,         /* of B */
    WHOLE = 256,              /* tiles of B at most, where a segment is longer than that; */
    FROM = 2,                 /* which pay from so many blocks of rows on */
    SHARE = 2                 /* log2 of the pieces whose facts share a place, of few rows */
};
enum { NIBBLES = 0, NIBBLE_TABLE = 1, BYTES = 2 };

/* In place of b. */
struct chunk_scratch {
    uint8_t b[2][QNI_AMX_CHUNK][QNI_AMX_STEP];
    int32_t sums[2][QNI_AMX_BATCH][BLOCKS][QNI_AMX_BLOCK_SUMS / 4];
};

struct int8_scratch {
    union {
        uint8_t b[2][WHOLE][QNI_AMX_SLOT];
        struct chunk_scratch chunk;
        struct qni_amx_split_memory split;
    };
    int32_t dots[2][QNI_AMX_ROWS][32];
    float facts[BLOCKS * PIECES * FACTS];
    struct qni_amx_columns columns[4][PIECES];
    struct qni_amx_run_memory run;
};
_Static_assert(sizeof(struct int8_scratch) == 1323008, "kernels.inc says so");

/* Scratch of at most QNI_SMALL_ROWS rows: one block and one tile of rows, whose B is always in the
 * ring. A place for the facts of one piece holds those of 1 << SHARE. Short segments need no
 * columns, and others no memory of runs. */
struct few_scratch {
    uint8_t b[2][RING][QNI_AMX_SLOT];
    int32_t dots[2][QNI_AMX_FEW][32];
    float facts[(PIECES >> SHARE) * 3 * QNI_AMX_RUN_ROWS];
    union {
        struct qni_amx_columns columns[4][FEW_PIECES];
        struct qni_amx_run_memory run;
    };
};
_Static_assert(sizeof(struct few_scratch) == 47104, "and so for few rows");
_Static_assert((int)QNI_AMX_FEW == (int)QNI_SMALL_ROWS, "rows of one tile");
_Static_assert(QNI_AMX_FEW << SHARE <= (int)QNI_AMX_RUN_ROWS, "pieces share a place");
_Static_assert((FEW_PIECES >> SHARE) * FACTS * sizeof(float) <=
                   sizeof((struct few_scratch *)NULL)->facts,
               "facts of segments that are not short");

/* A unit of a panel to signed bytes in tile order. Nibbles are looked up: vpermb looks at the lower
 * six bits of each byte, a nibble and two bits that a table of four copies has no regard for. */
static inline void unpack(const uint8_t *codes, int32_t kind, __m512i table, uint8_t *out)
{
    if (kind == BYTES) {
        const __m512i flip = _mm512_set1_epi8((char)0x80);
        QNI_UNROLL
        for (int r = 0; r < 8; r++)
            _mm512_store_si512(out + 64 * r,
                               _mm512_xor_si512(_mm512_loadu_si512(codes + 64 * r), flip));
        return;
    }
    QNI_UNROLL
    for (int r = 0; r < 4; r++) {
        const __m512i v = _mm512_loadu_si512(codes + 64 * r);
        const __m512i high = _mm512_srli_epi16(v, 4);
        _mm512_store_si512(out + 64 * r, _mm512_permutexvar_epi8(v, table));
        _mm512_store_si512(out + 256 + 64 * r, _mm512_permutexvar_epi8(high, table));
    }
}

/* ---- steps ----------------------------------------------------------------------------------- */

typedef void push_fn(struct qni_amx_stream *st, const struct qni_amx_block *b);

/* A push for each sort of float steps; flush if b is NULL. */
#define PUSH(name, kind)                                                                           \
    static void name(struct qni_amx_stream *st, const struct qni_amx_block *b)                     \
    {                                                                                              \
        if (b != NULL)                                                                             \
            qni_amx_push(st, b, kind);                                                             \
        else                                                                                       \
            qni_amx_flush(st, kind);                                                               \
    }
PUSH(push_raw, QNI_AMX_RAW)
PUSH(push_raw_zero, QNI_AMX_RAW | QNI_AMX_ZERO)
PUSH(push_row, QNI_AMX_ROW)
PUSH(push_row_scaled, QNI_AMX_ROW | QNI_AMX_SCALED)
PUSH(push_row_zero, QNI_AMX_ROW | QNI_AMX_ZERO)
PUSH(push_row_zero_scaled, QNI_AMX_ROW | QNI_AMX_ZERO | QNI_AMX_SCALED)
PUSH(push_row_offset, QNI_AMX_ROW | QNI_AMX_OFFSET)
PUSH(push_row_zero_offset, QNI_AMX_ROW | QNI_AMX_ZERO | QNI_AMX_OFFSET)
PUSH(push_block, QNI_AMX_BLOCK)
PUSH(push_block_offset, QNI_AMX_BLOCK | QNI_AMX_OFFSET)
PUSH(push_shifted, QNI_AMX_SHIFTED)
PUSH(push_shifted_offset, QNI_AMX_SHIFTED | QNI_AMX_OFFSET)
#undef PUSH

typedef void run_fn(struct qni_amx_run *r);

/* Functions of their own for blocks of short segments. */
#define RUN(name, kind)                                                                            \
    static void name(struct qni_amx_run *r)                                                        \
    {                                                                                              \
        qni_amx_run_block(r, kind);                                                                \
    }
RUN(run_row, QNI_AMX_ROW)
RUN(run_row_offset, QNI_AMX_ROW | QNI_AMX_OFFSET)
RUN(run_block, QNI_AMX_BLOCK)
RUN(run_block_offset, QNI_AMX_BLOCK | QNI_AMX_OFFSET)
RUN(run_shifted, QNI_AMX_SHIFTED)
RUN(run_shifted_offset, QNI_AMX_SHIFTED | QNI_AMX_OFFSET)
#undef RUN

typedef void split_fn(const struct qni_amx_split_work *w, struct qni_amx_split_codes *u);

/* Functions of their own for short segments of many rows. */
#define SPLIT(name, kind)                                                                          \
    static void name(const struct qni_amx_split_work *w, struct qni_amx_split_codes *u)            \
    {                                                                                              \
        qni_amx_split_floats(w, u, kind);                                                          \
    }
SPLIT(split_block, QNI_AMX_BLOCK)
SPLIT(split_block_offset, QNI_AMX_BLOCK | QNI_AMX_OFFSET)
SPLIT(split_shifted, QNI_AMX_SHIFTED)
SPLIT(split_shifted_offset, QNI_AMX_SHIFTED | QNI_AMX_OFFSET)
#undef SPLIT

static split_fn *split_for(const struct qni_matmul_tile *t)
{
    const bool offset = t->offset != NULL;
    if (t->a_offset != NULL)
        return offset ? split_shifted_offset : split_shifted;
    return offset ? split_block_offset : split_block;
}

static run_fn *run_for(const struct qni_matmul_tile *t, int32_t reads)
{
    const bool offset = t->offset != NULL;
    if (reads == QNI_READS_Q8)
        return offset ? run_row_offset : run_row;
    if (t->a_offset != NULL)
        return offset ? run_shifted_offset : run_shifted;
    return offset ? run_block_offset : run_block;
}

/* Segments that the largest codes, |x| <= 128, cannot take out of QNI_AMX_RUN; 0: such kernels do
 * not serve. */
static int64_t segments_of_run(const struct qni_matmul_tile *t, int32_t codes)
{
    int64_t most = codes == NIBBLES ? 8 : codes == BYTES ? 128 : 1;
    for (int32_t i = 0; codes == NIBBLE_TABLE && i < 16; i++) {
        const int64_t value = t->table8[i] < 0 ? -t->table8[i] : t->table8[i];
        most = value > most ? value : most;
    }
    const int64_t units = QNI_AMX_RUN / (128 * most * QNI_UNIT);
    /* With both halves of rows, segments of two units are as fast one by one. */
    const int64_t longest = t->m <= 16 ? 4 : 1;
    const bool serves = !t->raw_i32 && t->row_scale == NULL && t->x_zero == 0 &&
                        t->n_segments == t->n_groups && t->segment_units <= longest;
    return serves ? units / t->segment_units / 2 * 2 : 0;
}

static push_fn *push_for(const struct qni_matmul_tile *t, int reads)
{
    const bool offset = t->offset != NULL, zero = t->x_zero != 0;
    if (reads == QNI_READS_Q8 && t->raw_i32)
        return zero ? push_raw_zero : push_raw;
    if (reads == QNI_READS_Q8 && t->row_scale != NULL)
        return zero ? push_row_zero_scaled : push_row_scaled;
    if (reads == QNI_READS_Q8)
        return zero     ? offset ? push_row_zero_offset : push_row_zero
               : offset ? push_row_offset
                        : push_row;
    if (t->a_offset != NULL)
        return offset ? push_shifted_offset : push_shifted;
    return offset ? push_block_offset : push_block;
}

/* ---- a job ----------------------------------------------------------------------------------- */

/* A segment. */
struct segment_part {
    int64_t group, segment, unit, units;
};

/* The tile of B to unpack next: of `n` panels from `panel` on, for a block of rows, of a piece the
 * last `units`. */
struct feed {
    int64_t panel, n, row, rows, piece, units;
    const uint8_t *codes[2];
    const uint8_t *until;     /* up to here in codes[0] */
    ptrdiff_t ahead, to_next; /* what is asked for is of this pair, and then of the next one */
};

struct job {
    const struct qni_matmul_tile *t;
    struct int8_scratch *s; /* whose fields up to chunks and split are for many rows alone */
    push_fn *push;
    run_fn *run;   /* NULL: long segments */
    int32_t codes; /* NIBBLES ... */
    __m512i table; /* four copies of the values of nibbles */
    int32_t reads;
    int32_t n_facts;
    int64_t fact_rows; /* from fact to fact */
    int32_t share;     /* SHARE, or 0 */
    float *facts;
    int32_t *dots[2];                   /* [][32] */
    size_t b_second;                    /* bytes from the first panel of B to the second */
    struct qni_amx_columns *columns[4]; /* of so many pairs in turn */
    int64_t most_pieces;
    int64_t tile_units;    /* of a B tile: 2 of int8, or 1 where segments have an odd number */
    int64_t blocks, pairs; /* so far */
    struct qni_amx_cut cut;
    const struct segment_part *pieces;
    int64_t n_pieces;
    struct feed feed;
    struct qni_amx_stream stream;
    struct qni_amx_run run_block;
};

struct pair {
    int64_t panel, n; /* 1 or 2 */
};

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* One of the facts of 16 rows from `row` on, as floats; rows past the end give 0. */
static __m512 rows_of_fact(const struct qni_matmul_tile *t, const void *fact, int64_t row,
                           int64_t segment, __m512i lanes)
{
    const int64_t left = t->m - row;
    const __mmask16 there = (__mmask16)(left >= 16 ? 0xffff : left <= 0 ? 0 : (1 << left) - 1);
    return _mm512_mask_i32gather_ps(_mm512_setzero_ps(), there, lanes,
                                    (const float *)fact + (size_t)row * t->ld_segment + segment, 4);
}

/* Scales of 16 rows from `row` on; rows past the end have 0. */
static __m512 scales_of_rows(const struct qni_matmul_tile *t, int64_t row)
{
    const int64_t left = t->m - row;
    const __mmask16 there = (__mmask16)(left >= 16 ? 0xffff : left <= 0 ? 0 : (1 << left) - 1);
    return _mm512_maskz_loadu_ps(there, t->row_scale + at_most(row, t->m));
}

/* The facts of 16 rows, or of QNI_SMALL_ROWS where pieces share a place, and a segment, each
 * fact_rows from the one before. */
QNI_TEMPLATE void put_facts(const struct job *j, int64_t row, int64_t segment, float *at)
{
    const struct qni_matmul_tile *t = j->t;
    const __mmask16 own = j->share > 0 ? (1 << QNI_AMX_FEW) - 1 : 0xffff;
    const __m512i lanes =
        _mm512_mullo_epi32(_mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15),
                           _mm512_set1_epi32((int32_t)t->ld_segment));
    if (t->row_scale != NULL) {
        _mm512_mask_storeu_ps(at, own, scales_of_rows(t, row));
    } else if (j->reads == QNI_READS_Q8) {
        const int32_t zero = t->x_zero == 0 ? 0 : t->x_zero * t->counts[segment];
        const __m512i sum = _mm512_castps_si512(rows_of_fact(t, t->a_sum, row, segment, lanes));
        _mm512_mask_storeu_ps(at, own,
                              _mm512_cvtepi32_ps(_mm512_sub_epi32(sum, _mm512_set1_epi32(zero))));
    } else {
        _mm512_mask_storeu_ps(at, own, rows_of_fact(t, t->a_scale, row, segment, lanes));
        if (t->a_offset != NULL)
            _mm512_mask_storeu_ps(at += j->fact_rows, own,
                                  rows_of_fact(t, t->a_offset, row, segment, lanes));
        if (t->offset != NULL)
            _mm512_mask_storeu_ps(at + j->fact_rows, own,
                                  rows_of_fact(t, t->a_total, row, segment, lanes));
    }
}

/* Where the facts of a piece begin within those of its block. */
static int64_t facts_at(const struct job *j, int64_t piece)
{
    return qni_amx_shared_place(piece, j->share, j->n_facts * j->fact_rows);
}

/* The facts of all rows and these segments, in the order in which blocks use them: [block]
 * [segment][fact][fact_rows]. */
static void turn_facts(const struct job *j, const struct segment_part *p, int64_t count, float *to)
{
    for (int64_t i = 0; i < j->cut.blocks && j->n_facts > 0; i++) {
        const struct qni_amx_rows r = qni_amx_rows_at(&j->cut, i);
        for (int64_t k = 0; k < count; k++)
            for (int64_t done = 0; done < r.rows; done += 16)
                put_facts(j, r.base + done, p[k].segment, to + facts_at(j, k) + done);
        to += count * j->n_facts * j->fact_rows;
    }
}

/* Where the codes of a piece begin. */
static void aim_feed(const struct job *j, struct feed *f)
{
    const int64_t unit_bytes = j->codes == BYTES ? 512 : 256;
    const struct segment_part *const p = &j->pieces[f->piece];
    for (int64_t i = 0; i < 2; i++)
        f->codes[i] = j->t->codes + (size_t)(f->panel + (i < f->n ? i : 0)) * j->t->codes_stride +
                      p->unit * unit_bytes;
    f->units = p->units;
    if (f->piece == 0) {
        const struct segment_part *const last = p + j->n_pieces - 1;
        const int64_t bytes = (last->unit + last->units - p->unit) * unit_bytes;
        f->until = bytes > AHEAD ? f->codes[0] + bytes - AHEAD : f->codes[0];
        f->ahead = AHEAD;
        f->to_next = AHEAD + 2 * (ptrdiff_t)j->t->codes_stride - bytes;
    }
}

/* The tiles are full: on to the next. Pieces change fastest, then blocks of rows, then pairs. */
static void move_feed(struct job *j, struct feed *f)
{
    const int64_t bytes = j->tile_units * (j->codes == BYTES ? 512 : 256);
    f->units -= j->tile_units;
    f->codes[0] += bytes;
    f->codes[1] += bytes;
    if (f->codes[0] >= f->until)
        f->ahead = f->to_next;
    if (f->units > 0)
        return;
    if (++f->piece == j->n_pieces) {
        f->piece = 0;
        if (++f->row >= f->rows) {
            f->row = 0;
            f->panel += 2;
            f->n = at_most(2, j->t->n_panels - f->panel);
        }
    }
    if (f->n > 0)
        aim_feed(j, f);
}

/* Quarters of the next tiles of B, to where the stream stands. */
static void feed(void *arg, int32_t quarter, int32_t end)
{
    struct job *const j = arg;
    struct feed *const f = &j->feed;
    const int64_t unit_bytes = j->codes == BYTES ? 512 : 256;
    for (; quarter < end && (quarter >> 1) < f->n; quarter++) {
        const int64_t panel = quarter >> 1, unit = quarter & 1;
        const uint8_t *const codes = f->codes[panel] + unit * unit_bytes;
        uint8_t *const out = (uint8_t *)j->stream.ring + (size_t)panel * j->b_second +
                             j->stream.slot * QNI_AMX_SLOT + unit * UNIT_BYTES;
        if (unit >= j->tile_units)
            continue;
        if (unit >= f->units) {
            memset(out, 0, UNIT_BYTES);
            continue;
        }
        for (int64_t line = 0; line < unit_bytes; line += 64)
            _mm_prefetch((const char *)codes + f->ahead + line, _MM_HINT_T0);
        unpack(codes, j->codes, j->table, out);
    }
    if (end == 4 && f->n > 0)
        move_feed(j, f);
}

/* For many rows, codes of the pair after this one are asked for while it is multiplied; few rows
 * soon come to them, and every request takes time. */
static void look_ahead(struct job *j, int64_t panel)
{
    const struct qni_matmul_tile *t = j->t;
    struct qni_amx_stream *const st = &j->stream;
    const int64_t unit_bytes = j->codes == BYTES ? 512 : 256;
    const struct segment_part *const first = j->pieces, *const last = first + j->n_pieces - 1;
    const int64_t units = last->unit + last->units - first->unit;
    const int64_t tiles = (units + j->tile_units - 1) / j->tile_units * j->cut.blocks;
    const int64_t left = t->n_panels - panel - 2;
    for (int64_t i = 0; i < 2; i++)
        st->ahead[i] = (const char *)t->codes +
                       (size_t)(panel + 2 + (i < left ? i : 0)) * t->codes_stride +
                       first->unit * unit_bytes;
    st->lines = left > 0 && j->cut.blocks >= FROM ? units * unit_bytes / 64 : 0;
    st->rate = (st->lines + tiles - 1) / tiles;
}

/* What the columns of a pair bring to these pieces. Blocks that are still on their way may be of
 * the two pairs before. */
static const struct qni_amx_columns *columns_of(struct job *j, struct pair pair,
                                                const struct segment_part *p, int64_t count)
{
    const struct qni_matmul_tile *t = j->t;
    struct qni_amx_columns *const c = j->columns[j->pairs++ & 3];
    const size_t scale_bytes = t->scale_is_f16 ? 32 : 64;
    for (int64_t k = 0; k < count; k++)
        for (int64_t i = 0; i < 2; i++) {
            const int64_t panel = pair.panel + (i < pair.n ? i : 0);
            const size_t at = (size_t)(panel * t->n_groups + p[k].group) * scale_bytes;
            c[k].scale[i] = (const char *)t->scale + at;
            c[k].offset[i] = t->offset == NULL ? NULL : (const char *)t->offset + at;
            c[k].sums[i] = t->sums == NULL
                               ? NULL
                               : t->sums + (panel * t->n_segments + p[k].segment) * QNI_PANEL;
        }
    return c;
}

/* No division: it is asked once for every piece and block. */
static int64_t tiles_of(const struct job *j, const struct segment_part *p)
{
    return j->tile_units == 2 ? (p->units + 1) / 2 : p->units;
}

/* A block of rows and a piece; what becomes of its sums is written to the stream. */
QNI_TEMPLATE struct qni_amx_block block_of(struct job *j, struct pair pair,
                                           const struct qni_amx_rows *r,
                                           const struct segment_part *p)
{
    const struct qni_matmul_tile *t = j->t;
    struct qni_amx_add *const add = qni_amx_add_of(&j->stream, 0);
    struct qni_amx_block b;
    b.a = (const char *)t->a + (size_t)r->base * t->lda + p->unit * QNI_UNIT;
    b.middle = (size_t)r->middle * t->lda;
    b.last = (size_t)r->last * t->lda;
    b.b_second = pair.n == 2 ? j->b_second : 0;
    b.units = tiles_of(j, p);
    b.out = qni_amx_sink_of(j->dots[j->blocks & 1], r);
    add->dot = j->dots[j->blocks++ & 1];
    add->c = t->c + (size_t)r->base * t->ldc + (size_t)pair.panel * QNI_PANEL;
    add->ldc = t->ldc;
    add->rows = r->rows;
    add->keep = p->unit == 0 ? 0 : 0xffff;
    add->second_panel = pair.n == 2;
    return b;
}

static struct pair pair_at(const struct job *j, int64_t panel)
{
    const struct pair p = {panel, at_most(2, j->t->n_panels - panel)};
    return p;
}

/* A block of rows and all pieces. */
static void run_pieces(struct job *j, struct pair pair, const struct qni_amx_rows *rows,
                       const float *facts)
{
    const struct qni_matmul_tile *t = j->t;
    const struct segment_part *const p = j->pieces;
    struct qni_amx_run *const r = &j->run_block;
    float *const acc = r->m->acc;
    const size_t scale_bytes = t->scale_is_f16 ? 32 : 64;
    r->a = (const char *)t->a + (size_t)rows->base * t->lda + p->unit * QNI_UNIT;
    r->b_second = pair.n == 2 ? j->b_second : 0;
    r->two = rows->tiles == 2;
    r->a_second = (size_t)rows->last * t->lda;
    r->c_second = (size_t)rows->last * 128;
    r->rows = rows->rows;
    r->n = j->n_pieces;
    r->length = p->units * QNI_UNIT;
    r->steps = tiles_of(j, p);
    r->last_steps = tiles_of(j, p + j->n_pieces - 1);
    r->facts = facts;
    for (int64_t i = 0; i < 2; i++) {
        const int64_t at = (pair.panel + (i < pair.n ? i : 0)) * t->n_groups + p->group;
        r->scale[i] = (const char *)t->scale + (size_t)at * scale_bytes;
        r->offset[i] =
            t->offset == NULL ? NULL : (const char *)t->offset + (size_t)at * scale_bytes;
        r->sums[i] = t->sums == NULL ? NULL : t->sums + at * QNI_PANEL;
    }
    float *const c = t->c + (size_t)rows->base * t->ldc + (size_t)pair.panel * QNI_PANEL;
    const size_t bytes = (size_t)pair.n * QNI_PANEL * sizeof *c;
    memset(acc, 0, sizeof r->m->acc);
    for (int64_t i = 0; i < rows->rows && p->unit > 0; i++)
        memcpy(acc + i * 32, c + (size_t)i * t->ldc, bytes);
    j->run(r);
    for (int64_t i = 0; i < rows->rows; i++)
        memcpy(c + (size_t)i * t->ldc, acc + i * 32, bytes);
}

/* Pieces of k for all panels and rows. */
static void span(struct job *j, const struct segment_part *p, int64_t count)
{
    struct qni_amx_stream *const st = &j->stream;
    const int64_t stride = count * j->fact_rows * j->n_facts;
    if (count == 0)
        return;
    j->pieces = p;
    j->n_pieces = count;
    turn_facts(j, p, count, j->facts);
    memset(&j->feed, 0, sizeof j->feed);
    j->feed.n = pair_at(j, 0).n;
    int64_t tiles = 0;
    for (int64_t k = 0; k < count; k++)
        tiles += tiles_of(j, &p[k]);
    const bool whole = tiles <= WHOLE && j->cut.blocks >= FROM;
    st->slots = whole ? tiles : RING;
    j->feed.rows = whole ? 1 : j->cut.blocks;
    aim_feed(j, &j->feed);
    for (st->slot = 0; st->slot < st->slots; st->slot++)
        feed(j, 0, 4);
    st->slot = 0;
    for (int64_t panel = 0; panel < j->t->n_panels; panel += 2) {
        const struct pair pair = pair_at(j, panel);
        const struct qni_amx_columns *const columns =
            j->run == NULL ? columns_of(j, pair, p, count) : NULL;
        look_ahead(j, panel);
        for (int64_t i = 0; i < j->cut.blocks; i++) {
            const struct qni_amx_rows rows = qni_amx_rows_at(&j->cut, i);
            st->feeding = !whole || i + 1 == j->cut.blocks;
            st->far = !st->feeding;
            if (j->run != NULL)
                run_pieces(j, pair, &rows, j->facts + i * stride);
            for (int64_t k = 0; k < count && j->run == NULL; k++) {
                const struct qni_amx_block b = block_of(j, pair, &rows, &p[k]);
                struct qni_amx_add *const add = qni_amx_add_of(st, 0);
                add->columns = &columns[k];
                add->facts = j->facts + i * stride + facts_at(j, k);
                j->push(st, &b);
            }
        }
    }
    if (j->run == NULL)
        j->push(st, NULL);
}

/* Cut k in segments. */
static void all_of_k(struct job *j)
{
    const struct qni_matmul_tile *t = j->t;
    struct segment_part pieces[PIECES];
    int64_t count = 0, segment = 0, unit = 0;
    for (int64_t g = 0; g < t->n_groups; g++) {
        const int64_t end = unit + at_most(t->group_units, t->units - unit);
        for (; unit < end; segment++) {
            const struct segment_part p = {g, segment, unit, at_most(t->segment_units, end - unit)};
            if (count == j->most_pieces || (count > 0 && unit + p.units - pieces[0].unit > SPAN)) {
                span(j, pieces, count);
                count = 0;
            }
            pieces[count++] = p;
            unit += p.units;
        }
    }
    span(j, pieces, count);
}

/* The job for some of its rows. */
static struct qni_matmul_tile some_rows(const struct qni_matmul_tile *t, int64_t row, int64_t rows)
{
    struct qni_matmul_tile part = *t;
    const size_t facts = (size_t)row * t->ld_segment;
    part.m = rows;
    part.a = (const int8_t *)t->a + (size_t)row * t->lda;
    part.a_sum = t->a_sum == NULL ? NULL : t->a_sum + facts;
    part.a_scale = t->a_scale == NULL ? NULL : t->a_scale + facts;
    part.a_offset = t->a_offset == NULL ? NULL : t->a_offset + facts;
    part.a_total = t->a_total == NULL ? NULL : t->a_total + facts;
    part.row_scale = t->row_scale == NULL ? NULL : t->row_scale + row;
    part.c = t->c + (size_t)row * t->ldc;
    return part;
}

/* Tiles of rows to a block. Three pay where they are all rows or spare a block of a single tile
 * among few, otherwise two, whose rows are each loaded once, and a step ahead. Sums of three crowd
 * the first cache where segments are short. */
static int64_t most_tiles(const struct job *j, int64_t rows)
{
    enum { LONG = 16, FEW = 128 }; /* units; rows */
    const bool is_odd = (rows + 15) / 16 % 2 != 0;
    const bool pays =
        rows <= QNI_AMX_ROWS || (j->t->segment_units >= LONG && is_odd && rows <= FEW);
    return j->stream.a_step == 64 && j->run == NULL && pays ? 3 : 2;
}

/* Many tiles, whose number is odd, are one more with fewer rows: a block of a single tile takes as
 * much B as one of two. */
static struct qni_amx_cut cut_rows(const struct job *j, int64_t rows)
{
    enum { MANY = 128 };
    return qni_amx_cut_of(rows, most_tiles(j, rows), j->run == NULL && rows > MANY);
}

/* Tiles of the largest block. */
static int64_t most_tiles_of(const struct qni_amx_cut *c)
{
    return (c->tiles + c->blocks - 1) / c->blocks;
}

/* One where segments have an odd number of units, or where the last one begins at an odd unit: the
 * last tile of k would reach behind x. */
static int64_t tile_units(const struct qni_matmul_tile *t)
{
    const int64_t in_last = t->units - (t->n_groups - 1) * t->group_units;
    const int64_t last = t->units - 1 - (in_last - 1) % t->segment_units;
    const bool is_odd = t->segment_units % 2 != 0 || last % 2 != 0;
    return is_odd && t->n_segments > 1 ? 1 : 2;
}

/* ---- many rows, one segment: amx_chunks.h ---------------------------------------------------- */

/* A walk through pairs and chunks. */
struct walk {
    int64_t panel, unit;
};

static int64_t units_at(const struct job *j, const struct walk *w)
{
    return at_most(2 * QNI_AMX_CHUNK, j->t->units - w->unit);
}

static struct walk walk_on(const struct job *j, struct walk w)
{
    w.unit += 2 * QNI_AMX_CHUNK;
    if (w.unit >= j->t->units) {
        w.unit = 0;
        w.panel += 2;
    }
    return w;
}

static const uint8_t *codes_at(const struct job *j, const struct walk *w)
{
    return j->t->codes + (size_t)w->panel * j->t->codes_stride +
           (size_t)w->unit * (j->codes == BYTES ? 512 : 256);
}

/* The chunk where the walk stands is the next to be unpacked, in so many turns; there may be none.
 */
static void begin_unpacking(const struct job *j, struct walk w, uint8_t *out, int64_t turns,
                            struct qni_amx_unpack *u)
{
    u->left = 0;
    if (w.panel >= j->t->n_panels)
        return;
    const int64_t units = units_at(j, &w);
    u->codes = codes_at(j, &w);
    u->second = u->codes + j->t->codes_stride;
    u->out = out;
    u->line = 0;
    u->lines = units * (j->codes == BYTES ? 8 : 4);
    u->left = u->lines * pair_at(j, w.panel).n;
    u->turns = qni_amx_turns_of(u->left, turns);
    if (units % 2 != 0) /* the last tile has one unit */
        for (int64_t i = 0; i < 2; i++)
            memset(out + (units / 2) * QNI_AMX_STEP + i * QNI_AMX_SLOT + UNIT_BYTES, 0, UNIT_BYTES);
}

/* Pairs from `panel` on have their sums and are to leave. */
static void begin_leaving(const struct job *j, struct qni_amx_leave *l, int64_t panel,
                          int64_t pairs, const int32_t *sums)
{
    const struct qni_matmul_tile *const t = j->t;
    const size_t scale_bytes = t->scale_is_f16 ? 32 : 64;
    const int zero = t->x_zero != 0 ? QNI_AMX_ZERO : 0;
    l->panels = at_most(2 * pairs, t->n_panels - panel);
    for (int64_t i = 0; i < l->panels; i++) {
        const size_t at = (size_t)(panel + i);
        const struct qni_amx_columns columns = {
            .scale = {(const char *)t->scale + at * scale_bytes},
            .offset = {t->offset == NULL ? NULL : (const char *)t->offset + at * scale_bytes},
            .sums = {t->sums == NULL ? NULL : t->sums + at * QNI_PANEL},
        };
        l->vectors[i / 2][i % 2] = qni_amx_vectors_of(&j->stream, &columns, 0, l->kind | zero);
    }
    l->dot = sums;
    l->facts = t->row_scale != NULL ? t->row_scale : j->s->facts;
    l->c = t->c + (size_t)panel * QNI_PANEL;
    l->pair = l->row = l->tile = 0;
    l->pairs = pairs;
    l->row_end = l->cut.tile_rows;
    l->left = t->m * pairs;
}

/* What offsets are multiplied by. */
static void row_facts(const struct job *j)
{
    const struct qni_matmul_tile *const t = j->t;
    const int32_t zero = t->x_zero == 0 ? 0 : t->x_zero * t->counts[0];
    for (int64_t i = 0; i < t->m; i++)
        j->s->facts[i] = (float)(t->a_sum[(size_t)i * t->ld_segment] - zero);
}

static int32_t kind_of(const struct qni_matmul_tile *t)
{
    if (t->raw_i32)
        return QNI_AMX_RAW;
    if (t->row_scale != NULL)
        return QNI_AMX_ROW | QNI_AMX_SCALED;
    return t->offset != NULL ? QNI_AMX_ROW | QNI_AMX_OFFSET : QNI_AMX_ROW;
}

/* Few, since what leaves last has no products beside it. */
static int64_t pairs_of_batch(const struct qni_matmul_tile *t)
{
    const bool meet = t->ldc * sizeof *t->c % 2048 == 0; /* rows, in sets of the first cache */
    return meet && !t->c_is_far ? QNI_AMX_BATCH : 1;
}

/* All panels, a batch of pairs at a time. The batch before leaves meanwhile. */
static void all_chunks(struct job *j)
{
    const struct qni_matmul_tile *const t = j->t;
    struct chunk_scratch *const s = &j->s->chunk;
    const int64_t most = pairs_of_batch(t), blocks = j->cut.blocks;
    struct qni_amx_leave leave = {
        .cut = j->cut,
        .kind = kind_of(t),
        .streams = t->c_is_far,
        .ldc = t->ldc,
        .pair_sums = BLOCKS * QNI_AMX_BLOCK_SUMS / sizeof(int32_t),
    };
    struct qni_amx_unpack unpack = {.bytes = j->codes == BYTES, .table = j->table};
    struct qni_amx_chunk c = {.lda = t->lda, .cut = j->cut};
    struct walk w = {0, 0}, next;
    int64_t turn = 0, batch = 0;
    if (leave.kind & QNI_AMX_OFFSET)
        row_facts(j);
    begin_unpacking(j, w, s->b[0][0], 1, &unpack);
    qni_amx_unpack_rest(&unpack);
    for (; w.panel < t->n_panels; w = next, turn ^= 1) {
        const int64_t pair = w.panel / 2 % most;
        next = walk_on(j, w);
        c.a = (const char *)t->a + w.unit * QNI_UNIT;
        c.b = (const char *)s->b[turn];
        c.b_second = pair_at(j, w.panel).n == 2 ? QNI_AMX_SLOT : 0;
        c.steps = (units_at(j, &w) + 1) / 2;
        c.sums = (char *)s->sums[batch][pair];
        begin_unpacking(j, next, s->b[turn ^ 1][0], 2 * c.steps * blocks, &unpack);
        if (w.unit == 0 && pair == 0)
            leave.turns =
                qni_amx_turns_of(leave.left, (t->units + 1) / 2 * blocks *
                                                 at_most(most, (t->n_panels - w.panel + 1) / 2));
        if (w.unit == 0)
            qni_amx_chunk_multiply(&c, &unpack, &leave, true);
        else
            qni_amx_chunk_multiply(&c, &unpack, &leave, false);
        if (next.unit == 0 && (pair + 1 == most || next.panel >= t->n_panels)) {
            begin_leaving(j, &leave, w.panel - 2 * pair, pair + 1, s->sums[batch][0][0]);
            batch ^= 1;
        }
    }
    qni_amx_leave_rest(&leave);
    if (t->c_is_far)
        _mm_sfence(); /* before others are told that c is there */
}

/* Chunks serve one segment and many rows, whose tiles are then even in number. */
static bool takes_chunks(const struct job *j, int64_t rows)
{
    enum { MANY = 128, LONG = 16 }; /* rows; units */
    const struct qni_amx_cut cut = qni_amx_cut_of(rows, 2, true);
    return j->reads == QNI_READS_Q8 && j->t->n_segments == 1 && j->t->units >= LONG &&
           rows > MANY && cut.tiles % 2 == 0;
}

/* ---- many rows, int8-block, segments of 128: amx_split.h ------------------------------------- */

/* Pairs of panels. */
static bool takes_split(const struct job *j)
{
    return j->reads == QNI_READS_Q8B && j->t->n_panels > 1 && qni_splits(j->t);
}

/* A fact of 16 rows and four segments. */
static void turn_four(const float *from, size_t ld, float *to, size_t step)
{
    __m512 v[4];
    QNI_UNROLL
    for (int i = 0; i < 4; i++) { /* rows i, 4 + i, ... */
        const float *const at = from + (size_t)i * ld;
        const __m256 low = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(at)),
                                                _mm_loadu_ps(at + 4 * ld), 1);
        const __m256 high = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(at + 8 * ld)),
                                                 _mm_loadu_ps(at + 12 * ld), 1);
        v[i] = _mm512_castpd_ps(_mm512_insertf64x4(_mm512_castps_pd(_mm512_castps256_ps512(low)),
                                                   _mm256_castps_pd(high), 1));
    }
    const __m512 a = _mm512_unpacklo_ps(v[0], v[1]), b = _mm512_unpacklo_ps(v[2], v[3]);
    const __m512 c = _mm512_unpackhi_ps(v[0], v[1]), d = _mm512_unpackhi_ps(v[2], v[3]);
    _mm512_store_ps(to, _mm512_shuffle_ps(a, b, 0x44));
    _mm512_store_ps(to + step, _mm512_shuffle_ps(a, b, 0xee));
    _mm512_store_ps(to + 2 * step, _mm512_shuffle_ps(c, d, 0x44));
    _mm512_store_ps(to + 3 * step, _mm512_shuffle_ps(c, d, 0xee));
}

/* Facts of 16 rows from `row` on and all segments. */
static void turn_rows(const struct job *j, int64_t row, float *to)
{
    const struct qni_matmul_tile *const t = j->t;
    const float *const facts[3] = {t->a_scale, t->a_offset != NULL ? t->a_offset : t->a_total,
                                   t->a_total};
    const size_t step = (size_t)j->n_facts * 32;
    int64_t i = 0;
    for (; i + 4 <= t->n_segments; i += 4)
        for (int32_t f = 0; f < j->n_facts; f++)
            turn_four(facts[f] + (size_t)row * t->ld_segment + i, t->ld_segment,
                      to + (size_t)i * step + 32 * f, step);
    for (; i < t->n_segments; i++)
        put_facts(j, row, i, to + (size_t)i * step);
}

/* An even number of panels. */
static void all_split(struct job *j)
{
    const struct qni_matmul_tile *const t = j->t;
    struct qni_amx_split s = {
        .memory = &j->s->split,
        .a = t->a,
        .lda = t->lda,
        .m = t->m,
        .codes = t->codes,
        .codes_stride = t->codes_stride,
        .bytes = j->codes == BYTES,
        .panels = t->n_panels / 2 * 2,
        .segments = t->n_segments,
        .groups = t->n_groups,
        .of_a_group = t->group_units / 4,
        .scale = t->scale,
        .offset = t->offset,
        .sums = t->sums,
        .scale_is_f16 = t->scale_is_f16,
        .scale_times = j->stream.scale_times,
        .facts = j->s->facts,
        .n_facts = j->n_facts,
        .c = t->c,
        .ldc = t->ldc,
        .streams = t->c_is_far,
        .floats = split_for(t),
    };
    float *facts = j->s->facts;
    j->fact_rows = 32;
    for (int64_t block = 0; block < (t->m + 31) / 32; block++)
        for (int64_t half = 0; half < 2; half++)
            turn_rows(j, qni_amx_split_row(t->m, 2 * block + half),
                      facts + block * t->n_segments * j->n_facts * 32 + 16 * half);
    _mm512_store_si512(&s.memory->table, j->table);
    qni_amx_split_multiply(&s);
    if (t->c_is_far)
        _mm_sfence();
}

/* The job for its panels from `panel` on. */
static struct qni_matmul_tile some_panels(const struct qni_matmul_tile *t, int64_t panel)
{
    struct qni_matmul_tile part = *t;
    const size_t scales = (size_t)(panel * t->n_groups) * (t->scale_is_f16 ? 32 : 64);
    part.n_panels -= panel;
    part.codes += (size_t)panel * t->codes_stride;
    part.scale = (const char *)t->scale + scales;
    part.offset = t->offset == NULL ? NULL : (const char *)t->offset + scales;
    part.sums = t->sums == NULL ? NULL : t->sums + panel * t->n_segments * QNI_PANEL;
    part.c += panel * QNI_PANEL;
    return part;
}

/* ---- a job as a whole ------------------------------------------------------------------------ */

/* Where in the job's scratch everything lies. */
static void place_scratch(struct job *j, const struct qni_matmul_tile *t)
{
    struct int8_scratch *const s = t->scratch;
    struct few_scratch *const few = t->scratch;
    const bool is_few = t->m <= QNI_SMALL_ROWS;
    j->s = s;
    j->share = is_few ? SHARE : 0;
    j->facts = is_few ? few->facts : s->facts;
    j->dots[0] = is_few ? few->dots[0][0] : s->dots[0][0];
    j->dots[1] = is_few ? few->dots[1][0] : s->dots[1][0];
    j->b_second = is_few ? sizeof few->b[0] : sizeof s->b[0];
    for (int32_t i = 0; i < 4; i++)
        j->columns[i] = is_few ? few->columns[i] : s->columns[i];
    j->run_block.m = is_few ? &few->run : &s->run;
    j->run_block.share = j->share;
    j->stream.ring = (char *)t->scratch; /* B comes first in both */
    j->stream.held.c = (char *)j->dots[0];
}

static void tile(const struct qni_matmul_tile *t, int32_t codes, int32_t reads)
{
    static const int8_t nibbles[16] = {-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7};
    struct job j;
    memset(&j, 0, sizeof j);
    place_scratch(&j, t);
    j.push = push_for(t, reads);
    j.run_block.st = &j.stream;
    j.run_block.fresh = segments_of_run(t, codes);
    j.run = j.run_block.fresh > 0 ? run_for(t, reads) : NULL;
    j.most_pieces = j.run == NULL && j.share > 0 ? FEW_PIECES : PIECES;
    for (int32_t i = 0; i < 1024 && j.run != NULL; i++)
        j.run_block.m->begin[i] = QNI_AMX_BEGIN;
    j.codes = codes;
    j.reads = reads;
    if (reads == QNI_READS_Q8B)
        j.n_facts = 1 + (t->a_offset != NULL) + (t->offset != NULL);
    else
        j.n_facts = t->row_scale != NULL || (t->offset != NULL && !t->raw_i32);
    j.run_block.n_facts = j.n_facts;
    j.tile_units = tile_units(t);
    struct qni_amx_stream *st = &j.stream;
    st->lda = t->lda;
    st->a_step = (int32_t)(j.tile_units * QNI_UNIT);
    st->scale_is_f16 = t->scale_is_f16;
    st->scale_times = t->table8 != NULL && t->table8_doubled ? 0.5f : 1.0f;
    st->x_zero = t->x_zero;
    st->feed = feed;
    const int8_t *const values = codes == NIBBLE_TABLE ? t->table8 : nibbles;
    j.table = _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)values));
    st->feed_arg = &j;
    for (int64_t row = 0; row < t->m; row += ROWS) {
        struct qni_matmul_tile part = some_rows(t, row, at_most(ROWS, t->m - row));
        j.t = &part;
        if (takes_chunks(&j, part.m)) {
            j.cut = qni_amx_cut_of(part.m, 2, true);
            qni_amx_configure_rows(j.cut.tile_rows, 64, 5, 6);
            all_chunks(&j);
            continue;
        }
        if (takes_split(&j)) {
            qni_amx_configure_rows(16, 64, 5, 6);
            all_split(&j);
            if (part.n_panels % 2 == 0)
                continue;
            part = some_panels(&part, part.n_panels - 1);
        }
        j.fact_rows = j.run != NULL ? QNI_AMX_RUN_ROWS : QNI_AMX_ROWS;
        j.cut = cut_rows(&j, part.m);
        st->spare = j.run == NULL && most_tiles_of(&j.cut) < 3;
        if (j.run != NULL)
            qni_amx_configure_rows(j.cut.tile_rows, st->a_step, 5, 6);
        else
            qni_amx_configure_rows(j.cut.tile_rows, st->a_step, 6, st->spare ? 5 : 7);
        all_of_k(&j);
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
