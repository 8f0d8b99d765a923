/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights with AVX2, one scale a segment (int8-block), some rows
 * and more. Contract and operand layouts: kernel.h; the float steps: docs/numerics.md.
 *
 * Codes of a chunk of k are unpacked once for a block of rows, those of four panels side by side.
 * One row at a time is multiplied by them: a broadcast of it, and eight products whose other
 * operand comes from the first cache with the instruction. So every row costs the same, and an
 * instruction less than where two rows share a vector of codes that is loaded first.
 *
 * nibbles  are unpacked to signed bytes, and activations become unsigned by adding 128: vpmaddubsw
 *          of an unsigned byte and one of -8 to 7 never saturates, and the 8 products of a unit in
 *          a lane add up to 8 * 2 * 255 * 8 = 32640, which int16 holds. 128 times the sum of the
 *          codes is subtracted.
 * bytes,   are unpacked to pairs of int16, as activations are: vpmaddubsw of whole bytes saturates,
 * tables   vpmaddwd of pairs is exact. Pairs are those of the bytes 0 and 2, and 1 and 3, of every
 *          four positions: shifts make both, nothing is shuffled.
 *
 * A segment longer than a chunk leaves its sums in memory between chunks. Bound: 2.1 vector
 * instructions for 32 products of nibbles or 16 of pairs, of which two keep the units busy that
 * multiply, for additions take turns there: 1.5 a cycle. What is reached: lab/cpu/NOTES.md. */
#include "../simd/avx2_q8.h"

enum {
    WIDE = 4, /* panels at a time */
    LANES = WIDE * QNI_PANEL,
    ROWS = 96, /* of a block */
    QUADS = QNI_UNIT / 4,
    PAIR_UNITS = 4, /* of a chunk of pairs: 16 KiB */
    UNITS = 8       /* of a chunk of nibbles: the same in bytes */
};

/* A segment, or the part of it that lies in a chunk: units [first, end) of the chunk. */
struct segment_range {
    int64_t first, end;
    bool begins, ends; /* in this chunk */
};

/* Units [unit, end) of k. Their groups and segments follow each other. */
struct chunk {
    int64_t unit, end;
    int64_t group[UNITS], segment, n_ranges; /* of each range; of the first; how many */
    struct segment_range range[UNITS];
};

struct factors {
    float scale[UNITS][LANES], offset[UNITS][LANES];
    float sum[UNITS][LANES]; /* of values, for offsets of x */
};

struct unpacked_scratch {
    union {
        int32_t pairs[PAIR_UNITS * QUADS][2][LANES];
        int8_t quads[UNITS * QUADS][LANES][4];
    } codes;
    union {
        int32_t pairs[PAIR_UNITS * QUADS][2];
        int8_t bytes[UNITS * QNI_UNIT];
    } a;                          /* of a row */
    int32_t excess[UNITS][LANES]; /* of each range: -128 times the sum of its nibbles */
    int32_t dot[UNITS][LANES];
    struct factors factors;
    int32_t sums[ROWS][LANES]; /* of the segment that goes on */
};
_Static_assert(sizeof(struct unpacked_scratch) <= 65536, "the scratch of the rows in kernels.inc");
_Static_assert(offsetof(struct unpacked_scratch, sums[QNI_SMALL_ROWS]) <= 28928, "for few rows");

/* One row x the panels of a chunk. */
struct row_by_panels {
    const struct qni_matmul_tile *t;
    struct unpacked_scratch *s;
    const struct chunk *c;
    int64_t panel;         /* the first */
    int64_t row, in_block; /* and its place in the block */
};

static inline int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* ---- codes ----------------------------------------------------------------------------------- */

static inline __m256i load_bytes(const uint8_t *p)
{
    return _mm256_loadu_si256((const __m256i *)(const void *)p);
}

