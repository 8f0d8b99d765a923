/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions of 3 x 3 taps of stride 1 with AVX2, in squares of 2 x 2 outputs
 * (../simd/squares.h). Contract and operand layouts: kernel.h.
 *
 *     x        bytes of 4 x 4 pixels to 16 words a channel, of as many squares as scratch holds
 *     panel    16 products of squares x channels with channels x 16 outputs, sums in registers,
 *              then in memory; 4 outputs of each square from its 16 sums; bytes
 *
 * Bound: 16 products are vpmaddwd and vpaddd, of which a core takes two pairs a cycle (measured:
 * 1.55), and 16 of them stand for 36: 72 products of taps a cycle (56). Besides, of each square,
 * about 60 instructions for 16 channels and 48 for 8 outputs. */
#include "../../base/compiler.h"
#include "../simd/avx2_bytes.h"
#include "../simd/squares.h"
#include "kernel.h"

/* Squares of a tile of 16 outputs; those whose outputs are finished together. */
enum { MR = QNI_DIRECT_SQUARES_MR, RUN = 16, TAPS = QNI_DIRECT_SQUARES_TAPS };

QNI_TEMPLATE __m256i load(const void *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}
QNI_TEMPLATE void store(void *to, const __m256i v)
{
    _mm256_storeu_si256((__m256i *)to, v);
}

/* Scratch: outputs of two lines of squares, sums [TAPS][most][16], words of x
 * [TAPS][most][channels, and some that are not used]. */
struct room {
    int64_t most, channels;
    int64_t tap, w_tap; /* words of x, and of weights */
    int16_t *x;
    int32_t *sums, *lines;
};
enum { LINE = 2 * RUN * QNI_PANEL };
_Static_assert(LINE * sizeof(int32_t) <= QNI_DIRECT_SQUARES_LINES, "two lines");

static struct room room_of(const struct qni_direct_tile *t)
{
    struct room r;
    r.channels = (int64_t)t->pixel;
    r.most = qni_direct_squares_most(r.channels);
    r.tap = r.most * r.channels + QNI_DIRECT_SQUARES_APART;
    r.w_tap = (int64_t)(qni_direct_squares_tap(r.channels) / sizeof(int16_t));
    r.lines = t->scratch;
    r.sums = r.lines + 2 * LINE;
    r.x = (int16_t *)(void *)(r.sums + r.most * TAPS * QNI_PANEL);
    return r;
}

/* Squares of a band, line by line; of a line, image by image. */
struct grid {
    int64_t columns, lines, width, height; /* of squares; of outputs, height of all images */
    int64_t pixel, below;                  /* bytes to the next pixel, and line of the image */
    int64_t line;                          /* and of the next image */
};

