/* SPDX-License-Identifier: Apache-2.0 */
/* One to three rows of f32 x integers of 4 bits with AVX2, by products of bytes. Contract and
 * operand layouts: matmul/kernel.h.
 *
 * One row does so little with a code that to make a float of it is most of the work: 34
 * instructions for 64 codes, where memory leaves time for 25 at the three a cycle that are reached.
 * So x becomes integers instead, once for all panels: of up to 128 positions of a group, with s a
 * power of two,
 *
 *     x = s q + r,     q = 2^16 (2^8 d3 + d2) + (2^8 d1 + d0),     -128 <= d <= 127
 *
 * and sums of codes times digits are exact: vpmaddubsw takes codes as they are stored, unsigned,
 * and a unit of pairs of at most 2 * 15 * 128 adds up to 30720 in int16. What stored codes have too
 * much, 8 times the sum of q, comes off as integers. Three digits take 22 instructions, four 28,
 * two rows of three 39, and three rows are such a pair and one.
 *
 * The remainder r is nothing at all for large x, and must be little beside each x by itself, for
 * the others may meet zeros: |r| <= 24 units 2^-24 |x|, where the bound of docs/numerics.md is 34
 * and more. Where three digits leave more there are four, and what those leave is met like x once
 * more. x of so many sizes that this would take longer than floats is not for digits. */
#ifndef QNI_CPU_SIMD_AVX2_DIGITS_H
#define QNI_CPU_SIMD_AVX2_DIGITS_H

#include "../../base/compiler.h"
#include "../matmul/kernel.h"
#include "avx2.h"

enum {
    DIGITS = 4,
    DIGIT_ROWS = 3,
    DIGIT_UNITS = 4, /* that share a power of two */
    DIGIT_QUADS = DIGIT_UNITS * QNI_UNIT / 4,
    DIGIT_PIECES = 256,
    DIGIT_REPEATS = 8,  /* 2^60 to 2^-89, 31 at a time, and some more */
    DIGIT_EXTRA = 30720 /* bytes of digits beside those of each x: of REPEATS, and of some pieces */
};

/* A range of positions of x, or the remainder of it. */
struct digit_piece {
    int64_t unit, units, group;
    int32_t row, digits;
    int32_t is_pair; /* the next piece is the next row's, and both have three digits */
    int32_t less[2]; /* 8 sums of q: of the lower two digits, of the others */
    float power, total;
};

/* Pieces are `slot` quads apart. Of a: as many as a scratch holds that has, beside DIGIT_EXTRA,
 * four bytes for each x, and no more than DIGIT_PIECES of all quads. */
struct digits {
    struct digit_piece piece[DIGIT_PIECES];
    int64_t n_pieces, most, slot;
    int64_t instructions, others; /* for 64 codes of each piece; where floats are made */
    int8_t a[DIGIT_PIECES * DIGIT_QUADS][DIGITS][4];
};

static void cut_slots(struct digits *s, const struct qni_matmul_tile *t)
{
    const int64_t units = t->group_units < DIGIT_UNITS ? t->group_units : DIGIT_UNITS;
    s->slot = units * QNI_UNIT / 4;
    const int64_t quads = t->m * t->units * (QNI_UNIT / 4) + DIGIT_EXTRA / (4 * DIGITS);
    s->most = quads / s->slot < DIGIT_PIECES ? quads / s->slot : DIGIT_PIECES;
}

/* Is every x zero or a number from which digits can be taken, and what they leave? */
static bool have_digits(const float *a, int64_t n)
{
    enum { TWO_60 = 0x5d800000, TWO_M66 = 0x1e800000 };
    __m256i bad = _mm256_setzero_si256();
    for (const float *const end = a + n; a < end; a += 8) {
        const __m256i size =
            _mm256_and_si256(_mm256_castps_si256(_mm256_loadu_ps(a)), _mm256_set1_epi32(INT32_MAX));
        const __m256i large = _mm256_cmpgt_epi32(size, _mm256_set1_epi32(TWO_60));
        const __m256i small =
            _mm256_andnot_si256(_mm256_cmpeq_epi32(size, _mm256_setzero_si256()),
                                _mm256_cmpgt_epi32(_mm256_set1_epi32(TWO_M66), size));
        bad = _mm256_or_si256(bad, _mm256_or_si256(large, small));
    }
    return _mm256_testz_si256(bad, bad);
}

static inline __m256 size_of(__m256 v)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
}

