/* SPDX-License-Identifier: Apache-2.0 */
/* The features of this CPU as QN_ISA_ bits. The only CPUID, the only request for AMX permission. */
#ifndef QNI_CPU_CPUID_H
#define QNI_CPU_CPUID_H

#include <stdbool.h>
#include <stdint.h>

/* Bundles whose parts are all there (each bit implies the lower ones it builds on), that the
 * operating system saves (XGETBV) and permits (AMX: asked once; refused means absent). */
uint64_t qni_cpuid_detect(void);

#if defined(__x86_64__)
/* What CPUID (leaf and register), XGETBV and the kernel answer: tests make machines of them. */
struct qni_cpuid_answers {
    uint32_t one_ecx, seven_ebx, seven_ecx, seven_edx, more_eax; /* leaves 1, 7.0, 7.1 */
    uint64_t xcr0;               /* 0 where the operating system does not say */
    bool (*permits_tiles)(void); /* asked at most once, and only where nothing else is missing */
};
uint64_t qni_cpuid_bundles(const struct qni_cpuid_answers *a);
#endif

/* Do pairs of bf16 multiply faster in vectors (AVX-512 BF16) than f32 does? No instruction set says
 * so, only the maker: one vdpbf16ps a cycle beside one vfmadd of 512 bits on Zen 4, two beside two
 * on Zen 5; every other cycle beside two on Intel's (docs/adr/0009). */
bool qni_cpuid_bf16_is_fast(void);

#endif
