/* SPDX-License-Identifier: Apache-2.0 */
/* XXH64: published values, independence of how data are cut, and that no single bit is missed. */
#include "base/checksum.h"

#include "unit.h"

static uint64_t sum_of(const void *data, size_t bytes)
{
    struct qni_checksum sum;
    qni_checksum_start(&sum);
    qni_checksum_add(&sum, data, bytes);
    return qni_checksum_end(&sum);
}

/* From the documentation of the xxhash packages. */
static void published_values(void **state)
{
    (void)state;
    static const char text[] = "Nobody inspects the spammish repetition";
    uint8_t all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (uint8_t)i;
    assert_true(sum_of(NULL, 0) == 0xef46db3751d8e999u);
    assert_true(sum_of("a", 1) == 0xd24ec4f1a98c6e5bu);
    assert_true(sum_of("abc", 3) == 0x44bc2cf5ad770999u);
    assert_true(sum_of(text, strlen(text)) == 0xfbcea83c8a378bf1u);
    assert_true(sum_of(all, 256) == 0x1facbe8406cd904bu);
}

static void pieces_change_nothing(void **state)
{
    (void)state;
    uint8_t data[150];
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (uint8_t)(i * 37 + 11);
    for (size_t bytes = 0; bytes <= sizeof data; bytes++)
        for (size_t piece = 1; piece <= 67; piece += 3) {
            struct qni_checksum sum;
            qni_checksum_start(&sum);
            for (size_t at = 0; at < bytes; at += piece)
                qni_checksum_add(&sum, data + at, bytes - at < piece ? bytes - at : piece);
            assert_true(qni_checksum_end(&sum) == sum_of(data, bytes));
        }
}

static void every_bit_counts(void **state)
{
    (void)state;
    uint8_t data[77] = {0};
    for (size_t bytes = 1; bytes <= sizeof data; bytes++) {
        const uint64_t whole = sum_of(data, bytes);
        for (size_t bit = 0; bit < 8 * bytes; bit++) {
            data[bit / 8] ^= (uint8_t)(1u << bit % 8);
            assert_true(sum_of(data, bytes) != whole);
            data[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
        assert_true(sum_of(data, bytes - 1) != whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_values),
        cmocka_unit_test(pieces_change_nothing),
        cmocka_unit_test(every_bit_counts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
