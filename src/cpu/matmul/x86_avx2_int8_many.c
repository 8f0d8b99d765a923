/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x 4- and 8-bit weights with AVX2, five rows and more. Contract and operand
 * layouts: kernel.h; the float steps: docs/numerics.md.
 *
 * Codes of a chunk of k are unpacked once for a block of rows:
 *
 * nibbles  to bytes, unsigned: vpmaddubsw of at most 15 by a signed byte never saturates, and the 8
 *          pairs of a unit add up to 8 * 2 * 15 * 128 = 30720 in int16 before they are widened.
 *          Four rows by 16 outputs.
 * bytes,   to pairs of int16: vpmaddubsw of whole bytes saturates, vpmaddwd of pairs is exact. Six
 * tables   rows by 16 outputs, whose activations are widened for four panels at a time.
 *
 * Pairs are those of the bytes 0 and 2, and 1 and 3, of every four positions: shifts make both,
 * nothing is shuffled. A segment longer than a chunk leaves its sums in memory between chunks.
 * Bound: 2.25 vector instructions for 32 products of nibbles, 2 for 16 of pairs, of which a core
 * does three a cycle (multiplications two). What is reached: lab/cpu/NOTES.md. */
#include "../simd/avx2_q8.h"

enum {
    NIBBLE_ROWS = 4,
    PAIR_ROWS = 6,
    ROWS = 96, /* of a block */
    CHUNK_UNITS = 16,
    PANELS = 4, /* for which activations are widened */
    QUADS = QNI_UNIT / 4
};

/* A segment, or what lies of it in a chunk: units [first, end) of the chunk. */
struct piece {
    int64_t first, end;
    bool begins, ends; /* in this chunk */
};

/* Units [unit, end) of k. Their groups and segments follow each other. */
struct chunk {
    int64_t unit, end;
    int64_t group[CHUNK_UNITS], segment, n_pieces; /* of each piece; of the first; how many */
    struct piece piece[CHUNK_UNITS];
};

/* Codes of a panel and a chunk, [unit][quad][16 outputs], or two pairs each; its scales. */
struct nibble_chunk {
    uint8_t quad[CHUNK_UNITS * QUADS][64];
};
struct pair_chunk {
    int32_t pair[CHUNK_UNITS * QUADS][2][QNI_PANEL];
};
struct factors {
    float scale[CHUNK_UNITS][QNI_PANEL], offset[CHUNK_UNITS][QNI_PANEL];
    float sum[CHUNK_UNITS][QNI_PANEL]; /* of values: what offsets of x meet */
};

struct scratch {
    union {
        struct nibble_chunk nibbles;
        struct pair_chunk pairs[PANELS];
    } codes;
    struct factors factors[PANELS];
    int32_t a[PAIR_ROWS][CHUNK_UNITS * QUADS][2];
    int32_t less[PAIR_ROWS][CHUNK_UNITS]; /* the bias of the stored codes, of each piece */
    int32_t dot[CHUNK_UNITS][PAIR_ROWS][QNI_PANEL]; /* of each piece */
    int32_t sums[PANELS][ROWS][QNI_PANEL];          /* of the segment that goes on */
};
_Static_assert(sizeof(struct scratch) <= 131072, "the scratch of the rows in kernels.inc");

/* Who meets: rows and a panel of a chunk. */
struct meeting {
    const struct qni_matmul_tile *t;
    struct scratch *s;
    const struct chunk *c;
    int64_t panel, slot;        /* which of the panels in scratch */
    int64_t row, in_block;      /* the first, and its place in the block */
    const int8_t *a[PAIR_ROWS]; /* their bytes of the chunk */
    const uint8_t *next;        /* codes of the panel behind the chunk: asked for ahead */
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

static void unpack_nibbles(struct nibble_chunk *c, const uint8_t *codes, int64_t units)
{
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    for (int64_t u = 0; u < units; u++)
        QNI_UNROLL
    for (int r = 0; r < 4; r++, codes += 64)
        QNI_UNROLL
    for (int h = 0; h < 2; h++) {
        const __m256i v = load_bytes(codes + 32 * h);
        uint8_t *const to = c->quad[u * QUADS + r] + 32 * h;
        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_and_si256(v, nibble));
        _mm256_storeu_si256((__m256i *)(void *)(to + 4 * 64),
                            _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble));
    }
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

