/* SPDX-License-Identifier: Apache-2.0 */
/* int8 activations x bytes with AVX2, three rows and more of one segment. Contract and operand
 * layouts: kernel.h; the float steps: docs/numerics.md.
 *
 * vpmaddubsw multiplies codes as they are stored, u = w + 128, by x, and a sum of 16 bits holds
 * whatever they are as long as its x of either sign add up to 128 at most: 255 * 128 = 32640. The
 * scale of a row of x is that of its largest, so most sums of many positions do. Where some do not,
 * the largest of them are clamped, and the remainder is multiplied on its own, four positions at a
 * time:
 *
 *     x = clamped + remainder,     sum u x = sum u clamped + sum over a list of u remainder
 *
 * So weights need no preparing and x little, once for all outputs. Sums are of 8 positions or of 4,
 * whichever takes less time. A sample of the rows tells whether lists would be too long: then the
 * kernel computes nothing, and says so (QNI_TOO_MANY_OUTLIERS).
 *
 * Bound: bytes of the codes / bandwidth for few rows, then 5 multiplications for 4 vectors of codes
 * and a row (3 for 2 where sums are of 4 positions), two a cycle. */
#include "../simd/avx2_q8.h"

enum {
    DEPTH = 4096, /* positions of a range of k: its codes stay in the second cache beside x */
    RANGES = 8,   /* of the longest segment there is */
    ROWS = QNI_CLAMPED_ROWS,
    MR = QNI_CLAMPED_BLOCK,
    LIST = 12288,
    FEW_LIST = 5632, /* of small jobs: more than pays for 16384 columns */
    MOST = 128,      /* what x of either sign add up to */
    TWO = 2,         /* quads of a sum: 4 positions, for a quad has two sums of an output */
    FOUR = 4,        /* 8 positions */
    QUADS = QNI_UNIT / 4,
    QUAD_BYTES = 4 * QNI_PANEL,
    AHEAD = 2048 /* bytes: about 100 ns of one core's stream */
};
/* In *t->kept: one of these, or quads of a sum. */
enum { NOTHING = 0, TOO_MANY = QNI_TOO_MANY_OUTLIERS };

struct remainder {
    int32_t quad; /* of the range */
    uint32_t x;   /* four positions */
};

/* first: where the list of a range and a row begins, and that of the row before ends. Behind the
 * lists, which are shorter for small jobs, are the clamped rows. */
struct outlier_lists {
    _Alignas(64) int32_t first[RANGES][ROWS + 1];
    struct remainder list[LIST];
};
_Static_assert(sizeof(struct outlier_lists) + QNI_CLAMPED_BYTES <= 393216, "kernels.inc says so");
enum { SMALL_LISTS = 47168 }; /* a multiple of 64 */
_Static_assert(offsetof(struct outlier_lists, list[FEW_LIST]) <= SMALL_LISTS,
               "and so for few rows, and x");

static int64_t longest_list(const struct qni_matmul_tile *t)
{
    return t->m <= QNI_SMALL_ROWS ? FEW_LIST : LIST;
}

static int8_t *clamped_rows(struct outlier_lists *lists, const struct qni_matmul_tile *t)
{
    const bool small = t->m <= QNI_SMALL_ROWS;
    return (int8_t *)lists + (small ? SMALL_LISTS : sizeof *lists);
}

/* Rows [row, row + rows) of a call, at ld, and columns [from, from + n) of them. */
struct row_range {
    int64_t row, rows, from, n, ld;
    int quads;
};

/* ---- x --------------------------------------------------------------------------------------- */

QNI_TEMPLATE __m256i load_bytes(const void *p)
{
    return _mm256_loadu_si256((const __m256i *)p);
}

/* Adds up what x of one sign have of a unit in each sum; every sum is there as often as it has
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

/* Chooses between sums of two quads and of four by a sample of x. Costs are hundredths of a cycle:
 * of a quad, of one in a list, and of a quad in the row that stands in. */
