/* SPDX-License-Identifier: Apache-2.0 */
/* The features of this CPU as QN_ISA_ bits. The only CPUID, the only request for AMX permission. */
#ifndef QNI_CPU_CPUID_H
#define QNI_CPU_CPUID_H

#include <stdint.h>

/* Bundles whose parts are all there (each bit implies the lower ones it builds on), that the
 * operating system saves (XGETBV) and permits (AMX: asked once; refused means absent). */
uint64_t qni_cpuid_detect(void);

#endif
