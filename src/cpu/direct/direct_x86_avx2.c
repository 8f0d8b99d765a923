/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions with AVX2. Contract and operand layouts: kernel.h; how bytes are
 * multiplied: ../simd/pairs.h.
 *
 * Up to 256 rows at a time: up to 384 positions of them are copied, wherever the taps lie, so that
 * nothing else knows of taps; then every panel's weights for these positions are made what the x
 * there can meet (and kept for other rows, if the driver has room), and tiles of 4 rows meet them
 * while they are in the first cache. Sums wait in memory between two pieces of positions: one
 * panel's if there is only one piece, else those of 8 panels.
 *
 * Where a piece of x spans all bytes, and rows are few or sums short, weights become sizes and
 * signs instead (../simd/signs.h), for these rows alone, and tiles are 5 rows of a panel.
 *
 * Taps 3 to 4 times as long as neighbouring outputs are apart, if that is a few bytes (7 taps of
 * stride 2 and 3 channels), are 7 products for 16 instead (../simd/fours.h), of 6 times 4 outputs
 * and 16 channels.
 *
 * Bound: two vector multiplications a cycle; 128 products take six of them (12.75 instructions)
 * where lanes are joined, so 42.7 products a cycle, else eight (14.75), 32. */
#include "../../base/compiler.h"
#include "../simd/avx2_bytes.h"
#include "../simd/fours.h"
#include "../simd/pairs.h"
#include "../simd/signs.h"
#include "../simd/squares.h"
#include "kernel.h"

enum { ROWS = QNI_PAIRS_TURNED, PANELS = 8, DEPTH = QNI_PAIRS_DEPTH, MR = QNI_PAIRS_ROWS };
enum { BYTES = 0, NIBBLES = 1 };
/* x that reaches so far at most. */
enum { HALF = 128, ALL = 255 };
/* Fours: outputs that are brought together, in fours; words of weights. */
enum { FOURS = 24, FOURS_W = 48 * 1024 };

struct room {
    uint8_t x[ROWS * DEPTH];
    union {
        uint8_t turned[DEPTH * ROWS + 64];
        struct qni_signs_w signs[2];
        int16_t fours[FOURS_W];
    };
    int32_t sums[PANELS * ROWS * QNI_PANEL];
    int16_t rest[2 * ROWS * QNI_PANEL];
    struct qni_pairs_w w[2];
    int32_t least, top; /* x was more by least, and is at most top */
    bool is_turned;
};
_Static_assert(sizeof(struct room) <= QNI_DIRECT_SCRATCH_GATHERS, "scratch of a row");

/* ---- x --------------------------------------------------------------------------------------- */

static void copy_tap(const struct qni_direct_tile *t, const struct piece *p, int64_t tap, int64_t n,
                     uint8_t *to)
{
    const uint8_t flip = t->flip ^ 0x80;
    const int64_t *const at = t->at + p->row;
    const uint8_t *const a = (const uint8_t *)t->a + tap;
    const int64_t after = t->rows - p->row - p->rows; /* rows that come next */
    for (int64_t r = 0; r < p->rows; r++) {
        for (int64_t i = 0; r < after && i < n; i += 64)
            _mm_prefetch((const char *)(a + at[r + p->rows] + i), _MM_HINT_T1);
        copy(a + at[r], n, flip, to + r * DEPTH);
    }
}

/* Whole taps of 16 to 32 bytes, row by row: what is written stays in the first cache. */
static void copy_short_taps(const struct qni_direct_tile *t, const struct piece *p, uint8_t *to)
{
    const __m128i flip = _mm_set1_epi8((char)(t->flip ^ 0x80));
    const int64_t first = p->from / t->tap_bytes, n = p->n / t->tap_bytes;
    const int64_t last = t->tap_bytes - 16;
    for (int64_t r = 0; r < p->rows; r++, to += DEPTH) {
        const uint8_t *const from = (const uint8_t *)t->a + t->at[p->row + r];
        uint8_t *at = to;
        for (int64_t i = 0; i < n; i++, at += t->tap_bytes) {
            const uint8_t *const tap = from + t->taps[first + i];
            flip_16(tap, flip, at);
            flip_16(tap + last, flip, at + last);
        }
    }
}

/* What follows n bytes, up to end: weights are zeros there, so any byte that takes no part in what
 * is least and most will do. */