static inline void store_i32(int32_t *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

/* Bytes 0 and 2, 1 and 3 of every four, as int16. */
static inline __m256i even_pairs(__m256i bytes)
{
    return _mm256_srai_epi16(_mm256_slli_epi16(bytes, 8), 8);
}
static inline __m256i odd_pairs(__m256i bytes)
{
    return _mm256_srai_epi16(bytes, 8);
}

QNI_TEMPLATE void store_pairs(int32_t (*to)[LANES], int64_t at, __m256i bytes)
{
    store_i32(to[0] + at, even_pairs(bytes));
    store_i32(to[1] + at, odd_pairs(bytes));
}

/* Sums of four bytes that lie together. */
static inline __m256i sums_of_quads(__m256i bytes)
{
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes);
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

/* Nibbles of a panel of a chunk to bytes in its slot; codes `ahead` of these are prefetched. */
static void unpack_nibbles(struct unpacked_scratch *s, const struct chunk *c, int64_t slot,
                           const uint8_t *codes, ptrdiff_t ahead)
{
    const __m256i nibble = _mm256_set1_epi8(0x0f), eight = _mm256_set1_epi8(8);
    for (int64_t j = 0; j < c->n_ranges; j++) {
        __m256i excess[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        for (int64_t u = c->range[j].first; u < c->range[j].end; u++, codes += 256)
            QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            __m256i all = _mm256_setzero_si256();
            QNI_UNROLL
            for (int r = 0; r < QUADS / 2; r++) {
                const __m256i v = load_bytes(codes + 64 * r + 32 * h);
                const __m256i low = _mm256_sub_epi8(_mm256_and_si256(v, nibble), eight);
                const __m256i high =
                    _mm256_sub_epi8(_mm256_and_si256(_mm256_srli_epi16(v, 4), nibble), eight);
                int8_t(*const to)[4] = s->codes.quads[u * QUADS + r] + slot * QNI_PANEL + 8 * h;
                _mm256_storeu_si256((__m256i *)(void *)to, low);
                _mm256_storeu_si256((__m256i *)(void *)(to + QUADS / 2 * LANES), high);
                all = _mm256_add_epi8(all, _mm256_add_epi8(low, high));
                if (h == 0)
                    _mm_prefetch((const char *)codes + 64 * r + ahead, _MM_HINT_T1);
            }
            excess[h] = _mm256_sub_epi32(excess[h], _mm256_slli_epi32(sums_of_quads(all), 7));
        }
        store_i32(s->excess[j] + slot * QNI_PANEL, excess[0]);
        store_i32(s->excess[j] + slot * QNI_PANEL + 8, excess[1]);
    }
}

/* Bytes of a panel of a chunk, or what the table makes of its nibbles, to pairs. */
QNI_TEMPLATE void unpack_pairs(struct unpacked_scratch *s, const struct chunk *c, int64_t slot,
                               const uint8_t *codes, ptrdiff_t ahead, const int8_t *table8,
                               const int kind)
{
    const __m256i nibble = _mm256_set1_epi8(0x0f), sign = _mm256_set1_epi8((char)0x80);
    __m256i table = sign;
    if (kind == NIBBLE_TABLE)
        table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table8));
    for (int64_t u = 0; u < c->end - c->unit; u++)
        for (int r = 0; r < (kind == BYTES ? QUADS : QUADS / 2); r++, codes += 64) {
            int32_t(*const to)[LANES] = s->codes.pairs[u * QUADS + r];
            _mm_prefetch((const char *)codes + ahead, _MM_HINT_T1);
            QNI_UNROLL
            for (int h = 0; h < 2; h++) {
                const int64_t at = slot * QNI_PANEL + 8 * h;
                const __m256i v = load_bytes(codes + 32 * h);
                if (kind == BYTES) {
                    store_pairs(to, at, _mm256_xor_si256(v, sign));
                    continue;
                }
                const __m256i high = _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble);
                store_pairs(to, at, _mm256_shuffle_epi8(table, _mm256_and_si256(v, nibble)));
                store_pairs(to + 2 * (QUADS / 2), at, _mm256_shuffle_epi8(table, high));
            }
        }
}

/* A row in the same pairs. */
static void widen(int32_t (*to)[2], const int8_t *a, int64_t units)
{
    for (int64_t u = 0; u < units; u++, a += QNI_UNIT, to += QUADS) {
        const __m256i v = load_bytes((const uint8_t *)a);
        const __m256i even = even_pairs(v), odd = odd_pairs(v);
        const __m256i low = _mm256_unpacklo_epi32(even, odd),
                      high = _mm256_unpackhi_epi32(even, odd);
        _mm256_storeu_si256((__m256i *)(void *)to[0], _mm256_permute2x128_si256(low, high, 0x20));
        _mm256_storeu_si256((__m256i *)(void *)to[4], _mm256_permute2x128_si256(low, high, 0x31));
    }
}

