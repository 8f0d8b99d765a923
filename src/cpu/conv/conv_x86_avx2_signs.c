/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions with AVX2, whatever bytes x and the weights hold. Contract and operand
 * layouts: direct_kernel.h.
 *
 * vpmaddubsw multiplies unsigned by signed bytes and adds two products in int16, where they
 * saturate if both factors span all bytes. So the sign moves from the weight to x:
 *
 *     x w = |w| (x ^ m) + (w < 0 ? |w| : 0)         m = w < 0 ? -1 : 0, so x ^ m is x or -x - 1
 *
 * x ^ m is a signed byte whatever x is, and |w| is at most 128, so that two products are -32768 to
 * 32512: no lane saturates. The second term is a constant of the output. Four instructions compute
 * 32 products, and two of them need no multiplier.
 *
 * Nibbles need none of this: x plus 128 meets values of -8 to 7, so that the products of 8 times
 * four positions fit into an int16 (16 * 255 * 8 = 32640), and only their sum is widened.
 *
 * Up to 256 rows are multiplied at a time. Up to 384 positions of them are copied to scratch,
 * wherever the taps lie, so that nothing else knows of taps. Then the weights of each panel at
 * these positions are split into magnitudes and signs (nibbles: unpacked), and tiles of 5 rows x 16
 * outputs read them while they are in the first cache. Between ranges of positions, sums wait in
 * memory: those of one panel if there is only one range, else those of 8 panels.
 *
 *     x   bytes plus 128, as they lie
 *     w   four positions of 16 outputs together: 64 bytes of m ^ 128, then 64 of |w|, dword j of
 *         output j; of nibbles 64 bytes of values
 *
 * Bound: two vector multiplications a cycle; 128 products take eight of them in 16 instructions, of
 * nibbles 4.5 in 9.5. */
#include "../../base/compiler.h"
#include "../simd/avx2_bytes.h"
#include "kernel.h"

enum { ROWS = 256, PANELS = 8, DEPTH = 384, MR = 5 };
enum { QUAD = 64, SIGNED_QUAD = 2 * QUAD }; /* bytes of four positions of a panel */
enum { BYTES = 0, NIBBLES = 1 };

/* Prepared weights of 16 outputs: magnitudes and signs, or values of nibbles. */
struct panel_weights {
    _Alignas(64) int8_t quads[2 * DEPTH * QNI_PANEL];
    int32_t begin[QNI_PANEL]; /* of sums: of |w| where w is negative; of nibbles of -128 w */
};
_Static_assert(DEPTH / 2 * 128 <= 32767, "split_signs() adds them in int16, of two in four");

struct signs_scratch {
    uint8_t x[ROWS * DEPTH];
    struct panel_weights w[2];
    int32_t sums[PANELS * ROWS * QNI_PANEL];
};
_Static_assert(sizeof(struct signs_scratch) <= QNI_DIRECT_SCRATCH_GATHERS, "scratch of a row");

QNI_TEMPLATE __m256i load(const void *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}
QNI_TEMPLATE void store(void *to, const __m256i v)
{
    _mm256_storeu_si256((__m256i *)to, v);
}

/* ---- x --------------------------------------------------------------------------------------- */

static void copy_tap(const struct qni_direct_tile *t, const struct qni_direct_range *p, int64_t tap,
                     int64_t n, uint8_t *to)
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

/* Copies whole taps of 16 to 32 bytes, row by row: what is written stays in the first cache. */
static void copy_short_taps(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                            uint8_t *to)
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

/* The weights of positions past the last one are zeros, so these bytes need only be defined. */
static void pad_rows(const struct qni_direct_range *p, uint8_t *x)
{
    const int64_t end = (p->n + QNI_UNIT - 1) / QNI_UNIT * QNI_UNIT;
    for (int64_t r = 0; r < p->rows; r++)
        store(x + r * DEPTH + end - QNI_UNIT, _mm256_setzero_si256());
}

