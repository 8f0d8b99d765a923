/* SPDX-License-Identifier: Apache-2.0 */
/* Round to nearest: the examples of docs/formats.md digit by digit; the property that every code is
 * the nearest one, over all formats and shapes; values that are no numbers; and that neither
 * threads nor memory can be seen in the result. */
#include <math.h>
#include <stdio.h>

#include "base/half.h"
#include "quantizing.h"

/* ---- help ---- */

static qn_weight_parts view(const qn_weight *w)
{
    qn_weight_parts p;
    qn_weight_parts_init(&p);
    assert_int_equal(qn_weight_view(w, &p), QN_OK);
    return p;
}

/* The group of position p, written out once more. */
static int64_t group_of(const qn_weight_parts *p, int64_t at)
{
    const int64_t ci = p->k / p->kh / p->kw;
    if (p->format.group < 0)
        return 0;
    return (p->format.blocks == QN_BLOCKS_CHANNELS ? at % ci : at) / p->format.group;
}

static double decode(const qn_weight_parts *p, int64_t row, int64_t at, int code)
{
    const int64_t g = row * p->n_groups + group_of(p, at);
    double value =
        p->table != NULL ? (double)p->table[code] : (double)(code - (1 << (p->format.bits - 1)));
    if (p->zero != NULL)
        value -= (double)p->zero[g];
    if (p->format.shift == QN_SHIFT_MIN)
        value = (double)code;
    return (double)p->scale[g] * value + (p->offset != NULL ? (double)p->offset[g] : 0.0);
}

/* One row of one or more groups, at most 256 values, the rest is 0. */
struct example {
    struct unit_ctx u;
    qn_weight *w;
    qn_weight_parts parts;
    float dense[256];
};

static struct example *run_example(const char *spec, qn_range range, int64_t k, int n, ...)
{
    struct example *e = calloc(1, sizeof *e);
    va_list list;
    va_start(list, n);
    for (int i = 0; i < n; i++)
        e->dense[i] = (float)va_arg(list, double);
    va_end(list);
    unit_ctx_start(&e->u, 1);
    qn_quantize_options o = options_of(spec);
    o.range = range;
    e->w = quantize(&e->u, &o, e->dense, 1, k);
    e->parts = view(e->w);
    return e;
}

static void end_example(struct example *e)
{
    qn_weight_destroy(e->w);
    unit_ctx_stop(&e->u);
    free(e);
}

static int signed_code(const struct example *e, int at)
{
    return e->parts.codes[at] - (1 << (e->parts.format.bits - 1));
}

/* ---- examples ---- */

static void the_three_symmetric_ranges(void **state)
{
    (void)state;
    struct example *e = run_example("int4:g4", QN_RANGE_NARROW, 4, 4, 7.0, -7.0, 2.4, -0.5);
    assert_true(e->parts.scale[0] == 1.0f);
    const int narrow[] = {7, -7, 2, 0};
    for (int i = 0; i < 4; i++)
        assert_int_equal(signed_code(e, i), narrow[i]);
    end_example(e);

    e = run_example("int4:g4", QN_RANGE_HALF, 4, 4, 7.5, -7.5, 3.5, 2.5);
    assert_true(e->parts.scale[0] == 1.0f);
    const int half[] = {7, -8, 4, 2}; /* +amax is cut off, ties go to the even code */
    for (int i = 0; i < 4; i++)
        assert_int_equal(signed_code(e, i), half[i]);
    end_example(e);

    e = run_example("int4:g4", QN_RANGE_FULL, 4, 4, 8.0, -7.0, 1.0, 0.0);
    assert_true(e->parts.scale[0] == -1.0f); /* the sign of minus the extreme */
    const int full[] = {-8, 7, -1, 0};
    for (int i = 0; i < 4; i++)
        assert_int_equal(signed_code(e, i), full[i]);
    end_example(e);

    e = run_example("int8:pc", QN_RANGE_NARROW, 3, 3, 127.0, -127.0, 1.0);
    assert_true(e->parts.scale[0] == 1.0f);
    assert_int_equal(signed_code(e, 1), -127);
    end_example(e);

    e = run_example("int2:g2", QN_RANGE_NARROW, 2, 2, 3.0, -3.0);
    assert_true(e->parts.scale[0] == 3.0f);
    assert_int_equal(signed_code(e, 0), 1);
    assert_int_equal(signed_code(e, 1), -1);
    end_example(e);
}

/* AWQ's formula: scale = (max - min) / 15, zero = -round(min / scale) of unsigned codes. */
static void zero_points_are_those_of_awq(void **state)
{
    (void)state;
    struct example *e = run_example("int4:g4:zp", QN_RANGE_NARROW, 4, 4, -1.0, 2.0, 0.0, 0.6);
    assert_true(e->parts.scale[0] == 0.2f);
    assert_int_equal(e->parts.zero[0], 5 - 8);
    assert_int_equal(e->parts.codes[0], 0);
    assert_int_equal(e->parts.codes[1], 15);
    assert_int_equal(e->parts.codes[2], 5);
    assert_int_equal(e->parts.codes[3], 8);
    end_example(e);

    /* 0 stays in the range: it must be a code, and a group without it must not be cut off */
    e = run_example("int4:g2:zp", QN_RANGE_NARROW, 2, 2, 15.0, 14.0);
    assert_true(e->parts.scale[0] == 1.0f);
    assert_int_equal(e->parts.zero[0], -8);
    assert_int_equal(e->parts.codes[0], 15);
    assert_int_equal(e->parts.codes[1], 14);
    end_example(e);
}

