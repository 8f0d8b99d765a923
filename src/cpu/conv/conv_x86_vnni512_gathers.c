/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions with AVX-512 VNNI. Contract and operand layouts: direct_kernel.h.
 *
 * vpdpbusd multiplies unsigned by signed bytes and adds four products to an int32 lane, and sums
 * are exact in any order. Here x is what is unsigned: its bytes are copied anyway, so that rows lie
 * evenly whatever the taps, and become x + 128 on the way. Weights become signed when a pair of
 * panels is brought to the first cache for all rows, and 128 times their sum comes off:
 *
 *     sum(x w) = sum((x + 128) w) - 128 sum(w)
 *
 * The other way round codes would stay as they are, but every row's sum would have to be known: for
 * 64 outputs of 64 channels that is a tenth of the products, 128 sum(w) a fiftieth.
 *
 * 98 rows at a time meet 512 positions of a pair of panels, 14 rows by 32 outputs in registers: 28
 * sums, two vectors of weights, four bytes of a row. 14, since images of networks are multiples of
 * 7. Sums wait in memory between two ranges of 512 positions: a pair's if there is only one, else
 * those of 16 panels.
 *
 * Bound: 2 m n k operations / 128 each, two a cycle (one on Zen 4). 16 loads and 28 products in 14
 * cycles leave both load ports room. What is brought is a vector of weights a cycle, that 98 rows
 * meet in 49: 2 %. */
#include <immintrin.h>

#include "../../base/compiler.h"
#include "../simd/avx512.h"
#include "kernel.h"

enum { ROWS = 98, MR = 14, NR = 2, DEPTH = 512, PANELS = 16 };
enum { LINES = 100 }; /* rows that there is room for: bytes are made of four at a time */
enum { BYTES = 0, NIBBLES = 1 };

struct gather_scratch {
    uint8_t x[ROWS * DEPTH];
    int8_t w[DEPTH * NR * QNI_PANEL]; /* [quad of positions][panel of the pair][output][4] */
    int32_t sums[PANELS * LINES * QNI_PANEL];
    int32_t less[NR][QNI_PANEL]; /* -128 sum(w) */
};
_Static_assert(sizeof(struct gather_scratch) <= QNI_DIRECT_SCRATCH_GATHERS, "scratch of a row");

/* ---- x --------------------------------------------------------------------------------------- */

/* n bytes of every row, from a tap's place on; then zeros up to 64 bytes, but not past the row. */
static void bring_long(const int8_t *a, const int64_t *rows, int64_t n_rows, int64_t at, int64_t n,
                       const __m512i flip, uint8_t *to)
{
    const int64_t rest = (n - 1) % 64 + 1, whole = n - rest, room_left = DEPTH - at - whole;
    const __mmask64 reads = ~0ull >> (64 - rest);
    const __m512i flip_rest = _mm512_maskz_mov_epi8(reads, flip);
    for (int64_t r = 0; r < n_rows; r++, to += DEPTH) {
        const int8_t *const from = a + rows[r];
        for (int64_t i = 0; i < whole; i += 64)
            _mm512_storeu_si512(to + i, _mm512_xor_si512(_mm512_loadu_si512(from + i), flip));
        const __m512i v = _mm512_xor_si512(_mm512_maskz_loadu_epi8(reads, from + whole), flip_rest);
        if (room_left >= 64)
            _mm512_storeu_si512(to + whole, v);
        else
            _mm512_mask_storeu_epi8(to + whole, ~0ull >> (64 - room_left), v);
    }
}

/* Copies at most 32 bytes of every row, and zeros up to 32: half as many stores as those of 64
 * bytes reach into a second line of the cache. */
static void bring_short(const int8_t *a, const int64_t *rows, int64_t n_rows, int64_t at, int64_t n,
                        const __m256i flip, uint8_t *to)
{
    const int64_t room_left = DEPTH - at;
    const __mmask32 reads = ~0u >> (32 - n);
    const __mmask32 writes = room_left >= 32 ? ~0u : ~0u >> (32 - room_left);
    const __m256i flip_rest = _mm256_maskz_mov_epi8(reads, flip);
    for (int64_t r = 0; r < n_rows; r++, to += DEPTH) {
        const __m256i v = _mm256_xor_si256(_mm256_maskz_loadu_epi8(reads, a + rows[r]), flip_rest);
        if (room_left >= 32)
            _mm256_storeu_si256((__m256i *)(void *)to, v);
        else
            _mm256_mask_storeu_epi8(to, writes, v);
    }
}

