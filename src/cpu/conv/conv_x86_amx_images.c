/* SPDX-License-Identifier: Apache-2.0 */
/* Images of few channels as rows of tiles. Contract and operand layouts: direct_kernel.h. Lines of
 * an image are interleaved in registers: 16 columns of 8 lines are a transposition of dwords in
 * three levels of 8 permutations, of 4 lines in two levels of 4. One port of the core permutes, so
 * that is the bound: 24 cycles for 8 units. Or (runs) a patch is gathered 64 bytes at a time by
 * masked loads. Nothing here multiplies. */
#include <immintrin.h>

#include "../../base/compiler.h"
#include "kernel.h"

/* ---- patches --------------------------------------------------------------------------------- */

enum { MOST_RUNS = 65 }; /* that 64 bytes meet */

/* 64 bytes of every patch, from `from` on: piece q of them is where its mask says. */
QNI_TEMPLATE void copy_pieces(const struct qni_direct_runs *r, size_t from, const int64_t *at,
                              const __mmask64 *mask, const int pieces)
{
    const uint8_t *lines = r->lines;
    uint8_t *to = r->dst + from;
    for (int64_t i = 0; i < r->n; i++, lines += r->step, to += r->pixel) {
        __m512i v = _mm512_setzero_si512();
        for (int q = 0; q < pieces; q++)
            v = _mm512_mask_loadu_epi8(v, mask[q], lines + at[q]);
        _mm512_store_si512(to, v);
    }
}

static void runs(const struct qni_direct_runs *r)
{
    for (size_t from = 0; from < r->pixel; from += 64) {
        int64_t at[MOST_RUNS];
        __mmask64 mask[MOST_RUNS];
        int n = 0;
        for (size_t ky = from / r->run; ky < (size_t)r->kh && ky * r->run < from + 64; ky++) {
            /* Bytes [begin, end) of the 64 are of run ky. */
            const int64_t begin = (int64_t)(ky * r->run) - (int64_t)from;
            const int64_t end = begin + (int64_t)r->run;
            const __mmask64 below = end >= 64 ? ~0ull : (1ull << end) - 1;
            mask[n] = begin > 0 ? below & ~((1ull << begin) - 1) : below;
            at[n++] = (int64_t)(ky * r->line) - begin;
        }
        if (n <= 2)
            copy_pieces(r, from, at, mask, n);
        else if (n == 3)
            copy_pieces(r, from, at, mask, 3);
        else if (n == 4)
            copy_pieces(r, from, at, mask, 4);
        else
            copy_pieces(r, from, at, mask, n);
    }
}

/* ---- pixels ---------------------------------------------------------------------------------- */

static void pixels(const struct qni_direct_pixels *p)
{
    const int64_t ci = p->channels;
    const __m512i flip = _mm512_set1_epi32(
        (int32_t)(0x01010101u * p->flip & (ci == 4 ? ~0u : (1u << (8 * ci)) - 1u)));
    /* Byte b of pixel i is byte i * channels + b, at most 63; those of no channel are zeros. */
    const __m512i pixel = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m512i order =
        _mm512_add_epi32(_mm512_mullo_epi32(pixel, _mm512_set1_epi32((int32_t)ci * 0x01010101)),
                         _mm512_set1_epi32(0x03020100));
    const __mmask64 real = 0x1111111111111111ull * ((1ull << ci) - 1);
    for (int64_t i = 0; i < p->n; i += 16) {
        const int64_t n = p->n - i < 16 ? p->n - i : 16;
        __m512i v = _mm512_setzero_si512();
        if (p->plane != 0) {
            const __mmask16 mask = (__mmask16)((1u << n) - 1u);
            for (int64_t c = ci - 1; c >= 0; c--)
                v = _mm512_or_si512(
                    _mm512_slli_epi32(v, 8),
                    _mm512_cvtepu8_epi32(_mm_maskz_loadu_epi8(mask, p->from + c * p->plane + i)));
        } else {
            const __mmask64 mask = n * ci == 64 ? ~0ull : (1ull << (n * ci)) - 1;
            v = _mm512_maskz_permutexvar_epi8(real, order,
                                              _mm512_maskz_loadu_epi8(mask, p->from + i * ci));
        }
        _mm512_storeu_si512(p->to + 4 * i, _mm512_xor_si512(v, flip));
    }
}

/* ---- columns --------------------------------------------------------------------------------- */

/* Two rows whose elements, `bytes` wide, take turns: the first half of that and the second. */
struct both {
    __m512i low, high;
};

QNI_TEMPLATE struct both interleave(__m512i a, __m512i b, const int bytes)
{
    struct both r;
    if (bytes == 4) {
        const __m512i low =
            _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
        const __m512i high = _mm512_add_epi32(low, _mm512_set1_epi32(8));
        r.low = _mm512_permutex2var_epi32(a, low, b);
        r.high = _mm512_permutex2var_epi32(a, high, b);
    } else {
        const __m512i low = bytes == 8 ? _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11)
                                       : _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
        const __m512i high = _mm512_add_epi64(low, _mm512_set1_epi64(4));
        r.low = _mm512_permutex2var_epi64(a, low, b);
        r.high = _mm512_permutex2var_epi64(a, high, b);
    }
    return r;
}

