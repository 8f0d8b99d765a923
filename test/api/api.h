/* SPDX-License-Identifier: Apache-2.0 */
/* What the API tests share: contexts that count and refuse memory, weights made from a seed, and
 * a plain product in double to compare with. They see the public headers only. */
#ifndef TEST_API_API_H
#define TEST_API_API_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include <quern/quern.h>

/* The status, by name in the message of a failure. */
#define assert_status(call, expected)                                                              \
    do {                                                                                           \
        const qn_status status_got_ = (call);                                                      \
        if (status_got_ != (expected))                                                             \
            fail_msg("%s gave %s, not %s", #call, qn_status_name(status_got_),                     \
                     qn_status_name(expected));                                                    \
    } while (0)
#define assert_ok(call) assert_status(call, QN_OK)

/* The status, and that err has it with a sentence in which `word` occurs. */
#define assert_error(call, expected, word)                                                         \
    do {                                                                                           \
        qn_error err;                                                                              \
        memset(&err, 0, sizeof err);                                                               \
        const qn_status status_got_ = (call);                                                      \
        if (status_got_ != (expected) || err.status != (expected))                                 \
            fail_msg("%s gave %s (err: %s), not %s", #call, qn_status_name(status_got_), err.text, \
                     qn_status_name(expected));                                                    \
        if (strstr(err.text, word) == NULL)                                                        \
            fail_msg("%s: '%s' does not say '%s'", #call, err.text, word);                         \
    } while (0)

/* --------------------------------------------------------------------------------------- memory */

/* An allocator that counts, and that refuses call number `refuse` (counted from 1; 0: none). */
struct counter {
    int64_t calls, live, refuse;
    uintptr_t largest; /* the largest block so far */
    size_t largest_bytes;
};

static inline void *counted_alloc(void *arg, size_t bytes, size_t alignment)
{
    struct counter *c = arg;
    if (__atomic_add_fetch(&c->calls, 1, __ATOMIC_RELAXED) == c->refuse)
        return NULL;
    void *memory = aligned_alloc(alignment, (bytes + alignment) / alignment * alignment);
    if (memory != NULL)
        __atomic_add_fetch(&c->live, 1, __ATOMIC_RELAXED);
    if (bytes > c->largest_bytes) {
        c->largest = (uintptr_t)memory;
        c->largest_bytes = bytes;
    }
    return memory;
}

static inline void counted_free(void *arg, void *memory, size_t bytes)
{
    struct counter *c = arg;
    (void)bytes;
    if (memory != NULL)
        __atomic_sub_fetch(&c->live, 1, __ATOMIC_RELAXED);
    free(memory);
}

static inline void options_counted(qn_ctx_options *options, struct counter *counter)
{
    qn_ctx_options_init(options);
    options->alloc = counted_alloc;
    options->free = counted_free;
    options->alloc_arg = counter;
}

/* A context of n threads (0: all there are). It has no arena: calls that want one ask how much they
 * need, which differs from machine to machine (matmul_in_arena() and its like). */
static inline qn_ctx *ctx_make(int32_t n_threads)
{
    qn_ctx_options options;
    qn_ctx *ctx = NULL;
    qn_ctx_options_init(&options);
    options.n_threads = n_threads;
    assert_ok(qn_ctx_create(&options, &ctx, NULL));
    return ctx;
}

/* Calls in the context's arena, which is grown to what the call asks for. */
static inline qn_status matmul_in_arena(qn_ctx *ctx, const qn_matmul_args *args)
{
    size_t bytes = 0;
    const qn_status status = qn_matmul_scratch(ctx, args, &bytes);
    if (status != QN_OK)
        return status;
    assert_ok(qn_ctx_reserve(ctx, bytes));
    return qn_matmul(ctx, args, NULL, 0);
}
static inline qn_status grouped_in_arena(qn_ctx *ctx, const qn_grouped_args *args)
{
    size_t bytes = 0;
    const qn_status status = qn_grouped_scratch(ctx, args, &bytes);
    if (status != QN_OK)
        return status;
    assert_ok(qn_ctx_reserve(ctx, bytes));
    return qn_grouped(ctx, args, NULL, 0);
}
static inline qn_status conv2d_in_arena(qn_ctx *ctx, const qn_conv_args *args)
{
    size_t bytes = 0;
    const qn_status status = qn_conv2d_scratch(ctx, args, &bytes);
    if (status != QN_OK)
        return status;
    assert_ok(qn_ctx_reserve(ctx, bytes));
    return qn_conv2d(ctx, args, NULL, 0);
}
static inline qn_status conv_transpose2d_in_arena(qn_ctx *ctx, const qn_conv_args *args)
{
    size_t bytes = 0;
    const qn_status status = qn_conv_transpose2d_scratch(ctx, args, &bytes);
    if (status != QN_OK)
        return status;
    assert_ok(qn_ctx_reserve(ctx, bytes));
    return qn_conv_transpose2d(ctx, args, NULL, 0);
}
static inline qn_status run_in_arena(qn_ctx *ctx, const qn_plan *plan, const qn_matmul_args *args)
{
    assert_ok(qn_ctx_reserve(ctx, qn_plan_scratch_bytes(plan)));
    return qn_matmul_run(plan, args, NULL, 0);
}

static inline void *take(size_t bytes)
{
    void *memory = aligned_alloc(64, (bytes + 64) / 64 * 64);
    assert_non_null(memory);
    memset(memory, 0xa5, (bytes + 64) / 64 * 64);
    return memory;
}

/* ----------------------------------------------------------------------------------------- data */

static inline uint32_t draw(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}
/* In [-1, 1). */
static inline float draw_real(uint64_t *seed)
{
    return (float)((int32_t)(draw(seed) & 0xffffu) - 32768) * 0x1p-15f;
}

static inline void fill_reals(float *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = draw_real(&seed);
}

/* What a weight is made of. */
struct shape {
    int64_t n, k;
    int32_t kh, kw, groups;
};

/* A weight of any format with codes, scales and shifts from a seed. */
static inline qn_weight *weight_make(const qn_ctx *ctx, const char *spec, struct shape s,
                                     uint64_t seed)
{
    qn_weight_parts p;
    qn_weight_parts_init(&p);
    assert_ok(qn_format_parse(spec, &p.format, NULL));
    p.n = s.n;
    p.k = s.k;
    p.kh = s.kh > 0 ? s.kh : 1;
    p.kw = s.kw > 0 ? s.kw : 1;
    p.conv_groups = s.groups > 0 ? s.groups : 1;
    const size_t codes = (size_t)(s.n * s.k);
    const size_t groups = (size_t)(s.n * qn_format_groups(&p.format, s.k, s.k / (p.kh * p.kw)));
    uint8_t *code = take(4 * codes);
    float *scale = take(groups * sizeof *scale), *offset = take(groups * sizeof *offset);
    int32_t *zero = take(groups * sizeof *zero);
    const bool is_float = p.format.code == QN_CODE_FLOAT;
    const size_t each = is_float ? (size_t)p.format.bits / 8 : 1;
    for (size_t i = 0; i < codes && is_float; i++) { /* halves and quarters: exact in each type */
        static const uint16_t f16[4] = {0x3800, 0xb400, 0x3c00, 0};
        static const uint16_t bf16[4] = {0x3f00, 0xbe80, 0x3f80, 0};
        const uint32_t which = draw(&seed) % 4u, word = (uint32_t)bf16[which] << 16;
        if (each == 4)
            memcpy(code + 4 * i, &word, 4);
        else
            memcpy(code + 2 * i, p.format.scale_dtype == QN_F16 ? f16 + which : bf16 + which, 2);
    }
    for (size_t i = 0; i < codes && !is_float; i++) {
        code[i] = (uint8_t)(draw(&seed) & ((1u << p.format.bits) - 1u));
        if (p.format.code == QN_CODE_E4M3 && (code[i] & 0x7fu) == 0x7fu)
            code[i] ^= 1u; /* not NaN */
    }
    const bool per_tensor = p.format.group == QN_GROUP_PER_TENSOR;
    for (size_t i = 0; i < groups; i++) {
        scale[i] = per_tensor && i > 0 ? scale[0] : 0.01f + 0.01f * (draw_real(&seed) + 1.0f);
        zero[i] = (int32_t)(draw(&seed) % 7u) - 3;
        offset[i] = 0.01f * draw_real(&seed);
    }
    p.codes = code;
    p.scale = is_float ? NULL : scale;
    p.zero = p.format.shift == QN_SHIFT_ZERO ? zero : NULL;
    p.offset = p.format.shift >= QN_SHIFT_OFFSET ? offset : NULL;
    qn_weight *weight = NULL;
    qn_error err = {0};
    if (qn_weight_create(ctx, &p, &weight, &err) != QN_OK)
        fail_msg("%s: %s", spec, err.text);
    free(code);
    free(scale);
    free(zero);
    free(offset);
    return weight;
}

/* Packed, and the values as [n, k] floats (to be freed); dense may be NULL. */
static inline qn_packed *packed_make(const qn_ctx *ctx, const char *spec, struct shape s,
                                     uint64_t seed, float **dense)
{
    qn_weight *weight = weight_make(ctx, spec, s, seed);
    qn_packed *packed = NULL;
    qn_error err = {0};
    if (qn_pack(ctx, weight, NULL, &packed, &err) != QN_OK)
        fail_msg("%s: %s", spec, err.text);
    if (dense != NULL) {
        *dense = take((size_t)(s.n * s.k) * sizeof **dense);
        const qn_tensor out = qn_tensor_2d(*dense, QN_F32, s.n, s.k);
        assert_ok(qn_weight_dequantize(ctx, weight, false, &out));
    }
    qn_weight_destroy(weight);
    return packed;
}

/* Row of x times row of w, in double. */
static inline double dot(const float *x, const float *w, int64_t k)
{
    double sum = 0.0;
    for (int64_t p = 0; p < k; p++)
        sum += (double)x[p] * (double)w[p];
    return sum;
}

/* The error that quantizing x to int8 may make on top of rounding: half a step of x for every
 * weight. */
static inline double slack(qn_strategy strategy, const float *x, const float *w, int64_t k)
{
    double amax = 0.0, sum = 0.0, product = 0.0;
    for (int64_t p = 0; p < k; p++) {
        amax = fmax(amax, fabs((double)x[p]));
        sum += fabs((double)w[p]);
        product += fabs((double)x[p] * (double)w[p]);
    }
    const bool is_float = strategy == QN_STRATEGY_FLOAT || strategy == QN_STRATEGY_DENSE;
    return (is_float ? 0.0 : 0.51 * (amax / 127.0) * sum) + 0x1p-7 * product + 1e-4;
}

/* y[m, n] = x . w^T, all contiguous floats. */
static inline void assert_product(qn_strategy strategy, const float *y, const float *x,
                                  const float *w, const int64_t mnk[3])
{
    for (int64_t i = 0; i < mnk[0]; i++) {
        for (int64_t j = 0; j < mnk[1]; j++) {
            const float *row = x + i * mnk[2], *column = w + j * mnk[2];
            const double exact = dot(row, column, mnk[2]), got = (double)y[i * mnk[1] + j];
            if (!(fabs(got - exact) <= slack(strategy, row, column, mnk[2])))
                fail_msg("%s: y[%d, %d] is %g, not %g", qn_strategy_name(strategy), (int)i, (int)j,
                         got, exact);
        }
    }
}

#endif