static void bring_x(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                    struct gather_scratch *scratch)
{
    const __m512i flip = _mm512_set1_epi8((char)(t->flip ^ 0x80));
    const int64_t *const rows = t->at + p->row;
    int64_t tap = p->from / t->tap_bytes, at = p->from % t->tap_bytes;
    for (int64_t done = 0, n; done < p->n; done += n, at = 0, tap++) {
        const int8_t *const a = t->a + t->taps[tap] + at;
        n = t->tap_bytes - at < p->n - done ? t->tap_bytes - at : p->n - done;
        if (n <= 32)
            bring_short(a, rows, p->rows, done, n, _mm512_castsi512_si256(flip), scratch->x + done);
        else
            bring_long(a, rows, p->rows, done, n, flip, scratch->x + done);
    }
}

/* ---- weights --------------------------------------------------------------------------------- */

QNI_TEMPLATE void bring_quad(const __m512i w, int8_t *to, __m512i *sum)
{
    _mm512_storeu_si512(to, w);
    *sum = _mm512_dpbusd_epi32(*sum, _mm512_set1_epi8((char)0x80), w);
}

/* Units of 32 positions of a panel, every nr-th vector from `to` on. */
QNI_TEMPLATE void bring_panel(const uint8_t *codes, int64_t units, int8_t *to, int32_t *less,
                              const int nr, const int kind)
{
    enum { CHAINS = 4, QUAD = 64 };
    const __m512i high = _mm512_set1_epi8((char)0x80), eight = _mm512_set1_epi8(8);
    __m512i sum[CHAINS];
    QNI_UNROLL
    for (int q = 0; q < CHAINS; q++)
        sum[q] = _mm512_setzero_si512();
    for (; units > 0; units--, to += 8 * QUAD * nr) {
        QNI_UNROLL
        for (int q = 0; q < CHAINS; q++, codes += QUAD) {
            const __m512i v = _mm512_loadu_si512(codes);
            int8_t *const first = to + q * QUAD * nr, *const second = first + 4 * QUAD * nr;
            if (kind == BYTES) {
                const __m512i next = _mm512_loadu_si512(codes + 4 * QUAD);
                bring_quad(_mm512_xor_si512(v, high), first, &sum[q]);
                bring_quad(_mm512_xor_si512(next, high), second, &sum[q]);
                continue;
            }
            __m512i lower, upper;
            qni_nibbles16(v, &lower, &upper);
            bring_quad(_mm512_sub_epi8(lower, eight), first, &sum[q]);
            bring_quad(_mm512_sub_epi8(upper, eight), second, &sum[q]);
        }
        codes += kind == BYTES ? 4 * QUAD : 0;
    }
    const __m512i all =
        _mm512_add_epi32(_mm512_add_epi32(sum[0], sum[1]), _mm512_add_epi32(sum[2], sum[3]));
    _mm512_storeu_si512(less, _mm512_sub_epi32(_mm512_setzero_si512(), all));
}

QNI_TEMPLATE void bring_w(const struct qni_direct_tile *t, int64_t panel,
                          const struct qni_direct_range *p, struct gather_scratch *scratch,
                          const int nr, const int kind)
{
    const size_t at = (size_t)p->from * (kind == NIBBLES ? 8 : 16);
    for (int j = 0; j < nr; j++)
        bring_panel(t->b + (size_t)(panel + j) * t->b_panel + at, (p->n + 31) / 32,
                    scratch->w + 64 * j, scratch->less[j], nr, kind);
}

/* ---- sums ------------------------------------------------------------------------------------ */

/* Codes that are brought next, while this pair is multiplied: what a quad has of a panel, for every
 * quad of a tile. Of tiles as many as there are panels ask for them, the others for nothing new. */
struct ahead {
    const uint8_t *codes[NR];
    int64_t step;
};

static inline struct ahead ahead_of(const struct ahead *a, int64_t row, int64_t nr)
{
    const int64_t j = row / MR;
    const struct ahead one = {{j < nr ? a->codes[j] : a->codes[0]}, j < nr ? a->step : 0};
    return one;
}

