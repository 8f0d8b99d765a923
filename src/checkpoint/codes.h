/* SPDX-License-Identifier: Apache-2.0 */
/* Codes of 1 to 8 bits as a bit stream: code i of a row takes bits [i * bits, i * bits + bits), bit
 * 0 being the least significant of the first byte. Every row begins a new byte; the rest of its
 * last byte is 0. */
#ifndef QNI_CHECKPOINT_CODES_H
#define QNI_CHECKPOINT_CODES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Bytes of a row. k * bits must not overflow. */
static inline size_t qni_codes_bytes(size_t k, int32_t bits)
{
    return k / 8 * (size_t)bits + (k % 8 * (size_t)bits + 7) / 8;
}

/* codes: [k], one byte each, below 2^bits; out: qni_codes_bytes(). */
void qni_codes_pack(const uint8_t *codes, size_t k, int32_t bits, uint8_t *out);
/* The reverse. False if the bits behind the last code are not 0. */
bool qni_codes_unpack(const uint8_t *packed, size_t k, int32_t bits, uint8_t *codes);

/* Planes, which GPTQ's format gptq_p has: 32 codes take `bits` words of 32 bits, in each of which
 * no code is cut. A plane for each power of two in `bits`, the widest first: its words hold that
 * many bits of each code, the lowest bits in the first plane, code 0 in the lowest bits of a word.
 * 2, 4 and 8 bits are one plane, which is the stream above; 7 are planes of 4, 2 and 1.
 * Example: of 3 bits, words 0 and 1 have bits 0 and 1 of 16 codes each, word 2 has bit 2 of all.
 * words: `stride` bytes apart. */
uint32_t qni_planes_code(const uint8_t *words, size_t stride, int64_t i, int32_t bits);
/* Adds code i to words that had zeros there. */
void qni_planes_put(uint8_t *words, size_t stride, int64_t i, int32_t bits, uint32_t code);
/* k: a multiple of 32. The words may be the end of the codes. */
void qni_planes_unpack(const uint8_t *words, size_t k, int32_t bits, uint8_t *codes);

#endif
