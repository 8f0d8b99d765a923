/* SPDX-License-Identifier: Apache-2.0 */
/* Depthwise convolutions with 3 x 3 taps of given codes, multiplied as words of 16 bits:
 * depthwise_kernel.h has the contract, docs/numerics.md the steps after the sums.
 *
 * Bound, for 16 outputs on 4 vector pipes: 10 vpmaddwd on two of them (9 taps are 5 pairs), 9
 * additions, 9 steps that make pairs of 3 loads; 18 steps make bytes of sums: some 12 cycles. x and
 * y are 16 bytes each. Measured in the first cache: 18.
 *
 * A pair is two rows of taps in a column, or two columns in the third row:
 *
 *     column   c   c + 1  c + 2  c + 3
 *     row 0    |     |      |      |        upper pairs: each serves three outputs (stride 1)
 *     row 1    |     |      |      |
 *     row 2    -------      --------        lower pairs: with a weight of 0 where an output
 *                                           reads one of the two
 *
 * A row of outputs is made 16 channels at a time: each input is
 * loaded once, and sums that are not whole move along. First all sums, then all bytes: from the
 * load of a code to its byte are some 50 cycles, and in one loop no core holds as many unfinished
 * instructions as that takes at full speed.
 *
 * Columns outside of x are never read: x holds the zero point there, so that what they add, and
 * what is taken away from all sums, are constants of the channel. */
#include <immintrin.h>
#include <string.h>

#include "../../base/compiler.h"
#include "kernel.h"

#ifndef __AVX2__
#error "needs the flags of an AVX2 file: see cmake/isa.cmake"
#endif

typedef __m256i ints;
typedef __m256 floats;

enum { LANES = 16 }; /* channels */

/* 16 lanes as unpacking leaves them: of 0 to 7 and of 8 to 15 the first four, then the others. */
struct halves {
    ints half[2];
};

/* Weights of 16 channels as pairs, and what is taken away from sums: the zero point times the
 * weights of all columns, of the last two and of the last one. */
struct pairs {
    struct halves upper[3];
    struct halves left, end; /* columns 0 and 1; 2 alone, first in its pair */
    struct halves right,
        odd; /* the same for pairs that begin a column earlier: 1 and 2; 0, second */
    struct halves zero[3];
};
_Static_assert(sizeof(struct pairs) <= QNI_DEPTHWISE_WORDS, "the driver's room");

static inline struct halves pair(const struct halves *even, const struct halves *odd)
{
    struct halves p;
    QNI_UNROLL
    for (int h = 0; h < 2; h++)
        p.half[h] = _mm256_blend_epi16(even->half[h], _mm256_slli_epi32(odd->half[h], 16), 0xaa);
    return p;
}

static inline void load_halves(const float *at, floats v[2])
{
    const floats lo = _mm256_loadu_ps(at), hi = _mm256_loadu_ps(at + 8);
    v[0] = _mm256_permute2f128_ps(lo, hi, 0x20);
    v[1] = _mm256_permute2f128_ps(lo, hi, 0x31);
}

/* The last 16 channels reach back: what is written twice is the same. */
static inline int64_t group_at(const struct qni_depthwise_image *m, int64_t channel)
{
    return channel + LANES <= m->n ? channel : m->n - LANES;
}

static inline floats size(floats v)
{
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), v);
}

/* Can no result be a NaN or too large for an int32? Rounding is monotonic: the largest sum of the
 * sizes of all that is multiplied and added bounds what comes of the others, step by step. */
QNI_NOINLINE static bool is_bounded(const struct qni_depthwise_image *m, int64_t channel)
{
    floats v = _mm256_mul_ps(_mm256_set1_ps(9.0f * 255.0f * 255.0f),
                             size(_mm256_loadu_ps(m->w_scale + channel)));
    v = _mm256_mul_ps(v, _mm256_set1_ps(m->x_scale));
    if (m->scale != NULL)
        v = _mm256_mul_ps(v, size(_mm256_loadu_ps(m->scale + channel)));
    if (m->bias != NULL)
        v = _mm256_add_ps(v, size(_mm256_loadu_ps(m->bias + channel)));
    v = _mm256_mul_ps(v, _mm256_set1_ps(m->y_inv));
    return _mm256_movemask_ps(_mm256_cmp_ps(v, _mm256_set1_ps(0x1p30f), _CMP_LT_OQ)) == 255;
}

