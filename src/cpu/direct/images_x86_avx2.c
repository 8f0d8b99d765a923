/* SPDX-License-Identifier: Apache-2.0 */
/* Images for rows that gather (kernel.h): all they need is lines with their padding. */
#include "../../base/compiler.h"
#include "../simd/avx2.h"
#include "kernel.h"

QNI_TEMPLATE void flip_16(const uint8_t *from, const __m128i flip, uint8_t *to)
{
    const __m128i v = _mm_loadu_si128((const __m128i *)(const void *)from);
    _mm_storeu_si128((__m128i *)(void *)to, _mm_xor_si128(v, flip));
}

/* n bytes, changed by flip; the last ones may be written twice. */
QNI_TEMPLATE void copy(const uint8_t *from, int64_t n, const uint8_t flip, uint8_t *to)
{
    const __m256i wide = _mm256_set1_epi8((char)flip);
    const __m128i half = _mm256_castsi256_si128(wide);
    if (n < 16) {
        for (int64_t i = 0; i < n; i++)
            to[i] = from[i] ^ flip;
        return;
    }
    for (; n >= 32; n -= 32, from += 32, to += 32) {
        const __m256i v = _mm256_loadu_si256((const __m256i *)(const void *)from);
        _mm256_storeu_si256((__m256i *)(void *)to, _mm256_xor_si256(v, wide));
    }
    if (n > 16)
        flip_16(from, half, to);
    if (n > 0)
        flip_16(from + n - 16, half, to + n - 16);
}

static void spread(const struct qni_direct_spread *s)
{
    const uint8_t *from = s->from;
    uint8_t *to = s->to;
    for (int64_t n = s->n; n > 0; n--, from += s->step, to += s->pixel) {
        copy(from, s->channels, s->flip, to);
        if (s->pixel > s->channels)
            memset(to + s->channels, 0, (size_t)(s->pixel - s->channels));
    }
}

const struct qni_direct_images qni_direct_images_avx2 = {NULL, NULL, NULL, spread};
