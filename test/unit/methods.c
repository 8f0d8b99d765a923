/* SPDX-License-Identifier: Apache-2.0 */
/* Search, GPTQ, SmoothQuant, AWQ: each against a plain computation of what it promises to improve,
 * in double, from the weights it returns. */
#include <math.h>

#include "base/half.h"
#include "quantizing.h"
#include "textbook_gptq.h"

enum { N = 24, K = 96, SAMPLES = 200 };

/* The dequantized difference to x, in original columns, prescale applied; the weight is freed. */
static void change_of(struct unit_ctx *u, const qn_quantize_options *o, const float *x, int64_t n,
                      int64_t k, float *change)
{
    qn_weight *w = quantize(u, o, x, n, k);
    const qn_tensor t = qn_tensor_2d(change, QN_F32, n, k);
    assert_int_equal(qn_weight_dequantize(&u->ctx, w, true, &t), QN_OK);
    for (int64_t i = 0; i < n * k; i++)
        change[i] -= x[i];
    qn_weight_destroy(w);
}

static void fill_normal(float *x, int64_t n, uint64_t *seed)
{
    for (int64_t i = 0; i < n; i++)
        x[i] = unit_normal(seed);
}

static void assert_same(const qn_weight *a, const qn_weight *b)
{
    qn_weight_parts p, q;
    qn_weight_parts_init(&p);
    qn_weight_parts_init(&q);
    qn_weight_view(a, &p);
    qn_weight_view(b, &q);
    const size_t groups = (size_t)(p.n * p.n_groups);
    assert_memory_equal(p.codes, q.codes, (size_t)(p.n * p.k));
    assert_memory_equal(p.scale, q.scale, groups * sizeof *p.scale);
    if (p.zero != NULL)
        assert_memory_equal(p.zero, q.zero, groups * sizeof *p.zero);
    if (p.offset != NULL)
        assert_memory_equal(p.offset, q.offset, groups * sizeof *p.offset);
    assert_true((p.perm == NULL) == (q.perm == NULL));
    if (p.perm != NULL)
        assert_memory_equal(p.perm, q.perm, (size_t)p.k * sizeof *p.perm);
}

/* ---- search ---- */

static double weighted(const float *change, const float *importance, int64_t n, int64_t k)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n * k; i++)
        sum += (importance != NULL ? (double)importance[i % k] : 1.0) * (double)change[i] *
               (double)change[i];
    return sum;
}

static const char *const searched[] = {
    "int4:g32",
    "int4:g32:zp",
    "int4:g32:off",
    "int2:g16",
    "int3:g24:off",
    "int8:pc",
    "int4:pt",
    "nf4:g48",
    "fp8:pc",
    "e2m1:g32",
    "int4:c8",
    "int4:g32:f16",
    "q4_0",
    "q4_1",
    "q5_0",
    "q8_0",
    "q4_k",
    "q6_k",
    "iq4_nl",
    "mxfp4",
    "nvfp4",
    "int4:pt:off",
    "int4:g32:e8m0:zp",
};

static void search_is_never_worse(void **state)
{
    (void)state;
    static float x[N * K], importance[K], before[N * K], after[N * K];
    struct unit_ctx u;
    uint64_t seed = 1;
    unit_ctx_start(&u, 2);
    for (int round = 0; round < 6; round++)
        for (size_t s = 0; s < sizeof searched / sizeof searched[0]; s++) {
            const qn_range range = round % 3;
            fill_normal(x, N * K, &seed);
            for (int i = 0; i < N * K && round >= 3; i += 37)
                x[i] *= 8.0f; /* outliers */
            for (int i = 0; i < K; i++)
                importance[i] = round % 2 ? powf(10.0f, unit_normal(&seed)) : 1.0f;
            qn_quantize_options o = options_with(searched[s], QN_METHOD_RTN);
            o.range = range;
            o.kw = strstr(searched[s], ":c") != NULL ? 3 : 1;
            change_of(&u, &o, x, N, K, before);
            o.method = QN_METHOD_SEARCH;
            o.importance = round % 2 ? importance : NULL;
            change_of(&u, &o, x, N, K, after);
            const double was = weighted(before, o.importance, N, K);
            const double is = weighted(after, o.importance, N, K);
            /* by group in truth; the whole differs by what f32 loses in the difference above */
            if (is > was * (1.0 + 1e-6))
                fail_msg("%s, round %d: %g became %g", searched[s], round, was, is);
        }
    unit_ctx_stop(&u);
}