QNI_SMALL static int choose(const struct qni_matmul_tile *t)
{
    enum { COST_TWO = 180, COST_FOUR = 150, COST_LISTED = 800, COST_STAND_IN = 300, STEP = 8 };
    const int64_t rows = (t->m + ROWS - 1) / ROWS;
    int64_t n = 0, n_two = 0, n_four = 0;
    for (int64_t row = 0; row < t->m; row += rows) {
        const int8_t *const a = (const int8_t *)t->a + (size_t)row * t->lda;
        for (int64_t unit = row / rows % STEP; unit < t->units; unit += STEP, n += QUADS) {
            n_two += __builtin_popcount(over(a + unit * QNI_UNIT, TWO)) / (2 * TWO);
            n_four += __builtin_popcount(over(a + unit * QNI_UNIT, FOUR)) / (2 * FOUR);
        }
    }
    const int64_t two = n * COST_TWO + n_two * COST_LISTED;
    const int64_t four = n * COST_FOUR + n_four * 2 * COST_LISTED;
    if (n * COST_STAND_IN < two && n * COST_STAND_IN < four)
        return TOO_MANY;
    return two < four ? TWO : FOUR;
}

/* Clamps the largest values of one sign of a sum until they fit. x: the first two of it. */
QNI_SMALL static void clamp_sum(int8_t *x, int8_t *rest, int quads, int sign)
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

/* Clamps a unit, and appends the remainder to the list; two neighbours, which may be more than a
 * sum holds, one at a time. */
QNI_SMALL static struct remainder *clamp_unit(int8_t *x, int quads, int32_t quad,
                                              struct remainder *to)
{
    int8_t rest[QNI_UNIT] = {0};
    for (int i = 0; i < QNI_UNIT; i += i % 4 == 0 ? 2 : 4 * quads - 2) {
        clamp_sum(x + i, rest + i, quads, 1);
        clamp_sum(x + i, rest + i, quads, -1);
    }
    for (int i = 0; i < QUADS; i++) {
        uint32_t four;
        memcpy(&four, rest + 4 * i, sizeof four);
        for (uint32_t mask = 0x00ff00ff; mask != 0; mask = mask == 0x00ff00ff ? ~mask : 0)
            if ((four & mask) != 0)
                *to++ = (struct remainder){quad + i, four & mask};
    }
    return to;
}

