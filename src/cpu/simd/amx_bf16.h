/* SPDX-License-Identifier: Apache-2.0 */
/* Codes to tiles of bf16, for the kernels of floats. Only files compiled for AMX include this. */
#ifndef QNI_CPU_SIMD_AMX_BF16_H
#define QNI_CPU_SIMD_AMX_BF16_H

#include "../../base/compiler.h"
#include "amx.h"
#include "avx512.h"

/* SHIFTED: nibbles less a zero point of each output. */
enum { QNI_AMX_NIBBLES = 0, QNI_AMX_BYTES = 1, QNI_AMX_SHIFTED = 3 };
enum {
    QNI_AMX_BF16_TILE = 1024,  /* bytes */
    QNI_AMX_BF16_WIDTH = 32,   /* outputs of two panels */
    QNI_AMX_BF16_BLOCK = 2048, /* bytes of A: 32 rows of 32 positions */
    QNI_AMX_BF16_UNIT = 2048,  /* bytes of B: both panels */
    QNI_AMX_BF16_UNITS = 8     /* of a chunk of B at most: two lie in the first cache */
};

/* The compiler does not know that tiles are loaded from memory and stored there. */
#define QNI_AMX_TILES_SEE_MEMORY() __asm__ volatile("" ::: "memory")

/* ---- codes to tiles -------------------------------------------------------------------------- */

#define QNI_AMX_BYTE_ZERO (0x1p23f + 128.0f)

/* A byte in the low bits of 2^23 makes 2^23 + byte; less 2^23 + 128 it is the code, less more than
 * that the code less a zero point. */
QNI_TEMPLATE __m512i qni_amx_float_less(__m512i v, __m512 less)
{
    const __m512i one = _mm512_set1_epi32(0x4b000000), byte = _mm512_set1_epi32(0xff);
    const __m512i bits = _mm512_ternarylogic_epi32(v, byte, one, 0xea); /* (v & byte) | one */
    return _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(bits), less));
}

/* Bytes h and h + 2 of every lane. An integer of 9 bits, sign and all, as f32 has zeros below its
 * upper half. */
QNI_TEMPLATE __m512i qni_amx_pair_of_bytes(__m512i v, __m512 less, const int h)
{
    const __m512i low = qni_amx_float_less(h == 0 ? v : _mm512_srli_epi32(v, 8), less);
    const __m512i high = qni_amx_float_less(_mm512_srli_epi32(v, h == 0 ? 16 : 24), less);
    return _mm512_mask_blend_epi16(0xaaaaaaaau, _mm512_srli_epi32(low, 16), high);
}

/* A codebook of 256 values of bf16, byte by byte. */
struct qni_amx_bytes {
    __m512i lower[4], upper[4];
};

/* What codes mean, other than integers. */
struct qni_amx_table {
    __m512i nibbles;                   /* bf16, twice */
    const struct qni_amx_bytes *bytes; /* NULL: integers */
};

static inline void qni_amx_bytes_of(const float *table, struct qni_amx_bytes *b)
{
    uint8_t *const lower = (uint8_t *)b->lower, *const upper = (uint8_t *)b->upper;
    for (int i = 0; i < 256; i++) {
        uint32_t bits;
        memcpy(&bits, table + i, sizeof bits);
        lower[i] = (uint8_t)(bits >> 16);
        upper[i] = (uint8_t)(bits >> 24);
    }
}

/* vpermi2b looks at seven bits of a byte. */
QNI_TEMPLATE __m512i qni_amx_look_up(const __m512i table[4], __m512i v)
{
    const __m512i low = _mm512_permutex2var_epi8(table[0], v, table[1]);
    const __m512i high = _mm512_permutex2var_epi8(table[2], v, table[3]);
    return _mm512_mask_mov_epi8(low, _mm512_movepi8_mask(v), high);
}

/* Out of line: rare, and the callers are many. */
QNI_NOINLINE static void qni_amx_unpack_values(const uint8_t *codes, uint8_t *out, int lines,
                                               const struct qni_amx_bytes *table)
{
    for (int r = 0; r < lines; r++) {
        const __m512i v = _mm512_loadu_si512(codes + 64 * r);
        const __m512i lower = qni_amx_look_up(table->lower, v);
        const __m512i upper = qni_amx_look_up(table->upper, v);
        /* Bytes 0 and 2 of every lane, and 1 and 3. */
        _mm512_store_si512(out + 128 * r, _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaau, lower,
                                                                 _mm512_slli_epi16(upper, 8)));
        _mm512_store_si512(
            out + 128 * r + 64,
            _mm512_mask_blend_epi8(0xaaaaaaaaaaaaaaaau, _mm512_srli_epi16(lower, 8), upper));
    }
}