static void offsets_are_those_of_mnn(void **state)
{
    (void)state;
    struct example *e = run_example("int4:g4:off", QN_RANGE_NARROW, 4, 4, -1.0, 2.0, -0.6, -0.8);
    assert_true(e->parts.scale[0] == 0.2f);
    assert_true(e->parts.offset[0] == 0.6f);
    const int codes[] = {-8, 7, -6, -7};
    for (int i = 0; i < 4; i++)
        assert_int_equal(signed_code(e, i), codes[i]);
    end_example(e);

    e = run_example("int4:g3:off", QN_RANGE_NARROW, 3, 3, 0.3, 0.3, 0.3); /* a constant is exact */
    assert_true(e->parts.scale[0] == 0.0f && e->parts.offset[0] == 0.3f);
    assert_int_equal(signed_code(e, 0), 0);
    end_example(e);
}

static void assert_values(const struct example *e, int n, ...)
{
    va_list list;
    va_start(list, n);
    for (int i = 0; i < n; i++) {
        const int at = va_arg(list, int);
        const double expected = va_arg(list, double);
        const double got = decode(&e->parts, 0, at, e->parts.codes[at]);
        if (got != expected)
            fail_msg("value %d is %g, not %g", at, got, expected);
    }
    va_end(list);
}

static void the_simple_named_formats(void **state)
{
    (void)state;
    struct example *e = run_example("q4_0", QN_RANGE_NARROW, 32, 3, -4.0, -3.5, -3.0);
    assert_true(e->parts.scale[0] == 0.5f);
    assert_int_equal(e->parts.codes[1], 1);
    assert_int_equal(e->parts.codes[2], 2);
    assert_values(e, 3, 0, -4.0, 1, -3.5, 2, -3.0);
    end_example(e);

    e = run_example("q4_1", QN_RANGE_NARROW, 32, 4, -1.0, 6.5, -0.5, 0.0);
    assert_true(e->parts.scale[0] == 0.5f && e->parts.offset[0] == -1.0f);
    assert_int_equal(e->parts.codes[2], 1);
    assert_int_equal(e->parts.codes[3], 2);
    assert_values(e, 4, 0, -1.0, 1, 6.5, 2, -0.5, 3, 0.0);
    end_example(e);

    e = run_example("q5_0", QN_RANGE_NARROW, 32, 3, -8.0, 0.5, 1.0);
    assert_true(e->parts.scale[0] == 0.5f);
    assert_int_equal(e->parts.codes[0], 0);
    assert_int_equal(e->parts.codes[1], 17);
    assert_values(e, 3, 0, -8.0, 1, 0.5, 2, 1.0);
    end_example(e);

    e = run_example("q5_1", QN_RANGE_NARROW, 32, 4, -1.0, 14.5, 7.5, 8.0);
    assert_int_equal(e->parts.codes[2], 17);
    assert_values(e, 4, 0, -1.0, 1, 14.5, 2, 7.5, 3, 8.0);
    end_example(e);

    e = run_example("q8_0", QN_RANGE_NARROW, 32, 2, 31.75, -1.0);
    assert_true(e->parts.scale[0] == 0.25f);
    assert_int_equal(signed_code(e, 1), -4);
    end_example(e);

    e = run_example("iq4_nl", QN_RANGE_NARROW, 32, 2, -1.984375, 1.765625);
    assert_true(e->parts.scale[0] == 1.0f / 64);
    assert_int_equal(e->parts.codes[0], 0);
    assert_int_equal(e->parts.codes[1], 15);
    assert_values(e, 3, 0, -1.984375, 1, 1.765625, 2, 1.0 / 64); /* no code is 0 */
    end_example(e);
}

