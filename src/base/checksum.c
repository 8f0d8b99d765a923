/* SPDX-License-Identifier: Apache-2.0 */
/* XXH64: four lanes take 8 of 32 bytes each, lane = rotl(lane + word * p2, 31) * p1; at the end
 * they are mixed into one number with the length and what is left. Every step is a bijection of the
 * word that it takes, so that two inputs that differ in one word never have the same checksum.
 * Words are little endian, as is every machine that this library is built for. */
#include "checksum.h"

#include <string.h>

static const uint64_t p1 = 0x9e3779b185ebca87u, p2 = 0xc2b2ae3d27d4eb4fu, p3 = 0x165667b19e3779f9u,
                      p4 = 0x85ebca77c2b2ae63u, p5 = 0x27d4eb2f165667c5u;

static uint64_t rotate(uint64_t x, int32_t by)
{
    return x << by | x >> (64 - by);
}

static uint64_t take(uint64_t lane, uint64_t word)
{
    return rotate(lane + word * p2, 31) * p1;
}

static uint64_t load64(const uint8_t *from)
{
    uint64_t word;
    memcpy(&word, from, sizeof word);
    return word;
}

void qni_checksum_start(struct qni_checksum *sum)
{
    memset(sum, 0, sizeof *sum);
    sum->lane[0] = p1 + p2;
    sum->lane[1] = p2;
    sum->lane[3] = 0 - p1;
}

static void add_blocks(struct qni_checksum *sum, const uint8_t *data, size_t n_blocks)
{
    uint64_t a = sum->lane[0], b = sum->lane[1], c = sum->lane[2], d = sum->lane[3];
    for (size_t i = 0; i < n_blocks; i++, data += 32) {
        a = take(a, load64(data));
        b = take(b, load64(data + 8));
        c = take(c, load64(data + 16));
        d = take(d, load64(data + 24));
    }
    sum->lane[0] = a;
    sum->lane[1] = b;
    sum->lane[2] = c;
    sum->lane[3] = d;
}

void qni_checksum_add(struct qni_checksum *sum, const void *data, size_t bytes)
{
    const uint8_t *from = data;
    const size_t held = (size_t)(sum->bytes % 32);
    if (bytes == 0)
        return;
    sum->bytes += bytes;
    if (held > 0) {
        const size_t step = bytes < 32 - held ? bytes : 32 - held;
        memcpy(sum->rest + held, from, step);
        from += step;
        bytes -= step;
        if (held + step < 32)
            return;
        add_blocks(sum, sum->rest, 1);
    }
    add_blocks(sum, from, bytes / 32);
    if (bytes % 32 > 0)
        memcpy(sum->rest, from + bytes / 32 * 32, bytes % 32);
}

/* The last bytes % 32, eight, four and one at a time, and the avalanche. */
static uint64_t finish(uint64_t x, const uint8_t *rest, size_t left)
{
    for (; left >= 8; rest += 8, left -= 8)
        x = rotate(x ^ take(0, load64(rest)), 27) * p1 + p4;
    if (left >= 4) {
        uint32_t word;
        memcpy(&word, rest, sizeof word);
        x = rotate(x ^ word * p1, 23) * p2 + p3;
        rest += 4;
        left -= 4;
    }
    for (; left > 0; rest++, left--)
        x = rotate(x ^ *rest * p5, 11) * p1;
    x = (x ^ x >> 33) * p2;
    x = (x ^ x >> 29) * p3;
    return x ^ x >> 32;
}

uint64_t qni_checksum_end(const struct qni_checksum *sum)
{
    static const int32_t turn[4] = {1, 7, 12, 18};
    uint64_t x = 0;
    if (sum->bytes < 32) {
        x = p5;
    } else {
        for (int32_t i = 0; i < 4; i++)
            x += rotate(sum->lane[i], turn[i]);
        for (int32_t i = 0; i < 4; i++)
            x = (x ^ take(0, sum->lane[i])) * p1 + p4;
    }
    return finish(x + sum->bytes, sum->rest, (size_t)(sum->bytes % 32));
}

uint64_t qni_checksum_note(const struct qni_checksum *sum)
{
    const uint64_t x = qni_checksum_end(sum);
    return x != 0 ? x : 1;
}
