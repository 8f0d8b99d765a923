/* SPDX-License-Identifier: Apache-2.0 */
/* compressed-tensors. Which of its formats follows from the weight:
 *
 *   pack-quantized        integers: weight_packed i32 [N, ceil(K / f)], f = floor(32 / b) codes a
 *                         word, code = q + 2^(b-1); weight_scale [N, groups]; weight_zero_point i32
 *                         [ceil(N / f), groups], packed along N, if there are zero points;
 *                         weight_shape i64 [2]; weight_g_idx i32 [K] with act-order. Of 2, 4 or 8
 *                         bits: others are packed in two ways, by the version of the program
 *   int-quantized         integers of 8 (or 4) bits whose activations are int8, or asked for by
 *                         "ct:int-quantized": weight i8 [N, K], weight_scale, weight_zero_point i8
 *   nvfp4-pack-quantized  E2M1 in groups of 16: weight_packed u8 [N, K/2], weight_scale E4M3
 *                         [N, K/16], weight_global_scale f32 [1]; scale = weight_scale / global
 *   mxfp4-pack-quantized  E2M1 in groups of 32: weight_scale u8 [N, K/32], exponents of E8M0
 *   float-quantized       E4M3, one scale a row or for the tensor: weight, weight_scale
 */
#include <math.h>
#include <string.h>

#include "../../base/error.h"
#include "../../base/half.h"
#include "../../base/size.h"
#include "export.h"

enum { KIND, GLOBAL_BITS }; /* fact */
enum { PACKED, BYTES, NV, MX, FLOAT };
static const char *const kinds[] = {"pack-quantized", "int-quantized", "nvfp4-pack-quantized",
                                    "mxfp4-pack-quantized", "float-quantized"};
static const qn_dtype scale_types[] = {QN_F16, QN_BF16, QN_F32, QN_DTYPE_NONE};
static const qn_dtype exponents[] = {QN_E8M0, QN_DTYPE_NONE};

/* ---- NVFP4's global scale -------------------------------------------------------------------- */

/* Are all scales quotients of an E4M3 number and this? */
static bool is_global(const struct qn_weight *w, float global, uint8_t *codes)
{
    const double g = (double)global;
    for (int64_t i = 0; i < w->n * w->n_groups; i++) {
        const uint8_t code = qni_e4m3_from_f32((float)((double)w->scale[i] * g));
        if ((float)((double)qni_f32_from_e4m3(code) / g) != w->scale[i])
            return false;
        if (codes != NULL)
            codes[i] = code;
    }
    return true;
}

/* 1, or what makes the largest scale an E4M3 number: that one rounded, so its neighbours too. */
static bool find_global(const struct qn_weight *w, float *global)
{
    float most = 0;
    *global = 1.0f;
    for (int64_t i = 0; i < w->n * w->n_groups; i++) {
        if (!(w->scale[i] >= 0))
            return false;
        most = w->scale[i] > most ? w->scale[i] : most;
    }
    if (is_global(w, 1.0f, NULL))
        return true;
    for (int32_t code = 0x7e; code > 0x37; code--) /* 448 to 1 */
        for (int32_t near = 0; near < 9; near++) {
            const float guess = (float)((double)qni_f32_from_e4m3((uint8_t)code) / (double)most);
            const int32_t step = near % 2 == 0 ? near / 2 : -(near + 1) / 2;
            *global = qni_float_of(qni_bits_of(guess) + (uint32_t)step);
            if (isfinite(*global) && *global > 0 && is_global(w, *global, NULL))
                return true;
        }
    return false;
}

/* ---- check ----------------------------------------------------------------------------------- */

static qn_status check_floats(struct qn_export *x, qn_error *err)
{
    const struct qn_weight *w = x->w;
    float global = 1;
    if (w->perm != NULL || w->offset != NULL || w->zero != NULL)
        return qni_fail(err, QN_E_FORMAT,
                        "floats with an order of columns, zero points or offsets");
    QNI_TRY(qni_export_groups(x, true, err));
    x->bits = w->format.bits;
    x->is_symmetric = true;
    if (w->format.code == QN_CODE_E4M3) {
        x->fact[KIND] = FLOAT;
        if (!x->is_per_row)
            return qni_fail(err, QN_E_FORMAT, "E4M3 codes in groups of %lld, not one scale a row",
                            (long long)x->group);
        return qni_export_scale_type(x, scale_types, err);
    }
    if (w->k % 32 != 0 || (x->group != 16 && x->group != 32))
        return qni_fail(err, QN_E_FORMAT,
                        "E2M1 codes in groups of %lld; 16 and 32 are NVFP4 and "
                        "MXFP4",
                        (long long)x->group);
    x->fact[KIND] = x->group == 16 ? NV : MX;
    if (x->fact[KIND] == MX)
        return qni_export_scale_type(x, exponents, err);
    x->scale_dtype = QN_E4M3;
    if (!find_global(w, &global))
        return qni_fail(err, QN_E_VALUE, "no global scale makes all of its scales E4M3 numbers");
    x->fact[GLOBAL_BITS] = qni_bits_of(global);
    return QN_OK;
}

