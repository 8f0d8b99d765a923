/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of simd/portable.h against their definitions: the fused multiply-add on everything that
 * rounding twice gets wrong, and products of pairs at the extremes. */
#include <float.h>
#include <math.h>

#include "cpu/simd/portable.h"
#include "unit.h"

static void assert_fma(const float a[4], const float b[4], const float c[4])
{
    float got[4];
    qni_f32x4_store(got, qni_f32x4_fma(qni_f32x4_load(a), qni_f32x4_load(b), qni_f32x4_load(c)));
    for (int i = 0; i < 4; i++) {
        const float expected = fmaf(a[i], b[i], c[i]);
        if (isnan(expected) ? !isnan(got[i]) : qni_bits_of(got[i]) != qni_bits_of(expected))
            fail_msg("fma(%a, %a, %a) = %a, not %a", (double)a[i], (double)b[i], (double)c[i],
                     (double)got[i], (double)expected);
    }
}

/* All triples of values where something happens, in every lane. */
static void fma_of_special_values(void **state)
{
    (void)state;
    static const float v[] = {
        0.0f,      1.0f,     0x1.fffffep0f,    0x1.000002p0f, 0x1.555556p-1f,  3.0f,
        0x1p-24f,  0x1p-25f, 0x1.8p-24f,       0x1p23f,       0x1.8p23f,       0x1p-126f,
        0x1p-149f, 0x1p127f, 0x1.fffffep-127f, 0x1p-75f,      0x1.000002p-75f, FLT_MAX,
        INFINITY,  NAN,
    };
    const int n = (int)(sizeof v / sizeof v[0]);
    for (int i = 0; i < 8 * n * n * n; i++) {
        float a[4], b[4], c[4];
        for (int lane = 0; lane < 4; lane++) {
            const int at = (i + 977 * lane) % (8 * n * n * n), s = at % 8;
            a[lane] = (s & 1 ? -1.0f : 1.0f) * v[at / 8 % n];
            b[lane] = (s & 2 ? -1.0f : 1.0f) * v[at / 8 / n % n];
            c[lane] = (s & 4 ? -1.0f : 1.0f) * v[at / 8 / n / n];
        }
        assert_fma(a, b, c);
    }
}

/* Products of many bits, and c such that the sum in double is the middle of two floats or close to
 * it. */
static void fma_next_to_ties(void **state)
{
    (void)state;
    uint64_t random = 1;
    for (int i = 0; i < 400000; i++) {
        float a[4], b[4], c[4];
        for (int lane = 0; lane < 4; lane++) {
            const int32_t e = (int32_t)unit_in(&random, -70, 10);
            a[lane] = ldexpf((float)unit_in(&random, 1 << 23, (1 << 24) - 1), e);
            b[lane] = ldexpf((float)unit_in(&random, 1, 9), (int)unit_in(&random, -80, 3));
            /* Up to 30 bits above or below the product: half a last place is hit often. */
            c[lane] = -ldexpf(a[lane] * b[lane], (int)unit_in(&random, -30, 30));
            if (unit_random(&random) % 2 == 0)
                c[lane] = -c[lane];
        }
        assert_fma(a, b, c);
    }
}

static void pairs_at_the_extremes(void **state)
{
    (void)state;
    static const int16_t v[] = {0, 1, -1, 15, 127, -128, 255, 32767, -32767};
    const int n = (int)(sizeof v / sizeof v[0]);
    for (int i = 0; i < n * n * n * n; i++) {
        const int16_t a0 = v[i % n], a1 = v[i / n % n], b0 = v[i / n / n % n],
                      b1 = v[i / n / n / n];
        const int16_t a[8] = {a0, a1, 1, 2, a0, a0, 0, a1}, b[8] = {b0, b1, 3, -4, b1, b0, b0, 1};
        int32_t got[4];
        qni_i32x4_store(got, qni_i16x8_dot(qni_i32x4_load(a), qni_i32x4_load(b)));
        for (int lane = 0; lane < 4; lane++)
            assert_int_equal(got[lane], (int32_t)a[2 * lane] * b[2 * lane] +
                                            (int32_t)a[2 * lane + 1] * b[2 * lane + 1]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fma_of_special_values),
        cmocka_unit_test(fma_next_to_ties),
        cmocka_unit_test(pairs_at_the_extremes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
