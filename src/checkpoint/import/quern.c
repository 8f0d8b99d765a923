/* SPDX-License-Identifier: Apache-2.0 */
/* quern's own weights, so that everything that works on a checkpoint works on a quern file as well:
 * <name>.codes with a description among the metadata (docs/formats.md). All of it is read by
 * qn_file_load_weight(); rows are cut from the whole. */
#include <stdio.h>
#include <string.h>

#include "../../base/error.h"
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

static qn_status load(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                      struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    qn_weight *whole = NULL;
    QNI_TRY(qn_file_load_weight(ctx, found->file, found->stem, &whole, err));
    const size_t groups = (size_t)(w->n * w->n_groups);
    if (whole->n_groups != w->n_groups || whole->k != w->k || first + w->n > whole->n) {
        qn_weight_destroy(whole);
        return qni_fail(err, QN_E_CORRUPT, "the file was changed since it was opened");
    }
    memcpy(w->codes, whole->codes + first * w->k, (size_t)(w->n * w->k));
    memcpy(w->scale, whole->scale + first * w->n_groups, groups * sizeof(float));
    if (w->zero != NULL && whole->zero != NULL)
        memcpy(w->zero, whole->zero + first * w->n_groups, groups * sizeof(int32_t));
    if (w->offset != NULL && whole->offset != NULL)
        memcpy(w->offset, whole->offset + first * w->n_groups, groups * sizeof(float));
    if (w->perm != NULL && whole->perm != NULL)
        memcpy(w->perm, whole->perm, (size_t)w->k * sizeof(int32_t));
    if (w->prescale != NULL && whole->prescale != NULL)
        memcpy(w->prescale, whole->prescale, (size_t)w->k * sizeof(float));
    qn_weight_destroy(whole);
    rounding->groups += w->n * w->n_groups;
    return QN_OK;
}

const struct qni_importer qni_import_quern = {
    .name = "quern",
    .parts = {".codes", ".scale", ".zero", ".offset", ".perm", ".prescale", ".table", ".unit"},
    .named = "",
    .heads = heads,
    .find = find,
    .load = load,
};
