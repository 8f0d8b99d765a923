/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions with AVX2 whose taps are 3 to 4 times as long as neighbouring outputs
 * are apart, and that is 6 or 8 bytes: 7 x 7 taps of stride 2 and 3 channels, the first layer of
 * many networks. Contract and operand layouts: direct_kernel.h. Four neighbouring outputs are
 * computed at a time by Toom's and Cook's products: 7 products of words for 16, all of them
 * integers.
 *
 * Output j is the sum of z[i + j] g[i], i = 0 to 3. z[i] are the bytes that begin where output i
 * does (with stride 2 two pixels), so that a tap that is no longer than four of them is one such
 * sum for each byte of z. With points a = 0, 1, -1, 2, -2, 1/2 and infinity
 *
 *     y[j] = sum of a^j g(a) x(a) / n(a)           g(a) = g0 + g1 a + g2 a^2 + g3 a^3
 *
 * where x(a), of points but the last, is the sum of c[i] z[i] with the c of the product of all
 * other points' (t - a), at most 30 * 128, and n(a) is the value of that product in a. All n divide
 * 360, and g(a) * 360 / n(a) is a word, 60 * 512 at most. So sums are 360 y modulo 2^32, which is
 * 360 y for up to MOST_POSITIONS positions.
 *
 * 24 groups of four outputs are transformed together, then multiplied by 16 outputs of each point:
 * 6 of them x 16, sums in registers.
 *
 * Bound: 16 products are vpmaddwd and vpaddd, of which a core takes two pairs a cycle; 7 of them
 * stand for 16. */
#include "../../base/compiler.h"
#include "../simd/avx2_bytes.h"
#include "../simd/squares.h"
#include "kernel.h"

enum { BYTES = 0, NIBBLES = 1 };
enum { POINTS = 7, MOST_POSITIONS = QNI_DIRECT_TOOM_POSITIONS, MR = QNI_SQUARES_MOST };
_Static_assert(MOST_POSITIONS <= (1u << 31) / 360 / 128 / 128, "360 y is an int32");
/* Groups of four outputs that are multiplied together; words of transformed weights. */
enum { FOURS = 24, WEIGHT_WORDS = 48 * 1024 };
enum { QUAD = 64 }; /* bytes of four positions of a panel */

struct toom_scratch {
    _Alignas(64) int16_t x[POINTS * FOURS * (MOST_POSITIONS / 3 + 8)];
    int16_t w[WEIGHT_WORDS];
    int32_t sums[2][4 * FOURS * QNI_PANEL];
    int32_t points[POINTS * FOURS * QNI_PANEL];
    int8_t values[(MOST_POSITIONS + 31) / 32 * 32 * QNI_PANEL]; /* of nibbles */
};
_Static_assert(sizeof(struct toom_scratch) <= QNI_DIRECT_SCRATCH_GATHERS, "scratch of a row");

QNI_TEMPLATE __m256i load(const void *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}
QNI_TEMPLATE void store(void *to, const __m256i v)
{
    _mm256_storeu_si256((__m256i *)to, v);
}

/* ---- transforms ------------------------------------------------------------------------------ */

QNI_TEMPLATE __m256i twice(const __m256i v)
{
    return _mm256_add_epi16(v, v);
}

/* Transforms 7 z to x of each point. r is z times (t - 1)(t + 1) and powers of t; q is r times
 * (t - 2)(t + 2). */
QNI_TEMPLATE void transform_x(const __m256i *z, __m256i *to)
{
    __m256i r[5], r4[3], q[3], p[4];
    QNI_UNROLL
    for (int k = 0; k < 5; k++)
        r[k] = _mm256_sub_epi16(z[k + 2], z[k]);
    QNI_UNROLL
    for (int k = 0; k < 3; k++) {
        r4[k] = _mm256_slli_epi16(r[k], 2);
        q[k] = _mm256_sub_epi16(r[k + 2], r4[k]);
        p[k + 1] = _mm256_sub_epi16(z[k + 3], _mm256_slli_epi16(z[k + 1], 2));
    }
    const __m256i ends = _mm256_sub_epi16(twice(p[3]), p[2]);
    const __m256i less = _mm256_sub_epi16(twice(p[2]), p[1]);
    const __m256i apart = twice(_mm256_sub_epi16(r[3], r[1]));
    const __m256i both = twice(_mm256_add_epi16(r[3], r[1]));
    to[0] = _mm256_sub_epi16(twice(q[1]), q[0]);
    to[1] = _mm256_add_epi16(ends, less);
    to[2] = _mm256_sub_epi16(ends, less);
    to[3] = _mm256_add_epi16(apart, _mm256_add_epi16(r[2], twice(r[2])));
    to[4] = _mm256_sub_epi16(both, _mm256_add_epi16(r[2], r4[2]));
    to[5] = q[1];
    to[6] = _mm256_sub_epi16(twice(q[2]), q[1]);
}

