/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions on AMX tiles. Contract and operand layouts: kernel.h.
 *
 * A block of 32 outputs x 32 channels lives in four C tiles for the whole reduction, so that int32
 * sums are stored once. A tiles are 16 outputs as they lie in the image: tap by tap the same tile
 * moves by a fixed distance. Four loads feed four products: 4.9 ns a product while one operand is
 * in the first cache and the other in the second, 7.5 ns when both are in the second. Tiles of
 * fewer than 16 rows take no less time. Storing the four C tiles takes 17 ns that nothing overlaps.
 *
 * A layer with few channels is bound by the way from 32-bit sums to bytes: seven vector
 * instructions for 16 outputs, 60 to 75 ns a block, as much as three steps of 64 channels. So an
 * older block is finished, some rows after every step, while the tiles multiply; three buffers of
 * sums take turns.
 *
 * Exact because |sum| <= 128 * 255 * 32768 < 2^31 even on codes as they are packed, and because the
 * steps to y are those of docs/numerics.md. is_tame allows to leave out the clamp to +-2^21 and the
 * test for NaN: the conversion to int32 cannot overflow, and packing saturates all the same. Relu
 * is a floor on the code: v <= 0 gives y_zero, and any other v gives no less. */
#include <immintrin.h>

#include "../../base/compiler.h"
#include "../simd/amx.h"
#include "../simd/avx512.h"
#include "kernel.h"

enum { BLOCK = 32, BLOCK_BYTES = BLOCK * BLOCK * 4, BUFFERS = 3 };

/* ---- weights --------------------------------------------------------------------------------- */

void qni_direct_bytes_amx(const uint8_t *codes, int64_t units, uint8_t *out)
{
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    for (int64_t i = 0; i < units * 8; i++)
        _mm512_store_si512(out + 64 * i,
                           _mm512_xor_si512(_mm512_loadu_si512(codes + 64 * i), flip));
    if (units % 2 != 0)
        memset(out + units * 512, 0, 512);
}

void qni_direct_nibbles_amx(const uint8_t *codes, int64_t units, uint8_t *out)
{
    const __m512i nibble = _mm512_set1_epi8(0x0f), eight = _mm512_set1_epi8(8);
    if (units % 2 != 0)
        memset(out + units * 512, 0, 512);
    for (; units > 0; units--, codes += 256, out += 512) {
        QNI_UNROLL
        for (int r = 0; r < 4; r++) {
            const __m512i v = _mm512_loadu_si512(codes + 64 * r);
            const __m512i low = _mm512_and_si512(v, nibble);
            const __m512i high = _mm512_and_si512(_mm512_srli_epi16(v, 4), nibble);
            _mm512_store_si512(out + 64 * r, _mm512_sub_epi8(low, eight));
            _mm512_store_si512(out + 256 + 64 * r, _mm512_sub_epi8(high, eight));
        }
    }
}

void qni_direct_sums_amx(const int8_t *a, size_t pixel, int64_t rows, int64_t bytes, int32_t *sums)
{
    const __m512i ones = _mm512_set1_epi8(1);
    for (int64_t r = 0; r < rows; r++, a += pixel) {
        __m512i sum = _mm512_setzero_si512();
        for (int64_t i = 0; i < bytes; i += 64)
            sum = _mm512_dpbusd_epi32(sum, ones, _mm512_loadu_si512(a + i));
        sums[r] = 128 * _mm512_reduce_add_epi32(sum);
    }
}

/* ---- from sums to bytes ---------------------------------------------------------------------- */

/* What all blocks share. */
struct finish {
    __m512 x_scale, y_inv;
    __m512i y_zero, floor, flip, order;
};

static struct finish finish_of(const struct qni_direct_tile *t)
{
    struct finish f;
    const int32_t zero = t->y_zero - (t->is_u8 ? 128 : 0); /* bytes are made signed, then flipped */
    f.x_scale = _mm512_set1_ps(t->x_scale);
    f.y_inv = _mm512_set1_ps(t->y_inv);
    f.y_zero = _mm512_set1_epi16((int16_t)zero);
    f.floor = _mm512_set1_epi16((int16_t)(t->relu ? zero : -32768));
    f.flip = _mm512_set1_epi8((char)(t->is_u8 ? 0x80 : 0));
    /* Dwords of [row of 2][half of 2] in lanes to two rows of 32 bytes. */
    f.order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return f;
}

/* PLAIN: no zero point of y, no relu, signed bytes. WHOLE: blocks of 32 outputs only. */
enum { BIAS = 1, ZERO = 2, WILD = 4, SUMS = 8, PLAIN = 16, WHOLE = 32 };

/* Sums of a block that wait to be finished: rows [row, end) of the tile, from `dot` on; `share`
 * pairs of them after every step. */
struct waiting {
    const int32_t *dot;
    int64_t block, row, end, share;
};

