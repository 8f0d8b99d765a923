/* SPDX-License-Identifier: Apache-2.0 */
/* Modules of a checkpoint as canonical weights: whole, a rectangle, or rows block by block. What
 * importers fill is checked before anybody sees it. */
#include "rows.h"

#include <string.h>

#include "../base/context.h"
#include "../base/error.h"
#include "../base/sized.h"
#include "cut.h"

/* What loads a module that loads. */
static const struct qni_importer *loader_of(const struct qni_module *m)
{
    const struct qni_importer *const importer = qni_checkpoint_importer(m);
    return importer == NULL ? &qni_import_floats : importer;
}

static qn_status name_module(const struct qni_module *m, qn_status status, const qn_error *inner,
                             qn_error *err)
{
    char shown[QNI_SHOWN];
    return status == QN_OK ? QN_OK
                           : qni_fail_at(err, status, inner->offset, "'%s': %s",
                                         qni_shown(shown, m->name), inner->text);
}

static qn_status make_room(const qn_ctx *ctx, const struct qni_found *found, int64_t n,
                           qn_weight **weight, qn_error *err)
{
    qn_weight_parts parts = found->parts;
    qn_weight *w = NULL;
    parts.n = n;
    QNI_TRY(
        qni_weight_alloc(&ctx->allocator, &parts, found->has_perm, found->has_prescale, &w, err));
    const qn_status status =
        found->has_supers && qni_may_have_supers(&w->format, w->n, w->n_groups)
            ? qni_weight_alloc_supers(w, err)
            : QN_OK;
    if (status != QN_OK) {
        qn_weight_destroy(w);
        return status;
    }
    *weight = w;
    return QN_OK;
}

/* Rows [first, first + w->n) of what was found; shown: what sentences call the first one. */
static qn_status fill(const qn_ctx *ctx, const struct qni_module *m, const struct qni_found *found,
                      int64_t first, int64_t shown, qn_weight *w, struct qni_rounding *rounding,
                      qn_error *err)
{
    w->first_row = shown;
    qn_status status = loader_of(m)->load(ctx, found, first, w, rounding, err);
    if (status == QN_OK)
        status = qni_weight_check(ctx, w, err);
    w->first_row = 0;
    return status;
}

static qn_status check_range(const struct qni_module *m, const struct qni_found *found,
                             qn_rectangle *r, qn_error *err)
{
    char shown[QNI_SHOWN];
    const int64_t all = found->parts.n, all_k = found->parts.k;
    if (r->first_n < 0 || r->first_n > all || r->n < -1 || r->n > all - r->first_n)
        return qni_fail(err, QN_E_ARGUMENT, "'%s': rows %lld and on, %lld of them, of %lld",
                        qni_shown(shown, m->name), (long long)r->first_n, (long long)r->n,
                        (long long)all);
    if (r->first_k < 0 || r->first_k > all_k || r->k < -1 || r->k > all_k - r->first_k)
        return qni_fail(err, QN_E_ARGUMENT, "'%s': columns %lld and on, %lld of them, of %lld",
                        qni_shown(shown, m->name), (long long)r->first_k, (long long)r->k,
                        (long long)all_k);
    r->n = r->n < 0 ? all - r->first_n : r->n;
    r->k = r->k < 0 ? all_k - r->first_k : r->k;
    if (found->parts.conv_groups > 1 && r->n != all)
        return qni_fail(err, QN_E_UNSUPPORTED, "'%s': a convolution of groups loads as a whole",
                        qni_shown(shown, m->name));
    return QN_OK;
}

/* Find module i, and check a rectangle of it. */
static qn_status find_range(const qn_checkpoint *c, int64_t i, qn_rectangle *range,
                            const struct qni_module **module, struct qni_found *found,
                            qn_error *err)
{
    char shown[QNI_SHOWN];
    if (!qni_checkpoint_has(c, i))
        return qni_fail(err, QN_E_ARGUMENT, "there is no module %lld", (long long)i);
    const struct qni_module *m = *module = &c->modules[i];
    QNI_TRY(qni_checkpoint_find_module(c, m, found, err));
    if (qni_checkpoint_importer(m) == NULL && found->parts.format.code != QN_CODE_FLOAT)
        return qni_fail(err, QN_E_DTYPE,
                        "'%s' is a plain tensor and no matrix of f32, f16 or bf16; "
                        "qn_checkpoint_tensor() gives it",
                        qni_shown(shown, m->name));
    return check_range(m, found, range, err);
}

/* ---- rows ------------------------------------------------------------------------------------ */

qn_status qni_module_open(const qn_checkpoint *c, int64_t i, int64_t first, int64_t n,
                          struct qni_module_rows *rows, qn_error *err)
{
    qn_rectangle range = {first, n, 0, -1};
    QNI_TRY(find_range(c, i, &range, &rows->module, &rows->found, err));
    rows->first = range.first_n;
    rows->n = range.n;
    return QN_OK;
}

