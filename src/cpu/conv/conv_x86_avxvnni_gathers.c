/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions with 256-bit VNNI (CPUs without AVX-512). Contract and operand layouts:
 * direct_kernel.h.
 *
 * As conv_x86_vnni512_gathers.c: bytes of x are copied to rows that lie evenly and become x + 128
 * on the way, weights become signed when a panel is brought to the first cache, and 128 times their
 * sum comes off. 96 rows at a time meet 256 positions of a panel, 6 rows by 16 outputs in
 * registers: 12 sums, two halves of weights, four bytes of a row.
 *
 * Bound: 2 m n k operations / 64 each, two a cycle. 8 loads and 12 products in 6 cycles. What is
 * brought is half a vector of weights a cycle, that 96 rows meet in 48: 2 %. */
#include "../simd/avx2_bytes.h"
#include "kernel.h"

enum { ROWS = 96, MR = 6, DEPTH = 256, PANELS = 16 };
enum { BYTES = 0, NIBBLES = 1 };

struct gather_scratch {
    uint8_t x[ROWS * DEPTH];
    int8_t w[DEPTH * QNI_PANEL]; /* [quad of positions][output][4] */
    int32_t sums[PANELS * ROWS * QNI_PANEL];
    int32_t less[QNI_PANEL]; /* -128 sum(w) */
};
_Static_assert(sizeof(struct gather_scratch) <= QNI_DIRECT_SCRATCH_GATHERS, "scratch of a row");

QNI_TEMPLATE __m256i load(const void *from)
{
    return _mm256_loadu_si256((const __m256i *)from);
}
QNI_TEMPLATE void store(void *to, const __m256i v)
{
    _mm256_storeu_si256((__m256i *)to, v);
}

/* ---- x --------------------------------------------------------------------------------------- */

static void bring_x(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                    struct gather_scratch *scratch)
{
    const uint8_t flip = t->flip ^ 0x80;
    const int64_t *const rows = t->at + p->row, n_rows = p->rows;
    int64_t tap = p->from / t->tap_bytes, at = p->from % t->tap_bytes;
    for (int64_t done = 0, n; done < p->n; done += n, at = 0, tap++) {
        n = t->tap_bytes - at < p->n - done ? t->tap_bytes - at : p->n - done;
        const uint8_t *const a = (const uint8_t *)t->a + t->taps[tap] + at;
        for (int64_t r = 0; r < n_rows; r++)
            copy(a + rows[r], n, flip, scratch->x + r * DEPTH + done);
    }
    for (int64_t r = 0; p->n % 4 != 0 && r < n_rows; r++)
        memset(scratch->x + r * DEPTH + p->n, 0, (size_t)(4 - p->n % 4));
}

/* ---- weights --------------------------------------------------------------------------------- */

QNI_TEMPLATE void bring_half(const __m256i w, int8_t *to, __m256i *sum)
{
    store(to, w);
    *sum = _mm256_dpbusd_avx_epi32(*sum, _mm256_set1_epi8((char)0x80), w);
}