static void fill_x(const struct qni_direct_tile *t, const struct piece *p, int64_t end, uint8_t *to)
{
    const uint8_t *const a = (const uint8_t *)t->a + t->taps[p->from / t->tap_bytes];
    for (int64_t r = 0; r < p->rows; r++) {
        const uint8_t byte = a[t->at[p->row + r] + p->from % t->tap_bytes] ^ t->flip ^ 0x80;
        qni_pairs_store(to + r * DEPTH + end - 32, _mm256_set1_epi8((char)byte));
    }
}

static void copy_x(const struct qni_direct_tile *t, const struct piece *p, struct room *room)
{
    const int64_t end = (p->n + 31) / 32 * 32;
    int64_t tap = p->from / t->tap_bytes, at = p->from % t->tap_bytes;
    if (p->n < end)
        fill_x(t, p, end, room->x);
    if (t->tap_bytes >= 16 && t->tap_bytes <= 32 && at == 0 && p->n % t->tap_bytes == 0)
        copy_short_taps(t, p, room->x);
    else
        for (int64_t done = 0, n; done < p->n; done += n, at = 0, tap++) {
            n = t->tap_bytes - at < p->n - done ? t->tap_bytes - at : p->n - done;
            copy_tap(t, p, t->taps[tap] + at, n, room->x + done);
        }
    room->least = qni_pairs_settle(room->x, p->rows, end, &room->top);
    room->is_turned = false;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* A group of a list that sums get afterwards, one output of all rows. */
struct extra {
    const struct qni_pairs_two *group;
    int32_t *sums;
};

/* Panels that follow each other, ready for a piece of x, and what tiles of them begin with. */
enum { EXTRAS = 3 }; /* of a panel */
struct some {
    const struct qni_signs_w *signs; /* of both, instead of w; or NULL */
    struct qni_pairs_ready w[2];
    int32_t *sums_of[2];
    bool has_sums[2];
    int16_t *rest[2]; /* words to add, or NULL */
    int32_t middle[2][QNI_PANEL];
    struct extra extra[2 * EXTRAS];
    int n_extra;
};

/* What all rows of a tile begin with, of every output: the opposite of what takes x's middle from
 * sums. */
struct begin {
    __m256i v[QNI_PAIRS_VECTORS];
};

QNI_TEMPLATE void tile_rows(const struct room *room, const struct some *s,
                            const struct begin *begin, int64_t row, int64_t chunks, const int mr,
                            const int panels)
{
    const int8_t *const w[2] = {s->w[0].quads, s->w[panels - 1].quads};
    __m256i sum[MR][QNI_PAIRS_VECTORS];
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int v = 0; v < 2 * panels; v++) {
        const int64_t at = (row + i) * QNI_PANEL + v % 2 * 8;
        sum[i][v] = begin->v[v];
        if (s->has_sums[0])
            sum[i][v] = _mm256_add_epi32(sum[i][v], qni_pairs_load(s->sums_of[v / 2] + at));
        if (s->rest[0] != NULL)
            sum[i][v] = _mm256_add_epi32(
                sum[i][v], _mm256_cvtepi16_epi32(_mm_loadu_si128(
                               (const __m128i *)(const void *)(s->rest[v / 2] + at))));
    }
    if (s->w[0].is_joined)
        qni_pairs_add(room->x + row * DEPTH, w, chunks, mr, panels, true, NULL, sum);
    else
        qni_pairs_add(room->x + row * DEPTH, w, chunks, mr, panels, false, NULL, sum);
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int v = 0; v < 2 * panels; v++)
        qni_pairs_store(s->sums_of[v / 2] + (row + i) * QNI_PANEL + v % 2 * 8, sum[i][v]);
}

/* Rows [row, end) of a piece. */
QNI_TEMPLATE void add_tiles(const struct room *room, const struct some *s, const struct piece *p,
                            int64_t row, int64_t end, const int panels)
{
    const __m256i middle = _mm256_set1_epi32(room->least - 128);
    const int64_t chunks = (p->n + 7) / 8;
    struct begin begin;
    QNI_UNROLL
    for (int v = 0; v < 2 * panels; v++) {
        const __m256i less =
            _mm256_mullo_epi32(middle, qni_pairs_load(s->w[v / 2].sums + v % 2 * 8));
        begin.v[v] = _mm256_add_epi32(less, qni_pairs_load(s->middle[v / 2] + v % 2 * 8));
    }
    for (; panels == 1 && row + MR <= end; row += MR)
        tile_rows(room, s, &begin, row, chunks, MR, panels);
    for (; row + 2 <= end; row += 2)
        tile_rows(room, s, &begin, row, chunks, 2, panels);
    if (row < end)
        tile_rows(room, s, &begin, row, chunks, 1, panels);
}