static void copy_x(const struct qni_direct_tile *t, const struct qni_direct_range *p, uint8_t *x)
{
    int64_t tap = p->from / t->tap_bytes, at = p->from % t->tap_bytes;
    if (p->n % QNI_UNIT != 0)
        pad_rows(p, x);
    if (t->tap_bytes >= 16 && t->tap_bytes <= 32 && at == 0 && p->n % t->tap_bytes == 0) {
        copy_short_taps(t, p, x);
        return;
    }
    for (int64_t done = 0, n; done < p->n; done += n, at = 0, tap++) {
        n = t->tap_bytes - at < p->n - done ? t->tap_bytes - at : p->n - done;
        copy_tap(t, p, t->taps[tap] + at, n, x + done);
    }
}

/* ---- weights --------------------------------------------------------------------------------- */

/* Splits the values of chunks of 8 positions, which are codes - 128. The codes that lie `ahead`
 * bytes further are prefetched. */
static void split_signs(struct panel_weights *w, const int8_t *codes, int64_t chunks,
                        ptrdiff_t ahead)
{
    const __m256i none = _mm256_setzero_si256();
    const __m256i middle = _mm256_set1_epi8(-128), minus_one = _mm256_set1_epi8(-1);
    __m256i sum[2] = {none, none};
    int8_t *to = w->quads;
    for (int64_t n = 2 * chunks; n > 0; n--, codes += QUAD, to += SIGNED_QUAD) {
        _mm_prefetch((const char *)codes + ahead, _MM_HINT_T1);
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            const __m256i v = _mm256_xor_si256(load(codes + 32 * h), middle);
            const __m256i size = _mm256_abs_epi8(v), is_below = _mm256_cmpgt_epi8(none, v);
            const __m256i below = _mm256_and_si256(size, is_below);
            sum[h] = _mm256_sub_epi16(sum[h], _mm256_maddubs_epi16(below, minus_one));
            store(to + 32 * h, _mm256_xor_si256(is_below, middle));
            store(to + QUAD + 32 * h, size);
        }
    }
    QNI_UNROLL
    for (int h = 0; h < 2; h++)
        store(w->begin + 8 * h, _mm256_madd_epi16(sum[h], _mm256_set1_epi16(1)));
}

/* Sums of the values, in the order of the panel. */
static void sum_values(struct panel_weights *w, int64_t units)
{
    const __m256i one = _mm256_set1_epi8(1), ones = _mm256_set1_epi16(-128);
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
    for (int64_t i = 0; i < units * QNI_UNIT / 4; i++)
        QNI_UNROLL
    for (int h = 0; h < 2; h++)
        sum[h] =
            _mm256_add_epi16(sum[h], _mm256_maddubs_epi16(one, load(w->quads + i * QUAD + 32 * h)));
    QNI_UNROLL
    for (int h = 0; h < 2; h++)
        store(w->begin + 8 * h, _mm256_madd_epi16(sum[h], ones));
}

/* Panels are prepared in pairs, so the next one to come is two panels ahead. */
QNI_TEMPLATE void prepare_weights(const struct qni_direct_tile *t, int64_t panel,
                                  const struct qni_direct_range *p, struct signs_scratch *s,
                                  const int kind)
{
    const uint8_t *const b = t->b + (size_t)panel * t->b_panel;
    const int64_t chunks = (p->n + 7) / 8;
    struct panel_weights *const w = &s->w[panel % 2];
    if (kind == NIBBLES) {
        qni_nibbles_to_values(b + p->from * 8, (p->n + 31) / 32, w->quads);
        sum_values(w, (p->n + 31) / 32);
    } else {
        split_signs(w, (const int8_t *)b + p->from * QNI_PANEL, chunks, 2 * (ptrdiff_t)t->b_panel);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* *sum += x times 8 outputs of four positions. In this order, with m from memory: compilers load it
 * first, for which there are no registers. */
QNI_TEMPLATE void add_products(const __m256i x, const int8_t *m, const __m256i size,
                               const __m256i ones, __m256i *sum)
{
    __m256i t;
    __asm__("vpxor %[m], %[x], %[t]\n\t"
            "vpmaddubsw %[t], %[size], %[t]\n\t"
            "vpmaddwd %[ones], %[t], %[t]\n\t"
            "vpaddd %[t], %[sum], %[sum]"
            : [t] "=&x"(t), [sum] "+x"(*sum)
            : [m] "m"(*(const int8_t(*)[32])m), [x] "x"(x), [size] "x"(size), [ones] "x"(ones));
}

/* Four bytes, for every output. */
QNI_TEMPLATE __m256i broadcast_quad(const uint8_t *x)
{
    float four;
    memcpy(&four, x, sizeof four);
    return _mm256_castps_si256(_mm256_set1_ps(four));
}

/* mr rows x 16 outputs, all chunks of 8 positions. */
QNI_TEMPLATE void multiply_signs(const uint8_t *x, const struct panel_weights *weights,
                                 int64_t chunks, bool has_sums, const int mr, int32_t *to)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t *w = weights->quads;
    __m256i sum[MR][2];
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int v = 0; v < 2; v++) {
        sum[i][v] = load(weights->begin + 8 * v);
        if (has_sums)
            sum[i][v] = _mm256_add_epi32(sum[i][v], load(to + i * QNI_PANEL + 8 * v));
    }
    for (; chunks > 0; chunks--, x += 8, w += 2 * SIGNED_QUAD) {
        QNI_UNROLL
        for (int q = 0; q < 2; q++) {
            const int8_t *const m = w + q * SIGNED_QUAD;
            const __m256i size[2] = {load(m + QUAD), load(m + QUAD + 32)};
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m256i four = broadcast_quad(x + i * DEPTH + 4 * q);
                add_products(four, m, size[0], ones, &sum[i][0]);
                add_products(four, m + 32, size[1], ones, &sum[i][1]);
            }
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++)
        QNI_UNROLL
    for (int v = 0; v < 2; v++)
        store(to + i * QNI_PANEL + 8 * v, sum[i][v]);
}

