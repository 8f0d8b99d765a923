/* SPDX-License-Identifier: Apache-2.0 */
/* Eight codes are one 64-bit word with a code per byte; packed they are its lowest 8 * bits bits,
 * which is a whole number of bytes. Three steps join neighbours: bytes to pairs in 16 bits, pairs
 * to fours in 32, fours to the eight. In each the upper half of a lane of 2 * w bits, holding v of
 * w bits, moves down by w - v. No memory beyond the row is touched. */
#include "codes.h"

#include <string.h>

#include "../base/compiler.h"

/* The lowest v bits of every lane of w bits, w = 16 or 32. */
static inline uint64_t lanes(int32_t v, int32_t w)
{
    return (w == 16 ? 0x0001000100010001u : 0x0000000100000001u) * (((uint64_t)1 << v) - 1);
}

QNI_TEMPLATE uint64_t join(uint64_t x, const int32_t b)
{
    const uint64_t low = ((uint64_t)1 << 4 * b) - 1;
    x = (x & lanes(b, 16)) | (x >> (8 - b) & lanes(b, 16) << b);
    x = (x & lanes(2 * b, 32)) | (x >> (16 - 2 * b) & lanes(2 * b, 32) << 2 * b);
    return (x & low) | (x >> (32 - 4 * b) & low << 4 * b);
}

QNI_TEMPLATE uint64_t spread(uint64_t x, const int32_t b)
{
    const uint64_t low = ((uint64_t)1 << 4 * b) - 1;
    x = (x & low) | (x >> 4 * b & low) << 32;
    x = (x & lanes(2 * b, 32)) | (x & lanes(2 * b, 32) << 2 * b) << (16 - 2 * b);
    return (x & lanes(b, 16)) | (x & lanes(b, 16) << b) << (8 - b);
}

QNI_TEMPLATE void pack(const uint8_t *codes, size_t k, const int32_t b, uint8_t *out)
{
    uint64_t x;
    for (size_t i = 0; i < k / 8; i++) {
        memcpy(&x, codes + 8 * i, 8);
        x = join(x, b);
        memcpy(out + (size_t)b * i, &x, (size_t)b);
    }
    if (k % 8 == 0)
        return;
    x = 0;
    memcpy(&x, codes + k / 8 * 8, k % 8);
    x = join(x, b);
    memcpy(out + k / 8 * (size_t)b, &x, qni_codes_bytes(k % 8, b));
}

QNI_TEMPLATE bool unpack(const uint8_t *packed, size_t k, const int32_t b, uint8_t *codes)
{
    uint64_t x;
    size_t i = 0;
    /* Whole words as long as they end inside the row: a word put together from smaller pieces waits
     * for their way through memory. spread() ignores what is too much. */
    for (; (size_t)b * i + 8 <= k / 8 * (size_t)b; i++) {
        memcpy(&x, packed + (size_t)b * i, 8);
        x = spread(x, b);
        memcpy(codes + 8 * i, &x, 8);
    }
    for (; i < k / 8; i++) {
        x = 0;
        memcpy(&x, packed + (size_t)b * i, (size_t)b);
        x = spread(x, b);
        memcpy(codes + 8 * i, &x, 8);
    }
    if (k % 8 == 0)
        return true;
    x = 0;
    memcpy(&x, packed + k / 8 * (size_t)b, qni_codes_bytes(k % 8, b));
    const bool is_clean = x >> (k % 8 * (size_t)b) == 0;
    x = spread(x, b);
    memcpy(codes + k / 8 * 8, &x, k % 8);
    return is_clean;
}

void qni_codes_pack(const uint8_t *codes, size_t k, int32_t bits, uint8_t *out)
{
    switch (bits) {
    case 1:
        pack(codes, k, 1, out);
        break;
    case 2:
        pack(codes, k, 2, out);
        break;
    case 3:
        pack(codes, k, 3, out);
        break;
    case 4:
        pack(codes, k, 4, out);
        break;
    case 5:
        pack(codes, k, 5, out);
        break;
    case 6:
        pack(codes, k, 6, out);
        break;
    case 7:
        pack(codes, k, 7, out);
        break;
    default:
        memcpy(out, codes, k);
    }
}

bool qni_codes_unpack(const uint8_t *packed, size_t k, int32_t bits, uint8_t *codes)
{
    switch (bits) {
    case 1:
        return unpack(packed, k, 1, codes);
    case 2:
        return unpack(packed, k, 2, codes);
    case 3:
        return unpack(packed, k, 3, codes);
    case 4:
        return unpack(packed, k, 4, codes);
    case 5:
        return unpack(packed, k, 5, codes);
    case 6:
        return unpack(packed, k, 6, codes);
    case 7:
        return unpack(packed, k, 7, codes);
    default:
        memcpy(codes, packed, k);
        return true;
    }
}

/* Where a plane has its part of code i: the byte, and the bits' place in it. Since the width of a
 * plane divides 8, a part lies within a byte. */
static inline size_t plane_byte(int64_t i, int32_t bits, int32_t width, size_t stride,
                                int32_t *shift)
{
    /* Planes that are wider come before: as many words as their bits. */
    const int64_t before = bits & ~(2 * width - 1), bit = i % 32 * width;
    *shift = (int32_t)(bit % 8);
    return (size_t)(i / 32 * bits + before + bit / 32) * stride + (size_t)(bit % 32 / 8);
}

uint32_t qni_planes_code(const uint8_t *words, size_t stride, int64_t i, int32_t bits)
{
    uint32_t code = 0;
    int32_t shift = 0;
    for (int32_t width = 8, low = 0; width > 0; width /= 2) {
        if ((bits & width) == 0)
            continue;
        const uint32_t byte = words[plane_byte(i, bits, width, stride, &shift)];
        code |= (byte >> shift & ((1u << width) - 1)) << low;
        low += width;
    }
    return code;
}

void qni_planes_put(uint8_t *words, size_t stride, int64_t i, int32_t bits, uint32_t code)
{
    int32_t shift = 0;
    for (int32_t width = 8; width > 0; width /= 2) {
        if ((bits & width) == 0)
            continue;
        uint8_t *byte = words + plane_byte(i, bits, width, stride, &shift);
        *byte = (uint8_t)(*byte | (code & ((1u << width) - 1)) << shift);
        code >>= width;
    }
}

void qni_planes_unpack(const uint8_t *words, size_t k, int32_t bits, uint8_t *codes)
{
    uint8_t block[32]; /* of at most 8 words, which the codes would overwrite */
    const size_t bytes = 4 * (size_t)bits;
    for (size_t i = 0; i < k; i += 32, words += bytes) {
        memcpy(block, words, bytes);
        for (int32_t j = 0; j < 32; j++)
            codes[i + (size_t)j] = (uint8_t)qni_planes_code(block, 4, j, bits);
    }
}
