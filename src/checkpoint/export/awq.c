/* SPDX-License-Identifier: Apache-2.0 */
/* AWQ "gemm": qweight i32 [K, N/8], qzeros i32 [K/G, N/8], scales f16 [K/G, N]; w = (u - z) s with
 * u and z of 4 bits. Half-byte i of a word is column 0 2 4 6 1 3 5 7 of its eight, so that codes
 * 0..7 make 0x75316420. Weights without zero points have z = 8. A weight of 2 or 3 bits is one of 4
 * bits, too. */
#include <string.h>

#include "../../base/error.h"
#include "export.h"

static const qn_dtype scale_types[] = {QN_F16, QN_DTYPE_NONE};

static qn_status check(struct qn_export *x, qn_error *err)
{
    const struct qn_weight *w = x->w;
    strcpy(x->kind, "gemm");
    x->bits = 4;
    QNI_TRY(qni_export_integers(x, err));
    if (w->format.bits > 4)
        return qni_fail(err, QN_E_FORMAT, "codes of %d bits, AWQ has 4", (int)w->format.bits);
    if (w->perm != NULL)
        return qni_fail(err, QN_E_FORMAT,
                        "its columns are in another order (act-order), which AWQ "
                        "does not have");
    if (w->n % 8 != 0)
        return qni_fail(err, QN_E_SHAPE, "%lld outputs are no multiple of 8", (long long)w->n);
    QNI_TRY(qni_export_groups(x, true, err));
    QNI_TRY(qni_export_zeros(x, 0, 15, err));
    return qni_export_scale_type(x, scale_types, err);
}

/* Where output n is: its word of a row, and its half-byte. */
static int32_t shift_of(int64_t n)
{
    return (int32_t)(4 * (n % 8 / 2 + n % 2 * 4));
}

static void put_rows(struct qn_export *x, int64_t first, int64_t last)
{
    const struct qn_weight *w = x->w;
    uint32_t *q = (uint32_t *)(void *)x->out[0].data, *z = (uint32_t *)(void *)x->out[1].data;
    int32_t zero = 0;
    for (int64_t n = first; n < last; n += 8)
        for (int64_t p = 0; p < w->k; p++) {
            uint32_t word = 0;
            for (int64_t i = n; i < n + 8; i++)
                word |= qni_export_code(x, i, p) << shift_of(i);
            q[p * (w->n / 8) + n / 8] = word;
        }
    for (int64_t n = first; n < last; n++)
        for (int64_t g = 0; g < x->groups; g++) {
            const int64_t at = qni_export_at(x, n, g);
            qni_export_zero(w, at, &zero);
            z[g * (w->n / 8) + n / 8] |= (uint32_t)(zero + 8) << shift_of(n);
            qni_export_put_scale(x, x->out[2].data, g * w->n + n, w->scale[at]);
        }
}

static qn_status write(struct qn_export *x, qn_error *err)
{
    const struct qn_weight *w = x->w;
    if (qni_export_add(x, ".qweight", QN_I32, w->k, w->n / 8, err) == NULL ||
        qni_export_add(x, ".qzeros", QN_I32, x->groups, w->n / 8, err) == NULL ||
        qni_export_add(x, ".scales", x->scale_dtype, x->groups, w->n, err) == NULL)
        return QN_E_MEMORY;
    qni_export_rows(x, 8, put_rows);
    return QN_OK;
}

const struct qni_exporter qni_export_awq = {.name = "awq", .check = check, .write = write};
