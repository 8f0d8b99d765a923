/* SPDX-License-Identifier: Apache-2.0 */
/* Facts about formats that are not public. */
#ifndef QNI_QUANT_FORMAT_H
#define QNI_QUANT_FORMAT_H

#include <quern/weights.h>

/* What round-to-nearest does where the caller left the range at its default: the named formats have
 * conventions of their own. */
qn_range qni_format_range(const qn_format *format, qn_range wanted);

/* Smallest and largest value of an integer code. */
static inline int32_t qni_code_min(const qn_format *f)
{
    return -(1 << (f->bits - 1));
}
static inline int32_t qni_code_max(const qn_format *f)
{
    return (1 << (f->bits - 1)) - 1;
}

#endif