static const uint8_t *turned_x(struct room *room, const struct piece *p)
{
    if (!room->is_turned)
        qni_pairs_turn(room->x, p->rows, (p->n + 15) / 16 * 16, room->turned);
    room->is_turned = true;
    return room->turned;
}

/* Words of all rows to sums, which they are the first of or not. */
static void add_words(const int16_t *words, int64_t rows, bool has_sums, int32_t *sums)
{
    for (int64_t i = 0; i < rows * QNI_PANEL; i += 8) {
        const __m256i v =
            _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)(words + i)));
        qni_pairs_store(sums + i, has_sums ? _mm256_add_epi32(v, qni_pairs_load(sums + i)) : v);
    }
}

/* Are so few groups left that each goes to its sums on its own? A round is the work of all 16
 * outputs. Panel i of some. */
static bool are_extra(const int32_t *at, int i, struct some *s)
{
    const struct qni_pairs_ready *const w = &s->w[i];
    const int before = s->n_extra;
    for (int j = 0; j < QNI_PANEL; j++)
        for (int32_t g = at[j]; g != w->first[j + 1]; g += w->list[g].group & QNI_PAIRS_GROUP) {
            if (s->n_extra - before == EXTRAS) {
                s->n_extra = before;
                return false;
            }
            s->extra[s->n_extra++] = (struct extra){w->list + g, s->sums_of[i] + j};
        }
    return true;
}

/* Lists of a panel, a group of each at a time: the last words are what tiles begin with. */
static void begin_with_lists(struct room *room, const struct piece *p, int i, struct some *s)
{
    const struct qni_pairs_ready *const w = &s->w[i];
    int32_t at[QNI_PANEL];
    memcpy(at, w->first, sizeof at);
    memset(s->middle[i], 0, sizeof s->middle[i]);
    s->rest[i] = NULL;
    s->has_sums[i] = p->from != 0;
    while (!are_extra(at, i, s)) {
        if (s->rest[i] != NULL) {
            add_words(s->rest[i], p->rows, s->has_sums[i], s->sums_of[i]);
            s->has_sums[i] = true;
        }
        s->rest[i] = room->rest + i * ROWS * QNI_PANEL;
        qni_pairs_round(turned_x(room, p), w, at, p->rows, s->rest[i], s->middle[i]);
    }
}

/* Rows [row, end), of which the first is a multiple of 32. */
static void add_extra(const uint8_t *turned, const struct extra *e, int64_t row, int64_t end)
{
    enum { SOME = 32 };
    const int32_t middle = e->group->group & ~QNI_PAIRS_GROUP;
    for (; row < end; row += SOME) {
        const int64_t n = end - row < SOME ? end - row : SOME;
        int32_t *const sums = e->sums + row * QNI_PANEL;
        __m256i part[2];
        int16_t words[SOME];
        qni_pairs_group(turned + row, e->group, 1, part);
        qni_pairs_store(words, _mm256_permute2x128_si256(part[0], part[1], 0x20));
        qni_pairs_store(words + 16, _mm256_permute2x128_si256(part[0], part[1], 0x31));
        for (int64_t r = 0; r < n; r++)
            sums[r * QNI_PANEL] += words[r] + middle;
    }
}

/* Two panels share what is read of x, if they are of one kind. */
static void add_rows(const struct room *room, const struct some *s, const struct piece *p,
                     int64_t row, int64_t end, int n)
{
    if (n == 2 && s->w[0].is_joined == s->w[1].is_joined && s->has_sums[0] == s->has_sums[1] &&
        (s->rest[0] == NULL) == (s->rest[1] == NULL)) {
        add_tiles(room, s, p, row, end, 2);
        return;
    }
    add_tiles(room, s, p, row, end, 1);
    if (n == 2) {
        struct some second = {.w = {s->w[1]},
                              .sums_of = {s->sums_of[1]},
                              .has_sums = {s->has_sums[1]},
                              .rest = {s->rest[1]}};
        memcpy(second.middle, s->middle[1], sizeof s->middle[1]);
        add_tiles(room, &second, p, row, end, 1);
    }
}

