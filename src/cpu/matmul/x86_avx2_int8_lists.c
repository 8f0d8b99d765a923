/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x bytes with AVX2, some rows and more of one segment. Contract and operand
 * layouts: kernel.h; how bytes are multiplied, and what lists are: ../simd/pairs.h.
 *
 * What vpmaddubsw can hold depends on how far x spans. Rows of int8-row span all bytes, but few of
 * their columns do: most scales are those of a few large x. So all rows of a call are looked at
 * first. Each pair of columns loses its least code, and what weights may be there follows from what
 * is left:
 *
 *     x = less[pair] + u      sum x w = sum less w (once an output) + sum u w
 *     most[pair] = 32767 / max u
 *
 * Lanes of four positions that have more are made less, and their rest is a list, met by columns of
 * turned x. Of some hundred rows one lane in a hundred is; of all bytes one in ten, with a bell of
 * weights whose largest is four sigma.
 *
 *     for each piece of k:  x of all rows, as u --> for two panels: weights --> lists --> tiles
 *
 * Sums wait in c between pieces. Where weights and x are such that lists would take longer than the
 * widening kernel's products do, that one serves: counted in a sample.
 *
 * Bound: as pairs.h has it, three multiplications for 64 products, two a cycle. */
#include "../simd/avx2_q8.h"
#include "../simd/pairs.h"

enum { ROWS = QNI_PAIRS_TURNED, DEPTH = QNI_PAIRS_DEPTH, MR = 2 };
enum { PAIRS = DEPTH / 2, CHUNK = 8, CHUNK_BYTES = CHUNK * QNI_PANEL };

/* Of columns: what all rows lose, and what lanes of two and of four weights may be. Lanes of four
 * are the pairs 0 and 2, 1 and 3 of a chunk. */
struct span {
    int16_t less[PAIRS], two[PAIRS], four[PAIRS / 2];
};

struct room {
    _Alignas(64) uint8_t x[ROWS * DEPTH];
    uint8_t turned[DEPTH * ROWS + 64];
    int16_t rest[2][ROWS * QNI_PANEL];
    struct qni_pairs_w w[2];
    struct span span;
    bool is_turned;
};
_Static_assert(sizeof(struct room) <= 393216, "the scratch of the row in kernels.inc");

/* Columns [from, from + n) of all rows of a call. */
struct piece {
    int64_t from, n;
    bool is_joined;
};

/* ---- x --------------------------------------------------------------------------------------- */

QNI_TEMPLATE void look(const int8_t *a, size_t lda, int64_t rows, const int n, __m256i *least,
                       __m256i *most)
{
    QNI_UNROLL
    for (int i = 0; i < n; i++)
        least[i] = most[i] = qni_pairs_load(a + 32 * i);
    for (int64_t r = 1; r < rows; r++) {
        a += lda;
        QNI_UNROLL
        for (int i = 0; i < n; i++) {
            const __m256i v = qni_pairs_load(a + 32 * i);
            least[i] = _mm256_min_epi8(least[i], v);
            most[i] = _mm256_max_epi8(most[i], v);
        }
    }
}

/* Bytes of each pair, the other way round. */
QNI_TEMPLATE __m256i swapped(const __m256i v)
{
    return _mm256_or_si256(_mm256_slli_epi16(v, 8), _mm256_srli_epi16(v, 8));
}

/* 32767 / top, rounded down: exact in f32, whose error is less than any fraction of top leaves. */
QNI_TEMPLATE __m256i most_of(const __m256i top)
{
    enum { ENOUGH = 1024 };
    const __m256i at_least = _mm256_max_epi16(top, _mm256_set1_epi16(1));
    const __m256 all = _mm256_set1_ps(32767.0f);
    const __m256i low = _mm256_cvtepu16_epi32(_mm256_castsi256_si128(at_least));
    const __m256i high = _mm256_cvtepu16_epi32(_mm256_extracti128_si256(at_least, 1));
    const __m256i both =
        _mm256_packus_epi32(_mm256_cvttps_epi32(_mm256_div_ps(all, _mm256_cvtepi32_ps(low))),
                            _mm256_cvttps_epi32(_mm256_div_ps(all, _mm256_cvtepi32_ps(high))));
    return _mm256_min_epi16(_mm256_permute4x64_epi64(both, 0xd8), _mm256_set1_epi16(ENOUGH));
}