/* Transforms 4 g to g of each point, times 360 / n (for 1/2 an eighth of that, for infinity half).
 */
QNI_TEMPLATE void transform_weights(const __m256i *g, __m256i *to)
{
    const __m256i even = _mm256_add_epi16(g[0], g[2]), odd = _mm256_add_epi16(g[1], g[3]);
    const __m256i two = _mm256_add_epi16(g[0], _mm256_slli_epi16(g[2], 2));
    const __m256i far = twice(_mm256_add_epi16(g[1], _mm256_slli_epi16(g[3], 2)));
    const __m256i half = _mm256_add_epi16(twice(g[0]), g[1]);
    const __m256i rest = _mm256_add_epi16(twice(g[2]), g[3]);
    to[0] = _mm256_mullo_epi16(g[0], _mm256_set1_epi16(-90));
    to[1] = _mm256_mullo_epi16(_mm256_add_epi16(even, odd), _mm256_set1_epi16(-60));
    to[2] = _mm256_mullo_epi16(_mm256_sub_epi16(even, odd), _mm256_set1_epi16(20));
    to[3] = _mm256_mullo_epi16(_mm256_add_epi16(two, far), _mm256_set1_epi16(5));
    to[4] = _mm256_mullo_epi16(_mm256_sub_epi16(two, far), _mm256_set1_epi16(-3));
    to[5] = _mm256_slli_epi16(_mm256_add_epi16(_mm256_slli_epi16(half, 2), rest), 2);
    to[6] = _mm256_mullo_epi16(g[3], _mm256_set1_epi16(180));
}

/* 8 sums of each point become those of four outputs. */
QNI_TEMPLATE void outputs_of_points(const __m256i *m, __m256i *y)
{
    enum { OF_45 = -1527099483 }; /* 45 times it is 1 modulo 2^32 */
    const __m256i one = _mm256_add_epi32(m[1], m[2]), turned = _mm256_sub_epi32(m[1], m[2]);
    const __m256i two = _mm256_add_epi32(m[3], m[4]), far = _mm256_sub_epi32(m[3], m[4]);
    const __m256i h = m[5];
    y[0] = _mm256_add_epi32(_mm256_add_epi32(m[0], one),
                            _mm256_add_epi32(two, _mm256_slli_epi32(h, 3)));
    y[1] = _mm256_add_epi32(turned,
                            _mm256_add_epi32(_mm256_slli_epi32(far, 1), _mm256_slli_epi32(h, 2)));
    y[2] =
        _mm256_add_epi32(one, _mm256_add_epi32(_mm256_slli_epi32(two, 2), _mm256_slli_epi32(h, 1)));
    y[3] = _mm256_add_epi32(_mm256_add_epi32(turned, _mm256_slli_epi32(far, 3)),
                            _mm256_add_epi32(h, m[6]));
    QNI_UNROLL
    for (int j = 0; j < 4; j++)
        y[j] = _mm256_mullo_epi32(_mm256_srai_epi32(y[j], 3), _mm256_set1_epi32(OF_45));
}

/* ---- x and weights --------------------------------------------------------------------------- */

/* Words of a point: those of all taps, and up to 2 whose weights are zeros. */
static int64_t point_words(const struct qni_direct_tile *t, int64_t step)
{
    return (t->n_taps * step + 8 - step + 3) / 4 * 4;
}

/* Sign-extends 8 bytes of each of two lines. */
QNI_TEMPLATE __m256i bytes_of_two(const uint8_t *a, const uint8_t *b, const __m128i flip)
{
    const __m128i two = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(const void *)a),
                                           _mm_loadl_epi64((const __m128i *)(const void *)b));
    return _mm256_cvtepi8_epi16(_mm_xor_si128(two, flip));
}