/* ---- signs ----------------------------------------------------------------------------------- */

QNI_TEMPLATE void signed_rows(const uint8_t *x, const struct qni_signs_w *w, int64_t chunks,
                              bool has_sums, const int mr, int32_t *to)
{
    __m256i sum[QNI_SIGNS_ROWS][2];
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int v = 0; v < 2; v++) {
        sum[i][v] = qni_pairs_load(w->below + 8 * v);
        if (has_sums)
            sum[i][v] = _mm256_add_epi32(sum[i][v], qni_pairs_load(to + i * QNI_PANEL + 8 * v));
    }
    qni_signs_rows(x, w->quads, chunks, mr, sum);
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int v = 0; v < 2; v++)
        qni_pairs_store(to + i * QNI_PANEL + 8 * v, sum[i][v]);
}

#define ROWS_OF(mr)                                                                                \
    case mr:                                                                                       \
        signed_rows(x, w, chunks, has_sums, mr, to);                                               \
        break;
/* Rows [row, end) of a panel. */
static void add_signed(const struct room *room, const struct qni_signs_w *w, const struct piece *p,
                       int64_t row, int64_t end, int32_t *sums)
{
    const int64_t chunks = (p->n + 7) / 8;
    const bool has_sums = p->from != 0;
    int64_t blocks = (end - row + QNI_SIGNS_ROWS - 1) / QNI_SIGNS_ROWS;
    for (int64_t n; row < end; row += n, blocks--) {
        const uint8_t *const x = room->x + row * DEPTH;
        int32_t *const to = sums + row * QNI_PANEL;
        n = (end - row + blocks - 1) / blocks;
        switch (n) {
            /* clang-format off */
            ROWS_OF(5) ROWS_OF(4) ROWS_OF(3) ROWS_OF(2)
        default:
            signed_rows(x, w, chunks, has_sums, 1, to);
            /* clang-format on */
        }
    }
}
#undef ROWS_OF

/* ---- panels ---------------------------------------------------------------------------------- */

/* Outputs of the last piece are finished while their sums are in the first cache, and y is asked
 * for before. */
static void finish_rows(const struct qni_direct_tile *t, const struct piece *p, int64_t row,
                        int64_t end, int64_t panel, const struct some *s, int n)
{
    const struct piece some = {p->row + row, end - row, 0, 0};
    const int32_t *const sums[2] = {s->sums_of[0] + row * QNI_PANEL,
                                    s->sums_of[n - 1] + row * QNI_PANEL};
    if (n == 2)
        finish_panels(t, &some, panel, sums);
    else
        finish_panel(t, &some, panel, sums[0]);
}

static void ask_for_y(const struct qni_direct_tile *t, const struct piece *p, int64_t row,
                      int64_t end, int64_t panel)
{
    for (; t->kind == QNI_DIRECT_BYTES && row < end; row++)
        _mm_prefetch((const char *)(t->y[p->row + row] + t->column + panel * QNI_PANEL),
                     _MM_HINT_T0);
}

static void add_panels(const struct qni_direct_tile *t, struct room *room, const struct piece *p,
                       int64_t panel, struct some *s, int n)
{
    enum { SOME = 64 };
    const bool is_last = p->from + p->n == t->n_taps * t->tap_bytes;
    s->n_extra = 0;
    for (int i = 0; s->signs == NULL && i < n; i++)
        begin_with_lists(room, p, i, s);
    for (int64_t row = 0, end; row < p->rows; row = end) {
        end = p->rows - row < SOME ? p->rows : row + SOME;
        if (is_last)
            ask_for_y(t, p, row, end, panel);
        for (int i = 0; s->signs != NULL && i < n; i++)
            add_signed(room, &s->signs[i], p, row, end, s->sums_of[i]);
        if (s->signs == NULL)
            add_rows(room, s, p, row, end, n);
        for (int i = 0; i < s->n_extra; i++)
            add_extra(turned_x(room, p), &s->extra[i], row, end);
        if (is_last)
            finish_rows(t, p, row, end, panel, s, n);
    }
}