static void the_block_scaled_floats(void **state)
{
    (void)state;
    /* floor(log2 6) = 2 = floor(log2 of the largest code): scale 1. Ties go to even codes. */
    struct example *e =
        run_example("mxfp4", QN_RANGE_NARROW, 32, 8, 6.0, -0.5, 2.5, 5.0, 0.25, 0.75, -1.75, -0.2);
    assert_true(e->parts.scale[0] == 1.0f);
    const int codes[] = {7, 9, 4, 6, 0, 2, 12, 0};
    for (int i = 0; i < 8; i++)
        assert_int_equal(e->parts.codes[i], codes[i]);
    end_example(e);

    e = run_example("mxfp4", QN_RANGE_NARROW, 32, 2, 7.9, 3.0); /* saturates, keeps the scale */
    assert_true(e->parts.scale[0] == 1.0f);
    assert_values(e, 2, 0, 6.0, 1, 3.0);
    end_example(e);

    /* Three blocks of 16. The unit is 2^-6: 128 times that is the largest scale, 2. The next one
     * would be 0.3; E4M3 has 0.3 / 2^-6 = 19.2 as 20. The last is the third subnormal of E4M3. */
    struct unit_ctx u;
    float x[48] = {12.0f, 3.0f};
    x[16] = 1.8f;
    x[32] = 6.0f * 0x3p-15f;
    unit_ctx_start(&u, 1);
    const qn_quantize_options o = options_of("nvfp4");
    qn_weight *w = quantize(&u, &o, x, 1, 48);
    const qn_weight_parts p = view(w);
    assert_true(p.scale[0] == 2.0f && p.scale[1] == 20.0f / 64 && p.scale[2] == 0x3p-15f);
    assert_true(decode(&p, 0, 0, p.codes[0]) == 12.0 && decode(&p, 0, 1, p.codes[1]) == 3.0);
    qn_weight_destroy(w);
    unit_ctx_stop(&u);

    /* 11.9 / 6 in units of 2^-7 is 253.9; E4M3 has 256 */
    e = run_example("nvfp4", QN_RANGE_NARROW, 16, 1, 11.9);
    assert_true(e->parts.scale[0] == 2.0f);
    end_example(e);

    e = run_example("nf4:g64", QN_RANGE_NARROW, 64, 3, 2.0, 0.0, -2.0);
    assert_true(e->parts.scale[0] == 2.0f);
    assert_int_equal(e->parts.codes[0], 15);
    assert_int_equal(e->parts.codes[1], 7);
    assert_int_equal(e->parts.codes[2], 0);
    end_example(e);

    e = run_example("fp8:pc", QN_RANGE_NARROW, 4, 4, 448.0, 1.0, -0.875, 0.001953125);
    assert_true(e->parts.scale[0] == 1.0f);
    assert_int_equal(e->parts.codes[0], 0x7e);
    assert_int_equal(e->parts.codes[1], 0x38);
    assert_int_equal(e->parts.codes[2], 0xb6);
    assert_int_equal(e->parts.codes[3], 0x01);
    end_example(e);
}

/* d = 1/16, dmin = 1/32; block 4 has the integers 37 and 26: code 7 is 15.375. */
static void the_k_quants(void **state)
{
    (void)state;
    for (int bits = 4; bits <= 5; bits++) {
        struct unit_ctx u;
        float x[256] = {0};
        const double steps = bits == 4 ? 15 : 31, code = bits == 4 ? 7 : 23;
        x[0] = -63.0f / 32;
        x[1] = (float)(-63.0 / 32 + steps * 63.0 / 16);
        x[4 * 32] = -26.0f / 32;
        x[4 * 32 + 1] = (float)(-26.0 / 32 + steps * 37.0 / 16);
        x[4 * 32 + 2] = (float)(code * 37.0 / 16 - 26.0 / 32);
        unit_ctx_start(&u, 1);
        const qn_quantize_options o = options_of(bits == 4 ? "q4_k" : "q5_k");
        qn_weight *w = quantize(&u, &o, x, 1, 256);
        const qn_weight_parts p = view(w);
        assert_int_equal(p.n_groups, 8);
        assert_true(p.scale[0] == 63.0f / 16 && p.scale[4] == 37.0f / 16);
        assert_true(p.super_scale[0] == 1.0f / 16 && p.super_min[0] == 1.0f / 32);
        assert_true(p.sub_scale[4] == 37 && p.sub_min[4] == 26 && p.n_supers == 1);
        assert_true(p.offset[4] == -26.0f / 32);
        assert_true(p.scale[1] == 0.0f && p.offset[1] == 0.0f);
        assert_int_equal(p.codes[4 * 32 + 2], (int)code);
        assert_true(decode(&p, 0, 4 * 32 + 2, p.codes[4 * 32 + 2]) ==
                    (bits == 4 ? 15.375 : 52.375));
        qn_weight_destroy(w);
        unit_ctx_stop(&u);
    }

    /* d = 0.5; the block with the largest scale takes -128 of them, the other one 2 */
    struct unit_ctx u;
    float x[256] = {2048.0f};
    const float values[] = {-32, -31, -13, 2, 20};
    memcpy(x + 16, values, sizeof values);
    unit_ctx_start(&u, 1);
    const qn_quantize_options o = options_of("q6_k");
    qn_weight *w = quantize(&u, &o, x, 1, 256);
    const qn_weight_parts p = view(w);
    assert_true(p.scale[0] == -64.0f && p.scale[1] == 1.0f && p.scale[2] == 0.0f);
    for (int i = 0; i < 5; i++)
        assert_int_equal(p.codes[16 + i] - 32, (int)values[i]);
    qn_weight_destroy(w);
    unit_ctx_stop(&u);
}

/* ---- every code is the nearest ---- */