/* Transforms x of the four outputs that begin at row a, and of those that begin at row b, to words
 * of every point, `point` apart. The last bytes are read where a tap ends. */
static void transform_rows(const struct qni_direct_tile *t, int64_t step, int64_t a, int64_t b,
                           int64_t point, int16_t *to, int64_t second)
{
    const __m128i flip = _mm_set1_epi8((char)t->flip);
    const __m128i beyond = _mm_cvtsi32_si128((int)(8 * (4 * step - t->tap_bytes + 8 - step)));
    for (int64_t tap = 0; tap < t->n_taps; tap++, to += step) {
        const uint8_t *const x[2] = {(const uint8_t *)t->a + t->at[a] + t->taps[tap],
                                     (const uint8_t *)t->a + t->at[b] + t->taps[tap]};
        const int64_t last = 3 * step + t->tap_bytes - 8;
        __m256i z[POINTS], of_points[POINTS];
        QNI_UNROLL
        for (int i = 0; i < POINTS - 1; i++)
            z[i] = bytes_of_two(x[0] + i * step, x[1] + i * step, flip);
        __m128i end[2];
        QNI_UNROLL
        for (int i = 0; i < 2; i++)
            end[i] = _mm_srl_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(x[i] + last)),
                                   beyond);
        z[POINTS - 1] =
            _mm256_cvtepi8_epi16(_mm_xor_si128(_mm_unpacklo_epi64(end[0], end[1]), flip));
        transform_x(z, of_points);
        QNI_UNROLL
        for (int i = 0; i < POINTS; i++) {
            int16_t *const at = to + i * point;
            _mm_storeu_si128((__m128i *)(void *)at, _mm256_castsi256_si128(of_points[i]));
            _mm_storeu_si128((__m128i *)(void *)(at + second),
                             _mm256_extracti128_si256(of_points[i], 1));
        }
    }
}

/* Weights of 16 outputs at a position, as words. */
QNI_TEMPLATE __m256i weights_at(const int8_t *quads, const __m256i flip, int64_t position)
{
    const int8_t *const quad = quads + position / 4 * QUAD;
    const __m128i up = _mm_cvtsi32_si128((int)(24 - position % 4 * 8));
    __m256i half[2];
    QNI_UNROLL
    for (int h = 0; h < 2; h++)
        half[h] = _mm256_srai_epi32(
            _mm256_sll_epi32(_mm256_xor_si256(load(quad + 32 * h), flip), up), 24);
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(half[0], half[1]), 0xd8);
}