/* Rows of 32 * n columns to u, and what they span. */
QNI_TEMPLATE void lift(const int8_t *a, size_t lda, int64_t rows, const int n, uint8_t *to,
                       struct span *span, int64_t at)
{
    __m256i least[4], most[4];
    look(a, lda, rows, n, least, most);
    QNI_UNROLL
    for (int i = 0; i < n; i++) {
        least[i] = _mm256_min_epi8(least[i], swapped(least[i]));
        most[i] = _mm256_max_epi8(most[i], swapped(most[i]));
        const __m256i top = _mm256_srli_epi16(_mm256_sub_epi8(most[i], least[i]), 8);
        qni_pairs_store(span->less + at / 2 + 16 * i, _mm256_srai_epi16(least[i], 8));
        qni_pairs_store(span->two + at / 2 + 16 * i, most_of(top));
    }
    for (int64_t r = 0; r < rows; r++, a += lda, to += DEPTH)
        QNI_UNROLL
    for (int i = 0; i < n; i++)
        qni_pairs_store(to + 32 * i, _mm256_sub_epi8(qni_pairs_load(a + 32 * i), least[i]));
}

static void lift_x(const struct qni_matmul_tile *t, int64_t row, int64_t rows,
                   const struct piece *p, struct room *room)
{
    const int8_t *const a = (const int8_t *)t->a + (size_t)row * t->lda + p->from;
    struct span *const span = &room->span;
    int64_t at = 0;
    for (; at + 128 <= p->n; at += 128)
        lift(a + at, t->lda, rows, 4, room->x + at, span, at);
    for (; at < p->n; at += 32)
        lift(a + at, t->lda, rows, 1, room->x + at, span, at);
    for (int64_t i = 0; i < p->n / 4; i++) {
        const int16_t *const two = span->two + i / 2 * 4 + i % 2;
        span->four[i] = two[0] < two[2] ? two[0] : two[2];
    }
    room->is_turned = false;
}

/* ---- weights --------------------------------------------------------------------------------- */

QNI_TEMPLATE __m256i two_words(const int16_t *from)
{
    int32_t two;
    memcpy(&two, from, sizeof two);
    return _mm256_set1_epi32(two);
}

/* 8 positions of 8 outputs: values, what lanes add up to, and which of two and four have too much.
 */
struct lanes {
    __m256i v[2], all[2], over_two[2], over_four;
};
QNI_TEMPLATE struct lanes lanes_of(const uint8_t *codes, const struct span *span, int64_t chunk)
{
    const __m256i sign = _mm256_set1_epi8((char)0x80), ones = _mm256_set1_epi8(1);
    struct lanes l;
    __m256i above[2], below[2];
    QNI_UNROLL
    for (int q = 0; q < 2; q++) {
        const __m256i v = _mm256_xor_si256(qni_pairs_load(codes + q * QNI_PAIRS_QUAD), sign);
        const __m256i most = two_words(span->two + 4 * chunk + 2 * q);
        l.v[q] = v;
        l.all[q] = _mm256_maddubs_epi16(ones, v);
        above[q] = _mm256_maddubs_epi16(_mm256_max_epi8(v, _mm256_setzero_si256()), ones);
        below[q] = _mm256_sub_epi16(above[q], l.all[q]);
        l.over_two[q] = _mm256_cmpgt_epi16(_mm256_max_epi16(above[q], below[q]), most);
    }
    const __m256i up = _mm256_add_epi16(above[0], above[1]);
    const __m256i down = _mm256_add_epi16(below[0], below[1]);
    l.over_four = _mm256_cmpgt_epi16(_mm256_max_epi16(up, down), two_words(span->four + 2 * chunk));
    return l;
}

QNI_TEMPLATE void lessen_four(struct qni_pairs_w *w, const struct span *span, int64_t chunk,
                              const int h)
{
    int8_t *const quad = w->quads + chunk * CHUNK_BYTES + h * 32;
    __m256i v[4];
    qni_pairs_widen(quad, v);
    qni_pairs_widen(quad + QNI_PAIRS_QUAD, v + 2);
    qni_pairs_lessen(v, 4, two_words(span->four + 2 * chunk), chunk * CHUNK, w->rest + h * 8);
    qni_pairs_narrow(v, quad);
    qni_pairs_narrow(v + 2, quad + QNI_PAIRS_QUAD);
}