static int32_t bits_for(int32_t bits)
{
    return bits <= 2 ? 2 : bits <= 4 ? 4 : 8;
}

static qn_status check_integers(struct qn_export *x, qn_error *err)
{
    const struct qn_weight *w = x->w;
    const bool is_int8 = x->options.activation == QN_ACTIVATION_INT8_ROW ||
                         x->options.activation == QN_ACTIVATION_INT8_STATIC;
    const char *asked = qni_export_asked(x);
    QNI_TRY(qni_export_integers(x, err));
    x->bits = x->options.bits > 0 ? x->options.bits : bits_for(w->format.bits);
    if (x->bits < w->format.bits || bits_for(x->bits) != x->bits)
        return qni_fail(err, QN_E_FORMAT, "codes of %d bits do not fit %d", (int)w->format.bits,
                        (int)x->bits);
    x->fact[KIND] = is_int8 || strcmp(asked, kinds[BYTES]) == 0 ? BYTES : PACKED;
    if (x->fact[KIND] == BYTES && x->bits != 4)
        x->bits = 8;
    if (x->fact[KIND] == BYTES && w->perm != NULL)
        return qni_fail(err, QN_E_FORMAT, "int-quantized has no order of columns (act-order)");
    QNI_TRY(qni_export_groups(x, true, err));
    QNI_TRY(qni_export_zeros(x, 0, (1 << x->bits) - 1, err));
    return qni_export_scale_type(x, scale_types, err);
}

static qn_status check(struct qn_export *x, qn_error *err)
{
    const qn_code code = x->w->format.code;
    const char *asked = qni_export_asked(x);
    QNI_TRY(code == QN_CODE_E2M1 || code == QN_CODE_E4M3 ? check_floats(x, err)
                                                         : check_integers(x, err));
    strcpy(x->kind, kinds[x->fact[KIND]]);
    if (asked[0] != 0 && strcmp(asked, x->kind) != 0)
        return qni_fail(err, QN_E_FORMAT, "it would be %s", x->kind);
    return QN_OK;
}

/* ---- write ----------------------------------------------------------------------------------- */

static void put_words(struct qn_export *x, int64_t first, int64_t last)
{
    const struct qn_weight *w = x->w;
    const int32_t bits = x->bits, each = 32 / bits;
    uint32_t *q = (uint32_t *)(void *)x->out[0].data;
    const int64_t width = x->out[0].shape[1];
    for (int64_t n = first; n < last; n++)
        for (int64_t p = 0; p < w->k; p++) {
            const int64_t column = w->perm != NULL ? w->perm[p] : p;
            q[n * width + column / each] |= qni_export_code(x, n, p) << (column % each * bits);
        }
}

static void put_bytes(struct qn_export *x, int64_t first, int64_t last)
{
    const struct qn_weight *w = x->w;
    const uint32_t half = w->format.code == QN_CODE_INT ? 1u << (x->bits - 1) : 0;
    for (int64_t n = first; n < last; n++)
        for (int64_t p = 0; p < w->k; p++)
            x->out[0].data[n * w->k + p] = (uint8_t)(qni_export_code(x, n, p) - half);
}

static void put_pairs(struct qn_export *x, int64_t first, int64_t last)
{
    const struct qn_weight *w = x->w;
    for (int64_t n = first; n < last; n++)
        for (int64_t p = 0; p < w->k; p += 2) {
            const uint8_t *codes = w->codes + n * w->k + p;
            x->out[0].data[(n * w->k + p) / 2] = (uint8_t)(codes[0] | codes[1] << 4);
        }
}

static void put_scales(struct qn_export *x, uint8_t *data)
{
    for (int64_t n = 0; n < x->w->n; n++)
        for (int64_t g = 0; g < x->groups; g++)
            qni_export_put_scale(x, data, n * x->groups + g, x->w->scale[qni_export_at(x, n, g)]);
}

static void put_zeros(struct qn_export *x, uint8_t *data)
{
    const int32_t bits = x->bits, each = 32 / bits, half = 1 << (bits - 1);
    uint32_t *words = (uint32_t *)(void *)data;
    int32_t zero = 0;
    for (int64_t n = 0; n < x->w->n; n++)
        for (int64_t g = 0; g < x->groups; g++) {
            qni_export_zero(x->w, qni_export_at(x, n, g), &zero);
            if (x->fact[KIND] == BYTES)
                data[n * x->groups + g] = (uint8_t)zero;
            else
                words[n / each * x->groups + g] |= (uint32_t)(zero + half) << (n % each * bits);
        }
}