static const char *const specs[] = {
    "int4:g128",
    "int4:g128:zp",
    "int4:g64:off",
    "int8:pc",
    "int8:pt",
    "int3:g32",
    "int2:g16:zp",
    "int5:g20:off",
    "int6:pc:zp",
    "int4:g32:off:f16",
    "int4:g7:bf16",
    "nf4:g64",
    "nf4:pc:f16",
    "iq4nl:g32",
    "e2m1:g32",
    "fp8:pc",
    "fp8:g128:bf16",
    "int4:g32:e8m0",
    "int8:g16:e4m3",
    "int4:pt:zp",
    "int8:g1",
    "int4:g32:zp:e8m0",
    "nf4:g32:off",
    "int4:g16:f16:s4x6",
    "q4_0",
    "q4_1",
    "q5_0",
    "q5_1",
    "q8_0",
    "q2_k",
    "q3_k",
    "q4_k",
    "q5_k",
    "q6_k",
    "iq4_nl",
    "iq4_xs",
    "int4:g64:min",
    "int8:pc:min:f16",
    "int4:g16:min:s4x8",
    "mxfp4",
    "nvfp4",
    "int4:g32:s8x6",
    "int3:g16:off:s3x5",
    "int4:c8",
    "int4:c3:zp",
    "nf4:c16:f16",
};
enum { N_SPECS = (int)(sizeof specs / sizeof specs[0]) };

/* Decoding another code may not be nearer, but for what three roundings of f32 lose. */
static void assert_nearest(const qn_weight_parts *p, const float *x)
{
    for (int64_t row = 0; row < p->n; row++)
        for (int64_t at = 0; at < p->k; at++) {
            const int64_t g = row * p->n_groups + group_of(p, at);
            const double w = (double)x[row * p->k + at];
            const double size = fabs(w) + fabs((double)p->scale[g]) +
                                (p->offset != NULL ? fabs((double)p->offset[g]) : 0.0);
            const double error = fabs(w - decode(p, row, at, p->codes[row * p->k + at]));
            for (int code = 0; code < 1 << p->format.bits; code++) {
                const double other = fabs(w - decode(p, row, at, code)); /* fp8 has NaN codes */
                if (!isnan(other) && !(error <= other + size * 0x1p-21))
                    fail_msg("row %d, position %d: %g is coded as %d, %d is nearer", (int)row,
                             (int)at, w, p->codes[row * p->k + at], code);
            }
        }
}

/* Whatever type a scale is stored in, holds it. */
static void assert_scales_fit(const qn_weight_parts *p)
{
    for (int64_t i = 0; i < p->n * p->n_groups && p->format.superblock == 0; i++) {
        const float s = p->scale[i];
        int exponent;
        assert_true(isfinite(s));
        if (p->format.scale_dtype == QN_F16)
            assert_true(qni_f32_from_f16(qni_f16_from_f32(s)) == s);
        if (p->format.scale_dtype == QN_BF16)
            assert_true(qni_f32_from_bf16(qni_bf16_from_f32(s)) == s);
        if (p->format.scale_dtype == QN_E8M0)
            assert_true(frexpf(s, &exponent) == 0.5f);
        if (p->format.scale_dtype == QN_E4M3) /* 4 bits, times a power of two */
            assert_true(frexpf(s, &exponent) * 16.0f == floorf(frexpf(s, &exponent) * 16.0f));
        if (p->offset != NULL && p->format.scale_dtype == QN_F16)
            assert_true(qni_f32_from_f16(qni_f16_from_f32(p->offset[i])) == p->offset[i]);
    }
}

static void fill(float *x, int64_t n, uint64_t *seed)
{
    static const float sizes[] = {1.0f, 0.02f, 1e-4f, 300.0f};
    const float size = sizes[unit_in(seed, 0, 3)];
    for (int64_t i = 0; i < n; i++)
        x[i] = unit_in(seed, 0, 30) == 0 ? 0.0f : size * unit_normal(seed);
}

static void every_code_is_the_nearest(void **state)
{
    (void)state;
    static const int64_t shapes[][4] = {/* n, ci, kh, kw */
                                        {3, 256, 1, 1}, {2, 300, 1, 1}, {1, 1, 1, 1},
                                        {5, 33, 1, 1},  {4, 24, 3, 3},  {2, 10, 1, 5}};
    float *x = malloc(sizeof *x * 4 * 300);
    uint64_t seed = 5;
    for (int s = 0; s < N_SPECS; s++)
        for (int i = 0; i < 6; i++)
            for (qn_range range = QN_RANGE_NARROW; range <= QN_RANGE_FULL; range++) {
                struct unit_ctx u;
                const int64_t n = shapes[i][0], k = shapes[i][1] * shapes[i][2] * shapes[i][3];
                qn_quantize_options o = options_of(specs[s]);
                o.kh = (int32_t)shapes[i][2];
                o.kw = (int32_t)shapes[i][3];
                o.range = range;
                fill(x, n * k, &seed);
                unit_ctx_start(&u, 1);
                qn_weight *w = quantize(&u, &o, x, n, k);
                const qn_weight_parts p = view(w);
                assert_int_equal(p.n_groups, qn_format_groups(&o.format, k, shapes[i][1]));
                assert_nearest(&p, x);
                assert_scales_fit(&p);
                qn_weight_destroy(w);
                unit_ctx_stop(&u);
            }
    free(x);
}