/* 64 bytes of nibbles to two rows of a tile, and the same of its second half. */
QNI_TEMPLATE void qni_amx_unpack_nibbles(__m512i v, uint8_t *out, __m512i table)
{
    /* Moves bytes on port 5: shifts have port 0 alone, which scales sums, too. */
    const __m512i next_byte = _mm512_broadcast_i32x4(
        _mm_setr_epi8(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, -1));
    const __m512i v8 = _mm512_shuffle_epi8(v, next_byte);
    const __m512i v4 = _mm512_srli_epi16(v, 4), v12 = _mm512_srli_epi16(v8, 4);
    _mm512_store_si512(out, _mm512_permutexvar_epi16(v, table));
    _mm512_store_si512(out + 64, _mm512_permutexvar_epi16(v8, table));
    _mm512_store_si512(out + 512, _mm512_permutexvar_epi16(v4, table));
    _mm512_store_si512(out + 576, _mm512_permutexvar_epi16(v12, table));
}

/* Unpacks nibbles less a zero point: five bits of nibble + shift index a table of -16 to 15. */
QNI_TEMPLATE void qni_amx_unpack_shifted(__m512i v, uint8_t *out, __m512i table, __m512i shift)
{
    const __m512i next_byte = _mm512_broadcast_i32x4(
        _mm_setr_epi8(1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, -1));
    const __m512i nibble = _mm512_set1_epi8(15);
    const __m512i low = _mm512_add_epi8(_mm512_and_si512(v, nibble), shift);
    const __m512i high = _mm512_add_epi8(_mm512_and_si512(_mm512_srli_epi16(v, 4), nibble), shift);
    _mm512_store_si512(out, _mm512_permutexvar_epi16(low, table));
    _mm512_store_si512(out + 64,
                       _mm512_permutexvar_epi16(_mm512_shuffle_epi8(low, next_byte), table));
    _mm512_store_si512(out + 512, _mm512_permutexvar_epi16(high, table));
    _mm512_store_si512(out + 576,
                       _mm512_permutexvar_epi16(_mm512_shuffle_epi8(high, next_byte), table));
}

/* A unit of a panel to a tile: row i has the i-th pair of positions, as x has them. */
QNI_TEMPLATE void qni_amx_unpack_bf16(const uint8_t *codes, uint8_t *out,
                                      struct qni_amx_table table, const int kind)
{
    if (kind == QNI_AMX_BYTES && table.bytes != NULL) {
        qni_amx_unpack_values(codes, out, 8, table.bytes);
        return;
    }
    if (kind == QNI_AMX_BYTES) {
        const __m512 less = _mm512_set1_ps(QNI_AMX_BYTE_ZERO);
        QNI_UNROLL
        for (int r = 0; r < 8; r++) {
            const __m512i v = _mm512_loadu_si512(codes + 64 * r);
            _mm512_store_si512(out + 128 * r, qni_amx_pair_of_bytes(v, less, 0));
            _mm512_store_si512(out + 128 * r + 64, qni_amx_pair_of_bytes(v, less, 1));
        }
        return;
    }
    QNI_UNROLL
    for (int r = 0; r < 4; r++)
        qni_amx_unpack_nibbles(_mm512_loadu_si512(codes + 64 * r), out + 128 * r, table.nibbles);
}

/* A tile's sums go to memory when the first product of the next segment needs it. */
#define QNI_AMX_LEAVE(tile, at)                                                                    \
    do {                                                                                           \
        _tile_stored(tile, to + (at), 4 * QNI_AMX_BF16_WIDTH);                                     \
        _tile_zero(tile);                                                                          \
    } while (0)

/* The sums of the last segment, which has no next. */
QNI_TEMPLATE void qni_amx_leave(float *to)
{
    QNI_AMX_LEAVE(0, 0);
    QNI_AMX_LEAVE(1, 16);
    QNI_AMX_LEAVE(2, 16 * QNI_AMX_BF16_WIDTH);
    QNI_AMX_LEAVE(3, 16 * QNI_AMX_BF16_WIDTH + 16);
    QNI_AMX_TILES_SEE_MEMORY();
}

#endif
