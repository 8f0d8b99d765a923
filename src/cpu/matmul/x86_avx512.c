/* SPDX-License-Identifier: Apache-2.0 */
/* f32 activations x 4- and 8-bit weights, and weights that are floats, with AVX-512. Contract and
 * operand layouts: kernel.h.
 *
 * A lane of 4 packed bytes is one output; the codes of one position are made 16 floats, one an
 * output, and multiplied with a broadcast activation. Nibbles need two instructions for it: a
 * shift, and vpermps, which looks only at the low four bits of each index, so that the table of 16
 * values (integers or a codebook) also masks. Bytes take a shift or two and a conversion, or a
 * gather from the table of 256. FP8 becomes f16 by a shift: 64 codes take 22 instructions, a
 * gather of 16 more time than that.
 *
 *     y = sum over groups of  scale * (sum a * value)  +  offset * (sum a)
 *
 * Few rows: the inner sums are f32 without scale: one multiplication a group and output, not one a
 * weight. Two panels and up to six rows are in registers at a time (12 group sums, 12 results, 2
 * weights, the table). Weights that are floats have neither scales nor groups: there all
 * of eight rows are sums, and one pass over the weights is made. (With twelve there are too few
 * registers for the addresses of rows: as many rows took longer than sixteen.)
 * Many rows: spans of k of two panels are made dense floats, fma(scale, value, offset), and
 * fourteen rows at a time are multiplied with them:
 *
 *     for spans of k               whose rows, copied close together, stay in the second cache
 *       for pairs of panels        whose weights, made once for all rows, stay in the first
 *         for blocks of rows       whose sums come from c and go there
 *
 * Bound: bytes of the codes / bandwidth while m <= 2, then 2 m n k / (64 operations a cycle), of
 * few rows at 2 m / (2 m + 3) of it because unpacking shares the two ports of the multiply-adds,
 * of many at m / (m + 3). */
#include "../../base/compiler.h"
#include "../simd/avx512.h"
#include "kernel.h"

enum {
    NIBBLES = 0,
    NIBBLE_TABLE = 1,
    BYTES = 2,
    BYTE_TABLE = 3,
    BYTE_E4M3 = 4,
    HALVES = 5, /* floats: f16 */
    BRAINS = 6, /* bf16 */
    FLOATS = 7
};
enum { MR = 6, NR = 2, FLOAT_MR = 8, AHEAD = 2048 };
enum {
    MANY = 14,
    LINE = 16,  /* floats */
    SPAN = 128, /* positions: 16 KiB of weights in the first cache */
    ROWS = 256
};

/* Index of vpshufb: byte b of each lane, wherever a mask says. */
QNI_TEMPLATE __m512i to_byte(const int b)
{
    const __m128i lanes = _mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c);
    return _mm512_add_epi8(_mm512_set1_epi8((char)b), _mm512_broadcast_i32x4(lanes));
}

/* 16 values of position 4 r + b (low) or 16 + 4 r + b (high) of a unit, from the vector r of the
 * unit. */
QNI_TEMPLATE __m512 value16(__m512i codes, const int shift, const int kind, __m512 table,
                            const float *table256)
{
    if (kind == NIBBLES || kind == NIBBLE_TABLE)
        return _mm512_permutexvar_ps(shift == 0 ? codes : _mm512_srli_epi32(codes, (unsigned)shift),
                                     table);
    if (kind == BYTES) {
        /* In the low bits of 2^23 the byte makes 2^23 + byte; less 2^23 + 128 it is the code. */
        const __m512i one = _mm512_set1_epi32(0x4b000000);
        const __m512i bits =
            _mm512_mask_shuffle_epi8(one, 0x1111111111111111u, codes, to_byte(shift / 8));
        return _mm512_sub_ps(_mm512_castsi512_ps(bits), _mm512_set1_ps(0x1p23f + 128.0f));
    }
    const __m512i index =
        _mm512_and_si512(_mm512_srli_epi32(codes, (unsigned)shift), _mm512_set1_epi32(255));
    return _mm512_i32gather_ps(index, table256, 4);
}