/* The largest |x|, with room for the digit on top: 129/128. */
static inline float largest(const float *a, int64_t n)
{
    __m256 most = _mm256_setzero_ps();
    for (int64_t p = 0; p < n; p += 8)
        most = _mm256_max_ps(most, size_of(_mm256_loadu_ps(a + p)));
    float v[8], all = 0;
    _mm256_storeu_ps(v, most);
    for (int i = 0; i < 8; i++)
        all = v[i] > all ? v[i] : all;
    return all * (129.0f / 128);
}

static inline float power_of_two(int32_t exponent)
{
    const uint32_t bits = (uint32_t)(exponent + 127) << 23;
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

/* Digits of x times 1 / p->power; false if x has more than r may be. Sums of each digit. */
static bool take_digits(struct digit_piece *p, const float *x, float inverse, float most,
                        int8_t (*to)[DIGITS][4])
{
    const __m256i each = _mm256_set1_epi32((int)0x80808080);
    __m256 bad = _mm256_setzero_ps();
    __m256i sums = _mm256_setzero_si256();
    for (int64_t i = 0; i < p->units * QNI_UNIT; i += 8, to += 2) {
        const __m256 y = _mm256_mul_ps(_mm256_loadu_ps(x + i), _mm256_set1_ps(inverse));
        const __m256i q = _mm256_cvtps_epi32(y);
        const __m256 left = _mm256_sub_ps(y, _mm256_cvtepi32_ps(q));
        const __m256 may = _mm256_mul_ps(size_of(y), _mm256_set1_ps(most));
        bad = _mm256_or_ps(bad, _mm256_cmp_ps(size_of(left), may, _CMP_GT_OQ));
        const __m256i bytes = _mm256_xor_si256(_mm256_add_epi32(q, each), each);
        const __m256i by_digit = _mm256_shuffle_epi8(
            bytes, _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15, 0, 4, 8,
                                    12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
        _mm256_storeu_si256((__m256i *)(void *)to, by_digit);
        const __m256i pairs = _mm256_maddubs_epi16(_mm256_set1_epi8(1), by_digit);
        sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    int32_t of[8], sum[DIGITS];
    _mm256_storeu_si256((__m256i *)(void *)of, sums);
    for (int d = 0; d < DIGITS; d++)
        sum[d] = of[d] + of[d + 4];
    const int32_t low = 256 * sum[1] + sum[0], high = 256 * sum[3] + sum[2];
    p->less[0] = 8 * low;
    p->less[1] = 8 * high;
    p->total = ((float)high * 65536 + (float)low) * p->power;
    return _mm256_testz_ps(bad, bad);
}

/* Pieces of units [unit, unit + units) of a group: what one leaves is the next one's. */
static void add_pieces(struct digits *s, const float *a, struct digit_piece p, float most)
{
    enum { N = DIGIT_UNITS * QNI_UNIT };
    float x[N];
    memcpy(x, a, (size_t)(p.units * QNI_UNIT) * sizeof *x);
    for (bool whole = false; !whole;) {
        int8_t(*const to)[DIGITS][4] = s->a + s->n_pieces * s->slot;
        const float max = largest(x, p.units * QNI_UNIT);
        uint32_t bits;
        memcpy(&bits, &max, sizeof bits);
        /* 2^exponent is more than the largest. */
        const int32_t exponent = max > 0 ? (int32_t)(bits >> 23) - 126 : 0;
        p.digits = 3;
        p.power = power_of_two(exponent - 23);
        whole = take_digits(&p, x, power_of_two(23 - exponent), most, to);
        if (!whole) {
            p.digits = 4;
            p.power = power_of_two(exponent - 31);
            whole = take_digits(&p, x, power_of_two(31 - exponent), most, to);
        }
        s->piece[s->n_pieces++] = p;
        for (int64_t i = 0; !whole && i < p.units * QNI_UNIT; i += 8) {
            const __m256 v = _mm256_loadu_ps(x + i), power = _mm256_set1_ps(p.power);
            const __m256 y = _mm256_mul_ps(v, _mm256_set1_ps(power_of_two(31 - exponent)));
            const __m256 q = _mm256_cvtepi32_ps(_mm256_cvtps_epi32(y));
            _mm256_storeu_ps(x + i, _mm256_mul_ps(_mm256_sub_ps(y, q), power));
        }
    }
}

/* Pieces from a unit on, as many as there is room for. Where they end. */
static int64_t fill_digits(struct digits *s, const struct qni_matmul_tile *t, int64_t unit)
{
    enum { THREE_DIGITS = 22, FOUR_DIGITS = 28, TWO_ROWS = 40 };
    static const int8_t of_floats[DIGIT_ROWS] = {34, 48, 70};
    const float most = (float)t->units * 24 * 0x1p-24f;
    s->n_pieces = s->instructions = s->others = 0;
    cut_slots(s, t);
    while (unit < t->units && s->n_pieces + t->m * DIGIT_REPEATS <= s->most) {
        struct digit_piece p = {.unit = unit, .group = unit / t->group_units};
        const int64_t first = s->n_pieces;
        const int64_t group_end = (p.group + 1) * t->group_units;
        const int64_t end = group_end < t->units ? group_end : t->units;
        p.units = end - unit < DIGIT_UNITS ? end - unit : DIGIT_UNITS;
        for (; p.row < t->m; p.row++) {
            const char *const a = (const char *)t->a + (size_t)p.row * t->lda;
            add_pieces(s, (const float *)(const void *)a + unit * QNI_UNIT, p,
                       most < 0x1p-8f ? most : 0x1p-8f);
        }
        for (int64_t i = first; i < s->n_pieces; i++) {
            struct digit_piece *const two = &s->piece[i];
            two->is_pair = i + 1 < s->n_pieces && two[1].row == two[0].row + 1 &&
                           two[0].digits == 3 && two[1].digits == 3;
            s->instructions += two->is_pair       ? TWO_ROWS
                               : two->digits == 3 ? THREE_DIGITS
                                                  : FOUR_DIGITS;
            i += two->is_pair;
        }
        s->others += of_floats[t->m - 1];
        unit += p.units;
    }
    return unit;
}

/* Sums of a row: of its lower two digits, and of the others. */
typedef __m256i digit_sums_row[2];
typedef digit_sums_row digit_sums[2];

/* Sums of stored codes times digits of mr rows. */
QNI_TEMPLATE void dot_digits(const uint8_t *codes, const struct digits *s, int64_t piece,
                             ptrdiff_t ahead, const int mr, const int digits, digit_sums *dot)
{
    const __m256i nibble = _mm256_set1_epi8(15), one = _mm256_set1_epi16(1);
    const __m256i high = _mm256_set1_epi16(256);
    const int8_t(*a)[DIGITS][4] = (const int8_t(*)[DIGITS][4])(s->a + piece * s->slot);
    const int64_t slot = s->slot;
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        dot[i][0][h] = dot[i][1][h] = _mm256_setzero_si256();
    const uint8_t *const end = codes + s->piece[piece].units * 256;
    for (; codes < end; codes += 256, a += QNI_UNIT / 4) {
        __m256i sum[2][DIGITS][2];
        QNI_UNROLL
        for (int q = 0; q < QNI_UNIT / 4; q++) {
            __m256i n[2];
            if (q < 4)
                _mm_prefetch((const char *)codes + 64 * q + ahead, _MM_HINT_T0);
            QNI_UNROLL
            for (int h = 0; h < 2; h++) {
                n[h] = _mm256_loadu_si256(
                    (const __m256i *)(const void *)(codes + 64 * (q % 4) + 32 * h));
                n[h] = _mm256_and_si256(q < 4 ? n[h] : _mm256_srli_epi16(n[h], 4), nibble);
            }
            QNI_UNROLL
            for (int i = 0; i < mr; i++)
                QNI_UNROLL
            for (int d = 0; d < digits; d++) {
                int32_t four;
                memcpy(&four, a[q + slot * i][d], sizeof four);
                const __m256i x = _mm256_set1_epi32(four);
                QNI_UNROLL
                for (int h = 0; h < 2; h++) {
                    const __m256i product = _mm256_maddubs_epi16(n[h], x);
                    sum[i][d][h] = q == 0 ? product : _mm256_add_epi16(sum[i][d][h], product);
                    QNI_KEEP(sum[i][d][h]);
                }
                QNI_KEPT(x);
            }
            QNI_KEPT(n[0]);
            QNI_KEPT(n[1]);
        }
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            QNI_UNROLL
        for (int d = 0; d < digits; d++)
            QNI_UNROLL
        for (int h = 0; h < 2; h++)
            dot[i][d / 2][h] = _mm256_add_epi32(
                dot[i][d / 2][h], _mm256_madd_epi16(sum[i][d][h], d % 2 == 0 ? one : high));
    }
}

/* A row of c += a piece of it. */
static inline void finish_digits(const struct qni_matmul_tile *t, int64_t panel,
                                 const struct digit_piece *p, const digit_sums_row *dot, __m256 *c)
{
    const int64_t at = panel * t->n_groups + p->group;
    QNI_UNROLL
    for (int h = 0; h < 2; h++) {
        const __m256i low = _mm256_sub_epi32(dot[0][h], _mm256_set1_epi32(p->less[0]));
        const __m256i high = _mm256_sub_epi32(dot[1][h], _mm256_set1_epi32(p->less[1]));
        const __m256 v = _mm256_fmadd_ps(_mm256_cvtepi32_ps(high), _mm256_set1_ps(65536),
                                         _mm256_cvtepi32_ps(low));
        c[h] = _mm256_fmadd_ps(qni_load8(t->scale, at, h, t->scale_is_f16),
                               _mm256_mul_ps(v, _mm256_set1_ps(p->power)), c[h]);
        if (t->offset != NULL)
            c[h] = _mm256_fmadd_ps(qni_load8(t->offset, at, h, t->scale_is_f16),
                                   _mm256_set1_ps(p->total), c[h]);
    }
}

/* c += of a panel, all pieces. */
QNI_TEMPLATE void meet_digits(const struct digits *s, const struct qni_matmul_tile *t,
                              int64_t panel, ptrdiff_t ahead, const int mr)
{
    float *const to = t->c + panel * QNI_PANEL;
    const int rows = mr == 1 ? 1 : (int)t->m;
    __m256 c[DIGIT_ROWS][2];
    for (int i = 0; i < rows; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        c[i][h] = s->piece[0].unit == 0 ? _mm256_setzero_ps()
                                        : _mm256_loadu_ps(to + (size_t)i * t->ldc + 8 * h);
    for (int64_t i = 0; i < s->n_pieces; i++) {
        const struct digit_piece *const p = &s->piece[i];
        const uint8_t *const codes = t->codes + (size_t)panel * t->codes_stride + p->unit * 256;
        digit_sums dot[2];
        if (mr > 1 && p->is_pair) {
            dot_digits(codes, s, i, ahead, 2, 3, dot);
            finish_digits(t, panel, p, (const digit_sums_row *)dot[0], c[p->row]);
            finish_digits(t, panel, p + 1, (const digit_sums_row *)dot[1], c[p->row + 1]);
            i++;
            continue;
        }
        if (p->digits == 3)
            dot_digits(codes, s, i, ahead, 1, 3, dot);
        else
            dot_digits(codes, s, i, ahead, 1, 4, dot);
        finish_digits(t, panel, p, (const digit_sums_row *)dot[0], c[mr == 1 ? 0 : p->row]);
    }
    for (int i = 0; i < rows; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        _mm256_storeu_ps(to + (size_t)i * t->ldc + 8 * h, c[i][h]);
}

/* In one function gcc moves more. */
QNI_NOINLINE static void meet_one(const struct digits *s, const struct qni_matmul_tile *t,
                                  int64_t panel, ptrdiff_t ahead)
{
    meet_digits(s, t, panel, ahead, 1);
}
QNI_NOINLINE static void meet_some(const struct digits *s, const struct qni_matmul_tile *t,
                                   int64_t panel, ptrdiff_t ahead)
{
    meet_digits(s, t, panel, ahead, 2);
}

/* A tile of some rows; false if it is not for digits. Rows that were met before have theirs. */
static bool few_digits(const struct qni_matmul_tile *t, struct digits *s, ptrdiff_t ahead)
{
    enum { READY = 1, OTHERS = -1 };
    int32_t none = 0, *const kept = t->kept != NULL ? t->kept : &none;
    bool have = !t->halves && *kept != OTHERS && t->m <= (t->group_units == 1 ? 1 : DIGIT_ROWS);
    for (int64_t i = 0; have && *kept != READY && i < t->m; i++)
        have = have_digits((const float *)(const void *)((const char *)t->a + (size_t)i * t->lda),
                           t->units * QNI_UNIT);
    for (int64_t unit = 0; have && unit < t->units;) {
        const bool is_first = unit == 0, is_ready = *kept == READY;
        unit = is_ready ? t->units : fill_digits(s, t, unit);
        have = is_ready || !is_first || s->instructions <= s->others; /* x of many sizes: no */
        *kept = is_first && unit == t->units ? READY : 0;
        for (int64_t panel = 0; have && panel < t->n_panels; panel++)
            (t->m == 1 ? meet_one : meet_some)(s, t, panel, ahead);
    }
    if (!have)
        *kept = OTHERS;
    return have;
}

#endif
