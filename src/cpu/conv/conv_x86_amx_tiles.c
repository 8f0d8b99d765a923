/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions on AMX tiles. Contract and operand layouts: direct_kernel.h.
 *
 * A block of 32 outputs x 32 channels lives in four C tiles for the whole reduction, so that int32
 * sums are stored once. A tiles are 16 outputs as they lie in the image: tap by tap the same tile
 * moves by a fixed distance. Four loads feed four products of 16 cycles each. Blocks go through
 * three stages: block i multiplies; a tile of block i - 1 is stored just before block i takes it
 * over; the sums of block i - 2, in memory by now, become bytes, some rows after every product.
 * With more than eight steps (QNI_DIRECT_NEAR) there is time to do that for block i - 1, from the
 * second step on, and the first cache holds 4 KiB less.
 *
 * While tiles are at work, 512-bit multiplications and conversions have one port of the core, not
 * two (measured: 64 of them in 64 cycles, in 31 without tiles); additions, logic and packing have
 * both, or the other one. So what can be an addition is one:
 *
 *   int32 to f32   tiles begin with the bits of 1.5 * 2^23 instead of 0. Numbers of [2^23, 2^24]
 *                  are one apart, so the sum's bits are those of 1.5 * 2^23 + d wherever |d| <=
 *                  2^22, and subtracting 1.5 * 2^23 is exact. |d| <= 128 * 128 * k: k up to 256
 *   rounding       |v| < 2^22: 1.5 * 2^23 + v is rounded to an integer, ties to even, and its bits
 *                  less those of 1.5 * 2^23 are that integer. Subtracting those less y's zero point
 *                  adds the zero point; no sum leaves int32, packing saturates, and so the code is
 *                  the same as with the zero point added later. One half of a row is rounded so
 *                  and one converted: both ports are busy
 *   row sums       tiles begin with what is subtracted from each row
 *
 * Exact because |sum| <= 128 * 255 * 32768 < 2^31 even on codes as they are packed, and because the
 * steps to y are those of docs/numerics.md. is_bounded allows to leave out the clamp to +-2^21 and
 * the test for NaN. Relu is a floor on the code: v <= 0 gives y_zero, and any other v no less;
 * packing is monotonic, so the floor can wait for the bytes. */
#include <immintrin.h>

#include "../../base/compiler.h"
#include "../simd/amx.h"
#include "../simd/avx512.h"
#include "kernel.h"

enum { BLOCK = 32, BLOCK_BYTES = BLOCK * BLOCK * 4, MAGIC = 0x4b400000 };

/* ---- weights --------------------------------------------------------------------------------- */

static void unpack_bytes(const uint8_t *codes, int64_t units, uint8_t *out)
{
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    for (int64_t i = 0; i < units * 8; i++)
        _mm512_store_si512(out + 64 * i,
                           _mm512_xor_si512(_mm512_loadu_si512(codes + 64 * i), flip));
    if (units % 2 != 0)
        memset(out + units * 512, 0, 512);
}

static void unpack_nibbles(const uint8_t *codes, int64_t units, uint8_t *out)
{
    const __m512i eight = _mm512_set1_epi8(8);
    if (units % 2 != 0)
        memset(out + units * 512, 0, 512);
    for (; units > 0; units--, codes += 256, out += 512) {
        QNI_UNROLL
        for (int r = 0; r < 4; r++) {
            __m512i low, high;
            qni_nibbles16(_mm512_loadu_si512(codes + 64 * r), &low, &high);
            _mm512_store_si512(out + 64 * r, _mm512_sub_epi8(low, eight));
            _mm512_store_si512(out + 256 + 64 * r, _mm512_sub_epi8(high, eight));
        }
    }
}

static inline __m512i sums_of(const int8_t *a, int64_t bytes)
{
    const __m512i ones = _mm512_set1_epi8(1);
    __m512i sum = _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones, _mm512_loadu_si512(a));
    for (int64_t i = 64; i < bytes; i += 64)
        sum = _mm512_dpbusd_epi32(sum, ones, _mm512_loadu_si512(a + i));
    return sum;
}

