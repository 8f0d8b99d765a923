/* SPDX-License-Identifier: Apache-2.0 */
/* compressed-tensors "pack-quantized", w[n, k] = (q - zp) s, b = 2 to 8 bits:
 *
 *     weight_packed      i32 [N, ceil(K / f)], f = floor(32 / b) codes a word, the first in the
 *                        lowest bits; code = q + 2^(b-1). Other bits of a word are unused, so 3
 *                        bits take 10 codes a word (GPTQ's stream takes 10 2/3).
 *     weight_scale       [N, groups] or [N, 1]
 *     weight_zero_point  i32 [ceil(N / f), groups], packed along N; absent: 0
 *     weight_shape       two integers, i32 or i64
 *     weight_g_idx       i32 [K], act-order; a -1 anywhere: not used
 * and "nvfp4-pack-quantized", w = e2m1 (s / global), weight_packed u8 [N, K / 2] of pairs along K,
 * the first in the low half, weight_scale E4M3 [N, K / 16], weight_global_scale f32 [1]. Quotients
 * are rounded where f32 does not hold them, and counted. "mxfp4-pack-quantized" has weight_scale u8
 * [N, K / 32] instead, exponents of E8M0, and no global scale.
 * Example: word 0x76543210, no zero point, scale 0.5: -4, -3.5, ..., -0.5. */
#include <string.h>

#include "../../base/error.h"
#include "../../base/half.h"
#include "../../base/size.h"
#include "../codes.h"
#include "../settings.h"
#include "words.h"

enum { PACKED, SCALE, ZERO, SHAPE, G_IDX, GLOBAL, INPUT_SCALE, INPUT_ZERO };
enum { IS_NV, BITS, GROUP, HAS_ZERO }; /* found->fact */

/* ---- find ------------------------------------------------------------------------------------ */

static qn_status find_shape(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *q = &f->part[PACKED], *s = &f->part[SHAPE];
    const bool is_two =
        (s->rank == 1 && s->shape[0] == 2) && (s->dtype == QN_I32 || s->dtype == QN_I64);
    if (q->rank != 2)
        return qni_fail(err, QN_E_SHAPE, "weight_packed is no matrix");
    f->parts.n = q->shape[0];
    if (s->data == NULL && f->fact[IS_NV] != 0) {
        if (q->shape[1] > INT32_MAX / 2)
            return qni_fail(err, QN_E_SHAPE, "weight_packed is larger than any weight");
        f->parts.k = 2 * q->shape[1];
        return QN_OK;
    }
    if (s->data == NULL || !is_two)
        return qni_fail(err, s->data == NULL ? QN_E_NOT_FOUND : QN_E_DTYPE,
                        "its tensor .weight_shape is missing or not two integers");
    f->parts.k = qni_import_int(s, 1);
    if (qni_import_int(s, 0) != f->parts.n || f->parts.k < 0 || f->parts.k > INT32_MAX)
        return qni_fail(err, QN_E_SHAPE, "weight_shape [%lld, %lld] is not that of weight_packed",
                        (long long)qni_import_int(s, 0), (long long)f->parts.k);
    qni_note(&f->notes, "shape: tensor .weight_shape");
    return QN_OK;
}

/* Bits from the width of a row; 7 and 8 make the same, and then the configuration counts. */
static qn_status find_bits(const qn_checkpoint *c, struct qni_found *f, qn_error *err)
{
    const int64_t width = f->part[PACKED].shape[1];
    int64_t fitting[7], count = 0, said = 0;
    for (int64_t b = 2; b <= 8; b++)
        if (qni_ceil_div(f->parts.k, 32 / b) == width)
            fitting[count++] = b;
    for (int64_t i = 0; i < count && count > 1; i++)
        if (qni_scheme_weights(c, "int", fitting[i]) != -1) {
            f->fact[BITS] = fitting[i];
            said++;
        }
    if (count == 1)
        f->fact[BITS] = fitting[0];
    if (count == 0)
        return qni_fail(err, QN_E_SHAPE, "%lld words a row hold no %lld codes of 2 to 8 bits",
                        (long long)width, (long long)f->parts.k);
    if (count > 1 && said != 1)
        return qni_fail(err, QN_E_FORMAT,
                        "codes of %lld and of %lld bits fill as many words; open the folder with "
                        "its config.json, which says num_bits",
                        (long long)fitting[0], (long long)fitting[count - 1]);
    if (qni_scheme_weights(c, "int", 0) != -1 && qni_scheme_weights(c, "int", f->fact[BITS]) == -1)
        return qni_fail(err, QN_E_CORRUPT, "%s has no group of %lld bits, which its tensors have",
                        qni_checkpoint_origin(c), (long long)f->fact[BITS]);
    qni_note(&f->notes, "bits: %lld, %s", (long long)f->fact[BITS],
             count == 1 ? "from the words of a row" : "num_bits of the configuration");
    return QN_OK;
}