/* A lane of two that has too much: two weights of one sign, of which the first takes all of it. */
QNI_TEMPLATE void lessen_two(struct qni_pairs_w *w, const struct span *span, int64_t chunk,
                             const int q, const int h, __m256i all)
{
    int8_t *const quad = w->quads + chunk * CHUNK_BYTES + q * QNI_PAIRS_QUAD + h * 32;
    const __m256i most = two_words(span->two + 4 * chunk + 2 * q);
    const __m256i least = _mm256_sub_epi16(_mm256_setzero_si256(), most);
    const __m256i rest =
        _mm256_sub_epi16(all, _mm256_min_epi16(_mm256_max_epi16(all, least), most));
    const __m256i none = _mm256_cmpeq_epi16(rest, _mm256_setzero_si256());
    int16_t taken[16];
    qni_pairs_store(quad, _mm256_sub_epi8(qni_pairs_load(quad),
                                          _mm256_and_si256(rest, _mm256_set1_epi16(0xff))));
    qni_pairs_store(taken, rest);
    for (uint32_t bits = ~(uint32_t)_mm256_movemask_epi8(none) & 0x55555555u; bits != 0;
         bits &= bits - 1) {
        const int lane = __builtin_ctz(bits) / 2;
        struct qni_pairs_rest *const r = &w->rest[h * 8 + lane / 2];
        r->at[r->n] = (int16_t)(chunk * CHUNK + q * 4 + lane % 2 * 2);
        r->w[r->n++] = taken[lane];
    }
}

/* Weights of a piece as u can meet them, what they have too much, and what takes less from x. What
 * is asked for is so far ahead. */
QNI_TEMPLATE void make(const uint8_t *codes, const struct piece *p, const struct span *span,
                       ptrdiff_t ahead, const bool is_joined, struct qni_pairs_w *w)
{
    __m256i less[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    w->is_joined = is_joined;
    w->most = 128; /* two of a list meet any u */
    for (int j = 0; j < QNI_PAIRS_OUTPUTS; j++)
        w->rest[j].n = 0;
    for (int64_t i = 0; i < p->n / CHUNK; i++, codes += CHUNK_BYTES) {
        const int16_t *const by = span->less + 4 * i;
        if (ahead != 0) {
            _mm_prefetch((const char *)codes + ahead, _MM_HINT_T1);
            _mm_prefetch((const char *)codes + ahead + 64, _MM_HINT_T1);
        }
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            int8_t *const quads = w->quads + i * CHUNK_BYTES + h * 32;
            const struct lanes l = lanes_of(codes + h * 32, span, i);
            QNI_UNROLL
            for (int q = 0; q < 2; q++) {
                qni_pairs_store(quads + q * QNI_PAIRS_QUAD, l.v[q]);
                less[h] =
                    _mm256_add_epi32(less[h], _mm256_madd_epi16(l.all[q], two_words(by + 2 * q)));
                if (!is_joined && !_mm256_testz_si256(l.over_two[q], l.over_two[q]))
                    lessen_two(w, span, i, q, h, l.all[q]);
            }
            if (is_joined && !_mm256_testz_si256(l.over_four, l.over_four))
                lessen_four(w, span, i, h);
        }
    }
    qni_pairs_store(w->sums, less[0]);
    qni_pairs_store(w->sums + 8, less[1]);
}

/* ---- which products -------------------------------------------------------------------------- */

enum { FOUR, TWO, WORDS };

static const uint8_t *codes_at(const struct qni_matmul_tile *t, int64_t panel, int64_t position)
{
    return t->codes + (size_t)panel * t->codes_stride + position * QNI_PANEL;
}

/* A few chunks of every panel. Costs are instructions (counted, with what lists took) of a chunk of
 * 16 outputs, in hundredths: of a row, of a row and a lane that has too much, and once. */
