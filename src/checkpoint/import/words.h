/* SPDX-License-Identifier: Apache-2.0 */
/* Words of packed codes, as GPTQ, AWQ and compressed-tensors have them: little-endian words whose
 * codes begin at the least significant bit are one little-endian stream of bits, whatever the
 * word's size. */
#ifndef QNI_IMPORT_WORDS_H
#define QNI_IMPORT_WORDS_H

#include "import.h"

/* Bits of a word of that type (signed and unsigned alike); 0: no type of words. */
static inline int32_t qni_word_bits(qn_dtype dtype)
{
    switch (dtype) {
    case QN_I8:
    case QN_U8:
        return 8;
    case QN_I16:
    case QN_U16:
        return 16;
    case QN_I32:
    case QN_U32:
        return 32;
    case QN_I64:
    case QN_U64:
        return 64;
    default:
        return 0;
    }
}

/* Code i of a stream of codes of at most 8 bits; reads no byte that has none of its bits. */
static inline uint32_t qni_stream_code(const uint8_t *stream, int64_t i, int32_t bits)
{
    const int64_t at = i * bits;
    const int32_t shift = (int32_t)(at % 8);
    uint32_t x = stream[at / 8];
    if (shift + bits > 8)
        x |= (uint32_t)stream[at / 8 + 1] << 8;
    return x >> shift & ((1u << bits) - 1);
}

/* The eight bytes of each x[i] become a column: byte j of x[i] goes to byte i of x[j]. */
static inline void qni_transpose_bytes(uint64_t x[8])
{
    static const struct {
        int32_t shift;
        uint64_t low;
    } steps[3] = {{32, 0x00000000ffffffff}, {16, 0x0000ffff0000ffff}, {8, 0x00ff00ff00ff00ff}};
    for (int32_t s = 0; s < 3; s++) {
        const int32_t apart = steps[s].shift / 8;
        for (int32_t i = 0; i < 8; i++) {
            if ((i & apart) != 0)
                continue;
            const uint64_t a = x[i], b = x[i + apart], low = steps[s].low;
            x[i] = (a & low) | (b & low) << steps[s].shift;
            x[i + apart] = (a >> steps[s].shift & low) | (b & ~low);
        }
    }
}

#endif
