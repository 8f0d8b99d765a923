/* SPDX-License-Identifier: Apache-2.0 */
/* A smaller machine: linked with --wrap=qni_cpuid_detect, so that a test program and the library in
 * it see those features only that QUERN_ISA leaves. The library itself reads no environment. */
#include <stdlib.h>

#include <quern/context.h>

#include "cpu/cpuid.h"

uint64_t __real_qni_cpuid_detect(void);
uint64_t __wrap_qni_cpuid_detect(void);

uint64_t __wrap_qni_cpuid_detect(void)
{
    const char *names = getenv("QUERN_ISA");
    uint64_t mask = QN_ISA_ALL;
    if (names != NULL && names[0] != '\0' && qn_isa_parse(names, &mask, NULL) != QN_OK)
        abort(); /* not a test of something else than was asked for */
    return __real_qni_cpuid_detect() & mask;
}
