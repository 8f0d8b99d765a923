/* SPDX-License-Identifier: Apache-2.0 */
/* The language of weight formats: what is read, what is refused and with which words, and that
 * printing and reading are inverses over every format there is. */
#include <stdio.h>

#include <quern/weights.h>

#include "unit.h"

static void assert_format(const char *text, qn_code code, int32_t bits, int64_t group,
                          qn_blocks blocks, qn_shift shift, qn_dtype scale)
{
    qn_format f;
    qn_error err;
    if (qn_format_parse(text, &f, &err) != QN_OK)
        fail_msg("%s", err.text);
    assert_int_equal(f.code, code);
    assert_int_equal(f.bits, bits);
    assert_int_equal(f.group, group);
    assert_int_equal(f.blocks, blocks);
    assert_int_equal(f.shift, shift);
    assert_int_equal(f.scale_dtype, scale);
}

#define RUN  QN_BLOCKS_RUN
#define NONE QN_SHIFT_NONE
#define OFF  QN_SHIFT_OFFSET
#define PC   QN_GROUP_PER_CHANNEL

static void formats_are_read(void **state)
{
    (void)state;
    assert_format("int4:g128", QN_CODE_INT, 4, 128, RUN, NONE, QN_F32);
    assert_format("int4:g128:zp", QN_CODE_INT, 4, 128, RUN, QN_SHIFT_ZERO, QN_F32);
    assert_format("int4:g64:off", QN_CODE_INT, 4, 64, RUN, OFF, QN_F32);
    assert_format("int8:pc", QN_CODE_INT, 8, PC, RUN, NONE, QN_F32);
    assert_format("int8:pt", QN_CODE_INT, 8, QN_GROUP_PER_TENSOR, RUN, NONE, QN_F32);
    assert_format("int3:g32", QN_CODE_INT, 3, 32, RUN, NONE, QN_F32);
    assert_format("int4:c64", QN_CODE_INT, 4, 64, QN_BLOCKS_CHANNELS, NONE, QN_F32);
    assert_format("nf4:g64", QN_CODE_NF4, 4, 64, RUN, NONE, QN_F32);
    assert_format("fp8:pc", QN_CODE_E4M3, 8, PC, RUN, NONE, QN_F32);
    assert_format("e2m1:g32:e8m0", QN_CODE_E2M1, 4, 32, RUN, NONE, QN_E8M0);
    assert_format("int4:g32:off:f16", QN_CODE_INT, 4, 32, RUN, OFF, QN_F16);
    assert_format("int4:f16:off:g32", QN_CODE_INT, 4, 32, RUN, OFF, QN_F16);
    assert_format("INT4:G128:ZP", QN_CODE_INT, 4, 128, RUN, QN_SHIFT_ZERO, QN_F32);
    assert_format("table3:g7:bf16", QN_CODE_TABLE, 3, 7, RUN, NONE, QN_BF16);
    assert_format("iq4nl:g64", QN_CODE_IQ4_NL, 4, 64, RUN, NONE, QN_F32);
    assert_format("q4_0", QN_CODE_INT, 4, 32, RUN, NONE, QN_F16);
    assert_format("Q8_0", QN_CODE_INT, 8, 32, RUN, NONE, QN_F16);
    assert_format("q5_1", QN_CODE_INT, 5, 32, RUN, QN_SHIFT_MIN, QN_F16);
    assert_format("int3:min:pc", QN_CODE_INT, 3, PC, RUN, QN_SHIFT_MIN, QN_F32);
    assert_format("mxfp4", QN_CODE_E2M1, 4, 32, RUN, NONE, QN_E8M0);
    assert_format("nvfp4", QN_CODE_E2M1, 4, 16, RUN, NONE, QN_E4M3);
    assert_format("int2:g2147483647", QN_CODE_INT, 2, INT32_MAX, RUN, NONE, QN_F32);

    qn_format f;
    assert_int_equal(qn_format_parse("q6_k", &f, NULL), QN_OK);
    assert_int_equal(f.group, 16);
    assert_int_equal(f.superblock, 16);
    assert_int_equal(f.superbits, 8);
    assert_int_equal(qn_format_parse("int4:g32:min:f16:s8x6", &f, NULL), QN_OK);
    char text[64];
    qn_format_print(&f, text, sizeof text);
    assert_string_equal(text, "q4_k");
}

