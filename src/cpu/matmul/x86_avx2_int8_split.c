/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x bytes with AVX2, a few rows of one segment. Contract and operand layouts:
 * kernel.h; the float steps: docs/numerics.md.
 *
 * vpmaddubsw multiplies codes as they are stored, u = w + 128, by x, and a sum of 16 bits holds
 * whatever they are as long as its x of either sign add up to 128 at most: 255 * 128 = 32640. The
 * scale of a row of x is that of its largest, so most sums of many positions do. Where some do not,
 * the largest of them leave the row and are met once more, four positions at a time:
 *
 *     x = less + rest,     sum u x = sum u less + sum over a list of u rest
 *
 * So weights need no preparing and x little, once for all outputs. Sums are of 8 positions, or of
 * 4, as rows are; where lists would be long another kernel serves: counted in a sample.
 *
 * Bound: bytes of the codes / bandwidth for few rows, then 5 multiplications for 4 vectors of codes
 * and a row (3 for 2 where sums are of 4 positions), two a cycle. */
#include "../simd/avx2_q8.h"

enum {
    DEPTH = 4096, /* positions of a piece of k: its codes stay in the second cache beside x */
    PIECES = 8,   /* of the longest segment there is */
    ROWS = QNI_LESSENED_ROWS,
    MR = QNI_LESSENED_BLOCK,
    LIST = 12288,
    FEW_LIST = 5632, /* of small jobs: more than pays for 16384 columns */
    MOST = 128,      /* what x of either sign add up to */
    TWO = 2,         /* quads of a sum: 4 positions, for a quad has two sums of an output */
    FOUR = 4,        /* 8 positions */
    QUADS = QNI_UNIT / 4,
    QUAD_BYTES = 4 * QNI_PANEL,
    AHEAD = 2048 /* bytes: about 100 ns of one core's stream */
};
/* What is made of rows, in *t->kept: one of these or quads of a sum. */
enum { NOTHING = 0, OTHERS = QNI_LESSENS_OTHERS };

struct rest {
    int32_t quad; /* of the piece */
    uint32_t x;   /* four positions */
};

/* first: of a list of a piece and a row, after which that of the next row begins. Behind the lists,
 * of which small jobs have shorter ones: x, rows that are less. */
struct room {
    _Alignas(64) int32_t first[PIECES][ROWS + 1];
    struct rest rest[LIST];
};
_Static_assert(sizeof(struct room) + QNI_LESSENED_BYTES <= 393216, "kernels.inc says so");
enum { SMALL_ROOM = 47168 }; /* a multiple of 64 */
_Static_assert(offsetof(struct room, rest[FEW_LIST]) <= SMALL_ROOM, "and so for few rows, and x");

static int64_t longest_list(const struct qni_matmul_tile *t)
{
    return t->m <= QNI_SMALL_ROWS ? FEW_LIST : LIST;
}

static int8_t *rows_in(struct room *room, const struct qni_matmul_tile *t)
{
    const bool small = t->m <= QNI_SMALL_ROWS;
    return (int8_t *)room + (small ? SMALL_ROOM : sizeof *room);
}

/* Rows [row, row + rows) of a call, at ld, and columns [from, from + n) of them. */
struct piece {
    int64_t row, rows, from, n, ld;
    int quads;
};

/* ---- x --------------------------------------------------------------------------------------- */

