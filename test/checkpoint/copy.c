/* SPDX-License-Identifier: Apache-2.0 */
/* Copies out of files: every pair of float types against an independent rounding, unaligned
 * sources, and what is refused. */
#include "files.h"

#include "base/half.h"

/* An entry over memory, as a file would give it. */
static qn_entry entry_of(const void *data, qn_dtype dtype, int32_t rank, const int64_t *shape)
{
    qn_entry entry;
    memset(&entry, 0, sizeof entry);
    entry.tensor = qn_tensor_make((void *)(uintptr_t)data, dtype, rank, shape);
    return entry;
}

/* The value of a stored number of a small float type: sign, exponent bits, fraction bits, bias. */
static double value_of(uint32_t bits, int32_t exponent_bits, int32_t fraction_bits, int32_t bias)
{
    const int32_t e = (int32_t)(bits >> fraction_bits & ((1u << exponent_bits) - 1));
    const double f = (double)(bits & ((1u << fraction_bits) - 1)) / (double)(1u << fraction_bits);
    const double size = e == 0 ? ldexp(f, 1 - bias) : ldexp(1.0 + f, e - bias);
    return bits >> (exponent_bits + fraction_bits) & 1u ? -size : size;
}

/* Every f16, bf16, E4M3, E5M2 and E8M0 number as double. */
static void test_widen(void **state)
{
    static const struct {
        qn_dtype dtype;
        int32_t bytes, exponent_bits, fraction_bits, bias;
    } types[] = {{QN_F16, 2, 5, 10, 15},
                 {QN_BF16, 2, 8, 7, 127},
                 {QN_E4M3, 1, 4, 3, 7},
                 {QN_E5M2, 1, 5, 2, 15}};
    (void)state;
    for (size_t t = 0; t < 4; t++) {
        const int64_t count = types[t].bytes == 2 ? 65536 : 256;
        uint16_t *from = malloc((size_t)count * 2);
        double *out = malloc((size_t)count * sizeof *out);
        for (int64_t i = 0; i < count; i++)
            if (types[t].bytes == 2)
                from[i] = (uint16_t)i;
            else
                ((uint8_t *)from)[i] = (uint8_t)i;
        const qn_entry entry = entry_of(from, types[t].dtype, 1, &count);
        const qn_tensor to = qn_tensor_1d(out, QN_F64, count);
        assert_ok(qn_entry_copy(&entry, &to));
        const uint32_t top = (1u << types[t].exponent_bits) - 1;
        for (int64_t i = 0; i < count; i++) {
            const uint32_t bits = (uint32_t)i,
                           fraction = bits & ((1u << types[t].fraction_bits) - 1);
            const bool is_top = (bits >> types[t].fraction_bits & top) == top;
            const bool is_e4m3 = types[t].dtype == QN_E4M3;
            if (is_top && (is_e4m3 ? fraction == 7 : fraction != 0))
                assert_true(isnan(out[i]));
            else if (is_top && !is_e4m3)
                assert_true(isinf(out[i]));
            else if (out[i] !=
                     value_of(bits, types[t].exponent_bits, types[t].fraction_bits, types[t].bias))
                fail_msg("%s %x gave %g", qn_dtype_name(types[t].dtype), bits, out[i]);
        }
        free(from);
        free(out);
    }
    uint8_t e8m0[256];
    float out[256];
    const int64_t count = 256;
    for (int i = 0; i < 256; i++)
        e8m0[i] = (uint8_t)i;
    const qn_entry entry = entry_of(e8m0, QN_E8M0, 1, &count);
    const qn_tensor to = qn_tensor_1d(out, QN_F32, count);
    assert_ok(qn_entry_copy(&entry, &to));
    for (int i = 0; i < 255; i++)
        assert_true((double)out[i] == ldexp(1.0, i - 127));
    assert_true(isnan(out[255]));
}

