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
 * Bound: two vector multiplications a cycle; 128 products take six of them (12.75 instructions)
 * where lanes are joined, so 42.7 products a cycle, else eight (14.75), 32. */
#include "../../base/compiler.h"
#include "../simd/avx2_bytes.h"
#include "../simd/pairs.h"
#include "kernel.h"

enum { ROWS = QNI_PAIRS_TURNED, PANELS = 8, DEPTH = QNI_PAIRS_DEPTH, MR = QNI_PAIRS_ROWS };
enum { BYTES = 0, NIBBLES = 1 };

struct room {
    uint8_t x[ROWS * DEPTH], turned[DEPTH * ROWS + 64];
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

QNI_TEMPLATE void tile_rows(const struct room *room, const struct qni_pairs_ready *w, int64_t row,
                            int64_t chunks, const bool first, int32_t *sums, const int mr,
                            const bool is_joined)
{
    const __m256i less = _mm256_set1_epi32(128 - room->least);
    const __m256i less0 = _mm256_mullo_epi32(less, qni_pairs_load(w->sums));
    const __m256i less1 = _mm256_mullo_epi32(less, qni_pairs_load(w->sums + 8));
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
    qni_pairs_add(room->x + row * DEPTH, w->quads, chunks, mr, is_joined, sum);
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        qni_pairs_store(sums + i * QNI_PANEL, sum[i][0]);
        qni_pairs_store(sums + i * QNI_PANEL + 8, sum[i][1]);
    }
}

QNI_TEMPLATE void add_tiles(const struct room *room, const struct qni_pairs_ready *w,
                            const struct piece *p, int32_t *sums, const bool is_joined)
{
    const int64_t chunks = (p->n + 7) / 8;
    const bool first = p->from == 0;
    int64_t row = 0;
    for (; row + MR <= p->rows; row += MR)
        tile_rows(room, w, row, chunks, first, sums, MR, is_joined);
    if (p->rows - row >= 2) {
        tile_rows(room, w, row, chunks, first, sums, 2, is_joined);
        row += 2;
    }
    if (row < p->rows)
        tile_rows(room, w, row, chunks, first, sums, 1, is_joined);
}

static void add_panel(struct room *room, const struct qni_pairs_ready *w, const struct piece *p,
                      int32_t *sums)
{
    if (w->is_joined)
        add_tiles(room, w, p, sums, true);
    else
        add_tiles(room, w, p, sums, false);
    for (int h = 0; h < QNI_PANEL; h += 8) {
        if (w->first[h] == w->first[h + 8])
            continue;
        if (!room->is_turned)
            qni_pairs_turn(room->x, p->rows, (p->n + 15) / 16 * 16, room->turned);
        room->is_turned = true;
        qni_pairs_add_rest(room->turned, w, h, p->rows, sums);
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
    enum { HALF = 128, ALL = 255 };
    const int64_t chunks = (p->n + 7) / 8;
    if (t->kept == NULL) {
        bring_w(t, panel, p, room, kind);
        qni_pairs_part(&room->w, chunks, p->rows, room->top, false);
        return qni_pairs_ready_of(&room->w);
    }
    const int32_t top = room->top > HALF ? ALL : HALF;
    uint8_t *const kept = t->kept + (size_t)panel * t->kept_panel;
    int32_t *const is_for = (int32_t *)(void *)kept + p->from / each;
    uint8_t *const at =
        kept + QNI_DIRECT_KEPT + (size_t)(p->from / each) * qni_direct_kept_piece(each);
    if (*is_for == top)
        return kept_at(at, each);
    bring_w(t, panel, p, room, kind);
    qni_pairs_part(&room->w, chunks, p->rows, top, true);
    *is_for = keep(&room->w, chunks, at, each) ? top : 0;
    return qni_pairs_ready_of(&room->w);
}

/* ---- a tile ---------------------------------------------------------------------------------- */

QNI_TEMPLATE void multiply_rows(const struct qni_direct_tile *t, int64_t row, int64_t rows,
                                struct room *room, const int kind)
{
    const int64_t k = t->n_taps * t->tap_bytes;
    const int64_t each = qni_direct_piece(k);
    const bool is_long = each < k;
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
                const struct qni_pairs_ready w = ready_w(t, panel, &p, each, room, kind);
                add_panel(room, &w, &p, sums);
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
