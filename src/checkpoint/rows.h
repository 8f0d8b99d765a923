/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a checkpoint's module as a canonical weight, all at once or block by block. */
#ifndef QNI_CHECKPOINT_ROWS_H
#define QNI_CHECKPOINT_ROWS_H

#include "checkpoint.h"

struct qni_module_rows {
    const struct qni_module *module;
    struct qni_found found;
    int64_t first, n; /* of the module's */
};

/* Look at module i, and at the range (n -1: all from first). @return as qn_checkpoint_load(). */
qn_status qni_module_open(const qn_checkpoint *c, int64_t i, int64_t first, int64_t n,
                          struct qni_module_rows *rows, qn_error *err);
/* Room for n of its rows. QN_E_MEMORY. */
qn_status qni_module_room(const qn_ctx *ctx, const struct qni_module_rows *rows, int64_t n,
                          struct qn_weight **weight, qn_error *err);
/* Rows [first, first + weight->n) of the range into a weight that has room for them and the
 * module's format; they are checked. Different threads may load different rows. */
qn_status qni_module_load(const qn_ctx *ctx, const struct qni_module_rows *rows, int64_t first,
                          struct qn_weight *weight, struct qni_rounding *rounding, qn_error *err);

#endif
