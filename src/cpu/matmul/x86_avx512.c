/* SPDX-License-Identifier: Apache-2.0 */
/* f32 activations x 4- and 8-bit weights with AVX-512. Contract and operand layouts: kernel.h.
 *
 * A lane of 4 packed bytes is one output; the codes of one position are made 16 floats, one an
 * output, and multiplied with a broadcast activation. Nibbles need two instructions for it: a
 * shift, and vpermps, which looks only at the low four bits of each index, so that the table of 16
 * values (integers or a codebook) also masks. Bytes take a shift or two and a conversion, or a
 * gather from the table of 256.
 *
 *     y = sum over groups of  scale * (sum a * value)  +  offset * (sum a)
 *
 * Few rows: the inner sums are f32 without scale: one multiplication a group and output, not one a
 * weight. Two panels and up to six rows are in registers at a time (12 group sums, 12 results, 2
 * weights, the table). Many rows: a chunk of two panels is made dense floats, fma(scale, value,
 * offset), and twelve rows at a time are multiplied with it.
 *
 * Bound: bytes of the codes / bandwidth while m <= 2, then 2 m n k / (64 operations a cycle), of
 * few rows at 2 m / (2 m + 3) of it because unpacking shares the two ports of the multiply-adds. */
#include "../../base/compiler.h"
#include "../simd/avx512.h"
#include "kernel.h"

enum { NIBBLES = 0, NIBBLE_TABLE = 1, BYTES = 2, BYTE_TABLE = 3 };
enum { MR = 6, NR = 2, AHEAD = 2048 };
enum { MANY = 12, CHUNK_UNITS = 4 }; /* 16 KiB of floats in the first cache */

/* 16 values of position 4 r + b (low) or 16 + 4 r + b (high) of a unit, from the vector r of the
 * unit. */
QNI_TEMPLATE __m512 value16(__m512i codes, const int shift, const int kind, __m512 table,
                            const float *table256)
{
    if (kind == NIBBLES || kind == NIBBLE_TABLE)
        return _mm512_permutexvar_ps(shift == 0 ? codes : _mm512_srli_epi32(codes, (unsigned)shift),
                                     table);
    if (kind == BYTES) {
        /* codes were flipped to signed: the byte goes to the top and comes back with its sign */
        const __m512i top = shift == 24 ? codes : _mm512_slli_epi32(codes, (unsigned)(24 - shift));
        return _mm512_cvtepi32_ps(_mm512_srai_epi32(top, 24));
    }
    const __m512i index =
        _mm512_and_si512(_mm512_srli_epi32(codes, (unsigned)shift), _mm512_set1_epi32(255));
    return _mm512_i32gather_ps(index, table256, 4);
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
        if (kind == BYTES)
            codes[j] = _mm512_xor_si512(codes[j], _mm512_set1_epi8((char)0x80));
    }
    QNI_UNROLL
    for (int q = 0; q < positions; q++) {
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
    const bool nibbles = kind == NIBBLES || kind == NIBBLE_TABLE;
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

/* ---- many rows ------------------------------------------------------------------------------- */

/* Positions of two panels: [position][panel]. */
struct dense {
    __m512 w[CHUNK_UNITS * QNI_UNIT][NR];
};

struct group {
    __m512 scale, offset;
};

static struct group group_of(const struct qni_matmul_tile *t, int64_t panel, int64_t g)
{
    const int64_t at = panel * t->n_groups + g;
    struct group group = {qni_load16(t->scale, at, t->scale_is_f16), _mm512_setzero_ps()};
    if (t->offset != NULL)
        group.offset = qni_load16(t->offset, at, t->scale_is_f16);
    return group;
}

/* A unit of a panel; positions that are padding (`halves`: from the 16th on) need not be there. */
QNI_TEMPLATE void expand(__m512 *w, const uint8_t *codes, const struct group *g,
                         const struct table *table, bool halves, const int kind)
{
    const bool nibbles = kind == NIBBLES || kind == NIBBLE_TABLE;
    const int vectors = halves || nibbles ? 4 : 8;
    for (int r = 0; r < vectors; r++, codes += 64) {
        __m512i v = _mm512_loadu_si512(codes);
        _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
        if (kind == BYTES)
            v = _mm512_xor_si512(v, _mm512_set1_epi8((char)0x80));
        QNI_UNROLL
        for (int b = 0; b < 4; b++) {
            const __m512 low = value16(v, 8 * b, kind, table->nibbles, table->bytes);
            w[NR * (4 * r + b)] = _mm512_fmadd_ps(g->scale, low, g->offset);
            if (!nibbles)
                continue;
            const __m512 high = value16(v, 8 * b + 4, kind, table->nibbles, table->bytes);
            w[NR * (16 + 4 * r + b)] = _mm512_fmadd_ps(g->scale, high, g->offset);
        }
    }
}

/* Units of a chunk, and the positions of each that are no padding. */
struct stretch {
    int64_t units, positions;
    int64_t panels;
};

/* mr rows of c += a * w, in ascending order. */
QNI_TEMPLATE void multiply_rows(const struct dense *d, const char *a, size_t lda, struct stretch n,
                                const int mr, float *c, size_t ldc)
{
    __m512 sum[MANY][NR];
    const float *row[MANY];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        row[i] = (const float *)(const void *)(a + (size_t)i * lda);
        sum[i][0] = _mm512_loadu_ps(c + (size_t)i * ldc);
        sum[i][1] = n.panels == 1 ? sum[i][0] : _mm512_loadu_ps(c + (size_t)i * ldc + QNI_PANEL);
    }
    for (int64_t u = 0; u < n.units * QNI_UNIT; u += QNI_UNIT)
        for (int64_t p = u; p < u + n.positions; p++) {
            const __m512 w0 = d->w[p][0], w1 = d->w[p][1];
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m512 x = _mm512_set1_ps(row[i][p]);
                sum[i][0] = _mm512_fmadd_ps(w0, x, sum[i][0]);
                sum[i][1] = _mm512_fmadd_ps(w1, x, sum[i][1]);
            }
        }
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        _mm512_storeu_ps(c + (size_t)i * ldc, sum[i][0]);
        if (n.panels > 1)
            _mm512_storeu_ps(c + (size_t)i * ldc + QNI_PANEL, sum[i][1]);
    }
}

