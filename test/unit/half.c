/* SPDX-License-Identifier: Apache-2.0 */
/* Small floats against arithmetic in double that shares nothing with them: all f16, bf16, E4M3 and
 * E8M0 values up, and down every f32 next to a tie. */
#include <math.h>

#include "base/half.h"
#include "unit.h"

/* sign, exponent and mantissa of a small float by the textbook. */
static double textbook(uint32_t bits, int exponent_bits, int mantissa_bits)
{
    const uint32_t mantissa = bits & ((1u << mantissa_bits) - 1);
    const uint32_t exponent = bits >> mantissa_bits & ((1u << exponent_bits) - 1);
    const double sign = bits >> (exponent_bits + mantissa_bits) ? -1.0 : 1.0;
    const int bias = (1 << (exponent_bits - 1)) - 1;
    if (exponent == 0)
        return sign * ldexp((double)mantissa, 1 - bias - mantissa_bits);
    return sign *
           ldexp((double)(mantissa | 1u << mantissa_bits), (int)exponent - bias - mantissa_bits);
}

static void assert_same_float(float got, double expected)
{
    assert_true((double)got == expected);
    assert_int_equal(signbit(got) != 0, signbit(expected) != 0);
}

static void f16_to_f32(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = qni_f32_from_f16((uint16_t)h);
        if ((h & 0x7c00) != 0x7c00)
            assert_same_float(f, textbook(h, 5, 10));
        else if ((h & 0x3ff) != 0)
            assert_true(isnan(f));
        else
            assert_same_float(f, h & 0x8000 ? -INFINITY : INFINITY);
    }
}

static void bf16_to_f32(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        const float f = qni_f32_from_bf16((uint16_t)h);
        if ((h & 0x7f80) != 0x7f80)
            assert_same_float(f, textbook(h, 8, 7));
        else if ((h & 0x7f) != 0)
            assert_true(isnan(f));
        else
            assert_same_float(f, h & 0x8000 ? -INFINITY : INFINITY);
    }
}

static void e4m3_to_f32(void **state)
{
    (void)state;
    for (uint32_t v = 0; v < 256; v++) {
        const float f = qni_f32_from_e4m3((uint8_t)v);
        if ((v & 0x7f) == 0x7f)
            assert_true(isnan(f));
        else
            assert_same_float(f, textbook(v, 4, 3));
    }
    assert_true(qni_f32_from_e4m3(0x7e) == 448.0f);
    assert_true(qni_f32_from_e4m3(0x38) == 1.0f);
}

static void e8m0_to_f32(void **state)
{
    (void)state;
    for (int v = 0; v < 255; v++)
        assert_same_float(qni_f32_from_e8m0((uint8_t)v), ldexp(1.0, v - 127));
    assert_true(isnan(qni_f32_from_e8m0(255)));
}

/* The three small types as one: from and to f32, the number of finite values of one sign. */
struct type {
    float (*up)(uint32_t bits);
    uint32_t (*down)(float f);
    uint32_t n_finite, sign;
    bool saturates; /* no infinity */
};

static float up_f16(uint32_t b)
{
    return qni_f32_from_f16((uint16_t)b);
}
static uint32_t down_f16(float f)
{
    return qni_f16_from_f32(f);
}
static float up_bf16(uint32_t b)
{
    return qni_f32_from_bf16((uint16_t)b);
}
static uint32_t down_bf16(float f)
{
    return qni_bf16_from_f32(f);
}
static float up_e4m3(uint32_t b)
{
    return qni_f32_from_e4m3((uint8_t)b);
}
static uint32_t down_e4m3(float f)
{
    return qni_e4m3_from_f32(f);
}

static const struct type types[] = {{up_f16, down_f16, 0x7c00, 0x8000, false},
                                    {up_bf16, down_bf16, 0x7f80, 0x8000, false},
                                    {up_e4m3, down_e4m3, 0x7f, 0x80, true}};

/* Between neighbours a and b everything goes to the nearer one, the middle to the even one. */
static void down_rounds_to_nearest_even(void **state)
{
    (void)state;
    for (size_t t = 0; t < sizeof types / sizeof types[0]; t++)
        for (uint32_t v = 0; v + 1 < types[t].n_finite; v++) {
            const float a = types[t].up(v), b = types[t].up(v + 1);
            const float middle = (float)(0.5 * ((double)a + (double)b)); /* exact in f32 */
            const uint32_t even = v & 1 ? v + 1 : v;
            const bool has_middle = middle != a && middle != b; /* not in bf16's subnormals */
            assert_int_equal(types[t].down(a), v);
            assert_int_equal(types[t].down(-a), types[t].sign | v);
            if (!has_middle)
                continue;
            assert_int_equal(types[t].down(middle), even);
            assert_int_equal(types[t].down(-middle), types[t].sign | even);
            assert_int_equal(types[t].down(nextafterf(middle, 0.0f)), v);
            assert_int_equal(types[t].down(nextafterf(middle, INFINITY)), v + 1);
        }
}

static void down_overflows(void **state)
{
    (void)state;
    assert_int_equal(qni_f16_from_f32(65504.0f), 0x7bff);
    assert_int_equal(qni_f16_from_f32(nextafterf(65520.0f, 0.0f)), 0x7bff);
    assert_int_equal(qni_f16_from_f32(65520.0f), 0x7c00);
    assert_int_equal(qni_f16_from_f32(-INFINITY), 0xfc00);
    assert_int_equal(qni_bf16_from_f32(3.4e38f), 0x7f80);
    assert_int_equal(qni_bf16_from_f32(INFINITY), 0x7f80);
    assert_int_equal(qni_e4m3_from_f32(464.0f), 0x7e);
    assert_int_equal(qni_e4m3_from_f32(1e30f), 0x7e);
    assert_int_equal(qni_e4m3_from_f32(-INFINITY), 0xfe);
}

static void nan_stays_nan(void **state)
{
    (void)state;
    const uint32_t payloads[] = {0x7f800001u, 0x7f80ffffu, 0x7fc00000u, 0x7fffffffu, 0xff800001u};
    for (size_t i = 0; i < sizeof payloads / sizeof payloads[0]; i++) {
        const float f = qni_float_of(payloads[i]);
        assert_int_equal(qni_f16_from_f32(f), 0x7e00); /* of 16 bits there is one */
        assert_int_equal(qni_bf16_from_f32(f), 0x7fc0);
        assert_int_equal(qni_bits_of(qni_one_nan(f)), 0x7fc00000);
        assert_true(isnan(qni_f32_from_e4m3(qni_e4m3_from_f32(f))));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f16_to_f32),
        cmocka_unit_test(bf16_to_f32),
        cmocka_unit_test(e4m3_to_f32),
        cmocka_unit_test(e8m0_to_f32),
        cmocka_unit_test(down_rounds_to_nearest_even),
        cmocka_unit_test(down_overflows),
        cmocka_unit_test(nan_stays_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