/* Transforms a panel to pairs of words of 16 outputs, for each point. */
static void transform_panel(const struct qni_direct_tile *t, int64_t step, const int8_t *quads,
                            uint8_t flip, int16_t *to)
{
    const __m256i flips = _mm256_set1_epi8((char)flip);
    const int64_t words = point_words(t, step), point = words * QNI_PANEL;
    for (int64_t i = 0; i < POINTS * point; i += 16)
        store(to + i, _mm256_setzero_si256());
    for (int64_t i = 0; i < t->n_taps * step; i += 2) {
        __m256i w[2][POINTS];
        for (int l = 0; l < 2; l++) {
            __m256i g[4];
            for (int j = 0; j < 4; j++) {
                const int64_t byte = j * step + i % step + l;
                g[j] = _mm256_setzero_si256();
                if (byte < t->tap_bytes)
                    g[j] = weights_at(quads, flips, i / step * t->tap_bytes + byte);
            }
            transform_weights(g, w[l]);
        }
        for (int p = 0; p < POINTS; p++) {
            int16_t *const at = to + p * point + i * QNI_PANEL;
            const __m256i low = _mm256_unpacklo_epi16(w[0][p], w[1][p]);
            const __m256i high = _mm256_unpackhi_epi16(w[0][p], w[1][p]);
            store(at, _mm256_permute2x128_si256(low, high, 0x20));
            store(at + QNI_PANEL, _mm256_permute2x128_si256(low, high, 0x31));
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Groups of four outputs that are multiplied together: the first row of each. */
struct fours {
    int64_t row[FOURS], n;
    int64_t step, words;
};

/* Multiplies n groups by a panel: sums of their rows, of which the first is row[0]. */
static void multiply_fours(const struct fours *f, const int16_t *w, struct toom_scratch *s,
                           int32_t *sums)
{
    for (int64_t p = 0; p < POINTS; p++)
        for (int64_t i = 0; i < f->n; i += MR)
            qni_squares_multiply(s->x + (p * FOURS + i) * f->words,
                                 (uintptr_t)f->words * sizeof(int16_t),
                                 w + p * f->words * QNI_PANEL, f->words,
                                 s->points + (p * FOURS + i) * QNI_PANEL, MR);
    for (int64_t i = 0; i < 2 * f->n; i++) {
        const int32_t *const from = s->points + 8 * i;
        int32_t *const to = sums + (f->row[i / 2] - f->row[0]) * QNI_PANEL + i % 2 * 8;
        __m256i m[POINTS], y[4];
        QNI_UNROLL
        for (int p = 0; p < POINTS; p++)
            m[p] = load(from + p * FOURS * QNI_PANEL);
        outputs_of_points(m, y);
        QNI_UNROLL
        for (int j = 0; j < 4; j++)
            store(to + j * QNI_PANEL, y[j]);
    }
}

/* Finds the groups from a row on; the last one of a line may begin with rows of the one before.
 * Returns the row that comes next. */
static int64_t next_fours(const struct qni_direct_tile *t, int64_t row, struct fours *f)
{
    for (f->n = 0; f->n < FOURS && row < t->rows; f->n++) {
        int64_t n = 1;
        while (n < 4 && row + n < t->rows && t->at[row + n] - t->at[row + n - 1] == f->step)
            n++;
        f->row[f->n] = row + n - 4;
        row += n;
    }
    return row;
}

/* All rows and panels [first, end), whose weights are transformed. */
static void multiply_rows(const struct qni_direct_tile *t, struct toom_scratch *s, struct fours *f,
                          int64_t first, int64_t end)
{
    const int64_t point = FOURS * f->words, panel_words = POINTS * f->words * QNI_PANEL;
    for (int64_t row = 0, next; row < t->rows; row = next) {
        next = next_fours(t, row, f);
        for (int64_t i = 0; i < f->n; i += 2)
            transform_rows(t, f->step, f->row[i], f->row[i + 1 < f->n ? i + 1 : i], point,
                           s->x + i * f->words, i + 1 < f->n ? f->words : 0);
        const struct qni_direct_range p = {f->row[0], next - f->row[0], 0, 0};
        for (int64_t panel = first; panel < end; panel += 2) {
            const int32_t *const sums[2] = {s->sums[0], s->sums[1]};
            const int n = end - panel < 2 ? 1 : 2;
            prefetch_y(t, &p, panel);
            for (int i = 0; i < n; i++)
                multiply_fours(f, s->w + (panel - first + i) * panel_words, s, s->sums[i]);
            if (n == 2)
                finish_panels(t, &p, panel, sums);
            else
                finish_panel(t, &p, panel, sums[0]);
        }
    }
}

QNI_TEMPLATE void multiply_all(const struct qni_direct_tile *t, struct toom_scratch *s,
                               const int kind)
{
    struct fours f = {.step = t->at[1] - t->at[0]};
    f.words = point_words(t, f.step);
    const int64_t each = POINTS * f.words * QNI_PANEL, most = WEIGHT_WORDS / each / 2 * 2;
    for (int64_t first = 0; first < t->n_panels; first += most) {
        const int64_t end = first + most < t->n_panels ? first + most : t->n_panels;
        for (int64_t panel = first; panel < end; panel++) {
            const uint8_t *const b = t->b + (size_t)panel * t->b_panel;
            int16_t *const to = s->w + (panel - first) * each;
            if (kind == NIBBLES) {
                qni_nibbles_to_values(b, (t->n_taps * t->tap_bytes + 31) / 32, s->values);
                transform_panel(t, f.step, s->values, 0, to);
            } else {
                transform_panel(t, f.step, (const int8_t *)b, 0x80, to);
            }
        }
        multiply_rows(t, s, &f, first, end);
    }
}

void qni_conv_q8_q8n16_mr96_toom_avx2(const struct qni_direct_tile *t)
{
    multiply_all(t, t->scratch, BYTES);
}
void qni_conv_q8_q4n16_mr96_toom_avx2(const struct qni_direct_tile *t)
{
    multiply_all(t, t->scratch, NIBBLES);
}
