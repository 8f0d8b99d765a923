/* SPDX-License-Identifier: Apache-2.0 */
/* f32 activations x 4- and 8-bit weights with AVX2 and FMA. Contract and operand layouts: kernel.h.
 *
 * The two ways of scalar_float.c, for the same reasons:
 * few rows codes become floats in registers and meet the activations at once, scale and offset
 * enter
 *               once a group:   y = sum over groups of  scale * (sum a * value) + offset * (sum a);
 * more rows a chunk of a panel is made dense floats, fma(scale, value, offset), and multiplied with
 *               all rows; also codebooks, for any number of rows.
 *
 * A code is three instructions from its float (two shifts and a conversion, or a shuffle and two
 * more that leave room for multiply-adds), 8 outputs at a time; a value of a codebook of 16 two
 * permutations and a blend, of 256 a gather.
 * Bound: few rows, 3 + m instructions on two ports for 8 weights, or bytes of the codes /
 * bandwidth; more rows, 2 m n k / (32 operations a cycle). */
#include "../../base/compiler.h"
#include "../simd/avx2.h"
#include "kernel.h"

enum { NIBBLES = 0, NIBBLE_TABLE = 1, BYTES = 2, BYTE_TABLE = 3 };
enum {
    FEW = 4,         /* rows of the first way: 8 sums in registers */
    MR = 6,          /* rows of the second: 12 sums */
    CHUNK_UNITS = 4, /* 8 KiB of floats beside the activations in the first-level cache */
    CHUNK = CHUNK_UNITS * QNI_UNIT,
    AHEAD = 2048 /* bytes: about 100 ns of one core's stream */
};

/* Words of 8 outputs, half h of vector r; integers are made signed by flipping the highest bits. */
QNI_TEMPLATE __m256i load_words(const uint8_t *vector, const int h, const int kind)
{
    const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)(vector + 32 * h));
    if (kind == NIBBLES)
        return _mm256_xor_si256(v, _mm256_set1_epi8((char)0x88));
    return kind == BYTES ? _mm256_xor_si256(v, _mm256_set1_epi8((char)0x80)) : v;
}

/* The codebook, in registers if it has 16 values. */
struct table {
    __m256 low, high;
    const float *values;
};

static inline struct table load_table(const float *values, const int kind)
{
    struct table t = {_mm256_setzero_ps(), _mm256_setzero_ps(), values};
    if (kind == NIBBLE_TABLE) {
        t.low = _mm256_loadu_ps(values);
        t.high = _mm256_loadu_ps(values + 8);
    }
    return t;
}

/* The values of the codes whose lowest bit is `at` of each word. */
QNI_TEMPLATE __m256 values(__m256i words, const int at, const struct table *table, const int kind)
{
    if (kind == NIBBLES)
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 28 - at), 28));
    if (kind == BYTES)
        return _mm256_cvtepi32_ps(_mm256_srai_epi32(_mm256_slli_epi32(words, 24 - at), 24));
    if (kind == NIBBLE_TABLE) { /* bit 3 picks the half of the table, as the sign of the blend */
        const __m256i index = at == 0 ? words : _mm256_srli_epi32(words, at);
        const __m256 pick = _mm256_castsi256_ps(_mm256_slli_epi32(words, 28 - at));
        return _mm256_blendv_ps(_mm256_permutevar8x32_ps(table->low, index),
                                _mm256_permutevar8x32_ps(table->high, index), pick);
    }
    const __m256i index = _mm256_and_si256(_mm256_srli_epi32(words, at), _mm256_set1_epi32(255));
    return _mm256_i32gather_ps(table->values, index, 4);
}

/* ---- few rows -------------------------------------------------------------------------------- */

/* One unit: dot[i][h][chain] += value * a, sum[i] += a. Low and high nibbles, or even and odd
 * positions, are two chains, so that one row does not wait for the latency of its multiply-adds. */
struct few {
    __m256 dot[FEW][2][2], sum[FEW];
};

QNI_TEMPLATE void few_unit(struct few *f, const uint8_t *codes, const float *const *a,
                           const bool with_sum, const int mr, const int kind)
{
    const struct table none = {_mm256_setzero_ps(), _mm256_setzero_ps(), NULL};
    const int chains = mr <= 2 ? 2 : 1;
    const int vectors = kind == NIBBLES ? 4 : 8, parts = kind == NIBBLES ? 2 : 1;
    if (with_sum)
        QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int p = 0; p < QNI_UNIT; p += 8)
        f->sum[i] = _mm256_add_ps(f->sum[i], _mm256_loadu_ps(a[i] + p));
    QNI_UNROLL
    for (int r = 0; r < vectors; r++, codes += 64) {
        _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
        const __m256i words[2] = {load_words(codes, 0, kind), load_words(codes, 1, kind)};
        QNI_UNROLL
        for (int b = 0; b < 4; b++)
            QNI_UNROLL
        for (int part = 0; part < parts; part++) {
            const int chain = (kind == NIBBLES ? part : b) % chains;
            const int p = 4 * r + b + 16 * part;
            const __m256 low = values(words[0], 8 * b + 4 * part, &none, kind);
            const __m256 high = values(words[1], 8 * b + 4 * part, &none, kind);
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m256 x = _mm256_broadcast_ss(a[i] + p);
                f->dot[i][0][chain] = _mm256_fmadd_ps(low, x, f->dot[i][0][chain]);
                f->dot[i][1][chain] = _mm256_fmadd_ps(high, x, f->dot[i][1][chain]);
            }
        }
    }
}