/* How much there is to gain: 2 bits and normal weights gain most, importance shifts the rest. */
static void search_helps(void **state)
{
    (void)state;
    static float x[N * K], importance[K], before[N * K], after[N * K], blind[N * K];
    struct unit_ctx u;
    uint64_t seed = 2;
    unit_ctx_start(&u, 1);
    fill_normal(x, N * K, &seed);
    static const struct {
        const char *spec;
        double at_most; /* of the error of round-to-nearest */
    } cases[] = {{"int2:g32", 0.5},      {"int3:g32", 0.9},     {"int4:g32", 0.97},
                 {"int4:g32:off", 0.99}, {"int4:g32:zp", 0.99}, {"q4_0", 0.98},
                 {"q4_k", 0.99},         {"q6_k", 0.99},        {"nf4:g32", 0.99},
                 {"mxfp4", 0.95}};
    for (size_t s = 0; s < sizeof cases / sizeof cases[0]; s++) {
        qn_quantize_options o = options_with(cases[s].spec, QN_METHOD_RTN);
        change_of(&u, &o, x, N, K, before);
        o.method = QN_METHOD_SEARCH;
        change_of(&u, &o, x, N, K, after);
        const double ratio = weighted(after, NULL, N, K) / weighted(before, NULL, N, K);
        if (!(ratio <= cases[s].at_most)) /* a NaN fails, too */
            fail_msg("%s: the error is still %g of what it was", cases[s].spec, ratio);
    }
    for (int i = 0; i < K; i++)
        importance[i] = i % 8 == 0 ? 100.0f : 0.1f;
    qn_quantize_options o = options_with("int3:g32", QN_METHOD_SEARCH);
    change_of(&u, &o, x, N, K, blind);
    o.importance = importance;
    change_of(&u, &o, x, N, K, after);
    assert_true(weighted(after, importance, N, K) < 0.6 * weighted(blind, importance, N, K));
    assert_true(weighted(after, NULL, N, K) > weighted(blind, NULL, N, K));
    unit_ctx_stop(&u);
}

/* An error in W / p counts p^2 times as much in W. */
static void importance_goes_through_the_prescale(void **state)
{
    (void)state;
    static float x[N * K], divided[N * K], importance[K], scaled[K], prescale[K];
    struct unit_ctx u;
    uint64_t seed = 12;
    unit_ctx_start(&u, 1);
    for (int i = 0; i < K; i++) {
        prescale[i] = ldexpf(1.0f, i % 5 - 2);
        importance[i] = fabsf(unit_normal(&seed));
        scaled[i] = importance[i] * prescale[i] * prescale[i];
    }
    fill_normal(x, N * K, &seed);
    for (int i = 0; i < N * K; i++)
        divided[i] = x[i] / prescale[i % K];
    qn_quantize_options o = options_with("int3:g32", QN_METHOD_SEARCH);
    o.importance = scaled;
    qn_weight *a = quantize(&u, &o, divided, N, K);
    o.importance = importance;
    o.prescale = prescale;
    qn_weight *b = quantize(&u, &o, x, N, K);
    assert_same(a, b);
    qn_weight_destroy(a);
    qn_weight_destroy(b);
    unit_ctx_stop(&u);
}

/* ---- GPTQ ---- */

