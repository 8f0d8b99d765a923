/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions with AVX2. Contract and operand layouts: kernel.h; how bytes are
 * multiplied: ../simd/pairs.h.
 *
 * 64 rows at a time: 256 positions of them are widened, wherever the taps lie, so that nothing else
 * knows of taps; then every panel's weights for these positions, which 16 tiles of 4 rows meet
 * while they are in the first cache. Sums wait in memory between two pieces of 256 positions: one
 * panel's if there is only one piece, else those of 16 panels.
 *
 * Bound: 32 products a cycle (2 m n k operations / 64). Widening weights is about 5 cycles for 64
 * bytes that 64 rows meet, 4 % of their products; widening x and what comes off for it about a
 * quarter of a cycle for a byte that meets 16 outputs in half a cycle: 3 % at 256 outputs. */
#include "../../base/compiler.h"
#include "../simd/avx2_bytes.h"
#include "../simd/pairs.h"
#include "kernel.h"

enum { ROWS = 64, PANELS = 16, DEPTH = QNI_PAIRS_DEPTH, MR = QNI_PAIRS_ROWS };
enum { BYTES = 0, NIBBLES = 1 };

struct room {
    int16_t x[ROWS * DEPTH], w[DEPTH * QNI_PANEL];
    int32_t sums[PANELS * ROWS * QNI_PANEL];
    int32_t less_x[ROWS], less_w[QNI_PANEL];
};
_Static_assert(sizeof(struct room) <= QNI_DIRECT_SCRATCH_GATHERS, "scratch of a row");

/* ---- x --------------------------------------------------------------------------------------- */

static void widen_tap(const struct qni_direct_tile *t, const struct piece *p, int64_t tap, size_t n,
                      int16_t *to)
{
    const __m128i flip = _mm_set1_epi8((char)t->flip);
    const int64_t *const at = t->at + p->row;
    const int8_t *const a = t->a + tap;
    if (n % 32 == 0) {
        for (int64_t r = 0; r < p->rows; r++)
            for (size_t i = 0; i < n; i += 32) {
                qni_pairs_16(a + at[r] + i, flip, to + r * DEPTH + i);
                qni_pairs_16(a + at[r] + i + 16, flip, to + r * DEPTH + i + 16);
            }
        return;
    }
    for (int64_t r = 0; r < p->rows; r++)
        qni_pairs_of_x(a + at[r], (int64_t)n, flip, to + r * DEPTH);
}

static void widen_x(const struct qni_direct_tile *t, const struct piece *p, struct room *room)
{
    int64_t tap = p->from / t->tap_bytes, at = p->from % t->tap_bytes;
    for (int64_t done = 0, n; done < p->n; done += n, at = 0, tap++) {
        n = t->tap_bytes - at < p->n - done ? t->tap_bytes - at : p->n - done;
        widen_tap(t, p, t->taps[tap] + at, (size_t)n, room->x + done);
    }
    const int64_t end = (p->n + 31) / 32 * 32;
    for (int64_t r = 0; r < p->rows; r++) {
        int16_t *const x = room->x + r * DEPTH;
        for (int64_t i = p->n; i < end; i++)
            x[i] = 0;
        room->less_x[r] = qni_pairs_less_x(x, end);
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

QNI_TEMPLATE void tile_rows(const struct room *room, int64_t row, int64_t quads, const bool first,
                            int32_t *sums, const int mr)
{
    const __m256i less0 = _mm256_loadu_si256((const __m256i *)(const void *)room->less_w);
    const __m256i less1 = _mm256_loadu_si256((const __m256i *)(const void *)(room->less_w + 8));
    __m256i sum[MR][2];
    sums += row * QNI_PANEL;
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        const __m256i less = _mm256_set1_epi32(room->less_x[row + i]);
        const __m256i *const from = (const __m256i *)(const void *)(sums + i * QNI_PANEL);
        const __m256i s0 = first ? _mm256_setzero_si256() : _mm256_loadu_si256(from);
        const __m256i s1 = first ? _mm256_setzero_si256() : _mm256_loadu_si256(from + 1);
        sum[i][0] = _mm256_sub_epi32(s0, _mm256_add_epi32(less, less0));
        sum[i][1] = _mm256_sub_epi32(s1, _mm256_add_epi32(less, less1));
    }
    qni_pairs_add(room->x + row * DEPTH, room->w, quads, mr, sum);
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        __m256i *const to = (__m256i *)(void *)(sums + i * QNI_PANEL);
        _mm256_storeu_si256(to, sum[i][0]);
        _mm256_storeu_si256(to + 1, sum[i][1]);
    }
}

static void add_panel(const struct room *room, const struct piece *p, int32_t *sums)
{
    const int64_t quads = (p->n + 3) / 4;
    int64_t row = 0;
    for (; row + MR <= p->rows; row += MR)
        tile_rows(room, row, quads, p->from == 0, sums, MR);
    if (p->rows - row == 3)
        tile_rows(room, row, quads, p->from == 0, sums, 3);
    else if (p->rows - row == 2)
        tile_rows(room, row, quads, p->from == 0, sums, 2);
    else if (p->rows - row == 1)
        tile_rows(room, row, quads, p->from == 0, sums, 1);
}

QNI_TEMPLATE void widen_w(const struct qni_direct_tile *t, int64_t panel, const struct piece *p,
                          struct room *room, const int kind)
{
    const uint8_t *const b = t->b + (size_t)panel * t->b_panel;
    if (kind == NIBBLES)
        qni_pairs_of_nibbles(b + p->from * 8, (p->n + 31) / 32, room->w, room->less_w);
    else
        qni_pairs_of_bytes(b + p->from * 16, (p->n + 3) / 4, _mm256_set1_epi8((char)0x80), room->w,
                           room->less_w);
}

/* ---- a tile ---------------------------------------------------------------------------------- */

QNI_TEMPLATE void multiply_rows(const struct qni_direct_tile *t, int64_t row, int64_t rows,
                                struct room *room, const int kind)
{
    const int64_t k = t->n_taps * t->tap_bytes;
    const bool is_long = k > DEPTH;
    const int64_t most = is_long ? PANELS : t->n_panels;
    for (int64_t first = 0; first < t->n_panels; first += most) {
        const int64_t end = first + most < t->n_panels ? first + most : t->n_panels;
        struct piece p = {row, rows, 0, 0};
        for (; p.from < k; p.from += DEPTH) {
            p.n = k - p.from < DEPTH ? k - p.from : DEPTH;
            widen_x(t, &p, room);
            for (int64_t panel = first; panel < end; panel++) {
                int32_t *const sums =
                    room->sums + (is_long ? (panel - first) * ROWS * QNI_PANEL : 0);
                widen_w(t, panel, &p, room, kind);
                add_panel(room, &p, sums);
                if (p.from + p.n == k)
                    finish_panel(t, &p, panel, sums);
            }
        }
    }
}

/* Blocks of rows are even, so that none is left with a few. */
QNI_TEMPLATE void tile(const struct qni_direct_tile *t, const int kind)
{
    const int64_t blocks = (t->rows + ROWS - 1) / ROWS;
    const int64_t each = blocks == 0 ? 0 : ((t->rows + blocks - 1) / blocks + MR - 1) / MR * MR;
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
