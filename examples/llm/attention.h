/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of a few queries over the cached keys and values of one head.
 *
 * Keys lie in blocks of 16 positions, [position / 16][head_dim][16], so that one column of scores
 * is a vector; values as [position][head_dim, rounded up to 16]. */
#ifndef LLM_ATTENTION_H
#define LLM_ATTENTION_H

#include <stddef.h>
#include <stdint.h>

enum { ATTENTION_ROWS = 4 };

struct attention {
    const float *keys, *values;
    int32_t head_dim;
    float scale;
    const float *q[ATTENTION_ROWS];
    float *out[ATTENTION_ROWS];                         /* [head_dim]; rows may be the same one */
    int32_t begin[ATTENTION_ROWS], end[ATTENTION_ROWS]; /* positions that a row reads */
};

/* Floats of the keys of `longest` positions, and of the values. */
size_t attention_cache_floats(int32_t longest, int32_t head_dim);
void attention_put(float *keys, float *values, int32_t position, int32_t head_dim, const float *key,
                   const float *value);
/* out = softmax(scale * q . keys) . values for each row, whose bits do not depend on the others. */
void attention_rows(const struct attention *a);

#endif