/* The groups' ranges themselves: every group's largest weight takes an end of the codes. */
static void groups_are_where_they_should_be(void **state)
{
    (void)state;
    struct unit_ctx u;
    enum { N = 2, CI = 10, TAPS = 6, K = CI * TAPS };
    float x[N * K];
    uint64_t seed = 6;
    unit_ctx_start(&u, 1);
    static const char *const cases[] = {"int8:c4", "int8:g4", "int8:g7", "int8:pc"};
    for (int c = 0; c < 4; c++) {
        qn_quantize_options o = options_of(cases[c]);
        o.kh = 2;
        o.kw = 3;
        for (int i = 0; i < N * K; i++)
            x[i] = unit_normal(&seed);
        qn_weight *w = quantize(&u, &o, x, N, K);
        const qn_weight_parts p = view(w);
        for (int64_t row = 0; row < N; row++)
            for (int64_t g = 0; g < p.n_groups; g++) {
                float amax = 0.0f;
                for (int64_t at = 0; at < K; at++)
                    if (group_of(&p, at) == g)
                        amax = fmaxf(amax, fabsf(x[row * K + at]));
                assert_true(amax > 0.0f);
                assert_true(p.scale[row * p.n_groups + g] == amax / 127.0f);
            }
        qn_weight_destroy(w);
    }
    unit_ctx_stop(&u);
}

static void per_tensor_repeats_one_scale(void **state)
{
    (void)state;
    struct unit_ctx u;
    enum { N = 300, K = 50 };
    float *x = malloc(sizeof *x * N * K);
    uint64_t seed = 7;
    float amax = 0.0f;
    for (int i = 0; i < N * K; i++) {
        x[i] = unit_normal(&seed);
        amax = fmaxf(amax, fabsf(x[i]));
    }
    unit_ctx_start(&u, 3);
    const qn_quantize_options o = options_of("int8:pt");
    qn_weight *w = quantize(&u, &o, x, N, K);
    const qn_weight_parts p = view(w);
    for (int i = 0; i < N; i++)
        assert_true(p.scale[i] == amax / 127.0f);
    qn_weight_destroy(w);
    unit_ctx_stop(&u);
    free(x);
}

/* ---- inputs ---- */

static void all_types_of_dense_weights_are_read(void **state)
{
    (void)state;
    struct unit_ctx u;
    enum { N = 5, K = 70, LD = 77 };
    static uint16_t f16[N * LD], bf16[N * LD];
    static float from_f16[N * LD], from_bf16[N * LD];
    uint64_t seed = 8;
    for (int i = 0; i < N * LD; i++) { /* with subnormals of f16 */
        const float x = i % 9 == 0 ? 3e-6f * unit_normal(&seed) : unit_normal(&seed);
        f16[i] = qni_f16_from_f32(x);
        bf16[i] = qni_bf16_from_f32(x);
        from_f16[i] = qni_f32_from_f16(f16[i]);
        from_bf16[i] = qni_f32_from_bf16(bf16[i]);
    }
    unit_ctx_start(&u, 1);
    const qn_quantize_options o = options_of("int8:g1:bf16"); /* a group each: nothing hides */
    const struct {
        void *small, *big;
        qn_dtype dtype;
    } pairs[] = {{f16, from_f16, QN_F16}, {bf16, from_bf16, QN_BF16}};
    for (int i = 0; i < 2; i++) {
        qn_tensor a = qn_tensor_2d(pairs[i].small, pairs[i].dtype, N, K);
        qn_tensor b = qn_tensor_2d(pairs[i].big, QN_F32, N, K);
        qn_weight *v, *w;
        a.stride[0] = b.stride[0] = LD;
        assert_int_equal(qn_quantize(&u.ctx, &a, &o, &v, NULL), QN_OK);
        assert_int_equal(qn_quantize(&u.ctx, &b, &o, &w, NULL), QN_OK);
        assert_memory_equal(view(v).scale, view(w).scale, sizeof(float) * N * K);
        assert_memory_equal(view(v).codes, view(w).codes, N * K);
        const float *row = (const float *)pairs[i].big + 4 * LD; /* the last row is where it is */
        const float expected = fabsf(row[69]) / 127.0f;
        assert_true(view(v).scale[4 * K + 69] == qni_f32_from_bf16(qni_bf16_from_f32(expected)));
        qn_weight_destroy(v);
        qn_weight_destroy(w);
    }
    unit_ctx_stop(&u);
}

static void assert_fails(struct unit_ctx *u, const qn_tensor *t, const qn_quantize_options *o,
                         qn_status status, const char *words)
{
    qn_error err = {QN_OK, 0, ""};
    qn_weight *w = (qn_weight *)u;
    assert_int_equal(qn_quantize(&u->ctx, t, o, &w, &err), status);
    assert_null(w);
    assert_int_equal(err.status, status);
    if (strstr(err.text, words) == NULL)
        fail_msg("\"%s\" is missing in: %s", words, err.text);
    assert_int_equal(qn_quantize(&u->ctx, t, o, &w, NULL), status);
    assert_int_equal(u->memory.live, 0);
}

