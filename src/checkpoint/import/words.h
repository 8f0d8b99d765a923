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

/* ---- blocks of codes of 4 bits, by vectors --------------------------------------------------- */

typedef uint8_t qni_codes16 QNI_VECTOR(16);
typedef uint32_t qni_words4 QNI_VECTOR(16);

/* Bytes of a and b in turn: of their first halves, and of their second ones. */
static inline qni_codes16 qni_interleave_low(qni_codes16 a, qni_codes16 b)
{
    return QNI_PICK(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
}
static inline qni_codes16 qni_interleave_high(qni_codes16 a, qni_codes16 b)
{
    return QNI_PICK(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
}

/* Byte j of x[i] goes to byte i of x[j]. Four rounds interleave the first half of the vectors
 * with the second one: each moves a bit of the vector's number to the byte's. */
static inline void qni_transpose16(qni_codes16 x[16])
{
    for (int32_t round = 0; round < 4; round++) {
        qni_codes16 from[16];
        memcpy(from, x, sizeof from);
        for (int32_t i = 0; i < 8; i++) {
            x[2 * i] = qni_interleave_low(from[i], from[i + 8]);
            x[2 * i + 1] = qni_interleave_high(from[i], from[i + 8]);
        }
    }
}

/* Word j of x[i] goes to word i of x[j]. */
static inline void qni_transpose_words(qni_words4 x[4])
{
    const qni_words4 a = QNI_PICK(x[0], x[1], 0, 4, 1, 5);
    const qni_words4 b = QNI_PICK(x[0], x[1], 2, 6, 3, 7);
    const qni_words4 c = QNI_PICK(x[2], x[3], 0, 4, 1, 5);
    const qni_words4 d = QNI_PICK(x[2], x[3], 2, 6, 3, 7);
    x[0] = QNI_PICK(a, c, 0, 1, 4, 5);
    x[1] = QNI_PICK(a, c, 2, 3, 6, 7);
    x[2] = QNI_PICK(b, d, 0, 1, 4, 5);
    x[3] = QNI_PICK(b, d, 2, 3, 6, 7);
}

/* The 32 codes of 16 bytes, low halves first. */
static inline void qni_split_codes(qni_codes16 bytes, uint8_t *codes)
{
    const qni_codes16 low = bytes & 15, high = bytes >> 4;
    const qni_codes16 first = qni_interleave_low(low, high);
    const qni_codes16 second = qni_interleave_high(low, high);
    memcpy(codes, &first, sizeof first);
    memcpy(codes + 16, &second, sizeof second);
}

#endif