qn_status qni_module_room(const qn_ctx *ctx, const struct qni_module_rows *rows, int64_t n,
                          struct qn_weight **weight, qn_error *err)
{
    qn_error inner = {QN_OK, -1, ""};
    const qn_status status = make_room(ctx, &rows->found, n, weight, &inner);
    return name_module(rows->module, status, &inner, err);
}

qn_status qni_module_load(const qn_ctx *ctx, const struct qni_module_rows *rows, int64_t first,
                          struct qn_weight *weight, struct qni_rounding *rounding, qn_error *err)
{
    qn_error inner = {QN_OK, -1, ""};
    const int64_t at = rows->first + first;
    const qn_status status =
        fill(ctx, rows->module, &rows->found, at, at, weight, rounding, &inner);
    return name_module(rows->module, status, &inner, err);
}

/* ---- rectangles ------------------------------------------------------------------------------ */

static qn_status load_rows(const qn_ctx *ctx, const struct qni_module *m,
                           const struct qni_found *found, int64_t first, const qn_rectangle *r,
                           struct qni_rounding *rounding, qn_weight **weight, qn_error *err)
{
    qn_weight *w = NULL;
    QNI_TRY(make_room(ctx, found, r->n, &w, err));
    const qn_status status = fill(ctx, m, found, first, r->first_n, w, rounding, err);
    if (status != QN_OK) {
        qn_weight_destroy(w);
        return status;
    }
    *weight = w;
    return QN_OK;
}

/* The part of a module: cut where it lies, or, where that cannot be, from whole rows. */
static qn_status load_cut(const qn_ctx *ctx, const struct qni_module *m, struct qni_found *found,
                          const qn_rectangle *r, struct qni_rounding *rounding, qn_weight **weight,
                          qn_error *err)
{
    struct qni_copies cut;
    qn_weight *rows = NULL;
    bool is_cut = false;
    memset(&cut, 0, sizeof cut);
    if (r->first_k == 0 && r->k == found->parts.k)
        return load_rows(ctx, m, found, r->first_n, r, rounding, weight, err);
    if (found->parts.kh * found->parts.kw > 1 || found->parts.conv_groups > 1)
        return qni_fail(err, QN_E_UNSUPPORTED, "a convolution's columns are not cut");
    qn_status status =
        qni_cut_module(&ctx->allocator, loader_of(m), r, found, &cut, &is_cut, err);
    if (status == QN_OK)
        status = load_rows(ctx, m, found, is_cut ? cut.first : r->first_n, r, rounding,
                           is_cut ? weight : &rows, err);
    if (status == QN_OK && !is_cut)
        status = qn_weight_slice(ctx, rows, 0, r->n, r->first_k, r->k, weight, err);
    qn_weight_destroy(rows);
    qni_cut_free(&cut);
    return status;
}

qn_status qn_checkpoint_load_part(const qn_ctx *ctx, const qn_checkpoint *checkpoint, int64_t i,
                                  const qn_rectangle *range, qn_weight **weight,
                                  qn_load_facts *facts, qn_error *err)
{
    const struct qni_module *m = NULL;
    struct qni_found found;
    struct qni_rounding rounding = {0, 0};
    qn_error inner = {QN_OK, -1, ""};
    if (weight != NULL)
        *weight = NULL;
    if (ctx == NULL || range == NULL || weight == NULL || checkpoint == NULL)
        return qni_fail(err, QN_E_ARGUMENT, "ctx, range, weight or checkpoint is NULL");
    qn_rectangle own_range = *range;
    QNI_TRY(find_range(checkpoint, i, &own_range, &m, &found, err));
    const qn_status status = load_cut(ctx, m, &found, &own_range, &rounding, weight, &inner);
    if (status != QN_OK)
        return name_module(m, status, &inner, err);
    const qn_load_facts own = {sizeof own, rounding.groups, rounding.rounded};
    if (facts != NULL && qni_sized_write(facts, &own, sizeof own) != QN_OK) {
        qn_weight_destroy(*weight);
        *weight = NULL;
        return qni_fail(err, QN_E_ARGUMENT, "facts was not initialised");
    }
    return QN_OK;
}

qn_status qn_checkpoint_load(const qn_ctx *ctx, const qn_checkpoint *checkpoint, int64_t i,
                             int64_t first, int64_t n, qn_weight **weight, qn_load_facts *facts,
                             qn_error *err)
{
    const qn_rectangle rows = {first, n, 0, -1};
    return qn_checkpoint_load_part(ctx, checkpoint, i, &rows, weight, facts, err);
}
