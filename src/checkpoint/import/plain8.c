/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a byte each with scales beside them, w = (q - zp) s:
 *   int8  weight i8 [N, K]: compressed-tensors "int-quantized" (4-bit values as well)
 *   fp8   weight E4M3 [N, K]: compressed-tensors "float-quantized", vLLM's Fp8, ModelOpt, and block
 *         scales of DeepSeek (weight_scale_inv multiplies, whatever its name says)
 * with weight_scale [] (tensor), [N] or [N, 1] (channel), [N, groups], or, for fp8, [ceil(N / bn),
 * ceil(K / bk)] in blocks of bn x bk (weight_block_size, 128 x 128 if nothing says it). A block's
 * scale is held by each of its rows. weight_zero_point, for int8, has the shape of the scale. */
#include <string.h>

#include "../../base/error.h"
#include "../../base/size.h"
#include "../settings.h"
#include "import.h"

enum { WEIGHT, SCALE, SCALE_INV, ZERO, INPUT_SCALE, INPUT_ZERO };
enum { BLOCK_ROWS }; /* found->fact: 0, or the rows of a block */

static bool is_matrix_of(const struct qni_tensor *t, qn_dtype dtype)
{
    return t->rank == 2 && t->dtype == dtype;
}

static bool has_scale(const qn_checkpoint *c, const char *stem)
{
    struct qni_tensor t;
    return qni_checkpoint_part(c, stem, ".weight_scale", &t) ||
           qni_checkpoint_part(c, stem, ".weight_scale_inv", &t);
}

static bool heads_int8(const qn_checkpoint *c, const struct qni_tensor *head, const char *stem)
{
    return is_matrix_of(head, QN_I8) && has_scale(c, stem);
}

static bool heads_fp8(const qn_checkpoint *c, const struct qni_tensor *head, const char *stem)
{
    return strncmp(head->spelling, "F8_E", 4) == 0 && has_scale(c, stem);
}

static qn_status start(struct qni_found *f, qn_error *err)
{
    if (f->part[SCALE].data == NULL)
        f->part[SCALE] = f->part[SCALE_INV];
    else if (f->part[SCALE_INV].data != NULL)
        return qni_fail(err, QN_E_CORRUPT, "it has both weight_scale and weight_scale_inv");
    f->part[SCALE_INV] = (struct qni_tensor){.name = NULL};
    f->parts.n = f->part[WEIGHT].shape[0];
    f->parts.k = f->part[WEIGHT].shape[1];
    f->role = QN_ROLE_LINEAR;
    return QN_OK;
}

static qn_status find_int8(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                           qn_error *err)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    const struct qni_tensor *z = &found->part[ZERO];
    int64_t bits = 8, group = 0;
    (void)stem;
    QNI_TRY(start(found, err));
    const int32_t weights = qni_scheme_weights(c, "int", 0);
    if (weights >= 0) {
        qni_setting_integer(s, qni_setting_at(s, weights, "num_bits"), &bits);
        qni_setting_integer(s, qni_setting_at(s, weights, "group_size"), &group);
    }
    if (bits != 4 && bits != 8)
        return qni_fail(err, QN_E_FORMAT, "%s says %lld bits for bytes", qni_checkpoint_origin(c),
                        (long long)bits);
    found->parts.format.code = QN_CODE_INT;
    found->parts.format.bits = (int32_t)bits;
    qni_note(&found->notes, "bits: %lld, %s", (long long)bits,
             weights >= 0 ? "num_bits of the configuration" : "from the type of weight");
    QNI_TRY(qni_import_group_of_scale(&found->part[SCALE], group, found, err));
    if (z->data != NULL) {
        const struct qni_tensor *scale = &found->part[SCALE];
        if (z->dtype != QN_I8 || z->rank != scale->rank ||
            memcmp(z->shape, scale->shape, sizeof z->shape) != 0)
            return qni_fail(err, QN_E_SHAPE,
                            "weight_zero_point is not i8 in the shape of the scale");
        found->parts.format.shift = QN_SHIFT_ZERO;
        qni_note(&found->notes, "zeros: tensor .weight_zero_point");
    }
    qni_scheme_activation(c, &found->part[INPUT_SCALE], &found->part[INPUT_ZERO], found);
    qni_note(&found->notes, "exact");
    return QN_OK;
}

