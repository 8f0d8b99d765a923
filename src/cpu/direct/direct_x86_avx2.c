/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions with AVX2. Contract and operand layouts: kernel.h; how bytes are
 * multiplied: ../simd/pairs.h.
 *
 * Up to 256 rows at a time: up to 384 positions of them are copied, wherever the taps lie, so that
 * nothing else knows of taps; then every panel's weights for these positions are made what the x
 * there can meet, and tiles of 4 rows meet them while they are in the first cache. Sums wait in
 * memory between two pieces of positions: one panel's if there is only one piece, else those of 8
 * panels.
 *
 * Bound: two vector multiplications a cycle; 128 products take six of them (12.75 instructions)
 * where lanes are joined, so 42.7 products a cycle, else eight (14.75), 32. */
#include "../../base/compiler.h"
#include "../simd/avx2_bytes.h"
#include "../simd/pairs.h"
#include "kernel.h"

enum { ROWS = QNI_PAIRS_TURNED, PANELS = 8, DEPTH = QNI_PAIRS_DEPTH, MR = QNI_PAIRS_ROWS };
enum { BYTES = 0, NIBBLES = 1 };

struct room {
    uint8_t x[ROWS * DEPTH], turned[DEPTH * ROWS];
    int32_t sums[PANELS * ROWS * QNI_PANEL];
    int32_t least, top; /* x was more by least, and is at most top */
    bool is_turned;
    struct qni_pairs_w w;
};
_Static_assert(sizeof(struct room) <= QNI_DIRECT_SCRATCH_GATHERS, "scratch of a row");

/* ---- x --------------------------------------------------------------------------------------- */

static void copy_tap(const struct qni_direct_tile *t, const struct piece *p, int64_t tap, int64_t n,
                     uint8_t *to)
{
    const uint8_t flip = t->flip ^ 0x80;
    const int64_t *const at = t->at + p->row;
    const uint8_t *const a = (const uint8_t *)t->a + tap;
    for (int64_t r = 0; r < p->rows; r++)
        copy(a + at[r], n, flip, to + r * DEPTH);
}

static void copy_x(const struct qni_direct_tile *t, const struct piece *p, struct room *room)
{
    int64_t tap = p->from / t->tap_bytes, at = p->from % t->tap_bytes;
    for (int64_t done = 0, n; done < p->n; done += n, at = 0, tap++) {
        n = t->tap_bytes - at < p->n - done ? t->tap_bytes - at : p->n - done;
        copy_tap(t, p, t->taps[tap] + at, n, room->x + done);
    }
    /* Weights are zeros there: any byte that takes no part in what is least and most will do. */
    const int64_t end = (p->n + 31) / 32 * 32;
    for (int64_t r = 0; r < p->rows && p->n < end; r++) {
        uint8_t *const x = room->x + r * DEPTH;
        memset(x + p->n, x[0], (size_t)(end - p->n));
    }
    room->least = qni_pairs_settle(room->x, p->rows, end, &room->top);
    room->is_turned = false;
}

/* ---- sums ------------------------------------------------------------------------------------ */

QNI_TEMPLATE void tile_rows(const struct room *room, int64_t row, int64_t chunks, const bool first,
                            int32_t *sums, const int mr, const bool is_joined)
{
    const __m256i less = _mm256_set1_epi32(128 - room->least);
    const __m256i less0 = _mm256_mullo_epi32(less, qni_pairs_load(room->w.sums));
    const __m256i less1 = _mm256_mullo_epi32(less, qni_pairs_load(room->w.sums + 8));
    __m256i sum[MR][2];
    sums += row * QNI_PANEL;
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        const int32_t *const from = sums + i * QNI_PANEL;
        const __m256i s0 = first ? _mm256_setzero_si256() : qni_pairs_load(from);
        const __m256i s1 = first ? _mm256_setzero_si256() : qni_pairs_load(from + 8);
        sum[i][0] = _mm256_sub_epi32(s0, less0);
        sum[i][1] = _mm256_sub_epi32(s1, less1);
    }
    qni_pairs_add(room->x + row * DEPTH, room->w.quads, chunks, mr, is_joined, sum);
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        qni_pairs_store(sums + i * QNI_PANEL, sum[i][0]);
        qni_pairs_store(sums + i * QNI_PANEL + 8, sum[i][1]);
    }
}