/* Inputs whose columns depend on each other, as those of a layer do. */
static void correlated(float *samples, int64_t n, int64_t k, uint64_t *seed)
{
    for (int64_t s = 0; s < n; s++) {
        float common = unit_normal(seed), drift = 0.0f;
        for (int64_t c = 0; c < k; c++) {
            drift = 0.9f * drift + unit_normal(seed);
            samples[s * k + c] = (drift + 2.0f * common) * (c % 7 == 0 ? 3.0f : 0.5f);
        }
    }
}

static void hessian_of(const float *samples, int64_t n, int64_t k, double *h)
{
    memset(h, 0, (size_t)(k * k) * sizeof *h);
    for (int64_t s = 0; s < n; s++)
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < k; j++)
                h[i * k + j] += (double)samples[s * k + i] * (double)samples[s * k + j];
}

static double hessian_error(const float *change, const double *h, int64_t n, int64_t k)
{
    double sum = 0.0;
    for (int64_t row = 0; row < n; row++)
        for (int64_t i = 0; i < k; i++)
            for (int64_t j = 0; j < k; j++)
                sum += (double)change[row * k + i] * h[i * k + j] * (double)change[row * k + j];
    return sum;
}

static void gptq_is_better_on_correlated_inputs(void **state)
{
    (void)state;
    static float x[N * K], samples[SAMPLES * K], before[N * K], after[N * K], prescale[K];
    static double h[K * K];
    static const char *const specs[] = {"int4:g32", "int4:g32:zp", "int3:g16:off", "int4:pc",
                                        "nf4:g32",  "q4_k",        "int8:pt",      "mxfp4",
                                        "int4:g20", "nvfp4",       "int3:pc:zp"};
    struct unit_ctx u;
    uint64_t seed = 3;
    unit_ctx_start(&u, 2);
    correlated(samples, SAMPLES, K, &seed);
    hessian_of(samples, SAMPLES, K, h);
    const qn_tensor t = qn_tensor_2d(samples, QN_F32, SAMPLES, K);
    const qn_tensor ht = qn_tensor_2d(h, QN_F64, K, K);
    for (int i = 0; i < K; i++)
        prescale[i] = 0.5f + (float)(i % 5);
    for (size_t s = 0; s < sizeof specs / sizeof specs[0]; s++)
        for (int variant = 0; variant < 8; variant++) {
            qn_quantize_options o = options_with(specs[s], QN_METHOD_RTN);
            fill_normal(x, N * K, &seed);
            o.prescale = variant & 4 ? prescale : NULL;
            change_of(&u, &o, x, N, K, before);
            o.method = QN_METHOD_GPTQ;
            o.act_order = variant & 1;
            o.samples = variant & 2 ? &t : NULL;
            o.hessian = variant & 2 ? NULL : &ht;
            change_of(&u, &o, x, N, K, after);
            const double ratio = hessian_error(after, h, N, K) / hessian_error(before, h, N, K);
            if (!(ratio < 0.8))
                fail_msg("%s, variant %d: the error is %g of round-to-nearest's", specs[s], variant,
                         ratio);
        }
    unit_ctx_stop(&u);
}

/* A Hessian, and the samples that it is the sum of, differ by roundings of double alone. */
static void samples_and_hessian_are_the_same(void **state)
{
    (void)state;
    static float x[N * K], samples[SAMPLES * K], prescale[K];
    static double h[K * K];
    struct unit_ctx u;
    uint64_t seed = 13;
    unit_ctx_start(&u, 2);
    correlated(samples, SAMPLES, K, &seed);
    hessian_of(samples, SAMPLES, K, h);
    fill_normal(x, N * K, &seed);
    for (int i = 0; i < K; i++)
        prescale[i] = 0.5f + (float)(i % 5);
    const qn_tensor st = qn_tensor_2d(samples, QN_F32, SAMPLES, K);
    const qn_tensor ht = qn_tensor_2d(h, QN_F64, K, K);
    for (int variant = 0; variant < 4; variant++) {
        qn_quantize_options o = options_with("int4:g24:zp", QN_METHOD_GPTQ);
        qn_weight_parts p, q;
        int64_t different = 0;
        qn_weight_parts_init(&p);
        qn_weight_parts_init(&q);
        o.prescale = variant & 1 ? prescale : NULL;
        o.act_order = variant / 2;
        o.samples = &st;
        qn_weight *a = quantize(&u, &o, x, N, K);
        o.samples = NULL;
        o.hessian = &ht;
        qn_weight *b = quantize(&u, &o, x, N, K);
        qn_weight_view(a, &p);
        qn_weight_view(b, &q);
        for (int i = 0; i < N * K; i++)
            different += p.codes[i] != q.codes[i];
        assert_true(different < N * K / 50);
        qn_weight_destroy(a);
        qn_weight_destroy(b);
    }
    unit_ctx_stop(&u);
}