QNI_TEMPLATE void few_rows(const struct qni_matmul_tile *t, int64_t panel, const int mr,
                           const int kind)
{
    const uint8_t *codes = t->codes + (size_t)panel * t->codes_stride;
    const float *a[FEW];
    __m256 c[FEW][2];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        a[i] = (const float *)(const void *)((const char *)t->a + (size_t)i * t->lda);
        c[i][0] = c[i][1] = _mm256_setzero_ps();
    }
    for (int64_t g = 0, unit = 0; g < t->n_groups; g++) {
        const int64_t left = t->units - unit, row = panel * t->n_groups + g;
        const int64_t end = unit + (left < t->group_units ? left : t->group_units);
        struct few f;
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            f.sum[i] = _mm256_setzero_ps();
            QNI_UNROLL
            for (int h = 0; h < 2; h++)
                f.dot[i][h][0] = f.dot[i][h][1] = _mm256_setzero_ps();
        }
        for (; unit < end; unit++, codes += kind == NIBBLES ? 256 : 512) {
            if (t->offset != NULL)
                few_unit(&f, codes, a, true, mr, kind);
            else
                few_unit(&f, codes, a, false, mr, kind);
            QNI_UNROLL
            for (int i = 0; i < mr; i++)
                a[i] += QNI_UNIT;
        }
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256 scale = qni_load8(t->scale, row, h, t->scale_is_f16);
            QNI_UNROLL
            for (int i = 0; i < mr; i++)
                c[i][h] =
                    _mm256_fmadd_ps(scale, _mm256_add_ps(f.dot[i][h][0], f.dot[i][h][1]), c[i][h]);
            if (t->offset == NULL)
                continue;
            const __m256 offset = qni_load8(t->offset, row, h, t->scale_is_f16);
            QNI_UNROLL
            for (int i = 0; i < mr; i++)
                c[i][h] = _mm256_fmadd_ps(offset, _mm256_set1_ps(qni_sum8(f.sum[i])), c[i][h]);
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        _mm256_storeu_ps(t->c + (size_t)i * t->ldc + panel * QNI_PANEL + 8 * h, c[i][h]);
}

/* ---- more rows ------------------------------------------------------------------------------- */

/* A chunk of a panel: [position][output]. */
struct dense {
    float w[CHUNK][QNI_PANEL];
};

struct group {
    __m256 scale[2], offset[2];
};

static struct group group_of(const struct qni_matmul_tile *t, int64_t row)
{
    struct group g;
    for (int h = 0; h < 2; h++) {
        g.scale[h] = qni_load8(t->scale, row, h, t->scale_is_f16);
        g.offset[h] =
            t->offset == NULL ? _mm256_setzero_ps() : qni_load8(t->offset, row, h, t->scale_is_f16);
    }
    return g;
}

/* Byte b of each word: in the low bits of 2^23 it makes 2^23 + byte, which less 2^23 and the middle
 * of the codes is the code. Two shifts and a conversion would all go to the ports of the
 * multiply-adds. */
QNI_TEMPLATE __m256 code_of(__m256i bytes, const int b, const float middle)
{
    const __m256i words = _mm256_setr_epi32(0, 4, 8, 12, 0, 4, 8, 12);
    const __m256i at = _mm256_add_epi32(words, _mm256_set1_epi32((int)0x80808000 + b));
    const __m256i one = _mm256_set1_epi32(0x4b000000);
    const __m256i bits = _mm256_or_si256(_mm256_shuffle_epi8(bytes, at), one);
    return _mm256_sub_ps(_mm256_castsi256_ps(bits), _mm256_set1_ps(0x1p23f + middle));
}

/* A unit; positions that are padding (`halves`: from the 16th on) need not be there. */
QNI_TEMPLATE void expand(float (*w)[QNI_PANEL], const uint8_t *codes, const struct group *g,
                         const struct table *table, bool halves, const int kind)
{
    const int parts = kind == NIBBLES || kind == NIBBLE_TABLE ? 2 : 1;
    const int vectors = halves || parts == 2 ? 4 : 8;
    for (int r = 0; r < vectors; r++, codes += 64) {
        _mm_prefetch((const char *)codes + AHEAD, _MM_HINT_T0);
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256i words =
                _mm256_loadu_si256((const __m256i *)(const void *)(codes + 32 * h));
            const __m256i nibbles = _mm256_set1_epi8(15);
            const __m256i high = _mm256_and_si256(_mm256_srli_epi32(words, 4), nibbles);
            const __m256i low = kind == NIBBLES ? _mm256_and_si256(words, nibbles) : words;
            QNI_UNROLL
            for (int b = 0; b < 4; b++)
                QNI_UNROLL
            for (int part = 0; part < parts; part++) {
                const __m256 v = kind == NIBBLES || kind == BYTES
                                     ? code_of(part == 0 ? low : high, b, kind == BYTES ? 128 : 8)
                                     : values(words, 8 * b + 4 * part, table, kind);
                _mm256_storeu_ps(&w[4 * r + b + 16 * part][8 * h],
                                 _mm256_fmadd_ps(g->scale[h], v, g->offset[h]));
            }
        }
    }
}