/* 64 bytes of a and what follows it, from 8 bytes * word on. */
QNI_TEMPLATE __m512i from_word(__m512i a, __m512i behind, const int word)
{
    const __m512i words = _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm512_permutex2var_epi64(a, _mm512_add_epi64(words, _mm512_set1_epi64(word)), behind);
}

/* Columns of four lines, four in each vector. */
QNI_TEMPLATE void four_lines(const uint8_t *const *line, int64_t at, __m512i *v)
{
    const struct both x =
        interleave(_mm512_loadu_si512(line[0] + at), _mm512_loadu_si512(line[1] + at), 4);
    const struct both y =
        interleave(_mm512_loadu_si512(line[2] + at), _mm512_loadu_si512(line[3] + at), 4);
    const struct both low = interleave(x.low, y.low, 8), high = interleave(x.high, y.high, 8);
    v[0] = low.low;
    v[1] = low.high;
    v[2] = high.low;
    v[3] = high.high;
}

/* Columns [16 i, 16 i + 16): depth / 4 * 4 vectors. */
QNI_TEMPLATE void sixteen(const struct qni_direct_columns *c, int64_t i, __m512i *v,
                          const int depth)
{
    if (depth == 4) {
        four_lines(c->line, 64 * i, v);
        return;
    }
    __m512i top[4], bottom[4];
    four_lines(c->line, 64 * i, top);
    four_lines(c->line + 4, 64 * i, bottom);
    QNI_UNROLL
    for (int j = 0; j < 4; j++) {
        const struct both b = interleave(top[j], bottom[j], 16);
        v[2 * j] = b.low;
        v[2 * j + 1] = b.high;
    }
}

/* Units begin at every column of a vector (stride 1), at every other one, or are vectors. */
QNI_TEMPLATE void columns_of(const struct qni_direct_columns *c, const int depth, const int stride)
{
    const int vectors = depth, each = 16 / depth / stride, word = depth / 2 * stride;
    uint8_t *to = c->dst;
    __m512i v[9];
    sixteen(c, 0, v, depth);
    for (int64_t i = 1, left = c->units; left > 0; i++, left -= vectors * each) {
        __m512i next[8];
        QNI_UNROLL
        for (int j = 0; j < vectors; j++)
            next[j] = _mm512_setzero_si512();
        if (each > 1 || left > vectors)
            sixteen(c, i, next, depth);
        v[vectors] = next[0];
        QNI_UNROLL
        for (int j = 0; j < vectors; j++, to += 64 * each) {
            _mm512_store_si512(to, v[j]);
            if (each > 1)
                _mm512_store_si512(to + 64, from_word(v[j], v[j + 1], word));
            if (each > 2) {
                _mm512_store_si512(to + 128, from_word(v[j], v[j + 1], 2 * word));
                _mm512_store_si512(to + 192, from_word(v[j], v[j + 1], 3 * word));
            }
            v[j] = next[j];
        }
    }
}

static void columns(const struct qni_direct_columns *c)
{
    if (c->depth == 8 && c->stride == 2)
        columns_of(c, 8, 2);
    else if (c->depth == 8)
        columns_of(c, 8, 1);
    else if (c->stride == 4)
        columns_of(c, 4, 4);
    else if (c->stride == 2)
        columns_of(c, 4, 2);
    else
        columns_of(c, 4, 1);
}

/* Pixels of at most 32 bytes: a store of 64, though masked, would reach into the next line of the
 * cache. */
static void spread_few(const struct qni_direct_spread *s)
{
    const __m256i flip = _mm256_set1_epi8((char)s->flip);
    const __mmask32 reads = ~0u >> (32 - s->channels), writes = ~0u >> (32 - s->pixel);
    const uint8_t *from = s->from;
    uint8_t *to = s->to;
    for (int64_t n = s->n; n > 0; n--, from += s->step, to += s->pixel) {
        const __m256i v = _mm256_xor_si256(_mm256_maskz_loadu_epi8(reads, from), flip);
        _mm256_mask_storeu_epi8(to, writes, _mm256_maskz_mov_epi8(reads, v));
    }
}

static void spread(const struct qni_direct_spread *s)
{
    if (s->pixel <= 32) {
        spread_few(s);
        return;
    }
    const __m512i flip = _mm512_set1_epi8((char)s->flip);
    const int64_t whole = s->channels / 64 * 64, rest = s->channels - whole;
    const int64_t behind = s->pixel - whole; /* at most 64: zeros end with a step */
    const __mmask64 reads = rest == 0 ? 0 : ~0ull >> (64 - rest);
    const __mmask64 writes = behind == 0 ? 0 : ~0ull >> (64 - behind);
    const uint8_t *from = s->from;
    uint8_t *to = s->to;
    for (int64_t n = s->n; n > 0; n--, from += s->step, to += s->pixel) {
        for (int64_t i = 0; i < whole; i += 64)
            _mm512_storeu_si512(to + i, _mm512_xor_si512(_mm512_loadu_si512(from + i), flip));
        if (behind > 0) {
            const __m512i v = _mm512_maskz_loadu_epi8(reads, from + whole);
            _mm512_mask_storeu_epi8(to + whole, writes,
                                    _mm512_maskz_mov_epi8(reads, _mm512_xor_si512(v, flip)));
        }
    }
}

const struct qni_direct_images qni_direct_images_amx = {runs, pixels, columns, spread};