static void gptq_is_the_textbooks(void **state)
{
    (void)state;
    static float x[N * K], samples[SAMPLES * K];
    static double h[K * K], factor[K * K];
    const struct textbook textbook = {K, K, 4, true};
    struct unit_ctx u;
    uint64_t seed = 4;
    int64_t different = 0;
    unit_ctx_start(&u, 1);
    correlated(samples, SAMPLES, K, &seed);
    hessian_of(samples, SAMPLES, K, h);
    const qn_tensor t = qn_tensor_2d(h, QN_F64, K, K);
    fill_normal(x, N * K, &seed);
    qn_quantize_options o = options_with("int4:pc", QN_METHOD_GPTQ);
    o.hessian = &t;
    o.damping = 0.0;
    o.search_scales = 0;
    qn_weight *w = quantize(&u, &o, x, N, K);
    qn_weight_parts p;
    qn_weight_parts_init(&p);
    qn_weight_view(w, &p);
    textbook_factor(h, K, factor);
    for (int64_t row = 0; row < N; row++) {
        double values[K];
        textbook_gptq(&textbook, x + row * K, factor, values);
        for (int64_t i = 0; i < K; i++)
            different += rint(values[i] / (double)p.scale[row]) != p.codes[row * K + i] - 8.0;
    }
    /* f32 against double may tip a weight that lies between two codes, and those after it */
    assert_true(different < N * K / 50);
    qn_weight_destroy(w);
    unit_ctx_stop(&u);
}

static void gptq_of_a_diagonal_is_rtn(void **state)
{
    (void)state;
    static float x[N * K];
    static float h[K * K];
    static const char *const specs[] = {"int4:g32", "int4:pc:zp", "int4:c8:off",
                                        "q6_k",     "int8:pt",    "nvfp4"};
    struct unit_ctx u;
    uint64_t seed = 5;
    unit_ctx_start(&u, 1);
    for (int i = 0; i < K; i++)
        h[i * K + i] = i == 3 ? 0.0f : (float)(i + 1); /* one input is never used */
    const qn_tensor t = qn_tensor_2d(h, QN_F32, K, K);
    fill_normal(x, N * K, &seed);
    for (int s = 0; s < 6; s++)
        for (int damped = 0; damped < 2; damped++) {
            qn_quantize_options o = options_with(specs[s], QN_METHOD_RTN);
            o.kw = strstr(specs[s], ":c") != NULL ? 2 : 1;
            qn_weight *a = quantize(&u, &o, x, N, K);
            o.method = QN_METHOD_GPTQ;
            o.search_scales = 0;
            o.hessian = &t;
            o.damping = damped ? 0.01 : 0.0;
            qn_weight *b = quantize(&u, &o, x, N, K);
            assert_same(a, b);
            qn_weight_destroy(a);
            qn_weight_destroy(b);
        }
    unit_ctx_stop(&u);
}