/* Four positions of 16 outputs. f16 has the digits of E4M3 one place lower, a bias that is 8 more,
 * and the same way to write what is smallest. */
QNI_TEMPLATE void from_e4m3(__m512i codes, __m512 *v)
{
    /* In each lane of 128 bits four outputs position by position; then all outputs of positions 0
     * and 1 in the lower halves of these lanes, of 2 and 3 in the upper ones. */
    const __m512i in_turn =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    const __m512i lanes = _mm512_setr_epi32(0, 4, 2, 6, 8, 12, 10, 14, 1, 5, 3, 7, 9, 13, 11, 15);
    const __m512i zero = _mm512_setzero_si512(), bits = _mm512_set1_epi16((short)0xbf80);
    const __m512i all = _mm512_permutexvar_epi32(lanes, _mm512_shuffle_epi8(codes, in_turn));
    const __m512i low =
        _mm512_and_si512(_mm512_srai_epi16(_mm512_unpacklo_epi8(zero, all), 1), bits);
    const __m512i high =
        _mm512_and_si512(_mm512_srai_epi16(_mm512_unpackhi_epi8(zero, all), 1), bits);
    v[0] = _mm512_cvtph_ps(_mm512_castsi512_si256(low));
    v[1] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(low, 1));
    v[2] = _mm512_cvtph_ps(_mm512_castsi512_si256(high));
    v[3] = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(high, 1));
    QNI_UNROLL
    for (int b = 0; b < 4; b++)
        v[b] = _mm512_mul_ps(v[b], _mm512_set1_ps(256));
}

QNI_TEMPLATE bool are_nibbles(const int kind)
{
    return kind == NIBBLES || kind == NIBBLE_TABLE;
}

/* Bytes of a vector of kernel.h, or of four positions of floats; vectors of a unit. */
QNI_TEMPLATE int64_t vector_bytes(const int kind)
{
    return kind == FLOATS ? 256 : kind >= HALVES ? 128 : 64;
}
QNI_TEMPLATE int64_t vectors_of(const int kind)
{
    return are_nibbles(kind) ? 4 : 8;
}
QNI_TEMPLATE int64_t unit_bytes_of(const int kind)
{
    return vectors_of(kind) * vector_bytes(kind);
}

/* Four positions of 16 outputs, of kinds that make them together. */
QNI_TEMPLATE void four_of(const uint8_t *codes, const int kind, __m512 *v)
{
    if (kind == BYTE_E4M3) {
        from_e4m3(_mm512_loadu_si512(codes), v);
        return;
    }
    QNI_UNROLL
    for (int b = 0; b < 4 && kind == FLOATS; b++)
        v[b] = _mm512_loadu_ps(codes + 64 * b);
    QNI_UNROLL
    for (int b = 0; b < 4 && kind == HALVES; b++)
        v[b] = _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)(codes + 32 * b)));
    QNI_UNROLL
    for (int b = 0; b < 2 && kind == BRAINS; b++) {
        const __m512i pair = _mm512_loadu_si512(codes + 64 * b);
        const __m512i high = _mm512_set1_epi32((int)0xffff0000);
        v[b] = _mm512_castsi512_ps(_mm512_slli_epi32(pair, 16));
        v[b + 2] = _mm512_castsi512_ps(_mm512_and_si512(pair, high));
    }
}

struct table {
    __m512 nibbles;
    const float *bytes;
};

QNI_TEMPLATE __m512 table_of(const struct qni_matmul_tile *t, const int kind)
{
    if (kind == NIBBLE_TABLE)
        return _mm512_loadu_ps(t->table);
    return _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
}

struct operand {
    const float *a[MR];
    const uint8_t *codes[NR];
    const float *table256;
    __m512 table; /* of the nibbles */
    int64_t end;  /* bytes of a panel */
    int64_t skip; /* what is asked for ahead of it is of a panel after the neighbours */
};

/* sum[i][j] += a[i] * value over one vector of codes: 4 positions (8 for nibbles: low at p, high at
 * p + 16). */