QNI_TEMPLATE void store_pairs(int32_t (*to)[QNI_PANEL], int h, __m256i bytes)
{
    _mm256_storeu_si256((__m256i *)(void *)(to[0] + 8 * h), even_pairs(bytes));
    _mm256_storeu_si256((__m256i *)(void *)(to[1] + 8 * h), odd_pairs(bytes));
}

QNI_TEMPLATE void unpack_pairs(struct pair_chunk *c, const uint8_t *codes, int64_t units,
                               const int8_t *table8, const int kind)
{
    const __m256i nibble = _mm256_set1_epi8(0x0f), sign = _mm256_set1_epi8((char)0x80);
    __m256i table = sign;
    if (kind == NIBBLE_TABLE)
        table = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table8));
    for (int64_t u = 0; u < units; u++)
        for (int r = 0; r < (kind == BYTES ? QUADS : QUADS / 2); r++, codes += 64)
            QNI_UNROLL
    for (int h = 0; h < 2; h++) {
        const __m256i v = load_bytes(codes + 32 * h);
        int32_t(*const to)[QNI_PANEL] = c->pair[u * QUADS + r];
        if (kind == BYTES) {
            store_pairs(to, h, _mm256_xor_si256(v, sign));
            continue;
        }
        store_pairs(to, h, _mm256_shuffle_epi8(table, _mm256_and_si256(v, nibble)));
        store_pairs(to + 2 * (QUADS / 2), h,
                    _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(v, 4), nibble)));
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

/* ---- products -------------------------------------------------------------------------------- */

static inline void store_i32(int32_t *p, __m256i v)
{
    _mm256_storeu_si256((__m256i *)(void *)p, v);
}

/* dot[i] = sum of codes * a over the units of piece j, and `less` where the segment begins, or else
 * what dot[i] is. */
QNI_TEMPLATE void dot_nibbles(const struct meeting *m, int64_t j, const int mr)
{
    const struct nibble_chunk *const c = &m->s->codes.nibbles;
    const struct piece *const piece = &m->c->piece[j];
    int32_t(*const dot)[QNI_PANEL] = m->s->dot[j];
    const __m256i one = _mm256_set1_epi16(1);
    bool is_first = piece->begins;
    for (int64_t u = piece->first; u < piece->end; u++) {
        __m256i sum[PAIR_ROWS][2];
        QNI_UNROLL
        for (int r = 0; r < 4; r++)
            _mm_prefetch((const char *)m->next + 256 * u + 64 * r, _MM_HINT_T0);
        QNI_UNROLL
        for (int q = 0; q < QUADS; q++) {
            const uint8_t *const codes = c->quad[u * QUADS + q];
            const __m256i w[2] = {load_bytes(codes), load_bytes(codes + 32)};
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m256i x = quad(m->a[i] + u * QNI_UNIT + 4 * q);
                QNI_UNROLL
                for (int h = 0; h < 2; h++) {
                    const __m256i p = _mm256_maddubs_epi16(w[h], x);
                    sum[i][h] = q == 0 ? p : _mm256_add_epi16(sum[i][h], p);
                    QNI_KEEP(sum[i][h]); /* or the compiler adds in another order, and spills */
                }
            }
        }
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m256i begin = _mm256_set1_epi32(m->s->less[i][j]);
            QNI_UNROLL
            for (int h = 0; h < 2; h++) {
                int32_t *const to = dot[i] + 8 * h;
                const __m256i d = is_first ? begin : load_i32(to);
                store_i32(to, _mm256_add_epi32(d, _mm256_madd_epi16(sum[i][h], one)));
            }
        }
        is_first = false;
    }
}

