/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions of 3 x 3 taps of stride 1 with AVX2, in squares of 4 x 4 outputs, or of
 * 2 x 2 where channels are many or outputs few (../simd/squares.h). Contract and operand layouts:
 * direct_kernel.h.
 *
 *     x        bytes of 6 x 6 pixels to 36 words a channel, of as many squares as scratch holds
 *     panel    36 products of squares x channels with channels x 16 outputs, sums in registers,
 *              then in memory; 16 outputs of each square from its 36 sums; bytes
 *
 * Bound: 16 products are vpmaddwd and vpaddd, of which a core takes two pairs a cycle (measured:
 * 1.55), and 36 of them stand for 144 (16 for 36): 128 products of taps a cycle (72). Besides, of
 * each square, about 350 instructions for 16 channels and 280 for 8 outputs (60 and 48). */
#include "../../base/compiler.h"
#include "../simd/avx2_bytes.h"
#include "../simd/squares.h"
#include "kernel.h"

/* Squares of a tile of 16 outputs; outputs of a line that are finished together. */
enum { MR = QNI_DIRECT_SQUARES_MR, RUN = 32, MOST_SIDE = 4 };

QNI_TEMPLATE __m256i load(const void *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}
QNI_TEMPLATE void store(void *to, const __m256i v)
{
    _mm256_storeu_si256((__m256i *)to, v);
}

/* Scratch: outputs of a line of squares, sums [taps][most][16], words of x
 * [taps][most][channels, and some that are not used]. */
struct squares_scratch {
    int64_t most, channels, taps;
    int64_t tap, w_tap; /* words of x, and of weights */
    int16_t *x;
    int32_t *sums, *lines;
};
enum { LINE = RUN * QNI_PANEL };
_Static_assert(MOST_SIDE *LINE * sizeof(int32_t) <= QNI_DIRECT_SQUARES_LINES, "all of a side");

static struct squares_scratch scratch_of(const struct qni_direct_tile *t, int64_t side)
{
    struct squares_scratch r;
    r.channels = (int64_t)t->pixel;
    r.most = qni_direct_squares_most(r.channels, side);
    r.taps = qni_direct_squares_taps(side);
    r.tap = r.most * r.channels + QNI_DIRECT_SQUARES_APART;
    r.w_tap = (int64_t)(qni_direct_squares_tap(r.channels) / sizeof(int16_t));
    r.lines = t->scratch;
    r.sums = r.lines + MOST_SIDE * LINE;
    r.x = (int16_t *)(void *)(r.sums + r.most * r.taps * QNI_PANEL);
    return r;
}

/* Squares of a band, line by line; of a line, image by image. */
struct grid {
    int64_t columns, lines, width, height; /* of squares; of outputs, height of all images */
    int64_t pixel, below;                  /* bytes to the next pixel, and line of the image */
    int64_t line;                          /* and of the next image */
};

static struct grid grid_of(const struct qni_direct_tile *t, int64_t side)
{
    struct grid g;
    g.width = t->width;
    g.height = t->rows / (t->width * t->images);
    g.columns = (g.width + side - 1) / side;
    g.lines = (g.height + side - 1) / side * t->images;
    g.pixel = (int64_t)t->pixel;
    g.below = t->taps[1] - t->taps[0];
    g.line = g.below / t->images;
    return g;
}

/* ---- x --------------------------------------------------------------------------------------- */

QNI_TEMPLATE __m256i words_of(const int8_t *x)
{
    return _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)x));
}

/* x: of each of 16 channels what comes of columns a and b, top down. */
QNI_TEMPLATE void column_of(const int8_t *const *x, int64_t a, int64_t b, const bool adds,
                            int64_t tap, int16_t *to)
{
    __m256i both[4], four[4];
    QNI_UNROLL
    for (int r = 0; r < 4; r++) {
        const __m256i u = words_of(x[r] + a), v = words_of(x[r] + b);
        both[r] = adds ? _mm256_add_epi16(u, v) : _mm256_sub_epi16(u, v);
    }
    qni_squares_of_x(both, four);
    QNI_UNROLL
    for (int r = 0; r < 4; r++)
        store(to + 4 * r * tap, four[r]);
}