static void act_order_sorts_by_importance(void **state)
{
    (void)state;
    static float x[N * K], samples[SAMPLES * K];
    struct unit_ctx u;
    uint64_t seed = 6;
    unit_ctx_start(&u, 2);
    correlated(samples, SAMPLES, K, &seed);
    fill_normal(x, N * K, &seed);
    const qn_tensor t = qn_tensor_2d(samples, QN_F32, SAMPLES, K);
    qn_quantize_options o = options_with("int4:g32", QN_METHOD_GPTQ);
    o.samples = &t;
    o.act_order = 1;
    qn_weight *w = quantize(&u, &o, x, N, K);
    qn_weight_parts p;
    qn_weight_parts_init(&p);
    qn_weight_view(w, &p);
    bool seen[K] = {false};
    double last = INFINITY;
    for (int i = 0; i < K; i++) {
        double sum = 0.0;
        for (int s = 0; s < SAMPLES; s++)
            sum += (double)samples[s * K + p.perm[i]] * (double)samples[s * K + p.perm[i]];
        assert_true(sum <= last);
        last = sum;
        assert_false(seen[p.perm[i]]);
        seen[p.perm[i]] = true;
    }
    qn_weight_destroy(w);

    o.kw = 3;
    qn_error err;
    const qn_tensor dense = qn_tensor_2d(x, QN_F32, N, K);
    assert_int_equal(qn_quantize(&u.ctx, &dense, &o, &w, &err), QN_E_ARGUMENT);
    assert_non_null(strstr(err.text, "convolutions"));
    unit_ctx_stop(&u);
}

/* Larger than every block of the factorization and of the lazy update. */
static void threads_cannot_be_seen(void **state)
{
    (void)state;
    enum { ROWS = 70, WIDE = 700, MANY = 130 };
    float *x = malloc(sizeof *x * ROWS * WIDE), *samples = malloc(sizeof *x * MANY * WIDE);
    uint64_t seed = 7;
    fill_normal(x, ROWS * WIDE, &seed);
    correlated(samples, MANY, WIDE, &seed);
    const qn_tensor t = qn_tensor_2d(samples, QN_F32, MANY, WIDE);
    static const char *const specs[] = {"int4:g128", "int4:pc:zp", "q4_k", "int4:g96:off"};
    for (int s = 0; s < 4; s++) {
        struct unit_ctx one, many;
        qn_quantize_options o = options_with(specs[s], QN_METHOD_GPTQ);
        o.samples = &t;
        o.act_order = s % 2;
        unit_ctx_start(&one, 1);
        unit_ctx_start(&many, 5);
        qn_weight *a = quantize(&one, &o, x, ROWS, WIDE);
        qn_weight *b = quantize(&many, &o, x, ROWS, WIDE);
        assert_same(a, b);
        qn_weight_destroy(a);
        qn_weight_destroy(b);
        unit_ctx_stop(&one);
        unit_ctx_stop(&many);
    }
    free(x);
    free(samples);
}

