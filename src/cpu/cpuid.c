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

static bool has(const struct leaf *l, int reg, int bit)
{
    return (l->r[reg] >> bit & 1u) != 0;
}

/* Only where CPUID says OSXSAVE. */
static uint64_t read_xcr0(void)
{
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool tiles_permitted(void)
{
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM of asm/prctl.h */
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

uint64_t qni_cpuid_detect(void)
{
    const struct leaf one = leaf_of(1, 0), seven = leaf_of(7, 0);
    const struct leaf more = seven.r[EAX] >= 1 ? leaf_of(7, 1) : (struct leaf){{0, 0, 0, 0}};
    const uint64_t xcr0 = has(&one, ECX, 27) ? read_xcr0() : 0; /* OSXSAVE */
    uint64_t isa = 0;

    const bool avx2 = (xcr0 & XCR0_YMM) == XCR0_YMM && has(&one, ECX, 28) /* AVX */ &&
                      has(&one, ECX, 12) /* FMA */ && has(&one, ECX, 29) /* F16C */ &&
                      has(&seven, EBX, 5) /* AVX2 */;
    if (!avx2)
        return 0;
    isa |= QN_ISA_AVX2;
    if (has(&more, EAX, 4))
        isa |= QN_ISA_AVX_VNNI;

    const bool avx512 = (xcr0 & XCR0_ZMM) == XCR0_ZMM && has(&seven, EBX, 16) /* F */ &&
                        has(&seven, EBX, 17) /* DQ */ && has(&seven, EBX, 28) /* CD */ &&
                        has(&seven, EBX, 30) /* BW */ && has(&seven, EBX, 31) /* VL */;
    if (!avx512)
        return isa;
    isa |= QN_ISA_AVX512;
    if (!has(&seven, ECX, 1) /* VBMI */ || !has(&seven, ECX, 11) /* VNNI */)
        return isa;
    isa |= QN_ISA_VNNI512;
    if (!has(&more, EAX, 5)) /* AVX512_BF16 */
        return isa;
    isa |= QN_ISA_BF16_512;
    if (has(&seven, EDX, 23))
        isa |= QN_ISA_FP16_512;

    const bool tiles = (xcr0 & XCR0_TILE) == XCR0_TILE && has(&seven, EDX, 24) /* AMX-TILE */;
    if (!tiles || !has(&seven, EDX, 25) /* AMX-INT8 */ || !tiles_permitted())
        return isa;
    isa |= QN_ISA_AMX_INT8;
    if (has(&seven, EDX, 22))
        isa |= QN_ISA_AMX_BF16;
    return isa;
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