/* Transforms 16 channels of x for a square of 4 x 4 outputs, all columns: lines first. */
static void fours_of(const int8_t *const *x, const int64_t *column, int64_t tap, int16_t *to)
{
    enum { N = 6 };
    __m256i line[N][N], v[N], of[N];
    for (int r = 0; r < N; r++) {
        QNI_UNROLL
        for (int c = 0; c < N; c++)
            v[c] = words_of(x[r] + column[c]);
        qni_fours_of_line(v, line[r]);
    }
    for (int c = 0; c < N; c++) {
        QNI_UNROLL
        for (int r = 0; r < N; r++)
            v[r] = line[r][c];
        qni_fours_of_line(v, of);
        QNI_UNROLL
        for (int r = 0; r < N; r++)
            store(to + (r * N + c) * tap, of[r]);
    }
}

/* Squares [first, first + n) of a band. Where an output is missing, whatever is there will do. */
QNI_TEMPLATE void bring_x(const struct qni_direct_tile *t, const struct grid *g, int64_t first,
                          int64_t n, const struct squares_scratch *scratch, const int side)
{
    const int64_t tap = scratch->tap;
    for (int64_t i = 0; i < n; i++) {
        const int64_t l = (first + i) / g->columns, j = (first + i) % g->columns * side;
        const int64_t line = l / t->images * side, image = l % t->images;
        const int8_t *const x =
            t->a + t->taps[0] + line * g->below + image * g->line + j * g->pixel;
        int64_t row[MOST_SIDE + 2], column[MOST_SIDE + 2];
        QNI_UNROLL
        for (int64_t k = 0; k < side + 2; k++) {
            row[k] = (k < g->height - line + 2 ? k : g->height - line + 1) * g->below;
            column[k] = (k < g->width - j + 2 ? k : g->width - j + 1) * g->pixel;
        }
        int16_t *to = scratch->x + i * scratch->channels;
        for (int64_t c = 0; c < scratch->channels; c += 16, to += 16) {
            const int8_t *from[MOST_SIDE + 2];
            QNI_UNROLL
            for (int k = 0; k < side + 2; k++)
                from[k] = x + c + row[k];
            if (side == 4) {
                fours_of(from, column, tap, to);
                continue;
            }
            column_of(from, 0, column[2], false, tap, to);
            column_of(from, column[1], column[2], true, tap, to + tap);
            column_of(from, column[2], column[1], false, tap, to + 2 * tap);
            column_of(from, column[1], column[3], false, tap, to + 3 * tap);
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

#define SQUARES(mr)                                                                                \
    case mr:                                                                                       \
        qni_squares_multiply(x, step, w, scratch->channels, to, mr);                               \
        break;
static void multiply_squares(const struct squares_scratch *scratch, const int16_t *x, int64_t n,
                             const int16_t *w, int32_t *to)
{
    const uintptr_t step = (uintptr_t)scratch->channels * sizeof(int16_t);
    switch (n) {
        /* clang-format off */
        SQUARES(6) SQUARES(5) SQUARES(4) SQUARES(3) SQUARES(2)
    default:
        qni_squares_multiply(x, step, w, scratch->channels, to, 1);
        /* clang-format on */
    }
}
#undef SQUARES

/* n squares and a panel. */
static void multiply_panel(const struct squares_scratch *scratch, int64_t n, const int16_t *w)
{
    for (int64_t tap = 0; tap < scratch->taps; tap++, w += scratch->w_tap) {
        int64_t blocks = (n + MR - 1) / MR;
        for (int64_t i = 0, count; i < n; i += count, blocks--) {
            count = (n - i + blocks - 1) / blocks;
            multiply_squares(scratch, scratch->x + tap * scratch->tap + i * scratch->channels,
                             count, w, scratch->sums + (tap * scratch->most + i) * QNI_PANEL);
        }
    }
}

/* ---- outputs --------------------------------------------------------------------------------- */

/* 8 outputs of a square from its sums. */
QNI_TEMPLATE void outputs_of(const int32_t *sums, int64_t tap, int32_t *to)
{
    __m256i line[2][4];
    QNI_UNROLL
    for (int c = 0; c < 4; c++) {
        const int32_t *const at = sums + c * tap;
        const __m256i a = load(at + 4 * tap), b = load(at + 8 * tap);
        line[0][c] = _mm256_add_epi32(_mm256_add_epi32(load(at), a), b);
        line[1][c] = _mm256_add_epi32(_mm256_sub_epi32(a, b), load(at + 12 * tap));
    }
    QNI_UNROLL
    for (int r = 0; r < 2; r++) {
        const __m256i *const m = line[r];
        const __m256i first = _mm256_add_epi32(_mm256_add_epi32(m[0], m[1]), m[2]);
        const __m256i second = _mm256_add_epi32(_mm256_sub_epi32(m[1], m[2]), m[3]);
        store(to + r * LINE, _mm256_srai_epi32(first, 2));
        store(to + r * LINE + QNI_PANEL, _mm256_srai_epi32(second, 2));
    }
}

/* 16 times 8 outputs of a square of 4 x 4. */
static void outputs_of_fours(const int32_t *sums, int64_t tap, int32_t *to)
{
    enum { N = 6, OF_9 = 954437177 }; /* 9 times it is 1 modulo 2^32 */
    __m256i line[4][N], m[N], y[4];
    for (int c = 0; c < N; c++) {
        QNI_UNROLL
        for (int r = 0; r < N; r++)
            m[r] = load(sums + (r * N + c) * tap);
        qni_fours_of_products(m, y);
        QNI_UNROLL
        for (int r = 0; r < 4; r++)
            line[r][c] = y[r];
    }
    for (int r = 0; r < 4; r++) {
        qni_fours_of_products(line[r], y);
        QNI_UNROLL
        for (int c = 0; c < 4; c++)
            store(to + r * LINE + c * QNI_PANEL,
                  _mm256_srai_epi32(_mm256_mullo_epi32(y[c], _mm256_set1_epi32(OF_9)), 6));
    }
}

/* Squares [first, first + n) of a band, which are in room->sums, to y. */
QNI_TEMPLATE void finish_squares(const struct qni_direct_tile *t, const struct grid *g,
                                 int64_t first, int64_t n, int64_t panel,
                                 const struct squares_scratch *scratch, const int side)
{
    const int64_t tap = scratch->most * QNI_PANEL;
    const int32_t *sums = scratch->sums;
    for (int64_t i = 0, count; i < n; i += count) {
        const int64_t l = (first + i) / g->columns, j = (first + i) % g->columns;
        const int64_t line = l / t->images * side, image = l % t->images;
        const int64_t left = g->width - side * j;
        count = g->columns - j < n - i ? g->columns - j : n - i;
        count = count < RUN / side ? count : RUN / side;
        for (int64_t k = 0; k < count; k++, sums += QNI_PANEL) {
            int32_t *const to = scratch->lines + side * k * QNI_PANEL;
            for (int h = 0; h < QNI_PANEL; h += 8)
                if (side == 4)
                    outputs_of_fours(sums + h, tap, to + h);
                else
                    outputs_of(sums + h, tap, to + h);
        }
        struct qni_direct_range p = {(line * t->images + image) * g->width + side * j, 0, 0, 0};
        p.rows = side * count < left ? side * count : left;
        for (int64_t r = 0; r < side && line + r < g->height; r++, p.row += t->images * g->width)
            finish_panel(t, &p, panel, scratch->lines + r * LINE);
    }
}

/* ---- a tile ---------------------------------------------------------------------------------- */

QNI_TEMPLATE void tile(const struct qni_direct_tile *t, const int side)
{
    const struct squares_scratch scratch = scratch_of(t, side);
    const struct grid g = grid_of(t, side);
    const int64_t n = g.lines * g.columns;
    int64_t pieces = (n + scratch.most - 1) / scratch.most;
    for (int64_t first = 0, count; first < n; first += count, pieces--) {
        count = (n - first + pieces - 1) / pieces;
        count = (count + MR - 1) / MR * MR < n - first ? (count + MR - 1) / MR * MR : n - first;
        if (!t->has_x || count < n)
            bring_x(t, &g, first, count, &scratch, side);
        for (int64_t panel = 0; panel < t->n_panels; panel++) {
            const uint8_t *const w = t->b + (size_t)panel * t->b_panel;
            multiply_panel(&scratch, count, (const int16_t *)(const void *)w);
            finish_squares(t, &g, first, count, panel, &scratch, side);
        }
    }
}

static void tile_of_twos(const struct qni_direct_tile *t)
{
    tile(t, 2);
}
static void tile_of_fours(const struct qni_direct_tile *t)
{
    tile(t, 4);
}

void qni_conv_q8_q8n16_mr24_winograd2x2_avx2(const struct qni_direct_tile *t)
{
    tile_of_twos(t);
}
void qni_conv_q8_q4n16_mr24_winograd2x2_avx2(const struct qni_direct_tile *t)
{
    tile_of_twos(t);
}
void qni_conv_q8_q8n16_mr96_winograd4x4_avx2(const struct qni_direct_tile *t)
{
    tile_of_fours(t);
}
void qni_conv_q8_q4n16_mr96_winograd4x4_avx2(const struct qni_direct_tile *t)
{
    tile_of_fours(t);
}

/* ---- weights --------------------------------------------------------------------------------- */

QNI_TEMPLATE void unpack(const uint8_t *codes, int64_t units, uint8_t *out, const bool is_nibble,
                         const int side)
{
    const int64_t quads = units * QNI_UNIT / 4 / 9;
    const int64_t tap = (int64_t)(qni_direct_squares_tap(4 * quads) / sizeof(int16_t));
    int16_t *to = (int16_t *)(void *)out;
    for (int64_t q = 0; q < quads; q++, to += 4 * QNI_PANEL)
        for (int64_t v = 0; v < 2; v++)
            QNI_UNROLL
    for (int pair = 0; pair < 2; pair++) {
        __m256i w[(MOST_SIDE + 2) * (MOST_SIDE + 2)];
        qni_squares_weights(codes, quads, q, v, pair, is_nibble, side, w);
        for (int i = 0; i < (side + 2) * (side + 2); i++)
            store(to + i * tap + pair * 32 + v * 16, w[i]);
    }
}

static void unpack_two_bytes(const uint8_t *codes, int64_t units, uint8_t *out)
{
    unpack(codes, units, out, false, 2);
}
static void unpack_two_nibbles(const uint8_t *codes, int64_t units, uint8_t *out)
{
    unpack(codes, units, out, true, 2);
}
static void unpack_four_bytes(const uint8_t *codes, int64_t units, uint8_t *out)
{
    unpack(codes, units, out, false, 4);
}
static void unpack_four_nibbles(const uint8_t *codes, int64_t units, uint8_t *out)
{
    unpack(codes, units, out, true, 4);
}

const struct qni_direct_helpers qni_direct_winograd2x2_q8_avx2 = {
    .unpack = unpack_two_bytes, .images = &qni_direct_images_avx2};
const struct qni_direct_helpers qni_direct_winograd2x2_q4_avx2 = {
    .unpack = unpack_two_nibbles, .images = &qni_direct_images_avx2};
const struct qni_direct_helpers qni_direct_winograd4x4_q8_avx2 = {
    .unpack = unpack_four_bytes, .images = &qni_direct_images_avx2};
const struct qni_direct_helpers qni_direct_winograd4x4_q4_avx2 = {
    .unpack = unpack_four_nibbles, .images = &qni_direct_images_avx2};
