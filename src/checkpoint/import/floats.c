/* SPDX-License-Identifier: Apache-2.0 */
/* Matrices that are not quantized, f32, f16 or bf16 [N, K], as weights of the formats of these
 * names: the same bits. In a graph they may lie as [K, N]. No importer of the list: modules stay
 * plain tensors, which qn_checkpoint_load() makes weights of where somebody asks. */
#include <string.h>

#include "import.h"

enum { IS_TURNED }; /* found->fact: 1: it lies as [K, N] */

bool qni_import_find_floats(struct qni_found *found)
{
    const struct qni_tensor *const t = &found->part[0];
    const struct qni_link *const link = found->link;
    const bool is_matrix = t->rank == 2 && t->data != NULL && t->shape[0] > 0 && t->shape[1] > 0;
    if (!is_matrix || !qni_import_is_float(t->dtype) || found->role == QN_ROLE_CONV)
        return false;
    const bool is_turned = link != NULL && !link->is_rows && found->role == QN_ROLE_LINEAR;
    found->fact[IS_TURNED] = is_turned;
    found->parts.n = t->shape[is_turned];
    found->parts.k = t->shape[!is_turned];
    return qn_format_parse(qn_dtype_name(t->dtype), &found->parts.format, NULL) == QN_OK;
}

static void take_row(const void *arg, int64_t row, struct qni_rounding *rounding)
{
    const struct qni_source *const x = arg;
    const struct qni_tensor *const t = &x->f->part[0];
    const size_t each = qn_dtype_bytes(t->dtype), k = (size_t)x->w->k;
    const size_t at = (size_t)(x->first + row), n = (size_t)t->shape[1];
    uint8_t *const to = x->w->codes + (size_t)row * k * each;
    for (int64_t g = 0; g < x->w->n_groups; g++)
        x->w->scale[row * x->w->n_groups + g] = 1.0f;
    rounding->groups += x->w->n_groups;
    if (x->f->fact[IS_TURNED] == 0) {
        memcpy(to, t->data + at * k * each, k * each);
        return;
    }
    for (size_t i = 0; i < k; i++)
        memcpy(to + i * each, t->data + (i * n + at) * each, each);
}

static qn_status load(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                      struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    (void)err;
    qni_import_weight(ctx, found, first, w, take_row, rounding);
    return QN_OK;
}

const struct qni_importer qni_import_floats = {.name = "floats", .parts = {""}, .load = load};
