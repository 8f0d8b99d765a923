/* SPDX-License-Identifier: Apache-2.0 */
/* Public contexts with one thread, two and three, and small random numbers: what the unit tests of
 * convolutions and grouped products share. */
#ifndef TEST_UNIT_CONTEXTS_H
#define TEST_UNIT_CONTEXTS_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <quern/quern.h>

static uint64_t random_state;
static inline uint32_t draw(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(random_state >> 33);
}
static inline int32_t pick(int32_t lo, int32_t hi)
{
    return lo + (int32_t)(draw() % (uint32_t)(hi - lo + 1));
}
static inline float real(void)
{
    return (float)(pick(-1000, 1000)) * 0.00123f;
}

enum { N_CONTEXTS = 3 };
static qn_ctx *contexts[N_CONTEXTS];

static inline int make_contexts(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_CONTEXTS; i++) {
        qn_ctx_options options;
        qn_ctx_options_init(&options);
        options.n_threads = i + 1;
        assert_int_equal(qn_ctx_create(&options, &contexts[i], NULL), QN_OK);
    }
    return 0;
}
static inline int destroy_contexts(void **state)
{
    (void)state;
    for (int32_t i = 0; i < N_CONTEXTS; i++)
        qn_ctx_destroy(contexts[i]);
    return 0;
}

#endif