static int choose(const struct qni_matmul_tile *t, int64_t rows, const struct piece *p,
                  const struct span *span)
{
    enum { SAMPLES = 4, FEW = 64 };
    enum { LOOP_FOUR = 1100, LOOP_TWO = 1300, LOOP_WORDS = 1750, REST = 25 };
    enum { MAKE = 5000, LESSEN_FOUR = 6000, LESSEN_TWO = 2000, WIDEN = 2800, WIDE_ROWS = 96 };
    const int64_t chunks = p->n / CHUNK, list_rows = (rows + 63) / 64 * 64;
    const int64_t samples = rows < FEW ? 1 : SAMPLES;
    int64_t n_four = 0, n_two = 0, n = 0;
    for (int64_t panel = 0; panel < t->n_panels; panel++)
        for (int64_t s = 0; s < samples; s++, n++) {
            const int64_t chunk = (panel * 7 + s * chunks / samples) % chunks;
            for (int h = 0; h < 2; h++) {
                const struct lanes l =
                    lanes_of(codes_at(t, panel, p->from + chunk * CHUNK) + h * 32, span, chunk);
                const __m256i two = _mm256_packs_epi16(l.over_two[0], l.over_two[1]);
                n_two += __builtin_popcount((uint32_t)_mm256_movemask_epi8(two));
                n_four += __builtin_popcount((uint32_t)_mm256_movemask_epi8(l.over_four)) / 2;
            }
        }
    const int64_t four = n * (rows * LOOP_FOUR + MAKE) + n_four * (REST * list_rows + LESSEN_FOUR);
    const int64_t two = n * (rows * LOOP_TWO + MAKE) + n_two * (REST * list_rows + LESSEN_TWO);
    const int64_t words = n * (rows * LOOP_WORDS + (rows + WIDE_ROWS - 1) / WIDE_ROWS * WIDEN);
    /* Few rows wait for codes and for lists, too, which is not counted. */
    const int64_t limit = rows < FEW ? words - words / 8 : words;
    if (limit < four && limit < two)
        return WORDS;
    return four <= two ? FOUR : TWO;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* One panel or two that meet all rows of a piece. */
struct meeting {
    const struct room *room;
    const struct piece *p;
    const uint8_t *next[2]; /* codes to ask for, or NULL: of the first panel, of the second */
    int64_t step;           /* bytes a row and a chunk */
    int32_t *c;             /* of the first row and panel */
    int64_t ldc, panels;
    const int16_t *rest[2]; /* words to add, or NULL */
    bool has_sums;          /* in c */
    __m256i begin[QNI_PAIRS_VECTORS];
};

QNI_TEMPLATE __m256i words_at(const int16_t *from)
{
    return _mm256_cvtepi16_epi32(_mm_loadu_si128((const __m128i *)(const void *)from));
}

/* What rows of a tile ask for: each so much of what all do. */
QNI_TEMPLATE struct qni_pairs_ahead ahead_of(const struct meeting *m, int64_t row, const int mr,
                                             const int panels)
{
    const int64_t bytes = m->p->n * QNI_PANEL, at = row * m->step * (m->p->n / CHUNK);
    const bool is_second = panels == 2 && at >= bytes;
    return (struct qni_pairs_ahead){m->next[is_second] + (is_second ? at - bytes : at),
                                    mr * m->step};
}

QNI_TEMPLATE void tile_rows(const struct meeting *m, int64_t row, const int mr, const int panels,
                            const bool is_joined)
{
    const struct room *const room = m->room;
    const int8_t *const w[2] = {room->w[0].quads, room->w[panels - 1].quads};
    int32_t *const c = m->c + row * m->ldc;
    __m256i sum[MR][QNI_PAIRS_VECTORS];
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        QNI_UNROLL
        for (int v = 0; v < 2 * panels; v++) {
            sum[i][v] = m->begin[v];
            if (m->rest[v / 2] != NULL)
                sum[i][v] = _mm256_add_epi32(
                    sum[i][v], words_at(m->rest[v / 2] + (row + i) * QNI_PANEL + v % 2 * 8));
        }
        for (int64_t line = 0; m->has_sums && line <= QNI_PANEL * panels; line += QNI_PANEL)
            _mm_prefetch((const char *)(c + i * m->ldc + line), _MM_HINT_T0);
    }
    if (mr == MR && m->next[0] != NULL) {
        const struct qni_pairs_ahead ahead = ahead_of(m, row, mr, panels);
        qni_pairs_add(room->x + row * DEPTH, w, m->p->n / CHUNK, mr, panels, is_joined, &ahead,
                      sum);
    } else {
        qni_pairs_add(room->x + row * DEPTH, w, m->p->n / CHUNK, mr, panels, is_joined, NULL, sum);
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int v = 0; v < 2 * panels; v++) {
        int32_t *const to = c + i * m->ldc + 8 * v;
        if (m->has_sums)
            sum[i][v] = _mm256_add_epi32(sum[i][v], load_i32(to));
        qni_pairs_store(to, sum[i][v]);
    }
}

