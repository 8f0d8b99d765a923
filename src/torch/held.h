/* SPDX-License-Identifier: Apache-2.0 */
/* Weights that operators of torch multiply with. An operator's argument is a number, so that graphs
 * can hold it; the numbers stand in one table for the whole process, as torch's operators do. This
 * is the only state outside of a context. A number is never used twice. */
#ifndef QUERN_SRC_TORCH_HELD_H
#define QUERN_SRC_TORCH_HELD_H

#include <quern/quern.h>

/* What a plan was made for; unused words are 0. */
enum { HELD_KEY = 24 };
typedef struct held_key {
    int64_t word[HELD_KEY];
} held_key;

typedef struct held {
    qn_ctx *ctx;
    const qn_packed **weights;
    int32_t count;
    qn_packed_info info;
} held;

/* Scratch for one call at a time, in host memory. */
typedef struct held_scratch {
    void *memory;
    size_t bytes;
} held_scratch;

/* The weights of a number, which stay until held_release(); NULL if there are none (any more). */
held *held_take(int64_t number);
void held_release(held *weights);

/* A plan that was kept for this key, or NULL. */
const qn_plan *held_plan(held *weights, const held_key *key);
/* Keep a plan as long as the weights are held. @return the one to use, which may be one that
 * another thread kept before, or NULL: there are too many, the caller uses its own and frees it. */
const qn_plan *held_keep(held *weights, const held_key *key, qn_plan *plan);

/* @return false: out of memory. */
bool held_scratch_take(size_t bytes, held_scratch *scratch);
void held_scratch_give(held_scratch *scratch);

/* One at a time: a context's stream is set, and its work launched. */
void held_stream_lock(void);
void held_stream_unlock(void);

#endif