static void multiply(const struct qni_matmul_tile *t, const struct dense *d, int64_t panel,
                     int64_t unit, struct stretch n)
{
    const char *a = (const char *)t->a + (size_t)unit * QNI_UNIT * sizeof(float);
    float *c = t->c + panel * QNI_PANEL;
    int64_t left = t->m;
    for (; left >= MANY; left -= MANY, a += MANY * t->lda, c += MANY * t->ldc)
        multiply_rows(d, a, t->lda, n, MANY, c, t->ldc);
    if (left >= 6) {
        multiply_rows(d, a, t->lda, n, 6, c, t->ldc);
        left -= 6;
        a += 6 * t->lda;
        c += 6 * t->ldc;
    }
    switch (left) {
    case 5:
        multiply_rows(d, a, t->lda, n, 5, c, t->ldc);
        break;
    case 4:
        multiply_rows(d, a, t->lda, n, 4, c, t->ldc);
        break;
    case 3:
        multiply_rows(d, a, t->lda, n, 3, c, t->ldc);
        break;
    case 2:
        multiply_rows(d, a, t->lda, n, 2, c, t->ldc);
        break;
    case 1:
        multiply_rows(d, a, t->lda, n, 1, c, t->ldc);
        break;
    default:
        break;
    }
}

/* One or two panels, all rows. */
QNI_TEMPLATE void many_rows(const struct qni_matmul_tile *t, int64_t panel, int64_t nr,
                            const int kind)
{
    const int64_t unit_bytes = kind == NIBBLES || kind == NIBBLE_TABLE ? 256 : 512;
    const uint8_t *codes = t->codes + (size_t)panel * t->codes_stride;
    const struct table table = {table_of(t, kind), t->table};
    struct group group[NR];
    struct dense d;
    for (int64_t i = 0; i < t->m; i++)
        memset(t->c + (size_t)i * t->ldc + panel * QNI_PANEL, 0,
               (size_t)nr * QNI_PANEL * sizeof *t->c);
    memset(group, 0, sizeof group);
    if (nr < NR)
        memset(&d, 0, sizeof d);
    struct stretch n = {0, t->halves ? QNI_UNIT / 2 : QNI_UNIT, nr};
    for (int64_t unit = 0; unit < t->units; unit += n.units) {
        n.units = t->units - unit < CHUNK_UNITS ? t->units - unit : CHUNK_UNITS;
        for (int64_t u = 0; u < n.units; u++, codes += unit_bytes)
            for (int64_t j = 0; j < nr; j++) {
                if ((unit + u) % t->group_units == 0)
                    group[j] = group_of(t, panel + j, (unit + u) / t->group_units);
                expand(&d.w[u * QNI_UNIT][j], codes + (size_t)j * t->codes_stride, &group[j],
                       &table, t->halves, kind);
            }
        multiply(t, &d, panel, unit, n);
    }
}

/* From how many rows on weights are made floats once for all rows, instead of once for six: made
 * and stored, they cost more, and tables of 256 values so much that once is best. */
static bool are_many(const struct qni_matmul_tile *t, const int kind)
{
    return t->m > (kind == BYTE_TABLE || t->halves ? MR : 2 * MR);
}

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind)
{
    int64_t panel = 0;
    if (are_many(t, kind)) {
        for (; panel < t->n_panels; panel += NR)
            many_rows(t, panel, t->n_panels - panel < NR ? 1 : NR, kind);
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
    tile(t, BYTE_TABLE);
}
