/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON reader against texts that RFC 8259 allows and forbids. Texts are copied to blocks of
 * their exact size. */
#include "files.h"

#include "checkpoint/json.h"

/* Skip the whole text; NULL or the reason. */
static const char *judge(const char *text, size_t size)
{
    struct qni_json j;
    uint8_t *copy = malloc(size > 0 ? size : 1);
    char *strings = malloc(size > 0 ? size : 1);
    assert_non_null(copy);
    assert_non_null(strings);
    memcpy(copy, text, size);
    qni_json_start(&j, copy, size, strings);
    const bool fine = qni_json_skip(&j) && qni_json_end(&j);
    assert_int_equal(fine, j.why == NULL);
    if (j.why != NULL)
        assert_true(j.why_at <= size);
    free(copy);
    free(strings);
    return j.why;
}

static void test_legal(void **state)
{
    static const char *const texts[] = {
        "{}",
        "[]",
        " \t\r\n{ } ",
        "[1]",
        "[1,2 , 3]",
        "{\"a\":1}",
        "{\"a\":{\"b\":[{}]}}",
        "\"\"",
        "\"x\\\"\\\\\\/\\b\\f\\n\\r\\t\"",
        "\"\\u0041\\u00e9\\u20AC\\ud834\\udd1e\"",
        "\"\xc3\xa9\xe2\x82\xac\xf0\x9d\x84\x9e\xef\xbf\xbf\xf4\x8f\xbf\xbf\"",
        "0",
        "-0",
        "12",
        "-1.5e+10",
        "1E5",
        "0.25",
        "true",
        "false",
        "null",
        "[true,false,null]",
        "[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]",
        "99999999999999999999999999999999999999999999999",
        "\"\x7f\"",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        const char *why = judge(texts[i], strlen(texts[i]));
        if (why != NULL)
            fail_msg("%s: %s", texts[i], why);
    }
}

static void test_illegal(void **state)
{
    static const char *const texts[] = {
        "",
        " ",
        "{",
        "}",
        "[",
        "]",
        "{]",
        "[}",
        "[1",
        "[1,",
        "[,]",
        "[,1]",
        "[1,]",
        "[1 2]",
        "{,}",
        "{\"a\"}",
        "{\"a\":}",
        "{\"a\":1,}",
        "{\"a\":1 \"b\":2}",
        "{a:1}",
        "{1:1}",
        "{'a':1}",
        "\"",
        "\"a",
        "\"\\",
        "\"\\\"",
        "\"\\x\"",
        "\"\\u\"",
        "\"\\u12\"",
        "\"\\u12g4\"",
        "\"\\ud834\"",
        "\"\\udd1e\"",
        "\"\\ud834\\u0041\"",
        "\"\\ud834x\"",
        "\"\\u0000\"",
        "\"\n\"",
        "\"\x01\"",
        "\"\x80\"",
        "\"\xc0\xaf\"",
        "\"\xc1\x81\"",
        "\"\xc3\"",
        "\"\xc3(\"",
        "\"\xe0\x80\xaf\"",
        "\"\xed\xa0\x80\"",
        "\"\xe2\x82\"",
        "\"\xf0\x80\x80\xaf\"",
        "\"\xf4\x90\x80\x80\"",
        "\"\xf5\x80\x80\x80\"",
        "\"\xfe\"",
        "01",
        "-",
        "-01",
        "+1",
        "1.",
        ".5",
        "1e",
        "1e+",
        "1.e5",
        "0x10",
        "1_000",
        "NaN",
        "Infinity",
        "-Infinity",
        "tru",
        "truE",
        "nul",
        "nulll",
        "undefined",
        "{} {}",
        "1 2",
        "[]]",
        "/*x*/{}",
        "\xef\xbb\xbf{}",
        "[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]",
    };
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (judge(texts[i], strlen(texts[i])) == NULL)
            fail_msg("accepted: %s", texts[i]);
    assert_non_null(judge("\"a\0b\"", 5));
    assert_non_null(judge("{}\0", 3));
    assert_non_null(judge("\0{}", 3));
}