static qn_status write_integers(struct qn_export *x, qn_error *err)
{
    const struct qn_weight *w = x->w;
    const int32_t each = 32 / x->bits;
    const bool is_bytes = x->fact[KIND] == BYTES;
    struct qni_out *out =
        is_bytes ? qni_export_add(x, ".weight", QN_I8, w->n, w->k, err)
                 : qni_export_add(x, ".weight_packed", QN_I32, w->n, qni_ceil_div(w->k, each), err);
    if (out == NULL)
        return QN_E_MEMORY;
    qni_export_rows(x, 1, is_bytes ? put_bytes : put_words);
    out = qni_export_add(x, ".weight_scale", x->scale_dtype, w->n, x->groups, err);
    if (out == NULL)
        return QN_E_MEMORY;
    put_scales(x, out->data);
    if (!x->is_symmetric) {
        out = is_bytes ? qni_export_add(x, ".weight_zero_point", QN_I8, w->n, x->groups, err)
                       : qni_export_add(x, ".weight_zero_point", QN_I32, qni_ceil_div(w->n, each),
                                        x->groups, err);
        if (out == NULL)
            return QN_E_MEMORY;
        put_zeros(x, out->data);
    }
    if (is_bytes)
        return QN_OK;
    out = qni_export_add(x, ".weight_shape", QN_I64, 2, -1, err);
    if (out == NULL)
        return QN_E_MEMORY;
    const int64_t shape[2] = {w->n, w->k};
    memcpy(out->data, shape, sizeof shape);
    return w->perm != NULL ? qni_export_order(x, ".weight_g_idx", err) : QN_OK;
}

static qn_status write_pairs(struct qn_export *x, qn_error *err)
{
    const struct qn_weight *w = x->w;
    const float global = qni_float_of((uint32_t)x->fact[GLOBAL_BITS]);
    const bool is_nv = x->fact[KIND] == NV;
    if (qni_export_add(x, ".weight_packed", QN_U8, w->n, w->k / 2, err) == NULL ||
        qni_export_add(x, ".weight_scale", is_nv ? QN_E4M3 : QN_U8, w->n, x->groups, err) == NULL ||
        (is_nv && qni_export_add(x, ".weight_global_scale", QN_F32, 1, -1, err) == NULL))
        return QN_E_MEMORY;
    qni_export_rows(x, 1, put_pairs);
    if (is_nv) {
        is_global(w, global, x->out[1].data);
        memcpy(x->out[2].data, &global, sizeof global);
    } else {
        put_scales(x, x->out[1].data);
    }
    return QN_OK;
}

static qn_status write_floats(struct qn_export *x, qn_error *err)
{
    const bool is_one = x->w->format.group == QN_GROUP_PER_TENSOR;
    if (qni_export_add(x, ".weight", QN_E4M3, x->w->n, x->w->k, err) == NULL ||
        qni_export_add(x, ".weight_scale", x->scale_dtype, is_one ? 1 : x->w->n, is_one ? -1 : 1,
                       err) == NULL)
        return QN_E_MEMORY;
    qni_export_rows(x, 1, put_bytes);
    if (is_one)
        qni_export_put_scale(x, x->out[1].data, 0, x->w->scale[0]);
    else
        put_scales(x, x->out[1].data);
    return QN_OK;
}

/* Activations of a fixed scale, as int-quantized has them. */
static qn_status write_input(struct qn_export *x, qn_error *err)
{
    if (x->options.activation != QN_ACTIVATION_INT8_STATIC)
        return QN_OK;
    struct qni_out *scale = qni_export_add(x, ".input_scale", QN_F32, 1, -1, err);
    struct qni_out *zero =
        scale == NULL ? NULL : qni_export_add(x, ".input_zero_point", QN_I8, 1, -1, err);
    if (zero == NULL)
        return QN_E_MEMORY;
    memcpy(scale->data, &x->options.input_scale, sizeof(float));
    zero->data[0] = (uint8_t)x->options.input_zero;
    return QN_OK;
}

static qn_status write(struct qn_export *x, qn_error *err)
{
    const int64_t kind = x->fact[KIND];
    QNI_TRY(kind == NV || kind == MX ? write_pairs(x, err)
            : kind == FLOAT          ? write_floats(x, err)
                                     : write_integers(x, err));
    return kind == BYTES ? write_input(x, err) : QN_OK;
}

const struct qni_exporter qni_export_ct = {.name = "ct", .check = check, .write = write};