QNI_TEMPLATE void add_vector(const struct operand *o, int64_t at, int64_t p, const int mr,
                             const int nr, const int kind, __m512 (*sum)[NR])
{
    const int positions = kind == NIBBLES || kind == NIBBLE_TABLE ? 8 : 4;
    const int64_t ahead = at + AHEAD + (at + AHEAD >= o->end ? o->skip : 0);
    __m512i codes[NR];
    QNI_UNROLL
    for (int j = 0; j < nr; j++) {
        codes[j] = _mm512_loadu_si512(o->codes[j] + at);
        _mm_prefetch((const char *)o->codes[j] + ahead, _MM_HINT_T0);
    }
    QNI_UNROLL
    for (int j = 0; kind == BYTE_E4M3 && j < nr; j++) {
        __m512 w[4];
        from_e4m3(codes[j], w);
        QNI_UNROLL
        for (int i = 0; i < 4 * mr; i++)
            sum[i / 4][j] =
                _mm512_fmadd_ps(w[i % 4], _mm512_set1_ps(o->a[i / 4][p + i % 4]), sum[i / 4][j]);
    }
    QNI_UNROLL
    for (int q = 0; kind != BYTE_E4M3 && q < positions; q++) {
        /* nibbles: byte q / 2 of the lane, low then high */
        const int shift = positions == 8 ? 4 * q : 8 * q;
        const int64_t where = positions == 8 ? p + q / 2 + q % 2 * 16 : p + q;
        __m512 w[NR];
        QNI_UNROLL
        for (int j = 0; j < nr; j++)
            w[j] = value16(codes[j], shift, kind, o->table, o->table256);
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m512 x = _mm512_set1_ps(o->a[i][where]);
            QNI_UNROLL
            for (int j = 0; j < nr; j++)
                sum[i][j] = _mm512_fmadd_ps(w[j], x, sum[i][j]);
        }
    }
}

/* Sum of n positions of a row, in one fixed order; n is a multiple of 32. */
static inline float total_of(const float *a, int64_t n)
{
    __m512 s = _mm512_setzero_ps(), t = _mm512_setzero_ps();
    for (int64_t p = 0; p < n; p += 32) {
        s = _mm512_add_ps(s, _mm512_loadu_ps(a + p));
        t = _mm512_add_ps(t, _mm512_loadu_ps(a + p + 16));
    }
    return _mm512_reduce_add_ps(_mm512_add_ps(s, t));
}

struct where {
    int64_t panel, row;
};

/* mr rows x nr panels, all of k. */
QNI_TEMPLATE void block(const struct qni_matmul_tile *t, struct where at, const int mr,
                        const int nr, const int kind)
{
    const bool nibbles = are_nibbles(kind);
    const int64_t vectors = nibbles ? 4 : 8;
    struct operand o;
    o.table256 = t->table;
    o.end = (int64_t)t->codes_stride;
    o.skip = (nr - 1) * o.end;
    o.table = table_of(t, kind);
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        o.a[i] = (const float *)(const void *)((const char *)t->a + (size_t)(at.row + i) * t->lda);
    QNI_UNROLL
    for (int j = 0; j < nr; j++)
        o.codes[j] = t->codes + (size_t)(at.panel + j) * t->codes_stride;
    __m512 acc[MR][NR];
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int j = 0; j < nr; j++)
        acc[i][j] = _mm512_setzero_ps();

    int64_t unit = 0;
    for (int64_t g = 0; g < t->n_groups; g++) {
        const int64_t left = t->units - unit, n = left < t->group_units ? left : t->group_units;
        __m512 sum[MR][NR];
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            QNI_UNROLL
        for (int j = 0; j < nr; j++)
            sum[i][j] = _mm512_setzero_ps();
        for (int64_t u = unit; u < unit + n; u++)
            for (int64_t r = 0; r < vectors; r++)
                add_vector(&o, (u * vectors + r) * 64, u * QNI_UNIT + 4 * r, mr, nr, kind, sum);
        QNI_UNROLL
        for (int j = 0; j < nr; j++) {
            const int64_t s = (at.panel + j) * t->n_groups + g;
            const __m512 scale = qni_load16(t->scale, s, t->scale_is_f16);
            QNI_UNROLL
            for (int i = 0; i < mr; i++)
                acc[i][j] = _mm512_fmadd_ps(scale, sum[i][j], acc[i][j]);
        }
        if (t->offset != NULL) {
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m512 total =
                    _mm512_set1_ps(total_of(o.a[i] + unit * QNI_UNIT, n * QNI_UNIT));
                QNI_UNROLL
                for (int j = 0; j < nr; j++)
                    acc[i][j] = _mm512_fmadd_ps(
                        qni_load16(t->offset, (at.panel + j) * t->n_groups + g, t->scale_is_f16),
                        total, acc[i][j]);
            }
        }
        unit += n;
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int j = 0; j < nr; j++)
        _mm512_storeu_ps(t->c + (size_t)(at.row + i) * t->ldc + (size_t)(at.panel + j) * QNI_PANEL,
                         acc[i][j]);
}