static void test_integers(void **state)
{
    static const struct {
        const char *text;
        int64_t value; /* -1: refused */
    } cases[] = {
        {"0", 0},
        {"7", 7},
        {" 12", 12},
        {"9223372036854775807", INT64_MAX},
        {"9223372036854775808", -1},
        {"18446744073709551615", -1},
        {"100000000000000000000000000000000", -1},
        {"-1", -1},
        {"-0", -1},
        {"1.0", -1},
        {"1e3", -1},
        {"1E3", -1},
        {"00", -1},
        {"01", -1},
        {"", -1},
        {"true", -1},
        {"\"1\"", -1},
        {"[1]", -1},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct qni_json j;
        int64_t value = -2;
        qni_json_start(&j, cases[i].text, strlen(cases[i].text), NULL);
        const bool fine = qni_json_integer(&j, &value) && qni_json_end(&j);
        if (fine != (cases[i].value >= 0) || (fine && value != cases[i].value))
            fail_msg("%s", cases[i].text);
    }
}

/* What strings decode to, the most escapes per byte, and that the memory is always enough. */
static void test_strings(void **state)
{
    static const char text[] = "[\"\",\"a\\u00e9\\ud834\\udd1e\\n\\u0020\",\"\xe2\x82\xac\"]";
    char strings[sizeof text];
    struct qni_json j;
    const char *found[3] = {NULL, NULL, NULL};
    (void)state;
    qni_json_start(&j, text, sizeof text - 1, strings);
    assert_true(qni_json_array(&j));
    for (int i = 0; i < 3; i++) {
        assert_true(qni_json_item(&j));
        assert_true(qni_json_string(&j, &found[i]));
    }
    assert_false(qni_json_item(&j));
    assert_true(qni_json_end(&j));
    assert_string_equal(found[0], "");
    assert_string_equal(found[1], "a\xc3\xa9\xf0\x9d\x84\x9e\n ");
    assert_string_equal(found[2], "\xe2\x82\xac");
}

/* A failure is sticky and keeps its first place. */
static void test_sticky(void **state)
{
    struct qni_json j;
    char strings[16];
    const char *text = NULL;
    int64_t value = 0;
    (void)state;
    qni_json_start(&j, "[x, 1]", 6, strings);
    assert_true(qni_json_array(&j));
    assert_true(qni_json_item(&j));
    assert_false(qni_json_integer(&j, &value));
    assert_int_equal(j.why_at, 1);
    const char *why = j.why;
    assert_false(qni_json_string(&j, &text));
    assert_false(qni_json_item(&j));
    assert_false(qni_json_skip(&j));
    assert_false(qni_json_end(&j));
    assert_int_equal(qni_json_peek(&j), 0);
    assert_false(qni_json_refuse(&j, "other"));
    assert_ptr_equal(j.why, why);
    assert_int_equal(j.why_at, 1);
}

/* Every prefix of a text, and every byte of it replaced by every other, ends in an answer. */
static void test_damage(void **state)
{
    static const char text[] =
        "{\"t\":{\"dtype\":\"F32\",\"shape\":[2,3],\"x\\u00e9\":[1.5e3,null,{\"\":true}]}}";
    char copy[sizeof text];
    const size_t size = sizeof text - 1;
    int accepted = 0;
    (void)state;
    assert_null(judge(text, size));
    for (size_t i = 0; i < size; i++)
        assert_non_null(judge(text, i));
    for (size_t i = 0; i < size; i++)
        for (int c = 0; c < 256; c++) {
            memcpy(copy, text, size);
            copy[i] = (char)c;
            accepted += judge(copy, size) == NULL;
        }
    assert_in_range(accepted, size, 256 * size / 2); /* letters of names, digits */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_legal),    cmocka_unit_test(test_illegal),
        cmocka_unit_test(test_integers), cmocka_unit_test(test_strings),
        cmocka_unit_test(test_sticky),   cmocka_unit_test(test_damage),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