static int64_t said_group(const qn_checkpoint *c, int64_t bits)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    const int32_t weights = qni_scheme_weights(c, "int", bits);
    int64_t group = 0;
    if (weights >= 0)
        qni_setting_integer(s, qni_setting_at(s, weights, "group_size"), &group);
    return group > 0 ? group : 0;
}

static qn_status find_zero(const qn_checkpoint *c, struct qni_found *f, qn_error *err)
{
    const struct qni_settings *s = qni_checkpoint_settings(c);
    const struct qni_tensor *z = &f->part[ZERO];
    const int32_t weights = qni_scheme_weights(c, "int", f->fact[BITS]);
    const int32_t symmetric = qni_setting_flag(s, qni_setting_at(s, weights, "symmetric"));
    if (z->data == NULL) {
        qni_note(&f->notes, "zeros: 0, there is no weight_zero_point%s",
                 symmetric == 0 ? " (which older files leave out where all are 0)" : "");
        return QN_OK;
    }
    const int64_t groups = f->part[SCALE].rank == 2 ? f->part[SCALE].shape[1] : 1;
    if (z->dtype != QN_I32)
        return qni_fail(err, QN_E_DTYPE, "weight_zero_point is not packed in i32");
    QNI_TRY(qni_import_expect(z, ".weight_zero_point", qni_ceil_div(f->parts.n, 32 / f->fact[BITS]),
                              groups, err));
    f->fact[HAS_ZERO] = 1;
    f->parts.format.shift = QN_SHIFT_ZERO;
    qni_note(&f->notes, "zeros: tensor .weight_zero_point, packed along n");
    return QN_OK;
}

static struct qni_order order_of(const struct qni_found *f)
{
    const int64_t k = f->parts.k, group = f->fact[GROUP];
    return (struct qni_order){k, group, group > 0 ? qni_ceil_div(k, group) : 0};
}

static qn_status find_order(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *g = &f->part[G_IDX];
    const struct qni_order order = order_of(f);
    if (g->data == NULL)
        return QN_OK;
    if (g->dtype != QN_I32 && g->dtype != QN_I64)
        return qni_fail(err, QN_E_DTYPE, "weight_g_idx is no vector of integers");
    QNI_TRY(qni_import_expect(g, ".weight_g_idx", f->parts.k, 1, err));
    for (int64_t i = 0; i < f->parts.k; i++)
        if (qni_import_int(g, i) == -1) {
            qni_note(&f->notes, "order: columns as they are, weight_g_idx has a -1");
            return QN_OK;
        }
    f->has_perm = qni_import_order_of(g, &order) > QNI_ORDER_TRIVIAL;
    qni_note(&f->notes, "order: %s",
             f->has_perm ? "act-order, the stable order of weight_g_idx"
                         : "columns as they are, weight_g_idx is k / group");
    return QN_OK;
}

static qn_status find_int(const qn_checkpoint *c, struct qni_found *f, qn_error *err)
{
    QNI_TRY(find_bits(c, f, err));
    f->parts.format.code = QN_CODE_INT;
    f->parts.format.bits = (int32_t)f->fact[BITS];
    QNI_TRY(qni_import_group_of_scale(&f->part[SCALE], said_group(c, f->fact[BITS]), f, err));
    f->fact[GROUP] = f->parts.format.group > 0 ? f->parts.format.group : qni_max(1, f->parts.k);
    QNI_TRY(find_zero(c, f, err));
    QNI_TRY(find_order(f, err));
    qni_note(&f->notes, "exact");
    return QN_OK;
}

/* E2M1 codes with exponents. The configuration tells nothing that the types do not. */
static qn_status find_mx(struct qni_found *f, qn_error *err)
{
    struct qni_tensor *s = &f->part[SCALE];
    QNI_TRY(qn_format_parse("mxfp4", &f->parts.format, err));
    QNI_TRY(qni_import_expect(&f->part[PACKED], ".weight_packed", f->parts.n, f->parts.k / 2, err));
    QNI_TRY(qni_import_expect(s, ".weight_scale", f->parts.n, f->parts.k / 32, err));
    if (f->part[GLOBAL].data != NULL)
        return qni_fail(err, QN_E_FORMAT, "MXFP4 has no weight_global_scale");
    s->dtype = QN_E8M0; /* also where it is declared as bytes */
    qni_note(&f->notes, "format: mxfp4, from the types of weight_packed and weight_scale");
    qni_note(&f->notes, "exact");
    return QN_OK;
}

