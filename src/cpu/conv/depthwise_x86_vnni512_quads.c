/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolutions with 3 x 3 taps of given codes, a column of taps at a time:
 * depthwise_kernel.h has the contract, docs/numerics.md the steps after the sums.
 *
 * The three codes that a column of taps reads, and any fourth one, are the unsigned bytes of a
 * vpdpbusd, their weights and a zero the signed ones. Such a quad serves the three outputs that
 * read its column: sums that are not whole move along.
 *
 * Bound, for 64 outputs on the 2 ports of 512 bits: 3 signs, 8 steps that make quads of 3 loads, 12
 * products, 32 steps that make bytes of sums: 28 cycles. x and y are 64 bytes each.
 *
 * 64 lanes are 64 channels of a row of outputs, or 32 of two rows, or 16 of four: the rest of
 * the channels takes no longer so. Quads are unpacked within 16 bytes, and packing bytes of their
 * sums is the inverse of that.
 *
 * Columns outside of x are never read: x holds the zero point there, so that what they add, and
 * what is taken away from all sums, are constants of the channel. */
#include <immintrin.h>
#include <string.h>

#include "../../base/compiler.h"
#include "kernel.h"

#ifndef __AVX512VNNI__
#error "needs the flags of a VNNI-512 file: see cmake/isa.cmake"
#endif

typedef __m512i ints;
typedef __m512 floats;

enum { LANES = 64, TAPS = 3, QUADS = 4, ROWS = 4 /* of outputs at most */ };

/* Weights of 64 lanes, whose vector q of four has lanes 4 q to 4 q + 3 of every 16. zero is taken
 * away from sums: the zero point times the weights of all columns, of the last two and of the last
 * one. */
struct quads {
    ints w[TAPS][QUADS], zero[TAPS][QUADS];
    floats w_scale[QUADS], scale[QUADS], bias[QUADS];
};
_Static_assert(sizeof(struct quads) == QNI_DEPTHWISE_WORDS, "the driver's room");

/* What becomes of the sums of any channel. */
struct ends {
    floats x_scale, y_inv;
    ints zero;   /* words */
    ints lo, hi; /* bytes, before they are flipped */
    ints flip;   /* i8 to u8 */
    ints x;      /* the same of x */
    int64_t has_scale;
};

/* Some of the channels, in so many rows of outputs. */
struct part {
    int64_t channel, rows;
};

/* Parts of 64 channels; the last of them, or of 32 or 16, reaches back: what is written twice is
 * the same. */
static struct part part_at(const struct qni_depthwise_image *m, int64_t channel)
{
    const int64_t left = m->n - channel;
    const int64_t rows = left > 32 && m->n >= 64 ? 1 : left > 16 && m->n >= 32 ? 2 : 4;
    const int64_t lanes = LANES / rows;
    return (struct part){left < lanes ? m->n - lanes : channel, rows};
}

/* ---- constants of channels ------------------------------------------------------------------- */

/* Lanes of vector q, of numbers of LANES / rows channels. */
static floats spread(const float *at, int64_t rows, int64_t q)
{
    floats v = _mm512_setzero_ps();
    const int64_t mask = 4 / rows - 1;
    at += 4 * q;
    v = _mm512_insertf32x4(v, _mm_loadu_ps(at), 0);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(at + 16 * (1 & mask)), 1);
    v = _mm512_insertf32x4(v, _mm_loadu_ps(at + 16 * (2 & mask)), 2);
    return _mm512_insertf32x4(v, _mm_loadu_ps(at + 16 * (3 & mask)), 3);
}

/* Can no result be a NaN or too large for an int32? Rounding is monotonic: the largest sum of the
 * sizes of all that is multiplied and added bounds what comes of the others, step by step. */