QNI_TEMPLATE void tile_rows(const struct gather_scratch *scratch, int64_t row, int64_t quads,
                            int32_t *sums, struct ahead ahead, const bool first, const int mr,
                            const int nr)
{
    const uint8_t *x = scratch->x + row * DEPTH;
    const int8_t *w = scratch->w;
    __m512i sum[MR][NR];
    sums += row * QNI_PANEL;
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        QNI_UNROLL
        for (int j = 0; j < nr; j++) {
            const int32_t *const from = sums + (j * LINES + i) * QNI_PANEL;
            sum[i][j] = _mm512_loadu_si512(scratch->less[j]);
            if (!first)
                sum[i][j] = _mm512_add_epi32(sum[i][j], _mm512_loadu_si512(from));
        }
    }
    for (; quads > 0; quads--, x += 4, w += 64 * nr) {
        __m512i v[NR];
        _mm_prefetch((const char *)ahead.codes[0], _MM_HINT_T1);
        ahead.codes[0] += ahead.step;
        QNI_UNROLL
        for (int j = 0; j < nr; j++) {
            v[j] = _mm512_loadu_si512(w + 64 * j);
            QNI_KEEP(v[j]);
        }
        QNI_UNROLL
        for (int i = 0; i < mr; i++) {
            int32_t four;
            memcpy(&four, x + i * DEPTH, sizeof four);
            const __m512i u = _mm512_set1_epi32(four);
            QNI_UNROLL
            for (int j = 0; j < nr; j++)
                sum[i][j] = _mm512_dpbusd_epi32(sum[i][j], u, v[j]);
        }
    }
    QNI_UNROLL
    for (int i = 0; i < mr; i++) {
        QNI_UNROLL
        for (int j = 0; j < nr; j++)
            _mm512_storeu_si512(sums + (j * LINES + i) * QNI_PANEL, sum[i][j]);
    }
}

/* Up to three rows more than there are, of what scratch happens to hold: their sums are nobody's.
 */
QNI_TEMPLATE void add_panels(const struct gather_scratch *scratch, const struct qni_direct_range *p,
                             int32_t *sums, const struct ahead *next, const int nr)
{
    const int64_t quads = (p->n + 3) / 4;
    const bool first = p->from == 0;
    int64_t row = 0;
    for (; p->rows - row > 11; row += MR)
        tile_rows(scratch, row, quads, sums, ahead_of(next, row, nr), first, MR, nr);
    for (; p->rows - row > 4; row += 7)
        tile_rows(scratch, row, quads, sums, ahead_of(next, row, nr), first, 7, nr);
    if (p->rows - row > 2)
        tile_rows(scratch, row, quads, sums, ahead_of(next, row, nr), first, 4, nr);
    else if (p->rows > row)
        tile_rows(scratch, row, quads, sums, ahead_of(next, row, nr), first, 2, nr);
}

/* ---- from sums to bytes ---------------------------------------------------------------------- */

/* ZERO: x has a zero point. SHIFT: y has one, is unsigned or has a floor. UNBOUNDED: what becomes
 * a code may be a NaN, or beyond +-2^21. */
enum { ZERO = 1, SHIFT = 2, UNBOUNDED = 4 };

struct finish {
    __m512 x_scale, y_inv, scale[NR], bias[NR];
    __m512i zero[NR], y_zero, floor, flip;
};

QNI_TEMPLATE struct finish finish_of(const struct qni_direct_tile *t, int64_t panel, const int nr)
{
    struct finish f;
    const int32_t zero = t->y_zero - (t->is_u8 ? 128 : 0); /* bytes are made signed, then flipped */
    const int32_t floor = zero < -128 ? -128 : zero > 127 ? 127 : zero;
    f.x_scale = _mm512_set1_ps(t->x_scale);
    f.y_inv = _mm512_set1_ps(t->y_inv);
    f.y_zero = _mm512_set1_epi16((short)zero);
    f.floor = _mm512_set1_epi8((char)(t->relu ? floor : -128));
    f.flip = _mm512_set1_epi8((char)(t->is_u8 ? 0x80 : 0));
    for (int j = 0; j < nr; j++) {
        const int64_t at = (panel + j) * QNI_PANEL;
        f.scale[j] = _mm512_loadu_ps(t->scale + at);
        f.bias[j] = _mm512_loadu_ps(t->bias + at);
        f.zero[j] = _mm512_loadu_si512(t->zero + at);
    }
    return f;
}