QNI_NOINLINE static void make_pairs(const struct qni_depthwise_image *m, int64_t channel,
                                    struct pairs *p)
{
    const ints zero = _mm256_set1_epi32(-m->x_zero);
    struct halves w[9], none = {{_mm256_setzero_si256(), _mm256_setzero_si256()}}, sum = none;
    for (int i = 0; i < 9; i++) {
        floats v[2];
        load_halves(m->w + i * m->w_tap + channel, v);
        w[i].half[0] = _mm256_cvtps_epi32(v[0]);
        w[i].half[1] = _mm256_cvtps_epi32(v[1]);
    }
    for (int i = 2; i >= 0; i--) {
        p->upper[i] = pair(&w[i], &w[3 + i]);
        for (int h = 0; h < 2; h++) {
            const ints column = _mm256_add_epi32(w[i].half[h], w[3 + i].half[h]);
            sum.half[h] = _mm256_add_epi32(_mm256_add_epi32(sum.half[h], column), w[6 + i].half[h]);
            p->zero[i].half[h] = _mm256_mullo_epi32(sum.half[h], zero);
        }
    }
    p->left = pair(&w[6], &w[7]);
    p->end = pair(&w[8], &none);
    p->right = pair(&w[7], &w[8]);
    p->odd = pair(&none, &w[6]);
}

/* What becomes of the sums of 16 channels. */
struct ends {
    floats w_scale[2], scale[2], bias[2], x_scale, y_inv;
    ints zero;   /* words */
    ints lo, hi; /* bytes, before they are flipped */
    ints flip;   /* i8 to u8 */
    ints x;      /* of a word that a code was extended to */
};

/* A bound of what is rounded bounds the byte as well: rounding and adding are monotonic. */
static ints bound(float v, int32_t zero)
{
    const int32_t most = 1 << 15;
    const int32_t at = zero + (v < (float)most ? _mm_cvtss_si32(_mm_set_ss(v)) : most);
    return _mm256_set1_epi8((char)(at < -128 ? -128 : at > 127 ? 127 : at));
}

QNI_NOINLINE static struct ends ends_of(const struct qni_depthwise_image *m)
{
    const bool u8_x = m->x_type == QN_U8, u8_y = m->y_type == QN_U8;
    const int32_t zero = m->y_zero - (u8_y ? 128 : 0);
    const floats none = _mm256_setzero_ps();
    return (struct ends){
        .bias = {none, none},
        .x_scale = _mm256_set1_ps(m->x_scale),
        .y_inv = _mm256_set1_ps(m->y_inv),
        .zero = _mm256_set1_epi16((int16_t)zero),
        .lo = m->is_relu ? bound(0.0f, zero) : _mm256_set1_epi8(-128),
        .hi = m->is_relu ? bound(m->most * m->y_inv, zero) : _mm256_set1_epi8(127),
        .flip = _mm256_set1_epi8(u8_y ? -128 : 0),
        .x = _mm256_set1_epi16(u8_x ? 255 : -1),
    };
}

static void begin_channels(const struct qni_depthwise_image *m, int64_t channel, struct ends *e)
{
    load_halves(m->w_scale + channel, e->w_scale);
    if (m->scale != NULL)
        load_halves(m->scale + channel, e->scale);
    if (m->bias != NULL)
        load_halves(m->bias + channel, e->bias);
}

/* The steps of docs/numerics.md, each rounded as there; adding a bias of 0 shows in no byte. */
QNI_TEMPLATE ints rounded(const struct ends *e, const struct halves *sum, const int h,
                          int64_t has_scale)
{
    floats v = _mm256_mul_ps(_mm256_cvtepi32_ps(sum->half[h]), e->w_scale[h]);
    v = _mm256_mul_ps(v, e->x_scale);
    if (QNI_UNLIKELY(has_scale))
        v = _mm256_mul_ps(v, e->scale[h]);
    return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_add_ps(v, e->bias[h]), e->y_inv));
}

QNI_TEMPLATE ints words_with_zero(const struct ends *e, const struct halves *sum, int64_t has_scale)
{
    const ints words =
        _mm256_packs_epi32(rounded(e, sum, 0, has_scale), rounded(e, sum, 1, has_scale));
    return _mm256_adds_epi16(words, e->zero);
}

/* n sums of 16 channels to bytes. */
QNI_NOINLINE static void finish(const struct ends *ends, int64_t has_scale,
                                const struct halves *sum, int64_t n, uint8_t *y, int64_t step)
{
    const struct ends e = *ends;
    for (; n > 0; n -= 2, sum += 2, y += 2 * step) {
        QNI_KEEP_WORD(has_scale);
        const int64_t more = n > 1;
        ints bytes = _mm256_packs_epi16(words_with_zero(&e, sum, has_scale),
                                        words_with_zero(&e, sum + more, has_scale));
        bytes = _mm256_min_epi8(_mm256_max_epi8(bytes, e.lo), e.hi);
        bytes = _mm256_permute4x64_epi64(_mm256_xor_si256(bytes, e.flip), 0xd8);
        _mm_storeu_si128((__m128i *)(void *)y, _mm256_castsi256_si128(bytes));
        _mm_storeu_si128((__m128i *)(void *)(y + more * step), _mm256_extracti128_si256(bytes, 1));
    }
}

