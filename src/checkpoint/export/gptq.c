/* SPDX-License-Identifier: Apache-2.0 */
/* GPTQ: qweight i32 [K b/32, N], a column being a stream of bits along k; qzeros i32 [groups,
 * N b/32], a row being a stream along n; scales [groups, N]; g_idx i32 [K]. w = (u - z) s with b =
 * 2, 3, 4 or 8. "gptq" (v1) stores z - 1, "gptq_v2" stores z, and so does "gptq_p", which keeps 3,
 * 5, 6 and 7 bits in planes (codes.h). v1 cannot store a zero point of 0,
 * and readers disagree about 2^b, so neither is written. With act-order, columns go back to where x
 * has them. */
#include <string.h>

#include "../../base/error.h"
#include "../codes.h"
#include "export.h"

enum { IS_V1, HAS_PLANES }; /* fact */
static const qn_dtype scale_types[] = {QN_F16, QN_BF16, QN_DTYPE_NONE};

enum form { V1, V2, PLANES };

static int32_t bits_for(int32_t bits, enum form form)
{
    return bits <= 4 || form == PLANES ? bits : 8;
}

static qn_status check(struct qn_export *x, enum form form, qn_error *err)
{
    static const char *const kinds[] = {"gptq", "gptq_v2", "gptq_p"};
    const struct qn_weight *w = x->w;
    const bool is_v1 = form == V1;
    strcpy(x->kind, kinds[form]);
    x->fact[IS_V1] = is_v1;
    QNI_TRY(qni_export_integers(x, err));
    x->bits = x->options.bits > 0 ? x->options.bits : bits_for(w->format.bits, form);
    if (x->bits < w->format.bits || x->bits > 8 || bits_for(x->bits, form) != x->bits)
        return qni_fail(err, QN_E_FORMAT, "codes of %d bits do not fit %d", (int)w->format.bits,
                        (int)x->bits);
    if (w->n * x->bits % 32 != 0 || w->k * x->bits % 32 != 0)
        return qni_fail(err, QN_E_SHAPE, "[%lld, %lld] codes of %d bits do not fill words",
                        (long long)w->n, (long long)w->k, (int)x->bits);
    x->fact[HAS_PLANES] = form == PLANES && (x->bits & (x->bits - 1)) != 0;
    if (x->fact[HAS_PLANES] != 0 && (w->n % 32 != 0 || w->k % 32 != 0))
        return qni_fail(err, QN_E_SHAPE, "[%lld, %lld]: planes of bits have 32 codes each",
                        (long long)w->n, (long long)w->k);
    QNI_TRY(qni_export_groups(x, false, err));
    QNI_TRY(qni_export_zeros(x, is_v1 ? 1 : 0, (1 << x->bits) - 1, err));
    return qni_export_scale_type(x, scale_types, err);
}

static qn_status check_v1(struct qn_export *x, qn_error *err)
{
    return check(x, V1, err);
}
static qn_status check_v2(struct qn_export *x, qn_error *err)
{
    return check(x, V2, err);
}
static qn_status check_planes(struct qn_export *x, qn_error *err)
{
    return check(x, PLANES, err);
}

/* Codes of 32 positions fill `bits` words of a column. */
static void put_columns(struct qn_export *x, int64_t first, int64_t last)
{
    enum { TILE = 16 }; /* columns that share a cache line */
    const struct qn_weight *w = x->w;
    const int64_t words = x->out[0].shape[0];
    uint32_t *q = (uint32_t *)(void *)x->out[0].data;
    for (int64_t tile = first; tile < last; tile += TILE)
        for (int64_t p = 0; p < w->k; p++) {
            const int64_t column = w->perm != NULL ? w->perm[p] : p, at = column * x->bits;
            const int32_t shift = (int32_t)(at % 32);
            uint32_t *word = q + at / 32 * w->n;
            for (int64_t n = tile; n < tile + TILE && n < last; n++) {
                const uint64_t wide = (uint64_t)qni_export_code(x, n, p) << shift;
                word[n] |= (uint32_t)wide;
                if (wide >> 32 != 0 && at / 32 + 1 < words)
                    word[w->n + n] |= (uint32_t)(wide >> 32);
            }
        }
}

static void put_planes(struct qn_export *x, int64_t first, int64_t last)
{
    const struct qn_weight *w = x->w;
    for (int64_t p = 0; p < w->k; p++)
        for (int64_t n = first; n < last; n++)
            qni_planes_put(x->out[0].data + 4 * n, 4 * (size_t)w->n,
                           w->perm != NULL ? w->perm[p] : p, x->bits,
                           (uint32_t)qni_export_code(x, n, p));
}

/* Streams and planes along n share bytes between rows of the weight: 32 of them end at a word. */
static void put_groups(struct qn_export *x, int64_t first, int64_t last)
{
    const struct qn_weight *w = x->w;
    const int64_t row_bytes = x->out[1].shape[1] * 4;
    const int32_t half = 1 << (x->bits - 1);
    int32_t zero = 0;
    for (int64_t n = first; n < last; n++)
        for (int64_t g = 0; g < x->groups; g++) {
            const int64_t at = qni_export_at(x, n, g);
            qni_export_zero(w, at, &zero);
            const uint32_t stored = (uint32_t)(zero + half - (x->fact[IS_V1] != 0 ? 1 : 0));
            if (x->fact[HAS_PLANES] != 0)
                qni_planes_put(x->out[1].data + g * row_bytes, 4, n, x->bits, stored);
            else
                qni_export_stream(x->out[1].data + g * row_bytes, n, x->bits, stored);
            qni_export_put_scale(x, x->out[2].data, g * w->n + n, w->scale[at]);
        }
}

static void put_rows(struct qn_export *x, int64_t first, int64_t last)
{
    if (x->fact[HAS_PLANES] != 0)
        put_planes(x, first, last);
    else
        put_columns(x, first, last);
    put_groups(x, first, last);
}

static qn_status write(struct qn_export *x, qn_error *err)
{
    const struct qn_weight *w = x->w;
    if (qni_export_add(x, ".qweight", QN_I32, w->k * x->bits / 32, w->n, err) == NULL ||
        qni_export_add(x, ".qzeros", QN_I32, x->groups, w->n * x->bits / 32, err) == NULL ||
        qni_export_add(x, ".scales", x->scale_dtype, x->groups, w->n, err) == NULL)
        return QN_E_MEMORY;
    QNI_TRY(qni_export_order(x, ".g_idx", err));
    qni_export_rows(x, 32, put_rows);
    return QN_OK;
}

const struct qni_exporter qni_export_gptq = {.name = "gptq", .check = check_v1, .write = write};
const struct qni_exporter qni_export_gptq_v2 = {
    .name = "gptq_v2", .check = check_v2, .write = write};
const struct qni_exporter qni_export_gptq_p = {
    .name = "gptq_p", .check = check_planes, .write = write};
