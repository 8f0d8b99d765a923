/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPU a library serves that was built for some architectures: no GPU is asked. */
#include "unit.h"

#include "cuda/archs.h"

static const struct {
    struct qni_cuda_archs archs;
    const char *text;
    int32_t serves[4], refuses[6]; /* ended by 0 */
} cases[] = {
    {{5, {750, 800, 860, 890, 901}, 90},
     "sm_75, sm_80, sm_86, sm_89, sm_90a and GPUs after sm_90",
     {75, 87, 90, 120},
     {61, 70, 72}},
    /* Machine code goes up within a major version, never across one. */
    {{2, {750, 901}, 90}, "sm_75, sm_90a and GPUs after sm_90", {75, 90, 100}, {80, 86, 89, 70}},
    {{2, {750, 901}, 0}, "sm_75, sm_90a", {75, 90}, {80, 100, 120}},
    {{1, {800}, 80}, "sm_80 and GPUs after sm_80", {80, 86, 90, 120}, {75}},
    {{1, {860}, 0}, "sm_86", {86, 89}, {80, 90, 75}},
    {{1, {901}, 0}, "sm_90a", {90}, {89, 91, 100}},
    {{0, {0}, 0}, "no GPU", {0}, {75, 80, 90, 120}},
};

static void machine_code_and_ptx(void **state)
{
    char text[96];
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (int j = 0; j < 4 && cases[i].serves[j] != 0; j++)
            assert_true(qni_cuda_archs_serve(&cases[i].archs, cases[i].serves[j]));
        for (int j = 0; j < 6 && cases[i].refuses[j] != 0; j++)
            assert_false(qni_cuda_archs_serve(&cases[i].archs, cases[i].refuses[j]));
        qni_cuda_archs_text(&cases[i].archs, text, sizeof text);
        assert_string_equal(text, cases[i].text);
    }
}

static void long_lists_are_cut(void **state)
{
    char text[12];
    (void)state;
    qni_cuda_archs_text(&cases[0].archs, text, sizeof text);
    assert_string_equal(text, "sm_75, sm_8");
}

/* What cmake/cuda.cmake passed on; nothing, in a build without kernels. */
static void the_built_ones_serve_themselves(void **state)
{
    const struct qni_cuda_archs *built = &qni_cuda_archs_built;
    (void)state;
    for (int32_t i = 0; i < built->n; i++) {
        assert_in_range(built->code[i], 750, 1999);
        assert_true(qni_cuda_archs_serve(built, built->code[i] / 10));
    }
    assert_true(built->n > 0 || built->ptx == 0); /* QN_CUDA_PTX may be off */
    assert_false(qni_cuda_archs_serve(built, 61));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(machine_code_and_ptx),
        cmocka_unit_test(long_lists_are_cut),
        cmocka_unit_test(the_built_ones_serve_themselves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