static bool is_bounded(const struct qni_depthwise_image *m, const struct quads *c)
{
    for (int64_t q = 0; q < QUADS; q++) {
        floats v =
            _mm512_mul_ps(_mm512_set1_ps(9.0f * 255.0f * 255.0f), _mm512_abs_ps(c->w_scale[q]));
        v = _mm512_mul_ps(v, _mm512_set1_ps(m->x_scale));
        v = _mm512_mul_ps(v, _mm512_abs_ps(c->scale[q]));
        v = _mm512_add_ps(v, _mm512_abs_ps(c->bias[q]));
        v = _mm512_mul_ps(v, _mm512_set1_ps(m->y_inv));
        if (_mm512_cmp_ps_mask(v, _mm512_set1_ps(0x1p30f), _CMP_LT_OQ) != 0xffff)
            return false;
    }
    return true;
}

QNI_NOINLINE static bool make_quads(const struct qni_depthwise_image *m, struct part p,
                                    struct quads *c)
{
    const ints zero = _mm512_set1_epi32(-m->x_zero - (m->x_type == QN_I8 ? 128 : 0));
    const ints byte = _mm512_set1_epi32(255);
    for (int64_t q = 0; q < QUADS; q++) {
        ints sum = _mm512_setzero_si512();
        for (int64_t column = TAPS - 1; column >= 0; column--) {
            ints w = _mm512_setzero_si512();
            for (int64_t row = TAPS - 1; row >= 0; row--) {
                const float *const at = m->w + (row * TAPS + column) * m->w_tap + p.channel;
                const ints value = _mm512_cvtps_epi32(spread(at, p.rows, q));
                sum = _mm512_add_epi32(sum, value);
                w = _mm512_or_si512(_mm512_slli_epi32(w, 8), _mm512_and_si512(value, byte));
            }
            c->w[column][q] = w;
            c->zero[column][q] = _mm512_mullo_epi32(sum, zero);
        }
        c->w_scale[q] = spread(m->w_scale + p.channel, p.rows, q);
        c->scale[q] = _mm512_set1_ps(1.0f);
        c->bias[q] = _mm512_setzero_ps();
        if (m->scale != NULL)
            c->scale[q] = spread(m->scale + p.channel, p.rows, q);
        if (m->bias != NULL)
            c->bias[q] = spread(m->bias + p.channel, p.rows, q);
    }
    return is_bounded(m, c);
}

/* A bound of what is rounded bounds the byte as well: rounding and adding are monotonic. */
static ints bound(float v, int32_t zero)
{
    const int32_t most = 1 << 15;
    const int32_t at = zero + (v < (float)most ? _mm_cvtss_si32(_mm_set_ss(v)) : most);
    return _mm512_set1_epi8((char)(at < -128 ? -128 : at > 127 ? 127 : at));
}

static struct ends ends_of(const struct qni_depthwise_image *m)
{
    const bool u8_x = m->x_type == QN_U8, u8_y = m->y_type == QN_U8;
    const int32_t zero = m->y_zero - (u8_y ? 128 : 0);
    return (struct ends){
        .x_scale = _mm512_set1_ps(m->x_scale),
        .y_inv = _mm512_set1_ps(m->y_inv),
        .zero = _mm512_set1_epi16((int16_t)zero),
        .lo = m->is_relu ? bound(0.0f, zero) : _mm512_set1_epi8(-128),
        .hi = m->is_relu ? bound(m->most * m->y_inv, zero) : _mm512_set1_epi8(127),
        .flip = _mm512_set1_epi8(u8_y ? -128 : 0),
        .x = _mm512_set1_epi8(u8_x ? 0 : -128),
        .has_scale = m->scale != NULL,
    };
}

/* ---- a row ----------------------------------------------------------------------------------- */

/* Where the next output is. */
struct outputs {
    uint8_t *y[ROWS];
};

/* Where the next column of x is, and the first output. A row outside of x is one of zero points
 * that does not move. */
struct line {
    const uint8_t *x[TAPS][ROWS];
    int64_t move[TAPS][ROWS];
    struct outputs to;
};

struct sums {
    ints quad[QUADS];
};

/* Columns are counted from the one that output 0 reads first. begin, end: of those inside of x. */
struct span {
    int64_t begin, end, outputs, step, rows;
};