/* Weights of a panel, zeros up to a whole chunk, as x of at most top can meet them. */
QNI_TEMPLATE void make_w(const struct qni_direct_tile *t, int64_t panel, const struct piece *p,
                         int32_t top, struct qni_pairs_w *w, const int kind)
{
    const uint8_t *const b = t->b + (size_t)panel * t->b_panel;
    const int64_t chunks = (p->n + 7) / 8;
    const bool is_kept = t->kept != NULL;
    if (kind == NIBBLES)
        qni_pairs_of_nibbles(b + p->from * 8, (p->n + 31) / 32, w->quads);
    if (kind == NIBBLES)
        qni_pairs_part_of(w, w->quads, 0, chunks, p->rows, top, is_kept, 0);
    else /* two panels are made in turn */
        qni_pairs_part_of(w, (const int8_t *)b + p->from * QNI_PANEL, 0x80, chunks, p->rows, top,
                          is_kept, 2 * (ptrdiff_t)t->b_panel);
}

QNI_TEMPLATE void make_signs(const struct qni_direct_tile *t, int64_t panel, const struct piece *p,
                             struct room *room, const int kind)
{
    const uint8_t *const b = t->b + (size_t)panel * t->b_panel;
    const int64_t chunks = (p->n + 7) / 8;
    struct qni_signs_w *const signs = &room->signs[panel % 2];
    if (kind == NIBBLES) {
        qni_pairs_of_nibbles(b + p->from * 8, (p->n + 31) / 32, room->w[0].quads);
        qni_signs_of(signs, room->w[0].quads, 0, chunks, 0);
    } else {
        qni_signs_of(signs, (const int8_t *)b + p->from * QNI_PANEL, 0x80, chunks,
                     2 * (ptrdiff_t)t->b_panel);
    }
}

/* ---- weights that are kept ------------------------------------------------------------------- */

/* Of a piece, behind QNI_DIRECT_KEPT bytes that say what of x each piece is for (0: it is not
 * there). Then its weights, and its list. */
struct facts {
    int32_t sums[QNI_PANEL], first[QNI_PANEL + 1];
    int32_t is_joined;
};
_Static_assert(sizeof(struct facts) <= 192, "facts of a piece");
_Static_assert(QNI_DIRECT_PIECES * sizeof(int32_t) <= QNI_DIRECT_KEPT, "pieces of a panel");

static struct qni_pairs_ready kept_at(const uint8_t *at, int64_t each)
{
    const struct facts *const f = (const struct facts *)(const void *)at;
    const uint8_t *const quads = at + 192, *const list = quads + each * QNI_PANEL;
    return (struct qni_pairs_ready){(const int8_t *)quads, f->sums, f->first,
                                    (const struct qni_pairs_two *)(const void *)list,
                                    f->is_joined != 0};
}

/* If its list is not too long. */
static bool keep(const struct qni_pairs_w *w, int64_t chunks, uint8_t *at, int64_t each)
{
    struct facts *const f = (struct facts *)(void *)at;
    const size_t list = (size_t)w->first[QNI_PANEL] * sizeof *w->list;
    if (list > (size_t)each * QNI_PANEL)
        return false;
    memcpy(f->sums, w->sums, sizeof w->sums);
    memcpy(f->first, w->first, sizeof w->first);
    f->is_joined = w->is_joined;
    memcpy(at + 192, w->quads, (size_t)chunks * 8 * QNI_PANEL);
    memcpy(at + 192 + each * QNI_PANEL, w->list, list);
    return true;
}

/* Weights of a piece of a panel as x can meet them, or x of one of two kinds. */
QNI_TEMPLATE struct qni_pairs_ready ready_w(const struct qni_direct_tile *t, int64_t panel,
                                            const struct piece *p, int64_t each, struct room *room,
                                            const int kind)
{
    struct qni_pairs_w *const w = &room->w[panel % 2];
    if (t->kept == NULL) {
        make_w(t, panel, p, room->top, w, kind);
        return qni_pairs_ready_of(w);
    }
    const int32_t top = room->top > HALF ? ALL : HALF;
    uint8_t *const kept = t->kept + (size_t)panel * t->kept_panel;
    int32_t *const is_for = (int32_t *)(void *)kept + p->from / each;
    uint8_t *const at =
        kept + QNI_DIRECT_KEPT + (size_t)(p->from / each) * qni_direct_kept_piece(each);
    if (*is_for == top)
        return kept_at(at, each);
    make_w(t, panel, p, top, w, kind);
    *is_for = keep(w, (p->n + 7) / 8, at, each) ? top : 0;
    return qni_pairs_ready_of(w);
}

/* ---- fours ----------------------------------------------------------------------------------- */