/* The nearest of two neighbours by exact comparison in long double, ties to the even one. */
static void check_nearest(double value, uint32_t got, int32_t exponent_bits, int32_t fraction_bits,
                          int32_t bias)
{
    const uint32_t sign = 1u << (exponent_bits + fraction_bits);
    const double here = fabs(value_of(got & ~sign, exponent_bits, fraction_bits, bias));
    const uint32_t size = got & ~sign;
    const long double off = fabsl((long double)fabs(value) - (long double)here);
    if (size > 0) {
        const double below = value_of(size - 1, exponent_bits, fraction_bits, bias);
        const long double other = fabsl((long double)fabs(value) - (long double)below);
        if (other < off || (other == off && size % 2 == 1))
            fail_msg("%a became %x, the one below is nearer", value, got);
    }
    const double above = value_of(size + 1, exponent_bits, fraction_bits, bias);
    const long double other = fabsl((long double)fabs(value) - (long double)above);
    if (other < off || (other == off && size % 2 == 1))
        fail_msg("%a became %x, the one above is nearer", value, got);
    assert_int_equal((got & sign) != 0, signbit(value) != 0);
}

/* f64 to f16, bf16 and E4M3 in one rounding: values a hair beside ties are where two roundings
 * fail. */
static void test_narrow(void **state)
{
    enum { COUNT = 60000 };
    double *from = malloc(COUNT * sizeof *from);
    uint16_t *out = malloc(COUNT * sizeof *out);
    uint64_t seed = 5;
    const int64_t count = COUNT;
    (void)state;
    for (int i = 0; i < COUNT; i++) {
        /* A tie of one of the types, moved by a few units in the last place of a double. */
        const uint32_t fraction = 1 + (draw(&seed) & 1023u);
        double x = ldexp(1.0 + (double)fraction / 2048.0, (int)(draw(&seed) % 40u) - 26);
        if (i % 3 == 1)
            x = ldexp(1.0 + (double)(fraction & 255u) / 256.0, (int)(draw(&seed) % 250u) - 136);
        if (i % 3 == 2)
            x = ldexp(1.0 + (double)(fraction & 15u) / 16.0, (int)(draw(&seed) % 18u) - 11);
        const int32_t moves = (int32_t)(draw(&seed) % 3u) - 1;
        x = moves == 0 ? x : nextafter(x, moves > 0 ? INFINITY : 0.0);
        from[i] = (draw(&seed) & 1u) != 0 ? -x : x;
    }
    const qn_entry entry = entry_of(from, QN_F64, 1, &count);
    qn_tensor to = qn_tensor_1d(out, QN_F16, count);
    assert_ok(qn_entry_copy(&entry, &to));
    for (int i = 0; i < COUNT; i++)
        if (fabs(from[i]) < 65504.0)
            check_nearest(from[i], out[i], 5, 10, 15);
    to.dtype = QN_BF16;
    assert_ok(qn_entry_copy(&entry, &to));
    for (int i = 0; i < COUNT; i++)
        check_nearest(from[i], out[i], 8, 7, 127);
    to.dtype = QN_E4M3;
    assert_ok(qn_entry_copy(&entry, &to));
    for (int i = 0; i < COUNT; i++)
        if (fabs(from[i]) < 448.0)
            check_nearest(from[i], ((uint8_t *)out)[i], 4, 3, 7);
    float *singles = malloc(COUNT * sizeof *singles);
    to = qn_tensor_1d(singles, QN_F32, count);
    assert_ok(qn_entry_copy(&entry, &to));
    for (int i = 0; i < COUNT; i++)
        assert_true(singles[i] == (float)from[i]);
    free(from);
    free(out);
    free(singles);
}

static void test_special(void **state)
{
    const double from[] = {
        0.0,      -0.0,
        INFINITY, -INFINITY,
        NAN,      1e300,
        -1e300,   1e-300,
        -1e-300,  3.4028235677973366e38 /* half a unit above the largest float */};
    uint16_t half[10];
    uint8_t small[10];
    float single[10];
    const int64_t count = 10;
    (void)state;
    const qn_entry entry = entry_of(from, QN_F64, 1, &count);
    qn_tensor to = qn_tensor_1d(half, QN_F16, count);
    assert_ok(qn_entry_copy(&entry, &to));
    static const uint16_t f16[] = {0,      0x8000, 0x7c00, 0xfc00, 0x7e00,
                                   0x7c00, 0xfc00, 0,      0x8000, 0x7c00};
    assert_memory_equal(half, f16, sizeof f16);
    to.dtype = QN_BF16;
    assert_ok(qn_entry_copy(&entry, &to));
    assert_int_equal(half[2], 0x7f80);
    assert_true((half[4] & 0x7fff) > 0x7f80);
    assert_int_equal(half[5], 0x7f80);
    assert_int_equal(half[8], 0x8000);
    assert_int_equal(half[9], 0x7f80);
    to = qn_tensor_1d(small, QN_E4M3, count);
    assert_ok(qn_entry_copy(&entry, &to));
    assert_int_equal(small[2], 0x7e); /* E4M3 has no infinity */
    assert_int_equal(small[4] & 0x7f, 0x7f);
    assert_int_equal(small[6], 0xfe);
    to = qn_tensor_1d(single, QN_F32, count);
    assert_ok(qn_entry_copy(&entry, &to));
    assert_true(isinf(single[5]) && single[6] < 0 && isinf(single[9]));
    assert_true(single[8] == 0 && signbit(single[8]));
}