/* Three rows of x from the first column of a pair on. A row outside of x is one of zero points that
 * does not move. */
struct line {
    const uint8_t *x[3];
    int64_t move[3];
};

struct words {
    struct halves a, b, c; /* upper pairs of two columns, and their lower pair */
};

static inline ints words_of(const uint8_t *at, ints mask)
{
    const __m128i codes = _mm_loadu_si128((const __m128i *)(const void *)at);
    return _mm256_and_si256(_mm256_cvtepi8_epi16(codes), mask);
}

static inline struct halves side_by_side(ints even, ints odd)
{
    return (struct halves){{_mm256_unpacklo_epi16(even, odd), _mm256_unpackhi_epi16(even, odd)}};
}

static inline struct words next(struct line *l, ints mask)
{
    ints x[3][2];
    QNI_UNROLL
    for (int r = 0; r < 3; r++) {
        x[r][0] = words_of(l->x[r], mask);
        x[r][1] = words_of(l->x[r] + l->move[r], mask);
        l->x[r] += 2 * l->move[r];
    }
    return (struct words){
        .a = side_by_side(x[0][0], x[1][0]),
        .b = side_by_side(x[0][1], x[1][1]),
        .c = side_by_side(x[2][0], x[2][1]),
    };
}

static inline ints sum4(ints first, ints second, ints third, ints fourth)
{
    return _mm256_add_epi32(_mm256_add_epi32(first, second), _mm256_add_epi32(third, fourth));
}

/* n pairs of columns, stride 1: two sums each, those that began two and one column before. part:
 * what of them is there, and is left of the next ones. */
QNI_NOINLINE static struct halves *pairs_1(const struct line *from, const struct pairs *p,
                                           ints mask, int64_t n, struct halves part[2],
                                           struct halves *sum)
{
    struct line line = *from;
    struct halves part0 = part[0], part1 = part[1];
    for (; n > 0; n--, sum += 2) {
        const struct words w = next(&line, mask);
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            const ints a = w.a.half[h], b = w.b.half[h], c = w.c.half[h];
            const ints up0 = p->upper[0].half[h], up1 = p->upper[1].half[h];
            const ints up2 = p->upper[2].half[h], all = p->zero[0].half[h];
            sum[0].half[h] = _mm256_add_epi32(
                part0.half[h],
                _mm256_add_epi32(_mm256_madd_epi16(a, up2), _mm256_madd_epi16(c, p->end.half[h])));
            sum[1].half[h] =
                sum4(part1.half[h], _mm256_madd_epi16(a, up1), _mm256_madd_epi16(b, up2),
                     _mm256_madd_epi16(c, p->right.half[h]));
            part0.half[h] = sum4(all, _mm256_madd_epi16(a, up0), _mm256_madd_epi16(b, up1),
                                 _mm256_madd_epi16(c, p->left.half[h]));
            part1.half[h] =
                _mm256_add_epi32(all, _mm256_add_epi32(_mm256_madd_epi16(b, up0),
                                                       _mm256_madd_epi16(c, p->odd.half[h])));
        }
    }
    part[0] = part0;
    part[1] = part1;
    return sum;
}

/* n pairs of columns, stride 2: one sum each, the one that begins at an even column, or with is_odd
 * at an odd one. */
QNI_NOINLINE static struct halves *pairs_2(const struct line *from, const struct pairs *p,
                                           ints mask, int64_t n, struct halves *part,
                                           struct halves *sum, bool is_odd)
{
    const struct halves none = {{_mm256_setzero_si256(), _mm256_setzero_si256()}};
    const struct halves a_end = p->upper[is_odd ? 1 : 2], b_end = is_odd ? p->upper[2] : none;
    const struct halves c_end = is_odd ? p->right : p->end, c_begin = is_odd ? p->odd : p->left;
    const struct halves a_begin = is_odd ? none : p->upper[0], b_begin = p->upper[is_odd ? 0 : 1];
    struct line line = *from;
    struct halves part0 = *part;
    for (; n > 0; n--, sum++) {
        const struct words w = next(&line, mask);
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            const ints a = w.a.half[h], b = w.b.half[h], c = w.c.half[h];
            sum->half[h] =
                sum4(part0.half[h], _mm256_madd_epi16(a, a_end.half[h]),
                     _mm256_madd_epi16(b, b_end.half[h]), _mm256_madd_epi16(c, c_end.half[h]));
            part0.half[h] =
                sum4(p->zero[0].half[h], _mm256_madd_epi16(a, a_begin.half[h]),
                     _mm256_madd_epi16(b, b_begin.half[h]), _mm256_madd_epi16(c, c_begin.half[h]));
        }
    }
    *part = part0;
    return sum;
}