static void values_that_are_no_numbers_are_named(void **state)
{
    (void)state;
    struct unit_ctx u;
    enum { N = 40, K = 300 };
    static float x[N * K];
    static const float bad[] = {NAN, INFINITY, -INFINITY};
    const qn_tensor t = qn_tensor_2d(x, QN_F32, N, K);
    unit_ctx_start(&u, 2);
    for (int s = 0; s < N_SPECS; s++)
        for (int b = 0; b < 3; b++)
            for (qn_method m = QN_METHOD_RTN; m <= QN_METHOD_SEARCH; m++) {
                qn_quantize_options o = options_of(specs[s]);
                o.method = m;
                memset(x, 0, sizeof x);
                x[17 * K + 299] = bad[b];
                x[30 * K + 5] = bad[b]; /* not the first one */
                assert_fails(&u, &t, &o, QN_E_VALUE,
                             b == 0 ? "row 17, column 299 is NaN"
                                    : "row 17, column 299 is infinite");
            }
    unit_ctx_stop(&u);
}

static void scales_too_large_for_their_type_are_refused(void **state)
{
    (void)state;
    struct unit_ctx u;
    float x[64] = {0};
    const qn_tensor t = qn_tensor_2d(x, QN_F32, 2, 32);
    unit_ctx_start(&u, 1);
    x[40] = 1e6f;
    qn_quantize_options o = options_of("q4_0");
    assert_fails(&u, &t, &o, QN_E_VALUE, "a scale of row 1 is too large for the type f16");
    o = options_of("int8:pt:f16");
    x[40] = 1e9f;
    assert_fails(&u, &t, &o, QN_E_VALUE, "too large for the type f16");
    float prescale[32];
    for (int i = 0; i < 32; i++)
        prescale[i] = 1e-30f;
    o = options_of("int4:g32");
    o.prescale = prescale;
    x[40] = 1e20f;
    assert_fails(&u, &t, &o, QN_E_VALUE, "row 1, column 8 overflows");
    unit_ctx_stop(&u);
}

/* Zeros, the smallest and the largest numbers: finite scales, and codes that still are nearest. */
static void extreme_groups_are_quantized(void **state)
{
    (void)state;
    static const float scales[] = {0.0f,      0x1p-149f, 0x1p-140f, 0x1p-127f,
                                   0x1p-100f, 0x1p100f,  0x1p124f};
    float x[2 * 96];
    uint64_t seed = 9;
    for (int s = 0; s < N_SPECS; s++)
        for (int i = 0; i < 7; i++) {
            struct unit_ctx u;
            const qn_quantize_options o = options_of(specs[s]);
            const bool is_small = o.format.scale_dtype == QN_F16 ||
                                  (o.format.superblock > 0 && i > 0) ||
                                  o.format.scale_dtype == QN_E4M3;
            if (is_small && i > 0)
                continue; /* the type of the scale decides there */
            unit_ctx_start(&u, 1);
            for (int j = 0; j < 2 * 96; j++)
                x[j] = scales[i] * (float)unit_in(&seed, -7, 7);
            qn_weight *w = quantize(&u, &o, x, 2, 96);
            const qn_weight_parts p = view(w);
            assert_scales_fit(&p);
            for (int at = 0; at < 96; at++) {
                const double v = decode(&p, 1, at, p.codes[96 + at]);
                assert_true(isfinite(v));
                if (i == 0 && o.format.code != QN_CODE_IQ4_NL)
                    assert_true(v == 0.0);
            }
            if (i >= 3 && o.format.scale_dtype == QN_F32)
                assert_nearest(&p, x);
            qn_weight_destroy(w);
            unit_ctx_stop(&u);
        }
}

static void bad_arguments_are_refused(void **state)
{
    (void)state;
    struct unit_ctx u;
    float x[64] = {0}, column[8] = {1, 1, 1, 1, 1, 1, 1, 1};
    const qn_tensor good = qn_tensor_2d(x, QN_F32, 8, 8);
    unit_ctx_start(&u, 1);
    qn_quantize_options o = options_of("int4:g4");
    qn_weight *w;
    assert_int_equal(qn_quantize(NULL, &good, &o, &w, NULL), QN_E_ARGUMENT);
    assert_int_equal(qn_quantize(&u.ctx, NULL, &o, &w, NULL), QN_E_ARGUMENT);
    assert_int_equal(qn_quantize(&u.ctx, &good, NULL, &w, NULL), QN_E_ARGUMENT);
    assert_int_equal(qn_quantize(&u.ctx, &good, &o, NULL, NULL), QN_E_ARGUMENT);

    qn_tensor t = good;
    t.dtype = QN_I8;
    assert_fails(&u, &t, &o, QN_E_DTYPE, "type i8");
    t = qn_tensor_1d(x, QN_F32, 64);
    assert_fails(&u, &t, &o, QN_E_SHAPE, "rank 1");
    t = good;
    t.stride[1] = 2;
    assert_fails(&u, &t, &o, QN_E_STRIDE, "contiguous");
    t = good;
    t.stride[0] = -8;
    assert_fails(&u, &t, &o, QN_E_STRIDE, "stride");
    t = good;
    t.data = NULL;
    assert_fails(&u, &t, &o, QN_E_ARGUMENT, "no data");
    t = good;
    t.device.kind = QN_CUDA;
    assert_fails(&u, &t, &o, QN_E_ARGUMENT, "CPU");

    o.format.bits = 9;
    assert_fails(&u, &good, &o, QN_E_FORMAT, "9 bits");
    o = options_of("int4:g4");
    o.format.reserved = 1;
    assert_fails(&u, &good, &o, QN_E_ARGUMENT, "format.reserved");
    o = options_of("table4:g4");
    assert_fails(&u, &good, &o, QN_E_FORMAT, "table");
    o = options_of("int4:g4");
    o.kh = 3;
    assert_fails(&u, &good, &o, QN_E_SHAPE, "3 x 1 taps");
    o.kh = 1;
    o.conv_groups = 3;
    assert_fails(&u, &good, &o, QN_E_SHAPE, "3 groups");
    o.conv_groups = 1;
    o.method = 9;
    assert_fails(&u, &good, &o, QN_E_ARGUMENT, "method 9");
    o.method = QN_METHOD_RTN;
    o.range = 9;
    assert_fails(&u, &good, &o, QN_E_ARGUMENT, "range 9");
    o.range = 0;
    o.act_order = 1;
    assert_fails(&u, &good, &o, QN_E_ARGUMENT, "act_order");
    o.act_order = 0;
    o.prescale = column;
    column[3] = 0.0f;
    assert_fails(&u, &good, &o, QN_E_VALUE, "column 3");
    column[3] = NAN;
    assert_fails(&u, &good, &o, QN_E_VALUE, "column 3");
    o.prescale = NULL;
    o.importance = column;
    assert_fails(&u, &good, &o, QN_E_VALUE, "column 3");
    unit_ctx_stop(&u);
}