/* Bytes from output to output of a line, or 0 where taps are no such sums. */
static int64_t fours_step(const struct qni_direct_tile *t)
{
    const int64_t step = t->rows < 4 ? 0 : t->at[1] - t->at[0], k = t->n_taps * t->tap_bytes;
    int64_t run = 1;
    if ((step != 6 && step != 8) || t->tap_bytes <= 3 * step || t->tap_bytes > 4 * step ||
        t->tap_bytes < 2 * step + 8 || k > QNI_FOURS_MOST)
        return 0;
    for (int64_t r = 1; r < t->rows; r++) {
        const bool follows = t->at[r] - t->at[r - 1] == step;
        if (!follows && run < 4)
            return 0;
        run = follows ? run + 1 : 1;
    }
    return run < 4 ? 0 : step;
}

/* Words of a point: of all taps, and up to 2 that no weight meets. */
static int64_t fours_words(const struct qni_direct_tile *t, int64_t step)
{
    return (t->n_taps * step + 8 - step + 3) / 4 * 4;
}

/* 8 bytes of each of two lines. */
QNI_TEMPLATE __m256i bytes_of_two(const uint8_t *a, const uint8_t *b, const __m128i flip)
{
    const __m128i two = _mm_unpacklo_epi64(_mm_loadl_epi64((const __m128i *)(const void *)a),
                                           _mm_loadl_epi64((const __m128i *)(const void *)b));
    return _mm256_cvtepi8_epi16(_mm_xor_si128(two, flip));
}

/* Four outputs from row a on, and from row b on, to words of every point, which are `point` apart.
 * The last bytes are read where a tap ends. */
static void fours_of_rows(const struct qni_direct_tile *t, int64_t step, int64_t a, int64_t b,
                          int64_t point, int16_t *to, int64_t second)
{
    const __m128i flip = _mm_set1_epi8((char)t->flip);
    const __m128i beyond = _mm_cvtsi32_si128((int)(8 * (4 * step - t->tap_bytes + 8 - step)));
    for (int64_t tap = 0; tap < t->n_taps; tap++, to += step) {
        const uint8_t *const x[2] = {(const uint8_t *)t->a + t->at[a] + t->taps[tap],
                                     (const uint8_t *)t->a + t->at[b] + t->taps[tap]};
        const int64_t last = 3 * step + t->tap_bytes - 8;
        __m256i z[QNI_FOURS_POINTS], of_points[QNI_FOURS_POINTS];
        QNI_UNROLL
        for (int i = 0; i < QNI_FOURS_POINTS - 1; i++)
            z[i] = bytes_of_two(x[0] + i * step, x[1] + i * step, flip);
        __m128i end[2];
        QNI_UNROLL
        for (int i = 0; i < 2; i++)
            end[i] = _mm_srl_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(x[i] + last)),
                                   beyond);
        z[QNI_FOURS_POINTS - 1] =
            _mm256_cvtepi8_epi16(_mm_xor_si128(_mm_unpacklo_epi64(end[0], end[1]), flip));
        qni_fours_of_x(z, of_points);
        QNI_UNROLL
        for (int i = 0; i < QNI_FOURS_POINTS; i++) {
            int16_t *const at = to + i * point;
            _mm_storeu_si128((__m128i *)(void *)at, _mm256_castsi256_si128(of_points[i]));
            _mm_storeu_si128((__m128i *)(void *)(at + second),
                             _mm256_extracti128_si256(of_points[i], 1));
        }
    }
}

/* Weights of 16 outputs at a position, of quads. */
QNI_TEMPLATE __m256i weights_at(const int8_t *quads, const __m256i flip, int64_t position)
{
    const int8_t *const quad = quads + position / 4 * QNI_PAIRS_QUAD;
    const __m128i up = _mm_cvtsi32_si128((int)(24 - position % 4 * 8));
    __m256i half[2];
    QNI_UNROLL
    for (int h = 0; h < 2; h++)
        half[h] = _mm256_srai_epi32(
            _mm256_sll_epi32(_mm256_xor_si256(qni_pairs_load(quad + 32 * h), flip), up), 24);
    return _mm256_permute4x64_epi64(_mm256_packs_epi32(half[0], half[1]), 0xd8);
}

