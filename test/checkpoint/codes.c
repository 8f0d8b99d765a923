/* SPDX-License-Identifier: Apache-2.0 */
/* The bit stream of codes: by hand, against a loop over single bits, and refusing dirt behind the
 * end. */
#include "files.h"

#include "checkpoint/codes.h"

static void test_by_hand(void **state)
{
    static const uint8_t codes[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    uint8_t out[8];
    (void)state;
    qni_codes_pack(codes, 8, 4, out);
    assert_memory_equal(out, "\x10\x32\x54\x76", 4);
    qni_codes_pack(codes, 8, 3, out); /* the word of GPTQ's 3-bit stream, facts of the format */
    assert_memory_equal(out, "\x88\xc6\xfa", 3);
    qni_codes_pack(codes, 3, 4, out);
    assert_memory_equal(out, "\x10\x02", 2);
    qni_codes_pack(codes, 4, 2, out);
    assert_memory_equal(out, "\xe4", 1);
    assert_int_equal(qni_codes_bytes(0, 4), 0);
    assert_int_equal(qni_codes_bytes(1, 3), 1);
    assert_int_equal(qni_codes_bytes(3, 3), 2);
    assert_int_equal(qni_codes_bytes(9, 7), 8);
    assert_int_equal(qni_codes_bytes(5, 8), 5);
}

static void test_every_length(void **state)
{
    uint64_t seed = 1;
    (void)state;
    for (int32_t bits = 1; bits <= 8; bits++)
        for (size_t k = 0; k < 70; k++) {
            const size_t bytes = qni_codes_bytes(k, bits);
            /* Exact blocks: a byte too many is an error of AddressSanitizer. */
            uint8_t *codes = malloc(k + !k), *back = malloc(k + !k), *out = malloc(bytes + !bytes);
            assert_int_equal(bytes, (k * (size_t)bits + 7) / 8);
            for (size_t i = 0; i < k; i++)
                codes[i] = (uint8_t)(draw(&seed) & ((1u << bits) - 1));
            qni_codes_pack(codes, k, bits, out);
            for (size_t bit = 0; bit < 8 * bytes; bit++) {
                const size_t i = bit / (size_t)bits, of = bit % (size_t)bits;
                assert_int_equal(out[bit / 8] >> bit % 8 & 1, i < k ? codes[i] >> of & 1 : 0);
            }
            assert_true(qni_codes_unpack(out, k, bits, back));
            assert_memory_equal(back, codes, k);
            for (size_t bit = k * (size_t)bits; bit < 8 * bytes; bit++) {
                out[bit / 8] ^= (uint8_t)(1u << bit % 8);
                assert_false(qni_codes_unpack(out, k, bits, back));
                out[bit / 8] ^= (uint8_t)(1u << bit % 8);
            }
            free(codes);
            free(back);
            free(out);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_every_length),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