/* The words of a failure: what is wrong, and what would be right. */
static void assert_refused(const char *text, const char *wrong, const char *possible)
{
    qn_format f = {0};
    qn_error err = {QN_OK, 0, ""};
    assert_int_equal(qn_format_parse(text, &f, &err), QN_E_FORMAT);
    assert_int_equal(err.status, QN_E_FORMAT);
    assert_int_equal(f.code, 0);
    if (strstr(err.text, wrong) == NULL || strstr(err.text, possible) == NULL)
        fail_msg("\"%s\" is answered with: %s", text, err.text);
    assert_int_equal(qn_format_parse(text, &f, NULL), QN_E_FORMAT);
}

static void wrong_formats_are_named(void **state)
{
    (void)state;
    assert_refused("", "\"\" is no kind", "nf4");
    assert_refused("int", "\"int\"", "int2 to int8");
    assert_refused("int1:g32", "\"int1\"", "int2 to int8");
    assert_refused("int9:g32", "\"int9\"", "int2 to int8");
    assert_refused("int44:g32", "\"int44\"", "int2 to int8");
    assert_refused("int4x:g32", "\"int4x\"", "int2 to int8");
    assert_refused("q4_2", "\"q4_2\"", "q4_0 q4_1");
    assert_refused("q4_0:g64", "\"g64\"", "the name alone");
    assert_refused("int4", "missing", ":g128");
    assert_refused("int4:zp", "missing", ":pc");
    assert_refused("int4:g0", "\"g0\"", "g<n>");
    assert_refused("int4:g", "\"g\"", "g<n>");
    assert_refused("int4:g-1", "\"g-1\"", "g<n>");
    assert_refused("int4:g1e3", "\"g1e3\"", "g<n>");
    assert_refused("int4:g2147483648", "\"g2147483648\"", "g<n>");
    assert_refused("int4:g99999999999999999999", "\"g9999", "g<n>");
    assert_refused("int4:g128:zpp", "\"zpp\"", "zp, off");
    assert_refused("int4:g128:", "\"\"", "zp, off");
    assert_refused("int4::g128", "\"\"", "g<n>");
    assert_refused("int4:g128:pc", "\"pc\" says a second time", "");
    assert_refused("int4:g128:zp:off", "\"off\" says a second time", "");
    assert_refused("int4:g128:f16:bf16", "\"bf16\" says a second time", "");
    assert_refused("int4:g128:i8", "\"i8\"", "f32, f16, bf16, e8m0, e4m3");
    assert_refused("int4:g32:s8", "\"s8\"", "s<groups>x<bits>");
    assert_refused("int4:g32:s8x9", "\"s8x9\"", "s<groups>x<bits>");
    assert_refused("nf4:g64:zp", "only integer codes have a zero point", "");
    assert_refused("int4:g32:off:e8m0", "an offset cannot be of type e8m0", "f16");
    assert_refused("int4:pc:s8x6", "super-blocks hold groups", "g32");
    assert_refused("nf4:g64:min", "only integer codes have a minimum", "offsets");
    assert_refused("int4:g32:min:e8m0", "an offset cannot be of type e8m0", "f16");
    assert_refused("int4:g32:zp:s8x6", "offsets, not zero points", "");
    assert_refused("int4:g32:e8m0:s8x6", "common scale", "f16");
    assert_refused("int4:g128 ", "\"g128 \"", "g<n>");
    qn_format f;
    qn_error err;
    assert_int_equal(qn_format_parse(NULL, &f, NULL), QN_E_FORMAT);
    assert_int_equal(qn_format_parse(NULL, &f, &err), QN_E_FORMAT);
    assert_string_equal(err.text, "text is NULL");
    assert_int_equal(qn_format_parse("int4:g32", NULL, &err), QN_E_FORMAT);
    assert_string_equal(err.text, "format is NULL");
    char endless[4096];
    memset(endless, 'x', sizeof endless);
    endless[sizeof endless - 1] = 0;
    assert_int_equal(qn_format_parse(endless, &f, NULL), QN_E_FORMAT);
    assert_int_equal(qn_format_parse(endless, &f, &err), QN_E_FORMAT);
}

static void names_are_listed(void **state)
{
    (void)state;
    static const char *const names[] = {"q4_0",  "q4_1",  "q5_0", "q5_1", "q8_0",   "q2_k",
                                        "q3_k",  "q4_k",  "q5_k", "q6_k", "iq4_nl", "iq4_xs",
                                        "mxfp4", "nvfp4", "f32",  "f16",  "bf16"};
    for (int32_t i = 0; i < 17; i++) {
        qn_format f;
        char text[16];
        assert_string_equal(qn_format_name(i), names[i]);
        assert_int_equal(qn_format_parse(names[i], &f, NULL), QN_OK);
        assert_int_equal(qn_format_print(&f, text, sizeof text), strlen(names[i]));
        assert_string_equal(text, names[i]);
    }
    assert_null(qn_format_name(17));
    assert_null(qn_format_name(-1));
}