static struct grid grid_of(const struct qni_direct_tile *t)
{
    struct grid g;
    g.width = t->width;
    g.height = t->rows / (t->width * t->images);
    g.columns = (g.width + 1) / 2;
    g.lines = (g.height + 1) / 2 * t->images;
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

/* Squares [first, first + n) of a band. Where an output is missing, whatever is there will do. */
static void bring_x(const struct qni_direct_tile *t, const struct grid *g, int64_t first, int64_t n,
                    const struct room *room)
{
    const int64_t tap = room->tap;
    for (int64_t i = 0; i < n; i++) {
        const int64_t l = (first + i) / g->columns, j = (first + i) % g->columns;
        const int64_t line = l / t->images * 2, image = l % t->images;
        const int8_t *const x =
            t->a + t->taps[0] + line * g->below + image * g->line + 2 * j * g->pixel;
        const int64_t last = line + 1 < g->height ? 3 : 2;
        const int64_t end = (2 * j + 1 < g->width ? 3 : 2) * g->pixel;
        int16_t *to = room->x + i * room->channels;
        for (int64_t c = 0; c < room->channels; c += 16, to += 16) {
            const int8_t *const from[4] = {x + c, x + c + g->below, x + c + 2 * g->below,
                                           x + c + last * g->below};
            column_of(from, 0, 2 * g->pixel, false, tap, to);
            column_of(from, g->pixel, 2 * g->pixel, true, tap, to + tap);
            column_of(from, 2 * g->pixel, g->pixel, false, tap, to + 2 * tap);
            column_of(from, g->pixel, end, false, tap, to + 3 * tap);
        }
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* All channels of mr squares, `step` bytes apart. An address for three of them: ../simd/groups.h
 * says why. */
QNI_TEMPLATE void multiply_squares(const int16_t *x, uintptr_t step, const int16_t *w,
                                   int64_t channels, int32_t *to, const int mr)
{
    uintptr_t at[(MR + 2) / 3];
    __m256i sum[2 * MR];
    QNI_UNROLL
    for (int r = 0; r < mr; r++)
        sum[2 * r] = sum[2 * r + 1] = _mm256_setzero_si256();
    at[0] = (uintptr_t)x;
    at[1] = at[0] + 3 * step;
    for (; channels > 0; channels -= 4, w += 4 * QNI_PANEL) {
        QNI_UNROLL
        for (int i = 0; i < 2; i++) {
            const __m256i w0 = load(w + 32 * i), w1 = load(w + 32 * i + 16);
            QNI_UNROLL
            for (int r = 0; r < mr; r++)
                qni_squares_add_pair(at[r / 3] + (uintptr_t)(r % 3) * step + (uintptr_t)i * 4, w0,
                                     w1, sum + 2 * r);
        }
        at[0] += 8;
        at[1] += 8;
        QNI_KEEP_WORD(at[0]);
        QNI_KEEP_WORD(at[1]);
    }
    QNI_UNROLL
    for (int i = 0; i < 2 * mr; i++)
        store(to + 8 * i, sum[i]);
}

#define SQUARES(mr)                                                                                \
    case mr:                                                                                       \
        multiply_squares(x, step, w, room->channels, to, mr);                                      \
        break;
static void multiply_some(const struct room *room, const int16_t *x, int64_t n, const int16_t *w,
                          int32_t *to)
{
    const uintptr_t step = (uintptr_t)room->channels * sizeof(int16_t);
    switch (n) {
        /* clang-format off */
        SQUARES(6) SQUARES(5) SQUARES(4) SQUARES(3) SQUARES(2)
    default:
        multiply_squares(x, step, w, room->channels, to, 1);
        /* clang-format on */
    }
}
#undef SQUARES

/* n squares and a panel. */
static void multiply_panel(const struct room *room, int64_t n, const int16_t *w)
{
    for (int64_t tap = 0; tap < TAPS; tap++, w += room->w_tap) {
        int64_t blocks = (n + MR - 1) / MR;
        for (int64_t i = 0, some; i < n; i += some, blocks--) {
            some = (n - i + blocks - 1) / blocks;
            multiply_some(room, room->x + tap * room->tap + i * room->channels, some, w,
                          room->sums + (tap * room->most + i) * QNI_PANEL);
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

/* Squares [first, first + n) of a band, which are in room->sums, to y. */
static void finish_squares(const struct qni_direct_tile *t, const struct grid *g, int64_t first,
                           int64_t n, int64_t panel, const struct room *room)
{
    const int64_t tap = room->most * QNI_PANEL;
    const int32_t *sums = room->sums;
    for (int64_t i = 0, some; i < n; i += some) {
        const int64_t l = (first + i) / g->columns, j = (first + i) % g->columns;
        const int64_t line = l / t->images * 2, image = l % t->images;
        some = g->columns - j < n - i ? g->columns - j : n - i;
        some = some < RUN ? some : RUN;
        for (int64_t k = 0; k < some; k++, sums += QNI_PANEL) {
            outputs_of(sums, tap, room->lines + 2 * k * QNI_PANEL);
            outputs_of(sums + 8, tap, room->lines + 2 * k * QNI_PANEL + 8);
        }
        struct piece p = {(line * t->images + image) * g->width + 2 * j, 0, 0, 0};
        p.rows = 2 * some < g->width - 2 * j ? 2 * some : g->width - 2 * j;
        finish_panel(t, &p, panel, room->lines);
        p.row += t->images * g->width;
        if (line + 1 < g->height)
            finish_panel(t, &p, panel, room->lines + LINE);
    }
}

/* ---- a tile ---------------------------------------------------------------------------------- */

static void tile(const struct qni_direct_tile *t)
{
    const struct room room = room_of(t);
    const struct grid g = grid_of(t);
    const int64_t n = g.lines * g.columns;
    int64_t pieces = (n + room.most - 1) / room.most;
    for (int64_t first = 0, some; first < n; first += some, pieces--) {
        some = (n - first + pieces - 1) / pieces;
        some = (some + MR - 1) / MR * MR < n - first ? (some + MR - 1) / MR * MR : n - first;
        if (!t->has_x || some < n)
            bring_x(t, &g, first, some, &room);
        for (int64_t panel = 0; panel < t->n_panels; panel++) {
            const uint8_t *const w = t->b + (size_t)panel * t->b_panel;
            multiply_panel(&room, some, (const int16_t *)(const void *)w);
            finish_squares(t, &g, first, some, panel, &room);
        }
    }
}

void qni_conv_q8_q8n16_mr24_avx2(const struct qni_direct_tile *t)
{
    tile(t);
}
void qni_conv_q8_q4n16_mr24_avx2(const struct qni_direct_tile *t)
{
    tile(t);
}

/* ---- weights --------------------------------------------------------------------------------- */

QNI_TEMPLATE void unpack(const uint8_t *codes, int64_t units, uint8_t *out, const bool is_nibble)
{
    const int64_t quads = units * QNI_UNIT / 4 / 9;
    const int64_t tap = (int64_t)(qni_direct_squares_tap(4 * quads) / sizeof(int16_t));
    int16_t *to = (int16_t *)(void *)out;
    for (int64_t q = 0; q < quads; q++, to += 4 * QNI_PANEL)
        for (int64_t v = 0; v < 2; v++)
            QNI_UNROLL
    for (int pair = 0; pair < 2; pair++) {
        __m256i w[4][4];
        qni_squares_weights(codes, quads, q, v, pair, is_nibble, w);
        QNI_UNROLL
        for (int i = 0; i < TAPS; i++)
            store(to + i * tap + pair * 32 + v * 16, w[i / 4][i % 4]);
    }
}

void qni_direct_squares_bytes_avx2(const uint8_t *codes, int64_t units, uint8_t *out)
{
    unpack(codes, units, out, false);
}
void qni_direct_squares_nibbles_avx2(const uint8_t *codes, int64_t units, uint8_t *out)
{
    unpack(codes, units, out, true);
}
