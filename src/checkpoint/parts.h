/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors that a weight is kept in: one list for writing, loading and counting. */
#ifndef QNI_CHECKPOINT_PARTS_H
#define QNI_CHECKPOINT_PARTS_H

#include "codes.h"
#include "writer.h"

enum {
    QNI_PART_CODES = 0, /* u8 [n, bytes of a row] */
    QNI_PART_SCALE = 1, /* [n, n_groups] */
    QNI_PART_ZERO = 2,
    QNI_PART_OFFSET = 3,
    QNI_PART_PERM = 4,     /* i32 [k] */
    QNI_PART_PRESCALE = 5, /* f32 [k] */
    QNI_PART_TABLE = 6,    /* f32 [2^bits], where the table is the caller's */
    QNI_PART_UNIT = 7,     /* f32 [1], with scales in E4M3: what all of them are multiplied with */
    QNI_N_PARTS = 8
};

struct qni_part {
    qn_dtype dtype;
    int32_t rank;
    int64_t shape[2];
};

static inline const char *qni_part_suffix(int32_t i)
{
    static const char *const suffix[QNI_N_PARTS] = {".codes", ".scale",    ".zero",  ".offset",
                                                    ".perm",  ".prescale", ".table", ".unit"};
    return suffix[i];
}

/* False if a weight of this plan has no such part. */
static inline bool qni_part_of(const struct qni_weight_plan *plan, int32_t i, struct qni_part *part)
{
    const int64_t row = (int64_t)qni_codes_bytes((size_t)plan->k, plan->format.bits);
    const qn_dtype types[QNI_N_PARTS] = {
        QN_U8,
        plan->scale_dtype,
        plan->zero_dtype,
        plan->offset_dtype,
        plan->has_perm ? QN_I32 : QN_DTYPE_NONE,
        plan->has_prescale ? QN_F32 : QN_DTYPE_NONE,
        plan->has_table ? QN_F32 : QN_DTYPE_NONE,
        plan->scale_dtype == QN_E4M3 ? QN_F32 : QN_DTYPE_NONE,
    };
    part->dtype = types[i];
    part->rank = i < QNI_PART_PERM ? 2 : 1;
    part->shape[0] = i < QNI_PART_PERM    ? plan->n
                     : i < QNI_PART_TABLE ? plan->k
                     : i == QNI_PART_UNIT ? 1
                                          : (int64_t)1 << plan->format.bits;
    part->shape[1] = i == QNI_PART_CODES ? row : i < QNI_PART_PERM ? plan->n_groups : 0;
    return part->dtype != QN_DTYPE_NONE;
}

#endif