QNI_TEMPLATE void add_tiles(const struct room *room, const struct piece *p, int32_t *sums,
                            const bool is_joined)
{
    const int64_t chunks = (p->n + 7) / 8;
    const bool first = p->from == 0;
    int64_t row = 0;
    for (; row + MR <= p->rows; row += MR)
        tile_rows(room, row, chunks, first, sums, MR, is_joined);
    if (p->rows - row >= 2) {
        tile_rows(room, row, chunks, first, sums, 2, is_joined);
        row += 2;
    }
    if (row < p->rows)
        tile_rows(room, row, chunks, first, sums, 1, is_joined);
}

static void add_panel(struct room *room, const struct piece *p, int32_t *sums)
{
    if (room->w.is_joined)
        add_tiles(room, p, sums, true);
    else
        add_tiles(room, p, sums, false);
    for (int h = 0; h < QNI_PANEL; h += 8) {
        int32_t n = 0;
        for (int j = 0; j < 8; j++)
            n += room->w.rest[h + j].n;
        if (n == 0)
            continue;
        if (!room->is_turned)
            qni_pairs_turn(room->x, p->rows, (p->n + 15) / 16 * 16, room->turned);
        room->is_turned = true;
        qni_pairs_add_rest(room->turned, room->w.rest + h, p->rows, sums + h);
    }
}

/* Values of a panel, and zeros up to a whole chunk. */
QNI_TEMPLATE void bring_w(const struct qni_direct_tile *t, int64_t panel, const struct piece *p,
                          struct room *room, const int kind)
{
    const uint8_t *const b = t->b + (size_t)panel * t->b_panel;
    const int64_t chunks = (p->n + 7) / 8;
    if (kind == NIBBLES)
        qni_pairs_of_nibbles(b + p->from * 8, (p->n + 31) / 32, room->w.quads);
    else
        copy(b + p->from * 16, chunks * 8 * QNI_PANEL, 0x80, (uint8_t *)room->w.quads);
    qni_pairs_part(&room->w, chunks, p->rows, room->top);
}

/* ---- a tile ---------------------------------------------------------------------------------- */

QNI_TEMPLATE void multiply_rows(const struct qni_direct_tile *t, int64_t row, int64_t rows,
                                struct room *room, const int kind)
{
    const int64_t k = t->n_taps * t->tap_bytes;
    const int64_t pieces = (k + DEPTH - 1) / DEPTH;
    const int64_t each = (k + 32 * pieces - 1) / (32 * pieces) * 32;
    const bool is_long = pieces > 1;
    const int64_t most = is_long ? PANELS : t->n_panels;
    for (int64_t first = 0; first < t->n_panels; first += most) {
        const int64_t end = first + most < t->n_panels ? first + most : t->n_panels;
        struct piece p = {row, rows, 0, 0};
        for (; p.from < k; p.from += each) {
            p.n = k - p.from < each ? k - p.from : each;
            copy_x(t, &p, room);
            for (int64_t panel = first; panel < end; panel++) {
                int32_t *const sums =
                    room->sums + (is_long ? (panel - first) * ROWS * QNI_PANEL : 0);
                bring_w(t, panel, &p, room, kind);
                add_panel(room, &p, sums);
                if (p.from + p.n == k)
                    finish_panel(t, &p, panel, sums);
            }
        }
    }
}

QNI_TEMPLATE void tile(const struct qni_direct_tile *t, const int kind)
{
    const int64_t each = qni_direct_even_rows(t->rows, ROWS, MR);
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
