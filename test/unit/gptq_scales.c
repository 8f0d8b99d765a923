/* SPDX-License-Identifier: Apache-2.0 */
/* Where GPTQ takes its scales from: the weights before any feedback, as round to nearest and the
 * search do. That is worth most at few bits, against both ways of the textbook. */
#include <math.h>

#include "quantizing.h"
#include "textbook_gptq.h"

enum { N = 16, K = 192, SAMPLES = 512 };

static void assert_same_scales(const qn_weight *a, const qn_weight *b, const char *spec)
{
    qn_weight_parts p, q;
    qn_weight_parts_init(&p);
    qn_weight_parts_init(&q);
    qn_weight_view(a, &p);
    qn_weight_view(b, &q);
    const size_t groups = (size_t)(p.n * p.n_groups);
    if (p.n_groups != q.n_groups || memcmp(p.scale, q.scale, groups * sizeof *p.scale) != 0)
        fail_msg("%s: the scales are others", spec);
    if (p.zero != NULL)
        assert_memory_equal(p.zero, q.zero, groups * sizeof *p.zero);
    if (p.offset != NULL)
        assert_memory_equal(p.offset, q.offset, groups * sizeof *p.offset);
}

/* Activations with a spectrum that decays, neighbours that depend on each other, and a few channels
 * far out. */
static void draw_samples(float *samples, double decay, uint64_t *seed)
{
    for (int64_t s = 0; s < SAMPLES; s++) {
        float drift = 0.0f, common = unit_normal(seed);
        for (int64_t c = 0; c < K; c++) {
            drift = 0.9f * drift + 0.4f * unit_normal(seed);
            samples[s * K + c] = (drift + common) * (float)pow(1.0 + (double)(c % 64), -decay / 2) *
                                 (c % 96 == 17 ? 10.0f : 1.0f);
        }
    }
}

static void make_hessian(const float *samples, double *h)
{
    memset(h, 0, K * K * sizeof *h);
    for (int64_t s = 0; s < SAMPLES; s++)
        for (int64_t i = 0; i < K; i++)
            for (int64_t j = 0; j < K; j++)
                h[i * K + j] += (double)samples[s * K + i] * (double)samples[s * K + j];
    double mean = 0.0;
    for (int64_t i = 0; i < K; i++)
        mean += h[i * K + i] / K;
    for (int64_t i = 0; i < K; i++)
        h[i * K + i] += 0.01 * mean;
}

static void scales_are_those_of_the_weights(void **state)
{
    (void)state;
    static const char *const specs[] = {"int4:g32",    "int4:g32:zp", "int3:g48:off", "int2:g64",
                                        "int4:pc",     "nf4:g32",     "fp8:pc",       "q4_k",
                                        "q6_k",        "mxfp4",       "nvfp4",        "int4:pt",
                                        "int3:g40:zp", "int8:pt:off"};
    static float x[N * K], samples[SAMPLES * K], importance[K], prescale[K], columns[N * K];
    struct unit_ctx u;
    uint64_t seed = 31;
    unit_ctx_start(&u, 2);
    draw_samples(samples, 1.0, &seed);
    const qn_tensor t = qn_tensor_2d(samples, QN_F32, SAMPLES, K);
    for (int i = 0; i < K; i++) {
        importance[i] = i % 5 == 0 ? 50.0f : 0.5f;
        prescale[i] = ldexpf(1.0f, i % 3 - 1);
    }
    for (size_t s = 0; s < sizeof specs / sizeof *specs; s++)
        for (int variant = 0; variant < 8; variant++) {
            for (int i = 0; i < N * K; i++)
                x[i] = unit_normal(&seed);
            const bool searches = variant & 1, orders = variant & 4;
            qn_quantize_options o = options_with(specs[s], QN_METHOD_GPTQ);
            o.samples = &t;
            o.search_scales = searches;
            o.importance = importance; /* without a search nobody looks at it */
            o.prescale = variant & 2 ? prescale : NULL;
            o.act_order = orders;
            qn_weight *ours = quantize(&u, &o, x, N, K);
            /* The other methods see the columns in the order that GPTQ gave them. */
            qn_weight_parts p;
            qn_weight_parts_init(&p);
            qn_weight_view(ours, &p);
            float weights[K], scales[K];
            for (int i = 0; i < K; i++) {
                const int32_t from = orders ? p.perm[i] : i;
                weights[i] = importance[from];
                scales[i] = prescale[from];
                for (int row = 0; row < N; row++)
                    columns[row * K + i] = x[row * K + from];
            }
            qn_quantize_options plain =
                options_with(specs[s], searches ? QN_METHOD_SEARCH : QN_METHOD_RTN);
            plain.importance = searches ? weights : NULL;
            plain.prescale = variant & 2 ? scales : NULL;
            qn_weight *theirs = quantize(&u, &plain, columns, N, K);
            assert_same_scales(ours, theirs, specs[s]);
            qn_weight_destroy(ours);
            qn_weight_destroy(theirs);
        }
    unit_ctx_stop(&u);
}

static double error_of(const double *change, const double *h)
{
    double sum = 0.0;
    for (int64_t i = 0; i < K; i++)
        for (int64_t j = 0; j < K; j++)
            sum += change[i] * h[i * K + j] * change[j];
    return sum;
}