QNI_TEMPLATE ints load_rows(const uint8_t *const x[ROWS], const int rows)
{
    if (rows == 1)
        return _mm512_loadu_si512(x[0]);
    if (rows == 2)
        return _mm512_inserti64x4(
            _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)(const void *)x[0])),
            _mm256_loadu_si256((const __m256i *)(const void *)x[1]), 1);
    ints v = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *)(const void *)x[0]));
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)x[1]), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)x[2]), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128((const __m128i *)(const void *)x[3]), 3);
}

QNI_TEMPLATE struct sums next(struct line *l, const struct ends *e, const int rows)
{
    ints x[TAPS];
    QNI_UNROLL
    for (int r = 0; r < TAPS; r++) {
        x[r] = _mm512_xor_si512(load_rows(l->x[r], rows), e->x);
        QNI_UNROLL
        for (int i = 0; i < rows; i++)
            l->x[r][i] += l->move[r][i];
    }
    const ints a = _mm512_unpacklo_epi8(x[0], x[1]), b = _mm512_unpackhi_epi8(x[0], x[1]);
    const ints c = _mm512_unpacklo_epi8(x[2], x[2]), d = _mm512_unpackhi_epi8(x[2], x[2]);
    return (struct sums){{_mm512_unpacklo_epi16(a, c), _mm512_unpackhi_epi16(a, c),
                          _mm512_unpacklo_epi16(b, d), _mm512_unpackhi_epi16(b, d)}};
}

QNI_TEMPLATE void add(struct sums *to, const ints from[QUADS], const struct sums *x,
                      const ints w[QUADS])
{
    QNI_UNROLL
    for (int q = 0; q < QUADS; q++)
        to->quad[q] = _mm512_dpbusd_epi32(from[q], x->quad[q], w[q]);
}

/* The steps of docs/numerics.md, each rounded as there; adding a bias of 0 shows in no byte. */
QNI_TEMPLATE ints rounded(const struct ends *e, const struct quads *c, ints sum, const int q,
                          int64_t has_scale)
{
    floats v = _mm512_mul_ps(_mm512_cvtepi32_ps(sum), c->w_scale[q]);
    v = _mm512_mul_ps(v, e->x_scale);
    if (QNI_UNLIKELY(has_scale))
        v = _mm512_mul_ps(v, c->scale[q]);
    return _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_add_ps(v, c->bias[q]), e->y_inv));
}

QNI_TEMPLATE void finish(const struct ends *e, const struct quads *c, const struct sums *sum,
                         struct outputs *l, int64_t step, const int rows)
{
    int64_t has_scale = e->has_scale;
    QNI_KEEP_WORD(has_scale);
    ints words[2];
    QNI_UNROLL
    for (int h = 0; h < 2; h++)
        words[h] = _mm512_adds_epi16(
            _mm512_packs_epi32(rounded(e, c, sum->quad[2 * h], 2 * h, has_scale),
                               rounded(e, c, sum->quad[2 * h + 1], 2 * h + 1, has_scale)),
            e->zero);
    ints bytes = _mm512_packs_epi16(words[0], words[1]);
    bytes = _mm512_min_epi8(_mm512_max_epi8(bytes, e->lo), e->hi);
    bytes = _mm512_xor_si512(bytes, e->flip);
    if (rows == 1) {
        _mm512_storeu_si512(l->y[0], bytes);
    } else if (rows == 2) {
        _mm256_storeu_si256((__m256i *)(void *)l->y[0], _mm512_castsi512_si256(bytes));
        _mm256_storeu_si256((__m256i *)(void *)l->y[1], _mm512_extracti64x4_epi64(bytes, 1));
    } else {
        _mm_storeu_si128((__m128i *)(void *)l->y[0], _mm512_castsi512_si128(bytes));
        _mm_storeu_si128((__m128i *)(void *)l->y[1], _mm512_extracti32x4_epi32(bytes, 1));
        _mm_storeu_si128((__m128i *)(void *)l->y[2], _mm512_extracti32x4_epi32(bytes, 2));
        _mm_storeu_si128((__m128i *)(void *)l->y[3], _mm512_extracti32x4_epi32(bytes, 3));
    }
    QNI_UNROLL
    for (int i = 0; i < rows; i++)
        l->y[i] += step;
}