/* Units of 32 positions. */
QNI_TEMPLATE void bring_w(const struct qni_direct_tile *t, int64_t panel,
                          const struct qni_direct_range *p, struct gather_scratch *scratch,
                          const int kind)
{
    enum { QUAD = 64, HALF = 32, BEHIND = 4 * QUAD };
    const __m256i high = _mm256_set1_epi8((char)0x80), eight = _mm256_set1_epi8(8);
    const __m256i nibble = _mm256_set1_epi8(0x0f);
    const uint8_t *codes =
        t->b + (size_t)panel * t->b_panel + (size_t)p->from * (kind == NIBBLES ? 8 : 16);
    int8_t *to = scratch->w;
    __m256i sum[4];
    QNI_UNROLL
    for (int q = 0; q < 4; q++)
        sum[q] = _mm256_setzero_si256();
    for (int64_t unit = 0; unit < (p->n + 31) / 32; unit++, to += 8 * QUAD) {
        QNI_UNROLL
        for (int q = 0; q < 8; q++) {
            const __m256i v = load(codes + q * HALF);
            if (kind == BYTES) {
                const __m256i next = load(codes + q * HALF + BEHIND);
                bring_half(_mm256_xor_si256(v, high), to + q * HALF, &sum[q % 4]);
                bring_half(_mm256_xor_si256(next, high), to + q * HALF + BEHIND, &sum[q % 4]);
                continue;
            }
            const __m256i u = _mm256_srli_epi16(v, 4);
            bring_half(_mm256_sub_epi8(_mm256_and_si256(v, nibble), eight), to + q * HALF,
                       &sum[q % 4]);
            bring_half(_mm256_sub_epi8(_mm256_and_si256(u, nibble), eight), to + q * HALF + BEHIND,
                       &sum[q % 4]);
        }
        codes += kind == BYTES ? 8 * QUAD : 4 * QUAD;
    }
    for (int h = 0; h < 2; h++) {
        const __m256i all = _mm256_add_epi32(sum[h], sum[h + 2]);
        store(scratch->less + 8 * h, _mm256_sub_epi32(_mm256_setzero_si256(), all));
    }
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Codes that are brought next: the first tile asks for what each of its quads has of them. */
struct ahead {
    const uint8_t *codes;
    int64_t step;
};

QNI_TEMPLATE void tile_rows(const struct gather_scratch *scratch, int64_t row, int64_t quads,
                            int32_t *sums, struct ahead ahead, const bool first, const int mr)
{
    const uint8_t *x = scratch->x + row * DEPTH;
    const int8_t *w = scratch->w;
    __m256i sum[MR][2];
    sums += row * QNI_PANEL;
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        QNI_UNROLL
        for (int h = 0; h < 2; h++) {
            sum[i][h] = load(scratch->less + 8 * h);
            if (!first)
                sum[i][h] = _mm256_add_epi32(sum[i][h], load(sums + i * QNI_PANEL + 8 * h));
        }
    }
    for (; quads > 0; quads--, x += 4, w += 64) {
        const __m256i low = load(w), high = load(w + 32);
        _mm_prefetch((const char *)ahead.codes, _MM_HINT_T1);
        ahead.codes += ahead.step;
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            int32_t four;
            memcpy(&four, x + i * DEPTH, sizeof four);
            const __m256i u = _mm256_set1_epi32(four);
            sum[i][0] = _mm256_dpbusd_avx_epi32(sum[i][0], u, low);
            sum[i][1] = _mm256_dpbusd_avx_epi32(sum[i][1], u, high);
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        QNI_UNROLL
        for (int h = 0; h < 2; h++)
            store(sums + i * QNI_PANEL + 8 * h, sum[i][h]);
    }
}

/* One row more than there is, of what scratch happens to hold: its sums are nobody's. */
static void add_panel(const struct gather_scratch *scratch, const struct qni_direct_range *p,
                      int32_t *sums, struct ahead next)
{
    const int64_t quads = (p->n + 3) / 4;
    const bool first = p->from == 0;
    int64_t row = 0;
    for (; p->rows - row > 4; row += MR, next.step = 0)
        tile_rows(scratch, row, quads, sums, next, first, MR);
    if (p->rows - row > 2)
        tile_rows(scratch, row, quads, sums, next, first, 4);
    else if (p->rows > row)
        tile_rows(scratch, row, quads, sums, next, first, 2);
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* Products of a panel with all rows, whose bytes are in the room. */
QNI_NOINLINE static void multiply_panel(const struct qni_direct_tile *t,
                                        const struct qni_direct_range *p,
                                        const struct gather_scratch *scratch, int64_t panel,
                                        int32_t *sums, struct ahead next)
{
    add_panel(scratch, p, sums, next);
    if (p->from + p->n == t->n_taps * t->tap_bytes)
        finish_panel(t, p, panel, sums);
}

/* The panel after this, or the first one of the next range. */
QNI_TEMPLATE struct ahead codes_after(const struct qni_direct_tile *t,
                                      const struct qni_direct_range *p, int64_t panel,
                                      int64_t first, int64_t end, const int kind)
{
    const int64_t bytes = kind == NIBBLES ? 8 : 16;
    const bool is_last = panel + 1 == end;
    const uint8_t *const from = t->b + (is_last ? p->from + p->n : p->from) * bytes +
                                (size_t)(is_last ? first : panel + 1) * t->b_panel;
    const struct ahead ahead = {from, 4 * bytes};
    return ahead;
}

QNI_TEMPLATE void tile(const struct qni_direct_tile *t, const int kind)
{
    struct gather_scratch *const scratch = t->scratch;
    struct qni_direct_walk w =
        qni_direct_walk_of(t, qni_direct_even_rows(t->rows, ROWS, MR), DEPTH, PANELS);
    const struct qni_direct_range *const p = &w.p;
    while (qni_direct_walk_next(&w)) {
        bring_x(t, p, scratch);
        for (int64_t panel = w.first; panel < w.end; panel++) {
            const int64_t waiting = w.is_long ? panel - w.first : 0;
            bring_w(t, panel, p, scratch, kind);
            multiply_panel(t, p, scratch, panel, scratch->sums + waiting * ROWS * QNI_PANEL,
                           codes_after(t, p, panel, w.first, w.end, kind));
        }
    }
}

void qni_conv_q8_q8n16_mr6_avxvnni(const struct qni_direct_tile *t)
{
    tile(t, BYTES);
}
void qni_conv_q8_q4n16_mr6_avxvnni(const struct qni_direct_tile *t)
{
    tile(t, NIBBLES);
}