QNI_TEMPLATE void rows_of(const struct qni_matmul_tile *t, int64_t panel, const int nr,
                          const int kind)
{
    struct where at = {panel, 0};
    for (; at.row + MR <= t->m; at.row += MR)
        block(t, at, MR, nr, kind);
    switch (t->m - at.row) {
    case 5:
        block(t, at, 5, nr, kind);
        break;
    case 4:
        block(t, at, 4, nr, kind);
        break;
    case 3:
        block(t, at, 3, nr, kind);
        break;
    case 2:
        block(t, at, 2, nr, kind);
        break;
    case 1:
        block(t, at, 1, nr, kind);
        break;
    default:
        break;
    }
}

/* ---- few rows of floats ---------------------------------------------------------------------- */

/* mr rows x 2 panels, all of k. Rows and panels past the end stand for the last one, and are not
 * stored. */
QNI_TEMPLATE void float_block(const struct qni_matmul_tile *t, struct where at, const int mr,
                              const int kind)
{
    const int64_t rows = t->m - at.row, panels = t->n_panels - at.panel;
    const int64_t end = (int64_t)t->codes_stride;
    const float *a[FLOAT_MR];
    const uint8_t *codes[NR];
    __m512 sum[FLOAT_MR][NR];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        const int64_t row = at.row + (i < rows ? i : rows - 1);
        a[i] = (const float *)(const void *)((const char *)t->a + (size_t)row * t->lda);
        sum[i][0] = sum[i][1] = _mm512_setzero_ps();
    }
    QNI_UNROLL
    for (int j = 0; j < NR; j++)
        codes[j] = t->codes + (size_t)(at.panel + (j < panels ? j : 0)) * t->codes_stride;
    for (int64_t bytes = 0, p = 0; bytes < end; bytes += vector_bytes(kind), p += 4) {
        const int64_t ahead = bytes + AHEAD + (bytes + AHEAD >= end ? (NR - 1) * end : 0);
        QNI_UNROLL
        for (int j = 0; j < NR; j++) {
            __m512 w[4];
            four_of(codes[j] + bytes, kind, w);
            QNI_UNROLL
            for (int line = 0; line < vector_bytes(kind); line += 64)
                _mm_prefetch((const char *)codes[j] + ahead + line, _MM_HINT_T0);
            QNI_UNROLL
            for (int b = 0; b < 4; b++)
                QNI_UNROLL
            for (int i = 0; i < mr; i++)
                sum[i][j] = _mm512_fmadd_ps(w[b], _mm512_set1_ps(a[i][p + b]), sum[i][j]);
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int j = 0; j < NR; j++)
        if (i < rows && j < panels)
            _mm512_storeu_ps(t->c + (size_t)(at.row + i) * t->ldc +
                                 (size_t)(at.panel + j) * QNI_PANEL,
                             sum[i][j]);
}

/* At most FLOAT_MR rows. */
QNI_TEMPLATE void few_floats(const struct qni_matmul_tile *t, const int kind)
{
    for (struct where at = {0, 0}; at.panel < t->n_panels; at.panel += NR) {
        if (t->m == 1)
            float_block(t, at, 1, kind);
        else if (t->m == 2)
            float_block(t, at, 2, kind);
        else if (t->m <= 4)
            float_block(t, at, 4, kind);
        else if (t->m <= 6)
            float_block(t, at, 6, kind);
        else
            float_block(t, at, FLOAT_MR, kind);
    }
}

