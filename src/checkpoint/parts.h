/* SPDX-License-Identifier: Apache-2.0 */
/* The tensors that a weight is kept in: one list for writing, loading and counting. */
#ifndef QNI_CHECKPOINT_PARTS_H
#define QNI_CHECKPOINT_PARTS_H

#include "../base/size.h"
#include "../quant/canonical.h"
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
    QNI_PART_SUPER_SCALE = 8, /* [n, n_supers], in the format's type of scales */
    QNI_PART_SUPER_MIN = 9,
    QNI_PART_SUB_SCALE = 10, /* i8 or u8 [n, n_groups] */
    QNI_PART_SUB_MIN = 11,
    QNI_N_PARTS = 12
};

struct qni_part {
    qn_dtype dtype;
    int32_t rank;
    int64_t shape[2];
};

static inline const char *qni_part_suffix(int32_t i)
{
    static const char *const suffix[QNI_N_PARTS] = {
        ".codes", ".scale", ".zero",        ".offset",    ".perm",      ".prescale",
        ".table", ".unit",  ".super_scale", ".super_min", ".sub_scale", ".sub_min"};
    return suffix[i];
}

static inline int64_t qni_parts_supers(const struct qni_weight_plan *plan)
{
    return qni_ceil_div(plan->n_groups, qni_max(plan->format.superblock, 1));
}

/* False if a weight of this plan has no such part. */
static inline bool qni_part_of(const struct qni_weight_plan *plan, int32_t i, struct qni_part *part)
{
    const int64_t row = (int64_t)qni_codes_bytes((size_t)plan->k, plan->format.bits);
    const bool is_super = i >= QNI_PART_SUPER_SCALE;
    const bool has_min = plan->has_supers && qni_has_sub_min(&plan->format);
    const qn_dtype super = plan->format.scale_dtype;
    const qn_dtype sub = plan->format.shift == QN_SHIFT_NONE ? QN_I8 : QN_U8;
    const qn_dtype types[QNI_N_PARTS] = {
        QN_U8,
        plan->has_supers ? QN_DTYPE_NONE : plan->scale_dtype,
        plan->zero_dtype,
        has_min ? QN_DTYPE_NONE : plan->offset_dtype,
        plan->has_perm ? QN_I32 : QN_DTYPE_NONE,
        plan->has_prescale ? QN_F32 : QN_DTYPE_NONE,
        plan->has_table ? QN_F32 : QN_DTYPE_NONE,
        plan->scale_dtype == QN_E4M3 ? QN_F32 : QN_DTYPE_NONE,
        plan->has_supers ? super : QN_DTYPE_NONE,
        has_min ? super : QN_DTYPE_NONE,
        plan->has_supers ? sub : QN_DTYPE_NONE,
        has_min ? sub : QN_DTYPE_NONE,
    };
    part->dtype = types[i];
    part->rank = i < QNI_PART_PERM || is_super ? 2 : 1;
    part->shape[0] = part->rank == 2      ? plan->n
                     : i < QNI_PART_TABLE ? plan->k
                     : i == QNI_PART_UNIT ? 1
                                          : (int64_t)1 << plan->format.bits;
    part->shape[1] = i == QNI_PART_CODES                                    ? row
                     : i == QNI_PART_SUPER_SCALE || i == QNI_PART_SUPER_MIN ? qni_parts_supers(plan)
                     : part->rank == 2                                      ? plan->n_groups
                                                                            : 0;
    return part->dtype != QN_DTYPE_NONE;
}

#endif
