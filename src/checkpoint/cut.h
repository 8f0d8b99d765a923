/* SPDX-License-Identifier: Apache-2.0 */
/* A module of a checkpoint cut along k, before it is loaded: tensors become views, or copies of the
 * bytes that are asked for, so that the rest of the file is not touched. */
#ifndef QNI_CHECKPOINT_CUT_H
#define QNI_CHECKPOINT_CUT_H

#include "../base/context.h"
#include "import/import.h"

/* The copies that a cut module's tensors lie in. */
struct qni_copies {
    struct qni_allocator allocator;
    uint8_t *copy[QNI_MOST_PARTS];
    size_t bytes[QNI_MOST_PARTS];
    int64_t first; /* where the rows that were asked for begin in the cut module */
};

/* found becomes the range of itself, with all its other rows where these cannot be told apart.
 * *is_cut: false: the format's tensors, or this place, cannot be cut along k, and found is as it
 * was. cut begins as zeros. After a failure, and after loading: qni_cut_free().
 * @return QN_OK; QN_E_MEMORY. */
qn_status qni_cut_module(const struct qni_allocator *allocator, const struct qni_importer *importer,
                         const qn_rectangle *range, struct qni_found *found, struct qni_copies *cut,
                         bool *is_cut, qn_error *err);
void qni_cut_free(struct qni_copies *cut);

/* Do columns [first_k, first_k + k) begin and end at whole bytes of codes and whole groups? */
bool qni_file_can_cut(const struct qni_found *found, int64_t first_k, int64_t k);
/* As qn_file_load_weight(), of a range. NULL: all of it. */
qn_status qni_file_load_range(const qn_ctx *ctx, const qn_file *file, const char *name,
                              const qn_rectangle *range, qn_weight **weight, qn_error *err);

#endif