QNI_TEMPLATE void tiles(const struct meeting *m, int64_t rows, const int panels,
                        const bool is_joined)
{
    int64_t row = 0;
    for (; row + MR <= rows; row += MR)
        tile_rows(m, row, MR, panels, is_joined);
    if (row < rows)
        tile_rows(m, row, 1, panels, is_joined);
}

/* Words of panel i to sums, of which there are some afterwards. */
static void add_words(const int16_t *words, int64_t rows, int i, struct meeting *m)
{
    for (int64_t r = 0; r < rows; r++, words += QNI_PANEL) {
        int32_t *const c = m->c + r * m->ldc;
        if (!m->has_sums)
            memset(c, 0, (size_t)m->panels * QNI_PANEL * sizeof *c);
        for (int h = 0; h < QNI_PANEL; h += 8) {
            int32_t *const to = c + i * QNI_PANEL + h;
            qni_pairs_store(to, _mm256_add_epi32(load_i32(to), words_at(words + h)));
        }
    }
    m->has_sums = true;
}

/* Lists of a panel, a group of each at a time: the last words are what tiles begin with. */
static void meet_lists(struct room *room, struct qni_pairs_w *w, int64_t rows, int i, bool has_list,
                       struct meeting *m)
{
    const struct qni_pairs_ready ready = qni_pairs_ready_of(w);
    int32_t at[QNI_PANEL], middle[QNI_PANEL];
    memset(middle, 0, sizeof middle);
    m->rest[i] = NULL;
    if (has_list) {
        qni_pairs_list(w);
        memcpy(at, w->first, sizeof at);
    }
    while (has_list && memcmp(at, w->first + 1, sizeof at) != 0) {
        if (!room->is_turned)
            qni_pairs_turn(room->x, rows, (m->p->n + 15) / 16 * 16, room->turned);
        room->is_turned = true;
        if (m->rest[i] != NULL)
            add_words(m->rest[i], rows, i, m);
        m->rest[i] = room->rest[i];
        qni_pairs_round(room->turned, &ready, at, rows, room->rest[i], middle);
    }
    for (int h = 0; h < 2; h++)
        m->begin[2 * i + h] = _mm256_add_epi32(load_i32(w->sums + 8 * h), load_i32(middle + 8 * h));
}

/* The same of few rows or short lists, after tiles. */
static void add_rest(const struct room *room, const struct qni_pairs_w *w, int64_t rows, int i,
                     const struct meeting *m)
{
    for (int j = 0; j < QNI_PANEL; j++)
        for (int32_t e = 0; e < w->rest[j].n; e++) {
            const uint8_t *x = room->x + w->rest[j].at[e];
            int32_t *c = m->c + i * QNI_PANEL + j;
            const int32_t v = w->rest[j].w[e];
            for (int64_t r = 0; r < rows; r++, x += DEPTH, c += m->ldc)
                *c += v * *x;
        }
}

/* Turning costs as much for one of a list as for many: instructions of a row and one, of a row of
 * any. */
static bool is_brief(const struct qni_pairs_w *w, int64_t rows)
{
    enum { ONE = 4, ANY = 12, RUN = 64 };
    int64_t n = 0;
    for (int j = 0; j < QNI_PANEL; j++)
        n += w->rest[j].n;
    return n * rows * ONE < (rows + RUN - 1) / RUN * RUN * ANY;
}

/* c of the last piece, as docs/numerics.md has it. */
static void finish(const struct qni_matmul_tile *t, int64_t panel, int64_t row, int64_t rows)
{
    struct place at = {panel, row, 0, 0, 0};
    __m256 scale[2];
    load_scale(t, &at, BYTES, scale);
    for (; at.row < row + rows; at.row++) {
        float *const c = t->c + (size_t)at.row * t->ldc + panel * QNI_PANEL;
        const qni_dots dot = {load_i32((int32_t *)(void *)c), load_i32((int32_t *)(void *)(c + 8))};
        qni_floats y = {_mm256_setzero_ps(), _mm256_setzero_ps()};
        add_q8(t, &at, &dot, scale, 1, &y);
        _mm256_storeu_ps(c, y[0]);
        _mm256_storeu_ps(c + 8, y[1]);
    }
}

/* n panels, one or two, of a piece. Few rows ask for the codes of the next while they are
 * multiplied: for them to come takes as long. */
