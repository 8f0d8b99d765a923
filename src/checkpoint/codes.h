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

#endif
