/* SPDX-License-Identifier: Apache-2.0 */
/* ONNX. Matrices are what MatMulNBits takes: B u8 [N, blocks, bytes] of 2, 4 or 8 bits, the lowest
 * bits first, in blocks of a power of two from 16 on, the tail of K padded with the code of 0;
 * scales f32 [N, blocks]; zero points u8 [N, bytes], each row in whole bytes, and none where all
 * are 2^(bits - 1); g_idx i32 [K] for act-order.
 *     codes 1 2, 4 bits: byte 0x21.
 *
 * Convolutions, and matrices as "onnx:qdq", are what DequantizeLinear takes: INT8, or INT4 for up
 * to 4 bits, [N, K] or [N, channels, taps], with scales and zero points [N], or in blocks along the
 * second dimension [N, K / block] or [N, channels / block, taps]. Scales are f32, or the type that
 * is asked for. */
#include <string.h>

#include "../../base/error.h"
#include "../../base/size.h"
#include "export.h"

static const qn_dtype scale_types[] = {QN_F32, QN_F16, QN_BF16, QN_DTYPE_NONE};
enum { LEAST_BLOCK = 16, USUAL_BLOCK = 128 };

static bool is_conv(const struct qn_weight *w)
{
    return w->kh != 1 || w->kw != 1 || w->conv_groups != 1;
}

/* The largest block that divides the groups, or the one that is asked for. */
static qn_status take_block(struct qn_export *x, qn_error *err)
{
    const int64_t own = x->w->format.group, wanted = x->options.group;
    int64_t block = wanted > 0 ? wanted : own < 0 ? USUAL_BLOCK : own & -own;
    while (wanted <= 0 && block >= 2 * LEAST_BLOCK && block / 2 >= x->w->k)
        block /= 2; /* no more than the row needs */
    if (block < LEAST_BLOCK || (block & (block - 1)) != 0 || (own > 0 && own % block != 0))
        return qni_fail(err, QN_E_FORMAT,
                        "groups of %lld columns are no blocks of a power of two from 16 on",
                        (long long)(wanted > 0 ? wanted : own));
    x->group = block;
    x->groups = qni_ceil_div(x->w->k, block);
    return QN_OK;
}

static qn_status check_pair(struct qn_export *x, qn_error *err)
{
    const struct qn_weight *w = x->w;
    strcpy(x->kind, "QDQ");
    x->bits = w->format.bits <= 4 ? 4 : 8;
    if (w->perm != NULL)
        return qni_fail(err, QN_E_FORMAT,
                        "its columns are in another order (act-order), which "
                        "DequantizeLinear does not have");
    const int64_t ci = w->k / ((int64_t)w->kh * w->kw);
    x->is_per_row = w->format.group <= 0 || w->n_groups == 1;
    if (!x->is_per_row && ci != w->k && ci % w->format.group != 0)
        return qni_fail(err, QN_E_FORMAT,
                        "its groups of %lld do not divide the %lld channels of a tap",
                        (long long)w->format.group, (long long)ci);
    x->group = x->is_per_row ? w->k : w->format.group;
    x->groups = x->is_per_row ? 1 : w->n_groups;
    QNI_TRY(qni_export_zeros(x, 0, (1 << x->bits) - 1, err));
    return qni_export_scale_type(x, scale_types, err);
}

static qn_status check(struct qn_export *x, qn_error *err)
{
    const struct qn_weight *w = x->w;
    const char *asked = qni_export_asked(x);
    if (x->options.scale_dtype == QN_DTYPE_NONE)
        x->options.scale_dtype = QN_F32;
    QNI_TRY(qni_export_integers(x, err));
    if (asked[0] != 0 && strcmp(asked, "qdq") != 0)
        return qni_fail(err, QN_E_FORMAT, "'%s' is no kind of it; qdq is", asked);
    if (is_conv(w) || asked[0] != 0)
        return check_pair(x, err);
    strcpy(x->kind, "MatMulNBits");
    x->bits = w->format.bits <= 2 ? 2 : w->format.bits <= 4 ? 4 : 8;
    QNI_TRY(take_block(x, err));
    QNI_TRY(qni_export_zeros(x, 0, (1 << x->bits) - 1, err));
    return qni_export_scale_type(x, scale_types, err);
}

/* ---- MatMulNBits ----------------------------------------------------------------------------- */

static void put_blocks(struct qn_export *x, int64_t first, int64_t last)
{
    const struct qn_weight *w = x->w;
    const int64_t stored = x->groups * x->group, row_bytes = stored * x->bits / 8;
    const int64_t zero_bytes = qni_ceil_div(x->groups * x->bits, 8);
    const uint32_t middle = 1u << (x->bits - 1);
    int32_t zero = 0;
    for (int64_t n = first; n < last; n++) {
        uint8_t *row = x->out[0].data + n * row_bytes;
        for (int64_t p = 0; p < w->k; p++)
            qni_export_stream(row, w->perm != NULL ? w->perm[p] : p, x->bits,
                              qni_export_code(x, n, p));
        for (int64_t p = w->k; p < stored; p++)
            qni_export_stream(row, p, x->bits, middle);
        for (int64_t g = 0; g < x->groups; g++) {
            const int64_t at = qni_export_at(x, n, g);
            qni_export_put_scale(x, x->out[1].data, n * x->groups + g, w->scale[at]);
            qni_export_zero(w, at, &zero);
            if (!x->is_symmetric)
                qni_export_stream(x->out[2].data + n * zero_bytes, g, x->bits,
                                  (uint32_t)(zero + (int32_t)middle));
        }
    }
}