/* A row with 128 added, as unsigned bytes. */
static void add_128(int8_t *to, const int8_t *a, int64_t units)
{
    const __m256i sign = _mm256_set1_epi8((char)0x80);
    for (int64_t u = 0; u < units; u++, a += QNI_UNIT, to += QNI_UNIT)
        _mm256_storeu_si256((__m256i *)(void *)to,
                            _mm256_xor_si256(load_bytes((const uint8_t *)a), sign));
}

/* ---- products -------------------------------------------------------------------------------- */

/* What the sums of range j of a row begin with. */
QNI_TEMPLATE void begin(const struct row_by_panels *m, int64_t j, const int wide, const int kind,
                        __m256i *sum)
{
    QNI_UNROLL
    for (int h = 0; h < 2 * wide; h++) {
        sum[h] = kind == NIBBLES ? load_i32(m->s->excess[j] + 8 * h) : _mm256_setzero_si256();
        if (!m->c->range[j].begins)
            sum[h] = _mm256_add_epi32(sum[h], load_i32(m->s->sums[m->in_block] + 8 * h));
    }
}

/* Range j of the chunk: a row x `wide` panels of nibbles. */
QNI_TEMPLATE void dot_nibbles(const struct row_by_panels *m, int64_t j, const int wide)
{
    const struct segment_range *const range = &m->c->range[j];
    const __m256i one = _mm256_set1_epi16(1);
    __m256i dot[2 * WIDE];
    begin(m, j, wide, NIBBLES, dot);
    for (int64_t u = range->first; u < range->end; u++) {
        __m256i sum[2 * WIDE];
        QNI_UNROLL
        for (int q = 0; q < QUADS; q++) {
            const int8_t(*const codes)[4] = (const int8_t(*)[4])m->s->codes.quads[u * QUADS + q];
            __m256i x = quad(m->s->a.bytes + u * QNI_UNIT + 4 * q);
            QNI_KEEP(x);
            QNI_UNROLL
            for (int h = 0; h < 2 * wide; h++) {
                const __m256i w = load_bytes((const uint8_t *)codes[8 * h]);
                const __m256i p = _mm256_maddubs_epi16(x, w);
                sum[h] = q == 0 ? p : _mm256_add_epi16(sum[h], p);
                QNI_KEEP(sum[h]); /* or the compiler adds in another order, and spills */
            }
        }
        QNI_UNROLL
        for (int h = 0; h < 2 * wide; h++)
            dot[h] = _mm256_add_epi32(dot[h], _mm256_madd_epi16(sum[h], one));
    }
    QNI_UNROLL
    for (int h = 0; h < 2 * wide; h++)
        store_i32(m->s->dot[j] + 8 * h, dot[h]);
}

/* Range j of the chunk: a row x `wide` panels of bytes, widened to pairs of int16. */
QNI_TEMPLATE void dot_pairs(const struct row_by_panels *m, int64_t j, const int wide)
{
    const struct segment_range *const range = &m->c->range[j];
    __m256i sum[2 * WIDE];
    begin(m, j, wide, BYTES, sum);
    for (int64_t q = range->first * QUADS; q < range->end * QUADS; q += 2)
        QNI_UNROLL
    for (int p = 0; p < 4; p++) {
        const int32_t *const codes = m->s->codes.pairs[q + p / 2][p % 2];
        __m256i x = _mm256_set1_epi32(m->s->a.pairs[q + p / 2][p % 2]);
        QNI_KEEP(x);
        QNI_UNROLL
        for (int h = 0; h < 2 * wide; h++) {
            sum[h] = _mm256_add_epi32(sum[h], _mm256_madd_epi16(x, load_i32(codes + 8 * h)));
            QNI_KEEP(sum[h]);
        }
    }
    QNI_UNROLL
    for (int h = 0; h < 2 * wide; h++)
        store_i32(m->s->dot[j] + 8 * h, sum[h]);
}

/* ---- floats ---------------------------------------------------------------------------------- */

