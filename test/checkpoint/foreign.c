/* SPDX-License-Identifier: Apache-2.0 */
/* Files of other kinds are named from their first bytes, and none is read beyond them. */
#include "files.h"

#include "checkpoint/foreign.h"

static const struct {
    const char *bytes;
    size_t size;
    const char *words;
} kinds[] = {
    {"\x1c\0\0\0TFL3", 8, "TensorFlow Lite"},
    {"PK\003\004\024\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\005\0\0\0a.npy", 35, "npz"},
    {"PK\003\004\024\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0\377\377\0\0a.npy", 35, "npz"},
    {"\x80\x02\x8a\x0al\xfc", 6, "pickle"},
    {"\x1f\x8b\x08", 3, "gzip"},
    {"\xef\xbb\xbf \n<!DOCTYPE HTML>", 20, "HTML"},
    {"version https://git-lfs.github.com", 34, "LFS"},
};

/* Every beginning of each in a block of its own, which AddressSanitizer guards. */
static void kinds_are_named(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        for (size_t size = 0; size <= kinds[i].size; size++) {
            uint8_t *block = malloc(size > 0 ? size : 1);
            assert_non_null(block);
            memcpy(block, kinds[i].bytes, size);
            const char *words = qni_foreign_kind(block, size);
            if (size == kinds[i].size && (words == NULL || strstr(words, kinds[i].words) == NULL))
                fail_msg("%s: %s", kinds[i].words, words != NULL ? words : "not known");
            if (words != NULL)
                assert_non_null(strstr(words, "; ")); /* what to do */
            free(block);
        }
    }
}

static void only_the_beginning_is_read(void **state)
{
    (void)state;
    char tar[4096] = "model.safetensors";
    memcpy(tar + 257, "ustar", 5);
    assert_non_null(qni_foreign_kind((const uint8_t *)tar, sizeof tar));
    assert_non_null(qni_foreign_kind((const uint8_t *)tar, 262));
    assert_null(qni_foreign_kind((const uint8_t *)tar, 261));
    assert_null(qni_foreign_kind((const uint8_t *)"", 0));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kinds_are_named),
        cmocka_unit_test(only_the_beginning_is_read),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