/* Units of a chunk, and the positions of each that are no padding. */
struct stretch {
    int64_t units, positions;
};

/* mr rows of c += a * w, in ascending order. */
QNI_TEMPLATE void multiply_rows(const struct dense *d, const char *a, size_t lda, struct stretch n,
                                const int mr, float *c, size_t ldc)
{
    __m256 sum[MR][2];
    const float *row[MR];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        row[i] = (const float *)(const void *)(a + (size_t)i * lda);
        QNI_UNROLL
        for (int h = 0; h < 2; h++)
            sum[i][h] = _mm256_loadu_ps(c + (size_t)i * ldc + 8 * h);
    }
    for (int64_t u = 0; u < n.units * QNI_UNIT; u += QNI_UNIT)
        for (int64_t p = u; p < u + n.positions; p++) {
            const __m256 low = _mm256_loadu_ps(d->w[p]), high = _mm256_loadu_ps(d->w[p] + 8);
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m256 x = _mm256_broadcast_ss(row[i] + p);
                sum[i][0] = _mm256_fmadd_ps(low, x, sum[i][0]);
                sum[i][1] = _mm256_fmadd_ps(high, x, sum[i][1]);
            }
        }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        _mm256_storeu_ps(c + (size_t)i * ldc + 8 * h, sum[i][h]);
}

static void multiply(const struct qni_matmul_tile *t, const struct dense *d, int64_t panel,
                     int64_t unit, int64_t units)
{
    const struct stretch n = {units, t->halves ? QNI_UNIT / 2 : QNI_UNIT};
    const char *a = (const char *)t->a + (size_t)unit * QNI_UNIT * sizeof(float);
    float *c = t->c + panel * QNI_PANEL;
    int64_t i = 0;
    for (; i + MR <= t->m; i += MR, a += MR * t->lda, c += MR * t->ldc)
        multiply_rows(d, a, t->lda, n, MR, c, t->ldc);
    switch (t->m - i) {
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

QNI_TEMPLATE void more_rows(const struct qni_matmul_tile *t, int64_t panel, const int kind)
{
    const int64_t unit_bytes = kind == NIBBLES || kind == NIBBLE_TABLE ? 256 : 512;
    const struct table table = load_table(t->table, kind);
    const uint8_t *codes = t->codes + (size_t)panel * t->codes_stride;
    struct dense d;
    for (int64_t i = 0; i < t->m; i++)
        memset(t->c + (size_t)i * t->ldc + panel * QNI_PANEL, 0, QNI_PANEL * sizeof *t->c);
    struct group group = {{_mm256_setzero_ps()}, {_mm256_setzero_ps()}};
    for (int64_t unit = 0, n; unit < t->units; unit += n) {
        n = t->units - unit < CHUNK_UNITS ? t->units - unit : CHUNK_UNITS;
        for (int64_t u = 0; u < n; u++, codes += unit_bytes) {
            if ((unit + u) % t->group_units == 0)
                group = group_of(t, panel * t->n_groups + (unit + u) / t->group_units);
            expand(d.w + u * QNI_UNIT, codes, &group, &table, t->halves, kind);
        }
        multiply(t, &d, panel, unit, n);
    }
}

QNI_TEMPLATE void tile(const struct qni_matmul_tile *t, const int kind)
{
    const bool integers = kind == NIBBLES || kind == BYTES;
    for (int64_t panel = 0; panel < t->n_panels; panel++) {
        if (!integers || t->m > FEW) {
            more_rows(t, panel, kind);
            continue;
        }
        switch (t->m) {
        case 4:
            few_rows(t, panel, 4, kind);
            break;
        case 3:
            few_rows(t, panel, 3, kind);
            break;
        case 2:
            few_rows(t, panel, 2, kind);
            break;
        case 1:
            few_rows(t, panel, 1, kind);
            break;
        default:
            break;
        }
    }
}

void qni_matmul_f32_q4n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLES);
}
void qni_matmul_f32_t4n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    tile(t, NIBBLE_TABLE);
}
void qni_matmul_f32_q8n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    tile(t, BYTES);
}
void qni_matmul_f32_t8n16_mr6_avx2(const struct qni_matmul_tile *t)
{
    tile(t, BYTE_TABLE);
}