/* ---- many rows ------------------------------------------------------------------------------- */

/* Rows are copied, a span of k at a time: where they lie, often a multiple of 4 KiB apart, those of
 * a block would meet in one set of the first cache. Copies are an odd number of lines apart. */
struct span_scratch {
    __m512 w[SPAN][NR]; /* [position][panel] */
    float a[ROWS][SPAN + LINE];
};
_Static_assert(sizeof(struct span_scratch) == 163840, "kernels.inc says so");
_Static_assert(offsetof(struct span_scratch, a[QNI_SMALL_ROWS]) == 20992, "and so for few rows");

/* A span of k, for rows [row, row + rows) of the tile. Positions of padding are neither copied nor
 * made. */
struct span {
    const struct qni_matmul_tile *t;
    struct span_scratch *s;
    struct table table;
    int64_t row, rows;
    int64_t unit, units;
    int64_t positions; /* of a row */
};

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static void copy_rows(const struct span *n)
{
    const int64_t step = n->t->halves ? 2 * LINE : LINE, whole = n->positions / LINE;
    const __mmask16 rest = (__mmask16)((1 << n->positions % LINE) - 1);
    const char *row = (const char *)n->t->a + (size_t)n->row * n->t->lda;
    for (int64_t i = 0; i < n->rows; i++, row += n->t->lda) {
        const float *const from = (const float *)(const void *)row + n->unit * QNI_UNIT;
        for (int64_t line = 0; line < whole; line++)
            _mm512_store_ps(n->s->a[i] + line * LINE, _mm512_loadu_ps(from + line * step));
        if (rest != 0)
            _mm512_store_ps(n->s->a[i] + whole * LINE,
                            _mm512_maskz_loadu_ps(rest, from + whole * step));
    }
}

/* A unit of a panel, of which `halves` has no more than 16 positions. */
QNI_TEMPLATE void expand(__m512 *w, const uint8_t *codes, ptrdiff_t ahead, __m512 scale,
                         __m512 offset, const struct table *table, bool halves, const int kind)
{
    const bool nibbles = are_nibbles(kind);
    const int vectors = halves || nibbles ? 4 : 8;
    for (int r = 0; r < vectors; r++, codes += vector_bytes(kind)) {
        const __m512i v = _mm512_loadu_si512(codes);
        __m512 four[4];
        QNI_UNROLL
        for (int line = 0; line < vector_bytes(kind); line += 64)
            _mm_prefetch((const char *)codes + line + ahead, _MM_HINT_T1);
        if (kind >= BYTE_E4M3)
            four_of(codes, kind, four);
        QNI_UNROLL
        for (int b = 0; b < 4; b++) {
            if (kind >= HALVES) {
                w[NR * (4 * r + b)] = four[b];
                continue;
            }
            const __m512 low =
                kind == BYTE_E4M3 ? four[b] : value16(v, 8 * b, kind, table->nibbles, table->bytes);
            w[NR * (4 * r + b)] = _mm512_fmadd_ps(scale, low, offset);
            if (!nibbles || halves)
                continue;
            const __m512 high = value16(v, 8 * b + 4, kind, table->nibbles, table->bytes);
            w[NR * (16 + 4 * r + b)] = _mm512_fmadd_ps(scale, high, offset);
        }
    }
}