static void bad_hessians_are_refused(void **state)
{
    (void)state;
    static float x[N * K], h[K * K], samples[SAMPLES * K];
    struct unit_ctx u;
    qn_weight *w;
    unit_ctx_start(&u, 1);
    const qn_tensor dense = qn_tensor_2d(x, QN_F32, N, K);
    for (int change = 0; change < 12; change++) {
        qn_tensor t = qn_tensor_2d(h, QN_F32, K, K), s = qn_tensor_2d(samples, QN_F32, 4, K);
        qn_quantize_options o = options_with("int4:g32", QN_METHOD_GPTQ);
        qn_error err = {QN_OK, 0, ""};
        memset(h, 0, sizeof h);
        memset(samples, 0, sizeof samples);
        for (int i = 0; i < K; i++)
            h[i * K + i] = 1.0f;
        o.hessian = &t;
        qn_status expected = QN_E_VALUE;
        switch (change) {
        case 0:
            o.hessian = NULL;
            expected = QN_E_ARGUMENT;
            break;
        case 1:
            o.samples = &s;
            expected = QN_E_ARGUMENT;
            break;
        case 2:
            h[5 * K + 5] = -1.0f;
            break;
        case 3:
            h[5 * K + 5] = NAN;
            break;
        case 4:
            h[5 * K + 6] = INFINITY;
            break;
        case 5:
            h[5 * K + 6] = h[6 * K + 5] = 3.0f; /* indefinite */
            break;
        case 6:
            t.shape[0] = K - 1;
            expected = QN_E_SHAPE;
            break;
        case 7:
            t.dtype = QN_F16;
            expected = QN_E_DTYPE;
            break;
        case 8:
            o.damping = -0.5;
            expected = QN_E_ARGUMENT;
            break;
        case 9:
            o.damping = NAN;
            expected = QN_E_ARGUMENT;
            break;
        case 10:
            o.hessian = NULL;
            o.samples = &s;
            samples[K + 7] = NAN;
            break;
        default:
            o.hessian = NULL;
            o.samples = &s;
            s.shape[0] = 0;
            expected = QN_E_SHAPE;
            break;
        }
        const qn_status status = qn_quantize(&u.ctx, &dense, &o, &w, &err);
        if (status != expected)
            fail_msg("change %d: %s, %s", change, qn_status_name(status), err.text);
        assert_true(strlen(err.text) > 10);
        assert_null(w);
    }
    /* inputs that are never used at all: nothing to feed back */
    qn_tensor s = qn_tensor_2d(samples, QN_F32, 4, K);
    memset(samples, 0, sizeof samples);
    qn_quantize_options o = options_with("int4:g32", QN_METHOD_GPTQ);
    o.samples = &s;
    assert_int_equal(qn_quantize(&u.ctx, &dense, &o, &w, NULL), QN_OK);
    qn_weight_destroy(w);
    unit_ctx_stop(&u);
}

/* ---- scales ---- */

static void smoothquant_by_hand(void **state)
{
    (void)state;
    struct unit_ctx u;
    float w[6] = {1.0f, 0.5f, 0.0f, -0.25f, -2.0f, 0.0f}, out[3];
    const float x_amax[3] = {16.0f, 8.0f, 0.0f};
    unit_ctx_start(&u, 2);
    const qn_tensor t = qn_tensor_2d(w, QN_F32, 2, 3);
    assert_int_equal(qn_smooth_scales(&u.ctx, &t, x_amax, 0.5, out, NULL), QN_OK);
    assert_true(out[0] == 4.0f); /* amax x = 16, amax w = 1 */
    assert_true(out[1] == 2.0f); /* 8 / 2 */
    assert_true(out[2] == 1.0f); /* both are taken as 1e-5 */
    assert_int_equal(qn_smooth_scales(&u.ctx, &t, x_amax, 1.0, out, NULL), QN_OK);
    assert_true(out[0] == 16.0f && out[1] == 8.0f);
    assert_int_equal(qn_smooth_scales(&u.ctx, &t, x_amax, 1.5, out, NULL), QN_E_ARGUMENT);
    assert_int_equal(qn_smooth_scales(&u.ctx, &t, NULL, 0.5, out, NULL), QN_E_ARGUMENT);
    w[4] = NAN;
    assert_int_equal(qn_smooth_scales(&u.ctx, &t, x_amax, 0.5, out, NULL), QN_E_VALUE);
    u.memory.fail_at = u.memory.calls + 1;
    assert_int_equal(qn_smooth_scales(&u.ctx, &t, x_amax, 0.5, out, NULL), QN_E_MEMORY);
    unit_ctx_stop(&u);
}

/* The promise: quantizing W * s and dividing again changes the outputs of samples less. */
static double output_error(const float *change, const float *samples)
{
    double sum = 0.0;
    for (int row = 0; row < N; row++)
        for (int s = 0; s < SAMPLES; s++) {
            double y = 0.0;
            for (int i = 0; i < K; i++)
                y += (double)samples[s * K + i] * (double)change[row * K + i];
            sum += y * y;
        }
    return sum;
}

