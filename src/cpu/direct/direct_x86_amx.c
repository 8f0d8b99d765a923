/* SPDX-License-Identifier: Apache-2.0 */
/* Direct int8 convolutions on AMX tiles. Contract and operand layouts: kernel.h.
 *
 * A block of 32 outputs x 32 channels lives in four C tiles for the whole reduction, so that int32
 * sums are stored once. A tiles are 16 outputs as they lie in the image: tap by tap the same tile
 * moves by a fixed distance. Four loads feed four products, which measures as fast from the second
 * cache as from registers (4.1 ns a product), as long as tiles have all 16 rows: fewer take no less
 * time.
 *
 * What bounds a layer with few channels is not the products but the way from 32-bit sums to bytes:
 * seven vector instructions for 16 outputs, 55 ns for a block, as much as three steps of 64
 * channels. So the block before is finished, some rows after every step, while the tiles multiply;
 * the sums change places in two buffers.
 *
 * Exact because |sum| <= 128 * 128 * 32768 < 2^31, and because the steps to y are those of
 * docs/numerics.md. is_tame allows to leave out the clamp to +-2^21 and the test for NaN: the
 * conversion to int32 cannot overflow, and packing saturates all the same. Relu is a floor on the
 * code: v <= 0 gives y_zero, and any other v gives no less. */
#include <immintrin.h>

#include "../../base/compiler.h"
#include "../simd/amx.h"
#include "../simd/avx512.h"
#include "kernel.h"

enum { BLOCK = 32, BLOCK_BYTES = BLOCK * BLOCK * 4 };

/* ---- weights --------------------------------------------------------------------------------- */

void qni_direct_bytes_amx(const uint8_t *codes, int64_t units, int8_t *out)
{
    const __m512i flip = _mm512_set1_epi8((char)0x80);
    for (int64_t i = 0; i < units * 8; i++)
        _mm512_store_si512(out + 64 * i,
                           _mm512_xor_si512(_mm512_loadu_si512(codes + 64 * i), flip));
    if (units % 2 != 0)
        memset(out + units * 512, 0, 512);
}

void qni_direct_nibbles_amx(const uint8_t *codes, int64_t units, int8_t *out)
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

/* ---- from sums to bytes ---------------------------------------------------------------------- */

/* What the 32 outputs of a block share. */
struct finish {
    __m512 scale[2], bias[2], x_scale, y_inv;
    __m512i zero[2], y_zero, floor, flip, order;
    __mmask32 columns;
};

static struct finish finish_of(const struct qni_direct_tile *t)
{
    struct finish f;
    const int32_t zero = t->y_zero - (t->is_u8 ? 128 : 0); /* bytes are made signed, then flipped */
    for (int j = 0; j < 2; j++) {
        f.scale[j] = _mm512_loadu_ps(t->scale + 16 * j);
        f.bias[j] = t->bias != NULL ? _mm512_loadu_ps(t->bias + 16 * j) : _mm512_setzero_ps();
        f.zero[j] = t->zero != NULL ? _mm512_loadu_si512(t->zero + 16 * j) : _mm512_setzero_si512();
    }
    f.x_scale = _mm512_set1_ps(t->x_scale);
    f.y_inv = _mm512_set1_ps(t->y_inv);
    f.y_zero = _mm512_set1_epi16((int16_t)zero);
    f.floor = _mm512_set1_epi16((int16_t)(t->relu ? zero : -32768));
    f.flip = _mm512_set1_epi8((char)(t->is_u8 ? 0x80 : 0));
    /* Dwords of [row of 2][half of 2] in lanes to two rows of 32 bytes. */
    f.order = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    f.columns = (__mmask32)(t->n >= 32 ? 0xffffffffu : (1u << t->n) - 1u);
    return f;
}

enum { BIAS = 1, ZERO = 2, WILD = 4 };

