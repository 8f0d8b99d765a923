/* SPDX-License-Identifier: Apache-2.0 */
/* Blocks of 16 x 16 elements (8 x 8 of four bytes without AVX-512) turned in registers: pairs,
 * fours, eights and sixteens of rows are interleaved in turn, four shuffles an output row. Plain
 * loops would write or read one element a time from as many cache lines.
 *
 *     dst[i * ld + c * element] = src[c * plane + i * element]
 *
 * Only files compiled for AVX2 or more include this. Bound: the shuffle port, a quarter of a cycle
 * an element. */
#ifndef QNI_CPU_SIMD_TRANSPOSE_H
#define QNI_CPU_SIMD_TRANSPOSE_H

#if !defined(__AVX2__)
#error "needs the flags of an AVX2 file: see cmake/isa.cmake"
#endif

#include <immintrin.h>
#include <stddef.h>
#include <stdint.h>

#include "../../base/compiler.h"

/* One round: of `rows` vectors those that are `apart` from each other are interleaved, in twos. */
#define QNI_INTERLEAVE(to, from, rows, apart, low, high)                                           \
    QNI_UNROLL                                                                                     \
    for (int i = 0; i < (rows); i += 2 * (apart))                                                  \
        QNI_UNROLL                                                                                 \
    for (int j = 0; j < (apart); j++) {                                                            \
        (to)[i + 2 * j] = low((from)[i + j], (from)[i + j + (apart)]);                             \
        (to)[i + 2 * j + 1] = high((from)[i + j], (from)[i + j + (apart)]);                        \
    }

static inline void qni_turn16_u8(uint8_t *dst, size_t ld, const uint8_t *src, size_t plane)
{
    __m128i a[16], b[16];
    QNI_UNROLL
    for (int i = 0; i < 16; i++)
        a[i] = _mm_loadu_si128((const __m128i *)(const void *)(src + (size_t)i * plane));
    QNI_INTERLEAVE(b, a, 16, 1, _mm_unpacklo_epi8, _mm_unpackhi_epi8)
    QNI_INTERLEAVE(a, b, 16, 2, _mm_unpacklo_epi16, _mm_unpackhi_epi16)
    QNI_INTERLEAVE(b, a, 16, 4, _mm_unpacklo_epi32, _mm_unpackhi_epi32)
    QNI_UNROLL
    for (int j = 0; j < 8; j++) {
        uint8_t *const to = dst + (size_t)(2 * j) * ld;
        _mm_storeu_si128((__m128i *)(void *)to, _mm_unpacklo_epi64(b[j], b[j + 8]));
        _mm_storeu_si128((__m128i *)(void *)(to + ld), _mm_unpackhi_epi64(b[j], b[j + 8]));
    }
}

/* 32 rows of 16 bytes to 16 of 32. */
static inline void qni_turn32_u8(uint8_t *dst, size_t ld, const uint8_t *src, size_t plane)
{
    __m256i a[16], b[16];
    QNI_UNROLL
    for (int i = 0; i < 16; i++) {
        const uint8_t *const low = src + (size_t)i * plane, *const high = low + 16 * plane;
        a[i] = _mm256_inserti128_si256(
            _mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)low)),
            _mm_loadu_si128((const __m128i *)(const void *)high), 1);
    }
    QNI_INTERLEAVE(b, a, 16, 1, _mm256_unpacklo_epi8, _mm256_unpackhi_epi8)
    QNI_INTERLEAVE(a, b, 16, 2, _mm256_unpacklo_epi16, _mm256_unpackhi_epi16)
    QNI_INTERLEAVE(b, a, 16, 4, _mm256_unpacklo_epi32, _mm256_unpackhi_epi32)
    QNI_UNROLL
    for (int j = 0; j < 8; j++) {
        uint8_t *const to = dst + (size_t)(2 * j) * ld;
        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_unpacklo_epi64(b[j], b[j + 8]));
        _mm256_storeu_si256((__m256i *)(void *)(to + ld), _mm256_unpackhi_epi64(b[j], b[j + 8]));
    }
}

/* 8 rows of 16 words, which are so many apart: in the halves of to[r] words r and r + 8 of each. */
static inline void qni_turn8_words(const int16_t *from, int64_t apart, __m256i *to)
{
    __m256i a[8], b[8];
    QNI_UNROLL
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_loadu_si256((const __m256i *)(const void *)(from + i * apart));
    QNI_INTERLEAVE(b, a, 8, 1, _mm256_unpacklo_epi16, _mm256_unpackhi_epi16)
    QNI_INTERLEAVE(a, b, 8, 2, _mm256_unpacklo_epi32, _mm256_unpackhi_epi32)
    QNI_UNROLL
    for (int j = 0; j < 4; j++) {
        to[2 * j] = _mm256_unpacklo_epi64(a[j], a[j + 4]);
        to[2 * j + 1] = _mm256_unpackhi_epi64(a[j], a[j + 4]);
    }
}

