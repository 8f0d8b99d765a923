/* SPDX-License-Identifier: Apache-2.0 */
/* Machines that are not this one: what CPUID, the operating system and its kernel answer, and the
 * instructions that may be used then. */
#include "cpu/cpuid.h"

#include <quern/context.h>

#include "unit.h"

#if defined(__x86_64__)

static int32_t asked;

static bool yes(void)
{
    asked++;
    return true;
}

static bool no(void)
{
    asked++;
    return false;
}

enum {
    AVX = 1u << 28 | 1u << 12 | 1u << 29, /* with FMA and F16C, leaf 1 ECX */
    AVX2 = 1u << 5,                       /* leaf 7 EBX */
    YMM = 0x6,
    ZMM = 0xe6,
    TILE = 0x60000
};
#define AVX512 (1u << 16 | 1u << 17 | 1u << 28 | 1u << 30 | 1u << 31)

/* Sapphire Rapids: all there is. */
static struct qni_cpuid_answers everything(void)
{
    return (struct qni_cpuid_answers){.one_ecx = AVX,
                                      .seven_ebx = AVX2 | AVX512,
                                      .seven_ecx = 1u << 1 | 1u << 11,
                                      .seven_edx = 1u << 22 | 1u << 23 | 1u << 24 | 1u << 25,
                                      .more_eax = 1u << 4 | 1u << 5,
                                      .xcr0 = ZMM | TILE,
                                      .permits_tiles = yes};
}

enum {
    AVX2_ONLY = QN_ISA_AVX2,
    BELOW_512 = AVX2_ONLY | QN_ISA_AVX_VNNI,
    BELOW_VNNI = BELOW_512 | QN_ISA_AVX512,
    BELOW_BF16 = BELOW_VNNI | QN_ISA_VNNI512,
    BELOW_TILES = BELOW_BF16 | QN_ISA_BF16_512 | QN_ISA_FP16_512,
    ALL = BELOW_TILES | QN_ISA_AMX_INT8 | QN_ISA_AMX_BF16
};

static void tiles_take_a_permission(void **state)
{
    (void)state;
    struct qni_cpuid_answers a = everything();
    asked = 0;
    assert_true(qni_cpuid_bundles(&a) == ALL);
    assert_int_equal(asked, 1);
    a.permits_tiles = no;
    assert_true(qni_cpuid_bundles(&a) == BELOW_TILES);
    assert_int_equal(asked, 2);
    a.xcr0 = ZMM; /* the operating system does not keep tiles: nobody is asked */
    assert_true(qni_cpuid_bundles(&a) == BELOW_TILES);
    a = everything();
    a.seven_edx &= ~(1u << 24);
    assert_true(qni_cpuid_bundles(&a) == BELOW_TILES);
    assert_int_equal(asked, 2);
    a = everything();
    a.seven_edx &= ~(1u << 22);
    assert_true(qni_cpuid_bundles(&a) == (ALL & ~QN_ISA_AMX_BF16));
}

/* Without one of its parts a bundle is not there, and nothing that stands on it. */
static void parts_are_missed(void **state)
{
    (void)state;
    static const struct {
        size_t field;
        uint32_t bits; /* each of them */
        uint64_t left;
    } rows[] = {
        {offsetof(struct qni_cpuid_answers, one_ecx), AVX, 0},
        {offsetof(struct qni_cpuid_answers, seven_ebx), AVX2, 0},
        {offsetof(struct qni_cpuid_answers, seven_ebx), AVX512, BELOW_512},
        {offsetof(struct qni_cpuid_answers, seven_ecx), 1u << 1 | 1u << 11, BELOW_VNNI},
        {offsetof(struct qni_cpuid_answers, more_eax), 1u << 5, BELOW_BF16},
        {offsetof(struct qni_cpuid_answers, more_eax), 1u << 4, ALL & ~QN_ISA_AVX_VNNI},
        {offsetof(struct qni_cpuid_answers, seven_edx), 1u << 23, ALL & ~QN_ISA_FP16_512},
        {offsetof(struct qni_cpuid_answers, seven_edx), 1u << 25, BELOW_TILES},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        for (int bit = 0; bit < 32; bit++) {
            if ((rows[i].bits >> bit & 1u) == 0)
                continue;
            struct qni_cpuid_answers a = everything();
            uint32_t *reg = (uint32_t *)((char *)&a + rows[i].field);
            *reg &= ~(1u << bit);
            assert_true(qni_cpuid_bundles(&a) == rows[i].left);
        }
}

/* Registers that the operating system does not save are not to be used: an old or a careful one,
 * or a CPU without AVX, which has no XGETBV. */
static void registers_are_saved(void **state)
{
    (void)state;
    struct qni_cpuid_answers a = everything();
    asked = 0;
    a.xcr0 = YMM | TILE;
    assert_true(qni_cpuid_bundles(&a) == BELOW_512);
    a.xcr0 = 0x2; /* SSE alone */
    assert_true(qni_cpuid_bundles(&a) == QN_ISA_PORTABLE);
    a.xcr0 = 0;
    assert_true(qni_cpuid_bundles(&a) == QN_ISA_PORTABLE);
    a = (struct qni_cpuid_answers){.permits_tiles = yes};
    assert_true(qni_cpuid_bundles(&a) == QN_ISA_PORTABLE);
    assert_int_equal(asked, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_take_a_permission),
        cmocka_unit_test(parts_are_missed),
        cmocka_unit_test(registers_are_saved),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}

#else

int main(void)
{
    return 0;
}

#endif