/* Adds n segments. is_shifted: x has offsets; has_offset: the weights do. */
QNI_TEMPLATE void add_blocks(const struct row_by_panels *m, int64_t n, const int wide,
                             const bool is_shifted, const bool has_offset, __m256 *y)
{
    const struct qni_matmul_tile *const t = m->t;
    const struct factors *const f = &m->s->factors;
    const size_t fact = (size_t)m->row * t->ld_segment + (size_t)m->c->segment;
    for (int64_t j = 0; j < n; j++) {
        const __m256 sx = _mm256_broadcast_ss(t->a_scale + fact + j);
        __m256 ox = sx, total = sx;
        if (is_shifted)
            ox = _mm256_broadcast_ss(t->a_offset + fact + j);
        if (has_offset)
            total = _mm256_broadcast_ss(t->a_total + fact + j);
        QNI_UNROLL
        for (int h = 0; h < 2 * wide; h++) {
            const __m256 d = _mm256_cvtepi32_ps(load_i32(m->s->dot[j] + 8 * h));
            __m256 term;
            if (is_shifted)
                term =
                    _mm256_fmadd_ps(sx, d, _mm256_mul_ps(ox, _mm256_loadu_ps(f->sum[j] + 8 * h)));
            else
                term = _mm256_mul_ps(sx, d);
            y[h] = _mm256_fmadd_ps(_mm256_loadu_ps(f->scale[j] + 8 * h), term, y[h]);
            if (has_offset)
                y[h] = _mm256_fmadd_ps(_mm256_loadu_ps(f->offset[j] + 8 * h), total, y[h]);
        }
    }
}

/* Adds segments that end in the chunk to y; keeps the sums of one that goes on. */
QNI_TEMPLATE void end_segments(const struct row_by_panels *m, const int wide)
{
    const struct qni_matmul_tile *const t = m->t;
    const struct chunk *const c = m->c;
    const bool goes_on = !c->range[c->n_ranges - 1].ends;
    const int64_t n = c->n_ranges - goes_on;
    float *const to = t->c + (size_t)m->row * t->ldc + m->panel * QNI_PANEL;
    __m256 y[2 * WIDE];
    if (goes_on)
        memcpy(m->s->sums[m->in_block], m->s->dot[n], sizeof m->s->dot[n]);
    if (n == 0 && c->unit != 0)
        return;
    QNI_UNROLL
    for (int h = 0; h < 2 * wide; h++)
        y[h] = c->unit != 0 ? _mm256_loadu_ps(to + 8 * h) : _mm256_setzero_ps();
    if (t->a_offset == NULL && t->offset == NULL)
        add_blocks(m, n, wide, false, false, y);
    else if (t->a_offset == NULL)
        add_blocks(m, n, wide, false, true, y);
    else if (t->offset == NULL)
        add_blocks(m, n, wide, true, false, y);
    else
        add_blocks(m, n, wide, true, true, y);
    QNI_UNROLL
    for (int h = 0; h < 2 * wide; h++)
        _mm256_storeu_ps(to + 8 * h, y[h]);
}

/* ---- rows, panels, chunks -------------------------------------------------------------------- */

/* Rows [row, row + rows) of the tile, at most ROWS, x `wide` panels of a chunk. */
QNI_TEMPLATE void multiply_rows(struct row_by_panels *m, int64_t row, int64_t rows, const int wide,
                                const int kind)
{
    const struct chunk *const c = m->c;
    for (m->in_block = 0; m->in_block < rows; m->in_block++) {
        m->row = row + m->in_block;
        const int8_t *const a =
            (const int8_t *)m->t->a + (size_t)m->row * m->t->lda + c->unit * QNI_UNIT;
        for (int64_t line = 0; line < (c->end - c->unit) * QNI_UNIT; line += 64)
            _mm_prefetch((const char *)a + m->t->lda + line, _MM_HINT_T0);
        if (kind == NIBBLES)
            add_128(m->s->a.bytes, a, c->end - c->unit);
        else
            widen(m->s->a.pairs, a, c->end - c->unit);
        for (int64_t j = 0; j < c->n_ranges; j++)
            if (kind == NIBBLES)
                dot_nibbles(m, j, wide);
            else
                dot_pairs(m, j, wide);
        end_segments(m, wide);
    }
}

/* The chunk after one that ends at `unit`: whole segments, if they are no longer than a chunk.
 * Segments are cut as docs/numerics.md says: from the first unit of each group. */
