/* SPDX-License-Identifier: Apache-2.0 */
/* qn_combine_rows() on the CPU. */
#ifndef QNI_CPU_ROWS_COMBINE_ROWS_H
#define QNI_CPU_ROWS_COMBINE_ROWS_H

#include <quern/ops.h>

#include "../../base/context.h"

/* Arguments are checked. */
void qni_rows_combine(const qn_ctx *ctx, const qn_combine_rows_args *args);

#endif