QNI_TEMPLATE __m512i code_of(const struct finish *f, const int32_t *dot, const int j,
                             const int what)
{
    __m512i d = _mm512_load_si512(dot + 16 * j);
    if (what & ZERO)
        d = _mm512_sub_epi32(d, f->zero[j]);
    __m512 v = _mm512_mul_ps(_mm512_mul_ps(f->scale[j], _mm512_cvtepi32_ps(d)), f->x_scale);
    if (what & BIAS)
        v = _mm512_add_ps(v, f->bias[j]);
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

/* Two rows of 32 outputs. Without BIAS a sum of -0 keeps its sign, which no code shows. */
QNI_TEMPLATE void finish_pair(const struct finish *f, const int32_t *dot, uint8_t *y0, uint8_t *y1,
                              const int what, const int whole)
{
    __m512i a = _mm512_packs_epi32(code_of(f, dot, 0, what), code_of(f, dot, 1, what));
    __m512i b = _mm512_packs_epi32(code_of(f, dot + 32, 0, what), code_of(f, dot + 32, 1, what));
    a = _mm512_max_epi16(_mm512_adds_epi16(a, f->y_zero), f->floor);
    b = _mm512_max_epi16(_mm512_adds_epi16(b, f->y_zero), f->floor);
    const __m512i packed = _mm512_xor_si512(_mm512_packs_epi16(a, b), f->flip);
    /* Lanes of `packed`: 4 bytes of a's first half, 4 of its second, the same of b. */
    const __m512i rows = _mm512_permutexvar_epi32(f->order, packed);
    const __m256i r0 = _mm512_castsi512_si256(rows);
    const __m256i r1 = _mm512_extracti64x4_epi64(rows, 1);
    if (whole) {
        _mm256_storeu_si256((__m256i *)y0, r0);
        _mm256_storeu_si256((__m256i *)y1, r1);
    } else {
        _mm256_mask_storeu_epi8(y0, f->columns, r0);
        _mm256_mask_storeu_epi8(y1, f->columns, r1);
    }
}

/* ---- products -------------------------------------------------------------------------------- */

/* Sums that wait to be finished: rows [row, end) of the tile, from `dot` on; `share` pairs of them
 * after every step. */
struct waiting {
    const int32_t *dot;
    int64_t row, end, share;
};

QNI_TEMPLATE void finish_some(const struct qni_direct_tile *t, const struct finish *f,
                              struct waiting *w, int64_t pairs, const int what, const int whole)
{
    for (; pairs > 0 && w->row < w->end; pairs--, w->row += 2, w->dot += 64) {
        uint8_t *const y0 = t->y[w->row] + t->column;
        /* An odd last row is finished twice: its partner in scratch is not of this tile. */
        if (w->row + 1 < w->end)
            finish_pair(f, w->dot, y0, t->y[w->row + 1] + t->column, what, whole);
        else {
            int32_t two[64] __attribute__((aligned(64)));
            memcpy(two, w->dot, 128);
            memcpy(two + 32, w->dot, 128);
            finish_pair(f, two, y0, y0, what, whole);
        }
    }
}

/* One block of a tile into the C tiles, with a share of the waiting rows after every step. */
QNI_TEMPLATE void multiply(const struct qni_direct_tile *t, int64_t row, const struct finish *f,
                           struct waiting *w, const int second_rows, const int second_panel,
                           const int what, const int whole)
{
    const int8_t *const a = t->a + (size_t)row * t->pixel;
    const int8_t *b0 = t->b[0], *b1 = t->b[1];
    qni_amx_zero();
    for (int64_t tap = 0; tap < t->n_taps; tap++) {
        const int8_t *a0 = a + t->taps[tap];
        const int8_t *a1 = a0 + 16 * t->pixel;
        for (int64_t s = 0; s < t->tap_steps; s++) {
            _tile_loadd(6, b0, 64);
            _tile_loadd(4, a0, t->pixel);
            _tile_dpbssd(0, 4, 6);
            if (second_panel) {
                _tile_loadd(7, b1, 64);
                _tile_dpbssd(1, 4, 7);
                b1 += QNI_DIRECT_STEP_BYTES;
            }
            if (second_rows) {
                _tile_loadd(5, a1, t->pixel);
                _tile_dpbssd(2, 5, 6);
                if (second_panel)
                    _tile_dpbssd(3, 5, 7);
            }
            a0 += QNI_DIRECT_STEP;
            a1 += QNI_DIRECT_STEP;
            b0 += QNI_DIRECT_STEP_BYTES;
            finish_some(t, f, w, w->share, what, whole);
        }
    }
}

QNI_TEMPLATE void to_bytes(const struct qni_direct_tile *t, const int what, const int whole)
{
    const struct finish f = finish_of(t);
    const int64_t steps = t->n_taps * t->tap_steps, share = (BLOCK / 2 + steps - 1) / steps;
    struct waiting w = {NULL, 0, 0, share};
    int64_t at = 0;
    qni_amx_configure(t->rows < BLOCK ? t->rows : BLOCK, QNI_DIRECT_STEP);
    for (int64_t row = 0; row < t->rows; row += BLOCK, at ^= 1) {
        const int64_t rows = t->rows - row < BLOCK ? t->rows - row : BLOCK;
        int32_t *const c = (int32_t *)((char *)t->scratch + at * BLOCK_BYTES);
        if (rows < BLOCK && row > 0)
            qni_amx_configure(rows, QNI_DIRECT_STEP);
        if (rows == BLOCK && t->b[1] != NULL)
            multiply(t, row, &f, &w, 1, 1, what, whole);
        else if (t->b[1] != NULL)
            multiply(t, row, &f, &w, rows > 16, 1, what, whole);
        else
            multiply(t, row, &f, &w, rows > 16, 0, what, whole);
        finish_some(t, &f, &w, BLOCK, what, whole);
        qni_amx_store(c, rows > 16);
        w = (struct waiting){c, row, row + rows, share};
    }
    finish_some(t, &f, &w, BLOCK, what, whole);
}

/* Sums as they are, or times the weight's scale. */
static void to_words(const struct qni_direct_tile *t)
{
    struct waiting none = {NULL, 0, 0, 0};
    const struct finish f = {.columns = 0};
    for (int64_t row = 0; row < t->rows; row += BLOCK) {
        const int64_t rows = t->rows - row < BLOCK ? t->rows - row : BLOCK;
        int32_t *const c = t->scratch;
        qni_amx_configure(rows, QNI_DIRECT_STEP);
        multiply(t, row, &f, &none, rows > 16, t->b[1] != NULL, 0, 1);
        qni_amx_store(c, rows > 16);
        for (int64_t i = 0; i < rows; i++) {
            for (int64_t j = 0; j < (t->b[1] != NULL ? 2 : 1); j++) {
                __m512i d = _mm512_load_si512(c + i * 32 + j * 16);
                if (t->zero != NULL)
                    d = _mm512_sub_epi32(d, _mm512_loadu_si512(t->zero + 16 * j));
                float *const to = t->c + (row + i) * 32 + j * 16;
                const __m512 scale = _mm512_loadu_ps(t->scale + 16 * j);
                if (t->kind == QNI_DIRECT_RAW)
                    _mm512_storeu_si512(to, d);
                else
                    _mm512_storeu_ps(
                        to, _mm512_fmadd_ps(scale, _mm512_cvtepi32_ps(d), _mm512_setzero_ps()));
            }
        }
    }
}

static void tile(const struct qni_direct_tile *t)
{
    const int what = (t->bias != NULL ? BIAS : 0) | (t->zero != NULL ? ZERO : 0);
    if (t->kind != QNI_DIRECT_BYTES)
        to_words(t);
    else if (t->n < 32 || !t->is_tame)
        to_bytes(t, BIAS | ZERO | WILD, 0);
    else if (what == 0)
        to_bytes(t, 0, 1);
    else if (what == BIAS)
        to_bytes(t, BIAS, 1);
    else
        to_bytes(t, BIAS | ZERO, 1);
    _tile_release();
}

void qni_conv_q8_q8n16_mr32_amx(const struct qni_direct_tile *t)
{
    tile(t);
}
void qni_conv_q8_q4n16_mr32_amx(const struct qni_direct_tile *t)
{
    tile(t);
}