/* Blocks of rows and columns; 0 rows: the scale is not of blocks. */
static qn_status find_blocks(const qn_checkpoint *c, struct qni_found *f, qn_error *err)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    const struct qni_tensor *t = &f->part[SCALE];
    int64_t rows = 128, columns = 128;
    int32_t size = qni_checkpoint_setting(c, "weight_block_size");
    const int32_t weights = qni_scheme_weights(c, "float", 8);
    if (size < 0 && weights >= 0)
        size = qni_setting_at(s, weights, "block_structure");
    const int32_t first = size < 0 ? -1 : s->list[size].child;
    const bool said = first >= 0 && qni_setting_integer(s, first, &rows) &&
                      qni_setting_integer(s, s->list[first].next, &columns);
    if (t->rank != 2 || (t->shape[1] == 1 && t->shape[0] == f->parts.n) ||
        (t->shape[0] == 1 && t->shape[1] == 1 && !said))
        return QN_OK;
    if (t->shape[0] == f->parts.n && !said)
        return QN_OK; /* groups of rows */
    if (rows < 1 || columns < 1 || t->shape[0] != qni_ceil_div(f->parts.n, rows) ||
        t->shape[1] != qni_ceil_div(f->parts.k, columns))
        return qni_fail(err, QN_E_SHAPE,
                        "its scale is [%lld, %lld], which blocks of %lld x %lld do not make of "
                        "[%lld, %lld]",
                        (long long)t->shape[0], (long long)t->shape[1], (long long)rows,
                        (long long)columns, (long long)f->parts.n, (long long)f->parts.k);
    if (!qni_import_is_float(t->dtype))
        return qni_fail(err, QN_E_DTYPE, "its scale is no matrix of f16, bf16 or f32");
    f->fact[BLOCK_ROWS] = rows;
    f->parts.format.group = columns;
    f->parts.format.scale_dtype = t->dtype;
    qni_note(&f->notes, "group: blocks of %lld x %lld, %s; each row holds its block's scale",
             (long long)rows, (long long)columns,
             said ? "weight_block_size of the configuration" : "which fit the scale's shape");
    return QN_OK;
}

static qn_status find_fp8(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                          qn_error *err)
{
    (void)stem;
    if (!is_matrix_of(&found->part[WEIGHT], QN_E4M3))
        return qni_fail(err, QN_E_FORMAT,
                        "weights of type %s and %d dimensions are not imported; E4M3 matrices are",
                        found->part[WEIGHT].spelling, (int)found->part[WEIGHT].rank);
    if (found->part[ZERO].data != NULL)
        return qni_fail(err, QN_E_FORMAT, "fp8 weights with zero points are not imported");
    QNI_TRY(start(found, err));
    found->parts.format.code = QN_CODE_E4M3;
    found->parts.format.bits = 8;
    qni_note(&found->notes, "format: fp8, from the type of weight");
    QNI_TRY(find_blocks(c, found, err));
    if (found->fact[BLOCK_ROWS] == 0)
        QNI_TRY(qni_import_group_of_scale(&found->part[SCALE], 0, found, err));
    if (found->part[INPUT_SCALE].data != NULL)
        found->activation = QN_ACTIVATION_OTHER;
    qni_note(&found->notes, "activations: %s",
             found->activation == QN_ACTIVATION_OTHER ? "fp8 of a fixed scale, tensor .input_scale"
                                                      : "not said by its tensors");
    qni_note(&found->notes, "exact");
    return QN_OK;
}

static void take_row(const void *arg, int64_t row, struct qni_rounding *rounding)
{
    const struct qni_source *x = arg;
    const struct qni_found *f = x->f;
    struct qn_weight *w = x->w;
    const int64_t n = x->first + row, rows = f->fact[BLOCK_ROWS];
    const uint8_t *from = f->part[WEIGHT].data + n * w->k;
    uint8_t *codes = w->codes + row * w->k;
    const int32_t half = w->format.code == QN_CODE_INT ? 1 << (w->format.bits - 1) : 0;
    for (int64_t i = 0; i < w->k; i++)
        codes[i] = (uint8_t)(from[i] + half);
    for (int64_t g = 0; g < w->n_groups; g++) {
        const int64_t at = row * w->n_groups + g;
        const int64_t s =
            rows > 0 ? n / rows * f->part[SCALE].shape[1] + g : qni_import_scale_at(w, n, g);
        w->scale[at] = qni_import_float(&f->part[SCALE], s);
        if (w->zero != NULL)
            w->zero[at] = (int32_t)qni_import_int(&f->part[ZERO], s);
    }
    rounding->groups += w->n_groups;
}

static qn_status load(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                      struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    (void)err;
    qni_import_weight(ctx, found, first, w, take_row, rounding);
    return QN_OK;
}

const struct qni_importer qni_import_int8 = {
    .name = "int8",
    .parts = {".weight", ".weight_scale", ".weight_scale_inv", ".weight_zero_point", ".input_scale",
              ".input_zero_point"},
    .named = ".weight",
    .heads = heads_int8,
    .find = find_int8,
    .load = load,
    .along_k = {2, 2, 0, 2},
};

const struct qni_importer qni_import_fp8 = {
    .name = "fp8",
    .parts = {".weight", ".weight_scale", ".weight_scale_inv", ".weight_zero_point",
              ".input_scale"},
    .named = ".weight",
    .heads = heads_fp8,
    .find = find_fp8,
    .load = load,
    .along_k = {2, 2, 0, 2},
};