/* Multiplies mr rows by a panel of nibbles, all units of 32 positions. */
QNI_TEMPLATE void multiply_nibbles(const uint8_t *x, const struct panel_weights *weights,
                                   int64_t units, bool has_sums, const int mr, int32_t *to)
{
    const __m256i ones = _mm256_set1_epi16(1);
    const int8_t *w = weights->quads;
    for (int i = 0; i < 2 * mr; i++) {
        const __m256i first = load(weights->begin + i % 2 * 8);
        store(to + 8 * i, has_sums ? _mm256_add_epi32(first, load(to + 8 * i)) : first);
    }
    for (; units > 0; units--, x += QNI_UNIT, w += QNI_UNIT / 4 * QUAD) {
        __m256i sum[MR][2];
        QNI_UNROLL
        for (int q = 0; q < QNI_UNIT / 4; q++) {
            __m256i v[2] = {load(w + q * QUAD), load(w + q * QUAD + 32)};
            QNI_KEEP(v[0]);
            QNI_KEEP(v[1]);
            QNI_UNROLL
            for (int i = 0; i < mr; i++) {
                const __m256i four = broadcast_quad(x + i * DEPTH + 4 * q);
                QNI_UNROLL
                for (int h = 0; h < 2; h++) {
                    const __m256i product = _mm256_maddubs_epi16(four, v[h]);
                    sum[i][h] = q == 0 ? product : _mm256_add_epi16(sum[i][h], product);
                    QNI_KEEP(sum[i][h]); /* or the compiler adds in another order, and spills */
                }
            }
        }
        QNI_UNROLL
        for (int i = 0; i < mr; i++)
            QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            int32_t *const at = to + i * QNI_PANEL + 8 * h;
            store(at, _mm256_add_epi32(load(at), _mm256_madd_epi16(sum[i][h], ones)));
        }
    }
}

QNI_TEMPLATE void multiply_tile(const uint8_t *x, const struct panel_weights *weights, int64_t n,
                                bool has_sums, const int mr, const int kind, int32_t *to)
{
    if (kind == NIBBLES)
        multiply_nibbles(x, weights, (n + QNI_UNIT - 1) / QNI_UNIT, has_sums, mr, to);
    else
        multiply_signs(x, weights, (n + 7) / 8, has_sums, mr, to);
}

#define ROWS_OF(mr)                                                                                \
    case mr:                                                                                       \
        multiply_tile(x, w, p->n, has_sums, mr, kind, to);                                         \
        break;
