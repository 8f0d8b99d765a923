/* SPDX-License-Identifier: Apache-2.0 */
/* What this CPU can do, as QN_ISA_ bits. A bundle is reported when all its instructions are there,
 * the operating system saves their registers (XCR0), and the bundles below it are there too. AMX
 * needs one thing more on Linux: a process must ask for the 8 KiB of tile state before it uses
 * them, once, and may be refused. Asking again is harmless, so nothing is remembered here. */
#if defined(__linux__)
#define _GNU_SOURCE /* syscall() */
#endif
#include "cpuid.h"

#include <quern/context.h>

#include "../base/compiler.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif
#if defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

#if defined(__x86_64__)

enum { EAX = 0, EBX = 1, ECX = 2, EDX = 3 };
enum { XCR0_YMM = 0x6, XCR0_ZMM = 0xe6, XCR0_TILE = 0x60000 };

struct leaf {
    uint32_t r[4];
};

static struct leaf leaf_of(uint32_t leaf, uint32_t subleaf)
{
    struct leaf l = {{0, 0, 0, 0}};
    if (!__get_cpuid_count(leaf, subleaf, &l.r[EAX], &l.r[EBX], &l.r[ECX], &l.r[EDX]))
        l = (struct leaf){{0, 0, 0, 0}};
    return l;
}

static bool has(uint32_t reg, int bit)
{
    return (reg >> bit & 1u) != 0;
}

/* Only where CPUID says OSXSAVE. */
static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool permits_tiles(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM of asm/prctl.h */
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

QNI_SMALL uint64_t qni_cpuid_bundles(const struct qni_cpuid_answers *a)
{
    uint64_t isa = 0;
    const bool avx2 = (a->xcr0 & XCR0_YMM) == XCR0_YMM && has(a->one_ecx, 28) /* AVX */ &&
                      has(a->one_ecx, 12) /* FMA */ && has(a->one_ecx, 29) /* F16C */ &&
                      has(a->seven_ebx, 5) /* AVX2 */;
    if (!avx2)
        return 0;
    isa |= QN_ISA_AVX2;
    if (has(a->more_eax, 4))
        isa |= QN_ISA_AVX_VNNI;

    const bool avx512 = (a->xcr0 & XCR0_ZMM) == XCR0_ZMM && has(a->seven_ebx, 16) /* F */ &&
                        has(a->seven_ebx, 17) /* DQ */ && has(a->seven_ebx, 28) /* CD */ &&
                        has(a->seven_ebx, 30) /* BW */ && has(a->seven_ebx, 31) /* VL */;
    if (!avx512)
        return isa;
    isa |= QN_ISA_AVX512;
    if (!has(a->seven_ecx, 1) /* VBMI */ || !has(a->seven_ecx, 11) /* VNNI */)
        return isa;
    isa |= QN_ISA_VNNI512;
    if (!has(a->more_eax, 5)) /* AVX512_BF16 */
        return isa;
    isa |= QN_ISA_BF16_512;
    if (has(a->seven_edx, 23))
        isa |= QN_ISA_FP16_512;

    const bool tiles = (a->xcr0 & XCR0_TILE) == XCR0_TILE && has(a->seven_edx, 24) /* AMX-TILE */;
    if (!tiles || !has(a->seven_edx, 25) /* AMX-INT8 */ || !a->permits_tiles())
        return isa;
    isa |= QN_ISA_AMX_INT8;
    if (has(a->seven_edx, 22))
        isa |= QN_ISA_AMX_BF16;
    return isa;
}

uint64_t qni_cpuid_detect(void)
{
    const struct leaf one = leaf_of(1, 0), seven = leaf_of(7, 0);
    const struct qni_cpuid_answers answers = {
        .one_ecx = one.r[ECX],
        .seven_ebx = seven.r[EBX],
        .seven_ecx = seven.r[ECX],
        .seven_edx = seven.r[EDX],
        .more_eax = seven.r[EAX] >= 1 ? leaf_of(7, 1).r[EAX] : 0,
        .xcr0 = has(one.r[ECX], 27) ? read_xcr0() : 0, /* OSXSAVE */
        .permits_tiles = permits_tiles,
    };
    return qni_cpuid_bundles(&answers);
}

bool qni_cpuid_bf16_is_fast(void)
{
    const struct leaf zero = leaf_of(0, 0); /* "AuthenticAMD" */
    return zero.r[EBX] == 0x68747541u && zero.r[EDX] == 0x69746e65u && zero.r[ECX] == 0x444d4163u;
}

#elif defined(__aarch64__)

uint64_t qni_cpuid_detect(void)
{
    uint64_t isa = QN_ISA_NEON; /* part of every Armv8-A */
#if defined(__linux__)
    /* Linux's bits, by number: older headers lack the names. */
    const unsigned long first = getauxval(AT_HWCAP), second = getauxval(AT_HWCAP2);
    if ((first >> 20 & 1) != 0) { /* ASIMDDP */
        isa |= QN_ISA_DOTPROD;
        if ((second >> 13 & 1) != 0)
            isa |= QN_ISA_I8MM;
    }
#endif
    return isa;
}

#else

uint64_t qni_cpuid_detect(void)
{
    return QN_ISA_PORTABLE;
}

#endif

#if !defined(__x86_64__)
bool qni_cpuid_bf16_is_fast(void)
{
    return false;
}
#endif