static void awq_protects_what_matters(void **state)
{
    (void)state;
    static float x[N * K], samples[SAMPLES * K], mean[K], scales[K], prescale[K];
    static float before[N * K], after[N * K];
    struct unit_ctx u;
    uint64_t seed = 8;
    unit_ctx_start(&u, 2);
    fill_normal(x, N * K, &seed);
    fill_normal(samples, SAMPLES * K, &seed);
    for (int s = 0; s < SAMPLES; s++)
        for (int i = 0; i < K; i += 12) /* few inputs that are large */
            samples[s * K + i] *= 20.0f;
    for (int i = 0; i < K; i++) {
        mean[i] = 0.0f;
        for (int s = 0; s < SAMPLES; s++)
            mean[i] += fabsf(samples[s * K + i]) / SAMPLES;
    }
    const qn_tensor wt = qn_tensor_2d(x, QN_F32, N, K);
    const qn_tensor xt = qn_tensor_2d(samples, QN_F32, SAMPLES, K);
    static const char *const specs[] = {"int4:g32:zp", "int3:pc", "nf4:g32", "q4_k"};
    for (int s = 0; s < 4; s++) {
        qn_quantize_options o = options_with(specs[s], QN_METHOD_RTN);
        assert_int_equal(qn_awq_scales(&u.ctx, &wt, mean, &xt, &o.format, scales, NULL), QN_OK);
        for (int i = 0; i < K; i++)
            prescale[i] = 1.0f / scales[i];
        assert_true(scales[0] > scales[1]);
        change_of(&u, &o, x, N, K, before);
        o.prescale = prescale;
        change_of(&u, &o, x, N, K, after);
        assert_true(output_error(after, samples) < 0.6 * output_error(before, samples));
    }

    const qn_quantize_options o = options_with("int4:g32", QN_METHOD_RTN);
    const qn_quantize_options whole = options_with("int4:pt", QN_METHOD_RTN);
    assert_int_equal(qn_awq_scales(&u.ctx, &wt, mean, &xt, &whole.format, scales, NULL),
                     QN_E_FORMAT);
    assert_int_equal(qn_awq_scales(&u.ctx, &wt, NULL, &xt, &o.format, scales, NULL), QN_E_ARGUMENT);
    qn_tensor few = xt;
    few.shape[0] = 0;
    assert_int_equal(qn_awq_scales(&u.ctx, &wt, mean, &few, &o.format, scales, NULL), QN_E_SHAPE);
    u.memory.fail_at = u.memory.calls + 1;
    assert_int_equal(qn_awq_scales(&u.ctx, &wt, mean, &xt, &o.format, scales, NULL), QN_E_MEMORY);
    mean[5] = NAN;
    assert_int_equal(qn_awq_scales(&u.ctx, &wt, mean, &xt, &o.format, scales, NULL), QN_E_VALUE);
    mean[5] = 0.0f; /* never used: legal */
    assert_int_equal(qn_awq_scales(&u.ctx, &wt, mean, &xt, &o.format, scales, NULL), QN_OK);
    for (int i = 0; i < K; i++)
        assert_true(isfinite(scales[i]) && scales[i] > 0.0f);
    x[9] = INFINITY;
    assert_int_equal(qn_awq_scales(&u.ctx, &wt, mean, &xt, &o.format, scales, NULL), QN_E_VALUE);
    unit_ctx_stop(&u);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(search_is_never_worse),
        cmocka_unit_test(search_helps),
        cmocka_unit_test(importance_goes_through_the_prescale),
        cmocka_unit_test(gptq_is_better_on_correlated_inputs),
        cmocka_unit_test(samples_and_hessian_are_the_same),
        cmocka_unit_test(gptq_is_the_textbooks),
        cmocka_unit_test(gptq_of_a_diagonal_is_rtn),
        cmocka_unit_test(act_order_sorts_by_importance),
        cmocka_unit_test(threads_cannot_be_seen),
        cmocka_unit_test(bad_hessians_are_refused),
        cmocka_unit_test(smoothquant_by_hand),
        cmocka_unit_test(awq_protects_what_matters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