/* Four rows at a time: their lanes are added beside each other. */
static void sum_rows(const int8_t *a, size_t pixel, int64_t rows, int64_t bytes, int32_t *sums)
{
    for (; rows >= 4; rows -= 4, a += 4 * pixel, sums += 4) {
        const __m512i s0 = sums_of(a, bytes), s1 = sums_of(a + pixel, bytes);
        const __m512i s2 = sums_of(a + 2 * pixel, bytes), s3 = sums_of(a + 3 * pixel, bytes);
        const __m512i low =
            _mm512_add_epi32(_mm512_unpacklo_epi32(s0, s1), _mm512_unpackhi_epi32(s0, s1));
        const __m512i high =
            _mm512_add_epi32(_mm512_unpacklo_epi32(s2, s3), _mm512_unpackhi_epi32(s2, s3));
        const __m512i all =
            _mm512_add_epi32(_mm512_unpacklo_epi64(low, high), _mm512_unpackhi_epi64(low, high));
        const __m256i half =
            _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
        const __m128i four =
            _mm_add_epi32(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
        _mm_storeu_si128((__m128i *)(void *)sums, _mm_slli_epi32(four, 7));
    }
    for (; rows > 0; rows--, a += pixel)
        *sums++ = 128 * _mm512_reduce_add_epi32(sums_of(a, bytes));
}

/* ---- from sums to bytes ---------------------------------------------------------------------- */

/* What all blocks share: copies, so that no store can seem to change them. */
struct finish {
    __m512 x_scale, y_inv, magic;
    __m512i less, floor, flip, order;
    const float *scale, *bias;
    const int32_t *zero;
    uint8_t *const *y;
    int64_t column, n;
};

static struct finish finish_of(const struct qni_direct_tile *t)
{
    struct finish f;
    const int32_t zero = t->y_zero - (t->is_u8 ? 128 : 0); /* bytes are made signed, then flipped */
    const int32_t floor = zero < -128 ? -128 : zero > 127 ? 127 : zero;
    f.x_scale = _mm512_set1_ps(t->x_scale);
    f.y_inv = _mm512_set1_ps(t->y_inv);
    f.magic = _mm512_set1_ps(0x1.8p23f);
    f.less = _mm512_set1_epi32(MAGIC - zero);
    f.floor = _mm512_set1_epi8((char)(t->relu ? floor : -128));
    f.flip = _mm512_set1_epi8((char)(t->is_u8 ? 0x80 : 0));
    /* Dwords of [row of 2][half of 2] in lanes to two rows of 32 bytes. */
    f.order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    f.scale = t->scale;
    f.bias = t->bias;
    f.zero = t->zero;
    f.y = t->y;
    f.column = t->column;
    f.n = t->n;
    return f;
}

/* NEAR: sums are floats 1.5 * 2^23 + d. SHIFT: y has a zero point, is unsigned or has a floor.
 * UNBOUNDED: what becomes a code may be a NaN, or beyond +-2^21. */
enum { BIAS = 1, ZERO = 2, SHIFT = 4, UNBOUNDED = 8, SUMS = 16, NEAR = 32 };

/* Sums of a block that wait to be finished: so many rows of it, which go where y says. */
struct waiting {
    const int32_t *dot;
    uint8_t *const *y;
    int64_t block, rows;
    __mmask32 columns; /* that are there */
};

/* What makes bytes of the sums of 16 outputs. */
struct output {
    __m512 scale, bias;
    __m512i zero;
};

/* The columns from `at` on that are there, of 32. Stores are masked in all blocks, since that costs
 * nothing (measured). */
static inline __mmask32 columns_from(const struct finish *f, int64_t at)
{
    return f->n - at >= 32 ? 0xffffffffu : (1u << (f->n - at)) - 1u;
}

QNI_TEMPLATE struct output output_of(const struct finish *f, int64_t column, const int what)
{
    struct output o = {_mm512_loadu_ps(f->scale + column), _mm512_setzero_ps(),
                       _mm512_setzero_si512()};
    if (what & BIAS)
        o.bias = _mm512_loadu_ps(f->bias + column);
    if (what & ZERO)
        o.zero = _mm512_loadu_si512(f->zero + column);
    return o;
}

/* by_adding: rounded by the addition of a number, else by a conversion. */
QNI_TEMPLATE __m512i code_of(const struct finish *f, const struct output *o, const int32_t *dot,
                             const bool by_adding, const int what)
{
    __m512i d = _mm512_load_si512(dot);
    if (what & ZERO)
        d = _mm512_sub_epi32(d, o->zero);
    __m512 v =
        (what & NEAR) ? _mm512_sub_ps(_mm512_castsi512_ps(d), f->magic) : _mm512_cvtepi32_ps(d);
    v = _mm512_mul_ps(_mm512_mul_ps(o->scale, v), f->x_scale);
    if (what & BIAS)
        v = _mm512_add_ps(v, o->bias);
    v = _mm512_mul_ps(v, f->y_inv);
    if (what & UNBOUNDED) {
        const __m512 most = _mm512_set1_ps(0x1p21f);
        const __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
        v = _mm512_min_ps(_mm512_max_ps(v, _mm512_sub_ps(_mm512_setzero_ps(), most)), most);
        v = _mm512_maskz_mov_ps(number, v);
    }
    if (by_adding)
        return _mm512_sub_epi32(_mm512_castps_si512(_mm512_add_ps(v, f->magic)), f->less);
    return _mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Two rows of 32 outputs, the second one `second` rows on. Without BIAS a sum of -0 keeps its sign,
 * which no code shows. */
QNI_TEMPLATE void finish_pair(const struct finish *f, const struct waiting *w,
                              const struct output *o0, const struct output *o1, int64_t second,
                              const int what)
{
    const int64_t at = w->block * 32;
    const int32_t *const dot = w->dot, *const dot1 = dot + 32 * second;
    const bool all = (what & (SHIFT | UNBOUNDED)) != 0;
    const __m512i a =
        _mm512_packs_epi32(code_of(f, o0, dot, all, what), code_of(f, o1, dot + 16, true, what));
    const __m512i b =
        _mm512_packs_epi32(code_of(f, o0, dot1, all, what), code_of(f, o1, dot1 + 16, true, what));
    __m512i packed = _mm512_packs_epi16(a, b);
    if (what & SHIFT)
        packed = _mm512_xor_si512(_mm512_max_epi8(packed, f->floor), f->flip);
    /* Lanes of `packed`: 4 bytes of a's first half, 4 of its second, the same of b. */
    const __m512i rows = _mm512_permutexvar_epi32(f->order, packed);
    uint8_t *const y = w->y[0] + f->column + at;
    uint8_t *const y1 = w->y[second] + f->column + at;
    _mm256_mask_storeu_epi8(y, w->columns, _mm512_castsi512_si256(rows));
    _mm256_mask_storeu_epi8(y1, w->columns, _mm512_extracti64x4_epi64(rows, 1));
}

QNI_TEMPLATE void finish_all(const struct finish *f, struct waiting *w, const int what)
{
    if (w->rows <= 0)
        return;
    const struct output o0 = output_of(f, w->block * 32, what);
    const struct output o1 = output_of(f, w->block * 32 + 16, what);
    for (; w->rows > 0; w->rows -= 2, w->y += 2, w->dot += 64)
        finish_pair(f, w, &o0, &o1, w->rows > 1, what);
}

/* ---- products -------------------------------------------------------------------------------- */

/* The rows that multiply now, and what the tiles hold of the block before. */
struct block {
    int64_t block;
    size_t a;               /* bytes before its rows */
    bool two, second_panel; /* more than 16 rows, outputs */
    char *held;             /* where the tiles go, each before its first product */
    const int32_t *begin;   /* what each row of a tile begins with, 16 a row */
    size_t begin_stride;
};

/* Weights as they are packed are more than the first cache holds (direct_kernel.h): loads that
 * leave it to the rows of a, to the sums and to y. */
QNI_TEMPLATE void load_weights(const int tile, const uint8_t *b, const int what)
{
    if (tile == 6 && (what & SUMS))
        _tile_stream_loadd(6, b, 64);
    else if (tile == 6)
        _tile_loadd(6, b, 64);
    else if (what & SUMS)
        _tile_stream_loadd(7, b, 64);
    else
        _tile_loadd(7, b, 64);
}

QNI_TEMPLATE void product(const int c, const int what)
{
    if (c == 0 && (what & SUMS))
        _tile_dpbsud(0, 4, 6);
    else if (c == 0)
        _tile_dpbssd(0, 4, 6);
    else if (c == 1 && (what & SUMS))
        _tile_dpbsud(1, 4, 7);
    else if (c == 1)
        _tile_dpbssd(1, 4, 7);
    else if (c == 2 && (what & SUMS))
        _tile_dpbsud(2, 5, 6);
    else if (c == 2)
        _tile_dpbssd(2, 5, 6);
    else if (what & SUMS)
        _tile_dpbsud(3, 5, 7);
    else
        _tile_dpbssd(3, 5, 7);
}

#define TAKE_OVER(tile, at)                                                                        \
    do {                                                                                           \
        _tile_stored(tile, now->held + (at), 128);                                                 \
        if (what & (NEAR | SUMS))                                                                  \
            _tile_loadd(tile, now->begin + ((tile) > 1 ? 4 * now->begin_stride : 0),               \
                        now->begin_stride);                                                        \
        else                                                                                       \
            _tile_zero(tile);                                                                      \
    } while (0)

/* A block on its way: what it multiplies, where it is, and the sums that wait meanwhile. */
struct going {
    const struct qni_direct_tile *t;
    const struct block *now;
    const struct finish *f;
    struct waiting w;
    struct output o0, o1;
    const int8_t *a, *a0;
    const uint8_t *b0, *b1;
    int64_t tap, step;
};

QNI_TEMPLATE struct going begin_block(const struct qni_direct_tile *t, const struct block *now,
                                      const struct finish *f, struct waiting w, const int what)
{
    struct going g = {.t = t, .now = now, .f = f, .w = w};
    g.o0 = output_of(f, w.block * 32, what);
    g.o1 = output_of(f, w.block * 32 + 16, what);
    g.a = t->a + now->a;
    g.a0 = g.a + t->taps[0];
    g.b0 = t->b + (size_t)now->block * 2 * t->b_panel;
    g.b1 = g.b0 + t->b_panel;
    return g;
}

QNI_TEMPLATE void next_step(struct going *g)
{
    g->b0 += QNI_DIRECT_STEP_BYTES;
    g->b1 += QNI_DIRECT_STEP_BYTES;
    g->a0 += QNI_DIRECT_STEP;
    if (++g->step == g->t->tap_steps) {
        g->step = 0;
        g->a0 = g->a + g->t->taps[++g->tap];
        g->b0 -= g->t->b_back;
        g->b1 -= g->t->b_back;
    }
}

/* `pace` pairs of rows become bytes in a step, as evenly after its four products as they can: what
 * waits for the same port is in the way of what comes next. All of it in one line of code, since a
 * loop of pairs, however few, costs a third (measured). */
QNI_TEMPLATE void finish_after(struct going *g, const int i, const int pace, const int what)
{
    const int pairs = pace * (i + 1) / 4 - pace * i / 4;
    QNI_UNROLL
    for (int j = 0; j < pairs; j++, g->w.rows -= 2, g->w.y += 2, g->w.dot += 64)
        finish_pair(g->f, &g->w, &g->o0, &g->o1, 1, what);
}

QNI_TEMPLATE void whole_step(struct going *g, const bool first, const int pace, const int what)
{
    const struct block *const now = g->now;
    const size_t pixel = g->t->pixel;
    load_weights(6, g->b0, what);
    _tile_loadd(4, g->a0, pixel);
    if (first)
        TAKE_OVER(0, 0);
    product(0, what);
    finish_after(g, 0, pace, what);
    if (first)
        TAKE_OVER(1, 64);
    load_weights(7, g->b1, what);
    product(1, what);
    finish_after(g, 1, pace, what);
    if (first)
        TAKE_OVER(2, 2048);
    _tile_loadd(5, g->a0 + 16 * pixel, pixel);
    product(2, what);
    finish_after(g, 2, pace, what);
    if (first)
        TAKE_OVER(3, 2112);
    product(3, what);
    finish_after(g, 3, pace, what);
}

/* A whole block while a whole one waits: first + a multiple of rest is 16. */
QNI_TEMPLATE void whole_block(struct going *g, int64_t steps, const int first, const int rest,
                              const int what)
{
    whole_step(g, true, first, what);
    for (int i = first; i < BLOCK / 2; i += rest, steps--) {
        next_step(g);
        whole_step(g, false, rest, what);
    }
    while (--steps > 0) {
        next_step(g);
        whole_step(g, false, 0, what);
    }
}

QNI_TEMPLATE void finish_some(struct going *g, int64_t *left, int64_t pairs, const int what)
{
    pairs = *left > 0 ? pairs : 0;
    *left -= pairs;
    for (; pairs > 0; pairs--, g->w.rows -= 2, g->w.y += 2, g->w.dot += 64)
        finish_pair(g->f, &g->w, &g->o0, &g->o1, 1, what);
}

/* Any other block: less of it, or less that waits. Pairs that few steps leave become bytes behind
 * them: more pairs between products were slower (measured). */
QNI_TEMPLATE void part_block(struct going *g, int64_t steps, const int what)
{
    const struct block *const now = g->now;
    const size_t pixel = g->t->pixel;
    const int64_t more = steps < 16, most = steps < 8; /* pairs after products 2, 1 and 3 */
    int64_t left = g->w.rows == BLOCK ? BLOCK / 2 : 0;
    for (bool first = true; steps > 0; steps--, first = false) {
        if (!first)
            next_step(g);
        load_weights(6, g->b0, what);
        _tile_loadd(4, g->a0, pixel);
        if (first)
            TAKE_OVER(0, 0);
        product(0, what);
        if (first)
            TAKE_OVER(1, 64);
        finish_some(g, &left, 1, what);
        if (now->second_panel) {
            load_weights(7, g->b1, what);
            product(1, what);
            finish_some(g, &left, most, what);
        }
        if (first)
            TAKE_OVER(2, 2048);
        if (now->two) {
            _tile_loadd(5, g->a0 + 16 * pixel, pixel);
            product(2, what);
            finish_some(g, &left, more, what);
        }
        if (first)
            TAKE_OVER(3, 2112);
        if (now->two && now->second_panel) {
            product(3, what);
            finish_some(g, &left, most, what);
        }
    }
    finish_all(g->f, &g->w, what);
}

/* One block of a tile into the C tiles, while one that waits becomes bytes. */
QNI_TEMPLATE void multiply(const struct qni_direct_tile *t, const struct block *now,
                           const struct finish *f, struct waiting w, const int what)
{
    const int64_t steps = t->n_taps * t->tap_steps;
    const bool whole = now->two && now->second_panel && w.rows == BLOCK;
    struct going g = begin_block(t, now, f, w, what);
    /* Of few steps those whose sums are near are whole: the others are rare, and this is code. */
    if (!whole || (what & UNBOUNDED) || (!(what & NEAR) && steps < 4))
        part_block(&g, steps, what);
    else if (!(what & NEAR) && steps > 16)
        whole_block(&g, steps, 0, 1, what);
    else if (!(what & NEAR) && steps > 8)
        whole_block(&g, steps, 0, 2, what);
    else if (!(what & NEAR) && steps == 8)
        whole_block(&g, steps, 2, 2, what);
    else if (!(what & NEAR) || steps >= 4)
        whole_block(&g, steps, 4, 4, what);
    else if (steps == 3)
        whole_block(&g, steps, 6, 5, what);
    else if (steps == 2)
        whole_block(&g, steps, 8, 8, what);
    else
        whole_block(&g, steps, 16, 1, what);
}

/* Rows of a tile that multiply together, from `row` on: the last ones reach back, so that their
 * tiles are full; what they make a second time is the same. */
struct row_block {
    int64_t base, end;
};

static struct row_block row_block_at(const struct qni_direct_tile *t, int64_t row)
{
    const int64_t left = t->rows - row;
    struct row_block r = {row, row + BLOCK};
    if (left >= BLOCK)
        return r;
    r.end = t->rows;
    if (t->rows >= BLOCK)
        r.base = t->rows - (left > 16 ? BLOCK : 16);
    return r;
}

/* Rows of tiles begin with what is added to their sums all the same. */
QNI_TEMPLATE void begin_rows(const struct qni_direct_tile *t, struct row_block r, int32_t *begin,
                             const int what)
{
    const int32_t magic = (what & NEAR) ? MAGIC : 0;
    _mm512_store_si512(begin, _mm512_set1_epi32(magic));
    for (int64_t i = r.base; (what & SUMS) && i < r.end; i++)
        _mm512_store_si512(begin + 16 * (i - r.base), _mm512_set1_epi32(magic - t->row_sums[i]));
}

QNI_VARIANTS void to_bytes(const struct qni_direct_tile *t, const int what)
{
    const struct finish f = finish_of(t);
    int32_t *const begin = (int32_t *)(void *)((char *)t->scratch + 2 * BLOCK_BYTES);
    struct waiting older = {NULL, NULL, 0, 0, 0}, old = older;
    char *c = t->scratch, *other = c + BLOCK_BYTES;
    const bool is_long = t->n_taps * t->tap_steps > QNI_DIRECT_NEAR;
    qni_amx_configure(t->rows < BLOCK ? t->rows : BLOCK, t->step_bytes);
    for (int64_t row = 0; row < t->rows; row += BLOCK) {
        const struct row_block r = row_block_at(t, row);
        if ((what & SUMS) || row == 0)
            begin_rows(t, r, begin, what);
        size_t a = (size_t)r.base * t->pixel;
        for (int64_t block = 0; 2 * block < t->n_panels; block++, a += t->a_block) {
            const struct block now = {
                block, a,     r.end - r.base > 16,   2 * block + 1 < t->n_panels,
                other, begin, (what & SUMS) ? 64 : 0};
            multiply(t, &now, &f, is_long ? old : older, what);
            older = old;
            if (!is_long) {
                char *const swap = c;
                c = other;
                other = swap;
            }
            old = (struct waiting){(const int32_t *)(void *)other, t->y + r.base, block,
                                   r.end - r.base, columns_from(&f, 32 * block)};
        }
    }
    qni_amx_store(other, true);
    if (!is_long)
        finish_all(&f, &older, what);
    finish_all(&f, &old, what);
}

/* ---- tall blocks ----------------------------------------------------------------------------- */

/* 64 rows x 16 outputs: a tile of B feeds four products instead of two. The second cache yields a
 * line in about two cycles (measured), so that two tiles of B a step would take all of the 64
 * cycles of its products, and nothing would be left for what else passes. */
enum { TALL = 64 };

/* Four rows of 16 outputs; those past the end are the last one again. */
QNI_TEMPLATE void finish_four(const struct finish *f, const struct waiting *w,
                              const struct output *o, const bool whole, const int what)
{
    const int64_t at = w->block * 16, last = w->rows - 1;
    const int64_t r1 = whole || last > 1 ? 1 : last, r2 = whole || last > 2 ? 2 : last;
    const int64_t r3 = whole || last > 3 ? 3 : last;
    const bool all = (what & (SHIFT | UNBOUNDED)) != 0;
    const __m512i a = _mm512_packs_epi32(code_of(f, o, w->dot, all, what),
                                         code_of(f, o, w->dot + 16 * r1, true, what));
    const __m512i b = _mm512_packs_epi32(code_of(f, o, w->dot + 16 * r2, all, what),
                                         code_of(f, o, w->dot + 16 * r3, true, what));
    __m512i packed = _mm512_packs_epi16(a, b);
    if (what & SHIFT)
        packed = _mm512_xor_si512(_mm512_max_epi8(packed, f->floor), f->flip);
    const __m512i rows = _mm512_permutexvar_epi32(f->order, packed);
    uint8_t *const *const y = w->y;
    const int64_t column = f->column + at;
    const __mmask16 columns = (__mmask16)w->columns;
    _mm_mask_storeu_epi8(y[0] + column, columns, _mm512_castsi512_si128(rows));
    _mm_mask_storeu_epi8(y[r1] + column, columns, _mm512_extracti32x4_epi32(rows, 1));
    _mm_mask_storeu_epi8(y[r2] + column, columns, _mm512_extracti32x4_epi32(rows, 2));
    _mm_mask_storeu_epi8(y[r3] + column, columns, _mm512_extracti32x4_epi32(rows, 3));
}

QNI_TEMPLATE void finish_fours(const struct finish *f, struct waiting *w, const struct output *o,
                               int64_t fours, const int what)
{
    for (; fours > 0; fours--, w->rows -= 4, w->y += 4, w->dot += 64)
        finish_four(f, w, o, true, what);
}

QNI_TEMPLATE void finish_tall(const struct finish *f, struct waiting *w, const int what)
{
    if (w->rows <= 0)
        return;
    const struct output o = output_of(f, w->block * 16, what);
    finish_fours(f, w, &o, w->rows / 4, what);
    if (w->rows > 0)
        finish_four(f, w, &o, false, what);
    w->rows = 0;
}

/* Tiles are rows 0, at[0], at[1], at[2] of the block; of fewer than 64 rows the last ones lie
 * over each other. */
struct tall {
    int64_t row, panel, tiles, at[3];
    int64_t held_tiles; /* of the block before */
    char *held;
    const int32_t *begin;
};

/* A block on its way, and the sums that wait meanwhile. */
struct tall_going {
    const struct tall *now;
    const struct finish *f;
    struct waiting w;
    struct output o;
    size_t pixel;
};

#define TAKE_OVER_TALL(tile, row)                                                                  \
    do {                                                                                           \
        if ((tile) < now->held_tiles)                                                              \
            _tile_stored(tile, now->held + 64 * (row), 64);                                        \
        if (what & SUMS)                                                                           \
            _tile_loadd(tile, now->begin + 16 * (row), 64);                                        \
        else                                                                                       \
            _tile_loadd(tile, now->begin, 0);                                                      \
    } while (0)

QNI_TEMPLATE void tall_product(const int c, const int what)
{
    if (c == 0 && (what & SUMS))
        _tile_dpbsud(0, 4, 6);
    else if (c == 0)
        _tile_dpbssd(0, 4, 6);
    else if (c == 1 && (what & SUMS))
        _tile_dpbsud(1, 5, 6);
    else if (c == 1)
        _tile_dpbssd(1, 5, 6);
    else if (c == 2 && (what & SUMS))
        _tile_dpbsud(2, 4, 6);
    else if (c == 2)
        _tile_dpbssd(2, 4, 6);
    else if (what & SUMS)
        _tile_dpbsud(3, 5, 6);
    else
        _tile_dpbssd(3, 5, 6);
}

/* Finishes `fours` times four rows between tile instructions. */
QNI_TEMPLATE void finish_paced(struct tall_going *g, const int fours, const int what)
{
    QNI_UNROLL
    for (int i = 0; i < fours; i++, g->w.rows -= 4, g->w.y += 4, g->w.dot += 64)
        finish_four(g->f, &g->w, &g->o, true, what);
}

/* One step. `pace` fours of rows become bytes after each product; 0: one after the first, if so
 * many wait. */
QNI_TEMPLATE void tall_step(struct tall_going *g, const int8_t *a, const uint8_t *b,
                            const bool first, const int pace, const int what)
{
    const struct tall *const now = g->now;
    const size_t pixel = g->pixel;
    load_weights(6, b, what);
    _tile_loadd(4, a, pixel);
    if (first)
        TAKE_OVER_TALL(0, 0);
    tall_product(0, what);
    if (pace == 0)
        finish_fours(g->f, &g->w, &g->o, g->w.rows >= 4, what);
    finish_paced(g, pace, what);
    _tile_loadd(5, a + (size_t)now->at[0] * pixel, pixel);
    if (first)
        TAKE_OVER_TALL(1, now->at[0]);
    tall_product(1, what);
    finish_paced(g, pace, what);
    if (first)
        TAKE_OVER_TALL(2, now->at[1]);
    if (now->tiles > 2) {
        _tile_loadd(4, a + (size_t)now->at[1] * pixel, pixel);
        tall_product(2, what);
    }
    finish_paced(g, pace, what);
    if (first)
        TAKE_OVER_TALL(3, now->at[2]);
    if (now->tiles > 3) {
        _tile_loadd(5, a + (size_t)now->at[2] * pixel, pixel);
        tall_product(3, what);
    }
    finish_paced(g, pace, what);
}

/* pace 4: all that waits becomes bytes in the first step; then TALL rows wait. */
QNI_TEMPLATE void multiply_tall(const struct qni_direct_tile *t, const struct tall *now,
                                const struct finish *f, struct waiting w, const int pace,
                                const int what)
{
    struct tall_going g = {now, f, w, output_of(f, w.block * 16, what), t->pixel};
    const int8_t *const a = t->a + (size_t)now->row * t->pixel;
    const uint8_t *b = t->b + (size_t)now->panel * t->b_panel;
    tall_step(&g, a + t->taps[0], b, true, pace, what);
    for (int64_t tap = 0, s = 1; tap < t->n_taps; tap++, s = 0, b -= t->b_back)
        for (; s < t->tap_steps; s++) {
            b += QNI_DIRECT_STEP_BYTES;
            const int8_t *const at = a + t->taps[tap] + s * QNI_DIRECT_STEP;
            tall_step(&g, at, b, false, 0, what);
        }
    finish_tall(f, &g.w, what);
}

/* With more than 32 rows. */
QNI_VARIANTS void to_bytes_tall(const struct qni_direct_tile *t, const int what)
{
    const struct finish f = finish_of(t);
    int32_t *const begin = (int32_t *)(void *)((char *)t->scratch + 2 * BLOCK_BYTES);
    struct waiting older = {NULL, NULL, 0, 0, 0}, old = older;
    char *c = t->scratch, *other = c + BLOCK_BYTES;
    const int64_t most = t->rows < TALL ? t->rows : TALL;
    struct tall now = {.begin = begin};
    for (int i = 0; i < 3; i++)
        now.at[i] = 16 * (i + 2) <= most ? 16 * (i + 1) : most - 16;
    qni_amx_configure(BLOCK, t->step_bytes);
    for (int64_t row = 0; row < t->rows; row += TALL) {
        const int64_t left = t->rows - row < TALL ? t->rows - row : TALL;
        now.tiles = left <= 32 ? 2 : (left + 15) / 16;
        const int64_t rows = t->rows < TALL ? t->rows : 16 * now.tiles;
        now.row = t->rows - row < rows ? t->rows - rows : row;
        const struct row_block r = {now.row, now.row + rows};
        if ((what & SUMS) || row == 0)
            begin_rows(t, r, begin, what);
        for (now.panel = 0; now.panel < t->n_panels; now.panel++) {
            now.held = other;
            if (!(what & SUMS) && older.rows == TALL)
                multiply_tall(t, &now, &f, older, 4, what);
            else
                multiply_tall(t, &now, &f, older, 0, what);
            now.held_tiles = now.tiles;
            older = old;
            old = (struct waiting){(const int32_t *)(void *)c, t->y + r.base, now.panel, rows,
                                   columns_from(&f, 16 * now.panel)};
            char *const swap = c;
            c = other;
            other = swap;
        }
    }
    _tile_stored(0, other, 64);
    _tile_stored(1, other + 64 * now.at[0], 64);
    if (now.tiles > 2)
        _tile_stored(2, other + 64 * now.at[1], 64);
    if (now.tiles > 3)
        _tile_stored(3, other + 64 * now.at[2], 64);
    finish_tall(&f, &older, what);
    finish_tall(&f, &old, what);
}

static void tall_tile(const struct qni_direct_tile *t)
{
    if (!t->is_bounded)
        to_bytes_tall(t, BIAS | ZERO | SHIFT | UNBOUNDED | SUMS);
    else if (!t->is_near)
        to_bytes_tall(t, BIAS | ZERO | SHIFT | SUMS);
    else if (t->y_zero != 0 || t->is_u8 || t->relu)
        to_bytes_tall(t, NEAR | BIAS | SHIFT | SUMS);
    else
        to_bytes_tall(t, NEAR | BIAS | SUMS);
    _tile_release();
}

/* Computes the last panel of an odd number on its own: half of what becomes bytes in a block of 32
 * outputs would be for nothing. Weights are unpacked, and codes bounded. */
static void tall_panel(const struct qni_direct_tile *t)
{
    const int64_t last = t->n_panels - 1;
    struct qni_direct_tile one = *t;
    one.b += (size_t)last * t->b_panel;
    one.n_panels = 1;
    one.scale += 16 * last;
    one.bias += 16 * last;
    one.zero += 16 * last;
    one.column += 16 * last;
    one.n -= 16 * last;
    if (t->is_near)
        to_bytes_tall(&one, NEAR | BIAS | SHIFT);
    else
        to_bytes_tall(&one, BIAS | ZERO | SHIFT);
    _tile_release();
}

/* Sums as they are, or times the weight's scale. */
QNI_VARIANTS void to_words(const struct qni_direct_tile *t, const int what)
{
    const struct finish f = finish_of(t);
    const struct waiting none = {NULL, NULL, 0, 0, 0};
    int32_t *const c = t->scratch, *const begin = c + 2 * BLOCK * BLOCK;
    qni_amx_configure(t->rows < BLOCK ? t->rows : BLOCK, t->step_bytes);
    for (int64_t row = 0; row < t->rows; row += BLOCK) {
        const struct row_block r = row_block_at(t, row);
        const struct block now = {
            0,     (size_t)r.base * t->pixel, r.end - r.base > 16, t->n_panels > 1, t->scratch,
            begin, (what & SUMS) ? 64 : 0};
        begin_rows(t, r, begin, what);
        multiply(t, &now, &f, none, what);
        qni_amx_store(c, now.two);
        for (int64_t i = r.base; i < r.end; i++) {
            for (int64_t j = 0; j < 16 * t->n_panels; j += 16) {
                __m512i d = _mm512_load_si512(c + (i - r.base) * 32 + j);
                float *const to = t->c + i * 32 + j;
                if (t->has_zero)
                    d = _mm512_sub_epi32(d, _mm512_loadu_si512(t->zero + j));
                if (t->kind == QNI_DIRECT_RAW)
                    _mm512_storeu_si512(to, d);
                else
                    _mm512_storeu_ps(to,
                                     _mm512_fmadd_ps(_mm512_loadu_ps(t->scale + j),
                                                     _mm512_cvtepi32_ps(d), _mm512_setzero_ps()));
            }
        }
    }
}

/* sums: SUMS on codes as they are packed, else 0. */
QNI_TEMPLATE void tile(const struct qni_direct_tile *t, const int sums)
{
    const bool shifts = t->y_zero != 0 || t->is_u8 || t->relu;
    if (t->kind != QNI_DIRECT_BYTES)
        to_words(t, sums);
    else if (!t->is_bounded)
        to_bytes(t, BIAS | ZERO | SHIFT | UNBOUNDED | sums);
    else if (t->has_zero)
        to_bytes(t, BIAS | ZERO | SHIFT | sums);
    else if (t->is_near && shifts)
        to_bytes(t, NEAR | BIAS | SHIFT | sums);
    else if (t->is_near && t->has_bias)
        to_bytes(t, NEAR | BIAS | sums);
    else if (t->is_near)
        to_bytes(t, NEAR | sums);
    else if (shifts)
        to_bytes(t, BIAS | SHIFT | sums);
    else
        to_bytes(t, BIAS | sums);
    _tile_release();
}

/* Not in line: its fields would be values that have no registers (measured: 1.13). */
QNI_NOINLINE static void even_panels(const struct qni_direct_tile *t)
{
    tile(t, 0);
}

/* Weights as signed values. */
static void unpacked_tile(const struct qni_direct_tile *t)
{
    enum { FEW = 4 }; /* steps: products of half a block are no more than those of a tall one */
    const bool splits = t->n_panels % 2 != 0 && t->rows > BLOCK && t->is_bounded &&
                        t->n_taps * t->tap_steps <= FEW && t->kind == QNI_DIRECT_BYTES;
    if (!splits) {
        even_panels(t);
        return;
    }
    struct qni_direct_tile even = *t;
    even.n_panels--;
    even.n = 16 * even.n_panels;
    if (even.n_panels > 0)
        even_panels(&even);
    tall_panel(t);
}

void qni_conv_q8_q8n16_mr32_amx(const struct qni_direct_tile *t)
{
    if (t->is_tall && t->row_sums != NULL && t->rows > BLOCK && t->kind == QNI_DIRECT_BYTES)
        tall_tile(t);
    else if (t->row_sums != NULL)
        tile(t, SUMS);
    else
        unpacked_tile(t);
}
void qni_conv_q8_q4n16_mr32_amx(const struct qni_direct_tile *t)
{
    unpacked_tile(t); /* nibbles always are */
}

const struct qni_direct_helpers qni_direct_tiles_q8_amx = {unpack_bytes, sum_rows,
                                                           &qni_direct_images_amx};
const struct qni_direct_helpers qni_direct_tiles_q4_amx = {unpack_nibbles, sum_rows,
                                                           &qni_direct_images_amx};
