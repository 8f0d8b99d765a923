/* SPDX-License-Identifier: Apache-2.0 */
/* Choosing row functions: rows.h. */
#include "rows.h"

#define QNI_ROWS(isa, needs) &qni_rows_##isa,
static const struct qni_rows *const instances[] = {
#include "isa.inc"
};
#undef QNI_ROWS

const struct qni_rows *qni_rows_at(int32_t i)
{
    const int32_t n = (int32_t)(sizeof instances / sizeof *instances);
    return i >= 0 && i < n ? instances[i] : NULL;
}

const struct qni_rows *qni_rows_for(uint64_t isa)
{
    int32_t i = 0;
    while ((instances[i]->needs & ~isa) != 0) /* the last one needs nothing */
        i++;
    return instances[i];
}