static inline void qni_turn16_u16(uint8_t *dst, size_t ld, const uint8_t *src, size_t plane)
{
    __m256i a[16], b[16];
    QNI_UNROLL
    for (int i = 0; i < 16; i++)
        a[i] = _mm256_loadu_si256((const __m256i *)(const void *)(src + (size_t)i * plane));
    QNI_INTERLEAVE(b, a, 16, 1, _mm256_unpacklo_epi16, _mm256_unpackhi_epi16)
    QNI_INTERLEAVE(a, b, 16, 2, _mm256_unpacklo_epi32, _mm256_unpackhi_epi32)
    QNI_INTERLEAVE(b, a, 16, 4, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64)
    /* b[p]: pixels p and p + 8, one a half, of the first eight rows; b[p + 8]: of the others. */
    QNI_UNROLL
    for (int p = 0; p < 8; p++) {
        uint8_t *const to = dst + (size_t)p * ld;
        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute2x128_si256(b[p], b[p + 8], 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(to + 8 * ld),
                            _mm256_permute2x128_si256(b[p], b[p + 8], 0x31));
    }
}

#if defined(__AVX512F__)

static inline void qni_turn16_u32(uint8_t *dst, size_t ld, const uint8_t *src, size_t plane)
{
    __m512i a[16], b[16];
    QNI_UNROLL
    for (int i = 0; i < 16; i++)
        a[i] = _mm512_loadu_si512(src + (size_t)i * plane);
    QNI_INTERLEAVE(b, a, 16, 1, _mm512_unpacklo_epi32, _mm512_unpackhi_epi32)
    QNI_INTERLEAVE(a, b, 16, 2, _mm512_unpacklo_epi64, _mm512_unpackhi_epi64)
    /* a[4 i + j]: quarter q holds pixel 4 q + j of the rows 4 i to 4 i + 3. */
    QNI_UNROLL
    for (int j = 0; j < 4; j++) {
        const __m512i even0 = _mm512_shuffle_i32x4(a[j], a[j + 4], 0x88);
        const __m512i odd0 = _mm512_shuffle_i32x4(a[j], a[j + 4], 0xdd);
        const __m512i even1 = _mm512_shuffle_i32x4(a[j + 8], a[j + 12], 0x88);
        const __m512i odd1 = _mm512_shuffle_i32x4(a[j + 8], a[j + 12], 0xdd);
        uint8_t *const to = dst + (size_t)j * ld;
        _mm512_storeu_si512(to, _mm512_shuffle_i32x4(even0, even1, 0x88));
        _mm512_storeu_si512(to + 4 * ld, _mm512_shuffle_i32x4(odd0, odd1, 0x88));
        _mm512_storeu_si512(to + 8 * ld, _mm512_shuffle_i32x4(even0, even1, 0xdd));
        _mm512_storeu_si512(to + 12 * ld, _mm512_shuffle_i32x4(odd0, odd1, 0xdd));
    }
}

#else

static inline void qni_turn8_u32(uint8_t *dst, size_t ld, const uint8_t *src, size_t plane)
{
    __m256i a[8], b[8];
    QNI_UNROLL
    for (int i = 0; i < 8; i++)
        a[i] = _mm256_loadu_si256((const __m256i *)(const void *)(src + (size_t)i * plane));
    QNI_INTERLEAVE(b, a, 8, 1, _mm256_unpacklo_epi32, _mm256_unpackhi_epi32)
    QNI_INTERLEAVE(a, b, 8, 2, _mm256_unpacklo_epi64, _mm256_unpackhi_epi64)
    QNI_UNROLL
    for (int j = 0; j < 4; j++) {
        uint8_t *const to = dst + (size_t)j * ld;
        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_permute2x128_si256(a[j], a[j + 4], 0x20));
        _mm256_storeu_si256((__m256i *)(void *)(to + 4 * ld),
                            _mm256_permute2x128_si256(a[j], a[j + 4], 0x31));
    }
}

static inline void qni_turn16_u32(uint8_t *dst, size_t ld, const uint8_t *src, size_t plane)
{
    for (size_t c = 0; c < 16; c += 8)
        for (size_t i = 0; i < 16; i += 8)
            qni_turn8_u32(dst + i * ld + c * 4, ld, src + c * plane + i * 4, plane);
}

#endif

#undef QNI_INTERLEAVE

#endif
