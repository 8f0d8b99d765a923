/* SPDX-License-Identifier: Apache-2.0 */
/* Images for rows that gather (direct_kernel.h): all they need is lines with their padding. */
#include "../simd/avx2_bytes.h"
#include "kernel.h"

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
const struct qni_direct_helpers qni_direct_gathers_avx2 = {.images = &qni_direct_images_avx2};
