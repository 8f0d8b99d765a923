/* SPDX-License-Identifier: Apache-2.0 */
/* Which instruction-set bits stand on which. */
#ifndef QNI_API_ISA_H
#define QNI_API_ISA_H

#include <quern/context.h>

/* Without the bits whose foundation is missing: a mask that removes AVX2 removes AVX-512 as
 * well. */
uint64_t qni_isa_usable(uint64_t isa);

#endif