/* Stores sums that hold too much by `less`: what columns behind the last one, or before output 0,
 * would have taken away. */
QNI_NOINLINE static void finish_less(const struct ends *e, const struct quads *c,
                                     const struct sums *sum, const ints less[QUADS],
                                     struct outputs *l, const struct span *s)
{
    struct sums own;
    for (int q = 0; q < QUADS; q++)
        own.quad[q] = _mm512_sub_epi32(sum->quad[q], less[q]);
    if (s->rows == 1)
        finish(e, c, &own, l, s->step, 1);
    else if (s->rows == 2)
        finish(e, c, &own, l, s->step, 2);
    else
        finish(e, c, &own, l, s->step, 4);
}

/* Pointer by pointer: no load may span what several stores have just written. */
QNI_TEMPLATE void copy_outputs(struct outputs *to, const struct outputs *from, const int rows)
{
    QNI_UNROLL
    for (int i = 0; i < rows; i++) {
        to->y[i] = from->y[i];
        QNI_KEEP_WORD(to->y[i]);
    }
}

QNI_TEMPLATE void copy_line(struct line *to, const struct line *from, const int rows)
{
    QNI_UNROLL
    for (int r = 0; r < TAPS; r++)
        QNI_UNROLL
    for (int i = 0; i < rows; i++) {
        to->x[r][i] = from->x[r][i];
        to->move[r][i] = from->move[r][i];
    }
    copy_outputs(&to->to, &from->to, rows);
}

/* a: of an output whose last column is next; b: whose last but one is. */
QNI_TEMPLATE void row_1(const struct ends *ends, const struct quads *c, const struct line *line,
                        const struct span *span, const int rows)
{
    /* Copies have no other name, so that stores to y leave them in registers. */
    const struct ends e = *ends;
    const struct span s = *span;
    struct line own, *const l = &own;
    copy_line(l, line, rows);
    struct sums a, b;
    memcpy(&a, c->zero[2], sizeof a);
    memcpy(&b, c->zero[1], sizeof b);
    int64_t t = s.begin;
    for (; t < s.end && t < 2; t++) {
        const struct sums x = next(l, &e, rows);
        add(&a, b.quad, &x, c->w[1]);
        add(&b, c->zero[0], &x, c->w[0]);
    }
    for (; t < s.end; t++) {
        const struct sums x = next(l, &e, rows);
        add(&a, a.quad, &x, c->w[2]);
        finish(&e, c, &a, &own.to, s.step, rows);
        add(&a, b.quad, &x, c->w[1]);
        add(&b, c->zero[0], &x, c->w[0]);
    }
    struct outputs rest;
    copy_outputs(&rest, &own.to, rows);
    for (int column = 2; t < s.outputs + 2; t++, column--) {
        if (t >= 2)
            finish_less(ends, c, &a, c->zero[column], &rest, span);
        a = b;
    }
}