/* A panel: of each point pairs of words of 16 outputs. */
static void fours_of_weights(const struct qni_direct_tile *t, int64_t step, const int8_t *quads,
                             uint8_t flip, int16_t *to)
{
    const __m256i flips = _mm256_set1_epi8((char)flip);
    const int64_t words = fours_words(t, step), point = words * QNI_PANEL;
    for (int64_t i = 0; i < QNI_FOURS_POINTS * point; i += 16)
        qni_pairs_store(to + i, _mm256_setzero_si256());
    for (int64_t i = 0; i < t->n_taps * step; i += 2) {
        __m256i w[2][QNI_FOURS_POINTS];
        for (int l = 0; l < 2; l++) {
            __m256i g[4];
            for (int j = 0; j < 4; j++) {
                const int64_t byte = j * step + i % step + l;
                g[j] = _mm256_setzero_si256();
                if (byte < t->tap_bytes)
                    g[j] = weights_at(quads, flips, i / step * t->tap_bytes + byte);
            }
            qni_fours_of_w(g, w[l]);
        }
        for (int p = 0; p < QNI_FOURS_POINTS; p++) {
            int16_t *const at = to + p * point + i * QNI_PANEL;
            const __m256i low = _mm256_unpacklo_epi16(w[0][p], w[1][p]);
            const __m256i high = _mm256_unpackhi_epi16(w[0][p], w[1][p]);
            qni_pairs_store(at, _mm256_permute2x128_si256(low, high, 0x20));
            qni_pairs_store(at + QNI_PANEL, _mm256_permute2x128_si256(low, high, 0x31));
        }
    }
}

/* A point of QNI_DIRECT_SQUARES_MR fours. */
static void multiply_fours(const int16_t *x, int64_t words, const int16_t *w, int32_t *to)
{
    qni_squares_multiply(x, (uintptr_t)words * sizeof(int16_t), w, words, to,
                         QNI_DIRECT_SQUARES_MR);
}

/* Fours that are multiplied together: the first row of each. */
struct fours {
    int64_t row[FOURS], n;
    int64_t step, words;
};

/* n fours and a panel: sums of their rows, of which the first is row[0]. */
static void add_fours(const struct fours *f, const int16_t *x, const int16_t *w, int32_t *points,
                      int32_t *sums)
{
    enum { MANY = QNI_DIRECT_SQUARES_MR };
    for (int64_t p = 0; p < QNI_FOURS_POINTS; p++)
        for (int64_t i = 0; i < f->n; i += MANY)
            multiply_fours(x + (p * FOURS + i) * f->words, f->words, w + p * f->words * QNI_PANEL,
                           points + (p * FOURS + i) * QNI_PANEL);
    for (int64_t i = 0; i < 2 * f->n; i++) {
        const int32_t *const from = points + 8 * i;
        int32_t *const to = sums + (f->row[i / 2] - f->row[0]) * QNI_PANEL + i % 2 * 8;
        __m256i m[QNI_FOURS_POINTS], y[4];
        QNI_UNROLL
        for (int p = 0; p < QNI_FOURS_POINTS; p++)
            m[p] = qni_pairs_load(from + p * FOURS * QNI_PANEL);
        qni_fours_of_sums(m, y);
        QNI_UNROLL
        for (int j = 0; j < 4; j++)
            qni_pairs_store(to + j * QNI_PANEL, y[j]);
    }
}

/* Fours from a row on: the last of a line may begin with rows of the one before. Says which row
 * comes next. */
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

/* Panels [first, end) of all rows; weights are there. */
static void multiply_line(const struct qni_direct_tile *t, struct room *room, struct fours *f,
                          int64_t first, int64_t end)
{
    enum { SUMS = 4 * FOURS * QNI_PANEL };
    const int64_t point = FOURS * f->words;
    int16_t *const x = (int16_t *)(void *)room->x;
    for (int64_t row = 0, next; row < t->rows; row = next) {
        next = next_fours(t, row, f);
        for (int64_t i = 0; i < f->n; i += 2)
            fours_of_rows(t, f->step, f->row[i], f->row[i + 1 < f->n ? i + 1 : i], point,
                          x + i * f->words, i + 1 < f->n ? f->words : 0);
        const struct piece p = {f->row[0], next - f->row[0], 0, 0};
        for (int64_t panel = first; panel < end; panel += 2) {
            struct some s = {.sums_of = {room->sums, room->sums + SUMS}};
            const int n = end - panel < 2 ? 1 : 2;
            ask_for_y(t, &p, 0, p.rows, panel);
            for (int i = 0; i < n; i++)
                add_fours(f, x,
                          room->fours +
                              (panel - first + i) * QNI_FOURS_POINTS * f->words * QNI_PANEL,
                          room->sums + 2 * SUMS, s.sums_of[i]);
            finish_rows(t, &p, 0, p.rows, panel, &s, n);
        }
    }
}