static void empty_weights_are_legal(void **state)
{
    (void)state;
    struct unit_ctx u;
    static const int64_t shapes[][2] = {{0, 0}, {0, 64}, {5, 0}};
    unit_ctx_start(&u, 2);
    for (int s = 0; s < N_SPECS; s++)
        for (int i = 0; i < 3; i++)
            for (qn_method m = QN_METHOD_RTN; m <= QN_METHOD_SEARCH; m++) {
                qn_quantize_options o = options_of(specs[s]);
                o.method = m;
                qn_weight *w = quantize(&u, &o, NULL, shapes[i][0], shapes[i][1]);
                assert_int_equal(view(w).n, shapes[i][0]);
                for (int64_t g = 0; g < view(w).n * view(w).n_groups; g++)
                    assert_true(view(w).scale[g] == 0.0f);
                qn_weight_destroy(w);
            }
    unit_ctx_stop(&u);
}

/* W is divided by the prescale, which is kept; dequantizing multiplies it in again. */
static void prescale_is_divided_out(void **state)
{
    (void)state;
    struct unit_ctx u;
    enum { N = 3, K = 40 };
    float x[N * K], divided[N * K], prescale[K], out[N * K];
    uint64_t seed = 10;
    unit_ctx_start(&u, 1);
    for (int i = 0; i < K; i++)
        prescale[i] = ldexpf(1.0f, (int)unit_in(&seed, -3, 3));
    for (int i = 0; i < N * K; i++) {
        x[i] = unit_normal(&seed);
        divided[i] = x[i] / prescale[i % K];
    }
    qn_quantize_options o = options_of("int8:g8");
    qn_weight *plain = quantize(&u, &o, divided, N, K);
    o.prescale = prescale;
    qn_weight *w = quantize(&u, &o, x, N, K);
    assert_memory_equal(view(w).codes, view(plain).codes, N * K);
    assert_memory_equal(view(w).prescale, prescale, sizeof prescale);
    const qn_tensor t = qn_tensor_2d(out, QN_F32, N, K);
    assert_int_equal(qn_weight_dequantize(&u.ctx, w, true, &t), QN_OK);
    for (int i = 0; i < N * K; i++)
        assert_true(fabsf(out[i] - x[i]) <=
                    0.5f * view(w).scale[i / K * 5 + i % K / 8] * prescale[i % K] * 1.001f);
    qn_weight_destroy(plain);
    qn_weight_destroy(w);
    unit_ctx_stop(&u);
}

/* ---- threads, progress, memory ---- */

static void assert_same_weights(const qn_weight *a, const qn_weight *b)
{
    const qn_weight_parts p = view(a), q = view(b);
    const size_t groups = (size_t)(p.n * p.n_groups);
    assert_memory_equal(p.codes, q.codes, (size_t)(p.n * p.k));
    assert_memory_equal(p.scale, q.scale, groups * sizeof *p.scale);
    if (p.zero != NULL)
        assert_memory_equal(p.zero, q.zero, groups * sizeof *p.zero);
    if (p.offset != NULL)
        assert_memory_equal(p.offset, q.offset, groups * sizeof *p.offset);
}