static void assert_equal_formats(const qn_format *a, const qn_format *b)
{
    assert_int_equal(a->code, b->code);
    assert_int_equal(a->bits, b->bits);
    assert_int_equal(a->group, b->group);
    assert_int_equal(a->blocks, b->blocks);
    assert_int_equal(a->shift, b->shift);
    assert_int_equal(a->scale_dtype, b->scale_dtype);
    assert_int_equal(a->superblock, b->superblock);
    assert_int_equal(a->superbits, b->superbits);
}

/* Every combination of a few values of every field: whatever the check accepts, comes back. */
static void printing_and_reading_are_inverses(void **state)
{
    (void)state;
    static const int64_t groups[] = {1, 16, 32, 100, INT32_MAX, -1, -2, 0, -3};
    static const qn_dtype types[] = {QN_F32, QN_F16, QN_BF16, QN_E8M0, QN_E4M3, QN_I8};
    static const int32_t supers[][2] = {{0, 0}, {8, 6}, {16, 8}, {1024, 2}, {8, 0}, {1025, 6}};
    int accepted = 0, refused = 0;
    for (qn_code code = 0; code <= 7; code++)
        for (int32_t bits = 1; bits <= 9; bits++)
            for (int i = 0; i < 9 * 2 * 3 * 6 * 6; i++) {
                const int32_t *super = supers[i / 324];
                const qn_format f = {code,      bits,       groups[i % 9],
                                     i / 9 % 2, i / 18 % 3, types[i / 54 % 6],
                                     super[0],  super[1],   0};
                qn_format back;
                char text[64], cut[5];
                const size_t length = qn_format_print(&f, text, sizeof text);
                assert_int_equal(length, strlen(text));
                if (qn_format_check(&f, NULL) != QN_OK) {
                    assert_string_equal(text, "?");
                    refused++;
                    continue;
                }
                assert_int_equal(qn_format_parse(text, &back, NULL), QN_OK);
                assert_equal_formats(&f, &back);
                assert_int_equal(qn_format_print(&f, cut, sizeof cut), length);
                assert_int_equal(strlen(cut), 4);
                assert_int_equal(qn_format_print(&f, NULL, 0), length);
                assert_int_equal(qn_format_print(&f, NULL, sizeof text), length);
                accepted++;
            }
    assert_true(accepted > 1000 && refused > 1000);
}

static void reserved_fields_are_0(void **state)
{
    (void)state;
    qn_format f;
    qn_error err;
    char text[16];
    assert_int_equal(qn_format_parse("int4:g32", &f, NULL), QN_OK);
    f.reserved = 1;
    assert_int_equal(qn_format_check(&f, &err), QN_E_ARGUMENT);
    assert_string_equal(err.text, "format.reserved is not 0");
    assert_int_equal(qn_format_print(&f, text, sizeof text), 1);
    assert_string_equal(text, "?");
    assert_int_equal(qn_format_groups(&f, 64, 64), 0);
}

static void groups_are_counted(void **state)
{
    (void)state;
    qn_format f = {QN_CODE_INT, 4, 32, RUN, NONE, QN_F32, 0, 0, 0};
    assert_int_equal(qn_format_groups(&f, 64, 64), 2);
    assert_int_equal(qn_format_groups(&f, 65, 65), 3);
    assert_int_equal(qn_format_groups(&f, 0, 0), 0);
    assert_int_equal(qn_format_groups(&f, 9 * 20, 20), 6);
    f.blocks = QN_BLOCKS_CHANNELS;
    assert_int_equal(qn_format_groups(&f, 9 * 33, 33), 2);
    assert_int_equal(qn_format_groups(&f, 9 * 33, 32), 0);
    f.blocks = RUN;
    f.group = PC;
    assert_int_equal(qn_format_groups(&f, 100, 100), 1);
    f.group = QN_GROUP_PER_TENSOR;
    assert_int_equal(qn_format_groups(&f, 100, 100), 1);
    f.group = 0;
    assert_int_equal(qn_format_groups(&f, 100, 100), 0);
    f.group = 4;
    assert_int_equal(qn_format_groups(&f, -1, 100), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_are_read),
        cmocka_unit_test(wrong_formats_are_named),
        cmocka_unit_test(names_are_listed),
        cmocka_unit_test(printing_and_reading_are_inverses),
        cmocka_unit_test(reserved_fields_are_0),
        cmocka_unit_test(groups_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