/* Weights of a panel, the j-th of its pair; what is asked for ahead is so far from its codes. */
QNI_TEMPLATE void make(const struct span *n, int64_t panel, int j, ptrdiff_t ahead, const int kind)
{
    const struct qni_matmul_tile *t = n->t;
    const int64_t unit_bytes = unit_bytes_of(kind);
    const int64_t unit_positions = t->halves ? QNI_UNIT / 2 : QNI_UNIT;
    const uint8_t *codes = t->codes + (size_t)panel * t->codes_stride + n->unit * unit_bytes;
    __m512 *w = &n->s->w[0][j];
    __m512 scale = _mm512_setzero_ps(), offset = _mm512_setzero_ps();
    for (int64_t u = 0; u < n->units; u++, codes += unit_bytes, w += NR * unit_positions) {
        if (u == 0 || (n->unit + u) % t->group_units == 0) {
            const int64_t at = panel * t->n_groups + (n->unit + u) / t->group_units;
            scale = qni_load16(t->scale, at, t->scale_is_f16);
            if (t->offset != NULL)
                offset = qni_load16(t->offset, at, t->scale_is_f16);
        }
        expand(w, codes, ahead, scale, offset, &n->table, t->halves, kind);
    }
}

/* mr rows of c += a * w, in ascending order. The first span begins at zero. width: outputs of the
 * pair that are worked on: 16, 24 or 32. A processor whose units
 * are half as wide as its registers takes half a vector in half the time. */
QNI_VARIANTS void multiply_rows(const struct span *n, int64_t row, int64_t pair, const int mr,
                                const int width)
{
    enum { LD = SPAN + LINE, HALF = QNI_PANEL / 2 };
    const struct qni_matmul_tile *t = n->t;
    const int whole = width / QNI_PANEL;
    const bool has_half = width % QNI_PANEL != 0;
    const __m512(*w)[NR] = (const __m512(*)[NR])n->s->w;
    const float *a = n->s->a[row];
    float *const c = t->c + (size_t)(n->row + row) * t->ldc + pair * NR * QNI_PANEL;
    __m512 sum[MANY][NR];
    __m256 half[MANY];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        float *const to = c + (size_t)i * t->ldc;
        QNI_UNROLL
        for (int j = 0; j < whole; j++)
            sum[i][j] = n->unit > 0 ? _mm512_loadu_ps(to + j * QNI_PANEL) : _mm512_setzero_ps();
        if (has_half) {
            half[i] = n->unit > 0 ? _mm256_loadu_ps(to + whole * QNI_PANEL) : _mm256_setzero_ps();
            _mm256_storeu_ps(to + whole * QNI_PANEL + HALF, _mm256_setzero_ps());
        }
    }
    for (const float *const end = a + n->positions; a < end; a++, w++) {
        const __m512 w0 = w[0][0], w1 = w[0][1];
        const __m256 last = _mm512_castps512_ps256(w1);
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m512 x = _mm512_set1_ps(a[i * LD]);
            sum[i][0] = _mm512_fmadd_ps(w0, x, sum[i][0]);
            if (whole > 1)
                sum[i][1] = _mm512_fmadd_ps(w1, x, sum[i][1]);
            if (has_half)
                half[i] = _mm256_fmadd_ps(last, _mm512_castps512_ps256(x), half[i]);
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        float *const to = c + (size_t)i * t->ldc;
        QNI_UNROLL
        for (int j = 0; j < whole; j++)
            _mm512_storeu_ps(to + j * QNI_PANEL, sum[i][j]);
        if (has_half)
            _mm256_storeu_ps(to + whole * QNI_PANEL, half[i]);
    }
}

/* All rows, in blocks that differ by one row at most. */
QNI_TEMPLATE void multiply_width(const struct span *n, int64_t pair, const int width)
{
    int64_t blocks = (n->rows + MANY - 1) / MANY;
    for (int64_t row = 0, mr; row < n->rows; row += mr, blocks--) {
        mr = (n->rows - row) / blocks;
        switch (mr) {
        case 14:
            multiply_rows(n, row, pair, 14, width);
            break;
        case 13:
            multiply_rows(n, row, pair, 13, width);
            break;
        case 12:
            multiply_rows(n, row, pair, 12, width);
            break;
        case 11:
            multiply_rows(n, row, pair, 11, width);
            break;
        case 10:
            multiply_rows(n, row, pair, 10, width);
            break;
        case 9:
            multiply_rows(n, row, pair, 9, width);
            break;
        case 8:
            multiply_rows(n, row, pair, 8, width);
            break;
        default: /* fewer only where all rows are */
            mr = 7;
            multiply_rows(n, row, pair, 7, width);
            break;
        }
    }
}

