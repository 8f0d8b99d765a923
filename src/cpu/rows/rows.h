/* SPDX-License-Identifier: Apache-2.0 */
/* The row functions of a machine: the first instance of isa.inc whose instructions may be used. */
#ifndef QNI_CPU_ROWS_ROWS_H
#define QNI_CPU_ROWS_ROWS_H

#include "kernel.h"

const struct qni_rows *qni_rows_for(uint64_t isa);
/* The i-th instance; NULL past the end. */
const struct qni_rows *qni_rows_at(int32_t i);

#endif