QNI_TEMPLATE void multiply_lines(const struct qni_direct_tile *t, int64_t step, struct room *room,
                                 const int kind)
{
    struct fours f = {.step = step, .words = fours_words(t, step)};
    const int64_t each = QNI_FOURS_POINTS * f.words * QNI_PANEL, most = FOURS_W / each / 2 * 2;
    for (int64_t first = 0; first < t->n_panels; first += most) {
        const int64_t end = first + most < t->n_panels ? first + most : t->n_panels;
        for (int64_t panel = first; panel < end; panel++) {
            const uint8_t *const b = t->b + (size_t)panel * t->b_panel;
            int16_t *const to = room->fours + (panel - first) * each;
            if (kind == NIBBLES) {
                qni_pairs_of_nibbles(b, (t->n_taps * t->tap_bytes + 31) / 32, room->w[0].quads);
                fours_of_weights(t, step, room->w[0].quads, 0, to);
            } else {
                fours_of_weights(t, step, (const int8_t *)b, 0x80, to);
            }
        }
        multiply_line(t, room, &f, first, end);
    }
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* Lists of long sums are short. Where they are kept, or few outputs meet many rows, signs take 0.95
 * to 1.0 of their time on a calm core, and 1.03 to 1.1 on one that shares its instructions;
 * elsewhere 0.78 to 1.0 on both (measured). */
static bool take_lists(const struct qni_direct_tile *t, int64_t k, int64_t rows)
{
    enum { LONG = 192, MANY_ROWS = 96, FEW_PANELS = 16 };
    return k >= LONG && (t->kept != NULL || (rows >= MANY_ROWS && t->n_panels <= FEW_PANELS));
}

QNI_TEMPLATE void multiply_rows(const struct qni_direct_tile *t, int64_t row, int64_t rows,
                                struct room *room, const int kind)
{
    const int64_t k = t->n_taps * t->tap_bytes;
    const int64_t each = qni_direct_piece(k);
    const bool is_long = each < k;
    /* Of few rows those of more panels. */
    const int64_t apart = (rows + 7) / 8 * 8 * QNI_PANEL;
    const int64_t most = is_long ? PANELS * ROWS * QNI_PANEL / apart / 2 * 2 : t->n_panels;
    for (int64_t first = 0; first < t->n_panels; first += most) {
        const int64_t end = first + most < t->n_panels ? first + most : t->n_panels;
        struct piece p = {row, rows, 0, 0};
        for (; p.from < k; p.from += each) {
            p.n = k - p.from < each ? k - p.from : each;
            copy_x(t, &p, room);
            const bool is_signed = room->top == ALL && !take_lists(t, k, rows);
            for (int64_t panel = first, n; panel < end; panel += n) {
                struct some s;
                n = end - panel < 2 ? 1 : 2;
                s.signs = is_signed ? &room->signs[panel % 2] : NULL;
                for (int i = 0; i < n; i++) {
                    s.sums_of[i] = room->sums + (is_long ? panel - first + i : i) * apart;
                    if (is_signed)
                        make_signs(t, panel + i, &p, room, kind);
                    else
                        s.w[i] = ready_w(t, panel + i, &p, each, room, kind);
                }
                add_panels(t, room, &p, panel, &s, (int)n);
            }
        }
    }
}

QNI_TEMPLATE void tile(const struct qni_direct_tile *t, const int kind)
{
    const int64_t each = qni_direct_even_rows(t->rows, ROWS, MR), step = fours_step(t);
    if (step != 0) {
        multiply_lines(t, step, t->scratch, kind);
        return;
    }
    for (int64_t row = 0; row < t->rows; row += each)
        multiply_rows(t, row, t->rows - row < each ? t->rows - row : each, t->scratch, kind);
}

void qni_conv_q8_q8n16_mr4_avx2(const struct qni_direct_tile *t)
{
    tile(t, BYTES);
}
void qni_conv_q8_q4n16_mr4_avx2(const struct qni_direct_tile *t)
{
    tile(t, NIBBLES);
}