/* Whole pairs, and of the last one no more than half a panel of padding. */
static void multiply(const struct span *n, int64_t pair)
{
    const struct qni_matmul_tile *t = n->t;
    const int64_t outputs = t->n_panels * QNI_PANEL - t->padding - pair * NR * QNI_PANEL;
    if (outputs > 24)
        multiply_width(n, pair, 32);
    else if (outputs > 16)
        multiply_width(n, pair, 24);
    else
        multiply_width(n, pair, 16);
}

QNI_TEMPLATE void one_span(const struct span *n, const int kind)
{
    const struct qni_matmul_tile *t = n->t;
    const int64_t pairs = (t->n_panels + 1) / 2, bytes = (int64_t)t->codes_stride;
    const int64_t unit_bytes = unit_bytes_of(kind);
    copy_rows(n);
    for (int64_t pair = 0; pair < pairs; pair++) {
        const int64_t panel = 2 * pair;
        /* Codes of the next pair, or of the next span of the first one. */
        const int64_t ahead = pair + 1 < pairs ? 2 * bytes : n->units * unit_bytes - panel * bytes;
        make(n, panel, 0, ahead, kind);
        if (panel + 1 < t->n_panels)
            make(n, panel + 1, 1, ahead, kind);
        multiply(n, pair);
    }
}

QNI_TEMPLATE void many_rows(const struct qni_matmul_tile *t, const int kind)
{
    const int64_t most = SPAN / QNI_UNIT << t->halves, blocks = (t->m + ROWS - 1) / ROWS;
    struct span n;
    memset(&n, 0, sizeof n);
    n.t = t;
    n.s = t->scratch;
    n.table = (struct table){table_of(t, kind), t->table};
    for (int64_t i = 0; i < blocks; i++, n.row += n.rows) {
        n.rows = (t->m - n.row) / (blocks - i);
        for (n.unit = 0; n.unit < t->units; n.unit += n.units) {
            n.units = at_most(t->units - n.unit, most);
            n.positions = at_most(n.units * QNI_UNIT >> t->halves,
                                  t->positions - (n.unit * QNI_UNIT >> t->halves));
            one_span(&n, kind);
        }
    }
}

/* From how many rows on weights are made floats once for all rows, instead of once for six: made
 * and stored, they cost more, and tables of 256 values so much that once is best. */
static bool are_many(const struct qni_matmul_tile *t, const int kind)
{
    if (kind >= HALVES && !t->halves)
        return t->m > FLOAT_MR;
    return t->m > (kind == BYTE_TABLE || t->halves ? MR : 2 * MR);
}

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind)
{
    int64_t panel = 0;
    if (are_many(t, kind)) {
        many_rows(t, kind);
        return;
    }
    if (kind >= HALVES) {
        few_floats(t, kind);
        return;
    }
    for (; panel + NR <= t->n_panels; panel += NR)
        rows_of(t, panel, NR, kind);
    if (panel < t->n_panels)
        rows_of(t, panel, 1, kind);
}

void qni_matmul_f32_q4n16_mr6_avx512(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES);
}
void qni_matmul_f32_t4n16_mr6_avx512(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLE_TABLE);
}
void qni_matmul_f32_q8n16_mr6_avx512(const struct qni_matmul_tile *t)
{
    tile(t, BYTES);
}
void qni_matmul_f32_t8n16_mr6_avx512(const struct qni_matmul_tile *t)
{
    if (t->is_e4m3)
        tile(t, BYTE_E4M3);
    else
        tile(t, BYTE_TABLE);
}
void qni_matmul_f32_h16n16_mr8_avx512(const struct qni_matmul_tile *t)
{
    tile(t, HALVES);
}
void qni_matmul_f32_b16n16_mr8_avx512(const struct qni_matmul_tile *t)
{
    tile(t, BRAINS);
}
void qni_matmul_f32_f32n16_mr8_avx512(const struct qni_matmul_tile *t)
{
    tile(t, FLOATS);
}
