/* SPDX-License-Identifier: Apache-2.0 */
/* The fused multiply-add in software against that of the C library, and the exponential functions
 * against double. */
#include <float.h>
#include <math.h>

#include "base/exact.h"
#include "unit.h"

/* The software path, whatever this file is compiled for: the header's text once more, under other
 * names, with the instruction's macros out of the way. */
#undef __FMA__
#undef __aarch64__
#undef QNI_BASE_EXACT_H
#define qni_fmaf        soft_fmaf
#define qni_rintf       soft_rintf
#define qni_exp_inline  soft_exp_inline
#define qni_erf_inline  soft_erf_inline
#define qni_tanh_inline soft_tanh_inline
#include "../../src/base/exact.h"
#undef qni_fmaf
#undef qni_rintf
#undef qni_exp_inline
#undef qni_erf_inline
#undef qni_tanh_inline

static void assert_fma(float a, float b, float c)
{
    const float got = soft_fmaf(a, b, c), expected = fmaf(a, b, c);
    if (isnan(expected)) {
        assert_true(isnan(got));
        return;
    }
    if (qni_bits_of(got) != qni_bits_of(expected))
        fail_msg("fma(%a, %a, %a) = %a, not %a", (double)a, (double)b, (double)c, (double)got,
                 (double)expected);
}

/* All triples of values where something happens. */
static void fma_of_special_values(void **state)
{
    (void)state;
    static const float v[] = {
        0.0f,        1.0f,      0x1.fffffep0f,   0x1.000002p0f, 0x1.555556p-1f,
        3.0f,        0x1p-24f,  0x1p-25f,        0x1.8p-24f,    0x1.000002p24f,
        0x1p23f,     0x1.8p23f, 0x1p-126f,       0x1p-149f,     0x1.fffffep-127f,
        0x1.8p-148f, 0x1p-75f,  0x1.000002p-75f, 0x1p127f,      FLT_MAX,
        INFINITY,    NAN,       0x1.fffffcp127f, 0x1.4p-149f,
    };
    const int n = (int)(sizeof v / sizeof v[0]);
    for (int i = 0; i < 8 * n * n * n; i++) {
        const int s = i % 8, a = i / 8 % n, b = i / 8 / n % n, c = i / 8 / n / n;
        assert_fma(s & 1 ? -v[a] : v[a], s & 2 ? -v[b] : v[b], s & 4 ? -v[c] : v[c]);
    }
}

/* c is placed so that the sum lies on, or one part in 2^50 beside, a tie of the result; also where
 * the result is subnormal. */
static void fma_next_to_ties(void **state)
{
    (void)state;
    uint64_t seed = 1;
    for (int i = 0; i < 3000000; i++) {
        const int scale = (int)unit_in(&seed, -149, 100);
        const float a = (float)unit_in(&seed, 1, (1 << 24) - 1);
        const float b = (float)unit_in(&seed, 1, (1 << unit_in(&seed, 1, 24)) - 1);
        const float big = ldexpf((float)unit_in(&seed, 1 << 23, (1 << 24) - 1), scale);
        const float half = ldexpf(1.0f, scale - 1);
        const int down = ilogbf(a) + ilogbf(b);
        /* a * b is about half a unit of big, exactly so when both are powers of two */
        const float f = ldexpf(unit_in(&seed, 0, 3) ? a : ldexpf(1.0f, ilogbf(a)),
                               scale - 1 - down / 2 - ilogbf(b) + (down / 2 - ilogbf(a)));
        const float g = ldexpf(unit_in(&seed, 0, 3) ? b : ldexpf(1.0f, ilogbf(b)), 0);
        assert_fma(f, g, unit_in(&seed, 0, 1) ? big : -big);
        assert_fma(a, b, (float)-((double)a * (double)b)); /* what rounding lost */
        assert_fma(ldexpf(a, scale), b, half);
    }
}

static void fma_of_random_bits(void **state)
{
    (void)state;
    uint64_t seed = 2;
    for (int i = 0; i < 5000000; i++) {
        const uint64_t r = unit_random(&seed), s = unit_random(&seed);
        assert_fma(qni_float_of((uint32_t)r), qni_float_of((uint32_t)(r >> 32)),
                   qni_float_of((uint32_t)s));
    }
}

static void rint_ties_to_even(void **state)
{
    (void)state;
    for (int i = -100000; i <= 100000; i++) {
        const float x = (float)i * 0.25f;
        assert_true(qni_rintf(x) == rintf(x));
    }
    assert_true(qni_rintf(2.5f) == 2.0f);
    assert_true(qni_rintf(-3.5f) == -4.0f);
}