QNI_TEMPLATE __m512i code_of(const struct finish *f, const int32_t *sum, const int j,
                             const int what)
{
    __m512i d = _mm512_loadu_si512(sum);
    if (what & ZERO)
        d = _mm512_sub_epi32(d, f->zero[j]);
    __m512 v = _mm512_mul_ps(_mm512_mul_ps(f->scale[j], _mm512_cvtepi32_ps(d)), f->x_scale);
    v = _mm512_mul_ps(_mm512_add_ps(v, f->bias[j]), f->y_inv);
    if (what & UNBOUNDED) {
        const __m512 most = _mm512_set1_ps(0x1p21f), least = _mm512_set1_ps(-0x1p21f);
        const __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
        v = _mm512_maskz_min_ps(number, _mm512_max_ps(v, least), most);
    }
    return _mm512_cvtps_epi32(v);
}

/* Two vectors of code_of() as int16. What saturates here does so as a byte, too: |y_zero| is 128 at
 * most. */
QNI_TEMPLATE __m512i two_codes(const struct finish *f, const __m512i a, const __m512i b,
                               const int what)
{
    const __m512i packed = _mm512_packs_epi32(a, b);
    return (what & SHIFT) ? _mm512_adds_epi16(packed, f->y_zero) : packed;
}

/* 64 bytes: of a pair of panels two rows, of one panel four. Relu is a floor on the code: v <= 0
 * gives y_zero, and any other v no less. */
QNI_TEMPLATE __m512i some_rows(const struct finish *f, const int32_t *sum, const int nr,
                               const int what)
{
    /* Dwords: outputs 0, 4, 8, 12 of the first vector are every fourth one, and so on. */
    const __m512i order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    __m512i d[4];
    QNI_UNROLL
    for (int q = 0; q < 4; q++)
        d[q] = code_of(f, sum + (q % nr * LINES + q / nr) * QNI_PANEL, q % nr, what);
    __m512i packed =
        _mm512_packs_epi16(two_codes(f, d[0], d[1], what), two_codes(f, d[2], d[3], what));
    if (what & SHIFT)
        packed = _mm512_xor_si512(_mm512_max_epi8(packed, f->floor), f->flip);
    return _mm512_permutexvar_epi32(order, packed);
}

QNI_TEMPLATE void write_pair(const __m256i row, const __mmask32 n, uint8_t *to)
{
    if (n == (__mmask32)-1)
        _mm256_storeu_si256((__m256i *)(void *)to, row);
    else
        _mm256_mask_storeu_epi8(to, n, row);
}
QNI_TEMPLATE void write_one(const __m128i row, const __mmask16 n, uint8_t *to)
{
    if (n == (__mmask16)-1)
        _mm_storeu_si128((__m128i *)(void *)to, row);
    else
        _mm_mask_storeu_epi8(to, n, row);
}

QNI_TEMPLATE void panels_to_bytes(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                                  int64_t panel, const int32_t *sums, const int nr, const int what)
{
    const struct finish f = finish_of(t, panel, nr);
    const int64_t column = t->column + panel * QNI_PANEL, n = t->n - panel * QNI_PANEL;
    const uint32_t real = n >= 32 ? ~0u : ~(~0u << n);
    uint8_t *const *const y = t->y + p->row;
    const int64_t last = p->rows - 1;
    for (int64_t r = 0; nr == 2 && r < p->rows; r += 2, sums += 2 * QNI_PANEL) {
        const __m512i two = some_rows(&f, sums, nr, what);
        write_pair(_mm512_castsi512_si256(two), real, y[r] + column);
        if (r < last)
            write_pair(_mm512_extracti64x4_epi64(two, 1), real, y[r + 1] + column);
    }
    for (int64_t r = 0; nr == 1 && r < p->rows; r += 4, sums += 4 * QNI_PANEL) {
        const __m512i four = some_rows(&f, sums, nr, what);
        const __mmask16 mask = (__mmask16)real;
        write_one(_mm512_castsi512_si128(four), mask, y[r] + column);
        if (r + 1 <= last)
            write_one(_mm512_extracti32x4_epi32(four, 1), mask, y[r + 1] + column);
        if (r + 2 <= last)
            write_one(_mm512_extracti32x4_epi32(four, 2), mask, y[r + 2] + column);
        if (r + 3 <= last)
            write_one(_mm512_extracti32x4_epi32(four, 3), mask, y[r + 3] + column);
    }
}