/* From any address, through any strides, without touching a neighbour. */
static void test_unaligned(void **state)
{
    uint8_t bytes[4 * 600 + 3], out[4 * 600 + 8];
    (void)state;
    for (int shift = 0; shift < 4; shift++)
        for (int64_t count = 0; count <= 600; count += count < 10 ? 1 : 59) {
            for (int64_t i = 0; i < count; i++) {
                const float value = (float)i * 0.5f - 7.0f;
                memcpy(bytes + shift + 4 * i, &value, 4);
            }
            memset(out, 0xcc, sizeof out);
            const qn_entry entry = entry_of(bytes + shift, QN_F32, 1, &count);
            const qn_tensor same = qn_tensor_1d(out + 3 - shift, QN_F32, count);
            assert_ok(qn_entry_copy(&entry, &same));
            assert_memory_equal(out + 3 - shift, bytes + shift, (size_t)(4 * count));
            const qn_tensor half = qn_tensor_1d(out + 1, QN_F16, count);
            memset(out, 0xcc, sizeof out);
            assert_ok(qn_entry_copy(&entry, &half));
            assert_int_equal(out[0], 0xcc);
            assert_int_equal(out[1 + 2 * count], 0xcc);
            for (int64_t i = 0; i < count; i++) {
                uint16_t h;
                memcpy(&h, out + 1 + 2 * i, 2);
                assert_int_equal(h, qni_f16_from_f32((float)i * 0.5f - 7.0f));
            }
        }
}

static void test_refusals(void **state)
{
    float from[6] = {0};
    double out[6];
    const int64_t shape[2] = {2, 3}, other[2] = {3, 2};
    (void)state;
    qn_entry entry = entry_of(from, QN_F32, 2, shape);
    qn_tensor to = qn_tensor_make(out, QN_F64, 2, other);
    assert_status(qn_entry_copy(&entry, &to), QN_E_SHAPE);
    to = qn_tensor_1d(out, QN_F64, 6);
    assert_status(qn_entry_copy(&entry, &to), QN_E_SHAPE);
    to = qn_tensor_make(out, QN_I32, 2, shape);
    assert_status(qn_entry_copy(&entry, &to), QN_E_DTYPE);
    to.dtype = QN_E8M0;
    assert_status(qn_entry_copy(&entry, &to), QN_E_DTYPE);
    to.dtype = 99;
    assert_status(qn_entry_copy(&entry, &to), QN_E_DTYPE);
    to = qn_tensor_make(out, QN_F64, 2, shape);
    to.stride[0] = 4;
    assert_status(qn_entry_copy(&entry, &to), QN_E_STRIDE);
    to = qn_tensor_make(NULL, QN_F64, 2, shape);
    assert_status(qn_entry_copy(&entry, &to), QN_E_ARGUMENT);
    to = qn_tensor_make(out, QN_F64, 2, shape);
    to.device.kind = QN_CUDA;
    assert_status(qn_entry_copy(&entry, &to), QN_E_ARGUMENT);
    assert_status(qn_entry_copy(NULL, &to), QN_E_ARGUMENT);
    assert_status(qn_entry_copy(&entry, NULL), QN_E_ARGUMENT);
    int32_t numbers[6] = {1, 2, 3, 4, 5, 6}, copy[6];
    entry = entry_of(numbers, QN_I32, 2, shape);
    to = qn_tensor_make(copy, QN_I32, 2, shape);
    assert_ok(qn_entry_copy(&entry, &to));
    assert_memory_equal(copy, numbers, sizeof copy);
    to.dtype = QN_F32;
    assert_status(qn_entry_copy(&entry, &to), QN_E_DTYPE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widen),    cmocka_unit_test(test_narrow),
        cmocka_unit_test(test_special),  cmocka_unit_test(test_unaligned),
        cmocka_unit_test(test_refusals),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
