/* SPDX-License-Identifier: Apache-2.0 */
/* bitsandbytes.
 *
 * NF4 (and FP4, if the table is bitsandbytes' own): weight u8 [(N K + 1) / 2, 1], the first of a
 * pair in the high half; weight.absmax f32, one for each block of the flattened matrix;
 * weight.quant_map f32 [16]; weight.quant_state.bitsandbytes__nf4, JSON in bytes. Blocks of 64, its
 * default, if the weight's scales allow it, else the largest of 4096 to 32. Absmax is not quantized
 * a second time.
 *
 * LLM.int8, for integers of 8 bits with one scale a row: weight i8 [N, K], SCB f32 [N], the largest
 * magnitude: scale = SCB / 127, rounded to f32. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../base/error.h"
#include "../../base/half.h"
#include "../../base/size.h"
#include "export.h"

enum { IS_INT8, BLOCK, IS_FP4 }; /* fact */

static const float fp4[8] = {0.0f, 0.005208333333f, 0.66666667f, 1.0f, 0.33333333f,
                             0.5f, 0.16666667f,     0.25f};

/* ---- LLM.int8 -------------------------------------------------------------------------------- */

static bool find_most(float scale, float *most)
{
    for (int32_t near = 0; near < 5; near++) {
        const int32_t step = near % 2 == 0 ? near / 2 : -(near + 1) / 2;
        *most = (float)((double)scale * 127.0);
        if (*most != 0)
            *most = qni_float_of(qni_bits_of(*most) + (uint32_t)step);
        if ((float)((double)*most / 127.0) == scale)
            return true;
    }
    return false;
}

static qn_status check_int8(struct qn_export *x, qn_error *err)
{
    const struct qn_weight *w = x->w;
    float most;
    strcpy(x->kind, "int8");
    x->bits = 8;
    QNI_TRY(qni_export_groups(x, true, err));
    if (w->format.bits != 8 || !x->is_per_row)
        return qni_fail(err, QN_E_FORMAT,
                        "integers of %d bits in groups of %lld; bitsandbytes has NF4, and integers "
                        "of 8 bits with one scale a row",
                        (int)w->format.bits, (long long)x->group);
    QNI_TRY(qni_export_zeros(x, 128, 128, err));
    for (int64_t n = 0; n < w->n; n++)
        if (!find_most(w->scale[n * w->n_groups], &most))
            return qni_fail(err, QN_E_VALUE, "row %lld: scale %.9g is no f32 number over 127",
                            (long long)n, (double)w->scale[n * w->n_groups]);
    x->scale_dtype = QN_F32;
    x->fact[IS_INT8] = 1;
    return QN_OK;
}

static void put_int8(struct qn_export *x, int64_t first, int64_t last)
{
    const struct qn_weight *w = x->w;
    float most;
    for (int64_t n = first; n < last; n++) {
        for (int64_t p = 0; p < w->k; p++)
            x->out[0].data[n * w->k + p] = w->codes[n * w->k + p] ^ 0x80;
        find_most(w->scale[n * w->n_groups], &most);
        memcpy(x->out[1].data + 4 * n, &most, sizeof most);
    }
}

/* ---- four bits ------------------------------------------------------------------------------- */

/* Tells the table of a weight: 1 NF4, 2 FP4, 0 neither. */
static int32_t table_of(const struct qn_weight *w)
{
    if (w->format.code == QN_CODE_NF4)
        return 1;
    if (w->format.code != QN_CODE_TABLE || w->format.bits != 4)
        return 0;
    for (int32_t i = 0; i < 16; i++)
        if (fabsf(w->table[i] - (i < 8 ? fp4[i] : -fp4[i - 8])) > 1e-6f)
            return 0;
    return 2;
}

static float scale_at(const struct qn_weight *w, int64_t i)
{
    const int64_t row = i / w->k, p = i % w->k;
    return w->scale[row * w->n_groups + (w->format.group < 0 ? 0 : p / w->format.group)];
}

/* Do blocks of that many elements of the flattened matrix each have one scale? Scales change only
 * where a group begins. */
