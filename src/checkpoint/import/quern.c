/* SPDX-License-Identifier: Apache-2.0 */
/* quern's own weights, so that everything that works on a checkpoint works on a quern file as well:
 * <name>.codes with a description among the metadata (docs/formats.md). load.c reads the rows and
 * columns that are asked for. */
#include <stdio.h>
#include <string.h>

#include "../../base/error.h"
#include "../cut.h"
#include "../file.h"
#include "import.h"

enum { MOST_KEY = QNI_STEM + 32 };

static bool heads(const qn_checkpoint *c, const struct qni_tensor *head, const char *stem)
{
    char key[MOST_KEY];
    const qn_file *file = qni_checkpoint_file_of(c, head->name);
    snprintf(key, sizeof key, QNI_WEIGHT_KEY "%s", stem);
    return file != NULL && qn_file_get_metadata(file, key) != NULL;
}

static qn_status find(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                      qn_error *err)
{
    struct qni_tensor part;
    found->file = qni_checkpoint_file_of(c, found->part[0].name);
    QNI_TRY(qn_file_weight_info(found->file, stem, &found->parts, NULL, err));
    snprintf(found->stem, sizeof found->stem, "%s", stem);
    found->has_perm = qni_checkpoint_part(c, stem, ".perm", &part);
    found->has_prescale = qni_checkpoint_part(c, stem, ".prescale", &part);
    found->has_supers = qni_checkpoint_part(c, stem, ".super_scale", &part);
    found->role = found->parts.kh * found->parts.kw > 1 || found->parts.conv_groups > 1
                      ? QN_ROLE_CONV
                      : QN_ROLE_LINEAR;
    if (found->parts.format.code == QN_CODE_TABLE && qni_checkpoint_part(c, stem, ".table", &part))
        memcpy(found->table, part.data,
               part.bytes < sizeof found->table ? part.bytes : sizeof found->table);
    qni_note(&found->notes, "format: the description among the metadata, quern.weight.%s", stem);
    qni_note(&found->notes, "exact");
    return QN_OK;
}

/* Both levels of the scales, where the weight has them. */
static void copy_levels(struct qn_weight *w, const struct qn_weight *part)
{
    const size_t groups = (size_t)(w->n * w->n_groups), supers = (size_t)(w->n * w->n_supers);
    if (w->super_scale == NULL || part->super_scale == NULL)
        return;
    memcpy(w->super_scale, part->super_scale, supers * sizeof(float));
    memcpy(w->sub_scale, part->sub_scale, groups * sizeof(int16_t));
    if (w->super_min == NULL || part->super_min == NULL)
        return;
    memcpy(w->super_min, part->super_min, supers * sizeof(float));
    memcpy(w->sub_min, part->sub_min, groups * sizeof(int16_t));
}

static qn_status load(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                      struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    const qn_rectangle range = {first, w->n, found->first_k, w->k};
    qn_weight *part = NULL;
    if (w->n == 0)
        return QN_OK;
    QNI_TRY(qni_file_load_range(ctx, found->file, found->stem, &range, &part, err));
    const size_t groups = (size_t)(w->n * w->n_groups);
    if (part->n_groups != w->n_groups || part->k != w->k || part->n != w->n) {
        qn_weight_destroy(part);
        return qni_fail(err, QN_E_CORRUPT, "the file was changed since it was opened");
    }
    memcpy(w->codes, part->codes, (size_t)w->n * qni_code_row_bytes(w));
    memcpy(w->scale, part->scale, groups * sizeof(float));
    if (w->zero != NULL && part->zero != NULL)
        memcpy(w->zero, part->zero, groups * sizeof(int32_t));
    if (w->offset != NULL && part->offset != NULL)
        memcpy(w->offset, part->offset, groups * sizeof(float));
    if (w->perm != NULL && part->perm != NULL)
        memcpy(w->perm, part->perm, (size_t)w->k * sizeof(int32_t));
    if (w->prescale != NULL && part->prescale != NULL)
        memcpy(w->prescale, part->prescale, (size_t)w->k * sizeof(float));
    copy_levels(w, part);
    qn_weight_destroy(part);
    rounding->groups += w->n * w->n_groups;
    return QN_OK;
}

const struct qni_importer qni_import_quern = {
    .name = "quern",
    .parts = {".codes", ".scale", ".zero", ".offset", ".perm", ".prescale", ".table", ".unit",
              ".super_scale", ".super_min", ".sub_scale", ".sub_min"},
    .named = "",
    .heads = heads,
    .find = find,
    .load = load,
};