QNI_TEMPLATE void dot_pairs(const struct meeting *m, int64_t j, const int mr)
{
    const struct pair_chunk *const c = &m->s->codes.pairs[m->slot];
    const struct piece *const piece = &m->c->piece[j];
    int32_t(*const a)[CHUNK_UNITS * QUADS][2] = m->s->a;
    int32_t(*const dot)[QNI_PANEL] = m->s->dot[j];
    __m256i sum[PAIR_ROWS][2];
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        sum[i][h] = piece->begins ? _mm256_setzero_si256() : load_i32(dot[i] + 8 * h);
    for (int64_t q = piece->first * QUADS; q < piece->end * QUADS; q++) {
        _mm_prefetch((const char *)m->next + 64 * q, _MM_HINT_T0);
        QNI_UNROLL
        for (int p = 0; p < 2; p++) {
            const __m256i w[2] = {load_i32(c->pair[q][p]), load_i32(c->pair[q][p] + 8)};
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m256i x = _mm256_set1_epi32(a[i][q][p]);
                QNI_UNROLL
                for (int h = 0; h < 2; h++) {
                    sum[i][h] = _mm256_add_epi32(sum[i][h], _mm256_madd_epi16(w[h], x));
                    QNI_KEEP(sum[i][h]);
                }
            }
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        store_i32(dot[i] + 8 * h, sum[i][h]);
}

/* ---- floats ---------------------------------------------------------------------------------- */

/* int8-block: n segments of row i. is_shifted: x has offsets; has_offset: the weights do. */
QNI_TEMPLATE void add_blocks(const struct meeting *m, int i, int64_t n, const bool is_shifted,
                             const bool has_offset, qni_floats *acc)
{
    const struct qni_matmul_tile *const t = m->t;
    const struct factors *const f = &m->s->factors[m->slot];
    const size_t fact = (size_t)(m->row + i) * t->ld_segment + (size_t)m->c->segment;
    __m256 y[2] = {(*acc)[0], (*acc)[1]};
    for (int64_t j = 0; j < n; j++) {
        const __m256 sx = _mm256_broadcast_ss(t->a_scale + fact + j);
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256 d = _mm256_cvtepi32_ps(load_i32(m->s->dot[j][i] + 8 * h));
            __m256 term;
            if (is_shifted)
                term = _mm256_fmadd_ps(sx, d,
                                       _mm256_mul_ps(_mm256_broadcast_ss(t->a_offset + fact + j),
                                                     _mm256_loadu_ps(f->sum[j] + 8 * h)));
            else
                term = _mm256_mul_ps(sx, d);
            y[h] = _mm256_fmadd_ps(_mm256_loadu_ps(f->scale[j] + 8 * h), term, y[h]);
            if (has_offset)
                y[h] = _mm256_fmadd_ps(_mm256_loadu_ps(f->offset[j] + 8 * h),
                                       _mm256_broadcast_ss(t->a_total + fact + j), y[h]);
        }
    }
    (*acc)[0] = y[0], (*acc)[1] = y[1];
}

/* The others. */
static void add_pieces(const struct meeting *m, int i, int64_t n, qni_floats *acc)
{
    const struct factors *const f = &m->s->factors[m->slot];
    struct place at = {m->panel, m->row + i, 0, m->c->segment, 0};
    for (int64_t j = 0; j < n; j++, at.segment++) {
        const int32_t *const sums = m->s->dot[j][i];
        const qni_dots dot = {load_i32(sums), load_i32(sums + 8)};
        const __m256 scale[2] = {_mm256_loadu_ps(f->scale[j]), _mm256_loadu_ps(f->scale[j] + 8)};
        at.group = m->c->group[j];
        add_q8(m->t, &at, &dot, scale, 1, acc);
    }
}