/* The error that Hessian and weights are worth, of the textbook: of both its ways the better. */
static double textbook_error(const float *x, const double *h, const double *factor, int64_t group,
                             int32_t bits)
{
    double total[2] = {0.0, 0.0}, change[K];
    for (int way = 0; way < 2; way++) {
        const struct textbook t = {K, group, bits, way == 1};
        for (int64_t row = 0; row < N; row++) {
            textbook_gptq(&t, x + row * K, factor, change);
            for (int64_t i = 0; i < K; i++)
                change[i] -= (double)x[row * K + i];
            total[way] += error_of(change, h);
        }
    }
    return fmin(total[0], total[1]);
}

static double our_error(struct unit_ctx *u, const qn_quantize_options *o, const float *x,
                        const double *h)
{
    static float values[N * K];
    double total = 0.0, change[K];
    qn_weight *w = quantize(u, o, x, N, K);
    const qn_tensor t = qn_tensor_2d(values, QN_F32, N, K);
    assert_int_equal(qn_weight_dequantize(&u->ctx, w, true, &t), QN_OK);
    for (int64_t row = 0; row < N; row++) {
        for (int64_t i = 0; i < K; i++)
            change[i] = (double)values[row * K + i] - (double)x[row * K + i];
        total += error_of(change, h);
    }
    qn_weight_destroy(w);
    return total;
}

/* Errors are squares: 2 % of an output are 4 % here. */
static void no_worse_than_either_way(void **state)
{
    (void)state;
    static const struct {
        const char *spec;
        int64_t group;
        int32_t bits;
        double decay, search; /* of the better textbook's error, at most */
    } cases[] = {{"int4:g96", 96, 4, 1.5, 0.9}, {"int3:g96", 96, 3, 1.5, 0.8},
                 {"int2:g48", 48, 2, 1.5, 0.5}, {"int3:g32", 32, 3, 1.0, 0.8},
                 {"int2:g32", 32, 2, 0.5, 0.5}, {"int4:pc", K, 4, 1.0, 0.9}};
    static float x[N * K], samples[SAMPLES * K];
    static double h[K * K], factor[K * K];
    struct unit_ctx u;
    uint64_t seed = 32;
    unit_ctx_start(&u, 2);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        draw_samples(samples, cases[c].decay, &seed);
        make_hessian(samples, h);
        textbook_factor(h, K, factor);
        for (int i = 0; i < N * K; i++)
            x[i] = unit_normal(&seed);
        const qn_tensor t = qn_tensor_2d(h, QN_F64, K, K);
        const double best = textbook_error(x, h, factor, cases[c].group, cases[c].bits);
        qn_quantize_options o = options_with(cases[c].spec, QN_METHOD_GPTQ);
        o.hessian = &t;
        o.damping = 0.0; /* it is in h */
        o.search_scales = 0;
        const double by_range = our_error(&u, &o, x, h) / best;
        o.search_scales = 1;
        const double searched = our_error(&u, &o, x, h) / best;
        if (!(by_range <= 1.04) || !(searched <= cases[c].search))
            fail_msg("%s: %g of the textbook's error, %g with a search", cases[c].spec, by_range,
                     searched);
    }
    unit_ctx_stop(&u);
}

/* A Hessian without damping whose feedback exceeds f32: refused, and nothing of it is a code. */
static void feedback_beyond_f32_is_refused(void **state)
{
    (void)state;
    enum { W = 4 };
    static const float x[W] = {3e25f, -2.2e25f, 1e25f, 1.7e25f};
    double h[W * W] = {0.0};
    struct unit_ctx u;
    qn_weight *w = NULL;
    qn_error err = {0};
    unit_ctx_start(&u, 1);
    for (int i = 0; i < W; i++)
        h[i * W + i] = i < 2 ? 1e30 : 1e-30;
    h[0 * W + 2] = h[2 * W + 0] = 0.5;
    h[1 * W + 2] = h[2 * W + 1] = 0.5;
    const qn_tensor t = qn_tensor_2d(h, QN_F64, W, W);
    const qn_tensor dense = qn_tensor_2d((void *)(uintptr_t)x, QN_F32, 1, W);
    qn_quantize_options o = options_with("int2:pc", QN_METHOD_GPTQ);
    o.hessian = &t;
    o.damping = 0.0;
    assert_int_equal(qn_quantize(&u.ctx, &dense, &o, &w, &err), QN_E_VALUE);
    assert_non_null(strstr(err.text, "damping"));
    assert_null(w);
    unit_ctx_stop(&u);
}

static void switches_are_checked(void **state)
{
    (void)state;
    static float x[K];
    struct unit_ctx u;
    qn_weight *w = NULL;
    qn_error err = {0};
    unit_ctx_start(&u, 1);
    const qn_tensor dense = qn_tensor_2d(x, QN_F32, 1, K);
    qn_quantize_options o = options_with("int4:g32", QN_METHOD_RTN);
    o.search_scales = 2;
    assert_int_equal(qn_quantize(&u.ctx, &dense, &o, &w, &err), QN_E_ARGUMENT);
    assert_non_null(strstr(err.text, "search_scales is 2"));
    o.search_scales = 1;
    o.reserved = 1;
    assert_int_equal(qn_quantize(&u.ctx, &dense, &o, &w, &err), QN_E_ARGUMENT);
    assert_non_null(strstr(err.text, "reserved"));
    assert_null(w);
    unit_ctx_stop(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_are_those_of_the_weights),
        cmocka_unit_test(no_worse_than_either_way),
        cmocka_unit_test(feedback_beyond_f32_is_refused),
        cmocka_unit_test(switches_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