/* Splits rows in two parts. False if lists are too long. */
QNI_SMALL static bool split(const struct qni_matmul_tile *t, const struct row_range *p)
{
    enum { MOST_OF_UNIT = 2 * QUADS };
    struct outlier_lists *const lists = t->scratch;
    const int64_t k = t->units * QNI_UNIT;
    struct remainder *to = lists->list;
    for (int64_t from = 0; from < k; from += DEPTH) {
        int32_t *const first = lists->first[from / DEPTH];
        const int64_t end = k - from < DEPTH ? k : from + DEPTH;
        first[0] = (int32_t)(to - lists->list);
        for (int64_t row = 0; row < p->rows; row++) {
            const int8_t *const a = (const int8_t *)t->a + (size_t)(p->row + row) * t->lda;
            int8_t *const x = clamped_rows(lists, t) + row * p->ld;
            for (int64_t i = from; i < end; i += QNI_UNIT) {
                _mm256_store_si256((__m256i *)(void *)(x + i), load_bytes(a + i));
                if (over(a + i, p->quads) == 0)
                    continue;
                if (lists->list + longest_list(t) - to < MOST_OF_UNIT)
                    return false;
                to = clamp_unit(x + i, p->quads, (int32_t)((i - from) / 4), to);
            }
            first[row + 1] = (int32_t)(to - lists->list);
        }
    }
    return true;
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* A block of rows and a panel. */
struct operands {
    const uint8_t *codes, *ahead; /* ahead: prefetched, so many bytes for two quads */
    int64_t step;
    const int8_t *x;
    int64_t units, ld;
    int32_t sums[MR][QNI_PANEL];
};

QNI_TEMPLATE void prefetch(const uint8_t **ahead, int64_t step)
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
    __m256i sums16[MR][2];
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
                sums16[i][h] = q == 0 ? p : _mm256_add_epi16(sums16[i][h], p);
                QNI_KEEP(sums16[i][h]); /* or the compiler adds in another order, and spills */
            }
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        sum[i][h] = _mm256_add_epi32(sum[i][h], _mm256_madd_epi16(sums16[i][h], one));
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
            prefetch(&ahead, step);
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
/* Adds the remainder of a row; after the last range, scales the sums. */
QNI_NOINLINE static void finish_row(const struct qni_matmul_tile *t, const struct row_range *p,
                                    int64_t panel, int64_t row, const uint8_t *codes,
                                    const int32_t *sums)
{
    const struct outlier_lists *const lists = t->scratch;
    const int32_t *const first = lists->first[p->from / DEPTH] + row;
    const struct remainder *r = lists->list + first[0];
    const struct remainder *const end = lists->list + first[1];
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
        struct segment_place at = {panel, p->row + row, 0, 0, 0};
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

/* Rows of a range in blocks of three and four; five rows take one more that nobody needs. One block
 * alone prefetches its own codes, of several each prefetches a share of the next panel's. */
QNI_NOINLINE static void multiply_panel(const struct qni_matmul_tile *t, const struct row_range *p,
                                        int64_t panel)
{
    struct outlier_lists *const lists = t->scratch;
    const int64_t blocks = (p->rows + MR - 1) / MR;
    const size_t next = panel + 1 < t->n_panels ? t->codes_stride : 0;
    struct operands o = {.units = p->n / QNI_UNIT, .ld = p->ld};
    o.codes = t->codes + (size_t)panel * t->codes_stride + p->from * QNI_PANEL;
    o.ahead = o.codes + (blocks == 1 ? (size_t)AHEAD : next);
    o.step = (2 * QUAD_BYTES + blocks - 1) / blocks;
    for (int64_t row = 0, left = blocks; row < p->rows; left--) {
        const bool is_four = (p->rows - row) / left == MR;
        o.x = clamped_rows(lists, t) + row * p->ld + p->from;
        if (p->quads == TWO)
            (is_four ? four_by_two : three_by_two)(&o);
        else
            (is_four ? four_by_four : three_by_four)(&o);
        for (int i = 0; i < 3 + is_four && row < p->rows; i++, row++)
            finish_row(t, p, panel, row, o.codes, o.sums[i]);
        o.ahead += p->n * QNI_PANEL / blocks;
    }
}

/* False if there are too many outliers. */
static bool multiply_rows(const struct qni_matmul_tile *t, struct row_range *p, bool is_split)
{
    const int64_t k = t->units * QNI_UNIT;
    if (!is_split && !split(t, p))
        return false;
    for (p->from = 0; p->from < k; p->from += p->n) {
        p->n = k - p->from < DEPTH ? k - p->from : DEPTH;
        for (int64_t panel = 0; panel < t->n_panels; panel++)
            multiply_panel(t, p, panel);
    }
    return true;
}

void qni_matmul_q8_q8n16_mr4_outliers_avx2(const struct qni_matmul_tile *t)
{
    struct row_range p = {.ld = t->units * QNI_UNIT + 64};
    const int64_t most = qni_clamped_rows((size_t)p.ld - 64);
    const bool is_kept = *t->kept != NOTHING && most >= t->m;
    p.quads = *t->kept;
    if (t->n_segments > 1)
        p.quads = TOO_MANY;
    else if (p.quads == NOTHING)
        p.quads = choose(t);
    for (; p.quads != TOO_MANY && p.row < t->m; p.row += p.rows) {
        p.rows = t->m - p.row < most ? t->m - p.row : most;
        if (!multiply_rows(t, &p, is_kept))
            p.quads = TOO_MANY;
    }
    *t->kept = p.quads;
}