/* Segments that end in the chunk, to y; what goes on is kept. */
static void end_pieces(const struct meeting *m, int mr)
{
    const struct qni_matmul_tile *const t = m->t;
    const struct chunk *const c = m->c;
    const bool goes_on = !c->piece[c->n_pieces - 1].ends;
    const int64_t n = c->n_pieces - goes_on;
    for (int i = 0; i < mr; i++) {
        float *const y = t->c + (size_t)(m->row + i) * t->ldc + m->panel * QNI_PANEL;
        qni_floats acc = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        if (goes_on)
            memcpy(m->s->sums[m->slot][m->in_block + i], m->s->dot[n][i], sizeof m->s->dot[n][i]);
        if (n == 0 && c->unit != 0)
            continue;
        if (c->unit != 0)
            acc[0] = _mm256_loadu_ps(y), acc[1] = _mm256_loadu_ps(y + 8);
        if (t->a_scale == NULL)
            add_pieces(m, i, n, &acc);
        else if (t->a_offset == NULL && t->offset == NULL)
            add_blocks(m, i, n, false, false, &acc);
        else if (t->a_offset == NULL)
            add_blocks(m, i, n, false, true, &acc);
        else if (t->offset == NULL)
            add_blocks(m, i, n, true, false, &acc);
        else
            add_blocks(m, i, n, true, true, &acc);
        _mm256_storeu_ps(y, acc[0]);
        _mm256_storeu_ps(y + 8, acc[1]);
    }
}

/* ---- rows, panels, chunks -------------------------------------------------------------------- */

/* mr rows meet the panels of a chunk. */
QNI_TEMPLATE void meet_panels(struct meeting *m, int64_t panel, int64_t panels, const int mr,
                              const int kind)
{
    const struct qni_matmul_tile *const t = m->t;
    const struct chunk *const c = m->c;
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        const int8_t *const a =
            (const int8_t *)t->a + (size_t)(m->row + i) * t->lda + c->unit * QNI_UNIT;
        if (kind != NIBBLES) {
            widen(m->s->a[i], a, c->end - c->unit);
            continue;
        }
        const size_t fact = (size_t)(m->row + i) * t->ld_segment + (size_t)c->segment;
        for (int64_t j = 0; j < c->n_pieces; j++)
            m->s->less[i][j] = -8 * t->a_sum[fact + (size_t)j];
        m->a[i] = a;
    }
    for (m->slot = 0; m->slot < panels; m->slot++) {
        m->panel = panel + m->slot;
        m->next =
            t->codes + (size_t)m->panel * t->codes_stride + c->end * (kind == BYTES ? 512 : 256);
        if (!c->piece[0].begins)
            for (int i = 0; i < mr; i++)
                memcpy(m->s->dot[0][i], m->s->sums[m->slot][m->in_block + i],
                       sizeof m->s->dot[0][i]);
        for (int64_t j = 0; j < c->n_pieces; j++)
            if (kind == NIBBLES)
                dot_nibbles(m, j, mr);
            else
                dot_pairs(m, j, mr);
        end_pieces(m, mr);
    }
}

/* Rows [row, row + rows), at most ROWS, of a chunk of some panels. */
QNI_TEMPLATE void meet_rows(struct meeting *m, int64_t panel, int64_t panels, int64_t row,
                            int64_t rows, const int kind)
{
    const int mr = kind == NIBBLES ? NIBBLE_ROWS : PAIR_ROWS;
    m->row = row;
    for (m->in_block = 0; m->in_block + mr <= rows; m->in_block += mr, m->row += mr)
        meet_panels(m, panel, panels, mr, kind);
    switch (rows - m->in_block) {
    case 5:
        if (mr > 5)
            meet_panels(m, panel, panels, 5, kind);
        break;
    case 4:
        if (mr > 4)
            meet_panels(m, panel, panels, 4, kind);
        break;
    case 3:
        meet_panels(m, panel, panels, 3, kind);
        break;
    case 2:
        meet_panels(m, panel, panels, 2, kind);
        break;
    case 1:
        meet_panels(m, panel, panels, 1, kind);
        break;
    default:
        break;
    }
}

/* The chunk after one that ends at `unit`: whole segments, if they are no longer than a chunk.
 * Segments are cut as docs/numerics.md says: from the first unit of each group. */