static void threads_cannot_be_seen(void **state)
{
    (void)state;
    enum { N = 301, K = 640 };
    float *x = malloc(sizeof *x * N * K);
    uint64_t seed = 11;
    for (int i = 0; i < N * K; i++)
        x[i] = unit_normal(&seed);
    for (int s = 0; s < N_SPECS; s++) {
        struct unit_ctx one, many;
        const qn_quantize_options o = options_of(specs[s]);
        unit_ctx_start(&one, 1);
        qn_weight *a = quantize(&one, &o, x, N, K);
        for (int32_t threads = 2; threads <= 7; threads += 5) {
            unit_ctx_start(&many, threads);
            qn_weight *b = quantize(&many, &o, x, N, K);
            assert_same_weights(a, b);
            qn_weight_destroy(b);
            unit_ctx_stop(&many);
        }
        qn_weight_destroy(a);
        unit_ctx_stop(&one);
    }
    free(x);
}

struct progress {
    int64_t calls, last, stop_at;
};

static bool on_progress(void *arg, int64_t done, int64_t total)
{
    struct progress *p = arg;
    assert_true(done > p->last && done <= total);
    p->last = done;
    p->calls++;
    return done < p->stop_at;
}

static void progress_is_told_and_obeyed(void **state)
{
    (void)state;
    struct unit_ctx u;
    enum { N = 3000, K = 4096 };
    uint16_t *x = calloc(N * K, sizeof *x);
    const qn_tensor t = qn_tensor_2d(x, QN_F16, N, K);
    unit_ctx_start(&u, 2);
    qn_quantize_options o = options_of("int4:g128");
    struct progress p = {0, 0, INT64_MAX};
    o.progress = on_progress;
    o.progress_arg = &p;
    qn_weight *w;
    assert_int_equal(qn_quantize(&u.ctx, &t, &o, &w, NULL), QN_OK);
    assert_int_equal(p.last, N);
    assert_true(p.calls > 5);
    qn_weight_destroy(w);

    p = (struct progress){0, 0, 1000};
    qn_error err;
    assert_int_equal(qn_quantize(&u.ctx, &t, &o, &w, &err), QN_E_CANCELLED);
    assert_true(p.last >= 1000 && p.last < 2000);
    assert_null(w);
    assert_non_null(strstr(err.text, "of 3000 rows"));
    unit_ctx_stop(&u);
    free(x);
}

/* Each allocation in turn fails: E_MEMORY, nothing is left, and without failures it works. */
static void every_allocation_may_fail(void **state)
{
    (void)state;
    enum { N = 4, K = 32 };
    float x[N * K], samples[8 * K], prescale[K];
    uint64_t seed = 12;
    for (int i = 0; i < N * K; i++)
        x[i] = unit_normal(&seed);
    for (int i = 0; i < 8 * K; i++)
        samples[i] = unit_normal(&seed);
    for (int i = 0; i < K; i++)
        prescale[i] = 2.0f;
    const qn_tensor t = qn_tensor_2d(x, QN_F32, N, K), s = qn_tensor_2d(samples, QN_F32, 8, K);
    static const char *const cases[] = {"int4:g8:zp", "nf4:g8:off", "nvfp4", "int4:c2", "int8:pt"};
    for (int c = 0; c < 5; c++)
        for (qn_method m = QN_METHOD_RTN; m <= QN_METHOD_GPTQ; m++) {
            qn_quantize_options o = options_of(cases[c]);
            o.method = m;
            o.prescale = prescale;
            o.importance = prescale;
            o.samples = m == QN_METHOD_GPTQ ? &s : NULL;
            o.kh = cases[c][5] == 'c' ? 4 : 1;
            o.act_order = m == QN_METHOD_GPTQ && o.kh == 1;
            for (int64_t fail_at = 1;; fail_at++) {
                struct unit_ctx u;
                qn_error err = {QN_OK, 0, ""};
                qn_weight *w;
                unit_ctx_start(&u, 2);
                u.memory.fail_at = fail_at;
                const qn_status status = qn_quantize(&u.ctx, &t, &o, &w, &err);
                const bool is_over = u.memory.calls < fail_at;
                assert_int_equal(status, is_over ? QN_OK : QN_E_MEMORY);
                assert_int_equal(err.status, status);
                qn_weight_destroy(w);
                unit_ctx_stop(&u);
                if (is_over) {
                    assert_true(fail_at > 5);
                    break;
                }
            }
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_three_symmetric_ranges),
        cmocka_unit_test(zero_points_are_those_of_awq),
        cmocka_unit_test(offsets_are_those_of_mnn),
        cmocka_unit_test(the_simple_named_formats),
        cmocka_unit_test(the_block_scaled_floats),
        cmocka_unit_test(the_k_quants),
        cmocka_unit_test(every_code_is_the_nearest),
        cmocka_unit_test(groups_are_where_they_should_be),
        cmocka_unit_test(per_tensor_repeats_one_scale),
        cmocka_unit_test(all_types_of_dense_weights_are_read),
        cmocka_unit_test(values_that_are_no_numbers_are_named),
        cmocka_unit_test(scales_too_large_for_their_type_are_refused),
        cmocka_unit_test(extreme_groups_are_quantized),
        cmocka_unit_test(bad_arguments_are_refused),
        cmocka_unit_test(empty_weights_are_legal),
        cmocka_unit_test(prescale_is_divided_out),
        cmocka_unit_test(threads_cannot_be_seen),
        cmocka_unit_test(progress_is_told_and_obeyed),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