static inline struct halves less(const struct halves *a, const struct halves *b)
{
    return (struct halves){
        {_mm256_sub_epi32(a->half[0], b->half[0]), _mm256_sub_epi32(a->half[1], b->half[1])}};
}

/* The sums of a row, and where the first of them lies. l: column 0. */
QNI_NOINLINE static const struct halves *row_sums(const struct qni_depthwise_image *m,
                                                  const struct line *l, const struct pairs *p,
                                                  ints mask, struct halves *sum)
{
    const int64_t first = m->first[1], from = first > 0 ? first : 0, stride = m->stride[1];
    const int64_t last = first + (m->out[1] - 1) * stride + 2;
    const int64_t wanted = (last - from) / 2 + 1;
    const int64_t whole = (m->in[1] - from) / 2, inside = whole < wanted ? whole : wanted;
    const bool is_odd = stride == 2 && ((from - first) & 1) != 0;
    bool is_half = inside < wanted && ((m->in[1] - from) & 1) != 0;
    struct halves part[2] = {p->zero[is_odd ? 1 : 2], p->zero[1]};
    struct halves *at = sum + (stride == 1 ? from - first : (from - first + 1) / 2);
    uint8_t edge[3][2 * LANES];
    struct line moved = *l;
    QNI_UNROLL
    for (int r = 0; r < 3; r++)
        moved.x[r] += from * moved.move[r];
    for (int64_t n = inside;; n = 1) {
        at = stride == 1 ? pairs_1(&moved, p, mask, n, part, at)
                         : pairs_2(&moved, p, mask, n, part, at, is_odd);
        if (!is_half)
            break;
        is_half = false;
        for (int r = 0; r < 3; r++) {
            memcpy(edge[r], l->x[r] + (m->in[1] - 1) * l->move[r], LANES);
            memset(edge[r] + LANES, m->x_zero, LANES);
            moved.x[r] = edge[r];
            moved.move[r] = LANES;
        }
    }
    /* The remaining outputs read nothing but columns behind the last one. */
    at[0] = less(&part[0], &p->zero[is_odd ? 1 : 2]);
    at[1] = less(&part[1], &p->zero[1]);
    return sum + (stride == 1 ? 2 : 1);
}

static void row(const struct qni_depthwise_image *m, const struct line *rows, struct ends *e,
                uint8_t *y)
{
    const struct pairs *const pairs = m->words;
    struct halves sums[QNI_DEPTHWISE_CODES_COLUMNS + 6];
    for (int64_t j = 0; j < m->n; j += LANES) {
        const int64_t channel = group_at(m, j);
        struct line l = *rows;
        QNI_UNROLL
        for (int r = 0; r < 3; r++)
            l.x[r] += l.move[r] != 0 ? channel : 0;
        begin_channels(m, channel, e);
        finish(e, m->scale != NULL, row_sums(m, &l, &pairs[j / LANES], e->x, sums), m->out[1],
               y + channel, m->y_column);
    }
}

bool qni_depthwise_q8_rows_words_avx2(const struct qni_depthwise_image *m)
{
    struct pairs *const pairs = m->words;
    for (int64_t j = 0; j < m->n; j += LANES) {
        const int64_t channel = group_at(m, j);
        if (!is_bounded(m, channel) || !is_bounded(m, channel + LANES / 2))
            return false;
        make_pairs(m, channel, &pairs[j / LANES]);
    }
    struct ends ends = ends_of(m);
    uint8_t zeros[LANES];
    memset(zeros, m->x_zero, sizeof zeros);
    for (int64_t i = 0; i < m->out[0]; i++) {
        struct line l;
        for (int r = 0; r < 3; r++) {
            const int64_t at = m->first[0] + i * m->stride[0] + r;
            const bool is_inside = at >= 0 && at < m->in[0];
            l.x[r] = is_inside ? m->codes + at * m->x_row : zeros;
            l.move[r] = is_inside ? m->x_column : 0;
        }
        row(m, &l, &ends, (uint8_t *)m->y + i * m->y_row);
    }
    return true;
}