/* a: of the output that reads the next column. */
QNI_TEMPLATE void row_2(const struct ends *ends, const struct quads *c, const struct line *line,
                        const struct span *span, const int rows)
{
    const struct ends e = *ends;
    const struct span s = *span;
    struct line own, *const l = &own;
    copy_line(l, line, rows);
    struct sums a, x;
    int64_t t = s.begin;
    memcpy(&a, c->zero[t], sizeof a);
    if (t != 1) {
        x = next(l, &e, rows);
        if (t == 2) {
            const struct sums none = {{_mm512_setzero_si512()}};
            add(&a, a.quad, &x, c->w[2]);
            struct outputs rest;
            copy_outputs(&rest, &own.to, rows);
            finish_less(ends, c, &a, none.quad, &rest, span);
            copy_outputs(&own.to, &rest, rows);
        }
        add(&a, c->zero[0], &x, c->w[0]);
        t++;
    }
    for (; t + 1 < s.end; t += 2) {
        x = next(l, &e, rows);
        add(&a, a.quad, &x, c->w[1]);
        x = next(l, &e, rows);
        add(&a, a.quad, &x, c->w[2]);
        finish(&e, c, &a, &own.to, s.step, rows);
        add(&a, c->zero[0], &x, c->w[0]);
    }
    if ((t + 1) / 2 > s.outputs)
        return;
    if (t < s.end) {
        x = next(l, &e, rows);
        add(&a, a.quad, &x, c->w[1]);
        t++;
    }
    struct outputs rest;
    copy_outputs(&rest, &own.to, rows);
    finish_less(ends, c, &a, c->zero[(t & 1) != 0 ? 1 : 2], &rest, span);
}

typedef void row_fn(const struct ends *ends, const struct quads *c, const struct line *l,
                    const struct span *s);
#define ROW(stride, rows)                                                                          \
    static void row_##stride##_##rows(const struct ends *ends, const struct quads *c,              \
                                      const struct line *l, const struct span *s)                  \
    {                                                                                              \
        row_##stride(ends, c, l, s, rows);                                                         \
    }
ROW(1, 1)
ROW(1, 2)
ROW(1, 4)
ROW(2, 1)
ROW(2, 2)
ROW(2, 4)

/* ---- an image -------------------------------------------------------------------------------- */

/* Rows of outputs from `row` on, and no further than the last: what is written twice is the
 * same. */
QNI_NOINLINE static struct line line_of(const struct qni_depthwise_image *m, struct part p,
                                        int64_t row, int64_t column, const uint8_t *zeros)
{
    struct line l;
    for (int64_t i = 0; i < p.rows; i++) {
        const int64_t at = row + i < m->out[0] ? row + i : m->out[0] - 1;
        for (int64_t r = 0; r < TAPS; r++) {
            const int64_t from = m->first[0] + at * m->stride[0] + r;
            const bool is_inside = from >= 0 && from < m->in[0];
            l.x[r][i] =
                is_inside ? m->codes + from * m->x_row + column * m->x_column + p.channel : zeros;
            l.move[r][i] = is_inside ? m->x_column : 0;
        }
        l.to.y[i] = (uint8_t *)m->y + at * m->y_row + p.channel;
    }
    return l;
}

bool qni_depthwise_q8_rows_quads_vnni512(const struct qni_depthwise_image *m)
{
    static row_fn *const forms[2][ROWS] = {{row_1_1, row_1_2, NULL, row_1_4},
                                           {row_2_1, row_2_2, NULL, row_2_4}};
    struct quads *const quads = m->words;
    struct part part;
    int64_t n = 0;
    for (int64_t j = 0; j < m->n; j = part.channel + LANES / part.rows, n++) {
        part = part_at(m, j);
        if (!make_quads(m, part, &quads[n]))
            return false;
    }
    const struct ends ends = ends_of(m);
    const int64_t first = m->first[1], stride = m->stride[1];
    const int64_t last = (m->out[1] - 1) * stride + TAPS, inside = m->in[1] - first;
    struct span span = {first < 0 ? -first : 0, inside < last ? inside : last, m->out[1],
                        m->y_column, 0};
    uint8_t zeros[LANES];
    memset(zeros, m->x_zero, sizeof zeros);
    for (int64_t i = 0; i < m->out[0]; i++) {
        n = 0;
        for (int64_t j = 0; j < m->n; j = part.channel + LANES / part.rows, n++) {
            part = part_at(m, j);
            if (i % part.rows != 0)
                continue;
            span.rows = part.rows;
            const struct line l = line_of(m, part, i, first + span.begin, zeros);
            forms[stride - 1][part.rows - 1](&ends, &quads[n], &l, &span);
        }
    }
    return true;
}