QNI_TEMPLATE __m512i code_of(const struct qni_direct_tile *t, const struct finish *f,
                             const int32_t *dot, int64_t row, int64_t column, const int what)
{
    __m512i d = _mm512_load_si512(dot);
    if (what & SUMS)
        d = _mm512_sub_epi32(d, _mm512_set1_epi32(t->row_sums[row]));
    if (what & ZERO)
        d = _mm512_sub_epi32(d, _mm512_loadu_si512(t->zero + column));
    __m512 v = _mm512_mul_ps(_mm512_loadu_ps(t->scale + column), _mm512_cvtepi32_ps(d));
    v = _mm512_mul_ps(v, f->x_scale);
    if (what & BIAS)
        v = _mm512_add_ps(v, _mm512_loadu_ps(t->bias + column));
    v = _mm512_mul_ps(v, f->y_inv);
    if (what & WILD) {
        const __m512 most = _mm512_set1_ps(0x1p21f);
        const __mmask16 number = _mm512_cmp_ps_mask(v, v, _CMP_ORD_Q);
        v = _mm512_min_ps(_mm512_max_ps(v, _mm512_sub_ps(_mm512_setzero_ps(), most)), most);
        return _mm512_maskz_cvt_roundps_epi32(number, v,
                                              _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    }
    return _mm512_cvt_roundps_epi32(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* Two rows of 32 outputs; if there is no second one, the first again. Without BIAS a sum of -0
 * keeps its sign, which no code shows. */
QNI_TEMPLATE void finish_pair(const struct qni_direct_tile *t, const struct finish *f,
                              const struct waiting *w, __mmask32 columns, const int what)
{
    const int64_t at = w->block * 32, second = w->row + 1 < w->end;
    const int32_t *const dot = w->dot, *const dot1 = dot + 32 * second;
    const int64_t row = w->row, row1 = row + second;
    __m512i a = _mm512_packs_epi32(code_of(t, f, dot, row, at, what),
                                   code_of(t, f, dot + 16, row, at + 16, what));
    __m512i b = _mm512_packs_epi32(code_of(t, f, dot1, row1, at, what),
                                   code_of(t, f, dot1 + 16, row1, at + 16, what));
    if (!(what & PLAIN)) {
        a = _mm512_max_epi16(_mm512_adds_epi16(a, f->y_zero), f->floor);
        b = _mm512_max_epi16(_mm512_adds_epi16(b, f->y_zero), f->floor);
    }
    __m512i packed = _mm512_packs_epi16(a, b);
    if (!(what & PLAIN))
        packed = _mm512_xor_si512(packed, f->flip);
    /* Lanes of `packed`: 4 bytes of a's first half, 4 of its second, the same of b. */
    const __m512i rows = _mm512_permutexvar_epi32(f->order, packed);
    uint8_t *const y = t->y[row] + t->column + at, *const y1 = t->y[row1] + t->column + at;
    if (what & WHOLE) {
        _mm256_storeu_si256((__m256i *)y, _mm512_castsi512_si256(rows));
        _mm256_storeu_si256((__m256i *)y1, _mm512_extracti64x4_epi64(rows, 1));
    } else {
        _mm256_mask_storeu_epi8(y, columns, _mm512_castsi512_si256(rows));
        _mm256_mask_storeu_epi8(y1, columns, _mm512_extracti64x4_epi64(rows, 1));
    }
}

QNI_TEMPLATE void finish_some(const struct qni_direct_tile *t, const struct finish *f,
                              struct waiting *w, int64_t pairs, const int what)
{
    const int64_t n = t->n - w->block * 32;
    const __mmask32 columns = n >= 32 ? 0xffffffffu : (1u << n) - 1u;
    for (; pairs > 0 && w->row < w->end; pairs--, w->row += 2, w->dot += 64)
        finish_pair(t, f, w, columns, what);
}

/* ---- products -------------------------------------------------------------------------------- */

/* One block of a tile into the C tiles, with a share of the waiting rows after every step. */
QNI_TEMPLATE void multiply(const struct qni_direct_tile *t, const struct waiting *now,
                           const struct finish *f, struct waiting *w, const int second_rows,
                           const int second_panel, const int what)
{
    const int8_t *const a = t->a + (size_t)now->row * t->pixel;
    const uint8_t *b0 = t->b + (size_t)now->block * 2 * t->b_panel, *b1 = b0 + t->b_panel;
    qni_amx_zero();
    for (int64_t tap = 0; tap < t->n_taps; tap++) {
        const int8_t *a0 = a + t->taps[tap];
        const int8_t *a1 = a0 + 16 * t->pixel;
        for (int64_t s = 0; s < t->tap_steps; s++) {
            _tile_loadd(6, b0, 64);
            _tile_loadd(4, a0, t->pixel);
            if (what & SUMS)
                _tile_dpbsud(0, 4, 6);
            else
                _tile_dpbssd(0, 4, 6);
            if (second_panel) {
                _tile_loadd(7, b1, 64);
                if (what & SUMS)
                    _tile_dpbsud(1, 4, 7);
                else
                    _tile_dpbssd(1, 4, 7);
                b1 += QNI_DIRECT_STEP_BYTES;
            }
            if (second_rows) {
                _tile_loadd(5, a1, t->pixel);
                if (what & SUMS)
                    _tile_dpbsud(2, 5, 6);
                else
                    _tile_dpbssd(2, 5, 6);
                if (second_panel && (what & SUMS))
                    _tile_dpbsud(3, 5, 7);
                else if (second_panel)
                    _tile_dpbssd(3, 5, 7);
            }
            a0 += QNI_DIRECT_STEP;
            a1 += QNI_DIRECT_STEP;
            b0 += QNI_DIRECT_STEP_BYTES;
            finish_some(t, f, w, w->share, what);
        }
    }
}

static int64_t at_most(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

QNI_TEMPLATE void to_bytes(const struct qni_direct_tile *t, const int what)
{
    const struct finish f = finish_of(t);
    const int64_t steps = t->n_taps * t->tap_steps, share = (BLOCK / 2 + steps - 1) / steps;
    struct waiting older = {NULL, 0, 0, 0, share}, old = older;
    int64_t at = 0, configured = 0;
    for (int64_t row = 0; row < t->rows; row += BLOCK) {
        const int64_t rows = at_most(BLOCK, t->rows - row);
        if (rows != configured)
            qni_amx_configure(rows, QNI_DIRECT_STEP);
        configured = rows;
        for (int64_t block = 0; 2 * block < t->n_panels; block++) {
            int32_t *const c = (int32_t *)((char *)t->scratch + at * BLOCK_BYTES);
            const struct waiting now = {c, block, row, row + rows, share};
            if (rows == BLOCK && 2 * block + 1 < t->n_panels)
                multiply(t, &now, &f, &older, 1, 1, what);
            else
                multiply(t, &now, &f, &older, rows > 16, 2 * block + 1 < t->n_panels, what);
            finish_some(t, &f, &older, BLOCK, what);
            qni_amx_store(c, rows > 16);
            older = old;
            old = now;
            at = at + 1 < BUFFERS ? at + 1 : 0;
        }
    }
    finish_some(t, &f, &older, BLOCK, what);
    finish_some(t, &f, &old, BLOCK, what);
}

/* Sums as they are, or times the weight's scale. */
QNI_TEMPLATE void to_words(const struct qni_direct_tile *t, const int what)
{
    const struct finish f = {.x_scale = _mm512_setzero_ps()};
    struct waiting none = {NULL, 0, 0, 0, 0};
    int32_t *const c = t->scratch;
    for (int64_t row = 0; row < t->rows; row += BLOCK) {
        const struct waiting now = {c, 0, row, row + at_most(BLOCK, t->rows - row), 0};
        qni_amx_configure(now.end - row, QNI_DIRECT_STEP);
        multiply(t, &now, &f, &none, now.end - row > 16, t->n_panels > 1, what);
        qni_amx_store(c, now.end - row > 16);
        for (int64_t i = row; i < now.end; i++) {
            for (int64_t j = 0; j < 16 * t->n_panels; j += 16) {
                __m512i d = _mm512_load_si512(c + (i - row) * 32 + j);
                float *const to = t->c + i * 32 + j;
                if (what & SUMS)
                    d = _mm512_sub_epi32(d, _mm512_set1_epi32(t->row_sums[i]));
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
    const bool plain = t->y_zero == 0 && !t->relu && !t->is_u8;
    if (t->kind != QNI_DIRECT_BYTES)
        to_words(t, sums);
    else if (!t->is_tame)
        to_bytes(t, BIAS | ZERO | WILD | sums);
    else if (t->n % BLOCK != 0)
        to_bytes(t, BIAS | ZERO | sums);
    else if (t->has_zero)
        to_bytes(t, BIAS | ZERO | WHOLE | sums);
    else if (t->has_bias && plain)
        to_bytes(t, BIAS | PLAIN | WHOLE | sums);
    else if (t->has_bias)
        to_bytes(t, BIAS | WHOLE | sums);
    else if (plain)
        to_bytes(t, PLAIN | WHOLE | sums);
    else
        to_bytes(t, WHOLE | sums);
    _tile_release();
}

void qni_conv_q8_q8n16_mr32_amx(const struct qni_direct_tile *t)
{
    if (t->row_sums != NULL)
        tile(t, SUMS);
    else
        tile(t, 0);
}
void qni_conv_q8_q4n16_mr32_amx(const struct qni_direct_tile *t)
{
    tile(t, 0); /* nibbles are always unpacked */
}