QNI_TEMPLATE __m256i load_bytes(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Of a unit, what x of one sign add up to in each sum; every sum is there as often as it has
 * quads. */
static inline __m256i sums_of_unit(__m256i x, int quads)
{
    __m256i sum = _mm256_maddubs_epi16(x, _mm256_set1_epi8(1));
    sum = _mm256_add_epi16(sum, _mm256_shuffle_epi32(sum, 0xb1));
    return quads == TWO ? sum : _mm256_add_epi16(sum, _mm256_shuffle_epi32(sum, 0x4e));
}

/* Bits of the bytes whose sums are too large. */
QNI_SMALL static uint32_t over(const int8_t *unit, int quads)
{
    const __m256i x = load_bytes(unit);
    const __m256i above = _mm256_max_epi8(x, _mm256_setzero_si256());
    const __m256i below = _mm256_sub_epi8(above, x);
    const __m256i sum = _mm256_max_epi16(sums_of_unit(above, quads), sums_of_unit(below, quads));
    return (uint32_t)_mm256_movemask_epi8(_mm256_cmpgt_epi16(sum, _mm256_set1_epi16(MOST)));
}

/* Which sums, by a sample. Costs of a quad and of one in a list, in hundredths of a cycle; others
 * take so long, too: halves, or lists of weights. */
QNI_SMALL static int choose(const struct qni_matmul_tile *t)
{
    enum { COST_TWO = 180, COST_FOUR = 150, COST_REST = 800, COST_OTHERS = 300, STEP = 8 };
    const int64_t rows = (t->m + ROWS - 1) / ROWS;
    int64_t n = 0, n_two = 0, n_four = 0;
    for (int64_t row = 0; row < t->m; row += rows) {
        const int8_t *const a = (const int8_t *)t->a + (size_t)row * t->lda;
        for (int64_t unit = row / rows % STEP; unit < t->units; unit += STEP, n += QUADS) {
            n_two += __builtin_popcount(over(a + unit * QNI_UNIT, TWO)) / (2 * TWO);
            n_four += __builtin_popcount(over(a + unit * QNI_UNIT, FOUR)) / (2 * FOUR);
        }
    }
    const int64_t two = n * COST_TWO + n_two * COST_REST;
    const int64_t four = n * COST_FOUR + n_four * 2 * COST_REST;
    if (n * COST_OTHERS < two && n * COST_OTHERS < four)
        return OTHERS;
    return two < four ? TWO : FOUR;
}

/* Takes the largest of one sign from a sum, until the others fit. x: the first two of it. */
QNI_SMALL static void lessen(int8_t *x, int8_t *rest, int quads, int sign)
{
    for (;;) {
        int sum = 0, top = 0, at = 0;
        for (int i = 0; i < 4 * quads; i += 1 + i % 2 * 2) { /* 0 1, 4 5, ... */
            const int v = x[i] * sign;
            sum += v > 0 ? v : 0;
            at = v > top ? i : at;
            top = v > top ? v : top;
        }
        if (sum <= MOST)
            return;
        const int less = sum - MOST < top ? sum - MOST : top;
        x[at] = (int8_t)(x[at] - sign * less);
        rest[at] = (int8_t)(sign * less);
    }
}

/* The same for a unit, and what is taken to the list; of two neighbours, which may be more than a
 * sum holds, one at a time. */
QNI_SMALL static struct rest *lessen_unit(int8_t *x, int quads, int32_t quad, struct rest *to)
{
    int8_t rest[QNI_UNIT] = {0};
    for (int i = 0; i < QNI_UNIT; i += i % 4 == 0 ? 2 : 4 * quads - 2) {
        lessen(x + i, rest + i, quads, 1);
        lessen(x + i, rest + i, quads, -1);
    }
    for (int i = 0; i < QUADS; i++) {
        uint32_t four;
        memcpy(&four, rest + 4 * i, sizeof four);
        for (uint32_t mask = 0x00ff00ff; mask != 0; mask = mask == 0x00ff00ff ? ~mask : 0)
            if ((four & mask) != 0)
                *to++ = (struct rest){quad + i, four & mask};
    }
    return to;
}

/* Rows in two parts. False if lists are too long. */
QNI_SMALL static bool split(const struct qni_matmul_tile *t, const struct piece *p)
{
    enum { MOST_OF_UNIT = 2 * QUADS };
    struct room *const room = t->scratch;
    const int64_t k = t->units * QNI_UNIT;
    struct rest *to = room->rest;
    for (int64_t from = 0; from < k; from += DEPTH) {
        int32_t *const first = room->first[from / DEPTH];
        const int64_t end = k - from < DEPTH ? k : from + DEPTH;
        first[0] = (int32_t)(to - room->rest);
        for (int64_t row = 0; row < p->rows; row++) {
            const int8_t *const a = (const int8_t *)t->a + (size_t)(p->row + row) * t->lda;
            int8_t *const x = rows_in(room, t) + row * p->ld;
            for (int64_t i = from; i < end; i += QNI_UNIT) {
                _mm256_store_si256((__m256i *)(void *)(x + i), load_bytes(a + i));
                if (over(a + i, p->quads) == 0)
                    continue;
                if (room->rest + longest_list(t) - to < MOST_OF_UNIT)
                    return false;
                to = lessen_unit(x + i, p->quads, (int32_t)((i - from) / 4), to);
            }
            first[row + 1] = (int32_t)(to - room->rest);
        }
    }
    return true;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* A block of rows that meets a panel. */
struct operands {
    const uint8_t *codes, *ahead; /* ahead: what is asked for, so many bytes for two quads */
    int64_t step;
    const int8_t *x;
    int64_t units, ld;
    int32_t sums[MR][QNI_PANEL];
};

QNI_TEMPLATE void ask(const uint8_t **ahead, int64_t step)
{
    _mm_prefetch((const char *)*ahead, _MM_HINT_T0);
    _mm_prefetch((const char *)*ahead + 64, _MM_HINT_T0);
    *ahead += step;
}

QNI_TEMPLATE void add_two(const uint8_t *codes, const int8_t *x, int64_t ld, const int mr,
                          __m256i (*sum)[2])
{
    const __m256i one = _mm256_set1_epi16(1);
    QNI_UNROLL
    for (int h = 0; h < 2; h++) {
        __m256i w[2] = {load_bytes(codes + 32 * h), load_bytes(codes + QUAD_BYTES + 32 * h)};
        QNI_KEEP(w[0]);
        QNI_KEEP(w[1]);
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m256i both = _mm256_add_epi16(_mm256_maddubs_epi16(w[0], quad(x + i * ld)),
                                                  _mm256_maddubs_epi16(w[1], quad(x + i * ld + 4)));
            sum[i][h] = _mm256_add_epi32(sum[i][h], _mm256_madd_epi16(both, one));
            QNI_KEEP(sum[i][h]);
        }
    }
}

QNI_TEMPLATE void add_four(const uint8_t *codes, const int8_t *x, int64_t ld, const int mr,
                           __m256i (*sum)[2])
{
    const __m256i one = _mm256_set1_epi16(1);
    __m256i some[MR][2];
    QNI_UNROLL
    for (int q = 0; q < FOUR; q++) {
        const uint8_t *const at = codes + QUAD_BYTES * q;
        __m256i w[2] = {load_bytes(at), load_bytes(at + 32)};
        QNI_KEEP(w[0]);
        QNI_KEEP(w[1]);
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            const __m256i v = quad(x + i * ld + 4 * q);
            QNI_UNROLL
            for (int h = 0; h < 2; h++) {
                const __m256i p = _mm256_maddubs_epi16(w[h], v);
                some[i][h] = q == 0 ? p : _mm256_add_epi16(some[i][h], p);
                QNI_KEEP(some[i][h]); /* or the compiler adds in another order, and spills */
            }
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        sum[i][h] = _mm256_add_epi32(sum[i][h], _mm256_madd_epi16(some[i][h], one));
}

/* mr rows of a panel. */
QNI_TEMPLATE void dot(struct operands *o, const int mr, const int quads)
{
    const uint8_t *codes = o->codes, *ahead = o->ahead;
    const int64_t step = o->step, ld = o->ld;
    const int8_t *x = o->x;
    __m256i sum[MR][2];
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        sum[i][0] = sum[i][1] = _mm256_setzero_si256();
    for (const int8_t *const end = x + o->units * QNI_UNIT; x < end; x += 4 * quads) {
        QNI_UNROLL
        for (int q = 0; q < quads; q += 2)
            ask(&ahead, step);
        if (quads == TWO)
            add_two(codes, x, ld, mr, sum);
        else
            add_four(codes, x, ld, mr, sum);
        codes += QUAD_BYTES * quads;
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        _mm256_storeu_si256((__m256i *)(void *)(o->sums[i] + 8 * h), sum[i][h]);
}

/* Functions of their own: in larger ones gcc spills more. */
QNI_NOINLINE static void three_by_two(struct operands *o)
{
    dot(o, 3, TWO);
}
QNI_NOINLINE static void four_by_two(struct operands *o)
{
    dot(o, 4, TWO);
}
QNI_NOINLINE static void three_by_four(struct operands *o)
{
    dot(o, 3, FOUR);
}
QNI_NOINLINE static void four_by_four(struct operands *o)
{
    dot(o, 4, FOUR);
}
/* What is left of a row, and floats of the last piece. */
QNI_NOINLINE static void finish_row(const struct qni_matmul_tile *t, const struct piece *p,
                                    int64_t panel, int64_t row, const uint8_t *codes,
                                    const int32_t *sums)
{
    const struct room *const room = t->scratch;
    const int32_t *const first = room->first[p->from / DEPTH] + row;
    const struct rest *r = room->rest + first[0], *const end = room->rest + first[1];
    const bool is_last = p->from + p->n == t->units * QNI_UNIT;
    const __m256i one = _mm256_set1_epi16(1);
    float *const c = t->c + (size_t)(p->row + row) * t->ldc + panel * QNI_PANEL;
    qni_dots d = {load_i32(sums), load_i32(sums + 8)};
    if (p->from != 0) {
        d[0] = _mm256_add_epi32(d[0], load_bytes(c));
        d[1] = _mm256_add_epi32(d[1], load_bytes(c + 8));
    }
    for (; r < end; r++) {
        const uint8_t *const w = codes + (size_t)r->quad * QUAD_BYTES;
        const __m256i x = _mm256_set1_epi32((int32_t)r->x);
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256i product = _mm256_maddubs_epi16(load_bytes(w + 32 * h), x);
            d[h] = _mm256_add_epi32(d[h], _mm256_madd_epi16(product, one));
        }
    }
    qni_floats y = {_mm256_castsi256_ps(d[0]), _mm256_castsi256_ps(d[1])};
    if (is_last) {
        struct place at = {panel, p->row + row, 0, 0, 0};
        const int32_t less = t->a_sum[(size_t)at.row * t->ld_segment] * 128;
        __m256 scale[2];
        load_scale(t, &at, BYTES, scale);
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            d[h] = _mm256_sub_epi32(d[h], _mm256_set1_epi32(less));
            y[h] = _mm256_setzero_ps();
        }
        add_q8(t, &at, (const qni_dots *)&d, scale, 1, &y);
    }
    _mm256_storeu_ps(c, y[0]);
    _mm256_storeu_ps(c + 8, y[1]);
}

/* Rows of a piece in blocks of three and four, of five with one that nobody needs. One block asks
 * for its own codes, of several each asks for a share of the next panel's. */
QNI_NOINLINE static void meet_panel(const struct qni_matmul_tile *t, const struct piece *p,
                                    int64_t panel)
{
    struct room *const room = t->scratch;
    const int64_t blocks = (p->rows + MR - 1) / MR;
    const size_t next = panel + 1 < t->n_panels ? t->codes_stride : 0;
    struct operands o = {.units = p->n / QNI_UNIT, .ld = p->ld};
    o.codes = t->codes + (size_t)panel * t->codes_stride + p->from * QNI_PANEL;
    o.ahead = o.codes + (blocks == 1 ? (size_t)AHEAD : next);
    o.step = (2 * QUAD_BYTES + blocks - 1) / blocks;
    for (int64_t row = 0, left = blocks; row < p->rows; left--) {
        const bool is_four = (p->rows - row) / left == MR;
        o.x = rows_in(room, t) + row * p->ld + p->from;
        if (p->quads == TWO)
            (is_four ? four_by_two : three_by_two)(&o);
        else
            (is_four ? four_by_four : three_by_four)(&o);
        for (int i = 0; i < 3 + is_four && row < p->rows; i++, row++)
            finish_row(t, p, panel, row, o.codes, o.sums[i]);
        o.ahead += p->n * QNI_PANEL / blocks;
    }
}

/* False if another kernel has to do it. */
static bool meet_rows(const struct qni_matmul_tile *t, struct piece *p, bool is_split)
{
    const int64_t k = t->units * QNI_UNIT;
    if (!is_split && !split(t, p))
        return false;
    for (p->from = 0; p->from < k; p->from += p->n) {
        p->n = k - p->from < DEPTH ? k - p->from : DEPTH;
        for (int64_t panel = 0; panel < t->n_panels; panel++)
            meet_panel(t, p, panel);
    }
    return true;
}

/* As many rows as there is room for. */
static int32_t meet(const struct qni_matmul_tile *t, int32_t kept)
{
    struct piece p = {.ld = t->units * QNI_UNIT + 64};
    const int64_t most = qni_lessened_rows((size_t)p.ld - 64);
    p.quads = kept != NOTHING ? kept : choose(t);
    for (; p.quads != OTHERS && p.row < t->m; p.row += p.rows) {
        p.rows = t->m - p.row < most ? t->m - p.row : most;
        if (!meet_rows(t, &p, kept != NOTHING && most >= t->m))
            p.quads = OTHERS;
    }
    return p.quads;
}

void qni_matmul_q8_q8n16_mr4_avx2(const struct qni_matmul_tile *t)
{
    enum { FEW = 24 };
    int32_t kept = OTHERS;
    if (t->n_panels == 0) {
        *t->kept = choose(t);
        return;
    }
    if (t->n_segments == 1)
        kept = meet(t, t->kept == NULL ? NOTHING : *t->kept);
    if (kept == OTHERS)
        (t->m < FEW ? qni_matmul_q8_q8n16_mr5_avx2 : qni_matmul_q8_q8n16_mr2_avx2)(t);
    if (t->kept != NULL)
        *t->kept = kept;
}