QNI_TEMPLATE void meet(const struct qni_matmul_tile *t, int64_t panel, int64_t row, int64_t rows,
                       const struct piece *p, struct room *room, const int n)
{
    enum { FEW = 64 };
    struct meeting m = {.room = room, .p = p, .ldc = (int64_t)t->ldc, .panels = n};
    const int64_t k = t->units * QNI_UNIT;
    const bool is_last = p->from + p->n == k, wraps = panel + n >= t->n_panels;
    const int64_t next = wraps ? 0 : panel + n;
    const uint8_t *const codes = codes_at(t, next, p->from + (wraps && !is_last ? p->n : 0));
    const ptrdiff_t ahead = rows < FEW ? 0 : codes - codes_at(t, panel, p->from);
    bool is_brief_of[2];
    m.has_sums = p->from != 0;
    m.c = (int32_t *)(void *)t->c + (size_t)row * t->ldc + panel * QNI_PANEL;
    m.step = (n * p->n * QNI_PANEL / (p->n / CHUNK) + rows - 1) / rows;
    for (int i = 0; rows < FEW && i < n; i++)
        m.next[i] = codes + (next + i < t->n_panels ? i * (ptrdiff_t)t->codes_stride : 0);
    for (int i = 0; i < n; i++) {
        struct qni_pairs_w *const w = &room->w[i];
        if (p->is_joined)
            make(codes_at(t, panel + i, p->from), p, &room->span, ahead, true, w);
        else
            make(codes_at(t, panel + i, p->from), p, &room->span, ahead, false, w);
        is_brief_of[i] = is_brief(w, rows);
        meet_lists(room, w, rows, i, !is_brief_of[i], &m);
    }
    if (p->is_joined)
        tiles(&m, rows, n, true);
    else
        tiles(&m, rows, n, false);
    for (int i = 0; i < n; i++) {
        if (is_brief_of[i])
            add_rest(room, &room->w[i], rows, i, &m);
        if (is_last)
            finish(t, panel + i, row, rows);
    }
}

static bool meet_rows(const struct qni_matmul_tile *t, int64_t row, int64_t rows)
{
    struct room *const room = t->scratch;
    const int64_t k = t->units * QNI_UNIT;
    for (struct piece p = {0, 0, false}; p.from < k; p.from += p.n) {
        int64_t panel = 0;
        p.n = k - p.from < DEPTH ? k - p.from : DEPTH;
        lift_x(t, row, rows, &p, room);
        const int kind = choose(t, rows, &p, &room->span);
        if (p.from == 0 && kind == WORDS)
            return false;
        p.is_joined = kind == FOUR;
        for (; panel + 2 <= t->n_panels; panel += 2)
            meet(t, panel, row, rows, &p, room, 2);
        if (panel < t->n_panels)
            meet(t, panel, row, rows, &p, room, 1);
    }
    return true;
}

/* Rows [row, row + rows) of the tile by the kernels that need to know nothing of values (which
 * one, as select.c has it): as many at a time as stay in the second cache while all panels meet
 * them. */
static void meet_words(const struct qni_matmul_tile *t, int64_t row, int64_t rows)
{
    enum { FEW = 32, CACHE = 320 << 10 };
    const int64_t fit = CACHE / (int64_t)t->lda > FEW ? CACHE / (int64_t)t->lda : FEW;
    const int64_t blocks = (rows + fit - 1) / fit, end = row + rows;
    for (int64_t n; row < end; row += n) {
        struct qni_matmul_tile some = *t;
        n = (rows + blocks - 1) / blocks;
        n = n < end - row ? n : end - row;
        some.a = (const int8_t *)t->a + (size_t)row * t->lda;
        some.a_sum = t->a_sum + (size_t)row * t->ld_segment;
        some.c = t->c + (size_t)row * t->ldc;
        some.m = n;
        (n < FEW ? qni_matmul_q8_q8n16_mr5_avx2 : qni_matmul_q8_q8n16_mr1_avx2)(&some);
    }
}

void qni_matmul_q8_q8n16_mr2_avx2(const struct qni_matmul_tile *t)
{
    for (int64_t row = 0, rows; row < t->m; row += rows) {
        rows = t->m - row < ROWS ? t->m - row : ROWS;
        if (t->n_segments != 1 || !meet_rows(t, row, rows))
            meet_words(t, row, rows);
    }
}