static bool is_block(const struct qn_weight *w, int64_t block)
{
    const int64_t group = w->format.group < 0 ? w->k : w->format.group;
    for (int64_t row = 0; row < w->n; row++)
        for (int64_t p = 0; p < w->k; p += group) {
            const int64_t i = row * w->k + p;
            if (i % block != 0 && scale_at(w, i) != scale_at(w, i - 1))
                return false;
        }
    return true;
}

static qn_status check(struct qn_export *x, qn_error *err)
{
    static const int64_t blocks[] = {64, 4096, 2048, 1024, 512, 256, 128, 32};
    const struct qn_weight *w = x->w;
    if (w->perm != NULL)
        return qni_fail(err, QN_E_FORMAT, "its columns are in another order (act-order)");
    if (w->format.code == QN_CODE_INT)
        return check_int8(x, err);
    const int32_t table = table_of(w);
    if (table == 0 || w->zero != NULL || w->offset != NULL)
        return qni_fail(err, QN_E_FORMAT, "its table is neither NF4 nor bitsandbytes' FP4");
    strcpy(x->kind, table == 1 ? "nf4" : "fp4");
    x->bits = 4;
    x->is_symmetric = true;
    x->scale_dtype = QN_F32;
    x->fact[IS_FP4] = table == 2;
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (is_block(w, blocks[i])) {
            x->fact[BLOCK] = x->group = blocks[i];
            return QN_OK;
        }
    return qni_fail(
        err, QN_E_VALUE,
        "its groups of %lld columns are no blocks of 32 to 4096 of the flat matrix",
        (long long)w->format.group);
}

static void put_codes(struct qn_export *x)
{
    const struct qn_weight *w = x->w;
    const int64_t count = w->n * w->k;
    for (int64_t i = 0; i < count; i += 2)
        x->out[0].data[i / 2] = (uint8_t)(w->codes[i] << 4 | (i + 1 < count ? w->codes[i + 1] : 0));
    for (int64_t b = 0; b < x->out[1].shape[0]; b++) {
        const float scale = scale_at(w, b * x->fact[BLOCK]);
        memcpy(x->out[1].data + 4 * b, &scale, sizeof scale);
    }
    memcpy(x->out[2].data, w->table, 16 * sizeof(float));
}

static qn_status write(struct qn_export *x, qn_error *err)
{
    const struct qn_weight *w = x->w;
    const int64_t count = w->n * w->k;
    const bool is_fp4 = x->fact[IS_FP4] != 0;
    if (x->fact[IS_INT8] != 0) {
        if (qni_export_add(x, ".weight", QN_I8, w->n, w->k, err) == NULL ||
            qni_export_add(x, ".SCB", QN_F32, w->n, -1, err) == NULL ||
            qni_export_add(x, ".weight_format", QN_U8, 1, -1, err) == NULL)
            return QN_E_MEMORY;
        x->out[2].rank = 0;
        qni_export_rows(x, 1, put_int8);
        return QN_OK;
    }
    char state[256];
    const int length = snprintf(
        state, sizeof state,
        "{\"quant_type\": \"%s\", \"blocksize\": %lld, \"dtype\": \"float16\", \"shape\": [%lld, "
        "%lld]}",
        x->kind, (long long)x->fact[BLOCK], (long long)w->n, (long long)w->k);
    if (qni_export_add(x, ".weight", QN_U8, qni_ceil_div(count, 2), 1, err) == NULL ||
        qni_export_add(x, ".weight.absmax", QN_F32, qni_ceil_div(count, x->fact[BLOCK]), -1, err) ==
            NULL ||
        qni_export_add(x, ".weight.quant_map", QN_F32, 16, -1, err) == NULL ||
        qni_export_add(x,
                       is_fp4 ? ".weight.quant_state.bitsandbytes__fp4"
                              : ".weight.quant_state.bitsandbytes__nf4",
                       QN_U8, length, -1, err) == NULL)
        return QN_E_MEMORY;
    memcpy(x->out[3].data, state, (size_t)length);
    put_codes(x);
    return QN_OK;
}

const struct qni_exporter qni_export_bnb = {.name = "bnb", .check = check, .write = write};