/* Rows [row, end) of a panel. */
QNI_TEMPLATE void multiply_rows(const struct signs_scratch *s, const struct panel_weights *w,
                                const struct qni_direct_range *p, int64_t row, int64_t end,
                                int32_t *sums, const int kind)
{
    const bool has_sums = p->from != 0;
    int64_t blocks = (end - row + MR - 1) / MR;
    for (int64_t n; row < end; row += n, blocks--) {
        const uint8_t *const x = s->x + row * DEPTH;
        int32_t *const to = sums + row * QNI_PANEL;
        n = (end - row + blocks - 1) / blocks;
        switch (n) {
            /* clang-format off */
            ROWS_OF(5) ROWS_OF(4) ROWS_OF(3) ROWS_OF(2)
        default:
            multiply_tile(x, w, p->n, has_sums, 1, kind, to);
            /* clang-format on */
        }
    }
}
#undef ROWS_OF

/* ---- panels ---------------------------------------------------------------------------------- */

/* One or two panels of a range. Outputs of the last range are finished 64 rows at a time, while
 * their sums are in the first cache; their y is prefetched before. */
QNI_TEMPLATE void multiply_panels(const struct qni_direct_tile *t, const struct signs_scratch *s,
                                  const struct qni_direct_range *p, int64_t panel, int n,
                                  int32_t *const *sums, const int kind)
{
    enum { FINISHED = 64 };
    const bool is_last = p->from + p->n == t->n_taps * t->tap_bytes;
    for (int64_t row = 0, end; row < p->rows; row = end) {
        const struct qni_direct_range finished = {
            p->row + row, p->rows - row < FINISHED ? p->rows - row : FINISHED, 0, 0};
        end = row + finished.rows;
        if (is_last)
            prefetch_y(t, &finished, panel);
        for (int i = 0; i < n; i++)
            multiply_rows(s, &s->w[i], p, row, end, sums[i], kind);
        const int32_t *const of_rows[2] = {sums[0] + row * QNI_PANEL,
                                           sums[n - 1] + row * QNI_PANEL};
        if (is_last && n == 2)
            finish_panels(t, &finished, panel, of_rows);
        else if (is_last)
            finish_panel(t, &finished, panel, of_rows[0]);
    }
}

/* Positions of a range: as even as whole units allow. */
static int64_t range_length(int64_t k)
{
    const int64_t ranges = (k + DEPTH - 1) / DEPTH;
    return (k + 32 * ranges - 1) / (32 * ranges) * 32;
}

QNI_TEMPLATE void multiply_block(const struct qni_direct_tile *t, int64_t row, int64_t rows,
                                 struct signs_scratch *s, const int kind)
{
    const int64_t k = t->n_taps * t->tap_bytes;
    const int64_t length = range_length(k);
    const bool is_long = length < k;
    /* Sums of a panel; the fewer the rows, the more panels fit. */
    const int64_t apart = (rows + 7) / 8 * 8 * QNI_PANEL;
    const int64_t most = is_long ? PANELS * ROWS * QNI_PANEL / apart / 2 * 2 : t->n_panels;
    for (int64_t first = 0; first < t->n_panels; first += most) {
        const int64_t end = first + most < t->n_panels ? first + most : t->n_panels;
        struct qni_direct_range p = {row, rows, 0, 0};
        for (; p.from < k; p.from += length) {
            p.n = k - p.from < length ? k - p.from : length;
            copy_x(t, &p, s->x);
            for (int64_t panel = first, n; panel < end; panel += n) {
                int32_t *const at = s->sums + (is_long ? (panel - first) * apart : 0);
                int32_t *const sums[2] = {at, at + apart};
                n = end - panel < 2 ? 1 : 2;
                for (int i = 0; i < n; i++)
                    prepare_weights(t, panel + i, &p, s, kind);
                multiply_panels(t, s, &p, panel, (int)n, sums, kind);
            }
        }
    }
}

QNI_TEMPLATE void multiply_all(const struct qni_direct_tile *t, const int kind)
{
    const int64_t each = qni_direct_even_rows(t->rows, ROWS, 4);
    for (int64_t row = 0; row < t->rows; row += each)
        multiply_block(t, row, t->rows - row < each ? t->rows - row : each, t->scratch, kind);
}

void qni_conv_q8_q8n16_mr5_signs_avx2(const struct qni_direct_tile *t)
{
    multiply_all(t, BYTES);
}
void qni_conv_q8_q4n16_mr5_avx2(const struct qni_direct_tile *t)
{
    multiply_all(t, NIBBLES);
}