static void next_chunk(const struct qni_matmul_tile *t, int64_t unit, int64_t most, struct chunk *c)
{
    const int64_t length =
        t->segment_units < most ? most / t->segment_units * t->segment_units : most;
    const int64_t per_group = (t->group_units + t->segment_units - 1) / t->segment_units;
    c->unit = unit;
    c->end = least(unit + length, t->units);
    c->n_ranges = 0;
    while (unit < c->end) {
        const int64_t group = unit / t->group_units, first = group * t->group_units;
        const int64_t in_group = (unit - first) / t->segment_units;
        const int64_t begin = first + in_group * t->segment_units;
        const int64_t end =
            least(least(begin + t->segment_units, first + t->group_units), t->units);
        const int64_t stop = least(end, c->end);
        if (c->n_ranges == 0)
            c->segment = group * per_group + in_group;
        c->group[c->n_ranges] = group;
        c->range[c->n_ranges++] =
            (struct segment_range){unit - c->unit, stop - c->unit, unit == begin, stop == end};
        unit = stop;
    }
}

/* Loads those of a panel to its slot among the others. */
static void load_factors(const struct qni_matmul_tile *t, const struct chunk *c, int64_t panel,
                         int64_t slot, struct factors *f, const int kind)
{
    const float times = kind == NIBBLE_TABLE && t->table8_doubled ? 0.5f : 1.0f;
    for (int64_t j = 0; j < c->n_ranges; j++) {
        const int64_t row = panel * t->n_groups + c->group[j];
        const int64_t segment = panel * t->n_segments + c->segment + j;
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            const int64_t at = slot * QNI_PANEL + 8 * h;
            _mm256_storeu_ps(
                f->scale[j] + at,
                _mm256_mul_ps(qni_load8(t->scale, row, h, t->scale_is_f16), _mm256_set1_ps(times)));
            if (t->offset != NULL)
                _mm256_storeu_ps(f->offset[j] + at, qni_load8(t->offset, row, h, t->scale_is_f16));
            if (t->a_offset != NULL)
                _mm256_storeu_ps(f->sum[j] + at, _mm256_cvtepi32_ps(load_i32(
                                                     t->sums + segment * QNI_PANEL + 8 * h)));
        }
    }
}

/* Codes and factors of `wide` panels and a chunk. */
QNI_TEMPLATE void unpack(const struct row_by_panels *m, const int wide, const int kind)
{
    const int64_t unit_bytes = kind == BYTES ? 512 : 256;
    const struct qni_matmul_tile *const t = m->t;
    const struct chunk *const c = m->c;
    /* The next chunk, or the first one of the next panels. */
    const ptrdiff_t next = c->end < t->units
                               ? (c->end - c->unit) * unit_bytes
                               : wide * (ptrdiff_t)t->codes_stride - c->unit * unit_bytes;
    for (int64_t slot = 0; slot < wide; slot++) {
        const int64_t panel = m->panel + slot;
        const uint8_t *const codes =
            t->codes + (size_t)panel * t->codes_stride + c->unit * unit_bytes;
        load_factors(t, c, panel, slot, &m->s->factors, kind);
        if (kind == NIBBLES)
            unpack_nibbles(m->s, c, slot, codes, next);
        else
            unpack_pairs(m->s, c, slot, codes, next, t->table8, kind);
    }
}

/* A block of rows and `wide` panels, all of k. */
QNI_TEMPLATE void multiply_block(const struct qni_matmul_tile *t, int64_t panel, int64_t row,
                                 const int wide, const int kind)
{
    struct chunk c;
    struct row_by_panels m = {.t = t, .s = t->scratch, .c = &c, .panel = panel};
    for (int64_t unit = 0; unit < t->units; unit = c.end) {
        next_chunk(t, unit, kind == NIBBLES ? UNITS : PAIR_UNITS, &c);
        unpack(&m, wide, kind);
        multiply_rows(&m, row, least(ROWS, t->m - row), wide, kind);
    }
}

QNI_TEMPLATE void multiply(const struct qni_matmul_tile *t, const int kind)
{
    for (int64_t row = 0; row < t->m; row += ROWS) {
        int64_t panel = 0;
        for (; panel + WIDE <= t->n_panels; panel += WIDE)
            multiply_block(t, panel, row, WIDE, kind);
        for (; panel < t->n_panels; panel++)
            multiply_block(t, panel, row, 1, kind);
    }
}

void qni_matmul_q8b_q4n16_mr1_unpacked_avx2(const struct qni_matmul_tile *t)
{
    multiply(t, NIBBLES);
}
void qni_matmul_q8b_t4n16_mr1_unpacked_avx2(const struct qni_matmul_tile *t)
{
    multiply(t, NIBBLE_TABLE);
}
void qni_matmul_q8b_q8n16_mr1_unpacked_avx2(const struct qni_matmul_tile *t)
{
    multiply(t, BYTES);
}