/* Distance in units in the last place of the result's own size. */
static double ulps(float got, double expected)
{
    const float near = (float)expected;
    if (isinf(near) || near == 0.0f)
        return got == near ? 0.0 : fabs((double)got - expected) / 0x1p-149;
    const double unit = ldexp(1.0, (ilogbf(near) < -126 ? -126 : ilogbf(near)) - 23);
    return fabs((double)got - expected) / unit;
}

typedef float one_fn(float x);
typedef double true_fn(double x);

static void assert_close(one_fn *f, true_fn *exact, double most_ulps, double most_absolute)
{
    for (uint64_t bits = 0; bits < 0x100000000u; bits += 2039) { /* a prime: all patterns end */
        const float x = qni_float_of((uint32_t)bits);
        if (isnan(x))
            continue;
        const float y = f(x);
        if (!(ulps(y, exact((double)x)) <= most_ulps) &&
            !(fabs((double)y - exact((double)x)) <= most_absolute))
            fail_msg("f(%a) = %a, not %a", (double)x, (double)y, exact((double)x));
    }
}

static void exponential_functions_are_close(void **state)
{
    (void)state;
    assert_close(qni_expf, exp, 2.0, 0.0);
    assert_close(qni_tanhf, tanh, 2.0, 0.0);
    assert_close(qni_erff, erf, 0.0, 0x1p-22);
    assert_close(qni_erff, erf, 4.0, 0.0);
}

static void exponential_functions_at_their_ends(void **state)
{
    (void)state;
    assert_true(qni_expf(-104.0f) == 0.0f && qni_expf(-INFINITY) == 0.0f);
    assert_true(isinf(qni_expf(88.8f)) && isinf(qni_expf(INFINITY)));
    assert_true(isfinite(qni_expf(88.72f)));
    assert_true(qni_expf(0.0f) == 1.0f);
    assert_true(qni_erff(4.0f) == 1.0f && qni_erff(-INFINITY) == -1.0f);
    assert_true(qni_tanhf(20.0f) == 1.0f && qni_tanhf(-INFINITY) == -1.0f);
    assert_true(isnan(qni_expf(NAN)) && isnan(qni_erff(NAN)) && isnan(qni_tanhf(NAN)));
    assert_true(signbit(qni_erff(-0.0f)) && signbit(qni_tanhf(-0.0f)));
    for (int i = 0; i < 1000; i++) {
        const float x = (float)i * 0.01f;
        assert_true(qni_erff(-x) == -qni_erff(x) && qni_tanhf(-x) == -qni_tanhf(x));
    }
}

/* A loop that a compiler vectorises gives the bits of single calls. */
static void loops_give_the_same_bits(void **state)
{
    (void)state;
    enum { N = 1031 };
    static float x[N], e[N], r[N], t[N];
    uint64_t seed = 3;
    for (int i = 0; i < N; i++)
        x[i] = 30.0f * unit_normal(&seed);
    for (int i = 0; i < N; i++)
        e[i] = qni_exp_inline(x[i]);
    for (int i = 0; i < N; i++)
        r[i] = qni_erf_inline(x[i]);
    for (int i = 0; i < N; i++)
        t[i] = qni_tanh_inline(x[i]);
    for (int i = 0; i < N; i++) {
        assert_int_equal(qni_bits_of(e[i]), qni_bits_of(qni_expf(x[i])));
        assert_int_equal(qni_bits_of(r[i]), qni_bits_of(qni_erff(x[i])));
        assert_int_equal(qni_bits_of(t[i]), qni_bits_of(qni_tanhf(x[i])));
    }
}

/* The bits themselves, so that another compiler or machine is compared with this one. */
static void bits_are_the_same_everywhere(void **state)
{
    (void)state;
    uint64_t seed = 4, sum = 0;
    for (int i = 0; i < 100000; i++) {
        const float x = 5.0f * unit_normal(&seed);
        sum = sum * 0x100000001b3u + qni_bits_of(qni_expf(x));
        sum = sum * 0x100000001b3u + qni_bits_of(qni_erff(x));
        sum = sum * 0x100000001b3u + qni_bits_of(qni_tanhf(x));
        sum = sum * 0x100000001b3u + qni_bits_of(soft_fmaf(x, x, -x));
    }
    assert_true(sum == 0x6f3be15ca67aeadau);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fma_of_special_values),
        cmocka_unit_test(fma_next_to_ties),
        cmocka_unit_test(fma_of_random_bits),
        cmocka_unit_test(rint_ties_to_even),
        cmocka_unit_test(exponential_functions_are_close),
        cmocka_unit_test(exponential_functions_at_their_ends),
        cmocka_unit_test(loops_give_the_same_bits),
        cmocka_unit_test(bits_are_the_same_everywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