static void next_chunk(const struct qni_matmul_tile *t, int64_t unit, struct chunk *c)
{
    const int64_t length = t->segment_units < CHUNK_UNITS
                               ? CHUNK_UNITS / t->segment_units * t->segment_units
                               : CHUNK_UNITS;
    const int64_t per_group = (t->group_units + t->segment_units - 1) / t->segment_units;
    c->unit = unit;
    c->end = least(unit + length, t->units);
    c->n_pieces = 0;
    while (unit < c->end) {
        const int64_t group = unit / t->group_units, first = group * t->group_units;
        const int64_t in_group = (unit - first) / t->segment_units;
        const int64_t begin = first + in_group * t->segment_units;
        const int64_t end =
            least(least(begin + t->segment_units, first + t->group_units), t->units);
        const int64_t stop = least(end, c->end);
        if (c->n_pieces == 0)
            c->segment = group * per_group + in_group;
        c->group[c->n_pieces] = group;
        c->piece[c->n_pieces++] =
            (struct piece){unit - c->unit, stop - c->unit, unit == begin, stop == end};
        unit = stop;
    }
}

static void load_factors(const struct qni_matmul_tile *t, const struct chunk *c, int64_t panel,
                         struct factors *f, const int kind)
{
    const float times = kind == NIBBLE_TABLE && t->table8_doubled ? 0.5f : 1.0f;
    for (int64_t j = 0; j < c->n_pieces; j++) {
        const int64_t row = panel * t->n_groups + c->group[j];
        const int64_t segment = panel * t->n_segments + c->segment + j;
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            _mm256_storeu_ps(
                f->scale[j] + 8 * h,
                _mm256_mul_ps(qni_load8(t->scale, row, h, t->scale_is_f16), _mm256_set1_ps(times)));
            if (t->offset != NULL)
                _mm256_storeu_ps(f->offset[j] + 8 * h,
                                 qni_load8(t->offset, row, h, t->scale_is_f16));
            if (t->a_offset != NULL)
                _mm256_storeu_ps(f->sum[j] + 8 * h, _mm256_cvtepi32_ps(load_i32(
                                                        t->sums + segment * QNI_PANEL + 8 * h)));
        }
    }
}

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind)
{
    const int64_t step = kind == NIBBLES ? 1 : PANELS;
    struct scratch *const s = t->scratch;
    struct chunk c;
    struct meeting m = {.t = t, .s = s, .c = &c};
    for (int64_t row = 0; row < t->m; row += ROWS)
        for (int64_t panel = 0; panel < t->n_panels; panel += step) {
            const int64_t panels = least(step, t->n_panels - panel);
            for (int64_t unit = 0; unit < t->units; unit = c.end) {
                next_chunk(t, unit, &c);
                for (int64_t slot = 0; slot < panels; slot++) {
                    const uint8_t *const codes = t->codes +
                                                 (size_t)(panel + slot) * t->codes_stride +
                                                 unit * (kind == BYTES ? 512 : 256);
                    load_factors(t, &c, panel + slot, &s->factors[slot], kind);
                    if (kind == NIBBLES)
                        unpack_nibbles(&s->codes.nibbles, codes, c.end - unit);
                    else
                        unpack_pairs(&s->codes.pairs[slot], codes, c.end - unit, t->table8, kind);
                }
                meet_rows(&m, panel, panels, row, least(ROWS, t->m - row), kind);
            }
        }
}

static void tile_nibbles(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES);
}
static void tile_nibble_table(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLE_TABLE);
}
static void tile_bytes(const struct qni_matmul_tile *t)
{
    tile(t, BYTES);
}

void qni_matmul_q8_q4n16_mr12_avx2(const struct qni_matmul_tile *t)
{
    tile_nibbles(t);
}
void qni_matmul_q8_t4n16_mr12_avx2(const struct qni_matmul_tile *t)
{
    tile_nibble_table(t);
}
void qni_matmul_q8_q8n16_mr12_avx2(const struct qni_matmul_tile *t)
{
    tile_bytes(t);
}
void qni_matmul_q8b_q4n16_mr12_avx2(const struct qni_matmul_tile *t)
{
    tile_nibbles(t);
}
void qni_matmul_q8b_t4n16_mr12_avx2(const struct qni_matmul_tile *t)
{
    tile_nibble_table(t);
}
void qni_matmul_q8b_q8n16_mr12_avx2(const struct qni_matmul_tile *t)
{
    tile_bytes(t);
}