static void panels_to_words(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                            int64_t panel, const int32_t *sums, int64_t nr)
{
    for (int64_t j = 0; j < nr; j++)
        for (int64_t r = 0; r < p->rows; r++) {
            const int64_t at = (panel + j) * QNI_PANEL;
            float *const to = t->c + (p->row + r) * 32 + at;
            const __m512i d =
                _mm512_sub_epi32(_mm512_loadu_si512(sums + (j * LINES + r) * QNI_PANEL),
                                 _mm512_loadu_si512(t->zero + at));
            if (t->kind == QNI_DIRECT_RAW)
                _mm512_storeu_si512(to, d);
            else
                _mm512_storeu_ps(to, _mm512_fmadd_ps(_mm512_loadu_ps(t->scale + at),
                                                     _mm512_cvtepi32_ps(d), _mm512_setzero_ps()));
        }
}

QNI_TEMPLATE void finish_panels(const struct qni_direct_tile *t, const struct qni_direct_range *p,
                                int64_t panel, const int32_t *sums, const int nr)
{
    if (t->kind != QNI_DIRECT_BYTES)
        panels_to_words(t, p, panel, sums, nr);
    else if (!t->is_bounded)
        panels_to_bytes(t, p, panel, sums, nr, ZERO | SHIFT | UNBOUNDED);
    else if (t->has_zero)
        panels_to_bytes(t, p, panel, sums, nr, ZERO | SHIFT);
    else if (t->y_zero != 0 || t->is_u8 || t->relu)
        panels_to_bytes(t, p, panel, sums, nr, SHIFT);
    else
        panels_to_bytes(t, p, panel, sums, nr, 0);
}

/* ---- a tile ---------------------------------------------------------------------------------- */

/* Products of one or two panels with all rows, whose bytes are in the room. */
QNI_NOINLINE static void multiply_pair(const struct qni_direct_tile *t,
                                       const struct qni_direct_range *p,
                                       const struct gather_scratch *scratch, int64_t panel,
                                       int32_t *sums, const struct ahead *next)
{
    add_panels(scratch, p, sums, next, NR);
    if (p->from + p->n == t->n_taps * t->tap_bytes)
        finish_panels(t, p, panel, sums, NR);
}
QNI_NOINLINE static void multiply_one(const struct qni_direct_tile *t,
                                      const struct qni_direct_range *p,
                                      const struct gather_scratch *scratch, int64_t panel,
                                      int32_t *sums, const struct ahead *next)
{
    add_panels(scratch, p, sums, next, 1);
    if (p->from + p->n == t->n_taps * t->tap_bytes)
        finish_panels(t, p, panel, sums, 1);
}

/* The pair after `panel`, or the first one of the next range. */
QNI_TEMPLATE struct ahead codes_after(const struct qni_direct_tile *t,
                                      const struct qni_direct_range *p, int64_t panel,
                                      int64_t first, int64_t end, const int kind)
{
    const int64_t bytes = kind == NIBBLES ? 8 : 16, next = panel + NR;
    const bool is_last = next >= end;
    const uint8_t *const from = t->b + (is_last ? (p->from + p->n) * bytes : p->from * bytes) +
                                (size_t)(is_last ? first : next) * t->b_panel;
    const struct ahead ahead = {{from, from + t->b_panel}, 4 * bytes};
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
        for (int64_t panel = w.first; panel < w.end; panel += NR) {
            const struct ahead next = codes_after(t, p, panel, w.first, w.end, kind);
            int32_t *const sums =
                scratch->sums + (w.is_long ? (panel - w.first) * LINES * QNI_PANEL : 0);
            if (panel + 1 < w.end) {
                bring_w(t, panel, p, scratch, NR, kind);
                multiply_pair(t, p, scratch, panel, sums, &next);
            } else {
                bring_w(t, panel, p, scratch, 1, kind);
                multiply_one(t, p, scratch, panel, sums, &next);
            }
        }
    }
}

void qni_conv_q8_q8n16_mr14_vnni512(const struct qni_direct_tile *t)
{
    tile(t, BYTES);
}
void qni_conv_q8_q4n16_mr14_vnni512(const struct qni_direct_tile *t)
{
    tile(t, NIBBLES);
}