static qn_status find_nv(struct qni_found *f, qn_error *err)
{
    const struct qni_tensor *s = &f->part[SCALE], *g = &f->part[GLOBAL];
    QNI_TRY(qn_format_parse("nvfp4", &f->parts.format, err));
    if (f->parts.k % 32 == 0 && (s->dtype == QN_U8 || s->dtype == QN_E8M0)) {
        f->fact[IS_NV] = 0;
        return find_mx(f, err);
    }
    if (f->parts.k % 16 != 0 || s->dtype != QN_E4M3)
        return qni_fail(err, QN_E_FORMAT,
                        "packed bytes with scales that are not E4M3 for 16 columns are not NVFP4");
    QNI_TRY(qni_import_expect(&f->part[PACKED], ".weight_packed", f->parts.n, f->parts.k / 2, err));
    QNI_TRY(qni_import_expect(s, ".weight_scale", f->parts.n, f->parts.k / 16, err));
    if (g->data == NULL || g->dtype != QN_F32 || g->bytes != 4)
        return qni_fail(err, QN_E_NOT_FOUND,
                        "its tensor .weight_global_scale is missing or no f32");
    qni_note(&f->notes, "format: nvfp4, from the types of weight_packed and weight_scale");
    qni_note(&f->notes, "exact: codes; scales = weight_scale / weight_global_scale, rounded where "
                        "f32 does not hold the quotient (loading counts them)");
    return QN_OK;
}

static qn_status find(const qn_checkpoint *c, const char *stem, struct qni_found *found,
                      qn_error *err)
{
    const qn_dtype dtype = found->part[PACKED].dtype;
    (void)stem;
    if (dtype != QN_I32 && dtype != QN_U8)
        return qni_fail(err, QN_E_DTYPE, "weight_packed is neither i32 nor u8");
    found->fact[IS_NV] = dtype == QN_U8;
    found->role = QN_ROLE_LINEAR;
    QNI_TRY(find_shape(found, err));
    QNI_TRY(found->fact[IS_NV] != 0 ? find_nv(found, err) : find_int(c, found, err));
    qni_scheme_activation(c, &found->part[INPUT_SCALE], &found->part[INPUT_ZERO], found);
    return QN_OK;
}

/* ---- load ------------------------------------------------------------------------------------ */

struct source {
    const struct qni_found *f;
    struct qn_weight *w;
    int64_t first;
};

static uint8_t code_at(const uint8_t *row, int64_t i, int32_t bits)
{
    const int32_t each = 32 / bits;
    uint32_t word;
    memcpy(&word, row + i / each * 4, sizeof word);
    return (uint8_t)(word >> (i % each * bits) & ((1u << bits) - 1));
}

static void take_codes(const struct source *x, int64_t row)
{
    const struct qni_tensor *q = &x->f->part[PACKED];
    struct qn_weight *w = x->w;
    const int32_t bits = w->format.bits;
    const int64_t row_bytes = q->shape[1] * (q->dtype == QN_U8 ? 1 : 4);
    const uint8_t *from = q->data + (x->first + row) * row_bytes;
    uint8_t *codes = w->codes + row * w->k;
    if (w->perm == NULL && 32 % bits == 0)
        qni_codes_unpack(from, (size_t)w->k, bits, codes);
    else
        for (int64_t p = 0; p < w->k; p++)
            codes[p] = code_at(from, w->perm != NULL ? w->perm[p] : p, bits);
}

/* Zero points are packed along n: word n / f of each group's column. */
static int32_t zero_of(const struct source *x, int64_t n, int64_t g)
{
    const struct qni_tensor *z = &x->f->part[ZERO];
    const int32_t bits = x->w->format.bits, each = 32 / bits;
    const uint32_t word = qni_import_u32(z, n / each * x->w->n_groups + g);
    return (int32_t)(word >> (n % each * bits) & ((1u << bits) - 1)) - (1 << (bits - 1));
}

static void take_row(const void *arg, int64_t row, struct qni_rounding *rounding)
{
    const struct source *x = arg;
    const struct qni_tensor *s = &x->f->part[SCALE];
    struct qn_weight *w = x->w;
    const double unit =
        x->f->fact[IS_NV] != 0 ? (double)qni_import_float(&x->f->part[GLOBAL], 0) : 1.0;
    take_codes(x, row);
    for (int64_t g = 0; g < w->n_groups; g++) {
        const int64_t at = row * w->n_groups + g;
        const double scale = (double)qni_import_float(s, qni_import_scale_at(w, x->first + row, g));
        w->scale[at] = (float)(scale / unit);
        rounding->rounded += (double)w->scale[at] * unit != scale;
        if (w->zero != NULL)
            w->zero[at] = zero_of(x, x->first + row, g);
    }
    rounding->groups += w->n_groups;
}

static qn_status load(const qn_ctx *ctx, const struct qni_found *found, int64_t first,
                      struct qn_weight *w, struct qni_rounding *rounding, qn_error *err)
{
    const struct source x = {found, w, first};
    const struct qni_order order = order_of(found);
    if (w->perm != NULL)
        QNI_TRY(qni_import_sort_columns(ctx, &found->part[G_IDX], &order, w->perm, err));
    qni_import_rows(ctx, w->n, take_row, &x, rounding);
    return QN_OK;
}

const struct qni_importer qni_import_ct_packed = {
    .name = "compressed-tensors",
    .parts = {".weight_packed", ".weight_scale", ".weight_zero_point", ".weight_shape",
              ".weight_g_idx", ".weight_global_scale", ".input_scale", ".input_zero_point"},
    .named = ".weight",
    .find = find,
    .load = load,
    .along_k = {2, 2, 2},
};