static qn_status write_blocks(struct qn_export *x, qn_error *err)
{
    static const char *const endings[] = {[2] = "_Q2", [4] = "_Q4", [8] = "_Q8"};
    const struct qn_weight *w = x->w;
    const int64_t blob = x->group * x->bits / 8;
    struct qni_out *b = qni_export_add(x, endings[x->bits], QN_U8, w->n, x->groups * blob, err);
    if (b == NULL || qni_export_add(x, "_scales", x->scale_dtype, w->n, x->groups, err) == NULL)
        return QN_E_MEMORY;
    b->rank = 3;
    b->shape[1] = x->groups;
    b->shape[2] = blob;
    if (!x->is_symmetric && qni_export_add(x, "_zero_points", QN_U8, w->n,
                                           qni_ceil_div(x->groups * x->bits, 8), err) == NULL)
        return QN_E_MEMORY;
    if (w->perm != NULL)
        QNI_TRY(qni_export_order(x, "_g_idx", err));
    qni_export_rows(x, 1, put_blocks);
    return QN_OK;
}

/* ---- DequantizeLinear ------------------------------------------------------------------------ */

/* Two's complement of the target's bits. */
static uint32_t signed_bits(const struct qn_export *x, uint32_t code)
{
    return code ^ 1u << (x->bits - 1);
}

/* Outputs in pairs of rows: where a row ends within a byte, the next one begins there. */
static void put_rows(struct qn_export *x, int64_t first, int64_t last)
{
    const struct qn_weight *w = x->w;
    const int64_t taps = (int64_t)w->kh * w->kw, ci = w->k / taps;
    const int64_t blocks = x->is_per_row ? 1 : qni_ceil_div(ci, x->group);
    int32_t zero = 0;
    for (int64_t n = first; n < last; n++) {
        for (int64_t p = 0; p < w->k; p++)
            qni_export_stream(x->out[0].data, n * w->k + p % ci * taps + p / ci, x->bits,
                              signed_bits(x, qni_export_code(x, n, p)));
        for (int64_t g = 0; g < x->groups; g++) {
            const int64_t at = qni_export_at(x, n, g);
            const int64_t to = n * x->groups + (g % blocks) * (x->groups / blocks) + g / blocks;
            qni_export_put_scale(x, x->out[1].data, to, w->scale[at]);
            qni_export_zero(w, at, &zero);
            if (!x->is_symmetric)
                qni_export_stream(x->out[2].data, to, x->bits,
                                  (uint32_t)zero & ((1u << x->bits) - 1));
        }
    }
}

/* A tensor of the codes' type: n rows of k. */
static struct qni_out *add_codes(struct qn_export *x, const char *ending, int64_t n, int64_t k,
                                 qn_error *err)
{
    struct qni_out *out = qni_export_add(x, ending, x->bits == 8 ? QN_I8 : QN_DTYPE_NONE,
                                         x->bits == 8 ? n * k : qni_ceil_div(n * k, 2), -1, err);
    if (out != NULL && x->bits == 4)
        out->type = "INT4";
    if (out != NULL)
        out->shape[0] = n;
    return out;
}

static qn_status write_pair(struct qn_export *x, qn_error *err)
{
    const struct qn_weight *w = x->w;
    const int64_t taps = (int64_t)w->kh * w->kw;
    struct qni_out *made[3] = {add_codes(x, "_quantized", w->n, w->k, err)};
    if (made[0] != NULL)
        made[1] =
            qni_export_add(x, "_scale", x->scale_dtype, w->n, x->is_per_row ? -1 : x->groups, err);
    if (made[1] == NULL)
        return QN_E_MEMORY;
    if (!x->is_symmetric && (made[2] = add_codes(x, "_zero_point", w->n, x->groups, err)) == NULL)
        return QN_E_MEMORY;
    for (int32_t i = 0; i < 3 && made[i] != NULL; i++) {
        if (i > 0 && x->is_per_row)
            continue;
        made[i]->rank = is_conv(w) ? 4 : 2;
        made[i]->shape[1] = (i == 0 ? w->k : x->groups) / taps;
        made[i]->shape[2] = is_conv(w) ? w->kh : 0;
        made[i]->shape[3] = is_conv(w) ? w->kw : 0;
    }
    qni_export_rows(x, 2, put_rows);
    return QN_OK;
}

static qn_status write(struct qn_export *x, qn_error *err)
{
    return strcmp(x->kind, "QDQ") == 0 ? write_pair(x, err) : write_blocks(x, err);
}

const struct qni_exporter qni_export_onnx = {
    .name = "onnx", .takes_convolutions = true, .check = check, .write = write};
